//! Beginning a branch, and listing those there are: what takes the runs of the program.

use llama_trace_core::trace::{Fork, Outline, Run};

use super::advancing::advance;
use super::app::{App, Mode};
use super::courses::{Course, Courses};
use super::runs::Runs;

/// Begins the branch, shows it, and has its first pass run.
pub fn begin(app: &mut App, runs: &mut Runs, fork: Fork) {
    let (sequence, of) = (app.outline.sequence, fork.of);
    let before = app.outline.passes.get(fork.pass).and_then(|pass| Some(pass.sampled.as_ref()?.id));
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
        let drawn = app.outline.passes.get(pass).and_then(|pass| pass.sampled.as_ref());
        let as_well = before.is_some_and(|id| drawn.is_some_and(|token| token.id == id));
        let how = if as_well { "goes on from" } else { "parts from" };
        let too = if as_well { ", with the same token" } else { "" };
        app.say(format!("{run} {how} {of} after pass {pass}{too}; B lists the branches, c shows both, /{of}: goes back"), false);
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
    let drawn = |outline: &Outline, pass: usize| Some(outline.passes.get(pass)?.sampled.as_ref()?.id);
    let same = outline.fork.is_some_and(|fork| {
        let other = all.iter().find(|other| other.run == fork.of && other.sequence == outline.sequence);
        other.and_then(|other| drawn(other, fork.pass)) == Some(fork.token)
    });
    // What parts from nothing has its prompt before, and what was drawn after.
    let last = parts.unwrap_or(0);
    let passes = outline.passes.get(..=last).unwrap_or(&outline.passes);
    let before = passes.iter().flat_map(|pass| &pass.tokens).map(|token| token.text.clone());
    let after = outline.passes.iter().skip(last).filter_map(|pass| pass.sampled.as_ref());
    Course {
        run: outline.run,
        sequence: (outline.sequence, outline.sequences),
        parts: outline.fork.map(|fork| (fork.of, fork.pass)),
        parted: parts.is_some(),
        same,
        before: before.collect(),
        after: after.map(|token| token.text.clone()).collect(),
        without: outline.card.without.clone(),
        shown: (outline.run, outline.sequence) == here,
    }
}
