//! The derivation panel: trail, formula, operands with their tokens, the largest terms as bars, and the recomputed
//! result beside the recorded result.

use std::ops::Range;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget;

use llama_trace_core::error::printable;
use llama_trace_core::trace::explanation::{Explanation, From, Operand, Split, Term, Together};
use llama_trace_core::trace::frame::Number;
use llama_trace_core::trace::{Address, Axis, Subject};

use super::super::app::App;
use super::super::derivation::Derivation;
use super::super::derivation_queries::address_of;
use super::super::panel_state::Focus;
use super::super::text;
use super::common_factors::{self, Factor};
use super::figure;
use super::labels;
use super::paint::{put, put_line};

/// Columns of a number.
const NUMBER: usize = 12;
/// Columns of the longest bar.
const BAR: usize = 10;
/// Minimum columns at which a picture is drawn beside the terms.
const BESIDE: usize = 80;
/// Minimum columns at which a split has bars beside its numbers.
const WIDE: usize = 66;
/// Columns of a share.
const SHARE: usize = 8;
/// Columns of a token's text.
const TEXT: usize = 12;
/// Columns of the indices that distinguish a term.
const WHICH: usize = 16;
/// The mark of omitted entries at the start of the trail.
const MORE: &str = "… › ";
/// Columns before the operands of a term without a bar, and before operands that are below their term.
const OPERANDS: usize = NUMBER + 4;
/// Columns before the factors of a term if the factors are below it.
const UNDER: usize = 4;
/// A split with at most `SHORT` parts is shown above the terms, if the panel has at least `ROOMY` lines.
const SHORT: usize = 3;
const ROOMY: u16 = 14;

/// The derivation panel.
#[derive(Debug)]
pub struct DerivationPanel<'a>(pub &'a App);

/// A line of the panel.
#[derive(Clone, Debug, Default)]
pub struct Row {
    line: Line<'static>,
    /// The operands on the line: their columns, and the numbers of term and operand.
    operands: Vec<(Range<usize>, (usize, usize))>,
    /// The component of a weight's row that is on this line.
    component: Option<usize>,
}

struct Writer<'a> {
    app: &'a App,
    rows: Vec<Row>,
    width: usize,
}

/// The area of the lines, below the trail.
pub fn below(area: Rect) -> Rect {
    Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area }.intersection(area)
}

/// All lines except the trail, wrapped to `width` minus one column at either side.
pub fn rows(app: &App, width: u16) -> Vec<Row> {
    let mut out = Writer { app, rows: Vec::new(), width: usize::from(width).saturating_sub(2) };
    let Some(derivation) = app.derivation() else { return out.rows };
    if derivation.weight.is_none() {
        out.edits();
    }
    match (&derivation.weight, app.explanation()) {
        (Some(weight), _) => out.weight(weight),
        (None, Some(Ok(explanation))) => out.explanation(explanation),
        (None, Some(Err(reason))) => {
            out.gap();
            out.text("This number cannot be explained:", app.theme.error());
            out.text(reason, Style::new());
        }
        (None, None) => {
            out.gap();
            out.text("explaining …", app.theme.dim());
        }
    }
    out.rows
}

/// The trail: the addresses that Enter went through; the current one is the last. In little room the first ones are
/// omitted.
fn trail(app: &App, derivation: &Derivation, width: usize) -> Line<'static> {
    let here = app.place().address(&app.index());
    let mut way: Vec<String> = derivation.trail.iter().map(|left| left.address.to_string()).collect();
    match &derivation.weight {
        Some(weight) => way.push(weight.to_string()),
        None => way.push(here),
    }
    let last = way.pop().unwrap_or_default();
    // The mark of omitted entries needs room too.
    let more = if way.is_empty() { 0 } else { text::width(MORE) };
    let mut room = width.saturating_sub(text::width(&last));
    // The lines that name the weight's row can be scrolled out of sight. The trail cannot, so it names the
    // row too.
    let what = derivation.weight.as_ref().map(|weight| {
        let about = Writer { app, rows: Vec::new(), width }.about(weight);
        let about = if about.is_empty() { about } else { format!(" · {about}") };
        let forms = [format!("{about} · learned · █ above 0 ░ below"), format!("{about} · learned"), about];
        let fits = forms.into_iter().find(|form| text::width(form) + more <= room);
        fits.unwrap_or_default()
    });
    let what = what.unwrap_or_default();
    room = room.saturating_sub(text::width(&what));
    let mut shown = Vec::new();
    while let Some(before) = way.pop() {
        let piece = format!("{before} › ");
        let needed = text::width(&piece) + if way.is_empty() { 0 } else { text::width(MORE) };
        if needed > room {
            shown.push(MORE.to_owned());
            break;
        }
        room -= text::width(&piece);
        shown.push(piece);
    }
    shown.reverse();
    Line::from(vec![
        Span::styled(shown.concat(), app.theme.dim()),
        Span::styled(text::cut(&last, width), app.theme.strong()),
        Span::styled(what, app.theme.dim()),
    ])
}

