//! The binary as a user runs it: what it prints, what it writes, what it refuses and with which exit code.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "cli/batch.rs"]
mod batch;
#[path = "cli/capture.rs"]
mod capture;
#[path = "cli/check.rs"]
mod check;
mod common;
#[path = "cli/device.rs"]
mod device;
#[path = "cli/diff.rs"]
mod diff;
#[path = "cli/explain.rs"]
mod explain;
#[path = "cli/export.rs"]
mod export;
#[path = "cli/folder.rs"]
mod folder;
#[path = "cli/memory.rs"]
mod memory;
#[path = "cli/names.rs"]
mod names;
#[path = "cli/recipe.rs"]
mod recipe;
#[path = "cli/snapshot.rs"]
mod snapshot;
#[path = "cli/stop.rs"]
mod stop;
#[path = "cli/target.rs"]
mod target;
#[path = "cli/threads.rs"]
mod threads;
#[path = "cli/trace.rs"]
mod trace;

use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};

use common::{command, data, fixture, llama_trace, models, stderr, stdout};
use export::manifest;
use ndarray::ArrayD;
use ndarray_npy::ReadNpyExt;
use serde_json::Value;

const PROMPT: &str = "Once upon a time";

fn ok(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    stdout(output)
}

#[test]
fn a_prompt_prints_itself_and_what_follows_and_nothing_else() {
    let output = llama_trace(["--prompt", PROMPT, "-n", "30"]);
    let text = ok(&output);
    assert!(text.starts_with(PROMPT) && text.len() > PROMPT.len() + 30, "{text}");
    assert!(!text.ends_with('\n') && stderr(&output).is_empty(), "{text:?} {:?}", stderr(&output));
    assert_eq!(
        text,
        ok(&llama_trace(["--prompt", PROMPT, "-n", "30"])),
        "greedy text is the same every time"
    );
    assert_eq!(ok(&llama_trace(["--prompt", PROMPT, "-n", "0"])), PROMPT, "nothing is drawn");
    assert!(
        ok(&llama_trace(["--prompt", "", "-n", "5"])).len() > 1,
        "from the beginning-of-text token alone"
    );
}

#[test]
fn a_context_of_its_own_length_ends_the_text_with_one_message() {
    let whole = ok(&llama_trace(["--prompt", PROMPT, "-n", "20"]));
    let cut = llama_trace(["--prompt", PROMPT, "-n", "20", "--context", "8"]);
    let text = ok(&cut);
    assert!(whole.starts_with(&text) && text.len() < whole.len(), "{text}");
    let said = stderr(&cut);
    assert_eq!(said.trim(), "The context of 8 tokens that --context reserved is full; the model's has 512.");
    for (args, code, reason) in [
        (&["--context", "2"][..], 4, "the KV cache is full"),
        (&["--context", "0"], 2, "a number from 1 to 512"),
        (&["--context", "513"], 2, "a number from 1 to 512"),
        (&["--context", "-1"], 2, "a whole number is expected"),
    ] {
        let output = llama_trace(["--prompt", PROMPT, "-n", "3"].iter().chain(args));
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(reason), "{args:?}: {}", stderr(&output));
    }
    let log = llama_trace(["log", "--prompt", PROMPT, "-n", "9", "--context", "6", "--stage", "sampled"]);
    assert_eq!(ok(&log).matches("drew").count(), 2, "the prompt has five tokens");
    assert!(
        stderr(&log).contains("The context of 6 tokens that --context reserved is full"),
        "{}",
        stderr(&log)
    );
}

#[test]
fn a_story_ends_where_the_model_ends_it() {
    let text = ok(&llama_trace(["--prompt", PROMPT, "-n", "400"]));
    let more = ok(&llama_trace(["--prompt", PROMPT, "-n", "450"]));
    assert_eq!(text, more, "it stopped at the end-of-text token");
    assert!(!text.contains("<|"), "the token itself is not printed: {text}");
}

#[test]
fn a_seed_gives_the_same_text_and_another_gives_another() {
    let text =
        |seed| ok(&llama_trace(["--prompt", PROMPT, "-n", "40", "--temperature", "1", "--seed", seed]));
    assert_eq!(text("7"), text("7"));
    assert_ne!(text("7"), text("8"));
}

