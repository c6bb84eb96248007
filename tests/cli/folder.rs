//! A folder that `export` or a capture script wrote, used instead of a trace.

use std::fs;
use std::path::Path;

use ndarray::ArrayD;
use ndarray_npy::ReadNpyExt;
use serde_json::Value;

use crate::common::{fixture, llama_trace, stderr};
use crate::{PROMPT, ok};

fn export(args: &[&str], folder: &Path) {
    let output = llama_trace([&["export", "--out", folder.to_str().unwrap()], args].concat());
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

/// Paths and bytes of all files below a folder.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let (mut files, mut folders) = (Vec::new(), vec![String::new()]);
    while let Some(inner) = folders.pop() {
        for entry in fs::read_dir(folder.join(&inner)).unwrap() {
            let entry = entry.unwrap();
            let path = format!("{inner}{}", entry.file_name().into_string().unwrap());
            if entry.path().is_dir() {
                folders.push(format!("{path}/"));
            } else {
                files.push((path, fs::read(entry.path()).unwrap()));
            }
        }
    }
    files.sort();
    files
}

/// The lines of a log, without the fields that may differ between runs.
fn log(args: &[&str]) -> Vec<String> {
    let lines = ok(&llama_trace([&["log", "--values", "--format", "json"], args].concat()));
    let line = |line: &str| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        (line["kind"], line["time_us"]) = (Value::Null, Value::Null);
        line.to_string()
    };
    lines.lines().map(line).collect()
}

/// Few ports write the stages `rope_cos` and `rope_sin`. Without them, rotated values are still explained with the
/// port's own numbers.
#[test]
fn a_rotated_number_is_explained_without_the_angles_in_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, own) = (folder.path().join("whole"), folder.path().join("own"));
    let address = "p1/L1/xq_rope[t=0,h=2,c=3]";
    let explained = |folder: &Path| -> Value {
        let args = ["explain", address, "--trace", folder.to_str().unwrap(), "--format", "json"];
        serde_json::from_str(&ok(&llama_trace(args))).unwrap()
    };
    for precision in ["f32", "bf16"] {
        for folder in [&whole, &own] {
            export(&["--prompt", PROMPT, "-n", "2", "--precision", precision, "--force"], folder);
        }
        for pass in ["pass_000", "pass_001"] {
            for stage in ["rope_cos", "rope_sin"] {
                fs::remove_file(own.join(format!("{pass}/{stage}.npy"))).unwrap();
            }
        }
        let expected = explained(&whole);
        assert_eq!((explained(&own), &expected["difference"]), (expected.clone(), &Value::from(0.0)));
        // Replaces an operand by a number that the model does not compute there.
        let file = own.join("pass_001/layer_01/xq.npy");
        let mut bytes = fs::read(&file).unwrap();
        let at = 128 + 4 * (2 * 32 + 3);
        bytes[at..at + 4].copy_from_slice(&7.5_f32.to_le_bytes());
        fs::write(&file, bytes).unwrap();
        let found = explained(&own);
        let terms = found["terms"].as_array().unwrap();
        let operands = terms.iter().flat_map(|term| term["operands"].as_array().unwrap());
        assert!(operands.clone().any(|operand| operand["value"] == 7.5), "{found}");
        assert_eq!(found["value"], expected["value"], "the value is the one in the file");
        assert!(found["difference"].as_f64().unwrap().abs() > 1.0, "{found}");
    }
}

