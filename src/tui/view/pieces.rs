//! The pieces: the tokens of a pass with ids, texts and bytes, the log-probability that the model gave each token
//! before reading it, and the tokenizer's merges.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use llama_trace_core::trace::frame::Number;
use llama_trace_core::trace::token_logprobs::{LIKELIEST, TokenLogprob, TokenPieces};
use llama_trace_core::trace::{Axis, Query, Site, Stage, Step, TokenPiecesAt};

use super::super::app::App;
use super::super::fit::Piece;
use super::super::text;
use super::grid;
use super::kind::{self, View};
use super::labels;
use super::layout::Layout;
use super::list::bar;
use super::paint::{put, put_fit};
use super::tensor_foot;

/// The tokens of a pass.
#[derive(Debug)]
pub struct Pieces;

/// Columns of the bytes, of a log-probability and of a rank.
const BYTES: usize = 12;
const LOG: usize = 9;
const RANK: usize = 7;
/// The surprise −log p at which a bar has its full length.
const LONGEST: f64 = 12.0;
/// Number of lines about the token under the cursor.
const BELOW: u16 = 8;

fn site(app: &App) -> Site {
    app.place().site().other(Stage::Tokens)
}

fn made(app: &App) -> Option<&[TokenPieces]> {
    app.answers.get(&TokenPiecesAt(site(app)))?.ok()
}

impl View for Pieces {
    fn name(&self) -> &'static str {
        "tokens"
    }

    fn hint(&self) -> [&'static str; 3] {
        [
            "Each token with its bytes, and its log-probability and rank in the model's prediction before it.",
            "A long bar is a surprise: the first letters of a name, the start of a sentence. Which tokens were certain?",
            "Below: the merges of the token under the cursor, and the tokens that the model expected instead. T: surprise on the strip.",
        ]
    }

    fn fits(&self, step: Step) -> bool {
        [Stage::Tokens, Stage::Embedding].map(Step::Stage).contains(&step)
    }

    fn layout(&self, app: &App, body: Rect) -> Layout {
        let rows = app.dims().tokens;
        let cursor = (app.cursor.selected.get(Axis::Token, rows), 0);
        // All merges of the token under the cursor are shown, if the rows leave room for them.
        let least = BELOW.min(body.height / 3);
        let merges = made(app).and_then(|made| made.get(cursor.0)).map_or(0, |made| made.merges.len());
        let left = body.height.saturating_sub(1).saturating_sub(u16::try_from(rows).unwrap_or(u16::MAX));
        let below = merges + 3 + if likeliest(app, cursor.0).is_some() { LIKELIEST + 2 } else { 0 };
        let footer = u16::try_from(below).unwrap_or(u16::MAX).min(left).max(least);
        Layout {
            area: body,
            rows,
            columns: 1,
            cursor,
            cell: body.width,
            tall: 1,
            label: 0,
            header: 1,
            footer,
            ..Layout::default()
        }
    }

    fn index(&self, app: &App, cell: (usize, usize)) -> Option<Vec<usize>> {
        let mut index = app.index();
        *index.first_mut()? = cell.0;
        Some(index)
    }

    fn shows_numbers(&self) -> bool {
        false
    }

    fn questions(&self, app: &App, layout: &Layout) -> Vec<Query> {
        let region = kind::visible_region(app, layout);
        let mut questions = vec![Query::Block(app.place().site(), region), Query::TokenPieces(site(app))];
        for token in layout.visible_rows(app) {
            let query = Query::TokenLogprobs(app.logprob_question(app.place().pass, token));
            if !questions.contains(&query) {
                questions.push(query);
            }
        }
        questions
    }

    fn ids(&self, app: &App, layout: &Layout) -> Vec<u32> {
        let told = likeliest(app, layout.cursor.0);
        told.into_iter().flat_map(|told| told.likeliest).map(|(id, _)| id).collect()
    }

    fn caption(&self, app: &App, layout: &Layout) -> Vec<Piece> {
        vec![grid::range(app, "↓", Axis::Token, &layout.visible_rows(app), layout.rows)]
    }

    fn legend(&self, app: &App, foot: Rect, buf: &mut Buffer) {
        let said = "log p = log_softmax(logits of the position before)[id]";
        put(buf, foot, 0, 0, said, app.theme.dim());
        put(
            buf,
            foot,
            0,
            1,
            &format!("█ −log p, up to {LONGEST} · rank 1 is the likeliest"),
            app.theme.dim(),
        );
    }

    fn foot(&self, app: &App, foot: Rect, buf: &mut Buffer) {
        self.legend(app, foot, buf);
        tensor_foot::cursor(app, foot, buf);
    }

    fn render(&self, app: &App, layout: &Layout, buf: &mut Buffer) {
        let (theme, area, dims, columns) = (app.theme, layout.area, app.dims(), Columns::new(app, layout));
        for (x, heading) in [
            (0, text::right("token", columns.digits)),
            (columns.text_at, "text".to_owned()),
            (columns.id_at, text::right("id", columns.ids)),
            (columns.bytes_at, "bytes".to_owned()),
            (columns.log_at, text::right("log p", LOG)),
            (columns.rank_at, text::right("rank", RANK)),
        ] {
            put(buf, area, x, 0, &heading, theme.dim());
        }
        let pass = &app.outline().passes[app.place().pass.min(app.outline().passes.len() - 1)];
        for (down, row) in layout.visible_rows(app).enumerate() {
            let y = layout.header + down as u16;
            let chosen = row == layout.cursor.0;
            let pick = |style| if chosen { theme.current() } else { style };
            let Some(token) = pass.tokens.get(row) else { continue };
            let number = text::right(&(dims.start + row).to_string(), columns.digits);
            put(buf, area, 0, y, &number, pick(theme.index()));
            columns.token(app, area, (y, &token.text, token.id), pick, buf);
            if let Some(made) = made(app).and_then(|made| made.get(row)) {
                put(buf, area, columns.bytes_at, y, &bytes(&made.bytes, BYTES), theme.dim());
            }
            match app.token_logprob(app.place().pass, row) {
                Some(Some(told)) => columns.likely(app, area, (y, told.log_prob, told.rank), buf),
                // The first token of the text has no probability.
                Some(None) => {
                    let _ = put(buf, area, columns.log_at, y, &text::right("first", LOG), theme.dim());
                }
                None => {
                    let _ = put(buf, area, columns.log_at, y, &text::right("…", LOG), theme.dim());
                }
            }
        }
        below(app, layout, buf);
    }
}

