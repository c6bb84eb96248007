//! Self-checks on this machine and this model. [`run`] runs the model in several ways that must agree, and recomputes
//! the stages of a recorded run in other ways.
//!
//! | line | what must agree | by how much |
//! |---|---|---|
//! | `recorded` | the logits of a fully recorded run, and of one without a probe | to the bit |
//! | `derived` | derived stages, and the same stages computed by the pass ([`llama_trace_runs::replay::derive`]) | to the bit |
//! | `threads` | every stage on one thread, and on all | to the bit |
//! | `kernel:NAME` | each kernel of this device, and the plain functions of [`llama_trace_core::ops`] in its arithmetic, on the inputs of the run | to the bit, or [`REORDER_TOLERANCE`](llama_trace_engine::backend::REORDER_TOLERANCE) if a matrix unit or a device sums in its own order |
//! | `float64` | each stage, and its rule ([`llama_trace_core::explain`]) in float64 on the inputs of the run | [`Judge`] |
//! | `float32` | on a device other than the processor: each stage, and the processor's in float32 for the same ids | relative L2: 10⁻⁵ in float32, ¼ in bfloat16, ½ in int8 |
//! | `batch` | every stage of three sequences in one pass, and of each sequence alone | to the bit |
//! | `edit:same` | for each edit: the run, and the run in which the edit's place gets the values that it has | to the bit; on a device, the logits within [`REORDER_TOLERANCE`](llama_trace_engine::backend::REORDER_TOLERANCE) if a stage is inside a fused operation |
//! | `edit:before` | everything before the first edited place in the run with all edits, and in the run without | to the bit |
//! | `tokenizer` | the prompt's ids, and the ids after decoding them to text and encoding this text | the same ids |
//!
//! There is no second forward pass. A stage is recomputed from the earlier stages of the recorded run, and its frames
//! are dropped after their layer.

mod batch_invariance;
mod cells;
mod distance;
mod edits;
mod float32;
mod frames;
mod kernels;
mod plain;
mod row_hashes;
mod sample;
mod stages;
mod tokens;

use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::ThreadPoolBuilder;

use llama_trace_core::edit::Edits;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::{Address, NoProbe, PassDims, Probe, Site, Sizes, Stage, Step};
use llama_trace_engine::backend::free_host_memory;
use llama_trace_engine::generate::{Sampler, Sampling, Session};
use llama_trace_engine::model::{Model, pass};
use llama_trace_formats::tokenizer::Tokenizer;

pub(crate) use cells::weight_rows;
pub use cells::{Cells, Change, Nothing, ReadRows, ReadWeights, rows};
pub use distance::Judge;
pub use sample::{ROWS, Sample, TOGETHER};

/// The inputs of the checks.
pub struct Plan<'a> {
    /// The tokens of the first pass.
    pub ids: Vec<u32>,
    /// All ids of the text whose first tokens are `ids`; `None` if `ids` did not come from a text.
    pub split: Option<Vec<u32>>,
    /// The tokenizer, if the model has one.
    pub tokenizer: Option<&'a dyn Tokenizer>,
    /// The rows of the matrices to recompute.
    pub sample: Sample,
}

/// Decode passes after the first pass, if the context has room for them.
pub const DECODES: usize = 2;

/// The result of one check.
#[derive(Clone, Debug)]
pub struct Check {
    /// Its name: `recorded`, `kernel:avx2`, ….
    pub name: String,
    /// Whether it passed; a skipped check counts as passed.
    pub ok: bool,
    /// The reason why it was skipped, if it was.
    pub skipped: Option<String>,
    /// The largest difference, in the unit of `bound`; NaN if a value is NaN.
    pub worst: f64,
    /// The largest difference allowed. 0 means that every bit must be equal; `worst` is then the number of values, rows
    /// or texts that differ.
    pub bound: f64,
    /// The address of the largest difference. If the check failed, the first address at which it did.
    pub at: Option<Address>,
}

impl Check {
    /// A check without differences so far.
    fn new(name: impl Into<String>, bound: f64) -> Self {
        Self { name: name.into(), ok: true, skipped: None, worst: 0.0, bound, at: None }
    }

    fn skipped(name: &str, reason: impl Into<String>) -> Self {
        Self { skipped: Some(reason.into()), ..Self::new(name, 0.0) }
    }

