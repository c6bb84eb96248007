//! `llama-trace diff --suggest-map`: the map that it suggests for a port's folder, and what `diff` finds with this map.

#[path = "suggested/mistakes.rs"]
mod mistakes;
#[path = "suggested/precision.rs"]
mod precision;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use tempfile::TempDir;

use super::ported::{IDS, both, diff};
use super::{fixture, llama_trace, ok};

/// Doubles every second value of a stage in these layers. The stages after a mistake are then similar, but not equal.
fn skewed(folder: &Path, stage: &str, layers: std::ops::Range<usize>) {
    for layer in layers {
        skew(&folder.join(format!("pass_000/layer_{layer:02}/{stage}.npy")));
    }
}

/// Doubles every second value of a file.
fn skew(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    for value in bytes[128..].chunks_exact_mut(4).step_by(2) {
        let other = f32::from_le_bytes(value.try_into().unwrap()) * 2.0;
        value.copy_from_slice(&other.to_le_bytes());
    }
    fs::write(path, bytes).unwrap();
}

/// Reverses the order of the values.
fn turn(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let values: Vec<[u8; 4]> = bytes[128..].as_chunks::<4>().0.to_vec();
    let turned: Vec<u8> = values.into_iter().rev().flatten().collect();
    bytes[128..].copy_from_slice(&turned);
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_map_is_proposed_for_a_port_with_only_a_correct_first_layer() {
    let folder = TempDir::new().unwrap();
    let [a, b] = both(&folder, &[], "");
    let own = folder.path().join("own");
    for layer in 0..4 {
        let name = format!("pass_000/layer_{layer:02}");
        fs::create_dir_all(own.join(&name)).unwrap();
        for stage in ["xq", "masked_scores"] {
            let file = format!("{name}/{stage}.npy");
            fs::copy(b.join(&file), own.join(&file)).unwrap();
        }
    }
    skewed(&own, "xq", 1..4);
    skewed(&own, "masked_scores", 0..4);
    let map = ok(&llama_trace(["diff", a.to_str().unwrap(), own.to_str().unwrap(), "--suggest-map"]));
    let line =
        |stage: &str| map.lines().find(|line| line.starts_with(stage)).unwrap_or_else(|| panic!("{map}"));
    assert!(
        line("xq =").contains("# sure: smallest error") && line("xq =").contains("largest error"),
        "{map}"
    );
    // The mask determines the axes: with exchanged axes it would hide other keys.
    assert!(!line("masked_scores =").contains("axes"), "{map}");
    fs::write(own.join("capture.toml"), &map).unwrap();
    assert_eq!(diff(&[a, own], &[]).0, 1);
}

#[test]
fn a_file_with_a_stages_name_is_this_stage_if_no_values_are_close() {
    let folder = TempDir::new().unwrap();
    let [a, _] = both(&folder, &[], "");
    let port = fixture("port/story/wrong");
    let map = ok(&llama_trace(["diff".as_ref(), a.as_os_str(), port.as_os_str(), "--suggest-map".as_ref()]));
    let stages: Vec<_> = map.lines().filter_map(|line| line.split_once(" = {")).collect();
    let names: Vec<_> = stages.iter().map(|(stage, _)| *stage).collect();
    assert_eq!(names, ["xq_rope", "xk_rope", "attn_residual", "ffn_residual", "logits"], "{map}");
    assert!(stages.iter().all(|(stage, lies)| lies.contains(&format!("/{stage}.npy\""))), "{map}");
    // None of the files is close enough to determine the precision.
    assert!(map.contains("precision = \"f32\"  # not sure"), "{map}");
}

/// A file with the name of a stage or a module is assigned to this stage, whatever its values are. If the values of one
/// layer are unlike the reference, the other layers determine the stage.
#[test]
fn a_file_with_only_wrong_values_stays_in_the_map() {
    let folder = TempDir::new().unwrap();
    let [a, b] = both(&folder, &[], "");
    for (name, logits) in [("own", "logits.npy"), ("hooks", "model.lm_head.npy")] {
        let own = folder.path().join(name);
        fs::create_dir_all(&own).unwrap();
        fs::copy(b.join("pass_000/embedding.npy"), own.join("embedding.npy")).unwrap();
        let mut bytes = fs::read(b.join("pass_000/logits.npy")).unwrap();
        bytes[128..].fill(0);
        fs::write(own.join(logits), bytes).unwrap();
        for layer in 0..4 {
            let file = own.join(format!("l{layer}.ffn_down.npy"));
            fs::copy(b.join(format!("pass_000/layer_{layer:02}/ffn_down.npy")), &file).unwrap();
            if layer == 2 {
                turn(&file);
            }
        }
        let map = ok(&llama_trace(["diff", a.to_str().unwrap(), own.to_str().unwrap(), "--suggest-map"]));
        for line in [
            format!("logits = {{ file = \"{logits}\" }}"),
            "ffn_down = { file = \"l{layer}.ffn_down.npy\" }".into(),
        ] {
            assert!(map.contains(&line), "{line}: {map}");
        }
        fs::write(own.join("capture.toml"), &map).unwrap();
        let (code, report) = diff(&[a.clone(), own], &[]);
        let first = report["first"]["address"].as_str().unwrap();
        assert!(code == 1 && first.starts_with("p0/L2/ffn_down["), "{report}");
    }
}

#[test]
fn a_proposed_map_lists_missing_layers_and_all_written_passes() {
    let folder = TempDir::new().unwrap();
    let [a, b] = both(&folder, &["-n", "4"], "");
    for layer in [1, 3] {
        fs::remove_file(b.join(format!("pass_000/layer_{layer:02}/ffn_up.npy"))).unwrap();
    }
    let proposed =
        || ok(&llama_trace(["diff".as_ref(), a.as_os_str(), b.as_os_str(), "--suggest-map".as_ref()]));
    let map = proposed();
    let gap = "# The file of p0/L1/ffn_up is missing (and 1 more), but the line above names it: `diff` ends with exit code 3";
    assert_eq!(map.matches("is missing").count(), 1, "{map}");
    assert!(map.lines().skip_while(|line| !line.starts_with("ffn_up =")).nth(1) == Some(gap), "{map}");
    assert_eq!(map.matches("[[passes]]").count(), 4, "{map}");
    assert!(!map.contains("pass_003/") && !map.contains("The reference has"), "{map}");
    let code = |map: &str| {
        fs::write(b.join("capture.toml"), map).unwrap();
        diff(&[a.clone(), b.clone()], &[]).0
    };
    assert_eq!(code(&map), 3);
    assert_eq!(code(&map.replace("ffn_up =", "# ffn_up =")), 0);
    // The notes name only stages that are missing in some layer.
    for layer in [1, 3] {
        let name = format!("pass_000/layer_{layer:02}/ffn_up.npy");
        fs::copy(a.join(&name), b.join(&name)).unwrap();
    }
    let map = proposed();
    assert!(!map.contains("is missing"), "{map}");
    assert_eq!(code(&map), 0);
    // Removes all files of one pass.
    fs::remove_dir_all(b.join("pass_003")).unwrap();
    let map = proposed();
    assert!(map.contains("# The reference has 4 passes, but the folder has files of only 3"), "{map}");
    assert_eq!(code(&map), 3);
}

/// Copies stages of every pass and layer from one folder to another, under another project's names.
fn by_steps(from: &Path, to: &Path, passes: usize, stages: &[(&str, &str)]) {
    fs::create_dir_all(to).unwrap();
    for (pass, layer) in (0..passes).flat_map(|pass| (0..4).map(move |layer| (pass, layer))) {
        for (stage, name) in stages {
            let file = from.join(format!("pass_{pass:03}/layer_{layer:02}/{stage}.npy"));
            fs::copy(file, to.join(format!("step{pass}.blocks.{layer}.{name}.npy"))).unwrap();
        }
    }
}

#[test]
fn a_map_of_several_passes_is_proposed_if_only_later_passes_are_wrong() {
    let folder = TempDir::new().unwrap();
    let [a, b] = both(&folder, &["-n", "3"], "");
    let own = folder.path().join("own");
    by_steps(&b, &own, 3, &[("attn_norm", "ln1"), ("xq_rope", "q_rot"), ("ffn_residual", "out")]);
    for (pass, layer) in [1, 2].into_iter().flat_map(|pass| (0..4).map(move |layer| (pass, layer))) {
        skew(&own.join(format!("step{pass}.blocks.{layer}.q_rot.npy")));
    }
    let map = propose(&a, &own);
    for line in
        ["attn_norm = { file = \"step{pass}.blocks.{layer}.ln1.npy\" }  # sure", "q_rot.npy\" }  # sure"]
    {
        assert!(map.contains(line), "{line}\n{map}");
    }
    assert_eq!(map.matches("[[passes]]").count(), 3, "{map}");
    fs::write(own.join("capture.toml"), &map).unwrap();
    let (code, report) = diff(&[a, own], &[]);
    let first = report["first"]["address"].as_str().unwrap();
    assert!(code == 1 && first.starts_with("p1/L0/xq_rope["), "{first}\n{map}");
    // If every pass reads one token, the files of all passes have the same shape. They are still passes of one stage,
    // and not rows of a cache.
    let folder = TempDir::new().unwrap();
    let a = folder.path().join("a");
    ok(&llama_trace(["export", "--ids", "1019", "-n", "3", "--out", a.to_str().unwrap()]));
    let own = folder.path().join("own");
    by_steps(&a, &own, 3, &[("xk", "k_proj"), ("attn_norm", "ln1")]);
    let map = propose(&a, &own);
    let stages: Vec<_> = map.lines().filter_map(|line| Some(line.split_once(" = {")?.0)).collect();
    assert_eq!(stages, ["attn_norm", "xk"], "{map}");
}

/// An export of the built-in model with one changed setting in its config.json. It looks like another runtime's folder:
/// it has no manifest.
fn with_setting(folder: &TempDir, setting: &str, value: f64, more: &[&str]) -> PathBuf {
    let [model, own] = ["model", "own"].map(|name| folder.path().join(format!("{name}-{setting}")));
    fs::create_dir(&model).unwrap();
    for entry in fs::read_dir(fixture("builtin")).unwrap().map(Result::unwrap) {
        if entry.path().is_file() {
            fs::write(model.join(entry.file_name()), fs::read(entry.path()).unwrap()).unwrap();
        }
    }
    super::models::edit_json(&model.join("config.json"), |config| {
        config[setting] = json!(value);
        if setting == "rope_theta" {
            config["rope_parameters"][setting] = json!(value);
        }
    });
    let args = ["export", "--ids", IDS, "--model", model.to_str().unwrap(), "--out", own.to_str().unwrap()];
    ok(&llama_trace(args.into_iter().chain(["--precision", "f32"]).chain(more.iter().copied())));
    fs::remove_file(own.join("manifest.json")).unwrap();
    own
}

#[test]
fn no_proposed_map_lets_a_port_with_a_mistake_pass() {
    let folder = TempDir::new().unwrap();
    let [a, _] = both(&folder, &[], "");
    for (setting, value) in [("rms_norm_eps", 1e-3), ("rope_theta", 500_000.0)] {
        let own = with_setting(&folder, setting, value, &[]);
        let map = ok(&llama_trace(["diff", a.to_str().unwrap(), own.to_str().unwrap(), "--suggest-map"]));
        assert!(map.contains("precision = \"f32\"  # not sure: "), "{setting}: {map}");
        fs::write(own.join("capture.toml"), &map).unwrap();
        let (code, report) = diff(&[a.clone(), own], &[]);
        assert_eq!((code, &report["first"]["kind"]), (1, &json!("stage")), "{setting}: {report}");
    }
}

/// The files of this port have the names that `export` gives, and it has as many passes as layers. Whatever its mistake
/// does to the values, the map assigns each file to the stage in its name, without changes, in all passes.
#[test]
fn the_map_of_a_wrong_port_fits_the_correct_port() {
    let folder = TempDir::new().unwrap();
    let [a, b] = both(&folder, &["-n", "4"], "");
    let propose = |own: &Path| {
        ok(&llama_trace(["diff".as_ref(), a.as_os_str(), own.as_os_str(), "--suggest-map".as_ref()]))
    };
    let own = with_setting(&folder, "rope_theta", 100.0, &["-n", "4"]);
    let (theta, right) = (propose(&own), propose(&b));
    for (pass, layer) in (0..4).flat_map(|pass| (0..4).map(move |layer| (pass, layer))) {
        ["xq", "qk", "cache_k"]
            .iter()
            .for_each(|stage| turn(&own.join(format!("pass_{pass:03}/layer_{layer:02}/{stage}.npy"))));
    }
    let lines = |map: &str| -> Vec<String> {
        map.lines().filter_map(|line| Some(line.split_once("}  # ")?.0.to_owned())).collect()
    };
    for map in [theta, propose(&own)] {
        assert_eq!(lines(&map), lines(&right), "{map}");
        assert!(!map.contains("Not found") && !map.contains("match no stage"), "{map}");
        fs::write(b.join("capture.toml"), &map).unwrap();
        let (code, report) =
            diff(&[a.clone(), b.clone()], &["--model", fixture("builtin").to_str().unwrap()]);
        assert_eq!((code, &report["notes"]), (0, &json!([])), "{report}");
        // With the same map, the port with the mistake still differs.
        fs::write(own.join("capture.toml"), &map).unwrap();
        assert_eq!(diff(&[a.clone(), own.clone()], &[]).0, 1);
    }
}

/// File names of another project: {l} is the layer's number, {m} is that number plus one, {n} is the number of layers.
type Scheme = &'static [(&'static str, &'static str)];

const OUTPUTS: Scheme = &[("ffn_residual", "h{l}")];
const FROM_ONE: Scheme = &[("ffn_residual", "layer_{m}_out")];
const STATES: Scheme =
    &[("embedding", "hidden_states.0"), ("ffn_residual", "hidden_states.{m}"), ("logits", "logits")];
const PARTS: Scheme = &[
    ("embedding", "emb"),
    ("attn_norm", "blk.{l}.ln1"),
    ("xq", "blk.{l}.q"),
    ("xk", "blk.{l}.k"),
    ("xv", "blk.{l}.v"),
    ("xq_rope", "blk.{l}.q_rope"),
    ("xk_rope", "blk.{l}.k_rope"),
    ("attn_output", "blk.{l}.attn_out"),
    ("attn_residual", "blk.{l}.mid"),
    ("ffn_norm", "blk.{l}.ln2"),
    ("ffn_gate", "blk.{l}.gate"),
    ("ffn_up", "blk.{l}.up"),
    ("ffn_down", "blk.{l}.mlp"),
    ("ffn_residual", "blk.{l}.out"),
    ("logits", "head"),
];
const OPAQUE: Scheme = &[
    ("attn_norm", "a{l}"),
    ("xq_rope", "b{l}"),
    ("xk_rope", "c{l}"),
    ("xv", "d{l}"),
    ("attn_heads", "e{l}"),
    ("attn_residual", "f{l}"),
    ("ffn_hidden", "g{l}"),
    ("ffn_residual", "i{l}"),
    ("logits", "z"),
];

const NORMS: Scheme = &[("attn_norm", "blockA.{l}"), ("ffn_norm", "blockB.{l}"), ("final_norm", "blockC")];

/// Copies stages of an export with this many layers to a folder, under these names.
fn renamed(from: &Path, to: &Path, layers: usize, scheme: &[(&str, &str)]) {
    fs::create_dir_all(to).unwrap();
    for (stage, name) in scheme {
        let in_layer = name.contains(['l', 'm']) && name.contains('{');
        for layer in 0..if in_layer { layers } else { 1 } {
            let file = match in_layer {
                true => format!("pass_000/layer_{layer:02}/{stage}.npy"),
                false => format!("pass_000/{stage}.npy"),
            };
            let name = name.replace("{l}", &layer.to_string()).replace("{m}", &(layer + 1).to_string());
            fs::copy(from.join(file), to.join(format!("{name}.npy"))).unwrap();
        }
    }
}

/// Keeps only the stages in `scheme`, and replaces the export's manifest by a capture.toml.
fn few(folder: &Path, ids: &str, scheme: Scheme) {
    fs::remove_file(folder.join("manifest.json")).unwrap();
    let keep =
        |path: &Path| scheme.iter().any(|(stage, _)| path.file_stem().unwrap().to_str() == Some(stage));
    for entry in fs::read_dir(folder.join("pass_000")).unwrap().map(Result::unwrap) {
        let all = if entry.path().is_dir() {
            fs::read_dir(entry.path()).unwrap().map(|entry| entry.unwrap().path()).collect()
        } else {
            vec![entry.path()]
        };
        all.iter().filter(|path| !keep(path)).for_each(|path| fs::remove_file(path).unwrap());
    }
    let map = format!(
        "format = \"llama-trace capture\"\nversion = 1\nprecision = \"f32\"\npasses = [{{ start = 0, tokens = [{ids}] }}]\n"
    );
    fs::write(folder.join("capture.toml"), map).unwrap();
}

/// An export of a model in float32.
fn exported(model: &Path, ids: &str, out: PathBuf) -> PathBuf {
    let args = ["export", "--model", model.to_str().unwrap(), "--precision", "f32", "--ids", ids, "--out"];
    ok(&llama_trace(args.into_iter().chain([out.to_str().unwrap()])));
    out
}

/// Returns the exit code, the first stage that differs (without the cell), and the diagnosis.
fn first(folders: &[PathBuf; 2], model: &Path) -> (i32, String, String) {
    let (code, report) = diff(folders, &["--model", model.to_str().unwrap()]);
    (code, address(&report), report["diagnosis"].to_string())
}

fn address(report: &serde_json::Value) -> String {
    report["first"]["address"].as_str().unwrap_or("same").split('[').next().unwrap().to_owned()
}

fn propose(a: &Path, own: &Path) -> String {
    ok(&llama_trace(["diff".as_ref(), a.as_os_str(), own.as_os_str(), "--suggest-map".as_ref()]))
}

/// The hidden states that transformers returns: the input of each layer, and at the end the output of the final norm.
#[test]
fn hidden_states_with_a_normalised_last_one_are_two_stages() {
    let folder = TempDir::new().unwrap();
    let [a, b] = both(&folder, &[], "");
    let own = folder.path().join("own");
    renamed(&b, &own, 3, &[("embedding", "hidden_states.0"), ("ffn_residual", "hidden_states.{m}")]);
    fs::copy(b.join("pass_000/final_norm.npy"), own.join("hidden_states.4.npy")).unwrap();
    let map = propose(&a, &own);
    for line in [
        "embedding = { file = \"hidden_states.0.npy\" }  # sure",
        "ffn_residual = { file = \"hidden_states.{layer+1}.npy\", layers = [0,3] }  # sure",
        "final_norm = { file = \"hidden_states.4.npy\" }  # sure",
    ] {
        assert!(map.contains(line), "{line}\n{map}");
    }
    fs::write(own.join("capture.toml"), &map).unwrap();
    assert_eq!(first(&[a.clone(), own.clone()], &fixture("builtin")).0, 0);
    // If the output of a layer is wrong, the report names this layer.
    skew(&own.join("hidden_states.3.npy"));
    let map = propose(&a, &own);
    fs::write(own.join("capture.toml"), &map).unwrap();
    let (code, address, _) = first(&[a, own], &fixture("builtin"));
    assert_eq!((code, &*address), (1, "p0/L2/ffn_residual"), "{map}");
}

#[test]
fn in_the_map_of_a_correct_run_unsure_lines_are_comments() {
    let folder = TempDir::new().unwrap();
    let [a, b] = both(&folder, &["-n", "2"], "");
    let own = folder.path().join("own");
    renamed(
        &b,
        &own,
        4,
        &[
            ("embedding", "h0"),
            ("attn_residual", "m{l}"),
            ("ffn_residual", "h{m}"),
            ("attn_norm", "n{l}"),
            ("logits", "out"),
        ],
    );
    // Adds files that fit no stage well: changed copies of a stage, and rows of another pass.
    for layer in 0..4 {
        let file = own.join(format!("like{layer}.npy"));
        fs::copy(own.join(format!("h{}.npy", layer + 1)), &file).unwrap();
        skew(&file);
        let file = own.join(format!("l{layer}.q.npy"));
        fs::copy(b.join(format!("pass_000/layer_{layer:02}/xq.npy")), &file).unwrap();
        turn(&file);
    }
    fs::copy(b.join("pass_000/final_norm.npy"), own.join("norm.npy")).unwrap();
    skew(&own.join("norm.npy"));
    for (token, stage) in [(0, "embedding"), (1, "embedding")] {
        fs::copy(b.join(format!("pass_001/{stage}.npy")), own.join(format!("tok{token}.npy"))).unwrap();
    }
    skew(&own.join("tok0.npy"));
    skew(&own.join("tok1.npy"));
    let map = propose(&a, &own);
    let live: Vec<_> =
        map.lines().filter(|line| line.contains(" = { file")).filter(|line| !line.starts_with('#')).collect();
    assert!(live.iter().all(|line| line.contains("# sure")), "{map}");
    assert!(map.contains("\n# xq = { file = \"l{layer}.q.npy\" }  # not sure: "), "{map}");
    let files: Vec<_> = map.split('"').filter(|text| text.ends_with(".npy")).collect();
    let all: std::collections::BTreeSet<_> = files.iter().collect();
    assert_eq!(all.len(), files.len(), "{map}");
    fs::write(own.join("capture.toml"), map.replace("\n# The reference has", "\n# It has")).unwrap();
    let (code, report) = diff(&[a, own], &["--model", fixture("builtin").to_str().unwrap()]);
    assert_eq!(report["first"], serde_json::Value::Null, "{report}\n{map}");
    assert!([0, 3].contains(&code), "{report}");
}
