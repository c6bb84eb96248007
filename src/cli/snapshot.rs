//! `llama-trace snapshot`: a picture of a screen of the tracer.

use crate::chapters::CHAPTERS;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use super::edits;
use super::export::drawing;
use super::output;
use super::step;
use super::traced::Traced;
use super::{OpenArgs, SnapshotArgs};
use llama_trace_core::edit::Edits;
use llama_trace_core::error::{Error, Result, printable};
use llama_trace_core::stop;
use llama_trace_core::trace::manifest::Drawing;
use llama_trace_ending::scratch::Scratch;
use llama_trace_picture as picture;
use llama_trace_picture::Format;
use llama_trace_tui::snapshot::Snapshot;
use llama_trace_tui::theme::{Depth, Theme};
use llama_trace_tui::{OpenAt, Runs};

/// Prefix of the temporary folder that is made beside the file.
const KIND: &str = "snapshot";
/// The file, for messages.
const WHAT: &str = "picture";

/// Runs the command.
pub(super) fn run(args: &SnapshotArgs) -> Result<()> {
    output::check_path(&args.out)?;
    let format = Format::of(&args.out)?;
    check_free(&args.out, args.force, WHAT)?;
    let (mut runs, open, drawing, edits) = match &args.trace.trace {
        None => {
            let (runs, open, drawing, edits) = args.begin()?;
            (runs, open, Some(drawing), edits)
        }
        Some(path) => {
            let (model, cpu) = (&args.run.model, &args.run.cpu);
            let traced = Traced::open(path, model, cpu, args.memory.bytes())?;
            let drawing = traced.kept.sampling();
            let (runs, open) = traced.begin(args.at.as_ref())?;
            (runs, OpenAt { screen: args.screen.list(), ..open }, drawing, Arc::default())
        }
    };
    let (palette, paper) = (args.colours.palette(), args.colours.paper());
    // Text has no colours: shades replace them, as in a terminal without colours.
    let depth = if format == Format::Txt { Depth::None } else { Depth::True };
    let theme = Theme::new(depth).with(palette, paper);
    let snapshot = Snapshot { open: &open, chapters: CHAPTERS, theme, drawing, size: args.size.0 };
    let screen = snapshot.draw(&mut runs, stop::check)?;
    edits::lines(&edits);
    write(&args.out, args.force, WHAT, &picture::encode(&screen, paper, format)?)
}

impl SnapshotArgs {
    /// Starts the run. Also returns the run's sampling and edits.
    fn begin(&self) -> Result<(Runs, OpenAt, Drawing, Arc<Edits>)> {
        // Samples enough tokens for the pass in the address.
        let pass = self.at.as_ref().and_then(|address| address.pass).unwrap_or(0);
        let mut run = self.run.clone();
        run.tokens.get_or_insert(pass.saturating_add(1));
        let place = OpenArgs { at: self.at.clone(), screen: self.screen.clone(), ..OpenArgs::default() };
        let (runs, open, edits) = step::begin(&run, &place, &self.memory)?;
        Ok((runs, open, drawing(&self.run), edits))
    }
}

/// Checks the target path before the run, and again before the file is moved there. `what` names the file in messages.
pub(super) fn check_free(path: &Path, force: bool, what: &str) -> Result<()> {
    let found = match fs::symlink_metadata(path) {
        Err(_) => return Ok(()),
        Ok(_) if !force => return Err(taken(path)),
        Ok(about) if about.is_file() => return Ok(()),
        Ok(about) if about.is_dir() => "a directory",
        Ok(_) => "a link, pipe or device",
    };
    Err(Error::output(format!("the {what} cannot be written there"))
        .in_file(path)
        .expected("a path that does not exist yet, or with --force a file")
        .found(found)
        .next("give another path"))
}

fn taken(path: &Path) -> Error {
    Error::output("there is a file already").in_file(path).next("give another path, or --force to replace it")
}

/// Writes the file as a whole or not at all, and says so.
pub(super) fn write(path: &Path, force: bool, what: &str, bytes: &[u8]) -> Result<()> {
    write_quietly(path, force, what, bytes)?;
    super::tell(format_args!("wrote {}", printable(&path.display().to_string())));
    Ok(())
}

/// Writes the file as a whole or not at all.
pub(super) fn write_quietly(path: &Path, force: bool, what: &str, bytes: &[u8]) -> Result<()> {
    let failed = |error| Error::output(format!("the {what} cannot be written")).in_file(path).found(error);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let written = Scratch::new(folder, KIND).and_then(|scratch| {
        let whole = scratch.path().join(KIND);
        let mut file = File::create_new(&whole)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        Ok((scratch, whole))
    });
    let moved = |(_scratch, whole)| {
        // Another program may have created the file meanwhile.
        check_free(path, force, what)?;
        fs::rename(whole, path).map_err(failed)
    };
    written.map_err(failed).and_then(moved)
}
