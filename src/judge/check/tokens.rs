//! The tokenizer: text to ids and back.

use super::sample::Random;
use super::{Check, Plan, Sample};
use llama_trace_core::error::Result;
use llama_trace_core::stop;
use llama_trace_core::trace::{Address, Site, Stage, Step, Subject, Weight};
use llama_trace_engine::model::Model;
use llama_trace_formats::tokenizer::Tokenizer;

/// Number of vocabulary tokens that a sample tests.
const TOKENS: usize = 4096;

/// The replacement character that a decoder writes for invalid UTF-8.
const NO_TEXT: char = '\u{fffd}';

/// Decodes ids to a text and encodes this text again. If the ids came from a text, as those of a prompt, the result
/// must be the same ids. Arbitrary ids need not come back, because several id sequences can spell one text. For
/// arbitrary ids, and for each token of the vocabulary alone, only the text must come back.
///
/// Special tokens, which have no text, and tokens that are part of a character are skipped.
///
/// # Errors
/// [`llama_trace_core::error::Error::Interrupted`] if the process was asked to stop.
pub(super) fn check(plan: &Plan<'_>, model: &Model) -> Result<Check> {
    let Some(tokenizer) = plan.tokenizer else {
        return Ok(Check::skipped("tokenizer", "the model has no tokenizer"));
    };
    let mut check = Check::new("tokenizer", 0.0);
    let mut tried = prompt(plan, tokenizer, &mut check);
    let vocab = tokenizer.vocab_size().min(model.config.vocab);
    let mut random = Random::new(match plan.sample {
        Sample::All => 0,
        Sample::Seeded(seed) => seed,
    });
    let all = plan.sample == Sample::All || vocab <= TOKENS;
    for i in 0..if all { vocab } else { TOKENS } {
        stop::check()?;
        let id = if all { i } else { random.below(vocab) };
        let Some(text) = text(tokenizer, &[id as u32]) else { continue };
        // A vocabulary may lack tokens for the single characters of a token. Then the token's text cannot be encoded.
        let Ok(ids) = tokenizer.encode_plain(&text) else { continue };
        let Some(again) = self::text(tokenizer, &ids) else { continue };
        tried = true;
        check.differ(usize::from(again != text), || Address {
            subject: Weight::from_name("tok_embeddings").map(Subject::Weight),
            index: vec![('v', id)],
            ..Address::default()
        });
    }
    if !tried {
        return Ok(Check::skipped("tokenizer", "none of the tested tokens has a text that can be encoded"));
    }
    Ok(check)
}

/// Tests the prompt. Returns whether there was something to test.
fn prompt(plan: &Plan<'_>, tokenizer: &dyn Tokenizer, check: &mut Check) -> bool {
    let all = plan.split.as_ref().unwrap_or(&plan.ids);
    let Some(text) = text(tokenizer, all) else { return false };
    let Ok(ids) = tokenizer.encode(&text) else {
        // A text that was encoded once must encode again.
        check.differ(usize::from(plan.split.is_some()), || token(0));
        return plan.split.is_some();
    };
    if plan.split.is_some() {
        let differs = |at: &usize| ids.get(*at) != all.get(*at);
        let different: Vec<usize> = (0..ids.len().max(all.len())).filter(differs).collect();
        check.differ(different.len(), || token(different[0].min(plan.ids.len() - 1)));
    } else {
        check.differ(usize::from(decoded(tokenizer, &ids) != text), || token(0));
    }
    true
}

/// The text of `ids`. The beginning-of-text token is put before them, if the tokenizer adds one, because a decoder may
/// remove the first space after it. `None` if one of the other ids has no text of its own, or if all ids together have
/// no text.
fn text(tokenizer: &dyn Tokenizer, ids: &[u32]) -> Option<String> {
    let (mut stream, mut text) = (tokenizer.stream(), String::new());
    let own = ids.iter().copied().skip(usize::from(ids.first().copied() == tokenizer.bos()));
    tokenizer.bos().into_iter().for_each(|id| text += &stream.push(id));
    for id in own {
        let piece = stream.piece(id);
        if piece.bytes.is_empty() {
            return None;
        }
        text += &piece.text;
    }
    text += &stream.finish();
    (!text.is_empty() && !text.contains(NO_TEXT)).then_some(text)
}

/// The text of `ids` that came from a text. A single id may have no text: the space that the tokenizer puts before
/// every text and removes again.
fn decoded(tokenizer: &dyn Tokenizer, ids: &[u32]) -> String {
    let mut stream = tokenizer.stream();
    let pieces: String = ids.iter().map(|&id| stream.push(id)).collect();
    pieces + &stream.finish()
}

/// Token `t` of the prompt.
fn token(t: usize) -> Address {
    Address::of(Site::once(0, Stage::Tokens), Step::Stage(Stage::Tokens), &[t])
}
