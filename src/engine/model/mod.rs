//! The model: its weights, its cache, and the one forward pass. Read [`forward`] first.

mod activations;
pub mod ahead;
mod edited;
mod families;
mod fingerprint;
pub mod forward;
pub mod kv_cache;
mod launched;
mod norms;
mod observe;
pub mod pass;
mod weight_rows;
mod weights;

use std::sync::Arc;

use crate::backend::{Backend, Buffer};
use llama_trace_core::config::{ModelConfig, Precision};
use llama_trace_core::edit::Edits;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::ops;
use llama_trace_core::trace::{ModelCard, Site, Sizes, Stage};
use llama_trace_formats::checkpoint::Checkpoint;

pub use activations::{Activations, buffer_bytes};
pub use fingerprint::Fingerprint;
pub use kv_cache::KvCache;
pub use norms::Norm;
pub use weights::{LayerWeights, Linear, Weights};

/// A model that is ready to run on a backend. A clone shares the weights.
#[derive(Clone)]
pub struct Model {
    /// The hyperparameters.
    pub config: ModelConfig,
    /// The weights, on the backend.
    pub weights: Arc<Weights>,
    /// The device that it runs on.
    pub backend: Arc<dyn Backend>,
    /// The angle per position of each pair (C/2), in radians, of each of the model's RoPEs: one, or two if the layers
    /// with a window have their own.
    pub ropes: Arc<Vec<Buffer>>,
    /// The changes that every run of this model makes.
    pub edits: Arc<Edits>,
    name: String,
    ignored: Vec<String>,
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
        Self::check_family(&config, &*backend)?;
        let weights = Weights::load(checkpoint, &*backend)?;
        // After a request to stop, weights that were being assembled may be incomplete.
        backend.stop().check()?;
        let of_rope = |rope: usize| {
            let rope = config.rope(rope);
            let frequencies = ops::rope::frequencies(backend.arithmetic(), config.turned(), &rope, 1);
            let mut buffer = backend.buffer(frequencies.len())?;
            backend.write(&frequencies, 0, &mut buffer)?;
            Result::Ok(buffer)
        };
        let ropes = (0..config.ropes()).map(of_rope).collect::<Result<Vec<_>>>()?;
        backend.sync()?;
        let (name, ignored) = (checkpoint.name.clone(), checkpoint.notes.ignored.clone());
        let (weights, ropes) = (Arc::new(weights), Arc::new(ropes));
        let (backend, edits) = (Arc::from(backend), Arc::default());
        Ok(Self { config, weights, backend, ropes, edits, name, ignored })
    }

    /// Checks that the backend computes all that this model's family does, before any weight is read.
    ///
    /// # Errors
    /// [`llama_trace_core::error::Error::Usage`] with what differs from Llama.
    pub fn check_family(config: &ModelConfig, backend: &dyn Backend) -> Result<()> {
        let (None, Some(switch)) = (backend.families(), config.first_switch(backend.precision())) else {
            return Ok(());
        };
        let next = match config.first_switch(Precision::F32) {
            Some(_) => "run it with --device cpu",
            None => "run it with --precision f32, or with --device cpu",
        };
        Err(Error::usage(format!("the device {} cannot run this model", backend.name()))
            .expected("a model that computes as Llama does")
            .found(format!("{switch}: only the CPU computes it"))
            .next(next))
    }

    /// The same model with other edits. It shares the weights.
    #[must_use]
    pub fn with_edits(&self, edits: Edits) -> Self {
        Self { edits: Arc::new(edits), ..self.clone() }
    }

    /// The norm that computes the stage of `site`, if it is one.
    pub fn norm(&self, site: Site) -> Option<&Norm> {
        let layer = site.layer.and_then(|layer| self.weights.layers.get(layer));
        match site.stage {
            Stage::FinalNorm => Some(&self.weights.final_norm),
            Stage::AttnNorm => layer?.attn_norm.as_ref(),
            Stage::PostAttnNorm => layer?.post_attn_norm.as_ref(),
            Stage::FfnNorm => layer?.ffn_norm.as_ref(),
            Stage::PostFfnNorm => layer?.post_ffn_norm.as_ref(),
            Stage::XqNorm | Stage::XqRopeNorm => layer?.q_norm.as_ref(),
            Stage::XkNorm | Stage::XkRopeNorm => layer?.k_norm.as_ref(),
            _ => None,
        }
    }

    /// The sizes from which a trace computes its shapes.
    pub fn sizes(&self) -> Sizes {
        Sizes::new(&self.config, self.backend.precision())
    }

    /// The description of this model that a trace stores.
    pub fn card(&self) -> ModelCard {
        let list = self.edits.list();
        let switches: Option<Vec<_>> =
            list.iter().map(|edit| edit.switched_off().map(str::to_owned)).collect();
        let (without, edits) = match switches {
            Some(parts) => (parts, Vec::new()),
            None => (Vec::new(), list.iter().map(ToString::to_string).collect()),
        };
        ModelCard {
            name: self.name.clone(),
            ignored: self.ignored.clone(),
            without,
            edits,
            config: self.config.clone(),
            precision: self.backend.precision(),
            arithmetic: self.backend.arithmetic(),
            backend: self.backend.name().into(),
        }
    }
}
