use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;

use super::super::hf::byte_level::spelt;
use super::super::tests::{data, decode, hard_strings, merged};
use super::*;
use crate::files::gguf::build::Build;

/// The pieces from id 259 on. Before them are 0 `<unk>`, 1 `<s>`, 2 `</s>` and the bytes.
const PIECES: [(&str, i32); 7] =
    [("▁", 1), ("a", 1), ("b", 1), ("▁a", 1), ("ab", 1), ("<user>", 4), ("▁ab", 5)];

fn pieces() -> Build {
    let mut tokens = vec!["<unk>".to_owned(), "<s>".into(), "</s>".into()];
    tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend(PIECES.iter().map(|(token, _)| (*token).to_owned()));
    let mut types = vec![2, 3, 3];
    types.extend([6; 256]);
    types.extend(PIECES.iter().map(|(_, kind)| kind));
    let scores: Vec<f32> = (0..tokens.len()).map(|id| -(id as f32)).collect();
    Build::new()
        .text("tokenizer.ggml.model", "llama")
        .u32("tokenizer.ggml.bos_token_id", 1)
        .u32("tokenizer.ggml.eos_token_id", 2)
        .texts("tokenizer.ggml.tokens", &tokens)
        .floats("tokenizer.ggml.scores", &scores)
        .wholes("tokenizer.ggml.token_type", &types)
}

fn byte_pairs(pre: &str) -> Build {
    Build::new()
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", pre)
        .u32("tokenizer.ggml.bos_token_id", 6)
        .texts("tokenizer.ggml.tokens", &["a", "b", "Ġ", "ab", "Ġa", "aba", "<|begin|>", "<|end|>"])
        .wholes("tokenizer.ggml.token_type", &[1, 1, 1, 1, 1, 1, 3, 3])
        .texts("tokenizer.ggml.merges", &["Ġ a", "a b"])
}

fn load(build: &Build) -> Box<dyn Tokenizer> {
    parse(&build.bytes(), "test").unwrap().unwrap()
}

fn message(build: &Build) -> String {
    parse(&build.bytes(), "test").err().unwrap().to_string()
}

#[test]
fn sentencepiece_tokens() {
    let tokenizer = load(&pieces());
    let ids = tokenizer.encode("ab aé").unwrap();
    assert_eq!(ids, [1, 265, 262, 3 + 0xc3, 3 + 0xa9]);
    let labels = [1, 265, 3 + 0xc3, 264, 9999].map(|id| tokenizer.label(id));
    assert_eq!(labels, ["<s>", " ab", "<0xC3>", "<user>", "#9999"]);
    assert_eq!(decode(&*tokenizer, &ids), "ab aé");
    assert_eq!((tokenizer.bos(), tokenizer.vocab_size()), (Some(1), 266));
    assert_eq!(tokenizer.encode("").unwrap(), [1]);
}

#[test]
fn special_tokens_are_found_in_the_text() {
    let tokenizer = load(&pieces());
    let ids = tokenizer.encode("a</s> b<user>a").unwrap();
    assert_eq!(ids, [1, 262, 2, 259, 259, 261, 264, 262]);
    assert_eq!(decode(&*tokenizer, &ids), "a b<user>a");
    assert_eq!(tokenizer.encode_plain("a<user></s>").unwrap()[..3], [262, 264, 259]);
    for plain in [false, true] {
        let text = "ab</s> <user>b";
        let ids = if plain { tokenizer.encode_plain(text) } else { tokenizer.encode(text) };
        assert_eq!(merged(&*tokenizer, text, plain), ids.unwrap());
    }
    assert_eq!(tokenizer.ends(), [2]);
    // The spelling of a byte token is not that byte.
    assert_eq!(tokenizer.encode("<0x41>").unwrap().len(), 8);
}

#[test]
fn what_goes_around_a_text_is_the_files_choice() {
    let ids = |build: Build| load(&build).encode("a").unwrap();
    assert_eq!(ids(pieces().flag("tokenizer.ggml.add_bos_token", false)), [262]);
    let both = pieces().flag("tokenizer.ggml.add_eos_token", true);
    assert_eq!(load(&both).encode_marked("a</s>").unwrap(), [262, 2], "a template writes them itself");
    assert_eq!(ids(both), [1, 262, 2]);
    assert_eq!(ids(pieces().flag("tokenizer.ggml.add_space_prefix", false)), [1, 260]);
    assert_eq!(ids(byte_pairs("llama-bpe")), [6, 0]);
    assert_eq!(ids(byte_pairs("gpt-2")), [0]);
    assert_eq!(ids(byte_pairs("gpt-2").flag("tokenizer.ggml.add_bos_token", true)), [6, 0]);
}

