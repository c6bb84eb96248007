//! GGUF files as a whole: the same model in every dtype, in one file and in three, and what gguf-py makes
//! of each block format (`fixtures/formats/gguf`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "these tests write files of one kind only")]
#[path = "../src/checkpoint/gguf/build.rs"]
mod build;
mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{data, fixture, llama_trace, stderr, stdout};
use llama_trace::backend::cpu::Cpu;
use llama_trace::checkpoint::{self, Checkpoint};
use llama_trace::config::{Pairing, RopeScaling};
use llama_trace::generate::{Sampler, Sampling, Session};
use llama_trace::model::Model;
use llama_trace::ops::dequantize;
use llama_trace::trace::{Frame, FrameData, Recorder, Select, Stage};
use safetensors::tensor::SafeTensors;

fn path(name: &str) -> PathBuf {
    fixture("formats/gguf").join(name)
}

fn open(name: &str) -> Checkpoint {
    checkpoint::open(Some(&path(name))).unwrap()
}

/// The logits of every token of a prompt and of the token after it.
fn logits(checkpoint: &Checkpoint) -> Vec<f32> {
    let model = Model::load(checkpoint, Cpu::default()).unwrap();
    let mut session = Session::new(&model, Sampler::new(Sampling::default()).unwrap());
    let (select, mut logits) = (Select::all(), Vec::<f32>::new());
    let mut ids = vec![1, 4, 7, 2, 0, 5, 3, 6, 6, 1, 2];
    for _ in 0..2 {
        let dims = session.next_pass(ids.len());
        let mut take = |frame: Frame| {
            if let (Stage::Logits, FrameData::F32(values)) = (frame.site.stage, &frame.data) {
                logits.extend(values.iter());
            }
        };
        ids = vec![session.run(&ids, &mut Recorder::new(model.sizes(), dims, &select, &mut take)).unwrap()];
    }
    assert!(logits.len() == 12 * checkpoint.config.vocab && logits.iter().all(|logit| logit.is_finite()));
    logits
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// ‖a − b‖ / ‖b‖
fn relative_error(a: &[f32], b: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x).powi(2);
    let error: f64 = a.iter().zip(b).map(|(a, b)| square(a - b)).sum();
    (error / b.iter().map(|b| square(*b)).sum::<f64>()).sqrt()
}

