//! Beginning of runs for a viewer: prompts as ids, edits with the values that they read, and further runs beside the
//! first one.

pub mod edits;
pub mod prompt;
mod starter;
pub mod wait;

pub use starter::{MOST_PASSES, Reload, Starter};
