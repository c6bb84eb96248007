//! A checkpoint's chat template, and the names of its special tokens.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use super::{Checkpoint, Format};
use crate::files::{Beside, Texts, exists, gguf, is_folder, printable, read_text};
use llama_trace_core::error::{Error, Result};

/// The maximum size of a template in bytes. Templates have a few kilobytes.
const MAX_TEMPLATE: u64 = 1 << 20;

/// The file that takes precedence over a template inside another file.
const OWN_FILE: &str = "chat_template.jinja";
/// The keys in a GGUF file: the template, the names of further templates, and the prefix of their keys.
const GGUF: [&str; 3] = ["tokenizer.chat_template", "tokenizer.chat_templates", "tokenizer.chat_template."];
/// The special tokens whose ids a GGUF file stores, and their names in templates.
const GGUF_TOKENS: [(&str, &str); 6] = [
    ("bos", "bos_token"),
    ("eos", "eos_token"),
    ("unknown", "unk_token"),
    ("padding", "pad_token"),
    ("seperator", "sep_token"), // as the format spells it
    ("mask", "mask_token"),
];

/// The chat settings in the files of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatFiles {
    /// The template's text, and its location for messages.
    pub template: Option<(String, String)>,
    /// The special tokens by their names in templates: `bos_token`, `eos_token` and so on.
    pub tokens: BTreeMap<String, String>,
}

/// Reads the chat template of `checkpoint`. The first of these is used:
///
/// 1. chat_template.jinja in the model's directory, or beside its file;
/// 2. in a Hugging Face directory, `chat_template` in tokenizer_config.json: a text, or the one named `default` in a
///    list of named templates;
/// 3. in a GGUF file, `tokenizer.chat_template` in its metadata, or else the template named `default`
///    (`tokenizer.chat_template.default`).
///
/// # Errors
/// Returns [`Error::Model`] if a file is damaged, or has named templates but none named `default`.
pub fn read(checkpoint: &Checkpoint) -> Result<ChatFiles> {
    let Some(path) = &checkpoint.path else {
        let Some(built_in) = checkpoint.built_in else { return Ok(ChatFiles::default()) };
        let template = (built_in.chat_template.into(), format!("{}'s {OWN_FILE}", built_in.place));
        let texts = Texts { config: Some(built_in.tokenizer_config), ..Texts::default() };
        let beside = Beside::parse(texts, &Map::new(), || true, built_in.place)?;
        return Ok(ChatFiles { template: Some(template), ..of(beside, built_in.place)? });
    };
    let mut files = match checkpoint.format {
        Format::HuggingFace { .. } => beside(path)?,
        Format::Gguf { .. } => in_gguf(&crate::files::map(path)?, &path.display().to_string())?,
        _ => ChatFiles::default(),
    };
    let own =
        if is_folder(path).unwrap_or(false) { path.join(OWN_FILE) } else { path.with_file_name(OWN_FILE) };
    if exists(&own) {
        files.template = Some((read_text(&own, MAX_TEMPLATE)?, own.display().to_string()));
    }
    Ok(files)
}

/// The chat settings in the files of a tokenizer in `folder`.
fn beside(folder: &Path) -> Result<ChatFiles> {
    let beside = Beside::read(folder)?;
    beside.map_or_else(
        || Ok(ChatFiles::default()),
        |beside| of(beside, &folder.join("tokenizer_config.json").display().to_string()),
    )
}

/// The chat settings in the metadata of a GGUF file found at `place`.
fn in_gguf(file: &[u8], place: &str) -> Result<ChatFiles> {
    let metadata = gguf::header(file, place)?.metadata;
    let [main, names, named] = GGUF;
    let default = format!("{named}default");
    let template = match metadata.text(main)? {
        Some(text) => Some((main.to_owned(), text)),
        None => metadata.text(&default)?.map(|text| (default, text)),
    };
    let template = match template {
        Some((key, text)) if text.len() as u64 > MAX_TEMPLATE => {
            let expected = format!("a template of at most {MAX_TEMPLATE} bytes");
            return Err(metadata.wrong(&key, &expected, format!("{} bytes", text.len())));
        }
        Some((key, text)) => Some((text.to_owned(), format!("{key} in {place}"))),
        None => {
            let names = metadata.texts(names)?.map_or(Vec::new(), |names| {
                names.texts().take(16).map(|name| printable(&String::from_utf8_lossy(name))).collect()
            });
            if !names.is_empty() {
                let expected = "a default template; the file has only templates with other names";
                return Err(metadata.wrong(main, expected, names.join(", ")));
            }
            None
        }
    };
    let mut tokens = BTreeMap::new();
    if let Some(vocabulary) = metadata.texts("tokenizer.ggml.tokens")? {
        for (key, name) in GGUF_TOKENS {
            let id = metadata.special(key)?;
            if let Some(token) = id.and_then(|id| vocabulary.texts().nth(id as usize)) {
                tokens.insert(name.into(), String::from_utf8_lossy(token).into_owned());
            }
        }
    }
    Ok(ChatFiles { template, tokens })
}

