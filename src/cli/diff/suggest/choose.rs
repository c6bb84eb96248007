//! Which file is which stage: what fits by its values first, then by its name, then what is likeliest of what is left. After a
//! mistake nothing fits any more, and the stage that it is in must not be left out of the map.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashSet};

use super::super::capture::Lies;
use super::fits::{Fits, SURE, Way, needs_name};
use super::words::{called, may_look_like};
use crate::diff::Distance;
use crate::error::Result;
use crate::stop;
use crate::trace::stage::Section;
use crate::trace::{Axis, PassDims, Site, Stage};

/// How far the directions may be apart of what may be the same, as a sine.
const ALIKE: f64 = 0.7;

/// How far off a stage may be that says that the run is right up to it.
const QUIET: f64 = 1e-4;

/// How many times as far off as stages usually are it may be, where that is more.
const USUAL: f64 = 4.0;

/// Why a file is taken for a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// In some place its values are the stage's.
    Values,
    /// The first token's are in all of them.
    FirstToken,
    /// It is called so.
    Name,
    /// It is the likeliest.
    Guess,
}

/// What a file is taken for.
pub(super) struct Chosen<'f> {
    pub(super) way: Way<'f>,
    pub(super) how: How,
    /// Whether its line is one, and no comment.
    pub(super) is_live: bool,
}

/// What has been chosen, with the files that are taken.
struct Choice<'a, 'f> {
    fits: &'a Fits<'f>,
    found: Vec<Chosen<'f>>,
    files: Vec<BTreeSet<String>>,
}

impl<'f> Choice<'_, 'f> {
    /// Whether the stage has no file yet and the file no stage. Parts of one that lie side by side are no same file.
    fn is_free(&self, way: &Way<'f>) -> bool {
        if self.found.iter().any(|one| one.way.stage == way.stage) {
            return false;
        }
        let files = self.fits.files(way);
        let clashes = |(one, taken): (&Chosen<'f>, &BTreeSet<String>)| {
            let apart = match (one.way.lies.columns, way.lies.columns) {
                (Some(a), Some(b)) => a[1] <= b[0] || b[1] <= a[0],
                _ => false,
            };
            !apart && !taken.is_disjoint(&files)
        };
        !self.found.iter().zip(&self.files).any(clashes)
    }

    fn take(&mut self, way: Way<'f>, how: How) {
        self.files.push(self.fits.files(&way));
        self.found.push(Chosen { way, how, is_live: true });
    }

    /// Takes of `ways` in the order of `rank` each that is free.
    fn take_by<K: PartialOrd>(
        &mut self,
        ways: Vec<&Way<'f>>,
        how: How,
        rank: impl Fn(&Way<'f>) -> K,
    ) -> Result<()> {
        let mut ranked: Vec<(K, &Way<'f>)> = ways.into_iter().map(|way| (rank(way), way)).collect();
        ranked.sort_by(|(a, _), (b, _)| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
        for (_, way) in ranked {
            stop::check()?;
            if self.is_free(way) {
                self.take(way.clone(), how);
            }
        }
        Ok(())
    }
}

/// Chooses for each stage the file that it is in.
///
/// # Errors
/// [`crate::error::Error::Interrupted`].
pub(super) fn choose<'f>(fits: &Fits<'f>, passes: &[PassDims]) -> Result<Vec<Chosen<'f>>> {
    let mut ways = fits.ways()?;
    cut(fits, &mut ways);
    let mut choice = Choice { fits, found: Vec::new(), files: Vec::new() };
    // A power of two: what is nearer by less than that is not nearer.
    let bucket = |way: &Way<'f>| way.errors()[0].max(1e-6).log2().floor();
    let several = fits.has_several();
    let is_hinted = |way: &Way<'f>| way.hinted == Some(way.stage);
    // Of several passes a name is better than that of one of them, and a file as it lies than one that is turned.
    let shown =
        |way: &Way<'f>| (several && !way.pattern.has_pass, Reverse(way.pattern.said), !way.lies.is_plain());
    let others = |way: &Way<'f>| {
        called(&way.pattern.name).is_some_and(|stage| {
            stage != way.stage
                && ways.iter().any(|other| other.stage == stage && other.pattern == way.pattern)
        })
    };
    let full = ways.iter().filter(|way| way.is_full() && !others(way)).collect();
    choice.take_by(full, How::Values, |way| {
        (!way.is_called, bucket(way), !is_hinted(way), Reverse(way.hits()), shown(way), way.stage)
    })?;
    // A family reaches the last layer: numbers that would end before it count otherwise.
    let last = fits.sizes.layers.checked_sub(1);
    let ends_early = |way: &Way<'f>| {
        let reaches = way.lies.layers.is_some() || way.first().iter().any(|(site, _)| site.layer == last);
        way.pattern.has_layer && !reaches
    };
    let is_near =
        |way: &Way<'f>| ways.iter().any(|one| one.is_called && one.stage == way.stage && one.matched() > 0);
    let is_called = |way: &&Way<'f>| way.is_called && is_alone(way) && !is_near(way);
    let named = ways.iter().filter(is_called).collect();
    // As it lies: in another order the values of a port with a mistake may be nearer by chance.
    choice.take_by(named, How::Name, |way| {
        (
            several && !way.pattern.has_pass,
            ends_early(way),
            Reverse(way.pattern.said),
            !way.lies.is_plain(),
            way.is_odd(),
            way.sine(),
        )
    })?;
    // Of a copy of another stage's values a part that fits says nothing.
    let is_copy = |way: &Way<'f>| needs_name(way.stage) && !way.is_called;
    let is_some = |way: &&Way<'f>| {
        way.matched() > 0 && !others(way) && !is_copy(way) && !looks_like_another(way, &ways, &choice)
    };
    let some = ways.iter().filter(is_some).collect();
    choice.take_by(some, How::Values, |way| {
        (
            !way.is_called,
            ends_early(way),
            Reverse(way.matched()),
            bucket(way),
            !is_hinted(way),
            shown(way),
            way.stage,
        )
    })?;
    let first = ways.iter().filter(|way| way.has_first_token() && !others(way) && !is_copy(way)).collect();
    choice.take_by(first, How::FirstToken, |way| {
        (!is_hinted(way), ends_early(way), way.sine(), shown(way), way.stage)
    })?;
    // A stage that a later one says was right is no broken one: its file is another's, or of something else.
    let right = led(fits, passes, &choice.found);
    let was_right =
        |way: &Way<'f>| way.first().iter().any(|(site, apart)| apart.error > SURE && right.contains(site));
    for is_later_right in [false, true] {
        let is_guess =
            |way: &&Way<'f>| was_right(way) == is_later_right && may_be_guessed(fits, way) && !others(way);
        let guessed = ways.iter().filter(is_guess).collect();
        choice.take_by(guessed, How::Guess, |way| {
            // By how much alike they are, in steps: what is nothing like any stage is likeliest what most write.
            let alike = (way.sine() * 10.0).floor();
            (!is_hinted(way), ends_early(way), way.is_odd(), alike, prior(way.stage), way.sine(), shown(way))
        })?;
    }
    let mut found = sums(choice)?;
    silence(fits, &right, &mut found);
    found.sort_by_key(|one| one.way.stage);
    Ok(found)
}

