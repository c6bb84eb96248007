//! [`update`]: state and action in, state and effect out. It does no I/O: the event loop executes the [`Effect`].

use llama_trace_core::error::printable;
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
use super::erase::Erase;
use super::goto::{self, COMMANDS, Target};
use super::hidden::HIDDEN;
use super::history::Spot;
use super::input::{GotoLine, Mode};
use super::lesson_keys;
use super::marks::{self, Mark};
use super::mouse;
use super::move_keys::{self, layer, move_cursor, pass, sequence, slice, step};
use super::panel_state::Focus;
use super::patch_keys;
use super::report::Report;
use super::screen_option::ScreenOption;
use super::screen_settings;
use super::search_keys;
use super::slice::Cut;
use super::strip_values::StripValues;
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

/// Maximum length of a text that the help screen is searched for, in characters. No line of the help screen is as long,
/// and the rest of a longer pasted text is ignored.
const MOST_WANTED: usize = 80;

/// Handles a key in the help screen, whose first line is `line` and which is filtered by `wanted`.
fn help(app: &mut App, line: usize, mut wanted: String, action: &Action) -> Effect {
    let page = usize::from(app.panels.size.height / 2).max(1);
    let line = match action {
        // No word of the help contains `?`, but any other character can be a part of a word.
        Action::Type('?') => {
            app.input.mode = Mode::Walk;
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
        Action::Erase(erase) => {
            wanted.truncate(erase.start(&wanted));
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
            app.input.mode = Mode::Walk;
            return Effect::None;
        }
        Action::Redraw => return Effect::Redraw,
        Action::Suspend => return Effect::Suspend,
        _ => line,
    };
    app.input.mode = Mode::Help(line, wanted);
    Effect::None
}

/// Handles a key in the go-to line.
fn type_goto(app: &mut App, mut line: GotoLine, action: Action) -> Effect {
    match action {
        Action::Close | Action::Click(..) => {
            app.input.mode = Mode::Walk;
            return Effect::None;
        }
        Action::Type(c) => line.push(c),
        Action::Paste(text) => {
            if let Err(wrong) = line.paste(&text) {
                app.say(wrong, true);
            }
        }
        Action::Erase(Erase::Character) if line.text.is_empty() => {
            app.input.mode = Mode::Walk;
            return Effect::None;
        }
        Action::Erase(erase) => line.erase(erase),
        Action::Up => line.choose(app, -1),
        Action::Down => line.choose(app, 1),
        Action::Complete if edit_keys::widen(app, &mut line) => {}
        Action::Complete => line.complete(app),
        // Enter on an empty line changes nothing.
        Action::Submit if line.text.trim().is_empty() && line.chosen.is_none() => {
            app.input.mode = Mode::Walk;
            return Effect::None;
        }
        Action::Submit if ScreenOption::in_line(&line.setting(app)).is_some() => {
            let text = line.setting(app);
            let Some((option, value)) = ScreenOption::in_line(&text) else { return Effect::None };
            match screen_settings::set(app, option, value) {
                Ok(()) => {
                    app.input.mode = Mode::Walk;
                    return Effect::None;
                }
                Err(wrong) => app.say(wrong, true),
            }
        }
        // A command needs a text after it.
        Action::Submit if line.chosen.is_none() && COMMANDS.contains(&&*format!("{} ", line.text)) => {
            line = GotoLine { text: format!("{} ", line.text), chosen: None };
            if let Err(wrong) = goto::target(app, &line.text) {
                app.say(wrong, true);
            }
        }
        Action::Submit if line.text != line.answer(app) && COMMANDS.contains(&&*line.answer(app)) => {
            line = GotoLine { text: line.answer(app), chosen: None };
        }
        Action::Submit => match goto::target(app, &line.answer(app)) {
            Ok(Target::Here(place)) => {
                app.input.mode = Mode::Walk;
                goto::go(app, &place);
                return Effect::None;
            }
            Ok(Target::Other(run, address)) => {
                app.input.mode = Mode::Walk;
                return Effect::Open(run, address);
            }
            Ok(Target::Begin(other)) => {
                app.input.mode = Mode::Walk;
                return Effect::Begin(other);
            }
            Ok(Target::Patch(clean)) => {
                app.input.mode = Mode::Walk;
                return Effect::Patch(clean);
            }
            Ok(Target::View(place, view)) => {
                app.input.mode = Mode::Walk;
                app.go(place);
                app.choose_view(view);
                return Effect::None;
            }
            Ok(Target::Edits) => {
                app.input.mode = Mode::Walk;
                return Effect::Edits;
            }
            Ok(Target::Learn(chapter)) => {
                app.input.mode = Mode::Walk;
                return chapter_keys::open_named(app, chapter);
            }
            Ok(Target::Weight(place, row)) => {
                app.input.mode = Mode::Walk;
                derivation_keys::open_weight_row(app, place, row);
                return Effect::None;
            }
            Err(text) => app.say(text, true),
        },
        _ => {}
    }
    app.input.mode = Mode::Goto(line);
    Effect::None
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

/// Marks this place with the letter that was pressed.
fn mark(app: &mut App, action: &Action) -> Effect {
    app.input.mode = Mode::Walk;
    match *action {
        Action::Type(letter) if marks::is_letter(letter) => {
            let address = app.place.address(&app.index());
            let was = app.marks.all.get(&letter).cloned();
            let told = match &was {
                Some(was) if !is_here(app, was) => {
                    let note =
                        if was.words.is_empty() { "" } else { "; the old note is now a comment in the file" };
                    format!("{letter} was moved from {} to {address}{note}", was.address)
                }
                _ => format!("{letter} marks {address}; ' and {letter} returns to it"),
            };
            let stays = was.filter(|was| is_here(app, was));
            app.marks.set(letter, stays.unwrap_or(Mark { address, words: String::new() }));
            app.say(told, false);
            Effect::SaveMarks
        }
        Action::Type(_) => {
            app.say("a mark is a letter or a digit", true);
            Effect::None
        }
        _ => Effect::None,
    }
}

/// Returns whether `mark` is at the cell under the cursor.
fn is_here(app: &App, mark: &Mark) -> bool {
    let Ok(Target::Here(spot)) = goto::target(app, &mark.address) else { return false };
    let mut cell = app.place.step.axes().iter().copied().zip(app.index());
    spot.place == app.place && cell.all(|axis| spot.index.contains(&axis))
}

/// Returns to the mark with the letter that was pressed.
fn return_to(app: &mut App, action: &Action) -> Effect {
    app.input.mode = Mode::Walk;
    let letter = match *action {
        Action::Type(letter) => letter,
        _ => return Effect::None,
    };
    let Some(mark) = app.marks.all.get(&letter).cloned() else {
        app.say(format!("there is no mark {letter}"), true);
        return Effect::None;
    };
    // Parts that the mark leaves out are taken from the current place.
    match goto::target(app, &mark.address) {
        Ok(Target::Here(place)) => goto::go(app, &place),
        Ok(Target::Other(run, address)) => return Effect::Open(run, address),
        Ok(Target::Begin(other)) => return Effect::Begin(other),
        Ok(Target::Patch(clean)) => return Effect::Patch(clean),
        Ok(Target::Edits) => return Effect::Edits,
        Ok(Target::Learn(chapter)) => return chapter_keys::open_named(app, chapter),
        Ok(Target::Weight(place, row)) => derivation_keys::open_weight_row(app, place, row),
        Ok(Target::View(place, view)) => {
            app.go(place);
            app.choose_view(view);
        }
        Err(wrong) => {
            app.say(wrong, true);
            return Effect::None;
        }
    }
    if !mark.words.is_empty() {
        app.say(printable(&mark.words), false);
    }
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

/// Moves in the panel with the focus.
fn by_focus(app: &mut App, down: isize, right: isize) {
    match app.panels.focus {
        Focus::Tensor => move_cursor(app, down, right),
        Focus::Derivation => derivation_keys::choose(app, down, right),
        Focus::Notes => app.notes.line = app.notes.line.saturating_add_signed(down),
        Focus::Outline if down != 0 => step(app, down),
        Focus::Outline => layer(app, right),
    }
}

/// Pages in the panel with the focus.
fn page(app: &mut App, down: isize, right: isize) {
    let panels = Panels::new(app);
    match app.panels.focus {
        Focus::Derivation => {
            let height = panels.derivation.map_or(1, |area| area.height.max(2) - 1);
            derivation_keys::scroll(app, (down + right) * height as isize);
        }
        Focus::Notes => {
            let height = panels.notes.map_or(1, |area| area.height.max(2) - 1);
            app.notes.line = app.notes.line.saturating_add_signed(down * height as isize);
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

/// Goes to an edge of the panel with the focus. If `far` is the smallest number, this is the start; if `far` is the
/// largest number, the end.
fn edge(app: &mut App, far: isize) {
    match app.panels.focus {
        Focus::Derivation => derivation_keys::scroll(app, far),
        Focus::Notes => app.notes.line = app.notes.line.saturating_add_signed(far),
        Focus::Outline => app.go(app.walk().at(usize::MIN.saturating_add_signed(far))),
        Focus::Tensor if app.layout().is_some_and(|layout| layout.columns == 1) => move_cursor(app, far, 0),
        Focus::Tensor => move_cursor(app, 0, far),
    }
}

/// Moves the focus by `by` panels.
fn turn_focus(app: &mut App, by: isize) {
    let derivation = app.derivation.as_ref().map(|_| Focus::Derivation);
    let order = [Some(Focus::Tensor), derivation, Some(Focus::Notes), Some(Focus::Outline)];
    let order: Vec<Focus> = order.into_iter().flatten().collect();
    let now = order.iter().position(|&focus| focus == app.panels.focus).unwrap_or(0);
    app.panels.focus = order[(now + order.len()).saturating_add_signed(by) % order.len()];
}

/// Chooses the next kind of values on the token strip.
fn cycle_strip(app: &mut App) {
    app.strip = app.strip.next();
    match app.strip {
        StripValues::Attention if app.place.layer.is_none() => {
            app.say("at stages in a layer, the token strip shows the attention of the current head", false);
        }
        StripValues::Nothing => app.say("the token strip shows only the tokens", false),
        carries => {
            let name = carries.name();
            app.say(format!("the token strip shows {name}; each mark belongs to the token before it"), false);
        }
    }
}

/// Chooses the next layout of the axes.
fn cycle_axes(app: &mut App) {
    let count = app.place.step.axes().len();
    if app.layout().is_some_and(|layout| layout.columns == 1) || count < 2 {
        app.say("these axes have only one layout", false);
    } else {
        app.display.turn = (app.display.turn + 1) % Cut::choices(count);
    }
}
