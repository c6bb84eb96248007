//! How the program proves itself on this machine and this model: [`run`] runs the model in several ways that must
//! agree, and computes what a run recorded again, in other ways.
//!
//! | line | what must agree | by how much |
//! |---|---|---|
//! | `recorded` | a run that is recorded whole, and one that nobody watches: the logits | to the bit |
//! | `derived` | stages that follow from others, and what the pass had there ([`llama_trace_runs::replay::derive`]) | to the bit |
//! | `threads` | every stage on one thread, and on all | to the bit |
//! | `kernel:NAME` | each kernel of this device, and the plain functions of [`llama_trace_core::ops`], on the run's own inputs | to the bit, or [`REORDER_TOLERANCE`](llama_trace_engine::backend::REORDER_TOLERANCE) where a unit, or a device, sums in an order of its own |
//! | `float64` | each stage, and its rule ([`llama_trace_core::explain`]) in float64 on the run's own inputs | [`Judge`] |
//! | `float32` | on a device that is not the processor: each stage, and the processor's in float32 of the same ids | relative L2: 10⁻⁵ in float32, ¼ in bfloat16, ½ in int8 |
//! | `batch` | every stage of each of three sequences in one pass, and alone | to the bit |
//! | `tokenizer` | the prompt's text, to ids and back | the same ids |
//!
//! There is no second forward pass: a stage is computed again from what the run recorded before it, and let go when
//! its layer is done.

mod alone;
mod cells;
mod distance;
mod float32;
mod frames;
mod kernels;
mod plain;
mod prints;
mod sample;
mod stages;
mod tokens;

use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::ThreadPoolBuilder;

use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::{Address, NoProbe, PassDims, Probe, Site, Sizes, Stage, Step};
use llama_trace_engine::backend::{Backend, cpu};
use llama_trace_engine::generate::{Sampler, Sampling, Session};
use llama_trace_engine::model::{Model, pass};
use llama_trace_formats::tokenizer::Tokenizer;

pub use cells::{Cells, Change, Nothing, ReadRows, rows};
pub use distance::Judge;
pub use sample::{ROWS, Sample, TOGETHER};

/// What is checked.
pub struct Plan<'a> {
    /// The tokens of the first pass.
    pub ids: Vec<u32>,
    /// What a text was split into, whole, of which they are the beginning; none where they were not split from a text.
    pub split: Option<Vec<u32>>,
    /// What splits texts into tokens, where the model has such a thing.
    pub tokenizer: Option<&'a dyn Tokenizer>,
    /// Which rows of the matrices are computed again.
    pub sample: Sample,
}

/// Decode passes after the first pass, where the context has room for them.
pub const DECODES: usize = 2;

/// One thing that must hold.
#[derive(Clone, Debug)]
pub struct Check {
    /// Its name: `recorded`, `kernel:avx2`, ….
    pub name: String,
    /// Whether it holds; what was skipped does.
    pub ok: bool,
    /// Why it was not looked at, where it was not.
    pub skipped: Option<String>,
    /// The largest difference, in what `bound` is in; NaN where a value is none.
    pub worst: f64,
    /// The largest that is allowed; 0 where every bit must be the same, and then `worst` is how many numbers, rows of
    /// them or texts are not.
    pub bound: f64,
    /// Where the largest difference is; where it does not hold the first place at which it does not.
    pub at: Option<Address>,
}

impl Check {
    /// Nothing is known to differ yet.
    fn new(name: impl Into<String>, bound: f64) -> Self {
        Self { name: name.into(), ok: true, skipped: None, worst: 0.0, bound, at: None }
    }

    fn skipped(name: &str, reason: impl Into<String>) -> Self {
        Self { skipped: Some(reason.into()), ..Self::new(name, 0.0) }
    }

    /// Takes in a difference of `worst` at a place; what is no number is more than any bound.
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

