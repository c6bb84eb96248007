//! Conversion of text to token ids and back.
//!
//! [`find`] loads the tokenizer of a checkpoint. All tokenizers implement one trait, so the rest of the program does
//! not depend on the kind of file.

mod bounded;
mod bpe;
mod gguf;
mod hf;
mod label;
mod llama2c;
mod merges;
mod quoted;
mod sentencepiece;
mod special;
mod spm;
mod tiktoken;
mod utf8;

use std::path::Path;

use crate::files::{Beside, Vocabulary, exists, folder_of, magic, read_text};
use llama_trace_core::config::{ModelConfig, RopeScaling};
use llama_trace_core::error::{Error, Result};

use bounded::Bounded;
pub use merges::{Merge, Priority, Stretch, Way};
pub use quoted::Quoted;
use utf8::Utf8Stream;

/// A vocabulary with the rules to split text into its tokens.
pub trait Tokenizer: Send + Sync {
    /// The ids of `text`, with the beginning-of-text token first if the checkpoint's rules add one. The name of a
    /// special token in the text is encoded as that token.
    ///
    /// # Errors
    /// Returns [`llama_trace_core::error::Error::Prompt`] if a part of the text has no token.
    fn encode(&self, text: &str) -> Result<Vec<u32>>;

    /// The ids of a text with written-out special tokens, as a chat template produces it. The names are encoded as
    /// those tokens, and no beginning-of-text token is added. A tokenizer that does not search for special tokens
    /// treats their names as ordinary text.
    ///
    /// # Errors
    /// The errors of [`Tokenizer::encode`].
    fn encode_marked(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = self.encode(text)?;
        if self.bos().is_some() && ids.first().copied() == self.bos() {
            ids.remove(0);
        }
        Ok(ids)
    }

    /// The ids of `text` alone. No token is added, and the name of a special token is ordinary text.
    ///
    /// # Errors
    /// The errors of [`Tokenizer::encode`].
    fn encode_plain(&self, text: &str) -> Result<Vec<u32>>;

    /// The names that [`Tokenizer::encode_marked`] encodes as special tokens and [`Tokenizer::encode_plain`] as text.
    fn specials(&self) -> Vec<String> {
        Vec::new()
    }

    /// The merges that lead to the result of [`Tokenizer::encode`], or if `plain` is set, of
    /// [`Tokenizer::encode_plain`]. The ids of all stretches in order are that result. `None` if this kind of tokenizer
    /// does not merge or cannot report merges.
    ///
    /// # Errors
    /// The errors of [`Tokenizer::encode`].
    fn merges(&self, text: &str, plain: bool) -> Result<Option<Vec<Stretch>>> {
        let _ = (text, plain);
        Ok(None)
    }

    /// The beginning-of-text token, if [`Tokenizer::encode`] adds one.
    fn bos(&self) -> Option<u32>;

    /// The tokens that end a text by the tokenizer's own rules, for checkpoints that define none.
    fn ends(&self) -> Vec<u32> {
        Vec::new()
    }

    /// The number of ids, including special ones.
    fn vocab_size(&self) -> usize;

    /// One token as text, for the label of an axis. A leading space is kept. Special tokens are shown by name, and
    /// bytes that are not UTF-8 by themselves as `<0xE2>`. An id outside the vocabulary is shown as `#id`.
    fn label(&self, id: u32) -> String;

    /// The size in bytes of the longest label.
    fn longest(&self) -> usize {
        (0..self.vocab_size() as u32).map(|id| self.label(id).len()).max().unwrap_or(0)
    }

    /// A note about how its files are read, if other programs read them differently.
    fn note(&self) -> Option<&str> {
        None
    }

    /// Returns whether a text was abandoned because it took too long. The work on it continues until the process ends.
    fn late(&self) -> bool {
        false
    }

    /// A decoder that turns ids into text incrementally.
    fn stream(&self) -> TextStream<'_>;
}