/// The places that are right, and all that they were computed from: what went wrong before shows in them.
fn led(fits: &Fits<'_>, passes: &[PassDims], found: &[Chosen<'_>]) -> HashSet<Site> {
    let by_values = || found.iter().filter(|one| one.how == How::Values).map(|one| &one.way);
    let mut usual: Vec<f64> = by_values().map(|way| way.errors()[0]).filter(|error| *error > 0.0).collect();
    usual.sort_by(f64::total_cmp);
    let quiet = usual.get(usual.len() / 2).map_or(QUIET, |usual| (USUAL * usual).max(QUIET));
    let is_quiet = |(site, apart): &(Site, Distance)| (apart.error <= quiet).then_some(*site);
    let mut open: Vec<Site> = by_values().flat_map(|way| way.first().iter().filter_map(is_quiet)).collect();
    let mut led: HashSet<Site> = open.iter().copied().collect();
    while let Some(site) = open.pop() {
        let Some(dims) = passes.iter().find(|dims| dims.pass == site.pass) else { continue };
        let inputs = site.stage.inputs(&fits.sizes, *dims).into_iter();
        let sources = inputs.filter_map(|input| site.input(input, &fits.sizes));
        open.extend(sources.filter(|source| led.insert(*source)));
    }
    led
}

/// A family of files of which the last is the final norm's: the states that transformers returns.
fn cut<'f>(fits: &Fits<'f>, ways: &mut [Way<'f>]) {
    let Some(last) = fits.sizes.layers.checked_sub(1).filter(|last| *last > 0) else { return };
    let finals: Vec<Way<'f>> =
        ways.iter().filter(|way| way.stage == Stage::FinalNorm && way.lies.is_plain()).cloned().collect();
    let mut more = Vec::new();
    for way in ways.iter_mut().filter(|way| way.stage == Stage::FfnResidual && way.lies.is_plain()) {
        let at_last = way.places.iter().find(|(site, _)| site.layer == Some(last) && site.pass == 0);
        let Some(&(_, apart)) = at_last else { continue };
        let is_right = |apart: &Distance| apart.error <= SURE || apart.is_near_first();
        let before: Vec<_> = way.first().iter().filter(|(site, _)| site.layer != Some(last)).collect();
        if before.is_empty() || !before.iter().all(|(_, apart)| is_right(apart)) || is_right(&apart) {
            continue;
        }
        let files = fits.files(way);
        let is_final = |one: &&Way<'f>| {
            let (_, own) = one.places[0];
            fits.files(one).is_subset(&files) && (is_right(&own) || own.error < apart.error / 2.0)
        };
        if let Some(own) = finals.iter().find(is_final) {
            way.lies.layers = Some([0, last]);
            way.retain(|site| site.layer != Some(last));
            more.push(own.clone());
        }
    }
    for own in more {
        ways.iter_mut()
            .filter(|way| way.stage == Stage::FinalNorm && way.lies == own.lies)
            .for_each(|way| way.is_paired = true);
    }
}

