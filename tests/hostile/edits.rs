//! Edits and the prompts of `patch`: not a text, too large, empty, or out of range.

use std::path::Path;

use tempfile::TempDir;

#[cfg(target_os = "linux")]
use super::child;
use super::common::{llama_trace, stderr};
use super::{file, refused};

const RUN: [&str; 3] = ["log", "--ids", "1,2,3"];

/// A text that is no edit is refused by the parser of the command line, whose messages have another form.
fn refused_edit(edit: &str, texts: &[&str]) {
    let output = llama_trace([&RUN[..], &["--edit", edit]].concat());
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{edit}: {told}");
    assert!(told.starts_with("error: ") && told.len() < 4000 && !told.contains('\x1b'), "{edit}: {told}");
    texts.iter().for_each(|text| assert!(told.contains(text), "{edit}: `{text}` is not in\n{told}"));
}

fn refused_file(path: &Path, texts: &[&str]) {
    refused(&[&RUN[..], &["--edits", path.to_str().unwrap()]].concat(), 2, texts);
}

#[test]
fn a_file_that_has_no_edits_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = &folder;
    refused_file(&folder.path().join("none"), &["the file of --edits cannot be read", "none"]);
    refused_file(folder.path(), &["the file of --edits cannot be read"]);
    refused_file(&file(folder, "latin", b"L0/xq = 0\nL0/x\xe9 = 0"), &["not a text", "UTF-8", "byte 14"]);
    for text in ["", "\n\n", "# only a comment\n"] {
        refused_file(&file(folder, "empty", text), &["the file of --edits has no edit", "help edits"]);
    }
    for text in ["L0/xq = 0\u{1b}[2J", "L0/xq = 0\0", "L0/xq\u{7}[h=0] = 0"] {
        refused_file(&file(folder, "control", text), &["line 1", "without control characters"]);
    }
    for text in [format!("L0/{} = 0", "x".repeat(1 << 20)), "x".repeat(1 << 20), "(".repeat(1 << 20)] {
        refused_file(&file(folder, "long", text), &["line 1", "bytes)"]);
    }
    let nested = format!("xq = {}xq{}", "(".repeat(1 << 16), ")".repeat(1 << 16));
    refused_file(&file(folder, "nested", nested), &["line 1"]);
    refused_file(
        &file(folder, "many", "xq *= 1\n".repeat(70_000)),
        &["too many edits", "at most 65536", "70000"],
    );
}

#[test]
fn a_range_past_the_end_is_refused_without_listing_it() {
    for (edit, said) in [
        ("L0-1000000000/xq = 0", "no layer 1000000000"),
        ("p0-1000000000/xq = 0", "no pass 1000000000"),
        ("s0-1000000000/xq = 0", "no such sequence"),
        ("xq[t=0-1000000000] = 0", "token 1000000000 is past the last"),
        ("xq[pos=0-18446744073709551615] = 0", "no position 18446744073709551615"),
        ("xq[h=99999999999999999999] = 0", "is not a number"),
        ("xq = L1000000000/xq", "L1000000000"),
        ("xq = p1000000000/xq", "p1000000000"),
        ("xq = 1e39", "largest float32"),
        ("xq = NaN", "NaN"),
        ("xq *= -nan", "NaN"),
        ("", "no operation"),
        ("=", "not a place"),
    ] {
        refused_edit(edit, &[said]);
    }
}

/// Writes a `.npy` file of float32 with this shape in its header.
fn npy(folder: &TempDir, shape: &str, values: &[f32]) -> String {
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}");
    header += &" ".repeat(127 - (10 + header.len()) % 128);
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\0".to_vec();
    bytes.extend_from_slice(&u16::try_from(header.len()).unwrap().to_le_bytes());
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    file(folder, "values.npy", bytes).to_str().unwrap().to_owned()
}

#[test]
fn an_array_that_cannot_be_written_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let edit = |array: &str| format!("L0/xq[t=0,h=0,c=0] = {array}");
    refused_edit(&edit(&npy(&folder, "(1000000000000,)", &[1.0])), &["not an array of numbers", "cut off"]);
    refused_edit(
        &edit(&npy(&folder, "(3,)", &[1.0, 2.0, 3.0])),
        &["the array does not have the shape", "[3]"],
    );
    refused_edit(&edit(&npy(&folder, "(2,)", &[1.0, f32::NAN])), &["has a NaN", "value 1 of 2"]);
    refused_edit(&edit(&npy(&folder, "(0,)", &[])), &["the array does not have the shape", "[0]"]);
    for (name, bytes) in [("empty.npy", &b""[..]), ("text.npy", b"1 2 3"), ("zip.npy", b"PK\x03\x04")] {
        refused_edit(&edit(file(&folder, name, bytes).to_str().unwrap()), &["not an array of numbers", name]);
    }
    // Infinity is a value that an edit can write.
    let array = npy(&folder, "(1,)", &[f32::INFINITY]);
    let output = llama_trace([&RUN[..], &["--edit", &edit(&array)]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
}

/// The child has limits on time and memory.
#[cfg(target_os = "linux")]
#[test]
fn a_device_and_a_long_list_of_numbers_end() {
    let folder = tempfile::tempdir().unwrap();
    let ends = |args: &[&str], code: i32, text: &str| {
        let end = child::run(&[&RUN[..], args].concat(), &[]);
        assert_eq!((end.wrong(), end.code), (None, Some(code)), "{}", end.stderr);
        assert!(end.stderr.contains(text), "{}", end.stderr);
    };
    ends(&["--edits", "/dev/zero"], 2, "at most 67108864 bytes");
    let device = folder.path().join("device.npy");
    std::os::unix::fs::symlink("/dev/zero", &device).unwrap();
    let edit = format!("xq = {}", device.display());
    ends(&["--edit", &edit], 2, "not a regular file");
    let list = file(&folder, "list", format!("L0/xq[h={}] = 0", vec!["0"; 100_000].join(",")));
    ends(&["--edits", list.to_str().unwrap()], 0, "cells changed");
}

#[test]
fn prompts_that_patch_cannot_compare_are_refused() {
    let patch = |clean: &str, corrupted: &str, code: i32, texts: &[&str]| {
        refused(&["patch", "--clean", clean, "--corrupted", corrupted], code, texts);
    };
    patch("a fox", "a fox", 4, &["same value in both runs"]);
    patch("a fox", &"a fox ".repeat(60), 4, &["same number of tokens", "…"]);
    patch("a\u{1b}[2J", "a fox", 4, &["same number of tokens"]);
    patch(&"fox ".repeat(1 << 14), "a", 4, &["the clean prompt"]);
    patch("", "a fox", 4, &["same number of tokens"]);
    let ids = |clean: &str, corrupted: &str, texts: &[&str]| {
        refused(&["patch", "--clean-ids", clean, "--corrupted-ids", corrupted], 4, texts);
    };
    ids("", "1", &["no tokens", "the clean prompt"]);
    ids("1,2", "1,4294967296", &["the corrupted prompt"]);
    let both = ["patch", "--clean-ids", "1,5,9", "--corrupted-ids", "1,5,8"];
    let long = "fox ".repeat(1 << 12);
    refused(&[&both[..], &["--answer", &long]].concat(), 2, &["not a token of this model", "bytes)"]);
    refused(&[&both[..], &["--answer", ""]].concat(), 2, &["not a token of this model", "0 tokens"]);
    refused(&[&both[..], &["--edit", "s2/xq = 0"]].concat(), 2, &["no such sequence"]);
}
