//! The known mistakes in a port of a Llama, and in the stages that people write themselves. `diff` and `kata` share this
//! table. A mistake has a name with a sentence ([`KNOWN`]), the stages that it touches, and one of two variants: a change
//! of the configuration, of a rule's data or of the weights that a rule reads; or a function that computes the wrong
//! values of a stage from its operands (the tables of [`whole`]).

mod attention;
mod draws;
mod families;
mod layout;
mod norms;
mod products;
mod rotary;
mod rows;
mod scores;
mod steps;
mod stream;
mod values;
mod whole;

use super::bench::{Exactly, Otherwise};
use crate::check::{Change, Nothing};
use llama_trace_core::config::{LayerSet, ModelConfig, Pairing, Precision, QkWidth, RopeScaling};
use llama_trace_core::trace::{Frame, ModelCard, Op, PassDims, Site, Stage};
pub(super) use whole::Operands;

/// A mistake by name, with the sentence that tells it to its author.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Its name.
    pub name: &'static str,
    /// The sentence; `{form}` stands for the form.
    says: &'static str,
}

impl Known {
    const fn new(name: &'static str, says: &'static str) -> Self {
        Self { name, says }
    }

    /// The sentence of the mistake `name` in a form.
    pub fn sentence(name: &str, form: &str) -> String {
        let says = KNOWN.iter().find(|known| known.name == name).map_or(name, |known| known.says);
        match (form.is_empty(), says.contains("{form}")) {
            (true, _) => says.replace(": {form}", ""),
            (false, true) => says.replace("{form}", form),
            (false, false) => format!("{says} ({form})"),
        }
    }
}

