//! Shared code of the tests: the folders with test data, and the binary.
#![allow(dead_code, reason = "every test file uses a part of it")]

pub(crate) mod logits;
pub(crate) mod models;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Path of a file or folder under fixtures/.
pub(crate) fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(path)
}

static SKIPS: AtomicUsize = AtomicUsize::new(0);

/// Path of a real model file next to the checkout (`../shared/data`, or `LLAMA_TRACE_DATA`). If it does not exist, the
/// caller skips its test.
pub(crate) fn data(path: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("LLAMA_TRACE_DATA")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data"), PathBuf::from);
    let file = folder.join(path);
    if file.exists() {
        return Some(file);
    }
    skip(&format!("no {}", file.display()));
    None
}

/// Prints a numbered line that says that a test is skipped, and why. The line is printed even if the test harness
/// captures the output.
pub(crate) fn skip(why: &str) {
    let count = SKIPS.fetch_add(1, Ordering::Relaxed) + 1;
    let _ = writeln!(std::io::stderr(), "skip {count}: {why}");
}

/// Lets child processes receive SIGHUP even if the tests were started with nohup. A child inherits an ignored signal as
/// ignored. So this function sets a handler: a caught signal has its default action in a child.
pub(crate) fn hear_hangups() {
    #[cfg(unix)]
    {
        static ONCE: std::sync::Once = std::sync::Once::new();
        let hangup = signal_hook::consts::SIGHUP;
        ONCE.call_once(|| drop(signal_hook::flag::register(hangup, std::sync::Arc::default())));
    }
}

/// Runs the binary with `args` to its end, with empty standard input.
pub(crate) fn llama_trace<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    command(args).output().expect("the binary starts")
}

/// The command of the binary with `args`, not started yet.
pub(crate) fn command<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    hear_hangups();
    let binary = env!("CARGO_BIN_EXE_llama-trace");
    // For another processor, an emulator runs the binary.
    let mut command = match std::env::var_os("LLAMA_TRACE_RUNNER") {
        Some(runner) => {
            let mut command = Command::new(runner);
            command.arg(binary);
            command
        }
        None => Command::new(binary),
    };
    // The expected texts and pictures are those of the CPU, so hide any GPU.
    command.env("CUDA_VISIBLE_DEVICES", "");
    command.args(args).stdin(std::process::Stdio::null());
    command
}

/// Standard output as text.
pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

/// Standard error as text.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}
