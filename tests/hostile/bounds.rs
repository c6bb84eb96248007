//! Sizes in a file or a prompt are checked before memory is allocated for them. Each case would need many times the
//! memory or time that a child process has here.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use llama_trace_core::testing::sampled;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::common::models::{self, Tensors};
use super::common::{fixture, llama_trace, stdout};
use super::{child, file};

/// Runs the program with the limits of [`child`], and asserts its exit code and its message.
fn ends(args: &[&str], files: &[&Path], code: i32, texts: &[&str]) {
    let end = child::run(args, files);
    assert_eq!((end.wrong(), end.code), (None, Some(code)), "{}", end.stderr);
    for text in texts {
        assert!(end.stderr.contains(text), "`{text}` is not in\n{}", end.stderr);
    }
}

/// Writes the built-in tokenizer.json, changed by `change`.
fn tokenizer(folder: &TempDir, change: impl FnOnce(&mut Value)) -> PathBuf {
    let path = folder.path().join("tokenizer.json");
    fs::copy(fixture("builtin/tokenizer.json"), &path).unwrap();
    models::edit_json(&path, change);
    path
}

#[test]
fn an_id_of_2_to_the_31_is_refused_before_a_table_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let far = u64::from(u32::MAX / 2 + 1);
    let changes: [&dyn Fn(&mut Value); 3] = [
        &|file| file["model"]["vocab"]["far"] = json!(far),
        &|file| file["added_tokens"][0]["id"] = json!(far),
        &|file| file["model"] = json!({"type": "WordLevel", "vocab": {"a": far, "b": 0}, "unk_token": "b"}),
    ];
    for change in changes {
        let path = tokenizer(&folder, change);
        let path = path.to_str().unwrap();
        for args in [&["tokenize", "--merges"][..], &["tokenize"], &["log", "--prompt"]] {
            let args = [args, &["a", "--tokenizer", path]].concat();
            ends(&args, &[], 3, &["tokenizer.json", "2147483648", "1048576"]);
        }
    }
    // In tiktoken's format, the rank of a token is its id.
    let ranks = file(&folder, "tokenizer.model", "YQ== 0\nYg== 2147483648\n");
    ends(&["tokenize", "a", "--tokenizer", ranks.to_str().unwrap()], &[], 3, &["tokenizer.model"]);
}

#[test]
fn many_tensors_are_described_quickly_and_too_many_are_refused() {
    for (count, code) in [(60_000, 0), (100_000, 3)] {
        let model = models::golden("gqa", |tensors: &mut Tensors| {
            for number in 0..count {
                let name = format!("model.layers.{number}.self_attn.rotary_emb.inv_freq");
                let name = if code == 0 { name } else { format!("t{number}") };
                tensors.insert(name, (vec![1], vec![0; 4]));
            }
        });
        let args = ["info", "--model", model.path().to_str().unwrap()];
        ends(&args, &[model.path()], code, if code == 0 { &[] } else { &["at most 65536"] });
    }
}

#[test]
fn an_index_with_too_many_files_is_refused() {
    let model = models::sharded();
    models::edit_json(&model.path().join("model.safetensors.index.json"), |index| {
        for number in 0..60_000 {
            index["weight_map"][format!("t{number}")] = json!(format!("{number}.safetensors"));
        }
    });
    let args = ["info", "--model", model.path().to_str().unwrap()];
    ends(&args, &[model.path()], 3, &["more files than", "at most 1024"]);
}

#[test]
fn a_text_is_compared_with_the_context_before_it_is_split() {
    let folder = tempfile::tempdir().unwrap();
    let text = file(&folder, "long.txt", "a ".repeat(30 << 20));
    let path = text.to_str().unwrap();
    for command in [&["log"][..], &[]] {
        let texts = ["longer than the model's context", "512 tokens of at most", "62914560 bytes"];
        ends(&[command, &["--prompt-file", path]].concat(), &[&text], 4, &texts);
    }
    // The same limit applies to every tokenizer format.
    let (bin, tok) = (
        file(&folder, "m.bin", models::bin()),
        file(&folder, "tokenizer.bin", models::tok_bin(models::BIN_VOCAB)),
    );
    let args = ["log", "--model", bin.to_str().unwrap(), "--prompt-file", path];
    ends(&args, &[&text, &bin, &tok], 4, &["longer than the model's context", "16 tokens of at most"]);
}

