//! Thumbnails: the values of a stage around the selected index in a few characters. Each thumbnail has its own colour
//! scale.

use std::ops::Range;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use llama_trace_core::trace::{Axis, Query, Region, Site, Step};

use super::super::app::App;
use super::super::plane::Plane;
use super::super::slice::Cut;
use super::super::tensor::Tensor;
use super::super::theme::Span;
use super::half_blocks::{self, Raster};
use super::labels;
use super::paint::put;

/// Maximum number of values in a thumbnail. It has at least one row, even if that row has more values.
const MOST: usize = 1 << 13;

/// The part of a site's values that is drawn.
struct Part {
    cut: Cut,
    index: Vec<usize>,
    rows: Range<usize>,
    columns: Range<usize>,
}

fn part(app: &App, site: Site) -> Part {
    let axes = site.stage.axes();
    let shape = app.outline().card.sizes().shape(axes, app.dims());
    let (cut, index) = (Cut::new(axes, 0), app.cursor.selected.index(axes, &shape));
    let columns = cut.columns.map_or(1, |columns| shape[columns]);
    // A list is drawn from left to right.
    let rows = match cut.columns {
        Some(_) => half_blocks::window(index[cut.rows], shape[cut.rows], columns, MOST),
        None => 0..shape[cut.rows],
    };
    Part { cut, index, rows, columns: 0..columns }
}

/// The rows of a site that are drawn: "token 16-17"; none if all rows are drawn.
pub(super) fn some_rows(app: &App, site: Site) -> Option<String> {
    let axes = site.stage.axes();
    let all = app.outline().card.sizes().shape(axes, app.dims());
    let Part { cut, rows, .. } = part(app, site);
    let name = labels::name(axes[cut.rows]);
    match rows.len() {
        count if count == all[cut.rows] => None,
        1 => Some(format!("{name} {}", rows.start)),
        _ => Some(format!("{name} {}-{}", rows.start, rows.end - 1)),
    }
}

/// The question for the values.
pub(super) fn question(app: &App, site: Site) -> Query {
    let Part { cut, index, rows, columns } = part(app, site);
    let mut region: Vec<_> = index.iter().map(|&index| index..index + 1).collect();
    region[cut.rows] = rows;
    if let Some(across) = cut.columns {
        region[across] = columns;
    }
    Query::Block(site, Region(region))
}

/// Draws the values into `area`. Ids are drawn as the texts of their tokens.
pub(super) fn draw(app: &App, site: Site, area: Rect, buf: &mut Buffer) {
    if site.stage.is_ids() {
        let axis = site.stage.axes()[0];
        let count = if axis == Axis::One { 1 } else { app.dims().tokens };
        let texts: Vec<String> = (0..count).filter_map(|at| labels::text_of(app, axis, at)).collect();
        put(buf, area, 0, 0, &texts.join("│"), app.theme.token());
        return;
    }
    let Query::Block(_, region) = question(app, site) else { return };
    if app.answers.failure(site).is_some() {
        put(buf, area, 0, 0, "none", app.theme.error());
        return;
    }
    let Some(block) = app.answers.covering(site, &region) else {
        put(buf, area, 0, 0, "…", app.theme.dim());
        return;
    };
    let Some(tensor) = Tensor::new(block.clone(), Step::Stage(site.stage)) else { return };
    let Part { cut, index, rows, columns } = part(app, site);
    let Some(plane) = Plane::new(&tensor, &index, (cut.rows, cut.columns), &rows, &columns) else { return };
    let span = span(&tensor, &plane, &rows, &columns);
    if cut.columns.is_some() {
        let raster = Raster::new(app, rows, columns, (area.height.into(), area.width.into()));
        return raster.draw(app, span, &plane, area, buf);
    }
    let each = rows.len().div_ceil(usize::from(area.width).max(1)).max(1);
    for (x, first) in (0..).zip(rows.clone().step_by(each)) {
        let part = first..(first + each).min(rows.end);
        let value = half_blocks::furthest(part, 0..1, |row, column| plane.get(row, column));
        let (symbol, style) = half_blocks::block(app, span, value.map(|(_, _, value)| value));
        put(buf, area, x, 0, symbol, style);
    }
}

/// The colour span of the drawn part, without outliers. With outliers, a few large values would make the colours of all
/// other values alike.
fn span(tensor: &Tensor, plane: &Plane<'_>, rows: &Range<usize>, columns: &Range<usize>) -> Span {
    let all = rows.clone().flat_map(|row| columns.clone().map(move |column| (row, column)));
    let values = all.filter_map(|(row, column)| plane.get(row, column)).map(f64::abs);
    let mut sizes: Vec<f64> = values.filter(|size| size.is_finite() && *size > 0.0).collect();
    let high = match sizes.len() {
        0 => 1.0,
        count if tensor.is_probability() => sizes[..count].iter().copied().fold(0.0, f64::max),
        count => *sizes.select_nth_unstable_by((count - 1) - count / 100, f64::total_cmp).1,
    };
    Span { positive: tensor.is_positive(), high, clipped: 0, at_most: false }
}
