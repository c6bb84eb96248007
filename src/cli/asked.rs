//! A finished run that a command queries through the tracer's source.

use std::sync::Arc;

use super::edited;
use super::edits;
use super::input::Run;
use super::traced::Traced;
use super::{RunArgs, TraceArgs};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::stop;
use llama_trace_core::trace::{Outline, Question, Run as Number, Source, Status, TokenLabel};
use llama_trace_runs::begin::wait::wait;
use llama_trace_runs::replay::{DEFAULT_MEMORY, Live, Start};

/// A finished run.
pub(super) struct Asked {
    source: Box<dyn Source>,
}

impl Asked {
    /// Opens sequence `sequence` of run `number` of the given trace. Without a trace, runs the single prompt of `args`
    /// and samples the number of tokens that `args` gives.
    pub(super) fn open(
        trace: &TraceArgs,
        args: &RunArgs,
        (number, sequence): (Number, usize),
    ) -> Result<Self> {
        let Some(path) = &trace.trace else { return Self::run(args) };
        let traced = Traced::open(path, &args.model, &args.cpu, DEFAULT_MEMORY)?;
        Ok(Self { source: traced.source(number, sequence)? })
    }

    /// Like [`Asked::open`], for the first sequence of run r0. It is for commands without an address. Prints a note if
    /// the trace has branches or several sequences.
    pub(super) fn open_itself(trace: &TraceArgs, args: &RunArgs) -> Result<Self> {
        let Some(path) = &trace.trace else { return Self::run(args) };
        let traced = Traced::open(path, &args.model, &args.cpu, DEFAULT_MEMORY)?;
        traced.say_branches();
        traced.say_sequences();
        Ok(Self { source: traced.source(Number::ITSELF, 0)? })
    }

    fn run(args: &RunArgs) -> Result<Self> {
        let draws = args.tokens.unwrap_or(1).max(1);
        let run = edited::run(args, draws)?;
        let Run { model, sampler, mut prompts, tokenizer, eos, context, .. } = run;
        let (Some(prompt), true) = (prompts.pop(), prompts.is_empty()) else {
            return Err(Error::usage("this command takes only one prompt")
                .expected("one --prompt, or a --prompts FILE with one prompt")
                .found(format!("{} prompts", prompts.len() + 1))
                .next(
                    "give one prompt; with --stream I, it gets the same tokens as prompt number I of several",
                ));
        };
        let context = context.or(Some(prompt.ids.len().saturating_add(draws)));
        let (model, ids, words) = (Arc::new(model), prompt.ids.clone(), tokenizer.clone());
        let start = Start { ids, draws, sampler, tokenizer, eos, memory: DEFAULT_MEMORY, context };
        let mut live = Live::start(Arc::clone(&model), start)?;
        loop {
            live.poll()?;
            if live.status() == Status::Idle {
                break;
            }
            stop::check()?;
            live.wait(stop::LOOK);
        }
        // In a stopped run, the last pass has no sampled token.
        match live.outline().passes.last() {
            Some(last) if last.sampled.is_some() => {}
            _ => return Err(Error::interrupted("interrupted")),
        }
        edits::report(&model, words.as_deref(), Some(&prompt), None)?;
        Ok(Self { source: Box::new(live) })
    }

    /// The passes and their tokens.
    pub(super) fn outline(&self) -> &Outline {
        self.source.outline()
    }

    /// Waits for the answer.
    pub(super) fn ask<Q: Question>(&mut self, question: &Q) -> Result<Q::Answer> {
        wait(&mut *self.source, question)
    }

    /// The text of a token of the vocabulary.
    pub(super) fn text(&self, id: u32) -> String {
        self.source.token_text(id)
    }

    /// The pass and the row of the token at a position of the text, and the token itself.
    pub(super) fn position(&self, position: usize) -> Option<(usize, usize, &TokenLabel)> {
        self.outline().passes.iter().find_map(|pass| {
            let row = position.checked_sub(pass.dims.start)?;
            Some((pass.dims.pass, row, pass.tokens.get(row)?))
        })
    }

    /// The number of tokens read.
    pub(super) fn positions(&self) -> usize {
        self.outline().passes.last().map_or(0, |pass| pass.dims.keys())
    }
}
