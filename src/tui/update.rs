//! State and action in, state and effect out. No I/O: what must be done outside is the [`Effect`].

use llama_trace_core::trace::{Address, Fork, Run, Status};

use super::action::Action;
use super::app::{App, Focus, GotoLine, Mode, Scale};
use super::branching;
use super::carries::Carries;
use super::comparing;
use super::explaining;
use super::filtering;
use super::goto::{self, Target};
use super::history::Spot;
use super::judging;
use super::marks::{self, Mark};
use super::mouse;
use super::moving::{layer, move_cursor, pass, sequence, slice, step};
use super::play::Play;
use super::playing;
use super::runs::Other;
use super::seeking;
use super::slice::Cut;
use super::teaching;
use super::text;
use super::travel;
use super::view::Panels;
use super::view::kind::View;
use super::view::sampler::Sampler;
use super::view::views;

/// What the event loop does after an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing but drawing.
    None,
    /// Asks the source for one more pass.
    Advance,
    /// Begins a branch, and shows it.
    Branch(Fork),
    /// Lists the branches.
    Branches,
    /// Begins another run, and shows it.
    Begin(Other),
    /// Goes to an address in another sequence, or in another run of the program.
    Open(Run, Address),
    /// Writes the current stage to a file.
    Export,
    /// Hands a text to the clipboard.
    Copy(String),
    /// Writes the marks to their file.
    Marked,
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
    if action == Action::Leave {
        return Effect::Quit;
    }
    if playing::ends(app, &action) {
        return Effect::None;
    }
    let was = travel::here(app);
    app.message = None;
    // Whoever goes elsewhere does not wait for what was looked for.
    app.seek = None;
    let done = action.clone();
    let effect = match &app.mode {
        Mode::Walk => walk(app, &action),
        Mode::Help(line, wanted) => {
            let wanted = wanted.clone();
            help(app, *line, wanted, &action)
        }
        Mode::Chapters(at) => chapters(app, *at, &action),
        Mode::Mark => mark(app, &action),
        Mode::Return => return_to(app, &action),
        Mode::Branches(list) => {
            let list = list.clone();
            match action {
                Action::Redraw => Effect::Redraw,
                Action::Suspend => Effect::Suspend,
                action => open(branching::choose(app, list, &action)),
            }
        }
        Mode::Goto(line) => {
            let line = line.clone();
            type_goto(app, line, action)
        }
    };
    travel::keep(app, was, done);
    give_up(app, &was, &effect);
    app.settle();
    effect
}

/// Whoever went elsewhere, or stopped the passes, is not taken to one that was asked for at the start.
fn give_up(app: &mut App, was: &Spot, effect: &Effect) {
    use Effect::{Advance, Begin, Branch, Open, Stop};
    let goes = matches!(effect, Advance | Branch(_) | Open(..) | Begin(_) | Stop);
    if !goes && travel::here(app) == *was {
        return;
    }
    let Some(at) = app.opens_at.take() else { return };
    if app.message.is_none() {
        app.say(format!("you are not taken to {at} any more; /{at} goes there once its pass was run"), false);
    }
}

impl App {
    /// Goes on with what plays, and ends it where there is nowhere to go.
    pub fn play_on(&mut self) {
        let Some(play) = self.play.take() else { return };
        let was = travel::here(self);
        update(self, play.action.clone());
        if travel::here(self) != was {
            self.message = None;
            self.play = Some(Play { since: None, ..play });
        }
    }
}

/// Characters of a paste that are looked for in the help: more than a line of it has.
const MOST_WANTED: usize = 80;

