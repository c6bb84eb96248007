//! `llama-trace --prompt "…"`: the prompt and the text that follows, as it comes.

use std::io::IsTerminal;
use std::time::Instant;

use super::device::{Command, Device};
use super::input::{self, Run, full};
use super::output::{self, Failure};
use super::{MemoryArgs, RunArgs};
use crate::error::{Error, Result};
use crate::generate::{Ended, Next};
use crate::tokenizer::Piece;
use crate::trace::NoProbe;

/// Tokens that are drawn unless `-n` says otherwise.
const DEFAULT_TOKENS: usize = 128;

/// The command.
pub(super) struct Text<'a> {
    pub(super) run: &'a RunArgs,
    pub(super) memory: &'a MemoryArgs,
}

impl Command for Text<'_> {
    fn run<D: Device>(self) -> Result<()> {
        generate::<D>(self.run, self.memory)
    }
}

fn generate<D: Device>(args: &RunArgs, memory: &MemoryArgs) -> Result<()> {
    if memory.memory.is_some() {
        return Err(Error::usage(
            "--memory bounds the values that the tracer holds, and a run that is not traced holds none",
        )
        .expected("--memory with --step or chat")
        .next("add --step, or leave out --memory"));
    }
    let run = Run::<D>::open(args)?;
    let wanted = args.tokens.unwrap_or(DEFAULT_TOKENS);
    output::end(input::on_a_computing_thread(|| print_text(&run, wanted)))
}

fn print_text<D: Device>(run: &Run<D>, wanted: usize) -> std::result::Result<(), Failure> {
    let mut out = output::Text::open();
    let mut session = run.session(wanted)?;

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
    let (mut drawn, mut first) = (0, None);
    while let Next::Pass(_) = session.next() {
        let id = session.pass(&mut NoProbe)?;
        first.get_or_insert_with(|| started.elapsed());
        drawn += 1;
        if session.next() != Next::Ended(Ended::Text) {
            out.print_piece(&piece_of(id))?;
        }
    }
    if session.next() == Next::Ended(Ended::Full) {
        super::tell(format_args!("\n{}", full(&session)));
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
