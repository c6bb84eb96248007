//! Mistakes in what other families add to a Llama: factors, soft caps, norms in other places, layers of several kinds.
//! None of them is tried on a model without the switch.

use std::ops::Range;

use super::attention::{Shifted, Times};
use super::layout::{Norms, OtherWeights};
use super::whole::{mean_square, reduced};
use super::{Mistake, SEEING, Whole, stages};
use crate::check::Change;
use llama_trace_core::config::{Activation, ModelConfig, NormKind};
use llama_trace_core::explain::{Exact, Fold, Rule};
use llama_trace_core::trace::{ModelCard, Op, PassDims, Site, Sizes, Stage};

/// A soft cap is left out.
struct Uncapped;

/// Hidden keys have minus the cap, because the cap comes after the mask.
struct CappedMask {
    cap: f64,
    sizes: Sizes,
    passes: Vec<PassDims>,
    /// Softmax and the weighted sum then read all keys.
    all: Shifted,
}

/// Sums have no factor.
struct Unweighted;

/// The norms do not subtract the mean.
struct Uncentred;

/// Adds the mistakes that are possible in the model `card`.
pub(super) fn add(card: &ModelCard, passes: &[PassDims], all: &mut Vec<Mistake>) {
    let config = &card.config;
    factors(config, all);
    caps(card, passes, all);
    norms(config, all);
}

/// The factors of the embeddings, of the residual stream and of the logits.
fn factors(config: &ModelConfig, all: &mut Vec<Mistake>) {
    let [embedding, residual, logits] =
        [config.multipliers.embedding, config.multipliers.residual, config.multipliers.logits].map(f64::from);
    if embedding != 1.0 {
        let form = format!("without the factor {embedding:.4}");
        let left_out = Times(Stage::Embedding, 1.0 / embedding);
        all.push(Mistake::of("embedding_scale", form, [Stage::Embedding], left_out));
    }
    if residual != 1.0 {
        let form = format!("without the factor {residual:.4}");
        all.push(Mistake::of("residual_scale", form, Op::Add.stages(), Unweighted));
    }
    if logits != 1.0 {
        let (by, root) = (1.0 / logits, 1.0 / logits / logits);
        let forms = [
            (format!("without the factor {logits:.4}"), by),
            (format!("divided by {logits:.4}, not multiplied"), root),
        ];
        for (form, by) in forms {
            all.push(Mistake::of("logit_scale", form, [Stage::Logits], Times(Stage::Logits, by)));
        }
    }
}

/// The soft caps of the scores and of the logits.
fn caps(card: &ModelCard, passes: &[PassDims], all: &mut Vec<Mistake>) {
    for (cap, stages, form) in [
        (card.config.score_cap, &[Stage::CappedScores][..], "of the scores"),
        (card.config.logit_cap, &[Stage::CappedLogits], "of the logits"),
    ] {
        if cap.is_some() {
            all.push(Mistake::of("softcap_missing", form, stages, Uncapped));
        }
    }
    let Some(cap) = card.config.score_cap else { return };
    let (sizes, passes) = (card.sizes(), passes.to_vec());
    let seeing = Shifted::all(sizes, &passes);
    let late = CappedMask { cap: cap.into(), sizes, passes, all: seeing };
    let touches: Vec<_> = stages(SEEING).into_iter().chain([Stage::CappedScores]).collect();
    let mut late =
        Mistake::of("softcap_late", "", touches, late).again(&[Stage::CappedScores, Stage::MaskedScores]);
    late.looks_ahead = true;
    all.push(late);
}

