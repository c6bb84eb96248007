//! The model of a trace: its configuration and its arithmetic.

use serde::{Deserialize, Serialize};

use super::sizes::{PassDims, Sizes};
use crate::config::{
    Activation, Arithmetic, LayerSet, ModelConfig, Placement, Precision, QkWidth, QueryScale, RopeScaling,
};
use crate::error::{Error, Result};

/// The model that a trace was recorded from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelCard {
    /// Short name.
    pub name: String,
    /// Fields of its configuration file that the user chose to ignore.
    pub ignored: Vec<String>,
    /// Parts that the user switched off: `L0/h2`, `L1/ffn`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<String>,
    /// Edits, in their order. Empty if they only switch parts off.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub edits: Vec<String>,
    /// The hyperparameters.
    pub config: ModelConfig,
    /// The number type that the values were computed in.
    pub precision: Precision,
    /// The arithmetic that they were computed with.
    #[serde(default, skip_serializing_if = "Arithmetic::is_fused")]
    pub arithmetic: Arithmetic,
    /// The backend that computed them: "cpu".
    pub backend: String,
}

impl ModelCard {
    /// The sizes of its shapes.
    pub fn sizes(&self) -> Sizes {
        Sizes::new(&self.config, self.precision)
    }

    /// Checks a card that was read from a file. Later code must not divide by zero or overflow.
    ///
    /// # Errors
    /// Those of [`ModelConfig::check`], and an error for int8 groups of size 0.
    pub fn check(&self) -> Result<()> {
        self.config.check()?;
        match self.precision {
            Precision::Q8 { group: 0 } => Err(Error::model("the group size of int8 values is not valid")
                .expected("at least 1 value per scale")
                .found("0")),
            _ => Ok(()),
        }
    }

