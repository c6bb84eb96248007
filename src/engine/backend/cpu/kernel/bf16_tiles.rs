//! The tiles that AMX and AVX512-BF16 multiply: their sizes, and how values are copied into and out of them. Every
//! processor with one of the two has AVX-512.
#![allow(unsafe_code)]

use std::arch::x86_64::*;
use std::ops::Range;

use super::{Rows, avx512};

/// The number of rows and of columns in a tile of sums.
pub(super) const SIDE: usize = 16;

/// The number of weight rows, and of tokens, whose sums are computed at once: two tiles by two tiles.
pub(in crate::backend::cpu) const BLOCK: usize = 2 * SIDE;

/// The number of inputs in a step, which is the number of bfloat16 values in a tile's row.
pub(super) const STEP: usize = 32;

/// The number of values of a step in two tiles: of 32 weight rows, or of 32 tokens.
pub(super) const TWO_TILES: usize = 2 * SIDE * STEP;

/// A tile of sums: (row, token).
pub(super) type Tile = [f32; SIDE * SIDE];

/// The sums of two tiles of weight rows with two tiles of tokens: (tile of tokens, tile of rows, row, token).
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
pub(super) struct Sums(pub(super) [f32; 4 * SIDE * SIDE]);

/// Rows of weights that are prefetched while others are multiplied. Each step prefetches the next cache line of each
/// row.
#[derive(Clone, Copy)]
pub(super) struct Next {
    /// The address of the first row. It need not be valid.
    pub(super) first: *const u8,
    pub(super) rows: usize,
    /// The distance from one row to the next, in bytes.
    pub(super) stride: usize,
}

impl Next {
    /// Prefetches nothing.
    pub(super) const NONE: Self = Self { first: std::ptr::null(), rows: 0, stride: 0 };
}

/// Whole steps of 32 weight rows, ready to be multiplied.
#[derive(Clone, Copy)]
pub(super) struct Weights<'w> {
    /// The bytes from the start of the first row to the end of the last row.
    pub(super) bytes: &'w [u8],
    pub(super) steps: usize,
    /// The distance from one row to the next, in bytes.
    pub(super) row: usize,
    /// The distance from one step of a row to the next, in bytes; a step has 64 bytes.
    pub(super) step: usize,
}

impl<'w> Weights<'w> {
    /// Returns weights that were copied to `tiles` (step, tile, row, input).
    pub(super) fn copied(tiles: &'w [u16]) -> Self {
        let steps = tiles.len() / TWO_TILES;
        Self { bytes: bytemuck::cast_slice(tiles), steps, row: 2 * STEP, step: 2 * TWO_TILES }
    }

    /// Returns some rows and inputs of `w`, without copying them. `w` must be bfloat16.
    pub(super) fn in_place(w: Rows<'w>, rows: &Range<usize>, inputs: Range<usize>) -> Self {
        let (row, steps) = (w.row(0).len(), inputs.len() / STEP);
        let inputs = w.range(inputs);
        let bytes = &w.bytes[rows.start * row + inputs.start..(rows.end - 1) * row + inputs.end];
        Self { bytes, steps, row, step: 2 * STEP }
    }
}

impl Sums {
    /// Returns tile number `number`.
    pub(super) fn tile(&self, number: usize) -> &Tile {
        &self.0.as_chunks().0[number]
    }

    /// Returns tile number `number`, to write to it.
    pub(super) fn tile_mut(&mut self, number: usize) -> &mut Tile {
        &mut self.0.as_chunks_mut().0[number]
    }

    /// Adds `other` to these sums.
    #[target_feature(enable = "avx512f")]
    pub(super) fn add(&mut self, other: &Self) {
        let vectors = self.0.as_chunks_mut::<SIDE>().0.iter_mut().zip(other.0.as_chunks::<SIDE>().0);
        for (to, from) in vectors {
            // SAFETY: both have 16 values.
            unsafe {
                let sum = _mm512_add_ps(_mm512_loadu_ps(to.as_ptr()), _mm512_loadu_ps(from.as_ptr()));
                _mm512_storeu_ps(to.as_mut_ptr(), sum);
            }
        }
    }
}

