//! The legend of the colours with the values at the ends of the scale, and the statistics of the whole tensor.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use llama_trace_core::trace::frame::Stats;
use llama_trace_core::trace::{Axis, Part};

use super::super::app::App;
use super::super::display::Scale;
use super::super::edited;
use super::super::fit::Piece;
use super::super::text;
use super::super::theme::{Depth, Span};
use super::half_blocks;
use super::labels::{self, next_token};
use super::paint::{put, put_fit};

/// Draws legend and statistics, the first two lines of the foot.
pub fn draw(app: &App, foot: Rect, buf: &mut Buffer) {
    meaning(app, foot, buf);
    if app.place().step.stage().is_ids() || app.tensor().is_none() {
        return;
    }
    let stats = app.answers.spread(Part::whole(app.place().site())).map(|spread| spread.stats);
    statistics(app, stats, foot, buf);
}

/// Draws the legend.
pub fn meaning(app: &App, foot: Rect, buf: &mut Buffer) {
    if app.place().step.stage().is_ids() {
        put(buf, foot, 0, 0, "ids are row numbers of the embedding table", app.theme.dim());
    } else if app.tensor().is_some() {
        app.view().legend(app, foot, buf);
    }
}

/// Draws the values at the ends of a list's bars, and the meaning of the arrow beside a bar.
pub fn list(app: &App, foot: Rect, buf: &mut Buffer) {
    let Some((low, high)) = app.bars() else { return };
    let dim = app.theme.dim();
    let mut pieces = vec![
        Piece::whole("bars from ", dim),
        Piece::figure(low, false, dim),
        Piece::whole(" to ", dim),
        Piece::figure(high, false, dim),
    ];
    if let Some(held) = app.cut().held {
        let of = labels::name(app.place().step.axes()[held]);
        pieces.push(Piece::whole(format!(" in this {of}"), dim).rank(2));
    }
    if app.place().step.axes().last() == Some(&Axis::Vocab) {
        pieces.push(Piece::whole(" · ←", app.theme.key()).rank(1));
        pieces.push(Piece::whole(format!(" {}", next_token(app).1), dim).rank(1));
    }
    pieces.push(edited(app));
    put_fit(buf, foot, 0, 0, &pieces);
}

/// The meaning of the mark of edited values; empty if no edit changes values of this step.
pub fn edited(app: &App) -> Piece {
    let mark = if app.has_edits_here() { format!("  {} edited", edited::EDITED) } else { String::new() };
    Piece::whole(mark, app.theme.key()).rank(1)
}

/// Draws the colour scale with the values at its ends and at 0.
pub fn ramp(app: &App, foot: Rect, buf: &mut Buffer) {
    scale_with(app, None, foot, buf, |value, span| {
        let cell = app.theme.cell(value, span);
        (cell.fill, cell.style)
    });
}

/// The meaning of a cell that has neither a shade nor the mark of 0; none if there can be no such cell.
fn blank(app: &App) -> Option<Piece> {
    let shades = app.theme.depth() <= Depth::Ansi && app.span().is_some_and(|span| span.positive);
    shades.then(|| Piece::whole("  blank: nearly 0", app.theme.dim()).rank(2))
}

/// Draws the colour scale of a heatmap. `cut` says whether a cell is too narrow for the digits of its number; it is
/// none if the cells have no numbers.
pub fn heatmap(app: &App, cut: Option<bool>, foot: Rect, buf: &mut Buffer) {
    let forms = ["  … not 0, no room for its digits", "  … not 0, no room", "  … not 0"].map(str::to_owned);
    let more = match cut {
        None => blank(app),
        Some(cut) => cut.then(|| Piece::forms(forms, app.theme.dim()).rank(1)),
    };
    scale_with(app, more, foot, buf, |value, span| {
        let cell = app.theme.cell(value, span);
        (cell.fill, cell.style)
    });
}

/// Draws the colour scale of small pictures. Without colours, these pictures have one character for a value.
pub fn small(app: &App, foot: Rect, buf: &mut Buffer) {
    if app.theme.depth() > Depth::Ansi { ramp(app, foot, buf) } else { marks(app, foot, buf) }
}

/// Draws the scale of cells with one character.
pub fn marks(app: &App, foot: Rect, buf: &mut Buffer) {
    scale_with(app, None, foot, buf, |value, span| half_blocks::mark(app, span, Some(value)));
}

