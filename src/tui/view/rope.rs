//! RoPE as a picture: pairs of components are vectors that rotate, and earlier pairs rotate faster.

use std::f64::consts::{PI, TAU};

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::symbols::Marker;
use ratatui::text::Line;
use ratatui::widgets::Widget;
use ratatui::widgets::canvas::{self, Canvas, Circle, Points};

use llama_trace_core::trace::frame::Number;
use llama_trace_core::trace::stage::Input;
use llama_trace_core::trace::{Axis, Part, Query, Region, Site, Stage, Step};

use super::super::app::App;
use super::super::fit::Piece;
use super::super::place::Place;
use super::super::text;
use super::grid;
use super::kind::View;
use super::labels;
use super::layout::Layout;
use super::paint::{put, put_fit};

/// Columns and lines of a circle (`CIRCLE`), and of a cell with the gap and the angle (`CELL`).
const CIRCLE: (u16, u16) = (10, 5);
const CELL: (u16, u16) = (CIRCLE.0 + 1, CIRCLE.1 + 1);
/// Columns of a direction in the tables.
const DIRECTION: u16 = 3;
/// Directions, anticlockwise. The first one is the direction of the first component.
const DIRECTIONS: [&str; 8] = ["→", "↗", "↑", "↖", "←", "↙", "↓", "↘"];
/// Lines about the pair under the cursor, including the empty line above (`TOLD`); lines of the pair's curves
/// (`CURVES`).
const TOLD: u16 = 5;
const CURVES: u16 = 10;
/// Columns of the angles beside the curves.
const ANGLES: u16 = 6;
/// Maximum number of positions in a curve.
const POSITIONS: usize = 4096;

/// Pairs before and after the rotation, and the tables of cosines and sines.
#[derive(Debug)]
pub struct Rope;

/// Returns whether `step` is one of the tables.
fn is_table(step: Step) -> bool {
    matches!(step, Step::Stage(stage) if stage.is_rope_table())
}

/// The tables of cosines and sines: the model's, or those of the layer.
fn tables(app: &App) -> [Stage; 2] {
    [Stage::RopeCos, Stage::RopeSin].map(|stage| stage.in_model(&app.outline().card.sizes()))
}

/// Input and output stage of the rotation, for queries or for keys.
fn turned(app: &App) -> Option<(Stage, Stage)> {
    let after = match app.place().step {
        Step::Stage(Stage::Xq | Stage::XqNorm | Stage::XqRope) => Stage::XqRope,
        Step::Stage(Stage::Xk | Stage::XkNorm | Stage::XkRope) => Stage::XkRope,
        _ => return None,
    };
    // A layer without RoPE rotates nothing.
    let site = site(app, after);
    let inputs = match site.present(&app.outline().card.sizes(), app.dims()) {
        true => site.inputs(&app.outline().card.sizes(), app.dims()),
        false => return None,
    };
    inputs.into_iter().find_map(|input| match input {
        Input::Stage(before) if before.axes() == after.axes() => Some((before, after)),
        _ => None,
    })
}

/// The two components of a pair, in the model's pairing.
fn components(app: &App, pair: usize) -> (usize, usize) {
    let config = &app.outline().card.config;
    config.pairing.components(pair, config.turned())
}

/// The pair of a component.
fn pair_of(app: &App, component: usize) -> usize {
    let config = &app.outline().card.config;
    config.pairing.pair_of(component % config.turned(), config.turned())
}

/// The token and the pair under the cursor.
fn cursor(app: &App) -> (usize, usize) {
    let index = app.index();
    let last = index.last().copied().unwrap_or(0);
    (index[0], if is_table(app.place().step) { last } else { pair_of(app, last) })
}

/// The site of a stage in this pass. If the stage belongs to a layer, the site is in the current layer.
fn site(app: &App, stage: Stage) -> Site {
    let layer = app.place().layer.filter(|_| stage.in_layer());
    Place { layer, step: Step::Stage(stage), ..app.place() }.site()
}

fn number(app: &App, site: Site, index: &[usize]) -> Option<f64> {
    let region = Region(index.iter().map(|&index| index..index + 1).collect());
    app.answers.covering(site, &region)?.get(index).map(Number::real)
}

/// cos and sin of a pair at a token.
fn table(app: &App, token: usize, pair: usize) -> Option<(f64, f64)> {
    let of = |stage| number(app, site(app, stage), &[token, pair]);
    let [cos, sin] = tables(app);
    Some((of(cos)?, of(sin)?))
}

