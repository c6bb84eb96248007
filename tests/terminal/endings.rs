//! The terminal and the temporary folders after the program ends or stops, for every way to end or stop.

use std::fs;
use std::path::{Path, PathBuf};

use super::{PROMPT, WINDOW, command, llama_trace, program, quit, viewer};
use crate::common::models;
use crate::pty::Terminal;

/// A small model in a separate folder, with all files that a chat needs. Its folder and file have the name `name`.
fn model(folder: &Path, name: &str) -> PathBuf {
    let folder = folder.join(name);
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("tokenizer.bin"), models::tok_bin(models::BIN_VOCAB)).unwrap();
    fs::write(folder.join("chat_template.jinja"), "{{ messages[-1].content }}").unwrap();
    let file = folder.join(format!("{name}.bin"));
    fs::write(&file, models::bin()).unwrap();
    file
}

/// Truncates a model's file while a process has it mapped.
fn shorten(model: &Path) {
    fs::OpenOptions::new().write(true).open(model).unwrap().set_len(0).unwrap();
}

#[test]
fn a_truncated_model_ends_the_viewer_with_a_message() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path(), "m");
    let args = ["--model", model.to_str().unwrap(), "--ids", "1,260,261", "--step"];
    let mut viewer = Terminal::start(WINDOW, command(&args));
    viewer.shows(&["step 1 of "]);
    shorten(&model);
    viewer.send("t");
    let end = viewer.end();
    assert_eq!(end.code, 3, "{}", end.screen);
    assert!(end.screen.contains("became shorter") && end.screen.contains("m.bin"), "{}", end.screen);
    in_lines(&end.raw);
}

/// Each line of a message begins in the first column, as in a terminal with its usual settings.
fn in_lines(raw: &str) {
    let message = raw.rsplit_once("error: ").unwrap().1;
    assert!(message.matches('\n').count() > 2, "{message:?}");
    assert_eq!(message.matches('\n').count(), message.matches("\r\n").count(), "{message:?}");
}

#[test]
fn a_truncated_trace_is_reported_after_the_terminal_is_restored() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("run.trace");
    let out = trace.to_str().unwrap();
    assert!(llama_trace(["record", "--prompt", PROMPT, "--keep", "all", "--out", out]).status.success());
    let mut viewer = Terminal::start(WINDOW, command(&["open", out]));
    viewer.shows(&["step 1 of "]);
    shorten(&trace);
    viewer.send("/L2/ffn_up\r");
    let end = viewer.end();
    assert_eq!(end.code, 3, "{}", end.screen);
    assert!(end.screen.contains("became shorter"), "{}", end.screen);
    in_lines(&end.raw);
}

#[test]
fn a_truncated_model_ends_a_chat_with_a_message() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path(), "m");
    let mut chat = Terminal::start(WINDOW, command(&["chat", "--model", model.to_str().unwrap()]));
    chat.shows(&["> "]);
    shorten(&model);
    chat.send("ab\r");
    let end = chat.end();
    assert_eq!(end.code, 3, "{}", end.screen);
    assert!(end.screen.contains("became shorter"), "{}", end.screen);
}

#[test]
fn a_stop_signal_restores_the_terminal_and_continuing_draws_again() {
    let mut viewer = viewer(&[]);
    viewer.send("nn");
    viewer.shows(&["step 3 of "]);
    viewer.signal("TSTP");
    viewer.until("the shell's screen", |screen| !screen.alternate_screen());
    viewer.stops();
    assert!(viewer.has_its_settings());
    viewer.signal("CONT");
    viewer.until("the viewer's screen", vt100::Screen::alternate_screen);
    viewer.shows(&["step 3 of "]);
    // The program cannot catch SIGSTOP. So after SIGCONT it must set up the terminal and draw the whole screen again,
    // because the shell may have changed both.
    viewer.signal("STOP");
    viewer.stops();
    let before = viewer.raw().matches("\x1b[?1049h").count();
    viewer.signal("CONT");
    viewer.writes("the terminal taken again", |raw| raw.matches("\x1b[?1049h").count() > before);
    viewer.send("n");
    viewer.shows(&["step 4 of "]);
    assert!(!viewer.has_its_settings());
    quit(viewer);
}

#[test]
fn signals_end_a_chat_at_its_prompt_properly() {
    for name in ["TERM", "HUP", "QUIT", "USR1", "ALRM"] {
        let chat = Terminal::start(WINDOW, command(&["chat"]));
        chat.shows(&["> "]);
        chat.until("marked pastes", vt100::Screen::bracketed_paste);
        assert!(!chat.has_its_settings());
        chat.signal(name);
        let end = chat.end();
        assert_eq!(end.code, 130, "{name}: {}", end.screen);
        assert!(end.screen.contains(&format!("stopped by SIG{name}")), "{name}: {}", end.screen);
    }
}

#[test]
fn a_chat_goes_on_after_a_stop_signal() {
    let mut chat = Terminal::start(WINDOW, command(&["chat"]));
    chat.shows(&["> "]);
    chat.until("marked pastes", vt100::Screen::bracketed_paste);
    chat.signal("TSTP");
    chat.until("pastes as they are", |screen| !screen.bracketed_paste());
    chat.stops();
    assert!(chat.has_its_settings());
    chat.signal("CONT");
    chat.until("marked pastes", vt100::Screen::bracketed_paste);
    chat.send("/help\r");
    chat.shows(&["/regenerate"]);
    chat.send("/quit\r");
    assert_eq!(chat.end().code, 0);
}

