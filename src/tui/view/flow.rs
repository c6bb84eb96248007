//! The flow: a layer, or the whole pass with its layers folded, as a diagram. A box is a stage with its shape and a
//! thumbnail of its values. An edge is an input from the table of stages. The line at the left is the residual stream.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use llama_trace_core::trace::stage::Input;
use llama_trace_core::trace::{Axis, Query, Stage, Step, Weight};

use super::super::app::App;
use super::super::fit::Piece;
use super::super::place::Place;
use super::super::text;
use super::diagram::{Diagram, LANES, Node, Spot};
use super::edges::{Edges, Lit};
use super::kind::{View, progress_note};
use super::layout::Layout;
use super::paint::{put, put_fit};
use super::{half_blocks, tensor_foot, thumbnail};

/// Columns of the residual stream at the left.
const RAIL: u16 = 2;
/// Minimum and maximum lines of a box including the edges above it.
const LOWEST: u16 = 3;
const HIGHEST: u16 = 8;
/// Minimum width of a cell at which the boxes are further apart.
const ROOMY: u16 = 22;

/// The layer as a diagram.
#[derive(Debug)]
pub struct Flow;

/// The whole pass, with its layers folded.
#[derive(Debug)]
pub struct Pass;

/// The boxes on the screen, and the current box.
struct Drawn {
    diagram: Diagram,
    current: usize,
}

impl Drawn {
    fn layer(app: &App) -> Self {
        let diagram = Diagram::layer(&app.outline().card.sizes(), app.dims(), app.place().layer.unwrap_or(0));
        Self::new(diagram, Node::Stage(app.place().step.stage()))
    }

    fn pass(app: &App) -> Self {
        let diagram = Diagram::pass(&app.outline().card.sizes(), app.dims());
        let place = app.place();
        Self::new(diagram, place.layer.map_or(Node::Stage(place.step.stage()), Node::Layer))
    }

    fn new(diagram: Diagram, node: Node) -> Self {
        let current = diagram.spots.iter().position(|spot| spot.node == node).unwrap_or(0);
        Self { diagram, current }
    }

    fn layout(&self, body: Rect) -> Layout {
        let rows = self.diagram.rows;
        let tall = (body.height / u16::try_from(rows).unwrap_or(u16::MAX).max(1)).clamp(LOWEST, HIGHEST);
        let cell = body.width.saturating_sub(RAIL) / LANES as u16;
        let cursor = self.diagram.spots[self.current].at;
        Layout {
            area: body,
            rows,
            columns: LANES,
            cursor,
            cell,
            tall,
            label: RAIL,
            margin: 1,
            ..Layout::default()
        }
    }

    /// The place of the box nearest to a cell.
    fn place(&self, app: &App, cell: (usize, usize)) -> Option<Place> {
        Some(place(app, self.diagram.spots[self.diagram.nearest(cell)?].node))
    }

    fn questions(&self, app: &App, layout: &Layout) -> Vec<Query> {
        let mut questions = vec![thumbnail::question(app, app.place().site())];
        let seen = layout.visible_rows(app);
        for spot in self.diagram.spots.iter().filter(|spot| seen.contains(&spot.at.0)) {
            let query = thumbnail::question(app, place(app, spot.node).site());
            if !questions.contains(&query) {
                questions.push(query);
            }
        }
        questions
    }

    /// The relation of a box to the current one.
    fn lit(&self, number: usize) -> Option<Lit> {
        let reads = |one: usize, other: usize| self.diagram.spots[one].reads.contains(&other);
        match number {
            number if number == self.current => Some(Lit::Here),
            number if reads(self.current, number) => Some(Lit::In),
            number if reads(number, self.current) => Some(Lit::Out),
            _ => None,
        }
    }

    fn render(&self, app: &App, layout: &Layout, buf: &mut Buffer) {
        let mut edges = Edges::new(layout, &layout.visible_rows(app));
        for (to, spot) in self.diagram.spots.iter().enumerate() {
            for &from in &spot.reads {
                let lit = match (from == self.current, to == self.current) {
                    (true, _) => Some(Lit::Out),
                    (_, true) => Some(Lit::In),
                    _ => None,
                };
                let read = &self.diagram.spots[from];
                if read.stream && spot.stream {
                    edges.stream(read.at.0, spot.at.0, lit);
                } else {
                    edges.add(read.at, spot.at, self.diagram.way(from, to), lit);
                }
            }
        }
        edges.draw(app.theme, gap(layout), buf);
        let seen = layout.visible_rows(app);
        for (number, spot) in self.diagram.spots.iter().enumerate() {
            if seen.contains(&spot.at.0) {
                self.draw(app, layout, (number, spot), buf);
            }
        }
        let right = layout.area.width.saturating_sub(1);
        if seen.start > 0 {
            put(buf, layout.area, right, 0, "▲", app.theme.key());
        }
        if seen.end < layout.rows {
            put(buf, layout.area, right, layout.area.height.saturating_sub(1), "▼", app.theme.key());
        }
    }

