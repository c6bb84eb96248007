//! Rounding of results to a precision's number type.

use half::bf16;

use crate::config::Precision;

/// `x` in `precision`: rounded to the nearest bfloat16, ties to even, in `bf16`; unchanged in the others.
#[inline(always)]
pub fn value(precision: Precision, x: f32) -> f32 {
    match precision {
        Precision::Bf16 => bf16::from_f32(x).to_f32(),
        Precision::F32 | Precision::Q8 { .. } => x,
    }
}

/// Rounds every value of a row.
#[inline(always)]
pub fn row(precision: Precision, row: &mut [f32]) {
    if precision == Precision::Bf16 {
        for x in row {
            *x = value(precision, *x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bfloat16_keeps_eight_significant_bits_and_ties_go_to_even() {
        let rounded = |x| value(Precision::Bf16, x);
        assert_eq!(rounded(1.0 + 1.0 / 128.0), 1.0 + 1.0 / 128.0);
        assert_eq!(rounded(1.0 + 1.0 / 256.0), 1.0);
        assert_eq!(rounded(1.0 + 3.0 / 256.0), 1.0 + 4.0 / 256.0);
        assert_eq!(rounded(f32::NEG_INFINITY), f32::NEG_INFINITY);
        assert!(rounded(f32::NAN).is_nan());
    }

    #[test]
    fn float32_stays_as_it_is() {
        for precision in [Precision::F32, Precision::Q8 { group: 32 }] {
            let mut values = [0.1, -3.3e-20];
            row(precision, &mut values);
            assert_eq!(values, [0.1, -3.3e-20]);
        }
    }
}
