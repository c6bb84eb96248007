//! Below the values: what the colours mean, with numbers; and the statistics of the whole tensor.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use crate::trace::frame::Stats;

use super::super::app::{App, Scale, Show};
use super::super::summary::Part;
use super::super::tensor::Tensor;
use super::super::text;
use super::super::theme::{Depth, Span};
use super::labels;
use super::paint::put;

/// Draws the first two lines of the panel's foot.
pub fn draw(app: &App, foot: Rect, buf: &mut Buffer) {
    if app.place().step.stage().is_ids() {
        put(buf, foot, 0, 0, "ids are row numbers of the embedding table", app.theme.dim());
        return;
    }
    let Some(tensor) = app.tensor() else { return };
    let stats = app.summaries.stats(Part { site: tensor.site(), held: None });
    if app.cut().columns.is_none() {
        list(app, foot, buf);
    } else if app.show() == Show::Heatmap {
        if let Some(span) = app.span() {
            ramp(app, span, foot, buf);
        }
    } else {
        put(buf, foot, 0, 0, "v shows these numbers as colours", app.theme.dim());
    }
    statistics(app, stats, foot, buf);
}

/// What the bars of a list span.
fn list(app: &App, foot: Rect, buf: &mut Buffer) {
    let Some(stats) = app.part().and_then(|part| app.summaries.stats(part)) else { return };
    let positive = app.tensor().is_some_and(Tensor::is_positive);
    let low = if positive { 0.0 } else { stats.min };
    let line = format!("bars from {} to {}", text::real(low), text::real(stats.max));
    put(buf, foot, 0, 0, &line, app.theme.dim());
}

/// The colours from the lowest to the highest, with the values at their ends and at 0.
fn ramp(app: &App, span: Span, foot: Rect, buf: &mut Buffer) {
    let theme = app.theme;
    let low = if span.positive { 0.0 } else { -span.high };
    let whole = app.tensor().is_some_and(Tensor::is_whole) && !span.clipped;
    let (more, less) = if span.clipped { ("≥", "≤") } else { ("", "") };
    let mut x = if span.positive {
        put(buf, foot, 0, 0, "0 ", Style::new())
    } else {
        put(buf, foot, 0, 0, &format!("{less}{} ", text::figure(low, whole)), Style::new())
    };
    // Shades change at quarters; colours run.
    let steps: Vec<f64> = match (theme.depth() > Depth::Ansi, span.positive) {
        (true, true) => (0..14).map(|i| f64::from(i) / 13.0).collect(),
        (true, false) => (-7..=7).map(|i| f64::from(i) / 7.0).collect(),
        (false, true) => vec![0.0, 0.2, 0.4, 0.7, 1.0],
        (false, false) => vec![-1.0, -0.7, -0.4, -0.2, 0.0, 0.2, 0.4, 0.7, 1.0],
    };
    for share in steps {
        let cell = theme.cell(share * span.high, span);
        let fill =
            if theme.depth() > Depth::Ansi && share == 0.0 && !span.positive { "0" } else { cell.fill };
        let width = if theme.depth() > Depth::Ansi { 1 } else { 2 };
        x += put(
            buf,
            foot,
            x,
            0,
            &text::left(&fill.chars().take(width).collect::<String>(), width),
            cell.style,
        );
    }
    x += put(buf, foot, x, 0, &format!(" {more}{}", text::figure(span.high, whole)), Style::new());
    x += put(buf, foot, x, 0, &format!(" · {}", scale_name(app)), theme.dim());
    let Some(stats) = app.span_part().and_then(|part| app.summaries.stats(part)) else { return };
    for (fill, name, count) in
        [("-∞", "-inf", stats.neg_inf), ("+∞", "+inf", stats.pos_inf), ("??", "NaN", stats.nan)]
    {
        if count > 0 {
            x += put(buf, foot, x, 0, "  ", Style::new());
            x += put(buf, foot, x, 0, fill, theme.special());
            x += put(buf, foot, x, 0, &format!(" {name}"), theme.dim());
        }
    }
}

/// What the colours span, in words.
fn scale_name(app: &App) -> String {
    match (app.scale, app.cut().held) {
        (Scale::Slice, Some(held)) => format!("this {}", labels::name(app.place().step.axes()[held])),
        (Scale::Slice | Scale::Tensor, _) => "all values".to_owned(),
        (Scale::Deviations, _) if app.span().is_some_and(|span| span.clipped) => "±3 std".to_owned(),
        (Scale::Deviations, _) => "all (within 3 std)".to_owned(),
    }
}

fn statistics(app: &App, stats: Option<Stats>, foot: Rect, buf: &mut Buffer) {
    let Some(stats) = stats else {
        put(buf, foot, 0, 1, "summing up …", app.theme.dim());
        return;
    };
    let whole = app.tensor().is_some_and(Tensor::is_whole);
    let pairs = [
        ("min", text::figure(stats.min, whole)),
        ("max", text::figure(stats.max, whole)),
        ("mean", text::real(stats.mean)),
        ("std", text::real(stats.std)),
    ];
    let mut x = 0;
    for (name, value) in pairs {
        x += put(buf, foot, x, 1, &format!("{name} "), app.theme.dim());
        x += put(buf, foot, x, 1, &format!("{value} "), Style::new());
    }
    for (name, count) in [("-inf", stats.neg_inf), ("+inf", stats.pos_inf), ("NaN", stats.nan)] {
        if count > 0 {
            x += put(buf, foot, x, 1, &format!("{name}×{count} "), app.theme.special());
        }
    }
}
