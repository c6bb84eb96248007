//! [`update`]: state and action in, state and effect out. It does no I/O: the event loop executes the [`Effect`].

use llama_trace_core::trace::{Address, Run, Status};

use super::action::Action;
use super::app::App;
use super::branch_keys;
use super::chapter_keys;
use super::chapter_list;
use super::comparison_keys;
use super::derivation_keys;
use super::display::Scale;
use super::edit_keys;
pub use super::effect::Effect;
use super::goto;
use super::goto_keys::type_goto;
use super::help_keys::help;
use super::hidden::HIDDEN;
use super::history::Spot;
use super::input::{GotoLine, Mode};
use super::lesson_keys;
use super::mark_keys::{mark, return_to};
use super::mouse;
use super::move_keys::{self, layer, pass, sequence, slice, step};
use super::panel_keys::{by_focus, cycle_axes, cycle_strip, edge, page, turn_focus};
use super::panel_state::Focus;
use super::patch_keys;
use super::report::Report;
use super::search_keys;
use super::sync::RUNNING;
use super::verdict_keys;
use super::view::Panels;
use super::view::kind::View;
use super::view::patch::Patch;
use super::view::sampler::Sampler;
use super::view_keys;

/// Changes `app` in response to `action`, and returns what the event loop must do. No other function changes the state
/// in response to input.
pub fn update(app: &mut App, action: Action) -> Effect {
    match action {
        Action::Resize(columns, rows) => {
            (app.panels.size.width, app.panels.size.height) = (columns, rows);
            app.settle();
            return Effect::None;
        }
        Action::Report(report) => {
            take_report(app, report);
            return Effect::None;
        }
        Action::PlayOn => {
            play_on(app);
            return Effect::None;
        }
        Action::Leave => return Effect::Quit,
        _ => {}
    }
    if ends_playback(app, &action) {
        return Effect::None;
    }
    let was = move_keys::here(app);
    app.input.message = None;
    // Another action cancels a search.
    app.search.cancel();
    let done = action.clone();
    let effect = match &app.input.mode {
        Mode::Walk => match lesson_keys::press(app, &action) {
            Some(effect) => effect,
            None => walk(app, &action),
        },
        Mode::Answer(typed) => {
            let typed = typed.clone();
            match action {
                Action::Redraw => Effect::Redraw,
                Action::Suspend => Effect::Suspend,
                action => lesson_keys::type_answer(app, typed, &action),
            }
        }
        Mode::Help(line, wanted) => {
            let wanted = wanted.clone();
            help(app, *line, wanted, &action)
        }
        Mode::Chapters(at) => chapters(app, *at, &action),
        Mode::Views(before) => {
            let before = *before;
            let passed_on = view_keys::press(app, before, &action);
            passed_on.map_or(Effect::None, |action| walk(app, &action))
        }
        Mode::Mark => mark(app, &action),
        Mode::Return => return_to(app, &action),
        Mode::Branches(list) => {
            let list = list.clone();
            match action {
                Action::Redraw => Effect::Redraw,
                Action::Suspend => Effect::Suspend,
                action => open(branch_keys::choose(app, list, &action)),
            }
        }
        Mode::Edits(list) => {
            let list = list.clone();
            match action {
                Action::Redraw => Effect::Redraw,
                Action::Suspend => Effect::Suspend,
                action => edit_keys::choose(app, list, &action).map_or(Effect::None, Effect::Begin),
            }
        }
        Mode::Goto(line) => {
            let line = line.clone();
            type_goto(app, line, action)
        }
    };
    move_keys::record(app, was, done);
    cancel_opening(app, &was, &effect);
    app.settle();
    effect
}

/// Takes in the result of an effect.
fn take_report(app: &mut App, report: Report) {
    match report {
        Report::Message { text, failure } => app.say(text, failure),
        Report::PassRequested => {
            app.progress.awaits_pass = true;
            app.say(RUNNING, false);
        }
        Report::Shown { outline, has_previous, at } => {
            app.look_at(*outline, has_previous);
            match at {
                Some(address) => goto::go_to(app, &address),
                None => app.settle(),
            }
        }
        Report::ComparesPrevious => {
            comparison_keys::with_previous(app);
            app.settle();
        }
        Report::Branched(outline) => {
            app.look_at(*outline, true);
            app.sampler.end();
            app.settle();
        }
        Report::Clean(clean) => patch_keys::open(app, clean),
        Report::Branches(list) => app.input.mode = Mode::Branches(list),
        Report::Edits(list) if list.rows.is_empty() => {
            app.say("no run has an edit yet: E edits the number under the cursor", false);
        }
        Report::Edits(list) => app.input.mode = Mode::Edits(list),
        Report::OpensAt(at) => app.progress.opens_at = Some(at),
        Report::Marks(marks) => app.marks = marks,
        Report::Scene(run) => {
            if let Some(lesson) = &mut app.lesson {
                lesson.run = run;
            }
        }
        Report::NoScene(reason) => app.fail_scene(reason),
    }
}

