//! The footer: the most useful keys of the key table, as many as fit. The message box above it is here too.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::widgets::Widget;

use llama_trace_core::error::printable;
use llama_trace_core::trace::Axis;

use super::super::action::BINDINGS;
use super::super::app::App;
use super::super::goto::is_edit;
use super::super::input::Mode;
use super::super::panel_state::Focus;
use super::super::text;
use super::labels;
use super::lesson;
use super::paint::{clear, put};

/// The footer, the last line of the screen.
#[derive(Debug)]
pub struct Footer<'a>(pub &'a App);

/// Priority, keys and word of each entry, in the order of the key table. Neighbours with the same word are one entry.
fn entries() -> Vec<(u8, String, &'static str)> {
    let mut entries: Vec<(u8, String, &'static str)> = Vec::new();
    for binding in BINDINGS.iter().filter(|binding| binding.rank > 0) {
        let Some(key) = binding.keys.first() else { continue };
        match entries.last_mut() {
            Some((_, keys, word)) if *word == binding.word => {
                keys.push(' ');
                keys.push_str(&key.label());
            }
            _ => entries.push((binding.rank, key.label(), binding.word)),
        }
    }
    entries
}

/// The word for `]` and `[`; none if no axis is held and the step has no merged heads.
fn slices(app: &App) -> Option<&'static str> {
    let axes = app.place().step.axes();
    match app.cut().held.map(|held| axes[held]) {
        Some(Axis::Head | Axis::KvHead) => Some("head"),
        // The entry of `t` already has the word "token".
        Some(Axis::Token) => Some("which token"),
        Some(axis) => Some(labels::name(axis)),
        None => axes.contains(&Axis::HeadsMerged).then_some("head"),
    }
}

