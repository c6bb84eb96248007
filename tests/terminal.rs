//! The binary in a pseudo-terminal: it starts, steps, follows the window's size, writes files, and ends. It restores
//! the terminal, even if it is killed.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
#[path = "terminal/edits.rs"]
mod edits;
#[path = "terminal/endings.rs"]
mod endings;
#[path = "terminal/judged.rs"]
mod judged;
#[path = "terminal/lessons.rs"]
mod lessons;
#[path = "terminal/patch.rs"]
mod patch;
#[path = "common/pty.rs"]
mod pty;
#[path = "terminal/stopping.rs"]
mod stopping;

use std::fs::{self, File};
use std::path::Path;

use common::{data, fixture, llama_trace, models, stderr};
use ndarray::ArrayD;
use ndarray_npy::ReadNpyExt;
use portable_pty::CommandBuilder;
use pty::Terminal;

const PROMPT: &str = "Once upon a time";
const WINDOW: (u16, u16) = (120, 40);

fn program(program: &str, args: &[&str]) -> CommandBuilder {
    let mut command = CommandBuilder::new(program);
    command.args(args);
    command.env("TERM", "xterm-256color");
    command.env("CUDA_VISIBLE_DEVICES", "");
    for variable in ["COLORTERM", "NO_COLOR", "LINES", "COLUMNS"] {
        command.env_remove(variable);
    }
    command
}

/// The binary with `args`.
fn command(args: &[&str]) -> CommandBuilder {
    program(env!("CARGO_BIN_EXE_llama-trace"), args)
}

/// The viewer on the built-in model, with `args` added.
fn viewer(args: &[&str]) -> Terminal {
    let mut all = vec!["--prompt", PROMPT, "--step"];
    all.extend(args);
    let viewer = Terminal::start(WINDOW, command(&all));
    viewer.shows(&["pass 0 (prefill)"]);
    viewer
}

/// Quits the viewer as a user does.
fn quit(mut viewer: Terminal) {
    viewer.send("q");
    let end = viewer.end();
    assert_eq!(end.code, 0, "{}", end.screen);
    // The description of the named model was printed before the viewer opened.
    let left: Vec<_> = end.screen.lines().filter(|line| !line.ends_with("precision f32")).collect();
    assert_eq!(left.concat(), "", "the viewer left text on the screen");
}

#[test]
fn the_first_screen_shows_the_prompt_and_q_leaves_it() {
    let viewer = viewer(&[]);
    viewer.shows(&["<|begin_of_text|>", "│Once│␣upon│␣a│␣time", "is next"]);
    viewer.shows(&["step 1 of ", "tokens", "embedding", "layer 0", "layer 3", "logits", "q quit"]);
    assert!(viewer.look(vt100::Screen::alternate_screen), "the viewer does not use the alternate screen");
    assert!(!viewer.has_its_settings(), "keys come as they are pressed");
    quit(viewer);
}

#[test]
fn without_options_the_viewer_shows_the_built_in_model() {
    let viewer = Terminal::start(WINDOW, command(&[]));
    viewer.shows(&["built-in", "│Once│␣upon│␣a│␣time", "step 1 of "]);
    quit(viewer);
}

#[test]
fn keys_walk_through_the_pass() {
    let mut viewer = viewer(&[]);
    viewer.shows(&["step 1 of "]);
    for (keys, expected) in [
        ("n", &["step 2 of ", "before the layers"][..]),
        (" ", &["step 3 of "]),
        ("p", &["step 2 of "]),
        ("nnnnnnnnnnnnnnnnnnnn", &["step 22 of ", "layer 0 of 0-3"]),
        ("N", &["layer 1 of 0-3"]),
        ("}", &["layer 2 of 0-3"]),
        ("P", &["layer 1 of 0-3"]),
        ("G", &["after the layers", "sampled"]),
        ("n", &["this was the last step"]),
        ("g", &["step 1 of "]),
        ("\x7f", &["this is the first step"]),
        ("/softmax\r", &["layer 0 of 0-3", "head 0"]),
        ("]", &["head 1"]),
        ("/nowhere\r", &["no stage `nowhere`"]),
        ("\x1b", &["q quit"]),
        (":L3/xq_rope\r", &["layer 3 of 0-3", "xq_rope"]),
    ] {
        viewer.send(keys);
        viewer.shows(expected);
    }
    quit(viewer);
}