    /// Draws a box with name, values and shape. If a box is alone in its row, it is wide.
    fn draw(&self, app: &App, layout: &Layout, (number, spot): (usize, &Spot), buf: &mut Buffer) {
        let (theme, lit) = (app.theme, self.lit(number));
        let down = (spot.at.0 - layout.visible_rows(app).start) as u16 * layout.tall + 1;
        let area = Rect {
            x: layout.area.x + layout.label + spot.at.1 as u16 * layout.cell,
            y: layout.area.y + down,
            width: layout.cell * self.diagram.span(number) as u16 - gap(layout),
            height: layout.tall - 1,
        };
        let area = area.intersection(layout.area);
        let (frame, name_style) = match lit {
            Some(Lit::Here) => (theme.strong(), theme.current()),
            Some(lit) => (lit.style(theme), lit.style(theme)),
            None => (theme.dim(), theme.strong()),
        };
        let heavy = lit == Some(Lit::Here);
        let [corner, right, low, end, side, line] = if heavy {
            ["┏", "┓", "┗", "┛", "┃", "━"]
        } else {
            ["┌", "┐", "└", "┘", "│", "─"]
        };
        let (width, last) = (usize::from(area.width), area.height.saturating_sub(1));
        for (y, [left, right]) in [(0, [corner, right]), (last, [low, end])] {
            put(buf, area, 0, y, &format!("{left}{}{right}", line.repeat(width.saturating_sub(2))), frame);
        }
        for y in 1..last {
            put(buf, area, 0, y, side, frame);
            put(buf, area, area.width - 1, y, side, frame);
        }
        let mark = lit.map_or("", Lit::mark);
        let x = 1 + put(buf, area, 1, 0, mark, frame);
        let room = Rect { width: area.width.saturating_sub(1), ..area };
        put(buf, room, x, 0, &name(app, spot.node, width.saturating_sub(2 + text::width(mark))), name_style);
        let site = place(app, spot.node).site();
        let shape = app.outline().card.sizes().shape(site.stage.axes(), app.dims());
        let shape = shape.iter().map(usize::to_string).collect::<Vec<_>>().join("×");
        let shape_at = area.width.saturating_sub(1 + text::width(&shape) as u16).max(1);
        put(buf, room, shape_at, last, &shape, theme.dim());
        // In a low box the values are beside the shape.
        let inner = match last {
            0 | 1 => Rect { x: area.x + 1, y: area.y + last, width: shape_at.saturating_sub(2), height: 1 },
            _ => Rect { x: area.x + 1, y: area.y + 1, width: area.width - 2, height: last - 1 },
        };
        if last > 0 {
            // If there is no room for the values, `inner` is empty and the frame is not changed.
            put(buf, inner, 0, 0, &" ".repeat(inner.width.into()), Style::new());
            thumbnail::draw(app, site, inner.intersection(layout.area), buf);
        }
    }
}

/// Columns between two boxes.
fn gap(layout: &Layout) -> u16 {
    if layout.cell >= ROOMY { 3 } else { 1 }
}

/// The place of a box.
fn place(app: &App, node: Node) -> Place {
    let here = app.place();
    match node {
        Node::Stage(stage) => {
            let layer = here.layer.filter(|_| stage.in_layer());
            Place { layer, step: Step::Stage(stage), ..here }
        }
        Node::Input => {
            let site = here.site().layer_input();
            Place { layer: site.layer, step: Step::Stage(site.stage), ..here }
        }
        Node::Layer(layer) => Place { layer: Some(layer), step: Step::Stage(Stage::FfnResidual), ..here },
    }
}

/// The name of a box in at most `columns`.
fn name(app: &App, node: Node, columns: usize) -> String {
    let forms = match node {
        Node::Stage(stage) => vec![stage.name().to_owned()],
        Node::Layer(layer) => vec![format!("layer {layer}"), format!("L{layer}")],
        Node::Input => {
            let site = app.place().site().layer_input();
            let from = site.layer.map_or_else(String::new, |layer| format!("L{layer}/"));
            vec![format!("x = {from}{}", site.stage), format!("x = {}", site.stage), "x".to_owned()]
        }
    };
    let fitting = forms.iter().find(|form| text::width(form) <= columns);
    fitting.cloned().unwrap_or_else(|| text::cut(&forms[0], columns))
}

