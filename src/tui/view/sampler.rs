//! The sampler: logits, repetition penalty, temperature, the filters, and the sampling of the next token. A tried setting
//! is shown beside the run's own setting.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use llama_trace_core::trace::draw::{Draw, Filter, Sampling, Weighed};
use llama_trace_core::trace::frame::Number;
use llama_trace_core::trace::stage::Section;
use llama_trace_core::trace::{Axis, Query, Region, Step};

use super::super::app::App;
use super::super::fit::Piece;
use super::super::sampler_trial::Knob;
use super::super::text;
use super::kind::{self, View};
use super::labels;
use super::layout::Layout;
use super::list::bar;
use super::paint::{put, put_fit};
use super::tensor_foot;

/// How the next token is sampled, by the run and in a tried setting.
#[derive(Debug)]
pub struct Sampler;

/// A line of the list.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Line<'a> {
    /// A token.
    Token(&'a Weighed),
    /// Tokens below this line are cut by this filter.
    Cut(Filter),
    /// Tokens below this line have probability 0 in float32, so that no setting had to cut them.
    Vanishes,
    /// Number of tokens that are not listed.
    Others(usize),
}

/// Lines above the list: names of the settings, the run's values, the tried values, the steps of sampling, and
/// headings.
const HEADER: u16 = 5;
/// Lines above the list in little room: the setting in one line, and headings.
const SMALL_HEADER: u16 = 2;
/// Minimum lines of the list.
const LEAST: u16 = 2;
/// Columns of a number.
const NUMBER: u16 = 8;
/// Minimum columns of bars beside a mark with its word (`BARS`); columns of a mark without a word (`SHORT`).
const BARS: u16 = 8;
const SHORT: u16 = 4;

/// The sampling result of the run, and that of the tried setting if there is one.
fn draws(app: &App) -> Option<(&Draw, Option<&Draw>)> {
    let draw = |setting| app.answers.get(&app.draw_at(setting))?.ok();
    Some((draw(None)?, app.sampler.setting().and_then(|setting| draw(Some(setting)))))
}

/// The token that the user picked for a branch, if the sampler did not sample it; none in other passes.
fn picked(app: &App) -> Option<u32> {
    let sampled = app.outline().passes.get(app.place().pass)?.sampled.as_ref()?.id;
    (draws(app)?.0.drawn != sampled).then_some(sampled)
}

/// Returns whether a token can never be sampled, whatever the filters are, because its probability is 0 in float32.
fn vanishes(draw: &Draw, token: &Weighed) -> bool {
    draw.setting.temperature > 0.0 && token.prob == 0.0
}

/// The text that a token has instead of its share, if it cannot be sampled.
fn no_share(draw: &Draw, token: &Weighed) -> String {
    if vanishes(draw, token) { "0" } else { "cut" }.to_owned()
}

/// The lines of the list for a sampling result.
fn lines(draw: &Draw) -> Vec<Line<'_>> {
    let mut lines = Vec::new();
    let mut before: Option<&Weighed> = None;
    for token in &draw.tokens {
        let is_other = before.is_some_and(|before| before.removed_by != token.removed_by);
        if vanishes(draw, token) {
            if before.is_some_and(|before| !vanishes(draw, before)) {
                lines.push(Line::Vanishes);
            }
        } else if let Some(filter) = token.removed_by.filter(|_| is_other) {
            lines.push(Line::Cut(filter));
        }
        lines.push(Line::Token(token));
        before = Some(token);
    }
    match draw.vocab.saturating_sub(draw.tokens.len()) {
        0 => {}
        others => lines.push(Line::Others(others)),
    }
    lines
}

fn shown(app: &App) -> Option<&Draw> {
    let (own, tried) = draws(app)?;
    Some(tried.unwrap_or(own))
}

impl Sampler {
    /// The token under the cursor.
    pub(crate) fn token(app: &App) -> Option<u32> {
        match lines(shown(app)?).get(app.cursor.rank)? {
            Line::Token(token) => Some(token.id),
            _ => None,
        }
    }
}

