//! Lessons in a terminal: the first lesson is played by its two keys, and a teacher writes one by walking.

use std::fs;
use std::process::Command;

use super::{WINDOW, command, quit, viewer};
use crate::pty::Terminal;

const SPACE: &str = " ";
const BACKSPACE: &str = "\u{7f}";

/// The number of scenes in the heading "scene 3 of 17".
fn scenes(screen: &str) -> usize {
    let (_, rest) = screen.split_once("scene 1 of ").unwrap();
    rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
}

/// Presses `key` until the heading says `scene`. A scene with more words or with a question takes several presses.
fn press_until(viewer: &mut Terminal, key: &str, scene: usize) {
    let heading = format!("scene {scene} of");
    for _ in 0..12 {
        if viewer.look(|screen| screen.contents().contains(&heading)) {
            break;
        }
        let before = viewer.look(vt100::Screen::contents);
        viewer.send(key);
        viewer.until("the key has an effect", |screen| screen.contents() != before);
    }
    // The scene is complete once its run and its values are there.
    let there = |screen: &vt100::Screen| {
        let contents = screen.contents();
        contents.lines().any(|line| line.contains(&heading) && !line.contains(" …"))
    };
    viewer.until(&heading, there);
}

#[test]
fn the_first_lesson_is_played_by_two_keys() {
    for size in [(80, 24), (120, 40)] {
        let mut viewer = Terminal::start(size, command(&["--step"]));
        viewer.shows(&["pass 0", "/learn"]);
        viewer.send("/learn\r");
        let screen = viewer.shows(&["scene 1 of ", "question", "→ ? is next"]);
        let count = scenes(&screen);
        // A wrong answer, with its hint, and the right one.
        viewer.send("\r");
        viewer.shows(&["Look for the last"]);
        viewer.send("kk\r");
        viewer.shows(&["✓ Right."]);
        for scene in 2..=count {
            press_until(&mut viewer, SPACE, scene);
            let screen = viewer.look(vt100::Screen::contents);
            assert!(!screen.contains("cannot be shown"), "{screen}");
        }
        for _ in 0..6 {
            viewer.send(SPACE);
        }
        viewer.shows(&["this was the last scene"]);
        for scene in (1..count).rev() {
            press_until(&mut viewer, BACKSPACE, scene);
        }
        let screen = viewer.look(vt100::Screen::contents);
        assert!(!screen.contains("· question"), "an answered question stays answered:\n{screen}");
        viewer.send("\u{1b}");
        viewer.until("the lesson is left", |screen| !screen.contents().contains("scene 1 of"));
        quit(viewer);
    }
}

#[test]
fn a_presentation_shows_no_answer_that_was_looked_up_before() {
    let state = tempfile::tempdir().unwrap();
    let learn = |args: &[&str]| {
        let mut command = command(&[&["learn", "tour"], args].concat());
        command.env("XDG_STATE_HOME", state.path());
        command
    };
    let mut own = Terminal::start((120, 40), learn(&[]));
    own.shows(&["scene 1 of ", "→ ? is next"]);
    own.send("x");
    own.shows(&["The answer"]);
    quit(own);
    for (args, is_shown) in [(&[][..], true), (&["--present"], false)] {
        let again = Terminal::start((120, 40), learn(args));
        let screen = again.shows(&["scene 1 of ", "Which token begins the second Mara?"]);
        assert_eq!(screen.contains("The answer"), is_shown, "{screen}");
    }
}

#[test]
fn progress_that_cannot_be_stored_is_reported_after_the_lesson() {
    let state = tempfile::tempdir().unwrap();
    // The folder for the progress can be neither read nor created.
    std::os::unix::fs::symlink(state.path().join("nowhere"), state.path().join("llama-trace")).unwrap();
    let told = |set: &dyn Fn(&mut portable_pty::CommandBuilder)| {
        let mut command = command(&["learn", "tour"]);
        command.env_remove("HOME");
        command.env_remove("XDG_STATE_HOME");
        set(&mut command);
        let mut viewer = Terminal::start((200, 40), command);
        viewer.shows(&["scene 1 of ", "→ ? is next"]);
        viewer.send("x");
        viewer.shows(&["The answer"]);
        viewer.send("q");
        let end = viewer.end();
        assert_eq!(end.code, 0, "{}", end.screen);
        end.screen
    };
    let unwritable = told(&|command| command.env("XDG_STATE_HOME", state.path()));
    assert_eq!(unwritable.matches("warning: the progress was not stored").count(), 1, "{unwritable}");
    let homeless = told(&|_| {});
    assert!(homeless.contains("warning: the progress is neither read nor stored"), "{homeless}");
}

/// The message after `W` on the screen that `keys` lead to, and the text of the lesson.
fn appended(args: &[&str], keys: &[(&str, &str)], told: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("scenes.md");
    let args = [args, &["--step", "--lesson", path.to_str().unwrap()]].concat();
    let mut viewer = Terminal::start((200, 40), command(&args));
    viewer.shows(&["pass "]);
    for (keys, shown) in keys {
        viewer.send(keys);
        viewer.shows(&[shown]);
    }
    viewer.send("W");
    viewer.shows(&[told]);
    viewer.send("q");
    assert_eq!(viewer.end().code, 0);
    fs::read_to_string(&path).unwrap_or_default()
}

