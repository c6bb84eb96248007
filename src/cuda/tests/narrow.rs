//! Activations in bfloat16, for tensor cores: the launch that computes activations also rounds them, if they are not
//! recorded.

use std::any::Any;

use super::*;
use llama_trace_engine::backend::Product;

/// The operation that computes the activations of a product.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Maker {
    Norm,
    AddAndNorm,
    Attention,
    /// The scores of the first of several spans are recorded.
    AttentionSeen,
    Swiglu,
    /// This kernel can write only float32.
    Silu,
}

const MAKERS: [Maker; 6] =
    [Maker::Norm, Maker::AddAndNorm, Maker::Attention, Maker::AttentionSeen, Maker::Swiglu, Maker::Silu];

/// A sink that records the scores if the field is true.
struct Scores(bool);

impl AttentionSink for Scores {
    fn wants(&self, part: AttentionPart) -> bool {
        self.0 && part == AttentionPart::Scores
    }

    fn rows(&mut self, _: AttentionPart, _: Range<usize>, _: &[f32]) -> Result<()> {
        Ok(())
    }
}

/// Values of a row: four heads of 16.
const WIDTH: usize = 64;

/// Computes the rows of `spans` with `maker`, and writes them to `out`. Returns the inputs of `maker`. The caller must
/// keep them, because freeing memory submits the queue.
fn make(cuda: &Cuda, maker: Maker, spans: &[(usize, usize)], out: &mut Buffer) -> Box<dyn Any> {
    let rows: usize = spans.iter().map(|span| span.1).sum();
    let weight = cuda.vector(&vector(WIDTH, 81)).unwrap();
    let [a, b, mut c] = [82, 83, 84].map(|seed| {
        let mut values = noise(rows * WIDTH, seed);
        llama_trace_core::ops::round::row(Precision::Bf16, &mut values);
        filled(cuda, &values)
    });
    let mut nobody = |_: usize, _: &mut Buffer| Ok(());
    let mut kept: Vec<Box<dyn Any>> = Vec::new();
    match maker {
        Maker::Norm => cuda.rms_norm(&a, &weight, 1e-5, rows, out).unwrap(),
        Maker::AddAndNorm => {
            cuda.add_rms_norm((&a, &b), &weight, 1e-5, (rows, WIDTH), (&mut c, out), &mut nobody).unwrap();
        }
        Maker::Attention | Maker::AttentionSeen => {
            let pass = pass(cuda, spans);
            let shape = AttentionShape::llama(4, 4, 16, None);
            let mut caches: Vec<_> = spans
                .iter()
                .map(|span| [0; 2].map(|_| cuda.new_cache((span.0 + span.1) * WIDTH).unwrap()))
                .collect();
            for (span, [keys, values]) in caches.iter_mut().enumerate() {
                cuda.cache(&b, WIDTH, &pass, span, keys).unwrap();
                cuda.cache(&c, WIDTH, &pass, span, values).unwrap();
            }
            for (span, [keys, values]) in caches.iter().enumerate() {
                let mut seen = Scores(maker == Maker::AttentionSeen && span == 0 && spans.len() > 1);
                cuda.attention(shape, &a, &pass, span, keys, values, out, &mut seen).unwrap();
            }
            kept.push(Box::new((pass, caches)));
        }
        Maker::Swiglu => {
            let [gate, up] =
                [85, 86].map(|seed| cuda.matrix(&tensor(Dtype::BF16, WIDTH, WIDTH, seed)).unwrap());
            let (pass, mut input) = (pass(cuda, spans), cuda.input());
            cuda.prepare(&a, WIDTH, &pass, &PassRows::All, &mut input).unwrap();
            let [mut of_gate, mut silu, mut of_up] = [0; 3].map(|_| cuda.buffer(rows * WIDTH).unwrap());
            let outputs = Swiglu {
                gate: Product { matrix: &gate, bias: None, out: &mut of_gate },
                silu: &mut silu,
                up: Product { matrix: &up, bias: None, out: &mut of_up },
                hidden: out,
            };
            cuda.swiglu(&input, rows * WIDTH, outputs, &mut nobody).unwrap();
            kept.push(Box::new((gate, up, pass, input, of_gate, silu, of_up)));
        }
        Maker::Silu => cuda.silu(&a, rows * WIDTH, out).unwrap(),
    }
    kept.push(Box::new((weight, a, b, c)));
    Box::new(kept)
}