/// The line with this operand.
pub fn line_of(rows: &[Row], operand: (usize, usize)) -> Option<usize> {
    rows.iter().position(|row| row.operands.iter().any(|(_, other)| *other == operand))
}

/// The line of a weight's row with this component.
pub fn line_of_component(rows: &[Row], component: usize) -> Option<usize> {
    rows.iter().position(|row| row.component == Some(component))
}

/// The operand at a position of the panel: the one under the pointer, or else the only operand of the line.
pub fn operand_at(app: &App, panel: Rect, x: u16, y: u16) -> Option<(usize, usize)> {
    let area = below(panel);
    let line = app.derivation()?.line + usize::from(y.checked_sub(area.y)?);
    let column = usize::from(x.checked_sub(area.x + 1)?);
    let operands = &rows(app, area.width).get(line)?.operands.clone();
    let hit = operands.iter().find(|(columns, _)| columns.contains(&column));
    hit.or(operands.first()).map(|(_, operand)| *operand)
}

impl Writer<'_> {
    fn push(&mut self, line: impl Into<Line<'static>>) {
        self.rows.push(Row { line: line.into(), ..Row::default() });
    }

    fn gap(&mut self) {
        self.push("");
    }

    fn text(&mut self, content: &str, style: Style) {
        for line in text::wrap(content, self.width) {
            self.push(Line::styled(line, style));
        }
    }

    /// Writes the edits that change the number, or else those that can reach it.
    fn edits(&mut self) {
        let theme = self.app.theme;
        let here = self.app.edits_here();
        for edit in &here {
            self.text(&printable(&format!("edited: {edit}")), theme.key());
        }
        if !here.is_empty() {
            return self.text("The formula below gives the value before the edit.", theme.dim());
        }
        for edit in self.app.edits_before() {
            self.text(&printable(&format!("an edit can reach this number: {edit}")), theme.key());
        }
    }

    fn explanation(&mut self, explanation: &Explanation) {
        let theme = self.app.theme;
        let about = self.about(&explanation.address);
        if !about.is_empty() {
            self.text(&about, theme.token());
        }
        let mut line = vec![
            Span::styled(format!("{} ", explanation.value_name()), theme.dim()),
            Span::styled(number(explanation.value), theme.strong()),
        ];
        if let Some(result) = explanation.result {
            line.push(Span::styled(" · together ", theme.dim()));
            line.push(number(result).into());
            line.push(Span::styled(" · difference ", theme.dim()));
            line.push(number(explanation.difference()).into());
        }
        if line.iter().map(|span| text::width(&span.content)).sum::<usize>() > self.width {
            // The difference, which shows that the sum is exact, gets its own line if it does not fit here.
            line.truncate(line.len() - 2);
            self.push(line);
            let difference = number(explanation.difference()).into();
            self.push(vec![Span::styled("difference ", theme.dim()), difference]);
        } else {
            self.push(line);
        }
        self.text(&explanation.formula, theme.code());
        for note in &explanation.notes {
            self.text(note, Style::new());
        }
        // If there is room, the picture is beside the terms, so that both are in sight.
        let figure = explanation.figure.map(|figure| figure::draw(figure, self.width, theme));
        let (top, width) = (self.rows.len(), self.width);
        let beside = figure.is_some() && width >= BESIDE;
        if beside {
            self.width -= usize::from(figure::COLUMNS) + 1;
        }
        // A short split tells the reader more than the terms, but in little room the terms come first.
        let lines = super::Panels::new(self.app).derivation.map_or(0, |area| area.height);
        let (short, long): (Vec<_>, Vec<_>) =
            explanation.splits.iter().partition(|split| split.parts.len() <= SHORT && lines >= ROOMY);
        for split in short {
            self.gap();
            self.split(split);
        }
        if !explanation.terms.is_empty() {
            self.gap();
            self.terms(explanation);
        }
        for split in long {
            self.gap();
            self.split(split);
        }
        if let Some(figure::Drawn { picture, words }) = figure {
            self.gap();
            if beside {
                self.beside(top, self.width + 1, picture);
            } else {
                picture.into_iter().for_each(|line| self.push(line));
            }
            self.width = width;
            words.into_iter().for_each(|line| self.push(line));
        }
    }

    /// Draws the lines of a picture beside the rows, from column `x` and row `top` on.
    fn beside(&mut self, top: usize, x: usize, picture: Vec<Line<'static>>) {
        self.rows.resize_with(self.rows.len().max(top + picture.len()), Row::default);
        for (row, line) in self.rows[top..].iter_mut().zip(picture) {
            row.line.push_span(" ".repeat(x.saturating_sub(row.line.width())));
            row.line.extend(line.spans);
        }
    }

    fn terms(&mut self, explanation: &Explanation) {
        let theme = self.app.theme;
        let size = |terms: &[Term]| terms.iter().map(|term| term.product.abs()).sum::<f64>();
        let all = size(&explanation.terms) + explanation.rest.size;
        let largest = explanation.terms.iter().map(|term| term.product.abs()).fold(0.0, f64::max);
        let factors = common_factors::factors(&explanation.terms).filter(|_| explanation.is_sum);
        let widths = explanation.terms.iter().zip(factors.iter().cycle()).map(|(term, factors)| {
            if common_factors::fits(term, factors) { text::width(&self.which(term, factors)) } else { 0 }
        });
        let widest = widths.max().unwrap_or(0).min(WHICH);
        // Factors are more important than shares, and shares are more important than bars.
        let count = factors.as_ref().map_or(0, Vec::len);
        let factors_wide = (count * (NUMBER + 3)).saturating_sub(3);
        let beside = NUMBER + 1 + if count > 0 { widest + 1 + factors_wide } else { 2 * NUMBER };
        // Factors that do not fit beside the term go below it.
        let stacked = count > 0 && beside > self.width;
        let numbers = if stacked { NUMBER + 1 + widest } else { beside };
        let shares = numbers + SHARE <= self.width;
        let bars = numbers + SHARE + BAR <= self.width;
        let heading = match explanation.is_sum {
            true if bars => "the terms, the largest first: █ adds, ░ subtracts; cumulative % of all |terms|",
            true if shares => "the terms, largest first; cumulative % of all |terms|",
            true => "the terms, the largest first",
            false => "the operands, each with the result so far",
        };
        self.text(heading, theme.dim());
        if let Some(factors) = &factors {
            let name = |factor: &Factor| {
                let runs = factor.runs.iter().map(char::to_string);
                self.address(&factor.address, &explanation.address, TEXT, runs)
            };
            let names: Vec<String> = factors.iter().map(name).collect();
            self.text(&names.join(" × "), theme.strong());
        }
        let mut so_far = 0.0;
        for (t, term) in explanation.terms.iter().enumerate() {
            so_far += term.product.abs();
            if let Some((_, others)) = explanation.others.filter(|(first, _)| *first == t) {
                self.text(others, theme.dim());
            }
            let mut head = vec![Span::styled(text::right(&number(term.product), NUMBER), Style::new())];
            if explanation.is_sum {
                head.push(Span::raw(" "));
                if bars {
                    head.push(Span::styled(bar(term.product, largest), theme.bar()));
                }
                let share = if all > 0.0 && all.is_finite() {
                    format!("{:>4.0} %  ", so_far / all * 100.0)
                } else {
                    " ".repeat(SHARE)
                };
                if shares {
                    head.push(Span::styled(share, theme.dim()));
                }
            } else {
                head.push(Span::styled("  ← ", theme.dim()));
            }
            match factors.as_ref().filter(|factors| common_factors::fits(term, factors)) {
                Some(factors) => self.alike(t, head, term, (factors, widest, stacked)),
                None => self.term(t, head, &explanation.address, term),
            }
        }
        if explanation.rest.count > 0 {
            let others = match explanation.rest.count {
                1 => "the other term".to_owned(),
                count => format!("the other {count} terms"),
            };
            let (together, most) = match explanation.rest.together {
                Together::Sum(sum) => (sum, ""),
                Together::Largest(most) => (most, " or less"),
            };
            let together = text::right(&number(together), NUMBER);
            self.push(Line::from(vec![
                together.into(),
                Span::styled(format!("{most}  {others}"), theme.dim()),
            ]));
        }
    }

    /// Writes the head of a term and its operands. Operands that fit are beside the head, the others below.
    fn term(&mut self, t: usize, head: Vec<Span<'static>>, of: &Address, term: &Term) {
        let theme = self.app.theme;
        let indent = head.iter().map(|span| text::width(&span.content)).sum::<usize>();
        let mut row = Row { line: Line::from(head), ..Row::default() };
        let mut at = indent;
        for (o, operand) in term.operands.iter().enumerate() {
            let times = if o > 0 { "× " } else { "" };
            let value = number(operand.value);
            let room = self.width.saturating_sub(indent.min(OPERANDS));
            let room = room.saturating_sub(text::width(times) + text::width(&value) + 2).max(1);
            // If no form of the name fits, the name gets its own lines; the last of these lines has the
            // value.
            let mut lines = text::wrap(&self.name(operand, of, room), room);
            let name = lines.pop().unwrap_or_default();
            let needed = text::width(times) + text::width(&name) + text::width(&value) + 2;
            if at + needed > self.width && at > OPERANDS {
                let indent = " ".repeat(OPERANDS);
                self.rows.push(std::mem::replace(&mut row, Row { line: indent.into(), ..Row::default() }));
                at = OPERANDS;
            }
            row.line.push_span(Span::styled(times.to_owned(), theme.dim()));
            let style = if self.is_chosen((t, o)) { theme.current() } else { Style::new() };
            for line in lines {
                row.operands.push((at..at + text::width(times) + text::width(&line), (t, o)));
                row.line.push_span(Span::styled(line, style));
                at = indent.min(OPERANDS) + text::width(times);
                let next = Row { line: " ".repeat(at).into(), ..Row::default() };
                self.rows.push(std::mem::replace(&mut row, next));
            }
            row.operands.push((at..at + needed, (t, o)));
            row.line.push_span(Span::styled(name, style));
            row.line.push_span(Span::styled(format!(" {value}"), theme.code()));
            row.line.push_span(Span::raw(" "));
            at += needed;
        }
        self.rows.push(row);
    }

    /// Writes a term among similar ones: the indices in which it differs, and its factors.
    fn alike(
        &mut self,
        t: usize,
        head: Vec<Span<'static>>,
        term: &Term,
        (factors, which, stacked): (&[Factor], usize, bool),
    ) {
        let theme = self.app.theme;
        let mut row = Row { line: Line::from(head), ..Row::default() };
        row.line.push_span(text::left(&self.which(term, factors), which));
        if stacked {
            // If the numbers do not fit, the indent is reduced first.
            let wide = term.operands.len() * (NUMBER + 3) - 3;
            let indent = " ".repeat(self.width.saturating_sub(wide).min(UNDER));
            self.rows.push(std::mem::replace(&mut row, Row { line: indent.into(), ..Row::default() }));
        } else {
            row.line.push_span(Span::raw(" "));
        }
        for (o, operand) in term.operands.iter().enumerate() {
            let times = if o > 0 { " × " } else { "" };
            row.line.push_span(Span::styled(times, theme.dim()));
            let at = row.line.width();
            let style = if self.is_chosen((t, o)) { theme.current() } else { theme.code() };
            row.line.push_span(Span::styled(text::right(&number(operand.value), NUMBER), style));
            row.operands.push((at..at + NUMBER, (t, o)));
        }
        self.rows.push(row);
    }

    /// The indices in which a term differs from similar ones.
    fn which(&self, term: &Term, factors: &[Factor]) -> String {
        // Axes with equal indices are written together: d,i=7.
        let mut indices: Vec<(String, usize, Option<String>)> = Vec::new();
        for (n, letter, index) in common_factors::differing(term, factors) {
            let address = address_of(&term.operands[n]);
            let text = address.and_then(|address| self.text_at(address, letter, index));
            match indices.last_mut().filter(|(_, other, _)| *other == index) {
                Some((letters, _, known)) => {
                    *letters += &format!(",{letter}");
                    *known = known.take().or(text);
                }
                None => indices.push((letter.to_string(), index, text)),
            }
        }
        let named = indices.into_iter().map(|(letters, index, text)| {
            text.map_or(format!("{letters}={index}"), |text| {
                format!("{letters}={index} {}", quoted(&text, TEXT))
            })
        });
        named.collect::<Vec<_>>().join(",")
    }

    fn is_chosen(&self, operand: (usize, usize)) -> bool {
        self.app.focus() == Focus::Derivation && self.app.chosen_operand() == Some(operand)
    }

    fn split(&mut self, split: &Split) {
        let theme = self.app.theme;
        self.text(&format!("by {}", split.by), theme.dim());
        let largest = split.parts.iter().map(|(_, value)| value.abs()).fold(0.0, f64::max);
        for (name, value) in &split.parts {
            let bar = if self.width >= WIDE { bar(*value, largest) } else { String::new() };
            let before = NUMBER + text::width(&bar) + 2;
            let mut lines = text::wrap(name, self.width.saturating_sub(before)).into_iter();
            self.push(Line::from(vec![
                text::right(&number(*value), NUMBER).into(),
                Span::raw(" "),
                Span::styled(bar, theme.bar()),
                Span::raw(" "),
                lines.next().unwrap_or_default().into(),
            ]));
            lines.for_each(|line| self.push(" ".repeat(before) + &line));
        }
    }

    /// Writes the row of a weight, value by value.
    fn weight(&mut self, weight: &Address) {
        let theme = self.app.theme;
        let about = self.about(weight);
        if !about.is_empty() {
            self.text(&about, theme.token());
        }
        let values = match self.app.weight_values(weight) {
            None => return self.text("reading the row …", theme.dim()),
            Some(Err(reason)) => return self.text(reason, theme.error()),
            Some(Ok(values)) => values,
        };
        let (letter, at) = weight.index.last().copied().unwrap_or(('i', 0));
        let least = values.iter().copied().fold(f32::INFINITY, f32::min);
        let most = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let [least, most] = [least, most].map(|value| number(value.into()));
        self.text(
            &format!(
                "Weights are learned, so the explanation ends here. The row of this weight has {} values, from {least} to {most}; \
                 █ above 0, ░ below.",
                values.len()
            ),
            theme.dim(),
        );
        let largest = values.iter().map(|value| f64::from(value.abs())).fold(0.0, f64::max);
        let digits = values.len().max(2).ilog10() as usize + 1;
        for (i, &value) in values.iter().enumerate() {
            let style = if i == at { theme.current() } else { Style::new() };
            let line = Line::from(vec![
                Span::styled(format!("{letter} {i:>digits$}"), if i == at { style } else { theme.index() }),
                Span::styled(format!(" {}", text::right(&number(value.into()), NUMBER)), style),
                Span::raw(" "),
                Span::styled(bar(value.into(), largest), theme.bar()),
            ]);
            self.rows.push(Row { line, component: Some(i), ..Row::default() });
        }
    }

    /// The name of an operand: the part of its address that differs from the number's address, with the texts of its
    /// tokens. In little room the texts are shortened first, then common indices are omitted. Indices that distinguish
    /// operands stay.
    fn name(&self, operand: &Operand, of: &Address, room: usize) -> String {
        let Some(address) = address_of(operand) else {
            let From::Constant(name) = operand.from else { return String::new() };
            return name.to_owned();
        };
        let mut own = address.clone();
        own.index.retain(|index| !of.index.contains(index));
        if own.index.is_empty() {
            own.index.extend(address.index.last());
        }
        let whole = |columns: usize| Some(self.address(address, of, columns, std::iter::empty()));
        let shorter = |columns: usize| {
            let shorter = self.address(&own, of, columns, std::iter::empty());
            (own.index.len() < address.index.len()).then(|| shorter.replacen('[', "[…,", 1))
        };
        let forms =
            [whole(TEXT), whole(8), shorter(TEXT), shorter(8), shorter(4), whole(0), shorter(0)].into_iter();
        let forms: Vec<String> = forms.flatten().collect();
        let fits = forms.iter().find(|form| text::width(form) <= room);
        fits.or(forms.last()).cloned().unwrap_or_default()
    }

    /// The part of an address that differs from `of`. Texts of tokens take up to `columns` columns; 0 omits the texts.
    /// `runs` are further indices, as text.
    fn address(
        &self,
        address: &Address,
        of: &Address,
        columns: usize,
        runs: impl Iterator<Item = String>,
    ) -> String {
        let mut name = String::new();
        if let Some(pass) = address.pass.filter(|_| address.pass != of.pass) {
            name = format!("p{pass}/");
        }
        if let Some(layer) = address.layer.filter(|_| address.layer != of.layer) {
            name += &format!("L{layer}/");
        }
        let Some(subject) = address.subject else { return name };
        name += &subject.to_string();
        let indices = self.indices(address, subject).map(|(letter, index, text)| match text {
            Some((_, text)) if columns > 0 => format!("{letter}={index} {}", quoted(&text, columns)),
            _ => format!("{letter}={index}"),
        });
        let indices: Vec<String> = indices.chain(runs).collect();
        if indices.is_empty() { name } else { format!("{name}[{}]", indices.join(",")) }
    }

    /// The text of the token at an index of an address.
    fn text_at(&self, address: &Address, letter: char, index: usize) -> Option<String> {
        let (_, axis) = address.subject?.letters().into_iter().find(|(other, _)| *other == letter)?;
        self.app.text_in(address, axis, index).map(|raw| text::cut(&text::visible(&raw), TEXT))
    }

    /// The indices of an address in order. If an index stands for a token, it comes with the token's text.
    fn indices<'s>(
        &'s self,
        address: &'s Address,
        subject: Subject,
    ) -> impl Iterator<Item = (char, usize, Option<(Axis, String)>)> + 's {
        subject.letters().into_iter().filter_map(move |(letter, axis)| {
            let (_, index) = *address.index.iter().find(|(other, _)| *other == letter)?;
            let text = self.app.text_in(address, axis, index);
            Some((letter, index, text.map(|raw| (axis, text::visible(&raw)))))
        })
    }

    /// The tokens of an address: "token 4 ␣time → key 1 Once".
    fn about(&self, address: &Address) -> String {
        let Some(subject) = address.subject else { return String::new() };
        let tokens = self.indices(address, subject).filter_map(|(_, index, text)| {
            let (axis, text) = text?;
            let name = if axis == Axis::Vocab { "id" } else { axis.name() };
            let pass = address.pass.filter(|_| axis == Axis::Token);
            let pass = pass.and_then(|pass| self.app.outline().passes.get(pass));
            let position = pass.map_or_else(String::new, |pass| labels::position_in(pass.dims, index));
            Some(format!("{name} {index}{position} {text}"))
        });
        tokens.collect::<Vec<_>>().join(" → ")
    }
}

