//! Reading a trace. The file is mapped into memory: opening it reads the header, the passes and their tokens. Values
//! are read on demand.

mod open;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::{AnyBitPattern, NoUninit, cast_slice_mut, try_cast_slice};
use ndarray::{ArrayD, IxDyn};

use super::about::{About, Keep};
use super::branch::Branch;
use super::plan::Plan;
use super::tables::{self, BLOCK, COUNTS, DIGESTS, STATS};
use llama_trace_core::config::ARITHMETIC;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::tensor::Bytes;
use llama_trace_core::threads::prelude::*;
use llama_trace_core::trace::{FrameData, PassDims, Run, Site, Stage, Stats, Values};
use llama_trace_formats::files::Sha256;

/// A pass of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Its number, its start and its number of tokens.
    pub dims: PassDims,
    /// The tokens that it reads.
    pub tokens: Vec<u32>,
    /// The token drawn after it, if it is known.
    pub sampled: Option<u32>,
}

/// An open trace.
#[derive(Debug)]
pub struct Trace {
    bytes: Bytes,
    place: String,
    /// The offset of the tensors.
    start: usize,
    about: About,
    arithmetic: u32,
    plan: Plan,
    /// The passes of each course. Those of a branch include the shared passes.
    passes: Vec<Vec<Pass>>,
    stages: Vec<Stage>,
    /// A bit for each row of the digest table: whether the block was verified.
    checked: Vec<AtomicU64>,
}

impl Trace {
    /// The description of the recorded run.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// The path of the file.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Whether derived values have the bits of the run. Otherwise they are within the tolerance of its backend.
    pub fn is_exact(&self) -> bool {
        self.about.exact && self.arithmetic == ARITHMETIC
    }

    /// The version of the arithmetic that computed the values.
    pub fn arithmetic(&self) -> u32 {
        self.arithmetic
    }

    /// The number of sequences.
    pub fn sequences(&self) -> usize {
        self.about.sequences
    }

    /// The branches; the first is `r1`.
    pub fn branches(&self) -> &[Branch] {
        self.plan.layout.branches()
    }

    /// The passes of a sequence of a run; each sequence counts its own passes. The passes of a branch include the
    /// shared ones. Empty if there is no such sequence.
    pub fn passes(&self, run: Run, sequence: usize) -> &[Pass] {
        let course = self.course(run, sequence);
        course.and_then(|course| self.passes.get(course)).map_or(&[], |passes| passes)
    }

    /// The branch with the number `run`.
    fn branch(&self, run: Run) -> Option<Branch> {
        self.branches().get(usize::from(run.0).checked_sub(1)?).copied()
    }

    /// The course number of a sequence of a run.
    fn course(&self, run: Run, sequence: usize) -> Option<usize> {
        match usize::from(run.0).checked_sub(1) {
            None => (sequence < self.sequences()).then_some(sequence),
            Some(branch) => {
                let there = self.branches().get(branch).is_some_and(|branch| branch.sequence == sequence);
                there.then_some(self.sequences() + branch)
            }
        }
    }

    /// `site` with its course number as the sequence. A pass that a branch shares belongs to the run it branches from.
    fn own(&self, mut site: Site) -> Option<Site> {
        while let Some(branch) = self.branch(site.run).filter(|branch| site.pass <= branch.pass) {
            site.run = branch.of;
        }
        let sequence = self.course(site.run, site.sequence)?;
        Some(Site { run: Run::ITSELF, sequence, ..site })
    }

    /// The token chosen at the start of a branch, if `site` is the draw at that point.
    fn chosen(&self, mut site: Site) -> Option<u32> {
        while let Some(branch) = self.branch(site.run).filter(|_| site.stage == Stage::Sampled) {
            if site.pass == branch.pass {
                return Some(branch.token);
            }
            site.run = (site.pass < branch.pass).then_some(branch.of)?;
        }
        None
    }

    /// The prompt of a sequence, if it was a text.
    pub fn prompt(&self, sequence: usize) -> Option<String> {
        let [start, end] = *self.numbers(tables::PROMPT_ENDS, 2 * sequence, 2)? else { return None };
        self.text(tables::PROMPTS, start, end)
    }

