//! A checkpoint of random numbers in the shape of a known model, for measuring: nothing to download, and
//! the time of a pass does not depend on the values.

use std::collections::BTreeMap;

use super::names::{LayerWeight as L, Naming, Weight};
use super::{Checkpoint, Dtype, Format, Notes, Scales, Tensor};
use crate::config::{DEFAULT_GROUP, ModelConfig, Pairing, RopeScaling};
use crate::error::{Error, Result};
use crate::files::{Bytes, Noise};
use crate::stop;

/// Name, D, layers, H, G, F, V, tied.
type Shape = (&'static str, usize, usize, usize, usize, usize, usize, bool);

/// The shapes that can be asked for. Llama's own from Meta's params.json, the stories from llama2.c.
const SHAPES: &[Shape] = &[
    ("stories-15m", 288, 6, 6, 6, 768, 32_000, true),
    ("stories-110m", 768, 12, 12, 12, 2048, 32_000, true),
    ("tinyllama-1.1b", 2048, 22, 32, 4, 5632, 32_000, false),
    ("llama-3.2-1b", 2048, 16, 32, 8, 8192, 128_256, true),
    ("llama-3.2-3b", 3072, 28, 24, 8, 8192, 128_256, true),
    ("llama-2-7b", 4096, 32, 32, 32, 11_008, 32_000, false),
    ("llama-3.1-8b", 4096, 32, 32, 8, 14_336, 128_256, false),
];

/// Random weights of number type `dtype` in the shape `name`.
///
/// # Errors
/// [`Error::Usage`] with the known shapes, where `name` is none of them.
pub fn checkpoint(name: &str, dtype: Dtype) -> Result<Checkpoint> {
    let Some(&(name, dim, layers, heads, kv_heads, ffn_dim, vocab, tied)) =
        SHAPES.iter().find(|shape| shape.0 == name)
    else {
        let names: Vec<_> = SHAPES.iter().map(|shape| shape.0).collect();
        return Err(Error::usage("there is no such shape")
            .expected(names.join(", "))
            .found(format!("`{name}`"))
            .next("give one of these, or a model with --model"));
    };
    let config = ModelConfig {
        dim,
        layers,
        heads,
        kv_heads,
        head_dim: dim / heads,
        ffn_dim,
        vocab,
        context: if name.starts_with("llama-3") { 131_072 } else { 8192 },
        norm_eps: 1e-5,
        rope_theta: 500_000.0,
        rope_scaling: RopeScaling::None,
        pairing: Pairing::Halves,
        qkv_bias: false,
        output_bias: false,
        mlp_bias: false,
        qk_norm: false,
        window: None,
        window_from: 0,
        tied,
    };
    Ok(of_config(name, config, dtype))
}

/// Random weights of number type `dtype` for `config`, which has no biases and no norms of queries and keys. They are made
/// when they are first read ([`make`]), or by a device itself.
pub fn of_config(name: &str, config: ModelConfig, dtype: Dtype) -> Checkpoint {
    let ModelConfig { dim, layers, ffn_dim, vocab, tied, .. } = config;
    let mut seed = 1;
    let mut tensors = BTreeMap::new();
    let mut random = |count, dtype| random(count, dtype, &mut seed);
    let mut add = |weight, shape: &[usize]| {
        let count: usize = shape.iter().product();
        let tensor = match (dtype, shape) {
            (Dtype::I8, [_, _]) => {
                let scales = random(count.div_ceil(DEFAULT_GROUP), Dtype::F32);
                let scales = Scales { bytes: scales, group: DEFAULT_GROUP };
                Tensor::int8(shape.to_vec(), random(count, dtype), scales)
            }
            // Norms are float32 there.
            (Dtype::I8, _) => Tensor::new(Dtype::F32, shape.to_vec(), random(count, Dtype::F32)),
            _ => Tensor::new(dtype, shape.to_vec(), random(count, dtype)),
        };
        tensors
            .insert(Naming::Meta.name(weight), tensor.unwrap_or_else(|| unreachable!("made for this shape")));
    };
    let (q, kv) = (config.q_dim(), config.kv_dim());
    add(Weight::Embedding, &[vocab, dim]);
    for layer in 0..layers {
        let layer = |weight| Weight::Layer(layer, weight);
        add(layer(L::AttnNorm), &[dim]);
        add(layer(L::Wq), &[q, dim]);
        add(layer(L::Wk), &[kv, dim]);
        add(layer(L::Wv), &[kv, dim]);
        add(layer(L::Wo), &[dim, q]);
        add(layer(L::FfnNorm), &[dim]);
        add(layer(L::W1), &[ffn_dim, dim]);
        add(layer(L::W2), &[dim, ffn_dim]);
        add(layer(L::W3), &[ffn_dim, dim]);
    }
    add(Weight::FinalNorm, &[dim]);
    if !tied {
        add(Weight::Head, &[vocab, dim]);
    }
    Checkpoint {
        name: name.into(),
        format: Format::Random,
        path: None,
        config,
        eos: Vec::new(),
        notes: Notes::default(),
        tensors,
        unreadable: BTreeMap::new(),
        naming: Naming::Meta,
    }
}

/// Makes all of the weights, for what reads them here.
///
/// # Errors
/// [`Error::Interrupted`] where the process was asked to stop.
pub fn make(checkpoint: &Checkpoint) -> Result<()> {
    for (_, tensor) in checkpoint.tensors() {
        stop::check()?;
        let scales = tensor.scales().map(|scales| &scales.bytes);
        std::hint::black_box([tensor.bytes().first(), scales.and_then(|scales| scales.first())]);
    }
    // Of those that were made meanwhile a part may be missing.
    stop::check()
}

/// `count` values of magnitude 1/64 to 1/32 and random sign: small enough that a pass stays finite. `seed` goes on behind
/// them.
fn random(count: usize, dtype: Dtype, seed: &mut u64) -> Bytes {
    let (keep, set) = match dtype {
        Dtype::F32 => (0x807f_ffff_807f_ffff, 0x3c80_0000_3c80_0000),
        Dtype::F16 => (0x83ff_83ff_83ff_83ff, 0x2400_2400_2400_2400),
        Dtype::BF16 => (0x807f_807f_807f_807f, 0x3c80_3c80_3c80_3c80),
        Dtype::I8 => (u64::MAX, 0),
        blocks => unreachable!("random weights are not {blocks}"),
    };
    let length = count * dtype.block_bytes();
    let noise = Noise { seed: *seed, keep, set };
    *seed += length.div_ceil(8) as u64;
    Bytes::random(length, noise)
}
