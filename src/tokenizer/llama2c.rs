//! llama2.c's tokenizer.bin: the vocabulary of a SentencePiece BPE model, with scores.
//!
//! An int32 with the longest token's length, then for each token a float32 score, an int32 length and
//! the token's bytes. The number of tokens is not in the file; the model knows it. Text is split as by
//! `encode` of llama2.c's run.c, which follows SentencePiece.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::utf8::Utf8Stream;
use super::{TextStream, Tokenizer, label};
use crate::error::{Error, Result};

/// Beginning of text; run.c's `1`.
const BOS: u32 = 1;
/// End of text; run.c's `2`.
const EOS: u32 = 2;
/// The token of byte b is b + 3: they follow `<unk>`, `<s>` and `</s>`.
const FIRST_BYTE: u32 = 3;
/// Pairs with this score or less are never merged; run.c's `best_score` starts there.
const LOWEST_SCORE: f32 = -1e10;

/// The vocabulary of a tokenizer.bin.
#[derive(Debug)]
pub(super) struct Llama2cTokenizer {
    tokens: Vec<Box<[u8]>>,
    scores: Vec<f32>,
    /// Ids in the order of their tokens' bytes, for looking a token up.
    sorted: Vec<u32>,
    longest: usize,
}

/// Reads the `vocab` tokens of a tokenizer.bin found at `place`.
///
/// # Errors
/// [`Error::Model`] where the file has not exactly `vocab` tokens, or a length passes its end.
pub(super) fn parse(bytes: &[u8], vocab: usize, place: &str) -> Result<Llama2cTokenizer> {
    let wrong = |what: &str, found: String| {
        Error::model(what)
            .at(place)
            .expected(format!("a llama2.c tokenizer.bin with exactly {vocab} tokens, as the model has"))
            .found(found)
            .next("give the tokenizer that belongs to the model with --tokenizer")
    };
    let cut_off = |id: usize| {
        wrong("the tokenizer file is cut off or of another kind", format!("its end in token {id}"))
    };
    // The longest length, which is counted here instead.
    let (_, mut rest) = bytes.split_first_chunk::<4>().ok_or_else(|| cut_off(0))?;
    let (mut tokens, mut scores) = (Vec::<Box<[u8]>>::new(), Vec::new());
    for id in 0..vocab {
        let (score, after) = rest.split_first_chunk::<4>().ok_or_else(|| cut_off(id))?;
        let (length, after) = after.split_first_chunk::<4>().ok_or_else(|| cut_off(id))?;
        let length =
            usize::try_from(i32::from_le_bytes(*length)).ok().filter(|&length| length <= after.len());
        let (token, after) = after.split_at(length.ok_or_else(|| cut_off(id))?);
        scores.push(f32::from_le_bytes(*score));
        tokens.push(token.into());
        rest = after;
    }
    if !rest.is_empty() {
        let what = "the tokenizer has more tokens than the model";
        return Err(wrong(what, format!("{} bytes after token {}", rest.len(), vocab - 1)));
    }
    let mut sorted: Vec<u32> = (0..vocab as u32).collect();
    // Stable, so that of equal tokens the lowest id comes first.
    sorted.sort_by_key(|&id| -> &[u8] { &tokens[id as usize] });
    let longest = tokens.iter().map(|token| token.len()).max().unwrap_or(0);
    Ok(Llama2cTokenizer { tokens, scores, sorted, longest })
}

impl Llama2cTokenizer {
    fn token(&self, id: u32) -> Option<&[u8]> {
        self.tokens.get(id as usize).map(|token| &**token)
    }

    fn lookup(&self, bytes: &[u8]) -> Option<u32> {
        let at = self.sorted.partition_point(|&id| &*self.tokens[id as usize] < bytes);
        self.sorted.get(at).copied().filter(|&id| &*self.tokens[id as usize] == bytes)
    }

    /// Appends the token of `character`, or else those of its bytes.
    fn push_character(&self, character: char, ids: &mut Vec<u32>) -> Result<()> {
        let mut buffer = [0; 4];
        let bytes = character.encode_utf8(&mut buffer).as_bytes();
        if let Some(id) = self.lookup(bytes) {
            ids.push(id);
            return Ok(());
        }
        for &byte in bytes {
            let id = FIRST_BYTE + u32::from(byte);
            if self.token(id).and_then(label::byte_token) != Some(byte) {
                return Err(Error::prompt(format!("the vocabulary has no token for {character:?}"))
                    .expected("text made of the vocabulary's characters; it has no tokens for single bytes")
                    .found(format!("U+{:04X}", u32::from(character)))
                    .next("leave the character out, or give token ids"));
            }
            ids.push(id);
        }
        Ok(())
    }

