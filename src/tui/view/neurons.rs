//! The neurons: units of a feed-forward network for one token, the strongest first. Each has its activations, and the
//! tokens whose logits it raises most.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

use llama_trace_core::trace::frame::Number;
use llama_trace_core::trace::units::{Promoted, Ranking, UnitOrder, UnitsAt, WritesAt, Writing};
use llama_trace_core::trace::{Axis, Query, Region, Site, Stage, Step};

use super::super::app::App;
use super::super::fit::Piece;
use super::super::text;
use super::super::theme::Span;
use super::kind::{View, progress_note};
use super::layout::Layout;
use super::list::bar;
use super::paint::{put, put_fit};
use super::{labels, tensor_foot};

/// The stages of a unit in some family.
const STAGES: [Stage; 5] = [Stage::FfnGate, Stage::FfnSilu, Stage::FfnUp, Stage::FfnAct, Stage::FfnHidden];
/// Number of units whose output is in one query (`AT_ONCE`); number of promoted and of suppressed tokens (`TOP`).
const AT_ONCE: usize = 8;
const TOP: usize = 6;
/// Columns of a unit's number (`UNIT`). Maximum and minimum columns of a value with the space before it.
const UNIT: u16 = 7;
const VALUE: u16 = 9;
const NARROWEST: u16 = 6;
/// Heading of the effect on the predicted token.
const EFFECT: &str = "effect";
/// Columns of a promoted token's text.
const TEXT: usize = 10;
/// Lines below the units.
const BELOW: u16 = TOP as u16 + 2;

/// The units, the strongest first.
#[derive(Debug)]
pub struct Neurons;

/// The stages of a unit of this model, in the order of the pass.
fn stages(app: &App) -> &'static [Stage] {
    app.outline().card.sizes().stages_of_neurons()
}

/// The heading of a column: the stage without its prefix.
fn heading(stage: Stage) -> &'static str {
    stage.name().trim_start_matches("ffn_")
}

fn site(app: &App, stage: Stage) -> Site {
    app.place().site().other(stage)
}

fn token(app: &App) -> usize {
    app.cursor.selected.get(Axis::Token, app.dims().tokens)
}

/// The question for the order of the layer's units.
fn units_at(app: &App) -> UnitsAt {
    UnitsAt {
        site: site(app, app.outline().card.sizes().neurons()),
        token: token(app),
        order: app.display.units,
    }
}

/// All units of the layer, once they are sorted.
fn ranking(app: &App) -> Option<&Ranking> {
    app.answers.get(&units_at(app))?.ok()
}

/// The numbers of the units, the strongest first.
fn order(app: &App) -> Option<&[u32]> {
    Some(&ranking(app)?.units)
}

/// The token whose logit the effects are on, if the units are sorted by effect.
fn predicted(app: &App) -> Option<String> {
    Some(text_of(app, ranking(app)?.effects.as_ref()?.id))
}

/// The measure that the units are sorted by, in few columns.
fn measure(app: &App) -> &'static str {
    match (app.display.units, app.outline().card.sizes().ungated) {
        (UnitOrder::Hidden, false) => "|hidden|",
        (UnitOrder::Hidden, true) => "|act|",
        (UnitOrder::Effect, _) => "|effect|",
    }
}

/// The region of the current token's row in a stage.
fn row(app: &App) -> Region {
    let (token, units) = (token(app), app.outline().card.sizes().hidden);
    Region(vec![token..token + 1, 0..units])
}

/// The value of a unit at a stage.
fn value(app: &App, stage: Stage, unit: u32) -> Option<f64> {
    match app.answers.covering(site(app, stage), &row(app))?.get(&[token(app), unit as usize])? {
        Number::F32(value) => Some(value.into()),
        Number::I64(value) => Some(value as f64),
    }
}

