//! The report of a benchmark on an emulated GPU, whose kernels run on the processor.

use clap::Parser;

use super::*;
use crate::cli::Cli;
use llama_trace_core::config::{CacheDtype, LayerSet};
use llama_trace_cuda::Cuda;
use llama_trace_emulator::Asked;
use llama_trace_engine::backend::cpu::Cpu;
use llama_trace_engine::model::{buffer_bytes, kv_cache};

/// Bytes of the device's memory.
const ROOM: usize = 1 << 30;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    bench: BenchArgs,
}

fn args(args: &[&str]) -> BenchArgs {
    Line::try_parse_from(["bench"].iter().chain(args)).unwrap().bench
}

fn tiny() -> ModelConfig {
    ModelConfig { layers: 3, ffn_dim: 96, vocab: 80, context: 128, ..ModelConfig::of_heads(4, 2, 16) }
}

#[test]
fn on_a_gpu_every_figure_is_there_and_the_bytes_are_those_of_the_shape() {
    let config = tiny();
    let checkpoint = random::of_config("tiny", config.clone(), Dtype::BF16);
    let Some(cuda) = Cuda::of_tests(ROOM) else { return };
    let model = Model::load(&checkpoint, cuda.with_precision(Precision::Bf16)).unwrap();
    let options =
        args(&["--gen", "3", "--cached", "5,40", "--prompt-tokens", "20", "--batch", "4", "--patch", "6"]);
    let plan = Plan::of(&options, false, &config).unwrap();
    let mut report = measure(&plan, &checkpoint, &model).unwrap();
    let (memory, multiplied) = ("the device's memory", "bfloat16".to_owned());
    report.limits = Limits { read_bandwidth: 1e9, memory, multiply_rate: 1e9, multiplied };
    report.in_cache = false;

    let mut table = Vec::new();
    report.table(&mut table).unwrap();
    let table = String::from_utf8(table).unwrap();
    let begins: Vec<&str> =
        table.lines().map(|line| line.split("  ").next().unwrap_or_default().trim_end()).collect();
    for line in ["memory read", "multiply", "load", "first token"] {
        assert!(begins.contains(&line), "{line}: {table}");
    }
    for line in ["prefill 20", "decode 5 ", "decode 40 ", "batch 1 ", "batch 4 ", "record layer ", "patch 6 "]
    {
        assert_eq!(table.lines().filter(|text| text.starts_with(line)).count(), 1, "{line}: {table}");
    }
    let shares = |of: &str| table.lines().filter(|line| line.contains(of)).count();
    assert_eq!((shares("% of memory read"), shares("% of multiply")), (2, 1), "{table}");
    assert!(!table.contains("sampling"), "the GPU samples as part of the pass: {table}");

    let json = report.json();
    let ModelConfig { dim, layers, ffn_dim, vocab, .. } = config;
    let (q, kv) = (64, 32);
    let layer = 2 * dim * q + 2 * dim * kv + 3 * dim * ffn_dim + 2 * dim;
    // Of the embedding table, a pass reads one row. The output head is a separate matrix here.
    let weights = 2 * (layers * layer + dim + vocab * dim);
    for (decode, cached) in json["decodes"].as_array().unwrap().iter().zip([5, 40]) {
        assert_eq!(decode["cached"], cached);
        assert_eq!(decode["weights_bytes"], weights);
        // Keys and values in bfloat16, including those of the passes over the three sampled tokens.
        assert_eq!(decode["cache_bytes"], layers * 2 * kv * 2 * (cached + 3));
        let of = |name: &str| decode[name].as_f64().unwrap();
        let least =
            (weights + layers * 2 * kv * 2 * cached) as f64 * decode["spread"]["min"].as_f64().unwrap();
        assert!(of("gbs") * 1e9 >= least, "{decode}");
        assert!((of("share_of_bandwidth") - of("gbs")).abs() < 1e-9, "{decode}");
    }
    assert_eq!(json["decodes"].as_array().unwrap().len(), 2);
    assert!(json["layer"]["ratio"].as_f64().unwrap() > 0.0, "{}", json["layer"]);
    assert!(json["layer"]["stages"].as_u64().unwrap() > 20, "{}", json["layer"]);
    // The embedding, and three stages of each layer, for each token. The two runs that the map compares count too.
    assert_eq!(json["patch"]["places"], 6 * (1 + 3 * layers));
    assert!(
        json["patch"]["counted_passes_per_16_places"].as_f64().unwrap() > 2.0 * 16.0 / 60.0,
        "{}",
        json["patch"]
    );
    assert!(json["patch"]["passes_per_16_places"].as_f64().unwrap() > 0.0, "{}", json["patch"]);
    assert!(json["batch"][1]["decode_ratio"].as_f64().unwrap() > 0.0, "{}", json["batch"]);
}

