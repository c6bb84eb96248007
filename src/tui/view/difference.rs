//! The difference of two compared tensors, cell by cell.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::widgets::Widget;

use llama_trace_core::trace::frame::Number;

use super::super::app::App;
use super::super::comparison;
use super::super::fit::Piece;
use super::super::tensor::Tensor;
use super::super::theme::Span;
use super::super::verdict_keys;
use super::grid;
use super::heatmap;
use super::kind::View;
use super::layout::Layout;
use super::legend;
use super::numbers::{self, Numbers};
use super::paint::put_fit;
use super::tensor::{Regions, TensorPanel};

/// The panel of the difference, in place of the second tensor.
#[derive(Debug)]
pub struct DifferencePanel<'a> {
    /// The viewer of the first tensor.
    pub app: &'a App,
    /// The viewer of the second tensor.
    pub other: &'a App,
}

/// Values of both tensors.
struct Both<'a> {
    here: (&'a App, Tensor),
    there: (&'a App, Tensor),
}

impl Both<'_> {
    /// The values in a cell; none unless both tensors have one.
    fn values(&self, cell: (usize, usize)) -> Option<[Number; 2]> {
        let of = |(app, tensor): &(&App, Tensor)| grid::value(app, tensor, cell);
        Some([of(&self.here)?, of(&self.there)?])
    }

    fn difference(&self, cell: (usize, usize)) -> Option<f64> {
        let [here, there] = self.values(cell)?.map(Number::real);
        Some(comparison::difference(here, there))
    }
}

/// Summary of the differences on the screen.
struct Found {
    cells: usize,
    equal: usize,
    /// The cell and the value of the largest finite difference (by absolute value).
    furthest: Option<((usize, usize), f64)>,
}

impl Found {
    fn new(both: &Both<'_>, layout: &Layout) -> Self {
        let mut found = Self { cells: 0, equal: 0, furthest: None };
        layout.each_cell(both.there.0, |row, column, _, _| {
            let Some(value) = both.difference((row, column)) else { return };
            found.cells += 1;
            found.equal += usize::from(value == 0.0);
            let most = found.furthest.map_or(0.0, |(_, value)| value.abs());
            if value.is_finite() && value.abs() > most {
                found.furthest = Some(((row, column), value));
            }
        });
        found
    }

    fn span(&self) -> Span {
        let high = self.furthest.map_or(1.0, |(_, value)| value.abs());
        Span { positive: false, high, clipped: 0, at_most: false }
    }
}

impl Widget for DifferencePanel<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let Self { app, other } = self;
        // The tensor panel shows why values are missing.
        let (Some(here), Some(there)) = (app.tensor(), other.tensor()) else {
            return TensorPanel(other).render(area, buf);
        };
        let both = Both { here: (app, here), there: (other, there) };
        let regions = Regions::new(other, area);
        let mut layout = other.view().layout(other, regions.body);
        if let Some(beside) = app.layout() {
            // Only the rows that both tensors show are drawn.
            layout.area.height = layout.area.height.min(beside.area.height);
        }
        if other.comparison.out_of_range {
            layout.cursor = (usize::MAX, usize::MAX);
        }
        let found = Found::new(&both, &layout);
        heading(app, other, &layout, regions.head, buf);
        grid::draw_labels(other, &layout, buf);
        let value = |cell| both.difference(cell).map(|value| Number::F32(value as f32));
        match other.view().name() == Numbers.name() {
            true => numbers::cells(other, &layout, value, buf),
            false => heatmap::cells(other, &layout, found.span(), value, buf),
        }
        below(&both, &found, &layout, regions.foot_below(layout.lines(other)), buf);
    }
}

/// Draws the heading: which tensor is subtracted from which, and the cells on the screen.
fn heading(app: &App, other: &App, layout: &Layout, head: Rect, buf: &mut Buffer) {
    let Some((run, name, _)) = app.compared() else { return };
    let (theme, (which, less)) = (app.theme, verdict_keys::names(app, run, name));
    let mut pieces = vec![
        Piece::words(format!("{}: {less}", app.place().step.name()), theme.strong()),
        Piece::whole(format!(" ({which})"), theme.dim()).rank(1),
    ];
    let caption = other.view().caption(other, layout);
    if head.height > 1 {
        put_fit(buf, head, 0, 1, &caption);
    } else {
        pieces.push(Piece::whole(" · ", theme.dim()));
        pieces.extend(caption);
    }
    put_fit(buf, head, 0, 0, &pieces);
}

/// Draws the foot: the legend, the number of equal cells, and the two values under the cursor.
fn below(both: &Both<'_>, found: &Found, layout: &Layout, foot: Rect, buf: &mut Buffer) {
    let (app, dim) = (both.here.0, both.here.0.theme.dim());
    let mut pieces = legend::scale(app, found.span(), found.furthest.is_none(), |value, span| {
        let cell = app.theme.cell(value, span);
        (cell.fill, cell.style)
    });
    pieces.push(Piece::forms([" · these cells".to_owned(), String::new()], dim).rank(1));
    put_fit(buf, foot, 0, 0, &pieces);
    let mut pieces =
        vec![Piece::whole(format!("equal in {} of the {} cells shown", found.equal, found.cells), dim)];
    if let Some(index) = found.furthest.and_then(|(cell, _)| grid::index(app, cell)) {
        let furthest = format!(" · largest difference at {}", app.place().address(&index));
        pieces.push(Piece::whole(furthest, dim).rank(1));
    }
    put_fit(buf, foot, 0, 1, &pieces);
    if let (Some([here, there]), Some(value)) = (both.values(layout.cursor), both.difference(layout.cursor)) {
        let plain = Style::new();
        let (open, close) = if there.real() < 0.0 { ("(", ")") } else { ("", "") };
        let line = [
            Piece::value(here, plain),
            Piece::whole(format!(" − {open}"), plain),
            Piece::value(there, plain),
            Piece::whole(format!("{close} = "), plain),
            Piece::value(Number::F32(value as f32), app.theme.strong()),
        ];
        put_fit(buf, foot, 0, 2, &line);
    }
}