/// The program's output goes to a terminal that is closed, so it can print no message. Its keyboard's terminal is open.
#[test]
fn a_closed_output_causes_no_panic() {
    let mut output = Terminal::start(WINDOW, program("sleep", &["1000"]));
    let binary = env!("CARGO_BIN_EXE_llama-trace");
    let script = format!("exec {binary} --prompt '{PROMPT}' --step > {} 2>&1", output.file().display());
    let mut viewer = Terminal::start(WINDOW, program("/bin/sh", &["-c", &script]));
    output.shows(&["step 1 of "]);
    output.hang_up();
    viewer.send("n");
    assert_eq!(viewer.code(), 6);
}

#[test]
fn a_terminal_without_cursor_movement_is_refused() {
    let mut dumb = command(&["--prompt", PROMPT, "--step"]);
    dumb.env("TERM", "dumb");
    let terminal = Terminal::start(WINDOW, dumb);
    let end = terminal.end();
    assert_eq!(end.code, 6, "{}", end.screen);
    for said in ["TERM=dumb", "llama-trace log", "llama-trace snapshot"] {
        assert!(end.screen.contains(said), "{said}: {}", end.screen);
    }
}

#[test]
fn piped_text_instead_of_keys_gives_the_advice_to_use_a_file() {
    let binary = env!("CARGO_BIN_EXE_llama-trace");
    for option in ["--prompt", "--prompt-file"] {
        let line = format!("echo x | {binary} --step {option} -");
        let end = Terminal::start(WINDOW, program("sh", &["-c", &line])).end();
        assert_eq!(end.code, 6, "{}", end.screen);
        assert!(end.screen.contains("standard input is not a terminal"), "{}", end.screen);
        assert!(end.screen.contains("next: give the text in a file"), "{}", end.screen);
        assert!(end.screen.contains("--prompt-file FILE"), "{}", end.screen);
    }
}

#[test]
fn ctrl_c_works_after_an_incomplete_escape_sequence() {
    for keys in ["\x1b[1;5", "\x1b[200~a paste without an end", "\x1b[<0;1", "\x1bO"] {
        let mut viewer = viewer(&[]);
        viewer.send(keys);
        // Gives the program time to read the incomplete sequence.
        std::thread::sleep(std::time::Duration::from_millis(300));
        viewer.send("\x03");
        let end = viewer.end();
        assert_eq!(end.code, 0, "{keys:?}: {}", end.screen);
    }
}

#[test]
fn the_name_of_a_model_cannot_drive_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path(), "\x1b]0;owned\x07\u{9b}31m");
    let model = model.to_str().unwrap();
    let harmless = |what: &str, raw: &str| {
        assert!(!raw.contains("\x1b]0;owned") && !raw.contains('\u{9b}'), "{what}: {raw:?}");
    };
    for args in [&["info"][..], &["tokenize", "ab"], &["--ids", "1", "-n", "0"], &["log", "--ids", "1,260"]] {
        let args = [args, &["--model", model]].concat();
        let end = Terminal::start((120, 90), command(&args)).end();
        harmless(&format!("{args:?}"), &end.raw);
        assert_eq!(end.code, 0, "{args:?}: {}", end.screen);
    }
    let mut viewer = Terminal::start(WINDOW, command(&["--model", model, "--ids", "1,260", "--step"]));
    viewer.shows(&["step 1 of ", "\\u{1b}]0;owned"]);
    viewer.send("q");
    harmless("the viewer", &viewer.end().raw);
    let mut chat = Terminal::start(WINDOW, command(&["chat", "--model", model]));
    chat.shows(&["\\u{1b}]0;owned", "/help shows", "> "]);
    chat.send("/quit\r");
    harmless("the chat", &chat.end().raw);
}

/// A model file that is truncated while an export reads it. The temporary folder is removed too.
#[cfg(target_os = "linux")]
#[test]
fn a_truncated_model_leaves_no_temporary_folder() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path(), "m");
    let out = folder.path().join("dump");
    // The prompt arrives after the model was opened.
    let args =
        ["export", "--model", model.to_str().unwrap(), "--prompt", "-", "--out", out.to_str().unwrap()];
    let mut export = Terminal::start(WINDOW, command(&args));
    let maps = PathBuf::from(format!("/proc/{}/maps", export.pid()));
    let started = std::time::Instant::now();
    while !fs::read_to_string(&maps).is_ok_and(|maps| maps.contains("m.bin")) {
        assert!(started.elapsed() < std::time::Duration::from_secs(60), "the model is not mapped");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    // Waits until the model is loaded, because the norms are read at that time.
    std::thread::sleep(std::time::Duration::from_millis(300));
    shorten(&model);
    export.send("ab\r\x04\x04");
    let end = export.end();
    assert_eq!(end.code, 3, "{}", end.screen);
    assert!(end.screen.contains("became shorter"), "{}", end.screen);
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["m"]);
}

/// After some key, the system gives no more memory.
#[cfg(target_os = "linux")]
#[test]
fn a_viewer_without_memory_restores_the_terminal_with_a_message() {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let mut viewer = viewer(&[]);
    let pid = Pid::from_raw(viewer.pid().cast_signed());
    let none = Rlimit { current: Some(1 << 20), maximum: None };
    prlimit(pid, Resource::As, none).unwrap();
    // The viewer keeps the pass of each token, so it needs more and more memory.
    for _ in 0..400 {
        viewer.send("tn");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let end = viewer.end();
    assert_eq!(end.code, 4, "{}", end.screen);
    assert!(end.screen.contains("error: there is not enough memory"), "{}", end.screen);
    assert_eq!(end.screen.matches("error").count(), 1, "{}", end.screen);
}
