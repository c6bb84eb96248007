//! `llama-trace record`: writes a run to one file.

use std::path::Path;

use super::edited;
use super::export::drawing;
use super::input::{Run, say_full};
use super::memory::written;
use super::output;
use super::progress::Progress;
use super::{KeepName, RecordArgs, tell};
use llama_trace_core::edit::Edit;
use llama_trace_core::error::{Error, Result, printable};
use llama_trace_core::stop;
use llama_trace_core::trace::{NoProbe, PassDims, Stage};
use llama_trace_engine::backend::Operation;
use llama_trace_engine::generate::{Ended, Next, Session};
use llama_trace_runs::record::about::Fingerprint;
use llama_trace_runs::record::plan::{Texts, stages};
use llama_trace_runs::record::writer::TextsOf;
use llama_trace_runs::record::{About, Branch, Keep, Plan, Target, Writer};
use llama_trace_runs::replay::derive::follows;

/// Runs the command.
pub(super) fn run(args: &RecordArgs) -> Result<()> {
    output::check_path(&args.out)?;
    let target = Target::check(&args.out, args.force)?;
    let wanted = args.run.tokens.unwrap_or(1);
    let run = edited::run(&args.run, wanted)?;
    if wanted == 0 {
        return Err(Error::usage("there is nothing to record")
            .expected("-n 1 or more: the pass over the prompt samples the first token")
            .found("-n 0")
            .next("give another -n, or leave it out"));
    }
    Branch::check(&args.branch, run.prompts.len())?;
    let mut batch = run.batch(wanted)?;
    let mut planned: Vec<Vec<PassDims>> = Vec::new();
    for dims in run.passes(wanted) {
        if dims.pass == 0 {
            planned.push(Vec::new());
        }
        planned.iter_mut().last().into_iter().for_each(|passes| passes.push(dims));
    }
    for branch in &args.branch {
        let own = passes_of(&run, branch, &planned[branch.sequence])?;
        planned.push(own);
    }
    let about = about(&run, args)?;
    let texts = texts(&run);
    let sizes = Texts {
        labels: texts.labels.len(),
        label_bytes: texts.labels.iter().map(String::len).sum(),
        prompt_bytes: texts.prompts.iter().flatten().map(String::len).sum(),
    };
    let plan = Plan::of(&about, &planned, &args.branch, sizes)?;
    say_left_out(args, &plan);
    let bar = Progress::new(planned.iter().map(Vec::len).sum(), "passes");
    let mut writer = Writer::begin(&target, about, plan, texts)?;

    let (mut full, mut drawn_by) = (Vec::new(), vec![Vec::new(); run.prompts.len()]);
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
        drawn.iter().for_each(|drawn| drawn_by[drawn.sequence].push(drawn.id));
    }
    let mut not_a_number = batch.not_a_number();
    // Only the passes above use the batch's caches, so the caches are freed here.
    drop(batch);
    for (number, branch) in args.branch.iter().enumerate() {
        let of = usize::from(branch.of.0).checked_sub(1).map_or(branch.sequence, |of| run.prompts.len() + of);
        let mut tokens: Vec<u32> = drawn_by[of].get(..branch.pass).unwrap_or(&drawn_by[of]).to_vec();
        if drawn_by[of].len() <= branch.pass {
            return Err(no_pass(branch, number, drawn_by[of].len(), "the text ended earlier"));
        }
        tokens.push(branch.token);
        let course = run.prompts.len() + number;
        let mut recording = Recording { writer: &mut writer, bar: &bar, course, wanted };
        not_a_number |= recording.branch(&run, branch, &mut tokens)?;
        drawn_by.push(tokens);
    }
    bar.finish();
    say_full(&run, &full);
    run.say_edits()?;
    if not_a_number {
        tell(super::NOT_A_NUMBER);
    }
    let bytes = writer.finish(&target)?;
    tell(format_args!("wrote {} to {}", size(bytes), name(&args.out)));
    Ok(())
}

