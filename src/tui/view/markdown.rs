//! Markdown as lines of a given width. Only the forms that the chapters use are supported.

use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};

use super::super::text;
use super::super::theme::Theme;

/// `source` in lines of at most `width` columns, without HTML comments and tags.
pub fn render(source: &str, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let mut writer = Writer { width: width.max(8), theme, ..Writer::new(theme) };
    for event in Parser::new_ext(source, Options::ENABLE_TABLES) {
        writer.event(event);
    }
    writer.flush();
    while writer.lines.last().is_some_and(|line| line.width() == 0) {
        writer.lines.pop();
    }
    writer.lines
}

/// The lines as a screen of that width. Its height is the number of lines.
pub fn page(source: &str, width: u16, theme: Theme) -> Buffer {
    let lines = render(source, width.into(), theme);
    let mut page = Buffer::empty(Rect::new(0, 0, width, lines.len().try_into().unwrap_or(u16::MAX)));
    for (line, y) in lines.iter().zip(0..page.area.height) {
        page.set_line(0, y, line, width);
    }
    page
}

struct Writer {
    lines: Vec<Line<'static>>,
    width: usize,
    theme: Theme,
    /// The paragraph so far.
    spans: Vec<(String, Style)>,
    styles: Vec<Style>,
    /// The next number of each list level; none for an unordered list.
    lists: Vec<Option<u64>>,
    /// The list mark at the beginning of the next line.
    mark: Option<String>,
    quotes: usize,
    code: bool,
    /// The HTML block so far.
    html: String,
    table: Option<Vec<Vec<String>>>,
}

impl Writer {
    fn new(theme: Theme) -> Self {
        Self {
            lines: Vec::new(),
            width: 0,
            theme,
            spans: Vec::new(),
            styles: Vec::new(),
            lists: Vec::new(),
            mark: None,
            quotes: 0,
            code: false,
            html: String::new(),
            table: None,
        }
    }

