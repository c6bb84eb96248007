//! The KV cache: its rows by the pass that wrote them, and its size in bytes.

use std::ops::Range;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use llama_trace_core::trace::frame::Number;
use llama_trace_core::trace::{Axis, Part, Query, Region, Stage, Step};

use super::super::app::App;
use super::super::fit::Piece;
use super::super::text;
use super::grid;
use super::half_blocks;
use super::kind::{self, View};
use super::labels;
use super::layout::Layout;
use super::legend;
use super::paint::{put, put_fit};

/// Lines above the rows: the calculation of the bytes, and the headings.
const ABOVE: u16 = 7;
/// Columns of a pass number with its mark (`PASS`), and of a number of bytes (`BYTES`).
const PASS: usize = 6;
const BYTES: usize = 11;
/// Minimum columns of a kv head's values. If there is less room, only one head is shown.
const VALUES: usize = 8;
/// Maximum columns of a token's text.
const TEXT: usize = 14;
/// Number of future token counts in the line about the growth.
const TO_COME: usize = 6;
/// Lines around the list of future sizes, which is below the rows (`GROWTH`); minimum number of lines of this
/// list (`STEPS`).
const GROWTH: u16 = 3;
const STEPS: u16 = 3;
/// Number of next tokens that have a line each in the list of future sizes.
const NEXT: usize = 8;

/// The rows of the KV cache by pass, and its bytes.
#[derive(Debug)]
pub struct Cache;

/// Sizes of the cache in bytes. A token adds a key and a value for each kv head of each layer.
struct Bytes {
    /// Bytes of one number.
    number: usize,
    /// Bytes of a token in one layer (`layer`), and in all layers (`token`).
    layer: usize,
    token: usize,
    /// Bytes of a token in all layers, if each query head had its own kv head (multi-head attention).
    without_sharing: usize,
}

impl Bytes {
    fn new(app: &App) -> Self {
        let (sizes, number) = (app.outline().card.sizes(), app.outline().cache.dtype.bytes());
        let layer = 2 * sizes.kv_heads * sizes.head_dim * number;
        let token = sizes.layers * layer;
        Self {
            number,
            layer,
            token,
            without_sharing: 2 * sizes.layers * sizes.heads * sizes.head_dim * number,
        }
    }
}

/// The pass that wrote the row of a key.
fn pass_of(app: &App, key: usize) -> usize {
    let after = app.outline().passes.partition_point(|pass| pass.dims.start <= key);
    after.saturating_sub(1)
}

/// The kv heads whose values fit into `room` columns, and the number of values in one column.
fn strips(app: &App, room: usize) -> (Range<usize>, usize) {
    let sizes = app.outline().card.sizes();
    let columns = room / sizes.kv_heads.max(1);
    if columns > VALUES {
        return (0..sizes.kv_heads, sizes.head_dim.div_ceil(columns - 1).max(1));
    }
    let held = app.cursor.selected.get(Axis::KvHead, sizes.kv_heads);
    (held..held + 1, sizes.head_dim.div_ceil(room.max(1)).max(1))
}

/// The first columns of the pass, of the bytes so far, and of the values.
fn columns(app: &App, layout: &Layout) -> (usize, usize, usize) {
    let digits = labels::digits(layout.rows).max(3);
    let text = labels::text_width(app, Axis::Key, layout.rows, TEXT);
    let pass = digits + text + 2;
    (pass, pass + PASS, pass + PASS + BYTES + 1)
}

/// Number of columns for the values.
fn values_room(app: &App, layout: &Layout) -> usize {
    usize::from(layout.area.width).saturating_sub(columns(app, layout).2)
}