/// The components of a pair in the current head of a stage.
fn pair(app: &App, stage: Stage, token: usize, pair: usize) -> Option<[f64; 2]> {
    let head = app.index()[1];
    let (first, second) = components(app, pair);
    let of = |component| number(app, site(app, stage), &[token, head, component]);
    Some([of(first)?, of(second)?])
}

/// The pass, and the row of its tables, that hold position 1.
fn position_one(app: &App) -> Option<(usize, usize)> {
    let passes = &app.outline().passes;
    let pass = passes.iter().position(|pass| pass.dims.keys() > 1)?;
    Some((pass, 1 - passes[pass].dims.start))
}

/// θ of a pair: its angle at position 1, which is less than half a turn.
fn theta(app: &App, pair: usize) -> Option<f64> {
    let (pass, row) = position_one(app)?;
    let of = |stage| number(app, Site { pass, ..site(app, stage) }, &[row, pair]);
    let [cos, sin] = tables(app);
    Some(of(sin)?.atan2(of(cos)?))
}

/// An angle between −π and π.
fn wrapped(angle: f64) -> f64 {
    let rest = angle.rem_euclid(TAU);
    if rest > PI { rest - TAU } else { rest }
}

impl View for Rope {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn hint(&self) -> [&'static str; 3] {
        [
            "Pairs of components as vectors of length 1, ○ before and ● after the rotation; in the tables as directions.",
            "From token to token, the first pairs rotate fast and the last ones hardly move. So different pairs show near and far distances.",
            "← → choose a pair, ↑ ↓ a token. The curves show the angle at each position, for the fastest pair, the chosen one and the slowest.",
        ]
    }

    fn fits(&self, step: Step) -> bool {
        use Stage::{Xk, XkNorm, XkRope, Xq, XqNorm, XqRope};
        is_table(step) || [Xq, XqNorm, XqRope, Xk, XkNorm, XkRope].map(Step::Stage).contains(&step)
    }

    fn layout(&self, app: &App, body: Rect) -> Layout {
        let (sizes, rows) = (app.outline().card.sizes(), app.shape()[0]);
        let ((cell, tall), header) = if is_table(app.place().step) { ((DIRECTION, 1), 1) } else { (CELL, 2) };
        // In little room the circles are smaller.
        let tall = tall.min(body.height.saturating_sub(header)).max(1);
        let texts = labels::text_width(app, Axis::Token, rows, 10);
        let label = (labels::digits(rows) + texts + 2).max(7) as u16;
        // The cells are most important, then the lines about the pair under the cursor, then the pair's curves.
        let most = if tall == 1 { rows.min(usize::from(body.height)) as u16 } else { 2 * tall };
        let left = body.height.saturating_sub(header + tall);
        let footer = match body.height.saturating_sub(header + most.min(body.height / 2)) {
            room if room >= TOLD + CURVES => TOLD + CURVES,
            _ => TOLD.min(left),
        };
        let columns = sizes.pairs;
        Layout {
            area: body,
            rows,
            columns,
            cursor: cursor(app),
            cell,
            tall,
            label,
            header,
            footer,
            ..Layout::default()
        }
    }

    fn index(&self, app: &App, (token, pair): (usize, usize)) -> Option<Vec<usize>> {
        if is_table(app.place().step) {
            return Some(vec![token, pair]);
        }
        Some(vec![token, app.index()[1], components(app, pair).0])
    }

