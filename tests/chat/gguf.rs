//! Chat templates inside a GGUF file.

use std::fs;
use std::path::Path;

use super::common::{fixture, llama_trace, stderr, stdout};
use super::{chat_with, gguf_build};

/// The tiny model of fixtures/formats, with these texts and lists of texts in its metadata.
fn model(folder: &Path, texts: &[(&str, &str)], lists: &[(&str, &[&str])]) -> std::path::PathBuf {
    let mut file = fs::read(fixture("formats/gguf/f32.gguf")).unwrap();
    let mut keys = gguf_build::Build::new();
    for (key, text) in texts {
        keys = keys.text(key, text);
    }
    for (key, list) in lists {
        keys = keys.texts(key, list);
    }
    let count = u64::from_le_bytes(*file[16..].first_chunk().unwrap());
    let mut keys = keys.keys;
    // Pads the metadata, because the data after it must stay at a multiple of 32 bytes.
    let length = keys.concat().len();
    let filler = gguf_build::Build::new().text("filler", "").keys.concat().len();
    let spaces = (length + filler).next_multiple_of(32) - length - filler;
    keys.extend(gguf_build::Build::new().text("filler", &" ".repeat(spaces)).keys);
    file[16..24].copy_from_slice(&(count + keys.len() as u64).to_le_bytes());
    file.splice(24..24, keys.concat());
    let path = folder.join("model.gguf");
    fs::write(&path, file).unwrap();
    path
}

const MAIN: &str = "tokenizer.chat_template";
const NAMES: &str = "tokenizer.chat_templates";

#[test]
fn the_template_in_the_file_makes_the_prompt() {
    let folder = tempfile::tempdir().unwrap();
    let own = "{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}";
    let model = model(folder.path(), &[(MAIN, own)], &[]);
    let path = model.to_str().unwrap();
    let answer = super::chat(&["--model", path, "-n", "9"], "abc 12\n");
    assert!(answer.status.success(), "{}", stderr(&answer));
    let plain = llama_trace(["--model", path, "--prompt", "abc 12", "-n", "9"]);
    let continued = stdout(&plain);
    assert_eq!(stdout(&answer).trim(), continued.strip_prefix("abc 12").unwrap().trim());
    assert!(!stdout(&answer).trim().is_empty());
}

#[test]
fn the_default_is_chosen_among_named_templates() {
    let folder = tempfile::tempdir().unwrap();
    let raise = |text: &str| format!("{{{{ raise_exception('{text} ' + bos_token + eos_token) }}}}");
    let refusal = |texts: &[(&str, &str)], lists: &[(&str, &[&str])], code: i32| {
        let output = chat_with(&model(folder.path(), texts, lists), "a\n");
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        stderr(&output)
    };
    let [main, tools, default] = ["main", "tools", "default"].map(raise);
    let tools = ("tokenizer.chat_template.tool_use", &*tools);
    let default = ("tokenizer.chat_template.default", &*default);
    let text = refusal(&[(MAIN, &main), tools, default], &[(NAMES, &["tool_use", "default"])], 4);
    assert!(text.contains("main <s></s>") && text.contains("tokenizer.chat_template in "), "{text}");
    let text = refusal(&[tools, default], &[(NAMES, &["tool_use", "default"])], 4);
    assert!(text.contains("default <s></s>"), "{text}");
    let text = refusal(&[tools], &[(NAMES, &["tool_use"])], 3);
    assert!(text.contains("found: tool_use"), "{text}");
    let text = refusal(&[], &[], 3);
    assert!(text.contains("has no chat format"), "{text}");
    assert!(refusal(&[(MAIN, "{% for")], &[], 3).contains("cannot be read"));

    // A chat_template.jinja next to the file, as the messages about templates advise, also works for a GGUF file.
    fs::write(folder.path().join("chat_template.jinja"), raise("beside")).unwrap();
    let text = refusal(&[(MAIN, &main)], &[], 4);
    assert!(text.contains("beside <s></s>") && text.contains("chat_template.jinja"), "{text}");
}
