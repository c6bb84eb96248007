//! llama2.c's `.bin` files of versions 0, 1 and 2: a header of numbers, then arrays without names. Each weight is
//! stored for all layers before the next weight.
//!
//! Version 0 begins with seven little-endian int32 and has no magic number. Its arrays have the order of
//! `memory_map_weights` in llama2.c's run.c. Version 1 begins with the magic number "ak42" and the version. The seven
//! numbers follow, then a byte that says whether the head is the embedding table, and zeros up to byte 256. Its arrays
//! have the order of `version1_export` in export.py. Version 2 begins like version 1, and has the group size of the
//! int8 values after the byte for the head. Its norms are float32. Every matrix is stored as int8 values, followed by
//! one float32 scale for each group. Groups continue from row to row. No version contains θ or ε.
//!
//! The header determines the exact size of the file. The size is the only thing that is checked about the arrays.

use std::path::Path;

use super::names::LayerWeight as L;
use super::screen::Screen;
use super::{Checkpoint, Format, Naming, Notes, Weight};
use crate::files::magic;
use llama_trace_core::config::{ModelConfig, Pairing};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::tensor::Bytes;
use llama_trace_core::tensor::{Dtype, Scales, Tensor};

/// The header size of version 0 in bytes.
const HEADER: usize = 7 * 4;
/// The header size of versions 1 and 2 in bytes.
const HEADER_1: usize = 256;
/// The first bytes of version 1: 0x616b3432, "ak42", and the version, both little-endian.
const MAGIC_1: &[u8] = b"24ka\x01\0\0\0";
/// The first bytes of version 2.
const MAGIC_2: &[u8] = b"24ka\x02\0\0\0";
/// The maximum number of layers. In memory, every layer takes a table entry for each of its weights. For a file of many
/// tiny layers, this would be too much. The deepest Llama has 126.
const MAX_LAYERS: usize = 4096;
const READ_HERE: &str =
    "a llama2.c .bin of version 0, 1 or 2, a GGUF file, or a directory in Hugging Face's or Meta's layout";

/// Opens the `.bin` file at `path` with the contents `bytes`. Its header has no named fields, so none can be ignored.
///
/// # Errors
/// Returns [`Error::Model`] if the file is of another kind, or if its size does not match its header.
pub(super) fn open(bytes: &Bytes, path: &Path, ignore: &[String]) -> Result<Checkpoint> {
    let place = path.display().to_string();
    let (config, tensors) = parse(bytes, &place)?;
    if let Some(name) = ignore.first() {
        return Err(Screen::new(&place, ignore).no_such_field(name, std::iter::empty()));
    }
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    Ok(Checkpoint {
        name,
        format: Format::Llama2c { version: version(bytes) },
        path: Some(path.into()),
        built_in: None,
        config,
        // run.c stops at 1 (BOS), which separates the stories in the training data; 2 is </s>.
        eos: vec![1, 2],
        notes: Notes::default(),
        tensors: tensors.into_iter().map(|(weight, tensor)| (Naming::Meta.name(weight), tensor)).collect(),
        unreadable: Default::default(),
        naming: Naming::Meta,
    })
}

fn version(bytes: &[u8]) -> u32 {
    match bytes {
        bytes if bytes.starts_with(MAGIC_1) => 1,
        bytes if bytes.starts_with(MAGIC_2) => 2,
        _ => 0,
    }
}

