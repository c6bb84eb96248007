//! What a checkpoint says about chats: its template, and the names of the special tokens in it.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use super::files::read_text;
use super::names::printable;
use super::{Checkpoint, Format, builtin};
use crate::error::{Error, Result};

/// The largest template, or file with one, that is read. Templates have a few kilobytes; a
/// tokenizer_config.json that lists every special token has some hundred.
const MAX_TEMPLATE: u64 = 1 << 20;
const MAX_CONFIG: u64 = 16 << 20;

/// What the files beside the weights say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatFiles {
    /// The template's text, and where it lies.
    pub template: Option<(String, String)>,
    /// The special tokens that templates know by name: `bos_token`, `eos_token` and so on.
    pub tokens: BTreeMap<String, String>,
}

/// Reads the chat template that came with `checkpoint`: chat_template.jinja, or else `chat_template` in
/// tokenizer_config.json, which is a text or a list of named ones. Formats other than a Hugging Face
/// directory have none.
///
/// # Errors
/// [`Error::Model`] where a file is damaged, or has several templates and no `default`.
pub fn read(checkpoint: &Checkpoint) -> Result<ChatFiles> {
    match (&checkpoint.path, checkpoint.format) {
        (None, Format::HuggingFace { .. }) => {
            let config = (builtin::TOKENIZER_CONFIG, builtin::PLACE);
            let template = (builtin::CHAT_TEMPLATE.into(), builtin::PLACE.into());
            Ok(ChatFiles { template: Some(template), ..parse(config.0, config.1)? })
        }
        (Some(folder), Format::HuggingFace { .. }) => beside(folder),
        _ => Ok(ChatFiles::default()),
    }
}

fn beside(folder: &Path) -> Result<ChatFiles> {
    let [template, config] = ["chat_template.jinja", "tokenizer_config.json"].map(|name| folder.join(name));
    let mut files = match config.exists() {
        true => parse(&read_text(&config, MAX_CONFIG)?, &config.display().to_string())?,
        false => ChatFiles::default(),
    };
    if template.exists() {
        files.template = Some((read_text(&template, MAX_TEMPLATE)?, template.display().to_string()));
    }
    Ok(files)
}

/// The parts of the text of a tokenizer_config.json found at `place`.
fn parse(text: &str, place: &str) -> Result<ChatFiles> {
    let wrong = |expected: &str, found: String| {
        Error::model("the tokenizer's configuration cannot be read")
            .at(place)
            .expected(expected)
            .found(printable(&found))
            .next("fetch the file again, or put a chat_template.jinja beside the model")
    };
    let fields: Map<String, Value> =
        serde_json::from_str(text).map_err(|error| wrong("a JSON object", error.to_string()))?;
    let template = match fields.get("chat_template") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Array(list)) => {
            let named = |item: &Value| {
                Some((item["name"].as_str()?.to_owned(), item["template"].as_str()?.to_owned()))
            };
            let list: Option<Vec<_>> = list.iter().map(named).collect();
            let expected = "chat_template: a text, or a list of names and templates with one named `default`";
            let list = list.ok_or_else(|| wrong(expected, "a list of something else".into()))?;
            let names = list.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
            let default = list.iter().find(|(name, _)| name == "default");
            Some(default.ok_or_else(|| wrong(expected, names))?.1.clone())
        }
        Some(other) => return Err(wrong("chat_template: a text or a list", other.to_string())),
    };
    let token = |(name, value): (&String, &Value)| {
        let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
        name.ends_with("_token").then(|| (name.clone(), text.to_owned()))
    };
    let tokens = fields.iter().filter_map(token).collect();
    let template = template.map(|text| (text, format!("chat_template in {place}")));
    Ok(ChatFiles { template, tokens })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_model_has_a_template() {
        let files = read(&super::super::open(None).unwrap()).unwrap();
        assert!(files.template.unwrap().0.contains("<|start_header_id|>"));
        assert_eq!(files.tokens["bos_token"], "<|begin_of_text|>");
    }

    #[test]
    fn a_configuration_has_a_template_or_named_ones() {
        let template = |json: &str| parse(json, "here").map(|files| files.template.map(|(text, _)| text));
        assert_eq!(template(r#"{"chat_template": "a"}"#).unwrap().as_deref(), Some("a"));
        let named =
            r#"{"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]}"#;
        assert_eq!(template(named).unwrap().as_deref(), Some("d"));
        for none in ["{}", r#"{"chat_template": null}"#] {
            assert_eq!(template(none).unwrap(), None);
        }
        let without = named.replace("default", "tool_use");
        assert!(template(&without).unwrap_err().to_string().contains("rag, tool_use"));
        for damaged in ["", "[]", r#"{"chat_template": 3}"#, r#"{"chat_template": [3]}"#] {
            assert_eq!(template(damaged).unwrap_err().exit_code(), 3, "{damaged}");
        }
    }

    #[test]
    fn tokens_are_texts_or_objects_with_one() {
        let json = r#"{"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": null, "add_bos_token": true}"#;
        let tokens = parse(json, "here").unwrap().tokens;
        assert_eq!(tokens.into_values().collect::<Vec<_>>(), ["<s>", "</s>"]);
    }

    #[test]
    fn the_file_of_its_own_goes_first() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        assert_eq!(beside(folder.path()).unwrap(), ChatFiles::default());
        write("tokenizer_config.json", r#"{"chat_template": "a", "bos_token": "<s>"}"#);
        assert_eq!(beside(folder.path()).unwrap().template.unwrap().0, "a");
        write("chat_template.jinja", "b");
        let files = beside(folder.path()).unwrap();
        assert_eq!((files.template.unwrap().0.as_str(), files.tokens.len()), ("b", 1));
    }
}
