//! Labels of indices: the axis, the token and the position of an index.

use llama_trace_core::trace::{Axis, PassDims};

use super::super::app::App;
use super::super::text;

/// Maximum number of indices whose token texts are measured. A text that is wider than all measured ones is cut.
const MEASURED: usize = 256;

/// The text of the token at `index` on `axis`, made visible; none if the axis has no tokens.
pub fn text_of(app: &App, axis: Axis, index: usize) -> Option<String> {
    let raw = match axis {
        Axis::Token => app.token(index).map(|token| token.text.clone()),
        Axis::Key => app.position(index).map(|token| token.text.clone()),
        Axis::Vocab => u32::try_from(index).ok().and_then(|id| app.answers.text(id)).map(str::to_owned),
        Axis::One if app.hides_next() => None,
        Axis::One => {
            let drawn = app.outline().passes.get(app.place().pass)?.sampled.as_ref();
            drawn.map(|token| token.text.clone())
        }
        _ => None,
    };
    raw.map(|raw| text::visible(&raw))
}

/// Returns whether the indices of an axis stand for tokens.
pub fn has_text(axis: Axis) -> bool {
    matches!(axis, Axis::Token | Axis::Key | Axis::Vocab | Axis::One)
}

/// Columns of the largest index of an axis.
pub fn digits(length: usize) -> usize {
    length.saturating_sub(1).max(1).ilog10() as usize + 1
}

/// Columns of the widest token text of an axis, up to `most`.
pub fn text_width(app: &App, axis: Axis, length: usize, most: usize) -> usize {
    match axis {
        Axis::Vocab => most,
        axis if has_text(axis) => {
            let width = |index| text_of(app, axis, index).map_or(0, |text| text::width(&text));
            (0..length.min(MEASURED)).map(width).max().unwrap_or(0).clamp(4.min(most), most)
        }
        _ => 0,
    }
}

/// An index and the range of its axis: "head 2 of 0-3"; without the range if there is only one.
pub fn one_of(name: &str, at: usize, length: usize) -> String {
    match length {
        0 | 1 => format!("{name} {at}"),
        _ => format!("{name} {at} of 0-{}", length - 1),
    }
}

/// The position of a row of this pass: " (position 18)". Empty in the first pass, where row and position are equal.
pub fn position_of(app: &App, row: usize) -> String {
    position_in(app.dims(), row)
}

/// Like [`position_of`], for a pass of `dims`.
pub fn position_in(dims: PassDims, row: usize) -> String {
    if dims.start > 0 { format!(" (position {})", dims.start + row) } else { String::new() }
}

/// The name of an axis on the screen.
pub fn name(axis: Axis) -> &'static str {
    match axis {
        Axis::KvHead => "kv head",
        Axis::HeadDim => "head dim",
        axis => axis.name(),
    }
}

/// The next token and its origin: it follows in the prompt, was sampled, or was picked for a branch.
pub fn next_token(app: &App) -> (Option<u32>, &'static str) {
    let Some(pass) = app.outline().passes.get(app.place().pass) else { return (None, "sampled") };
    let row = app.cursor.selected.get(Axis::Token, pass.tokens.len());
    match pass.tokens.get(row + 1) {
        Some(next) if app.place().step.axes().contains(&Axis::Token) => (Some(next.id), "came next"),
        _ if app.hides_next() => (None, "sampled"),
        _ => {
            let picked = app.outline().fork.is_some_and(|fork| fork.pass == app.place().pass);
            (pass.sampled.as_ref().map(|token| token.id), if picked { "picked" } else { "sampled" })
        }
    }
}
