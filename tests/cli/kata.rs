//! `llama-trace kata`: the program of the user as a process, and its verdict.

#[path = "kata/listed.rs"]
mod listed;
#[cfg(unix)]
#[path = "kata/process.rs"]
mod process;
#[path = "kata/python.rs"]
mod python;

use std::path::Path;
use std::process::Command;

/// The end of `llama-trace kata`.
struct End {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Runs `llama-trace kata` with temporary folders below `folder`.
fn kata(args: &[&str], folder: &Path) -> End {
    let output = Command::new(env!("CARGO_BIN_EXE_llama-trace"))
        .arg("kata")
        .args(args)
        .env("TMPDIR", folder)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    End { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

/// An interpreter with numpy, or `None` with a printed reason.
fn python_with_numpy() -> Option<String> {
    let python = std::env::var("LLAMA_TRACE_PYTHON").unwrap_or_else(|_| "python3".into());
    let found = Command::new(&python).args(["-c", "import numpy"]).output();
    if found.is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    println!("skipped: {python} with numpy is not there");
    None
}
