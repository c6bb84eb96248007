//! The names of a folder's files, and the patterns with `{pass}` and `{layer}` that they may follow.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use crate::capture::{WIDEST, named, npy, npy_files};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::{Site, Stage};

/// The maximum number of names that are listed.
const TOLD: usize = 12;

/// The maximum number of patterns for files whose names differ only in their numbers.
const OF_A_KIND: usize = 2000;

/// Words before the number of a pass, and before the number of a layer.
const OF_PASS: [&str; 9] = ["p", "pass", "passes", "step", "steps", "s", "iter", "call", "t"];
const OF_LAYER: [&str; 9] = ["l", "layer", "layers", "lyr", "blk", "block", "blocks", "h", "decoder"];

/// The files of a folder.
pub(super) struct Names {
    shapes: BTreeMap<String, Vec<usize>>,
    /// The patterns that the names may follow.
    pub(super) patterns: Vec<Pattern>,
    /// The names of the files of int8 values.
    pub(super) int8: BTreeSet<String>,
}

/// A name with `{pass}` or `{layer}` in the place of numbers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pattern {
    pub(super) name: String,
    /// Whether it has `{pass}`, and whether it has `{layer}`.
    pub(super) has_pass: bool,
    pub(super) has_layer: bool,
    /// Whether other files differ from it only in a number that is neither the pass's nor the layer's.
    pub(super) is_lone: bool,
    /// The number of words before its `{pass}` and `{layer}` that agree with these placeholders, minus the number of
    /// words that contradict them.
    pub(super) said: i32,
    /// The index of the group of names that differ only in their numbers.
    pub(super) kind: usize,
    /// The index of the layer's number among the numbers of those names, and the count of its different values.
    pub(super) place: Option<(usize, usize)>,
    /// The count of different values of the pass's number.
    pub(super) passes: usize,
}

impl Pattern {
    /// The name with layers counted from 0. Patterns that differ only in the first layer's number share it.
    pub(super) fn zero_based(&self) -> String {
        self.name.replace("{layer+1", "{layer")
    }
}

impl Names {
    /// Reads the folder at `path`.
    ///
    /// # Errors
    /// [`Error::Usage`] if there is no folder.
    pub(super) fn read(path: &Path) -> Result<Self> {
        if !path.is_dir() {
            return Err(Error::usage("there is no folder to propose a map for")
                .in_file(path)
                .expected("a folder with .npy files")
                .next("check the path"));
        }
        let (mut shapes, mut int8) = (BTreeMap::new(), BTreeSet::new());
        // A name with braces cannot be written in a map.
        for name in npy_files(path).into_iter().filter(|name| !name.contains(['{', '}'])) {
            match npy::shape(&path.join(&name)) {
                Some(shape) => drop(shapes.insert(name, shape)),
                None if npy::is_int8(&path.join(&name)) => drop(int8.insert(name)),
                None => {}
            }
        }
        let patterns = patterns(shapes.keys());
        Ok(Self { shapes, patterns, int8 })
    }

    /// The number of files of floats.
    pub(super) fn files(&self) -> usize {
        self.shapes.len()
    }

    /// The shape of a pattern's file for a site; `None` without a file.
    pub(super) fn shape(&self, pattern: &str, site: Site) -> Option<&[usize]> {
        self.shapes.get(named(pattern, site).to_str()?).map(Vec::as_slice)
    }

    /// The names of a pattern's files in the first `passes` passes and in `layers`.
    pub(super) fn of(&self, pattern: &str, passes: usize, layers: Range<usize>) -> BTreeSet<String> {
        let passes = if pattern.contains("{pass") { passes } else { 1 };
        let layers = if pattern.contains("{layer") { layers } else { 0..1 };
        let sites = (0..passes).flat_map(|pass| layers.clone().map(move |layer| (pass, layer)));
        let name =
            |(pass, layer)| named(pattern, Site::layer(pass, layer, Stage::Xq)).to_str().map(str::to_owned);
        sites.filter_map(name).filter(|name| self.shapes.contains_key(name)).collect()
    }

    /// The first names that are not among those `used`, and the count of the rest.
    pub(super) fn others(&self, used: &BTreeSet<String>) -> Vec<String> {
        let left: Vec<&String> = self.shapes.keys().filter(|name| !used.contains(*name)).collect();
        let more = left.len().saturating_sub(TOLD);
        let told = left.into_iter().take(TOLD).cloned();
        told.chain((more > 0).then(|| format!("and {more} more"))).collect()
    }
}

