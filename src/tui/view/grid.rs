//! Rows and columns of a matrix on the screen: how wide a cell is, which of them are visible, and the labels
//! around them. Both the heatmap and the numbers are such a grid.

use std::ops::Range;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::trace::Axis;

use super::super::app::{App, Show};
use super::super::text;
use super::labels;
use super::paint::put;
use super::tensor::Regions;

/// The columns of a cell of numbers, with the space before them.
const NUMBER: u16 = 10;
/// Cells of a heatmap are between these widths.
const NARROWEST: u16 = 2;
const WIDEST: u16 = 8;
/// From this width on, a coloured cell has its number written in it.
pub const WRITTEN: u16 = 5;

/// The geometry of a matrix on the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Meaning of the axis that goes down.
    pub row_axis: Axis,
    /// Meaning of the axis that goes across.
    pub column_axis: Axis,
    /// How many rows there are.
    pub rows: usize,
    /// How many columns there are.
    pub columns: usize,
    /// The selected row and column.
    pub cursor: (usize, usize),
    /// Terminal columns of one cell.
    pub cell: u16,
    label: u16,
    header: u16,
    area: Rect,
}

impl Grid {
    /// The grid in a tensor panel of `area`; none where the values are shown as a list.
    pub fn new(app: &App, area: Rect) -> Option<Self> {
        let cut = app.cut();
        let columns_at = cut.columns?;
        let axes = app.place().step.axes();
        let (shape, index) = (app.shape(), app.index());
        let (row_axis, column_axis) = (axes[cut.rows], axes[columns_at]);
        let (rows, columns) = (shape[cut.rows], shape[columns_at]);
        let area = Regions::new(area).body;
        let texts = if area.width >= 80 { 14 } else { 10 };
        let mut label = labels::digits(rows);
        if labels::has_text(row_axis) {
            label += 1 + labels::text_width(app, row_axis, rows, texts);
        }
        let label = (label.max(labels::name(row_axis).len() + 2) + 1).min(usize::from(area.width) / 2) as u16;
        let room = area.width - label;
        let cell = match app.show() {
            Show::Numbers => NUMBER,
            _ => {
                u16::try_from(usize::from(room) / columns.max(1)).unwrap_or(u16::MAX).clamp(NARROWEST, WIDEST)
            }
        };
        let tokens = match (labels::has_text(column_axis), cell) {
            (false, _) => 0,
            (true, WRITTEN..) => 1,
            (true, _) => {
                let longest = labels::text_width(app, column_axis, columns, 6) as u16;
                longest.min(area.height / 4).max(1)
            }
        };
        let cursor = (index[cut.rows], index[columns_at]);
        Some(Self { row_axis, column_axis, rows, columns, cursor, cell, label, header: 1 + tokens, area })
    }

    /// How many rows fit.
    pub fn rows_seen(&self) -> usize {
        usize::from(self.area.height.saturating_sub(self.header))
    }

    /// How many columns fit.
    pub fn columns_seen(&self) -> usize {
        usize::from(self.area.width.saturating_sub(self.label) / self.cell.max(1))
    }

    /// How many lines it takes, header included.
    pub fn lines(&self, app: &App) -> usize {
        usize::from(self.header) + self.visible_rows(app).len()
    }

    /// The rows on the screen.
    pub fn visible_rows(&self, app: &App) -> Range<usize> {
        let first = app.offset().0.min(self.rows);
        first..(first + self.rows_seen()).min(self.rows)
    }

    /// The columns on the screen.
    pub fn visible_columns(&self, app: &App) -> Range<usize> {
        let first = app.offset().1.min(self.columns);
        first..(first + self.columns_seen()).min(self.columns)
    }

    /// The row and column at a place of the screen.
    pub fn cell_at(&self, app: &App, x: u16, y: u16) -> Option<(usize, usize)> {
        let right = x.checked_sub(self.area.x + self.label)? / self.cell.max(1);
        let down = y.checked_sub(self.area.y + self.header)?;
        let row = self.visible_rows(app).nth(down.into())?;
        Some((row, self.visible_columns(app).nth(right.into())?))
    }

