//! The layers: a map of all heads of all layers with their attention patterns. Each head has the letter and the value of
//! its largest measure. Enter goes to the head under the cursor.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

use llama_trace_core::trace::{Address, Axis, Pattern, PatternsAt, Query, Region, Site, Stage, Step};

use super::super::app::App;
use super::super::fit::Piece;
use super::super::place::Place;
use super::super::theme::{Depth, Span};
use super::half_blocks;
use super::kind::{self, View};
use super::layout::Layout;
use super::paint::{put, put_fit};
use super::tensor_foot;

/// Minimum columns, maximum columns and maximum lines of a cell. They include the space between two cells.
const NARROWEST: u16 = 5;
const WIDEST: u16 = 18;
const HIGHEST: u16 = 10;
/// Minimum lines of a picture. If there is less room, only the numbers are shown.
const PICTURE: u16 = 2;
/// Columns before the cells.
const LABEL: u16 = 9;
/// Lines below the cells: the heads with the largest values of each measure, and the formulas.
const BELOW: u16 = 9;
/// Number of heads that are named for each measure.
const NAMED: usize = 6;

/// The colour span of attention weights, which are probabilities.
const SHARES: Span = Span { positive: true, high: 1.0, clipped: 0, at_most: false };

/// A measure of a head: its name, of which the first letter is its mark in the map; its value; and the number of queries
/// in the mean.
type Measure = (&'static str, fn(&Pattern) -> f64, fn(&Pattern) -> usize);
const MEASURES: [Measure; 5] = [
    ("P previous token", |head| head.back, |head| head.queries),
    ("I induction", |head| head.induction, |head| head.repeats),
    ("D duplicate", |head| head.duplicate, |head| head.repeats),
    ("F first token", |head| head.first, |head| head.queries),
    ("S token itself", |head| head.itself, |head| head.queries),
];

/// The meaning of the letters, from the longest to the shortest form: the token to which the weight goes.
const LETTERS: [&str; 3] = [
    "P previous token · F first token · S token itself · D earlier equal tokens · I tokens after these",
    "P previous · F first · S itself · D equal · I after equal",
    "P previous F first S self D equal I after it",
];

/// Minimum columns of a cell in which a space separates the letter from the number.
const SPACED: u16 = 7;

/// The letter and the value of the largest measure of a head.
fn largest(head: &Pattern) -> (&'static str, f64) {
    let measured = MEASURES.into_iter().filter(|(_, _, count)| count(head) > 0);
    let all = measured.map(|(name, value, _)| (&name[..1], value(head)));
    all.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or(("", 0.0))
}

/// A share in few columns: "P 0.98", or "P.98".
fn marked(letter: &str, share: f64, cell: u16) -> String {
    let number = format!("{share:.2}");
    match (cell >= SPACED, number.strip_prefix('0')) {
        (true, _) => format!("{letter} {number}"),
        (false, Some(digits)) => format!("{letter}{digits}"),
        (false, None) => format!("{letter}{share:.1}"),
    }
}

/// The heads of every layer.
#[derive(Debug)]
pub struct Layers;

impl Layers {
    /// The site of a layer's softmax in this pass.
    fn site(app: &App, layer: usize) -> Site {
        Place { layer: Some(layer), step: Step::Stage(Stage::Softmax), ..app.place() }.site()
    }

    fn pattern(app: &App, layer: usize, head: usize) -> Option<&Pattern> {
        app.answers.get(&PatternsAt(Self::site(app, layer)))?.ok()?.get(head)
    }
}

impl View for Layers {
    fn name(&self) -> &'static str {
        "layers"
    }

    fn hint(&self) -> [&'static str; 3] {
        [
            "All heads of all layers. The letter says where a head looks most, the number is the mean weight there.",
            "P near 1: a previous-token head, whatever the text. F: a head that finds nothing often gives its weight to the first token.",
            "I: an induction head looks at the tokens after earlier equal tokens. D: a duplicate-token head looks at these equal tokens.",
        ]
    }

    fn fits(&self, step: Step) -> bool {
        step.axes() == [Axis::Head, Axis::Token, Axis::Key]
    }

    fn layout(&self, app: &App, body: Rect) -> Layout {
        let sizes = app.outline().card.sizes();
        let (rows, columns) = (sizes.layers.max(1), sizes.heads.max(1));
        let room = body.width.saturating_sub(LABEL) / u16::try_from(columns).unwrap_or(u16::MAX);
        // The heads are more important than the lines below.
        let least = 2 + u16::try_from(rows.min(4)).unwrap_or(0);
        let footer = BELOW.min(body.height.saturating_sub(least)).min(body.height / 2);
        // The pictures are more important than the notes.
        let pictured = 2 + (PICTURE + 1).saturating_mul(u16::try_from(rows).unwrap_or(u16::MAX));
        let beside = body.height.saturating_sub(pictured);
        let footer = if beside > MEASURES.len() as u16 { footer.min(beside) } else { footer };
        let lines = body.height.saturating_sub(2 + footer) / u16::try_from(rows).unwrap_or(u16::MAX);
        let tall = if lines < PICTURE + 1 { 1 } else { lines.min(HIGHEST) };
        let head = app.cursor.selected.get(Axis::Head, columns);
        let cursor = (app.place().layer.unwrap_or(0), head);
        let cell = room.clamp(NARROWEST, WIDEST);
        Layout {
            area: body,
            rows,
            columns,
            cursor,
            cell,
            tall,
            label: LABEL,
            header: 2,
            footer,
            ..Layout::default()
        }
    }

    fn index(&self, app: &App, (layer, head): (usize, usize)) -> Option<Vec<usize>> {
        let mut index = app.index();
        *index.first_mut()? = head;
        (app.place().layer == Some(layer)).then_some(index)
    }

    fn shows_numbers(&self) -> bool {
        false
    }

    fn select(&self, app: &mut App, (layer, head): (usize, usize)) {
        app.go(Place { layer: Some(layer), ..app.place() });
        app.cursor.selected.set(Axis::Head, head);
    }

    fn keys(&self) -> &'static [(&'static str, &'static str)] {
        &[("Enter", "show the head")]
    }

    fn enter_address(&self, app: &App) -> Option<Address> {
        Some(Address::of(app.place().site(), app.place().step, &app.index()))
    }

    fn questions(&self, app: &App, layout: &Layout) -> Vec<Query> {
        let here = Region(app.index().iter().map(|&index| index..index + 1).collect());
        let block = Query::Block(app.place().site(), kind::in_stage(app, here));
        // The heads on the screen are asked for first. The list below needs all heads.
        let seen = layout.visible_rows(app);
        let others = (0..layout.rows).filter(|layer| !seen.contains(layer));
        let layers = seen.clone().chain(others);
        [block].into_iter().chain(layers.map(|layer| Query::Patterns(Self::site(app, layer)))).collect()
    }

    fn caption(&self, app: &App, _: &Layout) -> Vec<Piece> {
        let dim = app.theme.dim();
        vec![
            Piece::whole("all heads", dim),
            Piece::forms(
                [" of all layers: where each one looks most", " of all layers", ""].map(String::from),
                dim,
            )
            .rank(1),
        ]
    }

    fn legend(&self, app: &App, foot: Rect, buf: &mut Buffer) {
        let theme = app.theme;
        let mut pieces = vec![Piece::whole("0 ", Style::new())];
        for share in [0.0, 0.2, 0.4, 0.7, 1.0] {
            let cell = theme.cell(share, SHARES);
            pieces.push(Piece::whole(cell.fill, cell.style));
        }
        pieces.push(Piece::whole(" 1", Style::new()));
        let number = [" · the largest mean weight, and its letter", " · the largest mean weight", ""];
        pieces.push(Piece::forms(number.map(String::from), theme.dim()).rank(1));
        put_fit(buf, foot, 0, 0, &pieces);
        let forms = LETTERS.map(String::from);
        put_fit(buf, foot, 0, 1, &[Piece::forms(forms, theme.dim())]);
    }

    fn foot(&self, app: &App, foot: Rect, buf: &mut Buffer) {
        self.legend(app, foot, buf);
        tensor_foot::cursor(app, foot, buf);
    }

    fn render(&self, app: &App, layout: &Layout, buf: &mut Buffer) {
        let (theme, area) = (app.theme, layout.area);
        let group = app.cursor.selected.group();
        for (right, head) in layout.visible_columns(app).enumerate() {
            let x = layout.label + right as u16 * layout.cell;
            let style = if head == layout.cursor.1 { theme.current() } else { theme.index() };
            put(buf, area, x, 1, &format!("h{head}"), style);
            // The number of a kv head is above its first head, or above its first visible head.
            if group > 1 && (right == 0 || head.is_multiple_of(group)) {
                let rest = group - head % group;
                let room = Rect { width: (layout.cell * rest as u16).saturating_sub(1) + x, ..area };
                put(buf, room.intersection(area), x, 0, &format!("kv {}", head / group), theme.dim());
            }
        }
        for (down, layer) in layout.visible_rows(app).enumerate() {
            let style = if layer == layout.cursor.0 { theme.current() } else { theme.index() };
            put(buf, area, 0, layout.header + down as u16 * layout.tall, &format!("layer {layer}"), style);
        }
        layout.each_cell(app, |layer, head, x, y| {
            let chosen = (layer, head) == layout.cursor;
            let Some(pattern) = Self::pattern(app, layer, head) else {
                let mark = match app.answers.get(&PatternsAt(Self::site(app, layer))) {
                    Some(Err(_)) => "?",
                    _ => "…",
                };
                put(buf, area, x, y, mark, theme.dim());
                return;
            };
            let (letter, share) = largest(pattern);
            let mut style = match theme.depth() > Depth::Ansi {
                true => theme.cell(share, SHARES).style,
                false => Style::new(),
            };
            if chosen {
                style = style.add_modifier(Modifier::REVERSED | Modifier::BOLD);
            }
            let told = if letter.is_empty() { "–".to_owned() } else { marked(letter, share, layout.cell) };
            put(buf, area, x, y, &told, style);
            let room = (usize::from(layout.tall).saturating_sub(2), usize::from(layout.cell) - 1);
            if layout.tall > PICTURE {
                let (lines, columns) = (room.0.max(1), room.1);
                let at =
                    Rect { x: area.x + x, y: area.y + y + 1, width: columns as u16, height: lines as u16 };
                let value = |row: usize, column: usize| {
                    pattern.picture.get(row * pattern.places.1 + column).map(|&weight| f64::from(weight))
                };
                half_blocks::small(app, SHARES, pattern.places, value, at.intersection(area), buf);
            }
        });
        self.below(app, layout, buf);
    }
}

