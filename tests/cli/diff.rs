//! `llama-trace diff` as a user runs it.

use std::fs;
use std::path::{Path, PathBuf};

use ndarray::ArrayD;
use ndarray_npy::{ReadNpyExt, WriteNpyExt};
use serde_json::Value;
use tempfile::TempDir;

use super::{command, fixture, llama_trace, models, ok, stderr, stdout};

const IDS: &str = "1,5,9,13,17,21,25,29,33";

fn golden() -> String {
    fixture("golden/gqa").display().to_string()
}

/// A folder written by `export`.
fn exported(folder: &TempDir, name: &str, args: &[&str]) -> PathBuf {
    let out = folder.path().join(name);
    let base = ["export", "--ids", IDS, "--out", out.to_str().unwrap()];
    ok(&llama_trace(base.into_iter().chain(args.iter().copied())));
    out
}

/// The same run exported twice, into the folders `a` and `b`.
fn exported_twice(folder: &TempDir) -> [PathBuf; 2] {
    ["a", "b"].map(|name| exported(folder, name, &["--model", &golden()]))
}

fn values(file: &Path) -> ArrayD<f32> {
    ArrayD::read_npy(fs::File::open(file).unwrap()).unwrap()
}

fn write(file: &Path, values: &ArrayD<f32>) {
    values.write_npy(fs::File::create(file).unwrap()).unwrap();
}

