//! Where the operations of [`crate::ops`] run.
//!
//! A [`Backend`] is a set of operations over buffers that it owns; outputs are passed in, so that a pass
//! allocates nothing. What the numbers mean is the model's business.

pub mod cpu;

use std::ops::Range;

use crate::checkpoint::Tensor;
use crate::config::{CacheDtype, Pairing, Precision};
use crate::error::Result;
use crate::stop::Stop;

/// The sizes of one attention operation.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    /// T: query rows.
    pub tokens: usize,
    /// Keys that were cached before them; K = start + T.
    pub start: usize,
    /// H.
    pub heads: usize,
    /// G.
    pub kv_heads: usize,
    /// C.
    pub head_dim: usize,
    /// W: the keys that each token sees, its own the last of them; none for all up to its own.
    pub window: Option<usize>,
}

/// What attention has on the way to its result; rows as the stage of the same name has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionPart {
    /// The cached keys, repeated for every query head (K, H, C).
    Keys,
    /// The cached values, repeated for every query head (K, H, C).
    Values,
    /// Dot products (H, T, K).
    Qk,
    /// Divided by √C (H, T, K).
    Scores,
    /// With the mask added (H, T, K).
    MaskedScores,
    /// Attention weights (H, T, K).
    Softmax,
}

/// An observer of attention's parts. They exist only where it wants them.
pub trait AttentionSink {
    /// Whether the rows of `part` should be handed over.
    fn wants(&self, part: AttentionPart) -> bool;

    /// Takes some rows of `part`; a row is everything along the last axis.
    fn rows(&mut self, part: AttentionPart, rows: Range<usize>, values: &[f32]);
}

/// The operations of a Llama. Buffers are float32, row-major, and may be longer than an operation needs:
/// the sizes passed in say what is read and written, from the beginning.
///
/// # Errors
/// Operations over many values return [`crate::error::Error::Interrupted`] where [`Backend::stop`] was asked
/// before they were done. What they were to write is then incomplete and must not be read.
#[expect(clippy::missing_errors_doc, reason = "said once, above")]
pub trait Backend: Send + Sync {
    /// Activations.
    type Buffer: Send;
    /// A weight matrix (outputs, inputs), in the number type of its file.
    type Matrix: Send + Sync;
    /// A weight vector.
    type Vector: Send + Sync;
    /// Activations as a matrix product reads them: in another order, or in another number type.
    type Input: Send;
    /// The keys or the values of one layer (capacity, G, C).
    type Cache: Send;

    /// Its name for users: "cpu".
    fn name(&self) -> &'static str;

    /// What its operations look at between blocks of rows.
    fn stop(&self) -> &Stop;

    /// The arithmetic that it computes in.
    fn precision(&self) -> Precision;

    /// A buffer of `count` zeros.
    fn buffer(&self, count: usize) -> Self::Buffer;

    /// A matrix from a tensor of two axes.
    fn matrix(&self, tensor: &Tensor) -> Result<Self::Matrix>;

    /// A vector from a tensor of one axis.
    fn vector(&self, tensor: &Tensor) -> Self::Vector;

    /// Shows the first `count` values of `buffer` to `see`.
    fn read(&self, buffer: &Self::Buffer, count: usize, see: &mut dyn FnMut(&[f32]));

    /// Shows `rows` of `matrix` (rows, inputs), widened to float32, to `see`.
    fn read_rows(&self, matrix: &Self::Matrix, rows: Range<usize>, see: &mut dyn FnMut(&[f32]))
    -> Result<()>;

    /// Shows all of `vector` to `see`.
    fn read_vector(&self, vector: &Self::Vector, see: &mut dyn FnMut(&[f32]));

    /// Writes `values` over the beginning of `buffer`.
    fn write(&self, values: &[f32], buffer: &mut Self::Buffer);

    /// out (ids, D): the rows of `table` (V, D) that `ids` name.
    fn embedding(&self, table: &Self::Matrix, ids: &[u32], out: &mut Self::Buffer) -> Result<()>;

