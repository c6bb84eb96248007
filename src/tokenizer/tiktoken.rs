//! Llama 3's tokenizer.model: byte-pair encoding over bytes, as in OpenAI's tiktoken.
//!
//! Each line of the file is a token in base64 and its rank, which is its id and its place in the order of
//! merges. A pattern first cuts the text into pieces, roughly words; a piece that is a token is never
//! split, and in any other the neighbours whose concatenation has the lowest rank are merged first. The
//! pattern and the special tokens are not in the file but in Meta's code (`tokenizer.py` in llama-models).

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use regex::Regex;

use super::merges::{Merge, Priority, Stretch, Way};
use super::special::{Segment, Specials};
use super::{MAX_VOCAB, TextStream, TokenBytes, Tokenizer, bpe, label};
use crate::error::{Error, Result};
use crate::files::printable;

/// How text is cut into pieces: contractions, words with what stands before them, up to three digits,
/// punctuation with what ends its line, and white space. Meta's pattern has `\s+(?!\S)` before the last
/// `\s+`: what that says is done in [`Tiktoken::pieces`], since a look ahead takes a search that goes back,
/// and with it memory for every character of a long run of spaces.
const PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
/// Special tokens follow the ranks.
const SPECIALS: u32 = 256;
/// The special tokens with a meaning in Llama 3; the others are reserved, numbered in order.
const LLAMA_3: &[(u32, &str)] = &[
    (0, "<|begin_of_text|>"),
    (1, "<|end_of_text|>"),
    (6, "<|start_header_id|>"),
    (7, "<|end_header_id|>"),
    (9, "<|eot_id|>"),
];
/// The special tokens with a meaning from Llama 3.1 on.
const LLAMA_3_1: &[(u32, &str)] = &[
    (0, "<|begin_of_text|>"),
    (1, "<|end_of_text|>"),
    (4, "<|finetune_right_pad_id|>"),
    (5, "<|step_id|>"),
    (6, "<|start_header_id|>"),
    (7, "<|end_header_id|>"),
    (8, "<|eom_id|>"),
    (9, "<|eot_id|>"),
    (10, "<|python_tag|>"),
];
/// Tokens that end a text: of the document, of the message, of the turn.
const ENDS: [&str; 3] = ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"];

/// A file of ranks with what belongs to it.
#[derive(Debug)]
pub(super) struct Tiktoken {
    /// Tokens by rank, without the special ones.
    tokens: Vec<Arc<[u8]>>,
    ranks: HashMap<Arc<[u8]>, u32>,
    longest: usize,
    /// Names of the special tokens, in order; their ids follow the ranks.
    names: Vec<String>,
    specials: Specials,
    pattern: Regex,
}

/// Whether a file that begins with `bytes` seems to be one of ranks: base64, a blank and a number.
pub(super) fn recognise(bytes: &[u8]) -> bool {
    let beginning = &bytes[..bytes.len().min(1024)];
    beginning.split(|&byte| byte == b'\n').next().is_some_and(|line| parse_line(line).is_some())
}

/// The token and the rank in a line.
fn parse_line(line: &[u8]) -> Option<(Vec<u8>, u32)> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let blank = line.iter().position(|&byte| byte == b' ')?;
    let rank = std::str::from_utf8(&line[blank + 1..]).ok()?;
    let rank = rank.parse().ok().filter(|_| rank.bytes().all(|byte| byte.is_ascii_digit()))?;
    Some((STANDARD.decode(&line[..blank]).ok().filter(|token| !token.is_empty())?, rank))
}

