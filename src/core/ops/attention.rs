//! Scaled dot-product attention (Vaswani et al., 2017) of one query row of one head, step by step:
//! qk → scores → masked scores → softmax → the mixed values.
//!
//! Keys and values have the layout of the cache (K, G, C): rows of one kv head are `stride` values apart.

use std::ops::Range;

use super::arithmetic::{Fused, MulAdd};
use super::matmul::dot_by;
pub use super::softmax::softmax;
use crate::config::Arithmetic;

/// qk\[k\] = query · key\[k\] for every k below the length of `out`. `keys` begins at the first key of the kv head that
/// this query head reads.
#[inline(always)]
pub fn qk(query: &[f32], keys: &[f32], stride: usize, out: &mut [f32]) {
    qk_by::<Fused>(query, keys, stride, out);
}

/// [`qk`] with the multiply-add of `M`.
#[inline(always)]
pub fn qk_by<M: MulAdd>(query: &[f32], keys: &[f32], stride: usize, out: &mut [f32]) {
    for (k, out) in out.iter_mut().enumerate() {
        *out = dot_by::<M>(query, &keys[k * stride..k * stride + query.len()]);
    }
}

/// scores = qk / √C.
#[inline(always)]
pub fn scale(row: &mut [f32], head_dim: usize) {
    let root = (head_dim as f32).sqrt();
    let inverse = 1.0 / root;
    // If √C is a power of two, as for heads of 64 or 256, multiplying by 1/√C gives the same bits as dividing by √C,
    // and is faster.
    if root.to_bits().trailing_zeros() >= f32::MANTISSA_DIGITS - 1 {
        row.iter_mut().for_each(|x| *x *= inverse);
    } else {
        row.iter_mut().for_each(|x| *x /= root);
    }
}

/// scores = qk · by, in families with a scale of their own, or [`scale`].
pub fn scale_by(row: &mut [f32], head_dim: usize, by: Option<f32>) {
    match by {
        Some(by) => row.iter_mut().for_each(|x| *x *= by),
        None => scale(row, head_dim),
    }
}

/// masked_scores = scores + mask: every key outside `visible` is set to −∞.
pub fn mask(row: &mut [f32], visible: Range<usize>) {
    row[..visible.start].fill(f32::NEG_INFINITY);
    row[visible.end..].fill(f32::NEG_INFINITY);
}

/// softmax over the keys in `visible`; the others get 0, the softmax of −∞.
pub fn softmax_visible(arithmetic: Arithmetic, row: &mut [f32], visible: Range<usize>) {
    arithmetic.softmax(&mut row[visible.clone()]);
    row[..visible.start].fill(0.0);
    row[visible.end..].fill(0.0);
}

/// out\[c\] += Σ_k weights\[k\] · value\[k\]\[c\], in the order of the keys, by fused multiply-adds. `values` begins at
/// the first value of the kv head.
#[inline(always)]
pub fn mix(weights: &[f32], values: &[f32], stride: usize, out: &mut [f32]) {
    mix_by::<Fused>(weights, values, stride, out);
}

/// [`mix`] with the multiply-add of `M`.
#[inline(always)]
pub fn mix_by<M: MulAdd>(weights: &[f32], values: &[f32], stride: usize, out: &mut [f32]) {
    for (k, weight) in weights.iter().enumerate() {
        let value = &values[k * stride..k * stride + out.len()];
        for (out, value) in out.iter_mut().zip(value) {
            *out = M::mul_add(*weight, *value, *out);
        }
    }
}

/// The kv head that query head `head` reads: repeat-KV (Ainslie et al., 2023) is this division.
pub fn kv_head(head: usize, heads: usize, kv_heads: usize) -> usize {
    head / (heads / kv_heads)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Sees;

    #[test]
    fn one_hot_keys_pick_the_row_they_mark() {
        // three keys and values of width 2, two kv heads side by side; this is kv head 1
        let keys = [9.0, 9.0, 100.0, 0.0, 9.0, 9.0, 0.0, 100.0, 9.0, 9.0, 0.0, 0.0];
        let values = [9.0, 9.0, 1.0, 2.0, 9.0, 9.0, 3.0, 4.0, 9.0, 9.0, 5.0, 6.0];
        let mut row = [0.0; 3];
        qk(&[0.0, 1.0], &keys[2..], 4, &mut row);
        assert_eq!(row, [0.0, 100.0, 0.0]);
        scale(&mut row, 4);
        assert_eq!(row, [0.0, 50.0, 0.0]);
        mask(&mut row, Sees::All.keys(1));
        assert_eq!(row, [0.0, 50.0, f32::NEG_INFINITY]);
        softmax(&mut row);
        let mut out = [0.0; 2];
        mix(&row, &values[2..], 4, &mut out);
        assert_eq!(out, [3.0, 4.0]);
    }

    #[test]
    fn scores_are_quotients_whatever_the_width_of_a_head() {
        for head_dim in (2..=256).step_by(2) {
            let values = [1.0, -3.7, 1e-38, 3e-45, -1e-44, 3.4e38, f32::INFINITY, 0.1, 7e-39];
            let mut row = values;
            scale(&mut row, head_dim);
            let expected = values.map(|x| x / (head_dim as f32).sqrt());
            assert_eq!(row.map(f32::to_bits), expected.map(f32::to_bits), "{head_dim}");
        }
    }

    #[test]
    fn a_window_of_two_hides_the_keys_before_and_after_it() {
        let mut row = [1.0; 4];
        mask(&mut row, Sees::Window(2).keys(2));
        assert_eq!(row, [f32::NEG_INFINITY, 1.0, 1.0, f32::NEG_INFINITY]);
        softmax_visible(Arithmetic::Fused, &mut row, Sees::Window(2).keys(2));
        assert_eq!(row, [0.0, 0.5, 0.5, 0.0]);
    }

    #[test]
    fn query_heads_share_kv_heads_in_runs() {
        let read: Vec<_> = (0..8).map(|head| kv_head(head, 8, 4)).collect();
        assert_eq!(read, [0, 0, 1, 1, 2, 2, 3, 3]);
    }
}
