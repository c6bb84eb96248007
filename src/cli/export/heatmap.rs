//! A stage as a heatmap with axes and token labels. If a cell stands for several values, it has the colour of the value
//! furthest from 0 among them, so that no extreme is lost.

use llama_trace_core::trace::{Axis, Site, Stage, Stats};
use llama_trace_picture::canvas::{Canvas, Letters};
use llama_trace_picture::{Paper, Rgb};
use llama_trace_tui::palette::Palette;
use llama_trace_tui::text;

/// Maximum width and height of all panels together (`ROOM`), and of a single panel (`ALONE`), in units.
const ROOM: f32 = 1400.0;
const ALONE: f32 = 1000.0;
/// Minimum and maximum size of a cell, in units.
const SMALLEST: f32 = 2.0;
const LARGEST: f32 = 18.0;
/// Width of a letter and height of a line of text, in units; maximum letters of a label.
const LETTER: f32 = 6.0;
const LINE: f32 = 14.0;
const LABEL: usize = 14;
/// Minimum size of a cell that has room for a mark, in units.
const MARKED: f32 = 6.0;

const MASKED: Rgb = (176, 176, 176);
const BROKEN: Rgb = (230, 0, 230);

/// One direction of a panel.
#[derive(Clone, Copy, Debug)]
struct Side {
    axis: Option<Axis>,
    /// Number of values.
    length: usize,
    /// Number of values in one cell.
    each: usize,
    /// Size of a cell, in units.
    size: f32,
}

impl Side {
    fn new(axis: Option<Axis>, length: usize, room: f32) -> Self {
        let each = (length as f32 * SMALLEST / room).ceil().max(1.0) as usize;
        let size = (room / length.div_ceil(each).max(1) as f32).floor().clamp(SMALLEST, LARGEST);
        Self { axis, length, each, size }
    }

    fn cells(&self) -> usize {
        self.length.div_ceil(self.each)
    }

    fn units(&self) -> f32 {
        self.cells() as f32 * self.size
    }

    /// The cells that have a label: as many as there is room for.
    fn labelled(&self) -> impl Iterator<Item = usize> {
        (0..self.cells()).step_by((LINE / self.size).ceil().max(1.0) as usize)
    }
}

/// A heatmap. It takes the values in their order.
pub(super) struct Heatmap {
    site: Site,
    shape: Vec<usize>,
    /// The position of the axis that has a panel for each index.
    held: Option<usize>,
    rows: Side,
    columns: Side,
    /// For each cell, the value furthest from 0. The order is panel by panel, row by row.
    cells: Vec<f64>,
    seen: usize,
}

/// Returns whether a cell shows `new` rather than `old`. Both values belong to this cell.
fn rather(new: f64, old: f64) -> bool {
    let rank = |value: f64| match value {
        value if value.is_nan() => f64::INFINITY,
        // A causal mask covers a whole corner, so a cell shows any other value rather than a masked one.
        f64::NEG_INFINITY => -1.0,
        value => value.abs(),
    };
    rank(new) > rank(old)
}

impl Heatmap {
    /// An empty heatmap of the stage at `site`, whose values have this shape.
    pub(super) fn new(site: Site, shape: &[usize]) -> Self {
        let axes = site.stage.axes();
        let held = (axes.len() > 2)
            .then(|| axes.iter().position(|axis| matches!(axis, Axis::Head | Axis::KvHead)).unwrap_or(0));
        let mut rest = (0..axes.len()).filter(|&at| Some(at) != held);
        let (first, second) = (rest.next(), rest.next());
        let panels = held.map_or(1, |held| shape[held]);
        let room = match held {
            Some(_) => (ROOM / (panels as f32).sqrt().ceil()).max(120.0),
            None => ALONE,
        };
        let side = |at: Option<usize>| Side::new(at.map(|at| axes[at]), at.map_or(1, |at| shape[at]), room);
        // A stage with one axis is drawn as a row.
        let (mut rows, mut columns) =
            if second.is_some() { (side(first), side(second)) } else { (side(None), side(first)) };
        if matches!((rows.axis, columns.axis), (Some(Axis::Token), Some(Axis::Key))) {
            let size = rows.size.min(columns.size);
            (rows.size, columns.size) = (size, size);
        }
        let cells = vec![f64::NEG_INFINITY; panels * rows.cells() * columns.cells()];
        Self { site, shape: shape.to_vec(), held, rows, columns, cells, seen: 0 }
    }

