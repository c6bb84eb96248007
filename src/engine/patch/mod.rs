//! Activation patching: runs a prompt with some values from the run of another prompt, and measures how far the answer
//! moves (Vig et al., "Investigating Gender Bias in Language Models Using Causal Mediation Analysis", 2020; Meng et al.,
//! "Locating and Editing Factual Associations in GPT", 2022). With zeros instead of the other prompt's values it is
//! ablation.
//!
//! Only what follows a place is computed again: the later layers, for the place's first token and the tokens after it.
//! Their attention reads the earlier tokens from the KV cache of the run. Several places share a pass, one span for each.

mod direct;
mod metric;
mod recorded;

use std::ops::Range;

use crate::backend::Span;
use crate::generate::{Held, sequence};
use crate::model::{Activations, KvCache, Model, forward, kv_cache, pass};
use llama_trace_core::config::ModelConfig;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::patch::ROWS;
use llama_trace_core::trace::{NoProbe, Stage};

pub use llama_trace_core::trace::patch::{Metric, PatchMap, Place};
pub use metric::{Measure, most_likely};
use recorded::Recorded;

/// The caches of the places in a pass take at most the free memory divided by this number.
const SHARE: usize = 4;

/// A run, and the values that its places take.
pub struct Patcher<'m> {
    model: Held<'m, Model>,
    /// The tokens of the run.
    ids: Vec<u32>,
    /// The run as it is.
    run: Recorded,
    /// The run whose values the places take; `None` for zeros.
    donor: Option<Recorded>,
    work: Activations,
    /// The cache of the run.
    cache: KvCache,
    /// Caches for the places in a pass. The number is that of the leading positions that equal `cache`.
    slots: Vec<(KvCache, usize)>,
    /// Multiply-adds of matrix products so far.
    done: f64,
}

/// A place whose rows are computed.
struct Change {
    /// Index in the list of places.
    index: usize,
    /// The tokens whose rows change.
    rows: Range<usize>,
    /// Their rows: of the stage, then of the output of the layer.
    values: Vec<f32>,
}

impl<'m> Patcher<'m> {
    /// Runs the prompt `ids`, and `donor` if there is one, and keeps what patches of `stages` read. With a donor, its
    /// sequence has number 0 and that of the run has number 1.
    ///
    /// Each of `stages` is one of `Embedding`, `FfnResidual`, `AttnOutput`, `FfnDown`, `AttnHeads` and
    /// [`Sizes::neurons`](llama_trace_core::trace::Sizes::neurons).
    ///
    /// # Errors
    /// [`Error::Prompt`] if a prompt cannot be run, or if the two do not have
    /// the same number of tokens.
    pub fn new(model: &'m Model, ids: &[u32], donor: Option<&[u32]>, stages: &[Stage]) -> Result<Self> {
        Self::held(Held::Borrowed(model), ids, donor, stages)
    }

    /// [`Patcher::new`] for a model that is borrowed or shared.
    ///
    /// # Errors
    /// The errors of [`Patcher::new`].
    pub fn held(held: Held<'m, Model>, ids: &[u32], donor: Option<&[u32]>, stages: &[Stage]) -> Result<Self> {
        let model = &*held;
        let prompts: Vec<&[u32]> = donor.into_iter().chain([ids]).collect();
        for prompt in &prompts {
            sequence::check(&model.config, 0, prompt)?;
        }
        check_lengths(&prompts)?;
        let room = || KvCache::with_capacity(&model.config, &*model.backend, ids.len());
        let mut caches = prompts.iter().map(|_| room()).collect::<Result<Vec<_>>>()?;
        let mut work = Activations::new(model)?;
        let mut runs = Recorded::run(model, &mut caches, &mut work, &prompts, stages)?;
        let run = runs.pop().unwrap_or_default();
        let cache = caches.pop().map_or_else(room, Ok)?;
        let done = prompts.len() as f64 * pass_work(&model.config, ids.len());
        let (donor, slots) = (runs.pop(), Vec::new());
        Ok(Self { model: held, ids: ids.to_vec(), run, donor, work, cache, slots, done })
    }

