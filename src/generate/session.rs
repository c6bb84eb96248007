//! One text under way: the model, its cache, the tokens so far, the sampler, and whether the text goes on.

use crate::backend::{Backend, Span};
use crate::error::{Error, Result};
use crate::model::{Activations, KvCache, Model, forward};
use crate::trace::{PassDims, Probe};

use super::sampler::Sampler;

/// Why no pass follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The model drew a token that ends a text.
    Text,
    /// As many tokens were drawn as were asked for.
    Limit,
    /// The model's context is full, or the cache that was reserved for a part of it.
    Full,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A pass over the tokens that wait ([`Session::waiting`]).
    Pass(PassDims),
    /// Nothing.
    Ended(Ended),
}

/// A text that grows: first the prompt in one pass, then token by token.
///
/// ```text
/// session.begin(prompt, ends, draws)?;
/// while let Next::Pass(dims) = session.next() {
///     let id = session.pass(&mut probe)?;
/// }
/// ```
pub struct Session<'m, B: Backend> {
    /// The model.
    pub model: &'m Model<B>,
    /// Keys and values of everything run so far.
    pub cache: KvCache<B>,
    /// The buffers of a pass.
    pub work: Activations<B>,
    sampler: Sampler,
    passes: usize,
    not_a_number: bool,
    /// The tokens whose keys and values the cache holds.
    ran: Vec<u32>,
    /// The tokens that the next pass reads.
    waiting: Vec<u32>,
    /// Tokens that end a text.
    ends: Vec<u32>,
    /// Tokens that may still be drawn.
    left: usize,
    /// Whether one that ends the text was drawn last.
    at_end: bool,
}

impl<'m, B: Backend> Session<'m, B> {
    /// A session that has run nothing, for a text of which nobody knows how long it gets.
    ///
    /// # Errors
    /// As [`KvCache::as_long_as_fits`]'s.
    pub fn new(model: &'m Model<B>, sampler: Sampler) -> Result<Self> {
        Self::over(model, KvCache::as_long_as_fits(&model.config, &model.backend)?, sampler)
    }

    /// A session that has run nothing, with room for `tokens` tokens, but no more than the model's context.
    ///
    /// # Errors
    /// As [`KvCache::with_capacity`]'s.
    pub fn with_capacity(model: &'m Model<B>, sampler: Sampler, tokens: usize) -> Result<Self> {
        let tokens = tokens.min(model.config.context);
        Self::over(model, KvCache::with_capacity(&model.config, &model.backend, tokens)?, sampler)
    }

    fn over(model: &'m Model<B>, cache: KvCache<B>, sampler: Sampler) -> Result<Self> {
        Ok(Self {
            model,
            cache,
            work: Activations::new(model)?,
            sampler,
            passes: 0,
            not_a_number: false,
            ran: Vec::new(),
            waiting: Vec::new(),
            ends: Vec::new(),
            left: 0,
            at_end: false,
        })
    }

    /// Has `ids` follow what was run before, and up to `draws` tokens follow those, until one of `ends` is drawn.
    ///
    /// # Errors
    /// [`Error::Prompt`] where the ids cannot be run: see [`Session::check`].
    pub fn begin(&mut self, ids: Vec<u32>, ends: &[u32], draws: usize) -> Result<()> {
        self.check(&ids)?;
        (self.waiting, self.ends, self.left, self.at_end) = (ids, ends.to_vec(), draws, false);
        Ok(())
    }

    /// The next pass, or why there is none.
    pub fn next(&self) -> Next {
        if self.at_end {
            Next::Ended(Ended::Text)
        } else if self.left == 0 || self.waiting.is_empty() {
            Next::Ended(Ended::Limit)
        } else if self.waiting.len() > self.room() {
            Next::Ended(Ended::Full)
        } else {
            Next::Pass(self.next_pass(self.waiting.len()))
        }
    }

    /// The tokens that the next pass reads.
    pub fn waiting(&self) -> &[u32] {
        &self.waiting
    }

    /// The tokens whose keys and values the cache holds.
    pub fn ran(&self) -> &[u32] {
        &self.ran
    }

