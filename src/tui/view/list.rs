//! Lists: one axis, drawn from top to bottom. Each line has an id with its text, or a value with a bar. For a
//! vocabulary there is also a list that is sorted, the largest value first.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use llama_trace_core::trace::frame::Number;
use llama_trace_core::trace::{Axis, Part, Query, Region, Step};

use super::super::app::App;
use super::super::edited;
use super::super::fit::Piece;
use super::super::text;
use super::kind::{self, View};
use super::layout::Layout;
use super::paint::put;
use super::{grid, labels, legend};

/// The columns of a value.
const VALUE: u16 = 9;
/// Columns of a mark with its word. The longest one, "← sampled", occurs only in a branch. It always has room,
/// so that the bars of a branch and of its parent are equally long.
const MARK: usize = " ← sampled".len() - "←".len() + 1;
/// Minimum columns of texts and bars beside a mark with its word.
const ROOMY: usize = 16;

/// The values of a tensor with one axis, by index.
#[derive(Debug)]
pub struct List;

/// The values of a vocabulary, the largest first.
#[derive(Debug)]
pub struct Largest;

impl View for List {
    fn name(&self) -> &'static str {
        "list"
    }

    fn hint(&self) -> [&'static str; 3] {
        [
            "Each value has a line with a bar, and with its token if it has one. Ids have no bar.",
            "Bars begin at the lowest value, or at 0 if no value is below 0; the line below them shows which.",
            "If a vocabulary is listed by id, v lists the largest values first.",
        ]
    }

    fn fits(&self, step: Step) -> bool {
        step.axes().len() == 1
    }

    fn layout(&self, app: &App, body: Rect) -> Layout {
        let rows = app.shape()[0];
        lines(body, rows, app.index()[0], 0)
    }

    fn index(&self, _: &App, cell: (usize, usize)) -> Option<Vec<usize>> {
        Some(vec![cell.0])
    }

    fn caption(&self, app: &App, layout: &Layout) -> Vec<Piece> {
        let axis = app.place().step.axes()[app.cut().rows];
        vec![grid::range(app, "↓", axis, &layout.visible_rows(app), layout.rows)]
    }

    fn legend(&self, app: &App, foot: Rect, buf: &mut Buffer) {
        legend::list(app, foot, buf);
    }

    fn render(&self, app: &App, layout: &Layout, buf: &mut Buffer) {
        draw(self, app, layout, Rows::Held(app.cut().rows), buf);
    }
}

impl View for Largest {
    fn name(&self) -> &'static str {
        "largest"
    }

    fn hint(&self) -> [&'static str; 3] {
        [
            "The likeliest tokens come first, each with a bar.",
            "An arrow marks the token that was sampled, or that comes next in the prompt.",
            "In a nucleus, the last line counts the tokens that are left out. A picked token has a row even if it is left out.",
        ]
    }

    fn fits(&self, step: Step) -> bool {
        step.over_vocabulary()
    }

    fn layout(&self, app: &App, body: Rect) -> Layout {
        let length = app.shape()[app.cut().rows];
        // Nearly all values of a nucleus are 0. All values of 0 share one line.
        let rows = app.kept().map_or(length, |kept| kept.positive.max(1));
        let cut = usize::from(app.picked_though_cut().is_some());
        lines(body, rows + cut, app.cursor.rank, u16::from(rows < length))
    }

    fn index(&self, app: &App, cell: (usize, usize)) -> Option<Vec<usize>> {
        let mut index = app.index();
        index[app.cut().rows] = app.ranked(cell.0)? as usize;
        Some(index)
    }

    fn select(&self, app: &mut App, cell: (usize, usize)) {
        app.cursor.rank = cell.0;
    }

    fn questions(&self, app: &App, _: &Layout) -> Vec<Query> {
        let (site, part, down) = (app.place().site(), app.part(), app.cut().rows);
        let mut row: Vec<_> = app.index().iter().map(|&index| index..index + 1).collect();
        row[down] = 0..app.shape()[down];
        vec![
            Query::Block(site, kind::in_stage(app, Region(row))),
            Query::Spread(Part::whole(site)),
            Query::Spread(part),
            Query::Order(part),
        ]
    }

    fn caption(&self, app: &App, layout: &Layout) -> Vec<Piece> {
        let (dim, seen) = (app.theme.dim(), layout.visible_rows(app));
        if seen.is_empty() {
            return List.caption(app, layout);
        }
        // A token may be picked although the sampler cut it; its row has no rank.
        let ranks = layout.rows - usize::from(app.picked_though_cut().is_some());
        let range = format!("{}-{} of {ranks}", (seen.start + 1).min(ranks), seen.end.min(ranks));
        let mut pieces = vec![Piece::forms([format!("largest first, {range}"), range], dim).rank(1)];
        if let Some(kept) = app.kept() {
            // Shows the sum of the kept tokens' probabilities, which is 1.
            pieces.push(Piece::whole(" · sum ", dim).rank(2));
            pieces.push(Piece::figure(kept.sum, false, Style::new()).rank(2));
        }
        pieces
    }

    fn legend(&self, app: &App, foot: Rect, buf: &mut Buffer) {
        legend::list(app, foot, buf);
    }

    fn render(&self, app: &App, layout: &Layout, buf: &mut Buffer) {
        draw(self, app, layout, Rows::Ranked(app.cut().rows), buf);
    }
}

