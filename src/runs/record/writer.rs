//! Writing a trace: a probe that writes each row to its place as it arrives. No stage is held in memory. The file gets
//! its name when it is complete.

mod out;

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::ops::Range;

use bytemuck::cast_slice;

use self::out::Out;
use super::about::About;
use super::plan::Plan;
use super::tables::{self, BLOCK, COUNTS, DIGESTS, STATS, Table};
use super::target::Target;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::stop;
use llama_trace_core::threads;
use llama_trace_core::threads::prelude::*;
use llama_trace_core::trace::frame::Summing;
use llama_trace_core::trace::{PassDims, Probe, Site, Stats, Values};
use llama_trace_ending::scratch::Scratch;
use llama_trace_formats::files::Sha256;

/// The texts of a trace.
pub struct TextsOf {
    /// The labels of the vocabulary.
    pub labels: Vec<String>,
    /// The prompts, if they were texts.
    pub prompts: Vec<Option<String>>,
}

/// A trace that is being written.
pub struct Writer {
    about: About,
    plan: Plan,
    texts: TextsOf,
    out: Out,
    folder: Scratch,
    /// The passes that have started, by course.
    passes: Vec<Vec<PassDims>>,
    open: HashMap<Site, Open>,
    failed: Option<Error>,
}

/// A stage of a pass, some rows of which have not arrived yet.
#[derive(Default)]
struct Open {
    sum: Summing,
    /// The unfinished digest of a block, and the position it has reached.
    running: Option<(usize, Sha256)>,
    /// Blocks whose values arrived out of order.
    again: BTreeSet<usize>,
    missing: usize,
}

/// A part of the arrived values, within one block.
struct Piece<'a> {
    values: Values<'a>,
    bytes: &'a [u8],
    /// Its offset in the values of its stage, in bytes.
    at: usize,
    /// The digest of the block up to this piece. `None` if the bytes before this piece did not arrive immediately
    /// before it.
    digest: Option<Sha256>,
    sum: Summing,
}

impl Writer {
    /// Starts the file.
    ///
    /// # Errors
    /// [`Error::Output`] if it cannot be written.
    pub fn begin(target: &Target, about: About, plan: Plan, texts: TextsOf) -> Result<Self> {
        let folder = target.begin()?;
        let failed = |error: io::Error| {
            Error::output("the trace cannot be written")
                .in_file(target.path())
                .found(error)
                .next("free some disk space")
        };
        let path = folder.path().join("trace");
        let file = File::options().read(true).write(true).create_new(true).open(path).map_err(failed)?;
        let start = plan.header_bytes(&about);
        file.set_len((start + plan.data_bytes()) as u64).map_err(failed)?;
        let out = Out::new(file, start);
        let passes = vec![Vec::new(); plan.layout.courses().len()];
        Ok(Self { about, plan, texts, out, folder, passes, open: HashMap::new(), failed: None })
    }

    /// Announces the next passes: one for each course in `reads`. Their sites use the course number as the sequence.
    pub fn next(&mut self, reads: impl Iterator<Item = (usize, PassDims)>) {
        let layout = &self.plan.layout;
        let sequences = layout.courses().len() - layout.branches().len();
        for (course, dims) in reads {
            let branch = course.checked_sub(sequences).and_then(|number| layout.branches().get(number));
            let first = branch.map_or(0, |branch| branch.pass + 1);
            let pass = first + self.passes[course].len();
            self.passes[course].push(PassDims { pass, ..dims });
        }
    }

