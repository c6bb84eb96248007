//! SentencePiece's tokenizer.model of Llama 1 and 2: pieces with scores, of type BPE.
//!
//! The file is a protocol buffer, `ModelProto` of sentencepiece_model.proto. Only the fields that affect ids are read.
//! In the pieces, a space is written `▁`. A space is added before the text.

mod proto;

use super::hf::{self, HfTokenizer};
use super::merges::{Stretch, Way};
use super::special::{Segment, Specials};
use super::spm::{Kind, Piece, Pieces, spaced};
use super::{MAX_VOCAB, TextStream, TokenBytes, Tokenizer, label};
use crate::files::{Beside, printable};
use llama_trace_core::error::{Error, Result};

use proto::{Field, Value};

/// SentencePiece's character for a space.
const SPACE: char = '▁';

/// A tokenizer.model.
#[derive(Debug)]
pub(super) struct SentencePiece {
    pieces: Pieces,
    /// Control pieces by their names.
    specials: Specials,
    bos: Option<u32>,
    eos: Option<u32>,
    /// Whether a space is added before the text.
    dummy_prefix: bool,
    /// Whether spaces at both ends, and repeated spaces, are removed.
    remove_extra_spaces: bool,
}

/// The settings of a model, with the defaults of sentencepiece_model.proto.
struct Settings {
    /// `TrainerSpec.ModelType`: unigram 1, BPE 2, word 3, character 4.
    model_type: u64,
    unk: i64,
    bos: i64,
    eos: i64,
    /// The names of the unknown, beginning and end tokens.
    names: [String; 3],
    byte_fallback: bool,
    dummy_prefix: bool,
    remove_extra_spaces: bool,
    escape_spaces: bool,
    space_as_suffix: bool,
    /// The name of the normalization, if there is one.
    normalization: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            model_type: 1,
            unk: 0,
            bos: 1,
            eos: 2,
            names: ["<unk>", "<s>", "</s>"].map(Into::into),
            byte_fallback: false,
            dummy_prefix: true,
            remove_extra_spaces: true,
            escape_spaces: true,
            space_as_suffix: false,
            normalization: None,
        }
    }
}

/// Returns whether a file that begins with `bytes` is probably a model: its first field is a piece, whose first field
/// is its text.
pub(super) fn recognise(bytes: &[u8]) -> bool {
    matches!(bytes, [0x0a, length, 0x0a, inner, ..] if length > inner && *length < 0x80)
}

/// The description of an invalid file: expected, found.
type Wrong = (String, String);

/// Reads a tokenizer.model found at `place`.
///
/// # Errors
/// Returns [`Error::Model`] if the file is damaged, or if this program would compute other ids for it than
/// SentencePiece.
pub(super) fn parse(bytes: &[u8], place: &str) -> Result<SentencePiece> {
    let made = read(bytes).map(|(pieces, settings)| {
        let pieces: Vec<Piece> = pieces.into_iter().map(|(piece, _)| piece).collect();
        let special = |id: i64| {
            let id = u32::try_from(id).ok()?;
            pieces.get(id as usize).filter(|piece: &&Piece| piece.kind == Kind::Special).map(|_| id)
        };
        let (bos, eos) = (special(settings.bos), special(settings.eos));
        let names = (0..).zip(&pieces).filter(|(_, piece)| piece.kind == Kind::Special);
        let names = names.map(|(id, piece)| (String::from_utf8_lossy(&piece.bytes).into_owned(), id));
        SentencePiece {
            specials: Specials::new(names),
            bos,
            eos,
            dummy_prefix: settings.dummy_prefix,
            remove_extra_spaces: settings.remove_extra_spaces,
            pieces: Pieces::new(pieces),
        }
    });
    made.map_err(|wrong| cannot_be_read(wrong, place))
}

/// Reads a tokenizer.model found at `place` as transformers converts it, with the settings of the files beside it.
///
/// # Errors
/// The errors of [`parse`].
pub(super) fn parse_beside(bytes: &[u8], beside: &Beside, place: &str) -> Result<HfTokenizer> {
    let (pieces, settings) = read(bytes).map_err(|wrong| cannot_be_read(wrong, place))?;
    let piece = |(piece, kind): (Piece, u64)| {
        let kind = match kind {
            1 => hf::Type::Normal,
            3 => hf::Type::Control,
            4 => hf::Type::User,
            _ => hf::Type::Other,
        };
        (String::from_utf8_lossy(&piece.bytes).into_owned(), piece.score, kind)
    };
    let ids = [settings.unk, settings.bos, settings.eos];
    let mut names = settings.names.into_iter();
    let model = hf::Model {
        pieces: pieces.into_iter().map(piece).collect(),
        names: ids.map(|id| names.next().filter(|_| id >= 0)),
        byte_fallback: settings.byte_fallback,
        dummy_prefix: settings.dummy_prefix,
        remove_extra_spaces: settings.remove_extra_spaces,
    };
    let wrong = |found| cannot_be_read(("a model that transformers can convert".into(), found), place);
    hf::sentencepiece(&model, beside).map_err(wrong)
}

