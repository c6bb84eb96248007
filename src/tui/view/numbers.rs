//! A matrix as numbers.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::widgets::Widget;

use crate::trace::frame::Number;

use super::super::app::App;
use super::super::text;
use super::grid::Grid;
use super::paint::put;

/// The slice of the current tensor, a number for each value.
#[derive(Debug)]
pub struct Numbers<'a> {
    /// The application.
    pub app: &'a App,
    /// Where its cells are.
    pub grid: Grid,
}

impl Widget for Numbers<'_> {
    fn render(self, _: Rect, buf: &mut Buffer) {
        let Self { app, grid } = self;
        grid.draw_labels(app, buf);
        let Some(tensor) = app.tensor() else { return };
        let cut = app.cut();
        let (Some(columns), mut index) = (cut.columns, app.index()) else { return };
        grid.each_cell(app, |row, column, x, y| {
            index[cut.rows] = row;
            index[columns] = column;
            let Some(number) = tensor.get(&index) else { return };
            let style = if (row, column) == grid.cursor {
                app.theme.current()
            } else if matches!(number, Number::F32(value) if !value.is_finite()) {
                app.theme.special()
            } else {
                Style::new()
            };
            let width = usize::from(grid.cell) - 1;
            put(buf, grid.area(), x, y, &text::right(&text::number(number), width), style);
        });
    }
}
