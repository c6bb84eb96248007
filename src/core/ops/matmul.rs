//! Matrix product with a transposed weight, as in `torch.nn.Linear`: out\[o\] = Σ_i x\[i\] · w\[o, i\] (+ b\[o\]).

use super::arithmetic::{Fused, MulAdd};

/// Number of partial sums in [`dot`].
pub const LANES: usize = 16;

/// Terms of [`dot`] in one stretch. It is chosen so that the activations of a hundred tokens fit in a core's
/// second-level cache.
pub const STRETCH: usize = 1024;

/// Σ x\[i\] · w\[i\] over two slices of equal length.
///
/// The order of the sum is fixed. Within each [`STRETCH`], term i goes to partial sum i mod 16 by a fused multiply-add,
/// and [`reduce`] adds the partial sums. The stretches are added in order. Vectors of any width and blocks of any size
/// use this order; their results are equal to the bit.
#[inline(always)]
pub fn dot(x: &[f32], w: &[f32]) -> f32 {
    dot_by::<Fused>(x, w)
}

/// [`dot`] with the multiply-add of `M`.
#[inline(always)]
pub fn dot_by<M: MulAdd>(x: &[f32], w: &[f32]) -> f32 {
    dot_widened::<M, f32>(x, w, |w| w)
}

/// [`dot`] with the multiply-add of `M`, of weights that `widen` converts to float32.
#[inline(always)]
pub fn dot_widened<M: MulAdd, W: Copy>(x: &[f32], w: &[W], widen: impl Fn(W) -> f32 + Copy) -> f32 {
    debug_assert_eq!(x.len(), w.len());
    let mut stretches = x.chunks(STRETCH).zip(w.chunks(STRETCH));
    let Some((x, w)) = stretches.next() else { return 0.0 };
    let mut sum = dot_of_stretch::<M, W>(x, w, widen);
    for (x, w) in stretches {
        sum += dot_of_stretch::<M, W>(x, w, widen);
    }
    sum
}

/// [`dot_widened`] of at most one stretch.
#[inline(always)]
fn dot_of_stretch<M: MulAdd, W: Copy>(x: &[f32], w: &[W], widen: impl Fn(W) -> f32 + Copy) -> f32 {
    let mut sums = [0.0_f32; LANES];
    let (x_lanes, x_rest) = x.as_chunks::<LANES>();
    let (w_lanes, w_rest) = w.as_chunks::<LANES>();
    sum_lanes::<M, W>(x_lanes, w_lanes, widen, &mut sums);
    for ((sum, x), w) in sums.iter_mut().zip(x_rest).zip(w_rest) {
        *sum = M::mul_add(*x, widen(*w), *sum);
    }
    reduce(sums)
}

/// Adds the products of whole lanes to `sums`.
// On WebAssembly it is a function of its own. Beside `reduce`, the compiler would keep the sums in halves of its vectors.
#[cfg_attr(target_arch = "wasm32", inline(never))]
#[cfg_attr(not(target_arch = "wasm32"), inline(always))]
fn sum_lanes<M: MulAdd, W: Copy>(
    x: &[[f32; LANES]],
    w: &[[W; LANES]],
    widen: impl Fn(W) -> f32 + Copy,
    sums: &mut [f32; LANES],
) {
    let mut partial = *sums;
    for (x, w) in x.iter().zip(w) {
        for lane in 0..LANES {
            partial[lane] = M::mul_add(x[lane], widen(w[lane]), partial[lane]);
        }
    }
    *sums = partial;
}

/// The sum of the partial sums, by halves: 8 pairs, 4 pairs, 2 pairs, 1 pair.
#[inline(always)]
pub fn reduce(mut sums: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
        width /= 2;
    }
    sums[0]
}

/// One output row: `out` (O) = `x` (I) · `w`ᵀ with `w` (O, I), row-major.
pub fn matmul(x: &[f32], w: &[f32], out: &mut [f32]) {
    for (out, w) in out.iter_mut().zip(w.chunks_exact(x.len())) {
        *out = dot(x, w);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_by_hand() {
        let mut out = [0.0; 2];
        matmul(&[1.0, 2.0, 3.0], &[1.0, 0.0, 0.0, 10.0, 100.0, 1000.0], &mut out);
        assert_eq!(out, [1.0, 3210.0]);
    }

    #[test]
    fn whole_lanes_and_the_rest_are_both_summed() {
        for length in [0, 1, 15, 16, 17, 32, 100, STRETCH, STRETCH + 1, 3 * STRETCH] {
            let x: Vec<f32> = (0..length).map(|i| i as f32).collect();
            let ones = vec![1.0; length];
            assert_eq!(dot(&x, &ones), (0..length).sum::<usize>() as f32, "length {length}");
        }
    }
}