/// All patterns of the names: any number in them, or none, may be the pass, and any other number, or none, the layer.
/// In a group of names, a number that never changes is not the layer if another one changes. The reason: there are
/// several layers, and folders often hold one pass.
fn patterns<'a>(names: impl Iterator<Item = &'a String>) -> Vec<Pattern> {
    let mut kinds: BTreeMap<Vec<&str>, BTreeSet<Vec<&str>>> = BTreeMap::new();
    for name in names {
        let runs = runs(name);
        let digits = runs.iter().map(|run| &name[run.clone()]).collect();
        kinds.entry(around(name, &runs)).or_default().insert(digits);
    }
    let mut patterns: BTreeMap<String, Pattern> = BTreeMap::new();
    for (number, (around, files)) in kinds.iter().enumerate() {
        let slots = around.len() - 1;
        let values: Vec<BTreeSet<&str>> =
            (0..slots).map(|at| files.iter().map(|digits| digits[at]).collect()).collect();
        let differs = |at: usize| values[at].len() > 1;
        let any = (0..slots).any(differs);
        let none_or_each = || std::iter::once(None).chain((0..slots).map(Some));
        let kind = Kind { number, around, files, values: &values };
        for pass in none_or_each() {
            for layer in none_or_each() {
                let may_be_layer = layer.is_none_or(|at| Some(at) != pass && (differs(at) || !any));
                let left =
                    (0..slots).filter(|at| ![pass, layer].contains(&Some(*at)) && differs(*at)).count();
                if may_be_layer && left <= 1 && !kind.is_contradicted(pass, layer) {
                    for one in kind.patterns(pass, layer, left == 1).into_iter().take(OF_A_KIND) {
                        patterns.entry(one.name.clone()).or_insert(one);
                    }
                }
            }
        }
    }
    patterns.into_values().collect()
}

/// A group of names that differ only in their numbers.
struct Kind<'a> {
    /// Its index.
    number: usize,
    /// The texts before, between and after the numbers.
    around: &'a [&'a str],
    /// The numbers of each name.
    files: &'a BTreeSet<Vec<&'a str>>,
    /// For each number in the names: its different values.
    values: &'a [BTreeSet<&'a str>],
}

impl Kind<'_> {
    /// The patterns in which number `pass` of each name is the pass's, and number `layer` is the layer's.
    fn patterns(&self, pass: Option<usize>, layer: Option<usize>, is_lone: bool) -> Vec<Pattern> {
        let of = |at: Option<usize>, place: &str| {
            at.map_or_else(|| vec![String::new()], |at| self.places(at, place))
        };
        let (passes, layers) = (of(pass, "pass"), of(layer, "layer"));
        let said = self.said(pass, layer);
        let mut names = BTreeSet::new();
        for digits in self.files {
            for (pass_written, layer_written) in
                passes.iter().flat_map(|pass| layers.iter().map(move |layer| (pass, layer)))
            {
                let mut name = self.around[0].to_owned();
                for (at, digits) in digits.iter().enumerate() {
                    name += match Some(at) {
                        at if at == pass => pass_written,
                        at if at == layer => layer_written,
                        _ => digits,
                    };
                    name += self.around[at + 1];
                }
                names.insert(name);
            }
        }
        let place = layer.map(|at| (at, self.values[at].len()));
        let pattern = |name| Pattern {
            name,
            has_pass: pass.is_some(),
            has_layer: layer.is_some(),
            is_lone,
            said,
            kind: self.number,
            place,
            passes: pass.map_or(0, |at| self.values[at].len()),
        };
        names.into_iter().map(pattern).collect()
    }

    /// The number of words before these two numbers that agree with them, minus the number of words that contradict
    /// them.
    fn said(&self, pass: Option<usize>, layer: Option<usize>) -> i32 {
        let says = |at: Option<usize>, own: &[&str], other: &[&str]| {
            let before =
                at.map_or("", |at| self.around[at]).trim_end_matches(|c: char| !c.is_ascii_alphabetic());
            let word = before.rsplit(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or("").to_lowercase();
            i32::from(own.contains(&&*word)) - i32::from(other.contains(&&*word))
        };
        says(pass, &OF_PASS, &OF_LAYER) + says(layer, &OF_LAYER, &OF_PASS)
    }

    /// Returns whether the words in several names show which number is the pass and which the layer, and contradict
    /// this choice of `pass` and `layer`.
    fn is_contradicted(&self, pass: Option<usize>, layer: Option<usize>) -> bool {
        let places = || 0..self.values.len();
        let is_said = || places().any(|pass| places().any(|layer| self.said(Some(pass), Some(layer)) == 2));
        self.files.len() > 1 && self.said(pass, layer) < 0 && is_said()
    }

    /// The placeholders that may replace number `at`: `{place}`, counted from 0 or from 1.
    fn places(&self, at: usize, place: &str) -> Vec<String> {
        let values = &self.values[at];
        let longest = values.iter().map(|digits| digits.len()).max().unwrap_or(1);
        let is_padded = longest > 1
            && values.iter().all(|digits| digits.len() == longest)
            && values.iter().any(|digits| digits.starts_with('0'));
        let width = if is_padded { format!(":0{longest}") } else { String::new() };
        let least = values.iter().filter_map(|digits| digits.parse::<usize>().ok()).min().unwrap_or(0);
        let counts_from: &[usize] = match (place, least) {
            // Counting from 1 is possible too: number 0 may be the input of the first layer.
            ("layer", 0) if values.len() > 1 => &[0, 1],
            ("layer", 1) => &[1, 0],
            // A number that never changes does not count passes.
            ("pass", 1) if values.len() > 1 => &[1],
            _ => &[0],
        };
        let more = |from: &usize| if *from == 0 { String::new() } else { format!("+{from}") };
        counts_from.iter().map(|from| format!("{{{place}{}{width}}}", more(from))).collect()
    }
}

