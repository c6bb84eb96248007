//! One text in progress: its cache, its tokens so far, its sampler, and whether it continues. Also the pass over one or
//! several such texts.

use crate::backend::{Draw as Drawing, Drawn, Span};
use crate::model::{Activations, KvCache, Model, ahead, pass};
use llama_trace_core::config::ModelConfig;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::draw::{Draw, DrawAt, Sampling};
use llama_trace_core::trace::{PassDims, Probe};

use super::sampler::Sampler;

/// Why no pass follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The model drew a token that ends a text.
    Text,
    /// The requested number of tokens was drawn.
    Limit,
    /// The model's context, or the smaller cache that was reserved, is full.
    Full,
}

/// A text that grows: first the prompt in one pass, then token by token.
pub struct Sequence {
    /// The sequence number, used in its sites.
    pub number: usize,
    /// Keys and values of everything that was run.
    pub cache: KvCache,
    text: Text,
    /// The maximum number of tokens.
    capacity: usize,
}

/// A text without its cache: its tokens, its sampler, and whether it continues.
#[derive(Clone, Debug)]
pub struct Text {
    sampler: Sampler,
    not_a_number: bool,
    /// The tokens whose keys and values the cache holds.
    ran: Vec<u32>,
    /// The tokens that the next pass reads.
    waiting: Vec<u32>,
    /// Tokens that end a text.
    ends: Vec<u32>,
    /// The inputs that were given (not drawn) for later passes, in reverse order.
    forced: Vec<Vec<u32>>,
    /// The number of tokens that may still be drawn.
    left: usize,
    /// Whether the last drawn token ends the text.
    at_end: bool,
    /// Whether the input of the next pass was given, not drawn.
    given: bool,
}

impl Text {
    /// Creates a text that has run nothing.
    fn new(sampler: Sampler) -> Self {
        Self {
            sampler,
            not_a_number: false,
            ran: Vec::new(),
            waiting: Vec::new(),
            ends: Vec::new(),
            forced: Vec::new(),
            left: 0,
            at_end: false,
            given: false,
        }
    }

    /// Branches off a new text. The new text begins with the first `len` tokens of this text, of which `draws` were
    /// drawn, and continues with `token`. Its later tokens are drawn with the same options, or with `setting`, and with
    /// the same stream of random numbers.
    ///
    /// # Errors
    /// The errors of [`Sampler::new`].
    pub fn parted(&self, len: usize, token: u32, draws: u64, setting: Option<Sampling>) -> Result<Self> {
        let sampling = setting.unwrap_or_else(|| self.sampler.sampling());
        Ok(Self {
            sampler: self.sampler.before(draws, sampling)?,
            not_a_number: false,
            ran: self.ran.get(..len).unwrap_or(&self.ran).to_vec(),
            waiting: vec![token],
            ends: self.ends.clone(),
            forced: Vec::new(),
            left: self.left,
            at_end: self.ends.contains(&token),
            given: true,
        })
    }

    /// The sampling options.
    pub fn sampling(&self) -> Sampling {
        self.sampler.sampling()
    }

    /// The number of the text's tokens in the cache.
    pub fn len(&self) -> usize {
        self.ran.len()
    }

    /// Whether the text has run nothing yet.
    pub fn is_empty(&self) -> bool {
        self.ran.is_empty()
    }
}

impl Sequence {
    /// Creates a text that has run nothing, for a model of this configuration.
    pub fn new(number: usize, config: &ModelConfig, cache: KvCache, sampler: Sampler) -> Self {
        let capacity = config.context.min(cache.capacity());
        Self { number, cache, text: Text::new(sampler), capacity }
    }

    /// Appends `ids` to the text. Then up to `draws` tokens are drawn, until one of `ends`.
    pub fn begin(&mut self, ids: Vec<u32>, ends: &[u32], draws: usize) {
        let text = &mut self.text;
        (text.waiting, text.ends, text.left) = (ids, ends.to_vec(), draws);
        (text.at_end, text.given) = (false, true);
    }

