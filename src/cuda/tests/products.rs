//! Products with every number type of weights, and the read-back of weights.

use super::*;
use llama_trace_core::config::Arithmetic;
use llama_trace_engine::backend::{Product, WholeRows};

/// outputs, inputs, and the spans of the pass.
type Shape = (usize, usize, &'static [(usize, usize)]);

/// Few rows, many rows, and both in one pass; sizes that the fast kernels support, and other sizes.
const SHAPES: [Shape; 11] = [
    (5, 7, &[(0, 1)]),
    (9, 30, &[(0, 3)]),
    (13, 24, &[(4, 1)]),
    (33, 64, &[(0, 2), (3, 1), (0, 6)]),
    (70, 72, &[(0, 20)]),
    (66, 51, &[(0, 17), (0, 2)]),
    (130, 64, &[(0, 3), (0, 16), (2, 1)]),
    (17, 1056, &[(0, 5)]),
    // Up to 16 rows share a read of the weights; tiles of 128 outputs and 64 rows, some of which are partial.
    (10, 64, &[(0, 9), (2, 4)]),
    (11, 80, &[(0, 15), (4, 5), (0, 1)]),
    (133, 304, &[(0, 67)]),
];

/// Shapes for weights that are stored in blocks.
const OF_BLOCKS: [Shape; 5] = [
    (11, 256, &[(0, 1)]),
    (70, 512, &[(0, 20), (0, 1)]),
    (9, 768, &[(0, 3)]),
    (10, 256, &[(0, 9), (2, 4)]),
    (133, 256, &[(0, 67)]),
];

/// First types of every kind: floats, int8, small blocks, and large blocks with minima and without.
const FIRST: [Dtype; 6] = [Dtype::F32, Dtype::BF16, Dtype::I8, Dtype::Q8_0, Dtype::Q4K, Dtype::Q6K];

/// x · wᵀ + bias on a backend.
pub(super) fn product(
    backend: &dyn Backend,
    w: &Tensor,
    spans: &[(usize, usize)],
    biased: bool,
) -> (Vec<f32>, bool) {
    let (outputs, inputs) = (w.shape()[0], w.shape()[1]);
    let rows: usize = spans.iter().map(|span| span.1).sum();
    // The activations of a pass are rounded to its precision.
    let mut x = noise(rows * inputs, 31);
    llama_trace_core::ops::round::row(backend.precision(), &mut x);
    let x = filled(backend, &x);
    let matrix = backend.matrix(w).unwrap();
    let bias = biased.then(|| backend.vector(&vector(outputs, 32)).unwrap());
    let (pass, mut input) = (pass(backend, spans), backend.input());
    backend.prepare(&x, inputs, &pass, &PassRows::All, &mut input).unwrap();
    // The input keeps the memory of x alive.
    drop(x);
    let mut out = backend.buffer(rows * outputs).unwrap();
    backend.matmul(&input, &matrix, bias.as_ref(), &mut out).unwrap();
    let keeps = spans.iter().all(|span| backend.product_bit_exact(&matrix, span.1));
    (values(backend, &out, rows * outputs), keeps)
}

fn shapes(dtype: Dtype) -> &'static [Shape] {
    if dtype.is_blocks() { &OF_BLOCKS } else { &SHAPES }
}

fn products_of_every_number_type_are_those_of_the_cpu(precision: Precision) {
    for dtype in types_from("number types of products", &FIRST) {
        let Some((cuda, cpu)) = both(precision) else { return };
        for &(outputs, inputs, spans) in shapes(dtype) {
            let w = tensor(dtype, outputs, inputs, 33);
            let (found, keeps) = product(&cuda, &w, spans, inputs % 3 == 0);
            let (expected, _) = product(&cpu, &w, spans, inputs % 3 == 0);
            let what = format!("{dtype} {outputs}×{inputs}, {spans:?}, {precision:?}");
            if keeps {
                assert!(bits(&found) == bits(&expected), "{what}");
            } else {
                let apart = distance(&found, &expected);
                assert!(apart <= orders_apart(precision), "{what}: {apart}");
            }
            assert!(keeps || precision.group().is_none(), "integer products are bit-exact");
        }
    }
}

