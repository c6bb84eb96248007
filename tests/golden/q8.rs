//! Compares `q8` with a float64 reader of llama2.c's version 2 files (fixtures/precision/q8.py).

use std::collections::BTreeMap;

use llama_trace::backend::cpu::{Cpu, Kernel};
use llama_trace::checkpoint::{self, Checkpoint};
use llama_trace::config::Precision;
use llama_trace::generate::{Sampler, Sampling, Session};
use llama_trace::model::Model;
use llama_trace::ops::quantize::{Quantized, dot};
use llama_trace::trace::{Frame, FrameData, Recorder, Select, Stage};
use proptest::prelude::*;
use safetensors::tensor::{Dtype, SafeTensors};

use super::common::{data, fixture, llama_trace, stdout};

/// The largest relative L2 error of a stage of numbers; int8 values and ids are compared exactly.
const TOLERANCE: f64 = 1e-5;

const MODELS: [&str; 2] = ["unshared", "shared"];

/// The values of a stage, and whether they are compared exactly.
#[derive(Clone, Debug, PartialEq)]
struct Values {
    shape: Vec<usize>,
    numbers: Vec<f64>,
    exact: bool,
}

type Stages = BTreeMap<String, Values>;

fn reference(name: &str) -> Stages {
    let bytes = std::fs::read(fixture(&format!("precision/q8_{name}.safetensors"))).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let values = tensors.iter().map(|(name, view)| {
        let data = view.data();
        let words = data.as_chunks::<8>().0.iter();
        let (numbers, exact) = match view.dtype() {
            Dtype::F64 => (words.map(|word| f64::from_le_bytes(*word)).collect(), false),
            Dtype::I64 => (words.map(|word| i64::from_le_bytes(*word) as f64).collect(), true),
            Dtype::I8 => (data.iter().map(|byte| f64::from(byte.cast_signed())).collect(), true),
            other => panic!("{name}: {other:?}"),
        };
        (name.to_owned(), Values { shape: view.shape().to_vec(), numbers, exact })
    });
    values.collect()
}

fn open(name: &str) -> Checkpoint {
    checkpoint::open(&fixture(&format!("precision/q8_{name}.bin"))).unwrap()
}

/// The int8 precision with the group size of the checkpoint's file.
fn q8(checkpoint: &Checkpoint) -> Precision {
    Precision::Q8 { group: checkpoint.group().unwrap() }
}

/// Every stage of a prefill and two decode passes.
fn record(checkpoint: &Checkpoint, cpu: Cpu, prompt: &[u32]) -> Stages {
    let model = Model::load(checkpoint, cpu).unwrap();
    let mut session = Session::new(&model, Sampler::new(Sampling::default()).unwrap()).unwrap();
    let (select, mut stages, mut ids) = (Select::all(), Stages::new(), prompt.to_vec());
    for _ in 0..3 {
        let dims = session.next_pass(ids.len());
        let take = |frame: Frame| {
            let (numbers, exact) = match &frame.data {
                FrameData::F32(array) => (array.iter().map(|&x| f64::from(x)).collect(), false),
                FrameData::I64(array) => (array.iter().map(|&x| x as f64).collect(), true),
                FrameData::I8(array) => (array.iter().map(|&x| f64::from(x)).collect(), true),
            };
            let name = frame.site.file_name().trim_end_matches(".npy").to_owned();
            stages.insert(name, Values { shape: frame.shape().to_vec(), numbers, exact });
        };
        ids = vec![session.run(&ids, &mut Recorder::new(model.sizes(), dims, &select, take)).unwrap()];
    }
    stages
}

fn prompt(reference: &Stages) -> Vec<u32> {
    reference["pass_000/tokens"].numbers.iter().map(|&id| id as u32).collect()
}

/// ‖ours − theirs‖ / ‖theirs‖ over the finite values. Infinite if int8 values or ids differ, because they must be
/// equal.
fn distance(ours: &Values, theirs: &Values) -> f64 {
    if ours.shape != theirs.shape || ours.exact != theirs.exact || (ours.exact && ours != theirs) {
        return f64::INFINITY;
    }
    let (mut error, mut norm) = (0.0, 0.0);
    for (a, b) in ours.numbers.iter().zip(&theirs.numbers).filter(|(a, b)| a != b || b.is_finite()) {
        error += (a - b).powi(2);
        norm += b.powi(2);
    }
    if error == 0.0 { 0.0 } else { (error / norm).sqrt() }
}