#[test]
fn the_next_token_is_a_decode_pass() {
    let mut viewer = viewer(&[]);
    viewer.send("n");
    viewer.shows(&["step 2 of ", "▾ pass 0 prefill"]);
    viewer.send("t");
    let screen = viewer.shows(&["pass 1 (decode)", "▸ pass 0 prefill", "▾ pass 1 decode", "step 2 of "]);
    assert!(!screen.contains("pass 2"), "{screen}");
    viewer.send("t");
    viewer.shows(&["pass 2 (decode)", "▾ pass 2 decode"]);
    viewer.send(",");
    viewer.shows(&["pass 1 (decode)", "▸ pass 2 decode"]);
    quit(viewer);
}

#[test]
fn an_edit_and_another_token_run_beside_the_first_run() {
    let mut viewer = viewer(&["--layer", "1", "--stage", "softmax"]);
    viewer.shows(&["layer 1 of 0-3", "head 0"]);
    viewer.send("E");
    viewer.shows(&["this prompt with an edit", "edit p0/L1/softmax[h=0,t=4,k="]);
    viewer.send("\t\t0\r");
    viewer.shows(&["r1 runs this prompt with p0/L1/softmax[h=0] = 0", "◆ edited"]);
    viewer.send("X");
    viewer.shows(&["[x] p0/L1/softmax[h=0] = 0"]);
    viewer.send("\r");
    viewer.shows(&["r0 is that run; /r1: goes back"]);
    viewer.send("w");
    viewer.shows(&["token 4 = ␣time"]);
    viewer.send("\x7f\x7f\x7f\x7fday\r");
    viewer.shows(&["r2 runs the prompt with other tokens", "│␣a│␣day"]);
    // A run with other tokens and an edit differs from the first one in both.
    viewer.send("/without L1/h0\r");
    viewer.shows(&["r3 runs this prompt without L1/h0"]);
    viewer.send("/token 4 = ␣time,\r");
    viewer.shows(&["r4 runs the prompt with other tokens, without L1/h0"]);
    viewer.send("(");
    viewer.shows(&["r4 has only one sequence; /r0: goes back to the first run"]);
    viewer.send("/prompt A fox\r");
    viewer.shows(&["r5 runs another prompt; /r4: goes back"]);
    viewer.send("B");
    viewer.shows(&[
        "the original run",
        "with p0/L1/softmax[h=0] = 0",
        "another prompt, without L1/h0",
        "Enter goes there",
    ]);
    viewer.send("\x1b");
    viewer.until("the list is closed", |screen| !screen.contents().contains("Enter goes there"));
    viewer.send("/without L9/h0\r");
    viewer.shows(&["the model has no layer 9", "switching off L9/h0"]);
    viewer.send("\x1b");
    viewer.until("the line is closed", |screen| !screen.contents().contains("switching off"));
    quit(viewer);
}

#[test]
fn the_viewer_opens_exactly_where_the_command_line_says() {
    let viewer = viewer(&["--layer", "2", "--stage", "softmax", "--head", "1"]);
    viewer.shows(&["layer 2 of 0-3", "softmax", "head 1"]);
    quit(viewer);
    let viewer = Terminal::start(
        WINDOW,
        command(&["--prompt", PROMPT, "--step", "-n", "3", "--pass", "2", "--stage", "logits"]),
    );
    viewer.shows(&["pass 2 (decode)", "after the layers", "logits"]);
    quit(viewer);
}

#[test]
fn a_missing_place_is_reported_before_the_terminal_changes() {
    for (args, expected) in [
        (["--layer", "4"], ["from 0 to 3", "4"]),
        (["--stage", "sofmax"], ["did you mean `softmax`?", "sofmax"]),
        (["--head", "4"], ["from 0 to 3", "head"]),
        (["--pass", "1"], ["0, the only pass there is", "add -n 2"]),
    ] {
        let mut all = vec!["--prompt", PROMPT, "--step"];
        all.extend(args);
        let viewer = Terminal::start(WINDOW, command(&all));
        refuses(viewer, 2, &expected);
    }
    let one = Terminal::start(WINDOW, command(&["--ids", "0", "--step", "--stage", "mask"]));
    refuses(one, 2, &["no mask", "choose softmax"]);
    refuses(Terminal::start(WINDOW, command(&["--model", "/nonexistent"])), 3, &["/nonexistent"]);
    refuses(Terminal::start(WINDOW, command(&["--ids", "4000000", "--step"])), 4, &["4000000"]);
}