impl View for Cache {
    fn name(&self) -> &'static str {
        "cache"
    }

    fn hint(&self) -> [&'static str; 3] {
        [
            "The rows of the cache: + marks the rows that this pass wrote; the bytes count all layers, up to that row.",
            "Each token adds the same number of bytes. Query heads that share a kv head need fewer bytes.",
            "t runs the next token, which adds one row. The earlier rows do not change.",
        ]
    }

    fn fits(&self, step: Step) -> bool {
        [Stage::CacheK, Stage::CacheV].map(Step::Stage).contains(&step)
    }

    fn layout(&self, app: &App, body: Rect) -> Layout {
        let (rows, cursor) = (app.shape()[0], (app.index()[0], 0));
        let header = ABOVE.min(body.height / 2).max(1);
        let left = usize::from(body.height).saturating_sub(usize::from(header + GROWTH) + rows);
        let steps = steps(rows, room(app).0).take(left).count() as u16;
        let footer = if steps >= STEPS { GROWTH + steps } else { 0 };
        Layout {
            area: body,
            rows,
            columns: 1,
            cursor,
            cell: body.width,
            tall: 1,
            label: 0,
            header,
            footer,
            ..Layout::default()
        }
    }

    fn index(&self, app: &App, (key, _): (usize, usize)) -> Option<Vec<usize>> {
        let mut index = app.index();
        *index.first_mut()? = key;
        Some(index)
    }

    fn questions(&self, app: &App, layout: &Layout) -> Vec<Query> {
        let (site, shape, index) = (app.place().site(), app.shape(), app.index());
        let seen = layout.visible_rows(app);
        // The cursor can be out of sight for a moment, until the scroll position follows it.
        let keys = if seen.contains(&index[0]) { seen } else { index[0]..index[0] + 1 };
        let region = Region(vec![keys, strips(app, values_room(app, layout)).0, 0..shape[2]]);
        let spreads = [Part::whole(site), app.span_part()].map(Query::Spread);
        [Query::Block(site, kind::in_stage(app, region))].into_iter().chain(spreads).collect()
    }

    fn spans_all(&self) -> bool {
        true
    }

    fn caption(&self, app: &App, layout: &Layout) -> Vec<Piece> {
        let (_, each) = strips(app, values_room(app, layout));
        let dims = [format!(" · → head dim, {each} each"), format!(" · → {each} each")];
        let dims = (each > 1).then(|| Piece::forms(dims, app.theme.dim()).rank(1));
        let keys = grid::range(app, "↓", Axis::Key, &layout.visible_rows(app), layout.rows);
        let new = [" · + written by this pass", " · + is new"].map(str::to_owned);
        let new = Piece::forms(new.into_iter().chain([String::new()]), app.theme.dim()).rank(4);
        [keys].into_iter().chain(dims).chain([new]).collect()
    }

    fn legend(&self, app: &App, foot: Rect, buf: &mut Buffer) {
        legend::marks(app, foot, buf);
    }

    fn render(&self, app: &App, layout: &Layout, buf: &mut Buffer) {
        growth(app, layout, buf);
        let (theme, area) = (app.theme, layout.area);
        let above = Rect { height: layout.header - 1, ..area };
        for (y, pieces) in account(app).iter().enumerate() {
            put_fit(buf, above, 0, y as u16, pieces);
        }
        let (bytes, start) = (Bytes::new(app), app.dims().start);
        let (pass_at, bytes_at, values_at) = columns(app, layout);
        let (heads, each) = strips(app, values_room(app, layout));
        let dims = app.shape()[2];
        let wide = dims.div_ceil(each);
        let (digits, heading) = (labels::digits(layout.rows).max(3), layout.header - 1);
        put(buf, area, 0, heading, &text::right("key", digits), theme.dim());
        put(buf, area, digits as u16 + 1, heading, "text", theme.dim());
        put(buf, area, pass_at as u16, heading, "pass", theme.dim());
        put(buf, area, bytes_at as u16, heading, &text::right("bytes, sum", BYTES), theme.dim());
        for (at, head) in heads.clone().enumerate() {
            let style = if head == app.index()[1] { theme.strong() } else { theme.dim() };
            let x = values_at + at * (wide + 1);
            let room = Rect { width: area.width.min((x + wide) as u16), ..area };
            put(buf, room, x as u16, heading, &format!("kv {head}"), style);
        }
        let (Some(tensor), span) = (app.tensor(), app.span()) else { return };
        for (down, key) in layout.visible_rows(app).enumerate() {
            let y = layout.header + down as u16;
            let (chosen, new) = (key == layout.cursor.0, key >= start);
            let pick = |style: Style| if chosen { theme.current() } else { style };
            put(buf, area, 0, y, &format!("{key:>digits$}"), pick(theme.index()));
            let token = labels::text_of(app, Axis::Key, key).unwrap_or_default();
            let token = text::cut(&token, pass_at.saturating_sub(digits + 2));
            put(buf, area, digits as u16 + 1, y, &token, pick(theme.token()));
            let mark = if new { "+" } else { "" };
            let style = if new { theme.strong() } else { theme.dim() };
            put(buf, area, pass_at as u16, y, &format!("p{}{mark}", pass_of(app, key)), style);
            let so_far = ((key + 1) * bytes.token).to_string();
            put(buf, area, bytes_at as u16, y, &text::right(&so_far, BYTES), Style::new());
            let Some(span) = span else { continue };
            for (at, head) in heads.clone().enumerate() {
                for place in 0..wide {
                    let part = |place: usize| (place * each).min(dims);
                    let value =
                        |row: usize, column: usize| tensor.get(&[row, head, column]).map(Number::real);
                    let furthest = half_blocks::furthest(key..key + 1, part(place)..part(place + 1), value);
                    let (mark, style) = half_blocks::mark(app, span, furthest.map(|(_, _, value)| value));
                    let x = values_at + at * (wide + 1) + place;
                    put(buf, area, x as u16, y, mark, style);
                }
            }
        }
    }
}

