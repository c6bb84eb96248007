//! Places with a letter, kept in a file where the user names one: a line each, `a p0/L1/softmax[h=2,t=5,k=1]`, and
//! after that what somebody says of it.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result, printable};
use crate::trace::Address;

/// The largest file of marks that is read.
const MOST: u64 = 1 << 20;

/// A place, and what is said of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) address: String,
    pub(super) words: String,
}

/// The marks by their letter.
#[derive(Debug, Default)]
pub struct Marks {
    file: Option<PathBuf>,
    /// Lines that are for people.
    comments: Vec<String>,
    pub(super) all: BTreeMap<char, Mark>,
}

impl Marks {
    /// Those in the file at `path`; none where it is not there yet: the first mark makes it.
    ///
    /// # Errors
    /// [`Error::Usage`] with the line that is no mark, or why the file cannot be read.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |what: &str| Error::usage(what.to_owned()).in_file(path);
        let mut marks = Self { file: Some(path.to_owned()), ..Self::default() };
        let text = match fs::metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(marks),
            Ok(about) if about.len() > MOST => return Err(failed("this is too large to be a file of marks")),
            _ => fs::read_to_string(path).map_err(|error| failed("the marks cannot be read").found(error))?,
        };
        for (number, line) in (1..).zip(text.lines()) {
            if line.trim().is_empty() || line.starts_with('#') {
                marks.comments.push(line.to_owned());
                continue;
            }
            let (letter, mark) = read(line).map_err(|wrong| {
                Error::usage("this line is no mark")
                    .at(format!("{}:{number}", path.display()))
                    .expected("a letter, a space and an address: a p0/L1/softmax[h=2,t=5,k=1]")
                    .found(wrong)
            })?;
            marks.all.insert(letter, mark);
        }
        Ok(marks)
    }

    /// Marks a place; what was said of another one with this letter goes with it.
    pub(super) fn set(&mut self, letter: char, address: String) {
        self.all.insert(letter, Mark { address, words: String::new() });
    }

    /// Writes the file, where there is one: whole, or not at all.
    ///
    /// # Errors
    /// [`Error::Output`] where it cannot be written.
    pub(super) fn save(&self) -> Result<()> {
        let Some(path) = &self.file else { return Ok(()) };
        let marks = self.all.iter().map(|(letter, Mark { address, words })| {
            let space = if words.is_empty() { "" } else { " " };
            format!("{letter} {address}{space}{words}")
        });
        let lines: Vec<String> = self.comments.iter().cloned().chain(marks).collect();
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        let new = path.with_file_name(name);
        let written = fs::write(&new, lines.join("\n") + "\n").and_then(|()| fs::rename(&new, path));
        written.map_err(|error| {
            drop(fs::remove_file(&new));
            Error::output("the marks cannot be written").in_file(path).found(error)
        })
    }

    /// All of them in a line.
    pub(super) fn list(&self) -> String {
        let all = self.all.iter().map(|(letter, mark)| {
            let words = match &*printable(&mark.words) {
                "" => String::new(),
                words => format!(" ({words})"),
            };
            format!("{letter} {}{words}", mark.address)
        });
        all.collect::<Vec<_>>().join(" · ")
    }
}

/// Whether `c` can be a mark's name.
pub(super) fn is_letter(c: char) -> bool {
    c.is_ascii_alphanumeric()
}

fn read(line: &str) -> std::result::Result<(char, Mark), String> {
    let mut parts = line.splitn(3, ' ');
    let (letter, address) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let words = parts.next().unwrap_or_default().trim().to_owned();
    let mut letters = letter.chars();
    let (Some(letter), None) = (letters.next().filter(|c| is_letter(*c)), letters.next()) else {
        return Err(format!("`{letter}` for a letter"));
    };
    if address.is_empty() {
        return Err("no address".to_owned());
    }
    Address::parse(address).map_err(|wrong| format!("`{address}`: {wrong}"))?;
    Ok((letter, Mark { address: address.to_owned(), words }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_marks_comes_back_with_its_words_and_comments() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("marks");
        assert!(Marks::open(&path).unwrap().all.is_empty(), "there is none yet");
        let text = "# lesson 3\na p0/L1/softmax[h=2,t=5,k=1] who looks back?\nb L0/xq\n";
        fs::write(&path, text).unwrap();
        let mut marks = Marks::open(&path).unwrap();
        assert_eq!(marks.all[&'a'].words, "who looks back?");
        marks.save().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        marks.set('b', "p0/tokens".to_owned());
        marks.save().unwrap();
        assert_eq!(Marks::open(&path).unwrap().all[&'b'].address, "p0/tokens");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_somebody_says_of_a_mark_cannot_drive_the_terminal() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("marks");
        fs::write(&path, "a p0/tokens look \u{1b}[31mhere\n").unwrap();
        assert_eq!(Marks::open(&path).unwrap().list(), "a p0/tokens (look \\u{1b}[31mhere)");
    }

    #[test]
    fn a_line_that_is_no_mark_is_told_with_its_number() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("marks");
        for line in ["ab L0/xq", "a", "a nowhere", "é L0/xq", " L0/xq"] {
            fs::write(&path, format!("# x\n{line}\n")).unwrap();
            let told = Marks::open(&path).unwrap_err().to_string();
            assert!(told.contains("marks:2"), "{line}: {told}");
        }
        fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(Marks::open(&path).is_err());
    }
}
