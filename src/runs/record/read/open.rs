//! Opening a trace. Everything in the file is validated before it is used.

use std::path::Path;
use std::sync::atomic::AtomicU64;

use safetensors::tensor::{Dtype, Metadata};

use super::{Pass, Trace};
use crate::record::about::{About, FORMAT, Keep, VERSION};
use crate::record::branch::{self, Branch};
use crate::record::layout::Key;
use crate::record::plan::{Plan, Texts, always, stages};
use crate::record::tables::{self, DIGESTS};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::tensor::Bytes;
use llama_trace_core::trace::{FrameData, PassDims, Run, Site, Stage};
use llama_trace_formats::files::{magic, printable};

/// The largest header that is read. A parsed header takes up to 20 times its size in memory.
const MAX_HEADER: u64 = 4 << 20;

/// The largest number of tokens of a sequence: more than any model reads, and small enough that no shape overflows. It
/// also limits the passes of all branches together.
const MAX_KEYS: usize = 1 << 20;

impl Trace {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// [`Error::Model`] if it cannot be read, has another format or version, or is invalid.
    pub fn open(path: &Path) -> Result<Self> {
        let place = path.display().to_string();
        Self::read(llama_trace_formats::files::map(path)?, &place).map_err(|error| {
            // The user may have named one file of an export or capture. These are opened as a folder.
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let of_folder = ["manifest.json", "capture.toml"].contains(&name) || name.ends_with(".npy");
            if of_folder { error.next("give the folder that contains it") } else { error }
        })
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
            return Err(wrong("a safetensors file that is not a trace".into()));
        }
        let number = |key: &str| word(&header, key).and_then(|word| word.parse::<u32>().ok());
        match number("format_version") {
            Some(VERSION) => {}
            Some(version) => {
                let age = if version > VERSION { "a newer" } else { "an older" };
                return Err(Error::model(format!(
                    "the trace has {age} format than the one that this program reads"
                ))
                .at(place)
                .expected(format!("format version {VERSION}"))
                .found(format!("format version {version}"))
                .next(if version > VERSION {
                    "use a newer llama-trace"
                } else {
                    "record it again"
                }));
            }
            None => return Err(wrong("no format version".into())),
        }
        let arithmetic = number("arithmetic").ok_or_else(|| wrong("no version of the arithmetic".into()))?;
        let about: About = word(&header, "run")
            .and_then(|run| serde_json::from_str(run).ok())
            .ok_or_else(|| wrong("a description of the run that cannot be read".into()))?;
        let stages = checked(&about).map_err(wrong)?;
        let data = bytes.slice(start..bytes.len()).unwrap_or_else(|| unreachable!("the header is inside"));
        let branches = branches(&about, &header, &data).map_err(wrong)?;
        let passes = passes(&about, &branches, &header, &data).map_err(wrong)?;
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
            return Err(wrong(format!("{} layers, but only {rows} rows in the index", sizes.layers)));
        }
        if labels != 0 && labels != sizes.vocab {
            return Err(wrong(format!("{labels} labels for {} tokens", sizes.vocab)));
        }
        let texts = Texts { labels, label_bytes, prompt_bytes };
        let plan = Plan::new(sizes, (&passes, &branches), stages.clone(), texts, |key: Key| {
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

    /// The tokens of each pass, by course; those of a branch include the shared passes.
    fn tokens(&self, passes: &[Vec<PassDims>]) -> std::result::Result<Vec<Vec<Pass>>, String> {
        let vocab = self.about.card.config.vocab;
        let ids = |site: Site| {
            let read =
                self.rows(site, 0..1).map_err(|_| format!("{site} with other values than recorded"))?;
            let Some(FrameData::I64(ids)) = read else { return Err(format!("no {site}")) };
            let id = |&id: &i64| u32::try_from(id).ok().filter(|&id| (id as usize) < vocab);
            let ids: Option<Vec<u32>> = ids.iter().map(id).collect();
            ids.ok_or_else(|| format!("an id outside the vocabulary in {site}"))
        };
        let mut all: Vec<Vec<Pass>> = Vec::new();
        for (course, own) in self.plan.layout.courses().iter().zip(passes) {
            let mut passes = match self.branch(course.run) {
                None => Vec::new(),
                Some(branch) => {
                    let of = all.get(self.course(branch.of, branch.sequence).unwrap_or(usize::MAX));
                    let mut shared = of.and_then(|of| of.get(..=branch.pass)).unwrap_or_default().to_vec();
                    shared.iter_mut().last().into_iter().for_each(|last| last.sampled = Some(branch.token));
                    shared
                }
            };
            for &dims in own {
                let at = |stage| {
                    let (run, sequence) = (course.run, course.sequence);
                    Site { run, sequence, ..Site::once(dims.pass, stage) }
                };
                let tokens = ids(at(Stage::Tokens))?;
                let sampled = ids(at(Stage::Sampled))?;
                passes.push(Pass { dims, tokens, sampled: sampled.first().copied() });
            }
            let follows = |two: &[Pass]| two[0].sampled.is_some_and(|sampled| two[1].tokens == [sampled]);
            if !passes.windows(2).all(follows) {
                return Err("a pass that does not read the token sampled before it".into());
            }
            all.push(passes);
        }
        Ok(all)
    }
}

/// The header of a safetensors file and the offset of its tensors. The error describes a file of another kind.
fn header(bytes: &[u8]) -> std::result::Result<(usize, Metadata), String> {
    let size = bytes.len() as u64;
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(format!("a file of {size} bytes"));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER || length > rest.len() as u64 {
        return Err(match magic::recognise(bytes) {
            Some(kind) if kind != "a safetensors file" => kind.to_string(),
            _ => format!("a header of {length} bytes, as the first 8 bytes say, in a file of {size} bytes"),
        });
    }
    let (header, values) = rest.split_at(length as usize);
    let header: Metadata = serde_json::from_slice(header)
        .map_err(|error| format!("an invalid header: {}", printable(&error.to_string())))?;
    if header.data_len() != values.len() {
        return Err(format!("{} bytes of values, but the header says {}", values.len(), header.data_len()));
    }
    Ok((8 + length as usize, header))
}

fn word<'a>(header: &'a Metadata, key: &str) -> Option<&'a str> {
    header.metadata().as_ref()?.get(key).map(String::as_str)
}

