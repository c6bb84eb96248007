//! The overview: a whole slice of any size on one screen.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use llama_trace_core::trace::{Part, Query, Step};

use super::super::app::App;
use super::super::fit::Piece;
use super::super::plane::Plane;
use super::super::text;
use super::half_blocks::{self, Raster};
use super::kind::{self, View};
use super::layout::Layout;
use super::paint::{put, put_fit};
use super::{labels, legend};

/// Maximum columns of a token's text (`TEXT`), and minimum columns for the longest text (`SHORT`).
const TEXT: usize = 12;
const SHORT: u16 = 5;

/// The slice of the tensor, with two or more values in a character.
#[derive(Debug)]
pub struct Overview;

/// The slice on the screen. A wide slice with few rows is broken into bands, one below the other.
struct Sheet {
    raster: Raster,
    /// Columns before the values.
    label: u16,
    /// Columns for the rows' tokens, which are a part of `label`; 0 if the tokens have no room.
    texts: u16,
    /// Number of places in one line of a band.
    wide: usize,
}

impl Sheet {
    fn new(app: &App, body: Rect) -> Self {
        let sheet = Self::with_texts(app, body, 0);
        let at = app.cut().rows;
        let (axis, rows) = (app.place().step.axes()[at], app.shape()[at]);
        let longest = labels::text_width(app, axis, rows, TEXT) as u16;
        let looks = |sheet: &Self| (sheet.raster.each, sheet.raster.size(), sheet.bands());
        // Tokens get the columns that the values do not need.
        let mut wider = (SHORT.min(longest)..=longest).rev().map(|texts| Self::with_texts(app, body, texts));
        let wider = wider.find(|wider| longest > 0 && looks(wider) == looks(&sheet));
        wider.unwrap_or(sheet)
    }

    /// The sheet with `texts` columns for the rows' tokens.
    fn with_texts(app: &App, body: Rect, texts: u16) -> Self {
        let (cut, shape, index) = (app.cut(), app.shape(), app.index());
        let (rows, columns) = (shape[cut.rows], cut.columns.map_or(1, |columns| shape[columns]));
        let label = labels::digits(rows) as u16 + 2 + if texts > 0 { texts + 1 } else { 0 };
        let rows = half_blocks::window(index[cut.rows], rows, columns, half_blocks::MOST);
        let (high, wide) =
            (usize::from(body.height.saturating_sub(1)), usize::from(body.width.saturating_sub(label)));
        if let Some(raster) = Raster::magnified(rows.clone(), 0..columns, (high, wide)) {
            return Self { raster, label, texts, wide: columns };
        }
        let of =
            |bands: usize| Raster::new(app, rows.clone(), 0..columns, ((high + 1) / bands - 1, wide * bands));
        let mut best = (1, of(1));
        for bands in 2..=high.div_ceil(2) {
            let raster = of(bands);
            // A larger number of bands is better only if fewer columns share a place, and no more rows share one than
            // before.
            if raster.each.0 <= best.1.each.0 && raster.each.1 < best.1.each.1 {
                best = (bands, raster);
            }
        }
        let (bands, raster) = best;
        Self { wide: raster.places.1.div_ceil(bands).max(1), raster, label, texts }
    }

    fn bands(&self) -> usize {
        self.raster.places.1.div_ceil(self.wide).max(1)
    }

    /// The place in the raster that a cell on the screen belongs to.
    fn place(&self, (row, column): (usize, usize)) -> (usize, usize) {
        let lines = self.raster.places.0.max(1);
        (row % lines, row / lines * self.wide + column)
    }

    /// The cell on the screen that shows a place of the raster.
    fn cell(&self, (row, column): (usize, usize)) -> (usize, usize) {
        (column / self.wide * self.raster.places.0 + row, column % self.wide)
    }
}

