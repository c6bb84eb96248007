//! Splits PTX into statements.

/// A piece of a text.
#[derive(Debug)]
pub(super) enum Piece<'a> {
    /// The text up to the semicolon.
    Statement(&'a str),
    /// The name of a label: the text before `:`.
    Label(&'a str),
    /// A body in braces: the text before it, and its pieces.
    Body(&'a str, Vec<Piece<'a>>),
}

/// Returns the text without comments, and without the lines that only name the version and the target.
pub(super) fn bare(text: &str) -> String {
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    let about = |line: &&str| {
        let names = [".version", ".target", ".address_size"];
        !names.iter().any(|name| line.trim_start().starts_with(name))
    };
    lines.filter(about).collect::<Vec<_>>().join("\n")
}

/// Splits a bare text. Braces inside a body are ignored: they are only scopes of names, and no name that matters here
/// is used in two scopes.
pub(super) fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut rest = text.trim_start();
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        rest = one(rest, &mut pieces).trim_start();
    }
    pieces
}

/// Adds the first piece of the text to `to`, and returns the rest of the text.
fn one<'a>(text: &'a str, to: &mut Vec<Piece<'a>>) -> &'a str {
    if let Some(rest) = text.strip_prefix(['{', '}']) {
        return rest;
    }
    let name = text.find(|letter: char| !letter.is_ascii_alphanumeric() && !"$_".contains(letter));
    if let Some(end) = name.filter(|end| *end > 0 && text[*end..].starts_with(':')) {
        to.push(Piece::Label(&text[..end]));
        return &text[end + 1..];
    }
    let end = text.find(';').unwrap_or_else(|| panic!("PTX that ends within a statement: {text}"));
    let starts_body = text.starts_with(".visible") || text.starts_with(".func");
    if let Some(brace) = text.find('{').filter(|brace| starts_body && *brace < end) {
        let close = closing(text, brace);
        to.push(Piece::Body(&text[..brace], pieces(&text[brace + 1..close])));
        return &text[close + 1..];
    }
    to.push(Piece::Statement(text[..end].trim()));
    &text[end + 1..]
}

/// Returns the position of the brace that closes the one at `open`.
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
    panic!("an unclosed brace: {}", &text[open..]);
}

/// Splits a statement into its operands at the commas. Also splits vectors in braces, a call's parentheses, and the two
/// destinations of `%r|%p`.
pub(super) fn operands(text: &str) -> impl Iterator<Item = &str> {
    text.split([',', '{', '}', '(', ')', '|']).map(str::trim).filter(|operand| !operand.is_empty())
}
