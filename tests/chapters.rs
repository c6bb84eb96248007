//! Checks the chapters: their numbers against the trace, and their commands against the program. README and the manual
//! are checked too.
//!
//! `LLAMA_TRACE_BLESS=1 cargo test --test chapters` writes the tagged numbers, the heads of commands marked `heads=…`
//! and the printed outputs into the chapters. Then it runs the same tests.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
#[path = "chapters/lessons.rs"]
mod lessons;
#[path = "chapters/note.rs"]
mod note;
#[path = "chapters/pictures.rs"]
mod pictures;
#[path = "chapters/readme.rs"]
mod readme;
#[path = "chapters/shell.rs"]
mod shell;
#[path = "chapters/values.rs"]
mod values;

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use llama_trace::chapters::CHAPTERS;
use llama_trace::trace::{Stage, Step, View};

use note::{Block, Command, Note};
use serde_json::json;
use shell::option;
use values::{World, Written as _};

const SECTIONS: [&str; 6] = ["What", "Why", "Formula", "Shapes", "Look", "Exercise"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("chapters")
}

fn world() -> MutexGuard<'static, World> {
    static WORLD: OnceLock<Mutex<World>> = OnceLock::new();
    let world = WORLD.get_or_init(|| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/builtin/heads.json");
        Mutex::new(World::new(serde_json::from_slice(&fs::read(path).unwrap()).unwrap()))
    });
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The chapters and the first lesson, sorted by file name. Blesses them first if the environment asks for it.
fn notes() -> &'static [Note] {
    static NOTES: OnceLock<Vec<Note>> = OnceLock::new();
    NOTES.get_or_init(|| {
        let mut files: Vec<PathBuf> = fs::read_dir(folder()).unwrap().map(|e| e.unwrap().path()).collect();
        // The other files are the list of the chapters and the notebook. The pictures and the manual are in subfolders.
        files
            .retain(|file| !file.is_dir() && !file.ends_with("README.md") && !file.ends_with("python.ipynb"));
        files.sort();
        let read = |file: &PathBuf| {
            assert_eq!(file.extension().unwrap(), "md", "{} is not a chapter", file.display());
            let (slug, text) = (file.file_stem().unwrap().to_str().unwrap(), fs::read_to_string(file));
            Note::parse(slug, &text.unwrap())
        };
        if std::env::var_os("LLAMA_TRACE_BLESS").is_some_and(|value| value == "1") {
            for file in &files {
                let note = read(file);
                let text = blessed(&note, &mut world());
                if text != note.text {
                    fs::write(file, text).unwrap();
                }
            }
        }
        files.iter().map(read).collect()
    })
}

/// The chapters, without the first lesson.
fn chapters() -> impl Iterator<Item = &'static Note> {
    notes().iter().filter(|note| note.slug != "tour")
}

/// A folder for running commands, with the built-in model and the files of the example port.
fn stocked() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    for name in ["builtin", "port/story/right", "port/story/wrong"] {
        copy(&fixtures.join(name), &folder.path().join("fixtures").join(name));
    }
    folder
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

#[test]
fn the_chapter_quotes_the_text_and_the_wrong_line_of_the_port() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/port");
    let [text, port] =
        ["story/wrong.txt", "port.py"].map(|name| fs::read_to_string(fixtures.join(name)).unwrap());
    let note = notes().iter().find(|note| note.slug == "31-a-port-with-a-bug").unwrap();
    assert!(note.section("What").contains(&format!("\n```\n{text}```\n")), "{text}");
    let (_, code) = note.section("Look").split_once("```python\n").unwrap();
    let (code, _) = code.split_once("```").unwrap();
    assert!(port.contains(code), "{code}");
}

fn assert_none(errors: &[String]) {
    assert!(errors.is_empty(), "{} found:\n{}", errors.len(), errors.join("\n"));
}

