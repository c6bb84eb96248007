//! A program in a pseudo-terminal, and the screen that a user would see.

use std::io::{Read, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use portable_pty::{CommandBuilder, ExitStatus, MasterPty, PtySize, SlavePty, native_pty_system};

/// Time after which a test fails. A passing test never waits this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Text on the screen before the program starts.
const BEFORE: &str = "$";

/// The output of the terminal so far.
struct Output {
    parser: vt100::Parser,
    raw: Vec<u8>,
    /// Whether the screen is complete: no drawing is in progress.
    whole: bool,
    /// If true, the reader closes the terminal.
    release: bool,
    closed: bool,
}

/// A terminal that runs a program.
pub(crate) struct Terminal {
    output: Arc<(Mutex<Output>, Condvar)>,
    reader: Option<JoinHandle<()>>,
    writer: Option<Box<dyn Write + Send>>,
    master: Option<Box<dyn MasterPty + Send>>,
    // Kept open so that the terminal outlives the program and can be examined.
    slave: Option<Box<dyn SlavePty + Send>>,
    pid: u32,
    ended: Receiver<ExitStatus>,
    has_ended: bool,
    settings: String,
}

/// The state after a program has ended.
pub(crate) struct End {
    /// The program's exit code.
    pub(crate) code: u32,
    /// The text on the screen.
    pub(crate) screen: String,
    /// All bytes that the program has written.
    pub(crate) raw: String,
}

fn size((columns, rows): (u16, u16)) -> PtySize {
    PtySize { rows, cols: columns, pixel_width: 0, pixel_height: 0 }
}

impl Terminal {
    /// Starts `command` in a new terminal of this many columns and rows.
    pub(crate) fn start(columns_rows: (u16, u16), command: CommandBuilder) -> Self {
        let pair = native_pty_system().openpty(size(columns_rows)).unwrap();
        let settings = settings(&*pair.master);
        // A window of size 0 is treated as one of the usual size.
        let (columns, rows) = if columns_rows == (0, 0) { (80, 24) } else { columns_rows };
        let mut parser = vt100::Parser::new(rows, columns, 0);
        parser.process(format!("{BEFORE}\r\n").as_bytes());
        let output = Output { parser, raw: Vec::new(), whole: true, release: false, closed: false };
        let output = Arc::new((Mutex::new(output), Condvar::new()));
        let reader = read(pair.master.try_clone_reader().unwrap(), Arc::clone(&output));
        let mut child = pair.slave.spawn_command(command).unwrap();
        let pid = child.process_id().unwrap();
        let (sender, ended) = channel();
        thread::spawn(move || drop(sender.send(child.wait().unwrap())));
        Self {
            output,
            reader: Some(reader),
            writer: Some(pair.master.take_writer().unwrap()),
            master: Some(pair.master),
            slave: Some(pair.slave),
            pid,
            ended,
            has_ended: false,
            settings,
        }
    }

    /// The device file of the terminal on the program's side.
    pub(crate) fn file(&self) -> std::path::PathBuf {
        self.master.as_ref().unwrap().tty_name().unwrap()
    }

    /// The program's process id.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "its callers read /proc"))]
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Types `keys`.
    pub(crate) fn send(&mut self, keys: &str) {
        let writer = self.writer.as_mut().unwrap();
        writer.write_all(keys.as_bytes()).and_then(|()| writer.flush()).unwrap();
    }

    /// Waits until the screen shows each of `texts`. Returns the whole screen.
    pub(crate) fn shows(&self, texts: &[&str]) -> String {
        self.until(&format!("{texts:?}"), |screen| {
            let contents = screen.contents();
            texts.iter().all(|text| contents.contains(text))
        })
    }

    /// Waits until the screen meets `condition`. Returns its text.
    pub(crate) fn until(&self, what: &str, condition: impl Fn(&vt100::Screen) -> bool) -> String {
        self.wait(what, |output| output.whole && condition(output.parser.screen()))
    }

    /// Waits until the whole output, from the beginning, meets `condition`.
    pub(crate) fn writes(&self, what: &str, condition: impl Fn(&str) -> bool) {
        self.wait(what, |output| condition(&String::from_utf8_lossy(&output.raw)));
    }

    fn wait(&self, what: &str, condition: impl Fn(&Output) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        let (lock, news) = &*self.output;
        let mut output = lock.lock().unwrap();
        while !condition(&output) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(
                !left.is_zero() && !output.closed,
                "waited for {what} on:\n{}",
                output.parser.screen().contents()
            );
            output = news.wait_timeout(output, left).unwrap().0;
        }
        output.parser.screen().contents()
    }

    /// Returns the result of `look` on the present screen.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&vt100::Screen) -> T) -> T {
        look(self.output.0.lock().unwrap().parser.screen())
    }

    /// All bytes that the program has written.
    pub(crate) fn raw(&self) -> String {
        String::from_utf8_lossy(&self.output.0.lock().unwrap().raw).into_owned()
    }

    /// Resizes the window.
    pub(crate) fn resize(&self, columns_rows: (u16, u16)) {
        let mut output = self.output.0.lock().unwrap();
        output.parser.screen_mut().set_size(columns_rows.1, columns_rows.0);
        self.master.as_ref().unwrap().resize(size(columns_rows)).unwrap();
    }

    /// Sends a signal: "TERM", "STOP", …
    pub(crate) fn signal(&self, name: &str) {
        assert!(self.kill(name).is_ok_and(|status| status.success()));
    }

    fn kill(&self, name: &str) -> std::io::Result<std::process::ExitStatus> {
        std::process::Command::new("kill").args(["-s", name, &self.pid.to_string()]).status()
    }

    /// Waits until the program is stopped, as after Ctrl-Z.
    pub(crate) fn stops(&self) {
        let deadline = Instant::now() + PATIENCE;
        let state = || {
            let ps =
                std::process::Command::new("ps").args(["-o", "stat=", "-p", &self.pid.to_string()]).output();
            String::from_utf8_lossy(&ps.unwrap().stdout).into_owned()
        };
        while !state().starts_with('T') {
            assert!(Instant::now() < deadline, "the program does not stop: {}", state());
        }
    }

    /// Returns whether the terminal's settings (echo, line editing, …) are the ones from before the program.
    pub(crate) fn has_its_settings(&self) -> bool {
        settings(&**self.master.as_ref().unwrap()) == self.settings
    }

    /// Closes the terminal while the program waits for a key, as closing the window does.
    pub(crate) fn hang_up(&mut self) {
        self.output.0.lock().unwrap().release = true;
        // The reader is blocked in a read. Another process writes to the terminal to wake it.
        let mut echo = CommandBuilder::new("echo");
        echo.set_controlling_tty(false);
        let echo = self.slave.as_ref().unwrap().spawn_command(echo).unwrap().wait();
        assert!(echo.unwrap().success());
        self.reader.take().unwrap().join().unwrap();
        self.writer = None;
        self.slave = None;
        self.master = None;
    }

    /// Waits until the program has ended.
    pub(crate) fn code(&mut self) -> u32 {
        match self.ended.recv_timeout(PATIENCE) {
            Ok(status) => {
                self.has_ended = true;
                assert_eq!(status.signal(), None, "a signal ended the program");
                status.exit_code()
            }
            Err(RecvTimeoutError::Timeout) => {
                panic!("the program still runs and shows:\n{}", self.look(vt100::Screen::contents))
            }
            Err(RecvTimeoutError::Disconnected) => panic!("the exit code was already read"),
        }
    }

    /// Waits until the program has ended, and checks that the terminal is as it was before.
    pub(crate) fn end(mut self) -> End {
        let code = self.code();
        assert!(self.has_its_settings(), "echo and line editing were not restored");
        // The reader reaches the end of the output when all handles of the program's side are closed.
        self.slave = None;
        self.reader.take().unwrap().join().unwrap();
        let raw = self.raw();
        self.look(|screen| {
            assert!(!screen.alternate_screen(), "the alternate screen is still on: {raw:?}");
            assert!(!screen.hide_cursor(), "the cursor is still hidden: {raw:?}");
            assert!(!screen.bracketed_paste(), "bracketed paste is still on: {raw:?}");
            assert_eq!(screen.mouse_protocol_mode(), vt100::MouseProtocolMode::None, "{raw:?}");
            assert!(
                screen.contents().starts_with(BEFORE),
                "the text from before the program is gone: {}",
                screen.contents()
            );
            let screen = screen.contents()[BEFORE.len()..].trim_start().to_owned();
            End { code, screen, raw: raw.clone() }
        })
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if !self.has_ended {
            // A failed test must not leave its program running.
            drop(self.kill("KILL"));
        }
    }
}

/// The terminal's settings as text.
fn settings(master: &dyn MasterPty) -> String {
    format!("{:?}", master.get_termios().unwrap())
}

fn read(mut from: Box<dyn Read + Send>, output: Arc<(Mutex<Output>, Condvar)>) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut bytes = [0; 4096];
        let (lock, news) = &*output;
        loop {
            let count = from.read(&mut bytes).unwrap_or(0);
            let mut output = lock.lock().unwrap();
            output.parser.process(&bytes[..count]);
            output.raw.extend_from_slice(&bytes[..count]);
            let last = |mark: &[u8]| output.raw.windows(mark.len()).rposition(|bytes| bytes == mark);
            output.whole = last(b"\x1b[?2026h") <= last(b"\x1b[?2026l");
            output.closed = count == 0 || output.release;
            news.notify_all();
            if output.closed {
                return;
            }
        }
    })
}
