//! The supported families, each in one table: its names, the fields of its configuration, its switches, the names of its
//! tensors, and its architecture in GGUF files. A table states only what differs from Llama.
//!
//! The reference is transformers 5.24 for config.json and llama.cpp for GGUF.

mod cohere;
mod field;
mod gemma;
mod gguf;
mod glm;
mod llama;
mod mistral;
mod olmo;
mod others;
mod qwen;

use llama_trace_core::config::{
    Activation, Norm, NormKind, Pairing, Placement, QkNormForm, QkWidth, RopeRounding,
};

use super::names::LayerWeight;
pub use super::names::Renames;

pub(super) use field::{COMMON, field, idle, nullable, refused};
pub use field::{Fallback, Field, Means};
pub use gguf::{ARCHITECTURES, Architecture};

/// A family of models.
#[derive(Debug)]
pub struct Family {
    /// transformers' `model_type`.
    pub model_type: &'static str,
    /// transformers' class.
    pub class: &'static str,
    /// The models of the family, for people.
    pub models: &'static str,
    /// The fields of its configuration that `COMMON` does not have, or whose default is another one.
    pub fields: &'static [Field],
    /// The layers that have a window.
    pub windows: Windows,
    /// The layers that have RoPE.
    pub roped: Roped,
    /// θ of RoPE if the configuration has none.
    pub theta: f64,
    /// θ of the layers with a window if the configuration has none. `None` if all layers have the same RoPE.
    pub local_theta: Option<f64>,
    /// The part of a head that RoPE rotates if the configuration has no `partial_rotary_factor`. `None` if the whole
    /// head is rotated in any case.
    pub partial: Option<f64>,
    /// `rope_parameters` as JSON if the configuration has none.
    pub rope: &'static str,
    /// The accepted kinds of RoPE.
    pub rope_kinds: &'static [(&'static str, RopeKind)],
    /// Whether the queries have a factor that depends on the position.
    pub query_scale: bool,
    /// The components that RoPE rotates together.
    pub pairing: Pairing,
    /// What bfloat16 rounds in RoPE.
    pub rope_rounding: RopeRounding,
    /// The norms of the residual stream.
    pub norm: Norm,
    /// Their places.
    pub placement: Placement,
    /// The norms of queries and keys. If a field asks for them, it decides whether there are any.
    pub qk_norm: Option<QkNormForm>,
    /// Whether queries, keys and values have biases that no field asks for.
    pub qkv_bias: bool,
    /// Whether the embeddings are multiplied by √D.
    pub root_of_dim: bool,
    /// Whether the feed-forward network has no gate.
    pub ungated: bool,
    /// The names of weights of a layer that are not Llama's.
    pub names: Renames,
    /// Weights that are stored together, or in parts.
    pub stored: &'static [Stored],
}

/// The layers that have a window, if the configuration does not list them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows {
    /// None.
    None,
    /// Every layer. A list of other layers is refused.
    All,
    /// Every layer.
    AllOrListed,
    /// Those from `max_window_layers` on.
    From,
    /// All except each n-th layer.
    Except(usize),
    /// Those without RoPE.
    WithoutRope,
}

/// The layers that have RoPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Roped {
    /// Every layer.
    All,
    /// Those with a 1 in `no_rope_layers`.
    Listed,
    /// Those with a window.
    Windowed,
    /// Those with a window; every layer of a model without a window.
    WindowedIfAny,
}

/// A kind of RoPE scaling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeKind {
    /// No scaling.
    Default,
    /// Every frequency divided by a factor.
    Linear,
    /// Llama 3.1's rule.
    Llama3,
    /// YaRN.
    Yarn,
    /// LongRoPE.
    LongRope,
    /// θ grows with the number of keys.
    Dynamic,
    /// Dynamic, or with the field `alpha` a larger θ for all lengths (Hunyuan).
    Alpha,
}

