//! What a tokenizer.json may have wrong.

/// What is wrong with a file: expected, found.
pub(super) type Wrong = (String, String);
