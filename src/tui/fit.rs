//! Fitting of lines to a width. A line is made of pieces with a rank. If there is not enough room, the pieces of the
//! highest rank shrink first. Cut words end in `…`. A value loses digits but keeps its exponent. Other pieces have a
//! shorter form, or are left out. So the screen never shows a cut number that looks like another number.

use ratatui::style::Style;

use super::text;
use llama_trace_core::trace::frame::Number;

#[derive(Clone, Debug, PartialEq)]
enum What {
    /// A text that is cut at its end.
    Words(String),
    /// Forms of a text, the longest first.
    Forms(Vec<String>),
    /// A value with all its digits, or as many as fit.
    Value(Number),
    /// A figure of a summary, and whether it is an integer.
    Figure(f64, bool),
}

/// A part of a line.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    what: What,
    style: Style,
    rank: u8,
}

/// Number of columns to which all values of a rank shrink before one of them shrinks further.
const LEGIBLE: usize = 6;

impl Piece {
    fn new(what: What, style: Style) -> Self {
        Self { what, style, rank: 0 }
    }

    /// A text that may be cut at its end.
    pub fn words(words: impl Into<String>, style: Style) -> Self {
        Self::new(What::Words(words.into()), style)
    }

    /// A text that is shown whole or not at all.
    pub fn whole(content: impl Into<String>, style: Style) -> Self {
        Self::forms([content.into(), String::new()], style)
    }

    /// Forms of one text, the longest first; the last may be empty.
    pub fn forms(forms: impl IntoIterator<Item = String>, style: Style) -> Self {
        Self::new(What::Forms(forms.into_iter().collect()), style)
    }

    /// A value with all digits that distinguish it from its neighbours.
    pub fn value(value: Number, style: Style) -> Self {
        Self::new(What::Value(value), style)
    }

    /// A figure of a summary, as [`text::figure`] formats it.
    pub fn figure(value: f64, whole: bool, style: Style) -> Self {
        Self::new(What::Figure(value, whole), style)
    }

    /// Sets the rank: pieces of the highest rank shrink first, those of rank 0 last.
    pub fn rank(self, rank: u8) -> Self {
        Self { rank, ..self }
    }

    fn full(&self) -> String {
        match &self.what {
            What::Words(words) => words.clone(),
            What::Forms(forms) => forms.first().cloned().unwrap_or_default(),
            What::Value(value) => text::full(*value),
            What::Figure(value, whole) => text::figure(*value, *whole),
        }
    }

    /// The piece in at most `columns`, or its shortest form if even that is longer.
    fn within(&self, columns: usize) -> String {
        let fits = |form: &&String| text::width(form) <= columns;
        match &self.what {
            What::Words(words) => text::cut(words, columns),
            What::Forms(forms) => forms.iter().find(fits).or(forms.last()).cloned().unwrap_or_default(),
            What::Value(value) => text::full_in(*value, columns.max(1)),
            What::Figure(value, whole) => text::figure_in(*value, *whole, columns.max(1)),
        }
    }

    fn is_value(&self) -> bool {
        matches!(self.what, What::Value(_) | What::Figure(..))
    }
}

/// The texts of the pieces in a line of `columns`.
pub fn fit(pieces: &[Piece], columns: usize) -> Vec<(String, Style)> {
    let mut texts: Vec<String> = pieces.iter().map(Piece::full).collect();
    let mut ranks: Vec<u8> = pieces.iter().map(|piece| piece.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    for rank in ranks.into_iter().rev() {
        // All values of a rank lose some digits before one of them loses all its digits.
        for least in [LEGIBLE, 0] {
            for (i, piece) in pieces.iter().enumerate().rev().filter(|(_, piece)| piece.rank == rank) {
                let over = texts.iter().map(|text| text::width(text)).sum::<usize>().saturating_sub(columns);
                if over > 0 && (least == 0 || piece.is_value()) {
                    let room = text::width(&texts[i]).saturating_sub(over).max(least);
                    texts[i] = piece.within(room);
                }
            }
        }
    }
    let mut left = columns;
    let mut line = Vec::new();
    for (content, piece) in texts.into_iter().zip(pieces) {
        let content = text::cut(&content, left);
        left -= text::width(&content);
        line.push((content, piece.style));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(pieces: &[Piece], columns: usize) -> String {
        fit(pieces, columns).into_iter().map(|(content, _)| content).collect()
    }

    #[test]
    fn the_highest_rank_gives_way_first_and_values_keep_their_exponent() {
        let style = Style::new();
        let pieces = [
            Piece::words("std ", style),
            Piece::value(Number::F32(4.951_843e-7), style),
            Piece::whole(" (a view)", style).rank(2),
            Piece::words(" of a head", style).rank(1),
        ];
        assert_eq!(line(&pieces, 40), "std 4.951843e-7 (a view) of a head");
        assert_eq!(line(&pieces, 30), "std 4.951843e-7 of a head");
        assert_eq!(line(&pieces, 20), "std 4.951843e-7 of …");
        assert_eq!(line(&pieces, 12), "std 4.952e-7");
        assert_eq!(line(&pieces, 9), "std 5e-7");
        assert_eq!(line(&pieces, 6), "std …");
        assert_eq!(line(&pieces, 0), "");
    }

    #[test]
    fn all_values_lose_some_digits_before_one_loses_all() {
        let style = Style::new();
        let figure = |value| Piece::figure(value, false, style);
        let pieces = [figure(-1234.56), Piece::words(" ", style), figure(0.003_456)];
        assert_eq!(line(&pieces, 20), "-1234.6 0.0035");
        assert_eq!(line(&pieces, 12), "-1235 0.0035");
    }
}
