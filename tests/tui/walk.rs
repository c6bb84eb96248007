//! A long random walk: keys, clicks, the wheel, typed lines and sizes in any order. Nothing panics, the current place
//! exists, and each number on the screen is in the trace.
//!
//! `LLAMA_TRACE_WALK=100000 cargo test --test tui walk -- --nocapture` takes more steps, and `LLAMA_TRACE_SEED` chooses
//! another walk.

use llama_trace::trace::{Source, Status};
use llama_trace::tui::input::Mode;
use llama_trace::tui::place::Walk;
use llama_trace::tui::theme::Depth;
use llama_trace::tui::user_event::{
    Event, KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};
use llama_trace::tui::view::Panels;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::numbers;
use crate::stage::Stage;
use crate::synthetic::{Synthetic, wide};

/// Default number of steps of a walk.
const STEPS: usize = 5000;

/// Number of steps on one model.
const LEG: usize = 250;

const KEYS: &str = "nnpNP[]tgG.,()hjklHL0$vvvvasci?rybBfA=+-D/:*#zm'123456789";

const CODES: [KeyCode; 12] = [
    KeyCode::Up,
    KeyCode::Down,
    KeyCode::Left,
    KeyCode::Right,
    KeyCode::PageUp,
    KeyCode::PageDown,
    KeyCode::Home,
    KeyCode::End,
    KeyCode::Tab,
    KeyCode::Enter,
    KeyCode::Esc,
    KeyCode::Backspace,
];

const LINES: [&str; 14] = [
    "softmax",
    "p0/tokens",
    "p1/probs",
    "logits",
    "L2/xq[t=1,h=2,c=3]",
    "rope_cos",
    "keys_t",
    "attn_merged",
    "sampled",
    "nucleus",
    "mask",
    "L0/ffn_hidden",
    "up",
    "h1",
];

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

/// A random kind of source: with every step, with long axes, or with blocks and missing values.
fn source(rng: &mut impl Rng) -> Synthetic {
    match rng.random_range(0..4) {
        0 => Synthetic::with_switches(),
        1 => wide(rng.random_range(1..40), 300, 3.3e4),
        2 => wide(rng.random_range(1..140), 64, 1.2e-7),
        _ => {
            let mut source = Synthetic::new();
            source.largest = rng.random_range(16..4000);
            source.failing.insert(llama_trace::trace::Site::layer(0, 0, llama_trace::trace::Stage::Xk));
            source
        }
    }
}

fn event(rng: &mut impl Rng) -> Event {
    let mut at = || (rng.random_range(0..310), rng.random_range(0..105));
    let (column, row) = at();
    let mouse = |kind| Event::Mouse(MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE });
    let key = |code, modifiers| Event::Key(KeyEvent::new(code, modifiers));
    match rng.random_range(0..20) {
        0 => Event::Resize(rng.random_range(0..=300), rng.random_range(0..=100)),
        // Usual sizes are more frequent than tiny ones.
        1 => Event::Resize(rng.random_range(60..=220), rng.random_range(16..=70)),
        2 => mouse(MouseEventKind::Down(MouseButton::Left)),
        3 => mouse(MouseEventKind::Drag(MouseButton::Left)),
        4 => mouse([MouseEventKind::ScrollDown, MouseEventKind::ScrollLeft][rng.random_range(0..2)]),
        // Esc closes lists and panels now and then, so most of the walk is outside them.
        5..8 => key(KeyCode::Esc, KeyModifiers::NONE),
        8..11 => key(CODES[rng.random_range(0..CODES.len())], KeyModifiers::NONE),
        11 => key(CODES[rng.random_range(0..4)], KeyModifiers::ALT),
        _ => {
            let keys = KEYS.as_bytes();
            key(KeyCode::Char(keys[rng.random_range(0..keys.len())].into()), KeyModifiers::NONE)
        }
    }
}

/// Returns whether the number checker (`numbers.rs`) can check this screen. Other tests check the numbers of messages,
/// derivations, comparisons and blocks.
fn is_plain(stage: &Stage) -> bool {
    let app = &stage.app;
    *app.mode() == Mode::Walk
        && app.message().is_none()
        && app.derivation().is_none()
        && app.tensor().is_some_and(|tensor| tensor.is_whole())
        && stage.source.status() == Status::Idle
        && Panels::new(app).title.is_some()
        && Panels::new(app).compared.is_none()
}

#[test]
fn no_walk_panics_or_shows_a_number_that_is_not_in_the_trace() {
    let (steps, seed) = (number("LLAMA_TRACE_WALK", STEPS), number("LLAMA_TRACE_SEED", 1));
    println!("{steps} steps from seed {seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed as u64);
    let mut read = 0;
    for leg in 0..steps.div_ceil(LEG) {
        let depth = [Depth::None, Depth::Ansi, Depth::Indexed, Depth::True][leg % 4];
        let mut stage = Stage::new(source(&mut rng), (120, 40), depth);
        for _ in 0..LEG.min(steps - leg * LEG) {
            let event = event(&mut rng);
            stage.event(event);
            if matches!(stage.app.mode(), Mode::Goto(_)) && rng.random_range(0..2) == 0 {
                stage.event(Event::Paste(LINES[rng.random_range(0..LINES.len())].into()));
                stage.key(KeyCode::Enter);
            }
            if rng.random_range(0..3) > 0 {
                stage.wait();
            }
            let place = stage.app.place();
            let walk = Walk::new(stage.app.outline(), place.pass);
            assert_eq!(walk.at(walk.number(place)), place, "the place exists");
            for (index, length) in stage.app.index().iter().zip(stage.app.shape()) {
                assert!(*index < length, "{index} of {length} in {}", place.path());
            }
            stage.buffer();
            if is_plain(&stage) {
                numbers::read_all(&stage);
                read += 1;
            }
        }
    }
    println!("{read} screens were read number by number");
    assert!(read * 6 > steps, "{read} screens of {steps} were read number by number");
}
