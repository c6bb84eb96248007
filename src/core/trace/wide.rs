//! Vectorised sums over many values. The additions use the same lanes on every processor, and so give the same bits.
#![allow(unsafe_code)]

/// Number of parallel sums.
const LANES: usize = 16;

/// The result of one pass over values. If a value is not finite, `sum` is not finite, and the other fields are
/// meaningless.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sums {
    /// The smallest value.
    pub min: f32,
    /// The largest.
    pub max: f32,
    /// The sum of all values.
    pub sum: f64,
}

/// The distance of values from expected ones. If any of the values or of the expected values is not finite, `error` or
/// `norm` is not finite, and the other fields are meaningless.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distance {
    /// The sum of the squared differences.
    pub error: f64,
    /// The sum of the squared expected values.
    pub norm: f64,
    /// The largest absolute difference.
    pub most: f64,
}

macro_rules! widest {
    ($(#[$doc:meta])* $name:ident, $plain:path, ($($argument:ident: $type:ty),*) -> $out:ty) => {
        $(#[$doc])*
        pub fn $name($($argument: $type),*) -> $out {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,avx512f,avx512dq,avx512vl")]
                fn avx512($($argument: $type),*) -> $out {
                    $plain($($argument),*)
                }
                #[target_feature(enable = "avx2")]
                fn avx2($($argument: $type),*) -> $out {
                    $plain($($argument),*)
                }
                let has_avx2 = is_x86_feature_detected!("avx2");
                if has_avx2
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                {
                    // SAFETY: the processor has these features, as checked above.
                    return unsafe { avx512($($argument),*) };
                }
                if has_avx2 {
                    // SAFETY: the processor has this feature, as checked above.
                    return unsafe { avx2($($argument),*) };
                }
            }
            $plain($($argument),*)
        }
    };
}

widest!(
    /// Smallest, largest and sum of `values`.
    sums, plain::sums, (values: &[f32]) -> Sums
);
widest!(
    /// The sum of the squared distances from `mean`.
    squares, plain::squares, (values: &[f32], mean: f64) -> f64
);
widest!(
    /// The distance of `found` from `expected`; both have the same length.
    distance, plain::distance, (expected: &[f32], found: &[f32]) -> Distance
);
widest!(
    /// The index of the first value in the first group of lanes that has a difference of `most`. The value with this
    /// difference is at this index, or fewer than `LANES` places after it.
    near, plain::near, (expected: &[f32], found: &[f32], most: f64) -> usize
);

/// The plain loops, which the compiler vectorises.
mod plain {
    use super::{Distance, LANES, Sums};

    #[inline(always)]
    pub(super) fn sums(values: &[f32]) -> Sums {
        let (lanes, rest) = values.as_chunks::<LANES>();
        let (mut min, mut max, mut sum) =
            ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES], [0.0_f64; LANES]);
        for lane in lanes {
            for i in 0..LANES {
                let x = lane[i];
                // This form compiles to one instruction.
                min[i] = if x < min[i] { x } else { min[i] };
                max[i] = if x > max[i] { x } else { max[i] };
                sum[i] += f64::from(x);
            }
        }
        Sums {
            min: min.iter().chain(rest).copied().fold(f32::INFINITY, f32::min),
            max: max.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max),
            sum: sum.iter().copied().chain(rest.iter().copied().map(f64::from)).sum(),
        }
    }

    #[inline(always)]
    pub(super) fn squares(values: &[f32], mean: f64) -> f64 {
        let square = |x: f32| (f64::from(x) - mean) * (f64::from(x) - mean);
        let (lanes, rest) = values.as_chunks::<LANES>();
        let mut sums = [0.0_f64; LANES];
        for lane in lanes {
            for i in 0..LANES {
                sums[i] += square(lane[i]);
            }
        }
        sums.into_iter().chain(rest.iter().copied().map(square)).sum()
    }

    #[inline(always)]
    pub(super) fn distance(expected: &[f32], found: &[f32]) -> Distance {
        let ((ours, our_rest), (theirs, their_rest)) =
            (expected.as_chunks::<LANES>(), found.as_chunks::<LANES>());
        let (mut error, mut norm, mut most) = ([0.0_f64; LANES], [0.0_f64; LANES], [0.0_f64; LANES]);
        let mut add = |i: usize, a: f32, b: f32| {
            let (a, difference) = (f64::from(a), (f64::from(b) - f64::from(a)).abs());
            error[i] += difference * difference;
            norm[i] += a * a;
            most[i] = if difference > most[i] { difference } else { most[i] };
        };
        for (ours, theirs) in ours.iter().zip(theirs) {
            for i in 0..LANES {
                add(i, ours[i], theirs[i]);
            }
        }
        for (i, (a, b)) in our_rest.iter().zip(their_rest).enumerate() {
            add(i, *a, *b);
        }
        Distance {
            error: error.into_iter().sum(),
            norm: norm.into_iter().sum(),
            most: most.into_iter().fold(0.0, f64::max),
        }
    }

    #[inline(always)]
    pub(super) fn near(expected: &[f32], found: &[f32], most: f64) -> usize {
        let (ours, theirs) = (expected.as_chunks::<LANES>().0, found.as_chunks::<LANES>().0);
        let is_there = |(ours, theirs): (&[f32; LANES], &[f32; LANES])| {
            (0..LANES)
                .fold(false, |there, i| there | ((f64::from(theirs[i]) - f64::from(ours[i])).abs() == most))
        };
        LANES * ours.iter().zip(theirs).position(is_there).unwrap_or(ours.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(count: usize) -> Vec<f32> {
        (0..count).map(|i| (i as f32 * 0.7).sin() * 10_f32.powi(i as i32 % 9 - 4)).collect()
    }

    #[test]
    fn every_processor_has_the_bits_of_the_plain_loops() {
        for count in [0, 1, 15, 16, 17, 1000, 4096] {
            let (a, b) = (values(count), values(count + 3)[3..].to_vec());
            assert_eq!(sums(&a), plain::sums(&a), "{count}");
            assert_eq!(squares(&a, 0.25).to_bits(), plain::squares(&a, 0.25).to_bits(), "{count}");
            let apart = distance(&a, &b);
            assert_eq!(apart, plain::distance(&a, &b), "{count}");
            let first = (0..count).find(|&i| (f64::from(b[i]) - f64::from(a[i])).abs() == apart.most);
            let near = near(&a, &b, apart.most);
            assert!(first.is_none_or(|first| (near..near + LANES).contains(&first)), "{count}");
        }
    }

    #[test]
    fn a_value_that_is_not_finite_shows_in_the_sums() {
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 15, 16, 999] {
                let mut broken = values(1000);
                broken[at] = wrong;
                assert!(!sums(&broken).sum.is_finite(), "{wrong} at {at}");
                let whole = values(1000);
                for apart in
                    [distance(&broken, &whole), distance(&whole, &broken), distance(&broken, &broken)]
                {
                    assert!(!(apart.error + apart.norm).is_finite(), "{wrong} at {at}");
                }
            }
        }
        // Finite values of any size have finite sums.
        let most = vec![f32::MAX; 100];
        let least = vec![f32::MIN; 100];
        assert!(sums(&most).sum.is_finite());
        let apart = distance(&most, &least);
        assert!((apart.error + apart.norm).is_finite());
    }
}
