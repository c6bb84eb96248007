//! Tests with small hand-made models, and with Llama 2's own.

use super::super::tests::{data, decode, hard_strings, merged};
use super::*;
use proptest::prelude::*;

fn message(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut message = vec![number << 3 | 2];
    // Lengths here are below 2^14.
    match bytes.len() {
        length @ 0..0x80 => message.push(length as u8),
        length => message.extend([length as u8 | 0x80, (length >> 7) as u8]),
    }
    message.extend_from_slice(bytes);
    message
}

fn piece_message(text: &str, score: f32, kind: u8) -> Vec<u8> {
    let fields = [&message(1, text.as_bytes())[..], b"\x15", &score.to_le_bytes(), &[0x18, kind]];
    message(1, &fields.concat())
}

/// A model with `<unk>`, `<s>`, `</s>`, the 256 bytes, and `pieces` (text, score, type) from id 259 on.
fn file(pieces: &[(&str, f32, u8)], trainer: &[u8], normalizer: &[u8]) -> Vec<u8> {
    let mut bytes =
        [piece_message("<unk>", 0.0, 2), piece_message("<s>", 0.0, 3), piece_message("</s>", 0.0, 3)]
            .concat();
    bytes.extend((0..=255).flat_map(|byte| piece_message(&format!("<0x{byte:02X}>"), 0.0, 6)));
    bytes.extend(pieces.iter().flat_map(|(text, score, kind)| piece_message(text, *score, *kind)));
    [bytes, message(2, trainer), message(3, normalizer)].concat()
}

/// A model of type BPE that does not change the text.
const BPE: &[u8] = b"\x18\x02";
const IDENTITY: &[u8] = b"\x0a\x08identity\x20\x00";

fn tokenizer(pieces: &[(&str, f32, u8)]) -> SentencePiece {
    parse(&file(pieces, BPE, IDENTITY), "test").unwrap()
}

const LETTERS: [(&str, f32, u8); 5] =
    [("▁", 0.0, 1), ("a", 0.0, 1), ("b", 0.0, 1), ("ab", -1.0, 1), ("▁a", -2.0, 1)];

#[test]
fn pieces_are_merged_by_score() {
    let tokenizer = tokenizer(&LETTERS);
    assert_eq!((tokenizer.bos(), tokenizer.ends(), tokenizer.vocab_size()), (Some(1), vec![2], 264));
    assert_eq!(tokenizer.encode("ab a").unwrap(), [1, 259, 262, 263]);
    assert_eq!(tokenizer.encode("").unwrap(), [1]);
    assert_eq!(tokenizer.encode_plain("é").unwrap(), [259, 3 + 0xc3, 3 + 0xa9]);
    assert_eq!([1, 263, 3 + 0xc3, 999].map(|id| tokenizer.label(id)), ["<s>", " a", "<0xC3>", "#999"]);
    assert_eq!(decode(&tokenizer, &[1, 263, 263, 3 + 0xc3, 3 + 0xa9, 2]), "a aé");
}

#[test]
fn control_pieces_are_read_unless_the_text_is_plain() {
    let tokenizer = tokenizer(&LETTERS);
    assert_eq!(tokenizer.encode("a</s>").unwrap(), [1, 263, 2]);
    assert_eq!(tokenizer.encode_plain("a</s>").unwrap(), [263, 3 + 0x3c, 3 + 0x2f, 3 + 0x73, 3 + 0x3e]);
}

#[test]
fn user_defined_and_unused_pieces() {
    let tokenizer = tokenizer(&[&LETTERS[..3], &[("ab", 0.0, 5), ("bb", 0.0, 4), ("▁▁", 0.0, 4)]].concat());
    assert_eq!(tokenizer.encode_plain("ab").unwrap(), [259, 260, 261]);
    assert_eq!(tokenizer.encode_plain("abb").unwrap(), [259, 260, 263]);
    assert_eq!(tokenizer.encode_plain(" a").unwrap(), [264, 260]);
}

#[test]
fn the_normalizers_switches() {
    let with = |normalizer: &[u8]| parse(&file(&LETTERS, BPE, normalizer), "test").unwrap();
    // remove_extra_whitespaces is on by default.
    assert_eq!(with(b"").encode_plain("  a  a ").unwrap(), [263, 263]);
    assert_eq!(with(b"").encode_plain("  ").unwrap(), [0; 0]);
    let unprefixed = with(b"\x18\x00\x20\x00");
    assert_eq!(unprefixed.encode_plain("a").unwrap(), [260]);
    assert_eq!(decode(&unprefixed, &[263]), " a");
}