#[test]
fn byte_level_tokens() {
    let tokenizer = load(&byte_pairs("llama-bpe"));
    let ids = tokenizer.encode("ab a aba<|end|>").unwrap();
    assert_eq!(ids, [6, 3, 4, 4, 1, 0, 7]);
    assert_eq!(tokenizer.encode("aba").unwrap(), [6, 5]);
    assert_eq!(load(&byte_pairs("qwen2")).encode("aba").unwrap(), [3, 0]);
    assert_eq!(decode(&*tokenizer, &ids), "ab a aba");
    assert_eq!(merged(&*tokenizer, "ab a aba<|end|>", false), ids);
    assert!(tokenizer.encode_plain("a<|end|>").is_err(), "its characters have no tokens here");
    assert_eq!(tokenizer.label(4), " a");
    assert_eq!(tokenizer.label(7), "<|end|>");
}

#[test]
fn a_vocabulary_that_cannot_be_is_an_error() {
    assert!(parse(&Build::new().bytes(), "test").unwrap().is_none());
    assert!(message(&Build::new().text("tokenizer.ggml.model", "bert")).contains("bert"));
    assert!(message(&Build::new().text("tokenizer.ggml.model", "llama")).contains("tokenizer.ggml.tokens"));
    assert!(message(&byte_pairs("kimi-k2")).contains("--tokenizer FILE"));
    let short = |key: &str| {
        let build =
            Build::new().text("tokenizer.ggml.model", "llama").texts("tokenizer.ggml.tokens", &["a", "b"]);
        message(&build.floats("tokenizer.ggml.scores", &[1.0]).wholes(key, &[1]))
    };
    assert!(short("tokenizer.ggml.token_type").contains("token_type"));
    assert!(short("x").contains("scores"));
    let merges = |merge: &str| {
        let build = Build::new().text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "gpt-2");
        message(&build.texts("tokenizer.ggml.tokens", &["a", "b"]).texts("tokenizer.ggml.merges", &[merge]))
    };
    assert!(merges("ab").contains("a space between"));
    assert!(merges("a b").contains("the vocabulary is not valid"));
    let outside =
        pieces().u32("tokenizer.ggml.unknown_token_id", 7).flag("tokenizer.ggml.add_eos_token", true);
    load(&outside);
    let outside = Build::new().text("tokenizer.ggml.model", "llama").texts("tokenizer.ggml.tokens", &["a"]);
    let outside = outside.floats("tokenizer.ggml.scores", &[1.0]).u32("tokenizer.ggml.bos_token_id", 1);
    assert!(message(&outside).contains("bos_token_id"));
}

#[test]
fn special_tokens_have_bounds() {
    let with = |tokens: &[String]| {
        let types = vec![3; tokens.len()];
        let build = Build::new().text("tokenizer.ggml.model", "llama").texts("tokenizer.ggml.tokens", tokens);
        let scores = vec![0.0; tokens.len()];
        let build =
            build.wholes("tokenizer.ggml.token_type", &types).floats("tokenizer.ggml.scores", &scores);
        parse(&build.bytes(), "test").map(|_| ()).map_err(|error| error.to_string())
    };
    with(&["x".repeat(1024)]).unwrap();
    assert!(with(&["x".repeat(1025)]).unwrap_err().contains("up to 1025 bytes"));
    assert!(with(&vec!["x".into(); 16385]).unwrap_err().contains("16385"));
    assert!(with(&vec!["x".repeat(1000); 1049]).unwrap_err().contains("1049000 bytes in all"));
}

#[test]
fn every_truncation_is_an_error() {
    for build in [pieces(), byte_pairs("llama-bpe")] {
        let bytes = build.bytes();
        for length in 0..bytes.len() {
            assert!(parse(&bytes[..length], "test").is_err());
        }
    }
}

fn use_up(bytes: &[u8]) {
    let Ok(Some(tokenizer)) = parse(bytes, "test") else { return };
    let _ = tokenizer.encode("ab a€! <s>").map(|ids| decode(&*tokenizer, &ids));
    (0..300).for_each(|id| drop(tokenizer.label(id)));
}

