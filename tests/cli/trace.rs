//! `record`, `open` and `--trace`: a trace has the same numbers as the run.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::{fixture, llama_trace, stderr, stdout};
use crate::{PROMPT, ok};

fn record(args: &[&str], path: &Path) {
    let output = llama_trace([&["record", "-o", path.to_str().unwrap()], args].concat());
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
}

fn refused(args: &[&str], code: i32, texts: &[&str]) {
    let output = llama_trace(args);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    for text in texts {
        assert!(said.contains(text), "{args:?}: {text:?} is not in {said}");
    }
}

/// The file names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn options_that_differ_from_the_recorded_model_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("run.trace");
    let trace = trace.to_str().unwrap();
    ok(&llama_trace(["record", "--prompt", "Once", "--without", "L1/h0,L2/ffn", "--out", trace]));
    let number = ["explain", "p0/L1/attn_output[t=0,d=0]", "--trace", trace];
    let refused = |more: &[&str], code: i32, said: &str| {
        let output = llama_trace([&number[..], more].concat());
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{more:?}: {told}");
        assert!(told.contains(said), "{more:?}: {told}");
    };
    refused(&["--precision", "q8"], 3, "which differs in precision (q8 in groups of 32 instead of f32)");
    refused(&["--without", "L1/h0"], 3, "the switched-off parts (L1/h0 instead of L1/h0, L2/ffn)");
    refused(&["--cpu-kernel", "foo"], 2, "this processor has no such kernel");
    refused(&["--cache-dtype", "f16"], 3, "which differs in cache (f16 instead of f32)");
    // Without these options, the model is opened as in the run, with the same parts switched off.
    let told = llama_trace([&number[..], &["--format", "json"]].concat());
    let found: Value = serde_json::from_str(&ok(&told)).unwrap();
    assert_eq!((&found["recorded"], &found["difference"]), (&true.into(), &0.0.into()), "{found}");
    let terms = llama_trace([&number[..], &["--format", "json", "--terms", "0"]].concat());
    let terms: Value = serde_json::from_str(&ok(&terms)).unwrap();
    let zeros = terms["terms"].as_array().unwrap().iter().filter(|term| term["product"] == 0.0).count();
    assert_eq!(zeros, 32, "the head's columns of wo");
    let page = ok(&llama_trace(["attribute", "--trace", trace]));
    assert!(page.contains("L3/ffn"), "{page}");
}

#[test]
fn a_number_that_is_not_in_the_trace_is_called_computed_again() {
    let folder = tempfile::tempdir().unwrap();
    for (keep, recorded) in [("all", true), ("stats", false)] {
        let trace = folder.path().join(keep);
        record(&["--prompt", PROMPT, "--keep", keep], &trace);
        let args = ["explain", "L1/xq[t=1,h=0,c=0]", "--trace", trace.to_str().unwrap()];
        let page = ok(&llama_trace(args));
        assert_eq!(page.contains(", recorded "), recorded, "{page}");
        assert_eq!(page.contains(", computed again "), !recorded, "{page}");
        let object = ok(&llama_trace([&args[..], &["--format", "json"]].concat()));
        assert_eq!(serde_json::from_str::<Value>(&object).unwrap()["recorded"], recorded);
    }
}

