//! A Hugging Face directory: config.json, and the weights as safetensors or as PyTorch's pickles, in one file or in
//! shards with an index.

mod index;
#[cfg(test)]
mod tests;

use std::path::Path;

use super::contents::Contents;
use super::hf_config::Described;
use super::{Checkpoint, Format, Naming, Weight, hf_config, stored, unread};
use crate::files::{exists, folder_of as folder_of_file, full, names, printable, read_text};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::tensor::Tensor;

pub use index::shard_names;

/// The maximum size in bytes of a config.json or generation_config.json. Real ones have a few kilobytes.
const MAX_CONFIG: u64 = 1 << 20;

/// The files with all weights, or with the index of the shards. As in transformers, the first existing one is read.
pub const WEIGHTS: [&str; 4] = [
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
];

/// Returns whether a file of [`WEIGHTS`] is an index of shards.
pub fn is_index(name: &str) -> bool {
    name.ends_with(".index.json")
}

/// Returns whether the directory `path` has the files that [`open`] reads.
pub(super) fn is_here(path: &Path) -> bool {
    exists(&path.join("config.json")) && weights(path).is_some()
}

/// The file of [`WEIGHTS`] from which a directory's weights are read.
fn weights(folder: &Path) -> Option<&'static str> {
    WEIGHTS.into_iter().find(|name| exists(&folder.join(name)))
}

/// The directory of a model, if `path` is one of its files: the weights, the index, a shard in the index, or
/// config.json.
pub(super) fn folder_of(path: &Path) -> Option<&Path> {
    let (folder, name) = (folder_of_file(path), path.file_name()?.to_str()?);
    let is_shard = || {
        let index = weights(folder).filter(|name| is_index(name)).map(|name| folder.join(name));
        index.is_some_and(|index| {
            shard_names(&index).is_ok_and(|names| names.iter().any(|shard| shard == name))
        })
    };
    let one_of_its_files = WEIGHTS.contains(&name) || name == "config.json" || is_shard();
    (is_here(folder) && one_of_its_files).then_some(folder)
}

/// Opens the checkpoint in the directory `path` without the fields `ignore` of its configuration.
///
/// # Errors
/// Returns [`Error::Model`] if a file is missing or damaged, or the model is of an unsupported kind.
pub(super) fn open(path: &Path, ignore: &[String]) -> Result<Checkpoint> {
    let config_path = path.join("config.json");
    let weights = weights(path).filter(|_| exists(&config_path)).ok_or_else(|| no_model(path))?;
    let config_text = read_text(&config_path, MAX_CONFIG)?;
    let config_place = config_path.display().to_string();
    let mut described = hf_config::model_config(&config_text, &config_place, ignore)?;
    let generation_path = path.join("generation_config.json");
    let generation_place = generation_path.display().to_string();
    let generation = match exists(&generation_path) {
        true => Some(read_text(&generation_path, MAX_CONFIG)?),
        false => None,
    };
    let generation = generation.as_ref().map(|text| (text.as_str(), generation_place.as_str()));
    let eos = hf_config::stop_ids(generation, (&config_text, &config_place))?;
    let (contents, files) = match is_index(weights) {
        true => index::read_shards(path, &path.join(weights), &mut described.notes)?,
        false => (index::read_file(&path.join(weights))?, 1),
    };
    // `.` and `..` have no name of their own.
    let full = full(path).unwrap_or_else(|_| path.into());
    let name = full.file_name().unwrap_or(full.as_os_str()).to_string_lossy().into_owned();
    let format = Format::HuggingFace { files, pickled: weights.starts_with("pytorch") };
    let checkpoint = assemble(name, described, eos, contents, format, &path.display().to_string())?;
    Ok(Checkpoint { path: Some(path.into()), ..checkpoint })
}