#[test]
fn a_screen_that_no_scene_can_show_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let array = folder.path().join("v.npy");
    ndarray_npy::write_npy(&array, &ndarray::Array1::<f32>::zeros(1)).unwrap();
    let edit = format!("L0/attn_heads[h=0,c=0] = {}", array.display());
    let refused = [
        (
            &["--prompt", "Once upon a time"][..],
            &[("t", "pass 1 (decode)"), ("/p0/probs\r", "p0/probs["), ("\u{1b}[Bb", "r1 branches from r0")][..],
            "r1 is a branch",
        ),
        (
            &["--prompt", "Once upon", "--prompt", "A dog"],
            &[(")", "sequence 1 of 0-1")],
            "this is sequence 1",
        ),
        (&["--prompt", "Once upon", "--stream", "3", "--temperature", "1"], &[], "from stream 3"),
        (&["--prompt", "Once upon", "--cache-dtype", "f16"], &[], "the KV cache of this run is f16"),
        (&["--prompt", "Once upon", "--edit", &edit], &[], "reads a file, and a lesson reads none"),
        (
            &["--prompt", "Once upon"],
            &[("/prompt A fox\r", "r1 runs another prompt"), ("c", "r0:")],
            "a scene compares only with places of its run",
        ),
        (
            &["--prompt", "The fox kite lake bed drum fox kite lake"],
            &[("/patch The fox kite lake hat drum fox kite lake\r", "the clean run is r")],
            "a scene cannot set the clean prompt of this map",
        ),
        (
            &["--prompt", "Once upon a time", "-n", "66", "--pass", "64"],
            &[("", "pass 64 (decode)")],
            "the screen needs 65 passes, and a scene has at most 64",
        ),
    ];
    for (args, keys, told) in refused {
        let text = appended(args, keys, told);
        assert_eq!(text, "", "{told}");
    }
}

#[test]
fn a_scene_has_the_precision_and_the_text_of_its_run() {
    let written = [
        (
            &["--prompt", "Once upon", "--precision", "bf16"][..],
            &[][..],
            "prompt: Once upon\npasses: 1\nprecision: bf16\n-->",
        ),
        (
            &["--prompt", "Once upon"],
            &[("/prompt A fox\r", "r1 runs another prompt")],
            "prompt: A fox\npasses: 1\n-->",
        ),
        (
            &["--prompt", "Once upon", "--prompt", "A fox"],
            &[(")", "sequence 1 of 0-1"), ("/without L0/h1\r", "r1 runs this prompt without L0/h1")],
            "prompt: A fox\npasses: 1\nedit: L0/h1 off\n-->",
        ),
        (&["--prompt", ""], &[], "ids: 1019\npasses: 1\n-->"),
    ];
    for (args, keys, lines) in written {
        let text = appended(args, keys, "scene 1 was appended");
        assert!(text.contains(lines), "{text}");
    }
}

#[test]
fn a_key_appends_scenes_to_the_file_of_a_lesson() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("heads.md");
    let mut viewer = viewer(&["--lesson", path.to_str().unwrap()]);
    viewer.send("/L1/softmax[h=2,t=4,k=1]\r");
    viewer.shows(&["p0/L1/softmax[h=2,t=4,k=1] = "]);
    viewer.send("W");
    viewer.shows(&["scene 1 was appended"]);
    viewer.send("/view numbers\rW");
    viewer.shows(&["scene 2 was appended"]);
    viewer.send("/edit L0/softmax[h=0] = 0\r");
    viewer.shows(&["r1 runs this prompt"]);
    viewer.until("the pass is there", |screen| screen.contents().contains("p0/L1/softmax[h=2,t=4,k=1] = "));
    viewer.send("W");
    viewer.shows(&["scene 3 was appended"]);
    let text = fs::read_to_string(&path).unwrap();
    let expected = "\
# heads

<!-- scene: p0/L1/softmax[h=2,t=4,k=1]
prompt: Once upon a time
passes: 1
-->

<!-- scene: p0/L1/softmax[h=2,t=4,k=1]
view: numbers
-->

";
    assert!(text.starts_with(expected), "{text}");
    assert!(text.contains("edit: L0/softmax[h=0] = 0"), "{text}");
    // Another program changes the file.
    fs::write(&path, format!("{text}Words.\n")).unwrap();
    viewer.send("W");
    viewer.shows(&["another program changed the lesson"]);
    assert_eq!(fs::read_to_string(&path).unwrap(), format!("{text}Words.\n"));
    quit(viewer);
}

#[test]
fn options_set_the_screen_and_wrong_ones_are_refused() {
    let at = ["--at", "L1/softmax[h=2,t=4]", "--view", "numbers", "--hold", "t", "--strip", "attention"];
    let viewer = viewer(&[&at[..], &["--panels", "tensor"]].concat());
    let screen = viewer.shows(&["tensor · numbers", "token 4 of 0-4"]);
    assert!(!screen.contains("outline"), "{screen}");
    quit(viewer);
}

#[test]
fn a_prompt_that_fits_in_no_line_is_appended_as_its_ids() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lines.md");
    let file = path.to_str().unwrap();
    let args = ["--prompt", "Once --> upon\n a time", "--step", "--panels", "tensor", "--lesson", file];
    let mut viewer = Terminal::start(WINDOW, command(&args));
    viewer.shows(&["embedding"]);
    viewer.send("W");
    viewer.shows(&["scene 1 was appended"]);
    viewer.send("/panels default\rW");
    viewer.shows(&["scene 2 was appended"]);
    quit(viewer);
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert!(lines.iter().any(|line| line.starts_with("ids: ")), "{text}");
    assert!(!text.contains("prompt:"), "{text}");
    let panels: Vec<_> = lines.iter().filter(|line| line.starts_with("panels")).collect();
    assert_eq!(panels, [&"panels: tensor", &"panels: outline tensor notes"], "{text}");
    // The scenes can be opened again.
    let checked =
        Command::new(env!("CARGO_BIN_EXE_llama-trace")).args(["learn", "--check", file]).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}
