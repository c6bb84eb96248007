//! `llama-trace open`: opens the tracer on a recorded run.

use super::OpenTraceArgs;
use super::choose::{Asks, Command};
use super::device::Device;
use super::traced::Traced;
use crate::chapters::CHAPTERS;
use llama_trace_core::error::Result;
use llama_trace_tui as tui;
use llama_trace_tui::marks::Marks;

impl Command for &OpenTraceArgs {
    fn asks(&self) -> Asks<'_> {
        Asks {
            cpu: &self.cpu,
            model: &self.model,
            shape: None,
            context: None,
            runs: self.model.model.is_some(),
        }
    }

    fn run<D: Device>(self) -> Result<()> {
        // If the path is wrong, the error about the path comes first.
        if self.trace.exists() {
            tui::require_terminal().map_err(|error| {
                error.next("`llama-trace log --trace` prints the steps of the file, `llama-trace export --trace` writes them to files")
            })?;
        }
        let traced = Traced::<D>::open(&self.trace, &self.model, &self.cpu, self.memory.bytes())?;
        let setting = tui::Setting {
            chapters: CHAPTERS,
            palette: self.colours.palette(),
            paper: self.colours.paper(),
            file: self.trace.file_name().map(|name| name.to_string_lossy().into_owned()),
            drawing: traced.kept.sampling(),
            marks: Marks::default(),
            verdict: None,
        };
        let (runs, open) = traced.begin(self.at.as_ref())?;
        tui::run(runs, &open, setting)
    }
}
