//! One query's keys, downwards, each with a bar.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::trace::{Axis, Part, Query, Region, Stage, Step};

use super::super::app::App;
use super::super::fit::Piece;
use super::super::text;
use super::grid;
use super::kind::{self, View};
use super::labels;
use super::layout::Layout;
use super::{legend, list};

/// What the query under the cursor gives to each key.
#[derive(Debug)]
pub struct Bars;

impl View for Bars {
    fn name(&self) -> &'static str {
        "bars"
    }

    fn hint(&self) -> [&'static str; 3] {
        [
            "One query: what it gives to each key, as a bar with the key's text.",
            "Bars of all queries of a head have one scale, so they can be compared.",
            "↑ ↓ go from key to key, ← → from query to query, [ ] from head to head.",
        ]
    }

    fn fits(&self, step: Step) -> bool {
        [Stage::Qk, Stage::Scores, Stage::MaskedScores, Stage::Softmax].map(Step::Stage).contains(&step)
    }

    fn layout(&self, app: &App, body: Rect) -> Layout {
        // A query fills the panel: it is the one column that is seen.
        let (shape, index) = (app.shape(), app.index());
        let (rows, columns, cursor) = (shape[2], shape[1], (index[2], index[1]));
        let cell = body.width.max(1);
        Layout { area: body, rows, columns, cursor, cell, tall: 1, label: 0, header: 1, footer: 0 }
    }

    fn index(&self, app: &App, (key, query): (usize, usize)) -> Option<Vec<usize>> {
        Some(vec![app.index()[0], query, key])
    }

    fn questions(&self, app: &App, layout: &Layout) -> Vec<Query> {
        let (site, index) = (app.place().site(), app.index());
        let seen = layout.visible_rows(app);
        // Before it has settled, the cursor may be elsewhere.
        let keys = if seen.contains(&index[2]) { seen } else { index[2]..index[2] + 1 };
        let region = Region(vec![index[0]..index[0] + 1, index[1]..index[1] + 1, keys]);
        vec![
            Query::Block(site, kind::in_stage(app, region)),
            Query::Spread(Part::whole(site)),
            Query::Spread(app.part()),
        ]
    }

    fn caption(&self, app: &App, layout: &Layout) -> Vec<Piece> {
        let (theme, query) = (app.theme, layout.cursor.1);
        let words = labels::text_of(app, Axis::Token, query).unwrap_or_default();
        vec![
            Piece::whole(format!("query {query} of {} ", layout.columns), theme.strong()),
            Piece::words(text::cut(&words, 12), theme.token()).rank(2),
            Piece::whole(" · ", theme.dim()),
            grid::range(app, "↓", Axis::Key, &layout.visible_rows(app), layout.rows),
        ]
    }

    fn legend(&self, app: &App, foot: Rect, buf: &mut Buffer) {
        legend::list(app, foot, buf);
    }

    fn render(&self, app: &App, layout: &Layout, buf: &mut Buffer) {
        list::draw(self, app, layout, list::Rows::Held(2), buf);
    }
}
