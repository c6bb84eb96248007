//! `diff --suggest-map`: what the files of a folder may be, by their shapes and by the values of the reference. What is
//! proposed is a capture.toml, which says of each line whether it is sure.

mod fits;
mod names;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Result as Printed, Write};
use std::path::Path;

use serde_json::json;

use self::fits::Fits;
use self::names::Names;
use super::super::output;
use super::capture::{Capture, Lies, Padded, Pairs};
use crate::diff::{Pass, Traced};
use crate::error::{Error, Result};
use crate::stop;
use crate::trace::{PassDims, Site, Stage};

/// How far a stage may be off, ‖B − A‖ / ‖A‖, and be surely the one that it is taken for.
const SURE: f64 = 0.05;

/// How far the directions may be apart of what may be the same, as a sine.
const ALIKE: f64 = 0.7;

/// What was found for a stage.
pub(super) struct Found {
    stage: Stage,
    lies: Lies,
    /// How far it is off where it is off least, and the sine of the angle between.
    error: f64,
    sine: f64,
    /// Whether a value is infinite, or no number, in one of the two alone.
    odd: bool,
    /// In how many places the folder has a file for it.
    places: usize,
}

impl Found {
    /// Whether its file's name has a place for the pass.
    fn has_pass(&self) -> bool {
        self.lies.file.as_ref().is_some_and(|file| file.contains("{pass"))
    }
}

/// Proposes a map for the folder at `path`, by `a`, the reference, and prints it.
///
/// # Errors
/// [`Error::Usage`] where there is nothing to propose it by, and where the folder cannot be read.
pub(super) fn run(a: &mut impl Traced, path: &Path) -> Result<()> {
    let Some(card) = a.about().card.clone() else {
        return Err(Error::usage("the reference does not say which model it is of")
            .at(&a.about().name)
            .expected("a trace, or a folder that `llama-trace export` wrote")
            .next("export a run of the same tokens, and give its folder as A"));
    };
    let (names, sizes) = (Names::read(path)?, card.sizes());
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
    let mut found = sure(&fits)?;
    sums(&fits, &mut found)?;
    likely(&fits, &mut found)?;
    if found.is_empty() {
        return Err(Error::usage("no file of the folder has the values of a stage of the reference")
            .in_file(path)
            .expected(format!(
                "files of the run that {} has, of its {} tokens",
                a.about().name,
                a.about().passes.first().map_or(0, |pass| pass.dims.tokens)
            ))
            .found(format!("{} .npy files", names.files()))
            .next("run the same tokens in both, and write what comes before RoPE and attention too"));
    }
    let proposal = Proposal { fits: &fits, names: &names, found, padded, head_dim: sizes.head_dim };
    output::end(proposal.print(a).map_err(output::Failure::from))
}

/// What fits by its values, each file for one stage.
fn sure(fits: &Fits<'_>) -> Result<Vec<Found>> {
    let mut found: Vec<Found> = Vec::new();
    for &stage in Stage::ALL {
        let mut best: Option<Found> = None;
        for lies in fits.ways(stage) {
            stop::check()?;
            if found.iter().any(|other| fits.share(other.stage, &other.lies, stage, &lies)) {
                continue;
            }
            let Some(one) = fits.judge(stage, lies)? else { continue };
            let better = |best: &Found| {
                // Of several passes a name is better than that of one of them.
                let of_one = |one: &Found| fits.has_several() && !one.has_pass();
                // Two stages may have the same values, of which the file's name is one.
                let rank = |one: &Found| {
                    (one.error.max(1e-6), (!named(one), std::cmp::Reverse(one.places), of_one(one)))
                };
                let ((a, more), (b, fewer)) = (rank(&one), rank(best));
                a < b / 2.0 || (a <= b * 2.0 && more < fewer)
            };
            if one.error <= SURE && best.as_ref().is_none_or(better) {
                best = Some(one);
            }
        }
        found.extend(best);
    }
    Ok(found)
}

/// What is another's before or after a residual was added.
fn sums(fits: &Fits<'_>, found: &mut Vec<Found>) -> Result<()> {
    let file = |found: &[Found], stage: Stage| {
        let of = found.iter().find(|one| one.stage == stage);
        of.filter(|one| one.lies.is_plain()).and_then(|one| one.lies.file.clone())
    };
    let (middle, down, end) = (Stage::AttnResidual, Stage::FfnDown, Stage::FfnResidual);
    for (stage, from, is_sum) in [(end, down, true), (down, end, false)] {
        let (Some(own), Some(other)) = (file(found, from), file(found, middle)) else { continue };
        if found.iter().any(|one| one.stage == stage) {
            continue;
        }
        let [plus, minus] = if is_sum { [Some(other), None] } else { [None, Some(other)] };
        let lies = Lies { file: Some(own), plus, minus, ..Lies::default() };
        found.extend(fits.judge(stage, lies)?.filter(|one| one.error <= SURE));
    }
    found.sort_by_key(|one| one.stage);
    Ok(())
}