/// Returns the chapter with the present values of all tagged numbers, heads of heads.json and complete outputs.
fn blessed(note: &Note, world: &mut World) -> String {
    let mut changes: Vec<(Range<usize>, String)> = Vec::new();
    for tagged in &note.tags {
        if let Ok(value) = world.value(note.run_at(tagged.at.start), &tagged.address) {
            changes.push((tagged.at.clone(), value.written_like(note.printed(tagged))));
        }
    }
    let folder = stocked();
    for (block, command) in note.commands() {
        if let Some((layer, head)) = block.heads.as_deref().and_then(|name| world.head(name).ok()) {
            for (name, number) in [("--layer", layer), ("--head", head)] {
                let line = &note.text[command.at.clone()];
                if let Some(found) = line.find(&format!("{name} ")) {
                    let from = command.at.start + found + name.len() + 1;
                    let digits = note.text[from..].bytes().take_while(u8::is_ascii_digit).count();
                    changes.push((from..from + digits, number.to_string()));
                }
            }
        }
        let output = &note.text[command.output.clone()];
        if !output.is_empty() && !output.lines().any(|line| line.ends_with('…')) {
            let (_, text) = shell::print(&command.words, folder.path());
            changes.push((command.output.clone(), text.trim_end_matches('\n').to_owned() + "\n"));
        }
    }
    changes.sort_by_key(|(at, _)| at.start);
    let mut text = note.text.clone();
    for (at, new) in changes.into_iter().rev() {
        text.replace_range(at, &new);
    }
    text
}

/// Returns the errors in the tagged numbers.
fn wrong_numbers(note: &Note, world: &mut World) -> Vec<String> {
    let mut errors = note.errors.clone();
    for tagged in &note.tags {
        let (printed, place) = (note.printed(tagged), note.place(tagged.at.start));
        match world.value(note.run_at(tagged.at.start), &tagged.address) {
            Ok(value) if value.is(printed) => {}
            Ok(value) => {
                let right = value.written_like(printed);
                errors.push(format!("{place}: {printed} is written, {} is {right}", tagged.address));
            }
            Err(error) => errors.push(format!("{place}: {error}")),
        }
    }
    for at in &note.integers {
        let number = &note.text[at.clone()];
        if world.is_size(number) {
            errors.push(format!(
                "{}: {number} is a size of the model without an address",
                note.place(at.start)
            ));
        }
    }
    // Addresses that the reader is asked to type.
    for at in &note.code_spans {
        let code = &note.text[at.clone()];
        let is_address = code.starts_with('p') && code.contains('[') && code.ends_with(']');
        if is_address && let Err(error) = world.value(note.run_at(at.start), code) {
            errors.push(format!("{}: {error}", note.place(at.start)));
        }
    }
    for (block, command) in note.commands() {
        let Some(name) = &block.heads else { continue };
        let place = note.place(command.at.start);
        match world.head(name) {
            Ok((layer, head)) => {
                for (option_name, number) in [("--layer", layer), ("--head", head)] {
                    let given = option(&command.words, &[option_name]);
                    if given != Some(number.to_string().as_str()) {
                        errors.push(format!("{place}: {option_name} is {number} in heads.json"));
                    }
                }
            }
            Err(error) => errors.push(format!("{place}: {error}")),
        }
    }
    errors
}

/// Runs a command, and returns the errors.
fn wrong_run(note: &Note, block: &Block, command: &Command, folder: &Path) -> Option<String> {
    let words = &command.words;
    let place = format!("{}: {}", note.place(command.at.start), words.join(" "));
    let (code, text) = if shell::opens_viewer(words) {
        match shell::view(words, folder) {
            Ok(code) => (code, String::new()),
            Err(error) => return Some(format!("{place}: {error}")),
        }
    } else {
        shell::print(words, folder)
    };
    if code != block.exit {
        return Some(format!("{place}: exit code {code}, and not {}", block.exit));
    }
    let shown = &note.text[command.output.clone()];
    let fits = shown.is_empty() || is_part(&shown.lines().collect::<Vec<_>>(), &text);
    (!fits).then(|| format!("{place}: it prints\n{text}"))
}

