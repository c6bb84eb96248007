//! Looks up every number on the screen in the trace. The screens are those of every view at every width from 60 to 200,
//! with values and sizes that need much room.

use llama_trace::trace::{Axis, Stats, Step};
use llama_trace::tui::app::App;
use llama_trace::tui::input::Mode;
use llama_trace::tui::theme::Depth;
use llama_trace::tui::user_event::{Event, KeyCode};
use llama_trace::tui::view::layout::Layout;
use llama_trace::tui::view::tensor::LOOK_FOR;
use llama_trace::tui::view::{Panels, notes};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::shown::{Read, is, read, read_text, real};
use crate::stage::Stage;
use crate::synthetic::{Synthetic, wide};

/// Numbers of a step that any screen may show: its statistics, and the numbers in its notes.
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

    /// Checks that all numbers in `found` are expected, and are in the expected order. The first `needed` of the
    /// expected numbers must be present.
    #[track_caller]
    fn some_of(&self, found: &[String], expected: &[String], needed: usize, what: &str) {
        let mut rest = expected.iter();
        let in_order = found.iter().all(|number| rest.any(|other| other == number));
        let enough = found.len() >= needed && found[..needed] == expected[..needed];
        self.holds(in_order && enough, &format!("{what}: {found:?} of {expected:?}"));
    }

    /// Returns whether `text` is the text of a token of the prompt.
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
        // Replaces the minus sign of a range, so that it is not read as the sign of the second number.
        self.some_of(&read_text(&here.replace("0-", "0 ")), &expected, 1, "title");
        let name = read_text(&app.outline().card.name);
        self.holds(read_text(model).iter().all(|number| name.contains(number)), "model's name");
    }

    fn outline(&self, area: Rect) {
        for y in area.y..area.bottom() {
            let line = self.line(area, y).concat();
            let name = line.trim().trim_start_matches(['▸', '▾', '•', ' ']);
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

        let (mut expected, mut needed) = (Vec::new(), 0);
        let mut position = None;
        if let Some(held) = app.cut().held {
            let axis = app.place().step.axes()[held];
            let sizes = &app.outline().card.sizes();
            let (length, group) = (app.shape()[held], sizes.heads / sizes.kv_heads);
            let at = app.index()[held];
            // "head 2 of 0-3". A single head has no range.
            expected.push(at);
            if length > 1 {
                expected.extend([0, length - 1]);
            }
            needed = expected.len();
            match axis {
                Axis::Token if app.dims().start > 0 => {
                    position = Some(app.dims().start + at);
                    expected.extend(position);
                }
                Axis::Head => expected.push(at / group),
                Axis::KvHead => expected.extend([at * group, at * group + group - 1]),
                _ => {}
            }
        }
        let range = |seen: &std::ops::Range<usize>| [seen.start, seen.end - 1];
        let layout = app.layout().unwrap();
        let seen = layout.visible_rows(app);
        let length = |axis: Option<usize>| axis.map_or(1, |axis| app.shape()[axis]);
        if app.view().name() == "largest" {
            expected.extend([seen.start + 1, seen.end, layout.rows]);
        } else if app.view().name() == "overview" {
            // The number of values per cell is nearly the number of values divided by the number of cells.
            let bands = layout.rows.checked_div(layout.band).unwrap_or(1);
            let sides =
                [(length(Some(app.cut().rows)), layout.rows / bands), (length(app.cut().columns), bands)];
            let line = self.line(area, area.y + 1).concat();
            for (told, at) in line.match_indices(" per ").filter_map(|(at, _)| {
                let number = line[..at].rsplit(' ').next()?;
                Some((number.parse::<usize>().ok()?, at))
            }) {
                expected.push(told);
                // A character has two halves.
                let told = if line[at..].starts_with(" per half") { 2 * told } else { told };
                let [(rows, lines), (columns, bands)] = sides;
                // With bands, the last cells may have fewer values.
                let across = columns.div_ceil(told);
                let right = rows.div_ceil(told) == lines || across.div_ceil(layout.columns) == bands;
                self.holds(right, &format!("{told} per place"));
            }
        } else if app.view().name() == "histogram" {
            let counted = self.counted(area);
            if counted.len() < app.shape()[app.cut().rows] {
                expected.extend(range(&counted));
            }
        } else if app.view().name() == "heads" {
            // The number of values that a mark stands for.
            let line = self.line(area, area.y + 1).concat();
            for told in line.match_indices(" per ").filter_map(|(at, _)| line[..at].rsplit(' ').next()) {
                expected.push(told.parse().unwrap());
            }
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
        // The text of the chosen token is next to its index.
        let text = app.cut().held.map(|held| app.place().step.axes()[held]);
        let text = text.filter(|axis| matches!(axis, Axis::Token | Axis::Key));
        let beside =
            needed + usize::from(position.is_some_and(|at| numbers.get(needed) == Some(&at.to_string())));
        if text.is_some() && numbers.get(beside).is_some_and(|number| self.is_token(number)) {
            numbers.remove(beside);
        }
        if let (Some(kept), Some((_, sum))) = (app.kept(), line.split_once("sum ")) {
            self.holds(is(&read_text(sum)[0], kept.sum, false), "sum");
            numbers.pop();
        }
        self.some_of(&numbers, &expected, needed, "second heading");
        // A range of visible rows or columns has both its numbers.
        expected.drain(..needed);
        let told = expected.iter().skip_while(|number| !numbers[needed..].contains(number)).count();
        self.holds(numbers.len() >= needed + told.saturating_sub(1), "ranges");
    }

    /// Checks the rows of numbers or colours, with the labels around them. Returns the line below them.
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

    /// The line below the last line of a view.
    fn end(layout: &Layout, app: &App) -> u16 {
        layout.area.y + u16::try_from(layout.lines(app)).unwrap()
    }

    /// Each panel has the number of its head, and of the kv head that this head reads.
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

    /// Some lines have the number of their first row. The cursor's line has its own number.
    fn overview(&self, layout: &Layout) -> u16 {
        let (app, area) = (self.app, layout.area);
        let (down, across) = (app.cut().rows, app.cut().columns.unwrap());
        let mut covered = 0;
        let lines = if layout.band > 0 { layout.band } else { layout.rows };
        for row in layout.visible_rows(app) {
            let y = area.y + layout.header + layout.line_of(row);
            let line = self.cells(area.x, y, area.width).concat();
            if layout.band > 0 && row.is_multiple_of(lines) {
                let range = read_text(&self.cells(area.x, y - 1, area.width).concat().replace('-', " "));
                let all: Vec<usize> = range.iter().map(|number| number.parse().unwrap()).collect();
                let follows = all[0] == covered && all[1] < app.shape()[across];
                self.holds(all.len() == 2 && follows, &format!("columns {all:?} of a band after {covered}"));
                covered = all[1] + 1;
            }
            let Some(number) = read_text(&line).first().cloned() else { continue };
            let (number, length): (usize, usize) = (number.parse().unwrap(), app.shape()[down]);
            let right = match row % lines {
                _ if row == layout.cursor.0 => number == app.index()[down],
                0 => number == 0,
                row => number.is_multiple_of(row) && length.div_ceil((number / row).max(1)) == lines,
            };
            self.holds(right, &format!("row {number} of line {row}"));
        }
        self.holds(layout.band == 0 || covered == app.shape()[across], "bands have every column");
        Self::end(layout, app) + 1
    }

    /// The rows that a histogram counts. If there are too many rows, it counts only the rows around the cursor.
    fn counted(&self, panel: Rect) -> std::ops::Range<usize> {
        let (app, cut) = (self.app, self.app.cut());
        let (all, columns) = (app.shape()[cut.rows], app.shape()[cut.columns.unwrap()]);
        let line = self.line(panel, panel.y + 1).concat();
        let Some((_, told)) = line.split_once("of rows ") else { return 0..all };
        let ends = read_text(&told.replace('-', " "));
        let (first, last): (usize, usize) = (ends[0].parse().unwrap(), ends[1].parse().unwrap());
        let fits = last < all && (first..=last).contains(&app.index()[cut.rows]);
        self.holds(fits && (last + 1 - first) * columns <= 1 << 17, told);
        self.holds((last + 2 - first) * columns > 1 << 17, "the histogram counts too few rows");
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
            // The text of a token may be a number. The value is after this text.
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

    /// Returns whether a line ends with the root mean square of the token's row.
    fn is_root(&self, told: &str) -> bool {
        let values: Vec<f64> = self.app.tensor().unwrap().frame().values().numbers().collect();
        let row = values.chunks(values.len() / self.app.dims().tokens).nth(self.app.index()[0]).unwrap();
        let root = (row.iter().map(|value| value * value).sum::<f64>() / row.len() as f64).sqrt();
        is(told.split(' ').next_back().unwrap(), root, false)
    }

    /// Legend, statistics, the value under the cursor.
    fn foot(&self, area: Rect, from: u16) {
        let app = self.app;
        let (mut stats, mut cursor) = (false, false);
        let whole = &self.known.stats;
        let value = real(app.tensor().unwrap().get(&app.index()).unwrap());
        for y in from..area.bottom() {
            let line = self.line(area, y).concat();
            let (line, root) = line.trim().split_once(" · RMS ").unwrap_or((line.trim(), ""));
            self.holds(root.is_empty() || self.is_root(root), root);
            if line == LOOK_FOR {
                break;
            }
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
                let row = app.place().step.axes().iter().position(|axis| *axis == Axis::Token);
                let position = row.map(|axis| (app.dims().start + app.index()[axis]).to_string());
                let known = |number: &String| self.is_token(number) || position.as_ref() == Some(number);
                self.holds(numbers.iter().all(known), "a token's text");
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

    /// Checks the numbers in wrapped texts: each must also be in the text without line breaks.
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
        // These views show more than one tensor. Other tests check them.
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

/// Checks every number on the screen of `stage`.
#[track_caller]
pub(crate) fn read_all(stage: &Stage) {
    check(stage, &Known::of(&stage.app));
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
        for (turn, keys) in ["", "2", "$", "a]", "3"].into_iter().enumerate() {
            stage.keys(keys);
            let known = Known::of(&stage.app);
            // Over all stages and views, each width occurs a dozen times with various heights. The usual widths occur
            // for every stage.
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
fn every_number_on_a_screen_with_colours_is_in_the_trace() {
    every_view(|| wide(130, 1500, 3.3e4), Depth::True);
}

#[test]
fn no_number_in_notes_help_or_go_to_line_is_truncated() {
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
