//! Further runs beside the tracer's first one, as the tracer asks for them.

use super::traced::DiskFiles;
use super::{CpuArgs, ModelArgs, PrecisionName, input};
use llama_trace_core::error::Result;
use llama_trace_core::trace::{Run, Source};
use llama_trace_runs::begin::{Reload, Starter};
use llama_trace_tui::NewRun;

/// Begins another run, with all its sequences.
pub(super) fn begin(starter: &mut Starter, run: Run, new: NewRun) -> Result<Vec<Box<dyn Source>>> {
    let live = match new {
        NewRun::Prompt(text) => starter.prompt(run, &text),
        NewRun::Edited(new) => starter.edited(run, new),
        NewRun::Scene(setting) => starter.scene(run, &setting),
    };
    Ok(live?.into_iter().map(|live| Box::new(live) as Box<dyn Source>).collect())
}

/// Loads the model of the options in another precision.
pub(super) fn reload(args: &ModelArgs, cpu: &CpuArgs) -> Reload {
    let (args, cpu) = (args.clone(), cpu.clone());
    Box::new(move |name| {
        let precision = match name {
            "bf16" => PrecisionName::Bf16,
            "q8" => PrecisionName::Q8,
            _ => PrecisionName::F32,
        };
        input::reload(&ModelArgs { precision: Some(precision), ..args.clone() }, &cpu)
    })
}

/// The files from which edits of further runs read.
pub(super) fn files(args: &ModelArgs, cpu: &CpuArgs) -> Box<DiskFiles> {
    Box::new(DiskFiles::new(args, cpu))
}