    /// Merges neighbours while the vocabulary has their concatenation, the best score first and, of
    /// equal ones, the leftmost: what run.c's loop over the whole text does once for each merge.
    fn merge(&self, ids: Vec<u32>) -> Vec<u32> {
        let mut chain = Chain::new(ids);
        let mut queue = BinaryHeap::new();
        let mut text = Vec::new();
        let mut offer = |chain: &Chain, queue: &mut BinaryHeap<Merge>, left: usize| {
            let Some(right) = chain.next(left) else { return };
            let (left_id, right_id) = (chain.ids[left], chain.ids[right]);
            let (a, b) = (&self.tokens[left_id as usize], &self.tokens[right_id as usize]);
            if a.len() + b.len() > self.longest {
                return;
            }
            text.clear();
            text.extend_from_slice(a);
            text.extend_from_slice(b);
            if let Some(id) = self.lookup(&text) {
                let score = self.scores[id as usize];
                if score > LOWEST_SCORE {
                    queue.push(Merge { score, left, id, parts: (left_id, right_id) });
                }
            }
        };
        for left in 0..chain.ids.len() {
            offer(&chain, &mut queue, left);
        }
        while let Some(Merge { left, id, parts, .. }) = queue.pop() {
            // Stale where one of the two was merged with another neighbour in the meantime.
            let Some(right) = chain.next(left) else { continue };
            if !chain.alive(left) || (chain.ids[left], chain.ids[right]) != parts {
                continue;
            }
            chain.join(left, right, id);
            if let Some(before) = chain.previous(left) {
                offer(&chain, &mut queue, before);
            }
            offer(&chain, &mut queue, left);
        }
        chain.into_ids()
    }
}

/// A merge that was possible when it was queued.
struct Merge {
    score: f32,
    /// Place of the left one of the two tokens.
    left: usize,
    /// What they become.
    id: u32,
    /// What they were.
    parts: (u32, u32),
}

impl Ord for Merge {
    fn cmp(&self, other: &Self) -> Ordering {
        // `+ 0.0` makes −0 the 0 that it equals.
        let score = |merge: &Self| merge.score + 0.0;
        score(self).total_cmp(&score(other)).then_with(|| other.left.cmp(&self.left))
    }
}

impl PartialOrd for Merge {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Merge {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Merge {}

/// A doubly linked list of tokens in one piece of memory: joining two is O(1), and places keep the
/// order of the text.
struct Chain {
    ids: Vec<u32>,
    /// Place of the neighbour on each side; the length of the list for none. A dead place points to itself.
    before: Vec<usize>,
    after: Vec<usize>,
}

impl Chain {
    fn new(ids: Vec<u32>) -> Self {
        let length = ids.len();
        let before = (0..length).map(|place| place.checked_sub(1).unwrap_or(length)).collect();
        let after = (1..=length).collect();
        Self { ids, before, after }
    }

    fn alive(&self, place: usize) -> bool {
        self.after[place] != place
    }

    fn next(&self, place: usize) -> Option<usize> {
        Some(self.after[place]).filter(|&place| place < self.ids.len())
    }

    fn previous(&self, place: usize) -> Option<usize> {
        Some(self.before[place]).filter(|&place| place < self.ids.len())
    }

    /// Replaces the tokens at `left` and at `right`, its neighbour, by `id` at `left`.
    fn join(&mut self, left: usize, right: usize, id: u32) {
        self.ids[left] = id;
        self.after[left] = self.after[right];
        if let Some(next) = self.next(left) {
            self.before[next] = left;
        }
        self.after[right] = right;
    }

    fn into_ids(self) -> Vec<u32> {
        (0..self.ids.len()).filter(|&place| self.alive(place)).map(|place| self.ids[place]).collect()
    }
}

impl Tokenizer for Llama2cTokenizer {
    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        if !text.is_empty() {
            // SentencePiece's `add_dummy_prefix`: a word is the same at the start as in the middle.
            self.push_character(' ', &mut ids)?;
        }
        for character in text.chars() {
            self.push_character(character, &mut ids)?;
        }
        let mut all = vec![BOS];
        all.append(&mut self.merge(ids));
        Ok(all)
    }

    /// The two special tokens of Llama 2's format; each piece between them is a text of its own.
    fn encode_marked(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        let mut rest = text;
        loop {
            let next = [("<s>", BOS), ("</s>", EOS)]
                .into_iter()
                .filter_map(|(name, id)| Some((rest.find(name)?, name.len(), id)))
                .min();
            let (end, length, mark) = next.map_or((rest.len(), 0, None), |(at, n, id)| (at, n, Some(id)));
            ids.extend_from_slice(&self.encode(&rest[..end])?[1..]);
            let Some(mark) = mark else { return Ok(ids) };
            ids.push(mark);
            rest = &rest[end + length..];
        }
    }

    fn bos(&self) -> Option<u32> {
        Some(BOS)
    }

    fn vocab_size(&self) -> usize {
        self.tokens.len()
    }

    fn label(&self, id: u32) -> String {
        match (id, self.token(id)) {
            (_, None) => label::unknown(id),
            // Stored with line feeds around them, for run.c to print.
            (BOS | EOS, Some(token)) => label::of_bytes(token.trim_ascii()),
            (_, Some(token)) => match label::byte_token(token) {
                Some(byte) => label::of_bytes(&[byte]),
                None => label::of_bytes(token),
            },
        }
    }

    fn stream(&self) -> Box<dyn TextStream + '_> {
        Box::new(Stream { tokenizer: self, after_bos: false, utf8: Utf8Stream::default() })
    }
}

