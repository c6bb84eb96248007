//! A session: one text and the model that runs it.

use std::ops::Deref;
use std::sync::Arc;

use crate::backend::{Draw, Drawn, Span};
use crate::model::pass::PassInSteps;
use crate::model::{Activations, KvCache, Model};
use llama_trace_core::error::Result;
use llama_trace_core::trace::{PassDims, Probe};

use super::sampler::Sampler;
use super::sequence::{self, Ended, Sequence, Text};

/// The next step of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A pass over the waiting tokens ([`Session::waiting`]).
    Pass(PassDims),
    /// Nothing: the text has ended.
    Ended(Ended),
}

/// A session's model: borrowed or shared.
#[derive(Clone)]
pub enum Held<'m, T> {
    /// Borrowed for the session's lifetime.
    Borrowed(&'m T),
    /// Kept by the session.
    Shared(Arc<T>),
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Self::Borrowed(it) => it,
            Self::Shared(it) => it,
        }
    }
}

/// A text that grows: first the prompt in one pass, then token by token. A [`super::Batch`] runs several texts.
///
/// ```text
/// session.begin(prompt, ends, draws)?;
/// while let Next::Pass(dims) = session.next() {
///     let id = session.pass(&mut probe)?;
/// }
/// ```
pub struct Session<'m> {
    /// The model.
    pub model: Held<'m, Model>,
    /// The text.
    pub sequence: Sequence,
    /// The buffers of a pass.
    pub work: Activations,
    passes: usize,
}

impl<'m> Session<'m> {
    /// Creates a session that has run nothing, for a text of unknown length.
    ///
    /// # Errors
    /// The errors of [`KvCache::as_long_as_fits`].
    pub fn new(model: &'m Model, sampler: Sampler) -> Result<Self> {
        let cache = KvCache::as_long_as_fits(&model.config, &*model.backend)?;
        Self::over(Held::Borrowed(model), cache, sampler)
    }

    /// Creates a session that has run nothing, with room for `tokens` tokens, at most the model's context.
    ///
    /// # Errors
    /// The errors of [`KvCache::with_capacity`].
    pub fn with_capacity(model: &'m Model, sampler: Sampler, tokens: usize) -> Result<Self> {
        Self::held(Held::Borrowed(model), sampler, tokens)
    }

    /// [`Session::with_capacity`] for a model that is borrowed or shared.
    ///
    /// # Errors
    /// The errors of [`KvCache::with_capacity`].
    pub fn held(model: Held<'m, Model>, sampler: Sampler, tokens: usize) -> Result<Self> {
        let tokens = tokens.min(model.config.context);
        let cache = KvCache::with_capacity(&model.config, &*model.backend, tokens)?;
        Self::over(model, cache, sampler)
    }

    fn over(model: Held<'m, Model>, cache: KvCache, sampler: Sampler) -> Result<Self> {
        let sequence = Sequence::new(0, &model.config, cache, sampler);
        let work = Activations::new(&model)?;
        Ok(Self { model, sequence, work, passes: 0 })
    }

    /// Appends `ids` to the text. Then up to `draws` tokens are drawn, until one of `ends`.
    ///
    /// # Errors
    /// Returns [`Error::Prompt`] if the ids cannot be run. See [`Session::check`].
    ///
    /// [`Error::Prompt`]: llama_trace_core::error::Error::Prompt
    pub fn begin(&mut self, ids: Vec<u32>, ends: &[u32], draws: usize) -> Result<()> {
        self.check(&ids)?;
        self.sequence.begin(ids, ends, draws);
        Ok(())
    }

    /// The next pass, or why there is none.
    pub fn next(&self) -> Next {
        match self.sequence.ended() {
            Some(ended) => Next::Ended(ended),
            None => Next::Pass(self.next_pass(self.waiting().len())),
        }
    }

    /// The tokens that the next pass reads.
    pub fn waiting(&self) -> &[u32] {
        self.sequence.waiting()
    }

    /// The tokens whose keys and values the cache holds.
    pub fn ran(&self) -> &[u32] {
        self.sequence.ran()
    }

    /// Runs the next pass and draws the token after it. The drawn token is the input of the following pass.
    ///
    /// # Errors
    /// The errors of [`Session::run`].
    pub fn pass(&mut self, probe: &mut dyn Probe) -> Result<u32> {
        self.check(self.waiting())?;
        let Self { model, sequence, work, passes } = self;
        let drawn = sequence::pass(model, work, *passes, &mut [sequence], true, probe)?;
        *passes += 1;
        Ok(drawn[0])
    }

    /// Begins the next pass, which [`Session::step`] runs step by step. Nothing else may run in between.
    ///
    /// # Errors
    /// The errors of [`Session::run`].
    pub fn begin_steps(&mut self, probe: &mut dyn Probe) -> Result<PassInSteps> {
        self.check(self.waiting())?;
        let Self { model, sequence, work, passes } = self;
        let (tokens, start) = (sequence.waiting().len(), sequence.cache.len());
        let span = Span { sequence: sequence.number, start, tokens };
        let ids = sequence.waiting().to_vec();
        PassInSteps::begin(model, &mut sequence.cache, work, (*passes, span), &ids, probe)
    }

