//! A tensor as it lies in a file: dtype, shape, bytes.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::{Arc, LazyLock};

use super::map;

/// The number types that weights are stored in. Those from `Q8_0` on are ggml's: some values in a row
/// share a block, which `ops/dequantize.rs` takes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dtype {
    /// IEEE float32.
    F32,
    /// IEEE float16.
    F16,
    /// bfloat16: float32's exponent, 8 significant bits.
    BF16,
    /// int8 whose scales lie beside the values: llama2.c's version 2.
    I8,
    /// 8 bits a value, one scale for 32 of them.
    Q8_0,
    /// 4 bits, one scale.
    Q4_0,
    /// 4 bits, a scale and a minimum.
    Q4_1,
    /// 5 bits, one scale.
    Q5_0,
    /// 5 bits, a scale and a minimum.
    Q5_1,
    /// 4 bits, a scale and a minimum for 32 values, those in 6 bits for 256.
    Q4K,
    /// 5 bits, as `Q4K`.
    Q5K,
    /// 6 bits, a scale for 16 values, those in 8 bits for 256.
    Q6K,
}

impl Dtype {
    /// Every number type.
    pub const ALL: [Self; 12] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::I8,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
    ];

    /// How many values are stored together; 1 where each stands for itself.
    pub fn block(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 | Self::I8 => 1,
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 => 32,
            Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes that a block takes.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::I8 => 1,
            Self::Q8_0 => 34,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// Bytes that `count` values in a row take; none where they do not fill their last block.
    pub fn bytes(self, count: usize) -> Option<usize> {
        if count.is_multiple_of(self.block()) {
            (count / self.block()).checked_mul(self.block_bytes())
        } else {
            None
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::I8 => "I8",
            Self::Q8_0 => "Q8_0",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
        })
    }
}

/// A set of number types.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dtypes(u16);

impl FromIterator<Dtype> for Dtypes {
    fn from_iter<I: IntoIterator<Item = Dtype>>(dtypes: I) -> Self {
        Self(dtypes.into_iter().fold(0, |set, dtype| set | 1 << dtype as u16))
    }
}

impl fmt::Display for Dtypes {
    /// `Q4_K and Q6_K`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = Dtype::ALL
            .iter()
            .filter(|&&dtype| self.0 >> dtype as u16 & 1 == 1)
            .map(ToString::to_string)
            .collect();
        match names.split_last() {
            Some((last, [])) => f.write_str(last),
            Some((last, rest)) => write!(f, "{} and {last}", rest.join(", ")),
            None => f.write_str("no tensors that are read here"),
        }
    }
}

/// Bytes that somebody else keeps alive: a part of a mapped file, or of the program itself.
#[derive(Clone)]
pub enum Bytes {
    /// A range of a memory-mapped file.
    Mapped(Arc<map::File>, Range<usize>),
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
}

/// Builds the words of a [`Built`].
type Build = Box<dyn FnOnce() -> Box<[u64]> + Send>;

impl Bytes {
    /// Bytes that `fill` writes, all `length` of them, when they are first read.
    pub(crate) fn build(length: usize, fill: impl FnOnce(&mut [u8]) + Send + 'static) -> Self {
        let build = move || {
            let mut words = vec![0_u64; length.div_ceil(8)];
            fill(&mut bytemuck::cast_slice_mut(&mut words)[..length]);
            words.into_boxed_slice()
        };
        Self::Built(Arc::new(Built { length, words: LazyLock::new(Box::new(build)) }), 0..length)
    }

