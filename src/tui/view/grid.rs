//! The grid of a matrix: the width of the cells, and the labels around them. The heatmap and the numbers use it.

use std::ops::Range;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use llama_trace_core::trace::frame::Number;
use llama_trace_core::trace::{Axis, Part, Query, Site};

use super::super::app::App;
use super::super::edited;
use super::super::fit::Piece;
use super::super::slice::Cut;
use super::super::tensor::Tensor;
use super::super::text;
use super::earlier_rows;
use super::kind;
use super::labels;
use super::layout::Layout;
use super::paint::put;

/// Minimum and maximum width of a cell with a number, including the space before it. At the maximum width, all digits
/// of any value fit.
const NUMBER: u16 = 10;
const EVERY_DIGIT: u16 = 16;
/// Minimum and maximum width of a heatmap's cells.
const NARROWEST: u16 = 2;
const WIDEST: u16 = 8;
/// Minimum width at which a coloured cell has a number in it.
pub const WRITTEN: u16 = 5;
/// Width of the cells of a presentation: the least of components, and the most of any axis. Maximum lines of a cell.
const PRESENTED: u16 = 9;
const ROOMY: u16 = 14;
const TALLEST: u16 = 3;

/// The axis of the row labels, the number of rows, and the cursor's row. The rows may include rows of earlier passes,
/// above the rows of this pass.
fn rows(app: &App) -> (Axis, usize, usize) {
    let at = app.cut().rows;
    let (axis, count, cursor) = (app.place().step.axes()[at], app.shape()[at], app.index()[at]);
    match earlier_rows::applies(app) {
        true => (Axis::Key, app.dims().keys(), app.dims().start + cursor),
        false => (axis, count, cursor),
    }
}

/// The name of the numbers beside the rows.
fn name_of_rows(app: &App) -> &'static str {
    // Rows of several passes are numbered by position.
    if earlier_rows::applies(app) {
        "position"
    } else {
        labels::name(app.place().step.axes()[app.cut().rows])
    }
}

/// The layout of the step's matrix in `body`. `cell` returns the width of a cell, given the room and the number of
/// columns.
pub fn layout(app: &App, body: Rect, cell: impl Fn(u16, usize) -> u16) -> Layout {
    let Cut { rows: rows_at, columns: columns_at, .. } = app.cut();
    let (shape, index, axes) = (app.shape(), app.index(), app.place().step.axes());
    let columns_at = columns_at.unwrap_or(rows_at);
    let (column_axis, columns) = (axes[columns_at], shape[columns_at]);
    let (row_axis, rows, cursor) = rows(app);
    let texts = if body.width >= 80 { 14 } else { 10 };
    let mut label = labels::digits(rows);
    if labels::has_text(row_axis) {
        label += 1 + labels::text_width(app, row_axis, rows, texts);
    }
    let label = (label.max(name_of_rows(app).len() + 2) + 1).min(usize::from(body.width) / 2) as u16;
    let room = body.width - label;
    let mut cell = cell(room, columns);
    if app.presents() {
        // A pattern over tokens stays whole. Of many components, fewer are shown, in larger cells.
        let each = u16::try_from(usize::from(room) / columns.max(1)).unwrap_or(u16::MAX);
        let least = if labels::has_text(column_axis) { cell } else { cell.max(PRESENTED) };
        cell = each.clamp(least, least.max(ROOMY)).min(room.max(1));
    }
    let tokens = match (labels::has_text(column_axis), cell) {
        (false, _) => 0,
        (true, WRITTEN..) => 1,
        (true, _) => {
            let longest = labels::text_width(app, column_axis, columns, 6) as u16;
            longest.min(body.height / 4).max(1)
        }
    };
    let cursor = (cursor, index[columns_at]);
    let header = 1 + tokens;
    let each = u16::try_from(usize::from(body.height.saturating_sub(header)) / rows.max(1));
    let tall = if app.presents() { each.unwrap_or(u16::MAX).clamp(1, TALLEST) } else { 1 };
    Layout { area: body, rows, columns, cursor, cell, tall, label, header, ..Layout::default() }
}

/// The width of a heatmap's cell.
pub fn coloured(room: u16, columns: usize) -> u16 {
    u16::try_from(usize::from(room) / columns.max(1)).unwrap_or(u16::MAX).clamp(NARROWEST, WIDEST)
}

