//! The lines below the values: what the colours mean, the statistics, and the value under the cursor.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use crate::trace::Axis;

use super::super::app::App;
use super::super::fit::{Piece, fit};
use super::super::text;
use super::labels;
use super::legend;
use super::paint::{put, put_fit};

/// Draws the four lines of the panel's foot.
pub fn draw(app: &App, foot: Rect, buf: &mut Buffer) {
    legend::draw(app, foot, buf);
    cursor(app, foot, buf);
}

/// Two lines: the address and value under the cursor, and the tokens that it is about.
pub fn cursor(app: &App, foot: Rect, buf: &mut Buffer) {
    let Some(tensor) = app.tensor() else { return };
    let theme = app.theme;
    if app.beyond {
        let place = app.place().path();
        let words = match app.lacking {
            Some(pass) => format!("there is no pass {pass} here: this is {place}"),
            None => format!("{place} has no such value"),
        };
        put(buf, foot, 0, 2, &words, theme.dim());
        return;
    }
    let index = app.index();
    let address = Piece::words(app.place().address(&index), theme.code());
    let value = tensor.get(&index);
    let about: Vec<String> = (tensor.axes().iter().zip(&index))
        .filter_map(|(&axis, &index)| {
            let role = match axis {
                Axis::Token if tensor.axes().contains(&Axis::Key) => "query",
                Axis::Key if tensor.axes().contains(&Axis::Token) => "key",
                Axis::Vocab => "candidate",
                Axis::One => "next token",
                _ => "token",
            };
            let position = if axis == Axis::Token { labels::position_of(app, index) } else { String::new() };
            labels::text_of(app, axis, index).map(|text| format!("{role} {text}{position}"))
        })
        .collect();
    let about = about.join(" → ");
    let Some(value) = value else {
        put_fit(buf, foot, 0, 2, &[address, Piece::whole(": not computed", Style::new())]);
        return;
    };
    let line = [address, Piece::whole(" = ", Style::new()), Piece::value(value, theme.strong())];
    let needed: usize = fit(&line, usize::MAX).iter().map(|(content, _)| text::width(content)).sum();
    // Beside a long address there is no room for every digit, below it there is.
    if needed <= usize::from(foot.width) {
        put_fit(buf, foot, 0, 2, &line);
        put(buf, foot, 0, 3, &about, theme.token());
    } else {
        put_fit(buf, foot, 0, 2, &line[..1]);
        let x = put_fit(buf, foot, 0, 3, &line[1..]);
        put(buf, foot, x + 2, 3, &about, theme.token());
    }
}
