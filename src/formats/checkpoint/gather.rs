//! Tensors whose stored values must be rearranged or converted: strided views, tensors split into slices, and float64
//! values. They are assembled in memory when they are first read (see [`Bytes::build`]), and never earlier. If the
//! process is asked to stop during this, the remaining values are not written. The reader checks the same stop request
//! before it uses the result.

use llama_trace_core::error::Result;
use llama_trace_core::stop::{self, Stop};
use llama_trace_core::tensor::Bytes;
use llama_trace_core::tensor::Tensor;

/// The number of bytes copied between two checks of the stop request.
const PIECE: usize = 1 << 20;

/// The layout of a tensor in a storage, in values, not bytes. Value (i, j, …) is at `offset + i·strides[0] +
/// j·strides[1] + …`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Strided {
    /// The position of the first value.
    pub offset: usize,
    /// The sizes, outermost first.
    pub shape: Vec<usize>,
    /// One stride for each size.
    pub strides: Vec<usize>,
}

impl Strided {
    /// The number of values. `None` if it overflows a usize.
    pub(super) fn count(&self) -> Option<usize> {
        self.shape.iter().try_fold(1_usize, |product, &size| product.checked_mul(size))
    }

    /// The last position that is read, plus one; 0 if there are no values. `None` if it overflows a usize.
    pub(super) fn end(&self) -> Option<usize> {
        if self.shape.contains(&0) {
            return Some(0);
        }
        let reach = self.shape.iter().zip(&self.strides);
        let last = reach.map(|(size, stride)| (size - 1).checked_mul(*stride));
        last.into_iter().try_fold(self.offset, |sum, step| sum.checked_add(step?))?.checked_add(1)
    }

    /// Returns whether the values are stored row-major and without gaps. The stride of an axis of size 1 is ignored.
    pub(super) fn is_contiguous(&self) -> bool {
        let mut expected = 1_usize;
        self.shape.iter().zip(&self.strides).rev().filter(|(size, _)| **size != 1).all(|(size, stride)| {
            let fits = *stride == expected;
            expected = expected.saturating_mul(*size);
            fits
        })
    }

    /// The values in row-major order, `width` bytes each. Every position must be inside `storage`.
    pub(super) fn gather(self, storage: Bytes, width: usize) -> Bytes {
        let count = self.count().unwrap_or(0);
        Bytes::build(count * width, move |out| drop(self.copy(&storage, width, out, stop::process())))
    }

    fn copy(&self, storage: &[u8], width: usize, out: &mut [u8], stop: &Stop) -> Result<()> {
        let mut index = vec![0; self.shape.len()];
        let mut place = self.offset;
        for out in out.chunks_mut((PIECE / width).max(1) * width) {
            stop.check()?;
            for value in out.chunks_exact_mut(width) {
                value.copy_from_slice(&storage[place * width..][..width]);
                // Increments the index like an odometer.
                for axis in (0..index.len()).rev() {
                    index[axis] += 1;
                    place += self.strides[axis];
                    if index[axis] < self.shape[axis] {
                        break;
                    }
                    place -= index[axis] * self.strides[axis];
                    index[axis] = 0;
                }
            }
        }
        Ok(())
    }
}

/// Float64 values rounded to float32, which takes half the bytes.
pub(super) fn rounded(doubles: Bytes) -> Bytes {
    Bytes::build(doubles.len() / 2, move |out| drop(round(&doubles, out, stop::process())))
}

fn round(doubles: &[u8], out: &mut [u8], stop: &Stop) -> Result<()> {
    let (doubles, out) = (doubles.as_chunks::<8>().0, out.as_chunks_mut::<4>().0);
    for (doubles, out) in doubles.chunks(PIECE / 4).zip(out.chunks_mut(PIECE / 4)) {
        stop.check()?;
        for (double, out) in doubles.iter().zip(out) {
            *out = (f64::from_le_bytes(*double) as f32).to_le_bytes();
        }
    }
    Ok(())
}

/// Joins `parts` into one tensor along `axis` (0 or 1). They must agree in number type and in all other sizes.
pub(super) fn join(parts: &[Tensor], axis: usize) -> Option<Tensor> {
    let first = parts.first()?;
    let mut shape = first.shape().to_vec();
    *shape.get_mut(axis)? = parts.iter().map(|part| part.shape()[axis]).sum();
    // The number of blocks that each part contributes: one for axis 0, one per row for axis 1.
    let rows: usize = shape[..axis].iter().product();
    let length = parts.iter().map(|part| part.bytes().len()).sum();
    let sources: Vec<Bytes> = parts.iter().map(|part| part.bytes().clone()).collect();
    let bytes = Bytes::build(length, move |out| {
        let sources: Vec<&[u8]> = sources.iter().map(|source| &**source).collect();
        drop(copy_rows(&sources, rows, out, stop::process()));
    });
    Tensor::new(first.dtype(), shape, bytes)
}

