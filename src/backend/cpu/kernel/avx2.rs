//! The plain loops, compiled for AVX2 with FMA and F16C: two vectors hold the 16 partial sums of an output.
#![allow(unsafe_code)]

use super::limits::{self, CHAINS, WORDS};
use super::{Rows, gemm, portable};
use crate::ops;

macro_rules! compiled {
    ($name:ident, $op:path, ($($argument:ident: $type:ty),*)) => {
        #[doc = concat!("[`", stringify!($op), "`], compiled for AVX2.")]
        pub(super) fn $name($($argument: $type),*) {
            #[target_feature(enable = "avx2,fma,f16c")]
            fn inner($($argument: $type),*) {
                $op($($argument),*);
            }
            // SAFETY: a `Kernel` for AVX2 exists only where the processor has these features.
            unsafe { inner($($argument),*) }
        }
    };
}

compiled!(dots, portable::dots, (x: &[f32], w: Rows<'_>, columns: &mut [f32], scratch: &mut [f32]));
compiled!(add, portable::add::<3, 2>, (x: &[f32], w: &[f32], sums: &mut [f32]));
compiled!(reduce, portable::reduce, (sums: &[f32], out: &mut [f32]));
compiled!(qk, ops::attention::qk, (query: &[f32], keys: &[f32], stride: usize, out: &mut [f32]));
compiled!(mix, ops::attention::mix, (weights: &[f32], values: &[f32], stride: usize, out: &mut [f32]));
compiled!(rms_norm, ops::rms_norm::rms_norm, (x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]));

compiled!(read, limits::read, (bytes: &[u8], out: &mut [u64; WORDS]));
compiled!(multiply, limits::multiply::<CHAINS>, (rounds: usize, factor: f32, out: &mut [f32]));

/// 3 weight rows × 2 tokens: 12 of the 16 registers hold sums.
pub(super) struct Tile;

impl gemm::Tile for Tile {
    const ROWS: usize = 3;
    const TOKENS: usize = 2;

    fn add(x: &[f32], w: &[f32], sums: &mut [f32]) {
        add(x, w, sums);
    }

    fn reduce(sums: &[f32], out: &mut [f32]) {
        reduce(sums, out);
    }
}
