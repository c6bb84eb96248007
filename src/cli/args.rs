//! Options that several commands have. Their values are in `values`.

mod values;

use std::path::PathBuf;

use clap::Args;

use super::memory;
use llama_trace_core::edit::Edit;
use llama_trace_core::error::{Error, shortened};
use llama_trace_core::trace::Address;
use llama_trace_picture::Paper;
use llama_trace_runs::replay::DEFAULT_MEMORY;
use llama_trace_tui::palette::Palette;
use llama_trace_tui::screen_option::ScreenOption;

pub(super) use values::{
    BenchFormat, CacheDtypeName, CheckFormat, DeviceName, DiffFormat, EffectName, ExportFormat, KataLanguage,
    KeepName, LogFormat, MetricName, PatchFormat, PatchPart, PrecisionName, RankedPart, RuntimeName,
    ScreenSize, at_least_one, random_weights, whole,
};
use values::{PaletteName, number, one};

/// Headings of the options that several commands have. A command's own options have no heading and come
/// first.
pub(super) const MODEL: &str = "Model";
pub(super) const PROMPT: &str = "Prompt";
pub(super) const SAMPLING: &str = "Sampling";
pub(super) const DEVICE: &str = "Device";
pub(super) const TRACER: &str = "Tracer";

/// Reads an address.
///
/// # Errors
/// A message that says what is wrong with the text.
pub(super) fn address(text: &str) -> Result<Address, String> {
    Address::parse(text).map_err(|wrong| {
        match wrong.starts_with("there is no stage") && wrong.ends_with('`') {
            true => format!("{}; `llama-trace log` lists the stages", shortened(&wrong)),
            false => shortened(&wrong).into_owned(),
        }
    })
}

/// A message that says what is wrong with the text.
fn edit(text: &str) -> Result<Edit, String> {
    Edit::parse(text).map_err(|wrong| shortened(&wrong).into_owned())
}

/// As [`edit`], for a part that is switched off.
fn switch(part: &str) -> Result<Edit, String> {
    Edit::without(part).map_err(|wrong| shortened(&wrong).into_owned())
}

/// Options that choose the model.
#[derive(Args, Clone, Debug)]
pub(super) struct ModelArgs {
    /// Directory, file or hub org/name [default: built-in]
    #[arg(long, short, value_name = "MODEL", help_heading = MODEL)]
    pub(super) model: Option<PathBuf>,

    /// Open models of the hub from the cache alone
    #[arg(long, help_heading = MODEL)]
    pub(super) offline: bool,

    /// Use this tokenizer instead of the model's own
    #[arg(long, value_name = "FILE", help_heading = MODEL)]
    pub(super) tokenizer: Option<PathBuf>,

    /// Set the factor of the model's RoPE scaling
    #[arg(long, value_name = "X", allow_negative_numbers = true, help_heading = MODEL)]
    pub(super) rope_factor: Option<f32>,

    /// Ignore field F of the configuration (repeatable)
    #[arg(long, value_name = "F", help_heading = MODEL)]
    pub(super) ignore_config: Vec<String>,

    /// Switch parts off: L0/h2, L0/n17, L0/ffn (repeatable)
    #[arg(long, value_name = "PART", value_delimiter = ',', value_parser = switch, help_heading = MODEL)]
    pub(super) without: Vec<Edit>,

    /// Change values: "L1/softmax[h=0] *= 0.5" (repeatable)
    #[arg(long, value_name = "EDIT", value_parser = edit, allow_hyphen_values = true, help_heading = MODEL)]
    pub(super) edit: Vec<Edit>,

    /// File with one edit a line
    #[arg(long, value_name = "FILE", help_heading = MODEL)]
    pub(super) edits: Option<PathBuf>,

    /// f32, bf16 or q8 [default: by the weights]
    #[arg(long, value_enum, value_name = "NAME", hide_possible_values = true, help_heading = MODEL)]
    pub(super) precision: Option<PrecisionName>,
}

