//! One text and the model that it is run with.

use std::ops::Deref;
use std::sync::Arc;

use crate::backend::{Backend, Draw, Drawn};
use crate::model::{Activations, KvCache, Model};
use llama_trace_core::error::Result;
use llama_trace_core::trace::{PassDims, Probe};

use super::sampler::Sampler;
use super::sequence::{self, Ended, Sequence, Text};

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A pass over the tokens that wait ([`Session::waiting`]).
    Pass(PassDims),
    /// Nothing.
    Ended(Ended),
}

/// What a session is of: somebody else's, or its own share.
#[derive(Clone)]
pub enum Held<'m, T> {
    /// It is there as long as the session.
    Borrowed(&'m T),
    /// The session keeps it.
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

/// A text that grows: first the prompt in one pass, then token by token. Several texts are a [`super::Batch`].
///
/// ```text
/// session.begin(prompt, ends, draws)?;
/// while let Next::Pass(dims) = session.next() {
///     let id = session.pass(&mut probe)?;
/// }
/// ```
pub struct Session<'m, B: Backend> {
    /// The model.
    pub model: Held<'m, Model<B>>,
    /// The text.
    pub sequence: Sequence<B>,
    /// The buffers of a pass.
    pub work: Activations<B>,
    passes: usize,
}

impl<'m, B: Backend> Session<'m, B> {
    /// A session that has run nothing, for a text of which nobody knows how long it gets.
    ///
    /// # Errors
    /// As [`KvCache::as_long_as_fits`]'s.
    pub fn new(model: &'m Model<B>, sampler: Sampler) -> Result<Self> {
        let cache = KvCache::as_long_as_fits(&model.config, &model.backend)?;
        Self::over(Held::Borrowed(model), cache, sampler)
    }

    /// A session that has run nothing, with room for `tokens` tokens, but no more than the model's context.
    ///
    /// # Errors
    /// As [`KvCache::with_capacity`]'s.
    pub fn with_capacity(model: &'m Model<B>, sampler: Sampler, tokens: usize) -> Result<Self> {
        Self::held(Held::Borrowed(model), sampler, tokens)
    }

    /// The same of a model that the session may keep.
    ///
    /// # Errors
    /// As [`KvCache::with_capacity`]'s.
    pub fn held(model: Held<'m, Model<B>>, sampler: Sampler, tokens: usize) -> Result<Self> {
        let tokens = tokens.min(model.config.context);
        let cache = KvCache::with_capacity(&model.config, &model.backend, tokens)?;
        Self::over(model, cache, sampler)
    }

    fn over(model: Held<'m, Model<B>>, cache: KvCache<B>, sampler: Sampler) -> Result<Self> {
        let sequence = Sequence::new(0, &model.config, cache, sampler);
        let work = Activations::new(&model)?;
        Ok(Self { model, sequence, work, passes: 0 })
    }

    /// Has `ids` follow what was run before, and up to `draws` tokens follow those, until one of `ends` is drawn.
    ///
    /// # Errors
    /// [`Error::Prompt`] where the ids cannot be run: see [`Session::check`].
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

    /// Runs the next pass, and draws the token after it; that one waits then.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn pass(&mut self, probe: &mut dyn Probe) -> Result<u32> {
        self.check(self.waiting())?;
        let Self { model, sequence, work, passes } = self;
        let drawn = sequence::pass(model, work, *passes, &mut [sequence], true, probe)?;
        *passes += 1;
        Ok(drawn[0])
    }

    /// Runs the first `count` of the tokens that wait, of which there are more, and draws nothing.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn read_some(&mut self, count: usize, probe: &mut dyn Probe) -> Result<()> {
        let first = self.sequence.take(count);
        let result = self.read(&first, probe);
        if result.is_err() {
            self.sequence.give_back(first);
        }
        result
    }

    /// The next pass, if it reads `tokens` tokens.
    pub fn next_pass(&self, tokens: usize) -> PassDims {
        self.sequence.dims(self.passes, tokens)
    }

    /// How many tokens the model's context and the cache have room for.
    pub fn capacity(&self) -> usize {
        self.sequence.capacity()
    }

    /// How many more fit there.
    pub fn room(&self) -> usize {
        self.sequence.room()
    }

    /// Whether some pass had logits that are not a number.
    pub fn not_a_number(&self) -> bool {
        self.sequence.not_a_number()
    }

    /// Goes on with another text, which has run `passes` passes and whose keys and values the cache holds; the answer is
    /// the one so far.
    pub fn exchange(&mut self, text: Text, passes: usize) -> Text {
        self.passes = passes;
        self.work.forget_ahead();
        self.sequence.exchange(text)
    }

    /// Forgets what was run after the first `len` tokens; what is run next follows those.
    pub fn rewind(&mut self, len: usize) {
        self.work.forget_ahead();
        self.sequence.rewind(len);
    }

    /// Runs `ids` after what was run before, and draws nothing.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn read(&mut self, ids: &[u32], probe: &mut dyn Probe) -> Result<()> {
        self.read_and_draw(ids, &[], probe).map(drop)
    }

    /// Runs `ids`; the device draws as `draws` say.
    fn read_and_draw(&mut self, ids: &[u32], draws: &[Draw], probe: &mut dyn Probe) -> Result<Vec<Drawn>> {
        self.check(ids)?;
        let Self { model, sequence, work, passes } = self;
        let drawn = sequence::read(model, work, *passes, &mut [sequence], &[ids], (draws, &[]), probe)?;
        *passes += 1;
        Ok(drawn)
    }

    /// Runs `ids` after what was run before, and draws the next token.
    ///
    /// # Errors
    /// [`Error::Prompt`] where there are no ids, one is outside the vocabulary, or they do not fit into
    /// the context or into the cache. [`Error::Interrupted`] where the model's backend was asked to stop: the session is then as it
    /// was before, and the same pass can be run again.
    ///
    /// [`Error::Prompt`]: llama_trace_core::error::Error::Prompt
    /// [`Error::Interrupted`]: llama_trace_core::error::Error::Interrupted
    pub fn run(&mut self, ids: &[u32], probe: &mut dyn Probe) -> Result<u32> {
        let pass = self.passes;
        let draws = sequence::draws(&self.model, pass, &[&mut self.sequence], probe);
        let drawn = self.read_and_draw(ids, &draws, probe)?;
        self.sequence.draw(&self.model, &self.work, (pass, 0), &drawn, probe)
    }

    /// Shows `probe` the probabilities of `pass`, whose logits were computed last. Draws nothing: the random numbers
    /// stay where they are.
    ///
    /// # Errors
    /// Where the backend fails.
    pub fn show_draw(&self, pass: usize, probe: &mut dyn Probe) -> Result<()> {
        self.sequence.show_draw(&self.model, &self.work, pass, probe)
    }

    /// Checks that `ids` can be run now.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn check(&self, ids: &[u32]) -> Result<()> {
        let before = self.sequence.cache.len();
        sequence::check(&self.model.config, before, ids)?;
        self.sequence.cache.check(before + ids.len())
    }
}