    /// Number of bytes, without building them.
    pub fn len(&self) -> usize {
        match self {
            Self::Mapped(_, range) | Self::Built(_, range) | Self::Owned(_, range) => range.len(),
            Self::Static(bytes) => bytes.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether these are the same bytes of the same owner, not only equal ones.
    pub(crate) fn same_place(&self, other: &Self) -> bool {
        self.place() == other.place()
    }

    /// What is the same for the same bytes of the same owner, while that lives, and for no others.
    pub(crate) fn place(&self) -> (usize, Range<usize>) {
        match self {
            Self::Mapped(owner, range) => (Arc::as_ptr(owner).addr(), range.clone()),
            Self::Built(owner, range) => (Arc::as_ptr(owner).addr(), range.clone()),
            Self::Static(bytes) => (bytes.as_ptr().addr(), 0..bytes.len()),
            Self::Owned(owner, range) => (owner.as_ptr().addr(), range.clone()),
        }
    }

    /// Bytes made in memory.
    pub(crate) fn owned(bytes: Vec<u8>) -> Self {
        let length = bytes.len();
        Self::Owned(bytes.into(), 0..length)
    }

    /// The part of these bytes at `range`, kept alive by the same owner; none where it passes the end.
    pub(crate) fn slice(&self, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.len() {
            return None;
        }
        Some(match self {
            Self::Mapped(map, whole) => {
                Self::Mapped(Arc::clone(map), whole.start + range.start..whole.start + range.end)
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
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map, range) => &map[range.clone()],
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

/// One tensor: row-major, little-endian, in place. `bytes` has exactly the length that the shape and
/// the dtype ask for.
#[derive(Clone, Debug)]
pub struct Tensor {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Bytes,
    scales: Option<Scales>,
}

/// The scales of int8 values: value i of the tensor stands for bytes\[i\] · scales\[i / group\], wherever its
/// rows end.
#[derive(Clone, Debug)]
pub struct Scales {
    /// float32, little-endian, one a group.
    pub bytes: Bytes,
    /// Values that share a scale.
    pub group: usize,
}

impl Tensor {
    /// A tensor over `bytes`; none where their length is not what `shape` and `dtype` ask for, or the
    /// rows are not made of whole blocks. int8 values need scales: [`Tensor::int8`].
    pub fn new(dtype: Dtype, shape: Vec<usize>, bytes: Bytes) -> Option<Self> {
        if dtype == Dtype::I8 {
            return None;
        }
        // A single number is a row of one.
        let (row, outer) = shape.split_last().unwrap_or((&1, &[]));
        let length = outer.iter().try_fold(dtype.bytes(*row)?, |product, &size| product.checked_mul(size))?;
        (length == bytes.len()).then_some(Self { dtype, shape, bytes, scales: None })
    }

    /// A tensor of int8 values with a scale for each `scales.group` of them; none where there are not as many
    /// values as the shape asks for, or not as many scales as groups.
    pub fn int8(shape: Vec<usize>, bytes: Bytes, scales: Scales) -> Option<Self> {
        let count = shape.iter().try_fold(1_usize, |product, &size| product.checked_mul(size))?;
        let groups = if scales.group == 0 { return None } else { count.div_ceil(scales.group) };
        let fits = count == bytes.len() && groups.checked_mul(4) == Some(scales.bytes.len());
        fits.then_some(Self { dtype: Dtype::I8, shape, bytes, scales: Some(scales) })
    }

    /// The number type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The sizes, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The raw little-endian values.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The scales of int8 values; none for the other number types.
    pub fn scales(&self) -> Option<&Scales> {
        self.scales.as_ref()
    }

    /// Bytes that it takes, scales included.
    pub fn size(&self) -> usize {
        self.bytes.len() + self.scales.as_ref().map_or(0, |scales| scales.bytes.len())
    }

    /// Number of values.
    pub fn count(&self) -> usize {
        self.bytes.len() / self.dtype.block_bytes() * self.dtype.block()
    }
}

/// What the files of a checkpoint hold.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// Tensors by name.
    pub(super) tensors: BTreeMap<String, Tensor>,
    /// Tensors of a dtype that is not read here: name and dtype.
    pub(super) unreadable: BTreeMap<String, String>,
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

    #[test]
    fn a_tensor_has_the_bytes_that_its_shape_asks_for() {
        let bytes = Bytes::Static(&[0; 12]);
        assert_eq!(Tensor::new(Dtype::F16, vec![2, 3], bytes.clone()).unwrap().count(), 6);
        assert!(Tensor::new(Dtype::F32, vec![2, 3], bytes.clone()).is_none());
        assert!(Tensor::new(Dtype::F32, vec![usize::MAX, 3], bytes).is_none());
    }

    #[test]
    fn a_set_of_number_types_is_a_list_in_words() {
        let words = |dtypes: &[Dtype]| dtypes.iter().copied().collect::<Dtypes>().to_string();
        assert_eq!(words(&[Dtype::Q6K, Dtype::Q4K, Dtype::Q6K]), "Q4_K and Q6_K");
        assert_eq!(words(&[Dtype::F32, Dtype::BF16, Dtype::Q8_0]), "F32, BF16 and Q8_0");
        assert_eq!(words(&[Dtype::F16]), "F16");
    }

    #[test]
    fn int8_values_have_a_scale_for_each_group() {
        let scales = |groups: usize, group| Scales { bytes: Bytes::owned(vec![0; 4 * groups]), group };
        let values = Bytes::Static(&[0; 6]);
        let tensor = Tensor::int8(vec![2, 3], values.clone(), scales(2, 4)).unwrap();
        assert_eq!((tensor.count(), tensor.size()), (6, 14));
        assert!(Tensor::int8(vec![2, 3], values.clone(), scales(1, 4)).is_none());
        assert!(Tensor::int8(vec![2, 3], values.clone(), scales(2, 0)).is_none());
        assert!(Tensor::int8(vec![2, 2], values.clone(), scales(2, 4)).is_none());
        assert!(Tensor::new(Dtype::I8, vec![2, 3], values).is_none());
    }

    #[test]
    fn a_row_is_made_of_whole_blocks() {
        let bytes = Bytes::Static(&[0; 72]);
        assert_eq!(Tensor::new(Dtype::Q4_0, vec![2, 64], bytes.clone()).unwrap().count(), 128);
        assert!(Tensor::new(Dtype::Q4_0, vec![8, 16], bytes.clone()).is_none());
        assert!(Tensor::new(Dtype::Q4_0, vec![], bytes.clone()).is_none());
        assert!(Tensor::new(Dtype::Q8_0, vec![2, 64], bytes).is_none());
    }
}