#[test]
fn every_command_prints_the_same_for_an_export_and_a_trace() {
    let folder = tempfile::tempdir().unwrap();
    let [dump, trace, again] = ["dump", "trace", "again"].map(|name| folder.path().join(name));
    let [dump, trace] = [&dump, &trace].map(|path| path.to_str().unwrap());
    for (run, commands) in [
        (
            &["--prompt", PROMPT, "-n", "3", "--temperature", "0.9", "--seed", "7"][..],
            &[
                &["explain", "p1/L1/softmax[h=2,t=0,k=1]"][..],
                &["explain", "p1/L1/xq[t=0,h=2,c=3]"],
                &["explain", "p1/nucleus[v=3]"],
                &["lens"],
                &["attribute"],
            ][..],
        ),
        (
            &["--prompt", PROMPT, "--prompt", "The dog", "-n", "2", "--precision", "bf16"],
            &[&["explain", "s1/p1/L0/scores[h=0,t=0,k=1]"]],
        ),
    ] {
        export(run, Path::new(dump));
        ok(&llama_trace([&["record", "-o", trace], run].concat()));
        assert_eq!(log(&["--trace", dump]), log(&["--trace", trace]));
        for command in commands {
            let [of_dump, of_trace] =
                [dump, trace].map(|path| ok(&llama_trace([command, &["--trace", path][..]].concat())));
            // The folder has every stage. The program computes the stages that the trace lacks, and reports this.
            assert_eq!(of_dump, of_trace.replace(", computed again ", ", recorded "), "{command:?}");
        }
        for at in ["L1/softmax[h=1]", "logits"] {
            let [of_dump, of_trace] = [dump, trace].map(|path| {
                let picture = folder.path().join("a.txt");
                let out = ["--out", picture.to_str().unwrap(), "--force"];
                ok(&llama_trace([&["snapshot", "--trace", path, "--at", at][..], &out].concat()));
                fs::read_to_string(picture).unwrap()
            });
            assert_eq!(of_dump, of_trace, "{at}");
        }
        export(&["--trace", dump], &again);
        let (ours, theirs) = (files(&again), files(Path::new(dump)));
        assert!(ours.len() > 100);
        for ((name, ours), (other, theirs)) in ours.iter().zip(&theirs) {
            // The manifests may differ, because the mean is summed in another order.
            assert!(name == other && (ours == theirs || name == "manifest.json"), "{name}, {other}");
        }
        for path in [dump, again.to_str().unwrap()] {
            fs::remove_dir_all(path).unwrap();
        }
        fs::remove_file(trace).unwrap();
    }
}

/// For each stage of a log: its name, its source, and whether it has values.
fn kinds(path: &str, more: &[&str]) -> Vec<(String, String, bool)> {
    let lines = ok(&llama_trace([&["log", "--trace", path, "--format", "json"], more].concat()));
    let line = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        let text = |key: &str| line[key].as_str().unwrap().to_owned();
        (text("step"), text("kind"), line["values"].is_object())
    };
    lines.lines().map(line).collect()
}

#[test]
fn stages_are_called_derived_only_if_they_follow_from_the_files() {
    let folder = tempfile::tempdir().unwrap();
    // The run is of a model that is not built into the program.
    let gqa = fixture("golden/gqa");
    let run = ["--model", gqa.to_str().unwrap(), "--ids", "1,5,9,13", "-n", "3"];
    let stages = "xq_rope,xk_rope,cache_k,cache_v,keys,qk,softmax,attn_heads";
    let chosen = ["--layer", "0", "--pass", "0-1", "--stage", stages];
    for cache in ["f32", "f16"] {
        let [part, trace] = ["part", "trace"].map(|name| folder.path().join(format!("{name}-{cache}")));
        let typed = [&run[..], &["--cache-dtype", cache]].concat();
        export(&[&typed[..], &["--stage", "xq_rope,xk_rope,xv"]].concat(), &part);
        ok(&llama_trace([&["record", "-o", trace.to_str().unwrap()], &typed[..]].concat()));
        let [part, trace] = [&part, &trace].map(|path| path.to_str().unwrap());
        // The values are derived as in a trace, whatever number type the cache has.
        let values = |path| log(&[&["--trace", path][..], &chosen].concat());
        assert_eq!(values(part), values(trace), "{cache}");
        let kinds = kinds(part, &[&chosen[..], &["--values"]].concat());
        for (stage, kind, has_values) in &kinds {
            let expected = match &**stage {
                "xq_rope" | "xk_rope" => "recorded",
                "cache_k" | "cache_v" | "attn_heads" => "computed again",
                _ => "derived",
            };
            assert_eq!((&**kind, *has_values), (expected, true), "{stage}: {kinds:?}");
        }
        assert_eq!(kinds.len(), 2 * 8);
        let explained = ok(&llama_trace(["explain", "p1/L0/scores[h=0,t=0,k=1]", "--trace", part]));
        assert!(explained.contains("difference 0"), "{explained}");
    }
    // Without the keys, the scores cannot be derived.
    let part = folder.path().join("less");
    export(&[&run[..], &["--stage", "xq_rope,xv"]].concat(), &part);
    let stats = folder.path().join("stats");
    ok(&llama_trace([&["record", "--keep", "stats", "-o", stats.to_str().unwrap()], &run[..]].concat()));
    for (path, said) in [(&part, "not kept"), (&stats, "statistics recorded")] {
        for more in [&[][..], &["--values"]] {
            let all = [&["--layer", "0", "--stage", "keys,qk,softmax"][..], more].concat();
            for (stage, kind, has_values) in kinds(path.to_str().unwrap(), &all) {
                let has = path == &stats && !more.is_empty();
                assert_eq!((&*kind, has_values), (said, has), "{stage} {more:?}");
            }
        }
    }
}