/// The parts of a name before, between and after these ranges.
fn around<'a>(name: &'a str, runs: &[Range<usize>]) -> Vec<&'a str> {
    let starts = std::iter::once(0).chain(runs.iter().map(|run| run.end));
    let ends = runs.iter().map(|run| run.start).chain([name.len()]);
    starts.zip(ends).map(|(start, end)| &name[start..end]).collect()
}

/// The ranges of the numbers in a name that may be a pass's or a layer's.
fn runs(name: &str) -> Vec<Range<usize>> {
    let stem = name.strip_suffix(".npy").unwrap_or(name);
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (at, c) in stem.char_indices().filter(|(_, c)| c.is_ascii_digit()) {
        match runs.last_mut().filter(|run| run.end == at) {
            Some(run) => run.end = at + c.len_utf8(),
            None => runs.push(at..at + c.len_utf8()),
        }
    }
    runs.retain(|run| run.len() <= WIDEST);
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns_of(names: &[&str]) -> BTreeSet<String> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        patterns(names.iter()).into_iter().map(|pattern| pattern.name).collect()
    }

    #[test]
    fn each_number_of_a_name_may_be_the_layer_or_the_pass() {
        let patterns = patterns_of(&["p0/l02.q.npy"]);
        let expected = ["p0/l02.q.npy", "p0/l{layer:02}.q.npy", "p0/l{pass:02}.q.npy", "p{layer}/l02.q.npy"];
        for pattern in expected.into_iter().chain(["p{pass}/l{layer:02}.q.npy", "p{layer}/l{pass:02}.q.npy"])
        {
            assert!(patterns.contains(pattern), "{pattern}: {patterns:?}");
        }
    }

    #[test]
    fn a_number_that_is_always_the_same_is_no_layer_where_another_differs() {
        let patterns = patterns_of(&["p0/l2.q1.npy", "p0/l3.q1.npy", "p0/other1.npy"]);
        assert!(patterns.contains("p{pass}/l{layer}.q1.npy"), "{patterns:?}");
        assert!(patterns.contains("p0/other{layer+1}.npy"), "{patterns:?}");
        for pattern in ["p{layer}/l2.q1.npy", "p0/l2.q{layer}.npy", "p{layer}/l{pass}.q1.npy"] {
            assert!(!patterns.contains(pattern), "{pattern}: {patterns:?}");
        }
    }

    #[test]
    fn numbers_count_from_0_or_from_1_and_have_as_many_digits_as_all_of_them() {
        let patterns =
            patterns_of(&["h.0.npy", "h.1.npy", "h.2.npy", "x01.npy", "x02.npy", "y9.npy", "y10.npy"]);
        for pattern in
            ["h.{layer}.npy", "h.{layer+1}.npy", "h.0.npy", "h.2.npy", "x{layer+1:02}.npy", "y{layer}.npy"]
        {
            assert!(patterns.contains(pattern), "{pattern}: {patterns:?}");
        }
        assert!(!patterns.iter().any(|pattern| pattern.contains("y{layer:")), "{patterns:?}");
    }

    #[test]
    fn a_thousand_files_of_two_numbers_have_few_patterns() {
        let names: Vec<String> = (0..40)
            .flat_map(|pass| (0..3).map(move |layer| (pass, layer)))
            .flat_map(|(pass, layer)| {
                ["q", "k", "v", "o", "x", "y", "z", "w"].map(|n| format!("p{pass}/l{layer}.{n}.npy"))
            })
            .collect();
        let count = patterns(names.iter()).len();
        assert!(count < 800, "{count}");
    }
}
