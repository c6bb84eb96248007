//! The event loop: takes in all events that wait, asks the source, draws once.

use std::mem::ManuallyDrop;
use std::path::Path;
use std::time::{Duration, Instant};

use base64::Engine;
use crossterm::event::{Event, KeyEventKind, MouseButton, MouseEventKind};
use crossterm::execute;
use crossterm::style::Print;
use crossterm::terminal::{BeginSynchronizedUpdate, EndSynchronizedUpdate};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::layout::Rect;

use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::{Query, Run, Source, Status};
use llama_trace_ending as ending;

use super::action::{self, Action};
use super::app::App;
use super::effects;
use super::export::Saving;
use super::input::Mode;
use super::keys::Keys;
use super::runs::Runs;
use super::terminal::{Guard, Screen, failed};
use super::update::{Effect, update};

/// The way in which the viewer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The user quit.
    Left,
    /// The user quit before the first pass was done.
    Abandoned,
}

/// Time that a drawing waits for values that come almost at once.
const AT_ONCE: Duration = Duration::from_millis(10);
/// Interval of polling the source while it works, and of checking for signals while it is idle.
const WORKING: Duration = Duration::from_millis(15);
const IDLE: Duration = Duration::from_millis(100);

/// Runs until the user quits.
///
/// # Errors
/// [`Error::Terminal`] if the terminal fails, [`Error::Interrupted`] if a signal asked to stop, and the source's error
/// if there is nothing to show.
pub(super) fn run(app: &mut App, runs: &mut Runs, guard: &Guard) -> Result<Ended> {
    let backend = CrosstermBackend::new(Screen(std::io::stdout()));
    // Never dropped: its drop prints failures to stderr, and panics if stderr is gone with the terminal. The guard
    // shows the cursor.
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
            saving = effects::continue_saving(app, runs.of(site.run, site.sequence), saving);
        }
        let source = runs.source();
        let went_on = saving.as_ref().map(Saving::written) != before;
        dirty |= went_on;
        if std::mem::take(&mut dirty) {
            draw(app, source, &mut terminal).map_err(|error| failed(&error))?;
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
        // All waiting keys are handled before the next drawing, so that a held key does not lag.
        while let Some(event) = keys.next(wait).map_err(|error| failed(&error))? {
            wait = Duration::ZERO;
            let Some(action) = action_of(app, event) else { continue };
            dirty = true;
            // Between two blocks of an export the source is idle.
            let stops = saving.is_some() && action == Action::Close && *app.mode() == Mode::Walk;
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
                        effects::say(app, "the export was stopped, and its file removed; e begins again");
                    }
                }
                Effect::Advance => effects::advance(app, source),
                Effect::Branch(fork) => effects::branch(app, runs, fork),
                Effect::Branches => effects::list_branches(app, runs),
                Effect::Begin(new) => effects::begin_run(app, runs, new),
                Effect::Open(run, address) => effects::open_run(app, runs, run, &address),
                Effect::Export => saving = effects::save(app, source, Path::new(".")),
                Effect::Copy(text) => copy(app, &text).map_err(|error| failed(&error))?,
                Effect::SaveMarks => effects::save_marks(app),
                Effect::Draw => effects::draw_into(app, source, Path::new(".")),
                Effect::Redraw => clear(&mut terminal).map_err(|error| failed(&error))?,
                Effect::Suspend => {
                    guard.suspend()?;
                    clear(&mut terminal).map_err(|error| failed(&error))?;
                }
            }
        }
    }
}

/// Takes in the source's news, and asks for what the screen needs; true if the screen may change.
fn take_in(app: &mut App, runs: &mut Runs) -> Result<bool> {
    let mut news = match runs.poll() {
        Err(error) if effects::back(app, runs) => {
            effects::fail(app, error.to_string());
            true
        }
        news => news?,
    };
    news |= app.sync(runs.source());
    let beside = runs.beside(app);
    news |= app.sync_compared(beside);
    Ok(news)
}

/// Waits shortly for values, so that they are drawn together with the step that asked for them.
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
    if (size.width, size.height) != app.size() {
        update(app, Action::Resize(size.width, size.height));
        app.sync(source);
    }
    execute!(terminal.backend_mut(), BeginSynchronizedUpdate)?;
    terminal.draw(|frame| frame.render_widget(&*app, frame.area()))?;
    execute!(terminal.backend_mut(), EndSynchronizedUpdate)
}

/// Clears the screen, so that the next drawing is complete. `Terminal::clear` would first query the cursor's position,
/// and fail on terminals that do not answer.
fn clear(terminal: &mut Terminal<CrosstermBackend<Screen>>) -> std::io::Result<()> {
    let size = terminal.size()?;
    terminal.resize(Rect::new(0, 0, size.width, size.height))
}

/// The action of an event; none if it has none.
pub fn action_of(app: &App, event: Event) -> Option<Action> {
    let typing = matches!(app.mode(), Mode::Goto(_) | Mode::Mark | Mode::Return);
    // In the help screen letters filter, and other keys scroll.
    let finds = matches!(app.mode(), Mode::Help(..));
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

/// Sends `text` to the terminal's clipboard (OSC 52). The terminal may ignore it silently.
fn copy(app: &mut App, text: &str) -> std::io::Result<()> {
    let coded = base64::engine::general_purpose::STANDARD.encode(text);
    execute!(std::io::stdout(), Print(format!("\x1b]52;c;{coded}\x07")))?;
    effects::say(app, format!("handed to the terminal's clipboard: {text}"));
    Ok(())
}