/// The configuration and the tensors of a whole `.bin` file.
fn parse(bytes: &Bytes, place: &str) -> Result<(ModelConfig, Vec<(Weight, Tensor)>)> {
    let version = version(bytes);
    if let Some(kind) = magic::recognise(bytes).filter(|_| version == 0) {
        let next = match kind {
            "a safetensors file" | "a JSON file" => "give the directory of the file",
            _ => "give a model in one of the forms above",
        };
        return Err(Error::model(format!("this file is {kind}, which is not supported"))
            .at(place)
            .expected(READ_HERE)
            .next(next));
    }
    let (config, group, header, tables) = match version {
        0 => {
            let config = read_header(bytes, place)?;
            let tables = layout(&config);
            (config, None, HEADER, tables)
        }
        _ => {
            let (config, group) = read_header_1(bytes, version == 2, place)?;
            let tables = layout_1(&config);
            (config, group, HEADER_1, tables)
        }
    };
    let expected = header as u128 + tables.iter().map(|table| table.size(group)).sum::<u128>();
    if expected != bytes.len() as u128 {
        let ModelConfig { dim, layers, heads, kv_heads, ffn_dim, vocab, context, .. } = config;
        let sizes = format!(
            "dim {dim}, hidden {ffn_dim}, {layers} layers, {heads} heads, {kv_heads} kv heads, vocabulary {vocab}, \
             context {context}{}",
            group.map_or(String::new(), |group| format!(", groups of {group}"))
        );
        return Err(Error::model("the file's size does not match its header")
            .at(place)
            .expected(format!("{expected} bytes for {sizes}"))
            .found(format!("{} bytes", bytes.len()))
            .next(format!("fetch the file again, or check that it is {READ_HERE}")));
    }
    let mut tensors = Vec::new();
    let mut offset = header;
    for table in tables {
        let count = table.shape.iter().product::<usize>();
        for layer in 0..table.copies {
            let mut take = |size: usize| {
                let part = bytes.slice(offset..offset + size);
                offset += size;
                part
            };
            let tensor = match group.filter(|_| table.shape.len() == 2) {
                Some(group) => take(count).and_then(|values| {
                    let scales = Scales { bytes: take(4 * count.div_ceil(group))?, group };
                    Tensor::int8(table.shape.clone(), values, scales)
                }),
                None => take(4 * count).and_then(|bytes| Tensor::new(Dtype::F32, table.shape.clone(), bytes)),
            };
            let tensor =
                tensor.ok_or_else(|| Error::model("the file's arrays reach past its end").at(place))?;
            match table.role {
                Role::Layer(weight) => tensors.push((Weight::Layer(layer, weight), tensor)),
                Role::Whole(weight) => tensors.push((weight, tensor)),
                Role::Skipped => {}
            }
        }
    }
    Ok((config, tensors))
}

fn no_header(place: &str, found: String) -> Error {
    Error::model("the file is not in a supported format")
        .at(place)
        .expected(READ_HERE)
        .found(found)
        .next("check that this is the path of a model; if it is, fetch the file again")
}

/// The header of versions 1 and 2: magic and version, the seven numbers, whether the head is shared, and in version 2
/// the group size.
fn read_header_1(bytes: &[u8], quantized: bool, place: &str) -> Result<(ModelConfig, Option<usize>)> {
    let version = if quantized { 2 } else { 1 };
    let Some(header) = bytes.first_chunk::<HEADER_1>() else {
        return Err(no_header(
            place,
            format!("{} bytes, less than a header of version {version}", bytes.len()),
        ));
    };
    let (numbers, flags) = header[MAGIC_1.len()..].split_at(HEADER);
    let shared = flags[0];
    if shared > 1 {
        return Err(no_header(place, format!("{shared} in the byte that says whether the head is shared")));
    }
    let config = read_header(numbers, place)?;
    if !config.tied {
        return Err(no_header(
            place,
            format!(
                "the vocabulary size -{} (only version 0 may have a negative size, and this is version {version})",
                config.vocab
            ),
        ));
    }
    let group = match quantized {
        false => None,
        true => {
            let number = i32::from_le_bytes([flags[1], flags[2], flags[3], flags[4]]);
            let group = usize::try_from(number).ok().filter(|group| *group > 0);
            Some(group.ok_or_else(|| no_header(place, format!("a group size of {number} values")))?)
        }
    };
    Ok((ModelConfig { tied: shared == 1, ..config }, group))
}

