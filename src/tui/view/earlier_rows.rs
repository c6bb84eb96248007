//! Attention rows of earlier passes. In a decode pass they are drawn above the pass's own row, so that the triangle of
//! the prompt grows with each token.

use std::ops::Range;

use llama_trace_core::trace::frame::Number;
use llama_trace_core::trace::{Axis, Part, PassDims, Query, Region, Site};

use super::super::app::App;
use super::super::place::{Place, Walk};

/// Returns whether rows of earlier passes are drawn above the rows of this pass.
pub(super) fn applies(app: &App) -> bool {
    let axes = app.place().step.axes();
    let queries = axes.get(app.cut().rows) == Some(&Axis::Token);
    let keys = app.cut().columns.and_then(|columns| axes.get(columns)) == Some(&Axis::Key);
    app.dims().start > 0 && app.cut().held == Some(0) && queries && keys
}

/// The pass of a row, its site, and the row's query in that pass.
fn of_row(app: &App, row: usize) -> Option<(usize, Site, usize)> {
    let passes = &app.outline().passes;
    let pass = passes.partition_point(|pass| pass.dims.start <= row).checked_sub(1)?;
    let site = Place { pass, ..app.place() }.site();
    let (sizes, dims) = (app.outline().card.sizes(), passes.get(pass)?.dims);
    site.present(&sizes, dims).then_some((pass, site, row - dims.start))
}

/// The sites of these rows, and for each site its range of queries.
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

/// The questions for these rows and columns of `heads`; those of this pass come first. The colours span all parts that
/// `part` returns.
pub(super) fn questions(
    app: &App,
    heads: Range<usize>,
    (rows, mut columns): (Range<usize>, Range<usize>),
    part: impl Fn(Site) -> Part,
) -> Vec<Query> {
    let own = app.place().site();
    // The cursor can be out of sight for a moment, until the scroll position follows it.
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

/// The site, the pass and the index of a row and a key in a head.
pub(super) fn site(
    app: &App,
    (row, key): (usize, usize),
    head: usize,
) -> Option<(Site, PassDims, Vec<usize>)> {
    let (pass, site, query) = of_row(app, row)?;
    Some((site, app.outline().passes.get(pass)?.dims, vec![head, query, key]))
}

/// The value of a row and a key in a head. None if the key came later, or if the value is not known yet.
pub(super) fn value(app: &App, head: usize, (row, key): (usize, usize)) -> Option<Number> {
    let (_, site, query) = of_row(app, row)?;
    let index = [head, query, key];
    let region = Region(index.iter().map(|&index| index..index + 1).collect());
    app.answers.covering(site, &region)?.get(&index)
}

/// The largest absolute value in these rows, among the values known so far.
pub(super) fn largest(app: &App, rows: Range<usize>, part: impl Fn(Site) -> Part) -> f64 {
    let spreads = passes(app, rows).into_iter().filter_map(|(site, _)| {
        let stats = app.answers.spread(part(site))?.stats;
        Some(stats.min.abs().max(stats.max.abs()))
    });
    spreads.fold(0.0, f64::max)
}

/// Puts the cursor on a cell, in the pass of the cell's row.
pub(super) fn select(app: &mut App, (row, key): (usize, usize)) {
    let Some((pass, _, query)) = of_row(app, row) else { return };
    if pass != app.place().pass {
        let place = Walk::new(app.outline(), pass).same(app.place());
        app.go(place);
    }
    app.cursor.selected.set(Axis::Token, query);
    app.cursor.selected.set(Axis::Key, key);
}
