//! Rasters of many values. With colours, a character shows two values as half blocks. If there are more values than
//! places, each place shows the value furthest from 0 among its values, so that no extreme is lost.

use std::ops::Range;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};

use llama_trace_core::trace::Region;

use super::super::app::App;
use super::super::fit::Piece;
use super::super::plane::Plane;
use super::super::theme::{Depth, Span};
use super::paint::put;

/// Maximum number of values in a raster. If a tensor is larger, only the rows around the cursor are drawn.
pub(super) const MOST: usize = 1 << 20;

/// A matrix on a raster of places: the rows that are drawn, and the number of rows and columns that share one
/// place. A place is one character, or several if the values are magnified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Raster {
    pub(super) rows: Range<usize>,
    pub(super) columns: Range<usize>,
    /// Number of rows and of columns that share a place.
    pub(super) each: (usize, usize),
    /// Number of places down and across.
    pub(super) places: (usize, usize),
    /// Lines of a place, which are half as many as its columns; 0 if the place is a single character.
    zoom: usize,
}

/// Maximum lines of a magnified value.
const ZOOM: usize = 4;

/// A range of rows around row `at`, out of `rows` rows with `values` values each. The range has at most
/// `most` values, but at least one row.
pub(super) fn window(at: usize, rows: usize, values: usize, most: usize) -> Range<usize> {
    let room = (most / values.max(1)).max(1);
    let start = at / room * room;
    start.min(rows)..(start + room).min(rows)
}

impl Raster {
    /// The raster of these rows and columns in `room` lines and columns.
    pub(super) fn new(app: &App, rows: Range<usize>, columns: Range<usize>, room: (usize, usize)) -> Self {
        let high = if coloured(app) { 2 } else { 1 };
        let down = rows.len().div_ceil(room.0.max(1) * high).max(1) * high;
        let across = columns.len().div_ceil(room.1.max(1)).max(1);
        let places = (rows.len().div_ceil(down), columns.len().div_ceil(across));
        Self { rows, columns, each: (down, across), places, zoom: 0 }
    }

    /// The raster in which each value has a place of two or more characters, as large as possible. None if
    /// there is no room.
    pub(super) fn magnified(rows: Range<usize>, columns: Range<usize>, room: (usize, usize)) -> Option<Self> {
        let places = (rows.len(), columns.len());
        let zoom = (room.0 / places.0.max(1)).min(room.1 / (2 * places.1).max(1)).min(ZOOM);
        (zoom > 0).then_some(Self { rows, columns, each: (1, 1), places, zoom })
    }

    /// Columns and lines of a place.
    pub(super) fn size(&self) -> (u16, u16) {
        if self.zoom == 0 { (1, 1) } else { (self.zoom as u16, 2 * self.zoom as u16) }
    }

    /// The number of rows in one place, as text; if half a place has several rows, the number in one half. None for one
    /// row.
    pub(super) fn down(&self, app: &App) -> Option<String> {
        match self.each.0 {
            0 | 1 => None,
            rows if rows > 2 && coloured(app) => Some(format!("{} per half", rows / 2)),
            rows => Some(format!("{rows} per cell")),
        }
    }

    /// The number of columns in one place, as text; none for one column.
    pub(super) fn right(&self) -> Option<String> {
        (self.each.1 > 1).then(|| format!("{} per cell", self.each.1))
    }

    /// The place that shows a row and a column.
    pub(super) fn place_of(&self, row: usize, column: usize) -> (usize, usize) {
        let down = row.saturating_sub(self.rows.start) / self.each.0;
        let across = column.saturating_sub(self.columns.start) / self.each.1;
        (down.min(self.places.0.saturating_sub(1)), across.min(self.places.1.saturating_sub(1)))
    }

    /// The rows and columns that a place shows.
    pub(super) fn cell(&self, place: (usize, usize)) -> (Range<usize>, Range<usize>) {
        let part = |at: usize, each: usize, all: &Range<usize>| {
            let start = (all.start + at * each).min(all.end);
            start..(start + each).min(all.end)
        };
        (part(place.0, self.each.0, &self.rows), part(place.1, self.each.1, &self.columns))
    }

