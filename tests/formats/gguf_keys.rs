//! Every key of a GGUF file that is obeyed, harmless or refused (`fixtures/configuration/gguf.json`), with llama.cpp as
//! the reference.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use llama_trace::checkpoint;
use llama_trace::checkpoint::fields::Source;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::build::{Build, string};
use super::configuration::{every_field_is_tried, problem, read};
use crate::common::fixture;
use crate::common::logits::{bits, logits};

/// Returns the number that stands for the type `kind` in a GGUF file, and the bytes of the value.
fn value(kind: &str, value: &Value) -> (u32, Vec<u8>) {
    let whole = || value.as_i64().unwrap();
    match kind {
        "u32" => (4, (whole() as u32).to_le_bytes().into()),
        "i32" => (5, (whole() as i32).to_le_bytes().into()),
        "f32" => (6, (value.as_f64().unwrap() as f32).to_le_bytes().into()),
        "bool" => (7, vec![u8::from(value.as_bool().unwrap())]),
        "text" => (8, string(value.as_str().unwrap().as_bytes())),
        "u64" => (10, whole().to_le_bytes().into()),
        other => panic!("{other}"),
    }
}

fn key(build: Build, name: &str, typed: &Value) -> Build {
    let (kind, held) = (typed[0].as_str().unwrap(), &typed[1]);
    match kind.strip_prefix('[') {
        None => {
            let (number, bytes) = value(kind, held);
            build.raw(name, number, &bytes)
        }
        Some(kind) => {
            let kind = kind.strip_suffix(']').unwrap();
            let elements: Vec<_> = held.as_array().unwrap().iter().map(|held| value(kind, held)).collect();
            let bytes: Vec<u8> = elements.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
            build.list(name, elements[0].0, elements.len() as u64, &bytes)
        }
    }
}

/// Writes a GGUF file with the tensors of a file in `fixtures/formats/gguf`. Its keys are those of `all`, changed as in
/// `case`.
fn file(folder: &Path, all: &Value, case: &Value) -> PathBuf {
    let arch = case["model"].as_str().unwrap();
    let mut keys = all["keys"][arch].as_object().unwrap().clone();
    for name in case["drop"].as_array().unwrap() {
        keys.remove(name.as_str().unwrap()).unwrap();
    }
    keys.extend(case["set"].as_object().unwrap().clone());
    let build = Build::new().text("general.architecture", arch);
    let mut build = keys.iter().fold(build, |build, (name, typed)| key(build, name, typed));
    let plain = fixture("formats/gguf").join(all["files"][arch].as_str().unwrap());
    for (name, tensor) in checkpoint::open(&plain).unwrap().tensors() {
        build.data.resize(build.data.len().next_multiple_of(32), 0);
        let offset = build.data.len() as u64;
        build.data.extend_from_slice(tensor.bytes());
        let shape: Vec<u64> = tensor.shape().iter().rev().map(|&size| size as u64).collect();
        build = build.row(name, &shape, 0, offset);
    }
    let path = folder.join("model.gguf");
    fs::write(&path, build.bytes()).unwrap();
    path
}

#[test]
fn each_gguf_key_is_obeyed_as_by_llama_cpp_or_harmless_or_refused() {
    let (all, ids, cases) = read("gguf.json");
    let folder = TempDir::new().unwrap();
    let base = |arch: &str| {
        let path = file(folder.path(), &all, &json!({"model": arch, "set": {}, "drop": []}));
        bits(&logits(&checkpoint::open(&path).unwrap(), &ids))
    };
    let bases: BTreeMap<&str, Vec<u32>> = ["llama", "qwen3"].map(|arch| (arch, base(arch))).into();
    let mut wrong = Vec::new();
    for case in &cases {
        let path = file(folder.path(), &all, case);
        wrong.extend(problem(case, &path, &ids, &bases[case["model"].as_str().unwrap()]));
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn every_gguf_key_that_is_obeyed_or_refused_has_a_case() {
    every_field_is_tried(Source::Gguf, &read("gguf.json").2, &["llama.", "qwen3."]);
}
