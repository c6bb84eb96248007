//! RoPE's θ and scaling, from `rope_scaling`, `rope_parameters` and the fields beside them.

use serde_json::Value;

use super::super::fields::{Source, is_neutral};
use super::super::json::Fields;
use super::super::screen::Screen;
use crate::files::printable;
use llama_trace_core::config::RopeScaling;
use llama_trace_core::error::Result;

/// θ if config.json has none.
const DEFAULT_THETA: f32 = 10000.0;

/// The fields that a scaling may need.
const SCALING: [&str; 4] =
    ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"];

/// θ and the scaling, read from new and old fields as in transformers 5. `context` is `max_position_embeddings`.
///
/// If `rope_scaling` is present and not empty, it replaces `rope_parameters`.
pub(super) fn rope(
    fields: &Fields<'_>,
    screen: &mut Screen<'_>,
    context: usize,
) -> Result<(f32, RopeScaling)> {
    let object = |name: &str| match fields.get(name) {
        Some(value) if is_neutral(value, &[]) => Ok(None),
        _ => fields.object(name),
    };
    let (name, inner) = match (object("rope_scaling")?, object("rope_parameters")?) {
        (Some(scaling), other) => {
            if other.is_some_and(|other| other != scaling) {
                screen.notes.unknown.push("rope_parameters".into());
            }
            ("rope_scaling.", scaling)
        }
        (None, Some(parameters)) => ("rope_parameters.", parameters),
        (None, None) => return Ok((outer_theta(fields, screen)?, RopeScaling::None)),
    };
    let rope = Fields { object: inner, place: fields.place, prefix: name };
    let kind_field = if inner.contains_key("rope_type") { "rope_type" } else { "type" };
    let kind = rope.text(kind_field)?;
    let asked: &[&str] = match kind.unwrap_or("default") {
        "default" => &[],
        "linear" => &["factor"],
        "llama3" => &SCALING,
        other => {
            let expected =
                "\"default\", \"linear\" or \"llama3\"; other kinds of RoPE scaling are not supported";
            let next = format!(
                "use a model with one of these, or compute with unscaled frequencies: \
                 --ignore-config {name}{kind_field}"
            );
            return Err(rope.wrong(kind_field, expected, format!("\"{}\"", printable(other))).next(next));
        }
    };
    screen.fields(&[Source::Rope], name, inner.iter().map(|(name, value)| (name.as_str(), value)))?;
    let theta = match rope.number("rope_theta")? {
        Some(theta) => theta,
        None => outer_theta(fields, screen)?,
    };
    if let Some(value @ Value::Null) = inner.get("partial_rotary_factor").filter(|_| !asked.is_empty()) {
        let full = format!("{name}partial_rotary_factor");
        return Err(screen.refused(&full, "1, because RoPE here rotates every component of a head", value));
    }
    let idle = SCALING.iter().filter(|field| rope.get(field).is_some() && !asked.contains(field));
    screen.notes.unknown.extend(idle.map(|field| format!("{name}{field}")));
    let scaling = match kind {
        Some("linear") => RopeScaling::Linear { factor: rope.required_number("factor")? },
        Some("llama3") => RopeScaling::Llama3 {
            factor: rope.required_number("factor")?,
            low_freq_factor: rope.required_number("low_freq_factor")?,
            high_freq_factor: rope.required_number("high_freq_factor")?,
            // The field beside the object takes precedence over the field inside it.
            original_context: match &fields.object {
                outer if outer.contains_key("original_max_position_embeddings") => {
                    fields.required_size("original_max_position_embeddings")?
                }
                _ if inner.contains_key("original_max_position_embeddings") => {
                    rope.required_size("original_max_position_embeddings")?
                }
                _ => context,
            },
        },
        _ => RopeScaling::None,
    };
    Ok((theta, scaling))
}

/// θ from the field beside the objects.
fn outer_theta(fields: &Fields<'_>, screen: &Screen<'_>) -> Result<f32> {
    if let Some(value @ Value::Null) = fields.object.get("rope_theta") {
        let expected = "a number; null does not stand for the default";
        return Err(screen.refused("rope_theta", expected, value));
    }
    Ok(fields.number("rope_theta")?.unwrap_or(DEFAULT_THETA))
}
