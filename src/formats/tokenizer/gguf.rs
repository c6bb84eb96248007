//! The vocabulary inside a GGUF file: SentencePiece's with scores (`llama`), or byte-level BPE with merges (`gpt2`).
//! Texts are split as in llama.cpp, including special tokens in the text.

mod cuts;

use super::hf::byte_level::{ByteLevel, Cut};
use super::merges::{Stretch, Way};
use super::special::{Segment, Specials};
use super::spm::{Kind, Piece, Pieces, spaced};
use super::{MAX_VOCAB, TextStream, TokenBytes, Tokenizer, label};
use crate::files::gguf::{self, Metadata};
use crate::files::printable;
use llama_trace_core::error::Result;

/// The maximum size in bytes of all tokens, and of all merges. Llama 3 has 2 MB of tokens and 6 MB of merges.
const MAX_BYTES: usize = 64 << 20;
/// The maximum number of tokens that are searched verbatim in a text, the maximum size of one of them in bytes, and the
/// maximum size of all of them. Llama 3 has 256, with at most 30 bytes.
const MAX_ADDED: (usize, usize, usize) = (1 << 14, 1 << 10, 1 << 20);

/// The type of a token in `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Normal,
    /// Never text: unknown and control tokens.
    Special,
    /// Text that is found before the rest is split.
    Added,
    Byte,
}

/// Every pre-tokenization that such a file may name.
pub(super) fn cuts() -> impl Iterator<Item = Cut> {
    cuts::all()
}

/// Reads the vocabulary of the GGUF file with these bytes, found at `place`. Returns `None` if it has none.
///
/// # Errors
/// Returns [`llama_trace_core::error::Error::Model`] if the vocabulary is damaged or of an unsupported kind.
pub(super) fn parse(file: &[u8], place: &str) -> Result<Option<Box<dyn Tokenizer>>> {
    let header = gguf::header(file, place)?;
    let metadata = &header.metadata;
    let model = match metadata.text("tokenizer.ggml.model")? {
        None | Some("none" | "no_vocab") => return Ok(None),
        Some(model @ ("llama" | "gpt2")) => model,
        Some(other) => {
            let expected = "\"llama\" or \"gpt2\"; other kinds of vocabulary are not read here";
            return Err(metadata.wrong("tokenizer.ggml.model", expected, printable(other)));
        }
    };
    let mut tokens = tokens(metadata)?;
    let ends = metadata.ends()?;
    for (ids, kind) in
        [(&ends.control, Type::Special), (&ends.user, Type::Added), (&ends.normal, Type::Normal)]
    {
        for id in ids {
            tokens[*id as usize].1 = kind;
        }
    }
    Ok(Some(match model {
        "llama" => Box::new(sentencepiece(metadata, tokens, ends.ids)?),
        _ => Box::new(byte_level(metadata, tokens, ends.ids, place)?),
    }))
}

/// The tokens by id.
fn tokens<'a>(metadata: &Metadata<'a>) -> Result<Vec<(&'a [u8], Type)>> {
    let key = "tokenizer.ggml.tokens";
    let Some(list) = metadata.texts(key)? else {
        return Err(metadata.wrong(key, "the tokens of the vocabulary", "no such key"));
    };
    if !(1..=MAX_VOCAB).contains(&list.len()) || list.size() > MAX_BYTES {
        let expected = format!("1 to {MAX_VOCAB} tokens, in at most {MAX_BYTES} bytes");
        return Err(metadata.wrong(
            key,
            &expected,
            format!("{} tokens in {} bytes", list.len(), list.size()),
        ));
    }
    let key = "tokenizer.ggml.token_type";
    let types: Vec<Type> = match metadata.wholes(key)? {
        None => list
            .texts()
            .map(|token| if label::byte_token(token).is_some() { Type::Byte } else { Type::Normal })
            .collect(),
        Some(types) if types.len() != list.len() => {
            return Err(metadata.wrong(key, &format!("{}, one for each token", list.len()), types.len()));
        }
        Some(types) => types
            .wholes()
            .map(|number| match number {
                2 | 3 => Type::Special,
                4 => Type::Added,
                6 => Type::Byte,
                // 0 undefined, 1 normal, 5 unused: text, as in llama.cpp.
                _ => Type::Normal,
            })
            .collect(),
    };
    let added = list.texts().zip(&types).filter(|(_, kind)| matches!(kind, Type::Special | Type::Added));
    let (count, longest, bytes) = added.fold((0, 0, 0), |(count, longest, bytes), (token, _)| {
        (count + 1, token.len().max(longest), bytes + token.len())
    });
    if count > MAX_ADDED.0 || longest > MAX_ADDED.1 || bytes > MAX_ADDED.2 {
        let (most, length, total) = MAX_ADDED;
        let expected = format!(
            "at most {most} special or added tokens of at most {length} bytes, and at most {total} bytes in all"
        );
        return Err(metadata.wrong(
            key,
            &expected,
            format!("{count} tokens of up to {longest} bytes, {bytes} bytes in all"),
        ));
    }
    Ok(list.texts().zip(types).collect())
}

