//! `llama-trace patch`: the places of a run that carry the answer.

mod picture;
mod print;

use std::sync::Arc;

use super::device::Room;
use super::edits;
use super::input;
use super::progress::Progress;
use super::prompt::{self, Prompt};
use super::traced::DiskFiles;
use super::{MetricName, NOT_A_NUMBER, PatchArgs, PatchFormat, PatchPart, output, tell};
use llama_trace_core::error::{Error, Result, shortened};
use llama_trace_core::trace::{PassDims, Sizes, Stage, TokenLabel};
use llama_trace_engine::model::Model;
use llama_trace_engine::patch::{Measure, Metric, PatchMap, Patcher, Place, most_likely};
use llama_trace_formats::tokenizer::Tokenizer;
use llama_trace_runs::begin::edits::{Reading, with};

/// The two prompts, their answers, and the effect of each place.
struct Report {
    metric: MetricName,
    /// The tokens of the clean prompt and of the corrupted one.
    tokens: [Vec<TokenLabel>; 2],
    /// The most likely next token of each run.
    answers: [TokenLabel; 2],
    /// The answer and the wrong token that the metric compares.
    compared: [TokenLabel; 2],
    measure: Measure,
    maps: Vec<(PatchPart, Vec<Effect>)>,
    sizes: Sizes,
    /// Number of places, and the work as a number of passes.
    places: usize,
    passes: f64,
}

/// The effect of a place.
#[derive(Clone, Copy)]
struct Effect {
    place: Place,
    /// The value of the metric in the patched run.
    value: f64,
    /// The direct effect on the difference of the two logits, for a neuron.
    direct: Option<f64>,
}

/// Runs the command.
pub(super) fn run(args: &PatchArgs) -> Result<()> {
    let report = input::on_a_computing_thread(|| measured(args))?;
    if report.maps.iter().flat_map(|(_, effects)| effects).any(|effect| effect.value.is_nan()) {
        tell(NOT_A_NUMBER);
    }
    let printed = match args.format {
        PatchFormat::Text => print::text(&report),
        PatchFormat::Json => print::json(&report),
        PatchFormat::Svg => picture::svg(&report)?,
    };
    output::end(printed.map_err(output::Failure::from))
}

fn measured(args: &PatchArgs) -> Result<Report> {
    let opened = input::open_for(&args.model, &args.cpu, Room::default())?;
    let context = opened.checkpoint.config.context;
    let read = |text: &Option<String>, ids: &Option<String>, place: &str| {
        let read = match (text, ids) {
            (Some(text), _) => {
                let text = prompt::only(text)?;
                prompt::encode(&text, opened.reads(), context).map(|ids| (Some(text), ids))
            }
            (None, ids) => prompt::read_ids(ids.as_deref().unwrap_or_default()).map(|ids| (None, ids)),
        };
        let (text, ids) = read.map_err(|error| match text.as_deref() {
            Some(text) if text.is_empty() || opened.reads().is_err() => error
                .at(place)
                .next("give a text, a tokenizer, or token ids with --clean-ids and --corrupted-ids"),
            _ => error.at(place),
        })?;
        Ok(Prompt { text, ids, place: Some(place.to_owned()) })
    };
    let prompts = [
        read(&args.clean, &args.clean_ids, "the clean prompt")?,
        read(&args.corrupted, &args.corrupted_ids, "the corrupted prompt")?,
    ];
    opened.say_unread();
    let (model, _) = opened.model?;
    input::recognise(&opened.checkpoint, &args.model, &model);
    let tokenizer = opened.tokenizer;
    let label = |id: u32| TokenLabel {
        id,
        text: tokenizer.as_ref().map_or_else(|| format!("#{id}"), |tokenizer| tokenizer.label(id)),
    };
    let tokens = prompts.each_ref().map(|prompt| prompt.ids.iter().map(|&id| label(id)).collect::<Vec<_>>());
    check_lengths(&tokens)?;
    let model = with_edits(args, &model, tokenizer.as_ref(), &prompts)?;

    let neurons = model.sizes().neurons();
    let stage = |part: &PatchPart| part.map().map_or(neurons, PatchMap::stage);
    let stages: Vec<Stage> = args.parts.iter().map(stage).collect();
    let [clean, corrupted] = &prompts;
    let mut patcher = Patcher::new(&model, &corrupted.ids, Some(&clean.ids), &stages)?;
    // Both runs are done.
    edits::report(&model, tokenizer.as_deref(), prompts.first(), None)?;
    let answers = [patcher.donor_logits(), patcher.logits()].map(most_likely);
    let token = |given: &Option<String>, default: u32| match given {
        Some(given) => token_id(given, tokenizer.as_deref(), model.config.vocab),
        None => Ok(default),
    };
    let ids = (token(&args.answer, answers[0])?, token(&args.wrong, answers[1])?);
    let measure = Measure::new(args.metric.metric(), ids, patcher.donor_logits(), patcher.logits())?;

    let sizes = model.sizes();
    let mut maps: Vec<(PatchPart, Vec<Effect>)> = Vec::new();
    for &part in &args.parts {
        if maps.iter().any(|(other, _)| *other == part) {
            continue;
        }
        let effects = match part.map() {
            None => {
                let mut effects: Vec<_> = (patcher.direct(neurons, ids)?.into_iter())
                    .map(|(place, direct)| Effect { place, value: f64::NAN, direct: Some(direct) })
                    .collect();
                let strength = |effect: &Effect| effect.direct.map_or(0.0, f64::abs);
                effects.sort_by(|a, b| strength(b).total_cmp(&strength(a)));
                effects.truncate(args.top);
                effects
            }
            Some(map) => map
                .places(&sizes, corrupted.ids.len())
                .map(|place| Effect { place, value: f64::NAN, direct: None })
                .collect(),
        };
        maps.push((part, effects));
    }
    // All parts are run together, so that places of one layer share passes.
    let mut effects: Vec<&mut Effect> = maps.iter_mut().flat_map(|(_, effects)| effects).collect();
    let places: Vec<Place> = effects.iter().map(|effect| effect.place).collect();
    let bar = Progress::new(places.len(), "places");
    patcher.run(&places, &mut |index, logits| {
        effects[index].value = measure.value(logits);
        bar.add(1);
        Ok(())
    })?;
    bar.finish();
    let (answers, compared) = (answers.map(label), [ids.0, ids.1].map(label));
    let (places, passes) = (places.len(), patcher.passes());
    Ok(Report { metric: args.metric, tokens, answers, compared, measure, maps, sizes, places, passes })
}

