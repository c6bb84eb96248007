//! Traces that are damaged or inconsistent, or files that are not traces.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::child;
use super::common::{fixture, llama_trace, stderr};

/// A trace of a small model with a branch, and its folder.
pub(crate) fn recorded(keep: &str) -> (TempDir, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.trace");
    let model = fixture("golden/mistral");
    let output = llama_trace([
        "record",
        "--model",
        model.to_str().unwrap(),
        "--ids",
        "1,5,9,3,7,2,8",
        "-n",
        "3",
        "--branch",
        "p0=6",
        "--keep",
        keep,
        "-o",
        path.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let bytes = fs::read(&path).unwrap();
    (folder, bytes)
}

/// Reads the header as JSON, and the values.
pub(crate) fn parts(bytes: &[u8]) -> (Value, Vec<u8>) {
    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (header, values) = rest.split_at(u64::from_le_bytes(*length) as usize);
    (serde_json::from_slice(header).unwrap(), values.to_vec())
}

pub(crate) fn whole(header: &Value, values: &[u8]) -> Vec<u8> {
    let header = header.to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), values].concat()
}

/// Byte range of a tensor's values.
fn range(header: &Value, name: &str) -> std::ops::Range<usize> {
    let offsets = &header[name]["data_offsets"];
    offsets[0].as_u64().unwrap() as usize..offsets[1].as_u64().unwrap() as usize
}

/// Opens the file and reads all of it. Returns the message if it is refused.
fn refusal(bytes: &[u8]) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.trace");
    fs::write(&path, bytes).unwrap();
    read(&path)
}

fn read(path: &Path) -> Option<String> {
    let end = child::run(&["log", "--trace", path.to_str().unwrap(), "--values"], &[path]);
    assert_eq!(end.wrong(), None);
    match end.code {
        Some(0) => None,
        code => {
            assert_eq!(code, Some(3), "{}", end.stderr);
            Some(end.stderr)
        }
    }
}