    /// [`Sequence::begin`] in passes over `chunk` ids each; the last chunk may have fewer. The tokens drawn after the
    /// earlier chunks are discarded.
    pub fn begin_in_chunks(&mut self, ids: &[u32], chunk: usize, ends: &[u32], draws: usize) {
        let mut chunks: Vec<_> = ids.chunks(chunk.max(1)).rev().map(<[u32]>::to_vec).collect();
        let first = chunks.pop().unwrap_or_default();
        self.begin(first, ends, draws.saturating_add(chunks.len()));
        self.text.forced = chunks;
    }

    /// Why no pass follows, if the text has ended.
    pub fn ended(&self) -> Option<Ended> {
        if self.text.at_end {
            Some(Ended::Text)
        } else if self.text.left == 0 || self.text.waiting.is_empty() {
            Some(Ended::Limit)
        } else if self.text.waiting.len() > self.room() {
            Some(Ended::Full)
        } else {
            None
        }
    }

    /// Makes each later pass read the next id of `ids` instead of the drawn token.
    pub fn force(&mut self, ids: Vec<u32>) {
        self.text.forced = ids.into_iter().rev().map(|id| vec![id]).collect();
    }

    /// The tokens that the next pass reads.
    pub fn waiting(&self) -> &[u32] {
        &self.text.waiting
    }

    /// The tokens whose keys and values the cache holds.
    pub fn ran(&self) -> &[u32] {
        &self.text.ran
    }

    /// The sampling options.
    pub fn sampling(&self) -> Sampling {
        self.text.sampling()
    }

    /// The sampler before its last draw. See [`Sampler::before_the_last`].
    pub fn last_draw(&self) -> Sampler {
        self.text.sampler.before_the_last()
    }

    /// The random number of draw number `draw`. See [`Sampler::random`].
    pub fn random(&self, draw: u64) -> f64 {
        self.text.sampler.random(draw)
    }

    /// Previews draw number `draw` from `logits` (V) after a text. See [`Sampler::look`].
    ///
    /// # Errors
    /// The errors of [`Sampler::look`].
    pub fn look(&self, after: (&[f32], &[u32]), draw: u64, at: &DrawAt) -> Result<Draw> {
        self.text.sampler.look(after, draw, at.setting, at.times)
    }

    /// The dimensions of pass number `pass` if it reads `tokens` tokens of this text.
    pub fn dims(&self, pass: usize, tokens: usize) -> PassDims {
        let filters = self.sampling().filters();
        PassDims { pass, start: self.cache.len(), tokens, filters }
    }

    /// The maximum number of tokens in the model's context and in the cache.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The number of tokens that still fit.
    pub fn room(&self) -> usize {
        self.capacity.saturating_sub(self.cache.len())
    }

    /// Whether the logits of any pass contained NaN.
    pub fn not_a_number(&self) -> bool {
        self.text.not_a_number
    }

    /// Removes everything that was run after the first `len` tokens. The next pass continues after them.
    pub fn rewind(&mut self, len: usize) {
        self.cache.truncate(len);
        self.text.ran.truncate(len);
    }

    /// The text.
    pub fn text(&self) -> &Text {
        &self.text
    }

    /// Replaces the text by another one, whose keys and values the cache holds. Returns the previous text.
    pub(super) fn exchange(&mut self, text: Text) -> Text {
        debug_assert_eq!(text.len(), self.cache.len(), "the cache holds its tokens");
        std::mem::replace(&mut self.text, text)
    }

    /// Removes and returns the first `count` waiting tokens.
    pub(super) fn take(&mut self, count: usize) -> Vec<u32> {
        let rest = self.text.waiting.split_off(count.min(self.text.waiting.len()));
        std::mem::replace(&mut self.text.waiting, rest)
    }

    /// Removes and returns all tokens that have not been run, including those that were given for later passes.
    pub(super) fn take_all(&mut self) -> Vec<u32> {
        let mut ids = self.take(usize::MAX);
        while let Some(next) = self.text.forced.pop() {
            ids.extend(next);
        }
        ids
    }

