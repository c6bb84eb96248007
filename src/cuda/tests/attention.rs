//! Attention over one token and over several, with windows, ragged spans and every number type of the cache.

use super::*;
use llama_trace_emulator::Asked;

/// The rows that a sink received, part by part.
#[derive(Default)]
struct Seen {
    wants: bool,
    parts: Vec<(AttentionPart, Range<usize>, Vec<f32>)>,
}

impl AttentionSink for Seen {
    fn wants(&self, _: AttentionPart) -> bool {
        self.wants
    }

    fn rows(&mut self, part: AttentionPart, rows: Range<usize>, values: &[f32]) -> Result<()> {
        self.parts.push((part, rows, values.to_vec()));
        Ok(())
    }
}

impl Seen {
    /// Returns all values of a part, in the order of its rows.
    fn part(&self, part: AttentionPart) -> Vec<f32> {
        let mut rows: Vec<_> = self.parts.iter().filter(|(of, ..)| *of == part).collect();
        rows.sort_by_key(|(_, rows, _)| rows.start);
        let mut next = 0;
        for (_, rows, _) in &rows {
            assert_eq!(rows.start, next, "every row is shown, once");
            next = rows.end;
        }
        rows.iter().flat_map(|(.., values)| values.clone()).collect()
    }
}

/// The spans of a pass. Each is (start, tokens).
type Spans = [(usize, usize); 3];

/// Computes attention of every span. Returns the result and the recorded parts.
fn run(backend: &dyn Backend, shape: AttentionShape, spans: Spans, wants: bool) -> (Vec<f32>, Vec<Seen>) {
    let AttentionShape { heads, kv_heads, head_dim, .. } = shape;
    let (rows, width) = (spans.iter().map(|span| span.1).sum::<usize>(), kv_heads * head_dim);
    let q = filled(backend, &noise(rows * heads * head_dim, 61));
    let mut out = backend.buffer(rows * heads * head_dim).unwrap();
    let pass = pass(backend, &spans);
    let mut sinks = Vec::new();
    for (span, (start, tokens)) in spans.into_iter().enumerate() {
        let keys = start + tokens;
        let all = self::pass(backend, &[(0, keys)]);
        let cache = |seed| {
            let mut cache = backend.new_cache((keys + 3) * width).unwrap();
            let x = filled(backend, &noise(keys * width, seed));
            backend.cache(&x, width, &all, 0, &mut cache).unwrap();
            cache
        };
        let (k, v) = (cache(62 + span as u32), cache(72 + span as u32));
        let mut seen = Seen { wants, ..Seen::default() };
        backend.attention(shape, &q, &pass, span, &k, &v, &mut out, &mut seen).unwrap();
        sinks.push(seen);
    }
    (values(backend, &out, rows * heads * head_dim), sinks)
}

const HEADS: [(usize, usize, usize); 8] =
    [(4, 2, 8), (8, 1, 16), (3, 3, 6), (2, 2, 64), (12, 4, 72), (5, 1, 40), (2, 1, 264), (2, 1, 136)];

#[test]
fn attention_is_that_of_the_cpu_and_recording_it_changes_nothing() {
    let parts = [
        AttentionPart::Keys,
        AttentionPart::Values,
        AttentionPart::Qk,
        AttentionPart::Scores,
        AttentionPart::MaskedScores,
        AttentionPart::Softmax,
    ];
    let caches = [CacheDtype::F32, CacheDtype::F16, CacheDtype::Bf16];
    let all = [Precision::F32, Precision::Bf16].map(|precision| caches.map(|cache| (precision, cache)));
    for (precision, cache) in sampled("number types of caches", all.into_iter().flatten(), 2) {
        let Some((cuda, cpu)) = both(precision) else { return };
        let (cuda, cpu) = (cuda.with_cache_dtype(cache), cpu.with_cache_dtype(cache));
        for (i, (heads, kv_heads, head_dim)) in HEADS.into_iter().enumerate() {
            let window = [None, Some(5)][i % 2];
            let shape = AttentionShape::llama(heads, kv_heads, head_dim, window);
            let spans = [[(40, 1), (0, 9), (3, 1)], [(0, 1), (7, 21), (0, 2)]][i / 2 % 2];
            let what = format!("{shape:?}, {spans:?}, {precision:?}, cache {cache:?}");
            let (plain, none) = run(&cuda, shape, spans, false);
            let (recorded, seen) = run(&cuda, shape, spans, true);
            assert!(bits(&plain) == bits(&recorded), "recorded = plain: {what}");
            assert!(none.iter().all(|seen| seen.parts.is_empty()));
            let (expected, of_cpu) = run(&cpu, shape, spans, true);
            let apart = distance(&plain, &expected);
            assert!(apart <= orders_apart(precision), "{what}: {apart}");
            for (found, expected) in seen.iter().zip(&of_cpu) {
                for part in parts {
                    let same = bits(&found.part(part)) == bits(&expected.part(part));
                    assert!(same, "{part:?}, {what}");
                }
            }
        }
    }
}