    /// The part of the raster with these places across.
    pub(super) fn across(&self, places: Range<usize>) -> Self {
        let end = places.end.min(self.places.1);
        let (first, last) = (self.cell((0, places.start)).1, self.cell((0, end.saturating_sub(1))).1);
        let places = (self.places.0, end.saturating_sub(places.start));
        Self { columns: first.start..last.end, places, rows: self.rows.clone(), ..*self }
    }

    /// Draws the raster at the upper left of `area`.
    pub(super) fn draw(&self, app: &App, span: Span, plane: &Plane<'_>, area: Rect, buf: &mut Buffer) {
        self.draw_values(app, span, |row, column| plane.get(row, column), area, buf);
    }

    /// Like [`Raster::draw`], with any values by row and column.
    pub(super) fn draw_values(
        &self,
        app: &App,
        span: Span,
        value: impl Fn(usize, usize) -> Option<f64>,
        area: Rect,
        buf: &mut Buffer,
    ) {
        let (tall, wide) = self.size();
        for down in 0..self.places.0 {
            for across in 0..self.places.1 {
                let (rows, columns) = self.cell((down, across));
                let (symbol, style) = if self.zoom > 0 {
                    block(app, span, value(rows.start, columns.start))
                } else if coloured(app) {
                    let middle = rows.start + self.each.0 / 2;
                    let half = |rows: Range<usize>| {
                        furthest(rows, columns.clone(), &value).map(|(_, _, value)| value)
                    };
                    halves(
                        app,
                        span,
                        half(rows.start..middle.min(rows.end)),
                        half(middle.min(rows.end)..rows.end),
                    )
                } else {
                    shade(app, span, furthest(rows, columns, &value).map(|(_, _, value)| value))
                };
                for line in 0..tall {
                    let (x, y) = (across as u16 * wide, down as u16 * tall + line);
                    put(buf, area, x, y, &symbol.repeat(wide.into()), style);
                }
            }
        }
    }
}

fn coloured(app: &App) -> bool {
    app.theme.depth() > Depth::Ansi
}

/// Draws a small matrix at the upper left of `area`, as large as possible. In little room, a place shows the value
/// furthest from 0 among its values.
pub(super) fn small(
    app: &App,
    span: Span,
    (rows, columns): (usize, usize),
    value: impl Fn(usize, usize) -> Option<f64>,
    area: Rect,
    buf: &mut Buffer,
) {
    let room = (usize::from(area.height), usize::from(area.width));
    Raster::new(app, 0..rows, 0..columns, room).draw_values(app, span, value, area, buf);
}

/// The value furthest from 0, with its row and column. NaN counts as the furthest, masked values as the nearest. If
/// several are equally far, the first one is returned.
pub(super) fn furthest(
    rows: Range<usize>,
    columns: Range<usize>,
    value: impl Fn(usize, usize) -> Option<f64>,
) -> Option<(usize, usize, f64)> {
    let size = |value: f64| match value {
        value if value.is_nan() => f64::INFINITY,
        f64::NEG_INFINITY => -1.0,
        value => value.abs(),
    };
    let mut best: Option<(usize, usize, f64)> = None;
    for row in rows {
        for column in columns.clone() {
            let Some(value) = value(row, column) else { continue };
            if best.is_none_or(|(_, _, other)| size(value) > size(other)) {
                best = Some((row, column, value));
            }
        }
    }
    best
}

/// Two values in a character, one above the other. A value below 0 fills only a quarter of the character, in a darker
/// colour. Two such values make the character look chequered, with any colours.
fn halves(app: &App, span: Span, upper: Option<f64>, lower: Option<f64>) -> (&'static str, Style) {
    let below = |value: Option<f64>| value.is_some_and(|value| value < 0.0 && value.is_finite());
    let colour = |value: Option<f64>, marked: bool| app.theme.half(value?, span, marked);
    match (below(upper), below(lower)) {
        (false, false) => match (colour(upper, false), colour(lower, false)) {
            (None, None) => (" ", Style::new()),
            (Some(upper), None) => ("▀", Style::new().fg(upper)),
            (None, Some(lower)) => ("▄", Style::new().fg(lower)),
            (Some(upper), Some(lower)) => ("▀", Style::new().fg(upper).bg(lower)),
        },
        (true, false) => ("▘", two(colour(upper, true), colour(lower, false))),
        (false, true) => ("▖", two(colour(lower, true), colour(upper, false))),
        (true, true) => ("▚", two(colour(upper, false), colour(lower, true))),
    }
}