/// Returns whether `text` matches the expected output, in which a line `…` stands for any lines.
fn is_part(shown: &[&str], text: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    let mut parts = shown.split(|line| *line == "…").peekable();
    let (mut at, mut first) = (0, true);
    while let Some(part) = parts.next() {
        let last = parts.peek().is_none();
        let is_line = |(line, shown): (&&str, &&str)| match shown.strip_suffix('…') {
            Some(beginning) => line.starts_with(beginning.trim_end()),
            None => line == shown,
        };
        let fits =
            |from: usize| lines.len() >= from + part.len() && lines[from..].iter().zip(part).all(is_line);
        let found = match (first, last) {
            (true, _) => fits(0).then_some(0),
            (false, true) => lines.len().checked_sub(part.len()).filter(|&from| from >= at && fits(from)),
            (false, false) => (at..lines.len()).find(|&from| fits(from)),
        };
        let Some(found) = found else { return false };
        at = found + part.len();
        if last && at != lines.len() {
            return false;
        }
        first = false;
    }
    true
}

#[test]
fn every_tagged_number_equals_the_value_in_the_trace() {
    let mut world = world();
    let errors: Vec<String> = notes().iter().flat_map(|note| wrong_numbers(note, &mut world)).collect();
    assert_none(&errors);
    assert!(notes().iter().map(|note| note.tags.len()).sum::<usize>() > 100);
}

#[test]
fn every_command_has_its_exit_code_and_opens_at_its_place() {
    let mut errors = Vec::new();
    for note in notes() {
        let folder = stocked();
        for (block, command) in note.commands() {
            errors.extend(wrong_run(note, block, command, folder.path()));
        }
    }
    assert_none(&errors);
}

#[test]
fn every_stage_and_every_view_has_a_chapter() {
    let steps = Stage::ALL.iter().map(|&stage| Step::Stage(stage));
    for step in steps.chain(View::ALL.iter().map(|&view| Step::View(view))) {
        let step = step.first_of_name();
        let chapter =
            CHAPTERS.about(step).next().unwrap_or_else(|| panic!("no chapter explains {}", step.name()));
        assert!(chapter.steps().any(|other| other == step), "{} has no note of its own", step.name());
        assert!(CHAPTERS.about(step).all(|chapter| chapter.steps().any(|other| other == step)));
    }
    for chapter in CHAPTERS.iter() {
        assert!(chapter.steps().next().is_some(), "{} is shown nowhere", chapter.slug);
    }
}

#[test]
fn the_list_is_the_folder() {
    let list: Vec<_> = CHAPTERS.iter().map(|chapter| chapter.slug).collect();
    let files: Vec<_> = chapters().map(|note| note.slug.as_str()).collect();
    assert_eq!(list, files);
    for (i, slug) in list.iter().enumerate() {
        assert!(slug.starts_with(&format!("{i:02}-")), "{slug} is number {i}");
    }
    let titles: BTreeSet<_> = CHAPTERS.iter().filter_map(|chapter| chapter.text.lines().next()).collect();
    assert_eq!(titles.len(), CHAPTERS.len(), "{titles:?}");
}

#[test]
fn the_index_lists_every_chapter_with_its_title_and_its_stages() {
    let path = folder().join("README.md");
    let rows: String = CHAPTERS
        .iter()
        .map(|chapter| {
            let title = chapter.text.lines().next().unwrap().trim_start_matches("# ");
            let steps = chapter.text.split("<!-- steps: ").nth(1).and_then(|rest| rest.split_once(" -->"));
            let steps = steps.map_or_else(String::new, |(steps, _)| {
                steps.split(", ").map(|step| format!("`{step}`")).collect::<Vec<_>>().join(", ")
            });
            format!("| [{}]({}.md) | {title} | {steps} |\n", &chapter.slug[..2], chapter.slug)
        })
        .collect();
    let text = fs::read_to_string(&path).unwrap();
    let (head, shown) = text.split_once("|---|---|---|\n").unwrap();
    if std::env::var_os("LLAMA_TRACE_BLESS").is_some_and(|value| value == "1") {
        fs::write(&path, format!("{head}|---|---|---|\n{rows}")).unwrap();
        return;
    }
    assert_eq!(shown, rows);
}

#[test]
fn every_exercise_has_an_answer_with_explain() {
    // The map of the pass explains no number.
    for note in chapters().filter(|note| !note.slug.starts_with("00-")) {
        let (_, at) = note.sections.iter().find(|(name, _)| name == "Exercise").unwrap();
        let answer = note.text[at.clone()].split_once("<summary>Answer</summary>").unwrap().1;
        assert!(answer.contains("$ llama-trace explain "), "{}", note.slug);
    }
}

