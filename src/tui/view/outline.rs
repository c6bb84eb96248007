//! The outline panel: passes, layers and steps. The current pass and layer are unfolded; each other pass or layer is
//! one line.

use std::cmp::Ordering;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::widgets::Widget;

use llama_trace_core::trace::Step;

use super::super::app::App;
use super::super::place::{Place, Walk};
use super::super::text;
use super::paint::put;

/// The outline.
#[derive(Debug)]
pub struct OutlinePanel<'a>(pub &'a App);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Pass(usize),
    Layer(usize),
    Step(Place),
}

/// All lines, without texts. The texts are made for the visible lines only.
fn entries(app: &App) -> Vec<Entry> {
    let here = app.place();
    let mut entries = Vec::new();
    for pass in 0..app.outline().passes.len() {
        entries.push(Entry::Pass(pass));
        if pass != here.pass {
            continue;
        }
        let walk = Walk::new(app.outline(), pass);
        let once = |step: &Step| Entry::Step(walk.place(None, *step));
        entries.extend(walk.start.iter().map(once));
        for layer in 0..walk.layers {
            entries.push(Entry::Layer(layer));
            if here.layer == Some(layer) {
                let within = |step: &Step| Entry::Step(walk.place(Some(layer), *step));
                entries.extend(walk.layer(layer).iter().map(within));
            }
        }
        entries.extend(walk.end.iter().map(once));
    }
    entries
}

/// The first line to show on a panel of this height. With it, the current line is a third from the top.
fn first(entries: &[Entry], here: Place, height: usize) -> usize {
    let current = entries.iter().position(|entry| *entry == Entry::Step(here)).unwrap_or(0);
    current.saturating_sub(height / 3).min(entries.len().saturating_sub(height))
}

/// The place at row `y` of the screen.
pub fn place_at(app: &App, area: Rect, y: u16) -> Option<Place> {
    let entries = entries(app);
    let first = first(&entries, app.place(), area.height.into());
    let here = app.place();
    match *entries.get(first + usize::from(y.checked_sub(area.y)?))? {
        Entry::Step(place) => Some(place),
        Entry::Pass(pass) => Some(Walk::new(app.outline(), pass).same(here)),
        Entry::Layer(layer) => {
            let walk = app.walk();
            let step = if here.layer.is_some() { here.step } else { *walk.layer(layer).first()? };
            Some(walk.same(Place { layer: Some(layer), step, ..here }))
        }
    }
}

impl Widget for OutlinePanel<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let app = self.0;
        let theme = app.theme;
        let here = app.place();
        let entries = entries(app);
        let first = first(&entries, here, area.height.into());
        let width = usize::from(area.width);
        for (y, entry) in entries.iter().skip(first).take(area.height.into()).enumerate() {
            let open = |yes: bool| if yes { "▾" } else { "▸" };
            let (name, detail, style) = match *entry {
                Entry::Pass(pass) => {
                    let name = app.outline.passes.get(pass).map_or("", |pass| pass.dims.kind());
                    let line = format!("{} pass {pass} {name}", open(pass == here.pass));
                    (line, pass_detail(app, pass), theme.strong())
                }
                Entry::Layer(layer) => {
                    let open_here = here.layer == Some(layer);
                    let style = if open_here { theme.strong() } else { theme.dim() };
                    (format!(" {} layer {layer}", open(open_here)), String::new(), style)
                }
                Entry::Step(place) => {
                    let indent = match (place == here, place.layer.is_some()) {
                        (true, true) => " • ",
                        (true, false) => "• ",
                        (false, true) => "   ",
                        (false, false) => "  ",
                    };
                    let style = match place.step {
                        Step::Stage(_) => ratatui::style::Style::new(),
                        Step::View(_) => theme.view(),
                    };
                    (format!("{indent}{}", place.step.name()), shape(app, place.step), style)
                }
            };
            let current = *entry == Entry::Step(here);
            // A shape is shown as a whole or not at all. It has a space before it, and a space after it if there is
            // room.
            let room = width.saturating_sub(text::width(&name) + 1);
            let detail = match text::width(&detail).cmp(&room) {
                Ordering::Less => text::right(&detail, room) + " ",
                Ordering::Equal => detail,
                Ordering::Greater => String::new(),
            };
            let line = text::left(&name, width.saturating_sub(text::width(&detail)));
            let y = y as u16;
            let x = put(buf, area, 0, y, &line, if current { theme.current() } else { style });
            put(buf, area, x, y, &detail, if current { theme.current() } else { theme.dim() });
        }
    }
}

fn pass_detail(app: &App, pass: usize) -> String {
    let Some(pass) = app.outline().passes.get(pass) else { return String::new() };
    match &pass.tokens[..] {
        [token] => text::cut(&text::visible(&token.text), 10),
        tokens => format!("{} tokens", tokens.len()),
    }
}

fn shape(app: &App, step: Step) -> String {
    let shape = app.outline().card.sizes().shape(step.axes(), app.dims());
    let lengths: Vec<_> = shape.iter().map(usize::to_string).collect();
    format!("({})", lengths.join(","))
}