#[test]
fn every_stage_of_a_version_2_file_agrees_with_the_float64_reader() {
    for name in MODELS {
        let (checkpoint, reference) = (open(name), reference(name));
        for kernel in Kernel::selectable() {
            let cpu = Cpu::with_kernel(kernel).with_precision(q8(&checkpoint));
            let ours = record(&checkpoint, cpu, &prompt(&reference));
            assert!(ours.keys().eq(reference.keys()), "{name}: {:?}", ours.keys());
            for (stage, theirs) in &reference {
                let distance = distance(&ours[stage], theirs);
                assert!(distance <= TOLERANCE, "{name} {stage}, {}: {distance:e}", kernel.name());
            }
        }
    }
}

/// The comparison detects groups of another size, although they change little.
#[test]
fn the_comparison_detects_another_group_size() {
    let (checkpoint, reference) = (open("unshared"), reference("unshared"));
    for group in [9, 11, 24] {
        let cpu = Cpu::default().with_precision(Precision::Q8 { group });
        let ours = record(&checkpoint, cpu, &prompt(&reference));
        let stage = "pass_000/layer_00/xq";
        assert!(distance(&ours[stage], &reference[stage]) > TOLERANCE, "{group}");
    }
}

/// The same model as a file of version 1: every matrix as float32 numbers, computed from its int8 values and scales.
fn dequantized(bytes: &[u8]) -> Vec<u8> {
    let word = |at: usize| i32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let [dim, hidden, layers, heads, kv_heads, vocab] = [8, 12, 16, 20, 24, 28].map(word);
    let (shared, group) = (bytes[36] == 1, word(37));
    let kv = dim / heads * kv_heads;
    let norms = (2 * layers + 1) * dim;
    let mut out = bytes[..256 + 4 * norms].to_vec();
    out[4] = 1;
    out[37..41].fill(0);
    let mut rest = &bytes[256 + 4 * norms..];
    let layer = [dim * dim, kv * dim, kv * dim, dim * dim, hidden * dim, dim * hidden, hidden * dim];
    let in_layers = layer.into_iter().flat_map(|count| std::iter::repeat_n(count, layers));
    let heads = (!shared).then_some(vocab * dim);
    for count in std::iter::once(vocab * dim).chain(in_layers).chain(heads) {
        let (values, after) = rest.split_at(count);
        let (scales, after) = after.split_at(4 * count.div_ceil(group));
        for (i, value) in values.iter().enumerate() {
            let scale = f32::from_le_bytes(scales.as_chunks().0[i / group]);
            out.extend((f32::from(value.cast_signed()) * scale).to_le_bytes());
        }
        rest = after;
    }
    assert!(rest.is_empty());
    out
}

#[test]
fn in_float32_the_file_is_the_model_that_its_int8_values_encode() {
    for name in MODELS {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plain.bin");
        let bytes = std::fs::read(fixture(&format!("precision/q8_{name}.bin"))).unwrap();
        std::fs::write(&path, dequantized(&bytes)).unwrap();
        let plain = checkpoint::open(&path).unwrap();
        assert_eq!((plain.group(), plain.config.clone()), (None, open(name).config));
        for kernel in Kernel::selectable() {
            let cpu = Cpu::with_kernel(kernel);
            let ids = [1, 5, 9, 3, 7];
            let (a, b) = (record(&open(name), cpu.clone(), &ids), record(&plain, cpu, &ids));
            assert!(a == b && !a.contains_key("pass_000/final_norm_q8"), "{name}, {}", kernel.name());
        }
    }
}

#[test]
fn stories260k_in_int8_writes_the_text_of_the_float64_reader() {
    let Some(model) = data("stories260K/stories260K_q80.bin") else { return };
    let expected = std::fs::read_to_string(fixture("precision/q8_stories260K.txt")).unwrap();
    let text = |prompt: &str, count: &str, precision: &[&str]| {
        let args = ["--model", model.to_str().unwrap(), "--prompt", prompt, "-n", count];
        stdout(&llama_trace(args.iter().chain(precision)))
    };
    for kernel in Kernel::available() {
        assert_eq!(text("", "100", &["--cpu-kernel", kernel.name()]), expected, "{}", kernel.name());
    }
    assert_ne!(text("", "100", &["--precision", "f32"]), expected, "the text tells int8 from float32");
    let texts = std::fs::read(fixture("precision/q8_stories260K_texts.json")).unwrap();
    let texts: BTreeMap<String, String> = serde_json::from_slice(&texts).unwrap();
    for (prompt, expected) in texts {
        assert_eq!(text(&prompt, "200", &[]), expected, "{prompt}");
    }
}

