//! The local date and time, for templates that print them.

use chrono::NaiveDateTime;

/// Returns the time of the system's clock in the system's time zone.
#[cfg(feature = "native")]
pub(super) fn now() -> NaiveDateTime {
    chrono::Local::now().naive_local()
}

/// Returns the time of the clock that the host program gave, in UTC.
#[cfg(not(feature = "native"))]
pub(super) fn now() -> NaiveDateTime {
    let seconds = llama_trace_core::time::since_1970().as_secs();
    chrono::DateTime::from_timestamp(seconds.cast_signed(), 0).unwrap_or_default().naive_utc()
}
