//! The plan of a trace file, after its run has ended.

use super::{DIGESTS, Plan};
use crate::record::tables::{COUNTS, STATS};
use llama_trace_core::trace::{PassDims, Site};

impl Plan {
    /// The plan of the same file for the passes that ran, which may be fewer than planned.
    pub(in crate::record) fn ended(&self, passes: &[Vec<PassDims>]) -> Self {
        // A sequence that never began has no part in the file.
        let passes = (passes, self.layout.branches());
        Self::new(*self.layout.sizes(), passes, self.stages.clone(), self.texts, |key| self.holds(key))
    }

    /// The moves in the file from the places of this plan to those of `ended`, ordered by the new places. Each has the
    /// old offset, the new offset, and the number of bytes.
    pub(in crate::record) fn moves(&self, ended: &Self) -> Vec<(usize, usize, usize)> {
        let mut moves: Vec<(usize, usize, usize)> = Vec::new();
        let mut add = |from: usize, to: usize, bytes: usize| match moves.last_mut() {
            Some((last, at, length)) if *last + *length == from && *at + *length == to => *length += bytes,
            _ => moves.push((from, to, bytes)),
        };
        let one = |row: Option<usize>| row.map(|row| row..row + 1);
        for table in [&COUNTS, &STATS, &DIGESTS] {
            let (from, to) = (self.table(table.name).start, ended.table(table.name).start);
            for site in ended.sites() {
                let [old, new] = [self, ended].map(|plan| match table.name {
                    name if name == DIGESTS.name => {
                        plan.digests(site).map(|(first, own)| first + own.start..first + own.end)
                    }
                    _ => one(plan.row(site)),
                });
                if let (Some(old), Some(new)) = (old, new) {
                    add(
                        from + old.start * table.bytes,
                        to + new.start * table.bytes,
                        new.len() * table.bytes,
                    );
                }
            }
        }
        for site in ended.sites() {
            if let (Some((from, before)), Some((to, after))) = (self.place(site), ended.place(site)) {
                let (from, to) = (from + before, to + after);
                let dims = ended.layout.dims(site.sequence, site.pass);
                let shape = dims.map(|dims| self.layout.sizes().shape(site.stage.axes(), dims));
                let count: usize = shape.map_or(0, |shape| shape.iter().product());
                add(from, to, count * site.stage.value_bytes());
            }
        }
        moves.retain(|(from, to, _)| from != to);
        moves.sort_by_key(|(_, to, _)| *to);
        moves
    }

    /// Every site with statistics, in the order of the tables.
    pub(in crate::record) fn sites(&self) -> impl Iterator<Item = Site> {
        self.layout.keys(&self.stages).flat_map(|key| self.layout.sites(key))
    }
}