/// Asserts that the program ends with `code` and a message with each of `texts`, and draws nothing.
fn refuses(viewer: Terminal, code: u32, texts: &[&str]) {
    let end = viewer.end();
    assert_eq!(end.code, code, "{}", end.screen);
    let flat = end.screen.split_whitespace().collect::<Vec<_>>().join(" ");
    for text in texts {
        assert!(flat.contains(text), "{text} is not in\n{}", end.screen);
    }
    assert!(flat.starts_with("error: ") && !end.raw.contains("\x1b[?"), "{:?}", end.raw);
}

#[test]
fn help_lists_the_keys() {
    let mut viewer = viewer(&[]);
    viewer.send("?");
    viewer.shows(&["Walking through the pass", "n, Space", "next step"]);
    viewer.send("\x1b");
    viewer.until("the help screen is closed", |screen| !screen.contents().contains("Walking through"));
    quit(viewer);
}

#[test]
fn the_window_may_have_any_size() {
    let mut viewer = viewer(&["--stage", "softmax"]);
    viewer.shows(&["softmax"]);
    for size in [(30, 8), (59, 16), (60, 15), (3, 2)] {
        viewer.resize(size);
        viewer.until(&format!("{size:?} is too small"), |screen| {
            let flat: String = screen.contents().split_whitespace().collect();
            let message = format!("terminaltoosmall:needsatleast60x16,is{}x{};qquits", size.0, size.1);
            screen.size() == (size.1, size.0) && !flat.is_empty() && message.starts_with(&flat)
        });
        // Keys work even if the window is too small to show anything.
        viewer.send("N");
    }
    for size in [(60, 16), (80, 24), (200, 60), (500, 200), WINDOW] {
        viewer.resize(size);
        let filled = |screen: &vt100::Screen| {
            let rows: Vec<String> = screen.rows(0, size.0).collect();
            rows[usize::from(size.1) - 1].contains("q quit")
        };
        // A key that arrives together with a resize is handled at once, and not only at the next key.
        let screen = viewer.until(&format!("{size:?} shows what the keys did"), |screen| {
            filled(screen) && screen.contents().contains("layer 3 of 0-3")
        });
        assert!(!screen.contains("too small"), "{screen}");
    }
    quit(viewer);
}

#[test]
fn a_key_that_arrives_together_with_a_resize_works() {
    let mut viewer = viewer(&["--stage", "tokens"]);
    viewer.shows(&["step 1 of"]);
    for step in 2..40 {
        viewer.resize((100 + step % 2, 30));
        viewer.send("n");
        viewer.shows(&[&format!("step {step} of")]);
    }
    quit(viewer);
}

#[test]
fn the_viewer_starts_in_a_small_window_and_in_one_of_size_0() {
    for size in [(20, 5), (0, 0)] {
        let mut viewer = Terminal::start(size, command(&["--prompt", PROMPT, "--step"]));
        viewer.until("the alternate screen", vt100::Screen::alternate_screen);
        viewer.send("q");
        assert_eq!(viewer.end().code, 0, "{size:?}");
    }
}

