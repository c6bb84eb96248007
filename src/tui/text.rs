//! Text in terminal columns: visible token texts, cutting and wrapping, and numbers written in few columns.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use llama_trace_core::error::printable;
use llama_trace_core::trace::frame::Number;

/// The width of `text` in columns.
pub fn width(text: &str) -> usize {
    text.width()
}

/// `text` with all invisible characters replaced. A space becomes `␣`, and [`printable`] escapes control characters.
/// Characters without a width of their own (combining marks, joiners) are escaped too, so that the width of a token is
/// correct.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in printable(text).chars() {
        match c {
            ' ' => shown.push('␣'),
            c if c.width().unwrap_or(0) == 0 => shown.extend(c.escape_default()),
            c => shown.push(c),
        }
    }
    shown
}

/// Returns whether `c` can be a part of a number.
fn in_number(c: char) -> bool {
    c.is_ascii_digit() || matches!(c, '.' | '-' | '+' | '−' | 'e' | 'E')
}

/// The start of the number at the end of `text`, if `text` ends in a number. The next characters may continue this
/// number.
fn last_number(text: &str) -> Option<usize> {
    let start = text.trim_end_matches(in_number).len();
    let digit = text[start..].find(|c: char| c.is_ascii_digit())?;
    // A letter or a point before the first digit belongs to a word; a sign belongs to the number.
    let word = text[start..start + digit].trim_end_matches(['-', '+', '−']).len();
    Some(start + word)
}

/// `text` cut to `columns`, with an ellipsis at the cut. The ellipsis never follows a digit, so that a cut number is
/// not mistaken for another number.
pub fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut shown = String::new();
    let mut used = 0;
    for c in text.chars() {
        // A control character has no width of its own, but takes a column in a text.
        let next = c.width().unwrap_or(1);
        if used + next + 1 > columns {
            break;
        }
        used += next;
        shown.push(c);
    }
    if let Some(start) = last_number(&shown) {
        shown.truncate(start);
    }
    if columns > 0 {
        shown.push('…');
    }
    shown
}

/// `text` cut or padded to exactly `columns`, left-aligned.
pub fn left(text: &str, columns: usize) -> String {
    let mut shown = cut(text, columns);
    shown.extend(std::iter::repeat_n(' ', columns.saturating_sub(width(&shown))));
    shown
}

/// `text` cut or padded to exactly `columns`, right-aligned.
pub fn right(text: &str, columns: usize) -> String {
    let shown = cut(text, columns);
    " ".repeat(columns.saturating_sub(width(&shown))) + &shown
}

/// `text` in lines of at most `columns`. Lines are broken at spaces if possible. A number is broken only if it is
/// longer than a line.
pub fn wrap(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(1);
    let mut lines = Vec::new();
    for paragraph in text.lines() {
        let mut line = String::new();
        for word in paragraph.split(' ') {
            let wide = width(word);
            if !line.is_empty() && width(&line) + 1 + wide > columns {
                lines.push(std::mem::take(&mut line));
            } else if !line.is_empty() {
                line.push(' ');
            }
            if width(&line) + wide <= columns {
                line.push_str(word);
                continue;
            }
            for c in word.chars() {
                if width(&line) + c.width().unwrap_or(0) > columns {
                    let number = last_number(&line).filter(|&start| start > 0 && in_number(c));
                    let rest = number.map_or(String::new(), |start| line.split_off(start));
                    lines.push(std::mem::replace(&mut line, rest));
                }
                line.push(c);
            }
        }
        lines.push(line);
    }
    lines
}

/// The width of the longest number in `text`. A narrower line would break that number.
pub fn widest_number(text: &str) -> usize {
    let runs = text.split(|c| !in_number(c));
    runs.filter(|run| run.contains(|c: char| c.is_ascii_digit())).map(width).max().unwrap_or(0)
}

/// A value with four digits after the point, or fewer if the value is large, in at most nine columns. An integer has no
/// point: `1` is exact, and `1.0000` is rounded.
pub fn number(value: Number) -> String {
    match value {
        Number::I64(id) => id.to_string(),
        Number::F32(value) => real(f64::from(value)),
    }
}

