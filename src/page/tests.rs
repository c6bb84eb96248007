//! Tests of a session, on threads. The browser's tests are in `tests/page`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::input;
use crate::outcome::Outcome;
use crate::session::{Next, Session};
use llama_trace_picture::Paper;

fn begin(link: &str) -> Session {
    Session::begin(link, &BTreeMap::new(), (120, 40), Paper::Dark).unwrap()
}

/// Works until the screen contains `wanted`, and returns the screen.
#[track_caller]
fn shows(session: &mut Session, wanted: &str) -> String {
    for _ in 0..2000 {
        let next = session.work();
        let screen = session.text(false);
        if screen.contains(wanted) {
            return screen;
        }
        if next != Next::Now {
            thread::sleep(Duration::from_millis(5));
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("no {wanted} on\n{}", session.text(false));
}

fn press(session: &mut Session, keys: &[&str]) {
    for name in keys {
        session.event(input::key(name, 0).unwrap());
    }
}

fn outcomes(session: &mut Session) -> Vec<Outcome> {
    std::iter::from_fn(|| session.next_outcome()).collect()
}

#[test]
fn keys_step_and_only_changed_cells_are_sent() {
    let mut session = begin("");
    shows(&mut session, "step 1 of");
    let (mut first, mut second, mut third) = (Vec::new(), Vec::new(), Vec::new());
    session.draw(&mut first);
    press(&mut session, &["n"]);
    shows(&mut session, "step 2 of");
    session.draw(&mut second);
    session.draw(&mut third);
    assert!(!second.is_empty() && second.len() < first.len() / 2, "{} and {}", first.len(), second.len());
    assert!(third.is_empty());
    session.set_paper(Paper::Light);
    session.draw(&mut third);
    assert!(third.len() > second.len());
    let read = outcomes(&mut session).into_iter().any(|outcome| matches!(outcome, Outcome::Read(_)));
    assert!(read, "the line for screen readers");
}

#[test]
fn a_link_opens_its_place_and_is_copied() {
    let link = "#prompt=A%20fox&at=p0/L1/softmax[h=1,t=1,k=0]&view=numbers";
    let mut session = begin(link);
    shows(&mut session, "numbers");
    press(&mut session, &["y"]);
    shows(&mut session, "copied a link");
    let copied = outcomes(&mut session).into_iter().find_map(|outcome| match outcome {
        Outcome::Copy(link) => Some(link),
        _ => None,
    });
    let copied = copied.unwrap();
    assert!(copied.starts_with("prompt=A%20fox&at=p0/L1/softmax"), "{copied}");
    let mut again = begin(&copied);
    shows(&mut again, "numbers");
    assert_eq!(again.link(), session.link());
    // A branch has no link.
    press(&mut session, &["/", "l", "o", "g", "i", "t", "s", "Enter"]);
    shows(&mut session, "largest first");
    press(&mut session, &["b"]);
    shows(&mut session, "r1");
    assert_eq!(session.link(), None);
}

#[test]
fn a_link_carries_sampling_and_precision() {
    let link = "#prompt=A%20fox&passes=3&temperature=0.9&top-k=20&seed=5&precision=bf16";
    let mut session = begin(link);
    let screen = shows(&mut session, "bf16");
    assert!(screen.contains("temperature 0.9"), "{screen}");
    // The three passes are there without a key.
    press(&mut session, &[".", "."]);
    shows(&mut session, "pass 2");
    let copied = session.link().unwrap();
    assert_eq!(copied.precision.as_deref(), Some("bf16"));
    assert!(copied.text().contains("temperature=0.9&top-k=20&seed=5"), "{}", copied.text());
    // Another prompt of the same session is drawn in the same way.
    press(&mut session, &["/", "p", "r", "o", "m", "p", "t", " ", "A", "Enter"]);
    shows(&mut session, "r1");
    let link = session.link().unwrap();
    assert_eq!((link.prompt.as_deref(), link.sampling), (Some("A"), copied.sampling));
}

/// Types a line after `/`, and Enter.
fn go_to(session: &mut Session, line: &str) {
    press(session, &["/"]);
    for letter in line.chars() {
        press(session, &[&letter.to_string()]);
    }
    press(session, &["Enter"]);
}

#[test]
fn a_link_to_the_map_of_patching_carries_the_clean_prompt() {
    let mut session = begin("#prompt=A%20fox");
    shows(&mut session, "step 1 of");
    go_to(&mut session, "patch A dog");
    shows(&mut session, "the clean run is r1");
    let link = session.link().unwrap();
    assert_eq!((link.prompt.as_deref(), link.clean.as_deref()), (Some("A fox"), Some("A dog")));
    let mut again = begin(&link.text());
    shows(&mut again, "the clean run is r1");
    assert_eq!(again.link().unwrap(), link);
    // The link of another view of the run needs no clean prompt.
    go_to(&mut session, "L1/softmax");
    assert_eq!(session.link().unwrap().clean, None);
    // A run of this page may be the clean one, but not a branch.
    go_to(&mut session, "prompt A cat");
    shows(&mut session, "r2");
    go_to(&mut session, "patch r1");
    shows(&mut session, "the clean run is r1");
    assert_eq!(session.link().unwrap().clean.as_deref(), Some("A dog"));
    go_to(&mut session, "token 2 = ␣dog");
    shows(&mut session, "r3");
    go_to(&mut session, "r2:");
    go_to(&mut session, "patch r3");
    shows(&mut session, "the clean run is r3");
    press(&mut session, &["y"]);
    shows(&mut session, "without the clean run r3");
}

#[test]
fn marks_become_a_file_that_opens_again() {
    let mut session = begin("#at=p0/L1/softmax");
    shows(&mut session, "min ");
    press(&mut session, &["m", "Enter"]);
    shows(&mut session, "no place is marked yet");
    press(&mut session, &["m", "a"]);
    shows(&mut session, "m and Enter saves the marks");
    press(&mut session, &["g", "m", "b", "m", "Enter"]);
    shows(&mut session, "saved as llama-trace.marks");
    let saved = outcomes(&mut session).into_iter().find_map(|outcome| match outcome {
        Outcome::Download(name, bytes) => Some((name, String::from_utf8(bytes).unwrap())),
        _ => None,
    });
    let (name, text) = saved.unwrap();
    assert_eq!(name, "llama-trace.marks");
    assert!(text.starts_with("a p0/L1/softmax[") && text.contains("\nb p0/tokens"), "{text}");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    let mut again = begin("");
    shows(&mut again, "step 1 of");
    again.open(std::slice::from_ref(&path), None);
    shows(&mut again, "llama-trace.marks: a p0/L1/softmax");
    press(&mut again, &["'", "a"]);
    shows(&mut again, "min ");
    std::fs::write(&path, "a nowhere\n").unwrap();
    again.open(&[path], None);
    shows(&mut again, "llama-trace.marks:1");
}

#[test]
fn a_wrong_link_is_one_message_on_a_tracer_that_works() {
    for link in ["#trace=../x", "#lesson=none", "#at=p0/L99/xq", "#scene=0", "#lesson=16&scene=999"] {
        let mut session = begin(link);
        shows(&mut session, "Once");
        assert!(
            session.text(false).contains("expected") || session.text(false).contains("there is no"),
            "{link}"
        );
        press(&mut session, &["n"]);
        shows(&mut session, "step 2 of");
    }
}

#[test]
fn a_lesson_opens_at_its_scene_and_its_progress_is_kept() {
    let mut session = begin("#lesson=16&scene=2");
    shows(&mut session, "2 of");
    let kept = outcomes(&mut session);
    let kept = kept.iter().find_map(|outcome| match outcome {
        Outcome::Keep(slug, text) => Some((slug.as_str(), text.as_str())),
        _ => None,
    });
    let (slug, text) = kept.unwrap();
    assert!(slug == "16-attention-patterns" && text.starts_with("1 "), "{slug}: {text}");
    assert_eq!(session.link().unwrap().text(), "lesson=16-attention-patterns&scene=2");
    let stored = BTreeMap::from([(slug.to_owned(), text.to_owned())]);
    let mut again = Session::begin("#lesson=16", &stored, (120, 40), Paper::Dark).unwrap();
    shows(&mut again, "2 of");
}

#[test]
fn stages_and_screens_become_downloads() {
    let mut session = begin("#at=p0/L1/softmax");
    shows(&mut session, "t=4,k=");
    shows(&mut session, "min ");
    press(&mut session, &["e"]);
    shows(&mut session, "saved as p0_L1_softmax.npy");
    press(&mut session, &["S"]);
    shows(&mut session, "saved as p0_L1_softmax.svg");
    let files: Vec<_> = outcomes(&mut session)
        .into_iter()
        .filter_map(|outcome| match outcome {
            Outcome::Download(name, bytes) => Some((name, bytes)),
            _ => None,
        })
        .collect();
    let [(npy, values), (svg, drawing)] = &files[..] else { panic!("{} files", files.len()) };
    assert_eq!((npy.as_str(), svg.as_str()), ("p0_L1_softmax.npy", "p0_L1_softmax.svg"));
    assert!(values.starts_with(b"\x93NUMPY\x01\x00") && drawing.starts_with(b"<svg"));
    let length = 10 + usize::from(u16::from_le_bytes([values[8], values[9]]));
    let header = std::str::from_utf8(&values[10..length]).unwrap();
    assert!(header.contains("'descr': '<f4'") && length.is_multiple_of(64), "{header}");
    // Each row of the attention weights has the sum 1.
    let keys: usize = header.split(", ").nth(4).unwrap().trim_end_matches(')').parse().unwrap();
    let values: Vec<f32> =
        values[length..].as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect();
    let sums: Vec<f32> = values.chunks(keys).map(|row| row.iter().sum()).collect();
    assert!(sums.iter().all(|sum| (sum - 1.0).abs() < 1e-5), "{sums:?}");
}

#[test]
fn files_open_and_damaged_ones_leave_the_screen() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/formats");
    let open = |session: &mut Session, names: &[&str]| {
        let paths: Vec<PathBuf> = names.iter().map(|name| fixtures.join(name)).collect();
        session.open(&paths, None);
    };
    let mut session = begin("");
    shows(&mut session, "Once");
    open(&mut session, &["gguf/f16.gguf"]);
    // Two layers, unlike the built-in model.
    shows(&mut session, "step 1 of 72");
    assert_eq!(session.link(), None, "a link cannot name a file of this computer");
    open(&mut session, &["hf/f32/config.json", "hf/f32/model.safetensors"]);
    shows(&mut session, "f32");
    for wrong in ["gguf/expected.json", "README.md"] {
        open(&mut session, &[wrong]);
        let screen = session.text(false);
        assert!(screen.contains("neither a model") || screen.contains("no lesson"), "{wrong}:\n{screen}");
    }
}
