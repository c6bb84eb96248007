//! Starts further runs beside the viewer's first one: of another prompt, with edits, or of a scene of a lesson.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::edits::{self, Files, Reading};
use super::prompt::{self, Prompt};
use crate::replay::{Live, Sequences, Start};
use llama_trace_core::edit::{Edit, Edits};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::lesson::{PromptSetting, RunSetting};
use llama_trace_core::trace::{Edited, PassDims, Run, Sampling};
use llama_trace_engine::generate::Sampler;
use llama_trace_engine::model::Model;
use llama_trace_formats::tokenizer::Tokenizer;

/// Passes of the run to which an edit may refer.
pub const MOST_PASSES: usize = 4096;

/// Tokens that a run of a scene can read after its own passes.
const MORE: usize = 64;

/// Loads the model in the precision with this name: `f32`, `bf16` or `q8`.
pub type Reload = Box<dyn Fn(&str) -> Result<Model>>;

/// The parts that all further runs share.
pub struct Starter {
    /// Loads the model in another precision.
    pub reload: Reload,
    /// The files from which edits read.
    pub files: Box<dyn Files>,
    /// The sequences of the first run.
    pub sequences: Rc<Sequences>,
    /// The sampler of the sequence with this number.
    pub sampler: Box<dyn Fn(u64) -> Sampler>,
    /// The tokenizer of the model.
    pub tokenizer: Option<Arc<dyn Tokenizer>>,
    /// The tokens that end a text.
    pub eos: Vec<u32>,
    /// Tokens to draw without a request.
    pub draws: usize,
    /// The limit of frame memory, in bytes.
    pub memory: usize,
    /// The capacity of the KV cache in tokens, if given.
    pub context: Option<usize>,
    /// The model in other precisions, which scenes asked for.
    pub others: HashMap<String, Rc<Sequences>>,
}

impl Starter {
    /// The start of sequence number `number`.
    pub fn start(&self, number: u64, ids: Vec<u32>) -> Start {
        Start {
            ids,
            draws: self.draws,
            sampler: (self.sampler)(number),
            tokenizer: self.tokenizer.clone(),
            eos: self.eos.clone(),
            memory: self.memory,
            context: self.context,
        }
    }

    /// A run of another prompt.
    ///
    /// # Errors
    /// [`Error::Prompt`] if the text cannot be run, and the errors of [`Sequences::another`].
    pub fn prompt(&self, run: Run, text: &str) -> Result<Vec<Live>> {
        let ids = self.encode(text)?;
        self.sequences.another(run, vec![self.start(0, ids)], None)
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        prompt::encode(text, self.reads(), self.sequences.model().config.context)
    }

    fn reads(&self) -> Result<&dyn Tokenizer> {
        self.tokenizer.as_deref().ok_or_else(prompt::no_tokenizer)
    }

    /// A run like an open one, with other edits or other tokens.
    ///
    /// # Errors
    /// [`Error::Usage`] if an edit does not fit the model, and the errors of [`Sequences::another`].
    pub fn edited(&self, run: Run, new: Edited) -> Result<Vec<Live>> {
        let mut ids = new.ids;
        if let Some((at, text)) = new.insert {
            ids.splice(at..at, prompt::encode_part(&text, self.reads()?)?);
        }
        let start = self.start(new.sequence as u64, ids);
        let start = Start { draws: self.draws.max(new.passes), ..start };
        let prompts = [Prompt { text: None, ids: start.ids.clone(), place: None }];
        // Another run is computed only as far as this one.
        let most = start.draws;
        // A run of a scene may have another precision, whose model has its own sequences.
        let sequences =
            new.precision.as_ref().and_then(|name| self.others.get(name)).unwrap_or(&self.sequences);
        let edits = edits::parsed(&new.edits)?;
        let model = self.with_edits(sequences.model(), edits, (&prompts, &start.sampler), most)?;
        sequences.another(run, vec![start], Some(Arc::new(model)))
    }

