//! Random keys, clicks, pastes and sizes of the window: nothing panics, and the state stays valid.

use llama_trace::tui::place::Walk;
use llama_trace::tui::theme::Depth;
use llama_trace::tui::user_event::{
    Event, KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};
use proptest::prelude::*;

use crate::stage::Stage;
use crate::synthetic::Synthetic;

fn key() -> impl Strategy<Value = Event> {
    let code = prop_oneof![
        8 => prop::sample::select("npNP[]trgG.,hjklHL0$vasci?/:e{} 0123456789pL*#zmyS123456789DbBTEwXRvv".chars().collect::<Vec<_>>())
            .prop_map(KeyCode::Char),
        2 => any::<char>().prop_map(KeyCode::Char),
        4 => prop::sample::select(vec![
            KeyCode::Up,
            KeyCode::Down,
            KeyCode::Left,
            KeyCode::Right,
            KeyCode::PageUp,
            KeyCode::PageDown,
            KeyCode::Home,
            KeyCode::End,
            KeyCode::Tab,
            KeyCode::BackTab,
            KeyCode::Enter,
            KeyCode::Esc,
            KeyCode::Backspace,
            KeyCode::Delete,
            KeyCode::F(1),
            KeyCode::Other("Menu"),
        ]),
    ];
    let modifiers = prop_oneof![6 => Just(KeyModifiers::NONE), 1 => Just(KeyModifiers::CONTROL)];
    (code, modifiers).prop_map(|(code, modifiers)| Event::Key(KeyEvent::new(code, modifiers)))
}

fn event() -> impl Strategy<Value = Event> {
    let kind = prop::sample::select(vec![
        MouseEventKind::Down(MouseButton::Left),
        MouseEventKind::ScrollDown,
        MouseEventKind::ScrollUp,
        MouseEventKind::ScrollLeft,
        MouseEventKind::ScrollRight,
        MouseEventKind::Moved,
    ]);
    let mouse = (kind, 0..210_u16, 0..70_u16).prop_map(|(kind, column, row)| {
        Event::Mouse(MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE })
    });
    let name = prop::sample::select(vec![
        "/softmax",
        "/logits",
        "/p1/probs",
        "/p0/L2/xq[t=1,h=2,c=3]",
        "/tokens",
        "/sampled",
        "/keys_t",
        "/attn_merged",
    ]);
    prop_oneof![
        12 => key(),
        2 => mouse,
        1 => (0..210_u16, 0..70_u16).prop_map(|(columns, rows)| Event::Resize(columns, rows)),
        1 => name.prop_map(|name| Event::Paste(name.into())),
        1 => any::<String>().prop_map(Event::Paste),
    ]
}

fn check(stage: &Stage) {
    let app = &stage.app;
    let place = app.place();
    let walk = Walk::new(app.outline(), place.pass);
    assert!(place.pass < app.outline().passes.len());
    assert_eq!(walk.at(walk.number(place)), place, "the place exists");
    for (index, length) in app.index().iter().zip(app.shape()) {
        assert!(*index < length, "{index} of {length} in {}", place.path());
    }
    stage.screen();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_panics(events in prop::collection::vec(event(), 1..60), depth in 0..4_usize) {
        let depth = [Depth::None, Depth::Ansi, Depth::Indexed, Depth::True][depth];
        let mut source = Synthetic::new();
        source.pending.insert(llama_trace::trace::Site::layer(0, 1, llama_trace::trace::Stage::Xq));
        source.failing.insert(llama_trace::trace::Site::layer(0, 0, llama_trace::trace::Stage::Xk));
        let mut stage = Stage::new(source, (80, 24), depth);
        for (number, event) in events.into_iter().enumerate() {
            if let Event::Paste(text) = &event {
                // Only the go-to line accepts a paste. So the test opens the line, and goes to the place.
                stage.keys(text.get(..1).filter(|first| *first == "/").unwrap_or(""));
                stage.event(Event::Paste(text.trim_start_matches('/').into()));
                stage.key(KeyCode::Enter);
            } else {
                stage.event(event);
            }
            if number % 3 == 0 {
                stage.wait();
            }
            check(&stage);
        }
    }
}
