//! Meta's own format: params.json, and one or more files consolidated.NN.pth.
//!
//! A model that was trained on several devices is saved in as many files, each with a slice of every matrix
//! (fairscale's column- and row-parallel layers). The files do not say along which axis a tensor was split. It is the
//! axis along which the slices add up to the shape in the configuration.

mod params;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::contents::Contents;
use super::{Checkpoint, Format, Naming, Notes, Weight, gather, pth, unread};
use crate::files::{exists, folder_of, full, names, printable, read_text};
use llama_trace_core::config::ModelConfig;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::tensor::Tensor;

use params::Params;

/// The maximum size of a params.json in bytes. Real ones have two hundred bytes.
const MAX_PARAMS: u64 = 1 << 20;

/// The existing weight files in the directory `folder`, in order: `consolidated.00.pth`, `consolidated.01.pth`, … Empty
/// if there are none.
pub(super) fn shards(folder: &Path) -> Vec<PathBuf> {
    let mut numbers = BTreeSet::new();
    numbers.extend(names(folder).filter_map(|name| number(name.to_str()?)));
    numbers.into_iter().map(|number| folder.join(format!("consolidated.{number:02}.pth"))).collect()
}

/// Returns whether `path` is the params.json of a directory with weight files.
pub(super) fn is_params(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "params.json") && !shards(folder_of(path)).is_empty()
}

/// The number NN of a file called `consolidated.NN.pth`.
fn number(name: &str) -> Option<u8> {
    let digits = name.strip_prefix("consolidated.")?.strip_suffix(".pth")?;
    if digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_digit()) {
        digits.parse().ok()
    } else {
        None
    }
}

/// Opens the checkpoint in the directory `path` with the files `shards`, without the fields `ignore` of its
/// configuration.
///
/// # Errors
/// Returns [`Error::Model`] if a file is missing or damaged, or the model is of an unsupported kind.
pub(super) fn open(path: &Path, shards: &[PathBuf], ignore: &[String]) -> Result<Checkpoint> {
    for (i, shard) in shards.iter().enumerate() {
        let expected = path.join(format!("consolidated.{i:02}.pth"));
        if *shard != expected {
            return Err(Error::model(format!("the file {} is missing", expected.display()))
                .in_file(path)
                .expected("consolidated.00.pth and so on, without a gap")
                .found(shard.display())
                .next("fetch every file of the model into one directory"));
        }
    }
    let full = full(path).unwrap_or_else(|_| path.into());
    let name = full.file_name().unwrap_or(full.as_os_str()).to_string_lossy().into_owned();
    load(path, &path.join("params.json"), shards, name, ignore)
}

/// Opens the `.pth` file at `path`, with params.json beside it. If the name is `consolidated.NN.pth`, all files of the
/// model are opened.
///
/// # Errors
/// The errors of [`open`].
pub(super) fn open_file(path: &Path, ignore: &[String]) -> Result<Checkpoint> {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let folder = folder_of(path);
    if number(&name).is_some() {
        return open(folder, &shards(folder), ignore);
    }
    load(path, &folder.join("params.json"), &[path.into()], name, ignore)
}

fn load(
    path: &Path,
    params_path: &Path,
    files: &[PathBuf],
    name: String,
    ignore: &[String],
) -> Result<Checkpoint> {
    let parts = files
        .iter()
        .map(|file| pth::read(&crate::files::map(file)?, &file.display().to_string()))
        .collect::<Result<Vec<Contents>>>()?;
    if !exists(params_path) {
        return Err(Error::model("the model's params.json is missing")
            .in_file(params_path)
            .expected(
                "Meta's params.json beside the .pth files, with dim, n_layers and n_heads; or config.json beside \
                pytorch_model.bin",
            )
            .found("no such file")
            .next("fetch the model's params.json or config.json into the same directory"));
    }
    let params_place = params_path.display().to_string();
    let params = Params::read(&read_text(params_path, MAX_PARAMS)?, &params_place, ignore)?;
    let (embedding, head) = [Weight::Embedding, Weight::Head].map(|weight| Naming::Meta.name(weight)).into();
    let rows = rows(&parts, &embedding, params.dim);
    // The head is tied if it is missing, or if it and the embedding table are views of the same storage.
    let tied = parts.iter().all(|part| match (part.tensors.get(&embedding), part.tensors.get(&head)) {
        (Some(embedding), Some(head)) => embedding.bytes().same_place(head.bytes()),
        (_, None) => !part.unreadable.contains_key(&head),
        (None, Some(_)) => false,
    });
    let config = params.config(rows, tied).map_err(|error| error.at(&params_place))?;
    let place = path.display().to_string();
    let contents = assemble(parts, files, &config, &place)?;
    let unread = unread::screen(&contents, Naming::Meta, &config, &place)?;
    Ok(Checkpoint {
        name,
        format: Format::Meta { files: files.len() },
        path: Some(path.into()),
        built_in: None,
        config,
        // Not in these files; the tokenizer has the ids.
        eos: Vec::new(),
        notes: Notes { unread, rounded: contents.rounded.into_iter().collect(), ..params.notes },
        tensors: contents.tensors,
        unreadable: contents.unreadable,
        naming: Naming::Meta,
    })
}

