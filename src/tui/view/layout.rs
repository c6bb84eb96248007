//! Layout of a view's cells on the screen: rows, columns, the visible ones among them, and the cursor. Moving, paging
//! and the mouse use this layout in all views.

use std::ops::Range;

use ratatui::layout::Rect;

use super::super::app::App;

/// The cells of a view in a panel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The area of the view, including labels.
    pub area: Rect,
    /// Number of rows.
    pub rows: usize,
    /// Number of columns; 1 in a list.
    pub columns: usize,
    /// Row and column of the cursor.
    pub cursor: (usize, usize),
    /// Width of a cell in terminal columns.
    pub cell: u16,
    /// Height of a cell in lines.
    pub tall: u16,
    /// Terminal columns before the first cell.
    pub label: u16,
    /// Lines above the first cell.
    pub header: u16,
    /// Lines below the last cell.
    pub footer: u16,
    /// An empty line follows every group of this many rows; 0 for no empty lines.
    pub band: usize,
    /// Number of rows before and after the cursor's row that stay in sight, if there is room.
    pub margin: usize,
}

impl Layout {
    /// Number of rows that fit.
    pub fn rows_seen(&self) -> usize {
        usize::from(self.area.height.saturating_sub(self.header + self.footer) / self.tall.max(1))
    }

    /// Number of columns that fit.
    pub fn columns_seen(&self) -> usize {
        usize::from(self.area.width.saturating_sub(self.label) / self.cell.max(1))
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

    /// Number of lines, including labels.
    pub fn lines(&self, app: &App) -> usize {
        let rows = self.visible_rows(app).len();
        let end = rows.checked_sub(1).map_or(0, |last| usize::from(self.line_of(last) + self.tall));
        usize::from(self.header + self.footer) + end
    }

    /// The line of a row on the screen, counted from the header. The row is `down` rows below the first visible one.
    pub fn line_of(&self, down: usize) -> u16 {
        (down * usize::from(self.tall) + down.checked_div(self.band).unwrap_or(0)) as u16
    }

    /// The row and column of the cell at a position of the screen.
    pub fn cell_at(&self, app: &App, x: u16, y: u16) -> Option<(usize, usize)> {
        let right = x.checked_sub(self.area.x + self.label)? / self.cell.max(1);
        let line = y.checked_sub(self.area.y + self.header)?;
        let rows = self.visible_rows(app);
        let on = |down: &usize| (self.line_of(*down)..self.line_of(*down) + self.tall.max(1)).contains(&line);
        let down = (0..rows.len()).find(on)?;
        Some((rows.start + down, self.visible_columns(app).nth(right.into())?))
    }

    /// Calls `draw` for every visible cell with the cell's row, its column, and its position relative to the area.
    pub fn each_cell(&self, app: &App, mut draw: impl FnMut(usize, usize, u16, u16)) {
        for (down, row) in self.visible_rows(app).enumerate() {
            for (right, column) in self.visible_columns(app).enumerate() {
                draw(row, column, self.label + right as u16 * self.cell, self.header + self.line_of(down));
            }
        }
    }

    /// The cell that is `down` rows and `right` columns from the cursor, or the last cell in that direction.
    pub fn moved(&self, down: isize, right: isize) -> (usize, usize) {
        let within =
            |at: usize, by: isize, count: usize| at.saturating_add_signed(by).min(count.saturating_sub(1));
        (within(self.cursor.0, down, self.rows), within(self.cursor.1, right, self.columns))
    }

    /// The first row and column to show. With them the cursor is in sight, and no room stays empty.
    pub fn follow(&self, offset: (usize, usize)) -> (usize, usize) {
        let follow = |offset: usize, at: usize, seen: usize, count: usize, margin: usize| {
            let seen = seen.max(1);
            let margin = margin.min((seen - 1) / 2);
            let offset = offset.min(at.saturating_sub(margin)).max((at + 1 + margin).saturating_sub(seen));
            offset.min(count.saturating_sub(seen))
        };
        (
            follow(offset.0, self.cursor.0, self.rows_seen(), self.rows, self.margin),
            follow(offset.1, self.cursor.1, self.columns_seen(), self.columns, 0),
        )
    }
}