#[test]
fn a_pass_reads_no_more_of_the_cache_than_its_window_lets_it_see() {
    let config = ModelConfig { window: Some(10), window_layers: LayerSet::From(1), ..tiny() };
    let checkpoint = random::of_config("tiny", config, Dtype::BF16);
    let model = Model::load(&checkpoint, Cpu::default().with_cache_dtype(CacheDtype::F16)).unwrap();
    assert_eq!(cache_read(&model, 40), (40 + 10 + 10) * 2 * 32 * 2);
    assert_eq!(cache_read(&model, 7), 3 * 7 * 2 * 32 * 2);
}

/// Every number type of random weights, and the mixture Q4_K_M.
fn all_weights() -> impl Iterator<Item = random::Weights> {
    Dtype::ALL.map(random::Weights::Of).into_iter().chain([random::Weights::Q4KM])
}

/// [`tiny`] with rows that consist of whole blocks.
fn of_blocks() -> ModelConfig {
    ModelConfig { dim: 256, head_dim: 64, ffn_dim: 512, ..tiny() }
}

#[test]
fn random_weights_of_every_number_type_are_about_as_large_as_a_models() {
    for weights in all_weights().filter(|weights| *weights != random::Weights::Of(Dtype::I8)) {
        let model = Model::load(&random::of_config("tiny", of_blocks(), weights), Cpu::default()).unwrap();
        for layer in &model.weights.layers[..] {
            let mut values = Vec::new();
            let mut see = |rows: &[f32]| {
                values.extend_from_slice(rows);
                Ok(())
            };
            model.backend.read_rows(&layer.w2.matrix, 0..256, &mut see).unwrap();
            let mean_of =
                |f: fn(f32) -> f32| values.iter().map(|x| f64::from(f(*x))).sum::<f64>() / 131_072.0;
            let (mean, square) = (mean_of(|x| x), mean_of(|x| x * x));
            assert!((0.01..0.06).contains(&square.sqrt()), "{weights:?}: {}", square.sqrt());
            assert!(mean.abs() < 0.004, "{weights:?}: {mean}");
        }
    }
}

#[test]
fn a_benchmark_counts_the_bytes_of_random_weights_of_every_number_type() {
    let q8 = Precision::Q8 { group: 32 };
    for (name, bits, precision) in [
        ("f32", 32.0, Precision::F32),
        ("bf16", 16.0, Precision::Bf16),
        ("q8", 9.0, q8),
        ("q8_0", 8.5, q8),
        ("q4_0", 4.5, q8),
        ("q5_1", 6.0, q8),
        ("q4_k", 4.5, q8),
        ("q6_k", 6.5625, q8),
        ("iq4_xs", 4.25, q8),
        ("mxfp4", 4.25, q8),
        ("q4_k", 4.5, Precision::Bf16),
        ("q6_k", 6.5625, Precision::F32),
    ] {
        let BenchArgs { weights, model, .. } = args(&["--shape", "stories-110m", "--weights", name]);
        let checkpoint = random::of_config("tiny", of_blocks(), weights);
        if precision == q8 {
            assert_eq!(input::precision(&model, &checkpoint), q8, "{name}");
        }
        let layer = 256 * 256 * 2 + 128 * 256 * 2 + 3 * 512 * 256;
        // The embedding table of an untied model is not counted.
        let matrices = (3 * layer + 80 * 256) as f64 * bits / 8.0;
        let vectors = 7 * 256 * if name == "bf16" { 2 } else { 4 };
        assert_eq!(bytes_read(&checkpoint, precision), matrices as usize + vectors, "{name}");
    }
    // Q6_K is the type of the tied table, and of two matrices in the last of three layers.
    let config = ModelConfig { tied: true, ..of_blocks() };
    let checkpoint =
        random::of_config("tiny", config, args(&["--shape", "stories-110m", "--weights", "q4_k_m"]).weights);
    let more = 80 * 256 + 128 * 256 + 512 * 256;
    let less = 3 * (256 * 256 * 2 + 128 * 256 * 2 + 3 * 512 * 256) + 80 * 256 - more;
    assert_eq!(bytes_read(&checkpoint, q8), more / 256 * 210 + less / 256 * 144 + 7 * 256 * 4);
}