/// The name of the view that shows the values of a stage.
fn values_of(step: Step) -> &'static str {
    if step.over_vocabulary() { "largest" } else { "heatmap" }
}

/// The inputs and weights of the current step, as text.
fn reads(app: &App) -> String {
    let (place, card) = (app.place(), &app.outline().card);
    let stage = place.step.stage();
    let inputs = place.site().inputs(&card.sizes(), app.dims()).into_iter().map(|input| match input {
        Input::Stage(stage) => stage.name().to_owned(),
        Input::LayerInput => {
            let before = place.site().layer_input();
            match (place.layer, before.layer) {
                (None, _) => "the last layer's ffn_residual".to_owned(),
                (_, Some(layer)) => format!("L{layer}/{}", before.stage),
                (_, None) => before.stage.name().to_owned(),
            }
        }
        Input::Positions => "the positions".to_owned(),
    });
    let weights = Weight::read_in(stage, card).map(|weight| weight.to_string());
    let all: Vec<String> = inputs.chain(weights).collect();
    if all.is_empty() { "nothing: it is an input".to_owned() } else { all.join(", ") }
}

/// The part of the stages that the thumbnails show: the tokens and, with `heads`, the head. If the current step holds a
/// head, the heading names this head, so it is left out here.
fn glance(app: &App, drawn: &Drawn, heads: bool) -> Piece {
    let head = app.cursor.selected.get(Axis::Head, app.outline().card.sizes().heads);
    let head = if heads && app.cut().held.is_none() { format!(", head {head}") } else { String::new() };
    let mut sites = drawn.diagram.spots.iter().map(|spot| place(app, spot.node).site());
    let forms = match thumbnail::some_rows(app, app.place().site()) {
        Some(rows) => vec![format!("this box: {rows}{head}"), format!("{rows}{head}")],
        None if sites.any(|site| thumbnail::some_rows(app, site).is_some()) => {
            vec![
                format!("this box: all tokens{head}; larger boxes: some tokens"),
                format!("all tokens{head}"),
            ]
        }
        None => vec![format!("each box: all tokens{head}"), format!("all tokens{head}")],
    };
    Piece::forms(forms, app.theme.strong()).rank(2)
}

/// Draws the meaning of boxes and lines, and the inputs of the stage `name`.
fn legend(app: &App, (name, reads): (&str, String), foot: Rect, buf: &mut Buffer) {
    let theme = app.theme;
    let mut pieces = Vec::new();
    for (lit, words) in [(Lit::Here, "here"), (Lit::In, "what it reads"), (Lit::Out, "what reads it")] {
        pieces.push(Piece::whole(format!("{} ", lit.mark()), lit.style(theme)));
        pieces.push(Piece::whole(format!("{words}  "), theme.dim()));
    }
    pieces.push(Piece::whole("║ residual stream", theme.dim()).rank(1));
    pieces.push(Piece::whole("  each box has its own scale", theme.dim()).rank(2));
    put_fit(buf, foot, 0, 0, &pieces);
    let line = [
        Piece::whole(name, theme.strong()),
        Piece::whole(" reads ", theme.dim()),
        Piece::words(reads, theme.code()),
    ];
    put_fit(buf, foot, 0, 1, &line);
}

