//! Checks that the terminal is always restored. This test program runs itself in a pseudo-terminal. The child takes the
//! terminal with the viewer's guard, and then panics, is killed, or ends. The parent checks the state of the terminal.

#![allow(clippy::unwrap_used)] // a test that fails may stop with a panic

#[cfg(unix)]
fn main() {
    if let Ok(fate) = std::env::var(unix::FATE) {
        return unix::child(&fate);
    }
    let tests: [(&str, fn()); 5] = [
        ("a panic gives the terminal back", unix::panics),
        ("a panic on another thread is told afterwards", unix::panics_elsewhere),
        ("SIGTERM and SIGHUP give the terminal back", unix::is_killed),
        ("an ordinary end gives the terminal back", unix::ends),
        ("a stop gives the terminal back and takes it again", unix::stops),
    ];
    println!("\nrunning {} tests", tests.len());
    for (name, test) in tests {
        test();
        println!("test {name} ... ok");
    }
    println!("\ntest result: ok. {} passed; 0 failed; 0 ignored", tests.len());
}

#[cfg(not(unix))]
fn main() {
    println!("\ntest result: ok. 0 passed; 0 failed; 1 ignored (no pseudo-terminal here)");
}

#[cfg(unix)]
mod unix {
    use std::io::{Read, Write};
    use std::process::Command;
    use std::sync::{Arc, Mutex};
    use std::thread;
    use std::time::{Duration, Instant};

    use llama_trace::tui::terminal::Guard;
    use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};

    /// The environment variable that selects what the child does.
    pub(super) const FATE: &str = "LLAMA_TRACE_GUARD_FATE";
    /// The child prints this when it has taken the terminal.
    const READY: &str = "the guard is taken";
    const ENTER: &str = "\u{1b}[?1049h";
    const LEAVE: &str = "\u{1b}[?1049l";
    const PATIENCE: Duration = Duration::from_secs(30);

    pub(super) fn child(fate: &str) {
        let guard = Guard::take().unwrap();
        print!("{READY}");
        std::io::stdout().flush().unwrap();
        match fate {
            "panic" => panic!("a panic on purpose"),
            "elsewhere" => {
                let ended = thread::spawn(|| panic!("a panic elsewhere")).join();
                assert!(ended.is_err());
                println!("still here");
            }
            "signal" => {
                let signal = loop {
                    match guard.stopped_by() {
                        Some(signal) => break signal,
                        None => thread::sleep(Duration::from_millis(5)),
                    }
                };
                drop(guard);
                println!("stopped by {signal}");
                std::process::exit(130);
            }
            "stop" => guard.suspend().unwrap(),
            _ => {}
        }
    }

    /// A child in a separate terminal, and all its output so far.
    struct Session {
        child: Box<dyn Child + Send + Sync>,
        master: Box<dyn MasterPty + Send>,
        // Kept open so that the terminal outlives the child and can be examined.
        _slave: Box<dyn portable_pty::SlavePty + Send>,
        written: Arc<Mutex<Vec<u8>>>,
        before: String,
    }

    impl Session {
        fn start(fate: &str) -> Self {
            let size = PtySize { rows: 24, cols: 80, pixel_width: 0, pixel_height: 0 };
            let pair = native_pty_system().openpty(size).unwrap();
            let before = settings(&*pair.master);
            let mut command = CommandBuilder::new(std::env::current_exe().unwrap());
            command.env(FATE, fate);
            command.env("TERM", "xterm-256color");
            command.env("RUST_BACKTRACE", "0");
            let child = pair.slave.spawn_command(command).unwrap();
            let written = Arc::new(Mutex::new(Vec::new()));
            let (mut reader, sink) = (pair.master.try_clone_reader().unwrap(), written.clone());
            thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(count) = reader.read(&mut bytes) {
                    if count == 0 {
                        break;
                    }
                    sink.lock().unwrap().extend_from_slice(&bytes[..count]);
                }
            });
            let session = Self { child, master: pair.master, _slave: pair.slave, written, before };
            session.wait_for(READY, 1);
            assert!(session.text().contains(ENTER), "the alternate screen was entered");
            session
        }

        fn text(&self) -> String {
            String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
        }

        /// Waits until the child has written `text` this many times.
        fn wait_for(&self, text: &str, times: usize) {
            let start = Instant::now();
            while self.text().matches(text).count() < times {
                assert!(start.elapsed() < PATIENCE, "waited for {text:?} in {:?}", self.text());
                thread::sleep(Duration::from_millis(5));
            }
        }

        fn send(&self, signal: &str) {
            let pid = self.child.process_id().unwrap().to_string();
            assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        }

        /// Waits for the child's end and its last output, and checks that the terminal is restored.
        fn end(mut self, code: u32, last: &str) -> String {
            self.wait_for(last, 1);
            let status = self.child.wait().unwrap();
            self.wait_for("\u{1b}[?25h", 1);
            assert_eq!(status.exit_code(), code, "{}", self.text());
            assert_eq!(settings(&*self.master), self.before, "the terminal's settings are as before");
            let text = self.text();
            let mut parser = vt100::Parser::new(24, 80, 0);
            parser.process(text.as_bytes());
            let screen = parser.screen();
            assert!(
                !screen.alternate_screen() && !screen.hide_cursor() && !screen.bracketed_paste(),
                "{text:?}"
            );
            assert_eq!(screen.mouse_protocol_mode(), vt100::MouseProtocolMode::None);
            assert!(screen.contents().contains(last), "{last} can be read in {:?}", screen.contents());
            text
        }
    }

    /// The terminal's settings as text.
    fn settings(master: &dyn MasterPty) -> String {
        format!("{:?}", master.get_termios().unwrap())
    }

    pub(super) fn panics() {
        let text = Session::start("panic").end(101, "a panic on purpose");
        let (left, told) = (text.find(LEAVE).unwrap(), text.find("a panic on purpose").unwrap());
        assert!(left < told, "the message comes after the screen is left");
        assert_eq!(text.matches(LEAVE).count(), 1);
    }

    pub(super) fn panics_elsewhere() {
        let text = Session::start("elsewhere").end(0, "a panic elsewhere");
        let (left, told) = (text.find(LEAVE).unwrap(), text.find("a panic elsewhere").unwrap());
        assert!(text.find("still here").unwrap() < left && left < told);
    }

    pub(super) fn is_killed() {
        for (signal, name) in [("-TERM", "SIGTERM"), ("-HUP", "SIGHUP"), ("-INT", "SIGINT")] {
            let session = Session::start("signal");
            assert_ne!(settings(&*session.master), session.before, "the terminal is in raw mode meanwhile");
            session.send(signal);
            session.end(130, &format!("stopped by {name}"));
        }
    }

    pub(super) fn ends() {
        Session::start("end").end(0, "");
    }

    pub(super) fn stops() {
        let session = Session::start("stop");
        session.wait_for(LEAVE, 1);
        let start = Instant::now();
        while settings(&*session.master) != session.before {
            assert!(start.elapsed() < PATIENCE, "the settings are given back while stopped");
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(session.text().matches(ENTER).count(), 1);
        // Sends the signal repeatedly, because the child may not have stopped yet. Continuing it again does no harm.
        while session.text().matches(ENTER).count() < 2 {
            assert!(start.elapsed() < PATIENCE, "the terminal is taken again: {:?}", session.text());
            session.send("-CONT");
            thread::sleep(Duration::from_millis(20));
        }
        session.end(0, "");
    }
}
