//! The gate of SwiGLU (Shazeer, 2020): silu(g) = g / (1 + e^−g), then multiplied with `up`.

/// SiLU, also called swish.
pub fn silu(gate: f32) -> f32 {
    gate / (1.0 + (-gate).exp())
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
