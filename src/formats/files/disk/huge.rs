//! Copies in huge pages. The processor translates addresses with page tables, and pages of 2 MiB need fewer entries
//! than pages of 4 KiB.

use std::fmt;
use std::ops::{Deref, Range};

#[cfg(target_os = "linux")]
use memmap2::MmapOptions;
use memmap2::{Mmap, MmapMut};

use llama_trace_core::error::{Error, Result};
use llama_trace_core::stop;
use llama_trace_core::tensor::Held;

/// The size of a huge page in bytes, and its binary logarithm.
const PAGE: usize = 1 << PAGE_BITS;
const PAGE_BITS: u8 = 21;

/// Every part is aligned to a cache line.
const LINE: usize = 64;

/// The number of bytes copied between two checks of the stop request.
const PIECE: usize = 16 << 20;

/// Memory in huge pages, as far as the system provided them.
#[derive(Debug)]
pub struct Huge(Mmap);

/// The kind of memory that the system provided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given {
    /// The number of bytes copied.
    bytes: usize,
    /// If too few huge pages were reserved: the number of bytes in transparent huge pages. The inner `None` means that
    /// the system does not report it.
    transparent: Option<Option<usize>>,
}

impl Huge {
    /// Copies `parts` into huge pages: into pages that the administrator has reserved, if there are enough, or else
    /// into transparent huge pages. Returns the copy, the range of each part in it, and the kind of memory.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory, [`Error::Interrupted`] if the process was asked to stop, and
    /// [`Error::Usage`] if the system is not Linux.
    pub(crate) fn copy(parts: &[&[u8]]) -> Result<(Self, Vec<Range<usize>>, Given)> {
        let mut bytes = 0;
        let place = |part: &&[u8]| {
            let range = bytes..bytes + part.len();
            bytes = range.end.next_multiple_of(LINE);
            range
        };
        let ranges: Vec<Range<usize>> = parts.iter().map(place).collect();
        let (mut map, reserved) = map(bytes.next_multiple_of(PAGE).max(PAGE))?;
        let mut copies = Vec::new();
        let mut rest = &mut map[..];
        for (part, range) in parts.iter().zip(&ranges) {
            let all;
            (all, rest) = rest.split_at_mut(range.len().next_multiple_of(LINE));
            copies.extend(part.chunks(PIECE).zip(all.chunks_mut(PIECE)));
        }
        // Copies on one thread. The compute threads start later, in the number that the user asked for.
        for (part, out) in copies {
            stop::check()?;
            out[..part.len()].copy_from_slice(part);
        }
        let transparent = (!reserved).then(|| transparent(map.as_ptr_range()));
        let map = Self(map.make_read_only().map_err(|error| no_memory(bytes, error))?);
        Ok((map, ranges, Given { bytes, transparent }))
    }
}

impl Held for Huge {
    /// A copy does not belong to a file, so there is nothing to give back.
    fn give_back(&self, _: Range<usize>) {}
}

impl Deref for Huge {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// Allocates `length` bytes in whole pages. Returns the memory, and whether its pages were reserved.
#[cfg(target_os = "linux")]
fn map(length: usize) -> Result<(MmapMut, bool)> {
    if let Ok(map) = MmapOptions::new().len(length).huge(Some(PAGE_BITS)).map_anon() {
        return Ok((map, true));
    }
    let map = MmapMut::map_anon(length).map_err(|error| no_memory(length, error))?;
    // A failure of `madvise` is not an error: the report says how many bytes are in huge pages.
    let _ = map.advise(memmap2::Advice::HugePage);
    Ok((map, false))
}

#[cfg(not(target_os = "linux"))]
fn map(_: usize) -> Result<(MmapMut, bool)> {
    Err(Error::usage("huge pages are not available on this system")
        .expected("Linux")
        .found(std::env::consts::OS)
        .next("leave --huge-pages out"))
}

fn no_memory(bytes: usize, error: impl fmt::Display) -> Error {
    Error::prompt("there is not enough memory for a copy of the weights")
        .expected(format!("room for {bytes} bytes more"))
        .found(error)
        .next("leave --huge-pages out; the weights are then read from the mapped file")
}

/// The number of bytes at `range` in transparent huge pages, if the system reports it.
fn transparent(range: Range<*const u8>) -> Option<usize> {
    let text = std::fs::read_to_string("/proc/self/smaps").ok()?;
    let (mut inside, mut bytes) = (false, None);
    for line in text.lines() {
        let first = line.split(' ').next().unwrap_or_default();
        if let Some((start, end)) = first.split_once('-') {
            let address = |text| usize::from_str_radix(text, 16).ok();
            // The system may list adjacent memory of the same kind together with this range.
            inside = address(start)? < range.end.addr() && address(end)? > range.start.addr();
        } else if let Some(size) = line.strip_prefix("AnonHugePages:").filter(|_| inside) {
            let kibibytes: usize = size.trim().strip_suffix(" kB")?.parse().ok()?;
            bytes = Some(bytes.unwrap_or(0) + (kibibytes << 10));
        }
    }
    Some(bytes?.min(range.end.addr() - range.start.addr()))
}

impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mebibytes = |bytes: usize| bytes.div_ceil(1 << 20);
        let (all, pages) = (mebibytes(self.bytes), self.bytes.div_ceil(PAGE));
        write!(f, "{all} MiB of weights were copied into ")?;
        match self.transparent {
            None => return write!(f, "{pages} reserved huge pages of 2 MiB"),
            Some(Some(bytes)) => write!(f, "memory with {} MiB in transparent huge pages", bytes >> 20)?,
            Some(None) => write!(f, "memory for which transparent huge pages were requested")?,
        }
        write!(f, "; fewer than the {pages} huge pages needed are reserved (/proc/sys/vm/nr_hugepages)")
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn parts_are_copied_whole_and_begin_with_a_line() {
        let parts: Vec<Vec<u8>> =
            [1, 64, 0, 3 << 20, PIECE + 7].map(|length| vec![length as u8; length]).into();
        let all = parts.iter().map(Vec::as_slice).collect::<Vec<_>>();
        let (copy, ranges, given) = Huge::copy(&all).unwrap();
        for (range, part) in ranges.into_iter().zip(&parts) {
            let copy = &copy[range];
            assert!(copy == part && copy.as_ptr().addr().is_multiple_of(LINE));
        }
        assert!(given.bytes >= parts.iter().map(Vec::len).sum());
        if let Some(transparent) = given.transparent {
            assert!(transparent.is_none_or(|bytes| bytes <= given.bytes.next_multiple_of(PAGE)));
        }
    }

    #[test]
    fn what_was_given_is_said() {
        let given = |transparent| Given { bytes: 5 << 20, transparent }.to_string();
        assert_eq!(given(None), "5 MiB of weights were copied into 3 reserved huge pages of 2 MiB");
        let text = given(Some(Some(4 << 20)));
        assert!(
            text.contains("4 MiB in transparent huge pages; fewer than the 3 huge pages needed are reserved"),
            "{text}"
        );
        assert!(given(Some(None)).contains("nr_hugepages"));
    }
}
