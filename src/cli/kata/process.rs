//! Runs a student's program: without a shell, in a process group of its own, with a deadline.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use llama_trace_core::error::{Error, Result};
use llama_trace_core::stop;

/// Bytes that are kept of what the program prints; earlier ones are dropped.
const KEPT: usize = 1 << 14;
/// How long the readers may take after the end of the program. A process that left the group may keep the pipes open.
const GRACE: Duration = Duration::from_millis(500);
/// The interval at which the program is looked at.
const LOOK: Duration = Duration::from_millis(10);

/// The end of a program.
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    /// The last lines of its standard output, and of its standard error.
    pub(super) printed: [String; 2],
}

/// The words of a command line, as a shell splits them without expanding anything.
///
/// # Errors
/// [`Error::Usage`] if a quote is open, or if there is no word.
pub(super) fn words(command: &str) -> Result<Vec<String>> {
    let wrong = |what: &str| {
        Error::usage(format!("the command {what}"))
            .expected("a program and its arguments, as 'python3 rms_norm.py'")
            .found(format!("`{command}`"))
    };
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut letters = command.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), letter) if letter == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            // A backslash is a part of a path on Windows.
            (None | Some('"'), '\\') if cfg!(unix) => {
                let next = letters.next().ok_or_else(|| wrong("ends with a backslash"))?;
                word.get_or_insert_default().push(next);
            }
            (None, letter) if letter.is_whitespace() => words.extend(word.take()),
            (_, letter) => word.get_or_insert_default().push(letter),
        }
    }
    if quote.is_some() {
        return Err(wrong("has an open quote"));
    }
    words.extend(word);
    if words.first().is_none_or(String::is_empty) { Err(wrong("is empty")) } else { Ok(words) }
}

/// Ends all processes of the program's group. Processes that it left behind are in the group, too.
fn end(child: &mut Child) {
    #[cfg(unix)]
    if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        // The group may have ended already.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    drop(child.kill());
}

/// Reads the end of a pipe on a thread of its own.
fn tail(mut pipe: impl Read + Send + 'static) -> (Arc<Mutex<Vec<u8>>>, Option<thread::JoinHandle<()>>) {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let into = Arc::clone(&kept);
    let read = move || {
        let mut part = [0; 1 << 12];
        while let Ok(count @ 1..) = pipe.read(&mut part) {
            let mut kept = into.lock().unwrap_or_else(PoisonError::into_inner);
            kept.extend_from_slice(&part[..count]);
            let more = kept.len().saturating_sub(KEPT);
            kept.drain(..more);
        }
    };
    let reader = thread::Builder::new().name("output of the program".into()).spawn(read).ok();
    (kept, reader)
}

/// Starts the program with `folder` as its last argument, and waits for its end. `grows` is asked now and then whether
/// the program has written too much.
///
/// # Errors
/// [`Error::Usage`] if it cannot be started, [`Error::Failed`] at the deadline, and a stop request.
pub(super) fn run(
    words: &[String],
    folder: &std::path::Path,
    seconds: usize,
    grows: &dyn Fn() -> Option<String>,
) -> Result<Ended> {
    let (program, arguments) = words.split_first().ok_or_else(|| Error::usage("there is no command"))?;
    let mut command = Command::new(program);
    command.args(arguments).arg(folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut child = command.spawn().map_err(|error| {
        Error::usage("the program cannot be started")
            .at(program)
            .found(error)
            .next("check the name of the program, or give its path")
    })?;
    let mut pipes = Vec::new();
    pipes.extend(child.stdout.take().map(tail));
    pipes.extend(child.stderr.take().map(tail));
    let started = Instant::now();
    let ended = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Ok(status),
            Ok(None) => {}
            Err(error) => break Err(Error::failed("the program cannot be waited for").found(error)),
        }
        if let Err(error) = stop::check() {
            break Err(error);
        }
        if started.elapsed() >= Duration::from_secs(seconds as u64) {
            break Err(Error::failed("the program did not end in time")
                .at(program)
                .expected(format!("an end within {seconds} s"))
                .found("it was ended, with all processes that it started")
                .next("make it faster, or give it more time with --timeout"));
        }
        if let Some(what) = grows() {
            break Err(Error::failed("the program writes too much").at(program).found(what));
        }
        thread::sleep(LOOK);
    };
    end(&mut child);
    drop(child.wait());
    let status = ended?;
    let until = Instant::now() + GRACE;
    let printed = pipes.into_iter().map(|(kept, reader)| {
        while reader.as_ref().is_some_and(|reader| !reader.is_finished()) && Instant::now() < until {
            thread::sleep(LOOK);
        }
        let kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&kept).into_owned()
    });
    let mut printed = printed.collect::<Vec<_>>().into_iter();
    let printed = [printed.next().unwrap_or_default(), printed.next().unwrap_or_default()];
    Ok(Ended { status, printed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_split_into_words_without_a_shell() {
        let split = |text: &str| words(text).unwrap();
        assert_eq!(split("python3 rms_norm.py"), ["python3", "rms_norm.py"]);
        assert_eq!(split("  'my python' \"a b\" $HOME *.py"), ["my python", "a b", "$HOME", "*.py"]);
        assert_eq!(split("a '' b"), ["a", "", "b"]);
        #[cfg(unix)]
        assert_eq!(split(r#"a\ b "c\"d" 'e\f'"#), ["a b", "c\"d", "e\\f"]);
        for wrong in ["", "   ", "'a", "\"", "''"] {
            assert!(words(wrong).is_err(), "{wrong}");
        }
    }
}
