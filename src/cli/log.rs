//! `llama-trace log`: the forward pass in order, one line for each step.

mod traced;

use std::collections::HashMap;
use std::io::{ErrorKind, Write};
use std::ops::Range;
use std::time::Duration;

use serde_json::{Value, json};

use super::input::{Run, say_full};
use super::output;
use super::{LogArgs, LogFormat};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::frame::Summing;
use llama_trace_core::trace::log::{Line, Operand, Took, lines};
use llama_trace_core::trace::{
    Clock, ModelCard, NoProbe, PassDims, Probe, Select, Site, Stats, Step, TokenLabel, Values,
};
use llama_trace_engine::generate::{Batch, Drawn, Ended};

/// Number of values of each output that `--values` shows.
const FIRST_VALUES: usize = 6;

/// Runs the command.
pub(super) fn run(args: &LogArgs) -> Result<()> {
    match &args.trace.trace {
        Some(trace) => traced::log(args, trace),
        None => log(args),
    }
}

fn log(args: &LogArgs) -> Result<()> {
    let wanted = args.run.tokens.unwrap_or(1);
    let run = Run::open(&args.run)?.edited(&args.run, wanted)?;
    let mut batch = run.batch(wanted)?;
    let select = args.select.select(&run, &batch, wanted, true)?;
    let (mut out, card) = (Printed::new(args.format), run.model.card());
    let mut full = Vec::new();
    while batch.ready()? {
        let reads: Vec<_> = batch.reads().map(|read| (read.sequence, read.dims, read.ids.to_vec())).collect();
        let values = args.values.then_some(&select);
        let (drawn, times, values) = run_pass(&run, &mut batch, values)?;
        for ((sequence, dims, ids), drawn) in reads.into_iter().zip(drawn) {
            full.extend((drawn.ended == Some(Ended::Full)).then_some(sequence));
            let chosen = Chosen {
                card: &card,
                label: &|id| run.label(id),
                several: run.several(),
                sequence,
                dims,
                select: &select,
                times: Some(&times),
                has: &|_| Has::Nothing,
                summaries: &values,
            };
            if !out.print(&chosen, &ids, Some(drawn.id))? {
                return Ok(());
            }
        }
    }
    say_full(&run, &full);
    run.say_edits()?;
    if batch.not_a_number() {
        super::tell(super::NOT_A_NUMBER);
    }
    Ok(())
}

/// The log's output.
struct Printed {
    format: LogFormat,
    out: output::Lines,
}

impl Printed {
    fn new(format: LogFormat) -> Self {
        let out = match format {
            LogFormat::Text => output::Lines::text(),
            LogFormat::Json => output::Lines::json(),
        };
        Self { format, out }
    }

    /// Prints the chosen lines of a pass; false if the reader closed the pipe.
    fn print(&mut self, chosen: &Chosen<'_>, ids: &[u32], drawn: Option<u32>) -> Result<bool> {
        let printed = match self.format {
            _ if !chosen.select.has_pass(chosen.dims.pass) => Ok(()),
            LogFormat::Text => chosen.print_text(&mut self.out, ids, drawn),
            LogFormat::Json => chosen.print_json(&mut self.out),
        };
        match printed {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(Error::output("the log cannot be written").at("standard output").found(error)),
            Ok(()) => Ok(true),
        }
    }
}

/// The values that `--values` shows of one output.
#[derive(Default)]
struct Summary {
    sum: Summing,
    /// Recorded statistics, if the trace does not have the values.
    kept: Option<Stats>,
    first: Vec<f64>,
    /// Whether the values are integers.
    whole: bool,
}

impl Summary {
    fn stats(&self) -> Stats {
        self.kept.unwrap_or_else(|| self.sum.stats())
    }

    /// Adds `values`. The first of them has index `at`.
    fn add(&mut self, at: usize, values: Values<'_>) {
        self.sum.add(values.numbers());
        self.whole = !matches!(values, Values::F32(_));
        let first = values.numbers().take(FIRST_VALUES.saturating_sub(at));
        self.first.resize(self.first.len().max(at.min(FIRST_VALUES) + first.len()), 0.0);
        for (shown, value) in self.first.iter_mut().skip(at).zip(first) {
            *shown = value;
        }
    }
}

/// Which data a recorded run has for a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Has {
    /// The stage's values.
    Values,
    /// Values from which the stage's values can be derived.
    Follows,
    /// Only statistics.
    Statistics,
    Nothing,
    /// Values that do not match their digest.
    Damaged,
    /// Values from which the stage's values can be derived. Some of them are damaged.
    FollowsFromDamaged,
}

