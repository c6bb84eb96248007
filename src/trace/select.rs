//! Which passes, layers and stages to record: "0-2", "0,3-5", "xq,softmax".

use crate::error::{Error, Result};

use super::site::Site;
use super::stage::{Stage, View};

/// A choice of sites. The default is all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Select {
    passes: Option<Vec<usize>>,
    layers: Option<Vec<usize>>,
    stages: Option<Vec<Stage>>,
}

impl Select {
    /// Every site.
    pub fn all() -> Self {
        Self::default()
    }

    /// These stages, in every layer of every pass.
    pub fn stages(stages: &[Stage]) -> Self {
        Self { stages: Some(stages.to_vec()), ..Self::default() }
    }

    /// The choice that command-line texts name, each none for all: `passes` of `pass_count`, `layers` of
    /// `layer_count`, `stages` by name.
    ///
    /// # Errors
    /// [`Error::Usage`] for a number or a name that does not exist, with those that do.
    pub fn parse(
        passes: Option<&str>,
        pass_count: usize,
        layers: Option<&str>,
        layer_count: usize,
        stages: Option<&str>,
    ) -> Result<Self> {
        let numbers =
            |what, text: Option<&str>, count| text.map(|text| ranges(what, text, count)).transpose();
        Ok(Self {
            passes: numbers("pass", passes, pass_count)?,
            layers: numbers("layer", layers, layer_count)?,
            stages: stages.map(stage_list).transpose()?,
        })
    }

    /// Whether `site` is chosen. A choice of layers leaves the stages outside the layers in.
    pub fn contains(&self, site: Site) -> bool {
        let has = |list: &Option<Vec<usize>>, number| list.as_ref().is_none_or(|list| list.contains(&number));
        has(&self.passes, site.pass)
            && site.layer.is_none_or(|layer| has(&self.layers, layer))
            && self.stages.as_ref().is_none_or(|stages| stages.contains(&site.stage))
    }
}

/// Numbers below `count` from text like "0,3-5".
///
/// # Errors
/// [`Error::Usage`] where the text is no such list or names a number that is not there.
pub fn ranges(what: &str, text: &str, count: usize) -> Result<Vec<usize>> {
    let last = count.saturating_sub(1);
    let wrong = |found: &str| {
        Error::usage(format!("there is no such {what}"))
            .expected(format!("numbers from 0 to {last}, as 0, 0-{last} or 0,{last}"))
            .found(format!("`{found}`"))
            .next("leave out the others")
    };
    let mut numbers = Vec::new();
    for part in text.split(',') {
        let part = part.trim();
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<usize>().ok().filter(|&number| number < count);
        let (Some(from), Some(to)) = (number(from), number(to)) else { return Err(wrong(part)) };
        if from > to {
            return Err(wrong(part));
        }
        numbers.extend(from..=to);
    }
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers)
}

/// The stage with this name.
///
/// # Errors
/// [`Error::Usage`] with the nearest names and all the valid ones.
pub fn stage_named(name: &str) -> Result<Stage> {
    Stage::from_name(name).ok_or_else(|| {
        let all: Vec<_> = Stage::ALL.iter().map(|stage| stage.name()).collect();
        let nearest = all.iter().max_by(|a, b| {
            strsim::normalized_levenshtein(name, a).total_cmp(&strsim::normalized_levenshtein(name, b))
        });
        let next = match View::ALL.iter().find(|view| view.name() == name) {
            Some(view) => format!("`{name}` is a view; its values are those of `{}`", view.source()),
            None => format!("did you mean `{}`?", nearest.unwrap_or(&"")),
        };
        Error::usage("there is no such stage")
            .expected(format!("one of {}", all.join(", ")))
            .found(format!("`{name}`"))
            .next(next)
    })
}

fn stage_list(text: &str) -> Result<Vec<Stage>> {
    text.split(',').map(|name| stage_named(name.trim())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges_are_read() {
        assert_eq!(ranges("layer", "0,3-5", 6).unwrap(), [0, 3, 4, 5]);
        for bad in ["", "6", "-1", "3-", "5-3", "a", "0,,1", "99999999999999999999"] {
            assert!(ranges("layer", bad, 6).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_unknown_stage_is_answered_with_the_nearest() {
        let text = stage_named("sofmax").unwrap_err().to_string();
        assert!(text.contains("did you mean `softmax`?") && text.contains("attn_norm"), "{text}");
    }

    #[test]
    fn a_choice_of_layers_keeps_what_is_outside_the_layers() {
        let select = Select::parse(Some("1"), 3, Some("0"), 2, None).unwrap();
        assert!(select.contains(Site::once(1, Stage::Logits)));
        assert!(select.contains(Site::layer(1, 0, Stage::Xq)));
        assert!(!select.contains(Site::layer(1, 1, Stage::Xq)));
        assert!(!select.contains(Site::layer(0, 0, Stage::Xq)));
    }
}
