//! Checks that the outputs and screens in README and in the manual under `chapters/reference/` are those of the
//! program.
//!
//! In a block ```` ```console ````, the lines below a command are its output. A line `…` stands for any lines, and a
//! duration is written as `… µs`. A block under `<!-- screen 112x31 -->` is a screen of that size, without colours: the
//! command before it opens this screen. `· t: pass 1 (decode)` types `t` and waits for the text after the colon (`⏎` is
//! the Enter key). `LLAMA_TRACE_BLESS=1` updates the screens, and the outputs without `…`.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::{is_part, note, shell};
use llama_trace::chapters::MANUAL;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// README and every page of the manual.
fn texts() -> Vec<(PathBuf, String)> {
    let pages = std::fs::read_dir(root().join("chapters/reference")).unwrap();
    let paths = pages.map(|page| page.unwrap().path()).chain([root().join("README.md")]);
    paths.map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

/// A command and its expected output or screen.
struct Shown {
    words: Vec<String>,
    window: Option<Window>,
    /// Range of the expected lines.
    at: Range<usize>,
}

struct Window {
    columns_rows: (u16, u16),
    /// The keys to type, and the text to wait for after each.
    keys: Vec<(String, String)>,
}

impl Window {
    fn parse(text: &str) -> Self {
        let mut parts = text.split(" · ");
        let (columns, rows) = parts.next().unwrap().trim().split_once('x').unwrap();
        let key = |part: &str| {
            let (typed, awaited) = part.split_once(": ").unwrap();
            (typed.replace('⏎', "\r"), awaited.trim().to_owned())
        };
        // Waits first until the values have arrived: then the screen has an address with its value.
        let keys = std::iter::once((String::new(), "] = ".into())).chain(parts.map(key));
        Self { columns_rows: (columns.parse().unwrap(), rows.parse().unwrap()), keys: keys.collect() }
    }
}

/// Returns all commands of this program in `text`, with their outputs.
fn shown(text: &str) -> Vec<Shown> {
    let mut all: Vec<Shown> = Vec::new();
    let (mut words, mut window, mut block, mut at) = (Vec::new(), None, None, 0);
    for line in text.split_inclusive('\n') {
        let (from, end) = (at, at + line.len());
        at = end;
        let line = line.trim_end();
        match (line.strip_prefix("```"), block) {
            (Some(kind), None) => {
                block = Some(kind);
                if let Some(window) = window.take() {
                    all.push(Shown { words: words.clone(), window: Some(window), at: end..end });
                }
            }
            (Some(_), Some(_)) => block = None,
            (None, Some("console")) => match line.strip_prefix("$ ") {
                // A command with a pipe needs a shell. Such a command shows no output.
                Some(command) => words = note::split(command).unwrap_or_default(),
                None if words.first().is_some_and(|word| word == "llama-trace") => match all.last_mut() {
                    Some(last) if last.at.end == from => last.at.end = end,
                    _ => all.push(Shown { words: words.clone(), window: None, at: from..end }),
                },
                None => panic!("{line} is the output of no command"),
            },
            (None, Some(_)) => {
                if let Some(last) = all.last_mut().filter(|last| last.at.end == from) {
                    last.at.end = end;
                }
            }
            (None, None) => {
                let screen = line.strip_prefix("<!-- screen ").and_then(|line| line.strip_suffix(" -->"));
                window = screen.map(Window::parse).or(window);
            }
        }
    }
    all
}

/// Replaces each duration in the text by `… µs`, as README and the manual write it.
fn masked(text: &str) -> String {
    let times = regex::Regex::new(r"\d+(\.\d+)? µs").unwrap();
    times.replace_all(text, "… µs").into_owned()
}

fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim_end).collect()
}