impl View for Overview {
    fn name(&self) -> &'static str {
        "overview"
    }

    fn hint(&self) -> [&'static str; 3] {
        [
            "The whole slice. If several values share a cell, it shows the value furthest from 0.",
            "A horizontal stripe is a row with large values. A vertical stripe is a column (a dimension, a key) with large values in every row.",
            "The arrow keys go from cell to cell, to the value furthest from 0 in each.",
        ]
    }

    fn fits(&self, step: Step) -> bool {
        step.axes().len() > 1
    }

    fn layout(&self, app: &App, body: Rect) -> Layout {
        let sheet = Sheet::new(app, body);
        let (cut, index) = (app.cut(), app.index());
        let column = cut.columns.map_or(0, |columns| index[columns]);
        let (cursor, (tall, cell)) =
            (sheet.cell(sheet.raster.place_of(index[cut.rows], column)), sheet.raster.size());
        let (bands, lines) = (sheet.bands(), sheet.raster.places.0);
        let band = if bands > 1 { lines } else { 0 };
        Layout {
            area: body,
            rows: bands * lines,
            columns: sheet.wide,
            cursor,
            cell,
            tall,
            label: sheet.label,
            header: 1,
            band,
            ..Layout::default()
        }
    }

    fn index(&self, app: &App, cell: (usize, usize)) -> Option<Vec<usize>> {
        let sheet = Sheet::new(app, app.layout()?.area);
        let (cut, mut index) = (app.cut(), app.index());
        let (rows, columns) = sheet.raster.cell(sheet.place(cell));
        if rows.is_empty() || columns.is_empty() {
            return None;
        }
        let here = app.tensor().and_then(|tensor| {
            let plane = Plane::new(&tensor, &index, (cut.rows, cut.columns), &rows, &columns)?;
            half_blocks::furthest(rows.clone(), columns.clone(), |row, column| plane.get(row, column))
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
        let Sheet { raster, .. } = Sheet::new(app, layout.area);
        let block = Query::Block(site, kind::in_stage(app, half_blocks::slice(app, raster.rows)));
        let spreads = [Part::whole(site), app.span_part()].map(Query::Spread);
        [block].into_iter().chain(spreads).collect()
    }

    fn caption(&self, app: &App, layout: &Layout) -> Vec<Piece> {
        let Sheet { raster, .. } = Sheet::new(app, layout.area);
        let (axes, cut, dim) = (app.place().step.axes(), app.cut(), app.theme.dim());
        let side = |mark: &str, axis: usize, each: Option<String>| {
            let name = labels::name(axes[axis]);
            let long = each.map_or(format!("{mark} {name}"), |each| format!("{mark} {name}, {each}"));
            Piece::forms([long, mark.to_owned()], dim).rank(2)
        };
        let all = app.shape()[cut.rows];
        let mut pieces = vec![side("↓", cut.rows, raster.down(app))];
        if raster.rows.len() < all {
            let range = format!(" {}-{}", raster.rows.start, raster.rows.end.saturating_sub(1));
            pieces.push(Piece::whole(range, dim).rank(1));
        }
        pieces.push(Piece::whole(" · ", dim));
        pieces.push(side("→", cut.columns.unwrap_or(cut.rows), raster.right()));
        pieces
    }

    fn legend(&self, app: &App, foot: Rect, buf: &mut Buffer) {
        legend::small(app, foot, buf);
    }

    fn render(&self, app: &App, layout: &Layout, buf: &mut Buffer) {
        let (Some(tensor), sheet) = (app.tensor(), Sheet::new(app, layout.area)) else { return };
        let (cut, index, theme, Sheet { raster, label, texts, .. }) =
            (app.cut(), app.index(), app.theme, &sheet);
        let plane = Plane::new(&tensor, &index, (cut.rows, cut.columns), &raster.rows, &raster.columns);
        let (lines, area) = (raster.places.0, layout.area);
        let (row, across) = (layout.cursor.0, layout.cursor.1 as u16 * layout.cell);
        let top = |band: usize| layout.header + layout.line_of(band * lines);
        for band in 0..sheet.bands() {
            let part = raster.across(band * sheet.wide..(band + 1) * sheet.wide);
            if sheet.bands() > 1 {
                let name = cut.columns.map_or("", |columns| labels::name(app.place().step.axes()[columns]));
                let range = format!("{name} {}-{}", part.columns.start, part.columns.end.saturating_sub(1));
                // The cursor's mark may be in this line.
                let here = row / lines.max(1) == band && usize::from(across) <= range.len();
                put(buf, area, label + if here { across + 2 } else { 0 }, top(band) - 1, &range, theme.dim());
            }
            let (Some(plane), Some(span)) = (&plane, app.span()) else { continue };
            let inner = Rect { x: area.x + label, y: area.y + top(band), ..area }.intersection(area);
            part.draw(app, span, plane, inner, buf);
        }
        // The cursor's marks are beside the values, so that they cover no value.
        let band = row / lines.max(1);
        put(buf, area, label + across, top(band) - 1, "▾", theme.strong());
        put(buf, area, label - 1, layout.header + layout.line_of(row), "▸", theme.strong());
        let (axis, digits) = (app.place().step.axes()[cut.rows], labels::digits(app.shape()[cut.rows]));
        for row in 0..layout.rows {
            let line = row % lines.max(1);
            let first = raster.cell((line, 0)).0.start;
            let chosen = row == layout.cursor.0;
            if line % 4 == 0 || chosen || *texts > 0 {
                let (number, style) =
                    if chosen { (index[cut.rows], theme.current()) } else { (first, theme.index()) };
                let y = layout.header + layout.line_of(row);
                put(buf, area, 0, y, &format!("{number:>digits$}"), style);
                let token = labels::text_of(app, axis, number).filter(|_| *texts > 0).unwrap_or_default();
                let style = if chosen { theme.current() } else { theme.token() };
                put(buf, area, digits as u16 + 1, y, &text::cut(&token, usize::from(*texts)), style);
            }
        }
        let y = layout.header + layout.line_of(layout.rows.saturating_sub(1)) + layout.tall;
        put_fit(buf, area, *label, y, &[half_blocks::marks(app, tensor.is_positive())]);
    }
}