/// Every kernel for one token has several tiles of keys in a split and several splits. Kernels for many tokens have
/// tiles that all rows see, tiles that some rows see, and tiles that a window cuts.
#[test]
fn attention_over_many_tiles_of_keys_is_that_of_the_cpu() {
    let shapes = [
        (3, 3, 64, None),
        (8, 4, 64, Some(300)),
        (16, 4, 64, None),
        (16, 2, 64, Some(450)),
        (4, 4, 128, Some(400)),
        (4, 2, 128, None),
        (12, 4, 96, Some(300)),
        (24, 3, 128, None),
        (4, 4, 256, None),
        (4, 2, 256, Some(600)),
        (8, 2, 136, None),
        (8, 1, 256, Some(500)),
    ];
    let arithmetics = [(Precision::F32, CacheDtype::F32), (Precision::Bf16, CacheDtype::Bf16)];
    for (precision, cache) in arithmetics {
        for (heads, kv_heads, head_dim, window) in shapes {
            let Some((cuda, cpu)) = both(precision) else { return };
            let (cuda, cpu) = (cuda.with_cache_dtype(cache), cpu.with_cache_dtype(cache));
            let shape = AttentionShape::llama(heads, kv_heads, head_dim, window);
            // Four multiprocessors have room for at most twelve splits. So many keys give each split more than one
            // tile.
            let keys = 64 * (12 / kv_heads).max(2) + 300;
            let spans = [(keys, 1), (190, 33), (64, 1)];
            let (found, _) = run(&cuda, shape, spans, false);
            let (expected, _) = run(&cpu, shape, spans, false);
            let mut first = 0;
            for (start, tokens) in spans {
                let rows = first * heads * head_dim..(first + tokens) * heads * head_dim;
                let apart = distance(&found[rows.clone()], &expected[rows]);
                let what = format!("{shape:?}, {tokens} after {start}, {precision:?}");
                assert!(apart <= orders_apart(precision), "{what}: {apart}");
                first += tokens;
            }
        }
    }
}

/// Computes attention of one span from the first position on, of q, keys and values.
fn attended(backend: &dyn Backend, shape: AttentionShape, [q, k, v]: &[Vec<f32>; 3]) -> Vec<f32> {
    let width = shape.kv_heads * shape.head_dim;
    let tokens = k.len() / width;
    let pass = pass(backend, &[(0, tokens)]);
    let cached = |x: &[f32]| {
        let mut cache = backend.new_cache(tokens * width).unwrap();
        backend.cache(&filled(backend, x), width, &pass, 0, &mut cache).unwrap();
        cache
    };
    let (k, v) = (cached(k), cached(v));
    let (x, mut out) = (filled(backend, q), backend.buffer(q.len()).unwrap());
    backend
        .attention(shape, &x, &pass, 0, &k, &v, &mut out, &mut llama_trace_engine::backend::NoSink)
        .unwrap();
    values(backend, &out, q.len())
}

