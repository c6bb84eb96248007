//! The files of an export: a probe that writes each row to its place in the file as soon as the row comes. No stage is
//! held in memory, however large it is.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::Path;

use super::heatmap::Heatmap;
use crate::cli::progress::Progress;
use llama_trace_core::error::{Error, Result, printable};
use llama_trace_core::stop;
use llama_trace_core::trace::manifest::ManifestFile;
use llama_trace_core::trace::npy::Npy;
use llama_trace_core::trace::{Axis, Manifest, PassDims, Probe, Select, Site, Sizes, Stats, Values};
use llama_trace_ending::replace::{MANIFEST, Target};
use llama_trace_ending::scratch::Scratch;
use llama_trace_picture as picture;
use llama_trace_picture::Format;

/// The marks in a manifest for values that were derived from recorded ones, and for values that a model computed.
pub(super) const DERIVED: &str = "derived";
pub(super) const COMPUTED: &str = "computed again";

/// The files that are being written, and those already written.
pub(super) struct Files<'a> {
    target: Target,
    folder: Scratch,
    pub(super) manifest: Manifest,
    sizes: Sizes,
    select: &'a Select,
    bar: Progress,
    /// The current pass of each sequence.
    dims: HashMap<usize, PassDims>,
    /// The tokens of each sequence so far.
    tokens: HashMap<usize, Vec<String>>,
    /// The picture's format; none for values.
    picture: Option<Format>,
    /// How the next values were made; none if the run itself computed them.
    pub(super) made: Option<&'static str>,
    open: HashMap<Site, Open>,
    failed: Option<Error>,
}

/// A file that does not have all rows yet.
struct Open {
    npy: Npy,
    shape: Vec<usize>,
    missing_rows: usize,
}

impl<'a> Files<'a> {
    /// The files for `target`, before the first one is written: the stages that `select` chooses in a model with
    /// `sizes`. With `picture`, every stage is drawn instead of written as values.
    ///
    /// # Errors
    /// As for [`Target::begin`].
    pub(super) fn new(
        target: Target,
        manifest: Manifest,
        sizes: Sizes,
        select: &'a Select,
        bar: Progress,
        picture: Option<Format>,
    ) -> Result<Self> {
        Ok(Self {
            folder: target.begin()?,
            target,
            manifest,
            sizes,
            select,
            bar,
            dims: HashMap::new(),
            tokens: HashMap::new(),
            picture,
            made: None,
            open: HashMap::new(),
            failed: None,
        })
    }

    /// Begins the next pass. `reads` has its sequences, each with its dims and its tokens.
    pub(super) fn begin(&mut self, reads: impl Iterator<Item = (usize, PassDims, Vec<String>)>) {
        self.dims.clear();
        for (sequence, dims, tokens) in reads {
            self.dims.insert(sequence, dims);
            self.tokens.entry(sequence).or_default().extend(tokens);
        }
    }

