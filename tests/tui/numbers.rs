//! A reader who believes every number on the screen: each is looked up in the trace. The screens are those of
//! every view at every width from 60 to 200, on values and sizes that need room.

use crossterm::event::{Event, KeyCode};
use llama_trace::config::{ModelConfig, Precision};
use llama_trace::trace::frame::Number;
use llama_trace::trace::{
    Answer, Axis, Query, Region, Site, Source, Stage as TraceStage, Stats, Step, TokenLabel,
};
use llama_trace::tui::app::{App, Mode};
use llama_trace::tui::theme::Depth;
use llama_trace::tui::view::layout::Layout;
use llama_trace::tui::view::{Panels, notes};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::stage::Stage;
use crate::synthetic::{self, Synthetic};

/// A number as it stands on the screen: where it begins, counted in columns, and its text.
#[derive(Clone, Debug, PartialEq)]
struct Read {
    x: usize,
    text: String,
}

/// The numbers of a line. Digits within a word (`word20`, `f32`) belong to the word; a minus between two
/// numbers is that of a range.
fn read(line: &[String]) -> Vec<Read> {
    let at = |i: usize| line.get(i).and_then(|cell| cell.chars().next()).unwrap_or(' ');
    let digit = |i: usize| at(i).is_ascii_digit();
    let word = |c: char| c.is_alphanumeric() || "_·".contains(c);
    let mut found = Vec::new();
    let mut i = 0;
    while i < line.len() {
        let before = i.checked_sub(1).map_or(' ', at);
        let signed = at(i) == '-' && digit(i + 1) && !word(before);
        // `\u{301}` is a character.
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
        // 3x4, 2i, 20%: a word that begins with digits.
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

/// Whether `shown` is `value` with fewer digits. Where `rounded`, it may have none left that are not 0.
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

/// What is true of a step on every screen.
struct Known {
    stats: Stats,
    notes: Vec<String>,
}

impl Known {
    fn of(app: &App) -> Self {
        let wide: Vec<String> = notes::lines(app, 4000).iter().map(ToString::to_string).collect();
        Self { stats: app.tensor().unwrap().frame().stats(), notes: read_text(&wide.join("\n")) }
    }
}

struct Reader<'a> {
    app: &'a App,
    known: &'a Known,
    buffer: Buffer,
    screen: String,
}

impl Reader<'_> {
    fn cells(&self, x: u16, y: u16, width: u16) -> Vec<String> {
        (x..x + width).map(|x| self.buffer[(x, y)].symbol().to_owned()).collect()
    }

    fn line(&self, area: Rect, y: u16) -> Vec<String> {
        self.cells(area.x, y, area.width)
    }

    #[track_caller]
    fn holds(&self, condition: bool, what: &str) {
        assert!(condition, "{what}, in {} of\n{}", self.app.place().path(), self.screen);
    }

    /// The numbers are some of those expected, in their order; the first `needed` are all there.
    #[track_caller]
    fn some_of(&self, found: &[String], expected: &[String], needed: usize, what: &str) {
        let mut rest = expected.iter();
        let in_order = found.iter().all(|number| rest.any(|other| other == number));
        let enough = found.len() >= needed && found[..needed] == expected[..needed];
        self.holds(in_order && enough, &format!("{what}: {found:?} of {expected:?}"));
    }

    /// Whether `text` is that of a token of the prompt.
    fn is_token(&self, text: &str) -> bool {
        let mut tokens = self.app.outline().passes.iter().flat_map(|pass| &pass.tokens);
        tokens.any(|token| read_text(&token.text).iter().any(|number| number == text))
    }

    fn title(&self) {
        let app = self.app;
        let line = self.line(Rect { height: 1, ..self.buffer.area }, 0).concat();
        let (model, here) = line.split_at(line.rfind("pass ").unwrap());
        let walk = app.walk();
        let mut expected = vec![app.place().pass];
        if let Some(layer) = app.place().layer {
            expected.extend([layer, 0, walk.layers - 1]);
        }
        expected.extend([walk.number(app.place()) + 1, walk.len()]);
        let expected: Vec<String> = expected.iter().map(ToString::to_string).collect();
        // A range's second number follows its minus.
        self.some_of(&read_text(&here.replace("0-", "0 ")), &expected, 1, "title");
        let name = read_text(&app.outline().card.name);
        self.holds(read_text(model).iter().all(|number| name.contains(number)), "model's name");
    }

    fn outline(&self, area: Rect) {
        for y in area.y..area.bottom() {
            let line = self.line(area, y).concat();
            let name = line.trim().trim_start_matches(['▸', '▾', ' ']);
            let (first, rest) = name.split_once([' ', '(']).unwrap_or((name, ""));
            let numbers = read_text(&line);
            let Some(step) = Step::from_name(first) else {
                // "pass 0 prefill 12 tokens", "layer 1"
                let whole = matches!(first, "pass" | "layer")
                    && rest.split(' ').next() == numbers.first().map(|n| &**n);
                self.holds(numbers.is_empty() || whole, &format!("outline: {line}"));
                if let (Some(count), true) = (numbers.get(1), line.contains("tokens")) {
                    let tokens = self.app.outline().passes[0].tokens.len().to_string();
                    self.holds(*count == tokens, "tokens of a pass");
                }
                continue;
            };
            let shape = self.app.outline().card.sizes().shape(step.axes(), self.app.dims());
            let shape: Vec<String> = shape.iter().map(ToString::to_string).collect();
            self.holds(numbers.is_empty() || numbers == shape, &format!("outline: {line}"));
        }
    }

    fn heading(&self, area: Rect) {
        let app = self.app;
        let shape: Vec<String> = app.shape().iter().map(ToString::to_string).collect();
        let line = self.line(area, area.y).concat();
        let axes = line.split_once("  ").map_or("", |(_, axes)| axes.split(" · ").next().unwrap());
        self.holds(read_text(axes) == shape, "heading");

        let mut expected = Vec::new();
        if let Some(held) = app.cut().held {
            let axis = app.place().step.axes()[held];
            let sizes = &app.outline().card.sizes();
            let (length, group) = (app.shape()[held], sizes.heads / sizes.kv_heads);
            let at = app.index()[held];
            expected.extend([at, length]);
            match axis {
                Axis::Head => expected.push(at / group),
                Axis::KvHead => expected.extend([at * group, at * group + group - 1]),
                _ => {}
            }
        }
        let needed = expected.len().min(2);
        let range = |seen: &std::ops::Range<usize>| [seen.start, seen.end - 1];
        let layout = app.layout().unwrap();
        let seen = layout.visible_rows(app);
        let length = |axis: Option<usize>| axis.map_or(1, |axis| app.shape()[axis]);
        if app.view().name() == "largest" {
            expected.extend([seen.start + 1, seen.end, layout.rows]);
        } else if app.view().name() == "overview" {
            // How many are in a place follows from how many places there are, or nearly.
            let sides =
                [(length(Some(app.cut().rows)), layout.rows), (length(app.cut().columns), layout.columns)];
            let line = self.line(area, area.y + 1).concat();
            for (told, _) in line.match_indices(" each").filter_map(|(at, _)| {
                let number = line[..at].rsplit(' ').next()?;
                Some((number.parse::<usize>().ok()?, at))
            }) {
                let right = sides.iter().any(|&(length, places)| length.div_ceil(told) == places);
                self.holds(right, &format!("{told} each"));
                expected.push(told);
            }
        } else if app.view().name() == "histogram" {
            let counted = self.counted(area);
            if counted.len() < app.shape()[app.cut().rows] {
                expected.extend(range(&counted));
            }
        } else if app.view().name() == "heads" {
            // All there is, for these sources.
        } else {
            for (seen, count) in [(seen, layout.rows), (layout.visible_columns(app), layout.columns)] {
                if seen.len() < count && !seen.is_empty() {
                    expected.extend(range(&seen));
                }
            }
        }
        let mut expected: Vec<String> = expected.iter().map(ToString::to_string).collect();
        let line = self.line(area, area.y + 1).concat();
        let mut numbers = read_text(&line);
        // The text of the token that is held stands beside its index.
        let text = app.cut().held.map(|held| app.place().step.axes()[held]);
        let text = text.filter(|axis| matches!(axis, Axis::Token | Axis::Key));
        if text.is_some() && numbers.get(2).is_some_and(|number| self.is_token(number)) {
            numbers.remove(2);
        }
        if let (Some(kept), Some((_, sum))) = (app.kept(), line.split_once("sum ")) {
            self.holds(is(&read_text(sum)[0], kept.sum, false), "sum");
            numbers.pop();
        }
        self.some_of(&numbers, &expected, needed, "second heading");
        // What is seen of the rows and columns is told to the end.
        expected.drain(..needed);
        let told = expected.iter().skip_while(|number| !numbers[needed..].contains(number)).count();
        self.holds(numbers.len() >= needed + told.saturating_sub(1), "ranges");
    }

    /// The rows of numbers or colours, with the labels around them; the line below them.
    fn grid(&self, area: Rect, grid: &Layout) -> u16 {
        let (app, inner) = (self.app, grid.area);
        let cut = app.cut();
        let (columns, mut index) = (cut.columns.unwrap(), app.index());
        let mut header = None;
        let mut heads: Vec<(usize, usize)> = Vec::new();
        let mut end = area.y + 2;
        grid.each_cell(app, |row, column, x, y| {
            let (x, y) = (inner.x + x, inner.y + y);
            if *header.get_or_insert(y - 1) == y - 1 {
                heads.push((column, x.into()));
            }
            end = end.max(y + 1);
            index[cut.rows] = row;
            index[columns] = column;
            let value = real(app.tensor().unwrap().get(&index).unwrap());
            let cells = self.cells(x, y, grid.cell);
            let numbers = read(&cells);
            for number in &numbers {
                self.holds(
                    is(&number.text, value, true),
                    &format!("cell {index:?}: {} of {value}", number.text),
                );
            }
            if app.view().name() == "numbers" {
                let told =
                    numbers.len() == 1 || ["NaN", "inf"].iter().any(|name| cells.concat().contains(name));
                self.holds(told, &format!("no number in cell {index:?}"));
            }
            let label = self.cells(inner.x, y, x - inner.x);
            let first = read(&label).first().map(|read| read.text.clone());
            self.holds(column > heads[0].0 || first == Some(row.to_string()), "row's index");
        });
        let Some(header) = header else { return end };
        let line = self.line(Rect { x: 0, width: inner.right(), ..inner }, header);
        let first = heads.first().map_or(0, |&(_, x)| x);
        let numbers: Vec<Read> = read(&line).into_iter().filter(|number| number.x >= first).collect();
        for number in &numbers {
            let (from, to) = (number.x, number.x + number.text.len());
            let over = heads.iter().any(|&(column, x)| {
                column.to_string() == number.text && from < x + usize::from(grid.cell) && to > x
            });
            self.holds(over, &format!("column {} at {from}", number.text));
        }
        let selected = grid.cursor.1.to_string();
        self.holds(numbers.iter().any(|number| number.text == selected), "the selected column has its index");
        end
    }

    /// Below the last line of a view.
    fn end(layout: &Layout, app: &App) -> u16 {
        layout.area.y + u16::try_from(layout.lines(app)).unwrap()
    }

    /// Each panel has its head's number, and that of the kv head it reads.
    fn heads(&self, layout: &Layout) -> u16 {
        let (app, area) = (self.app, layout.area);
        let sizes = app.outline().card.sizes();
        let group = sizes.heads / sizes.kv_heads;
        let axes = app.place().step.axes();
        let head = axes.iter().position(|axis| matches!(axis, Axis::Head | Axis::KvHead)).unwrap();
        layout.each_cell(app, |row, column, x, y| {
            let at = app.view().index(app, (row, column)).unwrap()[head];
            let told = read_text(&self.cells(area.x + x, area.y + y, layout.cell).concat());
            let kv = if axes[head] == Axis::Head { vec![at, at / group] } else { vec![at] };
            let right: Vec<String> = kv.iter().map(ToString::to_string).collect();
            self.holds(
                told == right[..told.len().min(right.len())] && !told.is_empty(),
                &format!("head {told:?}"),
            );
            for down in 1..layout.tall.min(area.bottom().saturating_sub(area.y + y)) {
                let line = self.cells(area.x + x, area.y + y + down, layout.cell).concat();
                self.holds(read_text(&line).is_empty(), "a panel has no numbers");
            }
        });
        Self::end(layout, app)
    }

    /// Some lines have the number of their first row, and the cursor's has its own.
    fn overview(&self, layout: &Layout) -> u16 {
        let (app, area) = (self.app, layout.area);
        let down = app.cut().rows;
        for row in layout.visible_rows(app) {
            let line = self.cells(area.x, area.y + 1 + row as u16, area.width).concat();
            let Some(number) = read_text(&line).first().cloned() else { continue };
            let (number, length): (usize, usize) = (number.parse().unwrap(), app.shape()[down]);
            let right = match row {
                row if row == layout.cursor.0 => number == app.index()[down],
                0 => number == 0,
                row => number.is_multiple_of(row) && length.div_ceil((number / row).max(1)) == layout.rows,
            };
            self.holds(right, &format!("row {number} of line {row}"));
        }
        Self::end(layout, app) + 1
    }

    /// The rows that a histogram counts: those around the cursor where all are too many.
    fn counted(&self, panel: Rect) -> std::ops::Range<usize> {
        let (app, cut) = (self.app, self.app.cut());
        let (all, columns) = (app.shape()[cut.rows], app.shape()[cut.columns.unwrap()]);
        let line = self.line(panel, panel.y + 1).concat();
        let Some((_, told)) = line.split_once("of rows ") else { return 0..all };
        let ends = read_text(&told.replace('-', " "));
        let (first, last): (usize, usize) = (ends[0].parse().unwrap(), ends[1].parse().unwrap());
        let fits = last < all && (first..=last).contains(&app.index()[cut.rows]);
        self.holds(fits && (last + 1 - first) * columns <= 1 << 17, told);
        self.holds((last + 2 - first) * columns > 1 << 17, "as many as are counted at once");
        first..last + 1
    }

    /// The bounds and the count of each bin, counted again.
    fn histogram(&self, layout: &Layout) -> u16 {
        let (app, area) = (self.app, layout.area);
        let (cut, shape, mut index) = (app.cut(), app.shape(), app.index());
        let tensor = app.tensor().unwrap();
        let mut values = Vec::new();
        for row in self.counted(Panels::new(app).middle.unwrap()) {
            for column in 0..shape[cut.columns.unwrap()] {
                (index[cut.rows], index[cut.columns.unwrap()]) = (row, column);
                values.extend(tensor.get(&index).map(real).filter(|value| value.is_finite()));
            }
        }
        let (low, high) = values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), &value| {
            (f64::min(low, value), f64::max(high, value))
        });
        let bins = if high > low { usize::from(area.height - 1).clamp(1, 40) } else { 1 };
        let bin = |value: f64| (((value - low) / (high - low) * bins as f64) as usize).min(bins - 1);
        let mut counts = vec![0; bins];
        values.iter().for_each(|&value| counts[if high > low { bin(value) } else { 0 }] += 1);
        let filled: Vec<usize> = (0..bins).filter(|&bin| counts[bin] > 0).collect();
        for (down, row) in layout.visible_rows(app).enumerate() {
            let told = read_text(&self.line(area, area.y + 1 + down as u16).concat());
            let edge = |bin: usize| low + (high - low) * bin as f64 / bins as f64;
            let at = filled[row];
            let right = told.len() == 3
                && is(&told[0], edge(at), false)
                && is(&told[1], edge(at + 1), false)
                && told[2] == counts[at].to_string();
            self.holds(right, &format!("bin {at}: {told:?}, {} values from {}", counts[at], edge(at)));
        }
        Self::end(layout, app)
    }

    fn list(&self, list: &Layout, area: Rect) -> u16 {
        let app = self.app;
        let mut y = area.y + 3;
        for row in list.visible_rows(app) {
            let index = app.view().index(app, (row, 0)).unwrap();
            let id = index[app.cut().rows];
            let value = real(app.tensor().unwrap().get(&index).unwrap());
            let mut numbers: Vec<String> =
                read(&self.line(area, y)).into_iter().map(|read| read.text).collect();
            let ranked = app.view().name() == "largest";
            let labels: Vec<String> =
                if ranked { vec![row + 1, id] } else { vec![id] }.iter().map(ToString::to_string).collect();
            // Some tokens are numbers; the value stands after their text.
            if let Some(token) = app.token(id).filter(|_| numbers.len() == labels.len() + 2) {
                let text = numbers.remove(labels.len());
                self.holds(read_text(&token.text) == [text], "a token's text");
            }
            let told = numbers.len() == labels.len() + 1 && numbers[..labels.len()] == labels;
            let special = !value.is_finite() && numbers == labels;
            self.holds(
                special || told && is(&numbers[labels.len()], value, false),
                &format!("row {row} {numbers:?}"),
            );
            y += 1;
        }
        let folded = app.shape()[app.cut().rows] - list.rows;
        if folded > 0 {
            let numbers = read_text(&self.line(area, y).concat());
            self.holds(
                numbers == [list.rows, list.rows + folded, folded, 0].map(|n| n.to_string()),
                "folded",
            );
            y += 1;
        }
        y
    }

    /// Legend, statistics, the value under the cursor.
    fn foot(&self, area: Rect, from: u16) {
        let app = self.app;
        let (mut stats, mut cursor) = (false, false);
        let whole = &self.known.stats;
        let value = real(app.tensor().unwrap().get(&app.index()).unwrap());
        for y in from..area.bottom() {
            let line = self.line(area, y).concat();
            let line = line.trim();
            let numbers = read_text(line);
            if line.starts_with("min ") {
                stats = true;
                let known =
                    [("min", whole.min), ("max", whole.max), ("mean", whole.mean), ("std", whole.std)];
                let mut words = line.split(' ');
                for (name, value) in known {
                    let shown = (words.next(), words.next().unwrap_or(""));
                    let right = value.is_nan() || shown.1.parse::<f64>().is_ok() && is(shown.1, value, false);
                    self.holds(shown.0 == Some(name) && right, &format!("{name} {value}: {}", shown.1));
                }
                let counts = [("-inf", whole.neg_inf), ("+inf", whole.pos_inf), ("NaN", whole.nan)];
                for word in words.take_while(|word| *word != "·").filter(|word| *word != "…") {
                    let (name, count) = word.split_once('×').unwrap();
                    self.holds(counts.contains(&(name, count.parse().unwrap())), word);
                }
            } else if let Some(rest) = line.strip_prefix(&app.place().address(&app.index())) {
                cursor |= rest.starts_with(" = ");
                self.holds(rest.is_empty() || self.value(rest, value), "the value under the cursor");
            } else if line.starts_with("= ") {
                cursor = true;
                self.holds(self.value(line, value), "the value under the cursor");
            } else if ["query", "key", "token", "candidate", "next"].iter().any(|role| line.starts_with(role))
            {
                self.holds(numbers.iter().all(|number| self.is_token(number)), "a token's text");
            } else {
                let mut known = vec![whole.min, whole.max, 0.0, 3.0];
                if let Some(span) = app.span() {
                    known.extend([span.high, -span.high, span.clipped as f64]);
                }
                known.extend(app.bars().map_or(Vec::new(), |(low, high)| vec![low, high]));
                for number in numbers {
                    let right = known.iter().any(|value| is(&number, *value, false));
                    self.holds(right, &format!("legend: {number} of {known:?}"));
                }
            }
        }
        let ids = app.place().step.stage().is_ids();
        self.holds(stats || ids, "statistics");
        self.holds(cursor, "the value under the cursor is told");
    }

    fn value(&self, text: &str, value: f64) -> bool {
        match read_text(text).first() {
            Some(number) => is(number, value, false),
            None => !value.is_finite(),
        }
    }

    /// Texts whose lines are broken: each number is one of the text on a line without an end.
    fn notes(&self, area: Rect) {
        for y in area.y..area.bottom() {
            for number in read_text(&self.line(area, y).concat()) {
                self.holds(self.known.notes.contains(&number), &format!("notes: {number}"));
            }
        }
    }

    fn all(&self) {
        let panels = Panels::new(self.app);
        self.title();
        if let Some(area) = panels.outline {
            self.outline(area);
        }
        // What these show is no tensor alone: they are read by tests of their own.
        let other = ["lens", "attribution", "sampler", "flow", "pass", "residual", "neurons", "tokens"]
            .contains(&self.app.view().name());
        if let Some(area) = panels.middle.filter(|_| !other) {
            self.heading(area);
            let layout = self.app.layout().unwrap();
            let from = match self.app.view().name() {
                "list" | "largest" => self.list(&layout, area),
                "heads" => self.heads(&layout),
                "overview" => self.overview(&layout),
                "histogram" => self.histogram(&layout),
                _ => self.grid(area, &layout),
            };
            self.foot(area, from);
        }
        if let Some(area) = panels.notes {
            self.notes(area);
        }
        let strip = read_text(&self.line(self.buffer.area, 1).concat());
        self.holds(strip.iter().all(|number| self.is_token(number)), "tokens");
        let footer = self.line(self.buffer.area, self.buffer.area.height - 1).concat();
        self.holds(read_text(&footer).is_empty(), "footer");
    }
}