/// The seven numbers: dim, hidden_dim, n_layers, n_heads, n_kv_heads, ±vocab_size, seq_len. In version 0 the sign says
/// whether the head is shared.
fn read_header(bytes: &[u8], place: &str) -> Result<ModelConfig> {
    let wrong = |found: String| no_header(place, found);
    let Some(header) = bytes.first_chunk::<HEADER>() else {
        return Err(wrong(format!("{} bytes, less than a header", bytes.len())));
    };
    let mut numbers = [0_i32; 7];
    for (number, bytes) in numbers.iter_mut().zip(header.as_chunks::<4>().0) {
        *number = i32::from_le_bytes(*bytes);
    }
    let [dim, ffn_dim, layers, heads, kv_heads, vocab, context] = numbers;
    let sizes = [dim, ffn_dim, layers, heads, kv_heads, context];
    let layers_fit = usize::try_from(layers).is_ok_and(|layers| layers <= MAX_LAYERS);
    if sizes.iter().any(|&size| size < 1) || !layers_fit || dim % heads != 0 {
        return Err(wrong(format!("a header with the numbers {numbers:?}")));
    }
    let size = |number: i32| number.unsigned_abs() as usize;
    let config = ModelConfig {
        dim: size(dim),
        layers: size(layers),
        ffn_dim: size(ffn_dim),
        vocab: size(vocab),
        context: size(context),
        // Not in the file; these are the values of run.c.
        norm_eps: 1e-5,
        rope_theta: 10000.0,
        pairing: Pairing::Neighbours,
        tied: vocab > 0,
        ..ModelConfig::of_heads(size(heads), size(kv_heads), size(dim / heads))
    };
    config.check().map_err(|error| error.at(place))?;
    Ok(config)
}

/// Consecutive arrays of the same shape.
struct Table {
    role: Role,
    copies: usize,
    shape: Vec<usize>,
}

enum Role {
    Whole(Weight),
    Layer(L),
    /// cos and sin of RoPE's angles, which this program computes itself.
    Skipped,
}

impl Table {
    /// The size in bytes, with matrices in int8 if there is a group size. Each size is below 2^31 and at most three are
    /// multiplied, so u128 does not overflow.
    fn size(&self, group: Option<usize>) -> u128 {
        let values = self.shape.iter().fold(1, |product, &size| product * size as u128);
        let size = match group.filter(|_| self.shape.len() == 2) {
            Some(group) => values + 4 * values.div_ceil(group as u128),
            None => 4 * values,
        };
        self.copies as u128 * size
    }
}

impl Table {
    fn whole(weight: Weight, config: &ModelConfig) -> Self {
        Self { role: Role::Whole(weight), copies: 1, shape: weight.shape(config) }
    }

    fn each(weight: L, config: &ModelConfig) -> Self {
        let shape = Weight::Layer(0, weight).shape(config);
        Self { role: Role::Layer(weight), copies: config.layers, shape }
    }
}

/// The arrays of version 0, in order.
fn layout(config: &ModelConfig) -> Vec<Table> {
    let in_layers = [L::AttnNorm, L::Wq, L::Wk, L::Wv, L::Wo, L::FfnNorm, L::W1, L::W2, L::W3];
    let mut tables = vec![Table::whole(Weight::Embedding, config)];
    tables.extend(in_layers.map(|weight| Table::each(weight, config)));
    tables.push(Table::whole(Weight::FinalNorm, config));
    tables.push(Table { role: Role::Skipped, copies: 2, shape: vec![config.context, config.head_dim / 2] });
    tables.extend((!config.tied).then(|| Table::whole(Weight::Head, config)));
    tables
}

