//! `llama-trace diff`: the first stage in which a run differs from a reference.

mod beside;
mod both;
mod judged;
mod junit;
mod setting;
mod text;

use std::cell::OnceCell;
use std::io::Write;
use std::path::Path;

use clap::ValueEnum;

pub use self::judged::verdict;

use super::progress::Progress;
use super::{DiffArgs, DiffFormat, ModelArgs, PrecisionName, input, output, threads};
use llama_trace_core::config::Precision;
use llama_trace_core::error::{Error, Result, printable};
use llama_trace_core::trace::{Run, Site, Sizes, Stage, Step};
use llama_trace_judge::capture::config_of;
use llama_trace_judge::check::Sample;
use llama_trace_judge::diff::{self, About, Diagnosis, Doing, Report, Traced};
use llama_trace_judge::recorded::RecordedRun;
use llama_trace_judge::suggest;
use llama_trace_tui as tui;

/// Which rows of large matrices are computed again.
fn sample(args: &DiffArgs) -> Sample {
    if args.full { Sample::All } else { Sample::Seeded(1) }
}

/// Runs the command.
pub(super) fn run(args: &DiffArgs) -> Result<()> {
    let (Some(a), Some(b)) = (&args.a, &args.b) else {
        if args.suggest_map {
            return Err(Error::usage("a map needs a reference and a folder")
                .expected("A and B")
                .next("give A, the reference, and B, the folder"));
        }
        if args.set_a.is_empty() && args.set_b.is_empty() {
            let found =
                args.a.as_ref().map_or_else(|| "neither".to_owned(), |a| format!("A alone: {}", a.display()));
            return Err(Error::usage("two runs are needed for a comparison")
                .expected("A and B, or --a and --b. A and B are two recorded runs: each is a trace that `llama-trace record` wrote, or a folder that `llama-trace export` or a capture script wrote. --a and --b are for two settings that run now: --a precision=f32 --b precision=bf16")
                .found(found)
                .next("give both"));
        }
        return both::run(args);
    };
    if args.prompt.is_some() || args.ids.is_some() || args.tokens.is_some() {
        return Err(Error::usage("A and B are recorded runs, so they take no prompt")
            .expected("A and B, or --prompt with --a and --b")
            .next("leave --prompt, --ids and -n out"));
    }
    Recorded { args, a, b }.run()
}

/// A comparison of two recorded runs.
struct Recorded<'a> {
    args: &'a DiffArgs,
    a: &'a Path,
    b: &'a Path,
}

