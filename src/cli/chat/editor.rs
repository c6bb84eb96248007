//! The line editor of a chat in a terminal.
//!
//! It accepts every byte: a byte that is not UTF-8 becomes `�` in the line. It draws once for all waiting keys, so a
//! long text costs the same whether it is typed or pasted.

use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write, stdin, stdout};
use std::ops::Range;
use std::time::{Duration, Instant};

use crossterm::terminal::{disable_raw_mode, enable_raw_mode, size};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;
use vte::{Params, Parser, Perform};

use llama_trace_core::stop::Stop;
use llama_trace_ending as ending;
use llama_trace_ending::Taken;
use llama_trace_tui::erase::Erase;

const PROMPT: &str = "> ";
/// Maximum number of lines in the history (key Up).
const HISTORY: usize = 100;
/// How long to wait for a key. If an escape sequence is still incomplete then, it is dropped.
const LOOK: Duration = Duration::from_millis(100);
/// How long to wait for the next part of a long input before it is drawn.
const PART: Duration = Duration::from_millis(5);
/// After a read of at least this many bytes, more input is expected immediately.
const MANY: usize = 64;
/// A tab as it is drawn.
const TAB: &str = "    ";

/// How the editing of a line ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Text(String),
    /// Ctrl-C.
    Interrupted,
    /// Ctrl-D in an empty line, or the end of the input.
    Input,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Char(char),
    Enter,
    Left,
    Right,
    WordLeft,
    WordRight,
    Start,
    End,
    Up,
    Down,
    Backspace,
    /// Delete; in an empty line, the end of the input.
    CtrlD,
    Delete,
    /// Three keys that cut text: to the start of the word, to the start of the line, to the end of the line.
    CutWord,
    CutBefore,
    CutAfter,
    /// Inserts the text that was cut last.
    Paste,
    Clear,
    Interrupt,
    Suspend,
}

/// Keys that are read from the bytes of a terminal.
#[derive(Default)]
struct Keys {
    ready: VecDeque<Key>,
    /// Whether the input is inside a bracketed paste, and whether the last byte of the paste was a carriage return.
    pasting: bool,
    returned: bool,
    /// Whether the last input was `ESC O`.
    shifted: bool,
}

impl Perform for Keys {
    fn print(&mut self, c: char) {
        let key = match (std::mem::take(&mut self.shifted), c) {
            (true, 'A'..='F' | 'H') => arrow(c, false),
            (_, '\x7f') => Some(Key::Backspace).filter(|_| !self.pasting),
            _ => Some(Key::Char(c)),
        };
        self.returned = false;
        self.ready.extend(key);
    }

    fn execute(&mut self, byte: u8) {
        let returned = std::mem::replace(&mut self.returned, byte == b'\r' && self.pasting);
        self.ready.extend(match byte {
            // If the end mark of a paste was lost, Ctrl-C must still work.
            3 => {
                self.pasting = false;
                Some(Key::Interrupt)
            }
            b'\t' => Some(Key::Char('\t')),
            // Other control characters (C1) arrive as bytes that are not UTF-8.
            0x80.. => Some(Key::Char(char::REPLACEMENT_CHARACTER)),
            b'\n' if returned => None,
            b'\r' | b'\n' if self.pasting => Some(Key::Char('\n')),
            _ if self.pasting => None,
            b'\r' | b'\n' => Some(Key::Enter),
            1 => Some(Key::Start),
            2 => Some(Key::Left),
            4 => Some(Key::CtrlD),
            5 => Some(Key::End),
            6 => Some(Key::Right),
            8 => Some(Key::Backspace),
            0x0b => Some(Key::CutAfter),
            0x0c => Some(Key::Clear),
            0x0e => Some(Key::Down),
            0x10 => Some(Key::Up),
            0x15 => Some(Key::CutBefore),
            0x17 => Some(Key::CutWord),
            0x19 => Some(Key::Paste),
            0x1a => Some(Key::Suspend),
            _ => None,
        });
    }

