//! A run to compare: its description, and its stages one at a time.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde_json::{Map, Value};

use llama_trace_core::config::{CacheDtype, Precision};
use llama_trace_core::error::Result;
use llama_trace_core::trace::{Frame, ModelCard, PassDims, Sampling, Site, Stage, TokenLabel, Values};

/// The description of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct About {
    /// Its name in messages.
    pub name: String,
    /// The model; `None` if it is unknown.
    pub card: Option<ModelCard>,
    /// Settings of the model, named as in [`llama_trace_core::config::ModelConfig`], if some are known without a card.
    pub settings: Map<String, Value>,
    /// The arithmetic of its values; `None` if it is unknown.
    pub precision: Option<Precision>,
    /// The number type of its KV cache; `None` if it is unknown.
    pub cache: Option<CacheDtype>,
    /// A fingerprint of configuration and weights, if it has one.
    pub fingerprint: Option<String>,
    /// The sampler settings, if they are known.
    pub sampling: Option<Sampling>,
    /// The text given to the model, if it is known; it includes a chat template.
    pub prompt: Option<String>,
    /// The passes.
    pub passes: Vec<Pass>,
    /// The number of the model's layers that ran, if it is known.
    pub layers: Option<usize>,
    /// Stages whose files the run names but lacks, with a message for each.
    pub nowhere: BTreeMap<Stage, String>,
    /// Stages whose files may hold other stages, each with the list of these stages.
    pub unsure: BTreeMap<Stage, Vec<Stage>>,
}

impl About {
    /// The known settings: all settings of the card, or without a card those that are known.
    pub fn known(&self) -> Map<String, Value> {
        match self.card.as_ref().map(|card| serde_json::json!(card.config)) {
            Some(Value::Object(all)) => all,
            _ => self.settings.clone(),
        }
    }

    /// Returns whether another runtime wrote it; this program always writes the complete model card.
    pub fn is_foreign(&self) -> bool {
        self.card.is_none()
    }

    /// Returns whether its cache may have fewer bits than float32: as declared, or if nothing is declared, because it
    /// computes in fewer bits.
    pub(super) fn may_cache_fewer(&self) -> bool {
        match self.cache {
            Some(dtype) => dtype != CacheDtype::F32,
            None => self.precision.is_some_and(|precision| precision != Precision::F32),
        }
    }
}

/// A pass of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Pass {
    /// Its number, start and length.
    pub dims: PassDims,
    /// The tokens that it read; empty if they are unknown.
    pub tokens: Vec<TokenLabel>,
}

/// A run's values of a stage.
#[derive(Clone, Debug)]
pub enum Found {
    /// The values. Their shape is the run's own and may differ from the stage's.
    Frame(Arc<Frame>),
    /// The run has no values of the stage.
    Missing,
    /// Values that cannot be read, with the reason.
    Damaged(String),
    /// Values too large for memory, with the reason.
    TooLarge(String),
}

impl Found {
    /// The same values under `site`.
    #[must_use]
    pub fn of(self, site: Site) -> Self {
        match self {
            Self::Frame(frame) if frame.site != site => {
                Self::Frame(Arc::new(Frame { site, ..Arc::unwrap_or_clone(frame) }))
            }
            other => other,
        }
    }
}

/// A run to compare. Its stages are requested in the order of the pass, each once, or twice if a stage also stands for
/// an additional stage of the other run.
pub trait Traced {
    /// Its description.
    fn about(&self) -> &About;

    /// The values of a stage.
    ///
    /// # Errors
    /// The errors of the run itself. A damaged stage is not an error.
    fn stage(&mut self, site: Site) -> Result<Found>;

    /// Rows of the values of a stage, (rows, width), without a copy. `None` unless the run stores them in the stage's
    /// own shape and number type.
    ///
    /// # Errors
    /// A description of damaged values.
    fn rows(&self, _site: Site, _rows: Range<usize>) -> std::result::Result<Option<Values<'_>>, String> {
        Ok(None)
    }

    /// The reason why a missing stage should exist: the run names its file, and has other files of this layer and pass.
    /// `None` if it may be omitted.
    fn unwritten(&self, _site: Site) -> Option<String> {
        None
    }

    /// Returns whether the run has values of a stage that the model's pass does not have.
    fn has_beyond(&self, _site: Site) -> bool {
        false
    }

    /// Called when these rows are no longer needed.
    fn done(&self, _site: Site, _rows: Range<usize>) {}

    /// A hash of the values of a stage that [`Traced::rows`] has. Different values have different hashes, except for
    /// one case in 2⁶⁴.
    fn print(&self, _site: Site) -> Option<u64> {
        None
    }
}
