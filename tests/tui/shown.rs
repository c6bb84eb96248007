//! Reads the numbers on the screen, and compares them with a given value.

use llama_trace::trace::frame::Number;

/// A number as the screen shows it: its first column, and its text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Read {
    pub(crate) x: usize,
    pub(crate) text: String,
}

/// Returns the numbers of a line. Digits within a word (`word20`, `f32`) belong to the word. A minus sign between two
/// numbers belongs to a range.
pub(crate) fn read(line: &[String]) -> Vec<Read> {
    let at = |i: usize| line.get(i).and_then(|cell| cell.chars().next()).unwrap_or(' ');
    let digit = |i: usize| at(i).is_ascii_digit();
    let word = |c: char| c.is_alphanumeric() || "_·".contains(c);
    let mut found = Vec::new();
    let mut i = 0;
    while i < line.len() {
        let before = i.checked_sub(1).map_or(' ', at);
        let signed = at(i) == '-' && digit(i + 1) && !word(before);
        // `{301}` in `\u{301}` is an escaped character, and not a number.
        if !(signed || digit(i)) || word(before) || before == '{' || (before == '.' && digit(i)) {
            i += 1;
            continue;
        }
        let start = i;
        i += usize::from(signed);
        while digit(i) {
            i += 1;
        }
        if at(i) == '.' && digit(i + 1) {
            i += 1;
            while digit(i) {
                i += 1;
            }
        }
        let sign = usize::from(at(i + 1) == '-');
        if at(i) == 'e' && digit(i + 1 + sign) {
            i += 1 + sign;
            while digit(i) {
                i += 1;
            }
        }
        // 3x4, 2i, 20%: words that begin with digits.
        if !word(at(i)) || at(i) == '·' {
            found.push(Read { x: start, text: line[start..i].concat() });
        }
    }
    found
}

pub(crate) fn read_text(text: &str) -> Vec<String> {
    let cells: Vec<String> = text.chars().map(String::from).collect();
    read(&cells).into_iter().map(|read| read.text).collect()
}

/// Returns whether `shown` is `value`, rounded to the digits of `shown`. Only if `rounded`, a value other than 0 may be
/// shown as 0.
pub(crate) fn is(shown: &str, value: f64, rounded: bool) -> bool {
    let number: f64 = shown.parse().unwrap();
    let (mantissa, power) = shown.split_once('e').unwrap_or((shown, "0"));
    let digits = mantissa.split_once('.').map_or(0, |(_, digits)| digits.len()) as i32;
    let unit = 10_f64.powi(power.parse::<i32>().unwrap() - digits);
    let near = (number - value).abs() <= 0.5 * unit + 1e-6 * value.abs();
    near && (rounded || (number == 0.0) == (value == 0.0))
}

pub(crate) fn real(number: Number) -> f64 {
    match number {
        Number::F32(value) => value.into(),
        Number::I64(value) => value as f64,
    }
}