    /// Whether the input of the next pass was given, not drawn.
    pub(super) fn is_given(&self) -> bool {
        self.text.given
    }

    /// Puts `ids` back in front of the waiting tokens.
    pub(super) fn give_back(&mut self, ids: Vec<u32>) {
        self.text.waiting.splice(..0, ids);
    }

    /// Draws the token after span number `span` of the most recent pass, number `pass`. If the device has drawn it
    /// (`drawn`) and the probe wants no stage of the draw, returns the device's token and only advances the random
    /// numbers.
    pub(super) fn draw(
        &mut self,
        model: &Model,
        work: &Activations,
        (pass, span): (usize, usize),
        drawn: &[Drawn],
        probe: &mut dyn Probe,
    ) -> Result<u32> {
        let Self { number, text: Text { sampler, not_a_number, ran, .. }, .. } = self;
        if let Some(drawn) = drawn.get(span)
            && !Sampler::is_watched(probe, *number, pass)
        {
            sampler.skip();
            *not_a_number |= drawn.not_a_number;
            return Ok(drawn.id);
        }
        let mut drawn = 0;
        pass::last_logits(model, work, span, |logits| {
            *not_a_number |= logits.iter().any(|logit| logit.is_nan());
            drawn = sampler.sample(logits, ran, (*number, pass), probe);
            Ok(())
        })?;
        Ok(drawn)
    }

    /// Takes the drawn token as the input of the next pass, or a token that was given for it. Returns this token.
    fn go_on(&mut self, drawn: u32) -> u32 {
        let text = &mut self.text;
        let (next, given) = match text.forced.pop() {
            Some(forced) => (forced, true),
            None => (vec![drawn], false),
        };
        let first = next.first().copied().unwrap_or(drawn);
        text.left = text.left.saturating_sub(1);
        // A token that usually ends a text does not end it in the middle of a prompt.
        text.at_end = !given && text.ends.contains(&first);
        (text.waiting, text.given) = (next, given);
        first
    }

    /// Ends pass number `pass` over the waiting tokens, and draws the token after it.
    pub(super) fn end_pass(
        &mut self,
        model: &Model,
        work: &Activations,
        pass: usize,
        probe: &mut dyn Probe,
    ) -> Result<u32> {
        let ids = self.take(usize::MAX);
        self.text.ran.extend_from_slice(&ids);
        let drawn = self.draw(model, work, (pass, 0), &[], probe)?;
        Ok(self.go_on(drawn))
    }

    /// Offers `probe` the probabilities of `pass` over this text alone, whose logits the buffers hold. Draws nothing:
    /// the random numbers are not advanced.
    pub(super) fn show_draw(
        &self,
        model: &Model,
        work: &Activations,
        pass: PassDims,
        probe: &mut dyn Probe,
    ) -> Result<()> {
        let mut sampler = self.text.sampler.clone();
        let text = &self.text.ran[..pass.keys().min(self.text.ran.len())];
        pass::last_logits(model, work, 0, |logits| {
            sampler.sample(logits, text, (self.number, pass.pass), probe);
            Ok(())
        })
    }
}

/// The draws of the device for `pass`. Empty if the device does not sample, or cannot sample with these options, or if
/// the probe wants a stage of every draw.
pub(super) fn draws(
    model: &Model,
    pass: usize,
    sequences: &[&mut Sequence],
    probe: &dyn Probe,
) -> Vec<Drawing> {
    let watched = |sequence: &&mut Sequence| Sampler::is_watched(probe, sequence.number, pass);
    if !model.backend.draws() || sequences.iter().all(watched) {
        return Vec::new();
    }
    let draws = sequences.iter().map(|sequence| sequence.text.sampler.next_draw(0));
    draws.collect::<Option<_>>().unwrap_or_default()
}