fn diff(args: &[&str]) -> (i32, Value) {
    let output = llama_trace(["diff", "--format", "json"].into_iter().chain(args.iter().copied()));
    let report = serde_json::from_str(&stdout(&output)).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    (output.status.code().unwrap(), report)
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn equal_exports_are_the_same_and_else_the_first_different_cell_is_named() {
    let (folder, model) = (TempDir::new().unwrap(), golden());
    let a = exported(&folder, "a", &["--model", &model, "-n", "2"]);
    let b = exported(&folder, "b", &["--model", &model, "-n", "2", "--precision", "bf16"]);
    let [path_a, path_b] = [&a, &b].map(|path| path.to_str().unwrap());
    let (code, report) = diff(&[path_a, path_b]);
    assert_eq!((code, &report["same"], &report["first"]), (0, &true.into(), &Value::Null), "{report}");
    assert_eq!(keys(&report), ["same", "first", "smallest_tolerance", "missing", "diagnosis", "notes"]);
    let smallest = report["smallest_tolerance"].as_f64().unwrap();
    assert!(smallest > 1e-4 && smallest < 0.2, "{smallest}");
    let (code, _) = diff(&[path_a, path_a]);
    assert_eq!(code, 0);

    let file = b.join("pass_000/layer_01/ffn_hidden.npy");
    let mut broken = values(&file);
    broken[[3, 7]] += 20.0;
    write(&file, &broken);
    fs::remove_file(b.join("pass_001/layer_02/qk.npy")).unwrap();
    for with in [&[][..], &["--model", &model]] {
        let (code, report) = diff(&[&[path_a, path_b], with].concat());
        assert_eq!((code, &report["same"]), (1, &false.into()));
        let first = &report["first"];
        assert_eq!(keys(first), ["kind", "address", "ours", "theirs", "error", "tolerance"]);
        assert_eq!(
            (&first["kind"], &first["address"]),
            (&"stage".into(), &"p0/L1/ffn_hidden[t=3,f=7]".into()),
            "{first}"
        );
        let ours = f64::from(values(&a.join("pass_000/layer_01/ffn_hidden.npy"))[[3, 7]]);
        assert_eq!(
            (first["ours"].as_f64(), first["theirs"].as_f64()),
            (Some(ours), Some(f64::from(broken[[3, 7]])))
        );
        assert!(first["error"].as_f64() > first["tolerance"].as_f64(), "{first}");
        assert_eq!(report["missing"], serde_json::json!(["p1/L2/qk"]));
        assert_eq!(report["diagnosis"], serde_json::json!([]), "no known mistake gives this value");
    }
    let output = llama_trace(["diff", path_a, path_b]);
    let text = stdout(&output);
    for part in [
        "First difference: stage  p0/L1/ffn_hidden[t=3,f=7]",
        "Cannot be read: p1/L2/qk: B: pass_001/layer_02/qk.npy: manifest.json lists this file, but it does not exist",
        "<-- differs",
        "√(L + 1)",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(stderr(&output).contains("differs from") && output.status.code() == Some(1));
    let output = llama_trace(["diff", path_a, path_b, "--format", "junit"]);
    let xml = stdout(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        xml.contains("<testcase classname=\"p0.L1\" name=\"ffn_hidden\"><failure message=\"error"),
        "{xml}"
    );
    assert!(xml.contains("<testcase classname=\"p1.L2\" name=\"qk\"><error"), "{xml}");
    assert_eq!(
        xml.matches("<testcase").count(),
        xml.matches("</testcase>").count() + xml.matches("\"/>\n").count()
    );
}

#[test]
fn a_file_that_is_named_as_no_stage_is_reported() {
    let (folder, model) = (TempDir::new().unwrap(), golden());
    let [a, b] = ["a", "b"].map(|name| exported(&folder, name, &["--model", &model]));
    let [path_a, path_b] = [&a, &b].map(|path| path.to_str().unwrap());
    let notes = || {
        let (code, report) = diff(&[path_a, path_b]);
        assert_eq!(code, 0, "{report}");
        report["notes"].to_string()
    };
    assert!(!notes().contains("to no stage"), "{}", notes());
    let layer = b.join("pass_000/layer_01");
    fs::rename(layer.join("attn_norm.npy"), layer.join("att_norm.npy")).unwrap();
    let said =
        "a file of B belongs to no stage of the model and was not read: pass_000/layer_01/att_norm.npy";
    assert!(notes().contains(said), "{}", notes());
    for i in 0..5 {
        fs::copy(layer.join("xq.npy"), b.join(format!("{i}.npy"))).unwrap();
    }
    let said = "6 files of B belong to no stage of the model and were not read: 0.npy, 1.npy, 2.npy, 3.npy, and others";
    assert!(notes().contains(said), "{}", notes());
    // The text report also names the file, next to the missing stages.
    let text = stdout(&llama_trace(["diff", path_a, path_b]));
    assert!(text.contains("Missing in B: attn_norm ×1") && text.contains(said), "{text}");
}

#[test]
fn the_cause_is_reported_before_its_consequences() {
    let (folder, model) = (TempDir::new().unwrap(), golden());
    let a = exported(&folder, "a", &["--model", &model]);
    // Simulates a port that reads wo without transposing it. All later stages of its run differ.
    let wrong = models::golden("gqa", |tensors| {
        for (name, (shape, bytes)) in tensors.iter_mut().filter(|(name, _)| name.contains("o_proj")) {
            assert_eq!(shape[0], shape[1], "{name}");
            let words: Vec<[u8; 4]> = bytes.as_chunks::<4>().0.to_vec();
            *bytes =
                (0..words.len()).flat_map(|at| words[at % shape[0] * shape[0] + at / shape[0]]).collect();
        }
    });
    let b = exported(&folder, "b", &["--model", wrong.path().to_str().unwrap()]);
    let [a, b] = [&a, &b].map(|path| path.to_str().unwrap());
    let (code, report) = diff(&[a, b, "--model", &model]);
    assert_eq!(code, 1);
    let address = report["first"]["address"].as_str().unwrap();
    assert!(address.starts_with("p0/L0/attn_output["), "{address}");
    let best = &report["diagnosis"][0];
    assert_eq!(
        (keys(best), &best["name"]),
        (vec!["name", "form", "before", "after"], &"weight_layout".into())
    );
    assert!(best["after"].as_f64().unwrap() < 1e-6 && best["before"].as_f64().unwrap() > 0.5, "{best}");

    // If the text, the tokens or the configuration differ, the report names this cause, and `diff` tries no mistake on
    // the stages.
    let change = |name: &str, change: &dyn Fn(&mut Value)| {
        let copy = folder.path().join(name);
        fs::create_dir(&copy).unwrap();
        fs::copy(Path::new(a).join("manifest.json"), copy.join("manifest.json")).unwrap();
        models::edit_json(&copy.join("manifest.json"), change);
        diff(&[a, copy.to_str().unwrap()])
    };
    let (code, report) = change("theta", &|manifest| manifest["card"]["config"]["rope_theta"] = 5.0.into());
    let first = &report["first"];
    assert_eq!(
        (code, &first["kind"], &first["address"]),
        (1, &"artifact".into(), &"config.rope_theta".into())
    );
    let (_, report) = change("tokens", &|manifest| manifest["passes"][0]["tokens"][2]["id"] = 7.into());
    let first = &report["first"];
    assert_eq!((&first["kind"], &first["address"]), (&"tokens".into(), &"p0/tokens[t=2]".into()));
    assert_eq!((&first["ours"], &first["theirs"]), (&9.into(), &7.into()));
    let (_, report) = change("bos", &|manifest| {
        manifest["passes"][0]["tokens"].as_array_mut().unwrap().remove(0);
    });
    assert_eq!(
        (&report["first"]["kind"], &report["diagnosis"][0]["name"]),
        (&"tokens".into(), &"bos".into())
    );
}

#[test]
fn a_precision_that_the_reference_does_not_have_is_refused() {
    let (folder, model) = (TempDir::new().unwrap(), golden());
    let export = |precision: &str| {
        let out = exported(&folder, precision, &["--model", &model, "--precision", precision]);
        out.to_str().unwrap().to_owned()
    };
    let [f32, q8] = ["f32", "q8"].map(export);
    for (a, asked, own) in [(&f32, "q8", "f32, the precision of A"), (&q8, "f32", "q8, the precision of A")] {
        let output = llama_trace(["diff", a, a, "--model", &model, "--precision", asked]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        for part in [own, &format!("--precision {asked}"), "leave --precision out"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
    // `--precision` with the precision that the run states changes nothing.
    for (a, own) in [(&f32, "f32"), (&q8, "q8")] {
        let judged = |more: &[&str]| diff(&[&[a, &f32, "--model", &model], more].concat());
        assert_eq!(judged(&["--precision", own]), judged(&[]));
        assert_eq!(judged(&[]).0, 0);
    }
}

#[test]
fn two_runs_of_the_program_are_compared_while_they_run() {
    let model = golden();
    let base = ["--model", &model, "--ids", IDS, "-n", "3"];
    for (a, b) in [
        ("precision=f32", "precision=bf16"),
        ("precision=f32", "precision=q8"),
        ("cpu-kernel=portable", "device=cpu"),
        ("threads=1", "threads=2"),
        ("cache-dtype=f32", "cache-dtype=f16"),
    ] {
        let (code, report) = diff(&[&base[..], &["--a", a, "--b", b]].concat());
        assert_eq!((code, &report["missing"]), (0, &serde_json::json!([])), "{a} {b}: {report}");
    }
    let (code, report) =
        diff(&["--prompt", "Once upon a time", "--a", "precision=f32", "--b", "precision=bf16"]);
    assert_eq!((code, &report["same"]), (0, &true.into()), "{report}");
    let other = fixture("golden/mistral");
    let own = format!("model={}", other.display());
    let (code, report) = diff(&[&base[..], &["--a", "precision=f32", "--b", &own]].concat());
    assert_eq!((code, &report["first"]["kind"]), (1, &"artifact".into()), "{report}");
}

#[test]
fn traces_are_compared_with_each_other_and_with_folders() {
    let (folder, model) = (TempDir::new().unwrap(), golden());
    let record = |name: &str, args: &[&str]| {
        let out = folder.path().join(name);
        let base = ["record", "--ids", IDS, "-n", "2", "--model", &model, "-o", out.to_str().unwrap()];
        ok(&llama_trace(base.into_iter().chain(args.iter().copied())));
        out.to_str().unwrap().to_owned()
    };
    let (all, minimal) = (record("all.trace", &["--keep", "all"]), record("minimal.trace", &[]));
    let rounded = record("bf16.trace", &["--precision", "bf16"]);
    let export = exported(&folder, "export", &["--model", &model, "-n", "2"]);
    let stages = |a: &str, b: &str| {
        let (code, report) = diff(&[a, b]);
        assert_eq!(
            (code, &report["same"], &report["missing"]),
            (0, &true.into(), &serde_json::json!([])),
            "{a} {b}"
        );
        let text = ok(&llama_trace(["diff", a, b]));
        text.lines().find_map(|line| line.split(" stages").next()?.parse::<usize>().ok()).unwrap()
    };
    let export = export.to_str().unwrap();
    let whole = stages(export, &all);
    for (a, b) in [(&*all, &*minimal), (&*minimal, &*all), (&*minimal, export), (export, &*minimal)] {
        assert_eq!(stages(a, b), whole, "{a} {b}: stages that are not kept must be derived");
    }
    let kept = stages(&minimal, &minimal);
    assert!(kept < whole, "derivable stages need not be compared");
    assert_eq!(
        stages(&minimal, &rounded),
        kept,
        "stages that are sampled from other logits are computed from those logits"
    );
    let (code, report) = diff(&[&all, &rounded, "--model", &model]);
    assert_eq!((code, &report["same"]), (0, &true.into()), "{report}");
    let other = models::golden("gqa", |tensors| {
        tensors.get_mut("model.norm.weight").unwrap().1[0] ^= 1;
    });
    let output = llama_trace(["diff", &all, &minimal, "--model", other.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("weights differ"), "{}", stderr(&output));
    let cut = folder.path().join("cut.trace");
    let bytes = fs::read(&minimal).unwrap();
    fs::write(&cut, &bytes[..bytes.len() - 100]).unwrap();
    assert_eq!(llama_trace(["diff", &all, cut.to_str().unwrap()]).status.code(), Some(3));
}

/// A run with these options of the sampler has the stages `penalized_logits`, `min_p` and `typical_p`.
#[test]
fn the_stages_of_the_filters_are_compared_and_named() {
    let (folder, model) = (TempDir::new().unwrap(), golden());
    let sampling = |min_p| {
        let fixed =
            ["--temperature", "1", "--typical-p", "0.9", "--repetition-penalty", "1.5", "--seed", "3"];
        [&["--model", &model, "-n", "3"][..], &fixed, &["--min-p", min_p]].concat()
    };
    let own = sampling("0.05");
    let [a, b] = ["a", "b"].map(|name| exported(&folder, name, &own).to_str().unwrap().to_owned());
    let trace = folder.path().join("run.trace").to_str().unwrap().to_owned();
    ok(&llama_trace([&["record", "--ids", IDS, "-o", &trace][..], &own].concat()));
    for (a, b) in [(&a, &b), (&a, &trace), (&trace, &a), (&trace, &trace)] {
        let (code, report) = diff(&[a, b]);
        assert_eq!(
            (code, &report["same"], &report["missing"]),
            (0, &true.into(), &serde_json::json!([])),
            "{a} {b}: {report}"
        );
    }
    // A mistake in a stage is found there, in a folder beside a folder and beside a trace.
    for stage in ["penalized_logits", "min_p", "typical_p"] {
        let file = Path::new(&b).join(format!("pass_000/{stage}.npy"));
        let whole = values(&file);
        let largest = whole.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
        let mut broken = whole.clone();
        broken[[largest]] *= 0.5;
        write(&file, &broken);
        for other in [&a, &trace] {
            let (code, report) = diff(&[other, &b]);
            let expected = format!("p0/{stage}[v={largest}]");
            assert_eq!((code, &report["first"]["address"]), (1, &expected.into()), "{report}");
        }
        write(&file, &whole);
    }
    let (code, _) = diff(&[&a, &b]);
    assert_eq!(code, 0, "the folder is whole again");
}

/// Two traces with the same stages are compared part by part; folders are compared stage by stage. Both must find the
/// same differences.
#[test]
fn traces_compared_in_parts_differ_like_whole_stages() {
    let folder = TempDir::new().unwrap();
    let gqa = golden();
    let ids: Vec<_> = (0..60).map(|id| (id * 7 % 40).to_string()).collect();
    let ids = ids.join(",");
    let run = ["--model", &gqa, "--ids", &ids, "-n", "2"];
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for (name, more) in [("a", &[][..]), ("b", &["--precision", "bf16"][..])] {
        ok(&llama_trace([&["record", "--keep", "all", "-o", &path(name)], &run[..], more].concat()));
        ok(&llama_trace([&["export", "--out", &path(&format!("{name}-files"))], &run[..], more].concat()));
    }
    let (code, of_traces) = diff(&[&path("a"), &path("b")]);
    assert_eq!(code, 0, "bfloat16 is within its tolerance");
    let (_, of_folders) = diff(&[&path("a-files"), &path("b-files")]);
    let close = |a: &Value, b: &Value| {
        let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
        assert!((a - b).abs() <= 1e-9 * b.abs(), "{a} and {b}");
    };
    assert!(of_traces["smallest_tolerance"].as_f64().unwrap() > 1e-4);
    close(&of_traces["smallest_tolerance"], &of_folders["smallest_tolerance"]);
    // The same value is changed in the trace and in the folder of B: first to another number, then to NaN.
    let trace = llama_trace::record::Trace::open(Path::new(&path("b"))).unwrap();
    let site = llama_trace::trace::Site::layer(0, 1, llama_trace::trace::Stage::FfnUp);
    let place = trace.bytes(site).unwrap().to_vec();
    drop(trace);
    let whole = fs::read(path("b")).unwrap();
    let start = whole.windows(place.len()).position(|window| window == place).unwrap();
    let mut bytes = whole.clone();
    bytes[start + 400] ^= 0x40;
    fs::write(path("b"), bytes).unwrap();
    let (code, report) = diff(&[&path("a"), &path("b")]);
    assert_eq!((code, &report["missing"]), (3, &serde_json::json!(["p0/L1/ffn_up"])), "{report}");
    let text = stdout(&llama_trace(["diff", &path("a"), &path("b")]));
    assert!(text.contains("B: its values are not those that were recorded"), "{text}");
    // With matching digests the changed values are valid, so the report names the cell, and a note mentions NaN.
    let digest = |bytes: &[u8]| ring::digest::digest(&ring::digest::SHA256, bytes).as_ref().to_vec();
    let old = digest(&place);
    let at = whole.windows(32).position(|window| window == old).unwrap();
    for (first, value, said) in [
        ("p0/L1/ffn_up[t=3,f=7]", 30.0_f32, "ffn_up"),
        ("p0/L1/ffn_up[t=3,f=7]", f32::NAN, "1 of 3360 values are NaN"),
    ] {
        let (mut bytes, mut values) = (whole.clone(), place.clone());
        values[4 * (3 * 56 + 7)..][..4].copy_from_slice(&value.to_le_bytes());
        bytes[at..at + 32].copy_from_slice(&digest(&values));
        bytes[start..start + values.len()].copy_from_slice(&values);
        fs::write(path("b"), bytes).unwrap();
        let (code, report) = diff(&[&path("a"), &path("b")]);
        assert_eq!((code, &report["first"]["address"]), (1, &Value::from(first)), "{report}");
        let text = stdout(&llama_trace(["diff", &path("a"), &path("b")]));
        assert!(text.contains(said), "{text}");
    }
}

#[test]
fn each_sequence_is_compared_with_the_same_sequence() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let run = ["--prompt", "Once upon a time", "--prompt", "The dog", "-n", "2"];
    ok(&llama_trace([&["record", "-o", &path("trace")], &run[..]].concat()));
    // Records the same run with the older name of the option `--out`.
    ok(&llama_trace([&["record", "--keep", "all", "--output", &path("all")], &run[..]].concat()));
    ok(&llama_trace([&["export", "--out", &path("files")], &run[..]].concat()));
    for (a, b) in [("trace", "files"), ("files", "trace"), ("trace", "all")] {
        let (code, report) = diff(&[&path(a), &path(b)]);
        assert_eq!((code, report["smallest_tolerance"].as_f64()), (0, Some(0.0)), "{a} and {b}: {report}");
    }
    let text = ok(&llama_trace(["diff", &path("all"), &path("all")]));
    let count: usize =
        text.split(" stages compared").next().unwrap().lines().last().unwrap().parse().unwrap();
    assert!(count > 250, "both sequences are compared: {text}");
    let file = folder.path().join("files/s1/pass_001/layer_01/ffn_up.npy");
    let mut changed = values(&file);
    changed[[0, 7]] += 3.0;
    write(&file, &changed);
    for a in ["trace", "all"] {
        let (code, report) = diff(&[&path(a), &path("files")]);
        assert_eq!(code, 1, "{report}");
        assert_eq!(report["first"]["address"], "s1/p1/L1/ffn_up[t=0,f=7]", "{report}");
    }
    ok(&llama_trace(["record", "-o", &path("one"), "--prompt", "Once upon a time", "-n", "2"]));
    let (code, report) = diff(&[&path("trace"), &path("one")]);
    assert_eq!((code, &report["missing"]), (3, &serde_json::json!(["s1/p0/tokens"])), "{report}");
}

#[test]
fn unreadable_stages_are_not_reported_as_the_same() {
    let (folder, model) = (TempDir::new().unwrap(), golden());
    let [a, b] = exported_twice(&folder);
    let [path_a, path_b] = [&a, &b].map(|path| path.to_str().unwrap());
    fs::write(b.join("pass_000/layer_01/xk.npy"), "").unwrap();
    for with in [&[][..], &["--model", &model]] {
        let (code, report) = diff(&[&[path_a, path_b], with].concat());
        assert_eq!((code, &report["same"], &report["first"]), (3, &false.into(), &Value::Null), "{report}");
        assert_eq!(report["missing"], serde_json::json!(["p0/L1/xk"]));
    }
    let output = llama_trace(["diff", path_a, path_b]);
    let (said, error) = (stdout(&output), stderr(&output));
    assert!(said.contains("except for a stage that cannot be read"), "{said}");
    assert!(error.contains("p0/L1/xk") && error.contains("the file is empty"), "{error}");
    let page = stdout(&llama_trace(["diff", path_a, path_b, "--format", "junit"]));
    assert!(page.contains("errors=\"1\" skipped=\"0\"") && page.contains("<error message="), "{page}");
    // If a stage differs as well, the verdict is this difference.
    let mut changed = values(&b.join("pass_000/layer_01/ffn_up.npy"));
    changed[[0, 7]] += 3.0;
    write(&b.join("pass_000/layer_01/ffn_up.npy"), &changed);
    assert_eq!(diff(&[path_a, path_b]).0, 1);
}

#[test]
fn a_file_that_a_manifest_lists_and_that_is_gone_is_damage() {
    let folder = TempDir::new().unwrap();
    let model = golden();
    let [a, b] = ["a", "b"].map(|name| exported(&folder, name, &["--model", &model, "-n", "2"]));
    let [path_a, path_b] = [&a, &b].map(|path| path.to_str().unwrap());
    let lost = "pass_000/layer_00/xq.npy: manifest.json lists this file, but it does not exist";
    fs::remove_file(b.join("pass_000/layer_00/xq.npy")).unwrap();
    for (pair, run) in [([path_a, path_b], "B"), ([path_b, path_a], "A")] {
        for with in [&[][..], &["--model", &model]] {
            let (code, report) = diff(&[&pair[..], with].concat());
            assert_eq!(
                (code, &report["same"], &report["first"]),
                (3, &false.into(), &Value::Null),
                "{report}"
            );
            assert_eq!(report["missing"], serde_json::json!(["p0/L0/xq"]));
        }
        let output = llama_trace(["diff", pair[0], pair[1]]);
        let (text, error) = (stdout(&output), stderr(&output));
        assert!(text.contains(&format!("Cannot be read: p0/L0/xq: {run}: {lost}")), "{text}");
        assert!(error.contains("a stage of") && error.contains("--stage"), "{error}");
    }
    // A whole pass is gone, and then every file.
    fs::remove_dir_all(b.join("pass_001")).unwrap();
    let (code, report) = diff(&[path_a, path_b]);
    assert_eq!((code, &report["same"]), (3, &false.into()), "{report}");
    fs::remove_dir_all(b.join("pass_000")).unwrap();
    let output = llama_trace(["diff", path_a, path_b]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("none of B's files for the stages of A can be read"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn stages_that_an_export_left_out_are_no_damage_but_a_whole_pass_is() {
    let folder = TempDir::new().unwrap();
    let model = golden();
    let of = |name: &str, more: &[&str]| {
        let path = exported(&folder, name, &[&["--model", &model, "-n", "2"], more].concat());
        path.to_str().unwrap().to_owned()
    };
    let (all, some) = (of("all", &[]), of("some", &["--stage", "xq,logits"]));
    let (first, again) = (of("first", &["--pass", "0"]), of("again", &["--pass", "0"]));
    let tokens = of("tokens", &["--stage", "tokens,logits", "--pass", "0"]);
    // B has fewer stages, and A has fewer stages or passes.
    for [a, b] in [[&all, &some], [&some, &all], [&first, &all], [&first, &again], [&some, &some]] {
        let (code, report) = diff(&[a, b]);
        assert_eq!((code, &report["same"]), (0, &true.into()), "{a} {b}: {report}");
    }
    // B has nothing of the second pass.
    for b in [&first, &tokens] {
        let (code, report) = diff(&[&all, b]);
        assert_eq!((code, &report["same"], &report["first"]), (3, &false.into(), &Value::Null), "{report}");
        assert!(report["notes"].to_string().contains("nothing of p1 is compared"), "{report}");
    }
    let output = llama_trace(["diff", &all, &first]);
    assert!(
        stdout(&output).contains("except for a pass in which no stage is compared"),
        "{}",
        stdout(&output)
    );
    assert!(stderr(&output).contains("where: p1"), "{}", stderr(&output));
    let xml = stdout(&llama_trace(["diff", &all, &first, "--format", "junit"]));
    assert!(
        xml.contains("errors=\"1\"") && xml.contains("classname=\"p1\" name=\"all stages\"><error"),
        "{xml}"
    );
    assert_eq!(
        xml.matches("<testcase").count(),
        xml.split("tests=\"").nth(1).unwrap().split('"').next().unwrap().parse::<usize>().unwrap()
    );
}

#[test]
fn statistics_alone_cannot_be_compared() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for (name, precision) in [("a", "f32"), ("b", "q8")] {
        let args = ["record", "--keep", "stats", "--prompt", "Hello", "--precision", precision, "-o"];
        ok(&llama_trace(args.into_iter().map(str::to_owned).chain([path(name)])));
    }
    ok(&llama_trace(["record".to_owned(), "--prompt".into(), "Hello".into(), "-o".into(), path("whole")]));
    // At least one of the two traces has only statistics, so only the tokens could be compared.
    for [one, other, named] in [["a", "b", "a"], ["whole", "b", "b"], ["a", "whole", "a"]] {
        let output = llama_trace(["diff".to_owned(), path(one), path(other)]);
        assert_eq!(output.status.code(), Some(2), "{}", stdout(&output));
        for part in ["only statistics", &format!("where: {}", path(named))] {
            assert!(stderr(&output).contains(part), "{part}: {}", stderr(&output));
        }
    }
}

#[test]
fn nan_at_the_same_place_in_both_is_equal_and_is_noted() {
    let folder = TempDir::new().unwrap();
    let [a, b] = exported_twice(&folder);
    let [path_a, path_b] = [&a, &b].map(|path| path.to_str().unwrap());
    let broken = |folder: &Path| {
        let file = folder.join("pass_000/layer_01/ffn_up.npy");
        let mut broken = values(&file);
        broken[[2, 5]] = f32::NAN;
        write(&file, &broken);
    };
    broken(&a);
    let (code, report) = diff(&[path_a, path_b]);
    assert_eq!((code, &report["first"]["address"]), (1, &"p0/L1/ffn_up[t=2,f=5]".into()), "{report}");
    broken(&b);
    let text = ok(&llama_trace(["diff", path_a, path_b]));
    assert!(text.contains("The same, within the tolerance;"), "{text}");
    assert!(text.contains("both have NaN at the same places of p0/L1/ffn_up"), "{text}");
}

#[test]
fn wrong_folders_and_options_are_errors_and_not_differences() {
    let (folder, model) = (TempDir::new().unwrap(), golden());
    let a = exported(&folder, "a", &["--model", &model]);
    let a = a.to_str().unwrap();
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let empty = empty.to_str().unwrap();
    let cases: [(&[&str], i32, &str); 10] = [
        (&[], 2, "--a and --b are for two settings that run now"),
        (&[a, "nowhere"], 3, "a trace that `llama-trace record` wrote, or a folder"),
        (&[a, empty], 3, "no manifest.json"),
        (&[a], 2, "found: A alone"),
        (&[a, a, "--prompt", "x"], 2, "are recorded runs"),
        (&["--a", "speed=1"], 2, "there is no key `speed`"),
        (&["--a", "precision"], 2, "KEY=VALUE"),
        (&["--a", "precision=f31"], 2, "f32, bf16, q8"),
        (&["--a", "threads=0"], 2, "from 1 to"),
        (&[a, a, "--model", "MISTRAL"], 3, "not the model of the reference"),
    ];
    let mistral = fixture("golden/mistral");
    for (args, code, said) in cases {
        let args = args.iter().map(|arg| if *arg == "MISTRAL" { mistral.to_str().unwrap() } else { arg });
        let output = command(["diff"].into_iter().chain(args)).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{said}: {}", stderr(&output));
        assert!(stderr(&output).contains(said), "{said}: {}", stderr(&output));
        assert!(stdout(&output).is_empty());
    }
    // Damaged files, and files that are not `.npy`, are part of the verdict.
    let b = exported(&folder, "b", &["--model", &model]);
    fs::write(b.join("pass_000/layer_00/xq.npy"), "").unwrap();
    fs::write(b.join("pass_000/layer_00/xk.npy"), "not a file of numbers").unwrap();
    fs::remove_file(b.join("pass_000/layer_00/xv.npy")).unwrap();
    fs::create_dir(b.join("pass_000/layer_00/xv.npy")).unwrap();
    let (code, report) = diff(&[a, b.to_str().unwrap()]);
    let missing = serde_json::json!(["p0/L0/xq", "p0/L0/xk", "p0/L0/xv"]);
    assert_eq!((code, &report["missing"]), (3, &missing), "{report}");
    let text = stdout(&llama_trace(["diff", a, b.to_str().unwrap()]));
    assert!(
        text.contains("p0/L0/xq: B: pass_000/layer_00/xq.npy: the file is empty")
            && text.contains("p0/L0/xk: B: pass_000/layer_00/xk.npy: it is not a .npy"),
        "{text}"
    );
}
