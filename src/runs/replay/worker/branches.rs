//! Branches: runs that share the beginning of another run and continue with another token. They share the KV cache,
//! which holds the rows of the active run. Rows of other runs are stored outside it, each once. Shared rows are never
//! copied.

use std::collections::HashMap;

use super::{Ran, Worker, missing};
use crate::replay::serve::lock;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::{Fork, Run, Site, Stage};
use llama_trace_engine::generate::Text;
use llama_trace_engine::model::kv_cache::{self, CacheRow};

/// An inactive run.
struct Course {
    text: Text,
    passes: Vec<Ran>,
}

/// The runs of a worker.
pub(super) struct Branches {
    /// The active run: its text is the session's, its passes are the worker's.
    pub(super) here: Run,
    others: HashMap<Run, Course>,
    /// For each branch, the run it branches from and the number of cache rows they share.
    parted: HashMap<Run, (Run, usize)>,
    /// Rows outside the cache, by the run that wrote them and their position.
    rows: HashMap<(Run, usize), CacheRow>,
}

impl Branches {
    /// The state of a run without branches.
    pub(super) fn new(run: Run) -> Self {
        Self { here: run, others: HashMap::new(), parted: HashMap::new(), rows: HashMap::new() }
    }

    /// The run that wrote the row of `run` at `position`.
    fn writer(&self, mut run: Run, position: usize) -> Run {
        while let Some((of, _)) = self.parted.get(&run).filter(|(_, shared)| position < *shared) {
            run = *of;
        }
        run
    }

    /// How many rows two runs share at their beginning, at most `most`.
    fn shared(&self, one: Run, other: Run, most: usize) -> usize {
        let differs = |&position: &usize| self.writer(one, position) != self.writer(other, position);
        (0..most).find(differs).unwrap_or(most)
    }
}

impl Worker<'_> {
    /// Starts a branch.
    pub(super) fn part(&mut self, run: Run, fork: Fork) -> Result<()> {
        let site = Site { run: fork.of, ..Site::once(fork.pass, Stage::Sampled) };
        let course = self.branches.others.get(&fork.of);
        let (text, passes) = match course {
            Some(course) => (&course.text, &course.passes),
            None if fork.of == self.branches.here => (self.session.sequence.text(), &self.passes),
            None => return Err(missing(site)),
        };
        let mut passes = passes.get(..=fork.pass).ok_or_else(|| missing(site))?.to_vec();
        let Some(last) = passes.last_mut() else { return Err(missing(site)) };
        last.sampled = fork.token;
        let shared = last.dims.keys();
        let text = text.parted(shared, fork.token, fork.pass as u64 + 1, fork.setting)?;
        last.dims.filters = text.sampling().filters();
        self.branches.others.insert(run, Course { text, passes });
        self.branches.parted.insert(run, (fork.of, shared));
        Ok(())
    }

    /// Makes `run` active: exchanges the cache rows, the text and the passes.
    ///
    /// # Errors
    /// [`Error::Prompt`] if the rows of the other branches exceed their memory limit.
    pub(super) fn turn_to(&mut self, run: Run) -> Result<()> {
        let here = self.branches.here;
        if run == here {
            return Ok(());
        }
        let model = &self.session.model;
        let (config, backend) = (&model.config, &*model.backend);
        let there = self.branches.others.get(&run).map(|course| course.text.len());
        let there = there.ok_or_else(|| missing(Site { run, ..Site::once(0, Stage::Sampled) }))?;
        let now = self.session.sequence.text().len();
        let shared = self.branches.shared(here, run, now.min(there));
        let (out, back) = (shared..now, shared..there);
        let bytes = kv_cache::bytes(config, backend.cache_dtype(), 1);
        let beside = (self.branches.rows.len() + out.len()) * bytes;
        let most = lock(&self.store).branches();
        if beside > most {
            return Err(Error::prompt("there is no memory for more branches")
                .expected(format!("at most {most} bytes for the KV cache rows of other branches"))
                .found(format!("{beside} bytes: {} rows", beside / bytes.max(1)))
                .next("start again with a larger --memory, or stay in this run"));
        }
        let rows = self.session.sequence.cache.rows(config, backend, out.clone())?;
        lock(&self.store).reserve(rows.len() * bytes);
        for (position, row) in out.zip(rows) {
            let writer = self.branches.writer(here, position);
            self.branches.rows.insert((writer, position), row);
        }
        let keys: Vec<_> = back.map(|position| (self.branches.writer(run, position), position)).collect();
        let rows: Vec<_> = keys.iter().filter_map(|key| self.branches.rows.remove(key)).collect();
        debug_assert_eq!(rows.len(), keys.len(), "a row is in the cache or beside it");
        self.session.sequence.cache.put(config, backend, shared, &rows)?;
        lock(&self.store).release(rows.len() * bytes);
        if let Some(Course { text, passes }) = self.branches.others.remove(&run) {
            let text = self.session.exchange(text, passes.len());
            let passes = std::mem::replace(&mut self.passes, passes);
            self.branches.others.insert(here, Course { text, passes });
        }
        self.branches.here = run;
        self.at = None;
        self.answers.clear();
        Ok(())
    }
}
