//! The hyperparameters of a GGUF file, from the keys of its architecture and from its tensors.

use super::keys::Keys;
use super::rope;
use crate::checkpoint::contents::Contents;
use crate::checkpoint::family::{ARCHITECTURES, Architecture, Means, Roped, Windows};
use crate::checkpoint::fields::Source;
use crate::checkpoint::names::LayerWeight as L;
use crate::checkpoint::screen::Screen;
use crate::checkpoint::{Naming, Notes, Weight, stored};
use crate::files::gguf::Metadata;
use crate::files::printable;
use llama_trace_core::config::{
    Activation, LayerSet, ModelConfig, Multipliers, Norm, NormKind, Placement, QueryScale, Rope, RopeScaling,
};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::tensor::Tensor;

/// The hyperparameters of a model with these tensors, and the notes about deviations from the file. Tensors that are
/// hyperparameters are removed, and each weight gets a tensor of its own. The keys `ignore` are removed from the
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
) -> Result<(ModelConfig, Naming, Notes)> {
    let architecture = architecture(metadata, place)?;
    if contents.tensors.is_empty() && contents.unreadable.is_empty() {
        return Err(Error::model("the GGUF file holds no tensors, only a vocabulary")
            .at(place)
            .expected("the weights of a model")
            .next("give it with --tokenizer, and the model with --model"));
    }
    let notes = screen(metadata, architecture, contents, place, ignore)?;
    let (family, naming) = (architecture.family, Naming::Gguf(architecture.names));
    let keys = Keys { metadata, architecture };
    let (metadata, key) = (keys.metadata, |name: &str| keys.key(name));
    let layers = metadata.required_size(&key("block_count"))?;
    if layers > contents.tensors.len() + contents.unreadable.len() {
        return Err(metadata.wrong(&key("block_count"), "at most as many layers as tensors", layers));
    }
    let dim = metadata.required_size(&key("embedding_length"))?;
    let of_layers = |name: &str| metadata.size_of_layers(&key(name), layers);
    let required_of_layers = |name: &str| {
        of_layers(name)?.ok_or_else(|| metadata.wrong(&key(name), "a whole number", "no such key"))
    };
    let heads = required_of_layers("attention.head_count")?;
    let (head_dim, turned) = head_dim(&keys, dim, heads)?;
    let vocab = match metadata.size(&key("vocab_size"))? {
        Some(vocab) => vocab,
        None => match metadata.texts("tokenizer.ggml.tokens")? {
            Some(tokens) => tokens.len(),
            None => {
                let table = contents.tensors.get(&naming.name(Weight::Embedding));
                table.and_then(|table| table.shape().first()).copied().unwrap_or(0)
            }
        },
    };
    let epsilon = match family.norm.kind {
        NormKind::Rms => "attention.layer_norm_rms_epsilon",
        NormKind::Layer => "attention.layer_norm_epsilon",
    };
    let norm_eps = keys.number(epsilon)?;
    let main = rope::rope(&keys, contents, turned, place)?;
    let windows = windows(&keys, layers, &main)?;
    let has_norm = has_any(contents, naming, layers, &[L::QNorm, L::KNorm]);
    // Only some models of a family with a field for these norms have them.
    let qk_norm = family.qk_norm.filter(|_| has_norm || family.field(Means::QkNorm).is_none());
    let scale = keys.optional("logit_scale")?.unwrap_or(1.0);
    let mut config = ModelConfig {
        dim,
        layers,
        ffn_dim: required_of_layers("feed_forward_length")?,
        vocab,
        context: metadata.required_size(&key("context_length"))?,
        norm_eps: norm_eps.ok_or_else(|| metadata.wrong(&key(epsilon), "a number", "no such key"))?,
        rope_theta: main.theta,
        rope_scaling: main.scaling,
        local_rope: windows.local_rope,
        rope_dim: (turned != head_dim).then_some(turned),
        rope_layers: windows.roped,
        pairing: architecture.pairing,
        rope_rounding: family.rope_rounding,
        qk_norm: qk_norm.is_some(),
        qk_norm_form: qk_norm.unwrap_or_default(),
        window: windows.window,
        window_layers: windows.windowed,
        // Files store the sum 1 + w.
        norm: Norm { one_plus: false, ..family.norm },
        placement: match family.field(Means::Parallel) {
            // As in llama.cpp, the keys do not count.
            Some(_) if !has_any(contents, naming, layers, &[L::FfnNorm]) => Placement::Parallel,
            _ => family.placement,
        },
        multipliers: Multipliers {
            embedding: match family.root_of_dim {
                true => (dim as f64).sqrt() as f32,
                false => keys.optional("embedding_scale")?.unwrap_or(1.0),
            },
            residual: keys.optional("residual_scale")?.unwrap_or(1.0),
            logits: if family.field(Means::LogitDivisor).is_some() { 1.0 / scale } else { scale },
        },
        score_scale: score_scale(&keys, [dim, heads, head_dim], layers)?,
        query_scale: match keys.optional("attention.temperature_scale")? {
            Some(beta) => Some(QueryScale { beta, original_context: rope::original_context(&keys)? }),
            None => None,
        },
        score_cap: keys.cap("attn_logit_softcapping", Means::ScoreCap)?,
        logit_cap: keys.cap("final_logit_softcapping", Means::LogitCap)?,
        // Files do not name it.
        activation: family.default_activation(),
        ungated: family.ungated,
        tied: !has(contents, naming, Weight::Head),
        ..ModelConfig::of_heads(heads, of_layers("attention.head_count_kv")?.unwrap_or(heads), head_dim)
    };
    rope::remove(contents);
    config.check().map_err(|error| error.at(place))?;
    stored::separate(contents, architecture.stored, naming, &config, place)?;
    // One layer with a bias is enough. A layer that lacks this bias then gives an error later, instead of being computed
    // without it.
    config.qkv_bias = has_any(contents, naming, layers, &[L::Bq, L::Bk, L::Bv]);
    config.output_bias = has_any(contents, naming, layers, &[L::Bo]);
    config.mlp_bias = has_any(contents, naming, layers, &[L::B1, L::B2, L::B3]);
    if config.activation == Activation::Xielu {
        xielu(metadata, contents, naming, layers)?;
    }
    refuse_what_is_not_computed(contents, naming, &config, place)?;
    Ok((config, naming, notes))
}

