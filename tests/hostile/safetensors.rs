//! Safetensors files, single and in shards.

use std::fs;

use serde_json::json;

#[cfg(target_os = "linux")]
use super::child;
use super::common::models::{self, Tensors};
use super::common::{fixture, llama_trace};
use super::{Change, refused, run};

#[test]
fn a_safetensors_file_whose_size_contradicts_its_header_is_refused() {
    let model = models::golden("gqa", |_| {});
    let path = model.path().join("model.safetensors");
    let whole = fs::read(&path).unwrap();
    let size = whole.len();
    for (length, texts) in [
        (0, &["the file is empty", "0 bytes"][..]),
        (5, &["cut off", "found: 5 bytes"]),
        (8, &["cut off", "8 bytes"]),
        (100, &["cut off", "in a file of 100 bytes"]),
        (size / 2, &["cut off", "bytes, as its header says"]),
        (size - 1, &["cut off", &format!("expected: {size} bytes"), &format!("found: {} bytes", size - 1)]),
    ] {
        fs::write(&path, &whole[..length]).unwrap();
        refused(&run(model.path()), 3, &[&["model.safetensors"], texts].concat());
    }
    fs::write(&path, [&whole[..], b"more"].concat()).unwrap();
    let texts = [
        "after its last tensor",
        &format!("{size} bytes, as its header says"),
        &format!("found: {} bytes", size + 4),
    ];
    refused(&run(model.path()), 3, &texts);
    for length in [0, 1, 1 << 40, u64::MAX] {
        fs::write(&path, [&u64::to_le_bytes(length)[..], &whole[8..]].concat()).unwrap();
        refused(&run(model.path()), 3, &["model.safetensors", "header"]);
    }
}

#[test]
fn a_tensor_of_the_wrong_shape_is_refused() {
    let name = "model.layers.1.self_attn.k_proj.weight";
    let model = models::golden("gqa", |tensors| {
        tensors.get_mut(name).unwrap().0.reverse();
    });
    let (right, wrong) = (shape(name, |_| {}), shape(name, |shape| shape.reverse()));
    assert_ne!(right, wrong);
    refused(
        &run(model.path()),
        3,
        &[name, "wrong shape", &format!("expected: {right}"), &format!("found: {wrong}"), "key projection"],
    );
    // With the configuration of another model, every tensor is wrong.
    let model = models::golden("gqa", |_| {});
    models::edit_json(&model.path().join("config.json"), |config| config["intermediate_size"] = json!(24));
    refused(&run(model.path()), 3, &["mlp.gate_proj.weight", "[24, ", "configuration"]);
    models::edit_json(&model.path().join("config.json"), |config| {
        config["num_hidden_layers"] = json!(1_000_000);
    });
    refused(&run(model.path()), 3, &["mlp.gate_proj.weight", "wrong shape"]);
}

/// The shape of a tensor of the golden model, as messages write it.
fn shape(name: &str, change: impl Fn(&mut Vec<usize>)) -> String {
    let mut shape = models::tensors(&fixture("golden/gqa"))[name].0.clone();
    change(&mut shape);
    format!("{shape:?}")
}

#[test]
fn a_missing_tensor_is_named_with_the_ones_nearest_to_it() {
    let rename = |from: &'static str, to: &'static str| {
        move |tensors: &mut Tensors| {
            let tensor = tensors.remove(from).unwrap();
            tensors.insert(to.into(), tensor);
        }
    };
    let (from, to) = ("model.layers.0.mlp.down_proj.weight", "model.layers.0.mlp.downproj.weight");
    let model = models::golden("gqa", rename(from, to));
    let texts = [
        format!("no tensor `{from}`"),
        format!("found: nearest names: `{to}`, `model.layers.1.mlp.down_proj.weight`"),
    ];
    refused(&run(model.path()), 3, &[&texts[0], &texts[1], "down projection"]);

    let model = models::golden("gqa", |tensors| tensors.retain(|name, _| !name.contains("layers.1.")));
    refused(
        &run(model.path()),
        3,
        &["model.layers.1.input_layernorm.weight", "nearest names: `model.layers.0.input"],
    );
    let model = models::golden("gqa", Tensors::clear);
    refused(&run(model.path()), 3, &["found: no tensors at all"]);
    // If this name were printed unescaped, it would clear the screen.
    let model = models::golden("gqa", rename("model.norm.weight", "\x1b[2Jmodel.norm.weight"));
    refused(&run(model.path()), 3, &["`\\u{1b}[2Jmodel.norm.weight`"]);
}

#[test]
fn a_wrong_index_of_shards_is_refused() {
    let cases: &[Change<'_>] = &[
        (&|index| *index = json!(null), &["index of shards cannot be read", "weight_map"]),
        (
            &|index| index["weight_map"]["lm_head.weight"] = json!("no.safetensors"),
            &["`no.safetensors` is missing"],
        ),
        (
            &|index| index["weight_map"]["lm_head.weight"] = json!("../x"),
            &["outside the directory", "`../x`"],
        ),
        (
            &|index| index["weight_map"]["lm_head.weight"] = json!("/dev/zero"),
            &["outside the directory", "`/dev/zero`"],
        ),
        (&|index| index["weight_map"]["lm_head.weight"] = json!("."), &["outside the directory"]),
        (
            &|index| {
                let map = index["weight_map"].as_object_mut().unwrap();
                map.retain(|_, file| file == "a.safetensors");
            },
            &["no tensor `model.embed_tokens.weight`"],
        ),
    ];
    for (change, texts) in cases {
        let model = models::sharded();
        assert!(
            llama_trace(run(model.path())).status.success(),
            "the files are right before they are damaged"
        );
        models::edit_json(&model.path().join("model.safetensors.index.json"), change);
        refused(&run(model.path()), 3, texts);
    }
}

/// A file with the largest allowed header does not exceed the usual memory limit.
#[cfg(target_os = "linux")]
#[test]
fn files_of_many_and_of_long_names_stay_within_their_memory() {
    let limit = (8 << 20) - 20;
    let many = |entry: &dyn Fn(usize) -> String| {
        let mut text = String::from("{");
        for number in 0.. {
            let entry = entry(number);
            if text.len() + entry.len() + 2 > limit {
                break;
            }
            text += &entry;
            text.push(',');
        }
        text.pop();
        text + "}"
    };
    let empty = |name: &str| format!("\"{name}\":{{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}");
    let long = "x".repeat(limit - 100);
    for header in [many(&|number| empty(&number.to_string())), format!("{{{}}}", empty(&long))] {
        let model = models::golden("gqa", |_| {});
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
        fs::write(model.path().join("model.safetensors"), bytes).unwrap();
        let path = model.path().to_str().unwrap();
        for args in [&["info", "--model", path][..], &run(model.path())] {
            let end = child::run(args, &[model.path()]);
            assert_eq!(end.wrong(), None, "{args:?}");
        }
    }
    let model = models::sharded();
    let index =
        many(&|number| format!("\"{number}\":\"a.safetensors\"")).replacen('{', "{\"weight_map\":{", 1) + "}";
    fs::write(model.path().join("model.safetensors.index.json"), index).unwrap();
    let end = child::run(&run(model.path()), &[model.path()]);
    assert_eq!((end.wrong(), end.code), (None, Some(3)));
}
