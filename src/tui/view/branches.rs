//! The popup of the branches: their names, branching points, and the texts after those points.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::widgets::Widget;

use llama_trace_core::error::printable;
use llama_trace_core::trace::Run;

use super::super::branch_list::{BranchList, BranchRow};
use super::super::fit::Piece;
use super::super::text;
use super::super::theme::Theme;
use super::paint::{popup, put, put_fit};

/// The popup.
#[derive(Debug)]
pub struct BranchesPopup<'a> {
    /// The theme.
    pub theme: Theme,
    /// The list.
    pub list: &'a BranchList,
}

/// Columns of a run's name, and fewest columns of its branching point or its edits.
const NAME: u16 = 8;
const PARTS: u16 = 24;
/// Columns of the text before the branching point.
const BEFORE: usize = 16;

/// The end of `texts`, as much of it as fits into `columns`.
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

fn name(row: &BranchRow) -> String {
    match row.sequence {
        (_, 0 | 1) => row.run.to_string(),
        (sequence, _) => format!("{}:s{sequence}", row.run),
    }
}

fn parts(row: &BranchRow) -> String {
    match row.parent {
        Some((of, pass)) if row.same_token => format!("same as {of} after p{pass}"),
        Some((of, pass)) => format!("forks from {of} after p{pass}"),
        None => {
            let prompt = match row.other_prompt {
                _ if row.run == Run::ITSELF => "the original run",
                true => "another prompt",
                false if row.edits.is_empty() => "the same prompt",
                false => "",
            };
            let parts = [prompt, &*printable(&row.edits)];
            parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
        }
    }
}

impl Widget for BranchesPopup<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let Self { theme, list } = self;
        let width = area.width.saturating_sub(4);
        let height = (list.rows.len() as u16 + 4).min(area.height.saturating_sub(2));
        let place = Rect { x: area.x + area.width.min(2), y: area.y + area.height.min(2), width, height }
            .intersection(area);
        let inner = popup(buf, place, " branches ", theme);
        let longest = list.rows.iter().map(|row| text::width(&parts(row)) as u16 + 1).max().unwrap_or(0);
        let column = longest.min(inner.width / 2).max(PARTS);
        let listed = usize::from(inner.height.saturating_sub(1));
        let first = (list.chosen + 1).saturating_sub(listed.max(1));
        for (y, (at, row)) in (0..).zip(list.rows.iter().enumerate().skip(first).take(listed)) {
            let chosen = at == list.chosen;
            let style = if chosen { theme.current() } else { Style::new() };
            let mark = if row.shown { "▸" } else { " " };
            put(buf, inner, 0, y, &format!("{mark}{}", name(row)), style);
            put(buf, inner, NAME, y, &text::cut(&parts(row), usize::from(column) - 1), theme.dim());
            let before = end(&row.before, BEFORE);
            let after: String = row.after.iter().map(|token| text::visible(token)).collect();
            let pieces = [
                Piece::whole(text::right(&before, BEFORE), theme.dim()),
                Piece::whole(if row.branched { "║" } else { "→" }, theme.key()),
                Piece::words(after, theme.token()),
            ];
            put_fit(buf, inner, NAME + column, y, &pieces);
        }
        let (parted, whole) =
            (list.rows.iter().any(|one| one.branched), list.rows.iter().any(|one| !one.branched));
        let note = match (list.rows.len(), parted, whole) {
            (0 | 1, ..) => "b in the sampler view, or on a token of logits or probs, makes a branch",
            (_, true, true) => "║ fork · → end of the prompt · ▸ shown · Enter goes there, c: both",
            (_, true, false) => "║ is the fork; ▸ is the shown run; Enter goes there, c shows both",
            (_, false, _) => "→ is the end of a prompt; ▸ is the shown run; Enter goes there, c shows both",
        };
        put(buf, inner, 0, inner.height.saturating_sub(1), note, theme.dim());
    }
}