    /// cos and sin (T, C/2) for positions start .. start + tokens.
    fn rope_table(
        &self,
        frequencies: &[f32],
        start: usize,
        tokens: usize,
        cos: &mut Self::Buffer,
        sin: &mut Self::Buffer,
    );

    /// out (rows, D) = RMSNorm of x (rows, D).
    fn rms_norm(
        &self,
        x: &Self::Buffer,
        weight: &Self::Vector,
        eps: f32,
        rows: usize,
        out: &mut Self::Buffer,
    ) -> Result<()>;

    /// An input with nothing in it.
    fn input(&self) -> Self::Input;

    /// Makes x (rows, width) ready for the matrix products that read it; in int8 it is quantised here. A backend
    /// that sums in another order for many tokens goes by `tokens`, the pass's T (1 for the head of its last token),
    /// and never by `rows`: these depend on who looks on.
    fn prepare(
        &self,
        x: &Self::Buffer,
        width: usize,
        rows: usize,
        tokens: usize,
        input: &mut Self::Input,
    ) -> Result<()>;

    /// Shows the int8 values (rows, width) and the scales (rows, groups) of an input to `see`. There are none
    /// where products do not run in int8.
    fn read_quantized(&self, input: &Self::Input, see: &mut dyn FnMut(&[i8], &[f32]));

    /// out (rows, O) = x (rows, I) · wᵀ (+ bias), w (O, I), for every row of the input.
    fn matmul(
        &self,
        x: &Self::Input,
        w: &Self::Matrix,
        bias: Option<&Self::Vector>,
        out: &mut Self::Buffer,
    ) -> Result<()>;

    /// out (rows, heads, C) = x turned by cos and sin (rows, C/2).
    #[expect(clippy::too_many_arguments, reason = "an operation with two tables and two sizes")]
    fn rope(
        &self,
        x: &Self::Buffer,
        cos: &Self::Buffer,
        sin: &Self::Buffer,
        pairing: Pairing,
        heads: usize,
        head_dim: usize,
        rows: usize,
        out: &mut Self::Buffer,
    ) -> Result<()>;

    /// The number type that keys and values are cached in.
    fn cache_dtype(&self) -> CacheDtype;

    /// A cache with room for nothing.
    fn new_cache(&self) -> Self::Cache;

    /// Makes room for `count` values; those that are there stay.
    fn grow_cache(&self, cache: &mut Self::Cache, count: usize);

    /// cache\[at .. at + rows\] = x (rows, width), rounded to the cache's number type.
    fn cache(&self, x: &Self::Buffer, width: usize, at: usize, rows: usize, cache: &mut Self::Cache);

    /// Shows the first `count` values of `cache` to `see`.
    fn read_cache(&self, cache: &Self::Cache, count: usize, see: &mut dyn FnMut(&[f32]));

    /// out (T, H, C) = softmax(q · keysᵀ / √C + mask) · values, with q (T, H, C) and the cached keys
    /// and values (K, G, C). `sink` sees the parts it wants; they do not change the result.
    fn attention(
        &self,
        shape: AttentionShape,
        q: &Self::Buffer,
        keys: &Self::Cache,
        values: &Self::Cache,
        out: &mut Self::Buffer,
        sink: &mut dyn AttentionSink,
    ) -> Result<()>;

    /// out = silu(x), the first `count` values.
    fn silu(&self, x: &Self::Buffer, count: usize, out: &mut Self::Buffer) -> Result<()>;

    /// out = a · b, the first `count` values.
    fn mul(&self, a: &Self::Buffer, b: &Self::Buffer, count: usize, out: &mut Self::Buffer) -> Result<()>;

    /// out = a + b, the first `count` values.
    fn add(&self, a: &Self::Buffer, b: &Self::Buffer, count: usize, out: &mut Self::Buffer) -> Result<()>;

    /// out (rows, width) = `rows` of x (…, width).
    fn rows(&self, x: &Self::Buffer, rows: Range<usize>, width: usize, out: &mut Self::Buffer);
}
