//! Execution of the effects that need the runs or their sources. The results go back to [`update`] as a [`Report`].
//! `export` has the effects on files, and `show` the effects on the terminal.

use llama_trace_core::error::printable;
use llama_trace_core::lesson::RunSetting;
use llama_trace_core::trace::{Address, Fork, Outline, Run, Source, TokenLabel};

use super::action::Action;
use super::app::App;
use super::branch_list::BranchList;
use super::edit_keys;
use super::edit_list::EditList;
use super::edited;
use super::goto;
use super::lesson_keys;
use super::lesson_state::OpenLesson;
use super::marks::Marks;
use super::patch_state::{Clean, CleanPrompt};
use super::place::OpenAt;
use super::report::Report;
use super::runs::{Edited, NewRun, Runs};
use super::text;
use super::update::{Effect, update};

/// Hands a report to `app`.
pub(super) fn report(app: &mut App, report: Report) {
    update(app, Action::Report(report));
}

/// Shows a message.
pub fn say(app: &mut App, text: impl Into<String>) {
    report(app, Report::Message { text: text.into(), failure: false });
}

/// Shows a message on a failure.
pub fn fail(app: &mut App, text: impl Into<String>) {
    report(app, Report::Message { text: text.into(), failure: true });
}

/// Requests one more pass of `source`. Once the pass is there, the viewer goes to the same step of this pass.
pub fn advance(app: &mut App, source: &mut dyn Source) {
    match source.advance() {
        Ok(()) => report(app, Report::PassRequested),
        Err(error) => fail(app, error.to_string()),
    }
}

/// Begins a branch, shows it, and requests its first pass.
pub fn branch(app: &mut App, runs: &mut Runs, fork: Fork) {
    let drawn = |app: &App| Some(app.outline().passes.get(fork.pass)?.sampled.as_ref()?.id);
    let (sequence, drawn_before) = (app.outline().sequence, drawn(app));
    let run = match runs.branch(fork) {
        Ok(run) => run,
        Err(error) => return fail(app, error.to_string()),
    };
    app.leave(runs.source());
    app.leave_compared(runs.before());
    // The branch exists, so this call begins no run and cannot fail.
    drop(runs.show(run, sequence));
    report(app, Report::Branched(Box::new(runs.source().outline().clone())));
    advance(app, runs.source());
    if app.awaits_pass() {
        let same = drawn_before.is_some() && drawn_before == drawn(app);
        let how = if same { "continues" } else { "branches from" };
        let token = if same { ", with the same token" } else { "" };
        let Fork { of, pass, .. } = fork;
        say(
            app,
            format!(
                "{run} {how} {of} after pass {pass}{token}; B lists the branches, c shows both, /{of}: goes back"
            ),
        );
    }
}

/// Opens the list of branches.
pub fn list_branches(app: &mut App, runs: &mut Runs) {
    let list = BranchList::new(&runs.outlines(), app.outline());
    report(app, Report::Branches(list));
}

/// Shows the previous run or sequence again; false if there is none.
pub fn back(app: &mut App, runs: &mut Runs) -> bool {
    app.leave(runs.source());
    let back = runs.back();
    if back {
        show(app, runs, None);
    }
    back
}

/// Reports the run and the sequence that `runs` shows now.
fn show(app: &mut App, runs: &mut Runs, at: Option<Address>) {
    let has_previous = runs.before().is_some();
    let outline = Box::new(runs.source().outline().clone());
    report(app, Report::Shown { outline, has_previous, at });
}

/// Goes to an address in another sequence or another run.
pub fn open_run(app: &mut App, runs: &mut Runs, run: Run, address: &Address) {
    let Some(count) = runs.sequences(run) else {
        let there: Vec<_> = runs.all().map(|run| run.to_string()).collect();
        let there = match &there[..] {
            [one] => format!("{one} is the only one"),
            many => format!("the runs are {}", many.join(", ")),
        };
        return fail(app, format!("there is no run {run}: {there}"));
    };
    // Another run may have fewer sequences, and a branch has only one.
    let here = match runs.only_sequence(run) {
        Some(only) => only,
        None => app.outline().sequence.min(count.max(1) - 1),
    };
    let sequence = address.sequence.unwrap_or(here);
    app.leave(runs.source());
    app.leave_compared(runs.beside(app));
    match runs.show(run, sequence) {
        Ok(true) => show(app, runs, Some(address.clone())),
        Ok(false) => {
            let wrong = match runs.only_sequence(run) {
                Some(only) if count > 1 => format!("{run} is a branch and has only sequence {only}"),
                _ => goto::no_sequence(runs.of(run, 0).outline(), sequence),
            };
            fail(app, wrong);
        }
        Err(error) => fail(app, error.to_string()),
    }
}