#[test]
fn the_limit_of_tokenize_is_in_its_message() {
    let folder = tempfile::tempdir().unwrap();
    let text = file(&folder, "long.txt", "a ".repeat(30 << 20));
    let end = child::fed(&["tokenize", "--stdin"], &[&text], fs::File::open(&text).unwrap().into());
    assert_eq!((end.wrong(), end.code), (None, Some(4)), "{}", end.stderr);
    assert!(end.stderr.contains("at most 4194304 bytes"), "{}", end.stderr);
}

#[test]
fn a_normalizer_is_bounded_before_it_makes_a_text_longer() {
    let folder = tempfile::tempdir().unwrap();
    let text = file(&folder, "as.txt", "a".repeat(8_000));
    let replace = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "b".repeat(4096)});
    let expression = json!({"type": "Replace", "pattern": {"Regex": "x*"}, "content": "b".repeat(4096)});
    let prepend = json!({"type": "Prepend", "prepend": "b".repeat(60_000)});
    for normalizer in [replace, expression, prepend] {
        let path = tokenizer(&folder, |file| {
            file["normalizer"] = normalizer.clone();
            // Each special token ends a piece of text, and the tokenizer puts a prefix before each piece.
            file["added_tokens"][0]["content"] = json!("aa");
        });
        let args = ["log", "--tokenizer", path.to_str().unwrap(), "--prompt-file", text.to_str().unwrap()];
        ends(&args, &[], 4, &["grow too long", "16777216 bytes"]);
    }
}

#[test]
fn an_expression_with_too_many_lookarounds_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let text = "a".repeat(100_000);
    for expression in
        ["(?=a)".repeat(9000), "(?=a)".repeat(400), format!("{}b", "(?:(?=a)|b){100}".repeat(50))]
    {
        let split = json!({"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": false});
        let path = tokenizer(&folder, |file| {
            file["pre_tokenizer"] =
                json!({"type": "Sequence", "pretokenizers": [split, file["pre_tokenizer"]]});
        });
        ends(&["tokenize", "--tokenizer", path.to_str().unwrap(), &text], &[], 3, &["regular expressions"]);
    }
}

/// A regular expression that reads the rest of the text at each character takes hours for a few megabytes, even if the
/// expression is short.
#[test]
fn a_text_that_would_take_hours_to_split_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let looks = format!("a{}", "(?=.*b)".repeat(60));
    let split = |expression: &str| json!({"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": false});
    let replace = json!({"type": "Replace", "pattern": {"Regex": "(?s)a.*z|b"}, "content": "c"});
    let hostile = |name: &str, change: &dyn Fn(&mut Value)| {
        let part = tempfile::tempdir_in(&folder).unwrap().keep();
        let path = part.join(name);
        fs::copy(fixture("builtin/tokenizer.json"), &path).unwrap();
        models::edit_json(&path, |file| {
            // With a long token, a long text fits into the context.
            file["added_tokens"][0]["content"] = json!("x".repeat(1024));
            change(file);
        });
        path.to_str().unwrap().to_owned()
    };
    let cut = |expression: &str| {
        hostile("cut.json", &|file| {
            let parts = json!([split(expression), file["pre_tokenizer"]]);
            file["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": parts});
        })
    };
    let (forward, around) = (cut("(?s)a.*z|."), cut(&looks));
    let replaced = hostile("replaced.json", &|file| file["normalizer"] = replace.clone());
    let (long, short) = ("ab ".repeat((4 << 20) / 3), "ab ".repeat((400 << 10) / 3));
    let (long, short) = (file(&folder, "long.txt", long), file(&folder, "short.txt", short + "\n"));
    let prompt = short.to_str().unwrap();
    let commands: [(&[&str], &Path); 7] = [
        (&["tokenize", "--stdin", "--tokenizer", &forward], &long),
        (&["tokenize", "--stdin", "--tokenizer", &replaced], &long),
        (&["tokenize", "--stdin", "--merges", "--tokenizer", &around], &long),
        (&["--prompt-file", prompt, "--tokenizer", &around], &long),
        (&["--prompts", prompt, "--tokenizer", &around], &long),
        (&["log", "--prompt-file", prompt, "--tokenizer", &around], &long),
        (&["chat", "--tokenizer", &around], &short),
    ];
    // A plain `cargo test` skips these commands, because the unit tests of the tokenizers cover the same texts with a
    // shorter time limit. The commands run in parallel, because each takes the whole time limit.
    let commands = sampled("texts that are given up after the time limit", commands, 0);
    let children = commands.into_iter().map(|(args, input)| {
        let child = Command::new("timeout")
            .args(["-s", "KILL", "400", env!("CARGO_BIN_EXE_llama-trace")])
            .args(args)
            .stdin(fs::File::open(input).unwrap())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        (args, child.unwrap())
    });
    for (args, child) in children.collect::<Vec<_>>() {
        let output = child.wait_with_output().unwrap();
        let message = super::common::stderr(&output);
        assert_eq!(output.status.code(), Some(3), "{args:?}: {message}");
        assert_eq!(message.matches("error: ").count(), 1, "{args:?}: {message}");
        for text in ["takes too long", ".json", "at most 20 seconds", "next: "] {
            assert!(message.contains(text), "{args:?}: `{text}` is not in {message}");
        }
    }
}

