//! The logit lens: final norm and output matrix applied to the residual after each layer, token by token
//! (nostalgebraist, "interpreting GPT: the logit lens", 2020).

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Modifier;

use llama_trace_core::trace::lens::{LensAt, Reading};
use llama_trace_core::trace::{Axis, Query, Region, Stage, Step};

use super::super::app::App;
use super::super::fit::Piece;
use super::super::place::Place;
use super::super::text;
use super::super::theme::Span;
use super::grid;
use super::kind::{self, View};
use super::labels;
use super::layout::Layout;
use super::list::bar;
use super::paint::{put, put_fit};
use super::tensor_foot;

/// Number of likeliest tokens in the list.
const TOP: usize = 5;
/// Number of tokens in one query.
const AT_ONCE: usize = 8;
/// Columns of a cell (`CELL`), and of the token in it (`TEXT`).
const CELL: u16 = 12;
const TEXT: usize = 6;
/// Lines below the cells: a gap, the name of the cell, the likeliest tokens, and two lines for the model's answer.
const BELOW: u16 = TOP as u16 + 4;

/// The likeliest token after each layer.
#[derive(Debug)]
pub struct Lens;

impl Lens {
    fn question(app: &App, layer: usize, token: usize) -> LensAt {
        let site = Place { layer: Some(layer), ..app.place() }.site();
        let first = token / AT_ONCE * AT_ONCE;
        LensAt { site, tokens: first..app.dims().tokens.min(first + AT_ONCE), top: TOP }
    }

    fn reading(app: &App, layer: usize, token: usize) -> Option<&Reading> {
        app.answers.get(&Self::question(app, layer, token))?.ok()?.get(token % AT_ONCE)
    }

    /// The first layer after which the model's final answer for a token stays the likeliest. None until all layers are
    /// known.
    fn leads_from(app: &App, layers: usize, token: usize) -> Option<usize> {
        let mut ranks = Vec::new();
        for layer in 0..layers {
            ranks.push(Self::reading(app, layer, token)?.answer.rank);
        }
        Some(layers - ranks.iter().rev().take_while(|rank| **rank == 1).count())
    }
}

impl View for Lens {
    fn name(&self) -> &'static str {
        "lens"
    }

    fn hint(&self) -> [&'static str; 3] {
        [
            "The final norm and the output head on each layer's residual: the answer if the model ended after this layer.",
            "The likeliest token and its probability; * marks the last layer's answer. In which layer does it first appear?",
            "↑ ↓ go from layer to layer; the layer's likeliest tokens are listed below.",
        ]
    }

    fn fits(&self, step: Step) -> bool {
        step == Step::Stage(Stage::FfnResidual)
    }

    fn layout(&self, app: &App, body: Rect) -> Layout {
        let (rows, columns) = (app.outline().card.sizes().layers, app.dims().tokens);
        let cursor = (app.place().layer.unwrap_or(0), app.cursor.selected.get(Axis::Token, columns));
        let label = 6 + labels::digits(rows) as u16 + 1;
        // The cells are more important than the lines below.
        let room = body.height.saturating_sub(2 + u16::try_from(rows).unwrap_or(u16::MAX));
        let footer = BELOW.min(room.max(body.height / 3));
        Layout {
            area: body,
            rows,
            columns,
            cursor,
            cell: CELL,
            tall: 1,
            label,
            header: 2,
            footer,
            ..Layout::default()
        }
    }

    fn index(&self, app: &App, (layer, token): (usize, usize)) -> Option<Vec<usize>> {
        let mut index = app.index();
        *index.first_mut()? = token;
        (app.place().layer == Some(layer)).then_some(index)
    }

    fn shows_numbers(&self) -> bool {
        false
    }

    fn select(&self, app: &mut App, (layer, token): (usize, usize)) {
        app.go(Place { layer: Some(layer), ..app.place() });
        app.cursor.selected.set(Axis::Token, token);
    }

    fn questions(&self, app: &App, layout: &Layout) -> Vec<Query> {
        let here = Region(app.index().iter().map(|&index| index..index + 1).collect());
        let mut questions = vec![Query::Block(app.place().site(), kind::in_stage(app, here))];
        let (seen, cursor) = (layout.visible_columns(app), layout.cursor.1);
        // The first layer with the answer is found from all layers of the token under the cursor.
        let of_cursor = (0..layout.rows).map(|layer| Self::question(app, layer, cursor));
        let on_screen = layout.visible_rows(app).flat_map(|layer| {
            seen.clone()
                .filter(|token| token.is_multiple_of(AT_ONCE) || *token == seen.start)
                .map(move |token| Self::question(app, layer, token))
        });
        for query in of_cursor.chain(on_screen).map(Query::Lens) {
            if !questions.contains(&query) {
                questions.push(query);
            }
        }
        questions
    }

    fn ids(&self, app: &App, layout: &Layout) -> Vec<u32> {
        let cells = layout.visible_rows(app).flat_map(|layer| {
            layout.visible_columns(app).filter_map(move |token| Self::reading(app, layer, token))
        });
        cells.flat_map(|reading| reading.top.iter().chain([&reading.answer]).map(|one| one.id)).collect()
    }

    fn caption(&self, app: &App, layout: &Layout) -> Vec<Piece> {
        let mut pieces = vec![Piece::whole("↓ layer · ", app.theme.dim())];
        pieces.push(grid::range(app, "→", Axis::Token, &layout.visible_columns(app), layout.columns));
        pieces.push(Piece::whole(" · the likeliest next token", app.theme.dim()).rank(1));
        pieces
    }

    fn legend(&self, app: &App, foot: Rect, buf: &mut Buffer) {
        put(buf, foot, 0, 0, "% its probability · * the last layer's answer", app.theme.dim());
    }

    fn foot(&self, app: &App, foot: Rect, buf: &mut Buffer) {
        self.legend(app, foot, buf);
        tensor_foot::cursor(app, foot, buf);
    }

    fn failure(&self, app: &App) -> Option<String> {
        let (layer, token) = app.layout()?.cursor;
        let reason = app.answers.get(&Self::question(app, layer, token))?.err()?;
        Some(format!("The answers after each layer are not available: {reason}"))
    }

    fn render(&self, app: &App, layout: &Layout, buf: &mut Buffer) {
        let (theme, area) = (app.theme, layout.area);
        for (right, token) in layout.visible_columns(app).enumerate() {
            let x = layout.label + right as u16 * layout.cell;
            let style = if token == layout.cursor.1 { theme.current() } else { theme.token() };
            let text = labels::text_of(app, Axis::Token, token).unwrap_or_default();
            put(buf, area, x, 0, &text::left(&text::cut(&text, CELL as usize - 1), CELL as usize - 1), style);
            put(buf, area, x, 1, &format!("{}", app.dims().start + token), theme.index());
        }
        for (down, layer) in layout.visible_rows(app).enumerate() {
            let style = if layer == layout.cursor.0 { theme.current() } else { theme.index() };
            put(buf, area, 0, layout.header + down as u16, &format!("layer {layer}"), style);
        }
        let span = Span { positive: true, high: 1.0, clipped: 0, at_most: false };
        layout.each_cell(app, |layer, token, x, y| {
            let Some(reading) = Self::reading(app, layer, token) else {
                put(buf, area, x, y, "…", theme.dim());
                return;
            };
            let Some(first) = reading.top.first() else { return };
            let mark = if first.id == reading.answer.id { "*" } else { " " };
            let name = text::left(&text::cut(&token_text(app, first.id), TEXT), TEXT);
            let content = format!("{name}{:>3.0}%{mark}", f64::from(first.prob) * 100.0);
            let mut style = theme.cell(first.prob.into(), span).style;
            if (layer, token) == layout.cursor {
                style = style.add_modifier(Modifier::REVERSED | Modifier::BOLD);
            }
            put(buf, area, x, y, &content, style);
        });
        self.below(app, layout, buf);
    }
}