/// Returns the draws of the device for the pass after next. The next pass reads `ids`. Empty if a text is known to end
/// before the pass after next.
fn draws_after(sequences: &[&mut Sequence], ids: &[Vec<u32>]) -> Vec<Drawing> {
    let goes_on = |(sequence, ids): (&&mut Sequence, &Vec<u32>)| {
        sequence.text.left > 1 && sequence.text.forced.is_empty() && sequence.room() > ids.len()
    };
    if !sequences.iter().zip(ids).all(goes_on) {
        return Vec::new();
    }
    let draws = sequences.iter().map(|sequence| sequence.text.sampler.next_draw(1));
    draws.collect::<Option<_>>().unwrap_or_default()
}

/// Runs pass number `pass` over `ids` of each of `sequences`, and returns the tokens that the device draws with
/// `draws`. The sequences are not updated with these tokens yet. Without a probe, the device already receives the
/// following pass, if `next` holds its draws.
///
/// # Errors
/// The errors of [`pass::forward_and_draw`]. The sequences are then unchanged.
pub(super) fn read(
    model: &Model,
    work: &mut Activations,
    pass: usize,
    sequences: &mut [&mut Sequence],
    ids: &[impl AsRef<[u32]>],
    (draws, next): (&[Drawing], &[Drawing]),
    probe: &mut dyn Probe,
) -> Result<Vec<Drawn>> {
    let span = |(sequence, ids): (&&mut Sequence, &_)| Span {
        sequence: sequence.number,
        start: sequence.cache.len(),
        tokens: AsRef::<[u32]>::as_ref(ids).len(),
    };
    let spans: Vec<Span> = sequences.iter().zip(ids).map(span).collect();
    let all: Vec<u32> = ids.iter().flat_map(AsRef::as_ref).copied().collect();
    let mut caches: Vec<_> = sequences.iter_mut().map(|sequence| &mut sequence.cache).collect();
    let drawn = if probe.enabled() || draws.is_empty() || !model.edits.is_empty() {
        pass::forward_and_draw(model, &mut caches, work, pass, &spans, (&all, draws), probe)?
    } else {
        ahead::pass_and_next(model, &mut caches, work, pass, &spans, (&all, draws), next)?
    };
    for (sequence, ids) in sequences.iter_mut().zip(ids) {
        sequence.text.ran.extend_from_slice(ids.as_ref());
    }
    Ok(drawn)
}

/// Runs pass number `pass` over the waiting tokens of each of `sequences` and draws the token after each. The drawn
/// tokens are the input of the following pass. `on` says whether that pass reads the same sequences, except those that
/// end.
///
/// # Errors
/// The errors of [`read`].
pub(super) fn pass(
    model: &Model,
    work: &mut Activations,
    pass: usize,
    sequences: &mut [&mut Sequence],
    on: bool,
    probe: &mut dyn Probe,
) -> Result<Vec<u32>> {
    let waiting: Vec<_> = sequences.iter_mut().map(|sequence| sequence.take(usize::MAX)).collect();
    let draws = draws(model, pass, sequences, probe);
    let next = if on && !probe.enabled() { draws_after(sequences, &waiting) } else { Vec::new() };
    let drawn = match read(model, work, pass, sequences, &waiting, (&draws, &next), probe) {
        Ok(drawn) => drawn,
        Err(error) => {
            for (sequence, ids) in sequences.iter_mut().zip(waiting) {
                sequence.give_back(ids);
            }
            return Err(error);
        }
    };
    let draw = |(span, sequence): (usize, &mut &mut Sequence)| {
        let drawn = sequence.draw(model, work, (pass, span), &drawn, probe)?;
        Ok(sequence.go_on(drawn))
    };
    sequences.iter_mut().enumerate().map(draw).collect()
}

/// Checks that a model of this configuration can run `ids` after `before` other tokens.
///
/// # Errors
/// Returns [`Error::Prompt`] if there are no ids, if one is outside the vocabulary, or if there are more than the
/// context holds.
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
            .next("shorten the prompt"));
    }
    Ok(())
}