#[test]
fn the_key_e_exports_the_shown_stage() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = command(&["--prompt", PROMPT, "--step", "--stage", "softmax", "--layer", "2"]);
    command.cwd(folder.path());
    let mut viewer = Terminal::start(WINDOW, command);
    viewer.shows(&["layer 2 of 0-3", "p0/L2/softmax[h=0,t=4,k=2] = "]);
    viewer.send("e");
    viewer.shows(&["wrote ", "p0_L2_softmax.npy"]);
    // A second file never replaces the first one, and a decode pass has other file names.
    viewer.send("e");
    viewer.shows(&["p0_L2_softmax-2.npy"]);
    viewer.send("t");
    viewer.shows(&["pass 1 (decode)"]);
    viewer.send("/logits\r");
    viewer.shows(&["p1/logits[", "] = "]);
    viewer.send("e");
    viewer.shows(&["p1_logits.npy"]);
    quit(viewer);

    let dump = folder.path().join("dump");
    let out = dump.to_str().unwrap();
    let export =
        llama_trace(["export", "--prompt", PROMPT, "-n", "2", "--stages", "softmax,logits", "--out", out]);
    assert!(export.status.success(), "{}", stderr(&export));
    let softmax = values(&dump.join("pass_000/layer_02/softmax.npy"));
    assert_eq!(softmax.shape(), [4, 5, 5]);
    for name in ["p0_L2_softmax.npy", "p0_L2_softmax-2.npy"] {
        assert_same_bits(&values(&folder.path().join(name)), &softmax);
    }
    let logits = values(&dump.join("pass_001/logits.npy"));
    assert_same_bits(&values(&folder.path().join("p1_logits.npy")), &logits);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4, "another file was written");
}

fn values(file: &Path) -> ArrayD<f32> {
    ArrayD::read_npy(File::open(file).unwrap()).unwrap()
}

fn assert_same_bits(one: &ArrayD<f32>, other: &ArrayD<f32>) {
    assert_eq!(one.shape(), other.shape());
    assert!(one.iter().zip(other).all(|(a, b)| a.to_bits() == b.to_bits()), "{one} and {other}");
}

#[test]
fn a_folder_that_cannot_be_written_is_reported_in_the_viewer() {
    let folder = tempfile::tempdir().unwrap();
    let gone = folder.path().join("gone");
    fs::create_dir(&gone).unwrap();
    let mut command = command(&["--prompt", PROMPT, "--step"]);
    command.cwd(&gone);
    let mut viewer = Terminal::start(WINDOW, command);
    viewer.shows(&["step 1 of "]);
    fs::remove_dir(&gone).unwrap();
    viewer.send("e");
    viewer.shows(&["cannot be exported", "start in a folder that you may write to"]);
    viewer.send("n");
    viewer.shows(&["step 2 of "]);
    quit(viewer);
}

#[test]
fn signals_end_the_viewer_properly() {
    for name in ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "ALRM", "XCPU"] {
        let viewer = viewer(&[]);
        assert!(!viewer.has_its_settings());
        viewer.signal(name);
        let end = viewer.end();
        assert_eq!(end.code, 130, "{name}: {}", end.screen);
        assert!(end.screen.contains(&format!("stopped by SIG{name}")), "{name}: {}", end.screen);
    }
}

#[test]
fn ctrl_c_quits() {
    let mut viewer = viewer(&[]);
    viewer.send("\x03");
    assert_eq!(viewer.end().code, 0);
}

#[test]
fn ctrl_z_gives_the_terminal_to_the_shell_and_fg_takes_it_again() {
    let mut viewer = viewer(&[]);
    viewer.send("nn");
    viewer.shows(&["step 3 of "]);
    viewer.send("\x1a");
    viewer.until("the shell's screen", |screen| !screen.alternate_screen());
    viewer.stops();
    assert!(viewer.has_its_settings());
    viewer.signal("CONT");
    viewer.shows(&["step 3 of "]);
    assert!(viewer.look(vt100::Screen::alternate_screen));
    assert!(!viewer.has_its_settings());
    viewer.send("n");
    viewer.shows(&["step 4 of "]);
    quit(viewer);
}

/// The window is closed: the terminal is gone, and a signal reports this.
#[test]
fn the_viewer_ends_when_its_window_closes() {
    let mut viewer = viewer(&[]);
    viewer.shows(&["step 1 of "]);
    viewer.hang_up();
    assert!(matches!(viewer.code(), 6 | 130));
}

/// The terminal is gone, and no signal reports this, because the program is in another session.
#[test]
fn the_viewer_ends_when_a_terminal_of_another_session_closes() {
    let mut command = command(&["--prompt", PROMPT, "--step"]);
    command.set_controlling_tty(false);
    let mut viewer = Terminal::start(WINDOW, command);
    viewer.shows(&["step 1 of "]);
    viewer.hang_up();
    assert!(matches!(viewer.code(), 6 | 130));
}

