//! One tiny model in the forms that Meta's files come in (`fixtures/formats`, made with PyTorch), and real
//! files: each gives the logits of the others.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::path::Path;

use common::{data, fixture, llama_trace, stderr, stdout};
use llama_trace::backend::cpu::Cpu;
use llama_trace::checkpoint::{self, Checkpoint, Format};
use llama_trace::generate::{Sampler, Sampling, Session};
use llama_trace::model::{Model, forward};
use llama_trace::trace::NoProbe;

/// The largest relative L2 distance of two rows of logits whose sums are taken in another order.
const TOLERANCE: f64 = 1e-5;

fn open(path: &str) -> Checkpoint {
    checkpoint::open(Some(&fixture("formats/meta").join(path))).unwrap()
}

/// The logits after `ids`.
fn logits(checkpoint: &Checkpoint, ids: &[u32]) -> Vec<f32> {
    let model = Model::load(checkpoint, Cpu::default()).unwrap();
    let mut session = Session::new(&model, Sampler::new(Sampling::default()).unwrap());
    session.run(ids, &mut NoProbe).unwrap();
    let mut row = Vec::new();
    forward::last_logits(&model, &session.work, |logits| row = logits.to_vec());
    row
}

/// Ids, and what transformers makes of them in float64 (its norms and RoPE in float32).
fn expected() -> (Vec<u32>, Vec<f64>) {
    let text = std::fs::read(fixture("formats/meta/expected.json")).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let list = |key: &str| json[key].as_array().unwrap().iter();
    (
        list("ids").map(|id| id.as_u64().unwrap() as u32).collect(),
        list("logits").map(|logit| logit.as_f64().unwrap()).collect(),
    )
}

fn distance(a: &[f32], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let error: f64 = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
    (error / b.iter().map(|b| b * b).sum::<f64>()).sqrt()
}

#[test]
fn every_form_of_one_model_gives_the_same_logits() {
    let (ids, expected) = expected();
    let (hf, single, sharded) = (open("hf"), open("single"), open("sharded"));
    assert_eq!(single.format, Format::Meta { files: 1 });
    assert_eq!(sharded.format, Format::Meta { files: 2 });
    assert_eq!(single.config, sharded.config);

    let from_single = logits(&single, &ids);
    assert!(distance(&from_single, &expected) <= TOLERANCE, "{}", distance(&from_single, &expected));
    assert!(distance(&logits(&hf, &ids), &expected) <= TOLERANCE);
    // The same number type and the same pairing: not one bit differs.
    assert_eq!(logits(&sharded, &ids), from_single);

    // llama2.c's files say neither θ nor the scaling, and hold float32.
    let mut llama2c = open("llama2c_v1.bin");
    assert_eq!(llama2c.format, Format::Llama2c { version: 1 });
    (llama2c.config.rope_theta, llama2c.config.rope_scaling) =
        (single.config.rope_theta, single.config.rope_scaling.clone());
    assert_eq!(llama2c.config, single.config);
    assert!(distance(&logits(&llama2c, &ids), &expected) <= TOLERANCE);
}

#[test]
fn info_says_what_was_recognised_and_whose_scaling_it_is() {
    let info = |path: &str, more: &[&str]| {
        let path = fixture("formats/meta").join(path);
        let output = llama_trace(["info", "--model", path.to_str().unwrap()].iter().chain(more));
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let first = |text: &str| text.lines().next().unwrap().to_owned();
    let single = info("single", &[]);
    assert!(first(&single).contains("Meta's checkpoint, 1 .pth file"), "{single}");
    assert!(single.contains("llama3, factor 8,") && single.contains("converter uses 32"), "{single}");
    assert!(single.contains("neighbours"), "{single}");
    assert!(first(&info("sharded", &[])).contains("2 model-parallel .pth files"));
    assert!(first(&info("single/consolidated.00.pth", &[])).contains("1 .pth file"));
    assert!(first(&info("llama2c_v1.bin", &[])).contains("llama2.c checkpoint, version 1"));
    assert!(info("single", &["--rope-factor", "32"]).contains("llama3, factor 32,"));
    let text = info("hf", &["--rope-factor", "32"]);
    assert!(text.contains("llama3, factor 32,") && !text.contains("converter"), "{text}");
}

#[test]
fn a_factor_needs_a_model_that_scales() {
    let refused = |path: &str, factor: &str| {
        let path = fixture("formats/meta").join(path);
        let output = llama_trace(["info", "--model", path.to_str().unwrap(), "--rope-factor", factor]);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    };
    refused("llama2c_v1.bin", "32");
    refused("single", "-1");
    refused("single", "nan");
}

/// A copy of a real file under the names of Meta's.
fn demo() -> Option<tempfile::TempDir> {
    let folder = data("executorch-demo-pth")?;
    let copy = tempfile::tempdir().unwrap();
    std::fs::copy(folder.join("demo_rand_params.pth"), copy.path().join("consolidated.00.pth")).unwrap();
    std::fs::copy(folder.join("demo_config.json"), copy.path().join("params.json")).unwrap();
    Some(copy)
}

#[test]
fn a_real_pth_file_runs() {
    let Some(folder) = demo() else { return };
    let checkpoint = checkpoint::open(Some(folder.path())).unwrap();
    let logits = logits(&checkpoint, &[1, 2, 3]);
    assert!(logits.len() == 512 && logits.iter().all(|logit| logit.is_finite()));
}

#[test]
fn the_tokenizer_lies_beside_the_weights_or_above_them() {
    let (Some(folder), Some(tokenizer)) = (demo(), data("stories260K/tok512.bin")) else { return };
    let model = folder.path().to_str().unwrap();
    let run = || llama_trace(["tokenize", "--model", model, "Hello"]);
    assert_eq!(run().status.code(), Some(4), "no tokenizer");
    // One of llama2.c's under the name of Meta's: what a file is, its contents say.
    std::fs::copy(tokenizer, folder.path().join("tokenizer.model")).unwrap();
    assert!(run().status.success(), "{}", stderr(&run()));
    let outer = tempfile::tempdir().unwrap();
    let inner = outer.path().join("7B");
    std::fs::create_dir(&inner).unwrap();
    for name in ["consolidated.00.pth", "params.json"] {
        std::fs::copy(folder.path().join(name), inner.join(name)).unwrap();
    }
    std::fs::copy(folder.path().join("tokenizer.model"), outer.path().join("tokenizer.model")).unwrap();
    for path in [&inner, &inner.join("consolidated.00.pth")] {
        let output =
            llama_trace(["tokenize".as_ref(), "--model".as_ref(), path.as_os_str(), "Hello".as_ref()]);
        assert!(output.status.success(), "{}: {}", path.display(), stderr(&output));
    }
}

#[test]
fn a_pickle_that_runs_something_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(fixture("formats/meta/single/params.json"), folder.path().join("params.json")).unwrap();
    let weights = folder.path().join("consolidated.00.pth");
    let mut bytes = std::fs::read(fixture("formats/meta/single/consolidated.00.pth")).unwrap();
    // The first function that the file names, made another of the same length.
    let at = bytes.windows(20).position(|window| window == b"_rebuild_tensor_v2\nq").unwrap();
    bytes[at..at + 18].copy_from_slice(b"_rebuild_tensor_vX");
    std::fs::write(&weights, &bytes).unwrap();
    let output = llama_trace([Path::new("info"), Path::new("--model"), folder.path()]);
    assert_eq!(output.status.code(), Some(3));
    assert!(
        stderr(&output).contains("`torch._utils._rebuild_tensor_vX`, which is refused"),
        "{}",
        stderr(&output)
    );
}
