//! The runs that a program has open. The viewer looks at one of them at a time, and asks for another by its address.

use crate::trace::{Run, Source};

/// The runs that are open, each with its own source.
pub struct Runs {
    sources: Vec<Box<dyn Source>>,
    shown: usize,
}

impl Runs {
    /// One run, which is shown.
    pub fn new(source: Box<dyn Source>) -> Self {
        Self { sources: vec![source], shown: 0 }
    }

    /// Opens one more run beside the others; its outline says which number it has.
    pub fn add(&mut self, source: Box<dyn Source>) {
        self.sources.push(source);
    }

    /// The source of the run that is shown.
    pub fn source(&mut self) -> &mut dyn Source {
        &mut *self.sources[self.shown]
    }

    /// The numbers of all runs.
    pub fn all(&self) -> impl Iterator<Item = Run> {
        self.sources.iter().map(|source| source.outline().run)
    }

    /// Shows `run`; false where there is none of this number.
    pub fn show(&mut self, run: Run) -> bool {
        let at = self.all().position(|other| other == run);
        self.shown = at.unwrap_or(self.shown);
        at.is_some()
    }
}
