//! Text that fits: token texts made visible, cut to a width in terminal columns, and numbers in few columns.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::trace::frame::Number;

/// How many columns `text` takes.
pub fn width(text: &str) -> usize {
    text.width()
}

/// `text` with nothing invisible left in it: a space is `␣`, and control characters and those without a
/// width of their own (combining marks, joiners) are escapes, so that every token has an honest width.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            ' ' => shown.push('␣'),
            c if c.is_control() || c.width().unwrap_or(0) == 0 => shown.extend(c.escape_default()),
            c => shown.push(c),
        }
    }
    shown
}

/// `text` cut to `columns`; an ellipsis stands for what is cut.
pub fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut shown = String::new();
    let mut used = 0;
    for c in text.chars() {
        let next = c.width().unwrap_or(0);
        if used + next + 1 > columns {
            break;
        }
        used += next;
        shown.push(c);
    }
    if columns > 0 {
        shown.push('…');
    }
    shown
}

/// `text` cut or padded to exactly `columns`, at the left.
pub fn left(text: &str, columns: usize) -> String {
    let mut shown = cut(text, columns);
    shown.extend(std::iter::repeat_n(' ', columns.saturating_sub(width(&shown))));
    shown
}

/// `text` cut or padded to exactly `columns`, at the right.
pub fn right(text: &str, columns: usize) -> String {
    let shown = cut(text, columns);
    " ".repeat(columns.saturating_sub(width(&shown))) + &shown
}

/// `text` in lines of at most `columns`, broken at spaces where there are any.
pub fn wrap(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(1);
    let mut lines = Vec::new();
    for paragraph in text.lines() {
        let mut line = String::new();
        for word in paragraph.split(' ') {
            if !line.is_empty() && width(&line) + 1 + width(word) > columns {
                lines.push(std::mem::take(&mut line));
            } else if !line.is_empty() {
                line.push(' ');
            }
            for c in word.chars() {
                if width(&line) + c.width().unwrap_or(0) > columns {
                    lines.push(std::mem::take(&mut line));
                }
                line.push(c);
            }
        }
        lines.push(line);
    }
    lines
}

/// A value with four digits after the point, or as many as its size allows, in at most nine columns.
pub fn number(value: Number) -> String {
    match value {
        Number::I64(id) => id.to_string(),
        Number::F32(value) => real(f64::from(value)),
    }
}

/// As [`real`], for the least and the largest of values that are whole numbers where `whole` says so.
pub fn figure(value: f64, whole: bool) -> String {
    if whole && value.is_finite() { format!("{value:.0}") } else { real(value) }
}

/// As [`number`], for summaries.
pub fn real(value: f64) -> String {
    special(value).unwrap_or_else(|| {
        let size = value.abs();
        if value == 0.0 {
            "0".to_owned()
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

/// A value in at most `columns`, as long as there are four; for cells that are coloured as well.
pub fn short(value: Number, columns: usize) -> String {
    let value = match value {
        Number::I64(id) => return cut(&id.to_string(), columns),
        Number::F32(value) => f64::from(value),
    };
    if let Some(text) = special(value) {
        return text;
    }
    let fits = |text: &String| width(text) <= columns;
    let choices = (0..=3).rev().map(|digits| format!("{value:.digits$}"));
    choices.into_iter().find(fits).unwrap_or_else(|| cut(&format!("{value:.0e}"), columns))
}

/// Every digit that tells this value from its neighbours.
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
        assert_eq!([figure(-127.0, true), figure(127.0, false)], ["-127", "127.00"]);
        assert_eq!(figure(f64::NAN, true), real(f64::NAN));
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
    fn lines_are_broken_at_spaces_and_long_words_anywhere() {
        assert_eq!(wrap("ab cd efghij", 5), ["ab cd", "efghi", "j"]);
    }
}
