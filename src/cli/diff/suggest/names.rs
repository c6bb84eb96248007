//! The names of a folder's files, and what they may be with a pass and a layer in the place of their numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::super::capture::{WIDEST, named};
use super::super::npy;
use crate::error::{Error, Result};
use crate::trace::Site;

/// The most files of a folder that are looked at.
const FILES: usize = 100_000;

/// How deep its folders are looked into.
const DEPTH: usize = 8;

/// Names that are told of at most.
const TOLD: usize = 12;

/// The files, by their names below the folder, with their shapes.
pub(super) struct Names {
    shapes: BTreeMap<String, Vec<usize>>,
    /// Their names, with {pass} and {layer} in them.
    pub(super) patterns: BTreeSet<String>,
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
        let mut shapes = BTreeMap::new();
        walk(path, "", DEPTH, &mut shapes);
        let mut patterns = BTreeSet::new();
        shapes.keys().for_each(|name| patterns_of(name, &mut patterns));
        Ok(Self { shapes, patterns })
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

/// Adds the `.npy` files below the folder at `path`, whose name is `above`.
fn walk(path: &Path, above: &str, depth: usize, shapes: &mut BTreeMap<String, Vec<usize>>) {
    let Ok(entries) = std::fs::read_dir(path) else { return };
    for entry in entries.flatten() {
        let (Ok(kind), Ok(name)) = (entry.file_type(), entry.file_name().into_string()) else { continue };
        // What is no plain name could not stand in a map.
        if shapes.len() >= FILES || name.contains(['{', '}']) {
            continue;
        }
        let below = if above.is_empty() { name } else { format!("{above}/{name}") };
        if kind.is_dir() && depth > 1 {
            walk(&entry.path(), &below, depth - 1, shapes);
        } else if kind.is_file() && below.ends_with(".npy") {
            shapes.extend(npy::shape(&entry.path()).map(|shape| (below, shape)));
        }
    }
}

/// The name with each of its numbers, or none, taken for the pass's and for the layer's.
fn patterns_of(name: &str, patterns: &mut BTreeSet<String>) {
    let stem = name.strip_suffix(".npy").unwrap_or(name);
    let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
    for (at, c) in stem.char_indices().filter(|(_, c)| c.is_ascii_digit()) {
        match runs.last_mut().filter(|run| run.end == at) {
            Some(run) => run.end = at + c.len_utf8(),
            None => runs.push(at..at + c.len_utf8()),
        }
    }
    let runs: Vec<_> = runs.into_iter().filter(|run| run.len() <= WIDEST).collect();
    let none_or_each = || std::iter::once(None).chain((0..runs.len()).map(Some));
    for pass in none_or_each() {
        for layer in none_or_each().filter(|layer| layer.is_none() || *layer != pass) {
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

    #[test]
    fn each_number_of_a_name_may_be_the_layer_or_the_pass() {
        let mut patterns = BTreeSet::new();
        patterns_of("p0/l02.q.npy", &mut patterns);
        let expected = ["p0/l02.q.npy", "p0/l{layer:02}.q.npy", "p0/l{pass:02}.q.npy", "p{layer}/l02.q.npy"];
        for pattern in expected.into_iter().chain(["p{pass}/l{layer:02}.q.npy", "p{layer}/l{pass:02}.q.npy"])
        {
            assert!(patterns.contains(pattern), "{pattern}: {patterns:?}");
        }
        let mut patterns = BTreeSet::new();
        patterns_of("12.npy", &mut patterns);
        assert!(patterns.contains("{layer}.npy") && patterns.contains("{layer:02}.npy"), "{patterns:?}");
    }
}
