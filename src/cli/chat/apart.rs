//! Rendering a chat template in a process of its own. A template is a program that somebody else wrote, in a
//! language whose steps can be of any depth and any size: what it does to the process that runs it (a stack that is
//! full, memory that is not there, time without end) must not end the chat. So it runs in one that may take little,
//! and whose end is a message.
//!
//! The process is this program once more, with [`ARGUMENT`] alone. It reads the request from its standard input and
//! writes the answer to its standard output, both as JSON.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{Read, Write, stdin, stdout};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use llama_trace_core::error::{Error, Result};
use llama_trace_core::stop::{self, Stop};
use llama_trace_ending as ending;
use llama_trace_engine::generate::chat::{Message, Template};

/// What tells the program that it is the one that renders. No part of the command line: nobody is told of it.
pub(crate) const ARGUMENT: &str = "__render-chat-template";

/// What the process may take: bytes of address space, where the system bounds that, and seconds.
const MEMORY: u64 = 1 << 30;
const TIME: Duration = Duration::from_secs(10);
/// Stack of the thread that renders.
const STACK: usize = 32 << 20;
/// The longest answer: the longest text, with every character escaped.
const ANSWER: u64 = 64 << 20;
/// The most that is read of what a process said before it ended.
const WORDS: u64 = 4096;

/// A template that is only ever read and rendered in another process.
pub(super) struct Apart {
    text: String,
    place: String,
    tokens: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
struct Request<T: Ord, M> {
    text: T,
    place: T,
    tokens: BTreeMap<T, T>,
    messages: M,
}

impl Apart {
    /// A template as [`Template::new`] takes it; it is not looked at yet.
    pub(super) fn new(text: String, place: &str, tokens: BTreeMap<String, String>) -> Self {
        Self { text, place: place.into(), tokens }
    }

    /// What the template is called in messages.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// As [`Template::new`] and [`Template::render`], until `stop` is asked.
    ///
    /// # Errors
    /// Theirs, [`Error::Model`] where the template takes more than it may, [`Error::Prompt`] where no process can be
    /// started, and [`Error::Interrupted`].
    pub(super) fn render(&self, messages: &[Message], stop: &Stop) -> Result<String> {
        let failed = |error: &dyn Display| no_process(&self.place, error);
        let tokens = self.tokens.iter().map(|(name, token)| (name.as_str(), token.as_str())).collect();
        let request = Request { text: &*self.text, place: &*self.place, tokens, messages };
        let request = serde_json::to_vec(&request).map_err(|error| failed(&error))?;
        let piped = || Stdio::piped();
        let mut child = ending::program().and_then(|program| {
            Command::new(program).arg(ARGUMENT).stdin(piped()).stdout(piped()).stderr(piped()).spawn()
        });
        let child = child.as_mut().map_err(|error| failed(error))?;
        let said = converse(child, &request, stop);
        // Where it has ended by itself this does nothing.
        let _ = child.kill();
        let status = child.wait().map_err(|error| failed(&error))?;
        stop.check()?;
        match said.map_err(|error| failed(&error))? {
            None => Err(self.beyond(&over_time())),
            Some(Said { answer, words }) => {
                serde_json::from_slice(&answer).unwrap_or_else(|_| Err(self.ended(status, &words)))
            }
        }
    }

    /// The error for a process that ended without an answer.
    fn ended(&self, status: ExitStatus, words: &str) -> Error {
        #[cfg(unix)]
        if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
            use signal_hook::consts::{SIGINT, SIGTERM};
            if signal == SIGINT {
                // A terminal sends it to this process too, which may hear of it only now.
                return Error::interrupted("the chat template was stopped");
            }
            if signal == SIGTERM {
                return Error::prompt("the chat template was stopped").at(&self.place);
            }
            if signal == rustix::process::Signal::XCPU.as_raw() {
                return self.beyond(&over_time());
            }
        }
        // What is said before a process ends for lack of a stack or of memory.
        self.beyond(&match words {
            words if words.contains("overflowed its stack") => "steps inside one another without end".into(),
            words if words.contains("memory") => {
                format!("more than {} MiB of memory", MEMORY >> 20)
            }
            _ => format!("its process ended ({status})"),
        })
    }

