//! Progress of the source, and what the viewer waits for before it moves.

use llama_trace_core::trace::Status;

use super::place::OpenAt;

/// Status of the source, and the passes that the viewer waits for.
#[derive(Debug)]
pub(super) struct Progress {
    /// The source's status when it was last asked.
    pub(super) status: Status,
    /// Whether a pass was requested. The viewer shows it once it is there.
    pub(super) awaits_pass: bool,
    /// A place in a later pass. The viewer goes there once the pass is there.
    pub(super) opens_at: Option<OpenAt>,
}

impl Default for Progress {
    fn default() -> Self {
        Self { status: Status::Idle, awaits_pass: false, opens_at: None }
    }
}
