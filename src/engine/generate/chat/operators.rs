//! Rewrites the operators that minijinja computes differently from Python: `<`, `<=`, `>` and `>=`, which in Python
//! refuse values without an order, and `~`, which in Jinja joins its operands as Python's `str` prints them.

/// A token of an expression: its place in the text, and the number of open brackets around it.
#[derive(Clone, Copy)]
pub(super) struct Token<'t> {
    pub(super) at: usize,
    pub(super) text: &'t str,
    pub(super) depth: usize,
    /// Whether the token ends an operand: it is a keyword or an operator, and not a name or a part of a test (`is not`,
    /// `is in`).
    stops: bool,
}

impl Token<'_> {
    pub(super) fn end(&self) -> usize {
        self.at + self.text.len()
    }
}

/// The operators of a comparison.
const COMPARISONS: [&str; 6] = ["<", "<=", ">", ">=", "==", "!="];

/// Returns the name of the test that has the meaning of a comparison operator.
fn test(operator: &str) -> Option<&'static str> {
    Some(match operator {
        "<" => "lt",
        "<=" => "le",
        ">" => "gt",
        ">=" => "ge",
        _ => return None,
    })
}

/// Rewrites the operators inside a tag. `a < b` becomes `((a) is lt(b))`, and `a ~ b` becomes
/// `((a)|string) ~ ((b)|string)`.
///
/// # Errors
/// Returns the unsupported part: a chain of comparisons.
pub(super) fn rewrite(inside: &str) -> Result<String, String> {
    let tokens = tokens(inside);
    // Each edit: the place, the order among the edits at the same place, the number of replaced bytes, the new text.
    let mut edits: Vec<(usize, usize, usize, String)> = Vec::new();
    let mut wrap = |first: &Token, last: &Token, close: &str| {
        edits.push((first.at, usize::MAX, 0, "((".into()));
        // Inner operands begin later and end earlier, so their brackets are closed first.
        edits.push((last.end(), inside.len() - first.at, 0, close.into()));
    };
    let mut replaced = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let joins = token.text == "~";
        let Some(test) = test(token.text).or(joins.then_some("~")) else { continue };
        let stops = |other: &Token| other.stops && (joins || !matches!(other.text, "+" | "-" | "~"));
        let before = tokens[..at]
            .iter()
            .rposition(|other| other.depth < token.depth || other.depth == token.depth && stops(other));
        let after = tokens[at + 1..]
            .iter()
            .position(|other| other.depth < token.depth || other.depth == token.depth && stops(other));
        let left = &tokens[before.map_or(0, |before| before + 1)..at];
        let right = &tokens[at + 1..after.map_or(tokens.len(), |after| at + 1 + after)];
        let (Some(first), Some(last), Some(next), Some(end)) =
            (left.first(), left.last(), right.first(), right.last())
        else {
            continue;
        };
        let neighbour = |place: Option<usize>| place.map(|place| tokens[place].text);
        if joins {
            if neighbour(before) != Some("~") {
                wrap(first, last, ")|string)");
            }
            wrap(next, end, ")|string)");
            continue;
        }
        let chained = |text: Option<&str>| text.is_some_and(|text| COMPARISONS.contains(&text));
        // The `in` of a loop is not a comparison.
        let member = neighbour(before) == Some("in") && tokens.first().map(|first| first.text) != Some("for");
        let after = neighbour(after.map(|after| at + 1 + after));
        if member || chained(neighbour(before)) || chained(after) || matches!(after, Some("in" | "not")) {
            return Err("a chain of comparisons".into());
        }
        wrap(first, end, "))");
        replaced.push((token.at, 0, token.text.len(), format!(") is {test}(")));
    }
    edits.extend(replaced);
    edits.sort_by_key(|(at, order, ..)| (*at, *order));
    let mut out = String::with_capacity(inside.len());
    let mut from = 0;
    for (at, _, length, text) in edits {
        out += &inside[from..at];
        out += &text;
        from = at + length;
    }
    Ok(out + &inside[from..])
}