/// Whether its name speaks of another stage, which a known mistake gives these values.
fn looks_like_another(way: &Way<'_>, ways: &[Way<'_>], choice: &Choice<'_, '_>) -> bool {
    let Some(named) = way.hinted.filter(|named| may_look_like(*named, way.stage)) else { return false };
    let is_open = !choice.found.iter().any(|one| one.way.stage == named);
    is_open && ways.iter().any(|other| other.stage == named && other.pattern == way.pattern)
}

/// Whether it is no file of a family that is none of layers: that is none of once a pass either.
fn is_alone(way: &Way<'_>) -> bool {
    way.pattern.has_layer || !way.pattern.is_lone || way.is_paired
}

/// Whether a way is worth a guess where its values are nothing near.
fn may_be_guessed(fits: &Fits<'_>, way: &Way<'_>) -> bool {
    let shares = matches!(way.stage, Stage::Probs | Stage::Nucleus | Stage::Sampled);
    let is_family = !way.pattern.has_layer || fits.sizes.layers == 1 || way.places.len() > 1;
    !shares && is_alone(way) && is_family && way.lies.times.is_none() && way.lies.pairs.is_none()
}

/// Which stage is written most, of those of a shape.
fn prior(stage: Stage) -> usize {
    const ORDER: [Stage; 9] = [
        Stage::FfnResidual,
        Stage::Logits,
        Stage::Xq,
        Stage::Xk,
        Stage::Xv,
        Stage::FfnGate,
        Stage::AttnOutput,
        Stage::FfnDown,
        Stage::AttnResidual,
    ];
    ORDER.iter().position(|one| *one == stage).unwrap_or(ORDER.len())
}

/// What is another's before or after a residual was added, where no file is left that it is in.
fn sums<'f>(choice: Choice<'_, 'f>) -> Result<Vec<Chosen<'f>>> {
    let Choice { fits, mut found, .. } = choice;
    let (middle, down, end) = (Stage::AttnResidual, Stage::FfnDown, Stage::FfnResidual);
    for (stage, from, is_sum) in [(end, down, true), (down, end, false)] {
        stop::check()?;
        let file = |stage: Stage| {
            found.iter().find(|one| {
                one.way.stage == stage && one.way.lies.is_plain() && one.way.lies.layers.is_none()
            })
        };
        let (Some(own), Some(other)) = (file(from), file(middle)) else { continue };
        if found.iter().any(|one| one.way.stage == stage) {
            continue;
        }
        let other = other.way.lies.file.clone();
        let [plus, minus] = if is_sum { [other, None] } else { [None, other] };
        let lies = Lies { file: own.way.lies.file.clone(), plus, minus, ..Lies::default() };
        let made = fits.made(&own.way, stage, lies).filter(|way| way.matched() > 0);
        found.extend(made.map(|way| Chosen { way, how: How::Values, is_live: true }));
    }
    Ok(found)
}

/// Makes comments of guesses that a right run may have led to. `right` is all that led to what is right.
fn silence(fits: &Fits<'_>, right: &HashSet<Site>, found: &mut Vec<Chosen<'_>>) {
    let last = fits.sizes.layers.checked_sub(1);
    let reaches_end = right.iter().any(|site| site.layer == last && site.stage == Stage::FfnResidual);
    let goes_wrong = found.iter().any(|one| match one.how {
        How::Values => !one.way.is_full(),
        How::FirstToken | How::Name => true,
        How::Guess => one.way.stage == Stage::Logits,
    });
    let has_logits = found.iter().any(|one| one.way.stage == Stage::Logits);
    let is_wide = |stage: Stage| stage.in_layer() && stage.axes() == [Axis::Token, Axis::Dim];
    // The one family of its shape is what most write.
    let is_only = found.iter().filter(|one| is_wide(one.way.stage)).count() == 1;
    for one in found.iter_mut().filter(|one| one.how == How::Guess) {
        let (way, stage) = (&one.way, one.way.stage);
        let was_right = way.first().iter().any(|(site, apart)| apart.error > SURE && right.contains(site));
        // At the end nothing tells of it what the run went on with.
        let is_left = !has_logits && reaches_end && stage.info().section == Section::End;
        let is_told = way.hinted == Some(stage) || way.sine() <= ALIKE || goes_wrong;
        let is_likely = is_told || stage == Stage::FfnResidual && is_only;
        one.is_live = is_likely && !was_right && (!is_left || way.is_paired);
    }
    // What neither its values nor its name speak for is no guess.
    found.retain(|one| one.is_live || one.way.sine() <= ALIKE || one.way.hinted == Some(one.way.stage));
}
