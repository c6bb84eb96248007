//! A session of the viewer in a page: the app, its runs, and what the page is asked to do.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::widgets::Widget;

use crate::builtin;
use crate::cells;
use crate::chapters::{CHAPTERS, TOUR};
use crate::chosen::{Chosen, chosen};
use crate::export::Saving;
use crate::lessons;
use crate::link::Link;
use crate::model::{self, Opened};
use crate::outcome::Outcome;
use crate::progress;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::lesson::LARGEST;
use llama_trace_core::time::Instant;
use llama_trace_core::trace::manifest::Drawing;
use llama_trace_core::trace::{Address, Query, Run, Sampling, Status};
use llama_trace_formats::files::read_text;
use llama_trace_picture::{self as picture, Format, Paper};
use llama_trace_tui::action::Action;
use llama_trace_tui::app::{App, Shown};
use llama_trace_tui::begin;
use llama_trace_tui::events::{action_of, take_in};
use llama_trace_tui::input::Mode;
use llama_trace_tui::marks::Marks;
use llama_trace_tui::patch_state::CleanPrompt;
use llama_trace_tui::screen_option::ScreenOption;
use llama_trace_tui::theme::{Depth, Theme};
use llama_trace_tui::update::{Effect, update};
use llama_trace_tui::user_event::Event;
use llama_trace_tui::{Facts, NewRun, OpenAt, Runs, Setting, effects};

/// How long a drawing waits for values that come almost at once.
const AT_ONCE: Duration = Duration::from_millis(10);

/// Interval at which a source is polled that is idle although values are missing.
const WORKING: Duration = Duration::from_millis(15);

/// The name of the file of marks.
const MARKS: &str = "llama-trace.marks";

/// The view with the map of patching.
const PATCH: &str = "patch";

/// The time until the session has work again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It has work now.
    Now,
    /// After this time, or an earlier event.
    After(Duration),
    /// After the next event.
    Event,
}

/// The viewer of the page.
pub struct Session {
    app: App,
    runs: Runs,
    /// The name of the open trace, if it lies beside the page, so that a link can name it.
    trace: Option<String>,
    /// The prompts of the runs that a link can name. None for a model from the user's disk, and beside a trace, whose
    /// sampling no link has.
    prompts: Option<BTreeMap<Run, String>>,
    /// The sampling of these runs.
    sampling: Sampling,
    /// The name of the precision that the link asked for.
    precision: Option<String>,
    paper: Paper,
    /// The stored progress of lessons, by slug.
    stored: BTreeMap<String, String>,
    saving: Option<Saving>,
    /// The last screen that was sent.
    sent: Option<Buffer>,
    /// The last line that was read to users of screen readers.
    read: String,
    dirty: bool,
    outcomes: VecDeque<Outcome>,
}

impl Session {
    /// The session on the built-in model. A link that cannot be followed is reported on the screen of a session without
    /// one. `stored` holds the stored progress of lessons, by slug.
    ///
    /// # Errors
    /// None in a program that passed its tests.
    pub fn begin(
        link: &str,
        stored: &BTreeMap<String, String>,
        size: (u16, u16),
        paper: Paper,
    ) -> Result<Self> {
        let begun = |link: &Link| {
            let opened = Opened::built_in(link.precision.as_deref())?;
            Self::on_link(&opened, link, stored, size, paper)
        };
        let link = Link::parse(link);
        let followed = link.and_then(|link| Ok((begun(&link)?, link)));
        let (mut session, link, error) = match followed {
            Ok((session, link)) => (session, link, None),
            Err(error) => (begun(&Link::default())?, Link::default(), Some(error)),
        };
        if let Some(error) = error {
            effects::fail(&mut session.app, error.to_string());
        } else if let Some(file) = link.trace.or(link.lesson.filter(|name| lessons::is_file(name))) {
            effects::say(&mut session.app, format!("fetching {file}"));
            session.outcomes.push_back(Outcome::Fetch(file));
        }
        Ok(session)
    }

