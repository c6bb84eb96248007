//! A checkpoint of random numbers in the shape of a known model, for measurements. It needs no download, and the time
//! of a pass does not depend on the values.

use std::collections::BTreeMap;

use super::names::{LayerWeight as L, Naming, Weight};
use super::{Checkpoint, Format, Notes};
use llama_trace_core::config::{DEFAULT_GROUP, ModelConfig, Precision};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::stop;
use llama_trace_core::tensor::{Bytes, Noise};
use llama_trace_core::tensor::{Dtype, Scales, Tensor};

/// Name, D, layers, H, G, F, V, tied.
type Shape = (&'static str, usize, usize, usize, usize, usize, usize, bool);

/// The available shapes. Those of Llama are from Meta's params.json, those of the stories from llama2.c.
const SHAPES: &[Shape] = &[
    ("stories-15m", 288, 6, 6, 6, 768, 32_000, true),
    ("stories-110m", 768, 12, 12, 12, 2048, 32_000, true),
    ("tinyllama-1.1b", 2048, 22, 32, 4, 5632, 32_000, false),
    ("llama-3.2-1b", 2048, 16, 32, 8, 8192, 128_256, true),
    ("llama-3.2-3b", 3072, 28, 24, 8, 8192, 128_256, true),
    ("llama-2-7b", 4096, 32, 32, 32, 11_008, 32_000, false),
    ("llama-3.1-8b", 4096, 32, 32, 8, 14_336, 128_256, false),
];

/// The number types of random weights. If the matrices are not floats, vectors are float32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    /// Every matrix has this type.
    Of(Dtype),
    /// The mixture of types that llama.cpp writes as `Q4_K_M`.
    Q4KM,
}

impl From<Dtype> for Weights {
    fn from(dtype: Dtype) -> Self {
        Self::Of(dtype)
    }
}

impl Weights {
    /// The number type of the matrix `weight`.
    fn matrix(self, weight: Weight, config: &ModelConfig) -> Dtype {
        let more = match (self, weight) {
            (Self::Of(dtype), _) => return dtype,
            (Self::Q4KM, Weight::Layer(layer, L::Wv | L::W2)) => has_more_bits(layer, config.layers),
            (Self::Q4KM, Weight::Embedding) => config.tied,
            (Self::Q4KM, weight) => weight == Weight::Head,
        };
        if more { Dtype::Q6K } else { Dtype::Q4K }
    }

    /// The number type of vectors.
    fn vector(self) -> Dtype {
        match self {
            Self::Of(dtype) if dtype.is_float() => dtype,
            _ => Dtype::F32,
        }
    }
}

/// Returns whether `attn_v` and `ffn_down` of this layer are stored with more bits than the rest, by llama.cpp's
/// `use_more_bits`. This holds in the first and the last eighth of the layers, and in every third layer between.
fn has_more_bits(layer: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

/// Random weights of number types `weights` in the shape `name`.
///
/// # Errors
/// Returns [`Error::Usage`] if `name` is not a known shape (with the list of shapes), or if its rows do not consist of
/// whole blocks.
pub fn checkpoint(name: &str, weights: impl Into<Weights>) -> Result<Checkpoint> {
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
        ffn_dim,
        vocab,
        context: if name.starts_with("llama-3") { 131_072 } else { 8192 },
        norm_eps: 1e-5,
        rope_theta: 500_000.0,
        tied,
        ..ModelConfig::of_heads(heads, kv_heads, dim / heads)
    };
    let weights = weights.into();
    // The rows of all matrices have one of these widths.
    let block = weights.matrix(Weight::Embedding, &config).block();
    if let Some(width) = [dim, ffn_dim].into_iter().find(|width| !width.is_multiple_of(block)) {
        return Err(Error::usage("the rows of this shape's matrices cannot be cut into whole blocks")
            .expected(format!("rows whose length is a multiple of {block}"))
            .found(format!("rows of {width} values in {name}"))
            .next("give another number type with --weights, or another shape"));
    }
    Ok(of_config(name, config, weights))
}

