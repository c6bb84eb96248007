//! State of the input: what keys do now, the message after the last key, and where the pointer was pressed.

use super::branch_list::BranchList;
use super::edit_list::EditList;

/// The go-to line: its text and the chosen completion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GotoLine {
    /// The text.
    pub text: String,
    /// Number of the chosen completion; none if Enter takes the text itself.
    pub chosen: Option<usize>,
}

/// Mode of the keyboard.
#[derive(Clone, Debug, PartialEq)]
pub enum Mode {
    /// Keys walk through the pass.
    Walk,
    /// Keys scroll the help screen or filter it. The values are its first line on the screen and the text to find.
    Help(usize, String),
    /// Keys choose a chapter in the list. The value is the number of the chosen chapter.
    Chapters(usize),
    /// Keys choose a view in the list. The value is the name of the view that was shown before the list was opened.
    Views(&'static str),
    /// The next key is the letter that marks this place.
    Mark,
    /// The next key is the letter of the mark to return to.
    Return,
    /// Keys edit the go-to line.
    Goto(GotoLine),
    /// Keys type the answer to a question.
    Answer(String),
    /// Keys choose in the list of branches.
    Branches(BranchList),
    /// Keys choose in the list of edits.
    Edits(EditList),
}

/// A message to the user, shown until the next key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The text.
    pub text: String,
    /// Whether it reports a failure.
    pub failure: bool,
}

/// State of the input.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) mode: Mode,
    pub(super) message: Option<Message>,
    /// The column and row where the pointer was pressed, or to which it was dragged since.
    pub(super) dragged: Option<(u16, u16)>,
}

impl Default for Input {
    fn default() -> Self {
        Self { mode: Mode::Walk, message: None, dragged: None }
    }
}
