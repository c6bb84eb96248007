//! The activations of other families than Llama's, value by value. SiLU is in [`super::swiglu`].

use std::f32::consts::FRAC_1_SQRT_2;

use super::round;
use crate::config::{Activation, Precision};

/// 2 · √(2/π).
const TWICE: f32 = 1.595_769_2;
/// The coefficient of x³ in GELU's approximation.
const CUBIC: f32 = 0.044_715;
/// β of xIELU.
const BETA: f32 = 0.5;
/// The largest negative value of which xIELU takes the exponential.
const EPS: f32 = -1e-6;

/// The number of values that are passed to SiLU at once.
const AT_ONCE: usize = 64;

/// out = `activation`(x). `silu` computes SiLU. `numbers` are the two stored numbers of xIELU ([`xielu_numbers`]). In
/// bfloat16, each operation of xIELU is rounded, as in transformers; the others are not rounded here.
pub fn activate(
    activation: Activation,
    silu: impl Fn(&[f32], &mut [f32]),
    numbers: [f32; 2],
    precision: Precision,
    x: &[f32],
    out: &mut [f32],
) {
    let pairs = |out: &mut [f32], of: &dyn Fn(f32) -> f32| {
        for (out, x) in out.iter_mut().zip(x) {
            *out = of(*x);
        }
    };
    match activation {
        Activation::Silu => silu(x, out),
        // x · (1 + tanh u) / 2 = x / (1 + e^−2u) = silu(2u) · x / 2u, with 2u = TWICE · x · (1 + CUBIC · x²)
        Activation::GeluTanh => {
            for (x, out) in x.chunks(AT_ONCE).zip(out.chunks_mut(AT_ONCE)) {
                let mut by = [0.0; AT_ONCE];
                let mut wide = [0.0; AT_ONCE];
                for ((by, wide), x) in by.iter_mut().zip(&mut wide).zip(x) {
                    *by = TWICE * (1.0 + CUBIC * x * x);
                    *wide = *by * x;
                }
                silu(&wide[..x.len()], out);
                out.iter_mut().zip(by).for_each(|(out, by)| *out /= by);
            }
        }
        // 1 + erf u = erfc(−u), without the difference of two near numbers.
        Activation::Gelu => pairs(out, &|x| 0.5 * x * libm::erfcf(-x * FRAC_1_SQRT_2)),
        Activation::Relu2 => pairs(out, &|x| x.max(0.0) * x.max(0.0)),
        Activation::Xielu => {
            let [positive, negative] = xielu_numbers(numbers, precision);
            match precision {
                Precision::Bf16 => {
                    let round = |x| round::value(Precision::Bf16, x);
                    pairs(out, &|x| match x > 0.0 {
                        true => round(round(round(positive * x) * x) + round(BETA * x)),
                        false => {
                            let power = round(libm::expm1f(x.min(round(EPS))));
                            round(round(round(power - x) * negative) + round(BETA * x))
                        }
                    });
                }
                Precision::F32 | Precision::Q8 { .. } => pairs(out, &|x| match x > 0.0 {
                    true => positive * x * x + BETA * x,
                    false => (libm::expm1f(x.min(EPS)) - x) * negative + BETA * x,
                }),
            }
        }
    }
}

/// The factors of xIELU for positive and for negative values: softplus of the stored numbers, and β more for the second.
pub fn xielu_numbers([positive, negative]: [f32; 2], precision: Precision) -> [f32; 2] {
    let round = |x| round::value(precision, x);
    let softplus = |x: f32| round(if x > 20.0 { x } else { libm::log1pf(libm::expf(x)) });
    [softplus(positive), round(BETA + softplus(negative))]
}

/// The same in float64, by the formulas. `round` rounds each operation of xIELU.
pub fn exact(
    activation: Activation,
    [positive, negative]: [f64; 2],
    x: f64,
    round: impl Fn(f64) -> f64,
) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            x / (1.0 + (-2.0 * u).exp())
        }
        Activation::Gelu => 0.5 * x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2),
        Activation::Relu2 => x.max(0.0) * x.max(0.0),
        Activation::Xielu => {
            let softplus = |x: f64| round(if x > 20.0 { x } else { x.exp().ln_1p() });
            let curve = match x > 0.0 {
                true => round(round(softplus(positive) * x) * x),
                false => {
                    let power = round(x.min(round(f64::from(EPS))).exp_m1());
                    round(round(power - x) * round(0.5 + softplus(negative)))
                }
            };
            curve + round(0.5 * x)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Arithmetic;

    #[test]
    fn the_activations_are_their_formulas() {
        let x: Vec<f32> =
            (-400..400).map(|i| i as f32 / 37.0).chain([0.0, 1e-7, -1e-7, 60.0, -60.0]).collect();
        let numbers = [0.3, -0.7];
        use Activation::{Gelu, GeluTanh, Relu2, Silu, Xielu};
        for activation in [Silu, GeluTanh, Gelu, Relu2, Xielu] {
            let mut out = vec![0.0; x.len()];
            activate(
                activation,
                |x, out| Arithmetic::Fused.silu_all(x, out),
                numbers,
                Precision::F32,
                &x,
                &mut out,
            );
            let mut squares = [0.0; 2];
            for (x, y) in x.iter().zip(&out) {
                let exact = exact(activation, numbers.map(f64::from), f64::from(*x), |x| x);
                squares[0] += (f64::from(*y) - exact).powi(2);
                squares[1] += exact * exact;
                // In xIELU, two terms as large as x cancel.
                let terms = if activation == Xielu { f64::from(x.abs()) } else { 1e-3 };
                assert!(
                    (f64::from(*y) - exact).abs() <= 2e-6 * exact.abs().max(terms),
                    "{activation:?} {x}: {y}"
                );
            }
            assert!(squares[0] <= 1e-12 * squares[1], "{activation:?}");
        }
    }
}
