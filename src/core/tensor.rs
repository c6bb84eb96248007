//! A tensor as a file stores it: dtype, shape, bytes. The bytes may be mapped, shared or owned ([`Bytes`]).

mod bytes;
mod noise;

use std::fmt;

pub use bytes::{Built, Bytes, Held};
pub use noise::Noise;

/// The number types of weights. Those from `Q8_0` on are ggml's block formats: a block holds several neighbouring
/// values of a row, and `ops/blocks.rs` decodes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dtype {
    /// IEEE float32.
    F32,
    /// IEEE float16.
    F16,
    /// bfloat16: float32's exponent, 8 significant bits.
    BF16,
    /// int8 with separate scales: llama2.c's version 2.
    I8,
    /// 8 bits per value, one scale per 32 values.
    Q8_0,
    /// 4 bits per value, one scale per 32 values.
    Q4_0,
    /// 4 bits per value, a scale and a minimum per 32 values.
    Q4_1,
    /// 5 bits per value, one scale per 32 values.
    Q5_0,
    /// 5 bits per value, a scale and a minimum per 32 values.
    Q5_1,
    /// 4 bits per value, in blocks of 256 values. Every 32 values have a scale and a minimum of 6 bits each.
    Q4K,
    /// 5 bits per value, otherwise as `Q4K`.
    Q5K,
    /// 6 bits per value, in blocks of 256 values. Every 16 values have a scale of 8 bits.
    Q6K,
    /// 2 bits per value, in blocks of 256 values. Every 16 values have a scale and a minimum of 4 bits each.
    Q2K,
    /// 3 bits per value, in blocks of 256 values. Every 16 values have a scale of 6 bits.
    Q3K,
    /// 4-bit indices into a table, one scale per 32 values.
    Iq4Nl,
    /// 4-bit indices into a table, in blocks of 256 values. Every 32 values have a scale of 6 bits.
    Iq4Xs,
    /// 4-bit floats, with a power of two as the scale of every 32 values.
    Mxfp4,
}

impl Dtype {
    /// Every number type.
    pub const ALL: [Self; 17] = [
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
        Self::Q2K,
        Self::Q3K,
        Self::Iq4Nl,
        Self::Iq4Xs,
        Self::Mxfp4,
    ];

    /// Returns whether values are stored in blocks of small integers.
    pub fn is_blocks(self) -> bool {
        self.block() > 1
    }

    /// Returns whether each value is stored as a separate float.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }

    /// Values per block; 1 for types without blocks.
    pub fn block(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 | Self::I8 => 1,
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Iq4Nl | Self::Mxfp4 => 32,
            Self::Q4K | Self::Q5K | Self::Q6K | Self::Q2K | Self::Q3K | Self::Iq4Xs => 256,
        }
    }

    /// Bytes per block.
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
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Iq4Nl => 18,
            Self::Iq4Xs => 136,
            Self::Mxfp4 => 17,
        }
    }

    /// Bytes of a row of `count` values; `None` if they do not fill the last block.
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
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Iq4Nl => "IQ4_NL",
            Self::Iq4Xs => "IQ4_XS",
            Self::Mxfp4 => "MXFP4",
        })
    }
}

/// A set of number types.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dtypes(u32);

impl FromIterator<Dtype> for Dtypes {
    fn from_iter<I: IntoIterator<Item = Dtype>>(dtypes: I) -> Self {
        Self(dtypes.into_iter().fold(0, |set, dtype| set | 1 << dtype as u32))
    }
}

impl fmt::Display for Dtypes {
    /// A list in words: `Q4_K and Q6_K`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = Dtype::ALL
            .iter()
            .filter(|&&dtype| self.0 >> dtype as u32 & 1 == 1)
            .map(ToString::to_string)
            .collect();
        match names.split_last() {
            Some((last, [])) => f.write_str(last),
            Some((last, rest)) => write!(f, "{} and {last}", rest.join(", ")),
            None => f.write_str("no tensors of a supported type"),
        }
    }
}

/// One tensor: row-major, little-endian, as it is stored. The length of `bytes` always matches the shape and the dtype.
#[derive(Clone, Debug)]
pub struct Tensor {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Bytes,
    scales: Option<Scales>,
}

/// The scales of int8 values: value i of the tensor is bytes\[i\] · scales\[i / group\]. Groups continue across rows.
#[derive(Clone, Debug)]
pub struct Scales {
    /// float32, little-endian, one per group.
    pub bytes: Bytes,
    /// Values per scale.
    pub group: usize,
}

impl Tensor {
    /// A tensor over `bytes`. `None` if the length does not match `shape` and `dtype`, or a row is not made of whole
    /// blocks. int8 values need scales: [`Tensor::int8`].
    pub fn new(dtype: Dtype, shape: Vec<usize>, bytes: Bytes) -> Option<Self> {
        if dtype == Dtype::I8 {
            return None;
        }
        // A scalar counts as a row of one value.
        let (row, outer) = shape.split_last().unwrap_or((&1, &[]));
        let length = outer.iter().try_fold(dtype.bytes(*row)?, |product, &size| product.checked_mul(size))?;
        (length == bytes.len()).then_some(Self { dtype, shape, bytes, scales: None })
    }

    /// A tensor of int8 values with a scale per `scales.group` of them. `None` if the number of values does not match
    /// the shape, or the number of scales does not match the number of groups.
    pub fn int8(shape: Vec<usize>, bytes: Bytes, scales: Scales) -> Option<Self> {
        let count = shape.iter().try_fold(1_usize, |product, &size| product.checked_mul(size))?;
        let groups = if scales.group == 0 { return None } else { count.div_ceil(scales.group) };
        let fits = count == bytes.len() && groups.checked_mul(4) == Some(scales.bytes.len());
        fits.then_some(Self { dtype: Dtype::I8, shape, bytes, scales: Some(scales) })
    }

    /// A tensor of float32 values; `None` if their number does not match the shape.
    pub fn floats(shape: Vec<usize>, values: &[f32]) -> Option<Self> {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self::new(Dtype::F32, shape, Bytes::owned(bytes))
    }

    /// Returns whether both have the same values, dtype and shape.
    pub fn equal(&self, other: &Self) -> bool {
        self.dtype == other.dtype && self.shape == other.shape && self.bytes.equal(&other.bytes)
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

    /// The scales of int8 values; `None` for the other number types.
    pub fn scales(&self) -> Option<&Scales> {
        self.scales.as_ref()
    }

    /// All its bytes: the values, and the scales if it has them.
    pub fn parts_mut(&mut self) -> impl Iterator<Item = &mut Bytes> {
        std::iter::once(&mut self.bytes).chain(self.scales.as_mut().map(|scales| &mut scales.bytes))
    }

    /// Its size in bytes, scales included.
    pub fn size(&self) -> usize {
        self.bytes.len() + self.scales.as_ref().map_or(0, |scales| scales.bytes.len())
    }

    /// Number of values.
    pub fn count(&self) -> usize {
        self.bytes.len() / self.dtype.block_bytes() * self.dtype.block()
    }
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;

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
    fn floats_are_a_tensor_of_float32() {
        let floats = Tensor::floats(vec![1, 2], &[1.5, -2.0]).unwrap();
        assert_eq!(&floats.bytes()[..], [1.5_f32.to_le_bytes(), (-2.0_f32).to_le_bytes()].concat());
        assert!(Tensor::floats(vec![3], &[1.0]).is_none());
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
