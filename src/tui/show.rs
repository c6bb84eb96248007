//! The viewer in the terminal. Its loop takes in all waiting events, asks the source, and draws once.

use std::io::{self, IsTerminal, stdin, stdout};
use std::path::Path;
use std::time::Duration;

use llama_trace_core::error::{Error, Result};
use llama_trace_core::time::Instant;
use llama_trace_core::trace::{Query, Run, Source, Status};
use llama_trace_ending as ending;
use llama_trace_picture::Paper;

use super::action::Action;
use super::app::App;
use super::begin::begin;
use super::events::{action_of, take_in};
use super::export::{self, Saving};
use super::input::Mode;
use super::lesson_file::LessonFile;
use super::place::OpenAt;
use super::runs::Runs;
use super::terminal::{Canvas, Guard, Keys, copy, failed};
use super::theme::{self, Theme};
use super::update::{Effect, update};
use super::{Setting, StoreProgress, effects, scene_text};

/// How the viewer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// The user quit.
    Left,
    /// The user quit before the first pass was done.
    Abandoned,
}

/// What the viewer writes about lessons.
struct Files {
    lesson: Option<LessonFile>,
    progress: Option<StoreProgress>,
}

impl Files {
    /// Stores the progress of the lesson, if it has changed. After a failure, no further progress is stored.
    fn store(&mut self, app: &mut App) -> bool {
        let Some(progress) = app.take_progress() else { return false };
        let stored = self.progress.as_mut().map_or(Ok(()), |StoreProgress(store)| store(&progress));
        let failed = stored.is_err();
        if let Err(error) = stored {
            self.progress = None;
            effects::fail(app, error.to_string());
        }
        failed
    }

    /// Appends the screen as a scene.
    fn append(&mut self, app: &mut App, runs: &Runs) {
        let Some(file) = &mut self.lesson else {
            let words =
                "W appends the screen as a scene to a lesson; start with --lesson FILE to name its file";
            return effects::say(app, words);
        };
        let scene = match scene_text::scene(app, runs, file.last().as_ref()) {
            Ok(scene) => scene,
            Err(why) => return effects::fail(app, why),
        };
        match file.append(&scene) {
            Ok(number) => effects::say(app, format!("scene {number} was appended to the lesson")),
            Err(error) => effects::fail(app, error.to_string()),
        }
    }
}

/// How long a drawing waits for values that come almost at once.
const AT_ONCE: Duration = Duration::from_millis(10);
/// Interval at which the source is polled while it works, and at which signals are checked while it is idle.
const WORKING: Duration = Duration::from_millis(15);
const IDLE: Duration = Duration::from_millis(100);

/// Shows `runs` in the terminal until the user quits.
///
/// # Errors
/// [`Error::Usage`] if `open` names something that does not exist, [`Error::Terminal`] if there is no terminal or it
/// fails, [`Error::Interrupted`] if a signal ended the viewer. The terminal is restored in any case.
pub fn run(runs: Runs, open: &OpenAt, setting: Setting) -> Result<()> {
    match show(runs, open, setting)? {
        Ended::Left => Ok(()),
        Ended::Abandoned => Err(Error::interrupted("stopped before the first pass was done")),
    }
}

/// Like [`run`] with one source, for a program that continues afterwards. Quitting before the first pass is no error.
///
/// # Errors
/// Like [`run`].
pub fn visit(source: Box<dyn Source>, open: &OpenAt, setting: Setting) -> Result<()> {
    show(Runs::new(source), open, setting).map(drop)
}

fn show(mut runs: Runs, at: &OpenAt, mut setting: Setting) -> Result<Ended> {
    require_terminal()?;
    let depth = theme::Depth::detect(|name| std::env::var(name).ok());
    // A projector needs dark text on a light background.
    let presents = setting.lesson.as_ref().is_some_and(|lesson| lesson.presents);
    let paper = if presents { Paper::Light } else { setting.paper };
    let theme = Theme::new(depth).with(setting.palette, paper);
    let files = Files { lesson: setting.lesson_file.take(), progress: setting.progress.take() };
    let mut app = begin(&mut runs, at, setting, theme, (80, 24))?;
    let guard = Guard::take()?;
    watch(&mut app, &mut runs, &guard, files)
}

/// Checks that there is a terminal to draw on and to read keys from.
///
/// # Errors
/// [`Error::Terminal`], which names the commands that work without a terminal.
pub fn require_terminal() -> Result<()> {
    for (name, is_terminal) in [("output", stdout().is_terminal()), ("input", stdin().is_terminal())] {
        if !is_terminal {
            return Err(Error::terminal(format!("the standard {name} is not a terminal"))
                .expected("a terminal to draw in and to read keys from")
                .next("give --prompt without --step and without a place to print only the text, or use `llama-trace log` to print the steps, or `llama-trace export` to write them to files"));
        }
    }
    if std::env::var_os("TERM").is_some_and(|term| term == "dumb") {
        return Err(Error::terminal("the tracer cannot draw on this terminal")
            .expected("a terminal whose cursor can be moved")
            .found("TERM=dumb")
            .next("use `llama-trace log` to print the steps, `llama-trace export` to write them to files, or `llama-trace snapshot` to draw a screen into a file"));
    }
    Ok(())
}

