//! Runs the commands of a chapter. Commands that open the viewer run in a pseudo-terminal, the others directly.

use std::io::{Read, Write};
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use llama_trace::trace::Step;
use portable_pty::{CommandBuilder, PtySize, native_pty_system};

const BINARY: &str = env!("CARGO_BIN_EXE_llama-trace");
const PATIENCE: Duration = Duration::from_secs(120);
const SIZE: PtySize = PtySize { rows: 50, cols: 180, pixel_width: 0, pixel_height: 0 };

/// The value of an option among `words`.
pub(crate) fn option<'a>(words: &'a [String], names: &[&str]) -> Option<&'a str> {
    let at = words.iter().position(|word| names.contains(&word.as_str()))?;
    words.get(at + 1).map(String::as_str)
}

/// Returns whether the command opens the viewer.
pub(crate) fn opens_viewer(words: &[String]) -> bool {
    let has = |names: &[&str]| words.iter().any(|word| names.contains(&word.as_str()));
    let prints = matches!(
        words.get(1).map(String::as_str),
        Some("log" | "export" | "info" | "snapshot" | "diff" | "patch")
    ) || has(&["--help", "-h", "--version", "-V"]);
    !prints && (has(&["--step"]) || !has(&["--prompt", "-p", "--prompt-file", "--ids"]))
}

/// Runs a command that prints, in `folder`. Returns its exit code and standard output.
pub(crate) fn print(words: &[String], folder: &Path) -> (i32, String) {
    let mut command = std::process::Command::new(BINARY);
    // The expected texts and pictures are those of the CPU, so hide any GPU.
    command.env("CUDA_VISIBLE_DEVICES", "");
    let output = command.args(&words[1..]).current_dir(folder).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code().unwrap_or(-1), text)
}

/// Runs a command that opens the viewer, waits until the viewer shows the place in the options, and quits. Returns the
/// exit code. If the command ends by itself, the function returns at once.
///
/// # Errors
/// The last screen, if the place never appears.
pub(crate) fn view(words: &[String], folder: &Path) -> Result<i32, String> {
    let pair = native_pty_system().openpty(SIZE).unwrap();
    let mut command = CommandBuilder::new(BINARY);
    command.env("CUDA_VISIBLE_DEVICES", "");
    command.args(&words[1..]);
    command.cwd(folder);
    command.env("TERM", "xterm-256color");
    command.env_remove("NO_COLOR");
    let mut child = pair.slave.spawn_command(command).unwrap();
    drop(pair.slave);
    let output = bytes_of(pair.master.try_clone_reader().unwrap());
    let mut input = pair.master.take_writer().unwrap();
    let mut parser = vt100::Parser::new(SIZE.rows, SIZE.cols, 0);
    let (start, mut quit) = (Instant::now(), false);
    loop {
        match output.recv_timeout(Duration::from_millis(50)) {
            Ok(bytes) => parser.process(&bytes),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if !quit && shows(words, &parser.screen().contents()) {
            input.write_all(b"q").unwrap();
            input.flush().unwrap();
            quit = true;
        }
        if start.elapsed() > PATIENCE {
            child.kill().unwrap();
            child.wait().unwrap();
            let doing = if quit { "it does not quit" } else { "it never shows the place" };
            return Err(format!("{doing}:\n{}", parser.screen().contents()));
        }
        if child.try_wait().unwrap().is_some() {
            break;
        }
    }
    let code = child.wait().unwrap().exit_code() as i32;
    if code == 0 && !quit { Err("it ended without showing the place".into()) } else { Ok(code) }
}

/// Opens the viewer without colours in a window of this size. Types each of `keys`, and waits for the text next to it.
/// Returns the screen when it is `done`.
///
/// # Errors
/// The last screen, if some text never appears.
pub(crate) fn screen(
    words: &[String],
    (cols, rows): (u16, u16),
    keys: &[(String, String)],
    mut done: impl FnMut(&str) -> bool,
) -> Result<String, String> {
    let pair = native_pty_system().openpty(PtySize { rows, cols, ..SIZE }).unwrap();
    let mut command = CommandBuilder::new(BINARY);
    command.env("CUDA_VISIBLE_DEVICES", "");
    command.args(&words[1..]);
    command.env("TERM", "xterm-256color");
    command.env("NO_COLOR", "1");
    let mut child = pair.slave.spawn_command(command).unwrap();
    drop(pair.slave);
    let output = bytes_of(pair.master.try_clone_reader().unwrap());
    let mut input = pair.master.take_writer().unwrap();
    let mut parser = vt100::Parser::new(rows, cols, 0);
    let (start, mut awaited) = (Instant::now(), 0);
    let shown = loop {
        match output.recv_timeout(Duration::from_millis(50)) {
            Ok(bytes) => parser.process(&bytes),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break Err(parser.screen().contents()),
        }
        let shown = parser.screen().contents();
        match keys.get(awaited) {
            Some((_, text)) if shown.contains(text) => {
                awaited += 1;
                let next = keys.get(awaited).map_or("", |(typed, _)| typed);
                input.write_all(next.as_bytes()).and_then(|()| input.flush()).unwrap();
            }
            None if done(&shown) => break Ok(shown),
            _ if start.elapsed() > PATIENCE => break Err(shown),
            _ => {}
        }
    };
    child.kill().unwrap();
    child.wait().unwrap();
    shown
}

/// The chunks that the child writes, until it ends.
fn bytes_of(mut reader: Box<dyn Read + Send>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut bytes = [0; 8192];
        while let Ok(count) = reader.read(&mut bytes) {
            if count == 0 || sender.send(bytes[..count].to_vec()).is_err() {
                break;
            }
        }
    });
    receiver
}

/// Returns whether the screen shows the pass, layer, stage and head of the options. The title has the pass and the
/// layer, and the address under the cursor has all four.
fn shows(words: &[String], screen: &str) -> bool {
    let pass = option(words, &["--pass"]).unwrap_or("0");
    let layer = option(words, &["--layer"]);
    let head = option(words, &["--head"]);
    let named = option(words, &["--stage"]);
    let step = named.and_then(Step::from_name);
    let in_layer = step.map_or(layer.is_some(), |step| step.stage().in_layer());
    let layer = in_layer.then(|| layer.unwrap_or("0"));
    let first = if in_layer { "attn_norm" } else { "tokens" };
    let name = named.unwrap_or(first);
    let path = match layer {
        Some(layer) => format!("p{pass}/L{layer}/{name}["),
        None => format!("p{pass}/{name}["),
    };
    let title = screen.lines().next().unwrap_or_default();
    let in_title = title.contains(&format!("pass {pass} ("))
        && layer.is_none_or(|layer| title.contains(&format!("layer {layer} of")));
    // The line `path[h=2,t=0,k=0] = value` appears as soon as the values have arrived.
    let address = screen.lines().find_map(|line| line.split_once(&path)?.1.split_once("] = "));
    let has_heads = |step: Step| step.axes().iter().any(|axis| axis.index() == 'h');
    let held = match head {
        Some(head) if step.is_some_and(has_heads) => Some(format!("h={head}")),
        _ => None,
    };
    let at_head = |index: &str| held.as_ref().is_none_or(|held| index.split(',').any(|part| part == held));
    in_title && address.is_some_and(|(index, _)| at_head(index))
}
