//! `kata all`: a whole pass of finished stages; the missing ones are computed by the rules.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use llama_trace_core::error::{Error, Result, printable};
use llama_trace_core::trace::{PassDims, Sampling, Site, Stage};
use llama_trace_judge::diff::Named;
use llama_trace_judge::kata::{Judgement, KATAS, Kata, Run, judge, whole_pass};

use super::super::progress::Progress;
use super::super::{KataArgs, output, prompt};
use super::folder::Folder;
use super::{BuiltIn, number, process};
use crate::cli::tell;

/// The text that is continued without `--prompt`.
const TEXT: &str = "Once upon a time";

/// The finished stages: the command of each kata.
type Finished = BTreeMap<&'static str, Vec<String>>;

/// The first stage whose values are wrong.
struct First {
    what: String,
    found: String,
    right: String,
    mistake: Option<String>,
}

/// Why a whole pass does not use all kata, in a sentence.
pub(super) const UNUSED: &str = "It computes in float32, draws greedily, and keeps a cache.";

/// Returns whether a whole pass can use the kata. It draws greedily, in float32, with earlier passes.
pub(super) fn is_used(kata: &Kata) -> bool {
    let is_sampler = kata.stages.iter().all(|stage| *stage >= Stage::PenalizedLogits);
    let int8 = kata.stages.iter().all(|stage| stage.is_int8() || stage.is_scale());
    kata.name != "layer" && !int8 && (!is_sampler || kata.name == "argmax")
}

/// The kata in `DIR/STAGE.*`, and how to start each file: `.py` by python3, any other file by itself.
fn finished(dir: &Path, run_with: Option<&str>) -> Result<Finished> {
    let wrong = |error: std::io::Error| {
        Error::usage("the folder of the finished stages cannot be read").in_file(dir).found(error)
    };
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(wrong)? {
        files.push(entry.map_err(wrong)?.path());
    }
    files.sort();
    let (mut all, mut unused) = (Finished::new(), Vec::new());
    for file in files.into_iter().filter(|file| file.is_file()) {
        let name = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let Some(kata) = KATAS.iter().find(|kata| kata.name == name) else { continue };
        let path = std::path::absolute(&file).unwrap_or_else(|_| file.clone());
        let Some(path) = path.to_str() else { continue };
        let is_python = file.extension().is_some_and(|extension| extension == "py");
        // Sources of compiled programs lie beside them.
        let is_source = !is_python && run_with.is_none() && !is_executable(&file);
        if is_source {
            continue;
        }
        if !is_used(kata) {
            unused.push(kata.name);
            continue;
        }
        let mut words = match run_with {
            Some(command) => process::words(command)?,
            None if is_python => vec!["python3".into()],
            None => Vec::new(),
        };
        words.push(path.to_owned());
        if let Some(other) = all.insert(kata.name, words) {
            let other = other.last().cloned().unwrap_or_default();
            return Err(Error::usage(format!("two files are the stage {name}"))
                .in_file(dir)
                .found(format!("{other} and {path}"))
                .next("move one of them out of the folder"));
        }
    }
    if !unused.is_empty() {
        tell(format_args!("not used: {}. {UNUSED}", unused.join(", ")));
    }
    if all.is_empty() {
        return Err(Error::usage("the folder has no finished stage")
            .in_file(dir)
            .expected("files that are named after stages of `llama-trace kata`: rms_norm.py, or an executable rms_norm")
            .next("llama-trace kata rms_norm > DIR/rms_norm.py"));
    }
    Ok(all)
}

#[cfg(unix)]
fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata().is_ok_and(|about| about.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_executable(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "exe")
}

/// The finished kata that computes a stage: that of the stage alone, or else a part of several stages.
fn of_stage(finished: &Finished, stage: Stage) -> Option<(&'static Kata, &[String])> {
    let computes = |kata: &&Kata| kata.stages.contains(&stage) && finished.contains_key(kata.name);
    // The greedy draw has a kata of its own.
    let draws = |kata: &&Kata| kata.name != "sampled";
    let alone = KATAS.iter().filter(draws).find(|kata| computes(kata) && !kata.is_part());
    let kata = alone.or_else(|| KATAS.iter().filter(draws).find(computes))?;
    finished.get(kata.name).map(|words| (kata, &words[..]))
}

/// A run with the finished stages of the student.
struct Theirs<'a> {
    args: &'a KataArgs,
    finished: &'a Finished,
    run: Run,
    first: Option<First>,
}

