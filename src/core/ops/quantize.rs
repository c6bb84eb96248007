//! int8 quantisation in groups, as in llama2.c's version 2: x ≈ q · scale, with one scale per group, scale = max |x| /
//! 127.

use super::arithmetic::{Fused, MulAdd};
use super::matmul::{LANES, reduce};

/// The largest magnitude of a quantised value.
const MAX: f32 = 127.0;

/// Quantises one row into groups of `group` values; the last may be short. `scales` has one scale per group. Halves are
/// rounded away from zero. A group of zeros has scale 0. A group that contains NaN has the scale NaN, so the NaN is not
/// lost.
#[inline(always)]
pub fn quantize(x: &[f32], group: usize, values: &mut [i8], scales: &mut [f32]) {
    for ((x, values), scale) in x.chunks(group).zip(values.chunks_mut(group)).zip(scales) {
        *scale = largest(x) / MAX;
        for (value, x) in values.iter_mut().zip(x) {
            let exact = x / *scale;
            let whole = exact.trunc();
            let away = if (exact - whole).abs() >= 0.5 { 1.0_f32.copysign(exact) } else { 0.0 };
            // A conversion in Rust saturates, and turns NaN into 0.
            *value = (whole + away) as i8;
        }
    }
}

/// max |x|, or NaN if a value is NaN.
#[inline(always)]
fn largest(x: &[f32]) -> f32 {
    let larger = |max: f32, x: f32| if x > max || x.is_nan() { x } else { max };
    let mut all = [0.0; LANES];
    let (lanes, rest) = x.as_chunks::<LANES>();
    for values in lanes {
        for lane in 0..LANES {
            all[lane] = larger(all[lane], values[lane].abs());
        }
    }
    all.into_iter().chain(rest.iter().map(|x| x.abs())).fold(0.0, larger)
}

/// A row of quantised values in a tensor whose groups continue across rows.
#[derive(Clone, Copy, Debug)]
pub struct Quantized<'a> {
    /// The values of the row.
    pub values: &'a [i8],
    /// The scales of the whole tensor, little-endian float32 as in a file: 4 bytes each.
    pub scales: &'a [[u8; 4]],
    /// Values that share a scale.
    pub group: usize,
    /// The row's first index in the tensor.
    pub first: usize,
}

impl Quantized<'_> {
    /// The scale of value `i` of the row.
    #[inline(always)]
    pub fn scale(&self, i: usize) -> f32 {
        f32::from_le_bytes(self.scales[(self.first + i) / self.group])
    }

    /// The end of the group of value `i`, counted from the beginning of the row.
    #[inline(always)]
    pub fn group_end(&self, i: usize) -> usize {
        ((self.first + i) / self.group + 1) * self.group - self.first
    }

    /// Dequantises the values from `start` on, as many as `out` has.
    pub fn dequantize(&self, start: usize, out: &mut [f32]) {
        let mut i = 0;
        while i < out.len() {
            let end = (self.group_end(start + i) - start).min(out.len());
            let scale = self.scale(start + i);
            for (out, value) in out[i..end].iter_mut().zip(&self.values[start + i..start + end]) {
                *out = f32::from(*value) * scale;
            }
            i = end;
        }
    }
}

/// The product of a quantised row of activations with a row of weights. The groups of `group` activations begin at the
/// row's start. A run is a range of inputs in which both scales are constant. The integer products of a run are summed
/// exactly, then multiplied by both scales. The runs are added as [`super::matmul::dot`] adds its terms: run r goes to
/// partial sum r mod 16 by a fused multiply-add.
#[inline(always)]
pub fn dot(x: &[i8], scales: &[f32], group: usize, w: Quantized<'_>) -> f32 {
    dot_by::<Fused>(x, scales, group, w)
}

/// [`dot`] with the multiply-add of `M`.
#[inline(always)]
pub fn dot_by<M: MulAdd>(x: &[i8], scales: &[f32], group: usize, w: Quantized<'_>) -> f32 {
    let (mut sums, mut i, mut run) = ([0.0_f32; LANES], 0, 0);
    while i < x.len() {
        let end = ((i / group + 1) * group).min(w.group_end(i)).min(x.len());
        let scale = scales[i / group] * w.scale(i);
        let sum = &mut sums[run % LANES];
        *sum = M::mul_add(integers(&x[i..end], &w.values[i..end]) as f32, scale, *sum);
        (i, run) = (end, run + 1);
    }
    reduce(sums)
}

/// Σ x · w, exactly.
#[inline(always)]
fn integers(x: &[i8], w: &[i8]) -> i64 {
    // 2¹⁶ products of two int8 values stay inside an i32.
    let parts = x.chunks(1 << 16).zip(w.chunks(1 << 16));
    parts
        .map(|(x, w)| i64::from(x.iter().zip(w).map(|(x, w)| i32::from(*x) * i32::from(*w)).sum::<i32>()))
        .sum()
}

/// Quantises a whole tensor into values and little-endian scales. Groups continue across rows.
pub fn quantize_weights(x: &[f32], group: usize, values: &mut [i8], scales: &mut [[u8; 4]]) {
    for ((x, values), bytes) in x.chunks(group).zip(values.chunks_mut(group)).zip(scales) {
        let mut scale = [0.0];
        quantize(x, group, values, &mut scale);
        *bytes = scale[0].to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_value_of_a_group_becomes_127() {
        let (mut values, mut scales) = ([0; 5], [0.0; 3]);
        quantize(&[1.0, -2.0, 0.0, 0.0, 254.0], 2, &mut values, &mut scales);
        assert_eq!(scales, [2.0 / 127.0, 0.0, 2.0]);
        assert_eq!(values, [64, -127, 0, 0, 127]); // 63.5 is rounded away from zero
    }

    #[test]
    fn halves_go_away_from_zero() {
        let (mut values, mut scales) = ([0; 4], [0.0]);
        quantize(&[127.0, 0.5, -0.5, 1.5], 4, &mut values, &mut scales);
        assert_eq!((values, scales), ([127, 1, -1, 2], [1.0]));
    }

    #[test]
    fn what_is_not_a_number_is_not_lost() {
        let (mut values, mut scales) = ([0; 3], [0.0]);
        quantize(&[1.0, f32::NAN, 2.0], 3, &mut values, &mut scales);
        assert!(scales[0].is_nan());
        quantize(&[1.0, f32::INFINITY, 2.0], 3, &mut values, &mut scales);
        assert!((scales[0] * f32::from(values[0])).is_nan());
    }

    #[test]
    fn a_run_ends_where_either_group_does() {
        // Activations in groups of 4, weights in groups of 3 that begin 2 values before this row: runs of 1, 3, 1.
        let x = [1, 2, 3, 4, 5];
        let scales = [10.0_f32, 100.0, 1000.0].map(f32::to_le_bytes);
        let w = Quantized { values: &[1, 1, 1, 1, 1], scales: &scales, group: 3, first: 2 };
        let sum = 1.0 * 10.0 * 0.5 + (2.0 + 3.0 + 4.0) * 100.0 * 0.5 + 5.0 * 1000.0 * 2.0;
        assert_eq!(dot(&x, &[0.5, 2.0], 4, w), sum);
        let mut out = [0.0; 3];
        w.dequantize(0, &mut out);
        assert_eq!(out, [10.0, 100.0, 100.0]);
        w.dequantize(3, &mut out[..2]);
        assert_eq!(out[..2], [100.0, 1000.0]);
    }
}
