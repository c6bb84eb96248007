//! Memory-mapping a file, and giving memory back: the one place where reading files needs `unsafe`.
#![allow(unsafe_code)]

use std::ops::{Deref, Range};
use std::path::Path;

use memmap2::Mmap;

use super::regular::open_regular;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::tensor::{Bytes, Held};
#[cfg(unix)]
use llama_trace_ending::lost;

/// A file that is mapped. Reading a part that is lost ends the process with a message that names it.
#[derive(Debug)]
pub struct File {
    #[cfg(unix)]
    _watched: lost::Watched,
    map: Mmap,
}

impl File {
    /// Maps the whole file at `path`, read-only. Its pages are read when they are first touched, so that a
    /// file of many gigabytes opens at once.
    ///
    /// What a mapping cannot promise: when another process shortens the file while it is mapped, touching
    /// the lost pages ends this process (in order, see [`lost`]), and when one writes to it, values change under
    /// the reader. No program can rule that out short of copying the file; a model must lie still while it runs.
    ///
    /// # Errors
    /// [`Error::Model`] where the file cannot be opened, is not a regular one, is empty, or cannot be mapped;
    /// [`Error::Prompt`] where there is no memory for it.
    fn open(path: &Path) -> Result<Self> {
        let (file, size) = open_regular(path)?;
        if size == 0 {
            return Err(Error::model("the file is empty")
                .in_file(path)
                .expected("a model, a tokenizer or a trace")
                .found("0 bytes")
                .next("fetch or make the file again"));
        }
        // SAFETY: the map is read-only and only shared slices of it are handed out, so nothing in this process
        // changes the bytes. That no other process does is the condition stated above, which the caller of a
        // program that maps its model accepts.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| {
            let failed = match error.kind() {
                std::io::ErrorKind::OutOfMemory => Error::prompt("there is not enough memory for the file"),
                _ => Error::model("the file cannot be mapped into memory"),
            };
            failed
                .in_file(path)
                .expected(format!("room for {size} bytes of address space"))
                .found(error)
                .next("raise the process's memory limit (ulimit -v), or use a smaller model")
        })?;
        Ok(Self::new(map, path))
    }

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

impl Held for File {
    fn give_back(&self, range: Range<usize>) {
        #[cfg(unix)]
        {
            let advice = memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: nobody writes to the map, so that a page that is read again has the file's bytes as before.
            // That the advice is not taken is no error.
            let _ = unsafe { self.map.unchecked_advise_range(advice, range.start, range.len()) };
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}

/// The bytes of the whole file at `path`, mapped read-only: a model must lie still while it runs.
///
/// # Errors
/// [`Error::Model`] where the file cannot be opened, is not a regular one, is empty, or cannot be mapped;
/// [`Error::Prompt`] where there is no memory for it.
pub fn map(path: &Path) -> Result<Bytes> {
    File::open(path).map(Bytes::held)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_file_has_the_files_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, b"abc").unwrap();
        assert_eq!(&*File::open(&path).unwrap(), b"abc");
    }

    #[test]
    fn an_empty_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, b"").unwrap();
        assert!(File::open(&path).unwrap_err().to_string().contains("the file is empty"));
    }

    #[test]
    fn long_stretches_are_compared_to_their_last_byte() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let half = vec![7; (16 << 20) + 5];
        std::fs::write(&path, [&half[..], &half].concat()).unwrap();
        let file = map(&path).unwrap();
        let part = |from: usize, to: usize| file.slice(from..to).unwrap();
        assert!(part(0, half.len()).equal(&part(half.len(), 2 * half.len())));
        assert!(!part(1, half.len()).equal(&part(half.len(), 2 * half.len())));
        let mut other = half.clone();
        other[half.len() - 1] = 8;
        assert!(!part(0, half.len()).equal(&Bytes::owned(other)));
        assert_eq!(file[..], [&half[..], &half].concat(), "they are still there");
    }
}
