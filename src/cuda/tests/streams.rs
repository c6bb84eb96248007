//! Integer products whose weights go through shared memory, and the operations fused with them.

use super::products::product;
use super::*;
use llama_trace_engine::backend::Product;
use std::sync::atomic::Ordering::Relaxed;

const Q8: Precision = Precision::Q8 { group: 32 };

/// Integer number types, with small blocks and with large ones.
fn whole_types(what: &str) -> Vec<Dtype> {
    // First types of every kind: with an offset, with minima, with two runs in a group, with blocks that begin at any
    // even byte.
    let first = [Dtype::Q8_0, Dtype::Q4_0, Dtype::Q4_1, Dtype::Q4K, Dtype::Q6K, Dtype::Q2K];
    let others = Dtype::ALL.into_iter().filter(|dtype| !dtype.is_float() && !first.contains(dtype));
    [first.to_vec(), sampled(what, others, 1)].concat()
}

fn launches(log: &llama_trace_emulator::Log) -> usize {
    let of = |asked: &Asked| match asked {
        Asked::Launches(count) | Asked::Graph(count) => *count,
        _ => 0,
    };
    log.lock().unwrap().iter().map(of).sum()
}

#[test]
fn products_of_few_rows_have_the_bits_of_the_cpu_whatever_their_sizes() {
    for dtype in whole_types("number types of few rows") {
        let Some((cuda, cpu)) = both(Q8) else { return };
        // A row of one group, rows that end inside a piece, and rows of many pieces. Fewer outputs than one warp
        // computes, and more than all warps compute at once.
        for (outputs, inputs) in [(1, 32), (3, 288), (9, 1056), (150, 64), (2, 4128)] {
            let inputs = usize::next_multiple_of(inputs, dtype.block());
            let w = tensor(dtype, outputs, inputs, 71);
            for rows in [1, 2, 3, 5, 8, 9, 16, 17] {
                let spans: Vec<_> = (0..rows).map(|row| (row, 1)).collect();
                let (found, _) = product(&cuda, &w, &spans, rows % 2 == 0);
                let (expected, _) = product(&cpu, &w, &spans, rows % 2 == 0);
                assert!(bits(&found) == bits(&expected), "{dtype} {outputs}×{inputs}, {rows} rows");
            }
        }
    }
}

/// The products of slices of a tensor that begin at any row, with `rows` rows of activations.
struct OfCuts(Dtype, usize);

impl Operate for OfCuts {
    fn on(&self, backend: &dyn Backend) -> Vec<f32> {
        let Self(dtype, rows) = *self;
        let inputs = 3 * dtype.block().max(32);
        let whole = backend.matrix(&tensor(dtype, 12, inputs, 72)).unwrap();
        let x = filled(backend, &noise(rows * inputs, 73));
        let spans: Vec<_> = (0..rows).map(|row| (row, 1)).collect();
        let (pass, mut input) = (pass(backend, &spans), backend.input());
        backend.prepare(&x, inputs, &pass, &PassRows::All, &mut input).unwrap();
        let mut all = Vec::new();
        for cut in [0..5, 1..12, 7..8, 5..11] {
            let matrix = backend.cut(&whole, cut.clone()).unwrap();
            let mut out = backend.buffer(rows * cut.len()).unwrap();
            backend.matmul(&input, &matrix, None, &mut out).unwrap();
            all.extend(values(backend, &out, rows * cut.len()));
        }
        all
    }
}

#[test]
fn rows_of_a_tensor_that_begin_at_any_byte_have_the_bits_of_the_cpu() {
    for dtype in whole_types("number types that are cut") {
        for rows in [1, 4] {
            let Some((cuda, cpu)) = both(Q8) else { return };
            let (found, expected) = (OfCuts(dtype, rows).on(&cuda), OfCuts(dtype, rows).on(&cpu));
            assert!(bits(&found) == bits(&expected), "{dtype}, {rows} rows");
        }
    }
}

