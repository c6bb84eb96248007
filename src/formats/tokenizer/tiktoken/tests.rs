//! Tests with a small hand-made vocabulary, and with Llama 3's own.

use super::super::tests::{data, decode, hard_strings, merged};
use super::super::{Priority, Tokenizer, Way};
use super::*;
use proptest::prelude::*;

/// A file of the 256 bytes in order, and `tokens` from rank 256 on.
fn file(tokens: &[&str]) -> String {
    let bytes = (0..=u8::MAX).map(|byte| vec![byte]);
    let all = bytes.chain(tokens.iter().map(|token| token.as_bytes().to_vec()));
    all.zip(0..).map(|(token, rank): (_, u32)| format!("{} {rank}\n", STANDARD.encode(token))).collect()
}

fn tokenizer(tokens: &[&str]) -> HfTokenizer {
    parse(file(tokens).as_bytes(), false, "test").unwrap()
}

#[test]
fn the_lowest_rank_is_merged_first_then_the_leftmost() {
    // 256 ab, 257 bc, 258 abcd, 259 cd, 260 aa
    let tokenizer = tokenizer(&["ab", "bc", "abcd", "cd", "aa"]);
    let ids = |text| tokenizer.encode_plain(text).unwrap();
    let letter = |letter: char| letter as u32;
    assert_eq!(ids("xabcx"), [letter('x'), 256, letter('c'), letter('x')]);
    assert_eq!(ids("xbcd"), [letter('x'), 257, letter('d')]);
    assert_eq!(ids("xaaa"), [letter('x'), 260, letter('a')]);
    assert_eq!(ids("xabcd"), [letter('x'), 258]);
    assert_eq!(ids(""), [0; 0]);
}

#[test]
fn a_piece_that_is_a_token_is_never_split() {
    // Nothing merges into "hello", but the piece is this token.
    let tokenizer = tokenizer(&["hello"]);
    assert_eq!(tokenizer.encode_plain("hello").unwrap(), [256]);
    assert_eq!(tokenizer.encode_plain(" hello").unwrap().len(), 6);
    let stretches = tokenizer.merges("hello", true).unwrap().unwrap();
    assert_eq!((stretches.len(), stretches[0].way), (1, Way::Whole));
}

#[test]
fn merges_are_told_by_the_rank_of_what_they_make() {
    let tokenizer = tokenizer(&["bc", "ab", "abc"]);
    let stretches = tokenizer.merges("xabc", true).unwrap().unwrap();
    let ranks: Vec<_> = stretches[0].merges.iter().map(|merge| (&*merge.text, merge.priority)).collect();
    assert_eq!(ranks, [("bc", Priority::Rank(256)), ("abc", Priority::Rank(258))]);
    assert_eq!(stretches[0].ids, [120, 258]);
}

#[test]
fn special_tokens_have_the_names_of_llama_3_and_3_1() {
    let (new, old) = (tokenizer(&[]), parse(file(&[]).as_bytes(), true, "test").unwrap());
    assert_eq!((new.vocab_size(), new.bos(), new.ends()), (512, Some(256), vec![257, 264, 265]));
    assert_eq!(old.ends(), [257, 265]);
    let labels =
        |tokenizer: &HfTokenizer| [258, 260, 261, 262, 264, 265, 266, 267, 511].map(|id| tokenizer.label(id));
    let reserved = |number: u32| format!("<|reserved_special_token_{number}|>");
    let [start, eot] = ["<|start_header_id|>", "<|eot_id|>"].map(String::from);
    assert_eq!(
        labels(&old),
        [
            reserved(0),
            reserved(2),
            reserved(3),
            start.clone(),
            reserved(4),
            eot.clone(),
            reserved(5),
            reserved(6),
            reserved(250)
        ]
    );
    let [pad, step, eom, python] =
        ["<|finetune_right_pad_id|>", "<|step_id|>", "<|eom_id|>", "<|python_tag|>"].map(String::from);
    assert_eq!(labels(&new), [reserved(0), pad, step, start, eom, eot, python, reserved(2), reserved(246)]);
}

