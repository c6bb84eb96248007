//! `llama-trace --step`: the tracer on a live run.

use std::sync::Arc;

use super::input::Run;
use super::{OpenArgs, RunArgs};
use crate::error::Result;
use crate::replay::Live;
use crate::tui;

pub(super) fn run(args: &RunArgs, open: &OpenArgs) -> Result<()> {
    tui::require_terminal()?;
    let run = Run::open(args)?;
    let open = tui::OpenAt { pass: open.pass, layer: open.layer, stage: open.stage.clone(), head: open.head };
    let model = Arc::new(run.model);
    let live = Live::start(model, run.sampler, run.ids, args.tokens.unwrap_or(1), run.tokenizer, run.eos)?;
    super::interrupt::hand_over();
    tui::run(Box::new(live), &open)
}
