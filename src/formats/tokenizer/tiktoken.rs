//! Llama 3's tokenizer.model: byte-pair encoding over bytes, as in OpenAI's tiktoken.
//!
//! Each line of the file is a token in base64 and its rank, which is its id and its priority in merges. A pattern first
//! splits the text into pieces, roughly words. A piece that is a token is never split. In any other piece, the adjacent
//! pair whose concatenation has the lowest rank is merged first; of equal ranks, the leftmost. The pattern and the
//! special tokens are not in the file but in Meta's code (`tokenizer.py` in llama-models).
//!
//! The ids come from the `tokenizers` crate. The crate needs a list of token pairs, each with its own priority, but
//! tiktoken merges any two parts whose concatenation is a token. [`merges`] builds the list. One pair for each token is
//! enough: the last two parts that it is merged from when it is encoded alone. No other pair with the same
//! concatenation ever becomes adjacent.
//!
//! The reason: consider two adjacent parts in a text whose concatenation is a token. No merge has crossed their outer
//! ends. The merges between these ends depend only on their order and positions. They are therefore the first merges of
//! the token encoded alone, and that encoding has two parts at most once. (`TikTokenConverter` in transformers uses
//! every split of a token into two others: the same ids, but up to n pairs for a token of n bytes.)

use std::cmp::Reverse;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokenizers::models::bpe::{Merges, Vocab};

use super::hf::byte_level::{ByteLevel, Cut, spelt};
use super::hf::{self, HfTokenizer};
use super::{MAX_VOCAB, bpe};
use crate::files::{Beside, printable};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::threads::prelude::*;

/// The maximum size of a token in bytes, and of all tokens. The time to find the parts of a token grows with the square
/// of its length. Llama 3's tokens have up to 128 bytes, and 0.8 MB in all.
const MAX_BYTES: (usize, usize) = (256, 16 << 20);
/// The number of special tokens, which follow the ranks.
const SPECIALS: u32 = 256;
/// The special tokens with a meaning in Llama 3. The others are reserved and numbered in order.
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
/// The token at the beginning of a text.
const BEGIN: &str = "<|begin_of_text|>";
/// Tokens that end a text: the end of the document, of the message, of the turn.
const ENDS: [&str; 3] = ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"];

/// Returns whether a file that begins with `bytes` is probably a file of ranks: base64, a space and a number.
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

/// Reads a file of ranks found at `place`. If `llama_3` is set, the special tokens have Llama 3's names, otherwise
/// those of 3.1 and later.
///
/// # Errors
/// Returns [`Error::Model`] if a line is not a token with its rank, a token is too long, a rank or a token is missing
/// or repeated, or a byte has no token.
pub(super) fn parse(bytes: &[u8], llama_3: bool, place: &str) -> Result<HfTokenizer> {
    parse_with(bytes, &names(if llama_3 { LLAMA_3 } else { LLAMA_3_1 }), place)
}

/// Reads a file of ranks found at `place`, with the special tokens of the files beside it.
///
/// # Errors
/// The errors of [`parse`].
pub(super) fn parse_beside(bytes: &[u8], beside: &Beside, place: &str) -> Result<HfTokenizer> {
    let wrong = |found| cannot_be_read("tokens that are added to the ranks", found, place);
    hf::ranks(parse_with(bytes, &[], place)?, beside).map_err(wrong)
}

fn cannot_be_read(expected: &str, found: String, place: &str) -> Error {
    Error::model("the tokenizer's ranks cannot be read")
        .at(place)
        .expected(expected)
        .found(found)
        .next("fetch tokenizer.model again, or give another tokenizer with --tokenizer")
}

