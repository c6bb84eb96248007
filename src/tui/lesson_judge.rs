//! Judges an answer once the values that it is compared with are there.

use llama_trace_core::lesson::{Evaluation, Expression, Hint, Question, Right, Tolerance, Unfinished, Value};
use llama_trace_core::trace::Site;

use super::lesson_state::{Given, Reply};

/// The stages that the answer and the hints of a question read.
///
/// # Errors
/// The stages that are needed first, or a message.
pub(super) fn reads(question: &Question, run: &mut Evaluation<'_>) -> Result<Vec<Site>, Unfinished> {
    let hints = question.hints.iter().filter_map(|hint| hint.to.as_ref());
    for right in std::iter::once(&question.answer).chain(hints) {
        match right {
            Right::Indices(list) => {
                for (_, text) in list {
                    value(text, run)?;
                }
            }
            Right::Step(_) => {}
            Right::Value { expression, .. } => drop(value(expression, run)?),
        }
    }
    Ok(run.reads().collect())
}

/// The reply to an answer.
///
/// # Errors
/// The stages that are needed first, or a message.
pub(super) fn judge(
    question: &Question,
    given: &Given,
    run: &mut Evaluation<'_>,
) -> Result<Reply, Unfinished> {
    if agrees(&question.answer, given, run)? {
        return Ok(Reply { text: String::new(), right: true });
    }
    for hint in &question.hints {
        let Hint { to, text } = hint;
        let fits = match to {
            Some(to) => agrees(to, given, run)?,
            None => true,
        };
        if fits {
            return Ok(Reply { text: text.clone(), right: false });
        }
    }
    Ok(Reply { text: "Not this one. Try again, or press x to see the answer.".to_owned(), right: false })
}

fn value(text: &str, run: &mut Evaluation<'_>) -> Result<Value, Unfinished> {
    run.value(&Expression::parse(text).map_err(Unfinished::Wrong)?)
}

fn agrees(right: &Right, given: &Given, run: &mut Evaluation<'_>) -> Result<bool, Unfinished> {
    match (right, given) {
        (Right::Indices(list), Given::Cursor(at)) => {
            let mut all = true;
            for (letter, text) in list {
                let index = value(text, run)?.number().map_err(Unfinished::Wrong)?;
                all &= at.iter().any(|(own, at)| own == letter && *at as f64 == index);
            }
            Ok(all)
        }
        (Right::Step(name), Given::Step(names)) => Ok(names.contains(name)),
        (Right::Value { expression, tolerance }, Given::Typed(text)) => Ok(match value(expression, run)? {
            Value::Number(number) => number_agrees(number, *tolerance, text),
            Value::Shape(shape) => shape_of(text).is_some_and(|given| given == shape),
            Value::Text(wanted) => wanted.trim() == text.trim(),
        }),
        _ => Ok(false),
    }
}

/// The lengths in `(4, 10, 10)`.
fn shape_of(text: &str) -> Option<Vec<usize>> {
    let inside = text.trim().trim_start_matches(['(', '[']).trim_end_matches([')', ']']);
    let parts = inside.split([',', '×', 'x', ' ']).map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| part.parse().ok()).collect()
}

fn number_agrees(number: f64, tolerance: Option<Tolerance>, text: &str) -> bool {
    let text = text.trim().replace('−', "-").replace(',', ".");
    let Ok(given) = text.parse::<f64>() else { return false };
    let mantissa = text.split(['e', 'E']).next().unwrap_or_default();
    let digits = mantissa.split_once('.').map_or(0, |(_, fraction)| fraction.len());
    let allowed = match tolerance {
        Some(Tolerance::Absolute(allowed)) => allowed,
        Some(Tolerance::Relative(share)) => share * number.abs(),
        None => 0.5 * 10_f64.powi(-(digits as i32)) * (1.0 + 1e-9),
    };
    (given - number).abs() <= allowed
}
