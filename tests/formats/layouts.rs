//! Folders as users have them (`fixtures/layouts`): opened as transformers opens them, or refused with the reason.

use std::fs;

use llama_trace::checkpoint;

use super::common::logits::{distance, logits};
use super::common::{fixture, llama_trace, stderr, stdout};
use super::{TOLERANCE, json};

/// The description of a layout, and its notes.
const SAID: [(&str, &str, &[&str]); 13] = [
    ("bin", "1 PyTorch file", &[]),
    ("bin-float64", "1 PyTorch file", &["tensors of float64, rounded to float32: `lm_head.weight`"]),
    ("bin-module", "1 PyTorch file", &[]),
    ("bin-parameters", "1 PyTorch file", &[]),
    ("bin-protocol-4", "1 PyTorch file", &[]),
    ("bin-shards", "2 PyTorch files", &[]),
    ("bin-training", "1 PyTorch file", &[]),
    (
        "classifier-tied",
        "1 safetensors file",
        &["`LlamaForSequenceClassification`, a classifier of texts", "`score.weight`"],
    ),
    ("flat-tied", "1 safetensors file", &[]),
    ("flat-with-head", "1 safetensors file", &[]),
    ("model-twice", "1 safetensors file", &[]),
    ("not-a-number", "1 safetensors file", &["configuration that nothing reads: `loss`, `largest`, `least`"]),
    (
        "shards",
        "2 safetensors files",
        &["the index lists but no shard has: `mtp.fc.weight`", "in several shards"],
    ),
];

#[test]
fn layouts_have_the_logits_that_transformers_gives() {
    let expected = json("layouts/expected.json");
    let ids: Vec<u32> = serde_json::from_value(expected["ids"].clone()).unwrap();
    let with_logits = expected["logits"].as_object().unwrap().iter().filter(|(_, logits)| !logits.is_null());
    let names: Vec<&str> = with_logits.map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, SAID.map(|(name, ..)| name));
    for (name, format, notes) in SAID {
        let model = checkpoint::open(&fixture("layouts").join(name)).unwrap();
        assert_eq!(model.format.to_string(), format!("Hugging Face directory, {format}"), "{name}");
        let reference: Vec<f64> = serde_json::from_value(expected["logits"][name].clone()).unwrap();
        let found = distance(&logits(&model, &ids)[..reference.len()], &reference);
        assert!(found <= TOLERANCE, "{name}: {found:e}");
        let lines = model.notes.lines();
        assert_eq!(lines.is_empty(), notes.is_empty(), "{name}: {lines:?}");
        for note in notes {
            assert!(lines.iter().any(|line| line.contains(note)), "{name}: `{note}` is not in {lines:?}");
        }
    }
}

/// Any file of a model opens the folder that it is in.
#[test]
fn any_file_of_a_layout_opens_its_folder() {
    for file in [
        "bin/pytorch_model.bin",
        "bin/config.json",
        "bin-shards/pytorch_model.bin.index.json",
        "bin-shards/pytorch_model-00002-of-00002.bin",
        "shards/z.safetensors",
    ] {
        let path = fixture("layouts").join(file);
        let model = checkpoint::open(&path).unwrap();
        assert_eq!(model.path.as_deref(), path.parent(), "{file}");
    }
}

/// Asserts that `info` and a run refuse a layout with the same message, and that it contains each of `texts`.
fn refused(name: &str, texts: &[&str]) {
    let path = fixture("layouts").join(name);
    let path = path.to_str().unwrap();
    let [info, log] = [&["info"][..], &["log", "--ids", "1,2"]]
        .map(|args| llama_trace([args, &["--model", path]].concat()));
    let message = stderr(&log);
    for output in [&info, &log] {
        assert_eq!(
            (output.status.code(), stdout(output).as_str(), stderr(output)),
            (Some(3), "", message.clone()),
            "{name}"
        );
    }
    for text in texts.iter().chain(&["error: ", "expected: ", "found: ", "next: "]) {
        assert!(message.contains(text), "{name}: `{text}` is not in\n{message}");
    }
}

