//! `--edit`, `--edits` and `--without`: the values that a run changes, and what the program says about them.

use std::fs;
use std::process::Output;

use ndarray::ArrayD;
use ndarray_npy::WriteNpyExt;
use serde_json::Value;

use super::common::{llama_trace, stderr, stdout};
use super::ok;

const PROMPT: &str = "Once upon a time, there was a fox";

fn run(more: &[&str]) -> Output {
    llama_trace([&["--prompt", PROMPT, "-n", "8"], more].concat())
}

/// The text of a run with edits, and the lines about them.
fn edited(edits: &[&str]) -> (String, String) {
    let options: Vec<&str> = edits.iter().flat_map(|edit| ["--edit", edit]).collect();
    let output = run(&options);
    (ok(&output), stderr(&output))
}

fn refused(more: &[&str], code: i32, said: &[&str]) {
    let output = run(more);
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{more:?}: {told}");
    said.iter().for_each(|said| assert!(told.contains(said), "{more:?}: {said} in {told}"));
}

#[test]
fn each_edit_has_a_line_with_the_cells_and_the_last_line_says_how_far_the_logits_moved() {
    let plain = ok(&run(&[]));
    let (text, told) = edited(&["L0/attn_heads[h=2] = 0", "logits *= 0.5"]);
    assert_ne!(text, plain);
    let lines: Vec<_> = told.lines().collect();
    assert_eq!(lines.len(), 3, "{told}");
    assert!(lines[0].starts_with(
        "edit `L0/attn_heads[h=2] = 0`: 544 cells changed, p0/L0/attn_heads[t=0,h=2,c=0] from "
    ));
    assert!(lines[0].ends_with(" to 0") && lines[1].starts_with("edit `logits *= 0.5`: "), "{told}");
    assert!(
        lines[2].starts_with("the edits moved the logits after the prompt by ")
            && lines[2].contains("most likely token")
    );
    // `--without` is the same edit.
    let output = run(&["--without", "L0/h2", "--edit", "logits *= 0.5"]);
    assert_eq!(ok(&output), text);
    assert!(stderr(&output).contains("edit `L0/h2 off`: 544 cells changed"), "{}", stderr(&output));
}

#[test]
fn an_edit_that_changes_nothing_is_a_warning_and_leaves_the_text() {
    let plain = ok(&run(&[]));
    let (text, told) = edited(&["softmax *= 1", "xq += 0"]);
    assert_eq!(text, plain);
    assert!(told.contains("warning: the edit `softmax *= 1` changed nothing: its "), "{told}");
    assert!(told.contains("by 0.000 % (relative L2)"), "{told}");
    // The prompt has ten tokens, so no pass after the first has row 3.
    let (text, told) = edited(&["p1-7/xq[t=0,pos=3] = 0"]);
    assert_eq!(text, plain);
    assert!(told.contains("found no cell in this run"), "{told}");
}

#[test]
fn a_place_that_does_not_exist_and_a_text_that_is_no_edit_are_refused() {
    for (edit, said) in [
        ("L9/xq = 0", "the model has no layer 9"),
        ("xq[t=10] = 0", "token 10 is past the last"),
        ("L0/h9 off", "head 9 is past the last"),
        ("L0/n9999 off", "past the last"),
        ("p8/xq = 0", "the run has no pass 8"),
        ("xq[pos=17] = 0", "no position 17"),
        ("xq_norm = 0", "no xq_norm"),
        ("sofmax = 0", "did you mean softmax"),
        ("tokens = 3", "--ids"),
        ("xq_heads = 0", "edit xq"),
        ("xq = nan", "NaN"),
        ("xq =", "nothing after"),
        ("xq = no.npy", "no.npy"),
        ("xq = no.trace:xq", "no.trace"),
        ("xq = mean(no.txt)", "no.txt"),
        ("embedding[t=3] = \"a\":embedding[t=9]", "the other run has no p0/embedding[t=9"),
        ("embedding = \"a\":embedding", "the other run has no p0/embedding[t="),
    ] {
        let code = match edit {
            _ if edit.contains("no.trace") => 3,
            _ if edit.contains("no.txt") => 4,
            _ => 2,
        };
        refused(&["--edit", edit], code, &[said]);
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("edits.txt");
    fs::write(&file, "# a comment\n\nL0/xq = 0\nL0/xq = \n").unwrap();
    let file = file.to_str().unwrap();
    refused(&["--edits", file], 2, &["line 4", "nothing after"]);
    // Nothing is switched off then, and there is no --edit to look for.
    let told = stderr(&run(&["--without", "L9/h0"]));
    assert!(told.contains("switching off L9/h0"), "{told}");
    assert!(!told.contains("switched off by --without") && !told.contains("--edit"), "{told}");
}

#[test]
fn a_file_of_edits_another_prompt_a_trace_and_an_array_give_the_same_values() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let other = "Once upon a time, there was a dog";
    let (trace, array, list) = (path("other.trace"), path("row.npy"), path("list.txt"));
    ok(&llama_trace(["record", "--prompt", other, "--out", &trace]));
    let export = path("export");
    ok(&llama_trace([
        "export",
        "--prompt",
        other,
        "--layer",
        "1",
        "--stage",
        "ffn_residual",
        "--out",
        &export,
    ]));
    let whole: ArrayD<f32> =
        ndarray_npy::read_npy(format!("{export}/pass_000/layer_01/ffn_residual.npy")).unwrap();
    let row = whole.index_axis(ndarray::Axis(0), 9).to_owned();
    row.write_npy(fs::File::create(&array).unwrap()).unwrap();
    let place = "p0/L1/ffn_residual[t=9]";
    let by_prompt = edited(&[&format!("{place} = \"{other}\":{place}")]);
    assert!(!by_prompt.1.contains(" 0.000 %"), "{}", by_prompt.1);
    for value in [format!("\"{other}\":"), format!("{trace}:"), format!("{trace}:p0"), array] {
        let (text, told) = edited(&[&format!("{place} = {value}")]);
        assert_eq!(text, by_prompt.0, "{value}");
        let moved = |told: &str| told.lines().last().unwrap().to_owned();
        assert_eq!(moved(&told), moved(&by_prompt.1), "{value}");
    }
    fs::write(&list, format!("{place} = \"{other}\":")).unwrap();
    assert_eq!(ok(&run(&["--edits", &list])), by_prompt.0);
    // A sum of differences: the row itself plus (other − own) is the other row.
    let steered = edited(&[&format!("{place} += 1 * (\"{other}\":{place} - {place})")]);
    assert_eq!(steered.0, by_prompt.0);
}

