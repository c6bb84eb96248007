//! Detection of the processor's vector instructions.

/// Whether the processor supports the AVX2 kernels, the AVX-512 kernels, and VNNI in addition to AVX-512.
pub(super) fn vectors() -> [bool; 3] {
    let avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    let avx512 = avx2
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    [avx2, avx512, avx512 && is_x86_feature_detected!("avx512vnni")]
}
