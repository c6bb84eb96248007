//! Captured folders. A run of transformers agrees with this program, and a damaged value in it is found.

use std::fs;
use std::path::Path;

use ndarray::{ArrayD, Axis};
use ndarray_npy::{ReadNpyExt, WriteNpyExt};
use serde_json::Value;
use tempfile::TempDir;

use super::{fixture, llama_trace, ok, stderr, stdout};

/// Returns an export of the same run, and a copy of the captured folder.
fn folders() -> (TempDir, String, String) {
    folders_of("2")
}

/// Returns the same folders, but the export sampled this many tokens.
fn folders_of(tokens: &str) -> (TempDir, String, String) {
    let folder = TempDir::new().unwrap();
    let (a, b) = (folder.path().join("a"), folder.path().join("b"));
    let model = fixture("golden/gqa");
    let args =
        ["export", "--ids", "1,5,9,13,17,21", "-n", tokens, "--model", model.to_str().unwrap(), "--out"];
    ok(&llama_trace(args.into_iter().chain([a.to_str().unwrap()])));
    copy(&fixture("capture/transformers/gqa"), &b);
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
fn a_captured_run_of_transformers_agrees_as_a_and_as_b() {
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
fn a_mistake_in_a_captured_folder_is_found_and_named() {
    let (_folder, a, b) = folders();
    // In the second layer of the captured run, RoPE rotates neighbouring pairs.
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
    // A different setting in the configuration is reported as the cause, before any stage.
    let file = Path::new(&b).join("capture.toml");
    let text = fs::read_to_string(&file).unwrap().replace("rope_theta = 2000.0", "rope_theta = 10000.0");
    fs::write(&file, text).unwrap();
    let (_, report) = diff(&[&a, &b]);
    let first = &report["first"];
    assert_eq!((&first["kind"], &first["address"]), (&"artifact".into(), &"config.rope_theta".into()));
}

#[test]
fn a_map_reads_a_folder_with_another_layout() {
    let (_folder, a, b) = folders();
    let at = |layer: usize, stage: &str| format!("pass_000/layer_{layer:02}/{stage}.npy");
    for layer in 0..3 {
        // Heads come first, with a batch axis. Queries, keys and values are in one tensor. RoPE's pairs are neighbours.
        // A residual stream lacks the last sum, and a norm lacks its weight.
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
    // The map lists the second pass, but the folder has no file of it.
    let (code, report) = diff(&[&a, &b]);
    assert_eq!((code, &report["same"], &report["first"]), (3, &false.into(), &Value::Null), "{report}");
    assert!(report["notes"].to_string().contains("nothing of p1 is compared"), "{report}");
    let missing: Vec<_> = report["missing"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(missing.iter().all(|site| site.starts_with("p1/") || !site.contains("xk_rope")), "{missing:?}");
    assert!(missing.contains(&"p1/L0/xq") && !missing.contains(&"p0/L1/ffn_residual"), "{missing:?}");
    // The report names no file without a stage. Each file is a whole stage, a part of one, or a factor of one.
    assert!(!report["notes"].to_string().contains("to no stage"), "{report}");
    // Each entry of the map is needed. Without one, the values of the stage differ or the stage is missing.
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

/// Changes the folder's capture.toml, and its values to match.
fn mapped(b: &str, change: impl Fn(&str) -> String) {
    let file = Path::new(b).join("capture.toml");
    fs::write(&file, change(&fs::read_to_string(&file).unwrap())).unwrap();
}

const STAGES: [&str; 16] = [
    "attn_norm",
    "xq",
    "xk",
    "xv",
    "xq_rope",
    "xk_rope",
    "attn_heads",
    "attn_output",
    "attn_residual",
    "ffn_norm",
    "ffn_gate",
    "ffn_silu",
    "ffn_up",
    "ffn_hidden",
    "ffn_down",
    "ffn_residual",
];

fn same(a: &str, b: &str) -> Value {
    let (code, report) = diff(&[a, b]);
    assert_eq!((code, &report["same"]), (0, &true.into()), "{report}");
    report
}

#[test]
fn a_sequence_of_a_padded_batch_is_read_without_the_padding() {
    let (_folder, a, b) = folders();
    // Makes the run the second sequence of a batch of two, with three rows of padding before its tokens and one after
    // them.
    let tokens = |pass: usize| if pass == 0 { 6 } else { 1 };
    let padded = |values: &ArrayD<f32>, axis: usize, rows: usize| {
        let filled = |rows: usize| {
            let mut shape = values.shape().to_vec();
            shape[axis] = rows;
            ArrayD::from_elem(shape, 9.0_f32)
        };
        let (before, after) = (filled(3), filled(if rows == 1 { 0 } else { 1 }));
        ndarray::concatenate(Axis(axis), &[before.view(), values.view(), after.view()]).unwrap()
    };
    for layer in 0..3 {
        for stage in STAGES {
            let file = format!("pass_000/layer_{layer:02}/{stage}.npy");
            let values = padded(&values(&b, &file), 0, tokens(0)).insert_axis(Axis(0));
            let other = ArrayD::from_elem(values.shape().to_vec(), -4.0_f32);
            write(&b, &file, &ndarray::concatenate(Axis(0), &[other.view(), values.view()]).unwrap());
        }
        // The keys in `softmax` have the same padding as the queries.
        let file = format!("pass_000/layer_{layer:02}/softmax.npy");
        let values = padded(&padded(&values(&b, &file), 1, 6), 2, 6).insert_axis(Axis(0));
        write(&b, &file, &ndarray::concatenate(Axis(0), &[values.view(), values.view()]).unwrap());
    }
    for stage in ["embedding", "rope_cos", "rope_sin", "final_norm", "logits"] {
        let file = format!("pass_000/{stage}.npy");
        let values = padded(&values(&b, &file), 0, 6).insert_axis(Axis(0));
        let other = ArrayD::from_elem(values.shape().to_vec(), 0.5_f32);
        write(&b, &file, &ndarray::concatenate(Axis(0), &[other.view(), values.view()]).unwrap());
    }
    assert_eq!(diff(&[&a, &b]).0, 1, "the padded files have another shape");
    let after = "tokens = [1, 5, 9, 13, 17, 21]\npadding = 3\npadding_after = 1\nbatch = 1";
    mapped(&b, |text| text.replace("tokens = [1, 5, 9, 13, 17, 21]", after));
    let report = same(&a, &b);
    let missing: Vec<_> = report["missing"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(
        !missing.iter().any(|site| site.ends_with("ffn_silu") || site.ends_with("softmax")),
        "{missing:?}"
    );
    mapped(&b, |text| text.replace("batch = 1", "batch = 7"));
    let output = llama_trace(["diff", &a, &b]);
    assert!(stdout(&output).contains("numbered from 0: there is no number 7"), "{}", stdout(&output));
}

#[test]
fn padding_that_does_not_fit_a_file_is_reported() {
    for (more, said) in [
        ("padding = 2", "it has 6 rows, but 6 tokens with 2 rows of padding before and 0 after them make 8"),
        (
            "padding = 2\npadding_after = 9",
            "but 6 tokens with 2 rows of padding before and 9 after them make 17",
        ),
        (
            "padding = 99999999999",
            "but 6 tokens with 99999999999 rows of padding before and 0 after them make 100000000005",
        ),
        ("batch = 3", "it has no batch axis, but capture.toml has batch = 3"),
    ] {
        let (_folder, a, b) = folders();
        let tokens = "tokens = [1, 5, 9, 13, 17, 21]";
        mapped(&b, |text| text.replace(tokens, &format!("{tokens}\n{more}")));
        let output = llama_trace(["diff", &a, &b]);
        assert_ne!(output.status.code(), Some(0), "{more}: {}", stdout(&output));
        assert!(stdout(&output).contains(said), "{more}: {}", stdout(&output));
    }
}

#[test]
fn files_of_16_bits_get_the_tolerance_of_their_precision() {
    let (_folder, a, b) = folders();
    for (kind, name) in [("<f2", "f16"), ("|V2", "bf16")] {
        let c = Path::new(&b).with_extension(name);
        copy(Path::new(&b), &c);
        let c = c.to_str().unwrap().to_owned();
        for layer in 0..3 {
            for stage in STAGES {
                let file = format!("pass_000/layer_{layer:02}/{stage}.npy");
                let values = values(&b, &file);
                let bits = |&x: &f32| match name {
                    "f16" => half::f16::from_f32(x).to_le_bytes(),
                    _ => half::bf16::from_f32(x).to_le_bytes(),
                };
                let shape: Vec<_> = values.shape().iter().map(|length| format!("{length}, ")).collect();
                let header = format!(
                    "{{'descr': '{kind}', 'fortran_order': False, 'shape': ({}), }}\n",
                    shape.concat()
                );
                let mut bytes = [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..]].concat();
                bytes.extend_from_slice(header.as_bytes());
                values.iter().for_each(|x| bytes.extend_from_slice(&bits(x)));
                fs::write(Path::new(&c).join(&file), bytes).unwrap();
            }
        }
        // If the map states float32, the difference exceeds the tolerance.
        let (code, report) = diff(&[&a, &c]);
        assert_eq!(code, 1, "{report}");
        assert!(report["diagnosis"].to_string().contains("bf16_rounding") || name == "f16", "{report}");
        mapped(&c, |text| text.replace("precision = \"f32\"", &format!("precision = \"{name}\"")));
        same(&a, &c);
    }
}

#[test]
fn a_run_of_only_the_first_layers_is_compared_up_to_there() {
    let (_folder, a, b) = folders();
    // Simulates a run that stopped after some layers: the stages after the layers have other values.
    for stage in ["final_norm", "logits"] {
        let file = format!("pass_000/{stage}.npy");
        write(&b, &file, &(values(&b, &file) * 3.0));
    }
    for pass in ["pass_000", "pass_001"] {
        fs::remove_dir_all(Path::new(&b).join(pass).join("layer_02")).unwrap();
    }
    mapped(&b, |text| text.replace("layers = 3\n", ""));
    let (code, report) = diff(&[&a, &b]);
    assert_eq!((code, report["first"]["address"].as_str().unwrap().starts_with("p0/final_norm")), (1, true));
    mapped(&b, |text| text.replace("[config]", "layers = 2\n\n[config]"));
    let report = same(&a, &b);
    let missing: Vec<_> = report["missing"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(missing.contains(&"p0/L2/xq") && missing.contains(&"p0/logits"), "{missing:?}");
    assert!(!missing.contains(&"p0/L1/ffn_residual"), "{missing:?}");
}

#[test]
fn a_map_subtracts_a_residual_from_the_captured_values() {
    let (_folder, a, b) = folders();
    for pass in 0..2 {
        for layer in 0..3 {
            let at = |stage: &str| format!("pass_{pass:03}/layer_{layer:02}/{stage}.npy");
            let sum = values(&b, &at("ffn_residual"));
            write(&b, &at("ffn_down"), &sum);
        }
    }
    let (_, report) = diff(&[&a, &b]);
    assert!(report["first"]["address"].as_str().unwrap().starts_with("p0/L0/ffn_down"), "{report}");
    mapped(&b, |text| {
        let file = |stage: &str| format!("pass_{{pass:03}}/layer_{{layer:02}}/{stage}.npy");
        text.to_owned()
            + &format!(
                "\n[stages]\nffn_down = {{ file = '{}', minus = '{}' }}\n",
                file("ffn_down"),
                file("attn_residual")
            )
    });
    same(&a, &b);
}

#[test]
fn odd_files_in_a_captured_folder_are_reported_without_a_crash() {
    let (folder, a, b) = folders();
    let (file, other) = ("pass_000/layer_01/ffn_up.npy", "pass_000/layer_00/ffn_up.npy");
    let (whole, before) = (values(&b, file), values(&b, other));
    let bytes = fs::read(Path::new(&b).join(file)).unwrap();
    let written = |values: &ArrayD<f32>| {
        let mut bytes = Vec::new();
        values.write_npy(&mut bytes).unwrap();
        bytes
    };
    let mut nan = whole.clone();
    nan[[2, 3]] = f32::NAN;
    let mut infinite = whole.clone();
    infinite[[2, 3]] = f32::INFINITY;
    // The header claims a shape that is larger than the memory.
    let claims = |shape: &str| {
        let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n");
        [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), &[0; 64]].concat()
    };
    let turned = whole.clone().reversed_axes().as_standard_layout().into_owned();
    let cases: [(&str, Vec<u8>, i32, &str); 12] = [
        (
            "empty",
            Vec::new(),
            3,
            "Cannot be read: p0/L1/ffn_up: B: pass_000/layer_01/ffn_up.npy: the file is empty",
        ),
        ("cut", bytes[..bytes.len() - 5].to_vec(), 3, "Cannot be read: p0/L1/ffn_up: B: "),
        ("cut in its header", bytes[..20].to_vec(), 3, "Cannot be read: p0/L1/ffn_up: B: "),
        ("text", b"these are no numbers".to_vec(), 3, "Cannot be read: p0/L1/ffn_up: B: "),
        ("too large", claims("(1152921504606846976, 4)"), 3, "Cannot be read: p0/L1/ffn_up: B: "),
        (
            "too large to count",
            claims("(99999999999999, 99999999999999)"),
            3,
            "Cannot be read: p0/L1/ffn_up: B: ",
        ),
        ("zero", written(&(&whole * 0.0)), 1, "B's p0/L1/ffn_up: every value is 0"),
        (
            "one number",
            written(&ArrayD::from_elem(whole.shape(), 3.0)),
            1,
            "B's p0/L1/ffn_up: every value is 3",
        ),
        ("NaN", written(&nan), 1, "B's p0/L1/ffn_up: 1 of 336 values are NaN"),
        (
            "infinite",
            written(&infinite),
            1,
            "B's p0/L1/ffn_up: 1 of 336 values are +inf; A's values are all finite",
        ),
        ("repeated", written(&before), 1, "B's p0/L1/ffn_up has the same values as B's p0/L0/ffn_up"),
        ("turned", written(&turned), 1, "it has the shape (56, 6) and not (6, 56)"),
    ];
    let model = fixture("golden/gqa");
    let model = model.to_str().unwrap();
    let check = |what: &str, code: i32, said: &str| {
        for more in [&["--model", model][..], &[]] {
            let output = llama_trace(["diff", &*a, &*b].iter().chain(more).copied());
            assert_eq!(output.status.code(), Some(code), "{what}: {}", stderr(&output));
            assert!(stdout(&output).contains(said), "{what}: {said}\n{}", stdout(&output));
            if code == 1 {
                assert!(stdout(&output).contains("First difference: stage  p0/L1/ffn_up"), "{what}");
            }
            let json = llama_trace(["diff", &*a, &*b, "--format", "json"].iter().chain(more).copied());
            let report: Value = serde_json::from_str(&stdout(&json)).unwrap();
            assert_eq!(report["missing"].to_string().contains("p0/L1/ffn_up"), code != 1, "{what}: {report}");
        }
    };
    let at = Path::new(&b).join(file);
    for (what, bytes, code, said) in cases {
        fs::write(&at, bytes).unwrap();
        check(what, code, said);
    }
    fs::remove_file(&at).unwrap();
    check("missing", 0, "Missing in B:");
    fs::create_dir(&at).unwrap();
    check("a folder", 3, "Cannot be read: p0/L1/ffn_up: B: ");
    fs::remove_dir(&at).unwrap();
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("/dev/zero", &at).unwrap();
        check("a file without an end", 3, "Cannot be read: p0/L1/ffn_up: B: ");
        fs::remove_file(&at).unwrap();
        std::os::unix::fs::symlink("ffn_up.npy", &at).unwrap();
        check("a link to itself", 3, "Cannot be read: p0/L1/ffn_up: B: ");
    }
    // `--suggest-map` reads all these files too.
    let suggested = llama_trace(["diff", &*a, &*b, "--suggest-map"]);
    assert!(ok(&suggested).contains("# sure"), "{}", stderr(&suggested));
    drop(folder);
}

/// Writes the folder's stages to `own` under other names and in other layouts, as another project may.
fn renamed(b: &str, own: &str) {
    let write = |file: &str, values: &ArrayD<f32>| write(own, file, values);
    for layer in 0..3 {
        let at = |stage: &str| values(b, &format!("pass_000/layer_{layer:02}/{stage}.npy"));
        let block = format!("blk{layer:02}");
        // Heads come first, with a batch axis. Queries, keys and values are in one tensor. RoPE's pairs are neighbours.
        // Components come before tokens.
        let turned = at("xq_rope").into_shape_with_order(vec![6, 4, 8]).unwrap();
        write(&format!("{block}/turned_q.npy"), &turned.permuted_axes(vec![1, 0, 2]).insert_axis(Axis(0)));
        let qkv = ["xq", "xk", "xv"].map(at);
        let fused = ndarray::concatenate(Axis(1), &qkv.each_ref().map(|part| part.view())).unwrap();
        write(&format!("{block}/qkv.npy"), &fused);
        let keys = at("xk_rope").into_shape_with_order(vec![6, 2, 2, 4]).unwrap();
        let pairs = keys.permuted_axes(vec![0, 1, 3, 2]).as_standard_layout().into_owned();
        write(&format!("{block}/turned_k.npy"), &pairs.into_shape_with_order(vec![6, 16]).unwrap());
        write(&format!("{block}/mixed.npy"), &at("attn_output").reversed_axes());
        let weight = ArrayD::from_shape_fn(vec![32], |i| 0.5 + i[0] as f32 / 16.0);
        write(&format!("{block}/norm2.weight.npy"), &weight);
        write(&format!("{block}/norm2.npy"), &(at("ffn_norm") / &weight));
        let [gate, up] = ["ffn_gate", "ffn_up"].map(at);
        write(
            &format!("{block}/gate_up.npy"),
            &ndarray::concatenate(Axis(1), &[gate.view(), up.view()]).unwrap(),
        );
        for (stage, name) in [
            ("attn_norm", "norm1"),
            ("softmax", "probs"),
            ("attn_residual", "mid"),
            ("ffn_down", "mlp"),
            ("ffn_hidden", "act"),
        ] {
            write(&format!("{block}/{name}.npy"), &at(stage));
        }
    }
    write("tokens_in.npy", &values(b, "pass_000/embedding.npy").insert_axis(Axis(0)));
    write("head.npy", &values(b, "pass_000/logits.npy"));
    write("noise.npy", &ArrayD::from_shape_fn(vec![6, 32], |i| ((i[0] * 37 + i[1] * 101) % 17) as f32 - 8.0));
}

/// The map that is suggested for the folder, with the comment after each stage.
fn suggested(a: &str, own: &str) -> String {
    let output = llama_trace(["diff", a, own, "--suggest-map"]);
    let text = ok(&output);
    fs::write(Path::new(own).join("capture.toml"), &text).unwrap();
    text
}

#[test]
fn a_map_is_proposed_for_other_names_and_layouts_and_diff_passes() {
    let (folder, a, b) = folders_of("1");
    let own = folder.path().join("own");
    let own = own.to_str().unwrap();
    renamed(&b, own);
    let text = suggested(&a, own);
    for expected in [
        "embedding = { file = \"tokens_in.npy\" }  # sure",
        "attn_norm = { file = \"blk{layer:02}/norm1.npy\" }  # sure",
        "xq = { file = \"blk{layer:02}/qkv.npy\", columns = [0,32] }  # sure",
        "xv = { file = \"blk{layer:02}/qkv.npy\", columns = [48,64] }  # sure",
        "xq_rope = { file = \"blk{layer:02}/turned_q.npy\", axes = [\"batch\",\"head\",\"token\",\"head_dim\"] }  # sure",
        "xk_rope = { file = \"blk{layer:02}/turned_k.npy\", pairs = \"neighbours_to_halves\" }  # sure",
        "attn_output = { file = \"blk{layer:02}/mixed.npy\", axes = [\"dim\",\"token\"] }  # sure",
        "ffn_norm = { file = \"blk{layer:02}/norm2.npy\", times = \"blk{layer:02}/norm2.weight.npy\" }  # sure",
        "ffn_up = { file = \"blk{layer:02}/gate_up.npy\", columns = [56,112] }  # sure",
        "attn_residual = { file = \"blk{layer:02}/mid.npy\" }  # sure",
        "ffn_down = { file = \"blk{layer:02}/mlp.npy\" }  # sure",
        "head_dim = 8",
        "in 3 places",
        "# Files that match no stage: noise.npy",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    assert!(!text.contains("not sure"), "{text}");
    let report = same(&a, own);
    let missing: Vec<_> = report["missing"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(
        missing.iter().all(|site| !site.starts_with("p0/L1/x") && !site.contains("p0/logits")),
        "{missing:?}"
    );
}

#[test]
fn a_map_for_a_run_with_a_mistake_says_which_lines_are_unsure() {
    let (folder, a, b) = folders();
    let own = folder.path().join("own");
    let own = own.to_str().unwrap();
    renamed(&b, own);
    // Everything after the norm of the second layer is slightly different.
    for layer in 1..3 {
        for name in ["mid", "mlp", "act", "gate_up"] {
            let file = format!("blk{layer:02}/{name}.npy");
            let wrong = values(own, &file).mapv(|x| x * 1.2 + 0.1);
            write(own, &file, &wrong);
        }
    }
    let text = suggested(&a, own);
    assert!(text.contains("largest error"), "{text}");
    assert!(text.contains("attn_residual = { file = \"blk{layer:02}/mid.npy\" }"), "{text}");
    let (code, report) = diff(&[&a, own]);
    assert_eq!(code, 1);
    assert!(
        report["first"]["address"].as_str().unwrap().starts_with("p0/L1/attn_residual["),
        "{report}\n{text}"
    );
}

#[test]
fn a_map_is_proposed_for_a_padded_16_bit_batch_but_not_for_unrelated_files() {
    let (folder, a, b) = folders_of("1");
    let own = folder.path().join("own");
    let own = own.to_str().unwrap();
    for (stage, name) in [("embedding", "in"), ("final_norm", "norm"), ("logits", "out")] {
        let kept = values(&b, &format!("pass_000/{stage}.npy"));
        let before = ArrayD::from_elem(vec![2, kept.shape()[1]], 7.0_f32);
        let row = ndarray::concatenate(Axis(0), &[before.view(), kept.view()]).unwrap().insert_axis(Axis(0));
        let other = row.mapv(|x| 1.0 - x);
        let batch = ndarray::concatenate(Axis(0), &[other.view(), row.view()]).unwrap();
        write(own, &format!("{name}.npy"), &batch.mapv(|x| half::bf16::from_f32(x).to_f32()));
    }
    let text = suggested(&a, own);
    for expected in
        ["precision = \"bf16\"", "padding = 2\n", "batch = 1\n", "logits = { file = \"out.npy\" }"]
    {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    same(&a, own);
    // Makes the sequence the first one of a batch, with and without padding after it.
    for after in [0, 3] {
        let own = folder.path().join(format!("first{after}"));
        let own = own.to_str().unwrap();
        for (stage, name) in [("embedding", "in"), ("final_norm", "norm"), ("logits", "out")] {
            let kept = values(&b, &format!("pass_000/{stage}.npy"));
            let more = ArrayD::from_elem(vec![after, kept.shape()[1]], 7.0_f32);
            let row =
                ndarray::concatenate(Axis(0), &[kept.view(), more.view()]).unwrap().insert_axis(Axis(0));
            let other = row.mapv(|x| 1.0 - x);
            write(
                own,
                &format!("{name}.npy"),
                &ndarray::concatenate(Axis(0), &[row.view(), other.view()]).unwrap(),
            );
        }
        let text = suggested(&a, own);
        for expected in ["batch = 0\n", "logits = { file = \"out.npy\" }  # sure"] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
        same(&a, own);
    }
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    write(empty.to_str().unwrap(), "x.npy", &ArrayD::from_elem(vec![6, 32], 1.0_f32));
    let output = llama_trace(["diff", &a, empty.to_str().unwrap(), "--suggest-map"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("no file of the folder has the values"), "{}", stderr(&output));
}

/// A captured folder may be the reference if the sizes of the model are known: from its map, or from `--model`.
#[test]
fn a_captured_folder_can_be_the_reference() {
    let (folder, _, b) = folders_of("1");
    let own = folder.path().join("own");
    let own = own.to_str().unwrap();
    renamed(&b, own);
    let text = suggested(&b, own);
    assert!(text.contains("attn_norm = { file = \"blk{layer:02}/norm1.npy\" }  # sure"), "{text}");
    assert!(text.contains("xv = { file = \"blk{layer:02}/qkv.npy\", columns = [48,64] }  # sure"), "{text}");
    mapped(&b, |text| text.replace("vocab = ", "# vocab = "));
    let output = llama_trace(["diff", &b, own, "--suggest-map"]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("does not say which model") && said.contains("[config] without vocab"), "{said}");
    assert!(said.contains("next: add --model"), "{said}");
    let model = fixture("golden/gqa");
    let output = llama_trace(["diff", &b, own, "--model", model.to_str().unwrap(), "--suggest-map"]);
    assert_eq!(ok(&output), text);
}

/// Runs the script on two stub models. In the first, the argument for the cache has transformers' old name, in the
/// second the new name.
#[test]
fn the_script_uses_the_models_name_of_the_cache_argument() {
    const STUB: &str = r#"
import sys, types
class Tensor:
    def __init__(self, rows): self.rows = rows
    def __getitem__(self, at): return self
    def argmax(self): return 7
    def float(self): return self
    def cpu(self): return self
    def numpy(self): return self.rows
class Grad:
    def __enter__(self): pass
    def __exit__(self, *_): pass
torch = types.ModuleType("torch")
torch.tensor = lambda rows, device=None: rows
torch.no_grad = Grad
for name, module in {"torch": torch, "numpy": types.ModuleType("numpy"), "transformers": types.ModuleType("transformers")}.items():
    sys.modules[name] = module
script = types.ModuleType("script")
script.__file__ = sys.argv[1]
exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"), script.__dict__)
def check(name):
    seen = []
    def forward(ids, **named):
        assert set(named) == {"use_cache", name}, named
        seen.append((ids, named[name]))
        return types.SimpleNamespace(logits=Tensor(ids), **{name: len(seen)})
    scope = {}
    exec(f"def forward(self, ids=None, {name}=None, use_cache=None): pass", scope)
    class Model:
        model = types.SimpleNamespace(embed_tokens=types.SimpleNamespace(weight=types.SimpleNamespace(device=None)))
        __call__ = staticmethod(forward)
    Model.forward = scope["forward"]
    passes, _ = script.run(Model(), [1, 2], 3)
    assert seen == [([[1, 2]], None), ([[7]], 1), ([[7]], 2)], seen
    assert passes == [(0, [1, 2]), (2, [7]), (3, [7])], passes
check("cache")
check("past_key_values")
print("both")
"#;
    let python = std::process::Command::new("python3")
        .args(["-c", STUB])
        .arg(fixture("capture/transformers.py"))
        .output();
    match python {
        Ok(output) => assert_eq!(ok(&output), "both\n"),
        Err(error) => super::common::skip(&format!("python3 cannot be run: {error}")),
    }
}

#[test]
fn the_program_contains_the_scripts_and_untested_ones_say_so() {
    for runtime in ["transformers", "llama-cpp", "transformer-lens", "vllm"] {
        let script = ok(&llama_trace(["capture", runtime]));
        assert_eq!(script, fs::read_to_string(fixture(&format!("capture/{runtime}.py"))).unwrap());
        let tested = fixture(&format!("capture/{runtime}/gqa/capture.toml")).exists();
        let first = script.lines().next().unwrap();
        assert_eq!(first.starts_with("\"\"\"No test ran this script."), !tested, "{runtime}: {first}");
        assert!(!tested || script.contains("tests/replay/captured.rs tests the script"), "{runtime}");
    }
}
