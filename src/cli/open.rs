//! `llama-trace open`: opens the tracer on a recorded run.

use super::OpenTraceArgs;
use super::traced::Traced;
use crate::chapters::CHAPTERS;
use llama_trace_core::error::Result;
use llama_trace_tui as tui;

/// Runs the command.
pub(super) fn run(args: &OpenTraceArgs) -> Result<()> {
    // If the path is wrong, the error about the path comes first.
    if args.trace.exists() {
        tui::require_terminal().map_err(|error| {
            error.next("`llama-trace log --trace` prints the steps of the file, `llama-trace export --trace` writes them to files")
        })?;
    }
    let traced = Traced::open(&args.trace, &args.model, &args.cpu, args.memory.bytes())?;
    let setting = tui::Setting {
        chapters: CHAPTERS,
        palette: args.colours.palette(),
        paper: args.colours.paper(),
        file: args.trace.file_name().map(|name| name.to_string_lossy().into_owned()),
        drawing: traced.kept.sampling(),
        ..tui::Setting::default()
    };
    let (runs, open) = traced.begin(args.at.as_ref())?;
    let open = tui::OpenAt { screen: args.screen.list(), ..open };
    tui::run(runs, &open, setting)
}