impl View for Sampler {
    fn name(&self) -> &'static str {
        "sampler"
    }

    fn hint(&self) -> [&'static str; 3] {
        [
            "From logits to a token: divide by the temperature, softmax, cut by the filters, sample with a random number.",
            "[ ] choose a setting, ← → change it, Esc restores the run's own, b makes it the run's own from here on. Which tokens are kept, and which one is sampled?",
            "The model is not run again: the sampler draws from the same logits. u draws 100 times: do the frequencies follow the chances?",
        ]
    }

    fn fits(&self, step: Step) -> bool {
        let stage = step.stage();
        step.over_vocabulary() || stage.info().section == Section::Sampler
    }

    fn layout(&self, app: &App, body: Rect) -> Layout {
        let rows = shown(app).map_or(1, |draw| lines(draw).len().max(1));
        let cursor = (app.cursor.rank.min(rows - 1), 0);
        let header = match body.height.saturating_sub(LEAST) {
            room if room >= HEADER => HEADER,
            room if room >= SMALL_HEADER => SMALL_HEADER,
            _ => 1,
        };
        Layout {
            area: body,
            rows,
            columns: 1,
            cursor,
            cell: body.width,
            tall: 1,
            label: 0,
            header,
            ..Layout::default()
        }
    }

    fn index(&self, app: &App, cell: (usize, usize)) -> Option<Vec<usize>> {
        let Line::Token(token) = *lines(shown(app)?).get(cell.0)? else { return None };
        let id = token.id as usize;
        match app.place().step.axes() {
            [Axis::Token, Axis::Vocab] => Some(vec![app.dims().tokens.checked_sub(1)?, id]),
            [Axis::Vocab] => Some(vec![id]),
            // The stage `sampled` has a single id, which is no row of the list.
            _ => None,
        }
    }

    fn shows_numbers(&self) -> bool {
        false
    }

    fn keys(&self) -> &'static [(&'static str, &'static str)] {
        &[("[ ]", "setting"), ("← →", "change"), ("Enter", "pick"), ("b", "branch")]
    }

    fn select(&self, app: &mut App, cell: (usize, usize)) {
        app.cursor.rank = cell.0;
    }

    fn choose_setting(&self, app: &mut App, by: isize) -> bool {
        app.sampler.choose(by);
        true
    }

    fn change_setting(&self, app: &mut App, right: isize) -> bool {
        // The knobs start from the run's own setting, so this setting must be known.
        let Some(Ok(draw)) = app.answers.get(&app.draw_at(None)) else { return true };
        let own = draw.setting;
        if let Some(message) = app.sampler.turn(own, right > 0) {
            app.say(message, false);
        }
        true
    }

    fn questions(&self, app: &App, _: &Layout) -> Vec<Query> {
        // The next token is sampled from the last token's logits.
        let mut row: Vec<_> = app.shape().iter().map(|&length| 0..length).collect();
        if let [tokens, _] = &mut row[..] {
            tokens.start = tokens.end.saturating_sub(1);
        }
        let mut questions = vec![Query::Block(app.place().site(), kind::in_stage(app, Region(row)))];
        questions.push(Query::Draw(app.draw_at(None)));
        questions.extend(app.sampler.setting().map(|tried| Query::Draw(app.draw_at(Some(tried)))));
        questions
    }

    fn ids(&self, app: &App, layout: &Layout) -> Vec<u32> {
        let Some((own, tried)) = draws(app) else { return Vec::new() };
        let lines = lines(tried.unwrap_or(own));
        let listed = lines.get(layout.visible_rows(app)).unwrap_or_default().iter();
        let listed = listed.filter_map(|line| match line {
            Line::Token(token) => Some(token.id),
            _ => None,
        });
        listed.chain([own.drawn]).chain(picked(app)).chain(tried.map(|tried| tried.drawn)).collect()
    }

    fn caption(&self, app: &App, _: &Layout) -> Vec<Piece> {
        let (theme, pass) = (app.theme, app.place().pass);
        let mut pieces = vec![Piece::whole(format!("sampling after pass {pass}"), theme.dim())];
        if app.sampler.setting().is_some() {
            pieces.push(Piece::forms(
                [" · tried settings, not the run's", " · tried"].map(String::from),
                theme.key(),
            ));
        }
        let draw = shown(app).filter(|draw| draw.times > 0);
        pieces.extend(draw.map(|draw| {
            let times = draw.times;
            let by =
                if draw.random.is_some() { format!(" of seed {}", draw.setting.seed) } else { String::new() };
            Piece::forms(
                [format!(" · {times} draws{by}: this one and the next ones"), format!(" · {times} draws")],
                theme.key(),
            )
        }));
        pieces
    }

    fn legend(&self, app: &App, foot: Rect, buf: &mut Buffer) {
        let theme = app.theme;
        let pieces = [
            Piece::whole("█", theme.bar()),
            Piece::forms(
                [" may be sampled, with this chance · ", " may be sampled · ", " kept · "].map(String::from),
                theme.dim(),
            )
            .rank(2),
            Piece::whole("░", theme.dim()),
            Piece::whole(" is cut · ", theme.dim()),
            Piece::whole("←", theme.key()),
            Piece::whole(" is sampled", theme.dim()),
            Piece::whole(if app.sampler.setting().is_some() { " (R run, T tried)" } else { "" }, theme.dim())
                .rank(1),
        ];
        put_fit(buf, foot, 0, 0, &pieces);
        let pieces = [
            Piece::whole("[ ]", theme.key()),
            Piece::forms([" choose  ", " set  "].map(String::from), theme.dim()).rank(3),
            Piece::whole("← →", theme.key()),
            Piece::whole(" change  ", theme.dim()),
            Piece::whole("u", theme.key()),
            Piece::whole(" 100 draws  ", theme.dim()),
            Piece::whole("Esc", theme.key()),
            Piece::forms([" the run's own", " resets"].map(String::from), theme.dim()).rank(4),
        ];
        let branch = app.sampler.setting().map(|_| {
            Piece::forms(
                ["  b the run's own from here on", "  b keeps it", ""].map(String::from),
                theme.key(),
            )
            .rank(6)
        });
        // Enter does nothing on a line without a token.
        let chosen = Self::token(app).map(|id| format!("  Enter continues with {}", token_text(app, id)));
        let chosen = chosen.map(|words| Piece::forms([words, String::new()], theme.key()).rank(5));
        let pieces: Vec<Piece> = pieces.into_iter().chain(branch).chain(chosen).collect();
        put_fit(buf, foot, 0, 1, &pieces);
    }

    fn foot(&self, app: &App, foot: Rect, buf: &mut Buffer) {
        self.legend(app, foot, buf);
        tensor_foot::cursor(app, foot, buf);
    }

    fn render(&self, app: &App, layout: &Layout, buf: &mut Buffer) {
        let (theme, area) = (app.theme, layout.area);
        let asked = app.sampler.setting().and_then(|tried| app.answers.get(&app.draw_at(Some(tried))));
        if let Some(Err(reason)) = app.answers.get(&app.draw_at(None)).filter(Result::is_err).or(asked) {
            let said = format!("the sampled token is not available: {reason}");
            for (y, line) in text::wrap(&said, area.width.into()).iter().enumerate() {
                put(buf, area, 0, y as u16, line, theme.error());
            }
            return;
        }
        let Some((own, tried)) = draws(app) else {
            put(buf, area, 0, 1, "sampling …", theme.dim());
            return;
        };
        match layout.header {
            HEADER => settings(app, own, tried, area, buf),
            SMALL_HEADER => setting(app, own, tried, area, buf),
            _ => {}
        }
        list(app, own, tried, layout, buf);
    }
}