/// Returns the tokens of an expression. The depth of a bracket is the number of open brackets outside of its pair.
pub(super) fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens: Vec<Token<'_>> = Vec::new();
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(character) = text[at..].chars().next() {
        let rest = &text[at..];
        let named = |c: char| c.is_alphanumeric() || c == '_';
        let length = match character {
            '\'' | '"' => string_length(rest, character),
            '0'..='9' => number_length(rest),
            _ if named(character) => rest.find(|c| !named(c)).unwrap_or(rest.len()),
            _ if ["<=", ">=", "==", "!=", "//", "**"].iter().any(|two| rest.starts_with(two)) => 2,
            _ => character.len_utf8(),
        };
        let token = &rest[..length];
        if matches!(token, ")" | "]" | "}") {
            depth = depth.saturating_sub(1);
        }
        if !character.is_whitespace() {
            let previous = tokens.last().copied();
            let after = |texts: &[&str]| previous.is_some_and(|token| texts.contains(&token.text));
            let stops = match token {
                "and" | "or" | "if" | "elif" | "else" | "for" | "recursive" => !after(&[".", "|"]),
                "not" | "in" => !(after(&[".", "|", "is"]) || token == "in" && is_not(&tokens)),
                // A sign is not an operator.
                "+" | "-" => previous.is_some_and(|previous| {
                    let text = previous.text;
                    !previous.stops && (text.ends_with(|c: char| named(c) || ")]}'\"".contains(c)))
                }),
                "," | ":" | "=" | "~" => true,
                token => COMPARISONS.contains(&token),
            };
            tokens.push(Token { at, text: token, depth, stops });
        }
        if matches!(token, "(" | "[" | "{") {
            depth += 1;
        }
        at += length;
    }
    // The first word of a statement is not an operand.
    if let Some(first) = tokens.first_mut().filter(|first| matches!(first.text, "print" | "do" | "set")) {
        first.stops = true;
    }
    tokens
}

/// Returns the length of the number at the beginning of `text`, with the sign of its exponent.
fn number_length(text: &str) -> usize {
    let rest = |c: char| !(c.is_alphanumeric() || matches!(c, '.' | '_'));
    let end = text.find(rest).unwrap_or(text.len());
    if !text.starts_with("0x") && text[..end].ends_with(['e', 'E']) && text[end..].starts_with(['+', '-']) {
        return end + 1 + text[end + 1..].find(rest).unwrap_or(text.len() - end - 1);
    }
    end
}

/// Whether the last tokens are `is not`.
fn is_not(tokens: &[Token<'_>]) -> bool {
    matches!(tokens, [.., is, not] if is.text == "is" && not.text == "not")
}

/// Returns the length of the string at the beginning of `text`, with its quotes. If the string does not end, returns
/// the length of `text`.
pub(super) fn string_length(text: &str, quote: char) -> usize {
    let mut characters = text.char_indices().skip(1);
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => _ = characters.next(),
            character if character == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_and_joins_keep_their_operands() {
        for (text, expected) in [
            (" a < b ", " ((a ) is lt( b)) "),
            (" if a+1 >= b|length and not c>d ", " if ((a+1 ) is ge( b|length)) and not ((c) is gt(d)) "),
            (" f(a<b, c=d>e)[1:x<y] ", " f(((a) is lt(b)), c=((d) is gt(e)))[1:((x) is lt(y))] "),
            (" 'a<b' ~ -1 ~ x + y ", " (('a<b')|string) ~ ((-1)|string) ~ ((x)|string) + y "),
            (" a ~ b < c ~ d ", " ((((a)|string) ~ ((b)|string) ) is lt( ((c)|string) ~ ((d)|string))) "),
            (" for x in a if x is not none < 2 ", " for x in a if ((x is not none ) is lt( 2)) "),
            (" set x = a > b ", " set x = ((a ) is gt( b)) "),
            (" x.if < {'a': b ~ c} ", " ((x.if ) is lt( {'a': ((b)|string) ~ ((c)|string)})) "),
            (" 1e-7 ~ 2-1 ", " ((1e-7)|string) ~ ((2)|string)-1 "),
            (" a < ", " a < "),
        ] {
            assert_eq!(rewrite(text).unwrap(), expected);
        }
        for chain in ["1 < 2 < 3", "a == b > c", "a in b < c", "a < b not in c"] {
            rewrite(chain).unwrap_err();
        }
    }
}
