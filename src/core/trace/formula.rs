//! The formula of a step with a model's numbers, and a note on its arithmetic.

use super::card::ModelCard;
use super::sizes::PassDims;
use super::stage::{Input, Op, Rounded, Stage};
use super::step::Step;
use crate::config::{Activation, ModelConfig, NormKind, Precision, QkWidth};

impl ModelCard {
    /// The formula of `step` with the numbers of `layer` of this model, and a note on its arithmetic.
    pub fn formula(&self, step: Step, dims: PassDims, layer: Option<usize>) -> String {
        let text = self.fill(step.formula(), dims, layer);
        let Step::Stage(stage) = step else { return text };
        let text = text + &self.of_norm(stage);
        match self.precision {
            Precision::Q8 { group } => text + &in_int8(stage, group),
            Precision::Bf16 => text + in_bfloat16(self.config.rounded(stage)),
            Precision::F32 => text,
        }
    }
}

impl ModelConfig {
    /// The rounding of `stage` in bfloat16: that of Llama, or of another family.
    pub fn rounded(&self, stage: Stage) -> Rounded {
        let (norm, form, rope) = (self.norm, self.qk_norm_form, self.rope_rounding);
        let kind = if stage.is_qk_norm() { form.kind } else { norm.kind };
        match stage.info().rounded {
            Rounded::TwiceInNorm if norm.rounded_once || kind == NormKind::Layer => Rounded::Result,
            Rounded::ProductsAndSum if !rope.rounds_products() => Rounded::Result,
            Rounded::Result if stage.is_rope_table() && !rope.rounds_tables() => Rounded::Never,
            rounded => rounded,
        }
    }

    /// The precision to which the values of `stage` are rounded in a run in `precision`.
    pub fn rounded_to(&self, stage: Stage, precision: Precision) -> Precision {
        if self.rounded(stage) == Rounded::Never { Precision::F32 } else { precision }
    }
}

impl ModelCard {
    /// The formula of a neuron's values, in a long and in a short form.
    pub fn formulas_of_neurons(&self) -> [String; 2] {
        let (activation, ungated) = (self.config.activation, self.config.ungated);
        let (formula, name) = (activation.formula(), activation.name());
        match (ungated, activation) {
            (true, Activation::Xielu) => ["act = xIELU of up".to_owned(), format!("act = {name}(up)")],
            (true, _) => [format!("act = {formula}, g = up"), format!("act = {name}(up)")],
            (false, Activation::Silu) => [
                "silu = gate / (1 + e^−gate) · hidden = silu · up".to_owned(),
                "hidden = silu(gate) · up".to_owned(),
            ],
            (false, _) => [
                format!("act = {formula}, g = gate · hidden = act · up"),
                format!("hidden = {name}(gate) · up"),
            ],
        }
    }

    /// The note on the formula of `stage` where its norm or its activation differs from Llama's.
    fn of_norm(&self, stage: Stage) -> String {
        match stage.info().op {
            Op::RmsNorm => {}
            Op::Activation if self.config.activation == Activation::Xielu => {
                let made = "α₊ = ln(1 + e^xielu[0]), α₋ = 1/2 + ln(1 + e^xielu[1])";
                return format!("   ({made})");
            }
            _ => return String::new(),
        }
        let (norm, form) = (self.config.norm, self.config.qk_norm_form);
        let of_heads = stage.is_qk_norm();
        let (kind, weight) = if of_heads { (form.kind, form.weight) } else { (norm.kind, norm.weight) };
        let mut notes = String::new();
        let mut add = |applies: bool, note: &str| {
            if applies {
                notes = format!("{notes}; {note}");
            }
        };
        add(kind == NormKind::Layer, "a LayerNorm: the mean of the row is subtracted first");
        add(!weight, "there is no weight");
        add(weight && norm.one_plus, "the file stores the weight minus 1");
        add(norm.bias && !of_heads, "a bias is added");
        add(of_heads && form.width == QkWidth::EachHead && weight, "each head has a weight of its own");
        notes
    }
}

