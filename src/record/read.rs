//! Reading a trace. The file is mapped: opening it reads the header, the passes and their tokens; values are read when
//! somebody looks at them. Everything that the file says about itself is checked before it is believed.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::{AnyBitPattern, NoUninit, cast_slice_mut, try_cast_slice};
use ndarray::{ArrayD, IxDyn};
use rayon::prelude::*;
use ring::digest::{SHA256, digest};
use safetensors::tensor::{Dtype, Metadata};

use super::about::{About, FORMAT, Keep, VERSION};
use super::layout::Key;
use super::plan::{Plan, Texts, always, stages};
use super::tables::{self, BLOCK, COUNTS, DIGESTS, STATS};
use crate::config::ARITHMETIC;
use crate::error::{Error, Result};
use crate::files::{Bytes, magic, printable};
use crate::trace::{FrameData, PassDims, Site, Stage, Stats, Values};

/// The largest header that is read. A parsed one takes up to 20 times its size in memory.
const MAX_HEADER: u64 = 4 << 20;

/// The most tokens that a sequence has: so many that no shape overflows, and more than any model reads.
const MAX_KEYS: usize = 1 << 20;

/// A pass of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Its number, how much was cached before, how many tokens it reads.
    pub dims: PassDims,
    /// The tokens that it reads.
    pub tokens: Vec<u32>,
    /// The token that was drawn after it, where that is known.
    pub sampled: Option<u32>,
}

/// A trace that is open.
#[derive(Debug)]
pub struct Trace {
    bytes: Bytes,
    place: String,
    /// Where the tensors begin.
    start: usize,
    about: About,
    arithmetic: u32,
    plan: Plan,
    passes: Vec<Vec<Pass>>,
    stages: Vec<Stage>,
    /// Blocks whose digests are those of the file: a bit for each row of their table.
    checked: Vec<AtomicU64>,
}

impl Trace {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// [`Error::Model`] where it cannot be read, is of another format or version, or cannot be right.
    pub fn open(path: &Path) -> Result<Self> {
        let place = path.display().to_string();
        Self::read(Bytes::map(path)?, &place)
    }

    /// Whether the file at `path` begins as a trace does; a model's safetensors file is told from one.
    pub fn is_one(path: &Path) -> bool {
        let open = || Bytes::map(path).ok();
        let header = open().and_then(|bytes| header(&bytes).ok().map(|(_, header)| header));
        header.is_some_and(|header| word(&header, "format") == Some(FORMAT))
    }