    /// The logits after the last token of the run.
    pub fn logits(&self) -> &[f32] {
        &self.run.logits
    }

    /// The logits after the last token of the donor, or of the run if there is no donor.
    pub fn donor_logits(&self) -> &[f32] {
        self.donor.as_ref().map_or(self.logits(), |donor| &donor.logits)
    }

    /// The most bytes of the recorded values of `runs` runs over `tokens` tokens, from which patches of `stages` are made.
    pub fn bytes(config: &ModelConfig, tokens: usize, runs: usize, stages: &[Stage]) -> usize {
        let width = |stage: &Stage| match stage {
            Stage::AttnHeads => config.q_dim(),
            Stage::FfnHidden | Stage::FfnAct => config.ffn_dim,
            _ => config.dim,
        };
        let row: usize = recorded::kept(stages).iter().map(width).sum();
        size_of::<f32>() * runs * (tokens * config.layers * row + config.vocab)
    }

    /// The work so far, as the number of forward passes over the prompt with the same matrix products. The first one or
    /// two are the runs themselves.
    pub fn passes(&self) -> f64 {
        self.done / pass_work(&self.model.config, self.ids.len())
    }

    /// Calls `see` with the index of each place and the logits after the last token when this place alone takes its
    /// values from the donor. The order is that of the layers.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if the backend was asked to stop. Also the backend's errors and those of `see`.
    pub fn run(&mut self, places: &[Place], see: &mut dyn FnMut(usize, &[f32]) -> Result<()>) -> Result<()> {
        let mut order: Vec<usize> = (0..places.len()).collect();
        order.sort_by_key(|&index| places[index].layer);
        for group in order.chunk_by(|&a, &b| places[a].layer == places[b].layer) {
            let mut changes = Vec::new();
            for &index in group {
                match self.change(index, places[index]) {
                    Some(change) => changes.push(change),
                    None => see(index, &self.run.logits)?,
                }
            }
            if let Some(layer) = places[group[0]].layer {
                changes.sort_by_key(|change| places[change.index].stage);
                for same in changes.chunk_by_mut(|a, b| places[a.index].stage == places[b.index].stage) {
                    self.finish_layer(layer, places[same[0].index].stage, same)?;
                }
            }
            // In a fixed order, each place finds most of its cache already copied.
            changes.sort_by_key(|change| (change.rows.start, change.index));
            let next = places[group[0]].layer.map_or(0, |layer| layer + 1);
            let mut rest = &changes[..];
            while !rest.is_empty() {
                let (now, later) =
                    rest.split_at(self.together(rest, |rows| self.ids.len() - rows.start, true));
                self.follow(next, now, see)?;
                rest = later;
            }
        }
        Ok(())
    }

    /// The rows of `place` with the donor's values; `None` if they do not change the logits.
    fn change(&self, index: usize, place: Place) -> Option<Change> {
        let (tokens, config) = (self.ids.len(), &self.model.config);
        let whole = place.token.map_or(0..tokens, |token| token..token + 1);
        let own = self.run.rows(place.layer, place.stage, whole.clone());
        let mut values = own.to_vec();
        let cells = place.cells(&self.model.sizes());
        let width = own.len() / whole.len();
        for (row, values) in whole.clone().zip(values.chunks_exact_mut(width)) {
            match &self.donor {
                Some(donor) => {
                    let row = donor.rows(place.layer, place.stage, row..row + 1);
                    values[cells.clone()].copy_from_slice(&row[cells.clone()]);
                }
                None => values[cells.clone()].fill(0.0),
            }
        }
        let first = (own.iter().zip(&values)).position(|(a, b)| a.to_bits() != b.to_bits())? / width;
        // Edits name the tokens of the whole pass, and some of them mix tokens.
        if !self.model.edits.is_empty() {
            let mut rows = self.run.rows(place.layer, place.stage, 0..tokens).to_vec();
            rows[whole.start * width..whole.end * width].copy_from_slice(&values);
            return Some(Change { index, rows: 0..tokens, values: rows });
        }
        // After the last layer, only the last token is read.
        if place.layer == Some(config.layers - 1) && whole.end < tokens {
            return None;
        }
        values.drain(..first * width);
        Some(Change { index, rows: whole.start + first..whole.end, values })
    }