/// The decoder state of one kind of tokenizer for one text.
trait TokenBytes {
    /// The bytes that `id` adds; empty for a special token. They need not be whole characters.
    fn bytes(&mut self, id: u32) -> Vec<u8>;
}

/// The contribution of a token to a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Its bytes, which need not be whole characters or valid UTF-8.
    pub bytes: Vec<u8>,
    /// The characters that it completes.
    pub text: String,
}

impl Piece {
    /// Appends the contribution of the next token.
    pub fn push(&mut self, next: &Self) {
        self.bytes.extend_from_slice(&next.bytes);
        self.text.push_str(&next.text);
    }
}

/// The maximum size in bytes of a text that is split into tokens: a million tokens of common text. In the worst case,
/// when every character is a separate part, splitting takes about 350 times as much memory.
pub const MAX_TEXT: usize = 4 << 20;

/// Checks that a text of this size may be split into tokens, which takes hundreds of times as much memory. A model with
/// a context of `context` tokens cannot read a text that is longer than `context` times the longest token. Without a
/// context the limit is [`MAX_TEXT`].
///
/// # Errors
/// Returns [`llama_trace_core::error::Error::Prompt`] if the text is too long.
pub fn check_length(tokenizer: &dyn Tokenizer, bytes: usize, context: Option<usize>) -> Result<()> {
    let wrong = |what: &str, expected: String| {
        Error::prompt(what).expected(expected).found(format!("{bytes} bytes")).next("give a shorter text")
    };
    // Every token has at least one byte, so a text of at most `context` bytes always fits. The longest token is
    // computed only for longer texts.
    if let Some(context) = context.filter(|&context| context < bytes) {
        let longest = tokenizer.longest();
        let most = context.saturating_mul(longest);
        if bytes > most {
            let expected =
                format!("at most {context} tokens of at most {longest} bytes, so at most {most} bytes");
            return Err(wrong("the text is longer than the model's context", expected));
        }
    }
    if bytes > MAX_TEXT {
        let what = "the text is longer than the limit for tokenization";
        return Err(wrong(what, format!("at most {MAX_TEXT} bytes")));
    }
    Ok(())
}

/// A decoder for one text, token by token.
pub struct TextStream<'a> {
    tokens: Box<dyn TokenBytes + 'a>,
    utf8: Utf8Stream,
}

impl<'a> TextStream<'a> {
    fn new(tokens: impl TokenBytes + 'a) -> Self {
        Self { tokens: Box::new(tokens), utf8: Utf8Stream::default() }
    }

    /// The contribution of `id`. Both parts may be empty: special tokens add nothing. If a token ends inside a UTF-8
    /// character, the text is delayed until the character is complete.
    pub fn piece(&mut self, id: u32) -> Piece {
        let bytes = self.tokens.bytes(id);
        let text = self.utf8.push(&bytes);
        Piece { bytes, text }
    }

    /// The text that `id` adds: [`Self::piece`] without its bytes.
    pub fn push(&mut self, id: u32) -> String {
        self.piece(id).text
    }

    /// The text that is still delayed at the end, with the replacement character for an incomplete character.
    pub fn finish(&mut self) -> String {
        self.utf8.finish()
    }
}

/// The tokenizer of a model with this configuration: the file at `path`, or else the one in its `vocabulary`. `None` if
/// there is none; the model then accepts only ids. A text that takes too long is abandoned with an [`Error::Model`].
///
/// # Errors
/// Returns [`llama_trace_core::error::Error::Model`] if an existing file cannot be read as a tokenizer, or does not fit
/// the model's vocabulary.
pub fn find(
    vocabulary: &Vocabulary,
    config: &ModelConfig,
    path: Option<&Path>,
) -> Result<Option<Box<dyn Tokenizer>>> {
    let read = |path: &Path| Ok((read(path, Some(config))?, path.display().to_string()));
    let found = match (path, vocabulary) {
        (Some(path), _) => Some(read(path)?),
        (None, Vocabulary::BuiltIn(text, place)) => {
            Some((Box::new(hf::parse(text, place, None)?) as Box<dyn Tokenizer>, (*place).into()))
        }
        (None, Vocabulary::Inside(file)) => {
            let place = file.display().to_string();
            let tokenizer = gguf::parse(&crate::files::map(file)?, &place)?;
            let tokenizer =
                tokenizer.map(|tokenizer| fitting(tokenizer, Some(config), &place)).transpose()?;
            tokenizer.map(|tokenizer| (tokenizer, place))
        }
        (None, Vocabulary::Beside(files)) => {
            files.iter().find(|path| exists(path)).map(|path| read(path)).transpose()?
        }
    };
    Ok(found.map(|(tokenizer, place)| bounded(tokenizer, &place)))
}

