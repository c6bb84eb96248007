//! The popup of the edits: all edits of the runs, and which of them the shown run has.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::widgets::Widget;

use llama_trace_core::error::printable;

use super::super::edit_list::EditList;
use super::super::text;
use super::super::theme::Theme;
use super::paint::{popup, put};

/// The popup.
#[derive(Debug)]
pub struct EditsPopup<'a> {
    /// The theme.
    pub theme: Theme,
    /// The list.
    pub list: &'a EditList,
}

impl Widget for EditsPopup<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let Self { theme, list } = self;
        let width = area.width.saturating_sub(4);
        let height = (list.rows.len() as u16 + 3).min(area.height.saturating_sub(2));
        let place = Rect { x: area.x + area.width.min(2), y: area.y + area.height.min(2), width, height }
            .intersection(area);
        let inner = popup(buf, place, " edits ", theme);
        let listed = usize::from(inner.height.saturating_sub(1));
        let first = (list.chosen + 1).saturating_sub(listed.max(1));
        for (y, (at, (edit, on))) in (0..).zip(list.rows.iter().enumerate().skip(first).take(listed)) {
            let style = if at == list.chosen { theme.current() } else { Style::new() };
            let line = format!("[{}] {}", if *on { "x" } else { " " }, printable(edit));
            put(buf, inner, 0, y, &text::cut(&line, inner.width.into()), style);
        }
        let note = "x: this run has the edit · Enter runs the prompt with or without it";
        put(buf, inner, 0, inner.height.saturating_sub(1), note, theme.dim());
    }
}
