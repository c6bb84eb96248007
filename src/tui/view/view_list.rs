//! The popup with the list of views: those of the current step with their numbers, then the views of other steps.

use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::style::Style;
use ratatui::widgets::Widget;

use llama_trace_core::trace::Step;

use super::super::app::App;
use super::super::text;
use super::kind::View;
use super::paint::{inside, popup, put};
use super::views::{VIEWS, fitting};

/// The popup.
#[derive(Debug)]
pub(crate) struct ViewList<'a>(pub &'a App);

/// Columns of a view's number and mark (`NUMBER`), and of its name with the space after it (`NAME`).
const NUMBER: u16 = 4;
const NAME: u16 = 13;
/// Columns of the popup.
const WIDTH: u16 = 46;

/// The target of a click.
pub(crate) enum Clicked {
    /// A view of this step.
    View(&'static str),
    /// Another part of the popup.
    Inside,
    /// Another part of the screen.
    Outside,
}

/// The views that cannot show `step`.
fn others(step: Step) -> impl Iterator<Item = &'static dyn View> {
    VIEWS.iter().copied().filter(move |view| !view.fits(step))
}

/// The place of the popup. It covers the outline, so that most of the tensor stays visible.
fn place(app: &App, area: Rect) -> Rect {
    let step = app.place().step;
    let lines = fitting(step).count() + 1 + others(step).count();
    let height = (lines as u16 + 2).min(area.height.saturating_sub(4));
    Rect { x: area.x, y: area.y + area.height.min(3), width: WIDTH.min(area.width), height }
        .intersection(area)
}

/// The target of a click at a column and a row of the screen.
pub(crate) fn click(app: &App, x: u16, y: u16) -> Clicked {
    let place = place(app, app.panels.size);
    if !place.contains(Position { x, y }) {
        return Clicked::Outside;
    }
    let inner = inside(place);
    let line = y.checked_sub(inner.y).filter(|&line| line < inner.height);
    let view = line.and_then(|line| fitting(app.place().step).nth(line.into()));
    view.map_or(Clicked::Inside, |view| Clicked::View(view.name()))
}

/// The steps of this pass that `view` can show: "probs, nucleus".
fn steps(app: &App, view: &dyn View) -> String {
    let walk = app.walk();
    let steps = walk.start.iter().chain(walk.of_layers()).chain(&walk.end).filter(|&&step| view.fits(step));
    steps.map(|step| step.name()).collect::<Vec<_>>().join(", ")
}

impl Widget for ViewList<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let (app, theme) = (self.0, self.0.theme);
        let (step, now) = (app.place().step, app.view().name());
        let inner = popup(buf, place(app, area), &format!(" views of {} ", step.name()), theme);
        let mut y = 0;
        for (number, view) in (1..).zip(fitting(step)) {
            let (mark, style) =
                if view.name() == now { ("▸", theme.current()) } else { (" ", Style::new()) };
            put(buf, inner, 0, y, &format!("{mark}{number}"), theme.key());
            put(buf, inner, NUMBER, y, view.name(), style);
            y += 1;
        }
        let count = others(step).count();
        let room = usize::from(inner.height.saturating_sub(y + 1));
        let heading = match room {
            0 => format!("and {count} views of other steps"),
            _ => "views of other steps:".to_owned(),
        };
        put(buf, inner, 0, y, &heading, theme.dim());
        for (at, view) in others(step).enumerate().take(room) {
            y += 1;
            if at + 1 == room && count > room {
                put(buf, inner, NUMBER, y, &format!("… and {} more", count - at), theme.dim());
                break;
            }
            put(buf, inner, NUMBER, y, view.name(), theme.dim());
            let x = NUMBER + NAME;
            let columns = usize::from(inner.width.saturating_sub(x));
            put(buf, inner, x, y, &text::cut(&steps(app, view), columns), theme.dim());
        }
    }
}