    /// Runs the next pass, and draws the token after it; that one waits then.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn pass<P: Probe>(&mut self, probe: &mut P) -> Result<u32> {
        let ids = std::mem::take(&mut self.waiting);
        match self.run(&ids, probe) {
            Ok(drawn) => {
                self.left = self.left.saturating_sub(1);
                self.at_end = self.ends.contains(&drawn);
                self.waiting = vec![drawn];
                Ok(drawn)
            }
            Err(error) => {
                self.waiting = ids;
                Err(error)
            }
        }
    }

    /// Runs the first `count` of the tokens that wait, of which there are more, and draws nothing.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn read_some<P: Probe>(&mut self, count: usize, probe: &mut P) -> Result<()> {
        let rest = self.waiting.split_off(count.min(self.waiting.len()));
        let first = std::mem::replace(&mut self.waiting, rest);
        self.read(&first, probe).inspect_err(|_| {
            self.waiting.splice(..0, first.iter().copied());
        })
    }

    /// The next pass, if it reads `tokens` tokens.
    pub fn next_pass(&self, tokens: usize) -> PassDims {
        PassDims { pass: self.passes, start: self.cache.len(), tokens }
    }

    /// How many tokens the model's context and the cache have room for.
    pub fn capacity(&self) -> usize {
        self.model.config.context.min(self.cache.capacity())
    }

    /// How many more fit there.
    pub fn room(&self) -> usize {
        self.capacity().saturating_sub(self.cache.len())
    }

    /// Whether some pass had logits that are not a number.
    pub fn not_a_number(&self) -> bool {
        self.not_a_number
    }

    /// Forgets what was run after the first `len` tokens; what is run next follows those.
    pub fn rewind(&mut self, len: usize) {
        self.cache.truncate(len);
        self.ran.truncate(len);
    }

    /// Runs `ids` after what was run before, and draws nothing.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn read<P: Probe>(&mut self, ids: &[u32], probe: &mut P) -> Result<()> {
        self.check(ids)?;
        let span = Span { sequence: 0, start: self.cache.len(), tokens: ids.len() };
        let Self { model, cache, work, passes, .. } = self;
        forward::forward(model, &mut [cache], work, *passes, &[span], ids, probe)?;
        self.passes += 1;
        self.ran.extend_from_slice(ids);
        Ok(())
    }

    /// Runs `ids` after what was run before, and draws the next token.
    ///
    /// # Errors
    /// [`Error::Prompt`] where there are no ids, one is outside the vocabulary, or they do not fit into
    /// the context or into the cache. [`Error::Interrupted`] where the model's backend was asked to stop: the session is then as it
    /// was before, and the same pass can be run again.
    pub fn run<P: Probe>(&mut self, ids: &[u32], probe: &mut P) -> Result<u32> {
        let pass = self.passes;
        self.read(ids, probe)?;
        let mut drawn = 0;
        forward::last_logits(self.model, &self.work, 0, |logits| {
            self.not_a_number |= logits.iter().any(|logit| logit.is_nan());
            drawn = self.sampler.sample(logits, pass, probe);
            Ok(())
        })?;
        Ok(drawn)
    }

    /// Shows `probe` the probabilities of `pass`, whose logits were computed last. Draws nothing: the random numbers
    /// stay where they are.
    ///
    /// # Errors
    /// Where the backend fails.
    pub fn show_draw<P: Probe>(&self, pass: usize, probe: &mut P) -> Result<()> {
        let mut sampler = self.sampler.clone();
        forward::last_logits(self.model, &self.work, 0, |logits| {
            sampler.sample(logits, pass, probe);
            Ok(())
        })
    }

    /// Checks that `ids` can be run now.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn check(&self, ids: &[u32]) -> Result<()> {
        let config = &self.model.config;
        if ids.is_empty() {
            return Err(Error::prompt("there are no tokens to run")
                .expected("at least one token")
                .next("give a prompt that is not empty"));
        }
        if let Some((position, id)) = ids.iter().enumerate().find(|(_, id)| **id as usize >= config.vocab) {
            return Err(Error::prompt("an id is outside the model's vocabulary")
                .at(format!("token {position} of the prompt"))
                .expected(format!("ids from 0 to {}", config.vocab - 1))
                .found(id)
                .next("check that the ids, or the tokenizer, belong to this model"));
        }
        let tokens = self.cache.len() + ids.len();
        if tokens > config.context {
            return Err(Error::prompt("the text is longer than the model's context")
                .expected(format!("at most {} tokens", config.context))
                .found(format!("{tokens} tokens"))
                .next("shorten the prompt, or draw fewer tokens"));
        }
        self.cache.check(tokens)
    }
}
