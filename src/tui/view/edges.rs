//! Lines between boxes: where several meet they join, and those of the current box are heavy.

use std::ops::Range;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::super::theme::Theme;
use super::layout::Layout;
use super::paint::put;

/// How a box or an edge stands to the current box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lit {
    /// It is the current one.
    Here,
    /// The current one reads it.
    In,
    /// It reads the current one.
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

/// Which neighbours of a character a line leads to.
const UP: u8 = 1;
const DOWN: u8 = 2;
const LEFT: u8 = 4;
const RIGHT: u8 = 8;

/// Lines by [`UP`], [`DOWN`], [`LEFT`] and [`RIGHT`] together, light and heavy.
const LIGHT: [&str; 16] = [" ", "│", "│", "│", "─", "┘", "┐", "┤", "─", "└", "┌", "├", "─", "┴", "┬", "┼"];
const HEAVY: [&str; 16] = [" ", "┃", "┃", "┃", "━", "┛", "┓", "┫", "━", "┗", "┏", "┣", "━", "┻", "┳", "╋"];

/// The lines of a diagram, as far as they are on the screen.
pub(super) struct Edges {
    area: Rect,
    /// Columns before the first box, columns of a cell, lines of one.
    label: u16,
    cell: u16,
    tall: u16,
    /// The line of the diagram that is at the top of the area.
    top: usize,
    /// What leads where, and how that stands to the current box.
    lines: Vec<(u8, Option<Lit>)>,
    /// The rows that the residual stream joins.
    stream: Vec<(usize, usize, Option<Lit>)>,
    /// Edges within a row: row, lane, whether it leads to the right.
    beside: Vec<(usize, usize, bool, Option<Lit>)>,
}

impl Edges {
    /// The lines between the boxes of the rows `seen`.
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

    /// The stream from one of its boxes to the next.
    pub(super) fn stream(&mut self, from: usize, to: usize, lit: Option<Lit>) {
        self.stream.push((from, to, lit));
    }

    /// From a row and a lane to another, down the lane `way`.
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

    /// The column of the lines of a lane.
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

    /// Draws all of them; `gap` columns are between two boxes.
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
        // Those of the current box stand over the others.
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