/// Operands that are split are divided by a power of two, which is exact.
#[test]
fn powers_of_two_in_the_operands_of_attention_change_no_bit_but_the_exponents() {
    let Some((cuda, _)) = both(Precision::F32) else { return };
    for head_dim in [64, 72] {
        let shape = AttentionShape::llama(2, 1, head_dim, None);
        let inputs = [(70, 71), (35, 72), (35, 73)].map(|(count, seed)| noise(count * head_dim, seed));
        let by = |powers: [i32; 3]| {
            let mut scaled = inputs.clone();
            for (values, power) in scaled.iter_mut().zip(powers) {
                values.iter_mut().for_each(|x| *x *= 2.0_f32.powi(power));
            }
            attended(&cuda, shape, &scaled)
        };
        let plain = by([0, 0, 0]);
        for [q, k, v] in [[40, -40, 20], [-50, 50, -60], [3, -3, 58]] {
            let expected: Vec<f32> = plain.iter().map(|x| x * 2.0_f32.powi(v)).collect();
            assert!(bits(&by([q, k, v])) == bits(&expected), "{shape:?}, {q}, {k}, {v}");
        }
    }
}

/// Infinity, NaN and values that are too large to scale take another path in the same launch. The results have NaN in
/// the same places as the CPU's.
#[test]
fn what_is_not_finite_in_queries_and_keys_reaches_the_rows_that_it_reaches_on_the_cpu() {
    let Some((cuda, cpu)) = both(Precision::F32) else { return };
    let shape = AttentionShape::llama(4, 1, 64, None);
    let inputs = [(4 * 40, 71), (40, 72), (40, 73)].map(|(count, seed)| noise(count * 64, seed));
    for which in 0..2 {
        for value in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e30] {
            let mut inputs = inputs.clone();
            inputs[which][9 * 64 + 5] = value;
            let [found, expected] = [attended(&cuda, shape, &inputs), attended(&cpu, shape, &inputs)];
            let is_nan = |all: &[f32]| all.iter().map(|x| x.is_nan()).collect::<Vec<_>>();
            assert!(is_nan(&found) == is_nan(&expected), "{value} in {which}");
            let numbers = |all: &[f32]| all.iter().copied().filter(|x| !x.is_nan()).collect::<Vec<_>>();
            let apart = distance(&numbers(&found), &numbers(&expected));
            assert!(apart <= orders_apart(Precision::F32), "{value} in {which}: {apart}");
        }
    }
}

/// A hidden key has no part in a token's sum: not even 0 times infinity.
#[test]
fn an_infinite_value_is_mixed_by_the_tokens_that_see_its_key_and_by_no_others() {
    let Some((cuda, cpu)) = both(Precision::F32) else { return };
    for (head_dim, window, tokens) in [(64, None, 21), (64, Some(5), 40), (136, Some(40), 70), (6, None, 9)] {
        let shape = AttentionShape::llama(2, 1, head_dim, window);
        let mut v = noise(tokens * head_dim, 73);
        v[7 * head_dim + 3] = f32::INFINITY;
        let inputs = [noise(tokens * 2 * head_dim, 71), noise(tokens * head_dim, 72), v];
        let [found, expected] = [attended(&cuda, shape, &inputs), attended(&cpu, shape, &inputs)];
        let is_finite = |all: &[f32]| all.iter().map(|x| x.is_finite()).collect::<Vec<_>>();
        assert!(is_finite(&found) == is_finite(&expected), "{shape:?}");
        let see = (7..tokens).filter(|t| window.is_none_or(|window| t - 7 < window)).count();
        assert_eq!(found.iter().filter(|x| !x.is_finite()).count(), see * shape.heads, "{shape:?}");
        let finite = |all: &[f32]| all.iter().copied().filter(|x| x.is_finite()).collect::<Vec<_>>();
        assert!(distance(&finite(&found), &finite(&expected)) <= orders_apart(Precision::F32), "{shape:?}");
    }
}

