//! The first line: what model, and where in the pass; and the rule that names the panels.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::widgets::Widget;

use crate::error::printable;
use crate::trace::Status;

use super::super::app::{App, Focus};
use super::super::text;
use super::Panels;
use super::paint::{put, put_all};

/// The first line.
#[derive(Debug)]
pub struct Title<'a>(pub &'a App);

impl Widget for Title<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let app = self.0;
        let theme = app.theme;
        let walk = app.walk();
        let place = app.place();
        let kind = if place.pass == 0 { "prefill" } else { "decode" };
        let layer = match place.layer {
            Some(layer) => format!("layer {layer} of 0-{}", walk.layers.saturating_sub(1)),
            None if walk.start.contains(&place.step) => "before the layers".to_owned(),
            None => "after the layers".to_owned(),
        };
        let step = format!("step {} of {}", walk.number(place) + 1, walk.len());
        let here = format!("pass {} ({kind}) · {layer} · {step} ", place.pass);
        let card = &app.outline().card;
        // While something is computed, that is worth more room than the model's name.
        let (first, second) = match &app.status {
            Status::Working(what) => (format!(" {what} …"), String::new()),
            // What is not the model's own goes first: there is always room for its beginning.
            Status::Idle if !card.ignored.is_empty() => (
                format!(" without {} · {}", text::visible(&card.ignored.join(", ")), printable(&card.name)),
                format!("  {} · {}", card.backend, card.precision),
            ),
            Status::Idle => {
                (format!(" {}", printable(&card.name)), format!("  {} · {}", card.backend, card.precision))
            }
        };
        let room = usize::from(area.width).saturating_sub(text::width(&here) + 1);
        let first = text::cut(&first, room);
        let second = text::cut(&second, room.saturating_sub(text::width(&first)));
        put_all(buf, area, 0, 0, &[(first, theme.strong()), (second, theme.dim())]);
        put(buf, area, area.width.saturating_sub(text::width(&here) as u16), 0, &here, theme.strong());
    }
}

/// The rules: one below the tokens, with the panels' names, and one between each two panels.
#[derive(Debug)]
pub struct Rules<'a> {
    /// The application.
    pub app: &'a App,
    /// Where the panels are.
    pub panels: Panels,
}

impl Widget for Rules<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let Self { app, panels } = self;
        let theme = app.theme;
        put(buf, area, 0, 0, &"─".repeat(area.width.into()), theme.dim());
        let named = [
            (panels.outline, Focus::Outline, "outline"),
            (panels.middle, Focus::Tensor, "tensor"),
            (panels.notes, Focus::Notes, "notes"),
        ];
        let whole = app.size;
        for (panel, focus, name) in named {
            let Some(panel) = panel else { continue };
            put(buf, area, panel.x + 1, 0, &format!(" {name} "), theme.heading(app.focus() == focus));
            if panel.x > 0 {
                put(buf, area, panel.x - 1, 0, "┬", theme.dim());
                for y in panel.y..panel.bottom() {
                    put(buf, whole, panel.x - 1, y, "│", theme.dim());
                }
            }
        }
    }
}