impl Lens {
    /// Draws the likeliest tokens of the cell under the cursor, and the rank of the model's answer.
    fn below(&self, app: &App, layout: &Layout, buf: &mut Buffer) {
        let (theme, (layer, token)) = (app.theme, layout.cursor);
        let y = layout.header + layout.visible_rows(app).len() as u16 + 1;
        let bottom = layout.header + layout.visible_rows(app).len() as u16 + layout.footer;
        let Some(reading) = Self::reading(app, layer, token) else { return };
        let area = Rect { height: layout.area.height.min(bottom), ..layout.area };
        let of = labels::text_of(app, Axis::Token, token).unwrap_or_default();
        let pieces = [
            Piece::whole(
                format!("after layer {layer}, token {token}{} ", labels::position_of(app, token)),
                theme.dim(),
            ),
            Piece::words(of, theme.token()),
        ];
        put_fit(buf, area, 0, y, &pieces);
        for (down, one) in (y + 1..).zip(&reading.top) {
            let line =
                format!("{:>2}. {} {:.4} ", one.rank, text::left(&token_text(app, one.id), 14), one.prob);
            let x = put(buf, area, 0, down, &line, theme.token());
            put(buf, area, x, down, &bar(one.prob.into(), 20), theme.bar());
        }
        let answer = reading.answer;
        let y = y + 1 + reading.top.len() as u16;
        let (name, prob) = (token_text(app, answer.id), answer.prob);
        let pieces = [
            Piece::whole("the last layer answers ", theme.dim()),
            Piece::words(format!("\"{name}\""), theme.token()),
            Piece::whole(format!(": rank {} here, {prob:.4}", answer.rank), theme.strong()),
        ];
        put_fit(buf, area, 0, y, &pieces);
        // An open question may ask for this layer.
        if let Some(first) = Self::leads_from(app, layout.rows, token).filter(|_| !app.hides_next()) {
            put(buf, area, 0, y + 1, &format!("this answer leads from layer {first} on"), theme.strong());
        }
    }
}

/// The text of a token of the vocabulary, or its id.
fn token_text(app: &App, id: u32) -> String {
    labels::text_of(app, Axis::Vocab, id as usize).unwrap_or_else(|| format!("#{id}"))
}
