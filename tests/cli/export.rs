//! `export`: its files, its limits, and that a failed export leaves no files.

use super::*;

#[test]
fn an_export_holds_every_stage_with_true_shapes_and_statistics() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("dump");
    ok(&llama_trace(["export", "--prompt", PROMPT, "-n", "3", "--out", out.to_str().unwrap()]));
    let manifest = manifest(&out);
    let files = manifest["files"].as_array().unwrap();
    assert_eq!(manifest["prompt"], PROMPT);
    assert_eq!(manifest["backend"], "cpu");
    assert_eq!(manifest["precision"], "f32");
    assert_eq!(manifest["passes"].as_array().unwrap().len(), 3);
    assert_eq!(manifest["passes"][0]["tokens"][1]["text"], "Once");
    assert_eq!(manifest["aliases"]["softmax"]["llama_cpp"], "kq_soft_max-L");
    assert_eq!(manifest["aliases"]["mask"]["llama_cpp"], "attn_inp_kq_mask");
    assert_eq!(manifest["aliases"]["attn_output"]["llama_cpp"], "attn_out-L (llama graphs)");
    assert_eq!(manifest["aliases"]["logits"]["transformer_lens"], "(the returned logits)");
    let layers = manifest["model"]["layers"].as_u64().unwrap() as usize;
    let (once, in_layer) = (10, 24);
    assert_eq!(files.len(), 3 * (once + layers * in_layer) - 2 * (1 + layers), "decode passes have no mask");
    for file in files {
        check_file(&out, file);
    }
    assert_eq!(files_below(&out), files.len() + 1, "the folder has no other files");
    // The token that each pass sampled is the token that the next pass read, and the token that generation prints.
    let sampled: Vec<i64> =
        (0..3).flat_map(|pass| read_ids(&out.join(format!("pass_00{pass}/sampled.npy")))).collect();
    let read: Vec<i64> =
        (1..3).flat_map(|pass| read_ids(&out.join(format!("pass_00{pass}/tokens.npy")))).collect();
    assert_eq!(sampled[..2], read);
    let pieces: String =
        (0..3).map(|pass| manifest["passes"][pass]["sampled"]["text"].as_str().unwrap()).collect();
    assert_eq!(ok(&llama_trace(["--prompt", PROMPT, "-n", "3"])), format!("{PROMPT}{pieces}"));
}

pub(crate) fn manifest(out: &Path) -> Value {
    serde_json::from_slice(&fs::read(out.join("manifest.json")).unwrap()).unwrap()
}

pub(crate) fn check_file(out: &Path, file: &Value) {
    let path = out.join(file["file"].as_str().unwrap());
    let shape: Vec<usize> =
        file["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect();
    assert_eq!(file["axes"].as_array().unwrap().len(), shape.len(), "{file}");
    let values: Vec<f64> = if matches!(file["stage"].as_str(), Some("tokens" | "sampled")) {
        let array = ArrayD::<i64>::read_npy(fs::File::open(&path).unwrap()).unwrap();
        assert_eq!(array.shape(), shape);
        array.iter().map(|&value| value as f64).collect()
    } else {
        let array = ArrayD::<f32>::read_npy(fs::File::open(&path).unwrap()).unwrap();
        assert_eq!(array.shape(), shape);
        array.iter().map(|&value| f64::from(value)).collect()
    };
    let finite: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    let mean = finite.iter().sum::<f64>() / finite.len() as f64;
    let min = finite.iter().copied().fold(f64::INFINITY, f64::min);
    assert_eq!(file["neg_inf"].as_u64().unwrap() as usize, values.len() - finite.len(), "{file}");
    assert!((file["min"].as_f64().unwrap() - min).abs() <= 1e-12 * min.abs(), "{file}");
    assert!((file["mean"].as_f64().unwrap() - mean).abs() <= 1e-9 * (1.0 + mean.abs()), "{file}");
}

pub(crate) fn files_below(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { files_below(&path) } else { 1 }).sum()
}

#[test]
fn an_export_has_only_the_chosen_stages() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("dump");
    let args = [
        "export",
        "--prompt",
        PROMPT,
        "-n",
        "3",
        "--passes",
        "1-2",
        "--layers",
        "0,2",
        "--stages",
        "xq,logits",
    ];
    ok(&llama_trace(args.into_iter().chain(["--out", out.to_str().unwrap()])));
    let names: Vec<String> =
        manifest(&out)["files"].as_array().unwrap().iter().map(|f| f["file"].to_string()).collect();
    assert_eq!(names.len(), 2 * (2 + 1), "{names:?}");
    assert!(!out.join("pass_000").exists() && !out.join("pass_001/layer_01").exists());
}

