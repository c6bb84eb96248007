//! Where a viewer's frames come from, as the viewer sees it.
//!
//! A viewer knows nothing of models: it asks a [`Source`] for an outline and for the frames of sites. A
//! source may have them, derive them from others, or have a model compute them on another thread; until
//! then the answer is pending and the screen is drawn without it.

use std::task::Poll;

use crate::error::Result;

use super::block::{Block, Region};
use super::card::{ModelCard, PassDims};
use super::frame::Stats;
use super::site::{Run, Site};

/// What there is to look at: one sequence of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outline {
    /// The run.
    pub run: Run,
    /// Number of the sequence in its batch.
    pub sequence: usize,
    /// The model.
    pub card: ModelCard,
    /// The passes so far; the first is the prefill.
    pub passes: Vec<PassOutline>,
}

/// One pass of the outline.
#[derive(Clone, Debug, PartialEq)]
pub struct PassOutline {
    /// Its number, how much was cached before, how many tokens it reads.
    pub dims: PassDims,
    /// The tokens it reads, T of them.
    pub tokens: Vec<TokenLabel>,
    /// The token that the sampler drew after it; none while the pass runs.
    pub sampled: Option<TokenLabel>,
}

/// A token and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
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

/// The frames of a run. Calls return at once.
pub trait Source {
    /// The passes so far and the model they come from.
    fn outline(&self) -> &Outline;

    /// A block of `site` that has what is in `region`, the whole stage where it is small enough: there, on its
    /// way, or impossible. What was on its way before may have to be asked for again.
    ///
    /// # Errors
    /// Where the site does not exist, or computing it failed or was stopped.
    fn block(&mut self, site: Site, region: &Region) -> Poll<Result<Block>>;

    /// The statistics of a whole stage that comes in blocks: of all its values, or of those at one index of one of
    /// its axes.
    ///
    /// # Errors
    /// As [`Source::block`].
    fn stats(&mut self, site: Site, held: Option<(usize, usize)>) -> Poll<Result<Stats>>;

    /// Stops what is being computed. What was computed before stays, and what was stopped can be asked for again.
    fn stop(&mut self);

    /// Asks for one more pass: the token that was drawn last is run and the next one drawn.
    ///
    /// # Errors
    /// Where no further pass is possible, with the reason: the context is full, the text has ended.
    fn advance(&mut self) -> Result<()>;

    /// Takes in what has been computed meanwhile; true where the screen may look different now.
    ///
    /// # Errors
    /// Where there is nothing to look at and never will be: the first pass failed.
    fn poll(&mut self) -> Result<bool>;

    /// What is being computed.
    fn status(&self) -> Status;

    /// The text of a token of the vocabulary, to label its axis.
    fn token_text(&self, id: u32) -> String;
}

impl Outline {
    /// The tokens of the first `count` positions, over all passes: the labels of a key axis.
    pub fn positions(&self, count: usize) -> impl Iterator<Item = &TokenLabel> {
        self.passes.iter().flat_map(|pass| &pass.tokens).take(count)
    }
}