/// The mistakes, by name.
const KNOWN: [Known; 89] = [
    Known::new("rope_pairing", "you paired other components for RoPE: {form}"),
    Known::new("rope_theta", "you used another θ: {form}"),
    Known::new("rope_scaling", "you scaled RoPE's frequencies by another rule: {form}"),
    Known::new("rope_layers", "you rotated queries and keys in other layers than the model does: {form}"),
    Known::new("rope_direction", "you rotated in the other direction: the sine has the wrong sign"),
    Known::new("rope_missing", "you did not rotate: {form}"),
    Known::new("position_offset", "you used other positions: {form}"),
    Known::new("norm_eps", "you used another ε: {form}"),
    Known::new("norm_weight_plus_one", "you multiplied by 1 + weight, not by the weight"),
    Known::new("norm_weight_as_stored", "you multiplied by the stored number w, not by 1 + w"),
    Known::new("norm_weight_missing", "you did not multiply by the weight"),
    Known::new("norm_missing", "you did not normalise: the result is the input"),
    Known::new("norm_weights_swapped", "you used the weight of the other norm: {form}"),
    Known::new(
        "norm_input",
        "the norm of the feed-forward network reads the layer's input, not the stream after attention",
    ),
    Known::new("post_norm_place", "you normalised the sum with the stream, not what is added to it"),
    Known::new("norm_mean_missing", "you did not subtract the mean, as LayerNorm does"),
    Known::new("norm_sum", "you divided by √Σx², not by √(Σx²/D)"),
    Known::new("layer_norm", "you subtracted the mean, as LayerNorm does; RMSNorm does not"),
    Known::new("qk_norm_place", "you normalised queries and keys {form}"),
    Known::new("qk_norm_width", "you normalised other vectors of the queries and keys: {form}"),
    Known::new("residual_missing", "you left out a term of the residual sum: {form}"),
    Known::new("other_layer", "you used the weights of another layer: {form}"),
    Known::new("attention_scale", "you scaled the scores by another factor: {form}"),
    Known::new("mask_offset", "the mask shows other keys than k ≤ start + t: {form}"),
    Known::new("window", "you used another window: {form}"),
    Known::new("kv_head_order", "query head h reads another kv head than h / (H/G): {form}"),
    Known::new("kv_swapped", "you exchanged wk and wv: {form}"),
    Known::new("heads_merged", "you joined the heads in another order than (T, H, C): {form}"),
    Known::new("weight_layout", "you read a matrix in another layout than outputs × inputs: {form}"),
    Known::new("bias_missing", "you did not add the bias"),
    Known::new("bos", "the beginning-of-text token differs: {form}"),
    Known::new("tied_head", "you used the embedding table as the head"),
    Known::new("activation", "you used another activation function: {form}"),
    Known::new("gate_up_swapped", "you exchanged gate and up: {form}"),
    Known::new("bf16_rounding", "you computed in bfloat16: {form}"),
    Known::new("quantized_activations", "you rounded the inputs of products to int8: {form}"),
    Known::new("embedding_scale", "you scaled the embeddings by another factor: {form}"),
    Known::new("residual_scale", "you scaled what is added to the stream by another factor: {form}"),
    Known::new("logit_scale", "you scaled the logits by another factor: {form}"),
    Known::new("softcap", "you bounded the values by c · tanh(x / c): {form}"),
    Known::new("softcap_missing", "you left out the soft cap: {form}"),
    Known::new("softcap_late", "you applied the soft cap after the mask, so that no key is hidden"),
    Known::new("f16_rounding", "you computed in float16: {form}"),
    Known::new("wrong_axis", "you computed along another axis: {form}"),
    Known::new("eps_place", "you added ε in another place than to the mean of the squares: {form}"),
    Known::new("norm_divisor", "you divided by another number than √(Σx²/D + ε): {form}"),
    Known::new(
        "norm_weight_use",
        "you used the weight in another way than as a factor of the result: you {form}",
    ),
    Known::new("rope_frequency", "the angle is not position · θ^(−2i/C); you used {form}"),
    Known::new("cos_sin_swapped", "you exchanged cosine and sine"),
    Known::new("rope_formula", "you rotated by another formula than (a·cos − b·sin, a·sin + b·cos): {form}"),
    Known::new("rope_rows", "you used other rows of cos and sin than the token's own: those {form}"),
    Known::new("embedding_row", "you read another row of the table than that of the id: {form}"),
    Known::new("embedding_extra", "the embedding is the row alone; you changed it: {form}"),
    Known::new("heads_split", "you split the product into heads in another order than (T, N, C): {form}"),
    Known::new("cache_place", "you wrote the new rows in another place than after the old ones: {form}"),
    Known::new("repeat_axis", "you repeated another axis than the kv heads: {form}"),
    Known::new("repeat_scaled", "you changed the repeated values: {form}"),
    Known::new("qk_formula", "the score is Σ_c q · k; you computed {form}"),
    Known::new("qk_order", "you multiplied other rows than query t and key k of head h: {form}"),
    Known::new("mask_inverted", "you hid other keys than the later ones: {form}"),
    Known::new("mask_values", "a hidden key needs −∞ and a visible one 0: {form}"),
    Known::new("mask_late", "you masked after softmax, so that hidden keys took a share of the sum: {form}"),
    Known::new(
        "softmax_overflow",
        "you did not subtract the maximum before e^x, which is ∞ for large x, and ∞ / ∞ is NaN: {form}",
    ),
    Known::new("softmax_formula", "softmax is e^(x − max) / Σ e^(x − max); you computed {form}"),
    Known::new("mix_formula", "the output is Σ_k weight · value; you computed {form}"),
    Known::new(
        "mix_order",
        "you multiplied weights with other values than those of their key and head: {form}",
    ),
    Known::new("product_scaled", "you scaled the product: {form}"),
    Known::new("product_inputs", "you multiplied other inputs: {form}"),
    Known::new("product_weights", "you multiplied other weights: {form}"),
    Known::new("product_after", "the product is the result; you applied something after it: {form}"),
    Known::new("last_row", "you used other rows than the task asks for: {form}"),
    Known::new("residual_formula", "the residual sum is x + y; you computed {form}"),
    Known::new("activation_overflow", "e^x is ∞ for large x, and ∞ / ∞ is NaN; write x / (1 + e^−x): {form}"),
    Known::new("gating", "the result is SiLU(gate) · up: {form}"),
    Known::new("penalty_formula", "the penalty divides positive logits and multiplies negative ones: {form}"),
    Known::new("penalty_tokens", "the penalty is for each token that the text has, once: {form}"),
    Known::new("temperature", "you used the temperature in another way than logits / temperature: {form}"),
    Known::new("filter_cut", "you kept other tokens: {form}"),
    Known::new("filter_sum", "the kept probabilities are divided by their sum: {form}"),
    Known::new("typical_key", "the order is that of |−ln q − H|; you used {form}"),
    Known::new(
        "draw_order",
        "the running sum goes from the likeliest token to the least likely; you used {form}",
    ),
    Known::new("draw_random", "you compared the running sum with another number: {form}"),
    Known::new(
        "draw_result",
        "the result is the id at which the running sum exceeds the random number; you returned {form}",
    ),
    Known::new("largest_logit", "the result is the id of the largest logit of the last token: {form}"),
    Known::new("scale_formula", "the scale is max |x| / 127 of the group; you computed {form}"),
    Known::new(
        "scale_groups",
        "a scale belongs to one group of neighbouring values of one token; you used {form}",
    ),
    Known::new("step_rounding", "x / scale is rounded to the nearest whole number; you rounded {form}"),
    Known::new("step_range", "the steps are −127 to 127; yours are {form}"),
    Known::new("step_scale", "you divided by another scale than that of the value's group: {form}"),
];