#[test]
fn prompts_come_from_files_standard_input_and_ids() {
    let expected = ok(&llama_trace(["--prompt", PROMPT, "-n", "5"]));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompt.txt");
    fs::write(&file, PROMPT).unwrap();
    assert_eq!(ok(&llama_trace(["--prompt-file", file.to_str().unwrap(), "-n", "5"])), expected);
    for stdin in [["--prompt-file", "-"], ["--prompt", "-"]] {
        let output = command(stdin.iter().chain(&["-n", "5"])).stdin(fs::File::open(&file).unwrap()).output();
        assert_eq!(ok(&output.unwrap()), expected);
    }
    let ids = prompt_ids(PROMPT);
    let list = ids.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
    assert_eq!(ok(&llama_trace(["--ids", &list, "-n", "5"])), expected, "the prompt's text, from its ids");
    let ids_file = folder.path().join("ids.json");
    fs::write(&ids_file, format!("[{list}]\n")).unwrap();
    assert_eq!(ok(&llama_trace(["--ids", &format!("@{}", ids_file.display()), "-n", "5"])), expected);
}

/// The ids of a prompt, as the export has them.
fn prompt_ids(prompt: &str) -> Vec<i64> {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("dump");
    ok(&llama_trace(["export", "--prompt", prompt, "--stages", "tokens", "--out", out.to_str().unwrap()]));
    read_ids(&out.join("pass_000/tokens.npy"))
}

fn read_ids(path: &Path) -> Vec<i64> {
    ArrayD::<i64>::read_npy(fs::File::open(path).unwrap()).unwrap().into_iter().collect()
}

#[test]
fn a_model_without_a_tokenizer_takes_ids_and_shows_them() {
    let model = fixture("golden/gqa");
    let model = model.to_str().unwrap();
    let greedy: Value =
        serde_json::from_slice(&fs::read(fixture("golden/gqa/greedy.json")).unwrap()).unwrap();
    let ids =
        |key: &str| -> Vec<String> { greedy[key].as_array().unwrap().iter().map(Value::to_string).collect() };
    let (prompt, drawn) = (ids("prompt_ids"), ids("greedy_ids"));
    let text = ok(&llama_trace(["--model", model, "--ids", &prompt.join(","), "-n", "16"]));
    let expected: Vec<String> = prompt.iter().chain(&drawn).map(|id| format!("#{id}")).collect();
    assert_eq!(text.split_whitespace().collect::<Vec<_>>(), expected);
    let refused = llama_trace(["--model", model, "--prompt", "x"]);
    assert_eq!(refused.status.code(), Some(4));
    assert!(stderr(&refused).contains("--ids 1,403,407"), "{}", stderr(&refused));
}

#[test]
fn the_log_tells_every_step_in_order() {
    let text = ok(&llama_trace(["log", "--prompt", PROMPT, "-n", "2", "--values"]));
    for expected in [
        "pass 0 (prefill), 5 tokens after 0 cached: \"<|begin_of_text|>\" \"Once\" \" upon\" \" a\" \" time\"",
        "pass 1 (decode), 1 tokens after 5 cached",
        "layer 0 of 0-3",
        "layer 3 of 0-3",
        "transpose    keys (K=5, ",
        "[view]",
        "[derived]",
        "-inf×10",
    ] {
        assert!(text.contains(expected), "{expected} is not in\n{text}");
    }
    let masks = text.lines().filter(|line| line.contains("-> mask ")).count();
    assert_eq!(masks, 1, "a decode pass hides nothing");

    let json = ok(&llama_trace(["log", "--prompt", PROMPT, "--format", "json", "--values"]));
    let lines: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let layers = lines.iter().filter_map(|line| line["layer"].as_u64()).max().unwrap() + 1;
    assert_eq!(lines.len() as u64, 10 + layers * (24 + 7));
    for line in &lines {
        let took = line["kind"] == "run";
        assert_eq!(line["time_us"].is_number(), took, "{line}");
    }
    let softmax = lines.iter().find(|line| line["step"] == "softmax").unwrap();
    assert_eq!(softmax["values"]["max"], 1.0);
    assert_eq!(softmax["inputs"][0]["name"], "masked_scores");
}