#[test]
fn an_export_never_removes_a_file_of_the_user() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("dump");
    let export = |stages: &str, force: &[&str]| {
        let args = ["export", "--prompt", PROMPT, "--stages", stages, "--out", out.to_str().unwrap()];
        llama_trace(args.iter().chain(force))
    };
    ok(&export("xq", &[]));
    fs::write(out.join("notes.txt"), "mine").unwrap();
    fs::write(out.join("pass_000/mine.npy"), "mine").unwrap();
    let refused = export("xk", &[]);
    assert_eq!(refused.status.code(), Some(5));
    assert!(stderr(&refused).contains("--force"), "{}", stderr(&refused));
    assert!(out.join("pass_000/layer_00/xq.npy").exists() && !out.join("pass_000/layer_00/xk.npy").exists());

    ok(&export("xk", &["--force"]));
    assert!(!out.join("pass_000/layer_00/xq.npy").exists(), "the earlier export is gone");
    assert!(out.join("pass_000/layer_00/xk.npy").exists());
    assert_eq!(fs::read_to_string(out.join("notes.txt")).unwrap(), "mine");
    assert_eq!(fs::read_to_string(out.join("pass_000/mine.npy")).unwrap(), "mine");
    // Folders of the old export that are now empty are removed as well. Folders with a file of the user stay.
    ok(&export("embedding", &["--force"]));
    assert!(!out.join("pass_000/layer_00").exists());
    assert_eq!(fs::read_to_string(out.join("pass_000/mine.npy")).unwrap(), "mine");
    fs::create_dir(out.join("pass_000/empty")).unwrap();
    ok(&export("embedding", &["--force"]));
    assert!(out.join("pass_000/empty").exists(), "a folder of the user must stay");

    let file = folder.path().join("file");
    fs::write(&file, "mine").unwrap();
    let refused = llama_trace(["export", "--prompt", PROMPT, "--force", "--out", file.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(5));
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
}

#[test]
fn a_run_that_fails_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("dump");
    let out = out.to_str().unwrap();
    let before = files_and_folders(folder.path());
    for (args, code) in [
        (vec!["--ids", "0,999999"], 4),
        (vec!["--prompt", "x", "--layers", "99"], 2),
        (vec!["--prompt", "x", "--stages", "nothing"], 2),
        (vec!["--prompt", "x", "--passes", "1"], 2),
        (vec!["--model", "/nonexistent", "--prompt", "x"], 3),
    ] {
        let output = llama_trace(["export", "--out", out].iter().chain(&args));
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", stderr(&output));
        assert_eq!(files_and_folders(folder.path()), before, "{args:?}");
    }
    let nowhere = folder.path().join("no/such/place");
    let output = llama_trace(["export", "--prompt", "x", "--out", nowhere.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(5));
    let told = stderr(&output);
    assert!(told.contains("no/such\n") && !told.contains(".llama-trace"), "no temporary name: {told}");
}

pub(crate) fn files_and_folders(folder: &Path) -> Vec<std::path::PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Asserts that a folder of a killed process, which another process must remove, becomes empty.
#[cfg(unix)]
pub(crate) fn soon_empty(folder: &Path) {
    for _ in 0..2400 {
        if files_and_folders(folder).is_empty() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("{:?} is left behind", files_and_folders(folder));
}

#[cfg(unix)]
#[test]
fn an_interrupted_export_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("dump");
    for signal in ["INT", "TERM", "HUP", "QUIT", "USR1", "ALRM", "XCPU"] {
        let output = killed_export(folder.path(), &out, signal);
        assert_eq!(output.status.code(), Some(130), "{signal}: {}", stderr(&output));
        assert!(signal == "INT" || stderr(&output).contains(signal), "{signal}: {}", stderr(&output));
        soon_empty(folder.path());
    }
}

#[cfg(unix)]
#[test]
fn the_next_export_removes_the_remains_of_a_killed_one() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("dump");
    killed_export(folder.path(), &out, "KILL");
    assert_eq!(files_and_folders(folder.path()).len(), 1, "a killed export cannot remove its folder");
    ok(&llama_trace(["export", "--prompt", PROMPT, "--stages", "xq", "--out", out.to_str().unwrap()]));
    assert_eq!(files_and_folders(folder.path()), [out]);
}

/// Starts an export of many passes to `out` in `folder`, and ends it by a signal as soon as it has begun to write. The
/// seed gives a long text; with other seeds, some exports end before the signal arrives.
#[cfg(unix)]
pub(crate) fn killed_export(folder: &Path, out: &Path, signal: &str) -> Output {
    let mut child =
        command(["export", "--prompt", PROMPT, "-n", "400", "--temperature", "1", "--seed", "3", "--out"])
            .arg(out)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
    while files_and_folders(folder).is_empty() {
        assert!(child.try_wait().unwrap().is_none(), "the export ended before it wrote anything");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let pid = child.id().to_string();
    let kill = format!("-{signal}");
    assert!(std::process::Command::new("kill").args([&*kill, &pid]).status().unwrap().success());
    child.wait_with_output().unwrap()
}