/// Columns before the settings.
const LABEL: u16 = 7;

/// Columns after the settings, in little room and else: of the number of kept tokens, of their sum, and at least of the
/// sampled token.
const RESULTS: [(u16, u16, u16); 2] = [(6, 13, 16), (7, 14, 22)];

/// The knobs that fit, and whether their names and the results are short: all knobs, or else those that change
/// something, and the chosen one.
fn knobs(app: &App, own: Sampling, tried: Sampling, room: u16) -> (Vec<Knob>, bool) {
    let chosen = |knob: Knob| knob == app.sampler.knob();
    let has_effect = |knob: Knob| {
        let is_new = matches!(knob, Knob::Penalty | Knob::MinP | Knob::TypicalP);
        !is_new || [own, tried].iter().any(|setting| knob.value(*setting) != knob.value(Sampling::GREEDY))
    };
    let all = || Knob::ALL.into_iter();
    let some: Vec<Knob> = all().filter(|knob| chosen(*knob) || has_effect(*knob)).collect();
    let ways = [(all().collect(), false), (some.clone(), false), (all().collect(), true), (some, true)];
    let fits = |(knobs, short): &(Vec<Knob>, bool)| {
        let columns: u16 = knobs.iter().map(|knob| knob_columns(*knob, *short)).sum();
        LABEL + columns + RESULTS[usize::from(!*short)].2 <= room
    };
    let alone = || (all().filter(|knob| chosen(*knob)).collect(), true);
    ways.into_iter().find(fits).unwrap_or_else(alone)
}