/// Reads a file of ranks, followed by these special tokens.
fn parse_with(bytes: &[u8], names: &[String], place: &str) -> Result<HfTokenizer> {
    let wrong = |expected: &str, found: String| cannot_be_read(expected, found, place);
    let mut lines = Vec::new();
    // Counted before lines are stored, because a line may have only five bytes.
    if bytes.iter().filter(|&&byte| byte == b'\n').count() > MAX_VOCAB {
        return Err(wrong(&format!("at most {MAX_VOCAB} tokens"), "more lines".into()));
    }
    for (number, line) in bytes.split(|&byte| byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty())
    {
        lines.push(parse_line(line).ok_or_else(|| {
            let found = printable(&String::from_utf8_lossy(&line[..line.len().min(400)]));
            wrong(
                "in each line: a token in base64, a space and the rank of the token",
                format!("line {}: `{found}`", number + 1),
            )
        })?);
    }
    lines.sort_unstable_by_key(|(_, rank)| *rank);
    if let Some((expected, (_, rank))) = (0..).zip(&lines).find(|(expected, (_, rank))| expected != rank) {
        return Err(wrong(
            &format!("every rank from 0 to {} once", lines.len() - 1),
            format!("rank {rank} instead of {expected}"),
        ));
    }
    let lengths = || lines.iter().map(|(token, _)| token.len());
    let (longest, bytes) = (lengths().max().unwrap_or(0), lengths().sum::<usize>());
    if longest > MAX_BYTES.0 || bytes > MAX_BYTES.1 {
        let expected =
            format!("tokens of at most {} bytes, and at most {} bytes in all", MAX_BYTES.0, MAX_BYTES.1);
        return Err(wrong(&expected, format!("up to {longest} bytes, {bytes} bytes in all")));
    }
    let tokens: Vec<String> = lines.iter().map(|(token, _)| spelt(token)).collect();
    let ranks: Vocab = tokens.iter().cloned().zip(0..).collect();
    let twice = names.iter().filter(|name| ranks.contains_key(*name)).count();
    if ranks.len() - twice != lines.len() {
        let found = format!("{} different tokens under {} ranks", ranks.len() - twice, lines.len());
        return Err(wrong("every token once, and no special tokens", found));
    }
    if let Some(byte) = (0..=u8::MAX).find(|&byte| !ranks.contains_key(&spelt(&[byte]))) {
        return Err(wrong("a token for each of the 256 bytes", format!("no token for 0x{byte:02X}")));
    }
    let first = tokens.len() as u32;
    let id = |name: &&str| names.iter().position(|known| known == name).map(|at| first + at as u32);
    let parts = ByteLevel {
        merges: merges(&tokens, &ranks),
        by_id: true,
        added: Vec::new(),
        special: (first..first + names.len() as u32).collect(),
        cut: Cut::Llama3,
        whole: true,
        before: id(&BEGIN),
        after: None,
        ends: ENDS.iter().filter_map(id).collect(),
        tokens: [tokens, names.to_vec()].concat(),
    };
    parts.build(place)
}

/// For each token that merging can make, the two parts of its last merge. They are spelt in GPT-2's alphabet.
fn merges(tokens: &[String], ranks: &Vocab) -> Merges {
    let last = |token: &String| {
        let join = |left: Span, right: Span| {
            let span = (left.0, right.1);
            ranks.get(&token[span.0..span.1]).map(|&rank| (Reverse(rank), span))
        };
        let letters: Vec<Span> =
            token.char_indices().map(|(at, letter)| (at, at + letter.len_utf8())).collect();
        let mut cut = None;
        let whole = bpe::merge(letters.clone(), join, |step| cut = Some(letters[step.right].0)).len() == 1;
        let (left, right) = token.split_at(cut.filter(|_| whole)?);
        Some((left.to_owned(), right.to_owned()))
    };
    tokens.par_iter().filter_map(last).collect()
}

/// The byte range of a part in a token's spelling.
type Span = (usize, usize);

/// The names of all special tokens: those with a meaning at their positions, and reserved ones between.
fn names(meaning: &[(u32, &str)]) -> Vec<String> {
    let mut reserved = 0..;
    let mut name = |at| match meaning.iter().find(|(place, _)| *place == at) {
        Some((_, name)) => (*name).to_string(),
        None => format!("<|reserved_special_token_{}|>", reserved.next().unwrap_or(0)),
    };
    (0..SPECIALS).map(&mut name).collect()
}

#[cfg(test)]
mod tests;