/// Returns the difference between an output that the text shows and the output of the program, if there is one.
fn wrong(text: &str, shown: &Shown) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let expected = &text[shown.at.clone()];
    let drawn = match &shown.window {
        None => {
            let (_, printed) = shell::print(&shown.words, folder.path());
            let printed = masked(&printed);
            if is_part(&lines(expected), &printed) {
                return None;
            }
            printed
        }
        Some(Window { columns_rows, keys }) => {
            let is_it = |screen: &str| lines(screen) == lines(expected);
            let screen =
                shell::screen(&shown.words, *columns_rows, keys, is_it).unwrap_or_else(|error| error);
            if is_it(&screen) {
                return None;
            }
            screen
        }
    };
    Some(format!("{} shows\n{drawn}\nand the text has\n{expected}", shown.words.join(" ")))
}

/// Returns the text with the program's present outputs.
fn blessed(text: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut new = text.to_owned();
    for shown in shown(text).iter().rev() {
        let old = &text[shown.at.clone()];
        let drawn = match &shown.window {
            None if old.lines().any(|line| line == "…") => continue,
            None => masked(&shell::print(&shown.words, folder.path()).1),
            Some(Window { columns_rows, keys }) => {
                let mut last = (String::new(), Instant::now());
                let is_still = |screen: &str| {
                    if last.0 != screen {
                        last = (screen.to_owned(), Instant::now());
                    }
                    last.1.elapsed() > Duration::from_secs(1)
                };
                shell::screen(&shown.words, *columns_rows, keys, is_still).unwrap()
            }
        };
        new.replace_range(shown.at.clone(), &(lines(&drawn).join("\n").trim_end().to_owned() + "\n"));
    }
    new
}

#[test]
fn outputs_in_readme_and_the_manual_are_those_of_the_program() {
    let (mut screens, mut outputs, mut errors) = (0, 0, Vec::new());
    for (path, mut text) in texts() {
        if std::env::var_os("LLAMA_TRACE_BLESS").is_some_and(|value| value == "1") {
            text = blessed(&text);
            std::fs::write(&path, &text).unwrap();
        }
        for shown in shown(&text) {
            *if shown.window.is_some() { &mut screens } else { &mut outputs } += 1;
            errors.extend(wrong(&text, &shown).map(|error| format!("{}: {error}", path.display())));
        }
    }
    assert!(
        screens >= 2 && outputs >= 10,
        "README and the manual show only {screens} screens and {outputs} outputs"
    );
    crate::assert_none(&errors);
}

#[test]
fn every_page_of_the_manual_is_listed_and_every_link_is_valid() {
    let files: BTreeSet<_> = texts().iter().map(|(path, _)| path.file_stem().unwrap().to_owned()).collect();
    let pages = MANUAL.iter().map(|page| page.slug).chain(["README"]).map(Into::into);
    assert_eq!(files, pages.collect::<BTreeSet<std::ffi::OsString>>());
    assert_eq!(files.len(), MANUAL.len() + 1, "no page is listed twice");
    for (path, text) in texts() {
        assert!(text.starts_with("# "), "{} begins with its title", path.display());
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let leads = link.starts_with("https://") || path.parent().unwrap().join(link).exists();
            assert!(leads, "{}: {link} leads nowhere", path.display());
        }
        // `help X` prints the page X.
        for (page, link) in text.split("[`help ").skip(1).filter_map(|rest| rest.split_once("`](")) {
            assert!(link.starts_with(&format!("{page}.md)")), "{}: help {page}", path.display());
        }
    }
}

#[test]
fn a_wrong_output_in_a_readme_is_found() {
    let told = |text: &str| shown(text).iter().filter_map(|shown| wrong(text, shown)).collect::<String>();
    let version = format!("llama-trace {}", env!("CARGO_PKG_VERSION"));
    let console = |output: &str| format!("# x\n\n```console\n$ llama-trace --version\n{output}\n```\n");
    assert_eq!(told(&console(&version)), "");
    assert!(told(&console("llama-trace 9.9.9")).contains(&version));
    let number =
        "```console\n$ llama-trace log --prompt a --stage tokens,embedding\n…\n[p0] - lookup\n…\n```\n";
    assert!(told(number).contains("[… µs]"), "times are masked: {}", told(number));
}