/// Columns of a knob.
fn knob_columns(knob: Knob, short: bool) -> u16 {
    match knob {
        Knob::Temperature if short => 6,
        Knob::Temperature => 13,
        Knob::TopK | Knob::MinP => 7,
        Knob::TopP => 6,
        Knob::Penalty => 9,
        Knob::TypicalP if short => 7,
        Knob::TypicalP => 11,
        Knob::Seed if short => 6,
        Knob::Seed => 8,
    }
}

/// Draws the names of the settings, and below them the run's values and the tried values, each with the number of kept
/// tokens, their sum and the sampled token. Draws a line with the steps of sampling.
fn settings(app: &App, own: &Draw, tried: Option<&Draw>, area: Rect, buf: &mut Buffer) {
    let theme = app.theme;
    let tried_setting = app.sampler.setting().unwrap_or(own.setting);
    let (knobs, short) = knobs(app, own.setting, tried_setting, area.width);
    let mut x = LABEL;
    for knob in knobs.iter().copied() {
        let chosen = knob == app.sampler.knob();
        let name = match knob {
            Knob::Temperature if short => "temp",
            Knob::TypicalP if short => "typ-p",
            knob => knob.name(),
        };
        put(buf, area, x, 0, name, if chosen { theme.strong() } else { theme.dim() });
        x += knob_columns(knob, short);
    }
    // A token's text gets the columns that the counts do not need.
    let (sum_at, drawn_at, _) = RESULTS[usize::from(!short)];
    put(buf, area, x, 0, "kept", theme.dim());
    put(buf, area, x + sum_at, 0, "sum", theme.dim());
    put(buf, area, x + drawn_at, 0, if picked(app).is_some() { "picked" } else { "sampled" }, theme.dim());
    let rows = [(1, "run", Some(own), false), (2, "tried", tried, app.sampler.setting().is_some())];
    for (y, name, draw, lit) in rows {
        let style = if lit { theme.key() } else { theme.strong() };
        put(buf, area, 0, y, name, if draw.is_some() || lit { style } else { theme.dim() });
        let setting = if y == 1 { own.setting } else { tried_setting };
        let mut x = LABEL;
        for knob in knobs.iter().copied() {
            let width = knob_columns(knob, short);
            let value = text::cut(&knob.value(setting), usize::from(width) - 2);
            let chosen = y == 2 && knob == app.sampler.knob();
            let changed = knob.value(setting) != knob.value(own.setting);
            let style = match (y, changed) {
                _ if chosen => theme.current(),
                (1, _) => Style::new(),
                (_, true) => theme.key(),
                (_, false) => theme.dim(),
            };
            let value = if chosen { format!("‹{value}›") } else { value };
            put(buf, area, x - u16::from(chosen), y, &value, style);
            x += width;
        }
        let Some(draw) = draw else { continue };
        put(buf, area, x, y, &draw.kept().count.to_string(), Style::new());
        put(buf, area, x + sum_at, y, &text::figure_in(draw.kept().sum, false, 6), Style::new());
        let token = picked(app).filter(|_| y == 1).unwrap_or(draw.drawn);
        put(buf, area, x + drawn_at, y, &token_text(app, token), theme.token());
    }
    way(app, tried.unwrap_or(own), area, buf);
}