    /// The session of a model on the place of a link.
    fn on_link(
        opened: &Opened,
        link: &Link,
        stored: &BTreeMap<String, String>,
        size: (u16, u16),
        paper: Paper,
    ) -> Result<Self> {
        let text = link.prompt.as_deref().or(opened.default_prompt());
        // A trace is fetched first, so its address does not belong to this run.
        let here = link.trace.is_none();
        let draws = if here { link.passes() } else { 1 };
        let runs = opened.runs(text, draws, link.sampling)?;
        let lesson = match link.lesson.as_deref().filter(|name| !lessons::is_file(name)) {
            Some(name) => Some(lessons::of_chapter(lessons::chapter(name)?, link.scene, stored)?),
            None => None,
        };
        let open = OpenAt {
            at: link.at.clone().filter(|_| here),
            passes: draws,
            screen: if here { link.screen.clone() } else { Vec::new() },
            ..OpenAt::default()
        };
        let facts = opened.is_built_in().then_some(builtin::fact as Facts);
        let drawing = Some(Drawing { sampling: link.sampling, stream: 0 });
        let setting = Setting { facts, lesson, drawing, ..setting() };
        let prompts = Some(text.map(|text| (Run::ITSELF, text.to_owned())).into_iter().collect());
        let session = Self::of(runs, &open, setting, size, paper, stored.clone(), prompts)?;
        let (sampling, precision) = (link.sampling, link.precision.clone());
        let mut session = Self { sampling, precision, ..session };
        if let Some(clean) = &link.clean {
            session.patch(CleanPrompt::Text(clean.clone()));
        }
        Ok(session)
    }

    fn of(
        mut runs: Runs,
        open: &OpenAt,
        setting: Setting,
        size: (u16, u16),
        paper: Paper,
        stored: BTreeMap<String, String>,
        prompts: Option<BTreeMap<Run, String>>,
    ) -> Result<Self> {
        let theme = Theme::new(Depth::True).with(setting.palette, paper);
        let app = begin::begin(&mut runs, open, setting, theme, size)?;
        Ok(Self {
            app,
            runs,
            trace: None,
            prompts,
            sampling: Sampling::GREEDY,
            precision: None,
            paper,
            stored,
            saving: None,
            sent: None,
            read: String::new(),
            dirty: true,
            outcomes: VecDeque::new(),
        })
    }

    /// Opens files that the page was given, whose bytes are at these paths. A file that cannot be opened is reported on
    /// the screen, which stays as it is. `link` is the link of the page if the files were fetched for it.
    pub fn open(&mut self, paths: &[PathBuf], link: Option<&str>) {
        if let Err(error) = self.try_open(paths, link) {
            effects::fail(&mut self.app, error.to_string());
            self.dirty = true;
        }
    }

    fn try_open(&mut self, paths: &[PathBuf], link: Option<&str>) -> Result<()> {
        let link = link.map(Link::parse).transpose()?;
        let size = self.app.size();
        let text = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        let opened = match chosen(paths)? {
            Chosen::Lesson(path) => return self.open_lesson(&path, link.as_ref()),
            Chosen::Marks(path) => return self.open_marks(&path),
            Chosen::Trace(path) => {
                let model::OpenedTrace { mut runs, drawing, of_built_in } = model::trace(&path)?;
                let facts = of_built_in.then_some(builtin::fact as Facts);
                let name = text(&path);
                let setting = Setting { file: name.clone(), drawing, facts, ..setting() };
                let passes = runs.source().outline().passes.len();
                let open = link.as_ref().map_or_else(OpenAt::default, |link| OpenAt {
                    at: link.at.clone(),
                    screen: link.screen.clone(),
                    ..OpenAt::default()
                });
                let open = OpenAt { passes, ..open };
                let stored = self.stored.clone();
                let session = Self::of(runs, &open, setting, size, self.paper, stored, None)?;
                Self { trace: name.filter(|_| link.is_some()), ..session }
            }
            Chosen::Model(path) => {
                let link = Link { prompt: link.and_then(|link| link.prompt), ..Link::default() };
                let mut session = Self::on_link(&Opened::at(&path)?, &link, &self.stored, size, self.paper)?;
                // A link cannot name this model.
                session.prompts = None;
                session
            }
        };
        let outcomes = std::mem::take(&mut self.outcomes);
        *self = Self { outcomes, ..opened };
        Ok(())
    }