    fn read(bytes: Bytes, place: &str) -> Result<Self> {
        let wrong = |found: String| {
            Error::model("the trace cannot be read")
                .at(place)
                .expected("a file that `llama-trace record` wrote, whole and unchanged")
                .found(found)
                .next("record it again")
        };
        let (start, header) = header(&bytes).map_err(wrong)?;
        if word(&header, "format") != Some(FORMAT) {
            return Err(wrong("a safetensors file that is no trace".into()));
        }
        let number = |key: &str| word(&header, key).and_then(|word| word.parse::<u32>().ok());
        match number("format_version") {
            Some(VERSION) => {}
            Some(version) => {
                let age = if version > VERSION { "newer" } else { "older" };
                return Err(Error::model(format!("the trace is of {age} form than this program reads"))
                    .at(place)
                    .expected(format!("format version {VERSION}"))
                    .found(format!("format version {version}"))
                    .next(if version > VERSION { "use a newer llama-trace" } else { "record it again" }));
            }
            None => return Err(wrong("no format version".into())),
        }
        let arithmetic = number("arithmetic").ok_or_else(|| wrong("no version of the arithmetic".into()))?;
        let about: About = word(&header, "run")
            .and_then(|run| serde_json::from_str(run).ok())
            .ok_or_else(|| wrong("a description of the run that cannot be read".into()))?;
        let stages = checked(&about).map_err(wrong)?;
        let data = bytes.slice(start..bytes.len()).unwrap_or_else(|| unreachable!("the header is inside"));
        let passes = passes(&about, &header, &data).map_err(wrong)?;
        let sizes = about.card.sizes();
        let shape = |name: &str| header.info(name).map(|info| &*info.shape).unwrap_or_default();
        let (Some(&rows), Some(&labels), Some(&label_bytes), Some(&prompt_bytes)) = (
            shape(tables::INDEX).first(),
            shape(tables::LABEL_ENDS).first(),
            shape(tables::LABELS).first(),
            shape(tables::PROMPTS).first(),
        ) else {
            return Err(wrong("no tables".into()));
        };
        let inside = stages.iter().filter(|stage| stage.in_layer()).count();
        if sizes.layers.saturating_mul(inside) > rows.saturating_mul(2) {
            return Err(wrong(format!("{} layers, and {rows} rows in the index", sizes.layers)));
        }
        if labels != 0 && labels != sizes.vocab {
            return Err(wrong(format!("{labels} labels for {} tokens", sizes.vocab)));
        }
        let texts = Texts { labels, label_bytes, prompt_bytes };
        let plan = Plan::new(sizes, &passes, stages.clone(), texts, |key: Key| {
            always(key.stage) || header.info(&key.to_string()).is_some()
        });
        let plan = plan.placed(&header).map_err(|found| wrong(printable(&found)))?;
        let digests = plan.table(DIGESTS.name).bytes / DIGESTS.bytes;
        let checked = (0..digests.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let mut trace = Self {
            bytes,
            place: place.to_owned(),
            start,
            about,
            arithmetic,
            plan,
            passes: Vec::new(),
            stages,
            checked,
        };
        trace.passes = trace.tokens(&passes).map_err(wrong)?;
        Ok(trace)
    }

    /// The tokens of each pass.
    fn tokens(&self, passes: &[Vec<PassDims>]) -> std::result::Result<Vec<Vec<Pass>>, String> {
        let vocab = self.about.card.config.vocab;
        let ids = |sequence: usize, dims: PassDims, stage: Stage| {
            let site = Site { sequence, ..Site::once(dims.pass, stage) };
            let read =
                self.rows(site, 0..1).map_err(|_| format!("{site} with other values than recorded"))?;
            let Some(FrameData::I64(ids)) = read else { return Err(format!("no {site}")) };
            let id = |&id: &i64| u32::try_from(id).ok().filter(|&id| (id as usize) < vocab);
            let ids: Option<Vec<u32>> = ids.iter().map(id).collect();
            ids.ok_or_else(|| format!("an id outside the vocabulary in {site}"))
        };
        let pass = |(sequence, &dims): (usize, &PassDims)| {
            let tokens = ids(sequence, dims, Stage::Tokens)?;
            let sampled = ids(sequence, dims, Stage::Sampled)?;
            Ok(Pass { dims, tokens, sampled: sampled.first().copied() })
        };
        let of = |(sequence, passes): (usize, &Vec<PassDims>)| {
            passes.iter().map(|dims| pass((sequence, dims))).collect::<std::result::Result<_, String>>()
        };
        let all: Vec<Vec<Pass>> = passes.iter().enumerate().map(of).collect::<std::result::Result<_, _>>()?;
        for passes in &all {
            if passes.windows(2).any(|two| two[0].sampled.is_none_or(|sampled| two[1].tokens != [sampled])) {
                return Err("a pass that does not read the token drawn before it".into());
            }
        }
        Ok(all)
    }

    /// What the trace says about itself.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// The path of the file.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Whether what is derived has the bits that the run had; otherwise it is within the bound of what computed it.
    pub fn is_exact(&self) -> bool {
        self.about.exact && self.arithmetic == ARITHMETIC
    }

    /// The version of the arithmetic that computed it.
    pub fn arithmetic(&self) -> u32 {
        self.arithmetic
    }

    /// How many sequences there are.
    pub fn sequences(&self) -> usize {
        self.passes.len()
    }

    /// The passes of a sequence, which counts its own; none where there is no such sequence.
    pub fn passes(&self, sequence: usize) -> &[Pass] {
        self.passes.get(sequence).map_or(&[], |passes| passes)
    }

    /// The prompt of a sequence, where it was a text.
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

    /// `count` numbers of a table of whole ones.
    fn numbers(&self, table: &str, first: usize, count: usize) -> Option<Vec<i64>> {
        let bytes =
            self.table(table).get(first.checked_mul(8)?..first.checked_add(count)?.checked_mul(8)?)?;
        Some(bytes.as_chunks().0.iter().map(|number| i64::from_le_bytes(*number)).collect())
    }

    fn table(&self, name: &str) -> &[u8] {
        let table = self.plan.table(name);
        &self.bytes[self.start + table.start..][..table.bytes]
    }

    /// Whether there is such a site in the run.
    pub fn has(&self, site: Site) -> bool {
        self.dims(site).is_some()
    }

    /// The sizes of the pass of `site`; none where there is no such site in the run.
    pub fn dims(&self, site: Site) -> Option<PassDims> {
        let sizes = self.plan.layout.sizes();
        let dims = self.plan.layout.dims(site.sequence, site.pass)?;
        let there = site.stage.present(sizes, dims)
            && site.stage.in_layer() == site.layer.is_some()
            && site.layer.is_none_or(|layer| layer < sizes.layers);
        there.then_some(dims)
    }

    /// Whether the values of `site` are kept.
    pub fn holds(&self, site: Site) -> bool {
        self.has(site) && self.plan.place(site).is_some()
    }

    /// Why the values of `site` are not kept, and do not follow from what is.
    pub fn why_not(&self, site: Site) -> String {
        match (self.about.keep, self.about.budget) {
            (Keep::Stats, _) => "it was recorded with --keep stats".into(),
            (_, Some(budget)) if self.stages.contains(&site.stage) => {
                format!("it was left out to stay within a budget of {budget} bytes")
            }
            _ => "it was not kept".into(),
        }
    }

    /// The bytes of the values of `site`, row-major and little-endian: float32, int64 or int8, as its stage has them.
    pub fn bytes(&self, site: Site) -> Option<&[u8]> {
        let dims = self.dims(site)?;
        let (tensor, first) = self.plan.place(site)?;
        let shape = self.plan.layout.sizes().shape(site.stage.axes(), dims);
        let bytes = shape.iter().product::<usize>() * site.stage.value_bytes();
        self.bytes.get(self.start + tensor + first..)?.get(..bytes)
    }

    /// Rows of the values of `site`, (rows, width); everything along the last axis is one. None where they are not kept.
    ///
    /// # Errors
    /// [`Error::Model`] where they are not those that were recorded: every block that the rows are in is checked before
    /// its values are handed out for the first time.
    pub fn rows(&self, site: Site, rows: Range<usize>) -> Result<Option<FrameData>> {
        let Some((all, range)) = self.part(site, rows.clone()) else { return Ok(None) };
        let Some(bytes) = all.get(range.clone()) else { return Ok(None) };
        self.check(site, all, range.clone())?;
        let shape = IxDyn(&[rows.len(), range.len() / site.stage.value_bytes() / rows.len().max(1)]);
        let read = match site.stage {
            stage if stage.is_ids() => array::<i64>(bytes, shape).map(FrameData::I64),
            stage if stage.is_int8() => array::<i8>(bytes, shape).map(FrameData::I8),
            _ => array::<f32>(bytes, shape).map(FrameData::F32),
        };
        // They are in memory of their own now; those of the file would stay beside them.
        if range.len() >= BLOCK {
            self.give_back(site, rows);
        }
        Ok(read)
    }

    /// The same as they lie in the file. None also where they do not lie as numbers do in memory.
    ///
    /// # Errors
    /// As [`Trace::rows`].
    pub fn values(&self, site: Site, rows: Range<usize>) -> Result<Option<Values<'_>>> {
        let Some((all, range)) = self.part(site, rows) else { return Ok(None) };
        let Some(bytes) = all.get(range.clone()) else { return Ok(None) };
        self.check(site, all, range)?;
        Ok(match site.stage {
            stage if stage.is_ids() => try_cast_slice(bytes).ok().map(Values::I64),
            stage if stage.is_int8() => try_cast_slice(bytes).ok().map(Values::I8),
            _ => try_cast_slice(bytes).ok().map(Values::F32),
        })
    }