/// Reads a file of ranks found at `place`. The special tokens have the names of Llama 3 where `llama_3` is
/// set, and else those of 3.1 and later.
///
/// # Errors
/// [`Error::Model`] where a line is no token with its rank, a rank is missing or there twice, or a byte has
/// no token.
pub(super) fn parse(bytes: &[u8], llama_3: bool, place: &str) -> Result<Tiktoken> {
    let wrong = |expected: &str, found: String| {
        Error::model("the tokenizer's ranks cannot be read")
            .at(place)
            .expected(expected)
            .found(found)
            .next("fetch tokenizer.model again, or give another tokenizer with --tokenizer")
    };
    let mut lines = Vec::new();
    // Counted before anything is kept: a line may have five bytes.
    if bytes.iter().filter(|&&byte| byte == b'\n').count() > MAX_VOCAB {
        return Err(wrong(&format!("at most {MAX_VOCAB} tokens"), "more lines".into()));
    }
    for (number, line) in bytes.split(|&byte| byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty())
    {
        lines.push(parse_line(line).ok_or_else(|| {
            let found = printable(&String::from_utf8_lossy(&line[..line.len().min(400)]));
            wrong(
                "a token in base64, a blank and its rank in each line",
                format!("line {}: `{found}`", number + 1),
            )
        })?);
    }
    lines.sort_unstable_by_key(|(_, rank)| *rank);
    if let Some((expected, (_, rank))) = (0..).zip(&lines).find(|(expected, (_, rank))| expected != rank) {
        return Err(wrong(
            &format!("every rank from 0 to {} once", lines.len() - 1),
            format!("{rank} for {expected}"),
        ));
    }
    let tokens: Vec<Arc<[u8]>> = lines.into_iter().map(|(token, _)| token.into()).collect();
    let ranks: HashMap<_, _> = tokens.iter().cloned().zip(0..).collect();
    if ranks.len() != tokens.len() {
        return Err(wrong(
            "every token once",
            format!("{} tokens under {} ranks", ranks.len(), tokens.len()),
        ));
    }
    if let Some(byte) = (0..=u8::MAX).find(|byte| !ranks.contains_key(&[*byte][..])) {
        return Err(wrong("a token for each of the 256 bytes", format!("none for 0x{byte:02X}")));
    }
    let pattern = Regex::new(PATTERN)
        .map_err(|error| Error::model("the pattern of Llama 3 cannot be read").found(error))?;
    let first = tokens.len() as u32;
    let names = names(if llama_3 { LLAMA_3 } else { LLAMA_3_1 });
    Ok(Tiktoken {
        longest: tokens.iter().map(|token| token.len()).max().unwrap_or(0),
        specials: Specials::new(names.iter().cloned().zip(first..)),
        tokens,
        ranks,
        names,
        pattern,
    })
}

/// The names of all special tokens: those with a meaning where they are, and reserved ones between.
fn names(meaning: &[(u32, &str)]) -> Vec<String> {
    let mut reserved = 0..;
    let mut name = |at| match meaning.iter().find(|(place, _)| *place == at) {
        Some((_, name)) => (*name).to_string(),
        None => format!("<|reserved_special_token_{}|>", reserved.next().unwrap_or(0)),
    };
    (0..SPECIALS).map(&mut name).collect()
}

/// Bytes of a piece: where they begin and end.
type Span = (usize, usize);