/// Runs until the user quits.
///
/// # Errors
/// [`Error::Terminal`] if the terminal fails, [`Error::Interrupted`] if a signal asked to stop, and the source's error
/// if there is nothing to show.
fn watch(app: &mut App, runs: &mut Runs, guard: &Guard, mut files: Files) -> Result<Ended> {
    let mut canvas = Canvas::new().map_err(|error| failed(&error))?;
    let keys = Keys::start()?;
    let (mut dirty, mut saving) = (true, None);
    loop {
        if let Some(signal) = guard.stopped_by() {
            return Err(Error::interrupted(format!("stopped by {signal}")));
        }
        if ending::suspended() {
            guard.suspend()?;
            canvas.clear().map_err(|error| failed(&error))?;
            dirty = true;
        }
        if ending::continued() {
            guard.resume()?;
            canvas.clear().map_err(|error| failed(&error))?;
            dirty = true;
        }
        dirty |= take_in(app, runs)?;
        dirty |= files.store(app);
        if dirty {
            wait_shortly(app, runs)?;
        }
        let before = saving.as_ref().map(Saving::written);
        if let Some(site) = saving.as_ref().map(Saving::site) {
            saving = export::continue_saving(app, runs.of(site.run, site.sequence), saving);
        }
        let source = runs.source();
        let went_on = saving.as_ref().map(Saving::written) != before;
        dirty |= went_on;
        if std::mem::take(&mut dirty) {
            draw(app, source, &mut canvas).map_err(|error| failed(&error))?;
        }
        let working = source.status() != Status::Idle || app.waits() || app.is_searching();
        let mut wait = match (went_on, working || saving.is_some()) {
            (true, _) => Duration::ZERO,
            (false, true) => WORKING,
            (false, false) => IDLE,
        };
        let idle = source.status() == Status::Idle && saving.is_none();
        if let Some(left) = app.plays_in(idle, Instant::now()) {
            if left.is_zero() {
                update(app, Action::PlayOn);
                dirty = true;
                continue;
            }
            wait = wait.min(left);
        }
        // All waiting keys are handled before the next drawing, so that the screen does not lag behind a held key.
        while let Some(event) = keys.next(wait).map_err(|error| failed(&error))? {
            wait = Duration::ZERO;
            let Some(action) = action_of(app, event) else { continue };
            dirty = true;
            // Esc stops an export. Between two blocks the source is idle, so `update` would not return
            // `Effect::Stop`.
            let stops = saving.is_some() && action == Action::Close && *app.mode() == Mode::Walk;
            let source = runs.source();
            match if stops { Effect::Stop } else { update(app, action) } {
                Effect::None => {}
                Effect::Quit => {
                    files.store(app);
                    return Ok(Ended::Left);
                }
                Effect::Abandon => {
                    source.stop();
                    let stopped = match (source.outline().run, source.outline().sequence) {
                        (Run::ITSELF, sequence) => format!("sequence {sequence}"),
                        (run, _) => format!("run {run}"),
                    };
                    if !effects::back(app, runs) {
                        return Ok(Ended::Abandoned);
                    }
                    effects::say(app, format!("{stopped} was stopped before its first pass was done"));
                }
                Effect::Stop => {
                    source.stop();
                    if let Some(saving) = saving.take() {
                        let site = saving.site();
                        let source = runs.of(site.run, site.sequence);
                        source.stop();
                        source.cancel(&Query::Block(saving.site(), saving.next()));
                        effects::say(app, "the export was stopped, and its file removed; e starts it again");
                    }
                }
                Effect::Advance => effects::advance(app, source),
                Effect::Branch(fork) => effects::branch(app, runs, fork),
                Effect::Branches => effects::list_branches(app, runs),
                Effect::Edits => effects::list_edits(app, runs),
                Effect::Begin(new) => effects::begin_run(app, runs, new),
                Effect::Patch(clean) => effects::patch(app, runs, clean),
                Effect::Scene(setting) => effects::show_scene(app, runs, &setting),
                Effect::AppendScene => files.append(app, runs),
                Effect::Open(run, address) => effects::open_run(app, runs, run, &address),
                Effect::Export => saving = export::save(app, source, Path::new(".")),
                Effect::Copy(text) => {
                    copy(&text).map_err(|error| failed(&error))?;
                    effects::say(app, format!("sent to the terminal's clipboard: {text}"));
                }
                Effect::SaveMarks => effects::save_marks(app),
                Effect::Draw => export::draw_into(app, source, Path::new(".")),
                Effect::Redraw => canvas.clear().map_err(|error| failed(&error))?,
                Effect::Suspend => {
                    guard.suspend()?;
                    canvas.clear().map_err(|error| failed(&error))?;
                }
            }
        }
    }
}

/// Waits a short time for values, so that they are drawn together with the step that asked for them.
fn wait_shortly(app: &mut App, runs: &mut Runs) -> Result<()> {
    let began = Instant::now();
    while app.waits() && runs.source().status() != Status::Idle {
        let left = AT_ONCE.saturating_sub(began.elapsed());
        if left.is_zero() {
            break;
        }
        runs.source().wait(left);
        take_in(app, runs)?;
    }
    Ok(())
}

fn draw(app: &mut App, source: &mut dyn Source, canvas: &mut Canvas) -> io::Result<()> {
    let size = canvas.size()?;
    if (size.width, size.height) != app.size() {
        update(app, Action::Resize(size.width, size.height));
        app.sync(source);
    }
    canvas.draw(&*app)
}
