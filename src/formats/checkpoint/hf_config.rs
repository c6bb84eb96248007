//! config.json of a Hugging Face directory, read as transformers reads it, for the families of [`super::family`].

mod layers;
mod read;
mod rope;
#[cfg(test)]
mod tests;
mod unsupported;

use serde_json::Value;

use self::read::Reading;
use super::class::Class;
use super::family::{Family, Means, WRAPPERS};
use super::fields::Source;
use super::json::{Fields, parse_object};
use super::screen::{Notes, Screen};
use crate::files::brief;
use llama_trace_core::config::{ModelConfig, Multipliers, Placement, RopeScaling};
use llama_trace_core::error::Result;

/// What a config.json says about a model.
#[derive(Debug)]
pub struct Described {
    /// The hyperparameters.
    pub config: ModelConfig,
    /// The family.
    pub family: &'static Family,
    /// Deviations from the file.
    pub notes: Notes,
}

/// Reads the text of a config.json without the fields `ignore`. `place` names the file in messages.
///
/// The defaults are those of transformers' configuration class for the family. The sizes of the model are required: a
/// file without them does not describe a language model.
///
/// # Errors
/// Returns [`Error::Model`](llama_trace_core::error::Error::Model) if the text is not a JSON object, a field has the
/// wrong type, or the model has an unsupported part. Returns [`llama_trace_core::error::Error::Usage`] if ignoring a
/// field has no effect.
pub fn model_config(text: &str, place: &str, ignore: &[String]) -> Result<Described> {
    let mut object = parse_object(text, place)?;
    let mut screen = Screen::new(place, ignore);
    screen.take_out(&mut object)?;
    let outer = Fields { object: &object, place, prefix: "" };
    let wrapper = outer.text("model_type")?.and_then(|kind| WRAPPERS.iter().find(|(name, _)| *name == kind));
    let Some((kind, default)) = wrapper else {
        let family = family(&outer, &screen)?;
        let config = of_family(&Reading { fields: outer, family }, &mut screen, ignore)?;
        screen.notes.class = Class::of(object.get("architectures"));
        return Ok(Described { config, family, notes: screen.notes });
    };
    let sources = [Source::Wrapper, Source::HuggingFace];
    check_ignored(&screen, &sources, "", ignore.iter().filter(|name| !name.starts_with(TEXT_PREFIX)))?;
    screen.fields(&sources, "", object.iter().map(|(name, value)| (name.as_str(), value)))?;
    let inner = outer.object("text_config")?.ok_or_else(|| {
        outer.wrong("text_config", "an object with the fields of the text model", "no such field".into())
    })?;
    let inner = Fields { object: inner, place, prefix: TEXT_PREFIX };
    let family = match inner.text("model_type")? {
        None => *default,
        Some(_) => family(&inner, &screen)?,
    };
    let mut config = of_family(&Reading { fields: inner, family }, &mut screen, ignore)?;
    // transformers' classes for several kinds of input read this field outside, and have no cap of the logits.
    config.tied = !object.contains_key("tie_word_embeddings") || outer.flag("tie_word_embeddings")?;
    config.logit_cap = None;
    screen.notes.text_model_of = Some((*kind).into());
    Ok(Described { config, family, notes: screen.notes })
}

/// The prefix of the text model's fields in messages.
const TEXT_PREFIX: &str = "text_config.";

/// The family named by `model_type`, or if that is absent, by the class in `architectures`.
fn family(fields: &Fields<'_>, screen: &Screen<'_>) -> Result<&'static Family> {
    let expected = || format!("one of {}; no other architecture is supported", Family::listed());
    if let Some(value @ Value::Null) = fields.object.get("model_type") {
        return Err(screen.refused(&format!("{}model_type", fields.prefix), &expected(), value));
    }
    let architectures = fields.get("architectures").and_then(Value::as_array);
    let kind = fields.text("model_type")?;
    let family = match kind {
        Some(kind) => Family::of_type(kind),
        None => architectures.into_iter().flatten().find_map(|name| Family::of_class(name.as_str()?)),
    };
    family.ok_or_else(|| {
        let found = fields.get("model_type").map_or("no model_type".into(), brief);
        let part = kind.and_then(unsupported::part);
        let found = part.map_or_else(|| found.clone(), |part| format!("{found}, a model with {part}"));
        fields.wrong("model_type", &expected(), found).next("use a model of one of these families")
    })
}

/// Checks that ignoring the fields `names` has an effect. `prefix` is that of the object with the fields `sources`.
fn check_ignored<'n>(
    screen: &Screen<'_>,
    sources: &[Source],
    prefix: &str,
    names: impl Iterator<Item = &'n String>,
) -> Result<()> {
    for name in names {
        let field = name.strip_prefix(prefix).unwrap_or(name);
        match field.split_once('.').filter(|(outer, _)| ["rope_scaling", "rope_parameters"].contains(outer)) {
            Some((_, inner)) => screen.check_ignored(&[Source::Rope], name, inner)?,
            None => screen.check_ignored(sources, name, field)?,
        }
    }
    Ok(())
}

