//! Selection of passes, layers and stages to record or print: "0-2", "0,3-5", "xq,softmax".

use crate::error::{Error, Result};

use super::axis::Axis;
use super::card::ModelCard;
use super::site::Site;
use super::sizes::PassDims;
use super::stage::Stage;
use super::step::{Step, View};

/// A selection of sites and steps. The default is all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Select {
    passes: Option<Vec<usize>>,
    layers: Option<Vec<usize>>,
    steps: Option<Vec<Step>>,
}

/// The limits of a selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The largest number of passes of the run.
    pub passes: usize,
    /// Passes that fit in the model's context.
    pub room: usize,
    /// Number of layers of the model.
    pub layers: usize,
    /// Whether views may be selected; only stages have values of their own.
    pub views: bool,
}

impl Select {
    /// Every site.
    pub fn all() -> Self {
        Self::default()
    }

    /// These stages, in every layer of every pass.
    pub fn stages(stages: &[Stage]) -> Self {
        let steps = stages.iter().map(|stage| Step::Stage(stage.first_of_name())).collect();
        Self { steps: Some(steps), ..Self::default() }
    }

    /// The same selection, in these layers only.
    #[must_use]
    pub fn in_layers(self, layers: Vec<usize>) -> Self {
        Self { layers: Some(layers), ..self }
    }

    /// Parses options of the command line: `passes` and `layers` are lists of numbers, `stages` is a list of names.
    /// `None` selects all.
    ///
    /// # Errors
    /// [`Error::Usage`] for a number or a name that does not exist, with the valid ones.
    pub fn parse(
        passes: Option<&str>,
        layers: Option<&str>,
        stages: Option<&str>,
        extent: &Extent,
    ) -> Result<Self> {
        let more_passes = |pass: usize| match pass < extent.room {
            true => ask_for_pass(pass),
            false => format!("the context has room for {} passes", extent.room),
        };
        let no_more = |_| "choose among these, or leave --layer out for all of them".into();
        Ok(Self {
            passes: passes.map(|text| numbers("pass", text, extent.passes, more_passes)).transpose()?,
            layers: layers.map(|text| numbers("layer", text, extent.layers, no_more)).transpose()?,
            steps: stages.map(|text| step_list(text, extent.views)).transpose()?,
        })
    }

    /// Returns whether `site` is selected. A selection of layers keeps the stages outside the layers.
    pub fn contains(&self, site: Site) -> bool {
        self.has_step(site.pass, site.layer, Step::Stage(site.stage))
    }

    /// Returns whether this step is selected.
    pub fn has_step(&self, pass: usize, layer: Option<usize>, step: Step) -> bool {
        self.has_pass(pass)
            && layer.is_none_or(|layer| self.layers.as_ref().is_none_or(|layers| layers.contains(&layer)))
            && self.steps.as_ref().is_none_or(|steps| steps.contains(&step.first_of_name()))
    }

    /// Checks that each selected step exists in at least one of the selected passes.
    ///
    /// # Errors
    /// [`Error::Usage`] for a step that none of them has, with the reason.
    pub fn check(&self, card: &ModelCard, passes: &[PassDims]) -> Result<()> {
        let passes: Vec<_> = passes.iter().filter(|dims| self.has_pass(dims.pass)).collect();
        for &step in self.steps.iter().flatten() {
            let lacks = |dims: &&PassDims| step.absence(card, **dims, None).is_some();
            if let Some(first) = passes.first().filter(|_| passes.iter().all(lacks)) {
                return Err(absent(step, card, **first, None));
            }
        }
        Ok(())
    }

    /// The steps that were selected by name; `None` for all.
    pub fn named(&self) -> Option<&[Step]> {
        self.steps.as_deref()
    }

    /// Returns whether anything of this pass is selected.
    pub fn has_pass(&self, pass: usize) -> bool {
        self.passes.as_ref().is_none_or(|passes| passes.contains(&pass))
    }
}

/// The error of a `step` that is absent in `layer` of a pass of `dims`.
pub fn absent(step: Step, card: &ModelCard, dims: PassDims, layer: Option<usize>) -> Error {
    match step.absence(card, dims, layer) {
        Some(absence) => {
            Error::usage(absence.what).expected(absence.expected).found(absence.found).next(absence.next)
        }
        None => Error::usage(format!("there is no {}", step.name())),
    }
}