/// The question for the output of the units whose ranks are near this one.
fn question(app: &App, order: &[u32], rank: usize) -> WritesAt {
    let units = order.chunks(AT_ONCE).nth(rank / AT_ONCE).unwrap_or_default().to_vec();
    WritesAt { site: site(app, app.outline().card.sizes().neurons()), token: token(app), units, top: TOP }
}

/// The output of the unit at a rank, or the reason why the question failed. None until it is known.
fn writing<'a>(app: &'a App, order: &[u32], rank: usize) -> Option<Result<&'a Writing, &'a str>> {
    let answer = app.answers.get(&question(app, order, rank))?;
    match answer {
        Ok(all) => all.get(rank % AT_ONCE).map(Ok),
        Err(reason) => Some(Err(reason)),
    }
}

fn text_of(app: &App, id: u32) -> String {
    labels::text_of(app, Axis::Vocab, id as usize).unwrap_or_else(|| format!("#{id}"))
}

impl View for Neurons {
    fn name(&self) -> &'static str {
        "neurons"
    }

    fn hint(&self) -> [&'static str; 3] {
        [
            "The units of the feed-forward network for a token, the strongest first, one line per unit: hidden = activation(gate) × up, or activation(up) without a gate.",
            "+ are the tokens whose logits a unit's output raises most, − those that it lowers most. This is the direct effect, through the final norm of this token, without later layers.",
            "[ ] sort by |hidden| or by |effect|: the direct effect on the logit of the token with the largest logit. What do the tokens of a unit have in common?",
        ]
    }

    fn fits(&self, step: Step) -> bool {
        STAGES.iter().any(|&stage| step == Step::Stage(stage))
    }

    fn layout(&self, app: &App, body: Rect) -> Layout {
        let (rows, columns) = (app.outline().card.sizes().hidden, app.dims().tokens);
        let unit = app.cursor.selected.get(Axis::Hidden, rows);
        let rank = match app.cursor.keeps_rank {
            true => app.cursor.rank,
            false => {
                let position = |order: &[u32]| order.iter().position(|&other| other as usize == unit);
                order(app).and_then(position).unwrap_or(0)
            }
        };
        let cursor = (rank, token(app));
        let footer = BELOW.min(body.height * 2 / 5);
        Layout {
            area: body,
            rows,
            columns,
            cursor,
            cell: body.width,
            tall: 1,
            label: 0,
            header: 1,
            footer,
            ..Layout::default()
        }
    }

    fn index(&self, app: &App, (rank, token): (usize, usize)) -> Option<Vec<usize>> {
        let unit = *order(app)?.get(rank)?;
        // `order` is that of the current token's units. For another token, the unit at this rank is not known.
        (token == self::token(app)).then(|| vec![token, unit as usize])
    }

    fn select(&self, app: &mut App, (rank, token): (usize, usize)) {
        if token != self::token(app) {
            app.cursor.selected.set(Axis::Token, token);
            // Another token has its units in another order. The cursor stays on its rank until these units are sorted.
            (app.cursor.rank, app.cursor.keeps_rank) = (rank, true);
            return;
        }
        if let Some(&unit) = order(app).and_then(|order| order.get(rank)) {
            app.cursor.selected.set(Axis::Hidden, unit as usize);
            app.cursor.rank = rank;
        }
    }

    /// At first, selects the strongest unit. For another token, selects the unit of the same rank.
    fn settle(&self, app: &mut App) {
        if app.cursor.keeps_rank
            && let Some(unit) = order(app).and_then(|order| order.get(app.cursor.rank).copied())
        {
            app.cursor.selected.set(Axis::Hidden, unit as usize);
            app.cursor.keeps_rank = false;
        }
        let unit = app.cursor.selected.get(Axis::Hidden, usize::MAX);
        if let Some(&first) = order(app).and_then(<[u32]>::first)
            && (unit, app.cursor.rank) == (0, 0)
        {
            app.cursor.selected.set(Axis::Hidden, first as usize);
        }
    }

    fn keys(&self) -> &'static [(&'static str, &'static str)] {
        &[("] [", "sort")]
    }

    fn choose_setting(&self, app: &mut App, _: isize) -> bool {
        app.display.units = match app.display.units {
            UnitOrder::Hidden => UnitOrder::Effect,
            UnitOrder::Effect => UnitOrder::Hidden,
        };
        // The cursor goes to the first unit of the new order, once it is sorted.
        (app.cursor.rank, app.cursor.keeps_rank) = (0, true);
        true
    }

    fn failure(&self, app: &App) -> Option<String> {
        let reason = app.answers.get(&units_at(app))?.err()?;
        Some(format!(
            "The units cannot be sorted by {}: {reason}. ] sorts them by the other measure.",
            measure(app)
        ))
    }

    fn questions(&self, app: &App, layout: &Layout) -> Vec<Query> {
        let own = app.place().step.stage();
        let stages = [own].into_iter().chain(stages(app).iter().copied().filter(|&stage| stage != own));
        let mut questions: Vec<Query> =
            stages.map(|stage| Query::Block(site(app, stage), row(app))).collect();
        questions.push(Query::Units(units_at(app)));
        if let Some(order) = order(app) {
            let seen = layout.visible_rows(app);
            let ranks = [layout.cursor.0].into_iter().chain(seen.step_by(AT_ONCE));
            let last = layout.visible_rows(app).end.saturating_sub(1);
            for rank in ranks.chain([last]) {
                let query = Query::Writes(question(app, order, rank));
                if !questions.contains(&query) {
                    questions.push(query);
                }
            }
        }
        questions
    }

    fn ids(&self, app: &App, layout: &Layout) -> Vec<u32> {
        let Some(Ranking { units, effects }) = ranking(app) else { return Vec::new() };
        let ranks = layout.visible_rows(app);
        let writings = ranks.filter_map(|rank| writing(app, units, rank)?.ok());
        let written = writings.flat_map(|one| one.most.iter().chain(&one.least).map(|one| one.id));
        written.chain(effects.iter().map(|effects| effects.id)).collect()
    }

    fn caption(&self, app: &App, layout: &Layout) -> Vec<Piece> {
        let (dim, token, seen) = (app.theme.dim(), layout.cursor.1, layout.visible_rows(app));
        let mut pieces = vec![
            Piece::whole(format!("token {token}{} ", labels::position_of(app, token)), app.theme.strong()),
            Piece::words(labels::text_of(app, Axis::Token, token).unwrap_or_default(), app.theme.token()),
        ];
        if !seen.is_empty() {
            let range = format!("{}-{} of {}", seen.start + 1, seen.end, layout.rows);
            let by = measure(app);
            let of = predicted(app).map_or(String::new(), |token| format!(" on {token}"));
            let forms = [
                format!(" · units by {by}{of}, {range}"),
                format!(" · units by {by}, {range}"),
                format!(" · by {by}"),
            ];
            pieces.push(Piece::forms(forms, dim).rank(1));
        }
        pieces.push(Piece::whole(" · ← → token", dim).rank(2));
        pieces.extend(progress_note(app));
        pieces
    }

    fn legend(&self, app: &App, foot: Rect, buf: &mut Buffer) {
        let dim = app.theme.dim();
        let card = &app.outline().card;
        let [formula, short] = card.formulas_of_neurons();
        let first = vec![format!("{formula} · colours: relative to each column's largest"), formula, short];
        let hidden = heading(card.sizes().neurons());
        put_fit(buf, foot, 0, 0, &[Piece::forms(first, dim)]);
        if let Some(switch) = card.config.not_a_sum() {
            let forms = [
                format!("no direct effects on the logits: {switch}"),
                format!("no direct effects: {switch}"),
                "no direct effects".to_owned(),
            ];
            put_fit(buf, foot, 0, 1, &[Piece::forms(forms, dim)]);
            return;
        }
        let (of, short) = match predicted(app) {
            Some(token) => (format!("+ − effect (v = {token})"), "+ − effect"),
            None => ("+ −".to_owned(), "+ −"),
        };
        let second = [
            format!(
                "{of}: {hidden} · Σ_d w2[d,f] · norm[d] · output[v,d] / √(mean x² + ε), x: the token's last residual"
            ),
            format!("{of}: {hidden}·Σ_d w2[d,f]·norm[d]·output[v,d] / rms"),
            format!("{short}: {hidden}·Σ_d w2[d,f]·norm[d]·output[v,d] / rms"),
            format!("{short}: {hidden}·Σ w2[d,f]·norm[d]·output[v,d]/rms"),
            format!("{short}: direct effect on the logits"),
        ];
        put_fit(buf, foot, 0, 1, &[Piece::forms(second, dim)]);
    }

    fn foot(&self, app: &App, foot: Rect, buf: &mut Buffer) {
        self.legend(app, foot, buf);
        tensor_foot::cursor(app, foot, buf);
    }

    fn render(&self, app: &App, layout: &Layout, buf: &mut Buffer) {
        let (theme, area, own) = (app.theme, layout.area, app.place().step.stage());
        let by_effect = app.display.units == UnitOrder::Effect;
        let columns = stages(app).len() as u16 + u16::from(by_effect);
        // All columns fit on a narrow screen, with fewer digits.
        let wide = (area.width.saturating_sub(UNIT) / columns).clamp(NARROWEST, VALUE);
        let digits = usize::from(wide) - 1;
        put(buf, area, 0, 0, &text::right("unit", UNIT.into()), theme.dim());
        for (at, &stage) in (0..).zip(stages(app)) {
            let name = heading(stage);
            let style = if stage == own { theme.current() } else { theme.dim() };
            let width = text::width(name) as u16;
            put(buf, area, UNIT + (at + 1) * wide - width, 0, name, style);
        }
        if by_effect {
            put(buf, area, UNIT + columns * wide - EFFECT.len() as u16, 0, EFFECT, theme.dim());
        }
        let most_at = UNIT + columns * wide + 1;
        let room = usize::from(area.width.saturating_sub(most_at));
        // If there is room, both promoted and suppressed tokens are shown; otherwise only the promoted ones, or none.
        let each = if room >= 2 * TEXT { room / 2 } else { room };
        if room >= TEXT {
            put(buf, area, most_at, 0, if each < room { "+ raises" } else { "+" }, theme.dim());
        }
        if each < room {
            put(buf, area, most_at + each as u16, 0, "− lowers", theme.dim());
        }
        let Some(Ranking { units: order, effects }) = ranking(app) else {
            put(buf, area, 0, 1, "sorting …", theme.dim());
            return;
        };
        let seen: Vec<(usize, u32)> = layout.visible_rows(app).map(|rank| (rank, order[rank])).collect();
        let span = |stage: &Stage| {
            let sizes = seen.iter().filter_map(|&(_, unit)| value(app, *stage, unit)).map(f64::abs);
            let high = sizes.filter(|size| size.is_finite()).fold(0.0, f64::max);
            Span { positive: false, high: if high > 0.0 { high } else { 1.0 }, clipped: 0, at_most: false }
        };
        let spans: Vec<Span> = stages(app).iter().map(span).collect();
        for (y, &(rank, unit)) in (1..).zip(&seen) {
            let chosen = rank == layout.cursor.0;
            let style = if chosen { theme.current() } else { theme.index() };
            put(buf, area, 0, y, &text::right(&unit.to_string(), UNIT.into()), style);
            for (at, (&stage, &span)) in (0..).zip(stages(app).iter().zip(&spans)) {
                let x = UNIT + at * wide + 1;
                let Some(value) = value(app, stage, unit) else {
                    put(buf, area, x, y, &text::right("…", digits), theme.dim());
                    continue;
                };
                let mut style = theme.cell(value, span).style;
                if chosen && stage == own {
                    style = style.add_modifier(Modifier::REVERSED | Modifier::BOLD);
                }
                let told = text::figure_in(value, false, digits);
                put(buf, area, x, y, &text::right(&told, digits), style);
            }
            if let Some(added) = effects.as_ref().and_then(|effects| effects.added.get(unit as usize)) {
                let told = text::figure_in(*added, false, digits);
                let style = if chosen { theme.strong() } else { Style::new() };
                put(buf, area, UNIT + (columns - 1) * wide, y, &text::right(&told, wide.into()), style);
            }
            match writing(app, order, rank) {
                _ if room < TEXT => {}
                Some(Ok(writing)) => {
                    tokens(app, &writing.most, (most_at, y, each), area, buf);
                    if each < room {
                        tokens(app, &writing.least, (most_at + each as u16, y, each), area, buf);
                    }
                }
                none => {
                    put(buf, area, most_at, y, if none.is_some() { "–" } else { "…" }, theme.dim());
                }
            }
        }
        self.below(app, layout, order, buf);
    }
}

