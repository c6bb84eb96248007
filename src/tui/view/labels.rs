//! What stands beside an index: the token it belongs to.

use llama_trace_core::trace::{Axis, PassDims};

use super::super::app::App;
use super::super::text;

/// Token texts are measured for this many indices at most; longer ones are cut to the widest of those.
const MEASURED: usize = 256;

/// The token that `index` on `axis` stands for, made visible; none where the axis has no tokens.
pub fn text_of(app: &App, axis: Axis, index: usize) -> Option<String> {
    let raw = match axis {
        Axis::Token => app.token(index).map(|token| token.text.clone()),
        Axis::Key => app.position(index).map(|token| token.text.clone()),
        Axis::Vocab => u32::try_from(index).ok().and_then(|id| app.texts.get(&id).cloned()),
        Axis::One => {
            let drawn = app.outline().passes.get(app.place().pass)?.sampled.as_ref();
            drawn.map(|token| token.text.clone())
        }
        _ => None,
    };
    raw.map(|raw| text::visible(&raw))
}

/// Whether an axis has tokens beside its indices.
pub fn has_text(axis: Axis) -> bool {
    matches!(axis, Axis::Token | Axis::Key | Axis::Vocab | Axis::One)
}

/// The columns that the largest index of an axis takes.
pub fn digits(length: usize) -> usize {
    length.saturating_sub(1).max(1).ilog10() as usize + 1
}

/// The columns that the widest token text of an axis takes, up to `most`.
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

/// One of an axis, and which there are, counted from 0: "head 2 of 0-3". The only one stands alone.
pub fn one_of(name: &str, at: usize, length: usize) -> String {
    match length {
        0 | 1 => format!("{name} {at}"),
        _ => format!("{name} {at} of 0-{}", length - 1),
    }
}

/// Where a row of this pass stands among the tokens of all passes: " (position 18)". In a pass that begins with the
/// first token both numbers are one.
pub fn position_of(app: &App, row: usize) -> String {
    position_in(app.dims(), row)
}

/// The same of a pass of `dims`.
pub fn position_in(dims: PassDims, row: usize) -> String {
    if dims.start > 0 { format!(" (position {})", dims.start + row) } else { String::new() }
}

/// What an axis is called on the screen.
pub fn name(axis: Axis) -> &'static str {
    match axis {
        Axis::KvHead => "kv head",
        Axis::HeadDim => "head dim",
        axis => axis.name(),
    }
}

/// The token of the vocabulary that stands next in the prompt, or that was drawn here or picked, and which of these.
pub fn came_next(app: &App) -> (Option<u32>, &'static str) {
    let Some(pass) = app.outline().passes.get(app.place().pass) else { return (None, "drawn") };
    let row = app.selected.get(Axis::Token, pass.tokens.len());
    match pass.tokens.get(row + 1) {
        Some(next) if app.place().step.axes().contains(&Axis::Token) => (Some(next.id), "came next"),
        _ => {
            let picked = app.outline().fork.is_some_and(|fork| fork.pass == app.place().pass);
            (pass.sampled.as_ref().map(|token| token.id), if picked { "picked" } else { "drawn" })
        }
    }
}
