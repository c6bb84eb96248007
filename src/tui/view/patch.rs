//! Activation patching: the places of the prompt that carry the answer. Each cell is the effect of one place whose values
//! are taken from the run of another prompt, the clean one.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

use llama_trace_core::trace::patch::{Metric, PatchEffect, PatchEnds, PatchMap, Place};
use llama_trace_core::trace::{Address, Axis, Query, Region, Run, Stage, Step, TokenLabel};

use super::super::app::App;
use super::super::fit::Piece;
use super::super::patch_state::Filled;
use super::super::text;
use super::super::theme::{Depth, Span};
use super::kind::{self, View};
use super::labels;
use super::layout::Layout;
use super::paint::{put, put_fit};

/// Columns before the cells.
const LABEL: u16 = 10;
/// Minimum and maximum columns of a cell.
const NARROWEST: u16 = 4;
const WIDEST: u16 = 10;
/// Lines below which a token has at most two lines above its column.
const LOW: u16 = 20;
/// Number of the largest effects in the list below the cells.
const LISTED: u16 = 8;
/// Columns of an effect and of an address in this list, and of the longest bar.
const NUMBER: usize = 6;
const ADDRESS: usize = 26;
const BAR: usize = 24;

/// Layers and tokens, or layers and heads, coloured by their effect.
#[derive(Debug)]
pub struct Patch;

impl Patch {
    /// The tokens of the prompt.
    fn tokens(app: &App) -> &[TokenLabel] {
        app.outline().passes.first().map_or(&[], |pass| &pass.tokens)
    }

    fn size(app: &App) -> (usize, usize) {
        let (sizes, map) = (app.outline().card.sizes(), app.patch.map);
        (map.rows(&sizes), map.columns(&sizes, Self::tokens(app).len()))
    }

    /// The effect of a place; none until it is known.
    fn effect(app: &App, (row, column): (usize, usize)) -> Option<PatchEffect> {
        let at = row * Self::size(app).1 + column;
        Some(app.filled()?.places.get(at)?[app.patch.metric as usize])
    }

    /// Why there are no cells to draw, in words.
    fn reason(app: &App) -> Option<Vec<String>> {
        let tokens = Self::tokens(app).len();
        if app.panels.pane.is_some() {
            return Some(vec!["The map is that of the first run. v shows another view of both runs.".into()]);
        }
        if app.clean().is_none() {
            let other = u16::from(app.outline().run == Run::ITSELF);
            return Some(vec![
                "Which places carry the answer? This map needs a second prompt of equally many tokens that the model continues differently: the clean prompt. The prompt of this run is the corrupted one.".into(),
                format!("Type /patch and a text of {tokens} tokens, or /patch r{other} for the prompt of an open run. Then the prompt of this run is run again and again, each time with the values of one place from the clean run."),
            ]);
        }
        let Some(filled) = app.filled() else {
            return Some(match app.patch_failure() {
                Some(reason) => vec![format!("There is no map: {reason}")],
                None => vec!["running both prompts …".into()],
            });
        };
        filled.ends.values[app.patch.metric as usize].is_none().then(|| {
            let [answer, wrong] = names(app, &filled.ends);
            vec![
                format!(
                    "The metric has the same value in both runs, so there is nothing to explain: the clean run answers {answer}, and this run answers {wrong}."
                ),
                "Give another clean prompt (/patch), or press s for another metric.".into(),
            ]
        })
    }

    /// The number of places so far and of all places.
    fn progress(app: &App) -> (usize, usize) {
        let (rows, columns) = Self::size(app);
        (app.filled().map_or(0, |filled| filled.places.len()), rows * columns)
    }

    /// The colours: the clean run has the full colour, unless an effect is larger.
    fn span(filled: &Filled, metric: Metric) -> Span {
        let sizes = filled.places.iter().map(|place| place[metric as usize].effect.abs());
        let high = sizes.filter(|size| size.is_finite()).fold(1.0, f64::max);
        Span { positive: false, high, clipped: 0, at_most: false }
    }

