//! The bars: the attention of one query, a bar for each key.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use llama_trace_core::trace::{Axis, Part, Query, Region, Step};

use super::super::app::App;
use super::super::fit::Piece;
use super::super::text;
use super::grid;
use super::kind::{self, View};
use super::labels;
use super::layout::Layout;
use super::paint::{put, put_fit};
use super::{legend, list};

/// The attention of the query under the cursor to each key.
#[derive(Debug)]
pub struct Bars;

/// The other heads that fit below the current one, in order. After the last head comes the first one.
fn others(app: &App, body: Rect) -> impl Iterator<Item = usize> {
    let (shape, own) = (app.shape(), app.index()[0]);
    let (heads, keys) = (shape[0].max(1), shape[2]);
    // A head takes an empty line, a line for its number, and a line for each key.
    let room = usize::from(body.height).saturating_sub(1 + keys) / (keys + 2);
    (1..heads).take(room).map(move |after| (own + after) % heads)
}

impl View for Bars {
    fn name(&self) -> &'static str {
        "bars"
    }

    fn hint(&self) -> [&'static str; 3] {
        [
            "One query: its value for each key, as a bar with the key's text.",
            "The bars of all queries of a head have the same scale, so you can compare them.",
            "↑ ↓ go from key to key, ← → from query to query, [ ] from head to head. The other heads are below, if all their keys fit.",
        ]
    }

    fn fits(&self, step: Step) -> bool {
        step.axes() == [Axis::Head, Axis::Token, Axis::Key]
    }

    fn layout(&self, app: &App, body: Rect) -> Layout {
        // In this layout, keys are rows and queries are columns. A column is as wide as the panel, so only one query is
        // shown.
        let (shape, index) = (app.shape(), app.index());
        let (rows, columns, cursor) = (shape[2], shape[1], (index[2], index[1]));
        let cell = body.width.max(1);
        let footer = (others(app, body).count() * (rows + 2)) as u16;
        Layout {
            area: body,
            rows,
            columns,
            cursor,
            cell,
            tall: 1,
            label: 0,
            header: 1,
            footer,
            ..Layout::default()
        }
    }

    fn index(&self, app: &App, (key, query): (usize, usize)) -> Option<Vec<usize>> {
        Some(vec![app.index()[0], query, key])
    }

    fn questions(&self, app: &App, layout: &Layout) -> Vec<Query> {
        let (site, index) = (app.place().site(), app.index());
        let seen = layout.visible_rows(app);
        // The cursor can be out of sight for a moment, until the scroll position follows it.
        let keys = if seen.contains(&index[2]) { seen } else { index[2]..index[2] + 1 };
        let others: Vec<usize> = others(app, layout.area).collect();
        let heads = if others.is_empty() { index[0]..index[0] + 1 } else { 0..app.shape()[0] };
        let region = Region(vec![heads, index[1]..index[1] + 1, keys]);
        let block = Query::Block(site, kind::in_stage(app, region));
        let own = [Query::Spread(Part::whole(site)), Query::Spread(app.part())];
        let others = others.into_iter().map(|head| Query::Spread(Part { site, held: Some((0, head)) }));
        [block].into_iter().chain(own).chain(others).collect()
    }

    fn caption(&self, app: &App, layout: &Layout) -> Vec<Piece> {
        let (theme, query) = (app.theme, layout.cursor.1);
        let words = labels::text_of(app, Axis::Token, query).unwrap_or_default();
        vec![
            Piece::whole(labels::one_of("query", query, layout.columns), theme.strong()),
            Piece::whole(labels::position_of(app, query), theme.strong()).rank(1),
            Piece::words(format!(" {}", text::cut(&words, 12)), theme.token()).rank(2),
            Piece::whole(" · ", theme.dim()),
            grid::range(app, "↓", Axis::Key, &layout.visible_rows(app), layout.rows),
        ]
    }

    fn legend(&self, app: &App, foot: Rect, buf: &mut Buffer) {
        legend::list(app, foot, buf);
    }

    fn render(&self, app: &App, layout: &Layout, buf: &mut Buffer) {
        list::draw(self, app, layout, list::Rows::Held(2), buf);
        let (theme, area, keys) = (app.theme, layout.area, layout.rows);
        let (site, query, group) = (app.place().site(), layout.cursor.1, app.cursor.selected.group());
        let columns = list::Columns::new(app, area.width, (Axis::Key, keys), false);
        let Some(tensor) = app.tensor() else { return };
        for (below, head) in others(app, area).enumerate() {
            let y = layout.header + ((below + 1) * (keys + 2)) as u16 - 1;
            let kv = if group > 1 { format!(" (kv head {})", head / group) } else { String::new() };
            let name = format!("head {head}{kv}");
            let at = put(buf, area, 0, y, &name, theme.strong());
            let spread = app.answers.spread(Part { site, held: Some((0, head)) });
            let span = spread.map(|spread| {
                let low = if tensor.is_positive() { 0.0 } else { spread.stats.min };
                (low, spread.stats.max)
            });
            if let Some((low, high)) = span {
                let pieces = [
                    Piece::whole(" · bars from ", theme.dim()),
                    Piece::figure(low, false, theme.dim()),
                    Piece::whole(" to ", theme.dim()),
                    Piece::figure(high, false, theme.dim()),
                ];
                put_fit(buf, area, at, y, &pieces);
            }
            for key in 0..keys {
                let y = y + 1 + key as u16;
                columns.label(app, area, (y, Axis::Key, key), buf);
                if let Some(number) = tensor.get(&[head, query, key]) {
                    columns.value(app, area, (y, number, span), |style| style, buf);
                }
            }
        }
    }
}