fn reader<'a>(stage: &'a Stage, known: &'a Known) -> Reader<'a> {
    Reader { app: &stage.app, known, buffer: stage.buffer(), screen: stage.screen() }
}

#[track_caller]
fn check(stage: &Stage, known: &Known) {
    reader(stage, known).all();
}

/// Reads every number on the screen of `stage`.
#[track_caller]
pub(crate) fn read_all(stage: &Stage) {
    check(stage, &Known::of(&stage.app));
}

/// A prompt of numbers, which are cut least of all.
fn years(count: usize) -> Vec<TokenLabel> {
    (0..count).map(|i| TokenLabel { id: i as u32 + 30, text: format!(" {}", 19_000 + 37 * i) }).collect()
}

/// Long axes, tiny and huge values, numbers for tokens.
pub(crate) fn wide(tokens: usize, vocab: usize, factor: f32) -> Synthetic {
    let config = ModelConfig {
        layers: 16,
        dim: 300,
        heads: 12,
        kv_heads: 4,
        ffn_dim: 1408,
        vocab,
        ..synthetic::config()
    };
    let mut source = Synthetic::with(config, Precision::F32, years(tokens));
    source.factor = factor;
    source.outlier = Some(-4e7);
    source
}

const STAGES: [&str; 11] = [
    "tokens",
    "rope_cos",
    "mask",
    "xq",
    "L15/keys_t",
    "L1/masked_scores",
    "softmax",
    "L10/ffn_hidden",
    "logits",
    "probs",
    "nucleus",
];

