//! `llama-trace --step`: the tracer on a live run.

use std::sync::Arc;

use super::input::Run;
use super::{MemoryArgs, OpenArgs, RunArgs};
use crate::error::Result;
use crate::replay::{Live, Start};
use crate::tui;

pub(super) fn run(args: &RunArgs, open: &OpenArgs, memory: &MemoryArgs) -> Result<()> {
    tui::require_terminal()?;
    let run = Run::open(args)?;
    let draws = args.tokens.unwrap_or(1);
    let open = tui::OpenAt {
        pass: open.pass,
        layer: open.layer,
        stage: open.stage.clone(),
        head: open.head,
        at: open.at.clone(),
        passes: draws,
    };
    let Run { sampler, ids, tokenizer, eos, .. } = run;
    let start = Start { ids, draws, sampler, tokenizer, eos, memory: memory.bytes() };
    let live = Live::start(Arc::new(run.model), start)?;
    tui::run(Box::new(live), &open)
}