/// Draws one line: the tried setting, or else the run's, with the chosen knob, the number of kept tokens and the
/// sampled token.
fn setting(app: &App, own: &Draw, tried: Option<&Draw>, area: Rect, buf: &mut Buffer) {
    let (theme, draw) = (app.theme, tried.unwrap_or(own));
    let tries = app.sampler.setting().is_some();
    let shown = app.sampler.setting().unwrap_or(own.setting);
    let mut pieces =
        vec![Piece::whole(if tries { "tried " } else { "run " }, theme.strong()).rank(u8::from(!tries) * 2)];
    for knob in Knob::ALL {
        let value = knob.value(shown);
        let changed = value != knob.value(own.setting);
        if knob == app.sampler.knob() {
            pieces.push(Piece::forms([format!("{} ‹{value}› ", knob.name())], theme.current()));
        } else {
            let style = if changed { theme.key() } else { theme.dim() };
            pieces.push(Piece::whole(format!("{} {value} ", knob.name()), style).rank(1));
        }
    }
    pieces.push(Piece::whole(format!("{} kept ", draw.kept().count), Style::new()).rank(2));
    let token = picked(app).filter(|_| !tries).unwrap_or(draw.drawn);
    pieces.push(Piece::whole(token_text(app, token), theme.token()).rank(2));
    put_fit(buf, area, 0, 0, &pieces);
}

/// Draws the steps of sampling, with the number of tokens that each step keeps.
fn way(app: &App, draw: &Draw, area: Rect, buf: &mut Buffer) {
    let (dim, plain) = (app.theme.dim(), Style::new());
    let logits = [format!("{} logits", draw.vocab), draw.vocab.to_string()];
    let mut pieces = vec![Piece::forms(logits, plain).rank(4)];
    let greedy = draw.setting.temperature == 0.0;
    let filters = draw.setting.filters();
    if filters.penalty {
        let penalty = draw.setting.repetition_penalty;
        let forms = [format!(" → repeated tokens: penalty {penalty}"), format!(" → penalty {penalty}")];
        pieces.push(Piece::forms(forms, plain).rank(3));
    }
    if greedy {
        pieces.push(Piece::whole(" → the largest is taken", plain));
    } else {
        pieces.push(Piece::forms(
            [
                format!(" / {} → softmax", draw.setting.temperature),
                format!(" / {}", draw.setting.temperature),
            ],
            plain,
        ));
        if let Some(count) = draw.above_0() {
            let forms = [format!(" → {count} above 0 in float32"), format!(" → {count} above 0")];
            pieces.push(Piece::forms(forms, plain).rank(3));
        }
        // A step that cuts tokens is always shown.
        let after = |name: &str, count: usize| {
            let short = name.trim_start_matches("top-");
            let forms = [
                format!(" → {name}: {count} kept"),
                format!(" → {name}: {count}"),
                format!(" → {short}: {count}"),
            ];
            Piece::forms(forms, plain).rank(3)
        };
        if draw.setting.top_k > 0 {
            pieces.push(after("top-k", draw.after_k.count));
        }
        if draw.setting.top_p < 1.0 {
            pieces.push(after("top-p", draw.after_p.count));
        }
        if filters.min_p {
            pieces.push(after("min-p", draw.after_min_p.count));
        }
        if filters.typical_p {
            pieces.push(after("typical-p", draw.after_typical_p.count));
        }
    }
    match draw.random {
        _ if picked(app).is_some() && app.sampler.setting().is_none() => {
            pieces.push(
                Piece::forms([" → another token was picked", " → picked"].map(String::from), dim).rank(2),
            );
        }
        Some(random) => {
            let random = text::figure_in(random, false, 6);
            pieces.push(
                Piece::forms([format!(" → random number {random}"), format!(" → random {random}")], dim)
                    .rank(5),
            );
        }
        None => {}
    }
    put_fit(buf, area, 0, 3, &pieces);
}

