//! A model split into several GGUF files, `name-00001-of-00003.gguf`, with the names and keys of llama.cpp's
//! `gguf-split`.

use std::path::{Path, PathBuf};

use crate::checkpoint::contents::Contents;
use crate::checkpoint::limits::MAX_FILES;
use crate::files::gguf::Metadata;
use crate::files::{exists, printable};
use llama_trace_core::error::{Error, Result};

/// The files of a model in order. `path` is one of them, and `metadata` is the metadata of this file.
///
/// # Errors
/// Returns [`Error::Model`] if the file is a part of a model and the other parts cannot be found.
pub(super) fn parts(path: &Path, metadata: &Metadata<'_>) -> Result<Vec<PathBuf>> {
    let count = metadata.size("split.count")?.unwrap_or(1);
    if count <= 1 {
        return Ok(vec![path.into()]);
    }
    if count > MAX_FILES {
        return Err(metadata.wrong("split.count", &format!("at most {MAX_FILES} files"), count));
    }
    let number = metadata.required_size("split.no")?;
    let wrong = |what: String, found: String| {
        Error::model(what)
            .in_file(path)
            .expected(format!(
                "{count} files in one directory, with names that end in -00001-of-{count:05}.gguf and so on"
            ))
            .found(found)
            .next("put all parts of the model into one directory, under their original names")
    };
    let file_name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let ending = format!("-{:05}-of-{count:05}.gguf", number + 1);
    let Some(stem) = file_name.strip_suffix(&ending) else {
        let what =
            format!("the file is part {} of {count} of a model, but its name does not say so", number + 1);
        return Err(wrong(what, format!("`{}`", printable(&file_name))));
    };
    let mut paths = Vec::new();
    for part in 1..=count {
        let name = format!("{stem}-{part:05}-of-{count:05}.gguf");
        let part = path.with_file_name(&name);
        if !exists(&part) {
            return Err(wrong(
                format!("a part of the model is missing: {}", printable(&name)),
                "no such file".into(),
            ));
        }
        paths.push(part);
    }
    Ok(paths)
}

/// Checks that a file with this metadata is part `part` (from 0) of `count`.
///
/// # Errors
/// Returns [`Error::Model`] if the metadata disagrees.
pub(super) fn check(metadata: &Metadata<'_>, part: usize, count: usize) -> Result<()> {
    if count == 1 {
        return Ok(());
    }
    for (key, expected) in [("split.no", part), ("split.count", count)] {
        let found = metadata.required_size(key)?;
        if found != expected {
            return Err(metadata.wrong(key, &format!("{expected}, as the file's name says"), found));
        }
    }
    Ok(())
}

/// Adds the tensors of a part, found at `place`, to `all`.
///
/// # Errors
/// Returns [`Error::Model`] if an earlier part has a tensor of the same name.
pub(super) fn join(all: &mut Contents, part: Contents, place: &str) -> Result<()> {
    let known = |name: &String| all.tensors.contains_key(name) || all.unreadable.contains_key(name);
    if let Some(name) = part.tensors.keys().chain(part.unreadable.keys()).find(|name| known(name)) {
        return Err(Error::model(format!("tensor `{}` is in two parts of the model", printable(name)))
            .at(place)
            .expected("each tensor in only one part")
            .next("check that the files are parts of one model"));
    }
    all.tensors.extend(part.tensors);
    all.unreadable.extend(part.unreadable);
    Ok(())
}

/// Checks that all parts together have the number of tensors given in the first one.
///
/// # Errors
/// Returns [`Error::Model`] if they do not.
pub(super) fn check_total(metadata: &Metadata<'_>, all: &Contents) -> Result<()> {
    let found = all.tensors.len() + all.unreadable.len();
    match metadata.size("split.tensors.count")? {
        Some(expected) if expected != found => Err(metadata.wrong(
            "split.tensors.count",
            &format!("{found}, the number of tensors in all parts together"),
            expected,
        )),
        _ => Ok(()),
    }
}
