//! A checkpoint of random numbers in the shape of a known model, for measuring: nothing to download, and
//! the time of a pass does not depend on the values.

use std::collections::BTreeMap;

use super::names::{LayerWeight as L, Naming, Weight};
use super::{Checkpoint, Dtype, Format, Notes, Scales, Tensor};
use crate::config::{DEFAULT_GROUP, ModelConfig, Pairing, RopeScaling};
use crate::error::{Error, Result};
use crate::files::Bytes;
use crate::stop::{self, Stop};

/// Bytes that are made between two looks at the request to stop.
const PIECE: usize = 1 << 20;

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
        context: 8192,
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
    of_config(name, config, dtype)
}

/// Random weights of number type `dtype` for `config`, which has no biases and no norms of queries and keys.
///
/// # Errors
/// [`Error::Interrupted`] where the process was asked to stop.
pub fn of_config(name: &str, config: ModelConfig, dtype: Dtype) -> Result<Checkpoint> {
    let ModelConfig { dim, layers, ffn_dim, vocab, tied, .. } = config;
    let mut state = 1;
    let mut tensors = BTreeMap::new();
    let mut random = |count, dtype| random(count, dtype, &mut state, stop::process());
    let mut add = |weight, shape: &[usize]| {
        let count: usize = shape.iter().product();
        let tensor = match (dtype, shape) {
            (Dtype::I8, [_, _]) => {
                let scales = random(count.div_ceil(DEFAULT_GROUP), Dtype::F32)?;
                let scales = Scales { bytes: Bytes::owned(scales), group: DEFAULT_GROUP };
                Tensor::int8(shape.to_vec(), Bytes::owned(random(count, dtype)?), scales)
            }
            // Norms are float32 there.
            (Dtype::I8, _) => {
                Tensor::new(Dtype::F32, shape.to_vec(), Bytes::owned(random(count, Dtype::F32)?))
            }
            _ => Tensor::new(dtype, shape.to_vec(), Bytes::owned(random(count, dtype)?)),
        };
        tensors
            .insert(Naming::Meta.name(weight), tensor.unwrap_or_else(|| unreachable!("made for this shape")));
        Ok(())
    };
    let (q, kv) = (config.q_dim(), config.kv_dim());
    add(Weight::Embedding, &[vocab, dim])?;
    for layer in 0..layers {
        let layer = |weight| Weight::Layer(layer, weight);
        add(layer(L::AttnNorm), &[dim])?;
        add(layer(L::Wq), &[q, dim])?;
        add(layer(L::Wk), &[kv, dim])?;
        add(layer(L::Wv), &[kv, dim])?;
        add(layer(L::Wo), &[dim, q])?;
        add(layer(L::FfnNorm), &[dim])?;
        add(layer(L::W1), &[ffn_dim, dim])?;
        add(layer(L::W2), &[dim, ffn_dim])?;
        add(layer(L::W3), &[ffn_dim, dim])?;
    }
    add(Weight::FinalNorm, &[dim])?;
    if !tied {
        add(Weight::Head, &[vocab, dim])?;
    }
    Ok(Checkpoint {
        name: name.into(),
        format: Format::Random,
        path: None,
        config,
        eos: Vec::new(),
        notes: Notes::default(),
        tensors,
        unreadable: BTreeMap::new(),
        naming: Naming::Meta,
    })
}

/// `count` values of magnitude 1/64 to 1/32 and random sign: small enough that a pass stays finite.
fn random(count: usize, dtype: Dtype, state: &mut u64, stop: &Stop) -> Result<Vec<u8>> {
    let mut next = || {
        // xorshift64: fast, and good enough for numbers that nobody reads.
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    };
    let word = |bits: u64| match dtype {
        Dtype::F32 => (bits & 0x807f_ffff_807f_ffff) | 0x3c80_0000_3c80_0000,
        Dtype::F16 => (bits & 0x83ff_83ff_83ff_83ff) | 0x2400_2400_2400_2400,
        Dtype::BF16 => (bits & 0x807f_807f_807f_807f) | 0x3c80_3c80_3c80_3c80,
        Dtype::I8 => bits,
        blocks => unreachable!("random weights are not {blocks}"),
    };
    let length = count * dtype.block_bytes();
    let mut bytes = Vec::with_capacity(length.next_multiple_of(8));
    while bytes.len() < length {
        stop.check()?;
        for _ in 0..PIECE.min(length - bytes.len()).div_ceil(8) {
            bytes.extend_from_slice(&word(next()).to_le_bytes());
        }
    }
    bytes.truncate(length);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stop::tests::stops_at_every_look;

    #[test]
    fn a_large_tensor_of_random_numbers_stops_between_its_pieces() {
        let looks = stops_at_every_look("random numbers", 0, |stop| {
            let bytes = random(4 * PIECE + 3, Dtype::BF16, &mut 1, stop)?;
            assert_eq!(bytes.len(), 8 * PIECE + 6);
            Ok(())
        });
        assert_eq!(looks, 9);
    }
}