impl Theirs<'_> {
    /// Computes a pass, and returns the id that it draws.
    fn pass(&mut self, dims: PassDims, progress: &Progress) -> Result<u32> {
        let sizes = *self.run.rules().sizes();
        for site in Site::all(&sizes, dims) {
            progress.add(1);
            let Some((kata, words)) = of_stage(self.finished, site.stage) else { continue };
            progress.say(format!("{} {site}", kata.name));
            let cases = [whole_pass(kata, &mut self.run, site)?];
            let outputs = Folder::new(&cases)?.run(words, self.args.timeout, &cases).map_err(|error| {
                error.next(format!("judge it alone: llama-trace kata {} --run …", kata.name))
            })?;
            if let Judgement::Wrong(wrong) = judge(kata, &cases, &outputs)? {
                if let Some(problem) = &wrong.problem {
                    return Err(Error::failed(format!("{} does not have the right form", kata.name))
                        .at(site)
                        .expected(format!("an array of shape {}", kata.output))
                        .found(problem));
                }
                if let (None, Some(cell)) = (&self.first, &wrong.cell) {
                    self.first = Some(First {
                        what: format!("{} by {}", cell.address, kata.name),
                        found: number(cell.found),
                        right: number(cell.right),
                        mistake: wrong.mistakes.first().map(Named::sentence),
                    });
                }
            }
            let frame = self.run.of_values(site, &outputs[0].values)?;
            self.run.insert(frame);
        }
        drawn(&mut self.run, dims)
    }
}

/// The id that a pass draws.
fn drawn(run: &mut Run, dims: PassDims) -> Result<u32> {
    let frame = run.frame(Site::once(dims.pass, Stage::Sampled))?;
    let id = frame.values().numbers().next().unwrap_or(f64::NAN);
    let vocab = run.rules().sizes().vocab;
    if id >= 0.0 && id < vocab as f64 {
        return Ok(id as u32);
    }
    Err(Error::failed("the drawn id is outside the vocabulary")
        .at(Site::once(dims.pass, Stage::Sampled))
        .expected(format!("0 to {}", vocab - 1))
        .found(id))
}

/// Runs the command.
pub(super) fn run(args: &KataArgs) -> Result<()> {
    let Some(dir) = &args.dir else {
        return Err(Error::usage("`kata all` needs the folder of the finished stages")
            .expected("--dir DIR, with files as rms_norm.py")
            .next("llama-trace kata all --dir DIR"));
    };
    let finished = finished(dir, args.run_with.as_deref())?;
    let model = BuiltIn::open()?;
    let text = args.prompt.clone().unwrap_or_else(|| TEXT.into());
    let ids = prompt::encode(&text, Ok(&*model.tokenizer), model.card.config.context)?;
    let longest = model.card.config.context.saturating_sub(ids.len());
    if args.tokens > longest {
        return Err(Error::usage("the model's context has no room for so many tokens")
            .expected(format!("-n up to {longest}"))
            .found(args.tokens));
    }
    let new = || Run::new(model.card.clone(), Arc::clone(&model.weights), Sampling::GREEDY);
    let mut theirs = Theirs { args, finished: &finished, run: new(), first: None };
    let mut ours = new();
    let names: Vec<&str> = finished.keys().copied().collect();
    let mut out = output::Lines::text();
    let mut print = |line: String| writeln!(out, "{line}");
    let label = |id: u32| format!("{:?}", model.tokenizer.label(id));
    let printed = (|| {
        print(format!("yours: {}; the other stages are ours", names.join(", ")))?;
        print(format!("text: {}\n", printable(&text)))?;
        print(format!("  {:>4}  {:<20}  {:<20}", "pass", "yours", "ours"))
    })();
    output::end(printed.map_err(output::Failure::from))?;
    let sites = Site::all(ours.rules().sizes(), PassDims { tokens: ids.len(), ..PassDims::default() }).len();
    let progress = Progress::new(sites * args.tokens, "stages");
    let (mut next, mut equal) = ([ids.clone(), ids], true);
    for pass in 0..args.tokens {
        theirs.run.push(&next[0], None);
        ours.push(&next[1], None);
        let dims = |run: &Run| run.rules().passes().last().copied().unwrap_or_default();
        let (their_dims, our_dims) = (dims(&theirs.run), dims(&ours));
        let (a, b) = (theirs.pass(their_dims, &progress)?, drawn(&mut ours, our_dims)?);
        let mark = if a == b { "" } else { "  ← differs" };
        equal &= a == b;
        let line = format!("  {pass:>4}  {:<20}  {:<20}{mark}", label(a), label(b));
        let printed = progress.aside(|| writeln!(output::Lines::text(), "{}", line.trim_end()));
        output::end(printed.map_err(output::Failure::from))?;
        next = [vec![a], vec![b]];
    }
    progress.finish();
    match theirs.first {
        None => {
            let line = if equal {
                "every stage of yours is right"
            } else {
                "every stage of yours is right, but a draw differs: two logits are nearly equal"
            };
            output::end(writeln!(output::Lines::text(), "\n{line}").map_err(output::Failure::from))
        }
        Some(First { what, found, right, mistake }) => {
            let error = Error::failed("a stage of yours is wrong").at(what).expected(right).found(found);
            Err(match mistake {
                Some(mistake) => error.next(mistake),
                None => error.next("judge it alone: llama-trace kata STAGE --run COMMAND"),
            })
        }
    }
}
