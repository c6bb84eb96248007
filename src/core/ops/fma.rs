//! The fused multiply-add x · y + z, rounded once.
//!
//! The operations use [`f32::mul_add`]. The compiler makes it one instruction if the target has such an instruction.
//! Otherwise it calls the C function `fmaf`. The `fmaf` of mingw, the C library of Windows programs built with GCC,
//! rounds twice. So this module defines `fmaf` and `fma` for that target. The linker prefers a program's own function
//! to one of a library. Vector kernels keep their instructions.

#[cfg(all(windows, target_env = "gnu"))]
mod mingw {
    #![allow(unsafe_code)]

    // SAFETY: the C standard fixes the name, the types and the meaning of this function, and these are the same.
    #[unsafe(no_mangle)]
    extern "C" fn fmaf(x: f32, y: f32, z: f32) -> f32 {
        libm::fmaf(x, y, z)
    }

    // SAFETY: as above.
    #[unsafe(no_mangle)]
    extern "C" fn fma(x: f64, y: f64, z: f64) -> f64 {
        libm::fma(x, y, z)
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    /// A generator of 64-bit numbers (splitmix64).
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }
    }

    /// x · y + z in float64, rounded to odd, and then to float32. float64 has more than two bits more than a product
    /// of two float32 values, so the second rounding is the right one (Boldo and Melquiond, 2008).
    fn reference(x: f32, y: f32, z: f32) -> f32 {
        let (product, z) = (f64::from(x) * f64::from(y), f64::from(z));
        let sum = product + z;
        if !sum.is_finite() {
            return sum as f32;
        }
        let other = sum - product;
        let error = (product - (sum - other)) + (z - other);
        let odd = match error {
            0.0 => sum,
            _ if sum.to_bits() & 1 == 1 => sum,
            _ if (error > 0.0) == (sum > 0.0) => f64::from_bits(sum.to_bits() + 1),
            _ => f64::from_bits(sum.to_bits() - 1),
        };
        odd as f32
    }

    fn same(x: f32, y: f32, z: f32) {
        let (is, right) = (black_box(x).mul_add(black_box(y), black_box(z)), reference(x, y, z));
        let equal = is.to_bits() == right.to_bits() || is.is_nan() && right.is_nan();
        assert!(equal, "{x:e} · {y:e} + {z:e} is {is:e}, not {right:e}");
    }

    #[test]
    fn any_bits() {
        let mut random = Random(1);
        for _ in 0..1_000_000 {
            let [x, y, z] = [(); 3].map(|()| f32::from_bits(random.next() as u32));
            same(x, y, z);
        }
    }

    #[test]
    fn sums_of_like_size() {
        let mut random = Random(2);
        for _ in 0..1_000_000 {
            // Between 1 and 2 in size, of any sign; the product is scaled by 2⁻³¹ to 2³².
            let mut one = || f32::from_bits(random.next() as u32 & 0x807f_ffff | 0x3f80_0000);
            let [x, y, z] = [one(), one(), one()];
            let scale = f32::from_bits((127 - 31 + (random.next() as u32 & 63)) << 23);
            same(x * scale, y, z);
        }
    }

    #[test]
    fn subnormal_results() {
        let mut random = Random(3);
        for _ in 0..1_000_000 {
            let mut small =
                |exponent: u32| f32::from_bits(random.next() as u32 & 0x807f_ffff | exponent << 23);
            // The product is about 2⁻¹⁴⁰, and the addend is subnormal.
            let [x, y, z] = [small(57), small(57), small(0)];
            same(x, y, z);
        }
    }

    #[test]
    fn halves_that_float64_cannot_see() {
        // 1 + 2⁻²³ + 2⁻⁴⁷ is just above the middle of two float32 values if the last term counts.
        let (x, y) = (1.0 + f32::EPSILON, 1.0 + f32::EPSILON / 2.0 * 2.0);
        same(x, y, f32::EPSILON * f32::EPSILON);
        let tiny = f32::from_bits(1);
        for z in [1.0 + f32::EPSILON, 1.0, -1.0, 3.0] {
            for sign in [-1.0, 1.0] {
                // z plus half a unit of its last place, and a little more or less, which float64 rounds away.
                same(z * f32::EPSILON / 2.0, 1.0, z);
                same((1.0 + f32::EPSILON) * sign, 0.5 * f32::EPSILON * (1.0 - f32::EPSILON / 2.0), z);
                same(tiny * sign, 0.5, z);
            }
        }
    }

    #[test]
    fn special_values() {
        let values = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            f32::MAX,
            f32::MIN,
            f32::MIN_POSITIVE,
            f32::from_bits(1),
            -f32::from_bits(1),
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
        ];
        for x in values {
            for y in values {
                for z in values {
                    same(x, y, z);
                }
            }
        }
    }

    #[test]
    fn double_precision() {
        let mut random = Random(4);
        for _ in 0..1_000_000 {
            let mut whole = || (random.next() as i64) >> 11;
            let [x, y, z] = [whole(), whole(), whole()].map(i128::from);
            let shift = random.next() % 70;
            let right = (x * y + (z << shift)) as f64;
            let [x, y, z] = [x as f64, y as f64, z as f64 * (1_u128 << shift) as f64].map(black_box);
            assert_eq!(x.mul_add(y, z), right, "{x:e} · {y:e} + {z:e}");
        }
    }
}
