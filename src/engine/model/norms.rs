//! The norms of a model: their weights, and the form in which they are computed.

use crate::backend::family::{FamilyOperations, NormOf};
use crate::backend::{Backend, Buffer, Vector};
use llama_trace_core::config::{ModelConfig, NormKind, Precision, QkWidth};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::ops::norm::Form;
use llama_trace_formats::checkpoint::{Checkpoint, Weight};

/// A norm. In Llama it is an RMSNorm with a weight.
pub struct Norm {
    /// The weight; ones if the family has none.
    pub weight: Vector,
    /// The bias; only a LayerNorm has one.
    pub bias: Option<Vector>,
    form: Form,
    /// Values in a row.
    width: usize,
    /// Whether it is Llama's, which every backend computes.
    is_plain: bool,
}

/// The part of a norm that follows from its kind.
#[derive(Clone, Copy)]
struct Of {
    kind: NormKind,
    /// Values in a row.
    width: usize,
    /// Values in the weight.
    weights: usize,
    weight: Option<Weight>,
    bias: Option<Weight>,
}

/// The operations of other families.
///
/// # Errors
/// [`Error::Usage`] if the backend does not have them.
pub(super) fn families(backend: &dyn Backend) -> Result<&dyn FamilyOperations> {
    let missing = || Error::usage(format!("the backend {} has only Llama's operations", backend.name()));
    backend.families().ok_or_else(|| missing().next("run the model with --device cpu"))
}

impl Norm {
    /// A norm of the residual stream.
    pub(super) fn of_stream(
        checkpoint: &Checkpoint,
        backend: &dyn Backend,
        weight: Weight,
        bias: Weight,
    ) -> Result<Self> {
        let (norm, dim) = (checkpoint.config.norm, checkpoint.config.dim);
        let (weight, bias) = (norm.weight.then_some(weight), norm.bias.then_some(bias));
        Self::load(checkpoint, backend, Of { kind: norm.kind, width: dim, weights: dim, weight, bias })
    }

    /// The norm of the queries or of the keys, which have `heads` heads.
    pub(super) fn of_heads(
        checkpoint: &Checkpoint,
        backend: &dyn Backend,
        weight: Weight,
        heads: usize,
    ) -> Result<Self> {
        let ModelConfig { qk_norm_form: form, head_dim, .. } = checkpoint.config;
        let width = if form.width == QkWidth::Whole { heads * head_dim } else { head_dim };
        let weights = if form.width == QkWidth::Head { head_dim } else { heads * head_dim };
        let weight = form.weight.then_some(weight);
        Self::load(checkpoint, backend, Of { kind: form.kind, width, weights, weight, bias: None })
    }

    fn load(checkpoint: &Checkpoint, backend: &dyn Backend, of: Of) -> Result<Self> {
        let config = &checkpoint.config;
        let (centred, bf16) = (of.kind == NormKind::Layer, backend.precision() == Precision::Bf16);
        let rounded_once = centred || config.norm.rounded_once;
        let plus = if config.norm.one_plus { 1.0 } else { 0.0 };
        let named = |weight: Weight| move |error| unmade(error, weight);
        let vector = |weight: Weight, count: usize| {
            let tensor = checkpoint.tensor(weight, &[count])?;
            match plus != 0.0 || rounded_once && bf16 {
                true => families(backend)?.exact_vector(tensor, plus).map_err(named(weight)),
                false => backend.vector(tensor).map_err(named(weight)),
            }
        };
        let bias = |weight: Weight| {
            let tensor = checkpoint.tensor(weight, &[of.width])?;
            backend.vector(tensor).map_err(named(weight))
        };
        let weight = match of.weight {
            Some(weight) => vector(weight, of.weights)?,
            None => families(backend)?.ones(of.weights)?,
        };
        let is_plain = !centred && of.bias.is_none() && of.weights == of.width && !(rounded_once && bf16);
        let form = Form { centred, rounded_once, eps: config.norm_eps };
        Ok(Self { weight, bias: of.bias.map(bias).transpose()?, form, width: of.width, is_plain })
    }

    /// Its form.
    pub fn form(&self) -> Form {
        self.form
    }

    /// Values in a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// ε.
    pub fn eps(&self) -> f32 {
        self.form.eps
    }

    /// Whether it is Llama's RMSNorm.
    pub(super) fn is_plain(&self) -> bool {
        self.is_plain
    }

    /// out = the norm of x, whose `tokens` rows have `width` values together.
    ///
    /// # Errors
    /// The errors of the backend.
    pub fn apply(
        &self,
        backend: &dyn Backend,
        x: &Buffer,
        (tokens, width): (usize, usize),
        out: &mut Buffer,
    ) -> Result<()> {
        let rows = tokens * (width / self.width);
        if self.is_plain {
            return backend.rms_norm(x, &self.weight, self.form.eps, rows, out);
        }
        let Self { weight, bias, form, width, .. } = self;
        let norm = NormOf { weight, bias: bias.as_ref(), form: *form, width: *width };
        families(backend)?.norm(x, norm, rows, out)
    }
}

/// Adds the weight's name to an error, unless the error is a request to stop.
pub(super) fn unmade(error: Error, weight: Weight) -> Error {
    match error {
        Error::Interrupted(_) => error,
        error if error.says_next() => error.at(weight.describe()),
        error => error.at(weight.describe()).next("end other programs, or use a smaller model"),
    }
}