    fn beyond(&self, found: &str) -> Error {
        Error::model("the chat template takes more than it may")
            .at(&self.place)
            .expected(format!(
                "a text after at most {} seconds, in {} MiB of memory",
                TIME.as_secs(),
                MEMORY >> 20
            ))
            .found(found)
            .next("fetch the file again, or put a working chat_template.jinja beside the model")
    }
}

fn no_process(place: &str, error: &dyn Display) -> Error {
    Error::prompt("no process can be started for the chat template")
        .at(place)
        .expected("room for one more process")
        .found(error)
        .next("end other programs, or raise the limit on processes (ulimit -u)")
}

fn over_time() -> String {
    format!("more than {} seconds", TIME.as_secs())
}

/// What a process wrote to its standard output, and to its standard error.
struct Said {
    answer: Vec<u8>,
    words: String,
}

/// Gives the process its request and takes what it says up to its end; none where time is up or `stop` is asked
/// before.
fn converse(child: &mut Child, request: &[u8], stop: &Stop) -> std::io::Result<Option<Said>> {
    let (Some(mut stdin), Some(stdout), Some(stderr)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Ok(None);
    };
    let (sender, receiver) = channel();
    let talk = move || {
        // It reads all before it writes. Where it has ended it reads nothing, and how it ended tells why.
        let _ = stdin.write_all(request);
        drop(stdin);
        let (mut answer, mut words) = (Vec::new(), Vec::new());
        let _ = stdout.take(ANSWER).read_to_end(&mut answer);
        let _ = stderr.take(WORDS).read_to_end(&mut words);
        let _ = sender.send(Said { answer, words: String::from_utf8_lossy(&words).into_owned() });
    };
    thread::scope(|scope| {
        let started = Instant::now();
        thread::Builder::new().name("chat template".into()).spawn_scoped(scope, talk)?;
        while !stop.asked() && started.elapsed() < TIME {
            match receiver.recv_timeout(stop::LOOK) {
                Err(RecvTimeoutError::Timeout) => {}
                said => return Ok(said.ok()),
            }
        }
        // Its pipes close, and the thread ends.
        child.kill()?;
        Ok(None)
    })
}

/// What the process does that renders: takes its limits, reads the request, and answers.
pub(crate) fn serve() -> ExitCode {
    limit();
    // A panic is an end like any other; its text could be as long as the template's.
    std::panic::set_hook(Box::new(|_| {}));
    let answer = || -> Option<()> {
        let mut request = Vec::new();
        stdin().lock().read_to_end(&mut request).ok()?;
        let request: Request<String, Vec<Message>> = serde_json::from_slice(&request).ok()?;
        let place = request.place.clone();
        let render = move || {
            let template = Template::new(&request.text, &request.place, request.tokens);
            template.and_then(|template| template.render(&request.messages))
        };
        let answer = match thread::Builder::new().stack_size(STACK).spawn(render) {
            Ok(thread) => thread.join().ok()?,
            Err(error) => Err(no_process(&place, &error)),
        };
        let mut out = stdout().lock();
        out.write_all(&serde_json::to_vec(&answer).ok()?).and_then(|()| out.flush()).ok()
    };
    match answer() {
        Some(()) => ExitCode::SUCCESS,
        None => ExitCode::FAILURE,
    }
}

/// Takes the limits, which end the process where it goes beyond them. Some systems do not bound the memory.
fn limit() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        // No file is written of what it was when it ended.
        for (resource, most) in [(Resource::As, MEMORY), (Resource::Cpu, TIME.as_secs()), (Resource::Core, 0)]
        {
            let Rlimit { current, maximum } = getrlimit(resource);
            let current = Some(current.map_or(most, |limit| limit.min(most)));
            // There is no limit that may not be lowered.
            let _ = setrlimit(resource, Rlimit { current, maximum });
        }
    }
}