/// The layout of a list: a heading, and below it a line for each row.
fn lines(area: Rect, rows: usize, at: usize, footer: u16) -> Layout {
    let cursor = (at.min(rows.saturating_sub(1)), 0);
    Layout {
        area,
        rows,
        columns: 1,
        cursor,
        cell: area.width,
        tall: 1,
        label: 0,
        header: 1,
        footer,
        ..Layout::default()
    }
}

/// The order of the rows: by index, or by size of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// The axis with this number, in the order of its indices.
    Held(usize),
    /// The axis with this number, the largest value first. The rank is left of the index.
    Ranked(usize),
}

/// Positions of the columns.
pub(super) struct Columns {
    digits: usize,
    rank: usize,
    token_at: u16,
    texts: usize,
    value_at: u16,
    bar_at: u16,
    bars: usize,
    mark: String,
}

impl Columns {
    /// The columns of a list of `length` values on `axis`, `width` columns wide.
    pub(super) fn new(app: &App, width: u16, (axis, length): (Axis, usize), ranked: bool) -> Self {
        let digits = labels::digits(length).max(if ranked { 4 } else { labels::name(axis).len() });
        let rank = if ranked { digits + 1 } else { 0 };
        let token_at = (rank + digits + 1) as u16;
        // The mark of the next token has its own columns. Bars and texts share the other columns.
        let vocabulary = axis == Axis::Vocab;
        let words = format!(" ← {}", labels::next_token(app).1);
        let rest = usize::from(width.saturating_sub(token_at + VALUE + 1));
        let of_words = text::width(&words).max(MARK);
        let (mark, rest) = match rest.checked_sub(of_words) {
            Some(rest) if vocabulary && rest >= ROOMY => (text::left(&words, of_words), rest),
            _ if vocabulary => (" ←".to_owned(), rest.saturating_sub(2)),
            _ => (String::new(), rest),
        };
        let most = if labels::has_text(axis) { (rest / 2).clamp(4, 24) } else { 0 };
        let texts = labels::text_width(app, axis, length, most);
        let value_at = token_at + if labels::has_text(axis) { texts as u16 + 1 } else { 0 };
        let bar_at = value_at + VALUE + 1;
        let bars = usize::from(width.saturating_sub(bar_at)).saturating_sub(text::width(&mark));
        Self { digits, rank, token_at, texts, value_at, bar_at, bars, mark }
    }

    /// Draws the index and the text of a row.
    pub(super) fn label(
        &self,
        app: &App,
        area: Rect,
        (y, axis, index): (u16, Axis, usize),
        buf: &mut Buffer,
    ) {
        put(buf, area, self.rank as u16, y, &text::right(&index.to_string(), self.digits), app.theme.index());
        if let Some(token) = labels::text_of(app, axis, index) {
            put(buf, area, self.token_at, y, &text::cut(&token, self.texts), app.theme.token());
        }
    }