/// The names of the mistakes.
pub const NAMES: [&str; KNOWN.len()] = {
    let mut names = [""; KNOWN.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = KNOWN[i].name;
        i += 1;
    }
    names
};

/// A mistake, in one of its forms.
pub(super) struct Mistake {
    pub(super) name: &'static str,
    /// The form as text; empty if there is only one.
    pub(super) form: String,
    /// The stages that it changes. If none of them is computed, the mistake is not tried.
    pub(super) touches: Vec<Stage>,
    /// The model with the mistake, if it is a mistake of the configuration.
    pub(super) card: Option<ModelCard>,
    pub(super) change: Box<dyn Change>,
    pub(super) otherwise: Otherwise,
    /// The function of the stage's operands, if the mistake is not a change of the rules.
    pub(super) whole: Option<Whole>,
    /// Whether the mistake rounds values. A value near the middle between two representable numbers may then be rounded
    /// to either of them.
    pub(super) rounds: bool,
    /// Whether its result for a token depends on later tokens.
    pub(super) looks_ahead: bool,
}

/// Computes the wrong values of a stage from its operands.
pub(super) type Whole = fn(&Operands) -> Option<whole::Array>;

impl Mistake {
    /// A mistake of whole tensors. Its result for a token may depend on other tokens.
    fn whole(
        name: &'static str,
        form: impl Into<String>,
        touches: impl Into<Vec<Stage>>,
        wrong: &Whole,
    ) -> Self {
        let whole = Self::of(name, form, touches, Nothing);
        Self { whole: Some(*wrong), looks_ahead: true, ..whole }
    }

    fn of(
        name: &'static str,
        form: impl Into<String>,
        touches: impl Into<Vec<Stage>>,
        change: impl Change + 'static,
    ) -> Self {
        let (form, otherwise, change) = (form.into(), Otherwise::default(), Box::new(change));
        let touches = touches.into();
        Self {
            name,
            form,
            touches,
            card: None,
            change,
            otherwise,
            whole: None,
            rounds: false,
            looks_ahead: false,
        }
    }

    fn again(mut self, again: &'static [Stage]) -> Self {
        self.otherwise.again = again;
        self
    }
}

