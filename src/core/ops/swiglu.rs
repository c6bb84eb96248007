//! The gate of SwiGLU (Shazeer, 2020): silu(g) = g / (1 + e^−g), later multiplied by `up`.

use super::exp::exp;

/// SiLU, also called swish.
#[inline(always)]
pub fn silu(gate: f32) -> f32 {
    gate / (1.0 + exp(-gate))
}

/// out = silu(gate), value by value.
#[inline(always)]
pub fn silu_all(gate: &[f32], out: &mut [f32]) {
    for (out, gate) in out.iter_mut().zip(gate) {
        *out = silu(*gate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_for_negative_open_for_positive() {
        assert_eq!(silu(0.0), 0.0);
        assert!((silu(1.0) - 0.731_058_6).abs() < 1e-6);
        assert_eq!(silu(-200.0), 0.0);
        assert_eq!(silu(50.0), 50.0);
    }
}
