//! A batch: several texts and the model that runs them. Every pass reads a token of each text, so the weights, which
//! take longest to read, are read once for all texts.

use std::collections::VecDeque;

use crate::model::{Activations, KvCache, Model, buffer_bytes, kv_cache};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::{PassDims, Probe};

use super::sampler::Sampler;
use super::sequence::{self, Ended, Sequence};

/// The input of a batch.
#[derive(Clone, Debug)]
pub struct Prompts {
    /// The ids of each prompt. The index of a prompt is its sequence number.
    pub ids: Vec<Vec<u32>>,
    /// Tokens that end a text.
    pub ends: Vec<u32>,
    /// The maximum number of tokens drawn for each prompt.
    pub draws: usize,
    /// The capacity of each cache in tokens. `None`: the tokens of the prompt and of the draws.
    pub context: Option<usize>,
    /// The maximum number of prompt tokens in a pass. `None`: all of them.
    pub chunk: Option<usize>,
    /// The free memory for caches and buffers, in bytes. `None`: unlimited.
    pub memory: Option<usize>,
}

/// A token that was drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drawn {
    /// Number of the sequence.
    pub sequence: usize,
    /// The drawn token. If part of the prompt has not been read yet, the next token of the prompt.
    pub id: u32,
    /// Whether the token belongs to the prompt.
    pub given: bool,
    /// Why the sequence ends here, if it does.
    pub ended: Option<Ended>,
}

/// The tokens that a pass reads of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read<'a> {
    /// Number of the sequence.
    pub sequence: usize,
    /// The number of the pass, and the positions that it reads and sees.
    pub dims: PassDims,
    /// The tokens.
    pub ids: &'a [u32],
}

/// Texts that are generated together. A text that has ended leaves the batch and frees its memory for the next waiting
/// text. Passes are numbered for all texts together.
///
/// ```text
/// while batch.ready()? {
///     for Drawn { sequence, id, ended } in batch.pass(&mut probe)? { … }
/// }
/// ```
pub struct Batch<'m> {
    model: &'m Model,
    work: Activations,
    passes: usize,
    /// The running sequences, in the order of their numbers.
    running: Vec<Sequence>,
    /// The numbers and ids of the sequences that have not started.
    waiting: VecDeque<(usize, Vec<u32>)>,
    /// The prompts' options, without the ids.
    plan: Prompts,
    sampler: Sampler,
    not_a_number: bool,
}

/// A batch of more than one sequence uses at most the free memory divided by this number.
const SHARE: usize = 2;

/// The number of prompt rows from which a pass takes no further prompt. More rows at once are not faster, and their
/// buffers take memory that caches can use.
const PROMPT_ROWS: usize = 2048;

impl<'m> Batch<'m> {
    /// Creates a batch that has run nothing. If `sampler` draws from stream s of the random numbers, sequence i draws
    /// from stream s + i.
    ///
    /// # Errors
    /// Returns [`Error::Prompt`] if a prompt cannot be run, or if there is not enough memory even for that prompt
    /// alone. `place` returns where a prompt comes from, for the message, if it has a place.
    pub fn new(
        model: &'m Model,
        sampler: Sampler,
        prompts: Prompts,
        place: impl Fn(usize) -> Option<String>,
    ) -> Result<Self> {
        let mut plan = prompts;
        let ids = std::mem::take(&mut plan.ids);
        let work = Activations::new(model)?;
        let (running, waiting) = (Vec::new(), ids.into_iter().enumerate().collect());
        let mut batch = Self { model, work, passes: 0, running, waiting, plan, sampler, not_a_number: false };
        for (number, ids) in &batch.waiting {
            batch.check(ids).map_err(|error| match place(*number) {
                Some(place) => error.at(place),
                None => error,
            })?;
        }
        if batch.plan.draws == 0 {
            batch.waiting.clear();
        }
        Ok(batch)
    }

    /// Checks that a prompt can be run when it is run alone.
    fn check(&self, ids: &[u32]) -> Result<()> {
        sequence::check(&self.model.config, 0, ids)?;
        let capacity = self.capacity(ids);
        kv_cache::check(ids.len(), capacity)?;
        let bytes = self.cache_bytes(capacity).saturating_add(self.buffer_bytes(ids.len(), 1));
        match self.plan.memory {
            Some(free) if bytes > free => Err(Error::prompt("there is not enough memory")
                .expected(format!(
                    "room for {bytes} bytes: the KV cache for {capacity} tokens, and the buffers of a pass over {}",
                    ids.len()
                ))
                .found(format!("{free} bytes"))
                .next("use a shorter prompt, generate fewer tokens (-n), or end other programs")),
            _ => Ok(()),
        }
    }

    /// The cache capacity, in tokens, of a sequence that begins with `ids`.
    fn capacity(&self, ids: &[u32]) -> usize {
        let tokens = self.plan.context.unwrap_or(ids.len().saturating_add(self.plan.draws));
        tokens.min(self.model.config.context)
    }

