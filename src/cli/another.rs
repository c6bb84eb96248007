//! Runs that the tracer starts beside the open one: another prompt, or the same prompt with other edits or other tokens.

use std::rc::Rc;
use std::sync::Arc;

use super::edited;
use super::edits;
use super::prompt::{self, Prompt};
use super::{CpuArgs, ModelArgs};
use llama_trace_core::edit::{Edit, Edits};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::{PassDims, Run, Source};
use llama_trace_engine::model::Model;
use llama_trace_formats::tokenizer::Tokenizer;
use llama_trace_runs::replay::{Sequences, Start};
use llama_trace_tui::{Edited, NewRun, RunStarter};

/// Passes of a run to which an edit may refer.
pub(super) const MOST_PASSES: usize = 4096;

/// What other runs share with the open one.
pub(super) struct Another {
    /// The model of the open run, with its edits.
    pub(super) model: Arc<Model>,
    pub(super) tokenizer: Option<Arc<dyn Tokenizer>>,
    pub(super) sequences: Rc<Sequences>,
    /// The options that traces in edits are opened with.
    pub(super) args: ModelArgs,
    pub(super) cpu: CpuArgs,
    /// The start of a run like a sequence of the open one, given its number and the ids.
    pub(super) start: Box<dyn Fn(usize, Vec<u32>) -> Start>,
}

impl Another {
    /// The function that begins another run.
    pub(super) fn starter(self) -> RunStarter {
        Box::new(move |run, new| self.begin(run, new))
    }

    fn begin(&self, run: Run, new: NewRun) -> Result<Box<dyn Source>> {
        let live = match new {
            NewRun::Prompt(text) => {
                let ids = prompt::encode(&text, self.reads(), self.model.config.context)?;
                self.sequences.another(run, (self.start)(0, ids), None)
            }
            NewRun::Edited(new) => self.edited(run, new),
        };
        Ok(Box::new(live?))
    }

    fn edited(&self, run: Run, new: Edited) -> Result<llama_trace_runs::replay::Live> {
        let mut ids = new.ids;
        if let Some((at, text)) = new.insert {
            ids.splice(at..at, prompt::encode_part(&text, self.reads()?)?);
        }
        let start = (self.start)(new.sequence, ids);
        let start = Start { draws: start.draws.max(new.passes), ..start };
        let list = new.edits.iter().map(|edit| {
            Edit::parse(edit).map_err(|wrong| Error::usage(wrong).at(format!("edit \"{edit}\"")))
        });
        let list: Vec<Edit> = list.collect::<Result<_>>()?;
        let prompt = Prompt { text: None, ids: start.ids.clone(), place: None };
        let passes: Vec<_> = self.passes(start.ids.len()).map(|dims| (0, dims)).collect();
        let reading = edits::Reading {
            trace: &|file, sequence| edited::source(&self.args, &self.cpu, file, sequence),
            tokenizer: self.tokenizer.as_ref(),
            prompts: &[prompt],
            passes: &passes,
            // Another run is computed only as far as this one.
            most: start.draws,
        };
        let other = edits::with(&self.model.with_edits(Edits::default()), list, &reading)?;
        self.sequences.another(run, start, Some(Arc::new(other)))
    }

    /// The passes that a run of a prompt of `tokens` tokens may have.
    fn passes(&self, tokens: usize) -> impl Iterator<Item = PassDims> {
        let context = self.model.config.context;
        let first = PassDims { pass: 0, start: 0, tokens, ..PassDims::default() };
        let later = (1..MOST_PASSES).map_while(move |pass| {
            let start = tokens + pass - 1;
            (start < context).then_some(PassDims { pass, start, tokens: 1, ..PassDims::default() })
        });
        std::iter::once(first).chain(later)
    }

    fn reads(&self) -> Result<&dyn Tokenizer> {
        self.tokenizer.as_deref().ok_or_else(prompt::no_tokenizer)
    }
}
