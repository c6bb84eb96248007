//! Tensors of a checkpoint that this program does not read. Buffers are harmless. Tensors outside the forward pass give
//! a warning. Unsupported tensors in the forward pass are refused, and the error names them.

use super::contents::Contents;
use super::names::{LayerWeight as L, Naming, Weight};
use crate::files::printable;
use llama_trace_core::config::ModelConfig;
use llama_trace_core::error::{Error, Result};

/// Suffixes of buffers that repeat the configuration: RoPE frequencies, positions, masks.
const BUFFERS: &[&str] =
    &["rotary_emb.inv_freq", "rope.freqs", "mask", "masked_bias", "position_ids", "cos_cached", "sin_cached"];

/// Parts of names that are refused even in tensors outside the forward pass. They mark a change to a tensor of the
/// forward pass, or a part of a quantized tensor.
const CHANGES: &[&str] = &[
    "lora",
    "adapter",
    "sink",
    "scale",
    "qweight",
    "qzeros",
    "g_idx",
    "absmax",
    "quant",
    "zero_point",
    "weight_packed",
];

/// The tensors that neither this program nor the reference reads. If a weight of the forward pass is missing, the list
/// is empty. The missing weight then gives an error, which lists similar names.
///
/// # Errors
/// Returns [`Error::Model`] with the first tensor that would change what the model computes.
pub(super) fn screen(
    contents: &Contents,
    naming: Naming,
    config: &ModelConfig,
    place: &str,
) -> Result<Vec<String>> {
    let mut unread = Vec::new();
    if !is_whole(contents, naming, config) {
        return Ok(unread);
    }
    for name in contents.tensors.keys().chain(contents.unreadable.keys()) {
        let buffer = BUFFERS.iter().any(|end| {
            name.strip_suffix(end).is_some_and(|before| before.is_empty() || before.ends_with(['.', '_']))
        });
        let weight = naming.weight(name);
        if buffer || weight.is_some_and(|weight| weight.is_in(config)) {
            continue;
        }
        if is_outside(name, naming, config) && !CHANGES.iter().any(|part| name.to_lowercase().contains(part))
        {
            unread.push(name.clone());
            continue;
        }
        return Err(Error::model(format!(
            "the model has an unsupported tensor: `{}`",
            printable(name)
        ))
        .at(place)
        .expected("only the weights that the configuration requires")
        .found(found(weight, name))
        .next(
            "check that the configuration belongs to the weights, or use a version of the model without it",
        ));
    }
    Ok(unread)
}

/// Returns whether all weights of the forward pass of this configuration are present.
fn is_whole(contents: &Contents, naming: Naming, config: &ModelConfig) -> bool {
    let has = |weight: Weight| {
        let name = naming.name(weight);
        contents.tensors.contains_key(&name) || contents.unreadable.contains_key(&name)
    };
    let tables = [Weight::Embedding, Weight::Head].map(has);
    let tables = if config.tied { tables.contains(&true) } else { tables == [true, true] };
    let in_layer = |layer| {
        let weights = L::ALL.map(|weight| Weight::Layer(layer, weight));
        weights.into_iter().filter(|weight| weight.is_in(config)).all(has)
    };
    tables && has(Weight::FinalNorm) && (0..config.layers).all(in_layer)
}

/// Returns whether a tensor belongs to no part of the forward pass: it is in a layer after the last, or in an
/// additional head.
fn is_outside(name: &str, naming: Naming, config: &ModelConfig) -> bool {
    let (layers, parts): (_, &[&str]) = match naming {
        Naming::HuggingFace(_) => ("model.layers.", &["model.", "lm_head."]),
        Naming::Meta => ("layers.", &["tok_embeddings.", "layers.", "norm.", "output."]),
        Naming::Gguf(_) => ("blk.", &[""]),
    };
    let layer = name.strip_prefix(layers).and_then(|rest| rest.split('.').next());
    match layer.map(str::parse::<usize>) {
        Some(Ok(layer)) => layer >= config.layers,
        _ => !parts.iter().any(|part| name.starts_with(part)),
    }
}

/// A description of a tensor in the forward pass.
fn found(weight: Option<Weight>, name: &str) -> String {
    match weight {
        Some(Weight::Layer(_, L::QNorm | L::KNorm)) => {
            "a norm on queries or keys, which the configuration's family does not have".into()
        }
        Some(_) => "a bias that the configuration does not have".into(),
        None if name.ends_with(".bias") => "a bias".into(),
        None if name.to_lowercase().contains("lora") => {
            "an adapter that is not merged into the weights".into()
        }
        None => "a tensor of a part that this program does not know".into(),
    }
}