    /// Takes in the marks of a file.
    fn open_marks(&mut self, path: &Path) -> Result<()> {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let marks = Marks::parse(&read_text(path, LARGEST as u64)?, &name)?;
        let text = format!("{name}: {}", marks.list());
        effects::set_marks(&mut self.app, marks);
        effects::say(&mut self.app, text);
        self.dirty = true;
        Ok(())
    }

    /// Opens a lesson from a file beside the open run.
    fn open_lesson(&mut self, path: &Path, link: Option<&Link>) -> Result<()> {
        let text = read_text(path, LARGEST as u64)?;
        let slug = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let lesson = lessons::parsed(&slug, &text)?;
        if !self.runs.can_begin() {
            return Err(Error::usage("no lesson can be run next to a trace without its model")
                .next("reload the page, and open the lesson on the built-in model"));
        }
        let scene = link.and_then(|link| link.scene);
        let opened = lessons::resumed(lesson, &slug, scene, &self.stored)?;
        effects::open_lesson(&mut self.app, &mut self.runs, opened);
        self.dirty = true;
        Ok(())
    }

    /// Handles an event of the user.
    pub fn event(&mut self, event: Event) {
        let Some(action) = action_of(&self.app, event) else { return };
        self.dirty = true;
        let stops = self.saving.is_some() && action == Action::Close && *self.app.mode() == Mode::Walk;
        let saves_marks = action == Action::Submit && *self.app.mode() == Mode::Mark;
        let effect = if stops { Effect::Stop } else { update(&mut self.app, action) };
        self.execute(effect);
        if saves_marks {
            self.save_marks();
        }
    }

    /// Saves all marks as a file.
    fn save_marks(&mut self) {
        let text = self.app.marks().text();
        if text.is_empty() {
            return effects::say(&mut self.app, "no place is marked yet: m and a letter marks one");
        }
        let (name, bytes) = (MARKS.to_owned(), text.into_bytes());
        effects::say(
            &mut self.app,
            format!("saved as {name} · {} bytes; drop it here to open it", bytes.len()),
        );
        self.outcomes.push_back(Outcome::Download(name, bytes));
    }

    fn execute(&mut self, effect: Effect) {
        let Self { app, runs, .. } = self;
        match effect {
            Effect::None | Effect::Suspend => {}
            Effect::Quit => effects::say(app, "the tracer ends when you close this tab"),
            Effect::Abandon => {
                if !effects::back(app, runs) {
                    effects::say(app, "the prompt is being run; close this tab to stop it");
                }
            }
            Effect::Stop => {
                runs.source().stop();
                if let Some(saving) = self.saving.take() {
                    let site = saving.site();
                    let source = runs.of(site.run, site.sequence);
                    source.stop();
                    source.cancel(&Query::Block(site, saving.next()));
                    effects::say(app, "the export was stopped; e starts it again");
                }
            }
            Effect::Advance => effects::advance(app, runs.source()),
            Effect::Branch(fork) => effects::branch(app, runs, fork),
            Effect::Branches => effects::list_branches(app, runs),
            Effect::Edits => effects::list_edits(app, runs),
            Effect::Begin(new) => {
                let text = if let NewRun::Prompt(text) = &new { Some(text.clone()) } else { None };
                effects::begin_run(app, runs, new);
                if let (Some(prompts), Some(text)) = (&mut self.prompts, text) {
                    prompts.insert(app.outline().run, text);
                }
            }
            Effect::Patch(clean) => self.patch(clean),
            Effect::Scene(setting) => effects::show_scene(app, runs, &setting),
            Effect::AppendScene => effects::say(
                app,
                "W appends the screen as a scene to a lesson; it needs a terminal: `llama-trace --lesson FILE`",
            ),
            Effect::Open(run, address) => effects::open_run(app, runs, run, &address),
            Effect::Export => self.export(),
            Effect::Copy(text) => self.copy(&text),
            Effect::SaveMarks => {
                let marked = app.message().map(|message| message.text.clone()).unwrap_or_default();
                effects::say(app, format!("{marked}; m and Enter saves the marks"));
            }
            Effect::Draw => self.draw_picture(),
            Effect::Redraw => self.redraw(),
        }
    }