#[test]
fn every_chapter_has_the_same_sections_and_valid_links() {
    let errors: Vec<String> = chapters().flat_map(wrong_form).collect();
    assert_none(&errors);
}

/// Returns the errors in the form of a chapter.
fn wrong_form(note: &Note) -> Vec<String> {
    let mut errors = Vec::new();
    let mut check = |holds: bool, what: String| {
        if !holds {
            errors.push(format!("{}: {what}", note.slug));
        }
    };
    let sections: Vec<_> = note.sections.iter().map(|(name, _)| name.as_str()).collect();
    check(sections == SECTIONS, format!("the sections are {sections:?}"));
    check(note.text.starts_with("# ") && !note.title.is_empty(), "it does not begin with a title".into());
    let exercise = note.section("Exercise");
    let has_answer = exercise.contains("<details><summary>Answer</summary>\n\n")
        && exercise.trim_end().ends_with("\n\n</details>");
    check(has_answer, "the exercise has no answer, or blank lines lack around it".into());
    let formula = note.section("Formula");
    check(formula.contains("\n```\n"), "the formula has no block".into());
    for step in &note.steps {
        check(formula.contains(step.as_str()), format!("the formula does not name {step}"));
        check(note.section("Shapes").contains(step.as_str()), format!("no shape of {step}"));
    }
    for link in &note.links {
        let kind = link.ends_with(".md") || link.starts_with("pictures/");
        check(kind && folder().join(link).exists(), format!("{link} leads nowhere"));
    }
    // A code span that looks like a stage's name must be a stage, a weight, or a name in another runtime.
    let known = known_names();
    for at in &note.code_spans {
        let code = &note.text[at.clone()];
        let is_name = code.contains('_') && code.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        check(!is_name || known.contains(code), format!("`{code}` is no stage and no weight"));
    }
    let look = note.section("Look");
    let opens_there = note.commands().any(|(_, command)| {
        shell::opens_viewer(&command.words)
            && look.contains(&note.text[command.at.clone()])
            && (option(&command.words, &["--stage"]))
                .is_some_and(|stage| note.steps.iter().any(|step| step == stage))
    });
    check(opens_there, "no command under Look opens one of its steps".into());
    for (_, command) in note.commands() {
        let words = &command.words;
        if shell::opens_viewer(words) && look.contains(&note.text[command.at.clone()]) {
            check(is_run(words, &note.run), format!("`{}` is another run than the note's", words.join(" ")));
        }
    }
    let machine = ["/home", "/root", "/tmp", "/work", "/usr", "/Users", "C:\\"];
    for path in machine {
        check(!note.text.contains(path), format!("{path} is a place on somebody's machine"));
    }
    let long = note.text.lines().filter(|line| line.starts_with("```")).count() % 2 == 0;
    check(long, "a fence is not closed".into());
    errors
}

/// Returns whether the options of a command select `run`.
fn is_run(words: &[String], run: &note::Run) -> bool {
    let prompt = option(words, &["--prompt", "-p"]).unwrap_or("Once upon a time");
    let passes = option(words, &["-n", "--tokens"]).and_then(|count| count.parse().ok()).unwrap_or(1);
    let sampling =
        ["--temperature", "--top-p", "--top-k", "--min-p", "--typical-p", "--repetition-penalty", "--seed"];
    let same = |name: &&str| option(words, &[name]) == option(&run.sampling, &[name]);
    let precision = option(words, &["--precision"]).unwrap_or("f32");
    let same_arithmetic = precision == run.precision;
    prompt == run.prompt && passes >= run.passes && sampling.iter().all(same) && same_arithmetic
}

fn known_names() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for &stage in Stage::ALL {
        let info = stage.info();
        names.insert(info.name.to_owned());
        names.extend(info.weights.iter().map(|weight| weight.name.to_owned()));
        let aliases = info.aliases;
        for alias in [aliases.hugging_face, aliases.transformer_lens, aliases.llama_cpp, aliases.go] {
            let words = alias.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            names.extend(words.map(str::to_owned));
        }
    }
    names.extend(View::ALL.iter().map(|view| view.name().to_owned()));
    names
}