/// The log-probability of the token in a row, and the tokens that were likeliest there. None until they are known.
fn likeliest(app: &App, row: usize) -> Option<TokenLogprob> {
    app.token_logprob(app.place().pass, row)?
}

/// Positions of the columns.
struct Columns {
    digits: usize,
    texts: usize,
    ids: usize,
    text_at: u16,
    id_at: u16,
    bytes_at: u16,
    log_at: u16,
    rank_at: u16,
    bar_at: u16,
}

impl Columns {
    fn new(app: &App, layout: &Layout) -> Self {
        let digits = labels::digits(app.dims().keys()).max("token".len());
        let ids = labels::digits(app.outline().card.sizes().vocab).max(2);
        let texts = usize::from(layout.area.width / 5).clamp(6, 20);
        let text_at = digits as u16 + 1;
        let id_at = text_at + texts as u16 + 1;
        let bytes_at = id_at + ids as u16 + 1;
        let log_at = bytes_at + BYTES as u16 + 1;
        let rank_at = log_at + LOG as u16;
        Self {
            digits,
            texts,
            ids,
            text_at,
            id_at,
            bytes_at,
            log_at,
            rank_at,
            bar_at: rank_at + RANK as u16 + 1,
        }
    }

    /// Draws a token's text and id.
    fn token(
        &self,
        app: &App,
        area: Rect,
        (y, text, id): (u16, &str, u32),
        pick: impl Fn(Style) -> Style,
        buf: &mut Buffer,
    ) {
        let text = text::cut(&text::visible(text), self.texts);
        put(buf, area, self.text_at, y, &text, pick(app.theme.token()));
        put(buf, area, self.id_at, y, &text::right(&id.to_string(), self.ids), pick(Style::new()));
    }

    /// Draws a token's log-probability, its rank, and a bar for its surprise.
    fn likely(&self, app: &App, area: Rect, (y, log_prob, rank): (u16, f32, usize), buf: &mut Buffer) {
        let log = text::short(Number::F32(log_prob), LOG - 1);
        put(buf, area, self.log_at, y, &text::right(&log, LOG), Style::new());
        put(buf, area, self.rank_at, y, &text::right(&rank.to_string(), RANK), Style::new());
        let room = usize::from(area.width.saturating_sub(self.bar_at));
        put(buf, area, self.bar_at, y, &bar(-f64::from(log_prob) / LONGEST, room), app.theme.bar());
    }
}

