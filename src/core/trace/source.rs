//! Where a viewer's answers come from, as the viewer sees it.
//!
//! A viewer knows nothing of models: it asks a [`Source`] for an outline, and [`Query`] by query for what a view
//! needs. A source may have the answer, derive it from others, or have a model compute it on another thread; until
//! then it is pending and the screen is drawn without it.

use std::task::Poll;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::CacheDtype;
use crate::error::{Error, Result};

use super::block::{Block, Region};
use super::card::ModelCard;
use super::draw::Sampling;
use super::fork::Fork;
use super::query::{Answer, BlockAt, Query, Question};
use super::site::{Run, Site};
use super::sizes::PassDims;

/// What there is to look at: one sequence of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outline {
    /// The run.
    pub run: Run,
    /// Where it begins, if it is a branch of another run.
    pub fork: Option<Fork>,
    /// How its tokens are drawn, where that is not how the run's are: a branch may have a setting of its own.
    pub setting: Option<Sampling>,
    /// Number of the sequence in its batch.
    pub sequence: usize,
    /// How many sequences the batch has.
    pub sequences: usize,
    /// Whether it was recorded, and all of its passes are there.
    pub recorded: bool,
    /// Why no pass follows the last one of a run that goes on otherwise.
    pub ended: Option<End>,
    /// The model.
    pub card: ModelCard,
    /// The passes so far; the first is the prefill.
    pub passes: Vec<PassOutline>,
    /// What keys and values are kept in.
    pub cache: Cached,
}

/// Why a run goes no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The text has ended.
    Text,
    /// The context is full.
    Full,
}

/// The KV cache of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cached {
    /// The number type of what is in it.
    pub dtype: CacheDtype,
    /// How many tokens it was made for; none where the run is over, which needs no more.
    pub capacity: Option<usize>,
}

/// One pass of the outline.
#[derive(Clone, Debug, PartialEq)]
pub struct PassOutline {
    /// Its number, how much was cached before, how many tokens it reads.
    pub dims: PassDims,
    /// The tokens it reads, T of them.
    pub tokens: Vec<TokenLabel>,
    /// The token that the sampler drew after it; none while the pass runs, or where who recorded it did not say.
    pub sampled: Option<TokenLabel>,
}

/// A token and its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenLabel {
    /// The id.
    pub id: u32,
    /// Its text: a leading space is kept, special tokens by name, `#id` where there is no tokenizer.
    pub text: String,
}

/// What a source is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// Nothing: everything that was asked for is there.
    Idle,
    /// Computing; the text says what, for the status line.
    Working(String),
}

/// A run that can be asked about. Calls return at once, but for [`Source::wait`].
pub trait Source {
    /// The passes so far and the model they come from.
    fn outline(&self) -> &Outline;

    /// The answer to `query`: there, on its way, or impossible. What was on its way before may have to be asked for
    /// again.
    ///
    /// # Errors
    /// Where what it asks about does not exist, or computing it failed or was stopped.
    fn ask(&mut self, query: &Query) -> Poll<Result<Answer>>;

    /// Nobody waits for the answer to `query` any more. What is being computed for it is computed to its end.
    fn cancel(&mut self, query: &Query);

    /// Stops what is being computed. What was computed before stays, and what was stopped can be asked for again.
    fn stop(&mut self);

    /// Asks for one more pass: the token that was drawn last is run and the next one drawn.
    ///
    /// # Errors
    /// Where no further pass is possible, with the reason: the context is full, the text has ended.
    fn advance(&mut self) -> Result<()>;

    /// Begins a branch of this run under the number `run`: it has the passes up to that of `fork`, and its next pass reads
    /// another token. Nothing is run for it until it is asked for.
    ///
    /// # Errors
    /// Where this run has no such pass, or none can be run: it was recorded.
    fn branch(&mut self, run: Run, fork: Fork) -> Result<Box<dyn Source>>;

    /// Takes in what has been computed meanwhile; true where the screen may look different now.
    ///
    /// # Errors
    /// Where there is nothing to look at and never will be: the first pass failed.
    fn poll(&mut self) -> Result<bool>;

    /// Waits until something that was computed is there for [`Source::poll`] to take in, for at most so long. The one call
    /// that does not return at once.
    fn wait(&mut self, most: Duration);

    /// What is being computed.
    fn status(&self) -> Status;

    /// The text of a token of the vocabulary, to label its axis.
    fn token_text(&self, id: u32) -> String;
}

/// Asks `source` for a block of `site` that has what is in `region`.
///
/// # Errors
/// As [`Source::ask`].
pub fn block(source: &mut (impl Source + ?Sized), site: Site, region: &Region) -> Poll<Result<Block>> {
    told(source, BlockAt(site, region.clone()))
}

/// The answer to a question that knows its type.
///
/// # Errors
/// As [`Source::ask`].
pub fn told<Q: Question>(source: &mut (impl Source + ?Sized), question: Q) -> Poll<Result<Q::Answer>> {
    source.ask(&question.into()).map_ok(|answer| {
        Q::answer(answer).unwrap_or_else(|| unreachable!("a source answers what it is asked"))
    })
}

/// Why a run that was recorded goes no further and has no other branches.
pub fn all_recorded() -> Error {
    Error::usage("a trace has the passes that were recorded, and no others")
        .next("record more tokens: `llama-trace record` with a larger -n; or start the tracer with --prompt, which goes on and branches")
}

impl Outline {
    /// Whether the first pass is not done yet: there is little to look at.
    pub fn is_opening(&self) -> bool {
        !self.recorded && self.passes.iter().all(|pass| pass.sampled.is_none())
    }

    /// The tokens of the first `count` positions, over all passes: the labels of a key axis.
    pub fn positions(&self, count: usize) -> impl Iterator<Item = &TokenLabel> {
        self.passes.iter().flat_map(|pass| &pass.tokens).take(count)
    }
}
