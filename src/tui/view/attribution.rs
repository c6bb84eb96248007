//! Direct logit attribution: the contribution of each head, each feed-forward network and the embedding to the
//! difference of two logits (Elhage et al., "A Mathematical Framework for Transformer Circuits", 2021).

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

use llama_trace_core::trace::lens::{Attribution, AttributionAt, Contributor};
use llama_trace_core::trace::{Address, Axis, Query, Region, Stage, Step};

use super::super::app::App;
use super::super::fit::Piece;
use super::super::text;
use super::super::theme::{Depth, Span};
use super::grid::{self, WRITTEN};
use super::kind::{self, View};
use super::labels;
use super::layout::Layout;
use super::paint::{put, put_fit};
use super::tensor_foot;

/// Columns before the cells.
const LABEL: u16 = 10;
/// Number of the largest contributions in the list below the cells.
const LISTED: u16 = 8;
/// Columns of the longest bar.
const BAR: usize = 24;

/// Heads and feed-forward networks by layer, coloured by their contribution.
#[derive(Debug)]
pub struct Parts;

impl Parts {
    /// The question for the difference between the logits of the likeliest token and a second token. The second token
    /// is the one that the user chose in the list sorted by value, or else the runner-up.
    fn question(app: &App) -> AttributionAt {
        let token = app.cursor.selected.get(Axis::Token, app.dims().tokens);
        let vocab = app.outline().card.sizes().vocab;
        let rival = (app.cursor.rank > 0).then(|| app.cursor.selected.get(Axis::Vocab, vocab) as u32);
        AttributionAt { site: app.place().site(), token, id: None, against: rival }
    }

    fn attribution(app: &App) -> Option<&Attribution> {
        app.answers.get(&Self::question(app))?.ok()
    }

    /// The contributor of a cell. The embedding is at the top, rounding at the bottom, and each layer has a row between
    /// them.
    fn part(app: &App, (row, column): (usize, usize)) -> Option<Contributor> {
        let sizes = app.outline().card.sizes();
        match (row.checked_sub(1), column) {
            (None, 0) => Some(Contributor::Embedding),
            (Some(layer), 0) if layer == sizes.layers => Some(Contributor::Rounding),
            (None, _) => None,
            (Some(layer), _) if layer >= sizes.layers => None,
            (Some(layer), head) if head < sizes.heads => Some(Contributor::Head { layer, head }),
            (Some(layer), at) if at == sizes.heads => Some(Contributor::Ffn { layer }),
            (Some(layer), _) => Some(Contributor::Bias { layer }),
        }
    }

    fn value(app: &App, part: Contributor) -> Option<f64> {
        let parts = &Self::attribution(app)?.parts;
        parts.iter().find(|share| share.part == part).map(|share| share.value)
    }

    fn span(attribution: &Attribution) -> Span {
        let high = attribution.parts.iter().map(|share| share.value.abs()).fold(0.0, f64::max);
        Span { positive: false, high: if high > 0.0 { high } else { 1.0 }, clipped: 0, at_most: false }
    }

    fn names(app: &App, attribution: &Attribution) -> [String; 2] {
        [attribution.id, attribution.against]
            .map(|id| labels::text_of(app, Axis::Vocab, id as usize).unwrap_or_else(|| format!("#{id}")))
    }
}