#[test]
fn who_makes_activations_writes_them_in_bfloat16_and_products_have_the_same_bits() {
    let Some((device, log)) = Cuda::logged(ROOM) else { return };
    let cuda = device.with_precision(Precision::Bf16);
    let of = |dtype| cuda.matrix(&tensor(dtype, 24, WIDTH, 87)).unwrap();
    let (by_tensor_cores, by_others) = (of(Dtype::BF16), of(Dtype::F16));
    // Many rows; many rows, some with another order of summation; few rows; one row; and one row each of 3, 16 (the
    // most that fit in one launch) and 17 texts.
    let texts: Vec<_> = (0..17).map(|text| (text % 3, 1)).collect();
    let many_and_few = [&[(0, 20)][..], &[(0, 20), (2, 1)], &[(3, 1), (0, 17)], &[(0, 9)], &[(4, 1)]];
    for spans in many_and_few.into_iter().chain([&texts[..3], &texts[..16], &texts]) {
        let rows: usize = spans.iter().map(|span| span.1).sum();
        // `seen`: whether there is a wait between the operation and the product. `matrices`: one or two; of two, the
        // one with the other number type comes first or last.
        let run = |maker, seen: bool, matrices: &[&Matrix]| {
            let (mut made, mut input, pass) =
                (cuda.buffer(rows * WIDTH).unwrap(), cuda.input(), pass(&cuda, spans));
            // Allocates the input's memory first.
            cuda.prepare(&made, WIDTH, &pass, &PassRows::All, &mut input).unwrap();
            let mut outs: Vec<_> = matrices.iter().map(|_| cuda.buffer(rows * 24).unwrap()).collect();
            cuda.matmul(&input, &by_tensor_cores, None, &mut outs[0]).unwrap();
            cuda.sync().unwrap();
            log.lock().unwrap().clear();
            let kept = make(&cuda, maker, spans, &mut made);
            if seen {
                cuda.sync().unwrap();
            }
            cuda.prepare(&made, WIDTH, &pass, &PassRows::All, &mut input).unwrap();
            for (matrix, out) in matrices.iter().zip(&mut outs) {
                cuda.matmul(&input, matrix, None, out).unwrap();
            }
            cuda.sync().unwrap();
            let launches = |asked: &Asked| if let Asked::Launches(count) = asked { *count } else { 0 };
            let launches: usize = log.lock().unwrap().iter().map(launches).sum();
            drop(kept);
            let outs: Vec<_> = outs.iter().map(|out| bits(&values(&cuda, out, rows * 24))).collect();
            (launches, outs)
        };
        for maker in MAKERS {
            let what = format!("{maker:?}, {spans:?}");
            let one_each = spans.iter().all(|span| span.1 == 1);
            // The product itself computes the norm of a single row.
            let joins = match maker {
                Maker::Silu => 0,
                Maker::Norm if rows == 1 => 2,
                Maker::Norm | Maker::AddAndNorm => 1,
                Maker::Swiglu | Maker::Attention => usize::from(spans.len() == 1 || one_each && rows <= 16),
                Maker::AttentionSeen => usize::from(spans.len() == 1),
            };
            let (apart, expected) = run(maker, true, &[&by_tensor_cores]);
            let (together, found) = run(maker, false, &[&by_tensor_cores]);
            assert!(found == expected, "{what}");
            assert_eq!(apart - together, joins, "{what}");
            for matrices in [[&by_tensor_cores, &by_others], [&by_others, &by_tensor_cores]] {
                assert!(run(maker, false, &matrices).1 == run(maker, true, &matrices).1, "{what}");
            }
        }
    }
}