#[test]
fn in_float32_products_of_every_number_type_are_those_of_the_cpu() {
    products_of_every_number_type_are_those_of_the_cpu(Precision::F32);
}

#[test]
fn in_bfloat16_products_of_every_number_type_are_those_of_the_cpu() {
    products_of_every_number_type_are_those_of_the_cpu(Precision::Bf16);
}

#[test]
fn in_int8_products_of_every_number_type_are_those_of_the_cpu() {
    products_of_every_number_type_are_those_of_the_cpu(Precision::Q8 { group: 32 });
}

/// Returns the offset in a block of the float16 scale of all of its values, if there is one.
fn scale_at(dtype: Dtype) -> Option<usize> {
    match dtype {
        Dtype::F32 | Dtype::F16 | Dtype::BF16 | Dtype::I8 | Dtype::Mxfp4 => None,
        Dtype::Q6K => Some(208),
        Dtype::Q2K => Some(80),
        Dtype::Q3K => Some(108),
        _ => Some(0),
    }
}

/// A tensor of blocks, some of which have scales that files should not have.
fn blocks_with_odd_scales(dtype: Dtype, outputs: usize, inputs: usize, odd: bool) -> Tensor {
    let scales = [f16::NAN, f16::INFINITY, f16::NEG_INFINITY, f16::NEG_ZERO, f16::from_f32(-3e-7), f16::MAX];
    let mut bytes = random_blocks(&noise(outputs * inputs, 71), dtype);
    let row = inputs / dtype.block() * dtype.block_bytes();
    // One block of each row gets an unusual scale.
    for (i, row) in bytes.chunks_mut(row).enumerate().filter(|_| odd) {
        let block = &mut row[i % (inputs / dtype.block()) * dtype.block_bytes()..];
        match scale_at(dtype) {
            Some(at) => block[at..at + 2].copy_from_slice(&scales[i % scales.len()].to_le_bytes()),
            None => block[0] = [0, 255, 1, 230][i % 4],
        }
    }
    Tensor::new(dtype, vec![outputs, inputs], Bytes::owned(bytes)).unwrap()
}

/// x · wᵀ for the rows of x in one span. `multiply` is given the input, the weights and the output.
fn multiplied(
    backend: &dyn Backend,
    (w, x): (&Tensor, &[f32]),
    multiply: impl Fn(&Input, &Matrix, &mut Buffer),
) -> Vec<f32> {
    let (outputs, inputs) = (w.shape()[0], w.shape()[1]);
    let rows = x.len() / inputs;
    let (x, matrix, mut input) = (filled(backend, x), backend.matrix(w).unwrap(), backend.input());
    let pass = pass(backend, &[(0, rows)]);
    backend.prepare(&x, inputs, &pass, &PassRows::All, &mut input).unwrap();
    let mut out = backend.buffer(rows * outputs).unwrap();
    multiply(&input, &matrix, &mut out);
    values(backend, &out, rows * outputs)
}

/// The number of outputs of these tiles whose bits differ from `expected`.
fn wrong_in(cuda: &Cuda, operands: (&Tensor, &[f32]), tile: product::IntegerTile, expected: &[f32]) -> usize {
    let found = multiplied(cuda, operands, |x, matrix, out| {
        let asked = product::Asked::of(matrix, None, out);
        product::integer_in(cuda, x.downcast(), &asked, 32, tile).unwrap();
    });
    // NaNs have different bits on different machines.
    let other = |(a, b): &(&f32, &f32)| a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan());
    assert_eq!(found.len(), expected.len());
    found.iter().zip(expected).filter(other).count()
}