impl Tiktoken {
    /// The pieces of a text, in order and without gap.
    fn pieces<'a>(&self, text: &'a str) -> Vec<&'a str> {
        let mut pieces = Vec::new();
        let mut at = 0;
        while at < text.len() {
            // Every character begins some piece, so that one is found here and not later.
            let end = self.pattern.find_at(text, at).map_or(text.len(), |found| found.end());
            let piece = &text[at..end];
            let last = piece.char_indices().next_back().map_or(0, |(last, _)| last);
            // `\s+(?!\S)`: of several spaces before a word, the last one is the word's.
            let spaces = || {
                piece.chars().all(|character| character.is_whitespace() && !matches!(character, '\r' | '\n'))
            };
            let end = if end < text.len() && last > 0 && spaces() { at + last } else { end };
            pieces.push(&text[at..end]);
            at = end;
        }
        pieces
    }

    /// The tokens of a piece that is not one, and the merges that lead there.
    fn merge(&self, piece: &[u8], watch: impl FnMut(bpe::Step<Span, Reverse<u32>>)) -> Vec<u32> {
        let rank = |(from, to): Span| self.ranks.get(&piece[from..to]).copied();
        let join = |left: Span, right: Span| {
            let span = (left.0, right.1);
            if span.1 - span.0 > self.longest {
                return None;
            }
            rank(span).map(|rank| (Reverse(rank), span))
        };
        let bytes = (0..piece.len()).map(|at| (at, at + 1)).collect();
        // Every byte has a token, and what was merged is one.
        bpe::merge(bytes, join, watch).into_iter().filter_map(rank).collect()
    }

    fn split(&self, text: &str, plain: bool, ids: &mut Vec<u32>) {
        for part in self.specials.split(text, plain) {
            match part {
                Segment::Special(id) => ids.push(id),
                Segment::Text(text) => {
                    for piece in self.pieces(text) {
                        match self.ranks.get(piece.as_bytes()) {
                            Some(&id) => ids.push(id),
                            None => ids.extend(self.merge(piece.as_bytes(), |_| ())),
                        }
                    }
                }
            }
        }
    }

    fn stretch(&self, piece: &[u8]) -> Stretch {
        if let Some(&id) = self.ranks.get(piece) {
            return Stretch::token(Way::Whole, id, self.label(id));
        }
        let mut merges = Vec::new();
        let ids = self.merge(piece, |step| {
            let (from, to) = step.symbol;
            let text = label::of_bytes(&piece[from..to]);
            let priority = Priority::Rank(step.priority.0);
            merges.push(Merge { left: step.left, right: step.right, text, priority });
        });
        let parts = piece.iter().map(|byte| label::of_bytes(&[*byte])).collect();
        Stretch { parts, way: Way::Merged, merges, ids }
    }
}

impl Tokenizer for Tiktoken {
    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids: Vec<u32> = self.bos().into_iter().collect();
        self.split(text, false, &mut ids);
        Ok(ids)
    }

    fn encode_plain(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        self.split(text, true, &mut ids);
        Ok(ids)
    }

    fn merges(&self, text: &str, plain: bool) -> Result<Option<Vec<Stretch>>> {
        let special = |id| Stretch::token(Way::Special, id, self.label(id));
        let mut stretches: Vec<_> = self.bos().filter(|_| !plain).into_iter().map(special).collect();
        for part in self.specials.split(text, plain) {
            match part {
                Segment::Special(id) => stretches.push(special(id)),
                Segment::Text(text) => {
                    stretches
                        .extend(self.pieces(text).into_iter().map(|piece| self.stretch(piece.as_bytes())));
                }
            }
        }
        Ok(Some(stretches))
    }

    fn specials(&self) -> Vec<String> {
        self.names.clone()
    }

    fn bos(&self) -> Option<u32> {
        self.specials.get("<|begin_of_text|>")
    }

    fn ends(&self) -> Vec<u32> {
        ENDS.iter().filter_map(|name| self.specials.get(name)).collect()
    }

    fn vocab_size(&self) -> usize {
        self.tokens.len() + self.names.len()
    }

    fn label(&self, id: u32) -> String {
        let id_or_special = (id as usize).checked_sub(self.tokens.len());
        match (self.tokens.get(id as usize), id_or_special.and_then(|at| self.names.get(at))) {
            (Some(token), _) => label::of_bytes(token),
            (None, Some(name)) => name.clone(),
            (None, None) => label::unknown(id),
        }
    }

    fn stream(&self) -> TextStream<'_> {
        TextStream::new(Stream { tokens: &self.tokens })
    }
}

/// Decodes one text.
struct Stream<'a> {
    tokens: &'a [Arc<[u8]>],
}

impl TokenBytes for Stream<'_> {
    fn bytes(&mut self, id: u32) -> Vec<u8> {
        self.tokens.get(id as usize).map_or_else(Vec::new, |token| token.to_vec())
    }
}

#[cfg(test)]
mod tests;
