//! The fused multiply-add x · y + z, rounded once.
//!
//! The operations use [`f32::mul_add`]. The compiler makes it one instruction if the target has such an instruction.
//! Otherwise it calls the C function `fmaf`. The `fmaf` of mingw, the C library of Windows programs built with GCC,
//! rounds twice. So this module defines `fmaf` and `fma` for that target. The linker prefers a program's own function
//! to one of a library. Vector kernels do not call these functions; they use the processor's instructions.

#[cfg(all(windows, target_env = "gnu"))]
mod mingw {
    #![allow(unsafe_code)]

    // SAFETY: this definition has the name, the types and the meaning that the C standard gives this function.
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

        /// Returns a number in `from..=to`.
        fn between(&mut self, from: i32, to: i32) -> i32 {
            from + (self.next() % (to - from + 1) as u64) as i32
        }
    }

    /// A binary number format.
    struct Format {
        /// Number of bits.
        width: u32,
        /// Number of digits of a normal number.
        digits: u32,
    }

    const FLOAT32: Format = Format { width: 32, digits: 24 };
    const FLOAT64: Format = Format { width: 64, digits: 53 };

    /// A finite number: whether it is negative, its magnitude, and the exponent of the power of two that multiplies it.
    type Parts = (bool, u128, i32);

    impl Format {
        /// Exponent of the least positive number.
        fn least(&self) -> i32 {
            3 - (1 << (self.width - self.digits - 1)) - self.digits as i32
        }

        /// The bits of the exponent when all of them are set: those of infinity.
        fn infinity(&self) -> u64 {
            (1 << (self.width - self.digits)) - 1
        }

        /// All digits but the first, which a number does not store.
        fn fraction(&self, magnitude: u64) -> u64 {
            magnitude & ((1 << (self.digits - 1)) - 1)
        }

        fn parts(&self, bits: u64) -> Parts {
            let field = bits >> (self.digits - 1) & self.infinity();
            let first = u64::from(field > 0) << (self.digits - 1);
            let exponent = self.least() + field.saturating_sub(1) as i32;
            (bits >> (self.width - 1) == 1, u128::from(self.fraction(bits) | first), exponent)
        }

        /// The bits of a number, or those of infinity if the exponent is too large.
        fn bits(&self, (negative, magnitude, exponent): Parts) -> u64 {
            let field = match magnitude >> (self.digits - 1) {
                0 => 0,
                _ => (exponent - self.least() + 1) as u64,
            };
            let absolute = match field < self.infinity() {
                true => field << (self.digits - 1) | self.fraction(magnitude as u64),
                false => self.infinity() << (self.digits - 1),
            };
            u64::from(negative) << (self.width - 1) | absolute
        }

        /// Returns x · y + z, computed with integers and rounded once, half to even. x and y are not zero.
        fn fused(&self, [x, y, z]: [u64; 3]) -> u64 {
            let (x, y, z) = (self.parts(x), self.parts(y), self.parts(z));
            let (mut large, mut small) = (shifted((x.0 ^ y.0, x.1 * y.1, x.2 + y.2)), shifted(z));
            if (small.2, small.1) > (large.2, large.1) {
                (large, small) = (small, large);
            }
            let (negative, _, exponent) = large;
            let term = dropped(small.1, large.2.abs_diff(small.2));
            let sum = if large.0 == small.0 { large.1 + term } else { large.1 - term };
            if sum == 0 {
                return 0;
            }
            // Exponent of the result's last digit. Two more digits decide the rounding.
            let length = 128 - sum.leading_zeros() as i32;
            let last = (exponent + length - self.digits as i32).max(self.least());
            let longer = match last - 2 - exponent {
                down @ 0.. => dropped(sum, down as u32),
                up => sum << -up,
            };
            let up = longer & 3 == 3 || longer & 7 == 6;
            let rounded = (longer >> 2) + u128::from(up);
            match rounded >> self.digits {
                0 => self.bits((negative, rounded, last)),
                _ => self.bits((negative, rounded >> 1, last + 1)),
            }
        }

        /// A number with this exponent of its first digit. The other digits and the sign come from `random`.
        fn number(&self, random: u64, exponent: i32) -> u64 {
            let last = exponent + 1 - self.digits as i32;
            let magnitude = self.fraction(random) | 1 << (self.digits - 1);
            let negative = random >> 63 == 1;
            match last - self.least() {
                0.. => self.bits((negative, magnitude.into(), last)),
                up => self.bits((negative, u128::from(magnitude) >> up.unsigned_abs().min(64), self.least())),
            }
        }
    }

    /// Moves the first digit to bit 124. A zero gets an exponent below all others.
    fn shifted((negative, magnitude, exponent): Parts) -> Parts {
        match magnitude {
            0 => (negative, 0, -10_000),
            _ => {
                let up = magnitude.leading_zeros() - 3;
                (negative, magnitude << up, exponent - up as i32)
            }
        }
    }

    /// Drops the last `count` digits. The last kept digit becomes 1 if a dropped one was.
    fn dropped(magnitude: u128, count: u32) -> u128 {
        match count {
            0..=127 => magnitude >> count | u128::from(magnitude & ((1 << count) - 1) != 0),
            _ => u128::from(magnitude != 0),
        }
    }

    macro_rules! assert_exact {
        ($float:ty, $format:expr, $bits:expr) => {{
            let all: [u64; 3] = $bits;
            let [x, y, z] = all.map(|bits| black_box(<$float>::from_bits(bits as _)));
            let expected = match x.is_finite() && y.is_finite() && x != 0.0 && y != 0.0 {
                true if z.is_finite() => <$float>::from_bits($format.fused(all) as _),
                true => z,
                // The product is a zero, an infinity or not a number, so nothing is rounded.
                false => x * y + z,
            };
            let result = x.mul_add(y, z);
            let equal = result.to_bits() == expected.to_bits() || result.is_nan() && expected.is_nan();
            assert!(equal, "{x:e} · {y:e} + {z:e} is {result:e}, not {expected:e}");
        }};
    }

    /// Compares [`f32::mul_add`] and [`f64::mul_add`] with the reference for a million inputs of each type.
    fn compare(seed: u64, input: impl Fn(&Format, &mut Random) -> [u64; 3]) {
        let mut random = Random(seed);
        for _ in 0..1_000_000 {
            assert_exact!(f32, FLOAT32, input(&FLOAT32, &mut random));
            assert_exact!(f64, FLOAT64, input(&FLOAT64, &mut random));
        }
    }

    #[test]
    fn any_bits() {
        compare(1, |format, random| [(); 3].map(|()| random.next() >> (64 - format.width)));
    }

    #[test]
    fn a_product_and_an_addend_of_like_size() {
        compare(2, |format, random| {
            let [x, y, z] = [(); 3].map(|()| random.next());
            let apart = format.digits as i32 + 8;
            [format.number(x, 0), format.number(y, 0), format.number(z, random.between(-apart, apart))]
        });
    }

    #[test]
    fn subnormal_results() {
        compare(3, |format, random| {
            let [x, y, z] = [(); 3].map(|()| random.next());
            let product = random.between(format.least() - 3, format.least() + format.digits as i32 + 2);
            let addend = random.between(format.least() - 1, format.least() + format.digits as i32 + 2);
            let first = random.between(-3, 3);
            [format.number(x, first), format.number(y, product - first), format.number(z, addend)]
        });
    }

    #[test]
    fn halves_and_what_is_next_to_them() {
        compare(4, |format, random| {
            // Without steps, the product is half a unit of the addend's last digit. Each factor is up to two of its
            // smallest steps larger or smaller. Steps of opposite sign can cancel except for their tiny product.
            let near =
                |steps: i32, exponent: i32| format.number(0, exponent).wrapping_add_signed(steps.into());
            let exponent = random.between(-20, 20);
            let negative = random.next() & 1 << (format.width - 1);
            let (first, second) = (random.between(-2, 2), random.between(-2, 2));
            let x = near(first, exponent - format.digits as i32) | negative;
            [x, near(second, 0), format.number(random.next(), exponent)]
        });
    }

    #[test]
    fn special_values() {
        for format in [FLOAT32, FLOAT64] {
            let one = format.number(0, 0);
            let normal = format.bits((false, 1 << (format.digits - 1), format.least()));
            let infinity = format.infinity() << (format.digits - 1);
            let positive =
                [0, 1, normal - 1, normal, one - 1, one, one + 1, infinity - 1, infinity, infinity + 1];
            let values = positive.map(|bits| [bits, bits | 1 << (format.width - 1)]).concat();
            for &x in &values {
                for &y in &values {
                    for &z in &values {
                        match format.width {
                            32 => assert_exact!(f32, FLOAT32, [x, y, z]),
                            _ => assert_exact!(f64, FLOAT64, [x, y, z]),
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_reference_rounds_once() {
        // Rounded twice, the sum 1 + 2⁻²³ + 2⁻²⁴ − 2⁻⁷⁰ would be 1 + 2⁻²².
        let bits = [0x337f_fffe, 0x3f80_0001, 0x3f80_0001];
        let [x, y, z] = bits.map(f32::from_bits).map(f64::from);
        assert_ne!(((x * y + z) as f32).to_bits(), FLOAT32.fused(bits.map(u64::from)) as u32);
    }
}