    fn csi_dispatch(&mut self, params: &Params, _: &[u8], _: bool, last: char) {
        let mut numbers = params.iter().map(|param| param.first().copied().unwrap_or(0));
        let (number, modifier) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        let key = match (last, number) {
            ('~', 200 | 201) => {
                self.pasting = number == 200;
                None
            }
            ('~', 1 | 7) => Some(Key::Start),
            ('~', 4 | 8) => Some(Key::End),
            ('~', 3) => Some(Key::Delete),
            // Alt or Ctrl held with an arrow.
            _ => arrow(last, matches!(modifier, 3 | 5)),
        };
        self.ready.extend(key.filter(|_| !self.pasting));
    }

    fn esc_dispatch(&mut self, _: &[u8], _: bool, byte: u8) {
        self.shifted = byte == b'O';
        self.ready.extend(match byte {
            b'b' => Some(Key::WordLeft),
            b'f' => Some(Key::WordRight),
            _ => None,
        });
    }
}

fn arrow(last: char, word: bool) -> Option<Key> {
    match last {
        'A' => Some(Key::Up),
        'B' => Some(Key::Down),
        'C' => Some(if word { Key::WordRight } else { Key::Right }),
        'D' => Some(if word { Key::WordLeft } else { Key::Left }),
        'F' => Some(Key::End),
        'H' => Some(Key::Start),
        _ => None,
    }
}

/// The edited text, its cursor and the position in the history.
#[derive(Default)]
struct Line {
    text: String,
    /// Byte offset of the cursor in `text`.
    at: usize,
    /// How many lines back in the history the user is, and the text typed before going back.
    back: usize,
    draft: String,
}

impl Line {
    /// Start of the text that a key deletes, or moves over, to the left of the cursor.
    fn left(&self, by: Erase) -> usize {
        by.start(&self.text[..self.at])
    }

    fn right(&self) -> usize {
        self.at + self.text[self.at..].graphemes(true).next().map_or(0, str::len)
    }

    fn word_right(&self) -> usize {
        let rest = &self.text[self.at..];
        let start = rest.len() - rest.trim_start().len();
        self.at + rest[start..].find(char::is_whitespace).map_or(rest.len(), |at| start + at)
    }

    fn insert(&mut self, text: &str) {
        self.text.insert_str(self.at, text);
        self.at += text.len();
    }

    /// Cuts the text between the cursor and `other`.
    fn cut(&mut self, other: usize) -> String {
        let range = self.at.min(other)..self.at.max(other);
        self.at = range.start;
        self.text.drain(range).collect()
    }

    /// Shows the line that is `back` lines back in `history`. For 0, shows the text typed before going back.
    fn look_back(&mut self, history: &[String], back: usize) {
        let text = match history.len().checked_sub(back) {
            None => return,
            Some(at) if self.back == 0 => {
                self.draft = std::mem::take(&mut self.text);
                history.get(at).unwrap_or(&self.draft).clone()
            }
            Some(at) => history.get(at).unwrap_or(&self.draft).clone(),
        };
        (self.at, self.text, self.back) = (text.len(), text, back);
    }

    /// The byte range of each row in a terminal of `columns` columns, and the row and column of the cursor.
    fn rows(&self, columns: usize) -> (Vec<Range<usize>>, (usize, usize)) {
        let (mut rows, mut start, mut column, mut cursor) = (Vec::new(), 0, PROMPT.len(), None);
        for (at, cluster) in self.text.grapheme_indices(true) {
            let width = if cluster == "\t" { TAB.len() } else { cluster.width() };
            if column + width > columns || column == columns {
                rows.push(start..at);
                (start, column) = (at, 0);
            }
            if (at..at + cluster.len()).contains(&self.at) {
                cursor = Some((rows.len(), column));
            }
            column += width;
            if cluster == "\n" {
                rows.push(start..at);
                (start, column) = (at + 1, 0);
            }
        }
        // If the row before the cursor is full, the cursor is in the next row.
        if column >= columns {
            rows.push(start..self.text.len());
            (start, column) = (self.text.len(), 0);
        }
        rows.push(start..self.text.len());
        let end = (rows.len() - 1, column);
        (rows, cursor.unwrap_or(end))
    }
}

