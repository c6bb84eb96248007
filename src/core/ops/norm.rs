//! The norms of other families, made of RMSNorm: LayerNorm (Ba et al., 2016) is the RMSNorm of x − mean x.

use super::round;
use crate::config::Precision;

/// mean x. The sum has eight lanes, so its order does not depend on the processor.
pub fn mean(x: &[f32]) -> f32 {
    let (lanes, rest) = x.as_chunks::<8>();
    let mut sums = [0.0_f32; 8];
    for lane in lanes {
        sums.iter_mut().zip(lane).for_each(|(sum, x)| *sum += x);
    }
    sums.iter_mut().zip(rest).for_each(|(sum, x)| *sum += x);
    sums.iter().sum::<f32>() / x.len() as f32
}

/// out = x − mean x.
pub fn centre(x: &[f32], out: &mut [f32]) {
    let mean = mean(x);
    for (out, x) in out.iter_mut().zip(x) {
        *out = x - mean;
    }
}

/// The form of a norm over a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Form {
    /// Whether the mean is subtracted first: LayerNorm.
    pub centred: bool,
    /// Whether only the result is rounded, and not the factor before the weight.
    pub rounded_once: bool,
    /// ε.
    pub eps: f32,
}

/// Normalises one row with an RMSNorm that the caller computes: `rms_norm` gets a row, the weight, ε, a precision and
/// the output.
pub fn norm(
    form: Form,
    rms_norm: impl Fn(&[f32], &[f32], f32, Precision, &mut [f32]),
    x: &[f32],
    (weight, bias): (&[f32], Option<&[f32]>),
    precision: Precision,
    out: &mut [f32],
) {
    let inner = if form.rounded_once { Precision::F32 } else { precision };
    if form.centred {
        let mut centred = vec![0.0; x.len()];
        centre(x, &mut centred);
        rms_norm(&centred, weight, form.eps, inner, out);
    } else {
        rms_norm(x, weight, form.eps, inner, out);
    }
    for (out, bias) in out.iter_mut().zip(bias.unwrap_or_default()) {
        *out += bias;
    }
    if form.rounded_once {
        round::row(precision, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Arithmetic;

    #[test]
    fn a_layer_norm_has_mean_0_and_variance_1_before_its_weight_and_bias() {
        let form = Form { centred: true, rounded_once: true, eps: 0.0 };
        let mut out = [0.0; 2];
        let rms_norm =
            |x: &[f32], w: &[f32], eps, p, out: &mut [f32]| Arithmetic::Fused.rms_norm(x, w, eps, p, out);
        norm(form, rms_norm, &[5.0, 9.0], (&[1.0, 10.0], Some(&[0.5, 0.0])), Precision::F32, &mut out);
        assert_eq!(out, [-0.5, 10.0]);
    }

    #[test]
    fn rounding_once_keeps_the_digits_of_the_factor() {
        let x = [1.0, 0.7];
        let rounded = |rounded_once| {
            let form = Form { centred: false, rounded_once, eps: 0.0 };
            let rms_norm =
                |x: &[f32], w: &[f32], eps, p, out: &mut [f32]| Arithmetic::Fused.rms_norm(x, w, eps, p, out);
            let mut out = [0.0; 2];
            norm(form, rms_norm, &x, (&[1.015_625, 1.0], None), Precision::Bf16, &mut out);
            out[0]
        };
        // The factor is 1 / √0.745 = 1.15857. bfloat16 numbers are 2⁻⁷ apart here, and the nearest one is 1.15625.
        assert_eq!((rounded(true), rounded(false)), (1.179_687_5, 1.171_875));
    }
}
