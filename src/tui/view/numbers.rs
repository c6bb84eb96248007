//! The numbers: a matrix written out.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use llama_trace_core::trace::frame::Number;
use llama_trace_core::trace::{Query, Step};

use super::super::app::App;
use super::super::fit::Piece;
use super::super::text;
use super::grid;
use super::kind::View;
use super::layout::Layout;
use super::legend;
use super::paint::{put, put_fit};

/// The slice of the tensor, a number for each value.
#[derive(Debug)]
pub struct Numbers;

impl View for Numbers {
    fn name(&self) -> &'static str {
        "numbers"
    }

    fn hint(&self) -> [&'static str; 3] {
        [
            "Every value of the slice as a number, with as many digits as fit.",
            "The last line has the value under the cursor with all its digits.",
            "Use this view to compare rows and columns exactly.",
        ]
    }

    fn fits(&self, step: Step) -> bool {
        step.axes().len() > 1
    }

    fn is_grid(&self) -> bool {
        true
    }

    fn layout(&self, app: &App, body: Rect) -> Layout {
        grid::layout(app, body, grid::written)
    }

    fn index(&self, app: &App, cell: (usize, usize)) -> Option<Vec<usize>> {
        grid::index(app, cell)
    }

    fn select(&self, app: &mut App, cell: (usize, usize)) {
        grid::select(app, cell);
    }

    fn questions(&self, app: &App, layout: &Layout) -> Vec<Query> {
        grid::questions(app, layout)
    }

    fn caption(&self, app: &App, layout: &Layout) -> Vec<Piece> {
        grid::caption(app, layout)
    }

    fn legend(&self, app: &App, foot: Rect, buf: &mut Buffer) {
        let next = "v lists the other views";
        put_fit(buf, foot, 0, 0, &[Piece::whole(next, app.theme.dim()), legend::edited(app)]);
    }

    fn render(&self, app: &App, layout: &Layout, buf: &mut Buffer) {
        grid::draw_labels(app, layout, buf);
        let Some(tensor) = app.tensor() else { return };
        cells(app, layout, |cell| grid::value(app, &tensor, cell), buf);
        grid::draw_edits(app, layout, buf);
    }
}

/// Writes each of these values into its cell.
pub(super) fn cells(
    app: &App,
    layout: &Layout,
    value: impl Fn((usize, usize)) -> Option<Number>,
    buf: &mut Buffer,
) {
    layout.each_cell(app, |row, column, x, y| {
        let Some(number) = value((row, column)) else { return };
        let style = if (row, column) == layout.cursor {
            app.theme.current()
        } else if app.leaves_out(number.real()) {
            app.theme.dim()
        } else if matches!(number, Number::F32(value) if !value.is_finite()) {
            app.theme.special()
        } else {
            Style::new()
        };
        let width = usize::from(layout.cell) - 1;
        put(buf, layout.area, x, y, &text::right(&text::full_in(number, width), width), style);
    });
}
