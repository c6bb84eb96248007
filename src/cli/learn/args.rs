//! The options of the command.

use std::path::PathBuf;

use clap::Args;

use super::super::args::{ColourArgs, CpuArgs, MemoryArgs, ModelArgs, SamplingArgs, TRACER, at_least_one};
use super::super::{OpenArgs, RunArgs};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::lesson::{PromptSetting, RunSetting};

#[derive(Args, Debug)]
pub(in crate::cli) struct LearnArgs {
    /// tour, a chapter's number or name, or a file [default: list]
    #[arg(value_name = "LESSON")]
    pub(super) lesson: Option<String>,

    /// Run all scenes and answers without a terminal
    #[arg(long)]
    pub(super) check: bool,

    /// Write a page to print: an .html file
    #[arg(long, value_name = "FILE", requires = "lesson", conflicts_with = "check")]
    pub(super) export: Option<PathBuf>,

    /// Add the answers at the end of the page
    #[arg(long, requires = "export")]
    pub(super) answers: bool,

    /// Replace the page if it exists
    #[arg(long, requires = "export")]
    pub(super) force: bool,

    /// Scene to open at [default: the first open]
    #[arg(long, value_name = "N", value_parser = at_least_one, requires = "lesson", conflicts_with_all = ["check", "export"])]
    pub(super) from: Option<usize>,

    /// Neither read nor store the progress
    #[arg(long, conflicts_with_all = ["check", "export"])]
    pub(super) no_progress: bool,

    /// For a class: only tensor and words, on white
    #[arg(long, requires = "lesson", conflicts_with_all = ["check", "export"], help_heading = TRACER)]
    pub(super) present: bool,

    #[command(flatten)]
    pub(super) model: ModelArgs,

    #[command(flatten)]
    pub(super) cpu: CpuArgs,

    #[command(flatten)]
    pub(super) memory: MemoryArgs,

    #[command(flatten)]
    pub(super) colours: ColourArgs,
}

impl LearnArgs {
    /// Refuses options that the scenes of a lesson set.
    pub(super) fn check(&self) -> Result<()> {
        let ModelArgs { without, edit, edits, .. } = &self.model;
        if without.is_empty() && edit.is_empty() && edits.is_none() {
            return Ok(());
        }
        Err(Error::usage(
            "--without, --edit and --edits change a run, and the scenes of a lesson have their own runs",
        )
        .expected("the edits in the scenes: `edit: L1/softmax[h=0] = 0`")
        .next("leave these options out, or use them with --step"))
    }

    /// Whether the model is the built-in one, whose heads `heads.json` describes.
    pub(super) fn is_built_in(&self) -> bool {
        self.model.model.is_none()
    }

    /// The options of the first scene's run. A run that options cannot describe is started later, beside this one.
    pub(super) fn run(&self, first: &RunSetting) -> RunArgs {
        let plain = first.sampling.is_empty() && first.edits.is_empty() && first.precision.is_none();
        let text = |prompt: &PromptSetting| match prompt {
            // `-` would read standard input.
            PromptSetting::Text(text) if text != "-" => Some(text.clone()),
            PromptSetting::Text(_) | PromptSetting::Ids(_) => None,
        };
        let prompt: Option<Vec<String>> = first.prompts.iter().map(text).collect();
        // A model without a tokenizer has no default prompt.
        let ids = first.prompts.iter().find_map(|prompt| match prompt {
            PromptSetting::Ids(ids) => Some(ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")),
            PromptSetting::Text(_) => None,
        });
        let is_whole = plain && (prompt.is_some() || first.prompts.len() == 1 && ids.is_some());
        RunArgs {
            model: self.model.clone(),
            prompt: prompt.unwrap_or_default(),
            prompt_file: None,
            prompts: None,
            ids,
            tokens: Some(if is_whole { first.passes } else { 1 }),
            sampling: SamplingArgs {
                temperature: 0.0,
                top_p: None,
                top_k: None,
                min_p: None,
                typical_p: None,
                repetition_penalty: None,
                seed: None,
            },
            stream: None,
            cpu: self.cpu.clone(),
            context: None,
        }
    }

    /// No place: the lesson opens at its scene.
    pub(super) fn place() -> OpenArgs {
        OpenArgs::default()
    }
}
