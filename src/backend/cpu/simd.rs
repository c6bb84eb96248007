//! The inner loops of [`crate::ops`], compiled once for each vector instruction set and chosen at run
//! time. The arithmetic and its order are those of `ops/`, so the choice changes the speed only.
#![allow(unsafe_code)]

use crate::ops;

macro_rules! dispatched {
    ($(#[$doc:meta])* $name:ident as $avx512:ident, $avx2:ident ($($arg:ident: $type:ty),*) $body:block) => {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
        fn $avx512($($arg: $type),*) $body

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2")]
        fn $avx2($($arg: $type),*) $body

        $(#[$doc])*
        pub(super) fn $name($($arg: $type),*) {
            #[cfg(target_arch = "x86_64")]
            {
                if is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                {
                    // SAFETY: the function needs exactly the four features that were just detected.
                    return unsafe { $avx512($($arg),*) };
                }
                if is_x86_feature_detected!("avx2") {
                    // SAFETY: the function needs AVX2, which was just detected.
                    return unsafe { $avx2($($arg),*) };
                }
            }
            $body
        }
    };
}

dispatched! {
    /// out\[t\] = dot(row t of x, w), for as many rows of `x` as `out` is long.
    dots as dots_avx512, dots_avx2 (x: &[f32], w: &[f32], out: &mut [f32]) {
        for (out, x) in out.iter_mut().zip(x.chunks_exact(w.len())) {
            *out = ops::matmul::dot(x, w);
        }
    }
}

dispatched! {
    /// [`ops::attention::qk`].
    qk as qk_avx512, qk_avx2 (query: &[f32], keys: &[f32], stride: usize, out: &mut [f32]) {
        ops::attention::qk(query, keys, stride, out);
    }
}

dispatched! {
    /// [`ops::attention::mix`].
    mix as mix_avx512, mix_avx2 (weights: &[f32], values: &[f32], stride: usize, out: &mut [f32]) {
        ops::attention::mix(weights, values, stride, out);
    }
}

dispatched! {
    /// [`ops::rms_norm::rms_norm`].
    rms_norm as rms_norm_avx512, rms_norm_avx2 (x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        ops::rms_norm::rms_norm(x, weight, eps, out);
    }
}

dispatched! {
    /// [`ops::dequantize::q8_0`].
    q8_0 as q8_0_avx512, q8_0_avx2 (bytes: &[u8], out: &mut [f32]) {
        ops::dequantize::q8_0(bytes, out);
    }
}

dispatched! {
    /// [`ops::dequantize::q4_0`].
    q4_0 as q4_0_avx512, q4_0_avx2 (bytes: &[u8], out: &mut [f32]) {
        ops::dequantize::q4_0(bytes, out);
    }
}

dispatched! {
    /// [`ops::dequantize::q4_1`].
    q4_1 as q4_1_avx512, q4_1_avx2 (bytes: &[u8], out: &mut [f32]) {
        ops::dequantize::q4_1(bytes, out);
    }
}

dispatched! {
    /// [`ops::dequantize::q5_0`].
    q5_0 as q5_0_avx512, q5_0_avx2 (bytes: &[u8], out: &mut [f32]) {
        ops::dequantize::q5_0(bytes, out);
    }
}

dispatched! {
    /// [`ops::dequantize::q5_1`].
    q5_1 as q5_1_avx512, q5_1_avx2 (bytes: &[u8], out: &mut [f32]) {
        ops::dequantize::q5_1(bytes, out);
    }
}

dispatched! {
    /// [`ops::dequantize::q4_k`].
    q4_k as q4_k_avx512, q4_k_avx2 (bytes: &[u8], out: &mut [f32]) {
        ops::dequantize::q4_k(bytes, out);
    }
}

dispatched! {
    /// [`ops::dequantize::q5_k`].
    q5_k as q5_k_avx512, q5_k_avx2 (bytes: &[u8], out: &mut [f32]) {
        ops::dequantize::q5_k(bytes, out);
    }
}

dispatched! {
    /// [`ops::dequantize::q6_k`].
    q6_k as q6_k_avx512, q6_k_avx2 (bytes: &[u8], out: &mut [f32]) {
        ops::dequantize::q6_k(bytes, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values without a pattern that rounding could hide behind.
    fn noise(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn every_instruction_set_gives_the_bits_of_the_plain_operation() {
        for width in [1, 2, 31, 32, 33, 48, 64, 100, 257] {
            let (x, w) = (noise(3 * width, 1), noise(width, 2));
            let plain: Vec<f32> = x.chunks(width).map(|x| ops::matmul::dot(x, &w)).collect();
            let mut fast = vec![0.0; 3];
            dots(&x, &w, &mut fast);
            assert_eq!(plain, fast, "dot, width {width}");

            let (mut plain, mut fast) = (vec![0.0; width], vec![0.0; width]);
            ops::rms_norm::rms_norm(&w, &x[..width], 1e-5, &mut plain);
            rms_norm(&w, &x[..width], 1e-5, &mut fast);
            assert_eq!(plain, fast, "rms_norm, width {width}");

            ops::attention::mix(&w[..1], &x, width, &mut plain);
            mix(&w[..1], &x, width, &mut fast);
            assert_eq!(plain, fast, "mix, width {width}");
        }
    }
    #[test]
    fn every_instruction_set_dequantizes_to_the_same_bits() {
        type Function = fn(&[u8], &mut [f32]);
        let formats: [(Function, Function, usize, usize); 8] = [
            (q8_0, ops::dequantize::q8_0, 32, 34),
            (q4_0, ops::dequantize::q4_0, 32, 18),
            (q4_1, ops::dequantize::q4_1, 32, 20),
            (q5_0, ops::dequantize::q5_0, 32, 22),
            (q5_1, ops::dequantize::q5_1, 32, 24),
            (q4_k, ops::dequantize::q4_k, 256, 144),
            (q5_k, ops::dequantize::q5_k, 256, 176),
            (q6_k, ops::dequantize::q6_k, 256, 210),
        ];
        for (format, (fast, plain, values, size)) in formats.into_iter().enumerate() {
            // The third byte of each float is as good as random; some scales become NaN or infinite.
            let bytes: Vec<u8> = noise(3 * size, 5).iter().map(|x| x.to_bits().to_le_bytes()[2]).collect();
            let (mut a, mut b) = (vec![1.0_f32; 3 * values], vec![2.0_f32; 3 * values]);
            fast(&bytes, &mut a);
            plain(&bytes, &mut b);
            for (a, b) in a.iter().zip(&b) {
                assert!(
                    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()),
                    "format {format}: {a} and {b}"
                );
            }
        }
    }
}
