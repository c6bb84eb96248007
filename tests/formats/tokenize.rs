//! `llama-trace tokenize`, as a user runs it.

#[path = "tokenize/families.rs"]
mod families;
#[path = "tokenize/folders.rs"]
mod folders;

use std::path::Path;

use crate::common::models;
use crate::common::{command, data, fixture, llama_trace, stderr, stdout};
use llama_trace::checkpoint::{self, Checkpoint};
use llama_trace::error::Result;
use llama_trace::tokenizer::{self, Tokenizer};
use rand::{RngExt, SeedableRng};
use serde_json::Value;

/// The output of `tokenize` with these options.
fn tokenize(tokenizer: &Path, args: &[&str]) -> String {
    let options = ["tokenize", "--tokenizer", tokenizer.to_str().unwrap()];
    let output = llama_trace(options.iter().chain(args));
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    stdout(&output)
}

#[test]
fn ids_and_pieces_as_text_and_as_json() {
    let Some(llama_3) = data("llama3/tokenizer.model") else { return };
    let text = tokenize(&llama_3, &["Hello world\n"]);
    assert_eq!(
        text,
        "pieces  \"<|begin_of_text|>\" \"Hello\" \" world\" \"\\n\"\nids     128000 9906 1917 198\n"
    );
    let json: Value = serde_json::from_str(&tokenize(&llama_3, &["Hello", "--format", "json"])).unwrap();
    assert_eq!(json, serde_json::json!({"ids": [128_000, 9906], "pieces": ["<|begin_of_text|>", "Hello"]}));
}

#[test]
fn special_tokens_may_be_read_as_text() {
    let (Some(llama_3), Some(llama_2)) = (data("llama3/tokenizer.model"), data("llama2c/tokenizer.model"))
    else {
        return;
    };
    assert!(tokenize(&llama_3, &["<|eot_id|>"]).ends_with("ids     128000 128009\n"));
    let plain = tokenize(&llama_3, &["<|eot_id|>", "--no-special"]);
    assert!(plain.starts_with("pieces  \"<\" \"|\" ") && !plain.contains("1280"), "{plain}");
    assert!(tokenize(&llama_2, &["</s>"]).ends_with("ids     1 2\n"));
    assert!(!tokenize(&llama_2, &["</s>", "--no-special"]).ends_with(" 2\n"));
}

#[test]
fn the_last_line_of_the_merges_is_the_result() {
    for file in ["llama3/tokenizer.model", "llama2c/tokenizer.model", "llama2c/tokenizer.bin"] {
        let Some(tokenizer) = data(file) else { continue };
        for text in
            ["Hello world, 1234 times", "  Grüße 🦙", "", "unbelievablelongwordthatisnotinanyvocabulary"]
        {
            let (with, without) = (tokenize(&tokenizer, &[text, "--merges"]), tokenize(&tokenizer, &[text]));
            assert_eq!(with.lines().last(), without.lines().last(), "{file}: {text}");
            let json = tokenize(&tokenizer, &[text, "--merges", "--format", "json", "--no-special"]);
            let json: Value = serde_json::from_str(&json).unwrap();
            let stretches = json["stretches"].as_array().unwrap();
            let ids: Vec<&Value> =
                stretches.iter().flat_map(|stretch| stretch["ids"].as_array().unwrap()).collect();
            assert_eq!(ids, json["ids"].as_array().unwrap().iter().collect::<Vec<_>>());
        }
    }
    let Some(llama_3) = data("llama3/tokenizer.model") else { return };
    let text = tokenize(&llama_3, &["xyzzy", "--merges", "--no-special"]);
    assert!(text.contains("\"x\" \"y\" \"z\" \"z\" \"y\"") && text.contains("rank "), "{text}");
    let Some(llama_2) = data("llama2c/tokenizer.model") else { return };
    assert!(tokenize(&llama_2, &["xyzzy", "--merges"]).contains("score -"));
}

