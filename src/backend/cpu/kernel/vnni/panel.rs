//! Weights as tiles of many tokens read them: 16 rows side by side.

use std::arch::x86_64::*;
use std::cell::RefCell;

use crate::ops::matmul::LANES;

thread_local! {
    pub(super) static PANELS: RefCell<Vec<Panel>> = RefCell::default();
}

/// The first of the thread's panels.
pub(super) fn first(panels: &mut Vec<Panel>) -> &mut Panel {
    if panels.is_empty() {
        panels.push(Panel::default());
    }
    &mut panels[0]
}

/// As many of the thread's panels as `rows` rows take, each made by `fill` of so many rows from one on.
pub(super) fn fill_all(
    panels: &mut Vec<Panel>,
    rows: usize,
    fill: impl Fn(&mut Panel, usize, usize),
) -> &[Panel] {
    let count = rows.div_ceil(LANES);
    panels.resize_with(panels.len().max(count), Panel::default);
    for (i, panel) in panels[..count].iter_mut().enumerate() {
        fill(panel, i * LANES, LANES.min(rows - i * LANES));
    }
    &panels[..count]
}

/// 16 rows of weights, one a lane.
#[derive(Default)]
pub(super) struct Panel {
    /// (group, quad): four neighbouring values, with 128 added to what they are where VNNI reads them.
    pub(super) quads: Vec<__m512i>,
    /// (group) of the first run and of the second.
    pub(super) scales: [Vec<__m512>; 2],
    pub(super) minima: [Vec<__m512>; 2],
}
