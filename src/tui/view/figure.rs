//! Drawings of a rule: RoPE's rotation of a pair, a point on the SiLU curve, the addition to the residual stream.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget;
use ratatui::widgets::canvas::{self, Canvas, Circle, Points};

use llama_trace_core::trace::explanation::Figure;
use llama_trace_core::trace::stream::Addition;

use super::super::text;
use super::super::theme::Theme;

/// Lines of a drawing. With twice as many columns, the drawing is square.
const HEIGHT: u16 = 13;

/// Columns of a drawing, if there is room.
pub const COLUMNS: u16 = HEIGHT * 2;

/// A drawing and its legend.
#[derive(Debug)]
pub struct Drawn {
    /// The lines of the drawing; empty if nothing can be drawn.
    pub picture: Vec<Line<'static>>,
    /// The meaning of the drawing's marks and axes.
    pub words: Vec<Line<'static>>,
}

/// The drawing of `figure`, at most `width` columns wide.
pub fn draw(figure: Figure, width: usize, theme: Theme) -> Drawn {
    let columns = COLUMNS.min(u16::try_from(width).unwrap_or(u16::MAX));
    match figure {
        Figure::Rotation { before, after, angle } => rotation(before, after, angle, columns, theme),
        Figure::Silu { x, y } => silu(x, y, columns, theme),
    }
}

fn rotation(before: [f64; 2], after: [f64; 2], angle: f64, columns: u16, theme: Theme) -> Drawn {
    let radius = before[0].hypot(before[1]);
    if !(radius > 0.0 && radius.is_finite()) {
        let words = vec![Line::styled("a pair of zeros stays where it is", theme.dim())];
        return Drawn { picture: Vec::new(), words };
    }
    let (low, high) = (-1.25 * radius, 1.25 * radius);
    let ink = |style: Style| style.fg.unwrap_or_default();
    let canvas =
        Canvas::default().marker(Marker::Braille).x_bounds([low, high]).y_bounds([low, high]).paint(|draw| {
            draw.draw(&Circle { x: 0.0, y: 0.0, radius, color: ink(theme.dim()) });
            for (to, style) in [(before, theme.dim()), (after, theme.bar())] {
                draw.draw(&canvas::Line { x1: 0.0, y1: 0.0, x2: to[0], y2: to[1], color: ink(style) });
            }
            draw.layer();
            draw.print(before[0], before[1], Line::styled("○", theme.strong()));
            draw.print(after[0], after[1], Line::styled("●", theme.key()));
        });
    let pair = |[a, b]: [f64; 2]| format!("({}, {})", text::real(a), text::real(b));
    let degrees = angle.to_degrees();
    let marks = Line::from(vec![
        Span::styled("○ ", theme.strong()),
        format!("before {}", pair(before)).into(),
        Span::styled("  ● ", theme.key()),
        format!("after {}", pair(after)).into(),
    ]);
    let axes =
        format!("horizontal: first component; vertical: second; turned by {degrees:.1}°, {angle:.4} radians");
    Drawn { picture: drawn(canvas, (columns, HEIGHT)), words: vec![marks, Line::styled(axes, theme.dim())] }
}

fn silu(x: f64, y: f64, columns: u16, theme: Theme) -> Drawn {
    if !(x.is_finite() && y.is_finite()) {
        return Drawn { picture: Vec::new(), words: Vec::new() };
    }
    let reach = x.abs().max(4.0) * 1.2;
    let curve: Vec<(f64, f64)> = (0..=400)
        .map(|i| (f64::from(i) / 200.0 - 1.0) * reach)
        .map(|x| (x, x / (1.0 + (-x).exp())))
        .collect();
    let ink = |style: Style| style.fg.unwrap_or_default();
    let canvas =
        Canvas::default().marker(Marker::Braille).x_bounds([-reach, reach]).y_bounds([-reach, reach]).paint(
            |draw| {
                draw.draw(&canvas::Line { x1: -reach, y1: 0.0, x2: reach, y2: 0.0, color: ink(theme.dim()) });
                draw.draw(&canvas::Line { x1: 0.0, y1: -reach, x2: 0.0, y2: reach, color: ink(theme.dim()) });
                draw.layer();
                draw.draw(&Points { coords: &curve, color: ink(theme.bar()) });
                draw.layer();
                draw.print(x, y, Line::styled("●", theme.key()));
            },
        );
    let mark = Line::from(vec![
        Span::styled("● ", theme.key()),
        format!("gate {} → {}", text::real(x), text::real(y)).into(),
    ]);
    let axes = format!("both axes from −{reach:.1} to {reach:.1}; horizontal: the gate");
    Drawn { picture: drawn(canvas, (columns, HEIGHT)), words: vec![mark, Line::styled(axes, theme.dim())] }
}

/// The addition of a sublayer as a triangle in the plane of both vectors. The residual stream points to the right, and
/// the added vector begins at its tip.
pub fn addition(added: &Addition, (columns, height): (u16, u16), theme: Theme) -> Vec<Line<'static>> {
    let Some(angle) = added.angle() else { return Vec::new() };
    let (sine, cosine) = angle.to_radians().sin_cos();
    let (x, to) = (added.before, [added.before + added.added * cosine, added.added * sine]);
    // A terminal column is half as wide as a line is high.
    let (low, high) = (to[0].min(0.0), to[0].max(x));
    let unit = ((high - low) / f64::from(columns) * 2.0).max(to[1] / f64::from(height)) * 1.2;
    let (middle, wide, tall) =
        ((low + high) / 2.0, unit * f64::from(columns) / 4.0, unit * f64::from(height));
    let ink = |style: Style| style.fg.unwrap_or_default();
    let line = |from: [f64; 2], to: [f64; 2], style: Style| canvas::Line {
        x1: from[0],
        y1: from[1],
        x2: to[0],
        y2: to[1],
        color: ink(style),
    };
    let canvas = Canvas::default()
        .marker(Marker::Braille)
        .x_bounds([middle - wide, middle + wide])
        .y_bounds([-0.1 * tall, 0.9 * tall])
        .paint(|draw| {
            draw.draw(&line([0.0, 0.0], [x, 0.0], theme.strong()));
            draw.draw(&line([0.0, 0.0], to, theme.dim()));
            draw.layer();
            draw.draw(&line([x, 0.0], to, theme.bar()));
            draw.layer();
            draw.print(x / 2.0, 0.0, Line::styled("x", theme.strong()));
            draw.print((x + to[0]) / 2.0, to[1] / 2.0, Line::styled("a", theme.key()));
            draw.print(to[0], to[1], Line::styled("●", theme.key()));
        });
    drawn(canvas, (columns, height))
}

/// The canvas as lines of text.
fn drawn(
    canvas: Canvas<'_, impl Fn(&mut canvas::Context<'_>)>,
    (columns, height): (u16, u16),
) -> Vec<Line<'static>> {
    let area = Rect::new(0, 0, columns, height);
    let mut buf = Buffer::empty(area);
    canvas.render(area, &mut buf);
    let line = |y: u16| {
        let spans = (0..columns).map(|x| {
            let cell = &buf[(x, y)];
            Span::styled(cell.symbol().to_owned(), cell.style())
        });
        Line::from(spans.collect::<Vec<_>>())
    };
    (0..height).map(line).collect()
}
