//! Text to token ids and back.
//!
//! [`find`] makes the tokenizer that belongs to a checkpoint. Everything else here is one trait, so that
//! the rest of the program never asks what kind of file it came from.

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
    /// The ids of `text`, beginning-of-text token first where the checkpoint's own rules add one. Where the
    /// text has the name of a special token, that token is meant.
    ///
    /// # Errors
    /// [`llama_trace_core::error::Error::Prompt`] where the text has a part that no token stands for.
    fn encode(&self, text: &str) -> Result<Vec<u32>>;

    /// The ids of a text that has its special tokens written out, as a chat template writes them: they are
    /// read as those tokens, and no beginning-of-text token is added. A tokenizer that does not look for
    /// special tokens in a text takes their names for text like any other.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    fn encode_marked(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = self.encode(text)?;
        if self.bos().is_some() && ids.first().copied() == self.bos() {
            ids.remove(0);
        }
        Ok(ids)
    }

    /// The ids of `text` alone: no token is added, and the name of a special token is text like any other.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    fn encode_plain(&self, text: &str) -> Result<Vec<u32>>;

    /// The names that [`Tokenizer::encode_marked`] reads as special tokens and
    /// [`Tokenizer::encode_plain`] as text.
    fn specials(&self) -> Vec<String> {
        Vec::new()
    }

    /// How merging arrives at what [`Tokenizer::encode`] gives, or where `plain` is set at what
    /// [`Tokenizer::encode_plain`] does: the ids of all stretches in order are those. None where the
    /// tokenizer is of a kind that merges nothing, or does not tell.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    fn merges(&self, text: &str, plain: bool) -> Result<Option<Vec<Stretch>>> {
        let _ = (text, plain);
        Ok(None)
    }

    /// The beginning-of-text token, where [`Tokenizer::encode`] adds one.
    fn bos(&self) -> Option<u32>;

    /// The tokens that end a text by the tokenizer's own rules, for checkpoints that name none.
    fn ends(&self) -> Vec<u32> {
        Vec::new()
    }

    /// Number of ids, special ones included.
    fn vocab_size(&self) -> usize;

    /// One token as text to label an axis with: a leading space is kept, special tokens by their name,
    /// bytes that are no UTF-8 on their own as `<0xE2>`; for an id outside the vocabulary `#id`.
    fn label(&self, id: u32) -> String;

    /// The bytes of the longest token's label.
    fn longest(&self) -> usize {
        (0..self.vocab_size() as u32).map(|id| self.label(id).len()).max().unwrap_or(0)
    }

    /// How its files are read, where other programs read them in another way.
    fn note(&self) -> Option<&str> {
        None
    }

    /// Whether a text was given up because it took too long; the work on it goes on until the process ends.
    fn late(&self) -> bool {
        false
    }

    /// A decoder that turns ids into text as they come.
    fn stream(&self) -> TextStream<'_>;
}

/// What each kind of tokenizer has of its own for decoding one text.
trait TokenBytes {
    /// The bytes that `id` adds, which are none for a special token. They need not be whole characters.
    fn bytes(&mut self, id: u32) -> Vec<u8>;
}

/// What a token adds to a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Its bytes, which need not be whole characters, nor UTF-8 at all.
    pub bytes: Vec<u8>,
    /// The characters that are complete with it.
    pub text: String,
}

impl Piece {
    /// Adds what the next token adds.
    pub fn push(&mut self, next: &Self) {
        self.bytes.extend_from_slice(&next.bytes);
        self.text.push_str(&next.text);
    }
}

/// The longest text that is split into tokens, in bytes: a million tokens of common text. The worst splitting, where
/// every character is a part of its own, takes about 350 times as much memory.
pub const MAX_TEXT: usize = 4 << 20;

/// Checks that a text of so many bytes may be split into tokens, which takes hundreds of times as much memory: a
/// model with a context of `context` tokens cannot read more than as many of its longest tokens, and nobody more
/// than [`MAX_TEXT`].
///
/// # Errors
/// [`llama_trace_core::error::Error::Prompt`] where it may not.
pub fn check_length(tokenizer: &dyn Tokenizer, bytes: usize, context: Option<usize>) -> Result<()> {
    let wrong = |what: &str, expected: String| {
        Error::prompt(what).expected(expected).found(format!("{bytes} bytes")).next("give a shorter text")
    };
    // Every token has a byte; only then is it worth looking for the longest.
    if let Some(context) = context.filter(|&context| context < bytes) {
        let longest = tokenizer.longest();
        let most = context.saturating_mul(longest);
        if bytes > most {
            let expected = format!("at most {context} tokens of at most {longest} bytes, so {most} bytes");
            return Err(wrong("the text is longer than the model's context", expected));
        }
    }
    if bytes > MAX_TEXT {
        let what = "the text is longer than any that is split into tokens";
        return Err(wrong(what, format!("at most {MAX_TEXT} bytes")));
    }
    Ok(())
}