type Times = HashMap<Site, Duration>;
type Summaries = HashMap<Site, Summary>;

/// Summarises each output as its rows come, in any order, without holding the values.
struct Summarizing<'a> {
    select: &'a Select,
    summaries: Summaries,
}

impl Probe for Summarizing<'_> {
    fn enabled(&self) -> bool {
        true
    }

    fn wants(&self, site: Site) -> bool {
        self.select.contains(site)
    }

    fn record(&mut self, site: Site, rows: Range<usize>, values: Values<'_>) {
        let width = values.len() / rows.len().max(1);
        self.summaries.entry(site).or_default().add(rows.start * width, values);
    }
}

/// Runs a pass. Returns the sampled tokens, the time of each operation for all sequences, and summaries of the outputs
/// that `values` chooses.
fn run_pass(
    run: &Run,
    batch: &mut Batch<'_>,
    values: Option<&Select>,
) -> Result<(Vec<Drawn>, Times, Summaries)> {
    let backend = &run.model.backend;
    let Some(select) = values else {
        let mut clock = Clock::new(NoProbe, || backend.mark());
        let drawn = batch.pass(&mut clock)?;
        let times = clock.into_times(|from, to| backend.between(from, to));
        return Ok((drawn, of_all(times), HashMap::new()));
    };
    let mut summarizing = Summarizing { select, summaries: HashMap::new() };
    let mut clock = Clock::new(&mut summarizing, || backend.mark());
    let drawn = batch.pass(&mut clock)?;
    let times = clock.into_times(|from, to| backend.between(from, to));
    Ok((drawn, of_all(times), summarizing.summaries))
}

/// The times summed over the sequences, because one operation computes the rows of all sequences.
fn of_all(times: Times) -> Times {
    let mut sums = Times::new();
    for (site, time) in times {
        *sums.entry(Site { sequence: 0, ..site }).or_default() += time;
    }
    sums
}

/// The chosen lines of a pass.
struct Chosen<'a> {
    card: &'a ModelCard,
    label: &'a dyn Fn(u32) -> TokenLabel,
    /// Whether there are other sequences.
    several: bool,
    sequence: usize,
    dims: PassDims,
    select: &'a Select,
    /// The times of the operations; none for a recorded run.
    times: Option<&'a Times>,
    /// Returns which data a recorded run has for a site.
    has: &'a dyn Fn(Site) -> Has,
    summaries: &'a Summaries,
}

impl Chosen<'_> {
    fn lines(&self) -> impl Iterator<Item = Line> {
        let lines = lines(self.card, self.dims, self.times);
        lines.into_iter().filter(|line| self.select.has_step(line.pass, line.layer, line.step))
    }

    /// The summary of the line's output.
    fn summary(&self, line: &Line) -> Option<&Summary> {
        self.summaries.get(&Site { sequence: self.sequence, ..line.site() })
    }

    /// The source of a step's values, in words.
    fn kind(&self, line: &Line) -> &'static str {
        let derived = match line.took {
            Took::Given => return "given",
            Took::Time(_) => return "run",
            Took::View => return "view",
            Took::Derived if self.times.is_some() => return "derived",
            Took::Derived => true,
            Took::Recorded => false,
        };
        match ((self.has)(Site { sequence: self.sequence, ..line.site() }), self.summary(line)) {
            (Has::Values, _) => "recorded",
            (Has::Damaged, _) => "damaged",
            (Has::FollowsFromDamaged, _) => "depends on a damaged stage",
            // Values that cannot be derived and still have a summary were computed with a model.
            (Has::Statistics | Has::Nothing, Some(Summary { kept: None, .. })) => "computed again",
            (Has::Follows, _) if derived => "derived",
            (Has::Follows, Some(_)) => "computed again",
            (Has::Statistics, _) => "statistics recorded",
            (Has::Follows | Has::Nothing, _) => "not kept",
        }
    }

    /// The time of the step, with `for_all` after it if there are several sequences; without a time, the source of its
    /// values.
    fn took(&self, line: &Line, for_all: &str) -> String {
        match line.took {
            Took::Time(time) => format!("{:.1} µs{for_all}", time.as_secs_f64() * 1e6),
            _ => self.kind(line).to_owned(),
        }
    }

    fn print_text(&self, out: &mut impl Write, ids: &[u32], drawn: Option<u32>) -> std::io::Result<()> {
        let Self { label, sequence, dims, .. } = self;
        let kind = dims.kind();
        let (of, prefix, for_all) = match self.several {
            true => (format!(" of s{sequence}"), format!("s{sequence}/"), " for all"),
            false => Default::default(),
        };
        let tokens: Vec<_> = ids.iter().map(|&id| format!("{:?}", label(id).text)).collect();
        writeln!(
            out,
            "pass {}{of} ({kind}), {} {} after {} cached: {}",
            dims.pass,
            dims.tokens,
            if dims.tokens == 1 { "token" } else { "tokens" },
            dims.start,
            tokens.join(" ")
        )?;
        let last = self.card.sizes().layers - 1;
        let place = |layer: usize| format!("layer {layer} of 0-{last}");
        let width = place(last).len();
        for line in self.lines() {
            let place = line.layer.map_or_else(|| "-".into(), place);
            let inputs: Vec<_> = line.inputs.iter().map(describe).collect();
            let inputs = if inputs.is_empty() { "-".into() } else { inputs.join(", ") };
            write!(
                out,
                "[{prefix}p{}] {place:<width$} {:<12} {inputs} -> {}  [{}]",
                line.pass,
                line.step.op(),
                describe(&line.output),
                self.took(&line, for_all),
            )?;
            if let (Step::Stage(_), Some(summary)) = (line.step, self.summary(&line)) {
                write!(out, "  {}", describe_values(summary, line.output.shape.iter().product()))?;
            }
            writeln!(out)?;
        }
        // A captured run may not have its last sampled token.
        let Some(drawn) = drawn else { return Ok(()) };
        writeln!(out, "pass {}{of} sampled {} {:?}", dims.pass, drawn, label(drawn).text)
    }

    fn print_json(&self, out: &mut impl Write) -> std::io::Result<()> {
        for line in self.lines() {
            let mut object = object(&line, self.kind(&line), self.summary(&line));
            if self.several {
                object["sequence"] = json!(self.sequence);
            }
            serde_json::to_writer(&mut *out, &object)?;
            writeln!(out)?;
        }
        Ok(())
    }
}