#[test]
fn special_tokens_are_read_unless_the_text_is_plain() {
    let tokenizer = tokenizer(&[]);
    assert_eq!(tokenizer.encode("a<|eot_id|>").unwrap(), [256, 97, 265]);
    assert_eq!(tokenizer.encode_plain("a<|eot_id|>").unwrap().len(), 11);
    assert_eq!(tokenizer.encode("a<|eot_id").unwrap().len(), 10);
    assert_eq!(decode(&tokenizer, &[256, 97, 265, 98, 9999]), "ab");
}

#[test]
fn half_a_character_waits() {
    let tokenizer = tokenizer(&[]);
    let mut stream = tokenizer.stream();
    let parts: Vec<_> = tokenizer.encode("a€").unwrap().iter().map(|&id| stream.push(id)).collect();
    assert_eq!(parts, ["", "a", "", "", "€"]);
    assert_eq!(tokenizer.label(0xe2), "<0xE2>");
}

#[test]
fn wrong_files_are_errors() {
    let good = file(&["ab"]);
    let message = |text: &str| parse(text.as_bytes(), false, "test").err().unwrap().to_string();
    assert!(message(&good.replace(" 256\n", " 257\n")).contains("257 instead of 256"));
    assert!(message(&good.replace(" 256\n", " 255\n")).contains("255 instead of 256"));
    assert!(message(&good.replace("YWI= 256\n", "YQ== 256\n")).contains("every token once"));
    assert!(message(&file(&["<|eot_id|>"])).contains("every token once"));
    assert!(message("YWI= 0\n").contains("no token for 0x00"));
    assert!(message("").contains("no token for 0x00"));
    for line in ["YWI=", "YWI= x", "YWI= -1", "YW-= 256", " 256", "YWI= 4294967296", "YWI=  256", "YWI= +256"]
    {
        assert!(message(&good.replace("YWI= 256", line)).contains("line 257"), "{line}");
    }
    for length in 0..good.len() - 1 {
        // A truncated rank may still be a valid number, but the wrong one, unless only the line's end is missing.
        assert!(
            parse(&good.as_bytes()[..length], false, "test").is_err() || length > good.len() - 12,
            "{length}"
        );
    }
    // The length of tokens is limited, because every token is searched for its parts.
    let long: Vec<String> = (2..=257).map(|length| "a".repeat(length)).collect();
    let long: Vec<&str> = long.iter().map(String::as_str).collect();
    assert!(message(&file(&long)).contains("up to 257 bytes"));
    assert_eq!(tokenizer(&long[..255]).vocab_size(), 256 + 255 + 256);
    parse(&b"\n".repeat(MAX_VOCAB + 1), false, "test").err().unwrap();
}

#[test]
fn white_space_is_cut_as_by_the_pattern_with_a_look_ahead() {
    let tokenizer = tokenizer(&[]);
    let cases: [(&str, &[&str]); 9] = [
        ("a   b", &["a", "  ", " b"]),
        ("a   ", &["a", "   "]),
        ("a \n  b", &["a", " \n", " ", " b"]),
        ("  \n \n ", &["  \n \n", " "]),
        ("\t\t1", &["\t", "\t", "1"]),
        ("\u{3000}\u{a0}é", &["\u{3000}", "\u{a0}é"]),
        ("I'LL 12345!?\n\n x", &["I", "'LL", " ", "123", "45", "!?\n\n", " x"]),
        (" ", &[" "]),
        ("", &[]),
    ];
    for (text, pieces) in cases {
        let stretches = tokenizer.merges(text, true).unwrap().unwrap();
        let found: Vec<String> = stretches.iter().map(|stretch| decode(&tokenizer, &stretch.ids)).collect();
        assert_eq!(found, pieces, "{text:?}");
    }
}