/// The total number of rows of the embedding table. If its slices have fewer than `dim` columns, it was split by
/// dimension, as in Llama 1 and 2. Otherwise it was split by rows.
fn rows(parts: &[Contents], embedding: &str, dim: usize) -> Option<usize> {
    let shapes: Option<Vec<&[usize]>> =
        parts.iter().map(|part| part.tensors.get(embedding).map(Tensor::shape)).collect();
    let shapes = shapes?;
    match shapes[..] {
        [&[_, columns], ..] if columns == dim => {
            shapes.iter().try_fold(0_usize, |sum, shape| sum.checked_add(*shape.first()?))
        }
        [&[rows, _], ..] => Some(rows),
        _ => None,
    }
}

/// Joins the contents of the files to one model.
fn assemble(
    mut parts: Vec<Contents>,
    files: &[PathBuf],
    config: &ModelConfig,
    place: &str,
) -> Result<Contents> {
    if parts.len() == 1 {
        return Ok(parts.pop().unwrap_or_default());
    }
    let mut all = Contents::default();
    let names: BTreeSet<String> = parts.iter().flat_map(|part| part.tensors.keys().cloned()).collect();
    // Joined tensors may take at most the size of the files in memory. This must be checked, because one slice may have
    // many names.
    let mut room = pth::SPARE;
    for file in files {
        let size = crate::files::size(file).unwrap_or(0);
        room = room.saturating_add(usize::try_from(size).unwrap_or(usize::MAX));
    }
    for name in names {
        // Buffers, such as RoPE's frequencies, are not weights. They are complete in every file.
        let Some(weight) = Naming::Meta.weight(&name) else {
            all.tensors.extend(
                parts
                    .iter()
                    .find_map(|part| part.tensors.get_key_value(&name))
                    .map(|(name, tensor)| (name.clone(), tensor.clone())),
            );
            continue;
        };
        let slices = parts
            .iter()
            .zip(files)
            .map(|(part, file)| {
                part.tensors.get(&name).cloned().ok_or_else(|| {
                    Error::model(format!("tensor `{}` is not in every file of the model", printable(&name)))
                        .in_file(file)
                        .expected("a slice of this tensor")
                        .found(super::names::nearest(&name, part.tensors.keys()))
                        .next("check that the files belong to one model, and that all are there")
                })
            })
            .collect::<Result<Vec<Tensor>>>()?;
        let tensor = join(&name, &slices, &weight.shape(config), place)?;
        // A join along an axis copies. A tensor that is complete in every file is used in place.
        if tensor.shape() != slices[0].shape() {
            room = room.checked_sub(tensor.bytes().len()).ok_or_else(|| {
                Error::model("the joined slices would be larger than the files")
                    .at(place)
                    .expected("every slice once")
                    .found(format!("more bytes than the files have, at tensor `{}`", printable(&name)))
                    .next("fetch the files again")
            })?;
        }
        all.tensors.insert(name, tensor);
    }
    all.rounded = parts.iter_mut().flat_map(|part| std::mem::take(&mut part.rounded)).collect();
    let unreadable: BTreeMap<_, _> =
        parts.iter_mut().flat_map(|part| std::mem::take(&mut part.unreadable)).collect();
    all.unreadable = unreadable.into_iter().filter(|(name, _)| !all.tensors.contains_key(name)).collect();
    Ok(all)
}

/// Joins slices to a tensor of `shape`. Either the tensor is complete in every file, or it was split along the one axis
/// whose sizes add up.
fn join(name: &str, slices: &[Tensor], shape: &[usize], place: &str) -> Result<Tensor> {
    let first = &slices[0];
    let alike = |axis: Option<usize>| {
        slices.iter().all(|slice| {
            slice.dtype() == first.dtype()
                && slice.shape().len() == shape.len()
                && (0..shape.len()).all(|i| Some(i) == axis || slice.shape()[i] == shape[i])
        })
    };
    if alike(None) {
        return Ok(first.clone());
    }
    let axis = (0..shape.len()).find(|&axis| {
        let total = slices.iter().try_fold(0_usize, |sum, slice| sum.checked_add(*slice.shape().get(axis)?));
        total == Some(shape[axis]) && alike(Some(axis))
    });
    axis.and_then(|axis| gather::join(slices, axis)).ok_or_else(|| {
        let found: Vec<_> =
            slices.iter().take(16).map(|slice| format!("{} {:?}", slice.dtype(), slice.shape())).collect();
        Error::model(format!("the slices of tensor `{}` do not add up", printable(name)))
            .at(place)
            .expected(format!("slices along one axis that add up to {shape:?}, the shape by params.json"))
            .found(found.join(", "))
            .next("check that every file of the model is there, and that params.json belongs to them")
    })
}

#[cfg(test)]
mod tests;