fn cannot_be_read((expected, found): Wrong, place: &str) -> Error {
    Error::model("the SentencePiece model cannot be read")
        .at(place)
        .expected(expected)
        .found(printable(&found))
        .next(
            "fetch tokenizer.model again, or give another tokenizer with --tokenizer (a tokenizer.json, say)",
        )
}

/// The pieces with their types, and the settings.
fn read(bytes: &[u8]) -> std::result::Result<(Vec<(Piece, u64)>, Settings), Wrong> {
    let mut pieces = Vec::new();
    let mut settings = Settings::default();
    for field in proto::fields(bytes) {
        match field? {
            Field { number: 1, value: Value::Bytes(bytes) } => {
                if pieces.len() >= MAX_VOCAB {
                    return Err((format!("at most {MAX_VOCAB} pieces"), "more".into()));
                }
                pieces.push(piece(bytes)?);
            }
            Field { number: 2, value: Value::Bytes(bytes) } => trainer_spec(bytes, &mut settings)?,
            Field { number: 3, value: Value::Bytes(bytes) } => normalizer_spec(bytes, &mut settings)?,
            _ => {}
        }
    }
    if pieces.is_empty() {
        return Err(("a vocabulary".into(), "no pieces".into()));
    }
    refuse(&settings)?;
    Ok((pieces, settings))
}

/// `ModelProto.SentencePiece`: piece 1, score 2, type 3.
fn piece(bytes: &[u8]) -> std::result::Result<(Piece, u64), Wrong> {
    let (mut text, mut score, mut number) = (&[][..], 0.0, 1);
    for field in proto::fields(bytes) {
        match field? {
            Field { number: 1, value: Value::Bytes(bytes) } => text = bytes,
            Field { number: 2, value: Value::Fixed32(bits) } => score = f32::from_bits(bits),
            Field { number: 3, value: Value::Varint(kind) } => number = kind,
            _ => {}
        }
    }
    let kind = match number {
        1 => Kind::Text,
        // Unknown and control.
        2 | 3 => Kind::Special,
        4 => Kind::User,
        5 => Kind::Unused,
        6 => Kind::Byte(label::byte_token(text).ok_or_else(|| {
            ("a byte piece `<0x00>` to `<0xFF>`".to_string(), String::from_utf8_lossy(text).into_owned())
        })?),
        other => return Err(("a piece of type 1 to 6".into(), format!("type {other}"))),
    };
    if std::str::from_utf8(text).is_err() {
        return Err(("pieces in UTF-8".into(), String::from_utf8_lossy(text).into_owned()));
    }
    Ok((Piece { bytes: text.into(), score, kind }, number))
}

/// `TrainerSpec`: model_type 3, treat_whitespace_as_suffix 24, byte_fallback 35, unk_id 40, bos_id 41, eos_id 42,
/// unk_piece 45, bos_piece 46, eos_piece 47.
fn trainer_spec(bytes: &[u8], settings: &mut Settings) -> std::result::Result<(), Wrong> {
    for field in proto::fields(bytes) {
        match field? {
            Field { number: number @ 45..=47, value: Value::Bytes(bytes) } => {
                settings.names[number as usize - 45] = String::from_utf8_lossy(bytes).into_owned();
            }
            Field { number, value: Value::Varint(value) } => match number {
                3 => settings.model_type = value,
                24 => settings.space_as_suffix = value != 0,
                35 => settings.byte_fallback = value != 0,
                // A negative int32 is written in ten bytes, as a 64-bit number.
                40 => settings.unk = value as i64,
                41 => settings.bos = value as i64,
                42 => settings.eos = value as i64,
                _ => {}
            },
            _ => {}
        }
    }
    Ok(())
}

/// `NormalizerSpec`: name 1, precompiled_charsmap 2, add_dummy_prefix 3, remove_extra_whitespaces 4,
/// escape_whitespaces 5.
fn normalizer_spec(bytes: &[u8], settings: &mut Settings) -> std::result::Result<(), Wrong> {
    let (mut name, mut has_map) = (String::new(), false);
    for field in proto::fields(bytes) {
        match field? {
            Field { number: 1, value: Value::Bytes(bytes) } => {
                name = String::from_utf8_lossy(bytes).into_owned();
            }
            Field { number: 2, value: Value::Bytes(bytes) } => has_map = !bytes.is_empty(),
            Field { number: 3, value: Value::Varint(value) } => settings.dummy_prefix = value != 0,
            Field { number: 4, value: Value::Varint(value) } => settings.remove_extra_spaces = value != 0,
            Field { number: 5, value: Value::Varint(value) } => settings.escape_spaces = value != 0,
            _ => {}
        }
    }
    settings.normalization = has_map.then_some(name);
    Ok(())
}

