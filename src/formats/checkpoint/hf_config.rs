//! config.json of a Hugging Face directory, read as transformers reads it, for the model types of
//! `hf_config/family.rs`: Llama, and the families that differ from it by a few options.

mod family;
mod rope;
#[cfg(test)]
mod tests;

use serde_json::Value;

use self::family::Family;
use super::class::Class;
use super::fields::Source;
use super::json::{Fields, parse_object};
use super::screen::{Notes, Screen};
use crate::files::{brief, printable};
use llama_trace_core::config::{LayerSet, ModelConfig};
use llama_trace_core::error::Result;

/// Reads the hyperparameters from the text of a config.json without the fields `ignore`. Also returns the notes about
/// deviations from the file. `place` names the file in messages.
///
/// The defaults are those of transformers' configuration class for the family. The sizes of the model are required: a
/// file without them does not describe a language model.
///
/// # Errors
/// Returns [`Error::Model`](llama_trace_core::error::Error::Model) if the text is not a JSON object, a field has the
/// wrong type, or the model has an unsupported part. Returns [`llama_trace_core::error::Error::Usage`] if ignoring a
/// field has no effect.
pub fn model_config(text: &str, place: &str, ignore: &[String]) -> Result<(ModelConfig, Notes)> {
    let mut object = parse_object(text, place)?;
    let mut screen = Screen::new(place, ignore);
    screen.take_out(&mut object)?;
    let fields = Fields { object: &object, place, prefix: "" };
    let family = Family::of(&fields, &screen)?;
    let sources = [family.source(), Source::HuggingFace];
    for name in ignore {
        match name.split_once('.').filter(|(outer, _)| ["rope_scaling", "rope_parameters"].contains(outer)) {
            Some((_, inner)) => screen.check_ignored(&[Source::Rope], name, inner)?,
            None => screen.check_ignored(&sources, name, name)?,
        }
    }
    screen.fields(&sources, "", object.iter().map(|(name, value)| (name.as_str(), value)))?;
    check_activation(&fields)?;

    let dim = fields.required_size("hidden_size")?;
    let heads = fields.required_size("num_attention_heads")?;
    let head_dim = match fields.size("head_dim")? {
        Some(head_dim) => head_dim,
        // Qwen3 has a fixed default instead of the quotient.
        None if family == Family::Qwen3 => 128,
        None if heads > 0 && dim.is_multiple_of(heads) => dim / heads,
        None => {
            let found = format!("hidden_size {dim}, num_attention_heads {heads}");
            return Err(fields.wrong(
                "head_dim",
                "head_dim, or a hidden_size divisible by num_attention_heads",
                found,
            ));
        }
    };
    let kv_heads = match fields.size("num_key_value_heads")? {
        Some(kv_heads) => kv_heads,
        None if family == Family::Llama || object.contains_key("num_key_value_heads") => heads,
        // transformers has a default here, but it is right for only one model size of each family.
        None => fields.required_size("num_key_value_heads")?,
    };
    let layers = fields.required_size("num_hidden_layers")?;
    let (window, window_from) = family::window(&fields, family, layers)?;
    let (qkv_bias, output_bias, mlp_bias) = match family {
        Family::Llama => {
            let attention = fields.flag("attention_bias")?;
            (attention, attention, fields.flag("mlp_bias")?)
        }
        Family::Qwen3 => {
            let attention = fields.flag("attention_bias")?;
            (attention, attention, false)
        }
        // Qwen2's biases are in its code, not in its configuration (Qwen2 report, section 2.2).
        Family::Qwen2 => (true, false, false),
        Family::Mistral => (false, false, false),
    };
    let context = match family {
        Family::Llama => 2048,
        Family::Mistral => 131_072,
        Family::Qwen2 | Family::Qwen3 => 32_768,
    };
    let context = fields.size("max_position_embeddings")?.unwrap_or(context);
    let (rope_theta, rope_scaling) = rope::rope(&fields, &mut screen, context)?;
    let config = ModelConfig {
        dim,
        layers,
        ffn_dim: fields.required_size("intermediate_size")?,
        vocab: fields.required_size("vocab_size")?,
        context,
        norm_eps: fields.number("rms_norm_eps")?.unwrap_or(1e-6),
        rope_theta,
        rope_scaling,
        qkv_bias,
        output_bias,
        mlp_bias,
        qk_norm: family == Family::Qwen3,
        window,
        window_layers: LayerSet::From(window_from),
        tied: fields.flag("tie_word_embeddings")?,
        ..ModelConfig::of_heads(heads, kv_heads, head_dim)
    };
    config.check().map_err(|error| error.at(place))?;
    screen.notes.class = Class::of(object.get("architectures"));
    Ok((config, screen.notes))
}

/// The ids that end a text: those of generation_config.json if it has any, otherwise those of config.json. Each file is
/// given as its text and its place.
///
/// # Errors
/// Returns [`Error::Model`] if a text is not a JSON object, or if the ids are invalid.
pub(super) fn stop_ids(generation: Option<(&str, &str)>, config: (&str, &str)) -> Result<Vec<u32>> {
    for (text, place) in generation.into_iter().chain([config]) {
        if let Some(ids) = eos(text, place)? {
            return Ok(ids);
        }
    }
    Ok(Vec::new())
}

/// `eos_token_id` in the text of a config.json or generation_config.json: a number or a list of numbers. `None` if it
/// is absent or null.
fn eos(text: &str, place: &str) -> Result<Option<Vec<u32>>> {
    let object = parse_object(text, place)?;
    let fields = Fields { object: &object, place, prefix: "" };
    let Some(value) = fields.get("eos_token_id") else { return Ok(None) };
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids = match value {
        Value::Array(list) => list.iter().map(id).collect::<Option<Vec<_>>>(),
        value => id(value).map(|id| vec![id]),
    };
    ids.map(Some).ok_or_else(|| fields.wrong("eos_token_id", "a token id, or a list of them", brief(value)))
}

/// Checks that the activation function of the feed-forward network is SwiGLU's.
fn check_activation(fields: &Fields<'_>) -> Result<()> {
    match fields.text("hidden_act")? {
        None | Some("silu" | "swish") => Ok(()),
        Some(other) => {
            let next =
                "use another model, or if you know that this value is wrong: --ignore-config hidden_act";
            Err(fields.wrong("hidden_act", "\"silu\"", format!("\"{}\"", printable(other))).next(next))
        }
    }
}
