//! The known mistakes in a port of a Llama. Each is a change of the configuration, of a rule's data, or of the weights
//! that a rule reads; no mistake computes a stage with a second implementation.

mod attention;
mod layout;
mod stream;
mod values;

use super::bench::{Exactly, Otherwise};
use crate::check::{Change, Nothing};
use llama_trace_core::config::{ModelConfig, Pairing, Precision, RopeScaling};
use llama_trace_core::trace::{Frame, ModelCard, Op, PassDims, Site, Stage};

/// The names of the mistakes.
pub const NAMES: [&str; 32] = [
    "rope_pairing",
    "rope_theta",
    "rope_scaling",
    "rope_direction",
    "rope_missing",
    "position_offset",
    "norm_eps",
    "norm_weight_plus_one",
    "norm_weight_missing",
    "norm_missing",
    "norm_weights_swapped",
    "norm_input",
    "norm_sum",
    "layer_norm",
    "residual_missing",
    "other_layer",
    "attention_scale",
    "mask_offset",
    "window",
    "kv_head_order",
    "kv_swapped",
    "heads_merged",
    "weight_layout",
    "bias_missing",
    "bos",
    "tied_head",
    "activation",
    "gate_up_swapped",
    "bf16_rounding",
    "quantized_activations",
    "embedding_scale",
    "softcap",
];

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
    /// Whether the mistake rounds values. A value near the middle between two representable numbers may then be rounded
    /// to either of them.
    pub(super) rounds: bool,
    /// Whether its result for a token depends on later tokens.
    pub(super) looks_ahead: bool,
}

impl Mistake {
    fn of(
        name: &'static str,
        form: impl Into<String>,
        touches: impl Into<Vec<Stage>>,
        change: impl Change + 'static,
    ) -> Self {
        let (form, otherwise, change) = (form.into(), Otherwise::default(), Box::new(change));
        let touches = touches.into();
        Self { name, form, touches, card: None, change, otherwise, rounds: false, looks_ahead: false }
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
    attention::add(card, passes, found, right, &mut all);
    layout::add(card, chain, &mut all);
    stream::add(card, chain, &mut all);
    values::add(card, found, right, &mut all);
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
        RopeScaling::Linear { factor } | RopeScaling::Llama3 { factor, .. } => Some(factor),
        RopeScaling::None | RopeScaling::Divisors(_) => None,
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
    let shown = attention::shown(found);
    let around =
        card.config.window.into_iter().flat_map(|window| [window + 1, window.saturating_sub(1), window * 2]);
    // No window, windows like the model's own, and the window that the values show, if they show one.
    for window in [None].into_iter().chain(around.chain(shown).map(Some)) {
        let form = window.map_or_else(|| "none".into(), |window| format!("of {window} tokens"));
        add("window", form, stages(SEEING), &[Stage::Mask, Stage::MaskedScores], &|config| {
            (config.window, config.window_from) = (window, 0);
        });
    }
    let mut rounded = Mistake::of("bf16_rounding", "results", Stage::ALL, Nothing);
    (rounded.card, rounded.rounds) = (Some(ModelCard { precision: Precision::Bf16, ..card.clone() }), true);
    all.push(rounded);
}
