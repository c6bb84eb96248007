//! Who may import whom: the edges of the module graph, read from the sources.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Each module and the modules of this crate that it may import.
const EDGES: &[(&str, &[&str])] = &[
    ("error", &[]),
    ("stop", &["error"]),
    ("config", &["error"]),
    ("ops", &["config", "error"]),
    ("checkpoint", &["config", "error", "stop"]),
    ("tokenizer", &["checkpoint", "config", "error", "stop"]),
    ("trace", &["error"]),
    ("chapters", &["trace"]),
    ("backend", &["checkpoint", "config", "error", "ops", "stop"]),
    ("model", &["backend", "checkpoint", "config", "error", "ops", "stop", "trace"]),
    ("generate", &["backend", "config", "error", "model", "ops", "stop", "tokenizer", "trace"]),
    ("replay", &["backend", "config", "error", "generate", "model", "ops", "stop", "tokenizer", "trace"]),
    ("tui", &["chapters", "error", "trace"]),
    (
        "cli",
        &[
            "backend",
            "chapters",
            "checkpoint",
            "config",
            "error",
            "generate",
            "model",
            "replay",
            "stop",
            "tokenizer",
            "trace",
            "tui",
        ],
    ),
];

fn files(module: &str) -> Vec<PathBuf> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut folders = vec![src.join(module)];
    let single = src.join(format!("{module}.rs"));
    found.extend(single.exists().then_some(single));
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found
}

/// The modules of this crate that `text` names as `crate::module`.
fn imports(text: &str) -> BTreeSet<String> {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.flat_map(|line| line.split("crate::").skip(1).map(str::to_owned))
        .map(|rest| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect())
        .collect()
}

#[test]
fn modules_import_only_what_they_may() {
    for (module, allowed) in EDGES {
        let files = files(module);
        assert!(!files.is_empty(), "there is no module {module}");
        for file in files {
            for import in imports(&std::fs::read_to_string(&file).unwrap()) {
                assert!(
                    import == *module || allowed.contains(&import.as_str()) || import.is_empty(),
                    "{} imports {import}, which {module} may not",
                    file.display()
                );
            }
        }
    }
}

#[test]
fn every_module_is_in_the_table() {
    let lib = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs")).unwrap();
    for line in lib.lines() {
        if let Some(module) = line.strip_prefix("pub mod ").and_then(|rest| rest.strip_suffix(';')) {
            assert!(EDGES.iter().any(|(name, _)| *name == module), "{module} has no row");
        }
    }
}