#[test]
fn no_color_and_terminals_without_colours_turn_colours_off() {
    let colours_of = |variable: Option<(&str, &str)>| {
        let mut command = command(&["--prompt", PROMPT, "--step", "--stage", "softmax"]);
        if let Some((name, value)) = variable {
            command.env(name, value);
        }
        let mut viewer = Terminal::start(WINDOW, command);
        viewer.shows(&["softmax", "step "]);
        // Esc must be read before the next key arrives. Otherwise the two are read as Alt together with that key.
        for (keys, expected) in [
            ("v", "softmax"),
            ("/logits\r", "after the layers"),
            ("/", "cancel"),
            ("\x1b", "q quit"),
            ("?", "next step"),
        ] {
            viewer.send(keys);
            viewer.shows(&[expected]);
        }
        viewer.send("?");
        viewer.until("the help screen is closed", |screen| !screen.contents().contains("Walking through"));
        let raw = viewer.raw();
        quit(viewer);
        colours(&raw)
    };
    assert_eq!(colours_of(Some(("NO_COLOR", "1"))), [] as [String; 0]);
    assert_eq!(colours_of(Some(("TERM", "vt100"))), [] as [String; 0]);
    assert!(!colours_of(None).is_empty(), "there are no colours although nothing turns them off");
}

/// The escape sequences in `raw` that set a colour.
fn colours(raw: &str) -> Vec<String> {
    let sequences = raw.split("\x1b[").skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !(c.is_ascii_digit() || matches!(c, ';' | ':' | '?')))?;
        rest[end..].starts_with('m').then(|| &rest[..end])
    });
    let colour = |code: &str| matches!(code.parse(), Ok(30..=37 | 38 | 40..=47 | 48 | 90..=97 | 100..=107));
    sequences.filter(|codes| codes.split([';', ':']).any(colour)).map(str::to_owned).collect()
}

#[test]
fn without_a_terminal_the_error_names_commands_that_work() {
    let binary = env!("CARGO_BIN_EXE_llama-trace");
    for script in [
        format!("{binary} --step < /dev/null"),
        format!("{binary} < /dev/null"),
        format!("{{ {binary} --prompt x --step; echo code $? >&2; }} | cat; exit 6"),
    ] {
        let end = Terminal::start(WINDOW, program("/bin/sh", &["-c", &script])).end();
        assert_eq!(end.code, 6, "{script}: {}", end.screen);
        for text in ["is not a terminal", "llama-trace log", "llama-trace export"] {
            assert!(end.screen.contains(text), "{script}: {}", end.screen);
        }
        assert!(!script.contains("code") || end.screen.contains("code 6"), "{}", end.screen);
    }
}

#[test]
fn a_model_without_a_tokenizer_is_stepped_through_by_ids() {
    let model = fixture("golden/mha_bias");
    let args = ["--model", model.to_str().unwrap(), "--ids", "1,5,9", "--step", "--stage", "scores"];
    let mut viewer = Terminal::start(WINDOW, command(&args));
    viewer.shows(&["mha_bias", "#1", "#5", "#9", "scores"]);
    viewer.send("t");
    viewer.shows(&["pass 1 (decode)"]);
    quit(viewer);
}

#[test]
fn stories260k_is_stepped_through() {
    let Some(model) = data("stories260K/stories260K.bin") else { return };
    let args = ["--model", model.to_str().unwrap(), "--prompt", PROMPT, "--step", "--stage", "softmax"];
    let mut viewer = Terminal::start(WINDOW, command(&args));
    viewer.shows(&["stories260K", "<s>│␣Once│", "layer 0 of 0-4", "softmax"]);
    viewer.send("t");
    viewer.shows(&["pass 1 (decode)"]);
    quit(viewer);
}

/// A model that samples mostly tokens whose text sets the window's title.
fn hostile_vocabulary(folder: &Path) -> String {
    let mut tokens = models::tok_bin(models::BIN_VOCAB);
    // Filler tokens, each with four bytes and their length before them.
    let token = b"\x1b]0;owned\x07\xc2\x9b31m\r";
    for id in 265..models::BIN_VOCAB {
        let filler = format!("t{id}");
        let at = tokens.windows(4).rposition(|bytes| bytes == filler.as_bytes()).unwrap();
        tokens.splice(at - 4..at + 4, [&(token.len() as i32).to_le_bytes()[..], token].concat());
    }
    fs::write(folder.join("m.bin"), models::bin()).unwrap();
    fs::write(folder.join("tokenizer.bin"), tokens).unwrap();
    fs::write(folder.join("chat_template.jinja"), "{{ messages[-1].content }}").unwrap();
    folder.join("m.bin").to_str().unwrap().to_owned()
}