/// The advice for a pass number beyond the last pass of the run.
pub fn ask_for_pass(pass: usize) -> String {
    format!("add -n {}, which runs that pass unless the text ends before it", pass.saturating_add(1))
}

/// The message for an index past the end of an axis. Rows of tokens start at 0 in each pass; if the number is the
/// position of one of the rows, the message names that row.
pub fn past_the_last(axis: Axis, number: usize, length: usize, dims: PassDims) -> String {
    let there = match length {
        0 | 1 => "0 is the only one".to_owned(),
        _ => format!("0 to {}", length - 1),
    };
    let wrong = format!("{} {number} is past the last: {there}", axis.name());
    match number.checked_sub(dims.start).filter(|&row| axis == Axis::Token && row < length && dims.start > 0)
    {
        Some(row) => {
            format!("{wrong}; t counts the rows of pass {}, where position {number} is t={row}", dims.pass)
        }
        None => wrong,
    }
}

/// Parses numbers below `count` from text like "0,3-5". `missing` gives the advice for a number that does not exist.
///
/// # Errors
/// [`Error::Usage`] for a number that does not exist, or a text that is not a number.
pub fn numbers(
    what: &str,
    text: &str,
    count: usize,
    missing: impl Fn(usize) -> String,
) -> Result<Vec<usize>> {
    let there = match count {
        0 | 1 => format!("0, the only {what} there is"),
        2 => "numbers from 0 to 1, such as 0 or 0,1".into(),
        _ => format!("numbers from 0 to {last}, such as 0, 0-{last} or 0,{last}", last = count - 1),
    };
    let wrong = |problem: String, found: &str, next: String| {
        Err(Error::usage(problem).expected(&there).found(format!("`{found}`")).next(next))
    };
    let mut all = Vec::new();
    for part in text.split(',') {
        let part = part.trim();
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        // A number too large for a `usize` does not exist either.
        let number = |text: &str| match text.trim() {
            text if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) => None,
            text => Some(text.parse().unwrap_or(usize::MAX)),
        };
        let (Some(from), Some(to)) = (number(from), number(to)) else {
            let next =
                format!("give numbers or ranges with commas between them, or leave --{what} out for all");
            return wrong(format!("this is not a list of {what} numbers"), part, next);
        };
        if from > to {
            let next = format!("write the smaller number first: {to}-{from}");
            return wrong(format!("a range of --{what} runs backwards"), part, next);
        }
        if to >= count {
            return wrong(format!("there is no {what} {to}"), part, missing(to));
        }
        all.extend(from..=to);
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// The stage with this name.
///
/// # Errors
/// [`Error::Usage`] with the nearest names and all valid ones.
pub fn stage_named(name: &str) -> Result<Stage> {
    Stage::from_name(name).ok_or_else(|| {
        let all: Vec<_> = Stage::names().collect();
        let next = match View::ALL.iter().find(|view| view.name() == name) {
            Some(view) => format!("`{name}` is a view; its values are those of `{}`", view.source()),
            None => match &near(name, &all)[..] {
                [] => "choose one of these".into(),
                [last] => format!("did you mean `{last}`?"),
                [names @ .., last] => format!("did you mean `{}` or `{last}`?", names.join("`, `")),
            },
        };
        Error::usage("there is no such stage")
            .expected(format!("one of {}", all.join(", ")))
            .found(format!("`{name}`"))
            .next(next)
    })
}

/// The smallest similarity of a mistyped name to the intended one; 1 means equal.
const ALIKE: f64 = 0.6;

/// The `names` that `name` may be a misspelling of: at most three, the most similar first.
pub fn near<'a>(name: &str, names: &[&'a str]) -> Vec<&'a str> {
    let likeness = |other: &str| {
        // A prefix of at least 3 letters counts as just similar enough.
        let begins = if name.len() >= 3 && other.starts_with(name) { ALIKE } else { 0.0 };
        strsim::normalized_damerau_levenshtein(name, other).max(begins)
    };
    let mut near: Vec<_> = names.iter().map(|&other| (likeness(other), other)).collect();
    near.retain(|(likeness, _)| *likeness >= ALIKE);
    near.sort_by(|a, b| b.0.total_cmp(&a.0));
    near.truncate(3);
    near.into_iter().map(|(_, name)| name).collect()
}

