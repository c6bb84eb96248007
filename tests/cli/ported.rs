//! `llama-trace diff` of folders from another runtime: the declarations and mistakes in their capture.toml.

use std::fs;
use std::path::{Path, PathBuf};

use ndarray::{ArrayD, Axis};
use ndarray_npy::{ReadNpyExt, WriteNpyExt};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{command, fixture, llama_trace, ok, stderr, stdout};

/// The ids of "Once upon a time" in the built-in model.
pub(crate) const IDS: &str = "1019,420,419,258,391";

/// Returns an export of the built-in model with the options `more`, and a copy that looks like another runtime's
/// folder. Instead of a manifest, the copy has a capture.toml with the lines `map`.
pub(crate) fn both(folder: &TempDir, more: &[&str], map: &str) -> [PathBuf; 2] {
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    for out in [&a, &b] {
        let args = ["export", "--ids", IDS, "--out", out.to_str().unwrap()];
        ok(&llama_trace(args.into_iter().chain(more.iter().copied())));
    }
    fs::remove_file(b.join("manifest.json")).unwrap();
    mapped(&b, &format!("passes = [{{ start = 0, tokens = [{IDS}] }}]\n{map}"));
    [a, b]
}

/// Writes the folder's map.
fn mapped(folder: &Path, map: &str) {
    let head = "format = \"llama-trace capture\"\nversion = 1\nprecision = \"f32\"\n";
    fs::write(folder.join("capture.toml"), format!("{head}{map}")).unwrap();
}

pub(crate) fn diff(folders: &[PathBuf; 2], more: &[&str]) -> (i32, Value) {
    let [a, b] = [0, 1].map(|i| folders[i].to_str().unwrap());
    let args = ["diff", a, b, "--format", "json"];
    let output = llama_trace(args.into_iter().chain(more.iter().copied()));
    let report = serde_json::from_str(&stdout(&output)).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    (output.status.code().unwrap(), report)
}

fn refused(folders: &[PathBuf; 2], texts: &[&str]) {
    let output = llama_trace(["diff".as_ref(), folders[0].as_os_str(), folders[1].as_os_str()]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(3), "{said}");
    texts.iter().for_each(|text| assert!(said.contains(text), "`{text}` is not in\n{said}"));
}

/// Multiplies the first `count` values of a stage's file by a factor.
fn times(folder: &Path, stage: &str, factor: f32, count: usize) {
    let path = folder.join(format!("pass_000/{stage}.npy"));
    let mut bytes = fs::read(&path).unwrap();
    // The header of an export's file has 128 bytes.
    for value in bytes[128..].chunks_exact_mut(4).take(count) {
        let other = f32::from_le_bytes(value.try_into().unwrap()) * factor;
        value.copy_from_slice(&other.to_le_bytes());
    }
    fs::write(path, bytes).unwrap();
}

fn model() -> String {
    fixture("builtin").display().to_string()
}

#[test]
fn other_sampled_tokens_are_reported_after_their_cause() {
    let folder = TempDir::new().unwrap();
    let folders = both(&folder, &["-n", "3"], "");
    // Simulates a port that sampled other tokens after a mistake in layer 1.
    let drawn = |ids: [u32; 2]| {
        let [first, second] = ids;
        mapped(
            &folders[1],
            &format!(
                "passes = [{{ start = 0, tokens = [{IDS}] }}, {{ start = 5, tokens = [{first}] }}, {{ start = 6, tokens = [{second}] }}]\n"
            ),
        );
    };
    drawn([7, 8]);
    let (code, report) = diff(&folders, &["--model", &model()]);
    let first = &report["first"];
    assert_eq!((code, &first["kind"], &first["address"]), (1, &json!("tokens"), &json!("p1/tokens[t=0]")));
    assert_eq!(first["theirs"], json!(7));
    assert_eq!(report["diagnosis"], json!([]), "one other token is not the mistake `bos`");
    times(&folders[1], "layer_01/ffn_hidden", 3.0, 1);
    for more in [&[][..], &["--model", &model()]] {
        let (code, report) = diff(&folders, more);
        assert_eq!((code, &report["first"]["address"]), (1, &json!("p0/L1/ffn_hidden[t=0,f=0]")), "{report}");
    }
    let text = stdout(&llama_trace(["diff".as_ref(), folders[0].as_os_str(), folders[1].as_os_str()]));
    assert!(text.contains("from p1 on the runs read different tokens and are not compared"), "{text}");
}

