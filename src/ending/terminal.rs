//! Notes what this process changes in the terminal, and restores it from any thread or a signal handler. Restoring
//! writes constant bytes and takes no locks.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::stdio::{stdin, stdout};
use rustix::termios::{self, OptionalActions, Termios};

/// Restores what the viewer changed: ends a synchronised update, colours, bracketed paste, mouse events and the
/// alternate screen, and shows the cursor.
pub const SCREEN: &[u8] =
    b"\x1b[?2026l\x1b[0m\x1b[?2004l\x1b[?1006l\x1b[?1015l\x1b[?1003l\x1b[?1002l\x1b[?1000l\x1b[?1049l\x1b[?25h";
/// Restores what the line editor changed: ends bracketed paste, and the current line.
const EDITOR: &[u8] = b"\x1b[0m\x1b[?2004l\x1b[?25h\r\n";

/// The part of the program that has taken the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The viewer.
    Screen = 1,
    /// The line editor of a chat.
    Editor = 2,
}

/// The [`Taken`] that has the terminal, as a number; 0 if it is not taken.
static TAKEN: AtomicUsize = AtomicUsize::new(0);
/// Whether a thread is writing to the screen, or giving it back.
static WRITING: AtomicBool = AtomicBool::new(false);
/// How long to wait for that thread.
const PATIENCE: Duration = Duration::from_millis(250);
/// Whether the settings of the terminal may have been changed.
static CHANGED: AtomicBool = AtomicBool::new(false);
/// The original settings of the terminal.
static SETTINGS: OnceLock<Termios> = OnceLock::new();

/// Stores the settings, before anything changes them.
pub(super) fn remember() {
    if let Ok(settings) = termios::tcgetattr(stdin()) {
        // Only the first call stores them: they are the original settings.
        let _ = SETTINGS.set(settings);
    }
}

/// Records that the terminal is being taken.
pub fn take(how: Taken) {
    remember();
    CHANGED.store(true, Ordering::SeqCst);
    TAKEN.store(how as usize, Ordering::SeqCst);
}

/// Gives the terminal back by `leave`, if it is still taken. A thread that ends the process meanwhile waits for that.
/// Otherwise its message would disappear with the alternate screen, and the settings would stay.
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

/// Writes to the screen while it is taken. `None` if a thread that ends the process gave it back meanwhile: later
/// output would appear on the shell's screen.
pub fn on_screen<T>(write: impl FnOnce() -> T) -> Option<T> {
    // Set before the check: either this writer sees that the screen was given back, or the other thread sees this
    // writer.
    WRITING.store(true, Ordering::SeqCst);
    let taken = TAKEN.load(Ordering::SeqCst) != 0;
    let written = taken.then(write);
    WRITING.store(false, Ordering::SeqCst);
    written
}

/// Gives the screen back, after waiting for a thread that writes to it or gives it back. Safe in a signal handler.
pub(super) fn restore_screen() {
    let taken = TAKEN.swap(0, Ordering::SeqCst);
    // The wait is limited: the terminal may accept nothing, or the signal interrupted this very thread's write.
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

/// Restores the settings. Safe in a signal handler.
pub(super) fn restore_settings() {
    if CHANGED.swap(false, Ordering::SeqCst)
        && let Some(settings) = SETTINGS.get()
    {
        // If the terminal is gone too, there is nothing to set.
        let _ = termios::tcsetattr(stdin(), OptionalActions::Now, settings);
    }
}

/// Gives the terminal back while `stopped` runs. The editor then takes it again, as after every stop.
pub(super) fn without_editor(stopped: impl FnOnce()) {
    restore_screen();
    restore_settings();
    stopped();
    take(Taken::Editor);
}

fn write(bytes: &[u8]) {
    // If the write fails, there is no terminal to restore.
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
                    // Meanwhile the other thread runs.
                    thread::sleep(PATIENCE / 10);
                    left.store(true, Ordering::SeqCst);
                });
            });
            leaving.recv().unwrap();
            restore_screen();
            assert!(left.load(Ordering::SeqCst));
        });
        assert_eq!(taken(), None);
        give_back(|| panic!("it was given back already"));
    }
}