#[test]
fn the_log_counts_layers_from_0_and_takes_the_selections_of_export() {
    let all = ok(&llama_trace(["log", "--prompt", PROMPT]));
    assert!(!all.contains("layer 4") && !all.contains(" / "), "{all}");
    let args = [
        "log",
        "--prompt",
        PROMPT,
        "-n",
        "3",
        "--pass",
        "1-2",
        "--layers",
        "0,2",
        "--stage",
        "xq,keys_t,logits",
    ];
    let text = ok(&llama_trace(args));
    let places = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| line.starts_with("[p"));
        let place = |line: &str| line.split_whitespace().take(3).collect::<Vec<_>>().join(" ");
        lines.map(place).collect()
    };
    let pass = |pass: usize| {
        let place = |place: &str| format!("[p{pass}] {place}");
        [place("layer 0"), place("layer 0"), place("layer 2"), place("layer 2"), place("- matmul")]
    };
    assert_eq!(places(&text), [pass(1), pass(2)].concat(), "{text}");
    assert!(!text.contains("pass 0") && text.contains("pass 2 drew"), "{text}");
    let json = ok(&llama_trace(args.into_iter().chain(["--format", "json", "--values"])));
    let lines: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 10);
    let layers: Vec<_> = lines.iter().map(|line| line["layer"].as_u64()).collect();
    assert_eq!(layers[..5], [Some(0), Some(0), Some(2), Some(2), None]);
    let valued = |line: &&Value| line["values"].is_object();
    assert_eq!(lines.iter().filter(valued).count(), 6, "a view has no values of its own");
}

#[test]
fn what_temperature_0_overrules_is_said_in_one_line() {
    let run = |args: &[&str]| stderr(&llama_trace(["--prompt", "x", "-n", "1"].iter().chain(args)));
    for option in [["--top-p", "0.9"], ["--top-k", "3"], ["--seed", "7"]] {
        let said = run(&option);
        let one =
            said.lines().count() == 1 && said.starts_with(option[0]) && said.contains("--temperature 1");
        assert!(one, "{said}");
        assert_eq!(run(&[&option[..], &["--temperature", "0.5"]].concat()), "");
    }
    let said = run(&["--seed", "7", "--top-p", "0.5"]);
    assert!(said.starts_with("--top-p, --seed ") && said.lines().count() == 1, "{said}");
    assert_eq!(run(&[]), "");
}

#[test]
fn memory_is_refused_where_nothing_is_traced() {
    let output = llama_trace(["--prompt", "x", "-n", "1", "--memory", "64MiB"]);
    let said = stderr(&output);
    assert_eq!((output.status.code(), stdout(&output)), (Some(2), String::new()), "{said}");
    assert!(said.contains("--memory bounds") && said.contains("add --step"), "{said}");
    // Where the tracer opens it is an option like others.
    for args in [&["--memory", "64MiB"][..], &["--prompt", "x", "--step", "--memory", "64MiB"]] {
        assert_eq!(llama_trace(args).status.code(), Some(6), "there is no terminal here");
    }
}

#[test]
fn a_pipe_gets_the_bytes_of_a_token_unchanged() {
    // One byte of a character: the built-in vocabulary has each byte as a token.
    let bytes = |ids: &str| llama_trace(["--ids", ids, "-n", "0"]).stdout;
    let all: Vec<u8> = (0..=255_u32).flat_map(|id| bytes(&id.to_string())).collect();
    assert_eq!(bytes("230").len(), 1);
    assert!(std::str::from_utf8(&bytes("230")).is_err(), "a part of a character stays one");
    let mut sorted = all;
    sorted.sort_unstable();
    assert_eq!(sorted, (0..=255).collect::<Vec<u8>>());
    assert_eq!(bytes("230,230"), bytes("230").repeat(2));
}