/// The operations that use angles: the tables of cosines and sines, and the rotation.
const ROPE: &[Op] = &[Op::RopeTable, Op::Rope];

/// The operations that depend on the visible keys.
const SEEING: &[Op] = &[Op::Mask, Op::AddMask, Op::Softmax, Op::Mix];

/// The stages that these operations compute.
fn stages(ops: &[Op]) -> Vec<Stage> {
    ops.iter().flat_map(|op| op.stages()).copied().collect()
}

/// θ of existing models.
const THETAS: [f32; 16] =
    [100.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2.5e5, 5e5, 1e6, 2e6, 5e6, 1e7, 1e8];

/// ε of existing models, and of common mistakes.
const EPSILONS: [f32; 12] = [0.0, 1e-2, 1e-3, 1e-4, 2e-5, 1e-5, 5e-6, 1e-6, 1e-7, 1e-8, 1e-10, 1e-12];

/// RoPE scaling factors of existing models.
const FACTORS: [f32; 5] = [2.0, 4.0, 8.0, 16.0, 32.0];

/// Every form of every mistake that a run of the model `card` could have made. The run's stage has the values `found`
/// instead of `right`. `chain` has the stages that are computed to get this stage.
pub(super) fn mistakes(
    card: &ModelCard,
    passes: &[PassDims],
    chain: &[Site],
    found: &Frame,
    right: &Exactly,
) -> Vec<Mistake> {
    let mut all = Vec::new();
    configured(card, found, &mut all);
    families::add(card, passes, &mut all);
    attention::add(card, passes, found, right, &mut all);
    layout::add(card, chain, &mut all);
    stream::add(card, chain, &mut all);
    values::add(card, found, right, &mut all);
    for table in
        [norms::ROWS, rotary::ROWS, rows::ROWS, scores::ROWS, products::ROWS, draws::ROWS, steps::ROWS]
    {
        whole::add(table, &mut all);
    }
    scores::add_late(&mut all);
    draws::add_greedy(&mut all);
    all
}

