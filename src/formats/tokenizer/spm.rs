//! SentencePiece's BPE (Kudo and Richardson, 2018): the vocabulary's pieces have scores, and neighbours
//! in the text are merged while their concatenation is a piece, the best score first and, of equal ones,
//! the leftmost. Shared by every file format that such a vocabulary comes in.
//!
//! The `tokenizers` crate has no model that gives these ids. Its BPE numbers its merges, so that no two are equal, and
//! begins with tokens, where SentencePiece begins with characters. Converters (`SentencePieceExtractor` in
//! transformers) put equal scores in some order, and lose what is said in no merge:
//!
//! - pieces of equal score. Vocabularies that were added to Llama's have them by the thousand: the Chinese ones all
//!   have the score 0. With `今天` and `天气`, `今天气` is `今天` `气`, whatever their order in the file; and runs of
//!   spaces have one score in Llama 2's own;
//! - a piece with a character that is none itself: the crate spells the character before it merges;
//! - pieces of the user's, which merge with nothing, and unused ones, which are taken apart again.
//!
//! So ids and what is shown of merging come from the one loop here.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use super::bpe::{self, Step};
use super::merges::{Merge, Priority, Stretch, Way};
use super::special::Specials;
use llama_trace_core::error::{Error, Result};

/// Merges into a piece with this score or less are never made: llama2.c's `best_score` starts there, and
/// no vocabulary has such scores.
const LOWEST_SCORE: f32 = -1e10;

/// What a piece stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The text that it is made of.
    Text,
    /// Text that is this piece wherever it stands: it is looked for before anything is merged.
    User,
    /// Text, but only on the way to others: what ends as this piece is taken apart again.
    Unused,
    /// One byte of a character that no piece has.
    Byte(u8),
    /// No text: unknown, beginning, end. Never found in a text.
    Special,
}

/// One entry of the vocabulary.
#[derive(Debug)]
pub(super) struct Piece {
    /// Its bytes as they are compared with the text; the caller decides how a space is written.
    pub(super) bytes: Arc<[u8]>,
    /// Where it stands among the merges: the highest first.
    pub(super) score: f32,
    /// What it stands for.
    pub(super) kind: Kind,
}

/// A vocabulary, in the order of ids.
#[derive(Debug)]
pub(super) struct Pieces {
    pieces: Vec<Piece>,
    /// Ids of the pieces that are text.
    texts: HashMap<Arc<[u8]>, u32>,
    /// The token of each byte.
    bytes: Box<[Option<u32>; 256]>,
    longest: usize,
    /// The pieces of [`Kind::User`].
    user: Specials,
    /// Characters that stand side by side in a piece, found when a long text is split. None where a piece is unused: it is
    /// taken apart as it was last put together, wherever in the text.
    neighbours: OnceLock<Option<HashSet<(char, char)>>>,
}

/// How much of a text is merged at once, about, in bytes: merging takes some hundred bytes for each of them.
const LENGTH: usize = 64 << 10;

/// What merging joins: a stretch of the text, at first a character or a piece of the user's.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    /// The byte where it begins.
    from: u32,
    /// The byte where it ends, and in the highest bit whether it takes no part in merges: of long texts there are millions.
    to: u32,
}

/// The bit that marks a symbol that takes no part in merges.
const WHOLE: u32 = 1 << 31;

impl Symbol {
    fn end(self) -> u32 {
        self.to & !WHOLE
    }

    fn is_whole(self) -> bool {
        self.to & WHOLE != 0
    }

    /// How many bytes it has.
    fn len(self) -> usize {
        (self.end() - self.from) as usize
    }

    /// What it is of the text.
    fn of(self, text: &str) -> &str {
        &text[self.from as usize..self.end() as usize]
    }
}

/// A score that can be compared: in the order of numbers, where −0 is the 0 that it equals.
#[derive(Clone, Copy, Debug)]
struct Score(f32);