#[test]
fn the_log_says_for_each_stage_whether_the_trace_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let kinds = |keep: &str, values: bool| {
        let trace = folder.path().join(keep);
        if !trace.exists() {
            record(&["--prompt", PROMPT, "--keep", keep], &trace);
        }
        let mut args = vec!["log", "--trace", trace.to_str().unwrap(), "--format", "json", "--layer", "0"];
        args.extend(["--stage", "xq,attn_residual"]);
        args.extend(values.then_some("--values"));
        let lines = ok(&llama_trace(args));
        lines
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["kind"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(kinds("all", true), ["recorded", "recorded"]);
    assert_eq!(kinds("minimal", true), ["recorded", "computed again"]);
    assert_eq!(kinds("minimal", false), ["recorded", "not kept"]);
    // The model is the built-in one, which the program always has.
    assert_eq!(kinds("stats", true), ["computed again", "computed again"]);
    assert_eq!(kinds("stats", false), ["statistics recorded", "statistics recorded"]);
}

#[test]
fn a_log_goes_on_after_a_damaged_stage_and_reports_it_there() {
    let folder = tempfile::tempdir().unwrap();
    let [trace, dump] = ["trace", "dump"].map(|name| folder.path().join(name));
    record(&["--prompt", PROMPT, "-n", "3"], &trace);
    let [path, out] = [&trace, &dump].map(|path| path.to_str().unwrap());
    let log = |more: &[&str]| llama_trace([&["log", "--trace", path, "--values"], more].concat());
    let whole = ok(&log(&[]));
    ok(&llama_trace(["export", "--trace", path, "--stage", "ffn_gate", "--out", out]));
    // Flips a bit of one value.
    let values = fs::read(dump.join("pass_002/layer_01/ffn_gate.npy")).unwrap()[128..].to_vec();
    let mut bytes = fs::read(&trace).unwrap();
    let at = bytes.windows(values.len()).position(|bytes| bytes == values).unwrap();
    bytes[at + 5] ^= 1;
    fs::write(&trace, bytes).unwrap();
    let output = log(&[]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("p2/L1/ffn_gate"), "{}", stderr(&output));
    assert_eq!(stderr(&output).matches("error: ").count(), 1, "{}", stderr(&output));
    let (ours, theirs) = (stdout(&output), whole);
    let differ: Vec<&str> = ours
        .lines()
        .zip(theirs.lines())
        .filter(|(ours, theirs)| ours != theirs)
        .map(|(ours, _)| ours)
        .collect();
    assert_eq!(ours.lines().count(), theirs.lines().count());
    assert!(differ.len() > 1 && differ.len() < 10, "{differ:?}");
    assert!(differ[0].contains("-> ffn_gate ") && differ[0].ends_with("  [damaged]"), "{differ:?}");
    assert!(differ.iter().all(|line| line.starts_with("[p2] layer 1 ")), "{differ:?}");
    assert!(differ[1].ends_with("  [depends on a damaged stage]"), "{differ:?}");
    // Damaged values that are not read cause no error.
    ok(&log(&["--layer", "0"]));
    let output =
        llama_trace(["export", "--trace", path, "--out", folder.path().join("none").to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(!folder.path().join("none").exists());
}

#[test]
fn log_and_export_of_a_trace_are_those_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let prompts = ["--prompt", PROMPT, "--prompt", "The dog"];
    for (name, args) in [
        ("one", &["--prompt", PROMPT, "-n", "4"][..]),
        (
            "drawn",
            &["--prompt", PROMPT, "-n", "4", "--temperature", "0.9", "--seed", "7", "--precision", "q8"],
        ),
        ("several", &[&prompts[..], &["-n", "3", "--precision", "bf16"]].concat()),
    ] {
        let trace = folder.path().join(name);
        record(args, &trace);
        let trace = trace.to_str().unwrap();
        let log = |args: &[&str]| -> Vec<String> {
            let all = [&["log", "--values", "--format", "json"], args].concat();
            let mut lines: Vec<String> = ok(&llama_trace(all))
                .lines()
                .map(|line| {
                    let mut line: Value = serde_json::from_str(line).unwrap();
                    // The times differ between the two runs. Mean and standard deviation differ if rows are summed in
                    // another order.
                    line["kind"] = Value::Null;
                    line["time_us"] = Value::Null;
                    if let Some(values) = line["values"].as_object_mut() {
                        values.retain(|key, _| !["mean", "std"].contains(&key.as_str()));
                    }
                    line.to_string()
                })
                .collect();
            lines.sort();
            lines
        };
        let (ours, theirs) = (log(&["--trace", trace]), log(args));
        let differs = ours.iter().zip(&theirs).find(|(ours, theirs)| ours != theirs);
        assert_eq!((ours.len(), differs), (theirs.len(), None), "{name}");
        let [ours, theirs] = ["a", "b"].map(|end| folder.path().join(format!("{name}-{end}")));
        ok(&llama_trace(["export", "--trace", trace, "--out", ours.to_str().unwrap()]));
        ok(&llama_trace([&["export", "--out", theirs.to_str().unwrap()], args].concat()));
        let mut folders = vec![String::new()];
        let mut files = 0;
        while let Some(inner) = folders.pop() {
            assert_eq!(names(&ours.join(&inner)), names(&theirs.join(&inner)), "{name}");
            for file in names(&ours.join(&inner)) {
                let file = format!("{inner}{file}");
                if ours.join(&file).is_dir() {
                    folders.push(format!("{file}/"));
                } else if file != "manifest.json" || name != "several" {
                    files += 1;
                    let (mut own, run) =
                        (fs::read(ours.join(&file)).unwrap(), fs::read(theirs.join(&file)).unwrap());
                    if file == "manifest.json" {
                        // The manifest marks the derived stages. Everything else is equal to the run's.
                        let text = String::from_utf8(own).unwrap();
                        let (made, all): (Vec<_>, Vec<_>) =
                            text.lines().partition(|line| line.trim() == r#""made": "derived","#);
                        assert!(made.len() > 50, "{name}: {}", made.len());
                        own = (all.join("\n") + "\n").into_bytes();
                    }
                    assert!(own == run, "{name}: {file}");
                }
            }
        }
        assert!(files > 100, "{name}: {files}");
    }
}

#[test]
fn explanations_lens_and_attribution_of_a_trace_are_those_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let run = ["--prompt", PROMPT, "-n", "3"];
    record(&run, &trace);
    let of_trace = ["--trace", trace.to_str().unwrap()];
    // The program always has the built-in model.
    for command in [
        &["explain", "p1/L1/softmax[h=2,t=0,k=1]", "--format", "json"][..],
        &["explain", "p1/L1/xq[t=0,h=2,c=3]", "--format", "json"],
        &["lens", "--format", "json"],
        &["attribute", "--format", "json"],
    ] {
        let [one, other] = [&run[..], &of_trace].map(|args| ok(&llama_trace([command, args].concat())));
        // The program computes the stages that the trace lacks, and reports this.
        assert_eq!(one, other.replace("\"recorded\":false", "\"recorded\":true"), "{command:?}");
    }
    let several = folder.path().join("several");
    record(&["--prompt", PROMPT, "--prompt", "The dog"], &several);
    let found =
        ok(&llama_trace(["explain", "s1/L0/softmax[h=0,t=1,k=0]", "--trace", several.to_str().unwrap()]));
    assert!(found.starts_with("s1/p0/L0/softmax[h=0,t=1,k=0] = "), "{found}");
    refused(
        &["explain", "p9/sampled", "--trace", trace.to_str().unwrap()],
        2,
        &["passes 0 to 2", "record more"],
    );
    refused(&["log", "--pass", "9", "--trace", trace.to_str().unwrap()], 2, &["record more tokens"]);
    refused(&[&["log"], &run[..], &of_trace].concat(), 2, &["cannot be used with"]);
}

#[test]
fn without_the_model_only_products_are_refused_and_another_model_always() {
    let folder = tempfile::tempdir().unwrap();
    let [gqa, mistral] = ["gqa", "mistral"].map(|name| fixture(&format!("golden/{name}")));
    let [gqa, mistral] = [&gqa, &mistral].map(|path| path.to_str().unwrap());
    let trace = folder.path().join("trace");
    record(&["--model", gqa, "--ids", "1,5,9", "-n", "2"], &trace);
    let trace = trace.to_str().unwrap();
    let xq = "L1/xq[t=2,h=1,c=3]";
    ok(&llama_trace(["explain", "L1/scores[h=1,t=2,k=0]", "--trace", trace]));
    refused(&["explain", xq, "--trace", trace], 2, &["needs the model", "--model"]);
    refused(&["lens", "--trace", trace], 2, &["needs the model", "--model"]);
    let attribution = "the attribution of a logit needs the model";
    refused(&["attribute", "--trace", trace], 2, &[attribution, "--model"]);
    ok(&llama_trace(["explain", xq, "--trace", trace, "--model", gqa]));
    let other = ["explain", xq, "--trace", trace, "--model", mistral];
    refused(&other, 3, &["not the model", "gqa", "mistral, which differs in ", "vocab (46 instead of 48)"]);
    let quantised = ["explain", xq, "--trace", trace, "--model", gqa, "--precision", "q8"];
    refused(&quantised, 3, &["not the model", "precision (q8 in groups of 32 instead of f32)"]);
    let trained = crate::common::models::golden("gqa", |tensors| {
        let (_, bytes) = tensors.get_mut("model.layers.1.mlp.up_proj.weight").unwrap();
        bytes[0] ^= 1;
    });
    let trained = trained.path().to_str().unwrap();
    refused(&["lens", "--trace", trace, "--model", trained], 3, &["differs in the values of its weights"]);
}

#[test]
fn record_replaces_an_existing_file_only_with_force() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.trace");
    let text = path.to_str().unwrap();
    fs::write(&path, "mine").unwrap();
    refused(&["record", "-o", text], 5, &["exists already", "--force"]);
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    record(&["--force"], &path);
    let first = fs::read(&path).unwrap();
    record(&["--force"], &path);
    assert!(fs::read(&path).unwrap() == first, "two equal runs write equal files");
    assert_eq!(names(folder.path()), ["a.trace"]);
    refused(&["record", "-o", folder.path().to_str().unwrap(), "--force"], 5, &["a directory"]);
    refused(&["record", "-o", folder.path().join("no/x").to_str().unwrap()], 5, &["exists"]);
    refused(&["record", "-o", folder.path().join("new/").to_str().unwrap()], 5, &["the path of a file"]);
    refused(&["record", "-o", text, "-n", "0", "--force"], 2, &["nothing to record"]);
    assert!(fs::read(&path).unwrap() == first);
}

/// A killed run leaves this state: its folder exists, and its lock is free.
#[test]
fn the_next_record_removes_the_remains_of_a_killed_one() {
    let folder = tempfile::tempdir().unwrap();
    let left = folder.path().join(".llama-trace-record-abcdef");
    fs::create_dir_all(left.join("files")).unwrap();
    fs::write(left.join("lock"), "").unwrap();
    fs::write(left.join("files/trace"), "half").unwrap();
    record(&[], &folder.path().join("a.trace"));
    assert_eq!(names(folder.path()), ["a.trace"]);
}

#[test]
fn stages_outside_the_budget_are_reported_before_the_run_and_when_requested() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.trace");
    let text = path.to_str().unwrap();
    let gqa = fixture("golden/gqa");
    let ids: Vec<_> = (0..40).map(|id| (id % 40).to_string()).collect();
    let ids = ids.join(",");
    let run = ["--model", gqa.to_str().unwrap(), "--ids", &ids];
    let output = llama_trace([&["record", "-o", text, "--budget", "100KiB"], &run[..]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(path.metadata().unwrap().len() <= 100 << 10);
    let said = stderr(&output);
    assert!(
        said.contains("within 100KiB there is no room for the values of") && said.contains("ffn_up"),
        "{said}"
    );
    refused(
        &[
            "export",
            "--trace",
            text,
            "--stage",
            "ffn_up",
            "--out",
            folder.path().join("out").to_str().unwrap(),
        ],
        2,
        &["ffn_up is not there", "budget of 102400 bytes"],
    );
    let log = ok(&llama_trace(["log", "--trace", text, "--values", "--stage", "ffn_up"]));
    assert!(log.contains("ffn_up") && log.contains("min "), "the log has no statistics: {log}");
    refused(
        &[&["record", "-o", text, "--force", "--budget", "1KiB"], &run[..]].concat(),
        2,
        &["--budget", "at least"],
    );
}

#[test]
fn the_first_screen_needs_a_terminal_and_a_trace() {
    refused(&["open", "nothing.trace"], 3, &["nothing.trace", "No such file"]);
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("r.trace");
    record(&["--prompt", PROMPT], &trace);
    refused(&["open", trace.to_str().unwrap()], 6, &["terminal", "log --trace"]);
    let output = llama_trace(["record", "--help"]);
    assert!(stdout(&output).contains("--keep") && stdout(&output).contains("--budget"));
}

/// The tensors of a trace: the bytes by name.
fn tensors(path: &Path) -> std::collections::HashMap<String, Vec<u8>> {
    let bytes = fs::read(path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    file.tensors().into_iter().map(|(name, tensor)| (name, tensor.data().to_vec())).collect()
}

fn ids(bytes: &[u8]) -> Vec<i64> {
    bytes.as_chunks().0.iter().map(|id| i64::from_le_bytes(*id)).collect()
}

#[test]
fn a_recorded_branch_with_the_sampled_token_has_the_bits_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.trace");
    let prompts = ["--prompt", PROMPT, "--prompt", "The dog", "--temperature", "0.8", "--seed", "3"];
    let run = [&prompts[..], &["-n", "5"]].concat();
    record(&run, &path);
    let drawn = ids(&tensors(&path)["s1/decode/tokens"]);
    let branches = [format!("s1/p1={}", drawn[1]), "s1/p1=7".into(), "r2:s1/p2=9".into(), "p0=11".into()];
    let branches: Vec<&str> = branches.iter().flat_map(|branch| ["--branch", branch]).collect();
    record(&[&run[..], &branches, &["--force"]].concat(), &path);
    let tensors = tensors(&path);
    let mut compared = 0;
    for (name, own) in &tensors {
        if let Some(name) = name.strip_prefix("r1/") {
            let whole = &tensors[name];
            // The branch has only the passes after the fork, which are the last passes of the run.
            assert!(!own.is_empty() && whole.ends_with(own), "{name}");
            compared += 1;
        }
    }
    let stages = tensors.keys().filter(|name| name.starts_with("s1/decode/")).count();
    assert_eq!(compared, stages, "every stage that is kept");
    assert_eq!(ids(&tensors["r2/s1/decode/tokens"])[0], 7);
    assert_eq!(ids(&tensors["r3/s1/decode/tokens"])[0], 9);
    assert_eq!(ids(&tensors["r4/decode/tokens"])[0], 11);
    assert_eq!(ids(&tensors["r2/s1/decode/tokens"]).len(), 3, "the branch itself has the passes 2 to 4");
    assert!(tensors["r2/s1/decode/L0/xq"] != tensors["s1/decode/L0/xq"]);
}

#[test]
fn a_command_that_uses_one_sequence_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let [several, one] = ["several", "one"].map(|name| folder.path().join(name));
    record(&["--prompt", PROMPT, "--prompt", "The dog"], &several);
    record(&["--prompt", PROMPT], &one);
    for command in ["lens", "attribute"] {
        let [several, one] =
            [&several, &one].map(|path| llama_trace([command, "--trace", path.to_str().unwrap()]));
        assert_eq!(ok(&several), ok(&one), "{command}");
        assert!(
            stderr(&several).contains("The trace has 2 sequences, s0 to s1"),
            "{command}: {}",
            stderr(&several)
        );
        assert!(!stderr(&one).contains("sequence"), "{command}: {}", stderr(&one));
    }
}

#[test]
fn statistics_are_shown_instead_of_values_that_were_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let [trace, picture] = ["a.trace", "a.txt"].map(|name| folder.path().join(name));
    let model = fixture("golden/gqa");
    record(&["--model", model.to_str().unwrap(), "--ids", "1,5,9", "--keep", "stats"], &trace);
    let (trace, out) = (trace.to_str().unwrap(), picture.to_str().unwrap());
    let log = ok(&llama_trace(["log", "--trace", trace, "--values", "--layer", "0", "--stage", "xq"]));
    let snapshot = |at: &str| {
        ok(&llama_trace([
            "snapshot", "--trace", trace, "--at", at, "--size", "120x30", "--out", out, "--force",
        ]));
        fs::read_to_string(&picture).unwrap()
    };
    // The statistics are also shown for attention, although the cursor cannot move to the largest key without values.
    assert!(snapshot("p0/L0/softmax").contains("statistics: min 0"));
    let shown = snapshot("p0/L0/xq");
    for figure in ["min", "max", "mean", "std"] {
        assert!(shown.contains(figure), "{figure}: {shown}");
    }
    let min: f64 = log.split("min ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(shown.contains(&format!("min {}", &min.to_string()[..4])), "{log}\n{shown}");
    for said in ["were not kept", "record it without --keep stats"] {
        assert!(shown.contains(said), "{said}: {shown}");
    }
}

#[test]
fn an_address_opens_a_branch_of_a_trace() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.trace");
    let trace = path.to_str().unwrap();
    let run = ["--prompt", PROMPT, "-n", "4"];
    record(&[&run[..], &["--branch", "p1=7", "--branch", "r1:p2=9"]].concat(), &path);
    let explain = |address: &str| ok(&llama_trace(["explain", address, "--trace", trace]));
    // With the weights, the result of a product is computed again from its terms, with the same bits.
    for address in ["r1:p2/L1/xq[t=0,h=1,c=3]", "r2:p3/L0/ffn_down[t=0,d=5]", "r2:p3/L1/softmax[h=0,t=0,k=4]"]
    {
        let found = explain(address);
        assert!(found.starts_with(&format!("{address} = ")) && found.contains("difference 0\n"), "{found}");
    }
    // Addresses of the branch show the passes of the run up to the fork, and the branch's own passes after it.
    let value =
        |address: &str| explain(address).lines().next().unwrap().split(" = ").nth(1).unwrap().to_owned();
    assert_eq!(value("r2:p1/L1/xq[t=0,h=1,c=3]"), value("p1/L1/xq[t=0,h=1,c=3]"));
    assert_eq!(value("r2:p2/L1/xq[t=0,h=1,c=3]"), value("r1:p2/L1/xq[t=0,h=1,c=3]"));
    assert!(value("r1:p2/L1/xq[t=0,h=1,c=3]") != value("p2/L1/xq[t=0,h=1,c=3]"));
    let picture = folder.path().join("a.txt");
    let at = ["--trace", trace, "--at", "r2:p3/L1/softmax", "--size", "80x24"];
    ok(&llama_trace([&["snapshot", "--out", picture.to_str().unwrap()], &at[..]].concat()));
    let picture = fs::read_to_string(&picture).unwrap();
    assert!(picture.contains("r2") && picture.contains("softmax"), "{picture}");
    // A command without an address names the run that it uses.
    for command in [&["log"][..], &["lens"], &["attribute"]] {
        let done = llama_trace([command, &["--trace", trace]].concat());
        assert!(stderr(&done).contains("also has 2 branches, r1 to r2:"), "{command:?}: {}", stderr(&done));
    }
    refused(
        &["explain", "r3:p2/L0/xq[t=0,h=0,c=0]", "--trace", trace],
        2,
        &["there is no r3", "r1 of s0, r2 of s0"],
    );
    refused(&["explain", "r1:p0/L0/xq[t=0,h=0,c=0]", run[0], run[1]], 2, &["one run, r0"]);
    let nowhere = ["snapshot", "--trace", trace, "--at", "r3:p2/L0/xq", "--out", "x.png"];
    refused(&nowhere, 2, &["there is no r3", "r1 of s0, r2 of s0"]);
    // Branches of a trace are compared too.
    let other = folder.path().join("b.trace");
    record(&[&run[..], &["--branch", "p1=7", "--branch", "r1:p2=8"]].concat(), &other);
    let same = llama_trace(["diff", trace, trace]);
    assert_eq!(same.status.code(), Some(0), "{}", stdout(&same));
    let differs = llama_trace(["diff", trace, other.to_str().unwrap(), "--format", "json"]);
    assert_eq!(differs.status.code(), Some(1), "{}", stderr(&differs));
    let found: Value = serde_json::from_str(&stdout(&differs)).unwrap();
    assert_eq!(
        (&found["first"]["kind"], &found["first"]["address"]),
        (&"stage".into(), &"r2:p2/sampled[n=0]".into())
    );
}