impl View for Flow {
    fn name(&self) -> &'static str {
        "flow"
    }

    fn hint(&self) -> [&'static str; 3] {
        [
            "The layer as a diagram, from top to bottom: a box is a stage with its values and its shape, an edge leads to a stage that reads it.",
            "The line at the left is the residual stream: attention and the feed-forward network read it and add to it.",
            "The arrow keys go from box to box, Enter opens the stage. Its inputs and its readers are marked.",
        ]
    }

    fn fits(&self, step: Step) -> bool {
        step.stage().in_layer()
    }

    fn layout(&self, app: &App, body: Rect) -> Layout {
        Drawn::layer(app).layout(body)
    }

    fn index(&self, _: &App, _: (usize, usize)) -> Option<Vec<usize>> {
        None
    }

    fn select(&self, app: &mut App, cell: (usize, usize)) {
        if let Some(place) = Drawn::layer(app).place(app, cell) {
            app.go(place);
            app.choose_view(self.name());
        }
    }

    fn questions(&self, app: &App, layout: &Layout) -> Vec<Query> {
        Drawn::layer(app).questions(app, layout)
    }

    fn keys(&self) -> &'static [(&'static str, &'static str)] {
        &[("Enter", "open the box")]
    }

    fn enter_place(&self, app: &App) -> Option<(Place, &'static str)> {
        Some((app.place(), values_of(app.place().step)))
    }

    fn needs_no_values(&self) -> bool {
        true
    }

    fn caption(&self, app: &App, _: &Layout) -> Vec<Piece> {
        let layer = app.place().layer.unwrap_or_default();
        let words = [" as a diagram · Enter opens the box", " as a diagram"];
        let words = words.map(|words| format!(" · layer {layer}{words}"));
        let mut pieces = vec![
            glance(app, &Drawn::layer(app), true),
            Piece::forms(words.into_iter().chain([String::new()]), app.theme.dim()).rank(3),
            Piece::whole(half_blocks::characters(app), app.theme.dim()).rank(1),
        ];
        pieces.extend(progress_note(app));
        pieces
    }

    fn legend(&self, app: &App, foot: Rect, buf: &mut Buffer) {
        legend(app, (app.place().step.stage().name(), reads(app)), foot, buf);
    }

    fn foot(&self, app: &App, foot: Rect, buf: &mut Buffer) {
        self.legend(app, foot, buf);
        tensor_foot::cursor(app, foot, buf);
    }

    fn render(&self, app: &App, layout: &Layout, buf: &mut Buffer) {
        Drawn::layer(app).render(app, layout, buf);
    }
}

impl View for Pass {
    fn name(&self) -> &'static str {
        "pass"
    }

    fn hint(&self) -> [&'static str; 3] {
        [
            "The whole pass as a diagram, from its tokens to the sampled token; each layer is one box, with its output.",
            "The layers write into one stream, one after the other. The RoPE tables and the mask are computed once for all layers.",
            "The arrow keys go from box to box. Enter opens the stage, or the layer.",
        ]
    }

    fn fits(&self, _: Step) -> bool {
        true
    }

    fn layout(&self, app: &App, body: Rect) -> Layout {
        Drawn::pass(app).layout(body)
    }

    fn index(&self, _: &App, _: (usize, usize)) -> Option<Vec<usize>> {
        None
    }

    fn select(&self, app: &mut App, cell: (usize, usize)) {
        if let Some(place) = Drawn::pass(app).place(app, cell) {
            app.go(place);
            app.choose_view(self.name());
        }
    }

    fn questions(&self, app: &App, layout: &Layout) -> Vec<Query> {
        Drawn::pass(app).questions(app, layout)
    }

    fn keys(&self) -> &'static [(&'static str, &'static str)] {
        &[("Enter", "open the box")]
    }

    fn enter_place(&self, app: &App) -> Option<(Place, &'static str)> {
        let place = app.place();
        if place.layer.is_none() {
            return Some((place, values_of(place.step)));
        }
        // The box of a layer leads to its first stage.
        let walk = app.walk();
        let first = walk.layer(place.layer.unwrap_or(0)).first().copied().unwrap_or(place.step);
        let step = if place.step == Step::Stage(Stage::FfnResidual) { first } else { place.step };
        Some((Place { step, ..place }, Flow.name()))
    }

    fn needs_no_values(&self) -> bool {
        true
    }

    fn caption(&self, app: &App, _: &Layout) -> Vec<Piece> {
        let words = [" as a diagram, layers folded · Enter opens the box", " as a diagram, layers folded"];
        let words = words.map(|words| format!(" · pass {}{words}", app.place().pass));
        let mut pieces = vec![
            glance(app, &Drawn::pass(app), false),
            Piece::forms(words.into_iter().chain([String::new()]), app.theme.dim()).rank(3),
            Piece::whole(half_blocks::characters(app), app.theme.dim()).rank(1),
        ];
        pieces.extend(progress_note(app));
        pieces
    }

    fn legend(&self, app: &App, foot: Rect, buf: &mut Buffer) {
        let Some(layer) = app.place().layer else {
            return legend(app, (app.place().step.stage().name(), reads(app)), foot, buf);
        };
        // The box of a layer stands for the whole layer.
        let drawn = Drawn::pass(app);
        let spots = &drawn.diagram.spots;
        let read = spots[drawn.current].reads.iter().map(|&read| name(app, spots[read].node, usize::MAX));
        let read = read.collect::<Vec<_>>().join(", ");
        legend(app, (&format!("layer {layer}"), read), foot, buf);
    }

    fn foot(&self, app: &App, foot: Rect, buf: &mut Buffer) {
        self.legend(app, foot, buf);
        tensor_foot::cursor(app, foot, buf);
    }

    fn render(&self, app: &App, layout: &Layout, buf: &mut Buffer) {
        Drawn::pass(app).render(app, layout, buf);
    }
}
