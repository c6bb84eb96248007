//! The whole slice at once, however large it is.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::trace::{Part, Query, Step};

use super::super::app::App;
use super::super::fit::Piece;
use super::super::plane::Plane;
use super::halves::{self, Raster};
use super::kind::{self, View};
use super::layout::Layout;
use super::paint::put;
use super::{labels, legend};

/// The slice of the current tensor, two values or more in a character.
#[derive(Debug)]
pub struct Overview;

impl Overview {
    fn raster(app: &App, body: Rect) -> (Raster, u16) {
        let (cut, shape, index) = (app.cut(), app.shape(), app.index());
        let (rows, columns) = (shape[cut.rows], cut.columns.map_or(1, |columns| shape[columns]));
        let label = labels::digits(rows) as u16 + 2;
        let rows = halves::window(index[cut.rows], rows, columns, halves::MOST);
        let room =
            (usize::from(body.height.saturating_sub(1)), usize::from(body.width.saturating_sub(label)));
        (Raster::new(app, rows, 0..columns, room), label)
    }
}

impl View for Overview {
    fn name(&self) -> &'static str {
        "overview"
    }

    fn hint(&self) -> [&'static str; 3] {
        [
            "The whole slice at once: where there is no room for every value, the one furthest from 0 is shown.",
            "Stripes across are tokens that stand out, stripes down are dimensions that do so for every token.",
            "Arrows go from place to place, each time to the value that is furthest from 0 there.",
        ]
    }

    fn fits(&self, step: Step) -> bool {
        step.axes().len() > 1
    }

    fn layout(&self, app: &App, body: Rect) -> Layout {
        let (raster, label) = Self::raster(app, body);
        let (cut, index) = (app.cut(), app.index());
        let column = cut.columns.map_or(0, |columns| index[columns]);
        let cursor = raster.place_of(index[cut.rows], column);
        let (rows, columns) = raster.places;
        Layout { area: body, rows, columns, cursor, cell: 1, tall: 1, label, header: 1, footer: 0 }
    }

    fn index(&self, app: &App, cell: (usize, usize)) -> Option<Vec<usize>> {
        let (raster, _) = Self::raster(app, app.layout()?.area);
        let (cut, mut index) = (app.cut(), app.index());
        let (rows, columns) = raster.cell(cell);
        if rows.is_empty() || columns.is_empty() {
            return None;
        }
        let here = app.tensor().and_then(|tensor| {
            let plane = Plane::new(&tensor, &index, (cut.rows, cut.columns), &rows, &columns)?;
            halves::furthest(rows.clone(), columns.clone(), |row, column| plane.get(row, column))
        });
        let (row, column) = here.map_or((rows.start, columns.start), |(row, column, _)| (row, column));
        index[cut.rows] = row;
        if let Some(columns) = cut.columns {
            index[columns] = column;
        }
        Some(index)
    }

    fn questions(&self, app: &App, layout: &Layout) -> Vec<Query> {
        let site = app.place().site();
        let (raster, _) = Self::raster(app, layout.area);
        let block = Query::Block(site, kind::in_stage(app, halves::slice(app, raster.rows)));
        let spreads = [Part::whole(site), app.span_part()].map(Query::Spread);
        [block].into_iter().chain(spreads).collect()
    }

    fn caption(&self, app: &App, layout: &Layout) -> Vec<Piece> {
        let (raster, _) = Self::raster(app, layout.area);
        let (axes, cut, dim) = (app.place().step.axes(), app.cut(), app.theme.dim());
        let side = |mark: &str, axis: usize, each: usize| {
            let name = labels::name(axes[axis]);
            let long =
                if each > 1 { format!("{mark} {name}, {each} each") } else { format!("{mark} {name}") };
            Piece::forms([long, mark.to_owned()], dim).rank(2)
        };
        let all = app.shape()[cut.rows];
        let mut pieces = vec![side("↓", cut.rows, raster.each.0)];
        if raster.rows.len() < all {
            let range = format!(" {}-{}", raster.rows.start, raster.rows.end.saturating_sub(1));
            pieces.push(Piece::whole(range, dim).rank(1));
        }
        pieces.push(Piece::whole(" · ", dim));
        pieces.push(side("→", cut.columns.unwrap_or(cut.rows), raster.each.1));
        pieces
    }

    fn legend(&self, app: &App, foot: Rect, buf: &mut Buffer) {
        legend::ramp(app, foot, buf);
    }

    fn render(&self, app: &App, layout: &Layout, buf: &mut Buffer) {
        let (Some(tensor), (raster, label)) = (app.tensor(), Self::raster(app, layout.area)) else { return };
        let (cut, index, theme) = (app.cut(), app.index(), app.theme);
        let plane = Plane::new(&tensor, &index, (cut.rows, cut.columns), &raster.rows, &raster.columns);
        if let (Some(plane), Some(span)) = (plane, app.span()) {
            let Rect { x, y, width, height } = layout.area;
            let inner = Rect::new(x + label, y + 1, width.saturating_sub(label), height.saturating_sub(1));
            raster.draw(app, span, &plane, inner, buf);
        }
        // The cursor stands beside the values, which are all that is among them.
        let (down, across) = (layout.cursor.0 as u16, layout.cursor.1 as u16);
        put(buf, layout.area, label + across, 0, "▾", theme.strong());
        put(buf, layout.area, label - 1, down + 1, "▸", theme.strong());
        let digits = usize::from(label) - 2;
        for line in 0..raster.places.0 {
            let row = raster.cell((line, 0)).0.start;
            let chosen = line == layout.cursor.0;
            if line % 4 == 0 || chosen {
                let (row, style) =
                    if chosen { (index[cut.rows], theme.current()) } else { (row, theme.index()) };
                put(buf, layout.area, 0, line as u16 + 1, &format!("{row:>digits$}"), style);
            }
        }
        let marks = halves::marks(app, tensor.is_positive());
        let y = layout.header + layout.rows as u16;
        put(buf, layout.area, label, y, marks, theme.dim());
    }
}
