//! `llama-trace --step`: the tracer on a live run.

use std::sync::Arc;

use super::device::{Command, Device};
use super::input::{self, Run};
use super::{MemoryArgs, OpenArgs, RunArgs};
use crate::error::{Error, Result};
use crate::replay::{Live, Start};
use crate::tui;

/// The command.
pub(super) struct Tracer<'a> {
    pub(super) run: &'a RunArgs,
    pub(super) open: &'a OpenArgs,
    pub(super) memory: &'a MemoryArgs,
}

impl Command for Tracer<'_> {
    fn run<D: Device>(self) -> Result<()> {
        step::<D>(self.run, self.open, self.memory)
    }
}

fn step<D: Device>(args: &RunArgs, open: &OpenArgs, memory: &MemoryArgs) -> Result<()> {
    tui::require_terminal()?;
    let run = Run::<D>::open(args)?;
    let draws = args.tokens.unwrap_or(1);
    let open = tui::OpenAt {
        pass: open.pass,
        layer: open.layer,
        stage: open.stage.clone(),
        head: open.head,
        at: open.at.clone(),
        passes: draws,
    };
    let Run { model, sampler, mut prompts, tokenizer, eos, context } = run;
    let (Some(prompt), true) = (prompts.pop(), prompts.is_empty()) else {
        return Err(Error::usage("the tracer shows one prompt")
            .expected("one --prompt, or a --prompts FILE with one")
            .found(format!("{} prompts", prompts.len() + 1))
            .next("give one of them; log and export take several"));
    };
    let ids = prompt.ids;
    let config = model.config.clone();
    let start = Start { ids, draws, sampler, tokenizer, eos, memory: memory.bytes(), context };
    let live = Live::start(Arc::new(model), start)?;
    input::say_cut(live.capacity(), context, &config);
    tui::run(Box::new(live), &open)
}
