//! Mistakes of single values: the activation function, the scale of the embedding.

use half::{bf16, f16};

use super::super::bench::Exactly;
use super::Mistake;
use super::attention::{Times, factor};
use super::families;
use super::whole::silu;
use crate::check::Change;
use llama_trace_core::explain::{Exact, Fold, Rule};
use llama_trace_core::trace::{Frame, ModelCard, Op, Site, Stage};

type Function = fn(f64) -> f64;

/// Another function in place of the activation.
struct Activation(Function);

pub(super) fn add(card: &ModelCard, found: &Frame, right: &Exactly, all: &mut Vec<Mistake>) {
    let functions: [(_, Function); 9] = [
        ("SiLU", silu),
        ("GELU", gelu),
        ("GELU by tanh", gelu_tanh),
        ("x · sigmoid(1.702 x)", |x| x / (1.0 + (-1.702 * x).exp())),
        ("ReLU", |x| x.max(0.0)),
        ("ReLU²", |x| x.max(0.0).powi(2)),
        ("sigmoid", |x| 1.0 / (1.0 + (-x).exp())),
        ("tanh", f64::tanh),
        ("none", |x| x),
    ];
    for (form, function) in functions {
        let stages = families::activations(&card.config);
        all.push(Mistake::of("activation", form, stages, Activation(function)));
    }
    let stage = found.site.stage;
    let mut kept = Mistake::of("bf16_rounding", "this stage", Stage::ALL, Kept(vec![stage]));
    kept.rounds = true;
    all.push(kept);
    all.push(Mistake { rounds: true, ..Mistake::of("f16_rounding", "this stage", Stage::ALL, Half(stage)) });
    for (form, op) in [("cos and sin", Op::RopeTable), ("the cache", Op::Cache), ("softmax", Op::Softmax)] {
        let stages = op.stages();
        let mut kept = Mistake::of("bf16_rounding", form, stages, Kept(stages.to_vec())).again(stages);
        kept.rounds = true;
        all.push(kept);
    }
    let root = (card.config.dim as f64).sqrt();
    let own = (stage == Stage::Embedding).then(|| factor(found, right));
    let own = own.map(|times| (format!("times {times:.4}"), times));
    for (form, times) in
        [("times √D".into(), root), ("divided by √D".into(), 1.0 / root)].into_iter().chain(own)
    {
        all.push(Mistake::of("embedding_scale", form, Op::Lookup.stages(), Times(Stage::Embedding, times)));
    }
}

/// The results of these stages are rounded to bfloat16.
struct Kept(Vec<Stage>);

/// The results of this stage are rounded to float16.
struct Half(Stage);

impl Change for Half {
    fn value(&self, site: Site, _at: usize, exact: Exact) -> Exact {
        if site.stage != self.0 {
            return exact;
        }
        let value = f16::from_f64(exact.value).to_f64();
        Exact { value, other: value, ..exact }
    }
}

impl Change for Kept {
    fn value(&self, site: Site, _at: usize, exact: Exact) -> Exact {
        if !self.0.contains(&site.stage) {
            return exact;
        }
        let value = f64::from(bf16::from_f32(exact.value as f32).to_f32());
        Exact { value, other: value, ..exact }
    }
}

impl Change for Activation {
    fn rule(&self, _site: Site, _at: usize, mut rule: Rule) -> Rule {
        if let Fold::Silu { gate: x } | Fold::Activation { x, .. } = rule.fold {
            rule.fold = Fold::Same { from: x };
        }
        rule
    }

    fn value(&self, site: Site, _at: usize, exact: Exact) -> Exact {
        if !matches!(site.stage.info().op, Op::Silu | Op::Activation) {
            return exact;
        }
        let value = (self.0)(exact.value);
        Exact { value, other: value, ..exact }
    }
}

/// x · Φ(x), with the error function.
fn gelu(x: f64) -> f64 {
    x / 2.0 * (1.0 + erf(x / std::f64::consts::SQRT_2))
}

/// GPT-2's approximation of GELU.
fn gelu_tanh(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
    x / 2.0 * (1.0 + inner.tanh())
}

/// The error function: its series near 0, its continued fraction elsewhere.
fn erf(x: f64) -> f64 {
    let size = x.abs();
    let value = if size < 2.5 {
        let mut term = size;
        let mut sum = size;
        for n in 1..80 {
            term *= -size * size / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    } else {
        let fraction = (1..60).rev().fold(size, |below, n| size + f64::from(n) / 2.0 / below);
        1.0 - (-size * size).exp() / (fraction * std::f64::consts::PI.sqrt())
    };
    value.copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_function_has_its_known_values() {
        for (x, expected) in
            [(0.0, 0.0), (0.5, 0.520_499_877_8), (1.0, 0.842_700_792_9), (2.0, 0.995_322_265_0)]
        {
            assert!((erf(x) - expected).abs() < 1e-9 && (erf(-x) + expected).abs() < 1e-9, "{x}");
        }
        assert!((erf(2.499_999) - erf(2.500_001)).abs() < 1e-6 && (erf(3.0) - 0.999_977_909_5).abs() < 1e-9);
        assert!((gelu(1.0) - 0.841_344_746).abs() < 1e-8 && (gelu_tanh(1.0) - 0.841_191_990_6).abs() < 1e-8);
    }
}