impl View for Parts {
    fn name(&self) -> &'static str {
        "attribution"
    }

    fn hint(&self) -> [&'static str; 3] {
        [
            "How much each head, each feed-forward network and the embedding add to the likeliest token's logit minus the runner-up's.",
            "All parts sum to the difference of the two logits. To compare with another token, choose it in the view largest, then this view again.",
            "Enter goes to the head or the network under the cursor.",
        ]
    }

    fn fits(&self, step: Step) -> bool {
        step == Step::Stage(Stage::Logits)
    }

    fn layout(&self, app: &App, body: Rect) -> Layout {
        let sizes = app.outline().card.sizes();
        let bias = Self::attribution(app).is_some_and(|attribution| {
            attribution.parts.iter().any(|share| matches!(share.part, Contributor::Bias { .. }))
        });
        let (rows, columns) = (sizes.layers + 2, sizes.heads + 1 + usize::from(bias));
        let cursor = (app.cursor.cell.0.min(rows - 1), app.cursor.cell.1.min(columns - 1));
        let cell = grid::coloured(body.width.saturating_sub(LABEL), columns);
        // The cells are more important than the list below.
        let room = body.height.saturating_sub(1 + u16::try_from(rows).unwrap_or(u16::MAX));
        let footer = (LISTED + 2).min(room.max(body.height / 3));
        Layout {
            area: body,
            rows,
            columns,
            cursor,
            cell,
            tall: 1,
            label: LABEL,
            header: 1,
            footer,
            ..Layout::default()
        }
    }

    fn index(&self, _: &App, _: (usize, usize)) -> Option<Vec<usize>> {
        None
    }

    fn shows_numbers(&self) -> bool {
        false
    }

    fn keys(&self) -> &'static [(&'static str, &'static str)] {
        &[("Enter", "go to the part")]
    }

    fn select(&self, app: &mut App, cell: (usize, usize)) {
        app.cursor.cell = cell;
    }

    fn enter_address(&self, app: &App) -> Option<Address> {
        let token = app.cursor.selected.get(Axis::Token, app.dims().tokens);
        let (layer, stage, head) = match Self::part(app, app.cursor.cell)? {
            Contributor::Embedding => (None, Stage::Embedding, None),
            Contributor::Head { layer, head } => (Some(layer), Stage::AttnHeads, Some(head)),
            Contributor::Bias { layer } => (Some(layer), Stage::AttnOutput, None),
            Contributor::Ffn { layer } => (Some(layer), Stage::FfnDown, None),
            Contributor::Rounding => return None,
        };
        let site = llama_trace_core::trace::Site { layer, stage, ..app.place().site() };
        let mut address = Address::of(site, Step::Stage(stage), &[]);
        address.index.push((Axis::Token.index(), token));
        address.index.extend(head.map(|head| (Axis::Head.index(), head)));
        Some(address)
    }

    fn questions(&self, app: &App, _: &Layout) -> Vec<Query> {
        let here = Region(app.index().iter().map(|&index| index..index + 1).collect());
        let block = Query::Block(app.place().site(), kind::in_stage(app, here));
        vec![block, Query::Attribution(Self::question(app))]
    }

    fn ids(&self, app: &App, _: &Layout) -> Vec<u32> {
        Self::attribution(app).map_or_else(Vec::new, |of| vec![of.id, of.against])
    }

    fn caption(&self, app: &App, _: &Layout) -> Vec<Piece> {
        let theme = app.theme;
        let Some(attribution) = Self::attribution(app) else {
            let said = match app.answers.get(&Self::question(app)) {
                Some(Err(_)) => "the logit cannot be split",
                _ => "splitting the logit …",
            };
            return vec![Piece::words(said, theme.dim())];
        };
        let [one, other] = Self::names(app, attribution);
        vec![
            Piece::whole("logit of ", theme.dim()),
            Piece::words(one, theme.token()),
            Piece::whole(" − logit of ", theme.dim()),
            Piece::words(other, theme.token()),
            Piece::whole(" = ", theme.dim()),
            Piece::figure(attribution.difference, false, theme.strong()),
            Piece::whole(" · ↓ layer · → head", theme.dim()).rank(1),
        ]
    }

    fn legend(&self, app: &App, foot: Rect, buf: &mut Buffer) {
        let Some(attribution) = Self::attribution(app) else { return };
        let theme = app.theme;
        let span = Self::span(attribution);
        let [one, other] = Self::names(app, attribution);
        let coloured = theme.depth() > Depth::Ansi;
        let written = app.layout().is_some_and(|layout| layout.cell >= WRITTEN);
        let sides = format!("+ for {one}  − for {other}");
        // Without colours, cells with numbers have no background.
        if theme.depth() == Depth::None && written {
            put(buf, foot, 0, 0, &sides, theme.dim());
            return;
        }
        let mut pieces = vec![Piece::figure(-span.high, false, Style::new()), Piece::whole(" ", theme.dim())];
        for i in -3..=3 {
            let cell = theme.cell(f64::from(i) / 3.0 * span.high, span);
            pieces.push(Piece::whole(if coloured { "  " } else { cell.fill }, cell.style));
        }
        pieces.push(Piece::whole(" ", theme.dim()));
        pieces.push(Piece::figure(span.high, false, Style::new()));
        pieces.push(Piece::words(format!(" · {sides}"), theme.dim()).rank(1));
        put_fit(buf, foot, 0, 0, &pieces);
    }

    fn foot(&self, app: &App, foot: Rect, buf: &mut Buffer) {
        self.legend(app, foot, buf);
        tensor_foot::cursor(app, foot, buf);
        let Some(part) = Self::part(app, app.layout().map_or(app.cursor.cell, |layout| layout.cursor)) else {
            return;
        };
        let Some(value) = Self::value(app, part) else { return };
        let line = [
            Piece::whole(format!("{part} added "), app.theme.dim()),
            Piece::figure(value, false, app.theme.strong()),
        ];
        put_fit(buf, foot, 0, 1, &line);
    }

    fn failure(&self, app: &App) -> Option<String> {
        let reason = app.answers.get(&Self::question(app))?.err()?;
        Some(format!("The logit cannot be split: {reason}"))
    }

    fn render(&self, app: &App, layout: &Layout, buf: &mut Buffer) {
        let (theme, area) = (app.theme, layout.area);
        let heads = app.outline().card.sizes().heads;
        for (right, column) in layout.visible_columns(app).enumerate() {
            let name = match column.checked_sub(heads) {
                None => format!("h{column}"),
                Some(0) => "ffn".to_owned(),
                Some(_) => "bias".to_owned(),
            };
            let chosen = column == layout.cursor.1;
            // If the number is wider than the column, only every second or third column is labelled.
            let every = (name.len() / usize::from(layout.cell)).max(1);
            if chosen || column >= heads || column.is_multiple_of(every) {
                let style = if chosen { theme.current() } else { theme.index() };
                put(buf, area, layout.label + right as u16 * layout.cell, 0, &name, style);
            }
        }
        for (down, row) in layout.visible_rows(app).enumerate() {
            let name = match row.checked_sub(1) {
                None => "embedding".to_owned(),
                Some(layer) if layer + 2 == layout.rows => "rounding".to_owned(),
                Some(layer) => format!("layer {layer}"),
            };
            let style = if row == layout.cursor.0 { theme.current() } else { theme.index() };
            put(buf, area, 0, layout.header + down as u16, &name, style);
        }
        let Some(attribution) = Self::attribution(app) else { return };
        let span = Self::span(attribution);
        let coloured = theme.depth() > Depth::Ansi;
        layout.each_cell(app, |row, column, x, y| {
            let value = Self::part(app, (row, column)).and_then(|part| Self::value(app, part));
            let chosen = (row, column) == layout.cursor;
            let width = usize::from(layout.cell);
            let Some(value) = value else {
                if chosen {
                    put(buf, area, x, y, "[]", theme.strong());
                }
                return;
            };
            let cell = theme.cell(value, span);
            let content = match layout.cell >= WRITTEN {
                true => text::right(&text::figure_in(value, false, width - 1), width - 1) + " ",
                false => text::left(if coloured { "  " } else { cell.fill }, width),
            };
            let style = if chosen {
                cell.style.add_modifier(Modifier::REVERSED | Modifier::BOLD)
            } else {
                cell.style
            };
            put(buf, area, x, y, &content, style);
            if chosen && layout.cell < WRITTEN {
                put(buf, area, x, y, "[", theme.strong());
                put(buf, area, x + layout.cell - 1, y, "]", theme.strong());
            }
        });
        largest(app, layout, attribution, buf);
    }
}

