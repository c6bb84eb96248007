//! Going on from a pass with another token, and choosing among the branches.

use llama_trace_core::trace::source::all_recorded;
use llama_trace_core::trace::{Address, Axis, Fork, Run};

use super::action::Action;
use super::app::{App, Mode};
use super::beside::Beside;
use super::courses::Courses;
use super::view::kind::View;
use super::view::sampler::Sampler;

/// What a branch that goes on from here would read: what the sampler view would draw, or the token under the cursor.
fn next_token(app: &App, by_hand: bool) -> Result<Fork, String> {
    if app.outline.recorded {
        return Err(all_recorded().to_string());
    }
    let (pass, step) = (app.place.pass, app.place.step);
    let done = app.outline.passes.get(pass).is_some_and(|pass| pass.sampled.is_some());
    if !done {
        return Err("this pass is not done yet".into());
    }
    let fork = |token, setting| Ok(Fork { of: app.outline.run, pass, token, setting });
    if app.view().name() == Sampler.name() {
        let setting = app.trying.setting;
        return match by_hand {
            // A token that was picked says nothing about how the next ones are drawn.
            true => {
                let token = Sampler::token(app).ok_or("choose a token: no other line is one")?;
                fork(token, None)
            }
            false => match app.answers.told(&app.draw_at(setting)) {
                Some(Ok(draw)) => fork(draw.drawn, setting),
                _ => Err("what would be drawn is not known yet".into()),
            },
        };
    }
    let index = app.index();
    let Some(vocab) = step.axes().iter().position(|&axis| axis == Axis::Vocab) else {
        return Err(
            "b goes on with another token: the one under the cursor of logits, probs or nucleus, or what \
                    their sampler view would draw; /probs goes there"
                .into(),
        );
    };
    let last = app.dims().tokens.saturating_sub(1);
    if step.axes().first() == Some(&Axis::Token) && index[0] != last {
        return Err(format!(
            "after token {} the prompt goes on: a branch begins after the last, {last}",
            index[0]
        ));
    }
    fork(u32::try_from(index[vocab]).unwrap_or_default(), None)
}

/// Where a branch begins that goes on from here with another token; none where there is no such token, which is said.
pub(super) fn branch(app: &mut App, by_hand: bool) -> Option<Fork> {
    next_token(app, by_hand).map_err(|wrong| app.say(wrong, true)).ok()
}

/// Chooses in the list; answers where to go, to the branch that is chosen or to both side by side.
pub(super) fn choose(app: &mut App, mut list: Courses, action: &Action) -> Option<(Run, Address)> {
    let last = list.all.len().saturating_sub(1);
    match action {
        Action::Down | Action::NextStep => list.chosen = (list.chosen + 1).min(last),
        Action::Up | Action::PreviousStep => list.chosen = list.chosen.saturating_sub(1),
        Action::Home => list.chosen = 0,
        Action::End => list.chosen = last,
        Action::Explain | Action::Compare => {
            app.mode = Mode::Walk;
            let course = list.all.get(list.chosen)?;
            let beside = *action == Action::Compare;
            if course.shown {
                if beside {
                    app.say("this one is shown; choose another to stand beside it", false);
                }
                return None;
            }
            if beside {
                app.compares = Some(Beside::Before);
            }
            // To where they part: of the branch that is shown, or of the one that is chosen.
            let here = app.outline.fork.filter(|fork| course.parts.is_none() || fork.of == course.run);
            let pass = here.map(|fork| fork.pass).or(course.parts.map(|(_, pass)| pass));
            let address = Address { sequence: Some(course.sequence.0), pass, ..Address::default() };
            return Some((course.run, address));
        }
        Action::Close | Action::Quit | Action::Branches | Action::Help | Action::Click(..) => {
            app.mode = Mode::Walk;
            return None;
        }
        _ => {}
    }
    app.mode = Mode::Branches(list);
    None
}