#[test]
fn a_trace_keeps_what_an_edit_changed_and_is_opened_with_the_same_edits() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("run.trace");
    let trace = trace.to_str().unwrap();
    let edits =
        ["--edit", "L1/softmax[h=0] = mean", "--edit", "L2/mask off", "--edit", "L0/ffn_silu[f=3] *= -1"];
    let prompt = ["--prompt", PROMPT, "-n", "2"];
    ok(&llama_trace([&["record", "--out", trace], &prompt[..], &edits].concat()));
    let values = |args: &[&str]| -> Vec<Value> {
        let text = ok(&llama_trace([&["log", "--values", "--format", "json"], args].concat()));
        let objects = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        objects.map(|mut object| object["values"].take()).collect()
    };
    let live = values(&[&prompt[..], &edits].concat());
    assert!(live.iter().any(|values| !values.is_null()));
    let kept = values(&["--trace", trace]);
    assert_eq!(kept.len(), live.len());
    for (line, (kept, live)) in kept.iter().zip(&live).enumerate() {
        // Statistics of the two sum in different orders, so their last digits may differ.
        assert_eq!(kept["first"], live["first"], "line {line}");
        assert_eq!((&kept["min"], &kept["max"]), (&live["min"], &live["max"]), "line {line}");
    }
    let page = ok(&llama_trace(["explain", "p0/L1/softmax[h=0,t=3,k=1]", "--trace", trace]));
    assert!(page.contains("edited: `L1/softmax[h=0] = mean` wrote this value"), "{page}");
    let page = ok(&llama_trace(["explain", "p0/L1/softmax[h=1,t=3,k=1]", "--trace", trace]));
    assert!(!page.contains("edited"), "{page}");
    let other = llama_trace(["explain", "p0/L1/xq[t=3,h=0,c=1]", "--trace", trace, "--edit", "L0/xq = 0"]);
    assert_eq!(other.status.code(), Some(3));
    assert!(stderr(&other).contains("the edits"), "{}", stderr(&other));
}

#[test]
fn log_info_and_exports_name_the_edits() {
    let edit = ["--edit", "p0/L1/xq = 0", "--without", "L2/ffn"];
    let log = ok(&llama_trace(
        [&["log", "--prompt", PROMPT, "-n", "2", "--stage", "xq,ffn_down"], &edit[..]].concat(),
    ));
    let named: Vec<_> = log.lines().filter(|line| line.contains("  edited: ")).collect();
    assert_eq!(named.len(), 3, "{log}");
    assert!(named[0].starts_with("[p0] layer 1 ") && named[0].ends_with("  edited: p0/L1/xq = 0"), "{log}");
    assert!(named[2].starts_with("[p1] layer 2 ") && named[2].ends_with("  edited: L2/ffn off"), "{log}");
    let info = ok(&llama_trace([&["info"], &edit[..]].concat()));
    assert!(info.contains("\nedit        L2/ffn off\nedit        p0/L1/xq = 0\n"), "{info}");
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let out = out.to_str().unwrap();
    ok(&llama_trace(["export", "--prompt", PROMPT, "--stage", "xq", "--edit", "L1/xq = 0", "--out", out]));
    let manifest: Value =
        serde_json::from_str(&fs::read_to_string(format!("{out}/manifest.json")).unwrap()).unwrap();
    assert_eq!(manifest["model"]["edits"], serde_json::json!(["L1/xq = 0"]), "{manifest}");
}