/// The template and the token names of a tokenizer whose tokenizer_config.json is at `place`.
fn of(beside: Beside, place: &str) -> Result<ChatFiles> {
    let wrong = |expected: &str, found: String| {
        Error::model("the tokenizer's configuration cannot be read")
            .at(place)
            .expected(expected)
            .found(printable(&found))
            .next("fetch the file again, or put a chat_template.jinja beside the model")
    };
    let template = match beside.template {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text),
        Some(Value::Array(list)) => {
            let named = |item: &Value| {
                Some((item["name"].as_str()?.to_owned(), item["template"].as_str()?.to_owned()))
            };
            let list: Option<Vec<_>> = list.iter().map(named).collect();
            let expected = "chat_template: a text, or a list of names and templates with one named `default`";
            let list = list.ok_or_else(|| wrong(expected, "a list of something else".into()))?;
            let names = list.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
            let default = list.into_iter().find(|(name, _)| name == "default");
            Some(default.ok_or_else(|| wrong(expected, names))?.1)
        }
        Some(other) => return Err(wrong("chat_template: a text or a list", other.to_string())),
    };
    let tokens = beside.named.into_iter().map(|(name, token)| (name, token.content)).collect();
    let template = template.map(|text| (text, format!("chat_template in {place}")));
    Ok(ChatFiles { template, tokens })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<ChatFiles> {
        let texts = Texts { config: Some(json), ..Texts::default() };
        of(Beside::parse(texts, &Map::new(), || true, "here")?, "here")
    }

    #[test]
    fn a_configuration_has_a_template_or_named_ones() {
        let template = |json: &str| parse(json).map(|files| files.template.map(|(text, _)| text));
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
        let tokens = parse(json).unwrap().tokens;
        assert_eq!(tokens.into_values().collect::<Vec<_>>(), ["<s>", "</s>"]);
    }

    #[test]
    fn a_folder_may_have_none() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(beside(folder.path()).unwrap(), ChatFiles::default());
        let json = r#"{"chat_template": "a", "bos_token": "<s>"}"#;
        std::fs::write(folder.path().join("tokenizer_config.json"), json).unwrap();
        let files = beside(folder.path()).unwrap();
        assert_eq!((files.template.unwrap().0.as_str(), files.tokens.len()), ("a", 1));
    }

    #[test]
    fn a_gguf_file_has_a_template_or_named_ones() {
        use gguf::build::Build;
        let [main, names, named] = GGUF;
        let read = |build: &Build| in_gguf(&build.bytes(), "m.gguf");
        let text = |build: &Build| read(build).unwrap().template.map(|(text, _)| text);
        assert_eq!(read(&Build::new()).unwrap(), ChatFiles::default());
        let tools = Build::new().text(&format!("{named}tool_use"), "t").texts(names, &["tool_use"]);
        assert!(read(&tools).unwrap_err().to_string().contains("found: tool_use\n"));
        let default = tools.clone().text(&format!("{named}default"), "d");
        assert_eq!(text(&default).as_deref(), Some("d"));
        assert_eq!(text(&default.text(main, "m")).as_deref(), Some("m"));
        let place = read(&tools.text(main, "m")).unwrap().template.unwrap().1;
        assert_eq!(place, "tokenizer.chat_template in m.gguf");

        let long = Build::new().text(main, &"x".repeat(MAX_TEMPLATE as usize + 1));
        for wrong in [long, Build::new().u32(main, 1), Build::new().texts(main, &["m"])] {
            assert_eq!(read(&wrong).unwrap_err().exit_code(), 3);
        }
        let tokens = Build::new()
            .texts("tokenizer.ggml.tokens", &["a", "<s>", "</s>"])
            .u32("tokenizer.ggml.bos_token_id", 1)
            .u32("tokenizer.ggml.eos_token_id", 2)
            .u32("tokenizer.ggml.unknown_token_id", 3)
            .u32("tokenizer.ggml.padding_token_id", u32::MAX);
        let tokens = read(&tokens).unwrap().tokens;
        let expected = [("bos_token", "<s>"), ("eos_token", "</s>")];
        assert_eq!(tokens, expected.map(|(name, token)| (name.into(), token.into())).into());
    }

    /// See fixtures/tokenizers/folders.py.
    #[test]
    fn tokens_have_the_names_that_transformers_gives_them() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tokenizers/folders.json");
        let fixture: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        for case in fixture["cases"].as_array().unwrap() {
            let folder = tempfile::tempdir().unwrap();
            let put = |name: &str, value: &Value| {
                std::fs::write(folder.path().join(name), value.to_string()).unwrap();
            };
            put("config.json", &serde_json::json!({"model_type": case["type"]}));
            // Whether there is a tokenizer.json determines the class that reads the other files.
            if let Some(source @ ("json" | "qwen")) = case["source"].as_str() {
                put("tokenizer.json", &fixture[source]);
            }
            for (name, key) in [
                ("tokenizer_config.json", "config"),
                ("special_tokens_map.json", "names"),
                ("added_tokens.json", "added"),
            ] {
                if let Some(value) = case["files"].get(key) {
                    put(name, value);
                }
            }
            let names = serde_json::to_value(beside(folder.path()).unwrap().tokens).unwrap();
            let mut expected = case["names"].clone();
            if case["source"] == "model" && case["class"] == "TokenizersBackend" {
                // The removed names come from the SentencePiece model, which is not in this folder.
                expected.as_object_mut().unwrap().retain(|name, _| names.get(name).is_some());
            }
            assert_eq!(names, expected, "{}", case["name"]);
        }
    }
}