    /// Checks that everything recorded so far was written.
    ///
    /// # Errors
    /// [`Error::Output`] if it was not.
    pub fn check(&mut self) -> Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }

    /// `site` of the run, as the trace numbers it: each course counts its own passes.
    fn own(&self, site: Site) -> (Site, PassDims) {
        let dims = self.passes[site.sequence].last();
        let dims =
            dims.copied().unwrap_or_else(|| unreachable!("a pass offers only stages of its own sequences"));
        (Site { pass: dims.pass, ..site }, dims)
    }

    fn write(&mut self, site: Site, rows: Range<usize>, values: Values<'_>) -> io::Result<()> {
        stop::check().map_err(io::Error::other)?;
        let (site, dims) = self.own(site);
        let shape = self.plan.layout.sizes().shape(site.stage.axes(), dims);
        let count: usize = shape.iter().product();
        let missing = self.plan.layout.sizes().rows(site.stage.axes(), dims);
        let mut open = self.open.remove(&site).unwrap_or_else(|| Open { missing, ..Open::default() });
        let bytes: &[u8] = match values {
            Values::F32(values) => cast_slice(values),
            Values::I64(values) => cast_slice(values),
            Values::I8(values) => cast_slice(values),
        };
        let (place, end) = (self.plan.place(site), count * site.stage.value_bytes());
        let mut pieces = pieces(&mut open, values, bytes, rows.start * (bytes.len() / rows.len().max(1)));
        let is_kept = place.is_some();
        match (place, &mut pieces[..]) {
            // A single piece needs no parallel work.
            (place, [one]) => {
                one.take_in(is_kept);
                place.map_or(Ok(()), |(tensor, first)| self.out.put(tensor, first + one.at, bytes))?;
            }
            (place, pieces) => {
                let start = pieces.first().map_or(0, |piece| piece.at);
                let out = &mut self.out;
                let put = || place.map_or(Ok(()), |(tensor, first)| out.put(tensor, first + start, bytes));
                let take_in = || pieces.par_iter_mut().for_each(|piece| piece.take_in(is_kept));
                threads::join(put, take_in).0?;
            }
        }
        for piece in pieces {
            open.sum.merge(&piece.sum);
            let (block, to) = (piece.at / BLOCK, piece.at + piece.bytes.len());
            let Some(digest) = piece.digest.filter(|_| is_kept) else { continue };
            if to.is_multiple_of(BLOCK) || to == end {
                self.digest(site, block, &digest.finish())?;
            } else if let Some((other, _)) = open.running.replace((to, digest)) {
                open.again.insert(other / BLOCK);
            }
        }
        open.missing -= rows.len();
        if open.missing > 0 {
            self.open.insert(site, open);
            return Ok(());
        }
        if let Some((tensor, first)) = place {
            open.again.extend(open.running.map(|(to, _)| to / BLOCK));
            for block in open.again {
                let (from, to) = (block * BLOCK, end.min((block + 1) * BLOCK));
                let digest = self.digest_again(tensor + first + from, to - from)?;
                self.digest(site, block, &digest)?;
            }
        }
        let (figures, counts) = table_rows(&open.sum.stats());
        self.row(&STATS, site, &figures)?;
        self.row(&COUNTS, site, &counts)
    }

    fn row(&mut self, table: &Table, site: Site, bytes: &[u8]) -> io::Result<()> {
        let Some(row) = self.plan.row(site) else { return Ok(()) };
        let first = row - self.plan.layout.place(site).map_or(0, |(row, _)| row);
        let start = self.plan.table(table.name).start + first * table.bytes;
        self.out.put(start, (row - first) * table.bytes, bytes)
    }

    /// Writes the digest of a block of `site`.
    fn digest(&mut self, site: Site, block: usize, digest: &[u8]) -> io::Result<()> {
        let Some((tensor, own)) = self.plan.digests(site) else { return Ok(()) };
        let start = self.plan.table(DIGESTS.name).start + tensor * DIGESTS.bytes;
        self.out.put(start, (own.start + block) * DIGESTS.bytes, digest)
    }

    /// The digest of values that are already in the file.
    fn digest_again(&mut self, start: usize, bytes: usize) -> io::Result<Vec<u8>> {
        self.out.flush()?;
        let mut digest = Sha256::default();
        self.out.read(start, bytes, |part| digest.update(part))?;
        Ok(digest.finish().to_vec())
    }

    /// Writes the tables and moves the file to its place. If fewer passes ran than planned, the file has no gaps for
    /// them.
    ///
    /// # Errors
    /// [`Error::Output`] if that fails; there is then no file.
    pub fn finish(mut self, target: &Target) -> Result<u64> {
        let ended = self.plan.ended(&self.passes);
        let bytes = self.complete(&ended).map_err(|error| {
            Error::output("the trace cannot be written")
                .in_file(target.path())
                .found(error)
                .next("free some disk space, or give a --budget")
        })?;
        target.commit(&self.folder.path().join("trace"))?;
        Ok(bytes)
    }

    fn complete(&mut self, ended: &Plan) -> io::Result<u64> {
        self.out.flush()?;
        for (from, to, bytes) in self.plan.moves(ended) {
            stop::check().map_err(io::Error::other)?;
            self.out.slide(from, to, bytes)?;
        }
        let mut file = BufWriter::new(&self.out.file);
        let at = |name: &str| (self.out.start + ended.table(name).start) as u64;
        file.seek(SeekFrom::Start(at(tables::PASSES)))?;
        for (course, dims) in ended.layout.passes() {
            let numbers = [course, dims.pass, dims.start, dims.tokens];
            write(&mut file, &numbers.map(|number| number as i64))?;
        }
        file.seek(SeekFrom::Start(at(tables::BRANCHES)))?;
        for branch in ended.layout.branches() {
            let (of, token) = (i64::from(branch.of.0), i64::from(branch.token));
            write(&mut file, &[branch.sequence as i64, of, branch.pass as i64, token])?;
        }
        file.seek(SeekFrom::Start(at(tables::INDEX)))?;
        for site in ended.sites() {
            write(&mut file, &tables::index_row(site, &ended.stages))?;
        }
        file.seek(SeekFrom::Start(at(tables::LABEL_ENDS)))?;
        let mut end = 0;
        for label in &self.texts.labels {
            end += label.len() as i64;
            write(&mut file, &[end])?;
        }
        file.seek(SeekFrom::Start(at(tables::LABELS)))?;
        self.texts.labels.iter().try_for_each(|label| file.write_all(label.as_bytes()))?;
        file.seek(SeekFrom::Start(at(tables::PROMPT_ENDS)))?;
        let mut end = 0;
        for prompt in &self.texts.prompts {
            let start = end;
            end += prompt.as_ref().map_or(0, String::len) as i64;
            write(&mut file, &if prompt.is_some() { [start, end] } else { [-1, -1] })?;
        }
        file.seek(SeekFrom::Start(at(tables::PROMPTS)))?;
        let prompts = self.texts.prompts.iter().flatten();
        prompts.map(String::as_bytes).try_for_each(|prompt| file.write_all(prompt))?;
        // Spaces, which JSON ignores, fill the rest of the room that is reserved for the header.
        let mut header = ended.header(&self.about);
        header.resize(self.out.start - 8, b' ');
        file.rewind()?;
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        file.flush()?;
        drop(file);
        let bytes = (self.out.start + ended.data_bytes()) as u64;
        self.out.file.set_len(bytes)?;
        Ok(bytes)
    }
}