    /// Gives back the memory that these rows take since they were read.
    pub fn give_back(&self, site: Site, rows: Range<usize>) {
        if let Some((all, range)) = self.part(site, rows) {
            let start = all.as_ptr().addr() - self.bytes.as_ptr().addr();
            self.bytes.give_back(&(start + range.start..start + range.end.min(all.len())));
        }
    }

    /// The values of `site`, and where these rows are in them.
    fn part(&self, site: Site, rows: Range<usize>) -> Option<(&[u8], Range<usize>)> {
        let width = self.plan.layout.sizes().axis(*site.stage.axes().last()?, self.dims(site)?);
        let row = width * site.stage.value_bytes();
        Some((self.bytes(site)?, rows.start * row..rows.end * row))
    }

    /// Checks the blocks of `site`, whose values are `all`, that `range` is in and that were not checked yet.
    fn check(&self, site: Site, all: &[u8], range: Range<usize>) -> Result<()> {
        let Some((first, own)) = self.plan.digests(site) else { return Ok(()) };
        let table = self.table(DIGESTS.name).as_chunks::<{ DIGESTS.bytes }>().0;
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK).min(own.len());
        let is_right = |block: usize| {
            let row = first + own.start + block;
            let (word, bit) = (&self.checked[row / 64], 1 << (row % 64));
            let values = &all[block * BLOCK..all.len().min((block + 1) * BLOCK)];
            let right = word.load(Ordering::Relaxed) & bit != 0
                || table.get(row).is_some_and(|said| digest(&SHA256, values).as_ref() == said);
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
            .expected("values with the digests that the trace has of them")
            .found("others: the file was changed or is damaged")
            .next("record it again"))
    }

    /// The statistics of `site`, where there are some.
    pub fn stats(&self, site: Site) -> Option<Stats> {
        let row = self.row(site)?;
        let of =
            |table: &tables::Table| self.table(table.name).get(row * table.bytes..(row + 1) * table.bytes);
        tables::stats(of(&STATS)?, of(&COUNTS)?)
    }

    /// The SHA-256 of each 256 KiB of the values of `site`, where they are kept.
    pub fn digests(&self, site: Site) -> Option<&[[u8; 32]]> {
        let (first, own) = self.plan.digests(site).filter(|_| self.holds(site))?;
        self.table(DIGESTS.name).as_chunks().0.get(first + own.start..first + own.end)
    }

    fn row(&self, site: Site) -> Option<usize> {
        let row = self.dims(site).and_then(|_| self.plan.row(site))?;
        let said = self.numbers(tables::INDEX, 4 * row, 4)?;
        (said == tables::index_row(site, &self.stages)).then_some(row)
    }
}