/// The width of a cell with a number.
pub fn written(room: u16, columns: usize) -> u16 {
    u16::try_from(usize::from(room) / columns.max(1)).unwrap_or(u16::MAX).clamp(NUMBER, EVERY_DIGIT)
}

/// The index of the value in a cell; none in a row of an earlier pass.
pub fn index(app: &App, cell: (usize, usize)) -> Option<Vec<usize>> {
    let (cut, mut index) = (app.cut(), app.index());
    let before = if earlier_rows::applies(app) { app.dims().start } else { 0 };
    index[cut.rows] = cell.0.checked_sub(before)?;
    if let Some(columns) = cut.columns {
        index[columns] = cell.1;
    }
    Some(index)
}

/// The value in a cell of this pass or an earlier one. None if it is not known yet.
pub fn value(app: &App, tensor: &Tensor, cell: (usize, usize)) -> Option<Number> {
    match earlier_rows::applies(app) {
        true => earlier_rows::value(app, app.index()[0], cell),
        false => tensor.get(&index(app, cell)?),
    }
}

/// Puts the cursor on a cell.
pub fn select(app: &mut App, cell: (usize, usize)) {
    if earlier_rows::applies(app) {
        earlier_rows::select(app, cell);
    } else if let Some(index) = index(app, cell) {
        for (&axis, index) in app.place().step.axes().iter().zip(index) {
            app.cursor.selected.set(axis, index);
        }
    }
}

/// The questions for the cells on the screen; those for the values come first.
pub fn questions(app: &App, layout: &Layout) -> Vec<Query> {
    if earlier_rows::applies(app) {
        let (head, cells) = (app.index()[0], (layout.visible_rows(app), layout.visible_columns(app)));
        return earlier_rows::questions(app, head..head + 1, cells, |site| of_head(site, head));
    }
    let site = app.place().site();
    let spreads = [Part::whole(site), app.span_part()].map(Query::Spread);
    [Query::Block(site, kind::visible_region(app, layout))].into_iter().chain(spreads).collect()
}

/// The largest absolute value on the screen, if the screen has rows of earlier passes.
pub fn largest(app: &App) -> Option<f64> {
    let layout = earlier_rows::applies(app).then(|| app.layout()).flatten()?;
    let head = app.index()[0];
    Some(earlier_rows::largest(app, layout.visible_rows(app), |site| of_head(site, head)))
}

fn of_head(site: Site, head: usize) -> Part {
    Part { site, held: Some((0, head)) }
}

/// The rows and columns on the screen, as text.
pub fn caption(app: &App, layout: &Layout) -> Vec<Piece> {
    let (axes, cut) = (app.place().step.axes(), app.cut());
    let columns = axes[cut.columns.unwrap_or(cut.rows)];
    vec![
        range_of(app, ("↓", name_of_rows(app)), &layout.visible_rows(app), layout.rows),
        Piece::whole(" · ", app.theme.dim()),
        range(app, "→", columns, &layout.visible_columns(app), layout.columns),
    ]
}

/// The indices of an axis on the screen, as text.
pub fn range(app: &App, mark: &str, axis: Axis, seen: &Range<usize>, count: usize) -> Piece {
    range_of(app, (mark, labels::name(axis)), seen, count)
}

fn range_of(app: &App, (mark, name): (&str, &str), seen: &Range<usize>, count: usize) -> Piece {
    let dim = app.theme.dim();
    if seen.len() < count && !seen.is_empty() {
        let range = match seen.len() {
            1 => seen.start.to_string(),
            _ => format!("{}-{}", seen.start, seen.end - 1),
        };
        Piece::forms([format!("{mark} {name} {range}"), format!("{mark} {range}")], dim)
    } else {
        Piece::forms([format!("{mark} {name}"), mark.to_owned()], dim)
    }
    .rank(2)
}

/// Draws a mark into each cell whose value an edit changes.
pub fn draw_edits(app: &App, layout: &Layout, buf: &mut Buffer) {
    let edits = app.edits();
    if !app.has_edits_here() {
        return;
    }
    let (step, sizes) = (app.place().step, app.outline().card.sizes());
    let area = layout.area.intersection(buf.area);
    layout.each_cell(app, |row, column, x, y| {
        let cell = (row, column);
        let found = match earlier_rows::applies(app) {
            true => earlier_rows::site(app, cell, app.index()[0]),
            false => index(app, cell).map(|index| (app.place().site(), app.dims(), index)),
        };
        let Some((site, dims, index)) = found.filter(|_| cell != layout.cursor) else { return };
        let index = step.index_in_stage(&index, &sizes.shape(step.stage().axes(), dims));
        let last = x + layout.cell - 1;
        if last >= area.width || !edits.iter().any(|edit| edited::changes(edit, site, dims, &index)) {
            return;
        }
        let Some(under) = buf.cell((area.x + last, area.y + y)).cloned() else { return };
        // The sign of exactly 0, of infinity and of NaN stays.
        if ["·", "∞", "?"].contains(&under.symbol()) {
            put(buf, area, last - 1, y, under.symbol(), under.style());
        }
        put(buf, area, last, y, edited::EDITED, under.style());
    });
}