#[test]
fn a_model_without_an_output_head_is_refused_with_its_class() {
    let classifier = "the model has no output head: it was saved as `LlamaForSequenceClassification`, a classifier of texts";
    refused(
        "classifier",
        &[classifier, "found: `score.weight`", "open the language model that it was made from"],
    );
    let base = "the model has no output head: it was saved as `MistralModel`, a model without a head";
    refused("flat-without-head", &[base, "`lm_head.weight`", "random numbers"]);
}

#[test]
fn pickles_that_are_not_tensors_are_refused() {
    for name in ["refused-legacy", "refused-legacy-4"] {
        refused(name, &["before version 1.6", "pytorch_model.bin", "torch.save(torch.load("]);
    }
    refused("refused-call", &["asks for `os.system`, which is refused", "only what tensors need"]);
    refused("refused-module", &["asks for `torch.nn.modules.linear.Linear`, which is refused", "save_file"]);
}

/// Tests a folder that has only a pickle, and no configuration.
#[test]
fn a_pickle_without_a_configuration_asks_for_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pytorch_model.bin");
    fs::copy(fixture("layouts/bin/pytorch_model.bin"), &file).unwrap();
    for path in [folder.path(), &file] {
        let output = llama_trace(["info", "--model", path.to_str().unwrap()]);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(3), "{message}");
        assert!(message.contains("config.json") && message.contains("pytorch_model.bin"), "{message}");
    }
}

/// Opens folders that users reported as failing. They are next to the checkout.
#[test]
fn reported_folders_open() {
    let Some(flat) = super::common::data("foreign/flat-keys-qwen3-embedding") else { return };
    let model = checkpoint::open(&flat).unwrap();
    let found = logits(&model, &[1, 9, 270, 281]);
    let bytes = fs::read(flat.join("ref_logits.npy")).unwrap();
    let start = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let header = String::from_utf8_lossy(&bytes[10..start]).into_owned();
    assert!(header.contains("<f8"), "{header}");
    let reference: Vec<f64> =
        bytes[start..].as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
    let difference = distance(&found[..reference.len()], &reference);
    assert!(difference <= TOLERANCE, "{difference:e}");
    for name in ["index-extra-entry", "pytorch-bin"] {
        let Some(folder) = super::common::data(&format!("foreign/{name}")) else { return };
        logits(&checkpoint::open(&folder).unwrap(), &[1, 9, 270]);
    }
}

/// `info` opens no model that a run refuses. Each weight in turn is removed, renamed, or given another shape.
#[test]
fn info_and_a_run_refuse_the_same_models() {
    use super::common::models::{self, Tensors};
    let changes: [fn(&mut Tensors, &str); 3] = [
        |tensors, name| drop(tensors.remove(name)),
        |tensors, name| {
            let tensor = tensors.remove(name).unwrap();
            tensors.insert(format!("{name}s"), tensor);
        },
        |tensors, name| {
            let (shape, _) = tensors.get_mut(name).unwrap();
            shape.insert(0, 1);
        },
    ];
    for golden in ["qwen2", "tied_llama3"] {
        let names: Vec<String> = models::tensors(&fixture("golden").join(golden)).into_keys().collect();
        for (name, change) in names.iter().flat_map(|name| changes.map(|change| (name, change))) {
            let model = models::golden(golden, |tensors| change(tensors, name));
            let path = model.path().to_str().unwrap();
            let info = llama_trace(["info", "--model", path]);
            let log = llama_trace(["log", "--ids", "1", "-n", "1", "--model", path]);
            let words = [&info, &log].map(|output| (output.status.code(), stderr(output)));
            assert_eq!(words[0], words[1], "{golden} {name}");
            assert_eq!(words[0].0, Some(3), "{golden} {name}");
        }
    }
}