#[test]
fn random_weights_are_made_on_the_device_and_are_those_of_the_processor() {
    for weights in all_weights() {
        let precision = match weights {
            random::Weights::Of(Dtype::BF16) => Precision::Bf16,
            random::Weights::Of(dtype) if dtype.is_float() => Precision::F32,
            _ => Precision::Q8 { group: 32 },
        };
        let Some((cuda, log)) = Cuda::logged(ROOM) else { return };
        let checkpoint = random::of_config("tiny", of_blocks(), weights);
        let cuda = Model::load(&checkpoint, cuda.with_precision(precision)).unwrap();
        let copied: usize = log
            .lock()
            .unwrap()
            .iter()
            .map(|asked| match asked {
                Asked::Write(bytes) => *bytes,
                _ => 0,
            })
            .sum();
        // Norms and RoPE's frequencies.
        assert_eq!(copied, 4 * (7 * 256 + 32), "{weights:?}");
        let cpu = Model::load(&checkpoint, Cpu::default().with_precision(precision)).unwrap();
        fn rows(model: &Model) -> Vec<u32> {
            let mut all = Vec::new();
            for (matrix, rows) in [(&model.weights.embedding, 80), (&model.weights.layers[2].w2.matrix, 256)]
            {
                let mut see = |values: &[f32]| {
                    all.extend(values.iter().map(|value| value.to_bits()));
                    Ok(())
                };
                model.backend.read_rows(matrix, 0..rows, &mut see).unwrap();
            }
            all
        }
        let (found, expected) = (rows(&cuda), rows(&cpu));
        assert!(found == expected, "{weights:?}");
        // The MXFP4 weights have two exponents, and therefore at most 19 different values.
        let different: std::collections::HashSet<_> = found.iter().collect();
        assert!(different.len() > 15, "{weights:?}: the weights are random");
    }
}

#[test]
fn what_is_measured_without_options_suits_the_device_and_the_context() {
    let plan = |on_processor, context, options: &[&str]| {
        let plan = Plan::of(&args(options), on_processor, &ModelConfig { context, ..tiny() }).unwrap();
        (plan.prompts, plan.cached, plan.batch, plan.record_layer)
    };
    assert_eq!(plan(true, 4096, &[]), (vec![128, 512], vec![8], vec![], false));
    assert_eq!(plan(false, 131_072, &[]), (vec![2048], vec![128, 32_768], vec![16], true));
    assert_eq!(plan(false, 128, &[]), (vec![128], vec![64], vec![16], true));
    assert_eq!(plan(false, 128, &["--gen", "0"]), (vec![128], vec![128], vec![], true));
    assert_eq!(plan(false, 4096, &["--cached", "9", "--batch", "2"]), (vec![2048], vec![9], vec![2], true));
    assert_eq!(plan(true, 256, &["--record"]), (vec![128, 256], vec![8], vec![], true));
    assert_eq!(plan(true, 72, &["--gen", "64"]), (vec![72], vec![8], vec![], false));
    let room = |options: &[&str]| {
        let config = ModelConfig { context: 72, ..tiny() };
        Plan::of(&args(options), true, &config).err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert!(room(&["--gen", "65"]).contains("at most 64: the context of 72 tokens without 8 cached tokens"));
    assert!(room(&["--gen", "100000"]).contains("--gen 100000"));
    assert!(room(&["--gen", "3", "--cached", "2,70"]).contains("at most 2"));
    for wrong in [["--cached", "0"], ["--cached", "5,300"], ["--prompt-tokens", "300"]] {
        let config = ModelConfig { context: 256, ..tiny() };
        let error = Plan::of(&args(&wrong), false, &config).err().unwrap();
        assert!(error.to_string().contains("lengths from 1 to 256"), "{error}");
    }
}

/// Prints the reports on a real GPU. The test asserts no speeds.
#[test]
fn on_a_gpu_the_report_of_each_shape_is_printed() {
    let Ok(number) = std::env::var("LLAMA_TRACE_GPU") else {
        println!("skipped: LLAMA_TRACE_GPU names no GPU, and the processor would need a day");
        return;
    };
    let device = format!("cuda:{number}");
    for shape in ["llama-3.2-1b", "llama-3.1-8b"] {
        let words = ["llama-trace", "bench", "--device", &device, "--shape", shape];
        let bf16 = ["--weights", "bf16", "--precision", "bf16"];
        Cli::try_parse_from(words.iter().chain(&bf16)).unwrap().run().unwrap();
    }
}

#[test]
fn texts_that_wait_for_memory_are_not_counted_as_a_batch() {
    let model = Model::load(&crate::builtin::open().unwrap(), Cpu::default()).unwrap();
    let (config, dtype) = (&model.config, model.backend.cache_dtype());
    // A batch takes at most half of the free memory.
    let two = 2 * (2 * kv_cache::bytes(config, dtype, 20 + 5) + buffer_bytes(config, 40, 2));
    let together = |memory| batch::time(&model, 4, 20, 5, memory).unwrap().2;
    assert_eq!([together(None), together(Some(two))], [4, 2]);
}
