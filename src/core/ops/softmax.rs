//! Softmax: out\[k\] = e^(x\[k\] − max x) / Σ e^(x − max x). Subtracting the maximum does not change the result; it
//! keeps e^x from overflowing.

use super::arithmetic::{Fused, MulAdd};
use super::exp::exp_by;
use super::matmul::{LANES, reduce};

/// Replaces `row` by its softmax. −∞ becomes exactly 0; an empty row stays empty. The exponentials are summed in the
/// order of [`super::matmul::dot`]: term i goes to partial sum i mod 16.
#[inline(always)]
pub fn softmax(row: &mut [f32]) {
    softmax_by::<Fused>(row);
}

/// [`softmax`] with the multiply-add of `M`.
#[inline(always)]
pub fn softmax_by<M: MulAdd>(row: &mut [f32]) {
    let max = max(row);
    let mut sums = [0.0; LANES];
    let (lanes, rest) = row.as_chunks_mut::<LANES>();
    for values in lanes {
        for lane in 0..LANES {
            values[lane] = exp_by::<M>(values[lane] - max);
            sums[lane] += values[lane];
        }
    }
    for (value, sum) in rest.iter_mut().zip(&mut sums) {
        *value = exp_by::<M>(*value - max);
        *sum += *value;
    }
    let sum = reduce(sums);
    for x in row.iter_mut() {
        *x /= sum;
    }
}

/// The largest value of `row`, without NaN; −∞ if the row is empty or has only NaN.
#[inline(always)]
fn max(row: &[f32]) -> f32 {
    let larger = |max: f32, x: f32| if x > max { x } else { max };
    let mut all = [f32::NEG_INFINITY; LANES];
    let (lanes, rest) = row.as_chunks::<LANES>();
    for values in lanes {
        for lane in 0..LANES {
            all[lane] = larger(all[lane], values[lane]);
        }
    }
    all.into_iter().chain(rest.iter().copied()).fold(f32::NEG_INFINITY, larger)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_become_their_shares() {
        let mut row = [1.0_f32.ln(), 3.0_f32.ln(), f32::NEG_INFINITY];
        softmax(&mut row);
        assert!((row[0] - 0.25).abs() < 1e-6 && (row[1] - 0.75).abs() < 1e-6);
        assert_eq!(row[2], 0.0);
    }

    #[test]
    fn large_scores_do_not_overflow() {
        let mut row = [1000.0, 1000.0];
        softmax(&mut row);
        assert_eq!(row, [0.5, 0.5]);
    }
}