fn every_view(source: impl Fn() -> Synthetic, depth: Depth) {
    for (number, name) in STAGES.iter().enumerate() {
        let mut stage = Stage::new(source(), (200, 60), depth);
        stage.keys("/").keys(name);
        stage.key(KeyCode::Enter);
        for (turn, keys) in ["", "v", "$", "a]", "v"].into_iter().enumerate() {
            stage.keys(keys);
            let known = Known::of(&stage.app);
            // Over all stages and views every width comes up a dozen times, at heights that differ; those
            // that people have come up in each.
            for width in 60..=200_u16 {
                let turn = (number * 3 + turn) as u16;
                if (width + turn).is_multiple_of(5) || width.is_multiple_of(20) {
                    stage.event(Event::Resize(width, 16 + (width * 3 + turn * 7) % 45));
                    check(&stage, &known);
                }
            }
        }
    }
}

#[test]
fn every_number_on_the_screen_is_in_the_trace() {
    every_view(|| wide(18, 12_000, 1.2e-7), Depth::None);
}

#[test]
fn every_number_in_colours_too() {
    every_view(|| wide(130, 1500, 3.3e4), Depth::True);
}

#[test]
fn no_number_of_the_notes_the_help_or_the_go_to_line_is_cut() {
    let mut stage = Stage::new(Synthetic::with_switches(), (200, 60), Depth::None);
    for name in ["tokens", "xq", "keys_t", "softmax", "ffn_hidden", "attn_norm_q8", "logits", "nucleus"] {
        stage.key(KeyCode::Esc);
        stage.keys("/").keys(name);
        stage.key(KeyCode::Enter);
        stage.keys("i");
        let known = Known::of(&stage.app);
        for width in (60..=200).step_by(13) {
            stage.event(Event::Resize(width, 16 + width % 5));
            for _ in 0..40 {
                let panels = Panels::new(&stage.app);
                reader(&stage, &known).notes(panels.notes.unwrap());
                let before = stage.screen();
                stage.key(KeyCode::PageDown);
                if stage.screen() == before {
                    break;
                }
            }
            stage.key(KeyCode::Home);
        }
    }
    stage.key(KeyCode::Esc);
    let words: String =
        llama_trace::tui::action::BINDINGS.iter().map(|binding| binding.help.to_owned() + "\n").collect();
    let known: Vec<String> =
        ["0", "60", "200"].map(String::from).into_iter().chain(read_text(&words)).collect();
    for width in 60..=200 {
        stage.event(Event::Resize(width, 60));
        stage.keys("?");
        assert!(matches!(stage.app.mode(), Mode::Help(..)));
        let screen = stage.screen();
        let buffer = stage.buffer();
        let corner = |corner: &str| (0..width).find(|&x| buffer[(x, 1)].symbol() == corner).unwrap();
        let (left, right) = (corner("┌"), corner("┐"));
        let line = |y: u16| (left..right).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        let help = (2..58).map(line);
        for number in help.flat_map(|line| read_text(&line)) {
            assert!(known.contains(&number), "{number} in\n{screen}");
        }
        stage.keys("q");
        stage.keys("/p0/L1/softmax[h=2,t=10");
        let screen = stage.screen();
        assert!(screen.contains("softmax[h=2,t=10"), "{screen}");
        stage.key(KeyCode::Esc);
    }
}