/// Draws the growth: bars for the size of the cache now and with more tokens.
fn growth(app: &App, layout: &Layout, buf: &mut Buffer) {
    let Some(lines) = layout.footer.checked_sub(GROWTH).filter(|&lines| lines > 0) else { return };
    let (theme, area, now) = (app.theme, layout.area, app.dims().keys());
    let bytes = Bytes::new(app);
    let steps: Vec<usize> = steps(now, room(app).0).take(lines.into()).collect();
    let Some(last) = steps.last().copied() else { return };
    let y = layout.header + layout.visible_rows(app).len() as u16 + 1;
    let counts = labels::digits(last).max("tokens".len());
    let bytes_at = counts as u16 + 1;
    let bar_at = bytes_at + BYTES as u16 + 1;
    put(buf, area, 0, y, &text::right("tokens", counts), theme.dim());
    put(buf, area, bytes_at, y, &text::right("bytes", BYTES), theme.dim());
    let shares = bytes.without_sharing > bytes.token;
    let words =
        if shares { "█ size of the cache · ░ more if no heads shared" } else { "█ size of the cache" };
    put(buf, area, bar_at, y, words, theme.dim());
    let columns = usize::from(area.width.saturating_sub(bar_at));
    for (y, count) in (y + 1..).zip(steps) {
        let style = if count == now { theme.strong() } else { Style::new() };
        put(buf, area, 0, y, &text::right(&count.to_string(), counts), style);
        put(buf, area, bytes_at, y, &text::right(&(count * bytes.token).to_string(), BYTES), style);
        let share = |of: usize| (count * of) as f64 / (last * bytes.without_sharing) as f64;
        let whole = (share(bytes.without_sharing) * columns as f64).round() as usize;
        put(buf, area, bar_at, y, &"░".repeat(whole), theme.dim());
        let taken = (share(bytes.token) * columns as f64).round() as usize;
        put(buf, area, bar_at, y, &"█".repeat(taken.max(1)), theme.bar());
    }
}

/// Numbers of tokens up to `most`: `now`, then the next ones, then round numbers.
fn steps(now: usize, most: usize) -> impl Iterator<Item = usize> {
    let next = now + 1..=now + NEXT;
    let round = (0..12).map(|power| 10_usize.pow(power)).flat_map(|ten| [ten, 2 * ten, 5 * ten]);
    let round = round.filter(move |&count| count > now + NEXT && count <= 20 * now.max(5));
    [now].into_iter().chain(next).chain(round).filter(move |&count| count <= most.max(now))
}

/// The capacity in tokens, and whether the user set it for the run.
fn room(app: &App) -> (usize, bool) {
    let given = app.outline().cache.capacity;
    (given.unwrap_or(app.outline().card.config.context), given.is_some())
}

/// The calculation of the bytes, line by line; the most important line comes first.
fn account(app: &App) -> Vec<Vec<Piece>> {
    let (theme, sizes, dims) = (app.theme, app.outline().card.sizes(), app.dims());
    let (dim, strong) = (theme.dim(), theme.strong());
    let Bytes { number, layer, token, without_sharing } = Bytes::new(app);
    let (now, dtype) = (dims.keys(), app.outline().cache.dtype.name());
    let [layers, kv, wide] = [sizes.layers, sizes.kv_heads, sizes.head_dim];
    let long =
        format!(" = 2 (key, value) · {layers} layers · {kv} kv heads · {wide} numbers · {number} ({dtype})");
    let short = format!(" = 2 · {layers} layers · {kv} kv · {wide} · {number}");
    let to_come = (now + 1..=now + TO_COME).map(|count| format!("{count} tokens {}", count * token));
    let tokens = if now == 1 { "token" } else { "tokens" };
    let growth = (0_u8..).zip(to_come).map(|(at, told)| {
        Piece::whole(if at == 0 { format!("then {told}") } else { format!(", {told}") }, dim).rank(at)
    });
    let (of, given) = room(app);
    let left = of.saturating_sub(now);
    let tokens_left = if left == 1 { "token" } else { "tokens" };
    let named = if given { "room for" } else { "the model's context:" };
    let room = [
        format!(
            "{named} {of} tokens, {} bytes: {left} {tokens_left}, {} bytes left",
            of * token,
            left * token
        ),
        format!("{named} {of} tokens: {left} {tokens_left}, {} bytes left", left * token),
        format!("{of} tokens: {left} left, {} bytes", left * token),
    ];
    let shared = match sizes.heads / sizes.kv_heads.max(1) {
        0 | 1 => vec!["each head has its own kv head: nothing is saved".to_owned()],
        group => vec![
            format!(
                "{group} heads share a kv head: otherwise {without_sharing} bytes a token, {group} times as much"
            ),
            format!("{group} heads share a kv head: else {without_sharing} a token"),
        ],
    };
    let (all, added) = (now * token, dims.tokens * token);
    let added = [
        format!("; this pass added {} · {token} = {added}", dims.tokens),
        format!("; this pass: +{added}"),
        String::new(),
    ];
    vec![
        vec![
            Piece::whole(format!("{token} bytes a token"), strong),
            Piece::forms([long, short, String::new()], dim).rank(1),
        ],
        vec![
            Piece::whole(format!("{now} {tokens} · {token} = {all} bytes"), strong),
            Piece::forms(added, dim).rank(1),
        ],
        growth.chain([Piece::whole(", …", dim)]).collect(),
        vec![Piece::forms(room, Style::new())],
        vec![
            Piece::whole(format!("one layer: {layer} bytes a token, {} now", now * layer), dim),
            Piece::whole(format!("; all {layers}: {all}"), dim).rank(1),
        ],
        vec![Piece::forms(shared, dim)],
    ]
}
