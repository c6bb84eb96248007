//! `learn --export`: a lesson as one page to print. The page holds everything; it has no script and loads nothing.

use std::path::Path;

use super::super::snapshot::{check_free, write};
use super::args::LearnArgs;
use super::find::Source;
use super::html::{escaped, html};
use super::stage::Walk;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::lesson::{Answer, Kind, Lesson, PromptSetting, Question, Scene, solution};
use llama_trace_core::stop;
use llama_trace_picture::{self as picture, Format, Paper};

/// Columns and rows of the screens that become pictures.
const PICTURE: (u16, u16) = (100, 30);

const STYLE: &str = "\
body { font: 12pt/1.5 Georgia, serif; color: #111; background: #fff; max-width: 46em; margin: 2em auto; padding: 0 1em; }
h1, h2, h3 { font-family: Helvetica, Arial, sans-serif; line-height: 1.2; }
h2 { border-top: 1px solid #bbb; padding-top: .7em; }
code, pre { font-family: 'DejaVu Sans Mono', Menlo, Consolas, monospace; font-size: 90%; }
pre { border: 1px solid #ccc; padding: .6em; white-space: pre-wrap; }
table { border-collapse: collapse; } td, th { border: 1px solid #999; padding: .2em .6em; text-align: left; }
svg { width: 100%; height: auto; border: 1px solid #ccc; }
.setting { color: #555; font-size: 90%; }
.question { border: 1.5px solid #111; padding: .2em .9em; break-inside: avoid; }
.line { border-bottom: 1px solid #555; height: 2em; margin: 0 0 1em; }
@page { margin: 18mm; }
@media print { body { margin: 0; max-width: none; font-size: 10.5pt; } .scene svg { break-inside: avoid; } h2, h3 { break-after: avoid; } .key { break-before: page; } }
";

/// Writes the page.
pub(super) fn export(args: &LearnArgs, source: &Source, lesson: &Lesson, path: &Path) -> Result<()> {
    if path.extension().is_none_or(|extension| !extension.eq_ignore_ascii_case("html")) {
        return Err(Error::usage("a lesson is written as an .html file")
            .at("--export")
            .found(path.display()));
    }
    check_free(path, args.force, "page")?;
    let page = page(args, source, lesson)?;
    write(path, args.force, "page", page.as_bytes())
}

/// The text of the page.
fn page(args: &LearnArgs, source: &Source, lesson: &Lesson) -> Result<String> {
    let mut walk = Walk::begin(args, lesson, PICTURE)?;
    let title = escaped(&lesson.title);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
    );
    let (mut key, mut number) = (String::new(), 0);
    for (at, scene) in lesson.scenes.iter().enumerate() {
        stop::check()?;
        let place = || format!("{}:{}", source.file, scene.line);
        walk.show(at)?.map_err(|reason| {
            Error::model(format!("a scene cannot be shown: {reason}"))
                .at(place())
                .next("`learn --check` finds all such scenes")
        })?;
        let screen = walk.screens.draw(&mut walk.runs, false, &mut stop::check)?;
        let svg = picture::encode(&screen, Paper::Light, Format::Svg)?;
        page += &format!("<section class=\"scene\">\n<h2>Scene {}</h2>\n", at + 1);
        page += &format!("<p class=\"setting\">{}</p>\n", setting(scene));
        page += &String::from_utf8_lossy(&svg);
        page += &html(&scene.words);
        if let Some(question) = &scene.question {
            number += 1;
            page += &asked(question, number);
            if args.answers {
                key += &answered(&mut walk, source, scene, question, number)?;
            }
        }
        page += "</section>\n";
    }
    if args.answers {
        page += &format!("<section class=\"key\">\n<h2>Answers</h2>\n{key}</section>\n");
    }
    Ok(page + "</body>\n</html>\n")
}

/// The run and the place of a scene.
fn setting(scene: &Scene) -> String {
    let prompts = scene.run.prompts.iter().map(|prompt| match prompt {
        PromptSetting::Text(text) => format!("“{}”", escaped(text)),
        PromptSetting::Ids(ids) => {
            format!("ids {}", ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" "))
        }
    });
    let mut parts = vec![prompts.collect::<Vec<_>>().join(", ")];
    parts.push(format!("<code>{}</code>", escaped(&scene.screen.at)));
    parts.extend(scene.run.edits.iter().map(|edit| format!("edit <code>{}</code>", escaped(edit))));
    if !scene.run.sampling.is_empty() {
        parts.push(format!("<code>{}</code>", escaped(&scene.run.sampling.join(" "))));
    }
    parts.extend(scene.run.precision.iter().map(|precision| escaped(precision)));
    parts.join(" · ")
}

/// A question, with room for the answer.
fn asked(question: &Question, number: usize) -> String {
    let mut text = format!("<div class=\"question\">\n<h3>Question {number}</h3>\n{}", html(&question.text));
    if question.kind == Kind::Choice {
        let choices = question.choices.iter().map(|choice| format!("<li>{}</li>\n", html(choice)));
        text += &format!("<ol>\n{}</ol>\n", choices.collect::<String>());
    } else {
        text += "<p class=\"line\"></p>\n";
    }
    text + "</div>\n"
}

/// The answer to a question, for the key.
fn answered(
    walk: &mut Walk,
    source: &Source,
    scene: &Scene,
    question: &Question,
    number: usize,
) -> Result<String> {
    let Walk { screens, runs } = walk;
    let right = screens.evaluate(runs, &mut stop::check, |world| solution(scene, question, world))?;
    let right = right.map_err(|reason| {
        Error::model(format!("the answer has no value: {reason}"))
            .at(format!("{}:{}", source.file, question.line))
            .next("`learn --check` finds all such answers")
    })?;
    Ok(format!(
        "<h3>Question {number}</h3>\n<p><strong>{}</strong></p>\n{}",
        escaped(&told(&right.answer, question)),
        html(&question.explanation)
    ))
}

/// An answer in words.
fn told(answer: &Answer, question: &Question) -> String {
    match answer {
        Answer::Indices(indices) => {
            let indices: Vec<String> =
                indices.iter().map(|(letter, index)| format!("{letter} = {index}")).collect();
            indices.join(", ")
        }
        Answer::Step(step) => step.name().to_owned(),
        Answer::Number(number) if number.fract() == 0.0 && number.abs() < 1e15 => format!("{number}"),
        Answer::Number(number) => {
            // Four digits.
            let decimals = (3 - number.abs().log10().floor() as i32).clamp(0, 12) as usize;
            format!("{number:.decimals$}")
        }
        Answer::Shape(shape) => {
            format!("({})", shape.iter().map(usize::to_string).collect::<Vec<_>>().join(", "))
        }
        Answer::Choice(number) => match question.choices.get(number - 1) {
            Some(choice) => format!("{number}: {choice}"),
            None => number.to_string(),
        },
    }
}
