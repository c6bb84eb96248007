//! The tables of a trace: its tensors that hold no stage.

use llama_trace_core::trace::{Site, Stage, Stats};

pub(super) const PASSES: &str = "passes";
pub(super) const BRANCHES: &str = "branches";
pub(super) const INDEX: &str = "index";
pub(super) const LABELS: &str = "labels";
pub(super) const LABEL_ENDS: &str = "label_ends";
pub(super) const PROMPTS: &str = "prompts";
pub(super) const PROMPT_ENDS: &str = "prompt_ends";

/// A table with a row for each stage of each pass.
pub(super) struct Table {
    pub(super) name: &'static str,
    /// Bytes of a row.
    pub(super) bytes: usize,
}

pub(super) const COUNTS: Table = Table { name: "counts", bytes: 3 * 8 };
pub(super) const STATS: Table = Table { name: "stats", bytes: 4 * 4 };
/// A row for each [`BLOCK`] of the kept values of a site, the last one possibly partial, in the order of the index.
pub(super) const DIGESTS: Table = Table { name: "digests", bytes: 32 };

/// Bytes of values per digest. A small block is verified quickly, and the digests of a stage can be computed in
/// parallel.
pub(super) const BLOCK: usize = 256 << 10;

/// The statistics in a row of `stats` and a row of `counts`.
pub(super) fn stats(figures: &[u8], counts: &[u8]) -> Option<Stats> {
    let [min, max, mean, std] = *figures.as_chunks().0 else { return None };
    let [neg_inf, pos_inf, nan] = *counts.as_chunks().0 else { return None };
    let (figure, count) = (
        |bytes| f64::from(f32::from_le_bytes(bytes)),
        |bytes| usize::try_from(i64::from_le_bytes(bytes)).ok(),
    );
    Some(Stats {
        min: figure(min),
        max: figure(max),
        mean: figure(mean),
        std: figure(std),
        neg_inf: count(neg_inf)?,
        pos_inf: count(pos_inf)?,
        nan: count(nan)?,
    })
}

/// A row of the index.
pub(super) fn index_row(site: Site, stages: &[Stage]) -> [i64; 4] {
    let stage = stages.iter().position(|stage| *stage == site.stage).unwrap_or_default();
    [site.sequence as i64, site.pass as i64, site.layer.map_or(-1, |layer| layer as i64), stage as i64]
}