fn help(app: &mut App, line: usize, mut wanted: String, action: &Action) -> Effect {
    let page = usize::from(app.size.height / 2).max(1);
    let line = match action {
        // No word has a `?`; every other character may be a part of one.
        Action::Type('?') => {
            app.mode = Mode::Walk;
            return Effect::None;
        }
        Action::Type(c) => {
            wanted.push(*c);
            0
        }
        Action::Paste(text) => {
            wanted.extend(text.chars().filter(|c| !c.is_control()).take(MOST_WANTED));
            0
        }
        Action::Erase => {
            wanted.pop();
            0
        }
        Action::Down | Action::NextStep => line + 1,
        Action::Up | Action::PreviousStep => line.saturating_sub(1),
        Action::PageDown => line + page,
        Action::PageUp => line.saturating_sub(page),
        Action::Home | Action::FirstStep => 0,
        Action::End | Action::LastStep => usize::MAX,
        Action::Scroll { down, .. } => line.saturating_add_signed(isize::from(*down)),
        Action::Close | Action::Help | Action::Explain | Action::Click(..) => {
            app.mode = Mode::Walk;
            return Effect::None;
        }
        Action::Redraw => return Effect::Redraw,
        Action::Suspend => return Effect::Suspend,
        _ => line,
    };
    app.mode = Mode::Help(line, wanted);
    Effect::None
}