    /// The number of the first `changes` that share a pass. `rows` is the number of rows of each. With `cached`, each
    /// takes a cache.
    fn together(&self, changes: &[Change], rows: impl Fn(&Range<usize>) -> usize, cached: bool) -> usize {
        // Edits keep values by sequence, so each place has a pass of its own.
        if !self.model.edits.is_empty() {
            return 1;
        }
        let (config, backend) = (&self.model.config, &self.model.backend);
        let cache = kv_cache::bytes(config, backend.cache_dtype(), self.ids.len()).max(1);
        let free = backend.free_memory().map_or(usize::MAX, |free| free / SHARE / cache);
        let most = if cached { free.saturating_add(self.slots.len()).max(1) } else { usize::MAX };
        let mut count = 0;
        let fits = |change: &&Change| {
            count += rows(&change.rows);
            count <= ROWS
        };
        changes.iter().take_while(fits).count().clamp(1, most)
    }

    /// Runs the operations of `layer` after `stage`. The values of `changes` are rows of `stage`, and then of the output
    /// of the layer.
    fn finish_layer(&mut self, layer: usize, stage: Stage, changes: &mut [Change]) -> Result<()> {
        if stage == Stage::FfnResidual {
            return Ok(());
        }
        let mut rest = changes;
        while !rest.is_empty() {
            let count = self.together(rest, ExactSizeIterator::len, false);
            let (now, later) = rest.split_at_mut(count);
            self.finish_rows(layer, stage, now)?;
            rest = later;
        }
        Ok(())
    }

    fn finish_rows(&mut self, layer: usize, stage: Stage, changes: &mut [Change]) -> Result<()> {
        let Self { model, ids, run, donor, work, .. } = self;
        let model: &Model = model;
        let (tokens, dim, config) = (ids.len(), model.config.dim, &model.config);
        let (input_layer, input) = recorded::input_of(layer);
        let after_attention = stage > Stage::AttnOutput;
        let (mut values, mut inputs, mut sums) = (Vec::new(), Vec::new(), Vec::new());
        for change in &*changes {
            values.extend_from_slice(&change.values);
            inputs.extend_from_slice(run.rows(input_layer, input, change.rows.clone()));
            if after_attention {
                sums.extend_from_slice(run.rows(Some(layer), Stage::AttnResidual, change.rows.clone()));
            }
        }
        // Each row is independent here. The order of its sums is that of a span of the prompt's length.
        let count: usize = changes.iter().map(|change| change.rows.len()).sum();
        let sequence = usize::from(donor.is_some());
        let spans: Vec<Span> = (0..count)
            .step_by(tokens)
            .map(|first| Span { sequence, start: 0, tokens: tokens.min(count - first) })
            .collect();
        let tokens: Vec<u32> = ids.iter().copied().cycle().take(count).collect();
        pass::begin(model, work, 0, &spans, (&tokens, &[]), &mut NoProbe)?;
        work.set_input(model, &inputs)?;
        if after_attention {
            work.write(model, Stage::AttnResidual, &sums)?;
        }
        work.write(model, stage, &values)?;
        forward::rest(model, work, layer, stage, &mut NoProbe)?;
        let mut outputs = Vec::new();
        work.output(model, count * dim, &mut outputs)?;
        let mut outputs = &outputs[..];
        for change in changes {
            let (own, others) = outputs.split_at(change.rows.len() * dim);
            (change.values, outputs) = (own.to_vec(), others);
        }
        self.done += count as f64 * rest_work(config, stage);
        Ok(())
    }

