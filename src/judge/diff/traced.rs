//! A run that is compared: what it says about itself, and its stages, one at a time.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde_json::{Map, Value};

use llama_trace_core::config::{CacheDtype, Precision};
use llama_trace_core::error::Result;
use llama_trace_core::trace::{Frame, ModelCard, PassDims, Sampling, Site, Stage, TokenLabel, Values};

/// What a run says about itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct About {
    /// What messages call it.
    pub name: String,
    /// The model; none where it does not say.
    pub card: Option<ModelCard>,
    /// Settings of the model under the names of [`llama_trace_core::config::ModelConfig`], where it knows some and has no card.
    pub settings: Map<String, Value>,
    /// The arithmetic that its values come from; none where it does not say.
    pub precision: Option<Precision>,
    /// The number type of its cached keys and values; none where it does not say.
    pub cache: Option<CacheDtype>,
    /// A fingerprint of configuration and weights, where it has one.
    pub fingerprint: Option<String>,
    /// How its tokens were drawn, where it says so.
    pub sampling: Option<Sampling>,
    /// The text that the model was given, where it says so: a chat's template is in it.
    pub prompt: Option<String>,
    /// The passes.
    pub passes: Vec<Pass>,
    /// How many of the model's layers ran, where it says so.
    pub layers: Option<usize>,
    /// Stages whose files it names and that are nowhere: what to say of each.
    pub nowhere: BTreeMap<Stage, String>,
    /// Stages whose files may as well be those of others: which.
    pub unsure: BTreeMap<Stage, Vec<Stage>>,
}

impl About {
    /// The settings that are known: all of a card's, or some.
    pub fn known(&self) -> Map<String, Value> {
        match self.card.as_ref().map(|card| serde_json::json!(card.config)) {
            Some(Value::Object(all)) => all,
            _ => self.settings.clone(),
        }
    }

    /// Whether another runtime wrote it: what this program writes says the whole model.
    pub fn is_foreign(&self) -> bool {
        self.card.is_none()
    }

    /// Whether its cache may keep fewer bits than float32 has: where it says so, or says nothing and computes in fewer itself.
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
    /// Its number, and how long it is.
    pub dims: PassDims,
    /// The tokens that it read; none where the run does not say.
    pub tokens: Vec<TokenLabel>,
}

/// What a run has of a stage.
#[derive(Clone, Debug)]
pub enum Found {
    /// Its values. The shape is the run's own and need not be the stage's.
    Frame(Arc<Frame>),
    /// Nothing.
    Missing,
    /// Something that cannot be read: why.
    Damaged(String),
    /// More than has room: why.
    TooLarge(String),
}

impl Found {
    /// The same as the values of `site`.
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

/// A run that is compared. Its stages are asked for in the order of the pass, each once, or once more where it stands for
/// one that the other run has beyond the pass's own.
pub trait Traced {
    /// What it says about itself.
    fn about(&self) -> &About;

    /// The values of a stage.
    ///
    /// # Errors
    /// Where the run itself fails. What is wrong with one stage is no error.
    fn stage(&mut self, site: Site) -> Result<Found>;

    /// Rows of the values of a stage as they lie, (rows, width), where the run has them in the stage's own shape and number
    /// type and nothing is to be made or copied; none else.
    ///
    /// # Errors
    /// What is wrong with them, in words.
    fn rows(&self, _site: Site, _rows: Range<usize>) -> std::result::Result<Option<Values<'_>>, String> {
        Ok(None)
    }

    /// Why a stage that is missing should be there: the run names its file, and has others of this layer and pass. None
    /// where it may be left out.
    fn unwritten(&self, _site: Site) -> Option<String> {
        None
    }

    /// Whether it has a stage all the same that this pass does not have.
    fn has_beyond(&self, _site: Site) -> bool {
        false
    }

    /// Nobody looks at these rows any more.
    fn done(&self, _site: Site, _rows: Range<usize>) {}

    /// A number for the values of a stage that [`Traced::rows`] has: another one for others, but for one case in 2⁶⁴.
    fn print(&self, _site: Site) -> Option<u64> {
        None
    }
}