/// Gives up the place that the command line asked for, once the user has gone to another place or stopped the passes.
fn cancel_opening(app: &mut App, was: &Spot, effect: &Effect) {
    use Effect::{Advance, Begin, Branch, Open, Scene, Stop};
    let leaves = matches!(effect, Advance | Branch(_) | Open(..) | Begin(_) | Scene(_) | Stop);
    if !leaves && move_keys::here(app) == *was {
        return;
    }
    let Some(at) = app.progress.opens_at.take() else { return };
    if app.input.message.is_none() {
        app.say(format!("the jump to {at} was cancelled; /{at} goes there after its pass has run"), false);
    }
}

/// Continues the playback by one step. At the last step, ends it.
fn play_on(app: &mut App) {
    let Some((playing, action)) = app.playback.pause() else { return };
    let was = move_keys::here(app);
    update(app, action);
    if move_keys::here(app) != was {
        app.input.message = None;
        app.playback.resume(playing);
    }
}

/// Ends the playback on any action except a change of its pace. Returns true for a key press: the key then has no other
/// effect.
fn ends_playback(app: &mut App, action: &Action) -> bool {
    use Action::{Click, Drag, NextLike, Play, PreviousLike, Redraw, Scroll, Suspend};
    if !matches!(action, Play | NextLike | PreviousLike) && app.playback.stop() {
        app.say("stopped", false);
        return !matches!(action, Click(..) | Drag(..) | Scroll { .. } | Redraw | Suspend);
    }
    app.playback.remember(action);
    false
}

/// Starts or stops the playback.
fn toggle_playback(app: &mut App) {
    if app.playback.stop() {
        app.say("stopped", false);
    } else {
        app.playback.start();
        say_pace(app);
    }
}

/// Changes the pace of a playback; false if nothing is playing.
fn change_pace(app: &mut App, by: isize) -> bool {
    let changes = app.playback.change_pace(by);
    say_pace(app);
    changes
}

/// Shows what is playing and how fast.
fn say_pace(app: &mut App) {
    if let Some(message) = app.playback.message() {
        app.say(message, false);
    }
}

/// Handles a key outside of popups and prompts.
fn walk(app: &mut App, action: &Action) -> Effect {
    match *action {
        Action::NextStep => move_keys::walk(app, 1),
        Action::PreviousStep => move_keys::walk(app, -1),
        Action::SkipReshapes => {
            app.skips_reshapes = !app.skips_reshapes;
            let message = match app.skips_reshapes {
                true => "n and p skip reshapes and transposes; R again: they stop there too",
                false => "n and p stop at every step, reshapes and transposes included",
            };
            app.say(message, false);
        }
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
            if (app.progress.awaits_pass || app.progress.opens_at.is_some())
                && app.progress.status != Status::Idle
            {
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
            app.panels.focus = if app.panels.focus == Focus::Notes { Focus::Tensor } else { Focus::Notes };
        }
        Action::Branch => return branch(app, false),
        Action::Branches => return Effect::Branches,
        Action::Edit => edit_keys::open(app),
        Action::EditToken => edit_keys::open_token(app),
        Action::Edits => return Effect::Edits,
        Action::Explain if app.panels.focus == Focus::Tensor && app.view().name() == Sampler.name() => {
            return branch(app, true);
        }
        Action::Explain => derivation_keys::enter(app),
        Action::Back => {
            if !derivation_keys::back(app) && !patch_keys::jump_back(app) {
                step(app, -1);
            }
        }
        Action::Compare => comparison_keys::toggle(app),
        Action::Subtract => comparison_keys::subtract(app),
        Action::NextDifference => verdict_keys::next_difference(app),
        // The tensor must be visible, so that the user sees the change.
        Action::Views | Action::ChooseView(_) | Action::CycleAxes | Action::CycleScale
            if Panels::new(app).middle.is_none() =>
        {
            let what =
                if app.panels.focus == Focus::Derivation { "the panel \"where from\"" } else { "this panel" };
            app.say(
                format!("this key acts on the tensor, which {what} covers; Tab or Esc shows the tensor"),
                false,
            );
        }
        Action::Views => view_keys::open(app),
        Action::ChooseView(number) => {
            view_keys::choose(app, number);
        }
        Action::CycleAxes => cycle_axes(app),
        Action::CycleScale if app.view().name() == Patch.name() => app.patch.next_metric(),
        Action::CycleScale => {
            app.display.scale = match app.display.scale {
                // If no axis is held, the slice is the whole tensor.
                Scale::Slice if app.part().held.is_some() => Scale::Tensor,
                Scale::Slice => Scale::Deviations,
                Scale::Tensor => Scale::Deviations,
                Scale::Deviations => Scale::Largest,
                Scale::Largest => Scale::Slice,
            };
        }
        Action::CycleStrip => cycle_strip(app),
        Action::CountDraws if app.view().name() == Sampler.name() => app.sampler.toggle_counts(),
        Action::CountDraws => {
            app.say("u counts draws in the sampler view: go to probs (/probs) and press v", false);
        }
        Action::Goto => app.input.mode = Mode::Goto(GotoLine::default()),
        Action::Help => app.input.mode = Mode::Help(0, String::new()),
        Action::Earlier => return open(move_keys::back(app)),
        Action::Later => return open(move_keys::forward(app)),
        Action::LargestInRow => search_keys::largest_in_row(app),
        Action::LargestOfAll => search_keys::largest_of_all(app),
        Action::Mark => {
            app.say("press a letter to mark this place; Esc cancels", false);
            app.input.mode = Mode::Mark;
        }
        Action::Return if app.marks.all.is_empty() => {
            app.say("no place is marked yet: m and a letter marks one", false);
        }
        Action::Return => {
            app.say(format!("which mark? {}", app.marks.list()), false);
            app.input.mode = Mode::Return;
        }
        Action::Zoom => app.panels.zoomed = !app.panels.zoomed,
        Action::FoldOutline => app.panels.outline_folded = !app.panels.outline_folded,
        Action::FoldNotes => {
            let before = Panels::new(app).notes;
            app.panels.notes_folded = !app.panels.notes_folded;
            if before.is_none() && Panels::new(app).notes.is_none() {
                app.say(
                    "the notes do not fit next to the tensor: i shows them in place of the tensor",
                    false,
                );
            }
        }
        Action::Filter if search_keys::toggle_filter(app) => search_keys::next_match(app, 0),
        Action::Filter => {}
        Action::NextLike if change_pace(app, 1) => {}
        Action::PreviousLike if change_pace(app, -1) => {}
        Action::NextLike => search_keys::next_match(app, 1),
        Action::PreviousLike => search_keys::next_match(app, -1),
        Action::Play => toggle_playback(app),
        Action::Answers => chapter_keys::toggle_answers(app),
        Action::Chapters if app.notes.chapters.is_empty() => app.say("this program has no chapters", false),
        Action::Chapters => app.input.mode = Mode::Chapters(chapter_list::row_here(app)),
        Action::Copy => return copy(app),
        Action::Close if app.is_opening() => return Effect::Abandon,
        Action::Close if app.progress.status != Status::Idle => return Effect::Stop,
        Action::Close if app.view().name() == Sampler.name() && app.sampler.setting().is_some() => {
            app.sampler.end();
        }
        Action::Close => {
            // Closing the derivation uncovers the compared tensor. The next Esc ends the comparison.
            if !derivation_keys::close(app) {
                app.comparison.end();
            }
            app.panels.focus = Focus::Tensor;
        }
        Action::Again => {
            if !app.answers.retry() {
                app.say("nothing was stopped: r computes again after a stop", false);
            }
        }
        Action::Unbound(ref key) => app.say(format!("{key} does nothing here; ? lists the keys"), false),
        Action::AppendScene => return Effect::AppendScene,
        Action::Export if app.hides_here() => app.say(HIDDEN, false),
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
        | Action::Erase(_)
        | Action::Complete
        | Action::Submit
        | Action::PlayOn
        | Action::NextScene
        | Action::PreviousScene
        | Action::AnswerDigit(_)
        | Action::Report(_) => {}
    }
    Effect::None
}