/// Bytes in hexadecimal, as many as fit.
fn bytes(bytes: &[u8], columns: usize) -> String {
    let all: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let fits = (columns + 1) / 3;
    if all.len() <= fits { all.join(" ") } else { all[..fits.saturating_sub(1)].join(" ") + " …" }
}

/// Draws the tokenizer's steps that lead to the token under the cursor.
fn below(app: &App, layout: &Layout, buf: &mut Buffer) {
    let theme = app.theme;
    let y = layout.header + layout.visible_rows(app).len() as u16 + 1;
    let bottom = y + layout.footer.saturating_sub(2);
    let area = Rect { height: layout.area.height.min(bottom), ..layout.area };
    let failed = app.answers.get(&TokenPiecesAt(site(app))).and_then(Result::err);
    let at = app.logprob_question(app.place().pass, layout.cursor.0);
    for (down, reason) in (y..).zip(failed.into_iter().chain(app.answers.get(&at).and_then(Result::err))) {
        put(buf, area, 0, down, &format!("not available: {reason}"), theme.error());
    }
    let Some(made) = made(app).and_then(|made| made.get(layout.cursor.0)) else { return };
    let name = labels::text_of(app, Axis::Token, layout.cursor.0).unwrap_or_default();
    let said = match (made.parts.len(), made.merges.len()) {
        _ if made.bytes.is_empty() => " is a special token: it adds no bytes to the text".to_owned(),
        (0, _) if app.place().pass > 0 => " was sampled, not split from a text".to_owned(),
        (0, _) => ": its merges are not known".to_owned(),
        (_, 0) => " is in the vocabulary as a whole: nothing was merged".to_owned(),
        (parts, 1) => format!(": {parts} parts, 1 merge"),
        (parts, merges) => format!(": {parts} parts, {merges} merges"),
    };
    put_fit(buf, area, 0, y, &[Piece::words(name, theme.token()), Piece::whole(said, theme.dim())]);
    let room = usize::from(area.height.saturating_sub(y + 1));
    let shown = if made.merges.len() > room { room.saturating_sub(1) } else { made.merges.len() };
    if let Some(more) = made.merges.len().checked_sub(shown).filter(|&more| more > 0) {
        put(buf, area, 2, y + 1 + shown as u16, &format!("and {more} more"), theme.dim());
    }
    for (down, merge) in (y + 1..).zip(made.merges.iter().take(shown)) {
        let pieces = [
            Piece::whole("  ", theme.dim()),
            Piece::words(text::visible(&merge.left), theme.token()),
            Piece::whole(" + ", theme.dim()),
            Piece::words(text::visible(&merge.right), theme.token()),
            Piece::whole(format!("   merge {}", merge.by), theme.dim()).rank(1),
        ];
        put_fit(buf, area, 0, down, &pieces);
    }
    let from = y + 2 + shown as u16 + u16::from(made.merges.len() > shown);
    expected(app, Rect { height: area.height.min(bottom), ..area }, from, layout, buf);
}

/// Draws the tokens that were likeliest at the position of the token under the cursor, from line `y` on.
fn expected(app: &App, area: Rect, y: u16, layout: &Layout, buf: &mut Buffer) {
    let Some(told) = likeliest(app, layout.cursor.0) else { return };
    let room = usize::from(area.height.saturating_sub(y + 1));
    if room < 2 {
        return;
    }
    let (theme, columns) = (app.theme, Columns::new(app, layout));
    put(buf, area, 0, y, "the model expected instead:", theme.dim());
    let read = app.outline().passes.get(app.place().pass).and_then(|pass| pass.tokens.get(layout.cursor.0));
    for (rank, (y, &(id, log_prob))) in (y + 1..).zip(told.likeliest.iter().take(room)).enumerate() {
        let text = app.answers.text(id).unwrap_or_default().to_owned();
        let strong =
            |style: Style| if read.is_some_and(|read| read.id == id) { theme.strong() } else { style };
        columns.token(app, area, (y, &text, id), strong, buf);
        columns.likely(app, area, (y, log_prob, rank + 1), buf);
    }
}
