//! Proposes a capture.toml: matches the files of a folder to stages by their shapes and by the values of a reference run.
//! An uncertain line is a comment, and no file is used twice.

mod choose;
mod fits;
mod names;
mod plausible;
mod sums;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};
use std::path::Path;

use serde_json::json;

use self::choose::{Chosen, How};
use self::fits::{Bits, Fits, SURE};
use self::names::Names;
use crate::capture::{Capture, Layout, Padding, Pairs};
use crate::diff::{About, Pass, Traced};
use llama_trace_core::error::{Error, Result};
use llama_trace_core::stop;
use llama_trace_core::trace::{PassDims, Site, Sizes, Stage};

/// The text of a capture.toml for the folder at `path`. `a` is the reference, a run of a model of these sizes over the
/// same tokens.
///
/// # Errors
/// [`Error::Usage`] if no file matches or the folder cannot be read, [`Error::Interrupted`], and those of `a`.
pub fn propose(a: &mut impl Traced, sizes: Sizes, path: &Path) -> Result<String> {
    let names = Names::read(path)?;
    let passes: Vec<PassDims> = a.about().passes.iter().map(|pass| pass.dims).collect();
    let mut fits = Fits::new(path, &names, sizes, &passes);
    for dims in passes.iter().take(fits::PASSES) {
        for site in Site::all(&sizes, *dims) {
            stop::check()?;
            if fits.samples(site) {
                fits.add(site, a.stage(site)?);
            }
        }
    }
    let padded = fits.find_padding()?;
    let found = choose::choose(&fits, &passes)?;
    if found.is_empty() {
        return Err(Error::usage("no file of the folder has the values of a stage of the reference")
            .in_file(path)
            .expected(format!(
                "files of the same run as {}, over its {} tokens",
                a.about().name,
                a.about().passes.first().map_or(0, |pass| pass.dims.tokens)
            ))
            .found(format!("{} .npy files", names.files()))
            .next("run the same tokens in both, and write the stages before RoPE and attention too"));
    }
    let about = a.about();
    let proposal = Proposal { about, fits: &fits, names: &names, found, padded, head_dim: sizes.head_dim };
    Ok(proposal.to_string())
}

/// The proposed map. It displays as the text of a capture.toml.
struct Proposal<'a, 'f> {
    /// The description of the reference.
    about: &'a About,
    fits: &'a Fits<'f>,
    names: &'a Names,
    found: Vec<Chosen<'f>>,
    padded: Padding,
    head_dim: usize,
}

