//! `llama-trace diff --suggest-map`: the map that is proposed for a folder of somebody's own, and what comes of it.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use tempfile::TempDir;

use super::ported::{IDS, both, diff};
use super::{fixture, llama_trace, ok};

/// Every second value of a stage of these layers doubled: what comes after a mistake is alike and not the same.
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

/// The same numbers, the other way round.
fn turn(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let values: Vec<[u8; 4]> = bytes[128..].as_chunks::<4>().0.to_vec();
    let turned: Vec<u8> = values.into_iter().rev().flatten().collect();
    bytes[128..].copy_from_slice(&turned);
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_map_is_proposed_for_a_port_of_which_the_first_layer_alone_is_right() {
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
    assert!(line("xq =").contains("# sure: error") && line("xq =").contains("where it is most"), "{map}");
    // The mask says which axis is which: read the other way round it hides other keys.
    assert!(!line("masked_scores =").contains("axes"), "{map}");
    fs::write(own.join("capture.toml"), &map).unwrap();
    assert_eq!(diff(&[a, own], &[]).0, 1);
}

#[test]
fn a_file_with_a_stage_s_name_is_that_stage_where_nothing_is_near() {
    let folder = TempDir::new().unwrap();
    let [a, _] = both(&folder, &[], "");
    let port = fixture("port/story/wrong");
    let map = ok(&llama_trace(["diff".as_ref(), a.as_os_str(), port.as_os_str(), "--suggest-map".as_ref()]));
    let stages: Vec<_> = map.lines().filter_map(|line| line.split_once(" = {")).collect();
    let names: Vec<_> = stages.iter().map(|(stage, _)| *stage).collect();
    assert_eq!(names, ["xq_rope", "xk_rope", "attn_residual", "ffn_residual", "logits"], "{map}");
    assert!(stages.iter().all(|(stage, lies)| lies.contains(&format!("/{stage}.npy\""))), "{map}");
    // Not one of them is near enough to say anything of the precision.
    assert!(map.contains("precision = \"f32\"  # not sure"), "{map}");
}

/// A file is taken by its name, be it the stage's or the module's, whatever is in it; and where one layer of several is
/// nothing like the reference, the others say what the file is.
#[test]
fn values_that_are_all_wrong_do_not_take_a_file_out_of_the_map() {
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
fn a_proposed_map_says_where_a_stage_is_not_written_and_has_all_passes_that_are() {
    let folder = TempDir::new().unwrap();
    let [a, b] = both(&folder, &["-n", "4"], "");
    for layer in [1, 3] {
        fs::remove_file(b.join(format!("pass_000/layer_{layer:02}/ffn_up.npy"))).unwrap();
    }
    let proposed =
        || ok(&llama_trace(["diff".as_ref(), a.as_os_str(), b.as_os_str(), "--suggest-map".as_ref()]));
    let map = proposed();
    let gap = "# p0/L1/ffn_up is not there, and 1 more like it: the line above says that it should be, and `diff` ends with exit code 3";
    assert_eq!(map.matches("is not there").count(), 1, "{map}");
    assert!(map.lines().skip_while(|line| !line.starts_with("ffn_up =")).nth(1) == Some(gap), "{map}");
    assert_eq!(map.matches("[[passes]]").count(), 4, "{map}");
    assert!(!map.contains("pass_003/") && !map.contains("The reference has"), "{map}");
    let code = |map: &str| {
        fs::write(b.join("capture.toml"), map).unwrap();
        diff(&[a.clone(), b.clone()], &[]).0
    };
    assert_eq!(code(&map), 3);
    assert_eq!(code(&map.replace("ffn_up =", "# ffn_up =")), 0);
    // Of what is in every layer nothing is said.
    for layer in [1, 3] {
        let name = format!("pass_000/layer_{layer:02}/ffn_up.npy");
        fs::copy(a.join(&name), b.join(&name)).unwrap();
    }
    let map = proposed();
    assert!(!map.contains("is not there"), "{map}");
    assert_eq!(code(&map), 0);
    // Passes of which nothing was written.
    fs::remove_dir_all(b.join("pass_003")).unwrap();
    let map = proposed();
    assert!(map.contains("# The reference has 4 passes and the folder files of 3"), "{map}");
    assert_eq!(code(&map), 3);
}

/// Copies stages of every pass and layer of a folder to another under names of somebody's own.
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
fn a_map_of_several_passes_is_proposed_where_the_later_ones_alone_are_wrong() {
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
    // Where every pass reads one token all files have one shape: those of a later pass are no cache of the first.
    let folder = TempDir::new().unwrap();
    let a = folder.path().join("a");
    ok(&llama_trace(["export", "--ids", "1019", "-n", "3", "--out", a.to_str().unwrap()]));
    let own = folder.path().join("own");
    by_steps(&a, &own, 3, &[("xk", "k_proj"), ("attn_norm", "ln1")]);
    let map = propose(&a, &own);
    let stages: Vec<_> = map.lines().filter_map(|line| Some(line.split_once(" = {")?.0)).collect();
    assert_eq!(stages, ["attn_norm", "xk"], "{map}");
}

/// An export of the built-in model with another setting in its config.json, as another runtime's: without a manifest.
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
fn no_map_that_is_proposed_lets_a_port_with_a_mistake_pass() {
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

/// A port whose files have `export`'s names, in as many passes as there are layers: whatever its mistake makes of the values,
/// each file is the stage that it is called, as it lies, in all passes.
#[test]
fn a_map_of_a_port_with_a_mistake_fits_one_without() {
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
        assert!(!map.contains("Not found") && !map.contains("nothing was found"), "{map}");
        fs::write(b.join("capture.toml"), &map).unwrap();
        let (code, report) =
            diff(&[a.clone(), b.clone()], &["--model", fixture("builtin").to_str().unwrap()]);
        assert_eq!((code, &report["notes"]), (0, &json!([])), "{report}");
        // The port itself still differs.
        fs::write(own.join("capture.toml"), &map).unwrap();
        assert_eq!(diff(&[a.clone(), own.clone()], &[]).0, 1);
    }
}

#[test]
fn a_coarser_precision_is_proposed_where_the_values_show_it() {
    let folder = TempDir::new().unwrap();
    let [a, _] = both(&folder, &[], "");
    for precision in ["bf16", "q8"] {
        let own = folder.path().join(precision);
        let args = ["export", "--ids", IDS, "--precision", precision, "--out", own.to_str().unwrap()];
        ok(&llama_trace(args));
        fs::remove_file(own.join("manifest.json")).unwrap();
        let proposed =
            || ok(&llama_trace(["diff".as_ref(), a.as_os_str(), own.as_os_str(), "--suggest-map".as_ref()]));
        let map = proposed();
        assert!(map.contains(&format!("precision = \"{precision}\"  # ")), "{map}");
        assert!(!map.contains("precision = \"q8\"  # not sure"), "{map}");
        if precision == "q8" {
            // Without the int8 values nothing shows it.
            for layer in 0..4 {
                for stage in ["attn_norm", "attn_heads", "ffn_norm", "ffn_hidden"] {
                    fs::remove_file(own.join(format!("pass_000/layer_{layer:02}/{stage}_q8.npy"))).unwrap();
                }
            }
            fs::remove_file(own.join("pass_000/final_norm_q8.npy")).unwrap();
            assert!(proposed().contains("precision = \"f32\"  # not sure"), "{}", proposed());
        }
    }
}

/// A change of a model's tensors: a mistake of whoever reads them.
type Mistake = (&'static str, fn(&mut super::models::Tensors));

/// Mistakes in the golden GQA model, of those that show in one stage first.
const MISTAKES: [Mistake; 7] = [
    ("values' weights are read transposed", |tensors| transpose(tensors, "v_proj")),
    ("queries' weights are read transposed", |tensors| transpose(tensors, "q_proj")),
    ("gate and up stand for each other", |tensors| swap(tensors, "gate_proj", "up_proj")),
    ("keys and values stand for each other", |tensors| swap(tensors, "k_proj", "v_proj")),
    ("the first norm has no weight", |tensors| scale(tensors, "input_layernorm", |_| 1.0)),
    ("the second norm is one too large", |tensors| scale(tensors, "post_attention_layernorm", |x| x + 1.0)),
    ("attention's output is off in the second layer", |tensors| {
        scale(tensors, "layers.1.self_attn.o_proj", |x| -x);
    }),
];

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

fn scale(tensors: &mut super::models::Tensors, part: &str, change: fn(f32) -> f32) {
    for (_, (_, bytes)) in tensors.iter_mut().filter(|(name, _)| name.contains(part)) {
        *bytes = floats(bytes).into_iter().flat_map(|x| change(x).to_le_bytes()).collect();
    }
}

fn transpose(tensors: &mut super::models::Tensors, part: &str) {
    for (_, (shape, bytes)) in tensors.iter_mut().filter(|(name, _)| name.contains(part)) {
        let (values, [rows, columns]) = (floats(bytes), [shape[0], shape[1]]);
        let at = |i: usize| values[i % columns * rows + i / columns];
        *bytes = (0..values.len()).flat_map(|i| at(i).to_le_bytes()).collect();
    }
}

fn swap(tensors: &mut super::models::Tensors, one: &str, other: &str) {
    let names: Vec<String> = tensors.keys().filter(|name| name.contains(one)).cloned().collect();
    for name in names {
        let [a, b] = [&name, &name.replace(one, other)].map(|name| tensors[name].clone());
        tensors.insert(name.replace(one, other), a);
        tensors.insert(name, b);
    }
}

/// Names of somebody's own: {l} is the layer's number, {m} one more, {n} the number of layers.
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

/// Copies stages of an export of so many layers to a folder under these names.
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

/// Takes all but these stages out of an export, and makes it another runtime's.
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

/// Where the two part, without the cell, and the names of the mistakes.
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

#[test]
fn the_first_stage_is_the_same_with_the_proposed_map_as_with_the_right_one() {
    let ids = "1,5,9,13,17,21";
    let model = fixture("golden/gqa");
    let folder = TempDir::new().unwrap();
    let a = exported(&model, ids, folder.path().join("a"));
    for (number, (mistake, change)) in MISTAKES.into_iter().enumerate() {
        let wrong = super::models::golden("gqa", change);
        for (at, scheme) in [OUTPUTS, FROM_ONE, STATES, PARTS, OPAQUE, NORMS].into_iter().enumerate() {
            let b = exported(wrong.path(), ids, folder.path().join(format!("b{number}{at}")));
            let own = folder.path().join(format!("own{number}{at}"));
            renamed(&b, &own, 3, scheme);
            few(&b, ids, scheme);
            let map = propose(&a, &own);
            fs::write(own.join("capture.toml"), &map).unwrap();
            let right = first(&[a.clone(), b], &model);
            let (code, report) = diff(&[a.clone(), own], &["--model", model.to_str().unwrap()]);
            let found = address(&report);
            assert_eq!((right.0, code), (1, 1), "{mistake}");
            // Names that say nothing may leave a stage beside the wrong one as likely as itself: then both are named.
            let stage = right.1.rsplit('/').next().unwrap();
            let names_both = |note: &serde_json::Value| {
                let note = note.as_str().unwrap();
                note.starts_with("unsure between ") && note.contains(stage)
            };
            let is_told = [OPAQUE, NORMS].contains(&scheme)
                && report["notes"].as_array().unwrap().iter().any(names_both);
            assert!(found == right.1 || is_told, "{mistake}, {}: {report}\n{map}", scheme[0].1);
        }
    }
}

/// Files of a mistaken port and how they are called, with where the right map finds the mistake.
fn held(change: fn(&mut super::models::Tensors), scheme: Scheme, expected: &str) {
    let (ids, model) = ("1,5,9,13,17,21", fixture("golden/gqa"));
    let folder = TempDir::new().unwrap();
    let a = exported(&model, ids, folder.path().join("a"));
    let wrong = super::models::golden("gqa", change);
    let b = exported(wrong.path(), ids, folder.path().join("b"));
    let own = folder.path().join("own");
    renamed(&b, &own, 3, scheme);
    few(&b, ids, scheme);
    assert_eq!(first(&[a.clone(), b], &model).1, expected);
    let map = propose(&a, &own);
    fs::write(own.join("capture.toml"), &map).unwrap();
    let (code, address, _) = first(&[a, own], &model);
    assert_eq!((code, &*address), (1, expected), "{map}");
}

/// A port's files under `scheme`: with the right map `expected` is where the mistake is, and with the proposed one too, or it is
/// named as what a file may be.
fn told(a: &Path, b: &Path, model: &Path, scheme: Scheme, expected: &str) {
    let folder = TempDir::new().unwrap();
    let own = folder.path().join("own");
    renamed(b, &own, 3, scheme);
    let right = folder.path().join("right");
    (0..3).for_each(|layer| fs::create_dir_all(right.join(format!("pass_000/layer_{layer:02}"))).unwrap());
    for (stage, name) in scheme {
        let layer = if name.contains("{l}") { "layer_0{l}/" } else { "" };
        renamed(b, &right, 3, &[(stage, &format!("pass_000/{layer}{stage}"))]);
    }
    let map = "format = \"llama-trace capture\"\nversion = 1\nprecision = \"f32\"\n";
    let map = format!("{map}passes = [{{ start = 0, tokens = [1,5,9,13,17,21] }}]\n");
    fs::write(right.join("capture.toml"), map).unwrap();
    let (code, address, names) = first(&[a.to_owned(), right], model);
    assert_eq!((code, &*address), (1, expected), "the right map: {names}");
    let map = propose(a, &own);
    fs::write(own.join("capture.toml"), &map).unwrap();
    let (code, report) = diff(&[a.to_owned(), own], &["--model", model.to_str().unwrap()]);
    let stage = expected.rsplit('/').next().unwrap();
    let is_named = |note: &serde_json::Value| {
        let between = note.as_str().unwrap().strip_prefix("unsure between ");
        between.is_some_and(|note| note.split([' ', ',', ':']).any(|word| word == stage))
    };
    let is_unsure = report["notes"].as_array().unwrap().iter().any(is_named);
    assert_eq!(code, 1, "{report}\n{map}");
    assert!(self::address(&report) == expected || is_unsure, "{expected}: {report}\n{map}");
}

/// Mistakes that give a stage the values of another one: its file is taken for that, and the next stage is blamed, unless the map
/// says what the file may be.
#[test]
fn a_file_with_the_values_that_a_known_mistake_gives_it_is_not_surely_another_stage_s() {
    let (ids, model) = ("1,5,9,13,17,21", fixture("golden/gqa"));
    let folder = TempDir::new().unwrap();
    let a = exported(&model, ids, folder.path().join("a"));
    // RoPE left out: angles of nothing.
    let still = super::models::golden("gqa", |_| {});
    super::models::edit_json(&still.path().join("config.json"), |config| {
        config["rope_parameters"] = json!({"rope_type": "linear", "factor": 1e9, "rope_theta": 2000.0});
    });
    let still = exported(still.path(), ids, folder.path().join("still"));
    told(&a, &still, &model, OPAQUE, "p0/L0/xq_rope");
    told(
        &a,
        &still,
        &model,
        &[("xq_rope", "ja{l}"), ("attn_output", "jb{l}"), ("logits", "jc")],
        "p0/L0/xq_rope",
    );
    let keys: Scheme = &[("xk", "ja{l}"), ("xk_rope", "jb{l}"), ("ffn_norm", "jc{l}"), ("logits", "jd")];
    told(&a, &still, &model, keys, "p0/L0/xk_rope");
    // Keys and values, and gate and up, that stand for each other.
    let swapped = |one: &'static str, other: &'static str| {
        let wrong = super::models::golden("gqa", |tensors| swap(tensors, one, other));
        exported(wrong.path(), ids, folder.path().join(one))
    };
    let kv = swapped("k_proj", "v_proj");
    let both: Scheme = &[("xk", "ja{l}"), ("xv", "jb{l}"), ("xk_rope", "jc{l}"), ("logits", "jd")];
    told(&a, &kv, &model, both, "p0/L0/xk");
    let named: Scheme = &[("xk", "L{l}K"), ("xv", "L{l}V"), ("xk_rope", "L{l}KRope"), ("logits", "jd")];
    told(&a, &kv, &model, named, "p0/L0/xk");
    let gates: Scheme =
        &[("ffn_gate", "ja{l}"), ("ffn_silu", "jd{l}"), ("ffn_up", "jb{l}"), ("ffn_hidden", "jc{l}")];
    told(&a, &swapped("gate_proj", "up_proj"), &model, gates, "p0/L0/ffn_gate");
    // Files that are another's: an activation that is left out, and all that comes after it wrong.
    let wrong = super::models::golden("gqa", |tensors| scale(tensors, "down_proj", |x| x * -3.0));
    let silent = exported(wrong.path(), ids, folder.path().join("silent"));
    for layer in 0..3 {
        let at = |stage: &str| silent.join(format!("pass_000/layer_0{layer}/{stage}.npy"));
        fs::copy(at("ffn_gate"), at("ffn_silu")).unwrap();
        skew(&at("ffn_hidden"));
    }
    told(&a, &silent, &model, gates, "p0/L0/ffn_silu");
    let alone: Scheme = &[("ffn_silu", "jd{l}"), ("ffn_hidden", "jc{l}"), ("logits", "je")];
    told(&a, &silent, &model, alone, "p0/L0/ffn_silu");
    // What the second layer's network gives is not added to what it read.
    let bare = exported(wrong.path(), ids, folder.path().join("bare"));
    for entry in fs::read_dir(a.join("pass_000/layer_00")).unwrap().map(Result::unwrap) {
        for layer in ["layer_00", "layer_01"] {
            let name = PathBuf::from("pass_000").join(layer).join(entry.file_name());
            fs::copy(a.join(&name), bare.join(&name)).unwrap();
        }
    }
    let [given, sum] =
        ["ffn_down", "ffn_residual"].map(|stage| bare.join(format!("pass_000/layer_01/{stage}.npy")));
    fs::copy(given, sum).unwrap();
    let sums: Scheme =
        &[("attn_residual", "ja{l}"), ("ffn_norm", "jb{l}"), ("ffn_residual", "jc{l}"), ("logits", "jd")];
    told(&a, &bare, &model, sums, "p0/L1/ffn_residual");
}

/// Queries and keys that stand one place further on have the same scores: what comes after them says nothing of them.
#[test]
fn queries_and_keys_that_are_turned_alike_by_other_angles_are_no_other_files() {
    let (ids, model) = ("1,5,9,13,17,21", fixture("golden/gqa"));
    let folder = TempDir::new().unwrap();
    let [a, b] = ["a", "b"].map(|name| exported(&model, ids, folder.path().join(name)));
    let files =
        (0..3).flat_map(|layer| ["xq_rope", "xk_rope"].map(|stage| format!("layer_0{layer}/{stage}.npy")));
    for file in files.map(|file| b.join("pass_000").join(file)) {
        let bytes = fs::read(&file).unwrap();
        let mut values = floats(&bytes[128..]);
        for head in values.chunks_exact_mut(8) {
            for i in 0..4 {
                let (sin, cos) = 2000_f32.powf(-(i as f32) / 4.0).sin_cos();
                (head[i], head[i + 4]) =
                    (head[i] * cos - head[i + 4] * sin, head[i] * sin + head[i + 4] * cos);
            }
        }
        let values = values.into_iter().flat_map(f32::to_le_bytes);
        fs::write(file, bytes[..128].iter().copied().chain(values).collect::<Vec<u8>>()).unwrap();
    }
    let named: Scheme =
        &[("xq_rope", "q_rot{l}"), ("xk_rope", "k_rot{l}"), ("scores", "qk{l}"), ("logits", "logits")];
    told(&a, &b, &model, named, "p0/L0/xq_rope");
    let opaque: Scheme = &[("xq", "ja{l}"), ("xq_rope", "jb{l}"), ("xk_rope", "jc{l}"), ("logits", "jd")];
    told(&a, &b, &model, opaque, "p0/L0/xq_rope");
}

/// A mistake may leave nothing that is like any stage: families are comments then, and no file is left out.
#[test]
fn families_of_which_nothing_is_near_are_told_of() {
    let (ids, model) = ("1,5,9,13,17,21", fixture("golden/gqa"));
    let folder = TempDir::new().unwrap();
    let a = exported(&model, ids, folder.path().join("a"));
    let wrong = super::models::golden("gqa", |tensors| swap(tensors, "k_proj", "v_proj"));
    let b = exported(wrong.path(), ids, folder.path().join("b"));
    let own = folder.path().join("own");
    let some: Scheme = &[
        ("attn_heads", "ja{l}"),
        ("ffn_hidden", "jb{l}"),
        ("attn_residual", "jc{l}"),
        ("ffn_residual", "jd{l}"),
    ];
    renamed(&b, &own, 3, some);
    let map = propose(&a, &own);
    for file in ["ja{layer}.npy", "jb{layer}.npy", "jc{layer}.npy", "jd{layer}.npy"] {
        assert!(map.lines().any(|line| line.starts_with("# ") && line.contains(file)), "{map}");
    }
    fs::write(own.join("capture.toml"), &map).unwrap();
    let output = llama_trace(["diff".as_ref(), a.as_os_str(), own.as_os_str()]);
    assert_eq!(output.status.code(), Some(2), "{map}");
}

/// Names of several words in one, in capitals or not.
#[test]
fn words_that_stand_in_one_say_what_a_file_is_after_a_mistake() {
    let camel: Scheme = &[
        ("attn_residual", "layer{l}AfterAttn"),
        ("ffn_norm", "ffnNorm{l}"),
        ("ffn_down", "ffnDown{l}"),
        ("ffn_residual", "blockOut{l}"),
        ("logits", "lmHead"),
    ];
    let capitals: Scheme = &[
        ("attn_norm", "L{l}_ATTNNORM"),
        ("attn_residual", "L{l}_RESID1"),
        ("ffn_up", "L{l}_FFNUP"),
        ("ffn_down", "L{l}_FFNDOWN"),
        ("logits", "LOGITS"),
    ];
    let joined: Scheme = &[("ffn_down", "ffndown_{l}"), ("attn_output", "attnout_{l}"), ("logits", "logits")];
    let down = |tensors: &mut super::models::Tensors| scale(tensors, "down_proj", |x| x * -3.0);
    for scheme in [camel, capitals, joined] {
        held(down, scheme, "p0/L0/ffn_down");
    }
    held(|tensors| swap(tensors, "gate_proj", "up_proj"), capitals, "p0/L0/ffn_up");
}

/// A norm hides how long its input is: that it is right says nothing of that.
#[test]
fn a_file_that_points_where_its_stage_does_is_that_stage_however_long_it_is() {
    let scheme =
        &[("embedding", "vocab.output_0"), ("attn_norm", "in.{l}.output_0"), ("logits", "lm.output_0")];
    held(|tensors| scale(tensors, "embed_tokens", |x| x * 5.0), scheme, "p0/embedding");
}

/// The states before and after each layer, in one family: what follows the embedding in it is no sublayer's.
#[test]
fn a_family_that_goes_on_from_the_embedding_is_the_residual_stream() {
    let scheme = &[("embedding", "state_0"), ("ffn_residual", "state_{m}")];
    let loud = |tensors: &mut super::models::Tensors| scale(tensors, "up_proj", |x| x * -40.0);
    held(loud, scheme, "p0/L0/ffn_residual");
}

/// Two numbers in a name: the layer's is the one by which most fits.
#[test]
fn the_layer_s_number_is_the_same_one_in_all_names_of_a_kind() {
    let scheme =
        &[("attn_output", "branch1_{l}"), ("ffn_down", "branch2_{l}"), ("ffn_residual", "stream_{l}")];
    let last = |tensors: &mut super::models::Tensors| scale(tensors, "layers.2.self_attn.o_proj", |x| -x);
    held(last, scheme, "p0/L2/attn_output");
}

/// What turns by its position alone is first right at the first token, and what is of each token alone is not.
#[test]
fn what_is_right_at_the_first_token_alone_is_behind_rope() {
    let folder = TempDir::new().unwrap();
    let [a, _] = both(&folder, &[], "");
    let b = with_setting(&folder, "rope_theta", 500_000.0, &[]);
    let own = folder.path().join("own");
    renamed(
        &b,
        &own,
        4,
        &[("xq_rope", "a{l}"), ("xk_rope", "b{l}"), ("attn_output", "e{l}"), ("logits", "z")],
    );
    let map = propose(&a, &own);
    fs::write(own.join("capture.toml"), &map).unwrap();
    let (code, address, _) = first(&[a, own], &fixture("builtin"));
    assert_eq!((code, &*address), (1, "p0/L0/xq_rope"), "{map}");
}

/// The final norm was left out: its file has what the last layer gives, and nothing after it says that it is wrong.
#[test]
fn a_final_norm_that_is_left_out_does_not_pass() {
    let folder = TempDir::new().unwrap();
    let [a, b] = both(&folder, &[], "");
    let states: Scheme = &[("embedding", "hidden_states.0"), ("ffn_residual", "hidden_states.{m}")];
    let norms: Scheme = &[("attn_norm", "blockA.{l}"), ("ffn_norm", "blockB.{l}")];
    let named: Scheme = &[("attn_norm", "n1.{l}"), ("ffn_norm", "n2.{l}")];
    for (name, scheme, last) in
        [("states", states, None), ("norms", norms, Some("blockC")), ("named", named, Some("model_norm_out"))]
    {
        let own = folder.path().join(name);
        renamed(&b, &own, 4, scheme);
        if let Some(last) = last {
            fs::copy(b.join("pass_000/layer_03/ffn_residual.npy"), own.join(format!("{last}.npy"))).unwrap();
        }
        let map = propose(&a, &own);
        fs::write(own.join("capture.toml"), &map).unwrap();
        let (code, report) = diff(&[a.clone(), own], &["--model", fixture("builtin").to_str().unwrap()]);
        assert_eq!((code, &*address(&report)), (1, "p0/final_norm"), "{report}\n{map}");
        assert!(report["diagnosis"].to_string().contains("norm_missing"), "{report}");
        let is_unsure = report["notes"].to_string().contains("unsure between final_norm and ffn_residual");
        assert_eq!(is_unsure, name != "named", "{report}\n{map}");
    }
    // Of other names nothing says that the last state is normed: the map says what that would mean.
    let own = folder.path().join("others");
    renamed(&b, &own, 4, &[("embedding", "state_0"), ("ffn_residual", "state_{m}")]);
    let map = propose(&a, &own);
    assert!(map.contains("that norm is left out"), "{map}");
    fs::write(own.join("capture.toml"), &map).unwrap();
    // What was compared is right: no difference, and the report says where a mistake would not show.
    let folders = [a.clone(), own];
    let beyond = "not compared, nor anything that is computed from it: p0/final_norm, p0/logits; a mistake there does not show";
    for model in [&["--model", fixture("builtin").to_str().unwrap()][..], &[]] {
        let (code, report) = diff(&folders, model);
        assert_eq!((code, &*address(&report)), (0, "same"), "{map}");
        assert!(report["notes"].to_string().contains(beyond), "{report}");
    }
    let text = ok(&llama_trace(["diff".as_ref(), folders[0].as_os_str(), folders[1].as_os_str()]));
    assert!(text.contains(beyond), "{text}");
    // Where logits are there and right, all that leads to them is.
    let own = folder.path().join("whole");
    renamed(&b, &own, 4, &[("embedding", "state_0"), ("logits", "logits")]);
    fs::write(own.join("capture.toml"), propose(&a, &own)).unwrap();
    let (code, report) = diff(&[a, own], &[]);
    assert_eq!((code, &report["notes"]), (0, &json!([])), "{report}");
}

/// Where everything is rounded to float16, which is nearer than bfloat16, it is no residual stream alone that is.
#[test]
fn a_run_in_float16_with_logits_in_float32_is_told_by_all_of_its_files() {
    let folder = TempDir::new().unwrap();
    let [a, b] = both(&folder, &[], "");
    let own = folder.path().join("own");
    renamed(&b, &own, 4, OPAQUE);
    for entry in fs::read_dir(&own).unwrap().map(Result::unwrap) {
        if entry.file_name() != "z.npy" {
            let mut bytes = fs::read(entry.path()).unwrap();
            for value in bytes[128..].chunks_exact_mut(4) {
                let rounded = half::f16::from_f32(f32::from_le_bytes(value.try_into().unwrap())).to_f32();
                value.copy_from_slice(&rounded.to_le_bytes());
            }
            fs::write(entry.path(), bytes).unwrap();
        }
    }
    let map = propose(&a, &own);
    assert!(
        map.contains("precision = \"f16\"  # not sure: every value has its bits but the logits'"),
        "{map}"
    );
    fs::write(own.join("capture.toml"), &map).unwrap();
    assert_eq!(first(&[a, own], &fixture("builtin")).0, 0, "{map}");
}

/// Healthy runs in bfloat16 whose logits were made in float32. Of the rest they wrote only what not every such run rounds.
#[test]
fn a_run_in_bfloat16_of_which_little_was_written_passes() {
    let (ids, model) = ("1,5,9,13,17,21", fixture("golden/gqa"));
    let folder = TempDir::new().unwrap();
    let a = exported(&model, ids, folder.path().join("a"));
    let sixteen = folder.path().join("sixteen");
    let args = ["export", "--model", model.to_str().unwrap(), "--precision", "bf16", "--ids", ids, "--out"];
    ok(&llama_trace(args.into_iter().chain([sixteen.to_str().unwrap()])));
    let schemes: [(&str, Scheme); 5] = [
        ("embedding", &[("embedding", "emb"), ("logits", "logits")]),
        ("softmax", &[("softmax", "p{l}"), ("logits", "logits")]),
        ("rope", &[("rope_cos", "cos"), ("rope_sin", "sin"), ("logits", "logits")]),
        ("all", &[("embedding", "e"), ("softmax", "p{l}"), ("rope_cos", "cos"), ("logits", "logits")]),
        ("none", &[("embedding", "e"), ("softmax", "p{l}")]),
    ];
    for (name, scheme) in schemes {
        let own = folder.path().join(name);
        renamed(&sixteen, &own, 3, scheme);
        // A runtime that keeps cos and sin, shares and what it looked up in the type of the model.
        let files = fs::read_dir(&own).unwrap().map(|entry| entry.unwrap().path());
        files.filter(|file| !file.ends_with("logits.npy")).for_each(|file| round(&file));
        if let Ok(mut bytes) = fs::read(own.join("logits.npy")) {
            bytes[128..].chunks_exact_mut(4).for_each(|value| value[0] ^= 1);
            fs::write(own.join("logits.npy"), bytes).unwrap();
        }
        let map = propose(&a, &own);
        assert!(map.contains("precision = \"bf16\"  # not sure: "), "{name}: {map}");
        fs::write(own.join("capture.toml"), &map).unwrap();
        for model in [&["--model", model.to_str().unwrap()][..], &[]] {
            let (code, report) = diff(&[a.clone(), own.clone()], model);
            assert_eq!((code, &*address(&report)), (0, "same"), "{name}: {report}\n{map}");
        }
    }
    // With a stage that every such run rounds and that is not: it ran in float32, and its angles alone were rounded.
    let own = folder.path().join("exact");
    let some: Scheme =
        &[("embedding", "e"), ("attn_norm", "n{l}"), ("rope_cos", "cos"), ("logits", "logits")];
    renamed(&a, &own, 3, some);
    round(&own.join("cos.npy"));
    let map = propose(&a, &own);
    assert!(map.contains("precision = \"f32\""), "{map}");
    fs::write(own.join("capture.toml"), &map).unwrap();
    let (code, address, names) = first(&[a.clone(), own], &model);
    assert_eq!((code, &*address), (1, "p0/rope_cos"), "{map}");
    assert!(names.contains("bf16_rounding"), "{names}");
    // A table that has 16 bits in the reference too says nothing of the run.
    let own = folder.path().join("table");
    renamed(&a, &own, 3, &[("embedding", "e"), ("logits", "logits")]);
    round(&own.join("e.npy"));
    let b = exported(&model, ids, folder.path().join("b"));
    fs::copy(own.join("e.npy"), b.join("pass_000/embedding.npy")).unwrap();
    skew(&own.join("logits.npy"));
    assert!(propose(&b, &own).contains("precision = \"f32\""));
}

/// A wrong θ in a port that writes layer outputs alone.
#[test]
fn a_mistake_of_every_layer_is_named_where_layer_outputs_alone_are_written() {
    let folder = TempDir::new().unwrap();
    let [a, _] = both(&folder, &[], "");
    for (theta, setting) in [(500_000.0, OUTPUTS), (100.0, FROM_ONE), (1e6, STATES)] {
        let b = with_setting(&folder, "rope_theta", theta, &[]);
        let own = folder.path().join(format!("own{theta}"));
        renamed(&b, &own, 4, setting);
        fs::remove_dir_all(&b).unwrap();
        fs::remove_dir_all(folder.path().join("model-rope_theta")).unwrap();
        let map = propose(&a, &own);
        fs::write(own.join("capture.toml"), &map).unwrap();
        let (code, address, names) = first(&[a.clone(), own], &fixture("builtin"));
        assert_eq!((code, &*address), (1, "p0/L0/ffn_residual"), "{map}");
        assert!(names.contains("rope_theta"), "{names}\n{map}");
    }
}

/// What transformers returns as hidden states: what enters each layer, and last what the final norm gives.
#[test]
fn states_of_which_the_last_is_normed_are_two_stages_and_a_right_run_passes() {
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
    // And one that is wrong in the last layer is wrong there.
    skew(&own.join("hidden_states.3.npy"));
    let map = propose(&a, &own);
    fs::write(own.join("capture.toml"), &map).unwrap();
    let (code, address, _) = first(&[a, own], &fixture("builtin"));
    assert_eq!((code, &*address), (1, "p0/L2/ffn_residual"), "{map}");
}

#[test]
fn of_a_right_run_what_is_not_sure_is_a_comment_and_no_file_is_taken_twice() {
    let folder = TempDir::new().unwrap();
    let [a, b] = both(&folder, &["-n", "2"], "");
    let own = folder.path().join("own");
    renamed(
        &b,
        &own,
        4,
        &[("embedding", "h0"), ("ffn_residual", "h{m}"), ("attn_norm", "n{l}"), ("logits", "out")],
    );
    // Files that are of no stage: a norm before its weight, one token's logits, what is like a stage and is none.
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
    let files: Vec<_> =
        map.lines().filter_map(|line| line.split('"').nth(1).filter(|file| file.ends_with(".npy"))).collect();
    let all: std::collections::BTreeSet<_> = files.iter().collect();
    assert_eq!(all.len(), files.len(), "{map}");
    fs::write(own.join("capture.toml"), map.replace("\n# The reference has", "\n# It has")).unwrap();
    let (code, report) = diff(&[a, own], &["--model", fixture("builtin").to_str().unwrap()]);
    assert_eq!(report["first"], serde_json::Value::Null, "{report}\n{map}");
    assert!([0, 3].contains(&code), "{report}");
}

/// Rounds a file's values to bfloat16.
fn round(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    for value in bytes[128..].chunks_exact_mut(4) {
        let rounded = half::bf16::from_f32(f32::from_le_bytes(value.try_into().unwrap())).to_f32();
        value.copy_from_slice(&rounded.to_le_bytes());
    }
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_residual_that_is_kept_in_16_bits_in_a_run_of_float32_does_not_pass() {
    let folder = TempDir::new().unwrap();
    let [a, b] = both(&folder, &[], "");
    let own = folder.path().join("own");
    renamed(&b, &own, 4, &[("ffn_residual", "h{l}"), ("logits", "logits")]);
    (0..4).for_each(|layer| round(&own.join(format!("h{layer}.npy"))));
    let map = propose(&a, &own);
    assert!(map.contains("precision = \"f32\"  # the residual stream has the bits of bf16"), "{map}");
    fs::write(own.join("capture.toml"), &map).unwrap();
    for model in [&["--model", fixture("builtin").to_str().unwrap()][..], &[]] {
        let (code, report) = diff(&[a.clone(), own.clone()], model);
        let address = report["first"]["address"].as_str().unwrap_or("same");
        assert!(code == 1 && address.starts_with("p0/L0/ffn_residual["), "{report}\n{map}");
    }
    // A run that rounds every result, and leaves logits, shares and angles as they are, is one of 16 bits.
    let sixteen = folder.path().join("sixteen");
    ok(&llama_trace(["export", "--ids", IDS, "--precision", "bf16", "--out", sixteen.to_str().unwrap()]));
    for (name, scheme) in [
        ("two", &[("ffn_residual", "h{l}"), ("logits", "logits")][..]),
        (
            "more",
            &[
                ("ffn_residual", "h{l}"),
                ("attn_norm", "n{l}"),
                ("softmax", "p{l}"),
                ("rope_cos", "cos"),
                ("logits", "logits"),
            ],
        ),
    ] {
        let own = folder.path().join(name);
        let scheme: Scheme = scheme;
        renamed(&sixteen, &own, 4, scheme);
        for file in ["logits", "p0", "p1", "p2", "p3"].map(|file| own.join(format!("{file}.npy"))) {
            if let Ok(mut bytes) = fs::read(&file) {
                bytes[128..].chunks_exact_mut(4).for_each(|value| value[0] ^= 1);
                fs::write(file, bytes).unwrap();
            }
        }
        let map = propose(&a, &own);
        assert!(
            map.contains("precision = \"bf16\"  # not sure: every value has its bits but the logits'"),
            "{map}"
        );
        fs::write(own.join("capture.toml"), &map).unwrap();
        assert_eq!(first(&[a.clone(), own], &fixture("builtin")).0, 0, "{map}");
    }
}
