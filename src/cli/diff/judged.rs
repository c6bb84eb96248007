//! The result of `diff` as the viewer shows it.

use llama_trace_core::trace::Address;
use llama_trace_judge::diff::{Growth, Report};
use llama_trace_tui::{Verdict, text};

/// The verdict for the viewer, from `report` and the names of the two runs.
pub fn verdict(report: &Report, names: [&str; 2]) -> Verdict {
    let mut words = Vec::new();
    let cause = report.first.as_ref().filter(|first| first.site.is_none());
    match (&report.first, cause) {
        (None, _) => {
            let unread = report.uncompared().map_or_else(String::new, |what| format!(", except for {what}"));
            words.push(format!("The same, within the tolerance{unread}."));
        }
        (_, Some(first)) => {
            let [ours, theirs] = first.told();
            words.push(format!(
                "A and B differ before anything is computed, in the {} at {}: A has {ours}, B has {theirs}.",
                first.kind.name(),
                first.address
            ));
        }
        (Some(first), None) => words.push(format!("The first stage that differs: {}.", first.address)),
    }
    words.extend(report.notes.iter().cloned());
    let what = if report.written_alone { "B's file" } else { "B" };
    words.extend(report.diagnosis.iter().map(|one| {
        format!(
            "{what} looks like {}: error {} → {}.",
            one.told(),
            text::real(one.before),
            text::real(one.after)
        )
    }));
    words.extend(misshapen(report));
    words.extend(missing(report.missing.len()));
    let difference = |first: &llama_trace_judge::diff::First| {
        let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), text::real);
        let apart = match (first.ours.as_f64(), first.theirs.as_f64()) {
            (Some(ours), Some(theirs)) => format!(", A − B {}", text::real(ours - theirs)),
            _ => String::new(),
        };
        let (address, [ours, theirs]) = (Address::parse(&first.address).ok()?, first.told());
        let allowed = match first.error {
            Some(error) => {
                format!("; error {} of {} allowed", text::real(error), number(first.tolerance))
            }
            None => String::new(),
        };
        Some((address, format!("{}: A {ours}, B {theirs}{apart}{allowed}", first.address)))
    };
    let differences = report.differences.iter().filter_map(difference).collect();
    Verdict::new(names, words, differences, table(&report.growth()))
}

/// A line with the number of stages that have another shape, and the first of them.
fn misshapen(report: &Report) -> Option<String> {
    let (first, count) = (report.misshapen.first()?, report.misshapen.len());
    let stages = if count == 1 {
        "One stage cannot be compared:"
    } else {
        &format!("{count} stages cannot be compared; the first is")
    };
    Some(format!("{stages} {}: {}.", first.site, first.why))
}

/// A line with the number of A's stages that B does not have.
fn missing(count: usize) -> Option<String> {
    match count {
        0 => None,
        1 => Some("One stage of A is not in B.".to_owned()),
        _ => Some(format!("{count} stages of A are not in B.")),
    }
}

/// The table of growth: a heading and one row for each layer.
fn table(growth: &[Growth]) -> Vec<String> {
    if growth.is_empty() {
        return Vec::new();
    }
    let row = |growth: &Growth| {
        let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), text::real);
        let place = growth.place();
        let (attention, ffn) = (number(growth.attn_residual), number(growth.ffn_residual));
        let mark = if growth.differs { "≠" } else { " " };
        format!("{mark} {place:<8}{attention:>10}{ffn:>10}  {}", growth.worst_told(text::real))
    };
    let heading = format!("  {:<8}{:>10}{:>10}  worst stage", "layer", "attn_res", "ffn_res");
    std::iter::once(heading).chain(growth.iter().map(row)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_stage_that_is_missing_is_spoken_of_as_one() {
        let told = [0, 1, 2].map(|count| missing(count).unwrap_or_default());
        assert_eq!(told, ["", "One stage of A is not in B.", "2 stages of A are not in B."]);
    }
}
