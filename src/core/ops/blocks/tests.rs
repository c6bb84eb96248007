use super::*;
use crate::ops::quantize::quantize;

/// 1.0, 2.0 and 0.5 as halves.
const ONE: [u8; 2] = [0x00, 0x3c];
const TWO: [u8; 2] = [0x00, 0x40];
const HALF: [u8; 2] = [0x00, 0x38];

/// The values of a block with these bytes and zeros.
fn values<F: Format>(parts: &[(usize, &[u8])]) -> Vec<f32> {
    let (mut block, mut out) = (vec![0; F::BYTES], vec![0.0; F::VALUES]);
    for (at, bytes) in parts {
        block[*at..*at + bytes.len()].copy_from_slice(bytes);
    }
    dequantize::<F>(&block, &mut out);
    out
}

#[test]
fn halves_are_read_exactly() {
    for bits in 0..=u16::MAX {
        let (ours, exact) = (half(&bits.to_le_bytes()), half::f16::from_bits(bits).to_f32());
        assert!(ours.to_bits() == exact.to_bits() || ours.is_nan() && exact.is_nan(), "{bits:#x}");
    }
}

#[test]
fn eight_bits_have_a_sign() {
    assert_eq!(values::<Q8_0>(&[(0, &HALF), (2, &[4, 0xff, 0x80])])[..4], [2.0, -0.5, -64.0, 0.0]);
}

#[test]
fn four_bits_fill_the_two_halves_of_a_block() {
    let out = values::<Q4_0>(&[(0, &TWO), (2, &[0x9f, 0x80])]);
    assert_eq!((out[0], out[16], out[1], out[17], out[2]), (14.0, 2.0, -16.0, 0.0, -16.0));
    let out = values::<Q4_1>(&[(0, &TWO), (2, &ONE), (4, &[0x9f])]);
    assert_eq!((out[0], out[16], out[1]), (31.0, 19.0, 1.0));
}

#[test]
fn the_fifth_bit_of_value_j_is_bit_j() {
    // Fifth bits of values 0 and 17.
    let out = values::<Q5_0>(&[(0, &ONE), (2, &[1, 0, 2, 0]), (6, &[0x21, 0x30])]);
    assert_eq!((out[0], out[16], out[1], out[17]), (1.0, -14.0, -16.0, 3.0));
    let out = values::<Q5_1>(&[(0, &ONE), (2, &HALF), (4, &[1, 0, 2, 0]), (8, &[0x21, 0x30])]);
    assert_eq!((out[0], out[16], out[1], out[17]), (17.5, 2.5, 0.5, 19.5));
}

#[test]
fn four_bits_may_stand_for_numbers_of_a_table() {
    let out = values::<Iq4Nl>(&[(0, &TWO), (2, &[0xf0, 0x87])]);
    assert_eq!((out[0], out[16], out[1], out[17]), (-254.0, 226.0, -20.0, 2.0));
    // Six and minus one half, at 2^(128 − 127).
    let out = values::<Mxfp4>(&[(0, &[128, 0x97])]);
    assert_eq!((out[0], out[16], out[1]), (12.0, -1.0, 0.0));
    for (e, one) in [(0, 2.0_f32.powi(-127)), (1, 2.0_f32.powi(-126)), (2, 2.0_f32.powi(-125))] {
        assert_eq!(values::<Mxfp4>(&[(0, &[e, 0x04])])[0], 2.0 * one);
    }
}

#[test]
fn six_bit_scales_are_spread_over_twelve_bytes() {
    // Run 0: scale 1, minimum 2. Run 5: scale 0b11_0011, minimum 0b10_0001.
    let packed = [1, 0b1100_0000, 0, 0, 2, 0b1000_0000, 0, 0, 0, 0b0001_0011, 0, 0];
    let (scales, minima) = six_bits(&packed);
    assert_eq!(scales.to_le_bytes(), [1, 0, 0, 0, 0, 51, 0, 0]);
    assert_eq!(minima.to_le_bytes(), [2, 0, 0, 0, 0, 33, 0, 0]);
}

