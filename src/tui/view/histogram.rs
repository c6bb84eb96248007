//! The histogram: counts of a slice's values by size.

use std::ops::Range;
use std::rc::Rc;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use llama_trace_core::trace::{Part, Query, Step};

use super::super::app::App;
use super::super::bins::{Bin, BinKey};
use super::super::fit::Piece;
use super::super::plane::Plane;
use super::super::tensor::Tensor;
use super::super::text;
use super::half_blocks;
use super::kind::{self, View};
use super::layout::Layout;
use super::list::bar;
use super::paint::{put, put_fit};

/// Columns of a bin's bounds (`EDGE`), and of its count (`COUNT`).
const EDGE: usize = 11;
const COUNT: usize = 9;
const MOST: u16 = 40;
/// Maximum number of counted values. If a slice is larger, only the rows around the cursor are counted.
const VALUES: usize = 1 << 17;

/// The values of the slice in bins of equal width.
#[derive(Debug)]
pub struct Histogram;

/// Bins from the smallest finite value of the slice to the largest.
#[derive(Debug)]
struct Bins {
    low: f64,
    high: f64,
    count: usize,
    filled: Rc<[Bin]>,
    /// Number of the bin with the value under the cursor. Only bins that are not empty are counted.
    here: usize,
}

impl Bins {
    fn new(app: &App, body: Rect) -> Self {
        let count = usize::from(body.height.saturating_sub(1).clamp(1, MOST));
        let stats = app.answers.spread(app.part()).map(|spread| spread.stats);
        let (low, high) = stats.map_or((0.0, 0.0), |stats| (stats.min, stats.max));
        // If all values are equal, there is only one bin.
        let count = if high > low { count } else { 1 };
        let mut bins = Self { low, high, count, filled: Rc::default(), here: 0 };
        bins.fill(app);
        bins
    }

    fn of(&self, value: f64) -> Option<usize> {
        let share = if self.high > self.low { (value - self.low) / (self.high - self.low) } else { 0.0 };
        value.is_finite().then(|| ((share * self.count as f64) as usize).min(self.count - 1))
    }

    fn edge(&self, bin: usize) -> f64 {
        self.low + (self.high - self.low) * bin as f64 / self.count as f64
    }

    fn fill(&mut self, app: &App) {
        let (cut, index, place) = (app.cut(), app.index(), app.place());
        let (rows, columns) = part(app);
        // Reads the answers directly. `App::tensor` cannot be used: it depends on the questions, and these
        // depend on the bins.
        let region = kind::in_stage(app, half_blocks::slice(app, rows.clone()));
        let block = app.answers.covering(place.site(), &region);
        let Some(tensor) = block.and_then(|block| Tensor::new(block.clone(), place.step)) else { return };
        let Some(plane) = Plane::new(&tensor, &index, (cut.rows, cut.columns), &rows, &columns) else {
            return;
        };
        let asked = BinKey {
            step: place.step,
            part: app.part(),
            rows,
            down: cut.rows,
            count: self.count,
            span: (self.low, self.high),
        };
        let mut last = app.answers.bins.0.borrow_mut();
        let known = last.as_ref().filter(|(of, _)| *of == asked).map(|(_, bins)| Rc::clone(bins));
        self.filled = known.unwrap_or_else(|| {
            let bins: Rc<[Bin]> = self.count(&plane, asked.rows.clone(), &columns).into();
            *last = Some((asked, Rc::clone(&bins)));
            bins
        });
        let column = cut.columns.map_or(0, |columns| index[columns]);
        let here = plane.get(index[cut.rows], column).and_then(|value| self.of(value));
        self.here = self.filled.iter().position(|bin| Some(bin.number) == here).unwrap_or(0);
    }
}

impl Bins {
    /// The bins that are not empty.
    fn count(&self, plane: &Plane<'_>, rows: Range<usize>, columns: &Range<usize>) -> Vec<Bin> {
        let mut all: Vec<Option<Bin>> = vec![None; self.count];
        for row in rows {
            for column in columns.clone() {
                let Some(number) = plane.get(row, column).and_then(|value| self.of(value)) else { continue };
                let bin = all[number].get_or_insert(Bin { number, count: 0, first: (row, column) });
                bin.count += 1;
            }
        }
        all.into_iter().flatten().collect()
    }
}

/// Returns whether empty bins between others are left out.
fn bins_left_out(app: &App) -> bool {
    let last = app.answers.bins.0.borrow();
    let bins = last.as_ref().map(|(_, bins)| bins);
    bins.is_some_and(|bins| bins.windows(2).any(|two| two[0].number + 1 < two[1].number))
}

/// The rows and columns whose values are counted.
fn part(app: &App) -> (Range<usize>, Range<usize>) {
    let (cut, shape) = (app.cut(), app.shape());
    let columns = cut.columns.map_or(1, |columns| shape[columns]);
    (half_blocks::window(app.index()[cut.rows], shape[cut.rows], columns, VALUES), 0..columns)
}

