//! The residual stream of a token through the layers: the stream's norm after each sublayer, and the norm and angle of
//! each addition.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Modifier;

use llama_trace_core::trace::stream::{Addition, StreamAt};
use llama_trace_core::trace::{Axis, Query, Region, Stage, Step};

use super::super::app::App;
use super::super::fit::Piece;
use super::super::place::Place;
use super::super::text;
use super::super::theme::Span;
use super::kind::{self, View, progress_note};
use super::layout::Layout;
use super::list::bar;
use super::paint::{put, put_fit, put_line};
use super::{figure, grid, labels, tensor_foot};

/// Number of tokens in one query.
const AT_ONCE: usize = 16;
/// Columns of a row's name, of a norm with the space before it, of an angle, and of a share.
const NAME: u16 = 9;
const FIGURE: usize = 9;
const ANGLE: usize = 7;
const CELL: u16 = 7;
/// Columns before the shares, including the spaces and the arrow but not the bars.
const FIXED: u16 = NAME + 2 * FIGURE as u16 + ANGLE as u16 + 5;
/// Minimum and maximum columns of the bars.
const NARROWEST: u16 = 6;
const WIDEST: u16 = 30;
/// Minimum lines at which the shares have their own heading.
const HEADED: u16 = 8;
/// The share at the end of the colour scale.
const MOST: f64 = 2.0;
/// Maximum and minimum lines of the drawing below the rows, including the empty line above it.
const DRAWING: u16 = 40;
const LEAST: u16 = 6;

/// The residual stream after each sublayer.
#[derive(Debug)]
pub struct Residual;

/// The place that a row shows: the embedding, or the stream after a sublayer.
fn place(app: &App, row: usize) -> Place {
    let (layer, stage) = match row.checked_sub(1) {
        None => (None, Stage::Embedding),
        Some(at) if at % 2 == 0 => (Some(at / 2), Stage::AttnResidual),
        Some(at) => (Some(at / 2), Stage::FfnResidual),
    };
    Place { layer, step: Step::Stage(stage), ..app.place() }
}

fn name(row: usize) -> String {
    match row.checked_sub(1) {
        None => "embedding".to_owned(),
        Some(at) => format!("L{} {}", at / 2, if at % 2 == 0 { "attn" } else { "ffn" }),
    }
}

fn question(app: &App, layer: usize, token: usize) -> StreamAt {
    let site = Place { layer: Some(layer), step: Step::Stage(Stage::FfnResidual), ..app.place() }.site();
    let first = token / AT_ONCE * AT_ONCE;
    StreamAt { site, tokens: first..app.dims().tokens.min(first + AT_ONCE) }
}

/// The vector that a row's sublayer adds to a token's stream, once it is known.
fn addition(app: &App, row: usize, token: usize) -> Option<&Addition> {
    let at = row.checked_sub(1)?;
    let all = app.answers.get(&question(app, at / 2, token))?.ok()?;
    all.get(token % AT_ONCE)?.get(at % 2)
}

/// The norm of the stream at a row.
fn after(app: &App, row: usize, token: usize) -> Option<f64> {
    match row {
        0 => addition(app, 1, token).map(|first| first.before),
        row => addition(app, row, token).map(|addition| addition.after),
    }
}

/// The arrow for the direction of an addition. The stream itself points to the right.
fn arrow(angle: f64) -> &'static str {
    ["→", "↗", "↑", "↖", "←"][((angle / 45.0).round() as usize).min(4)]
}