#[test]
fn the_error_about_a_file_that_is_no_trace_says_what_it_is() {
    let (_folder, bytes) = recorded("minimal");
    assert_eq!(refusal(&bytes), None, "the file is right before it is damaged");
    let model = fixture("golden/gqa/model.safetensors");
    assert!(read(&model).unwrap().contains("a safetensors file that is not a trace"));
    assert!(refusal(b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0").unwrap().contains("GGUF"));
    for text in ["", "a", "hello, this is a text and no trace"] {
        assert!(refusal(text.as_bytes()).is_some(), "{text:?}");
    }
    for length in [7, 8, 100, bytes.len() / 2, bytes.len() - 1] {
        assert!(refusal(&bytes[..length]).is_some(), "{length} bytes");
    }
    assert!(refusal(&[&bytes[..], b"more"].concat()).is_some());
}

#[test]
fn traces_of_other_versions_are_refused() {
    let (_folder, bytes) = recorded("minimal");
    let (mut header, values) = parts(&bytes);
    for (version, word) in [("4", "newer"), ("2", "older")] {
        header["__metadata__"]["format_version"] = json!(version);
        let said = refusal(&whole(&header, &values)).unwrap();
        assert!(said.contains(word) && said.contains(&format!("format version {version}")), "{said}");
    }
    header["__metadata__"]["format_version"] = json!("3");
    header["__metadata__"]["arithmetic"] = json!("0");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.trace");
    fs::write(&path, whole(&header, &values)).unwrap();
    let output = llama_trace(["log", "--trace", path.to_str().unwrap()]);
    assert!(
        output.status.success() && stderr(&output).contains("version 0 of the arithmetic"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn changed_values_are_not_shown() {
    let (_folder, bytes) = recorded("minimal");
    let (header, values) = parts(&bytes);
    for name in ["p0/L1/xq", "decode/L0/ffn_up", "p0/logits"] {
        let mut values = values.clone();
        values[range(&header, name).start + 2] ^= 1;
        let said = refusal(&whole(&header, &values)).unwrap();
        let stage = name.rsplit_once('/').unwrap().1;
        assert!(said.contains(&format!("{stage} are not those that were recorded")), "{said}");
    }
}

#[test]
fn a_wrong_description_of_the_run_is_refused_before_it_is_used() {
    let lies: [(&str, &[&str], Value); 14] = [
        ("layers", &["card", "config", "layers"], json!(1 << 20)),
        ("one layer more", &["card", "config", "layers"], json!(3)),
        ("heads", &["card", "config", "heads"], json!(1 << 20)),
        ("no heads", &["card", "config", "heads"], json!(0)),
        ("vocabulary", &["card", "config", "vocab"], json!(1 << 20)),
        ("a small vocabulary", &["card", "config", "vocab"], json!(2)),
        ("context", &["card", "config", "context"], json!(3)),
        ("precision", &["card", "precision"], json!({"q8": {"group": 0}})),
        ("stages", &["stages"], json!(["tokens", "tokens"])),
        ("stages of another model", &["stages"], json!(["tokens", "xq_norm", "sampled"])),
        ("no such stage", &["stages"], json!(["tokens", "sampled", "\u{1b}[2J"])),
        ("sequences", &["sequences"], json!(u64::MAX)),
        ("cache", &["cache"], json!("f64")),
        ("temperature", &["sampling", "temperature"], json!(-1.0)),
    ];
    for keep in ["minimal", "stats"] {
        let (_folder, bytes) = recorded(keep);
        let (header, values) = parts(&bytes);
        for (what, path, value) in &lies {
            let mut run: Value =
                serde_json::from_str(header["__metadata__"]["run"].as_str().unwrap()).unwrap();
            let place = path.iter().fold(&mut run, |inner, key| &mut inner[*key]);
            *place = value.clone();
            let mut header = header.clone();
            header["__metadata__"]["run"] = json!(run.to_string());
            // Without stored values, no data contradicts a wrong size. But nothing is allocated for it either.
            if keep == "minimal" || !["heads", "vocabulary"].contains(what) {
                assert!(refusal(&whole(&header, &values)).is_some(), "{what}, {keep}");
            } else {
                refusal(&whole(&header, &values));
            }
        }
    }
}

#[test]
fn wrong_tables_are_refused() {
    let (_folder, bytes) = recorded("all");
    let (header, values) = parts(&bytes);
    let with = |name: &str, at: usize, number: i64| {
        let mut values = values.clone();
        let start = range(&header, name).start + 8 * at;
        values[start..start + 8].copy_from_slice(&number.to_le_bytes());
        refusal(&whole(&header, &values))
    };
    for number in [-1, 1, 6, 8, i64::MAX, i64::MIN] {
        assert!(with("passes", 3, number).is_some(), "{number} tokens in the prompt");
        assert!(with("passes", 4, number.max(1)).is_some(), "sequence {number}");
        assert!(with("passes", 6, if number == 8 { 9 } else { number }).is_some(), "{number} before");
    }
    for id in [-1, 46, 1_i64 << 33, i64::MAX] {
        assert!(with("p0/tokens", 1, id).is_some(), "token {id}");
        assert!(with("p0/sampled", 0, id).is_some(), "drawn {id}");
    }
    for (what, at, numbers) in [
        ("sequence", 0, [-1, 1, i64::MAX]),
        ("run", 1, [-1, 1, 1 << 16]),
        ("pass", 2, [-1, 1, i64::MAX]),
        ("token", 3, [-1, 46, 1 << 32]),
    ] {
        for number in numbers {
            assert!(with("branches", at, number).is_some(), "a branch of {what} {number}");
        }
    }
    // Tries offsets that overlap, leave a gap or lead outside, and shapes of another size.
    let mut last = header.clone();
    let end = range(&header, "digests").end;
    last["digests"]["data_offsets"] = json!([0, end]);
    assert!(refusal(&whole(&last, &values)).is_some());
    for (name, shape) in
        [("p0/L0/xq", json!([1])), ("index", json!([1_u64 << 40, 4])), ("stats", json!([0, 4]))]
    {
        let mut lying = header.clone();
        lying[name]["shape"] = shape;
        assert!(refusal(&whole(&lying, &values)).is_some(), "{name}");
        lying[name]["dtype"] = json!("F64");
        assert!(refusal(&whole(&lying, &values)).is_some(), "{name}");
        lying.as_object_mut().unwrap().remove(name);
        assert!(refusal(&whole(&lying, &values)).is_some(), "without {name}");
    }
    // Statistics that are NaN are shown as NaN.
    let mut values = values.clone();
    values[range(&header, "stats")].fill(0xff);
    assert_eq!(refusal(&whole(&header, &values)), None);
}
