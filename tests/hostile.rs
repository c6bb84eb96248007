//! Bad input. Every mistake and every damaged file gives a message (what is wrong, where, and what to do) and a
//! specific exit code. There is never a panic, an abort, a hang, or more memory than the file justifies.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "hostile/bin.rs"]
mod bin;
#[cfg(target_os = "linux")]
#[path = "hostile/bounds.rs"]
mod bounds;
#[path = "hostile/broken.rs"]
mod broken;
#[cfg(target_os = "linux")]
#[path = "hostile/child.rs"]
mod child;
mod common;
#[path = "hostile/configuration.rs"]
mod configuration;
#[path = "hostile/edits.rs"]
mod edits;
#[cfg(target_os = "linux")]
#[path = "hostile/frames.rs"]
mod frames;
#[cfg(target_os = "linux")]
#[path = "hostile/memory.rs"]
mod memory;
#[cfg(target_os = "linux")]
#[path = "hostile/pytorch.rs"]
mod pytorch;
#[cfg(target_os = "linux")]
#[path = "hostile/random.rs"]
mod random;
#[path = "hostile/request.rs"]
mod request;
#[path = "hostile/safetensors.rs"]
mod safetensors;
#[cfg(target_os = "linux")]
#[path = "hostile/trace.rs"]
mod trace;

use std::fs;
use std::path::Path;
use std::process::Output;
#[cfg(target_os = "linux")]
use std::process::{Command, Stdio};

#[cfg(target_os = "linux")]
use common::command;
use common::models;
use common::{data, llama_trace, stderr, stdout};
use serde_json::Value;
use tempfile::TempDir;

/// Asserts that `args` are refused with this exit code, and with a message that contains each of `texts`.
fn refused(args: &[&str], code: i32, texts: &[&str]) {
    check(&format!("{args:?}"), &llama_trace(args), code, texts);
}

fn check(what: &str, output: &Output, code: i32, texts: &[&str]) {
    let message = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{what}: {message}");
    assert!(stdout(output).is_empty(), "{what} prints {:?}", stdout(output));
    // The error is in the first line, or after one line that describes the opened model.
    assert!(message.lines().take(2).any(|line| line.starts_with("error: ")), "{what}: {message}");
    for text in ["expected: ", "next: "].iter().chain(texts) {
        assert!(message.contains(text), "{what}: `{text}` is not in\n{message}");
    }
    // The message quotes names and texts from files. They must not move the cursor or fill the screen.
    assert!(!message.contains('\x1b') && message.len() < 4000, "{what}: {message:?}");
}

/// The arguments that open the model at `path` and run it on ids.
fn run(path: &Path) -> [&str; 5] {
    ["log", "--model", path.to_str().unwrap(), "--ids", "1,2"]
}

/// A change of a JSON file, and a part of the expected message.
type Change<'a> = (&'a dyn Fn(&mut Value), &'a [&'a str]);

fn remove(object: &mut Value, name: &str) -> Option<Value> {
    object.as_object_mut().unwrap().shift_remove(name)
}

/// Writes `bytes` to a file with this name.
fn file(folder: &TempDir, name: &str, bytes: impl AsRef<[u8]>) -> std::path::PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn a_path_without_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.bin");
    refused(&run(&missing), 3, &["where: ", "missing.bin", "found: No such file", "check the spelling"]);
    refused(&run(folder.path()), 3, &["config.json with model.safetensors", "found: no model file at all"]);
    file(&folder, "model.ckpt", "");
    file(&folder, "config.json", "{}");
    refused(&run(folder.path()), 3, &["or pytorch_model.bin", "found: config.json, model.ckpt"]);
    let text = file(&folder, "notes.bin", "a".repeat(100));
    refused(&run(&text), 3, &["notes.bin", "expected: ", "found: ", "llama2.c"]);
    let empty = file(&folder, "empty.bin", "");
    refused(&run(&empty), 3, &["the file is empty", "found: 0 bytes"]);
    for (name, bytes, kind) in [
        ("m.gguf", &b"GGUF\x03\0\0\0"[..], "GGUF"),
        ("m.pth", b"PK\x03\x04", "zip archive"),
        ("m.bin", b"version https://git-lfs.github.com/spec/v1", "git lfs pull"),
    ] {
        refused(&run(&file(&folder, name, bytes)), 3, &[name, kind]);
    }
}