/// For many rows, tensor cores add groups in another order, with shorter formulas if every scale is plain. The results
/// are bit-exact with ops for other scales too.
#[test]
fn many_rows_of_every_number_type_have_the_bits_of_ops_with_scales_of_every_kind() {
    let factors = [1.0, -1e-3, 1e38, 1e-39, 1e-44, 0.0, f32::INFINITY, f32::NAN];
    let mut whole = types_from("number types of many rows", &FIRST);
    whole.retain(|dtype| !dtype.is_float());
    for dtype in whole {
        let Some((cuda, cpu)) = both(Precision::Q8 { group: 32 }) else { return };
        // These sizes give partial tiles in both directions, fewer groups than there are partial sums, stages that are
        // reused, and partial sums whose groups fill one stage or several.
        let sizes =
            [(11, 256, 17), (130, 2304, 70), (128, 768, 64), (40, 2048, 33), (11, 4096, 17), (70, 512, 130)];
        for (outputs, inputs, rows) in sizes {
            for odd_weights in [false, true] {
                let w = match dtype {
                    Dtype::I8 => tensor(dtype, outputs, inputs, 71),
                    _ => blocks_with_odd_scales(dtype, outputs, inputs, odd_weights),
                };
                let mut x = noise(rows * inputs, 72);
                if !odd_weights {
                    // One group of each row is multiplied by one of the factors.
                    for (i, row) in x.chunks_mut(inputs).enumerate() {
                        let group = &mut row[i % (inputs / 32) * 32..][..32];
                        group.iter_mut().for_each(|x| *x *= factors[i % factors.len()]);
                    }
                }
                let expected = multiplied(&cpu, (&w, &x), |x, w, out| cpu.matmul(x, w, None, out).unwrap());
                for tile in product::OF_INTEGERS {
                    let what = format!("{dtype} {outputs}×{inputs}, {rows} rows, odd weights: {odd_weights}");
                    assert_eq!(wrong_in(&cuda, (&w, &x), tile, &expected), 0, "{what}, {tile:?}");
                }
                for coalesced in [false, true] {
                    let cuda = cuda.clone().trying(Untried { coalesced, wide: true });
                    let what = format!("{dtype} {outputs}×{inputs}, {rows} rows, odd weights: {odd_weights}");
                    let wrong = wrong_in(&cuda, (&w, &x), product::WIDE, &expected);
                    assert_eq!(wrong, 0, "{what}, wide, coalesced: {coalesced}");
                }
                assert!(expected.iter().any(|x| x.is_finite() && *x != 0.0), "{dtype}: nothing was compared");
            }
        }
    }
}

/// The sums of eight remainders wait in the memory of the outputs, which may end inside a tile.
#[test]
fn wide_tiles_have_the_bits_of_ops() {
    for dtype in [Dtype::I8, Dtype::Q8_0, Dtype::Q4K, Dtype::Q6K, Dtype::Q2K] {
        let Some((cuda, cpu)) = both(Precision::Q8 { group: 32 }) else { return };
        let cuda = cuda.trying(Untried { coalesced: false, wide: true });
        // The groups of a remainder fill no stage, or (2,048 inputs) whole stages.
        for (outputs, inputs, rows) in [(130, 512, 129), (67, 768, 17), (11, 2048, 17)] {
            let (w, x) = (tensor(dtype, outputs, inputs, 75), noise(rows * inputs, 76));
            let expected = multiplied(&cpu, (&w, &x), |x, w, out| cpu.matmul(x, w, None, out).unwrap());
            let wrong = wrong_in(&cuda, (&w, &x), product::WIDE, &expected);
            assert_eq!(wrong, 0, "{dtype} {outputs}×{inputs}, {rows} rows");
        }
    }
}

/// Weights that coalesced kernels rewrite are those that the default kernels rewrite, for each number type and for rows
/// that end inside a warp or a block.
#[test]
fn coalesced_kernels_give_the_bits_of_the_default_ones() {
    let mut whole = types_from("number types of coalesced weights", &FIRST);
    whole.retain(|dtype| !dtype.is_float());
    for dtype in whole {
        for precision in [Precision::Bf16, Precision::Q8 { group: 32 }] {
            let Some((cuda, _)) = both(precision) else { return };
            let coalesced = cuda.clone().trying(Untried { coalesced: true, wide: false });
            for (outputs, inputs) in [(2, 256), (11, 768), (133, 1280), (3, 3840)] {
                let w = tensor(dtype, outputs, inputs, 73);
                let spans = [(0, 20)];
                let (found, expected) =
                    (product(&coalesced, &w, &spans, false), product(&cuda, &w, &spans, false));
                assert!(bits(&found.0) == bits(&expected.0), "{dtype} {outputs}×{inputs}, {precision:?}");
                assert!(expected.0.iter().any(|x| x.is_finite() && *x != 0.0), "nothing was compared");
            }
        }
    }
}