#[test]
fn runs_of_a_k_block_have_their_own_scales() {
    let scales = [3, 5, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    let out = values::<Q4K>(&[(0, &TWO), (2, &HALF), (4, &scales), (16, &[0x72])]);
    assert_eq!((out[0], out[32], out[1], out[33]), (12.0, 69.5, 0.0, -0.5));
    // The fifth bits of value 0 of run 0 and of run 1.
    let out = values::<Q5K>(&[(0, &TWO), (2, &HALF), (4, &scales), (16, &[3]), (48, &[0x72])]);
    assert_eq!((out[0], out[32], out[1], out[33]), (108.0, 229.5, 0.0, -0.5));
}

#[test]
fn six_bits_are_split_in_four_and_two() {
    // Byte 0 has the low bits of values 0 and 64. Their upper bits are 1 and 3; the scales of their runs are 1 and −2.
    let out = values::<Q6K>(&[(0, &[0xa5]), (128, &[0b11_0001]), (192, &[1, 0, 0, 0, 0xfe]), (208, &TWO)]);
    assert_eq!((out[0], out[64], out[1], out[128]), (-22.0, -104.0, -64.0, 0.0));
}

#[test]
fn two_and_three_bits_have_scales_for_16_values() {
    // Byte 0 has values 0, 32, 64 and 96: 2, 1, 3 and 0. Run 0: scale 3, minimum 1; run 2: scale 1, minimum 2.
    let out = values::<Q2K>(&[(0, &[0x13, 0, 0x21]), (16, &[0b0011_0110]), (80, &TWO), (82, &HALF)]);
    assert_eq!((out[0], out[1], out[32], out[33], out[64]), (11.5, -0.5, 1.0, -1.0, 0.0));
    // The same bits, and the third bits of values 0 and 128. Scales: run 0 has 33, run 8 has 31, the others 0.
    let third = [0b1_0001];
    let out =
        values::<Q3K>(&[(0, &third), (32, &[0b0011_0110]), (96, &[0xf1]), (104, &[0b01_0010]), (108, &TWO)]);
    assert_eq!((out[0], out[1], out[128], out[129]), (4.0, -8.0, 0.0, 8.0));
    assert_eq!((out[32], out[33]), (192.0, 256.0));
}

#[test]
fn the_upper_bits_of_eight_scales_are_two_bytes() {
    // Run 0 has scale 1 + 32, run 3 has 15.
    let out = values::<Iq4Xs>(&[(0, &ONE), (2, &[2, 0]), (4, &[1, 0xf0]), (8, &[0xf0]), (56, &[0x08])]);
    assert_eq!((out[0], out[16], out[96], out[112]), (-127.0, 113.0, -17.0, 17.0 * 127.0));
}

/// Checks that a product with ones is the sum of the values. All values are whole numbers here.
fn product_with_ones<F: Format>(blocks: usize, parts: &[(usize, &[u8])]) {
    let (mut row, mut x) = (vec![0; blocks * F::BYTES], vec![0.0; blocks * F::VALUES]);
    for (number, block) in row.chunks_exact_mut(F::BYTES).enumerate() {
        for (i, byte) in block.iter_mut().enumerate() {
            *byte = (7 * i + number) as u8;
        }
        for (at, bytes) in parts {
            block[*at..*at + bytes.len()].copy_from_slice(bytes);
        }
    }
    dequantize::<F>(&row, &mut x);
    let exact: f64 = x.iter().map(|x| f64::from(*x)).sum();
    let ones = vec![127.0; x.len()];
    let (mut q8, mut scales) = (vec![0; x.len()], vec![0.0; x.len() / GROUP]);
    quantize(&ones, GROUP, &mut q8, &mut scales);
    assert_eq!(f64::from(dot::<F>(&q8, &scales, &row)), 127.0 * exact);
}

#[test]
fn a_product_is_the_sum_of_what_the_blocks_stand_for() {
    product_with_ones::<Q8_0>(19, &[(0, &ONE)]);
    product_with_ones::<Q4_0>(17, &[(0, &ONE)]);
    product_with_ones::<Q4_1>(3, &[(0, &ONE), (2, &TWO)]);
    product_with_ones::<Q5_0>(5, &[(0, &TWO)]);
    product_with_ones::<Q5_1>(1, &[(0, &ONE), (2, &TWO)]);
    product_with_ones::<Iq4Nl>(16, &[(0, &ONE)]);
    product_with_ones::<Mxfp4>(33, &[(0, &[129])]);
    product_with_ones::<Q2K>(2, &[(80, &ONE), (82, &TWO)]);
    product_with_ones::<Q3K>(3, &[(108, &ONE)]);
    product_with_ones::<Q4K>(2, &[(0, &ONE), (2, &TWO)]);
    product_with_ones::<Q5K>(1, &[(0, &ONE), (2, &TWO)]);
    product_with_ones::<Q6K>(3, &[(208, &ONE)]);
    product_with_ones::<Iq4Xs>(2, &[(0, &ONE)]);
}

#[test]
fn no_q_is_larger_than_the_format_says() {
    fn most<F: Format>() {
        let mut largest = 0;
        for byte in 0..=u8::MAX {
            let mut quants = vec![0; F::VALUES];
            F::quants(&vec![byte; F::BYTES], &mut quants);
            largest = largest.max(quants.into_iter().max().unwrap());
        }
        assert_eq!(largest, F::MOST, "{} bytes of {} values", F::BYTES, F::VALUES);
    }
    most::<Q8_0>();
    most::<Q4_0>();
    most::<Q4_1>();
    most::<Q5_0>();
    most::<Q5_1>();
    most::<Q4K>();
    most::<Q5K>();
    most::<Q6K>();
    most::<Q2K>();
    most::<Q3K>();
    most::<Iq4Nl>();
    most::<Iq4Xs>();
    most::<Mxfp4>();
}
