//! The loop: read everything that waits, ask the source, draw once.

use std::mem::ManuallyDrop;
use std::path::Path;
use std::task::Poll;
use std::time::{Duration, Instant};

use base64::Engine;
use crossterm::event::{Event, KeyEventKind, MouseButton, MouseEventKind};
use crossterm::execute;
use crossterm::style::Print;
use crossterm::terminal::{BeginSynchronizedUpdate, EndSynchronizedUpdate};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::layout::Rect;

use llama_trace_core::error::{Error, Result, printable};
use llama_trace_core::trace::{Address, Query, Run, Source, Status, source};
use llama_trace_ending as ending;

use super::action::{self, Action};
use super::advancing::advance;
use super::app::{App, Mode, Shown};
use super::export::{self, Saving};
use super::goto;
use super::keys::Keys;
use super::parting;
use super::runs::{Other, Runs};
use super::terminal::{Guard, Screen, failed};
use super::update::{Effect, update};

/// How the viewer was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The user had seen enough.
    Left,
    /// The user did not wait for the first pass.
    Abandoned,
}

/// How long a drawing waits for what is there almost at once.
const AT_ONCE: Duration = Duration::from_millis(10);
/// How soon news of the source are looked for while it works, and how soon a signal is seen otherwise.
const WORKING: Duration = Duration::from_millis(15);
const IDLE: Duration = Duration::from_millis(100);

/// Runs until the user quits.
///
/// # Errors
/// [`Error::Terminal`] where the terminal fails, [`Error::Interrupted`] where a signal asked to stop, and why there
/// is nothing to look at.
pub(super) fn run(app: &mut App, runs: &mut Runs, guard: &Guard) -> Result<Ended> {
    let backend = CrosstermBackend::new(Screen(std::io::stdout()));
    // Not dropped: that says on the error output what fails, and panics where this is gone with the terminal. The
    // guard shows the cursor.
    let mut terminal = ManuallyDrop::new(Terminal::new(backend).map_err(|error| failed(&error))?);
    let keys = Keys::start()?;
    let (mut dirty, mut saving) = (true, None);
    loop {
        if let Some(signal) = guard.stopped_by() {
            return Err(Error::interrupted(format!("stopped by {signal}")));
        }
        if ending::suspended() {
            guard.suspend()?;
            clear(&mut terminal).map_err(|error| failed(&error))?;
            dirty = true;
        }
        if ending::continued() {
            guard.resume()?;
            clear(&mut terminal).map_err(|error| failed(&error))?;
            dirty = true;
        }
        dirty |= take_in(app, runs)?;
        if dirty {
            wait_shortly(app, runs)?;
        }
        let before = saving.as_ref().map(Saving::written);
        if let Some(site) = saving.as_ref().map(Saving::site) {
            saving = go_on(app, runs.of(site.run, site.sequence), saving);
        }
        let source = runs.source();
        let went_on = saving.as_ref().map(Saving::written) != before;
        dirty |= went_on;
        if std::mem::take(&mut dirty) {
            draw(app, source, &mut terminal).map_err(|error| failed(&error))?;
        }
        let working = source.status() != Status::Idle || app.waits() || app.seek.is_some();
        let mut wait = match (went_on, working || saving.is_some()) {
            (true, _) => Duration::ZERO,
            (false, true) => WORKING,
            (false, false) => IDLE,
        };
        let idle = source.status() == Status::Idle && saving.is_none();
        if let Some(left) = app.plays_in(idle, Instant::now()) {
            if left.is_zero() {
                app.play_on();
                dirty = true;
                continue;
            }
            wait = wait.min(left);
        }
        // Keys that wait are all taken before the next drawing, so that a held key never lags behind.
        while let Some(event) = keys.next(wait).map_err(|error| failed(&error))? {
            wait = Duration::ZERO;
            let Some(action) = action_of(app, event) else { continue };
            dirty = true;
            // Between two of its blocks an export is under way though the source is idle.
            let stops = saving.is_some() && action == Action::Close && app.mode == Mode::Walk;
            let source = runs.source();
            match if stops { Effect::Stop } else { update(app, action) } {
                Effect::None => {}
                Effect::Quit => return Ok(Ended::Left),
                Effect::Abandon => {
                    source.stop();
                    let stopped = match (source.outline().run, source.outline().sequence) {
                        (Run::ITSELF, sequence) => format!("sequence {sequence}"),
                        (run, _) => format!("run {run}"),
                    };
                    if !back(app, runs) {
                        return Ok(Ended::Abandoned);
                    }
                    app.say(format!("{stopped} was stopped before its first pass was done"), false);
                }
                Effect::Stop => {
                    source.stop();
                    if let Some(saving) = saving.take() {
                        let site = saving.site();
                        let source = runs.of(site.run, site.sequence);
                        source.stop();
                        source.cancel(&Query::Block(saving.site(), saving.next()));
                        app.say("the export was stopped, and its file removed; e begins again", false);
                    }
                }
                Effect::Advance => advance(app, source),
                Effect::Branch(fork) => parting::begin(app, runs, fork),
                Effect::Branches => parting::list(app, runs),
                Effect::Begin(other) => begin_other(app, runs, other),
                Effect::Open(run, address) => open_run(app, runs, run, &address),
                Effect::Export => saving = save(app, source, Path::new(".")),
                Effect::Copy(text) => copy(app, &text).map_err(|error| failed(&error))?,
                Effect::Marked => {
                    if let Err(error) = app.marks.save() {
                        app.say(error.to_string(), true);
                    }
                }
                Effect::Draw => draw_into(app, source, Path::new(".")),
                Effect::Redraw => clear(&mut terminal).map_err(|error| failed(&error))?,
                Effect::Suspend => {
                    guard.suspend()?;
                    clear(&mut terminal).map_err(|error| failed(&error))?;
                }
            }
        }
    }
}