/// The arrays of versions 1 and 2, in order. The norms come first.
fn layout_1(config: &ModelConfig) -> Vec<Table> {
    let mut tables = vec![Table::each(L::AttnNorm, config), Table::each(L::FfnNorm, config)];
    tables.extend([Weight::FinalNorm, Weight::Embedding].map(|weight| Table::whole(weight, config)));
    let matrices = [L::Wq, L::Wk, L::Wv, L::Wo, L::W1, L::W2, L::W3];
    tables.extend(matrices.map(|weight| Table::each(weight, config)));
    tables.extend((!config.tied).then(|| Table::whole(Weight::Head, config)));
    tables
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A file whose float k has the value k: dim 4, hidden 6, 2 layers, 2 heads, 1 kv head, context 3.
    fn file(vocab: i32) -> Vec<u8> {
        let header = [4, 6, 2, 2, 1, vocab, 3];
        let rows = vocab.unsigned_abs() as usize;
        let layer = 4 + 16 + 8 + 8 + 16 + 4 + 24 + 24 + 24;
        let values = rows * 4 + 2 * layer + 4 + 2 * 3 + if vocab < 0 { rows * 4 } else { 0 };
        let mut bytes: Vec<u8> = header.iter().flat_map(|number: &i32| number.to_le_bytes()).collect();
        bytes.extend((0..values).flat_map(|k| (k as f32).to_le_bytes()));
        bytes
    }

    fn parse_vec(bytes: &[u8]) -> Result<(ModelConfig, Vec<(Weight, Tensor)>)> {
        // Leaked, because `Bytes` needs a static lifetime; a few kilobytes in a test.
        parse(&Bytes::Static(Box::leak(bytes.to_vec().into_boxed_slice())), "test.bin")
    }

    fn first(tensors: &[(Weight, Tensor)], wanted: Weight) -> f32 {
        let (_, tensor) = tensors.iter().find(|(weight, _)| *weight == wanted).unwrap();
        f32::from_le_bytes(*tensor.bytes().first_chunk().unwrap())
    }

    #[test]
    fn arrays_lie_weight_by_weight() {
        let (config, tensors) = parse_vec(&file(5)).unwrap();
        assert_eq!((config.head_dim, config.vocab, config.tied), (2, 5, true));
        assert_eq!(config.pairing, Pairing::Neighbours);
        assert_eq!(first(&tensors, Weight::Embedding), 0.0);
        assert_eq!(first(&tensors, Weight::Layer(0, L::AttnNorm)), 20.0);
        assert_eq!(first(&tensors, Weight::Layer(1, L::AttnNorm)), 24.0);
        assert_eq!(first(&tensors, Weight::Layer(0, L::Wq)), 28.0);
        assert_eq!(
            first(&tensors, Weight::Layer(1, L::W3)),
            (20 + 8 + 32 + 16 + 16 + 32 + 8 + 48 + 48 + 24) as f32
        );
        assert_eq!(first(&tensors, Weight::FinalNorm), (20 + 2 * 128) as f32);
        assert!(!tensors.iter().any(|(weight, _)| *weight == Weight::Head));
    }

    #[test]
    fn a_negative_vocabulary_has_a_head_after_the_skipped_tables() {
        let (config, tensors) = parse_vec(&file(-5)).unwrap();
        assert_eq!((config.vocab, config.tied), (5, false));
        assert_eq!(first(&tensors, Weight::Head), (20 + 2 * 128 + 4 + 6) as f32);
    }

    /// The same model in version 1.
    fn file_1(shared: u8) -> Vec<u8> {
        let mut bytes = MAGIC_1.to_vec();
        bytes.extend([4, 6, 2, 2, 1, 5, 3].iter().flat_map(|number: &i32| number.to_le_bytes()));
        bytes.push(shared);
        bytes.resize(HEADER_1, 0);
        let values = 2 * 128 + 4 + 20 + if shared == 0 { 20 } else { 0 };
        bytes.extend((0..values).flat_map(|k| (k as f32).to_le_bytes()));
        bytes
    }

    #[test]
    fn version_1_has_the_norms_first() {
        let (config, tensors) = parse_vec(&file_1(1)).unwrap();
        assert_eq!((config.vocab, config.tied, config.ffn_dim, config.context), (5, true, 6, 3));
        assert_eq!(first(&tensors, Weight::Layer(1, L::AttnNorm)), 4.0);
        assert_eq!(first(&tensors, Weight::Layer(0, L::FfnNorm)), 8.0);
        assert_eq!(first(&tensors, Weight::FinalNorm), 16.0);
        assert_eq!(first(&tensors, Weight::Embedding), 20.0);
        assert_eq!(first(&tensors, Weight::Layer(0, L::Wq)), 40.0);
        assert_eq!(first(&tensors, Weight::Layer(1, L::W3)), (40 + 32 + 16 + 16 + 32 + 48 + 48 + 24) as f32);
        let (config, tensors) = parse_vec(&file_1(0)).unwrap();
        assert_eq!((config.tied, first(&tensors, Weight::Head)), (false, 280.0));
    }

    #[test]
    fn version_1_says_once_whether_the_head_is_shared() {
        assert!(parse_vec(&file_1(2)).unwrap_err().to_string().contains("shared"));
        let mut bytes = file_1(1);
        bytes[28..32].copy_from_slice(&(-5_i32).to_le_bytes());
        assert!(parse_vec(&bytes).unwrap_err().to_string().contains("size -5"));
    }

    /// The same model in version 2, with groups of 5: value k of a matrix is k, and so is scale k.
    fn file_2(group: i32) -> Vec<u8> {
        let mut bytes = file_1(1);
        bytes[..8].copy_from_slice(MAGIC_2);
        bytes[37..41].copy_from_slice(&group.to_le_bytes());
        bytes.truncate(HEADER_1 + 4 * 20);
        for (copies, count) in [(1, 20_u8), (2, 16), (2, 8), (2, 8), (2, 16), (2, 24), (2, 24), (2, 24)] {
            for _ in 0..copies {
                bytes.extend(0..count);
                bytes.extend((0..count.div_ceil(5)).flat_map(|k| f32::from(k).to_le_bytes()));
            }
        }
        bytes
    }

    #[test]
    fn version_2_has_a_scale_for_every_group_after_each_matrix() {
        let (config, tensors) = parse_vec(&file_2(5)).unwrap();
        assert_eq!((config.vocab, config.tied, config.ffn_dim), (5, true, 6));
        assert_eq!(first(&tensors, Weight::FinalNorm), 16.0);
        let (_, wq) = tensors.iter().find(|(weight, _)| *weight == Weight::Layer(1, L::Wq)).unwrap();
        assert_eq!((wq.dtype(), wq.shape(), wq.bytes()[15]), (Dtype::I8, &[4, 4][..], 15));
        let scales = wq.scales().unwrap();
        assert_eq!((scales.group, scales.bytes.len()), (5, 4 * 4));
        assert_eq!(scales.bytes[12..], 3.0_f32.to_le_bytes());
    }

    #[test]
    fn a_group_has_at_least_one_value() {
        for group in [0, -32] {
            assert!(parse_vec(&file_2(group)).unwrap_err().to_string().contains("a group size of"));
        }
    }

    #[test]
    fn every_truncation_and_an_extra_byte_are_errors() {
        for mut bytes in [file(5), file_1(1), file_2(5)] {
            for length in 0..bytes.len() {
                parse_vec(&bytes[..length]).unwrap_err();
            }
            let size = bytes.len();
            bytes.push(0);
            let text = parse_vec(&bytes).unwrap_err().to_string();
            assert!(text.contains(&format!("expected: {size} bytes")), "{text}");
            assert!(text.contains(&format!("found: {} bytes", size + 1)), "{text}");
        }
    }

    #[test]
    fn absurd_headers_are_errors() {
        for at in 0..7 {
            for number in [0, -1, 3, i32::MIN, i32::MAX, 1 << 20, 1 << 30] {
                // Of these numbers, only the negative vocabulary size is valid, but then the file's size is wrong.
                let mut bytes = file(5);
                bytes[4 * at..4 * at + 4].copy_from_slice(&number.to_le_bytes());
                if number != 3 || at != 6 {
                    parse_vec(&bytes).unwrap_err();
                }
            }
        }
        let all = [i32::MAX; 7].iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>();
        parse_vec(&all).unwrap_err();
        // A large file of very small layers could claim a million of them.
        let deep = [2, 1, 1 << 20, 1, 1, 1, 1].iter().flat_map(|n: &i32| n.to_le_bytes()).collect::<Vec<_>>();
        assert!(parse_vec(&deep).unwrap_err().to_string().contains("not in a supported format"));
    }

    #[test]
    fn other_kinds_of_file_are_named() {
        let files: [(&[u8], &str); 3] = [
            (b"GGUF\x03\0\0\0", "a GGUF file"),
            (b"PK\x03\x04", "zip"),
            (b"\x20\0\0\0\0\0\0\0{", "a safetensors file"),
        ];
        for (bytes, part) in files {
            let text = parse_vec(bytes).unwrap_err().to_string();
            assert!(text.contains(part) && text.contains("version 0"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn mutated_headers_never_panic(at in 0_usize..HEADER + 9, byte: u8, cut in 0_usize..2000) {
            for mut bytes in [file(-5), file_1(0), file_2(5)] {
                bytes[at] = byte;
                let _ = parse_vec(&bytes);
                bytes.truncate(cut);
                let _ = parse_vec(&bytes);
            }
        }
    }
}