/// Texts of every kind, always the same ones.
fn texts() -> Vec<String> {
    const PARTS: &[&str] = &[
        "a",
        "ab",
        "the",
        " the",
        "Hello",
        "'s",
        "'LL",
        "  ",
        "   ",
        "\n",
        " \n\n",
        "\t",
        "\r\n",
        "1",
        "2024",
        "3.14",
        "é",
        "Grüße",
        "ﬁ",
        "今天",
        "天气",
        "한국",
        "שלום",
        "🦙",
        "👩\u{200d}👩\u{200d}👧",
        "e\u{301}",
        "\u{a0}",
        "\u{3000}",
        "▁",
        "<",
        "</s>",
        "<s>",
        "<unk>",
        "<|eot_id|>",
        "<|begin_of_text|>",
        "<0x41>",
        "<|",
        "!?",
        "...",
        "====",
        "\0",
        "\u{fffd}",
    ];
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(11);
    let mut below = |bound: usize| random.random_range(0..bound);
    let mut texts: Vec<String> = vec![String::new(), " ".into(), "\n".into()];
    for part in PARTS {
        texts.push(part.repeat(1 + below(300)));
    }
    for _ in 0..100 {
        let count = 1 + below(12);
        texts.push((0..count).map(|_| PARTS[below(PARTS.len())].repeat(1 + below(3))).collect());
    }
    texts
}

/// Except for SentencePiece, the merges for `--merges` are computed by separate code. The last merge must give the ids.
#[test]
fn the_last_merge_gives_the_ids_with_every_kind_of_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let ranks = folder.path().join("tokenizer.model");
    std::fs::write(&ranks, models::ranks(&["ab", "th", "the", " the", "aa", "aaa", "  ", "===", "é", "ll"]))
        .unwrap();
    let bin = folder.path().join("tokenizer.bin");
    std::fs::write(&bin, models::tok_bin(300)).unwrap();
    let own = [fixture("builtin/tokenizer.json"), fixture("formats/gguf/f16.gguf"), ranks, bin];
    let real = [
        "llama3/tokenizer.model",
        "llama2c/tokenizer.model",
        "llama2c/tokenizer.bin",
        "llama.cpp-vocab/ggml-vocab-llama-spm.gguf",
        "stories260K/tok512.bin",
        "stories260K/stories260K.gguf",
    ];
    for path in own.into_iter().chain(real.iter().filter_map(|name| data(name))) {
        let tokenizer = tokenizer::open(&path).unwrap();
        for text in texts() {
            for plain in [false, true] {
                let ids = if plain { tokenizer.encode_plain(&text) } else { tokenizer.encode(&text) };
                // If the vocabulary lacks a character, the merges lack it too.
                let merged = tokenizer.merges(&text, plain).map(Option::unwrap);
                let merged = merged.map(|all| all.into_iter().flat_map(|one| one.ids).collect::<Vec<_>>());
                let (ids, merged) =
                    (ids.map_err(|error| error.to_string()), merged.map_err(|error| error.to_string()));
                assert_eq!(merged, ids, "{}: {text:?}", path.display());
            }
        }
    }
}

