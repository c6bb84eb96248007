//! Playback: a walk that repeats by itself, step by step or layer by layer.

use std::time::Duration;

use llama_trace_core::time::Instant;

use super::action::Action;

/// How long a place is shown, from the slowest pace to the fastest.
const PACES: [Duration; 6] = [
    Duration::from_secs(4),
    Duration::from_secs(2),
    Duration::from_secs(1),
    Duration::from_millis(500),
    Duration::from_millis(250),
    Duration::from_millis(125),
];

/// Index in [`PACES`] of the initial pace.
const FIRST_PACE: usize = 1;

/// State of the playback.
#[derive(Debug)]
pub(super) struct Playback {
    /// The action of the walk key that the user pressed last. The next playback repeats it.
    last_walk: Action,
    playing: Option<Playing>,
}

/// A running playback.
#[derive(Debug)]
pub(super) struct Playing {
    action: Action,
    /// Index in [`PACES`].
    pace: usize,
    /// Time at which the current place was complete on the screen.
    since: Option<Instant>,
}

impl Default for Playback {
    fn default() -> Self {
        Self { last_walk: Action::NextStep, playing: None }
    }
}

impl Playback {
    /// Returns whether a walk is playing.
    pub(super) fn is_playing(&self) -> bool {
        self.playing.is_some()
    }

    /// Remembers `action` for the next playback if it is a walk.
    pub(super) fn remember(&mut self, action: &Action) {
        if is_walk(action) {
            self.last_walk = action.clone();
        }
    }

    /// Starts the playback of the last walk.
    pub(super) fn start(&mut self) {
        self.playing = Some(Playing { action: self.last_walk.clone(), pace: FIRST_PACE, since: None });
    }

    /// Stops the playback; false if nothing was playing.
    pub(super) fn stop(&mut self) -> bool {
        self.playing.take().is_some()
    }

    /// Takes out the running playback for one step, together with the step's action. [`Playback::resume`] puts it back.
    pub(super) fn pause(&mut self) -> Option<(Playing, Action)> {
        let playing = self.playing.take()?;
        let action = playing.action.clone();
        Some((playing, action))
    }

    /// Continues after a step. The time of the new place begins once the place is on the screen.
    pub(super) fn resume(&mut self, playing: Playing) {
        self.playing = Some(Playing { since: None, ..playing });
    }

    /// Plays `by` paces faster; false if nothing is playing.
    pub(super) fn change_pace(&mut self, by: isize) -> bool {
        let Some(playing) = &mut self.playing else { return false };
        playing.pace = playing.pace.saturating_add_signed(by).min(PACES.len() - 1);
        true
    }

    /// The message that names the walk that is playing, and its pace.
    pub(super) fn message(&self) -> Option<String> {
        let Playing { action, pace, .. } = self.playing.as_ref()?;
        let what = match action {
            Action::NextLayer | Action::PreviousLayer => "layer by layer",
            Action::NextSlice | Action::PreviousSlice => "head by head",
            Action::NextPass | Action::PreviousPass => "pass by pass",
            _ => "step by step",
        };
        let every = PACES[*pace].as_secs_f32();
        Some(format!("{what}, one every {every} s: + is faster, - slower, any other key stops"))
    }

    /// Time until the next step of the playback. None if nothing is playing, or if the place is not `ready` on the
    /// screen.
    pub(super) fn time_left(&mut self, ready: bool, now: Instant) -> Option<Duration> {
        let playing = self.playing.as_mut()?;
        if !ready {
            playing.since = None;
            return None;
        }
        let since = *playing.since.get_or_insert(now);
        Some(PACES[playing.pace].saturating_sub(now.duration_since(since)))
    }
}

/// Returns whether `action` can be played: it goes from place to place, and it comes to an end.
fn is_walk(action: &Action) -> bool {
    use Action::{NextLayer, NextPass, NextSlice, NextStep};
    use Action::{PreviousLayer, PreviousPass, PreviousSlice, PreviousStep};
    let forward = matches!(action, NextStep | NextLayer | NextSlice | NextPass);
    forward || matches!(action, PreviousStep | PreviousLayer | PreviousSlice | PreviousPass)
}