/// Removes the keys `ignore` from the metadata, and checks those of the architecture. No other keys affect the
/// computation.
fn screen(
    metadata: &mut Metadata<'_>,
    architecture: &'static Architecture,
    contents: &Contents,
    place: &str,
    ignore: &[String],
) -> Result<Notes> {
    let prefix = format!("{}.", architecture.name);
    let sources = [Source::Architecture(architecture), Source::Gguf];
    let mut screen = Screen::new(place, ignore);
    for name in ignore {
        if !name.starts_with(&prefix) || !metadata.remove(name) {
            let keys = metadata.under(&prefix).map(|(key, _)| format!("{prefix}{key}"));
            return Err(screen.no_such_field(name, keys));
        }
        screen.check_ignored(&sources, name, &name[prefix.len()..])?;
        screen.notes.ignored.push(name.clone());
    }
    let has_factor = rope::has_attention_factor(&Keys { metadata, architecture }, contents)?;
    let keys: Vec<_> = metadata.under(&prefix).collect();
    let read = keys.iter().filter(|(key, _)| !(has_factor && *key == "rope.scaling.attn_factor"));
    screen.fields(&sources, &prefix, read.map(|(key, value)| (*key, value)))?;
    Ok(screen.notes)
}

/// Returns whether the file has a tensor for `weight`, of any dtype.
fn has(contents: &Contents, naming: Naming, weight: Weight) -> bool {
    let name = naming.name(weight);
    contents.tensors.contains_key(&name) || contents.unreadable.contains_key(&name)
}

