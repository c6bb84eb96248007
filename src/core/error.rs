//! The error type. Every message says what is wrong, where, what was expected, what was found and what to do next. The
//! variant decides the exit code of the process.

mod printable;

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub use printable::{printable, printable_json, printable_text};

/// The result of every function of this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// An error, by the kind of input that caused it. Each kind has its own exit code ([`Error::exit_code`]).
#[derive(Clone, Debug, thiserror::Error, Serialize, Deserialize)]
pub enum Error {
    /// A check failed: a line of `llama-trace check`.
    #[error("{0}")]
    Failed(Box<Report>),
    /// The command line asks for something that does not exist: an unknown stage, a layer past the last.
    #[error("{0}")]
    Usage(Box<Report>),
    /// A model or tokenizer file is missing, damaged, or of an unsupported kind.
    #[error("{0}")]
    Model(Box<Report>),
    /// The prompt cannot be run: too long, empty without a beginning-of-text token, ids out of range.
    #[error("{0}")]
    Prompt(Box<Report>),
    /// An output cannot be written, or exists already.
    #[error("{0}")]
    Output(Box<Report>),
    /// There is no terminal to draw on, or it failed.
    #[error("{0}")]
    Terminal(Box<Report>),
    /// The user pressed Ctrl-C or the process was asked to stop.
    #[error("{0}")]
    Interrupted(Box<Report>),
}

/// The text of an error, in parts: every message has the same form. Each part is one line. It may contain file names
/// and file contents, so it is printed through [`printable()`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    what: String,
    place: Option<String>,
    expected: Option<String>,
    found: Option<String>,
    next: Option<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&shortened(&self.what)))?;
        let parts = [
            ("where", &self.place),
            ("expected", &self.expected),
            ("found", &self.found),
            ("next", &self.next),
        ];
        for (label, text) in parts {
            if let Some(text) = text {
                write!(f, "\n  {label:>8}: {}", printable(&shortened(text)))?;
            }
        }
        Ok(())
    }
}

/// The maximum length of a part of a message, in characters. No list in a message is that long. Only a part that
/// repeats user input can be longer.
const LONGEST: usize = 2000;

/// Returns `text`, or its beginning and its length if it is longer than `LONGEST`.
pub fn shortened(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(LONGEST) {
        None => text.into(),
        Some(_) => {
            let start: String = text.chars().take(LONGEST / 10).collect();
            format!("{start}… ({} bytes)", text.len()).into()
        }
    }
}

macro_rules! constructors {
    ($($name:ident => $variant:ident: $doc:literal,)*) => {
        $(
            #[doc = $doc]
            pub fn $name(what: impl Into<String>) -> Self {
                Self::$variant(Box::new(Report { what: what.into(), ..Report::default() }))
            }
        )*

        fn report(&self) -> &Report {
            match self { $(Self::$variant(report) => report,)* }
        }

        fn report_mut(&mut self) -> &mut Report {
            match self { $(Self::$variant(report) => report,)* }
        }
    };
}

impl Error {
    constructors! {
        failed => Failed: "Starts an [`Error::Failed`].",
        usage => Usage: "Starts an [`Error::Usage`].",
        model => Model: "Starts an [`Error::Model`].",
        prompt => Prompt: "Starts an [`Error::Prompt`].",
        output => Output: "Starts an [`Error::Output`].",
        terminal => Terminal: "Starts an [`Error::Terminal`].",
        interrupted => Interrupted: "Starts an [`Error::Interrupted`].",
    }

    /// Returns whether the error says what to do next. An error about a lost device does. An out-of-memory error does
    /// not: the caller knows the purpose of the memory and adds the advice.
    pub fn says_next(&self) -> bool {
        self.report().next.is_some()
    }

    /// The error of a thread that cannot be started. `what` ends the sentence "no thread can be started …".
    pub fn no_thread(what: &str, error: &std::io::Error) -> Self {
        // The system does not say which resource is missing. If memory for the new thread's stack is missing, the
        // allocation below fails too, and ends the process like any other failed allocation.
        drop(std::hint::black_box(Vec::<u8>::with_capacity(4 << 20)));
        Self::usage(format!("no thread can be started {what}"))
            .expected("room for one more thread, at least")
            .found(error)
            .next("raise the limits on processes and memory (ulimit -u, ulimit -v), or end other programs")
    }

    /// The error for `what`, which this build lacks because the program was built without a Cargo feature.
    pub fn not_built(what: &str, feature: &str) -> Self {
        Self::usage(format!("this build was made without {what}"))
            .expected(format!("a build with the Cargo feature `{feature}`"))
            .next(format!("build it again with this feature: cargo install --path . --features {feature}"))
    }

    /// Adds the place: a path, a tensor, a byte offset.
    #[must_use]
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.report_mut().place = Some(place.to_string());
        self
    }

    /// Adds the path of the file.
    #[must_use]
    pub fn in_file(self, path: &Path) -> Self {
        self.at(path.display())
    }

    /// Adds the expected value.
    #[must_use]
    pub fn expected(mut self, expected: impl fmt::Display) -> Self {
        self.report_mut().expected = Some(expected.to_string());
        self
    }

    /// Adds the value found instead.
    #[must_use]
    pub fn found(mut self, found: impl fmt::Display) -> Self {
        self.report_mut().found = Some(found.to_string());
        self
    }

    /// Adds what to do next.
    #[must_use]
    pub fn next(mut self, next: impl fmt::Display) -> Self {
        self.report_mut().next = Some(next.to_string());
        self
    }

    /// The exit code of a process that ends with this error. 0 is success and 101 a Rust panic, which is always a bug;
    /// 2 is also the command-line parser's code.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Failed(_) => 1,
            Self::Usage(_) => 2,
            Self::Model(_) => 3,
            Self::Prompt(_) => 4,
            Self::Output(_) => 5,
            Self::Terminal(_) => 6,
            Self::Interrupted(_) => 130,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_its_parts_in_order() {
        let error = Error::model("the header is cut off").at("m.bin").expected("28 bytes").found("3 bytes");
        let text = error.next("fetch the file again").to_string();
        assert_eq!(
            text,
            "the header is cut off\n     where: m.bin\n  expected: 28 bytes\n     found: 3 bytes\n      next: fetch the file again"
        );
    }

    #[test]
    fn what_somebody_typed_is_not_repeated_without_end() {
        let text =
            Error::usage("x".repeat(15_000)).found("é".repeat(15_000)).next("y".repeat(2000)).to_string();
        assert!(text.contains("x… (15000 bytes)") && text.contains("é… (30000 bytes)"), "{text}");
        assert!(text.ends_with(&"y".repeat(2000)) && text.len() < 3000, "{}", text.len());
    }

    #[test]
    fn names_of_files_cannot_drive_the_terminal_or_look_like_lines_of_ours() {
        let error =
            Error::model("`\u{1b}[2J` is cut off").in_file(Path::new("a\u{9b}\n      next: run this"));
        let text = error.found("\u{7}").expected("\u{202e}").next("see \r").to_string();
        assert_eq!(
            text,
            "`\\u{1b}[2J` is cut off\n     where: a\\u{9b}\\n      next: run this\n  expected: \\u{202e}\n     found: \
             \\u{7}\n      next: see \\r"
        );
    }
}