#[test]
fn keys_views_and_the_commands_of_the_go_to_line_are_in_the_manual() {
    let help: String = llama_trace::tui::action::BINDINGS.iter().map(|binding| binding.help).collect();
    let texts = texts();
    let text = |end: &str| &texts.iter().find(|(path, _)| path.ends_with(end)).unwrap().1;
    for command in ["compare", "prompt", "without", "edit"] {
        assert!(help.contains(&format!(" /{command} ")), "{command} is not in {help}");
        assert!(text("README.md").contains(&format!("`/{command} ")), "{command}");
        assert!(text("reference/keys.md").contains(&format!("| `{command} ")), "{command}");
    }
    for view in llama_trace::tui::view::views::VIEWS {
        assert!(text("reference/views.md").contains(view.name()), "{}", view.name());
    }
    for binding in llama_trace::tui::action::BINDINGS {
        let key = binding.keys[0].label();
        let keys = text("reference/keys.md");
        let named = match &*key {
            "↑" | "↓" | "←" | "→" => keys.contains("arrows"),
            key => keys.contains(key),
        };
        assert!(named, "{key}");
    }
}

/// Returns the commands of this program that `text` has in backquotes, in indented lines, or after a prompt. A command
/// ends before a pipe or a redirection.
fn commands(text: &str) -> Vec<Vec<String>> {
    let spans = regex::Regex::new("`(llama-trace [^`]+)`").unwrap();
    let spans = spans.captures_iter(text).map(|found| found[1].replace('\n', " "));
    let lines = text.lines().filter_map(|line| line.strip_prefix("$ ").or_else(|| line.strip_prefix("    ")));
    let lines = lines.filter(|line| line.starts_with("llama-trace ")).map(str::to_owned);
    let own = |command: String| {
        let words = note::split(&command).ok()?;
        Some(
            words
                .into_iter()
                .take_while(|word| !["|", ">", "<", "&&", "…"].contains(&word.as_str()))
                .collect(),
        )
    };
    spans.chain(lines).filter_map(own).collect()
}

#[test]
fn the_program_accepts_every_command_in_readme_and_the_manual() {
    let commands: Vec<_> = texts().iter().flat_map(|(_, text)| commands(text)).collect();
    assert!(commands.len() > 80, "{}", commands.len());
    let folder = tempfile::tempdir().unwrap();
    for words in &commands {
        let meant = |word: &String| match word.as_str() {
            "ADDRESS" => "L1/qk".to_owned(),
            "SHELL" => "bash".to_owned(),
            "RUNTIME" => "transformers".to_owned(),
            "COMMAND" | "SUBJECT" => "log".to_owned(),
            _ => word.clone(),
        };
        // The options before `--help` are parsed; `--help` then ends the command.
        let words: Vec<String> = words.iter().map(meant).chain(["--help".into()]).collect();
        let (code, printed) = shell::print(&words, folder.path());
        assert_eq!(code, 0, "{words:?}: {printed}");
    }
    let wrong = ["llama-trace", "log", "--nothing", "--help"].map(str::to_owned);
    assert_ne!(shell::print(&wrong, folder.path()).0, 0);
}

#[test]
fn the_manual_lists_every_known_mistake_and_readme_has_the_rust_version() {
    let [readme, mistakes] = ["README.md", "chapters/reference/mistakes.md"]
        .map(|path| std::fs::read_to_string(root().join(path)).unwrap());
    let table = mistakes.split("| name | the mistake |\n|---|---|\n").nth(1).unwrap();
    let named: Vec<&str> = table
        .lines()
        .map_while(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(named, llama_trace::diff::NAMES);
    let (major, minor) = env!("CARGO_PKG_RUST_VERSION").split_once('.').unwrap();
    let wanted = format!("You need Rust {major}.{} or newer", minor.split('.').next().unwrap());
    assert!(readme.contains(&wanted), "{wanted}");
    let tried = format!("tries {} known mistakes", named.len());
    assert!(readme.contains(&tried), "{tried}");
}
