//! Lists the `.npy` files of a folder.

use std::path::Path;

/// The maximum number of files that are listed.
const FILES: usize = 100_000;

/// The maximum depth of the folders that are entered.
const DEPTH: usize = 8;

/// The sorted names of the `.npy` files below the folder at `path`, with `/` between folders.
pub(crate) fn npy_files(path: &Path) -> Vec<String> {
    let mut names = Vec::new();
    walk(path, "", DEPTH, &mut names);
    names.sort_unstable();
    names
}

/// Adds the files below the folder at `path`. `above` is the folder's own path below the first folder.
fn walk(path: &Path, above: &str, depth: usize, names: &mut Vec<String>) {
    let Ok(entries) = std::fs::read_dir(path) else { return };
    for entry in entries.flatten() {
        let (Ok(kind), Ok(name)) = (entry.file_type(), entry.file_name().into_string()) else { continue };
        if names.len() >= FILES {
            return;
        }
        let below = if above.is_empty() { name } else { format!("{above}/{name}") };
        if kind.is_dir() && depth > 1 {
            walk(&entry.path(), &below, depth - 1, names);
        } else if kind.is_file() && below.ends_with(".npy") {
            names.push(below);
        }
    }
}
