//! Memory-mapping a file, and giving memory back: the one place of the checkpoint reader that needs `unsafe`.
#![allow(unsafe_code)]

use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

use super::files::open_regular;
use super::tensor::Bytes;
#[cfg(unix)]
use crate::ending::lost;
use crate::error::{Error, Result};

/// A file that is mapped. Reading a part that is lost ends the process with a message that names it.
#[derive(Debug)]
pub struct File {
    #[cfg(unix)]
    _watched: lost::Watched,
    map: Mmap,
}

impl File {
    fn new(map: Mmap, path: &Path) -> Self {
        #[cfg(unix)]
        let error = Error::model(
            "the file cannot be read any more: it became shorter while it was open, or its disk failed",
        )
        .in_file(path)
        .expected(format!("{} bytes, as when it was opened", map.len()))
        .next("start again once no other program writes to the file");
        #[cfg(not(unix))]
        let _ = path;
        Self {
            #[cfg(unix)]
            _watched: lost::watch_memory(map.as_ptr() as usize, map.len(), &error),
            map,
        }
    }
}

impl Deref for File {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

/// Maps the whole file at `path`, read-only. Its pages are read when they are first touched, so that a
/// file of many gigabytes opens at once.
///
/// What a mapping cannot promise: when another process shortens the file while it is mapped, touching
/// the lost pages ends this process (in order, see [`lost`]), and when one writes to it, values change under
/// the reader. No program can rule that out short of copying the file; a model must lie still while it runs.
///
/// # Errors
/// [`Error::Model`] where the file cannot be opened, is not a regular one, is empty, or cannot be mapped.
pub(crate) fn map(path: &Path) -> Result<Bytes> {
    let (file, size) = open_regular(path)?;
    if size == 0 {
        return Err(Error::model("the file is empty")
            .in_file(path)
            .expected("a model or tokenizer")
            .found("0 bytes")
            .next("fetch the file again"));
    }
    // SAFETY: the map is read-only and only shared slices of it are handed out, so nothing in this process
    // changes the bytes. That no other process does is the condition stated above, which the caller of a
    // program that maps its model accepts.
    let map = unsafe { Mmap::map(&file) }.map_err(|error| {
        Error::model("the file cannot be mapped into memory")
            .in_file(path)
            .expected(format!("room for {size} bytes of address space"))
            .found(error)
            .next("raise the process's memory limit (ulimit -v), or use a smaller model")
    })?;
    let length = map.len();
    Ok(Bytes::Mapped(Arc::new(File::new(map, path)), 0..length))
}

/// Whether both have the same bytes. These may be gigabytes, which should not stay in memory because somebody
/// looked at them once: what was compared is given back.
pub(super) fn equal(a: &Bytes, b: &Bytes) -> bool {
    const CHUNK: usize = 16 << 20;
    a.len() == b.len()
        && (0..a.len()).step_by(CHUNK).all(|start| {
            let chunk = start..(start + CHUNK).min(a.len());
            let same = a[chunk.clone()] == b[chunk.clone()];
            give_back(a, &chunk);
            give_back(b, &chunk);
            same
        })
}

/// Gives back the memory that the bytes at `range` take since they were read, where they are a mapped file's.
fn give_back(bytes: &Bytes, range: &Range<usize>) {
    #[cfg(unix)]
    if let Bytes::Mapped(map, whole) = bytes {
        let (advice, start) = (memmap2::UncheckedAdvice::DontNeed, whole.start + range.start);
        // SAFETY: nobody writes to the map, so that a page that is read again has the file's bytes as before. That
        // the advice is not taken is no error.
        let _ = unsafe { map.map.unchecked_advise_range(advice, start, range.len()) };
    }
    #[cfg(not(unix))]
    let _ = (bytes, range);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_stretches_are_compared_to_their_last_byte() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let half = vec![7; (16 << 20) + 5];
        std::fs::write(&path, [&half[..], &half].concat()).unwrap();
        let file = map(&path).unwrap();
        let part = |from: usize, to: usize| file.slice(from..to).unwrap();
        assert!(equal(&part(0, half.len()), &part(half.len(), 2 * half.len())));
        assert!(!equal(&part(1, half.len()), &part(half.len(), 2 * half.len())));
        let mut other = half.clone();
        other[half.len() - 1] = 8;
        assert!(!equal(&part(0, half.len()), &Bytes::owned(other)));
        assert_eq!(file[..], [&half[..], &half].concat(), "they are still there");
    }

    #[test]
    fn a_mapped_file_has_the_files_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, b"abc").unwrap();
        let bytes = map(&path).unwrap();
        assert_eq!(&*bytes, b"abc");
        assert_eq!(&*bytes.slice(1..3).unwrap(), b"bc");
    }

    #[test]
    fn an_empty_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, b"").unwrap();
        assert!(map(&path).unwrap_err().to_string().contains("the file is empty"));
    }
}