/// A token's text in an address, cut to `columns`. It is quoted if it could be mistaken for a part of the address.
fn quoted(text: &str, columns: usize) -> String {
    let text = text::cut(text, columns);
    if text.contains([',', '[', ']', '=', '"']) { format!("\"{text}\"") } else { text }
}

/// A number with the digits of a float32.
fn number(value: f64) -> String {
    text::full_in(Number::F32(value as f32), NUMBER)
}

/// The bar of `value`; the bar of `largest` is the longest one.
fn bar(value: f64, largest: f64) -> String {
    let share = if largest > 0.0 && largest.is_finite() { value.abs() / largest } else { 0.0 };
    let columns = if share.is_finite() { (share * BAR as f64).round() as usize } else { 0 };
    text::left(&if value < 0.0 { "░" } else { "█" }.repeat(columns.min(BAR)), BAR)
}

impl Widget for DerivationPanel<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let app = self.0;
        let Some(derivation) = app.derivation() else { return };
        let inner = |area: Rect| {
            Rect { x: area.x + 1, width: area.width.saturating_sub(2), ..area }.intersection(area)
        };
        put_line(buf, inner(area), 0, &trail(app, derivation, inner(area).width.into()));
        let area = below(area);
        let (rows, inner) = (rows(app, area.width), inner(area));
        let height = usize::from(area.height);
        for (y, row) in rows.iter().skip(derivation.line).take(height).enumerate() {
            put_line(buf, inner, y as u16, &row.line);
        }
        // Marks at the edge show that there are further lines.
        let right = area.width.saturating_sub(1);
        if derivation.line > 0 {
            put(buf, area, right, 0, "▲", app.theme.key());
        }
        if derivation.line + height < rows.len() {
            put(buf, area, right, area.height.saturating_sub(1), "▼", app.theme.key());
        }
    }
}