/// Splits values at the ends of blocks. The values begin at byte `at` of their stage.
fn pieces<'a>(open: &mut Open, values: Values<'a>, bytes: &'a [u8], at: usize) -> Vec<Piece<'a>> {
    let each = bytes.len() / values.len().max(1);
    let (mut pieces, mut from) = (Vec::new(), at);
    while from < at + bytes.len() {
        let to = (at + bytes.len()).min((from / BLOCK + 1) * BLOCK);
        let digest = if from.is_multiple_of(BLOCK) {
            Some(Sha256::default())
        } else {
            open.running.take_if(|(end, _)| *end == from).map(|(_, digest)| digest)
        };
        if digest.is_none() {
            open.again.insert(from / BLOCK);
        }
        let values = values.slice((from - at) / each..(to - at) / each);
        pieces.push(Piece {
            values,
            bytes: &bytes[from - at..to - at],
            at: from,
            digest,
            sum: Summing::default(),
        });
        from = to;
    }
    pieces
}

impl Piece<'_> {
    /// Sums the values, and updates the digest if they are kept.
    fn take_in(&mut self, is_kept: bool) {
        self.sum.add_values(self.values);
        if let Some(digest) = self.digest.as_mut().filter(|_| is_kept) {
            digest.update(self.bytes);
        }
    }
}

/// Writes integers.
fn write(out: &mut impl Write, numbers: &[i64]) -> io::Result<()> {
    numbers.iter().try_for_each(|number| out.write_all(&number.to_le_bytes()))
}

/// The rows of `stats` and of `counts`.
fn table_rows(stats: &Stats) -> ([u8; 16], [u8; 24]) {
    let (mut figures, mut counts) = ([0; 16], [0; 24]);
    let four = [stats.min, stats.max, stats.mean, stats.std];
    for (bytes, value) in figures.as_chunks_mut().0.iter_mut().zip(four) {
        *bytes = (value as f32).to_le_bytes();
    }
    let three = [stats.neg_inf, stats.pos_inf, stats.nan];
    for (bytes, count) in counts.as_chunks_mut().0.iter_mut().zip(three) {
        *bytes = (count as i64).to_le_bytes();
    }
    (figures, counts)
}

impl Probe for Writer {
    fn enabled(&self) -> bool {
        true
    }

    fn wants(&self, site: Site) -> bool {
        self.failed.is_none() && self.plan.stages.contains(&site.stage)
    }

    fn record(&mut self, site: Site, rows: Range<usize>, values: Values<'_>) {
        if self.failed.is_some() {
            return;
        }
        if let Err(error) = self.write(site, rows, values) {
            let error = Error::output("the trace cannot be written").at(site).found(error);
            self.failed = Some(error.next("free some disk space, or give a --budget"));
        }
    }
}
