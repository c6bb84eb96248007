//! `llama-trace --step`: the tracer on a live run.

use crate::builtin;
use crate::chapters::{CHAPTERS, TOUR};
use std::collections::HashMap;
use std::io::{IsTerminal, stdin, stdout};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use clap::ValueEnum;

use super::edited;
use super::edits;
use super::export::drawing;
use super::further;
use super::input::{self, Run};
use super::prompt::Prompt;
use super::{ColourArgs, MemoryArgs, OpenArgs, RunArgs};
use llama_trace_core::edit::Edits;
use llama_trace_core::error::Result;
use llama_trace_core::lesson::{PromptSetting, RunSetting};
use llama_trace_core::trace::Source;
use llama_trace_engine::generate::sequence;
use llama_trace_engine::model::kv_cache;
use llama_trace_runs::begin::{MOST_PASSES, Starter};
use llama_trace_runs::replay::Sequences;
use llama_trace_tui as tui;
use llama_trace_tui::lesson_file::LessonFile;
use llama_trace_tui::marks::Marks;

/// Runs the command.
pub(super) fn run(args: &RunArgs, open: &OpenArgs, memory: &MemoryArgs, colours: &ColourArgs) -> Result<()> {
    tui::require_terminal().map_err(|error| match takes_keys(args) {
        true => {
            error.next("give the text in a file, so that keys can come from the terminal: --prompt-file FILE")
        }
        false => error,
    })?;
    let setting = tui::Setting {
        marks: open.marks.as_deref().map(Marks::open).transpose()?.unwrap_or_default(),
        lesson_file: open.lesson.as_deref().map(LessonFile::open).transpose()?,
        ..setting(args, colours)
    };
    let (runs, open, _) = begin(args, open, memory)?;
    tui::run(runs, &open, setting)
}

/// Opens the tracer on a lesson. `args` is the run of the scene that is shown first.
pub(super) fn learn(
    args: &RunArgs,
    memory: &MemoryArgs,
    colours: &ColourArgs,
    lesson: tui::OpenLesson,
    progress: Option<tui::StoreProgress>,
) -> Result<()> {
    tui::require_terminal().map_err(|error| {
        error.next("`llama-trace learn LESSON --export FILE.html` writes the lesson as a page")
    })?;
    let setting = tui::Setting { lesson: Some(lesson), progress, ..setting(args, colours) };
    let (runs, open, _) = begin(args, &OpenArgs::default(), memory)?;
    tui::run(runs, &open, setting)
}

/// The settings of the viewer that do not depend on the place.
pub(super) fn setting(args: &RunArgs, colours: &ColourArgs) -> tui::Setting {
    tui::Setting {
        chapters: CHAPTERS,
        palette: colours.palette(),
        paper: colours.paper(),
        drawing: Some(drawing(args)),
        tour: Some(TOUR),
        // The facts describe the heads of the built-in model.
        facts: args.model.model.is_none().then_some(builtin::fact as tui::Facts),
        ..tui::Setting::default()
    }
}

/// Returns whether a text is read from standard input, which the tracer needs for its keys.
fn takes_keys(run: &RunArgs) -> bool {
    let reads = run.prompt.iter().any(|text| text == "-")
        || [&run.prompt_file, &run.prompts].into_iter().flatten().any(|path| path == Path::new("-"));
    reads && stdout().is_terminal() && !stdin().is_terminal()
}

/// The sequences of a run, the place where the tracer opens, and the run's edits. The sequence that is shown first is
/// already started.
pub(super) fn begin(
    args: &RunArgs,
    open: &OpenArgs,
    memory: &MemoryArgs,
) -> Result<(tui::Runs, tui::OpenAt, Arc<Edits>)> {
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
        screen: open.screen.list(),
    };
    // Without --context, the whole context is reserved, or as much of it as fits into memory, because more passes may
    // follow.
    let Run { model, sampler, prompts, tokenizer, eos, context, .. } = run;
    let edits = Arc::clone(&model.edits);
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
    let starts = |starter: &Starter| {
        (0..).zip(&prompts).map(|(number, prompt)| starter.start(number, prompt.ids.clone())).collect()
    };
    let mut starter = Starter {
        reload: further::reload(&args.model, &args.cpu),
        files: further::files(&args.model, &args.cpu),
        sequences: Rc::new(Sequences::new(Arc::clone(&model), Vec::new())),
        sampler: Box::new(move |number| sampler.after(number)),
        tokenizer,
        eos,
        draws,
        memory: memory.bytes(),
        context,
        others: HashMap::new(),
    };
    let sequences = Rc::new(Sequences::new(Arc::clone(&model), starts(&starter)));
    starter.sequences = Rc::clone(&sequences);
    // The viewer reports an address that does not exist.
    let first =
        open.at.as_ref().and_then(|address| address.sequence).filter(|&number| number < sequences.len());
    let live = sequences.open(first.unwrap_or(0))?;
    input::say_cut(live.capacity(), context, &config);
    let opener = move |number| Ok(Box::new(sequences.open(number)?) as Box<dyn Source>);
    let setting = run_setting(args, draws, &prompts)?;
    let runs = tui::Runs::of_sequences(Box::new(live), Box::new(opener)).with_setting(setting);
    Ok((runs.with_starter(Box::new(move |run, new| further::begin(&mut starter, run, new))), open, edits))
}

/// The setting of the run, as a scene of a lesson writes it.
fn run_setting(args: &RunArgs, draws: usize, prompts: &[Prompt]) -> Result<RunSetting> {
    let prompt = |prompt: &Prompt| match &prompt.text {
        Some(text) => PromptSetting::Text(text.clone()),
        None => PromptSetting::Ids(prompt.ids.clone()),
    };
    Ok(RunSetting {
        prompts: prompts.iter().map(prompt).collect(),
        passes: draws,
        sampling: drawing(args).sampling.options(),
        precision: args
            .model
            .precision
            .and_then(|precision| precision.to_possible_value())
            .map(|name| name.get_name().to_owned()),
        edits: edits::list(&args.model)?.into_iter().map(|edit| edit.text).collect(),
    })
}
