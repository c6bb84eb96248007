//! The source of a viewer's answers.
//!
//! A viewer knows nothing of models. It asks a [`Source`] for an outline, and sends a [`Query`] for each thing that a
//! view needs. A source may have the answer, derive it from others, or let a model compute it on another thread. Until
//! then the answer is pending, and the screen is drawn without it.

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

/// The outline of one sequence of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outline {
    /// The run.
    pub run: Run,
    /// Its start, if it is a branch of another run.
    pub fork: Option<Fork>,
    /// The sampler settings of a branch, if they differ from those of its run.
    pub setting: Option<Sampling>,
    /// Number of the sequence in its batch.
    pub sequence: usize,
    /// The number of sequences in the batch.
    pub sequences: usize,
    /// Whether the run was recorded. Then it has all its passes.
    pub recorded: bool,
    /// The reason why a live run has no further pass.
    pub ended: Option<End>,
    /// The model.
    pub card: ModelCard,
    /// The passes so far; the first is the prefill.
    pub passes: Vec<PassOutline>,
    /// The KV cache.
    pub cache: Cached,
}

/// The reason why a run ended.
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
    /// The number type of its entries.
    pub dtype: CacheDtype,
    /// Its capacity in tokens; `None` for a finished run, which needs no more room.
    pub capacity: Option<usize>,
}

/// One pass of the outline.
#[derive(Clone, Debug, PartialEq)]
pub struct PassOutline {
    /// Its number, its start and its number of tokens.
    pub dims: PassDims,
    /// The tokens it reads, T of them.
    pub tokens: Vec<TokenLabel>,
    /// The token drawn after it; `None` while the pass runs, or if the recording lacks it.
    pub sampled: Option<TokenLabel>,
}

/// A token and its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenLabel {
    /// The id.
    pub id: u32,
    /// Its text. Leading spaces are kept, special tokens have their name, and without a tokenizer it is `#id`.
    pub text: String,
}

/// The activity of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// Nothing: every query has its answer.
    Idle,
    /// Computing; the text describes the work, for the status line.
    Working(String),
}

/// A run that answers queries. Calls return immediately, except [`Source::wait`].
pub trait Source {
    /// The passes so far and the model they come from.
    fn outline(&self) -> &Outline;

    /// The answer to `query`: ready, pending, or an error. A query that was pending may have to be asked again.
    ///
    /// # Errors
    /// An error if the subject does not exist, or computing it failed or was stopped.
    fn ask(&mut self, query: &Query) -> Poll<Result<Answer>>;

    /// Withdraws `query`. A computation that has started for it runs to its end.
    fn cancel(&mut self, query: &Query);

    /// Stops the current computation. Finished results stay, and the stopped query can be asked again.
    fn stop(&mut self);

    /// Asks for one more pass: it reads the last drawn token, and the next token is drawn.
    ///
    /// # Errors
    /// An error with the reason if no further pass is possible: the context is full, or the text has ended.
    fn advance(&mut self) -> Result<()>;

    /// Starts a branch of this run with the number `run`. The branch shares the passes up to the pass of `fork`. Its
    /// next pass reads another token. Its values are computed on demand.
    ///
    /// # Errors
    /// An error if this run has no such pass, or cannot run a pass because it was recorded.
    fn branch(&mut self, run: Run, fork: Fork) -> Result<Box<dyn Source>>;

    /// Receives finished computations; true if the screen may have changed.
    ///
    /// # Errors
    /// An error if the first pass failed; there is then nothing to show.
    fn poll(&mut self) -> Result<bool>;

    /// Blocks until a result is ready for [`Source::poll`], at most for `most`. It is the only call that blocks.
    fn wait(&mut self, most: Duration);

    /// The current activity.
    fn status(&self) -> Status;

    /// The text of a token of the vocabulary, to label its axis.
    fn token_text(&self, id: u32) -> String;
}

/// Asks `source` for a block of `site` that contains `region`.
///
/// # Errors
/// Those of [`Source::ask`].
pub fn block(source: &mut (impl Source + ?Sized), site: Site, region: &Region) -> Poll<Result<Block>> {
    told(source, BlockAt(site, region.clone()))
}

/// The answer to a typed query.
///
/// # Errors
/// Those of [`Source::ask`].
pub fn told<Q: Question>(source: &mut (impl Source + ?Sized), question: Q) -> Poll<Result<Q::Answer>> {
    source.ask(&question.into()).map_ok(|answer| {
        Q::answer(answer).unwrap_or_else(|| unreachable!("the answer has the type of the question"))
    })
}

/// The error of asking a recorded run for more passes or branches.
pub fn all_recorded() -> Error {
    Error::usage("a trace has only the passes that were recorded")
        .next("record more tokens: `llama-trace record` with a larger -n; or start the tracer with --prompt, to generate more tokens and branches")
}

impl Outline {
    /// Returns whether the first pass is still running.
    pub fn is_opening(&self) -> bool {
        !self.recorded && self.passes.iter().all(|pass| pass.sampled.is_none())
    }

    /// The tokens of the first `count` positions, over all passes: the labels of a key axis.
    pub fn positions(&self, count: usize) -> impl Iterator<Item = &TokenLabel> {
        self.passes.iter().flat_map(|pass| &pass.tokens).take(count)
    }
}
