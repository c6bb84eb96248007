//! What a trace says about itself: its metadata.

use serde::{Deserialize, Serialize};

use llama_trace_core::config::{ARITHMETIC, CacheDtype};
use llama_trace_core::trace::manifest::Drawing;
use llama_trace_core::trace::{ModelCard, Stage};

/// What a file says that it is, and which form of it.
pub(super) const FORMAT: &str = "llama-trace trace";
pub(super) const VERSION: u32 = 3;

/// How much of a run is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Keep {
    /// Every stage.
    All,
    /// What cannot be derived from other stages.
    Minimal,
    /// Statistics of every stage, and the tokens.
    Stats,
}

/// What a trace says about itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// The program that wrote it.
    pub program: String,
    /// The model.
    pub card: ModelCard,
    /// The number type of the cached keys and values, by its name.
    pub cache: String,
    /// How the tokens were drawn.
    pub sampling: Drawing,
    /// How many sequences there are.
    pub sequences: usize,
    /// What was kept.
    pub keep: Keep,
    /// Bytes that the file was to have at most.
    pub budget: Option<u64>,
    /// The stages of which there are statistics, by name. Those have their values too, unless the budget left them out
    /// or statistics alone were to be kept.
    pub stages: Vec<String>,
    /// Whether stages that are derived have the bits that the run had; else they are within the bound of the backend.
    pub exact: bool,
    /// What tells the model from others.
    pub fingerprint: Fingerprint,
}

/// What tells a model from others, in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// SHA-256 of the configuration as JSON.
    pub config: String,
    /// SHA-256 of rows of every weight, as float32.
    pub weights: String,
}

impl About {
    /// The number type of the cached keys and values, where it is one.
    pub fn cache(&self) -> Option<CacheDtype> {
        CacheDtype::from_name(&self.cache)
    }

    /// The stages of which there are statistics; none where one has no name of a stage.
    pub fn stages(&self) -> Option<Vec<Stage>> {
        self.stages.iter().map(|name| Stage::from_name(name)).collect()
    }

    /// The metadata of the file.
    pub(super) fn metadata(&self) -> [(&'static str, String); 4] {
        let run = serde_json::to_string(self).unwrap_or_else(|_| unreachable!("it has names for keys"));
        [
            ("format", FORMAT.to_owned()),
            ("format_version", VERSION.to_string()),
            ("arithmetic", ARITHMETIC.to_string()),
            ("run", run),
        ]
    }
}