/// Begins another run beside the open ones, and shows its first pass.
pub fn begin_run(app: &mut App, runs: &mut Runs, new: NewRun) {
    let before = app.outline().run;
    if let NewRun::Edited(wanted) = &new
        && let Some(outline) = runs.outlines().into_iter().find(|outline| is_run(outline, wanted))
    {
        let at = Address { sequence: Some(outline.sequence), ..Address::default() };
        open_run(app, runs, outline.run, &at);
        return say(app, format!("{} is that run; /{before}: goes back", outline.run));
    }
    let of_branch = app.outline().fork.is_some();
    let (is_edited, place, own) = (matches!(&new, NewRun::Edited(_)), app.place(), app.outline().clone());
    let at = Address { run: None, sequence: None, ..Address::of(place.site(), place.step, &app.index()) };
    let passes = match &new {
        NewRun::Edited(wanted) => wanted.passes,
        NewRun::Prompt(_) | NewRun::Scene(_) => 1,
    };
    match runs.begin(new) {
        Ok(run) => {
            open_run(app, runs, run, &Address { pass: Some(0), ..Address::default() });
            // The edited run computes the pass on the screen too. A trace has no more passes than it shows.
            let passes = if app.outline().recorded { app.outline().passes.len() } else { passes };
            if (1..passes).contains(&place.pass) {
                report(app, Report::OpensAt(OpenAt { at: Some(at), passes, ..OpenAt::default() }));
            }
            let (edits, same) = (edited::name(&app.outline().card), edited::same_prompt(app.outline(), &own));
            let what = match (same, is_edited) {
                _ if app.outline().recorded => {
                    format!("is the trace {edits}, up to the next product with weights")
                }
                (true, true) if of_branch => {
                    let prompt = format!("runs the prompt of {before} {edits}");
                    format!("{}, and draws every token again", prompt.trim_end())
                }
                (true, _) => format!("runs this prompt {edits}").trim_end().to_owned(),
                (false, _) => {
                    let prompt =
                        if is_edited { "runs the prompt with other tokens" } else { "runs another prompt" };
                    let comma = if edits.is_empty() { "" } else { ", " };
                    format!("{prompt}{comma}{edits}")
                }
            };
            let what = printable(&what).into_owned();
            say(app, format!("{run} {what}; /{before}: goes back"));
        }
        Err(error) => fail(app, error.to_string()),
    }
}

/// Opens a lesson at the start of the program.
pub fn open_lesson(app: &mut App, runs: &mut Runs, lesson: OpenLesson) {
    if let Effect::Scene(setting) = lesson_keys::open_first(app, lesson) {
        show_scene(app, runs, &setting);
    }
}

/// Shows the run of a scene. Begins it if no open run has this setting.
pub fn show_scene(app: &mut App, runs: &mut Runs, setting: &RunSetting) {
    let known = runs.with(setting);
    let run = match known.map_or_else(|| runs.begin(NewRun::Scene(Box::new(setting.clone()))), Ok) {
        Ok(run) => run,
        Err(error) => return report(app, Report::NoScene(error.to_string())),
    };
    app.leave(runs.source());
    app.leave_compared(runs.beside(app));
    match runs.show(run, 0) {
        Ok(_) => {
            show(app, runs, None);
            report(app, Report::Scene(run));
        }
        Err(error) => report(app, Report::NoScene(error.to_string())),
    }
}

/// Opens the run without the edits of the shown one, and compares with it.
pub(super) fn compare_plain(app: &mut App, runs: &mut Runs) {
    let (here, wanted) = (app.outline().run, edit_keys::plain(app));
    let sequence = app.outline().sequence;
    let there = match runs.outlines().into_iter().find(|outline| is_run(outline, &wanted)) {
        Some(outline) => Ok((outline.run, outline.sequence)),
        None => runs.begin(NewRun::Edited(wanted)).map(|run| (run, 0)),
    };
    let shown = there.and_then(|(run, of)| {
        app.leave(runs.source());
        app.leave_compared(runs.before());
        // The run that is compared is the one that was shown before.
        runs.show(run, of)?;
        runs.show(here, sequence)
    });
    match shown {
        Ok(_) => {
            show(app, runs, None);
            report(app, Report::ComparesPrevious);
        }
        Err(error) => fail(app, error.to_string()),
    }
}