#[test]
fn blocks_are_dequantized_to_the_bits_of_gguf_py() {
    let file = fs::read(path("dequantized.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    type Dequantize = fn(&[u8], &mut [f32]);
    let formats: [(&str, Dequantize); 8] = [
        ("Q8_0", dequantize::q8_0),
        ("Q4_0", dequantize::q4_0),
        ("Q4_1", dequantize::q4_1),
        ("Q5_0", dequantize::q5_0),
        ("Q5_1", dequantize::q5_1),
        ("Q4_K", dequantize::q4_k),
        ("Q5_K", dequantize::q5_k),
        ("Q6_K", dequantize::q6_k),
    ];
    for (name, dequantize) in formats {
        let blocks = tensors.tensor(&format!("{name}.blocks")).unwrap();
        let expected = tensors.tensor(&format!("{name}.values")).unwrap();
        let expected: Vec<u32> =
            expected.data().as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let mut values = vec![0.0; expected.len()];
        dequantize(blocks.data(), &mut values);
        assert_eq!(bits(&values), expected, "{name}");
    }
}

#[test]
fn blocks_run_as_the_float32_that_they_stand_for() {
    for (name, line) in [
        ("blocks", "GGUF v3, Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1"),
        ("k_blocks", "GGUF v3, F32, Q4_K, Q5_K and Q6_K"),
    ] {
        let (blocks, plain) = (open(&format!("{name}.gguf")), open(&format!("{name}.f32.gguf")));
        assert_eq!(
            (blocks.format.to_string(), plain.format.to_string()),
            (line.into(), "GGUF v3, F32".into())
        );
        assert_eq!(bits(&logits(&blocks)), bits(&logits(&plain)), "{name}");
    }
    // Coarser weights are other weights, but not by much.
    let error = relative_error(&logits(&open("blocks.gguf")), &logits(&open("model.f32.gguf")));
    assert!((1e-3..0.5).contains(&error), "{error}");
}

#[test]
fn a_model_is_the_same_in_every_dtype_and_in_parts() {
    let expected = logits(&open("model.f32.gguf"));
    for name in ["model.f16.gguf", "model.bf16.gguf", "model.split-00001-of-00003.gguf"] {
        assert_eq!(bits(&logits(&open(name))), bits(&expected), "{name}");
    }
    let hugging_face = open("hf");
    assert_eq!(
        (hugging_face.config.pairing, open("model.f32.gguf").config.pairing),
        (Pairing::Halves, Pairing::Neighbours)
    );
    let error = relative_error(&expected, &logits(&hugging_face));
    assert!(error < 1e-5, "{error}");
    let mut wrong = open("model.f32.gguf");
    wrong.config.pairing = Pairing::Halves;
    assert!(relative_error(&logits(&wrong), &expected) > 1e-2);
}

#[test]
fn divided_frequencies_are_the_llama_3_rule() {
    let scaled = open("model.scaled.gguf");
    assert!(matches!(&scaled.config.rope_scaling, RopeScaling::Divisors(divisors) if divisors.len() == 4));
    let folder = tempfile::tempdir().unwrap();
    fs::copy(path("hf/config.scaled.json"), folder.path().join("config.json")).unwrap();
    fs::copy(path("hf/model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let expected = logits(&checkpoint::open(Some(folder.path())).unwrap());
    let error = relative_error(&logits(&scaled), &expected);
    assert!(error < 1e-5, "{error}");
    assert!(relative_error(&logits(&open("model.bf16.gguf")), &expected) > 1e-3);
}

#[test]
fn any_part_opens_the_whole_model() {
    let folder = tempfile::tempdir().unwrap();
    let part = |number: u32| format!("model.split-{number:05}-of-00003.gguf");
    for number in 1..=3 {
        fs::copy(path(&part(number)), folder.path().join(part(number))).unwrap();
    }
    let open = |name: &str| checkpoint::open(Some(&folder.path().join(name)));
    for number in 1..=3 {
        let model = open(&part(number)).unwrap();
        assert_eq!(model.format.to_string(), "GGUF v3, BF16, 3 files");
        assert_eq!(model.tensors().count(), 12);
    }
    fs::rename(folder.path().join(part(2)), folder.path().join("two.gguf")).unwrap();
    let text = open(&part(1)).unwrap_err().to_string();
    assert!(text.contains("is missing: model.split-00002-of-00003.gguf"), "{text}");
    let text = open("two.gguf").unwrap_err().to_string();
    assert!(text.contains("part 2 of 3") && text.contains("`two.gguf`"), "{text}");
    fs::copy(path(&part(3)), folder.path().join(part(2))).unwrap();
    let text = open(&part(1)).unwrap_err().to_string();
    assert!(text.contains("split.no"), "{text}");
}

#[test]
fn a_file_is_known_by_its_beginning_and_not_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.bin");
    let mut bytes = fs::read(path("model.f32.gguf")).unwrap();
    bytes[4] = 2;
    fs::write(&file, bytes).unwrap();
    let model = checkpoint::open(Some(&file)).unwrap();
    assert_eq!(model.format.to_string(), "GGUF v2, F32");
    assert_eq!(bits(&logits(&model)), bits(&logits(&open("model.f32.gguf"))));
}

#[test]
fn info_says_what_it_recognised_in_one_line() {
    let output = llama_trace(["info", "--model", path("k_blocks.gguf").to_str().unwrap()]);
    let text = stdout(&output);
    assert!(text.lines().next().unwrap().contains("GGUF v3, F32, Q4_K, Q5_K and Q6_K"), "{text}");
    assert!(text.contains("8 tokens; text ends at #2") && text.contains("neighbours"), "{text}");
    assert!(text.lines().any(|line| line.contains("token_embd.weight") && line.contains("Q4_K")), "{text}");
}

/// A file of 2.5 GB with holes where the weights would be.
fn huge(file: &Path) {
    let mut build = build::Build::new()
        .text("general.architecture", "llama")
        .u32("llama.block_count", 1)
        .u32("llama.context_length", 8192)
        .u32("llama.embedding_length", 8192)
        .u32("llama.feed_forward_length", 45056)
        .u32("llama.attention.head_count", 1)
        .u32("llama.attention.head_count_kv", 1)
        .u32("llama.attention.key_length", 256)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5);
    let (dim, hidden, vocab, head) = (8192, 45056, 16384, 256);
    let mut offset = 0;
    let tensors: [(&str, &[u64]); 11] = [
        ("token_embd", &[dim, vocab]),
        ("blk.0.attn_norm", &[dim]),
        ("blk.0.attn_q", &[dim, head]),
        ("blk.0.attn_k", &[dim, head]),
        ("blk.0.attn_v", &[dim, head]),
        ("blk.0.attn_output", &[head, dim]),
        ("blk.0.ffn_norm", &[dim]),
        ("blk.0.ffn_gate", &[dim, hidden]),
        ("blk.0.ffn_up", &[dim, hidden]),
        ("blk.0.ffn_down", &[hidden, dim]),
        ("output_norm", &[dim]),
    ];
    for (name, shape) in tensors {
        let (kind, width) = if shape.len() == 1 { (0, 4) } else { (1, 2) };
        build = build.row(&format!("{name}.weight"), shape, kind, offset);
        offset += shape.iter().product::<u64>() * width;
    }
    let bytes = build.bytes();
    fs::write(file, &bytes).unwrap();
    fs::File::options().write(true).open(file).unwrap().set_len(bytes.len() as u64 + offset).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn info_on_a_huge_file_reads_next_to_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("huge.gguf");
    huge(&file);
    // The limit is on what a process allocates; a file that it maps does not count.
    let command = format!(
        "ulimit -d 100000 && exec {} info --model {}",
        env!("CARGO_BIN_EXE_llama-trace"),
        file.display()
    );
    let output = std::process::Command::new("sh").args(["-c", &command]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("2.5 GB") && text.contains("GGUF v3, F16"), "{text}");
}

#[test]
fn stories260k_writes_what_llama2c_writes() {
    let (Some(model), Some(expected)) =
        (data("stories260K/stories260K.gguf"), data("stories260K/expected_stdout_temp0_n200.txt"))
    else {
        return;
    };
    let output = llama_trace(["--model", model.to_str().unwrap(), "--prompt", "", "-n", "200"]);
    assert_eq!(stdout(&output).as_bytes(), fs::read(expected).unwrap(), "{}", stderr(&output));
}

#[test]
fn a_vocabulary_alone_is_a_tokenizer_and_no_model() {
    let Some(vocabulary) = data("llama.cpp-vocab/ggml-vocab-llama-spm.gguf") else { return };
    let output = llama_trace(["info", "--model", vocabulary.to_str().unwrap()]);
    assert!(stderr(&output).contains("give it with --tokenizer"), "{}", stderr(&output));
}