/// An activation may be so close to a half that the error of float32 changes its int8 value by one step. The logits
/// then change by tenths, so two float runs of 200 tokens need not give the same text. But for a given text, both runs
/// expect the same next token, if its logit leads by more than these tenths.
#[test]
fn stories260k_in_int8_expects_the_tokens_of_the_float64_reader() {
    let Some(path) = data("stories260K/stories260K_q80.bin") else { return };
    let checkpoint = checkpoint::open(&path).unwrap();
    let expected = std::fs::read(fixture("precision/q8_stories260K.json")).unwrap();
    let expected: serde_json::Value = serde_json::from_slice(&expected).unwrap();
    let numbers = |key: &str| expected[key].as_array().unwrap().iter().map(|x| x.as_f64().unwrap());
    let ids: Vec<u32> = numbers("ids").map(|id| id as u32).collect();
    let gaps: Vec<f64> = numbers("gaps").collect();
    let model = Model::load(&checkpoint, Cpu::default().with_precision(q8(&checkpoint))).unwrap();
    let mut session = Session::new(&model, Sampler::new(Sampling::default()).unwrap()).unwrap();
    let (select, mut best) = (Select::all(), Vec::new());
    let take = |frame: Frame| {
        if frame.site.stage == Stage::Logits {
            for row in frame.floats().unwrap().rows() {
                let at = |(i, _): (usize, &f32)| i as u32;
                best.push(row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(at).unwrap());
            }
        }
    };
    let dims = session.next_pass(gaps.len());
    session.run(&ids[..gaps.len()], &mut Recorder::new(model.sizes(), dims, &select, take)).unwrap();
    let wrong: Vec<_> = (0..gaps.len()).filter(|&t| best[t] != ids[t + 1]).collect();
    assert!(wrong.iter().all(|&t| gaps[t] < 0.3), "{wrong:?}");
    assert!(wrong.len() <= 4, "{wrong:?}");
}

proptest! {
    #[test]
    fn a_product_is_the_sum_over_runs_of_both_groups(
        (inputs, group, weight_group, first, seed) in
            (1_usize..200, 1_usize..70, 1_usize..70, 0_usize..300, any::<u64>())
    ) {
        let mut state = seed | 1;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as u32
        };
        let mut int8 = |count: usize| -> Vec<i8> { (0..count).map(|_| (next() % 255) as i8).collect() };
        let (x, w) = (int8(inputs), int8(inputs));
        let mut scale = || next() as f32 / (1 << 28) as f32;
        let x_scales: Vec<f32> = (0..inputs.div_ceil(group)).map(|_| scale()).collect();
        let w_scales: Vec<f32> = (0..(first + inputs).div_ceil(weight_group)).map(|_| scale()).collect();
        let bytes: Vec<[u8; 4]> = w_scales.iter().map(|scale| scale.to_le_bytes()).collect();
        let ours = dot(&x, &x_scales, group, Quantized { values: &w, scales: &bytes, group: weight_group, first });

        let (mut sum, mut size, mut i) = (0.0_f64, 0.0_f64, 0);
        while i < inputs {
            let same = |j: &usize| j / group == i / group && (first + j) / weight_group == (first + i) / weight_group;
            let run: Vec<usize> = (i..inputs).take_while(same).collect();
            let integers: i64 = run.iter().map(|&j| i64::from(x[j]) * i64::from(w[j])).sum();
            let scales = f64::from(x_scales[i / group]) * f64::from(w_scales[(first + i) / weight_group]);
            sum += integers as f64 * scales;
            size += (integers as f64 * scales).abs();
            i += run.len();
        }
        prop_assert!((f64::from(ours) - sum).abs() <= 1e-6 * size, "{ours} and {sum}");
    }
}
