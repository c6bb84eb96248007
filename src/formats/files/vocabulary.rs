//! Where a checkpoint has its vocabulary: what a checkpoint tells, and a tokenizer is made from.

use std::path::PathBuf;

/// Where the tokenizer of a checkpoint is, if it is anywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vocabulary {
    /// In the program: the text of a tokenizer.json, and what that is called in messages.
    BuiltIn(&'static str, &'static str),
    /// Inside the GGUF file of the weights.
    Inside(PathBuf),
    /// In the first of these files that is there, the one most particular to the checkpoint first.
    Beside(Vec<PathBuf>),
}
