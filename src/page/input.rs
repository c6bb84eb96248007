//! The browser's events as the viewer's.

use llama_trace_tui::user_event::{
    Event, KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};

/// The event of a key with the name that the browser gives it (`KeyboardEvent.key`); none for a modifier alone.
/// `modifiers` has the bits of Shift (1), Ctrl (2) and Alt (4).
pub fn key(name: &str, modifiers: u32) -> Option<Event> {
    let held = held(modifiers);
    let code = match name {
        "Backspace" => KeyCode::Backspace,
        "Enter" => KeyCode::Enter,
        "ArrowLeft" => KeyCode::Left,
        "ArrowRight" => KeyCode::Right,
        "ArrowUp" => KeyCode::Up,
        "ArrowDown" => KeyCode::Down,
        "Home" => KeyCode::Home,
        "End" => KeyCode::End,
        "PageUp" => KeyCode::PageUp,
        "PageDown" => KeyCode::PageDown,
        "Tab" if held.contains(KeyModifiers::SHIFT) => KeyCode::BackTab,
        "Tab" => KeyCode::Tab,
        "Delete" => KeyCode::Delete,
        "Insert" => KeyCode::Insert,
        "Escape" => KeyCode::Esc,
        _ => {
            let mut chars = name.chars();
            let (Some(c), None) = (chars.next(), chars.next()) else { return None };
            // The character already has the effect of Shift.
            let others = held.contains(KeyModifiers::CONTROL).then_some(KeyModifiers::CONTROL);
            let alt = held.contains(KeyModifiers::ALT).then_some(KeyModifiers::ALT);
            let held = others.into_iter().chain(alt).fold(KeyModifiers::NONE, |all, one| all | one);
            return (!c.is_control()).then(|| Event::Key(KeyEvent::new(KeyCode::Char(c), held)));
        }
    };
    Some(Event::Key(KeyEvent::new(code, held)))
}

/// The event of the mouse at a cell. `kind`: 0 press, 1 drag, 2 wheel down, 3 wheel up, 4 wheel right, 5 wheel left.
pub fn mouse(kind: u32, column: u16, row: u16, modifiers: u32) -> Option<Event> {
    let kind = match kind {
        0 => MouseEventKind::Down(MouseButton::Left),
        1 => MouseEventKind::Drag(MouseButton::Left),
        2 => MouseEventKind::ScrollDown,
        3 => MouseEventKind::ScrollUp,
        4 => MouseEventKind::ScrollRight,
        5 => MouseEventKind::ScrollLeft,
        _ => return None,
    };
    Some(Event::Mouse(MouseEvent { kind, column, row, modifiers: held(modifiers) }))
}

fn held(bits: u32) -> KeyModifiers {
    [KeyModifiers::SHIFT, KeyModifiers::CONTROL, KeyModifiers::ALT]
        .into_iter()
        .enumerate()
        .filter(|(bit, _)| bits & (1 << bit) != 0)
        .fold(KeyModifiers::NONE, |all, (_, one)| all | one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_viewers_codes() {
        let code = |name, modifiers| match key(name, modifiers) {
            Some(Event::Key(key)) => Some((key.code, key.modifiers)),
            _ => None,
        };
        assert_eq!(code("n", 0), Some((KeyCode::Char('n'), KeyModifiers::NONE)));
        assert_eq!(code("N", 1), Some((KeyCode::Char('N'), KeyModifiers::NONE)));
        assert_eq!(code("Tab", 1), Some((KeyCode::BackTab, KeyModifiers::SHIFT)));
        assert_eq!(code("ArrowLeft", 4), Some((KeyCode::Left, KeyModifiers::ALT)));
        assert_eq!(code("b", 2), Some((KeyCode::Char('b'), KeyModifiers::CONTROL)));
        for name in ["Shift", "Dead", "", "F5", "\u{7}"] {
            assert_eq!(code(name, 0), None, "{name:?}");
        }
    }

    #[test]
    fn an_unknown_use_of_the_mouse_is_no_event() {
        assert!(mouse(0, 3, 4, 0).is_some() && mouse(6, 3, 4, 0).is_none());
    }
}
