//! Bounded rendering of templates of unknown origin. A template can loop forever, or produce more text than fits into
//! memory, so its steps and its output are limited. But a single step can still take unlimited time, stack or memory.
//! So templates of unknown origin are rendered in a separate process (`llama-trace chat` does so).

use std::collections::BTreeMap;
use std::io;

use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind};

/// The maximum size in bytes of a rendered conversation. The text of the longest contexts is shorter.
const OUTPUT: usize = 8 << 20;
/// The number of steps that a template may take, and the number of further steps for every message.
const STEPS: u64 = 200_000;
const STEPS_PER_MESSAGE: u64 = 20_000;

/// Why rendering failed.
pub(super) enum Failure {
    /// The template itself failed.
    Template(Error),
    /// The template exceeded the limit that the text names.
    Endless(String),
}

/// Renders the template `name` for a conversation of `messages` messages.
pub(super) fn render(
    mut environment: Environment<'static>,
    name: &str,
    context: BTreeMap<String, Value>,
    messages: usize,
) -> Result<Vec<u8>, Failure> {
    environment.set_fuel(Some(STEPS + STEPS_PER_MESSAGE * messages as u64));
    let mut out = Bounded(Vec::new());
    let result = environment
        .get_template(name)
        .and_then(|template| template.render_captured_to(context, &mut out).map(drop));
    match result {
        Ok(()) => Ok(out.0),
        Err(error) if error.kind() == ErrorKind::OutOfFuel => {
            Err(Failure::Endless("more steps than the limit".into()))
        }
        // Writing fails only if the output exceeds the limit.
        Err(error) if error.kind() == ErrorKind::WriteFailure => {
            Err(Failure::Endless(format!("more than {} MiB of text", OUTPUT >> 20)))
        }
        Err(error) => Err(Failure::Template(error)),
    }
}

/// A buffer that does not grow beyond [`OUTPUT`] bytes.
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