/// Draws the tokens with their logits, probabilities and shares, and the lines at which tokens are cut.
fn list(app: &App, own: &Draw, tried: Option<&Draw>, layout: &Layout, buf: &mut Buffer) {
    let (theme, area, draw) = (app.theme, layout.area, tried.unwrap_or(own));
    let lines = lines(draw);
    let digits = labels::digits(draw.vocab).max(2);
    let texts = usize::from(area.width / 5).clamp(6, 20);
    let text_at = digits as u16 + 1;
    let logit_at = text_at + texts as u16 + 1;
    // In little room, the bars are more important than the logits.
    let more = u16::from(tried.is_some()) + u16::from(draw.times > 0);
    let has_logits = more == 0 || area.width >= logit_at + (3 + more) * NUMBER + 1 + BARS + SHORT;
    let prob_at = if has_logits { logit_at + NUMBER } else { logit_at };
    let share_at = prob_at + NUMBER;
    let count_at = share_at + NUMBER;
    let own_at = if draw.times > 0 { count_at + NUMBER } else { count_at };
    let bar_at = if tried.is_some() { own_at + NUMBER } else { own_at } + 1;
    let mark = if tried.is_some() { " ← sampled by the run" } else { " ← sampled" };
    let rest = usize::from(area.width.saturating_sub(bar_at));
    let (wide, bars) = match rest.checked_sub(text::width(mark)) {
        Some(bars) if bars >= usize::from(BARS) => (true, bars),
        _ => (false, rest.saturating_sub(usize::from(SHORT))),
    };
    let line = layout.header - 1;
    let heading = |x: u16, name: &str, style, buf: &mut Buffer| {
        put(buf, area, x, line, &text::right(name, usize::from(NUMBER)), style);
    };
    put(buf, area, 0, line, &text::right("id", digits), theme.dim());
    put(buf, area, text_at, line, "text", theme.dim());
    if has_logits {
        heading(logit_at - 1, "logit", theme.dim(), buf);
    }
    heading(prob_at - 1, "prob", theme.dim(), buf);
    heading(share_at - 1, "chance", theme.dim(), buf);
    if draw.times > 0 {
        heading(count_at - 1, &format!("of {}", draw.times), theme.dim(), buf);
    }
    if tried.is_some() {
        heading(own_at - 1, "in run", theme.dim(), buf);
    }
    let most = draw.tokens.iter().map(|token| token.prob).fold(0.0, f32::max);
    let value = |number: f32| text::short(Number::F32(number), usize::from(NUMBER) - 1);
    for (down, row) in layout.visible_rows(app).enumerate() {
        let y = layout.header + down as u16;
        let chosen = row == layout.cursor.0;
        let pick = |style| if chosen { theme.current() } else { style };
        let Some(line) = lines.get(row) else { continue };
        let Line::Token(token) = line else {
            let said = cut_line(draw, *line, usize::from(area.width).saturating_sub(4));
            let rule = "─".repeat(usize::from(area.width).saturating_sub(text::width(&said) + 4));
            put(buf, area, 0, y, &format!("── {said} {rule}"), pick(theme.strong()));
            continue;
        };
        let stays = token.share > 0.0;
        put(buf, area, 0, y, &format!("{:>digits$}", token.id), pick(theme.index()));
        put(buf, area, text_at, y, &text::cut(&token_text(app, token.id), texts), pick(theme.token()));
        let plain = if stays { Style::new() } else { theme.dim() };
        let number = |x: u16, content: &str, style, buf: &mut Buffer| {
            put(buf, area, x - 1, y, &text::right(content, usize::from(NUMBER)), style);
        };
        if has_logits {
            number(logit_at, &value(token.logit), plain, buf);
        }
        number(prob_at, &value(token.prob), plain, buf);
        number(share_at, &if stays { value(token.share) } else { no_share(draw, token) }, pick(plain), buf);
        if draw.times > 0 {
            number(count_at, &token.count.to_string(), plain, buf);
        }
        if tried.is_some() {
            let said = match own.of(token.id) {
                Some(there) if there.share > 0.0 => value(there.share),
                Some(there) => no_share(own, there),
                None => "…".to_owned(),
            };
            number(own_at, &said, theme.dim(), buf);
        }
        let filled = bar(f64::from(token.prob) / f64::from(most), bars);
        match stays {
            true => put(buf, area, bar_at, y, &filled, theme.bar()),
            false => put(buf, area, bar_at, y, &"░".repeat(filled.chars().count()), theme.dim()),
        };
        let went_on = picked(app).unwrap_or(own.drawn);
        let drawn_by = match (token.id == went_on, tried.map(|tried| token.id == tried.drawn)) {
            (true, None) if picked(app).is_some() => Some((" ← picked", " ←")),
            (true, Some(true)) => Some((" ← sampled by both", " ←RT")),
            (true, Some(false)) => Some((" ← sampled by the run", " ←R")),
            (_, Some(true)) => Some((" ← sampled, tried", " ←T")),
            (true, None) => Some((" ← sampled", " ←")),
            (false, _) => None,
        };
        if let Some((words, short)) = drawn_by {
            put(buf, area, bar_at + bars as u16, y, if wide { words } else { short }, theme.key());
        }
    }
}