    fn place(app: &App) -> Option<Place> {
        let layout = app.layout()?;
        Some(app.patch.map.place(layout.cursor.0, layout.cursor.1))
    }
}

/// The texts of the answer and of the wrong token.
fn names(app: &App, ends: &PatchEnds) -> [String; 2] {
    [ends.answer, ends.wrong]
        .map(|id| labels::text_of(app, Axis::Vocab, id as usize).unwrap_or_else(|| format!("#{id}")))
}

/// The metric in words.
fn metric(app: &App, ends: &PatchEnds) -> String {
    let [answer, wrong] = names(app, ends);
    match app.patch.metric {
        Metric::LogitDiff => format!("logit of {answer} − logit of {wrong}"),
        Metric::Prob => format!("probability of {answer}"),
        Metric::Kl => "KL(clean run ‖ run)".to_owned(),
    }
}

/// An effect in percent.
fn percent(effect: f64) -> String {
    // Adding 0 turns −0 into 0.
    format!("{:.0}", (100.0 * effect).round() + 0.0)
}

/// An effect in percent, in at most `columns`. A number that is too long is replaced by its direction.
fn percent_in(effect: f64, columns: usize) -> String {
    let whole = percent(effect);
    match text::width(&whole) <= columns {
        true => whole,
        false if effect > 0.0 => ">".repeat(columns),
        false => "<".repeat(columns),
    }
}

/// The token of the clean prompt in a column, if it is another one.
fn other_token(app: &App, column: usize) -> Option<String> {
    let (own, clean) = (Patch::tokens(app).get(column)?, app.clean()?.tokens.get(column)?);
    (own.id != clean.id).then(|| text::visible(&clean.text))
}

