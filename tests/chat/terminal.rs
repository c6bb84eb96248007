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

/// A chat in a separate terminal, and all its output so far.
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
        // The expected texts and pictures are those of the CPU, so hide any GPU.
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

    /// Waits until the output after the first `from` bytes contains `text`. Returns the end of `text` in the output.
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
fn ctrl_c_stops_only_the_answer() {
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

    // The history still has the earlier lines. After the tracer, Ctrl-C still stops only the answer.
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

/// The model has not read the last token of an answer. The tracer samples this token again, with the same random
/// number.
#[test]
fn the_tracer_samples_the_last_token_of_the_answer_again() {
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
        // In 80 columns the title is short: temperature and seed. The next token has another colour, and it is not in
        // the lists of tokens.
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
fn a_chat_in_a_terminal_says_how_to_leave() {
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

impl Terminal {
    fn press_bytes(&mut self, bytes: &[u8]) {
        self.keys.write_all(bytes).unwrap();
        self.keys.flush().unwrap();
    }
}

/// A byte that is not UTF-8 is shown in the line. It ends neither the line nor the conversation.
#[test]
fn an_invalid_byte_stays_in_its_line_if_typed_or_pasted() {
    let mut terminal = Terminal::start(&["-n", "3"]);
    let mut at = terminal.wait_for("> ", 0);
    // Latin-1, a truncated character, a byte that begins no character in any encoding; then the same bytes in pastes.
    for bytes in [&b"caf\xe9 au lait"[..], b"a\xff b", b"x\xc3", b"\x80\x81y"] {
        for pasted in [false, true] {
            terminal.press_bytes(&match pasted {
                true => [b"\x1b[200~", bytes, b"\x1b[201~"].concat(),
                false => bytes.to_vec(),
            });
            let shown = String::from_utf8_lossy(bytes).into_owned();
            at = terminal.wait_for(&shown, at);
            // Ctrl-U empties the line, so the next text is a new line.
            terminal.press("\u{15}What does softmax do?\r");
            at = terminal.wait_for("\nSof", at);
            at = terminal.wait_for("> ", at);
        }
    }
    assert!(!terminal.text().contains("error:"), "{}", terminal.text());
    terminal.press(CTRL_D);
    terminal.end();
}

/// The number of bytes that are written to draw a long text depends on the size of the screen. It does not depend on
/// the number of pieces in which the text arrives.
#[test]
fn a_long_text_without_paste_marks_is_not_drawn_for_each_piece() {
    let mut terminal = Terminal::start(&[]);
    let at = terminal.wait_for("> ", 0);
    let text = "many words without an end ".repeat(8_000);
    for part in text.as_bytes().chunks(4000) {
        terminal.press_bytes(part);
    }
    terminal.press("\r");
    let at = terminal.wait_for("longer than the model's context", at);
    let at = terminal.wait_for("> ", at);
    let written = terminal.text().len();
    assert!(written < 10 * text.len(), "{written} bytes were drawn for {} typed ones", text.len());
    terminal.press("What does softmax do?\r");
    let at = terminal.wait_for("add up to one.", at);
    terminal.wait_for("> ", at);
    terminal.press(CTRL_D);
    terminal.end();
}

#[test]
fn a_line_is_edited_and_the_next_one_may_be_typed_ahead() {
    let mut terminal = Terminal::start(&["-n", "40"]);
    let at = terminal.wait_for("> ", 0);
    // Moves left over a word, cuts a word and puts it back, deletes an accent together with its letter, and sends two
    // lines together.
    terminal
        .press("do softmax What\u{17}\u{1b}[1;5D\u{1b}[1;5D\u{19} does \u{1b}[3~\u{1b}[3~\u{1b}[3~\u{5}do?");
    let at = terminal.wait_for("What does softmax do?", at);
    terminal.press("\r/help\r");
    let at = terminal.wait_for("add up to one.", at);
    let at = terminal.wait_for("/regenerate", at);
    terminal.wait_for("> ", at);
    terminal.press(CTRL_D);
    terminal.end();
}
