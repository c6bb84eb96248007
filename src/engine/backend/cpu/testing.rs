//! Test values for the kernels of all devices.

use half::f16;
use llama_trace_core::tensor::Dtype;

/// Returns noise. It has no pattern that could hide rounding errors.
pub fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Returns blocks with the bits of `values`. Their scales are changed so that the values of the blocks are small.
pub fn random_blocks(values: &[f32], dtype: Dtype) -> Vec<u8> {
    let count = values.len() / dtype.block() * dtype.block_bytes();
    let mut bytes: Vec<u8> =
        values.iter().cycle().take(count).map(|value| (value.to_bits() >> 8) as u8).collect();
    for block in bytes.chunks_mut(dtype.block_bytes()) {
        let halves: &[usize] = match dtype {
            Dtype::Q6K => &[208],
            Dtype::Q4_1 | Dtype::Q5_1 | Dtype::Q4K | Dtype::Q5K => &[0, 2],
            Dtype::Q2K => &[80, 82],
            Dtype::Q3K => &[108],
            Dtype::Mxfp4 => {
                block[0] = 120 + block[0] % 4;
                &[]
            }
            _ => &[0],
        };
        for &at in halves {
            block[at..at + 2].copy_from_slice(&f16::from_f32(0.01).to_le_bytes());
        }
    }
    bytes
}
