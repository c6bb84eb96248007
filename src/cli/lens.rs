//! `llama-trace lens`: the model's answer after each layer.

use std::io::Write;

use serde_json::{Value, json};

use super::asked::Asked;
use super::progress::Progress;
use super::{LensArgs, LogFormat, NOT_A_NUMBER, output, tell};
use llama_trace_core::error::Result;
use llama_trace_core::trace::lens::{Candidate, LensAt, Reading};
use llama_trace_core::trace::select::numbers;
use llama_trace_core::trace::{Site, Stage};
use llama_trace_judge::diff::number;

/// Runs the command.
pub(super) fn run(args: &LensArgs) -> Result<()> {
    let mut asked = Asked::open_itself(&args.trace, &args.run)?;
    let positions = asked.positions();
    let chosen = match &args.t {
        Some(list) => numbers("t", list, positions, |_| "give a larger -n to read more tokens".into())?,
        None => (0..positions).collect(),
    };
    let layers = asked.outline().card.sizes().layers;
    let bar = Progress::new(chosen.len() * layers, "residuals");
    let mut lenses = Vec::new();
    for t in chosen {
        let readings = (0..layers).map(|layer| {
            let reading = read(&mut asked, t, layer, args.top);
            bar.add(1);
            reading
        });
        lenses.push((t, readings.collect::<Result<Vec<_>>>()?));
    }
    bar.finish();
    let printed = match args.format {
        LogFormat::Text => print_text(&asked, &lenses),
        LogFormat::Json => print_json(&asked, &lenses),
    };
    if lenses.iter().flat_map(|(_, readings)| readings).any(|reading| reading.answer.logit.is_nan()) {
        tell(NOT_A_NUMBER);
    }
    output::end(printed.map_err(output::Failure::from))
}

fn read(asked: &mut Asked, t: usize, layer: usize, top: usize) -> Result<Reading> {
    let (pass, row, _) = asked.position(t).unwrap_or_else(|| unreachable!("the text has no position {t}"));
    let site = Site::layer(pass, layer, Stage::FfnResidual);
    let readings = asked.ask(&LensAt { site, tokens: row..row + 1, top })?;
    Ok(readings.into_iter().next().unwrap_or_else(|| unreachable!("the answer has no reading of the token")))
}

/// The first layer after which the answer stays the likeliest token.
fn leads_from(readings: &[Reading]) -> usize {
    readings.len() - readings.iter().rev().take_while(|reading| reading.answer.rank == 1).count()
}

type Lenses = [(usize, Vec<Reading>)];

fn print_text(asked: &Asked, lenses: &Lenses) -> std::io::Result<()> {
    let mut out = output::Lines::text();
    for (t, readings) in lenses {
        let Some((.., token)) = asked.position(*t) else { continue };
        let Some(last) = readings.last() else { continue };
        let (answer, text) = (last.answer, asked.text(last.answer.id));
        writeln!(
            out,
            "t {t} {:?}: the answer is {text:?} ({:.4}); this answer leads from layer {} on",
            token.text,
            answer.prob,
            leads_from(readings)
        )?;
        let width = (readings.len() - 1).to_string().len();
        for (layer, Reading { top, answer }) in readings.iter().enumerate() {
            let top: Vec<_> =
                top.iter().map(|one| format!("{:?} {:.4}", asked.text(one.id), one.prob)).collect();
            writeln!(
                out,
                "  layer {layer:>width$}  {}  | {text:?} has rank {}, {:.4}",
                top.join("  "),
                answer.rank,
                answer.prob
            )?;
        }
    }
    Ok(())
}

fn print_json(asked: &Asked, lenses: &Lenses) -> std::io::Result<()> {
    let token = |one: &Candidate| json!({"id": one.id, "text": asked.text(one.id), "prob": number(one.prob.into()), "rank": one.rank});
    let rows = lenses.iter().flat_map(|(t, readings)| {
        readings.iter().enumerate().map(move |(layer, reading)| {
            let top: Vec<Value> = reading.top.iter().map(token).collect();
            json!({"t": t, "layer": layer, "top": top, "answer": token(&reading.answer)})
        })
    });
    output::array(rows)
}
