//! `llama-trace check` as a user runs it.

use std::fs;

use serde_json::Value;

use super::{command, fixture, llama_trace, models, ok, stderr, stdout};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// The names of the lines in the report.
fn names(report: &Value) -> Vec<String> {
    report["checks"].as_array().unwrap().iter().map(|check| check["name"].as_str().unwrap().into()).collect()
}

/// Arbitrary ids may change if they are decoded and encoded again, but their text must stay the same. A tokenizer may
/// put a space before a text; this space is removed again.
#[test]
fn given_ids_pass_if_the_tokenizer_puts_a_space_before_texts() {
    let special = |id: usize, name: &str| {
        serde_json::json!({"id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    let file = serde_json::json!({"version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": {"type": "Prepend", "prepend": "▁"}, "pre_tokenizer": null,
        "post_processor": {"type": "TemplateProcessing", "pair": [],
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": false,
            "vocab": {"<unk>": 0, "<s>": 1, "</s>": 2, "▁": 3, "a": 4, "b": 5, "▁a": 6, "ab": 7},
            "merges": ["▁ a", "a b"]}});
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = folder.path().join("tokenizer.json");
    fs::write(&tokenizer, file.to_string()).unwrap();
    let (model, tokenizer) = (fixture("golden/gqa"), tokenizer.to_str().unwrap());
    for ids in ["1,5", "1,4,5", "1,3,5", "5"] {
        let args = ["check", "--model", model.to_str().unwrap(), "--tokenizer", tokenizer, "--ids", ids];
        let report = json(&ok(&llama_trace(args.into_iter().chain(["--format", "json"]))));
        let tokenizer = report["checks"].as_array().unwrap().last().unwrap();
        let said = (&tokenizer["name"], &tokenizer["ok"], &tokenizer["skipped"]);
        assert_eq!(said, (&"tokenizer".into(), &true.into(), &Value::Null), "{ids}");
    }
}

#[test]
fn every_check_is_in_text_and_json_and_passes_in_every_precision() {
    for precision in ["f32", "bf16", "q8"] {
        let output = llama_trace(["check", "--precision", precision, "--format", "json"]);
        let report = json(&ok(&output));
        assert!(stderr(&output).is_empty(), "{}", stderr(&output));
        let keys: Vec<_> = report.as_object().unwrap().keys().cloned().collect();
        assert_eq!(keys, ["ok", "model", "backend", "precision", "checks"]);
        let said = (&report["ok"], &report["backend"], &report["precision"]);
        assert_eq!(said, (&true.into(), &"cpu".into(), &precision.into()));
        let all = names(&report);
        let kernels = all.iter().filter(|name| name.starts_with("kernel:")).count();
        assert!(kernels > 0 && all.contains(&"kernel:portable".to_owned()), "{all:?}");
        let mut others = all.clone();
        others.retain(|name| !name.starts_with("kernel:"));
        assert_eq!(others, ["recorded", "derived", "threads", "float64", "batch", "tokenizer"]);
        for check in report["checks"].as_array().unwrap() {
            let keys: Vec<_> = check.as_object().unwrap().keys().cloned().collect();
            assert_eq!(keys, ["name", "ok", "skipped", "worst", "bound", "at"], "{check}");
            assert!(check["worst"].as_f64().unwrap() <= check["bound"].as_f64().unwrap(), "{check}");
            assert!(check["ok"] == true && check["skipped"].is_null(), "{check}");
        }
        let table = ok(&llama_trace(["check", "--precision", precision]));
        assert_eq!(table.lines().filter(|line| line.starts_with("ok ")).count(), all.len(), "{table}");
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
        assert!(
            table.contains("at least 256 per matrix (--full: all)") && table.ends_with("passes.\n"),
            "{table}"
        );
    }
    let full = ok(&llama_trace(["check", "--full"]));
    assert!(full.contains("all 6144 rows of the matrices"), "{full}");
}

#[test]
fn every_format_is_checked_and_impossible_checks_are_skipped_with_a_reason() {
    for path in [
        "formats/hf/f32",
        "formats/meta/single",
        "formats/gguf/k_blocks.gguf",
        "formats/llama2c/v2.bin",
        "golden/mistral",
    ] {
        let model = fixture(path);
        let output = command(["check", "--format", "json", "--model"]).arg(model).output().unwrap();
        let report = json(&ok(&output));
        let tokenizer = report["checks"].as_array().unwrap().last().unwrap();
        let reason = if path.contains("gguf") { Value::Null } else { "the model has no tokenizer".into() };
        assert_eq!((&tokenizer["ok"], &tokenizer["skipped"]), (&true.into(), &reason), "{path}");
    }
}

#[test]
fn nan_fails_the_check_with_exit_code_1_and_its_address() {
    let folder = models::golden("gqa", |tensors| {
        let name = "model.layers.1.mlp.up_proj.weight";
        let bytes = &mut tensors.get_mut(name).unwrap().1;
        bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    let check = |more: &[&str]| command(["check", "--model"]).arg(folder.path()).args(more).output().unwrap();
    let output = check(&["--format", "json"]);
    assert_eq!(output.status.code(), Some(1));
    let report = json(&stdout(&output));
    let line = report["checks"].as_array().unwrap().iter().find(|check| check["name"] == "float64").unwrap();
    assert_eq!((&report["ok"], &line["ok"], &line["worst"]), (&false.into(), &false.into(), &"nan".into()));
    assert_eq!(line["at"], "p0/L1/ffn_up[t=0,f=0]");
    let said = stderr(&output);
    assert!(said.contains("the check `float64` fails") && said.contains("p0/L1/ffn_up[t=0,f=0]"), "{said}");
    let table = check(&[]);
    assert_eq!(table.status.code(), Some(1));
    assert!(stdout(&table).contains("FAIL  each stage = float64"), "{}", stdout(&table));
}

#[test]
fn missing_prompts_ids_kernels_and_devices_are_refused() {
    let bare = fixture("golden/gqa");
    let bare = bare.to_str().unwrap();
    for (args, code, text) in [
        (&["check", "--prompt", "a", "--ids", "1"][..], 2, "cannot be used with"),
        (&["check", "--device", "gpu"], 2, "cpu"),
        (&["check", "--cpu-kernel", "none"], 2, "no such kernel"),
        (&["check", "--ids", "999999"], 4, "outside the model's vocabulary"),
        (&["check", "--ids", ""], 4, "no tokens"),
        (&["check", "--model", bare, "--prompt", "a"], 4, "no tokenizer"),
        (&["check", "--model", "/nowhere"], 3, "/nowhere"),
    ] {
        let output = llama_trace(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(text), "{args:?}: {}", stderr(&output));
    }
    ok(&llama_trace(["check", "--ids", "5"]));
    ok(&llama_trace(["check", "--prompt", "Once upon", "--threads", "1", "--cache-dtype", "f16"]));
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_a_check() {
    use super::stop::{end, interrupt};
    use std::process::Stdio;
    use std::time::Duration;
    let folder = tempfile::tempdir().unwrap();
    models::zeros(folder.path(), [16, 512, 2048, 8, 300]);
    let ids = folder.path().join("ids.txt");
    fs::write(&ids, "1 ".repeat(1000)).unwrap();
    let child = command(["check", "--full", "--ids"])
        .arg(format!("@{}", ids.display()))
        .arg("--model")
        .arg(folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.unwrap();
    // Interrupts the command once. To interrupt each of its runs and recomputations would take minutes.
    std::thread::sleep(Duration::from_secs(4));
    assert!(child.try_wait().unwrap().is_none(), "the check is not long enough for this test");
    interrupt(&child);
    assert!(end(child).contains("interrupted"));
}