#[test]
fn what_is_not_a_number_and_what_is_huge_come_out_as_from_the_cpu() {
    let inputs = 512;
    for dtype in [Dtype::I8, Dtype::Q8_0, Dtype::Q4K, Dtype::Q6K, Dtype::Q2K, Dtype::Mxfp4] {
        for rows in [1, 5] {
            let Some((cuda, cpu)) = both(Q8) else { return };
            let w = tensor(dtype, 6, inputs, 74);
            let run = |on_cuda: bool| {
                fn run(backend: &dyn Backend, w: &Tensor, rows: usize, inputs: usize) -> Vec<f32> {
                    let mut x = noise(rows * inputs, 75);
                    let special =
                        [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN_POSITIVE / 64.0];
                    x.iter_mut().step_by(77).zip(special).for_each(|(x, special)| *x = special);
                    // The last row has no special values.
                    let last = noise(inputs, 76);
                    if rows > 1 {
                        x[(rows - 1) * inputs..].copy_from_slice(&last);
                    }
                    let x = filled(backend, &x);
                    let spans: Vec<_> = (0..rows).map(|row| (row, 1)).collect();
                    let (pass, mut input) = (pass(backend, &spans), backend.input());
                    backend.prepare(&x, inputs, &pass, &PassRows::All, &mut input).unwrap();
                    let (matrix, mut out) = (backend.matrix(w).unwrap(), backend.buffer(rows * 6).unwrap());
                    backend.matmul(&input, &matrix, None, &mut out).unwrap();
                    values(backend, &out, rows * 6)
                }
                if on_cuda { run(&cuda, &w, rows, inputs) } else { run(&cpu, &w, rows, inputs) }
            };
            // NaNs may have different bits.
            let same = |a: &f32, b: &f32| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
            let (found, expected) = (run(true), run(false));
            assert!(found.iter().zip(&expected).all(|(a, b)| same(a, b)), "{dtype}: {found:?} {expected:?}");
            assert!(expected[0].is_nan() && (rows == 1 || expected[rows * 6 - 1].is_finite()), "{dtype}");
        }
    }
}

/// Sizes of a layer: heads, kv heads, their channels, the width, and the width of the feed-forward network.
#[derive(Clone, Copy, Debug)]
struct Sizes(usize, usize, usize, usize, usize);

/// A layer without attention. Its weights have one number type, but the weights of the values and of the last product
/// have another.
#[derive(Clone, Copy, Debug)]
struct Layer {
    dtype: Dtype,
    other: Dtype,
    sizes: Sizes,
    rows: usize,
    pairing: Pairing,
}

impl Layer {
    /// Runs the layer twice, like two consecutive layers, and calls `look` after each operation. Returns everything
    /// that the first layer writes.
    fn run(&self, backend: &dyn Backend, look: &dyn Fn(), before: &dyn Fn()) -> Vec<Vec<f32>> {
        let Self { dtype, other, sizes: Sizes(heads, kv_heads, c, width, ffn), rows, pairing } = *self;
        let (of_q, of_k) = (heads * c, kv_heads * c);
        let matrix =
            |dtype, outputs, inputs, seed| backend.matrix(&tensor(dtype, outputs, inputs, seed)).unwrap();
        let (q, k, v) =
            (matrix(dtype, of_q, width, 1), matrix(dtype, of_k, width, 2), matrix(other, of_k, width, 3));
        let (gate, up, down) =
            (matrix(dtype, ffn, width, 4), matrix(dtype, ffn, width, 5), matrix(other, width, ffn, 6));
        let bias = backend.vector(&vector(of_k, 7)).unwrap();
        let norms = [8, 9].map(|seed| backend.vector(&vector(width, seed)).unwrap());
        let wo = matrix(dtype, width, of_q, 10);
        let x = filled(backend, &noise(rows * width, 11));
        let (cos, sin) = (noise(rows * c / 2, 12), noise(rows * c / 2, 13));
        let (cos, sin) = (filled(backend, &cos), filled(backend, &sin));
        let spans: Vec<_> = (0..rows).map(|row| (row % 3, 1)).collect();
        let pass = pass(backend, &spans);
        let buffer = |width: usize| backend.buffer(rows * width).unwrap();
        let (mut normed, mut input) = (buffer(width), backend.input());
        let (mut out_q, mut turned_q) = (buffer(of_q), buffer(of_q));
        let (mut out_k, mut turned_k, mut out_v) = (buffer(of_k), buffer(of_k), buffer(of_k));
        let [mut of_wo, mut residual, mut ffn_norm, mut of_down, mut sum] = [0; 5].map(|_| buffer(width));
        let [mut of_gate, mut silu, mut of_up, mut hidden] = [0; 4].map(|_| buffer(ffn));
        let mut caches: Vec<_> =
            spans.iter().map(|_| [0; 2].map(|_| backend.new_cache(3 * of_k).unwrap())).collect();
        let mut nobody = |_: usize, _: &mut Buffer| {
            look();
            Ok(())
        };
        // Memory grows in the first run.
        for _ in 0..2 {
            before();
            backend.rms_norm(&x, &norms[0], 1e-5, rows, &mut normed).unwrap();
            look();
            backend.prepare(&normed, width, &pass, &PassRows::All, &mut input).unwrap();
            let mut products = [
                Product { matrix: &q, bias: None, out: &mut out_q },
                Product { matrix: &k, bias: Some(&bias), out: &mut out_k },
                Product { matrix: &v, bias: None, out: &mut out_v },
            ];
            backend.matmuls(&input, &mut products, &mut nobody).unwrap();
            backend.rope(&out_q, &cos, &sin, pairing, heads, c, rows, &mut turned_q).unwrap();
            look();
            backend.rope(&out_k, &cos, &sin, pairing, kv_heads, c, rows, &mut turned_k).unwrap();
            look();
            for (span, [keys, values]) in caches.iter_mut().enumerate() {
                backend.cache(&turned_k, of_k, &pass, span, keys).unwrap();
                look();
                backend.cache(&out_v, of_k, &pass, span, values).unwrap();
                look();
            }
            // The rotated queries take the place of attention's result.
            backend.prepare(&turned_q, of_q, &pass, &PassRows::All, &mut input).unwrap();
            backend.matmul(&input, &wo, None, &mut of_wo).unwrap();
            look();
            let written = (&mut residual, &mut ffn_norm);
            backend.add_rms_norm((&x, &of_wo), &norms[1], 1e-5, (rows, width), written, &mut nobody).unwrap();
            backend.prepare(&ffn_norm, width, &pass, &PassRows::All, &mut input).unwrap();
            let outs = Swiglu {
                gate: Product { matrix: &gate, bias: None, out: &mut of_gate },
                silu: &mut silu,
                up: Product { matrix: &up, bias: None, out: &mut of_up },
                hidden: &mut hidden,
            };
            backend.swiglu(&input, rows * ffn, outs, &mut nobody).unwrap();
            backend.prepare(&hidden, ffn, &pass, &PassRows::All, &mut input).unwrap();
            backend.matmul(&input, &down, None, &mut of_down).unwrap();
            look();
            backend.add(&residual, &of_down, rows * width, &mut sum).unwrap();
            backend.sync().unwrap();
        }
        let of_width = [&of_wo, &residual, &of_down, &sum].map(|buffer| (buffer, width));
        let of_ffn = [&of_gate, &silu, &of_up, &hidden].map(|buffer| (buffer, ffn));
        let of_heads = [(&out_q, of_q), (&turned_q, of_q), (&out_k, of_k), (&turned_k, of_k), (&out_v, of_k)];
        let all = of_width.iter().chain(&of_ffn).chain(&of_heads);
        let mut all: Vec<_> = all.map(|(buffer, width)| values(backend, buffer, rows * width)).collect();
        let ends = spans.iter().flat_map(|span| [span.0 + 1; 2]);
        for (cache, end) in caches.iter().flatten().zip(ends) {
            let mut see = |values: &[f32]| {
                all.push(values.to_vec());
                Ok(())
            };
            backend.read_cache(cache, end * of_k, &mut see).unwrap();
        }
        all
    }
}

