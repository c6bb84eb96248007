//! The heatmap: a matrix as colours.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Modifier;

use llama_trace_core::trace::frame::Number;
use llama_trace_core::trace::{Query, Step};

use super::super::app::App;
use super::super::fit::Piece;
use super::super::text;
use super::super::theme::{Depth, Span};
use super::grid::{self, WRITTEN};
use super::kind::View;
use super::layout::Layout;
use super::legend;
use super::paint::put;

/// Columns for a number in a cell; none if the cell has no room for a number. Without colours, the shade
/// takes a part of the cell.
fn digits(app: &App, cell: u16) -> Option<usize> {
    let (least, beside) = if app.theme.depth() > Depth::Ansi { (WRITTEN, 1) } else { (WRITTEN + 2, 3) };
    (cell >= least).then(|| usize::from(cell) - beside)
}

/// Returns whether a value on the screen has no room for even one digit.
fn cut_numbers(app: &App) -> bool {
    let (Some(layout), Some(tensor)) = (app.layout(), app.tensor()) else { return false };
    let Some(columns) = digits(app, layout.cell) else { return false };
    let mut cells =
        layout.visible_rows(app).flat_map(|row| layout.visible_columns(app).map(move |column| (row, column)));
    cells
        .any(|cell| grid::value(app, &tensor, cell).is_some_and(|number| text::short(number, columns) == "…"))
}

/// The slice of the tensor, a coloured cell for each value.
#[derive(Debug)]
pub struct Heatmap;

impl View for Heatmap {
    fn name(&self) -> &'static str {
        "heatmap"
    }

    fn hint(&self) -> [&'static str; 3] {
        [
            "Each cell has the colour of its value; the line below shows the colour scale. 1 is exactly 1, 1.000 is rounded.",
            "A bright column: this index has large values in every row. A bright row: this row has large values at every index.",
            "▲ and ▼ are values beyond the colour scale: s chooses another one. In attention of decode passes, the rows of earlier passes are above.",
        ]
    }

    fn fits(&self, step: Step) -> bool {
        step.axes().len() > 1
    }

    fn is_grid(&self) -> bool {
        true
    }

    fn layout(&self, app: &App, body: Rect) -> Layout {
        grid::layout(app, body, grid::coloured)
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
        let numbered = app.layout().is_some_and(|layout| digits(app, layout.cell).is_some());
        legend::heatmap(app, numbered.then(|| cut_numbers(app)), foot, buf);
    }

    fn render(&self, app: &App, layout: &Layout, buf: &mut Buffer) {
        grid::draw_labels(app, layout, buf);
        let (Some(tensor), Some(span)) = (app.tensor(), app.span()) else { return };
        cells(app, layout, span, |cell| grid::value(app, &tensor, cell), buf);
        grid::draw_edits(app, layout, buf);
    }
}

/// Draws a coloured cell for each of these values.
pub(super) fn cells(
    app: &App,
    layout: &Layout,
    span: Span,
    value: impl Fn((usize, usize)) -> Option<Number>,
    buf: &mut Buffer,
) {
    let coloured = app.theme.depth() > Depth::Ansi;
    layout.each_cell(app, |row, column, x, y| {
        let Some(number) = value((row, column)) else { return };
        let real = number.real();
        let cell = app.theme.cell(real, span);
        // Without colours, only a wide cell has room for both the shade and the number.
        let width = usize::from(layout.cell);
        let beyond = span.beyond(real);
        let numbered = digits(app, layout.cell).is_some();
        let content = match (numbered, coloured) {
            (false, true) => text::left(beyond.unwrap_or(cell.fill), width),
            (false, false) => text::left(cell.fill, 2),
            (true, true) => text::right(&text::short(number, width - 1), width - 1) + beyond.unwrap_or(" "),
            (true, false) => {
                // The number has its own sign, so the shade needs none.
                let shade = cell.fill.chars().last().filter(|_| real.is_finite()).unwrap_or(' ');
                format!("{shade}{} ", text::right(&text::short(number, width - 3), width - 2))
            }
        };
        if app.leaves_out(real) && (row, column) != layout.cursor {
            let content = if numbered {
                text::right(&text::short(number, width - 2), width - 2)
            } else {
                String::new()
            };
            put(buf, layout.area, x, y, &content, app.theme.dim());
            return;
        }
        put(buf, layout.area, x, y, &content, cell.style);
        if coloured {
            // The colour fills all lines of a tall cell.
            for line in 1..layout.tall {
                put(buf, layout.area, x, y + line, &" ".repeat(width), cell.style);
            }
        }
        if (row, column) != layout.cursor {
            return;
        }
        // The cursor is a pair of brackets, because a block in a colour or a shade would look like a value.
        let style = cell.style.add_modifier(Modifier::BOLD);
        let bracket = if coloured { style } else { app.theme.strong() };
        let last = x + layout.cell - 1;
        match (numbered, coloured) {
            (true, true) => {
                put(buf, layout.area, x, y, &content, style.add_modifier(Modifier::REVERSED));
            }
            (true, false) => {
                put(buf, layout.area, x + 1, y, "[", bracket);
                put(buf, layout.area, last, y, "]", bracket);
            }
            (false, _) => {
                if !coloured && layout.cell > 2 {
                    let inside = cell.fill.chars().skip(usize::from(layout.cell == 3)).collect::<String>();
                    put(buf, layout.area, x + 1, y, &inside, cell.style);
                }
                put(buf, layout.area, x, y, "[", bracket);
                put(buf, layout.area, last, y, "]", bracket);
            }
        }
    });
}
