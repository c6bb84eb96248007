//! The result of the checks, as a table and as JSON.

use std::io::{Result, Write};

use serde_json::{Value, json};
use unicode_width::UnicodeWidthStr;

use super::super::output;
use llama_trace_core::trace::ModelCard;
use llama_trace_judge::check::{Check, Report};

/// Width of a terminal, in columns.
const WIDTH: usize = 80;

/// A report, with the model and the CPU kernel that were checked.
pub(super) struct Printed<'a> {
    pub(super) report: &'a Report,
    pub(super) card: &'a ModelCard,
    pub(super) kernel: &'static str,
}

/// A number that fits into a column. Numbers of common size are written without an exponent.
fn short(x: f64) -> String {
    match x.abs() {
        0.0 => "0".into(),
        size if !size.is_finite() => if x.is_nan() { "nan" } else { "inf" }.into(),
        size if (0.01..1e6).contains(&size) => format!("{}", (x * 100.0).round() / 100.0),
        _ => format!("{x:.1e}"),
    }
}

/// The largest difference, as text.
pub(super) fn worst(check: &Check) -> String {
    match check.bound {
        0.0 if check.worst == 0.0 => "the same".into(),
        0.0 => format!("{} differ", short(check.worst)),
        _ => short(check.worst),
    }
}

/// The allowed difference, as text.
pub(super) fn allowed(check: &Check) -> String {
    match check.bound {
        0.0 => "the same, to the bit".into(),
        bound => format!("at most {}", short(bound)),
    }
}

/// The two things that must agree, in few words.
fn what(name: &str) -> String {
    match name {
        "recorded" => "recorded = plain".into(),
        "derived" => "derived = recorded".into(),
        "threads" => "one thread = all".into(),
        "float64" => "each stage = float64".into(),
        "float32" => "each stage = cpu float32".into(),
        "batch" => "batch = alone".into(),
        "edit:same" => "edit with its own values".into(),
        "edit:before" => "before the edit = plain".into(),
        "tokenizer" => "ids → text → ids".into(),
        other => format!("{} = plain", other.replace(':', " ")),
    }
}

impl Printed<'_> {
    /// Prints one line for each check: whether it passed, what must agree, the largest difference, the allowed one, and
    /// the place.
    pub(super) fn table(&self) -> Result<()> {
        let mut out = output::Lines::text();
        let Report { checks, rows, tokens } = self.report;
        let (card, passes) = (self.card, tokens.len() - 1);
        writeln!(out, "{} in {} on {} ({})", card.name, card.precision.name(), card.backend, self.kernel)?;
        let (read, decodes) =
            (tokens.first().copied().unwrap_or(0), if passes == 1 { "pass" } else { "passes" });
        let plural = if read == 1 { "token" } else { "tokens" };
        writeln!(out, "{read} {plural} in one pass, then {passes} decode {decodes}")?;
        match rows {
            (taken, all) if taken == all => writeln!(out, "all {all} rows of the matrices recomputed")?,
            (taken, all) => {
                let least = llama_trace_judge::check::ROWS;
                writeln!(
                    out,
                    "{taken} of {all} matrix rows recomputed, at least {least} per matrix (--full: all)"
                )?;
            }
        }
        writeln!(out)?;
        for check in checks {
            line(&mut out, check)?;
        }
        writeln!(out)?;
        let failed = checks.iter().filter(|check| !check.ok).count();
        match (failed, checks.iter().filter(|check| check.skipped.is_some()).count()) {
            (0, 0) => writeln!(out, "Every check passes."),
            (0, skipped) => writeln!(out, "Every check that ran passes; {skipped} skipped."),
            (failed, _) => writeln!(out, "{failed} of {} checks fail.", checks.len()),
        }
    }

    /// Prints the report as one JSON object.
    pub(super) fn json(&self) -> Result<()> {
        let number = |x: f64| if x.is_finite() { json!(x) } else { json!(short(x)) };
        let checks: Vec<Value> = (self.report.checks.iter())
            .map(|check| {
                json!({
                    "name": check.name,
                    "ok": check.ok,
                    "skipped": check.skipped,
                    "worst": number(check.worst),
                    "bound": number(check.bound),
                    "at": check.at.as_ref().map(ToString::to_string),
                })
            })
            .collect();
        let report = json!({
            "ok": self.report.ok(),
            "model": self.card.name,
            "backend": self.card.backend,
            "precision": self.card.precision.name(),
            "checks": checks,
        });
        writeln!(output::Lines::json(), "{report}")
    }
}

/// Prints the line of one check. The address gets its own line if there is no room for it.
fn line(out: &mut impl Write, check: &Check) -> Result<()> {
    /// `text`, padded with blanks.
    fn padded(text: &str, width: usize) -> String {
        format!("{text}{}", " ".repeat(width.saturating_sub(text.width())))
    }
    let what = padded(&what(&check.name), 26);
    if let Some(reason) = &check.skipped {
        return writeln!(out, "skip  {what}{reason}");
    }
    let state = if check.ok { "ok  " } else { "FAIL" };
    let found = match check.bound {
        0.0 => worst(check),
        bound => format!("{} of {}", worst(check), short(bound)),
    };
    let line = format!("{state}  {what}{}", padded(&found, 18));
    match &check.at {
        None => writeln!(out, "{}", line.trim_end()),
        Some(at) => {
            let at = at.to_string();
            let between = if line.width() + at.width() > WIDTH { "\n      " } else { "" };
            writeln!(out, "{}{between}{at}", if between.is_empty() { &line } else { line.trim_end() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use llama_trace_core::trace::Address;

    fn check(name: &str, worst: f64, bound: f64, at: Option<&str>) -> Check {
        let at = at.map(|at| Address::parse(at).unwrap());
        let ok = worst <= bound;
        Check { name: name.into(), ok, skipped: None, worst, bound, at }
    }

    #[test]
    fn a_line_says_what_agrees_by_how_much_and_where_in_80_columns() {
        let text = |check: &Check| {
            let mut out = Vec::new();
            line(&mut out, check).unwrap();
            String::from_utf8(out).unwrap()
        };
        let same = text(&check("kernel:avx512bf16", 0.0, 0.0, None));
        assert_eq!(same, "ok    kernel avx512bf16 = plain the same\n");
        let near = text(&check("float64", 1.9e-7, 1e-5, Some("p1/L1/attn_heads[t=0,h=3,c=1]")));
        assert_eq!(near, "ok    each stage = float64      1.9e-7 of 1.0e-5  p1/L1/attn_heads[t=0,h=3,c=1]\n");
        let far = text(&check("float64", f64::NAN, 1.0, Some("p2/L15/ffn_hidden_scale[t=39,j=255]")));
        assert!(far.starts_with("FAIL  each stage = float64      nan of 1\n      p2/L15"), "{far}");
        for text in [same, near, far] {
            assert!(text.lines().all(|line| line.width() <= WIDTH), "{text}");
        }
        let skipped = Check {
            skipped: Some("the model has no tokenizer".into()),
            ..check("tokenizer", 0.0, 0.0, None)
        };
        assert_eq!(text(&skipped), "skip  ids → text → ids          the model has no tokenizer\n");
    }
}
