//! Edges of a diagram: lines between boxes, which join at the points where they meet. The lines of the current box are
//! heavy.

use std::ops::Range;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::super::theme::Theme;
use super::layout::Layout;
use super::paint::put;

/// Relation of a box or an edge to the current box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lit {
    /// The current box.
    Here,
    /// An input of the current box.
    In,
    /// A reader of the current box.
    Out,
}

impl Lit {
    pub(super) fn mark(self) -> &'static str {
        match self {
            Self::Here => "▸",
            Self::In => "●",
            Self::Out => "○",
        }
    }

    pub(super) fn style(self, theme: Theme) -> Style {
        match self {
            Self::Here => theme.strong(),
            Self::In => theme.code(),
            Self::Out => theme.token(),
        }
    }
}

/// The sides on which a character's line leads to its neighbours, as bits.
const UP: u8 = 1;
const DOWN: u8 = 2;
const LEFT: u8 = 4;
const RIGHT: u8 = 8;

/// Line characters by the sum of [`UP`], [`DOWN`], [`LEFT`] and [`RIGHT`]: light ones, then heavy ones.
const LIGHT: [&str; 16] = [" ", "│", "│", "│", "─", "┘", "┐", "┤", "─", "└", "┌", "├", "─", "┴", "┬", "┼"];
const HEAVY: [&str; 16] = [" ", "┃", "┃", "┃", "━", "┛", "┓", "┫", "━", "┗", "┏", "┣", "━", "┻", "┳", "╋"];

/// The edges of a diagram that are on the screen.
pub(super) struct Edges {
    area: Rect,
    /// Columns before the first box; then the columns and the lines of a cell.
    label: u16,
    cell: u16,
    tall: u16,
    /// The first line of the diagram on the screen.
    top: usize,
    /// The side bits of each character, and the character's relation to the current box.
    lines: Vec<(u8, Option<Lit>)>,
    /// Pairs of rows that the residual stream joins.
    stream: Vec<(usize, usize, Option<Lit>)>,
    /// Edges within a row: the row, the lane, and whether the edge leads to the right.
    beside: Vec<(usize, usize, bool, Option<Lit>)>,
}

impl Edges {
    /// An empty set of edges, for the rows `seen`.
    pub(super) fn new(layout: &Layout, seen: &Range<usize>) -> Self {
        let first = seen.start;
        let height = u16::try_from(seen.len()).unwrap_or(u16::MAX).saturating_mul(layout.tall);
        let area = Rect { height: height.min(layout.area.height), ..layout.area };
        Self {
            area,
            label: layout.label,
            cell: layout.cell,
            tall: layout.tall,
            top: first * usize::from(layout.tall),
            lines: vec![(0, None); usize::from(area.width) * usize::from(area.height)],
            stream: Vec::new(),
            beside: Vec::new(),
        }
    }

    /// Adds the residual stream between two of its boxes.
    pub(super) fn stream(&mut self, from: usize, to: usize, lit: Option<Lit>) {
        self.stream.push((from, to, lit));
    }

    /// Adds an edge from one row and lane to another; it runs down in the lane `way`.
    pub(super) fn add(&mut self, from: (usize, usize), to: (usize, usize), way: usize, lit: Option<Lit>) {
        if from.0 == to.0 {
            self.beside.push((from.0, from.1.min(to.1), from.1 < to.1, lit));
            return;
        }
        let tall = usize::from(self.tall);
        let (first, last) = ((from.0 + 1) * tall, to.0 * tall);
        let (start, down, end) = (self.middle(from.1), self.middle(way), self.middle(to.1));
        self.mark(start, first, UP, lit);
        self.across(start, down, first, lit);
        for y in first..last {
            self.mark(down, y, DOWN, lit);
            self.mark(down, y + 1, UP, lit);
        }
        self.across(down, end, last, lit);
        self.mark(end, last, DOWN, lit);
    }

    fn across(&mut self, from: u16, to: u16, y: usize, lit: Option<Lit>) {
        for x in from.min(to)..from.max(to) {
            self.mark(x, y, RIGHT, lit);
            self.mark(x + 1, y, LEFT, lit);
        }
    }

    /// The column of the lines in a lane.
    fn middle(&self, lane: usize) -> u16 {
        self.label + lane as u16 * self.cell + self.cell / 2 - 1
    }

    fn mark(&mut self, x: u16, y: usize, bits: u8, lit: Option<Lit>) {
        let Some(y) = y.checked_sub(self.top).filter(|&y| y < usize::from(self.area.height)) else { return };
        if x < self.area.width {
            let line = &mut self.lines[y * usize::from(self.area.width) + usize::from(x)];
            *line = (line.0 | bits, line.1.or(lit));
        }
    }

    /// Draws all edges; `gap` is the number of columns between two boxes.
    pub(super) fn draw(&self, theme: Theme, gap: u16, buf: &mut Buffer) {
        let style = |lit: Option<Lit>| lit.map_or(theme.dim(), |lit| lit.style(theme));
        let width = usize::from(self.area.width).max(1);
        for (at, &(bits, lit)) in self.lines.iter().enumerate().filter(|(_, line)| line.0 != 0) {
            let symbols = if lit.is_some() { HEAVY } else { LIGHT };
            let (x, y) = ((at % width) as u16, (at / width) as u16);
            put(buf, self.area, x, y, symbols[usize::from(bits)], style(lit));
        }
        let line = |row: usize| (row * usize::from(self.tall) + 1).checked_sub(self.top);
        for &(row, lane, right, lit) in &self.beside {
            let Some(y) = line(row) else { continue };
            let arrow = match (right, lit.is_some()) {
                (true, false) => "──▸",
                (true, true) => "━━▸",
                (false, false) => "◂──",
                (false, true) => "◂━━",
            };
            let skip = if right { 3 - usize::from(gap) } else { 0 };
            let arrow: String = arrow.chars().skip(skip).take(gap.into()).collect();
            let x = self.label + (lane as u16 + 1) * self.cell - gap;
            put(buf, self.area, x, y as u16, &arrow, style(lit));
        }
        // Edges of the current box are drawn over the others.
        let mut stream = self.stream.clone();
        stream.sort_by_key(|(_, _, lit)| lit.is_some());
        for (from, to, lit) in stream {
            let (first, last) = ((from * usize::from(self.tall) + 1), (to * usize::from(self.tall) + 1));
            for y in first.max(self.top)..=last {
                let joint = (y == first || y == last) && y >= self.top;
                let symbols = match (joint, lit.is_some()) {
                    (true, false) => "╠═",
                    (true, true) => "┣━",
                    (false, false) => "║",
                    (false, true) => "┃",
                };
                put(buf, self.area, 0, u16::try_from(y - self.top).unwrap_or(u16::MAX), symbols, style(lit));
            }
        }
    }
}