#[test]
fn a_chapter_in_the_viewer_has_no_html_comments() {
    use llama_trace::tui::theme::{Depth, Theme};
    use llama_trace::tui::view::markdown::render;
    for chapter in CHAPTERS.iter() {
        for width in [30, 60, 100] {
            let lines = render(chapter.text, width, Theme::new(Depth::None));
            let text: Vec<String> = lines.iter().map(ToString::to_string).collect();
            let text = text.join("\n");
            for mark in ["<!--", "-->", "<details", "config/", "p0/L{"] {
                assert!(!text.contains(mark), "{}: {mark} is shown\n{text}", chapter.slug);
            }
        }
    }
}

/// A correct chapter that each test changes in one place.
const SMALL: &str = "# A small note\n<!-- steps: xq -->\n<!-- prompt: Once upon a time -->\n\n\
    ## What\n\nHeads: 4<!-- config/H -->, first `␣upon`<!-- p0/tokens[t=2].text -->, in 2019 by float32.\n\n\
    ## Why\n\n## Formula\n\n```\nxq = 1.5\n```\n\n\
    ## Shapes\n\n`xq` is (5, 4, 32)<!-- p0/L0/xq.shape -->.\n\n\
    ## Look\n\n```console\n$ llama-trace --prompt \"Once upon a time\" --step --stage xq --head 2\n```\n\n\
    ## Exercise\n\n<details><summary>Answer</summary>\n\nNone.\n\n</details>\n";

#[test]
fn the_checker_accepts_a_correct_chapter() {
    let note = Note::parse("small", SMALL);
    assert_none(&wrong_numbers(&note, &mut world()));
    assert_none(&wrong_form(&note));
    assert_eq!(note.commands().count(), 1);
}

/// Returns the checker's errors for the small chapter with `from` replaced by `to`.
fn said_of(from: &str, to: &str) -> String {
    assert!(SMALL.contains(from), "{from}");
    let note = Note::parse("small", &SMALL.replace(from, to));
    let mut errors = wrong_numbers(&note, &mut world());
    errors.extend(wrong_form(&note));
    let folder = tempfile::tempdir().unwrap();
    errors.extend(note.commands().filter_map(|(b, c)| wrong_run(&note, b, c, folder.path())));
    errors.join("\n")
}

#[test]
fn the_checker_finds_each_kind_of_error() {
    let heads = "4<!-- config/H -->";
    for (from, to, expected) in [
        (heads, "0.5 of them", "small:7: 0.5 has no address"),
        (heads, "**0.5**", "0.5 has no address"),
        (heads, "128", "128 is a size of the model without an address"),
        (heads, "0.5<!-- 0.5 -->", "0.5 is a number, and no address"),
        (heads, "5<!-- config/H -->", "5 is written, config/H is 4"),
        (heads, "4.1<!-- config/H -->", "4.1 is written, config/H is 4.0"),
        (heads, "4<!-- config/J -->", "the configuration has no J"),
        (heads, "<!-- config/H -->", "no number stands before"),
        (heads, "4 <!-- config/H -->", "no number stands before"),
        (heads, "4<!-- p0/L9/xq[t=0,h=0,c=0] -->", "there is no p0/L9/xq in this run"),
        (heads, "4<!-- p0/L0/xq[t=0,h=0] -->", "leaves 32 values"),
        (heads, "4<!-- p0/L0/xq[t=0,h=7,c=0] -->", "7 is past the last of 4"),
        (heads, "4<!-- p0/L0/logits[t=0,v=0] -->", "no path of a stage"),
        (heads, "type `p0/L0/xq[t=99,h=0,c=0]`", "99 is past the last"),
        ("␣upon", "␣under", "␣under is written"),
        ("(5, 4, 32)<", "(5, 4, 33)<", "(5, 4, 33) is written"),
        ("in 2019", "in [2019](nowhere.md)", "nowhere.md leads nowhere"),
        ("steps: xq", "steps: xqq", "there is no step `xqq`"),
        ("## Why", "## How", "the sections are"),
        ("Answer", "Hint", "the exercise has no answer"),
        ("--stage xq", "--stage xk", "no command under Look"),
        ("--step --stage xq --head 2", "--step --stage xq --head 4", "exit code 2, and not 0"),
        ("```console\n", "```console exit=3\n", "exit code 0, and not 3"),
        ("--prompt \"Once upon a time\" --step", "--prompt \"Once\" --step", "another run"),
        ("--head 2\n", "--head 2 | less\n", "needs a shell"),
        ("Heads:", "/home/me", "somebody's machine"),
        ("Heads:", "`xq_rope` and `xq_robe`", "`xq_robe` is no stage"),
        ("```console\n", "```console\n$ llama-trace --version\nversion one\n", "it prints\nllama-trace"),
    ] {
        let said = said_of(from, to);
        assert!(said.contains(expected), "{to}: `{expected}` is not in\n{said}");
    }
    assert_eq!(said_of(heads, "one"), "");
}

