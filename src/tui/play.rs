//! A walk that goes on by itself: which, and how fast.

use std::time::{Duration, Instant};

use super::action::Action;

/// How long a place is shown, from the slowest; 1 is where it begins.
pub(super) const EVERY: [Duration; 6] = [
    Duration::from_secs(4),
    Duration::from_secs(2),
    Duration::from_secs(1),
    Duration::from_millis(500),
    Duration::from_millis(250),
    Duration::from_millis(125),
];

/// A walk that goes on by itself.
#[derive(Clone, Debug)]
pub struct Play {
    pub(super) action: Action,
    pub(super) speed: usize,
    /// Since when this place is shown.
    pub(super) since: Option<Instant>,
}