/// The norms: 1 + w, LayerNorm, and the norms after a sublayer.
fn norms(config: &ModelConfig, all: &mut Vec<Mistake>) {
    if config.norm.one_plus {
        let stored = Norms(|weight| weight - 1.0);
        all.push(Mistake::of("norm_weight_as_stored", "", Op::RmsNorm.stages(), stored));
    }
    if config.norm.kind == NormKind::Layer || config.qk_norm && config.qk_norm_form.kind == NormKind::Layer {
        all.push(Mistake::of("norm_mean_missing", "", Op::RmsNorm.stages(), Uncentred));
    }
    if !config.placement.after() {
        return;
    }
    // Llama's `post_attention_layernorm` is the norm before the feed-forward network. Here it is the norm after attention.
    if config.placement.before_ffn() && config.norm.weight {
        for (form, stages, other) in [
            (
                "weights of post_attn_norm in ffn_norm",
                &[Stage::FfnNorm][..],
                OtherWeights(&[["ffn_norm", "attention_post_norm"]]),
            ),
            (
                "weights of ffn_norm in post_attn_norm",
                &[Stage::PostAttnNorm],
                OtherWeights(&[["attention_post_norm", "ffn_norm"]]),
            ),
        ] {
            all.push(Mistake::of("norm_weights_swapped", form, stages, other));
        }
    }
    let after: Whole = |o| match o.site.stage {
        // The result replaces the stream.
        Stage::AttnResidual | Stage::FfnResidual => o.input(1).cloned(),
        _ => {
            let sum = o.x()? + o.input(1)?;
            let centred = match o.config.norm.kind {
                NormKind::Rms => sum,
                NormKind::Layer => &sum - &reduced(&sum, Some(1), |row| row.mean().unwrap_or(0.0)),
            };
            let normed = &centred / &(mean_square(&centred, Some(1)) + o.eps()).mapv(f64::sqrt);
            Some(o.w().map_or_else(|| normed.clone(), |weight| &normed * weight))
        }
    };
    let touches = [Stage::PostAttnNorm, Stage::AttnResidual, Stage::PostFfnNorm, Stage::FfnResidual];
    let mut after = Mistake::whole("post_norm_place", "", touches, &after);
    after.otherwise.reads_input = &[Stage::PostAttnNorm];
    after.otherwise.also = &[(Stage::PostFfnNorm, Stage::AttnResidual)];
    all.push(after);
}

/// The stages of the activation function.
pub(super) fn activations(config: &ModelConfig) -> &'static [Stage] {
    if config.activation == Activation::Silu { Op::Silu.stages() } else { Op::Activation.stages() }
}

impl CappedMask {
    /// The keys that a row of scores sees, and the number of keys.
    fn seen(&self, site: Site, cell: usize) -> Option<(Range<usize>, usize)> {
        let dims = self.passes.iter().find(|dims| dims.pass == site.pass)?;
        let (tokens, keys) = (dims.tokens, dims.keys());
        let token = dims.start + cell / keys % tokens;
        Some((self.sizes.sees(site.layer).keys(token), cell % keys))
    }
}

impl Change for Uncapped {
    fn rule(&self, _site: Site, _at: usize, mut rule: Rule) -> Rule {
        if let Fold::Cap { x, .. } = rule.fold {
            rule.fold = Fold::Same { from: x };
        }
        rule
    }
}

impl Change for CappedMask {
    fn rule(&self, site: Site, at: usize, mut rule: Rule) -> Rule {
        match site.stage {
            Stage::CappedScores => {
                if self.seen(site, at).is_some_and(|(seen, key)| !seen.contains(&key)) {
                    rule.fold = Fold::Hide { seen: false };
                }
                rule
            }
            Stage::Softmax | Stage::AttnHeads => self.all.rule(site, at, rule),
            _ => rule,
        }
    }

    fn value(&self, site: Site, _at: usize, exact: Exact) -> Exact {
        if !matches!(site.stage, Stage::CappedScores | Stage::MaskedScores) || exact.value.is_finite() {
            return exact;
        }
        Exact { value: -self.cap, other: -self.cap, largest: self.cap }
    }
}

impl Change for Unweighted {
    fn rule(&self, _site: Site, _at: usize, mut rule: Rule) -> Rule {
        if let Fold::Add { by, .. } = &mut rule.fold {
            *by = 1.0;
        }
        rule
    }
}

impl Change for Uncentred {
    fn rule(&self, _site: Site, _at: usize, mut rule: Rule) -> Rule {
        if let Fold::Norm { centred, .. } = &mut rule.fold {
            *centred = false;
        }
        rule
    }
}
