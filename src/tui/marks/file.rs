//! The file of marks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::super::text_file::TextFile;
use super::{Mark, Marks, is_for_people, read};
use llama_trace_core::error::Result;

const FILE: TextFile = TextFile { content: "the marks", name: "a file of marks", option: "--marks FILE" };

/// The file that keeps the marks.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct File {
    path: Option<PathBuf>,
    /// Letters that were set here and are not in the file yet.
    changed: BTreeSet<char>,
}

impl File {
    /// Records that the mark of a letter was set.
    pub(super) fn changed(&mut self, letter: char) {
        self.changed.insert(letter);
    }
}

impl Marks {
    /// The marks in the file at `path`. The file need not exist; the first mark creates it.
    ///
    /// # Errors
    /// [`Error::Usage`](llama_trace_core::error::Error::Usage) with the line that is not a mark, or with the reason why
    /// the file cannot be read.
    pub fn open(path: &Path) -> Result<Self> {
        let text = FILE.read(path)?.unwrap_or_default();
        let file = File { path: Some(path.to_owned()), ..File::default() };
        Ok(Self { file, ..Self::parse(&text, &path.display().to_string())? })
    }

    /// Writes the file atomically, if there is one. Other programs may have written it meanwhile. Only the marks that
    /// were set here replace those in the file; all other marks are read from the file.
    ///
    /// # Errors
    /// [`Error::Output`](llama_trace_core::error::Error::Output) if the file cannot be written,
    /// [`Error::Usage`](llama_trace_core::error::Error::Usage) if it cannot be read.
    pub fn save(&mut self) -> Result<()> {
        let Some(path) = &self.file.path else { return Ok(()) };
        let text = match FILE.read(path)? {
            Some(text) => text,
            None => {
                // The file was removed: all marks are written again.
                self.file.changed.extend(self.all.keys());
                String::new()
            }
        };
        let changed: BTreeMap<char, &Mark> = self
            .all
            .iter()
            .filter(|(letter, _)| self.file.changed.contains(letter))
            .map(|(l, m)| (*l, m))
            .collect();
        let text = merged(&text, changed);
        FILE.write(path, &text)?;
        self.all = text.lines().filter_map(mark_in).collect();
        self.file.changed.clear();
        Ok(())
    }
}

/// `text` with the marks of `changed`. Each mark replaces the line with its letter, or is added at the end. Other lines
/// stay unchanged. If the replaced line has a note and marks another place, it stays as a comment.
fn merged(text: &str, mut changed: BTreeMap<char, &Mark>) -> String {
    let mut out = String::new();
    // If a letter has several lines, the last is the mark.
    let last: BTreeMap<char, usize> =
        text.lines().enumerate().filter_map(|(at, line)| Some((mark_in(line)?.0, at))).collect();
    for (at, whole) in text.split_inclusive('\n').enumerate() {
        let line = whole.lines().next().unwrap_or_default();
        let there = mark_in(line).filter(|(letter, _)| last.get(letter) == Some(&at));
        match there.and_then(|(letter, mark)| Some((letter, mark, changed.remove(&letter)?))) {
            Some((letter, was, now)) if was.address != now.address => {
                let end = &whole[line.len()..];
                if !was.words.is_empty() && was.words != now.words {
                    out += &format!("# {line}{}", if end.is_empty() { "\n" } else { end });
                }
                out += &now.line(letter);
                out += end;
            }
            _ => out += whole,
        }
    }
    for (letter, mark) in changed {
        if !out.is_empty() && !out.ends_with('\n') {
            out.push('\n');
        }
        out += &mark.line(letter);
        out.push('\n');
    }
    out
}