/// The token `name`, if `tokenizer.ggml.add_<name>_token` requests it. If that key is absent, `default` decides.
fn around(metadata: &Metadata<'_>, name: &str, default: bool, tokens: usize) -> Result<Option<u32>> {
    if !metadata.flag(&format!("tokenizer.ggml.add_{name}_token"))?.unwrap_or(default) {
        return Ok(None);
    }
    let key = format!("tokenizer.ggml.{name}_token_id");
    match metadata.id(&key)? {
        Some(id) if id as usize >= tokens => {
            Err(metadata.wrong(&key, &format!("an id below {tokens}, the number of tokens"), id))
        }
        _ => metadata.special(name),
    }
}

/// Builds a byte-level BPE.
fn byte_level(
    metadata: &Metadata<'_>,
    tokens: Vec<(&[u8], Type)>,
    ends: Vec<u32>,
    place: &str,
) -> Result<impl Tokenizer + use<>> {
    let key = "tokenizer.ggml.pre";
    let pre = metadata.text(key)?.unwrap_or_default();
    let Some((cut, whole, bos)) = cuts::find(pre) else {
        let expected = "the name of a known pre-tokenization";
        let next = "give the model's own tokenizer with --tokenizer FILE (its tokenizer.json), or token ids with --ids";
        return Err(metadata.wrong(key, expected, format!("\"{}\"", printable(pre))).next(next));
    };
    let key = "tokenizer.ggml.merges";
    let Some(list) = metadata.texts(key)? else {
        return Err(metadata.wrong(key, "the merges of the vocabulary", "no such key"));
    };
    if list.len() > MAX_VOCAB || list.size() > MAX_BYTES {
        let expected = format!("at most {MAX_VOCAB} merges, in at most {MAX_BYTES} bytes");
        return Err(metadata.wrong(
            key,
            &expected,
            format!("{} merges in {} bytes", list.len(), list.size()),
        ));
    }
    let merge = |text: &[u8]| {
        let text = std::str::from_utf8(text).ok()?;
        // The first token may be a space, but is never empty.
        let at = text.bytes().skip(1).position(|byte| byte == b' ')? + 1;
        Some((text[..at].to_owned(), text[at + 1..].to_owned()))
    };
    let merges = list.texts().map(merge).collect::<Option<Vec<_>>>();
    let merges =
        merges.ok_or_else(|| metadata.wrong(key, "two tokens with a space between them", "another text"))?;
    let of_type =
        |wanted: Type| (0..).zip(&tokens).filter(move |(_, (_, kind))| *kind == wanted).map(|(id, _)| id);
    let parts = ByteLevel {
        merges,
        by_id: false,
        added: of_type(Type::Added).collect(),
        special: of_type(Type::Special).collect(),
        cut,
        whole,
        before: around(metadata, "bos", bos, tokens.len())?,
        after: around(metadata, "eos", false, tokens.len())?,
        ends,
        tokens: tokens.into_iter().map(|(token, _)| String::from_utf8_lossy(token).into_owned()).collect(),
    };
    parts.build(place)
}

/// A SentencePiece vocabulary.
#[derive(Debug)]
struct SentencePiece {
    /// The vocabulary, with `▁` for a space.
    pieces: Pieces,
    /// Control tokens and added tokens, which are searched in a text.
    found: Specials,
    /// Added tokens, which are shown as text.
    added: Specials,
    types: Vec<Type>,
    before: Option<u32>,
    after: Option<u32>,
    /// Tokens that end a text.
    ends: Vec<u32>,
    /// Whether a space is added at the beginning of a text and after a special token.
    prefix: bool,
}

/// A part of a text.
enum Spelt {
    /// A token that is found verbatim.
    Token(u32),
    /// Text in the spelling of the pieces.
    Text(String),
}

fn sentencepiece(
    metadata: &Metadata<'_>,
    tokens: Vec<(&[u8], Type)>,
    ends: Vec<u32>,
) -> Result<SentencePiece> {
    let key = "tokenizer.ggml.scores";
    let scores: Vec<f32> = match metadata.floats(key)? {
        Some(scores) if scores.len() == tokens.len() => scores.floats().collect(),
        Some(scores) => {
            return Err(metadata.wrong(key, &format!("{}, one for each token", tokens.len()), scores.len()));
        }
        None => vec![0.0; tokens.len()],
    };
    let specials = |types: &[Type]| {
        let some = (0..).zip(&tokens).filter(|(_, (_, kind))| types.contains(kind));
        Specials::new(some.map(|(id, (token, _))| (String::from_utf8_lossy(token).into_owned(), id)))
    };
    let piece = |((token, kind), score): (&(&[u8], Type), f32)| {
        let kind = match kind {
            // A byte token is recognised by its spelling.
            Type::Normal => label::byte_token(token).map_or(Kind::Text, Kind::Byte),
            Type::Byte => label::byte_token(token).map_or(Kind::Special, Kind::Byte),
            Type::Special | Type::Added => Kind::Special,
        };
        Piece { bytes: (*token).into(), score, kind }
    };
    Ok(SentencePiece {
        pieces: Pieces::new(tokens.iter().zip(scores).map(piece).collect()),
        found: specials(&[Type::Special, Type::Added]),
        added: specials(&[Type::Added]),
        ends,
        before: around(metadata, "bos", true, tokens.len())?,
        after: around(metadata, "eos", false, tokens.len())?,
        prefix: metadata.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true),
        types: tokens.into_iter().map(|(_, kind)| kind).collect(),
    })
}

