//! Keys of a lesson: Space and Backspace walk through its scenes; Enter, digits and typed text answer its questions.

use llama_trace_core::lesson::{Given, Kind, Lesson, Verdict};
use llama_trace_core::trace::{Address, Run};

use super::action::Action;
use super::app::App;
use super::comparison_keys;
use super::effect::Effect;
use super::erase::Erase;
use super::input::Mode;
use super::lesson_state::{Answered, Arrival, Before, LessonState, OpenLesson, how};
use super::panel_state::{Focus, PanelState};
use super::place::Place;
use super::user_event::{KeyCode, KeyEvent, KeyModifiers};
use super::view::{self, Panels};

/// Maximum number of characters of a typed answer.
const LONGEST: usize = 100;

/// The reply to a wrong answer without a hint.
const NO_HINT: &str = "Not this one. Try again, or press x to see the answer.";

/// The keys of a presentation, for a message.
const PRESENTED: &str = "Space: next · Backspace: back · x: show the answer · ↑ ↓: scroll · q twice: quit";

/// The action of a key in a lesson; none if the key has its usual meaning.
pub(super) fn of_key(app: &App, event: KeyEvent) -> Option<Action> {
    let lesson = app.lesson.as_ref()?;
    if event.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) {
        return None;
    }
    let asked = lesson.asked().map(|question| question.kind);
    match event.code {
        KeyCode::Char(' ') => Some(Action::NextScene),
        KeyCode::Backspace => Some(Action::PreviousScene),
        KeyCode::PageDown | KeyCode::Right | KeyCode::Char('n') if lesson.presents => Some(Action::NextScene),
        KeyCode::PageUp | KeyCode::Left | KeyCode::Char('p') if lesson.presents => {
            Some(Action::PreviousScene)
        }
        // A digit belongs to the question even after its answer, so that it never changes the view by accident.
        KeyCode::Char(c @ '0'..='9') if matches!(asked, Some(Kind::Choice | Kind::Number | Kind::Shape)) => {
            Some(Action::AnswerDigit(c))
        }
        _ => None,
    }
}

/// Opens a lesson beside the shown run. A lesson that was left before continues where it was left.
pub(super) fn open(app: &mut App, lesson: Lesson) -> Effect {
    if app.lesson.as_ref().is_some_and(|open| open.lesson.slug == lesson.slug) {
        return Effect::None;
    }
    let before = match app.lesson.take() {
        Some(open) => open.before,
        None => {
            let address = Address::of(app.place.site(), app.place.step, &app.index());
            let address = Address { run: None, ..address };
            let (run, display, panels) = (app.outline.run, app.display, app.panels);
            Some(Before { run, address, display, panels, strip: app.strip })
        }
    };
    let left = app.left.take_if(|left| left.lesson.slug == lesson.slug);
    let state = match left {
        Some(left) => LessonState { before, finished: false, ..left },
        None => LessonState::new(OpenLesson { lesson, ..OpenLesson::default() }, before),
    };
    begin(app, state)
}

/// Opens the lesson with which the program starts.
pub(super) fn open_first(app: &mut App, open: OpenLesson) -> Effect {
    let resumes = open.resumes;
    let state = LessonState::new(open, None);
    if state.at > 0 && resumes {
        let told = "Backspace goes back, and `--from 1` begins again";
        app.say(format!("the lesson goes on at scene {}; {told}", state.at + 1), false);
    }
    begin(app, state)
}

fn begin(app: &mut App, state: LessonState) -> Effect {
    let at = state.at;
    app.lesson = Some(state);
    go(app, at)
}

/// Opens the first lesson.
pub(super) fn open_tour(app: &mut App) -> Effect {
    let lesson = app.tour.map(|tour| Lesson::parse(tour.slug, tour.text));
    match lesson {
        Some(Ok(lesson)) if app.starts_runs => open(app, lesson),
        _ => {
            app.say("no lesson can be run here: `llama-trace learn` lists the lessons", true);
            Effect::None
        }
    }
}

/// Leaves the lesson, and returns to the place before it.
pub(super) fn leave(app: &mut App) -> Effect {
    let Some(mut lesson) = app.lesson.take() else { return Effect::None };
    app.hidden = None;
    comparison_keys::end(app);
    app.sampler.end();
    app.notes.line = 0;
    let before = lesson.before.take();
    let way = if app.tour.is_some_and(|tour| tour.slug == lesson.lesson.slug) { "/learn" } else { "C" };
    app.say(format!("the lesson is left at scene {}; {way} opens it again", lesson.at + 1), false);
    app.left = Some(lesson);
    let size = app.panels.size;
    let Some(before) = before else {
        app.panels = PanelState::new((size.width, size.height));
        return Effect::None;
    };
    (app.display, app.strip) = (before.display, before.strip);
    app.panels = PanelState { size, ..before.panels };
    Effect::Open(before.run, before.address)
}