/// The mark in a line; none if the line is not a mark.
fn mark_in(line: &str) -> Option<(char, Mark)> {
    if is_for_people(line) { None } else { read(line).ok() }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::super::text_file::MOST;
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
        set(&mut marks, 'b', "p0/tokens");
        marks.save().unwrap();
        assert_eq!(Marks::open(&path).unwrap().all[&'b'].address, "p0/tokens");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        // Some editors write a byte-order mark.
        fs::write(&path, "\u{feff}c L1/xv\n").unwrap();
        assert_eq!(Marks::open(&path).unwrap().all[&'c'].address, "L1/xv");
    }

    fn set(marks: &mut Marks, letter: char, address: &str) {
        marks.set(letter, Mark { address: address.to_owned(), words: String::new() });
    }

    /// Two tracers use one file, as in a lesson.
    #[test]
    fn what_others_marked_meanwhile_stays_and_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("marks");
        let [mut one, mut other] = [(); 2].map(|()| Marks::open(&path).unwrap());
        set(&mut one, 'a', "p0/tokens");
        one.save().unwrap();
        set(&mut other, 'b', "p0/L0/xq");
        other.save().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "a p0/tokens\nb p0/L0/xq\n");
        assert_eq!(other.list(), "a p0/tokens · b p0/L0/xq");
        // Both tracers have set the letter `a`. The file has the mark that was set last.
        set(&mut other, 'a', "p0/L1/xq");
        other.save().unwrap();
        set(&mut one, 'c', "p0/logits");
        one.save().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "a p0/L1/xq\nb p0/L0/xq\nc p0/logits\n");
        // A line that was damaged by hand stays. If the file is removed, no mark is lost.
        fs::write(&path, "a p0/L1/xq\nno mark\nb p0/L0/xq").unwrap();
        set(&mut one, 'd', "p0/logits");
        one.save().unwrap();
        let text = "a p0/L1/xq\nno mark\nb p0/L0/xq\nd p0/logits\n";
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        fs::remove_file(&path).unwrap();
        one.save().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "a p0/L1/xq\nb p0/L0/xq\nd p0/logits\n");
    }

    #[test]
    fn a_mark_changes_its_own_line_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("marks");
        let text = "b L0/xq\r\n# one\n\na p0/tokens  two  blanks\n\n# two\nc p0/logits";
        fs::write(&path, text).unwrap();
        let mut marks = Marks::open(&path).unwrap();
        set(&mut marks, 'z', "p0/tokens");
        set(&mut marks, 'b', "p0/L1/xq");
        marks.save().unwrap();
        let now = "b p0/L1/xq\r\n# one\n\na p0/tokens  two  blanks\n\n# two\nc p0/logits\nz p0/tokens\n";
        assert_eq!(fs::read_to_string(&path).unwrap(), now);
        // A note on another place stays as a comment.
        set(&mut marks, 'a', "p0/L1/xq");
        marks.save().unwrap();
        let now = now.replace("a p0/tokens ", "# a p0/tokens ").replace("blanks\n", "blanks\na p0/L1/xq\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), now);
        assert_eq!(Marks::open(&path).unwrap().all[&'a'].words, "");
    }

    #[cfg(unix)]
    #[test]
    fn a_link_stays_one_and_its_target_is_written() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let [there, path, far] = ["there", "marks", "far"].map(|name| folder.path().join(name));
        fs::create_dir(&there).unwrap();
        symlink("there/lesson", &far).unwrap();
        symlink(&far, &path).unwrap();
        // First while the link's target does not exist, then while it exists.
        for (letter, text) in [('a', "a p0/tokens\n"), ('b', "a p0/tokens\nb p0/tokens\n")] {
            let mut marks = Marks::open(&path).unwrap();
            set(&mut marks, letter, "p0/tokens");
            marks.save().unwrap();
            assert!(path.is_symlink() && far.is_symlink());
            assert_eq!(fs::read_to_string(there.join("lesson")).unwrap(), text);
            assert_eq!(fs::read_dir(&there).unwrap().count(), 1);
        }
    }

    #[test]
    fn what_somebody_says_of_a_mark_cannot_drive_the_terminal() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("marks");
        fs::write(&path, "a p0/tokens look \u{1b}[31mhere\n").unwrap();
        assert_eq!(Marks::open(&path).unwrap().list(), "a p0/tokens");
    }

    #[test]
    fn what_is_too_large_to_be_a_file_of_marks_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("marks");
        fs::write(&path, "#".repeat(MOST as usize)).unwrap();
        assert!(Marks::open(&path).is_ok());
        fs::write(&path, "#".repeat(MOST as usize + 1)).unwrap();
        let error = Marks::open(&path).unwrap_err().to_string();
        assert!(
            error.contains("too large to be a file of marks") && error.contains("1048577 bytes"),
            "{error}"
        );
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

    #[test]
    fn only_a_regular_file_of_some_size_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let told = |path: &Path| Marks::open(path).unwrap_err().to_string();
        assert!(
            told(folder.path()).contains("not a regular file") && told(folder.path()).contains("a directory")
        );
        #[cfg(unix)]
        for device in ["/dev/zero", "/dev/full", "/dev/null"] {
            let told = told(Path::new(device));
            assert!(told.contains("not a regular file") && told.contains("device"), "{device}: {told}");
        }
        let path = folder.path().join("marks");
        fs::write(&path, vec![b'#'; MOST as usize]).unwrap();
        assert!(Marks::open(&path).is_ok());
        fs::write(&path, vec![b'#'; MOST as usize + 1]).unwrap();
        assert!(told(&path).contains("at most 1048576 bytes"), "{}", told(&path));
    }
}
