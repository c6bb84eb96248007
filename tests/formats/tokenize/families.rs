//! The kinds of tokenizers of families other than Llama (`fixtures/tokenizers/families.py`), read as transformers reads
//! them.

use std::fs;

use serde_json::Value;

use super::text_of;
use crate::common::fixture;

#[test]
fn tokenizers_of_the_families_are_read_as_by_transformers() {
    let text = fs::read_to_string(fixture("tokenizers/families.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert!(cases.len() >= 7);
    let mut wrong = Vec::new();
    for case in &cases {
        let folder = tempfile::tempdir().unwrap();
        for (name, value) in case["files"].as_object().unwrap() {
            fs::write(folder.path().join(name), value.to_string()).unwrap();
        }
        let tokenizer = llama_trace::tokenizer::open(&folder.path().join("tokenizer.json")).unwrap();
        let pairs = case["ids"].as_array().unwrap().iter().zip(case["shown"].as_array().unwrap());
        for (pair, shown) in pairs {
            let (text, ids): (String, Vec<u32>) = serde_json::from_value(pair.clone()).unwrap();
            let (found, back) = (tokenizer.encode(&text), text_of(&*tokenizer, &ids));
            if found.as_ref().ok() != Some(&ids) || back != shown.as_str().unwrap() {
                wrong.push(format!(
                    "{}: {text:?}: {found:?}, not {ids:?}; {back:?}, not {shown}",
                    case["name"]
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong[..wrong.len().min(40)].join("\n"));
}
