//! The location of a checkpoint's vocabulary. A checkpoint provides it, and a tokenizer is loaded from it.

use std::path::PathBuf;

/// The location of a checkpoint's tokenizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vocabulary {
    /// Inside the program: the text of a tokenizer.json, and its name in messages.
    BuiltIn(&'static str, &'static str),
    /// Inside the GGUF file of the weights.
    Inside(PathBuf),
    /// The first existing file in this list, which begins with the most specific one.
    Beside(Vec<PathBuf>),
}
