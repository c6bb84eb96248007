//! GGUF, the file format of llama.cpp: a header with key-value pairs (the configuration and the
//! vocabulary), a table of tensors, and the tensors, many of them in ggml's block formats.
//!
//! Everything stays where it lies in the mapped file. The specification is `docs/gguf.md` of ggml.

mod config;
mod metadata;
mod reader;
mod split;
mod tensors;

#[cfg(test)]
pub(crate) mod build;

use std::ops::Range;
use std::path::Path;

use self::reader::Reader;
use super::tensor::{Contents, Dtypes, Tensor};
use super::{Checkpoint, Format, Naming, map};
use crate::error::{Error, Result};

pub(crate) use config::stop_ids;
pub(crate) use metadata::{List, Metadata};

/// What comes before the table of tensors, and where that is.
pub(crate) struct Header<'a> {
    /// 2 or 3; they differ only in that 3 may be big-endian, which is refused.
    version: u32,
    /// The key-value pairs.
    pub(crate) metadata: Metadata<'a>,
    tensors: u64,
    rest: Reader<'a>,
}

/// Whether the file that begins with `bytes` is a GGUF file.
pub(crate) fn is_gguf(bytes: &[u8]) -> bool {
    bytes.starts_with(b"GGUF")
}

/// Reads the key-value pairs of `file`, found at `place`.
///
/// # Errors
/// [`Error::Model`] where it is damaged or of another version.
pub(crate) fn header<'a>(file: &'a [u8], place: &'a str) -> Result<Header<'a>> {
    let mut rest = Reader::new(file, place);
    let magic = rest.bytes(4, "the word GGUF")?;
    let version = rest.u32("the version")?;
    let wrong = |found: &str| {
        Error::model("the GGUF file is of a version that is not read here")
            .at(place)
            .expected("GGUF version 2 or 3, little-endian")
            .found(found)
            .next("use a newer version of the file, or convert the model again")
    };
    match version {
        _ if magic != b"GGUF" => return Err(wrong("another kind of file")),
        2 | 3 => {}
        1 => return Err(wrong("version 1")),
        _ if matches!(version.swap_bytes(), 1..=3) => return Err(wrong("a big-endian file")),
        other => return Err(wrong(&format!("version {other}"))),
    }
    let tensors = rest.u64("the number of tensors")?;
    let keys = rest.u64("the number of keys")?;
    let metadata = Metadata::read(&mut rest, keys, place)?;
    Ok(Header { version, metadata, tensors, rest })
}

/// Where the values lie that are read when the file that begins with `bytes` is opened; none where these are not the
/// whole of what comes before the values, or are damaged.
pub(crate) fn values_to_open(bytes: &[u8]) -> Option<Vec<Range<u64>>> {
    let header = header(bytes, "").ok()?;
    tensors::places(&header, config::ROPE_FREQS).ok()
}

/// Opens the checkpoint at `path` without the keys `ignore` of its configuration, and where it was split into several files, all of them.
///
/// # Errors
/// [`Error::Model`] where a file is damaged or missing, or the model is of a kind not computed here.
pub(super) fn open(path: &Path, ignore: &[String]) -> Result<Checkpoint> {
    let paths = {
        let file = map::map(path)?;
        let place = path.display().to_string();
        split::parts(path, &header(&file, &place)?.metadata)?
    };
    let files = paths.iter().map(|path| map::map(path)).collect::<Result<Vec<_>>>()?;
    let places: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    let mut contents = Contents::default();
    let mut headers = Vec::new();
    for (part, (file, place)) in files.iter().zip(&places).enumerate() {
        let header = header(file, place)?;
        split::check(&header.metadata, part, files.len())?;
        split::join(&mut contents, tensors::read(file, &header, place)?, place)?;
        headers.push(header);
    }
    // The first part has the configuration; the others only say that they are parts.
    let (header, place) = (&mut headers[0], &places[0]);
    split::check_total(&header.metadata, &contents)?;
    let name = paths[0].file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let checkpoint = assemble(name, header, contents, files.len(), place, ignore)?;
    Ok(Checkpoint { path: Some(paths[0].clone()), ..checkpoint })
}

/// Puts together what the files say. The path is left empty.
fn assemble(
    name: String,
    header: &mut Header<'_>,
    mut contents: Contents,
    files: usize,
    place: &str,
    ignore: &[String],
) -> Result<Checkpoint> {
    let (config, notes) = config::model_config(&mut header.metadata, &mut contents, place, ignore)?;
    // Norms are float32 in every file; what tells files apart is how the matrices are stored.
    let matrices = contents.tensors.values().filter(|tensor| tensor.shape().len() > 1);
    let dtypes: Dtypes = matrices.map(Tensor::dtype).collect();
    Ok(Checkpoint {
        name,
        format: Format::Gguf { version: header.version, dtypes, files },
        path: None,
        config,
        eos: stop_ids(&header.metadata)?,
        notes,
        tensors: contents.tensors,
        unreadable: contents.unreadable,
        naming: Naming::Gguf,
    })
}

/// The checkpoint in the bytes of a whole file.
#[cfg(test)]
fn parse(file: &super::Bytes, place: &str) -> Result<Checkpoint> {
    let mut header = header(file, place)?;
    let contents = tensors::read(file, &header, place)?;
    assemble("test".into(), &mut header, contents, 1, place, &[])
}

#[cfg(test)]
mod tests;
