//! Reports: results of the effects, which come back to [`update`](super::update::update) as an action.

use llama_trace_core::trace::{Address, Outline, Run};

use super::branch_list::BranchList;
use super::edit_list::EditList;
use super::marks::Marks;
use super::patch_state::Clean;
use super::place::OpenAt;

/// The result of an effect.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// A message to the user.
    Message {
        /// The text.
        text: String,
        /// Whether it reports a failure.
        failure: bool,
    },
    /// The source was asked for another pass.
    PassRequested,
    /// Another run or sequence is shown.
    Shown {
        /// The outline of the shown run.
        outline: Box<Outline>,
        /// Whether another run or sequence was shown before.
        has_previous: bool,
        /// The address to go to; without one the place stays the same.
        at: Option<Address>,
    },
    /// The run that was shown before is compared with the shown one.
    ComparesPrevious,
    /// A new branch is shown.
    Branched(Box<Outline>),
    /// The clean run of the shown run.
    Clean(Clean),
    /// The branches, for their list.
    Branches(BranchList),
    /// The edits, for their list.
    Edits(EditList),
    /// A place of the shown run. The viewer goes there once its pass is there.
    OpensAt(OpenAt),
    /// The run of the scene is shown.
    Scene(Run),
    /// The run of the scene cannot be begun, for this reason.
    NoScene(String),
    /// The marks as they are in their file now.
    Marks(Marks),
}
