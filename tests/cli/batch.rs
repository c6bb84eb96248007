//! Several prompts: the texts, the JSON and the files of a run, errors before anything runs, and the output of an
//! interrupted run.

use std::path::PathBuf;

use llama_trace::trace::Manifest;
use serde_json::json;

use super::*;

const PROMPTS: [&str; 3] = [PROMPT, "The dog", ""];

/// One --prompt for each of [`PROMPTS`].
fn options() -> Vec<&'static str> {
    PROMPTS.iter().flat_map(|prompt| ["--prompt", prompt]).collect()
}

/// A file of prompts, in a folder that exists until the test ends.
fn file(name: &str, bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    (folder, path)
}

fn with_file(name: &str, bytes: &[u8], args: &[&str]) -> Output {
    let (_folder, path) = file(name, bytes);
    llama_trace([&["--prompts", path.to_str().unwrap()], args].concat())
}

#[test]
fn texts_are_printed_whole_and_in_order_with_the_bits_of_single_runs() {
    let drawing = ["-n", "25", "--temperature", "1", "--seed", "5"];
    let text = ok(&llama_trace([&options()[..], &drawing].concat()));
    let alone = |i: usize, prompt: &str| {
        let stream = i.to_string();
        let args = [&["--prompt", prompt, "--stream", &stream], &drawing[..]].concat();
        format!("== s{i} ==\n{}\n", ok(&llama_trace(args)))
    };
    let expected: String = PROMPTS.iter().enumerate().map(|(i, prompt)| alone(i, prompt)).collect();
    assert_eq!(text, expected);
    let first = ok(&llama_trace([&["--prompt", PROMPT], &drawing[..]].concat()));
    assert!(text.starts_with(&format!("== s0 ==\n{first}\n")), "the first prompt has stream 0");
    let second = ok(&llama_trace([&["--prompt", PROMPT, "--stream", "1"], &drawing[..]].concat()));
    assert_ne!(first, second, "two streams have different random numbers");
    let nothing = ok(&llama_trace([&options()[..], &["-n", "0"]].concat()));
    assert_eq!(nothing, format!("== s0 ==\n{PROMPT}\n== s1 ==\nThe dog\n== s2 ==\n\n"));
}