/// The sampler's own figures, made again from the logits: what is tried is made by the shown rule and no other.
#[test]
fn every_number_of_the_sampler_follows_from_the_logits() {
    for (keys, temperature, top_k, top_p) in [
        ("", 0.8, 40, 0.9),
        ("→→→→→", 2.0, 40, 0.9),
        ("]]←←←←", 0.8, 40, 0.5),
        ("]←←←←]←←←←", 0.8, 3, 0.5),
        ("←←←←←←←←", 0.0, 40, 0.9),
    ] {
        for (width, height) in [(80, 24), (120, 40), (200, 60)] {
            let mut stage = Stage::new(Synthetic::new(), (width, height), Depth::None);
            stage.keys("/logits");
            stage.key(KeyCode::Enter);
            while stage.app.view().name() != "sampler" {
                stage.keys("v");
            }
            stage.keys(keys);
            let logits: Vec<f64> =
                (0..64).map(|id| real(stage.app.tensor().unwrap().get(&[11, id]).unwrap())).collect();
            let shares = |temperature: f64, top_k: usize, top_p: f64| {
                let softmax = |by: f64| {
                    let most = logits.iter().fold(f64::MIN, |a, &b| f64::max(a, b));
                    let sum: f64 = logits.iter().map(|logit| ((logit - most) / by).exp()).sum();
                    logits.iter().map(|logit| ((logit - most) / by).exp() / sum).collect::<Vec<f64>>()
                };
                let probs = softmax(if temperature == 0.0 { 1.0 } else { temperature });
                let mut order: Vec<usize> = (0..64).collect();
                order.sort_by(|a, b| probs[*b].total_cmp(&probs[*a]));
                let top_k = if temperature == 0.0 { 1 } else { top_k };
                let left: f64 = order[..top_k].iter().map(|&id| probs[id]).sum();
                let (mut sum, mut stay) = (0.0, 0);
                while stay < top_k && sum < top_p * left {
                    sum += probs[order[stay]];
                    stay += 1;
                }
                (probs, order, stay, sum, left)
            };
            let (probs, order, stay, sum, left) = shares(temperature, top_k, top_p);
            let (_, own_order, own_stay, own_sum, _) = shares(0.8, 40, 0.9);
            let layout = stage.app.layout().unwrap();
            let (buffer, screen) = (stage.buffer(), stage.screen());
            let line = |y: u16| -> Vec<String> {
                let cells = (layout.area.x..layout.area.right()).map(|x| buffer[(x, y)].symbol().to_owned());
                let cells: Vec<String> = cells.collect();
                read_text(&cells.concat().replace(['‹', '›'], " "))
            };
            // "run" and "tried": setting, how many stay, their sum. The seed stands between.
            let told = line(layout.area.y + 1);
            assert_eq!(&told[..4], ["0.8", "40", "0.9", "7"], "{screen}");
            assert!(told[4] == own_stay.to_string() && is(&told[5], own_sum, false), "{told:?}\n{screen}");
            if !keys.is_empty() {
                let told = line(layout.area.y + 2);
                let set = [temperature.to_string(), top_k.to_string(), top_p.to_string()];
                assert_eq!(&told[..3], &set, "{screen}");
                assert!(told[4] == stay.to_string() && is(&told[5], sum, false), "{told:?}\n{screen}");
            }
            let mut rank = 0;
            for (down, row) in layout.visible_rows(&stage.app).enumerate() {
                let y = layout.area.y + layout.header + u16::try_from(down).unwrap();
                let numbers = line(y);
                let Some(index) = stage.app.view().index(&stage.app, (row, 0)) else {
                    let known = [top_p, sum, left, stay as f64, top_k as f64, temperature, probs[order[0]]];
                    let right =
                        numbers.iter().all(|number| known.iter().any(|value| is(number, *value, false)));
                    assert!(right, "{numbers:?} of {known:?}\n{screen}");
                    continue;
                };
                let id = order[rank];
                assert_eq!(index, [11, id], "the likeliest first\n{screen}");
                let in_run = own_order[..own_stay].contains(&id);
                let mut expected = vec![id as f64, logits[id], probs[id]];
                expected.extend((rank < stay).then(|| probs[id] / sum));
                if !keys.is_empty() && in_run {
                    let (own, ..) = shares(0.8, 40, 0.9);
                    expected.push(own[id] / own_sum);
                }
                // The token's text may be a number, and the mark beside the bar has none.
                let right = numbers.len() == expected.len()
                    && numbers.iter().zip(&expected).all(|(number, value)| is(number, *value, false));
                assert!(right, "{numbers:?} of {expected:?}\n{screen}");
                rank += 1;
            }
            assert!(rank > 3, "{screen}");
        }
    }
}

