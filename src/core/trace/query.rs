//! The queries of a viewer about a run, and their answers.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::block::{Block, Region};
use super::draw::{Draw, DrawAt};
use super::explanation::{Explanation, ExplanationAt};
use super::lens::{Attribution, AttributionAt, LensAt, Reading};
use super::patch::{PatchAt, PatchEffects};
use super::pattern::Pattern;
use super::site::{Run, Site};
use super::spread::{Order, Part, Spread};
use super::stream::{Addition, StreamAt};
use super::token_logprobs::{TokenLogprob, TokenLogprobsAt, TokenPieces};
use super::units::{Ranking, UnitsAt, WritesAt, Writing};
use super::weight::Weight;

/// A query about a run. Equal queries have equal answers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Query {
    /// A block of a stage that contains the region; the whole stage if it is small enough.
    Block(Site, Region),
    /// The spread of the values of a part of a stage.
    Spread(Part),
    /// The ids of the vocabulary, ordered by the values of a part. The vocabulary is the only axis of the part.
    Order(Part),
    /// The attention patterns of the heads of a layer; the site is its softmax.
    Patterns(Site),
    /// Rows of a weight.
    Rows(WeightRows),
    /// The explanation of a number.
    Explanation(ExplanationAt),
    /// The prediction after a layer.
    Lens(LensAt),
    /// The contribution of each part of the model to the difference of two logits.
    Attribution(AttributionAt),
    /// The draw after a pass.
    Draw(DrawAt),
    /// The additions of a layer's sublayers to the residual stream.
    Stream(StreamAt),
    /// The units of a feed-forward network, by strength.
    Units(UnitsAt),
    /// The contribution of some units to the logits.
    Writes(WritesAt),
    /// The probability of each token before the model read it.
    TokenLogprobs(TokenLogprobsAt),
    /// The pieces of the tokens of a pass; the site is that of `tokens`.
    TokenPieces(Site),
    /// The effects of places whose values are taken from the run of another prompt.
    Patch(PatchAt),
}

impl Query {
    /// The stage that it is about; `None` for a weight.
    pub fn site(&self) -> Option<Site> {
        match self {
            Self::Block(site, _) => Some(*site),
            Self::Spread(part) | Self::Order(part) => Some(part.site),
            Self::Rows(_) => None,
            Self::Explanation(at) => Some(at.site),
            Self::Lens(at) => Some(at.site),
            Self::Attribution(at) => Some(at.site),
            Self::Draw(at) => Some(at.site),
            Self::Stream(at) => Some(at.site),
            Self::Units(at) => Some(at.site),
            Self::Writes(at) => Some(at.site),
            Self::TokenLogprobs(at) => Some(at.site),
            Self::Patch(at) => Some(at.site),
            Self::TokenPieces(site) | Self::Patterns(site) => Some(*site),
        }
    }

    /// The same query about another run.
    #[must_use]
    pub fn of_run(&self, run: Run) -> Self {
        let mut query = self.clone();
        match &mut query {
            Self::Block(site, _) => site.run = run,
            Self::Spread(part) | Self::Order(part) => part.site.run = run,
            Self::Rows(rows) => rows.run = run,
            Self::Explanation(at) => at.site.run = run,
            Self::Lens(at) => at.site.run = run,
            Self::Attribution(at) => at.site.run = run,
            Self::Draw(at) => at.site.run = run,
            Self::Stream(at) => at.site.run = run,
            Self::Units(at) => at.site.run = run,
            Self::Writes(at) => at.site.run = run,
            Self::TokenLogprobs(at) => at.site.run = run,
            Self::Patch(at) => at.site.run = run,
            Self::TokenPieces(site) | Self::Patterns(site) => site.run = run,
        }
        query
    }
}

/// Some rows of a weight. A row is everything along its last axis; a vector is one row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WeightRows {
    /// The run whose model has the weight.
    pub run: Run,
    /// Number of the layer, if each layer has its own weight.
    pub layer: Option<usize>,
    /// The weight.
    pub weight: Weight,
    /// The rows.
    pub rows: Range<usize>,
}

/// The answer to a query. Each kind of query has its own kind of answer.
#[derive(Clone, Debug)]
pub enum Answer {
    /// To [`Query::Block`].
    Block(Block),
    /// To [`Query::Spread`].
    Spread(Spread),
    /// To [`Query::Order`].
    Order(Order),
    /// To [`Query::Patterns`]: one per head.
    Patterns(Vec<Pattern>),
    /// To [`Query::Rows`]: their values in float32, row after row.
    Rows(Vec<f32>),
    /// To [`Query::Explanation`].
    Explanation(Box<Explanation>),
    /// To [`Query::Lens`]: one per token.
    Lens(Vec<Reading>),
    /// To [`Query::Attribution`].
    Attribution(Attribution),
    /// To [`Query::Draw`].
    Draw(Arc<Draw>),
    /// To [`Query::Stream`]: for each token, the additions of attention and of the feed-forward network.
    Stream(Vec<[Addition; 2]>),
    /// To [`Query::Units`].
    Units(Arc<Ranking>),
    /// To [`Query::Writes`]: one per unit.
    Writes(Vec<Writing>),
    /// To [`Query::TokenLogprobs`]: one per token; `None` for the first token of a text.
    TokenLogprobs(Vec<Option<TokenLogprob>>),
    /// To [`Query::TokenPieces`]: one per token of the pass.
    TokenPieces(Arc<[TokenPieces]>),
    /// To [`Query::Patch`].
    Patch(PatchEffects),
}