/// A template that repeats the text a thousand times makes the prompt a thousand times as long.
#[test]
fn a_template_that_repeats_the_text_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = tokenizer(&folder, |file| {
        let text = json!({"Sequence": {"id": "A", "type_id": 0}});
        file["post_processor"] = json!({"type": "TemplateProcessing", "single": vec![text; 1000], "pair": [], "special_tokens": {}});
    });
    ends(&["tokenize", "--tokenizer", path.to_str().unwrap(), "a"], &[], 3, &["the text once"]);
}

#[test]
fn a_file_with_too_many_prompts_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prompts.txt");
    fs::write(&path, "a\n".repeat((1 << 16) + 1)).unwrap();
    let args = ["--prompts", path.to_str().unwrap(), "-n", "1"];
    ends(&args, &[], 4, &["too many prompts", "at most 65536 prompts", "split the file"]);
}

/// The program waits for a named pipe, but not forever.
#[test]
fn a_pipe_to_which_nobody_writes_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let list = format!("@{}", pipe.display());
    // The commands run in parallel, because each waits for some time.
    std::thread::scope(|scope| {
        scope.spawn(|| ends(&["--prompt-file", pipe.to_str().unwrap()], &[], 4, &["nothing was written"]));
        scope.spawn(|| ends(&["--ids", &list], &[], 4, &["nothing was written"]));
    });
}

#[test]
fn texts_come_through_pipes_as_from_files() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let expected = stdout(&llama_trace(["--prompt", "Once upon", "-n", "3"]));
    let named = {
        let pipe = pipe.clone();
        std::thread::spawn(move || {
            let mut pipe = fs::File::options().write(true).open(pipe).unwrap();
            pipe.write_all(b"Once").unwrap();
            std::thread::sleep(std::time::Duration::from_millis(100));
            pipe.write_all(b" upon").unwrap();
        })
    };
    assert_eq!(stdout(&llama_trace(["--prompt-file", pipe.to_str().unwrap(), "-n", "3"])), expected);
    named.join().unwrap();
    let script = r#"printf "Once upon" | "$0" --prompt-file /dev/stdin -n 3; printf "Once upon" | "$0" --prompt-file - -n 3; "$0" --prompt-file <(sleep 0.2; printf "Once upon") -n 3; "$0" --prompt-file <(printf "Once upon") -n 3"#;
    let output = Command::new("bash")
        .args(["-c", script, env!("CARGO_BIN_EXE_llama-trace")])
        .stdin(Stdio::null())
        .output();
    assert_eq!(stdout(&output.unwrap()), expected.repeat(4));
}
