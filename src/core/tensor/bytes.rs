//! Shared bytes, and slices of them.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::{Arc, LazyLock};

use super::noise::Noise;
use crate::stop;

/// The owner of bytes that stay valid and unchanged while it lives: a mapped file, a copy in huge pages.
pub trait Held: Deref<Target = [u8]> + Send + Sync {
    /// Releases the memory of the bytes at `range`, if they can be read again.
    fn give_back(&self, range: Range<usize>);
}

/// Bytes with shared ownership: part of a mapped file, of the program, or of memory.
#[derive(Clone)]
pub enum Bytes {
    /// A range of an owner's bytes.
    Held(Arc<dyn Held>, Range<usize>),
    /// A part of the binary.
    Static(&'static [u8]),
    /// A range of bytes that are assembled in memory.
    Built(Arc<Built>, Range<usize>),
    /// A range of an allocation.
    Owned(Arc<[u8]>, Range<usize>),
}

/// Bytes that are assembled in memory at the first read. Looking at a model that is split in parts then costs nothing,
/// and running it costs one copy.
pub struct Built {
    /// The number of bytes, known before they are built.
    length: usize,
    /// The bytes as 64-bit words, so that float32 values are aligned. The last word may be padded.
    words: LazyLock<Box<[u64]>, Build>,
    /// The formula of random bytes; `None` for other bytes.
    noise: Option<Noise>,
}

/// Builds the words of a [`Built`].
type Build = Box<dyn FnOnce() -> Box<[u64]> + Send>;

impl Bytes {
    /// All bytes of `owner`.
    pub fn held(owner: impl Held + 'static) -> Self {
        let length = owner.len();
        Self::Held(Arc::new(owner), 0..length)
    }

    /// `length` bytes, all written by `fill` at the first read.
    pub fn build(length: usize, fill: impl FnOnce(&mut [u8]) + Send + 'static) -> Self {
        let build = move || {
            let mut words = vec![0_u64; length.div_ceil(8)];
            fill(&mut bytemuck::cast_slice_mut(&mut words)[..length]);
            words.into_boxed_slice()
        };
        let words = LazyLock::<_, Build>::new(Box::new(build));
        Self::Built(Arc::new(Built { length, words, noise: None }), 0..length)
    }

    /// `length` random bytes, generated at the first read, unless a device generates them itself ([`Bytes::noise`]). If
    /// the process is asked to stop meanwhile, the rest is 0.
    pub fn random(length: usize, noise: Noise) -> Self {
        let build = move || {
            let mut words = vec![0_u64; length.div_ceil(8)];
            drop(noise.fill(&mut bytemuck::cast_slice_mut(&mut words)[..length], stop::process()));
            words.into_boxed_slice()
        };
        let words = LazyLock::<_, Build>::new(Box::new(build));
        Self::Built(Arc::new(Built { length, words, noise: Some(noise) }), 0..length)
    }

    /// The formula of these bytes, if they are a complete [`Bytes::random`].
    pub fn noise(&self) -> Option<Noise> {
        match self {
            Self::Built(built, range) if *range == (0..built.length) => built.noise,
            _ => None,
        }
    }

    /// Number of bytes, without building them.
    pub fn len(&self) -> usize {
        match self {
            Self::Held(_, range) | Self::Built(_, range) | Self::Owned(_, range) => range.len(),
            Self::Static(bytes) => bytes.len(),
        }
    }

    /// Returns whether the number of bytes is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether both are the same range of the same owner, not only equal bytes.
    pub fn same_place(&self, other: &Self) -> bool {
        self.place() == other.place()
    }

    /// An identity of the bytes: equal for the same range of the same owner, and for no other. It is valid while the
    /// owner lives.
    pub fn place(&self) -> (usize, Range<usize>) {
        match self {
            Self::Held(owner, range) => (Arc::as_ptr(owner).cast::<()>().addr(), range.clone()),
            Self::Built(owner, range) => (Arc::as_ptr(owner).addr(), range.clone()),
            Self::Static(bytes) => (bytes.as_ptr().addr(), 0..bytes.len()),
            Self::Owned(owner, range) => (owner.as_ptr().addr(), range.clone()),
        }
    }

    /// Bytes in memory.
    pub fn owned(bytes: Vec<u8>) -> Self {
        let length = bytes.len();
        Self::Owned(bytes.into(), 0..length)
    }

    /// The bytes at `range`, with the same owner; `None` if it exceeds the end.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.len() {
            return None;
        }
        Some(match self {
            Self::Held(owner, whole) => {
                Self::Held(Arc::clone(owner), whole.start + range.start..whole.start + range.end)
            }
            Self::Static(bytes) => Self::Static(&bytes[range]),
            Self::Built(built, whole) => {
                Self::Built(Arc::clone(built), whole.start + range.start..whole.start + range.end)
            }
            Self::Owned(bytes, whole) => {
                Self::Owned(Arc::clone(bytes), whole.start + range.start..whole.start + range.end)
            }
        })
    }

    /// Returns whether both have the same bytes. They may be gigabytes, so the memory of each compared chunk is
    /// released.
    pub fn equal(&self, other: &Self) -> bool {
        const CHUNK: usize = 16 << 20;
        self.len() == other.len()
            && (0..self.len()).step_by(CHUNK).all(|start| {
                let chunk = start..(start + CHUNK).min(self.len());
                let same = self[chunk.clone()] == other[chunk.clone()];
                self.give_back(&chunk);
                other.give_back(&chunk);
                same
            })
    }

    /// Releases the memory of the bytes at `range`, if they can be read again.
    pub fn give_back(&self, range: &Range<usize>) {
        if let Self::Held(owner, whole) = self {
            owner.give_back(whole.start + range.start..whole.start + range.end);
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Held(owner, range) => &owner[range.clone()],
            Self::Static(bytes) => bytes,
            Self::Built(built, range) => &bytemuck::cast_slice(&built.words)[..built.length][range.clone()],
            Self::Owned(bytes, range) => &bytes[range.clone()],
        }
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_of_a_slice_counts_from_the_slice() {
        let bytes = Bytes::Static(&[0, 1, 2, 3, 4, 5]);
        let middle = bytes.slice(1..5).unwrap();
        assert_eq!(&*middle.slice(2..4).unwrap(), [3, 4]);
        assert!(middle.slice(2..5).is_none());
    }

    #[test]
    fn bytes_are_built_when_they_are_read() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static BUILT: AtomicUsize = AtomicUsize::new(0);
        let bytes = Bytes::build(11, |out| {
            BUILT.fetch_add(1, Ordering::Relaxed);
            out.copy_from_slice(b"hello world");
        });
        let word = bytes.slice(6..11).unwrap();
        assert_eq!((word.len(), bytes.len(), BUILT.load(Ordering::Relaxed)), (5, 11, 0));
        assert_eq!((&*word, &bytes[..5], BUILT.load(Ordering::Relaxed)), (&b"world"[..], &b"hello"[..], 1));
        assert!(bytes.slice(6..12).is_none() && bytes.same_place(&bytes.clone()) && !bytes.same_place(&word));
    }
}
