//! `llama-trace kata`: lists the stages, prints a skeleton, and judges a program.

mod folder;
mod process;
mod whole;

use std::io::Write;
use std::sync::Arc;

use folder::Folder;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::ModelCard;
use llama_trace_formats::tokenizer::Tokenizer;
use llama_trace_judge::check::ReadWeights;
use llama_trace_judge::kata::{
    self, Case, Judgement, KATAS, Kata, Language, Wrong, judge, kata, of_model, skeleton,
};

use super::args::{CpuArgs, DeviceName, KataLanguage, ModelArgs, PrecisionName};
use super::explain::{number, print_terms};
use super::{KataArgs, input, output};

/// The text that the built-in model reads.
const TEXT: &str = "Mara had a red ball and Tom had a blue ball";

/// Runs the command.
pub(super) fn run(args: &KataArgs) -> Result<()> {
    let Some(name) = &args.stage else { return list() };
    if name == "all" {
        return input::on_a_computing_thread(|| whole::run(args));
    }
    if args.dir.is_some() {
        return Err(Error::usage("--dir is for all stages at once")
            .found(format!("--dir with {name}"))
            .next(format!("llama-trace kata all --dir DIR, or kata {name} --run COMMAND")));
    }
    let kata = kata(name).ok_or_else(|| {
        Error::usage("there is no such stage to write")
            .expected("a name of the list that `llama-trace kata` prints, or all")
            .found(format!("`{name}`"))
    })?;
    match &args.run {
        None => {
            let language = match args.lang {
                KataLanguage::Python => Language::Python,
                KataLanguage::Rust => Language::Rust,
            };
            output::end(
                write!(output::Lines::text(), "{}", skeleton(kata, language)).map_err(output::Failure::from),
            )
        }
        Some(command) => input::on_a_computing_thread(|| judged(args, kata, command)),
    }
}

/// Prints the stages.
fn list() -> Result<()> {
    let mut out = output::Lines::text();
    let shapes = |kata: &Kata| {
        let inputs: Vec<&str> = kata.inputs.iter().map(|port| port.shape).collect();
        let inputs = match inputs.len() {
            0 => "numbers".to_owned(),
            1..=3 => inputs.join(" "),
            more => format!("{} and {} more", inputs[0], more - 1),
        };
        format!("{inputs} → {}", kata.output)
    };
    let width = KATAS.iter().map(|kata| kata.name.len()).max().unwrap_or(0);
    let unused: Vec<&str> = KATAS.iter().filter(|kata| !whole::is_used(kata)).map(|kata| kata.name).collect();
    let mut print = || {
        writeln!(out, "Stages to write yourself, in the order of the pass:\n")?;
        for kata in KATAS {
            writeln!(out, "  {:<width$}  {}", kata.name, kata.about)?;
            writeln!(out, "  {:<width$}    {}", "", shapes(kata))?;
        }
        writeln!(out, "\n`kata all` chains your stages into a whole pass. {}", whole::UNUSED)?;
        writeln!(out, "It does not use {}.\n", unused.join(", "))?;
        writeln!(out, "llama-trace kata rms_norm > rms_norm.py")?;
        writeln!(out, "llama-trace kata rms_norm --run 'python3 rms_norm.py'")?;
        writeln!(out, "llama-trace kata all --dir DIR")
    };
    let printed = print();
    output::end(printed.map_err(output::Failure::from))
}

/// The built-in model.
struct BuiltIn {
    card: ModelCard,
    weights: Arc<dyn ReadWeights + Send>,
    tokenizer: Arc<dyn Tokenizer>,
}

impl BuiltIn {
    fn open() -> Result<Self> {
        let model = ModelArgs {
            model: None,
            offline: true,
            tokenizer: None,
            rope_factor: None,
            ignore_config: Vec::new(),
            without: Vec::new(),
            edit: Vec::new(),
            edits: None,
            precision: Some(PrecisionName::F32),
        };
        let cpu = CpuArgs {
            device: DeviceName::Cpu,
            threads: None,
            cpu_kernel: None,
            huge_pages: false,
            cache_dtype: None,
        };
        let opened = input::open(&model, &cpu)?;
        let tokenizer = opened.tokenizer.clone().ok_or_else(super::prompt::no_tokenizer)?;
        let (model, _) = opened.model?;
        Ok(Self { card: model.card(), weights: Arc::new(model), tokenizer })
    }
}

/// Runs a program on the cases of a kata, and prints the verdict.
fn judged(args: &KataArgs, kata: &Kata, command: &str) -> Result<()> {
    let words = process::words(command)?;
    let seed = args.seed.unwrap_or_else(new_seed);
    let mut cases = kata::random(kata, seed)?;
    let random = cases.len();
    let model = BuiltIn::open()?;
    let ids = model.tokenizer.encode(TEXT)?;
    cases.extend(of_model(kata, &model.card, &model.weights, &ids)?);
    let outputs = Folder::new(&cases)?.run(&words, args.timeout, &cases)?;
    match judge(kata, &cases, &outputs)? {
        Judgement::Correct => {
            let built_in = cases.len() - random;
            let line = format!(
                "{}: correct in {} cases: {random} of a random model (seed {seed}), {built_in} of the built-in model",
                kata.name,
                cases.len()
            );
            output::end(writeln!(output::Lines::text(), "{line}").map_err(output::Failure::from))
        }
        Judgement::Wrong(wrong) => refuse(kata, &cases, &wrong, seed),
    }
}

/// A new seed, from the time and the process.
fn new_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    (now.map_or(0, |now| now.as_millis() as u64) ^ u64::from(std::process::id()) << 20) % 1_000_000
}

/// Prints the first wrong value with its operands, and returns the verdict as an error.
fn refuse(kata: &Kata, cases: &[Case], wrong: &Wrong, seed: u64) -> Result<()> {
    let case = &cases[wrong.case];
    let what = format!("{} is wrong in {} of {} cases", kata.name, wrong.wrong_cases, cases.len());
    let again = format!("--seed {seed} gives the same cases");
    if let Some(problem) = &wrong.problem {
        let what = format!("{}: the output does not have the right form", kata.name);
        return Err(Error::failed(what)
            .at(format!("case {}, {}", wrong.case, case.title))
            .expected(format!("an array of shape {}", kata.output))
            .found(problem)
            .next(again));
    }
    let Some(cell) = &wrong.cell else { return Ok(()) };
    let mut out = output::Lines::text();
    let mut print = || {
        writeln!(out, "{what}")?;
        writeln!(out, "first wrong case: {}, {} of {} values are wrong\n", case.title, cell.count, cell.of)?;
        writeln!(
            out,
            "{}: yours is {}, right is {}\n",
            cell.address,
            number(cell.found),
            number(cell.right)
        )?;
        writeln!(out, "  {}\n", kata.formula)?;
        print_terms(&mut out, &cell.explanation, &|_| Vec::new())?;
        writeln!(out)?;
        for named in &wrong.mistakes {
            writeln!(out, "{}   [{}]", named.sentence(), named.name)?;
        }
        if wrong.mistakes.is_empty() {
            writeln!(out, "no known mistake gives these values")?;
        }
        Ok(())
    };
    let printed: std::io::Result<()> = print();
    output::end(printed.map_err(output::Failure::from))?;
    // The verdict is above. The error repeats only the place.
    Err(Error::failed(format!("{} is not right yet", kata.name)).at(&cell.address).next(again))
}