fn type_goto(app: &mut App, mut line: GotoLine, action: Action) -> Effect {
    match action {
        Action::Close | Action::Click(..) => {
            app.mode = Mode::Walk;
            return Effect::None;
        }
        Action::Type(c) => line.push(c),
        Action::Paste(text) => {
            if let Err(wrong) = line.paste(&text) {
                app.say(wrong, true);
            }
        }
        Action::Erase if line.text.is_empty() => {
            app.mode = Mode::Walk;
            return Effect::None;
        }
        Action::Erase => line.pop(),
        Action::Up => line.choose(app, -1),
        Action::Down => line.choose(app, 1),
        Action::Complete => line.complete(app),
        // Nothing was typed, so all stays as it is.
        Action::Submit if line.text.trim().is_empty() && line.chosen.is_none() => {
            app.mode = Mode::Walk;
            return Effect::None;
        }
        Action::Submit if goto::comparison_in(&line.text).is_some() => {
            let text = goto::comparison_in(&line.text).unwrap_or_default().to_owned();
            match comparing::with(app, &text) {
                Ok(()) => {
                    app.mode = Mode::Walk;
                    return Effect::None;
                }
                Err(wrong) => app.say(wrong, true),
            }
        }
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
            Ok(Target::Begin(other)) => {
                app.mode = Mode::Walk;
                return Effect::Begin(other);
            }
            Ok(Target::Weight(place, row)) => {
                app.mode = Mode::Walk;
                explaining::row(app, place, row);
                return Effect::None;
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
            if (app.expects_pass || app.opens_at.is_some()) && app.status != Status::Idle {
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
        Action::Branch => return branch(app, false),
        Action::Branches => return Effect::Branches,
        Action::Explain if app.focus == Focus::Tensor && app.view().name() == Sampler.name() => {
            return branch(app, true);
        }
        Action::Explain => explaining::enter(app),
        Action::Back => {
            if !explaining::back(app) {
                step(app, -1);
            }
        }
        Action::Compare => comparing::toggle(app),
        Action::Subtract => comparing::subtract(app),
        Action::NextDifference => judging::next(app),
        // What is changed must be seen to change.
        Action::CycleShow | Action::ChooseShow(_) | Action::CycleAxes | Action::CycleScale
            if Panels::new(app).middle.is_none() =>
        {
            let what = if app.focus == Focus::Derivation { "where from" } else { "this panel" };
            app.say(format!("{what} covers the tensor, which this key is for: Tab or Esc shows it"), false);
        }
        Action::CycleShow => cycle_view(app),
        Action::ChooseShow(number) => choose_view(app, number),
        Action::CycleAxes => cycle_axes(app),
        Action::CycleScale => {
            app.scale = match app.scale {
                // Where all is shown, what is usual in it is the same.
                Scale::Slice if app.part().held.is_some() => Scale::Tensor,
                Scale::Slice => Scale::Deviations,
                Scale::Tensor => Scale::Deviations,
                Scale::Deviations => Scale::Largest,
                Scale::Largest => Scale::Slice,
            };
        }
        Action::CycleStrip => cycle_strip(app),
        Action::Goto => app.mode = Mode::Goto(GotoLine::default()),
        Action::Help => app.mode = Mode::Help(0, String::new()),
        Action::Earlier => return open(travel::earlier(app)),
        Action::Later => return open(travel::later(app)),
        Action::LargestInRow => seeking::row(app),
        Action::LargestOfAll => seeking::tensor(app),
        Action::Mark => {
            app.say("a letter marks this place; Esc leaves it", false);
            app.mode = Mode::Mark;
        }
        Action::Return if app.marks.all.is_empty() => {
            app.say("no place is marked yet: m and a letter marks one", false);
        }
        Action::Return => {
            app.say(format!("which one? {}", app.marks.list()), false);
            app.mode = Mode::Return;
        }
        Action::Zoom => app.zoomed = !app.zoomed,
        Action::FoldOutline => app.folded.0 = !app.folded.0,
        Action::FoldNotes => {
            let before = Panels::new(app).notes;
            app.folded.1 = !app.folded.1;
            if before.is_none() && Panels::new(app).notes.is_none() {
                app.say("the notes have no room beside the tensor: i shows them in its place", false);
            }
        }
        Action::Filter if filtering::toggle(app) => seeking::like(app, 0),
        Action::Filter => {}
        Action::NextLike if playing::faster(app, 1) => {}
        Action::PreviousLike if playing::faster(app, -1) => {}
        Action::NextLike => seeking::like(app, 1),
        Action::PreviousLike => seeking::like(app, -1),
        Action::Play => playing::toggle(app),
        Action::Answers => teaching::answers(app),
        Action::Chapters if app.chapters.is_empty() => app.say("this program has no chapters", false),
        Action::Chapters => app.mode = Mode::Chapters(teaching::about_here(app)),
        Action::Copy => return copy(app),
        Action::Close if app.is_opening() => return Effect::Abandon,
        Action::Close if app.status != Status::Idle => return Effect::Stop,
        Action::Close if app.view().name() == Sampler.name() && app.trying.setting.is_some() => {
            app.trying.setting = None;
        }
        Action::Close => {
            // What was compared comes back where a derivation stood in its place.
            if !explaining::close(app) {
                (app.compares, app.subtracts) = (None, false);
            }
            app.focus = Focus::Tensor;
        }
        Action::Again => {
            if !app.try_again() {
                app.say("nothing was stopped: r computes again what was", false);
            }
        }
        Action::Unbound(ref key) => app.say(format!("{key} does nothing here; ? lists the keys"), false),
        Action::Export => return Effect::Export,
        Action::Draw => return Effect::Draw,
        Action::Redraw => return Effect::Redraw,
        Action::Suspend => return Effect::Suspend,
        Action::Quit | Action::Leave => return Effect::Quit,
        Action::Click(x, y) => mouse::click(app, x, y),
        Action::Drag(x, y) => mouse::drag(app, x, y),
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

/// Goes on from here with another token, if there is one to go on with.
fn branch(app: &mut App, by_hand: bool) -> Effect {
    branching::branch(app, by_hand).map_or(Effect::None, Effect::Branch)
}

/// Opens what is in another run or sequence.
fn open(other: Option<(Run, Address)>) -> Effect {
    other.map_or(Effect::None, |(run, address)| Effect::Open(run, address))
}

/// Chooses a chapter, and goes where it can be looked at.
fn chapters(app: &mut App, at: usize, action: &Action) -> Effect {
    let last = app.chapters.len().saturating_sub(1);
    let page = usize::from(app.size.height / 2).max(1);
    let at = match action {
        Action::Down | Action::NextStep => at + 1,
        Action::Up | Action::PreviousStep => at.saturating_sub(1),
        Action::PageDown => at + page,
        Action::PageUp => at.saturating_sub(page),
        Action::Home | Action::FirstStep => 0,
        Action::End | Action::LastStep => last,
        Action::Scroll { down, .. } => at.saturating_add_signed(isize::from(down.signum())),
        Action::Explain => {
            app.mode = Mode::Walk;
            if let Some(chapter) = app.chapters.0.get(at.min(last)) {
                teaching::open(app, chapter);
            }
            return Effect::None;
        }
        Action::Close | Action::Chapters | Action::Quit | Action::Click(..) => {
            app.mode = Mode::Walk;
            return Effect::None;
        }
        Action::Redraw => return Effect::Redraw,
        Action::Suspend => return Effect::Suspend,
        _ => at,
    };
    app.mode = Mode::Chapters(at.min(last));
    Effect::None
}

/// The letter that marks this place.
fn mark(app: &mut App, action: &Action) -> Effect {
    app.mode = Mode::Walk;
    match *action {
        Action::Type(letter) if marks::is_letter(letter) => {
            let address = app.place.address(&app.index());
            let was = app.marks.all.get(&letter).cloned();
            let told = match &was {
                Some(was) if !is_here(app, was) => {
                    let note =
                        if was.words.is_empty() { "" } else { "; its note is a comment in the file now" };
                    format!("{letter} was moved from {} to {address}{note}", was.address)
                }
                _ => format!("{letter} is {address}; ' and {letter} returns to it"),
            };
            let stays = was.filter(|was| is_here(app, was));
            app.marks.set(letter, stays.unwrap_or(Mark { address, words: String::new() }));
            app.say(told, false);
            Effect::Marked
        }
        Action::Type(_) => {
            app.say("a mark is a letter or a digit", true);
            Effect::None
        }
        _ => Effect::None,
    }
}

/// Whether `mark` names the cell under the cursor.
fn is_here(app: &App, mark: &Mark) -> bool {
    let Ok(Target::Here(spot)) = goto::target(app, &mark.address) else { return false };
    let mut cell = app.place.step.axes().iter().copied().zip(app.index());
    spot.place == app.place && cell.all(|axis| spot.index.contains(&axis))
}

/// The letter of the mark to return to.
fn return_to(app: &mut App, action: &Action) -> Effect {
    app.mode = Mode::Walk;
    let letter = match *action {
        Action::Type(letter) => letter,
        _ => return Effect::None,
    };
    let Some(mark) = app.marks.all.get(&letter).cloned() else {
        app.say(format!("there is no mark {letter}"), true);
        return Effect::None;
    };
    // What a mark leaves out is the first, wherever somebody stands.
    match goto::target(app, &mark.address) {
        Ok(Target::Here(place)) => goto::go(app, &place),
        Ok(Target::Other(run, address)) => return Effect::Open(run, address),
        Ok(Target::Begin(other)) => return Effect::Begin(other),
        Ok(Target::Weight(place, row)) => explaining::row(app, place, row),
        Err(wrong) => {
            app.say(wrong, true);
            return Effect::None;
        }
    }
    if !mark.words.is_empty() {
        app.say(mark.words, false);
    }
    Effect::None
}

/// The address and the value under the cursor.
fn copy(app: &App) -> Effect {
    let index = app.index();
    let address = app.place.address(&index);
    let value = app.tensor().and_then(|tensor| tensor.get(&index));
    Effect::Copy(value.map_or(address.clone(), |value| format!("{address} = {}", text::full(value))))
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
    let panels = Panels::new(app);
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
    let (step, now, next) = (app.place.step, app.view().name(), app.next_view().name());
    match next == now {
        true => app.say(format!("{} has one view only: {now}", step.name()), false),
        false => app.choose_view(next),
    }
}

/// The view of the step with this number.
fn choose_view(app: &mut App, number: u8) {
    let step = app.place.step;
    let names: Vec<_> = views::fitting(step).map(View::name).collect();
    match names.get(usize::from(number).wrapping_sub(1)) {
        Some(name) => app.choose_view(name),
        None => {
            let names: Vec<_> =
                (1..).zip(&names).map(|(number, name): (usize, _)| format!("{number} {name}")).collect();
            app.say(format!("the views of {}: {}", step.name(), names.join(", ")), false);
        }
    }
}

fn cycle_strip(app: &mut App) {
    app.carries = app.carries.next();
    match app.carries {
        Carries::Attention if app.place.layer.is_none() => {
            app.say(
                "the token strip carries the attention of the head in view, once a layer is in view",
                false,
            );
        }
        Carries::Nothing => app.say("the token strip carries the tokens alone", false),
        carries => {
            let name = carries.name();
            app.say(format!("the token strip carries {name}; the mark behind a token is its own"), false);
        }
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