/// A stage with the view of this name, at some size.
fn in_view(source: Synthetic, step: &str, view: &str, size: (u16, u16)) -> Stage {
    let mut stage = Stage::new(source, size, Depth::None);
    stage.keys("/").keys(step);
    stage.key(KeyCode::Enter);
    while stage.app.view().name() != view {
        stage.keys("v");
    }
    stage
}

/// The lines of the view.
fn body(stage: &Stage) -> Vec<Vec<String>> {
    let (buffer, layout) = (stage.buffer(), stage.app.layout().unwrap());
    let area = Rect { height: layout.lines(&stage.app) as u16, ..layout.area }.intersection(layout.area);
    let line = |y| (area.x..area.right()).map(|x| buffer[(x, y)].symbol().to_owned()).collect();
    (area.y..area.bottom()).map(line).collect()
}

/// All values of a stage.
fn values_of(stage: &mut Stage, site: Site) -> ndarray::ArrayD<f32> {
    let pass = stage.app.outline().passes[site.pass].dims;
    let shape = stage.app.outline().card.sizes().shape(site.stage.axes(), pass);
    let query = Query::Block(site, Region::whole(&shape));
    let std::task::Poll::Ready(Ok(Answer::Block(block))) = stage.source.ask(&query) else { panic!("{site}") };
    block.frame.floats().unwrap().to_owned()
}

