//! Tests that compare every kernel with the plain operations in its arithmetic, bit for bit.

use half::{bf16, f16};

use super::super::testing::{noise, random_blocks};
use super::gemm::{Packed, Scratch};
use super::rows::with_format;
use super::*;
use crate::backend::REORDER_TOLERANCE;
use llama_trace_core::config::{Arithmetic, Pairing};
use llama_trace_core::ops;
use llama_trace_core::ops::blocks;
use llama_trace_core::stop::Stop;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use {
    emulated::by_hand::{DONE, WANTED},
    llama_trace_core::testing::sampled,
    std::{env, process::Command, sync::atomic::Ordering},
};

/// The results of the plain operations in each arithmetic.
struct Plain<T> {
    fused: T,
    separate: T,
}

impl<T> Plain<T> {
    fn new(compute: impl Fn(Arithmetic) -> T) -> Self {
        Self { fused: compute(Arithmetic::Fused), separate: compute(Arithmetic::Separate) }
    }

    /// Those in the arithmetic of a kernel.
    fn of(&self, kernel: Kernel) -> &T {
        match kernel.isa.arithmetic() {
            Arithmetic::Fused => &self.fused,
            Arithmetic::Separate => &self.separate,
        }
    }
}

/// ‖found − exact‖ / ‖exact‖.
fn distance(found: &[f32], exact: &[f64]) -> f64 {
    let error: f64 = found.iter().zip(exact).map(|(x, y)| (f64::from(*x) - y).powi(2)).sum();
    (error / exact.iter().map(|x| x.powi(2)).sum::<f64>()).sqrt()
}

/// Rounds `values` to a number type. Returns them as bytes, and as float32.
fn stored(values: &[f32], dtype: Dtype) -> (Vec<u8>, Vec<f32>) {
    let bytes: Vec<u8> = match dtype {
        Dtype::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Dtype::F16 => values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
        Dtype::BF16 => values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
        blocks => random_blocks(values, blocks),
    };
    let mut exact = vec![0.0; values.len()];
    widen(dtype, &bytes, &mut exact);
    (bytes, exact)
}

