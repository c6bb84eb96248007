//! The open runs of the program, and the sequences of the first one. The viewer shows one of them at a time.

use super::app::App;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::lesson::RunSetting;
pub use llama_trace_core::trace::Edited;
use llama_trace_core::trace::{Fork, Outline, Run, Source, Status};

/// Function that begins a sequence of the first run, given its number.
pub type Opener = Box<dyn FnMut(usize) -> Result<Box<dyn Source>>>;

/// A new run beside the open ones.
#[derive(Clone, Debug, PartialEq)]
pub enum NewRun {
    /// A run of another prompt.
    Prompt(String),
    /// The run of a scene.
    Scene(Box<RunSetting>),
    /// A run with other edits or other tokens than an open run.
    Edited(Edited),
}

/// Function that begins another run, given its number. It returns all sequences of the run.
pub type RunStarter = Box<dyn FnMut(Run, NewRun) -> Result<Vec<Box<dyn Source>>>>;

/// Maximum number of open runs that scenes began. A further one closes the one that was shown least recently.
const SCENES: usize = 8;

/// An open run with the setting of a scene.
#[derive(Debug)]
struct Known {
    run: Run,
    setting: RunSetting,
    /// Whether a scene began it. Such a run may be closed.
    of_scene: bool,
}

/// The beginning of a run beside the first one.
#[derive(Debug)]
struct Begun {
    run: Run,
    /// The text of its prompt, if a text was given.
    text: Option<String>,
    /// Its random numbers are those of the sequence of the first run with this number.
    stream: u64,
}

/// The open runs and sequences. Each has its own source.
pub struct Runs {
    sources: Vec<Box<dyn Source>>,
    shown: usize,
    /// Index of the source that was shown before.
    before: Option<usize>,
    opener: Option<Opener>,
    starter: Option<RunStarter>,
    /// Whether `starter` begins only runs with edits of recorded values.
    only_edits: bool,
    /// The runs whose setting is known, the one that was shown least recently first.
    known: Vec<Known>,
    /// The runs that were begun beside the first one, except those of scenes.
    begun: Vec<Begun>,
    /// The largest number of a closed run.
    last: u16,
}

impl Runs {
    /// A single run, which is shown.
    pub fn new(source: Box<dyn Source>) -> Self {
        Self {
            sources: vec![source],
            shown: 0,
            before: None,
            opener: None,
            starter: None,
            only_edits: false,
            known: Vec::new(),
            begun: Vec::new(),
            last: 0,
        }
    }

    /// A run of several sequences; `source` is the shown one. `opener` begins the others when they are needed.
    pub fn of_sequences(source: Box<dyn Source>, opener: Opener) -> Self {
        Self {
            sources: vec![source],
            shown: 0,
            before: None,
            opener: Some(opener),
            starter: None,
            only_edits: false,
            known: Vec::new(),
            begun: Vec::new(),
            last: 0,
        }
    }

    /// Adds a function that begins other runs.
    #[must_use]
    pub fn with_starter(mut self, starter: RunStarter) -> Self {
        self.starter = Some(starter);
        self
    }

    /// Adds a function that begins runs with edits of the recorded values of the first run. It begins no other runs.
    #[must_use]
    pub fn with_editor(mut self, starter: RunStarter) -> Self {
        (self.starter, self.only_edits) = (Some(starter), true);
        self
    }

    /// Adds the setting of the first run, so that a scene with this setting shows it.
    #[must_use]
    pub fn with_setting(mut self, setting: RunSetting) -> Self {
        self.known.push(Known { run: Run::ITSELF, setting, of_scene: false });
        self
    }

    /// Two runs. The first is shown. The second counts as shown before, so that the two can be compared.
    pub fn side_by_side(a: Box<dyn Source>, b: Box<dyn Source>) -> Self {
        Self {
            sources: vec![a, b],
            shown: 0,
            before: Some(1),
            opener: None,
            starter: None,
            only_edits: false,
            known: Vec::new(),
            begun: Vec::new(),
            last: 0,
        }
    }