/// Assembles a checkpoint from the contents of a directory's files. The path is not set, because the contents may come
/// from the built-in model.
///
/// # Errors
/// Returns [`Error::Model`] if a tensor belongs to an unsupported part.
pub(super) fn assemble(
    name: String,
    described: Described,
    eos: Vec<u32>,
    contents: Contents,
    format: Format,
    place: &str,
) -> Result<Checkpoint> {
    let Described { mut config, family, mut notes } = described;
    let naming = Naming::HuggingFace(family.names);
    let mut contents = match notes.text_model_of {
        Some(_) => contents.renamed(without_wrapper, place)?,
        None => contents,
    }
    .renamed(with_base, place)?;
    stored::separate(&mut contents, family.stored, naming, &config, place)?;
    notes.unread = unread::screen(&contents, naming, &config, place)?;
    if notes.text_model_of.is_some() {
        // One line says that the parts for images are not opened.
        notes.unread.retain(|name| !PARTS_FOR_IMAGES.iter().any(|part| name.starts_with(part)));
    }
    let Contents { tensors, unreadable, rounded } = contents;
    notes.rounded = rounded.into_iter().collect();
    if config.tied {
        // As in transformers 5: if both the embedding table and the head are stored, and they differ, the model is not
        // tied, although the configuration says so.
        let [embedding, head] =
            [Weight::Embedding, Weight::Head].map(|weight| tensors.get(&naming.name(weight)));
        if let (Some(embedding), Some(head)) = (embedding, head) {
            config.tied = Tensor::equal(embedding, head);
        }
    }
    Ok(Checkpoint {
        name,
        format,
        path: None,
        built_in: None,
        config,
        eos,
        notes,
        tensors,
        unreadable,
        naming,
    })
}

/// The beginnings of the names of tensors that only read images.
const PARTS_FOR_IMAGES: [&str; 2] = ["vision_tower.", "multi_modal_projector."];

/// The name that a tensor of a model of several kinds of input has in its text model. Tensors of other parts lose the
/// prefix `model.`. Files of transformers 4 have `language_model.model.`, those of transformers 5 `model.language_model.`.
fn without_wrapper(name: &str) -> String {
    let name = name.strip_prefix("model.").unwrap_or(name);
    match name.strip_prefix("language_model.") {
        Some(inner) => inner.into(),
        None => name.into(),
    }
}

/// The name of a tensor in a model with an output head. A model saved without its head has no `model.` before its
/// names. A model saved as a part of another model may have `model.` twice, or also before the head's name.
/// transformers reads all these names.
fn with_base(name: &str) -> String {
    let starts = |starts: &[&str]| starts.iter().any(|start| name.starts_with(start));
    if starts(&["layers.", "embed_tokens.", "norm."]) {
        format!("model.{name}")
    } else if starts(&["model.model.", "model.lm_head."]) {
        name["model.".len()..].into()
    } else {
        name.into()
    }
}

/// The error for a directory without a model. It lists the files found instead.
fn no_model(path: &Path) -> Error {
    const TELLING: [&str; 8] = ["json", "safetensors", "gguf", "pth", "bin", "pt", "model", "ckpt"];
    let mut found: Vec<String> = names(path)
        .map(|name| name.to_string_lossy().into_owned())
        .filter(|name| TELLING.iter().any(|ending| name.ends_with(&format!(".{ending}"))))
        .take(1000)
        .collect();
    found.sort();
    let more = found.len().saturating_sub(8);
    found.truncate(8);
    let mut names = found.iter().map(|name| printable(name)).collect::<Vec<_>>().join(", ");
    if names.is_empty() {
        names = "no model file at all".into();
    } else if more > 0 {
        names += &format!(" and {more} more");
    }
    Error::model("the directory holds no model that this program supports")
        .in_file(path)
        .expected(
            "config.json with model.safetensors or pytorch_model.bin (or shards and their index), or Meta's params.json \
            with consolidated.00.pth",
        )
        .found(names)
        .next("give the directory of a Llama in Hugging Face's or Meta's layout, a GGUF file, or a llama2.c .bin file")
}