/// The model with the edits of the options. The clean run is sequence 0, the corrupted run is sequence 1.
fn with_edits(
    args: &PatchArgs,
    model: &Model,
    tokenizer: Option<&Arc<dyn Tokenizer>>,
    prompts: &[Prompt],
) -> Result<Model> {
    let dims = |(sequence, prompt): (usize, &Prompt)| {
        (sequence, PassDims { pass: 0, start: 0, tokens: prompt.ids.len(), ..PassDims::default() })
    };
    let passes: Vec<_> = prompts.iter().enumerate().map(dims).collect();
    let (args, cpu) = (&args.model, &args.cpu);
    let files = &DiskFiles::new(args, cpu);
    let reading = Reading { files, tokenizer, prompts, sampler: None, chunk: None, passes: &passes, most: 1 };
    with(model, edits::list(args)?, &reading)
}

/// The maximum number of tokens of a prompt that a message lists.
const LISTED: usize = 24;

/// Checks that the prompts have equally many tokens. The message lists them.
fn check_lengths([clean, corrupted]: &[Vec<TokenLabel>; 2]) -> Result<()> {
    if clean.len() == corrupted.len() {
        return Ok(());
    }
    let list = |tokens: &[TokenLabel]| {
        let texts: Vec<_> = tokens.iter().take(LISTED).map(|token| format!("{:?}", token.text)).collect();
        let more = if tokens.len() > LISTED { " …" } else { "" };
        format!("{} tokens, {}{more}", tokens.len(), texts.join(" "))
    };
    Err(Error::prompt("the two prompts do not have the same number of tokens")
        .expected("a token of one prompt for each token of the other")
        .found(format!("clean: {}; corrupted: {}", list(clean), list(corrupted)))
        .next("change the words in which the prompts differ; `llama-trace tokenize TEXT` shows the tokens"))
}

/// The token of `--answer` or `--wrong`: an id, or a text that is one token.
fn token_id(given: &str, tokenizer: Option<&dyn Tokenizer>, vocab: usize) -> Result<u32> {
    let wrong = |found: String| {
        Error::usage(format!("{:?} is not a token of this model", shortened(given)))
            .expected(format!("an id from 0 to {}, or a text that is one token", vocab - 1))
            .found(found)
            .next("`llama-trace tokenize TEXT` shows the tokens of a text and their ids")
    };
    if !given.is_empty() && given.bytes().all(|byte| byte.is_ascii_digit()) {
        let id = given.parse().ok().filter(|&id: &u32| (id as usize) < vocab);
        return id.ok_or_else(|| wrong("an id outside the vocabulary".into()));
    }
    let ids = tokenizer.ok_or_else(prompt::no_tokenizer)?.encode_plain(given)?;
    match ids[..] {
        [id] if (id as usize) < vocab => Ok(id),
        _ => Err(wrong(format!("{} tokens: {}", ids.len(), shortened(&format!("{ids:?}"))))),
    }
}

impl MetricName {
    fn metric(self) -> Metric {
        match self {
            Self::LogitDiff => Metric::LogitDiff,
            Self::Prob => Metric::Prob,
            Self::Kl => Metric::Kl,
        }
    }
}

impl PatchPart {
    /// Its map; none for the list of neurons.
    fn map(self) -> Option<PatchMap> {
        match self {
            Self::Residual => Some(PatchMap::Residual),
            Self::Attn => Some(PatchMap::Attn),
            Self::Ffn => Some(PatchMap::Ffn),
            Self::Heads => Some(PatchMap::Heads),
            Self::Neurons => None,
        }
    }

    /// A line that says what is patched.
    fn title(self) -> &'static str {
        self.map().map_or(
            "neurons: one neuron (ffn_hidden), for all tokens; those with the largest direct effect",
            PatchMap::title,
        )
    }
}
