//! Text to token ids and back.
//!
//! [`find`] picks the tokenizer that belongs to a checkpoint. Everything else here is one trait, so that
//! the rest of the program never asks what kind of file it came from.

mod hf;
mod label;
mod llama2c;
mod spm;
mod utf8;

use std::path::{Path, PathBuf};

use crate::checkpoint::{Checkpoint, Format, files, magic, map};
use crate::error::{Error, Result};

/// A vocabulary with the rules to split text into its tokens.
pub trait Tokenizer: Send + Sync {
    /// The ids of `text`, beginning-of-text token first where the checkpoint's own rules add one.
    ///
    /// # Errors
    /// [`crate::error::Error::Prompt`] where the text has a part that no token stands for.
    fn encode(&self, text: &str) -> Result<Vec<u32>>;

    /// The beginning-of-text token, where [`Tokenizer::encode`] adds one.
    fn bos(&self) -> Option<u32>;

    /// Number of ids, special ones included.
    fn vocab_size(&self) -> usize;

    /// One token as text to label an axis with: a leading space is kept, special tokens by their name,
    /// bytes that are no UTF-8 on their own as `<0xE2>`; for an id outside the vocabulary `#id`.
    fn label(&self, id: u32) -> String;

    /// A decoder that turns ids into text as they come.
    fn stream(&self) -> Box<dyn TextStream + '_>;
}

/// Decodes one text, token by token.
pub trait TextStream {
    /// The text that `id` adds, which may be empty: special tokens have none, and a token that ends in
    /// the middle of a UTF-8 character waits for the rest of it.
    fn push(&mut self, id: u32) -> String;

    /// What is still held back at the end, with the replacement character for an incomplete one.
    fn finish(&mut self) -> String;
}

/// The tokenizer for `checkpoint`: the file at `path`, or else the one that came with the checkpoint
/// (tokenizer.json in a Hugging Face directory; `tokenizer.bin`, `tok<V>.bin` or `<model>.tokenizer.bin`
/// beside a `.bin`). None where there is none to be found; such a model takes ids only.
///
/// # Errors
/// [`crate::error::Error::Model`] where a file is there and cannot be read as a tokenizer, or does not
/// fit the checkpoint's vocabulary.
pub fn find(checkpoint: &Checkpoint, path: Option<&Path>) -> Result<Option<Box<dyn Tokenizer>>> {
    let path = match path {
        Some(path) => path.to_path_buf(),
        None => match beside(checkpoint) {
            Some(path) => path,
            None => return Ok(None),
        },
    };
    read(&path, checkpoint.config.vocab).map(Some)
}

/// The largest tokenizer.json that is read. Llama 3's has 9 MB.
const MAX_JSON: u64 = 64 << 20;

/// The tokenizer file that came with `checkpoint`, the one most particular to it first.
fn beside(checkpoint: &Checkpoint) -> Option<PathBuf> {
    let path = checkpoint.path.as_ref()?;
    let candidates = match checkpoint.format {
        Format::HuggingFace { .. } => vec![path.join("tokenizer.json")],
        Format::Meta { .. } => Vec::new(),
        Format::Llama2c { .. } => vec![
            path.with_extension("tokenizer.bin"),
            path.with_file_name(format!("tok{}.bin", checkpoint.config.vocab)),
            path.with_file_name("tokenizer.bin"),
        ],
    };
    candidates.into_iter().find(|path| path.exists())
}

/// Reads a tokenizer file of whatever kind its contents are, for a model with `vocab` ids.
fn read(path: &Path, vocab: usize) -> Result<Box<dyn Tokenizer>> {
    let bytes = map::map(path)?;
    let place = path.display().to_string();
    match magic::recognise(&bytes) {
        Some("a JSON file") => Ok(Box::new(hf::parse(&files::read_text(path, MAX_JSON)?, &place)?)),
        None => Ok(Box::new(llama2c::parse(&bytes, vocab, &place)?)),
        Some(kind) => Err(Error::model(format!("the tokenizer is {kind}, which is not read here"))
            .at(place)
            .expected("a tokenizer.json, or a llama2.c tokenizer.bin")
            .next("give another file with --tokenizer, or run the model on token ids")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint;

    /// The folder of real files that lies beside the project; none, said aloud, where there is none.
    pub(super) fn data() -> Option<PathBuf> {
        let folder = std::env::var_os("LLAMA_TRACE_DATA")
            .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data"), PathBuf::from);
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
    fn tokenizers_are_found_beside_their_models() {
        let Some(folder) = data() else { return };
        let model = checkpoint::open(Some(&folder.join("stories260K/stories260K.bin"))).unwrap();
        let tokenizer = find(&model, None).unwrap().unwrap();
        assert_eq!((tokenizer.vocab_size(), tokenizer.bos()), (512, Some(1)));
        let model = checkpoint::open(Some(&folder.join("tiny-llama-float"))).unwrap();
        assert_eq!(find(&model, None).unwrap().unwrap().vocab_size(), 32);
    }

    #[test]
    fn a_tokenizer_that_does_not_fit_is_an_error() {
        let Some(folder) = data() else { return };
        let model = checkpoint::open(Some(&folder.join("stories260K/stories260K.bin"))).unwrap();
        let message = |name: &str| find(&model, Some(&folder.join(name))).err().unwrap().to_string();
        assert!(message("llama2c/tokenizer.bin").contains("exactly 512 tokens"));
        assert!(message("llama2c/tokenizer.model").contains("SentencePiece"));
        assert!(message("llama3/tokenizer.model").contains("tiktoken"));
        assert!(message("stories260K/stories260K.gguf").contains("GGUF"));
        assert!(message("no/such/file").contains("cannot be opened"));
        assert!(message("llama3").contains("a directory"));
    }
}