proptest! {
    #[test]
    fn mutated_files_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        for build in [pieces(), byte_pairs("llama-bpe")] {
            let mut bytes = build.bytes();
            for (at, byte) in &edits {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            use_up(&bytes);
        }
    }

    #[test]
    fn text_survives_there_and_back(text in "[ab é€▁]{0,12}(</s>)?[ab ]{0,4}") {
        let tokenizer = load(&pieces());
        let shown = text.replace('▁', " ").replace("</s>", "");
        prop_assert_eq!(decode(&*tokenizer, &tokenizer.encode(&text).unwrap()), shown);
    }
}

#[test]
fn llama_2_gives_the_ids_of_llama_cpp() {
    let Some(folder) = data() else { return };
    let file = std::fs::read(folder.join("llama.cpp-vocab/ggml-vocab-llama-spm.gguf")).unwrap();
    let tokenizer = parse(&file, "test").unwrap().unwrap();
    for (text, expected) in hard_strings(&folder, "spm") {
        let found = tokenizer.encode(&text).unwrap();
        assert_eq!((found[0], &found[1..]), (1, &expected[..]), "{text:?}");
        assert_eq!(tokenizer.encode_plain(&text).unwrap(), expected);
        assert_eq!(merged(&*tokenizer, &text, false), found);
        assert_eq!(decode(&*tokenizer, &found), text);
    }
}

/// Llama 3's ranks as the vocabulary of a GGUF file, with merges derived like Hugging Face's converter.
fn llama_3(ranks: &str) -> Build {
    let tokens: Vec<Vec<u8>> =
        ranks.lines().map(|line| STANDARD.decode(line.split(' ').next().unwrap()).unwrap()).collect();
    let rank: HashMap<&[u8], usize> =
        tokens.iter().enumerate().map(|(rank, token)| (&token[..], rank)).collect();
    let mut merges = Vec::new();
    for (own, token) in tokens.iter().enumerate() {
        // The starts of the parts after all merges of lower rank.
        let mut cuts: Vec<usize> = (0..=token.len()).collect();
        loop {
            let pair =
                |at: usize| rank.get(&token[cuts[at - 1]..cuts[at + 1]]).copied().filter(|&rank| rank < own);
            let best = (1..cuts.len() - 1).filter_map(|at| Some((pair(at)?, at))).min();
            let Some((_, at)) = best else { break };
            cuts.remove(at);
        }
        if let [_, cut, _] = cuts[..] {
            merges.push(format!("{} {}", spelt(&token[..cut]), spelt(&token[cut..])));
        }
    }
    let mut names: Vec<String> = tokens.iter().map(|token| spelt(token)).collect();
    let mut types = vec![1; names.len()];
    names.extend(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"].map(String::from));
    types.extend([3; 3]);
    Build::new()
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "llama-bpe")
        .u32("tokenizer.ggml.bos_token_id", 128_000)
        .texts("tokenizer.ggml.tokens", &names)
        .wholes("tokenizer.ggml.token_type", &types)
        .texts("tokenizer.ggml.merges", &merges)
}

#[test]
fn llama_3_gives_the_ids_of_llama_cpp() {
    let Some(folder) = data() else { return };
    let ranks = std::fs::read_to_string(folder.join("llama3/tokenizer.model")).unwrap();
    let tokenizer = parse(&llama_3(&ranks).bytes(), "test").unwrap().unwrap();
    for (text, expected) in hard_strings(&folder, "bpe") {
        let found = tokenizer.encode(&text).unwrap();
        assert_eq!((found[0], &found[1..]), (128_000, &expected[..]), "{text:?}");
        assert_eq!(tokenizer.encode_plain(&text).unwrap(), expected);
        assert_eq!(decode(&*tokenizer, &found), text);
    }
    assert_eq!(tokenizer.encode("<|eot_id|>").unwrap(), [128_000, 128_002]);
}

