//! What day and time it is here, for templates that say so.

use chrono::NaiveDateTime;

/// By the system's clock and its time zone.
#[cfg(feature = "native")]
pub(super) fn now() -> NaiveDateTime {
    chrono::Local::now().naive_local()
}

/// By the clock that was given, in UTC.
#[cfg(not(feature = "native"))]
pub(super) fn now() -> NaiveDateTime {
    let seconds = llama_trace_core::time::since_1970().as_secs();
    chrono::DateTime::from_timestamp(seconds.cast_signed(), 0).unwrap_or_default().naive_utc()
}
