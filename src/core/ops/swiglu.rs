//! The gate of SwiGLU (Shazeer, 2020): silu(g) = g / (1 + e^−g), later multiplied by `up`.

use super::arithmetic::{Fused, MulAdd};
use super::exp::exp_by;

/// SiLU, also called swish.
#[inline(always)]
pub fn silu_by<M: MulAdd>(gate: f32) -> f32 {
    gate / (1.0 + exp_by::<M>(-gate))
}

/// out = silu(gate), value by value.
#[inline(always)]
pub fn silu_all(gate: &[f32], out: &mut [f32]) {
    silu_all_by::<Fused>(gate, out);
}

/// [`silu_all`] with the multiply-add of `M`.
#[inline(always)]
pub fn silu_all_by<M: MulAdd>(gate: &[f32], out: &mut [f32]) {
    for (out, gate) in out.iter_mut().zip(gate) {
        *out = silu_by::<M>(*gate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_for_negative_open_for_positive() {
        let silu = silu_by::<Fused>;
        assert_eq!(silu(0.0), 0.0);
        assert!((silu(1.0) - 0.731_058_6).abs() < 1e-6);
        assert_eq!(silu(-200.0), 0.0);
        assert_eq!(silu(50.0), 50.0);
    }
}