#[test]
fn stages_missing_in_an_export_are_derived_or_reported_as_absent() {
    let folder = tempfile::tempdir().unwrap();
    let dump = folder.path().join("dump");
    let gqa = fixture("golden/gqa");
    let gqa = gqa.to_str().unwrap();
    let run = ["--model", gqa, "--ids", "1,5,9"];
    export(&[&run[..], &["--stage", "tokens,ffn_gate,ffn_up,xq"]].concat(), &dump);
    let path = dump.to_str().unwrap();
    let out = folder.path().join("out");
    let to = ["--out", out.to_str().unwrap()];
    export(&["--trace", path, "--stage", "ffn_hidden"], &out);
    let whole = folder.path().join("whole");
    export(&[&run[..], &["--stage", "ffn_hidden"]].concat(), &whole);
    let of = |folder: &Path| fs::read(folder.join("pass_000/layer_01/ffn_hidden.npy")).unwrap();
    assert!(of(&out) == of(&whole), "ffn_silu and ffn_hidden follow from what is there");
    fs::remove_dir_all(&out).unwrap();
    let absent = ["p0/L0/ffn_norm is not there", "there is no file", "layer_00/ffn_norm.npy", "--model"];
    refused(&[&["export", "--trace", path, "--stage", "ffn_norm"], &to[..]].concat(), 2, &absent);
    refused(&["explain", "L0/attn_heads[t=0,h=0,c=0]", "--trace", path], 2, &["is not there", "no file"]);
    // With the model, the stage is computed again.
    export(&["--trace", path, "--model", gqa, "--stage", "ffn_norm"], &out);
    let mistral = fixture("golden/mistral");
    let other = ["lens", "--trace", path, "--model", mistral.to_str().unwrap()];
    refused(&other, 3, &["not the model", "vocab (46 instead of 48)"]);
    let output = llama_trace(["log", "--trace", path, "--values"]);
    assert!(stderr(&output).contains("in their last bits"), "{}", stderr(&output));
    assert!(ok(&output).contains("ffn_hidden"));
}

#[test]
fn an_invalid_file_is_named_and_the_other_files_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let dump = folder.path().join("dump");
    let gqa = fixture("golden/gqa");
    export(&["--model", gqa.to_str().unwrap(), "--ids", "1,5,9"], &dump);
    let path = dump.to_str().unwrap();
    let file = dump.join("pass_000/layer_01/ffn_up.npy");
    let right = fs::read(&file).unwrap();
    let cell = ["explain", "L1/ffn_hidden[t=0,f=1]", "--trace", path];
    ok(&llama_trace(cell));
    let other = fs::read(dump.join("pass_000/layer_01/xk.npy")).unwrap();
    let huge = String::from_utf8_lossy(&right[..128]).replace("(3, 56)", "(3, 99999999999999)");
    for (bytes, said) in [
        (&right[..right.len() - 4], "is not valid"),
        (&right[..20], "is not valid"),
        (b"", "empty"),
        (b"a text", "not a .npy file"),
        (&other, "it has the shape (3, 2, 8) and not (3, 56)"),
        (huge.as_bytes(), "is not valid"),
    ] {
        fs::write(&file, bytes).unwrap();
        let at = file.display().to_string();
        refused(&cell, 3, &["the file of p0/L1/ffn_up is not valid", &at, said]);
        ok(&llama_trace(["explain", "L0/ffn_hidden[t=0,f=1]", "--trace", path]));
        let picture = folder.path().join("a.txt");
        let out = ["--out", picture.to_str().unwrap(), "--force"];
        // The screen is drawn, with the error instead of the values.
        let snapshot = [&["snapshot", "--trace", path, "--at", "L1/ffn_up"][..], &out].concat();
        let output = llama_trace(snapshot);
        assert!(output.status.code().is_some_and(|code| code == 0 || code == 3), "{}", stderr(&output));
    }
    // NaN is a valid value.
    let mut broken = right.clone();
    let count = broken.len();
    broken[count - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&file, broken).unwrap();
    let said = ok(&llama_trace(["log", "--trace", path, "--values", "--layer", "1", "--stage", "ffn_up"]));
    assert!(said.contains("NaN×1"), "{said}");
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    refused(&cell, 3, &["ffn_up", "not a regular file"]);
}