    /// Calls `draw` for every visible cell with its row, its column, and its place relative to [`Self::area`].
    pub fn each_cell(&self, app: &App, mut draw: impl FnMut(usize, usize, u16, u16)) {
        for (down, row) in self.visible_rows(app).enumerate() {
            for (right, column) in self.visible_columns(app).enumerate() {
                draw(row, column, self.label + right as u16 * self.cell, self.header + down as u16);
            }
        }
    }

    /// The area that it is drawn in, labels included.
    pub fn area(&self) -> Rect {
        self.area
    }

    /// Draws the indices and tokens around the cells.
    pub fn draw_labels(&self, app: &App, buf: &mut Buffer) {
        let theme = app.theme;
        let style = |selected: bool| if selected { theme.current() } else { theme.index() };
        let corner = format!("{} ↓", labels::name(self.row_axis));
        put(buf, self.area, 0, self.header - 1, &text::cut(&corner, self.label.into()), theme.dim());
        let digits = labels::digits(self.rows);
        for (down, row) in self.visible_rows(app).enumerate() {
            let y = self.header + down as u16;
            let chosen = row == self.cursor.0;
            put(buf, self.area, 0, y, &format!("{row:>digits$}"), style(chosen));
            if let Some(token) = labels::text_of(app, self.row_axis, row) {
                let room = usize::from(self.label).saturating_sub(digits + 2);
                let style = if chosen { theme.current() } else { theme.token() };
                put(buf, self.area, digits as u16 + 1, y, &text::cut(&token, room), style);
            }
        }
        self.draw_header(app, buf);
    }

    fn draw_header(&self, app: &App, buf: &mut Buffer) {
        let theme = app.theme;
        // Indices that are wider than their cells stand above every second, third, … column: whole, with a
        // space between them, and not those that the selected one leaves no room for.
        let wide = labels::digits(self.columns) as u16 + 1;
        let every = usize::from(wide.div_ceil(self.cell.max(1)).max(1));
        let place = |right: usize, column: usize| {
            let (x, index) = (self.label + right as u16 * self.cell, column.to_string());
            if every == 1 {
                return (x, text::right(&index, usize::from(self.cell) - 1));
            }
            (x.min(self.area.width.saturating_sub(index.len() as u16)), index)
        };
        let visible = self.visible_columns(app);
        let selected = visible.clone().position(|column| column == self.cursor.1);
        let selected = selected.map(|right| place(right, self.cursor.1));
        for (right, column) in visible.enumerate() {
            let x = self.label + right as u16 * self.cell;
            let chosen = column == self.cursor.1;
            let (at, index) = place(right, column);
            let end = at + index.len() as u16;
            let free = selected
                .as_ref()
                .is_none_or(|(from, index)| every == 1 || end < *from || at > from + index.len() as u16);
            if chosen || (column % every == 0 && at == x && free) {
                let style = if chosen { theme.current() } else { theme.index() };
                put(buf, self.area, at, self.header - 1, &index, style);
            }
            let Some(token) = labels::text_of(app, self.column_axis, column) else { continue };
            let style = if chosen { theme.current() } else { theme.token() };
            let lines = self.header - 1;
            if lines == 1 && self.cell >= WRITTEN {
                put(buf, self.area, x, 0, &text::right(&token, usize::from(self.cell) - 1), style);
                continue;
            }
            // Narrow columns have their token written downwards, ending above the cells.
            let mut letters: Vec<char> = token.chars().collect();
            if letters.len() > lines.into() && letters.first() == Some(&'␣') {
                letters.remove(0); // its first letters tell more than the space before them
            }
            let shown = letters.len().min(lines.into());
            for (down, letter) in letters[..shown].iter().enumerate() {
                let last = shown > 1 && down + 1 == shown && shown < letters.len();
                let letter = if last { '⋮' } else { *letter };
                let y = lines - shown as u16 + down as u16;
                let x = x + self.cell.saturating_sub(2); // above the last digit of the index
                put(buf, self.area, x, y, &text::cut(&letter.to_string(), 2), style);
            }
        }
    }
}
