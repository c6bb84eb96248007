//! Moments of a clock that the program sets.

use std::ops::{Add, Sub};
use std::sync::OnceLock;
use std::time::Duration;

static CLOCK: OnceLock<fn() -> Duration> = OnceLock::new();

/// Sets the clock. `now` returns the time since the year 1970 began in UTC, and must not go back. A second clock is
/// ignored. Until a clock is set, every moment is the beginning of 1970.
pub fn set_clock(now: fn() -> Duration) {
    let _ = CLOCK.set(now);
}

/// The time since the year 1970 began in UTC.
pub fn since_1970() -> Duration {
    CLOCK.get().map_or(Duration::ZERO, |now| now())
}

/// A moment, with the methods of `std::time::Instant` that the program uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration);

impl Instant {
    /// The current moment.
    pub fn now() -> Self {
        Self(since_1970())
    }

    /// The time since this moment.
    pub fn elapsed(&self) -> Duration {
        Self::now() - *self
    }

    /// The time since `earlier`; zero if `earlier` is later.
    pub fn duration_since(&self, earlier: Self) -> Duration {
        *self - earlier
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_those_of_the_clock_that_is_given() {
        let before = Instant::now();
        assert_eq!(before.elapsed(), Duration::ZERO);
        set_clock(|| Duration::from_secs(5));
        set_clock(|| Duration::from_secs(9));
        assert_eq!(before.elapsed(), Duration::from_secs(5));
        assert_eq!(before.duration_since(Instant::now()), Duration::ZERO);
        assert!(before + Duration::from_secs(6) > Instant::now());
    }
}