impl View for Residual {
    fn name(&self) -> &'static str {
        "residual"
    }

    fn hint(&self) -> [&'static str; 3] {
        [
            "The residual stream of a token: its norm after each sublayer, and what each sublayer adds. Where does it grow most?",
            "At a share of 100%, the added vector is as long as the stream. The arrow is the added vector, if the stream points to the right: ↑ (90°) adds something new, ← removes a part of the stream.",
            "↑ ↓ go from sublayer to sublayer, ← → from token to token; Enter opens the stage.",
        ]
    }

    fn fits(&self, step: Step) -> bool {
        let stages = [Stage::Embedding, Stage::AttnResidual, Stage::FfnResidual];
        stages.iter().any(|&stage| step == Step::Stage(stage))
    }

    fn layout(&self, app: &App, body: Rect) -> Layout {
        let (rows, columns) = (2 * app.outline().card.sizes().layers + 1, app.dims().tokens);
        let row = match (app.place().layer, app.place().step) {
            (Some(layer), Step::Stage(Stage::AttnResidual)) => 2 * layer + 1,
            (Some(layer), _) => 2 * layer + 2,
            (None, _) => 0,
        };
        let cursor = (row, app.cursor.selected.get(Axis::Token, columns));
        // The shares of other tokens get room first, and then the bars.
        let cells = u16::try_from(columns).unwrap_or(u16::MAX).saturating_mul(CELL);
        let least = NARROWEST.min(body.width.saturating_sub(FIXED + CELL));
        let label = FIXED + body.width.saturating_sub(FIXED.saturating_add(cells)).clamp(least, WIDEST);
        let header = if body.height < HEADED { 1 } else { 2 };
        let room = body.height.saturating_sub(header + u16::try_from(rows).unwrap_or(u16::MAX));
        let footer = if room > LEAST { room.min(DRAWING) } else { 0 };
        Layout {
            area: body,
            rows,
            columns,
            cursor,
            cell: CELL,
            tall: 1,
            label,
            header,
            footer,
            ..Layout::default()
        }
    }

    fn index(&self, app: &App, (row, token): (usize, usize)) -> Option<Vec<usize>> {
        let mut index = app.index();
        *index.first_mut()? = token;
        (place(app, row) == app.place()).then_some(index)
    }

    fn select(&self, app: &mut App, (row, token): (usize, usize)) {
        app.go(place(app, row));
        app.cursor.selected.set(Axis::Token, token);
    }

    fn questions(&self, app: &App, layout: &Layout) -> Vec<Query> {
        let here = Region(app.index().iter().map(|&index| index..index + 1).collect());
        let mut questions = vec![Query::Block(app.place().site(), kind::in_stage(app, here))];
        let (seen, cursor) = (layout.visible_columns(app), layout.cursor.1);
        let firsts = [cursor, seen.start, seen.end.saturating_sub(1)].map(|token| token / AT_ONCE * AT_ONCE);
        for layer in 0..layout.rows / 2 {
            for (at, &first) in firsts.iter().enumerate() {
                if !firsts[..at].contains(&first) {
                    questions.push(Query::Stream(question(app, layer, first)));
                }
            }
        }
        questions
    }

    fn shows_numbers(&self) -> bool {
        false
    }

    fn enter_place(&self, app: &App) -> Option<(Place, &'static str)> {
        Some((app.place(), "heatmap"))
    }

    fn needs_no_values(&self) -> bool {
        true
    }

    fn caption(&self, app: &App, layout: &Layout) -> Vec<Piece> {
        let (dim, token) = (app.theme.dim(), layout.cursor.1);
        let mut pieces = vec![
            Piece::whole(format!("token {token}{} ", labels::position_of(app, token)), app.theme.strong()),
            Piece::words(labels::text_of(app, Axis::Token, token).unwrap_or_default(), app.theme.token()),
            Piece::whole(" · ↓ sublayer", dim).rank(1),
            Piece::whole(" · ", dim).rank(2),
        ];
        pieces.push(grid::range(app, "→ share,", Axis::Token, &layout.visible_columns(app), layout.columns));
        pieces.extend(progress_note(app));
        pieces
    }

    fn legend(&self, app: &App, foot: Rect, buf: &mut Buffer) {
        let dim = app.theme.dim();
        let forms = [
            "x: the row above (→) · a: the added vector (the arrow next to the angle) · ‖v‖ = √(Σ v²)",
            "x (→) is the row above; a (the arrow) is the added vector · ‖v‖ = √(Σ v²)",
            "x (→): the row above, a (arrow): added · ‖v‖ = √(Σ v²)",
            "x (→) in, a (arrow) added · ‖v‖ = √(Σ v²)",
        ];
        put_fit(buf, foot, 0, 0, &[Piece::forms(forms.map(str::to_owned), dim)]);
        let forms = [
            "share = ‖a‖ / ‖x‖ · angle = arccos(x·a / (‖x‖·‖a‖)) · colours: the share, up to 200%",
            "share = ‖a‖ / ‖x‖ · angle = arccos(x·a / (‖x‖·‖a‖))",
            "‖a‖ / ‖x‖ · angle = arccos(x·a/(‖x‖·‖a‖))",
        ];
        put_fit(buf, foot, 0, 1, &[Piece::forms(forms.map(str::to_owned), dim)]);
    }

    fn foot(&self, app: &App, foot: Rect, buf: &mut Buffer) {
        self.legend(app, foot, buf);
        tensor_foot::cursor(app, foot, buf);
    }

    fn render(&self, app: &App, layout: &Layout, buf: &mut Buffer) {
        let (theme, area, token) = (app.theme, layout.area, layout.cursor.1);
        let bars = layout.label - FIXED;
        let (bar_at, added_at) = (NAME + FIGURE as u16 + 1, NAME + FIGURE as u16 + 1 + bars);
        let angle_at = added_at + FIGURE as u16 + 1;
        let heading = layout.header - 1;
        put(buf, area, NAME, heading, &text::right("‖x + a‖", FIGURE), theme.dim());
        put(buf, area, added_at, heading, &text::right("‖a‖", FIGURE), theme.dim());
        put(buf, area, angle_at, heading, &text::right("angle", ANGLE), theme.dim());
        if heading > 0 {
            let forms = ["  share: ‖a‖ / ‖x‖", " share"].map(str::to_owned);
            put_fit(buf, area, layout.label, 0, &[Piece::forms(forms, theme.dim())]);
        }
        for (right, column) in layout.visible_columns(app).enumerate() {
            let of = labels::text_of(app, Axis::Token, column).unwrap_or_default();
            let style = if column == token { theme.current() } else { theme.token() };
            let x = layout.label + right as u16 * CELL;
            let of = text::right(&text::cut(&of, CELL as usize - 1), CELL as usize - 1);
            put(buf, area, x, heading, &of, style);
        }
        let largest = (0..layout.rows).filter_map(|row| after(app, row, token)).fold(0.0, f64::max);
        for (down, row) in layout.visible_rows(app).enumerate() {
            let y = layout.header + down as u16;
            let style = if row == layout.cursor.0 { theme.current() } else { theme.index() };
            put(buf, area, 0, y, &name(row), style);
            let Some(length) = after(app, row, token) else {
                put(buf, area, NAME, y, &text::right("…", FIGURE), theme.dim());
                continue;
            };
            put(buf, area, NAME, y, &text::right(&text::real(length), FIGURE), theme.strong());
            put(buf, area, bar_at, y, &bar(length / largest, bars.into()), theme.bar());
            let Some(addition) = addition(app, row, token) else { continue };
            put(buf, area, added_at, y, &text::right(&text::real(addition.added), FIGURE), theme.strong());
            let Some(angle) = addition.angle() else { continue };
            let told = format!("{}°", text::figure_in(angle, false, ANGLE - 1));
            put(buf, area, angle_at, y, &text::right(&told, ANGLE), theme.strong());
            put(buf, area, angle_at + ANGLE as u16 + 1, y, arrow(angle), theme.key());
        }
        self.shares(app, layout, buf);
        self.triangle(app, layout, buf);
        if let Some(reason) = reason(app, layout) {
            let said = format!("not available: {reason}");
            put(buf, area, 0, layout.header + layout.visible_rows(app).len() as u16, &said, theme.error());
        }
    }
}