/// Weights that are stored together, or in parts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stored {
    /// One tensor has the rows of several weights, one after the other.
    Fused(&'static str, &'static [LayerWeight]),
    /// A weight has several tensors, which follow each other.
    Joined(LayerWeight, &'static [&'static str]),
    /// A weight has one tensor for each head; `{}` in the name stands for the head.
    PerHead(LayerWeight, &'static str),
    /// A tensor that repeats a constant of transformers' code, and its value.
    Constant(&'static str, f32),
}

/// Kinds of RoPE scaling that most families accept.
const ROPE_KINDS: &[(&str, RopeKind)] = &[
    ("default", RopeKind::Default),
    ("linear", RopeKind::Linear),
    ("llama3", RopeKind::Llama3),
    ("yarn", RopeKind::Yarn),
    ("longrope", RopeKind::LongRope),
    ("dynamic", RopeKind::Dynamic),
];

/// The kinds of Hunyuan.
const ALPHA_KINDS: &[(&str, RopeKind)] =
    &[("default", RopeKind::Default), ("linear", RopeKind::Linear), ("dynamic", RopeKind::Alpha)];

/// RMSNorm with a weight, as in Llama.
const RMS: Norm =
    Norm { kind: NormKind::Rms, weight: true, bias: false, one_plus: false, rounded_once: false };
/// Norms of queries and keys as in Qwen3: each head by itself, before RoPE.
const QK_NORM: QkNormForm =
    QkNormForm { width: QkWidth::Head, kind: NormKind::Rms, weight: true, after_rope: false };

/// [`RMS`], rounded once in bfloat16.
const ROUNDED_ONCE: Norm = Norm { rounded_once: true, ..RMS };

/// The switches of Llama, which a table leaves out.
const BASE: Family = Family {
    model_type: "",
    class: "",
    models: "",
    fields: &[],
    windows: Windows::None,
    roped: Roped::All,
    theta: 10_000.0,
    local_theta: None,
    partial: None,
    rope: "{}",
    rope_kinds: ROPE_KINDS,
    query_scale: false,
    pairing: Pairing::Halves,
    rope_rounding: RopeRounding::Products,
    norm: RMS,
    placement: Placement::Before,
    qk_norm: None,
    qkv_bias: false,
    root_of_dim: false,
    ungated: false,
    names: &[],
    stored: &[],
};

/// All families.
pub const FAMILIES: &[&Family] = &[
    &llama::LLAMA,
    &mistral::MISTRAL,
    &qwen::QWEN2,
    &qwen::QWEN3,
    &gemma::GEMMA,
    &gemma::GEMMA2,
    &gemma::GEMMA3,
    &llama::SMOLLM3,
    &olmo::OLMO2,
    &olmo::OLMO3,
    &others::PHI3,
    &llama::GRANITE,
    &mistral::MINISTRAL,
    &mistral::MINISTRAL3,
    &glm::GLM,
    &glm::GLM4,
    &cohere::COHERE,
    &cohere::COHERE2,
    &llama::ERNIE4_5,
    &others::EXAONE4,
    &llama::SEED_OSS,
    &qwen::HUNYUAN,
    &others::APERTUS,
    &llama::ARCEE,
    &llama::HELIUM,
    &others::STABLELM,
];

/// Models of several kinds of input: `model_type`, and the default family of its text model. Only the text model is
/// opened.
pub const WRAPPERS: &[(&str, &Family)] = &[("gemma3", &gemma::GEMMA3), ("mistral3", &mistral::MISTRAL)];

impl Family {
    /// The family with this `model_type`.
    pub fn of_type(model_type: &str) -> Option<&'static Self> {
        FAMILIES.iter().copied().find(|family| family.model_type == model_type)
    }

    /// The family with this class.
    pub fn of_class(class: &str) -> Option<&'static Self> {
        FAMILIES.iter().copied().find(|family| family.class == class)
    }

    /// The families as a list for messages.
    pub fn listed() -> String {
        let quoted: Vec<_> =
            FAMILIES.iter().map(|family| format!("\"{}\" ({})", family.model_type, family.models)).collect();
        quoted.join(", ")
    }

    /// The activation if the configuration names none.
    pub(super) fn default_activation(&self) -> Activation {
        self.activation_field().map_or(Activation::Silu, |field| match field.default {
            Fallback::Text("gelu_pytorch_tanh") => Activation::GeluTanh,
            Fallback::Text("relu2") => Activation::Relu2,
            Fallback::Text("xielu") => Activation::Xielu,
            _ => Activation::Silu,
        })
    }

    /// The field that names the activation.
    pub(super) fn activation_field(&self) -> Option<&'static Field> {
        let all = [Means::TanhActivation, Means::XieluActivation, Means::Activation];
        all.into_iter().find_map(|means| self.field(means))
    }

    /// The field with this meaning.
    pub(super) fn field(&self, means: Means) -> Option<&'static Field> {
        self.fields.iter().chain(COMMON).find(|field| field.means == means)
    }

    /// The field with this name.
    pub(super) fn named(&self, name: &str) -> Option<&'static Field> {
        let own = self.fields.iter().find(|field| field.name == name);
        // A field of most families may have another name here.
        let common = COMMON.iter().find(|field| field.name == name);
        let is_read = |field: &&Field| {
            field.means == Means::Rope || self.field(field.means).is_some_and(|own| own.name == name)
        };
        own.or(common.filter(is_read))
    }
}

impl PartialEq for Family {
    fn eq(&self, other: &Self) -> bool {
        self.model_type == other.model_type
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_a_table_of_at_most_25_lines() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("checkpoint/family");
        let mut tables = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            for table in text.split("\npub(super) const ").skip(1) {
                let (name, rest) = table.split_once(": ").unwrap();
                if rest.starts_with("Family = Family {") {
                    tables += 1;
                    let lines = rest.lines().take_while(|line| *line != "};").count() + 1;
                    assert!(lines <= 25, "{name} has {lines} lines");
                }
            }
        }
        assert_eq!(tables, FAMILIES.len());
    }

    #[test]
    fn an_architecture_has_a_family() {
        for architecture in ARCHITECTURES {
            assert!(FAMILIES.contains(&architecture.family), "{}", architecture.name);
        }
    }
}
