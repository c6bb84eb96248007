//! Tolerances of stages, for comparisons without a model to measure them.

use llama_trace_core::config::Precision;
use llama_trace_core::trace::{Site, Stage};

/// The tolerance of a stage in the first layer: the largest relative L2 distance ‖B − A‖ / ‖A‖ between a run in
/// `precision` and a run in float32. It includes the error of the inputs and so grows with each layer; [`of`] gives the
/// number for a layer.
///
/// Measured on the built-in model and the golden models, against this program and transformers: the worst case reaches
/// 0.7 of the tolerance.
pub fn base(stage: Stage, precision: Precision) -> f64 {
    // Attention weights and probabilities depend on differences of scores and have larger errors; so do the values that
    // attention mixes.
    let wide = match stage {
        Stage::Softmax
        | Stage::AttnHeads
        | Stage::AttnOutput
        | Stage::Probs
        | Stage::MinP
        | Stage::TypicalP
        | Stage::Nucleus => 1.5,
        _ => 1.0,
    };
    match (stage.first_of_name(), precision) {
        (Stage::Tokens | Stage::Mask | Stage::Sampled, _) => 0.0,
        (Stage::RopeCos | Stage::RopeSin, Precision::F32 | Precision::Q8 { .. }) => 1e-5,
        (Stage::RopeCos | Stage::RopeSin, Precision::Bf16) => 0.01,
        (Stage::Embedding, Precision::F32) => 1e-6,
        (Stage::Embedding, Precision::Bf16) => 0.01,
        (Stage::Embedding, Precision::Q8 { .. }) => 0.02,
        (_, Precision::F32) => wide * 2e-5,
        (_, Precision::Bf16) => wide * 0.1,
        (_, Precision::Q8 { .. }) => wide * 0.12,
    }
}

/// The tolerance of a stage in its layer: [`base`] times √(L + 1) after L layers, the growth of independent errors.
pub fn of(site: Site, layers: usize, precision: Precision) -> f64 {
    let before = match site.stage.first_of_name() {
        Stage::Tokens | Stage::Embedding | Stage::RopeCos | Stage::RopeSin | Stage::Mask => 0,
        _ => site.layer.unwrap_or(layers),
    };
    base(site.stage, precision) * ((before + 1) as f64).sqrt()
}

/// The less exact of two precisions.
pub fn coarser(a: Precision, b: Precision) -> Precision {
    let rank = |precision: Precision| match precision {
        Precision::F32 => 0,
        Precision::Bf16 => 1,
        Precision::Q8 { .. } => 2,
    };
    if rank(a) >= rank(b) { a } else { b }
}
