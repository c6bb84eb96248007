//! The header of GGUF files: little-endian key-value pairs, read in place. The specification is `docs/gguf.md` of ggml.

mod ends;
mod metadata;
mod reader;

#[cfg(any(test, feature = "testing"))]
pub mod build;

pub use ends::ENDS;
use llama_trace_core::error::{Error, Result};
pub(crate) use metadata::{List, Metadata};
pub(crate) use reader::Reader;

/// The part of a file before the tensor table, and the position of the table.
pub(crate) struct Header<'a> {
    /// 2 or 3. They differ only in that 3 may be big-endian, which is rejected.
    pub(crate) version: u32,
    /// The key-value pairs.
    pub(crate) metadata: Metadata<'a>,
    /// The number of tensors in the table.
    pub(crate) tensors: u64,
    /// A reader at the beginning of the table.
    pub(crate) rest: Reader<'a>,
}

/// Returns whether the file that begins with `bytes` is a GGUF file.
pub fn is_gguf(bytes: &[u8]) -> bool {
    bytes.starts_with(b"GGUF")
}

/// Reads the key-value pairs of `file`, found at `place`.
///
/// # Errors
/// Returns [`Error::Model`] if the file is damaged or of another version.
pub(crate) fn header<'a>(file: &'a [u8], place: &'a str) -> Result<Header<'a>> {
    let mut rest = Reader::new(file, place);
    let magic = rest.bytes(4, "the word GGUF")?;
    let version = rest.u32("the version")?;
    let wrong = |found: &str| {
        Error::model("the GGUF file has an unsupported version")
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