    /// Adds a difference of `worst` at an address; NaN exceeds any bound.
    fn see(&mut self, worst: f64, at: impl FnOnce() -> Address) {
        let holds = worst <= self.bound;
        if self.ok && (!holds || worst > self.worst) {
            self.at = Some(at());
        }
        if !self.worst.is_nan() && (worst.is_nan() || worst > self.worst) {
            self.worst = worst;
        }
        self.ok &= holds;
    }

    /// Adds `count` values with different bits, the first of them at an address.
    fn differ(&mut self, count: usize, at: impl FnOnce() -> Address) {
        if count > 0 {
            let at = self.at.take().unwrap_or_else(at);
            (self.ok, self.worst, self.at) = (false, self.worst + count as f64, Some(at));
        }
    }
}

/// The results of all checks.
#[derive(Clone, Debug)]
pub struct Report {
    /// Every line, in the order of the table above.
    pub checks: Vec<Check>,
    /// The number of recomputed matrix rows, and the number of all matrix rows.
    pub rows: (usize, usize),
    /// The number of tokens of each pass.
    pub tokens: Vec<usize>,
}

impl Report {
    /// Returns whether all checks that ran have passed.
    pub fn ok(&self) -> bool {
        self.checks.iter().all(|check| check.ok)
    }
}

/// The weight in [`Progress`] of a layer that is recomputed with every kernel, as a number of layers.
const AGAIN: usize = 10;