fn step_list(text: &str, views: bool) -> Result<Vec<Step>> {
    let step = |name: &str| match Step::from_name(name).filter(|_| views) {
        Some(step) => Ok(step),
        None => stage_named(name).map(Step::Stage),
    };
    text.split(',').map(|name| step(name.trim())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXTENT: Extent = Extent { passes: 3, room: 500, layers: 6, views: false };

    fn wrong(passes: Option<&str>, layers: Option<&str>) -> String {
        Select::parse(passes, layers, None, &EXTENT).unwrap_err().to_string()
    }

    #[test]
    fn lists_and_ranges_are_read() {
        let numbers = |text| numbers("layer", text, 6, |_| "none".into());
        assert_eq!(numbers("0,3-5").unwrap(), [0, 3, 4, 5]);
        for bad in ["", "6", "-1", "3-", "5-3", "a", "0,,1", "99999999999999999999"] {
            assert!(numbers(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn each_wrong_number_is_answered_by_what_is_wrong_with_it() {
        let no_list = wrong(None, Some("x"));
        assert!(
            no_list.contains("not a list of layer numbers") && no_list.contains("leave --layer out"),
            "{no_list}"
        );
        let backwards = wrong(None, Some("0,3-1"));
        assert!(backwards.contains("runs backwards") && backwards.contains("first: 1-3"), "{backwards}");
        let missing = wrong(None, Some("6"));
        assert!(missing.contains("no layer 6") && missing.contains("from 0 to 5"), "{missing}");
        let later = wrong(Some("9"), None);
        assert!(later.contains("no pass 9") && later.contains("add -n 10,"), "{later}");
        let never = wrong(Some("500"), None);
        assert!(never.contains("room for 500 passes") && !never.contains("-n"), "{never}");
        let one = Extent { passes: 1, ..EXTENT };
        let one = Select::parse(Some("4"), None, None, &one).unwrap_err().to_string();
        assert!(one.contains("0, the only pass there is") && one.contains("-n 5"), "{one}");
    }

    #[test]
    fn near_names_are_three_at_most_and_none_where_none_is_near() {
        let next = |name| {
            let text = stage_named(name).unwrap_err().to_string();
            text.rsplit_once("next: ").unwrap().1.to_owned()
        };
        for far in ["foo", "", "q", "nothing", "zzzzzzzz"] {
            assert_eq!(next(far), "choose one of these", "{far}");
        }
        assert_eq!(next("xqrope"), "did you mean `xq_rope` or `xk_rope`?");
        let names = next("ffn");
        assert_eq!(names.matches('`').count(), 6, "{names}");
        assert!(next("atn_norm").starts_with("did you mean `attn_norm`"), "{}", next("atn_norm"));
    }

    #[test]
    fn views_are_steps_of_a_log_and_no_files() {
        let list = Some("keys_t");
        assert!(Select::parse(None, None, list, &EXTENT).is_err());
        let select = Select::parse(None, None, list, &Extent { views: true, ..EXTENT }).unwrap();
        assert!(select.has_step(0, Some(0), Step::View(View::KeysT)));
        assert!(!select.contains(Site::layer(0, 0, Stage::Keys)));
    }

    #[test]
    fn an_unknown_stage_is_answered_with_the_nearest() {
        let text = stage_named("sofmax").unwrap_err().to_string();
        assert!(text.contains("did you mean `softmax`?") && text.contains("attn_norm"), "{text}");
    }

    #[test]
    fn a_choice_of_layers_keeps_what_is_outside_the_layers() {
        let select = Select::parse(Some("1"), Some("0"), None, &EXTENT).unwrap();
        assert!(select.contains(Site::once(1, Stage::Logits)));
        assert!(select.contains(Site::layer(1, 0, Stage::Xq)));
        assert!(!select.contains(Site::layer(1, 1, Stage::Xq)));
        assert!(!select.contains(Site::layer(0, 0, Stage::Xq)));
    }
}