    /// Opens the map of patching. A link can name the run that is begun for a clean text.
    fn patch(&mut self, clean: CleanPrompt) {
        let text = if let CleanPrompt::Text(text) = &clean { Some(text.clone()) } else { None };
        effects::patch(&mut self.app, &mut self.runs, clean);
        let run = self.app.clean().map(|clean| clean.run);
        if let (Some(prompts), Some(run), Some(text)) = (&mut self.prompts, run, text)
            && self.app.begun_for(&text) == Some(run)
        {
            prompts.insert(run, text);
        }
    }

    /// Begins to save the current stage.
    fn export(&mut self) {
        let Self { app, runs, .. } = self;
        // The user may have stepped on since the last drawing.
        app.sync(runs.source());
        let Some(tensor) = app.tensor() else {
            match app.shown() {
                Shown::Failed(reason) => effects::fail(app, reason),
                _ => effects::say(app, "there is nothing to export yet: the values are being computed"),
            }
            return;
        };
        match Saving::begin(app.place().site(), tensor.block()) {
            Ok(saving) => self.saving = Some(saving),
            Err(error) => effects::fail(app, error.to_string()),
        }
        self.go_on_saving();
    }

    /// Takes in the next block of the export.
    fn go_on_saving(&mut self) {
        let Self { app, runs, saving, .. } = self;
        let Some(mut under_way) = saving.take() else { return };
        let site = under_way.site();
        self.dirty = true;
        match under_way.go_on(runs.of(site.run, site.sequence)) {
            Ok(true) => {
                let name = under_way.name();
                let bytes = under_way.into_bytes();
                effects::say(app, format!("saved as {name} · {} bytes", bytes.len()));
                self.outcomes.push_back(Outcome::Download(name, bytes));
            }
            Ok(false) => {
                effects::say(app, format!("saving {site}: {} %; Esc stops", under_way.percent()));
                self.saving = Some(under_way);
            }
            Err(Error::Interrupted(_)) => effects::say(app, "the export was stopped; e starts it again"),
            Err(error) => effects::fail(app, error.to_string()),
        }
    }

    /// Saves the screen as a picture.
    fn draw_picture(&mut self) {
        self.app.sync(self.runs.source());
        let screen = self.screen();
        match picture::encode(&screen, self.paper, Format::Svg) {
            Ok(bytes) => {
                let name = format!("{}.svg", self.app.place().path().replace(['/', ':'], "_"));
                effects::say(&mut self.app, format!("saved as {name} · {} bytes", bytes.len()));
                self.outcomes.push_back(Outcome::Download(name, bytes));
            }
            Err(error) => effects::fail(&mut self.app, error.to_string()),
        }
    }

    /// Copies a link to the place. `text` is the address and the value.
    fn copy(&mut self, text: &str) {
        match self.link() {
            Some(link) => {
                let lost = link.clean.is_none() && self.app.view().name() == PATCH;
                let clean = self.app.clean().filter(|_| lost).map(|clean| clean.run);
                let without = clean.map_or(String::new(), |run| {
                    format!(", without the clean run {run}: a link can name a prompt, but no branch and no edited run")
                });
                effects::say(&mut self.app, format!("copied a link to {text}{without}"));
                self.outcomes.push_back(Outcome::Copy(link.text()));
            }
            None => {
                let why = "no link can name a file that was opened here, a branch, an edited run, or more than 64 passes";
                effects::say(&mut self.app, format!("{text} ({why})"));
            }
        }
    }