    /// The run of a scene.
    ///
    /// # Errors
    /// [`Error::Usage`] if the setting does not fit the model, and the errors of [`Sequences::another`].
    pub fn scene(&mut self, run: Run, setting: &RunSetting) -> Result<Vec<Live>> {
        let RunSetting { prompts, passes, sampling, precision, edits } = setting;
        let sampling = match &sampling[..] {
            [] => Sampling::GREEDY,
            words => Sampling::GREEDY.changed(&words.join(" ")).map_err(Error::usage)?,
        };
        let (sampler, sequences) = (Sampler::new(sampling)?, self.in_precision(precision.as_deref())?);
        let edits = edits::parsed(edits)?;
        if let Some(edit) = edits.iter().find(|edit| edit.reads_file()) {
            return Err(Error::usage("an edit of a lesson reads a file")
                .at(format!("edit \"{}\"", edit.text))
                .expected("a number, mean, or cells of this run or of another prompt")
                .next("a lesson holds no file: write the value itself"));
        }
        let prompts = prompts.iter().map(|prompt| match prompt {
            PromptSetting::Text(text) => {
                Ok(Prompt { text: Some(text.clone()), ids: self.encode(text)?, place: None })
            }
            PromptSetting::Ids(ids) => Ok(Prompt { text: None, ids: ids.clone(), place: None }),
        });
        let prompts = prompts.collect::<Result<Vec<Prompt>>>()?;
        let model = self.with_edits(sequences.model(), edits, (&prompts, &sampler), *passes)?;
        let most = model.config.context;
        let starts = (0..).zip(&prompts).map(|(number, prompt)| Start {
            draws: *passes,
            sampler: sampler.after(number),
            // Many scenes may have their own run, so each reserves only what it needs.
            context: Some((prompt.ids.len() + passes + MORE).min(most)),
            ..self.start(number, prompt.ids.clone())
        });
        sequences.another(run, starts.collect(), Some(Arc::new(model)))
    }

    /// The sequences of the model in a precision. The model is loaded once.
    fn in_precision(&mut self, name: Option<&str>) -> Result<Rc<Sequences>> {
        let own = self.sequences.model().backend.precision().name();
        let Some(name) = name.filter(|name| *name != own) else { return Ok(Rc::clone(&self.sequences)) };
        if let Some(known) = self.others.get(name) {
            return Ok(Rc::clone(known));
        }
        if !["f32", "bf16", "q8"].contains(&name) {
            return Err(Error::usage("there is no such precision")
                .expected("f32, bf16 or q8")
                .found(format!("`{name}`")));
        }
        let model = (self.reload)(name)?;
        let sequences = Rc::new(self.sequences.beside(Arc::new(model)));
        self.others.insert(name.to_owned(), Rc::clone(&sequences));
        Ok(sequences)
    }

    /// `model` with these edits instead of its own. A source that names no pass is computed for the first `most` passes
    /// only.
    fn with_edits(
        &self,
        model: &Model,
        list: Vec<Edit>,
        (prompts, sampler): (&[Prompt], &Sampler),
        most: usize,
    ) -> Result<Model> {
        let context = model.config.context;
        let passes = prompts.iter().enumerate().flat_map(|(sequence, prompt)| {
            let tokens = prompt.ids.len();
            let first = PassDims { pass: 0, start: 0, tokens, ..PassDims::default() };
            let later = (1..MOST_PASSES).map_while(move |pass| {
                let start = tokens + pass - 1;
                (start < context).then_some(PassDims { pass, start, tokens: 1, ..PassDims::default() })
            });
            std::iter::once(first).chain(later).map(move |dims| (sequence, dims))
        });
        let passes: Vec<_> = passes.collect();
        let reading = Reading {
            files: &*self.files,
            tokenizer: self.tokenizer.as_ref(),
            prompts,
            sampler: Some(sampler),
            chunk: None,
            passes: &passes,
            most,
        };
        edits::with(&model.with_edits(Edits::default()), list, &reading)
    }
}