/// Takes in what was computed, and asks for what the screen needs; true where it may look different now.
fn take_in(app: &mut App, runs: &mut Runs) -> Result<bool> {
    let mut news = match runs.poll() {
        Err(error) if back(app, runs) => {
            app.say(error.to_string(), true);
            true
        }
        news => news?,
    };
    news |= app.sync(runs.source());
    let beside = runs.beside(app);
    news |= app.sync_compared(beside);
    Ok(news)
}

/// Waits for what is there almost at once, so that it is drawn with what asked for it.
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

fn draw(
    app: &mut App,
    source: &mut dyn Source,
    terminal: &mut Terminal<CrosstermBackend<Screen>>,
) -> std::io::Result<()> {
    let size = terminal.size()?;
    if (size.width, size.height) != (app.size.width, app.size.height) {
        update(app, Action::Resize(size.width, size.height));
        app.sync(source);
    }
    execute!(terminal.backend_mut(), BeginSynchronizedUpdate)?;
    terminal.draw(|frame| frame.render_widget(&*app, frame.area()))?;
    execute!(terminal.backend_mut(), EndSynchronizedUpdate)
}

/// Empties the screen, so that the next drawing is a whole one. `Terminal::clear` would first ask the
/// terminal where its cursor is, and fail where no answer comes.
fn clear(terminal: &mut Terminal<CrosstermBackend<Screen>>) -> std::io::Result<()> {
    let size = terminal.size()?;
    terminal.resize(Rect::new(0, 0, size.width, size.height))
}

/// Looks again at what was shown before; false where there is nothing.
fn back(app: &mut App, runs: &mut Runs) -> bool {
    app.leave(runs.source());
    let back = runs.back();
    if back {
        app.look_at(runs.source().outline().clone(), runs.before().is_some());
        app.settle();
    }
    back
}

/// Goes to an address in another sequence or another run.
pub fn open_run(app: &mut App, runs: &mut Runs, run: Run, address: &Address) {
    if let Some(count) = runs.sequences(run) {
        // Another run may have fewer of them, and a branch has one alone.
        let here = match runs.only_sequence(run) {
            Some(only) => only,
            None => app.outline().sequence.min(count.max(1) - 1),
        };
        let sequence = address.sequence.unwrap_or(here);
        app.leave(runs.source());
        app.leave_compared(runs.beside(app));
        match runs.show(run, sequence) {
            Ok(true) => {
                app.look_at(runs.source().outline().clone(), runs.before().is_some());
                goto::go_to(app, address);
            }
            Ok(false) => {
                let wrong = match runs.only_sequence(run) {
                    Some(only) if count > 1 => format!("{run} is a branch of sequence {only} alone"),
                    _ => goto::no_sequence(runs.of(run, 0).outline(), sequence),
                };
                app.say(wrong, true);
            }
            Err(error) => app.say(error.to_string(), true),
        }
    } else {
        let there: Vec<_> = runs.all().map(|run| run.to_string()).collect();
        let there = match &there[..] {
            [one] => format!("{one} is the only one"),
            many => format!("there are {}", many.join(", ")),
        };
        app.say(format!("there is no run {run}: {there}"), true);
    }
}

