//! The units that multiply bfloat16 values, and their loops: AMX, AVX512-BF16, and plain loops for tests.

use super::bf16_tiles::{self, BLOCK, Next, SIDE, STEP, Sums, Tile, Weights};
use super::limits::CHAINS;
use super::{amx, avx512bf16};
use llama_trace_core::config::Precision;
use llama_trace_core::tensor::Dtype;

/// A unit that multiplies bfloat16 values. A value of this type exists only for a unit that the processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backend::cpu) enum Unit {
    /// Tiles of AMX: 16 × 16 sums at once.
    Amx,
    /// AVX512-BF16: 16 sums at once.
    Avx512Bf16 {
        /// See [`super::processor::Reading`].
        in_place: bool,
    },
    /// Plain loops for tests of the blocking.
    #[cfg(any(test, feature = "testing"))]
    Plain,
}

/// The minimum number of inputs for which a unit is faster.
const MIN_INPUTS: usize = 512;

/// One round of `amx::multiply`, with four tiles, counts as this many rounds of [`super::Kernel::multiply_limit`].
pub(super) const AMX_ROUNDS: usize = 64;

impl Unit {
    /// The name of the kernel with this unit.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Amx => "amx",
            Self::Avx512Bf16 { .. } => "avx512bf16",
            #[cfg(any(test, feature = "testing"))]
            Self::Plain => "plain",
        }
    }

    /// Whether this unit multiplies rows of `width` inputs.
    pub(super) fn takes_width(self, width: usize) -> bool {
        width >= MIN_INPUTS
    }

    /// Whether this unit multiplies weights of number type `dtype` in `precision`. The weights must be bfloat16 values,
    /// and the unit must be faster. In place of one float32 product, AVX512-BF16 would need three bfloat16 products,
    /// each with half as many instructions.
    pub(in crate::backend::cpu) fn takes(self, dtype: Dtype, precision: Precision) -> bool {
        match precision {
            Precision::Bf16 => true,
            Precision::F32 => dtype == Dtype::BF16 && !matches!(self, Self::Avx512Bf16 { .. }),
            Precision::Q8 { .. } => false,
        }
    }

    /// The number of tokens, with `parts` parts each, for which weights are read once: a multiple of [`BLOCK`]. It is
    /// large for AMX, which multiplies so fast that loading the weights is the limit.
    pub(super) fn tokens_at_once(self, parts: usize) -> usize {
        match (self, parts) {
            (Self::Amx, 1) => 512,
            (Self::Amx, _) => 320,
            _ => 256 / parts / BLOCK * BLOCK,
        }
    }

    /// Bytes of sums that stay in the L2 cache, together with the activations, until all inputs are added.
    pub(super) fn bytes_of_sums(self) -> usize {
        match self {
            Self::Amx => 1 << 20,
            _ => 1 << 18,
        }
    }

    /// Packs inputs of up to 16 tokens as tiles. See [`bf16_tiles::pack`].
    #[allow(unsafe_code)]
    pub(super) fn pack(self, parts: usize, rows: &[&[f32]], part_size: usize, out: &mut [u16]) {
        #[cfg(any(test, feature = "testing"))]
        if self.is_plain() {
            return plain::pack(parts, rows, part_size, out);
        }
        // SAFETY: a unit other than the plain one exists only if the processor has AVX-512.
        unsafe {
            match parts {
                1 => bf16_tiles::pack::<1>(rows, part_size, out),
                _ => bf16_tiles::pack::<3>(rows, part_size, out),
            }
        }
    }

    /// Sets `sums` to the products of 32 weight rows with two tiles of tokens (part, step, tile, pair, token, 2). With
    /// `tiles` = 1, only the first tile is multiplied, and the sums of the second tile are undefined.
    pub(super) fn sums(
        self,
        weights: Weights<'_>,
        x: &[u16],
        parts: usize,
        tiles: usize,
        next: Next,
        sums: &mut Sums,
    ) {
        match self {
            Self::Amx => amx::sums(bytemuck::cast_slice(weights.bytes), x, parts, next, sums),
            Self::Avx512Bf16 { .. } => avx512bf16::sums(weights, x, (parts, tiles), next, sums),
            #[cfg(any(test, feature = "testing"))]
            Self::Plain => plain::sums(bytemuck::cast_slice(weights.bytes), x, parts, sums),
        }
    }

    /// Adds `sums` to `to`.
    #[allow(unsafe_code)]
    pub(super) fn add(self, sums: &Sums, to: &mut Sums) {
        #[cfg(any(test, feature = "testing"))]
        if self.is_plain() {
            return llama_trace_core::ops::elementwise::add_to(&sums.0, &mut to.0);
        }
        // SAFETY: a unit other than the plain one exists only if the processor has AVX-512.
        unsafe { to.add(sums) }
    }

    /// Transposes a tile of sums to `out` (token, row). `stride` is the distance from one token to the next, in values.
    #[allow(unsafe_code)]
    pub(super) fn order(self, tile: &Tile, stride: usize, out: &mut [f32]) {
        #[cfg(any(test, feature = "testing"))]
        if self.is_plain() {
            return plain::order(tile, stride, out);
        }
        // SAFETY: as above.
        unsafe { bf16_tiles::transpose(tile, stride, out) }
    }

    /// See [`super::Kernel::multiply_limit`].
    pub(super) fn multiply(self, rounds: usize) -> f32 {
        match self {
            Self::Amx => amx::multiply::<false>(rounds / AMX_ROUNDS),
            Self::Avx512Bf16 { .. } => avx512bf16::multiply(rounds),
            #[cfg(any(test, feature = "testing"))]
            Self::Plain => 0.0,
        }
    }

    /// See [`super::Kernel::multiply_round`].
    pub(super) fn multiply_round(self) -> usize {
        match self {
            Self::Amx => 4 * 2 * SIDE * SIDE * STEP / AMX_ROUNDS,
            _ => 2 * 2 * CHAINS * SIDE,
        }
    }

    /// Whether this unit consists of plain loops.
    pub(super) fn is_plain(self) -> bool {
        #[cfg(any(test, feature = "testing"))]
        return self == Self::Plain;
        #[cfg(not(any(test, feature = "testing")))]
        false
    }
}