/// The int8 note on the formula of `stage`.
fn in_int8(stage: Stage, group: usize) -> String {
    let info = stage.info();
    let matrix = info.weights.iter().find(|weight| weight.axes.len() == 2);
    let quantized = info.inputs.iter().find_map(|input| match input {
        Input::Stage(input) if input.is_int8() => Some(input),
        _ => None,
    });
    match (matrix, quantized) {
        (Some(weight), Some(input)) => format!(
            "; in int8: {input} · the int8 values of {}, summed as integers until a group of {group} ends \
             in either factor; each sum is multiplied by both scales",
            weight.name
        ),
        (Some(weight), None) => {
            format!("; each {group} values of {} are int8 values times one scale", weight.name)
        }
        _ => String::new(),
    }
}

/// The bfloat16 note on a formula: the points at which PyTorch rounds.
fn in_bfloat16(rounded: Rounded) -> &'static str {
    match rounded {
        Rounded::Never => "",
        Rounded::Result => "; the result rounded to bfloat16",
        Rounded::TwiceInNorm => "; rounded to bfloat16 before and after the product with the weight",
        Rounded::ProductsAndSum => "; each product rounded to bfloat16, and their sum",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{LayerSet, Rope, RopeScaling};

    fn formula(stage: Stage, precision: Precision) -> String {
        let card = ModelCard { precision, ..ModelCard::small(|_| {}) };
        let dims = PassDims { pass: 0, start: 0, tokens: 2, ..PassDims::default() };
        card.formula(Step::Stage(stage), dims, None)
    }

    #[test]
    fn one_key_is_no_several() {
        let formula = |tokens| {
            let dims = PassDims { pass: 0, start: 0, tokens, ..PassDims::default() };
            ModelCard::small(|_| {}).formula(Step::Stage(Stage::Softmax), dims, Some(0))
        };
        assert!(formula(1).contains("over the 1 key, s ="), "{}", formula(1));
        assert!(formula(2).contains("over the 2 keys, s ="), "{}", formula(2));
    }

    #[test]
    fn a_formula_names_the_stages_and_the_numbers_of_its_layer() {
        let card = ModelCard::small(|config| {
            (config.window, config.window_layers) = (Some(2), LayerSet::From(1));
            config.local_rope = Some(Rope { theta: 7.0, scaling: RopeScaling::Linear { factor: 3.0 } });
            config.rope_layers = LayerSet::of(&[true, false]).unwrap();
        });
        let dims = PassDims { pass: 0, start: 0, tokens: 2, ..PassDims::default() };
        let formula = |stage, layer| card.formula(Step::Stage(stage), dims, Some(layer));
        assert!(formula(Stage::Qk, 0).contains("Σ_c xq_rope["), "{}", formula(Stage::Qk, 0));
        assert!(formula(Stage::Qk, 1).contains("Σ_c xq["), "{}", formula(Stage::Qk, 1));
        assert!(formula(Stage::CacheK, 1).contains("= xk[t"), "{}", formula(Stage::CacheK, 1));
        let turned = ModelCard {
            config: ModelConfig { rope_layers: LayerSet::ALL, ..card.config.clone() },
            ..card.clone()
        };
        let formula = |layer| turned.formula(Step::Stage(Stage::LayerRopeCos), dims, Some(layer));
        assert!(formula(0).contains("· 10000^") && !formula(0).contains("scaled"), "{}", formula(0));
        assert!(formula(1).contains("· 7^") && formula(1).contains("linear, factor 3"), "{}", formula(1));
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
        assert!(in_q8(Stage::Embedding).contains("each 10 values"));
        assert!(!in_q8(Stage::Qk).contains("int8"), "attention stays in float32");
        assert!(!in_q8(Stage::AttnNorm).contains("int8"));

        let in_bf16 = |stage| formula(stage, Precision::Bf16);
        assert!(in_bf16(Stage::FfnDown).ends_with("the result rounded to bfloat16"));
        assert!(in_bf16(Stage::AttnNorm).contains("before and after the product with the weight"));
        assert!(in_bf16(Stage::XqRope).contains("each product rounded"));
        for stage in [Stage::Tokens, Stage::Keys, Stage::Mask, Stage::Probs, Stage::Sampled] {
            assert!(!in_bf16(stage).contains("rounded"), "{stage}");
        }
    }
}
