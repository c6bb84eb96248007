//! Every field of a params.json that is obeyed, harmless or refused (`fixtures/configuration/params.json`), with Meta's
//! code as the reference.

use std::fs;
use std::path::Path;

use llama_trace::checkpoint;
use llama_trace::checkpoint::fields::Source;
use serde_json::Value;
use tempfile::TempDir;

use super::configuration::{every_field_is_tried, problem, read};
use crate::common::fixture;
use crate::common::logits::{bits, logits};

/// Writes the params.json of `all`, changed as in `case`.
fn write(folder: &Path, all: &Value, case: &Value) {
    let mut params = all["params"].as_object().unwrap().clone();
    for name in case["drop"].as_array().into_iter().flatten() {
        params.remove(name.as_str().unwrap()).unwrap();
    }
    params.extend(
        case["set"].as_object().into_iter().flatten().map(|(name, value)| (name.clone(), value.clone())),
    );
    fs::write(folder.join("params.json"), Value::from(params).to_string()).unwrap();
}

#[test]
fn each_params_field_is_obeyed_as_by_metas_code_or_harmless_or_refused() {
    let (all, ids, cases) = read("params.json");
    let folder = TempDir::new().unwrap();
    let weights = "consolidated.00.pth";
    fs::copy(fixture("formats/meta/single").join(weights), folder.path().join(weights)).unwrap();
    write(folder.path(), &all, &Value::Null);
    let base = bits(&logits(&checkpoint::open(folder.path()).unwrap(), &ids));
    let mut wrong = Vec::new();
    for case in &cases {
        write(folder.path(), &all, case);
        wrong.extend(problem(case, folder.path(), &ids, &base));
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn every_params_field_that_is_obeyed_or_refused_has_a_case() {
    every_field_is_tried(Source::Meta, &read("params.json").2, &[]);
}
