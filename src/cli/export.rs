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
use self::manifest::Manifest;
use self::target::Target;
pub(super) use self::target::take_back_left;
use super::ExportArgs;
use super::input::Run;
use crate::error::{Error, Result};
use crate::stop;
use crate::trace::{PassDims, Select, Site};

pub(super) fn run(args: &ExportArgs) -> Result<()> {
    let target = Target::check(&args.out, args.force)?;
    let run = Run::open(&args.run)?;
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
    let mut files = Files::new(target.begin()?, Manifest::new(&run, &args.run), sizes, &select, bar);

    let mut session = run.session(wanted)?;
    let mut ids = run.ids.clone();
    for _ in 0..wanted {
        if ids.len() > session.room() && session.next_pass(1).pass > 0 {
            super::tell(format_args!("The model's context of {} tokens is full.", run.model.config.context));
            break;
        }
        let dims = session.next_pass(ids.len());
        files.begin(dims);
        let drawn = session.run(&ids, &mut files);
        stopped()?;
        let drawn = drawn?;
        files.check()?;
        files.manifest.pass(&run, dims, &ids, drawn);
        if run.eos.contains(&drawn) {
            break;
        }
        ids = vec![drawn];
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
