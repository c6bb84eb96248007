//! A single axis, downwards: ids with their texts, or values with bars; for a vocabulary the largest first.

use std::ops::Range;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::widgets::Widget;

use crate::trace::Axis;
use crate::trace::frame::Number;

use super::super::app::{App, Show};
use super::super::text;
use super::labels;
use super::paint::put;
use super::tensor::Regions;

/// The columns of a value.
const VALUE: u16 = 9;
/// Texts and bars have at least these columns beside a mark in words.
const ROOMY: usize = 16;

/// The geometry of a list on the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List {
    /// How many rows there are.
    pub count: usize,
    /// How many values there are.
    length: usize,
    axis: Axis,
    ranked: bool,
    area: Rect,
}

impl List {
    /// The list in a tensor panel of `area`; none where the values are shown as a grid.
    pub fn new(app: &App, area: Rect) -> Option<Self> {
        let cut = app.cut();
        if cut.columns.is_some() {
            return None;
        }
        let axis = app.place().step.axes()[cut.rows];
        let length = app.shape()[cut.rows];
        // The zeros of a nucleus, which is nearly all of it, are one line.
        let count = app.kept().map_or(length, |kept| kept.positive.max(1));
        let ranked = app.show() == Show::Largest;
        Some(Self { count, length, axis, ranked, area: Regions::new(area).body })
    }

    /// How many rows fit, below the line of headings, and above the one for those that are folded.
    pub fn seen(&self) -> usize {
        usize::from(self.area.height.saturating_sub(1 + u16::from(self.folded() > 0)))
    }

    /// How many values have no row of their own.
    fn folded(&self) -> usize {
        self.length.saturating_sub(self.count)
    }

    /// How many lines it takes.
    pub fn lines(&self, app: &App) -> usize {
        1 + self.visible(app).len() + usize::from(self.folded() > 0)
    }

    /// The rows on the screen.
    pub fn visible(&self, app: &App) -> Range<usize> {
        let first = app.offset().0.min(self.count);
        first..(first + self.seen()).min(self.count)
    }

    /// The selected row.
    pub fn at(&self, app: &App) -> usize {
        if self.ranked { app.rank } else { app.selected.get(self.axis, self.count) }
    }

    /// The index on the axis that a row shows.
    pub fn index(&self, app: &App, row: usize) -> Option<usize> {
        if self.ranked { app.ranked(row).map(|id| id as usize) } else { Some(row) }
    }

    /// The row at a line of the screen.
    pub fn row_at(&self, app: &App, y: u16) -> Option<usize> {
        let down = y.checked_sub(self.area.y + 1)?;
        self.visible(app).nth(down.into())
    }
}

/// The current tensor as a list.
#[derive(Debug)]
pub struct ListView<'a> {
    /// The application.
    pub app: &'a App,
    /// Where its rows are.
    pub list: List,
}

