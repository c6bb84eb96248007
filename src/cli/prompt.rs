//! The prompts of a run. They come from the command line, from files or from standard input.

use std::fs::File;
use std::io::Read;
use std::path::Path;
#[cfg(unix)]
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::RunArgs;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::stop;
#[cfg(unix)]
use llama_trace_formats::files::at_once;
use llama_trace_formats::files::printable;
use llama_trace_formats::tokenizer::Tokenizer;
pub(super) use llama_trace_runs::begin::prompt::{Prompt, encode, no_tokenizer};

/// The text of a run without `--prompt`.
pub(super) const DEFAULT_PROMPT: &str = "Once upon a time";

/// A prompt before tokenization.
enum Given {
    Text(String),
    Ids(Vec<u32>),
}

/// The prompts as ids, for a model whose context has `context` tokens.
pub(super) fn read<'t>(
    args: &RunArgs,
    tokenizer: impl Fn() -> Result<&'t dyn Tokenizer>,
    context: usize,
) -> Result<Vec<Prompt>> {
    let prompts = given(args)?.into_iter().map(|(given, place)| {
        stop::check()?;
        let prompt = match given {
            Given::Text(text) => encode(&text, tokenizer(), context).map(|ids| (Some(text), ids)),
            Given::Ids(ids) => Ok((None, ids)),
        };
        match (prompt, place) {
            (Ok((text, ids)), place) => Ok(Prompt { text, ids, place }),
            (Err(error @ Error::Prompt(_)), Some(place)) => Err(error.at(place)),
            // An error of a file already names its place.
            (Err(error), _) => Err(error),
        }
    });
    prompts.collect()
}

/// The prompts as they were given, each with its place.
fn given(args: &RunArgs) -> Result<Vec<(Given, Option<String>)>> {
    let one = |given| Ok(vec![(given, None)]);
    if let Some(path) = &args.prompts {
        return read_prompts(path);
    }
    if let Some(list) = &args.ids {
        return one(Given::Ids(read_ids(list)?));
    }
    if let Some(path) = &args.prompt_file {
        return one(Given::Text(read_text(path)?));
    }
    let (count, mut standard_input) = (args.prompt.len(), 0);
    let texts = args.prompt.iter().enumerate().map(|(i, text)| {
        let place = (count > 1).then(|| format!("--prompt number {} of {count}", i + 1));
        if text != "-" {
            return Ok((Given::Text(text.clone()), place));
        }
        standard_input += 1;
        if standard_input > 1 {
            return Err(Error::usage("standard input can be read only once")
                .expected("one --prompt -")
                .next("give the other prompt as text, or all of them in a file: --prompts FILE"));
        }
        Ok((Given::Text(read_text(Path::new("-"))?), place))
    });
    match count {
        0 => one(Given::Text(DEFAULT_PROMPT.into())),
        _ => texts.collect(),
    }
}

/// The text of the only `--prompt`; for `-`, the text from standard input.
pub(super) fn only(text: &str) -> Result<String> {
    if text == "-" { read_text(Path::new("-")) } else { Ok(text.to_owned()) }
}

/// Maximum number of prompts in a file.
const MAX_PROMPTS: usize = 1 << 16;

/// A line of a JSON lines file. Other fields of the line are ignored.
#[derive(Deserialize)]
struct JsonLine {
    prompt: Option<String>,
    ids: Option<Vec<u32>>,
}

/// The prompts of a file, one per line. Empty lines are skipped.
fn read_prompts(path: &Path) -> Result<Vec<(Given, Option<String>)>> {
    let json = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("jsonl"));
    let place = |line: usize| format!("{}, line {}", path.display(), line + 1);
    let bytes = read_bytes(path, PROMPT)?;
    let lines = bytes.split(|&byte| byte == b'\n').enumerate();
    let mut prompts = Vec::new();
    for (number, line) in lines.filter(|(_, line)| !line.trim_ascii().is_empty()) {
        stop::check()?;
        let text = str::from_utf8(line.strip_suffix(b"\r").unwrap_or(line));
        let text = text.map_err(|error| {
            let found = format!("byte {} of the line is not part of a UTF-8 character", error.valid_up_to());
            not_text(found, PROMPT).at(place(number))
        })?;
        let given = if json { json_line(text) } else { Ok(Given::Text(text.to_owned())) };
        prompts.push((given.map_err(|error| error.at(place(number)))?, Some(place(number))));
        if prompts.len() > MAX_PROMPTS {
            return Err(Error::prompt("the file has too many prompts")
                .in_file(path)
                .expected(format!("at most {MAX_PROMPTS} prompts"))
                .next("split the file"));
        }
    }
    if prompts.is_empty() {
        return Err(Error::prompt("the file has no prompt")
            .in_file(path)
            .expected("one prompt per line, or in a .jsonl file one object per line")
            .found("only empty lines")
            .next("write one prompt on each line"));
    }
    Ok(prompts)
}