/// The values in `bytes`, which may lie anywhere.
fn array<T: AnyBitPattern + NoUninit>(bytes: &[u8], shape: IxDyn) -> Option<ArrayD<T>> {
    let mut values = vec![T::zeroed(); bytes.len() / size_of::<T>()];
    cast_slice_mut::<T, u8>(&mut values).copy_from_slice(bytes);
    ArrayD::from_shape_vec(shape, values).ok()
}

/// The header of a safetensors file, and where its tensors begin; what there is instead, where it is not one.
fn header(bytes: &[u8]) -> std::result::Result<(usize, Metadata), String> {
    let size = bytes.len() as u64;
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(format!("a file of {size} bytes"));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER || length > rest.len() as u64 {
        return Err(match magic::recognise(bytes) {
            Some(kind) if kind != "a safetensors file" => kind.to_string(),
            _ => format!("a header of {length} bytes by its first 8 bytes, in a file of {size} bytes"),
        });
    }
    let (header, values) = rest.split_at(length as usize);
    let header: Metadata = serde_json::from_slice(header)
        .map_err(|error| format!("a header that cannot be right: {}", printable(&error.to_string())))?;
    if header.data_len() != values.len() {
        return Err(format!("{} bytes of values, where the header has {}", values.len(), header.data_len()));
    }
    Ok((8 + length as usize, header))
}

fn word<'a>(header: &'a Metadata, key: &str) -> Option<&'a str> {
    header.metadata().as_ref()?.get(key).map(String::as_str)
}

/// The stages of which there are statistics, where all that the description says can be.
fn checked(about: &About) -> std::result::Result<Vec<Stage>, String> {
    about.card.check().map_err(|_| "a model that cannot be".to_owned())?;
    about.cache().ok_or("an unknown number type of the cache")?;
    let named = about.stages().ok_or("the name of a stage that there is not")?;
    let possible = stages(&about.card.sizes(), Keep::All, |_| false);
    // In the order of the pass, and each once.
    let mut rest = possible.into_iter();
    let in_order = named.iter().all(|stage| rest.any(|other| other == *stage));
    let whole = [Stage::Tokens, Stage::Sampled].iter().all(|stage| named.contains(stage));
    if !in_order || !whole {
        return Err("a list of stages that cannot be right".into());
    }
    Ok(named)
}

/// The passes, by sequence.
fn passes(about: &About, header: &Metadata, data: &Bytes) -> std::result::Result<Vec<Vec<PassDims>>, String> {
    let wrong = || "a table of passes that cannot be right".to_owned();
    let info = header.info(tables::PASSES).filter(|info| info.dtype == Dtype::I64).ok_or_else(wrong)?;
    let [count, 4] = *info.shape else { return Err(wrong()) };
    if about.sequences == 0 || about.sequences > count {
        return Err(wrong());
    }
    let bytes = data.get(info.data_offsets.0..info.data_offsets.1).ok_or_else(wrong)?;
    let mut passes: Vec<Vec<PassDims>> = Vec::new();
    for row in bytes.as_chunks::<32>().0 {
        let mut numbers = [0; 4];
        for (number, bytes) in numbers.iter_mut().zip(row.as_chunks().0) {
            *number = usize::try_from(i64::from_le_bytes(*bytes)).map_err(|_| wrong())?;
        }
        let [sequence, pass, start, tokens] = numbers;
        if sequence == passes.len() {
            passes.push(Vec::new());
        }
        let last = passes.len().checked_sub(1).ok_or_else(wrong)?;
        let own = &mut passes[last];
        let expected = own.last().map_or(0, |dims: &PassDims| dims.keys());
        let right = sequence == last
            && pass == own.len()
            && start == expected
            && (if pass == 0 { tokens > 0 } else { tokens == 1 })
            && start.checked_add(tokens).is_some_and(|keys| keys <= about.card.config.context.min(MAX_KEYS));
        if !right {
            return Err(wrong());
        }
        own.push(PassDims { pass, start, tokens });
    }
    if passes.len() == about.sequences { Ok(passes) } else { Err(wrong()) }
}