/// Options for a run and for sampling.
#[derive(Args, Clone, Debug)]
pub(super) struct RunArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,

    /// Text to begin with; - is standard input (repeatable)
    #[arg(long, short, value_name = "TEXT", group = "text", allow_hyphen_values = true, help_heading = PROMPT)]
    pub(super) prompt: Vec<String>,

    /// File with the text; - is standard input
    #[arg(long, value_name = "FILE", group = "text", help_heading = PROMPT)]
    pub(super) prompt_file: Option<PathBuf>,

    /// File with one prompt a line, or a .jsonl file
    #[arg(long, value_name = "FILE", group = "text", help_heading = PROMPT)]
    pub(super) prompts: Option<PathBuf>,

    /// Token ids instead of a text: 1,403,407 or @FILE
    #[arg(long, value_name = "IDS", group = "text", help_heading = PROMPT)]
    pub(super) ids: Option<String>,

    /// Tokens to draw [default: 128; 1 if stages are shown]
    #[arg(short = 'n', long, value_name = "N", value_parser = whole::<usize>, allow_negative_numbers = true, help_heading = PROMPT)]
    pub(super) tokens: Option<usize>,

    #[command(flatten)]
    pub(super) sampling: SamplingArgs,

    /// Random stream of the first prompt [default: 0]
    #[arg(long, value_name = "I", value_parser = whole::<u64>, allow_negative_numbers = true, help_heading = SAMPLING)]
    pub(super) stream: Option<u64>,

    #[command(flatten)]
    pub(super) cpu: CpuArgs,

    /// Tokens of the KV cache [default: what the run needs]
    #[arg(long, value_name = "N", value_parser = whole::<usize>, allow_negative_numbers = true, help_heading = DEVICE)]
    pub(super) context: Option<usize>,
}

/// Options for sampling the next token.
#[derive(Args, Clone, Debug)]
pub(super) struct SamplingArgs {
    /// 0 is greedy
    #[arg(long, value_name = "T", visible_alias = "temp", default_value_t = 0.0, value_parser = number, allow_negative_numbers = true, help_heading = SAMPLING)]
    pub(super) temperature: f32,

    /// Keep the likeliest tokens, up to this sum
    #[arg(long, value_name = "P", value_parser = number, allow_negative_numbers = true, help_heading = SAMPLING)]
    pub(super) top_p: Option<f32>,

    /// Keep the K likeliest tokens
    #[arg(long, value_name = "K", value_parser = whole::<usize>, allow_negative_numbers = true, help_heading = SAMPLING)]
    pub(super) top_k: Option<usize>,

    /// Drop tokens below P times the likeliest
    #[arg(long, value_name = "P", value_parser = number, allow_negative_numbers = true, help_heading = SAMPLING)]
    pub(super) min_p: Option<f32>,

    /// Keep the most typical tokens, up to this sum
    #[arg(long, value_name = "P", value_parser = number, allow_negative_numbers = true, help_heading = SAMPLING)]
    pub(super) typical_p: Option<f32>,

    /// Penalty of repeated tokens; 1 is off
    #[arg(long, value_name = "R", value_parser = number, allow_negative_numbers = true, help_heading = SAMPLING)]
    pub(super) repetition_penalty: Option<f32>,

    /// Seed of the random numbers [default: 0]
    #[arg(long, value_name = "SEED", value_parser = whole::<u64>, allow_negative_numbers = true, help_heading = SAMPLING)]
    pub(super) seed: Option<u64>,
}

/// Options for the place at which the tracer opens.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct OpenArgs {
    /// Pass to open at; 0 is the prefill
    #[arg(long, visible_alias = "passes", value_name = "P", value_parser = one, allow_negative_numbers = true, help_heading = TRACER)]
    pub(super) pass: Option<usize>,

    /// Layer to open at, from 0
    #[arg(long, visible_alias = "layers", value_name = "L", value_parser = one, allow_negative_numbers = true, help_heading = TRACER)]
    pub(super) layer: Option<usize>,

    /// Stage or view to open at, as xq_heads
    #[arg(long, visible_alias = "stages", value_name = "NAME", help_heading = TRACER)]
    pub(super) stage: Option<String>,

    /// Head to open at, from 0
    #[arg(long, value_name = "H", value_parser = one, allow_negative_numbers = true, help_heading = TRACER)]
    pub(super) head: Option<usize>,

    /// Address to open at, as p0/L1/softmax[h=2,t=5,k=1]
    #[arg(long, value_name = "ADDRESS", value_parser = address, conflicts_with_all = ["pass", "layer", "stage", "head"], help_heading = TRACER)]
    pub(super) at: Option<Address>,

    /// File for the marks of the tracer (keys m and ')
    #[arg(long, value_name = "FILE", help_heading = TRACER)]
    pub(super) marks: Option<PathBuf>,

    /// File of a lesson, to which the key W adds scenes
    #[arg(long, value_name = "FILE", help_heading = TRACER)]
    pub(super) lesson: Option<PathBuf>,

    #[command(flatten)]
    pub(super) screen: ScreenArgs,
}

