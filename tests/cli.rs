//! The binary as a user runs it: its output, its files, and its refusals with their exit codes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "cli/batch.rs"]
mod batch;
#[path = "cli/bench.rs"]
mod bench;
#[path = "cli/capture.rs"]
mod capture;
#[path = "cli/check.rs"]
mod check;
mod common;
#[path = "cli/device.rs"]
mod device;
#[path = "cli/diff.rs"]
mod diff;
#[path = "cli/edits.rs"]
mod edits;
#[path = "cli/explain.rs"]
mod explain;
#[path = "cli/export.rs"]
mod export;
#[path = "cli/families.rs"]
mod families;
#[path = "cli/folder.rs"]
mod folder;
#[path = "cli/info.rs"]
mod info;
#[path = "cli/json.rs"]
mod json;
#[path = "cli/kata.rs"]
mod kata;
#[path = "cli/kernels.rs"]
mod kernels;
#[path = "cli/log.rs"]
mod log;
#[cfg(target_os = "linux")]
#[path = "cli/memory.rs"]
mod memory;
#[path = "cli/names.rs"]
mod names;
#[path = "cli/patch.rs"]
mod patch;
#[path = "cli/ported.rs"]
mod ported;
#[path = "cli/recipe.rs"]
mod recipe;
#[path = "cli/snapshot.rs"]
mod snapshot;
#[cfg(unix)]
#[path = "cli/stop.rs"]
mod stop;
#[path = "cli/suggested.rs"]
mod suggested;
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
fn a_prompt_and_its_continuation_are_all_that_is_printed() {
    let output = llama_trace(["--prompt", PROMPT, "-n", "30"]);
    let text = ok(&output);
    assert!(text.starts_with(PROMPT) && text.len() > PROMPT.len() + 30, "{text}");
    assert!(!text.ends_with('\n') && stderr(&output).is_empty(), "{text:?} {:?}", stderr(&output));
    assert_eq!(
        text,
        ok(&llama_trace(["--prompt", PROMPT, "-n", "30"])),
        "greedy text is the same every time"
    );
    assert_eq!(ok(&llama_trace(["--prompt", PROMPT, "-n", "0"])), PROMPT, "no token is sampled");
    assert!(
        ok(&llama_trace(["--prompt", "", "-n", "5"])).len() > 1,
        "from the beginning-of-text token alone"
    );
}

#[test]
fn a_full_context_ends_the_text_with_one_message() {
    let whole = ok(&llama_trace(["--prompt", PROMPT, "-n", "20"]));
    let cut = llama_trace(["--prompt", PROMPT, "-n", "20", "--context", "8"]);
    let text = ok(&cut);
    assert!(whole.starts_with(&text) && text.len() < whole.len(), "{text}");
    let said = stderr(&cut);
    assert_eq!(
        said.trim(),
        "The context of 8 tokens that --context reserved is full; the model's own context has 512 tokens."
    );
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
    let log_text = ok(&log);
    let sampled = log_text.lines().filter(|line| line.starts_with("pass ") && line.contains(" sampled "));
    assert_eq!(sampled.count(), 2, "the prompt has five tokens");
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
    assert_eq!(text, more, "the text ends at the end-of-text token");
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
    // A newline at the end is part of the text, for every source of the text.
    let line = format!("{PROMPT}\n");
    let goes_on = ok(&llama_trace(["--prompt", &line, "-n", "5"]));
    assert!(goes_on.starts_with(&line) && goes_on != expected.replacen(PROMPT, &line, 1), "{goes_on:?}");
    fs::write(&file, &line).unwrap();
    for from in [["--prompt-file", file.to_str().unwrap()], ["--prompt-file", "-"], ["--prompt", "-"]] {
        let output = command(from.iter().chain(&["-n", "5"])).stdin(fs::File::open(&file).unwrap()).output();
        assert_eq!(ok(&output.unwrap()), goes_on, "{from:?}");
    }
    // Two facts that users asked about are in the manual: newlines, and the token and key that attention opens at.
    for (page, told) in [
        ("prompts", "standard input is read whole, including a newline at its end"),
        (
            "addresses",
            "If you leave out the key (in attention), it is the key with the largest attention weight. Any other index is 0 if you leave it out.",
        ),
    ] {
        let manual = ok(&llama_trace(["help", page]));
        assert!(manual.split_whitespace().collect::<Vec<_>>().join(" ").contains(told), "{manual}");
    }
    let ids = prompt_ids(PROMPT);
    let list = ids.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
    assert_eq!(ok(&llama_trace(["--ids", &list, "-n", "5"])), expected, "the prompt's text, from its ids");
    let ids_file = folder.path().join("ids.json");
    for text in [format!("[{list}]\n"), list.replace(',', " \n"), format!("{list},\n")] {
        fs::write(&ids_file, text).unwrap();
        assert_eq!(ok(&llama_trace(["--ids", &format!("@{}", ids_file.display()), "-n", "5"])), expected);
    }
}

