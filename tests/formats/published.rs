//! Published configurations (`fixtures/configuration/published.json`). Each one opens without a message, or is refused
//! because of the field that the file names. There is one exception: a message about the class, if the class is not a
//! language model.

use std::fs;
use std::path::PathBuf;

use llama_trace::checkpoint::{self, Notes};
use serde_json::Value;
use tempfile::TempDir;

use super::build::Build;
use crate::common::{fixture, models};

/// Writes a model with exactly this configuration, and returns its path. The model has only a few tensors, and their
/// sizes do not fit the configuration. This is an error only when a tensor is read, and the test reads none.
fn write(model: &Value) -> (TempDir, PathBuf) {
    if let Some(config) = model.get("config") {
        let folder = models::golden("gqa", |tensors| tensors.retain(|name, _| name == "model.norm.weight"));
        fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let path = folder.path().into();
        return (folder, path);
    }
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    if let Some(params) = model.get("params") {
        fs::write(path("params.json"), params.to_string()).unwrap();
        fs::copy(fixture("formats/meta/single/consolidated.00.pth"), path("consolidated.00.pth")).unwrap();
        let path = folder.path().into();
        return (folder, path);
    }
    let fields = model["gguf"].as_object().unwrap();
    let arch = if model["name"].as_str().unwrap().contains("Qwen3") { "qwen3" } else { "llama" };
    let mut build = Build::new().text("general.architecture", arch);
    for (name, value) in fields {
        let name = format!("{arch}.{name}");
        build = match value {
            Value::String(text) => build.text(&name, text),
            Value::Bool(flag) => build.flag(&name, *flag),
            value if value.is_u64() => build.u32(&name, value.as_u64().unwrap() as u32),
            value => build.f32(&name, value.as_f64().unwrap() as f32),
        };
    }
    let layers = fields["block_count"].as_u64().unwrap();
    let build = (0..layers).fold(build.tensor("token_embd.weight", &[2, 4], 1.0), |build, layer| {
        build.tensor(&format!("blk.{layer}.attn_norm.weight"), &[4], 1.0)
    });
    let path = path("model.gguf");
    fs::write(&path, build.bytes()).unwrap();
    (folder, path)
}

#[test]
fn published_configurations_open_silently_or_are_refused_by_field() {
    let path = fixture("configuration/published.json");
    let models: Vec<Value> = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    assert!(models.len() > 60);
    let mut wrong = Vec::new();
    for model in &models {
        let (_folder, path) = write(model);
        let opened = checkpoint::open(&path);
        let problem = match (opened.map(|checkpoint| checkpoint.notes), model["refused"].as_str()) {
            (Ok(notes), None) => {
                let Notes { class, text_model_of, .. } = notes.clone();
                let said = class.as_ref().map(ToString::to_string).unwrap_or_default();
                let expected =
                    model["saved_as"].as_str().map(|class| format!("`{class}`, ")).unwrap_or_default();
                let right = said.starts_with(&expected) && said.is_empty() == expected.is_empty();
                // A model that also reads images is said to be one.
                let others = Notes { class, text_model_of, ..Notes::default() };
                (!right || notes != others).then(|| notes.lines().join("; "))
            }
            (Ok(_), Some(field)) => Some(format!("opens, in spite of `{field}`")),
            (Err(error), None) => Some(error.to_string()),
            (Err(error), Some(field)) => {
                let text = error.to_string();
                let named = [field.to_owned(), format!("llama.{field}")]
                    .iter()
                    .any(|name| text.contains(&format!("`{name}`")));
                (!named).then_some(text)
            }
        };
        wrong.extend(problem.map(|problem| format!("{}: {problem}", model["name"])));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
