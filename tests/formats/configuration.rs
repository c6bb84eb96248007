//! Every field of a configuration that is obeyed, harmless or refused (`fixtures/configuration`). The test compares the
//! logits with transformers', or the bits with the unchanged model's, or expects an error that names the field.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use llama_trace::backend::cpu::Cpu;
use llama_trace::checkpoint;
use llama_trace::checkpoint::family::{Family, Means};
use llama_trace::checkpoint::fields::{Rule, Source, TABLE};
use llama_trace::model::Model;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::TOLERANCE;
use crate::common::logits::{bits, distance, logits};
use crate::common::models::{self, Tensors, edit_json};
use crate::common::{fixture, llama_trace, stderr, stdout};

/// Reads one of the files of cases: its content, the ids, and the cases.
pub(super) fn read(name: &str) -> (Value, Vec<u32>, Vec<Value>) {
    let path = fixture("configuration").join(name);
    let mut all: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let ids = all["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
    let Value::Array(cases) = all["cases"].take() else { panic!("{name} has no cases") };
    (all, ids, cases)
}

/// The cases of config.json.
fn cases() -> (Vec<u32>, Vec<Value>) {
    let (_, ids, cases) = read("cases.json");
    (ids, cases)
}

/// Asserts that each obeyed or refused field of `source` is set or removed in some case.
pub(super) fn every_field_is_tried(source: Source, cases: &[Value], prefixes: &[&str]) {
    for row in TABLE.iter().filter(|row| row.source == source && row.rule != Rule::Harmless) {
        for pattern in row.names {
            let is = |name: &str| {
                let name = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
                match pattern.strip_suffix('*') {
                    Some(start) => name.starts_with(start),
                    None => name == *pattern,
                }
            };
            let tried = cases.iter().any(|case| {
                let set = case["set"].as_object().unwrap().keys().map(String::as_str);
                set.chain(case["drop"].as_array().unwrap().iter().map(|name| name.as_str().unwrap())).any(is)
            });
            assert!(tried, "{source:?} {pattern} has no case");
        }
    }
}

/// A golden model with the changed fields of the case in its configuration.
fn folder(case: &Value) -> TempDir {
    let folder = models::golden(case["model"].as_str().unwrap(), |_| {});
    edit_json(&folder.path().join("config.json"), |config| {
        let config = config.as_object_mut().unwrap();
        for name in case["drop"].as_array().into_iter().flatten() {
            config.remove(name.as_str().unwrap()).unwrap();
        }
        config.extend(case["set"].as_object().unwrap().clone());
    });
    folder
}

/// Opens and runs the model at `path`. Returns the difference from the expectation of `case`, if there is one. `base`
/// has the bits of the logits of the unchanged model.
pub(super) fn problem(case: &Value, path: &Path, ids: &[u32], base: &[u32]) -> Option<String> {
    // The weights are loaded too, because a changed field may be refused only when the weights do not fit.
    let opened = checkpoint::open(path)
        .and_then(|checkpoint| Model::load(&checkpoint, Cpu::default()).map(|_| checkpoint));
    let problem = match (case["expected"].as_str().unwrap(), opened) {
        ("refused", Err(error)) => {
            let (text, name) = (error.to_string(), case["names"].as_str().unwrap());
            let first = text.lines().next().unwrap();
            let told = first.contains(&format!("`{name}`")) && text.contains("\n      next: ");
            (error.exit_code() != 3 || !told).then_some(text)
        }
        (expected, Err(error)) => Some(format!("{expected}, but {error}")),
        ("refused", Ok(_)) => Some("opened".into()),
        ("harmless", Ok(checkpoint)) => {
            (bits(&logits(&checkpoint, ids)) != base).then(|| "other bits".into())
        }
        (_, Ok(checkpoint)) => {
            let expected: Vec<f64> =
                case["logits"].as_array().unwrap().iter().map(|logit| logit.as_f64().unwrap()).collect();
            let found = logits(&checkpoint, ids);
            let error = distance(super::last(&found, checkpoint.config.vocab), &expected);
            (error.is_nan() || error > TOLERANCE).then(|| format!("relative L2 {error:e}"))
        }
    };
    let set = serde_json::to_string(&case["set"]).unwrap();
    problem.map(|problem| format!("{set} without {}: {}: {problem}", case["drop"], case["expected"]))
}

#[test]
fn each_field_is_obeyed_as_by_transformers_or_harmless_or_refused() {
    let (ids, cases) = cases();
    let base = |model: &str| {
        let checkpoint = checkpoint::open(&fixture(&format!("golden/{model}"))).unwrap();
        bits(&logits(&checkpoint, &ids))
    };
    let bases: BTreeMap<&str, Vec<u32>> = ["gqa", "mha_bias", "mistral", "qwen2", "qwen3"]
        .into_iter()
        .map(|model| (model, base(model)))
        .collect();
    let mut wrong = Vec::new();
    for case in &cases {
        let (folder, model) = (folder(case), case["model"].as_str().unwrap());
        wrong.extend(problem(case, folder.path(), &ids, &bases[model]));
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// Returns whether some case of `model` sets the field `name`, or removes it.
fn is_tried(model: Option<&str>, name: &str, cases: &[Value]) -> bool {
    cases.iter().filter(|case| model.is_none_or(|model| case["model"] == model)).any(|case| {
        case["set"].as_object().unwrap().contains_key(name)
            || case["drop"].as_array().unwrap().contains(&json!(name))
    })
}

/// Returns whether some case sets the field `name` of RoPE's parameters.
fn is_tried_in_rope(name: &str, cases: &[Value]) -> bool {
    let objects = || ["rope_parameters", "rope_scaling"].iter();
    let sets = |case: &Value| {
        objects().any(|outer| case["set"][*outer].as_object().is_some_and(|object| object.contains_key(name)))
    };
    cases.iter().any(sets)
}

#[test]
fn every_obeyed_field_has_a_case_and_every_refused_one_is_refused() {
    let (_, cases) = cases();
    for row in TABLE {
        for name in row.names {
            match (row.source, row.rule) {
                (Source::Meta | Source::Gguf | Source::Wrapper, _) | (_, Rule::Harmless) => {}
                (Source::Rope, _) => assert!(is_tried_in_rope(name, &cases), "{name} has no case"),
                (Source::HuggingFace, Rule::Refused(_) | Rule::Storage) => {
                    let name = name.replace('*', "x");
                    let case = json!({"model": "gqa", "set": {name.clone(): [["something"]]}});
                    let error = checkpoint::open(folder(&case).path()).unwrap_err().to_string();
                    assert!(error.contains(&format!("`{name}`")), "{error}");
                }
                (source, _) => assert!(is_tried(None, name, &cases), "{source:?} {name} has no case"),
            }
        }
    }
    // The fields of the other families are tried by their fixtures.
    for (kind, model) in [("llama", "gqa"), ("mistral", "mistral"), ("qwen2", "qwen2"), ("qwen3", "qwen3")] {
        let family = Family::of_type(kind).unwrap();
        for field in family.fields.iter().filter(|field| field.means != Means::Nothing) {
            // These fields are in every family. Only their defaults differ.
            let common = [Means::KvHeads, Means::HeadDim, Means::Context].contains(&field.means);
            let model = Some(model).filter(|_| !common);
            assert!(is_tried(model, field.name, &cases), "{kind} {} has no case", field.name);
        }
    }
}

fn args<'a>(command: &[&'a str], folder: &'a Path) -> Vec<&'a str> {
    [command, &["--model", folder.to_str().unwrap()]].concat()
}

#[test]
fn an_ignored_field_is_named_wherever_the_model_is_described() {
    let case = json!({"model": "gqa", "set": {"is_causal": false, "my_window": 3, "author": "x"}});
    let folder = folder(&case);
    let output = llama_trace(args(&["info"], folder.path()));
    assert_eq!(output.status.code(), Some(3));
    let message = stderr(&output);
    assert!(message.contains("next: ") && message.contains("--ignore-config is_causal"), "{message}");

    let ignore = ["--ignore-config", "is_causal", "--ignore-config", "my_window"];
    let output = llama_trace(args(&[&["info"], &ignore[..]].concat(), folder.path()));
    let (told, shown) = (stderr(&output), stdout(&output));
    for text in [&told, &shown] {
        assert!(text.contains("ignored by --ignore-config: `is_causal`, `my_window`"), "{text}");
        assert!(text.contains("nothing reads: `author`"), "{text}");
    }
    let out = folder.path().join("dump");
    let export = args(
        &[&["export", "--ids", "5,17,3", "--out", out.to_str().unwrap()], &ignore[..]].concat(),
        folder.path(),
    );
    let output = llama_trace(&export);
    assert!(output.status.success(), "{}", stderr(&output));
    let manifest: Value = serde_json::from_slice(&fs::read(out.join("manifest.json")).unwrap()).unwrap();
    assert_eq!(manifest["model"]["ignored_config"], json!(["is_causal", "my_window"]));
    // With the field ignored, the model computes the same as the unchanged model.
    let checkpoint =
        checkpoint::open_ignoring(folder.path(), &["is_causal".into(), "my_window".into()]).unwrap();
    let plain = checkpoint::open(&fixture("golden/gqa")).unwrap();
    assert_eq!(bits(&logits(&checkpoint, &[5, 17, 3])), bits(&logits(&plain, &[5, 17, 3])));
}

#[test]
fn ignoring_an_absent_or_harmless_field_is_an_error() {
    let refused = |model: &Path, name: &str, texts: &[&str]| {
        let output = llama_trace(args(&["info", "--ignore-config", name], model));
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(texts.iter().all(|text| message.contains(text)), "{message}");
    };
    let gqa = fixture("golden/gqa");
    refused(&gqa, "is_casual", &["does not have", "`is_casual`", "next: "]);
    refused(&gqa, "rope_thetta", &["did you mean `rope_parameters.rope_theta`"]);
    refused(&gqa, "use_cache", &["`use_cache` cannot be ignored"]);
    refused(&gqa, "rope_parameters.x", &["does not have"]);
    let stored = folder(&json!({"model": "gqa", "set": {"quantization_config": {"quant_method": "awq"}}}));
    refused(stored.path(), "quantization_config", &["how the weights are stored"]);
    let formats = fixture("formats");
    refused(&formats.join("llama2c/v1.bin"), "rope_theta", &["does not have"]);
    refused(&formats.join("gguf/f32.gguf"), "rope.freq_base", &["did you mean `llama.rope.freq_base`"]);
    refused(&formats.join("gguf/f32.gguf"), "general.architecture", &["does not have"]);
    refused(&formats.join("meta/single"), "nothing", &["does not have"]);
}

#[test]
fn unused_tensors_are_harmless_or_give_a_warning_or_are_refused() {
    let open = |name: &str| {
        let add = |tensors: &mut Tensors| {
            tensors.insert(name.into(), (vec![2], vec![0; 8]));
        };
        checkpoint::open(models::golden("gqa", add).path())
    };
    for harmless in
        ["model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq", "rope.freqs", "mask"]
    {
        assert_eq!(open(harmless).unwrap().notes, checkpoint::Notes::default(), "{harmless}");
    }
    for warned in
        ["v_head.summary.weight", "score.weight", "model.layers.3.self_attn.q_proj.weight", "mtp.fc.weight"]
    {
        let checkpoint = open(warned).unwrap();
        assert_eq!(checkpoint.notes.unread, [warned]);
        assert!(checkpoint.notes.lines()[0].contains(&format!("`{warned}`")));
    }
    for refused in [
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.0.mlp.down_proj.bias",
        "model.norm.bias",
        "lm_head.bias",
        "model.layers.1.self_attn.q_norm.weight",
        "model.layers.1.self_attn.sinks",
        "model.layers.0.self_attn.q_proj.weight_scale",
        "model.layers.0.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight",
        "model.layers.0.mlp.experts.0.down_proj.weight",
        "model.layers.0.post_feedforward_layernorm.weight",
        "model.embed_positions.weight",
    ] {
        let error = open(refused).unwrap_err();
        assert!(error.to_string().contains(&format!("`{refused}`")), "{error}");
        assert_eq!(error.exit_code(), 3);
    }
}
