//! GGUF, the file format of llama.cpp: a header with key-value pairs (the configuration and the vocabulary), a table of
//! tensors, and the tensors. Many tensors are in ggml's block formats.
//!
//! All data stay in the mapped file. The specification is `docs/gguf.md` of ggml.

mod config;
mod keys;
mod rope;
mod split;
mod tensors;

use std::ops::Range;
use std::path::Path;

use super::contents::Contents;
use super::{Checkpoint, Format};
use crate::files::gguf::{Header, header};
use llama_trace_core::error::Result;
use llama_trace_core::tensor::{Dtypes, Tensor};

/// The byte ranges of the tensor values that are read when a file beginning with `bytes` is opened. `None` if `bytes`
/// does not hold the complete header and table, or if they are damaged.
pub fn values_to_open(bytes: &[u8]) -> Option<Vec<Range<u64>>> {
    let header = header(bytes, "").ok()?;
    let places = rope::DIVISORS.iter().map(|name| tensors::places(&header, name));
    Some(places.collect::<Result<Vec<_>>>().ok()?.concat())
}

/// Opens the checkpoint at `path` without the keys `ignore` of its configuration. If it was split into several files,
/// all of them are opened.
///
/// # Errors
/// Returns [`Error::Model`] if a file is damaged or missing, or the model is of an unsupported kind.
pub(super) fn open(path: &Path, ignore: &[String]) -> Result<Checkpoint> {
    let paths = {
        let file = crate::files::map(path)?;
        let place = path.display().to_string();
        split::parts(path, &header(&file, &place)?.metadata)?
    };
    let files = paths.iter().map(|path| crate::files::map(path)).collect::<Result<Vec<_>>>()?;
    let places: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    let mut contents = Contents::default();
    let mut headers = Vec::new();
    for (part, (file, place)) in files.iter().zip(&places).enumerate() {
        let header = header(file, place)?;
        split::check(&header.metadata, part, files.len())?;
        split::join(&mut contents, tensors::read(file, &header, place)?, place)?;
        headers.push(header);
    }
    // The first part has the configuration. The metadata of the other parts only says which part they are.
    let (header, place) = (&mut headers[0], &places[0]);
    split::check_total(&header.metadata, &contents)?;
    let name = paths[0].file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let checkpoint = assemble(name, header, contents, files.len(), place, ignore)?;
    Ok(Checkpoint { path: Some(paths[0].clone()), ..checkpoint })
}

/// Assembles the checkpoint from its parts, without the path.
fn assemble(
    name: String,
    header: &mut Header<'_>,
    mut contents: Contents,
    files: usize,
    place: &str,
    ignore: &[String],
) -> Result<Checkpoint> {
    let (config, naming, notes) = config::model_config(&mut header.metadata, &mut contents, place, ignore)?;
    // Norms are float32 in every file. Files differ in the types of their matrices.
    let matrices = contents.tensors.values().filter(|tensor| tensor.shape().len() > 1);
    let dtypes: Dtypes = matrices.map(Tensor::dtype).collect();
    Ok(Checkpoint {
        name,
        format: Format::Gguf { version: header.version, dtypes, files },
        path: None,
        built_in: None,
        config,
        eos: header.metadata.ends()?.ids,
        notes,
        tensors: contents.tensors,
        unreadable: contents.unreadable,
        naming,
    })
}

/// The checkpoint in the bytes of a whole file.
#[cfg(test)]
fn parse(file: &llama_trace_core::tensor::Bytes, place: &str) -> Result<Checkpoint> {
    let mut header = header(file, place)?;
    let contents = tensors::read(file, &header, place)?;
    assemble("test".into(), &mut header, contents, 1, place, &[])
}

#[cfg(test)]
mod tests;
