//! The result of a comparison as a test report for continuous integration. Each stage is a test case.

use std::io::{Result, Write, stdout};

use super::text::short;
use llama_trace_judge::diff::{Kind, Report, whole};

/// Prints the report.
pub(super) fn print(report: &Report) -> Result<()> {
    let mut out = stdout().lock();
    let cause = report.first.as_ref().filter(|first| first.kind != Kind::Stage);
    let misshapen = report.misshapen.len();
    let failed =
        report.lines.iter().filter(|line| line.differs()).count() + misshapen + usize::from(cause.is_some());
    let damaged = report.damaged().count();
    let absent = report.absent.len() + report.empty.len();
    let tests = report.lines.len() + misshapen + report.missing.len() + absent + usize::from(cause.is_some());
    let (errors, skipped) = (damaged + absent, report.missing.len() - damaged);
    writeln!(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>")?;
    writeln!(out, "<testsuites>")?;
    writeln!(
        out,
        "<testsuite name=\"llama-trace diff\" tests=\"{tests}\" failures=\"{failed}\" errors=\"{errors}\" skipped=\"{skipped}\">"
    )?;
    if let Some(first) = cause {
        let (name, address) = (first.kind.name(), escaped(&first.address));
        let [ours, theirs] = first.told();
        let text = escaped(&format!("A has {ours}, B has {theirs}"));
        writeln!(
            out,
            "<testcase classname=\"{name}\" name=\"{address}\"><failure message=\"{text}\"/></testcase>"
        )?;
    }
    for line in &report.lines {
        let case = case(&line.site.to_string());
        if !line.differs() {
            writeln!(out, "<testcase {case}/>")?;
            continue;
        }
        let mut text = format!("error {} of {} allowed", short(line.error), short(line.tolerance));
        if let Some(first) = report.first.as_ref().filter(|first| first.site == Some(line.site)) {
            let [ours, theirs] = first.told();
            text += &format!("; first difference: {} is {theirs}, A has {ours}", first.address);
            for one in &report.diagnosis {
                let what = if report.written_alone { "B's file looks like" } else { "looks like" };
                text += &format!("; {what} {}", one.told());
            }
        }
        writeln!(out, "<testcase {case}><failure message=\"{}\"/></testcase>", escaped(&text))?;
    }
    for one in &report.misshapen {
        let (case, why) = (case(&one.site.to_string()), escaped(&one.why));
        writeln!(out, "<testcase {case}><failure message=\"another shape: {why}\"/></testcase>")?;
    }
    for missing in &report.missing {
        let why = escaped(missing.why.as_deref().unwrap_or("missing in B"));
        let case = case(&missing.site.to_string());
        let element = if missing.damaged { "error" } else { "skipped" };
        writeln!(out, "<testcase {case}><{element} message=\"{why}\"/></testcase>")?;
    }
    for site in &report.absent {
        let why = format!("B does not have this {}, so nothing is compared", whole(*site));
        writeln!(out, "<testcase {}><error message=\"{why}\"/></testcase>", case(&site.to_string()))?;
    }
    for site in &report.empty {
        let case = case(&site.to_string().replace("tokens", "all stages"));
        let why = "the runs have no stage in common in this pass, so nothing is compared";
        writeln!(out, "<testcase {case}><error message=\"{why}\"/></testcase>")?;
    }
    writeln!(out, "</testsuite>\n</testsuites>")
}

/// Splits `p0/L1/xq` into a class and the name of a test case in this class.
fn case(site: &str) -> String {
    let (class, name) = site.rsplit_once('/').unwrap_or(("", site));
    format!("classname=\"{}\" name=\"{}\"", escaped(&class.replace('/', ".")), escaped(name))
}

/// A text escaped for an XML attribute in quotation marks.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            // XML allows no other control characters, not even escaped.
            c if c.is_control() => escaped.extend(c.escape_default()),
            c => escaped.push(c),
        }
    }
    escaped
}
