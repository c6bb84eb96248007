//! The rows of attention over all passes: where a pass reads one token, those of the passes before stand above it, so that
//! the triangle of the prompt grows as one decodes.

use std::ops::Range;

use crate::trace::frame::Number;
use crate::trace::{Axis, Part, Query, Region, Site};

use super::super::app::App;
use super::super::place::{Place, Walk};
use super::layout::Layout;

/// Whether rows of earlier passes stand above those of this one.
pub(super) fn applies(app: &App) -> bool {
    let axes = app.place().step.axes();
    let queries = axes.get(app.cut().rows) == Some(&Axis::Token);
    let keys = app.cut().columns.and_then(|columns| axes.get(columns)) == Some(&Axis::Key);
    app.dims().start > 0 && app.cut().held == Some(0) && queries && keys
}

/// The pass that a row belongs to, its site, and which of the pass's queries the row is.
fn of_row(app: &App, row: usize) -> Option<(usize, Site, usize)> {
    let passes = &app.outline().passes;
    let pass = passes.partition_point(|pass| pass.dims.start <= row).checked_sub(1)?;
    let site = Place { pass, ..app.place() }.site();
    let (sizes, dims) = (app.outline().card.sizes(), passes.get(pass)?.dims);
    site.stage.present(&sizes, dims).then_some((pass, site, row - dims.start))
}

/// The passes of these rows, and which of each one's queries they are.
fn passes(app: &App, rows: Range<usize>) -> Vec<(Site, Range<usize>)> {
    let mut found: Vec<(Site, Range<usize>)> = Vec::new();
    for (_, site, query) in rows.filter_map(|row| of_row(app, row)) {
        match found.last_mut() {
            Some((last, queries)) if *last == site => queries.end = query + 1,
            _ => found.push((site, query..query + 1)),
        }
    }
    found
}

/// What is asked to draw the rows and columns on the screen, this pass first.
pub(super) fn questions(app: &App, layout: &Layout) -> Vec<Query> {
    let (head, own) = (app.index()[0], app.place().site());
    let mut columns = layout.visible_columns(app);
    // Before it has settled, the cursor may be elsewhere.
    if !columns.contains(&app.index()[2]) {
        columns = app.index()[2]..app.index()[2] + 1;
    }
    let mut rows = passes(app, layout.visible_rows(app));
    if !rows.iter().any(|(site, queries)| *site == own && queries.contains(&app.index()[1])) {
        rows.retain(|(site, _)| *site != own);
        rows.push((own, app.index()[1]..app.index()[1] + 1));
    }
    rows.reverse();
    let mut asked = Vec::new();
    for (site, queries) in rows {
        let keys = app.outline().passes.get(site.pass).map_or(0, |pass| pass.dims.keys());
        let columns = columns.start.min(keys)..columns.end.min(keys);
        if !columns.is_empty() {
            asked.push(Query::Block(site, Region(vec![head..head + 1, queries, columns])));
        }
        asked.push(Query::Spread(Part { site, held: Some((0, head)) }));
    }
    asked.push(Query::Spread(Part::whole(own)));
    asked
}

/// The value of a row and a key; none where that key came later, or while it is not there.
pub(super) fn value(app: &App, (row, key): (usize, usize)) -> Option<Number> {
    let (_, site, query) = of_row(app, row)?;
    let index = [app.index()[0], query, key];
    let region = Region(index.iter().map(|&index| index..index + 1).collect());
    app.answers.covering(site, &region)?.get(&index)
}

/// The largest size of the values in the rows on the screen, as far as that is known.
pub(super) fn largest(app: &App, layout: &Layout) -> f64 {
    let head = app.index()[0];
    let spreads = passes(app, layout.visible_rows(app)).into_iter().filter_map(|(site, _)| {
        let stats = app.answers.spread(Part { site, held: Some((0, head)) })?.stats;
        Some(stats.min.abs().max(stats.max.abs()))
    });
    spreads.fold(0.0, f64::max)
}

/// Puts the cursor on a cell, in the pass that it belongs to.
pub(super) fn select(app: &mut App, (row, key): (usize, usize)) {
    let Some((pass, _, query)) = of_row(app, row) else { return };
    if pass != app.place().pass {
        let place = Walk::new(app.outline(), pass).same(app.place());
        app.go(place);
    }
    app.selected.set(Axis::Token, query);
    app.selected.set(Axis::Key, key);
}