/// Returns whether the run of `outline` has the wanted tokens and edits.
fn is_run(outline: &Outline, wanted: &Edited) -> bool {
    let ids = outline.passes.iter().take(1).flat_map(|pass| &pass.tokens).map(|token| token.id);
    let edits = edited::texts(outline);
    outline.fork.is_none()
        && wanted.insert.is_none()
        && edits == wanted.edits
        && ids.eq(wanted.ids.iter().copied())
}

/// Finds or begins the clean run, and opens the map between its prompt and the prompt of the shown run.
pub fn patch(app: &mut App, runs: &mut Runs, clean: CleanPrompt) {
    let (here, sequence) = (app.outline().run, app.outline().sequence);
    let open: Vec<Run> = runs.all().collect();
    let ((run, of), begun) = match clean {
        CleanPrompt::Run(run, of) => ((run, of), None),
        CleanPrompt::Text(text) => match app.begun_for(&text).filter(|run| open.contains(run)) {
            Some(run) => ((run, 0), None),
            None => match runs.begin(NewRun::Prompt(text.clone())) {
                Ok(run) => ((run, 0), Some(text)),
                Err(error) => return fail(app, error.to_string()),
            },
        },
    };
    if (run, of) == (here, sequence) {
        let what = format!("{run} is this run itself: a patch takes values from the run of another prompt");
        return fail(app, what);
    }
    let found = runs.outlines().into_iter().find(|outline| (outline.run, outline.sequence) == (run, of));
    let Some(other) = found else {
        let what = if run == here { format!("sequence {of} of {run}") } else { run.to_string() };
        let open: Vec<_> = open.iter().map(ToString::to_string).collect();
        let open = open.join(", ");
        return fail(
            app,
            format!("{what} is not open (runs: {open}): open it first, or type a text: /patch A text"),
        );
    };
    let prompt = |outline: &Outline| outline.passes.first().map_or(Vec::new(), |pass| pass.tokens.clone());
    let (tokens, own) = (prompt(&other), prompt(app.outline()));
    if tokens.len() != own.len() {
        if begun.is_some() {
            runs.close(run);
        }
        let (clean, own) = (listed(&tokens), listed(&own));
        return fail(
            app,
            format!(
                "the two prompts do not have the same number of tokens. Clean: {clean}. This run: {own}. Change the words in which they differ"
            ),
        );
    }
    app.leave(runs.source());
    app.leave_compared(runs.before());
    // The key `c` compares with the run that was shown before.
    match runs.show(run, of).and_then(|_| runs.show(here, sequence)) {
        Ok(_) => {
            show(app, runs, None);
            report(app, Report::Clean(Clean { run, sequence: of, tokens, text: begun }));
            say(app, format!("the clean run is {run}: c compares with it, /{run}: goes to it"));
        }
        Err(error) => fail(app, error.to_string()),
    }
}

/// The maximum number of tokens of a prompt that a message lists.
const LISTED: usize = 16;

/// The number of tokens, and the first ones.
fn listed(tokens: &[TokenLabel]) -> String {
    let texts: Vec<_> = tokens.iter().take(LISTED).map(|token| text::visible(&token.text)).collect();
    let more = if tokens.len() > LISTED { "│…" } else { "" };
    format!("{} tokens, {}{more}", tokens.len(), texts.join("│"))
}

/// Opens the list of edits.
pub fn list_edits(app: &mut App, runs: &mut Runs) {
    let list = EditList::new(&runs.outlines(), app.outline());
    report(app, Report::Edits(list));
}

/// Replaces the marks.
pub fn set_marks(app: &mut App, marks: Marks) {
    report(app, Report::Marks(marks));
}

/// Writes the marks into their file. Marks that other programs wrote into it meanwhile are kept.
pub fn save_marks(app: &mut App) {
    let mut marks = app.marks().clone();
    let saved = marks.save();
    // After a failure, `marks` still lists the changed letters, so that the next save writes them.
    report(app, Report::Marks(marks));
    if let Err(error) = saved {
        fail(app, error.to_string());
    }
}
