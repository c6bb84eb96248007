//! Tokenizers with other files in the same folder, against transformers: see fixtures/tokenizers/folders.py.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::text_of;
use crate::common::{command, fixture, models, stderr, stdout};

/// Writes the files of a case to `folder`. Returns the path of the tokenizer's own file.
fn put(folder: &Path, fixtures: &Value, case: &Value) -> std::path::PathBuf {
    let write = |name: &str, value: &Value| fs::write(folder.join(name), value.to_string()).unwrap();
    write("config.json", &json!({"model_type": case["type"]}));
    for (name, key) in [
        ("tokenizer_config.json", "config"),
        ("special_tokens_map.json", "names"),
        ("added_tokens.json", "added"),
    ] {
        if let Some(value) = case["files"].get(key) {
            write(name, value);
        }
    }
    let source = case["source"].as_str().unwrap();
    let name = if matches!(source, "json" | "qwen") { "tokenizer.json" } else { "tokenizer.model" };
    match source {
        "json" | "qwen" => write(name, &fixtures[source]),
        "ranks" => fs::write(folder.join(name), fixtures["ranks"].as_str().unwrap()).unwrap(),
        _ => _ = fs::copy(fixture("tokenizers/llama.model"), folder.join(name)).unwrap(),
    }
    folder.join(name)
}

fn fixtures() -> Value {
    serde_json::from_str(&fs::read_to_string(fixture("tokenizers/folders.json")).unwrap()).unwrap()
}

#[test]
fn folders_are_read_as_transformers_reads_them() {
    let fixtures = fixtures();
    let mut wrong = Vec::new();
    for case in fixtures["cases"].as_array().unwrap() {
        let folder = tempfile::tempdir().unwrap();
        let path = put(folder.path(), &fixtures, case);
        let tokenizer =
            llama_trace::tokenizer::open(&path).unwrap_or_else(|error| panic!("{}: {error}", case["name"]));
        for (number, pair) in case["ids"].as_array().unwrap().iter().enumerate() {
            let text = pair[0].as_str().unwrap();
            let expected: Vec<u32> = serde_json::from_value(pair[1].clone()).unwrap();
            let ids = tokenizer.encode(text);
            if ids.as_ref().ok() != Some(&expected) {
                wrong.push(format!("{}: {text:?}: {ids:?}, not {expected:?}", case["name"]));
            }
            if let Some(shown) = case["shown"].get(number).and_then(Value::as_str)
                && text_of(&*tokenizer, &expected) != shown
            {
                let found = text_of(&*tokenizer, &expected);
                wrong.push(format!("{}: {expected:?} is {shown:?}, not {found:?}", case["name"]));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong[..wrong.len().min(60)].join("\n"));
}

/// A model with `rows` rows in its embedding table, and the tokenizer files of the case `name`.
fn model(rows: usize, name: &str) -> tempfile::TempDir {
    let fixtures = fixtures();
    let folder = models::golden("gqa", |tensors| {
        for name in ["model.embed_tokens.weight", "lm_head.weight"] {
            let (shape, bytes) = tensors.get_mut(name).unwrap();
            bytes.resize(rows * shape[1] * 4, 0);
            shape[0] = rows;
        }
    });
    let config = fs::read_to_string(folder.path().join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["vocab_size"] = rows.into();
    let case = fixtures["cases"].as_array().unwrap().iter().find(|case| case["name"] == name).unwrap();
    put(folder.path(), &fixtures, case);
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    folder
}

#[test]
fn info_reports_tokens_and_embedding_rows_that_do_not_match() {
    let folder = model(426, "json, Llama, decoder");
    let path = folder.path().join("tokenizer_config.json");
    let mut config: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    config["chat_template"] = "{{ '<|x|>' }}{{ '<|nothing|>' + messages[0]['content'] }}".into();
    fs::write(&path, config.to_string()).unwrap();
    let model = folder.path().to_str().unwrap();
    let output = command(["info", "--model", model]).output().unwrap();
    let text = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    for expected in [
        "LlamaTokenizer of transformers 5 reads it: with the file's vocabulary and merges, but without the file's rules for splitting texts",
        "the model has 426 ids, but the vocabulary has only 425 tokens: ids without a token (1)",
        "writes <|nothing|>, for which there is no token",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert!(!text.contains("<|x|>,"), "{text}");
    let output = command(["chat", "--model", model]).stdin(std::process::Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("the model has 426 ids") && stderr(&output).contains("<|nothing|>"));
}

/// A class with unsupported rules is named in a message, and CodeLlama's infilling is refused.
#[test]
fn a_tokenizer_class_with_unsupported_rules_is_named() {
    let folder = model(426, "json, Llama, decoder");
    let model = folder.path().to_str().unwrap();
    let declare = |class: &str| {
        fs::write(
            folder.path().join("tokenizer_config.json"),
            json!({"tokenizer_class": class, "chat_template": "a"}).to_string(),
        )
        .unwrap();
    };
    for class in [
        "GPTNeoXTokenizer",
        "WhisperTokenizerFast",
        "RobertaTokenizer",
        "PreTrainedTokenizerFast",
        "XYZTokenizer",
    ] {
        declare(class);
        let name = class.strip_suffix("Fast").unwrap_or(class);
        let named = !matches!(class, "PreTrainedTokenizerFast" | "XYZTokenizer");
        let output = command(["info", "--model", model]).output().unwrap();
        let text = stdout(&output);
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(
            text.contains(&format!("as {name}, but this program does not know the rules")),
            named,
            "{class}: {text}"
        );
        let output = command(["chat", "--model", model]).stdin(std::process::Stdio::null()).output().unwrap();
        let text = stderr(&output);
        assert_eq!(
            text.contains(&format!("as {name}, but this program does not know the rules")),
            named,
            "{class}: {text}"
        );
    }
    declare("CodeLlamaTokenizer");
    let path = folder.path().join("tokenizer.json");
    let output =
        command(["tokenize", "--tokenizer", path.to_str().unwrap(), "a<FILL_ME>b"]).output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    assert!(stderr(&output).contains("infilling"), "{}", stderr(&output));
}