/// In a decode pass, products compute the norm of their input, and add the residual.
#[test]
fn the_norm_and_the_residual_of_one_row_go_with_products_and_have_the_same_bits() {
    let Some((device, log)) = Cuda::logged(ROOM) else { return };
    let cuda = device.with_precision(Precision::Bf16);
    // The last width is more than a block can keep in shared memory. From 4,096 on, a row of weights is more than a
    // thread can keep in registers. Some numbers of outputs give more tiles than there are blocks.
    for (width, outputs) in
        [(8, 24), (136, 300), (1024, 17), (2056, 133), (4104, 150), (8192, 40), (8200, 24)]
    {
        let rounded = |count, seed| {
            let mut values = noise(count, seed);
            llama_trace_core::ops::round::row(Precision::Bf16, &mut values);
            filled(&cuda, &values)
        };
        let matrix = |outputs, seed| cuda.matrix(&tensor(Dtype::BF16, outputs, width, seed)).unwrap();
        let (x, residual, weight) =
            (rounded(width, 91), rounded(outputs, 92), cuda.vector(&vector(width, 93)).unwrap());
        let (q, k, gate, up) = (matrix(outputs, 94), matrix(9, 95), matrix(outputs, 96), matrix(outputs, 97));
        let bias = cuda.vector(&vector(outputs, 98)).unwrap();
        let of_weight = cuda.vector(&vector(outputs, 99)).unwrap();
        let pass = pass(&cuda, &[(5, 1)]);
        let buffer = |count: usize| cuda.buffer(count).unwrap();
        let run = |seen: bool| {
            let look = || {
                if seen {
                    cuda.sync().unwrap();
                }
            };
            let (mut normed, mut input, mut of_sum) = (buffer(width), cuda.input(), cuda.input());
            let [mut of_q, mut again, mut sum, mut of_norm] = [0; 4].map(|_| buffer(outputs));
            let [mut of_gate, mut silu, mut of_up, mut hidden] = [0; 4].map(|_| buffer(outputs));
            let mut of_k = buffer(9);
            let mut nobody = |_: usize, _: &mut Buffer| Ok(());
            cuda.sync().unwrap();
            log.lock().unwrap().clear();
            cuda.rms_norm(&x, &weight, 1e-5, 1, &mut normed).unwrap();
            look();
            cuda.prepare(&normed, width, &pass, &PassRows::All, &mut input).unwrap();
            let mut products = [
                Product { matrix: &q, bias: Some(&bias), out: &mut of_q },
                Product { matrix: &k, bias: None, out: &mut of_k },
            ];
            cuda.matmuls(&input, &mut products, &mut nobody).unwrap();
            let outs = Swiglu {
                gate: Product { matrix: &gate, bias: None, out: &mut of_gate },
                silu: &mut silu,
                up: Product { matrix: &up, bias: Some(&bias), out: &mut of_up },
                hidden: &mut hidden,
            };
            cuda.swiglu(&input, outputs, outs, &mut nobody).unwrap();
            // A product of an input that is ready, an addition to the result, and the norm of the sum.
            cuda.prepare(&x, width, &pass, &PassRows::All, &mut of_sum).unwrap();
            cuda.matmul(&of_sum, &q, None, &mut again).unwrap();
            look();
            let (added, written) = ((&residual, &again), (&mut sum, &mut of_norm));
            cuda.add_rms_norm(added, &of_weight, 1e-5, (1, outputs), written, &mut nobody).unwrap();
            cuda.sync().unwrap();
            let launches = |asked: &Asked| if let Asked::Launches(count) = asked { *count } else { 0 };
            let launches: usize = log.lock().unwrap().iter().map(launches).sum();
            let of = |buffer: &Buffer, count| bits(&values(&cuda, buffer, count));
            let all = [&of_q, &of_gate, &silu, &of_up, &hidden, &again, &sum, &of_norm];
            (launches, all.map(|buffer| of(buffer, outputs)), of(&of_k, 9))
        };
        let (apart, together) = (run(true), run(false));
        // Two launches are saved: the norm, and its conversion. Fusing the sum with the product saves none, because the
        // norm of the sum is then a launch of its own.
        let spared = if width <= 8192 { 2 } else { 1 };
        assert_eq!(apart.0 - together.0, spared, "{width} × {outputs}");
        assert!(apart.1 == together.1 && apart.2 == together.2, "{width} × {outputs}");
        // Only the sum is fused, as between the last layer and the head.
        let mut sums = [buffer(outputs), buffer(outputs)];
        for (seen, sum) in [true, false].into_iter().zip(&mut sums) {
            let (mut input, mut out) = (cuda.input(), buffer(outputs));
            cuda.prepare(&x, width, &pass, &PassRows::All, &mut input).unwrap();
            cuda.matmul(&input, &q, None, &mut out).unwrap();
            if seen {
                cuda.sync().unwrap();
            }
            cuda.add(&out, &residual, outputs, sum).unwrap();
        }
        let [apart, together] = sums.map(|sum| bits(&values(&cuda, &sum, outputs)));
        assert!(apart == together, "{width} × {outputs}: the sum alone");
    }
}

