//! The tensor panel: a heading with axes and slice, the values in a view, the legend, the statistics and the value
//! under the cursor.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::widgets::Widget;

use llama_trace_core::trace::stage::Unit;
use llama_trace_core::trace::{Axis, Status, Step};

use super::super::app::{App, Shown};
use super::super::fit::Piece;
use super::super::text;
use super::labels;
use super::layout::Layout;
use super::paint::{put, put_fit};
use super::{Panels, tensor_foot};

/// Minimum lines of a compared tensor whose head and foot are not folded.
pub const FOLDED: u16 = 14;

/// The heading of a view's hint.
pub const LOOK_FOR: &str = "what to look for";

/// The parts of the panel.
#[derive(Clone, Copy, Debug)]
pub struct Regions {
    /// The lines above the values.
    pub(super) head: Rect,
    /// The values.
    pub body: Rect,
    foot: Rect,
}

impl Regions {
    /// The parts of a panel that fills `area`.
    pub fn new(app: &App, area: Rect) -> Self {
        let inner = Rect { x: area.x + 1, width: area.width.saturating_sub(1), ..area }.intersection(area);
        let (head, foot) = folded(app, area).map_or((2, 4), |foot| (1, foot));
        let head = Rect { height: inner.height.min(head), ..inner };
        let foot = inner.height.saturating_sub(head.height).min(foot);
        let body = inner.height - head.height - foot;
        Self {
            head,
            body: Rect { y: inner.y + head.height, height: body, ..inner },
            foot: Rect { y: inner.y + head.height + body, height: foot, ..inner },
        }
    }

    /// The place of the legend and the statistics: one line below the values, which take `lines` lines, or at the
    /// bottom.
    pub(super) fn foot_below(self, lines: usize) -> Rect {
        let used = u16::try_from(lines).unwrap_or(u16::MAX);
        Rect { y: self.foot.y.min(self.body.y.saturating_add(used).saturating_add(1)), ..self.foot }
    }
}

/// The number of lines below the values of a folded tensor; none if it is not folded. A folded tensor has one line
/// above the values. Of two tensors, only the lower one has the common legend. Their difference has its own legend, and
/// no cursor.
fn folded(app: &App, area: Rect) -> Option<u16> {
    if area.height >= FOLDED {
        return None;
    }
    if app.panels.pane.is_some() {
        return Some(if app.comparison.subtracts { 1 } else { 2 });
    }
    let is_upper = Panels::new(app).compared?.y > area.y;
    Some(if is_upper && !app.comparison.subtracts { 1 } else { 2 })
}

/// The tensor panel.
#[derive(Debug)]
pub struct TensorPanel<'a>(pub &'a App);

impl Widget for TensorPanel<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let app = self.0;
        let regions = Regions::new(app, area);
        let Regions { head, body, .. } = regions;
        let mut layout = app.view().layout(app, body);
        if app.comparison.out_of_range && app.view().is_grid() {
            // The compared index is out of range here, so no cell has the cursor.
            layout.cursor = (usize::MAX, usize::MAX);
        }
        let foot = regions.foot_below(layout.lines(app));
        heading(app, head, &layout, buf);
        let folded = folded(app, area).is_some();
        if app.view_is_concealed() {
            put(buf, body, 0, 1, "hidden until the question is answered", app.theme.dim());
            return;
        }
        let draw_foot = |buf: &mut Buffer| {
            if folded { tensor_foot::folded(app, foot, buf) } else { app.view().foot(app, foot, buf) }
        };
        let shown = match (app.shown(), app.view().failure(app)) {
            (Shown::Values(_), Some(reason)) => Shown::Failed(reason),
            (shown, _) => shown,
        };
        match shown {
            _ if app.view().needs_no_values() => {
                app.view().render(app, &layout, buf);
                draw_foot(buf);
            }
            Shown::Failed(reason) => {
                put(buf, body, 0, 1, "There are no values to show:", app.theme.error());
                let lines = text::wrap(&reason, body.width.into());
                for (y, line) in (3..).zip(&lines) {
                    put(buf, body, 0, y, line, Style::new());
                }
                let address = app.place().address(&app.index());
                put(buf, body, 0, lines.len() as u16 + 4, &address, app.theme.dim());
            }
            Shown::Values(_) if app.tensor().is_some_and(|tensor| !tensor.is_empty()) => {
                app.view().render(app, &layout, buf);
                if app.hides_here() {
                    hidden(app, &layout, buf);
                }
                draw_foot(buf);
            }
            Shown::Values(_) if app.tensor().is_some() => {
                put(buf, body, 0, 1, "this tensor has no values", app.theme.dim());
            }
            _ => {
                let doing = match &app.progress.status {
                    Status::Working(what) => what.clone(),
                    Status::Idle => format!("computing {}", app.place().path()),
                };
                put(buf, body, 0, 1, &format!("{doing} …"), app.theme.dim());
                let stops = match (app.is_opening(), app.comparison.has_previous) {
                    (true, true) => "Esc stops it and goes back",
                    (true, false) => "Esc stops and leaves",
                    (false, _) => "Esc stops it",
                };
                put(buf, body, 0, 2, stops, app.theme.dim());
            }
        }
        hint(
            app,
            Rect { y: foot.bottom(), height: area.bottom().saturating_sub(foot.bottom()), ..body },
            buf,
        );
    }
}