/// llama.cpp's results for vocabularies. See fixtures/tokenizers/gguf_vocabularies.py.
fn fixture() -> serde_json::Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tokenizers/gguf.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn strings(list: &serde_json::Value) -> Vec<String> {
    list.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

fn numbers<T: TryFrom<i64>>(list: &serde_json::Value) -> Vec<T> {
    let number = |value: &serde_json::Value| T::try_from(value.as_i64().unwrap()).ok().unwrap();
    list.as_array().unwrap().iter().map(number).collect()
}

#[test]
fn texts_are_cut_as_llama_cpp_cuts_them() {
    let fixture = &fixture()["splitting"];
    let build = |pre: Option<&str>| {
        let build = Build::new()
            .text("tokenizer.ggml.model", "gpt2")
            .u32("tokenizer.ggml.bos_token_id", 0)
            .texts("tokenizer.ggml.tokens", &strings(&fixture["tokens"]))
            .wholes("tokenizer.ggml.token_type", &numbers(&fixture["types"]))
            .texts("tokenizer.ggml.merges", &strings(&fixture["merges"]));
        load(&pre.iter().fold(build, |build, pre| build.text("tokenizer.ggml.pre", pre)))
    };
    let kinds = strings(&fixture["kinds"]);
    let begins = strings(&fixture["begins"]);
    let mut known = Vec::new();
    for (number, kind) in kinds.iter().enumerate() {
        let cut = |name: &str| cuts::find(name).map(|cut| cut.0);
        let others = fixture["others"].as_object().unwrap().iter();
        let others: Vec<_> = others.filter(|(_, same)| *same == kind).map(|(name, _)| name.clone()).collect();
        for name in others.iter().filter(|name| cut(name) != cut(kind)).chain([kind]) {
            let tokenizer = build(Some(name));
            for case in fixture["texts"].as_array().unwrap() {
                let text = case["text"].as_str().unwrap();
                let expected: Vec<u32> = numbers(&case["ids"][case["of"][number].as_u64().unwrap() as usize]);
                assert_eq!(tokenizer.encode_marked(text).unwrap(), expected, "{name}: {text:?}");
            }
        }
        known.push(kind.clone());
        known.extend(others);
    }
    for name in &known {
        let (_, _, bos) = cuts::find(name).unwrap();
        assert_eq!(bos, begins.contains(name), "{name}");
    }
    assert_eq!(build(None).encode("12").unwrap(), build(Some("default")).encode("12").unwrap());
    let every: std::collections::BTreeSet<&str> = cuts::names().collect();
    assert_eq!(every, known.iter().map(String::as_str).collect());
}

#[test]
fn tokens_end_a_text_as_in_llama_cpp() {
    let fixture = &fixture()["endings"];
    let letters = strings(&fixture["letters"]);
    for case in fixture["cases"].as_array().unwrap() {
        let model = case["model"].as_str().unwrap();
        let base: &[String] = if model == "gpt2" { &letters } else { &[] };
        let tokens = [base, &strings(&case["tokens"])].concat();
        let types = [vec![1; base.len()], numbers(&case["types"])].concat();
        let mut build = Build::new()
            .text("tokenizer.ggml.model", model)
            .texts("tokenizer.ggml.tokens", &tokens)
            .wholes("tokenizer.ggml.token_type", &types);
        if case["scores"] == true {
            build = build.floats("tokenizer.ggml.scores", &vec![0.0; tokens.len()]);
        }
        if model == "gpt2" {
            build = build.text("tokenizer.ggml.pre", "gpt-2").texts("tokenizer.ggml.merges", &["a b"]);
        }
        for (key, value) in case["keys"].as_object().unwrap() {
            build = build.u32(&format!("tokenizer.ggml.{key}"), value.as_u64().unwrap() as u32);
        }
        let tokenizer = load(&build);
        let mut ends = tokenizer.ends();
        ends.sort_unstable();
        assert_eq!(ends, numbers::<u32>(&case["ends"]), "{case}");
        let specials: HashMap<String, u32> = tokens.iter().cloned().zip(0..).collect();
        let mut control: Vec<u32> = tokenizer.specials().iter().map(|name| specials[name]).collect();
        control.sort_unstable();
        assert_eq!(control, numbers::<u32>(&case["control"]), "{case}");
        let bytes = build.bytes();
        let metadata = gguf::header(&bytes, "test").unwrap().metadata;
        for name in ["bos", "eos"] {
            let expected = u32::try_from(case[name].as_i64().unwrap()).ok();
            assert_eq!(metadata.special(name).unwrap(), expected, "{case}");
        }
    }
}

#[test]
fn bytes_are_known_by_how_they_are_spelt() {
    let fixture = &fixture()["bytes"];
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tokenizers/llama.model");
    let (texts, scores) = super::super::sentencepiece::pieces(&std::fs::read(model).unwrap());
    let build = Build::new()
        .text("tokenizer.ggml.model", "llama")
        .texts("tokenizer.ggml.tokens", &texts)
        .floats("tokenizer.ggml.scores", &scores)
        .wholes("tokenizer.ggml.token_type", &numbers(&fixture["types"]));
    let tokenizer = load(&build);
    for case in fixture["texts"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode(text).unwrap(), numbers::<u32>(&case["ids"]), "{text:?}");
    }
    assert_eq!(decode(&*tokenizer, &tokenizer.encode("a\nb").unwrap()), "a\nb");
}