/// In a decode pass, the products that make queries, keys and values also rotate and cache them.
#[test]
fn rope_and_the_cache_of_one_token_go_with_products_and_have_the_same_bits() {
    let Some((device, log)) = Cuda::logged(ROOM) else { return };
    for cache_dtype in [CacheDtype::Bf16, CacheDtype::F32] {
        let cuda = device.clone().with_precision(Precision::Bf16).with_cache_dtype(cache_dtype);
        // Cases: heads with fewer pairs than a tile; partial tiles; more tiles than blocks.
        for (heads, kv_heads, head_dim) in
            [(3, 1, 2), (4, 2, 6), (5, 3, 10), (8, 2, 16), (7, 1, 64), (2, 2, 256)]
        {
            for pairing in [Pairing::Neighbours, Pairing::Halves] {
                const INPUTS: usize = 136;
                let what =
                    format!("{heads} and {kv_heads} heads of {head_dim}, {pairing:?}, {cache_dtype:?}");
                let (width, kv_width, pairs) = (heads * head_dim, kv_heads * head_dim, head_dim / 2);
                let matrix =
                    |outputs, seed| cuda.matrix(&tensor(Dtype::BF16, outputs, INPUTS, seed)).unwrap();
                let (q, k, v) = (matrix(width, 31), matrix(kv_width, 32), matrix(kv_width, 33));
                let bias = cuda.vector(&vector(kv_width, 34)).unwrap();
                let x = filled(&cuda, &noise(INPUTS, 35));
                let weight = cuda.vector(&vector(INPUTS, 36)).unwrap();
                let [cos, sin] = [37, 38].map(|seed| filled(&cuda, &noise(pairs, seed)));
                let pass = pass(&cuda, &[(5, 1)]);
                // Values are recorded between the products and RoPE (1), between RoPE and the cache (2), or not at all
                // (0).
                let run = |seen: usize| {
                    let look = |at: usize| {
                        if seen == at {
                            cuda.sync().unwrap();
                        }
                    };
                    let buffer = |count: usize| cuda.buffer(count).unwrap();
                    let (mut normed, mut input) = (buffer(INPUTS), cuda.input());
                    let (mut of_q, mut turned_q) = (buffer(width), buffer(width));
                    let [mut of_k, mut turned_k, mut of_v] = [0; 3].map(|_| buffer(kv_width));
                    let mut caches = [0; 2].map(|_| cuda.new_cache(6 * kv_width).unwrap());
                    cuda.sync().unwrap();
                    log.lock().unwrap().clear();
                    cuda.rms_norm(&x, &weight, 1e-5, 1, &mut normed).unwrap();
                    cuda.prepare(&normed, INPUTS, &pass, &PassRows::All, &mut input).unwrap();
                    let mut products = [
                        Product { matrix: &q, bias: None, out: &mut of_q },
                        Product { matrix: &k, bias: Some(&bias), out: &mut of_k },
                        Product { matrix: &v, bias: Some(&bias), out: &mut of_v },
                    ];
                    cuda.matmuls(&input, &mut products, &mut |_, _| Ok(())).unwrap();
                    look(1);
                    cuda.rope(&of_q, &cos, &sin, pairing, heads, head_dim, 1, &mut turned_q).unwrap();
                    cuda.rope(&of_k, &cos, &sin, pairing, kv_heads, head_dim, 1, &mut turned_k).unwrap();
                    look(2);
                    cuda.cache(&turned_k, kv_width, &pass, 0, &mut caches[0]).unwrap();
                    cuda.cache(&of_v, kv_width, &pass, 0, &mut caches[1]).unwrap();
                    cuda.sync().unwrap();
                    let launches =
                        |asked: &Asked| if let Asked::Launches(count) = asked { *count } else { 0 };
                    let launches: usize = log.lock().unwrap().iter().map(launches).sum();
                    let mut made: Vec<_> = [(&of_q, width), (&turned_q, width), (&of_k, kv_width)].to_vec();
                    made.extend([(&turned_k, kv_width), (&of_v, kv_width)]);
                    let mut made: Vec<_> =
                        made.into_iter().map(|(buffer, count)| bits(&values(&cuda, buffer, count))).collect();
                    for cache in &caches {
                        let mut see = |values: &[f32]| {
                            made.push(bits(values));
                            Ok(())
                        };
                        cuda.read_cache(cache, 6 * kv_width, &mut see).unwrap();
                    }
                    (launches, made)
                };
                let [together, apart, cached_apart] = [0, 1, 2].map(run);
                assert!(together.1 == apart.1 && together.1 == cached_apart.1, "{what}");
                // Only the products are launched. With another cache type, one more launch caches and rotates.
                let beside = usize::from(cache_dtype != CacheDtype::Bf16);
                assert_eq!((together.0, apart.0), (1 + beside, 2), "{what}");
            }
        }
    }
}