impl Widget for ListView<'_> {
    fn render(self, _: Rect, buf: &mut Buffer) {
        let Self { app, list } = self;
        let (theme, area) = (app.theme, list.area);
        let Some(tensor) = app.tensor() else { return };
        if list.ranked && app.ranked(0).is_none() {
            put(buf, area, 0, 1, "sorting …", theme.dim());
            return;
        }
        let ids = app.place().step.stage().is_ids();
        let digits =
            labels::digits(list.length).max(if list.ranked { 4 } else { labels::name(list.axis).len() });
        let rank = if list.ranked { digits + 1 } else { 0 };
        let token_at = (rank + digits + 1) as u16;
        // The mark of the token that came next has columns of its own; bars and texts share the rest.
        let vocabulary = list.axis == Axis::Vocab;
        let words = format!(" ← {}", came_next(app).1);
        let rest = usize::from(area.width.saturating_sub(token_at + VALUE + 1));
        let (mark, rest) = match rest.checked_sub(text::width(&words)) {
            Some(rest) if vocabulary && rest >= ROOMY => (words, rest),
            _ if vocabulary => (" ←".to_owned(), rest.saturating_sub(2)),
            _ => (String::new(), rest),
        };
        let most = if labels::has_text(list.axis) { (rest / 2).clamp(4, 24) } else { 0 };
        let texts = labels::text_width(app, list.axis, list.length, most);
        let value_at = token_at + if labels::has_text(list.axis) { texts as u16 + 1 } else { 0 };
        let bar_at = value_at + VALUE + 1;
        let bars = usize::from(area.width.saturating_sub(bar_at)).saturating_sub(text::width(&mark));
        if list.ranked {
            put(buf, area, 0, 0, &text::right("rank", digits), theme.dim());
        }
        let heading = if list.ranked { "id" } else { labels::name(list.axis) };
        put(buf, area, rank as u16, 0, &text::right(heading, digits), theme.dim());
        if labels::has_text(list.axis) {
            put(buf, area, token_at, 0, "text", theme.dim());
        }
        put(
            buf,
            area,
            value_at,
            0,
            &text::right(if ids { "id" } else { "value" }, VALUE.into()),
            theme.dim(),
        );
        let span = app.bars();
        let mut at = app.index();
        let down_axis = app.cut().rows;
        for (down, row) in list.visible(app).enumerate() {
            let y = down as u16 + 1;
            let Some(index) = list.index(app, row) else { continue };
            at[down_axis] = index;
            let Some(number) = tensor.get(&at) else { continue };
            let chosen = row == list.at(app);
            let pick = |style| if chosen { theme.current() } else { style };
            if list.ranked {
                put(buf, area, 0, y, &format!("{:>digits$}", row + 1), pick(theme.dim()));
            }
            put(buf, area, rank as u16, y, &format!("{index:>digits$}"), pick(theme.index()));
            if let Some(token) = labels::text_of(app, list.axis, index) {
                put(buf, area, token_at, y, &text::cut(&token, texts), pick(theme.token()));
            }
            let special = matches!(number, Number::F32(value) if !value.is_finite());
            let style = if special { theme.special() } else { ratatui::style::Style::new() };
            put(buf, area, value_at, y, &text::right(&text::number(number), VALUE.into()), pick(style));
            if let (Number::F32(value), Some((low, high)), false) = (number, span, special) {
                let share = if high > low { (f64::from(value) - low) / (high - low) } else { 0.0 };
                put(buf, area, bar_at, y, &bar(share, bars), theme.bar());
            }
            if vocabulary && came_next(app).0.is_some_and(|id| id as usize == index) {
                put(buf, area, area.width.saturating_sub(text::width(&mark) as u16), y, &mark, theme.key());
            }
        }
        if list.folded() > 0 {
            let y = list.visible(app).len() as u16 + 1;
            let line = format!("{} of {} stay; the other {} are 0", list.count, list.length, list.folded());
            put(buf, area, 0, y, &line, theme.dim());
        }
    }
}

/// The token of the vocabulary that stands next in the prompt, or that was drawn here, and which of the two.
pub fn came_next(app: &App) -> (Option<u32>, &'static str) {
    let Some(pass) = app.outline().passes.get(app.place().pass) else { return (None, "drawn") };
    let row = app.selected.get(Axis::Token, pass.tokens.len());
    match pass.tokens.get(row + 1) {
        Some(next) if app.place().step.axes().contains(&Axis::Token) => (Some(next.id), "came next"),
        _ => (pass.sampled.as_ref().map(|token| token.id), "drawn"),
    }
}

/// A bar of up to `columns` columns, in eighths.
fn bar(share: f64, columns: usize) -> String {
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (share.clamp(0.0, 1.0) * columns as f64 * 8.0).round() as usize;
    "█".repeat(eighths / 8) + PARTS[eighths % 8]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_drawn_in_eighths() {
        assert_eq!([0.0, 0.25, 0.5, 1.0, 7.0].map(|share| bar(share, 4)), ["", "█", "██", "████", "████"]);
        assert_eq!(bar(0.3, 1), "▎");
        assert_eq!(bar(f64::NAN, 3), "");
    }
}
