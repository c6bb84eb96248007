//! Weights in the order in which products of many tokens read them: 16 rows side by side.

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use llama_trace_core::ops::matmul::LANES;

thread_local! {
    pub(super) static PANELS: RefCell<Vec<Panel>> = RefCell::default();
}

/// Returns the thread's first panel.
pub(super) fn first(panels: &mut Vec<Panel>) -> &mut Panel {
    if panels.is_empty() {
        panels.push(Panel::default());
    }
    &mut panels[0]
}

/// Returns the thread's panels for `rows` rows. `fill(panel, first, count)` fills a panel with `count` rows from row
/// `first` on.
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

/// 16 rows of weights, one per lane.
#[derive(Default)]
pub(super) struct Panel {
    /// (group, quad): four adjacent values, with 128 added if VNNI reads them.
    pub(super) quads: Vec<__m512i>,
    /// (group): the scales of the first run, and of the second run.
    pub(super) scales: [Vec<__m512>; 2],
    pub(super) minima: [Vec<__m512>; 2],
}

/// Adds the partial sums (partial sum, token) of 16 rows by halves. Writes the results to the `columns` of each token,
/// for the rows that exist.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn add_up<const T: usize>(
    sums: &mut [[__m512; T]; LANES],
    columns: &Range<usize>,
    out: &mut [&mut [f32]],
) {
    for (t, out) in out.iter_mut().enumerate() {
        let mut width = LANES / 2;
        while width > 0 {
            for lane in 0..width {
                sums[lane][t] = _mm512_add_ps(sums[lane][t], sums[lane + width][t]);
            }
            width /= 2;
        }
        let out = &mut out[columns.clone()];
        let mask = ((1_u32 << out.len().min(LANES)) - 1) as u16;
        // SAFETY: the mask keeps the store inside the columns.
        unsafe { _mm512_mask_storeu_ps(out.as_mut_ptr(), mask, sums[0][t]) };
    }
}