    fn questions(&self, app: &App, layout: &Layout) -> Vec<Query> {
        let own = app.place().site();
        let (sizes, seen, here) = (app.outline().card.sizes(), layout.visible_rows(app), layout.cursor.0);
        // The cursor can be out of sight for a moment, until the scroll position follows it.
        let mut rows = if seen.contains(&here) { seen } else { here..here + 1 };
        // If the step is one of the tables, its rows must include the row of position 1.
        if let Some((_, row)) =
            position_one(app).filter(|(pass, _)| is_table(app.place().step) && *pass == own.pass)
        {
            rows = rows.start.min(row)..rows.end.max(row + 1);
        }
        let mut asked = Vec::new();
        let pairs = 0..sizes.pairs;
        for stage in tables(app) {
            asked.push(Query::Block(site(app, stage), Region(vec![rows.clone(), pairs.clone()])));
            if let Some((pass, row)) =
                position_one(app).filter(|&(pass, row)| pass != own.pass || !rows.contains(&row))
            {
                let there = Site { pass, ..site(app, stage) };
                asked.push(Query::Block(there, Region(vec![row..row + 1, pairs.clone()])));
            }
        }
        if !is_table(app.place().step) {
            let head = app.index()[1];
            let region = Region(vec![rows, head..head + 1, 0..sizes.head_dim]);
            let stages = turned(app).map_or(Vec::new(), |(before, after)| vec![before, after]);
            let own = app.place().step.stage();
            for stage in [own].into_iter().chain(stages.into_iter().filter(|&stage| stage != own)) {
                asked.push(Query::Block(site(app, stage), region.clone()));
            }
        }
        // The current stage is asked for first.
        asked.sort_by_key(|query| !matches!(query, Query::Block(site, _) if *site == own));
        asked.push(Query::Spread(Part::whole(own)));
        asked
    }

    fn caption(&self, app: &App, layout: &Layout) -> Vec<Piece> {
        let dim = app.theme.dim();
        let mut pieces = vec![
            grid::range(app, "↓", Axis::Token, &layout.visible_rows(app), layout.rows),
            Piece::whole(" · ", dim),
            grid::range(app, "→", Axis::Pair, &layout.visible_columns(app), layout.columns),
        ];
        if let Some((before, after)) = turned(app) {
            pieces.push(Piece::whole(format!(" · ○ {before} ● {after}"), dim).rank(3));
        }
        pieces
    }

    fn legend(&self, app: &App, foot: Rect, buf: &mut Buffer) {
        let dim = app.theme.dim();
        let said = match is_table(app.place().step) {
            true => ["directions of (cos, sin): → not turned, ↑ a quarter turn", "directions of (cos, sin)"],
            false => {
                ["○ before ● after ◉ both · circles: length 1 · degrees: rotation", "○ before ● after ◉ both"]
            }
        };
        put_fit(buf, foot, 0, 0, &[Piece::forms(said.map(str::to_owned), dim)]);
    }

    fn render(&self, app: &App, layout: &Layout, buf: &mut Buffer) {
        let (theme, area, flat) = (app.theme, layout.area, is_table(app.place().step));
        let style = |chosen: bool| if chosen { theme.current() } else { theme.index() };
        for (right, pair) in layout.visible_columns(app).enumerate() {
            let (x, chosen) = (layout.label + right as u16 * layout.cell, pair == layout.cursor.1);
            let name = if flat { format!("{pair:>2}") } else { format!("pair {pair}") };
            put(buf, area, x, 0, &name, style(chosen));
            if !flat {
                let (first, second) = components(app, pair);
                put(buf, area, x, 1, &format!("c {first},{second}"), theme.dim());
            }
        }
        let digits = labels::digits(layout.rows);
        put(buf, area, 0, 0, "token", theme.dim());
        for (down, token) in layout.visible_rows(app).enumerate() {
            let (y, chosen) = (layout.header + down as u16 * layout.tall, token == layout.cursor.0);
            put(buf, area, 0, y, &format!("{token:>digits$}"), style(chosen));
            let words = labels::text_of(app, Axis::Token, token).unwrap_or_default();
            let room = usize::from(layout.label).saturating_sub(digits + 2);
            let style = if chosen { theme.current() } else { theme.token() };
            put(buf, area, digits as u16 + 1, y, &text::cut(&words, room), style);
        }
        layout.each_cell(app, |token, pair, x, y| {
            let chosen = (token, pair) == layout.cursor;
            let angle = table(app, token, pair).map(|(cos, sin)| sin.atan2(cos));
            if flat {
                let Some(angle) = angle else { return };
                let eighth = (angle / (PI / 4.0)).round() as isize;
                let direction = DIRECTIONS[eighth.rem_euclid(8) as usize];
                let content = if chosen { format!("[{direction}]") } else { format!(" {direction} ") };
                put(buf, area, x, y, &content, if chosen { theme.strong() } else { Style::new() });
                return;
            }
            let lines = layout.tall - 1;
            let place = Rect { x: area.x + x, y: area.y + y, width: CIRCLE.0, height: lines };
            circle(app, token, pair, place.intersection(area), buf);
            if let Some(angle) = angle {
                let told = format!("{:.0}°", angle.to_degrees());
                let style = if chosen { theme.current() } else { theme.dim() };
                put(buf, area, x, y + lines, &text::right(&told, usize::from(CIRCLE.0) / 2 + 2), style);
            }
        });
        below(app, layout, buf);
    }
}

