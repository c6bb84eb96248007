//! Products of quantised activations with rows of blocks ([`llama_trace_core::ops::blocks`]). The blocks are read
//! directly from the file's bytes. Each row is unpacked once and used for all tokens.

use super::Rows;
use super::q8::Quantized;
use super::rows::with_format;
use llama_trace_core::ops::arithmetic::MulAdd;
use llama_trace_core::ops::blocks::{self, Format};

/// See [`super::Isa::q8`].
pub(super) fn portable<M: MulAdd>(x: &Quantized, w: Rows<'_>, out: &mut [&mut [f32]]) {
    with_format!(w.dtype, F => {
        for row in 0..w.count() {
            for (token, out) in out.iter_mut().enumerate() {
                let (values, scales) = x.row(token);
                out[row] = blocks::dot_by::<M, F>(values, scales, w.row(row));
            }
        }
    });
}

/// Returns the scales and the minima of all runs of `blocks`.
#[inline(always)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only kernels for x86-64 use it"))]
pub(super) fn numbers<F: Format, const RUNS: usize>(blocks: &[u8]) -> [[f32; RUNS]; 2] {
    let (mut scales, mut minima) = ([0.0; RUNS], [0.0; RUNS]);
    for (i, block) in blocks.chunks_exact(F::BYTES).enumerate() {
        let run = i * F::VALUES / F::RUN;
        F::scales(block, &mut scales[run..], &mut minima[run..]);
    }
    [scales, minima]
}
