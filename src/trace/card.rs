//! What a trace must know about the model it came from: its configuration, the sizes that shapes are made of, and the
//! arithmetic.

use serde::{Deserialize, Serialize};

use super::axis::Axis;
use super::stage::{Input, Rounded, Stage};
use super::step::Step;
use crate::config::{ModelConfig, Precision};
use crate::error::{Error, Result};

/// What shapes are made of, and what decides which stages there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Number of layers.
    pub layers: usize,
    /// D: model width.
    pub dim: usize,
    /// H: query heads.
    pub heads: usize,
    /// G: key/value heads.
    pub kv_heads: usize,
    /// C: head width.
    pub head_dim: usize,
    /// F: feed-forward width.
    pub hidden: usize,
    /// V: vocabulary.
    pub vocab: usize,
    /// Whether queries and keys are normalised, head by head, before RoPE.
    pub qk_norm: bool,
    /// W: keys that a token sees in a layer with a sliding window, its own among them.
    pub window: Option<usize>,
    /// The first layer with the window; all from there on have it.
    pub window_from: usize,
    /// Activations that share a scale, where matrix products run in int8.
    pub group: Option<usize>,
}

/// The three numbers that tell one pass from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassDims {
    /// Number of the pass; 0 is the prefill.
    pub pass: usize,
    /// Tokens that were cached before this pass.
    pub start: usize,
    /// T: tokens of this pass.
    pub tokens: usize,
}

impl PassDims {
    /// K = start + T: keys that this pass sees.
    pub fn keys(self) -> usize {
        self.start + self.tokens
    }
}

/// The model that a trace was recorded from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelCard {
    /// Short name.
    pub name: String,
    /// Fields of its configuration file that were ignored because the user said so.
    pub ignored: Vec<String>,
    /// The hyperparameters.
    pub config: ModelConfig,
    /// The arithmetic that the values were computed in.
    pub precision: Precision,
    /// What computed them: "cpu".
    pub backend: String,
}

impl Sizes {
    /// The sizes of a model of this configuration, run in `precision`.
    pub fn new(config: &ModelConfig, precision: Precision) -> Self {
        Self {
            layers: config.layers,
            dim: config.dim,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            hidden: config.ffn_dim,
            vocab: config.vocab,
            qk_norm: config.qk_norm,
            window: config.window,
            window_from: config.window_from,
            group: precision.group(),
        }
    }

    /// The window of `layer`, if it has one.
    pub fn window_of(&self, layer: usize) -> Option<usize> {
        self.window.filter(|_| layer >= self.window_from)
    }

    /// Whether some key is hidden from some token of pass `dims` in some layer: one that comes after it, or
    /// one that has left its window.
    pub fn hides(&self, dims: PassDims) -> bool {
        dims.tokens > 1 || self.window.is_some_and(|window| dims.keys() > window)
    }

    /// The length of `axis` in pass `dims`.
    pub fn axis(&self, axis: Axis, dims: PassDims) -> usize {
        match axis {
            Axis::Token => dims.tokens,
            Axis::Key => dims.keys(),
            Axis::Head => self.heads,
            Axis::KvHead => self.kv_heads,
            Axis::HeadDim => self.head_dim,
            Axis::Dim => self.dim,
            Axis::Hidden => self.hidden,
            Axis::Pair => self.head_dim / 2,
            Axis::Vocab => self.vocab,
            Axis::HeadsMerged => self.heads * self.head_dim,
            Axis::KvHeadsMerged => self.kv_heads * self.head_dim,
            Axis::One => 1,
            Axis::DimGroup => self.groups(self.dim),
            Axis::HeadsGroup => self.groups(self.heads * self.head_dim),
            Axis::HiddenGroup => self.groups(self.hidden),
        }
    }

    /// How many scales a row of `width` values has.
    fn groups(&self, width: usize) -> usize {
        self.group.map_or(0, |group| width.div_ceil(group))
    }

    /// How many rows a tensor with these axes has: everything along the last axis is one.
    pub fn rows(&self, axes: &[Axis], dims: PassDims) -> usize {
        let outer = axes.split_last().map_or(axes, |(_, outer)| outer);
        outer.iter().map(|&axis| self.axis(axis, dims)).product()
    }

    /// The shape of a tensor with these axes in pass `dims`.
    pub fn shape(&self, axes: &[Axis], dims: PassDims) -> Vec<usize> {
        axes.iter().map(|&axis| self.axis(axis, dims)).collect()
    }
}

impl ModelCard {
    /// What shapes are made of.
    pub fn sizes(&self) -> Sizes {
        Sizes::new(&self.config, self.precision)
    }

    /// Checks a card that was read: what is computed from it must not divide by zero or overflow.
    ///
    /// # Errors
    /// As [`ModelConfig::check`], and where the groups of int8 values are empty.
    pub fn check(&self) -> Result<()> {
        self.config.check()?;
        match self.precision {
            Precision::Q8 { group: 0 } => Err(Error::model("the groups of int8 values cannot be right")
                .expected("at least 1 value that shares a scale")
                .found("0")),
            _ => Ok(()),
        }
    }

    /// The formula of `step` with this model's numbers, and what its arithmetic adds to it.
    pub fn formula(&self, step: Step, dims: PassDims) -> String {
        let text = self.fill(step.formula(), dims);
        let Step::Stage(stage) = step else { return text };
        match self.precision {
            Precision::Q8 { group } => text + &in_int8(stage, group),
            Precision::Bf16 => text + in_bfloat16(stage),
            Precision::F32 => text,
        }
    }