impl OpenArgs {
    /// The name of the first option that is given. Each of them opens the tracer, as `--step` does.
    pub(super) fn given(&self) -> Option<&'static str> {
        let Self { pass, layer, stage, head, at, marks, lesson, screen } = self;
        let place = [
            (pass.is_some(), "pass"),
            (layer.is_some(), "layer"),
            (stage.is_some(), "stage"),
            (head.is_some(), "head"),
            (at.is_some(), "at"),
            (marks.is_some(), "marks"),
            (lesson.is_some(), "lesson"),
        ];
        let place = place.into_iter().find_map(|(given, name)| given.then_some(name));
        place.or_else(|| screen.list().first().map(|(option, _)| option.name()))
    }
}

/// Settings of the tracer's screen.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct ScreenArgs {
    /// View to open with, as numbers or heads
    #[arg(long, value_name = "NAME", value_parser = screen(ScreenOption::View), help_heading = TRACER)]
    pub(super) view: Option<String>,

    /// Axis to fix, by its letter: h, t or k
    #[arg(long, value_name = "AXIS", value_parser = screen(ScreenOption::Hold), help_heading = TRACER)]
    hold: Option<String>,

    /// Compare with h=2, L0, p0, or plain (without edits)
    #[arg(long, value_name = "PLACE", value_parser = screen(ScreenOption::Compare), help_heading = TRACER)]
    compare: Option<String>,

    /// Sampler setting to try, as "temperature 1.5"
    #[arg(long, value_name = "OPTIONS", value_parser = screen(ScreenOption::Try), allow_hyphen_values = true, help_heading = TRACER)]
    r#try: Option<String>,

    /// Token strip: tokens, surprise or attention
    #[arg(long, value_name = "NAME", value_parser = screen(ScreenOption::Strip), help_heading = TRACER)]
    strip: Option<String>,

    /// Colours: slice, tensor, deviations, largest
    #[arg(long, value_name = "NAME", value_parser = screen(ScreenOption::Scale), help_heading = TRACER)]
    scale: Option<String>,

    /// Visible panels: outline,tensor,notes
    #[arg(long, value_name = "LIST", value_parser = screen(ScreenOption::Panels), help_heading = TRACER)]
    panels: Option<String>,
}

/// A parser for the value of a setting of the screen. The value is checked again at the place where the tracer opens.
fn screen(option: ScreenOption) -> impl Fn(&str) -> Result<String, String> + Clone + Send + Sync + 'static {
    move |value| {
        option.check(value).map(|()| value.to_owned()).map_err(|wrong| shortened(&wrong).into_owned())
    }
}

impl ScreenArgs {
    /// The settings, in the order in which they are applied.
    pub(super) fn list(&self) -> Vec<(ScreenOption, String)> {
        let given = |option: ScreenOption| match option {
            ScreenOption::View => &self.view,
            ScreenOption::Hold => &self.hold,
            ScreenOption::Compare => &self.compare,
            ScreenOption::Try => &self.r#try,
            ScreenOption::Strip => &self.strip,
            ScreenOption::Scale => &self.scale,
            ScreenOption::Panels => &self.panels,
        };
        ScreenOption::ALL.into_iter().filter_map(|option| Some((option, given(option).clone()?))).collect()
    }
}

/// Options that select a part of a run.
#[derive(Args, Clone, Debug)]
pub(super) struct SelectArgs {
    /// Passes, as 0-2 or 0,2 [default: all]
    #[arg(long, visible_alias = "passes", value_name = "LIST", allow_negative_numbers = true)]
    pub(super) pass: Option<String>,

