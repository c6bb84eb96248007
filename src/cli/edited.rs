//! Opens models and runs with the edits of the options.

use std::path::Path;

use super::device::Room;
use super::edits::{self, Reading};
use super::input::{self, Opened, Run};
use super::traced::Traced;
use super::{CpuArgs, ModelArgs, RunArgs};
use llama_trace_core::error::Result;
use llama_trace_core::trace::{Run as Number, Source};
use llama_trace_engine::model::Model;
use llama_trace_runs::replay::DEFAULT_MEMORY;

/// Opens a run with its edits. Up to `draws` tokens follow each prompt.
pub(super) fn run(args: &RunArgs, draws: usize) -> Result<Run> {
    edit(Run::open(args)?, args, draws, draws)
}

/// The same run with the edits of the options. Up to `draws` tokens follow each prompt. A source that names no pass is
/// computed for the first `most` passes only.
pub(super) fn edit(mut run: Run, args: &RunArgs, draws: usize, most: usize) -> Result<Run> {
    let list = edits::list(&args.model)?;
    if !list.is_empty() {
        let passes = run.passes_by_sequence(draws);
        let reading = Reading {
            trace: &|file, sequence| source(&args.model, &args.cpu, file, sequence),
            tokenizer: run.tokenizer.as_ref(),
            prompts: &run.prompts,
            sampler: Some(&run.sampler),
            chunk: run.chunk,
            passes: &passes,
            most: most.max(1),
        };
        run.model = edits::with(&run.model, list, &reading)?;
    }
    Ok(run)
}

/// Opens a model with its edits, for a command that chooses its own passes. The edits may read other prompts and files,
/// but not the run itself.
pub(super) fn open(args: &ModelArgs, cpu: &CpuArgs, room: Room) -> Result<Opened> {
    let opened = input::open_for(args, cpu, room)?;
    let edited = |model: &Model| {
        let reading = Reading {
            trace: &|file, sequence| source(args, cpu, file, sequence),
            tokenizer: opened.tokenizer.as_ref(),
            prompts: &[],
            sampler: None,
            chunk: None,
            passes: &[],
            most: 1,
        };
        edits::with(model, edits::list(args)?, &reading)
    };
    let model = match &opened.model {
        Ok((model, device)) => Ok((edited(model)?, *device)),
        Err(error) => Err(error.clone()),
    };
    Ok(Opened { model, ..opened })
}

/// A sequence of a trace from which an edit reads.
pub(super) fn source(
    args: &ModelArgs,
    cpu: &CpuArgs,
    file: &Path,
    sequence: usize,
) -> Result<Box<dyn Source>> {
    let plain = ModelArgs { without: Vec::new(), edit: Vec::new(), edits: None, ..args.clone() };
    Traced::open(file, &plain, cpu, DEFAULT_MEMORY)?.source(Number::ITSELF, sequence)
}