#[test]
fn the_merges_of_the_built_in_model_are_shown() {
    let run = |args: &[&str]| {
        let output = llama_trace(["tokenize", "Once upon a time, unhappily"].iter().chain(args));
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let (with, without) = (run(&["--merges"]), run(&[]));
    assert!(with.contains("rank ") && without.lines().count() == 2, "{with}");
    assert_eq!(with.lines().last(), without.lines().last());
    let (with, without) = (run(&["--merges", "--no-special"]), run(&["--no-special"]));
    assert_eq!(with.lines().last(), without.lines().last());
}

#[test]
fn tokenize_names_the_recognised_model() {
    let model = fixture("formats/gguf/f16.gguf");
    let output = llama_trace(["tokenize", "--model", model.to_str().unwrap(), "ab"]);
    assert_eq!(stderr(&output), "f16.gguf (GGUF v3, F16): a tokenizer of 40 tokens\n");
    assert_eq!(stderr(&llama_trace(["tokenize", "ab"])), "");
}

#[test]
fn the_text_may_come_from_standard_input() {
    let Some(llama_2) = data("llama2c/tokenizer.bin") else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text");
    std::fs::write(&file, "Hello world").unwrap();
    let mut child = command(["tokenize", "--stdin", "--tokenizer", llama_2.to_str().unwrap()]);
    let output = child.stdin(std::fs::File::open(&file).unwrap()).output().unwrap();
    assert_eq!(stdout(&output), tokenize(&llama_2, &["Hello world"]));
}

#[test]
fn errors_of_wrong_requests_say_what_is_right() {
    let model = fixture("formats/meta/single");
    let model = model.to_str().unwrap();
    let cases: [(&[&str], i32, &str); 4] = [
        (&["tokenize"], 2, "TEXT"),
        (&["tokenize", "x", "--stdin"], 2, "cannot be used with"),
        (&["tokenize", "x", "--model", model], 4, "no tokenizer"),
        (&["tokenize", "x", "--tokenizer", "/nonexistent"], 3, "/nonexistent"),
    ];
    for (args, code, expected) in cases {
        let output = llama_trace(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{args:?}: {}", stderr(&output));
    }
    let Some(words) = data("tiny-llama-float/tokenizer.json") else { return };
    let output = llama_trace(["tokenize", "hello", "--merges", "--tokenizer", words.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("has no merges"), "{}", stderr(&output));
}

/// Opens the tokenizer in the file at `path`, or else the one that belongs to the model.
fn find(model: &Checkpoint, path: Option<&Path>) -> Result<Option<Box<dyn Tokenizer>>> {
    tokenizer::find(&model.vocabulary(), &model.config, path)
}

fn text_of(tokenizer: &dyn Tokenizer, ids: &[u32]) -> String {
    let mut stream = tokenizer.stream();
    let text: String = ids.iter().map(|&id| stream.push(id)).collect();
    text + &stream.finish()
}

#[test]
fn the_built_in_model_has_its_own_tokenizer() {
    let model = llama_trace::builtin::open().unwrap();
    let tokenizer = find(&model, None).unwrap().unwrap();
    assert_eq!(tokenizer.vocab_size(), model.config.vocab);
    let text = "The fox saw 3 stars — ✨ and\n said \"hello\".";
    let ids = tokenizer.encode(text).unwrap();
    assert_eq!(tokenizer.bos(), Some(ids[0]));
    assert_eq!(text_of(&*tokenizer, &ids), text);
}

#[test]
fn tokenizers_are_found_beside_their_models() {
    let Some(folder) = data("") else { return };
    let model = checkpoint::open(&folder.join("stories260K/stories260K.bin")).unwrap();
    let tokenizer = find(&model, None).unwrap().unwrap();
    assert_eq!((tokenizer.vocab_size(), tokenizer.bos()), (512, Some(1)));
    let model = checkpoint::open(&folder.join("tiny-llama-float")).unwrap();
    assert_eq!(find(&model, None).unwrap().unwrap().vocab_size(), 32);
}

#[test]
fn a_tokenizer_that_does_not_fit_is_an_error() {
    let Some(folder) = data("") else { return };
    let model = checkpoint::open(&folder.join("stories260K/stories260K.bin")).unwrap();
    let message = |name: &str| find(&model, Some(&folder.join(name))).err().unwrap().to_string();
    assert!(message("llama2c/tokenizer.bin").contains("exactly 512 tokens"));
    assert!(message("llama2c/tokenizer.model").contains("at most 512 tokens"));
    assert!(message("llama3/tokenizer.model").contains("128256 tokens"));
    assert!(message("llama.cpp-vocab/ggml-vocab-llama-spm.gguf").contains("at most 512 tokens"));
    assert!(message("no/such/file").contains("cannot be opened"));
    assert!(message("llama3").contains("a directory"));
}
