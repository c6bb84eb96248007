//! A recorded run that is compared: a trace, or a folder of `export` or of a capture script.

mod trace;

use std::ops::Range;
use std::path::Path;

use self::trace::TraceRun;
use crate::capture::Folder;
use crate::diff::{About, Found, Traced};
use llama_trace_core::error::Result;
use llama_trace_core::trace::{Run, Site, Sizes, Values};

/// A recorded run, one of its sequences at a time.
pub struct RecordedRun(Kind);

enum Kind {
    Folder(Box<Folder>),
    Trace(Box<TraceRun>),
}

impl RecordedRun {
    /// Opens the trace or the folder at `path`. Stages that follow from the recorded stages of a trace are derived.
    ///
    /// # Errors
    /// [`Error::Model`](llama_trace_core::error::Error::Model) if the trace or the folder cannot be read.
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Self(if path.is_file() {
            Kind::Trace(Box::new(TraceRun::open(path)?))
        } else {
            Kind::Folder(Box::new(Folder::open(path)?))
        }))
    }

    /// The sequences of the original run, and then the branches, each with its sequence.
    pub fn all(&self) -> Vec<(Run, usize)> {
        match &self.0 {
            Kind::Folder(folder) => (0..folder.sequences()).map(|sequence| (Run::ITSELF, sequence)).collect(),
            Kind::Trace(trace) => trace.all(),
        }
    }

    /// Selects the sequence that [`Traced`] answers for.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn go_to(&mut self, run: Run, sequence: usize) -> Result<()> {
        match &mut self.0 {
            Kind::Folder(folder) => {
                folder.go_to(sequence);
                Ok(())
            }
            Kind::Trace(trace) => trace.go_to(run, sequence),
        }
    }

    fn run(&self) -> &dyn Traced {
        match &self.0 {
            Kind::Folder(folder) => &**folder,
            Kind::Trace(trace) => &**trace,
        }
    }

    /// Returns whether it is a trace of statistics without any values.
    pub fn has_statistics_alone(&self) -> bool {
        matches!(&self.0, Kind::Trace(trace) if trace.has_statistics_alone())
    }

    /// If both runs are traces that keep the same stages, only the recorded stages are compared, because the derived
    /// stages follow from them.
    pub fn derive_only_if_different(a: &mut Self, b: &mut Self) {
        if let (Kind::Trace(a), Kind::Trace(b)) = (&mut a.0, &mut b.0)
            && a.keeps_as(b)
        {
            a.without_derived();
            b.without_derived();
        }
    }

    /// The names of a folder's `.npy` files that belong to no stage of a model of these sizes.
    pub fn unknown_files(&self, sizes: &Sizes) -> Vec<String> {
        match &self.0 {
            Kind::Folder(folder) => folder.unknown_files(sizes),
            Kind::Trace(_) => Vec::new(),
        }
    }
}

impl Traced for RecordedRun {
    fn about(&self) -> &About {
        self.run().about()
    }

    fn stage(&mut self, site: Site) -> Result<Found> {
        match &mut self.0 {
            Kind::Folder(folder) => folder.stage(site),
            Kind::Trace(trace) => trace.stage(site),
        }
    }

    fn rows(&self, site: Site, rows: Range<usize>) -> std::result::Result<Option<Values<'_>>, String> {
        self.run().rows(site, rows)
    }

    fn unwritten(&self, site: Site) -> Option<String> {
        self.run().unwritten(site)
    }

    fn has_beyond(&self, site: Site) -> bool {
        self.run().has_beyond(site)
    }

    fn done(&self, site: Site, rows: Range<usize>) {
        self.run().done(site, rows);
    }

    fn print(&self, site: Site) -> Option<u64> {
        self.run().print(site)
    }
}
