//! `llama-trace check`: checks on this machine, with this model, that the printed numbers are right.

mod report;

use self::report::Printed;
use super::device;
use super::device::Room;
use super::edited;
use super::progress::Progress;
use super::{CheckArgs, CheckFormat};
use super::{input, prompt};
use llama_trace_core::error::{Error, Result};
use llama_trace_formats::tokenizer::Tokenizer;
use llama_trace_judge::check::{self, DECODES, Plan, Sample};

/// Number of tokens in the first pass without `--prompt`. They are enough to use the kernels for tiles.
const TOKENS: usize = 40;

/// Seed for choosing ids and rows.
const SEED: u64 = 1;

/// The text that is read without `--prompt`. It is longer than [`TOKENS`] in any vocabulary.
const TEXT: &str = "Once upon a time there was a little girl who wanted to know where numbers come from. She opened \
                    the machine, looked at every wheel, and wrote down what each one said. At night she turned them \
                    by hand, one after the other, and in the morning there stood the same word as before.";

/// The ids to run, and the ids of the whole text that they come from.
struct Prompt {
    ids: Vec<u32>,
    split: Option<Vec<u32>>,
}

/// Runs the command.
pub(super) fn run(args: &CheckArgs) -> Result<()> {
    let opened = edited::open(&args.model, &args.cpu, Room::default())?;
    let tokenizer = opened.tokenizer.as_deref();
    let config = &opened.checkpoint.config;
    let Prompt { ids, split } = first_pass(args, opened.reads(), config.context, config.vocab)?;
    opened.say_unread();
    let (model, device) = opened.model?;
    input::recognise(&opened.checkpoint, &args.model, &model);
    let sample = if args.full { Sample::All } else { Sample::Seeded(SEED) };
    let plan = Plan { ids, split, tokenizer, sample };
    let progress = Progress::new(check::layers(model.config.layers), "layers");
    let shown = |what: &'static str, done: usize| {
        progress.say(what.into());
        progress.set(done);
    };
    let processor = device::reference(device, &opened.checkpoint)?;
    let report = check::run(&model, processor.as_ref(), &plan, &shown)?;
    progress.finish();
    let printed = Printed { report: &report, card: &model.card(), kernel: model.backend.kernel_name() };
    match args.format {
        CheckFormat::Table => printed.table(),
        CheckFormat::Json => printed.json(),
    }
    .or_else(|error| match error.kind() {
        // The reader closed the pipe.
        std::io::ErrorKind::BrokenPipe => Ok(()),
        _ => Err(Error::output("the report cannot be written").at("standard output").found(error)),
    })?;
    match report.checks.iter().find(|check| !check.ok) {
        None => Ok(()),
        Some(failed) => {
            let place = failed.at.as_ref().map_or_else(String::new, ToString::to_string);
            Err(Error::failed(format!("the check `{}` fails", failed.name))
                .at(place)
                .expected(report::allowed(failed))
                .found(report::worst(failed))
                .next(
                    "look at this address with --at, and report the error with the model and the processor",
                ))
        }
    }
}

/// The given prompt, or the first tokens of a text, or random ids if there is no tokenizer.
fn first_pass(
    args: &CheckArgs,
    tokenizer: Result<&dyn Tokenizer>,
    context: usize,
    vocab: usize,
) -> Result<Prompt> {
    if let Some(list) = &args.ids {
        return Ok(Prompt { ids: prompt::read_ids(list)?, split: None });
    }
    if let Some(text) = &args.prompt {
        let ids = prompt::encode(&prompt::only(text)?, tokenizer, context)?;
        return Ok(Prompt { split: Some(ids.clone()), ids });
    }
    let tokens = context.saturating_sub(DECODES).clamp(1, TOKENS);
    // Encoding fails if the vocabulary lacks letters of the text.
    let split = tokenizer.ok().and_then(|tokenizer| tokenizer.encode(TEXT).ok());
    let ids = split.as_ref().map(|ids| ids.iter().copied().take(tokens).collect());
    Ok(Prompt { ids: ids.unwrap_or_else(|| check::seeded_ids(vocab, tokens, SEED)), split })
}
