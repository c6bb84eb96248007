//! The model: its weights, its cache, and the one forward pass. Read [`forward`] first.

mod activations;
pub mod ahead;
mod fingerprint;
pub mod forward;
pub mod kv_cache;
mod launched;
mod observe;
pub mod pass;
mod weight_rows;
mod weights;

use crate::backend::{Backend, Buffer};
use llama_trace_core::config::ModelConfig;
use llama_trace_core::error::Result;
use llama_trace_core::ops;
use llama_trace_core::trace::{ModelCard, Sizes};
use llama_trace_formats::checkpoint::Checkpoint;

pub use activations::{Activations, buffer_bytes};
pub use fingerprint::Fingerprint;
pub use kv_cache::KvCache;
pub use weights::{LayerWeights, Linear, Weights};

/// A model that is ready to run on a backend.
pub struct Model {
    /// The hyperparameters.
    pub config: ModelConfig,
    /// The weights, on the backend.
    pub weights: Weights,
    /// The device that it runs on.
    pub backend: Box<dyn Backend>,
    /// RoPE's angle per position for each pair (C/2), in radians.
    pub rope_frequencies: Buffer,
    name: String,
    ignored: Vec<String>,
    without: Vec<String>,
}

impl Model {
    /// Loads a checkpoint's weights onto `backend`.
    ///
    /// # Errors
    /// Returns [`llama_trace_core::error::Error::Model`] if a weight is missing or has the wrong shape, and
    /// [`llama_trace_core::error::Error::Interrupted`] if the backend was asked to stop.
    pub fn load(checkpoint: &Checkpoint, backend: impl Backend + 'static) -> Result<Self> {
        Self::load_on(checkpoint, Box::new(backend))
    }

    /// [`Model::load`] for a backend that was chosen at run time.
    ///
    /// # Errors
    /// The errors of [`Model::load`].
    pub fn load_on(checkpoint: &Checkpoint, backend: Box<dyn Backend>) -> Result<Self> {
        let config = checkpoint.config.clone();
        let weights = Weights::load(checkpoint, &*backend)?;
        // After a request to stop, weights that were being assembled may be incomplete.
        backend.stop().check()?;
        let frequencies = ops::rope::frequencies(config.head_dim, config.rope_theta, &config.rope_scaling);
        let mut rope_frequencies = backend.buffer(frequencies.len())?;
        backend.write(&frequencies, &mut rope_frequencies)?;
        backend.sync()?;
        let (name, ignored) = (checkpoint.name.clone(), checkpoint.notes.ignored.clone());
        let without = checkpoint.notes.ablated.iter().map(ToString::to_string).collect();
        Ok(Self { config, weights, backend, rope_frequencies, name, ignored, without })
    }

    /// The sizes from which a trace computes its shapes.
    pub fn sizes(&self) -> Sizes {
        Sizes::new(&self.config, self.backend.precision())
    }

    /// The description of this model that a trace stores.
    pub fn card(&self) -> ModelCard {
        ModelCard {
            name: self.name.clone(),
            ignored: self.ignored.clone(),
            without: self.without.clone(),
            config: self.config.clone(),
            precision: self.backend.precision(),
            backend: self.backend.name().into(),
        }
    }
}