/// The stages with statistics, after a check of the whole description.
fn checked(about: &About) -> std::result::Result<Vec<Stage>, String> {
    about.card.check().map_err(|_| "a model with invalid sizes".to_owned())?;
    about.cache().ok_or("an unknown number type of the cache")?;
    let named = about.stages().ok_or("an unknown name of a stage")?;
    let possible = stages(&about.card.sizes(), about.sampling.sampling.filters(), Keep::All, |_| false);
    // The stages must be in the order of the pass, each at most once.
    let mut rest = possible.into_iter();
    let in_order = named.iter().all(|stage| rest.any(|other| other == *stage));
    let whole = [Stage::Tokens, Stage::Sampled].iter().all(|stage| named.contains(stage));
    if !in_order || !whole {
        return Err("an invalid list of stages".into());
    }
    Ok(named)
}

/// The rows of a table of four non-negative integers.
fn fours(header: &Metadata, data: &Bytes, name: &str) -> std::result::Result<Vec<[usize; 4]>, String> {
    let wrong = || format!("an invalid table of {name}");
    let info = header.info(name).filter(|info| info.dtype == Dtype::I64).ok_or_else(wrong)?;
    let [_, 4] = *info.shape else { return Err(wrong()) };
    let bytes = data.get(info.data_offsets.0..info.data_offsets.1).ok_or_else(wrong)?;
    let mut rows = Vec::new();
    for row in bytes.as_chunks::<32>().0 {
        let mut numbers = [0; 4];
        for (number, bytes) in numbers.iter_mut().zip(row.as_chunks().0) {
            *number = usize::try_from(i64::from_le_bytes(*bytes)).map_err(|_| wrong())?;
        }
        rows.push(numbers);
    }
    Ok(rows)
}

/// The branches of the file.
fn branches(about: &About, header: &Metadata, data: &Bytes) -> std::result::Result<Vec<Branch>, String> {
    let wrong = || "an invalid table of branches".to_owned();
    if header.info(tables::BRANCHES).is_some_and(|info| info.shape.first() > Some(&branch::MOST)) {
        return Err(wrong());
    }
    let mut branches = Vec::new();
    for [sequence, of, pass, token] in fours(header, data, tables::BRANCHES)? {
        let of = u16::try_from(of).map(Run).map_err(|_| wrong())?;
        let token = u32::try_from(token).ok().filter(|&token| (token as usize) < about.card.config.vocab);
        branches.push(Branch { sequence, of, pass, token: token.ok_or_else(wrong)? });
    }
    Branch::check(&branches, about.sequences).map_err(|_| wrong())?;
    Ok(branches)
}

/// The passes of each sequence, then the unshared ones of each branch.
fn passes(
    about: &About,
    branches: &[Branch],
    header: &Metadata,
    data: &Bytes,
) -> std::result::Result<Vec<Vec<PassDims>>, String> {
    let wrong = || "an invalid table of passes".to_owned();
    let rows = fours(header, data, tables::PASSES)?;
    let courses = about.sequences.checked_add(branches.len()).ok_or_else(wrong)?;
    if about.sequences == 0 || courses > rows.len() {
        return Err(wrong());
    }
    let most = about.card.config.context.min(MAX_KEYS);
    let filters = about.sampling.sampling.filters();
    let mut passes: Vec<Vec<PassDims>> = Vec::new();
    let mut shared = 0_usize;
    for [course, pass, start, tokens] in rows {
        if course == passes.len() {
            passes.push(Vec::new());
        }
        let last = passes.len().checked_sub(1).filter(|last| *last == course).ok_or_else(wrong)?;
        let (number, expected) = match passes[last].last() {
            Some(before) => (before.pass + 1, before.keys()),
            None => match last.checked_sub(about.sequences).map(|number| branches.get(number)) {
                None => (0, 0),
                Some(branch) => {
                    let branch = branch.ok_or_else(wrong)?;
                    shared = shared.saturating_add(branch.pass);
                    let before = dims_of(&passes, branches, about.sequences, branch).ok_or_else(wrong)?;
                    (branch.pass + 1, before.keys())
                }
            },
        };
        let right = pass == number
            && start == expected
            && (if pass == 0 { tokens > 0 } else { tokens == 1 })
            && start.checked_add(tokens).is_some_and(|keys| keys <= most)
            && shared <= MAX_KEYS;
        if !right {
            return Err(wrong());
        }
        passes[last].push(PassDims { pass, start, tokens, filters });
    }
    if passes.len() == courses { Ok(passes) } else { Err(wrong()) }
}

/// The last pass that `branch` shares with another run.
fn dims_of(
    passes: &[Vec<PassDims>],
    branches: &[Branch],
    sequences: usize,
    branch: &Branch,
) -> Option<PassDims> {
    let own = match usize::from(branch.of.0).checked_sub(1) {
        None => passes.get(branch.sequence)?,
        Some(of) => passes.get(sequences + of)?,
    };
    let first = match usize::from(branch.of.0).checked_sub(1) {
        None => 0,
        Some(of) => branches.get(of)?.pass + 1,
    };
    own.get(branch.pass.checked_sub(first)?).copied()
}