#[test]
fn the_same_ids_in_other_passes_give_the_advice_to_use_chunk() {
    let folder = TempDir::new().unwrap();
    let folders = both(&folder, &[], "");
    let said = |a: &Path, b: &Path, parts: &[&str]| {
        let output = llama_trace(["diff".as_ref(), a.as_os_str(), b.as_os_str()]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        parts.iter().for_each(|part| assert!(said.contains(part), "{part}: {said}"));
    };
    let [whole, port] = &folders;
    let first = "passes = [{ start = 0, tokens = [1019, 420] }, { start = 2, tokens = [419, ";
    mapped(port, &format!("{first}258] }}, {{ start = 4, tokens = [391] }}]\n"));
    said(whole, port, &["a: 5 tokens in p0", "b: 2 tokens in p0", "export A again with --chunk 2: "]);
    said(port, whole, &["export B again with --chunk 2: "]);
    // No `--chunk` gives these passes, because their lengths differ.
    mapped(port, &format!("{first}258, 391] }}]\n"));
    said(whole, port, &["let the other runtime read its prompt in one pass, or in parts of equal length"]);
    // The port reads its prompt in one pass, and the export reads it in parts.
    let parts = folder.path().join("parts");
    ok(&llama_trace(["export", "--ids", IDS, "--chunk", "3", "--out", parts.to_str().unwrap()]));
    mapped(port, &format!("passes = [{{ start = 0, tokens = [{IDS}] }}]\n"));
    said(&parts, port, &["export A again without --chunk: "]);
    said(
        whole,
        &parts,
        &["make A again, so that it reads its tokens in the same passes", "export --chunk 3`"],
    );
    // A port with fewer prompt tokens read another text.
    mapped(&folders[1], "passes = [{ start = 0, tokens = [1019, 420] }]\n");
    let (code, report) = diff(&folders, &[]);
    assert_eq!((code, &report["first"]["kind"]), (1, &json!("tokens")));
    // Simulates ports that read the prompt in several passes of `chunk` tokens.
    for (chunk, passes) in [("1", 5), ("2", 3), ("9", 1)] {
        let folder = TempDir::new().unwrap();
        let [a, b] = both(&folder, &["--chunk", chunk, "-n", "3"], "");
        let manifest: Value = serde_json::from_slice(&fs::read(a.join("manifest.json")).unwrap()).unwrap();
        let all = manifest["passes"].as_array().unwrap();
        assert_eq!(all.len(), passes + 2, "{manifest}");
        let drawn: Vec<_> = all.iter().map(|pass| pass["sampled"].is_null()).collect();
        assert_eq!(
            drawn.iter().filter(|none| **none).count(),
            passes - 1,
            "passes inside the prompt sample no token"
        );
        let lines = all.iter().map(|pass| {
            let ids: Vec<_> = pass["tokens"].as_array().unwrap().iter().map(|token| &token["id"]).collect();
            format!("{{ start = {}, tokens = {} }}", pass["start"], json!(ids))
        });
        mapped(&b, &format!("passes = [{}]\n", lines.collect::<Vec<_>>().join(", ")));
        // The sampled token is the same as after a prefill in one pass.
        let whole = TempDir::new().unwrap();
        let [one, _] = both(&whole, &["-n", "3"], "");
        let once: Value = serde_json::from_slice(&fs::read(one.join("manifest.json")).unwrap()).unwrap();
        let last =
            |manifest: &Value| manifest["passes"].as_array().unwrap().last().unwrap()["sampled"].clone();
        assert_eq!(last(&manifest), last(&once));
        for more in [&[][..], &["--model", &model()]] {
            let (code, report) = diff(&[a.clone(), b.clone()], more);
            assert_eq!((code, &report["same"]), (0, &json!(true)), "{chunk}: {report}");
        }
    }
    let out = folder.path().join("none");
    let args = ["export", "--ids", IDS, "--chunk", "0", "--out", out.to_str().unwrap()];
    assert_eq!(llama_trace(args).status.code(), Some(2));
}

#[test]
fn the_key_layers_limits_what_is_compared_and_is_checked() {
    let folder = TempDir::new().unwrap();
    let map = |layers: usize| format!("passes = [{{ start = 0, tokens = [{IDS}] }}]\nlayers = {layers}\n");
    let folders = both(&folder, &[], "");
    times(&folders[1], "logits", 1.01, usize::MAX);
    let compared = |layers: usize| {
        mapped(&folders[1], &map(layers));
        diff(&folders, &[])
    };
    let (code, report) = compared(2);
    assert_eq!(code, 0, "{report}");
    let text = stdout(&llama_trace(["diff".as_ref(), folders[0].as_os_str(), folders[1].as_os_str()]));
    assert!(text.contains("in B only the first 2 of 4 layers ran"), "{text}");
    // If all four layers ran, no stage is left out.
    let (code, report) = compared(4);
    assert_eq!((code, &report["first"]["kind"]), (1, &json!("stage")));
    assert!(report["first"]["address"].as_str().unwrap().starts_with("p0/logits["), "{report}");
    mapped(&folders[1], &map(5));
    refused(&folders, &["more layers ran than the model has", "at most 4", "layers = 5"]);
}

#[test]
fn probabilities_are_compared_with_the_logits_of_their_own_run() {
    let folder = TempDir::new().unwrap();
    let folders = both(&folder, &[], "");
    times(&folders[1], "logits", 1.01, usize::MAX);
    // Gives B the probabilities that follow from its changed logits.
    let read = |folder: &Path, name: &str| -> Vec<f32> {
        let bytes = fs::read(folder.join(format!("pass_000/{name}.npy"))).unwrap();
        bytes[128..].chunks_exact(4).map(|value| f32::from_le_bytes(value.try_into().unwrap())).collect()
    };
    let logits = read(&folders[1], "logits");
    let vocab = logits.len() / 5;
    let last = &logits[4 * vocab..];
    let most = last.iter().copied().fold(f32::MIN, f32::max);
    let weights: Vec<f64> = last.iter().map(|logit| f64::from(logit - most).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let path = folders[1].join("pass_000/probs.npy");
    let mut bytes = fs::read(&path).unwrap();
    for (value, weight) in bytes[128..].chunks_exact_mut(4).zip(&weights) {
        value.copy_from_slice(&((weight / sum) as f32).to_le_bytes());
    }
    fs::write(path, bytes).unwrap();
    let [a, b] = [0, 1].map(|i| folders[i].to_str().unwrap());
    let output = llama_trace(["diff", a, b, "--model", &model(), "--format", "junit"]);
    let xml = stdout(&output);
    assert_eq!((output.status.code(), xml.matches("<failure").count()), (Some(1), 1), "{xml}");
    assert!(xml.contains("name=\"logits\"><failure"), "{xml}");
}

#[test]
fn a_file_that_a_map_names_but_that_does_not_exist_is_an_error() {
    let folder = TempDir::new().unwrap();
    let folders = both(&folder, &[], "[config]\nrope_thetta = 5.0\n");
    refused(&folders, &["capture.toml", "`rope_thetta`, which is not a setting", "rope_theta"]);
    let ids = format!("passes = [{{ start = 0, tokens = [{IDS}] }}]\n");
    mapped(&folders[1], &format!("{ids}stages.xq.file = \"typo_{{layer}}.npy\"\n"));
    refused(
        &folders,
        &["4 stages of", "p0/L0/xq", "`typo_{layer}.npy`, but no pass and no layer has that file"],
    );
    // If only one layer has a file, the files of the other layers are reported as missing.
    fs::copy(folders[1].join("pass_000/layer_03/xq.npy"), folders[1].join("typo_3.npy")).unwrap();
    refused(&folders, &["3 stages of", "p0/L0/xq", "names `typo_{layer}.npy`, but there is no typo_0.npy"]);
    mapped(&folders[1], &format!("{ids}stages = {{\n"));
    refused(&folders, &["capture.toml", "(line "]);
    mapped(&folders[1], &ids);
    fs::write(folders[1].join("pass_000/layer_01/ffn_up.npy"), "no numbers").unwrap();
    let text = stdout(&llama_trace(["diff".as_ref(), folders[0].as_os_str(), folders[1].as_os_str()]));
    assert!(text.contains("layer_01/ffn_up.npy: it is not a .npy file"), "{text}");
}

#[test]
fn a_layer_that_lacks_a_named_file_is_an_error_but_a_missing_layer_is_not() {
    let folder = TempDir::new().unwrap();
    let files = "pass_{pass:03}/layer_{layer:02}";
    let map = format!("[stages]\nffn_up.file = \"{files}/ffn_up.npy\"\nxq.file = \"{files}/xq.npy\"\n");
    let folders = both(&folder, &[], &map);
    assert_eq!(diff(&folders, &[]).0, 0);
    // A port that forgets one layer.
    fs::remove_file(folders[1].join("pass_000/layer_02/ffn_up.npy")).unwrap();
    refused(&folders, &["a stage of", "p0/L2/ffn_up", "there is no pass_000/layer_02/ffn_up.npy"]);
    for more in [&[][..], &["--model", &model()]] {
        let (code, report) = diff(&folders, more);
        assert_eq!((code, &report["same"]), (3, &json!(false)), "{report}");
        assert_eq!(report["missing"], json!(["p0/L2/ffn_up"]));
    }
    // A port may write only some layers.
    fs::remove_dir_all(folders[1].join("pass_000/layer_02")).unwrap();
    let (code, report) = diff(&folders, &[]);
    assert_eq!((code, &report["same"]), (0, &json!(true)), "{report}");
    // A stage that the map does not name may be absent anywhere.
    fs::remove_file(folders[1].join("pass_000/layer_01/ffn_down.npy")).unwrap();
    assert_eq!(diff(&folders, &[]).0, 0);
}

#[test]
fn additional_files_of_the_judged_run_are_listed() {
    let folder = TempDir::new().unwrap();
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    ok(&llama_trace(["export", "--ids", IDS, "--out", a.to_str().unwrap()]));
    ok(&llama_trace(["export", "--ids", IDS, "-n", "3", "--out", b.to_str().unwrap()]));
    let compared = |a: &Path, b: &Path| ok(&llama_trace(["diff".as_ref(), a.as_os_str(), b.as_os_str()]));
    assert!(compared(&a, &b).contains("B has 2 passes that A does not have"));
    assert!(!compared(&a, &b).contains("fewer tokens"));
    assert!(!compared(&a, &a).contains("B has "));
    let [one, two] = ["one.trace", "two.trace"].map(|name| folder.path().join(name));
    let record = |out: &Path, prompts: &[&str]| {
        let args = ["record", "--out", out.to_str().unwrap()];
        ok(&llama_trace(args.into_iter().chain(prompts.iter().flat_map(|prompt| ["--prompt", prompt]))));
    };
    record(&one, &["A fox"]);
    record(&two, &["A fox", "The dog"]);
    assert!(compared(&one, &two).contains("B has a sequence or a branch that A does not have"));
}

#[test]
fn a_missing_sequence_or_branch_does_not_pass() {
    let folder = TempDir::new().unwrap();
    let record = |name: &str, more: &[&str]| {
        let out = folder.path().join(name);
        let args = ["record", "-n", "3", "--out", out.to_str().unwrap(), "--prompt", "A fox"];
        ok(&llama_trace(args.into_iter().chain(more.iter().copied())));
        out
    };
    let (one, two) = (record("one", &[]), record("two", &["--prompt", "The dog"]));
    let branched = record("branched", &["--branch", "p1=412"]);
    for (more, what, address) in [(two, "a sequence", "s1/p0/tokens"), (branched, "a branch", "r1:p0/tokens")]
    {
        let pair = [more.clone(), one.clone()];
        let (code, report) = diff(&pair, &[]);
        assert_eq!((code, &report["same"], &report["first"]), (3, &json!(false), &Value::Null), "{report}");
        assert_eq!(report["missing"], json!([address]));
        let printed = |more: &[&str]| {
            let args = ["diff", pair[0].to_str().unwrap(), pair[1].to_str().unwrap()];
            let output = llama_trace(args.into_iter().chain(more.iter().copied()));
            assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
            assert!(stderr(&output).contains(&format!("does not have {what} of")), "{}", stderr(&output));
            stdout(&output)
        };
        let text = printed(&[]);
        assert!(text.contains(&format!("except for {what} that B does not have")), "{text}");
        assert!(text.contains(&format!("Not in B: {address}")), "{text}");
        let xml = printed(&["--format", "junit"]);
        assert!(xml.contains("failures=\"0\" errors=\"1\""), "{xml}");
        assert!(xml.contains("><error message=\"B does not have this "), "{xml}");
        // Additional sequences, branches or passes in B do not change the comparison.
        assert_eq!(diff(&[one.clone(), more], &[]).0, 0);
    }
}

#[test]
fn a_missing_pass_does_not_pass_and_fewer_tokens_are_the_reason() {
    let folder = TempDir::new().unwrap();
    let export = |name: &str, tokens: &str| {
        let out = folder.path().join(name);
        ok(&llama_trace(["export", "--ids", IDS, "-n", tokens, "--out", out.to_str().unwrap()]));
        out
    };
    let [three, two, one] = [("a", "3"), ("b", "2"), ("c", "1")].map(|(name, tokens)| export(name, tokens));
    let cases = [
        (&two, json!(["p2/tokens"]), "a pass", "p2 is not compared"),
        (&one, json!(["p1/tokens", "p2/tokens"]), "2 passes", "p1 to p2 are not compared"),
    ];
    for (fewer, missing, what, note) in cases {
        let (code, report) = diff(&[three.clone(), fewer.clone()], &[]);
        assert_eq!((code, &report["same"], &report["first"]), (3, &json!(false), &Value::Null), "{report}");
        assert_eq!(report["missing"], missing);
        let output = llama_trace(["diff".as_ref(), three.as_os_str(), fewer.as_os_str()]);
        let text = stdout(&output);
        for part in [
            &*format!("except for {what} that B does not have"),
            "fewer tokens than A",
            note,
            "and the rest of this pass",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        refused(&[three.clone(), fewer.clone()], &["does not have a pass of", "with as many tokens"]);
    }
    // A difference is reported first, even if other stages are absent.
    times(&one, "layer_01/ffn_hidden", 3.0, 1);
    assert_eq!(diff(&[three, one], &[]).0, 1);
}

#[test]
fn a_prompt_of_standard_input_is_read_once_for_both_runs() {
    let run = |args: &[&str], input: &str| {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("input");
        fs::write(&file, input).unwrap();
        let output = command(args).stdin(fs::File::open(file).unwrap()).output().unwrap();
        ok(&output)
    };
    let two = ["diff", "--a", "precision=f32", "--b", "precision=bf16", "--prompt"];
    let diff = |prompt: &str, input: &str| run(&[&two[..], &[prompt]].concat(), input);
    assert_eq!(diff("-", "The dog"), diff("The dog", ""));
    assert_ne!(diff("-", "The dog"), diff("-", "x"));
    let check = |prompt: &str, input: &str| run(&["check", "--prompt", prompt, "--format", "json"], input);
    assert_eq!(check("-", "The dog"), check("The dog", ""));
    assert_ne!(check("-", "The dog"), check("-", "x"));
}

#[test]
fn masked_scores_of_a_single_token_are_compared_with_its_scores() {
    let folder = TempDir::new().unwrap();
    let [a, b] = both(&folder, &["-n", "2"], "");
    let file = |stage: &str| b.join(format!("pass_001/layer_00/{stage}.npy"));
    fs::copy(file("scores"), file("masked_scores")).unwrap();
    fs::copy(a.join("manifest.json"), b.join("manifest.json")).unwrap();
    let folders = [a, b.clone()];
    for more in [&[][..], &["--model", &model()]] {
        let (code, report) = diff(&folders, more);
        assert_eq!((code, &report["notes"]), (0, &json!([])), "{report}");
    }
    let mut bytes = fs::read(file("masked_scores")).unwrap();
    for value in bytes[128..].chunks_exact_mut(4).skip(1) {
        value.copy_from_slice(&f32::NEG_INFINITY.to_le_bytes());
    }
    fs::write(file("masked_scores"), bytes).unwrap();
    for more in [&[][..], &["--model", &model()]] {
        let (code, report) = diff(&folders, more);
        let first = report["first"]["address"].as_str().unwrap();
        assert!(code == 1 && first.starts_with("p1/L0/masked_scores["), "{report}");
        let note = "nothing is hidden in p1, so p1/L0/masked_scores must equal scores";
        assert!(report["notes"].as_array().unwrap().contains(&json!(note)), "{report}");
    }
}

/// A note reports that only the file of a stage is wrong, and that the run went on with the right values.
#[test]
fn a_wrong_file_is_told_apart_from_a_mistake_of_the_run() {
    let folder = TempDir::new().unwrap();
    let folders = both(&folder, &[], "");
    let said = |folders: &[PathBuf; 2], more: &[&str]| {
        let (code, report) = diff(folders, more);
        assert_eq!(code, 1, "{report}");
        (report["first"]["address"].to_string(), report["notes"].to_string())
    };
    let file = |layer: &str, stage: &str| folders[1].join(format!("pass_000/{layer}/{stage}.npy"));
    let own = fs::read(file("layer_01", "ffn_up")).unwrap();
    fs::copy(file("layer_01", "ffn_gate"), file("layer_01", "ffn_up")).unwrap();
    for more in [&[][..], &["--model", &model()]] {
        let (first, notes) = said(&folders, more);
        assert!(first.contains("p0/L1/ffn_up["), "{first}");
        assert!(notes.contains("p0/L1/ffn_hidden reads this stage, and is the same in both runs"), "{notes}");
    }
    // The report names no mistake of the run. It says that the file looks like the result of a mistake.
    let [a, b] = [0, 1].map(|i| folders[i].to_str().unwrap());
    for (format, what) in [
        ("text", "\n  B's file looks like gate_up_swapped "),
        ("junit", "; B's file looks like gate_up_swapped "),
        ("json", "The named mistake describes that file only"),
    ] {
        let output = llama_trace(["diff", a, b, "--model", &model(), "--format", format]);
        assert!(stdout(&output).contains(what), "{}", stdout(&output));
        assert!(stderr(&output).contains("; B's file looks like gate_up_swapped"), "{}", stderr(&output));
    }
    // Here the run went on with the wrong values, so the note must not appear. A later norm or softmax that is equal
    // does not prove that the run used the right values. A norm does not depend on the length of its input vector, and
    // scores that are further from 0 may give the same softmax.
    fs::write(file("layer_01", "ffn_up"), own).unwrap();
    times(&folders[1], "embedding", 2.0, usize::MAX);
    let (first, notes) = said(&folders, &["--model", &model()]);
    assert!(first.contains("p0/embedding["), "{first}");
    assert!(notes.contains("p0/L0/attn_residual reads this stage"), "{notes}");
    fs::remove_file(file("layer_00", "attn_residual")).unwrap();
    let (_, notes) = said(&folders, &["--model", &model()]);
    assert!(!notes.contains("reads this stage"), "{notes}");
}

#[test]
fn the_report_says_where_a_mistake_may_be_and_why_a_file_is_unreadable() {
    let folder = TempDir::new().unwrap();
    let [a, b] = both(&folder, &[], "");
    let few = folder.path().join("few");
    fs::create_dir_all(few.join("pass_000/layer_01")).unwrap();
    for name in ["embedding", "logits"] {
        let file = format!("pass_000/{name}.npy");
        fs::copy(b.join(&file), few.join(&file)).unwrap();
    }
    let write =
        |name: &str, bytes: &[u8]| fs::write(few.join(format!("pass_000/layer_01/{name}.npy")), bytes);
    write("attn_merged", b"").unwrap();
    mapped(&few, &format!("passes = [{{ start = 0, tokens = [{IDS}] }}]\n"));
    times(&few, "logits", 1.01, usize::MAX);
    let folders = [a, few.clone()];
    let notes = || diff(&folders, &["--model", &model()]).1["notes"].to_string();
    let said = notes();
    for part in [
        "the mistake is in this stage, or in an earlier stage that was not compared: ",
        " stages, from rope_cos to final_norm (write more stages)",
        "layer_01/attn_merged.npy (a view: write attn_heads, which has the same values)",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let whole = fs::read(b.join("pass_000/layer_01/xq.npy")).unwrap();
    for (bytes, what) in [
        (&b"a text"[..], "it is not a .npy file, which begins with the bytes"),
        (&whole[..40], "it is cut off in its header"),
        (&whole[..140], "it is cut off: "),
    ] {
        write("xq", bytes).unwrap();
        let output = llama_trace(["diff".as_ref(), folders[0].as_os_str(), folders[1].as_os_str()]);
        assert!(stdout(&output).contains(what), "{what}: {}", stdout(&output));
    }
}

/// Writes each value of a stage twice: (T, W) becomes (T, 2·W).
fn twice(folder: &Path, stage: &str) {
    let path = folder.join(format!("pass_000/{stage}.npy"));
    let values = ArrayD::<f32>::read_npy(fs::File::open(&path).unwrap()).unwrap();
    let both = ndarray::concatenate(Axis(1), &[values.view(), values.view()]).unwrap();
    both.as_standard_layout().write_npy(fs::File::create(path).unwrap()).unwrap();
}

/// A port that writes cos and sin in transformers' layout, and differs in another stage.
#[test]
fn a_stage_of_another_shape_hides_no_difference_and_is_listed_separately() {
    let folder = TempDir::new().unwrap();
    let folders = both(&folder, &[], "");
    let b = &folders[1];
    ["rope_cos", "rope_sin"].iter().for_each(|stage| twice(b, stage));
    let paths = [0, 1].map(|i| folders[i].to_str().unwrap());
    let printed = |more: &[&str]| {
        let output = llama_trace(["diff", paths[0], paths[1]].into_iter().chain(more.iter().copied()));
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        (stdout(&output), stderr(&output))
    };
    let shape = "p0/rope_sin: B: it has the shape (5, 32) and not (5, 16)";
    let next = "next: `columns` in capture.toml may convert the file of rope_cos: `llama-trace diff A B --suggest-map`";
    for more in [&[][..], &["--model", &model()]] {
        let (_, report) = diff(&folders, more);
        assert_eq!((&report["first"]["address"], &report["same"]), (&json!("p0/rope_cos"), &json!(false)));
        assert_eq!(report["smallest_tolerance"], Value::Null, "{report}");
        let apart = shape.replace("rope_sin:", "rope_sin cannot be compared:");
        assert!(report["notes"].as_array().unwrap().contains(&json!(apart)), "{report}");
        let (text, said) = printed(more);
        assert!(
            text.contains(&format!("Cannot be compared: {shape}")) && said.contains(next),
            "{text}{said}"
        );
    }
    // A mistake in a layer is still found and named.
    let layer = b.join("pass_000/layer_01");
    fs::copy(layer.join("ffn_gate.npy"), layer.join("ffn_silu.npy")).unwrap();
    fs::remove_file(layer.join("ffn_hidden.npy")).unwrap();
    for more in [&[][..], &["--model", &model()]] {
        let (_, report) = diff(&folders, more);
        assert!(report["first"]["address"].as_str().unwrap().starts_with("p0/L1/ffn_silu["), "{report}");
        let (text, said) = printed(more);
        assert!(text.contains("2 of another shape") && !text.contains("nan"), "{text}");
        assert!(text.contains("rope_cos shape  <-- differs") && text.contains(shape), "{text}");
        assert_eq!(text.contains("\n  looks like activation "), !more.is_empty(), "{text}");
        assert!(said.contains("p0/L1/ffn_silu[") && said.contains(next), "{said}");
    }
    let (page, _) = printed(&["--model", &model(), "--format", "junit"]);
    assert!(
        page.contains(&format!("<failure message=\"another shape: {}", &shape["p0/rope_sin: ".len()..])),
        "{page}"
    );
    // Stages that are computed from the differing values differ too.
    assert!(page.contains("failures=\"4\"") && page.matches("<failure").count() == 4, "{page}");
    assert!(!page.contains("nan"), "{page}");
    // The suggested map makes this stage readable.
    let map = ok(&llama_trace(["diff", paths[0], paths[1], "--suggest-map"]));
    assert!(map.contains("/rope_cos.npy\", columns = [0,16] }"), "{map}");
    fs::write(b.join("capture.toml"), map).unwrap();
    assert!(!diff(&folders, &[]).1["notes"].to_string().contains("cannot be compared"));
    // For a stage without a file, no map is suggested.
    let folder = TempDir::new().unwrap();
    let folders = both(&folder, &[], "");
    let layer = folders[1].join("pass_000/layer_00");
    fs::copy(layer.join("cache_k.npy"), layer.join("keys.npy")).unwrap();
    let output = llama_trace(["diff".as_ref(), folders[0].as_os_str(), folders[1].as_os_str()]);
    let said = stderr(&output);
    assert!(
        output.status.code() == Some(1) && said.contains("p0/L0/keys") && !said.contains("next:"),
        "{said}"
    );
}

#[test]
fn passes_of_a_map_that_overlap_or_leave_a_gap_are_refused() {
    let folder = TempDir::new().unwrap();
    let folders = both(&folder, &[], "");
    for (start, end) in [(0, 5), (3, 5), (6, 5)] {
        let passes =
            format!("passes = [{{ start = 0, tokens = [{IDS}] }}, {{ start = {start}, tokens = [7] }}]\n");
        mapped(&folders[1], &passes);
        refused(
            &folders,
            &[&format!("pass 1: start = {start} with 1 tokens, but the passes before it end at {end}")],
        );
    }
}

#[test]
fn an_error_in_a_map_names_its_key() {
    let folder = TempDir::new().unwrap();
    let [a, b] = both(&folder, &[], "");
    let own = folder.path().join("own");
    fs::create_dir(&own).unwrap();
    for layer in 0..4 {
        let values = b.join(format!("pass_000/layer_{layer:02}/xv.npy"));
        fs::copy(values, own.join(format!("v.{layer}.npy"))).unwrap();
    }
    let folders = [a, own];
    for (padding, lies, said) in [
        (
            "",
            "columns = [8, 999]",
            "v.0.npy: it has 32 columns, but `columns` in capture.toml asks for 8 to 999",
        ),
        (
            "padding = 3",
            "",
            "5 tokens with 3 rows of padding before and 0 after them make 8: see `padding` and `padding_after` in capture.toml",
        ),
        ("", "times = 'w.{layer}.npy'", "v.0.npy: `times` in capture.toml names w.0.npy, which is not there"),
        ("", "minus = 'm.{pass}.npy'", "v.0.npy: `minus` in capture.toml names m.0.npy, which is not there"),
        ("", "axes = ['head_dim', 'token']", "it has 3 axes and not 2: see `axes` in capture.toml"),
        ("", "plus = '{Layer}.npy'", "`{Layer}` in `{Layer}.npy` is not a place for a number"),
        ("", "axes = ['token', 'token', 'head_dim']", "stage xv: its key `axes` has `token` twice"),
    ] {
        let pass = [&format!("start = 0, tokens = [{IDS}]"), padding].join(if padding.is_empty() {
            ""
        } else {
            ", "
        });
        let lies = ["file = 'v.{layer}.npy'", lies].join(if lies.is_empty() { "" } else { ", " });
        mapped(&folders[1], &format!("passes = [{{ {pass} }}]\n[stages]\nxv = {{ {lies} }}\n"));
        refused(&folders, &[said]);
    }
}

#[test]
fn a_port_writes_one_prompt_and_a_mask_of_truth_values() {
    let folder = TempDir::new().unwrap();
    let folders = both(&folder, &[], "");
    let path = folders[1].join("pass_000/mask.npy");
    let mask = ArrayD::<f32>::read_npy(fs::File::open(&path).unwrap()).unwrap();
    let write = |seen: ArrayD<bool>| seen.write_npy(fs::File::create(&path).unwrap()).unwrap();
    // The mask has one value for visible keys and another for hidden keys.
    for seen in [true, false] {
        write(mask.mapv(|added| (added == 0.0) == seen));
        assert_eq!(diff(&folders, &[]).0, 0);
    }
    write(mask.mapv(|_| true));
    let (code, report) = diff(&folders, &[]);
    assert!(code == 1 && report["first"]["address"].as_str().unwrap().starts_with("p0/mask["), "{report}");
    let several = &folders[1];
    fs::create_dir(several.join("s0")).unwrap();
    fs::rename(several.join("pass_000"), several.join("s0/pass_000")).unwrap();
    refused(&folders, &["the runs of several prompts", "s0/", "write a folder for each prompt"]);
}
