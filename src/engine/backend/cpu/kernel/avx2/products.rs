//! The AVX-VNNI instruction of the int8 loops.

use std::arch::asm;
use std::arch::x86_64::*;

/// Returns sum + the products of unsigned `q` with signed `x`, added in fours.
///
/// # Safety
/// The processor has AVX-VNNI.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) unsafe fn add_products(sum: __m256i, q: __m256i, x: __m256i) -> __m256i {
    let mut sum = sum;
    // In assembly, because a function compiled for more features than its caller is not inlined.
    // SAFETY: only registers are used.
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
