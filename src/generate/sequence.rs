//! One text under way: its cache, the tokens so far, what draws the next one, and whether it goes on. And the pass over
//! one or several of them, which is the same.

use crate::backend::{Backend, Span};
use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::model::{Activations, KvCache, Model, forward};
use crate::trace::{PassDims, Probe};

use super::sampler::{Sampler, Sampling};

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

/// A text that grows: first the prompt in one pass, then token by token.
pub struct Sequence<B: Backend> {
    /// Its number: that of its sites.
    pub number: usize,
    /// Keys and values of everything run so far.
    pub cache: KvCache<B>,
    sampler: Sampler,
    not_a_number: bool,
    /// The tokens whose keys and values the cache holds.
    ran: Vec<u32>,
    /// The tokens that the next pass reads.
    waiting: Vec<u32>,
    /// Tokens that end a text.
    ends: Vec<u32>,
    /// Tokens that come next whatever is drawn, the last of them first.
    forced: Vec<u32>,
    /// Tokens that may still be drawn.
    left: usize,
    /// Whether one that ends the text was drawn last.
    at_end: bool,
    /// The most tokens that there is room for.
    capacity: usize,
}

impl<B: Backend> Sequence<B> {
    /// A text of a model of this configuration that has run nothing yet.
    pub fn new(number: usize, config: &ModelConfig, cache: KvCache<B>, sampler: Sampler) -> Self {
        let capacity = config.context.min(cache.capacity());
        Self {
            number,
            cache,
            sampler,
            not_a_number: false,
            ran: Vec::new(),
            waiting: Vec::new(),
            ends: Vec::new(),
            forced: Vec::new(),
            left: 0,
            at_end: false,
            capacity,
        }
    }

    /// Has `ids` follow what was run before, and up to `draws` tokens follow those, until one of `ends` is drawn.
    pub fn begin(&mut self, ids: Vec<u32>, ends: &[u32], draws: usize) {
        (self.waiting, self.ends, self.left, self.at_end) = (ids, ends.to_vec(), draws, false);
    }

    /// Why no pass follows, where none does.
    pub fn ended(&self) -> Option<Ended> {
        if self.at_end {
            Some(Ended::Text)
        } else if self.left == 0 || self.waiting.is_empty() {
            Some(Ended::Limit)
        } else if self.waiting.len() > self.room() {
            Some(Ended::Full)
        } else {
            None
        }
    }

    /// Has `ids` come next, one after each pass, whatever is drawn.
    pub fn force(&mut self, mut ids: Vec<u32>) {
        ids.reverse();
        self.forced = ids;
    }

    /// The tokens that the next pass reads.
    pub fn waiting(&self) -> &[u32] {
        &self.waiting
    }

    /// The tokens whose keys and values the cache holds.
    pub fn ran(&self) -> &[u32] {
        &self.ran
    }

    /// How its tokens are drawn.
    pub fn sampling(&self) -> Sampling {
        self.sampler.sampling()
    }

    /// The random number that draw number `draw` draws by: see [`Sampler::random`].
    pub fn random(&self, draw: u64) -> f64 {
        self.sampler.random(draw)
    }

    /// Pass number `pass`, if it reads `tokens` tokens of this text.
    pub fn dims(&self, pass: usize, tokens: usize) -> PassDims {
        PassDims { pass, start: self.cache.len(), tokens }
    }