/// Like [`real`], for the minimum and maximum of values; `whole` says that the values are integers.
pub fn figure(value: f64, whole: bool) -> String {
    if whole && value.is_finite() { format!("{value:.0}") } else { real(value) }
}

/// Like [`number`], for summaries.
pub fn real(value: f64) -> String {
    special(value).unwrap_or_else(|| {
        let size = value.abs();
        if let Some(whole) = whole(value) {
            whole
        } else if !(1e-3..1e5).contains(&size) {
            format!("{value:.1e}")
        } else if size < 10.0 {
            format!("{value:.4}")
        } else if size < 1000.0 {
            format!("{value:.2}")
        } else {
            format!("{value:.1}")
        }
    })
}

/// An integer without a point; none for other values, and none for large integers, which are written with an exponent.
fn whole(value: f64) -> Option<String> {
    (value == value.trunc() && value.abs() < 1e5).then(|| format!("{:.0}", value + 0.0))
}

/// Like [`figure`], in at most `columns`.
pub fn figure_in(value: f64, whole: bool, columns: usize) -> String {
    let text = figure(value, whole);
    if width(&text) <= columns { text } else { fewer(value, if whole { 0 } else { 4 }, columns) }
}

/// A value in at most `columns`, with at most four digits, for coloured cells.
pub fn short(value: Number, columns: usize) -> String {
    match value {
        Number::I64(id) => fewer_whole(id, columns),
        Number::F32(value) => fewer(f64::from(value), 4, columns),
    }
}

/// Like [`full`], with fewer digits if not all of them fit into `columns`.
pub fn full_in(value: Number, columns: usize) -> String {
    let text = full(value);
    match value {
        _ if width(&text) <= columns => text,
        Number::I64(id) => fewer_whole(id, columns),
        Number::F32(value) => fewer(f64::from(value), 8, columns),
    }
}

/// An id or an index, with all its digits or none.
fn fewer_whole(id: i64, columns: usize) -> String {
    cut(&id.to_string(), columns)
}

/// A value with as many of its first `digits` digits as fit into `columns`. It has an exponent if more digits fit that
/// way. Returns `…` if not even one digit fits, because a value that is not 0 must not be written as 0.
fn fewer(value: f64, digits: usize, columns: usize) -> String {
    if let Some(text) = special(value) {
        return cut(&text, columns);
    }
    if let Some(whole) = whole(value).filter(|whole| value == 0.0 || width(whole) <= columns) {
        return cut(&whole, columns);
    }
    let size = value.abs().log10().floor();
    // Number of significant digits of a text with `points` digits after the point.
    let plain = (0..=8_usize).map(|points| (points as f64 + size + 1.0, format!("{value:.points$}")));
    let power = (0..=8_usize).map(|points| (points as f64 + 1.0, format!("{value:.points$e}")));
    let most = (digits as f64).max(size + 1.0);
    let mut best: Option<(f64, String)> = None;
    for (shown, text) in plain.chain(power) {
        let better = best.as_ref().is_none_or(|(best, _)| shown > *best);
        if width(&text) <= columns && (1.0..=most).contains(&shown) && better {
            best = Some((shown, text));
        }
    }
    best.map_or_else(|| cut(&format!("{value:e}"), columns), |(_, text)| text)
}

/// A value with as many digits as distinguish it from its neighbours.
pub fn full(value: Number) -> String {
    match value {
        Number::I64(id) => id.to_string(),
        Number::F32(value) => special(f64::from(value)).unwrap_or_else(|| {
            if value != 0.0 && !(1e-4..1e7).contains(&value.abs()) {
                format!("{value:e}")
            } else {
                value.to_string()
            }
        }),
    }
}