/// Rejects settings with which SentencePiece would give other ids than this program.
fn refuse(settings: &Settings) -> std::result::Result<(), Wrong> {
    if settings.model_type != 2 {
        let kind = match settings.model_type {
            1 => "unigram".into(),
            3 => "word".into(),
            4 => "character".into(),
            other => format!("type {other}"),
        };
        return Err(("a model of type BPE, as Llama has".into(), format!("a {kind} model")));
    }
    if let Some(name) = &settings.normalization {
        return Err(("no normalization (`identity`)".into(), format!("the normalization `{name}`")));
    }
    if !settings.escape_spaces || settings.space_as_suffix {
        return Err(("spaces as `▁` before words".into(), "another treatment of spaces".into()));
    }
    Ok(())
}

impl SentencePiece {
    /// The text in the spelling of the pieces.
    fn normalized(&self, text: &str) -> String {
        let mut text = text.to_owned();
        if self.remove_extra_spaces {
            text = text.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
        }
        if self.dummy_prefix && !text.is_empty() {
            text.insert(0, ' ');
        }
        let text = text.replace(' ', "▁");
        // Spaces at the end are removed after they are written as `▁`. A `▁` of the text itself is removed with them.
        let end = if self.remove_extra_spaces { text.trim_end_matches(SPACE).len() } else { text.len() };
        text[..end].to_owned()
    }

    /// Encodes each stretch of text between special tokens as SentencePiece encodes a text.
    fn split(&self, text: &str, plain: bool, ids: &mut Vec<u32>) -> Result<()> {
        for part in self.specials.split(text, plain) {
            match part {
                Segment::Special(id) => ids.push(id),
                Segment::Text(text) => self.pieces.split(&self.normalized(text), ids)?,
            }
        }
        Ok(())
    }
}

impl Tokenizer for SentencePiece {
    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids: Vec<u32> = self.bos.into_iter().collect();
        self.split(text, false, &mut ids)?;
        Ok(ids)
    }

    fn encode_plain(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        self.split(text, true, &mut ids)?;
        Ok(ids)
    }

    fn merges(&self, text: &str, plain: bool) -> Result<Option<Vec<Stretch>>> {
        let special = |id| Stretch::token(Way::Special, id, self.label(id));
        let mut stretches: Vec<_> = self.bos.filter(|_| !plain).into_iter().map(special).collect();
        for part in self.specials.split(text, plain) {
            stretches.push(match part {
                Segment::Special(id) => special(id),
                Segment::Text(text) => {
                    self.pieces.stretch(&self.normalized(text), |part| part.replace(SPACE, " "))?
                }
            });
        }
        Ok(Some(stretches))
    }

    fn specials(&self) -> Vec<String> {
        self.specials.names()
    }

    fn bos(&self) -> Option<u32> {
        self.bos
    }

    fn ends(&self) -> Vec<u32> {
        self.eos.into_iter().collect()
    }

    fn vocab_size(&self) -> usize {
        self.pieces.len()
    }

    fn label(&self, id: u32) -> String {
        let Some(piece) = self.pieces.get(id) else { return label::unknown(id) };
        match piece.kind {
            Kind::Byte(byte) => label::of_bytes(&[byte]),
            Kind::Special => label::of_bytes(&piece.bytes),
            Kind::Text | Kind::User | Kind::Unused => label::of_bytes(&piece.bytes).replace(SPACE, " "),
        }
    }

    fn stream(&self) -> TextStream<'_> {
        TextStream::new(Stream { tokenizer: self, beginning: self.dummy_prefix })
    }
}

/// SentencePiece's `Decode`, piece by piece.
struct Stream<'a> {
    tokenizer: &'a SentencePiece,
    /// Whether no text came yet. Then a space at the beginning was added by encoding.
    beginning: bool,
}

impl TokenBytes for Stream<'_> {
    fn bytes(&mut self, id: u32) -> Vec<u8> {
        let Some(piece) = self.tokenizer.pieces.get(id) else { return Vec::new() };
        let bytes = match piece.kind {
            Kind::Special => return Vec::new(),
            Kind::Byte(byte) => vec![byte],
            Kind::Text | Kind::User | Kind::Unused => spaced(&piece.bytes),
        };
        let beginning = std::mem::take(&mut self.beginning);
        bytes.strip_prefix(b" ").filter(|_| beginning).unwrap_or(&bytes).to_vec()
    }
}

/// The texts and scores of all pieces.
#[cfg(test)]
pub(super) fn pieces(bytes: &[u8]) -> (Vec<String>, Vec<f32>) {
    let pieces = read(bytes).map_err(|(_, found)| found).unwrap_or_else(|found| panic!("{found}")).0;
    let text = |piece: &Piece| String::from_utf8_lossy(&piece.bytes).into_owned();
    pieces.iter().map(|(piece, _)| (text(piece), piece.score)).unzip()
}

#[cfg(test)]
mod tests;