/// The ids of a prompt, as in the export.
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
fn one_line_names_the_options_that_temperature_0_overrules() {
    let run = |args: &[&str]| stderr(&llama_trace(["--prompt", "x", "-n", "1"].iter().chain(args)));
    for option in
        [["--top-p", "0.9"], ["--top-k", "3"], ["--min-p", "0.1"], ["--typical-p", "0.9"], ["--seed", "7"]]
    {
        let said = run(&option);
        let one =
            said.lines().count() == 1 && said.starts_with(option[0]) && said.contains("--temperature 1");
        assert!(one, "{said}");
        assert_eq!(run(&[&option[..], &["--temperature", "0.5"]].concat()), "");
    }
    let said = run(&["--seed", "7", "--top-p", "0.5"]);
    assert!(said.starts_with("--top-p, --seed ") && said.lines().count() == 1, "{said}");
    assert_eq!(run(&["--repetition-penalty", "1.2"]), "", "it has an effect at temperature 0 too");
    assert_eq!(run(&[]), "");
}

/// Each option adds its stage to the pass. The log, the manifest and an address name them.
#[test]
fn min_p_typical_p_and_the_repetition_penalty_are_stages() {
    let options =
        ["--temperature", "1", "--min-p", "0.1", "--typical-p", "0.7", "--repetition-penalty", "1.5"];
    let run = ["--prompt", PROMPT, "-n", "2"];
    let log = ok(&llama_trace(["log"].iter().chain(&run).chain(&options)));
    let names = ["logits", "penalized_logits", "probs", "min_p", "typical_p", "nucleus", "sampled"];
    let places = names.map(|name| {
        let at = log.find(&format!(" {name} ")).or_else(|| log.find(&format!("\n{name} ")));
        at.unwrap_or_else(|| panic!("{name}: {log}"))
    });
    assert!(places.is_sorted(), "{places:?} {log}");
    let plain = ok(&llama_trace(["log"].iter().chain(&run)));
    assert!(["penalized_logits", "min_p", "typical_p"].iter().all(|name| !plain.contains(name)), "{plain}");

    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let export =
        ["export", "--stage", "logits,penalized_logits,min_p,typical_p", "--out", out.to_str().unwrap()];
    ok(&llama_trace(export.iter().chain(&run).chain(&options)));
    let manifest = fs::read_to_string(out.join("manifest.json")).unwrap();
    let manifest: Value = serde_json::from_str(&manifest).unwrap();
    let sampling = &manifest["sampling"];
    for (name, value) in [("min_p", 0.1), ("typical_p", 0.7), ("repetition_penalty", 1.5)] {
        assert!((sampling[name].as_f64().unwrap() - value).abs() < 1e-6, "{sampling}");
    }
    assert!(out.join("pass_001/typical_p.npy").exists());

    let refused = llama_trace(["explain", "p0/min_p[v=3]", "--prompt", PROMPT]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("add --min-p 0.1"), "{}", stderr(&refused));
    let explained = ok(&llama_trace(["explain", "p0/min_p[v=3]", "--prompt", PROMPT].iter().chain(&options)));
    let is_told = ["min-p removes it", "no top-k, top-p 1 and min-p 0.1"];
    assert!(is_told.iter().all(|words| explained.contains(words)), "{explained}");
}

#[test]
fn the_option_memory_is_refused_without_a_tracer() {
    let output = llama_trace(["--prompt", "x", "-n", "1", "--memory", "64MiB"]);
    let said = stderr(&output);
    assert_eq!((output.status.code(), stdout(&output)), (Some(2), String::new()), "{said}");
    assert!(said.contains("--memory limits") && said.contains("add --step"), "{said}");
    // `--memory` is accepted with and without `--step`.
    for args in [&["--memory", "64MiB"][..], &["--prompt", "x", "--step", "--memory", "64MiB"]] {
        assert_eq!(llama_trace(args).status.code(), Some(6), "the tracer needs a terminal");
    }
}

#[test]
fn a_pipe_gets_the_bytes_of_a_token_unchanged() {
    // A token with only one byte of a character. The built-in vocabulary has a token for each byte.
    let bytes = |ids: &str| llama_trace(["--ids", ids, "-n", "0"]).stdout;
    let all: Vec<u8> = (0..=255_u32).flat_map(|id| bytes(&id.to_string())).collect();
    assert_eq!(bytes("230").len(), 1);
    assert!(std::str::from_utf8(&bytes("230")).is_err(), "a part of a character must not be replaced");
    let mut sorted = all;
    sorted.sort_unstable();
    assert_eq!(sorted, (0..=255).collect::<Vec<u8>>());
    assert_eq!(bytes("230,230"), bytes("230").repeat(2));
}