/// Begins scene number `at`.
pub(super) fn go(app: &mut App, at: usize) -> Effect {
    let Some(lesson) = &mut app.lesson else { return Effect::None };
    lesson.begin(at);
    let setting = lesson.run_setting();
    app.hide();
    app.derivation = None;
    app.notes.line = 0;
    Effect::Scene(Box::new(setting))
}

/// Handles an action while a lesson is open; none if the action has its usual meaning.
pub(super) fn press(app: &mut App, action: &Action) -> Option<Effect> {
    let lesson = app.lesson.as_mut()?;
    let quits = std::mem::take(&mut lesson.quits);
    let (presents, kind) = (lesson.presents, lesson.open_question().map(|question| question.kind));
    match action {
        Action::NextScene => return Some(next(app)),
        Action::PreviousScene if app.derivation.is_some() => return None,
        Action::PreviousScene => return Some(previous(app)),
        Action::Answers if kind.is_some() => reveal(app),
        Action::AnswerDigit(digit) => match kind {
            _ if presents => app.say(PRESENTED, false),
            Some(Kind::Choice) => {
                let number = digit.to_digit(10).and_then(|digit| usize::try_from(digit).ok());
                give(app, Given::Choice(number.unwrap_or(0)));
            }
            // The typed answer begins with this digit.
            Some(_) => app.input.mode = Mode::Answer(digit.to_string()),
            None => app.say("the question is answered: Space goes on, v lists the views", false),
        },
        Action::Quit if presents && !quits => {
            lesson.quits = true;
            app.say("q again quits the presentation", false);
        }
        Action::Up | Action::Down | Action::Home | Action::End | Action::Scroll { .. } if presents => {
            let down = match action {
                Action::Up => -1,
                Action::Down => 1,
                Action::Home => isize::MIN,
                Action::End => isize::MAX,
                Action::Scroll { down, .. } => isize::from(*down),
                _ => 0,
            };
            app.notes.line = app.notes.line.saturating_add_signed(down);
        }
        Action::Quit | Action::Redraw | Action::Suspend | Action::Notes => return None,
        _ if presents => app.say(PRESENTED, false),
        Action::Explain if app.panels.focus != Focus::Derivation => match kind? {
            Kind::Number | Kind::Shape => app.input.mode = Mode::Answer(String::new()),
            Kind::Choice => app.say(how(Kind::Choice), false),
            kind => give_cursor(app, kind),
        },
        Action::Close
            if app.derivation.is_none() && app.sampler.setting().is_none() && app.awaits_nothing() =>
        {
            return Some(leave(app));
        }
        _ => return None,
    }
    Some(Effect::None)
}

/// Handles an action in the line of a typed answer.
pub(super) fn type_answer(app: &mut App, mut typed: String, action: &Action) -> Effect {
    match action {
        Action::Close | Action::Click(..) => {
            app.input.mode = Mode::Walk;
            return Effect::None;
        }
        Action::Type(c) if typed.chars().count() < LONGEST => typed.push(*c),
        Action::Paste(text) => {
            let room = LONGEST - typed.chars().count();
            typed.extend(text.chars().filter(|c| !c.is_control()).take(room));
        }
        Action::Erase(Erase::Character) if typed.is_empty() => {
            app.input.mode = Mode::Walk;
            return Effect::None;
        }
        Action::Erase(erase) => typed.truncate(erase.start(&typed)),
        Action::Submit if !typed.trim().is_empty() => {
            app.input.mode = Mode::Walk;
            give(app, Given::Text(typed));
            return Effect::None;
        }
        Action::Submit => {
            app.input.mode = Mode::Walk;
            return Effect::None;
        }
        _ => {}
    }
    app.input.mode = Mode::Answer(typed);
    Effect::None
}

/// The next page of the words, the answer of an open question, or the next scene.
fn next(app: &mut App) -> Effect {
    if scrolls_on(app) {
        return Effect::None;
    }
    let Some(lesson) = &mut app.lesson else { return Effect::None };
    if let Some(question) = lesson.open_question().filter(|_| lesson.arrival == Arrival::There) {
        let kind = question.kind;
        lesson.nudges += 1;
        if lesson.nudges > 1 || lesson.presents {
            reveal(app);
        } else {
            let text = format!("{} Space shows the answer.", how(kind));
            lesson.reply = Some(text);
            show_end(app);
        }
        return Effect::None;
    }
    let at = lesson.at + 1;
    if at < lesson.lesson.scenes.len() {
        return go(app, at);
    }
    (lesson.finished, lesson.changed) = (true, true);
    let right = lesson.answers.iter().filter(|(answer, _)| *answer == Answered::Right).count();
    let asked = lesson.lesson.scenes.iter().filter(|scene| scene.question.is_some()).count();
    let leaves = if lesson.presents { "q quits" } else { "Esc leaves the lesson" };
    let told = if asked > 0 { format!("; {right} of {asked} questions answered") } else { String::new() };
    app.say(format!("this was the last scene{told}; {leaves}"), false);
    Effect::None
}

