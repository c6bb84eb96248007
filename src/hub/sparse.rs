//! A sparse copy of a hub model, without its values. It is a temporary folder of files with the real names, sizes and
//! headers. Values are holes, which take no room on disk. The usual reader can then describe a model without a download
//! of gigabytes.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;

use super::client::{Answer, Client};
use llama_trace_core::error::{Error, Result};
use llama_trace_ending::scratch::{self, Scratch};
use llama_trace_formats::checkpoint::{gguf, safetensors};
use llama_trace_formats::files::gguf::is_gguf;
use llama_trace_formats::files::open_regular;

/// Bytes of the first request. They contain the names of a small model's tensors, but not a large vocabulary.
const FIRST: u64 = 1 << 18;
/// The maximum number of bytes that are requested to find the end of a header.
const MAX_HEADER: u64 = 64 << 20;

/// A sparse copy in a temporary folder, which is removed when this value is dropped.
#[derive(Debug)]
pub struct SparseCopy {
    folder: Scratch,
    /// Bytes of the weights' files that were not downloaded.
    pub left: u64,
}

impl SparseCopy {
    pub(super) fn new() -> Result<Self> {
        let (parent, kind) = (std::env::temp_dir(), "sparse");
        scratch::remove_left(&parent, kind, |_| Ok(()));
        Ok(Self { folder: Scratch::new(&parent, kind).map_err(|error| cannot_write(&error))?, left: 0 })
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Copies a completely downloaded file into the folder.
    pub(super) fn copy(&self, file: &str, from: &Path) -> Result<()> {
        let (mut from, _) = open_regular(from)?;
        File::create_new(self.folder().join(file))
            .and_then(|mut to| std::io::copy(&mut from, &mut to))
            .map(drop)
            .map_err(|error| cannot_write(&error))
    }

    /// Downloads those parts of a weights file that describe it. The file has `size` bytes. The outer error is one of
    /// this machine, the inner error one of the hub.
    pub(super) fn weights(
        &mut self,
        client: &Client<'_>,
        commit: &str,
        file: &str,
        size: u64,
    ) -> Result<Answer<()>> {
        let parts = match parts(size, |part| client.part(commit, file, &part)) {
            Ok(parts) => parts,
            Err(failure) => return Ok(Err(failure)),
        };
        let path = self.folder().join(file);
        let write = || {
            fs::create_dir_all(path.parent().unwrap_or(Path::new("")))?;
            let mut out = File::create(&path)?;
            out.set_len(size)?;
            for (start, bytes) in &parts {
                out.seek(SeekFrom::Start(*start))?;
                out.write_all(bytes)?;
            }
            Ok(())
        };
        write().map_err(|error: std::io::Error| cannot_write(&error))?;
        self.left += size - parts.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>();
        Ok(Ok(()))
    }
}

/// The first position of a chunk of a file, and its bytes.
type Chunk = (u64, Vec<u8>);

/// Returns the parts of a file of `size` bytes that are read when it is opened: the header, and the values that belong
/// to the configuration.
fn parts(size: u64, fetch: impl Fn(Range<u64>) -> Answer<Vec<u8>>) -> Answer<Vec<Chunk>> {
    let (mut head, mut beyond) = (Vec::new(), Vec::new());
    let mut end = FIRST.min(size);
    while (head.len() as u64) < end {
        head.extend(fetch(head.len() as u64..end)?);
        if is_gguf(&head) {
            if let Some(values) = gguf::values_to_open(&head) {
                beyond = values;
                break;
            }
        } else if safetensors::header_end(&head).is_some_and(|end| end <= head.len() as u64) {
            break;
        }
        // A header without an end is damaged: opening the file reports it.
        end = (4 * end).min(size).min(MAX_HEADER);
    }
    beyond.retain(|part| part.end > head.len() as u64 && part.end <= size);
    let mut parts = vec![(0, head)];
    for part in beyond {
        parts.push((part.start, fetch(part)?));
    }
    Ok(parts)
}

fn cannot_write(error: &std::io::Error) -> Error {
    Error::output("the model's headers cannot be stored")
        .in_file(&std::env::temp_dir())
        .expected("free space and write permission in the folder for temporary files")
        .found(error)
        .next("free some space, or set TMPDIR to another folder")
}

#[cfg(test)]
mod tests {
    use super::*;
    use llama_trace_formats::files::gguf::build::Build;
    use std::cell::RefCell;

    /// The requested ranges of a file, and the returned parts.
    fn ask(file: &[u8]) -> (Vec<(u64, u64)>, Vec<Chunk>) {
        let asked = RefCell::new(Vec::new());
        let parts = parts(file.len() as u64, |part| {
            asked.borrow_mut().push((part.start, part.end));
            Ok(file[part.start as usize..part.end as usize].to_vec())
        });
        (asked.into_inner(), parts.unwrap())
    }

    #[test]
    fn a_short_header_takes_one_question_and_a_long_one_more() {
        let file = |length: usize| {
            let mut file = (length as u64).to_le_bytes().to_vec();
            file.resize(length + 10_000_000, b' ');
            file
        };
        assert_eq!(ask(&file(10_000)).0, [(0, FIRST)]);
        assert_eq!(ask(&file(300_000)).0, [(0, FIRST), (FIRST, 4 * FIRST)]);
        let (asked, parts) = ask(&file(300_000)[..300_000]);
        assert_eq!((asked, parts[0].1.len()), (vec![(0, FIRST), (FIRST, 300_000)], 300_000));
        assert!(ask(b"").1[0].1.is_empty());
        assert_eq!(ask(&[0xff; 9]).0, [(0, 9)]);
    }

    #[test]
    fn of_a_gguf_file_the_frequencies_come_too() {
        let rows = |build: Build| {
            build.row("token_embd.weight", &[1 << 18], 0, 0).row("rope_freqs.weight", &[2], 0, 1 << 20)
        };
        let mut file = rows(Build::new().text("general.architecture", "llama")).bytes();
        let start = file.len() as u64 + (1 << 20);
        file.resize(start as usize + 8, 7);
        let (asked, parts) = ask(&file);
        assert_eq!(asked, [(0, FIRST), (start, start + 8)]);
        assert_eq!(parts[1], (start, vec![7; 8]));
        // The file is truncated before the values: no missing bytes are requested.
        assert_eq!(ask(&file[..500_000]).0, [(0, FIRST)]);
        // A long vocabulary.
        let words: Vec<_> = (0..40_000).map(|number| format!("{number:09}")).collect();
        let mut file = rows(Build::new().texts("tokenizer.ggml.tokens", &words)).bytes();
        file.resize(file.len() + (1 << 20) + 8, 0);
        assert_eq!(ask(&file).0[..2], [(0, FIRST), (FIRST, 4 * FIRST)]);
    }
}
