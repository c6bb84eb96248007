//! Finds a lesson by its name, number or file.

use std::borrow::Cow;
use std::io::Read;
use std::path::Path;

use crate::chapters::{CHAPTERS, TOUR};
use llama_trace_core::chapters::{Chapter, number_in};
use llama_trace_core::error::{Error, Result, printable};
use llama_trace_core::lesson::LARGEST;
use llama_trace_core::trace::select::near;
use llama_trace_formats::files::open_regular;
use llama_trace_tui::lesson_search;

/// The text of a lesson.
#[derive(Clone)]
pub(super) struct Source {
    /// Name of its file, for messages.
    pub(super) file: String,
    /// Name of the lesson: the file's name without `.md`.
    pub(super) slug: String,
    /// The name under which its progress is stored.
    pub(super) key: String,
    pub(super) text: Cow<'static, str>,
    /// Whether it is the tour or a chapter, which are written for the built-in model.
    pub(super) is_own: bool,
}

/// The lessons of the program: the tour and the chapters.
pub(super) fn all() -> Vec<Source> {
    std::iter::once(&TOUR).chain(CHAPTERS.iter()).map(of_chapter).collect()
}

fn of_chapter(chapter: &Chapter) -> Source {
    Source {
        file: format!("{}.md", chapter.slug),
        slug: chapter.slug.to_owned(),
        key: chapter.slug.to_owned(),
        text: Cow::Borrowed(chapter.text),
        is_own: true,
    }
}

/// The lesson with this name: `tour`, `16`, `16-attention-patterns`, `attention-patterns`, a file, or a word that only one
/// lesson is about.
pub(super) fn find(name: &str) -> Result<Source> {
    let mut all = std::iter::once(&TOUR).chain(CHAPTERS.iter());
    if let Some(chapter) = all.find(|chapter| chapter.is_named(name)) {
        return Ok(of_chapter(chapter));
    }
    let path = Path::new(name);
    let own: Vec<&Chapter> = std::iter::once(&TOUR).chain(CHAPTERS.iter()).collect();
    if name.contains(['/', '\\'])
        || path.extension().is_some_and(|extension| extension == "md")
        || path.exists()
    {
        return read(path);
    }
    match &lesson_search::find(&own, name)[..] {
        [] => {}
        [only] => return Ok(of_chapter(only)),
        several => {
            let listed: Vec<String> = several.iter().map(|chapter| named(chapter)).collect();
            return Err(Error::usage(format!("several lessons are about `{}`", printable(name)))
                .found(listed.join(", "))
                .next(format!("open one of them: llama-trace learn {}", short(several[0]))));
        }
    }
    let slugs: Vec<&str> = own.iter().map(|chapter| chapter.slug).collect();
    let names: Vec<&str> = slugs
        .iter()
        .flat_map(|slug| [Some(*slug), slug.split_once('-').map(|(_, rest)| rest)])
        .flatten()
        .collect();
    let error = Error::usage("there is no such lesson")
        .expected("tour, the number or the name of a chapter, a word that it is about, or a Markdown file")
        .found(format!("`{}`", printable(name)));
    Err(match &near(name, &names)[..] {
        [] => error.next("`llama-trace learn` lists the lessons"),
        near => error.next(format!("did you mean {}?", near.join(" or "))),
    })
}

/// The shortest name of a lesson: `tour`, `16`.
fn short(chapter: &Chapter) -> String {
    number_in(chapter.slug).map_or_else(|| chapter.slug.to_owned(), |number| number.to_string())
}

/// A lesson in a list: `16 (Two heads that copy)`.
fn named(chapter: &Chapter) -> String {
    format!("{} ({})", short(chapter), chapter.title())
}

/// Reads a lesson's file.
fn read(path: &Path) -> Result<Source> {
    let (file, size) = open_regular(path)?;
    let mut bytes = Vec::new();
    file.take(LARGEST as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Error::model("the lesson cannot be read").in_file(path).found(error))?;
    if bytes.len() > LARGEST {
        return Err(Error::model("the lesson is too large")
            .in_file(path)
            .expected(format!("at most {LARGEST} bytes"))
            .found(format!("{size} bytes"))
            .next("split it into two lessons"));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let bytes = error.as_bytes();
        let at = error.utf8_error().valid_up_to();
        let line = bytes[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
        Error::model("the lesson is not a text")
            .at(format!("{}:{line}", path.display()))
            .expected("UTF-8")
            .found(format!("byte {at} is not part of a UTF-8 character"))
            .next("convert the file to UTF-8")
    })?;
    let slug = path.file_stem().map_or_else(|| "lesson".into(), |stem| stem.to_string_lossy().into_owned());
    let whole = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    Ok(Source {
        file: path.display().to_string(),
        is_own: false,
        slug,
        key: whole.display().to_string(),
        text: Cow::Owned(text),
    })
}
