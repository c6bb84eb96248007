//! What this process does to the terminal, and how that is taken back from any thread, or from within a signal's
//! handler: with bytes that are there already, past every lock.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::stdio::{stdin, stdout};
use rustix::termios::{self, OptionalActions, Termios};

/// Gives back what the viewer takes: ends a drawing, colours, pastes that are marked, mouse events and the other
/// screen, and shows the cursor.
pub const SCREEN: &[u8] =
    b"\x1b[?2026l\x1b[0m\x1b[?2004l\x1b[?1006l\x1b[?1015l\x1b[?1003l\x1b[?1002l\x1b[?1000l\x1b[?1049l\x1b[?25h";
/// Gives back what the line editor takes: pastes that are marked, and the line that was being written.
const EDITOR: &[u8] = b"\x1b[0m\x1b[?2004l\x1b[?25h\r\n";

/// How the terminal is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// As the viewer does.
    Screen = 1,
    /// As the line editor of a chat does.
    Editor = 2,
}

/// How its screen is taken: 0, or a [`Taken`].
static TAKEN: AtomicUsize = AtomicUsize::new(0);
/// Whether somebody is writing to it, or is giving it back.
static WRITING: AtomicBool = AtomicBool::new(false);
/// How long who writes is waited for.
const PATIENCE: Duration = Duration::from_millis(250);
/// Whether its settings may be others than those from before.
static CHANGED: AtomicBool = AtomicBool::new(false);
/// Its settings from before.
static SETTINGS: OnceLock<Termios> = OnceLock::new();

/// Looks at the settings, before anything changes them.
pub(super) fn remember() {
    if let Ok(settings) = termios::tcgetattr(stdin()) {
        // Those of the first time are the right ones.
        let _ = SETTINGS.set(settings);
    }
}

/// Says that the terminal is being taken.
pub fn take(how: Taken) {
    remember();
    CHANGED.store(true, Ordering::SeqCst);
    TAKEN.store(how as usize, Ordering::SeqCst);
}

/// Gives the terminal back by `leave`, where it is taken until now. A thread that ends the process meanwhile waits for
/// that: what it says would go with the screen that is left, and the settings would stay.
pub fn give_back(leave: impl FnOnce()) {
    WRITING.store(true, Ordering::SeqCst);
    if TAKEN.swap(0, Ordering::SeqCst) != 0 {
        leave();
        CHANGED.store(false, Ordering::SeqCst);
    }
    WRITING.store(false, Ordering::SeqCst);
}

pub(super) fn taken() -> Option<Taken> {
    [Taken::Screen, Taken::Editor].into_iter().find(|how| *how as usize == TAKEN.load(Ordering::SeqCst))
}

/// Writes to the screen while it is taken; none where it was given back meanwhile, by a thread that ends the process: what
/// came after that would stand in the shell's screen.
pub fn on_screen<T>(write: impl FnOnce() -> T) -> Option<T> {
    // Said before it is looked at, so that who gives the screen back sees this writer or is seen by it.
    WRITING.store(true, Ordering::SeqCst);
    let taken = TAKEN.load(Ordering::SeqCst) != 0;
    let written = taken.then(write);
    WRITING.store(false, Ordering::SeqCst);
    written
}

/// Gives the screen back, once who writes to it or gives it back has done so; safe in a signal's handler.
pub(super) fn restore_screen() {
    let taken = TAKEN.swap(0, Ordering::SeqCst);
    // A terminal that takes nothing is not waited for, nor this very thread where the signal came while it wrote.
    let began = Instant::now();
    while WRITING.load(Ordering::SeqCst) && began.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    match taken {
        1 => write(SCREEN),
        2 => write(EDITOR),
        _ => {}
    }
}

/// Gives the settings back; safe in a signal's handler.
pub(super) fn restore_settings() {
    if CHANGED.swap(false, Ordering::SeqCst)
        && let Some(settings) = SETTINGS.get()
    {
        // Where the terminal is gone too there is nothing to set.
        let _ = termios::tcsetattr(stdin(), OptionalActions::Now, settings);
    }
}

/// Gives the terminal back while `stopped` runs. The editor takes it again, as after every stop.
pub(super) fn without_editor(stopped: impl FnOnce()) {
    restore_screen();
    restore_settings();
    stopped();
    take(Taken::Editor);
}

fn write(bytes: &[u8]) {
    // Whom this does not reach has nothing to be given back.
    let _ = rustix::io::write(stdout(), bytes);
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    #[test]
    fn who_ends_the_process_waits_until_the_screen_was_given_back() {
        TAKEN.store(Taken::Screen as usize, Ordering::SeqCst);
        let left = AtomicBool::new(false);
        let (sender, leaving) = channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                give_back(|| {
                    sender.send(()).unwrap();
                    // The other thread has its turn meanwhile.
                    thread::sleep(PATIENCE / 10);
                    left.store(true, Ordering::SeqCst);
                });
            });
            leaving.recv().unwrap();
            restore_screen();
            assert!(left.load(Ordering::SeqCst));
        });
        assert_eq!(taken(), None);
        give_back(|| panic!("nobody has it any more"));
    }
}