#[cfg(any(test, feature = "testing"))]
pub(super) mod plain {
    use super::*;
    use crate::backend::cpu::kernel::bf16_tiles::TWO_TILES;

    /// Returns three bfloat16 values that add up to `x`, the largest last.
    pub(in super::super) fn parts(x: f32) -> [u16; 3] {
        /// Returns `x` truncated towards zero to bfloat16.
        fn upper(x: f32) -> u16 {
            (x.to_bits() >> 16) as u16
        }
        fn value(upper: u16) -> f32 {
            f32::from_bits(u32::from(upper) << 16)
        }
        if !x.is_finite() {
            return [0, 0, if x.is_nan() { 0x7fc0 } else { upper(x) }];
        }
        let high = upper(x);
        let rest = x - value(high);
        let middle = upper(rest);
        [upper(rest - value(middle)), middle, high]
    }

    /// Does the same as [`bf16_tiles::pack`], with plain loops.
    pub(super) fn pack(parts_wanted: usize, rows: &[&[f32]], part_size: usize, out: &mut [u16]) {
        for part in 0..parts_wanted {
            out[part * part_size..][..SIDE * STEP].fill(0);
            for (token, row) in rows.iter().enumerate() {
                for (i, x) in row.iter().enumerate() {
                    let at = (i / 2 * SIDE + token) * 2 + i % 2;
                    out[part * part_size + at] = parts(*x)[3 - parts_wanted + part];
                }
            }
        }
    }

    /// Does the same as [`Unit::sums`], with plain loops.
    pub(super) fn sums(weights: &[u16], x: &[u16], parts: usize, sums: &mut Sums) {
        let value = |bits: u16| f32::from_bits(u32::from(bits) << 16);
        sums.0.fill(0.0);
        for part in x.chunks_exact(x.len() / parts) {
            for (w, x) in weights.chunks_exact(TWO_TILES).zip(part.chunks_exact(TWO_TILES)) {
                let x: [f32; TWO_TILES] = std::array::from_fn(|i| value(x[i]));
                for (row, w) in w.chunks_exact(STEP).enumerate() {
                    for (i, w) in w.iter().enumerate() {
                        let w = value(*w);
                        for tile in 0..2 {
                            let x = &x[tile * TWO_TILES / 2 + i / 2 * 2 * SIDE..][..2 * SIDE];
                            let sums = sums.tile_mut(tile * 2 + row / SIDE);
                            for (token, x) in x.as_chunks::<2>().0.iter().enumerate() {
                                sums[row % SIDE * SIDE + token] += w * x[i % 2];
                            }
                        }
                    }
                }
            }
        }
    }

    /// Does the same as [`bf16_tiles::transpose`], with plain loops.
    pub(super) fn order(tile: &Tile, stride: usize, out: &mut [f32]) {
        for (row, values) in tile.as_chunks::<SIDE>().0.iter().enumerate() {
            for (token, value) in values.iter().enumerate() {
                out[token * stride + row] = *value;
            }
        }
    }

    /// Returns the units of this processor, and the plain loops.
    #[cfg(test)]
    pub(in super::super) fn units() -> Vec<Unit> {
        let mut units = vec![Unit::Plain];
        let of_vectors = [false, true].map(|in_place| Unit::Avx512Bf16 { in_place });
        for (available, of) in [(amx::available(), &[Unit::Amx][..]), (avx512bf16::available(), &of_vectors)]
        {
            match available {
                true => units.extend(of),
                false => println!("skipped: this processor has no {}", of[0].name()),
            }
        }
        units
    }
}
