//! The operations of a vector instruction set.

use std::fmt::Debug;
use std::ops::Range;

use half::{bf16, f16};

use super::gemm::{Packed, Scratch};
use super::q8::{Quantized, Tiling};
use super::{Aligned, Rows, Spaced, rows};
use llama_trace_core::config::{Arithmetic, Pairing, Precision};
use llama_trace_core::error::Result;
use llama_trace_core::ops;
use llama_trace_core::stop::Stop;

/// The minimum number of queries for which packing the keys that they read is faster.
#[cfg(target_arch = "x86_64")]
pub(super) const MIN_QUERIES: usize = 8;

/// The inner loops for one vector instruction set. The default bodies are the plain operations of
/// [`llama_trace_core::ops`]. An instruction set replaces those that it can compute faster, with the same bits, and
/// those with a multiply-add if its arithmetic is not the default.
///
/// [`super::Kernel::available`] returns an instruction set only if the processor supports it. This makes the calls
/// sound.
pub(in crate::backend::cpu) trait Isa: Debug + Sync {
    /// The instruction set's name, as `--cpu-kernel` takes it.
    fn name(&self) -> &'static str;

    /// The arithmetic of all operations.
    fn arithmetic(&self) -> Arithmetic {
        Arithmetic::Fused
    }

    /// Computes out (rows of x)(rows of w) = x · wᵀ for a few rows of `x`. Reads each weight once, in its stored number
    /// type. With one row of `x`, reads up to `streams` rows of `w` side by side. `scratch` is a buffer for one row of
    /// weights.
    fn dots(
        &self,
        x: Spaced<'_>,
        w: Rows<'_>,
        streams: usize,
        out: &mut [&mut [f32]],
        scratch: &mut Vec<f32>,
    );

    /// The numbers of rows that [`Isa::dots`] can read side by side.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only kernels for x86-64 use it"))]
    fn streams(&self) -> &'static [usize];

    /// Computes the same as [`Isa::dots`] for many rows of `x`, which are packed in reading order.
    fn gemm(
        &self,
        x: &Packed,
        w: Rows<'_>,
        out: &mut [&mut [f32]],
        scratch: &mut Scratch,
        stop: &Stop,
    ) -> Result<()>;

    /// The number of weight rows and the number of tokens in a tile of [`Isa::gemm`].
    fn tile(&self) -> (usize, usize);

    /// Computes out (rows of x)(rows of w) = x · wᵀ in int8, with the bits of [`ops::quantize::dot`], or of
    /// [`ops::blocks::dot`] for rows of blocks.
    fn q8(&self, x: &Quantized, w: Rows<'_>, out: &mut [&mut [f32]]);

    /// Returns the tiling in which [`Isa::q8`] reads many rows of activations. `None` if it reads them row by row.
    fn tiling(&self) -> Option<Tiling> {
        None
    }

    /// [`ops::attention::qk`].
    fn qk(&self, query: &[f32], keys: &[f32], stride: usize, out: &mut [f32]) {
        ops::attention::qk(query, keys, stride, out);
    }

    /// Whether it is faster to pack keys of `width` components for [`Isa::qk_packed`], if `queries` queries read them.
    fn packs_keys(&self, queries: usize, width: usize) -> bool {
        let _ = (queries, width);
        false
    }

    /// Packs `count` keys of `width` components; `stride` is the distance from one key to the next. Call only if
    /// [`Isa::packs_keys`].
    fn pack_keys(&self, keys: &[f32], stride: usize, count: usize, width: usize, packed: &mut Vec<Aligned>) {
        unreachable!("this kernel packs no keys: {:?}", (keys.len(), stride, count, width, packed))
    }

    /// Computes [`ops::attention::qk`] of consecutive `queries` of `width` components with the packed keys in `part`.
    /// `out` holds the results, which begin with the first of these keys, and the stride from one query's results to
    /// the next. Call only if [`Isa::packs_keys`].
    fn qk_packed(
        &self,
        queries: &[f32],
        width: usize,
        packed: &[Aligned],
        part: &Range<usize>,
        out: (&mut [f32], usize),
    ) {
        unreachable!("this kernel packs no keys: {:?}", (queries.len(), width, packed, part, out))
    }

    /// Computes [`ops::attention::mix`] of several rows of `count` weights with the values of `count` keys. `apart` is
    /// the distance between the starts of the rows. `out` holds consecutive rows of `width` components.
    fn mix(
        &self,
        weights: &[f32],
        (count, apart): (usize, usize),
        values: &[f32],
        stride: usize,
        width: usize,
        out: &mut [f32],
    ) {
        for (row, out) in out.chunks_mut(width).enumerate() {
            ops::attention::mix(&weights[row * apart..][..count], values, stride, out);
        }
    }

    /// Converts `values` exactly to float32.
    fn widen_f16(&self, values: &[f16], out: &mut [f32]) {
        rows::widen_f16(values, out);
    }

    /// Converts `values` exactly to float32.
    fn widen_bf16(&self, values: &[bf16], out: &mut [f32]) {
        rows::widen_bf16(values, out);
    }

    /// [`ops::quantize::quantize`].
    fn quantize(&self, x: &[f32], group: usize, values: &mut [i8], scales: &mut [f32]) {
        ops::quantize::quantize(x, group, values, scales);
    }

    /// [`ops::softmax::softmax`].
    fn softmax(&self, row: &mut [f32]) {
        ops::softmax::softmax(row);
    }

    /// [`ops::swiglu::silu_all`].
    fn silu(&self, gate: &[f32], out: &mut [f32]) {
        ops::swiglu::silu_all(gate, out);
    }

    /// [`ops::rms_norm::rms_norm`].
    fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, precision: Precision, out: &mut [f32]) {
        ops::rms_norm::rms_norm(x, weight, eps, precision, out);
    }

    /// [`ops::round::row`].
    fn round(&self, precision: Precision, row: &mut [f32]) {
        ops::round::row(precision, row);
    }

    /// [`ops::elementwise::add`].
    fn add(&self, a: &[f32], b: &[f32], out: &mut [f32]) {
        ops::elementwise::add(a, b, out);
    }

    /// [`ops::elementwise::mul`].
    fn mul(&self, a: &[f32], b: &[f32], out: &mut [f32]) {
        ops::elementwise::mul(a, b, out);
    }

    /// [`ops::attention::scale`].
    fn scale(&self, row: &mut [f32], head_dim: usize) {
        ops::attention::scale(row, head_dim);
    }

    /// [`ops::rope::rope`].
    fn rope(
        &self,
        x: &[f32],
        cos: &[f32],
        sin: &[f32],
        pairing: Pairing,
        precision: Precision,
        out: &mut [f32],
    ) {
        ops::rope::rope(x, cos, sin, pairing, precision, out);
    }

    /// See [`super::Kernel::read_limit`].
    fn read(&self, bytes: &[u8], ahead: bool) -> u64;

    /// The number of bytes that one load of [`Isa::read`] reads.
    fn read_width(&self) -> usize;

    /// See [`super::Kernel::multiply_limit`], in float32.
    fn multiply(&self, rounds: usize, factor: f32) -> f32;

    /// The same in int8. Call only if [`Isa::tiling`] returns a tiling.
    fn multiply_int8(&self, rounds: usize, factor: i32) -> f32 {
        unreachable!("this kernel has no int8 multiply: {:?}", (rounds, factor))
    }
}

/// Each instruction set has only one value, so the name identifies it.
impl PartialEq for dyn Isa {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for dyn Isa {}
