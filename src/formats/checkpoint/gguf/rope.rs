//! RoPE's θ and scaling in a GGUF file. Divisors of the frequencies are tensors of the file.

use super::keys::Keys;
use crate::checkpoint::contents::Contents;
use crate::files::printable;
use llama_trace_core::config::{Rope, RopeScaling};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::tensor::{Dtype, Tensor};

/// Divisors of the RoPE frequencies. They are stored as tensors but are not weights.
pub(super) const DIVISORS: [&str; 3] =
    ["rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"];
const FREQS: &str = DIVISORS[0];
const SHORT: &str = DIVISORS[1];
const LONG: &str = DIVISORS[2];

/// Removes the divisors from the tensors.
pub(super) fn remove(contents: &mut Contents) {
    for name in DIVISORS {
        contents.tensors.remove(name);
    }
}

fn kind<'m>(keys: &Keys<'_, 'm>) -> Result<&'m str> {
    Ok(keys.metadata.text(&keys.key("rope.scaling.type"))?.unwrap_or("linear"))
}

/// Whether the scaling has a factor of all cosines and sines.
pub(super) fn has_attention_factor(keys: &Keys<'_, '_>, contents: &Contents) -> Result<bool> {
    Ok(kind(keys)? == "yarn" || has_long(contents))
}

fn has_long(contents: &Contents) -> bool {
    contents.tensors.contains_key(LONG)
}

/// θ and the scaling of the RoPE frequencies: by one factor, by one factor per pair, or by both. `turned` components of
/// a head are rotated.
pub(super) fn rope(keys: &Keys<'_, '_>, contents: &Contents, turned: usize, place: &str) -> Result<Rope> {
    let theta = keys.number("rope.freq_base")?.unwrap_or(10000.0);
    Ok(Rope { theta, scaling: scaling(keys, contents, turned, place)? })
}

fn scaling(keys: &Keys<'_, '_>, contents: &Contents, turned: usize, place: &str) -> Result<RopeScaling> {
    let kind = kind(keys)?;
    if !["none", "linear", "yarn", "longrope"].contains(&kind) {
        let expected = "none, linear, yarn or longrope; other kinds of RoPE scaling are not supported";
        return Err(keys.metadata.wrong(&keys.key("rope.scaling.type"), expected, printable(kind)));
    }
    let factor = match keys.number("rope.scaling.factor")? {
        None => keys.number("rope.scale_linear")?,
        factor => factor,
    };
    // As in llama.cpp, 0 means no factor.
    let factor = factor.filter(|&factor| kind != "none" && factor != 0.0).unwrap_or(1.0);
    let attention_factor = || Ok::<_, Error>(keys.number("rope.scaling.attn_factor")?.unwrap_or(1.0));
    if has_long(contents) {
        return Ok(RopeScaling::LongRope {
            short: divisors(contents, SHORT, turned, place)?.unwrap_or_else(|| vec![1.0; turned / 2]),
            long: divisors(contents, LONG, turned, place)?.unwrap_or_default(),
            original_context: original_context(keys)?,
            attention_factor: attention_factor()?,
        });
    }
    if kind == "longrope" {
        let expected = format!("none, linear or yarn, because the file has no tensor `{LONG}`");
        return Err(keys.metadata.wrong(&keys.key("rope.scaling.type"), &expected, printable(kind)));
    }
    let divisors = divisors(contents, FREQS, turned, place)?;
    if kind == "yarn" {
        if divisors.is_some() {
            let expected = "linear, because the file has divisors of the frequencies";
            return Err(keys.metadata.wrong(&keys.key("rope.scaling.type"), expected, "yarn"));
        }
        return yarn(keys, factor, attention_factor()?, original_context(keys)?);
    }
    Ok(match divisors {
        Some(divisors) => RopeScaling::Divisors(divisors.iter().map(|divisor| divisor * factor).collect()),
        None if factor == 1.0 => RopeScaling::None,
        None => RopeScaling::Linear { factor },
    })
}

/// The context length that the model was trained on first.
pub(super) fn original_context(keys: &Keys<'_, '_>) -> Result<usize> {
    match keys.size("rope.scaling.original_context_length")? {
        Some(context) => Ok(context),
        None => keys.metadata.required_size(&keys.key("context_length")),
    }
}

/// YaRN. Without a factor of cosines and sines in the file, it is that of llama.cpp. Keys that llama.cpp reads for some
/// architectures only are obeyed for all, because transformers' models have them.
fn yarn(
    keys: &Keys<'_, '_>,
    factor: f32,
    attention_factor: f32,
    original_context: usize,
) -> Result<RopeScaling> {
    let scale = |scale: f64| match factor {
        factor if factor <= 1.0 => 1.0,
        factor => 0.1 * scale * f64::from(factor).ln() + 1.0,
    };
    let given = keys.number("rope.scaling.yarn_attn_factor")?.filter(|&given| given > 0.0);
    let all = keys.optional("rope.scaling.yarn_log_multiplier")?;
    let computed = scale(1.0) / all.map_or(1.0, |all| scale(f64::from(all)));
    Ok(RopeScaling::Yarn {
        factor,
        beta_fast: keys.number("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
        beta_slow: keys.number("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
        original_context,
        attention_factor: (given.map_or(computed, f64::from) * f64::from(attention_factor)) as f32,
        truncate: true,
    })
}

/// The divisors in the tensor `name`, if there is one.
fn divisors(contents: &Contents, name: &str, turned: usize, place: &str) -> Result<Option<Vec<f32>>> {
    let wrong = |found: String| {
        Error::model(format!("tensor `{name}` is not valid"))
            .at(place)
            .expected(format!("F32 [{}], one divisor for each pair of components of a head", turned / 2))
            .found(found)
            .next("fetch the file again, or use another version of the model")
    };
    if let Some(dtype) = contents.unreadable.get(name) {
        return Err(wrong(dtype.clone()));
    }
    let Some(tensor) = contents.tensors.get(name) else { return Ok(None) };
    if tensor.dtype() != Dtype::F32 || tensor.count() != turned / 2 {
        return Err(wrong(format!("{} {:?}", tensor.dtype(), tensor.shape())));
    }
    Ok(Some(values(tensor)))
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.bytes().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}
