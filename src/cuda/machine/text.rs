//! PTX as statements.

/// A piece of a text.
#[derive(Debug)]
pub(super) enum Piece<'a> {
    /// Up to its semicolon.
    Statement(&'a str),
    /// `name:`
    Label(&'a str),
    /// What stands before a body, and the body.
    Body(&'a str, Vec<Piece<'a>>),
}

/// The text without comments, and without the lines that only say for which machine it is.
pub(super) fn bare(text: &str) -> String {
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    let about = |line: &&str| {
        let names = [".version", ".target", ".address_size"];
        !names.iter().any(|name| line.trim_start().starts_with(name))
    };
    lines.filter(about).collect::<Vec<_>>().join("\n")
}

/// The pieces of a bare text. Braces inside a body only hold names together, of which no two are alike that matter.
pub(super) fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut rest = text.trim_start();
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        rest = one(rest, &mut pieces).trim_start();
    }
    pieces
}

/// Takes one piece from the beginning of the text; what comes after it.
fn one<'a>(text: &'a str, to: &mut Vec<Piece<'a>>) -> &'a str {
    if let Some(rest) = text.strip_prefix(['{', '}']) {
        return rest;
    }
    let name = text.find(|letter: char| !letter.is_ascii_alphanumeric() && !"$_".contains(letter));
    if let Some(end) = name.filter(|end| *end > 0 && text[*end..].starts_with(':')) {
        to.push(Piece::Label(&text[..end]));
        return &text[end + 1..];
    }
    let end = text.find(';').unwrap_or_else(|| panic!("PTX that ends in the middle: {text}"));
    let starts_body = text.starts_with(".visible") || text.starts_with(".func");
    if let Some(brace) = text.find('{').filter(|brace| starts_body && *brace < end) {
        let close = closing(text, brace);
        to.push(Piece::Body(&text[..brace], pieces(&text[brace + 1..close])));
        return &text[close + 1..];
    }
    to.push(Piece::Statement(text[..end].trim()));
    &text[end + 1..]
}

/// Where the brace closes that opens at `open`.
fn closing(text: &str, open: usize) -> usize {
    let mut depth = 0;
    for (at, letter) in text.bytes().enumerate().skip(open) {
        match letter {
            b'{' => depth += 1,
            b'}' if depth == 1 => return at,
            b'}' => depth -= 1,
            _ => {}
        }
    }
    panic!("a brace that nothing closes: {}", &text[open..]);
}

/// The operands of a statement: what stands between its commas. Vectors in braces are taken apart; a call's parentheses, and the
/// two destinations of `%r|%p`, too.
pub(super) fn operands(text: &str) -> impl Iterator<Item = &str> {
    text.split([',', '{', '}', '(', ')', '|']).map(str::trim).filter(|operand| !operand.is_empty())
}