    /// How many tokens the model's context and the cache have room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many more fit there.
    pub fn room(&self) -> usize {
        self.capacity.saturating_sub(self.cache.len())
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

    /// Takes the first `count` of the tokens that wait.
    pub(super) fn take(&mut self, count: usize) -> Vec<u32> {
        let rest = self.waiting.split_off(count.min(self.waiting.len()));
        std::mem::replace(&mut self.waiting, rest)
    }

    /// Has `ids` wait again, before all others.
    pub(super) fn give_back(&mut self, ids: Vec<u32>) {
        self.waiting.splice(..0, ids);
    }

    /// Draws the token after span number `span` of pass number `pass`, whose logits were computed last.
    pub(super) fn draw<P: Probe>(
        &mut self,
        model: &Model<B>,
        work: &Activations<B>,
        (pass, span): (usize, usize),
        probe: &mut P,
    ) -> Result<u32> {
        let Self { number, sampler, not_a_number, .. } = self;
        let mut drawn = 0;
        forward::last_logits(model, work, span, |logits| {
            *not_a_number |= logits.iter().any(|logit| logit.is_nan());
            drawn = sampler.sample(logits, *number, pass, probe);
            Ok(())
        })?;
        Ok(drawn)
    }

    /// Shows `probe` the probabilities of `pass`, which was the last, over this text alone. Draws nothing: the random
    /// numbers stay where they are.
    pub(super) fn show_draw<P: Probe>(
        &self,
        model: &Model<B>,
        work: &Activations<B>,
        pass: usize,
        probe: &mut P,
    ) -> Result<()> {
        let mut sampler = self.sampler.clone();
        forward::last_logits(model, work, 0, |logits| {
            sampler.sample(logits, self.number, pass, probe);
            Ok(())
        })
    }
}

/// Runs pass number `pass` over `ids` of each of `sequences`, and draws nothing.
///
/// # Errors
/// As [`forward::forward`]'s; the sequences are then as they were.
pub(super) fn read<B: Backend, P: Probe>(
    model: &Model<B>,
    work: &mut Activations<B>,
    pass: usize,
    sequences: &mut [&mut Sequence<B>],
    ids: &[impl AsRef<[u32]>],
    probe: &mut P,
) -> Result<()> {
    let span = |(sequence, ids): (&&mut Sequence<B>, &_)| Span {
        sequence: sequence.number,
        start: sequence.cache.len(),
        tokens: AsRef::<[u32]>::as_ref(ids).len(),
    };
    let spans: Vec<Span> = sequences.iter().zip(ids).map(span).collect();
    let all: Vec<u32> = ids.iter().flat_map(AsRef::as_ref).copied().collect();
    let mut caches: Vec<_> = sequences.iter_mut().map(|sequence| &mut sequence.cache).collect();
    forward::forward(model, &mut caches, work, pass, &spans, &all, probe)?;
    for (sequence, ids) in sequences.iter_mut().zip(ids) {
        sequence.ran.extend_from_slice(ids.as_ref());
    }
    Ok(())
}

/// Runs pass number `pass` over the tokens that wait of each of `sequences`, and draws the token after each; those wait
/// then.
///
/// # Errors
/// As [`read`]'s.
pub(super) fn pass<B: Backend, P: Probe>(
    model: &Model<B>,
    work: &mut Activations<B>,
    pass: usize,
    sequences: &mut [&mut Sequence<B>],
    probe: &mut P,
) -> Result<Vec<u32>> {
    let waiting: Vec<_> = sequences.iter_mut().map(|sequence| sequence.take(usize::MAX)).collect();
    if let Err(error) = read(model, work, pass, sequences, &waiting, probe) {
        for (sequence, ids) in sequences.iter_mut().zip(waiting) {
            sequence.give_back(ids);
        }
        return Err(error);
    }
    let draw = |(span, sequence): (usize, &mut &mut Sequence<B>)| {
        let drawn = sequence.draw(model, work, (pass, span), probe)?;
        let drawn = sequence.forced.pop().unwrap_or(drawn);
        sequence.left = sequence.left.saturating_sub(1);
        sequence.at_end = sequence.ends.contains(&drawn);
        sequence.waiting = vec![drawn];
        Ok(drawn)
    };
    sequences.iter_mut().enumerate().map(draw).collect()
}

/// Checks that a model of this configuration can run `ids` after `before` other tokens.
///
/// # Errors
/// [`Error::Prompt`] where there are no ids, one is outside the vocabulary, or they are more than the context.
pub fn check(config: &ModelConfig, before: usize, ids: &[u32]) -> Result<()> {
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
    let tokens = before + ids.len();
    if tokens > config.context {
        return Err(Error::prompt("the text is longer than the model's context")
            .expected(format!("at most {} tokens", config.context))
            .found(format!("{tokens} tokens"))
            .next("shorten the prompt, or draw fewer tokens"));
    }
    Ok(())
}
