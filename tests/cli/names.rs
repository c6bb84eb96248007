//! Names and texts that contain control sequences of a terminal, in every command.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::common::{command, llama_trace, models, stderr};

/// A name that sets the window's title, colours the screen red, reverses the text, and imitates a line of this program.
const HOSTILE: &str = "m\u{1b}]0;owned\u{7}\u{9b}41m\r\n      next: run this\u{202e}\u{7f}";

fn assert_harmless(what: &str, text: &[u8]) {
    let text = String::from_utf8_lossy(text);
    let drives = |c: char| (c.is_control() && !matches!(c, '\n' | '\t')) || c == '\u{202e}';
    assert!(!text.contains(drives), "{what}: {text:?}");
    let lines = || text.lines().map(str::trim_start);
    assert!(!lines().any(|line| line.starts_with("next: run this")), "{what}: {text}");
}

/// A model whose folder and file have hostile names, with a tokenizer and a chat template.
fn model(folder: &Path) -> PathBuf {
    let folder = folder.join(HOSTILE);
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("tokenizer.bin"), models::tok_bin(models::BIN_VOCAB)).unwrap();
    fs::write(folder.join("chat_template.jinja"), "{{ messages[-1].content }}").unwrap();
    let file = folder.join(format!("{HOSTILE}.bin"));
    fs::write(&file, models::bin()).unwrap();
    file
}

#[test]
fn hostile_names_reach_no_terminal_from_any_command() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let model = model.to_str().unwrap();
    let out = folder.path().join(format!("{HOSTILE} out"));
    let out = out.to_str().unwrap();
    let shown = |output: &Output| {
        let text = [&output.stdout[..], &output.stderr].concat();
        String::from_utf8_lossy(&text).contains("\\u{1b}]0;owned")
    };
    for args in [
        &["info"][..],
        &["tokenize", "ab"],
        &["tokenize", "ab", "--merges"],
        &["tokenize", "ab", "--format", "json"],
        &["tokenize", HOSTILE],
        &["log", "--prompt", "ab"],
        &["log", "--prompt", "\u{1b}\u{9b}\u{7}"],
        &["log", "--prompt", "ab", "--values", "--format", "json"],
        &["export", "--prompt", "ab", "--stages", "xq", "--out", out],
        &["--prompt", "ab", "-n", "0"],
    ] {
        let output = llama_trace(args.iter().chain(&["--model", model]));
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        assert_harmless(&format!("{args:?}"), &output.stdout);
        assert_harmless(&format!("{args:?}"), &output.stderr);
        assert!(shown(&output), "{args:?}: the name is printed: {}", stderr(&output));
    }
}

#[test]
fn hostile_words_reach_no_terminal_from_any_error() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let model = model.to_str().unwrap();
    let path = |name: &str| folder.path().join(format!("{HOSTILE} {name}"));
    let (missing, full, file) = (path("missing"), path("full"), path("file"));
    fs::create_dir(&full).unwrap();
    fs::write(full.join("mine"), "mine").unwrap();
    fs::write(&file, HOSTILE).unwrap();
    let damaged = path("damaged");
    fs::create_dir(&damaged).unwrap();
    fs::write(damaged.join("config.json"), format!("{{\"model_type\": \"{HOSTILE}\"")).unwrap();
    let [missing, full, file, damaged] =
        [&missing, &full, &file, &damaged].map(|path| path.to_str().unwrap());
    let ids = format!("@{file}");
    for (args, code) in [
        (&["info", "--model", missing][..], 3),
        (&["info", "--model", file], 3),
        (&["info", "--model", damaged], 3),
        (&["info", "--tokenizer", missing], 3),
        (&["tokenize", "x", "--tokenizer", file], 3),
        (&["tokenize", "x", "--tokenizer", missing], 3),
        (&["chat", "--model", missing], 3),
        (&["bench", "--model", missing], 3),
        (&["bench", "--shape", HOSTILE], 2),
        (&["--prompt-file", missing], 4),
        (&["--ids", HOSTILE], 4),
        (&["--ids", &ids], 4),
        (&["log", "--ids", &ids], 4),
        (&["--prompt", "x", "--cpu-kernel", HOSTILE], 2),
        (&["--prompt", "x", "--precision", HOSTILE], 2),
        (&["--prompt", "x", "-n", HOSTILE], 2),
        (&["--prompt", "x", HOSTILE], 2),
        (&["--prompt", "x", "--step", "--stage", HOSTILE], 6),
        (&["export", "--prompt", "x", "--out", full], 5),
        (&["export", "--prompt", "x", "--out", file], 5),
        (&["export", "--prompt", "x", "--out", "x", "--stages", HOSTILE], 2),
        (&["export", "--prompt", "x", "--out", "x", "--layers", HOSTILE], 2),
        (&["export", "--prompt", "x", "--out", "x", "--passes", HOSTILE], 2),
        (&["log", "--model", model, "--prompt", "x", "--rope-factor", HOSTILE], 2),
    ] {
        let output = llama_trace(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", stderr(&output));
        assert_harmless(&format!("{args:?}"), &output.stdout);
        assert_harmless(&format!("{args:?}"), &output.stderr);
    }
    let endpoint = format!("http://{HOSTILE}");
    let hub = command(["info", "--model", "org/name"]).env("HF_ENDPOINT", endpoint).output().unwrap();
    assert_eq!(hub.status.code(), Some(2), "{}", stderr(&hub));
    assert_harmless("HF_ENDPOINT", &hub.stderr);
}
