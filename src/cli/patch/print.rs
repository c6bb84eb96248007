//! The effects as text and as JSON.

use std::io::{Result, Write};

use clap::ValueEnum;
use clap::builder::PossibleValue;
use serde_json::{Value, json};

use super::{Effect, Report};
use crate::cli::{PatchPart, output};
use llama_trace_core::trace::TokenLabel;
use llama_trace_judge::diff::number;

/// Columns of a map that are printed side by side.
const ACROSS: usize = 16;
/// Places that are listed one by one.
const LARGEST: usize = 8;

pub(super) fn text(report: &Report) -> Result<()> {
    let mut out = output::Lines::text();
    for (name, tokens, answer) in [
        ("clean", &report.tokens[0], &report.answers[0]),
        ("corrupted", &report.tokens[1], &report.answers[1]),
    ] {
        let text: String = tokens.iter().map(|token| token.text.as_str()).collect();
        writeln!(out, "{name:<10} {text:?}: the answer is {:?}", answer.text)?;
    }
    let (corrupted, clean) = report.measure.ends();
    writeln!(out, "{}: {clean:.6} in the clean run, {corrupted:.6} in the corrupted run", metric(report))?;
    writeln!(out, "effect in %: 0 is the corrupted run, 100 is the clean run")?;
    for (part, effects) in &report.maps {
        writeln!(out, "\n{}", part.title())?;
        match part {
            PatchPart::Neurons => neurons(&mut out, report, effects)?,
            _ => map(&mut out, report, *part, effects)?,
        }
    }
    let places = report.places;
    writeln!(
        out,
        "\n{places} places, {:.1} forward passes over {} tokens",
        report.passes,
        report.tokens[0].len()
    )
}

/// The metric in words.
fn metric(report: &Report) -> String {
    let [answer, wrong] = &report.compared;
    match report.metric.to_possible_value().as_ref().map(PossibleValue::get_name) {
        Some("logit-diff") => format!("logit of {:?} − logit of {:?}", answer.text, wrong.text),
        Some("prob") => format!("probability of {:?}", answer.text),
        _ => "KL divergence from the clean run".to_owned(),
    }
}

fn map(out: &mut output::Lines, report: &Report, part: PatchPart, effects: &[Effect]) -> Result<()> {
    let columns = if part == PatchPart::Heads { report.sizes.heads } else { report.tokens[0].len() };
    let rows: Vec<&[Effect]> = effects.chunks(columns).collect();
    for first in (0..columns).step_by(ACROSS) {
        let across = first..columns.min(first + ACROSS);
        let heads: String = across.clone().map(|column| format!("{column:>5}")).collect();
        writeln!(out, "  {:<10}{heads}", if part == PatchPart::Heads { "head" } else { "t" })?;
        for row in &rows {
            let layer = row[0].place.layer.map_or("embedding".to_owned(), |layer| format!("L{layer}"));
            let cells: String = row[across.clone()].iter().map(|effect| percent(report, effect)).collect();
            writeln!(out, "  {layer:<10}{cells}")?;
        }
    }
    if part != PatchPart::Heads {
        for (t, (clean, corrupted)) in report.tokens[0].iter().zip(&report.tokens[1]).enumerate() {
            let other =
                if clean.id == corrupted.id { String::new() } else { format!(" | {:?}", corrupted.text) };
            writeln!(out, "  t {t} {:?}{other}", clean.text)?;
        }
    }
    let mut largest: Vec<&Effect> = effects.iter().collect();
    let size = |effect: &Effect| report.measure.effect(effect.value).abs();
    largest.sort_by(|a, b| size(b).total_cmp(&size(a)));
    writeln!(out, "  largest:")?;
    for effect in largest.iter().take(LARGEST) {
        writeln!(out, "  {} {}", percent(report, effect), effect.place.address())?;
    }
    Ok(())
}

fn neurons(out: &mut output::Lines, report: &Report, effects: &[Effect]) -> Result<()> {
    writeln!(out, "  effect   direct effect in logits")?;
    for effect in effects {
        let direct = effect.direct.unwrap_or(f64::NAN);
        writeln!(out, "  {}  {direct:>14.6}  {}", percent(report, effect), effect.place.address())?;
    }
    Ok(())
}

fn percent(report: &Report, effect: &Effect) -> String {
    // Adding 0 turns −0 into 0.
    format!("{:>5.0}", (100.0 * report.measure.effect(effect.value)).round() + 0.0)
}

pub(super) fn json(report: &Report) -> Result<()> {
    let token = |token: &TokenLabel| json!({"id": token.id, "text": token.text});
    let (corrupted, clean) = report.measure.ends();
    let run = |at: usize, value: f64| {
        let tokens: Vec<Value> = report.tokens[at].iter().map(token).collect();
        json!({"tokens": tokens, "answer": token(&report.answers[at]), "value": number(value)})
    };
    let name = |value: Option<PossibleValue>| value.map(|value| value.get_name().to_owned());
    let maps: Vec<Value> = (report.maps.iter())
        .map(|(part, effects)| {
            let cells: Vec<Value> = effects.iter().map(|effect| cell(report, effect)).collect();
            json!({"part": name(part.to_possible_value()), "places": cells})
        })
        .collect();
    let object = json!({
        "clean": run(0, clean), "corrupted": run(1, corrupted),
        "metric": name(report.metric.to_possible_value()),
        "answer": token(&report.compared[0]), "wrong": token(&report.compared[1]),
        "places": report.places, "passes": report.passes, "maps": maps,
    });
    writeln!(output::Lines::json(), "{object}")
}

fn cell(report: &Report, effect: &Effect) -> Value {
    let Effect { place, value, direct } = effect;
    let mut object = json!({
        "place": place.address().to_string(),
        "layer": place.layer,
        "value": number(*value),
        "effect": number(report.measure.effect(*value)),
    });
    let unit = if place.stage == llama_trace_core::trace::Stage::AttnHeads { "head" } else { "neuron" };
    for (name, index) in [("t", place.token), (unit, place.unit)] {
        if let Some(index) = index {
            object[name] = json!(index);
        }
    }
    if let Some(direct) = direct {
        object["direct"] = number(*direct);
    }
    object
}