/// The hyperparameters of a model of one family.
fn of_family(read: &Reading<'_>, screen: &mut Screen<'_>, ignore: &[String]) -> Result<ModelConfig> {
    let Reading { fields, family } = read;
    let family = *family;
    let sources = [Source::Family(family), Source::HuggingFace];
    let own = ignore.iter().filter(|name| fields.prefix.is_empty() || name.starts_with(fields.prefix));
    check_ignored(screen, &sources, fields.prefix, own)?;
    screen.fields(
        &sources,
        fields.prefix,
        fields.object.iter().map(|(name, value)| (name.as_str(), value)),
    )?;
    let activation = read.activation()?;

    let dim = read.required_size(Means::Dim)?;
    let heads = read.required_size(Means::Heads)?;
    let head_dim = match read.size(Means::HeadDim)? {
        Some(head_dim) => head_dim,
        None if heads > 0 && dim.is_multiple_of(heads) => dim / heads,
        None => {
            let expected = "head_dim, or a hidden_size divisible by num_attention_heads";
            let found = format!("hidden_size {dim}, num_attention_heads {heads}");
            return Err(fields.wrong("head_dim", expected, found));
        }
    };
    let kv_heads = read.size(Means::KvHeads)?.unwrap_or(heads);
    let layers = read.required_size(Means::Layers)?;
    let of_layers = layers::layers(read, layers)?;
    let [all, attention] = [read.is(Means::AllBiases)?, read.is(Means::AttentionBias)?];
    let context = read.required_size(Means::Context)?;
    let ropes = rope::ropes(read, screen, rope::Sizes { context, head_dim })?;
    // Dynamic scaling is for texts beyond `max_position_embeddings`, by its factor.
    let context = match ropes.main.scaling {
        RopeScaling::Dynamic { factor, .. } => {
            (context as f64 * f64::from(factor)).min(f64::from(u32::MAX)) as usize
        }
        _ => context,
    };
    let score_scale = match read.number64(Means::ScoreRoot)? {
        Some(scalar) if scalar == head_dim as f64 => None,
        Some(scalar) => Some(scalar.powf(-0.5) as f32),
        None => read.number(Means::ScoreScale)?,
    };
    let placement = match read.is(Means::Parallel)? {
        true => Placement::Parallel,
        false => family.placement,
    };
    let qk_norm = match read.flag(Means::QkNorm)? {
        Some(false) => None,
        _ => family.qk_norm,
    };
    let config = ModelConfig {
        dim,
        layers,
        ffn_dim: read.required_size(Means::FfnDim)?,
        vocab: read.required_size(Means::Vocab)?,
        context,
        norm_eps: read.number(Means::Epsilon)?.unwrap_or_default(),
        rope_theta: ropes.main.theta,
        rope_scaling: ropes.main.scaling,
        local_rope: ropes.local,
        rope_dim: ropes.dim,
        rope_layers: of_layers.roped,
        pairing: family.pairing,
        rope_rounding: family.rope_rounding,
        qkv_bias: family.qkv_bias || all || attention || read.is(Means::QkvBias)?,
        output_bias: all || attention || read.is(Means::OutputBias)?,
        mlp_bias: all || read.is(Means::MlpBias)?,
        qk_norm: qk_norm.is_some(),
        qk_norm_form: qk_norm.unwrap_or_default(),
        window: of_layers.window,
        window_layers: of_layers.windowed,
        norm: family.norm,
        placement,
        multipliers: Multipliers {
            embedding: match family.root_of_dim {
                true => (dim as f64).sqrt() as f32,
                false => read.factor(Means::EmbeddingScale)?,
            },
            residual: read.factor(Means::ResidualScale)?,
            logits: read.factor(Means::LogitScale)? / read.factor(Means::LogitDivisor)?,
        },
        score_scale,
        query_scale: ropes.query_scale,
        score_cap: read.number(Means::ScoreCap)?,
        logit_cap: read.number(Means::LogitCap)?,
        activation,
        ungated: family.ungated,
        tied: read.is(Means::Tied)?,
        ..ModelConfig::of_heads(heads, kv_heads, head_dim)
    };
    config.check().map_err(|error| error.at(fields.place))?;
    Ok(config)
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
    let mut fields = Fields { object: &object, place, prefix: "" };
    let text_config = object.get("text_config").and_then(Value::as_object);
    if let (None, Some(inner)) = (fields.get("eos_token_id"), text_config) {
        fields = Fields { object: inner, place, prefix: TEXT_PREFIX };
    }
    let Some(value) = fields.get("eos_token_id") else { return Ok(None) };
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids = match value {
        Value::Array(list) => list.iter().map(id).collect::<Option<Vec<_>>>(),
        value => id(value).map(|id| vec![id]),
    };
    ids.map(Some).ok_or_else(|| fields.wrong("eos_token_id", "a token id, or a list of them", brief(value)))
}
