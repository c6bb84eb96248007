//! Keys of the branches: `b` begins a branch with another token, and other keys choose in the list of branches.

use llama_trace_core::trace::source::all_recorded;
use llama_trace_core::trace::{Address, Axis, Fork, Run};

use super::action::Action;
use super::app::App;
use super::branch_list::BranchList;
use super::comparison::ComparedWith;
use super::input::Mode;
use super::view::kind::View;
use super::view::sampler::Sampler;

/// The branch that would begin here. It has the token under the cursor. In the sampler view without `by_hand`, it has
/// the token that this view samples.
fn fork_here(app: &App, by_hand: bool) -> Result<Fork, String> {
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
        let setting = app.sampler.setting();
        return match by_hand {
            // The user picked this token, so the branch keeps the run's own setting for the tokens after it.
            true => {
                let token = Sampler::token(app).ok_or("choose a line with a token")?;
                fork(token, None)
            }
            false => match app.answers.get(&app.draw_at(setting)) {
                Some(Ok(draw)) => fork(draw.drawn, setting),
                _ => Err("the token to sample is not known yet".into()),
            },
        };
    }
    let index = app.index();
    let Some(vocab) = step.axes().iter().position(|&axis| axis == Axis::Vocab) else {
        return Err(
            "b continues with another token: go to logits, probs or nucleus (/probs) and put the cursor on \
                    it; in their sampler view, b takes the token that the sampler picks"
                .into(),
        );
    };
    let last = app.dims().tokens.saturating_sub(1);
    if step.axes().first() == Some(&Axis::Token) && index[0] != last {
        return Err(format!(
            "the prompt continues after token {}: a branch can begin only after the prompt's last token, {last}",
            index[0]
        ));
    }
    fork(u32::try_from(index[vocab]).unwrap_or_default(), None)
}

/// The branch that begins here. If there is no token for it, shows a message and returns none.
pub(super) fn branch(app: &mut App, by_hand: bool) -> Option<Fork> {
    fork_here(app, by_hand).map_err(|wrong| app.say(wrong, true)).ok()
}

/// Handles a key in the list. Returns where to go: to the chosen branch, which is shown alone or beside the current
/// run.
pub(super) fn choose(app: &mut App, mut list: BranchList, action: &Action) -> Option<(Run, Address)> {
    let last = list.rows.len().saturating_sub(1);
    match action {
        Action::Down | Action::NextStep => list.chosen = (list.chosen + 1).min(last),
        Action::Up | Action::PreviousStep => list.chosen = list.chosen.saturating_sub(1),
        Action::Home => list.chosen = 0,
        Action::End => list.chosen = last,
        Action::Explain | Action::Compare => {
            app.input.mode = Mode::Walk;
            let row = list.rows.get(list.chosen)?;
            let beside = *action == Action::Compare;
            if row.shown {
                if beside {
                    app.say("this run is shown already; choose another one to compare", false);
                }
                return None;
            }
            if beside {
                app.comparison.with = Some(ComparedWith::Previous);
            }
            // Goes to the branching point of the shown branch, or else of the chosen one.
            let here = app.outline.fork.filter(|fork| row.parent.is_none() || fork.of == row.run);
            let pass = here.map(|fork| fork.pass).or(row.parent.map(|(_, pass)| pass));
            let address = Address { sequence: Some(row.sequence.0), pass, ..Address::default() };
            return Some((row.run, address));
        }
        Action::Close | Action::Quit | Action::Branches | Action::Help | Action::Click(..) => {
            app.input.mode = Mode::Walk;
            return None;
        }
        _ => {}
    }
    app.input.mode = Mode::Branches(list);
    None
}
