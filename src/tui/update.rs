//! State and action in, state and effect out. No I/O: what must be done outside is the [`Effect`].

use crate::trace::{Address, Run, Status};

use super::action::Action;
use super::app::{App, Focus, GotoLine, Mode, Scale};
use super::comparing;
use super::explaining;
use super::goto::{self, Target};
use super::mouse;
use super::moving::{layer, move_cursor, pass, sequence, slice, step};
use super::slice::Cut;
use super::view;
use super::view::kind::View;
use super::view::views;

/// What the event loop does after an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing but drawing.
    None,
    /// Asks the source for one more pass.
    Advance,
    /// Goes to an address in another sequence, or in another run of the program.
    Open(Run, Address),
    /// Writes the current stage to a file.
    Export,
    /// Draws the screen into a file.
    Draw,
    /// Clears the terminal before drawing.
    Redraw,
    /// Gives the terminal back and stops the process until it is continued.
    Suspend,
    /// Stops what the source is doing.
    Stop,
    /// Leaves.
    Quit,
    /// Leaves while the first pass is being computed: there was nothing to look at.
    Abandon,
}

/// Does what `action` asks for.
pub fn update(app: &mut App, action: Action) -> Effect {
    if let Action::Resize(columns, rows) = action {
        app.size.width = columns;
        app.size.height = rows;
        app.settle();
        return Effect::None;
    }
    app.message = None;
    app.opens_at = None;
    let effect = match &app.mode {
        Mode::Walk => walk(app, &action),
        Mode::Help(line) => help(app, *line, &action),
        Mode::Goto(line) => {
            let line = line.clone();
            type_goto(app, line, action)
        }
    };
    app.settle();
    effect
}

fn help(app: &mut App, line: usize, action: &Action) -> Effect {
    let page = usize::from(app.size.height / 2).max(1);
    let line = match action {
        Action::Down | Action::NextStep => line + 1,
        Action::Up | Action::PreviousStep => line.saturating_sub(1),
        Action::PageDown => line + page,
        Action::PageUp => line.saturating_sub(page),
        Action::Home | Action::FirstStep => 0,
        Action::End | Action::LastStep => usize::MAX,
        Action::Scroll { down, .. } => line.saturating_add_signed(isize::from(*down)),
        Action::Close | Action::Help | Action::Quit | Action::Notes | Action::Explain | Action::Click(..) => {
            app.mode = Mode::Walk;
            return Effect::None;
        }
        Action::Redraw => return Effect::Redraw,
        Action::Suspend => return Effect::Suspend,
        _ => line,
    };
    app.mode = Mode::Help(line);
    Effect::None
}

fn type_goto(app: &mut App, mut line: GotoLine, action: Action) -> Effect {
    match action {
        Action::Quit => return Effect::Quit,
        Action::Close | Action::Click(..) => {
            app.mode = Mode::Walk;
            return Effect::None;
        }
        Action::Type(c) => line.push(c),
        Action::Paste(text) => text.chars().for_each(|c| line.push(c)),
        Action::Erase if line.text.is_empty() => {
            app.mode = Mode::Walk;
            return Effect::None;
        }
        Action::Erase => line.pop(),
        Action::Up => line.choose(app, -1),
        Action::Down => line.choose(app, 1),
        Action::Complete => line.complete(app),
        Action::Submit => match goto::target(app, &line.answer(app)) {
            Ok(Target::Here(place)) => {
                app.mode = Mode::Walk;
                goto::go(app, &place);
                return Effect::None;
            }
            Ok(Target::Other(run, address)) => {
                app.mode = Mode::Walk;
                return Effect::Open(run, address);
            }
            Err(text) => app.say(text, true),
        },
        _ => {}
    }
    app.mode = Mode::Goto(line);
    Effect::None
}