    /// Runs the layers from `first` on, for the rows of `changes` and the tokens after them.
    fn follow(
        &mut self,
        first: usize,
        changes: &[Change],
        see: &mut dyn FnMut(usize, &[f32]) -> Result<()>,
    ) -> Result<()> {
        let Self { model, ids, run, donor, work, cache, slots, .. } = self;
        let model: &Model = model;
        let (tokens, dim, backend, config) = (ids.len(), model.config.dim, &*model.backend, &model.config);
        let (input_layer, input) = recorded::input_of(first);
        let (mut spans, mut inputs, mut x) = (Vec::new(), Vec::new(), Vec::new());
        for Change { rows, values, .. } in changes {
            let sequence = usize::from(donor.is_some());
            spans.push(Span { sequence, start: rows.start, tokens: tokens - rows.start });
            inputs.extend_from_slice(&ids[rows.start..]);
            x.extend_from_slice(values);
            x.extend_from_slice(run.rows(input_layer, input, rows.end..tokens));
        }
        debug_assert_eq!(x.len(), inputs.len() * dim, "a row for each token");
        while slots.len() < changes.len() {
            slots.push((KvCache::with_capacity(config, backend, tokens)?, 0));
        }
        for ((slot, same), Change { rows, .. }) in slots.iter_mut().zip(changes) {
            if *same < rows.start {
                slot.copy(config, backend, cache, *same..rows.start)?;
            }
            *same = rows.start;
        }
        pass::begin(model, work, 0, &spans, (&inputs, &[]), &mut NoProbe)?;
        work.set_input(model, &x)?;
        let mut caches: Vec<&mut KvCache> = slots[..changes.len()].iter_mut().map(|(slot, _)| slot).collect();
        for layer in first..config.layers {
            forward::layer(model, &mut caches, work, layer, &mut NoProbe)?;
        }
        pass::finish(model, work, &mut NoProbe)?;
        backend.sync()?;
        for (span, change) in changes.iter().enumerate() {
            pass::last_logits(model, work, span, |logits| see(change.index, logits))?;
        }
        self.done += inputs.len() as f64 * (config.layers - first) as f64 * layer_work(config)
            + changes.len() as f64 * head_work(config);
        Ok(())
    }
}

/// Checks that all prompts have the same number of tokens.
fn check_lengths(prompts: &[&[u32]]) -> Result<()> {
    match prompts {
        [one, other] if one.len() != other.len() => {
            Err(Error::prompt("the two prompts do not have the same number of tokens")
                .expected("one token of the one prompt for each token of the other")
                .found(format!("{} and {} tokens", one.len(), other.len()))
                .next("change the words in which the prompts differ, so that they have equally many tokens"))
        }
        _ => Ok(()),
    }
}

/// Multiply-adds of the matrix products of a pass over `tokens` tokens, with the logits of the last one.
fn pass_work(config: &ModelConfig, tokens: usize) -> f64 {
    tokens as f64 * config.layers as f64 * layer_work(config) + head_work(config)
}

/// Multiply-adds of a layer for one token.
fn layer_work(config: &ModelConfig) -> f64 {
    (config.dim * (config.q_dim() + 2 * config.kv_dim())) as f64 + rest_work(config, Stage::AttnHeads)
}

/// Multiply-adds of a layer after `stage` for one token.
fn rest_work(config: &ModelConfig, stage: Stage) -> f64 {
    let (dim, hidden) = (config.dim, config.ffn_dim);
    let each = [
        (Stage::AttnOutput, config.q_dim() * dim),
        (Stage::FfnHidden, 2 * dim * hidden),
        (Stage::FfnDown, hidden * dim),
    ];
    each.iter().filter(|(of, _)| stage < *of).map(|(_, work)| *work as f64).sum()
}

fn head_work(config: &ModelConfig) -> f64 {
    (config.dim * config.vocab) as f64
}
