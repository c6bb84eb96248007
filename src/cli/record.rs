//! `llama-trace record`: a run in one file.

use std::path::Path;

use super::device::{Command, Device};
use super::export::drawing;
use super::input::{Run, say_full};
use super::memory::written;
use super::progress::Progress;
use super::{KeepName, RecordArgs, tell};
use crate::backend::Operation;
use crate::error::{Error, Result, printable};
use crate::generate::Ended;
use crate::record::about::Fingerprint;
use crate::record::plan::{Texts, stages};
use crate::record::writer::TextsOf;
use crate::record::{About, Keep, Plan, Target, Writer};
use crate::replay::derive::follows;
use crate::stop;
use crate::trace::{PassDims, Stage};

impl Command for &RecordArgs {
    fn run<D: Device>(self) -> Result<()> {
        record::<D>(self)
    }
}

fn record<D: Device>(args: &RecordArgs) -> Result<()> {
    let target = Target::check(&args.output, args.force)?;
    let run = Run::<D>::open(&args.run)?;
    let wanted = args.run.tokens.unwrap_or(1);
    if wanted == 0 {
        return Err(Error::usage("there is nothing to record")
            .expected("-n 1 or more: the pass over the prompt draws the first token")
            .found("-n 0")
            .next("give another -n, or none"));
    }
    let mut batch = run.batch(wanted)?;
    let mut planned: Vec<Vec<PassDims>> = Vec::new();
    for dims in run.passes(wanted) {
        if dims.pass == 0 {
            planned.push(Vec::new());
        }
        planned.iter_mut().last().into_iter().for_each(|passes| passes.push(dims));
    }
    let about = about(&run, args)?;
    let texts = texts(&run);
    let sizes = Texts {
        labels: texts.labels.len(),
        label_bytes: texts.labels.iter().map(String::len).sum(),
        prompt_bytes: texts.prompts.iter().flatten().map(String::len).sum(),
    };
    let plan = Plan::of(&about, &planned, sizes)?;
    say_left_out(args, &plan);
    let bar = Progress::new(planned.iter().map(Vec::len).sum(), "passes");
    let mut writer = Writer::begin(&target, about, plan, texts)?;

    let mut full = Vec::new();
    while batch.ready()? {
        writer.next(batch.reads().map(|read| (read.sequence, read.dims)));
        let drawn = batch.pass(&mut writer);
        if stop::process().asked() {
            return Err(Error::interrupted("interrupted; nothing was written"));
        }
        let drawn = drawn?;
        writer.check()?;
        bar.add(drawn.len());
        let is_full = drawn.iter().filter(|drawn| drawn.ended == Some(Ended::Full));
        full.extend(is_full.map(|drawn| drawn.sequence));
    }
    bar.finish();
    say_full(&run, &full);
    if batch.not_a_number() {
        tell(super::NOT_A_NUMBER);
    }
    let bytes = writer.finish(&target)?;
    tell(format_args!("wrote {} to {}", size(bytes), name(&args.output)));
    Ok(())
}

/// What the trace says about itself.
fn about<D: Device>(run: &Run<D>, args: &RecordArgs) -> Result<About> {
    let (model, keep) = (&run.model, args.keep.keep());
    let card = model.card();
    let stages = stages(&card.sizes(), keep, follows);
    let operations =
        [Operation::Prepare, Operation::Attention, Operation::Silu, Operation::Mul, Operation::Add];
    let crate::model::Fingerprint { config, weights } = model.fingerprint()?;
    Ok(About {
        program: format!("llama-trace {}", env!("CARGO_PKG_VERSION")),
        cache: model.backend.cache_dtype().name().to_owned(),
        sampling: drawing(&args.run),
        sequences: run.prompts.len(),
        keep,
        budget: args.budget.map(|bytes| bytes as u64),
        stages: stages.iter().map(|stage| Stage::name(*stage).to_owned()).collect(),
        exact: operations.into_iter().all(|operation| model.backend.keeps_order(operation)),
        fingerprint: Fingerprint { config, weights },
        card,
    })
}

/// The texts that go into the file.
fn texts<D: Device>(run: &Run<D>) -> TextsOf {
    let vocab = run.tokenizer.as_ref().map_or(0, |_| run.model.config.vocab);
    TextsOf {
        labels: (0..vocab as u32).map(|id| run.label(id).text).collect(),
        prompts: run.prompts.iter().map(|prompt| prompt.text.clone()).collect(),
    }
}

/// Says what the budget leaves out, before anything runs.
fn say_left_out(args: &RecordArgs, plan: &Plan) {
    let left_out = plan.left_out();
    if args.keep == KeepName::Stats || left_out.is_empty() {
        return;
    }
    let budget = args.budget.map(written).unwrap_or_default();
    tell(format_args!("within {budget} there is no room for the values of {}", left_out.join("; ")));
}

/// Bytes in a unit that suits them.
fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{bytes} bytes"),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

fn name(path: &Path) -> String {
    printable(&path.display().to_string()).into_owned()
}

impl KeepName {
    fn keep(self) -> Keep {
        match self {
            Self::All => Keep::All,
            Self::Minimal => Keep::Minimal,
            Self::Stats => Keep::Stats,
        }
    }
}