#[test]
fn check_proves_the_edits() {
    for precision in ["f32", "bf16", "q8"] {
        let output = llama_trace([
            "check",
            "--format",
            "json",
            "--precision",
            precision,
            "--edit",
            "L1/softmax[h=0] = 0",
            "--edit",
            "L2/ffn_gate *= 2",
        ]);
        let report: Value = serde_json::from_str(&ok(&output)).unwrap();
        let of = |name: &str| {
            report["checks"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|check| check["name"] == name)
                .cloned()
                .collect::<Vec<_>>()
        };
        assert_eq!(of("edit:same").len(), 2, "{report}");
        assert_eq!(
            (&of("edit:before")[0]["ok"], &of("edit:before")[0]["skipped"]),
            (&true.into(), &Value::Null)
        );
    }
}

#[test]
fn the_run_from_which_an_edit_reads_has_the_same_passes_and_random_numbers() {
    let sampled = ["--temperature", "1", "--seed", "5"];
    let plain = ok(&run(&sampled));
    let same = ["--edit", "L1/xq = xq", "--edit", "p6/logits = p6/logits"];
    let output = run(&[&sampled[..], &same].concat());
    assert_eq!(ok(&output), plain);
    assert_eq!(stderr(&output).matches("changed nothing").count(), 2, "{}", stderr(&output));
    // The prompt has ten tokens: passes over 4, 4 and 2 of them, and a decode pass.
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let chunks = ["export", "--prompt", PROMPT, "-n", "2", "--chunk", "4", "--stage", "logits", "--out"];
    let edits = ["--edit", "p3/L0/ffn_up = ffn_up", "--edit", "p1/L2/xv[t=3] = p1/L2/xv"];
    let output = llama_trace([&chunks[..], &[&path("same")], &edits].concat());
    ok(&output);
    assert_eq!(stderr(&output).matches("changed nothing").count(), 2, "{}", stderr(&output));
    // The distance is that of the logits in these passes: only the last one is edited.
    let output = llama_trace([&chunks[..], &[&path("last"), "--edit", "p2/final_norm = 0"]].concat());
    ok(&output);
    assert!(stderr(&output).contains("by 100.000 % (relative L2)"), "{}", stderr(&output));
}

#[test]
fn a_source_that_names_a_token_needs_a_pass_unless_only_the_first_pass_is_edited() {
    let steering =
        |pass: &str| format!("L1/attn_output += 4 * (\"happy\":{pass}[t=1] - \"sad\":{pass}[t=1])");
    let output = run(&["--edit", &steering("")]);
    let told = stderr(&output);
    // The edit is refused before the first token.
    assert_eq!((output.status.code(), &*stdout(&output)), (Some(2), ""), "{told}");
    for part in ["the other run has no p1/L1/attn_output[t=1", "name the pass", "--edit \"L1/attn_output"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let (_, told) = edited(&[&steering("p0/")]);
    assert!(told.contains("cells changed, p0/L1/attn_output[t=0,d=0]"), "{told}");
    let (_, first) = edited(&[&format!("p0/{}", steering(""))]);
    assert!(first.contains("cells changed"), "{first}");
}

#[test]
fn each_command_that_runs_a_model_says_what_an_edit_changed() {
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("a.txt");
    let nothing = ["--prompt", "A fox", "--edit", "softmax *= 1"];
    let edit = ["--prompt", "A fox", "--edit", "L0/xq *= 2"];
    let commands: [&[&str]; 5] = [
        &["lens"],
        &["attribute"],
        &["attribute", "--parts", "heads"],
        &["explain", "L0/xq[t=0,h=0,c=0]"],
        &["snapshot", "--force", "--out", picture.to_str().unwrap()],
    ];
    for command in commands {
        let said = |more: &[&str]| {
            let output = llama_trace([command, more].concat());
            assert_eq!(output.status.code(), Some(0), "{command:?}: {}", stderr(&output));
            stderr(&output)
        };
        let told = said(&nothing);
        assert!(told.contains("warning: the edit `softmax *= 1` changed nothing"), "{command:?}: {told}");
        let told = said(&edit);
        assert!(
            told.contains("edit `L0/xq *= 2`: ") && told.contains("cells changed"),
            "{command:?}: {told}"
        );
    }
}

#[test]
fn a_pass_that_a_trace_does_not_have_is_left_out_or_refused_if_the_edit_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("other.trace");
    let trace = trace.to_str().unwrap();
    ok(&llama_trace(["record", "--prompt", "Once upon a time, there was a dog", "-n", "2", "--out", trace]));
    let (_, told) = edited(&[&format!("L0/xq = {trace}:xq")]);
    // Ten tokens of the prompt, one token of the second pass, 128 values each.
    assert!(told.contains(" of 1408 cells changed") || told.contains("1408 cells changed"), "{told}");
    refused(&["--edit", &format!("L0/xq = {trace}:p2/xq")], 2, &["the other run has no p2/L0/xq"]);
    // A pass without edited cells reads nothing: only the first one has a row 4, and a mask.
    let (_, told) = edited(&["L0/scores[t=4] = \"Once upon a time, there was a dog\":masked_scores[t=9]"]);
    assert!(told.contains("cells changed"), "{told}");
}