/// The view's own keys and the entries that fit beside them, in the order of the key table. Entries of high priority
/// are kept before others.
fn fitting(app: &App, width: usize) -> Vec<(String, String)> {
    let mut entries = entries();
    match slices(app) {
        Some(word) => entries.iter_mut().filter(|entry| entry.2 == "head").for_each(|entry| entry.2 = word),
        None => entries.retain(|entry| entry.2 != "head"),
    }
    if app.skips_reshapes {
        entries.iter_mut().filter(|entry| entry.2 == "step").for_each(|entry| entry.2 = "step, no reshapes");
    }
    // During a comparison there are keys to close it and to subtract.
    let compared = app.compared().map(|_| {
        let other = if app.comparison.subtracts { ("d", "both") } else { ("d", "difference") };
        [(if app.lesson.is_some() { "c" } else { "c Esc" }, "close"), other]
    });
    // A view that is covered by another panel takes no keys.
    let keys = if app.layout().is_some() { app.view().keys() } else { &[] };
    let own: Vec<_> = keys.iter().copied().chain(compared.into_iter().flatten()).collect();
    let letters = |keys: &str| -> Vec<String> { keys.split(' ').map(str::to_owned).collect() };
    let taken: Vec<String> = own.iter().flat_map(|(keys, _)| letters(keys)).collect();
    entries.retain(|(_, keys, _)| !letters(keys).iter().any(|key| taken.contains(key)));
    let own: Vec<(u8, String, &'static str)> =
        own.into_iter().map(|(keys, word)| (0, keys.to_owned(), word)).collect();
    // The view's keys come after the step keys. Quit and help stay last.
    let first = entries.len().min(1);
    entries.splice(first..first, own);
    if app.lesson.is_some() {
        // Help and the way out come before the keys of the view, because Space walks and not `n`.
        for (rank, _, word) in &mut entries {
            *rank = match *word {
                "help" | "quit" => 0,
                "go to" => 1,
                _ => rank.saturating_add(2),
            };
        }
    }
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_by_key(|&i| entries[i].0);
    let mut room = width.saturating_sub(1);
    let mut kept = Vec::new();
    for i in order {
        let (_, keys, word) = &entries[i];
        let needed = text::width(keys) + text::width(word) + 3;
        if needed > room {
            break;
        }
        room -= needed;
        kept.push(i);
    }
    kept.sort_unstable();
    kept.into_iter().map(|i| (entries[i].1.clone(), entries[i].2.to_owned())).collect()
}

impl Widget for Footer<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let theme = self.0.theme;
        let fixed = |entries: &[(&str, &str)]| {
            entries.iter().map(|&(keys, word)| (keys.to_owned(), word.to_owned())).collect()
        };
        let entries: Vec<(String, String)> = match self.0.mode() {
            Mode::Walk if self.0.focus() == Focus::Derivation => fixed(&[
                ("↑ ↓ ← →", "pick"),
                ("Enter", "go"),
                ("Backspace", "back"),
                ("z", "zoom"),
                ("Tab", "panel"),
                ("Esc", "close"),
                ("?", "help"),
            ]),
            Mode::Walk if lesson::keys(self.0).is_some() => {
                let own = lesson::keys(self.0).unwrap_or_default();
                let mut entries: Vec<(String, String)> = fixed(&own);
                let presents = self.0.lesson.as_ref().is_some_and(|lesson| lesson.presents);
                let used: usize =
                    entries.iter().map(|(keys, word)| text::width(keys) + text::width(word) + 3).sum();
                // The spaces after the last entry may be cut.
                let room = (usize::from(area.width) + 2).saturating_sub(used);
                if !presents {
                    let fits = fitting(self.0, room).into_iter();
                    entries.extend(fits.filter(|(keys, _)| own.iter().all(|(other, _)| other != keys)));
                }
                entries
            }
            Mode::Answer(typed) => {
                let mut x = 1 + put(buf, area, 1, 0, "your answer: ", theme.key());
                x += put(buf, area, x, 0, &printable(typed), theme.strong());
                x += put(buf, area, x, 0, " ", theme.current());
                put(buf, area, x, 0, "   Enter checks it · Esc cancels", theme.dim());
                return;
            }
            Mode::Walk => fitting(self.0, area.width.into()),
            Mode::Help(..) => fixed(&[("↑ ↓", "scroll"), ("a word", "finds"), ("Esc ?", "close")]),
            Mode::Views(_) => fixed(&[
                ("↑ ↓ v", "choose"),
                ("1 … 9", "choose and close"),
                ("Enter", "keep"),
                ("Esc", "back"),
            ]),
            Mode::Chapters(_) => fixed(&[("↑ ↓", "choose"), ("Enter", "go"), ("Esc", "close")]),
            Mode::Mark | Mode::Return => fixed(&[("a letter", ""), ("Esc", "cancel")]),
            Mode::Branches(_) => {
                fixed(&[("↑ ↓", "choose"), ("Enter", "go there"), ("c", "side by side"), ("Esc", "close")])
            }
            Mode::Edits(_) => fixed(&[("↑ ↓", "choose"), ("Enter", "on or off"), ("Esc", "close")]),
            Mode::Goto(line) if is_edit(&line.text) => {
                fixed(&[("Tab", "widen"), ("Enter", "run"), ("Esc", "cancel")])
            }
            Mode::Goto(_) => {
                fixed(&[("↑ ↓", "choose"), ("Tab", "complete"), ("Enter", "go"), ("Esc", "cancel")])
            }
        };
        let mut x = 1;
        for (keys, word) in entries {
            x += put(buf, area, x, 0, &keys, theme.key());
            x += put(buf, area, x, 0, &format!(" {word}  "), Style::new());
        }
    }
}

/// The message above the footer, in as many lines as it needs.
#[derive(Debug)]
pub struct MessageBox<'a>(pub &'a App);

impl Widget for MessageBox<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let Some(message) = self.0.message() else { return };
        let lines = text::wrap(&message.text, usize::from(area.width).saturating_sub(2));
        let height = (lines.len() as u16).min(area.height.saturating_sub(1));
        let place = Rect { y: area.bottom().saturating_sub(1 + height), height, ..area }.intersection(area);
        clear(buf, place);
        let theme = self.0.theme;
        let style = if message.failure { theme.error() } else { theme.strong() };
        for (y, line) in lines.iter().enumerate() {
            put(buf, place, 0, y as u16, &text::left(&format!(" {line}"), place.width.into()), style);
        }
    }
}