impl Ord for Score {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.0 + 0.0).total_cmp(&(other.0 + 0.0))
    }
}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Score {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Score {}

impl Pieces {
    /// A vocabulary; the place of a piece is its id. Of pieces with equal bytes the first one counts.
    pub(super) fn new(pieces: Vec<Piece>) -> Self {
        let mut bytes = Box::new([None; 256]);
        let (mut texts, mut user, mut longest) = (HashMap::new(), Vec::new(), 0);
        for (id, piece) in (0..).zip(&pieces) {
            match piece.kind {
                Kind::Text | Kind::User | Kind::Unused => {
                    texts.entry(Arc::clone(&piece.bytes)).or_insert(id);
                    longest = longest.max(piece.bytes.len());
                    if piece.kind == Kind::User
                        && let Ok(name) = std::str::from_utf8(&piece.bytes)
                    {
                        user.push((name.to_owned(), id));
                    }
                }
                Kind::Byte(byte) => _ = bytes[usize::from(byte)].get_or_insert(id),
                Kind::Special => {}
            }
        }
        Self { pieces, texts, bytes, longest, user: Specials::new(user), neighbours: OnceLock::new() }
    }

    /// Number of ids.
    pub(super) fn len(&self) -> usize {
        self.pieces.len()
    }

    /// The piece `id`; none outside the vocabulary.
    pub(super) fn get(&self, id: u32) -> Option<&Piece> {
        self.pieces.get(id as usize)
    }

    /// The id of the piece that is this text.
    pub(super) fn lookup(&self, text: &[u8]) -> Option<u32> {
        self.texts.get(text).copied()
    }

    /// Appends the tokens of `text` to `ids`. A character that becomes part of no piece is spelt with the
    /// tokens of its bytes.
    ///
    /// # Errors
    /// [`Error::Prompt`] where a character has neither.
    pub(super) fn split(&self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        self.split_by(LENGTH, text, ids)
    }

    /// The same, about `length` bytes at a time: a text is cut between characters that are side by side in no piece, which
    /// are never merged.
    fn split_by(&self, length: usize, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        let mut rest = text;
        while !rest.is_empty() {
            let end = if length < rest.len() { self.cut(rest, length) } else { rest.len() };
            let (piece, next) = rest.split_at(end);
            self.merge(piece, self.parts(piece)?, ids, |_| ())?;
            rest = next;
        }
        Ok(())
    }

    /// The first place after so many bytes of a text at which it may be cut; its end where there is none.
    fn cut(&self, text: &str, length: usize) -> usize {
        let Some(neighbours) = self.neighbours.get_or_init(|| self.find_neighbours()) else {
            return text.len();
        };
        let start = text.floor_char_boundary(length);
        let mut before = text[..start].chars().next_back();
        for (at, character) in text[start..].char_indices() {
            if before.is_some_and(|before| !neighbours.contains(&(before, character))) {
                return start + at;
            }
            before = Some(character);
        }
        text.len()
    }

    fn find_neighbours(&self) -> Option<HashSet<(char, char)>> {
        let mut neighbours = HashSet::new();
        for piece in &self.pieces {
            match piece.kind {
                Kind::Unused => return None,
                Kind::Text | Kind::User => {
                    // What is no text is part of none.
                    let text = std::str::from_utf8(&piece.bytes).unwrap_or_default();
                    neighbours.extend(text.chars().zip(text.chars().skip(1)));
                }
                Kind::Byte(_) | Kind::Special => {}
            }
        }
        Some(neighbours)
    }

    /// The merges that lead from `text` to its tokens; `label` is how a part is shown.
    ///
    /// # Errors
    /// As [`Pieces::split`].
    pub(super) fn stretch(&self, text: &str, label: impl Fn(&str) -> String) -> Result<Stretch> {
        let parts = self.parts(text)?;
        let shown = |part: &Symbol| label(part.of(text));
        let labels = parts.iter().map(shown).collect();
        let (mut ids, mut merges) = (Vec::new(), Vec::new());
        self.merge(text, parts, &mut ids, |Step { left, right, symbol, priority }| {
            let priority = Priority::Score(priority.0);
            merges.push(Merge { left, right, text: shown(&symbol), priority });
        })?;
        Ok(Stretch { parts: labels, way: Way::Merged, merges, ids })
    }

    /// What merging begins with: characters, and pieces of the user's.
    ///
    /// # Errors
    /// [`Error::Prompt`] where there are more bytes than can be counted.
    fn parts(&self, text: &str) -> Result<Vec<Symbol>> {
        if text.len() >= WHOLE as usize {
            return Err(Error::prompt("the text is longer than any that is split into tokens")
                .expected(format!("fewer than {WHOLE} bytes"))
                .found(format!("{} bytes", text.len()))
                .next("give a shorter text"));
        }
        let mut parts = Vec::with_capacity(text.chars().count());
        let mut at = 0;
        while let Some(character) = text[at..].chars().next() {
            let user = self.user.at_start(&text[at..]);
            let end = at + user.map_or(character.len_utf8(), |(length, _)| length);
            let whole = if user.is_some() { WHOLE } else { 0 };
            parts.push(Symbol { from: at as u32, to: end as u32 | whole });
            at = end;
        }
        Ok(parts)
    }

    fn merge(
        &self,
        text: &str,
        parts: Vec<Symbol>,
        ids: &mut Vec<u32>,
        watch: impl FnMut(Step<Symbol, Score>),
    ) -> Result<()> {
        // Where an unused piece was put together, by its text: how long the left part was.
        let mut unused: HashMap<&str, usize> = HashMap::new();
        let join = |left: Symbol, right: Symbol| {
            let symbol = Symbol { from: left.from, to: right.end() };
            if left.is_whole() || right.is_whole() || symbol.len() > self.longest {
                return None;
            }
            let joined = symbol.of(text);
            let piece = self.lookup(joined.as_bytes()).and_then(|id| self.get(id))?;
            if piece.kind == Kind::Unused {
                unused.insert(joined, left.len());
            }
            (piece.score > LOWEST_SCORE).then_some((Score(piece.score), symbol))
        };
        let merged = bpe::merge(parts, join, watch);
        for part in merged {
            // The parts still to be written, the first one last.
            let mut waiting = vec![part.of(text)];
            while let Some(part) = waiting.pop() {
                let id = self.lookup(part.as_bytes());
                let is_unused =
                    id.and_then(|id| self.get(id)).is_some_and(|piece| piece.kind == Kind::Unused);
                match (id, unused.get(part).filter(|_| is_unused)) {
                    (Some(_), Some(&cut)) => waiting.extend([&part[cut..], &part[..cut]]),
                    (Some(id), None) => ids.push(id),
                    (None, _) => self.spell(part, ids)?,
                }
            }
        }
        Ok(())
    }

    /// Appends the tokens of the bytes of `character`, which is no piece.
    fn spell(&self, character: &str, ids: &mut Vec<u32>) -> Result<()> {
        let tokens = character.bytes().map(|byte| self.bytes[usize::from(byte)]);
        let Some(tokens) = tokens.collect::<Option<Vec<_>>>() else {
            // `▁` is how SentencePiece writes a space.
            let character = character.replace('▁', " ").chars().next().unwrap_or_default();
            return Err(Error::prompt(format!("the vocabulary has no token for {character:?}"))
                .expected("text made of the vocabulary's characters; it has no tokens for single bytes")
                .found(format!("U+{:04X}", u32::from(character)))
                .next("leave the character out, or give token ids"));
        };
        ids.extend(tokens);
        Ok(())
    }
}

/// `bytes` with spaces for SentencePiece's `▁`. Every other byte stays as it is, UTF-8 or not.
pub(super) fn spaced(bytes: &[u8]) -> Vec<u8> {
    let chunks = bytes.utf8_chunks();
    chunks.flat_map(|chunk| [chunk.valid().replace('▁', " ").as_bytes(), chunk.invalid()].concat()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cmp::Reverse;

    fn pieces(tokens: &[(&str, f32)]) -> Pieces {
        let piece =
            |&(text, score): &(&str, f32)| Piece { bytes: text.as_bytes().into(), score, kind: Kind::Text };
        Pieces::new(tokens.iter().map(piece).collect())
    }

    fn split(pieces: &Pieces, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        pieces.split(text, &mut ids).unwrap();
        ids
    }

    #[test]
    fn the_best_score_is_merged_first_then_the_leftmost() {
        // 0 a, 1 b, 2 ab, 3 ba, 4 aa
        let pieces = pieces(&[("a", 0.0), ("b", 0.0), ("ab", -1.0), ("ba", -2.0), ("aa", -1.0)]);
        assert_eq!(split(&pieces, "bab"), [1, 2]);
        assert_eq!(split(&pieces, "aab"), [4, 1]);
        assert_eq!(split(&pieces, "aaa"), [4, 0]);
        assert_eq!(split(&pieces, ""), [0; 0]);
    }

    #[test]
    fn special_pieces_are_never_text() {
        let special = Piece { bytes: b"ab".as_slice().into(), score: 9.0, kind: Kind::Special };
        let text = |bytes: &[u8]| Piece { bytes: bytes.into(), score: 0.0, kind: Kind::Text };
        let byte = Piece { bytes: b"<0xC3>".as_slice().into(), score: 0.0, kind: Kind::Byte(0xc3) };
        let pieces = Pieces::new(vec![special, text(b"a"), text(b"b"), byte]);
        assert_eq!(split(&pieces, "ab"), [1, 2]);
        let error = pieces.split("é", &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("no token for 'é'"), "{error}");
    }

    fn piece(text: &str, score: f32, kind: Kind) -> Piece {
        Piece { bytes: text.as_bytes().into(), score, kind }
    }

    #[test]
    fn pieces_of_the_users_are_found_first_and_never_merged() {
        let all = [
            ("a", Kind::Text),
            ("b", Kind::Text),
            ("ab", Kind::Text),
            ("bb", Kind::User),
            ("bba", Kind::Text),
        ];
        let pieces = Pieces::new(all.map(|(text, kind)| piece(text, 0.0, kind)).into());
        assert_eq!(split(&pieces, "abba"), [0, 3, 0]);
        assert_eq!(split(&pieces, "aba"), [2, 0]);
    }

    #[test]
    fn unused_pieces_are_taken_apart() {
        // 0 a, 1 b, 2 ab (unused), 3 aba, 4 abab (unused)
        let all = [
            ("a", 0.0, Kind::Text),
            ("b", 0.0, Kind::Text),
            ("ab", 9.0, Kind::Unused),
            ("aba", 8.0, Kind::Text),
            ("abab", 7.0, Kind::Unused),
        ];
        let pieces = Pieces::new(all.map(|(text, score, kind)| piece(text, score, kind)).into());
        assert_eq!(split(&pieces, "ab"), [0, 1]);
        assert_eq!(split(&pieces, "aba"), [3]);
        assert_eq!(split(&pieces, "abab"), [0, 1, 0, 1]);
    }

    /// The crate's BPE of the same pieces, as `SentencePieceExtractor` in transformers makes it.
    fn converted(pieces: &[Piece]) -> impl Fn(&str) -> Vec<u32> {
        use tokenizers::Model;
        let texts = pieces.iter().map(|piece| String::from_utf8(piece.bytes.to_vec()).unwrap());
        let vocab: tokenizers::models::bpe::Vocab = texts.zip(0..).collect();
        let mut merges = Vec::new();
        for (text, &id) in &vocab {
            for (at, _) in text.char_indices().skip(1) {
                let (left, right) = text.split_at(at);
                if let (Some(&first), Some(&second)) = (vocab.get(left), vocab.get(right)) {
                    let order = (Reverse(Score(pieces[id as usize].score)), id, first, second);
                    merges.push((order, (left.to_owned(), right.to_owned())));
                }
            }
        }
        merges.sort();
        let merges = merges.into_iter().map(|(_, pair)| pair).collect();
        let model =
            tokenizers::models::bpe::BPE::builder().byte_fallback(true).vocab_and_merges(vocab, merges);
        let model = model.build().unwrap();
        move |text| model.tokenize(text).unwrap().into_iter().map(|token| token.id).collect()
    }

    /// Why this module gives the ids: those that are expected here are of sentencepiece 0.2.3.
    #[test]
    fn the_tokenizers_crate_gives_other_ids_than_sentencepiece() {
        // 0 <0xC3>, 1 <0xA9>, 2 a, 3 b, and then these.
        let letters = || {
            let byte = |byte: u8| piece(&format!("<0x{byte:02X}>"), 0.0, Kind::Byte(byte));
            vec![byte(0xc3), byte(0xa9), piece("a", 0.0, Kind::Text), piece("b", 0.0, Kind::Text)]
        };
        let with = |more: [(&str, f32, Kind); 2], text: &str, expected: &[u32]| {
            let mut all = letters();
            all.extend(more.map(|(text, score, kind)| piece(text, score, kind)));
            let other = converted(&all)(text);
            assert_eq!(split(&Pieces::new(all), text), expected, "{text}");
            assert_ne!(other, expected, "{text}");
        };
        // Of equal scores the leftmost is merged first; the other order would be wrong for `bab`.
        with([("ba", -1.0, Kind::Text), ("ab", -1.0, Kind::Text)], "aba", &[5, 2]);
        with([("ab", -1.0, Kind::Text), ("ba", -1.0, Kind::Text)], "bab", &[5, 3]);
        // `é` is no piece, and is merged into one.
        with([("aé", -1.0, Kind::Text), ("x", 0.0, Kind::Text)], "aé", &[4]);
        with([("ab", -1.0, Kind::Unused), ("x", 0.0, Kind::Text)], "ab", &[2, 3]);
        with([("bb", -1.0, Kind::User), ("bba", -2.0, Kind::Text)], "abba", &[2, 4, 2]);
    }

    #[test]
    fn merges_are_told_in_order() {
        let pieces = pieces(&[("a", 0.0), ("b", 0.0), ("ab", -1.0), ("abb", -2.0)]);
        let stretch = pieces.stretch("babb", str::to_owned).unwrap();
        assert_eq!((stretch.after(0), stretch.after(1)), (vec!["b", "a", "b", "b"], vec!["b", "ab", "b"]));
        assert_eq!((stretch.after(2), &stretch.ids[..]), (vec!["b", "abb"], &[1, 3][..]));
        assert_eq!(stretch.merges[1].priority, Priority::Score(-2.0));
    }

    /// The loop over the whole text, once for each merge, as it stands in llama2.c's run.c.
    fn split_slowly(pieces: &Pieces, text: &str) -> Vec<u32> {
        let lookup = |text: &str| pieces.lookup(text.as_bytes());
        let mut ids: Vec<u32> = text.chars().map(|c| lookup(&c.to_string()).unwrap()).collect();
        loop {
            let mut best: Option<(f32, usize, u32)> = None;
            for at in 1..ids.len() {
                let pair = [ids[at - 1], ids[at]].map(|id| &*pieces.get(id).unwrap().bytes).concat();
                if let Some(id) = pieces.lookup(&pair) {
                    let score = pieces.get(id).unwrap().score;
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
            let pieces = pieces(&[&[("a", 0.0), ("b", 0.0)], &tokens[..]].concat());
            prop_assert_eq!(split(&pieces, &text), split_slowly(&pieces, &text));
        }

        /// Of a long text some is merged at a time, where that makes no difference.
        #[test]
        fn words_have_the_ids_that_they_have_in_the_text(
            tokens in prop::collection::vec(("[ab▁ ]{1,3}", -3_i8..3), 0..6), text in "[ab▁ ]{0,24}", kind in 0_usize..4,
        ) {
            let letters = ["a", "b", "▁", " "].map(|letter| piece(letter, 0.0, Kind::Text));
            let kind = [Kind::Text, Kind::Text, Kind::User, Kind::Unused][kind];
            let tokens = tokens.iter().enumerate().map(|(number, (token, score))| {
                piece(token, f32::from(*score), if number == 0 { kind } else { Kind::Text })
            });
            let pieces = Pieces::new(letters.into_iter().chain(tokens).collect());
            let by = |length| {
                let mut ids = Vec::new();
                pieces.split_by(length, &text, &mut ids).unwrap();
                ids
            };
            prop_assert_eq!(by(1), by(usize::MAX));
        }
    }

    #[test]
    fn a_long_text_takes_no_time() {
        let pieces = pieces(&[("a", 0.0), ("aa", 1.0), ("aaaa", 2.0)]);
        assert_eq!(split(&pieces, &"a".repeat(400_000)).len(), 100_000);
    }
}