fn scale_with(
    app: &App,
    more_said: Option<Piece>,
    foot: Rect,
    buf: &mut Buffer,
    cell: impl Fn(f64, Span) -> (&'static str, Style),
) {
    let Some(span) = app.span() else { return };
    let theme = app.theme;
    let spread = app.answers.spread(app.span_part()).map(|spread| spread.stats);
    // A tensor of zeros has no scale.
    let flat = spread.is_some_and(|stats| stats.min == 0.0 && stats.max == 0.0)
        && app.comparison.shared_span.is_none();
    let mut pieces = scale(app, span, flat, cell);
    let [name, short] = scale_name(app, span).map(|name| format!(" · {name}"));
    pieces.push(Piece::forms([name, short, String::new()], theme.dim()).rank(1));
    if span.clipped > 0 {
        let mark = if span.positive { "▲" } else { "▲▼" };
        let (most, short) = if span.at_most { ("at most ", "≤ ") } else { ("", "") };
        let count = format!("  {mark} {most}{} beyond", span.clipped);
        let short = format!("  {mark} {short}{}", span.clipped);
        pieces.push(Piece::forms([count, short], theme.strong()).rank(2));
    }
    pieces.extend(more_said);
    pieces.push(edited(app));
    if let Some(stats) = spread {
        for (fill, name, count) in
            [("-∞", "-inf", stats.neg_inf), ("+∞", "+inf", stats.pos_inf), ("??", "NaN", stats.nan)]
        {
            if count > 0 {
                pieces.push(Piece::whole(format!("  {fill}"), theme.special()).rank(3));
                pieces.push(Piece::whole(format!(" {name}"), theme.dim()).rank(4));
            }
        }
    }
    put_fit(buf, foot, 0, 0, &pieces);
}

/// The colours of a span, with the values at its ends. A `flat` tensor has only zeros, and its legend is only the mark
/// of 0.
pub(super) fn scale(
    app: &App,
    span: Span,
    flat: bool,
    cell: impl Fn(f64, Span) -> (&'static str, Style),
) -> Vec<Piece> {
    let coloured = app.theme.depth() > Depth::Ansi;
    let whole = app.tensor().is_some_and(|tensor| tensor.is_whole()) && span.clipped == 0;
    let plain = Style::new();
    let (more, less) = if span.clipped > 0 { ("≥", "≤") } else { ("", "") };
    let mut pieces = if flat {
        let (fill, style) = cell(0.0, span);
        vec![Piece::whole(fill, style), Piece::whole(" 0", plain)]
    } else if span.positive {
        vec![Piece::whole("0 ", plain)]
    } else {
        vec![Piece::whole(less, plain), Piece::figure(-span.high, whole, plain), Piece::whole(" ", plain)]
    };
    // Shades change at quarters, colours continuously.
    let steps: Vec<f64> = match (coloured, span.positive) {
        (true, true) => (0..14).map(|i| f64::from(i) / 13.0).collect(),
        (true, false) => (-7..=7).map(|i| f64::from(i) / 7.0).collect(),
        (false, true) => vec![0.0, 0.2, 0.4, 0.7, 1.0],
        (false, false) => vec![-1.0, -0.7, -0.4, -0.2, 0.0, 0.2, 0.4, 0.7, 1.0],
    };
    for share in steps.into_iter().filter(|_| !flat) {
        let (fill, style) = cell(share * span.high, span);
        let fill = if coloured && share == 0.0 && !span.positive { "0" } else { fill };
        let width = if coloured { 1 } else { 2 };
        let fill = text::left(&fill.chars().take(width).collect::<String>(), width);
        pieces.push(Piece::whole(fill, style));
    }
    if !flat {
        pieces.push(Piece::whole(format!(" {more}"), plain));
        pieces.push(Piece::figure(span.high, whole, plain));
    }
    pieces
}

/// The name of the colour scale, in a long and a short form.
fn scale_name(app: &App, span: Span) -> [String; 2] {
    let within = app.answers.spread(app.span_part()).map(|spread| spread.beyond_deviations);
    let values = match (app.scale(), app.cut().held) {
        (Scale::Slice, Some(held)) => format!("this {}", labels::name(app.place().step.axes()[held])),
        _ => "all values".to_owned(),
    };
    let both = |name: &str| [name.to_owned(), name.to_owned()];
    match app.scale() {
        Scale::Deviations if app.comparison.shared_span.is_some() && span.clipped > 0 => {
            ["the wider ±3 std of both".to_owned(), "±3 std".to_owned()]
        }
        _ if app.comparison.shared_span.is_some() && span.clipped > 0 => {
            ["usual in both".to_owned(), "both".to_owned()]
        }
        _ if app.comparison.shared_span.is_some() => both("both"),
        _ if app.largest_with_earlier_rows().is_some() => {
            ["the visible rows".to_owned(), "these rows".to_owned()]
        }
        Scale::Slice | Scale::Tensor if span.clipped > 0 => {
            [format!("usual in {values}"), "usual".to_owned()]
        }
        Scale::Deviations if span.clipped > 0 => both("±3 std"),
        Scale::Deviations if within == Some(0) => both("all (within 3 std)"),
        Scale::Largest => both("to the largest"),
        Scale::Slice | Scale::Tensor | Scale::Deviations => both(&values),
    }
}

fn statistics(app: &App, stats: Option<Stats>, foot: Rect, buf: &mut Buffer) {
    if app.hides_here() {
        return;
    }
    let Some(stats) = stats else {
        put(buf, foot, 0, 1, "computing statistics …", app.theme.dim());
        return;
    };
    let whole = app.tensor().is_some_and(|tensor| tensor.is_whole());
    let figures = [
        ("min", stats.min, whole),
        ("max", stats.max, whole),
        ("mean", stats.mean, false),
        ("std", stats.std, false),
    ];
    let mut pieces = Vec::new();
    for (i, (name, value, whole)) in figures.into_iter().enumerate() {
        let space = if i == 0 { "" } else { " " };
        pieces.push(Piece::whole(format!("{space}{name} "), app.theme.dim()));
        pieces.push(Piece::figure(value, whole, Style::new()));
    }
    for (name, count) in [("-inf", stats.neg_inf), ("+inf", stats.pos_inf), ("NaN", stats.nan)] {
        if count > 0 {
            pieces.push(Piece::whole(format!(" {name}×{count}"), app.theme.special()));
        }
    }
    // The statistics are of the whole tensor, even if the screen shows a slice.
    let of = if app.part().held.is_some() {
        [" · whole tensor", " · all"]
    } else {
        [" · all values", " · all"]
    };
    pieces.push(
        Piece::forms(of.map(str::to_owned).into_iter().chain([String::new()]), app.theme.dim()).rank(1),
    );
    put_fit(buf, foot, 0, 1, &pieces);
}