impl View for Histogram {
    fn name(&self) -> &'static str {
        "histogram"
    }

    fn hint(&self) -> [&'static str; 3] {
        [
            "The number of values of the slice in each bin. All bins have the same width; ⋮ stands for empty bins.",
            "A few extreme values can determine the colour scale and the int8 scales.",
            "The arrow keys go from bin to bin, to the first value in each.",
        ]
    }

    fn fits(&self, step: Step) -> bool {
        // The values of a vocabulary are listed instead.
        step.axes().len() > 1 && !step.over_vocabulary()
    }

    fn layout(&self, app: &App, body: Rect) -> Layout {
        let bins = Bins::new(app, body);
        let (rows, cursor) = (bins.filled.len().max(1), (bins.here, 0));
        Layout {
            area: body,
            rows,
            columns: 1,
            cursor,
            cell: body.width,
            tall: 1,
            label: 0,
            header: 1,
            ..Layout::default()
        }
    }

    fn index(&self, app: &App, cell: (usize, usize)) -> Option<Vec<usize>> {
        let bins = Bins::new(app, app.layout()?.area);
        let (cut, mut index) = (app.cut(), app.index());
        if cell.0 == bins.here {
            return Some(index);
        }
        let (row, column) = bins.filled.get(cell.0)?.first;
        index[cut.rows] = row;
        if let Some(columns) = cut.columns {
            index[columns] = column;
        }
        Some(index)
    }

    fn questions(&self, app: &App, _: &Layout) -> Vec<Query> {
        let site = app.place().site();
        let (rows, _) = part(app);
        vec![
            Query::Block(site, kind::in_stage(app, half_blocks::slice(app, rows))),
            Query::Spread(Part::whole(site)),
            Query::Spread(app.part()),
        ]
    }

    fn caption(&self, app: &App, _: &Layout) -> Vec<Piece> {
        let (all, dim) = (app.shape()[app.cut().rows], app.theme.dim());
        let (rows, _) = part(app);
        let mut pieces = vec![Piece::whole("the number of values by size", dim)];
        if rows.len() < all {
            let range = format!(", of rows {}-{}", rows.start, rows.end.saturating_sub(1));
            pieces.push(Piece::whole(range, dim));
        }
        pieces
    }

    fn legend(&self, app: &App, foot: Rect, buf: &mut Buffer) {
        let Some(stats) = app.answers.spread(app.part()).map(|spread| spread.stats) else { return };
        let dim = app.theme.dim();
        let mut pieces = vec![
            Piece::whole("bins from ", dim),
            Piece::figure(stats.min, false, dim),
            Piece::whole(" to ", dim),
            Piece::figure(stats.max, false, dim),
        ];
        if bins_left_out(app) {
            pieces.push(Piece::whole(" · ⋮ empty bins", dim).rank(2));
        }
        if stats.neg_inf + stats.pos_inf + stats.nan > 0 {
            pieces.push(Piece::whole(" · not finite: in no bin", dim).rank(1));
        }
        put_fit(buf, foot, 0, 0, &pieces);
    }

    fn render(&self, app: &App, layout: &Layout, buf: &mut Buffer) {
        let (bins, theme, area) = (Bins::new(app, layout.area), app.theme, layout.area);
        let most = bins.filled.iter().map(|bin| bin.count).max().unwrap_or(0).max(1);
        let (to_at, count_at, bar_at) = (EDGE as u16 + 1, 2 * EDGE as u16 + 2, (2 * EDGE + COUNT) as u16 + 3);
        put(buf, area, 0, 0, &text::right("from", EDGE), theme.dim());
        put(buf, area, to_at, 0, &text::right("to", EDGE), theme.dim());
        put(buf, area, count_at, 0, &text::right("values", COUNT), theme.dim());
        let room = usize::from(area.width.saturating_sub(bar_at));
        for (down, bin) in layout.visible_rows(app).enumerate() {
            let (y, Some(filled)) = (down as u16 + 1, bins.filled.get(bin)) else { continue };
            let before = bin.checked_sub(1).and_then(|before| bins.filled.get(before));
            let gap = before.is_some_and(|before| before.number + 1 < filled.number);
            let chosen = bin == layout.cursor.0;
            let pick = |style: Style| if chosen { theme.current() } else { style };
            for (x, edge) in [(0, filled.number), (to_at, filled.number + 1)] {
                let edge = text::figure_in(bins.edge(edge), false, EDGE);
                put(buf, area, x, y, &text::right(&edge, EDGE), pick(theme.index()));
            }
            if gap {
                put(buf, area, 0, y, "⋮", pick(theme.dim()));
            }
            let count = text::right(&filled.count.to_string(), COUNT);
            put(buf, area, count_at, y, &count, pick(Style::new()));
            let length = match bar(filled.count as f64 / most as f64, room) {
                // A single value among millions still has a bar.
                bar if bar.is_empty() => "▏".to_owned(),
                bar => bar,
            };
            put(buf, area, bar_at, y, &length, theme.bar());
        }
    }
}
