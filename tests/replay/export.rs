//! Compares the files of an export with whole frames in memory, byte for byte, including the statistics.

use std::fs;

use ndarray_npy::WriteNpyExt;
use serde_json::{Value, json};

use super::*;

fn npy(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    match &frame.data {
        FrameData::F32(array) => array.write_npy(&mut bytes),
        FrameData::I64(array) => array.write_npy(&mut bytes),
        FrameData::I8(array) => array.write_npy(&mut bytes),
    }
    .unwrap();
    bytes
}

/// The manifest's entry of a frame.
fn entry(frame: &Frame) -> Value {
    let (site, stats) = (frame.site, frame.stats());
    json!({
        "file": site.file_name(), "address": site.to_string(), "pass": site.pass, "layer": site.layer, "stage": site.stage.name(),
        "axes": frame.axes.iter().map(|axis| axis.name()).collect::<Vec<_>>(), "shape": frame.shape(),
        "min": stats.min, "max": stats.max, "mean": stats.mean, "std": stats.std,
        "neg_inf": stats.neg_inf, "pos_inf": stats.pos_inf, "nan": stats.nan,
    })
}

#[test]
fn an_export_written_row_by_row_equals_whole_frames() {
    let prompt: Vec<u32> = (0..40).map(|i| i * 7 % 37).collect();
    let ids = prompt.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    for (name, precision, group) in
        [("gqa", "f32", None), ("mistral", "bf16", None), ("qwen3", "q8", Some(32))]
    {
        let cpu = match (precision, group) {
            ("bf16", _) => Cpu::default().with_precision(Precision::Bf16),
            (_, Some(group)) => Cpu::default().with_precision(Precision::Q8 { group }),
            _ => Cpu::default(),
        };
        let (frames, _) = record(&model_in(name, cpu), &prompt);
        let folder = tempfile::tempdir().unwrap();
        let (out, model) = (folder.path().join("dump"), common::fixture(&format!("golden/{name}")));
        let draw = ["--temperature", "0.8", "--top-k", "20", "--top-p", "0.9", "--seed", "3", "-n", "3"];
        let args = ["export", "--model", model.to_str().unwrap(), "--precision", precision, "--ids", &ids];
        let output = common::llama_trace([&args[..], &draw, &["--out", out.to_str().unwrap()]].concat());
        assert!(output.status.success(), "{}", common::stderr(&output));
        let manifest: Value = serde_json::from_slice(&fs::read(out.join("manifest.json")).unwrap()).unwrap();
        let files = manifest["files"].as_array().unwrap();
        assert_eq!(files.len(), frames.len());
        for frame in frames.values() {
            let name = frame.site.file_name();
            assert!(fs::read(out.join(&name)).unwrap() == npy(frame), "{name}");
            let found = files.iter().find(|file| file["file"] == *name).unwrap();
            // The expected entry is parsed in the same way as the manifest.
            assert_eq!(*found, serde_json::from_str::<Value>(&entry(frame).to_string()).unwrap());
        }
    }
}