/// Draws as many tokens as fit into `columns`, at least one.
fn tokens(app: &App, all: &[Promoted], (x, y, columns): (u16, u16, usize), area: Rect, buf: &mut Buffer) {
    let each = TEXT.min(columns.saturating_sub(1));
    let count = (columns / (each + 1).max(1)).max(1);
    for (at, one) in all.iter().take(count).enumerate() {
        let shown = text::cut(&text_of(app, one.id), each);
        put(buf, area, x + (at * (each + 1)) as u16, y, &shown, app.theme.token());
    }
}

impl Neurons {
    /// Draws the output of the unit under the cursor, with numbers.
    fn below(&self, app: &App, layout: &Layout, order: &[u32], buf: &mut Buffer) {
        let (theme, rank) = (app.theme, layout.cursor.0);
        let Some(&unit) = order.get(rank).filter(|_| layout.footer > 1) else { return };
        let top = layout.header + layout.visible_rows(app).len() as u16;
        let area = Rect { height: (top + layout.footer).min(layout.area.height), ..layout.area };
        let number = format!("unit {unit}, rank {} of {} by {}", rank + 1, order.len(), measure(app));
        let mut pieces = vec![Piece::whole(number, theme.strong())];
        let (most, least) = match writing(app, order, rank) {
            Some(Ok(writing)) => {
                pieces.push(Piece::whole(" adds to logits directly:", theme.dim()).rank(1));
                (&writing.most[..], &writing.least[..])
            }
            Some(Err(reason)) => {
                let said = format!("its effect is not available: {reason}");
                for (down, line) in (0..).zip(text::wrap(&said, area.width.into())) {
                    put(buf, area, 0, top + 1 + down, &line, theme.error());
                }
                (&[][..], &[][..])
            }
            None => {
                pieces.push(Piece::whole(" · reading its effect …", theme.dim()).rank(1));
                (&[][..], &[][..])
            }
        };
        put_fit(buf, area, 0, top, &pieces);
        let all = most.iter().chain(least);
        let high = all.map(|one| one.added.abs()).filter(|size| size.is_finite()).fold(0.0, f64::max);
        let half = area.width / 2;
        let texts = TEXT.min(usize::from(half).saturating_sub(VALUE as usize + 4));
        let bars = usize::from(half).saturating_sub(VALUE as usize + texts + 3);
        for (x, side) in [(0, most), (half, least)] {
            for (y, one) in (top + 1..area.height).zip(side) {
                let figure =
                    text::right(&text::figure_in(one.added, false, VALUE as usize - 1), VALUE.into());
                let end = x + put(buf, area, x, y, &figure, Style::new()) + 1;
                put(buf, area, end, y, &text::cut(&text_of(app, one.id), texts), theme.token());
                let share = if high > 0.0 { one.added.abs() / high } else { 0.0 };
                let bar = if one.added < 0.0 {
                    "░".repeat((share.min(1.0) * bars as f64).round() as usize)
                } else {
                    bar(share, bars)
                };
                put(buf, area, end + texts as u16 + 1, y, &bar, theme.bar());
            }
        }
    }
}
