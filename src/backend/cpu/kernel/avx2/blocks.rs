//! Products with blocks for AVX2: 32 values a vector, eight groups side by side.

use std::arch::x86_64::*;
use std::cell::RefCell;

use crate::backend::cpu::kernel::Rows;
use crate::backend::cpu::kernel::blocks::Spread;
use crate::backend::cpu::kernel::q8::{CHUNK_GROUPS, Padded, Quantized};
use crate::backend::cpu::kernel::rows::with_format;
use crate::ops::blocks::{Format, GROUP};
use crate::ops::matmul::reduce;

/// Groups whose sums a vector holds.
const GROUPS: usize = 8;

thread_local! {
    static SPREAD: RefCell<Spread> = RefCell::default();
}

/// See [`super::super::Kernel::q8`].
pub(in crate::backend::cpu::kernel) fn blocks(x: &Quantized, w: Rows<'_>, out: &mut [&mut [f32]]) {
    with_format!(w.dtype, F => SPREAD.with_borrow_mut(|spread| {
        // SAFETY: a `Kernel` for AVX2 or AVX-512 exists only where the processor has these features.
        unsafe { rows::<F>(x, w, out, spread) }
    }));
}

#[target_feature(enable = "avx2,fma,f16c")]
fn rows<F: Format>(x: &Quantized, w: Rows<'_>, out: &mut [&mut [f32]], spread: &mut Spread) {
    spread.resize(1, x.inputs);
    for row in 0..w.count() {
        spread.fill::<F>(0, w.row(row));
        if let Some(table) = F::TABLE {
            look_up(&table, &mut spread.quants[..x.inputs]);
        }
        for (token, out) in out.iter_mut().enumerate() {
            out[row] = dot::<F>(&x.padded, token, spread);
        }
    }
}

/// Puts in the place of each number below 16 what `table` has for it; a whole number of groups.
#[target_feature(enable = "avx2")]
fn look_up(table: &[u8; 16], numbers: &mut [u8]) {
    // SAFETY: 16 bytes, and each group has 32.
    unsafe {
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
        for group in numbers.as_chunks_mut::<GROUP>().0 {
            let number = _mm256_loadu_si256(group.as_ptr().cast());
            _mm256_storeu_si256(group.as_mut_ptr().cast(), _mm256_shuffle_epi8(table, number));
        }
    }
}

/// The product of row `token` of the activations with the one row that is spread out.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn dot<F: Format>(x: &Padded, token: usize, w: &Spread) -> f32 {
    let groups = w.groups;
    let of_row = token * groups..(token + 1) * groups;
    let values = &x.values[of_row.start * GROUP..of_row.end * GROUP];
    let x_scales = &x.scales[of_row.clone()];
    let x_sums = [&x.sums[0][of_row.clone()], &x.sums[1][of_row]];
    assert!(w.quants.len() >= groups * GROUP && groups.is_multiple_of(CHUNK_GROUPS));
    assert!(w.scales.iter().chain(&w.minima).all(|numbers| numbers.len() >= groups));
    let mut lanes = [_mm256_setzero_ps(); 2];
    for start in (0..groups).step_by(GROUPS) {
        // SAFETY: eight groups from `start` on are inside the row's `groups` of everything, as was just checked; no
        // load needs alignment.
        unsafe {
            let mut sums = [_mm256_setzero_si256(); GROUPS];
            for (group, sum) in sums.iter_mut().enumerate() {
                let at = (start + group) * GROUP;
                let q = _mm256_loadu_si256(w.quants.as_ptr().add(at).cast());
                let x = _mm256_loadu_si256(values.as_ptr().add(at).cast());
                // Sums of two neighbours, which have room for 2 · 128 · 127: past 127 q is taken with its sign.
                let pairs = if F::OFFSET == 128 {
                    let signed = _mm256_xor_si256(q, _mm256_set1_epi8(-128));
                    _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(x, signed))
                } else {
                    _mm256_maddubs_epi16(q, x)
                };
                *sum = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
            }
            let four = |s: &[__m256i]| {
                _mm256_hadd_epi32(_mm256_hadd_epi32(s[0], s[1]), _mm256_hadd_epi32(s[2], s[3]))
            };
            let (low, high) = (four(&sums[..4]), four(&sums[4..]));
            // The first 16 values of each of the eight groups, and the second.
            let mut halves =
                [_mm256_permute2x128_si256::<0x20>(low, high), _mm256_permute2x128_si256::<0x31>(low, high)];
            let sum_of = |half: usize| _mm256_loadu_si256(x_sums[half].as_ptr().add(start).cast());
            if F::OFFSET != 0 && F::OFFSET != 128 {
                for (half, sum) in halves.iter_mut().enumerate() {
                    let offset = _mm256_mullo_epi32(sum_of(half), _mm256_set1_epi32(i32::from(F::OFFSET)));
                    *sum = _mm256_sub_epi32(*sum, offset);
                }
            }
            let scale = |half: usize| _mm256_loadu_ps(w.scales[half].as_ptr().add(start));
            let minimum = |half: usize| _mm256_loadu_ps(w.minima[half].as_ptr().add(start));
            let float = |whole| _mm256_cvtepi32_ps(whole);
            let mut term;
            if F::RUN == GROUP {
                term = _mm256_mul_ps(scale(0), float(_mm256_add_epi32(halves[0], halves[1])));
                if F::MINIMA {
                    let sum = _mm256_add_epi32(sum_of(0), sum_of(1));
                    term = _mm256_fmadd_ps(minimum(0), float(sum), term);
                }
            } else {
                term = _mm256_mul_ps(scale(0), float(halves[0]));
                term = _mm256_fmadd_ps(scale(1), float(halves[1]), term);
                if F::MINIMA {
                    term = _mm256_fmadd_ps(minimum(0), float(sum_of(0)), term);
                    term = _mm256_fmadd_ps(minimum(1), float(sum_of(1)), term);
                }
            }
            let lane = &mut lanes[start / GROUPS % 2];
            *lane = _mm256_fmadd_ps(_mm256_loadu_ps(x_scales.as_ptr().add(start)), term, *lane);
        }
    }
    let mut all = [0.0; 16];
    // SAFETY: 16 values.
    unsafe {
        _mm256_storeu_ps(all.as_mut_ptr(), lanes[0]);
        _mm256_storeu_ps(all.as_mut_ptr().add(8), lanes[1]);
    }
    reduce(all)
}