/// Called with the current activity and the number of finished layers, out of [`layers`].
pub type Progress<'a> = &'a (dyn Fn(&'static str, usize) + Sync);

/// The number of layers of all runs together, for [`Progress`].
pub fn layers(layers: usize) -> usize {
    layers * ((1 + DECODES) * (2 + AGAIN) + 8)
}

/// The sampler settings of the runs; temperature, top-k and top-p all have an effect.
const SAMPLING: Sampling = Sampling { temperature: 0.8, top_k: 40, top_p: 0.95, seed: 1, ..Sampling::GREEDY };

/// Checks `model` without its edits, and then the edits. A model on another device than the processor is also compared with `processor`, the same model on
/// the processor in float32.
///
/// # Errors
/// [`Error::Prompt`] if the ids cannot be run, [`Error::Interrupted`] after a stop request, and the errors of the
/// backend. A failed check is not an error.
pub fn run(
    model: &Model,
    processor: Option<&Model>,
    plan: &Plan<'_>,
    progress: Progress<'_>,
) -> Result<Report> {
    room(model, plan.ids.len())?;
    let edited = model;
    let model = &model.with_edits(Edits::default());
    let run = Runs { model, ids: &plan.ids, done: AtomicUsize::new(0), progress };
    let plain = run.plain()?;
    let found = frames::record(&run, &plan.sample)?;
    let recorded = recorded(&run, &plain, &found.logits);
    let threads = run.threads(&found.hashes)?;
    let float32 = processor.map(|processor| float32::check(&run, processor)).transpose()?;
    let batch = batch_invariance::check(&run)?;
    let tokenizer = tokens::check(plan, model)?;
    let edits = edits::check(&run, edited, &found.hashes, &plain)?;
    let mut checks = vec![recorded, found.derived, threads];
    checks.extend(found.kernels);
    checks.push(found.float64);
    checks.extend(float32);
    checks.push(batch);
    checks.extend(edits);
    checks.push(tokenizer);
    let tokens = found.passes.iter().map(|dims| dims.tokens).collect();
    Ok(Report { checks, rows: found.rows, tokens })
}

/// Checks that the frames of one layer, and of the stages outside the layers, fit in memory for `tokens` tokens.
///
/// # Errors
/// [`Error::Prompt`] if there is not enough free memory.
fn room(model: &Model, tokens: usize) -> Result<()> {
    let (sizes, dims) =
        (Sizes { layers: 1, ..model.sizes() }, PassDims { pass: 0, start: 0, tokens, ..PassDims::default() });
    let bytes = |site: &Site| {
        let lengths = site.stage.axes().iter().map(|&axis| sizes.axis(axis, dims));
        lengths.fold(site.stage.value_bytes(), usize::saturating_mul)
    };
    // A stage needs twice its size while its rows are assembled.
    let all = Site::all(&sizes, dims).iter().map(bytes).fold(0, usize::saturating_add).saturating_mul(2);
    // The frames are in host memory for every device.
    match free_host_memory() {
        Some(free) if free < all => Err(Error::prompt("there is not enough memory to check so many tokens")
            .expected(format!(
                "room for {all} bytes: every stage of a layer is kept in memory, for {tokens} tokens"
            ))
            .found(format!("{free} bytes"))
            .next("give a shorter prompt, or end other programs")),
        _ => Ok(()),
    }
}

/// The model, and the progress of its runs.
struct Runs<'a> {
    model: &'a Model,
    ids: &'a [u32],
    done: AtomicUsize,
    progress: Progress<'a>,
}

impl Runs<'_> {
    /// The number of decode passes that fit in the context.
    fn decodes(&self) -> usize {
        DECODES.min(self.model.config.context.saturating_sub(self.ids.len()))
    }

    /// Reports one more finished layer.
    fn tick(&self, what: &'static str) {
        self.ticks(what, 1);
    }

    /// Reports work equal to `count` layers as finished.
    fn ticks(&self, what: &'static str, count: usize) {
        let done = self.done.fetch_add(count, Ordering::Relaxed) + count;
        (self.progress)(what, done);
    }

    /// Runs the passes. `probe` makes a probe for each pass and the random number of its draw; `see` gets that probe
    /// and the last logits.
    fn passes<P: Probe>(
        &self,
        mut probe: impl FnMut(PassDims, Option<f64>) -> P,
        mut see: impl FnMut(P, Vec<u32>) -> Result<()>,
    ) -> Result<()> {
        let sampler = Sampler::new(SAMPLING)?;
        let randoms = sampler.clone();
        let mut session = Session::with_capacity(self.model, sampler, self.ids.len() + self.decodes())?;
        let mut ids = self.ids.to_vec();
        for draw in 0..=self.decodes() as u64 {
            let mut watcher = probe(session.next_pass(ids.len()), Some(randoms.random(draw)));
            ids = vec![session.run(&ids, &mut watcher)?];
            let mut logits = Vec::new();
            pass::last_logits(self.model, &session.work, 0, |values| {
                logits.extend(values.iter().map(|value| value.to_bits()));
                Ok(())
            })?;
            see(watcher, logits)?;
        }
        Ok(())
    }

    /// The last logits of each pass of a run without a probe.
    fn plain(&self) -> Result<Vec<Vec<u32>>> {
        let mut all = Vec::new();
        self.passes(
            |_, _| NoProbe,
            |NoProbe, logits| {
                all.push(logits);
                (0..self.model.config.layers).for_each(|_| self.tick("running without recording"));
                Ok(())
            },
        )?;
        Ok(all)
    }

    /// Checks that one thread gives the results of all threads.
    fn threads(&self, all: &row_hashes::RowHashes) -> Result<Check> {
        let threads = rayon::current_num_threads();
        // A machine with only one thread is compared with two threads.
        let other = if threads == 1 { 2 } else { 1 };
        let Ok(pool) = ThreadPoolBuilder::new().num_threads(other).build() else {
            return Ok(Check::skipped("threads", "the system does not start other threads"));
        };
        let mut seen = row_hashes::RowHashes::default();
        let ran = pool.install(|| {
            self.passes(
                |_, _| row_hashes::RowHasher::new(|| self.tick("running on another number of threads")),
                |probe, _| {
                    seen.extend(probe.hashes);
                    Ok(())
                },
            )
        });
        ran?;
        let mut check = Check::new("threads", 0.0);
        all.compare(&seen, self.model, &mut check);
        Ok(check)
    }
}

/// Checks that logits are equal with and without a recorder.
fn recorded(run: &Runs<'_>, plain: &[Vec<u32>], recorded: &[Vec<u32>]) -> Check {
    let mut check = Check::new("recorded", 0.0);
    for (pass, (plain, recorded)) in plain.iter().zip(recorded).enumerate() {
        let different = plain.iter().zip(recorded).enumerate().filter(|(_, (a, b))| a != b);
        let first = different.clone().next().map_or(0, |(at, _)| at);
        check.differ(different.count(), || {
            let last = if pass == 0 { run.ids.len() - 1 } else { 0 };
            Address::of(Site::once(pass, Stage::Logits), Step::Stage(Stage::Logits), &[last, first])
        });
    }
    check
}

/// Random ids from a seed, for a model without a prompt. They are spread over the vocabulary, and equal on every
/// machine.
pub fn seeded_ids(vocab: usize, tokens: usize, seed: u64) -> Vec<u32> {
    let mut random = sample::Random::new(seed);
    (0..tokens).map(|_| random.below(vocab) as u32).collect()
}
