//! The metadata of a trace: the description of its run.

use serde::{Deserialize, Serialize};

use llama_trace_core::config::{ARITHMETIC, CacheDtype};
use llama_trace_core::trace::manifest::Drawing;
use llama_trace_core::trace::{ModelCard, Stage};

/// The format name and version in a file.
pub(super) const FORMAT: &str = "llama-trace trace";
pub(super) const VERSION: u32 = 3;

/// How much of a run is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Keep {
    /// Every stage.
    All,
    /// Only stages that cannot be derived from others.
    Minimal,
    /// Statistics of every stage, and the tokens.
    Stats,
}

/// The description of a recorded run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// The program that wrote the trace.
    pub program: String,
    /// The model.
    pub card: ModelCard,
    /// The number type of the KV cache, by name.
    pub cache: String,
    /// The sampler settings.
    pub sampling: Drawing,
    /// The number of sequences.
    pub sequences: usize,
    /// How much was kept.
    pub keep: Keep,
    /// The size limit of the file in bytes.
    pub budget: Option<u64>,
    /// The stages with statistics, by name. Their values are kept too, unless the budget excluded them or only
    /// statistics were kept.
    pub stages: Vec<String>,
    /// Whether derived stages have the bits of the run. Otherwise they are within the tolerance of the backend.
    pub exact: bool,
    /// The fingerprint of the model.
    pub fingerprint: Fingerprint,
}

/// The fingerprint of a model, in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// SHA-256 of the configuration as JSON.
    pub config: String,
    /// SHA-256 of a sample of rows of every weight, as float32.
    pub weights: String,
}

impl About {
    /// The number type of the KV cache; `None` if its name is unknown.
    pub fn cache(&self) -> Option<CacheDtype> {
        CacheDtype::from_name(&self.cache)
    }

    /// The stages with statistics; `None` if a name is not a stage.
    pub fn stages(&self) -> Option<Vec<Stage>> {
        let sizes = self.card.sizes();
        self.stages.iter().map(|name| Some(Stage::from_name(name)?.in_model(&sizes))).collect()
    }

    /// The metadata of the file.
    pub(super) fn metadata(&self) -> [(&'static str, String); 4] {
        let run = serde_json::to_string(self).unwrap_or_else(|_| unreachable!("all map keys are strings"));
        [
            ("format", FORMAT.to_owned()),
            ("format_version", VERSION.to_string()),
            ("arithmetic", ARITHMETIC.to_string()),
            ("run", run),
        ]
    }
}