    /// The label of a token of the vocabulary.
    pub fn label(&self, id: u32) -> Option<String> {
        let id = id as usize;
        let before = if id == 0 { 0 } else { self.numbers(tables::LABEL_ENDS, id - 1, 1)?[0] };
        self.text(tables::LABELS, before, self.numbers(tables::LABEL_ENDS, id, 1)?[0])
    }

    fn text(&self, table: &str, start: i64, end: i64) -> Option<String> {
        let range = usize::try_from(start).ok()?..usize::try_from(end).ok()?;
        Some(String::from_utf8_lossy(self.table(table).get(range)?).into_owned())
    }

    /// `count` numbers of an integer table.
    fn numbers(&self, table: &str, first: usize, count: usize) -> Option<Vec<i64>> {
        let bytes =
            self.table(table).get(first.checked_mul(8)?..first.checked_add(count)?.checked_mul(8)?)?;
        Some(bytes.as_chunks().0.iter().map(|number| i64::from_le_bytes(*number)).collect())
    }

    fn table(&self, name: &str) -> &[u8] {
        let table = self.plan.table(name);
        &self.bytes[self.start + table.start..][..table.bytes]
    }

    /// Whether the run has this site.
    pub fn has(&self, site: Site) -> bool {
        self.dims(site).is_some()
    }

    /// The sizes of the pass of `site`; `None` if the run has no such site.
    pub fn dims(&self, site: Site) -> Option<PassDims> {
        let sizes = self.plan.layout.sizes();
        let own = self.own(site)?;
        let dims = self.plan.layout.dims(own.sequence, own.pass)?;
        let there = site.present(sizes, dims)
            && site.stage.in_layer() == site.layer.is_some()
            && site.layer.is_none_or(|layer| layer < sizes.layers);
        there.then_some(dims)
    }

    /// Whether the values of `site` are kept.
    pub fn holds(&self, site: Site) -> bool {
        self.has(site) && self.own(site).is_some_and(|own| self.plan.place(own).is_some())
    }

    /// The reason why the values of `site` are neither kept nor derivable.
    pub fn why_not(&self, site: Site) -> String {
        match (self.about.keep, self.about.budget) {
            (Keep::Stats, _) => "the trace was recorded with --keep stats".into(),
            (_, Some(budget)) if self.stages.contains(&site.stage) => {
                format!("the values were left out to stay within a budget of {budget} bytes")
            }
            _ => "the values were not kept".into(),
        }
    }

    /// The bytes of the values of `site`, row-major and little-endian: float32, int64 or int8, depending on the stage.
    pub fn bytes(&self, site: Site) -> Option<&[u8]> {
        let dims = self.dims(site)?;
        let (tensor, first) = self.plan.place(self.own(site)?)?;
        let shape = self.plan.layout.sizes().shape(site.stage.axes(), dims);
        let bytes = shape.iter().product::<usize>() * site.stage.value_bytes();
        self.bytes.get(self.start + tensor + first..)?.get(..bytes)
    }

    /// Rows of the values of `site`, (rows, width); a row is everything along the last axis. `None` if they are not
    /// kept.
    ///
    /// # Errors
    /// [`Error::Model`] if the values do not match their SHA-256 in the file. Every block of the rows is verified
    /// before its first use.
    pub fn rows(&self, site: Site, rows: Range<usize>) -> Result<Option<FrameData>> {
        if let Some(token) = self.chosen(site) {
            let id = ArrayD::from_elem(IxDyn(&[1, 1]), i64::from(token));
            return Ok(Some(FrameData::I64(id)));
        }
        let Some((all, range)) = self.part(site, rows.clone()) else { return Ok(None) };
        let Some(bytes) = all.get(range.clone()) else { return Ok(None) };
        self.check(site, all, range.clone())?;
        let shape = IxDyn(&[rows.len(), range.len() / site.stage.value_bytes() / rows.len().max(1)]);
        let read = match site.stage {
            stage if stage.is_ids() => array::<i64>(bytes, shape).map(FrameData::I64),
            stage if stage.is_int8() => array::<i8>(bytes, shape).map(FrameData::I8),
            _ => array::<f32>(bytes, shape).map(FrameData::F32),
        };
        // The values are copied now. The pages of the file would only take additional memory.
        if range.len() >= BLOCK {
            self.give_back(site, rows);
        }
        Ok(read)
    }