#[test]
fn an_impossible_branch_is_refused_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.trace");
    let run = ["record", "-o", path.to_str().unwrap(), "--prompt", PROMPT, "-n", "3"];
    for (branch, texts) in [
        ("p1", &["p3=412"][..]),
        ("p1=cat", &["p3=412"]),
        ("p2=7", &["a branch after pass 2 has no pass of its own", "-n 4"]),
        ("p0=100000", &["does not have", "ids from 0 to"]),
        ("s1/p0=7", &["does not exist", "r0:s1/p0"]),
        ("r1:p0=7", &["does not exist", "r1:s0/p0"]),
    ] {
        refused(&[&run[..], &["--branch", branch]].concat(), 2, texts);
    }
    assert!(names(folder.path()).is_empty());
}

#[test]
fn an_error_about_a_branch_names_its_sequence() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("a.trace").display().to_string();
    let prompts = ["--prompt", "A fox", "--prompt", "The dog"];
    ok(&llama_trace(["record", "-o", &trace, "-n", "2", "--branch", "s1/p0=412"].into_iter().chain(prompts)));
    let said = |address: &str| {
        let output = llama_trace(["explain", address, "--trace", &trace]);
        assert_eq!(output.status.code(), Some(2), "{address}: {}", stderr(&output));
        stderr(&output)
    };
    let other = said("r1:p1/L0/xq[t=0,h=0,c=0]");
    assert!(other.contains("there is no r1 of s0") && other.contains("found: r1 of s1\n"), "{other}");
    assert!(said("s2/p0/L0/xq[t=0,h=0,c=0]").contains("found: s0 to s1"));
}

#[test]
fn a_branch_of_a_trace_has_its_probabilities() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, model) = (folder.path().join("run.trace"), fixture("golden/gqa"));
    let (trace, model) = (trace.to_str().unwrap(), model.to_str().unwrap());
    let ids =
        ["record", "--model", model, "--ids", "1,5,9,3,7", "-n", "2", "--branch", "p0=9", "--out", trace];
    ok(&llama_trace(ids));
    let out = folder.path().join("screen.txt");
    let out = out.to_str().unwrap();
    ok(&llama_trace(["snapshot", "--trace", trace, "--at", "r1:p1/probs", "--size", "100x24", "--out", out]));
    let screen = fs::read_to_string(out).unwrap();
    assert!(screen.contains("branch r1") && !screen.contains("is not there"), "{screen}");
}
