//! `llama-trace --step`: the tracer on a live run.

use crate::chapters::CHAPTERS;
use std::io::{IsTerminal, stdin, stdout};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use super::another::{Another, MOST_PASSES};
use super::edited;
use super::export::drawing;
use super::input::{self, Run};
use super::{ColourArgs, MemoryArgs, OpenArgs, RunArgs};
use llama_trace_core::error::Result;
use llama_trace_core::trace::Source;
use llama_trace_engine::generate::sequence;
use llama_trace_engine::model::kv_cache;
use llama_trace_runs::replay::{Sequences, Start};
use llama_trace_tui as tui;
use llama_trace_tui::marks::Marks;

/// Runs the command.
pub(super) fn run(args: &RunArgs, open: &OpenArgs, memory: &MemoryArgs, colours: &ColourArgs) -> Result<()> {
    tui::require_terminal().map_err(|error| match takes_keys(args) {
        true => {
            error.next("give the text in a file, so that keys can come from the terminal: --prompt-file FILE")
        }
        false => error,
    })?;
    let marks = open.marks.as_deref().map(Marks::open).transpose()?.unwrap_or_default();
    let (runs, open) = begin(args, open, memory)?;
    let setting = tui::Setting {
        chapters: CHAPTERS,
        palette: colours.palette(),
        paper: colours.paper(),
        file: None,
        drawing: Some(drawing(args)),
        marks,
        verdict: None,
    };
    tui::run(runs, &open, setting)
}

/// Returns whether a text is read from standard input, which the tracer needs for its keys.
fn takes_keys(run: &RunArgs) -> bool {
    let reads = run.prompt.iter().any(|text| text == "-")
        || [&run.prompt_file, &run.prompts].into_iter().flatten().any(|path| path == Path::new("-"));
    reads && stdout().is_terminal() && !stdin().is_terminal()
}

/// The sequences of a run, and the place where the tracer opens. The sequence that is shown first is already started.
pub(super) fn begin(
    args: &RunArgs,
    open: &OpenArgs,
    memory: &MemoryArgs,
) -> Result<(tui::Runs, tui::OpenAt)> {
    let draws = args.tokens.unwrap_or(1);
    // More passes may follow than are asked for.
    let run = edited::edit(Run::open(args)?, args, MOST_PASSES.max(draws), draws)?;
    let open = tui::OpenAt {
        pass: open.pass,
        layer: open.layer,
        stage: open.stage.clone(),
        head: open.head,
        at: open.at.clone(),
        passes: draws,
    };
    // Without --context, the whole context is reserved, or as much of it as fits into memory, because more passes may
    // follow.
    let Run { model, sampler, prompts, tokenizer, eos, context, .. } = run;
    let model = Arc::new(model);
    let config = model.config.clone();
    let several = prompts.len() > 1;
    for prompt in prompts.iter().filter(|_| several) {
        // All prompts are checked now, also those that start later.
        let room = context.unwrap_or(config.context);
        let checked = sequence::check(&config, 0, &prompt.ids);
        checked.and_then(|()| kv_cache::check(prompt.ids.len(), room)).map_err(|error| {
            match &prompt.place {
                Some(place) => error.at(place),
                None => error,
            }
        })?;
    }
    let (texts, memory) = (tokenizer.clone(), memory.bytes());
    let start = move |number: usize, ids| Start {
        ids,
        draws,
        sampler: sampler.after(number as u64),
        tokenizer: tokenizer.clone(),
        eos: eos.clone(),
        memory,
        context,
    };
    let starts = (0..).zip(prompts).map(|(number, prompt)| start(number, prompt.ids)).collect();
    let sequences = Rc::new(Sequences::new(Arc::clone(&model), starts));
    // The viewer reports an address that does not exist.
    let first =
        open.at.as_ref().and_then(|address| address.sequence).filter(|&number| number < sequences.len());
    let live = sequences.open(first.unwrap_or(0))?;
    input::say_cut(live.capacity(), context, &config);
    let others = Rc::clone(&sequences);
    let opener = move |number| Ok(Box::new(sequences.open(number)?) as Box<dyn Source>);
    let another = Another {
        model,
        tokenizer: texts,
        sequences: others,
        args: args.model.clone(),
        cpu: args.cpu.clone(),
        start: Box::new(start),
    };
    let runs = tui::Runs::of_sequences(Box::new(live), Box::new(opener));
    Ok((runs.with_starter(another.starter()), open))
}
