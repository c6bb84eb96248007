//! The one instruction of AVX-VNNI that the int8 loops are made of.

use std::arch::asm;
use std::arch::x86_64::*;

/// sum + each four neighbouring products of unsigned `q` with signed `x`.
///
/// # Safety
/// The processor has AVX-VNNI.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) unsafe fn add_products(sum: __m256i, q: __m256i, x: __m256i) -> __m256i {
    let mut sum = sum;
    // In assembly, for a function that is compiled for more than its caller is not put in its place.
    // SAFETY: registers alone take part.
    unsafe {
        asm!(
            "{{vex}} vpdpbusd {sum}, {q}, {x}",
            sum = inout(ymm_reg) sum,
            q = in(ymm_reg) q,
            x = in(ymm_reg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}
