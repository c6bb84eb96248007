//! Impossible requests on the command line.

use std::fs;

use serde_json::json;

use super::common::{llama_trace, models, stderr};
use super::{file, refused};

#[test]
fn a_prompt_that_cannot_be_run_is_refused() {
    let long = vec!["word"; 2000].join(" ");
    let ids = vec!["1"; 600].join(",");
    refused(
        &["log", "--prompt", &long],
        4,
        &["longer than the model's context", "at most 512 tokens", "found: "],
    );
    refused(
        &["log", "--ids", &ids],
        4,
        &["longer than the model's context", "at most 512", "found: 600 tokens"],
    );
    refused(&["--ids", &ids], 4, &["found: 600 tokens"]);
    refused(
        &["log", "--ids", "1,1024"],
        4,
        &["outside the model's vocabulary", "token 1 of", "from 0 to 1023", "found: 1024"],
    );
    refused(&["--ids", "4294967296"], 4, &["larger than any id of a vocabulary", "4294967296"]);
    refused(&["--ids=-1"], 4, &["`-1`"]);
    refused(&["--ids", " , "], 4, &["no tokens"]);
    refused(&["--prompt-file", "/"], 4, &["where: /", "found: Is a directory"]);
    let folder = tempfile::tempdir().unwrap();
    let latin = file(&folder, "latin", b"caf\xe9");
    refused(&["--prompt-file", latin.to_str().unwrap()], 4, &["latin", "UTF-8", "byte 3"]);
    refused(&["--prompt-file", latin.to_str().unwrap()], 4, &["the prompt's file is not a text"]);
    let ids = |path: &std::path::Path| format!("@{}", path.display());
    refused(&["--ids", &ids(&latin)], 4, &["latin", "UTF-8", "the file of --ids is not a text"]);
    refused(&["--ids", &ids(&folder.path().join("none"))], 4, &["the file of --ids cannot be read"]);
}

#[test]
fn a_missing_stage_layer_or_pass_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let export = |args: &[&str], texts: &[&str]| {
        let all = ["export", "--prompt", "x", "--out", out.to_str().unwrap()];
        refused(&[&all[..], args].concat(), 2, texts);
        assert!(!out.exists());
    };
    export(&["--stages", "nothing"], &["tokens, embedding", "softmax", "sampled", "found: ", "nothing"]);
    export(&["--stages", "xq,sofmax"], &["did you mean `softmax`?"]);
    export(&["--stages", ""], &["softmax"]);
    export(&["--stages", "keys_t"], &["is a view", "`keys`"]);
    export(&["--layers", "4"], &["from 0 to 3", "`4`"]);
    export(&["--layers", "3-1"], &["from 0 to 3", "`3-1`"]);
    export(&["--layers", "0-99999999999999999999"], &["from 0 to 3"]);
    export(&["--passes", "1"], &["0, the only pass", "`1`", "-n 2"]);
    export(&["--pass", "9"], &["no pass 9", "add -n 10"]);
    export(&["--pass", "600"], &["room for"]);
    export(&["--layer", "x"], &["not a list of layer numbers", "`x`", "leave --layer out"]);
    export(&["--layer", "-1"], &["not a list of layer numbers", "from 0 to 3"]);
    export(&["--layer", "3-1"], &["runs backwards", "smaller number first: 1-3"]);
    export(&["--stage", "foo"], &["next: choose one of these"]);
    export(&["--stage", "ffn"], &["did you mean `ffn_"]);
    export(&["-n", "0"], &["-n 1 or more"]);
    // A stage that this run does not have is an error, and not silently left out.
    export(&["--stage", "xq,xq_norm"], &["has no xq_norm", "Qwen3"]);
    export(&["--stage", "ffn_norm_q8"], &["has no ffn_norm_q8", "--precision q8"]);
    export(&["-n", "3", "--pass", "1-2", "--stage", "mask"], &["pass 1 has no mask"]);
}

#[test]
fn impossible_options_are_refused() {
    refused(&["log", "--ids", "1", "--threads", "0"], 2, &["--threads from 1 to 1024", "found: 0"]);
    refused(
        &["log", "--ids", "1", "--threads", "1000000"],
        2,
        &["--threads from 1 to 1024", "found: 1000000"],
    );
    refused(&["log", "--ids", "1", "--cpu-kernel", "abacus"], 2, &["portable", "found: `abacus`"]);
    refused(&["log", "--ids", "1", "--temperature=-1"], 2, &["--temperature", "found: -1"]);
    refused(&["log", "--ids", "1", "--temperature=inf"], 2, &["--temperature", "found: inf"]);
    refused(&["log", "--ids", "1", "--temperature=1e-38"], 2, &["--temperature", "1e-30 or more"]);
    refused(&["log", "--ids", "1", "--top-p", "inf"], 2, &["--top-p", "up to 1", "found: inf"]);
    refused(&["bench", "--prompt-tokens", "4,513"], 2, &["from 1 to 512", "found: 513"]);
    refused(&["bench", "--shape", "llama-9"], 2, &["llama-3.2-1b", "`llama-9`"]);
    refused(&["man", "nothing"], 2, &["no such command", "export", "`nothing`"]);
}

