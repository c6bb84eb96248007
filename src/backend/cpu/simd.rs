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
}
