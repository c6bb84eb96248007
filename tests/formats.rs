//! Model files and tokenizers. One model in every supported format (`fixtures/formats`) gives the same logits.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
#[path = "formats/configuration.rs"]
mod configuration;
#[path = "formats/gguf.rs"]
mod gguf;
#[path = "formats/gguf_keys.rs"]
mod gguf_keys;
#[path = "formats/layouts.rs"]
mod layouts;
#[path = "formats/meta.rs"]
mod meta;
#[path = "formats/params_fields.rs"]
mod params_fields;
#[path = "formats/published.rs"]
mod published;
#[path = "formats/tokenize.rs"]
mod tokenize;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use common::fixture;
use common::logits::{bits, distance, logits, logits_on};
use llama_trace::backend::cpu::Cpu;
use llama_trace::checkpoint::{self, Checkpoint};
use llama_trace::config::{Pairing, Precision, RopeScaling};
use llama_trace::files::gguf::build;
use llama_trace::tensor::Dtype;
use serde_json::Value;

/// Every form of the model: its path, and the expected description.
const FORMS: [(&str, &str); 13] = [
    ("hf/f32", "Hugging Face directory, 1 safetensors file"),
    ("hf/f16", "Hugging Face directory, 1 safetensors file"),
    ("hf/bf16", "Hugging Face directory, 1 safetensors file"),
    ("hf/sharded", "Hugging Face directory, 3 safetensors files"),
    ("meta/single", "Meta's checkpoint, 1 .pth file"),
    ("meta/by_vocab", "Meta's checkpoint, 2 model-parallel .pth files"),
    ("meta/by_dim", "Meta's checkpoint, 2 model-parallel .pth files"),
    ("llama2c/v0.bin", "llama2.c checkpoint, version 0"),
    ("llama2c/v1.bin", "llama2.c checkpoint, version 1"),
    ("gguf/f32.gguf", "GGUF v3, F32"),
    ("gguf/f16.gguf", "GGUF v3, F16"),
    ("gguf/bf16.gguf", "GGUF v3, BF16"),
    ("gguf/split-00001-of-00003.gguf", "GGUF v3, BF16, 3 files"),
];

/// The same model with the RoPE scaling of Llama 3.1. Each format states the scaling in another way.
const SCALED: [(&str, &str); 3] =
    [("hf/bf16", "config"), ("meta/single", "params"), ("gguf/scaled.gguf", "")];

/// The same model in int8, and the number of values that share a scale. A row has 32 or 64 values.
const INT8: [(&str, usize); 2] = [("v2", 32), ("v2_across", 48)];

/// The largest relative L2 distance between logits with another order of summation.
const TOLERANCE: f64 = 1e-5;

fn open(path: &str) -> Checkpoint {
    checkpoint::open(&fixture("formats").join(path)).unwrap()
}

fn json(path: &str) -> Value {
    serde_json::from_slice(&fs::read(fixture(path)).unwrap()).unwrap()
}

/// Ids, and the float64 logits of transformers after the last id.
fn expected(name: &str) -> (Vec<u32>, Vec<f64>) {
    let json = json("formats/expected.json");
    let list = |key: &str| json[key].as_array().unwrap().iter();
    (
        list("ids").map(|id| id.as_u64().unwrap() as u32).collect(),
        list(name).map(|logit| logit.as_f64().unwrap()).collect(),
    )
}

/// The logits of the prompt's last token. They are the last row but one, because the last row belongs to the sampled
/// token.
fn last(logits: &[f32], vocab: usize) -> &[f32] {
    let (prompt, _) = logits.split_at(logits.len() - vocab);
    &prompt[prompt.len() - vocab..]
}

/// The number type of all matrices. All must have the same.
fn dtype(checkpoint: &Checkpoint) -> Dtype {
    let matrices = checkpoint.tensors().filter(|(_, tensor)| tensor.shape().len() == 2);
    let dtypes: BTreeSet<_> = matrices.map(|(_, tensor)| tensor.dtype()).collect();
    assert_eq!(dtypes.len(), 1, "{}", checkpoint.format);
    dtypes.into_iter().next().unwrap()
}

#[test]
fn every_format_gives_the_same_logits() {
    let (ids, expected) = expected("logits");
    let first = logits(&open(FORMS[0].0), &ids);
    let mut alike: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (path, line) in FORMS {
        let checkpoint = open(path);
        assert_eq!(checkpoint.format.to_string(), line, "{path}");
        let found = logits(&checkpoint, &ids);
        let error = distance(last(&found, checkpoint.config.vocab), &expected);
        assert!(error <= TOLERANCE, "{path} and transformers: {error}");
        assert!(distance(&found, &first) <= TOLERANCE, "{path} and {}", FORMS[0].0);
        let kind = (dtype(&checkpoint), checkpoint.config.pairing == Pairing::Halves);
        alike.entry(kind).or_default().push((path, bits(&found)));
    }
    // With the same number type, pairing and kernel, all bits are equal.
    for (kind, forms) in &alike {
        for (path, bits) in forms {
            assert!(*bits == forms[0].1, "{kind:?}: {path} and {}", forms[0].0);
        }
    }
    let counts: Vec<_> = alike.iter().map(|(kind, forms)| (*kind, forms.len())).collect();
    let (f32, f16, bf16) = (Dtype::F32, Dtype::F16, Dtype::BF16);
    let expected = [
        ((f32, false), 3),
        ((f32, true), 1),
        ((f16, false), 1),
        ((f16, true), 1),
        ((bf16, false), 5),
        ((bf16, true), 2),
    ];
    assert_eq!(counts, expected);
}

