//! What `diff` found of the two runs that stand side by side: where they part, and how their distance grows.

use crate::diff::{Growth, Report};
use crate::error::printable;
use crate::trace::{Address, Run};

use super::app::App;
use super::beside::Beside;
use super::goto;
use super::text;

/// The verdict, as it is looked at.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// What A and B are.
    names: [String; 2],
    /// In words: whether they are the same, and what else is to be said.
    words: Vec<String>,
    /// The stages that differ, in the order of the pass.
    differences: Vec<Difference>,
    /// How far B is from A, by layer.
    growth: Vec<Growth>,
    /// The one that was gone to last.
    at: Option<usize>,
}

/// A stage that differs.
#[derive(Clone, Debug)]
struct Difference {
    /// Its cell of largest error.
    address: Address,
    /// What both have there.
    words: String,
}

impl Verdict {
    /// What `report` says of two runs of these names.
    pub fn new(report: &Report, names: [&str; 2]) -> Self {
        let mut words = Vec::new();
        let cause = report.first.as_ref().filter(|first| first.site.is_none());
        match (&report.first, cause) {
            (None, _) => words.push("The same, within the tolerance.".to_owned()),
            (_, Some(first)) => words.push(format!(
                "They differ before anything is computed, in the {} at {}: A has {}, B has {}.",
                first.kind.name(),
                first.address,
                first.ours,
                first.theirs
            )),
            (Some(first), None) => words.push(format!("The first stage that differs: {}.", first.address)),
        }
        words.extend(report.notes.iter().cloned());
        words.extend(report.diagnosis.iter().map(|one| {
            format!(
                "It looks like {}: error {} → {}.",
                one.name,
                text::real(one.before),
                text::real(one.after)
            )
        }));
        if !report.missing.is_empty() {
            words.push(format!("{} stages of A are not in B.", report.missing.len()));
        }
        let difference = |first: &crate::diff::First| {
            let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), text::real);
            let apart = match (first.ours.as_f64(), first.theirs.as_f64()) {
                (Some(ours), Some(theirs)) => format!(", A − B {}", text::real(ours - theirs)),
                _ => String::new(),
            };
            Some(Difference {
                address: Address::parse(&first.address).ok()?,
                words: format!(
                    "{}: A {}, B {}{apart}; error {} of {} allowed",
                    first.address,
                    first.ours,
                    first.theirs,
                    number(first.error),
                    number(first.tolerance)
                ),
            })
        };
        Self {
            names: names.map(|name| printable(name).to_string()),
            words,
            differences: report.differences.iter().filter_map(difference).collect(),
            growth: report.growth(),
            at: None,
        }
    }

    /// Where the viewer opens: at the cell of largest error of the first stage that differs.
    pub fn opens_at(&self) -> Option<Address> {
        self.differences.first().map(|first| first.address.clone())
    }

    /// The lines that stand before the notes, in a width of so many columns.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("A  {}", self.names[0]), format!("B  {}", self.names[1])];
        lines.extend(self.words.iter().cloned());
        lines.push(match self.differences.len() {
            0 => String::new(),
            1 => "1 stage differs; D goes there.".to_owned(),
            count => format!("{count} stages differ; D goes to the next."),
        });
        lines
    }

    /// The table of growth: a heading, and a row a layer.
    pub fn table(&self) -> Vec<String> {
        if self.growth.is_empty() {
            return Vec::new();
        }
        let row = |growth: &Growth| {
            let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), text::real);
            let place = format!("p{}/L{}", growth.pass, growth.layer);
            let (attention, ffn) = (number(growth.attn_residual), number(growth.ffn_residual));
            let mark = if growth.differs { "≠" } else { " " };
            let (stage, worst) = growth.worst;
            format!("{mark} {place:<8}{attention:>10}{ffn:>10}  {stage} {}", text::real(worst))
        };
        let heading = format!("  {:<8}{:>10}{:>10}  worst stage", "layer", "attn_res", "ffn_res");
        std::iter::once(heading).chain(self.growth.iter().map(row)).collect()
    }
}

/// Which of the two a run is, where a verdict is there.
pub(super) fn letter(app: &App, run: Run) -> Option<&'static str> {
    app.verdict.as_ref().map(|_| if run == Run::ITSELF { "A" } else { "B" })
}

/// To the next stage that differs, and after the last to the first.
pub(super) fn next(app: &mut App) {
    let Some(verdict) = &mut app.verdict else {
        return app
            .say("nothing is judged here: `llama-trace diff A B --tui` shows where B parts from A", false);
    };
    let count = verdict.differences.len();
    let at = verdict.at.map_or(0, |at| (at + 1) % count.max(1));
    let Some(difference) = verdict.differences.get(at).cloned() else {
        let words = verdict.words.first().cloned().unwrap_or_default();
        return app.say(words, false);
    };
    verdict.at = Some(at);
    match goto::find(app, &difference.address) {
        Ok(spot) => {
            goto::go(app, &spot);
            app.compares = app.goes_back.then_some(Beside::Before);
            app.say(format!("{} of {count}  {}", at + 1, difference.words), false);
        }
        Err(wrong) => app.say(wrong, true),
    }
}
