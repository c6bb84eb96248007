//! Compares every operation with the CPU's, on odd shapes. The kernels run in the CPU emulation.

mod attention;
mod launches;
mod narrow;
mod packed;
mod products;
mod streams;

use std::ops::Range;

use super::*;
use half::{bf16, f16};
use llama_trace_core::config::{
    self, Arithmetic, CacheDtype, ModelConfig, Pairing, Rope, RopeRounding, RopeScaling,
};
use llama_trace_core::memory::no_memory;
use llama_trace_core::tensor::Bytes;
use llama_trace_core::tensor::{Dtype, Tensor};
use llama_trace_core::testing::sampled;
use llama_trace_core::trace::{Frame, Recorder, Select, Stage};
use llama_trace_emulator::Asked;
use llama_trace_engine::backend::cpu::testing::{noise, random_blocks};
use llama_trace_engine::backend::{
    AttentionPart, AttentionShape, AttentionSink, Backend, Buffer, Input, Matrix, Pass, PassRows, Span,
    Swiglu,
};
use llama_trace_engine::generate::{Sampler, Sampling, Session};
use llama_trace_engine::model::Model;
use llama_trace_formats::checkpoint::random;
use llama_trace_kernels::driver::Untried;

/// Bytes of the device's memory.
const ROOM: usize = 1 << 30;

const PRECISIONS: [Precision; 3] = [Precision::F32, Precision::Bf16, Precision::Q8 { group: 32 }];

/// A device and the CPU, in the same precision.
fn both(precision: Precision) -> Option<(Cuda, Cpu)> {
    let cuda = Cuda::of_tests(ROOM)?.with_precision(precision);
    Some((cuda, Cpu::default().with_precision(precision)))
}

/// Returns `first`, and after it the other number types if every case runs. The tests share their first types, because
/// each type of weights takes the kernels' compiler several seconds.
fn types_from(what: &str, first: &[Dtype]) -> Vec<Dtype> {
    let others = Dtype::ALL.into_iter().filter(|dtype| !first.contains(dtype));
    [first, &sampled(what, others, 0)].concat()
}

/// A tensor of two axes with random values that its number type can represent.
fn tensor(dtype: Dtype, outputs: usize, inputs: usize, seed: u32) -> Tensor {
    let values = noise(outputs * inputs, seed);
    let shape = vec![outputs, inputs];
    let bytes: Vec<u8> = match dtype {
        Dtype::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Dtype::F16 => values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
        Dtype::BF16 => values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
        Dtype::I8 => return int8(&values, shape, 32),
        _ => random_blocks(&values, dtype),
    };
    Tensor::new(dtype, shape, Bytes::owned(bytes)).unwrap()
}

/// A tensor of these values in int8, with a scale for each `group` values.
fn int8(values: &[f32], shape: Vec<usize>, group: usize) -> Tensor {
    let (mut quantised, mut scales) = (vec![0; values.len()], vec![[0; 4]; values.len().div_ceil(group)]);
    llama_trace_core::ops::quantize::quantize_weights(values, group, &mut quantised, &mut scales);
    let bytes = Bytes::owned(quantised.into_iter().map(i8::cast_unsigned).collect());
    let scales = llama_trace_core::tensor::Scales { bytes: Bytes::owned(scales.into_flattened()), group };
    Tensor::int8(shape, bytes, scales).unwrap()
}

/// A vector of random values.
fn vector(length: usize, seed: u32) -> Tensor {
    let bytes = noise(length, seed).iter().flat_map(|x| x.to_le_bytes()).collect();
    Tensor::new(Dtype::F32, vec![length], Bytes::owned(bytes)).unwrap()
}

/// A buffer with these values.
fn filled(backend: &dyn Backend, values: &[f32]) -> Buffer {
    let mut buffer = backend.buffer(values.len()).unwrap();
    backend.write(values, 0, &mut buffer).unwrap();
    buffer
}