/// Transposes a tile (row, token) to `out` (token, row). `stride` is the distance from one token to the next, in
/// values.
#[target_feature(enable = "avx512f")]
pub(super) fn transpose(tile: &Tile, stride: usize, out: &mut [f32]) {
    assert!(out.len() >= (SIDE - 1) * stride + SIDE);
    // SAFETY: a tile has 16 rows of 16 values. The assertion checks that `out` has room for the last of its 16 rows.
    unsafe {
        let rows = std::array::from_fn(|i| _mm512_loadu_ps(tile.as_ptr().add(i * SIDE)));
        for (i, token) in avx512::transpose(rows).into_iter().enumerate() {
            _mm512_storeu_ps(out.as_mut_ptr().add(i * stride), token);
        }
    }
}

/// Copies whole steps of a row of bfloat16 weights to their positions in the tiles. `out` begins at the position of the
/// first step.
#[target_feature(enable = "avx512f")]
pub(super) fn copy(row: &[u8], out: &mut [u16]) {
    let steps = row.as_chunks::<{ 2 * STEP }>().0;
    assert!(steps.is_empty() || (steps.len() - 1) * TWO_TILES + STEP <= out.len());
    for (i, step) in steps.iter().enumerate() {
        // SAFETY: a step and its position have 64 bytes each. The assertion checks that the last position is inside
        // `out`.
        unsafe {
            let to = out.as_mut_ptr().add(i * TWO_TILES);
            _mm512_storeu_si512(to.cast(), _mm512_loadu_si512(step.as_ptr().cast()));
        }
    }
}

/// Splits each float32 into three bfloat16 values that add up to it, the largest last. Each is in the upper half of its
/// lane. See [`super::bf16_gemm`].
#[target_feature(enable = "avx512f,avx512dq")]
#[inline]
fn parts(x: __m512) -> [__m512; 3] {
    let upper = |x| _mm512_and_ps(x, _mm512_castsi512_ps(_mm512_set1_epi32(0xffff_0000_u32.cast_signed())));
    // Masks of NaN (quiet or signalling) and of both infinities (Intel's manual, VFPCLASSPS).
    let (nan, infinite) = (_mm512_fpclass_ps_mask::<0x81>(x), _mm512_fpclass_ps_mask::<0x18>(x));
    let high = _mm512_mask_mov_ps(upper(x), nan, _mm512_set1_ps(f32::NAN));
    let rest = _mm512_maskz_sub_ps(!(nan | infinite), x, high);
    let middle = upper(rest);
    [upper(_mm512_sub_ps(rest, middle)), middle, high]
}

/// Packs up to 32 inputs of up to 16 tokens as one tile for each of PARTS parts: (pair of inputs, token, 2). The tiles
/// are `part_size` values apart in `out`. Missing values are zero. Each of the `rows` has a token's inputs, from the
/// first packed input on.
///
/// # Safety
/// The processor has the features of this function.
#[target_feature(enable = "avx512f,avx512bw,avx512dq")]
pub(super) unsafe fn pack<const PARTS: usize>(rows: &[&[f32]], part_size: usize, out: &mut [u16]) {
    assert!(rows.len() <= SIDE && out.len() >= (PARTS - 1) * part_size + SIDE * STEP);
    // The order for a permutation that takes the upper halves of all 32-bit values of two vectors.
    let order: [i16; STEP] = std::array::from_fn(|i| (2 * i + 1) as i16);
    // SAFETY: `order` has 64 bytes.
    let order = unsafe { _mm512_loadu_si512(order.as_ptr().cast()) };
    let mut tiles = [[_mm512_setzero_ps(); SIDE]; PARTS];
    for (token, row) in rows.iter().enumerate() {
        let mask = ((1_u64 << row.len().min(STEP)) - 1) as u32;
        // SAFETY: the masks keep the loads inside the row. If no value is left, nothing is loaded.
        let [low, high] = unsafe {
            [
                _mm512_maskz_loadu_ps(mask as u16, row.as_ptr()),
                _mm512_maskz_loadu_ps((mask >> SIDE) as u16, row.as_ptr().wrapping_add(SIDE)),
            ]
        };
        let (low, high) = (parts(low), parts(high));
        for part in 0..PARTS {
            let [low, high] = [low, high].map(|parts| _mm512_castps_si512(parts[3 - PARTS + part]));
            tiles[part][token] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(low, order, high));
        }
    }
    for (part, tile) in tiles.into_iter().enumerate() {
        for (pair, tokens) in avx512::transpose(tile).into_iter().enumerate() {
            // SAFETY: a tile has 16 pairs of 16 · 2 values. The assertion checks that the last part's tile ends inside
            // `out`.
            unsafe {
                let to = out.as_mut_ptr().add(part * part_size + pair * 2 * SIDE);
                _mm512_storeu_ps(to.cast(), tokens);
            }
        }
    }
}
