//! The runs that the tracer shows of a trace: the recorded ones, and with the model further ones beside them.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::further;
use super::traced::{DiskFiles, Opened, Traced};
use llama_trace_core::edit::Edits;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::{Address, Run, Source};
use llama_trace_runs::begin::{Starter, edits};
use llama_trace_runs::replay::Sequences;
use llama_trace_tui::{self as tui, NewRun};

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
        let traced = Rc::new(self);
        let opener = {
            let traced = Rc::clone(&traced);
            move |sequence| traced.recorded.open(Run::ITSELF, sequence)
        };
        let runs = tui::Runs::of_sequences(source, Box::new(opener));
        let mut runs = match starter {
            Some(mut starter) => {
                runs.with_starter(Box::new(move |run, new| further::begin(&mut starter, run, new)))
            }
            None => runs.with_editor(Box::new(move |run, new| traced.edited(run, new))),
        };
        sources.into_iter().for_each(|source| runs.add(source));
        Ok((runs, open))
    }

    /// A run of the trace with edits, without the model.
    fn edited(&self, run: Run, new: NewRun) -> Result<Vec<Box<dyn Source>>> {
        let needs_model = |what: &str| {
            Error::usage(format!("{what} needs the model: a trace has no weights"))
                .next("open the trace with --model and the model that it was recorded from")
        };
        let NewRun::Edited(new) = new else { return Err(needs_model("another prompt")) };
        let first = self.kept.passes(Run::ITSELF, new.sequence).first();
        if new.insert.is_some() || first.is_none_or(|pass| pass.tokens != new.ids) {
            return Err(needs_model("a run with other tokens"));
        }
        let edits = Edits::new(edits::parsed(&new.edits)?).in_model(&self.kept.card().sizes());
        let (model_args, cpu_args) = &self.args;
        let files = DiskFiles::new(model_args, cpu_args);
        let mut plain = self.source(Run::ITSELF, new.sequence)?;
        let given = edits::given_of_trace(&edits, (&mut *plain, new.sequence), &files)?;
        Ok(vec![self.recorded.edited(run, new.sequence, edits.with(given))?])
    }

    /// The starter of other runs with the model; `None` without a model.
    fn starter(&self) -> Result<Option<Starter>> {
        let Some(Opened { model, tokenizer, eos }) = &self.opened else { return Ok(None) };
        let (model_args, cpu_args) = &self.args;
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
