//! `llama-trace diff`: the first stage in which a run differs from a reference.

mod both;
mod capture;
mod folder;
mod junit;
mod npy;
mod setting;
mod text;

use std::cell::OnceCell;
use std::io::Write;
use std::path::Path;

use self::both::Both;
use self::folder::Folder;
use super::device::{self, Command, Device};
use super::progress::Progress;
use super::{DiffArgs, DiffFormat, ModelArgs, PrecisionName, input, output};
use crate::check::Sample;
use crate::diff::{self, About, Report, Traced};
use crate::error::{Error, Result};

/// Which rows of large matrices are computed again.
const SAMPLE: Sample = Sample::Seeded(1);

/// Runs it.
pub(super) fn run(args: &DiffArgs) -> Result<()> {
    let (Some(a), Some(b)) = (&args.a, &args.b) else { return device::run(Both { args }) };
    if args.prompt.is_some() || args.ids.is_some() || args.tokens.is_some() {
        return Err(Error::usage("folders hold what was run already")
            .expected("A and B, or --prompt with --a and --b")
            .next("leave --prompt, --ids and -n out"));
    }
    if args.model.model.is_some() {
        return device::run(WithModel { args, a, b });
    }
    let (mut a, mut b) = (Folder::open(a)?, Folder::open(b)?);
    let bar = Bar::default();
    let report = diff::compare(&mut a, &mut b, &|done, of| bar.show(done, of))?;
    bar.finish();
    print(args.format, &report, [a.about(), b.about()])
}

/// Two folders, and the model that the first came from.
struct WithModel<'a> {
    args: &'a DiffArgs,
    a: &'a Path,
    b: &'a Path,
}

impl Command for WithModel<'_> {
    fn run<D: Device>(self) -> Result<()> {
        let Self { args, a, b } = self;
        let (mut a, mut b) = (Folder::open(a)?, Folder::open(b)?);
        // The rules are computed with the weights as they are stored.
        let precision = args.model.precision.or(Some(PrecisionName::F32));
        let opened = input::open::<D>(&ModelArgs { precision, ..args.model.clone() }, &args.cpu)?;
        let model = opened.model?;
        let bar = Bar::default();
        let report = diff::compare_with(&model, &mut a, &mut b, SAMPLE, &|done, of| bar.show(done, of))?;
        bar.finish();
        print(args.format, &report, [a.about(), b.about()])
    }
}

/// A bar over the stages, whose number is known when the first is done.
#[derive(Default)]
struct Bar(OnceCell<Progress>);

impl Bar {
    fn show(&self, done: usize, of: usize) {
        self.0.get_or_init(|| Progress::new(of, "stages")).set(done);
    }

    fn finish(&self) {
        self.0.get().into_iter().for_each(Progress::finish);
    }
}

/// Prints what was found, and ends as it deserves.
fn print(format: DiffFormat, report: &Report, [a, b]: [&About; 2]) -> Result<()> {
    let printed = match format {
        DiffFormat::Text => text::print(report, a, b),
        DiffFormat::Json => writeln!(output::Lines::json(), "{}", report.json()),
        DiffFormat::Junit => junit::print(report),
    };
    output::end(printed.map_err(output::Failure::from))?;
    let Some(first) = &report.first else { return Ok(()) };
    let found = match report.diagnosis.first() {
        Some(best) => format!("{}; it looks like {}", first.theirs, best.name),
        None => first.theirs.to_string(),
    };
    let what = format!("{} differs from {}", b.name, a.name);
    Err(Error::failed(what).at(&first.address).expected(&first.ours).found(found))
}
