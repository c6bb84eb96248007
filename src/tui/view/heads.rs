//! All heads of a layer as small heatmaps, side by side.

use std::ops::Range;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use llama_trace_core::trace::frame::Number;
use llama_trace_core::trace::{Axis, Part, Query, Region, Step};

use super::super::app::App;
use super::super::fit::Piece;
use super::super::plane::Plane;
use super::super::text;
use super::earlier_rows;
use super::half_blocks::{self, Raster};
use super::kind::{self, View};
use super::layout::Layout;
use super::paint::{put, put_fit};
use super::{labels, legend};

/// Minimum and maximum columns, and minimum lines of a head. They include its name and the space between two heads.
const NARROWEST: u16 = 10;
const WIDEST: u16 = 42;
const LOWEST: u16 = 5;
/// Lines of a head besides its values: its name and the empty line below. It is also the number of columns between two
/// heads.
const BESIDE: u16 = 2;

/// Every head of the current step as a small heatmap.
#[derive(Debug)]
pub struct Heads;

/// The axis of the panels, and the axes that go down and across in each panel.
fn axes_of(step: Step) -> Option<(usize, usize, usize)> {
    let axes = step.axes();
    let head = axes.iter().position(|axis| matches!(axis, Axis::Head | Axis::KvHead))?;
    let mut others = (0..axes.len()).filter(|&axis| axis != head);
    Some((head, others.next()?, others.next()?))
}

/// Possible numbers of heads side by side. Every line is full. Heads that share a kv head are either all in one line,
/// or fill lines without other heads.
fn abreast(app: &App, heads: usize) -> impl Iterator<Item = usize> {
    let shares = app.place().step.axes().contains(&Axis::Head);
    let group = if shares { app.cursor.selected.group() } else { 1 };
    (1..=heads).filter(move |&columns| {
        heads.is_multiple_of(columns) && (columns.is_multiple_of(group) || group.is_multiple_of(columns))
    })
}

impl Heads {
    /// The number of heads side by side, and their raster, if all heads fit with more than one character per value.
    fn magnified(app: &App, body: Rect) -> Option<(usize, Raster)> {
        let (shape, axes) = (app.shape(), axes_of(app.place().step)?);
        let (heads, rows) = (shape[axes.0].max(1), Self::rows(app, axes));
        let found = abreast(app, heads).filter_map(|columns| {
            let room = |all: usize, parts: usize| (all / parts).saturating_sub(BESIDE.into());
            let high = room(usize::from(body.height.saturating_sub(1)), heads / columns);
            let wide = room(body.width.into(), columns);
            Some((columns, Raster::magnified(rows.clone(), 0..shape[axes.2], (high, wide))?))
        });
        // Chooses the largest raster, and among equal rasters the one with the most heads side by side.
        found.max_by_key(|(columns, raster)| (raster.size(), *columns))
    }

    /// The raster of a head.
    fn raster(app: &App, axes: (usize, usize, usize), layout: &Layout) -> Raster {
        let (lines, columns) = (usize::from(layout.tall), usize::from(layout.cell));
        let room = (lines.saturating_sub(2).max(1), columns.saturating_sub(1));
        Self::magnified(app, layout.area).map_or_else(
            || Raster::new(app, Self::rows(app, axes), 0..app.shape()[axes.2], room),
            |(_, raster)| raster,
        )
    }

    /// The rows of every panel, including rows of earlier passes.
    fn rows(app: &App, (head, down, across): (usize, usize, usize)) -> Range<usize> {
        let (shape, (at, all)) = (app.shape(), Self::row(app, down));
        half_blocks::window(at, all, shape[across] * shape[head], half_blocks::MOST)
    }

    /// The row under the cursor and the number of rows.
    fn row(app: &App, down: usize) -> (usize, usize) {
        let (at, dims) = (app.index()[down], app.dims());
        if earlier_rows::applies(app) { (dims.start + at, dims.keys()) } else { (at, app.shape()[down]) }
    }

    /// The largest absolute value in the panels, if they have rows of earlier passes.
    pub(crate) fn largest(app: &App) -> Option<f64> {
        let axes = axes_of(app.place().step).filter(|_| earlier_rows::applies(app))?;
        Some(earlier_rows::largest(app, Self::rows(app, axes), Part::whole))
    }
}

