//! The token strip at the top: the tokens that were read so far, with the current one highlighted, and the token that
//! was sampled last.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::widgets::Widget;

use super::super::app::App;
use super::super::strip_values::StripValues;
use super::super::text;
use super::super::theme::{Depth, Span};
use super::paint::put;

/// The token strip.
#[derive(Debug)]
pub struct Tokens<'a>(pub &'a App);

/// Maximum columns of a token.
const LONGEST: usize = 16;
/// Columns of the words around the token that was sampled last.
const NEXT: usize = " → ".len() + " is next".len();

/// Marks after a token, by the size of its value.
const MARKS: [&str; 4] = ["░", "▒", "▓", "█"];
/// Minimum columns at which the legend of the marks is shown.
const WITH_LEGEND: u16 = 80;
/// Minimum columns at which the legend is in words.
const WITH_WORDS: u16 = 160;
/// Minimum columns at which the legend names attention.
const WITH_NAME: u16 = 100;

/// Number of thresholds that a value reaches.
fn level(carries: StripValues, value: f64) -> usize {
    carries.steps().iter().filter(|&&from| value >= from).count()
}

fn label(app: &App, position: usize) -> Option<String> {
    let token = app.position(position)?;
    Some(shown(&token.text))
}

fn shown(text: &str) -> String {
    text::cut(&text::visible(text), LONGEST)
}

/// The first position on a strip of this width. With it, the current token is in the left half, unless the tokens would
/// then end before the strip's right edge.
fn first(app: &App, width: u16) -> usize {
    let width = usize::from(width);
    let back = |from: usize, room: usize| {
        let (mut first, mut used) = (from, 0);
        while let Some(label) = first.checked_sub(1).and_then(|before| label(app, before)) {
            used += text::width(&label) + 1;
            if used > room {
                break;
            }
            first -= 1;
        }
        first
    };
    let next = drawn(app).map_or(0, |next| text::width(&next));
    back(app.current_position(), width / 2).min(back(count(app), width.saturating_sub(next + NEXT + 1)))
}

/// The text of the token that was sampled last; a question mark while a question is open.
fn drawn(app: &App) -> Option<String> {
    if app.hides_next() {
        return Some("?".to_owned());
    }
    app.outline().passes.last()?.sampled.as_ref().map(|token| shown(&token.text))
}

/// Number of positions.
fn count(app: &App) -> usize {
    if app.hides_next() {
        // Tokens of later passes were sampled, so that they would give the next token away.
        return app.dims().keys();
    }
    app.outline().passes.last().map_or(0, |pass| pass.dims.keys())
}

/// Columns of `width` that the legend does not need.
fn room(app: &App, width: u16) -> u16 {
    match legend(app, width) {
        Some(legend) if width >= WITH_LEGEND => width - text::width(&legend) as u16 - 1,
        _ => width,
    }
}

/// The legend of the marks: the kind of values, and the query of attention.
fn legend(app: &App, width: u16) -> Option<String> {
    let (carries, roomy) = (app.strip(), width >= WITH_WORDS);
    let what = match (carries, app.strip_query()) {
        (StripValues::Nothing, _) => return None,
        (StripValues::Attention, None) => return Some("attention: no layer here".to_owned()),
        (StripValues::Attention, Some([layer, head, query])) if roomy => {
            format!("after each token, its weight for query L{layer} h{head} t{query}:")
        }
        (StripValues::Attention, Some([layer, head, query])) => {
            let name = if width >= WITH_NAME { "attention " } else { "" };
            format!("{name}L{layer} h{head} t{query}")
        }
        (StripValues::Surprise, _) if roomy => format!("after each token, its {}:", carries.name()),
        (StripValues::Surprise, _) => carries.name().to_owned(),
    };
    let marks = MARKS.iter().zip(carries.steps()).map(|(mark, from)| format!("{mark}≥{from}"));
    Some(format!("{what} {}", marks.collect::<Vec<_>>().join(" ")))
}

