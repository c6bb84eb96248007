//! Marks: places with a letter. If the user names a file, they are kept there. Each line has a letter, an address (`a
//! p0/L1/softmax[h=2,t=5,k=1]`) and an optional note.

#[cfg_attr(not(feature = "native"), path = "marks/no_file.rs")]
mod file;

use std::collections::BTreeMap;

use file::File;

/// A marked place and its note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) address: String,
    pub(super) words: String,
}

/// The marks by their letter.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Marks {
    file: File,
    pub(super) all: BTreeMap<char, Mark>,
}

impl Marks {
    /// Marks a place.
    pub(super) fn set(&mut self, letter: char, mark: Mark) {
        self.all.insert(letter, mark);
        self.file.changed(letter);
    }

    /// All marks in a line: letters and addresses. The notes are shown on arrival, because they may answer a question.
    pub(super) fn list(&self) -> String {
        let all = self.all.iter().map(|(letter, mark)| format!("{letter} {}", mark.address));
        all.collect::<Vec<_>>().join(" · ")
    }
}

/// Returns whether `c` can name a mark.
pub(super) fn is_letter(c: char) -> bool {
    c.is_ascii_alphanumeric()
}
