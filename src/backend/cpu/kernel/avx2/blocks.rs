//! Products with blocks for AVX2: 32 values a vector, eight groups side by side.

use std::arch::x86_64::*;

use super::unpack::{self, Chunk, GROUPS, Unpack};
use crate::backend::cpu::kernel::Rows;
use crate::backend::cpu::kernel::q8::{Padded, Quantized};
use crate::backend::cpu::kernel::rows::with_format;
use crate::ops::blocks::{Format, GROUP};
use crate::ops::matmul::reduce;

/// Bytes by which blocks are asked for before they are needed.
const AHEAD: usize = 2048;

/// See [`super::super::Kernel::q8`].
pub(in crate::backend::cpu::kernel) fn blocks(x: &Quantized, w: Rows<'_>, out: &mut [&mut [f32]]) {
    with_format!(w.dtype, F => {
        // SAFETY: a `Kernel` for AVX2 or AVX-512 exists only where the processor has these features.
        unsafe { rows::<F>(x, w, out) }
    });
}

#[target_feature(enable = "avx2,fma,f16c")]
fn rows<F: Unpack>(x: &Quantized, w: Rows<'_>, out: &mut [&mut [f32]]) {
    let mut sums = vec![[_mm256_setzero_ps(); 2]; out.len()];
    for number in 0..w.count() {
        let row = w.row(number);
        for chunk in 0..x.inputs.div_ceil(unpack::VALUES) {
            for line in (0..Chunk::bytes::<F>()).step_by(64) {
                let at = chunk * Chunk::bytes::<F>() + line;
                // An address that is no memory of ours is ignored.
                _mm_prefetch::<_MM_HINT_T0>(row.as_ptr().wrapping_add(at + AHEAD).cast());
            }
            let w = Chunk::of::<F>(row, chunk);
            for (token, sums) in sums.iter_mut().enumerate() {
                let sum = &mut sums[chunk % 2];
                *sum = add_chunk::<F>(&x.padded, token * x.padded.groups + chunk * GROUPS, &w, *sum);
            }
        }
        for (out, sums) in out.iter_mut().zip(&mut sums) {
            let mut all = [0.0; 16];
            // SAFETY: 16 values.
            unsafe {
                _mm256_storeu_ps(all.as_mut_ptr(), sums[0]);
                _mm256_storeu_ps(all.as_mut_ptr().add(8), sums[1]);
            }
            out[number] = reduce(all);
            *sums = [_mm256_setzero_ps(); 2];
        }
    }
}

/// sums + the products of a chunk with the activations from group number `group` of all on, one group a lane.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn add_chunk<F: Format>(x: &Padded, group: usize, w: &Chunk, sums: __m256) -> __m256 {
    let values = &x.values[group * GROUP..][..unpack::VALUES];
    let x_scales = &x.scales[group..][..GROUPS];
    let x_sums = [&x.sums[0][group..][..GROUPS], &x.sums[1][group..][..GROUPS]];
    // SAFETY: eight values each; no load needs alignment.
    let (x_scale, x_sums) = unsafe {
        let x_sums = x_sums.map(|sums| _mm256_loadu_si256(sums.as_ptr().cast()));
        (_mm256_loadu_ps(x_scales.as_ptr()), x_sums)
    };
    let mut products = [_mm256_setzero_si256(); GROUPS];
    for (group, product) in products.iter_mut().enumerate() {
        let q = w.quants[group];
        // SAFETY: the values are those of eight vectors.
        let x = unsafe { _mm256_loadu_si256(values.as_ptr().add(GROUP * group).cast()) };
        // Sums of two neighbours, which have room for 2 · 128 · 127: past 127 q is taken with its sign.
        let pairs = if F::OFFSET == 128 {
            let signed = _mm256_xor_si256(q, _mm256_set1_epi8(-128));
            _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(x, signed))
        } else {
            _mm256_maddubs_epi16(q, x)
        };
        *product = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    }
    let four =
        |s: &[__m256i]| _mm256_hadd_epi32(_mm256_hadd_epi32(s[0], s[1]), _mm256_hadd_epi32(s[2], s[3]));
    let (low, high) = (four(&products[..4]), four(&products[4..]));
    // The first 16 values of each of the eight groups, and the second.
    let mut halves =
        [_mm256_permute2x128_si256::<0x20>(low, high), _mm256_permute2x128_si256::<0x31>(low, high)];
    if F::OFFSET != 0 && F::OFFSET != 128 {
        for (half, sum) in halves.iter_mut().enumerate() {
            let offset = _mm256_mullo_epi32(x_sums[half], _mm256_set1_epi32(i32::from(F::OFFSET)));
            *sum = _mm256_sub_epi32(*sum, offset);
        }
    }
    let float = |whole| _mm256_cvtepi32_ps(whole);
    let mut term;
    if F::RUN == GROUP {
        term = _mm256_mul_ps(w.scales[0], float(_mm256_add_epi32(halves[0], halves[1])));
        if F::MINIMA {
            let sum = _mm256_add_epi32(x_sums[0], x_sums[1]);
            term = _mm256_fmadd_ps(w.minima[0], float(sum), term);
        }
    } else {
        term = _mm256_mul_ps(w.scales[0], float(halves[0]));
        term = _mm256_fmadd_ps(w.scales[1], float(halves[1]), term);
        if F::MINIMA {
            term = _mm256_fmadd_ps(w.minima[0], float(x_sums[0]), term);
            term = _mm256_fmadd_ps(w.minima[1], float(x_sums[1]), term);
        }
    }
    _mm256_fmadd_ps(x_scale, term, sums)
}
