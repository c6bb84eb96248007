//! Keys, mouse and pastes, read on a separate thread. An incomplete escape sequence makes its reader wait for the
//! missing bytes, which may never come. The event loop must not wait with the reader.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossterm::event as from;

use llama_trace_core::error::{Error, Result};
use llama_trace_ending as ending;

use crate::user_event::{Event, KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};

/// Interval at which the thread checks whether to end. crossterm cuts the wait to whole milliseconds, and polls without
/// a pause until the rest has passed, so the rest is short.
const LOOK: Duration = Duration::from_micros(30_050);

/// Longest time to wait for the thread.
const PATIENCE: Duration = Duration::from_millis(300);

/// The events of the terminal, read until this value is dropped.
pub(crate) struct Keys {
    events: Receiver<io::Result<Event>>,
    over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Keys {
    pub(crate) fn start() -> Result<Self> {
        let (sender, events) = mpsc::channel();
        let over = Arc::<AtomicBool>::default();
        let ended = Arc::clone(&over);
        let (listens, listening) = mpsc::channel();
        let thread = thread::Builder::new().name("keys".into()).spawn(move || {
            // A change of the window's size is noticed from the first poll on.
            let _ = (from::poll(Duration::ZERO), listens.send(()));
            while !ended.load(Ordering::SeqCst) {
                let event = match from::poll(LOOK) {
                    Ok(false) => continue,
                    Ok(true) => from::read(),
                    Err(error) => Err(error),
                };
                let Some(event) = event.map(event_of).transpose() else { continue };
                let failed = event.is_err();
                if sender.send(event).is_err() || failed {
                    return;
                }
            }
        });
        let thread = thread.map_err(|error| Error::no_thread("to read the keys", &error))?;
        // Drawing starts after the first poll, because a size that changes right after an earlier drawing would be
        // missed. The wait has a limit, because an incomplete escape sequence delays the thread.
        let _ = listening.recv_timeout(PATIENCE);
        Ok(Self { events, over, thread })
    }

    /// The next event, if one comes within `wait`. Ctrl-C, which arrives as a signal, comes before other events.
    pub(crate) fn next(&self, wait: Duration) -> io::Result<Option<Event>> {
        let key = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        let ctrl_c = || ending::ctrl_c().then_some(Event::Key(key));
        if let Some(event) = ctrl_c() {
            return Ok(Some(event));
        }
        match self.events.recv_timeout(wait) {
            Ok(event) => event.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(ctrl_c()),
            Err(RecvTimeoutError::Disconnected) => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl Drop for Keys {
    /// Releases the terminal for its next reader. A thread that waits for the end of an escape sequence cannot release
    /// it.
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        let started = Instant::now();
        while !self.thread.is_finished() && started.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The viewer's event for an event of the terminal; none if the viewer does not use it, such as a released key.
fn event_of(event: from::Event) -> Option<Event> {
    match event {
        from::Event::Key(key) if key.kind == from::KeyEventKind::Release => None,
        from::Event::Key(key) => {
            Some(Event::Key(KeyEvent::new(code_of(key.code)?, modifiers_of(key.modifiers))))
        }
        from::Event::Mouse(from::MouseEvent { kind, column, row, modifiers }) => {
            let (kind, modifiers) = (kind_of(kind), modifiers_of(modifiers));
            Some(Event::Mouse(MouseEvent { kind, column, row, modifiers }))
        }
        from::Event::Paste(text) => Some(Event::Paste(text)),
        from::Event::Resize(columns, rows) => Some(Event::Resize(columns, rows)),
        from::Event::FocusGained | from::Event::FocusLost => None,
    }
}

/// The key's code; none for a modifier key alone.
fn code_of(code: from::KeyCode) -> Option<KeyCode> {
    use from::KeyCode as Code;
    Some(match code {
        Code::Backspace => KeyCode::Backspace,
        Code::Enter => KeyCode::Enter,
        Code::Left => KeyCode::Left,
        Code::Right => KeyCode::Right,
        Code::Up => KeyCode::Up,
        Code::Down => KeyCode::Down,
        Code::Home => KeyCode::Home,
        Code::End => KeyCode::End,
        Code::PageUp => KeyCode::PageUp,
        Code::PageDown => KeyCode::PageDown,
        Code::Tab => KeyCode::Tab,
        Code::BackTab => KeyCode::BackTab,
        Code::Delete => KeyCode::Delete,
        Code::Insert => KeyCode::Insert,
        Code::F(number) => KeyCode::F(number),
        Code::Char(c) => KeyCode::Char(c),
        Code::Esc => KeyCode::Esc,
        Code::CapsLock => KeyCode::Other("CapsLock"),
        Code::ScrollLock => KeyCode::Other("ScrollLock"),
        Code::NumLock => KeyCode::Other("NumLock"),
        Code::PrintScreen => KeyCode::Other("PrintScreen"),
        Code::Pause => KeyCode::Other("Pause"),
        Code::Menu => KeyCode::Other("Menu"),
        Code::KeypadBegin => KeyCode::Other("KeypadBegin"),
        Code::Media(_) => KeyCode::Other("Media"),
        Code::Modifier(_) | Code::Null => return None,
    })
}

fn modifiers_of(modifiers: from::KeyModifiers) -> KeyModifiers {
    let known = [
        (from::KeyModifiers::SHIFT, KeyModifiers::SHIFT),
        (from::KeyModifiers::CONTROL, KeyModifiers::CONTROL),
        (from::KeyModifiers::ALT, KeyModifiers::ALT),
    ];
    let held = known.iter().filter(|(key, _)| modifiers.contains(*key));
    held.fold(KeyModifiers::NONE, |held, (_, key)| held | *key)
}

fn kind_of(kind: from::MouseEventKind) -> MouseEventKind {
    use from::MouseEventKind as Kind;
    let button_of = |button| match button {
        from::MouseButton::Left => MouseButton::Left,
        from::MouseButton::Right => MouseButton::Right,
        from::MouseButton::Middle => MouseButton::Middle,
    };
    match kind {
        Kind::Down(button) => MouseEventKind::Down(button_of(button)),
        Kind::Up(button) => MouseEventKind::Up(button_of(button)),
        Kind::Drag(button) => MouseEventKind::Drag(button_of(button)),
        Kind::Moved => MouseEventKind::Moved,
        Kind::ScrollDown => MouseEventKind::ScrollDown,
        Kind::ScrollUp => MouseEventKind::ScrollUp,
        Kind::ScrollLeft => MouseEventKind::ScrollLeft,
        Kind::ScrollRight => MouseEventKind::ScrollRight,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_terminal_says_is_what_a_user_does() {
        let key = |code, modifiers| event_of(from::Event::Key(from::KeyEvent::new(code, modifiers)));
        let held = from::KeyModifiers::CONTROL | from::KeyModifiers::ALT;
        let both = KeyModifiers::CONTROL | KeyModifiers::ALT;
        assert_eq!(key(from::KeyCode::F(3), held), Some(Event::Key(KeyEvent::new(KeyCode::F(3), both))));
        assert!(
            !both.contains(KeyModifiers::SHIFT) && both.intersects(KeyModifiers::ALT | KeyModifiers::SHIFT)
        );
        assert_eq!(key(from::KeyCode::Null, from::KeyModifiers::NONE), None);
        let mut released = from::KeyEvent::new(from::KeyCode::Enter, from::KeyModifiers::NONE);
        released.kind = from::KeyEventKind::Release;
        assert_eq!(event_of(from::Event::Key(released)), None);
        let (kind, modifiers) =
            (from::MouseEventKind::Drag(from::MouseButton::Left), from::KeyModifiers::SHIFT);
        let drag = from::MouseEvent { kind, column: 3, row: 4, modifiers };
        let (kind, modifiers) = (MouseEventKind::Drag(MouseButton::Left), KeyModifiers::SHIFT);
        let expected = Event::Mouse(MouseEvent { kind, column: 3, row: 4, modifiers });
        assert_eq!(event_of(from::Event::Mouse(drag)), Some(expected));
        assert_eq!(event_of(from::Event::FocusLost), None);
    }
}
