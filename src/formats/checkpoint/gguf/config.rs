//! The hyperparameters of a GGUF file, from the keys of its architecture and from its tensors.

use crate::checkpoint::contents::Contents;
use crate::checkpoint::fields::Source;
use crate::checkpoint::names::LayerWeight;
use crate::checkpoint::screen::Screen;
use crate::checkpoint::{Naming, Notes, Weight};
use crate::files::gguf::Metadata;
use crate::files::printable;
use llama_trace_core::config::{ModelConfig, Pairing, RopeScaling};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::tensor::{Dtype, Tensor};

/// A supported architecture.
struct Architecture {
    /// `general.architecture`.
    name: &'static str,
    /// The RoPE pairing of the query and key rows in its files.
    pairing: Pairing,
    /// Whether each query and key head has its own norm.
    qk_norm: bool,
}

const ARCHITECTURES: &[Architecture] = &[
    Architecture { name: "llama", pairing: Pairing::Neighbours, qk_norm: false },
    Architecture { name: "qwen2", pairing: Pairing::Halves, qk_norm: false },
    Architecture { name: "qwen3", pairing: Pairing::Halves, qk_norm: true },
];

/// Divisors of the RoPE frequencies. They are stored as a tensor but are not a weight.
pub(super) const ROPE_FREQS: &str = "rope_freqs.weight";

/// The hyperparameters of a model with these tensors, and the notes about deviations from the file.
/// `rope_freqs.weight`, which is a hyperparameter, is removed from the tensors. The keys `ignore` are removed from the
/// metadata.
///
/// # Errors
/// Returns [`Error::Model`] if a key is missing or wrong, or the model has an unsupported part, and [`Error::Usage`] if
/// ignoring a key has no effect.
pub(super) fn model_config(
    metadata: &mut Metadata<'_>,
    contents: &mut Contents,
    place: &str,
    ignore: &[String],
) -> Result<(ModelConfig, Notes)> {
    let &Architecture { name: architecture, pairing, qk_norm } = architecture(metadata, place)?;
    if contents.tensors.is_empty() && contents.unreadable.is_empty() {
        return Err(Error::model("the GGUF file holds no tensors, only a vocabulary")
            .at(place)
            .expected("the weights of a model")
            .next("give it with --tokenizer, and the model with --model"));
    }
    let notes = screen(metadata, &format!("{architecture}."), place, ignore)?;
    let metadata = &*metadata;
    let key = |name: &str| format!("{architecture}.{name}");
    let layers = metadata.required_size(&key("block_count"))?;
    if layers > contents.tensors.len() + contents.unreadable.len() {
        return Err(metadata.wrong(&key("block_count"), "at most as many layers as tensors", layers));
    }
    refuse_what_is_not_computed(contents, layers, qk_norm, place)?;

    let dim = metadata.required_size(&key("embedding_length"))?;
    let of_layers = |name: &str| metadata.size_of_layers(&key(name), layers);
    let required_of_layers = |name: &str| {
        of_layers(name)?.ok_or_else(|| metadata.wrong(&key(name), "a whole number", "no such key"))
    };
    let heads = required_of_layers("attention.head_count")?;
    let head_dim = head_dim(metadata, architecture, dim, heads)?;
    let table = contents.tensors.get(&Naming::Gguf(&[]).name(Weight::Embedding));
    // One layer with a bias is enough. A layer that lacks this bias then gives an error later, instead of being
    // computed without it.
    let any = |weights: [LayerWeight; 3]| {
        (0..layers).any(|layer| weights.iter().any(|&weight| has(contents, Weight::Layer(layer, weight))))
    };
    let vocab = match metadata.size(&key("vocab_size"))? {
        Some(vocab) => vocab,
        None => match metadata.texts("tokenizer.ggml.tokens")? {
            Some(tokens) => tokens.len(),
            None => table.and_then(|table| table.shape().first()).copied().unwrap_or(0),
        },
    };
    let required = |name: &str| {
        let key = key(name);
        metadata.number(&key)?.ok_or_else(|| metadata.wrong(&key, "a number", "no such key"))
    };
    let config = ModelConfig {
        dim,
        layers,
        ffn_dim: required_of_layers("feed_forward_length")?,
        vocab,
        context: metadata.required_size(&key("context_length"))?,
        norm_eps: required("attention.layer_norm_rms_epsilon")?,
        rope_theta: metadata.number(&key("rope.freq_base"))?.unwrap_or(10000.0),
        rope_scaling: rope_scaling(metadata, architecture, contents, head_dim, place)?,
        pairing,
        qk_norm,
        // In llama.cpp, none of these architectures has a sliding window, whatever the file contains.
        qkv_bias: any([LayerWeight::Bq, LayerWeight::Bk, LayerWeight::Bv]),
        output_bias: any([LayerWeight::Bo; 3]),
        mlp_bias: any([LayerWeight::B1, LayerWeight::B2, LayerWeight::B3]),
        tied: !has(contents, Weight::Head),
        ..ModelConfig::of_heads(heads, of_layers("attention.head_count_kv")?.unwrap_or(heads), head_dim)
    };
    contents.tensors.remove(ROPE_FREQS);
    config.check().map_err(|error| error.at(place))?;
    Ok((config, notes))
}

/// Removes the keys `ignore` from the metadata, and checks those with the architecture's `prefix`. No other keys affect
/// the computation.
fn screen(metadata: &mut Metadata<'_>, prefix: &str, place: &str, ignore: &[String]) -> Result<Notes> {
    let mut screen = Screen::new(place, ignore);
    for name in ignore {
        if !name.starts_with(prefix) || !metadata.remove(name) {
            let keys = metadata.under(prefix).map(|(key, _)| format!("{prefix}{key}"));
            return Err(screen.no_such_field(name, keys));
        }
        screen.check_ignored(&[Source::Gguf], name, &name[prefix.len()..])?;
        screen.notes.ignored.push(name.clone());
    }
    let keys: Vec<_> = metadata.under(prefix).collect();
    screen.fields(&[Source::Gguf], prefix, keys.iter().map(|(key, value)| (*key, value)))?;
    Ok(screen.notes)
}

