//! Fuzzes the files beside a tokenizer's own file: tokenizer_config.json, special_tokens_map.json and
//! added_tokens.json. The input has all three, with a zero byte between them. They are read beside each kind of
//! tokenizer that a folder may have.
#![no_main]

use std::fs;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use llama_trace_fuzz::Folder;
use serde_json::{Value, json};

static FOLDERS: LazyLock<[(Folder, &str); 4]> = LazyLock::new(|| {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/tokenizers/folders.json");
    let fixtures = fs::read(path).expect("a fixture can be read");
    let fixtures: Value = serde_json::from_slice(&fixtures).expect("a fixture is right");
    let text = |key: &str| fixtures[key].to_string();
    let ranks = fixtures["ranks"].as_str().expect("a text").to_owned();
    let folder = |model_type: &str, name, file: Option<String>| {
        let folder = Folder::default();
        folder.put("config.json", json!({"model_type": model_type}).to_string().as_bytes());
        match file {
            Some(text) => folder.put(name, text.as_bytes()),
            None => folder.fixture("tokenizers/llama.model", name),
        }
        (folder, name)
    };
    [
        folder("llama", "tokenizer.json", Some(text("json"))),
        folder("qwen2", "tokenizer.json", Some(text("qwen"))),
        folder("llama", "tokenizer.model", Some(ranks)),
        folder("llama", "tokenizer.model", None),
    ]
});

fuzz_target!(|bytes: &[u8]| {
    let names = ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"];
    for (folder, tokenizer) in &*FOLDERS {
        let mut parts = bytes.split(|&byte| byte == 0);
        for name in names {
            match parts.next() {
                Some(part) if !part.is_empty() => folder.put(name, part),
                // Removes the file that an earlier input left.
                _ => _ = fs::remove_file(folder.path(name)),
            }
        }
        folder.tokenizer(tokenizer);
    }
});
