//! `llama-trace export`: every chosen stage of every chosen pass as a `.npy` file, and a manifest.
//!
//! Everything is written into a temporary folder first and moved to its place at the end, so a run that fails or
//! is interrupted leaves nothing behind.

mod folder;
mod manifest;
mod target;

use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use self::manifest::Manifest;
use self::target::Target;
use super::ExportArgs;
use super::input::Run;
use crate::ending::scratch::Scratch;
use crate::error::{Error, Result, printable};
use crate::generate::Session;
use crate::stop;
use crate::trace::{Frame, PassDims, Recorder, Select, Site, npy};

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
    let mut writer = Writer {
        files: target.begin()?,
        manifest: Manifest::new(&run, &args.run),
        bar: progress(&run.passes(possible), &sizes, &select),
        failed: None,
    };

    let mut session = Session::new(&run.model, run.sampler.clone());
    let mut ids = run.ids.clone();
    for _ in 0..wanted {
        if ids.len() > session.room() && session.next_pass(1).pass > 0 {
            super::tell(format_args!("The model's context of {} tokens is full.", run.model.config.context));
            break;
        }
        let dims = session.next_pass(ids.len());
        let drawn = session.run(&ids, &mut Recorder::new(sizes, dims, &select, |frame| writer.take(&frame)));
        stopped()?;
        let drawn = drawn?;
        if let Some(error) = writer.failed.take() {
            return Err(error);
        }
        writer.manifest.pass(&run, dims, &ids, drawn);
        if run.eos.contains(&drawn) {
            break;
        }
        ids = vec![drawn];
    }
    if session.not_a_number() {
        super::tell(super::NOT_A_NUMBER);
    }
    writer.finish(target)
}

/// The error of an export that was asked to stop.
fn stopped() -> Result<()> {
    match stop::process().asked() {
        true => Err(Error::interrupted("interrupted; nothing was written")),
        false => Ok(()),
    }
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

/// Writes frames as they are completed.
struct Writer {
    files: Scratch,
    manifest: Manifest,
    bar: ProgressBar,
    failed: Option<Error>,
}

impl Writer {
    fn take(&mut self, frame: &Frame) {
        if self.bar.is_hidden()
            && self.bar.elapsed() > Duration::from_secs(1)
            && std::io::stderr().is_terminal()
        {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.inc(1);
        if self.failed.is_some() {
            return;
        }
        let name = frame.site.file_name();
        if let Err(error) = write_file(&self.files.path().join(&name), frame) {
            let left = Error::output("a dump cannot be written").at(&name).found(error);
            self.failed = Some(left.next("make room, or choose fewer stages, layers or passes"));
        }
        self.manifest.file(frame);
    }

    fn finish(self, target: Target) -> Result<()> {
        self.bar.finish_and_clear();
        let write = || -> std::io::Result<()> {
            let mut file = BufWriter::new(File::create(self.files.path().join(target::MANIFEST))?);
            serde_json::to_writer_pretty(&mut file, &self.manifest)?;
            writeln!(file)?;
            file.flush()
        };
        write().map_err(|error| Error::output("the manifest cannot be written").found(error))?;
        let count = self.manifest.file_count();
        let out = target.commit(self.files)?;
        super::tell(format_args!(
            "wrote {count} stages and manifest.json to {}",
            printable(&out.display().to_string())
        ));
        Ok(())
    }
}

fn write_file(path: &Path, frame: &Frame) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut file = BufWriter::new(stop::Pieces(File::create(path)?));
    npy::write(frame, &mut file)?;
    file.flush()
}
