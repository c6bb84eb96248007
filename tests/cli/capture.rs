//! Folders of other runtimes: what transformers ran agrees with us, and what is broken in it is found.

use std::fs;
use std::path::Path;

use ndarray::{ArrayD, Axis};
use ndarray_npy::{ReadNpyExt, WriteNpyExt};
use serde_json::Value;
use tempfile::TempDir;

use super::{fixture, llama_trace, ok, stderr, stdout};

/// An export of the same run, and a copy of the captured folder.
fn folders() -> (TempDir, String, String) {
    let folder = TempDir::new().unwrap();
    let (a, b) = (folder.path().join("a"), folder.path().join("b"));
    let model = fixture("golden/gqa");
    let args = ["export", "--ids", "1,5,9,13,17,21", "-n", "2", "--model", model.to_str().unwrap(), "--out"];
    ok(&llama_trace(args.into_iter().chain([a.to_str().unwrap()])));
    copy(&fixture("capture/gqa"), &b);
    let [a, b] = [a, b].map(|path| path.to_str().unwrap().to_owned());
    (folder, a, b)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::write(to, fs::read(entry.path()).unwrap()).unwrap();
        }
    }
}

fn diff(args: &[&str]) -> (i32, Value) {
    let model = fixture("golden/gqa");
    let output = llama_trace(
        ["diff", "--format", "json", "--model", model.to_str().unwrap()]
            .into_iter()
            .chain(args.iter().copied()),
    );
    let report = serde_json::from_str(&stdout(&output)).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    (output.status.code().unwrap(), report)
}

fn values(folder: &str, file: &str) -> ArrayD<f32> {
    ArrayD::read_npy(fs::File::open(Path::new(folder).join(file)).unwrap()).unwrap()
}

fn write(folder: &str, file: &str, values: &ArrayD<f32>) {
    let path = Path::new(folder).join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    values.as_standard_layout().write_npy(fs::File::create(path).unwrap()).unwrap();
}