/// The text of a line without a token, in `room` columns.
fn cut_line(draw: &Draw, line: Line<'_>, room: usize) -> String {
    let sum = |sum: f64| text::figure_in(sum, false, 6);
    match line {
        // Top-p counts only the tokens that top-k kept.
        Line::Cut(Filter::TopP) if draw.after_k.count < draw.vocab => {
            let (p, count) = (draw.setting.top_p, draw.after_p.count);
            let share = sum(draw.after_p.sum / draw.after_k.sum);
            let whole = format!(
                "top-p {p} cuts here: {count} kept, sum {}, {share} of what top-k kept",
                sum(draw.after_p.sum)
            );
            let fits = text::width(&whole) <= room;
            if fits {
                return whole;
            }
            format!("top-p {p}: {count} kept, sum {}, {share} of top-k's", sum(draw.after_p.sum))
        }
        Line::Cut(Filter::MinP) => format!(
            "min-p {} cuts here: {} kept, sum {}",
            draw.setting.min_p,
            draw.after_min_p.count,
            sum(draw.after_min_p.sum)
        ),
        Line::Cut(Filter::TypicalP) => format!(
            "typical-p {} cuts here: {} kept, sum {}",
            draw.setting.typical_p,
            draw.after_typical_p.count,
            sum(draw.after_typical_p.sum)
        ),
        Line::Cut(Filter::TopP) => format!(
            "top-p {} cuts here: {} kept, sum {}",
            draw.setting.top_p,
            draw.after_p.count,
            sum(draw.after_p.sum)
        ),
        Line::Cut(Filter::TopK) if draw.setting.temperature == 0.0 => {
            format!("the largest is taken: its prob is {}", sum(draw.after_k.sum))
        }
        Line::Cut(Filter::TopK) => {
            format!("top-k cuts here: {} kept, sum {}", draw.after_k.count, sum(draw.after_k.sum))
        }
        Line::Vanishes => match draw.above_0() {
            Some(count) => {
                let short = format!("below: prob 0 in float32; above: {count} tokens");
                let whole = format!("{short}, sum {}", sum(draw.after_k.sum));
                if text::width(&whole) <= room { whole } else { short }
            }
            None => "below: prob 0 in float32".to_owned(),
        },
        Line::Others(count) if draw.times > 0 => {
            let listed: u32 = draw.tokens.iter().map(|token| token.count).sum();
            format!("{count} others, less likely, drawn {} times", draw.times - listed as usize)
        }
        Line::Others(count) => format!("{count} others, less likely"),
        Line::Token(_) => String::new(),
    }
}

fn token_text(app: &App, id: u32) -> String {
    labels::text_of(app, Axis::Vocab, id as usize).unwrap_or_else(|| format!("#{id}"))
}