#[test]
fn invalid_manifests_and_exports_of_pictures_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let dump = folder.path().join("dump");
    export(&["--prompt", PROMPT, "-n", "2", "--stage", "tokens,xq"], &dump);
    let path = dump.to_str().unwrap();
    let right = fs::read_to_string(dump.join("manifest.json")).unwrap();
    let wrong = |change: &dyn Fn(&mut Value)| {
        let mut manifest: Value = serde_json::from_str(&right).unwrap();
        change(&mut manifest);
        fs::write(dump.join("manifest.json"), manifest.to_string()).unwrap();
        let output = llama_trace(["log", "--trace", path, "--values"]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(3), "{said}");
        said
    };
    assert!(
        wrong(&|manifest| manifest["passes"][1]["start"] = 1.into()).contains("pass 1 starts after 1 tokens")
    );
    assert!(wrong(&|manifest| manifest["passes"][1]["start"] = u64::MAX.into()).contains("pass 1"));
    assert!(
        wrong(&|manifest| manifest["passes"][0]["tokens"][0]["id"] = 99_999.into()).contains("token 99999")
    );
    assert!(wrong(&|manifest| manifest["passes"] = Value::Array(vec![])).contains("no pass of sequence 0"));
    assert!(wrong(&|manifest| manifest["passes"][1]["sequence"] = 1_000_000.into()).contains("sequence"));
    assert!(wrong(&|manifest| manifest["card"] = Value::Null).contains("[config] without dim"));
    assert!(wrong(&|manifest| manifest["card"]["config"]["kv_heads"] = 0.into()).contains("model"));
    let newer = wrong(&|manifest| manifest["version"] = 2.into());
    assert!(newer.contains("newer than this program's") && newer.contains("next: use a newer llama-trace"));
    fs::remove_file(dump.join("manifest.json")).unwrap();
    refused(&["log", "--trace", path], 3, &["no manifest.json and no capture.toml"]);
    let pictures = folder.path().join("pictures");
    export(&["--prompt", PROMPT, "--format", "svg", "--stage", "softmax", "--layer", "0"], &pictures);
    let pictures = pictures.to_str().unwrap();
    refused(&["log", "--trace", pictures], 3, &["pictures, and no values", "--format npy"]);
    // The error is about the path, and not about the missing terminal.
    refused(&["open", "nowhere"], 3, &["nowhere"]);
}

