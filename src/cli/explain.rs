//! `llama-trace explain`: where a number comes from.

use std::io::Write;

use serde_json::{Value, json};

use super::asked::Asked;
use super::{ExplainArgs, LogFormat, RunArgs, output};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::explanation::{Explanation, ExplanationAt, From, Operand, Term, Together};
use llama_trace_core::trace::select::{absent, ask_for_pass, past_the_last};
use llama_trace_core::trace::{Address, Axis, ModelCard, Outline, Run, Site, Step, Subject};
use llama_trace_judge::diff;

/// Width of the longest bar, in columns.
const BAR: f64 = 20.0;

/// Runs the command.
pub(super) fn run(args: &ExplainArgs) -> Result<()> {
    let subject = subject_of(&args.address)?;
    // Samples enough tokens for the pass in the address.
    let pass = args.address.pass.unwrap_or(0);
    let tokens = args.run.tokens.unwrap_or(pass.saturating_add(1));
    let number = args.address.run_number(Run::ITSELF).ok_or_else(|| {
        wrong(&args.address, "there is no run of this name").found("r0, and the branches r1, r2 … of a trace")
    })?;
    let place = (number, args.address.sequence.unwrap_or(0));
    let run = RunArgs { tokens: Some(tokens), ..args.run.clone() };
    let mut asked = Asked::open(&args.trace, &run, place)?;
    let more = |pass: usize| match args.trace.trace {
        Some(_) => "choose among these, or record more tokens".to_owned(),
        None if tokens > pass => "choose among these: the text ended with the last pass".to_owned(),
        None => ask_for_pass(pass),
    };
    let step = step_of(subject, &args.address, &asked.outline().card)?;
    let step = step.in_model(&asked.outline().card.sizes(), args.address.layer);
    let (site, at) = find(&args.address, step, asked.outline(), more)?;
    let explanation = asked.ask(&ExplanationAt { site, at, terms: args.terms })?;
    // A view shows the numbers of its stage, so the explanation is that of the stage.
    let view = match step {
        Step::View(_) => {
            let card = &asked.outline().card;
            let formula = card.formula(step, asked.outline().passes[site.pass].dims, site.layer);
            Some((args.address.to_string(), formula))
        }
        Step::Stage(_) => None,
    };
    let printed = match args.format {
        LogFormat::Text => print_text(&asked, &explanation, view),
        LogFormat::Json => {
            let mut out = output::Lines::json();
            writeln!(out, "{}", object(&explanation, view))
        }
    };
    output::end(printed.map_err(output::Failure::from))
}

fn wrong(address: &Address, what: impl std::fmt::Display) -> Error {
    let named = match address.to_string() {
        empty if empty.is_empty() => "the address is empty".to_owned(),
        named => named,
    };
    Error::usage(format!("{named}: {what}"))
        .expected("the complete address of one number, as the tracer prints it: p0/L1/softmax[h=2,t=4,k=1]")
}

/// The stage, view or weight in the address.
fn subject_of(address: &Address) -> Result<Subject> {
    address.subject.ok_or_else(|| {
        wrong(address, "no stage is named").next("add a stage; `llama-trace log` lists the stages")
    })
}

/// The stage or view that is the subject of the address. A weight is refused, with the stage that reads it in the model
/// `card`.
fn step_of(subject: Subject, address: &Address, card: &ModelCard) -> Result<Step> {
    let weight = match subject {
        Subject::Step(step) => return Ok(step),
        Subject::Weight(weight) => weight,
    };
    let (what, next) = match weight.in_model(card) {
        Some(weight) => (
            format!("{weight} is a weight, which was learned and is not computed"),
            format!("explain a number of {}, which reads this weight", weight.read_by()),
        ),
        None => (
            format!("{weight} is the name of a weight, and the model {} has no such weight", card.name),
            "explain a number of a stage; `llama-trace log` lists the stages".to_owned(),
        ),
    };
    Err(wrong(address, what).next(next))
}

/// The error for missing coordinates. It gives the size of each axis.
fn lacks(address: &Address, missing: &[(Axis, usize)]) -> Error {
    let of = |(axis, length): &(Axis, usize)| format!("`{}` ({} of {length})", axis.index(), axis.name());
    let add = |(axis, length): &(Axis, usize)| match (axis.index(), length.saturating_sub(1)) {
        (letter, 0) => format!("{letter}=0"),
        (letter, last) => format!("{letter} (0 to {last})"),
    };
    let together = |all: Vec<String>| match all.split_last() {
        Some((last, before)) if !before.is_empty() => format!("{} and {last}", before.join(", ")),
        _ => all.concat(),
    };
    let verb = if missing.len() == 1 { "is" } else { "are" };
    let what = together(missing.iter().map(of).collect());
    wrong(address, format_args!("{what} {verb} missing"))
        .next(format!("add {}", together(missing.iter().map(add).collect())))
}

