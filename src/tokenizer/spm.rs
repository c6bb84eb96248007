//! SentencePiece's BPE (Kudo and Richardson, 2018): the vocabulary's pieces have scores, and neighbours
//! in the text are merged while their concatenation is a piece, the best score first and, of equal ones,
//! the leftmost. Shared by every file format that such a vocabulary comes in.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::error::{Error, Result};

/// Merges into a piece with this score or less are never made: llama2.c's `best_score` starts there, and
/// no vocabulary has such scores.
const LOWEST_SCORE: f32 = -1e10;

/// What a piece stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The text that it is made of.
    Text,
    /// One byte of a character that no piece has.
    Byte(u8),
    /// No text: unknown, beginning, end. Never found in a text.
    Special,
}

/// One entry of the vocabulary.
#[derive(Debug)]
pub(super) struct Piece {
    /// Its bytes as they are compared with the text; the caller decides how a space is written.
    pub(super) bytes: Box<[u8]>,
    /// Where it stands among the merges: the highest first.
    pub(super) score: f32,
    /// What it stands for.
    pub(super) kind: Kind,
}

/// A vocabulary, in the order of ids.
#[derive(Debug)]
pub(super) struct Pieces {
    pieces: Vec<Piece>,
    /// Ids of the pieces that are text, in the order of their bytes, for looking one up.
    sorted: Vec<u32>,
    /// The token of each byte.
    bytes: Box<[Option<u32>; 256]>,
    longest: usize,
}

impl Pieces {
    /// A vocabulary; the place of a piece is its id. Of pieces with equal bytes the first one counts.
    pub(super) fn new(pieces: Vec<Piece>) -> Self {
        let mut bytes = Box::new([None; 256]);
        let (mut sorted, mut longest) = (Vec::new(), 0);
        for (id, piece) in (0..).zip(&pieces) {
            match piece.kind {
                Kind::Text => {
                    sorted.push(id);
                    longest = longest.max(piece.bytes.len());
                }
                Kind::Byte(byte) => _ = bytes[usize::from(byte)].get_or_insert(id),
                Kind::Special => {}
            }
        }
        // Stable, so that of equal pieces the lowest id comes first.
        sorted.sort_by_key(|&id: &u32| -> &[u8] { &pieces[id as usize].bytes });
        Self { pieces, sorted, bytes, longest }
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
        let bytes = |id: u32| &*self.pieces[id as usize].bytes;
        let at = self.sorted.partition_point(|&id| bytes(id) < text);
        self.sorted.get(at).copied().filter(|&id| bytes(id) == text)
    }

    /// Appends the tokens of `text` to `ids`. A character that becomes part of no piece is spelt with the
    /// tokens of its bytes.
    ///
    /// # Errors
    /// [`Error::Prompt`] where a character has neither.
    pub(super) fn split(&self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        let mut chain = Chain::new(text);
        let mut queue = BinaryHeap::new();
        for left in 0..chain.starts.len() {
            self.offer(&chain, left, &mut queue);
        }
        while let Some(Merge { left, right, end, .. }) = queue.pop() {
            // Stale where one of the two was merged with another neighbour in the meantime.
            if !chain.alive(left) || chain.next(left) != Some(right) || chain.end(right) != end {
                continue;
            }
            chain.join(left, right);
            if let Some(before) = chain.previous(left) {
                self.offer(&chain, before, &mut queue);
            }
            self.offer(&chain, left, &mut queue);
        }
        for place in (0..chain.starts.len()).filter(|&place| chain.alive(place)) {
            let part = chain.text(place, chain.end(place));
            match self.lookup(part.as_bytes()) {
                Some(id) => ids.push(id),
                None => self.spell(part, ids)?,
            }
        }
        Ok(())
    }

    /// Queues the merge of the part at `left` with the one after it, where there is such a piece.
    fn offer(&self, chain: &Chain<'_>, left: usize, queue: &mut BinaryHeap<Merge>) {
        let Some(right) = chain.next(left) else { return };
        let end = chain.end(right);
        let text = chain.text(left, end).as_bytes();
        if text.len() > self.longest {
            return;
        }
        let Some(piece) = self.lookup(text).and_then(|id| self.get(id)) else { return };
        if piece.score > LOWEST_SCORE {
            queue.push(Merge { score: piece.score, left, right, end });
        }
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

/// A merge that was possible when it was queued.
struct Merge {
    score: f32,
    /// Place of the left one of the two parts.
    left: usize,
    /// Place of the right one.
    right: usize,
    /// Where the right one ended in the text.
    end: usize,
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

/// A text in parts, at first its characters: a doubly linked list in one piece of memory, so that joining
/// two parts is O(1) and places keep the order of the text.
struct Chain<'a> {
    text: &'a str,
    /// Byte at which the part at each place begins.
    starts: Vec<usize>,
    /// Place of the neighbour on each side; the number of places for none. A dead place points to itself.
    before: Vec<usize>,
    after: Vec<usize>,
}

impl<'a> Chain<'a> {
    fn new(text: &'a str) -> Self {
        let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        let length = starts.len();
        let before = (0..length).map(|place| place.checked_sub(1).unwrap_or(length)).collect();
        Self { text, starts, before, after: (1..=length).collect() }
    }

    fn alive(&self, place: usize) -> bool {
        self.after[place] != place
    }

    fn next(&self, place: usize) -> Option<usize> {
        Some(self.after[place]).filter(|&place| place < self.starts.len())
    }

    fn previous(&self, place: usize) -> Option<usize> {
        Some(self.before[place]).filter(|&place| place < self.starts.len())
    }

    /// Byte at which the part at `place` ends.
    fn end(&self, place: usize) -> usize {
        self.next(place).map_or(self.text.len(), |next| self.starts[next])
    }

    /// The text from the part at `place` to the byte `end`.
    fn text(&self, place: usize, end: usize) -> &'a str {
        &self.text[self.starts[place]..end]
    }

    /// Makes one part, at `left`, of the parts at `left` and at `right`, its neighbour.
    fn join(&mut self, left: usize, right: usize) {
        self.after[left] = self.after[right];
        if let Some(next) = self.next(left) {
            self.before[next] = left;
        }
        self.after[right] = right;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
    }

    #[test]
    fn a_long_text_takes_no_time() {
        let pieces = pieces(&[("a", 0.0), ("aa", 1.0), ("aaaa", 2.0)]);
        assert_eq!(split(&pieces, &"a".repeat(400_000)).len(), 100_000);
    }
}
