//! Runs whose stages are larger than the process's memory. The program writes and summarises such stages without
//! holding them in memory.

use std::fs;

use super::child;
use super::common::models;

/// Layers, D, F, heads, V. With [`TOKENS`], the logits take 308 MB, and four stages of attention take 77 MB each at the
/// same time. A child has 256 MiB beyond its files.
const MODEL: [usize; 5] = [1, 32, 32, 16, 70_000];
const TOKENS: usize = 1100;
const STAGES: &str = "qk,scores,masked_scores,softmax,logits";

#[test]
fn export_and_log_values_never_hold_a_whole_large_stage() {
    let folder = tempfile::tempdir().unwrap();
    models::zeros(folder.path(), MODEL);
    let ids: Vec<String> = (0..TOKENS).map(|i| (i * 61 % 70_000).to_string()).collect();
    let (model, ids, out) = (folder.path().to_str().unwrap(), ids.join(","), folder.path().join("out/dump"));
    fs::create_dir(folder.path().join("out")).unwrap();
    let weights = folder.path().join("model.safetensors");
    let run = ["--model", model, "--ids", &ids, "--stages", STAGES];

    let end = child::run(&[&["export", "--out", out.to_str().unwrap()], &run[..]].concat(), &[&weights]);
    assert_eq!((end.wrong(), end.code), (None, Some(0)), "{}", end.stderr);
    let size = |name: &str| fs::metadata(out.join("pass_000").join(name)).unwrap().len() as usize;
    assert_eq!(size("logits.npy"), 128 + 4 * TOKENS * 70_000);
    assert_eq!(size("layer_00/softmax.npy"), 128 + 4 * 16 * TOKENS * TOKENS);
    fs::remove_dir_all(&out).unwrap();

    let end = child::run(&[&["log", "--values"], &run[..]].concat(), &[&weights]);
    assert_eq!((end.wrong(), end.code), (None, Some(0)), "{}", end.stderr);
    assert!(end.stdout.contains("-inf×9671200"), "16 · 1100 · 1099 / 2 keys are hidden: {}", end.stdout);
}
