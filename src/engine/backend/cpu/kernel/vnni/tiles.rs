//! Products of many tokens with int8 values in AMX: tiles of 16 tokens with panels of 16 weight rows. The sums of a
//! group are integers, so they equal the sums of VNNI. They are converted to float32 and added in the same order.

use std::arch::x86_64::*;

use bytemuck::Zeroable;

use super::panel::{Panel, add_up};
use crate::backend::cpu::kernel::amx::{self, AT_ONCE, Configured, Whole};
use crate::backend::cpu::kernel::q8::{GROUP, QUADS, Tiles, places};
use llama_trace_core::ops::matmul::LANES;

/// The kind of weights in the panels. It determines how integer sums are converted to terms.
pub(super) trait Weights {
    /// Whether a group consists of two runs with separate sums.
    const HALVES: bool;

    /// Adds the terms of the group at `place` of `panel` to `sums` (token). They are computed from the group's integer
    /// sums `whole`, one for each run. `at` is the index of the group in the tiles.
    ///
    /// # Safety
    /// The processor has the features of the kernel.
    unsafe fn add(
        panel: &Panel,
        place: usize,
        x: &Tiles,
        at: usize,
        whole: &[Whole],
        sums: &mut [__m512; LANES],
    );
}

/// The number of values that one call of [`amx::int8`] may read past the last group.
pub(super) const PADDING: usize = AT_ONCE * LANES * GROUP;

/// Computes out (token)(row): the products of the tokens with the rows of `panels`, for as many rows as `out` has.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn tiles<W: Weights>(x: &Tiles, groups: usize, panels: &[Panel], out: &mut [&mut [f32]]) {
    let runs = 1 + usize::from(W::HALVES);
    let _configured = Configured::for_int8(GROUP / runs);
    // The groups of each partial sum in batches: the first place, the end, and whether the partial sum is complete
    // after the batch.
    let mut batches = Vec::with_capacity(groups);
    for places in (0..LANES).map(|lane| places(groups, lane)) {
        for first in places.clone().step_by(AT_ONCE / runs) {
            let end = places.end.min(first + AT_ONCE / runs);
            batches.push((first, end, end == places.end));
        }
    }
    let zero = [_mm512_setzero_ps(); LANES];
    let (mut whole, mut all) = ([[Whole::zeroed(); AT_ONCE]; 2], [zero; LANES]);
    for (tile, out) in out.chunks_mut(LANES).enumerate() {
        let lines = &x.lines[tile * groups * LANES * GROUP..];
        for (number, panel) in panels.iter().enumerate() {
            let (mut lane, mut sums) = (0, zero);
            for i in 0..=batches.len() {
                // The next sums are computed while the previous ones are converted to float32.
                if let Some(&(first, ..)) = batches.get(i) {
                    let (lines, quads) = (&lines[first * LANES * GROUP..], &panel.quads[first * QUADS..]);
                    amx::int8(lines, quads, W::HALVES, &mut whole[i % 2]);
                }
                let Some(&(first, end, last)) = i.checked_sub(1).and_then(|i| batches.get(i)) else {
                    continue;
                };
                for (place, whole) in (first..end).zip(whole[(i + 1) % 2].chunks_exact(runs)) {
                    // SAFETY: this function has these features.
                    unsafe { W::add(panel, place, x, tile * groups + place, whole, &mut sums) };
                }
                if last {
                    all[lane] = sums;
                    (lane, sums) = (lane + 1, zero);
                }
            }
            let first = number * LANES;
            let end = out.first().map_or(0, |out| out.len()).min(first + LANES);
            add_up(&mut all, &(first..end), out);
        }
    }
}

/// Returns the sums of token `t`, converted to float32.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn float(whole: &Whole, t: usize) -> __m512 {
    // SAFETY: the slice has 16 values.
    unsafe { _mm512_cvtepi32_ps(_mm512_load_si512(whole.0[t * LANES..][..LANES].as_ptr().cast())) }
}
