//! The notes panel: a step's formula with this model's sizes, its purpose, inputs and output, its names in other
//! programs, and the chapter. The panel of a verdict is here too.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget;

use llama_trace_core::chapters::Chapter;
use llama_trace_core::trace::stage::Input;
use llama_trace_core::trace::{Axis, ModelCard, Stage, Step};

use super::super::app::App;
use super::super::text;
use super::labels;
use super::lesson;
use super::markdown;
use super::paint::{put, put_line};

/// The first line of an exercise's answer.
const ANSWER: &str = "Answer";

/// The notes.
#[derive(Debug)]
pub struct Notes<'a>(pub &'a App);

struct Writer {
    lines: Vec<Line<'static>>,
    width: usize,
}

impl Writer {
    fn text(&mut self, indent: usize, content: &str, style: Style) {
        let space = " ".repeat(indent);
        for line in text::wrap(content, self.width.saturating_sub(indent)) {
            self.lines.push(Line::styled(format!("{space}{line}"), style));
        }
    }

    fn gap(&mut self) {
        self.lines.push(Line::default());
    }

    /// Writes a short name before a text. All lines of the text after the first are indented.
    fn named(&mut self, name: &str, name_style: Style, content: &str) {
        let lines = text::wrap(&format!("{name} {content}"), self.width.saturating_sub(2));
        for (i, line) in lines.into_iter().enumerate() {
            self.lines.push(match line.strip_prefix(name) {
                Some(rest) if i == 0 => {
                    Line::from(vec![Span::styled(name.to_owned(), name_style), rest.to_owned().into()])
                }
                _ if i == 0 => line.into(),
                _ => format!("  {line}").into(),
            });
        }
    }
}

/// "(T=12 token, D=64 dim)".
fn axes(app: &App, axes: &[Axis]) -> String {
    let shape = app.outline().card.sizes().shape(axes, app.dims());
    let parts: Vec<_> = (axes.iter().zip(shape))
        .map(|(axis, length)| match axis {
            Axis::One => "1".to_owned(),
            axis => format!("{}={length} {}", axis.symbol(), labels::name(*axis)),
        })
        .collect();
    format!("({})", parts.join(", "))
}

/// All lines of the notes on the current step, wrapped to `width` minus one column at either side.
pub fn lines(app: &App, width: u16) -> Vec<Line<'static>> {
    if let Some(words) = lesson::lines(app, width) {
        return words;
    }
    let theme = app.theme;
    let (step, card) = (app.place().step, &app.outline().card);
    let mut out = Writer { lines: Vec::new(), width: usize::from(width).saturating_sub(2) };
    if write_verdict(app, &mut out) {
        out.gap();
        out.lines.push(Line::styled("─".repeat(out.width), theme.dim()));
    }
    let kind = match step {
        Step::Stage(_) => format!("  {}", step.op()),
        Step::View(view) => format!("  {}, a view of {}", step.op(), view.source()),
    };
    out.lines
        .push(Line::from(vec![Span::styled(step.name(), theme.strong()), Span::styled(kind, theme.dim())]));
    out.text(0, &card.formula(step, app.dims(), app.place().layer), theme.code());
    out.gap();
    out.text(0, &card.fill(step.purpose(), app.dims(), app.place().layer), Style::new());
    out.gap();
    shapes(app, &mut out);
    if let Step::Stage(stage) = step {
        facts(app, stage, &mut out);
        aliases(app, stage, &mut out);
    }
    for chapter in app.notes.chapters.about(step) {
        out.gap();
        out.lines.push(Line::styled("─".repeat(out.width), theme.dim()));
        let arithmetic = chapter.precision().map_or(String::new(), |name| format!(", in {name}"));
        let whose = "Numbers in this chapter are the built-in model's, for the chapter's own prompt";
        out.text(0, &format!("{whose}{arithmetic}."), theme.dim());
        let folded = (!app.notes.answers_shown).then(|| chapter.folded("x"));
        out.lines.extend(markdown::render(folded.as_deref().unwrap_or(chapter.text), out.width, theme));
    }
    out.lines
}

/// The panel of the verdict on two runs.
#[derive(Debug)]
pub struct JudgedPanel<'a>(pub &'a App);

impl Widget for JudgedPanel<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let mut out = Writer { lines: Vec::new(), width: usize::from(area.width).saturating_sub(2) };
        write_verdict(self.0, &mut out);
        let inner = Rect { x: area.x + 1, width: area.width.saturating_sub(2), ..area }.intersection(area);
        // The heading is in the rule above the panel.
        for (y, line) in out.lines.iter().skip(1).take(area.height.into()).enumerate() {
            put_line(buf, inner, y as u16, line);
        }
    }
}

/// Writes the verdict on two runs; false if there is none.
fn write_verdict(app: &App, out: &mut Writer) -> bool {
    let Some(verdict) = &app.comparison.verdict else { return false };
    out.lines.push(Line::styled("A against B", app.theme.strong()));
    verdict.lines().iter().for_each(|line| out.text(0, line, Style::new()));
    let table = verdict.table();
    if !table.is_empty() {
        out.gap();
        out.text(0, "How far B is from A, ‖B − A‖ / ‖A‖, by layer (≠: a stage differs):", Style::new());
    }
    for (at, row) in table.iter().enumerate() {
        let style = if at == 0 { app.theme.dim() } else { Style::new() };
        out.lines.push(Line::styled(text::cut(row, out.width), style));
    }
    true
}

/// The line of the notes with the title of `chapter`.
pub fn line_of(app: &App, width: u16, chapter: &Chapter) -> usize {
    let lines = lines(app, width);
    let title = text::wrap(chapter.title(), usize::from(width).saturating_sub(2));
    let first = title.first().map_or("", |line| line);
    lines.iter().position(|line| line.to_string().trim() == first).unwrap_or(0)
}

