//! `learn --check`: runs every scene of a lesson, and evaluates every answer.

use std::fmt::Write;

use super::super::shell;
use super::args::LearnArgs;
use super::find::Source;
use super::leaks::Leaks;
use super::stage::Walk;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::lesson::{
    Evaluation, Lesson, Place, Problem, Question, Scene, Unfinished, answer, solution,
};
use llama_trace_core::stop;

/// The smallest screen on which a lesson must be readable.
const SMALLEST: (u16, u16) = (80, 24);

/// The result of checking one lesson.
#[derive(Debug, Default)]
pub(in crate::cli) struct Checked {
    pub(in crate::cli) scenes: usize,
    pub(in crate::cli) questions: usize,
    /// Scenes that need facts about the heads of the built-in model, and were left out for another model.
    pub(in crate::cli) without_heads: usize,
    /// Other scenes of the program's own lessons that another model cannot show, with the reason.
    pub(in crate::cli) left_out: Vec<Problem>,
    pub(in crate::cli) problems: Vec<Problem>,
    /// Questions whose answer is known before it is given.
    pub(in crate::cli) leaks: Vec<Problem>,
}

/// Checks lessons, and prints a line for each problem and one for each lesson.
pub(super) fn run(args: &LearnArgs, sources: &[Source]) -> Result<()> {
    let (mut all, mut first) = (0, None);
    for source in sources {
        let checked = of_text(args, source)?;
        let mut text = String::new();
        // Writing to a string cannot fail.
        for Problem { line, what } in &checked.problems {
            let _ = writeln!(text, "{}:{line}: {what}", source.file);
        }
        for Problem { line, what } in &checked.left_out {
            let _ = writeln!(text, "{}:{line}: left out: {what}", source.file);
        }
        for Problem { line, what } in &checked.leaks {
            let _ = writeln!(text, "{}:{line}: note: {what}", source.file);
        }
        let Checked { scenes, questions, without_heads, left_out, problems, .. } = &checked;
        let _ = write!(
            text,
            "{}: {}, {}, ",
            source.file,
            counted(*scenes, "scene"),
            counted(*questions, "question")
        );
        if *without_heads > 0 {
            let names = if *without_heads == 1 { "it names" } else { "they name" };
            let _ = write!(text, "{without_heads} left out because {names} heads of the built-in model, ");
        }
        if !left_out.is_empty() {
            let _ = write!(text, "{} left out because this model lacks a place or value, ", left_out.len());
        }
        let _ = writeln!(text, "{}", counted(problems.len(), "problem"));
        shell::print(text.as_bytes())?;
        all += problems.len();
        if let (None, Some(problem)) = (&first, problems.first()) {
            first = Some(format!("{}:{}", source.file, problem.line));
        }
    }
    match first {
        None => Ok(()),
        Some(place) => {
            Err(Error::model(format!("the check of the lessons found {}", counted(all, "problem")))
                .at(place)
                .next("the lines above name each of them; see `llama-trace help lessons`"))
        }
    }
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Checks the lesson in a file.
pub(super) fn of_text(args: &LearnArgs, source: &Source) -> Result<Checked> {
    let lesson = match Lesson::parse(&source.slug, &source.text) {
        Ok(lesson) => lesson,
        Err(problems) => return Ok(Checked { problems, ..Checked::default() }),
    };
    let mut walk = match Walk::begin(args, &lesson, SMALLEST) {
        Ok(walk) => walk,
        // The run of the first scene cannot begin.
        Err(error @ Error::Prompt(_)) => {
            let line = lesson.scenes.first().map_or(1, |scene| scene.line);
            let problems = vec![Problem { line, what: one_line(&error.to_string()) }];
            return Ok(Checked { problems, scenes: lesson.scenes.len(), ..Checked::default() });
        }
        Err(error) => return Err(error),
    };
    let mut checked = Checked { scenes: lesson.scenes.len(), ..Checked::default() };
    let mut leaks = Leaks::default();
    // The program's own lessons are written for the built-in model. Another model may lack a place that they name.
    let elsewhere = source.is_own && !args.is_built_in();
    for (at, scene) in lesson.scenes.iter().enumerate() {
        stop::check()?;
        checked.questions += usize::from(scene.question.is_some());
        if !args.is_built_in() && scene.names_heads() {
            checked.without_heads += 1;
            continue;
        }
        match walk.show(at)? {
            Err(what) if elsewhere => {
                checked.left_out.push(Problem { line: scene.line, what: one_line(&what) });
            }
            Err(what) => checked.problems.push(unshown(&mut walk, scene, &what)?),
            Ok(()) => {
                let screen = walk.screens.draw(&mut walk.runs, true, &mut stop::check)?;
                if !elsewhere {
                    let symbols = screen.content.iter().map(|cell| cell.symbol());
                    let text = written(symbols, screen.area.width.into(), scene);
                    checked.leaks.extend(leak(&mut walk, &mut leaks, (at + 1, scene), &text)?);
                }
                if let Some(question) = &scene.question {
                    let mut found = Vec::new();
                    let has_value = answers(&mut walk, scene, question, &mut found)?;
                    match (elsewhere, has_value) {
                        (false, _) => checked.problems.extend(found),
                        (true, false) => checked.left_out.extend(found),
                        // On another model, a hint may be about the right answer, or about a place that is missing.
                        (true, true) => {}
                    }
                }
            }
        }
    }
    checked.problems.sort_by_key(|problem| problem.line);
    checked.left_out.sort_by_key(|problem| problem.line);
    Ok(checked)
}

/// The lines of a screen, and all words that stand beside it while the question is open.
fn written<'s>(symbols: impl Iterator<Item = &'s str>, width: usize, scene: &Scene) -> String {
    let symbols: Vec<&str> = symbols.collect();
    let mut lines: Vec<String> = symbols.chunks(width.max(1)).map(<[&str]>::concat).collect();
    lines.push(scene.words.clone());
    if let Some(question) = &scene.question {
        lines.push(question.text.clone());
        lines.extend(question.choices.iter().cloned());
    }
    lines.join("\n")
}

