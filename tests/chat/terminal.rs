//! A chat in a pseudo-terminal: Ctrl-C, the line editor, and the tracer in between.

use std::fs;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};

use super::bare_model;

const PATIENCE: Duration = Duration::from_secs(60);
const ENTER: &str = "\u{1b}[?1049h";
const LEAVE: &str = "\u{1b}[?1049l";
const CTRL_C: &str = "\u{3}";
const CTRL_D: &str = "\u{4}";
const UP: &str = "\u{1b}[A";

/// A chat in a terminal of its own, and all that it has written.
struct Terminal {
    child: Box<dyn Child + Send + Sync>,
    keys: Box<dyn Write + Send>,
    written: Arc<Mutex<Vec<u8>>>,
    _master: Box<dyn MasterPty + Send>,
}

impl Terminal {
    fn start(args: &[&str]) -> Self {
        let size = PtySize { rows: 24, cols: 80, pixel_width: 0, pixel_height: 0 };
        let pair = native_pty_system().openpty(size).unwrap();
        let mut command = CommandBuilder::new(env!("CARGO_BIN_EXE_llama-trace"));
        command.arg("chat");
        command.args(args);
        command.env("TERM", "xterm-256color");
        // The texts and pictures are the processor's, whatever the machine has.
        command.env("CUDA_VISIBLE_DEVICES", "");
        let child = pair.slave.spawn_command(command).unwrap();
        let written = Arc::new(Mutex::new(Vec::new()));
        let (mut reader, sink) = (pair.master.try_clone_reader().unwrap(), written.clone());
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                sink.lock().unwrap().extend_from_slice(&bytes[..count]);
            }
        });
        let keys = pair.master.take_writer().unwrap();
        Self { child, keys, written, _master: pair.master }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    /// Waits until `text` was written after the first `from` bytes, and returns where all of it ends.
    fn wait_for(&self, text: &str, from: usize) -> usize {
        let start = Instant::now();
        loop {
            let all = self.text();
            if let Some(at) = all.get(from..).and_then(|rest| rest.find(text)) {
                return from + at + text.len();
            }
            assert!(start.elapsed() < PATIENCE, "waited for {text:?} after {from} in {all:?}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    fn end(&mut self) {
        let status = self.child.wait().unwrap();
        assert_eq!(status.exit_code(), 0, "{}", self.text());
    }
}

#[test]
fn ctrl_c_stops_the_answer_and_not_the_program() {
    // A model whose answers never end: no token ends a turn, and the context is huge.
    let folder = bare_model();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    let config = fs::read_to_string(folder.path().join("config.json")).unwrap();
    write(
        "config.json",
        &config.replace("\"max_position_embeddings\": 512", "\"max_position_embeddings\": 1000000"),
    );
    write("generation_config.json", r#"{"eos_token_id": []}"#);
    write("chat_template.jinja", "{{ messages[-1].content }}");

    let mut terminal = Terminal::start(&["--model", folder.path().to_str().unwrap()]);
    let at = terminal.wait_for("> ", 0);
    terminal.press(CTRL_C);
    let at = terminal.wait_for("leaves)", at);
    let at = terminal.wait_for("> ", at);
    terminal.press("Once upon a time\r");
    let at = terminal.wait_for(" the ", at);
    terminal.press(CTRL_C);
    let at = terminal.wait_for("(stopped)", at);
    let at = terminal.wait_for("> ", at);

    terminal.press("/step\r");
    let at = terminal.wait_for(ENTER, at);
    terminal.press("q");
    let at = terminal.wait_for(LEAVE, at);
    let at = terminal.wait_for("> ", at);

    // The history has the lines of before, and after the tracer Ctrl-C still stops only the answer.
    terminal.press(UP);
    let at = terminal.wait_for("/step", at);
    terminal.press(UP);
    let at = terminal.wait_for("Once", at);
    terminal.press("\r");
    let at = terminal.wait_for(" the ", at);
    terminal.press(CTRL_C);
    let at = terminal.wait_for("(stopped)", at);
    terminal.wait_for("> ", at);
    terminal.press(CTRL_D);
    terminal.end();
}

/// The last token of an answer is what the tracer draws after all that was read, by the same random number.
#[test]
fn the_tracer_draws_what_the_answer_ended_with() {
    let mut terminal = Terminal::start(&["--temperature", "1", "-n", "6", "--seed", "2"]);
    let mut at = terminal.wait_for("> ", 0);
    for question in ["Tell me a story", "Another one"] {
        terminal.press(&format!("{question}\r"));
        let echoed = terminal.wait_for(question, at);
        let end = terminal.wait_for("> ", echoed);
        let answer = terminal.text()[echoed..end].to_owned();
        let answer = answer.lines().find(|line| line.matches(' ').count() > 2).unwrap().trim().to_owned();
        let last = answer.rsplit(' ').next().unwrap();
        terminal.press("/step\r");
        let entered = terminal.wait_for(ENTER, end);
        // In 80 columns that is temperature and seed. What is next has a colour of its own, and is no token of the lists.
        let title = terminal.wait_for("T 1 s 2", entered);
        let next = terminal.wait_for(&format!("\u{2423}{last}"), title);
        terminal.wait_for(" is next", next);
        terminal.press("q");
        let left = terminal.wait_for(LEAVE, title);
        at = terminal.wait_for("> ", left);
    }
    terminal.press(CTRL_D);
    terminal.end();
}

#[test]
fn a_chat_in_a_terminal_says_how_it_is_left() {
    let mut terminal = Terminal::start(&[]);
    let at = terminal.wait_for("/help shows the commands", 0);
    let at = terminal.wait_for("> ", at);
    terminal.press("What does softmaxx\u{7f} do?\r");
    let at = terminal.wait_for("add up to one.", at);
    let at = terminal.wait_for("> ", at);
    terminal.press("/step now\r");
    let at = terminal.wait_for("no such command", at);
    terminal.wait_for("> ", at);
    terminal.press("/quit\r");
    terminal.end();
}