/// Draws a pair before and after the rotation, each with length 1.
fn circle(app: &App, token: usize, at: usize, area: Rect, buf: &mut Buffer) {
    let Some((before, after)) = turned(app).filter(|_| !area.is_empty()) else { return };
    let theme = app.theme;
    let unit = |stage| {
        let [a, b] = pair(app, stage, token, at)?;
        let length = a.hypot(b);
        (length > 0.0 && length.is_finite()).then(|| (a / length, b / length))
    };
    let (before, after) = (unit(before), unit(after));
    let ink = |style: Style| style.fg.unwrap_or_default();
    Canvas::default()
        .marker(Marker::Braille)
        .x_bounds([-1.25, 1.25])
        .y_bounds([-1.25, 1.25])
        .paint(|draw| {
            draw.draw(&Circle { x: 0.0, y: 0.0, radius: 1.0, color: ink(theme.dim()) });
            for (to, style) in [(before, theme.dim()), (after, theme.bar())] {
                let Some((x, y)) = to else { continue };
                draw.draw(&canvas::Line { x1: 0.0, y1: 0.0, x2: x, y2: y, color: ink(style) });
            }
            draw.layer();
            let near = |(a, b): (f64, f64), (c, d): (f64, f64)| (a - c).hypot(b - d) < 0.25;
            match (before, after) {
                (Some(one), Some(other)) if near(one, other) => {
                    draw.print(other.0, other.1, Line::styled("◉", theme.key()));
                }
                _ => {
                    for (to, mark, style) in [(before, "○", theme.strong()), (after, "●", theme.key())] {
                        if let Some((x, y)) = to {
                            draw.print(x, y, Line::styled(mark, style));
                        }
                    }
                }
            }
        })
        .render(area, buf);
}

/// Draws the lines about the pair under the cursor, and the pair's curve between those of the fastest and the slowest
/// pair.
fn below(app: &App, layout: &Layout, buf: &mut Buffer) {
    let (theme, (token, at)) = (app.theme, layout.cursor);
    let top = layout.header + layout.visible_rows(app).len() as u16 * layout.tall + 1;
    let bottom = (top - 1 + layout.footer).min(layout.area.height);
    let area = Rect { height: bottom, ..layout.area };
    let position = app.dims().start + token;
    let strong = theme.strong();
    let dim = theme.dim();
    let mut lines: Vec<Vec<Piece>> = Vec::new();
    let angle = table(app, token, at);
    if let Some((cos, sin)) = angle {
        let angle = sin.atan2(cos);
        let turned = format!("{} rad = {}°", text::real(angle), text::real(angle.to_degrees()));
        let told = [format!("turned by atan2(sin, cos) = {turned}"), format!("turned by {turned}"), turned];
        lines.push(vec![
            Piece::whole(format!("pair {at} at position {position}: "), strong),
            Piece::forms(told, strong).rank(1),
        ]);
    }
    if let Some(theta) = theta(app, at) {
        let (one, here) = (text::real(theta), position as f64 * theta);
        // The angle in the line above leaves out whole turns.
        let turns = (here / TAU).round();
        let left = match turns != 0.0 {
            true => format!(" = {} + {turns}·2π", text::real(wrapped(here))),
            false => String::new(),
        };
        let round = if theta == 0.0 {
            String::new()
        } else {
            format!(" · a full turn: 2π/θ_i = {} tokens", text::real(TAU / theta.abs()))
        };
        lines.push(vec![
            Piece::whole(format!("θ_i = {one}"), strong),
            Piece::forms([" radians a token", " rad/token", ""].map(str::to_owned), dim).rank(2),
            Piece::whole(format!(" · {position}·θ_i = {}", text::real(here)), strong),
            Piece::whole(left, strong).rank(1),
            Piece::whole(round, dim).rank(3),
        ]);
    }
    if let Some((before, after)) = turned(app) {
        let shown = |mark: &str, stage: Stage| {
            let [a, b] = pair(app, stage, token, at)?;
            Some(format!("{mark} {stage} ({}, {}) ", text::real(a), text::real(b)))
        };
        let both = [shown("○", before), shown("●", after)].into_iter().flatten();
        lines.push(both.map(|told| Piece::whole(told, strong)).collect());
    }
    if let Some((cos, sin)) = angle {
        let values = format!("cos {} sin {}", text::real(cos), text::real(sin));
        let rule = match is_table(app.place().step) {
            true => vec![values],
            false => vec![
                format!("(a, b) → (a·cos − b·sin, a·sin + b·cos), {values}"),
                format!("→ (a·cos − b·sin, a·sin + b·cos), {values}"),
                values,
            ],
        };
        lines.push(vec![Piece::forms(rule, dim)]);
    }
    for (y, pieces) in (top..).zip(&lines) {
        put_fit(buf, area, 0, y, pieces);
    }
    if layout.footer < TOLD + CURVES {
        return;
    }
    let top = area.y + top + TOLD - 1;
    curves(app, (at, position), Rect { y: top, height: CURVES, ..area }.intersection(area), buf);
}

