//! The rows of attention over all passes: where a pass reads one token, those of the passes before stand above it, so that
//! the triangle of the prompt grows as one decodes.

use std::ops::Range;

use llama_trace_core::trace::frame::Number;
use llama_trace_core::trace::{Axis, Part, Query, Region, Site};

use super::super::app::App;
use super::super::place::{Place, Walk};

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

/// What is asked to draw these rows and columns of some heads, this pass first; one scale does for all of `part`.
pub(super) fn questions(
    app: &App,
    heads: Range<usize>,
    (rows, mut columns): (Range<usize>, Range<usize>),
    part: impl Fn(Site) -> Part,
) -> Vec<Query> {
    let own = app.place().site();
    // Before it has settled, the cursor may be elsewhere.
    if !columns.contains(&app.index()[2]) {
        columns = app.index()[2]..app.index()[2] + 1;
    }
    let mut rows = passes(app, rows);
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
            asked.push(Query::Block(site, Region(vec![heads.clone(), queries, columns])));
        }
        asked.push(Query::Spread(part(site)));
    }
    let whole = Query::Spread(Part::whole(own));
    if !asked.contains(&whole) {
        asked.push(whole);
    }
    asked
}

/// The value of a row and a key in a head; none where that key came later, or while it is not there.
pub(super) fn value(app: &App, head: usize, (row, key): (usize, usize)) -> Option<Number> {
    let (_, site, query) = of_row(app, row)?;
    let index = [head, query, key];
    let region = Region(index.iter().map(|&index| index..index + 1).collect());
    app.answers.covering(site, &region)?.get(&index)
}

/// The largest size of the values in these rows, as far as that is known.
pub(super) fn largest(app: &App, rows: Range<usize>, part: impl Fn(Site) -> Part) -> f64 {
    let spreads = passes(app, rows).into_iter().filter_map(|(site, _)| {
        let stats = app.answers.spread(part(site))?.stats;
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
