//! The names of a folder's files, and what they may be with a pass and a layer in the place of their numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use super::super::capture::{WIDEST, named};
use super::super::files::npy_files;
use super::super::npy;
use crate::error::{Error, Result};
use crate::trace::Site;

/// Names that are told of at most.
const TOLD: usize = 12;

/// The files, by their names below the folder, with their shapes.
pub(super) struct Names {
    shapes: BTreeMap<String, Vec<usize>>,
    /// Their names, with {pass} and {layer} in them.
    pub(super) patterns: BTreeSet<String>,
    /// The files of int8 values.
    pub(super) int8: BTreeSet<String>,
}

impl Names {
    /// Reads the folder at `path`.
    ///
    /// # Errors
    /// [`Error::Usage`] where it is none.
    pub(super) fn read(path: &Path) -> Result<Self> {
        if !path.is_dir() {
            return Err(Error::usage("there is no folder to propose a map for")
                .in_file(path)
                .expected("a folder with .npy files")
                .next("check the path"));
        }
        let (mut shapes, mut int8) = (BTreeMap::new(), BTreeSet::new());
        // What is no plain name could not stand in a map.
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

    /// How many files there are.
    pub(super) fn files(&self) -> usize {
        self.shapes.len()
    }

    /// The shape of the file of this pattern for a site; none where there is none.
    pub(super) fn shape(&self, pattern: &str, site: Site) -> Option<&[usize]> {
        self.shapes.get(named(pattern, site).to_str()?).map(Vec::as_slice)
    }

    /// Some of the files that none of these patterns is for, as it is filled in for `sites`.
    pub(super) fn others<'a>(
        &self,
        used: impl Iterator<Item = &'a str>,
        sites: &(impl Iterator<Item = Site> + Clone),
    ) -> Vec<String> {
        let mut left: BTreeSet<&String> = self.shapes.keys().collect();
        for pattern in used {
            for site in sites.clone() {
                let name = named(pattern, site).to_string_lossy().into_owned();
                left.remove(&name);
            }
        }
        let more = left.len().saturating_sub(TOLD);
        let told = left.into_iter().take(TOLD).cloned();
        told.chain((more > 0).then(|| format!("and {more} more"))).collect()
    }
}

/// The names with each of their numbers, or none, taken for the pass's and for the layer's. What is the same in all names
/// that are alike but for their numbers is no layer's, where another of them differs: there are several layers, and
/// folders often hold one pass.
fn patterns<'a>(names: impl Iterator<Item = &'a String> + Clone) -> BTreeSet<String> {
    let mut kinds: BTreeMap<Vec<&str>, Vec<BTreeSet<&str>>> = BTreeMap::new();
    for name in names.clone() {
        let runs = runs(name);
        let kind = kinds.entry(around(name, &runs)).or_insert_with(|| vec![BTreeSet::new(); runs.len()]);
        for (digits, run) in kind.iter_mut().zip(runs) {
            digits.insert(&name[run]);
        }
    }
    let mut patterns = BTreeSet::new();
    for name in names {
        let runs = runs(name);
        let differ: Vec<bool> = kinds[&around(name, &runs)].iter().map(|digits| digits.len() > 1).collect();
        let may_be_layer = |at: usize| differ[at] || !differ.contains(&true);
        patterns_of(name, &runs, may_be_layer, &mut patterns);
    }
    patterns
}

/// What stands before, between and after these places of a name.
fn around<'a>(name: &'a str, runs: &[Range<usize>]) -> Vec<&'a str> {
    let starts = std::iter::once(0).chain(runs.iter().map(|run| run.end));
    let ends = runs.iter().map(|run| run.start).chain([name.len()]);
    starts.zip(ends).map(|(start, end)| &name[start..end]).collect()
}

/// Where the numbers stand in a name that may be a pass's or a layer's.
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

/// Adds the name with each of its numbers, or none, taken for the pass's and for the layer's.
fn patterns_of(
    name: &str,
    runs: &[Range<usize>],
    may_be_layer: impl Fn(usize) -> bool,
    patterns: &mut BTreeSet<String>,
) {
    let stem = name.strip_suffix(".npy").unwrap_or(name);
    let none_or_each = || std::iter::once(None).chain((0..runs.len()).map(Some));
    for pass in none_or_each() {
        for layer in
            none_or_each().filter(|layer| layer.is_none_or(|at| Some(at) != pass && may_be_layer(at)))
        {
            let mut made = vec![String::new()];
            let mut end = 0;
            for (at, run) in runs.iter().enumerate() {
                let digits = &stem[run.clone()];
                let place = match Some(at) {
                    at if at == pass => Some("pass"),
                    at if at == layer => Some("layer"),
                    _ => None,
                };
                let as_it_is = || vec![digits.to_owned()];
                let written = place.map_or_else(as_it_is, |place| {
                    let filled = format!("{{{place}:0{}}}", digits.len());
                    match (digits.len(), digits.starts_with('0')) {
                        (1, _) => vec![format!("{{{place}}}")],
                        (_, true) => vec![filled],
                        (_, false) => vec![format!("{{{place}}}"), filled],
                    }
                });
                let before = &stem[end..run.start];
                made = made
                    .iter()
                    .flat_map(|made| written.iter().map(move |written| format!("{made}{before}{written}")))
                    .collect();
                end = run.end;
            }
            patterns.extend(made.into_iter().map(|made| format!("{made}{}.npy", &stem[end..])));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns_of(names: &[&str]) -> BTreeSet<String> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        patterns(names.iter())
    }

    #[test]
    fn each_number_of_a_name_may_be_the_layer_or_the_pass() {
        let patterns = patterns_of(&["p0/l02.q.npy"]);
        let expected = ["p0/l02.q.npy", "p0/l{layer:02}.q.npy", "p0/l{pass:02}.q.npy", "p{layer}/l02.q.npy"];
        for pattern in expected.into_iter().chain(["p{pass}/l{layer:02}.q.npy", "p{layer}/l{pass:02}.q.npy"])
        {
            assert!(patterns.contains(pattern), "{pattern}: {patterns:?}");
        }
        let patterns = patterns_of(&["12.npy"]);
        assert!(patterns.contains("{layer}.npy") && patterns.contains("{layer:02}.npy"), "{patterns:?}");
    }

    #[test]
    fn a_number_that_is_always_the_same_is_no_layer_where_another_differs() {
        let patterns = patterns_of(&["p0/l2.q1.npy", "p0/l3.q1.npy", "p0/other1.npy"]);
        assert!(patterns.contains("p{pass}/l{layer}.q1.npy"), "{patterns:?}");
        assert!(patterns.contains("p0/other{layer}.npy"), "{patterns:?}");
        for pattern in ["p{layer}/l2.q1.npy", "p0/l2.q{layer}.npy", "p{layer}/l{pass}.q1.npy"] {
            assert!(!patterns.contains(pattern), "{pattern}: {patterns:?}");
        }
    }
}
