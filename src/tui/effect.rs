//! Effects: the work that an update leaves to the event loop.

use llama_trace_core::lesson::RunSetting;
use llama_trace_core::trace::{Address, Fork, Run};

use super::patch_state::CleanPrompt;
use super::runs::NewRun;

/// Work for the event loop after an update.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Only draws the screen.
    None,
    /// Requests one more pass of the source.
    Advance,
    /// Begins a branch, and shows it.
    Branch(Fork),
    /// Lists the branches.
    Branches,
    /// Lists the edits.
    Edits,
    /// Begins another run, and shows it.
    Begin(NewRun),
    /// Opens the map of the places whose values are taken from the clean prompt.
    Patch(CleanPrompt),
    /// Shows the run of a scene. Begins it if no open run has this setting.
    Scene(Box<RunSetting>),
    /// Appends the screen as a scene to the file of a lesson.
    AppendScene,
    /// Goes to an address in another sequence or another run.
    Open(Run, Address),
    /// Writes the current stage to a file.
    Export,
    /// Hands a text to the clipboard.
    Copy(String),
    /// Writes the marks to their file.
    SaveMarks,
    /// Draws the screen into a file.
    Draw,
    /// Clears the terminal before drawing.
    Redraw,
    /// Restores the terminal and stops the process until it is continued.
    Suspend,
    /// Stops what the source is doing.
    Stop,
    /// Ends the viewer.
    Quit,
    /// Ends the viewer, or goes back, while the first pass is still being computed.
    Abandon,
}
