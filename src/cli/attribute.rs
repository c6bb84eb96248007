//! `llama-trace attribute`: the contribution of each part of the model to a logit.

mod ranked;

use std::io::Write;

use serde_json::{Value, json};

use super::asked::Asked;
use super::{AttributeArgs, LogFormat, output};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::lens::{Attribution, AttributionAt, Share};
use llama_trace_core::trace::{Site, Stage};
use llama_trace_judge::diff::number;

/// The number of parts that are listed one by one.
const NAMED: usize = 16;
/// Width of the longest bar, in columns.
const BAR: f64 = 30.0;

/// Runs the command.
pub(super) fn run(args: &AttributeArgs) -> Result<()> {
    if !args.parts.is_empty() {
        return ranked::run(args);
    }
    let mut asked = Asked::open_itself(&args.trace, &args.run)?;
    let last = asked.positions() - 1;
    let t = args.t.unwrap_or(last);
    let Some((pass, token, _)) = asked.position(t) else {
        return Err(Error::usage(format!("there is no token {t}"))
            .expected(format!("--t from 0 to {last}"))
            .found(t)
            .next("give a larger -n to read more tokens"));
    };
    // The default answer is the token that was sampled after token `t`. Only the last token of a pass has one.
    let drawn = || {
        let pass = &asked.outline().passes[pass];
        pass.sampled.as_ref().filter(|_| token + 1 == pass.tokens.len()).map(|drawn| drawn.id)
    };
    let id = args.token.or_else(drawn);
    let site = Site::once(pass, Stage::Logits);
    let attribution = asked.ask(&AttributionAt { site, token, id, against: args.against })?;
    let printed = match args.format {
        LogFormat::Text => print_text(&asked, t, &attribution),
        LogFormat::Json => print_json(&attribution),
    };
    output::end(printed.map_err(output::Failure::from))
}

fn print_text(asked: &Asked, t: usize, attribution: &Attribution) -> std::io::Result<()> {
    let mut out = output::Lines::text();
    let text = asked.position(t).map_or("", |(.., token)| &*token.text);
    let [one, other] = [attribution.id, attribution.against].map(|id| format!("{:?}", asked.text(id)));
    writeln!(out, "t {t} {text:?}: logit of {one} − logit of {other} = {:.6}", attribution.difference)?;
    let mut parts = attribution.parts.clone();
    parts.sort_by(|a, b| b.value.abs().total_cmp(&a.value.abs()));
    let largest = parts.first().map_or(0.0, |share| share.value.abs());
    let (named, rest) = parts.split_at(parts.len().min(NAMED));
    for Share { part, value } in named {
        let length = if largest > 0.0 { (value.abs() / largest * BAR).round() as usize } else { 0 };
        let bar = if *value < 0.0 { "░" } else { "█" }.repeat(length);
        writeln!(out, "  {part:<12} {value:>12.6}  {bar}")?;
    }
    if !rest.is_empty() {
        let sum: f64 = rest.iter().map(|share| share.value).sum();
        writeln!(out, "  {:<12} {sum:>12.6}  the other {} parts together", "rest", rest.len())?;
    }
    writeln!(out, "  {:<12} {:>12.6}  █ towards {one}, ░ towards {other}", "sum", attribution.sum())
}

fn print_json(attribution: &Attribution) -> std::io::Result<()> {
    let parts: Vec<Value> = attribution
        .parts
        .iter()
        .map(|share| json!({"name": share.part.to_string(), "value": number(share.value)}))
        .collect();
    let mut out = output::Lines::json();
    let Attribution { id, against, difference, .. } = attribution;
    let object = json!({
        "token": id, "against": against, "difference": number(*difference),
        "sum": number(attribution.sum()), "parts": parts,
    });
    writeln!(out, "{object}")
}
