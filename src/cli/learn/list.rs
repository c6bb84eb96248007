//! `learn` without a lesson: the lessons of the program, with the progress of each.

use super::super::shell;
use super::args::LearnArgs;
use super::find::{self, Source};
use super::progress::Progress;
use llama_trace_core::chapters::number_in;
use llama_trace_core::error::Result;
use llama_trace_core::lesson::Lesson;

/// Prints the list.
pub(super) fn run(args: &LearnArgs) -> Result<()> {
    let progress = Progress::open(args.no_progress);
    let rows: Vec<[String; 3]> = find::all().iter().map(|source| row(source, &progress)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (names, titles) = (width(0), width(1));
    let mut text = String::new();
    for [name, title, state] in &rows {
        text += format!("{name:names$} {title:titles$}  {state}").trim_end();
        text.push('\n');
    }
    text += "\n`llama-trace learn tour` opens the first lesson, `llama-trace learn 16` chapter 16.\n";
    shell::print(text.as_bytes())
}

/// Name, title and progress of a lesson.
fn row(source: &Source, progress: &Progress) -> [String; 3] {
    let name = number_in(&source.slug).map_or_else(|| source.slug.clone(), |number| number.to_string());
    let Ok(lesson) = Lesson::parse(&source.slug, &source.text) else {
        return [name, source.slug.clone(), String::new()];
    };
    let state = progress.of(source, lesson.scenes.len()).state(&lesson);
    [name, lesson.title, state]
}