    fn style(&self) -> Style {
        self.styles.iter().fold(Style::new(), |all, style| all.patch(*style))
    }

    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(&tag),
            Event::End(tag) => self.end(tag),
            Event::Text(content) if self.code => {
                content.lines().for_each(|line| self.code_line(line));
            }
            Event::Text(content) => self.push(&content, self.style()),
            Event::Code(content) | Event::InlineMath(content) | Event::DisplayMath(content) => {
                self.push(&content, self.style().patch(self.theme.code()));
            }
            // The lines of a block are events of their own, and a comment may have several lines.
            Event::Html(html) => self.html.push_str(&html),
            Event::InlineHtml(html) => self.html_text(&html),
            Event::SoftBreak => self.push(" ", Style::new()),
            Event::HardBreak => self.flush(),
            Event::Rule => {
                self.flush();
                self.lines.push(Line::styled("─".repeat(self.width), self.theme.dim()));
                self.gap();
            }
            Event::FootnoteReference(_) | Event::TaskListMarker(_) => {}
        }
    }

    fn html_text(&mut self, html: &str) {
        let content = without_tags(html);
        if !content.trim().is_empty() {
            self.push(content.trim_end_matches('\n'), self.theme.strong());
        }
    }

    fn push(&mut self, content: &str, style: Style) {
        let cell = self.table.as_mut().and_then(|rows| rows.last_mut()).and_then(|row| row.last_mut());
        match cell {
            Some(cell) => cell.push_str(content),
            None => self.spans.push((content.to_owned(), style)),
        }
    }

    fn start(&mut self, tag: &Tag<'_>) {
        match tag {
            Tag::Heading { level, .. } => {
                self.flush();
                let style =
                    if *level <= HeadingLevel::H2 { self.theme.heading(false) } else { self.theme.strong() };
                self.styles.push(style);
            }
            Tag::Emphasis => self.styles.push(Style::new().add_modifier(Modifier::ITALIC)),
            Tag::Strong => self.styles.push(self.theme.strong()),
            Tag::BlockQuote(_) => {
                self.flush();
                self.quotes += 1;
            }
            Tag::CodeBlock(kind) => {
                self.flush();
                self.code = true;
                if let CodeBlockKind::Fenced(language) = kind {
                    // Words after the language are for programs. Commands have a `$` of their own.
                    let language = language.split_whitespace().next().unwrap_or_default();
                    if !["", "console", "text"].contains(&language) {
                        self.lines.push(Line::styled(format!("  [{language}]"), self.theme.dim()));
                    }
                }
            }
            Tag::List(first) => {
                self.flush();
                self.lists.push(*first);
            }
            Tag::Item => {
                self.flush();
                self.mark = Some(match self.lists.last_mut() {
                    Some(Some(number)) => {
                        *number += 1;
                        format!("{}. ", *number - 1)
                    }
                    _ => "• ".to_owned(),
                });
            }
            Tag::Table(_) => {
                self.flush();
                self.table = Some(Vec::new());
            }
            Tag::TableHead | Tag::TableRow => {
                if let Some(rows) = &mut self.table {
                    rows.push(Vec::new());
                }
            }
            Tag::TableCell => {
                if let Some(row) = self.table.as_mut().and_then(|rows| rows.last_mut()) {
                    row.push(String::new());
                }
            }
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Paragraph | TagEnd::HtmlBlock => {
                let html = std::mem::take(&mut self.html);
                self.html_text(&html);
                self.flush();
                if self.lists.is_empty() {
                    self.gap();
                }
            }
            TagEnd::Heading(_) => {
                self.flush();
                self.styles.pop();
                self.gap();
            }
            TagEnd::Emphasis | TagEnd::Strong => drop(self.styles.pop()),
            TagEnd::BlockQuote(_) => {
                self.flush();
                self.quotes = self.quotes.saturating_sub(1);
            }
            TagEnd::CodeBlock => {
                self.code = false;
                self.gap();
            }
            TagEnd::Item => self.flush(),
            TagEnd::List(_) => {
                self.flush();
                self.lists.pop();
                if self.lists.is_empty() {
                    self.gap();
                }
            }
            TagEnd::Table => {
                if let Some(rows) = self.table.take() {
                    self.write_table(&rows);
                    self.gap();
                }
            }
            _ => {}
        }
    }

    /// Writes a line of code, indented. If it is too long, its continuation lines are indented further.
    fn code_line(&mut self, line: &str) {
        let code = line.trim_start();
        let indent = 2 + (line.len() - code.len()).min(self.width / 2);
        let parts = match indent + text::width(code) <= self.width {
            true => vec![code.to_owned()],
            false => text::wrap(&glued(code), self.width.saturating_sub(indent + 2).max(8)),
        };
        for (i, part) in parts.iter().enumerate() {
            let space = " ".repeat(indent + if i == 0 { 0 } else { 2 });
            self.lines.push(Line::styled(space + &part.replace(GLUE, " "), self.theme.code()));
        }
        if code.is_empty() {
            self.lines.push(Line::default());
        }
    }

    fn gap(&mut self) {
        if self.lines.last().is_some_and(|line| line.width() > 0) {
            self.lines.push(Line::default());
        }
    }

    /// Writes the paragraph so far, wrapped.
    fn flush(&mut self) {
        let spans = std::mem::take(&mut self.spans);
        if spans.iter().all(|(content, _)| content.trim().is_empty()) {
            return;
        }
        let quote = "│ ".repeat(self.quotes);
        let nested = "  ".repeat(self.lists.len().saturating_sub(1));
        let mark = self.mark.take();
        let hang = " ".repeat(mark.as_deref().map_or(if self.lists.is_empty() { 0 } else { 2 }, text::width));
        let mut line = vec![Span::styled(quote.clone(), self.theme.dim())];
        line.push(Span::raw(nested.clone() + mark.as_deref().unwrap_or(&hang)));
        let indent = text::width(&quote) + text::width(&nested) + text::width(&hang);
        let room = self.width.saturating_sub(indent).max(1);
        let mut used = 0;
        let mut next_line = |line: &mut Vec<Span<'static>>| {
            let fresh =
                vec![Span::styled(quote.clone(), self.theme.dim()), Span::raw(nested.clone() + &hang)];
            self.lines.push(Line::from(std::mem::replace(line, fresh)));
        };
        for word in words(&spans) {
            let whole: usize = word.iter().map(|(piece, _)| text::width(piece)).sum();
            if used > 0 && used + 1 + whole > room {
                next_line(&mut line);
                used = 0;
            } else if used > 0 {
                line.push(Span::styled(" ", word[0].1));
                used += 1;
            }
            for (piece, style) in word {
                // A word is broken only if it is wider than the line.
                for part in text::wrap(piece, room) {
                    let needed = text::width(&part);
                    if used > 0 && used + needed > room {
                        next_line(&mut line);
                        used = 0;
                    }
                    used += needed;
                    line.push(Span::styled(part, style));
                }
            }
        }
        self.lines.push(Line::from(line));
    }

    /// Writes a table with columns as wide as their widest cell. If the table is too wide, the widest columns shrink
    /// until all fit, and cells are wrapped. If that would break a number, each row becomes a list of its cells with
    /// their headings.
    fn write_table(&mut self, rows: &[Vec<String>]) {
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let widest = |column: usize, width: &dyn Fn(&str) -> usize| {
            rows.iter().filter_map(|row| row.get(column)).map(|cell| width(cell)).max().unwrap_or(0).max(1)
        };
        let mut widths: Vec<usize> = (0..columns).map(|column| widest(column, &text::width)).collect();
        let least: Vec<usize> = (0..columns)
            .map(|column| widest(column, &text::widest_number).max(3).min(widths[column]))
            .collect();
        let room = self.width.saturating_sub(columns.saturating_sub(1) * 2);
        while widths.iter().sum::<usize>() > room {
            let narrower = widths.iter_mut().zip(&least).filter(|(width, least)| **width > **least);
            match narrower.max_by_key(|(width, _)| **width) {
                Some((width, _)) => *width -= 1,
                None => return self.write_rows(rows),
            }
        }
        for (i, row) in rows.iter().enumerate() {
            let cells: Vec<_> = widths
                .iter()
                .enumerate()
                .map(|(c, &w)| text::wrap(row.get(c).map_or("", |cell| cell), w))
                .collect();
            let style = if i == 0 { self.theme.strong() } else { Style::new() };
            for y in 0..cells.iter().map(Vec::len).max().unwrap_or(0) {
                let parts: Vec<_> = cells
                    .iter()
                    .zip(&widths)
                    .map(|(cell, &w)| text::left(cell.get(y).map_or("", |l| l), w))
                    .collect();
                self.lines.push(Line::styled(parts.join("  ").trim_end().to_owned(), style));
            }
            if i == 0 {
                let rules: Vec<_> = widths.iter().map(|&width| "─".repeat(width)).collect();
                self.lines.push(Line::styled(rules.join("  "), self.theme.dim()));
            }
        }
    }
}

