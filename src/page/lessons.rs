//! Lessons that a link names or a user opens.

use std::collections::BTreeMap;

use crate::chapters::{CHAPTERS, TOUR};
use crate::progress;
use llama_trace_core::chapters::Chapter;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::lesson::Lesson;
use llama_trace_tui::OpenLesson;

/// Whether the name of a lesson in a link is that of a file.
pub fn is_file(lesson: &str) -> bool {
    lesson.ends_with(".md")
}

/// The program's lesson with this name.
///
/// # Errors
/// [`Error::Usage`] if there is none.
pub fn chapter(name: &str) -> Result<&'static Chapter> {
    static FIRST: Chapter = TOUR;
    let mut all = std::iter::once(&FIRST).chain(CHAPTERS.0);
    all.find(|chapter| chapter.is_named(name)).ok_or_else(|| {
        Error::usage("there is no such lesson")
            .at("lesson= in the link")
            .expected("tour, the number or the name of a chapter, or a file beside this page: lesson.md")
            .found(format!("`{name}`"))
            .next("C lists the chapters")
    })
}

/// The lesson of a chapter at a scene.
///
/// # Errors
/// [`Error::Usage`] if it lacks the scene.
pub fn of_chapter(
    chapter: &Chapter,
    scene: Option<usize>,
    stored: &BTreeMap<String, String>,
) -> Result<OpenLesson> {
    resumed(parsed(chapter.slug, chapter.text)?, chapter.slug, scene, stored)
}

/// Reads the text of a lesson.
///
/// # Errors
/// [`Error::Model`] with the first problem of the text.
pub fn parsed(slug: &str, text: &str) -> Result<Lesson> {
    Lesson::parse(slug, text).map_err(|problems| {
        let error = Error::model("this is no lesson");
        match problems.first() {
            Some(problem) => error
                .at(format!("{slug}.md:{}", problem.line))
                .found(&problem.what)
                .next("`llama-trace learn --check FILE` lists all problems of a lesson"),
            None => error,
        }
    })
}

/// The lesson at the scene of the link (from 1), or where it was left.
///
/// # Errors
/// [`Error::Usage`] if it lacks the scene.
pub fn resumed(
    lesson: Lesson,
    slug: &str,
    scene: Option<usize>,
    stored: &BTreeMap<String, String>,
) -> Result<OpenLesson> {
    let count = lesson.scenes.len();
    let known = stored.get(slug).map(|text| progress::read(text)).unwrap_or_default();
    let resumes = scene.is_none();
    let scene = match scene {
        Some(scene) if scene > count => {
            return Err(Error::usage(format!("the lesson has no scene {scene}"))
                .at("scene= in the link")
                .expected(format!("a number from 1 to {count}")));
        }
        Some(scene) => scene - 1,
        None => known.scene.min(count.saturating_sub(1)),
    };
    Ok(OpenLesson { lesson, scene, answers: known.answers, presents: false, resumes })
}