/// The first line of the next answer, searched from line `first` on. If there is none, the first line of the first
/// answer.
pub fn answer_after(app: &App, width: u16, first: usize) -> Option<usize> {
    let lines = lines(app, width);
    let begins = |(_, line): &(usize, &Line<'_>)| line.to_string() == ANSWER;
    let mut all = lines.iter().enumerate().filter(begins).map(|(at, _)| at);
    all.clone().find(|&line| line >= first).or_else(|| all.next())
}

fn shapes(app: &App, out: &mut Writer) {
    let theme = app.theme;
    match app.place().step {
        Step::View(view) => {
            out.named("in", theme.dim(), &format!("{} {}", view.source(), axes(app, view.axes_in())));
            out.named("out", theme.dim(), &format!("{view} {}", axes(app, view.axes())));
        }
        Step::Stage(stage) => {
            for input in app.place().site().inputs(&app.outline().card.sizes(), app.dims()) {
                let text = match input {
                    Input::Stage(input) => format!("{input} {}", axes(app, input.axes())),
                    Input::LayerInput => layer_input(app),
                    Input::Positions => {
                        let dims = app.dims();
                        format!("positions {}-{}", dims.start, dims.keys().saturating_sub(1))
                    }
                };
                out.named("in", theme.dim(), &text);
            }
            for weight in stage.weights(&app.outline().card) {
                let matrix = weight.axes.len() == 2 && app.outline().card.sizes().group.is_some();
                let int8 = if matrix { " int8" } else { "" };
                out.named(
                    "weight",
                    theme.dim(),
                    &format!("{}{int8} {}", weight.name, axes(app, weight.axes)),
                );
            }
            out.named("out", theme.dim(), &format!("{stage} {}", axes(app, stage.axes())));
        }
    }
}

/// The layer's input x: the output of the previous layer, or the embedding.
fn layer_input(app: &App) -> String {
    let shape = axes(app, &[Axis::Token, Axis::Dim]);
    let layers = app.outline().card.sizes().layers;
    match app.place().layer.unwrap_or(layers).checked_sub(1) {
        Some(before) => format!("x = layer {before}'s ffn_residual {shape}"),
        None => format!("x = embedding {shape}"),
    }
}

/// Writes the properties of the model that matter at this stage.
fn facts(app: &App, stage: Stage, out: &mut Writer) {
    let card = &app.outline().card;
    let dim = app.theme.dim();
    if let Some(text) = grouping(card, stage) {
        out.named("g", dim, &text);
    }
    match stage {
        _ if stage.is_rope_table() => {
            let rope = app.place().layer.and_then(|layer| card.config.rope_of(layer)).unwrap_or(0);
            out.named("scaling", dim, &card.config.rope(rope).scaling.to_string());
        }
        Stage::XqRope | Stage::XkRope => {
            let text = format!(
                "{}: which two components of a head rotate together; the checkpoint's weights decide",
                card.config.pairing.name()
            );
            out.named("pairs", dim, &text);
        }
        Stage::Logits if card.config.tied => {
            out.named("tied", dim, "the output matrix is the embedding table");
        }
        _ => {}
    }
}

/// The meaning of g, the group size, at this stage of an int8 model.
fn grouping(card: &ModelCard, stage: Stage) -> Option<String> {
    let group = card.sizes().group?;
    if stage.is_int8() || stage.is_scale() {
        let of_heads = stage
            .info()
            .inputs
            .iter()
            .any(|input| matches!(input, Input::Stage(of) if of.axes().contains(&Axis::Head)));
        let row = match of_heads {
            true => "a token's heads side by side",
            false => "a token's row",
        };
        let last = group.saturating_sub(1);
        return Some(format!(
            "= {group} values that share a scale. Groups are counted from the start of {row}: values 0-{last} are \
             group 0, the next {group} values are group 1; the last group may be shorter. A value is its int8 times the \
             scale of its group."
        ));
    }
    let product = stage.info().weights.iter().any(|weight| weight.axes.len() == 2);
    product.then(|| {
        format!(
            "= {group} values of the matrix that share a scale. Groups are counted from the first value of the \
             matrix, so a group may continue in the next row."
        )
    })
}

fn aliases(app: &App, stage: Stage, out: &mut Writer) {
    let names = stage.aliases(&app.outline().card.config);
    let rows = [
        ("Hugging Face", names.hugging_face),
        ("TransformerLens", names.transformer_lens),
        ("llama.cpp", names.llama_cpp),
        ("llama-nuts-and-bolts (Go)", names.go),
    ];
    if rows.iter().all(|(_, name)| name.is_empty()) {
        return;
    }
    out.gap();
    out.text(0, "elsewhere", app.theme.strong());
    for (place, name) in rows.into_iter().filter(|(_, name)| !name.is_empty()) {
        out.named(place, app.theme.dim(), name);
    }
}

impl Widget for Notes<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let app = self.0;
        let lines = lines(app, area.width);
        let inner = Rect { x: area.x + 1, width: area.width.saturating_sub(2), ..area }.intersection(area);
        let height = usize::from(area.height);
        for (y, line) in lines.iter().skip(app.notes.line).take(height).enumerate() {
            put_line(buf, inner, y as u16, line);
        }
        // Marks at the edge show that there are further lines.
        let right = area.width.saturating_sub(1);
        if app.notes.line > 0 {
            put(buf, area, right, 0, "▲", app.theme.key());
        }
        if app.notes.line + height < lines.len() {
            put(buf, area, right, area.height.saturating_sub(1), "▼", app.theme.key());
        }
    }
}