/// The tokenizer in the file at `path`, without a model.
///
/// # Errors
/// Returns [`llama_trace_core::error::Error::Model`] if the file cannot be read as a tokenizer. As with [`find`], a
/// text that takes too long is abandoned.
pub fn open(path: &Path) -> Result<Box<dyn Tokenizer>> {
    Ok(bounded(read(path, None)?, &path.display().to_string()))
}

/// The maximum size in bytes of a tokenizer.json. Llama 3's has 9 MB.
const MAX_JSON: u64 = 64 << 20;
/// The maximum number of tokens in a vocabulary, which is also the maximum number of rows in an embedding table.
const MAX_VOCAB: usize = 1 << 20;

/// The settings of the files beside the tokenizer's file at `path`, if this file has a name that transformers uses.
fn beside(path: &Path) -> Result<Option<Beside>> {
    match path.file_name().and_then(|name| name.to_str()) {
        Some("tokenizer.json" | "tokenizer.model") => Beside::read(folder_of(path)),
        _ => Ok(None),
    }
}

/// Reads a tokenizer file of any kind, recognised by its contents, for `model` if there is one.
fn read(path: &Path, model: Option<&ModelConfig>) -> Result<Box<dyn Tokenizer>> {
    let bytes = crate::files::map(path)?;
    let place = path.display().to_string();
    let beside = beside(path)?;
    if tiktoken::recognise(&bytes) {
        if let Some(beside) = beside.filter(Beside::names_tokens) {
            return Ok(Box::new(tiktoken::parse_beside(&bytes, &beside, &place)?));
        }
        // Llama 3 and 3.1 have the same file. A model that scales RoPE is 3.1 or later.
        let llama_3 = model.is_some_and(|model| model.rope_scaling == RopeScaling::None);
        return fitting(Box::new(tiktoken::parse(&bytes, llama_3, &place)?), model, &place);
    }
    if sentencepiece::recognise(&bytes) {
        // The file alone must fit the model. Added tokens may exceed the model's rows.
        let alone = fitting(Box::new(sentencepiece::parse(&bytes, &place)?), model, &place)?;
        return match beside {
            Some(beside) => Ok(Box::new(sentencepiece::parse_beside(&bytes, &beside, &place)?)),
            None => Ok(alone),
        };
    }
    match magic::recognise(&bytes) {
        Some("a GGUF file") => {
            let tokenizer = gguf::parse(&bytes, &place)?.ok_or_else(|| {
                Error::model("the GGUF file has no vocabulary")
                    .at(&place)
                    .expected("`tokenizer.ggml.model` in its metadata")
                    .next("give another file with --tokenizer, or run the model on token ids")
            })?;
            fitting(tokenizer, model, &place)
        }
        Some("a JSON file") => Ok(Box::new(hf::parse(&read_text(path, MAX_JSON)?, &place, beside.as_ref())?)),
        None => Ok(Box::new(llama2c::parse(&bytes, model.map(|model| model.vocab), &place)?)),
        Some(kind) => Err(Error::model(format!("the tokenizer is {kind}, which is not supported"))
            .at(place)
            .expected("a tokenizer.json, a tokenizer.model, a GGUF file, or a llama2.c tokenizer.bin")
            .next("give another file with --tokenizer, or run the model on token ids")),
    }
}

