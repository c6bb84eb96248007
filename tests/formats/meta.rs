//! Meta's files: their description by `info`, real files, and a pickle that would run code. `tests/formats.rs` compares their
//! logits with those of other formats.

use std::path::{Path, PathBuf};

use crate::common::logits::logits;
use crate::common::{data, fixture, llama_trace, stderr, stdout};
use llama_trace::checkpoint;

fn path(name: &str) -> PathBuf {
    fixture("formats").join(name)
}

/// A copy of the model in one file, with a params.json that scales RoPE.
fn scaled() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (from, to) in [("consolidated.00.pth", "consolidated.00.pth"), ("params.scaled.json", "params.json")]
    {
        std::fs::copy(path("meta/single").join(from), folder.path().join(to)).unwrap();
    }
    folder
}

#[test]
fn info_names_the_format_and_the_source_of_the_scaling() {
    let info = |path: &Path, more: &[&str]| {
        let output = llama_trace(["info", "--model", path.to_str().unwrap()].iter().chain(more));
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let first = |name: &str| info(&path(name), &[]).lines().next().unwrap().to_owned();
    assert!(first("meta/single").contains("Meta's checkpoint, 1 .pth file"));
    assert!(first("meta/single/consolidated.00.pth").contains("1 .pth file"));
    assert!(first("meta/by_dim").contains("2 model-parallel .pth files"));
    assert!(first("meta/by_dim/consolidated.01.pth").contains("2 model-parallel .pth files"));
    assert!(first("llama2c/v1.bin").contains("llama2.c checkpoint, version 1"));
    let folder = scaled();
    let text = info(folder.path(), &[]);
    assert!(text.contains("llama3, factor 8,") && text.contains("converter uses 32"), "{text}");
    assert!(text.contains("neighbours"), "{text}");
    assert!(info(folder.path(), &["--rope-factor", "32"]).contains("llama3, factor 32,"));
    let hugging_face = tempfile::tempdir().unwrap();
    for (from, to) in [("config.scaled.json", "config.json"), ("model.safetensors", "model.safetensors")] {
        std::fs::copy(path("hf/bf16").join(from), hugging_face.path().join(to)).unwrap();
    }
    let text = info(hugging_face.path(), &["--rope-factor", "32"]);
    assert!(text.contains("llama3, factor 32,") && !text.contains("converter"), "{text}");
}

#[test]
fn a_rope_factor_needs_a_model_with_rope_scaling() {
    let refused = |path: &Path, factor: &str| {
        let output = llama_trace(["info", "--model", path.to_str().unwrap(), "--rope-factor", factor]);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    };
    refused(&path("llama2c/v1.bin"), "32");
    refused(&path("meta/single"), "32");
    let folder = scaled();
    refused(folder.path(), "-1");
    refused(folder.path(), "nan");
}

/// A folder with copies of a real model's files under Meta's names.
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
    let checkpoint = checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.config.vocab, 512);
    logits(&checkpoint, &[1, 2, 3]);
}

#[test]
fn the_tokenizer_is_next_to_the_weights_or_one_folder_above() {
    let (Some(folder), Some(tokenizer)) = (demo(), data("stories260K/tok512.bin")) else { return };
    let model = folder.path().to_str().unwrap();
    let run = || llama_trace(["tokenize", "--model", model, "Hello"]);
    assert_eq!(run().status.code(), Some(4), "no tokenizer");
    // A llama2.c file under Meta's name. The content determines the format, not the name.
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
fn a_pickle_that_runs_code_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(path("meta/single/params.json"), folder.path().join("params.json")).unwrap();
    let weights = folder.path().join("consolidated.00.pth");
    let mut bytes = std::fs::read(path("meta/single/consolidated.00.pth")).unwrap();
    // The name of the first function in the pickle is replaced by another name of the same length.
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