/// The first `count` values of a buffer.
fn values(backend: &dyn Backend, buffer: &Buffer, count: usize) -> Vec<f32> {
    let mut all = Vec::new();
    let mut see = |values: &[f32]| {
        all.extend_from_slice(values);
        Ok(())
    };
    backend.read(buffer, 0..count, &mut see).unwrap();
    all
}

/// A pass over spans of (start, tokens).
fn pass(backend: &dyn Backend, spans: &[(usize, usize)]) -> Pass {
    let spans: Vec<Span> = spans
        .iter()
        .enumerate()
        .map(|(sequence, &(start, tokens))| Span { sequence, start, tokens })
        .collect();
    let ids: Vec<u32> = (0..PassRows::All.count(&spans)).map(|i| i as u32 * 7 % 5).collect();
    let mut pass = backend.new_pass().unwrap();
    backend.begin_pass(&ids, &spans, &[], &mut pass).unwrap();
    pass
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The relative L2 distance.
fn distance(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let sum = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let apart = sum(&mut found.iter().zip(expected).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    let size = sum(&mut expected.iter().map(|value| f64::from(*value)));
    if apart == 0.0 { 0.0 } else { apart / size }
}

/// The tolerance for another order of summation: in bfloat16 a sum may round to the next value.
fn orders_apart(precision: Precision) -> f64 {
    if precision == Precision::Bf16 { 1.0 / 256.0 } else { llama_trace_engine::backend::REORDER_TOLERANCE }
}

/// The result of an operation on a backend.
trait Operate {
    fn on(&self, backend: &dyn Backend) -> Vec<f32>;
}

/// Checks that the device and the CPU give the same bits, in float32 and in bfloat16.
fn same_bits(what: &str, operation: &impl Operate) {
    for precision in [Precision::F32, Precision::Bf16] {
        let Some((cuda, cpu)) = both(precision) else { return };
        let (found, expected) = (operation.on(&cuda), operation.on(&cpu));
        assert!(bits(&found) == bits(&expected), "{what}, {precision:?}");
    }
}

struct Embedding(Dtype, usize);

impl Operate for Embedding {
    fn on(&self, backend: &dyn Backend) -> Vec<f32> {
        let Self(dtype, width) = *self;
        let table = backend.matrix(&tensor(dtype, 5, width, 3)).unwrap();
        let mut out = backend.buffer(4 * width).unwrap();
        backend.embedding(&table, &pass(backend, &[(0, 3), (9, 1)]), &mut out).unwrap();
        values(backend, &out, 4 * width)
    }
}

#[test]
fn rows_of_the_embedding_table_have_the_bits_of_the_file() {
    for dtype in types_from("number types of tables", &[Dtype::F32, Dtype::I8, Dtype::Q4K]) {
        for width in if dtype.is_blocks() { [256, 512] } else { [64, 75] } {
            same_bits(&format!("{dtype}, {width} wide"), &Embedding(dtype, width));
        }
    }
}

struct Norm(usize, usize);

impl Operate for Norm {
    fn on(&self, backend: &dyn Backend) -> Vec<f32> {
        let Self(rows, width) = *self;
        let (a, b) = (filled(backend, &noise(rows * width, 1)), filled(backend, &noise(rows * width, 2)));
        let weight = backend.vector(&vector(width, 3)).unwrap();
        let [mut alone, mut sum, mut normed] = [0; 3].map(|_| backend.buffer(rows * width).unwrap());
        backend.rms_norm(&a, &weight, 1e-5, rows, &mut alone).unwrap();
        let mut made = Vec::new();
        let mut see = |i: usize, buffer: &mut Buffer| {
            made.push((i, values(backend, buffer, rows * width)));
            Ok(())
        };
        backend
            .add_rms_norm((&a, &b), &weight, 1e-5, (rows, width), (&mut sum, &mut normed), &mut see)
            .unwrap();
        assert_eq!((made[0].0, made[1].0), (0, 1));
        let shown = [made[0].1.clone(), made[1].1.clone()].concat();
        let written = [values(backend, &sum, rows * width), values(backend, &normed, rows * width)].concat();
        assert_eq!(bits(&shown), bits(&written), "the recorded values are those of the buffer");
        [values(backend, &alone, rows * width), written].concat()
    }
}

#[test]
fn norms_alone_and_with_the_residual_have_the_bits_of_ops() {
    for (rows, width) in [
        (1, 1),
        (3, 6),
        (2, 31),
        (5, 64),
        (3, 513),
        (2, 1030),
        (1, 2048),
        (1, 8192),
        (2, 8195),
        (256, 1000),
        (257, 1030),
    ] {
        same_bits(&format!("{rows} rows of {width}"), &Norm(rows, width));
    }
}

/// SiLU of every finite bfloat16 value.
struct SiluOfAll;

impl Operate for SiluOfAll {
    fn on(&self, backend: &dyn Backend) -> Vec<f32> {
        let all = (0..=u16::MAX).map(bf16::from_bits).filter(|x| x.is_finite()).map(f32::from);
        let all: Vec<f32> = all.collect();
        let (x, mut out) = (filled(backend, &all), backend.buffer(all.len()).unwrap());
        backend.silu(&x, all.len(), &mut out).unwrap();
        values(backend, &out, all.len())
    }
}

#[test]
fn silu_found_near_has_the_bits_of_ops_for_all_that_bfloat16_has() {
    same_bits("SiLU of all values", &SiluOfAll);
}

struct Elements(usize);

impl Operate for Elements {
    fn on(&self, backend: &dyn Backend) -> Vec<f32> {
        let count = self.0;
        let scaled: Vec<f32> = noise(count, 5).iter().map(|x| x * 20.0).collect();
        let (a, b) = (filled(backend, &scaled), filled(backend, &noise(count, 6)));
        let [mut silu, mut mul, mut add] = [0; 3].map(|_| backend.buffer(count).unwrap());
        backend.silu(&a, count, &mut silu).unwrap();
        backend.mul(&a, &b, count, &mut mul).unwrap();
        backend.add(&a, &b, count, &mut add).unwrap();
        [silu, mul, add].iter().flat_map(|buffer| values(backend, buffer, count)).collect()
    }
}

#[test]
fn a_norm_of_the_sum_before_it_goes_with_that_and_has_the_same_bits() {
    for precision in [Precision::F32, Precision::Bf16] {
        let Some((device, log)) = Cuda::logged(ROOM) else { return };
        let cuda = device.with_precision(precision);
        for (rows, width) in [(1, 70), (3, 2049), (1, 8200)] {
            let [a, b] = [51, 52].map(|seed| filled(&cuda, &noise(rows * width, seed)));
            let weight = cuda.vector(&vector(width, 53)).unwrap();
            let buffer = || cuda.buffer(rows * width).unwrap();
            // With a wait between the sum and the norm, and without.
            let run = |seen: bool| {
                let (mut sum, mut normed, mut other) = (buffer(), buffer(), buffer());
                cuda.sync().unwrap();
                log.lock().unwrap().clear();
                cuda.add(&a, &b, rows * width, &mut sum).unwrap();
                if seen {
                    cuda.sync().unwrap();
                }
                cuda.rms_norm(&sum, &weight, 1e-5, rows, &mut normed).unwrap();
                cuda.rms_norm(&sum, &weight, 1e-5, rows, &mut other).unwrap();
                cuda.sync().unwrap();
                let launches = |asked: &Asked| if let Asked::Launches(count) = asked { *count } else { 0 };
                let launches: usize = log.lock().unwrap().iter().map(launches).sum();
                let all = [&sum, &normed, &other].map(|buffer| bits(&values(&cuda, buffer, rows * width)));
                (launches, all)
            };
            let (seen, apart) = run(true);
            let (unseen, together) = run(false);
            assert_eq!((seen, unseen), (3, 2));
            assert!(apart == together, "{rows} rows of {width}, {precision:?}");
            assert!(together[1] == together[2], "the norm that came later");
            let mut sum = buffer();
            cuda.add(&a, &b, rows * width, &mut sum).unwrap();
            let mut normed = buffer();
            cuda.rms_norm(&a, &weight, 1e-5, rows, &mut normed).unwrap();
            assert!(bits(&values(&cuda, &sum, rows * width)) == together[0], "a norm of something else");
        }
    }
}

#[test]
fn what_goes_element_by_element_has_the_bits_of_ops() {
    for count in [1, 3, 511, 512, 513, 2000] {
        same_bits(&format!("{count} values"), &Elements(count));
    }
}

struct Rotated(Pairing, usize, usize);

impl Operate for Rotated {
    fn on(&self, backend: &dyn Backend) -> Vec<f32> {
        let Self(pairing, heads, head_dim) = *self;
        let (rows, pairs) = (4, head_dim / 2);
        // Both backends get the same tables, because their own sines may differ.
        let (cos, sin) = (filled(backend, &noise(rows * pairs, 7)), filled(backend, &noise(rows * pairs, 8)));
        // Several launches before the first read, with more heads and fewer.
        let outs = [heads, 1, heads + 3].map(|heads| {
            let x = filled(backend, &noise(rows * heads * head_dim, 9));
            (heads, x, backend.buffer(rows * heads * head_dim).unwrap())
        });
        let outs = outs.map(|(heads, x, mut out)| {
            backend.rope(&x, &cos, &sin, pairing, heads, head_dim, rows, &mut out).unwrap();
            (heads, x, out)
        });
        outs.iter().flat_map(|(heads, _, out)| values(backend, out, rows * heads * head_dim)).collect()
    }
}

#[test]
fn rope_has_the_bits_of_ops_in_both_pairings() {
    for pairing in [Pairing::Halves, Pairing::Neighbours] {
        for (heads, head_dim) in [(1, 2), (3, 6), (4, 64), (5, 130)] {
            same_bits(
                &format!("{heads} heads of {head_dim}, {pairing:?}"),
                &Rotated(pairing, heads, head_dim),
            );
        }
    }
}

/// RoPE of queries and keys, and caching after it, for spans of (start, tokens). Nothing is read before the end.
struct Cached(Pairing, &'static [(usize, usize)]);

impl Operate for Cached {
    fn on(&self, backend: &dyn Backend) -> Vec<f32> {
        let Self(pairing, spans) = *self;
        let (heads, kv_heads, head_dim) = (6, 3, 10);
        let rows: usize = spans.iter().map(|span| span.1).sum();
        let (cos, sin) = (noise(rows * head_dim / 2, 7), noise(rows * head_dim / 2, 8));
        let (cos, sin) = (filled(backend, &cos), filled(backend, &sin));
        let [q, k, v] = [(heads, 9), (kv_heads, 10), (kv_heads, 11)]
            .map(|(heads, seed)| filled(backend, &noise(rows * heads * head_dim, seed)));
        let [mut to_q, mut to_k] =
            [heads, kv_heads].map(|heads| backend.buffer(rows * heads * head_dim).unwrap());
        let (pass, width) = (pass(backend, spans), kv_heads * head_dim);
        let mut caches: Vec<_> =
            spans.iter().map(|_| [0; 2].map(|_| backend.new_cache(20 * width).unwrap())).collect();
        backend.rope(&q, &cos, &sin, pairing, heads, head_dim, rows, &mut to_q).unwrap();
        backend.rope(&k, &cos, &sin, pairing, kv_heads, head_dim, rows, &mut to_k).unwrap();
        for (span, [keys, values]) in caches.iter_mut().enumerate() {
            backend.cache(&to_k, width, &pass, span, keys).unwrap();
            backend.cache(&v, width, &pass, span, values).unwrap();
        }
        let mut all = [values(backend, &to_q, rows * heads * head_dim), values(backend, &to_k, rows * width)];
        let mut of_caches = Vec::new();
        let ends = spans.iter().flat_map(|span| [span.0 + span.1; 2]);
        for (cache, end) in caches.iter().flatten().zip(ends) {
            let mut see = |values: &[f32]| {
                of_caches.extend_from_slice(values);
                Ok(())
            };
            backend.read_cache(cache, end * width, &mut see).unwrap();
        }
        all[0].append(&mut of_caches);
        all.concat()
    }
}

#[test]
fn what_is_cached_after_rope_has_the_bits_of_ops_and_goes_with_it_where_one_span_is() {
    for pairing in [Pairing::Halves, Pairing::Neighbours] {
        let all = [
            (&[(0, 1)][..], 1),
            (&[(7, 1)], 1),
            (&[(3, 5)], 1),
            (&[(4, 1), (9, 1)], 2),
            (&[(0, 2), (9, 1)], 3),
        ];
        for (spans, launches) in all {
            for (dtype, precision) in [
                (CacheDtype::F32, Precision::F32),
                (CacheDtype::F16, Precision::F32),
                (CacheDtype::Bf16, Precision::Bf16),
            ] {
                let Some((device, log)) = Cuda::logged(ROOM) else { return };
                let cuda = device.with_precision(precision).with_cache_dtype(dtype);
                let cpu = Cpu::default().with_precision(precision).with_cache_dtype(dtype);
                let (cached, what) = (Cached(pairing, spans), format!("{pairing:?} {spans:?} {dtype:?}"));
                assert!(bits(&cached.on(&cuda)) == bits(&cached.on(&cpu)), "{what}");
                // All launches are sent together, except the read-back of caches that are not float32. Launches that
                // cache spans with the same number of tokens are joined.
                let first = log.lock().unwrap().iter().find_map(|asked| match asked {
                    Asked::Launches(count) => Some(*count),
                    _ => None,
                });
                assert_eq!(first, Some(launches), "{what}");
            }
        }
    }
}

#[test]
fn the_tables_of_rope_are_those_of_ops_far_into_a_context() {
    for precision in [Precision::F32, Precision::Bf16] {
        let Some((cuda, cpu)) = both(precision) else { return };
        let frequencies = llama_trace_core::ops::rope::frequencies(
            Arithmetic::Fused,
            64,
            &Rope { theta: 500_000.0, scaling: RopeScaling::None },
            1,
        );
        fn tables(backend: &dyn Backend, frequencies: &[f32]) -> Vec<f32> {
            let (pairs, spans) = (frequencies.len(), [(0, 3), (131_000, 2)]);
            let frequencies = filled(backend, frequencies);
            let [mut cos, mut sin] = [0; 2].map(|_| backend.buffer(5 * pairs).unwrap());
            backend.rope_table(&frequencies, pairs, &pass(backend, &spans), &mut cos, &mut sin).unwrap();
            [cos, sin].iter().flat_map(|buffer| values(backend, buffer, 5 * pairs)).collect()
        }
        let apart = distance(&tables(&cuda, &frequencies), &tables(&cpu, &frequencies));
        assert!(apart <= orders_apart(precision), "{precision:?}: {apart}");
    }
}

/// A GPU has no operation that rounds as OLMo 2 and ERNIE 4.5 do, and needs none in float32.
#[test]
fn a_model_that_only_bfloat16_rounds_in_another_way_runs_in_float32() {
    let config = ModelConfig {
        rope_rounding: RopeRounding::SumOfFloat32,
        norm: config::Norm { rounded_once: true, ..config::Norm::default() },
        ffn_dim: 32,
        vocab: 40,
        context: 16,
        ..ModelConfig::of_heads(2, 1, 16)
    };
    let checkpoint = random::of_config("rounded once", config, Dtype::F32);
    let logits = |model: &Model| {
        let mut session = Session::new(model, Sampler::new(Sampling::default()).unwrap()).unwrap();
        let (select, mut logits) = (Select::all(), Vec::new());
        let mut recorder = Recorder::new(model.sizes(), session.next_pass(3), &select, |frame: Frame| {
            if frame.site.stage == Stage::Logits {
                logits = frame.floats().unwrap().iter().copied().collect();
            }
        });
        session.run(&[1, 5, 9], &mut recorder).unwrap();
        logits
    };
    let Some((cuda, cpu)) = both(Precision::F32) else { return };
    let [found, expected] =
        [Model::load(&checkpoint, cuda), Model::load(&checkpoint, cpu)].map(Result::unwrap);
    let apart = distance(&logits(&found), &logits(&expected));
    assert!(apart <= orders_apart(Precision::F32), "{apart}");
    let Some((cuda, _)) = both(Precision::Bf16) else { return };
    let refused = Model::load(&checkpoint, cuda).err().unwrap().to_string();
    assert!(refused.contains("--precision f32, or with --device cpu"), "{refused}");
}

#[test]
fn rows_of_a_pass_are_taken_as_they_are() {
    let Some((cuda, cpu)) = both(Precision::F32) else { return };
    let (spans, width) = ([(0, 3), (4, 1), (9, 5)], 70);
    let x = noise(9 * width, 11);
    for rows in [PassRows::All, PassRows::Last, PassRows::Of { span: 2, rows: 1..4 }] {
        let of = rows.count(&spans.map(|(start, tokens)| Span { sequence: 0, start, tokens }));
        let mut found = cuda.buffer(of * width).unwrap();
        cuda.rows(&filled(&cuda, &x), width, &pass(&cuda, &spans), &rows, &mut found).unwrap();
        let mut expected = cpu.buffer(of * width).unwrap();
        cpu.rows(&filled(&cpu, &x), width, &pass(&cpu, &spans), &rows, &mut expected).unwrap();
        assert_eq!(values(&cuda, &found, of * width), values(&cpu, &expected, of * width), "{rows:?}");
    }
}

#[test]
fn caches_round_as_the_cpus_and_their_parts_go_from_one_to_another() {
    for dtype in [CacheDtype::F32, CacheDtype::F16, CacheDtype::Bf16] {
        let Some((cuda, cpu)) = both(Precision::F32) else { return };
        fn run(backend: &dyn Backend) -> Vec<f32> {
            let (width, spans) = (10, [(2, 3), (0, 2)]);
            let x = filled(backend, &noise(5 * width, 12));
            let pass = pass(backend, &spans);
            let mut caches = [0; 2].map(|_| backend.new_cache(8 * width).unwrap());
            // The positions before the first span.
            let mut before = backend.new_pass().unwrap();
            backend
                .begin_pass(&[0; 2], &[Span { sequence: 0, start: 0, tokens: 2 }], &[], &mut before)
                .unwrap();
            backend.cache(&x, width, &before, 0, &mut caches[0]).unwrap();
            for (span, cache) in caches.iter_mut().enumerate() {
                backend.cache(&x, width, &pass, span, cache).unwrap();
            }
            let taken = backend.take_cache(&caches[0], 3 * width..5 * width).unwrap();
            backend.put_cache(&taken, 2 * width, &mut caches[1]).unwrap();
            let mut all = Vec::new();
            for (cache, rows) in caches.iter().zip([5, 4]) {
                let mut see = |values: &[f32]| {
                    all.extend_from_slice(values);
                    Ok(())
                };
                backend.read_cache(cache, rows * width, &mut see).unwrap();
            }
            all
        }
        let (found, expected) = (run(&cuda.with_cache_dtype(dtype)), run(&cpu.with_cache_dtype(dtype)));
        assert!(bits(&found) == bits(&expected), "{dtype:?}");
    }
}

#[test]
fn memory_that_is_not_there_is_an_error_with_its_size_and_what_was_made_stays() {
    let Some(cuda) = Cuda::emulated(1 << 16) else { return };
    let kept = filled(&cuda, &[1.0, 2.0]);
    let error = cuda.buffer(1 << 15).err().unwrap();
    let wanted = no_memory(1 << 17);
    assert_eq!((error.to_string(), error.exit_code()), (wanted.to_string(), 4));
    assert!(cuda.matrix(&tensor(Dtype::F32, 200, 100, 1)).is_err());
    assert!(cuda.new_cache(usize::MAX).is_err());
    assert_eq!(values(&cuda, &kept, 2), [1.0, 2.0]);
    let free = cuda.free_memory();
    drop(kept);
    assert!(cuda.free_memory() > free);
}

/// An event and freed memory send the queue, but cannot return an error of the launches.
#[test]
fn launches_that_go_wrong_where_nobody_is_told_are_told_whoever_asks_next() {
    let launch = |cuda: &Cuda| {
        let (a, mut out) = (filled(cuda, &[1.0; 8]), cuda.buffer(8).unwrap());
        cuda.add(&a, &a, 8, &mut out).unwrap();
        (a, out)
    };
    let Some(cuda) = Cuda::lost_after(ROOM, 0) else { return };
    let (_, out) = launch(&cuda);
    let read = |out: &Buffer| cuda.read(out, 0..8, &mut |_| Ok(()));
    // The other memory was freed.
    assert!(read(&out).unwrap_err().to_string().contains("cannot run a kernel"));
    assert!(read(&out).is_ok(), "the error is returned once");
    let (kept, out) = launch(&cuda);
    drop(cuda.mark());
    drop(kept);
    assert!(read(&out).is_err());
}

#[test]
fn launches_that_come_again_are_repeated_and_others_are_not() {
    let Some(cuda) = Cuda::of_tests(ROOM) else { return };
    let (a, b) = (filled(&cuda, &[1.0; 8]), filled(&cuda, &[2.0; 8]));
    let [mut out, mut other] = [0; 2].map(|_| cuda.buffer(8).unwrap());
    let mut run = |count: usize, twice: bool| {
        for _ in 0..10 {
            cuda.add(&a, &b, count, &mut out).unwrap();
            cuda.mul(&out, &b, count, &mut other).unwrap();
        }
        if twice {
            cuda.add(&other, &b, count, &mut out).unwrap();
        }
        cuda.sync().unwrap();
        (values(&cuda, &other, 8)[count - 1], cuda.repeated())
    };
    assert_eq!(run(8, false), (6.0, 0));
    assert_eq!(run(8, false), (6.0, 1));
    assert_eq!(run(8, true), (6.0, 1), "more launches");
    assert_eq!(run(7, false), (6.0, 1), "other arguments");
    assert_eq!(run(8, false), (6.0, 2));
    assert_eq!(run(7, false), (6.0, 3));
    // New values in memory do not change the launches, so the graph is launched again.
    memory::own(&a).memory.write(0, bytemuck::cast_slice(&[5.0_f32; 8])).unwrap();
    let mut again = |count| {
        for _ in 0..10 {
            cuda.add(&a, &b, count, &mut out).unwrap();
            cuda.mul(&out, &b, count, &mut other).unwrap();
        }
        (values(&cuda, &other, 8)[0], cuda.repeated())
    };
    assert_eq!(again(8), (14.0, 4));
}

#[test]
fn a_request_to_stop_ends_operations_and_waiting() {
    let Some(cuda) = Cuda::of_tests(ROOM) else { return };
    let stop = Stop::default();
    let cuda = cuda.with_stop(stop.clone());
    let (a, mut out) = (filled(&cuda, &[1.0; 8]), cuda.buffer(8).unwrap());
    stop.ask();
    let interrupted = |result: Result<()>| result.unwrap_err().exit_code() == 130;
    assert!(interrupted(cuda.silu(&a, 8, &mut out)));
    assert!(interrupted(cuda.begin_pass(
        &[1],
        &[Span { sequence: 0, start: 0, tokens: 1 }],
        &[],
        &mut cuda.new_pass().unwrap()
    )));
    assert!(cuda.matrix(&tensor(Dtype::F32, 2, 8, 1)).is_err());
    stop.clear();
    cuda.silu(&a, 8, &mut out).unwrap();
    cuda.sync().unwrap();
}

#[test]
fn limits_are_measured_on_random_numbers_that_are_some() {
    let Some(cuda) = Cuda::of_tests(ROOM) else { return };
    let limits = limits::measure(&cuda, limits::Sizes { bytes: 1 << 14, side: 128 }).unwrap();
    assert!(limits.read_bandwidth > 0.0 && limits.multiply_rate > 0.0);
    assert!(limits.multiplied.contains("128×128"));
}
