//! `llama-trace export`: every chosen stage of every chosen pass as a `.npy` file, and a manifest.
//!
//! Everything is written into a temporary folder first and moved to its place at the end, so a run that fails or
//! is interrupted leaves nothing behind.

mod files;
mod folder;
mod manifest;
mod target;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use self::files::Files;
use self::target::Target;
pub(super) use self::target::take_back_left;
use super::ExportArgs;
use super::device::{Command, Device};
use super::input::{Run, full};
use crate::error::{Error, Result};
use crate::generate::{Ended, Next};
use crate::stop;
use crate::trace::{PassDims, Select, Site};

impl Command for &ExportArgs {
    fn run<D: Device>(self) -> Result<()> {
        export::<D>(self)
    }
}

fn export<D: Device>(args: &ExportArgs) -> Result<()> {
    let target = Target::check(&args.out, args.force)?;
    let run = Run::<D>::open(&args.run)?;
    let wanted = args.run.tokens.unwrap_or(1);
    if wanted == 0 {
        return Err(Error::usage("there is nothing to export")
            .expected("-n 1 or more: the pass over the prompt draws the first token")
            .found("-n 0")
            .next("give another -n, or none"));
    }
    let sizes = run.model.sizes();
    let possible = wanted.min(run.room());
    let select = args.select.select(&run, wanted, false)?;
    target.check_free(|pass| {
        let dims = run.passes(possible).into_iter().nth(pass);
        let sites = dims.map(|dims| Site::all(&sizes, dims)).unwrap_or_default();
        sites.into_iter().filter(|&site| select.contains(site)).map(Site::file_name).collect()
    })?;
    let bar = progress(&run.passes(possible), &sizes, &select);
    let mut files = Files::new(target.begin()?, manifest::new(&run, &args.run), sizes, &select, bar);

    let mut session = run.session(wanted)?;
    while let Next::Pass(dims) = session.next() {
        let ids = session.waiting().to_vec();
        files.begin(dims);
        let drawn = session.pass(&mut files);
        stopped()?;
        let drawn = drawn?;
        files.check()?;
        let tokens = ids.iter().map(|&id| run.label(id)).collect();
        files.manifest.pass(dims, tokens, run.label(drawn));
    }
    if session.next() == Next::Ended(Ended::Full) {
        super::tell(full(&session));
    }
    if session.not_a_number() {
        super::tell(super::NOT_A_NUMBER);
    }
    files.finish(target)
}

/// The error of an export that was asked to stop.
fn stopped() -> Result<()> {
    match stop::process().asked() {
        true => Err(interrupted()),
        false => Ok(()),
    }
}

fn interrupted() -> Error {
    Error::interrupted("interrupted; nothing was written")
}

/// A bar over the files to write, shown once it took a second.
fn progress(passes: &[PassDims], sizes: &crate::trace::Sizes, select: &Select) -> ProgressBar {
    let chosen =
        |dims: &PassDims| Site::all(sizes, *dims).into_iter().filter(|&site| select.contains(site)).count();
    let total: usize = passes.iter().map(chosen).sum();
    let bar = ProgressBar::with_draw_target(Some(total as u64), ProgressDrawTarget::hidden());
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} stages {msg}") {
        bar.set_style(style);
    }
    bar
}