/// Draws the angles against the positions up to the end of the pass, for three pairs: the fastest pair, the one under
/// the cursor, and the slowest.
fn curves(app: &App, (at, position): (usize, usize), area: Rect, buf: &mut Buffer) {
    let dim = app.theme.dim();
    let slowest = app.outline().card.sizes().pairs.saturating_sub(1);
    if theta(app, at).is_none() || area.height < CURVES {
        return;
    }
    // Besides the plots there are three lines: a heading, the positions, and the meaning of the marks.
    let plot = CURVES - 3;
    put(buf, area, 0, 0, "angle", dim);
    for (down, angle) in [(0, "180°"), (plot / 2, "0°"), (plot - 1, "-180°")] {
        put(buf, area, 0, 1 + down, &text::right(angle, usize::from(ANGLES) - 1), dim);
    }
    let wide = area.width.saturating_sub(ANGLES) / 3;
    for (number, (name, pair)) in (0_u16..).zip([("fastest", 0), ("cursor", at), ("slowest", slowest)]) {
        let x = area.x + ANGLES + number * wide;
        let place = Rect { x, width: wide.saturating_sub(1), height: CURVES - 1, ..area };
        curve(app, name, pair, position, place.intersection(area), buf);
    }
    let forms = [
        "each dot is the angle at a position, ● at the cursor's position · after 180° comes -180°",
        "a dot: a position, ● the cursor's · after 180°: -180°",
        "a dot: a position, ● the cursor's",
    ];
    put_fit(buf, area, 0, CURVES - 1, &[Piece::forms(forms.map(str::to_owned), dim)]);
}

/// Draws one curve.
fn curve(app: &App, name: &str, pair: usize, position: usize, area: Rect, buf: &mut Buffer) {
    let Some(theta) = theta(app, pair).filter(|_| area.height > 2 && area.width > 0) else { return };
    let theme = app.theme;
    let last = app.dims().keys().saturating_sub(1);
    let names = [format!("{name}: pair {pair}"), format!("{name}: {pair}")];
    put_fit(buf, area, 0, 0, &[Piece::forms(names, theme.strong())]);
    let plot = Rect { y: area.y + 1, height: area.height.saturating_sub(2), ..area };
    put(buf, plot, 0, plot.height / 2, &"┄".repeat(plot.width.into()), theme.dim());
    let every = (last + 1).div_ceil(POSITIONS).max(1);
    let points: Vec<(f64, f64)> =
        (0..=last).step_by(every).map(|p| (p as f64, wrapped(p as f64 * theta))).collect();
    let ink = |style: Style| style.fg.unwrap_or_default();
    Canvas::default()
        .marker(Marker::Braille)
        .x_bounds([0.0, last.max(1) as f64])
        .y_bounds([-PI, PI])
        .paint(|draw| {
            draw.draw(&Points { coords: &points, color: ink(theme.bar()) });
        })
        .render(plot, buf);
    // A braille character has two columns and four rows of dots.
    let dot = |share: f64, dots: u16| (share * f64::from(dots.saturating_sub(1))).round() as u16;
    let x = dot(position as f64 / last.max(1) as f64, 2 * plot.width) / 2;
    let y = dot((PI - wrapped(position as f64 * theta)) / TAU, 4 * plot.height) / 4;
    put(buf, plot, x, y, "●", theme.key());
    let said = [format!("position 0 to {last} →"), format!("position 0-{last} →"), format!("0-{last}")];
    put_fit(buf, area, 0, area.height - 1, &[Piece::forms(said, theme.dim())]);
}
