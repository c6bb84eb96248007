//! Configurations as they are published (`fixtures/configuration/published.json`): each opens without a word, or is
//! refused for the field that is named there.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::fields::Source;
use super::hf_config;
use super::screen::{Notes, Screen};
use crate::error::Result;

/// What is made of one of them.
fn read(model: &Value) -> Result<Notes> {
    if let Some(config) = model.get("config") {
        return hf_config::model_config(&config.to_string(), "config.json", &[]).map(|(_, notes)| notes);
    }
    let (source, fields) = match model.get("params") {
        Some(params) => (Source::Meta, params),
        None => (Source::Gguf, &model["gguf"]),
    };
    let mut screen = Screen::new("a file", &[]);
    let fields = fields.as_object().unwrap().iter();
    screen.fields(&[source], "", fields.map(|(name, value)| (name.as_str(), value)))?;
    Ok(screen.notes)
}

#[test]
fn published_configurations_open_without_a_word_or_are_refused_by_name() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/configuration/published.json");
    let models: Vec<Value> = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    assert!(models.len() > 60);
    let mut wrong = Vec::new();
    for model in &models {
        let problem = match (read(model), model["refused"].as_str()) {
            (Ok(notes), None) => (notes != Notes::default()).then(|| notes.lines().join("; ")),
            (Ok(_), Some(field)) => Some(format!("opens, in spite of `{field}`")),
            (Err(error), None) => Some(error.to_string()),
            (Err(error), Some(field)) => {
                (!error.to_string().contains(&format!("`{field}`"))).then(|| error.to_string())
            }
        };
        wrong.extend(problem.map(|problem| format!("{}: {problem}", model["name"])));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