/// Random weights of number types `weights` for `config`. They are generated when
/// they are first read ([`make`]), or by the device.
///
/// # Panics
/// Panics if a row does not consist of whole blocks.
pub fn of_config(name: &str, config: ModelConfig, weights: impl Into<Weights>) -> Checkpoint {
    let weights = weights.into();
    let ModelConfig { layers, tied, .. } = config;
    let mut seed = 1;
    let mut tensors = BTreeMap::new();
    let mut add = |weight, shape: &[usize]| {
        let dtype = if shape.len() == 2 { weights.matrix(weight, &config) } else { weights.vector() };
        tensors.insert(Naming::Meta.name(weight), tensor(dtype, shape, DEFAULT_GROUP, &mut seed));
    };
    let layers = (0..layers).flat_map(|layer| L::ALL.map(|weight| Weight::Layer(layer, weight)));
    let before = [Weight::Embedding].into_iter().chain(layers);
    let all = before.chain([Weight::FinalNorm, Weight::FinalNormBias]).chain((!tied).then_some(Weight::Head));
    for weight in all.filter(|weight| weight.is_in(&config)) {
        add(weight, &weight.shape(&config));
    }
    Checkpoint {
        name: name.into(),
        format: Format::Random,
        path: None,
        built_in: None,
        config,
        eos: Vec::new(),
        notes: Notes::default(),
        tensors,
        unreadable: BTreeMap::new(),
        naming: Naming::Meta,
    }
}

/// Random weights in the shapes and number types of `checkpoint`. Its own weights are not read. Matrices are int8 if
/// `precision` multiplies in int8.
pub fn like(checkpoint: &Checkpoint, precision: Precision) -> Checkpoint {
    let mut seed = 1;
    let mut like = |of: &Tensor| {
        let (shape, dtype, stored) = (of.shape(), of.dtype(), of.scales().map(|scales| scales.group));
        match precision {
            Precision::Q8 { group } if shape.len() == 2 && !(dtype.is_blocks() && group == DEFAULT_GROUP) => {
                tensor(Dtype::I8, shape, stored.unwrap_or(group), &mut seed)
            }
            _ => tensor(dtype, shape, stored.unwrap_or(DEFAULT_GROUP), &mut seed),
        }
    };
    let tensors = checkpoint.tensors.iter().map(|(name, tensor)| (name.clone(), like(tensor))).collect();
    Checkpoint {
        name: checkpoint.name.clone(),
        format: Format::Random,
        path: None,
        built_in: None,
        config: checkpoint.config.clone(),
        eos: Vec::new(),
        notes: Notes::default(),
        tensors,
        unreadable: BTreeMap::new(),
        naming: checkpoint.naming,
    }
}

/// A random tensor. The shape must be valid for the number type. If the values are int8, `group` of them share a scale.
pub fn tensor(dtype: Dtype, shape: &[usize], group: usize, seed: &mut u64) -> Tensor {
    let count: usize = shape.iter().product();
    let tensor = match dtype {
        Dtype::I8 => {
            let scales = Scales { bytes: random(count.div_ceil(group), Dtype::F32, seed), group };
            Tensor::int8(shape.to_vec(), random(count, Dtype::I8, seed), scales)
        }
        _ => Tensor::new(dtype, shape.to_vec(), random(count, dtype, seed)),
    };
    tensor.unwrap_or_else(|| unreachable!("the bytes have this shape"))
}

/// Generates all weights, for use on the host.
///
/// # Errors
/// Returns [`Error::Interrupted`] if the process was asked to stop.
pub fn make(checkpoint: &Checkpoint) -> Result<()> {
    for (_, tensor) in checkpoint.tensors() {
        stop::check()?;
        let scales = tensor.scales().map(|scales| &scales.bytes);
        std::hint::black_box([tensor.bytes().first(), scales.and_then(|scales| scales.first())]);
    }
    // After a request to stop, weights that were being generated may be incomplete.
    stop::check()
}