/// Draws the largest contributions, and the sum of all contributions.
fn largest(app: &App, layout: &Layout, attribution: &Attribution, buf: &mut Buffer) {
    if layout.footer < 3 {
        return;
    }
    let theme = app.theme;
    let top = layout.header + layout.visible_rows(app).len() as u16 + 1;
    let bottom = (top - 1 + layout.footer).min(layout.area.height);
    let area = Rect { height: bottom, ..layout.area };
    let mut parts = attribution.parts.clone();
    parts.sort_by(|a, b| b.value.abs().total_cmp(&a.value.abs()));
    let high = parts.first().map_or(1.0, |share| share.value.abs());
    for (y, share) in (top..bottom.saturating_sub(1)).zip(&parts) {
        let columns = if high > 0.0 { (share.value.abs() / high * BAR as f64).round() as usize } else { 0 };
        let bar = if share.value < 0.0 { "░" } else { "█" }.repeat(columns.min(BAR));
        let name = text::left(&share.part.to_string(), usize::from(LABEL));
        let x = put(buf, area, 0, y, &name, theme.index());
        let x = x + put(buf, area, x, y, &text::right(&text::real(share.value), 9), Style::new());
        put(buf, area, x + 1, y, &bar, theme.bar());
    }
    let sum = format!("all parts sum to {}", text::real(attribution.sum()));
    put(buf, area, 0, bottom.saturating_sub(1), &sum, theme.dim());
}
