//! Markdown as HTML for a printed page. All text is escaped, and raw HTML is left out.

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// `text` with the characters that HTML gives a meaning replaced.
pub(super) fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => html += "&amp;",
            '<' => html += "&lt;",
            '>' => html += "&gt;",
            '"' => html += "&quot;",
            '\'' => html += "&#39;",
            c if c.is_control() && c != '\n' => {}
            c => html.push(c),
        }
    }
    html
}

/// Markdown as HTML. Headings are two levels lower. Links become text, except those to web pages; images become their
/// description.
pub(super) fn html(markdown: &str) -> String {
    let mut html = String::new();
    let mut links: Vec<bool> = Vec::new();
    let mut cell = "td";
    for event in Parser::new_ext(markdown, Options::ENABLE_TABLES) {
        match event {
            Event::Text(text) => html += &escaped(&text),
            Event::Code(text) => html += &format!("<code>{}</code>", escaped(&text)),
            Event::SoftBreak => html.push('\n'),
            Event::HardBreak => html += "<br>\n",
            Event::Rule => html += "<hr>\n",
            Event::Start(tag) => match &tag {
                Tag::Link { dest_url, .. } => {
                    let is_web = dest_url.starts_with("https://") || dest_url.starts_with("http://");
                    links.push(is_web);
                    if is_web {
                        html += &format!("<a href=\"{}\">", escaped(dest_url));
                    }
                }
                Tag::CodeBlock(CodeBlockKind::Fenced(_) | CodeBlockKind::Indented) => html += "<pre>",
                Tag::List(Some(first)) => html += &format!("<ol start=\"{first}\">\n"),
                Tag::TableHead => {
                    cell = "th";
                    html += "<thead><tr>";
                }
                Tag::TableCell => html += &format!("<{cell}>"),
                tag => html += name(&tag.to_end()).0,
            },
            Event::End(tag) => match tag {
                TagEnd::Link => {
                    if links.pop() == Some(true) {
                        html += "</a>";
                    }
                }
                TagEnd::CodeBlock => html += "</pre>\n",
                TagEnd::TableHead => {
                    cell = "td";
                    html += "</tr></thead>\n";
                }
                TagEnd::TableCell => html += &format!("</{cell}>"),
                tag => html += name(&tag).1,
            },
            // Comments with addresses, and the blocks that fold answers.
            _ => {}
        }
    }
    html
}

/// The opening and the closing tag of an element.
fn name(tag: &TagEnd) -> (&'static str, &'static str) {
    match tag {
        TagEnd::Paragraph => ("<p>", "</p>\n"),
        TagEnd::Heading(_) => ("<h3>", "</h3>\n"),
        TagEnd::BlockQuote(_) => ("<blockquote>\n", "</blockquote>\n"),
        TagEnd::List(true) => ("<ol>\n", "</ol>\n"),
        TagEnd::List(false) => ("<ul>\n", "</ul>\n"),
        TagEnd::Item => ("<li>", "</li>\n"),
        TagEnd::Table => ("<table>\n", "</table>\n"),
        TagEnd::TableRow => ("<tr>", "</tr>\n"),
        TagEnd::Emphasis => ("<em>", "</em>"),
        TagEnd::Strong => ("<strong>", "</strong>"),
        _ => ("", ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_text_is_escaped_and_raw_html_left_out() {
        let source = "A <script>alert(1)</script> & `<b>`<!-- p0/x -->\n\n<img src=x onerror=alert(1)>\n\n\
                      [x](javascript:alert(1)) [y](https://a.b/?\"><script>) ![z](x.png)\n\n```\n</pre><script>\n```\n";
        let html = html(source);
        for bad in ["<script", "onerror", "javascript", "<b>", "<img", "<!--", "\"><"] {
            assert!(!html.contains(bad), "{bad}: {html}");
        }
        assert!(html.contains("A alert(1) &amp; <code>&lt;b&gt;</code>"), "{html}");
        assert!(html.contains("<pre>&lt;/pre&gt;&lt;script&gt;"), "{html}");
    }

    #[test]
    fn the_forms_of_the_chapters_are_written() {
        let html = html("## H\n\n1. *a*\n2. **b**\n\n- c\n\n| x | y |\n|---|---|\n| 1 | 2 |\n");
        for part in [
            "<h3>H</h3>",
            "<ol start=\"1\">\n<li><em>a</em></li>",
            "<strong>b</strong>",
            "<ul>\n<li>c</li>",
            "<thead><tr><th>x</th><th>y</th></tr></thead>",
            "<tr><td>1</td><td>2</td></tr>",
        ] {
            assert!(html.contains(part), "{part}: {html}");
        }
    }
}