#[test]
fn the_error_of_an_invalid_number_says_what_is_expected() {
    let told = |args: &[&str]| {
        let output = llama_trace(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        stderr(&output)
    };
    for args in [
        &["--prompt", "x", "-n", "-1"][..],
        &["--prompt", "x", "-n", "many"],
        &["--prompt", "x", "--tokens=-1"],
        &["chat", "-n", "-1"],
        &["log", "--top-k", "-1"],
        &["log", "--seed", "-1"],
        &["log", "--threads", "-1"],
        &["bench", "--gen", "-1"],
        &["bench", "--cached", "-1"],
        &["bench", "--prompt-tokens", "-1"],
        &["--step", "--pass", "-1"],
        &["--step", "--head", "-1"],
    ] {
        let told = told(args);
        assert!(told.contains("a whole number is expected, 0 or more"), "{args:?}: {told}");
    }
    // A valid number that is too large is not called invalid.
    assert!(told(&["log", "-n", "99999999999999999999999"]).contains("a smaller number is expected"));
    for (temperature, said) in [("1e-46", "a float32 number is expected"), ("1e39", "and 3.4028235e38")] {
        let told = told(&["log", "--ids", "1", "--temperature", temperature]);
        assert!(told.contains("--temperature") && told.contains(said), "{told}");
    }
    assert!(told(&["lens", "--top", "0"]).contains("1 or more is expected"));
    refused(&["bench", "--prompt-tokens", "0"], 2, &["--prompt-tokens", "lengths from 1", "found: 0"]);
    let one = told(&["--step", "--layers", "0,2"]);
    assert!(one.contains("'0,2'") && one.contains("the tracer opens at one place"), "{one}");
    assert!(told(&["completions", "cmd"]).contains("zsh"));
}

/// However many tokens the options request, only as many as fit into the context take memory or time.
#[test]
fn absurd_numbers_of_tokens_end_with_the_context() {
    let model = models::golden("gqa", |_| {});
    models::edit_json(&model.path().join("config.json"), |config| {
        config["max_position_embeddings"] = json!(6);
    });
    let path = model.path().to_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    for (count, number) in ["1000000000000", "18446744073709551615"].iter().enumerate() {
        let out = folder.path().join(count.to_string());
        let export = ["export", "--stages", "sampled", "--out", out.to_str().unwrap()];
        for command in [&["log"][..], &[], &export] {
            let output =
                llama_trace(command.iter().chain(&["--model", path, "--ids", "1,2,3,4", "-n", number]));
            assert!(output.status.success(), "{command:?}: {}", stderr(&output));
            assert!(
                stderr(&output).contains("context of 6 tokens is full"),
                "{command:?}: {}",
                stderr(&output)
            );
        }
        assert_eq!(fs::read_dir(&out).unwrap().count(), 1 + 3, "the manifest and three passes");
        let out = folder.path().join("never");
        let args =
            ["export", "--model", path, "--ids", "1", "-n", number, "--passes", "0-999999999999", "--out"];
        refused(&[&args[..], &[out.to_str().unwrap()]].concat(), 2, &["from 0 to 5"]);
    }
}

/// A message names a wrong word, but does not repeat all of it if it is long.
#[test]
fn the_error_about_a_long_wrong_word_is_short() {
    let (word, digits) = ("x".repeat(15_000), "9".repeat(15_000));
    let unknown = format!("--{word}");
    let many = format!("L{digits}/h0");
    for args in [
        &["log", "--prompt", "hi", "--without", &word][..],
        &["log", "--prompt", "hi", "--without", &many],
        &["log", "--prompt", "hi", "--stage", &word],
        &["log", "--prompt", "hi", "--layer", &digits],
        &["log", "--prompt", "hi", "--model", &word],
        &["log", "--prompt", "hi", "-n", &digits],
        &["log", "--ids", &digits],
        &["log", &unknown],
        &["export", "--prompt", "hi", "--out", &word],
        &["explain", &word],
        &["diff", &word, &word],
        &["diff", &unknown],
        &["tokenize", "hi", "--tokenizer", &word],
        &["bench", "--shape", &word],
    ] {
        let output = llama_trace(args);
        let told = stderr(&output);
        assert!(output.status.code().is_some_and(|code| (2..=6).contains(&code)), "{:?}: {told}", args[0]);
        assert!(told.contains("error: ") && told.len() < 3000, "{:?}: {} bytes", &args[..1], told.len());
    }
}