    /// `text` with this model's numbers in place of `{D}`, `{H}`, `{eps}` and so on: the letters of the
    /// stage table, `{group}` for H/G, `{half}` for C/2, `{last}` for C − 1, `{keys}` and `{tokens}` for K and T,
    /// `{g}` for the activations that share a scale, `{window}` for the mask's second condition in a model with a sliding window.
    pub fn fill(&self, text: &str, dims: PassDims) -> String {
        let sizes = self.sizes();
        let window = sizes.window.map_or(String::new(), |window| {
            let all = sizes.window_from == 0;
            let from = if all { String::new() } else { format!(" (layers from {})", sizes.window_from) };
            format!(" and k > {{start}} + t − {window}{from}")
        });
        let numbers = [
            ("{window}", window),
            ("{D}", sizes.dim.to_string()),
            ("{H}", sizes.heads.to_string()),
            ("{G}", sizes.kv_heads.to_string()),
            ("{C}", sizes.head_dim.to_string()),
            ("{F}", sizes.hidden.to_string()),
            ("{V}", sizes.vocab.to_string()),
            ("{T}", dims.tokens.to_string()),
            ("{K}", dims.keys().to_string()),
            ("{start}", dims.start.to_string()),
            ("{HC}", (sizes.heads * sizes.head_dim).to_string()),
            ("{GC}", (sizes.kv_heads * sizes.head_dim).to_string()),
            ("{group}", (sizes.heads / sizes.kv_heads).to_string()),
            ("{half}", (sizes.head_dim / 2).to_string()),
            ("{eps}", format!("{:?}", self.config.norm_eps)),
            ("{theta}", self.config.rope_theta.to_string()),
            ("{g}", sizes.group.map_or(String::new(), |group| group.to_string())),
        ];
        numbers.iter().fold(text.to_owned(), |text, (mark, number)| text.replace(mark, number))
    }
}

/// What int8 adds to the formula of `stage`.
fn in_int8(stage: Stage, group: usize) -> String {
    let info = stage.info();
    let matrix = info.weights.iter().find(|weight| weight.axes.len() == 2);
    let quantized = info.inputs.iter().find_map(|input| match input {
        Input::Stage(input) if input.is_int8() => Some(input),
        _ => None,
    });
    match (matrix, quantized) {
        (Some(weight), Some(input)) => format!(
            "; in int8: {input} · the int8 values of {}, summed as whole numbers as long as neither side's group \
             of {group} ends, then times both scales",
            weight.name
        ),
        (Some(weight), None) => format!("; {} is int8 values times a scale for each {group}", weight.name),
        _ => String::new(),
    }
}

/// What bfloat16 adds to the formula of `stage`: where PyTorch rounds.
fn in_bfloat16(stage: Stage) -> &'static str {
    match stage.info().rounded {
        Rounded::Never => "",
        Rounded::Result => "; the result rounded to bfloat16",
        Rounded::TwiceInNorm => "; rounded to bfloat16 before the weight, and after it",
        Rounded::ProductsAndSum => "; each product rounded to bfloat16, and their sum",
    }
}

#[cfg(test)]
impl ModelCard {
    /// A small model to test with: `change` makes of it what the test is about.
    pub(crate) fn small(change: impl FnOnce(&mut ModelConfig)) -> Self {
        use crate::config::{Pairing, RopeScaling};
        let mut config = ModelConfig {
            dim: 8,
            layers: 2,
            heads: 2,
            kv_heads: 1,
            head_dim: 4,
            ffn_dim: 8,
            vocab: 10,
            context: 16,
            norm_eps: 1e-5,
            rope_theta: 1e4,
            rope_scaling: RopeScaling::None,
            pairing: Pairing::Halves,
            qkv_bias: false,
            output_bias: false,
            mlp_bias: false,
            qk_norm: false,
            window: None,
            window_from: 0,
            tied: false,
        };
        change(&mut config);
        let (name, backend) = ("small".into(), "cpu".into());
        Self { name, ignored: vec![], config, precision: Precision::F32, backend }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn formula(stage: Stage, precision: Precision) -> String {
        let card = ModelCard { precision, ..ModelCard::small(|_| {}) };
        card.formula(Step::Stage(stage), PassDims { pass: 0, start: 0, tokens: 2 })
    }

    #[test]
    fn a_formula_says_what_its_arithmetic_adds() {
        for stage in [Stage::FfnDown, Stage::AttnNorm, Stage::Keys, Stage::Probs] {
            let text = formula(stage, Precision::F32);
            assert!(!text.contains("int8") && !text.contains("bfloat16"), "{stage}: {text}");
        }
        let in_q8 = |stage| formula(stage, Precision::Q8 { group: 10 });
        let product = in_q8(Stage::FfnDown);
        assert!(product.contains("ffn_hidden_q8 · the int8 values of w2") && product.contains("group of 10"));
        assert!(in_q8(Stage::Embedding).contains("a scale for each 10"));
        assert!(!in_q8(Stage::Qk).contains("int8"), "attention stays in float32");
        assert!(!in_q8(Stage::AttnNorm).contains("int8"));

        let in_bf16 = |stage| formula(stage, Precision::Bf16);
        assert!(in_bf16(Stage::FfnDown).ends_with("the result rounded to bfloat16"));
        assert!(in_bf16(Stage::AttnNorm).contains("before the weight, and after it"));
        assert!(in_bf16(Stage::XqRope).contains("each product rounded"));
        for stage in [Stage::Tokens, Stage::Keys, Stage::Mask, Stage::Probs, Stage::Sampled] {
            assert!(!in_bf16(stage).contains("rounded"), "{stage}");
        }
    }
}