#[test]
fn a_file_of_a_directory_opens_the_directory() {
    let info = |path: &str| ok(&llama_trace(["info", "--model", path]));
    for (folder, files) in [
        ("formats/hf/f32", &["model.safetensors", "config.json"][..]),
        ("formats/hf/sharded", &["model-00002-of-00003.safetensors", "model.safetensors.index.json"]),
        ("formats/meta/by_dim", &["consolidated.00.pth", "consolidated.01.pth", "params.json"]),
    ] {
        let folder = fixture(folder);
        let whole = info(folder.to_str().unwrap());
        for file in files {
            assert_eq!(info(folder.join(file).to_str().unwrap()), whole, "{file}");
        }
    }
    // Another file beside the model is not the model.
    let model = models::golden("gqa", |_| {});
    fs::copy(model.path().join("model.safetensors"), model.path().join("adapter.safetensors")).unwrap();
    let other = model.path().join("adapter.safetensors");
    let refused = llama_trace(["info", "--model", other.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(3), "{}", stdout(&refused));
    assert!(stderr(&refused).contains("adapter.safetensors"), "{}", stderr(&refused));
    // Beside the working directory, too.
    let inside =
        command(["info", "--model", "model.safetensors"]).current_dir(fixture("golden/gqa")).output();
    assert!(ok(&inside.unwrap()).starts_with("model       gqa ("));
}

#[test]
fn shells_complete_what_the_command_line_has() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = ok(&llama_trace(["completions", shell]));
        assert!(["llama-trace", "export", "top-p"].iter().all(|word| script.contains(word)), "{shell}");
    }
    if cfg!(unix) {
        let ask = r#"source <("$0" completions bash)
                     complete=$(complete -p llama-trace); complete=${complete##*-F }
                     COMP_WORDS=(llama-trace expo); COMP_CWORD=1
                     "${complete%% *}" llama-trace expo llama-trace; echo "${COMPREPLY[@]}""#;
        let bash = std::process::Command::new("bash");
        let Ok(output) = { bash }.args(["-c", ask, env!("CARGO_BIN_EXE_llama-trace")]).output() else {
            return;
        };
        assert_eq!(stdout(&output).trim(), "export", "{}", stderr(&output));
    }
}

#[test]
fn the_manual_page_has_every_option() {
    let page = ok(&llama_trace(["man"]));
    for word in [".TH llama-trace 1", "SUBCOMMANDS", "tokenize", "top\\-p", "Exit codes"] {
        assert!(page.contains(word), "{word} is not in\n{page}");
    }
    let page = ok(&llama_trace(["man", "export"]));
    assert!(page.contains(".TH llama-trace-export 1") && page.contains("force"), "{page}");
}

#[test]
fn info_shows_the_configuration_and_every_tensor() {
    let text = ok(&llama_trace(["info"]));
    for expected in [
        "grouped-query attention",
        "halves (i, i + C/2)",
        "model.embed_tokens.weight",
        "BF16",
        "parameters",
        "KV cache",
        "full trace",
    ] {
        assert!(text.contains(expected), "{expected} is not in\n{text}");
    }
    let tied = ok(&llama_trace(["info", "--model", fixture("golden/tied_llama3").to_str().unwrap()]));
    assert!(tied.contains("llama3, factor 5") && tied.contains("none: prompts are given as --ids"), "{tied}");
}

#[test]
fn stories260k_writes_what_llama2c_writes() {
    let (Some(model), Some(expected)) =
        (data("stories260K/stories260K.bin"), data("stories260K/expected_stdout_temp0_n200.txt"))
    else {
        return;
    };
    let output = llama_trace(["--model", model.to_str().unwrap(), "--prompt", "", "-n", "200"]);
    assert_eq!(ok(&output).as_bytes(), fs::read(expected).unwrap());
}

/// The text of the line of `log` whose output is `stage`, in the first layer or before it.
fn log_line<'a>(log: &'a str, stage: &str) -> &'a str {
    log.lines().find(|line| line.contains(&format!("-> {stage} ("))).unwrap_or_else(|| panic!("no {stage}"))
}

