//! The file of a trace under construction.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

/// Bytes of a tensor that are buffered before they are written.
const GATHERED: usize = 4 << 10;
/// Bytes read or moved at once.
const AT_ONCE: usize = 1 << 20;

/// The file, with a buffer for short writes to each tensor or part of a table.
pub(super) struct Out {
    pub(super) file: File,
    /// The offset of the tensors.
    pub(super) start: usize,
    /// The current offset of the file, if it is known.
    at: Option<u64>,
    gathered: HashMap<usize, Gathered>,
}

/// Buffered bytes and their place.
#[derive(Default)]
struct Gathered {
    at: usize,
    bytes: Vec<u8>,
}

impl Out {
    /// An output for tensors in `file` from byte `start` on.
    pub(super) fn new(file: File, start: usize) -> Self {
        Self { file, start, at: None, gathered: HashMap::new() }
    }

    /// Writes `bytes` to the position `offset` bytes after `place`, which is the start of a tensor or of a part of a
    /// table.
    pub(super) fn put(&mut self, place: usize, offset: usize, bytes: &[u8]) -> io::Result<()> {
        let at = place + offset;
        if bytes.len() >= GATHERED {
            return self.write(at, bytes);
        }
        let mut waiting = self.gathered.remove(&place).unwrap_or_default();
        if waiting.at + waiting.bytes.len() != at || waiting.bytes.len() + bytes.len() > GATHERED {
            self.write(waiting.at, &waiting.bytes)?;
            waiting.at = at;
            waiting.bytes.clear();
        }
        waiting.bytes.extend_from_slice(bytes);
        self.gathered.insert(place, waiting);
        Ok(())
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        for (_, waiting) in std::mem::take(&mut self.gathered) {
            self.write(waiting.at, &waiting.bytes)?;
        }
        Ok(())
    }

    fn write(&mut self, at: usize, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.go_to(at)?;
        self.at = None;
        self.file.write_all(bytes)?;
        self.at = Some((self.start + at + bytes.len()) as u64);
        Ok(())
    }

    fn go_to(&mut self, at: usize) -> io::Result<()> {
        let to = (self.start + at) as u64;
        if self.at != Some(to) {
            self.file.seek(SeekFrom::Start(to))?;
            self.at = Some(to);
        }
        Ok(())
    }

    /// Reads `bytes` bytes from `at` on, part by part.
    pub(super) fn read(&mut self, at: usize, bytes: usize, mut see: impl FnMut(&[u8])) -> io::Result<()> {
        let mut part = vec![0; AT_ONCE.min(bytes)];
        self.go_to(at)?;
        self.at = None;
        for done in (0..bytes).step_by(AT_ONCE) {
            let part = &mut part[..AT_ONCE.min(bytes - done)];
            self.file.read_exact(part)?;
            see(part);
        }
        Ok(())
    }

    /// Moves bytes towards the beginning; the ranges may overlap.
    pub(super) fn slide(&mut self, from: usize, to: usize, bytes: usize) -> io::Result<()> {
        let mut part = vec![0; AT_ONCE.min(bytes)];
        for done in (0..bytes).step_by(AT_ONCE) {
            let part = &mut part[..AT_ONCE.min(bytes - done)];
            self.go_to(from + done)?;
            self.file.read_exact(part)?;
            self.at = None;
            self.write(to + done, part)?;
        }
        Ok(())
    }
}