/// Writes the first of the `rows` rows of each source, then the second of each, and so on.
fn copy_rows(sources: &[&[u8]], rows: usize, mut out: &mut [u8], stop: &Stop) -> Result<()> {
    let mut since = PIECE;
    for row in 0..rows {
        for source in sources {
            let width = source.len() / rows;
            let (here, rest) = out.split_at_mut(width);
            let mut from = &source[row * width..][..width];
            for here in here.chunks_mut(PIECE) {
                if since >= PIECE {
                    stop.check()?;
                    since = 0;
                }
                let (now, later) = from.split_at(here.len());
                here.copy_from_slice(now);
                (from, since) = (later, since + now.len());
            }
            out = rest;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use llama_trace_core::stop::testing::stops_at_every_look;
    use llama_trace_core::tensor::Dtype;

    fn strided(offset: usize, shape: &[usize], strides: &[usize]) -> Strided {
        Strided { offset, shape: shape.into(), strides: strides.into() }
    }

    #[test]
    fn a_transposed_matrix_is_read_by_columns() {
        let storage = Bytes::Static(&[9, 9, 0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0]);
        let transposed = strided(1, &[3, 2], &[1, 3]);
        assert_eq!((transposed.count(), transposed.end()), (Some(6), Some(7)));
        assert!(!transposed.is_contiguous());
        assert_eq!(*transposed.gather(storage, 2), [0, 0, 3, 0, 1, 0, 4, 0, 2, 0, 5, 0]);
    }

    #[test]
    fn what_is_put_together_stops_between_its_pieces() {
        let storage = vec![1; 4 * PIECE];
        let transposed = strided(0, &[2048, 1024], &[1, 2048]);
        let mut out = vec![0; 4 * PIECE];
        let looks = stops_at_every_look("a transposed tensor", 0, |stop| {
            transposed.copy(&storage, 2, &mut out, stop)
        });
        assert_eq!(looks, 4);
        for rows in [1, 3, PIECE] {
            let parts = [&storage[..3 * PIECE], &storage];
            let mut out = vec![0; 7 * PIECE];
            let looks = stops_at_every_look("shards", 0, |stop| copy_rows(&parts, rows, &mut out, stop));
            assert!((7..=9).contains(&looks), "{looks} looks at {rows} rows");
        }
    }

    #[test]
    fn float64_is_rounded_to_the_nearest_float32_and_ties_to_even() {
        let tie = 1.0 + f64::from(f32::EPSILON) / 2.0;
        let values = [0.1, -0.0, 1e300, tie, tie + f64::EPSILON, f64::NAN];
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let rounded = rounded(Bytes::owned(bytes));
        let bits: Vec<u32> =
            rounded.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        let next = 1.0 + f32::EPSILON;
        assert_eq!(bits[..5], [0.1, -0.0, f32::INFINITY, 1.0, next].map(f32::to_bits));
        assert!(f32::from_bits(bits[5]).is_nan());
        let (doubles, mut out) = (vec![0; 8 * PIECE], vec![0; 4 * PIECE]);
        let looks = stops_at_every_look("float64", 0, |stop| round(&doubles, &mut out, stop));
        assert_eq!(looks, 4);
    }

    #[test]
    fn contiguous_is_told_from_the_rest() {
        assert!(strided(5, &[2, 3], &[3, 1]).is_contiguous());
        assert!(strided(0, &[1, 3, 1], &[77, 1, 99]).is_contiguous());
        assert!(strided(0, &[], &[]).is_contiguous());
        assert!(!strided(0, &[2, 3], &[4, 1]).is_contiguous());
        assert!(!strided(0, &[3], &[0]).is_contiguous());
    }

    #[test]
    fn reach_is_counted_without_overflow() {
        assert_eq!(strided(7, &[], &[]).end(), Some(8));
        assert_eq!(strided(7, &[0, 5], &[1, 1]).end(), Some(0));
        assert_eq!(strided(0, &[3], &[0]).end(), Some(1));
        assert_eq!(strided(usize::MAX, &[2], &[1]).end(), None);
        assert_eq!(strided(0, &[usize::MAX], &[usize::MAX]).end(), None);
        assert_eq!(strided(0, &[usize::MAX, 3], &[0, 0]).count(), None);
    }

    #[test]
    fn parts_are_joined_along_either_axis() {
        let part = |bytes: &'static [u8], shape: &[usize]| {
            Tensor::new(Dtype::F16, shape.into(), Bytes::Static(bytes)).unwrap()
        };
        let (a, b) = (part(b"aabbccdd", &[2, 2]), part(b"eeff", &[1, 2]));
        let joined = join(&[a.clone(), b], 0).unwrap();
        assert_eq!((joined.shape(), &**joined.bytes()), (&[3, 2][..], &b"aabbccddeeff"[..]));
        let c = part(b"eeff", &[2, 1]);
        let joined = join(&[a, c], 1).unwrap();
        assert_eq!((joined.shape(), &**joined.bytes()), (&[2, 3][..], &b"aabbeeccddff"[..]));
        assert!(join(&[], 0).is_none());
    }
}