/// Returns whether a layer has a tensor for one of `weights`.
fn has_any(contents: &Contents, naming: Naming, layers: usize, weights: &[L]) -> bool {
    (0..layers).any(|layer| weights.iter().any(|&weight| has(contents, naming, Weight::Layer(layer, weight))))
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
fn refuse_what_is_not_computed(
    contents: &Contents,
    naming: Naming,
    config: &ModelConfig,
    place: &str,
) -> Result<()> {
    let known = |name: &str| match naming.weight(name) {
        // A bias is in all layers or in none.
        Some(weight @ Weight::Layer(layer, _)) => layer < config.layers && weight.is_in(config),
        Some(weight) => weight.is_in(config),
        None => false,
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
    .expected(format!("the weights of {} layers, an embedding table, a norm and a head", config.layers))
    .found("a tensor of a part that this program does not know, or of a layer past the last")
    .next("use a version of the model without it; this tensor is not supported"))
}

/// The head dimension C, which the file may omit, and the number of components that RoPE rotates.
fn head_dim(keys: &Keys<'_, '_>, dim: usize, heads: usize) -> Result<(usize, usize)> {
    let (metadata, length) = (keys.metadata, keys.key("attention.key_length"));
    let head_dim = match metadata.size(&length)? {
        Some(head_dim) => head_dim,
        None if heads > 0 && dim.is_multiple_of(heads) => dim / heads,
        None => {
            let found = format!("no such key; the model has width {dim} and {heads} heads");
            return Err(metadata.wrong(
                &length,
                "the width of a head, which is required if the model's width is not divisible by the number of heads",
                found,
            ));
        }
    };
    let turned = keys.size("rope.dimension_count")?.unwrap_or(head_dim);
    let whole = keys.architecture.family.partial.is_none();
    // The width of the values must equal that of the keys. Most architectures rotate whole heads.
    let value_length = keys.size("attention.value_length")?.unwrap_or(head_dim);
    for (name, other) in [("attention.value_length", value_length), ("rope.dimension_count", turned)] {
        if other != head_dim && (whole || name == "attention.value_length") {
            let expected = format!("{head_dim}, the width of a head; other values are not supported");
            return Err(metadata.wrong(&keys.key(name), &expected, other));
        }
    }
    Ok((head_dim, turned))
}

/// The factor of the scores. llama.cpp knows by the number of layers which Gemmas divide by √(D/H) instead of √C.
fn score_scale(
    keys: &Keys<'_, '_>,
    [dim, heads, head_dim]: [usize; 3],
    layers: usize,
) -> Result<Option<f32>> {
    let by_width = matches!((keys.architecture.name, layers), ("gemma2", 46) | ("gemma3", 62));
    if by_width && heads > 0 && dim / heads != head_dim {
        return Ok(Some(1.0 / ((dim / heads) as f32).sqrt()));
    }
    keys.optional("attention.scale")
}

/// What depends on the layer.
struct OfLayers {
    window: Option<usize>,
    windowed: LayerSet,
    roped: LayerSet,
    local_rope: Option<Rope>,
}

/// The window, and the layers with it and with RoPE.
fn windows(keys: &Keys<'_, '_>, layers: usize, main: &Rope) -> Result<OfLayers> {
    const WINDOW: &str = "attention.sliding_window";
    const PATTERN: &str = "attention.sliding_window_pattern";
    let (family, metadata) = (keys.architecture.family, keys.metadata);
    let set = |has: &[bool]| {
        LayerSet::of(has).ok_or_else(|| {
            let expected = "at most 256 layers, if they are of two kinds in turn";
            metadata.wrong(&keys.key("block_count"), expected, layers)
        })
    };
    let window = match keys.reads(WINDOW) {
        // In llama.cpp, the other architectures have no window, whatever the file contains.
        false => None,
        true if keys.architecture.name == "gemma2" => Some(keys.size(WINDOW)?.unwrap_or(4096)),
        true => keys.size(WINDOW)?,
    };
    let window = window.filter(|&window| window > 0);
    let windowed: Vec<bool> = match (window, family.windows) {
        (None, _) => vec![false; layers],
        (Some(_), Windows::Except(default)) => match metadata.flags_of_layers(&keys.key(PATTERN), layers)? {
            Some(listed) => listed,
            None => {
                let pattern = keys.size(PATTERN)?.unwrap_or(default);
                (1..=layers).map(|number| pattern == 0 || !number.is_multiple_of(pattern)).collect()
            }
        },
        (Some(_), _) => vec![true; layers],
    };
    let any = windowed.contains(&true);
    let roped = match family.roped {
        Roped::All => LayerSet::ALL,
        Roped::Listed => set(&(1..=layers).map(|number| !number.is_multiple_of(4)).collect::<Vec<_>>())?,
        Roped::WindowedIfAny if window.is_none() => LayerSet::ALL,
        Roped::Windowed | Roped::WindowedIfAny => set(&windowed)?,
    };
    let theta = keys.number("rope.freq_base_swa")?.filter(|_| keys.reads("rope.freq_base_swa"));
    let local_rope = match keys.architecture.name {
        "gemma3" => Some(Rope { theta: theta.unwrap_or(10_000.0), scaling: RopeScaling::None }),
        "olmo2" => Some(Rope { theta: theta.unwrap_or(main.theta), scaling: RopeScaling::None }),
        _ => theta.map(|theta| Rope { theta, scaling: main.scaling.clone() }),
    };
    Ok(OfLayers {
        window: window.filter(|_| any),
        windowed: if any { set(&windowed)? } else { LayerSet::ALL },
        roped,
        local_rope: local_rope.filter(|local| any && local != main),
    })
}

/// Makes a weight for each layer from the keys with xIELU's numbers.
fn xielu(metadata: &Metadata<'_>, contents: &mut Contents, naming: Naming, layers: usize) -> Result<()> {
    let list = |key: &str| -> Result<Vec<f32>> {
        let list = metadata.floats(key)?.map(|list| list.floats().collect::<Vec<_>>());
        list.filter(|list| list.len() == layers).ok_or_else(|| {
            metadata.wrong(key, &format!("a number for each of {layers} layers"), "another number of them")
        })
    };
    for (key, value) in [("xielu.beta", 0.5_f32), ("xielu.eps", -1e-6)] {
        // The numbers may have been rounded to bfloat16.
        if let Some(other) = list(key)?.into_iter().find(|other| (other - value).abs() > value.abs() / 64.0) {
            return Err(metadata.wrong(key, &value.to_string(), other));
        }
    }
    let (positive, negative) = (list("xielu.alpha_p")?, list("xielu.alpha_n")?);
    for (layer, (positive, negative)) in positive.into_iter().zip(negative).enumerate() {
        let name = naming.name(Weight::Layer(layer, L::Xielu));
        let tensor = Tensor::floats(vec![2], &[positive, negative]);
        contents.tensors.extend(tensor.map(|tensor| (name, tensor)));
    }
    Ok(())
}