/// A pipe without a writer never ends, and a device may be endless. The child has limits on time and memory, so endless
/// reading or waiting fails the test.
#[cfg(target_os = "linux")]
#[test]
fn a_file_that_is_not_regular_is_never_read() {
    let ends = |args: &[&str], code: i32, texts: &[&str]| {
        let end = child::run(args, &[]);
        assert_eq!((end.wrong(), end.code), (None, Some(code)));
        assert!(texts.iter().all(|text| end.stderr.contains(text)), "{}", end.stderr);
    };
    ends(&run(Path::new("/dev/zero")), 3, &["not a regular file", "device"]);
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    ends(&run(&pipe), 3, &["not a regular file", "pipe"]);
    let model = models::golden("gqa", |_| {});
    fs::rename(&pipe, model.path().join("tokenizer.json")).unwrap();
    // Ids need no tokenizer.
    ends(&run(model.path()), 0, &["tokens are shown as ids", "tokenizer.json", "not a regular file"]);
}

/// Reads a prompt from a device that never ends.
#[cfg(target_os = "linux")]
#[test]
fn a_prompt_is_read_up_to_a_limit() {
    let end = child::run(&["--prompt-file", "/dev/zero"], &[]);
    assert_eq!((end.wrong(), end.code), (None, Some(4)));
    assert!(end.stderr.contains("at most 67108864 bytes"), "{}", end.stderr);
}

#[test]
fn weights_that_are_nan_or_infinite_run_with_a_warning() {
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let model = models::golden("gqa", |tensors| {
            for (_, bytes) in tensors.values_mut() {
                *bytes = value.to_le_bytes().repeat(bytes.len() / 4);
            }
        });
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("dump");
        let path = model.path().to_str().unwrap();
        let all = ["--model", path, "--ids", "1,2", "-n", "2"];
        for args in [
            &[][..],
            &["--temperature", "1"],
            &["--temperature", "1", "--top-k", "3", "--top-p", "0.5"],
            &["--temperature", "1", "--min-p", "0.1", "--typical-p", "0.5", "--repetition-penalty", "2"],
            &["log", "--values"],
            &["log", "--format", "json", "--values"],
            &["export", "--out", out.to_str().unwrap()],
        ] {
            let output = llama_trace(args.iter().chain(&all));
            assert!(output.status.success(), "{value} {args:?}: {}", stderr(&output));
            let told = stderr(&output).lines().filter(|line| line.contains("not a number (NaN)")).count();
            assert_eq!(told, 1, "{value} {args:?}: {}", stderr(&output));
        }
    }
}

/// A full disk or a closed terminal must not cause a panic.
#[cfg(target_os = "linux")]
#[test]
fn an_output_that_cannot_be_written_is_an_error() {
    let full = || Stdio::from(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    for args in [
        &["info"][..],
        &["log", "--prompt", "x"],
        &["--prompt", "x"],
        &["log", "--prompt", "x", "--format", "json"],
        &["--help"],
        &["log", "--help"],
        &["help", "diff"],
        &["--version"],
    ] {
        let output = command(args).stdout(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(5), "{args:?}: {}", stderr(&output));
        let message = stderr(&output);
        assert!(message.contains("standard output") && message.contains("No space left"), "{message}");
    }
    let model = models::golden("gqa", |tensors| {
        tensors.get_mut("model.norm.weight").unwrap().1.fill(0xff);
    });
    let model = model.path().to_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("dump");
    for (args, code) in [
        (&["--model", "/nonexistent", "--prompt", "x"][..], 3),
        (&["--model", model, "--ids", "1"], 0),
        (&["log", "--model", model, "--ids", "1"], 0),
        (&["export", "--model", model, "--ids", "1", "--out", out.to_str().unwrap()], 0),
        (&["log", "--prompt", "x", "-n", "1000"], 0),
    ] {
        let output = command(args).stderr(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}");
    }
}

#[test]
fn truncated_real_files_are_refused() {
    for name in ["stories260K.bin", "stories260K_q80.bin"] {
        let Some(path) = data(&format!("stories260K/{name}")) else { continue };
        let whole = fs::read(&path).unwrap();
        let folder = tempfile::tempdir().unwrap();
        for length in [10, 28, 1000, whole.len() - 1] {
            refused(
                &run(&file(&folder, "m.bin", &whole[..length])),
                3,
                &["m.bin", &format!("{length} bytes")],
            );
        }
    }
}