impl View for Patch {
    fn name(&self) -> &'static str {
        "patch"
    }

    fn hint(&self) -> [&'static str; 3] {
        [
            "Which places carry the answer: each cell takes the values of one place from the run of another prompt, /patch A text.",
            "100 brings the clean answer back, 0 changes nothing. Where does the information leave its token, and in which layer?",
            "[ ] the residual stream, attn, ffn or heads, s the metric, Enter goes to the place, Backspace returns to the map.",
        ]
    }

    fn fits(&self, step: Step) -> bool {
        [Stage::Logits, Stage::CappedLogits].map(Step::Stage).contains(&step)
    }

    fn layout(&self, app: &App, body: Rect) -> Layout {
        let (rows, columns) = Self::size(app);
        let cursor =
            (app.cursor.cell.0.min(rows.saturating_sub(1)), app.cursor.cell.1.min(columns.saturating_sub(1)));
        let room = usize::from(body.width.saturating_sub(LABEL));
        let cell = u16::try_from(room / columns.max(1)).unwrap_or(u16::MAX).clamp(NARROWEST, WIDEST);
        let header = match app.patch.map {
            PatchMap::Heads => 1,
            _ => {
                let (clean, own) = label_lines(app, cell, most_lines(body));
                clean + own + 1
            }
        };
        // The cells are more important than the list below.
        let room = body.height.saturating_sub(header + u16::try_from(rows).unwrap_or(u16::MAX));
        let footer = (LISTED + 1).min(room.max(body.height / 3));
        Layout {
            area: body,
            rows,
            columns,
            cursor,
            cell,
            tall: 1,
            label: LABEL,
            header,
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

    fn needs_no_values(&self) -> bool {
        true
    }

    fn keys(&self) -> &'static [(&'static str, &'static str)] {
        &[("[ ]", "part"), ("s", "metric"), ("Enter", "go to the place")]
    }

    fn select(&self, app: &mut App, cell: (usize, usize)) {
        app.cursor.cell = cell;
    }

    fn choose_setting(&self, app: &mut App, by: isize) -> bool {
        app.patch.choose(by);
        true
    }

    fn enter_address(&self, app: &App) -> Option<Address> {
        app.clean()?;
        Self::place(app).map(|place| place.address())
    }

    fn questions(&self, app: &App, _: &Layout) -> Vec<Query> {
        // The number under the cursor of the stage, for an export and for the clipboard.
        let here = Region(app.index().iter().map(|&index| index..index + 1).collect());
        let block = Query::Block(app.place().site(), kind::in_stage(app, here));
        std::iter::once(block).chain(app.next_patch().map(Query::Patch)).collect()
    }

    fn ids(&self, app: &App, _: &Layout) -> Vec<u32> {
        app.filled().map_or_else(Vec::new, |filled| vec![filled.ends.answer, filled.ends.wrong])
    }

    fn caption(&self, app: &App, _: &Layout) -> Vec<Piece> {
        let (theme, map) = (app.theme, app.patch.map);
        let axis = if map == PatchMap::Heads { "→ head" } else { "→ token" };
        let mut pieces = vec![
            Piece::whole(format!("patch of {}", map.name()), theme.strong()),
            Piece::forms([format!(" · ↓ layer · {axis}"), format!(" · {axis}")], theme.dim()).rank(2),
            Piece::whole(format!(" · {}", app.patch.metric.name()), theme.dim()).rank(1),
        ];
        let (done, all) = Self::progress(app);
        if app.clean().is_some() && done < all {
            let forms = [format!(" · {done} of {all} places"), format!(" · {done}/{all}")];
            pieces.push(Piece::forms(forms, theme.strong()));
            pieces.extend(match app.patch_failure() {
                Some(_) => Some(Piece::whole(" · stopped; r goes on", theme.key())),
                None => kind::progress_note(app).map(|note| note.rank(3)),
            });
        }
        pieces
    }

    fn legend(&self, app: &App, foot: Rect, buf: &mut Buffer) {
        let (theme, Some(filled)) = (app.theme, app.filled()) else { return };
        let span = Self::span(filled, app.patch.metric);
        let coloured = theme.depth() > Depth::Ansi;
        let name = if theme.depth() > Depth::None { "% " } else { "% effect " };
        let mut pieces = vec![Piece::whole(name, theme.dim())];
        // Without colours, the cells have only numbers.
        if theme.depth() > Depth::None {
            pieces.push(Piece::whole(percent(-span.high) + " ", Style::new()));
            for i in -3..=3 {
                let cell = theme.cell(f64::from(i) / 3.0 * span.high, span);
                pieces.push(Piece::whole(if coloured { "  " } else { cell.fill }, cell.style));
            }
            pieces.push(Piece::whole(format!(" {} ", percent(span.high)), Style::new()));
        }
        let ends = ["· 0 as in this run, 100 as in the clean run", "· 0 this run, 100 clean", ""];
        pieces.push(Piece::forms(ends.map(str::to_owned), theme.dim()).rank(1));
        put_fit(buf, foot, 0, 0, &pieces);
    }

    fn foot(&self, app: &App, foot: Rect, buf: &mut Buffer) {
        let (theme, Some(layout)) = (app.theme, app.layout()) else { return };
        let Some(filled) = app.filled().filter(|_| Self::reason(app).is_none()) else { return };
        self.legend(app, foot, buf);
        let Some((corrupted, clean)) = filled.ends.values[app.patch.metric as usize] else { return };
        let dim = |words: &str| Piece::whole(words.to_owned(), theme.dim());
        let figure = |value: f64| Piece::figure(value, false, theme.strong());
        let value = |value| text::figure_in(value, false, 9);
        let line = match Self::effect(app, layout.cursor) {
            Some(PatchEffect { value, effect }) => {
                vec![
                    Piece::whole(format!("{} % ", percent(effect)), theme.strong()),
                    dim("= "),
                    Piece::words(metric(app, &filled.ends), theme.token()).rank(1),
                    dim(": "),
                    figure(value),
                ]
            }
            None => vec![match app.patch_failure() {
                Some(reason) => Piece::words(reason, theme.error()),
                None => dim("not computed yet"),
            }],
        };
        put_fit(buf, foot, 0, 1, &line);
        let forms = [
            format!("  without the patch {}, in the clean run {}", value(corrupted), value(clean)),
            format!("  this run {}, clean run {}", value(corrupted), value(clean)),
        ];
        put_fit(buf, foot, 0, 2, &[Piece::forms(forms, theme.dim())]);
        let Some(place) = Self::place(app) else { return };
        let mut line = vec![Piece::words(place.address().to_string(), theme.code())];
        if let Some(column) = place.token {
            let own = Self::tokens(app).get(column).map_or(String::new(), |token| text::visible(&token.text));
            line.push(Piece::words(format!(" · token {own}"), theme.token()).rank(1));
            let other = other_token(app, column).map(|other| format!(", clean {other}"));
            line.extend(other.map(|other| Piece::words(other, theme.token()).rank(2)));
        } else {
            line.push(dim(" · all tokens").rank(1));
        }
        put_fit(buf, foot, 0, 3, &line);
    }

    fn render(&self, app: &App, layout: &Layout, buf: &mut Buffer) {
        let (theme, area) = (app.theme, layout.area);
        if let Some(reason) = Self::reason(app) {
            let lines = reason.iter().flat_map(|one| {
                let mut lines = text::wrap(one, area.width.into());
                lines.push(String::new());
                lines
            });
            for (y, line) in lines.enumerate() {
                put(buf, area, 0, y as u16, &line, Style::new());
            }
            return;
        }
        let Some(filled) = app.filled() else { return };
        heads_of_columns(app, layout, buf);
        for (down, row) in layout.visible_rows(app).enumerate() {
            let layer = app.patch.map.place(row, 0).layer;
            let name = layer.map_or("embedding".to_owned(), |layer| format!("layer {layer}"));
            let style = if row == layout.cursor.0 { theme.current() } else { theme.index() };
            put(buf, area, 0, layout.header + down as u16, &name, style);
        }
        let span = Self::span(filled, app.patch.metric);
        layout.each_cell(app, |row, column, x, y| {
            let width = usize::from(layout.cell);
            let (chosen, effect) = ((row, column) == layout.cursor, Self::effect(app, (row, column)));
            let (content, style) = match effect {
                None => ("·".to_owned(), theme.dim()),
                Some(PatchEffect { effect, .. }) if effect.is_nan() => ("nan".to_owned(), theme.error()),
                Some(PatchEffect { effect, .. }) => {
                    let content = percent_in(effect, width - 1);
                    // With few colours, the sign alone would colour an effect that is rounded to 0.
                    let is_none = content == "0" && theme.depth() <= Depth::Ansi;
                    (content, if is_none { theme.dim() } else { theme.cell(effect, span).style })
                }
            };
            let content = text::right(&content, width - 1) + " ";
            let style = if chosen { style.add_modifier(Modifier::REVERSED | Modifier::BOLD) } else { style };
            put(buf, area, x, y, &content, style);
            if chosen && theme.depth() == Depth::None {
                put(buf, area, x + layout.cell - 1, y, "◂", theme.strong());
            }
        });
        largest(app, layout, filled, buf);
    }
}

