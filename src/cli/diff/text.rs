//! The result of a comparison as lines to read.

use std::collections::BTreeMap;
use std::io::{Result, Write};

use serde_json::Value;

use super::super::output;
use llama_trace_core::config::Precision;
use llama_trace_core::trace::Stage;
use llama_trace_judge::diff::tolerance::base;
use llama_trace_judge::diff::{About, Growth, Kind, Line, Misshapen, Report, whole};

/// Maximum number of layers in the table of growth, for each sequence.
const ROWS: usize = 48;

/// Maximum number of missing stages that are named.
const NAMED: usize = 8;

/// Prints the report.
pub(super) fn print(report: &Report, a: &About, b: &About) -> Result<()> {
    let mut out = output::Lines::text();
    for (letter, run) in [("A", a), ("B", b)] {
        let named = run.card.as_ref().map(|card| card.name.as_str()).filter(|name| !name.is_empty());
        let model = named.unwrap_or("an unnamed model,");
        let precision = run.precision.map_or("unknown precision", Precision::name);
        writeln!(out, "{letter}  {}  {model} {precision}", run.name)?;
    }
    let judged =
        if report.measured { "tolerances measured with the model" } else { "tolerances from a table" };
    let unjudged = match report.unjudged {
        0 => String::new(),
        count => format!(", {count} only in B"),
    };
    let (compared, missing_of_b) = (report.lines.len(), report.missing.len());
    let stages = if compared == 1 { "stage" } else { "stages" };
    let other_shape = match report.misshapen.len() {
        0 => String::new(),
        count => format!(", {count} of another shape"),
    };
    writeln!(out, "{compared} {stages} compared, {missing_of_b} missing{other_shape}{unjudged}; {judged}")?;
    if report.samples {
        writeln!(
            out,
            "for large matrices, only sampled rows and rows that stand out were computed (--full computes all rows)"
        )?;
    }
    verdict(&mut out, report)?;
    missing(&mut out, report)?;
    misshapen(&mut out, report)?;
    growth(&mut out, report)?;
    if !report.measured {
        table(&mut out, report)?;
    }
    Ok(())
}

fn verdict(out: &mut impl Write, report: &Report) -> Result<()> {
    writeln!(out)?;
    let Some(first) = &report.first else {
        let smallest = report.smallest_tolerance().map_or_else(|| "none".into(), short);
        let unread = report.uncompared().map_or_else(String::new, |what| format!(", except for {what}"));
        let of = if report.measured { " for the error that a stage adds" } else { "" };
        writeln!(
            out,
            "The same, within the tolerance{unread}; the smallest tolerance that passes: {smallest}{of}"
        )?;
        return report.notes.iter().try_for_each(|note| writeln!(out, "  {note}"));
    };
    writeln!(out, "First difference: {}  {}", first.kind.name(), first.address)?;
    let [ours, theirs] = first.told();
    writeln!(out, "  A      {ours}")?;
    writeln!(out, "  B      {theirs}")?;
    let is_stage = first.kind == Kind::Stage;
    // Ids have no distance, so no difference is printed for them.
    if let (true, Value::Number(ours), Value::Number(theirs)) = (is_stage, &first.ours, &first.theirs)
        && let (Some(ours), Some(theirs)) = (ours.as_f64(), theirs.as_f64())
    {
        writeln!(out, "  A − B  {}", short(ours - theirs))?;
    }
    match (first.error, first.tolerance) {
        (Some(rows), _) if !is_stage => {
            writeln!(out, "  in     {rows} {}", if rows == 1.0 { "place" } else { "places" })?;
        }
        (Some(error), Some(tolerance)) => {
            writeln!(out, "  error  {} of {} allowed", short(error), short(tolerance))?;
        }
        _ => {}
    }
    let line = first.site.and_then(|site| report.lines.iter().find(|line| line.site == site));
    if let Some(Line { apart, inherited: Some(inherited), .. }) = line {
        writeln!(
            out,
            "  distance from A {}, of which {} came with the inputs",
            short(*apart),
            short(*inherited)
        )?;
    }
    report.notes.iter().try_for_each(|note| writeln!(out, "  {note}"))?;
    for one in &report.diagnosis {
        let form = if one.form.is_empty() { String::new() } else { format!("  ({})", one.form) };
        let (before, after) = (short(one.before), short(one.after));
        let what = if report.written_alone { "B's file looks like" } else { "looks like" };
        writeln!(out, "  {what} {:<22} error {before} → {after}{form}", one.name)?;
    }
    Ok(())
}