/// In a decode pass with integer products, a product computes the norm and the int8 values of its input. It also
/// rotates and caches its result, quantises the next input, and adds the residual.
#[test]
fn what_comes_before_and_after_products_of_one_row_goes_with_them_and_has_the_same_bits() {
    let layers = [
        (Dtype::Q4K, Dtype::Q6K, Sizes(4, 2, 64, 256, 512)),
        (Dtype::Q8_0, Dtype::Q8_0, Sizes(3, 1, 32, 96, 160)),
        (Dtype::I8, Dtype::I8, Sizes(2, 1, 16, 1120, 64)),
        (Dtype::Q4_0, Dtype::Q4_1, Sizes(5, 5, 64, 64, 96)),
    ];
    for (dtype, other, sizes) in layers {
        for (cache, pairing) in [(CacheDtype::F32, Pairing::Halves), (CacheDtype::Bf16, Pairing::Neighbours)]
        {
            let Some((device, log)) = Cuda::logged(ROOM) else { return };
            let cuda = device.with_precision(Q8).with_cache_dtype(cache);
            let cpu = Cpu::default().with_precision(Q8).with_cache_dtype(cache);
            let layer = Layer { dtype, other, sizes, rows: 1, pairing };
            let run = |streams: bool, look: &dyn Fn()| {
                cuda.streams.store(streams, Relaxed);
                let made = layer.run(&cuda, look, &|| {
                    cuda.sync().unwrap();
                    log.lock().unwrap().clear();
                });
                made.into_iter().map(|values| bits(&values)).collect::<Vec<_>>()
            };
            let count = |made: Vec<Vec<u32>>| (made, launches(&log));
            let together = run(true, &|| ());
            // Counts the launches of the second layer. Copies to and from the device are not launches.
            let (together, of_together) = count(together);
            let (looked, of_looked) = count(run(true, &|| cuda.sync().unwrap()));
            let (without, of_without) = count(run(false, &|| ()));
            let expected: Vec<_> =
                layer.run(&cpu, &|| (), &|| ()).into_iter().map(|values| bits(&values)).collect();
            let what = format!("{layer:?}, {cache:?}");
            for (found, how) in [(&together, "together"), (&looked, "looked at"), (&without, "without")] {
                for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    assert!(found == expected, "{what}, {how}: number {i}");
                }
            }
            // The launches are: queries with keys; values, if their type is another one; wo with the residual; the
            // gate; the last product with its residual. A bfloat16 cache is read back by a kernel, one launch for keys
            // and one for values.
            let of_reading = if cache == CacheDtype::Bf16 { 2 } else { 0 };
            assert_eq!(of_together - of_reading, if dtype == other { 4 } else { 5 }, "{what}");
            assert!(of_looked > of_together && of_without > of_together, "{what}: {of_looked}, {of_without}");
        }
    }
}