/// `tokenizer`, found at `place`, with a time limit. Every tokenizer gets one.
fn bounded(tokenizer: Box<dyn Tokenizer>, place: &str) -> Box<dyn Tokenizer> {
    Box::new(Bounded::new(tokenizer, place))
}

/// Checks that every id of `tokenizer` is in the model. There may be fewer ids than rows in the model, because
/// embedding tables are often padded.
fn fitting(
    tokenizer: Box<dyn Tokenizer>,
    model: Option<&ModelConfig>,
    place: &str,
) -> Result<Box<dyn Tokenizer>> {
    if let Some(model) = model.filter(|model| model.vocab < tokenizer.vocab_size()) {
        return Err(Error::model("the tokenizer has more tokens than the model")
            .at(place)
            .expected(format!("at most {} tokens, as the model has", model.vocab))
            .found(format!("{} tokens", tokenizer.vocab_size()))
            .next("give the tokenizer that belongs to the model with --tokenizer"));
    }
    Ok(tokenizer)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// The folder of real files beside the project. `None`, with a message, if it does not exist.
    pub(super) fn data() -> Option<PathBuf> {
        let folder = std::env::var_os("LLAMA_TRACE_DATA").map_or_else(
            || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"),
            PathBuf::from,
        );
        if !folder.is_dir() {
            eprintln!("skipped: no folder {}", folder.display());
            return None;
        }
        Some(folder)
    }

    pub(super) fn decode(tokenizer: &dyn Tokenizer, ids: &[u32]) -> String {
        let mut stream = tokenizer.stream();
        let mut text: String = ids.iter().map(|&id| stream.push(id)).collect();
        text += &stream.finish();
        text
    }

    #[test]
    fn tokenizers_are_recognised_by_their_contents() {
        let Some(folder) = data() else { return };
        let size = |name: &str| open(&folder.join(name)).unwrap().vocab_size();
        assert_eq!(size("llama3/tokenizer.model"), 128_256);
        assert_eq!(size("llama2c/tokenizer.model"), 32_000);
        assert_eq!(size("llama2c/tokenizer.bin"), 32_000);
        assert_eq!(size("llama.cpp-vocab/ggml-vocab-llama-spm.gguf"), 32_000);
        assert_eq!(size("stories260K/stories260K.gguf"), 512);
        assert_eq!(size("tiny-llama-float/tokenizer.json"), 32);
    }

    /// llama.cpp's test strings, and the ids that a tokenizer of this `kind` gives them.
    pub(super) fn hard_strings(folder: &Path, kind: &str) -> Vec<(String, Vec<u32>)> {
        let read = |ending: &str| {
            let path = folder.join(format!("llama.cpp-vocab/ggml-vocab-llama-{kind}.gguf.{ending}"));
            std::fs::read_to_string(path).unwrap()
        };
        let (inputs, outputs) = (read("inp"), read("out"));
        let ids = outputs.lines().map(|ids| ids.split_whitespace().map(|id| id.parse().unwrap()).collect());
        let strings: Vec<_> = inputs.split("\n__ggml_vocab_test__\n").map(String::from).zip(ids).collect();
        assert_eq!(strings.len(), 46);
        strings
    }

    /// The ids that merging reaches. Checks that there are at most as many merged parts as tokens.
    pub(super) fn merged(tokenizer: &dyn Tokenizer, text: &str, plain: bool) -> Vec<u32> {
        let stretches = tokenizer.merges(text, plain).unwrap().unwrap();
        for stretch in &stretches {
            assert!(stretch.after(stretch.merges.len()).len() <= stretch.ids.len(), "{stretch:?}");
            assert!(stretch.way == Way::Merged || stretch.merges.is_empty(), "{stretch:?}");
        }
        stretches.into_iter().flat_map(|stretch| stretch.ids).collect()
    }
}