/// Decodes one text, token by token.
pub struct TextStream<'a> {
    tokens: Box<dyn TokenBytes + 'a>,
    utf8: Utf8Stream,
}

impl<'a> TextStream<'a> {
    fn new(tokens: impl TokenBytes + 'a) -> Self {
        Self { tokens: Box::new(tokens), utf8: Utf8Stream::default() }
    }

    /// What `id` adds. Both parts may be empty: special tokens have none, and of a token that ends in the middle
    /// of a UTF-8 character the text waits for the rest of it.
    pub fn piece(&mut self, id: u32) -> Piece {
        let bytes = self.tokens.bytes(id);
        let text = self.utf8.push(&bytes);
        Piece { bytes, text }
    }

    /// The text that `id` adds: [`Self::piece`] without its bytes.
    pub fn push(&mut self, id: u32) -> String {
        self.piece(id).text
    }

    /// The text that is still held back at the end, with the replacement character for an incomplete one.
    pub fn finish(&mut self) -> String {
        self.utf8.finish()
    }
}

/// The tokenizer of a model with this configuration: the file at `path`, or else the one in its `vocabulary`. None
/// where there is none to be found; such a model takes ids only. A text that takes it too long is given up, with an
/// [`Error::Model`].
///
/// # Errors
/// [`llama_trace_core::error::Error::Model`] where a file is there and cannot be read as a tokenizer, or does not
/// fit the model's vocabulary.
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

/// The tokenizer in the file at `path`, for no model in particular.
///
/// # Errors
/// [`llama_trace_core::error::Error::Model`] where it cannot be read as a tokenizer. As with [`find`], a text may take it too long.
pub fn open(path: &Path) -> Result<Box<dyn Tokenizer>> {
    Ok(bounded(read(path, None)?, &path.display().to_string()))
}

/// The largest tokenizer.json that is read. Llama 3's has 9 MB.
const MAX_JSON: u64 = 64 << 20;
/// The most tokens that a vocabulary may have: as many as a model may have rows in its embedding table.
const MAX_VOCAB: usize = 1 << 20;

/// What the files beside the tokenizer's file at `path` say, where it has the name by which transformers finds it.
fn beside(path: &Path) -> Result<Option<Beside>> {
    match path.file_name().and_then(|name| name.to_str()) {
        Some("tokenizer.json" | "tokenizer.model") => Beside::read(folder_of(path)),
        _ => Ok(None),
    }
}

/// Reads a tokenizer file of whatever kind its contents are, for `model` where there is one.
fn read(path: &Path, model: Option<&ModelConfig>) -> Result<Box<dyn Tokenizer>> {
    let bytes = crate::files::map(path)?;
    let place = path.display().to_string();
    let beside = beside(path)?;
    if tiktoken::recognise(&bytes) {
        if let Some(beside) = beside.filter(Beside::names_tokens) {
            return Ok(Box::new(tiktoken::parse_beside(&bytes, &beside, &place)?));
        }
        // Llama 3 and 3.1 have the same file; the model that scales RoPE is 3.1 or later.
        let llama_3 = model.is_some_and(|model| model.rope_scaling == RopeScaling::None);
        return fitting(Box::new(tiktoken::parse(&bytes, llama_3, &place)?), model, &place);
    }
    if sentencepiece::recognise(&bytes) {
        // It alone must fit the model; tokens that are added to it may lie beyond the model's rows.
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
        Some(kind) => Err(Error::model(format!("the tokenizer is {kind}, which is not read here"))
            .at(place)
            .expected("a tokenizer.json, a tokenizer.model, a GGUF file, or a llama2.c tokenizer.bin")
            .next("give another file with --tokenizer, or run the model on token ids")),
    }
}

/// `tokenizer`, found at `place`, as it is handed out: none splits a text without a bound.
fn bounded(tokenizer: Box<dyn Tokenizer>, place: &str) -> Box<dyn Tokenizer> {
    Box::new(Bounded::new(tokenizer, place))
}

/// Checks that every id of `tokenizer` is one of the model's. It may have fewer: tables are padded.
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

    /// The folder of real files that lies beside the project; none, said aloud, where there is none.
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

    /// The hard strings of llama.cpp and the ids that `kind` of tokenizer gives them.
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

    /// The ids at which merging arrives, after checking that its parts come together to as many tokens.
    pub(super) fn merged(tokenizer: &dyn Tokenizer, text: &str, plain: bool) -> Vec<u32> {
        let stretches = tokenizer.merges(text, plain).unwrap().unwrap();
        for stretch in &stretches {
            assert!(stretch.after(stretch.merges.len()).len() <= stretch.ids.len(), "{stretch:?}");
            assert!(stretch.way == Way::Merged || stretch.merges.is_empty(), "{stretch:?}");
        }
        stretches.into_iter().flat_map(|stretch| stretch.ids).collect()
    }
}