/// A text in lines of `width` columns, at most `most` of them. The last line of a longer text ends in `…`.
fn stacked(content: &str, width: usize, most: usize) -> Vec<String> {
    let (mut lines, mut line) = (Vec::new(), String::new());
    for c in content.chars() {
        let longer = format!("{line}{c}");
        if text::width(&longer) <= width {
            line = longer;
        } else if lines.len() + 1 == most {
            line = text::cut(&longer, width);
            break;
        } else {
            lines.push(std::mem::replace(&mut line, c.to_string()));
        }
    }
    lines.push(line);
    lines
}

/// The number of lines of the clean tokens that differ, and of the tokens of this run, above cells of `cell` columns.
fn label_lines(app: &App, cell: u16, most: usize) -> (u16, u16) {
    let width = usize::from(cell) - 1;
    let lines = |texts: &mut dyn Iterator<Item = String>| {
        let mut lines = 0;
        for text in texts {
            lines = lines.max(stacked(&text, width, most).len());
            if lines == most {
                break;
            }
        }
        lines as u16
    };
    let tokens = Patch::tokens(app);
    let clean = lines(&mut (0..tokens.len()).filter_map(|column| other_token(app, column)));
    (clean, lines(&mut tokens.iter().map(|token| text::visible(&token.text))))
}