    /// [`Trace::rows`] without a copy. Also `None` if the bytes are not aligned for their type.
    ///
    /// # Errors
    /// Those of [`Trace::rows`].
    pub fn values(&self, site: Site, rows: Range<usize>) -> Result<Option<Values<'_>>> {
        // The token at the start of a branch is in a table, not in a tensor.
        let is_stored = self.chosen(site).is_none();
        let Some((all, range)) = self.part(site, rows).filter(|_| is_stored) else { return Ok(None) };
        let Some(bytes) = all.get(range.clone()) else { return Ok(None) };
        self.check(site, all, range)?;
        Ok(match site.stage {
            stage if stage.is_ids() => try_cast_slice(bytes).ok().map(Values::I64),
            stage if stage.is_int8() => try_cast_slice(bytes).ok().map(Values::I8),
            _ => try_cast_slice(bytes).ok().map(Values::F32),
        })
    }

    /// Releases the memory of the pages of these rows.
    pub fn give_back(&self, site: Site, rows: Range<usize>) {
        if let Some((all, range)) = self.part(site, rows) {
            let start = all.as_ptr().addr() - self.bytes.as_ptr().addr();
            self.bytes.give_back(&(start + range.start..start + range.end.min(all.len())));
        }
    }

    /// The values of `site`, and the byte range of these rows in them.
    fn part(&self, site: Site, rows: Range<usize>) -> Option<(&[u8], Range<usize>)> {
        let width = self.plan.layout.sizes().axis(*site.stage.axes().last()?, self.dims(site)?);
        let row = width * site.stage.value_bytes();
        Some((self.bytes(site)?, rows.start * row..rows.end * row))
    }

    /// Verifies the blocks of `site` that overlap `range` and were not verified yet. `all` are the values of `site`.
    fn check(&self, site: Site, all: &[u8], range: Range<usize>) -> Result<()> {
        let digests = self.own(site).and_then(|own| self.plan.digests(own));
        let Some((first, own)) = digests else { return Ok(()) };
        let table = self.table(DIGESTS.name).as_chunks::<{ DIGESTS.bytes }>().0;
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK).min(own.len());
        let is_right = |block: usize| {
            let row = first + own.start + block;
            let (word, bit) = (&self.checked[row / 64], 1 << (row % 64));
            let values = &all[block * BLOCK..all.len().min((block + 1) * BLOCK)];
            let right = word.load(Ordering::Relaxed) & bit != 0
                || table.get(row).is_some_and(|said| Sha256::of(values) == *said);
            if right {
                word.fetch_or(bit, Ordering::Relaxed);
            }
            right
        };
        if blocks.into_par_iter().all(is_right) {
            return Ok(());
        }
        Err(Error::model(format!("the values of {site} are not those that were recorded"))
            .at(&self.place)
            .expected("values that match the digests in the trace")
            .found("other values: the file was changed or is damaged")
            .next("record it again"))
    }

    /// The statistics of `site`, if there are any.
    pub fn stats(&self, site: Site) -> Option<Stats> {
        let row = self.row(site)?;
        let of =
            |table: &tables::Table| self.table(table.name).get(row * table.bytes..(row + 1) * table.bytes);
        tables::stats(of(&STATS)?, of(&COUNTS)?)
    }

    /// The SHA-256 of each block of 256 KiB of the values of `site`, if they are kept.
    pub fn digests(&self, site: Site) -> Option<&[[u8; 32]]> {
        let (first, own) = self.plan.digests(self.own(site)?).filter(|_| self.holds(site))?;
        self.table(DIGESTS.name).as_chunks().0.get(first + own.start..first + own.end)
    }

    fn row(&self, site: Site) -> Option<usize> {
        let own = self.dims(site).and_then(|_| self.own(site)).filter(|_| self.chosen(site).is_none())?;
        let row = self.plan.row(own)?;
        let said = self.numbers(tables::INDEX, 4 * row, 4)?;
        (said == tables::index_row(own, &self.stages)).then_some(row)
    }
}

/// Copies the values from `bytes`, which may be unaligned.
fn array<T: AnyBitPattern + NoUninit>(bytes: &[u8], shape: IxDyn) -> Option<ArrayD<T>> {
    let mut values = vec![T::zeroed(); bytes.len() / size_of::<T>()];
    cast_slice_mut::<T, u8>(&mut values).copy_from_slice(bytes);
    ArrayD::from_shape_vec(shape, values).ok()
}