/// The mistakes of the configuration.
fn configured(card: &ModelCard, found: &Frame, all: &mut Vec<Mistake>) {
    let mut add = |name, form: String, touches: Vec<Stage>, again, change: &dyn Fn(&mut ModelConfig)| {
        let mut other = card.clone();
        change(&mut other.config);
        if other.config != card.config && other.config.check().is_ok() {
            let mistake = Mistake { card: Some(other), ..Mistake::of(name, form, touches, Nothing) };
            all.push(mistake.again(again));
        }
    };
    let (other, form) = match card.config.pairing {
        Pairing::Halves => (Pairing::Neighbours, "neighbours are rotated, not halves"),
        Pairing::Neighbours => (Pairing::Halves, "halves are rotated, not neighbours"),
    };
    add("rope_pairing", form.into(), Op::Rope.stages().to_vec(), &[], &|config| config.pairing = other);
    for theta in THETAS {
        // If results are rounded, similar values of θ explain the difference equally well.
        let form = if card.precision == Precision::F32 { "=" } else { "≈" };
        add("rope_theta", format!("θ {form} {theta}"), stages(ROPE), Op::RopeTable.stages(), &|config| {
            config.rope_theta = theta;
        });
    }
    let form = "not stretched".into();
    add("rope_scaling", form, stages(ROPE), Op::RopeTable.stages(), &|config| {
        config.rope_scaling = RopeScaling::None;
    });
    let own = match card.config.rope_scaling {
        RopeScaling::Linear { factor }
        | RopeScaling::Llama3 { factor, .. }
        | RopeScaling::Yarn { factor, .. }
        | RopeScaling::Dynamic { factor, .. } => Some(factor),
        RopeScaling::None | RopeScaling::LongRope { .. } | RopeScaling::Divisors(_) => None,
    };
    // The band of frequencies and the context of Llama 3's scaling: common ones, and this model's.
    let mut between: Vec<_> = [8192, 4096, 2048].map(|context| (1.0, 4.0, context)).into();
    if let RopeScaling::Llama3 { low_freq_factor, high_freq_factor, original_context, .. } =
        card.config.rope_scaling
    {
        between.push((low_freq_factor, high_freq_factor, original_context));
    }
    for factor in FACTORS.into_iter().chain(own) {
        let form = format!("all stretched, factor {factor}");
        add("rope_scaling", form, stages(ROPE), Op::RopeTable.stages(), &|config| {
            config.rope_scaling = RopeScaling::Linear { factor }
        });
        for &(low_freq_factor, high_freq_factor, original_context) in &between {
            let form = format!("llama3, factor {factor}, from a context of {original_context}");
            add("rope_scaling", form, stages(ROPE), Op::RopeTable.stages(), &|config| {
                config.rope_scaling =
                    RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context };
            });
        }
    }
    for eps in EPSILONS {
        add(
            "norm_eps",
            if eps == 0.0 { "ε = 0".into() } else { format!("ε = {eps:e}") },
            Op::RmsNorm.stages().to_vec(),
            &[],
            &|config| config.norm_eps = eps,
        );
    }
    if let Some(local) = card.config.local_rope.clone() {
        let form = "the one of the layers without a window".into();
        add("rope_theta", form, stages(ROPE), Op::RopeTable.stages(), &|config| {
            config.local_rope = Some(config.rope(0));
        });
        let form = "the one of the layers with a window".into();
        add("rope_theta", form, stages(ROPE), Op::RopeTable.stages(), &|config| {
            (config.rope_theta, config.rope_scaling) = (local.theta, local.scaling.clone());
        });
    }
    let widths = match card.config.qk_norm_form.width {
        QkWidth::Whole => Some((QkWidth::EachHead, "each head by itself, not all heads side by side")),
        QkWidth::EachHead => Some((QkWidth::Whole, "all heads side by side, not each head by itself")),
        QkWidth::Head => None,
    };
    if let Some((other, form)) = widths {
        let stages = Op::RmsNorm.stages().to_vec();
        add("qk_norm_width", form.into(), stages, &[], &|config| config.qk_norm_form.width = other);
    }
    if card.config.qk_norm {
        let form = match card.config.qk_norm_form.after_rope {
            true => "before RoPE, not after it",
            false => "after RoPE, not before it",
        };
        let touches = [Op::RmsNorm.stages(), Op::Rope.stages()].concat();
        add("qk_norm_place", form.into(), touches, &[], &|config| {
            config.qk_norm_form.after_rope = !config.qk_norm_form.after_rope;
        });
    }
    let form = "layers without RoPE are rotated".into();
    add("rope_layers", form, Op::Rope.stages().to_vec(), &[], &|config| config.rope_layers = LayerSet::ALL);
    let shown = attention::shown(found);
    let around =
        card.config.window.into_iter().flat_map(|window| [window + 1, window.saturating_sub(1), window * 2]);
    // The model's own in a layer without one.
    let own = card.config.window.filter(|_| !card.config.window_layers.is_all());
    // No window, windows like the model's own, and the window that the values show, if they show one.
    for window in [None].into_iter().chain(around.chain(own).chain(shown).map(Some)) {
        let form = window.map_or_else(|| "none".into(), |window| format!("of {window} tokens"));
        add("window", form, stages(SEEING), &[Stage::Mask, Stage::MaskedScores], &|config| {
            (config.window, config.window_layers) = (window, LayerSet::ALL);
        });
    }
    let mut rounded = Mistake::of("bf16_rounding", "results", Stage::ALL, Nothing);
    (rounded.card, rounded.rounds) = (Some(ModelCard { precision: Precision::Bf16, ..card.clone() }), true);
    all.push(rounded);
}