impl Recorded<'_> {
    fn run(self) -> Result<()> {
        let args = self.args;
        // Traces are read on these threads.
        threads::start(args.cpu.threads)?;
        if args.suggest_map {
            let mut a = RecordedRun::open(self.a)?;
            let sizes = self.sizes(a.about())?;
            let map = suggest::propose(&mut a, sizes, self.b)?;
            return output::end(write!(output::Lines::text(), "{map}").map_err(output::Failure::from));
        }
        if args.tui {
            require_terminal()?;
        }
        let (mut a, mut b) = (RecordedRun::open(self.a)?, RecordedRun::open(self.b)?);
        for one in [&a, &b] {
            // Such a trace has values only of tokens and masks, which prove nothing.
            if one.has_statistics_alone() {
                return Err(Error::usage("there is nothing to compare: the trace has only statistics")
                    .at(&one.about().name)
                    .expected("the values of some stage in both runs")
                    .found("the statistics that `record --keep stats` keeps")
                    .next("record it with --keep minimal, the default, or with --keep all"));
            }
        }
        RecordedRun::derive_only_if_different(&mut a, &mut b);
        let mut cpu = args.cpu.clone();
        let model = match args.model.model {
            None => None,
            Some(_) => {
                // `diff` computes with the weights as they are stored, whatever the precision of A is.
                let asked = check_precision(args, a.about())?;
                let precision = asked.or(Some(PrecisionName::F32));
                let args_of = ModelArgs { precision, ..args.model.clone() };
                let (model, device) = input::open(&args_of, &args.cpu)?.model?;
                // The viewer opens the model again, on the same device.
                cpu.device = device;
                Some(model)
            }
        };
        let mut report = Report::default();
        // The viewer shows only the first sequence of each run.
        let all = if args.tui { vec![(Run::ITSELF, 0)] } else { a.all() };
        let theirs = b.all();
        for (run, sequence) in all {
            if !theirs.contains(&(run, sequence)) {
                let site = Site { run, sequence, ..Site::once(0, Stage::Tokens) };
                report.absent.push(site);
                continue;
            }
            a.go_to(run, sequence)?;
            b.go_to(run, sequence)?;
            let bar = Bar::default();
            let shown = |doing| bar.show(doing);
            let found = match &model {
                None => diff::compare(&mut a, &mut b, &shown)?,
                Some(model) => diff::compare_with(model, &mut a, &mut b, sample(args), &shown)?,
            };
            bar.finish();
            report.join(found.of_sequence(run, sequence));
        }
        if let more @ 1.. = theirs.iter().filter(|one| !a.all().contains(one)).count() {
            let what = if more == 1 {
                "a sequence or a branch".into()
            } else {
                format!("{more} sequences and branches")
            };
            report.notes.push(format!("B has {what} that A does not have; nothing there was compared"));
        }
        if let Some(card) = a.about().card.as_ref().or(b.about().card.as_ref()) {
            report.notes.extend(unknown(&b.unknown_files(&card.sizes())));
        }
        if args.tui {
            return beside::show(&args.model, &cpu, [self.a, self.b], &report);
        }
        print(args.format, &report, [a.about(), b.about()])
    }

    /// The sizes of A's model: from A's card, `--model` or A's map.
    fn sizes(&self, a: &About) -> Result<Sizes> {
        if let Some(card) = &a.card {
            return Ok(card.sizes());
        }
        if self.args.model.model.is_some() {
            return Ok(Sizes::new(&input::config_quietly(&self.args.model)?, Precision::F32));
        }
        let wrong = |found: String| {
            Error::usage("the reference does not say which model it comes from")
                .at(&a.name)
                .expected("a trace, a folder that `llama-trace export` wrote, or a folder whose capture.toml describes the model")
                .found(found)
                .next("add --model")
        };
        let config = config_of(a, a.passes.last().map_or(0, |pass| pass.dims.keys())).map_err(wrong)?;
        config.check()?;
        Ok(Sizes::new(&config, Precision::F32))
    }
}

/// The precision that `--precision` gives, if A does not state its own; otherwise none.
///
/// # Errors
/// [`Error::Usage`] if A states another precision than `--precision`.
fn check_precision(args: &DiffArgs, a: &About) -> Result<Option<PrecisionName>> {
    let Some(of_a) = a.precision else { return Ok(args.model.precision) };
    let asked = args.model.precision.and_then(|asked| Some(asked.to_possible_value()?.get_name().to_owned()));
    match asked {
        Some(asked) if asked != of_a.name() => {
            Err(Error::usage("the reference did not run in the precision that --precision gives")
                .at(&a.name)
                .expected(format!("{}, the precision of A", of_a.name()))
                .found(format!("--precision {asked}"))
                .next("leave --precision out: each run states its own precision"))
        }
        _ => Ok(None),
    }
}

/// A note that lists the files that belong to no stage, if there are any.
fn unknown(names: &[String]) -> Option<String> {
    /// Maximum number of listed names.
    const TOLD: usize = 4;
    let told = |name: &String| {
        let stem = Path::new(name).file_stem().and_then(|stem| stem.to_str()).and_then(Step::from_name);
        match stem {
            Some(view @ Step::View(_)) => {
                format!("{} (a view: write {}, which has the same values)", printable(name), view.stage())
            }
            _ => printable(name).to_string(),
        }
    };
    let told: Vec<_> = names.iter().take(TOLD).map(told).collect();
    let more = if names.len() > TOLD { ", and others" } else { "" };
    let files = match names.len() {
        0 => return None,
        1 => "a file of B belongs to no stage of the model and was not read".to_owned(),
        count => format!("{count} files of B belong to no stage of the model and were not read"),
    };
    Some(format!("{files}: {}{more}", told.join(", ")))
}