/// The site in the address, and the row-major index of the value.
fn find(
    address: &Address,
    step: Step,
    outline: &Outline,
    more: impl Fn(usize) -> String,
) -> Result<(Site, usize)> {
    let (run, sequence) = (outline.run, outline.sequence);
    if address.run_number(Run::ITSELF) != Some(run) || address.sequence.unwrap_or(0) != sequence {
        return Err(wrong(address, "there is only one run, r0, and it has only one sequence, s0")
            .next("leave the run and the sequence out of the address"));
    }
    let number = address.pass.unwrap_or(0);
    let Some(pass) = outline.passes.get(number) else {
        let last = outline.passes.len() - 1;
        return Err(wrong(address, format_args!("there is no pass {number}"))
            .found(format!("passes 0 to {last}"))
            .next(more(number)));
    };
    let (sizes, dims) = (outline.card.sizes(), pass.dims);
    let stage = step.stage();
    let layer = match (stage.in_layer(), address.layer) {
        (true, layer) => Some(layer.unwrap_or(0)),
        (false, None) => None,
        (false, Some(_)) => {
            return Err(wrong(address, format_args!("{step} is outside the layers", step = step.name()))
                .next(format!("leave the layer out: p{number}/{}", step.name())));
        }
    };
    if let Some(layer) = layer.filter(|&layer| layer >= sizes.layers) {
        let last = sizes.layers - 1;
        return Err(wrong(address, format_args!("there is no layer {layer}"))
            .found(format!("layers 0 to {last}"))
            .next(format!("give a layer from L0 to L{last}")));
    }
    if step.absence(&outline.card, dims, layer).is_some() {
        return Err(absent(step, &outline.card, dims, layer));
    }
    let named = address.axes(Subject::Step(step)).map_err(|what| wrong(address, what))?;
    let shape = sizes.shape(step.axes(), dims);
    let (mut index, mut missing) = (Vec::new(), Vec::new());
    for (at, (&axis, &length)) in step.axes().iter().zip(&shape).enumerate() {
        let given = named.iter().find(|(other, _)| *other == at).map(|(_, index)| *index);
        let Some(given) = given else {
            missing.push((axis, length));
            continue;
        };
        if given >= length {
            return Err(wrong(address, past_the_last(axis, given, length, dims))
                .next(format!("give `{}` a number that exists", axis.index())));
        }
        index.push(given);
    }
    if !missing.is_empty() {
        return Err(lacks(address, &missing));
    }
    let shape = sizes.shape(stage.axes(), dims);
    let index = step.index_in_stage(&index, &shape);
    let at = index.iter().zip(&shape).fold(0, |at, (index, length)| at * length + index);
    Ok((Site { run, sequence, layer, ..Site::once(number, stage) }, at))
}

/// The address of the view as it was given, and the formula of the view.
type OfView = Option<(String, String)>;

fn print_text(asked: &Asked, explanation: &Explanation, view: OfView) -> std::io::Result<()> {
    let mut out = output::Lines::text();
    let Explanation { address, value, formula, .. } = explanation;
    writeln!(out, "{address} = {}", number(*value))?;
    for line in texts(asked, address) {
        writeln!(out, "  {line}")?;
    }
    if let Some((asked, formula)) = view {
        writeln!(out, "  the same number as {asked}: {formula}")?;
    }
    writeln!(out, "\n  {formula}\n")?;
    print_terms(&mut out, explanation, &|address| texts(asked, address))
}

/// Prints the terms of an explanation, and the result. `texts` returns the tokens in an address.
pub(super) fn print_terms(
    out: &mut impl Write,
    explanation: &Explanation,
    texts: &dyn Fn(&Address) -> Vec<String>,
) -> std::io::Result<()> {
    let Explanation { value, result, notes, is_sum, terms, others, rest, splits, .. } = explanation;
    if *is_sum {
        writeln!(out, "  the terms, the largest first: █ adds, ░ subtracts")?;
    }
    let names: Vec<String> = terms.iter().map(|term| factors(texts, term)).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let largest = terms.iter().map(|term| term.product.abs()).fold(0.0, f64::max);
    for (at, (term, name)) in terms.iter().zip(&names).enumerate() {
        if let Some((_, what)) = others.filter(|(first, _)| *first == at) {
            writeln!(out, "  {what}:")?;
        }
        let pad = " ".repeat(width - name.chars().count());
        let share = if largest > 0.0 && largest.is_finite() { term.product.abs() / largest } else { 0.0 };
        let bar = if term.product < 0.0 { "░" } else { "█" }.repeat((share * BAR).round() as usize);
        let bar = if *is_sum { bar } else { String::new() };
        let sign = if *is_sum { "" } else { "→ " };
        let line = format!("  {name}{pad}  {sign}{:>13}  {bar}", number(term.product));
        writeln!(out, "{}", line.trim_end())?;
    }
    if rest.count > 0 {
        let name = match rest.count {
            1 => "the other term".to_owned(),
            count => format!("the other {count} terms"),
        };
        let pad = " ".repeat(width.saturating_sub(name.chars().count()));
        match rest.together {
            Together::Sum(sum) => writeln!(out, "  {name}{pad}  {:>13}", number(sum))?,
            Together::Largest(most) => writeln!(out, "  {name}{pad}  → {:>13} at most", number(most))?,
        }
    }
    for split in splits {
        writeln!(out, "\n  by {}", split.by)?;
        let width = split.parts.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        for (name, value) in &split.parts {
            writeln!(out, "  {name:<width$}  {:>13}", number(*value))?;
        }
    }
    if let Some(result) = result {
        writeln!(
            out,
            "\n  together {}, {} {}, difference {}",
            number(*result),
            explanation.value_name(),
            number(*value),
            number(explanation.difference())
        )?;
    }
    notes.iter().try_for_each(|note| writeln!(out, "  {note}"))
}