/// A query that knows the type of its answer.
pub trait Question: Clone + Into<Query> {
    /// The borrowed form of the answer.
    type Told: ?Sized;
    /// The form that [`Answer`] holds.
    type Answer: Borrow<Self::Told>;

    /// The answer to a query of this type; `None` if `answer` is of another kind.
    fn answer(answer: Answer) -> Option<Self::Answer>;

    /// A reference to the answer.
    fn told(answer: &Answer) -> Option<&Self::Told>;
}

/// A block of a stage that contains the region: [`Query::Block`].
#[derive(Clone, Debug)]
pub struct BlockAt(pub Site, pub Region);

/// The attention patterns of the heads of a layer: [`Query::Patterns`].
#[derive(Clone, Copy, Debug)]
pub struct PatternsAt(pub Site);

/// The pieces of the tokens of a pass: [`Query::TokenPieces`].
#[derive(Clone, Copy, Debug)]
pub struct TokenPiecesAt(pub Site);

impl From<BlockAt> for Query {
    fn from(BlockAt(site, region): BlockAt) -> Self {
        Self::Block(site, region)
    }
}

impl From<PatternsAt> for Query {
    fn from(PatternsAt(site): PatternsAt) -> Self {
        Self::Patterns(site)
    }
}

impl From<TokenPiecesAt> for Query {
    fn from(TokenPiecesAt(site): TokenPiecesAt) -> Self {
        Self::TokenPieces(site)
    }
}

macro_rules! questions {
    ($($question:ty, $kind:ident: $told:ty, $answer:ty;)*) => {$(
        impl Question for $question {
            type Told = $told;
            type Answer = $answer;

            fn answer(answer: Answer) -> Option<$answer> {
                if let Answer::$kind(answer) = answer { Some(answer) } else { None }
            }

            fn told(answer: &Answer) -> Option<&$told> {
                if let Answer::$kind(answer) = answer { Some(answer.borrow()) } else { None }
            }
        }
    )*};
}

macro_rules! queries {
    ($($question:ty, $kind:ident;)*) => {$(
        impl From<$question> for Query {
            fn from(question: $question) -> Self {
                Self::$kind(question)
            }
        }
    )*};
}

queries! {
    WeightRows, Rows;
    ExplanationAt, Explanation;
    LensAt, Lens;
    AttributionAt, Attribution;
    DrawAt, Draw;
    StreamAt, Stream;
    UnitsAt, Units;
    WritesAt, Writes;
    TokenLogprobsAt, TokenLogprobs;
    PatchAt, Patch;
}

questions! {
    BlockAt, Block: Block, Block;
    PatternsAt, Patterns: [Pattern], Vec<Pattern>;
    WeightRows, Rows: [f32], Vec<f32>;
    ExplanationAt, Explanation: Explanation, Box<Explanation>;
    LensAt, Lens: [Reading], Vec<Reading>;
    AttributionAt, Attribution: Attribution, Attribution;
    DrawAt, Draw: Draw, Arc<Draw>;
    StreamAt, Stream: [[Addition; 2]], Vec<[Addition; 2]>;
    UnitsAt, Units: Ranking, Arc<Ranking>;
    WritesAt, Writes: [Writing], Vec<Writing>;
    TokenLogprobsAt, TokenLogprobs: [Option<TokenLogprob>], Vec<Option<TokenLogprob>>;
    TokenPiecesAt, TokenPieces: [TokenPieces], Arc<[TokenPieces]>;
    PatchAt, Patch: PatchEffects, PatchEffects;
}

impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block(site, _) => write!(f, "computing {site}"),
            Self::Spread(part) => write!(f, "summing up {}", part.site),
            Self::Order(part) => write!(f, "sorting {}", part.site),
            Self::Patterns(site) => write!(f, "measuring the heads of {site}"),
            Self::Rows(rows) => write!(f, "reading {rows}"),
            Self::Explanation(at) => write!(f, "explaining a value of {}", at.site),
            Self::Lens(at) => write!(f, "reading the prediction of {}", at.site),
            Self::Attribution(at) => write!(f, "splitting a logit of {}", at.site),
            Self::Draw(at) => write!(f, "sampling {}", at.site),
            Self::Stream(at) => write!(f, "measuring {}", at.site),
            Self::Units(at) => write!(f, "sorting {}", at.site),
            Self::Writes(at) => write!(f, "reading the contributions of {}", at.site),
            Self::TokenLogprobs(at) => write!(f, "reading the tokens' probabilities of {}", at.site),
            Self::TokenPieces(site) => write!(f, "splitting the text of {site}"),
            Self::Patch(at) => write!(f, "patching {}", at.map.name()),
        }
    }
}

impl fmt::Display for WeightRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(layer) = self.layer {
            write!(f, "L{layer}/")?;
        }
        self.weight.fmt(f)
    }
}