#[test]
fn a_captured_folder_is_opened_by_its_map_or_with_its_model() {
    let captured = fixture("capture/transformers/gqa");
    let path = captured.to_str().unwrap();
    let said = ok(&llama_trace(["log", "--trace", path, "--values", "--pass", "1"]));
    assert!(said.contains("pass 1 (decode), 1 token after 6 cached"), "{said}");
    assert!(said.contains("ffn_hidden") && said.contains("min "), "{said}");
    assert!(!said.contains("pass 1 sampled"), "the last pass has no known token: {said}");
    let said = ok(&llama_trace(["log", "--trace", path, "--pass", "0"]));
    assert!(said.contains("pass 0 sampled 47"), "the next pass reads it: {said}");
    ok(&llama_trace(["explain", "L1/ffn_hidden[t=0,f=1]", "--trace", path]));
    refused(&["explain", "probs[v=1]", "--trace", path], 2, &["probs is not there"]);
    refused(&["explain", "L1/xq[t=0,h=1,c=1]", "--trace", path], 2, &["needs the model"]);
    let gqa = fixture("golden/gqa");
    let model = ["--model", gqa.to_str().unwrap()];
    ok(&llama_trace([&["explain", "L1/xq[t=0,h=1,c=1]", "--trace", path], &model[..]].concat()));
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("a.txt");
    ok(&llama_trace(["snapshot", "--trace", path, "--at", "p1/logits", "--out", picture.to_str().unwrap()]));
    let beyond = ["snapshot", "--trace", path, "--at", "p9/logits", "--out", "beyond.svg"];
    refused(&beyond, 2, &["there is no pass 9", "record more tokens"]);
    assert!(fs::read_to_string(&picture).unwrap().contains("transformers"));
    let copy = folder.path().join("copy");
    fs::create_dir(&copy).unwrap();
    let map = fs::read_to_string(captured.join("capture.toml")).unwrap();
    fs::write(copy.join("capture.toml"), map.replace("head_dim = 8\n", "")).unwrap();
    let copy = copy.to_str().unwrap();
    refused(&["log", "--trace", copy], 3, &["[config] without head_dim", "--model"]);
    ok(&llama_trace([&["log", "--trace", copy], &model[..]].concat()));
    let out = folder.path().join("out");
    export(&["--trace", path], &out);
    let output = llama_trace(["diff", path, out.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn a_score_is_explained_with_the_stages_after_rope() {
    let captured = fixture("capture/transformers/gqa");
    let folder = tempfile::tempdir().unwrap();
    // Removes the stages before RoPE, and the cache, whose number type a map does not state.
    for (name, bytes) in files(&captured) {
        if !["xq", "xk", "cache_k", "keys"].iter().any(|stage| name.ends_with(&format!("/{stage}.npy"))) {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
    }
    let explain =
        |path: &Path| ok(&llama_trace(["explain", "L0/qk[h=1,t=3,k=2]", "--trace", path.to_str().unwrap()]));
    let (less, all) = (explain(folder.path()), explain(&captured));
    let terms = |page: &str| page.split("  by ").next().unwrap().to_owned();
    assert_eq!(terms(&less), terms(&all));
    for part in ["by pair of RoPE", "keys before RoPE, and some of them are missing"] {
        assert!(less.contains(part), "{part}: {less}");
    }
    assert!(all.contains("by content and position") && !less.contains("by content and position"), "{less}");
    fs::remove_dir_all(folder.path().join("pass_000")).unwrap();
    let path = folder.path().to_str().unwrap();
    refused(&["explain", "L0/qk[h=1,t=3,k=2]", "--trace", path], 2, &["is not there"]);
}

#[test]
fn a_number_of_a_port_is_shown_next_to_the_models_number() {
    let [port, model] = ["port/story/wrong", "builtin"].map(fixture);
    let [port, model] = [&port, &model].map(|path| path.to_str().unwrap());
    let explain = |more: &[&str]| {
        let args = ["explain", "L0/xq_rope[t=3,h=1,c=5]", "--model", model, "--format", "json"];
        serde_json::from_str::<Value>(&ok(&llama_trace([&args[..], more].concat()))).unwrap()
    };
    // The port's mistake is in RoPE's pairs, and the port did not write the input of RoPE.
    let (own, of_model) = (explain(&["--trace", port]), explain(&["--prompt", PROMPT]));
    let bytes = fs::read(Path::new(port).join("pass_000/layer_00/xq_rope.npy")).unwrap();
    let at = bytes.len() - 5 * 128 * 4 + (3 * 128 + 32 + 5) * 4;
    let written = f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!(own["value"].as_f64().unwrap() as f32, written);
    assert_ne!(own["value"], of_model["value"]);
    assert_eq!((&own["terms"], &own["result"]), (&of_model["terms"], &of_model["result"]));
    assert!(own["notes"].to_string().contains("The model's own run has"), "{own}");
    assert!(!of_model["notes"].to_string().contains("own run"), "{of_model}");
    // A stage that the port did not write comes from the model, and the program reports this.
    let said = "the model's own run over the same tokens";
    let lens = |path: &str| stderr(&llama_trace(["lens", "--trace", path, "--model", model]));
    let right = fixture("port/story/right").display().to_string();
    assert!(lens(&right).contains(said), "{}", lens(&right));
    let folder = tempfile::tempdir().unwrap();
    let dump = folder.path().join("dump");
    export(&["--prompt", PROMPT, "--stage", "xq"], &dump);
    assert!(!lens(dump.to_str().unwrap()).contains(said));
}

/// The lens reads the residuals that the port wrote, even if the model's differ. For the last layer, the lens then
/// shows the port's answer.
#[test]
fn the_lens_reads_the_residuals_that_a_port_wrote() {
    let (port, model) = (fixture("port/story/wrong"), fixture("builtin").display().to_string());
    let lens = |more: &[&str]| -> Vec<Value> {
        let args = ["lens", "--model", &model, "--format", "json", "--top", "3"];
        serde_json::from_str(&ok(&llama_trace([&args[..], more].concat()))).unwrap()
    };
    let of = |readings: &[Value], t: usize, layer: usize| {
        let found = readings.iter().find(|one| one["t"] == t && one["layer"] == layer).unwrap();
        let top = found["top"].as_array().unwrap();
        top.iter()
            .map(|one| (one["id"].as_u64().unwrap() as usize, one["prob"].as_f64().unwrap()))
            .collect::<Vec<_>>()
    };
    let (own, of_model) = (lens(&["--trace", port.to_str().unwrap()]), lens(&["--prompt", PROMPT]));
    let file = fs::File::open(port.join("pass_000/logits.npy")).unwrap();
    let logits = ArrayD::<f32>::read_npy(file).unwrap();
    for (t, row) in logits.outer_iter().enumerate() {
        let mut probs: Vec<(usize, f64)> = row.iter().map(|&x| f64::from(x).exp()).enumerate().collect();
        let sum: f64 = probs.iter().map(|(_, share)| share).sum();
        probs.sort_by(|a, b| b.1.total_cmp(&a.1));
        for ((id, prob), (written, share)) in of(&own, t, 3).into_iter().zip(probs) {
            assert_eq!(id, written, "t {t}");
            assert!((prob - share / sum).abs() < 1e-4, "t {t}: {prob} and {}", share / sum);
        }
    }
    assert_ne!(of(&own, 4, 0), of(&of_model, 4, 0));
    // The sampled token follows from the logits that the port wrote.
    let from = ["--trace", port.to_str().unwrap(), "--model", &model];
    let page = ok(&llama_trace([&["log", "--values", "--stage", "probs,sampled"], &from[..]].concat()));
    assert!(page.contains("probs (V=1024)  [derived]"), "{page}");
    let last = logits.outer_iter().last().unwrap();
    let likeliest = (0..last.len()).max_by(|&a, &b| last[a].total_cmp(&last[b])).unwrap();
    let args = ["explain", "p0/sampled[n=0]", "--format", "json"];
    let found: Value = serde_json::from_str(&ok(&llama_trace([&args[..], &from].concat()))).unwrap();
    assert_eq!((&found["value"], &found["recorded"]), (&(likeliest as f64).into(), &false.into()), "{found}");
    // Attribution needs the heads. The port wrote none, and the model's heads do not fit the port's residual stream.
    let written = [
        "p0/L3/ffn_residual differs between the trace",
        "does not have all values that the attribution needs",
        "attn_heads",
    ];
    refused(&[&["attribute"], &from[..]].concat(), 2, &written);
    // If the port did not write the output of the last layer, the program does not use the model's run instead.
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in
        files(&port).into_iter().filter(|(name, _)| name != "pass_000/layer_03/ffn_residual.npy")
    {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    let less = folder.path().to_str().unwrap();
    let written =
        ["p0/logits differs between the trace", "expected: ffn_residual of layer ", " and of the last"];
    refused(&["lens", "--trace", less, "--model", &model], 2, &written);
}

/// The operands of a number come from the folder if the folder has them. If not, the program reports this.
#[test]
fn stages_that_a_port_did_not_write_are_derived_from_its_files() {
    let [port, model] = ["port/story/wrong", "builtin"].map(fixture);
    let [port, model] = [&port, &model].map(|path| path.to_str().unwrap());
    let explain = |address: &str| {
        let args = ["explain", address, "--trace", port, "--model", model, "--format", "json"];
        serde_json::from_str::<Value>(&ok(&llama_trace(args))).unwrap()
    };
    let value = |layer: usize, stage: &str, (t, d): (usize, usize)| {
        let file = Path::new(port).join(format!("pass_000/layer_{layer:02}/{stage}.npy"));
        let bytes = fs::read(file).unwrap();
        let at = bytes.len() - 5 * 128 * 4 + (t * 128 + d) * 4;
        f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    };
    let norm = explain("L1/attn_norm[t=3,d=5]");
    let operand = &norm["terms"][0]["operands"][0];
    assert_eq!(operand["address"], "p0/L0/ffn_residual[t=3,d=5]", "{norm}");
    assert_eq!(operand["value"].as_f64().unwrap() as f32, value(0, "ffn_residual", (3, 5)));
    assert_eq!((&norm["recorded"], &norm["value"]), (&Value::Bool(false), &norm["result"]), "{norm}");
    // One of the two operands of this sum was not written, so both come from the model's run.
    let sum = explain("L1/ffn_residual[t=3,d=5]");
    assert_eq!(sum["value"].as_f64().unwrap() as f32, value(1, "ffn_residual", (3, 5)));
    let told = format!("the trace has {} at p0/L1/attn_residual[t=3,d=5]", value(1, "attn_residual", (3, 5)));
    assert!(sum["notes"].to_string().contains(&told), "{told}: {sum}");
}

#[test]
fn an_export_never_replaces_the_folder_that_it_reads() {
    let folder = tempfile::tempdir().unwrap();
    let dump = folder.path().join("dump");
    export(&["--prompt", PROMPT, "--layer", "0"], &dump);
    let before = files(&dump);
    let from = dump.to_str().unwrap();
    for out in [&dump, &dump.join("../dump/."), &folder.path().to_owned()] {
        let args = ["export", "--trace", from, "--stage", "xq", "--force", "--out", out.to_str().unwrap()];
        refused(&args, 2, &["would replace the folder that it reads from", "choose another --out"]);
    }
    assert!(files(&dump) == before);
    // A new folder inside the folder that is read replaces none of its files, so it is accepted.
    ok(&llama_trace([
        "export",
        "--trace",
        from,
        "--stage",
        "xq",
        "--out",
        dump.join("new").to_str().unwrap(),
    ]));
}

#[test]
fn an_invalid_setting_of_a_map_is_named() {
    let captured = fixture("capture/transformers/gqa");
    let map = fs::read_to_string(captured.join("capture.toml")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for (right, wrong, said) in [
        ("rope_theta = 2000.0", "rope_theta = \"x\"", "[config] with an invalid rope_theta: "),
        ("dim = 32", "dim = -3", "[config] with an invalid dim: "),
        ("tied = false", "tied = 3", "[config] with an invalid tied: "),
        ("kv_heads = 2", "kv_heads = 3", "4 query heads and 3 key/value heads"),
    ] {
        assert!(map.contains(right), "{map}");
        fs::write(folder.path().join("capture.toml"), map.replace(right, wrong)).unwrap();
        refused(&["log", "--trace", folder.path().to_str().unwrap()], 3, &[said, "next: "]);
    }
}

#[test]
fn a_path_of_a_file_in_a_folder_gives_the_advice_to_name_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let dump = folder.path().join("dump");
    export(&["--prompt", PROMPT, "--stage", "xq", "--layer", "0"], &dump);
    for name in ["manifest.json", "pass_000/layer_00/xq.npy"] {
        let file = dump.join(name).display().to_string();
        let said = ["the trace cannot be read", "give the folder that contains it"];
        refused(&["log", "--trace", &file], 3, &said);
        refused(&["diff", dump.to_str().unwrap(), &file], 3, &said);
    }
}

#[test]
fn messages_about_one_stage_use_the_singular() {
    let folder = tempfile::tempdir().unwrap();
    let [dump, again] = ["dump", "again"].map(|name| folder.path().join(name));
    let [dump, again] = [&dump, &again].map(|path| path.to_str().unwrap());
    let said = |args: &[&str]| {
        let output = llama_trace(args);
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        stderr(&output) + &ok(&output)
    };
    let wrote = said(&["export", "--prompt", PROMPT, "--stage", "tokens", "--out", dump]);
    assert!(wrote.contains("wrote 1 stage and manifest.json to "), "{wrote}");
    assert!(said(&["diff", dump, dump]).contains("1 stage compared, 0 missing"));
    // An export of a model that is not built in, without one stage.
    let (less, gqa) = (folder.path().join("less"), fixture("golden/gqa"));
    export(&["--model", gqa.to_str().unwrap(), "--ids", "1,5,9,13"], &less);
    let manifest = less.join("manifest.json");
    let mut text: Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    let files = text["files"].as_array_mut().unwrap();
    files.retain(|file| file["file"] != "pass_000/final_norm.npy");
    fs::write(&manifest, text.to_string()).unwrap();
    fs::remove_file(less.join("pass_000/final_norm.npy")).unwrap();
    let less = less.to_str().unwrap();
    let lacks = said(&["export", "--trace", less, "--out", again]);
    assert!(
        lacks.contains("p0/final_norm is not in the trace; give --model to compute it again\n"),
        "{lacks}"
    );
    let lacks = said(&["log", "--trace", less, "--values"]);
    assert!(lacks.contains("p0/final_norm has no values in this trace.\n"), "{lacks}");
}