    /// The link to the place on the screen, if a link can name it.
    pub fn link(&self) -> Option<Link> {
        let app = &self.app;
        if let Some((slug, scene)) = app.lesson_scene() {
            let own = std::iter::once(&TOUR).chain(CHAPTERS.iter()).any(|chapter| chapter.slug == slug);
            let lesson = if own { slug.to_owned() } else { format!("{slug}.md") };
            return Some(Link { lesson: Some(lesson), scene: Some(scene + 1), ..Link::default() });
        }
        let place = app.place();
        let address = Address { run: None, ..Address::of(place.site(), place.step, &app.index()) };
        let view = (ScreenOption::View, app.view().name().to_owned());
        let (sampling, precision) = (self.sampling, self.precision.clone());
        let link = Link { at: Some(address), screen: vec![view], sampling, precision, ..Link::default() };
        let outline = app.outline();
        if outline.fork.is_some() {
            return None;
        }
        let trace = self.trace.clone().filter(|_| outline.run == Run::ITSELF);
        let prompt = self.prompts.as_ref().and_then(|prompts| prompts.get(&outline.run)).cloned();
        let clean = app.clean().filter(|clean| app.view().name() == PATCH && clean.sequence == 0);
        let clean = clean.and_then(|clean| self.prompts.as_ref()?.get(&clean.run)).cloned();
        let link = (trace.is_some() || prompt.is_some()).then_some(Link { trace, prompt, clean, ..link })?;
        // A link has a limited number of passes and characters.
        Link::parse(&link.text()).is_ok().then_some(link)
    }

    /// Sets the background of the page.
    pub fn set_paper(&mut self, paper: Paper) {
        self.paper = paper;
        self.app.set_paper(paper);
        self.redraw();
    }

    /// Draws all cells again, for a canvas that was cleared.
    pub fn redraw(&mut self) {
        (self.sent, self.dirty) = (None, true);
    }

    /// Shows a message.
    pub fn say(&mut self, text: &str, failure: bool) {
        match failure {
            true => effects::fail(&mut self.app, text),
            false => effects::say(&mut self.app, text),
        }
        self.dirty = true;
    }

    /// Does a piece of work, and returns when there is more.
    pub fn work(&mut self) -> Next {
        self.take_in();
        if self.dirty {
            let began = Instant::now();
            while self.app.waits() && self.runs.source().status() != Status::Idle && began.elapsed() < AT_ONCE
            {
                self.take_in();
            }
        }
        if self.saving.is_some() {
            self.go_on_saving();
        }
        if let Some(reached) = self.app.take_progress() {
            let text = progress::write(&reached);
            self.stored.insert(reached.slug.clone(), text.clone());
            self.outcomes.push_back(Outcome::Keep(reached.slug, text));
        }
        let source_idle = self.runs.source().status() == Status::Idle;
        let idle = source_idle && self.saving.is_none();
        if !source_idle || self.app.is_searching() || self.saving.is_some() {
            return Next::Now;
        }
        if self.app.waits() {
            return Next::After(WORKING);
        }
        match self.app.plays_in(idle, Instant::now()) {
            Some(left) if left.is_zero() => {
                update(&mut self.app, Action::PlayOn);
                self.dirty = true;
                Next::Now
            }
            Some(left) => Next::After(left),
            None => Next::Event,
        }
    }

    fn take_in(&mut self) {
        match take_in(&mut self.app, &mut self.runs) {
            Ok(news) => self.dirty |= news,
            Err(error) => {
                let text = error.to_string();
                if self.app.message().is_none_or(|message| message.text != text) {
                    effects::fail(&mut self.app, text);
                    self.dirty = true;
                }
            }
        }
    }

    fn screen(&self) -> Buffer {
        let (columns, rows) = self.app.size();
        let area = Rect::new(0, 0, columns, rows);
        let mut screen = Buffer::empty(area);
        (&self.app).render(area, &mut screen);
        screen
    }

    /// Appends the cells that changed since the last call.
    pub fn draw(&mut self, out: &mut Vec<u8>) {
        if !std::mem::take(&mut self.dirty) && self.sent.is_some() {
            return;
        }
        let screen = self.screen();
        cells::changed(&screen, self.sent.as_ref(), self.paper, out);
        self.sent = Some(screen);
        let read = self.app.address_and_value();
        if read != self.read {
            self.outcomes.push_back(Outcome::Read(read.clone()));
            self.read = read;
        }
    }

    /// The screen as text, a line for each row. If `styled`, it has the codes of a terminal's colours.
    pub fn text(&self, styled: bool) -> String {
        let format = if styled { Format::Ansi } else { Format::Txt };
        picture::encode(&self.screen(), self.paper, format)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// The next request to the page.
    pub fn next_outcome(&mut self) -> Option<Outcome> {
        self.outcomes.pop_front()
    }
}

fn setting() -> Setting {
    Setting { chapters: CHAPTERS, tour: Some(TOUR), ..Setting::default() }
}
