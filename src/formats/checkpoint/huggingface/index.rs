//! The weight files, and the index of shards that lists them. An index must not make this program read or fetch files
//! outside the index's directory.

use std::collections::{BTreeMap, HashSet};
use std::path::{Component, Path};

use serde::Deserialize;

use super::super::contents::Contents;
use super::super::limits::{MAX_FILES, MAX_TENSORS};
use super::super::screen::Notes;
use super::super::{pth, safetensors};
use crate::files::{exists, full, printable, read_json, read_text};
use llama_trace_core::error::{Error, Result};

/// The maximum size of an index in bytes. That of Llama 3.1 405B has 97 KB.
const MAX_INDEX: u64 = 8 << 20;

/// The part of model.safetensors.index.json with the file of each tensor.
#[derive(Deserialize)]
struct Index {
    /// Tensor name to file name.
    weight_map: BTreeMap<String, String>,
}

/// The contents of an index.
struct Shards {
    /// The paths of the files below the index's folder, in the order in which transformers reads them.
    files: Vec<String>,
    /// The names of tensors.
    tensors: Vec<String>,
}

fn read_index(index_path: &Path) -> Result<Shards> {
    let index: Index = read_json(&read_text(index_path, MAX_INDEX)?).map_err(|error| {
        let expected = "JSON with a `weight_map` from tensor names to file names";
        wrong(index_path, "the index of shards cannot be read", expected, &printable(&error.to_string()))
    })?;
    if index.weight_map.len() > MAX_TENSORS {
        let what = "the index names more tensors than any model has";
        let found = index.weight_map.len().to_string();
        return Err(wrong(index_path, what, &format!("at most {MAX_TENSORS}"), &found));
    }
    let mut named: Vec<&String> = index.weight_map.values().collect::<HashSet<_>>().into_iter().collect();
    named.sort();
    if named.len() > MAX_FILES {
        let what = "the index names more files than any model has";
        return Err(wrong(index_path, what, &format!("at most {MAX_FILES}"), &named.len().to_string()));
    }
    let mut files: Vec<String> = Vec::new();
    for name in named {
        let file = inside(name).ok_or_else(|| {
            let expected = "files in the directory of the index, or below it";
            let found = format!("`{}`", printable(name));
            wrong(index_path, "the index names a shard outside the directory", expected, &found)
        })?;
        // Kept at its last position, because the shard that is read last wins.
        files.retain(|other| *other != file);
        files.push(file);
    }
    Ok(Shards { files, tensors: index.weight_map.into_keys().collect() })
}

/// The path of a shard below the index's folder, without `.`. `None` if it leads outside.
fn inside(name: &str) -> Option<String> {
    let part = |part| match part {
        Component::Normal(part) => Some(Some(part.to_str()?)),
        Component::CurDir => Some(None),
        _ => None,
    };
    let parts: Vec<Option<&str>> = Path::new(name).components().map(part).collect::<Option<_>>()?;
    let parts: Vec<&str> = parts.into_iter().flatten().collect();
    (!parts.is_empty() && !name.contains('\\')).then(|| parts.join("/"))
}

/// Returns whether the shard at `path` is inside `folder` after its links are resolved. Links into the hub's cache,
/// from snapshots to blobs, are allowed.
fn stays_inside(folder: &Path, path: &Path) -> bool {
    let (Ok(folder), Ok(path)) = (full(folder), full(path)) else { return true };
    let mut folders = path.ancestors().skip(1).filter_map(|folder| folder.file_name()?.to_str());
    path.starts_with(folder)
        || (folders.next() == Some("blobs")
            && folders.next().is_some_and(|name| name.starts_with("models--")))
}

fn wrong(index_path: &Path, what: &str, expected: &str, found: &str) -> Error {
    Error::model(what)
        .in_file(index_path)
        .expected(expected)
        .found(found)
        .next("fetch the index and every shard that it names again")
}

/// The files in the index, each once, as paths below its directory.
///
/// # Errors
/// Returns [`Error::Model`] if the index is damaged or names a file outside its directory.
pub fn shard_names(index_path: &Path) -> Result<Vec<String>> {
    Ok(read_index(index_path)?.files)
}

/// Reads one weight file. As in transformers, its name determines its kind.
pub(super) fn read_file(path: &Path) -> Result<Contents> {
    let (bytes, place) = (crate::files::map(path)?, path.display().to_string());
    match path.extension().is_some_and(|extension| extension == "safetensors") {
        true => safetensors::parse(&bytes, &place),
        false => pth::read(&bytes, &place),
    }
}

/// Opens every shard in the index once and merges their contents, as in transformers. The shards themselves determine
/// which tensors they hold, and the last shard with a tensor wins.
pub(super) fn read_shards(folder: &Path, index_path: &Path, notes: &mut Notes) -> Result<(Contents, usize)> {
    let Shards { files, tensors } = read_index(index_path)?;
    let mut all = Contents::default();
    let mut twice = HashSet::new();
    for file in &files {
        let path = folder.join(file);
        if !exists(&path) {
            let what = format!("the shard `{}` is missing", printable(file));
            return Err(wrong(index_path, &what, "every file that the index names", "no such file"));
        }
        if !stays_inside(folder, &path) {
            return Err(Error::model("the index names a shard that is a link out of the directory")
                .in_file(index_path)
                .expected("a file in the directory or below it, or a link into the hub's cache")
                .found(format!("`{}`", printable(file)))
                .next("replace the link by the file itself"));
        }
        let shard = read_file(&path)?;
        for name in shard.tensors.keys().chain(shard.unreadable.keys()) {
            all.rounded.remove(name);
            if all.tensors.remove(name).is_some() | all.unreadable.remove(name).is_some() {
                twice.insert(name.clone());
            }
        }
        all.tensors.extend(shard.tensors);
        all.unreadable.extend(shard.unreadable);
        all.rounded.extend(shard.rounded);
        if all.tensors.len() + all.unreadable.len() > MAX_TENSORS {
            let what = "the shards have more tensors than any model";
            return Err(wrong(index_path, what, &format!("at most {MAX_TENSORS}"), "more"));
        }
    }
    let is_there = |name: &String| all.tensors.contains_key(name) || all.unreadable.contains_key(name);
    notes.absent = tensors.into_iter().filter(|name| !is_there(name)).collect();
    notes.twice = twice.into_iter().collect();
    notes.twice.sort();
    Ok((all, files.len()))
}
