//! Rendering what somebody else wrote: a template can loop for ever, or make a text that no memory holds.
//! Its steps, its output, its time and, where the system says how much a process has, its memory are bounded.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind};

/// The most bytes that a rendered conversation may have. The longest contexts hold less text.
const OUTPUT: usize = 8 << 20;
/// Steps of the template's program that are allowed, and more for every message.
const STEPS: u64 = 200_000;
const STEPS_PER_MESSAGE: u64 = 20_000;
/// A single step can be long too, and can double a text.
const TIME: Duration = Duration::from_secs(10);
const MEMORY: u64 = 1 << 30;
/// How often the time and the memory are looked at.
const LOOK: Duration = Duration::from_millis(5);
/// Stack of the thread that renders; macros may call themselves as deep as the recursion limit.
const STACK: usize = 32 << 20;

/// Why there is no text.
pub(super) enum Failure {
    /// The template failed by itself.
    Template(Error),
    /// It went past a bound, this one.
    Endless(String),
}

/// Renders the template `name` for a conversation of `messages` messages. One that is given up is left
/// behind on its thread, which ends with its steps or with the program.
pub(super) fn render(
    mut environment: Environment<'static>,
    name: &'static str,
    context: BTreeMap<String, Value>,
    messages: usize,
) -> Result<Vec<u8>, Failure> {
    environment.set_fuel(Some(STEPS + STEPS_PER_MESSAGE * messages as u64));
    let (sender, receiver) = channel();
    let work = move || {
        let mut out = Bounded(Vec::new());
        let result = environment
            .get_template(name)
            .and_then(|template| template.render_captured_to(context, &mut out).map(drop));
        // Nobody listens any more where it was given up.
        drop(sender.send(result.map(|()| out.0)));
    };
    let (started, before) = (Instant::now(), memory());
    let thread = thread::Builder::new().name("chat template".into()).stack_size(STACK).spawn(work);
    thread.map_err(|error| Failure::Endless(format!("no thread: {error}")))?;
    loop {
        match receiver.recv_timeout(LOOK) {
            Ok(Ok(bytes)) => return Ok(bytes),
            Ok(Err(error)) if error.kind() == ErrorKind::OutOfFuel => {
                return Err(Failure::Endless("more steps than that".into()));
            }
            // Writing fails only past its bound.
            Ok(Err(error)) if error.kind() == ErrorKind::WriteFailure => {
                return Err(Failure::Endless(format!("more than {} MiB of text", OUTPUT >> 20)));
            }
            Ok(Err(error)) => return Err(Failure::Template(error)),
            Err(RecvTimeoutError::Disconnected) => return Err(Failure::Endless("a panic".into())),
            Err(RecvTimeoutError::Timeout) if started.elapsed() > TIME => {
                return Err(Failure::Endless(format!("more than {} seconds", TIME.as_secs())));
            }
            Err(RecvTimeoutError::Timeout) if memory().saturating_sub(before) > MEMORY => {
                return Err(Failure::Endless(format!("more than {} MiB of memory", MEMORY >> 20)));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Bytes of memory that this process uses; 0 where the system does not say.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next());
    kilobytes.and_then(|number| number.parse::<u64>().ok()).map_or(0, |kilobytes| kilobytes << 10)
}

/// A buffer that refuses to grow past [`OUTPUT`].
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > OUTPUT {
            return Err(io::Error::other("too much output"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
