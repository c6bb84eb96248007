//! The folder of a program: a subfolder with the inputs of each case, into which the program writes its outputs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use llama_trace_core::error::{Error, Result};
use llama_trace_ending::scratch::{self, Scratch};
use llama_trace_judge::kata::{Case, Output, most_bytes};

use super::process::{self, Ended};
use crate::cli::tell;

/// A part of the name of the temporary folder.
const KIND: &str = "kata";
/// The name of an output.
const OUT: &str = "out.npy";
/// The most lines of a program's output that are shown.
const SHOWN: usize = 20;

/// The folder; it is removed when this value is dropped.
pub(super) struct Folder {
    scratch: Scratch,
    cases: Vec<PathBuf>,
}

fn wrong(error: &std::io::Error, path: &Path) -> Error {
    Error::output("the cases cannot be written").in_file(path).found(error)
}

impl Folder {
    /// Writes the inputs of the cases into a new temporary folder.
    pub(super) fn new(cases: &[Case]) -> Result<Self> {
        let parent = std::env::temp_dir();
        scratch::remove_left(&parent, KIND, |_| Ok(()));
        let scratch = Scratch::new(&parent, KIND).map_err(|error| wrong(&error, &parent))?;
        let mut folder = Self { scratch, cases: Vec::new() };
        for (number, case) in cases.iter().enumerate() {
            let path = folder.scratch.path().join(format!("case-{number:02}"));
            let write = || {
                fs::create_dir(&path)?;
                case.inputs
                    .iter()
                    .try_for_each(|input| input.write(&path.join(format!("{}.npy", input.name))))?;
                fs::write(path.join("numbers.json"), case.numbers_json())
            };
            write().map_err(|error| wrong(&error, &path))?;
            folder.cases.push(path);
        }
        Ok(folder)
    }

    /// Runs the program on the folder, and reads its outputs.
    ///
    /// # Errors
    /// [`Error::Failed`] if the program fails or does not write an output, and those of [`process::run`].
    pub(super) fn run(&self, words: &[String], seconds: usize, cases: &[Case]) -> Result<Vec<Output>> {
        let grows = || {
            let paths = self.cases.iter().zip(cases);
            paths.into_iter().find_map(|(path, case)| {
                let size = fs::symlink_metadata(path.join(OUT)).ok()?.len();
                let most = most_bytes(case.shape.iter().product());
                (size > most).then(|| format!("{OUT} has {size} bytes; an output has at most {most}"))
            })
        };
        let Ended { status, printed: [out, err] } =
            process::run(words, self.scratch.path(), seconds, &grows)?;
        let program = words.join(" ");
        show(&out);
        if !status.success() {
            show(&err);
            let last = err.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
            return Err(Error::failed(format!("the program failed: {status}"))
                .at(program)
                .expected("exit code 0")
                .found(last)
                .next("run it yourself on a folder of cases, or print something in it"));
        }
        let read = |(number, (path, case)): (usize, (&PathBuf, &Case))| {
            read_output(&path.join(OUT), case).map_err(|what| {
                Error::failed("the program did not write a valid output")
                    .at(format!("case {number}, {}: {OUT}", case.title))
                    .expected("np.save(case / \"out.npy\", out) for each subfolder of its last argument")
                    .found(what)
            })
        };
        self.cases.iter().zip(cases).enumerate().map(read).collect()
    }
}

/// Reads an output. Its kind and its size are checked first.
fn read_output(path: &Path, case: &Case) -> std::result::Result<Output, String> {
    let about = fs::symlink_metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => "the file does not exist".to_owned(),
        _ => format!("the file cannot be read: {error}"),
    })?;
    if !about.is_file() {
        return Err("it is not a regular file".into());
    }
    let file = File::open(path).map_err(|error| format!("the file cannot be read: {error}"))?;
    Output::read(file, about.len(), case)
}

/// Shows the last lines that a program printed.
fn show(printed: &str) {
    let lines: Vec<&str> = printed.lines().collect();
    for line in &lines[lines.len().saturating_sub(SHOWN)..] {
        tell(format_args!("| {line}"));
    }
}
