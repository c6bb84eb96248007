//! A trace as a run that is compared. Recorded stages are read, and others derived from them.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::task::Poll;

use crate::diff::{About, Found, Pass, Traced};
use llama_trace_core::error::Result;
use llama_trace_core::stop;
use llama_trace_core::trace::{Frame, Region, Run, Site, Source, Stage, TokenLabel, Values, source};
use llama_trace_runs::record::{Keep, Trace};
use llama_trace_runs::replay::{DEFAULT_MEMORY, Recorded};

/// Opens a sequence of one of the runs, to derive stages.
type Open = Box<dyn Fn(Run, usize) -> Result<Box<dyn Source>>>;

/// A trace, one of its sequences at a time.
pub(super) struct TraceRun {
    trace: Arc<Trace>,
    about: About,
    run: Run,
    sequence: usize,
    open: Open,
    /// Derives stages; `None` if only recorded stages are compared.
    source: Option<Box<dyn Source>>,
}

/// The trace's description of a sequence of one of its runs.
fn about(trace: &Trace, run: Run, sequence: usize) -> About {
    let label = |id: u32| trace.label(id).unwrap_or_else(|| format!("#{id}"));
    let passes = trace.passes(run, sequence).iter().map(|pass| Pass {
        dims: pass.dims,
        tokens: pass.tokens.iter().map(|&id| TokenLabel { id, text: label(id) }).collect(),
    });
    let says = trace.about();
    About {
        name: trace.place().to_owned(),
        precision: Some(says.card.precision),
        cache: says.cache(),
        card: Some(says.card.clone()),
        fingerprint: Some(says.fingerprint.weights.clone()),
        sampling: Some(says.sampling.sampling),
        prompt: trace.prompt(sequence),
        passes: passes.collect(),
        ..About::default()
    }
}

impl TraceRun {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// As [`Trace::open`].
    pub(super) fn open(path: &Path) -> Result<Self> {
        let trace = Arc::new(Trace::open(path)?);
        let recorded = Recorded::new(Arc::<Trace>::clone(&trace), None, None, DEFAULT_MEMORY);
        let run = Run::ITSELF;
        let source = Some(recorded.open(run, 0)?);
        let open = Box::new(move |run, sequence| recorded.open(run, sequence));
        Ok(Self { about: about(&trace, run, 0), trace, run, sequence: 0, open, source })
    }

    /// The sequences of the original run, and then the branches, each with its sequence.
    pub(super) fn all(&self) -> Vec<(Run, usize)> {
        let itself = (0..self.trace.sequences()).map(|sequence| (Run::ITSELF, sequence));
        itself.chain((1..).map(Run).zip(self.trace.branches().iter().map(|branch| branch.sequence))).collect()
    }

    /// Selects a sequence.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(super) fn go_to(&mut self, run: Run, sequence: usize) -> Result<()> {
        if (run, sequence) != (self.run, self.sequence) {
            self.about = about(&self.trace, run, sequence);
            (self.run, self.sequence) = (run, sequence);
            if self.source.is_some() {
                self.source = Some((self.open)(run, sequence)?);
            }
        }
        Ok(())
    }

    /// The site with the selected run and sequence.
    fn own(&self, site: Site) -> Site {
        Site { run: self.run, sequence: self.sequence, ..site }
    }

    /// Returns whether both traces keep the same stages.
    pub(super) fn keeps_as(&self, other: &Self) -> bool {
        let kept = |of: &Self| of.trace.about().stages.clone();
        kept(self) == kept(other)
    }

    /// Returns whether the trace keeps only statistics, no values.
    pub(super) fn has_statistics_alone(&self) -> bool {
        self.trace.about().keep == Keep::Stats
    }

    /// From now on, reads only recorded stages and derives none.
    pub(super) fn without_derived(&mut self) {
        self.source = None;
    }

    /// The values of a stage that is derived from recorded ones.
    fn derived(&mut self, site: Site) -> Result<Found> {
        let (Some(source), Some(dims)) = (&mut self.source, self.trace.dims(site)) else {
            return Ok(Found::Missing);
        };
        let shape = source.outline().card.sizes().shape(site.stage.axes(), dims);
        loop {
            source.poll()?;
            match source::block(&mut **source, site, &Region::whole(&shape)) {
                Poll::Ready(Ok(block)) if block.is_whole() => return Ok(Found::Frame(block.frame)),
                Poll::Ready(Ok(_)) => {
                    return Ok(Found::TooLarge("it is too large to be derived whole".into()));
                }
                // The stage cannot be derived from the recorded stages.
                Poll::Ready(Err(_)) => return Ok(Found::Missing),
                Poll::Pending => {}
            }
            stop::check()?;
            source.wait(stop::LOOK);
        }
    }
}

impl Traced for TraceRun {
    fn about(&self) -> &About {
        &self.about
    }

    fn rows(&self, site: Site, rows: Range<usize>) -> std::result::Result<Option<Values<'_>>, String> {
        let values = self.trace.values(self.own(site), rows);
        values.map_err(|_| "its values are not those that were recorded".to_owned())
    }

    fn done(&self, site: Site, rows: Range<usize>) {
        self.trace.give_back(self.own(site), rows);
    }

    fn print(&self, site: Site) -> Option<u64> {
        let digests = self.trace.digests(self.own(site))?;
        let each = digests.iter().filter_map(|digest| digest.first_chunk().copied().map(u64::from_le_bytes));
        Some(each.fold(0, |print, next| print.rotate_left(1) ^ next))
    }

    fn stage(&mut self, site: Site) -> Result<Found> {
        Ok(self.read(self.own(site))?.of(site))
    }
}

impl TraceRun {
    fn read(&mut self, site: Site) -> Result<Found> {
        let Some(dims) = self.trace.dims(site) else { return Ok(Found::Missing) };
        if !self.trace.holds(site) {
            return match site.stage {
                // The tokens are in the description of the passes.
                Stage::Tokens | Stage::Sampled => Ok(Found::Missing),
                _ => self.derived(site),
            };
        }
        let rows = self.about.card.as_ref().map_or(0, |card| card.sizes().rows(site.stage.axes(), dims));
        Ok(match self.trace.rows(site, 0..rows) {
            Ok(Some(data)) => Found::Frame(Arc::new(Frame { site, axes: site.stage.axes(), data })),
            Ok(None) => Found::Damaged("the file does not have it".into()),
            Err(_) => Found::Damaged("its values are not those that were recorded".into()),
        })
    }
}
