//! What a viewer asks about a run, and what it is told.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::block::{Block, Region};
use super::draw::{Draw, DrawAt};
use super::explanation::{Explanation, ExplanationAt};
use super::lens::{Attribution, AttributionAt, LensAt, Reading};
use super::pattern::Pattern;
use super::site::{Run, Site};
use super::spread::{Order, Part, Spread};
use super::weight::Weight;

/// A question about a run. Equal questions have equal answers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Query {
    /// A block of a stage that has what is in the region; the whole stage where that is small enough.
    Block(Site, Region),
    /// How far the values of a part of a stage spread.
    Spread(Part),
    /// The ids of a vocabulary by the values of a part, which has that axis alone.
    Order(Part),
    /// How the heads of a layer divide their attention; of its softmax.
    Patterns(Site),
    /// Rows of a weight.
    Rows(WeightRows),
    /// Where a number comes from.
    Explanation(ExplanationAt),
    /// What the model would answer after a layer.
    Lens(LensAt),
    /// What each part of the model added to a logit.
    Attribution(AttributionAt),
    /// What is drawn after a pass.
    Draw(DrawAt),
}

/// Some rows of a weight: everything along its last axis is one, and a vector is one row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WeightRows {
    /// The run whose model has it.
    pub run: Run,
    /// Number of the layer, where each has one of its own.
    pub layer: Option<usize>,
    /// The weight.
    pub weight: Weight,
    /// The rows.
    pub rows: Range<usize>,
}

/// What is answered. Each question has an answer of its own kind.
#[derive(Clone, Debug)]
pub enum Answer {
    /// To [`Query::Block`].
    Block(Block),
    /// To [`Query::Spread`].
    Spread(Spread),
    /// To [`Query::Order`].
    Order(Order),
    /// To [`Query::Patterns`]: one for each head.
    Patterns(Vec<Pattern>),
    /// To [`Query::Rows`]: their values in float32, one row after the other.
    Rows(Vec<f32>),
    /// To [`Query::Explanation`].
    Explanation(Box<Explanation>),
    /// To [`Query::Lens`]: one for each of the tokens.
    Lens(Vec<Reading>),
    /// To [`Query::Attribution`].
    Attribution(Attribution),
    /// To [`Query::Draw`].
    Draw(Arc<Draw>),
}

impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block(site, _) => write!(f, "computing {site}"),
            Self::Spread(part) => write!(f, "summing up {}", part.site),
            Self::Order(part) => write!(f, "sorting {}", part.site),
            Self::Patterns(site) => write!(f, "measuring the heads of {site}"),
            Self::Rows(rows) => write!(f, "reading {rows}"),
            Self::Explanation(at) => write!(f, "taking a number of {} apart", at.site),
            Self::Lens(at) => write!(f, "reading {} as an answer", at.site),
            Self::Attribution(at) => write!(f, "splitting {}", at.site),
            Self::Draw(at) => write!(f, "drawing {}", at.site),
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