/// `attn_norm[t=4,d=7] 0.25 × wq[o=3,i=7] −1.5`, each with the text of its token.
fn factors(texts: &dyn Fn(&Address) -> Vec<String>, term: &Term) -> String {
    let operand = |operand: &Operand| {
        let value = number(operand.value);
        match &operand.from {
            From::Stage(address) => {
                let texts = texts(address);
                let texts = if texts.is_empty() { String::new() } else { format!(" ({})", texts.join(", ")) };
                format!("{address}{texts} {value}")
            }
            From::Weight(address) => format!("{address} {value}"),
            From::Constant(name) => format!("{name} {value}"),
        }
    };
    term.operands.iter().map(operand).collect::<Vec<_>>().join(" × ")
}

/// The tokens in an address: `token 4 " time"`.
fn texts(asked: &Asked, address: &Address) -> Vec<String> {
    let Some(subject) = address.subject else { return Vec::new() };
    let start = asked.outline().passes.get(address.pass.unwrap_or(0)).map_or(0, |pass| pass.dims.start);
    let text = |(letter, axis): (char, Axis)| {
        let (_, index) = *address.index.iter().find(|(other, _)| *other == letter)?;
        let text = match axis {
            Axis::Token => asked.position(start + index)?.2.text.clone(),
            Axis::Key => asked.position(index)?.2.text.clone(),
            Axis::Vocab => asked.text(u32::try_from(index).ok()?),
            _ => return None,
        };
        let name = if axis == Axis::Vocab { "id" } else { axis.name() };
        Some(format!("{name} {index} {text:?}"))
    };
    subject.letters().into_iter().filter_map(text).collect()
}

/// A number with the digits that a float32 needs.
pub(super) fn number(value: f64) -> String {
    let short = value as f32;
    match short.abs() {
        size if size != 0.0 && size.is_finite() && !(1e-4..1e9).contains(&size) => format!("{short:e}"),
        _ => short.to_string(),
    }
}

fn object(explanation: &Explanation, view: OfView) -> Value {
    let operand = |operand: &Operand| {
        let (key, name) = match &operand.from {
            From::Stage(address) => ("address", address.to_string()),
            From::Weight(address) => ("weight", address.to_string()),
            From::Constant(name) => ("constant", (*name).to_owned()),
        };
        json!({key: name, "value": diff::number(operand.value)})
    };
    let term = |term: &Term| {
        let operands: Vec<Value> = term.operands.iter().map(operand).collect();
        json!({"operands": operands, "product": diff::number(term.product)})
    };
    let Explanation { address, value, result, formula, notes, terms, others, rest, splits, .. } = explanation;
    let splits = splits.iter().map(|split| {
        let parts =
            split.parts.iter().map(|(name, value)| json!({"name": name, "value": diff::number(*value)}));
        json!({"by": split.by, "parts": parts.collect::<Vec<_>>()})
    });
    let together = match rest.together {
        Together::Sum(sum) => ("sum", sum),
        Together::Largest(most) => ("largest", most),
    };
    let view = view.map(|(asked, formula)| json!({"address": asked, "formula": formula}));
    json!({
        "address": address.to_string(),
        "view": view,
        "value": diff::number(*value),
        "recorded": explanation.recorded,
        "result": diff::number(result.unwrap_or(*value)),
        "difference": diff::number(explanation.difference()),
        "formula": formula,
        "notes": notes,
        "terms": terms.iter().map(term).collect::<Vec<_>>(),
        "others": others.map(|(first, what)| json!({"from": first, "what": what})),
        "splits": splits.collect::<Vec<_>>(),
        "rest": {"count": rest.count, together.0: diff::number(together.1)},
    })
}