    /// Takes the next value, in row-major order.
    pub(super) fn add(&mut self, value: f64) {
        let (mut rest, mut index) = (self.seen, [0; 3]);
        for at in (0..self.shape.len()).rev() {
            index[at] = rest % self.shape[at].max(1);
            rest /= self.shape[at].max(1);
        }
        self.seen += 1;
        let panel = self.held.map_or(0, |held| index[held]);
        let mut others = (0..self.shape.len()).filter(|&at| Some(at) != self.held).map(|at| index[at]);
        let (first, second) = (others.next().unwrap_or(0), others.next());
        let (row, column) = second.map_or((0, first), |second| (first, second));
        let cell = (panel * self.rows.cells() + row / self.rows.each) * self.columns.cells()
            + column / self.columns.each;
        let cell = &mut self.cells[cell];
        if rather(value, *cell) {
            *cell = value;
        }
    }

    /// The drawing for a picture `in_pixels` or for an SVG file. `label` returns the token that an index of an axis
    /// stands for.
    pub(super) fn draw(
        &self,
        stats: Stats,
        in_pixels: bool,
        label: impl Fn(Axis, usize) -> Option<String>,
    ) -> Canvas {
        let paper = Paper::Light;
        let (ink, dim) = (paper.ink(), (110, 110, 110));
        let texts = |side: &Side| -> Vec<(usize, String)> {
            let text = |cell: usize| {
                let index = cell * side.each;
                let token = side.axis.filter(|_| side.each == 1).and_then(|axis| label(axis, index));
                let token = token.map_or(String::new(), |token| format!(" {}", text::visible(&token)));
                (cell, text::cut(&format!("{index}{token}"), LABEL))
            };
            side.labelled().map(text).collect()
        };
        let (down, across) = (texts(&self.rows), texts(&self.columns));
        let longest = |texts: &[(usize, String)]| {
            texts.iter().map(|(_, text)| text::width(text)).max().unwrap_or(0) as f32 * LETTER + 8.0
        };
        let (left, top) = (longest(&down).max(LETTER * 8.0), longest(&across) + 2.0 * LINE);
        let panels = self.held.map_or(1, |held| self.shape[held]);
        let beside = (panels as f32).sqrt().ceil().max(1.0) as usize;
        let (wide, high) = (left + self.columns.units() + 16.0, top + self.rows.units() + 12.0);
        let lines = self.words(stats);
        let longest = lines.iter().map(|line| text::width(line)).max().unwrap_or(0) as f32 * LETTER + 16.0;
        let head = LINE * (lines.len() as f32 + 2.0);
        let width = (beside as f32 * wide).max(longest).max(300.0);
        let height = head + panels.div_ceil(beside) as f32 * high + 8.0;
        let new = if in_pixels { Canvas::pixels } else { Canvas::svg };
        let mut canvas = new(width, height, paper.background());
        for (at, line) in (1_u8..).zip(&lines) {
            let letters = Letters { bold: at == 1, ..Letters::new(ink, LETTER) };
            canvas.text((8.0, LINE * f32::from(at)), text::width(line), line, letters);
        }
        self.ramp(stats, LINE * (lines.len() as f32 + 0.4), &mut canvas);
        for panel in 0..panels {
            let x = (panel % beside) as f32 * wide + left;
            let y = head + (panel / beside) as f32 * high + top;
            if let Some(held) = self.held {
                let name = format!("{} {panel}", self.site.stage.axes()[held].name());
                canvas.text((x, y - top + LINE), text::width(&name), &name, Letters::new(ink, LETTER));
            }
            for (cell, text) in &across {
                let x = x + (*cell as f32 + 0.5) * self.columns.size + LETTER / 2.0;
                canvas.text_upwards((x, y - 4.0), text::width(text), text, Letters::new(dim, LETTER));
            }
            for (cell, text) in &down {
                let y = y + (*cell as f32 + 0.5) * self.rows.size + LETTER / 2.0;
                let columns = text::width(text);
                let x = x - 4.0 - columns as f32 * LETTER;
                canvas.text((x, y), columns, text, Letters::new(dim, LETTER));
            }
            self.panel(panel, (x, y), stats, &mut canvas);
        }
        canvas
    }

    fn panel(&self, panel: usize, (x, y): (f32, f32), stats: Stats, canvas: &mut Canvas) {
        let (rows, columns) = (self.rows.cells(), self.columns.cells());
        let (wide, high) = (self.columns.size, self.rows.size);
        for row in 0..rows {
            for column in 0..columns {
                let value = self.cells[(panel * rows + row) * columns + column];
                let (x, y) = (x + column as f32 * wide, y + row as f32 * high);
                canvas.rect((x, y), (wide, high), self.colour(value, stats), 1.0);
                if wide < MARKED || high < MARKED {
                    continue;
                }
                let (middle, centre) = (x + wide / 2.0, y + high / 2.0);
                if value == 0.0 {
                    canvas.rect((middle - 0.5, centre - 0.5), (1.0, 1.0), (90, 90, 90), 1.0);
                } else if !value.is_finite() {
                    canvas.rect((x + 2.0, centre - 0.5), (wide - 4.0, 1.0), (255, 255, 255), 1.0);
                } else if value < 0.0 {
                    canvas.rect((middle - 1.5, centre - 0.5), (3.0, 1.0), (255, 255, 255), 0.8);
                }
            }
        }
    }