const SOME_SIZES: [(u16, u16); 5] = [(60, 16), (75, 20), (80, 24), (120, 40), (200, 60)];

/// In a diagram there are no numbers but the shapes of the stages, each in the box that has its name, and the number
/// of a layer.
#[test]
fn every_number_of_a_diagram_is_a_shape_in_its_own_box() {
    for size in SOME_SIZES {
        for (step, view) in [
            ("L2/xq", "flow"),
            ("L0/attn_norm", "flow"),
            ("L1/ffn_down", "flow"),
            ("L1/ffn_hidden_q8", "flow"),
            ("tokens", "pass"),
            ("L1/softmax", "pass"),
            ("sampled", "pass"),
        ] {
            let stage = in_view(Synthetic::with_switches(), step, view, size);
            let (layout, lines) = (stage.app.layout().unwrap(), body(&stage));
            let sizes = stage.app.outline().card.sizes();
            let (mut boxes, mut numbers) = (0, 0);
            layout.each_cell(&stage.app, |row, _, x, y| {
                let part = |y: u16| -> String {
                    let line = &lines[usize::from(y)];
                    line[x.into()..usize::from(x + layout.cell).min(line.len())].concat()
                };
                let top = usize::from(y) + 1;
                let low = usize::from(y + layout.tall) - 1;
                if low >= lines.len() || !part(top as u16).starts_with(['┌', '┏']) {
                    return;
                }
                boxes += 1;
                let title = part(top as u16);
                let name = title.trim_matches(|c: char| !c.is_ascii_alphanumeric());
                let before = if stage.app.place().layer == Some(0) { "embedding" } else { "ffn_residual" };
                let (number, name) = match name.split_once([' ', '=']) {
                    Some(("layer", number)) => (read_text(number), "ffn_residual"),
                    _ if name == "x" || name.starts_with("x =") => (Vec::new(), before),
                    _ => (Vec::new(), name),
                };
                assert!(read_text(&title) == number, "{title}\n{}", stage.screen());
                let told = read_text(&part(low as u16));
                // A name that is cut stands for all that begin so.
                let meant = TraceStage::ALL.iter().filter(|stage| match title.contains('…') {
                    true => stage.name().starts_with(name),
                    false => stage.name() == name,
                });
                let shapes = meant.map(|stage_of| {
                    let shape = sizes.shape(stage_of.axes(), stage.app.dims());
                    shape.iter().map(ToString::to_string).collect::<Vec<_>>()
                });
                let shape = shapes.into_iter().find(|shape| told.ends_with(shape));
                let Some(shape) = shape else { panic!("{title}, row {row}: {told:?}\n{}", stage.screen()) };
                assert!(told == shape || ["tokens", "sampled"].contains(&name), "{name}\n{}", stage.screen());
                numbers += shape.len() + number.len();
            });
            assert!(boxes > 0, "{}", stage.screen());
            let all: usize = lines.iter().map(|line| read(line).len()).sum();
            assert!(all >= numbers, "{}", stage.screen());
            // Between the boxes there is none; the texts of tokens have some.
            let texts = lines.iter().flat_map(|line| read(line)).count() - numbers;
            assert!(texts == 0 || view == "pass", "{texts} more\n{}", stage.screen());
        }
    }
}