/// The terminal in raw mode. It marks the start and the end of a paste.
struct Raw;

impl Raw {
    fn take() -> io::Result<Self> {
        ending::take(Taken::Editor);
        let raw = Self;
        raw.enter()?;
        Ok(raw)
    }

    /// Sets raw mode. Also called after the shell had the terminal.
    fn enter(&self) -> io::Result<()> {
        disable_raw_mode().and_then(|()| enable_raw_mode())?;
        write("\x1b[?2004h")
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A failure here cannot be reported.
        ending::give_back(|| {
            drop(disable_raw_mode());
            drop(write("\x1b[?2004l\r\n"));
        });
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

/// Returns whether a key comes within `wait`.
fn comes(wait: Duration) -> io::Result<bool> {
    let wait = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
    match poll(&mut [PollFd::new(&stdin(), PollFlags::IN)], Some(&wait)) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The editor and its history.
pub(super) struct Editor {
    parser: Parser,
    keys: Keys,
    history: VecDeque<String>,
    /// The text that was cut last.
    cut: String,
    /// The maximum length of a line, in bytes.
    longest: usize,
    /// The row of the cursor, counted from the first drawn row.
    row: usize,
    /// The stop request that Ctrl-C sets while a line is answered. It is cleared when editing begins.
    stop: Stop,
}

impl Editor {
    /// The editor. None if input or output is not a terminal that the editor can draw on.
    pub(super) fn open(stop: &Stop, longest: usize) -> Option<Self> {
        let able =
            std::env::var("TERM").is_ok_and(|term| !matches!(&*term, "dumb" | "cons25" | "emacs" | ""));
        (stdin().is_terminal() && stdout().is_terminal() && able).then(|| Self {
            parser: Parser::new(),
            keys: Keys::default(),
            history: VecDeque::new(),
            cut: String::new(),
            longest,
            row: 0,
            stop: stop.clone(),
        })
    }

    /// Reads the next line.
    ///
    /// # Errors
    /// If the terminal cannot be read or written.
    pub(super) fn read(&mut self) -> io::Result<Ended> {
        let raw = Raw::take()?;
        self.row = 0;
        let mut line = Line::default();
        self.draw(&line)?;
        let (mut drawn, mut changed, mut count) = (Instant::now(), false, 0);
        loop {
            while let Some(key) = self.keys.ready.pop_front() {
                let ended = match key {
                    Key::Enter => Ended::Text(line.text.clone()),
                    Key::Interrupt => Ended::Interrupted,
                    Key::CtrlD if line.text.is_empty() => Ended::Input,
                    key => {
                        self.press(&mut line, key)?;
                        changed = true;
                        continue;
                    }
                };
                if changed || line.at < line.text.len() {
                    line.at = line.text.len();
                    self.draw(&line)?;
                }
                self.remember(&ended);
                self.stop.clear();
                drop(raw);
                return Ok(ended);
            }
            if ending::continued() {
                raw.enter()?;
                (self.row, changed) = (0, true);
            }
            // Long input arrives in parts. It is drawn when it is complete, and from time to time before.
            let part = if count < MANY { Duration::ZERO } else { PART };
            if changed && (drawn.elapsed() > LOOK || !comes(part)?) {
                self.draw(&line)?;
                (drawn, changed) = (Instant::now(), false);
            }
            count = match self.fill(if changed { Duration::ZERO } else { LOOK })? {
                Some(count) => count,
                None => return Ok(Ended::Input),
            };
        }
    }

    /// Reads the keys that arrive within `wait`. Returns the number of bytes read; none at the end of the input.
    fn fill(&mut self, wait: Duration) -> io::Result<Option<usize>> {
        if !comes(wait)? {
            if wait == LOOK {
                // No more bytes of this character or sequence are coming.
                self.parser.advance(&mut self.keys, b"\x1b");
                self.parser = Parser::new();
                self.keys.shifted = false;
            }
            return Ok(Some(0));
        }
        let mut bytes = [0; 4096];
        let count = rustix::io::read(stdin(), &mut bytes)?;
        self.parser.advance(&mut self.keys, &bytes[..count]);
        Ok((count > 0).then_some(count))
    }

    /// Adds a line to the history.
    fn remember(&mut self, ended: &Ended) {
        if let Ended::Text(text) = ended
            && !text.is_empty()
            && self.history.back() != Some(text)
        {
            self.history.push_back(text.clone());
            self.history.drain(..self.history.len().saturating_sub(HISTORY));
        }
    }

    /// Applies a key to the line.
    fn press(&mut self, line: &mut Line, key: Key) -> io::Result<()> {
        match key {
            Key::Char(c) => {
                let mut text = String::from(c);
                while let Some(&Key::Char(c)) = self.keys.ready.front() {
                    text.push(c);
                    self.keys.ready.pop_front();
                }
                // A full line takes no more text.
                if line.text.len() <= self.longest {
                    line.insert(&text);
                }
            }
            Key::Left => line.at = line.left(Erase::Character),
            Key::Right => line.at = line.right(),
            Key::WordLeft => line.at = line.left(Erase::Word),
            Key::WordRight => line.at = line.word_right(),
            Key::Start => line.at = 0,
            Key::End => line.at = line.text.len(),
            Key::Up => line.look_back(self.history.make_contiguous(), line.back + 1),
            Key::Down => line.look_back(self.history.make_contiguous(), line.back.saturating_sub(1)),
            Key::Backspace => drop(line.cut(line.left(Erase::Character))),
            Key::Delete | Key::CtrlD => drop(line.cut(line.right())),
            Key::CutWord => self.cut = line.cut(line.left(Erase::Word)),
            Key::CutBefore => self.cut = line.cut(line.left(Erase::Line)),
            Key::CutAfter => self.cut = line.cut(line.text.len()),
            Key::Paste => line.insert(&self.cut),
            Key::Clear => {
                write("\x1b[H\x1b[2J")?;
                self.row = 0;
            }
            Key::Suspend => signal_hook::low_level::raise(signal_hook::consts::SIGTSTP)?,
            // These keys end the line.
            Key::Enter | Key::Interrupt => {}
        }
        Ok(())
    }

    /// Draws the line. If it does not fit, draws the part around the cursor.
    fn draw(&mut self, line: &Line) -> io::Result<()> {
        // If the size of the terminal is unknown, it counts as 80×24.
        let (columns, height) = size().ok().filter(|size| size.0 > 0 && size.1 > 0).unwrap_or((80, 24));
        let (rows, (row, column)) = line.rows(columns.into());
        let first = (row + 1).saturating_sub(height.into());
        let seen = &rows[first..rows.len().min(first + usize::from(height))];
        let mut text = up(self.row) + "\r\x1b[J";
        for (number, bytes) in (first..).zip(seen) {
            text += if number == 0 { PROMPT } else { "" };
            text += if number == first { "" } else { "\r\n" };
            text += &line.text[bytes.clone()].replace('\t', TAB);
        }
        self.row = row - first;
        text += &up(seen.len() - 1 - self.row);
        text += "\r";
        if column > 0 {
            text += &format!("\x1b[{column}C");
        }
        write(&text)
    }
}

fn up(rows: usize) -> String {
    if rows == 0 { String::new() } else { format!("\x1b[{rows}A") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(bytes: &[u8]) -> Vec<Key> {
        // The parser gets all bytes together, and then byte by byte.
        let (mut whole, mut parts) = (Keys::default(), Keys::default());
        Parser::new().advance(&mut whole, bytes);
        let mut parser = Parser::new();
        bytes.iter().for_each(|byte| parser.advance(&mut parts, &[*byte]));
        assert_eq!(whole.ready, parts.ready, "{}", bytes.escape_ascii());
        whole.ready.into()
    }

    fn typed(text: &str) -> Vec<Key> {
        text.chars().map(Key::Char).collect()
    }

    #[test]
    fn bytes_that_are_no_text_are_seen_and_take_nothing_with_them() {
        assert_eq!(keys("né 日".as_bytes()), typed("né 日"));
        assert_eq!(keys(b"a\xff b"), typed("a\u{fffd} b"));
        assert_eq!(keys(b"caf\xe9 au lait"), typed("caf\u{fffd} au lait"));
        assert_eq!(keys(b"a\x85b\xc3\xc3\xa9"), typed("a\u{fffd}b\u{fffd}é"));
        let pasted = keys(b"\x1b[200~x\xff\r\ny\x1b[201~\r");
        assert_eq!(pasted, [typed("x\u{fffd}\ny"), vec![Key::Enter]].concat());
    }

    #[test]
    fn sequences_are_keys_and_control_characters_never_text() {
        assert_eq!(
            keys(b"\x1b[A\x1b[1;5D\x1b[3~\x1bOH\x1bb"),
            [Key::Up, Key::WordLeft, Key::Delete, Key::Start, Key::WordLeft]
        );
        assert_eq!(keys(b"\x7f\x08\x04\x03"), [Key::Backspace, Key::Backspace, Key::CtrlD, Key::Interrupt]);
        // Keys in a paste are dropped. Ctrl-C ends a paste whose end mark was lost.
        assert_eq!(
            keys(b"\x1b[200~a\x07\x1b[Db\x7f\x03c\r"),
            [Key::Char('a'), Key::Char('b'), Key::Interrupt, Key::Char('c'), Key::Enter]
        );
    }

    #[test]
    fn rows_break_where_the_terminal_ends_and_the_cursor_is_in_one() {
        let line = |text: &str, at| Line { text: text.into(), at, ..Line::default() };
        let of = |text: &str, at, columns| {
            let line = line(text, at);
            let (rows, cursor) = line.rows(columns);
            (rows.into_iter().map(|row| line.text[row].to_owned()).collect::<Vec<_>>(), cursor)
        };
        let rows = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        assert_eq!(of("", 0, 10), (rows(&[""]), (0, 2)));
        assert_eq!(of("abcdefg", 7, 10), (rows(&["abcdefg"]), (0, 9)));
        assert_eq!(of("abcdefgh", 8, 10), (rows(&["abcdefgh", ""]), (1, 0)));
        assert_eq!(of("abcdefghi", 8, 10), (rows(&["abcdefgh", "i"]), (1, 0)));
        assert_eq!(of("ab\ncd", 2, 10), (rows(&["ab", "cd"]), (0, 4)));
        assert_eq!(of("日本語日本", 15, 10), (rows(&["日本語日", "本"]), (1, 2)));
        assert_eq!(of("ae\u{301}", 2, 10), (rows(&["ae\u{301}"]), (0, 3)), "in a cluster: before it");
    }

    #[test]
    fn editing_goes_by_clusters_and_words() {
        let mut line = Line::default();
        line.insert("one two ae\u{301}");
        drop(line.cut(line.left(Erase::Character)));
        assert_eq!(line.text, "one two a");
        assert_eq!(line.cut(line.left(Erase::Word)), "a");
        assert_eq!(line.cut(line.left(Erase::Word)), "two ");
        line.at = line.left(Erase::Word);
        assert_eq!((line.at, line.right(), line.word_right()), (0, 1, 3));
        let history = ["first".to_owned(), "second".to_owned()];
        for (back, text) in [(1, "second"), (2, "first"), (3, "first"), (1, "second"), (0, "one ")] {
            line.look_back(&history, back);
            assert_eq!(line.text, text);
        }
    }
}