/// The positions on a strip of this width.
pub fn visible_positions(app: &App, width: u16) -> impl Iterator<Item = usize> {
    placed(app, room(app, width)).into_iter().map(|(position, ..)| position)
}

/// Visible positions with their first and last columns.
fn placed(app: &App, width: u16) -> Vec<(usize, u16, u16)> {
    let mut x = 1;
    let mut placed = Vec::new();
    for position in first(app, width)..count(app) {
        let end = x + label(app, position).map_or(0, |label| text::width(&label)) as u16;
        placed.push((position, x, end));
        x = end + 1;
        if x >= width {
            break;
        }
    }
    placed
}

/// The position at column `x` of the screen.
pub fn position_at(app: &App, area: Rect, x: u16) -> Option<usize> {
    let x = x.checked_sub(area.x)?;
    placed(app, room(app, area.width))
        .into_iter()
        .find(|&(_, from, to)| (from..to).contains(&x))
        .map(|(position, ..)| position)
}

impl Widget for Tokens<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let app = self.0;
        let theme = app.theme;
        let current = app.current_position();
        let dims = app.dims();
        let whole = area;
        let area = Rect { width: room(app, area.width), ..area };
        if let Some(legend) = legend(app, whole.width).filter(|_| area.width < whole.width) {
            put(buf, whole, area.width + 1, 0, &legend, theme.dim());
        }
        let placed = placed(app, area.width);
        if placed.first().is_some_and(|&(position, ..)| position > 0) {
            put(buf, area, 0, 0, "…", theme.dim());
        }
        // The last column is an ellipsis if there are further tokens.
        let more = placed.last().is_none_or(|&(position, ..)| position + 1 < count(app));
        let strip = Rect { width: area.width.saturating_sub(more.into()), ..area };
        for &(position, x, end) in &placed {
            let inside = (dims.start..dims.keys()).contains(&position);
            let style = match position {
                position if position == current => theme.current(),
                _ if inside => theme.token(),
                _ => theme.dim(),
            };
            let level = app.strip_value(position).map(|value| level(app.strip(), value));
            // The colour and the mark after the token give the same information.
            let style = match level.filter(|_| theme.depth() > Depth::Ansi && position != current) {
                Some(level) => {
                    theme
                        .cell(level as f64, Span { positive: true, high: 4.0, clipped: 0, at_most: false })
                        .style
                }
                None => style,
            };
            put(buf, strip, x, 0, &label(app, position).unwrap_or_default(), style);
            // The branching point has its own mark.
            let parts = app.outline().fork.and_then(|fork| app.outline().passes.get(fork.pass));
            let mark = level.and_then(|level| MARKS.get(level.checked_sub(1)?));
            match (mark, parts.is_some_and(|pass| pass.dims.keys() == position + 1)) {
                (Some(mark), _) => put(buf, strip, end, 0, mark, theme.bar()),
                (None, true) => put(buf, strip, end, 0, "║", theme.key()),
                (None, false) => put(buf, strip, end, 0, "│", theme.dim()),
            };
        }
        let last = placed.last().copied();
        if let Some((_, _, end)) = last.filter(|(position, ..)| position + 1 == count(app)) {
            // A mark after the last token replaces the space before the arrow.
            let marked = app.strip_value(count(app) - 1).is_some_and(|value| level(app.strip(), value) > 0);
            let (from, arrow) = if marked { (end + 1, "→ ") } else { (end, " → ") };
            let x = from + put(buf, area, from, 0, arrow, theme.dim());
            match drawn(app) {
                Some(next) => {
                    let x = x + put(buf, area, x, 0, &next, theme.token());
                    put(buf, area, x, 0, " is next", theme.dim());
                }
                None => drop(put(buf, area, x, 0, "…", theme.dim())),
            }
        } else if area.width > 0 {
            put(buf, area, area.width - 1, 0, "…", theme.dim());
        }
    }
}
