//! `llama-trace capture` of a build without the feature `capture`.

use super::CaptureArgs;
use llama_trace_core::error::{Error, Result};

/// Fails, because this build has no scripts.
pub(super) fn run(args: &CaptureArgs) -> Result<()> {
    Err(Error::not_built("the scripts of `capture`", "capture").found(format!("{:?}", args.runtime)))
}