fn describe(operand: &Operand) -> String {
    let axes: Vec<_> = operand
        .axes
        .iter()
        .zip(&operand.shape)
        .map(|(axis, size)| format!("{}={size}", axis.symbol()))
        .collect();
    let int8 = operand.group.map_or(String::new(), |group| format!("; int8, g={group}"));
    format!("{} ({}{int8})", operand.name, axes.join(", "))
}

fn describe_values(summary: &Summary, count: usize) -> String {
    let Stats { min, max, mean, neg_inf, pos_inf, nan, .. } = summary.stats();
    let number = |value: f64| if summary.whole { format!("{value}") } else { format!("{value:.4}") };
    let mut text = format!("min {} max {} mean {mean:.4}", number(min), number(max));
    for (what, count) in [("-inf", neg_inf), ("+inf", pos_inf), ("NaN", nan)] {
        if count > 0 {
            text += &format!(" {what}×{count}");
        }
    }
    if summary.first.is_empty() {
        return text;
    }
    let first: Vec<_> = summary.first.iter().map(|&value| number(value)).collect();
    let more = if count > summary.first.len() { " …" } else { "" };
    format!("{text}  [{}{more}]", first.join(" "))
}

fn object(line: &Line, kind: &str, summary: Option<&Summary>) -> Value {
    let operand = |operand: &Operand| {
        let axes: Vec<_> = operand.axes.iter().map(|axis| axis.name()).collect();
        let mut object = json!({ "name": operand.name, "axes": axes, "shape": operand.shape });
        if let Some(group) = operand.group {
            object["int8_group"] = json!(group);
        }
        object
    };
    let micros = match line.took {
        Took::Time(time) => Some(time.as_secs_f64() * 1e6),
        _ => None,
    };
    let mut object = json!({
        "pass": line.pass,
        "layer": line.layer,
        "step": line.step.name(),
        "op": line.step.op(),
        "inputs": line.inputs.iter().map(operand).collect::<Vec<_>>(),
        "output": operand(&line.output),
        "kind": kind,
        "time_us": micros,
    });
    if let (Step::Stage(_), Some(summary)) = (line.step, summary) {
        let (stats, Summary { first, whole, .. }) = (summary.stats(), summary);
        let number =
            |value: f64| if *whole { json!(value as i64) } else { llama_trace_judge::diff::number(value) };
        let first: Vec<_> = first.iter().map(|&value| number(value)).collect();
        // JSON has no number for NaN and infinities, so they are written as strings.
        object["values"] = json!({
            "min": number(stats.min), "max": number(stats.max), "mean": stats.mean, "std": stats.std,
            "neg_inf": stats.neg_inf, "pos_inf": stats.pos_inf, "nan": stats.nan, "first": first,
        });
    }
    object
}