/// Draws a question mark in place of each hidden value, and the cursor.
fn hidden(app: &App, layout: &Layout, buf: &mut Buffer) {
    layout.each_cell(app, |row, column, x, y| {
        let wide = usize::from(layout.cell.min(12));
        match (row, column) == layout.cursor {
            true if wide < 3 => put(buf, layout.area, x, y, "[]", app.theme.current()),
            true => put(buf, layout.area, x, y, &text::right("[?]", wide - 1), app.theme.current()),
            false if wide < 3 => put(buf, layout.area, x, y, "?", app.theme.dim()),
            false => put(buf, layout.area, x, y, &text::right("? ", wide - 1), app.theme.dim()),
        };
    });
}

/// Draws the view's hint at the bottom, if the values leave room for it.
fn hint(app: &App, room: Rect, buf: &mut Buffer) {
    let columns = usize::from(room.width.saturating_sub(1));
    let lines: Vec<String> =
        app.view().hint().into_iter().flat_map(|line| text::wrap(line, columns)).collect();
    let needed = lines.len() as u16 + 2;
    // The hint names keys that a presentation does not have.
    let leaves_out = app.comparison.with.is_some() || app.panels.pane.is_some() || app.presents();
    if room.height < needed || leaves_out {
        return;
    }
    let y = room.height - needed + 1;
    put(buf, room, 0, y, LOOK_FOR, app.theme.strong());
    for (y, line) in (y + 1..).zip(&lines) {
        put(buf, room, 0, y, line, app.theme.dim());
    }
}

/// Draws two lines: the step with its axes and unit, and the part on the screen. In a folded panel, draws one line with
/// name and part.
fn heading(app: &App, head: Rect, layout: &Layout, buf: &mut Buffer) {
    let theme = app.theme;
    let (step, shape) = (app.place().step, app.shape());
    let axes: Vec<_> = step
        .axes()
        .iter()
        .zip(&shape)
        .map(|(axis, length)| format!("{} {length}", labels::name(*axis)))
        .collect();
    let lengths: Vec<_> = shape.iter().map(usize::to_string).collect();
    let names: Vec<_> = step.axes().iter().map(|axis| labels::name(*axis)).collect();
    let shapes = match app.hides_shapes() {
        true => [format!("  {}", names.join(" × ")), String::new()],
        false => [format!("  {}", axes.join(" × ")), format!("  {}", lengths.join(" × "))],
    };
    let kind = if matches!(step, Step::View(_)) { format!(" ({})", step.op()) } else { String::new() };
    let unit = step.stage().info().unit;
    let units = match app.outline().card.config.score_scale {
        Some(_) if unit == Unit::ScaledDot => ["scaled dot product", "scaled qk"],
        _ => [unit.name(), unit.short()],
    };
    let pieces = [
        Piece::words(step.name(), theme.strong()),
        Piece::whole(kind, theme.view()).rank(2),
        Piece::forms(shapes, Style::new()).rank(1),
        Piece::forms([format!(" · {}", units[0]), format!(" · {}", units[1]), String::new()], theme.dim())
            .rank(3),
    ];
    let folded = head.height < 2;
    if !folded {
        put_fit(buf, head, 0, 0, &pieces);
    }
    let mut pieces = held(app);
    if folded {
        let name = format!("{}{}", step.name(), if pieces.is_empty() { "" } else { " · " });
        pieces.insert(0, Piece::whole(name, theme.strong()));
    }
    if !pieces.is_empty() {
        pieces.push(Piece::whole(" · ", theme.dim()));
    }
    pieces.extend(app.view().caption(app, layout));
    put_fit(buf, head, 0, head.height.saturating_sub(1), &pieces);
}

/// The held index: "head 2 of 0-3 (kv head 1)".
fn held(app: &App) -> Vec<Piece> {
    let Some(held) = app.cut().held else { return Vec::new() };
    let style = app.theme.strong();
    let axis = app.place().step.axes()[held];
    let length = app.shape()[held];
    let at = app.cursor.selected.get(axis, length);
    let group = app.cursor.selected.group();
    let more = match axis {
        Axis::Head if group > 1 => format!(" (kv head {})", at / group),
        Axis::KvHead if group > 1 => format!(" (of heads {}-{})", at * group, at * group + group - 1),
        axis => labels::text_of(app, axis, at).map_or(String::new(), |text| format!(" {text}")),
    };
    let position = if axis == Axis::Token { labels::position_of(app, at) } else { String::new() };
    vec![
        Piece::whole(labels::one_of(labels::name(axis), at, length), style),
        Piece::whole(position, style).rank(2),
        // A token's text can be cut; the numbers of heads cannot be cut.
        if labels::has_text(axis) { Piece::words(more, style) } else { Piece::whole(more, style) }.rank(3),
    ]
}
