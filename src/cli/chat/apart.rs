//! Rendering of a chat template in a separate process. A template is an untrusted program, which may exhaust the stack,
//! the memory or the time of its process. This must not end the chat. So the template runs in a process with limits. If
//! that process ends early, the chat prints a message.
//!
//! The process is this program, started with [`ARGUMENT`] as its only argument. It reads the request from standard
//! input and writes the answer to standard output, both as JSON.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::hint::black_box;
use std::io::{Read, Write, stdin, stdout};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use llama_trace_core::error::{Error, Result};
use llama_trace_core::memory::naming;
use llama_trace_core::stop::{self, Stop};
use llama_trace_ending as ending;
use llama_trace_engine::generate::chat::{Message, Template};

/// The hidden argument that starts the rendering process. It is not part of the documented command line.
pub(crate) const ARGUMENT: &str = "__render-chat-template";

/// Limits of the process: bytes of address space (if the system supports such a limit), and seconds.
const MEMORY: u64 = 1 << 30;
const TIME: Duration = Duration::from_secs(10);
/// Stack size of the rendering thread, in bytes.
const STACK: usize = 32 << 20;
/// Memory that one more thread takes in this process at most, in bytes.
const THREAD: usize = 4 << 20;
/// Maximum length of an answer, in bytes: the longest text, with every character escaped.
const ANSWER: u64 = 64 << 20;
/// Maximum number of bytes read from the process's standard error.
const WORDS: u64 = 4096;

/// A template that is parsed and rendered only in another process.
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
    /// A template with the arguments of [`Template::new`]. It is not parsed yet.
    pub(super) fn new(text: String, place: &str, tokens: BTreeMap<String, String>) -> Self {
        Self { text, place: place.into(), tokens }
    }

    /// The template's name in messages.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// Runs [`Template::new`] and [`Template::render`] in the other process. A stop request ends that
    /// process.
    ///
    /// # Errors
    /// The errors of those two functions. [`Error::Model`] if the template exceeds a limit, [`Error::Prompt`] if no
    /// process can be started, and [`Error::Interrupted`].
    pub(super) fn render(&self, messages: &[Message], stop: &Stop) -> Result<String> {
        let failed = |error: &dyn Display| no_process(&self.place, THREAD, error);
        let tokens = self.tokens.iter().map(|(name, token)| (name.as_str(), token.as_str())).collect();
        let request = Request { text: &*self.text, place: &*self.place, tokens, messages };
        let request = serde_json::to_vec(&request).map_err(|error| failed(&error))?;
        let piped = || Stdio::piped();
        let mut child = ending::program().and_then(|program| {
            Command::new(program).arg(ARGUMENT).stdin(piped()).stdout(piped()).stderr(piped()).spawn()
        });
        let child = child.as_mut().map_err(|error| failed(error))?;
        let said = converse(child, &request, stop);
        // This has no effect if the process has already ended.
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
                // The terminal sends the signal to both processes, and this one may notice it only now.
                return Error::interrupted("the chat template was stopped");
            }
            if signal == SIGTERM {
                return Error::prompt("the chat template was stopped").at(&self.place);
            }
            if signal == rustix::process::Signal::XCPU.as_raw() {
                return self.beyond(&over_time());
            }
        }
        if little_memory() && !words.contains("overflowed its stack") {
            missing(MEMORY as usize);
        }
        // The words that a process prints when it runs out of stack or memory.
        self.beyond(&match words {
            words if words.contains("overflowed its stack") => "recursion without end".into(),
            words if words.contains("memory") => {
                format!("more than {} MiB of memory", MEMORY >> 20)
            }
            _ => format!("its process ended ({status})"),
        })
    }

    fn beyond(&self, found: &str) -> Error {
        Error::model("the chat template takes too much time or memory")
            .at(&self.place)
            .expected(format!("a text within {} seconds and {} MiB of memory", TIME.as_secs(), MEMORY >> 20))
            .found(found)
            .next("fetch the file again, or put a working chat_template.jinja beside the model")
    }
}

/// Returns whether this process may use less memory than a template's process.
fn little_memory() -> bool {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, getrlimit};
        getrlimit(Resource::As).current.is_some_and(|limit| limit < MEMORY)
    }
    #[cfg(not(unix))]
    false
}

/// Allocates this many bytes. If there is no memory for them, the program ends as after any other failed allocation.
fn missing(bytes: usize) {
    naming("the process of the chat template", || drop(black_box(Vec::<u8>::with_capacity(bytes))));
}

/// The error for a process or thread that cannot be started. `bytes` is the memory that it needs. The system does not
/// say whether memory is missing. So this function allocates the same amount, and the program ends if the allocation
/// fails.
fn no_process(place: &str, bytes: usize, error: &dyn Display) -> Error {
    missing(bytes);
    Error::prompt("no process can be started for the chat template")
        .at(place)
        .expected("room for one more process")
        .found(error)
        .next("end other programs, or raise the limit on processes (ulimit -u)")
}

fn over_time() -> String {
    format!("more than {} seconds", TIME.as_secs())
}

/// Standard output and standard error of a process.
struct Said {
    answer: Vec<u8>,
    words: String,
}

/// Sends the request to the process and reads all its output. None after a timeout or a stop request.
fn converse(child: &mut Child, request: &[u8], stop: &Stop) -> std::io::Result<Option<Said>> {
    let (Some(mut stdin), Some(stdout), Some(stderr)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Ok(None);
    };
    let (sender, receiver) = channel();
    let talk = move || {
        // The process reads the whole request before it writes. If it has ended already, its exit status says why.
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
        // This closes the process's pipes, which ends the thread.
        child.kill()?;
        Ok(None)
    })
}

/// Main function of the rendering process: sets the limits, reads the request, and answers.
pub(crate) fn serve() -> ExitCode {
    limit();
    // The message of a panic could be as long as the template's text.
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
            Err(error) => Err(no_process(&place, STACK + THREAD, &error)),
        };
        let mut out = stdout().lock();
        out.write_all(&serde_json::to_vec(&answer).ok()?).and_then(|()| out.flush()).ok()
    };
    match answer() {
        Some(()) => ExitCode::SUCCESS,
        None => ExitCode::FAILURE,
    }
}

/// Sets the limits. The system ends a process that exceeds them. Some systems cannot limit the memory.
fn limit() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        // The limit 0 on `Core` prevents a core file.
        for (resource, most) in [(Resource::As, MEMORY), (Resource::Cpu, TIME.as_secs()), (Resource::Core, 0)]
        {
            let Rlimit { current, maximum } = getrlimit(resource);
            let current = Some(current.map_or(most, |limit| limit.min(most)));
            // Lowering a limit is always allowed.
            let _ = setrlimit(resource, Rlimit { current, maximum });
        }
    }
}