/// Begins another run beside those that there are, and shows its first pass.
pub fn begin_other(app: &mut App, runs: &mut Runs, other: Other) {
    let before = app.outline().run;
    let what = match &other {
        Other::Prompt(_) => "runs this prompt".to_owned(),
        Other::Without { parts, .. } => format!("runs this prompt without {}", printable(parts)),
    };
    match runs.other(other) {
        Ok(run) => {
            open_run(app, runs, run, &Address { pass: Some(0), ..Address::default() });
            app.say(format!("{run} {what}; Esc stops it, /{before}: goes back"), false);
        }
        Err(error) => app.say(error.to_string(), true),
    }
}

/// What an event asks for.
pub fn action_of(app: &App, event: Event) -> Option<Action> {
    let typing = matches!(app.mode, Mode::Goto(_) | Mode::Mark | Mode::Return);
    // In the help screen letters find; what else is typed there scrolls it.
    let finds = matches!(app.mode, Mode::Help(..));
    match event {
        Event::Key(key) if key.kind == KeyEventKind::Release => None,
        Event::Key(key) if typing => action::of_typed_key(key),
        Event::Key(key) if finds => action::of_found_key(key),
        Event::Key(key) => action::of_key(key),
        Event::Paste(text) if typing || finds => Some(Action::Paste(text)),
        Event::Resize(columns, rows) => Some(Action::Resize(columns, rows)),
        Event::Mouse(mouse) => {
            let (x, y) = (mouse.column, mouse.row);
            let scroll = |down, right| Some(Action::Scroll { x, y, down, right });
            match mouse.kind {
                MouseEventKind::Down(MouseButton::Left) => Some(Action::Click(x, y)),
                MouseEventKind::Drag(MouseButton::Left) => Some(Action::Drag(x, y)),
                MouseEventKind::ScrollDown if mouse.modifiers.is_empty() => scroll(3, 0),
                MouseEventKind::ScrollUp if mouse.modifiers.is_empty() => scroll(-3, 0),
                MouseEventKind::ScrollDown | MouseEventKind::ScrollRight => scroll(0, 3),
                MouseEventKind::ScrollUp | MouseEventKind::ScrollLeft => scroll(0, -3),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Writes the current stage into `folder`, and says where or why not. A stage that comes in blocks is written one
/// after the other: [`go_on`] with what is returned.
pub fn save(app: &mut App, source: &mut dyn Source, folder: &Path) -> Option<Saving> {
    // Steps taken since the last drawing have not been asked for yet.
    app.sync(source);
    let Some(tensor) = app.tensor() else {
        let (text, failure) = match app.shown() {
            Shown::Failed(reason) => (reason, true),
            _ => ("there is nothing to export yet: it is being computed".to_owned(), false),
        };
        app.say(text, failure);
        return None;
    };
    let saving = Saving::begin(app.place().site(), tensor.block(), folder)
        .map_err(|error| app.say(error.to_string(), true));
    go_on(app, source, saving.ok())
}

/// Hands `text` to the terminal's clipboard (OSC 52), which may refuse it without a word.
fn copy(app: &mut App, text: &str) -> std::io::Result<()> {
    let coded = base64::engine::general_purpose::STANDARD.encode(text);
    execute!(std::io::stdout(), Print(format!("\x1b]52;c;{coded}\x07")))?;
    app.say(format!("handed to the terminal's clipboard: {text}"), false);
    Ok(())
}

/// Draws the screen into a file in `folder`, and says where or why not.
pub fn draw_into(app: &mut App, source: &mut dyn Source, folder: &Path) {
    // Steps taken since the last drawing have not been asked for yet.
    app.sync(source);
    match export::draw(app, folder) {
        Ok(path) => app.say(format!("drew {}", printable(&path.display().to_string())), false),
        Err(error) => app.say(error.to_string(), true),
    }
}

/// Writes what has come of the stage that is being exported; none when all of it is written, or nothing more will
/// be.
pub fn go_on(app: &mut App, source: &mut dyn Source, saving: Option<Saving>) -> Option<Saving> {
    let mut saving = saving?;
    let block = match source::block(source, saving.site(), &saving.next()) {
        Poll::Pending => return Some(saving),
        Poll::Ready(block) => block,
    };
    match block.and_then(|block| saving.write(&block)) {
        Ok(Some(path)) => app.say(format!("wrote {}", printable(&path.display().to_string())), false),
        Ok(None) => {
            app.say(format!("writing {}: {} %; Esc stops", saving.site(), saving.percent()), false);
            return Some(saving);
        }
        Err(Error::Interrupted(_)) => app.say("the export was stopped; e begins again", false),
        Err(error) => app.say(error.to_string(), true),
    }
    None
}
