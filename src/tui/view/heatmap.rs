//! A matrix as colours.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Modifier;
use ratatui::widgets::Widget;

use crate::trace::frame::Number;

use super::super::app::App;
use super::super::text;
use super::super::theme::Depth;
use super::grid::{Grid, WRITTEN};
use super::paint::put;

/// The slice of the current tensor, a coloured cell for each value.
#[derive(Debug)]
pub struct Heatmap<'a> {
    /// The application.
    pub app: &'a App,
    /// Where its cells are.
    pub grid: Grid,
}

impl Widget for Heatmap<'_> {
    fn render(self, _: Rect, buf: &mut Buffer) {
        let Self { app, grid } = self;
        grid.draw_labels(app, buf);
        let (Some(tensor), Some(span)) = (app.tensor(), app.span()) else { return };
        let cut = app.cut();
        let (Some(columns), mut index) = (cut.columns, app.index()) else { return };
        let coloured = app.theme.depth() > Depth::Ansi;
        grid.each_cell(app, |row, column, x, y| {
            index[cut.rows] = row;
            index[columns] = column;
            let Some(number) = tensor.get(&index) else { return };
            let value = match number {
                Number::F32(value) => f64::from(value),
                Number::I64(id) => id as f64,
            };
            let cell = app.theme.cell(value, span);
            // Where shades stand for colours, only a wide cell has room for the shade and the number.
            let width = usize::from(grid.cell);
            let beyond = span.beyond(value);
            let numbered = grid.cell >= if coloured { WRITTEN } else { WRITTEN + 2 };
            let content = match (numbered, coloured) {
                (false, true) => text::left(beyond.unwrap_or(cell.fill), width),
                (false, false) => text::left(cell.fill, 2),
                (true, true) => {
                    text::right(&text::short(number, width - 1), width - 1) + beyond.unwrap_or(" ")
                }
                (true, false) => {
                    // The number has its own sign.
                    let shade = cell.fill.chars().last().filter(|_| value.is_finite()).unwrap_or(' ');
                    format!("{shade}{} ", text::right(&text::short(number, width - 3), width - 2))
                }
            };
            put(buf, grid.area(), x, y, &content, cell.style);
            if (row, column) != grid.cursor {
                return;
            }
            // Brackets, so that the cursor is no block of a colour or a shade: those are values.
            let style = cell.style.add_modifier(Modifier::BOLD);
            let bracket = if coloured { style } else { app.theme.strong() };
            let last = x + grid.cell - 1;
            match (numbered, coloured) {
                (true, true) => {
                    put(buf, grid.area(), x, y, &content, style.add_modifier(Modifier::REVERSED));
                }
                (true, false) => {
                    put(buf, grid.area(), x + 1, y, "[", bracket);
                    put(buf, grid.area(), last, y, "]", bracket);
                }
                (false, _) => {
                    if !coloured && grid.cell > 2 {
                        let inside = cell.fill.chars().skip(usize::from(grid.cell == 3)).collect::<String>();
                        put(buf, grid.area(), x + 1, y, &inside, cell.style);
                    }
                    put(buf, grid.area(), x, y, "[", bracket);
                    put(buf, grid.area(), last, y, "]", bracket);
                }
            }
        });
    }
}
