//! The effects as heatmaps: layer × token, or layer × head.

use std::io::Write;

use super::{Effect, Report};
use crate::cli::PatchPart;
use llama_trace_core::error::{Error, Result};
use llama_trace_picture::canvas::{Canvas, Letters};
use llama_trace_picture::{self as picture, Paper, Rgb};
use llama_trace_tui::palette::Palette;
use llama_trace_tui::text;

/// Size of a cell, width of a letter and height of a line of text, in units.
const CELL: f32 = 22.0;
const LETTER: f32 = 6.0;
const LINE: f32 = 14.0;
/// Letters of a label.
const LABEL: usize = 14;
/// Colour of an effect that is not a number.
const BROKEN: Rgb = (230, 0, 230);

/// Writes the picture to standard output.
///
/// # Errors
/// [`Error::Usage`] if no part is a map.
pub(super) fn svg(report: &Report) -> Result<std::io::Result<()>> {
    let maps: Vec<_> = report.maps.iter().filter(|(part, _)| *part != PatchPart::Neurons).collect();
    if maps.is_empty() {
        return Err(Error::usage("neurons are a list, and this format draws maps")
            .expected("--parts with residual, attn, ffn or heads")
            .next("give another part, or use --format text or json"));
    }
    let drawn: Vec<Map> = maps.iter().map(|(part, effects)| Map::new(report, *part, effects)).collect();
    let width = drawn.iter().map(Map::width).fold(0.0, f32::max);
    let height = LINE * 3.0 + drawn.iter().map(Map::height).sum::<f32>();
    let mut canvas = Canvas::svg(width, height, Paper::Light.background());
    let [answer, wrong] = &report.compared;
    let words = format!(
        "effect: 0 is the corrupted run, 1 is the clean run · {} against {}",
        text::visible(&answer.text),
        text::visible(&wrong.text)
    );
    say(&mut canvas, (8.0, LINE), &words, Paper::Light.ink(), true);
    let mut top = LINE * 2.0;
    for map in &drawn {
        map.draw(report, top, &mut canvas);
        top += map.height();
    }
    let bytes = picture::written(canvas)?;
    let mut out = std::io::stdout().lock();
    Ok(out.write_all(&bytes).and_then(|()| out.flush()))
}

fn say(canvas: &mut Canvas, at: (f32, f32), words: &str, ink: Rgb, bold: bool) {
    let letters = Letters { bold, ..Letters::new(ink, LETTER) };
    canvas.text(at, text::width(words), words, letters);
}

/// One heatmap.
struct Map<'a> {
    part: PatchPart,
    rows: Vec<&'a [Effect]>,
    columns: Vec<String>,
}

impl<'a> Map<'a> {
    fn new(report: &Report, part: PatchPart, effects: &'a [Effect]) -> Self {
        let columns: Vec<String> = match part {
            PatchPart::Heads => (0..report.sizes.heads).map(|head| head.to_string()).collect(),
            _ => {
                let both = report.tokens[0].iter().zip(&report.tokens[1]).enumerate();
                let texts = both.map(|(t, (clean, corrupted))| {
                    let other =
                        if clean.id == corrupted.id { String::new() } else { format!("|{}", corrupted.text) };
                    text::cut(&text::visible(&format!("{t} {}{other}", clean.text)), LABEL)
                });
                texts.collect()
            }
        };
        Self { part, rows: effects.chunks(columns.len()).collect(), columns }
    }

    /// The space left of the cells, and above them.
    fn margin(&self) -> (f32, f32) {
        let longest = self.columns.iter().map(|label| text::width(label)).max().unwrap_or(0);
        (LETTER * 10.0 + 16.0, LINE * 2.0 + longest as f32 * LETTER)
    }

    fn width(&self) -> f32 {
        (self.margin().0 + self.columns.len() as f32 * CELL + 16.0).max(620.0)
    }

    fn height(&self) -> f32 {
        self.margin().1 + self.rows.len() as f32 * CELL + LINE
    }

    fn draw(&self, report: &Report, top: f32, canvas: &mut Canvas) {
        let (ink, (left, above)) = (Paper::Light.ink(), self.margin());
        say(canvas, (8.0, top + LINE), self.part.title(), ink, false);
        let effects: Vec<f64> = (self.rows.iter())
            .flat_map(|row| row.iter().map(|effect| report.measure.effect(effect.value)))
            .collect();
        // The clean run has the full colour, unless an effect is larger.
        let largest =
            effects.iter().map(|effect| effect.abs()).filter(|size| size.is_finite()).fold(1.0, f64::max);
        for (column, label) in self.columns.iter().enumerate() {
            let x = left + (column as f32 + 0.5) * CELL + LETTER / 2.0;
            let letters = Letters::new(ink, LETTER);
            canvas.text_upwards((x, top + above - 4.0), text::width(label), label, letters);
        }
        for (row, cells) in self.rows.iter().enumerate() {
            let y = top + above + row as f32 * CELL;
            let label = cells[0].place.layer.map_or("embedding".to_owned(), |layer| format!("layer {layer}"));
            let x = left - 6.0 - text::width(&label) as f32 * LETTER;
            say(canvas, (x, y + CELL / 2.0 + LETTER / 2.0), &label, ink, false);
            for column in 0..cells.len() {
                let effect = effects[row * self.columns.len() + column];
                let colour = match effect.is_nan() {
                    true => BROKEN,
                    false => Palette::default().diverging((effect / largest).clamp(-1.0, 1.0)),
                };
                let x = left + column as f32 * CELL;
                canvas.rect((x, y), (CELL, CELL), colour, 1.0);
                let percent = format!("{:.0}", (100.0 * effect).round() + 0.0);
                if text::width(&percent) <= 3 {
                    let ink = if llama_trace_tui::palette::is_light(colour) {
                        (24, 24, 24)
                    } else {
                        (255, 255, 255)
                    };
                    let x = x + (CELL - text::width(&percent) as f32 * LETTER) / 2.0;
                    say(canvas, (x, y + CELL / 2.0 + LETTER / 2.0), &percent, ink, false);
                }
            }
        }
    }
}
