//! Bytes that somebody else keeps alive, and parts of them.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::{Arc, LazyLock};

use super::noise::Noise;
use crate::stop;

/// Bytes that are there for as long as this is, and do not change: those of a mapped file, of a copy in huge pages.
pub trait Held: Deref<Target = [u8]> + Send + Sync {
    /// Gives back the memory that the bytes at `range` take, where they can be read once more.
    fn give_back(&self, range: Range<usize>);
}

/// Bytes that somebody else keeps alive: a part of a mapped file, or of the program itself.
#[derive(Clone)]
pub enum Bytes {
    /// A range of what somebody holds.
    Held(Arc<dyn Held>, Range<usize>),
    /// A part of the binary.
    Static(&'static [u8]),
    /// A range of bytes that lie in no file as they are needed.
    Built(Arc<Built>, Range<usize>),
    /// Made in memory.
    Owned(Arc<[u8]>, Range<usize>),
}

/// Bytes that are put together in memory when they are first read: so that looking at a model that lies
/// in parts costs nothing, and running it costs the copy once.
pub struct Built {
    /// How many there are, known before they are built.
    length: usize,
    /// In words, so that float32 values are aligned; the last one may be padded.
    words: LazyLock<Box<[u64]>, Build>,
    /// What they are, where they are random.
    noise: Option<Noise>,
}

/// Builds the words of a [`Built`].
type Build = Box<dyn FnOnce() -> Box<[u64]> + Send>;

impl Bytes {
    /// All bytes that `owner` holds.
    pub fn held(owner: impl Held + 'static) -> Self {
        let length = owner.len();
        Self::Held(Arc::new(owner), 0..length)
    }

    /// Bytes that `fill` writes, all `length` of them, when they are first read.
    pub fn build(length: usize, fill: impl FnOnce(&mut [u8]) + Send + 'static) -> Self {
        let build = move || {
            let mut words = vec![0_u64; length.div_ceil(8)];
            fill(&mut bytemuck::cast_slice_mut(&mut words)[..length]);
            words.into_boxed_slice()
        };
        let words = LazyLock::<_, Build>::new(Box::new(build));
        Self::Built(Arc::new(Built { length, words, noise: None }), 0..length)
    }

    /// `length` random bytes, made when they are first read, unless a device makes them itself ([`Bytes::noise`]). Where the
    /// process is asked to stop meanwhile the rest is 0.
    pub fn random(length: usize, noise: Noise) -> Self {
        let build = move || {
            let mut words = vec![0_u64; length.div_ceil(8)];
            drop(noise.fill(&mut bytemuck::cast_slice_mut(&mut words)[..length], stop::process()));
            words.into_boxed_slice()
        };
        let words = LazyLock::<_, Build>::new(Box::new(build));
        Self::Built(Arc::new(Built { length, words, noise: Some(noise) }), 0..length)
    }

    /// What these are, where they are random bytes and all of them.
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

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether these are the same bytes of the same owner, not only equal ones.
    pub fn same_place(&self, other: &Self) -> bool {
        self.place() == other.place()
    }

    /// What is the same for the same bytes of the same owner, while that lives, and for no others.
    pub fn place(&self) -> (usize, Range<usize>) {
        match self {
            Self::Held(owner, range) => (Arc::as_ptr(owner).cast::<()>().addr(), range.clone()),
            Self::Built(owner, range) => (Arc::as_ptr(owner).addr(), range.clone()),
            Self::Static(bytes) => (bytes.as_ptr().addr(), 0..bytes.len()),
            Self::Owned(owner, range) => (owner.as_ptr().addr(), range.clone()),
        }
    }

    /// Bytes made in memory.
    pub fn owned(bytes: Vec<u8>) -> Self {
        let length = bytes.len();
        Self::Owned(bytes.into(), 0..length)
    }

    /// The part of these bytes at `range`, kept alive by the same owner; none where it passes the end.
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

    /// Whether both have the same bytes. These may be gigabytes, which should not stay in memory because somebody
    /// looked at them once: what was compared is given back.
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

    /// Gives back the memory that the bytes at `range` take since they were read, where they can be read once more.
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