/// The scene again, if the user has left its place; otherwise the scene before.
fn previous(app: &mut App) -> Effect {
    let Some(lesson) = &app.lesson else { return Effect::None };
    let away = lesson.place.is_some_and(|place| place != app.place);
    match (away, lesson.at.checked_sub(1)) {
        (true, _) => go(app, lesson.at),
        (false, Some(at)) => go(app, at),
        (false, None) => {
            app.say("this is the first scene", false);
            Effect::None
        }
    }
}

/// Shows the answer of the open question.
fn reveal(app: &mut App) {
    let Some(lesson) = &mut app.lesson else { return };
    lesson.settle(Answered::Shown);
    lesson.reply = None;
    app.hide();
    show_end(app);
}

/// Gives the place under the cursor as the answer, if it is on the screen that the question is about. In a decode pass,
/// the cursor may be in a row of an earlier pass.
fn give_cursor(app: &mut App, kind: Kind) {
    let (step, layer) = (app.place.step, app.place.layer);
    let scene = app.lesson.as_ref().and_then(|lesson| lesson.place).unwrap_or(app.place);
    let (same_pass, same_layer) = (scene.pass == app.place.pass, scene.layer == layer);
    let is_there = match kind {
        Kind::Cell | Kind::Key => same_pass && same_layer && scene.step == step,
        Kind::Head => same_pass && same_layer,
        Kind::Token | Kind::Layer => same_pass,
        Kind::Stage | Kind::Number | Kind::Shape | Kind::Choice => true,
    };
    if !is_there {
        // The lesson has a run of its own, so the run's number says nothing.
        let path = |place: Place| Place { run: Run::ITSELF, ..place }.path();
        let (here, there) = (path(app.place), path(scene));
        let reply = format!("This is `{here}`. The question is about `{there}`: Backspace goes back there.");
        if let Some(lesson) = &mut app.lesson {
            lesson.reply = Some(reply);
        }
        show_end(app);
        return;
    }
    let index = step.axes().iter().map(|axis| axis.index()).zip(app.index()).collect();
    give(app, Given::Place { step, layer, index });
}

fn give(app: &mut App, given: Given) {
    if let Some(lesson) = app.lesson.as_mut().filter(|lesson| lesson.open_question().is_some()) {
        lesson.given = Some(given);
    }
}

/// Takes in the judgement of an answer.
pub(super) fn take_verdict(app: &mut App, verdict: &Verdict) {
    let Some(lesson) = &mut app.lesson else { return };
    let told = match verdict {
        Verdict::Right => "right".to_owned(),
        Verdict::Wrong(hint) => format!("✗ {}", hint.as_deref().unwrap_or(NO_HINT)),
        Verdict::Unclear(expected) => expected.clone(),
    };
    match verdict {
        Verdict::Right => lesson.settle(Answered::Right),
        Verdict::Wrong(_) => {
            if let Some((_, tries)) = lesson.answers.get_mut(lesson.at) {
                *tries += 1;
            }
            lesson.changed = true;
        }
        Verdict::Unclear(_) => {}
    }
    lesson.reply = Some(told.clone());
    app.hide();
    if Panels::new(app).notes.is_none() {
        app.say(told, false);
    }
    show_end(app);
}

/// Scrolls the words a page down; false if their end is on the screen.
fn scrolls_on(app: &mut App) -> bool {
    let Some(area) = Panels::new(app).notes else { return false };
    let (height, lines) = (usize::from(area.height), view::notes::lines(app, area.width).len());
    let more = app.notes.line + height < lines;
    if more {
        app.notes.line = (app.notes.line + height.saturating_sub(1)).min(lines - height);
    }
    more
}

/// Scrolls to the end of the words, but not past the beginning of the reply.
fn show_end(app: &mut App) {
    let Some(area) = Panels::new(app).notes else { return };
    let lines = view::notes::lines(app, area.width).len();
    let last = lines.saturating_sub(usize::from(area.height));
    let first = view::lesson::reply_line(app, area.width);
    app.notes.line = app.notes.line.max(last.min(first));
}