    fn is_positive(&self) -> bool {
        Stage::info(self.site.stage).unit.is_positive()
    }

    fn colour(&self, value: f64, stats: Stats) -> Rgb {
        let largest = stats.min.abs().max(stats.max.abs());
        let share = if largest > 0.0 { value / largest } else { 0.0 };
        match value {
            value if value.is_nan() => BROKEN,
            value if value.is_infinite() => MASKED,
            _ if self.is_positive() => Palette::default().sequential(share, Paper::Light),
            _ => Palette::default().diverging(share),
        }
    }

    /// A description of the heatmap, in lines.
    fn words(&self, stats: Stats) -> Vec<String> {
        let axes = self.site.stage.axes().iter().zip(&self.shape);
        let axes: Vec<_> = axes.map(|(axis, length)| format!("{} {length}", axis.name())).collect();
        let held = |side: &Side| side.axis.map_or("", Axis::name);
        let (down, across) = (held(&self.rows), held(&self.columns));
        let sides =
            if down.is_empty() { format!("→ {across}") } else { format!("↓ {down} · → {across}") };
        let [min, max, mean, std] = [stats.min, stats.max, stats.mean, stats.std].map(|value| value as f32);
        let mut lines = vec![
            format!("{}  {} · {sides}", self.site, axes.join(" × ")),
            format!("min {min} max {max} mean {mean} std {std}"),
        ];
        let each = self.rows.each * self.columns.each;
        if each > 1 {
            lines.push(format!("each cell shows the value furthest from 0 of up to {each} values"));
        }
        lines
    }

    /// Draws the colours with the values at their ends, and the meaning of the marks.
    fn ramp(&self, stats: Stats, y: f32, canvas: &mut Canvas) {
        let largest = stats.min.abs().max(stats.max.abs());
        let low = if self.is_positive() { 0.0 } else { -largest };
        let letters = Letters::new((24, 24, 24), LETTER);
        let mut x = 8.0;
        let say = |text: &str, canvas: &mut Canvas, x: &mut f32| {
            canvas.text((*x, y + 10.0), text::width(text), text, letters);
            *x += text::width(text) as f32 * LETTER + 6.0;
        };
        say(&format!("{low}"), canvas, &mut x);
        for step in 0..=24_u8 {
            let value = low + (largest - low) * f64::from(step) / 24.0;
            canvas.rect((x, y), (4.0, 12.0), self.colour(value, stats), 1.0);
            x += 4.0;
        }
        x += 6.0;
        say(&format!("{largest}"), canvas, &mut x);
        say("· is 0", canvas, &mut x);
        if !self.is_positive() {
            say("- is below 0", canvas, &mut x);
        }
        for (count, name, colour) in
            [(stats.neg_inf + stats.pos_inf, "infinite", MASKED), (stats.nan, "not a number", BROKEN)]
        {
            if count > 0 {
                canvas.rect((x, y), (12.0, 12.0), colour, 1.0);
                x += 16.0;
                say(name, canvas, &mut x);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_of_many_values_has_the_one_furthest_from_0() {
        let shape = [2, 4000];
        let mut heatmap = Heatmap::new(Site::once(0, Stage::Logits), &shape);
        assert!(heatmap.columns.each > 1 && heatmap.rows.each == 1);
        for at in 0..8000 {
            heatmap.add(match at {
                1234 => -9.0,
                5678 => 7.0,
                _ => 0.5,
            });
        }
        let extreme = |value: f64| heatmap.cells.iter().filter(|cell| **cell == value).count();
        assert_eq!((extreme(-9.0), extreme(7.0)), (1, 1));
        assert_eq!(heatmap.cells.len(), extreme(0.5) + 2);
    }

    #[test]
    fn what_is_broken_is_never_hidden_and_what_is_masked_hides_nothing() {
        assert!(rather(f64::NAN, 1e30) && rather(-1.0, f64::NEG_INFINITY) && rather(0.0, f64::NEG_INFINITY));
        assert!(!rather(f64::NEG_INFINITY, 0.0) && !rather(2.0, -3.0));
    }
}
