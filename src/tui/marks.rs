//! Marks: places with a letter. If the user names a file, they are kept there. Each line has a letter, an address (`a
//! p0/L1/softmax[h=2,t=5,k=1]`) and an optional note.

#[cfg_attr(not(feature = "native"), path = "marks/no_file.rs")]
mod file;

use std::collections::BTreeMap;

use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::Address;

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

impl Mark {
    /// The mark's line in the file.
    fn line(&self, letter: char) -> String {
        let Self { address, words } = self;
        let space = if words.is_empty() { "" } else { " " };
        format!("{letter} {address}{space}{words}")
    }
}

impl Marks {
    /// Reads the text of a file of marks. `name` is the file's name in messages.
    ///
    /// # Errors
    /// [`Error::Usage`] with the line that is not a mark.
    pub fn parse(text: &str, name: &str) -> Result<Self> {
        let mut marks = Self::default();
        for (number, line) in (1..).zip(text.lines()) {
            if is_for_people(line) {
                continue;
            }
            let (letter, mark) = read(line).map_err(|wrong| {
                Error::usage("this line is not a mark")
                    .at(format!("{name}:{number}"))
                    .expected("a letter, a space and an address: a p0/L1/softmax[h=2,t=5,k=1]")
                    .found(wrong)
            })?;
            marks.all.insert(letter, mark);
        }
        Ok(marks)
    }

    /// The text of a file with the marks.
    pub fn text(&self) -> String {
        self.all.iter().map(|(letter, mark)| mark.line(*letter) + "\n").collect()
    }

    /// Marks a place.
    pub(super) fn set(&mut self, letter: char, mark: Mark) {
        self.all.insert(letter, mark);
        self.file.changed(letter);
    }

    /// All marks in a line: letters and addresses. The notes are shown on arrival, because they may answer a question.
    pub fn list(&self) -> String {
        let all = self.all.iter().map(|(letter, mark)| format!("{letter} {}", mark.address));
        all.collect::<Vec<_>>().join(" · ")
    }
}

/// Returns whether a line is a comment or blank.
fn is_for_people(line: &str) -> bool {
    line.trim().is_empty() || line.starts_with('#')
}

/// Reads the line of a mark.
fn read(line: &str) -> std::result::Result<(char, Mark), String> {
    let mut parts = line.splitn(3, ' ');
    let (letter, address) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let words = parts.next().unwrap_or_default().trim().to_owned();
    let mut letters = letter.chars();
    let (Some(letter), None) = (letters.next().filter(|c| is_letter(*c)), letters.next()) else {
        return Err(format!("`{letter}` instead of a letter"));
    };
    if address.is_empty() {
        return Err("no address".to_owned());
    }
    Address::parse(address).map_err(|wrong| format!("`{address}`: {wrong}"))?;
    Ok((letter, Mark { address: address.to_owned(), words }))
}

/// Returns whether `c` can name a mark.
pub(super) fn is_letter(c: char) -> bool {
    c.is_ascii_alphanumeric()
}