fn special(value: f64) -> Option<String> {
    if value.is_nan() {
        Some("NaN".to_owned())
    } else if value == f64::NEG_INFINITY {
        Some("-inf".to_owned())
    } else if value == f64::INFINITY {
        Some("+inf".to_owned())
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_whole_numbers_are_whole() {
        assert_eq!(
            [figure(-127.0, true), figure(126.998, true), figure(126.998, false)],
            ["-127", "127", "127.00"]
        );
        assert_eq!(figure(f64::NAN, true), real(f64::NAN));
    }

    /// Integers, and values that round to an integer.
    #[test]
    fn only_a_whole_number_has_no_point() {
        let near = [1.0, 0.999_998_45, -3.0, -2.999_999, 0.0, 1e-9];
        assert_eq!(near.map(real), ["1", "1.0000", "-3", "-3.0000", "0", "1.0e-9"]);
        for columns in 4..8 {
            let [one, nearly, three, nearly_three, ..] =
                near.map(|value| short(Number::F32(value as f32), columns));
            assert_eq!([one, three], ["1", "-3"], "{columns}");
            assert!(nearly.starts_with("1.0") && nearly_three.starts_with("-3."), "{nearly} {nearly_three}");
        }
        assert_eq!(real(-0.0), "0");
    }

    #[test]
    fn nothing_stays_invisible() {
        assert_eq!(visible(" girl\n"), "␣girl\\n");
        assert_eq!(visible("e\u{301}"), "e\\u{301}");
        assert_eq!(visible("\u{200d}"), "\\u{200d}");
    }

    #[test]
    fn wide_characters_count_for_two() {
        assert_eq!(cut("日本語", 5), "日本…");
        assert_eq!(left("日本語", 4), "日… ");
        assert_eq!(cut("ab", 0), "");
    }

    #[test]
    fn every_number_fits_its_column() {
        for value in [0.0, -0.0, 1.0, -9.99999, 99999.9, -99999.0, 1e-9, -3.4e38, f32::NEG_INFINITY, f32::NAN]
        {
            assert!(width(&number(Number::F32(value))) <= 9, "{value}");
            for columns in 4..8 {
                assert!(width(&short(Number::F32(value), columns)) <= columns, "{value} {columns}");
            }
        }
    }

    #[test]
    fn fewer_digits_keep_the_exponent() {
        let value = Number::F32(4.951_843e-7);
        assert_eq!(
            [15, 11, 9, 8, 7, 6, 4].map(|n| full_in(value, n)),
            ["4.951843e-7", "4.951843e-7", "4.9518e-7", "4.952e-7", "4.95e-7", "5.0e-7", "5e-7",]
        );
        assert_eq!([6, 5, 4, 3].map(|n| short(Number::F32(-0.012_345), n)), ["-0.012", "-0.01", "…", "…"]);
        assert_eq!([5, 4, 3].map(|n| short(Number::F32(-3.4e38), n)), ["-3e38", "…", "…"]);
        assert_eq!([3, 2].map(|n| short(Number::I64(127), n)), ["127", "…"]);
        assert_eq!(short(Number::F32(1234.5), 7), "1234");
    }

    #[test]
    fn an_ellipsis_never_follows_a_digit() {
        assert_eq!(cut("key 18 of 20", 6), "key …");
        assert_eq!(cut("= 4.95e-7", 7), "= …");
        assert_eq!(cut("(12,4,8)", 6), "(12,…");
        assert_eq!(cut("min -12.5 max", 9), "min …");
        assert_eq!(cut("L2 norm", 5), "L2 n…");
        assert_eq!(cut("␣time20", 6), "␣time…");
    }

    #[test]
    fn numbers_are_not_broken_over_lines() {
        assert_eq!(wrap("abcd=4.95e-7", 8), ["abcd=", "4.95e-7"]);
        assert_eq!(wrap("[h=2,t=1099,k=18]", 9), ["[h=2,t=", "1099,k=18", "]"]);
        assert_eq!(widest_number("a 12, −4.5e-7 and 3"), 7);
    }

    #[test]
    fn lines_are_broken_at_spaces_and_long_words_anywhere() {
        assert_eq!(wrap("ab cd efghij", 5), ["ab cd", "efghi", "j"]);
    }
}