    /// Adds a run under the number in its outline.
    pub fn add(&mut self, source: Box<dyn Source>) {
        self.sources.push(source);
    }

    /// Returns whether another run can be begun beside the open ones.
    pub fn can_begin(&self) -> bool {
        self.starter.is_some() && !self.only_edits
    }

    /// Returns whether a run with edits can be begun beside the open ones.
    pub fn can_edit(&self) -> bool {
        self.starter.is_some()
    }

    /// Begins a branch of the shown run and returns its number.
    ///
    /// # Errors
    /// The source's error.
    pub(super) fn branch(&mut self, fork: Fork) -> Result<Run> {
        let run = self.next()?;
        let branch = self.source().branch(run, fork)?;
        self.add(branch);
        Ok(run)
    }

    /// Begins another run and returns its number.
    ///
    /// # Errors
    /// [`Error::Usage`] if no other run can be begun here, or the error of the function that begins it.
    pub(super) fn begin(&mut self, new: NewRun) -> Result<Run> {
        let run = self.next()?;
        let Some(starter) = &mut self.starter else {
            return Err(Error::usage(match new {
                NewRun::Prompt(_) => "no other prompt can be run next to a chat or a trace without its model",
                NewRun::Edited(_) => "no edit can be run next to a chat or a trace without its model",
                NewRun::Scene(_) => "no lesson can be run next to a chat or a trace without its model",
            })
            .next("start the tracer with --prompt, or open the trace with --model"));
        };
        let known = match &new {
            NewRun::Scene(setting) => Some(Known { run, setting: (**setting).clone(), of_scene: true }),
            NewRun::Prompt(_) | NewRun::Edited(_) => None,
        };
        let begun = match &new {
            NewRun::Prompt(text) => Some(Begun { run, text: Some(text.clone()), stream: 0 }),
            NewRun::Edited(edited) => Some(Begun { run, text: None, stream: edited.sequence as u64 }),
            NewRun::Scene(_) => None,
        };
        let sources = starter(run, new)?;
        self.sources.extend(sources);
        self.known.extend(known);
        self.begun.extend(begun);
        self.close_scenes();
        Ok(run)
    }

    /// The setting of a run, if it is known.
    pub fn setting_of(&self, run: Run) -> Option<&RunSetting> {
        self.known.iter().find(|known| known.run == run).map(|known| &known.setting)
    }

    /// The text with which a run was begun beside the first one.
    pub fn text_of(&self, run: Run) -> Option<&str> {
        self.begun.iter().find(|begun| begun.run == run)?.text.as_deref()
    }

    /// The distance of the random numbers of a sequence from those of sequence 0 of the first run; none for a run of a
    /// scene, which has the first random numbers.
    pub fn stream_of(&self, outline: &Outline) -> Option<u64> {
        let own = match self.begun.iter().find(|begun| begun.run == outline.run) {
            Some(begun) => begun.stream,
            None if self.known.iter().any(|known| known.of_scene && known.run == outline.run) => return None,
            None => 0,
        };
        Some(own + outline.sequence as u64)
    }

    /// The open run with this setting. It may have more passes.
    pub(super) fn with(&mut self, wanted: &RunSetting) -> Option<Run> {
        let first = self.sources.first().map(|source| source.outline().card.precision.name());
        let precision = |setting: &RunSetting| setting.precision.as_deref().or(first).map(str::to_owned);
        let fits = |known: &Known| {
            let RunSetting { passes, .. } = known.setting;
            let setting = RunSetting { passes, precision: precision(wanted), ..wanted.clone() };
            let known = RunSetting { precision: precision(&known.setting), ..known.setting.clone() };
            passes >= wanted.passes && setting == known
        };
        let known = self.known.remove(self.known.iter().position(fits)?);
        let run = known.run;
        self.known.push(known);
        Some(run)
    }

