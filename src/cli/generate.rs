//! `llama-trace --prompt "…"`: the prompt and the text that follows, as it comes.

use std::io::IsTerminal;
use std::time::Instant;

use super::input::{self, Run};
use super::output::{self, Failure};
use super::{MemoryArgs, RunArgs};
use crate::error::{Error, Result};
use crate::tokenizer::Piece;
use crate::trace::NoProbe;

/// Tokens that are drawn unless `-n` says otherwise.
const DEFAULT_TOKENS: usize = 128;

pub(super) fn run(args: &RunArgs, memory: &MemoryArgs) -> Result<()> {
    if memory.memory.is_some() {
        return Err(Error::usage(
            "--memory bounds the values that the tracer holds, and a run that is not traced holds none",
        )
        .expected("--memory with --step or chat")
        .next("add --step, or leave out --memory"));
    }
    let run = Run::open(args)?;
    let wanted = args.tokens.unwrap_or(DEFAULT_TOKENS);
    output::end(input::on_a_computing_thread(|| print_text(&run, wanted)))
}

fn print_text(run: &Run, wanted: usize) -> std::result::Result<(), Failure> {
    let mut out = output::Text::open();
    let mut session = run.session(wanted)?;
    session.check(&run.ids)?;

    let mut stream = run.tokenizer.as_ref().map(|tokenizer| tokenizer.stream());
    let mut piece_of = |id| match &mut stream {
        Some(stream) => stream.piece(id),
        None => {
            let text = format!("#{id} ");
            Piece { bytes: text.clone().into_bytes(), text }
        }
    };
    // The stream has to see the prompt's tokens too: what a token adds depends on those before it.
    let prompt: Vec<Piece> = run.ids.iter().map(|&id| piece_of(id)).collect();
    match &run.text {
        Some(text) => out.print(text)?,
        None => prompt.iter().try_for_each(|piece| out.print_piece(piece))?,
    }

    let started = Instant::now();
    let (mut ids, mut drawn, mut first) = (run.ids.clone(), 0, None);
    while drawn < wanted {
        if ids.len() > session.room() {
            super::tell(format_args!(
                "\nThe model's context of {} tokens is full.",
                run.model.config.context
            ));
            break;
        }
        let id = session.run(&ids, &mut NoProbe)?;
        first.get_or_insert_with(|| started.elapsed());
        drawn += 1;
        if run.eos.contains(&id) {
            break;
        }
        out.print_piece(&piece_of(id))?;
        ids = vec![id];
    }
    let elapsed = started.elapsed();
    if let Some(stream) = &mut stream {
        out.finish(stream)?;
    }
    if out.is_terminal() {
        out.print("\n")?;
    }
    if session.not_a_number() {
        super::tell(super::NOT_A_NUMBER);
    }
    if std::io::stderr().is_terminal()
        && let Some(first) = first
    {
        let decode = (elapsed - first).as_secs_f64();
        let rate = if drawn > 1 { (drawn - 1) as f64 / decode } else { 0.0 };
        super::tell(format_args!(
            "{} prompt tokens in {:.3} s; {drawn} drawn, {rate:.1} tokens/s after the first",
            run.ids.len(),
            first.as_secs_f64(),
        ));
    }
    Ok(())
}