impl Proposal<'_, '_> {
    /// The lines that are not comments.
    fn live(&self) -> impl Iterator<Item = &Chosen<'_>> {
        self.found.iter().filter(|one| one.is_live)
    }

    /// The names of the files of all lines.
    fn used(&self) -> BTreeSet<String> {
        let weights = |one: &Chosen<'_>| {
            let times = one.way.layout.times.as_deref();
            times.map_or_else(BTreeSet::new, |times| self.names.of(times, 1, 0..self.fits.sizes.layers))
        };
        self.found.iter().flat_map(|one| [self.fits.files(&one.way), weights(one)]).flatten().collect()
    }

    /// The text before the stages.
    fn head(&self) -> String {
        let mut lines = vec!["format = \"llama-trace capture\"".to_owned(), "version = 1".to_owned()];
        let sure = self.live().map(|one| one.way.errors()[0]).filter(|error| *error <= SURE);
        let worst = sure.reduce(f64::max);
        let ways: Vec<_> = self.live().map(|one| &one.way).collect();
        // The distance from the reference does not show the precision. A mistake has a large distance too, and would
        // pass with a wider tolerance.
        let (precision, why) = match self.fits.bits(&ways) {
            _ if self.fits.reads_int8() => ("q8", "the inputs of the matrix products are in int8".to_owned()),
            Bits::Sixteen(name) => (name, "every value has this precision".to_owned()),
            Bits::ButLogits(name) => {
                let why = "every value has this precision except the logits, which often stay in float32. If the run was";
                (name, format!("not sure: {why} in f32,"))
            }
            Bits::Alone(name) => {
                let why =
                    format!("the residual stream is rounded to {name}, but the stages before it are not");
                ("f32", why)
            }
            Bits::Some(name, stages) => {
                let stages: Vec<_> = stages.into_iter().map(Stage::name).collect();
                let have = if stages.len() == 1 { "has" } else { "have" };
                let why = format!(
                    "{} {have} this precision, but the folder has no stage that every run in {name} rounds. If the run was",
                    stages.join(", ")
                );
                (name, format!("not sure: {why} in f32,"))
            }
            Bits::All if worst.is_some_and(|worst| worst < 1e-3) => {
                ("f32", "the values are close to the reference".to_owned())
            }
            Bits::All => {
                let why =
                    "not sure: no rounding to 16 bits or int8 is visible. If the run was in bf16, f16 or q8,";
                ("f32", why.to_owned())
            }
        };
        lines.push(format!("precision = \"{precision}\"  # {why}"));
        if why.starts_with("not sure") {
            lines.push(
                "# write that precision here: a coarser precision allows a larger distance from the reference."
                    .to_owned(),
            );
        }
        if self.found.iter().any(|one| one.way.layout.pairs.is_some()) {
            lines.push(format!("\n[config]\nhead_dim = {}", self.head_dim));
        }
        for pass in self.passes() {
            let ids: Vec<u32> = pass.tokens.iter().map(|token| token.id).collect();
            lines.push(format!("\n[[passes]]\nstart = {}", pass.dims.start));
            lines.push(format!("tokens = {}  # the reference's ids", json!(ids)));
            let Padding { around: [before, after], batch, .. } = self.padded;
            let padding = |count: usize| (count > 0).then_some(count);
            for (name, count) in
                [("padding", padding(before)), ("padding_after", padding(after)), ("batch", batch)]
            {
                lines.extend(count.map(|count| format!("{name} = {count}")));
            }
        }
        let (there, all) = (self.passes().len(), self.about.passes.len());
        if there < all {
            lines.push(format!("\n# The reference has {all} passes, but the folder has files of only {there}: `diff` ends with exit code 3, unless A has only these passes."));
        }
        lines.join("\n") + "\n"
    }

    /// The reference's passes for which the folder has files.
    fn passes(&self) -> &[Pass] {
        let passes = &self.about.passes[..];
        let most = self.fits.passes_of(self.found.iter().map(|one| &*one.way.pattern.name));
        &passes[..most.min(passes.len())]
    }

    /// The stages with missing files, according to the map and the first `passes` passes: the first site without a
    /// file, and the number of further ones.
    fn gaps(&self, head: &str, passes: usize) -> BTreeMap<Stage, (Site, usize)> {
        let lines = self.live().map(|one| format!("{} = {}\n", one.way.stage, written(&one.way.layout)));
        let lines: String = lines.collect();
        let mut gaps: BTreeMap<Stage, (Site, usize)> = BTreeMap::new();
        // The map determines which files a line names.
        let Ok(map) = Capture::read(&format!("{head}\n[stages]\n{lines}")) else { return gaps };
        let folder = self.fits.folder;
        let live: BTreeSet<Stage> = self.live().map(|one| one.way.stage).collect();
        let found = |site: &Site| live.contains(&site.stage);
        let lacks = |site: &Site| {
            let is_there = folder.join(map.file(*site)).symlink_metadata().is_ok();
            site.pass < passes && found(site) && !is_there && map.unwritten(folder, *site).is_some()
        };
        for site in self.fits.sites().filter(lacks) {
            gaps.entry(site.stage).and_modify(|(_, more)| *more += 1).or_insert((site, 0));
        }
        gaps
    }
}

