//! The binary as a child process with limits on memory and time.

use std::path::Path;
use std::process::{Command, Stdio};

use super::common::{stderr, stdout};

/// Limits of the program: address space in addition to the files, in bytes, and CPU time in seconds.
const MEMORY: u64 = 256 << 20;
const SECONDS: &str = "10";
/// Time after which a sleeping child, which uses no CPU time, counts as hanging.
const HANGS: &str = "60";

/// The end of a child process.
#[derive(Debug)]
pub(crate) struct End {
    /// The exit code. `None` if a signal ended the process.
    pub(crate) code: Option<i32>,
    /// Standard output.
    pub(crate) stdout: String,
    /// Standard error.
    pub(crate) stderr: String,
}

/// Runs the binary with `args` on models in these files and folders.
///
/// The address space is limited to twice the size of the files (one mapping and one copy), plus [`MEMORY`] for
/// everything else: the program itself, the stacks of its threads, and its allocations.
pub(crate) fn run(args: &[&str], files: &[&Path]) -> End {
    fed(args, files, Stdio::null())
}

/// Like [`run`], with this standard input.
pub(crate) fn fed(args: &[&str], files: &[&Path], input: Stdio) -> End {
    let size: u64 = files.iter().map(|path| bytes(path)).sum();
    let kilobytes = (2 * size + MEMORY) / 1024;
    let script = r#"ulimit -v "$0" && ulimit -t "$1" && shift && exec timeout -s KILL "$@""#;
    let output = Command::new("/bin/sh")
        .args(["-c", script, &kilobytes.to_string(), SECONDS, HANGS, env!("CARGO_BIN_EXE_llama-trace")])
        .args(args)
        // Each thread needs address space for its stack. With a fixed number of threads, the limit is the same on a
        // machine with many cores.
        .env("RAYON_NUM_THREADS", "2")
        .stdin(input)
        .output()
        .unwrap();
    End { code: output.status.code(), stdout: stdout(&output), stderr: stderr(&output) }
}

fn bytes(path: &Path) -> u64 {
    if path.is_dir() {
        return std::fs::read_dir(path).unwrap().map(|entry| bytes(&entry.unwrap().path())).sum();
    }
    path.metadata().unwrap().len()
}

impl End {
    /// Returns what went wrong, if anything did. A refusal of the file with a proper message is not an error.
    pub(crate) fn wrong(&self) -> Option<String> {
        let what = match self.code {
            Some(0) => None,
            Some(2..=6)
                if self.stderr.lines().take(2).any(|line| line.starts_with("error: "))
                    && self.stderr.contains("next: ") =>
            {
                None
            }
            Some(2..=6) => Some("the message says nothing"),
            Some(101) => Some("it panicked"),
            Some(134) => Some("it aborted"),
            Some(124 | 137) => Some("it hangs"),
            None => Some("a signal ended it: it aborted, or took too much time"),
            Some(_) => Some("an exit code that means nothing"),
        };
        // A text from a file must not send control sequences to the terminal.
        let escape = (self.stdout.contains('\x1b') || self.stderr.contains('\x1b'))
            .then_some("it prints an escape sequence");
        let what = what.or(escape)?;
        Some(format!("{what} (exit code {:?}): {}", self.code, self.stderr))
    }
}