/// tiktoken's algorithm. A piece that is a token stays whole. Otherwise, each step looks at all pairs and merges the
/// pair with the lowest rank.
fn encode_slowly(tokens: &[&str], piece: &str) -> Vec<u32> {
    let rank = |part: &[u8]| match part {
        [byte] => Some(u32::from(*byte)),
        _ => (256..).zip(tokens).find(|(_, token)| token.as_bytes() == part).map(|(rank, _)| rank),
    };
    if let Some(rank) = rank(piece.as_bytes()) {
        return vec![rank];
    }
    let mut parts: Vec<Vec<u8>> = piece.bytes().map(|byte| vec![byte]).collect();
    while let Some((_, at)) =
        (1..parts.len()).filter_map(|at| Some((rank(&parts[at - 1..=at].concat())?, at))).min()
    {
        let right = parts.remove(at);
        parts[at - 1].extend(right);
    }
    parts.iter().map(|part| rank(part).unwrap()).collect()
}

proptest! {
    /// This includes tokens that can be split in several ways, overlap themselves, or come before their own parts.
    #[test]
    fn the_ids_are_those_of_tiktokens_loop(
        tokens in prop::collection::hash_set("[ab]{2,4}|[abc]{2,3}|a{2,9}|(ab){1,4}a?", 0..24),
        piece in "[ab]{0,24}|[abc]{0,16}|a{0,24}|b?(ab){0,9}",
    ) {
        let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
        let expected = encode_slowly(&tokens, &piece);
        let tokenizer = tokenizer(&tokens);
        prop_assert_eq!(tokenizer.encode_plain(&piece).unwrap(), &expected[..]);
        prop_assert_eq!(merged(&tokenizer, &piece, true), expected);
    }

    #[test]
    fn merges_arrive_at_the_result(text in "[ab ]{0,8}|.*|(a|<.eot_id.>|<|)*", plain: bool) {
        let tokenizer = tokenizer(&["ab", "aba", " a", "é"]);
        let expected = if plain { tokenizer.encode_plain(&text) } else { tokenizer.encode(&text) };
        prop_assert_eq!(merged(&tokenizer, &text, plain), expected.unwrap());
        prop_assert_eq!(decode(&tokenizer, &tokenizer.encode_plain(&text).unwrap()), text);
    }

    #[test]
    fn mutated_files_never_panic(at: prop::sample::Index, byte: u8, text: String) {
        let mut bytes = file(&["ab", "é"]).into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        recognise(&bytes);
        if let Ok(tokenizer) = parse(&bytes, false, "test") {
            let ids = tokenizer.encode(&text).unwrap();
            decode(&tokenizer, &ids);
        }
    }
}

fn llama_3() -> Option<(std::path::PathBuf, HfTokenizer)> {
    let folder = data()?;
    let bytes = std::fs::read(folder.join("llama3/tokenizer.model")).unwrap();
    assert!(recognise(&bytes));
    Some((folder, parse(&bytes, true, "test").unwrap()))
}

#[test]
fn llama_3_gives_the_ids_of_llama_cpp() {
    let Some((folder, tokenizer)) = llama_3() else { return };
    assert_eq!(
        (tokenizer.vocab_size(), tokenizer.bos(), tokenizer.ends()),
        (128_256, Some(128_000), vec![128_001, 128_009])
    );
    for (text, expected) in hard_strings(&folder, "bpe") {
        let found = tokenizer.encode_plain(&text).unwrap();
        assert_eq!(found, expected, "{text:?}");
        assert_eq!(decode(&tokenizer, &found), text);
        assert_eq!(merged(&tokenizer, &text, true), expected);
        assert_eq!(tokenizer.encode(&text).unwrap()[1..], expected);
    }
}

#[test]
fn long_texts_take_no_time() {
    let Some((_, tokenizer)) = llama_3() else { return };
    let size = 1 << 20;
    // One piece of a million letters, spaces, or line ends; and a million pieces.
    for text in [
        "a".repeat(size),
        " ".repeat(size),
        " \n".repeat(size / 2),
        "!?".repeat(size / 2),
        "a 1".repeat(size / 3),
    ] {
        let ids = tokenizer.encode_plain(&text).unwrap();
        assert_eq!(decode(&tokenizer, &ids).len(), text.len());
    }
    assert!(tokenizer.encode(&"<|".repeat(size / 2)).unwrap().len() > 1000);
}