/// The passes of a branch after its branching point. `of` are the passes of the run.
fn passes_of(run: &Run, branch: &Branch, of: &[PassDims]) -> Result<Vec<PassDims>> {
    let vocab = run.model.config.vocab;
    if branch.token as usize >= vocab {
        return Err(Error::usage("a branch continues with a token that the model does not have")
            .at("--branch")
            .expected(format!("ids from 0 to {}", vocab - 1))
            .found(branch.token)
            .next("`llama-trace tokenize` shows the ids of a text"));
    }
    if run.eos.contains(&branch.token) {
        return Err(Error::usage("a branch continues with a token that ends the text")
            .at("--branch")
            .found(branch.token)
            .next("choose another token"));
    }
    match of.get(branch.pass + 1..) {
        Some(own @ [_, ..]) => Ok(own.to_vec()),
        _ => Err(Error::usage(format!("a branch after pass {} has no pass of its own", branch.pass))
            .at("--branch")
            .expected(format!("-n {} or more, and room in the context", branch.pass + 2))
            .found(format!("passes 0 to {}", of.len() - 1))
            .next("generate more tokens, or let the branch start earlier")),
    }
}

fn no_pass(branch: &Branch, number: usize, passes: usize, why: &str) -> Error {
    Error::usage(format!("r{} has no pass {} to branch from: {why}", number + 1, branch.pass))
        .at("--branch")
        .found(format!("{passes} passes"))
        .next("let the branch start earlier; nothing was written")
}

/// The state while a branch is recorded.
struct Recording<'a> {
    writer: &'a mut Writer,
    bar: &'a Progress,
    /// The branch's number.
    course: usize,
    /// Number of sampled tokens, including those before the branching point.
    wanted: usize,
}

impl Recording<'_> {
    /// Runs the passes that a branch shares with the run, without recording them, and records the branch's own passes.
    /// `tokens` follow the prompt; the tokens sampled after them are appended. Returns whether logits had NaN.
    fn branch(&mut self, run: &Run, branch: &Branch, tokens: &mut Vec<u32>) -> Result<bool> {
        let prompt = &run.prompts[branch.sequence].ids;
        let sampler = run.sampler.after(branch.sequence as u64);
        let room = run.context.unwrap_or(prompt.len().saturating_add(self.wanted));
        let mut session = Session::with_capacity(&run.model, sampler, room)?;
        session.begin(prompt.clone(), &run.eos, self.wanted)?;
        session.sequence.number = self.course;
        session.sequence.force(tokens.clone());
        while let Next::Pass(dims) = session.next() {
            if dims.pass <= branch.pass {
                session.pass(&mut NoProbe)?;
                continue;
            }
            self.writer.next([(self.course, dims)].into_iter());
            let drawn = session.pass(self.writer);
            if stop::process().asked() {
                return Err(Error::interrupted("interrupted; nothing was written"));
            }
            tokens.push(drawn?);
            self.writer.check()?;
            self.bar.add(1);
        }
        Ok(session.not_a_number())
    }
}

/// The description that is stored in the trace.
fn about(run: &Run, args: &RecordArgs) -> Result<About> {
    let (model, keep) = (&run.model, args.keep.keep());
    let card = model.card();
    let derivable = |stage| follows(stage) && !Edit::stop_derivation(&card, stage);
    let stages = stages(&card.sizes(), run.sampler.sampling().filters(), keep, derivable);
    let operations =
        [Operation::Prepare, Operation::Attention, Operation::Silu, Operation::Mul, Operation::Add];
    let llama_trace_engine::model::Fingerprint { config, weights } = model.fingerprint()?;
    Ok(About {
        program: format!("llama-trace {}", env!("CARGO_PKG_VERSION")),
        cache: model.backend.cache_dtype().name().to_owned(),
        sampling: drawing(&args.run),
        sequences: run.prompts.len(),
        keep,
        budget: args.budget.map(|bytes| bytes as u64),
        stages: stages.iter().map(|stage| Stage::name(*stage).to_owned()).collect(),
        exact: operations.into_iter().all(|operation| model.backend.bit_exact(operation)),
        fingerprint: Fingerprint { config, weights },
        card,
    })
}

/// The texts stored in the file.
fn texts(run: &Run) -> TextsOf {
    let vocab = run.tokenizer.as_ref().map_or(0, |_| run.model.config.vocab);
    TextsOf {
        labels: (0..vocab as u32).map(|id| run.label(id).text).collect(),
        prompts: run.prompts.iter().map(|prompt| prompt.text.clone()).collect(),
    }
}

/// Reports, before the run, which stages are left out because of the budget.
fn say_left_out(args: &RecordArgs, plan: &Plan) {
    let left_out = plan.left_out();
    if args.keep == KeepName::Stats || left_out.is_empty() {
        return;
    }
    let budget = args.budget.map(written).unwrap_or_default();
    tell(format_args!("within {budget} there is no room for the values of {}", left_out.join("; ")));
}

/// A number of bytes in a suitable unit.
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
