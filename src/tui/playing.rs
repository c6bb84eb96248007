//! Playing a walk: what was pressed last goes on by itself, as fast as one can look.

use std::time::{Duration, Instant};

use super::action::Action;
use super::app::App;
use super::play::{EVERY, Play};

/// Whether `action` can be played: it leads from place to place and ends somewhere.
fn walks(action: &Action) -> bool {
    use Action::{NextLayer, NextPass, NextSlice, NextStep};
    use Action::{PreviousLayer, PreviousPass, PreviousSlice, PreviousStep};
    let forth = matches!(action, NextStep | NextLayer | NextSlice | NextPass);
    forth || matches!(action, PreviousStep | PreviousLayer | PreviousSlice | PreviousPass)
}

/// Notes what was pressed: what a later play goes on with. Anything but its speed ends a play, and a key does nothing else
/// then; true for such a key.
pub(super) fn ends(app: &mut App, action: &Action) -> bool {
    use Action::{Click, Drag, NextLike, Play, PreviousLike, Redraw, Scroll, Suspend};
    if !matches!(action, Play | NextLike | PreviousLike) && app.play.take().is_some() {
        app.say("stopped", false);
        return !matches!(action, Click(..) | Drag(..) | Scroll { .. } | Redraw | Suspend);
    }
    if walks(action) {
        app.walked = action.clone();
    }
    false
}

/// Begins, or ends.
pub(super) fn toggle(app: &mut App) {
    if app.play.take().is_some() {
        app.say("stopped", false);
        return;
    }
    app.play = Some(Play { action: app.walked.clone(), speed: 1, since: None });
    say(app);
}

/// Faster or slower, where something plays.
pub(super) fn faster(app: &mut App, by: isize) -> bool {
    let Some(play) = &mut app.play else { return false };
    play.speed = play.speed.saturating_add_signed(by).min(EVERY.len() - 1);
    say(app);
    true
}

fn say(app: &mut App) {
    let Some(play) = &app.play else { return };
    let what = match play.action {
        Action::NextLayer | Action::PreviousLayer => "layer by layer",
        Action::NextSlice | Action::PreviousSlice => "head by head",
        Action::NextPass | Action::PreviousPass => "pass by pass",
        _ => "step by step",
    };
    let every = EVERY[play.speed].as_secs_f32();
    app.say(format!("{what}, one in {every} s: + is faster, - slower, any other key stops"), false);
}

impl App {
    /// How long until the walk goes on, where one plays; none while what is shown is on its way.
    pub(super) fn plays_in(&mut self, idle: bool, now: Instant) -> Option<Duration> {
        let waits = self.waits() || !idle;
        let play = self.play.as_mut()?;
        if waits {
            play.since = None;
            return None;
        }
        let since = *play.since.get_or_insert(now);
        Some(EVERY[play.speed].saturating_sub(now.duration_since(since)))
    }
}
