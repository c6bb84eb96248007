//! The switches of a model in which it differs from Llama, for `info`.

use llama_trace_core::config::{Activation, ModelConfig, NormKind, Placement, QkWidth, QueryScale};

/// A row: its name, its value, and a note.
pub(super) type Row = (&'static str, String, String);

/// A row for each switch that is not Llama's.
pub(super) fn rows(config: &ModelConfig) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut row = |name, value: String, note: &str| rows.push((name, value, note.to_owned()));
    if let Some(dim) = config.rope_dim {
        row("rotated", dim.to_string(), "components of a head that RoPE rotates");
    }
    if !config.rope_layers.is_all() {
        row("RoPE in", config.rope_layers.to_string(), "");
    }
    if let Some(local) = &config.local_rope {
        row("local θ", local.theta.to_string(), "of RoPE in the layers with a window");
        row("scaling", local.scaling.to_string(), "of RoPE frequencies in the layers with a window");
    }
    if let Some(QueryScale { beta, original_context }) = config.query_scale {
        let note = format!("β of the factor of the queries, which grows every {original_context} tokens");
        row("q scale", beta.to_string(), &note);
    }
    let places = match config.placement {
        Placement::Before => None,
        Placement::After => Some(("after", "norms after attention and the feed-forward network, not before")),
        Placement::Both => Some(("both", "norms before and after attention and the feed-forward network")),
        Placement::Parallel => Some(("one", "norm; attention and the feed-forward network are side by side")),
    };
    if let Some((value, note)) = places {
        row("norms", value.into(), note);
    }
    if config.norm.kind == NormKind::Layer {
        row("kind", "LayerNorm".into(), if config.norm.bias { "with a bias" } else { "without a bias" });
    }
    if config.norm.one_plus {
        row("weights", "1 + w".into(), "of norms");
    }
    let form = config.qk_norm_form;
    if config.qk_norm && form.width != QkWidth::Head {
        let width = if form.width == QkWidth::Whole { "whole" } else { "each head" };
        row("q/k", width.into(), "what a norm of queries or keys has its own weight for");
    }
    if config.qk_norm && form.after_rope {
        row("q/k", "after RoPE".into(), "norms of queries and keys");
    }
    if config.activation != Activation::Silu {
        row("act", config.activation.name().into(), "activation of the feed-forward network");
    }
    if config.ungated {
        row("gate", "no".into(), "the feed-forward network has two projections");
    }
    let factors = [
        ("embed ×", config.multipliers.embedding, "factor of the embeddings"),
        ("branch ×", config.multipliers.residual, "factor of attention and of the feed-forward network"),
        ("logits ×", config.multipliers.logits, "factor of the logits"),
    ];
    for (name, factor, note) in factors.into_iter().filter(|(_, factor, _)| *factor != 1.0) {
        row(name, factor.to_string(), note);
    }
    let optional = [
        ("scores ×", config.score_scale, "factor of the scores, instead of 1/√C"),
        ("cap", config.score_cap, "of the scores"),
        ("cap", config.logit_cap, "of the logits"),
    ];
    for (name, value, note) in optional {
        if let Some(value) = value {
            row(name, value.to_string(), note);
        }
    }
    rows
}