#[test]
fn the_special_heads_are_those_of_heads_json() {
    let heads = json!({ "induction": { "layer": 1, "head": 3, "score": 0.75 } });
    let mut world = World::new(heads);
    let text = SMALL.replace("```console\n", "```console heads=induction\n");
    let text = text.replace("--stage xq --head 2", "--stage xq --layer 0 --head 2");
    let text = text.replace(
        "Heads:",
        "Heads 2<!-- heads.json/induction/head -->, 0.5<!-- heads.json/induction/score -->:",
    );
    let note = Note::parse("small", &text);
    let errors = wrong_numbers(&note, &mut world).join("\n");
    for expected in ["induction/head is 3", "induction/score is 0.8", "--layer is 1", "--head is 3"] {
        assert!(errors.contains(expected), "{expected} is not in\n{errors}");
    }
    let text = blessed(&note, &mut world);
    assert!(text.contains("Heads 3<!--") && text.contains("--layer 1 --head 3"), "{text}");
    assert_none(&wrong_numbers(&Note::parse("small", &text), &mut world));
}

#[test]
fn blessing_changes_only_tagged_numbers() {
    let mut world = world();
    let wrong = SMALL.replace("4<!--", "7<!--").replace("(5, 4, 32)", "(1, 1)").replace("␣upon", "␣under");
    assert_eq!(blessed(&Note::parse("small", &wrong), &mut world), SMALL);
    let kept = SMALL.replace("Heads: 4<!-- config/H -->", "−0.00<!-- config/H − 4.001 -->");
    assert!(blessed(&Note::parse("small", &kept), &mut world).contains("first"), "a zero must lose its sign");
}

#[test]
fn expressions_of_addresses_are_computed() {
    let (mut world, run) = (world(), note::Run::default());
    let mut is = |address: &str, printed: &str| {
        let value = world.value(&run, address).unwrap();
        assert!(value.is(printed), "{address} is {value:?}, and not {printed}");
    };
    is("config/D ÷ config/H", "32");
    is("2 · (config/layers + 1) − 3", "7");
    is("sqrt(config/C)", "5.657");
    is("exp(0 − 1)", "0.368");
    is("p0/L0/keys_t.shape", "(4, 32, 5)");
    is("p0/L0/softmax[h=0,t=0,k=0]", "1");
    is("p0/L0/softmax[h=3,q=last].sum", "1.0000");
    is("p0/mask.neg_inf", "10");
    is("p0/L0/masked_scores[h=0,t=0,k=1]", "−inf");
    is("p0/tokens.count", "5");
    is("p0/mask[t=1].arg1.text", "<|begin_of_text|>");
    is("p0/logits[t=last].argmax − p0/sampled[n=0]", "0");
    is("0 − 0.625", "−0.62");
    is("0 − 0.625", "−0.63");
}

#[test]
fn words_are_split_as_a_shell_does() {
    let words = |line: &str| note::split(line).map(|words| words.join("|"));
    assert_eq!(words("a \"b c\" 'd \"e' f\\ g \"\"").unwrap(), "a|b c|d \"e|f g|");
    for line in ["a | b", "a > b", "\"a", "a $B"] {
        assert!(words(line).is_err(), "{line}");
    }
}

#[test]
fn outputs_may_leave_lines_out() {
    assert!(is_part(&["a", "…", "c"], "a\nb\nb\nc\n"));
    assert!(is_part(&["…", "b", "…"], "a\nb\nc\n"));
    assert!(!is_part(&["a", "c"], "a\nb\nc\n") && !is_part(&["…", "d", "…"], "a\nb\n"));
}
