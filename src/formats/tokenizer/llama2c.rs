//! llama2.c's tokenizer.bin: the vocabulary of a SentencePiece BPE model, with scores.
//!
//! The file has an int32 with the longest token's length. Then each token has a float32 score, an int32 length and its
//! bytes. The number of tokens is not in the file; it is known from the model. Text is split as in `encode` of
//! llama2.c's run.c, which follows SentencePiece.

use super::merges::{Stretch, Way};
use super::spm::{Kind, Piece, Pieces};
use super::{MAX_VOCAB, TextStream, TokenBytes, Tokenizer, label};
use llama_trace_core::error::{Error, Result};

/// Beginning of text, `1` in run.c.
const BOS: u32 = 1;
/// End of text, `2` in run.c.
const EOS: u32 = 2;
/// The names of the two tokens in chat templates.
const MARKS: [(&str, u32); 2] = [("<s>", BOS), ("</s>", EOS)];
/// The token of byte b is b + 3, after `<unk>`, `<s>` and `</s>`.
const FIRST_BYTE: usize = 3;
/// The vocabulary of a tokenizer.bin.
#[derive(Debug)]
pub(super) struct Llama2cTokenizer {
    pieces: Pieces,
}

/// Reads a tokenizer.bin found at `place`: its `vocab` tokens, or all tokens if there is no model.
///
/// # Errors
/// Returns [`Error::Model`] if the file does not have exactly `vocab` tokens, or a length reaches past its end.
pub(super) fn parse(bytes: &[u8], vocab: Option<usize>, place: &str) -> Result<Llama2cTokenizer> {
    let wrong = |what: &str, found: String| {
        let expected = match vocab {
            Some(vocab) => format!("a llama2.c tokenizer.bin with exactly {vocab} tokens, as the model has"),
            None => format!("a llama2.c tokenizer.bin of up to {MAX_VOCAB} tokens"),
        };
        Error::model(what)
            .at(place)
            .expected(expected)
            .found(found)
            .next("give the tokenizer that belongs to the model with --tokenizer")
    };
    let cut_off = |id: usize| {
        wrong(
            "the tokenizer file is cut off or of another kind",
            format!("the end of the file in token {id}"),
        )
    };
    // The stored maximum length is skipped; it is computed below instead.
    let (_, mut rest) = bytes.split_first_chunk::<4>().ok_or_else(|| cut_off(0))?;
    let mut pieces = Vec::new();
    for id in 0..vocab.unwrap_or(MAX_VOCAB) {
        if vocab.is_none() && rest.is_empty() {
            break;
        }
        let (score, after) = rest.split_first_chunk::<4>().ok_or_else(|| cut_off(id))?;
        let (length, after) = after.split_first_chunk::<4>().ok_or_else(|| cut_off(id))?;
        let length =
            usize::try_from(i32::from_le_bytes(*length)).ok().filter(|&length| length <= after.len());
        let (token, after) = after.split_at(length.ok_or_else(|| cut_off(id))?);
        pieces.push(Piece { bytes: token.into(), score: f32::from_le_bytes(*score), kind: kind(id, token) });
        rest = after;
    }
    if !rest.is_empty() {
        let what = "the tokenizer has more tokens than the model";
        return Err(wrong(what, format!("{} bytes after token {}", rest.len(), pieces.len() - 1)));
    }
    Ok(Llama2cTokenizer { pieces: Pieces::new(pieces) })
}

/// The kind of the token `id` with these bytes.
fn kind(id: usize, token: &[u8]) -> Kind {
    match label::byte_token(token) {
        Some(byte) if id == FIRST_BYTE + usize::from(byte) => Kind::Byte(byte),
        _ if id == BOS as usize || id == EOS as usize => Kind::Special,
        _ => Kind::Text,
    }
}

impl Llama2cTokenizer {
    fn token(&self, id: u32) -> Option<&[u8]> {
        self.pieces.get(id).map(|piece| &*piece.bytes)
    }

    /// The text that is split into tokens. A space is added before `text`, like SentencePiece's `add_dummy_prefix`. A
    /// word is then the same at the beginning as in the middle.
    fn prefixed(text: &str) -> String {
        if text.is_empty() { String::new() } else { format!(" {text}") }
    }
}