    /// Checks that all recorded rows are written.
    ///
    /// # Errors
    /// [`Error::Output`] if they are not.
    pub(super) fn check(&mut self) -> Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }

    fn write(&mut self, site: Site, rows: Range<usize>, values: Values<'_>) -> io::Result<()> {
        stop::check().map_err(io::Error::other)?;
        let mut open = match self.open.remove(&site) {
            Some(open) => open,
            None => self.open(site)?,
        };
        open.npy.write(rows.start * (values.len() / rows.len().max(1)), values)?;
        open.missing_rows -= rows.len();
        match open.missing_rows {
            0 => self.complete(site, open),
            _ => {
                self.open.insert(site, open);
                Ok(())
            }
        }
    }

    fn open(&self, site: Site) -> io::Result<Open> {
        let path = self.folder.path().join(self.manifest.file_name(site));
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let axes = site.stage.axes();
        let dims = self.dims.get(&site.sequence).copied();
        let dims = dims.unwrap_or_else(|| unreachable!("a pass records only stages of its own sequences"));
        let shape = self.sizes.shape(axes, dims);
        let file = match self.picture {
            // The values go to a temporary file until they are drawn.
            Some(_) => tempfile::tempfile_in(self.folder.path())?,
            None => File::options().read(true).write(true).create_new(true).open(path)?,
        };
        let npy = Npy::begin(site.stage, &shape, file)?;
        Ok(Open { npy, shape, missing_rows: self.sizes.rows(axes, dims) })
    }

    /// Adds a complete file to the manifest. The statistics are computed from the file in order, so they do not depend
    /// on the order in which the rows came.
    fn complete(&mut self, site: Site, mut open: Open) -> io::Result<()> {
        let stats = Stats::of_parts(|see| {
            open.npy.read(|values| {
                stop::check().map_err(io::Error::other)?;
                see(values);
                Ok(())
            })
        })?;
        if let Some(format) = self.picture {
            let mut heatmap = Heatmap::new(site, &open.shape);
            open.npy.read(|values| {
                stop::check().map_err(io::Error::other)?;
                values.numbers().for_each(|value| heatmap.add(value));
                Ok(())
            })?;
            let label = |axis, index| self.token(site, axis, index);
            let drawing = heatmap.draw(stats, format == Format::Png, label);
            let bytes = picture::written(drawing).map_err(io::Error::other)?;
            fs::write(self.folder.path().join(self.manifest.file_name(site)), bytes)?;
        }
        self.manifest.file(site, &open.shape, stats, self.made);
        self.bar.add(1);
        Ok(())
    }

    /// The token that an index stands for, on an axis of tokens or keys.
    fn token(&self, site: Site, axis: Axis, index: usize) -> Option<String> {
        let start = self.dims.get(&site.sequence).map_or(0, |dims| dims.start);
        let position = match axis {
            Axis::Token => start + index,
            Axis::Key => index,
            _ => return None,
        };
        self.tokens.get(&site.sequence)?.get(position).cloned()
    }

    /// Writes the manifest, and moves all files to their places.
    pub(super) fn finish(self) -> Result<()> {
        self.bar.finish();
        write_manifest(&self.folder.path().join(MANIFEST), &self.manifest)
            .map_err(|error| Error::output("the manifest cannot be written").found(error))?;
        let count = self.manifest.files.len();
        let made = |how: &str| {
            let so =
                |file: &&ManifestFile| file.holds.as_ref().is_some_and(|it| it.made.as_deref() == Some(how));
            self.manifest.files.iter().filter(so).count()
        };
        let made = match (made(DERIVED), made(COMPUTED)) {
            (0, 0) => String::new(),
            (derived, 0) => format!(" ({derived} {DERIVED})"),
            (0, computed) => format!(" ({computed} {COMPUTED})"),
            (derived, computed) => format!(" ({derived} {DERIVED}, {computed} {COMPUTED})"),
        };
        let out = self.target.commit(self.folder)?;
        crate::cli::tell(format_args!(
            "wrote {count} stage{}{made} and manifest.json to {}",
            if count == 1 { "" } else { "s" },
            printable(&out.display().to_string())
        ));
        Ok(())
    }
}

impl Probe for Files<'_> {
    fn enabled(&self) -> bool {
        true
    }

    fn wants(&self, site: Site) -> bool {
        // A heatmap of ids would have no meaning.
        let is_drawn = self.picture.is_none() || !site.stage.is_ids();
        self.failed.is_none() && is_drawn && self.select.contains(site)
    }

    fn record(&mut self, site: Site, rows: Range<usize>, values: Values<'_>) {
        if self.failed.is_some() {
            return;
        }
        if let Err(error) = self.write(site, rows, values) {
            let error = Error::output("the file of a stage cannot be written")
                .at(self.manifest.file_name(site))
                .found(error);
            self.failed = Some(error.next("make room, or choose fewer stages, layers or passes"));
        }
    }
}

fn write_manifest(path: &Path, manifest: &Manifest) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    serde_json::to_writer_pretty(&mut file, manifest)?;
    writeln!(file)?;
    file.flush()
}
