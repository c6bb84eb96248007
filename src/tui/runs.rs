//! The runs that a program has open, and the sequences of the first. The viewer looks at one of them at a time, and asks
//! for another by its address.

use super::app::App;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::{Fork, Outline, Run, Source, Status};

/// What begins a sequence of the run itself, by its number.
pub type Opener = Box<dyn FnMut(usize) -> Result<Box<dyn Source>>>;

/// Another run beside those that there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Other {
    /// Of another prompt.
    Prompt(String),
    /// Of the tokens `ids`, with these parts of the model switched off: `L0/h2,L1/ffn`.
    Without {
        /// The parts.
        parts: String,
        /// The tokens of its prompt.
        ids: Vec<u32>,
    },
}

/// What begins another run, of this number.
pub type Beginner = Box<dyn FnMut(Run, Other) -> Result<Box<dyn Source>>>;

/// The runs and the sequences that are open, each with its own source.
pub struct Runs {
    sources: Vec<Box<dyn Source>>,
    shown: usize,
    /// What was shown before.
    before: Option<usize>,
    opener: Option<Opener>,
    beginner: Option<Beginner>,
}

impl Runs {
    /// One run, which is shown.
    pub fn new(source: Box<dyn Source>) -> Self {
        Self { sources: vec![source], shown: 0, before: None, opener: None, beginner: None }
    }

    /// One sequence of a run, which is shown; `opener` begins the others when somebody asks for them.
    pub fn of_sequences(source: Box<dyn Source>, opener: Opener) -> Self {
        Self { sources: vec![source], shown: 0, before: None, opener: Some(opener), beginner: None }
    }

    /// The same with what begins another run.
    #[must_use]
    pub fn with_others(mut self, beginner: Beginner) -> Self {
        self.beginner = Some(beginner);
        self
    }

    /// Two runs, the first of which is shown, and the other one as if it had been shown before.
    pub fn side_by_side(a: Box<dyn Source>, b: Box<dyn Source>) -> Self {
        Self { sources: vec![a, b], shown: 0, before: Some(1), opener: None, beginner: None }
    }

    /// Opens one more run beside the others; its outline says which number it has.
    pub fn add(&mut self, source: Box<dyn Source>) {
        self.sources.push(source);
    }

    /// Begins a branch of what is shown; answers its number.
    ///
    /// # Errors
    /// Why it cannot be begun.
    pub(super) fn branch(&mut self, fork: Fork) -> Result<Run> {
        let run = self.next()?;
        let branch = self.source().branch(run, fork)?;
        self.add(branch);
        Ok(run)
    }

    /// Begins another run; answers its number.
    ///
    /// # Errors
    /// Why it cannot be begun.
    pub(super) fn other(&mut self, other: Other) -> Result<Run> {
        let run = self.next()?;
        let Some(beginner) = &mut self.beginner else {
            return Err(Error::usage(match other {
                Other::Prompt(_) => {
                    "no other prompt can be run here: beside a recorded run or a chat there is none"
                }
                Other::Without { .. } => {
                    "nothing can be switched off here: beside a recorded run or a chat no other is run"
                }
            })
            .next("start the tracer with --prompt and the model"));
        };
        let source = beginner(run, other)?;
        self.add(source);
        Ok(run)
    }

    /// A number that no run has.
    fn next(&self) -> Result<Run> {
        let last = self.all().map(|run| run.0).max().unwrap_or(0);
        last.checked_add(1).map(Run).ok_or_else(|| Error::usage("there are too many runs"))
    }

    /// The outlines of all runs and sequences that were looked at.
    pub(super) fn outlines(&self) -> Vec<Outline> {
        self.sources.iter().map(|source| source.outline().clone()).collect()
    }

    /// The sequence of `run`, where that is a branch: it has one alone.
    pub(super) fn only_sequence(&self, run: Run) -> Option<usize> {
        let mut outlines = self.sources.iter().map(|source| source.outline());
        let outline = outlines.find(|outline| outline.run == run)?;
        outline.fork.map(|_| outline.sequence)
    }

    /// The source of the run and the sequence that are shown.
    pub fn source(&mut self) -> &mut dyn Source {
        &mut *self.sources[self.shown]
    }

    /// The source of this sequence of this run; the one that is shown where there is none.
    pub(super) fn of(&mut self, run: Run, sequence: usize) -> &mut dyn Source {
        let at = self.position(run, sequence).unwrap_or(self.shown);
        &mut *self.sources[at]
    }

    /// The source of the sequence that was shown before.
    pub fn before(&mut self) -> Option<&mut dyn Source> {
        let source = self.sources.get_mut(self.before?)?;
        Some(&mut **source)
    }

    /// The source of what `app` shows beside the run and the sequence that are shown.
    pub fn beside(&mut self, app: &App) -> Option<&mut dyn Source> {
        if app.compares_itself() { Some(self.source()) } else { self.before() }
    }

    /// The numbers of all runs.
    pub fn all(&self) -> impl Iterator<Item = Run> {
        let runs = || self.sources.iter().map(|source| source.outline().run);
        runs()
            .enumerate()
            .filter(move |(at, run)| !runs().take(*at).any(|other| other == *run))
            .map(|(_, run)| run)
    }

    /// How many sequences `run` has; none where there is no such run.
    pub fn sequences(&self, run: Run) -> Option<usize> {
        let outlines = self.sources.iter().map(|source| source.outline());
        outlines.filter(|outline| outline.run == run).map(|outline| outline.sequences).next()
    }

    /// Shows this sequence of `run`, and begins it where nobody has looked at it yet; false where there is none.
    ///
    /// # Errors
    /// Why it cannot be begun.
    pub fn show(&mut self, run: Run, sequence: usize) -> Result<bool> {
        let at = match self.position(run, sequence) {
            Some(at) => at,
            None => {
                let there = self.sequences(run).is_some_and(|count| sequence < count);
                let Some(opener) = self.opener.as_mut().filter(|_| there && run == Run::ITSELF) else {
                    return Ok(false);
                };
                self.sources.push(opener(sequence)?);
                self.sources.len() - 1
            }
        };
        if at != self.shown {
            self.before = Some(self.shown);
            self.shown = at;
        }
        Ok(true)
    }

    /// Shows again what was shown before; false where there is nothing.
    pub(super) fn back(&mut self) -> bool {
        let before = self.before.take();
        self.shown = before.unwrap_or(self.shown);
        before.is_some()
    }

    /// Takes in what all of them have computed; true where that is news of the one that is shown, or was before.
    ///
    /// # Errors
    /// Where there is nothing to look at in that one and never will be. Of another it is told when that is shown.
    pub fn poll(&mut self) -> Result<bool> {
        let (mut news, mut beside) = (Ok(false), false);
        for (at, source) in self.sources.iter_mut().enumerate() {
            let polled = source.poll();
            if at == self.shown {
                news = polled;
            } else if self.before == Some(at) {
                beside = matches!(polled, Ok(true));
            }
        }
        let (news, source) = (news? || beside, self.source());
        // A first pass that was stopped is run after all for who comes back.
        if source.outline().is_opening() && source.status() == Status::Idle {
            source.advance()?;
        }
        Ok(news)
    }

    fn position(&self, run: Run, sequence: usize) -> Option<usize> {
        self.sources.iter().position(|source| {
            let outline = source.outline();
            (outline.run, outline.sequence) == (run, sequence)
        })
    }
}

impl Drop for Runs {
    /// None waits for what another computes.
    fn drop(&mut self) {
        for source in &mut self.sources {
            source.stop();
        }
    }
}