fn walk(app: &mut App, action: &Action) -> Effect {
    match *action {
        Action::NextStep => step(app, 1),
        Action::PreviousStep => step(app, -1),
        Action::NextLayer => layer(app, 1),
        Action::PreviousLayer => layer(app, -1),
        Action::NextSlice => slice(app, 1),
        Action::PreviousSlice => slice(app, -1),
        Action::FirstStep => app.go(app.walk().at(0)),
        Action::LastStep => app.go(app.walk().at(usize::MAX)),
        Action::NextPass => pass(app, app.place.pass.checked_add(1)),
        Action::PreviousPass => pass(app, app.place.pass.checked_sub(1)),
        Action::NextSequence => return other_sequence(app, 1),
        Action::PreviousSequence => return other_sequence(app, -1),
        Action::NextToken => {
            if app.expects_pass && app.status != Status::Idle {
                app.say("the next token is being computed already", false);
                return Effect::None;
            }
            return Effect::Advance;
        }
        Action::Up => by_focus(app, -1, 0),
        Action::Down => by_focus(app, 1, 0),
        Action::Left => by_focus(app, 0, -1),
        Action::Right => by_focus(app, 0, 1),
        Action::PageUp => page(app, -1, 0),
        Action::PageDown => page(app, 1, 0),
        Action::PageLeft => page(app, 0, -1),
        Action::PageRight => page(app, 0, 1),
        Action::Home => edge(app, isize::MIN),
        Action::End => edge(app, isize::MAX),
        Action::NextFocus => turn_focus(app, 1),
        Action::PreviousFocus => turn_focus(app, -1),
        Action::Notes => {
            app.focus = if app.focus == Focus::Notes { Focus::Tensor } else { Focus::Notes };
        }
        Action::Explain => explaining::enter(app),
        Action::Back => {
            if !explaining::back(app) {
                step(app, -1);
            }
        }
        Action::Compare => comparing::toggle(app),
        Action::CycleShow => cycle_view(app),
        Action::CycleAxes => cycle_axes(app),
        Action::CycleScale => {
            app.scale = match app.scale {
                Scale::Slice => Scale::Tensor,
                Scale::Tensor => Scale::Deviations,
                Scale::Deviations => Scale::Largest,
                Scale::Largest => Scale::Slice,
            };
        }
        Action::Goto => app.mode = Mode::Goto(GotoLine::default()),
        Action::Help => app.mode = Mode::Help(0),
        Action::Close if app.is_opening() => return Effect::Abandon,
        Action::Close if app.status != Status::Idle => return Effect::Stop,
        Action::Close => {
            explaining::close(app);
            app.compares = false;
            app.focus = Focus::Tensor;
        }
        Action::Again => app.try_again(),
        Action::Export => return Effect::Export,
        Action::Draw => return Effect::Draw,
        Action::Redraw => return Effect::Redraw,
        Action::Suspend => return Effect::Suspend,
        Action::Quit => return Effect::Quit,
        Action::Click(x, y) => mouse::click(app, x, y),
        Action::Scroll { x, y, down, right } => mouse::scroll(app, x, y, down.into(), right.into()),
        Action::Resize(..)
        | Action::Type(_)
        | Action::Paste(_)
        | Action::Erase
        | Action::Complete
        | Action::Submit => {}
    }
    Effect::None
}

/// To the same place of the sequence `by` on.
fn other_sequence(app: &mut App, by: isize) -> Effect {
    let address = |there| Address { sequence: Some(there), ..Address::default() };
    sequence(app, by).map_or(Effect::None, |there| Effect::Open(app.outline.run, address(there)))
}

fn by_focus(app: &mut App, down: isize, right: isize) {
    match app.focus {
        Focus::Tensor => move_cursor(app, down, right),
        Focus::Derivation => explaining::choose(app, down, right),
        Focus::Notes => app.notes_line = app.notes_line.saturating_add_signed(down),
        Focus::Outline if down != 0 => step(app, down),
        Focus::Outline => layer(app, right),
    }
}

fn page(app: &mut App, down: isize, right: isize) {
    let panels = view::Panels::new(app);
    match app.focus {
        Focus::Derivation => {
            let height = panels.derivation.map_or(1, |area| area.height.max(2) - 1);
            explaining::scroll(app, (down + right) * height as isize);
        }
        Focus::Notes => {
            let height = panels.notes.map_or(1, |area| area.height.max(2) - 1);
            app.notes_line = app.notes_line.saturating_add_signed(down * height as isize);
        }
        Focus::Outline => {
            let height = panels.outline.map_or(1, |area| area.height.max(2) - 1);
            let walk = app.walk();
            let number = walk.number(app.place).saturating_add_signed((down + right) * height as isize);
            app.go(walk.at(number));
        }
        Focus::Tensor => {
            let Some(layout) = app.layout() else { return };
            let (rows, columns) = (layout.rows_seen().max(1), layout.columns_seen().max(1));
            move_cursor(app, down * rows as isize, right * columns as isize);
        }
    }
}

fn edge(app: &mut App, far: isize) {
    match app.focus {
        Focus::Derivation => explaining::scroll(app, far),
        Focus::Notes => app.notes_line = app.notes_line.saturating_add_signed(far),
        Focus::Outline => app.go(app.walk().at(usize::MIN.saturating_add_signed(far))),
        Focus::Tensor if app.layout().is_some_and(|layout| layout.columns == 1) => move_cursor(app, far, 0),
        Focus::Tensor => move_cursor(app, 0, far),
    }
}

fn turn_focus(app: &mut App, by: isize) {
    let derivation = app.derivation.as_ref().map(|_| Focus::Derivation);
    let order = [Some(Focus::Tensor), derivation, Some(Focus::Notes), Some(Focus::Outline)];
    let order: Vec<Focus> = order.into_iter().flatten().collect();
    let now = order.iter().position(|&focus| focus == app.focus).unwrap_or(0);
    app.focus = order[(now + order.len()).saturating_add_signed(by) % order.len()];
}

/// The next view that fits the step.
fn cycle_view(app: &mut App) {
    let (step, now) = (app.place.step, app.view().name());
    let names: Vec<_> = views::fitting(step).map(View::name).collect();
    let at = names.iter().position(|name| *name == now).unwrap_or(0);
    match names.len() {
        1 => app.say(format!("{} has one view only: {now}", step.name()), false),
        count => app.choose_view(names[(at + 1) % count]),
    }
}

fn cycle_axes(app: &mut App) {
    let count = app.place.step.axes().len();
    if app.layout().is_some_and(|layout| layout.columns == 1) || count < 2 {
        app.say("there is one way only to lay these axes out", false);
    } else {
        app.turn = (app.turn + 1) % Cut::choices(count);
    }
}