/// Prints the names of the missing stages, and in how many places each is missing.
fn missing(out: &mut impl Write, report: &Report) -> Result<()> {
    let mut places: BTreeMap<Stage, usize> = BTreeMap::new();
    let (known, others): (Vec<_>, Vec<_>) = report.missing.iter().partition(|missing| missing.why.is_some());
    others.iter().for_each(|missing| *places.entry(missing.site.stage).or_default() += 1);
    if !places.is_empty() {
        let names = places.iter().take(NAMED).map(|(stage, count)| format!("{stage} ×{count}"));
        let more = places.len().saturating_sub(NAMED);
        let more =
            if more > 0 { format!(", and {more} more (--format json has all)") } else { String::new() };
        writeln!(out, "\nMissing in B: {}{more}", names.collect::<Vec<_>>().join(", "))?;
    }
    for site in report.absent.iter().take(ROWS) {
        writeln!(out, "Not in B: {site} and the rest of this {}", whole(*site))?;
    }
    for missing in known.iter().take(ROWS) {
        let why = missing.why.as_deref().unwrap_or_default();
        writeln!(out, "Cannot be read: {}: {why}", missing.site)?;
    }
    if let more @ 1.. = known.len().saturating_sub(ROWS) {
        writeln!(out, "and {more} more (--format json has all)")?;
    }
    Ok(())
}

/// Prints the stages that have another shape, each with its first place. A place that the verdict names is left out.
fn misshapen(out: &mut impl Write, report: &Report) -> Result<()> {
    let told = report.first.as_ref().and_then(|first| first.site);
    let mut stages: BTreeMap<Stage, Vec<&Misshapen>> = BTreeMap::new();
    for one in report.misshapen.iter().filter(|one| Some(one.site) != told) {
        stages.entry(one.site.stage).or_default().push(one);
    }
    for (stage, all) in &stages {
        let [first, more @ ..] = &all[..] else { continue };
        let more =
            if more.is_empty() { String::new() } else { format!("; and {} more of {stage}", more.len()) };
        writeln!(out, "Cannot be compared: {}: {}{more}", first.site, first.why)?;
    }
    Ok(())
}

/// Prints how the error grows: one row for each layer.
fn growth(out: &mut impl Write, report: &Report) -> Result<()> {
    let layers = report.growth();
    if layers.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nHow far B is from A, ‖B − A‖ / ‖A‖, after each layer and at the end:")?;
    writeln!(out, "{:<10}{:>15}{:>15}  worst stage", "layer", "attn_residual", "ffn_residual")?;
    let of = |growth: &Growth| (growth.site.run, growth.site.sequence);
    for layers in layers.chunk_by(|a, b| of(a) == of(b)) {
        for growth in layers.iter().take(ROWS) {
            let [attention, ffn] = [growth.attn_residual, growth.ffn_residual]
                .map(|apart| apart.map_or_else(|| "-".into(), short));
            let (place, worst) = (growth.place(), growth.worst_told(short));
            let mark = if growth.differs { "  <-- differs" } else { "" };
            writeln!(out, "{place:<10}{attention:>15}{ffn:>15}  {worst}{mark}")?;
        }
        if let more @ 1.. = layers.len().saturating_sub(ROWS) {
            writeln!(out, "and {more} more")?;
        }
    }
    Ok(())
}

/// Prints the tolerances of the stages that were compared.
fn table(out: &mut impl Write, report: &Report) -> Result<()> {
    let mut stages: Vec<Stage> = report.lines.iter().map(|line| line.site.stage).collect();
    stages.sort_unstable();
    stages.dedup();
    writeln!(
        out,
        "\nTolerances at layer 0; at layer L, they are √(L + 1) times as large (with --model, they are measured):"
    )?;
    writeln!(out, "{:<18}{:>10}{:>10}{:>10}", "stage", "f32", "bf16", "q8")?;
    for stage in stages {
        let of = |precision| short(base(stage, precision));
        let (f32, bf16) = (of(Precision::F32), of(Precision::Bf16));
        writeln!(out, "{:<18}{f32:>10}{bf16:>10}{:>10}", stage.name(), of(Precision::Q8 { group: 32 }))?;
    }
    Ok(())
}

/// A number that is short enough for a column.
pub(super) fn short(x: f64) -> String {
    match x.abs() {
        0.0 => "0".into(),
        _ if x.is_nan() => "nan".into(),
        size if !size.is_finite() => if x > 0.0 { "inf" } else { "-inf" }.into(),
        size if (0.001..1e6).contains(&size) => format!("{}", (x * 1e4).round() / 1e4),
        _ => format!("{x:.1e}"),
    }
}
