//! A device against the processor in float32: two runs of the same ids, compared stage by stage.

use std::collections::{HashMap, HashSet};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use super::{Check, Runs, SAMPLING};
use llama_trace_core::config::{CacheDtype, Precision};
use llama_trace_core::error::Result;
use llama_trace_core::explain::{Cell, Place, Rules};
use llama_trace_core::trace::{Frame, PassDims, Recorder, Select, Site, Values};
use llama_trace_engine::generate::{Sampler, Session};
use llama_trace_engine::model::Model;

/// The largest allowed relative L2 distance of a stage from the processor's float32, ‖ours − its‖ / ‖its‖, in any layer
/// and pass.
///
/// - float32: 10⁻⁵, the effect of a different order of sums. With a cache that rounds, a value may round to the other
///   neighbour: one step of bfloat16.
/// - bfloat16: ¼. Each stored value is rounded by at most 1/512, and the error propagates through all layers and the
///   exponents of softmax. This limit is for two runs; two kernels have stricter limits on equal inputs.
/// - int8: ½. Both factors of every product are rounded to 255 steps of their group's largest value.
fn bound(precision: Precision, cache: CacheDtype) -> f64 {
    match (precision, cache) {
        (Precision::F32, CacheDtype::F32) => 1e-5,
        (Precision::F32, _) => 1.0 / 256.0,
        (Precision::Bf16, _) => 1.0 / 4.0,
        (Precision::Q8 { .. }, _) => 1.0 / 2.0,
    }
}

/// Runs the prompt and decode passes on the device and on the processor, which has a thread of its own. One stage of
/// each run is in memory, or a few if one run is ahead.
///
/// # Errors
/// The errors of either backend, and a stop request.
pub(super) fn check(runs: &Runs<'_>, processor: &Model) -> Result<Check> {
    let model = runs.model;
    let mut check = Check::new("float32", bound(model.backend.precision(), model.backend.cache_dtype()));
    let mut rules = Rules::new(model.card(), model.backend.cache_dtype(), SAMPLING);
    let (sampler, tokens) = (Sampler::new(SAMPLING)?, runs.ids.len() + runs.decodes());
    let mut ours = Session::with_capacity(model, sampler.clone(), tokens)?;
    let mut its = Session::with_capacity(processor, sampler, tokens)?;
    // Both runs read the same tokens. After the prompt, these are the prompt's first tokens again instead of drawn
    // ones.
    let mut ids = runs.ids.to_vec();
    for pass in 0..=runs.decodes() {
        let dims = ours.next_pass(ids.len());
        rules.push(dims, None);
        one_pass(&mut ours, &mut its, &ids, dims, &mut |ours, its| {
            let (distance, at) = distance(ours, its);
            check.see(distance, || rules.address(Cell { place: Place::Stage(ours.site), at }));
        })?;
        runs.ticks("comparing with the processor's float32", 2 * model.config.layers);
        ids = vec![runs.ids[pass % runs.ids.len()]];
    }
    Ok(check)
}

/// Runs `ids` on the device and on the processor, and passes each pair of frames to `see` as it arrives.
fn one_pass(
    ours: &mut Session<'_>,
    its: &mut Session<'_>,
    ids: &[u32],
    dims: PassDims,
    see: &mut dyn FnMut(&Frame, &Frame),
) -> Result<()> {
    let (sizes, its_sizes, select) = (ours.model.sizes(), its.model.sizes(), Select::all());
    let shared: HashSet<Site> = Site::all(&its_sizes, dims).into_iter().collect();
    let (send, frames) = mpsc::sync_channel::<Frame>(1);
    thread::scope(|scope| {
        let other = scope.spawn({
            let select = &select;
            move || {
                // The receiver is gone if the device failed.
                let sink = |frame| drop(send.send(frame));
                its.read(ids, &mut Recorder::new(its_sizes, dims, select, sink))
            }
        });
        let mut beside = Beside { frames, ahead: HashMap::new() };
        let sink = |frame: Frame| {
            if shared.contains(&frame.site)
                && let Some(its) = beside.of(frame.site)
            {
                see(&frame, &its);
            }
        };
        let done = ours.read(ids, &mut Recorder::new(sizes, dims, &select, sink));
        // Without a receiver the other thread does not wait to send its remaining frames.
        drop(beside);
        let other = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        done.and(other)
    })
}

/// The frames of the other run.
struct Beside {
    frames: Receiver<Frame>,
    /// Frames that arrived before they were needed.
    ahead: HashMap<Site, Frame>,
}

impl Beside {
    /// Waits for the frame of a site; `None` if the other run has ended without it.
    fn of(&mut self, site: Site) -> Option<Frame> {
        loop {
            if let Some(frame) = self.ahead.remove(&site) {
                return Some(frame);
            }
            let frame = self.frames.recv().ok()?;
            self.ahead.insert(frame.site, frame);
        }
    }
}

/// ‖ours − its‖ / ‖its‖, and the cell of the largest difference. Values with equal bits, such as −∞ in the mask, do not
/// differ.
fn distance(ours: &Frame, its: &Frame) -> (f64, usize) {
    let (mut apart, mut size, mut most) = (0.0, 0.0, (0.0, 0));
    let mut see = |at: usize, a: f64, b: f64| {
        size += if b.is_finite() { b * b } else { 0.0 };
        if a == b {
            return;
        }
        let difference = (a - b).abs();
        apart += difference * difference;
        // NaN counts as larger than any difference, and the first NaN is named.
        if difference > most.0 || difference.is_nan() && !f64::is_nan(most.0) {
            most = (difference, at);
        }
    };
    match (ours.values(), its.values()) {
        (Values::F32(a), Values::F32(b)) => {
            (0..).zip(a.iter().zip(b)).for_each(|(at, (a, b))| see(at, f64::from(*a), f64::from(*b)));
        }
        (Values::I64(a), Values::I64(b)) => {
            (0..).zip(a.iter().zip(b)).for_each(|(at, (a, b))| see(at, *a as f64, *b as f64));
        }
        // The processor's float32 run has no int8 values.
        _ => {}
    }
    (if apart == 0.0 { 0.0 } else { (apart / size).sqrt() }, most.1)
}