    /// Draws a value and its bar; `span` has the values at the ends of the bars.
    pub(super) fn value(
        &self,
        app: &App,
        area: Rect,
        (y, number, span): (u16, Number, Option<(f64, f64)>),
        pick: impl Fn(Style) -> Style,
        buf: &mut Buffer,
    ) {
        let theme = app.theme;
        let special = matches!(number, Number::F32(value) if !value.is_finite());
        let style = if special { theme.special() } else { Style::new() };
        let told = text::right(&text::number(number), VALUE.into());
        put(buf, area, self.value_at, y, &told, pick(style));
        if let (Number::F32(value), Some((low, high)), false) = (number, span, special) {
            let share = if high > low { (f64::from(value) - low) / (high - low) } else { 0.0 };
            put(buf, area, self.bar_at, y, &bar(share, self.bars), theme.bar());
        }
    }
}

/// Draws the rows of `view`.
pub fn draw(view: &dyn View, app: &App, layout: &Layout, rows: Rows, buf: &mut Buffer) {
    let Some(tensor) = app.tensor() else { return };
    let (Rows::Held(down_axis) | Rows::Ranked(down_axis)) = rows;
    let ranked = matches!(rows, Rows::Ranked(_));
    let (axis, length) = (app.place().step.axes()[down_axis], app.shape()[down_axis]);
    let cut = app.picked_though_cut().filter(|_| ranked);
    let rows = layout.rows - usize::from(cut.is_some());
    let folded = length - rows;
    let (theme, area) = (app.theme, layout.area);
    if ranked && app.ranked(0).is_none() {
        put(buf, area, 0, 1, "sorting …", theme.dim());
        return;
    }
    let ids = app.place().step.stage().is_ids();
    let columns = Columns::new(app, area.width, (axis, length), ranked);
    let Columns { digits, rank, token_at, texts, value_at, ref mark, .. } = columns;
    if ranked {
        put(buf, area, 0, 0, &text::right("rank", digits), theme.dim());
    }
    let heading = if ranked { "id" } else { labels::name(axis) };
    put(buf, area, rank as u16, 0, &text::right(heading, digits), theme.dim());
    if labels::has_text(axis) {
        put(buf, area, token_at, 0, "text", theme.dim());
    }
    put(buf, area, value_at, 0, &text::right(if ids { "id" } else { "value" }, VALUE.into()), theme.dim());
    let (span, edits) = (app.bars(), app.edits());
    for (down, row) in layout.visible_rows(app).enumerate() {
        let y = down as u16 + 1;
        let Some(at) = view.index(app, (row, layout.cursor.1)) else { continue };
        let index = at[down_axis];
        let Some(number) = tensor.get(&at) else { continue };
        let chosen = row == layout.cursor.0;
        let pick = |style| if chosen { theme.current() } else { style };
        if ranked {
            let rank = if row < rows { (row + 1).to_string() } else { "cut".to_owned() };
            put(buf, area, 0, y, &text::right(&rank, digits), pick(theme.dim()));
        }
        put(buf, area, rank as u16, y, &format!("{index:>digits$}"), pick(theme.index()));
        if let Some(token) = labels::text_of(app, axis, index) {
            put(buf, area, token_at, y, &text::cut(&token, texts), pick(theme.token()));
        }
        columns.value(app, area, (y, number, span), pick, buf);
        let stage_index = app.place().step.index_in_stage(&at, &app.shape());
        if edits.iter().any(|edit| edited::changes(edit, app.place().site(), app.dims(), &stage_index)) {
            put(buf, area, value_at + VALUE, y, edited::EDITED, theme.key());
        }
        if axis == Axis::Vocab && labels::next_token(app).0.is_some_and(|id| id as usize == index) {
            put(buf, area, area.width.saturating_sub(text::width(mark) as u16), y, mark, theme.key());
        }
    }
    if folded > 0 {
        let y = layout.visible_rows(app).len() as u16 + 1;
        let line = format!("{rows} of {length} stay; the other {folded} are 0");
        put(buf, area, 0, y, &line, theme.dim());
    }
}

/// A bar of up to `columns` columns, in eighths of a column.
pub fn bar(share: f64, columns: usize) -> String {
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
