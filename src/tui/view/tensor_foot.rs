//! The foot of the tensor panel: legend, statistics and the value under the cursor.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use llama_trace_core::trace::Axis;

use super::super::app::App;
use super::super::fit::{Piece, fit};
use super::super::text;
use super::labels;
use super::legend;
use super::paint::{put, put_fit};

/// What stands in place of a hidden value.
const HIDDEN: [&str; 3] = [" = ? hidden until the question is answered", " = ? hidden", " = ?"];

/// Draws the four lines of the foot.
pub fn draw(app: &App, foot: Rect, buf: &mut Buffer) {
    legend::draw(app, foot, buf);
    cursor(app, foot, buf);
}

/// Draws the foot of a folded tensor: the value under the cursor, and the legend if there is a second line.
pub fn folded(app: &App, foot: Rect, buf: &mut Buffer) {
    let (address, value) = match under_cursor(app) {
        Some(Ok(both)) => both,
        Some(Err(words)) => (Piece::words(words, app.theme.dim()), Vec::new()),
        None => return,
    };
    // A token's text that is cut could be mistaken for another token, so it is shown whole or not at all.
    let about = match about(app, true) {
        long if long.is_empty() => vec![long],
        long => vec![format!(" · {long}"), format!(" · {}", about(app, false)), String::new()],
    };
    let mut pieces = vec![address];
    pieces.extend(value);
    pieces.push(Piece::forms(about, app.theme.token()).rank(1));
    put_fit(buf, foot, 0, 0, &pieces);
    if foot.height > 1 {
        let below = Rect { y: foot.y + 1, height: 1, ..foot };
        legend::meaning(app, below, buf);
    }
}

/// Draws two lines: the address and the value under the cursor; and the value's tokens with the root mean square of its
/// row.
pub fn cursor(app: &App, foot: Rect, buf: &mut Buffer) {
    let (address, value) = match under_cursor(app) {
        Some(Ok(both)) => both,
        Some(Err(words)) => {
            put(buf, foot, 0, 2, &words, app.theme.dim());
            return;
        }
        None => return,
    };
    let width = |pieces: &[Piece]| -> usize {
        fit(pieces, usize::MAX).iter().map(|(content, _)| text::width(content)).sum()
    };
    let line: Vec<Piece> = std::iter::once(address).chain(value).collect();
    // A value must keep its digits. The words in place of a hidden one may be shorter.
    let (value, needed) = match hides_value(app) {
        true => (HIDDEN[2].len(), width(&line[..1]) + HIDDEN[2].len()),
        false => (width(&line[1..]), width(&line)),
    };
    // A value that does not fit beside a long address goes below it.
    let x = if needed <= usize::from(foot.width) {
        put_fit(buf, foot, 0, 2, &line);
        0
    } else {
        put_fit(buf, foot, 0, 2, &line[..1]);
        let below = Rect { width: foot.width.min(value as u16), ..foot };
        put_fit(buf, below, 0, 3, &line[1..]) + 2
    };
    let mut pieces = vec![Piece::forms([about(app, true), about(app, false)], app.theme.token())];
    pieces.extend(row(app));
    put_fit(buf, foot, x, 3, &pieces);
}

/// The address under the cursor and the value there, or the reason why there is none. None until it is known.
fn under_cursor(app: &App) -> Option<Result<(Piece, Vec<Piece>), String>> {
    let tensor = app.tensor()?;
    if app.comparison.out_of_range {
        let place = app.place().path();
        return Some(Err(match app.comparison.missing_pass {
            Some(pass) => format!("pass {pass} does not exist; this is {place}"),
            None => format!("{place} has no such value"),
        }));
    }
    let index = app.index();
    let address = Piece::words(app.place().address(&index), app.theme.code());
    let value = match tensor.get(&index) {
        Some(value) => {
            let edited = if app.edits_here().is_empty() { "" } else { " · edited" };
            vec![
                Piece::whole(" = ", Style::new()),
                Piece::value(value, app.theme.strong()),
                Piece::whole(edited, app.theme.key()),
            ]
        }
        None if app.hides_here() => {
            vec![Piece::forms(HIDDEN.map(str::to_owned), app.theme.dim()).rank(1)]
        }
        None => vec![Piece::whole(": not computed", Style::new())],
    };
    Some(Ok((address, value)))
}

/// Returns whether the value under the cursor is hidden.
fn hides_value(app: &App) -> bool {
    app.hides_here() && app.tensor().is_some_and(|tensor| tensor.get(&app.index()).is_none())
}

/// The tokens of the value under the cursor, with their roles (query, key, …) or without.
fn about(app: &App, with_roles: bool) -> String {
    let axes = app.place().step.axes();
    let tokens = axes.iter().zip(app.index()).filter_map(|(&axis, index)| {
        let role = match axis {
            Axis::Token if axes.contains(&Axis::Key) => "query",
            Axis::Key if axes.contains(&Axis::Token) => "key",
            Axis::Vocab => "candidate",
            Axis::One => "next token",
            _ => "token",
        };
        let position = if axis == Axis::Token { labels::position_of(app, index) } else { String::new() };
        labels::text_of(app, axis, index).map(|text| match with_roles {
            true => format!("{role} {text}{position}"),
            false => text,
        })
    });
    tokens.collect::<Vec<_>>().join(" → ")
}

/// The root mean square of the row under the cursor, if the row is a vector of finite numbers.
fn row(app: &App) -> Vec<Piece> {
    let Some(stats) = app.row().and_then(|row| app.answers.spread(row)).map(|spread| spread.stats) else {
        return Vec::new();
    };
    if stats.neg_inf + stats.pos_inf + stats.nan > 0 {
        return Vec::new();
    }
    let root = stats.mean.hypot(stats.std);
    let count = app.shape().last().copied().unwrap_or(0);
    let of = if app.cut().rows == 0 { "row" } else { "column" };
    let forms = [
        format!(" · RMS of the {of} √(Σ x²/{count}) "),
        format!(" · RMS of the {of} "),
        " · RMS ".to_owned(),
    ];
    vec![Piece::forms(forms, app.theme.dim()).rank(1), Piece::figure(root, false, app.theme.strong())]
}
