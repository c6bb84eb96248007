//! SentencePiece's BPE (Kudo and Richardson, 2018). The pieces of the vocabulary have scores. Adjacent parts of the
//! text are merged while their concatenation is a piece: the best score first, and of equal scores the leftmost. All
//! file formats with such a vocabulary share this code.
//!
//! The `tokenizers` crate has no model that gives these ids. Its BPE gives each merge a number, so no two merges have
//! equal priority. It begins with tokens, but SentencePiece begins with characters. Converters
//! (`SentencePieceExtractor` in transformers) order equal scores arbitrarily and lose everything that merges cannot
//! express:
//!
//! - Pieces of equal score. Vocabularies that extend Llama's have thousands of such pieces: all Chinese ones have the
//!   score 0. With the pieces `今天` and `天气`, `今天气` becomes `今天` `气`, whatever their order in the file. Runs of spaces
//!   have the same score in Llama 2's own vocabulary.
//! - A piece with a character that is not a piece itself. The crate spells the character in bytes before it merges.
//! - User-defined pieces, which are never merged, and unused pieces, which are split again.
//!
//! Ids and the displayed merges therefore come from the loop in this module.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use super::bpe::{self, Step};
use super::merges::{Merge, Priority, Stretch, Way};
use super::special::Specials;
use llama_trace_core::error::{Error, Result};

/// Merges into a piece with this score or a lower one are never made. llama2.c's `best_score` starts with this value,
/// and no vocabulary has such scores.
const LOWEST_SCORE: f32 = -1e10;

/// The kind of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The text of the piece.
    Text,
    /// User-defined text that always becomes this piece. It is searched before any merge.
    User,
    /// Text that is only an intermediate step. If it remains at the end, it is split again.
    Unused,
    /// One byte of a character that is in no piece.
    Byte(u8),
    /// Not text: unknown, beginning, end. Never found in a text.
    Special,
}

/// One entry of the vocabulary.
#[derive(Debug)]
pub(super) struct Piece {
    /// The bytes that are compared with the text. The caller chooses the spelling of a space.
    pub(super) bytes: Arc<[u8]>,
    /// Its priority in merges; the highest comes first.
    pub(super) score: f32,
    /// Its kind.
    pub(super) kind: Kind,
}

/// A vocabulary, in the order of ids.
#[derive(Debug)]
pub(super) struct Pieces {
    pieces: Vec<Piece>,
    /// The ids of the pieces that are text.
    texts: HashMap<Arc<[u8]>, u32>,
    /// The token of each byte.
    bytes: Box<[Option<u32>; 256]>,
    longest: usize,
    /// The pieces of [`Kind::User`].
    user: Specials,
    /// The pairs of characters that are adjacent in a piece, computed when a long text is split. `None` if the
    /// vocabulary has unused pieces. How such a piece is split depends on its last merge in the whole text, so the text
    /// must not be cut.
    neighbours: OnceLock<Option<HashSet<(char, char)>>>,
}

/// The approximate number of bytes merged at once. Merging takes tens of bytes of memory for each byte of text.
const LENGTH: usize = 64 << 10;

/// A symbol of the merge loop: a stretch of the text, initially a character or a user-defined piece.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    /// The byte offset of its start.
    from: u32,
    /// The byte offset of its end. The highest bit marks a symbol that is never merged. The struct is compact, because
    /// long texts have millions of symbols.
    to: u32,
}

/// The bit that marks a symbol that is never merged.
const WHOLE: u32 = 1 << 31;

impl Symbol {
    fn end(self) -> u32 {
        self.to & !WHOLE
    }

    fn is_whole(self) -> bool {
        self.to & WHOLE != 0
    }

    /// Its length in bytes.
    fn len(self) -> usize {
        (self.end() - self.from) as usize
    }

    /// Its part of the text.
    fn of(self, text: &str) -> &str {
        &text[self.from as usize..self.end() as usize]
    }
}

/// A score with a total order: numeric order, with −0 equal to 0.
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
    /// Creates a vocabulary. The index of a piece is its id. Of pieces with equal bytes, the first one counts.
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

    /// The number of ids.
    pub(super) fn len(&self) -> usize {
        self.pieces.len()
    }

    /// The piece `id`; `None` outside the vocabulary.
    pub(super) fn get(&self, id: u32) -> Option<&Piece> {
        self.pieces.get(id as usize)
    }

    /// The id of the piece with this text.
    pub(super) fn lookup(&self, text: &[u8]) -> Option<u32> {
        self.texts.get(text).copied()
    }

    /// Appends the tokens of `text` to `ids`. A character that is part of no piece is spelt with the tokens of its
    /// bytes.
    ///
    /// # Errors
    /// Returns [`Error::Prompt`] if a character has no piece and no byte tokens.
    pub(super) fn split(&self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        self.split_by(LENGTH, text, ids)
    }

    /// [`Self::split`], about `length` bytes at a time. The text is cut between characters that are adjacent in no
    /// piece, because these are never merged.
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

    /// The first possible cut after `length` bytes of a text, or its end if there is none.
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
                    // A piece that is not valid UTF-8 is part of no text.
                    let text = std::str::from_utf8(&piece.bytes).unwrap_or_default();
                    neighbours.extend(text.chars().zip(text.chars().skip(1)));
                }
                Kind::Byte(_) | Kind::Special => {}
            }
        }
        Some(neighbours)
    }

    /// The merges that lead from `text` to its tokens. `label` formats a part for display.
    ///
    /// # Errors
    /// The errors of [`Pieces::split`].
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

    /// The initial symbols: characters, and user-defined pieces.
    ///
    /// # Errors
    /// Returns [`Error::Prompt`] if the text is too long for 31-bit offsets.
    fn parts(&self, text: &str) -> Result<Vec<Symbol>> {
        if text.len() >= WHOLE as usize {
            return Err(Error::prompt("the text is longer than the limit for tokenization")
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
        // For each unused piece that was merged, by its text: the length of its left part.
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
            // The parts still to be written, in reverse order.
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

    /// Appends the byte tokens of `character`, which is not a piece.
    fn spell(&self, character: &str, ids: &mut Vec<u32>) -> Result<()> {
        let tokens = character.bytes().map(|byte| self.bytes[usize::from(byte)]);
        let Some(tokens) = tokens.collect::<Option<Vec<_>>>() else {
            // `▁` is SentencePiece's character for a space.
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

/// `bytes` with SentencePiece's `▁` replaced by spaces. All other bytes are unchanged, whether they are UTF-8 or not.
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

    /// The crate's BPE with the same pieces, as converted by `SentencePieceExtractor` in transformers.
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

    /// The reason for this module. The expected ids are those of sentencepiece 0.2.3.
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
        // Of equal scores the leftmost is merged first; the opposite order would be wrong for `bab`.
        with([("ba", -1.0, Kind::Text), ("ab", -1.0, Kind::Text)], "aba", &[5, 2]);
        with([("ab", -1.0, Kind::Text), ("ba", -1.0, Kind::Text)], "bab", &[5, 3]);
        // `é` is not a piece, but is merged into one.
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

    /// The loop of llama2.c's run.c: over the whole text, once for each merge.
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

        /// A long text is merged in parts only if that makes no difference.
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