#[test]
fn a_file_of_a_model_opens_its_directory() {
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
    // A file with an unknown name does not open the model in its folder.
    let model = models::golden("gqa", |_| {});
    fs::copy(model.path().join("model.safetensors"), model.path().join("adapter.safetensors")).unwrap();
    let other = model.path().join("adapter.safetensors");
    let refused = llama_trace(["info", "--model", other.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(3), "{}", stdout(&refused));
    assert!(stderr(&refused).contains("adapter.safetensors"), "{}", stderr(&refused));
    // If the working directory is the model's folder, the name of the file is enough.
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
    if !cfg!(unix) {
        return;
    }
    let ask = r#"source <("$0" completions bash)
                 complete=$(complete -p llama-trace); complete=${complete##*-F }
                 COMP_WORDS=(llama-trace "$@"); COMP_CWORD=$#
                 "${complete%% *}" llama-trace "${@: -1}" "${@: -2:1}"; echo "${COMPREPLY[@]}""#;
    for (words, expected) in [
        (&["expo"][..], "export"),
        (&["export", "--forc"], "--force"),
        (&["export", "--precision", ""], "f32 bf16 q8"),
        (&["help", "expo"], "export"),
        (&["help", "tra"], "traces"),
    ] {
        let bash = std::process::Command::new("bash");
        let run = { bash }.args(["-c", ask, env!("CARGO_BIN_EXE_llama-trace")]).args(words).output();
        let Ok(output) = run else { return };
        assert_eq!(stdout(&output).trim(), expected, "{words:?}: {}", stderr(&output));
    }
}

#[test]
fn the_manual_is_printed_page_by_page_and_plain_into_a_pipe() {
    let index = ok(&llama_trace(["help"]));
    for (page, title) in [("exit-codes", "Exit codes"), ("export", "Stages as files"), ("lens", "logit lens")]
    {
        assert!(index.lines().any(|line| line.starts_with(page) && line.contains(title)), "{index}");
    }
    let page = ok(&llama_trace(["help", "sampling"]));
    assert!(
        page.starts_with("Sampling: how a token is drawn\n\n") && page.contains("divides the logits by T")
    );
    for mark in ["\u{1b}", "](", "```", "**", "<!--"] {
        assert!(!page.contains(mark), "{mark:?} is in\n{page}");
    }
    assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
    // For a command, `help` prints the command's options and then its page.
    let lens = ok(&llama_trace(["help", "lens"]));
    let (options, page) = lens.split_once("\nWhere a number comes from\n").unwrap();
    assert!(options.contains("Usage: llama-trace lens") && options.contains("--top <K>"), "{options}");
    assert!(page.contains("each layer (the logit"), "{page}");
    for help in ["-h", "--help"] {
        assert!(options.starts_with(ok(&llama_trace(["lens", help])).trim_end()), "{options}");
    }
    let wrong = llama_trace(["help", "dif"]);
    assert_eq!((wrong.status.code(), stdout(&wrong)), (Some(2), String::new()));
    assert!(stderr(&wrong).contains("a similar value exists: 'diff'"), "{}", stderr(&wrong));
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
fn stories260k_writes_what_llama2c_writes() {
    let (Some(model), Some(expected)) =
        (data("stories260K/stories260K.bin"), data("stories260K/expected_stdout_temp0_n200.txt"))
    else {
        return;
    };
    let output = llama_trace(["--model", model.to_str().unwrap(), "--prompt", "", "-n", "200"]);
    assert_eq!(ok(&output).as_bytes(), fs::read(expected).unwrap());
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
        // The largest value of each group is 127 or −127, except in a group of zeros.
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
fn errors_of_wrong_requests_say_what_is_right() {
    let long = "word ".repeat(2000);
    let cases: &[(&[&str], i32, &str)] = &[
        (&["log", "--ids", "0,4000000"], 4, "outside the model's vocabulary"),
        (&["log", "--ids", "1,x"], 4, "`x`"),
        (&["--ids", "@/nonexistent"], 4, "/nonexistent"),
        (&["--ids", ""], 4, "the list of ids has no tokens"),
        (&["--ids", "@/dev/null"], 4, "the list of ids has no tokens\n     where: /dev/null\n"),
        (&["--ids", "1,,2"], 4, "an id is missing in the list"),
        (&["--ids", ",1"], 4, "an id is missing in the list"),
        (&["--prompt", &long], 4, "longer than the model's context"),
        (&["log", "--prompt", &long], 4, "longer than the model's context"),
        (&["--prompt-file", "/nonexistent"], 4, "/nonexistent"),
        (&["--prompt", "x", "--temperature=-1"], 2, "--temperature"),
        (&["--prompt", "x", "--temperature=nan"], 2, "--temperature"),
        (&["--prompt", "x", "--top-p", "0"], 2, "--top-p"),
        (&["--prompt", "x", "--min-p", "1.5"], 2, "--min-p is out of range"),
        (&["--prompt", "x", "--typical-p", "0"], 2, "--typical-p is out of range"),
        (&["--prompt", "x", "--repetition-penalty=-1"], 2, "a number from 0.01 to 100"),
        (&["--prompt", "x", "--top-p", "90%"], 2, "a number is expected, with a point before its fraction"),
        (&["--prompt", "x", "--ids", "1"], 2, "cannot be used with"),
        (&["--model", "/nonexistent", "--prompt", "x"], 3, "/nonexistent"),
        (&["--model", "/", "--prompt", "x"], 3, "config.json"),
        (&["--prompt", "x", "--step"], 6, "llama-trace export"),
        (&[], 6, "llama-trace log"),
        // An option of the place opens the tracer, as --step does.
        (&["--prompt", "x", "--at", "L1/softmax"], 6, "llama-trace export"),
        (&["--prompt", "x", "--layer", "1"], 6, "llama-trace export"),
        (&["--prompt", "x", "--view", "heads"], 6, "llama-trace export"),
        (&["--at", "L1/softmax"], 6, "llama-trace log"),
        (
            &["--prompt", "x", "--at", "L1/softmax", "--format", "json"],
            2,
            "--at opens the tracer, and --format",
        ),
        (&["--strip", "surprise", "--format", "json"], 2, "--strip opens the tracer, and --format"),
        (&["kata", "--run", "x"], 2, "--run judges the program of one stage, and <STAGE> is missing"),
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
fn an_unquoted_prompt_gives_the_advice_to_quote_it() {
    let next = "      next: quote the text: --prompt \"Once upon a time\"\n";
    for args in [
        &["--prompt", "Once", "upon", "a", "time"][..],
        &["log", "--prompt", "Once", "upon", "a", "time"],
        &[PROMPT],
    ] {
        let output = llama_trace(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let said = stderr(&output);
        assert!(said.starts_with("error: ") && said.ends_with(next), "{args:?}: {said}");
    }
    assert!(!stderr(&llama_trace(["nonsense"])).contains("quote"));
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
fn weights_that_are_nan_run_with_a_warning() {
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

/// `cargo package` gives no warning, and the program's package has every file that its sources include.
#[test]
fn the_packages_have_no_warning_and_all_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut cargo = std::process::Command::new(env!("CARGO"));
    let args = ["package", "--package", "llama-trace", "--list", "--offline", "--allow-dirty"];
    let output = cargo.args(args).current_dir(root).output().unwrap();
    assert!(!stderr(&output).contains("warning"), "{}", stderr(&output));
    let list = ok(&output);
    let has = |file: &str| list.lines().any(|line| line == file);
    for folder in ["chapters", "chapters/reference"] {
        for file in fs::read_dir(root.join(folder)).unwrap().map(Result::unwrap) {
            let name = format!("{folder}/{}", file.file_name().to_str().unwrap());
            assert!(file.path().is_dir() || has(&name), "{name}");
        }
    }
    for file in ["model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"] {
        assert!(has(&format!("fixtures/builtin/{file}")), "{file} is not in\n{list}");
    }
    assert!(
        has("README.md")
            && has("CONTRIBUTING.md")
            && has("LICENSE-MIT")
            && has("tests/cli.rs")
            && !list.contains(".ci/"),
        "{list}"
    );
    assert!(has("chapters/pictures/softmax.svg"), "{list}");
    // crates.io accepts 10 MiB, compressed.
    let folder = tempfile::tempdir().unwrap();
    let mut cargo = std::process::Command::new(env!("CARGO"));
    let args = ["package", "--workspace", "--no-verify", "--offline", "--allow-dirty", "--target-dir"];
    let output = cargo.args(args).arg(folder.path()).current_dir(root).output().unwrap();
    assert!(!stderr(&output).contains("warning"), "{}", stderr(&output));
    ok(&output);
    let packed = fs::read_dir(folder.path().join("package")).unwrap().map(|file| file.unwrap());
    let packed: Vec<_> =
        packed.filter(|file| file.path().extension().is_some_and(|suffix| suffix == "crate")).collect();
    assert_eq!(packed.len(), 14, "{packed:?}");
    for file in packed {
        let size = file.metadata().unwrap().len();
        assert!((1..10 << 20).contains(&size), "{file:?}: {size} bytes");
    }
}

#[test]
fn no_help_has_a_backslash() {
    for command in [&["--help"][..], &["open", "--help"], &["snapshot", "--help"]] {
        let help = ok(&llama_trace(command));
        assert!(help.contains("as \"temperature 1.5\"") && !help.contains('\\'), "{command:?}: {help}");
    }
}
