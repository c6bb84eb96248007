//! The fields of `--format json`: the manual lists those that the commands print, and no others.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::common::llama_trace;
use super::ok;

/// The names in the JSON block of a page of the manual that follows `after`.
fn documented(page: &str, after: &str) -> BTreeSet<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("chapters/reference/{page}.md"));
    let text = fs::read_to_string(file).unwrap();
    let (_, rest) = text.split_once(after).unwrap_or_else(|| panic!("{page}.md has no {after}"));
    let block = rest.split_once("```text\n").unwrap().1.split_once("```").unwrap().0;
    block.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The names of all fields of a value and of the values in it.
fn fields(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                names.insert(name.clone());
                fields(value, names);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| fields(value, names)),
        _ => {}
    }
}

/// The names of the fields that the commands print, each command with several options.
fn printed(commands: &[&[&str]]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for command in commands {
        let text = ok(&llama_trace(command.iter().chain(&["--format", "json"])));
        for value in serde_json::Deserializer::from_str(&text).into_iter::<Value>() {
            fields(&value.unwrap(), &mut names);
        }
    }
    names
}

#[test]
fn the_manual_lists_the_fields_that_log_and_tokenize_print() {
    let prompt = ["--prompt", "A fox"];
    let log: [&[&str]; 2] = [
        &[&["log", "--values", "--prompt", "A dog", "--edit", "xq *= 2", "--precision", "q8"], &prompt[..]]
            .concat(),
        &[&["log"], &prompt[..]].concat(),
    ];
    assert_eq!(printed(&log), documented("export", "`log --format json`"));
    let tokenize: [&[&str]; 2] = [&["tokenize", "A fox", "--merges"], &["tokenize", "A fox"]];
    let mut names = printed(&tokenize);
    // A vocabulary with scores has no ranks.
    names.insert("score".into());
    assert_eq!(names, documented("prompts", "`tokenize --format json`"));
}

#[test]
fn the_manual_lists_the_fields_that_lens_attribute_and_patch_print() {
    let prompt = ["--prompt", "A fox"];
    assert_eq!(printed(&[&[&["lens"], &prompt[..]].concat()]), documented("explain", "`lens --format json`"));
    let attribute: [&[&str]; 2] = [
        &[&["attribute"], &prompt[..]].concat(),
        &[&["attribute", "--parts", "heads", "--by", "total"], &prompt[..]].concat(),
    ];
    assert_eq!(printed(&attribute), documented("explain", "`attribute --format json`"));
    let patch = [
        "patch",
        "--clean",
        "Once upon a time, there was a fox named Mara. Mara",
        "--corrupted",
        "Once upon a time, there was a dog named Mara. Mara",
        "--parts",
        "residual,heads,neurons",
        "--top",
        "2",
    ];
    assert_eq!(printed(&[&patch]), documented("patch", "`patch --format json`"));
}

#[test]
fn a_number_that_is_not_finite_is_a_word() {
    let edited = ["--prompt", "A fox", "--edit", "L1/ffn_down[t=0,d=0] *= 1e38"];
    let commands: [&[&str]; 4] = [
        &["lens"],
        &["attribute"],
        &["attribute", "--parts", "heads", "--by", "total"],
        &["explain", "p0/L1/ffn_residual[t=0,d=0]"],
    ];
    for command in commands {
        let text = ok(&llama_trace([command, &edited, &["--format", "json"]].concat()));
        assert!(text.contains("\"nan\"") || text.contains("\"inf\""), "{command:?}: {text}");
        // In the explanation, `null` stands for a view and other terms that it does not have.
        assert!(command[0] == "explain" || !text.contains("null"), "{command:?}: {text}");
    }
}

#[test]
fn the_manual_lists_the_fields_that_bench_prints() {
    let bench = [
        "bench",
        "--prompt-tokens",
        "4",
        "--gen",
        "2",
        "--stages",
        "--record",
        "--batch",
        "1",
        "--patch",
        "4",
        "--tune",
    ];
    assert_eq!(printed(&[&bench]), documented("performance", "`bench --format json`"));
}
