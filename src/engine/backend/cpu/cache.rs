//! The keys or the values of one layer, in the number type of the cache.

use std::ops::Range;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::{Kernel, memory};
use llama_trace_core::config::CacheDtype;
use llama_trace_core::error::Result;

/// The values (capacity, G, C) written so far. The rest of the capacity is only reserved; the system provides this
/// memory at the first write. Values are rounded to the cache's number type when they are written, and are float32 when
/// they are read.
#[derive(Debug)]
pub enum Cache {
    /// float32.
    F32(Vec<f32>),
    /// float16.
    F16(Vec<f16>),
    /// bfloat16.
    Bf16(Vec<bf16>),
}

impl Cache {
    /// Returns an empty cache with room for `count` values.
    pub(super) fn new(dtype: CacheDtype, count: usize) -> Result<Self> {
        Ok(match dtype {
            CacheDtype::F32 => Self::F32(memory::reserved(count)?),
            CacheDtype::F16 => Self::F16(memory::reserved(count)?),
            CacheDtype::Bf16 => Self::Bf16(memory::reserved(count)?),
        })
    }

    /// Writes `x` from value `at` on. The cache must have room for all of `x`.
    pub(super) fn write(&mut self, at: usize, x: &[f32]) {
        let range = at..at + x.len();
        match self {
            Self::F32(values) => room(values, range, 0.0).copy_from_slice(x),
            Self::F16(values) => room(values, range, f16::ZERO).convert_from_f32_slice(x),
            Self::Bf16(values) => room(values, range, bf16::ZERO).convert_from_f32_slice(x),
        }
    }

    /// Returns the values in `range` as float32. They are converted into `scratch` unless they are float32 already.
    pub(super) fn read<'a>(&'a self, range: Range<usize>, scratch: &'a mut Vec<f32>) -> &'a [f32] {
        match self {
            Self::F32(values) => return &values[range],
            Self::F16(values) => {
                scratch.resize(range.len(), 0.0);
                values[range].convert_to_f32_slice(scratch);
            }
            Self::Bf16(values) => {
                scratch.resize(range.len(), 0.0);
                values[range].convert_to_f32_slice(scratch);
            }
        }
        scratch
    }

    /// Returns a copy of the values in `range`.
    pub(super) fn part(&self, range: Range<usize>) -> Result<Self> {
        fn copy<T: Copy>(values: &[T]) -> Result<Vec<T>> {
            let mut part = memory::reserved(values.len())?;
            part.extend_from_slice(values);
            Ok(part)
        }
        Ok(match self {
            Self::F32(values) => Self::F32(copy(&values[range])?),
            Self::F16(values) => Self::F16(copy(&values[range])?),
            Self::Bf16(values) => Self::Bf16(copy(&values[range])?),
        })
    }

    /// Writes the contents of `from` from value `at` on. The cache must have room for them.
    pub(super) fn put(&mut self, at: usize, from: &Self) {
        match (self, from) {
            (Self::F32(values), Self::F32(from)) => {
                room(values, at..at + from.len(), 0.0).copy_from_slice(from);
            }
            (Self::F16(values), Self::F16(from)) => {
                room(values, at..at + from.len(), f16::ZERO).copy_from_slice(from);
            }
            (Self::Bf16(values), Self::Bf16(from)) => {
                room(values, at..at + from.len(), bf16::ZERO).copy_from_slice(from);
            }
            _ => unreachable!("the caches of a model are in one number type"),
        }
    }

    /// Returns the rows of `head` in the range `rows`, as (rows, C), and their stride. float32 rows are read in place.
    pub(super) fn rows<'a>(
        &'a self,
        kernel: Kernel,
        rows: Range<usize>,
        head: Head,
        scratch: &'a mut Vec<f32>,
    ) -> (&'a [f32], usize) {
        let Head { stride, at, width } = head;
        if let Self::F32(values) = self {
            return (&values[rows.start * stride + at..(rows.end - 1) * stride + at + width], stride);
        }
        scratch.resize(rows.len() * width, 0.0);
        for (row, out) in rows.zip(scratch.chunks_exact_mut(width)) {
            let range = row * stride + at..row * stride + at + width;
            match self {
                Self::F32(_) => {}
                Self::F16(values) => kernel.isa.widen_f16(&values[range], out),
                Self::Bf16(values) => kernel.isa.widen_bf16(&values[range], out),
            }
        }
        (scratch, width)
    }
}

/// Returns the values in `range`, to write them. Extends `values` with `zero` if necessary.
fn room<T: Copy>(values: &mut Vec<T>, range: Range<usize>, zero: T) -> &mut [T] {
    debug_assert!(range.end <= values.capacity(), "a cache is not written beyond its room");
    if values.len() < range.end {
        values.resize(range.end, zero);
    }
    &mut values[range]
}

/// The memory layout of the rows of one kv head.
#[derive(Clone, Copy)]
pub(super) struct Head {
    /// G·C: the distance from one position to the next.
    pub(super) stride: usize,
    /// The offset of the head in a position's row.
    pub(super) at: usize,
    /// C.
    pub(super) width: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_what_was_written_rounded() {
        let head = Head { stride: 4, at: 2, width: 2 };
        for (dtype, third) in [
            (CacheDtype::F32, 1.0 / 3.0),
            (CacheDtype::F16, f16::from_f32(1.0 / 3.0).to_f32()),
            (CacheDtype::Bf16, bf16::from_f32(1.0 / 3.0).to_f32()),
        ] {
            let mut cache = Cache::new(dtype, 16).unwrap();
            cache.write(4, &[0.0, 1.0, 2.0, 1.0 / 3.0]);
            cache.write(8, &[5.0; 4]);
            let (rows, stride) = (&mut Vec::new(), &mut Vec::new());
            let (found, width) = cache.rows(Kernel::available()[0], 1..2, head, rows);
            assert_eq!((found, width >= 2), (&[2.0, third][..], true));
            assert_eq!(cache.read(5..8, stride), [1.0, 2.0, third]);
        }
    }
}