#[test]
fn int8_stages_are_logged_as_whole_numbers_and_its_weights_as_int8() {
    let log = ok(&llama_trace(["log", "--prompt", PROMPT, "--precision", "q8", "--values"]));
    let line = log_line(&log, "attn_norm_q8");
    let values = line.rsplit_once("]  ").unwrap().1;
    assert!(values.starts_with("min -127 max 127 mean ") || values.contains("max 127 "), "{line}");
    let first = values.rsplit_once('[').unwrap().1.trim_end_matches(" …]");
    assert!(first.split(' ').all(|value| value.parse::<i8>().is_ok()), "{line}");
    assert!(log_line(&log, "attn_norm_scale").contains("D/g=4"), "{log}");
    let line = log_line(&log, "xq");
    assert!(
        line.contains("attn_norm_q8 (")
            && line.contains("attn_norm_scale (")
            && line.contains("; int8, g=32)")
    );
    assert!(log_line(&log, "tokens").contains("min ") && !log_line(&log, "tokens").contains(".0000 max"));
    let float = ok(&llama_trace(["log", "--prompt", PROMPT]));
    assert!(!float.contains("int8") && !float.contains("_q8"));

    let json =
        ok(&llama_trace(["log", "--prompt", PROMPT, "--precision", "q8", "--values", "--format", "json"]));
    let lines: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let line = |step: &str| lines.iter().find(|line| line["step"] == step).unwrap();
    assert!(line("attn_norm_q8")["values"]["first"][0].is_i64());
    assert_eq!(line("xq")["inputs"][2]["int8_group"], 32);
    assert!(line("attn_norm")["inputs"][1].get("int8_group").is_none());
}

#[test]
fn an_export_in_int8_holds_whole_numbers_and_scales() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("dump");
    ok(&llama_trace(["export", "--prompt", PROMPT, "--precision", "q8", "--out", out.to_str().unwrap()]));
    let manifest = manifest(&out);
    assert_eq!(manifest["precision"], "q8");
    let files = manifest["files"].as_array().unwrap();
    let q8: Vec<_> = files.iter().filter(|file| file["stage"].as_str().unwrap().ends_with("_q8")).collect();
    let layers = manifest["model"]["layers"].as_u64().unwrap() as usize;
    assert_eq!(q8.len(), 4 * layers + 1);
    for file in q8 {
        let path = out.join(file["file"].as_str().unwrap());
        let values: ArrayD<i8> = ndarray_npy::read_npy(&path).unwrap();
        let shape: Vec<u64> = values.shape().iter().map(|&length| length as u64).collect();
        assert_eq!(file["shape"], serde_json::json!(shape));
        // The largest of each group is 127 or −127, but in a group of zeros.
        let scales = path.to_str().unwrap().replace("_q8.npy", "_scale.npy");
        let scales: ArrayD<f32> = ndarray_npy::read_npy(scales).unwrap();
        let values: Vec<i8> = values.into_iter().collect();
        for (group, scale) in values.chunks(32).zip(scales) {
            let largest = group.iter().map(|value| value.unsigned_abs()).max();
            assert_eq!(largest, Some(if scale > 0.0 { 127 } else { 0 }), "{}", path.display());
        }
    }
}

#[test]
fn a_directory_with_float16_weights_opens() {
    let Some(model) = data("tiny-llama-float") else { return };
    let text = ok(&llama_trace(["--model", model.to_str().unwrap(), "--ids", "1,5,6", "-n", "3"]));
    assert!(!text.is_empty());
    let info = ok(&llama_trace(["info", "--model", model.to_str().unwrap()]));
    assert!(info.contains("F16"), "{info}");
}