    /// Takes in that `count` numbers at and after a place have other bits.
    fn differ(&mut self, count: usize, at: impl FnOnce() -> Address) {
        if count > 0 {
            let at = self.at.take().unwrap_or_else(at);
            (self.ok, self.worst, self.at) = (false, self.worst + count as f64, Some(at));
        }
    }
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Report {
    /// Every line, in the order of the table above.
    pub checks: Vec<Check>,
    /// Rows of the matrices that were computed again, and how many there are.
    pub rows: (usize, usize),
    /// How many tokens the passes read.
    pub tokens: Vec<usize>,
}

impl Report {
    /// Whether everything holds that was looked at.
    pub fn ok(&self) -> bool {
        self.checks.iter().all(|check| check.ok)
    }
}

/// For how many layers one counts in [`Progress`] that is computed again, with every kernel.
const AGAIN: usize = 10;

/// Told what is under way, and how many layers of [`layers`] are done.
pub type Progress<'a> = &'a (dyn Fn(&'static str, usize) + Sync);

/// How many layers all runs have together, for [`Progress`].
pub fn layers(layers: usize) -> usize {
    layers * ((1 + DECODES) * (2 + AGAIN) + 8)
}

/// How the tokens of a run are drawn: so that temperature, top-k and top-p all change something.
const SAMPLING: Sampling = Sampling { temperature: 0.8, top_k: 40, top_p: 0.95, seed: 1 };

/// Checks `model`.
///
/// # Errors
/// [`Error::Prompt`] where the ids cannot be run,
/// [`Error::Interrupted`] where the backend was asked to stop, and where
/// the backend fails. What does not hold is no error.
pub fn run<B: Backend>(model: &Model<B>, plan: &Plan<'_>, progress: Progress<'_>) -> Result<Report> {
    all(model, None::<&Model<B>>, plan, progress)
}

/// The same of a model on another device than the processor, which is held against `processor` too: the same model
/// there, in float32.
///
/// # Errors
/// As [`run`]'s.
pub fn run_beside<B: Backend, C: Backend>(
    model: &Model<B>,
    processor: &Model<C>,
    plan: &Plan<'_>,
    progress: Progress<'_>,
) -> Result<Report> {
    all(model, Some(processor), plan, progress)
}

fn all<B: Backend, C: Backend>(
    model: &Model<B>,
    processor: Option<&Model<C>>,
    plan: &Plan<'_>,
    progress: Progress<'_>,
) -> Result<Report> {
    room(model, plan.ids.len())?;
    let run = Runs { model, ids: &plan.ids, done: AtomicUsize::new(0), progress };
    let plain = run.plain()?;
    let found = frames::record(&run, &plan.sample)?;
    let recorded = recorded(&run, &plain, &found.logits);
    let threads = run.threads(&found.prints)?;
    let float32 = processor.map(|processor| float32::check(&run, processor)).transpose()?;
    let batch = alone::check(&run)?;
    let tokenizer = tokens::check(plan, model)?;
    let mut checks = vec![recorded, found.derived, threads];
    checks.extend(found.kernels);
    checks.push(found.float64);
    checks.extend(float32);
    checks.extend([batch, tokenizer]);
    let tokens = found.passes.iter().map(|dims| dims.tokens).collect();
    Ok(Report { checks, rows: found.rows, tokens })
}

/// Checks that what a pass over `tokens` tokens records of one layer can be held, and what is outside the layers.
///
/// # Errors
/// [`Error::Prompt`] where memory is not free for it.
fn room<B: Backend>(model: &Model<B>, tokens: usize) -> Result<()> {
    let (sizes, dims) = (Sizes { layers: 1, ..model.sizes() }, PassDims { pass: 0, start: 0, tokens });
    let bytes = |site: &Site| {
        let lengths = site.stage.axes().iter().map(|&axis| sizes.axis(axis, dims));
        lengths.fold(site.stage.value_bytes(), usize::saturating_mul)
    };
    // A stage is held twice while its rows come together.
    let all = Site::all(&sizes, dims).iter().map(bytes).fold(0, usize::saturating_add).saturating_mul(2);
    // Whatever device the model is on, they are held here.
    match cpu::free_memory() {
        Some(free) if free < all => Err(Error::prompt("there is not enough memory to check so many tokens")
            .expected(format!("room for {all} bytes: every stage of a layer is held, for {tokens} tokens"))
            .found(format!("{free} bytes"))
            .next("give a shorter prompt, or end other programs")),
        _ => Ok(()),
    }
}

/// The model, and how far its runs are.
struct Runs<'a, B: Backend> {
    model: &'a Model<B>,
    ids: &'a [u32],
    done: AtomicUsize,
    progress: Progress<'a>,
}

impl<B: Backend> Runs<'_, B> {
    /// How many decode passes the context has room for.
    fn decodes(&self) -> usize {
        DECODES.min(self.model.config.context.saturating_sub(self.ids.len()))
    }

    /// Says that one more layer is done.
    fn tick(&self, what: &'static str) {
        self.ticks(what, 1);
    }

    /// Says that something is done that takes as long as `count` layers.
    fn ticks(&self, what: &'static str, count: usize) {
        let done = self.done.fetch_add(count, Ordering::Relaxed) + count;
        (self.progress)(what, done);
    }

    /// Runs the passes, each watched by a probe of its own, made for it and the random number of its draw, and hands over
    /// the last logits of each.
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

    /// The last logits of each pass of a run that nobody watches.
    fn plain(&self) -> Result<Vec<Vec<u32>>> {
        let mut all = Vec::new();
        self.passes(
            |_, _| NoProbe,
            |NoProbe, logits| {
                all.push(logits);
                (0..self.model.config.layers).for_each(|_| self.tick("running unwatched"));
                Ok(())
            },
        )?;
        Ok(all)
    }

    /// That one thread computes what all of them do.
    fn threads(&self, all: &prints::Prints) -> Result<Check> {
        let threads = rayon::current_num_threads();
        // Where there is one, two are the others.
        let other = if threads == 1 { 2 } else { 1 };
        let Ok(pool) = ThreadPoolBuilder::new().num_threads(other).build() else {
            return Ok(Check::skipped("threads", "the system gives no other threads"));
        };
        let mut seen = prints::Prints::default();
        let ran = pool.install(|| {
            self.passes(
                |_, _| prints::Printing::new(|| self.tick("running on another number of threads")),
                |probe, _| {
                    seen.extend(probe.prints);
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

/// That logits are the same watched and unwatched.
fn recorded<B: Backend>(run: &Runs<'_, B>, plain: &[Vec<u32>], recorded: &[Vec<u32>]) -> Check {
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

/// The first ids of a seed, for a model without a prompt: spread over its vocabulary, the same on every machine.
pub fn seeded_ids(vocab: usize, tokens: usize, seed: u64) -> Vec<u32> {
    let mut random = sample::Random::new(seed);
    (0..tokens).map(|_| random.below(vocab) as u32).collect()
}