impl Display for Proposal<'_, '_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        writeln!(
            out,
            "# A proposal from the files' shapes and the values of the reference. Check it, and save it as capture.toml"
        )?;
        writeln!(out, "# in the folder.")?;
        if self.found.iter().any(|one| !one.is_live) {
            writeln!(out, "# Uncertain lines are comments: remove the # of a line that is correct.")?;
        }
        let head = self.head();
        write!(out, "{head}")?;
        writeln!(out, "\n[stages]")?;
        let gaps = self.gaps(&head, self.passes().len());
        if self.live().any(|one| !one.maybe.is_empty()) {
            writeln!(
                out,
                "# A file with `maybe` may hold any of the stages in its line: `diff` says so if this matters."
            )?;
        }
        for one in &self.found {
            let ([least, most], angle) = (one.way.errors(), one.way.sine().asin().to_degrees());
            let far = if most > SURE { format!(", largest error {most:.1e}") } else { String::new() };
            let how = match one.how {
                How::Values => format!("sure: smallest error {least:.1e}{far}"),
                How::FirstToken => {
                    format!("sure of the first token; the other tokens: error {most:.1e}, angle {angle:.0}°")
                }
                How::Name => format!("by its name: error {least:.1e}, angle {angle:.0}°"),
                How::Guess if one.is_live => format!("likely: error {least:.1e}, angle {angle:.0}°"),
                How::Guess => format!("not sure: error {least:.1e}, angle {angle:.0}°"),
            };
            let mark = if one.is_live { "" } else { "# " };
            let (stage, layout) = (one.way.stage, written(&one.layout()));
            writeln!(out, "{mark}{stage} = {layout}  # {how}; in {}", places(self.fits.count(&one.way)))?;
            if let Some((first, more)) = gaps.get(&stage) {
                let more = if *more > 0 { format!(" (and {more} more)") } else { String::new() };
                writeln!(
                    out,
                    "# The file of {first} is missing{more}, but the line above names it: `diff` ends with exit code 3"
                )?;
            }
        }
        let have: BTreeSet<Stage> = self.found.iter().map(|one| one.way.stage).collect();
        let missing: Vec<_> =
            self.fits.stages().filter(|stage| !have.contains(stage)).map(Stage::name).collect();
        if !missing.is_empty() {
            writeln!(out, "\n# Not found: {}", missing.join(", "))?;
        }
        let ends = [Stage::FinalNorm, Stage::Logits];
        if let Some(stream) = self.live().find(|one| one.way.is_stream)
            && !self.live().any(|one| ends.contains(&one.way.stage))
        {
            writeln!(
                out,
                "# {} of the last layer has the output of that layer. If it should have the output of the final norm, the port leaves that norm out.",
                stream.way.pattern.name
            )?;
        }
        let rest = self.names.others(&self.used());
        if !rest.is_empty() {
            writeln!(out, "# Files that match no stage: {}", rest.join(", "))?;
        }
        Ok(())
    }
}

fn places(count: usize) -> String {
    if count == 1 { "1 place".into() } else { format!("{count} places") }
}

/// An entry of `[stages]` as TOML.
fn written(layout: &Layout) -> String {
    let mut parts: BTreeMap<usize, String> = BTreeMap::new();
    let texts =
        [("file", &layout.file), ("times", &layout.times), ("plus", &layout.plus), ("minus", &layout.minus)];
    for (at, (key, text)) in texts.into_iter().enumerate() {
        // A JSON string is a TOML string.
        text.iter().for_each(|text| drop(parts.insert(at * 10, format!("{key} = {}", json!(text)))));
    }
    for (at, key, range) in [(1, "layers", layout.layers), (2, "columns", layout.columns)] {
        range.iter().for_each(|range| drop(parts.insert(at, format!("{key} = {}", json!(range)))));
    }
    layout.maybe.iter().for_each(|maybe| drop(parts.insert(40, format!("maybe = {}", json!(maybe)))));
    layout.axes.iter().for_each(|axes| drop(parts.insert(3, format!("axes = {}", json!(axes)))));
    if let Some(pairs) = layout.pairs {
        let name = match pairs {
            Pairs::NeighboursToHalves => "neighbours_to_halves",
            Pairs::HalvesToNeighbours => "halves_to_neighbours",
        };
        parts.insert(4, format!("pairs = \"{name}\""));
    }
    format!("{{ {} }}", parts.into_values().collect::<Vec<_>>().join(", "))
}