/// The note on a question whose answer is known before it is given. Adds what the scene shows to `leaks`.
fn leak(
    walk: &mut Walk,
    leaks: &mut Leaks,
    (number, scene): (usize, &Scene),
    text: &str,
) -> Result<Option<Problem>> {
    let Walk { screens, runs } = walk;
    let at = screens.evaluate(runs, &mut stop::check, |world| {
        let place = Place::parse(&scene.screen.at).map_err(Unfinished::Wrong)?;
        Evaluation::new(world).address(&place)
    })?;
    let Ok(at) = at else { return Ok(None) };
    let mut found = None;
    if let Some(question) = &scene.question {
        let right = screens.evaluate(runs, &mut stop::check, |world| solution(scene, question, world))?;
        let what = right.ok().and_then(|right| leaks.find(scene, question, &right, (&at, text)));
        found = what.map(|what| Problem { line: question.line, what });
    }
    leaks.show(number, scene, &at);
    Ok(found)
}

/// The problem of a scene that cannot be shown. If the reason is the answer of its question, the problem is there.
fn unshown(walk: &mut Walk, scene: &Scene, what: &str) -> Result<Problem> {
    if let Some(question) = &scene.question {
        let Walk { screens, runs } = walk;
        let right = screens.evaluate(runs, &mut stop::check, |world| solution(scene, question, world))?;
        if right.is_err_and(|wrong| wrong == what) {
            let what = format!("the answer has no value: {}", one_line(what));
            return Ok(Problem { line: question.line, what });
        }
    }
    Ok(Problem { line: scene.line, what: one_line(what) })
}

/// A message of several lines in one line.
fn one_line(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join("; ")
}

/// Checks the answer of a question, and that each hint is about another answer. Returns whether the answer has a value.
fn answers(walk: &mut Walk, scene: &Scene, question: &Question, problems: &mut Vec<Problem>) -> Result<bool> {
    let mut problem = |what: String| problems.push(Problem { line: question.line, what });
    let Walk { screens, runs } = walk;
    let right = screens.evaluate(runs, &mut stop::check, |world| solution(scene, question, world))?;
    let right = match right {
        Ok(solution) => solution.answer,
        Err(wrong) => {
            problem(format!("the answer has no value: {wrong}"));
            return Ok(false);
        }
    };
    for (number, hint) in (1..).zip(&question.hints) {
        let Some(to) = &hint.to else { continue };
        let wrong = screens.evaluate(runs, &mut stop::check, |world| {
            answer(scene, question, to, &mut Evaluation::new(world))
        })?;
        match wrong {
            Ok(wrong) if wrong.is(&right, question.tolerance()) => {
                problem(format!("hint {number} is about the right answer"));
            }
            Ok(_) => {}
            Err(wrong) => problem(format!("hint {number} is about an answer without a value: {wrong}")),
        }
    }
    Ok(true)
}