    fn cache_bytes(&self, tokens: usize) -> usize {
        kv_cache::bytes(&self.model.config, self.model.backend.cache_dtype(), tokens)
    }

    fn buffer_bytes(&self, rows: usize, sequences: usize) -> usize {
        buffer_bytes(&self.model.config, rows.max(self.work.rows()), sequences)
    }

    /// Whether caches of `bytes` bytes and a pass over `rows` rows of `sequences` sequences fit into memory together.
    fn fits(&self, bytes: usize, rows: usize, sequences: usize) -> bool {
        let bytes = bytes.saturating_add(self.buffer_bytes(rows, sequences));
        self.plan.memory.is_none_or(|free| bytes <= free / SHARE)
    }

    /// Whether a single pass could start all waiting sequences.
    pub fn at_once(&self) -> bool {
        let (rows, count) = (self.waiting.iter().map(|(_, ids)| ids.len()).sum(), self.waiting.len());
        let bytes = self.waiting.iter().map(|(_, ids)| self.cache_bytes(self.capacity(ids)));
        count < 2 || rows <= PROMPT_ROWS && self.fits(bytes.fold(0, usize::saturating_add), rows, count)
    }

    /// Prepares the next pass: starts as many waiting sequences as fit. Returns false if all have ended.
    ///
    /// # Errors
    /// Returns [`Error::Prompt`] if there is not enough memory for a single sequence.
    pub fn ready(&mut self) -> Result<bool> {
        let before = self.running.len();
        let mut bytes: usize =
            self.running.iter().map(|sequence| self.cache_bytes(sequence.cache.capacity())).sum();
        // One token of each running sequence, and the new prompts.
        let mut rows: usize = before;
        while let Some((number, ids)) = self.waiting.front() {
            let capacity = self.capacity(ids);
            let with_it = bytes.saturating_add(self.cache_bytes(capacity));
            let count = self.running.len();
            let full = count > before && rows - before + ids.len() > PROMPT_ROWS;
            if full || count > 0 && !self.fits(with_it, rows + ids.len(), count + 1) {
                break;
            }
            let cache = match KvCache::with_capacity(&self.model.config, &*self.model.backend, capacity) {
                // The system may count free memory differently, so this can fail. Sequences that end will make room.
                Err(_) if count > 0 => break,
                cache => cache?,
            };
            let sampler = self.sampler.after(*number as u64);
            let mut sequence = Sequence::new(*number, &self.model.config, cache, sampler);
            (bytes, rows) = (with_it, rows + ids.len());
            if let Some((_, ids)) = self.waiting.pop_front() {
                let chunk = self.plan.chunk.unwrap_or(ids.len());
                sequence.begin_in_chunks(&ids, chunk, &self.plan.ends, self.plan.draws);
            }
            self.running.push(sequence);
        }
        while let Err(error) = self.work.reserve(self.model, rows, self.running.len()) {
            if self.running.len() <= before.max(1) {
                return Err(error);
            }
            if let Some(mut last) = self.running.pop() {
                let ids = last.take_all();
                rows -= ids.len();
                self.waiting.push_front((last.number, ids));
            }
        }
        Ok(!self.running.is_empty())
    }

    /// The tokens that the next pass reads, sequence by sequence.
    pub fn reads(&self) -> impl Iterator<Item = Read<'_>> {
        self.running.iter().map(|sequence| {
            let ids = sequence.waiting();
            Read { sequence: sequence.number, dims: sequence.dims(self.passes, ids.len()), ids }
        })
    }

    /// Runs the pass that [`Batch::ready`] prepared and draws the token after each sequence, in the order of their
    /// numbers. Ended sequences then leave the batch.
    ///
    /// # Errors
    /// Returns [`Error::Interrupted`] if the model's backend was asked to stop. The batch is then unchanged, and the
    /// same pass can be run again.
    pub fn pass(&mut self, probe: &mut dyn Probe) -> Result<Vec<Drawn>> {
        let Self { model, work, passes, running, waiting, .. } = self;
        let mut sequences: Vec<_> = running.iter_mut().collect();
        let drawn = sequence::pass(model, work, *passes, &mut sequences, waiting.is_empty(), probe)?;
        *passes += 1;
        let drawn = running.iter().zip(drawn).map(|(sequence, id)| Drawn {
            sequence: sequence.number,
            id,
            given: sequence.is_given(),
            ended: sequence.ended(),
        });
        let drawn = drawn.collect();
        self.not_a_number |= running.iter().any(Sequence::not_a_number);
        running.retain(|sequence| sequence.ended().is_none());
        Ok(drawn)
    }

    /// The number of running sequences.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Whether the logits of any pass contained NaN.
    pub fn not_a_number(&self) -> bool {
        self.not_a_number
    }
}