/// Whether the file has the stage's name.
fn named(one: &Found) -> bool {
    one.lies.file.as_deref().is_some_and(|file| fits::calls(file, one.stage))
}

/// What is alike, of the stages and the files that are left: after a mistake nothing is the same.
fn likely(fits: &Fits<'_>, found: &mut Vec<Found>) -> Result<()> {
    let have: BTreeSet<Stage> = found.iter().map(|one| one.stage).collect();
    let mut left = Vec::new();
    for &stage in Stage::ALL.iter().filter(|stage| !have.contains(stage)) {
        for lies in fits.ways(stage).into_iter().filter(|lies| fits.may_be(stage, lies)) {
            stop::check()?;
            if !found.iter().any(|other| fits.share(other.stage, &other.lies, stage, &lies)) {
                left.extend(fits.judge(stage, lies)?.filter(|one| one.sine <= ALIKE || named(one)));
            }
        }
    }
    left.sort_by(|a, b| {
        // A file that is called as the stage is has it as it lies. In another order the values of a port with a mistake may be
        // nearer by chance; what is surely in another order was found before.
        let turned = |one: &Found| named(one) && !one.lies.is_plain();
        let first = (!named(a), turned(a)).cmp(&(!named(b), turned(b)));
        // Of a mask read in another order little is finite in both, and that may be alike.
        let of_one = |one: &Found| fits.has_several() && !one.has_pass();
        let order = (a.odd, a.sine, b.places, of_one(a)).partial_cmp(&(b.odd, b.sine, a.places, of_one(b)));
        first.then(order.unwrap_or(std::cmp::Ordering::Equal))
    });
    for one in left {
        let taken = found.iter().any(|other| other.stage == one.stage);
        if !taken && !found.iter().any(|other| fits.share(other.stage, &other.lies, one.stage, &one.lies)) {
            found.push(one);
        }
    }
    found.sort_by_key(|one| one.stage);
    Ok(())
}

/// What is printed.
struct Proposal<'a, 'f> {
    fits: &'a Fits<'f>,
    names: &'a Names,
    found: Vec<Found>,
    padded: Padded,
    head_dim: usize,
}

impl Proposal<'_, '_> {
    fn print(&self, a: &impl Traced) -> Printed<()> {
        let mut out = output::Lines::text();
        writeln!(
            out,
            "# What the files may be, by their shapes and the values of the reference. Check it, and save it as capture.toml"
        )?;
        writeln!(out, "# in the folder.")?;
        let head = self.head(a);
        write!(out, "{head}")?;
        writeln!(out, "\n[stages]")?;
        let gaps = self.gaps(&head, self.passes(a).len());
        for one in &self.found {
            let how = match one.error <= SURE {
                true => format!("sure: error {:.1e} where it is least", one.error),
                false => {
                    format!("not sure: error {:.1e}, angle {:.0}°", one.error, one.sine.asin().to_degrees())
                }
            };
            writeln!(out, "{} = {}  # {how}; in {}", one.stage, written(&one.lies), places(one.places))?;
            if let Some((first, more)) = gaps.get(&one.stage) {
                let more = if *more > 0 { format!(", and {more} more like it") } else { String::new() };
                writeln!(
                    out,
                    "# {first} is not there{more}: the line above says that it should be, and `diff` ends with exit code 3"
                )?;
            }
        }
        let have: BTreeSet<Stage> = self.found.iter().map(|one| one.stage).collect();
        let missing: Vec<_> =
            self.fits.stages().filter(|stage| !have.contains(stage)).map(Stage::name).collect();
        if !missing.is_empty() {
            writeln!(out, "\n# Not found: {}", missing.join(", "))?;
        }
        let used = self.found.iter().flat_map(|one| [&one.lies.file, &one.lies.times]).flatten();
        let rest = self.names.others(used.map(String::as_str), &self.fits.sites());
        if !rest.is_empty() {
            writeln!(out, "# Files that nothing was found for: {}", rest.join(", "))?;
        }
        Ok(())
    }