impl Tokenizer for Llama2cTokenizer {
    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = vec![BOS];
        self.pieces.split(&Self::prefixed(text), &mut ids)?;
        Ok(ids)
    }

    /// run.c does not recognise names of special tokens, so the text is plain in any case.
    fn encode_plain(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        self.pieces.split(&Self::prefixed(text), &mut ids)?;
        Ok(ids)
    }

    fn merges(&self, text: &str, plain: bool) -> Result<Option<Vec<Stretch>>> {
        let mut stretches = Vec::new();
        if !plain {
            stretches.push(Stretch::token(Way::Special, BOS, self.label(BOS)));
        }
        if !text.is_empty() {
            stretches.push(self.pieces.stretch(&Self::prefixed(text), str::to_owned)?);
        }
        Ok(Some(stretches))
    }

    /// Encodes the two special tokens of Llama 2's format as tokens, and each piece between them as a separate text.
    fn encode_marked(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        let mut rest = text;
        loop {
            let next =
                MARKS.into_iter().filter_map(|(name, id)| Some((rest.find(name)?, name.len(), id))).min();
            let (end, length, mark) = next.map_or((rest.len(), 0, None), |(at, n, id)| (at, n, Some(id)));
            ids.extend_from_slice(&self.encode(&rest[..end])?[1..]);
            let Some(mark) = mark else { return Ok(ids) };
            ids.push(mark);
            rest = &rest[end + length..];
        }
    }

    fn specials(&self) -> Vec<String> {
        MARKS.map(|(name, _)| name.into()).into()
    }

    fn bos(&self) -> Option<u32> {
        Some(BOS)
    }

    /// run.c stops at 1, the separator of the training texts; 2 is `</s>`.
    fn ends(&self) -> Vec<u32> {
        vec![BOS, EOS]
    }

    fn vocab_size(&self) -> usize {
        self.pieces.len()
    }

    fn label(&self, id: u32) -> String {
        match (id, self.token(id)) {
            (_, None) => label::unknown(id),
            // The file has line feeds around `<s>` and `</s>`, because run.c prints them.
            (BOS | EOS, Some(token)) => label::of_bytes(token.trim_ascii()),
            (_, Some(token)) => match label::byte_token(token) {
                Some(byte) => label::of_bytes(&[byte]),
                None => label::of_bytes(token),
            },
        }
    }

    fn stream(&self) -> TextStream<'_> {
        TextStream::new(Stream { tokenizer: self, after_bos: false })
    }
}

/// run.c's `decode`, token by token.
struct Stream<'a> {
    tokenizer: &'a Llama2cTokenizer,
    /// Whether the previous token was BOS. A leading space after it is the dummy prefix.
    after_bos: bool,
}