impl Layers {
    /// Draws the heads with the largest values of each measure, and the formulas.
    fn below(&self, app: &App, layout: &Layout, buf: &mut Buffer) {
        let theme = app.theme;
        let y = layout.header + layout.visible_rows(app).len() as u16 * layout.tall + 1;
        let bottom = y - 1 + layout.footer;
        let area = Rect { height: layout.area.height.min(bottom), ..layout.area };
        let mut heads: Vec<((usize, usize), &Pattern)> = Vec::new();
        for layer in 0..layout.rows {
            match app.answers.get(&PatternsAt(Self::site(app, layer))) {
                Some(Ok(patterns)) => {
                    heads.extend(patterns.iter().enumerate().map(|(head, it)| ((layer, head), it)));
                }
                Some(Err(reason)) => {
                    put(buf, area, 0, y, &format!("not available: {reason}"), theme.error());
                    return;
                }
                None => {}
            }
        }
        let queries = heads.first().map_or(0, |(_, head)| head.queries);
        if queries == 0 {
            put(buf, area, 0, y, "no query of this pass sees a token before its own", theme.dim());
            return;
        }
        let repeats = heads.first().map_or(0, |(_, head)| head.repeats);
        for (down, (name, value, count)) in (y..).zip(MEASURES) {
            heads.sort_by(|a, b| value(b.1).total_cmp(&value(a.1)).then(a.0.cmp(&b.0)));
            let mut pieces = vec![Piece::whole(format!("{name:<17}"), theme.dim())];
            if heads.first().is_some_and(|(_, head)| count(head) == 0) {
                let none = match app.place().pass {
                    0 => "no repeated token in this text",
                    _ => "this token is new in the text",
                };
                pieces.push(Piece::whole(none, theme.dim()));
                put_fit(buf, area, 0, down, &pieces);
                continue;
            }
            for (rank, ((layer, head), it)) in heads.iter().take(NAMED).enumerate() {
                let style = if rank == 0 { theme.strong() } else { Style::new() };
                let told = format!("L{layer} h{head} {:.2}  ", value(it));
                pieces.push(Piece::whole(told, style).rank(rank as u8));
            }
            put_fit(buf, area, 0, down, &pieces);
        }
        let over =
            if queries == 1 { "for the one query".to_owned() } else { format!("over the {queries} queries") };
        let said = [
            format!(
                "P, F, S: the means of softmax[h, t, p − 1], softmax[h, t, 0] and softmax[h, t, p] {over} t at positions p > 0"
            ),
            format!("P: the mean of softmax[h, t, p − 1] {over} t at positions p > 0"),
            format!("P: the mean of softmax[h, t, p − 1] {over}"),
            format!("P: mean softmax[h, t, p − 1] {over}"),
            "P: the mean of softmax[h, t, p − 1]".to_owned(),
        ];
        // An empty line separates the notes from the lines above, if there is room.
        let below = y + MEASURES.len() as u16;
        let y = if area.height > below + 2 { below + 1 } else { below };
        put_fit(buf, area, 0, y, &[Piece::forms(said, theme.dim())]);
        if repeats > 0 {
            let queries = if repeats == 1 { "query" } else { "queries" };
            let said = [
                format!("I, D: over {repeats} {queries} with an earlier equal token"),
                format!("I, D: over {repeats} {queries}"),
            ];
            put_fit(buf, area, 0, y + 1, &[Piece::forms(said, theme.dim())]);
        }
    }
}