#[test]
fn layers_of_some_rows_have_the_bits_of_the_cpu_and_of_each_row_alone() {
    for (dtype, other, sizes) in [
        (Dtype::Q4K, Dtype::Q6K, Sizes(2, 1, 128, 256, 256)),
        (Dtype::Q8_0, Dtype::I8, Sizes(3, 1, 32, 96, 160)),
        (Dtype::Q5_1, Dtype::Mxfp4, Sizes(1, 1, 32, 32, 96)),
    ] {
        for rows in [2, 4, 7, 16, 17] {
            let Some((cuda, cpu)) = both(Q8) else { return };
            let layer = Layer { dtype, other, sizes, rows, pairing: Pairing::Halves };
            let (found, expected) = (layer.run(&cuda, &|| (), &|| ()), layer.run(&cpu, &|| (), &|| ()));
            let looked = layer.run(&cuda, &|| cuda.sync().unwrap(), &|| ());
            for (i, expected) in expected.iter().enumerate() {
                assert!(bits(&found[i]) == bits(expected), "{layer:?}: number {i}");
                assert!(bits(&looked[i]) == bits(expected), "{layer:?}, looked at: number {i}");
            }
        }
    }
}

/// The recorded int8 values of an input are those that products read, however they were made.
#[test]
fn quantised_inputs_are_seen_as_the_cpu_has_them_after_a_norm_and_after_a_gate() {
    struct Seen(usize, bool);
    impl Seen {
        fn on(&self, backend: &dyn Backend) -> (Vec<i8>, Vec<u32>, Vec<u32>) {
            let (Self(rows, before), width, ffn) = (self, 64, 96);
            let (rows, before) = (*rows, *before);
            let x = filled(backend, &noise(rows * width, 81));
            let weight = backend.vector(&vector(width, 82)).unwrap();
            let [gate, up] =
                [83, 84].map(|seed| backend.matrix(&tensor(Dtype::Q4_0, ffn, width, seed)).unwrap());
            let down = backend.matrix(&tensor(Dtype::Q4_0, 5, ffn, 85)).unwrap();
            let spans: Vec<_> = (0..rows).map(|row| (row, 1)).collect();
            let (pass, mut input) = (pass(backend, &spans), backend.input());
            let (mut normed, mut out) =
                (backend.buffer(rows * width).unwrap(), backend.buffer(rows * 5).unwrap());
            let [mut of_gate, mut silu, mut of_up, mut hidden] =
                [0; 4].map(|_| backend.buffer(rows * ffn).unwrap());
            let (mut seen, mut scales) = (Vec::new(), Vec::new());
            let mut look = |input: &Input| {
                let mut see = |values: &[i8], of: &[f32]| {
                    seen.extend_from_slice(values);
                    scales.extend(bits(of));
                    Ok(())
                };
                backend.read_quantized(input, 0..rows, &mut see).unwrap();
            };
            backend.rms_norm(&x, &weight, 1e-5, rows, &mut normed).unwrap();
            backend.prepare(&normed, width, &pass, &PassRows::All, &mut input).unwrap();
            if before {
                look(&input);
            }
            let outs = Swiglu {
                gate: Product { matrix: &gate, bias: None, out: &mut of_gate },
                silu: &mut silu,
                up: Product { matrix: &up, bias: None, out: &mut of_up },
                hidden: &mut hidden,
            };
            backend.swiglu(&input, rows * ffn, outs, &mut |_, _| Ok(())).unwrap();
            look(&input);
            backend.prepare(&hidden, ffn, &pass, &PassRows::All, &mut input).unwrap();
            if before {
                look(&input);
            }
            backend.matmul(&input, &down, None, &mut out).unwrap();
            look(&input);
            (seen, scales, bits(&values(backend, &out, rows * 5)))
        }
    }
    for rows in [1, 3, 18] {
        for before in [true, false] {
            let Some((cuda, cpu)) = both(Q8) else { return };
            let seen = Seen(rows, before);
            assert!(seen.on(&cuda) == seen.on(&cpu), "{rows} rows, {before}");
        }
    }
}