#[test]
fn every_kernel_gives_the_bits_of_the_plain_products() {
    let stop = Stop::default();
    for dtype in Dtype::ALL {
        for (inputs, rows, tokens) in [
            (1, 1, 1),
            (7, 3, 2),
            (16, 6, 4),
            (33, 13, 9),
            (512, 5, 3),
            (1100, 7, 5),
            (32, 3, 1),
            (64, 16, 1),
            (300, 35, 1),
            (512, 33, 7),
            (1280, 7, 5),
            (2080, 50, 9),
            (2304, 97, 17),
            (1280, 17, 140),
            (1100, 19, 1),
            (1047, 9, 1),
        ] {
            if dtype.bytes(inputs).is_none() || dtype == Dtype::I8 {
                continue;
            }
            let x = noise(inputs * tokens, 1);
            let (bytes, w) = stored(&noise(inputs * rows, 2), dtype);
            let pairs: Vec<_> =
                x.chunks(inputs).flat_map(|x| w.chunks(inputs).map(move |w| (x, w))).collect();
            let plain = Plain::new(|arithmetic| -> Vec<f32> {
                pairs.iter().map(|(x, w)| arithmetic.dot(x, w)).collect()
            });
            let exact = |(x, w): &(&[f32], &[f32])| -> f64 {
                x.iter().zip(*w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum()
            };
            let exact: Vec<f64> = pairs.iter().map(exact).collect();
            for plain in [&plain.fused, &plain.separate] {
                let error = distance(plain, &exact);
                assert!(error <= REORDER_TOLERANCE, "{dtype} {inputs}×{rows}×{tokens}: {error:e}");
            }
            assert!(inputs < 100 || plain.fused != plain.separate, "{dtype} {inputs}");
            let w = Rows { bytes: &bytes, dtype, inputs, scales: None, precision: Precision::F32 };
            for kernel in Kernel::selectable().into_iter().flat_map(|kernel| kernel.readings(Precision::F32))
            {
                let plain = plain.of(kernel);
                let what =
                    format!("{} {dtype} {inputs}×{rows}×{tokens}, {}", kernel.name(), kernel.reading());
                let mut fast = vec![0.0; rows * tokens];
                let mut spaced = Vec::new();
                Spaced::fill(&x, inputs, &mut spaced).unwrap();
                kernel.dots(Spaced::new(&spaced, inputs), w, &mut split(&mut fast, rows), &mut Vec::new());
                assert_eq!(fast, *plain, "dots {what}");
                fast.fill(0.0);
                let mut packed = Packed::default();
                packed.pack(&x, inputs, kernel.isa.tile().1, &stop).unwrap();
                let mut out = split(&mut fast, rows);
                kernel.isa.gemm(&packed, w, &mut out, &mut Scratch::default(), &stop).unwrap();
                assert_eq!(fast, *plain, "gemm {what}");
            }
        }
    }
}

/// Returns the rows of an output.
fn split(out: &mut [f32], width: usize) -> Vec<&mut [f32]> {
    out.chunks_exact_mut(width).collect()
}

/// Quantises `x` in groups of `group`, multiplies it with `w` on every kernel, and compares the products with `plain`
/// (tokens, rows). Does so with and without tiles.
fn every_kernel_gives(plain: &Plain<Vec<f32>>, x: &[f32], group: usize, w: Rows<'_>, what: &str) {
    for kernel in Kernel::selectable() {
        let plain = plain.of(kernel);
        for tiles in [None, kernel.tiles_q8()] {
            let mut fast = vec![0.0; plain.len()];
            let mut quantized = q8::Quantized::default();
            let quantize = |x: &[f32], group, values: &mut _, scales: &mut _| {
                kernel.isa.quantize(x, group, values, scales);
            };
            quantized.fill(quantize, x, w.inputs, group, tiles, &Stop::default()).unwrap();
            kernel.isa.q8(&quantized, w, &mut split(&mut fast, w.count()));
            assert_eq!(fast, *plain, "{} {what} {tiles:?}", kernel.name());
        }
    }
}

#[test]
fn every_kernel_gives_the_bits_of_the_plain_int8_products() {
    // Cases: regular groups with and without a short chunk, panel and tile; groups of other sizes; rows that do not
    // consist of whole groups.
    for (inputs, rows, tokens, x_group, w_group) in [
        (32, 1, 1, 32, 32),
        (512, 16, 16, 32, 32),
        (544, 17, 19, 32, 32),
        (32, 20, 18, 32, 32),
        (2176, 50, 40, 32, 32),
        (1120, 5, 33, 32, 32),
        (96, 50, 2, 32, 32),
        (1120, 20, 4, 32, 32),
        (1120, 33, 8, 32, 32),
        (1024, 7, 6, 32, 32),
        (172, 7, 5, 32, 32),
        (128, 3, 4, 64, 64),
        (100, 3, 4, 32, 16),
    ] {
        let x = noise(inputs * tokens, 7);
        let w = noise(inputs * rows, 8);
        let (mut values, mut scales) = (vec![0; w.len()], vec![[0; 4]; w.len().div_ceil(w_group)]);
        ops::quantize::quantize_weights(&w, w_group, &mut values, &mut scales);
        // The most negative value, which a file may contain.
        values[0] = -128;
        let scales = GroupScales { scales: &scales, group: w_group, first_row: 0 };
        let w = Rows {
            bytes: bytemuck::cast_slice(&values),
            dtype: Dtype::I8,
            inputs,
            scales: Some(scales),
            precision: Precision::Q8 { group: x_group },
        };
        let plain = Plain::new(|arithmetic| {
            let mut plain = Vec::new();
            for x in x.chunks(inputs) {
                let (mut q8, mut scales) = (vec![0; inputs], vec![0.0; inputs.div_ceil(x_group)]);
                ops::quantize::quantize(x, x_group, &mut q8, &mut scales);
                plain.extend(
                    (0..rows)
                        .map(|row| arithmetic.dot_int8(&q8, &scales, x_group, w.quantized(row).unwrap())),
                );
            }
            plain
        });
        every_kernel_gives(&plain, &x, x_group, w, &format!("{inputs}×{rows}×{tokens}"));
    }
}

/// Returns the activations in int8, their scales, and the exact values that they represent.
fn quantised(x: &[f32]) -> (Vec<i8>, Vec<f32>, Vec<f64>) {
    let (mut values, mut scales) = (vec![0; x.len()], vec![0.0; x.len() / blocks::GROUP]);
    ops::quantize::quantize(x, blocks::GROUP, &mut values, &mut scales);
    let all = values.iter().enumerate();
    let exact = all.map(|(i, q)| f64::from(*q) * f64::from(scales[i / blocks::GROUP])).collect();
    (values, scales, exact)
}

#[test]
fn every_kernel_gives_the_bits_of_the_plain_products_with_blocks_which_are_those_of_float64() {
    for dtype in Dtype::ALL.into_iter().filter(|dtype| dtype.is_blocks()) {
        // Cases: rows of one block, of whole chunks and of partial chunks; panels and tiles that are not full.
        for (inputs, rows, tokens) in [
            (32, 1, 1),
            (32, 17, 5),
            (96, 3, 2),
            (256, 2, 3),
            (512, 16, 16),
            (544, 33, 4),
            (768, 19, 17),
            (800, 9, 3),
            (1024, 5, 2),
            (1280, 5, 33),
            (2304, 50, 7),
            (32, 20, 18),
            (2304, 50, 18),
        ] {
            if dtype.bytes(inputs).is_none() {
                continue;
            }
            let x = noise(inputs * tokens, 11);
            let bytes = random_blocks(&noise(inputs * rows, 12), dtype);
            let w =
                Rows { bytes: &bytes, dtype, inputs, scales: None, precision: Precision::Q8 { group: 32 } };
            let mut exact = Vec::new();
            for x in x.chunks(inputs) {
                let (.., x) = quantised(x);
                for row in 0..rows {
                    let mut weights = vec![0.0; inputs];
                    widen(dtype, w.row(row), &mut weights);
                    exact.push(x.iter().zip(&weights).map(|(x, w)| x * f64::from(*w)).sum());
                }
            }
            let plain = Plain::new(|arithmetic| {
                let dot = with_format!(dtype, F => arithmetic.dot_of_blocks::<F>());
                let of_token = |x: &[f32]| {
                    let (values, scales, _) = quantised(x);
                    (0..rows).map(|row| dot(&values, &scales, w.row(row))).collect::<Vec<_>>()
                };
                x.chunks(inputs).flat_map(of_token).collect::<Vec<_>>()
            });
            for plain in [&plain.fused, &plain.separate] {
                let error = distance(plain, &exact);
                assert!(error <= 1e-5, "{dtype} {inputs}×{rows}×{tokens}: {error:e}");
            }
            every_kernel_gives(&plain, &x, blocks::GROUP, w, &format!("{dtype} {inputs}×{rows}×{tokens}"));
        }
    }
}

#[test]
fn the_largest_products_with_blocks_are_exact_on_every_kernel() {
    // Cases: one token, and enough tokens for tiles.
    let sizes = [(1280, 3, 1), (256, 17, 18)];
    let dtypes = Dtype::ALL.into_iter().filter(|dtype| dtype.is_blocks());
    for (dtype, (inputs, rows, tokens)) in dtypes.flat_map(|dtype| sizes.map(|size| (dtype, size))) {
        for byte in [0xff, 0x7f, 0x80, 0] {
            let bytes = random_blocks(&vec![f32::from_bits(byte << 8); inputs * rows], dtype);
            let w =
                Rows { bytes: &bytes, dtype, inputs, scales: None, precision: Precision::Q8 { group: 32 } };
            // The sign changes after every four, eight or sixteen inputs, or never.
            for run in [4, 8, 16, inputs] {
                let x: Vec<f32> = (0..inputs).map(|i| if i / run % 2 == 0 { 1.0 } else { -1.0 }).collect();
                let (values, scales, _) = quantised(&x);
                assert!(values.iter().all(|q| q.abs() == 127));
                let plain = Plain::new(|arithmetic| {
                    let dot = with_format!(dtype, F => arithmetic.dot_of_blocks::<F>());
                    let of_token: Vec<f32> = (0..rows).map(|row| dot(&values, &scales, w.row(row))).collect();
                    of_token.repeat(tokens)
                });
                let x = x.repeat(tokens);
                every_kernel_gives(
                    &plain,
                    &x,
                    blocks::GROUP,
                    w,
                    &format!("{dtype} {byte:#x} {run} {tokens}"),
                );
            }
        }
    }
}

#[test]
fn every_kernel_widens_cached_values_exactly() {
    for width in [1, 15, 16, 33, 64] {
        let x = noise(width, 5);
        let (halves, bf16): (Vec<_>, Vec<_>) =
            x.iter().map(|x| (f16::from_f32(*x), bf16::from_f32(*x))).unzip();
        for kernel in Kernel::available() {
            let mut out = vec![0.0; width];
            kernel.isa.widen_f16(&halves, &mut out);
            assert!(out.iter().zip(&halves).all(|(out, x)| *out == x.to_f32()), "{}", kernel.name());
            kernel.isa.widen_bf16(&bf16, &mut out);
            assert!(out.iter().zip(&bf16).all(|(out, x)| *out == x.to_f32()), "{}", kernel.name());
        }
    }
}

#[test]
fn every_kernel_gives_the_bits_of_the_plain_exponentials() {
    let bits = |values: &[f32]| -> Vec<u32> {
        values.iter().map(|value| if value.is_nan() { u32::MAX } else { value.to_bits() }).collect()
    };
    for width in (0..50).chain([100, 257]) {
        let x: Vec<f32> = noise(width, 9).iter().map(|x| 50.0 * x).collect();
        // Values for which e^x overflows or underflows, infinities, and NaN: each at the beginning, in the middle and
        // at the end.
        let odd = [0.0, -0.0, 200.0, -200.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE];
        let odd = odd.into_iter().flat_map(|odd| [0, width / 2, width.saturating_sub(1)].map(|at| (odd, at)));
        for (odd, at) in odd.chain([(x.first().copied().unwrap_or(0.0), 0)]) {
            let mut x = x.clone();
            x.iter_mut().skip(at).take(1).for_each(|x| *x = odd);
            let plain = Plain::new(|arithmetic| {
                let (mut softmax, mut silu) = (x.clone(), vec![0.5; width]);
                arithmetic.softmax(&mut softmax);
                arithmetic.silu_all(&x, &mut silu);
                [softmax, silu]
            });
            for kernel in Kernel::selectable() {
                let [softmax, silu] = plain.of(kernel);
                let (mut row, mut out) = (x.clone(), vec![0.5; width]);
                kernel.isa.softmax(&mut row);
                kernel.isa.silu(&x, &mut out);
                let what = format!("{} {width}, {odd} at {at}", kernel.name());
                assert_eq!(bits(&row), bits(softmax), "{what}");
                assert_eq!(bits(&out), bits(silu), "{what}");
            }
        }
        let same = vec![f32::NEG_INFINITY; width];
        for kernel in Kernel::selectable() {
            let (mut row, mut plain) = (same.clone(), same.clone());
            kernel.isa.softmax(&mut row);
            kernel.isa.arithmetic().softmax(&mut plain);
            assert_eq!(bits(&row), bits(&plain), "{} {width}: no key is visible", kernel.name());
        }
    }
}

#[test]
fn every_kernel_gives_the_bits_of_the_plain_attention_of_several_queries() {
    // Cases: widths that are whole vectors, and other widths; an even and an odd number of queries; keys that begin and
    // end inside a vector.
    for (width, queries, keys, part) in [
        (64, 4, 128, 0..128),
        (64, 3, 100, 17..93),
        (128, 8, 70, 69..70),
        (80, 5, 33, 0..33),
        (8, 2, 16, 3..5),
        (8, 6, 40, 1..40),
        (96, 7, 24, 0..19),
        (20, 1, 1, 0..1),
        (256, 9, 65, 64..65),
        (64, 4, 48, 20..20),
    ] {
        let (x, stored) = (noise(queries * width, 13), noise(keys * 2 * width, 14));
        let (row, first) = (part.end + 3, part.start);
        let weights = noise(queries * row, 15);
        let plain = Plain::new(|arithmetic| {
            let mut plain = (vec![0.5; queries * row], vec![0.25; queries * width]);
            for query in 0..queries {
                let now = query * row + first..query * row + part.end;
                let keys = &stored[(first * 2 * width).min(stored.len())..];
                arithmetic.qk(&x[query * width..][..width], keys, 2 * width, &mut plain.0[now.clone()]);
                arithmetic.mix(&weights[now], keys, 2 * width, &mut plain.1[query * width..][..width]);
            }
            plain
        });
        for kernel in Kernel::selectable() {
            let plain = plain.of(kernel);
            let mut fast = (vec![0.5; queries * row], vec![0.25; queries * width]);
            let (values, count) = (&stored[(first * 2 * width).min(stored.len())..], (part.len(), row));
            kernel.isa.mix(&weights[first..], count, values, 2 * width, width, &mut fast.1);
            assert_eq!(plain.1, fast.1, "mix {} {width} {queries} {part:?}", kernel.name());
            if kernel.isa.packs_keys(8, width) {
                // Old contents of the buffer must not matter.
                let mut packed = vec![Aligned([f32::NAN; LANES]); 4096];
                kernel.isa.pack_keys(&stored, 2 * width, keys, width, &mut packed);
                kernel.isa.qk_packed(&x, width, &packed, &part, (&mut fast.0[first..], row));
                assert_eq!(plain.0, fast.0, "qk {} {width} {queries} {part:?}", kernel.name());
            }
        }
    }
}

#[test]
fn one_query_meets_any_number_of_keys_with_the_bits_of_the_plain_products() {
    for (width, keys) in
        [(2, 40), (4, 33), (8, 16), (8, 53), (10, 32), (16, 31), (31, 17), (64, 100), (128, 48)]
    {
        let (mut x, stored) = (noise(width, 16), noise(keys * (width + 3), 17));
        // The product of 0 with a negative value is −0, but no sum may be −0.
        x[width / 2] = 0.0;
        for kernel in Kernel::selectable() {
            let (mut fast, mut plain) = (vec![0.5; keys], vec![0.5; keys]);
            kernel.isa.arithmetic().qk(&x, &stored, width + 3, &mut plain);
            kernel.isa.qk(&x, &stored, width + 3, &mut fast);
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&plain), bits(&fast), "{} {width} {keys}", kernel.name());
        }
    }
}

