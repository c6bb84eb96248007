//! The operations that families other than Llama add. A backend has all of them or none; a model that needs one is
//! refused by a backend that has none, before its weights are loaded.

use super::{Buffer, Vector};
use llama_trace_core::config::{Activation, Pairing, RopeRounding};
use llama_trace_core::error::Result;
use llama_trace_core::ops::norm::Form;
use llama_trace_core::tensor::Tensor;

/// A norm over rows of `width` values.
#[derive(Clone, Copy)]
pub struct NormOf<'a> {
    /// One weight for all rows (width), or one for each of several rows that follow each other: for each head.
    pub weight: &'a Vector,
    /// The bias (width).
    pub bias: Option<&'a Vector>,
    /// The form.
    pub form: Form,
    /// Values in a row.
    pub width: usize,
}

/// The operations. Sizes are as in [`super::Backend`].
#[expect(clippy::missing_errors_doc, reason = "as those of Backend")]
pub trait FamilyOperations {
    /// A vector from a tensor, each value plus `plus`. It is not rounded to the precision.
    fn exact_vector(&self, tensor: &Tensor, plus: f32) -> Result<Vector>;

    /// A vector of `count` ones: the weight of a norm without a weight.
    fn ones(&self, count: usize) -> Result<Vector>;

    /// out (rows, width) = the norm of x.
    fn norm(&self, x: &Buffer, norm: NormOf<'_>, rows: usize, out: &mut Buffer) -> Result<()>;

    /// out (rows, heads, C) = x whose first 2 · pairs components of each head are rotated. `tables` are cos and sin
    /// (rows, pairs), and the number of pairs. `sizes` are rows, heads and C.
    fn rope_part(
        &self,
        x: &Buffer,
        tables: (&Buffer, &Buffer, usize),
        form: (Pairing, RopeRounding),
        sizes: (usize, usize, usize),
        out: &mut Buffer,
    ) -> Result<()>;

    /// out = activation(x), the first `count` values.
    fn activate(
        &self,
        activation: Activation,
        numbers: [f32; 2],
        x: &Buffer,
        count: usize,
        out: &mut Buffer,
    ) -> Result<()>;

    /// out = a + by · b, the first `count` values.
    fn add_scaled(&self, a: &Buffer, b: &Buffer, by: f32, count: usize, out: &mut Buffer) -> Result<()>;

    /// x = by · x, the first `count` values.
    fn times(&self, by: f32, count: usize, x: &mut Buffer) -> Result<()>;

    /// Multiplies each row of x by its factor.
    fn times_rows(&self, factors: &[f32], width: usize, x: &mut Buffer) -> Result<()>;

    /// x = cap · tanh(x / cap), the first `count` values.
    fn cap(&self, cap: f32, count: usize, x: &mut Buffer) -> Result<()>;
}
