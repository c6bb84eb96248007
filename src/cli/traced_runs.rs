//! The runs that the tracer shows of a trace: the recorded ones, and with the model further ones beside them.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::further;
use super::traced::{Opened, Traced};
use llama_trace_core::error::Result;
use llama_trace_core::trace::{Address, Run};
use llama_trace_runs::begin::Starter;
use llama_trace_runs::replay::Sequences;
use llama_trace_tui as tui;

impl Traced {
    /// The sequences for the tracer, and the place where it opens. Loads the sequence that `at` names.
    pub(super) fn begin(self, at: Option<&Address>) -> Result<(tui::Runs, tui::OpenAt)> {
        let first = at.and_then(|address| address.sequence);
        // The viewer reports a sequence that does not exist.
        let first = first.filter(|&number| number < self.sequences()).unwrap_or(0);
        let itself = self.source(Run::ITSELF, first)?;
        let branches = self.all().filter(|(run, _)| *run != Run::ITSELF);
        let branches =
            branches.map(|(run, sequence)| self.source(run, sequence)).collect::<Result<Vec<_>>>()?;
        let mut sources: Vec<_> = [itself].into_iter().chain(branches).collect();
        let named = at.and_then(|address| address.run_number(Run::ITSELF));
        let shown = match sources.iter().position(|source| Some(source.outline().run) == named) {
            Some(shown) => shown,
            None => {
                // The error lists the runs that exist.
                named.map_or(Ok(()), |run| self.source(run, first).map(drop))?;
                0
            }
        };
        let source = sources.remove(shown);
        let passes = source.outline().passes.len();
        let open = tui::OpenAt { at: at.cloned(), passes, ..tui::OpenAt::default() };
        let starter = self.starter()?;
        let opener = move |sequence| self.recorded.open(Run::ITSELF, sequence);
        let mut runs = tui::Runs::of_sequences(source, Box::new(opener));
        if let Some(mut starter) = starter {
            runs = runs.with_starter(Box::new(move |run, new| further::begin(&mut starter, run, new)));
        }
        sources.into_iter().for_each(|source| runs.add(source));
        Ok((runs, open))
    }

    /// The starter of other runs with the model; `None` without a model.
    fn starter(&self) -> Result<Option<Starter>> {
        let Some((Opened { model, tokenizer, eos }, model_args, cpu_args)) = &self.opened else {
            return Ok(None);
        };
        let samplers = (0..self.sequences())
            .map(|sequence| self.recorded.sampler(sequence))
            .collect::<Result<Vec<_>>>()?;
        let mut starter = Starter {
            reload: further::reload(model_args, cpu_args),
            files: further::files(model_args, cpu_args),
            sequences: Rc::new(Sequences::new(Arc::clone(model), Vec::new())),
            sampler: Box::new(move |number| samplers[(number as usize).min(samplers.len() - 1)].clone()),
            tokenizer: tokenizer.clone(),
            eos: eos.clone(),
            draws: 1,
            memory: self.memory,
            context: None,
            others: HashMap::new(),
        };
        let starts = (0..self.sequences()).map(|sequence| {
            let first = self.kept.passes(Run::ITSELF, sequence).first();
            starter.start(sequence as u64, first.map(|pass| pass.tokens.clone()).unwrap_or_default())
        });
        starter.sequences = Rc::new(Sequences::new(Arc::clone(model), starts.collect()));
        Ok(Some(starter))
    }
}