/// run.c's `decode`, one token after the other.
struct Stream<'a> {
    tokenizer: &'a Llama2cTokenizer,
    /// Whether the token before was BOS, after which one leading space is the dummy prefix.
    after_bos: bool,
    utf8: Utf8Stream,
}

impl TextStream for Stream<'_> {
    fn push(&mut self, id: u32) -> String {
        let after_bos = std::mem::replace(&mut self.after_bos, id == BOS);
        let Some(mut token) = self.tokenizer.token(id).filter(|_| id != BOS && id != EOS) else {
            return String::new();
        };
        if after_bos {
            token = token.strip_prefix(b" ").unwrap_or(token);
        }
        match label::byte_token(token) {
            Some(byte) => self.utf8.push(&[byte]),
            None => self.utf8.push(token),
        }
    }

    fn finish(&mut self) -> String {
        self.utf8.finish()
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
        parse(&file(tokens), 259 + tokens.len(), "test").unwrap()
    }

    #[test]
    fn the_best_score_is_merged_first_then_the_leftmost() {
        // 259 " ", 260 a, 261 b, 262 ab, 263 ba, 264 aa
        let tokens = [(" ", 0.0), ("a", 0.0), ("b", 0.0), ("ab", -1.0), ("ba", -2.0), ("aa", -1.0)];
        let tokenizer = tokenizer(&tokens);
        assert_eq!(tokenizer.encode("bab").unwrap(), [1, 259, 261, 262]);
        assert_eq!(tokenizer.encode("aab").unwrap(), [1, 259, 264, 261]);
        assert_eq!(tokenizer.encode("aaa").unwrap(), [1, 259, 264, 260]);
        assert_eq!(tokenizer.encode("").unwrap(), [1]);
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
        let text = parse(&bytes, 1, "test").unwrap().encode("b").unwrap_err().to_string();
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
            parse(&bytes[..length], 260, "test").unwrap_err();
        }
        parse(&bytes, 259, "test").unwrap_err();
        parse(&bytes, 261, "test").unwrap_err();
    }

    /// run.c's loop, as it stands there.
    fn merge_slowly(tokenizer: &Llama2cTokenizer, mut ids: Vec<u32>) -> Vec<u32> {
        loop {
            let mut best: Option<(f32, usize, u32)> = None;
            for at in 1..ids.len() {
                let pair = [ids[at - 1], ids[at]].map(|id| tokenizer.token(id).unwrap()).concat();
                if let Some(id) = tokenizer.lookup(&pair) {
                    let score = tokenizer.scores[id as usize];
                    if score > best.map_or(LOWEST_SCORE, |best| best.0) {
                        best = Some((score, at, id));
                    }
                }
            }
            let Some((_, at, id)) = best else { return ids };
            ids[at - 1] = id;
            ids.remove(at);
        }
    }

    proptest! {
        #[test]
        fn merging_gives_what_the_slow_loop_gives(
            tokens in prop::collection::vec(("[ab]{1,4}", -3_i8..3), 0..12), text in "[ab]{0,24}",
        ) {
            let tokens: Vec<_> = tokens.iter().map(|(token, score)| (token.as_str(), f32::from(*score))).collect();
            let tokenizer = tokenizer(&[&[("a", 0.0), ("b", 0.0)], &tokens[..]].concat());
            let ids: Vec<u32> = text.chars().map(|c| tokenizer.lookup(c.to_string().as_bytes()).unwrap()).collect();
            prop_assert_eq!(tokenizer.merge(ids.clone()), merge_slowly(&tokenizer, ids));
        }

        #[test]
        fn mutated_files_never_panic(at: prop::sample::Index, byte: u8, text: String, id: u32) {
            let mut bytes = file(&[(" ", 0.0), ("a", -1.0), ("aa", f32::NAN)]);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Ok(tokenizer) = parse(&bytes, 262, "test") {
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
    fn a_long_text_takes_no_time() {
        let tokenizer = tokenizer(&[(" ", 0.0), ("a", 0.0), ("aa", 1.0), ("aaaa", 2.0)]);
        assert_eq!(tokenizer.encode(&"a".repeat(400_000)).unwrap().len(), 100_002);
    }

    #[test]
    fn llama_2_gives_the_ids_of_llama_cpp() {
        let Some(folder) = data() else { return };
        let tokenizer =
            parse(&std::fs::read(folder.join("llama2c/tokenizer.bin")).unwrap(), 32000, "test").unwrap();
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
            parse(&std::fs::read(folder.join("stories260K/tok512.bin")).unwrap(), 512, "test").unwrap();
        let ids = std::fs::read_to_string(folder.join("stories260K/greedy_ids_n200.json")).unwrap();
        let ids: Vec<u32> = serde_json::from_str(&ids).unwrap();
        let story =
            std::fs::read_to_string(folder.join("stories260K/expected_stdout_temp0_n200.txt")).unwrap();
        assert!(story.starts_with(decode(&tokenizer, &ids).trim_end()));
        assert_eq!(tokenizer.encode("Once upon a time,").unwrap(), ids[..6]);
    }
}
