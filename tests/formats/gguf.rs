//! GGUF files as a whole: the parts of a split model, and gguf-py's output for each block format
//! (`fixtures/formats/gguf`). `tests/formats.rs` compares their logits with those of other formats.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::logits::{bits, distance};
use crate::common::{data, fixture, llama_trace, stderr, stdout};
use llama_trace::backend::cpu::{Cpu, Kernel};
use llama_trace::checkpoint::{self, Checkpoint};
use llama_trace::config::Precision;
use llama_trace::files::gguf::build;
use llama_trace::ops::blocks::{self, dequantize};
use safetensors::tensor::SafeTensors;

fn path(name: &str) -> PathBuf {
    fixture("formats/gguf").join(name)
}

fn open(name: &str) -> Checkpoint {
    checkpoint::open(&path(name)).unwrap()
}

/// The logits after some ids that every vocabulary here has.
fn logits(checkpoint: &Checkpoint) -> Vec<f32> {
    crate::common::logits::logits(checkpoint, &[1, 4, 7, 2, 0, 5, 3, 6, 6, 1, 2])
}

#[test]
fn blocks_are_dequantized_to_the_bits_of_gguf_py() {
    let file = fs::read(path("dequantized.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    type Dequantize = fn(&[u8], &mut [f32]);
    let formats: [(&str, Dequantize); 13] = [
        ("Q8_0", dequantize::<blocks::Q8_0>),
        ("Q4_0", dequantize::<blocks::Q4_0>),
        ("Q4_1", dequantize::<blocks::Q4_1>),
        ("Q5_0", dequantize::<blocks::Q5_0>),
        ("Q5_1", dequantize::<blocks::Q5_1>),
        ("Q4_K", dequantize::<blocks::Q4K>),
        ("Q5_K", dequantize::<blocks::Q5K>),
        ("Q6_K", dequantize::<blocks::Q6K>),
        ("Q2_K", dequantize::<blocks::Q2K>),
        ("Q3_K", dequantize::<blocks::Q3K>),
        ("IQ4_NL", dequantize::<blocks::Iq4Nl>),
        ("IQ4_XS", dequantize::<blocks::Iq4Xs>),
        ("MXFP4", dequantize::<blocks::Mxfp4>),
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
fn blocks_in_f32_run_as_the_float32_values_that_they_encode() {
    for (name, line) in [
        ("blocks", "GGUF v3, Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1"),
        ("k_blocks", "GGUF v3, F32, Q4_K, Q5_K and Q6_K"),
        ("rare_blocks", "GGUF v3, F32, Q2_K, Q3_K, IQ4_NL, IQ4_XS and MXFP4"),
    ] {
        let (blocks, plain) = (open(&format!("{name}.gguf")), open(&format!("{name}.f32.gguf")));
        assert_eq!(
            (blocks.format.to_string(), plain.format.to_string()),
            (line.into(), "GGUF v3, F32".into())
        );
        assert_eq!(bits(&logits(&blocks)), bits(&logits(&plain)), "{name}");
    }
    // Coarser weights change the logits, but not by much.
    let error = distance(&logits(&open("blocks.gguf")), &logits(&open("f32.gguf")));
    assert!((1e-3..0.5).contains(&error), "{error}");
}

#[test]
fn blocks_in_q8_give_the_logits_of_the_float64_reader_with_every_kernel() {
    let expected: serde_json::Value =
        serde_json::from_slice(&fs::read(path("expected.json")).unwrap()).unwrap();
    for name in ["blocks", "k_blocks", "rare_blocks"] {
        let list = |key: &str| expected[name][key].as_array().unwrap().iter().map(|x| x.as_f64().unwrap());
        let ids: Vec<u32> = list("ids").map(|id| id as u32).collect();
        let (checkpoint, exact) = (open(&format!("{name}.gguf")), list("logits").collect::<Vec<_>>());
        let group = checkpoint.group().unwrap();
        let vocab = checkpoint.config.vocab;
        let mut first = None;
        for kernel in Kernel::selectable() {
            let cpu = Cpu::with_kernel(kernel).with_precision(Precision::Q8 { group });
            let ours = crate::common::logits::logits_on(cpu, &checkpoint, &ids);
            // The logits of the last id. The row after them belongs to the sampled token.
            let last = &ours[(ids.len() - 1) * vocab..ids.len() * vocab];
            let error = distance(last, &exact);
            assert!(error <= 1e-5, "{name}, {}: {error:e}", kernel.name());
            let bits = bits(&ours);
            let same = *first.get_or_insert_with(|| bits.clone()) == bits;
            assert!(same || kernel == Kernel::wasm(), "{name}, {}", kernel.name());
        }
        // The rounding of the activations to int8 changes the logits, but not by much.
        let error = distance(&logits_of(&checkpoint, &ids), &exact);
        assert!((1e-4..0.1).contains(&error), "{name} in float32: {error:e}");
    }
}

/// The logits after the last of `ids` in float32.
fn logits_of(checkpoint: &Checkpoint, ids: &[u32]) -> Vec<f32> {
    let all = crate::common::logits::logits(checkpoint, ids);
    all[(ids.len() - 1) * checkpoint.config.vocab..][..checkpoint.config.vocab].to_vec()
}

#[test]
fn a_file_of_blocks_runs_in_q8_by_default() {
    let file = path("rare_blocks.gguf");
    let precision = |arguments: &[&str]| {
        let output = llama_trace(["info", "--model", file.to_str().unwrap()].iter().chain(arguments));
        let text = stdout(&output);
        text.lines().find(|line| line.starts_with("precision")).unwrap().to_owned()
    };
    assert_eq!(
        precision(&[]),
        "precision   q8: products of int8 activations, with a scale for every 32 values, and the file's blocks"
    );
    assert!(precision(&["--precision", "f32"]).starts_with("precision   f32: "));
    assert!(precision(&["--precision", "bf16"]).starts_with("precision   bf16: "));
    let output = llama_trace(["--model", file.to_str().unwrap(), "--ids", "1,4", "-n", "2"]);
    assert!(stderr(&output).contains("precision q8"), "{}", stderr(&output));
}

#[test]
fn any_part_opens_the_whole_model() {
    let folder = tempfile::tempdir().unwrap();
    let part = |number: u32| format!("split-{number:05}-of-00003.gguf");
    for number in 1..=3 {
        fs::copy(path(&part(number)), folder.path().join(part(number))).unwrap();
    }
    let open = |name: &str| checkpoint::open(&folder.path().join(name));
    for number in 1..=3 {
        let model = open(&part(number)).unwrap();
        assert_eq!(model.format.to_string(), "GGUF v3, BF16, 3 files");
        assert_eq!(model.tensors().count(), 21);
    }
    fs::rename(folder.path().join(part(2)), folder.path().join("two.gguf")).unwrap();
    let text = open(&part(1)).unwrap_err().to_string();
    assert!(text.contains("is missing: split-00002-of-00003.gguf"), "{text}");
    let text = open("two.gguf").unwrap_err().to_string();
    assert!(text.contains("part 2 of 3") && text.contains("`two.gguf`"), "{text}");
    fs::copy(path(&part(3)), folder.path().join(part(2))).unwrap();
    let text = open(&part(1)).unwrap_err().to_string();
    assert!(text.contains("split.no"), "{text}");
}

#[test]
fn a_gguf_file_is_recognised_by_its_content_and_not_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.bin");
    let mut bytes = fs::read(path("f32.gguf")).unwrap();
    bytes[4] = 2;
    fs::write(&file, bytes).unwrap();
    let model = checkpoint::open(&file).unwrap();
    assert_eq!(model.format.to_string(), "GGUF v2, F32");
    assert_eq!(bits(&logits(&model)), bits(&logits(&open("f32.gguf"))));
}

#[test]
fn info_says_what_it_recognised_in_one_line() {
    let output = llama_trace(["info", "--model", path("k_blocks.gguf").to_str().unwrap()]);
    let text = stdout(&output);
    assert!(text.lines().next().unwrap().contains("GGUF v3, F32, Q4_K, Q5_K and Q6_K"), "{text}");
    assert!(text.contains("8 tokens; text ends at #2") && text.contains("neighbours"), "{text}");
    assert!(text.lines().any(|line| line.contains("token_embd.weight") && line.contains("Q4_K")), "{text}");
}

/// A sparse file of 2.5 GB.
#[cfg(target_os = "linux")]
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
fn info_on_a_huge_file_needs_little_memory() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("huge.gguf");
    huge(&file);
    // The limit applies to allocated memory only. A mapped file does not count.
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
fn a_file_with_only_a_vocabulary_is_a_tokenizer_and_no_model() {
    let Some(vocabulary) = data("llama.cpp-vocab/ggml-vocab-llama-spm.gguf") else { return };
    let output = llama_trace(["info", "--model", vocabulary.to_str().unwrap()]);
    assert!(stderr(&output).contains("give it with --tokenizer"), "{}", stderr(&output));
}

/// The tiny model with this kind of vocabulary and this splitting rule.
fn model_of_kind(kind: &str, pre: &str, file: &Path) {
    let mut bytes = fs::read(path("f32.gguf")).unwrap();
    let before = bytes.len();
    for (key, text) in [("tokenizer.ggml.model", kind), ("tokenizer.ggml.pre", pre)] {
        let key = build::string(key.as_bytes());
        let at = bytes.windows(key.len()).position(|window| window == key).unwrap();
        let value = at + key.len() + 4;
        let length = u64::from_le_bytes(*bytes[value..].first_chunk().unwrap()) as usize;
        bytes.splice(value..value + 8 + length, build::string(text.as_bytes()));
    }
    // Pads the metadata, because the data after it must stay at a multiple of 32 bytes.
    let filler = |spaces: usize| build::Build::new().text("filler", &" ".repeat(spaces)).keys.concat();
    let moved = bytes.len() + filler(0).len() + 32 * 1024 - before;
    let count = u64::from_le_bytes(*bytes[16..].first_chunk().unwrap());
    bytes[16..24].copy_from_slice(&(count + 1).to_le_bytes());
    bytes.splice(24..24, filler(moved.next_multiple_of(32) - moved));
    fs::write(file, bytes).unwrap();
}

#[test]
fn an_unknown_splitting_rule_refuses_only_text_prompts() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    model_of_kind("gpt2", "kimi-k2", &file);
    let (model, other) = (file.to_str().unwrap(), path("f32.gguf"));
    let says = |text: &str| {
        for word in ["tokenizer.ggml.pre", "kimi-k2", "--tokenizer FILE", "--ids"] {
            assert!(text.contains(word), "{word}: {text}");
        }
    };
    let ids = llama_trace(["--model", model, "--ids", "1,4,7", "-n", "3", "--format", "json"]);
    assert!(ids.status.success(), "{}", stderr(&ids));
    says(&stderr(&ids));
    let expected = ["--model", other.to_str().unwrap(), "--ids", "1,4,7", "-n", "3", "--format", "json"];
    let drawn = |output: &std::process::Output| -> Vec<serde_json::Value> {
        let lines = stdout(output);
        let lines = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        lines.map(|line| line["id"].clone()).collect()
    };
    assert_eq!(drawn(&ids), drawn(&llama_trace(expected)));
    let text = llama_trace(["--model", model, "--prompt", "a", "-n", "3"]);
    assert_eq!(text.status.code(), Some(3), "{}", stderr(&text));
    says(&stderr(&text));
    let text =
        llama_trace(["--model", model, "--tokenizer", other.to_str().unwrap(), "--prompt", "a", "-n", "3"]);
    assert!(text.status.success(), "{}", stderr(&text));
    let info = llama_trace(["info", "--model", model]);
    assert!(info.status.success(), "{}", stderr(&info));
    says(&stdout(&info));
    let chat = llama_trace(["chat", "--model", model]);
    assert_eq!(chat.status.code(), Some(3), "{}", stderr(&chat));
    says(&stderr(&chat));
}

#[test]
fn texts_of_other_peoples_files_end_as_in_llama_cpp() {
    let Some(file) = data("foreign/eot-without-key.gguf") else { return };
    let model = ["--model", file.to_str().unwrap()];
    let output = llama_trace(model.iter().chain(&["--ids", "400,9,270", "-n", "8", "--format", "json"]));
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        !stdout(&output).contains("402") || stdout(&output).matches("402").count() <= 2,
        "{}",
        stdout(&output)
    );
    let Some(file) = data("foreign/bytes-typed-normal.gguf") else { return };
    let output = llama_trace(["tokenize", "--model", file.to_str().unwrap(), "hello\nworld"]);
    assert!(stdout(&output).ends_with("ids     1 368 13 399 292\n"), "{}", stderr(&output));
}