impl SentencePiece {
    /// The bytes that are shown for a token; for a special token, its name.
    fn bytes(&self, id: u32) -> Option<Vec<u8>> {
        let piece = self.pieces.get(id)?;
        Some(match piece.kind {
            Kind::Byte(byte) => vec![byte],
            Kind::Special => piece.bytes.to_vec(),
            _ => spaced(&piece.bytes),
        })
    }

    /// The tokens found verbatim in `text`, and the text between them in the spelling of the pieces.
    fn parts(&self, text: &str, plain: bool) -> Vec<Spelt> {
        let mut prefix = self.prefix;
        let part = |part: Segment<'_>| match part {
            Segment::Special(id) => {
                prefix = self.prefix;
                Spelt::Token(id)
            }
            Segment::Text(text) => {
                let mark = if std::mem::take(&mut prefix) { "▁" } else { "" };
                Spelt::Text(format!("{mark}{}", text.replace(' ', "▁")))
            }
        };
        let names = if plain { &self.added } else { &self.found };
        names.split(text, false).into_iter().map(part).collect()
    }

    fn split(&self, text: &str, plain: bool, ids: &mut Vec<u32>) -> Result<()> {
        for part in self.parts(text, plain) {
            match part {
                Spelt::Token(id) => ids.push(id),
                Spelt::Text(text) => self.pieces.split(&text, ids)?,
            }
        }
        Ok(())
    }
}

impl Tokenizer for SentencePiece {
    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids: Vec<u32> = self.before.into_iter().collect();
        self.split(text, false, &mut ids)?;
        ids.extend(self.after);
        Ok(ids)
    }

    fn encode_marked(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        self.split(text, false, &mut ids)?;
        Ok(ids)
    }

    fn specials(&self) -> Vec<String> {
        let names = self.found.names().into_iter();
        names.filter(|name| self.added.get(name).is_none()).collect()
    }

    fn encode_plain(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        self.split(text, true, &mut ids)?;
        Ok(ids)
    }

    fn merges(&self, text: &str, plain: bool) -> Result<Option<Vec<Stretch>>> {
        let token = |id| Stretch::token(Way::Special, id, self.label(id));
        let mut stretches: Vec<_> = self.before.filter(|_| !plain).into_iter().map(token).collect();
        for part in self.parts(text, plain) {
            stretches.push(match part {
                Spelt::Token(id) => token(id),
                Spelt::Text(text) => self.pieces.stretch(&text, |part| part.replace('▁', " "))?,
            });
        }
        stretches.extend(self.after.filter(|_| !plain).map(token));
        Ok(Some(stretches))
    }

    fn ends(&self) -> Vec<u32> {
        self.ends.clone()
    }

    fn bos(&self) -> Option<u32> {
        self.before
    }

    fn vocab_size(&self) -> usize {
        self.pieces.len()
    }

    fn label(&self, id: u32) -> String {
        self.bytes(id).map_or_else(|| label::unknown(id), |bytes| label::of_bytes(&bytes))
    }

    fn stream(&self) -> TextStream<'_> {
        TextStream::new(Stream { tokenizer: self, prefix: self.prefix })
    }
}

/// Decodes one text.
struct Stream<'a> {
    tokenizer: &'a SentencePiece,
    /// Whether encoding added the space at the beginning of the next token, if there is one.
    prefix: bool,
}

impl TokenBytes for Stream<'_> {
    fn bytes(&mut self, id: u32) -> Vec<u8> {
        let kind = self.tokenizer.types.get(id as usize);
        let Some((bytes, kind)) = self.tokenizer.bytes(id).zip(kind) else { return Vec::new() };
        let bytes = match kind {
            Type::Special => Vec::new(),
            Type::Added => bytes,
            Type::Normal | Type::Byte => {
                let lead = std::mem::take(&mut self.prefix) && bytes.starts_with(b" ");
                return bytes[usize::from(lead)..].to_vec();
            }
        };
        self.prefix = self.tokenizer.prefix;
        bytes
    }
}

#[cfg(test)]
mod tests;