impl TokenBytes for Stream<'_> {
    fn bytes(&mut self, id: u32) -> Vec<u8> {
        let after_bos = std::mem::replace(&mut self.after_bos, id == BOS);
        let Some(mut token) = self.tokenizer.token(id).filter(|_| id != BOS && id != EOS) else {
            return Vec::new();
        };
        if after_bos {
            token = token.strip_prefix(b" ").unwrap_or(token);
        }
        match label::byte_token(token) {
            Some(byte) => vec![byte],
            None => token.to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{data, decode};
    use super::*;
    use proptest::prelude::*;

    /// A tokenizer.bin with `<unk>`, `<s>`, `</s>`, the 256 bytes, and `tokens` from id 259 on.
    fn file(tokens: &[(&str, f32)]) -> Vec<u8> {
        let mut all: Vec<(String, f32)> =
            ["<unk>", "\n<s>\n", "\n</s>\n"].into_iter().map(|token| (token.into(), 0.0)).collect();
        all.extend((0..=255).map(|byte| (format!("<0x{byte:02X}>"), 0.0)));
        all.extend(tokens.iter().map(|&(token, score)| (token.into(), score)));
        let mut bytes = 27_i32.to_le_bytes().to_vec();
        for (token, score) in all {
            bytes.extend_from_slice(&score.to_le_bytes());
            bytes.extend_from_slice(&(token.len() as i32).to_le_bytes());
            bytes.extend_from_slice(token.as_bytes());
        }
        bytes
    }

    fn tokenizer(tokens: &[(&str, f32)]) -> Llama2cTokenizer {
        parse(&file(tokens), Some(259 + tokens.len()), "test").unwrap()
    }

    #[test]
    fn special_tokens_are_read_in_a_marked_text() {
        let tokenizer = tokenizer(&[(" ", 0.0), ("a", 0.0), ("b", 0.0)]);
        assert_eq!(tokenizer.encode_marked("<s>a</s><s>b").unwrap(), [1, 259, 260, 2, 1, 259, 261]);
        assert_eq!(tokenizer.encode_marked("a").unwrap(), [259, 260]);
        assert!(tokenizer.encode_marked("").unwrap().is_empty());
    }

    #[test]
    fn unknown_characters_fall_back_to_bytes() {
        let tokenizer = tokenizer(&[(" ", 0.0)]);
        assert_eq!(tokenizer.encode("é").unwrap(), [1, 259, 3 + 0xc3, 3 + 0xa9]);
        assert_eq!(decode(&tokenizer, &[1, 259, 3 + 0xc3, 3 + 0xa9]), "é");
        assert_eq!(tokenizer.label(3 + 0xc3), "<0xC3>");
        assert_eq!(tokenizer.label(3 + 0x41), "A");
    }

    #[test]
    fn without_byte_tokens_an_unknown_character_is_an_error() {
        let bytes = [&1_i32.to_le_bytes()[..], &[0; 4], &1_i32.to_le_bytes(), b"a"].concat();
        let text = parse(&bytes, Some(1), "test").unwrap().encode("b").unwrap_err().to_string();
        assert!(text.contains("no token for ' '"), "{text}");
    }

    #[test]
    fn labels_and_special_tokens() {
        let tokenizer = tokenizer(&[(" the", 0.0)]);
        assert_eq!(
            [0, 1, 2, 259, 260].map(|id| tokenizer.label(id)),
            ["<unk>", "<s>", "</s>", " the", "#260"]
        );
        assert_eq!(decode(&tokenizer, &[1, 259, 2, 259, 1, 259, 9999]), "the thethe");
    }

    #[test]
    fn every_truncation_and_every_other_vocabulary_are_errors() {
        let bytes = file(&[("a", 0.0)]);
        for length in 0..bytes.len() {
            parse(&bytes[..length], Some(260), "test").unwrap_err();
        }
        parse(&bytes, Some(259), "test").unwrap_err();
        parse(&bytes, Some(261), "test").unwrap_err();
    }

    proptest! {
        #[test]
        fn mutated_files_never_panic(at: prop::sample::Index, byte: u8, text: String, id: u32) {
            let mut bytes = file(&[(" ", 0.0), ("a", -1.0), ("aa", f32::NAN)]);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Ok(tokenizer) = parse(&bytes, Some(262), "test") {
                let _ = tokenizer.encode(&text).map(|ids| decode(&tokenizer, &ids));
                let _ = tokenizer.label(id % 300);
            }
        }

        #[test]
        fn text_survives_there_and_back(text: String) {
            let tokenizer = tokenizer(&[(" ", 0.0), ("a", 0.0), ("aa", 1.0)]);
            prop_assert_eq!(decode(&tokenizer, &tokenizer.encode(&text).unwrap()), text);
        }
    }

    #[test]
    fn llama_2_gives_the_ids_of_llama_cpp() {
        let Some(folder) = data() else { return };
        let tokenizer =
            parse(&std::fs::read(folder.join("llama2c/tokenizer.bin")).unwrap(), Some(32000), "test")
                .unwrap();
        let read = |ending: &str| {
            let path = folder.join(format!("llama.cpp-vocab/ggml-vocab-llama-spm.gguf.{ending}"));
            std::fs::read_to_string(path).unwrap()
        };
        let (inputs, outputs) = (read("inp"), read("out"));
        let mut count = 0;
        for (text, ids) in inputs.split("\n__ggml_vocab_test__\n").zip(outputs.lines()) {
            let expected: Vec<u32> = ids.split_whitespace().map(|id| id.parse().unwrap()).collect();
            let found = tokenizer.encode(text).unwrap();
            assert_eq!(found[1..], expected, "{text:?}");
            assert_eq!(decode(&tokenizer, &found), text);
            count += 1;
        }
        assert_eq!(count, 46);
    }

    #[test]
    fn the_story_is_that_of_run_c() {
        let Some(folder) = data() else { return };
        let tokenizer =
            parse(&std::fs::read(folder.join("stories260K/tok512.bin")).unwrap(), Some(512), "test").unwrap();
        let ids = std::fs::read_to_string(folder.join("stories260K/greedy_ids_n200.json")).unwrap();
        let ids: Vec<u32> = serde_json::from_str(&ids).unwrap();
        let story =
            std::fs::read_to_string(folder.join("stories260K/expected_stdout_temp0_n200.txt")).unwrap();
        assert!(story.starts_with(decode(&tokenizer, &ids).trim_end()));
        assert_eq!(tokenizer.encode("Once upon a time,").unwrap(), ids[..6]);
    }
}