    /// Layers, as 0,3-5 [default: all]
    #[arg(long, visible_alias = "layers", value_name = "LIST", allow_negative_numbers = true)]
    pub(super) layer: Option<String>,

    /// Stages, as xq,softmax [default: all]
    #[arg(long, visible_alias = "stages", value_name = "LIST")]
    pub(super) stage: Option<String>,
}

/// Memory limit of the tracer.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct MemoryArgs {
    /// Memory for stage values, as 64MiB [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = memory::parse, help_heading = TRACER)]
    pub(super) memory: Option<usize>,
}

/// Options for reading a recorded run instead of running a prompt.
#[derive(Args, Clone, Debug)]
pub(super) struct TraceArgs {
    /// Read a recorded run instead of running a prompt
    #[arg(long, value_name = "PATH", help_heading = PROMPT, conflicts_with_all = ["text", "tokens", "temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "seed", "stream", "context"])]
    pub(super) trace: Option<PathBuf>,
}

/// Colours of the tracer.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct ColourArgs {
    /// Colours for a white terminal or a projector
    #[arg(long, help_heading = TRACER)]
    light: bool,

    /// red-blue, purple-orange or grey
    #[arg(long, value_enum, value_name = "NAME", default_value_t = PaletteName::RedBlue, hide_possible_values = true, help_heading = TRACER)]
    palette: PaletteName,
}

impl ColourArgs {
    /// The background of the screen.
    pub(super) fn paper(self) -> Paper {
        if self.light { Paper::Light } else { Paper::Dark }
    }

    /// The colour scales of the values.
    pub(super) fn palette(self) -> Palette {
        match self.palette {
            PaletteName::RedBlue => Palette::RedBlue,
            PaletteName::PurpleOrange => Palette::PurpleOrange,
            PaletteName::Grey => Palette::Grey,
        }
    }

    /// Refuses the options, for a command that draws nothing.
    ///
    /// # Errors
    /// [`Error::Usage`] if one of the options is given.
    pub(super) fn refuse(self) -> llama_trace_core::error::Result<()> {
        match (self.light, self.palette) {
            (false, PaletteName::RedBlue) => Ok(()),
            _ => Err(Error::usage(
                "--light and --palette are options of the tracer; text output has no colours",
            )
            .next("add --step, or leave them out")),
        }
    }
}

/// Where to compute, and how the CPU is used.
#[derive(Args, Clone, Debug)]
pub(super) struct CpuArgs {
    /// cpu, cuda, cuda:1 or auto
    #[arg(long, value_name = "DEVICE", default_value_t, value_parser = DeviceName::parse, help_heading = DEVICE)]
    pub(super) device: DeviceName,

    /// Threads to compute with [default: one for each core]
    #[arg(long, value_name = "N", value_parser = whole::<usize>, allow_negative_numbers = true, help_heading = DEVICE)]
    pub(super) threads: Option<usize>,

    /// CPU kernel, as avx2 [default: the fastest]
    #[arg(long, value_name = "NAME", help_heading = DEVICE)]
    pub(super) cpu_kernel: Option<String>,

    /// Copy the weights into huge pages (Linux)
    #[arg(long, help_heading = DEVICE)]
    pub(super) huge_pages: bool,

    /// KV cache as f32, f16 or bf16 [default: by precision]
    #[arg(long, value_enum, value_name = "TYPE", hide_possible_values = true, help_heading = DEVICE)]
    pub(super) cache_dtype: Option<CacheDtypeName>,
}

impl MemoryArgs {
    /// The given number of bytes, or the default.
    pub(super) fn bytes(self) -> usize {
        self.memory.unwrap_or(DEFAULT_MEMORY)
    }
}

impl RunArgs {
    /// Returns whether the options give a prompt.
    pub(super) fn has_prompt(&self) -> bool {
        let RunArgs { prompt, prompt_file, prompts, ids, .. } = self;
        !prompt.is_empty() || prompt_file.is_some() || prompts.is_some() || ids.is_some()
    }
}
