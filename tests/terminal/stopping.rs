//! Ctrl-C and Esc during a computation: only the computation to which they apply stops.

use std::cell::Cell;
use std::fs;
use std::path::Path;

use super::{WINDOW, command, slow_model};
use crate::common::models;
use crate::pty::Terminal;

/// The slow model with all files that a chat needs.
fn chat_model(folder: &Path, template: &str) -> String {
    fs::write(folder.join("tokenizer.bin"), models::tok_bin(300)).unwrap();
    fs::write(folder.join("chat_template.jinja"), template).unwrap();
    slow_model(folder)
}

/// Types `line`, and waits until the line editor has released the terminal. From then on, Ctrl-C is a signal.
fn say(chat: &mut Terminal, line: &str) {
    let ends = |raw: &str| raw.matches("\x1b[?2004l").count();
    chat.until("the editor", vt100::Screen::bracketed_paste);
    let before = ends(&chat.raw());
    chat.send(&format!("{line}\r"));
    // Counts in the whole output, because the editor may be back on the screen before the screen is read.
    chat.writes("the editor's end", |raw| ends(raw) > before);
}

#[test]
fn ctrl_c_stops_the_rendering_of_a_template_and_the_chat_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let template = "{% set x = 'ab' * 4000000 %}{% for a in range(9999 if messages[-1].content == 'slow' else 0) %}\
                    {% if x | upper == 'x' %}{% endif %}{% endfor %}{{ messages[-1].content }}";
    let model = chat_model(folder.path(), template);
    let mut chat = Terminal::start(WINDOW, command(&["chat", "--model", &model, "-n", "1"]));
    // In the first round, Ctrl-C sends the signal to all processes of the terminal. In the second round, only this
    // process receives a signal.
    for key in [true, false] {
        say(&mut chat, "slow");
        if key {
            chat.send("\x03");
        } else {
            chat.signal("INT");
        }
        chat.until("the editor", vt100::Screen::bracketed_paste);
    }
    let screen = chat.shows(&["> "]);
    assert_eq!(screen.matches("(stopped; your line was removed)").count(), 2, "{screen}");
    assert!(!screen.contains("error:"), "{screen}");
    say(&mut chat, "ab");
    chat.until("the editor", vt100::Screen::bracketed_paste);
    chat.send("/quit\r");
    let end = chat.end();
    assert_eq!(end.code, 0, "{}", end.screen);
    assert!(!end.screen.contains("error:"), "{}", end.screen);
}

#[test]
fn ctrl_c_leaves_a_chats_step_while_the_model_works() {
    let folder = tempfile::tempdir().unwrap();
    let model = chat_model(folder.path(), "{% for m in messages %}{{ m.content }}{% endfor %}");
    let system = "a ".repeat(200);
    let args =
        ["--model", &model, "-n", "1", "--threads", "1", "--cpu-kernel", "portable", "--system", &system];
    let mut chat = Terminal::start(WINDOW, command(&[&["chat"][..], &args].concat()));
    say(&mut chat, "ab");
    chat.until("the editor", vt100::Screen::bracketed_paste);
    for key in ["\x03", "\x1b"] {
        chat.until("the editor", vt100::Screen::bracketed_paste);
        // The viewer switches bracketed paste on too.
        chat.send("/step\r");
        chat.shows(&["running the prompt: layer "]);
        chat.send(key);
        // During a pass, the screen names the current layer.
        let layer = Cell::new(0);
        chat.until("the chat", |screen| {
            let contents = screen.contents();
            let after = contents.split_once("running the prompt: layer ").map(|(_, after)| after);
            let now = after.and_then(|after| after.chars().next()?.to_digit(10));
            layer.set(layer.get().max(now.unwrap_or(0)));
            !screen.alternate_screen() && screen.bracketed_paste()
        });
        assert!(layer.get() < 7, "{key:?}: the pass was run to its end");
    }
    // The stop request is gone: it does not end the next answer.
    say(&mut chat, "/regenerate");
    let screen = chat.until("the editor", vt100::Screen::bracketed_paste);
    assert!(!screen.contains("(stopped"), "{screen}");
    chat.send("/quit\r");
    assert_eq!(chat.end().code, 0);
}

#[cfg(target_os = "linux")]
#[test]
fn ctrl_c_ends_a_program_that_waits_for_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let pipe = pipe.to_str().unwrap();
    // In the first round, no process has opened the pipe for writing. In the second round, a process has opened the
    // pipe but writes nothing.
    for held in [false, true] {
        let writer = held.then(|| fs::File::options().read(true).write(true).open(pipe).unwrap());
        let mut waits = Terminal::start(WINDOW, command(&["--prompt-file", pipe, "-n", "1"]));
        let opened = || {
            let open = fs::read_dir(format!("/proc/{}/fd", waits.pid())).unwrap();
            open.flatten().any(|one| fs::read_link(one.path()).is_ok_and(|path| path.ends_with("pipe")))
        };
        let started = std::time::Instant::now();
        while !opened() {
            assert!(started.elapsed().as_secs() < 60, "the program does not open the pipe");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        waits.send("\x03");
        let end = waits.end();
        assert_eq!(end.code, 130, "{}", end.screen);
        assert!(!end.screen.contains("cannot be read"), "{}", end.screen);
        drop(writer);
    }
}

/// The tracer on the slow model with this many tokens, in `folder`, with little memory for the run.
fn slow_viewer(folder: &Path, model: &str, tokens: usize, more: &[&str]) -> Terminal {
    let ids = vec!["1"; tokens].join(",");
    let args = ["--model", model, "--ids", &ids, "--step", "--threads", "1", "--memory", "16MiB"];
    let mut command = command(&[&args, more].concat());
    command.cwd(folder);
    Terminal::start(WINDOW, command)
}

#[test]
fn escape_stops_an_export_and_removes_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let model = slow_model(folder.path());
    let here = folder.path().join("here");
    fs::create_dir(&here).unwrap();
    // The stage is larger than the memory budget, so the file is written block by block.
    let mut viewer = slow_viewer(&here, &model, 1200, &["--stage", "softmax", "--layer", "6"]);
    viewer.shows(&["p0/L6/softmax[h=0,t=1199,k="]);
    viewer.send("e");
    viewer.shows(&["writing p0/L6/softmax: ", "Esc stops"]);
    viewer.send("\x1b");
    viewer.shows(&["the export was stopped, and its file removed; e starts it again"]);
    assert_eq!(fs::read_dir(&here).unwrap().count(), 0);
    viewer.shows(&["p0/L6/softmax[h=0,t=1199,k="]);
    viewer.send("q");
    assert_eq!(viewer.end().code, 0);
}
