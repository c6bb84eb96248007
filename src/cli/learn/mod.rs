//! `llama-trace learn`: lists the lessons, opens one in the tracer, checks it, or writes it as a page to print.

mod args;
mod check;
mod find;
mod html;
mod leaks;
mod list;
mod page;
mod progress;
mod stage;

pub(super) use args::LearnArgs;

use llama_trace_core::error::{Error, Result};
use llama_trace_core::lesson::{Lesson, Problem};

use find::Source;

/// Runs the command.
pub(super) fn run(args: &LearnArgs) -> Result<()> {
    args.check()?;
    match &args.lesson {
        None if args.check => check::run(args, &find::all()),
        None => list::run(args),
        Some(name) => {
            let source = find::find(name)?;
            if args.check {
                return check::run(args, &[source]);
            }
            let lesson = parsed(&source)?;
            match &args.export {
                Some(path) => page::export(args, &source, &lesson, path),
                None => stage::open(args, &source, lesson),
            }
        }
    }
}

/// The lesson in a file.
fn parsed(source: &Source) -> Result<Lesson> {
    Lesson::parse(&source.slug, &source.text).map_err(|problems| {
        let Some(Problem { line, what }) = problems.first() else { return Error::model("this is no lesson") };
        let error =
            Error::model(format!("this is not a lesson: {what}")).at(format!("{}:{line}", source.file));
        match problems.len() - 1 {
            0 => error.next("see `llama-trace help lessons`"),
            more => error.next(format!(
                "`llama-trace learn --check {}` lists this and {more} more; see `llama-trace help lessons`",
                source.file
            )),
        }
    })
}