    /// Runs the next step of a pass. After the last step, draws the token after the pass and returns it.
    ///
    /// # Errors
    /// The errors of [`Session::run`]. The pass then has to begin again.
    pub fn step(&mut self, steps: &mut PassInSteps, probe: &mut dyn Probe) -> Result<Option<u32>> {
        let Self { model, sequence, work, passes } = self;
        if !steps.step(model, &mut sequence.cache, work, probe)? {
            return Ok(None);
        }
        let drawn = sequence.end_pass(model, work, *passes, probe)?;
        *passes += 1;
        Ok(Some(drawn))
    }

    /// Runs the first `count` waiting tokens and draws nothing. More than `count` tokens must be waiting.
    ///
    /// # Errors
    /// The errors of [`Session::run`].
    pub fn read_some(&mut self, count: usize, probe: &mut dyn Probe) -> Result<()> {
        let first = self.sequence.take(count);
        let result = self.read(&first, probe);
        if result.is_err() {
            self.sequence.give_back(first);
        }
        result
    }

    /// The dimensions of the next pass if it reads `tokens` tokens.
    pub fn next_pass(&self, tokens: usize) -> PassDims {
        self.sequence.dims(self.passes, tokens)
    }

    /// The maximum number of tokens in the model's context and in the cache.
    pub fn capacity(&self) -> usize {
        self.sequence.capacity()
    }

    /// The number of tokens that still fit.
    pub fn room(&self) -> usize {
        self.sequence.room()
    }

    /// Whether the logits of any pass contained NaN.
    pub fn not_a_number(&self) -> bool {
        self.sequence.not_a_number()
    }

    /// Replaces the text by another one that has run `passes` passes and whose keys and values the cache holds. Returns
    /// the previous text.
    pub fn exchange(&mut self, text: Text, passes: usize) -> Text {
        self.passes = passes;
        self.work.forget_ahead();
        self.sequence.exchange(text)
    }

    /// Removes everything that was run after the first `len` tokens. The next pass continues after them.
    pub fn rewind(&mut self, len: usize) {
        self.work.forget_ahead();
        self.sequence.rewind(len);
    }

    /// Appends and runs `ids`, and draws nothing.
    ///
    /// # Errors
    /// The errors of [`Session::run`].
    pub fn read(&mut self, ids: &[u32], probe: &mut dyn Probe) -> Result<()> {
        self.read_and_draw(ids, &[], probe).map(drop)
    }

    /// Runs `ids`; the device draws with `draws`.
    fn read_and_draw(&mut self, ids: &[u32], draws: &[Draw], probe: &mut dyn Probe) -> Result<Vec<Drawn>> {
        self.check(ids)?;
        let Self { model, sequence, work, passes } = self;
        let drawn = sequence::read(model, work, *passes, &mut [sequence], &[ids], (draws, &[]), probe)?;
        *passes += 1;
        Ok(drawn)
    }

    /// Appends and runs `ids`, and draws the next token.
    ///
    /// # Errors
    /// Returns [`Error::Prompt`] if there are no ids, if one is outside the vocabulary, or if they do not fit into the
    /// context or the cache. Returns [`Error::Interrupted`] if the model's backend was asked to stop. The session is
    /// then unchanged, and the same pass can be run again.
    ///
    /// [`Error::Prompt`]: llama_trace_core::error::Error::Prompt
    /// [`Error::Interrupted`]: llama_trace_core::error::Error::Interrupted
    pub fn run(&mut self, ids: &[u32], probe: &mut dyn Probe) -> Result<u32> {
        let pass = self.passes;
        let draws = sequence::draws(&self.model, pass, &[&mut self.sequence], probe);
        let drawn = self.read_and_draw(ids, &draws, probe)?;
        self.sequence.draw(&self.model, &self.work, (pass, 0), &drawn, probe)
    }

    /// Offers `probe` the probabilities of `pass`, whose logits the buffers hold. Draws nothing: the random numbers are not
    /// advanced.
    ///
    /// # Errors
    /// Returns an error if the backend fails.
    pub fn show_draw(&self, pass: PassDims, probe: &mut dyn Probe) -> Result<()> {
        self.sequence.show_draw(&self.model, &self.work, pass, probe)
    }

    /// Checks that `ids` can be run now.
    ///
    /// # Errors
    /// The errors of [`Session::run`].
    pub fn check(&self, ids: &[u32]) -> Result<()> {
        let before = self.sequence.cache.len();
        sequence::check(&self.model.config, before, ids)?;
        self.sequence.cache.check(before + ids.len())
    }
}