#[test]
fn int8_logits_are_close_to_float32_and_equal_to_the_float64_reader() {
    let (ids, plain) = expected("logits");
    let expected = json("formats/llama2c/expected.json");
    for (name, group) in INT8 {
        let checkpoint = open(&format!("llama2c/{name}.bin"));
        assert_eq!(checkpoint.format.to_string(), "llama2.c checkpoint, version 2", "{name}");
        assert_eq!((checkpoint.group(), &checkpoint.config), (Some(group), &open("llama2c/v1.bin").config));
        let expected: Vec<f64> =
            expected[name].as_array().unwrap().iter().map(|logit| logit.as_f64().unwrap()).collect();
        let int8 = logits_on(Cpu::default().with_precision(Precision::Q8 { group }), &checkpoint, &ids);
        let error = distance(last(&int8, expected.len()), &expected);
        assert!(error <= TOLERANCE, "{name} and the float64 reading: {error}");
        for (arithmetic, found) in [("int8", int8), ("float32", logits(&checkpoint, &ids))] {
            let error = distance(last(&found, plain.len()), &plain);
            assert!((1e-4..0.05).contains(&error), "{name} in {arithmetic} and transformers: {error}");
        }
    }
}

#[test]
fn every_format_has_the_same_configuration() {
    let pairing = Pairing::Neighbours;
    let expected = llama_trace::config::ModelConfig { pairing, ..open(FORMS[0].0).config };
    for (path, _) in FORMS {
        let config = open(path).config;
        assert_eq!(config.pairing == Pairing::Halves, path.starts_with("hf/"), "{path}");
        assert_eq!(llama_trace::config::ModelConfig { pairing, ..config }, expected, "{path}");
    }
}

#[test]
fn a_wrong_pairing_changes_the_logits() {
    let (ids, expected) = expected("logits");
    for (path, _) in FORMS {
        let mut wrong = open(path);
        wrong.config.pairing = match wrong.config.pairing {
            Pairing::Halves => Pairing::Neighbours,
            Pairing::Neighbours => Pairing::Halves,
        };
        let found = logits(&wrong, &ids);
        assert!(distance(last(&found, wrong.config.vocab), &expected) > 1e-2, "{path}");
    }
}

#[test]
fn every_format_scales_rope_in_the_same_way() {
    let (ids, expected) = expected("scaled_logits");
    for (path, settings) in SCALED {
        let folder = tempfile::tempdir().unwrap();
        let from = fixture("formats").join(path);
        let scaled = if settings.is_empty() {
            checkpoint::open(&from).unwrap()
        } else {
            copy(&from, folder.path());
            let [here, there] = ["scaled.json", "json"].map(|ending| format!("{settings}.{ending}"));
            fs::rename(folder.path().join(here), folder.path().join(there)).unwrap();
            checkpoint::open(folder.path()).unwrap()
        };
        let error = |checkpoint: &Checkpoint| {
            distance(last(&logits(checkpoint, &ids), checkpoint.config.vocab), &expected)
        };
        assert_ne!(scaled.config.rope_scaling, RopeScaling::None, "{path}");
        assert!(error(&scaled) <= TOLERANCE, "{path}: {}", error(&scaled));
        let mut wrong = scaled;
        wrong.config.rope_scaling = RopeScaling::None;
        assert!(error(&wrong) > 10.0 * TOLERANCE, "{path}: {}", error(&wrong));
    }
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

#[test]
fn a_qwen3_is_the_same_in_gguf() {
    let [gguf, hugging_face] =
        ["formats/gguf/qwen3.gguf", "golden/qwen3"].map(|path| checkpoint::open(&fixture(path)).unwrap());
    assert_eq!(gguf.format.to_string(), "GGUF v3, F32");
    assert_eq!(gguf.config, hugging_face.config);
    let ids = [1, 46, 7, 23, 0, 9, 31, 31, 5];
    let expected = logits(&hugging_face, &ids);
    assert_eq!(bits(&logits(&gguf, &ids)), bits(&expected));
    let mut wrong = gguf;
    wrong.config.qk_norm = false;
    assert!(distance(&logits(&wrong, &ids), &expected) > 1e-2);
}