/// Draws the numbers of the heads, or the tokens and their numbers, above the columns.
fn heads_of_columns(app: &App, layout: &Layout, buf: &mut Buffer) {
    let (theme, area) = (app.theme, layout.area);
    let over_tokens = app.patch.map != PatchMap::Heads;
    let (last, most) = (layout.header - 1, most_lines(area));
    let (clean, _) = if over_tokens { label_lines(app, layout.cell, most) } else { (0, 0) };
    put(buf, area, 0, last, if over_tokens { "token" } else { "head" }, theme.dim());
    if clean > 0 {
        put(buf, area, 0, 0, "clean", theme.dim());
    }
    if over_tokens {
        put(buf, area, 0, clean, "this run", theme.dim());
    }
    let width = usize::from(layout.cell) - 1;
    for (right, column) in layout.visible_columns(app).enumerate() {
        let x = layout.label + right as u16 * layout.cell;
        let chosen = column == layout.cursor.1;
        let style = |plain: Style| if chosen { theme.current() } else { plain };
        put(buf, area, x, last, &text::right(&column.to_string(), width), style(theme.index()));
        if !over_tokens {
            continue;
        }
        let own = Patch::tokens(app).get(column).map_or(String::new(), |token| text::visible(&token.text));
        let other = other_token(app, column).map(|other| (0, other, theme.strong()));
        for (top, content, style) in other.into_iter().chain([(clean, own, style(theme.token()))]) {
            let lines = stacked(&content, width, most);
            let aligned = if lines.len() > 1 { text::left } else { text::right };
            for (y, line) in (top..).zip(&lines) {
                put(buf, area, x, y, &aligned(line, width), style);
            }
        }
    }
}

/// The most lines of a token above its column.
fn most_lines(area: Rect) -> usize {
    if area.height < LOW { 2 } else { 3 }
}

/// Draws the places with the largest effects so far.
fn largest(app: &App, layout: &Layout, filled: &Filled, buf: &mut Buffer) {
    if layout.footer < 3 {
        return;
    }
    let theme = app.theme;
    let top = layout.header + layout.visible_rows(app).len() as u16 + 1;
    let bottom = (top - 1 + layout.footer).min(layout.area.height);
    let area = Rect { height: bottom, ..layout.area };
    let columns = layout.columns.max(1);
    let mut places: Vec<(usize, f64)> = (filled.places.iter().enumerate())
        .map(|(at, place)| (at, place[app.patch.metric as usize].effect))
        .filter(|(_, effect)| !effect.is_nan())
        .collect();
    places.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
    let high = Patch::span(filled, app.patch.metric).high;
    // A bar that was cut at the edge would have another length.
    let most = BAR.min(usize::from(area.width).saturating_sub(NUMBER + ADDRESS + 2));
    for (y, (at, effect)) in (top..bottom).zip(places) {
        let filled = (effect.abs() / high * most as f64).round() as usize;
        let bar = if effect < 0.0 { "░" } else { "█" }.repeat(filled.min(most));
        let address = app.patch.map.place(at / columns, at % columns).address().to_string();
        let x = put(buf, area, 0, y, &text::right(&format!("{} %", percent(effect)), NUMBER), Style::new());
        let x = x + put(buf, area, x + 1, y, &text::left(&address, ADDRESS), theme.code());
        put(buf, area, x + 2, y, &bar, theme.bar());
    }
}