/// Begins a branch here, with another token.
fn branch(app: &mut App, by_hand: bool) -> Effect {
    branch_keys::branch(app, by_hand).map_or(Effect::None, Effect::Branch)
}

/// Opens an address in another run or sequence.
fn open(other: Option<(Run, Address)>) -> Effect {
    other.map_or(Effect::None, |(run, address)| Effect::Open(run, address))
}

/// Handles a key in the list of chapters. Enter goes to the stage of the chosen chapter.
fn chapters(app: &mut App, at: usize, action: &Action) -> Effect {
    let last = chapter_list::listed(app).count().saturating_sub(1);
    let page = usize::from(app.panels.size.height / 2).max(1);
    let at = match action {
        Action::Down | Action::NextStep => at + 1,
        Action::Up | Action::PreviousStep => at.saturating_sub(1),
        Action::PageDown => at + page,
        Action::PageUp => at.saturating_sub(page),
        Action::Home | Action::FirstStep => 0,
        Action::End | Action::LastStep => last,
        Action::Scroll { down, .. } => at.saturating_add_signed(isize::from(down.signum())),
        Action::Explain => {
            app.input.mode = Mode::Walk;
            return chapter_keys::open_row(app, at.min(last));
        }
        Action::Close | Action::Chapters | Action::Quit | Action::Click(..) => {
            app.input.mode = Mode::Walk;
            return Effect::None;
        }
        Action::Redraw => return Effect::Redraw,
        Action::Suspend => return Effect::Suspend,
        _ => at,
    };
    app.input.mode = Mode::Chapters(at.min(last));
    Effect::None
}

/// Copies the address and the value under the cursor.
fn copy(app: &App) -> Effect {
    Effect::Copy(app.address_and_value())
}

/// Goes to the same place in the sequence that is `by` sequences on.
fn other_sequence(app: &mut App, by: isize) -> Effect {
    let address = |there| Address { sequence: Some(there), ..Address::default() };
    sequence(app, by).map_or(Effect::None, |there| Effect::Open(app.outline.run, address(there)))
}
