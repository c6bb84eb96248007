//! Opens models and runs with the edits of the options.

use super::device::Room;
use super::edits;
use super::input::{self, Opened, Run};
use super::traced::DiskFiles;
use super::{CpuArgs, ModelArgs, RunArgs};
use llama_trace_core::error::Result;
use llama_trace_engine::model::Model;
use llama_trace_runs::begin::edits::{Reading, with};

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
            files: &DiskFiles::new(&args.model, &args.cpu),
            tokenizer: run.tokenizer.as_ref(),
            prompts: &run.prompts,
            sampler: Some(&run.sampler),
            chunk: run.chunk,
            passes: &passes,
            most: most.max(1),
        };
        run.model = with(&run.model, list, &reading)?;
    }
    Ok(run)
}

/// Opens a model with its edits, for a command that chooses its own passes. The edits may read other prompts and files,
/// but not the run itself.
pub(super) fn open(args: &ModelArgs, cpu: &CpuArgs, room: Room) -> Result<Opened> {
    let opened = input::open_for(args, cpu, room)?;
    let edited = |model: &Model| {
        let reading = Reading {
            files: &DiskFiles::new(args, cpu),
            tokenizer: opened.tokenizer.as_ref(),
            prompts: &[],
            sampler: None,
            chunk: None,
            passes: &[],
            most: 1,
        };
        with(model, edits::list(args)?, &reading)
    };
    let model = match &opened.model {
        Ok((model, device)) => Ok((edited(model)?, *device)),
        Err(error) => Err(error.clone()),
    };
    Ok(Opened { model, ..opened })
}