#[test]
fn bos_and_eos_may_be_elsewhere_or_nowhere() {
    let with = |trainer: &[u8]| parse(&file(&LETTERS, &[BPE, trainer].concat(), IDENTITY), "test").unwrap();
    let swapped = with(b"\xc8\x02\x02\xd0\x02\x01");
    assert_eq!((swapped.bos(), swapped.ends()), (Some(2), vec![1]));
    let none = with(b"\xc8\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01");
    assert_eq!((none.bos(), none.encode("").unwrap().len()), (None, 0));
}

#[test]
fn other_models_are_refused_by_name() {
    let message = |trainer: &[u8], normalizer: &[u8]| {
        parse(&file(&LETTERS, trainer, normalizer), "test").err().unwrap().to_string()
    };
    assert!(message(b"\x18\x01", IDENTITY).contains("unigram"));
    assert!(message(b"", IDENTITY).contains("unigram"));
    assert!(message(b"\x18\x04", IDENTITY).contains("character"));
    assert!(message(BPE, b"\x0a\x08nmt_nfkc\x12\x01x").contains("`nmt_nfkc`"));
    assert!(message(BPE, b"\x28\x00").contains("spaces"));
    assert!(message(&[BPE, b"\xc0\x01\x01"].concat(), IDENTITY).contains("spaces"));
    assert!(parse(b"", "test").err().unwrap().to_string().contains("no pieces"));
    assert!(parse(&piece_message("<0xzz>", 0.0, 6), "test").err().unwrap().to_string().contains("<0xzz>"));
}

#[test]
fn truncations_never_panic_and_lose_the_type() {
    let bytes = file(&LETTERS, BPE, IDENTITY);
    for length in 0..bytes.len() - IDENTITY.len() - 2 {
        parse(&bytes[..length], "test").err().unwrap();
    }
    for length in bytes.len() - IDENTITY.len() - 1..bytes.len() {
        parse(&bytes[..length], "test").err().unwrap();
    }
}

proptest! {
    #[test]
    fn merges_arrive_at_the_result(text in "[ab ]{0,12}|.*|(a|<s>|</s>)*", plain: bool) {
        let tokenizer = tokenizer(&[&LETTERS[..], &[("aab", 1.0, 1), ("bab", 2.0, 5), ("bb", 0.0, 4)]].concat());
        let expected = if plain { tokenizer.encode_plain(&text) } else { tokenizer.encode(&text) };
        prop_assert_eq!(merged(&tokenizer, &text, plain), expected.unwrap());
    }

    #[test]
    fn text_survives_there_and_back(text in "[^▁]*") {
        let tokenizer = tokenizer(&LETTERS);
        prop_assert_eq!(decode(&tokenizer, &tokenizer.encode_plain(&text).unwrap()), text);
    }

    #[test]
    fn mutated_files_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), text: String) {
        let mut bytes = file(&LETTERS, BPE, IDENTITY);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(tokenizer) = parse(&bytes, "test") {
            let _ = tokenizer.encode(&text).map(|ids| decode(&tokenizer, &ids));
            let _ = tokenizer.merges(&text, true);
            (0..300).for_each(|id| drop(tokenizer.label(id)));
        }
    }
}

#[test]
fn llama_2_gives_the_ids_of_llama_cpp() {
    let Some(folder) = data() else { return };
    let bytes = std::fs::read(folder.join("llama2c/tokenizer.model")).unwrap();
    assert!(recognise(&bytes));
    let tokenizer = parse(&bytes, "test").unwrap();
    assert_eq!((tokenizer.vocab_size(), tokenizer.bos(), tokenizer.ends()), (32_000, Some(1), vec![2]));
    for (text, expected) in hard_strings(&folder, "spm") {
        let found = tokenizer.encode_plain(&text).unwrap();
        assert_eq!(found, expected, "{text:?}");
        assert_eq!(decode(&tokenizer, &found), text);
        assert_eq!(merged(&tokenizer, &text, true), expected);
        assert_eq!(tokenizer.encode(&text).unwrap()[1..], expected);
    }
    let long = "a".repeat(1 << 20) + &" ".repeat(1 << 20);
    assert_eq!(decode(&tokenizer, &tokenizer.encode_plain(&long).unwrap()), long);
}

/// See fixtures/tokenizers/spaces.py.
#[test]
fn spaces_are_removed_as_sentencepiece_does() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tokenizers/");
    let tokenizer = parse(&std::fs::read(format!("{folder}spaces.model")).unwrap(), "test").unwrap();
    let cases = std::fs::read_to_string(format!("{folder}spaces.json")).unwrap();
    let cases: Vec<(String, Vec<u32>)> = serde_json::from_str(&cases).unwrap();
    assert!(cases.len() >= 200);
    for (text, ids) in cases {
        assert_eq!(tokenizer.encode_plain(&text).unwrap(), ids, "{text:?}");
    }
}