#[test]
fn a_vocabulary_cannot_drive_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let model = hostile_vocabulary(folder.path());
    let args = ["--model", &model, "--ids", "265,1,299", "-n", "12", "--temperature", "1", "--seed", "3"];
    let piped = llama_trace(args).stdout;
    let titles = |bytes: &[u8]| bytes.windows(9).filter(|bytes| bytes == b"\x1b]0;owned").count();
    assert!(
        titles(&piped) > 2,
        "the prompt's tokens, some that were drawn, and in a pipe every byte of them"
    );
    let end = Terminal::start(WINDOW, command(&args)).end();
    assert_eq!((end.code, titles(end.raw.as_bytes())), (0, 0), "{:?}", end.raw);
    assert!(!end.raw.contains(['\u{1b}', '\u{7}', '\u{9b}']), "{:?}", end.raw);
    assert!(end.screen.contains("\\u{1b}]0;owned\\u{7}\\u{9b}31m\\r"), "{}", end.screen);

    let mut viewer = Terminal::start(WINDOW, command(&["--model", &model, "--ids", "265,1,299", "--step"]));
    viewer.shows(&["step 1 of "]);
    viewer.send("G");
    viewer.shows(&["after the layers"]);
    viewer.send("q");
    assert_eq!(titles(viewer.end().raw.as_bytes()), 0);

    let mut chat = Terminal::start(
        WINDOW,
        command(&["chat", "--model", &model, "-n", "12", "--temperature", "1", "--seed", "3"]),
    );
    chat.shows(&["> "]);
    chat.send("ab\r");
    chat.shows(&["\\u{1b}]0;owned"]);
    chat.send("/quit\r");
    let end = chat.end();
    assert_eq!((end.code, titles(end.raw.as_bytes())), (0, 0), "{:?}", end.raw);
}

/// A llama2.c file that is wide enough to make a long prompt slow: dim 256, hidden 1024, 8 layers, context 4096.
fn slow_model(folder: &Path) -> String {
    let [dim, hidden, layers, heads, vocab, context]: [usize; 6] = [256, 1024, 8, 8, 300, 4096];
    let layer = 2 * dim + 4 * dim * dim + 3 * dim * hidden;
    let values = vocab * dim + layers * layer + dim + context * (dim / heads);
    let header = [dim, hidden, layers, heads, heads, vocab, context];
    let mut bytes: Vec<u8> = header.iter().flat_map(|&size| (size as i32).to_le_bytes()).collect();
    bytes.extend((0..values).flat_map(|i| (((i * 7 % 13) as f32 - 6.0) / 200.0).to_le_bytes()));
    let path = folder.join("slow.bin");
    fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn the_screen_opens_before_a_long_prompt_is_run_and_escape_ends_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let (model, ids) = (slow_model(folder.path()), vec!["1"; 4000].join(","));
    let args = ["--model", &model, "--ids", &ids, "--step", "--threads", "1"];
    let mut viewer = Terminal::start(WINDOW, command(&args));
    viewer.shows(&["running the prompt: layer ", "▸ layer 7", "pass 0 (prefill)"]);
    viewer.send("n");
    viewer.shows(&["embedding", "Esc stops and leaves"]);
    viewer.send("\x1b");
    let end = viewer.end();
    assert_eq!(end.code, 130, "{}", end.screen);
    assert!(end.screen.contains("stopped before the first pass was done"), "{}", end.screen);
}

#[test]
fn an_impossible_prompt_is_reported_before_the_screen_opens() {
    let ids = vec!["1"; 513].join(",");
    let end = Terminal::start(WINDOW, command(&["--ids", &ids, "--step"])).end();
    assert_eq!(end.code, 4, "{}", end.screen);
    assert!(end.screen.contains("longer than the model's context"), "{}", end.screen);
}

