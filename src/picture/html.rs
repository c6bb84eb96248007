//! A screen as an HTML page with one block of text.

use std::fmt::Write;

use ratatui::buffer::Buffer;

use super::look::{self, Look, Paper, escaped, hex};

/// Returns the whole page.
pub(super) fn write(screen: &Buffer, paper: Paper) -> String {
    let (ink, ground) = (hex(paper.ink()), hex(paper.background()));
    let mut page = format!(
        "<!doctype html>\n<meta charset=\"utf-8\">\n<title>llama-trace</title>\n\
         <pre style=\"display:inline-block;margin:0;padding:8px;color:{ink};background:{ground};\
         font:14px/1.25 'DejaVu Sans Mono',Menlo,Consolas,monospace\">"
    );
    for y in 0..screen.area.height {
        let mut open: Option<Look> = None;
        for (_, _, cell) in look::row(screen, y) {
            let look = Look::of(cell, paper);
            if open != Some(look) {
                page.push_str(if open.is_some() { "</span>" } else { "" });
                // Writing to a string cannot fail.
                let _ = write!(page, "<span style=\"{}\">", style(look));
                open = Some(look);
            }
            page.push_str(&escaped(cell.symbol()));
        }
        page.push_str(if open.is_some() { "</span>\n" } else { "\n" });
    }
    page.push_str("</pre>\n");
    page
}

fn style(look: Look) -> String {
    let mut style = format!("color:{}", hex(look.ink));
    if let Some(ground) = look.background {
        style += &format!(";background:{}", hex(ground));
    }
    for (is_so, rule) in [
        (look.bold, ";font-weight:bold"),
        (look.italic, ";font-style:italic"),
        (look.underlined, ";text-decoration:underline"),
    ] {
        style += if is_so { rule } else { "" };
    }
    style
}