    /// Closes runs of scenes if there are too many. The shown run and the one that was shown before stay open.
    fn close_scenes(&mut self) {
        while self.known.iter().filter(|known| known.of_scene).count() > SCENES {
            let in_use =
                [Some(self.shown), self.before].map(|at| at.map(|at| self.sources[at].outline().run));
            let newest = self.known.last().map(|known| known.run);
            let closes = |known: &Known| {
                known.of_scene && Some(known.run) != newest && !in_use.contains(&Some(known.run))
            };
            let Some(at) = self.known.iter().position(closes) else { return };
            self.close(self.known[at].run);
            self.known.remove(at);
        }
    }

    /// Removes the sources of `run`, which is not shown.
    pub(super) fn close(&mut self, run: Run) {
        let keys = |at: usize| {
            let outline = self.sources[at].outline();
            (outline.run, outline.sequence)
        };
        let (shown, before) = (keys(self.shown), self.before.map(keys));
        for source in self.sources.iter_mut().filter(|source| source.outline().run == run) {
            source.stop();
        }
        self.sources.retain(|source| source.outline().run != run);
        self.last = self.last.max(run.0);
        self.shown = self.position(shown.0, shown.1).unwrap_or(0);
        self.before = before.and_then(|(run, sequence)| self.position(run, sequence));
    }

    /// The next free run number.
    fn next(&self) -> Result<Run> {
        // The number of a closed run is not used again, because addresses in the history name it.
        let last = self.all().map(|run| run.0).max().unwrap_or(0).max(self.last);
        last.checked_add(1).map(Run).ok_or_else(|| Error::usage("there are too many runs"))
    }

    /// The outlines of all runs and sequences that were opened.
    pub(super) fn outlines(&self) -> Vec<Outline> {
        self.sources.iter().map(|source| source.outline().clone()).collect()
    }

    /// The only sequence of `run`, if the run is a branch.
    pub(super) fn only_sequence(&self, run: Run) -> Option<usize> {
        let mut outlines = self.sources.iter().map(|source| source.outline());
        let outline = outlines.find(|outline| outline.run == run)?;
        outline.fork.map(|_| outline.sequence)
    }

    /// The source that is shown.
    pub fn source(&mut self) -> &mut dyn Source {
        &mut *self.sources[self.shown]
    }

    /// The source of a sequence of a run; the shown source if there is no such sequence.
    pub fn of(&mut self, run: Run, sequence: usize) -> &mut dyn Source {
        let at = self.position(run, sequence).unwrap_or(self.shown);
        &mut *self.sources[at]
    }

    /// The source that was shown before.
    pub fn before(&mut self) -> Option<&mut dyn Source> {
        let source = self.sources.get_mut(self.before?)?;
        Some(&mut **source)
    }

    /// The source of the second tensor in the comparison of `app`.
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

    /// Number of sequences of `run`; none if there is no such run.
    pub fn sequences(&self, run: Run) -> Option<usize> {
        let outlines = self.sources.iter().map(|source| source.outline());
        outlines.filter(|outline| outline.run == run).map(|outline| outline.sequences).next()
    }

    /// Shows a sequence of `run`. Begins the sequence first if it is not open; false if there is no such sequence.
    ///
    /// # Errors
    /// The error of the function that begins the sequence.
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

    /// Shows the previous run or sequence again; false if there is none.
    pub(super) fn back(&mut self) -> bool {
        let before = self.before.take();
        self.shown = before.unwrap_or(self.shown);
        before.is_some()
    }

    /// Polls all sources. True if the shown source, or the one shown before it, has news.
    ///
    /// # Errors
    /// The shown source's error, if it has no pass to show and never will. Errors of other sources are
    /// returned once those sources are shown.
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
        // A first pass that was stopped is requested again when its run is shown again.
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
    /// Stops all sources before any of them is dropped, so that none waits for another.
    fn drop(&mut self) {
        for source in &mut self.sources {
            source.stop();
        }
    }
}