/// The recorded softmax times the values agrees with the fused kernel's result, within a tolerance.
#[test]
fn the_written_softmax_times_the_values_is_what_attention_gives() {
    for precision in [Precision::F32, Precision::Bf16] {
        let Some((cuda, _)) = both(precision) else { return };
        for (heads, kv_heads, head_dim) in [(4, 2, 8), (2, 2, 64), (12, 4, 72)] {
            let shape = AttentionShape::llama(heads, kv_heads, head_dim, None);
            let spans = [(33, 1), (0, 17), (5, 4)];
            let (out, seen) = run(&cuda, shape, spans, true);
            let mut first = 0;
            for ((start, tokens), seen) in spans.into_iter().zip(&seen) {
                let (keys, softmax, v) =
                    (start + tokens, seen.part(AttentionPart::Softmax), seen.part(AttentionPart::Values));
                let mut expected = Vec::new();
                for t in 0..tokens {
                    for head in 0..heads {
                        let weights = &softmax[(head * tokens + t) * keys..][..keys];
                        expected.extend((0..head_dim).map(|c| {
                            let term = |k: usize| {
                                f64::from(weights[k]) * f64::from(v[(k * heads + head) * head_dim + c])
                            };
                            (0..keys).map(term).sum::<f64>() as f32
                        }));
                    }
                }
                let width = heads * head_dim;
                let found = &out[first * width..(first + tokens) * width];
                let bound = if precision == Precision::Bf16 { 1.0 / 128.0 } else { 1e-6 };
                let apart = distance(found, &expected);
                assert!(apart <= bound, "{shape:?}, {start} and {tokens}, {precision:?}: {apart}");
                first += tokens;
            }
        }
    }
}

#[test]
fn tokens_of_a_batch_go_in_one_launch_and_have_the_bits_that_each_has_alone() {
    for (heads, kv_heads, head_dim) in [(4, 2, 8), (3, 3, 64), (10, 1, 16)] {
        let Some((cuda, log)) = Cuda::logged(ROOM) else { return };
        let shape = AttentionShape::llama(heads, kv_heads, head_dim, Some(70));
        let (width, q_width) = (kv_heads * head_dim, heads * head_dim);
        // One span more than fits in two launches.
        let spans: Vec<(usize, usize)> = (0..33).map(|i| (i * 37 % 150, 1)).collect();
        let x = noise(spans.len() * width, 81);
        let q = noise(spans.len() * q_width, 82);
        let run = |spans: &[(usize, usize)], first: usize| {
            let caches: Vec<_> = (first..)
                .zip(spans)
                .map(|(i, &(start, _))| {
                    [83, 84].map(|seed| {
                        let mut cache = cuda.new_cache((start + 1) * width).unwrap();
                        let x = filled(&cuda, &noise(start * width, seed + i as u32));
                        cuda.cache(&x, width, &pass(&cuda, &[(0, start)]), 0, &mut cache).unwrap();
                        cache
                    })
                })
                .collect();
            let rows =
                |values: &[f32], width: usize| filled(&cuda, &values[first * width..][..spans.len() * width]);
            let (x, q) = (rows(&x, width), rows(&q, q_width));
            let (pass, mut out) = (pass(&cuda, spans), cuda.buffer(spans.len() * q_width).unwrap());
            let mut caches = caches;
            let mut seen = Seen::default();
            // Allocates the kernel's scratch memory first.
            cuda.attention(shape, &q, &pass, 0, &caches[0][0], &caches[0][1], &mut out, &mut seen).unwrap();
            cuda.sync().unwrap();
            log.lock().unwrap().clear();
            for (span, [keys, values]) in caches.iter_mut().enumerate() {
                cuda.cache(&x, width, &pass, span, keys).unwrap();
                cuda.cache(&x, width, &pass, span, values).unwrap();
            }
            for (span, [keys, values]) in caches.iter().enumerate() {
                cuda.attention(shape, &q, &pass, span, keys, values, &mut out, &mut seen).unwrap();
            }
            cuda.sync().unwrap();
            let launches: usize = log
                .lock()
                .unwrap()
                .iter()
                .map(|asked| match asked {
                    Asked::Launches(count) | Asked::Graph(count) => *count,
                    _ => 0,
                })
                .sum();
            (bits(&values(&cuda, &out, spans.len() * q_width)), launches)
        };
        let (together, launches) = run(&spans, 0);
        assert_eq!(launches, (2_usize * 33).div_ceil(16) + 33_usize.div_ceil(16));
        for (i, span) in spans.iter().enumerate() {
            let (alone, _) = run(&[*span], i);
            assert!(together[i * q_width..][..q_width] == alone, "{shape:?}, span {i} {span:?}");
        }
    }
}