/// Draws the indices and tokens around the cells.
pub fn draw_labels(app: &App, layout: &Layout, buf: &mut Buffer) {
    let (axes, cut, theme) = (app.place().step.axes(), app.cut(), app.theme);
    let (row_axis, column_axis) = (rows(app).0, axes[cut.columns.unwrap_or(cut.rows)]);
    let style = |selected: bool| if selected { theme.current() } else { theme.index() };
    let corner = format!("{} ↓", name_of_rows(app));
    put(buf, layout.area, 0, layout.header - 1, &text::cut(&corner, layout.label.into()), theme.dim());
    let digits = labels::digits(layout.rows);
    for (down, row) in layout.visible_rows(app).enumerate() {
        let y = layout.header + layout.line_of(down);
        let chosen = row == layout.cursor.0;
        put(buf, layout.area, 0, y, &format!("{row:>digits$}"), style(chosen));
        if let Some(token) = labels::text_of(app, row_axis, row) {
            let room = usize::from(layout.label).saturating_sub(digits + 2);
            let style = if chosen { theme.current() } else { theme.token() };
            put(buf, layout.area, digits as u16 + 1, y, &text::cut(&token, room), style);
        }
    }
    draw_header(app, layout, column_axis, buf);
}

fn draw_header(app: &App, layout: &Layout, column_axis: Axis, buf: &mut Buffer) {
    let theme = app.theme;
    // If indices are wider than the cells, only every second, third, … column is labelled, with a space between the
    // labels. A label that would touch the selected index is left out.
    let wide = labels::digits(layout.columns) as u16 + 1;
    let every = usize::from(wide.div_ceil(layout.cell.max(1)).max(1));
    let place = |right: usize, column: usize| {
        let (x, index) = (layout.label + right as u16 * layout.cell, column.to_string());
        if every == 1 {
            return (x, text::right(&index, usize::from(layout.cell) - 1));
        }
        (x.min(layout.area.width.saturating_sub(index.len() as u16)), index)
    };
    let visible = layout.visible_columns(app);
    let selected = visible.clone().position(|column| column == layout.cursor.1);
    let selected = selected.map(|right| place(right, layout.cursor.1));
    for (right, column) in visible.enumerate() {
        let x = layout.label + right as u16 * layout.cell;
        let chosen = column == layout.cursor.1;
        let (at, index) = place(right, column);
        let end = at + index.len() as u16;
        let free = selected
            .as_ref()
            .is_none_or(|(from, index)| every == 1 || end < *from || at > from + index.len() as u16);
        if chosen || (column % every == 0 && at == x && free) {
            let style = if chosen { theme.current() } else { theme.index() };
            put(buf, layout.area, at, layout.header - 1, &index, style);
        }
        let Some(token) = labels::text_of(app, column_axis, column) else { continue };
        let style = if chosen { theme.current() } else { theme.token() };
        let lines = layout.header - 1;
        if lines == 1 && layout.cell >= WRITTEN {
            put(buf, layout.area, x, 0, &text::right(&token, usize::from(layout.cell) - 1), style);
            continue;
        }
        // In narrow columns the token is written downwards, directly above the cells.
        let mut letters: Vec<char> = token.chars().collect();
        if letters.len() > lines.into() && letters.first() == Some(&'␣') {
            letters.remove(0); // without the leading space, one more letter fits
        }
        let shown = letters.len().min(lines.into());
        for (down, letter) in letters[..shown].iter().enumerate() {
            let last = shown > 1 && down + 1 == shown && shown < letters.len();
            let letter = if last { '⋮' } else { *letter };
            let y = lines - shown as u16 + down as u16;
            let x = x + layout.cell.saturating_sub(2); // above the last digit of the index
            put(buf, layout.area, x, y, &text::cut(&letter.to_string(), 2), style);
        }
    }
}