/// `count` values of number type `dtype`: floats of magnitude 1/64 to 1/32 with random sign, or integers with scales
/// that give about the same magnitude. The values in a pass therefore stay finite. `seed` is advanced past them.
fn random(count: usize, dtype: Dtype, seed: &mut u64) -> Bytes {
    let length = count / dtype.block() * dtype.block_bytes();
    let words = |keep, set| Noise::words(*seed, keep, set);
    // float16 scales, and the minima after them, have random signs and fractions.
    let scales = |at, keep: u64, set| Noise {
        seed: *seed,
        keep: if keep > 0xffff { keep | u64::MAX << 32 } else { keep | u64::MAX << 16 },
        set,
        block: dtype.block_bytes(),
        at,
    };
    let noise = match dtype {
        Dtype::F32 => words(0x807f_ffff_807f_ffff, 0x3c80_0000_3c80_0000),
        Dtype::F16 => words(0x83ff_83ff_83ff_83ff, 0x2400_2400_2400_2400),
        Dtype::BF16 => words(0x807f_807f_807f_807f, 0x3c80_3c80_3c80_3c80),
        Dtype::I8 => words(u64::MAX, 0),
        Dtype::Q8_0 | Dtype::Iq4Nl => scales(0, 0x83ff, 0x0c00),
        Dtype::Q4_0 => scales(0, 0x83ff, 0x1c00),
        Dtype::Q5_0 => scales(0, 0x83ff, 0x1800),
        Dtype::Q4_1 => scales(0, 0x83ff_83ff, 0x2400_1800),
        Dtype::Q5_1 => scales(0, 0x83ff_83ff, 0x2400_1400),
        Dtype::Q4K => scales(0, 0x83ff_83ff, 0x1000_0400),
        Dtype::Q5K => scales(0, 0x83ff_81ff, 0x1000_0200),
        Dtype::Q2K => scales(80, 0x83ff_83ff, 0x1800_1400),
        Dtype::Q3K => scales(108, 0x83ff, 0x1000),
        Dtype::Q6K => scales(208, 0x80ff, 0x0100),
        Dtype::Iq4Xs => scales(0, 0x80ff, 0x0100),
        // The scale is only an exponent: 2⁻⁸ or 2⁻⁷.
        Dtype::Mxfp4 => Noise { keep: u64::MAX << 8 | 1, set: 120, ..scales(0, 0, 0) },
    };
    *seed += length.div_ceil(8) as u64;
    Bytes::random(length, noise)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mixture_is_that_of_llama_cpp() {
        // This is half of the layers if a model has 16 or 32.
        let more = |layers| (0..layers).filter(|layer| has_more_bits(*layer, layers)).collect::<Vec<_>>();
        assert_eq!(more(16), [0, 1, 4, 7, 10, 13, 14, 15]);
        assert_eq!(more(32), [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]);
        let dtypes = |shape| {
            let checkpoint = checkpoint(shape, Weights::Q4KM).unwrap();
            let ModelConfig { dim, ffn_dim, vocab, .. } = checkpoint.config;
            let dtype = |weight, shape: &[usize]| checkpoint.tensor(weight, shape).unwrap().dtype();
            [
                dtype(Weight::Embedding, &[vocab, dim]),
                dtype(Weight::Head, &[vocab, dim]),
                dtype(Weight::FinalNorm, &[dim]),
                dtype(Weight::Layer(1, L::W2), &[dim, ffn_dim]),
                dtype(Weight::Layer(1, L::W1), &[ffn_dim, dim]),
                dtype(Weight::Layer(2, L::W2), &[dim, ffn_dim]),
            ]
        };
        use Dtype::{F32, Q4K, Q6K};
        assert_eq!(dtypes("llama-3.2-1b"), [Q6K, Q6K, F32, Q6K, Q4K, Q4K]);
        assert_eq!(dtypes("llama-3.1-8b"), [Q4K, Q6K, F32, Q6K, Q4K, Q6K]);
    }

    #[test]
    fn a_shape_whose_rows_are_no_whole_blocks_is_refused() {
        let error = checkpoint("stories-15m", Weights::Q4KM).unwrap_err().to_string();
        assert!(error.contains("a multiple of 256") && error.contains("288"), "{error}");
        assert!(checkpoint("stories-15m", Dtype::Q8_0).is_ok());
    }
}
