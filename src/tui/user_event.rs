//! User input: keys, mouse, pastes, and a new window size. `terminal/keys.rs` converts a terminal's events into these
//! types. A web page creates them itself.

use std::ops::BitOr;

/// A key of the keyboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyCode {
    /// Backspace.
    Backspace,
    /// Enter.
    Enter,
    /// ←
    Left,
    /// →
    Right,
    /// ↑
    Up,
    /// ↓
    Down,
    /// Home.
    Home,
    /// End.
    End,
    /// Page up.
    PageUp,
    /// Page down.
    PageDown,
    /// Tab.
    Tab,
    /// Shift-Tab.
    BackTab,
    /// Delete.
    Delete,
    /// Insert.
    Insert,
    /// A function key, by its number.
    F(u8),
    /// A key that types a character.
    Char(char),
    /// Escape.
    Esc,
    /// A key that has no function here, by its name.
    Other(&'static str),
}

/// Modifier keys that are held with another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyModifiers(u8);

impl KeyModifiers {
    /// No key.
    pub const NONE: Self = Self(0);
    /// Shift, with keys that type no character.
    pub const SHIFT: Self = Self(1);
    /// Ctrl.
    pub const CONTROL: Self = Self(2);
    /// Alt.
    pub const ALT: Self = Self(4);

    /// Returns whether no modifier is held.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns whether all of `others` are held.
    pub const fn contains(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }

    /// Returns whether one of `others` is held.
    pub const fn intersects(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }
}

impl BitOr for KeyModifiers {
    type Output = Self;

    fn bitor(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }
}

/// A pressed key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyEvent {
    /// The key.
    pub code: KeyCode,
    /// The modifiers held.
    pub modifiers: KeyModifiers,
}

impl KeyEvent {
    /// A key with modifiers.
    pub const fn new(code: KeyCode, modifiers: KeyModifiers) -> Self {
        Self { code, modifiers }
    }
}

/// A button of the mouse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MouseButton {
    /// The left button.
    Left,
    /// The right button.
    Right,
    /// The middle button.
    Middle,
}

/// A kind of mouse event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MouseEventKind {
    /// A button was pressed.
    Down(MouseButton),
    /// A button was released.
    Up(MouseButton),
    /// The mouse moved with a button pressed.
    Drag(MouseButton),
    /// The mouse moved.
    Moved,
    /// The wheel scrolled down.
    ScrollDown,
    /// The wheel scrolled up.
    ScrollUp,
    /// The wheel scrolled left.
    ScrollLeft,
    /// The wheel scrolled right.
    ScrollRight,
}

/// A mouse event and its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MouseEvent {
    /// The kind.
    pub kind: MouseEventKind,
    /// Column, from 0 at the left.
    pub column: u16,
    /// Row, from 0 at the top.
    pub row: u16,
    /// The modifiers held.
    pub modifiers: KeyModifiers,
}

/// An event of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A key was pressed.
    Key(KeyEvent),
    /// The mouse was used.
    Mouse(MouseEvent),
    /// A text was pasted.
    Paste(String),
    /// The window has a new size: columns and rows.
    Resize(u16, u16),
}