fn json_line(line: &str) -> Result<Given> {
    let wrong = |found: String| {
        Error::prompt("a line is not a prompt")
            .expected(r#"an object with either: {"prompt": "a text"} or {"ids": [1, 403, 407]}"#)
            .found(found)
            .next("correct the line; a file of plain texts must not be named .jsonl")
    };
    if !line.trim_start().starts_with('{') {
        let first: String = line.trim_start().chars().take(20).collect();
        return Err(wrong(format!("a line that begins with `{}`", printable(&first))));
    }
    // serde counts lines within this one line, so its line number is removed. Its names of number types mean nothing to
    // the user.
    let told = |error: serde_json::Error| {
        let what = error.to_string().replace(" at line 1 column ", " at column ");
        what.replace("expected u32", &format!("expected an id from 0 to {}", u32::MAX))
    };
    let line: JsonLine = serde_json::from_str(line).map_err(|error| wrong(told(error)))?;
    match line {
        JsonLine { prompt: Some(text), ids: None } => Ok(Given::Text(text)),
        JsonLine { prompt: None, ids: Some(ids) } => Ok(Given::Ids(ids)),
        JsonLine { prompt: Some(_), ids: Some(_) } => Err(wrong("both".to_owned())),
        JsonLine { prompt: None, ids: None } => Err(wrong("neither".to_owned())),
    }
}

/// Maximum size of a prompt, in bytes. No model's context holds a tenth of it.
const MAX_PROMPT: usize = 64 << 20;

/// The byte-order mark (U+FEFF) at the start of a file. It is not part of the file's text.
const MARK: &[u8] = "\u{feff}".as_bytes();

/// Names for error messages: of a file with a prompt, and of a file with a list of ids.
const PROMPT: &str = "the prompt's file";
const IDS: &str = "the file of --ids";

/// The text of a prompt in a file; for `-`, in standard input.
pub(super) fn read_text(path: &Path) -> Result<String> {
    read_text_of(path, PROMPT)
}

/// The text of a file. Error messages call the file `what`.
pub(super) fn read_text_of(path: &Path, what: &str) -> Result<String> {
    String::from_utf8(read_bytes(path, what)?).map_err(|error| {
        let found = format!("byte {} is not part of a UTF-8 character", error.utf8_error().valid_up_to());
        not_text(found, what).in_file(path)
    })
}

fn not_text(found: String, what: &str) -> Error {
    Error::prompt(format!("{what} is not a text"))
        .expected("UTF-8")
        .found(found)
        .next("convert the file to UTF-8")
}

/// The bytes of a file, or of standard input for `-`, without a byte-order mark.
fn read_bytes(path: &Path, what: &str) -> Result<Vec<u8>> {
    let mut bytes = read_whole(path, what)?;
    if bytes.starts_with(MARK) {
        bytes.drain(..MARK.len());
    }
    Ok(bytes)
}

fn read_whole(path: &Path, what: &str) -> Result<Vec<u8>> {
    let read = |from: &mut dyn Read| -> std::io::Result<(Vec<u8>, bool)> {
        // Reading stops at the limit, so an endless input takes no more memory than the limit.
        let (mut bytes, mut piece) = (Vec::new(), [0; 1 << 16]);
        loop {
            match from.read(&mut piece) {
                Ok(0) => return Ok((bytes, true)),
                Ok(count) if bytes.len() + count > MAX_PROMPT => return Ok((bytes, false)),
                Ok(count) => bytes.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    };
    let bytes = if path == Path::new("-") {
        read(&mut std::io::stdin().lock())
    } else {
        open_text(path).and_then(|mut text| read(&mut text))
    };
    if bytes.is_err() {
        stop::check()?;
    }
    let (bytes, ends) = bytes.map_err(|error| {
        Error::prompt(format!("{what} cannot be read"))
            .in_file(path)
            .expected("a file that may be read")
            .found(error)
            .next("check the path, or use - for standard input")
    })?;
    if !ends {
        return Err(Error::prompt(format!("{what} is too large"))
            .in_file(path)
            .expected(format!("at most {MAX_PROMPT} bytes"))
            .found("more")
            .next("give a shorter text"));
    }
    Ok(bytes)
}

/// Opens the file of a text. A shell's `<(command)` is read to its end like any file. If a named pipe has no
/// writer, waits for one for a limited time.
fn open_text(path: &Path) -> std::io::Result<Box<dyn Read>> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let named = !["/dev/fd", "/proc"].iter().any(|folder| path.starts_with(folder));
        if named && std::fs::metadata(path)?.file_type().is_fifo() {
            return open_pipe(path);
        }
    }
    Ok(Box::new(File::open(path)?))
}

/// Longest wait for a named pipe that has no writer.
#[cfg(unix)]
const PIPE_WAIT: Duration = Duration::from_secs(10);

#[cfg(unix)]
fn open_pipe(path: &Path) -> std::io::Result<Box<dyn Read>> {
    use std::io::ErrorKind;

    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

    let mut file = at_once(File::options().read(true)).open(path)?;
    let started = Instant::now();
    let mut first = vec![0; 4096];
    let count = loop {
        match file.read(&mut first) {
            // No process has opened the pipe for writing yet.
            Ok(0) if started.elapsed() < PIPE_WAIT => {
                stop::sleep(Duration::from_millis(20)).map_err(std::io::Error::other)?;
            }
            Ok(0) => {
                let what = format!("a pipe to which nothing was written for {} seconds", PIPE_WAIT.as_secs());
                return Err(std::io::Error::new(ErrorKind::TimedOut, what));
            }
            Ok(count) => break count,
            // A process has opened the pipe for writing, and has written nothing so far.
            Err(error) if error.kind() == ErrorKind::WouldBlock => break 0,
            Err(error) => return Err(error),
        }
    };
    first.truncate(count);
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(Box::new(std::io::Cursor::new(first).chain(file)))
}

/// Ids from `1,403,407` or `@file`. Commas, blanks, line ends and JSON's brackets separate them.
pub(super) fn read_ids(list: &str) -> Result<Vec<u32>> {
    let (text, file) = match list.strip_prefix('@') {
        Some(path) => (read_text_of(Path::new(path), IDS)?, Some(Path::new(path))),
        None => (list.to_owned(), None),
    };
    let wrong = |what: &str, found: &str| {
        let error = Error::prompt(what)
            .expected("numbers separated by commas: 1,403,407, or @FILE with such a list")
            .found(found);
        match file {
            Some(path) => error.in_file(path),
            None => error,
        }
    };
    let separator = |c: char| c.is_whitespace() || matches!(c, '[' | ']');
    let mut parts: Vec<&str> = text.split(',').map(|part| part.trim_matches(separator)).collect();
    // The last id may be followed by a comma.
    parts.pop_if(|last| last.is_empty());
    if parts.iter().all(|part| part.is_empty()) {
        return Err(wrong("the list of ids has no tokens", "no number").next("give at least one id"));
    }
    if parts.contains(&"") {
        return Err(wrong("an id is missing in the list", "no number before a comma")
            .next("give the id, or leave its comma out"));
    }
    let words = parts.into_iter().flat_map(|part| part.split(separator)).filter(|word| !word.is_empty());
    let ids = words.map(|word| {
        word.parse().map_err(|_| match word.bytes().all(|byte| byte.is_ascii_digit()) {
            true => Error::prompt("an id is larger than any id of a vocabulary")
                .expected(format!("numbers up to {}", u32::MAX))
                .found(printable(word))
                .next("give the ids that a tokenizer of this model made; `llama-trace tokenize` shows them"),
            false => wrong("a part of the list of ids is not a number", &format!("`{}`", printable(word)))
                .next("remove this part"),
        })
    });
    ids.collect()
}