/// A progress bar over the stages. The number of stages is known after the first one.
#[derive(Default)]
struct Bar(OnceCell<Progress>);

impl Bar {
    fn show(&self, doing: Doing) {
        match doing {
            Doing::Stages { done, of } => {
                let bar = self.0.get_or_init(|| Progress::new(of, "stages"));
                bar.say(String::new());
                bar.set(done);
            }
            Doing::Mistakes { tried, of } => {
                self.0.get().into_iter().for_each(|bar| bar.say(format!("known mistake {tried}/{of}")));
            }
        }
    }

    fn finish(&self) {
        self.0.get().into_iter().for_each(Progress::finish);
    }
}

/// Prints the report, and returns its verdict as the command's result.
fn print(format: DiffFormat, report: &Report, [a, b]: [&About; 2]) -> Result<()> {
    let printed = match format {
        DiffFormat::Text => text::print(report, a, b),
        DiffFormat::Json => writeln!(output::Lines::json(), "{}", report.json()),
        DiffFormat::Junit => junit::print(report),
    };
    output::end(printed.map_err(output::Failure::from))?;
    let Some(first) = &report.first else { return unread(report, [a, b]) };
    let [ours, theirs] = first.told();
    let likely: Vec<_> = report.likeliest().map(Diagnosis::told).collect();
    let found = match likely.is_empty() {
        true => theirs,
        false => {
            let what = if report.written_alone { "B's file" } else { "B" };
            format!("{theirs}; {what} looks like {}", likely.join(" or "))
        }
    };
    let what = format!("{} differs from {}", b.name, a.name);
    let error = Error::failed(what).at(&first.address).expected(ours).found(found);
    Err(match mapped(report, b) {
        Some(next) => error.next(next),
        None => error,
    })
}

/// Advice for a stage of another shape: the key in capture.toml that may make the stage readable.
fn mapped(report: &Report, b: &About) -> Option<String> {
    let (one, key) = report.misshapen.iter().find_map(|one| Some((one, one.key?)))?;
    b.is_foreign().then(|| {
        format!(
            "`{key}` in capture.toml may convert the file of {}: `llama-trace diff A B --suggest-map` proposes a map",
            one.site.stage
        )
    })
}

/// The error for stages that could not be compared, if all others are the same.
fn unread(report: &Report, [a, b]: [&About; 2]) -> Result<()> {
    if let Some(&site) = report.absent.first() {
        let what = diff::whole(site);
        return Err(Error::model(format!("{} does not have a {what} of {}", b.name, a.name))
            .at(site)
            .expected("each sequence, branch and pass of A also in B")
            .found(format!("sequences, branches or passes that B does not have: {}", report.absent.len()))
            .next(match what {
                "pass" => {
                    "make B again with as many tokens as A, or make A again with no more tokens than B (-n)"
                }
                _ => "make B again with the prompts and branches of A, or make A again with only those of B",
            }));
    }
    let (Some(stages), Some(first)) = (report.damaged_stages(), report.damaged().next()) else {
        let Some(&site) = report.empty.first() else { return Ok(()) };
        return Err(Error::model(format!("{} and {} have no stage in common in a pass", a.name, b.name))
            .at(format!("p{}", site.pass))
            .expected("in each pass of A, at least one stage that B has too")
            .found(format!("passes in which no stage is compared: {}", report.empty.len()))
            .next("write a stage of this pass in B, or export only the passes of B in A (--pass)"));
    };
    let what = format!("{stages} of {} and {} cannot be read", a.name, b.name);
    Err(Error::model(what)
        .at(first.site)
        .expected("values that can be compared")
        .found(first.why.as_deref().unwrap_or("none"))
        .next("write the damaged or lost files again; to leave stages out of an export, choose the others with --stage; beside a capture.toml, write no file for them"))
}

/// Fails if `--tui` has no terminal.
fn require_terminal() -> Result<()> {
    tui::require_terminal()
        .map_err(|error| error.next("leave --tui out: the printed report says what differs"))
}