#[test]
fn what_transformers_ran_agrees_with_us_within_the_measured_tolerance_either_way() {
    let (_folder, a, b) = folders();
    for pair in [[&*a, &*b], [&*b, &*a]] {
        let (code, report) = diff(&pair);
        assert_eq!((code, &report["same"]), (0, &true.into()), "{report}");
        assert!(report["smallest_tolerance"].as_f64().unwrap() < 1e-6, "{report}");
    }
    let (_, report) = diff(&[&a, &b]);
    let missing: Vec<_> = report["missing"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(missing.contains(&"p0/L0/scores") && !missing.contains(&"p1/L2/xk_rope"), "{missing:?}");
    let by_table = llama_trace(["diff", &a, &b]);
    assert!(ok(&by_table).contains("The same"));
}

#[test]
fn what_is_broken_in_a_captured_folder_is_found_at_its_address_and_named() {
    let (_folder, a, b) = folders();
    // RoPE's pairs as neighbours, in what the script saw of the second layer.
    let angles = ["cos", "sin"].map(|part| values(&b, &format!("pass_000/rope_{part}.npy")));
    let x = values(&b, "pass_000/layer_01/xq.npy");
    let mut wrong = x.clone();
    for (t, mut row) in wrong.axis_iter_mut(Axis(0)).enumerate() {
        for at in (0..row.len()).step_by(2) {
            let (i, [first, second]) = (at % 8 / 2, [x[[t, at]], x[[t, at + 1]]]);
            let [cos, sin] = [angles[0][[t, i]], angles[1][[t, i]]];
            (row[[at]], row[[at + 1]]) = (first * cos - second * sin, first * sin + second * cos);
        }
    }
    write(&b, "pass_000/layer_01/xq_rope.npy", &wrong);
    let (code, report) = diff(&[&a, &b]);
    assert_eq!(code, 1);
    assert!(report["first"]["address"].as_str().unwrap().starts_with("p0/L1/xq_rope["), "{report}");
    assert_eq!(report["diagnosis"][0]["name"], "rope_pairing", "{report}");
    // Another setting is a cause before all stages.
    let file = Path::new(&b).join("capture.toml");
    let text = fs::read_to_string(&file).unwrap().replace("rope_theta = 2000.0", "rope_theta = 10000.0");
    fs::write(&file, text).unwrap();
    let (_, report) = diff(&[&a, &b]);
    let first = &report["first"];
    assert_eq!((&first["kind"], &first["address"]), (&"artifact".into(), &"config.rope_theta".into()));
}

#[test]
fn a_folder_that_lies_otherwise_is_read_by_its_map() {
    let (_folder, a, b) = folders();
    let at = |layer: usize, stage: &str| format!("pass_000/layer_{layer:02}/{stage}.npy");
    for layer in 0..3 {
        // Heads first, with a batch; queries, keys and values in one; pairs as neighbours; a residual before its sum;
        // a norm before its weight.
        let turned = values(&b, &at(layer, "xq_rope")).into_shape_with_order(vec![6, 4, 8]).unwrap();
        let turned = turned.permuted_axes(vec![1, 0, 2]).insert_axis(Axis(0));
        write(&b, &format!("own/0.{layer}.turned.npy"), &turned);
        let qkv = ["xq", "xk", "xv"].map(|stage| values(&b, &at(layer, stage)));
        let fused = ndarray::concatenate(Axis(1), &qkv.each_ref().map(|part| part.view())).unwrap();
        write(&b, &format!("own/0.{layer}.qkv.npy"), &fused);
        let before = values(&b, &at(layer, "ffn_residual")) - values(&b, &at(layer, "ffn_down"));
        write(&b, &format!("own/0.{layer}.before.npy"), &before);
        let keys = values(&b, &at(layer, "xk_rope")).into_shape_with_order(vec![6, 2, 2, 4]).unwrap();
        let pairs = keys.permuted_axes(vec![0, 1, 3, 2]).as_standard_layout().into_owned();
        write(&b, &format!("own/0.{layer}.pairs.npy"), &pairs.into_shape_with_order(vec![6, 16]).unwrap());
        let weight = ArrayD::from_elem(vec![32], 2.0_f32);
        write(&b, &format!("own/0.{layer}.weight.npy"), &weight);
        write(&b, &format!("own/0.{layer}.norm.npy"), &(values(&b, &at(layer, "ffn_norm")) / 2.0));
        for stage in ["xq", "xk", "xv", "xq_rope", "xk_rope", "ffn_residual", "ffn_norm"] {
            fs::remove_file(Path::new(&b).join(at(layer, stage))).unwrap();
        }
    }
    fs::remove_dir_all(Path::new(&b).join("pass_001")).unwrap();
    let logits = values(&b, "pass_000/logits.npy");
    write(&b, "pass_000/logits.npy", &logits.slice_axis(Axis(0), ndarray::Slice::from(5..)).to_owned());
    let map = "\n[stages]
xq = { file = 'own/{pass}.{layer}.qkv.npy', columns = [0, 32] }
xk = { file = 'own/{pass}.{layer}.qkv.npy', columns = [32, 48] }
xv = { file = 'own/{pass}.{layer}.qkv.npy', columns = [48, 64] }
xq_rope = { file = 'own/{pass}.{layer}.turned.npy', axes = ['batch', 'head', 'token', 'head_dim'] }
xk_rope = { file = 'own/{pass}.{layer}.pairs.npy', pairs = 'neighbours_to_halves' }
ffn_residual = { file = 'own/{pass}.{layer}.before.npy', plus = 'pass_000/layer_0{layer}/ffn_down.npy' }
ffn_norm = { file = 'own/{pass}.{layer}.norm.npy', times = 'own/{pass}.{layer}.weight.npy' }
";
    let file = Path::new(&b).join("capture.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.clone() + map).unwrap();
    let (code, report) = diff(&[&a, &b]);
    assert_eq!((code, &report["same"]), (0, &true.into()), "{report}");
    let missing: Vec<_> = report["missing"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(missing.iter().all(|site| site.starts_with("p1/") || !site.contains("xk_rope")), "{missing:?}");
    assert!(missing.contains(&"p1/L0/xq") && !missing.contains(&"p0/L1/ffn_residual"), "{missing:?}");
    // Each entry is needed: without one the stage is another or is missing.
    let wrong = map.replace(", pairs = 'neighbours_to_halves'", "");
    fs::write(&file, text.clone() + &wrong).unwrap();
    let (code, report) = diff(&[&a, &b]);
    assert_eq!(code, 1);
    assert!(report["first"]["address"].as_str().unwrap().starts_with("p0/L0/xk_rope["), "{report}");
    fs::write(&file, text + "[stages]\nxq = { file = '/etc/passwd' }\n").unwrap();
    let output = llama_trace(["diff", &a, &b]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("not below the folder"));
}

#[test]
fn the_script_is_in_the_program() {
    let script = ok(&llama_trace(["capture", "transformers"]));
    assert_eq!(script, fs::read_to_string(fixture("capture/transformers.py")).unwrap());
}