/// By default, no kernel runs that no GPU has run. Each word of the variable switches on the kernels that it names.
#[test]
fn untried_kernels_run_only_if_they_are_switched_on() {
    let wide = "matmul_q8_wide WEIGHT=Q8_0";
    let coalesced = ["pack_weights_coalesced WEIGHT=Q8_0", "unpack_bf16_coalesced WEIGHT=Q8_0"];
    for (untried, names) in [
        (Untried::default(), &[][..]),
        (Untried { coalesced: false, wide: true }, &[wide]),
        (Untried { coalesced: true, wide: false }, &coalesced),
    ] {
        let mut found = Vec::new();
        for precision in [Precision::Q8 { group: 32 }, Precision::Bf16] {
            let Some((cuda, list)) = Cuda::with_large_blocks(ROOM, None) else { return };
            let cuda = cuda.with_precision(precision).trying(untried);
            product(&cuda, &tensor(Dtype::Q8_0, 9, 64, 74), &[(0, 20)], false);
            found.extend(list.names());
        }
        found.retain(|name| name.starts_with(wide) || coalesced.iter().any(|own| name.starts_with(own)));
        assert_eq!(found, names, "{untried:?}");
    }
}

#[test]
fn int8_in_groups_that_end_inside_a_row_has_the_bits_of_ops() {
    for (group, own) in [(32, 24), (16, 16), (32, 64), (64, 64), (128, 128)] {
        let Some((cuda, cpu)) = both(Precision::Q8 { group }) else { return };
        for (outputs, inputs, spans) in [(7, 40, [(0, 1)]), (9, 128, [(0, 12)])] {
            let w = int8(&noise(outputs * inputs, 34), vec![outputs, inputs], own);
            let (found, expected) = (product(&cuda, &w, &spans, false), product(&cpu, &w, &spans, false));
            assert!(bits(&found.0) == bits(&expected.0), "groups of {group} and {own}, {outputs}×{inputs}");
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_a_batch_and_alone() {
    for dtype in [Dtype::F32, Dtype::BF16, Dtype::I8, Dtype::Q4K] {
        for precision in PRECISIONS {
            let Some((cuda, _)) = both(precision) else { return };
            let w = tensor(dtype, 19, 256, 35);
            let x = noise(24 * 256, 36);
            let run = |first: usize, spans: &[(usize, usize)]| {
                let rows: usize = spans.iter().map(|span| span.1).sum();
                let x = filled(&cuda, &x[first * 256..(first + rows) * 256]);
                let (matrix, mut input) = (cuda.matrix(&w).unwrap(), cuda.input());
                cuda.prepare(&x, 256, &pass(&cuda, spans), &PassRows::All, &mut input).unwrap();
                let mut out = cuda.buffer(rows * 19).unwrap();
                cuda.matmul(&input, &matrix, None, &mut out).unwrap();
                bits(&values(&cuda, &out, rows * 19))
            };
            let together = run(0, &[(0, 3), (5, 1), (0, 18), (2, 2)]);
            let alone = [run(0, &[(0, 3)]), run(3, &[(5, 1)]), run(4, &[(0, 18)]), run(22, &[(2, 2)])];
            assert!(together == alone.concat(), "{dtype} {precision:?}");
        }
    }
}

#[test]
fn tiles_of_every_size_have_the_same_bits_and_are_near_the_processors() {
    let Some((cuda, cpu)) = both(Precision::Bf16) else { return };
    // These sizes give partial tiles in each direction, unused stages, reused stages, and inputs that end inside a
    // stage.
    for (rows, outputs, inputs) in [
        (16, 3, 8),
        (129, 257, 136),
        (150, 512, 72),
        (64, 64, 32),
        (65, 61, 96),
        (17, 300, 128),
        (257, 30, 40),
        (70, 100, 456),
    ] {
        let mut x = noise(rows * inputs, 61);
        llama_trace_core::ops::round::row(Precision::Bf16, &mut x);
        let w =
            [outputs, outputs / 2 + 1, 2].map(|outputs| tensor(Dtype::BF16, outputs, inputs, outputs as u32));
        let bias = vector(outputs, 63);
        let (x_on, mut input) = (filled(&cuda, &x), cuda.input());
        cuda.prepare(&x_on, inputs, &pass(&cuda, &[(0, rows)]), &PassRows::All, &mut input).unwrap();
        let matrices = w.each_ref().map(|w| cuda.matrix(w).unwrap());
        let bias_on = cuda.vector(&bias).unwrap();
        let run = |tiles| {
            let outs = w.each_ref().map(|w| cuda.buffer(rows * w.shape()[0]).unwrap());
            let asked = |i: usize| {
                let bias = (i == 0).then_some(&bias_on);
                product::Asked::of(&matrices[i], bias, &outs[i])
            };
            product::all_in_tiles(&cuda, input.downcast(), &[0, 1, 2].map(asked), tiles).unwrap();
            [0, 1, 2].map(|i| values(&cuda, &outs[i], rows * w[i].shape()[0]))
        };
        let mut runs = vec![product::OF_WARPS.map(run).to_vec()];
        if cuda.queue.device().has_warpgroups() {
            runs.push(product::OF_WARPGROUPS.map(run).to_vec());
        }
        for (i, w) in w.iter().enumerate() {
            let what = format!("{rows} rows, {}×{inputs}", w.shape()[0]);
            let (x, mut input) = (filled(&cpu, &x), cpu.input());
            cpu.prepare(&x, inputs, &pass(&cpu, &[(0, rows)]), &PassRows::All, &mut input).unwrap();
            let (matrix, bias) = (cpu.matrix(w).unwrap(), cpu.vector(&bias).unwrap());
            let mut out = cpu.buffer(rows * w.shape()[0]).unwrap();
            cpu.matmul(&input, &matrix, (i == 0).then_some(&bias), &mut out).unwrap();
            let expected = values(&cpu, &out, rows * w.shape()[0]);
            for (number, of_sizes) in runs.iter().enumerate() {
                let apart = distance(&of_sizes[0][i], &expected);
                assert!(apart <= orders_apart(Precision::Bf16), "{what}, kind {number}: {apart}");
                let alike = of_sizes.windows(2).all(|two| bits(&two[0][i]) == bits(&two[1][i]));
                assert!(alike, "{what}, kind {number}");
            }
        }
    }
}

#[test]
fn fused_products_have_the_bits_of_the_plain_ones() {
    for dtype in [Dtype::F32, Dtype::BF16, Dtype::Q6K, Dtype::I8] {
        for precision in PRECISIONS {
            let Some((cuda, _)) = both(precision) else { return };
            for spans in [&[(0, 1)][..], &[(0, 5), (1, 1)], &[(0, 17)]] {
                let rows: usize = spans.iter().map(|span| span.1).sum();
                let inputs = 256;
                let weights = [(21, 41), (10, 42), (10, 43), (12, 44), (12, 45)];
                let [q, k, v, gate, up] = weights
                    .map(|(outputs, seed)| cuda.matrix(&tensor(dtype, outputs, inputs, seed)).unwrap());
                let bias = cuda.vector(&vector(12, 46)).unwrap();
                let x = filled(&cuda, &noise(rows * inputs, 47));
                let mut input = cuda.input();
                cuda.prepare(&x, inputs, &pass(&cuda, spans), &PassRows::All, &mut input).unwrap();
                let buffer = |width: usize| cuda.buffer(rows * width).unwrap();

                let mut outs = [buffer(21), buffer(10), buffer(10)];
                let [a, b, c] = &mut outs;
                let mut products =
                    [(&q, a), (&k, b), (&v, c)].map(|(matrix, out)| Product { matrix, bias: None, out });
                let mut order = Vec::new();
                let mut made = |i: usize, _: &mut Buffer| {
                    order.push(i);
                    Ok(())
                };
                cuda.matmuls(&input, &mut products, &mut made).unwrap();
                assert_eq!(order, [0, 1, 2]);
                for ((matrix, width), fused) in [(&q, 21), (&k, 10), (&v, 10)].into_iter().zip(&outs) {
                    let mut plain = buffer(width);
                    cuda.matmul(&input, matrix, None, &mut plain).unwrap();
                    let (plain, fused) =
                        (values(&cuda, &plain, rows * width), values(&cuda, fused, rows * width));
                    assert!(bits(&plain) == bits(&fused), "{dtype} {precision:?} {spans:?}");
                }

                let mut outs = [0; 4].map(|_| buffer(12));
                let [gate_out, silu, up_out, hidden] = &mut outs;
                let gate = Product { matrix: &gate, bias: Some(&bias), out: gate_out };
                let up = Product { matrix: &up, bias: None, out: up_out };
                let (gate_matrix, up_matrix) = (gate.matrix, up.matrix);
                let mut order = Vec::new();
                let mut made = |i: usize, _: &mut Buffer| {
                    order.push(i);
                    Ok(())
                };
                cuda.swiglu(&input, rows * 12, Swiglu { gate, silu, up, hidden }, &mut made).unwrap();
                assert_eq!(order, [0, 1, 2, 3]);
                let [mut gate, mut silu, mut up, mut hidden] = [0; 4].map(|_| buffer(12));
                cuda.matmul(&input, gate_matrix, Some(&bias), &mut gate).unwrap();
                cuda.silu(&gate, rows * 12, &mut silu).unwrap();
                cuda.matmul(&input, up_matrix, None, &mut up).unwrap();
                cuda.mul(&silu, &up, rows * 12, &mut hidden).unwrap();
                for (plain, fused) in [gate, silu, up, hidden].iter().zip(&outs) {
                    let (plain, fused) = (values(&cuda, plain, rows * 12), values(&cuda, fused, rows * 12));
                    assert!(bits(&plain) == bits(&fused), "swiglu, {dtype} {precision:?} {spans:?}");
                }
            }
        }
    }
}

#[test]
fn what_was_quantised_is_read_back() {
    let Some((cuda, cpu)) = both(Precision::Q8 { group: 32 }) else { return };
    fn run(backend: &dyn Backend, rows: Range<usize>) -> (Vec<i8>, Vec<u32>) {
        let (x, mut input) = (filled(backend, &noise(6 * 75, 51)), backend.input());
        backend.prepare(&x, 75, &pass(backend, &[(0, 6)]), &PassRows::All, &mut input).unwrap();
        let mut seen = None;
        let mut see = |values: &[i8], scales: &[f32]| {
            seen = Some((values.to_vec(), bits(scales)));
            Ok(())
        };
        backend.read_quantized(&input, rows, &mut see).unwrap();
        seen.unwrap()
    }
    for rows in [0..6, 2..5] {
        assert_eq!(run(&cuda, rows.clone()), run(&cpu, rows));
    }
}

#[test]
fn rows_of_weights_are_read_back_as_they_are_whole_and_cut() {
    for dtype in types_from("number types that are read back", &[Dtype::F32, Dtype::I8, Dtype::Q4K]) {
        for precision in PRECISIONS {
            let Some((cuda, cpu)) = both(precision) else { return };
            fn run(backend: &dyn Backend, w: &Tensor) -> (Vec<u32>, String) {
                let whole = backend.matrix(w).unwrap();
                let cut = backend.cut(&whole, 2..9).unwrap();
                let (mut floats, mut numbers) = (Vec::new(), String::new());
                for (matrix, rows) in [(&whole, 0..10), (&cut, 1..7)] {
                    let mut see = |values: &[f32]| {
                        floats.extend(bits(values));
                        Ok(())
                    };
                    backend.read_rows(matrix, rows.clone(), &mut see).unwrap();
                    let (count, inputs) = (rows.len(), w.shape()[1]);
                    let mut see = |whole: WholeRows<'_>| {
                        match whole {
                            WholeRows::Int8(rows) => {
                                let mut values = vec![0.0; rows.values.len()];
                                rows.dequantize(0, &mut values);
                                numbers += &format!("{:?} {:?}", rows.values, bits(&values));
                            }
                            WholeRows::Blocks(rows) => {
                                let (x, scales) = (vec![3; inputs], vec![0.5; inputs / 32]);
                                let products =
                                    (0..count).map(|row| rows.product(Arithmetic::Fused, &x, &scales, row));
                                numbers +=
                                    &format!("{:?} {:?}", rows.bytes, bits(&products.collect::<Vec<_>>()));
                            }
                        }
                        Ok(())
                    };
                    backend.read_int8_rows(matrix, rows, &mut see).unwrap();
                }
                (floats, numbers)
            }
            let w = tensor(dtype, 10, if dtype.is_blocks() { 256 } else { 40 }, 52);
            let (found, expected) = (run(&cuda, &w), run(&cpu, &w));
            assert!(found.0 == expected.0, "{dtype} {precision:?}");
            assert!(found.1 == expected.1, "{dtype} {precision:?}, whole numbers");
            assert_eq!(expected.1.is_empty(), precision.group().is_none());
        }
    }
}

#[test]
fn the_ptx_that_the_program_carries_multiplies_row_by_row_with_the_same_bits() {
    let all = [
        (Dtype::BF16, Precision::Bf16),
        (Dtype::F32, Precision::F32),
        (Dtype::Q4K, Precision::F32),
        (Dtype::I8, Precision::Q8 { group: 32 }),
        (Dtype::Q4K, Precision::Q8 { group: 32 }),
    ];
    for (dtype, precision) in sampled("number types of the carried PTX", all, 2) {
        let (Some(cuda), Some(compact)) = (Cuda::emulated(ROOM), Cuda::compact(ROOM)) else { return };
        let (cuda, compact) = (cuda.with_precision(precision), compact.with_precision(precision));
        for &(outputs, inputs, spans) in shapes(dtype) {
            let w = tensor(dtype, outputs, inputs, 35);
            let (found, expected) = (product(&compact, &w, spans, true), product(&cuda, &w, spans, true));
            assert!(bits(&found.0) == bits(&expected.0), "{dtype} {outputs}×{inputs}, {spans:?}");
        }
    }
}

/// In such long sums tensor cores truncate small terms. Few rows are summed in pieces, which avoids this. For many
/// rows, `check` has a tolerance.
#[test]
fn long_products_by_tensor_cores_are_as_near_as_check_wants_them() {
    let (Some((cuda, cpu)), Some(others)) = (both(Precision::Bf16), Cuda::compact(ROOM)) else { return };
    // No self-test has run on this device, so it does not use warpgroups.
    let others = others.with_precision(Precision::Bf16);
    let (outputs, inputs) = (40, 14_336);
    let w = tensor(Dtype::BF16, outputs, inputs, 61);
    let many = [(16, 0.05), (33, 0.05)].map(|(tokens, most)| (&others, tokens, most));
    let all = [(1, 0.01), (9, 0.01), (16, 0.05), (33, 0.05)].map(|(tokens, most)| (&cuda, tokens, most));
    for (cuda, tokens, most) in all.into_iter().chain(many) {
        let (found, _) = product(cuda, &w, &[(0, tokens)], false);
        let (expected, _) = product(&cpu, &w, &[(0, tokens)], false);
        let others = found.iter().zip(&expected).filter(|(a, b)| a != b).count();
        let share = others as f64 / found.len() as f64;
        assert!(share <= most, "{tokens} tokens: {share}");
    }
}