#[test]
fn wrong_requests_are_answered_with_what_would_be_right() {
    let long = "word ".repeat(2000);
    let cases: &[(&[&str], i32, &str)] = &[
        (&["log", "--ids", "0,4000000"], 4, "outside the model's vocabulary"),
        (&["log", "--ids", "1,x"], 4, "`x`"),
        (&["--ids", "@/nonexistent"], 4, "/nonexistent"),
        (&["--ids", ""], 4, "no tokens"),
        (&["--prompt", &long], 4, "longer than the model's context"),
        (&["log", "--prompt", &long], 4, "longer than the model's context"),
        (&["--prompt-file", "/nonexistent"], 4, "/nonexistent"),
        (&["--prompt", "x", "--temperature=-1"], 2, "--temperature"),
        (&["--prompt", "x", "--temperature=nan"], 2, "--temperature"),
        (&["--prompt", "x", "--top-p", "0"], 2, "--top-p"),
        (&["--prompt", "x", "--ids", "1"], 2, "cannot be used with"),
        (&["--model", "/nonexistent", "--prompt", "x"], 3, "/nonexistent"),
        (&["--model", "/", "--prompt", "x"], 3, "config.json"),
        (&["--prompt", "x", "--step"], 6, "llama-trace export"),
        (&[], 6, "llama-trace log"),
        (&["export", "--prompt", "x", "--out", "/tmp/never", "-n", "0"], 2, "-n 1"),
        (
            &["export", "--prompt", "x", "--out", "/tmp/never", "--stages", "sofmax"],
            2,
            "did you mean `softmax`?",
        ),
        (&["export", "--prompt", "x", "--out", "/tmp/never", "--layers", "9-"], 2, "numbers from 0 to"),
        (&["nonsense"], 2, "unrecognized subcommand"),
    ];
    for (args, code, expected) in cases {
        let output = llama_trace(*args);
        assert_eq!(output.status.code(), Some(*code), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{args:?}: {}", stderr(&output));
        assert!(stdout(&output).is_empty(), "{args:?}");
    }
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    for args in
        [vec!["info"], vec!["log", "--prompt", PROMPT, "-n", "50"], vec!["--prompt", PROMPT, "-n", "400"]]
    {
        let mut child = command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        assert!(output.stderr.is_empty(), "{args:?}: {}", stderr(&output));
    }
}

#[test]
fn weights_that_are_not_numbers_run_and_are_told() {
    let model = models::golden("gqa", |tensors| {
        let (_, bytes) = tensors.get_mut("model.norm.weight").unwrap();
        *bytes = f32::NAN.to_le_bytes().repeat(bytes.len() / 4);
    });
    let path = model.path().to_str().unwrap();
    let output = llama_trace(["--model", path, "--ids", "1,2", "-n", "2"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("not a number"), "{}", stderr(&output));
    let log = ok(&llama_trace(["log", "--model", path, "--ids", "1,2", "--values"]));
    assert!(log.lines().any(|line| line.contains("final_norm") && line.contains("NaN×")), "{log}");
}

#[test]
fn a_benchmark_reports_every_figure_beside_the_machines_limits() {
    let args = ["bench", "--prompt-tokens", "4,8", "--gen", "3", "--threads", "1", "--stages"];
    let more = ["--batch", "1,3", "--format", "json"];
    let report: Value = serde_json::from_str(&ok(&llama_trace(args.iter().chain(&more)))).unwrap();
    for pointer in [
        "/read_bandwidth_gbs",
        "/matmul_gflops",
        "/load_s",
        "/first_token_s",
        "/decode/tokens_per_s",
        "/decode/gbs",
        "/decode/weights_bytes",
        "/decode/cache_bytes",
        "/decode/sampling_greedy_s/median",
        "/decode/sampling_top_p_s/median",
        "/prefill/0/tokens_per_s",
        "/prefill/1/gflops",
        "/prefill/1/share_of_matmul",
        "/batch/0/tokens_per_s",
        "/batch/1/ratio",
        "/batch/1/decode/median",
    ] {
        let value = report.pointer(pointer).and_then(Value::as_f64);
        assert!(value.is_some_and(|value| value > 0.0), "{pointer}: {value:?}");
    }
    assert_eq!(report["threads"], 1);
    let sizes: Vec<_> = report["batch"].as_array().unwrap().iter().map(|batch| &batch["sequences"]).collect();
    assert!(sizes == [1, 3] && report["batch"][0]["ratio"] == 1.0, "{}", report["batch"]);
    assert!(report["decodes"].as_array().unwrap().len() == 1 && report["decodes"][0] == report["decode"]);
    assert!(report["decode"]["share_of_bandwidth"].is_null(), "the built-in model fits into a cache");
    assert!(report["stages"].as_array().unwrap().iter().any(|stage| stage["stage"] == "ffn_down"));
    let table = ok(&llama_trace(["bench", "--prompt-tokens", "4", "--gen", "2"]));
    assert!(table.contains("in cache") && table.contains("tokens/s"), "{table}");
}

#[test]
fn every_kernel_and_any_number_of_threads_give_the_same_bits() {
    let dump = |options: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("dump");
        let args =
            ["export", "--prompt", PROMPT, "-n", "2", "--stages", "softmax,ffn_residual,logits", "--out"];
        ok(&command(args.iter().chain(&[out.to_str().unwrap()]).chain(options)).output().unwrap());
        ["pass_000/logits.npy", "pass_001/logits.npy", "pass_000/layer_02/softmax.npy"]
            .map(|file| fs::read(out.join(file)).unwrap())
    };
    let expected = dump(&["--cpu-kernel", "portable", "--threads", "1"]);
    for kernel in llama_trace::backend::cpu::Kernel::available() {
        for threads in ["1", "2", "3"] {
            let same = dump(&["--cpu-kernel", kernel.name(), "--threads", threads]) == expected;
            assert!(same, "{} kernel, {threads} threads", kernel.name());
        }
    }
    let refused = llama_trace(["--prompt", "x", "--cpu-kernel", "abacus"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("portable"), "{}", stderr(&refused));
}

#[test]
fn tuning_times_every_kernel_and_names_the_fastest_in_a_line_of_the_table() {
    let args = ["bench", "--prompt-tokens", "4", "--gen", "2", "--tune"];
    let report = ok(&llama_trace(args.iter().chain(&["--format", "json"])));
    let report: Value = serde_json::from_str(&report).unwrap();
    let tuning = &report["tuning"];
    let timed: Vec<_> = tuning["kernels"].as_array().unwrap().iter().collect();
    let available = llama_trace::backend::cpu::Kernel::available();
    assert_eq!(timed.len(), available.len());
    for (timed, kernel) in timed.iter().zip(&available) {
        assert_eq!(timed["kernel"], kernel.name());
        assert!(timed["prefill"]["median"].as_f64().unwrap() > 0.0);
        assert!(timed["decode"]["median"].as_f64().unwrap() > 0.0);
    }
    if let Some(line) = tuning["line"].as_str() {
        let fastest = timed.iter().min_by_key(|timed| {
            let time = |what: &str| 1e12 / timed[what]["median"].as_f64().unwrap();
            (time("prefill") + time("decode")) as u64
        });
        assert!(line.ends_with(&format!("{})", fastest.unwrap()["kernel"])), "{line}");
    }
    let table = ok(&llama_trace(args));
    assert!(available.iter().all(|kernel| table.contains(&format!("\n  {} ", kernel.name()))), "{table}");
    let refused = llama_trace(args.iter().chain(&["--cpu-kernel", "portable"]));
    assert_eq!(refused.status.code(), Some(2));
    assert_eq!(llama_trace(["bench", "--gen", "0", "--prompt-tokens", "4", "--tune"]).status.code(), Some(2));
}

#[test]
#[cfg(target_os = "linux")]
fn weights_in_huge_pages_make_the_same_text_and_what_was_given_is_said() {
    let run = |options: &[&str]| {
        let output = llama_trace(["--prompt", PROMPT, "-n", "5"].iter().chain(options));
        ok(&output);
        output
    };
    let (plain, huge) = (run(&[]), run(&["--huge-pages", "--threads", "2"]));
    assert_eq!(stdout(&huge), stdout(&plain));
    let said = stderr(&huge);
    assert!(said.contains("--huge-pages: ") && said.contains("MiB of weights were copied into"), "{said}");
    assert!(said.contains("that were reserved") || said.contains("nr_hugepages"), "{said}");
    assert!(!stderr(&plain).contains("huge"));
}

/// README's number is no kernel's own: all of them make the same bits, and those are the ones it shows.
#[test]
fn the_number_that_readme_shows_is_every_kernels() {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let (_, shown) = readme.split_once("p0/L1/softmax[h=0,t=17,k=14] = ").unwrap();
    let shown: f32 = shown.split_whitespace().next().unwrap().parse().unwrap();
    let prompt = "Once upon a time, there was a fox named Mara. Mara";
    for kernel in llama_trace::backend::cpu::Kernel::available() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("dump");
        let args = [
            "export",
            "--prompt",
            prompt,
            "--layer",
            "1",
            "--stage",
            "softmax",
            "--cpu-kernel",
            kernel.name(),
        ];
        ok(&llama_trace(args.into_iter().chain(["--out", out.to_str().unwrap()])));
        let file = fs::File::open(out.join("pass_000/layer_01/softmax.npy")).unwrap();
        let value = ArrayD::<f32>::read_npy(file).unwrap()[[0, 17, 14]];
        assert_eq!(value.to_bits(), shown.to_bits(), "{}: {value}", kernel.name());
    }
}

/// What kind of model a path leads to is said in one line, wherever one can be named.
#[test]
fn a_named_model_is_recognised_in_one_line() {
    let directory = fixture("golden/gqa");
    let model = directory.to_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("dump");
    let ids = ["--ids", "1,2", "-n", "1", "--model", model, "--precision", "bf16"];
    for command in [&[][..], &["log"], &["export", "--out", out.to_str().unwrap()]] {
        let output = llama_trace([command, &ids].concat());
        ok(&output);
        let told = stderr(&output);
        let lines: Vec<_> = told.lines().filter(|line| line.contains("Hugging Face directory")).collect();
        let [line] = lines[..] else { panic!("{command:?}: {told}") };
        assert!(line.starts_with("gqa (") && line.ends_with("precision bf16"), "{line}");
    }
}

/// `cargo package` says nothing against it, and it holds what the sources put into the program.
#[test]
fn the_package_is_clean_and_whole() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut cargo = std::process::Command::new(env!("CARGO"));
    let args = ["package", "--list", "--offline", "--allow-dirty"];
    let output = cargo.args(args).current_dir(root).output().unwrap();
    assert!(!stderr(&output).contains("warning"), "{}", stderr(&output));
    let list = ok(&output);
    let has = |file: &str| list.lines().any(|line| line == file);
    for file in fs::read_dir(root.join("chapters")).unwrap() {
        if file.as_ref().unwrap().path().is_dir() {
            continue;
        }
        assert!(has(&format!("chapters/{}", file.unwrap().file_name().to_str().unwrap())));
    }
    for file in ["model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"] {
        assert!(has(&format!("fixtures/builtin/{file}")), "{file} is not in\n{list}");
    }
    assert!(
        has("README.md") && has("LICENSE-MIT") && has("tests/cli.rs") && !list.contains(".ci/"),
        "{list}"
    );
    assert!(has("chapters/pictures/softmax.svg"), "{list}");
    // crates.io takes 10 MiB, packed.
    let folder = tempfile::tempdir().unwrap();
    let mut cargo = std::process::Command::new(env!("CARGO"));
    cargo.args(["package", "--no-verify", "--offline", "--allow-dirty", "--target-dir"]).arg(folder.path());
    ok(&cargo.current_dir(root).output().unwrap());
    let packed = fs::read_dir(folder.path().join("package")).unwrap().map(|file| file.unwrap());
    let size = |file: fs::DirEntry| file.metadata().map_or(0, |metadata| metadata.len());
    let size: u64 =
        packed.filter(|file| file.path().extension().is_some_and(|suffix| suffix == "crate")).map(size).sum();
    assert!((1..10 << 20).contains(&size), "{size} bytes");
}

#[test]
fn info_names_the_tracers_memory_and_what_comes_on_top_and_sizes_are_checked() {
    let text = ok(&llama_trace(["info"]));
    for part in [
        "1GiB of values at most (--memory)",
        "the KV cache and the buffers of a pass come on top",
        "KV cache",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    for (size, why) in [("64", "KiB, MiB or GiB"), ("1MiB", "at least 16MiB"), ("1.5GiB", "a whole number")] {
        let output = llama_trace(["--memory", size, "--step"]);
        assert_eq!(output.status.code(), Some(2), "{size}");
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
    }
}