    /// All that comes before the stages.
    fn head(&self, a: &impl Traced) -> String {
        let mut lines = vec!["format = \"llama-trace capture\"".to_owned(), "version = 1".to_owned()];
        let sure = self.found.iter().filter(|one| one.error <= SURE).map(|one| one.error);
        let worst = sure.reduce(f64::max);
        // How far it is off says nothing: a mistake is too. A wider tolerance would let it pass.
        let (precision, why) = match self.fits.bits(&self.found) {
            _ if self.fits.reads_int8() => ("q8", "what products read lies there in int8"),
            Some(name) => (name, "every value has its bits"),
            None if worst.is_some_and(|worst| worst < 1e-3) => ("f32", "as near as it is to the reference"),
            None => {
                ("f32", "not sure: no rounding to 16 bits shows, nor int8. If it ran in bf16, f16 or q8,")
            }
        };
        lines.push(format!("precision = \"{precision}\"  # {why}"));
        if why.starts_with("not sure") {
            lines.push("# say so here: each of them lets it be further from the reference.".to_owned());
        }
        if self.found.iter().any(|one| one.lies.pairs.is_some()) {
            lines.push(format!("\n[config]\nhead_dim = {}", self.head_dim));
        }
        for pass in self.passes(a) {
            let ids: Vec<u32> = pass.tokens.iter().map(|token| token.id).collect();
            lines.push(format!("\n[[passes]]\nstart = {}", pass.dims.start));
            lines.push(format!("tokens = {}  # the reference's", json!(ids)));
            let Padded { around: [before, after], batch, .. } = self.padded;
            let padding = |count: usize| (count > 0).then_some(count);
            for (name, count) in
                [("padding", padding(before)), ("padding_after", padding(after)), ("batch", batch)]
            {
                lines.extend(count.map(|count| format!("{name} = {count}")));
            }
        }
        let (there, all) = (self.passes(a).len(), a.about().passes.len());
        if there < all {
            lines.push(format!("\n# The reference has {all} passes and the folder files of {there}: `diff` ends with exit code 3, unless A drew no more tokens."));
        }
        lines.join("\n") + "\n"
    }

    /// The passes of the reference that the folder has files of.
    fn passes<'t>(&self, a: &'t impl Traced) -> &'t [Pass] {
        let passes = &a.about().passes[..];
        let most = self.fits.passes_of(self.found.iter().filter_map(|one| one.lies.file.as_deref()));
        &passes[..most.min(passes.len())]
    }

    /// Of the stages that are not written everywhere where the map says that they are, in the first so many passes: the
    /// first place, and how many more there are.
    fn gaps(&self, head: &str, passes: usize) -> BTreeMap<Stage, (Site, usize)> {
        let lines = self.found.iter().map(|one| format!("{} = {}\n", one.stage, written(&one.lies)));
        let lines: String = lines.collect();
        let mut gaps: BTreeMap<Stage, (Site, usize)> = BTreeMap::new();
        // What the line of a stage asks for, the map itself knows.
        let Ok(map) = Capture::read(&format!("{head}\n[stages]\n{lines}")) else { return gaps };
        let folder = self.fits.folder;
        let found = |site: &Site| self.found.iter().any(|one| one.stage == site.stage);
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

fn places(count: usize) -> String {
    if count == 1 { "1 place".into() } else { format!("{count} places") }
}

/// An entry of [stages].
fn written(lies: &Lies) -> String {
    let mut parts: BTreeMap<usize, String> = BTreeMap::new();
    let texts = [("file", &lies.file), ("times", &lies.times), ("plus", &lies.plus), ("minus", &lies.minus)];
    for (at, (key, text)) in texts.into_iter().enumerate() {
        // A JSON string is a TOML string.
        text.iter().for_each(|text| drop(parts.insert(at * 10, format!("{key} = {}", json!(text)))));
    }
    lies.columns.iter().for_each(|columns| drop(parts.insert(1, format!("columns = {}", json!(columns)))));
    lies.axes.iter().for_each(|axes| drop(parts.insert(2, format!("axes = {}", json!(axes)))));
    if let Some(pairs) = lies.pairs {
        let name = match pairs {
            Pairs::NeighboursToHalves => "neighbours_to_halves",
            Pairs::HalvesToNeighbours => "halves_to_neighbours",
        };
        parts.insert(3, format!("pairs = \"{name}\""));
    }
    format!("{{ {} }}", parts.into_values().collect::<Vec<_>>().join(", "))
}
