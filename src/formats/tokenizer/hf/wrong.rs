//! Errors in a tokenizer.json.

/// The description of an invalid file: expected, found.
pub(super) type Wrong = (String, String);