#[test]
fn a_key_goes_from_prompt_to_prompt_and_an_address_opens_one() {
    let prompts = ["--prompt", PROMPT, "--prompt", "The dog", "--prompt", "A fox and", "--step"];
    let with = |args: &[&str]| command(&[&prompts[..], args].concat());
    let mut viewer = Terminal::start(WINDOW, with(&[]));
    viewer.shows(&["sequence 0 of 0-2 · pass 0 (prefill)", "│Once│␣upon│", "is next"]);
    viewer.send("/p0/L2/softmax[h=1,t=2,k=1]\r");
    viewer.shows(&["layer 2 of 0-3", " p0/L2/softmax[h=1,t=2,k=1] = "]);
    viewer.send(")");
    viewer.shows(&["sequence 1 of 0-2", "│The│␣dog", " s1/p0/L2/softmax[h=1,t=2,k=1] = "]);
    // Each sequence samples other tokens.
    viewer.send("t");
    viewer.shows(&["pass 1 (decode)", " s1/p1/L2/softmax[h=1,t=0,k=1] = "]);
    viewer.send("(");
    viewer.shows(&["sequence 0 of 0-2 · pass 0 (prefill)", "│Once│␣upon│"]);
    viewer.send("/s7\r");
    viewer.shows(&["there is no sequence 7: 0 to 2"]);
    viewer.send("\x7f\x7fs2\r");
    viewer.shows(&["sequence 2 of 0-2", "│A│"]);
    quit(viewer);

    let viewer = Terminal::start(WINDOW, with(&["--at", "s1/p0/L1/xq[t=2,h=3,c=4]"]));
    let screen = viewer.shows(&["sequence 1 of 0-2", " s1/p0/L1/xq[t=2,h=3,c=4] = "]);
    let value = |screen: &str, address: &str| {
        let (_, rest) = screen.split_once(&format!(" {address} = ")).unwrap();
        rest.split_whitespace().next().unwrap().to_owned()
    };
    quit(viewer);
    let args = ["--prompt", "The dog", "--at", "p0/L1/xq[t=2,h=3,c=4]"];
    let viewer = Terminal::start(WINDOW, command(&args));
    let alone = viewer.shows(&[" p0/L1/xq[t=2,h=3,c=4] = "]);
    assert!(!alone.contains("sequence"), "{alone}");
    assert_eq!(
        value(&screen, "s1/p0/L1/xq[t=2,h=3,c=4]"),
        value(&alone, "p0/L1/xq[t=2,h=3,c=4]"),
        "the numbers of the prompt alone"
    );
    quit(viewer);
    refuses(Terminal::start(WINDOW, with(&["--at", "s3/p0"])), 2, &["there is no sequence 3: 0 to 2"]);
    let long = vec!["1"; 600].join(",");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("two.jsonl");
    fs::write(&path, format!("{{\"ids\": [1]}}\n{{\"ids\": [{long}]}}\n")).unwrap();
    let args = ["--prompts", path.to_str().unwrap(), "--step"];
    refuses(
        Terminal::start(WINDOW, command(&args)),
        4,
        &["two.jsonl, line 2", "longer than the model's context"],
    );
}

#[test]
fn escape_leaves_a_sequence_that_still_runs_its_prompt() {
    let folder = tempfile::tempdir().unwrap();
    let model = slow_model(folder.path());
    let path = folder.path().join("prompts.jsonl");
    fs::write(&path, format!("{{\"ids\": [1, 2]}}\n{{\"ids\": [{}]}}\n", vec!["1"; 4000].join(","))).unwrap();
    let args = ["--model", &model, "--prompts", path.to_str().unwrap(), "--step", "--threads", "1"];
    let mut viewer = Terminal::start(WINDOW, command(&args));
    viewer.shows(&["sequence 0 of 0-1", "is next"]);
    viewer.send("n");
    viewer.shows(&["embedding", "p0/embedding["]);
    for _ in 0..2 {
        viewer.send(")");
        viewer.shows(&["running the prompt: layer ", "Esc stops it and goes back"]);
        viewer.send("\x1b");
        let screen = viewer.shows(&["sequence 0 of 0-1", "sequence 1 was stopped before", " p0/embedding["]);
        assert!(!screen.contains("sequence sequence"), "{screen}");
    }
    viewer.send("t");
    viewer.shows(&["pass 1 (decode)"]);
    viewer.send(")");
    viewer.shows(&["running the prompt: layer "]);
    quit(viewer);
}