/// Returns whether the file has a tensor for `weight`, of any dtype.
fn has(contents: &Contents, weight: Weight) -> bool {
    let name = Naming::Gguf(&[]).name(weight);
    contents.tensors.contains_key(&name) || contents.unreadable.contains_key(&name)
}

/// The architecture named in the file.
fn architecture(metadata: &Metadata<'_>, place: &str) -> Result<&'static Architecture> {
    let name = metadata.text("general.architecture")?.unwrap_or_default();
    let kind = metadata.text("general.type")?.unwrap_or("model");
    let known = ARCHITECTURES.iter().find(|known| known.name == name && kind == "model");
    known.ok_or_else(|| {
        let names: Vec<_> = ARCHITECTURES.iter().map(|known| known.name).collect();
        Error::model("the GGUF file holds a model that is not supported")
            .at(place)
            .expected(format!("a model of architecture {}", names.join(", ")))
            .found(format!("a {} of architecture `{}`", printable(kind), printable(name)))
            .next("use a Llama, or a model of one of these architectures")
    })
}

/// Rejects a file with a tensor that this forward pass does not use, because the model computes something else.
fn refuse_what_is_not_computed(contents: &Contents, layers: usize, qk_norm: bool, place: &str) -> Result<()> {
    let known = |name: &str| match Naming::Gguf(&[]).weight(name) {
        Some(Weight::Layer(_, LayerWeight::QNorm | LayerWeight::KNorm)) if !qk_norm => false,
        Some(Weight::Layer(layer, _)) => layer < layers,
        weight => weight.is_some() || name == ROPE_FREQS,
    };
    let Some(name) = contents.tensors.keys().chain(contents.unreadable.keys()).find(|name| !known(name))
    else {
        return Ok(());
    };
    Err(Error::model(format!(
        "the GGUF file has a tensor that its architecture does not have: `{}`",
        printable(name)
    ))
    .at(place)
    .expected(format!("the weights of {layers} layers, an embedding table, a norm and a head"))
    .found("a tensor of a part that this program does not know, or of a layer past the last")
    .next("use a version of the model without it; this tensor is not supported"))
}

/// The head dimension C, which the file may omit.
fn head_dim(metadata: &Metadata<'_>, architecture: &str, dim: usize, heads: usize) -> Result<usize> {
    let key = |name: &str| format!("{architecture}.{name}");
    let keys = key("attention.key_length");
    let head_dim = match metadata.size(&keys)? {
        Some(head_dim) => head_dim,
        None if heads > 0 && dim.is_multiple_of(heads) => dim / heads,
        None => {
            let found = format!("no such key; the model has width {dim} and {heads} heads");
            return Err(metadata.wrong(
                &keys,
                "the width of a head, which is required if the model's width is not divisible by the number of heads",
                found,
            ));
        }
    };
    // Both values must equal the width of the keys.
    for name in ["attention.value_length", "rope.dimension_count"] {
        if let Some(other) = metadata.size(&key(name))?.filter(|&other| other != head_dim) {
            let expected = format!("{head_dim}, the width of a head; other values are not supported");
            return Err(metadata.wrong(&key(name), &expected, other));
        }
    }
    Ok(head_dim)
}

/// The scaling of the RoPE frequencies: by one factor, by one factor per pair, or by both.
fn rope_scaling(
    metadata: &Metadata<'_>,
    architecture: &str,
    contents: &Contents,
    head_dim: usize,
    place: &str,
) -> Result<RopeScaling> {
    let key = |name: &str| format!("{architecture}.{name}");
    let kind = metadata.text(&key("rope.scaling.type"))?.unwrap_or("linear");
    if !["none", "linear"].contains(&kind) {
        let expected = "none or linear; other kinds of RoPE scaling are not supported";
        return Err(metadata.wrong(&key("rope.scaling.type"), expected, printable(kind)));
    }
    let factor = match metadata.number(&key("rope.scaling.factor"))? {
        None => metadata.number(&key("rope.scale_linear"))?,
        factor => factor,
    };
    // As in llama.cpp, 0 means no factor.
    let factor = factor.filter(|&factor| kind == "linear" && factor != 0.0).unwrap_or(1.0);
    let unreadable = contents.unreadable.get(ROPE_FREQS).cloned();
    let Some(tensor) = contents.tensors.get(ROPE_FREQS) else {
        return match unreadable {
            Some(dtype) => Err(wrong_divisors(place, head_dim, dtype)),
            None if factor == 1.0 => Ok(RopeScaling::None),
            None => Ok(RopeScaling::Linear { factor }),
        };
    };
    if tensor.dtype() != Dtype::F32 || tensor.count() != head_dim / 2 {
        return Err(wrong_divisors(place, head_dim, format!("{} {:?}", tensor.dtype(), tensor.shape())));
    }
    Ok(RopeScaling::Divisors(divisors(tensor).map(|divisor| divisor * factor).collect()))
}

fn divisors(tensor: &Tensor) -> impl Iterator<Item = f32> {
    tensor.bytes().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes))
}

fn wrong_divisors(place: &str, head_dim: usize, found: String) -> Error {
    Error::model(format!("tensor `{ROPE_FREQS}` is not valid"))
        .at(place)
        .expected(format!("F32 [{}], one divisor for each pair of components of a head", head_dim / 2))
        .found(found)
        .next("fetch the file again, or use another version of the model")
}
