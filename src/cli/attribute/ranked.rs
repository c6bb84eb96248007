//! `attribute --parts`: heads and neurons, ranked by their direct or by their total effect on a difference of logits.

use std::io::Write;

use serde_json::{Value, json};

use crate::cli::edited;
use crate::cli::input;
use crate::cli::progress::Progress;
use crate::cli::{AttributeArgs, EffectName, LogFormat, RankedPart, output};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::{Sizes, Stage, TokenLabel};
use llama_trace_engine::patch::{Patcher, Place};
use llama_trace_judge::diff::number;

/// A head or a neuron.
struct Ranked {
    place: Place,
    /// What it adds to the difference itself.
    direct: f64,
    /// The difference with the part minus the difference without it; `None` if it is not listed.
    total: Option<f64>,
}

/// The tokens, their difference, and the parts in order.
struct Found {
    compared: [TokenLabel; 2],
    difference: f64,
    parts: Vec<Ranked>,
    passes: f64,
}

/// Runs the command.
pub(super) fn run(args: &AttributeArgs) -> Result<()> {
    let found = input::on_a_computing_thread(|| find(args))?;
    let printed = match args.format {
        LogFormat::Text => print_text(args, &found),
        LogFormat::Json => print_json(&found),
    };
    output::end(printed.map_err(output::Failure::from))
}

fn find(args: &AttributeArgs) -> Result<Found> {
    let run = edited::run(&args.run, 1)?;
    let [prompt] = &run.prompts[..] else {
        return Err(Error::usage("this command takes only one prompt")
            .found(format!("{} prompts", run.prompts.len()))
            .next("give one prompt"));
    };
    let last = prompt.ids.len().saturating_sub(1);
    let t = args.t.unwrap_or(last);
    if t > last {
        return Err(Error::usage(format!("the prompt has no token {t}"))
            .expected(format!("--t from 0 to {last}"))
            .found(t)
            .next("with --parts, the token is one of the prompt"));
    }
    let sizes = run.model.sizes();
    let stages: Vec<Stage> = args.parts.iter().map(|part| part.stage(&sizes)).collect();
    let ids = prompt.ids.get(..=t).unwrap_or_default();
    let mut patcher = Patcher::new(&run.model, ids, None, &stages)?;
    run.say_edits()?;
    let compared = compared(args, patcher.logits())?;
    let plain = difference(patcher.logits(), compared);
    let mut parts: Vec<Ranked> = Vec::new();
    for stage in stages {
        if parts.iter().all(|part| part.place.stage != stage) {
            // A patch with zeros takes away what the part adds.
            let direct = patcher.direct(stage, compared)?.into_iter();
            parts.extend(direct.map(|(place, effect)| Ranked { place, direct: 0.0 - effect, total: None }));
        }
    }
    if args.by == EffectName::Direct {
        parts.sort_by(|a, b| b.direct.abs().total_cmp(&a.direct.abs()));
        parts.truncate(args.top);
    }
    let places: Vec<Place> = parts.iter().map(|part| part.place).collect();
    let bar = Progress::new(places.len(), "parts");
    patcher.run(&places, &mut |index, logits| {
        parts[index].total = Some(plain - difference(logits, compared));
        bar.add(1);
        Ok(())
    })?;
    bar.finish();
    if args.by == EffectName::Total {
        let size = |part: &Ranked| part.total.map_or(0.0, f64::abs);
        parts.sort_by(|a, b| size(b).total_cmp(&size(a)));
        parts.truncate(args.top);
    }
    let compared = [compared.0, compared.1].map(|id| run.label(id));
    Ok(Found { compared, difference: plain, parts, passes: patcher.passes() })
}

/// The ids of the options, or the most likely ones.
fn compared(args: &AttributeArgs, logits: &[f32]) -> Result<(u32, u32)> {
    for id in [args.token, args.against].into_iter().flatten() {
        if id as usize >= logits.len() {
            return Err(Error::usage(format!("this vocabulary has no token {id}"))
                .expected(format!("an id from 0 to {}", logits.len() - 1))
                .next("`llama-trace tokenize TEXT` prints the ids of a text"));
        }
    }
    let likeliest = |but: Option<u32>| {
        let ids = (0..logits.len() as u32).filter(|&id| Some(id) != but);
        ids.max_by(|&a, &b| logits[a as usize].total_cmp(&logits[b as usize]).then(b.cmp(&a))).unwrap_or(0)
    };
    let id = args.token.unwrap_or_else(|| likeliest(args.against));
    let against = args.against.unwrap_or_else(|| likeliest(Some(id)));
    match id == against {
        true => Err(Error::usage("a token cannot be compared with itself")
            .expected("two different ids")
            .found(format!("{id} twice"))),
        false => Ok((id, against)),
    }
}

fn difference(logits: &[f32], (id, against): (u32, u32)) -> f64 {
    f64::from(logits[id as usize]) - f64::from(logits[against as usize])
}

/// The name of a part, as `--without` reads it.
fn name(place: &Place) -> String {
    let kind = if place.stage == Stage::AttnHeads { 'h' } else { 'n' };
    format!("L{}/{kind}{}", place.layer.unwrap_or(0), place.unit.unwrap_or(0))
}

fn print_text(args: &AttributeArgs, found: &Found) -> std::io::Result<()> {
    let mut out = output::Lines::text();
    let [one, other] = found.compared.each_ref().map(|token| format!("{:?}", token.text));
    writeln!(out, "logit of {one} − logit of {other} = {:.6}", found.difference)?;
    let by = if args.by == EffectName::Direct { "direct" } else { "total" };
    writeln!(out, "by {by} effect; direct: what the part itself adds; total: what is lost without it")?;
    writeln!(out, "  {:<12} {:>12} {:>12}", "part", "direct", "total")?;
    for part in &found.parts {
        let total = part.total.unwrap_or(f64::NAN);
        writeln!(out, "  {:<12} {:>12.6} {total:>12.6}", name(&part.place), part.direct)?;
    }
    writeln!(out, "the work of {:.1} forward passes over the prompt", found.passes)
}

fn print_json(found: &Found) -> std::io::Result<()> {
    let parts: Vec<Value> = (found.parts.iter())
        .map(|part| {
            let name = name(&part.place);
            json!({"name": name, "direct": number(part.direct), "total": part.total.map(number)})
        })
        .collect();
    let [token, against] = found.compared.each_ref().map(|token| token.id);
    let object = json!({
        "token": token, "against": against, "difference": number(found.difference),
        "parts": parts, "passes": found.passes,
    });
    writeln!(output::Lines::json(), "{object}")
}

impl RankedPart {
    /// The stage that has its values.
    fn stage(self, sizes: &Sizes) -> Stage {
        match self {
            Self::Heads => Stage::AttnHeads,
            Self::Neurons => sizes.neurons(),
        }
    }
}
