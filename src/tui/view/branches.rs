//! The list of branches: which there are, where they part, and their texts from there on.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::widgets::{Block, Widget};

use llama_trace_core::trace::Run;

use super::super::courses::{Course, Courses};
use super::super::fit::Piece;
use super::super::text;
use super::super::theme::Theme;
use super::paint::{clear, put, put_fit};

/// The popup.
#[derive(Debug)]
pub struct BranchesPopup<'a> {
    /// Its colours.
    pub theme: Theme,
    /// The list.
    pub list: &'a Courses,
}

/// Columns of a run's name and of where it parts.
const NAME: u16 = 8;
const PARTS: u16 = 24;
/// Columns of the text before it parts.
const BEFORE: usize = 16;

/// The end of `texts` that fits into `columns`.
fn end(texts: &[String], columns: usize) -> String {
    let mut shown = String::new();
    for token in texts.iter().rev() {
        let longer = text::visible(token) + &shown;
        if text::width(&longer) + 1 > columns {
            return format!("…{shown}");
        }
        shown = longer;
    }
    shown
}

fn name(course: &Course) -> String {
    match course.sequence {
        (_, 0 | 1) => course.run.to_string(),
        (sequence, _) => format!("{}:s{sequence}", course.run),
    }
}

fn parts(course: &Course) -> String {
    match course.parts {
        Some((of, pass)) if course.same => format!("as {of} after p{pass}"),
        Some((of, pass)) => format!("parts from {of} after p{pass}"),
        None if course.run == Run::ITSELF => "the run itself".to_owned(),
        None if !course.without.is_empty() => {
            format!("without {}", text::visible(&course.without.join(", ")))
        }
        None => "another prompt".to_owned(),
    }
}

impl Widget for BranchesPopup<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let Self { theme, list } = self;
        let width = area.width.saturating_sub(4);
        let height = (list.all.len() as u16 + 4).min(area.height.saturating_sub(2));
        let place = Rect { x: area.x + area.width.min(2), y: area.y + area.height.min(2), width, height }
            .intersection(area);
        clear(buf, place);
        Block::bordered().title(" branches ").border_style(theme.dim()).render(place, buf);
        let inner = Rect {
            x: place.x + place.width.min(2),
            y: place.y + place.height.min(1),
            width: place.width.saturating_sub(4),
            height: place.height.saturating_sub(2),
        };
        let listed = usize::from(inner.height.saturating_sub(1));
        let first = (list.chosen + 1).saturating_sub(listed.max(1));
        for (y, (at, course)) in (0..).zip(list.all.iter().enumerate().skip(first).take(listed)) {
            let chosen = at == list.chosen;
            let style = if chosen { theme.current() } else { Style::new() };
            let mark = if course.shown { "▸" } else { " " };
            put(buf, inner, 0, y, &format!("{mark}{}", name(course)), style);
            put(buf, inner, NAME, y, &parts(course), theme.dim());
            let before = end(&course.before, BEFORE);
            let after: String = course.after.iter().map(|token| text::visible(token)).collect();
            let pieces = [
                Piece::whole(text::right(&before, BEFORE), theme.dim()),
                Piece::whole(if course.parted { "║" } else { "→" }, theme.key()),
                Piece::words(after, theme.token()),
            ];
            put_fit(buf, inner, NAME + PARTS, y, &pieces);
        }
        let (parted, whole) = (list.all.iter().any(|one| one.parted), list.all.iter().any(|one| !one.parted));
        let note = match (list.all.len(), parted, whole) {
            (0 | 1, ..) => "b in the sampler view, or on a token of logits or probs, makes a branch",
            (_, true, true) => "║ they part · → prompt ends · ▸ is shown · Enter goes there, c: both",
            (_, true, false) => "║ is where they part; ▸ is shown; Enter goes there, c shows both",
            (_, false, _) => "→ is where a prompt ends; ▸ is shown; Enter goes there, c shows both",
        };
        put(buf, inner, 0, inner.height.saturating_sub(1), note, theme.dim());
    }
}