/// Lengths, angles and shares are those of the recorded rows, by the formula that stands below them.
#[test]
fn every_number_of_the_residual_stream_follows_from_the_recorded_rows() {
    for size in SOME_SIZES {
        for keys in ["", "hhhkk", "hhhhhhhhhhhhhjjjjjj"] {
            let mut stage = in_view(Synthetic::new(), "L1/attn_residual", "residual", size);
            stage.keys(keys);
            stage.shows("‖a‖ / ‖x‖ · angle = arccos(x·a");
            stage.shows("‖v‖ = √(Σ v²)");
            let layout = stage.app.layout().unwrap();
            let (lines, rows) = (body(&stage), layout.visible_rows(&stage.app));
            let tokens = layout.visible_columns(&stage.app);
            assert!(rows.len() > 2 && !tokens.is_empty(), "{}", stage.screen());
            let mut row_of = |layer: Option<usize>, what: TraceStage, token: usize| -> Vec<f64> {
                let array = values_of(&mut stage, Site { layer, ..Site::once(0, what) });
                array.index_axis(ndarray::Axis(0), token).iter().map(|&value| f64::from(value)).collect()
            };
            let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
            // What stands after a row, what it adds, the angle and the share.
            let mut told = |row: usize, token: usize| {
                let Some(at) = row.checked_sub(1) else {
                    return (norm(&row_of(None, TraceStage::Embedding, token)), None);
                };
                let here = Some(at / 2);
                let before = match at {
                    0 => row_of(None, TraceStage::Embedding, token),
                    at if at % 2 == 0 => row_of(Some(at / 2 - 1), TraceStage::FfnResidual, token),
                    _ => row_of(here, TraceStage::AttnResidual, token),
                };
                let (added, after) = match at % 2 {
                    0 => (TraceStage::AttnOutput, TraceStage::AttnResidual),
                    _ => (TraceStage::FfnDown, TraceStage::FfnResidual),
                };
                let (added, after) = (row_of(here, added, token), row_of(here, after, token));
                let dot: f64 = before.iter().zip(&added).map(|(x, a)| x * a).sum();
                let angle = (dot / norm(&before) / norm(&added)).acos().to_degrees();
                (norm(&after), Some([norm(&added), angle, 100.0 * norm(&added) / norm(&before)]))
            };
            let mut of_cursor = None;
            for (down, row) in rows.clone().enumerate() {
                let (after, rest) = told(row, layout.cursor.1);
                let mut expected = vec![after];
                if let Some([added, angle, _]) = rest {
                    expected.extend([added, angle]);
                    expected.extend(tokens.clone().map(|token| told(row, token).1.unwrap()[2]));
                }
                if row == layout.cursor.0 {
                    of_cursor = rest.map(|[added, _, share]| [added / share * 100.0, added, after]);
                }
                let numbers = read_text(&lines[down + usize::from(layout.header)].concat());
                let right = numbers.len() == expected.len()
                    && numbers.iter().zip(&expected).all(|(number, value)| is(number, *value, false));
                assert!(
                    right,
                    "row {row}: {numbers:?} of {expected:?}\n{}",
                    lines.iter().map(|line| line.concat() + "\n").collect::<String>()
                );
            }
            // Below the rows the three lengths of the one under the cursor are told again, and nothing else.
            let below: Vec<String> = lines[usize::from(layout.header) + rows.len()..]
                .iter()
                .flat_map(|line| read_text(&line.concat()))
                .collect();
            let known = of_cursor.unwrap_or_default();
            let right = below.iter().zip(known).all(|(number, value)| is(number, value, false));
            assert!(right && [0, 3].contains(&below.len()), "{below:?} of {known:?}");
        }
    }
}

/// Units stand in the order of |hidden|, each beside what was recorded of it.
#[test]
fn every_number_of_the_units_is_in_the_trace_and_the_strongest_come_first() {
    for size in SOME_SIZES {
        for (step, keys) in
            [("L1/ffn_hidden", ""), ("L2/ffn_gate", "jjj"), ("L0/ffn_up", "hhhhhjjjjjjjjjjjjjjjjjjjj")]
        {
            let mut stage = in_view(Synthetic::new(), step, "neurons", size);
            stage.keys(keys);
            let layout = stage.app.layout().unwrap();
            let (lines, rows, token) = (body(&stage), layout.visible_rows(&stage.app), layout.cursor.1);
            let layer = stage.app.place().layer;
            let [gate, silu, up, hidden] =
                [TraceStage::FfnGate, TraceStage::FfnSilu, TraceStage::FfnUp, TraceStage::FfnHidden]
                    .map(|what| values_of(&mut stage, Site { layer, ..Site::once(0, what) }));
            let count = hidden.shape()[1];
            let mut order: Vec<usize> = (0..count).collect();
            order.sort_by(|a, b| hidden[[token, *b]].abs().total_cmp(&hidden[[token, *a]].abs()));
            for (down, rank) in rows.clone().enumerate() {
                let unit = order[rank];
                let mut expected = vec![unit as f64];
                expected.extend([&gate, &silu, &up, &hidden].map(|all| f64::from(all[[token, unit]])));
                let line = lines[down + usize::from(layout.header)].concat();
                let numbers = read_text(&line);
                let right = numbers.len() == expected.len()
                    && numbers.iter().zip(&expected).all(|(number, value)| is(number, *value, false));
                assert!(right, "rank {rank}: {numbers:?} of {expected:?}\n{}", stage.screen());
                assert!(line.contains('–'), "there are no weights: {line}");
            }
            let unit = order[layout.cursor.0];
            assert_eq!(stage.app.index(), [token, unit], "{}", stage.screen());
            stage.shows(&format!("unit {unit}, number {} of {count} by |hidden|", layout.cursor.0 + 1));
            stage.shows("it has no weights");
            stage.shows("silu = gate / (1 + e^−gate) · hidden = silu · up");
        }
    }
}