    /// Replaces `{D}`, `{H}`, `{eps}` and so on in `text` by this model's numbers. The marks are the letters of the
    /// stage table, `{group}` for H/G, `{half}` for C/2, `{K}` and `{T}` for keys and tokens, and `{g}` for the
    /// activations per scale. `{window}` becomes the mask's second condition in a model with a sliding window.
    pub fn fill(&self, text: &str, dims: PassDims, layer: Option<usize>) -> String {
        let sizes = self.sizes();
        let window = sizes.window.map_or(String::new(), |window| {
            let from = match sizes.window_layers {
                LayerSet::From(0) => String::new(),
                LayerSet::From(first) => format!(" (from layer {first} on)"),
                listed @ LayerSet::Listed(_) => format!(" ({listed})"),
            };
            format!(" and k > {{start}} + t − {window}{from}")
        });
        let rope = self.config.rope(layer.and_then(|layer| self.config.rope_of(layer)).unwrap_or(0));
        let scaled = match &rope.scaling {
            RopeScaling::None => String::new(),
            scaling => format!(", frequencies scaled: {scaling}"),
        };
        let [queries, keys] = sizes.attended(layer.unwrap_or(0)).map(|stage| stage.name().to_owned());
        let times = |by: f32| if by == 1.0 { String::new() } else { format!("{by} · ") };
        let cap = |cap: Option<f32>| cap.map_or(String::new(), |cap| cap.to_string());
        let turned = 2 * sizes.pairs;
        let rest = match turned < sizes.head_dim {
            true => format!("; components {turned} to {} stay as they are", sizes.head_dim - 1),
            false => String::new(),
        };
        let query_scale =
            self.config.query_scale.map_or(String::new(), |QueryScale { beta, original_context }| {
                format!("; times 1 + {beta} · ln(1 + ⌊position / {original_context}⌋)")
            });
        let after = sizes.placement.after();
        let act = if sizes.activation == Activation::Silu { "ffn_silu" } else { "ffn_act" };
        let ffn_input = match sizes.placement {
            Placement::Before | Placement::Both => "ffn_norm",
            Placement::After => "attn_residual",
            Placement::Parallel => "attn_norm",
        };
        let width = self.config.qk_norm_form.width;
        let (is_whole, is_shared) = (width == QkWidth::Whole, width == QkWidth::Head);
        let numbers = [
            ("{queries}", queries),
            ("{keys}", keys),
            ("{R}", turned.to_string()),
            ("{rest}", rest),
            ("{query_scale}", query_scale),
            ("{scale}", self.config.score_scale.map_or(" / √{C}".to_owned(), |by| format!(" · {by}"))),
            ("{score_cap}", cap(sizes.score_cap)),
            ("{logit_cap}", cap(sizes.logit_cap)),
            ("{scores}", if sizes.score_cap.is_some() { "capped_scores" } else { "scores" }.to_owned()),
            ("{residual}", times(sizes.residual)),
            ("{attn_out}", if after { "post_attn_norm" } else { "attn_output" }.to_owned()),
            ("{ffn_out}", if after { "post_ffn_norm" } else { "ffn_down" }.to_owned()),
            ("{activation}", sizes.activation.formula().to_owned()),
            ("{gate}", if sizes.ungated { "ffn_up" } else { "ffn_gate" }.to_owned()),
            ("{act}", act.to_owned()),
            ("{attn_input}", if sizes.placement.before() { "attn_norm" } else { "x" }.to_owned()),
            ("{ffn_input}", ffn_input.to_owned()),
            ("{neurons}", sizes.neurons().name().to_owned()),
            ("{logits}", sizes.last_logits().name().to_owned()),
            ("{row}", if is_whole { ":" } else { "h" }.to_owned()),
            ("{kv_row}", if is_whole { ":" } else { "g" }.to_owned()),
            ("{q_row}", if is_whole { "{HC}" } else { "{C}" }.to_owned()),
            ("{k_row}", if is_whole { "{GC}" } else { "{C}" }.to_owned()),
            ("{q_at}", if is_shared { "c" } else { "h·{C} + c" }.to_owned()),
            ("{k_at}", if is_shared { "c" } else { "g·{C} + c" }.to_owned()),
            ("{logit_scale}", times(self.config.multipliers.logits)),
            ("{embedding_scale}", times(self.config.multipliers.embedding)),
            ("{window}", window),
            ("{scaled}", scaled),
            ("{D}", sizes.dim.to_string()),
            ("{H}", sizes.heads.to_string()),
            ("{G}", sizes.kv_heads.to_string()),
            ("{C}", sizes.head_dim.to_string()),
            ("{F}", sizes.hidden.to_string()),
            ("{V}", sizes.vocab.to_string()),
            ("{T}", dims.tokens.to_string()),
            ("{K} keys", if dims.keys() == 1 { "1 key".to_owned() } else { format!("{} keys", dims.keys()) }),
            ("{K}", dims.keys().to_string()),
            ("{start}", dims.start.to_string()),
            ("{HC}", (sizes.heads * sizes.head_dim).to_string()),
            ("{GC}", (sizes.kv_heads * sizes.head_dim).to_string()),
            ("{group}", (sizes.heads / sizes.kv_heads).to_string()),
            ("{half}", sizes.pairs.to_string()),
            ("{eps}", format!("{:?}", self.config.norm_eps)),
            ("{theta}", rope.theta.to_string()),
            ("{g}", sizes.group.map_or(String::new(), |group| group.to_string())),
        ];
        numbers.iter().fold(text.to_owned(), |text, (mark, number)| text.replace(mark, number))
    }
}

#[cfg(any(test, feature = "testing"))]
impl ModelCard {
    /// A small model for tests; `change` adapts its configuration.
    pub fn small(change: impl FnOnce(&mut ModelConfig)) -> Self {
        let mut config =
            ModelConfig { layers: 2, ffn_dim: 8, vocab: 10, context: 16, ..ModelConfig::of_heads(2, 1, 4) };
        change(&mut config);
        let (name, backend) = ("small".into(), "cpu".into());
        Self {
            name,
            ignored: vec![],
            without: vec![],
            edits: vec![],
            config,
            precision: Precision::F32,
            arithmetic: Arithmetic::Fused,
            backend,
        }
    }
}