impl View for Heads {
    fn name(&self) -> &'static str {
        "heads"
    }

    fn hint(&self) -> [&'static str; 3] {
        [
            "All heads of the layer, each as a small heatmap; a line runs over the heads that share a kv head.",
            "A bright diagonal: the head attends a fixed number of tokens back. A bright first column: it attends to the first token.",
            "The arrow keys and [ ] choose a head; 1 shows it large.",
        ]
    }

    fn fits(&self, step: Step) -> bool {
        axes_of(step).is_some()
    }

    fn spans_all(&self) -> bool {
        true
    }

    fn layout(&self, app: &App, body: Rect) -> Layout {
        let shape = app.shape();
        let (head, down, across) = axes_of(app.place().step).unwrap_or((0, 0, 0));
        let heads = shape[head].max(1);
        if let Some((columns, raster)) = Self::magnified(app, body) {
            let (at, (tall, wide)) = (app.index()[head], raster.size());
            let cell = wide * raster.places.1 as u16 + BESIDE;
            let tall = tall * raster.places.0 as u16 + BESIDE;
            let cursor = (at / columns, at % columns);
            let rows = heads / columns;
            return Layout { area: body, rows, columns, cursor, cell, tall, header: 1, ..Layout::default() };
        }
        let lines = Self::rows(app, (head, down, across)).len().div_ceil(2);
        // The panels are as large as the room allows, but not larger than the values need.
        let mut best = (1, NARROWEST, LOWEST);
        for columns in
            abreast(app, heads).filter(|&columns| columns <= usize::from(body.width / NARROWEST).max(1))
        {
            let rows = heads / columns;
            let wide = (body.width / columns as u16).min(WIDEST).min(shape[across].max(7) as u16 + 2);
            let high = (body.height.saturating_sub(1) / rows as u16).min(lines as u16 + 2);
            let area = |wide: u16, high: u16| u32::from(wide) * u32::from(high);
            if high >= LOWEST.min(lines as u16 + 2) && area(wide, high) >= area(best.1, best.2)
                || columns == 1
            {
                best = (columns, wide.max(2), high.max(2));
            }
        }
        let (columns, cell, tall) = best;
        let at = app.index()[head];
        let cursor = (at / columns, at % columns);
        let rows = heads / columns;
        Layout { area: body, rows, columns, cursor, cell, tall, label: 0, header: 1, ..Layout::default() }
    }

    fn index(&self, app: &App, cell: (usize, usize)) -> Option<Vec<usize>> {
        let (head, _, _) = axes_of(app.place().step)?;
        let at = cell.0 * app.layout()?.columns + cell.1;
        let mut index = app.index();
        (at < app.shape()[head]).then(|| {
            index[head] = at;
            index
        })
    }

    fn questions(&self, app: &App, layout: &Layout) -> Vec<Query> {
        let (site, shape) = (app.place().site(), app.shape());
        let Some((head, down, across)) = axes_of(app.place().step) else { return Vec::new() };
        let mut region = vec![0..0; 3];
        let seen = layout.visible_rows(app);
        region[head] = seen.start * layout.columns..(seen.end * layout.columns).min(shape[head]);
        // The cursor can be out of sight for a moment, until the scroll position follows it.
        if !region[head].contains(&app.index()[head]) {
            region[head] = 0..shape[head];
        }
        if earlier_rows::applies(app) {
            let (rows, columns) = (Self::rows(app, (head, down, across)), 0..shape[across]);
            return earlier_rows::questions(app, region[head].clone(), (rows, columns), Part::whole);
        }
        region[down] = Self::rows(app, (head, down, across));
        region[across] = 0..shape[across];
        let block = Query::Block(site, kind::in_stage(app, Region(region)));
        let spreads = [Part::whole(site), app.span_part()].map(Query::Spread);
        [block].into_iter().chain(spreads).collect()
    }

    fn caption(&self, app: &App, layout: &Layout) -> Vec<Piece> {
        let dim = app.theme.dim();
        let Some(axes) = axes_of(app.place().step) else { return Vec::new() };
        let (rows, (_, all)) = (Self::rows(app, axes), Self::row(app, axes.1));
        let raster = Self::raster(app, axes, layout);
        let each = [("↓", axes.1, raster.down(app)), ("→", axes.2, raster.right())];
        let each: Vec<_> =
            each.into_iter().filter_map(|(mark, axis, each)| Some((mark, axis, each?))).collect();
        let dot = if each.is_empty() { "" } else { " · " };
        let range = format!("rows {}-{}", rows.start, rows.end.saturating_sub(1));
        // The meaning of the marks is more important than the visible range.
        let forms = match (rows.len() < all, each.is_empty()) {
            (true, _) => {
                vec![format!("among all heads, {range}{dot}"), format!("{range}{dot}"), String::new()]
            }
            (false, true) => ["among all heads", "of all"].map(str::to_owned).to_vec(),
            (false, false) => vec![format!("among all heads{dot}"), String::new()],
        };
        let mut pieces = vec![Piece::forms(forms, dim).rank(2)];
        for (at, (mark, axis, each)) in each.into_iter().enumerate() {
            let (name, dot) = (labels::name(app.place().step.axes()[axis]), if at > 0 { " · " } else { "" });
            let forms = [format!("{dot}{mark} {name}, {each}"), format!("{dot}{mark} {each}")];
            pieces.push(Piece::forms(forms, dim).rank(1));
        }
        pieces
    }

    fn legend(&self, app: &App, foot: Rect, buf: &mut Buffer) {
        legend::small(app, foot, buf);
    }

    fn render(&self, app: &App, layout: &Layout, buf: &mut Buffer) {
        let (Some(tensor), Some(axes)) = (app.tensor(), axes_of(app.place().step)) else { return };
        let ((head, down, across), theme, group) = (axes, app.theme, app.cursor.selected.group());
        let (shape, index) = (app.shape(), app.index());
        let raster = Self::raster(app, axes, layout);
        let span = app.span();
        let words = match layout.rows_seen() < layout.rows {
            true => "arrow keys go to the heads below",
            false => "every head",
        };
        let words = Piece::whole(format!("{words} · "), theme.dim()).rank(1);
        put_fit(buf, layout.area, 0, 0, &[words, half_blocks::marks(app, tensor.is_positive())]);
        layout.each_cell(app, |row, column, x, y| {
            let at = row * layout.columns + column;
            if at >= shape[head] {
                return;
            }
            let shares = app.place().step.axes()[head] == Axis::Head && group > 1;
            let chosen = (row, column) == layout.cursor;
            let style = if chosen { theme.current() } else { theme.strong() };
            let mark = if chosen { "▸" } else { " " };
            let place =
                Rect { x: layout.area.x + x, y: layout.area.y + y, width: layout.cell, height: layout.tall };
            let place = place.intersection(layout.area);
            put(buf, place, 0, 0, &format!("{mark}{at}"), style);
            let beside = 2 + at.to_string().len() as u16;
            if shares {
                // A line joins the kv head's number and all its heads.
                let (first, last) = (
                    column == 0 || at.is_multiple_of(group),
                    column + 1 == layout.columns || (at + 1).is_multiple_of(group),
                );
                let name = if first { format!("kv {} ", at / group) } else { String::new() };
                let end = if last { "╮ " } else { "" };
                let room = usize::from(layout.cell.saturating_sub(beside))
                    .saturating_sub(name.len() + text::width(end));
                put(buf, place, beside, 0, &format!("{name}{}{end}", "─".repeat(room)), theme.dim());
            }
            let inner = Rect { y: place.y + 1, height: place.height.saturating_sub(1), ..place };
            let Some(span) = span else { return };
            if earlier_rows::applies(app) {
                let value = |row, key| earlier_rows::value(app, at, (row, key)).map(Number::real);
                raster.draw_values(app, span, value, inner, buf);
                return;
            }
            let mut index = index.clone();
            index[head] = at;
            let plane = Plane::new(&tensor, &index, (down, Some(across)), &raster.rows, &raster.columns);
            if let Some(plane) = plane {
                raster.draw(app, span, &plane, inner, buf);
            }
        });
    }
}