/// Log-probability and rank of each token, made again from the logits of the position before; and the marks on the strip.
#[test]
fn every_number_of_the_tokens_follows_from_the_logits_before_them() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut stage = Stage::new(Synthetic::new(), size, Depth::None);
        stage.keys("t").wait().keys("t").wait().keys("/p0/logits");
        stage.key(KeyCode::Enter);
        let tensor = stage.app.tensor().unwrap();
        let row = |row: usize| (0..64).map(|id| real(tensor.get(&[row, id]).unwrap())).collect::<Vec<f64>>();
        let told = |logits: &[f64], id: usize| {
            let most = logits.iter().fold(f64::MIN, |a, &b| f64::max(a, b));
            let sum: f64 = logits.iter().map(|logit| (logit - most).exp()).sum();
            let rank =
                (0..64).filter(|&o| logits[o] > logits[id] || logits[o] == logits[id] && o < id).count();
            (logits[id] - most - sum.ln(), rank + 1)
        };
        stage.keys("/p0/tokens");
        stage.key(KeyCode::Enter);
        while stage.app.view().name() != "tokens" {
            stage.keys("v");
        }
        stage.keys("T");
        let strip = |stage: &Stage| stage.screen().lines().nth(1).unwrap().to_owned();
        assert!(strip(&stage).contains("−log p ░≥1 ▒≥2 ▓≥4 █≥8"), "{}", stage.screen());
        let (layout, buffer, screen) = (stage.app.layout().unwrap(), stage.buffer(), stage.screen());
        let tokens = stage.app.outline().passes[0].tokens.clone();
        let mut seen = 0;
        for (down, at) in layout.visible_rows(&stage.app).enumerate() {
            let y = layout.area.y + layout.header + u16::try_from(down).unwrap();
            let line: String =
                (layout.area.x..layout.area.right()).map(|x| buffer[(x, y)].symbol()).collect();
            let id = tokens[at].id as usize;
            let bytes: Vec<String> = tokens[at].text.bytes().map(|byte| format!("{byte:02x}")).collect();
            assert!(line.contains(&bytes[0]), "{line}\n{screen}");
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(words[0], at.to_string(), "{screen}");
            assert!(words.contains(&id.to_string().as_str()), "{screen}");
            if at == 0 {
                assert!(line.contains("first"), "before it there is nothing\n{screen}");
                continue;
            }
            let (log, rank) = told(&row(at - 1), id);
            let found = words.iter().position(|word| word.starts_with("-") && word.parse::<f64>().is_ok());
            let found = found.unwrap_or_else(|| panic!("no log p in {line}"));
            assert!(is(words[found], log, false), "{} of {log}\n{screen}", words[found]);
            assert_eq!(words[found + 1], rank.to_string(), "{screen}");
            // The strip has the mark of the same number.
            let mark = match -log {
                ..1.0 => "│",
                1.0..2.0 => "░",
                2.0..4.0 => "▒",
                4.0..8.0 => "▓",
                _ => "█",
            };
            let marked = format!("{}{mark}", llama_trace::tui::text::visible(&tokens[at].text));
            let cut = llama_trace::tui::text::visible(&tokens[at].text);
            assert!(!strip(&stage).contains(&cut) || strip(&stage).contains(&marked), "{marked}\n{screen}");
            seen += 1;
        }
        assert!(seen > 3, "{screen}");
        // A token that was drawn is told from the last logits of the pass before.
        stage.keys(".");
        assert_eq!(stage.app.place().pass, 1);
        let (log, rank) = told(&row(11), 20);
        let shown = stage.screen();
        let line = shown.lines().find(|line| line.contains("12 ␣word20")).unwrap().to_owned();
        let words: Vec<&str> = line.split_whitespace().collect();
        let found =
            words.iter().position(|word| word.starts_with('-') && word.parse::<f64>().is_ok()).unwrap();
        assert!(is(words[found], log, false) && words[found + 1] == rank.to_string(), "{shown}");
    }
}

#[test]
fn the_strip_carries_the_attention_of_the_head_in_view() {
    let mut stage = Stage::sized("softmax", (200, 60), Depth::None);
    stage.keys("TT");
    let strip = stage.screen().lines().nth(1).unwrap().to_owned();
    assert!(strip.contains("attention ░≥0.05 ▒≥0.1 ▓≥0.25 █≥0.5"), "{strip}");
    let tensor = stage.app.tensor().unwrap();
    for (key, token) in stage.app.outline().passes[0].tokens.iter().enumerate() {
        let weight = real(tensor.get(&[2, 11, key]).unwrap());
        let mark = match weight {
            ..0.05 => "│",
            0.05..0.1 => "░",
            0.1..0.25 => "▒",
            0.25..0.5 => "▓",
            _ => "█",
        };
        let marked = format!("{}{mark}", llama_trace::tui::text::visible(&token.text));
        // Behind the last stands an arrow where it has no mark.
        let last = mark == "│" && key == 11;
        assert!(last || strip.contains(&marked), "{marked} for {weight} in {strip}");
    }
    stage.keys("T");
    assert!(!stage.screen().lines().nth(1).unwrap().contains("attention"));
}