/// The reason of a failure at the layer under the cursor.
fn reason<'a>(app: &'a App, layout: &Layout) -> Option<&'a str> {
    let layer = layout.cursor.0.saturating_sub(1) / 2;
    app.answers.get(&question(app, layer, layout.cursor.1))?.err()
}

impl Residual {
    /// Draws what each sublayer adds to each token, as a share of the stream's norm.
    fn shares(&self, app: &App, layout: &Layout, buf: &mut Buffer) {
        let share = |row, token| addition(app, row, token).and_then(Addition::share);
        let seen = layout.visible_columns(app);
        let all = (1..layout.rows).flat_map(|row| seen.clone().map(move |token| (row, token)));
        let largest = all.filter_map(|(row, token)| share(row, token)).fold(0.0, f64::max);
        // Shares are large in the first layer, because the embedding is small. The limit keeps the colours of other
        // shares distinct.
        let high = if largest > 0.0 { largest.min(MOST) } else { 1.0 };
        let span = Span { positive: true, high, clipped: 0, at_most: false };
        layout.each_cell(app, |row, token, x, y| {
            let Some(share) = share(row, token) else { return };
            let told = format!("{}%", text::figure_in(share * 100.0, false, CELL as usize - 2));
            let mut style = app.theme.cell(share, span).style;
            if (row, token) == layout.cursor {
                style = style.add_modifier(Modifier::REVERSED | Modifier::BOLD);
            }
            put(buf, layout.area, x, y, &text::right(&told, CELL as usize - 1), style);
        });
    }

    /// Draws the triangle of the stream and the addition, for the sublayer under the cursor.
    fn triangle(&self, app: &App, layout: &Layout, buf: &mut Buffer) {
        if layout.footer < LEAST {
            return;
        }
        let (theme, (row, token)) = (app.theme, layout.cursor);
        let y = layout.header + layout.visible_rows(app).len() as u16 + 1;
        let Some(addition) = addition(app, row, token) else {
            let said = "the stream begins with the embedding; every sublayer below adds to it";
            let lines = text::wrap(if row == 0 { said } else { "" }, layout.area.width.into());
            for (y, line) in (y..).zip(&lines) {
                put(buf, layout.area, 0, y, line, theme.dim());
            }
            return;
        };
        let pieces = [
            Piece::whole(format!("{}: ", name(row)), theme.strong()),
            Piece::whole("‖x‖ ", theme.dim()),
            Piece::figure(addition.before, false, theme.strong()),
            Piece::whole(", ‖a‖ ", theme.dim()),
            Piece::figure(addition.added, false, theme.strong()),
            Piece::whole(", ‖x + a‖ ", theme.dim()),
            Piece::figure(addition.after, false, theme.strong()),
        ];
        put_fit(buf, layout.area, 0, y, &pieces);
        let size = (layout.area.width.min(120), layout.footer - 2);
        for (down, line) in figure::addition(addition, size, theme).iter().enumerate() {
            put_line(buf, layout.area, y + 1 + down as u16, line);
        }
    }
}
