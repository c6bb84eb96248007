//! Beginning a branch, and listing those there are: what takes the runs of the program.

use crate::trace::{Fork, Outline, Run};

use super::advancing::advance;
use super::app::{App, Mode};
use super::courses::{Course, Courses};
use super::runs::Runs;

/// Begins the branch, shows it, and has its first pass run.
pub fn begin(app: &mut App, runs: &mut Runs, fork: Fork) {
    let (sequence, of) = (app.outline.sequence, fork.of);
    let run = match runs.branch(fork) {
        Ok(run) => run,
        Err(error) => return app.say(error.to_string(), true),
    };
    app.leave(runs.source());
    app.leave_compared(runs.before());
    // It is there, so that nothing has to be begun.
    drop(runs.show(run, sequence));
    app.look_at(runs.source().outline().clone(), true);
    app.trying.setting = None;
    app.settle();
    advance(app, runs.source());
    if app.expects_pass {
        let pass = fork.pass;
        app.say(format!("{run} parts from {of} after pass {pass}; B lists the branches, c shows both, /{of}: goes back"), false);
    }
}

/// Opens the list.
pub fn list(app: &mut App, runs: &mut Runs) {
    let outlines = runs.outlines();
    let here = (app.outline.run, app.outline.sequence);
    let all: Vec<Course> = outlines.iter().map(|outline| course(outline, &outlines, here)).collect();
    let chosen = all.iter().position(|course| course.shown).unwrap_or(0);
    app.mode = Mode::Branches(Courses { all, chosen });
}

fn course(outline: &Outline, all: &[Outline], here: (Run, usize)) -> Course {
    let same = |other: &&Outline| other.sequence == outline.sequence;
    let of_this = |other: &Outline| other.fork.filter(|fork| fork.of == outline.run).map(|fork| fork.pass);
    let first = all.iter().filter(same).filter_map(of_this).min();
    let parts = outline.fork.map(|fork| fork.pass).or(first);
    let passes = outline.passes.get(..=parts.unwrap_or(usize::MAX - 1)).unwrap_or(&outline.passes);
    let before = passes.iter().flat_map(|pass| &pass.tokens).map(|token| token.text.clone());
    let after =
        outline.passes.iter().skip(parts.unwrap_or(usize::MAX)).filter_map(|pass| pass.sampled.as_ref());
    Course {
        run: outline.run,
        sequence: (outline.sequence, outline.sequences),
        parts: outline.fork.map(|fork| (fork.of, fork.pass)),
        before: before.collect(),
        after: after.map(|token| token.text.clone()).collect(),
        shown: (outline.run, outline.sequence) == here,
    }
}
