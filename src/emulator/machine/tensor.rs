//! Matrix instructions of a warp, with the layouts of NVIDIA's manual (PTX ISA, "Warp-level matrix instructions" and
//! "Asynchronous warpgroup-level matrix instructions").

use half::{bf16, f16};

use super::operations::{LANES, Lanes};

/// The value in the low or the high half of a register: float16, or bfloat16.
fn value(float16: bool, register: u64, high: bool) -> f64 {
    let bits = (register >> if high { 16 } else { 0 }) as u16;
    if float16 { f16::from_bits(bits).to_f64() } else { bf16::from_bits(bits).to_f64() }
}

fn sum_of(bits: u64) -> f64 {
    f64::from(f32::from_bits(bits as u32))
}

/// Rounds a sum to float32, as the register stores it. The manual does not say how a device rounds intermediate sums.
fn kept(sum: f64) -> u64 {
    u64::from((sum as f32).to_bits())
}

/// mma.m16n8k16: c (16, 8) + a (16, 16) · b (16, 8). The arguments are registers, by number and lane.
pub(super) fn multiply(float16: bool, a: &[Lanes; 4], b: &[Lanes; 2], c: &[Lanes; 4]) -> [Lanes; 4] {
    // Element i of a is at row groupID (+ 8 for i = 2, 3, 6, 7) and column 2 · threadID_in_group + i mod 2 (+ 8 for i ≥
    // 4).
    let mut left = [[0.0; 16]; 16];
    let mut right = [[0.0; 8]; 16];
    for lane in 0..LANES {
        let (group, thread) = (lane / 4, lane % 4);
        for i in 0..8 {
            let row = group + if i / 2 % 2 == 1 { 8 } else { 0 };
            let column = thread * 2 + i % 2 + if i >= 4 { 8 } else { 0 };
            left[row][column] = value(float16, a[i / 2][lane], i % 2 == 1);
        }
        for i in 0..4 {
            let row = thread * 2 + i % 2 + if i >= 2 { 8 } else { 0 };
            right[row][group] = value(float16, b[i / 2][lane], i % 2 == 1);
        }
    }
    let mut sums = *c;
    for lane in 0..LANES {
        for (i, sums) in sums.iter_mut().enumerate() {
            let row = lane / 4 + if i >= 2 { 8 } else { 0 };
            let column = lane % 4 * 2 + i % 2;
            let products = (0..16).map(|k| left[row][k] * right[k][column]);
            sums[lane] = kept(sum_of(sums[lane]) + products.sum::<f64>());
        }
    }
    sums
}

/// mma.m16n8k32 of signed bytes: c (16, 8) + a (16, 32) · b (32, 8). The arguments are registers, by number and lane.
/// With half as many registers for a and b, it is m16n8k16.
pub(super) fn multiply_bytes(a: &[Lanes], b: &[Lanes], c: &[Lanes]) -> [Lanes; 4] {
    let byte = |register: u64, i: usize| i64::from((register >> (8 * i)) as i8);
    // Element i of a register is at row groupID (+ 8 in every second register of a), with k = 4 · threadID_in_group + i
    // (+ 16 in the second half of the registers).
    let mut left = [[0; 32]; 16];
    let mut right = [[0; 8]; 32];
    for lane in 0..LANES {
        let (group, thread) = (lane / 4, lane % 4);
        for i in 0..4 {
            for (register, a) in a.iter().enumerate() {
                let k = thread * 4 + i + register / 2 * 16;
                left[group + register % 2 * 8][k] = byte(a[lane], i);
            }
            for (half, b) in b.iter().enumerate() {
                right[thread * 4 + i + half * 16][group] = byte(b[lane], i);
            }
        }
    }
    std::array::from_fn(|i| {
        std::array::from_fn(|lane| {
            let (row, column) = (lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2);
            let sum: i64 = (0..32).map(|k| left[row][k] * right[k][column]).sum();
            u64::from((c[i][lane] as u32).wrapping_add(sum as u32))
        })
    })
}

/// A matrix product of four warps together: a (64, 16) · b (16, outputs).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tile {
    pub(super) outputs: usize,
}

impl Tile {
    /// Parses a name such as `wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16`.
    pub(super) fn new(name: &str) -> Option<Self> {
        let size = name.strip_prefix("wgmma.mma_async.sync.aligned.m64n")?;
        let outputs = size.strip_suffix("k16.f32.bf16.bf16")?.parse().ok()?;
        Some(Self { outputs })
    }
}

/// Returns the address in shared memory of the element (row, k) of a descriptor's operand. A row has 128 bytes along k.
/// Groups of eight consecutive rows are a stride apart. The 16-byte pieces of a row are permuted by the row's number
/// (128-byte swizzle).
///
/// # Panics
/// If the descriptor has another layout.
pub(super) fn element(descriptor: u64, row: usize, k: usize) -> u64 {
    let field = |first: u32| (descriptor >> first & 0x3fff) << 4;
    let (start, stride) = (field(0), field(32));
    assert_eq!(descriptor >> 62, 1, "the swizzle is not 128 bytes: {descriptor:#x}");
    assert_eq!(descriptor >> 49 & 7, 0, "the rows do not start at the start of the pattern: {descriptor:#x}");
    let at = start + (row / 8) as u64 * stride + (row % 8) as u64 * 128 + (k * 2) as u64;
    at ^ (at >> 7 & 7) << 4
}

/// Adds a product to the sums of `warp`, one of the four warps. `read` returns a bfloat16 value of shared memory.
pub(super) fn multiply_group(
    tile: Tile,
    warp: usize,
    [a, b]: [u64; 2],
    adds: bool,
    sums: &mut [Lanes],
    read: impl Fn(u64) -> u16,
) {
    assert_eq!(sums.len(), tile.outputs / 2, "each lane has a register for two of every eight columns");
    let row_of = |descriptor: u64, row: usize| -> [f64; 16] {
        std::array::from_fn(|k| f64::from(bf16::from_bits(read(element(descriptor, row, k))).to_f32()))
    };
    let left: Vec<[f64; 16]> = (0..16).map(|row| row_of(a, warp * 16 + row)).collect();
    let right: Vec<[f64; 16]> = (0..tile.outputs).map(|row| row_of(b, row)).collect();
    for (i, sums) in sums.iter_mut().enumerate() {
        for (lane, sum) in sums.iter_mut().enumerate() {
            let row = lane / 4 + if i % 4 >= 2 { 8 } else { 0 };
            let column = i / 4 * 8 + lane % 4 * 2 + i % 2;
            let products: f64 = left[row].iter().zip(&right[column]).map(|(a, b)| a * b).sum();
            *sum = kept(if adds { sum_of(*sum) } else { 0.0 } + products);
        }
    }
}