#[test]
fn every_kernel_gives_the_bits_of_the_plain_row_operations() {
    for width in [2, 8, 16, 31, 32, 48, 100] {
        let (x, w) = (noise(3 * width, 3), noise(width, 4));
        for kernel in Kernel::selectable() {
            let arithmetic = kernel.isa.arithmetic();
            let (mut plain, mut fast) = (vec![0.0; width], vec![0.0; width]);
            arithmetic.rms_norm(&w, &x[..width], 1e-5, Precision::F32, &mut plain);
            kernel.isa.rms_norm(&w, &x[..width], 1e-5, Precision::F32, &mut fast);
            assert_eq!(plain, fast, "rms_norm {} {width}", kernel.name());
            arithmetic.mix(&w[..2], &x, width, &mut plain);
            kernel.isa.mix(&w[..2], (2, 2), &x, width, width, &mut fast);
            assert_eq!(plain, fast, "mix {} {width}", kernel.name());
            let (mut plain, mut fast) = (vec![0.0; 3], vec![0.0; 3]);
            arithmetic.qk(&w, &x, width, &mut plain);
            kernel.isa.qk(&w, &x, width, &mut fast);
            assert_eq!(plain, fast, "qk {} {width}", kernel.name());
            for precision in [Precision::F32, Precision::Bf16] {
                let (mut plain, mut fast) = (x[..width].to_vec(), x[..width].to_vec());
                ops::round::row(precision, &mut plain);
                kernel.isa.round(precision, &mut fast);
                assert_eq!(plain, fast, "round {} {width}", kernel.name());
                let (cos, sin) = w.split_at(width / 2);
                let sin = &sin[..width / 2];
                for pairing in [Pairing::Halves, Pairing::Neighbours] {
                    let x = &x[..width / 2 * 2];
                    ops::rope::rope(x, cos, sin, pairing, precision, &mut plain);
                    kernel.isa.rope(x, cos, sin, pairing, precision, &mut fast);
                    assert_eq!(plain, fast, "rope {} {width} {pairing:?}", kernel.name());
                }
            }
            let (mut plain, mut fast) = (vec![0.0; width], vec![0.0; width]);
            ops::elementwise::add(&x, &w, &mut plain);
            kernel.isa.add(&x, &w, &mut fast);
            assert_eq!(plain, fast, "add {} {width}", kernel.name());
            ops::elementwise::mul(&x, &w, &mut plain);
            kernel.isa.mul(&x, &w, &mut fast);
            assert_eq!(plain, fast, "mul {} {width}", kernel.name());
            ops::attention::scale(&mut plain, 24);
            kernel.isa.scale(&mut fast, 24);
            assert_eq!(plain, fast, "scale {} {width}", kernel.name());
        }
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[test]
fn kernels_that_the_processor_lacks_pass_the_same_tests_with_their_instructions_carried_out_by_hand() {
    if env::var_os(WANTED).is_some() {
        return;
    }
    let kernels = module_path!().trim_end_matches("tests").trim_start_matches("llama_trace_engine::");
    // Emulation is slow, because every emulated instruction raises a signal. The test `few` is the shortest test that
    // runs all emulated instructions except those for bfloat16.
    let few = format!("{kernels}tests::what_is_emulated_is_available_and_does_its_work");
    let filters = sampled("tests of kernels whose instructions are carried out by hand", [&*few, kernels], 1);
    let mut tests = Command::new(env::current_exe().unwrap());
    let tests = tests.args(filters.last()).arg("--nocapture").env(WANTED, "1").output().unwrap();
    let said = String::from_utf8_lossy(&tests.stdout);
    assert!(tests.status.success(), "{said}{}", String::from_utf8_lossy(&tests.stderr));
    for line in String::from_utf8_lossy(&tests.stderr).lines().filter(|line| line.starts_with("skipped")) {
        eprintln!("{line}");
    }
    // The test that checks the emulation must be one of the tests that ran.
    assert!(said.contains("what_is_emulated_is_available_and_does_its_work ... ok"), "{said}");
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[test]
fn what_is_emulated_is_available_and_does_its_work() {
    let names: Vec<_> = Kernel::available().into_iter().map(Kernel::name).collect();
    if !emulated::on() {
        return;
    }
    for (name, of, done) in [("amx", "avx512vnni", &DONE[0]), ("avxvnni", "avx2", &DONE[1])] {
        if !names.contains(&of) {
            eprintln!("skipped: {name} is not emulated on a processor without {of}");
            continue;
        }
        assert!(names.contains(&name), "{name} among {names:?}");
        let missing = match name {
            "amx" => !amx::in_the_processor(),
            _ => !is_x86_feature_detected!("avxvnni"),
        };
        let before = done.load(Ordering::Relaxed);
        every_kernel_gives_the_bits_of_the_plain_int8_products();
        assert_eq!(done.load(Ordering::Relaxed) > before, missing, "{name} carried out by hand");
    }
}