impl Writer {
    /// Writes a table row by row, each cell after its heading.
    fn write_rows(&mut self, rows: &[Vec<String>]) {
        let Some((head, rows)) = rows.split_first() else { return };
        for row in rows {
            for (i, cell) in row.iter().enumerate() {
                let name = head.get(i).map_or("", |name| name);
                let content = if name.is_empty() { cell.clone() } else { format!("{name}: {cell}") };
                for (line, part) in text::wrap(&content, self.width.saturating_sub(2)).iter().enumerate() {
                    let hang = if i == 0 && line == 0 { "" } else { "  " };
                    self.lines.push(Line::raw(format!("{hang}{part}")));
                }
            }
        }
    }
}

/// A no-break space.
const GLUE: char = '\u{a0}';

/// A formula that is not broken within brackets: `wq[h·C + c, d]` is one word.
fn glued(code: &str) -> String {
    let mut depth = 0_usize;
    let glue = |c| match c {
        '[' => {
            depth += 1;
            c
        }
        ']' => {
            depth = depth.saturating_sub(1);
            c
        }
        ' ' if depth > 0 => GLUE,
        c => c,
    };
    code.chars().map(glue).collect()
}

/// The words of a paragraph. One word can have pieces of several styles, such as `code` followed by a comma.
fn words(spans: &[(String, Style)]) -> Vec<Vec<(&str, Style)>> {
    let mut words = vec![Vec::new()];
    for (content, style) in spans {
        for (i, piece) in content.split([' ', '\n']).enumerate() {
            if i > 0 {
                words.push(Vec::new());
            }
            if let (false, Some(word)) = (piece.is_empty(), words.last_mut()) {
                word.push((piece, *style));
            }
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The text of a piece of HTML without its tags; empty for a comment.
fn without_tags(html: &str) -> String {
    if html.trim_start().starts_with("<!--") {
        return String::new();
    }
    let mut content = String::new();
    let mut tag = false;
    for c in html.chars() {
        match c {
            '<' => tag = true,
            '>' if tag => tag = false,
            c if !tag => content.push(c),
            _ => {}
        }
    }
    content
}

#[cfg(test)]
mod tests {
    use super::super::super::theme::Depth;
    use super::*;

    fn plain(source: &str, width: usize) -> Vec<String> {
        let lines = render(source, width, Theme::new(Depth::None));
        lines.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn paragraphs_wrap_and_comments_are_hidden() {
        let source = "# Title\n<!-- steps: xq -->\n\nOne **two** `three` four\nfive <!-- p0/xq --> six\n";
        assert_eq!(plain(source, 14), ["Title", "", "One two three", "four five six"]);
        let source = "Zero.\n\n<!-- scene: p0/tokens\nview: list\n-->\n\n<!-- ask: token\nhint: t=1 | No.\n-->\nWhich?\n";
        assert_eq!(plain(source, 40), ["Zero.", "", "Which?"]);
    }

    #[test]
    fn a_comma_stays_with_what_it_follows() {
        let source = "alpha 0.31<!-- p0/xq -->, `beta`; [gamma](g.md).\n";
        assert_eq!(plain(source, 10), ["alpha", "0.31,", "beta;", "gamma."]);
        assert_eq!(plain("abcdefghij**klm**.\n", 8), ["abcdefgh", "ijklm."]);
    }

    #[test]
    fn lists_hang_and_code_keeps_its_lines() {
        let source = "1. alpha beta gamma\n2. b\n   - c\n\n```rust\nlet x = 1;\n```\n";
        let expected =
            ["1. alpha", "   beta", "   gamma", "2. b", "  • c", "", "  [rust]", "  let x =", "    1;"];
        assert_eq!(plain(source, 11), expected);
        assert_eq!(plain(source, 12).last().unwrap(), "  let x = 1;");
        assert_eq!(plain("```\nx = a[b + c, d]\n```\n", 16), ["  x =", "    a[b + c, d]"]);
        assert_eq!(plain("```console exit=1\n$ x\n```\n", 16), ["  $ x"], "a command needs no label");
    }

    #[test]
    fn tables_fit() {
        let source = "| name | meaning |\n|---|---|\n| T | tokens of this pass |\n";
        let expected = ["name  meaning", "────  ──────────", "T     tokens of", "      this pass"];
        assert_eq!(plain(source, 16), expected);
    }

    #[test]
    fn a_table_too_wide_for_its_numbers_is_a_list() {
        let source = "| a | b |\n|---|---|\n| 4.9518565e-7 | 0.123456 |\n";
        assert_eq!(plain(source, 22)[2], "4.9518565e-7  0.123456");
        assert_eq!(plain(source, 18), ["a: 4.9518565e-7", "  b: 0.123456"]);
    }

    #[test]
    fn of_html_the_text_is_shown() {
        let source = "<details><summary>A solution</summary>\n\nForty-two.\n\n</details>\n";
        assert_eq!(plain(source, 40), ["A solution", "", "Forty-two."]);
    }
}
