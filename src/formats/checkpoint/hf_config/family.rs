//! The family of a config.json, and the sliding window of some families.

use serde_json::Value;

use super::super::fields::Source;
use super::super::json::Fields;
use super::super::screen::Screen;
use crate::files::brief;
use llama_trace_core::error::Result;

/// The supported values of transformers' `model_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// Llama 1 to 3.3. TinyLlama, SmolLM and SmolLM2 are also Llamas.
    Llama,
    /// Llama with a sliding window (Jiang et al., 2023).
    Mistral,
    /// Llama with biases on queries, keys and values. With `use_sliding_window`, its upper layers have a window (Qwen2
    /// report, Yang et al., 2024).
    Qwen2,
    /// Llama with norms on queries and keys, and Qwen2's window (Qwen3 report, Yang et al., 2025).
    Qwen3,
}

impl Family {
    /// The family named by `model_type`, or if that is absent, by the class in `architectures`.
    pub(super) fn of(fields: &Fields<'_>, screen: &Screen<'_>) -> Result<Self> {
        const FAMILIES: [(&str, &str, Family); 4] = [
            ("llama", "LlamaForCausalLM", Family::Llama),
            ("mistral", "MistralForCausalLM", Family::Mistral),
            ("qwen2", "Qwen2ForCausalLM", Family::Qwen2),
            ("qwen3", "Qwen3ForCausalLM", Family::Qwen3),
        ];
        let expected = "\"llama\" (Llama 1 to 3.3, TinyLlama, SmolLM, SmolLM2), \"mistral\", \"qwen2\" \
            (Qwen2, Qwen2.5) or \"qwen3\"; no other architecture is supported";
        if let Some(value @ Value::Null) = fields.object.get("model_type") {
            return Err(screen.refused("model_type", expected, value));
        }
        let architectures = fields.get("architectures").and_then(Value::as_array);
        let kind = fields.text("model_type")?;
        let is = |(name, class, _): &&(&str, &str, Family)| match kind {
            Some(kind) => kind == *name,
            None => architectures.is_some_and(|list| list.iter().any(|name| name == class)),
        };
        FAMILIES.iter().find(is).map(|(_, _, family)| *family).ok_or_else(|| {
            let found = fields.get("model_type").map_or("no model_type".into(), brief);
            fields.wrong("model_type", expected, found).next("use a model of one of these families")
        })
    }

    /// The rows of the table for this family only.
    pub(super) fn source(self) -> Source {
        match self {
            Self::Llama => Source::Llama,
            Self::Mistral => Source::Mistral,
            Self::Qwen2 => Source::Qwen2,
            Self::Qwen3 => Source::Qwen3,
        }
    }
}

/// The sliding window and the first layer with it. In Mistral, every layer has the window. In Qwen, the layers from
/// `max_window_layers` on have it, but only if `use_sliding_window` is true.
pub(super) fn window(fields: &Fields<'_>, family: Family, layers: usize) -> Result<(Option<usize>, usize)> {
    let used = match family {
        Family::Llama => return Ok((None, 0)),
        Family::Mistral => true,
        Family::Qwen2 | Family::Qwen3 => fields.flag("use_sliding_window")?,
    };
    let window = match fields.size("sliding_window")? {
        _ if !used => None,
        // In transformers an absent field means the default window, and null means no window.
        None if !fields.object.contains_key("sliding_window") => Some(4096),
        window => window,
    };
    if window == Some(0) {
        return Err(fields.wrong(
            "sliding_window",
            "null, or at least 1, because a token sees itself",
            "0".into(),
        ));
    }
    let from = match (family, layer_types(fields, layers)?) {
        (Family::Mistral, None) => 0,
        (_, Some(from)) => from,
        (_, None) => fields.size("max_window_layers")?.unwrap_or(28),
    };
    let listed = fields.get("layer_types").is_some();
    if listed && family == Family::Mistral && window.is_some() && from != 0 {
        let expected = "\"sliding_attention\" for every layer: Mistral has one window for all";
        return Err(fields.wrong("layer_types", expected, "\"full_attention\" for some layers".into()));
    }
    if listed && window.is_none() && from < layers {
        let expected = "\"full_attention\" for every layer, because sliding_window is not used";
        return Err(fields.wrong("layer_types", expected, "\"sliding_attention\" for some layers".into()));
    }
    Ok(if window.is_some() && from < layers { (window, from) } else { (None, 0) })
}

/// The first layer with a window in the list `layer_types`, if there is one.
fn layer_types(fields: &Fields<'_>, layers: usize) -> Result<Option<usize>> {
    let Some(value) = fields.get("layer_types") else { return Ok(None) };
    let expected = "a list with \"full_attention\" for the first layers and \"sliding_attention\" for the \
        others; no other pattern is supported";
    let kinds = value.as_array().filter(|kinds| kinds.len() == layers);
    let kinds = kinds.ok_or_else(|| fields.wrong("layer_types", expected, brief(value)))?;
    let from = kinds.iter().take_while(|kind| *kind == "full_attention").count();
    match kinds[from..].iter().find(|kind| *kind != "sliding_attention") {
        Some(kind) => Err(fields.wrong(
            "layer_types",
            expected,
            format!("{} after the layers with \"full_attention\"", brief(kind)),
        )),
        None => Ok(Some(from)),
    }
}