/// The style with one colour for the ink and one for the background.
fn two(ink: Option<Color>, ground: Option<Color>) -> Style {
    Style { fg: ink, bg: ground, ..Style::new() }
}

/// One value in a character. With colours, a value below 0 has a minus sign.
pub(super) fn mark(app: &App, span: Span, value: Option<f64>) -> (&'static str, Style) {
    match value {
        Some(value) if coloured(app) && value.is_finite() => {
            let symbol = if value == 0.0 {
                "·"
            } else if value < 0.0 && !span.positive {
                "-"
            } else {
                " "
            };
            (symbol, app.theme.cell(value, span).style)
        }
        value => shade(app, span, value),
    }
}

/// One value in a whole character.
pub(super) fn block(app: &App, span: Span, value: Option<f64>) -> (&'static str, Style) {
    if coloured(app) { halves(app, span, value, value) } else { shade(app, span, value) }
}

/// The shade of a value, in quarters of the span. Values below 0 have other characters.
fn shade(app: &App, span: Span, value: Option<f64>) -> (&'static str, Style) {
    const BELOW: [&str; 5] = ["-", "-", "=", "≡", "≣"];
    let Some(value) = value else { return (" ", Style::new()) };
    let cell = app.theme.cell(value, span);
    let level = (span.share(value).abs() * 4.0).ceil() as usize;
    let symbol = match value {
        0.0 => "·",
        value if value.is_nan() => "?",
        value if value.is_infinite() => "∞",
        value if value < 0.0 => BELOW[level.min(4)],
        _ => ["░", "░", "▒", "▓", "█"][level.min(4)],
    };
    (symbol, cell.style)
}

/// The characters of small pictures without colours, for the picture's caption.
pub(super) fn characters(app: &App) -> &'static str {
    if coloured(app) { "" } else { " · ░▒▓█ above 0, -=≡≣ below" }
}

/// The meaning of the marks of [`Raster::draw`], in a long and a short form. Masked values are named if there are any.
pub(super) fn marks(app: &App, positive: bool) -> Piece {
    let masked = app.answers.spread(app.span_part()).is_some_and(|spread| spread.stats.neg_inf > 0);
    let [long, middle, short, hidden] = match (coloured(app), positive) {
        (true, true) => ["empty: 0", "empty: 0", "empty: 0", "grey: masked"],
        (true, false) => [
            "▀▄ above 0 · ▘▖▚ chequered: below 0 · empty: 0",
            "▀▄ above ▘▖▚ chequered: below empty: 0",
            "▀▄ above ▘▖▚ below",
            "grey: masked",
        ],
        (false, true) => {
            ["a dot: 0 · ░▒▓█: more and more", "a dot: 0 · ░▒▓█: more", "░▒▓█: more", "∞: masked"]
        }
        (false, false) => [
            "a dot: 0 · ░▒▓█: above · -=≡≣: below",
            "a dot: 0 ░▒▓█: above -=≡≣: below",
            "░▒▓█: above -=≡≣: below",
            "∞: masked",
        ],
    };
    let forms = [long, middle, short];
    let forms = match masked {
        true => forms.map(|form| format!("{form} · {hidden}")),
        false => forms.map(str::to_owned),
    };
    Piece::forms(forms, app.theme.dim())
}

/// The held slice of the step with these rows and all columns, in the axes of the step.
pub(super) fn slice(app: &App, rows: Range<usize>) -> Region {
    let (cut, shape) = (app.cut(), app.shape());
    let mut region: Vec<_> = app.index().iter().map(|&index| index..index + 1).collect();
    region[cut.rows] = rows;
    if let Some(columns) = cut.columns {
        region[columns] = 0..shape[columns];
    }
    Region(region)
}