#[test]
fn a_line_of_json_has_prompt_text_ids_and_reason_of_the_end() {
    let lines = |output: &Output| -> Vec<Value> {
        ok(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let ids = prompt_ids("The dog");
    let given = format!(
        "{}\n\n  \n{}\n",
        json!({"prompt": PROMPT, "note": "for others"}),
        json!({"ids": ids, "prompt": null})
    );
    let found = lines(&with_file("a.jsonl", given.as_bytes(), &["-n", "400", "--format", "json"]));
    assert_eq!(found.len(), 2);
    for (number, line) in found.iter().enumerate() {
        let keys: Vec<_> = line.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["sequence", "prompt", "text", "ids", "ended"]);
        assert_eq!(line["sequence"], number);
    }
    assert_eq!((&found[0]["prompt"], &found[1]["prompt"]), (&json!(PROMPT), &json!(ids)));
    let whole = ok(&llama_trace(["--prompt", PROMPT, "-n", "400"]));
    assert_eq!(whole, format!("{PROMPT}{}", found[0]["text"].as_str().unwrap()));
    assert_eq!(found[0]["ended"], "text");
    // The token that ends a text is sampled too, but it is not part of the text.
    let drawn = found[0]["ids"].as_array().unwrap().len().to_string();
    let cut = lines(&llama_trace(["--prompt", PROMPT, "-n", &drawn, "--format", "json"]));
    assert_eq!(cut, found[..1]);
    let fewer = (found[0]["ids"].as_array().unwrap().len() - 1).to_string();
    let cut = lines(&llama_trace(["--prompt", PROMPT, "-n", &fewer, "--format", "json"]));
    assert_eq!((&cut[0]["text"], &cut[0]["ended"]), (&found[0]["text"], &json!("limit")));
    let args = ["--prompt", PROMPT, "--prompt", "The dog", "-n", "9", "--context", "7", "--format", "json"];
    let output = llama_trace(args);
    let full = lines(&output);
    let ended: Vec<_> = full.iter().map(|line| line["ended"].as_str().unwrap()).collect();
    assert_eq!(ended, ["full", "full"]);
    assert!(stderr(&output).starts_with("s0, s1: The context of 7 tokens"), "{}", stderr(&output));
}

#[test]
fn a_file_has_one_prompt_per_line_and_blank_lines_are_skipped() {
    let text = format!("\r\n{PROMPT}\r\n\n   \t\nThe dog");
    let expected = ok(&llama_trace(["--prompt", PROMPT, "--prompt", "The dog", "-n", "6"]));
    assert_eq!(ok(&with_file("prompts.txt", text.as_bytes(), &["-n", "6"])), expected);
    let one = ok(&with_file("prompts.txt", format!("\n{PROMPT}\n").as_bytes(), &["-n", "6"]));
    assert_eq!(
        one,
        ok(&llama_trace(["--prompt", PROMPT, "-n", "6"])),
        "a file with one prompt behaves like --prompt"
    );
    let (_folder, path) = file("prompts.txt", text.as_bytes());
    let piped = command(["--prompts", "-", "-n", "6"]).stdin(fs::File::open(path).unwrap()).output().unwrap();
    assert_eq!(ok(&piped), expected);
    // In a .txt file, a line that looks like JSON is still a text.
    let line = with_file("prompts.txt", br#"{"prompt": "x"}"#, &["-n", "0"]);
    assert_eq!(ok(&line), r#"{"prompt": "x"}"#);
}

#[test]
fn a_bad_line_is_refused_with_its_number_before_anything_runs() {
    let long = "word ".repeat(600);
    let jsonl: [(&str, &str); 10] = [
        (r#"{"prompt": "a""#, "a line is not a prompt"),
        (r#"{"prompt": "a", "ids": [1]}"#, "both"),
        ("{}", "neither"),
        (r#"["a", null]"#, "a line that begins with `[\"a\", null]`"),
        ("Once upon a time", "a line that begins with `Once upon a time`"),
        (r#"{"ids": [1, -3]}"#, "invalid value: integer `-3`, expected an id from 0 to 4294967295 at column"),
        (r#"{"prompt": 7}"#, "a line is not a prompt"),
        (r#"{"ids": [1, 4000000]}"#, "an id is outside the model's vocabulary"),
        (r#"{"ids": []}"#, "there are no tokens to run"),
        (&format!(r#"{{"prompt": "{long}"}}"#), "the text is longer than the model's context"),
    ];
    let refused = |name: &str, bytes: &[u8], what: &str| {
        let (_folder, path) = file(name, bytes);
        for command in [&[][..], &["log"], &["export", "--out", "never"]] {
            let output = llama_trace([command, &["--prompts", path.to_str().unwrap()]].concat());
            let said = stderr(&output);
            assert_eq!((output.status.code(), &*stdout(&output)), (Some(4), ""), "{what}: {said}");
            assert!(said.contains(what) && said.contains("line 3"), "{what}: {said}");
            assert_eq!(said.matches("error: ").count(), 1, "{said}");
        }
        assert!(!Path::new("never").exists());
    };
    for (line, what) in jsonl {
        refused("a.jsonl", format!("{{\"prompt\": \"fine\"}}\n\n{line}\n").as_bytes(), what);
    }
    refused("a.txt", b"fine\n\nno \xff text\n", "byte 3 of the line is not part of a UTF-8 character");
    refused("a.txt", format!("fine\n\n{long}\n").as_bytes(), "the text is longer than the model's context");
    let said = stderr(&llama_trace(["--prompt", "fine", "--prompt", &long]));
    assert!(said.contains("--prompt number 2 of 2") && said.contains("longer than"), "{said}");
    for (name, bytes) in [("empty.txt", &b""[..]), ("blank.jsonl", b"\n  \n\n")] {
        let output = with_file(name, bytes, &[]);
        assert_eq!(output.status.code(), Some(4));
        assert!(stderr(&output).contains("the file has no prompt"), "{}", stderr(&output));
    }
}

#[test]
fn options_that_exclude_each_other_are_refused() {
    let (_folder, path) = file("a.txt", b"x");
    let path = path.to_str().unwrap();
    for other in [["--prompt", "x"], ["--prompt-file", "x"], ["--ids", "1"]] {
        let output = llama_trace(["--prompts", path].iter().chain(&other));
        assert_eq!(output.status.code(), Some(2), "{other:?}");
        assert!(stderr(&output).contains("cannot be used with"), "{}", stderr(&output));
    }
    let twice = llama_trace(["--prompt", "-", "--prompt", "-"]);
    assert!(
        twice.status.code() == Some(2) && stderr(&twice).contains("standard input can be read only once")
    );
}

#[test]
fn an_export_of_several_prompts_has_the_files_of_each_single_export() {
    let folder = tempfile::tempdir().unwrap();
    let out = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let drawing = ["-n", "3", "--temperature", "1", "--seed", "9"];
    ok(&llama_trace([&["export"], &options()[..], &drawing, &["--out", &out("all")]].concat()));
    let text = fs::read(folder.path().join("all/manifest.json")).unwrap();
    let all = Manifest::read(&text).unwrap();
    assert_eq!(all.prompts, PROMPTS.map(|prompt| Some(prompt.to_owned())));
    assert_eq!((&all.prompt, all.sampling.unwrap().stream), (&None, 0));
    let mut count = 0;
    for (number, prompt) in PROMPTS.iter().enumerate() {
        let (name, stream) = (number.to_string(), number.to_string());
        let one =
            ["export", "--prompt", prompt, "--stream", &stream, "--out", &out(&name)].map(str::to_owned);
        ok(&llama_trace(one.iter().map(String::as_str).chain(drawing)));
        let text = fs::read(folder.path().join(&name).join("manifest.json")).unwrap();
        let alone = Manifest::read(&text).unwrap();
        assert_eq!(alone.prompts, [], "the manifest of a single prompt has no field prompts");
        for file in &alone.files {
            let (one, of_all) = (file.file.as_str(), format!("s{number}/{}", file.file));
            let bytes = |path: PathBuf| fs::read(path).unwrap();
            let same =
                bytes(folder.path().join(&name).join(one)) == bytes(folder.path().join("all").join(&of_all));
            assert!(same, "{of_all}");
            let entry = all.files.iter().find(|file| file.file == of_all).unwrap();
            let mut held = entry.holds.clone().unwrap();
            let address = if number == 0 { String::new() } else { format!("s{number}/") };
            assert_eq!(held.address, address + &file.holds.as_ref().unwrap().address);
            assert_eq!(held.sequence.take(), Some(number));
            held.address.clone_from(&file.holds.as_ref().unwrap().address);
            assert_eq!(Some(held), file.holds);
            count += 1;
        }
        let passes = all.passes.iter().filter(|pass| pass.sequence == Some(number));
        let passes: Vec<_> =
            passes.map(|pass| (pass.pass, pass.start, &pass.tokens, &pass.sampled)).collect();
        let own: Vec<_> =
            alone.passes.iter().map(|pass| (pass.pass, pass.start, &pass.tokens, &pass.sampled)).collect();
        assert_eq!(passes, own, "s{number}");
    }
    assert_eq!(count, all.files.len());
}

#[test]
fn an_export_of_several_prompts_replaces_only_its_own_files() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("dump");
    let run = |more: &[&str]| {
        let args = ["export", "--stage", "tokens,logits", "--force", "--out", out.to_str().unwrap()];
        llama_trace([&args, more].concat())
    };
    ok(&run(&["--prompt", "a", "--prompt", "b", "-n", "2"]));
    fs::write(out.join("s1/notes.txt"), "mine").unwrap();
    ok(&run(&["--prompt", "c", "-n", "2"]));
    assert!(out.join("pass_001/logits.npy").exists() && !out.join("s0/pass_000/logits.npy").exists());
    assert_eq!(fs::read(out.join("s1/notes.txt")).unwrap(), b"mine");
    fs::create_dir_all(out.join("s1/pass_001")).unwrap();
    fs::write(out.join("s1/pass_001/logits.npy"), "mine").unwrap();
    let refused = run(&["--prompt", "a", "--prompt", "b", "-n", "2"]);
    assert_eq!(refused.status.code(), Some(5), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("s1/pass_001/logits.npy"), "{}", stderr(&refused));
    assert!(out.join("pass_001/logits.npy").exists(), "nothing was changed");
    ok(&run(&["--prompt", "a", "-n", "2"]));
}

#[test]
fn a_log_of_several_prompts_names_the_sequence_in_each_line() {
    let args = ["log", "--prompt", PROMPT, "--prompt", "The dog", "-n", "2", "--stage", "xq,logits"];
    let text = ok(&llama_trace([&args[..], &["--layer", "0", "--values"]].concat()));
    for expected in [
        "pass 0 of s0 (prefill), 5 tokens after 0 cached",
        "pass 1 of s1 (decode), 1 token after 3 cached",
        "[s1/p0] layer 0 of 0-3 matmul       attn_norm (T=3,",
        "pass 1 of s1 sampled ",
        "µs for all]",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let json = ok(&llama_trace([&args[..], &["--values", "--format", "json", "--layer", "0"]].concat()));
    let lines: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (number, prompt) in [PROMPT, "The dog"].iter().enumerate() {
        let alone = ["log", "--prompt", prompt, "-n", "2", "--stage", "xq,logits", "--layer", "0"];
        let alone = ok(&llama_trace([&alone[..], &["--values", "--format", "json"]].concat()));
        let alone: Vec<Value> = alone.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(alone.iter().all(|line| line.get("sequence").is_none()));
        let mut own: Vec<_> = lines.iter().filter(|line| line["sequence"] == number).cloned().collect();
        assert_eq!(own.len(), alone.len());
        for (own, alone) in own.iter_mut().zip(&alone) {
            own.as_object_mut().unwrap().remove("sequence");
            own["time_us"] = alone["time_us"].clone();
            assert_eq!(own, alone);
        }
    }
}

#[test]
fn a_pass_or_layer_that_no_prompt_has_is_refused() {
    let args = ["log", "--prompt", "a", "--prompt", PROMPT, "-n", "2"];
    for (option, what) in [(["--pass", "2"], "there is no pass"), (["--layer", "9"], "there is no layer")] {
        let output = llama_trace(args.iter().chain(&option));
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(what), "{}", stderr(&output));
    }
}

#[test]
fn too_large_a_cache_is_refused_before_the_first_pass() {
    let model = models::golden("gqa", |_| {});
    models::edit_json(&model.path().join("config.json"), |config| {
        config["max_position_embeddings"] = 2_000_000_000_u64.into();
    });
    let (_folder, path) = file("a.jsonl", b"{\"ids\": [1, 2]}\n{\"ids\": [3]}\n");
    let output = llama_trace([
        "--model",
        model.path().to_str().unwrap(),
        "--prompts",
        path.to_str().unwrap(),
        "--context",
        "1900000000",
    ]);
    let said = stderr(&output);
    assert_eq!((output.status.code(), &*stdout(&output)), (Some(4), ""), "{said}");
    assert!(said.contains("error: there is not enough memory") && said.contains("line 1"), "{said}");
    assert!(said.contains("the KV cache for 1900000000 tokens") && said.contains("found: "), "{said}");
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_prints_the_finished_texts() {
    use std::io::{BufRead, BufReader, Read};
    let folder = tempfile::tempdir().unwrap();
    models::zeros(folder.path(), [4, 512, 2048, 8, 300]);
    // The first and the third text fill the context in the same pass. The second text needs a thousand more passes.
    let ids = |count: usize| json!({"ids": vec![1; count]}).to_string();
    let lines = [ids(1000), ids(1), ids(1000)].join("\n");
    let (_file, path) = file("a.jsonl", lines.as_bytes());
    let mut child = command(["--model", folder.path().to_str().unwrap(), "--format", "json"])
        .args(["--context", "1002", "-n", "100000"])
        .args(["--prompts", path.to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    out.read_line(&mut text).unwrap();
    stop::interrupt(&child);
    out.read_to_string(&mut text).unwrap();
    let finished: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let finished: Vec<_> = finished.iter().map(|line| (&line["sequence"], &line["ended"])).collect();
    assert_eq!(finished, [(&json!(0), &json!("full")), (&json!(2), &json!("full"))]);
    stop::end(child);
}

/// Some editors begin a UTF-8 file with a byte-order mark, which is not part of the text.
#[test]
fn a_byte_order_mark_is_not_part_of_the_text() {
    let folder = tempfile::tempdir().unwrap();
    let [plain, marked] = ["plain.txt", "marked.txt"].map(|name| folder.path().join(name));
    fs::write(&plain, "a\nb").unwrap();
    fs::write(&marked, "\u{feff}a\nb").unwrap();
    for option in ["--prompt-file", "--prompts"] {
        let tokens = |path: &PathBuf| {
            ok(&llama_trace(["log", option, path.to_str().unwrap(), "--stage", "tokens", "--values"]))
        };
        assert_eq!(tokens(&marked), tokens(&plain), "{option}");
    }
}

#[test]
fn tokenize_reads_a_hyphen_from_standard_input_as_a_prompt_does() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("input");
    fs::write(&file, "A fox").unwrap();
    let of = |text: &str| {
        let mut command = command(["tokenize", text]);
        ok(&command.stdin(fs::File::open(&file).unwrap()).output().unwrap())
    };
    assert_eq!(of("-"), of("A fox"));
}
