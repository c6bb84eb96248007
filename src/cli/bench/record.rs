//! The cost of recording a pass.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use super::report::{Layer, Recording, Spread};
use super::{filled, timed};
use llama_trace_core::error::Result;
use llama_trace_core::trace::{NoProbe, Probe, Site, Stage, Values};
use llama_trace_engine::generate::{Sampler, Sampling, Session};
use llama_trace_engine::model::Model;
use llama_trace_runs::replay::derive::is_derivable;

/// Repetitions of each kind of pass, after a warm-up pass that writes to the new buffers for the first time.
const PASSES: usize = 5;

/// A probe that copies the wanted stages into permanent buffers.
struct Copies<W> {
    wants: W,
    buffers: HashMap<Site, Vec<u8>>,
}

impl<W: Fn(Site) -> bool> Probe for Copies<W> {
    fn enabled(&self) -> bool {
        true
    }

    fn wants(&self, site: Site) -> bool {
        (self.wants)(site)
    }

    fn record(&mut self, site: Site, rows: Range<usize>, values: Values<'_>) {
        let bytes: &[u8] = match values {
            Values::F32(values) => bytemuck::cast_slice(values),
            Values::I64(values) => bytemuck::cast_slice(values),
            Values::I8(values) => bytemuck::cast_slice(values),
        };
        // All rows of a stage have the same length.
        let row = bytes.len() / rows.len().max(1);
        let buffer = self.buffers.entry(site).or_default();
        if buffer.len() < rows.end * row {
            buffer.resize(rows.end * row, 0);
        }
        buffer[rows.start * row..rows.end * row].copy_from_slice(bytes);
    }
}

/// Times prefills of `ids` that are recorded in three ways. The three ways alternate.
pub(super) fn measure(model: &Model, ids: &[u32]) -> Result<Recording> {
    let kinds: [fn(Site) -> bool; 3] =
        [|site| site.stage == Stage::Logits, |site| !is_derivable(site.stage), |_| true];
    let mut probes = kinds.map(|wants| Copies { wants, buffers: HashMap::new() });
    let mut times: [Vec<Duration>; 3] = Default::default();
    // The probe finds a buffer by its site, which has the pass number. Each round starts again at pass 0, so it reuses
    // the buffers.
    for round in 0..=PASSES {
        for (probe, times) in probes.iter_mut().zip(&mut times) {
            let mut session = Session::with_capacity(model, Sampler::new(Sampling::default())?, ids.len())?;
            let started = model.backend.mark();
            session.read(ids, probe)?;
            let ended = model.backend.mark();
            model.backend.sync()?;
            if round > 0 {
                times.push(model.backend.between(&started, &ended));
            }
        }
    }
    let [logits, kept, all] = times.map(|times| Spread::of(times.iter().map(Duration::as_secs_f64)));
    Ok(Recording { tokens: ids.len(), logits, kept, all })
}

/// Times decode passes after `cached` tokens. Every second pass records all stages of the middle layer. None if the
/// context is too short.
pub(super) fn measure_layer(model: &Model, cached: usize) -> Result<Option<Layer>> {
    let (mut session, mut id) = filled(model, cached, 2 * (PASSES + 1))?;
    if session.room() < 2 * (PASSES + 1) {
        return Ok(None);
    }
    let layer = model.config.layers / 2;
    let mut probe = Copies { wants: |site: Site| site.layer == Some(layer), buffers: HashMap::new() };
    let (mut plain, mut recorded) = (Vec::new(), Vec::new());
    for round in 0..=PASSES {
        let (drawn, time) = timed(&mut session, &[id], &mut NoProbe)?;
        let (next, time_recorded) = timed(&mut session, &[drawn], &mut probe)?;
        id = next;
        // The probe finds a buffer by its site, which has the pass number. The next recorded pass reuses the buffers,
        // so they get its number.
        let stages = std::mem::take(&mut probe.buffers).into_iter();
        let dims = session.next_pass(1);
        probe.buffers = stages.map(|(site, buffer)| (Site { pass: dims.pass + 1, ..site }, buffer)).collect();
        if round > 0 {
            plain.push(time.as_secs_f64());
            recorded.push(time_recorded.as_secs_f64());
        }
    }
    let [plain, recorded] = [plain, recorded].map(|times| Spread::of(times.into_iter()));
    Ok(Some(Layer { cached, layer, stages: probe.buffers.len(), plain, recorded }))
}
