//! The layers that have a window, and those that have RoPE.

use serde_json::Value;

use super::super::family::{Means, Roped, Windows};
use super::read::Reading;
use crate::files::brief;
use llama_trace_core::config::LayerSet;
use llama_trace_core::error::Result;

/// The largest number of layers that is counted one by one. The check of the configuration refuses more.
const MOST: usize = 1 << 20;

/// The window and the sets of layers.
pub(super) struct Layers {
    pub window: Option<usize>,
    pub windowed: LayerSet,
    pub roped: LayerSet,
}

/// The window, and the layers with a window and with RoPE in a model of `layers` layers.
pub(super) fn layers(read: &Reading<'_>, layers: usize) -> Result<Layers> {
    let (family, count) = (read.family, layers.min(MOST));
    let mut window = read.size(Means::Window)?;
    if family.windows == Windows::From && !read.is(Means::UseWindow)? {
        window = None;
    }
    if window == Some(0) {
        let expected = "null, or at least 1, because a token sees itself";
        return Err(read.fields.wrong(read.name(Means::Window), expected, "0".into()));
    }
    let with_rope = match family.roped {
        Roped::Listed => no_rope_layers(read, count)?,
        _ => Vec::new(),
    };
    let listed = layer_types(read, layers)?;
    let windowed = match &listed {
        Some(listed) => listed.clone(),
        None => by_rule(read, window, &with_rope, count)?,
    };
    let any = windowed.contains(&true);
    let all = windowed.iter().all(|has| *has);
    if listed.is_some() && family.windows == Windows::All && window.is_some() && !all {
        let expected = "\"sliding_attention\" for every layer: this family has one window for all";
        return Err(read.fields.wrong("layer_types", expected, "\"full_attention\" for some layers".into()));
    }
    if window.is_none() && any {
        let expected = "\"full_attention\" for every layer, because sliding_window is not used";
        return Err(read.fields.wrong(
            "layer_types",
            expected,
            "\"sliding_attention\" for some layers".into(),
        ));
    }
    let set = |has: &[bool]| {
        LayerSet::of(has).ok_or_else(|| {
            let expected = "at most 256 layers, if they are of two kinds in turn";
            read.fields.wrong("num_hidden_layers", expected, layers.to_string())
        })
    };
    let roped = match family.roped {
        Roped::All => LayerSet::ALL,
        Roped::Listed => set(&with_rope)?,
        Roped::WindowedIfAny if window.is_none() => LayerSet::ALL,
        Roped::Windowed | Roped::WindowedIfAny => set(&windowed)?,
    };
    match any {
        true => Ok(Layers { window, windowed: set(&windowed)?, roped }),
        false => Ok(Layers { window: None, windowed: LayerSet::ALL, roped }),
    }
}

/// Whether each layer has a window, by the rule of the family.
fn by_rule(read: &Reading<'_>, window: Option<usize>, with_rope: &[bool], count: usize) -> Result<Vec<bool>> {
    Ok(match read.family.windows {
        Windows::None => vec![false; count],
        Windows::All | Windows::AllOrListed => vec![window.is_some(); count],
        Windows::From => {
            let first = read.required_size(Means::FirstWindow)?;
            (0..count).map(|layer| window.is_some() && layer >= first).collect()
        }
        Windows::Except(default) => {
            let pattern = read.size(Means::WindowPattern)?.unwrap_or(default);
            if pattern == 0 {
                return Err(read.fields.wrong(read.name(Means::WindowPattern), "at least 1", "0".into()));
            }
            (1..=count).map(|number| !number.is_multiple_of(pattern)).collect()
        }
        Windows::WithoutRope => {
            let used = window.is_some() && read.is(Means::UseWindow)?;
            with_rope.iter().map(|has_rope| used && !has_rope).collect()
        }
    })
}

/// Whether each layer is a `sliding_attention` in the list of the file, if there is one.
fn layer_types(read: &Reading<'_>, layers: usize) -> Result<Option<Vec<bool>>> {
    let Some(value) = read.family.field(Means::LayerTypes).and_then(|field| read.fields.get(field.name))
    else {
        return Ok(None);
    };
    let expected = "a list with \"full_attention\" or \"sliding_attention\" for each layer";
    let wrong = |found: &Value| read.fields.wrong("layer_types", expected, brief(found));
    let kinds = value.as_array().filter(|kinds| kinds.len() == layers).ok_or_else(|| wrong(value))?;
    let kind = |kind: &Value| match kind.as_str() {
        Some("full_attention") => Ok(false),
        Some("sliding_attention") => Ok(true),
        _ => Err(wrong(kind)),
    };
    kinds.iter().map(kind).collect::<Result<Vec<_>>>().map(Some)
}

/// Whether each layer has RoPE, from the list of the file or by its interval.
fn no_rope_layers(read: &Reading<'_>, count: usize) -> Result<Vec<bool>> {
    let name = read.name(Means::NoRopeLayers);
    let Some(value) = read.fields.get(name) else {
        let interval = read.required_size(Means::NoRopeInterval)?;
        if interval == 0 {
            return Err(read.fields.wrong(read.name(Means::NoRopeInterval), "at least 1", "0".into()));
        }
        return Ok((1..=count).map(|number| !number.is_multiple_of(interval)).collect());
    };
    let expected = "a list with 1 (RoPE) or 0 (no RoPE) for each layer";
    let wrong = |found: &Value| read.fields.wrong(name, expected, brief(found));
    let list = value.as_array().filter(|list| list.len() >= count).ok_or_else(|| wrong(value))?;
    let flag = |value: &Value| match (value.as_u64(), value.as_bool()) {
        (Some(0), _) | (_, Some(false)) => Ok(false),
        (Some(1), _) | (_, Some(true)) => Ok(true),
        _ => Err(wrong(value)),
    };
    list.iter().take(count).map(flag).collect()
}
