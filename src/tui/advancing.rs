//! Asking for one more pass.

use llama_trace_core::trace::Source;

use super::app::App;

/// What is said while the next pass runs.
pub(super) const RUNNING: &str = "running the next token …";

/// Asks for one more pass; when it is there, the screen goes to the same step of it.
pub fn advance(app: &mut App, source: &mut dyn Source) {
    match source.advance() {
        Ok(()) => {
            app.expects_pass = true;
            app.say(RUNNING, false);
        }
        Err(error) => app.say(error.to_string(), true),
    }
}
