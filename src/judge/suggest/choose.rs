//! Chooses the file of each stage: first by values, then by name, then the likeliest of the other files. After a
//! mistake in the run no values match any more, but the map must still name the file of the stage with the mistake. A
//! *way* ([`Way`]) reads files as a stage; its *places* are the sites at which it is compared. A *family* is a set of
//! files, one for each layer.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::fits::{Fits, SURE, Way, is_norm, is_scaled, needs_name};
use super::sums::{self, Sums};
use super::words::{called, may_look_like};
use crate::capture::{Layout, named};
use crate::diff::Distance;
use llama_trace_core::error::Result;
use llama_trace_core::stop;
use llama_trace_core::trace::stage::Section;
use llama_trace_core::trace::{Axis, Op, PassDims, Site, Stage};

/// The largest sine of the angle between a stage and a file that may hold it.
const ALIKE: f64 = 0.7;

/// The largest error at which a stage shows that the run is right up to this stage.
const QUIET: f64 = 1e-4;

/// The same limit as a multiple of the usual error. The larger of the two limits is used.
const USUAL: f64 = 4.0;

/// How much larger the sine of another stage may be than the sine of the chosen stage, if the file may hold both.
const AS_WELL: f64 = 0.2;

/// The maximum number of such stages that are named.
const OTHERS: usize = 8;

/// The reason for a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// The file's values match in some place.
    Values,
    /// The values of the first token match in all places.
    FirstToken,
    /// The file has the stage's name.
    Name,
    /// The file is the likeliest of the other files.
    Guess,
}

/// A chosen file.
pub(super) struct Chosen<'f> {
    pub(super) way: Way<'f>,
    pub(super) how: How,
    /// Whether the line of the file in the map is active; otherwise it is a comment.
    pub(super) is_live: bool,
    /// Other stages that the file may hold.
    pub(super) maybe: Vec<Stage>,
}

impl<'f> Chosen<'f> {
    fn new(way: Way<'f>, how: How) -> Self {
        Self { way, how, is_live: true, maybe: Vec::new() }
    }

    /// The memory layout, with the other stages that the file may hold.
    pub(super) fn layout(&self) -> Layout {
        let maybe: Vec<String> = self.maybe.iter().map(|stage| stage.name().to_owned()).collect();
        Layout { maybe: (!maybe.is_empty()).then_some(maybe), ..self.way.layout.clone() }
    }
}

/// The places that must be right, because right places were computed from them.
struct Led {
    /// These places and the right places themselves. The value is false if only the direction of their rows must be
    /// right.
    places: HashMap<Site, bool>,
    /// Only the places from which another right place was computed.
    sources: HashSet<Site>,
}

impl Led {
    /// Returns whether the place was right. If only norms read it, the length of its rows may be wrong.
    fn has(&self, (site, apart): &(Site, Distance)) -> bool {
        self.places.get(site).is_some_and(|is_exact| *is_exact || !is_scaled(apart))
    }

    /// Returns whether the stage was right in some place where the file's values are far from the reference.
    fn clears(&self, way: &Way<'_>) -> bool {
        // Queries and keys that are rotated by the same wrong angles give the right scores.
        !way.is_turned && way.first().iter().any(|place| place.1.error > SURE && self.has(place))
    }
}

/// The choice so far, with the files that are taken.
struct Choice<'a, 'f> {
    fits: &'a Fits<'f>,
    found: Vec<Chosen<'f>>,
    files: Vec<BTreeSet<String>>,
}

impl<'f> Choice<'_, 'f> {
    /// Returns whether the stage has no file yet and the file no stage. Disjoint parts of a file count as different
    /// files.
    fn is_free(&self, way: &Way<'f>) -> bool {
        if self.found.iter().any(|one| one.way.stage == way.stage) {
            return false;
        }
        let files = self.fits.files(way);
        let clashes = |(one, taken): (&Chosen<'f>, &BTreeSet<String>)| {
            let apart = match (one.way.layout.columns, way.layout.columns) {
                (Some(a), Some(b)) => a[1] <= b[0] || b[1] <= a[0],
                _ => false,
            };
            !apart && !taken.is_disjoint(&files)
        };
        !self.found.iter().zip(&self.files).any(clashes)
    }

    fn take(&mut self, way: Way<'f>, how: How) {
        self.files.push(self.fits.files(&way));
        self.found.push(Chosen::new(way, how));
    }

    /// Takes each free way, in the order of `rank`.
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

/// Chooses the file of each stage.
///
/// # Errors
/// [`llama_trace_core::error::Error::Interrupted`].
pub(super) fn choose<'f>(fits: &Fits<'f>, passes: &[PassDims]) -> Result<Vec<Chosen<'f>>> {
    let mut ways = fits.ways()?;
    keep_places(fits, &mut ways);
    streams(fits, &mut ways);
    cut(fits, &mut ways);
    let sums_found = sums::find(fits, &ways);
    let mut choice = Choice { fits, found: Vec::new(), files: Vec::new() };
    // Errors within a power of two count as equal.
    let bucket = |way: &Way<'f>| way.errors()[0].max(1e-6).log2().floor();
    let several = fits.has_several();
    let is_hinted = |way: &Way<'f>| way.hinted == Some(way.stage);
    // A pattern of all passes comes before the name of one pass's file, and a plain layout before any other.
    let shown =
        |way: &Way<'f>| (several && !way.pattern.has_pass, Reverse(way.pattern.said), !way.layout.is_plain());
    let others = |way: &Way<'f>| {
        called(&way.pattern.name).is_some_and(|stage| {
            stage != way.stage
                && ways.iter().any(|other| other.stage == stage && other.pattern == way.pattern)
        })
    };
    // A family of files reaches the last layer. If it seems to end before that layer, its numbers were counted from the
    // wrong start.
    let last = fits.sizes.layers.checked_sub(1);
    let ends_early = |way: &Way<'f>| {
        let reaches = way.layout.layers.is_some() || way.first().iter().any(|(site, _)| site.layer == last);
        way.pattern.has_layer && !reaches
    };
    // If one reading of a family reaches the last layer, a reading that ends early is only a part of the family. It may
    // look like another stage.
    let reaching: BTreeSet<String> = ways
        .iter()
        .filter(|way| way.layout.is_plain() && way.matched() > 0 && !ends_early(way))
        .map(|way| way.pattern.zero_based())
        .collect();
    let is_part = |way: &Way<'f>| ends_early(way) && reaching.contains(&way.pattern.zero_based());
    let full = ways.iter().filter(|way| way.is_full() && !others(way) && !is_part(way)).collect();
    choice.take_by(full, How::Values, |way| {
        (!way.is_called, bucket(way), !is_hinted(way), Reverse(way.hits()), shown(way), way.stage)
    })?;
    let is_near =
        |way: &Way<'f>| ways.iter().any(|one| one.is_called && one.stage == way.stage && one.matched() > 0);
    let is_called = |way: &&Way<'f>| way.is_called && is_alone(fits, way) && !is_near(way);
    let named = ways.iter().filter(is_called).collect();
    // Plain layouts first: another order of a mistaken port's values may be nearer by chance.
    choice.take_by(named, How::Name, |way| {
        (
            several && !way.pattern.has_pass,
            ends_early(way),
            Reverse(way.pattern.said),
            !way.layout.is_plain(),
            way.is_odd(),
            way.sine(),
        )
    })?;
    // If a stage is a copy of another stage's values, a match in some places proves nothing.
    let is_copy = |way: &Way<'f>| needs_name(way.stage) && !way.is_called;
    let of_streams: BTreeSet<String> =
        ways.iter().filter(|way| way.is_stream).map(|way| way.pattern.zero_based()).collect();
    let is_known = |way: &Way<'f>| is_known(way, &sums_found, &of_streams);
    let is_some = |way: &&Way<'f>| {
        way.matched() > 0 && !others(way) && !is_copy(way) && !looks_like_another(way, &ways, &choice)
    };
    let some = ways.iter().filter(is_some).collect();
    choice.take_by(some, How::Values, |way| {
        (
            !way.is_called,
            ends_early(way),
            // Stages that come before the mistake are right from the first layer on.
            Reverse((way.until_wrong(), way.matched())),
            bucket(way),
            !is_hinted(way),
            shown(way),
            way.stage,
        )
    })?;
    let is_first = |way: &&Way<'f>| {
        way.has_first_token() && !others(way) && !is_copy(way) && may_turn(way) && is_known(way)
    };
    let first = ways.iter().filter(is_first).collect();
    choice.take_by(first, How::FirstToken, |way| {
        (!is_hinted(way), ends_early(way), way.sine(), shown(way), way.stage)
    })?;
    // If a later stage proves that a stage is right, a file with other values is not the file of that stage.
    let right = led(fits, passes, &choice.found);
    let normed: BTreeSet<&str> =
        ways.iter().filter(|way| way.is_normed).map(|way| &*way.pattern.name).collect();
    // Rows of a norm's size belong to a norm, other rows to other stages.
    let is_other_norm =
        |way: &Way<'f>| !way.is_normed && (is_norm(way.stage) || normed.contains(&*way.pattern.name));
    let may_be = |way: &Way<'f>| may_be_guessed(fits, way) && !others(way) && is_known(way);
    for is_later_right in [false, true] {
        let is_guess = |way: &&Way<'f>| right.clears(way) == is_later_right && may_be(way);
        let guessed = ways.iter().filter(is_guess).collect();
        choice.take_by(guessed, How::Guess, |way| {
            // By likeness in steps of 0.1. A file unlike every stage most likely holds one of the stages that most
            // ports write.
            let alike = (way.sine() * 10.0).floor();
            let rest = (alike, prior(way.stage), way.sine(), shown(way));
            (!is_hinted(way), !way.is_stream, ends_early(way), is_other_norm(way), way.is_odd(), rest)
        })?;
    }
    let mut found = choice.found;
    silence(fits, &right, &mut found);
    left_out(fits, &ways, &mut found);
    let sure: BTreeSet<Stage> = (found.iter())
        .filter(|one| matches!(one.how, How::Values | How::Name))
        .map(|one| one.way.stage)
        .collect();
    for one in found.iter_mut().filter(|one| one.is_live && !sure.contains(&one.way.stage)) {
        let own = one.way.clone();
        // A name that states the stage, or a family that starts with the embedding, leaves no doubt.
        if is_hinted(&own) || own.is_stream || !one.maybe.is_empty() {
            continue;
        }
        let may_as_well = |way: &&Way<'f>| {
            way.pattern == own.pattern
                && way.layout == own.layout
                && way.stage != own.stage
                && way.is_normed == own.is_normed
                && !sure.contains(&way.stage)
                && !needs_name(way.stage)
                && !right.clears(way)
                && (own.sine() > ALIKE || way.sine() <= own.sine() + AS_WELL)
                && may_be(way)
        };
        let mut others: Vec<(f64, Stage)> =
            ways.iter().filter(may_as_well).map(|way| (way.sine(), way.stage)).collect();
        others.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        one.maybe = others.into_iter().take(OTHERS).map(|(_, stage)| stage).collect();
        one.maybe.sort_unstable();
        one.maybe.dedup();
    }
    doubt(&ways, &right, &mut found);
    found.sort_by_key(|one| one.way.stage);
    Ok(found)
}

/// Adds to each line the stages that would have the chosen stage's values after a known mistake: if RoPE was left out,
/// the queries after it are the queries before it. This is only done for files whose name does not tell the stage, and
/// a stage is only added if no right stage was computed from it.
fn doubt(ways: &[Way<'_>], right: &Led, found: &mut [Chosen<'_>]) {
    let says = |way: &Way<'_>| way.is_called || way.hinted == Some(way.stage);
    let taken: BTreeMap<Stage, bool> =
        found.iter().filter(|one| one.is_live).map(|one| (one.way.stage, says(&one.way))).collect();
    for one in found.iter_mut().filter(|one| one.is_live && one.maybe.is_empty() && !says(&one.way)) {
        let own = &one.way;
        let was_right =
            |stage: Stage| own.places.iter().any(|(site, _)| right.sources.contains(&site.other(stage)));
        let may_be = |way: &&Way<'_>| {
            let is_same_file = way.pattern == own.pattern && way.layout == own.layout;
            // If another file holds that stage, the two may be swapped, unless one was right.
            let is_open = match taken.get(&way.stage) {
                None => true,
                Some(is_said) => !is_said && may_look_like(own.stage, way.stage) && !was_right(own.stage),
            };
            is_same_file && may_look_like(way.stage, own.stage) && is_open && !was_right(way.stage)
        };
        let others: BTreeSet<Stage> = ways.iter().filter(may_be).map(|way| way.stage).collect();
        one.maybe = others.into_iter().take(OTHERS).collect();
    }
}

/// The index of a group of names, and of a number in them.
type Place = (usize, usize);

/// Drops ways that take another number in a name for the layer than the matching ways do. The names of a folder follow
/// one pattern. One number in these names is the layer's if it takes as many values as there are layers, or one more
/// for the first layer's input.
fn keep_places(fits: &Fits<'_>, ways: &mut Vec<Way<'_>>) {
    let layers = fits.sizes.layers;
    // For each group of names and each number in them: whether there is a value for each layer, and the count of
    // matches.
    let mut places: BTreeMap<Place, (bool, BTreeMap<&str, usize>)> = BTreeMap::new();
    for way in ways.iter().filter(|way| way.layout.is_plain()) {
        let Some((at, numbers)) = way.pattern.place else { continue };
        let is_each = [layers, layers + 1].contains(&numbers);
        let (_, right) = places.entry((way.pattern.kind, at)).or_insert((is_each, BTreeMap::new()));
        let own = right.entry(&way.pattern.name).or_default();
        *own = (*own).max(way.matched());
    }
    let places: BTreeMap<Place, (bool, usize)> = places
        .into_iter()
        .map(|(place, (is_each, right))| (place, (is_each, right.values().sum())))
        .collect();
    let is_better =
        |(is_each, right): (bool, usize), (own_is_each, own): (bool, usize)| match (is_each, own_is_each) {
            (true, false) => 2 * right >= own,
            (false, true) => right > 2 * own.max(1),
            _ => right > own,
        };
    ways.retain(|way| {
        let Some((at, _)) = way.pattern.place else { return true };
        let Some(own) = places.get(&(way.pattern.kind, at)) else { return true };
        let others = places.range((way.pattern.kind, 0)..(way.pattern.kind + 1, 0));
        !others.filter(|((_, other), _)| *other != at).any(|(_, other)| is_better(*other, *own))
    });
}

/// Marks the families of files whose number 0 is the embedding.
fn streams<'f>(fits: &Fits<'f>, ways: &mut [Way<'f>]) {
    let is_embedding = |way: &&Way<'f>| {
        way.stage == Stage::Embedding && way.layout.is_plain() && (way.matched() > 0 || way.is_scaled())
    };
    let first: BTreeSet<_> = ways
        .iter()
        .filter(is_embedding)
        .map(|way| named(&way.pattern.name, Site::once(fits.first_pass(), way.stage)))
        .collect();
    let zero = |way: &Way<'f>| named(&way.pattern.zero_based(), Site::layer(fits.first_pass(), 0, way.stage));
    let counts_on = |way: &Way<'f>| way.pattern.name != way.pattern.zero_based();
    for way in ways.iter_mut().filter(|way| way.stage == Stage::FfnResidual && way.layout.is_plain()) {
        way.is_stream = counts_on(way) && first.contains(&zero(way));
    }
}

/// Returns whether the file may hold the stage, judged by the sums and families that were found. `of_streams` are the
/// names of families that start with the embedding.
fn is_known(way: &Way<'_>, sums_found: &Sums<'_>, of_streams: &BTreeSet<String>) -> bool {
    let fits_sums = || sums_found.get(&*way.pattern.name).is_none_or(|stages| stages.contains(&way.stage));
    let is_of_stream = || way.pattern.has_layer && of_streams.contains(&way.pattern.zero_based());
    // If a norm was left out, its file holds its input, which is a part of sums.
    let is_named_norm = || is_norm(way.stage) && way.hinted == Some(way.stage);
    way.is_called || way.is_stream || way.is_full() || is_named_norm() || fits_sums() && !is_of_stream()
}

/// Returns whether the first token of a stage may be right while other tokens are wrong. Before RoPE and attention, the
/// first layer computes each token alone, so there either all tokens are right or all are wrong.
fn may_turn(way: &Way<'_>) -> bool {
    let is_of_token_alone = matches!(
        way.stage,
        Stage::AttnNorm | Stage::Xq | Stage::Xk | Stage::Xv | Stage::XqNorm | Stage::XkNorm
    );
    let is_wrong = |(site, apart): &(Site, Distance)| site.layer == Some(0) && apart.error > SURE;
    way.is_called || !is_of_token_alone || !way.first().iter().any(is_wrong)
}

/// The right places, and all that they were computed from: an earlier mistake would make them wrong, unless it changes
/// only the length of rows that a norm reads.
fn led(fits: &Fits<'_>, passes: &[PassDims], found: &[Chosen<'_>]) -> Led {
    let by_values = || found.iter().filter(|one| one.how == How::Values).map(|one| &one.way);
    let mut usual: Vec<f64> = by_values().map(|way| way.errors()[0]).filter(|error| *error > 0.0).collect();
    usual.sort_by(f64::total_cmp);
    let quiet = usual.get(usual.len() / 2).map_or(QUIET, |usual| (USUAL * usual).max(QUIET));
    let is_quiet = |(site, apart): &(Site, Distance)| (apart.error <= quiet).then_some(*site);
    let mut led: HashMap<Site, bool> = by_values()
        .flat_map(|way| way.first().iter().filter_map(is_quiet))
        .map(|site| (site, true))
        .collect();
    let mut open: Vec<Site> = led.keys().copied().collect();
    let mut sources = HashSet::new();
    while let Some(site) = open.pop() {
        let Some(dims) = passes.iter().find(|dims| dims.pass == site.pass) else { continue };
        let inputs = site.inputs(&fits.sizes, *dims).into_iter();
        let is_exact = led[&site] && site.stage.info().op != Op::RmsNorm;
        for source in inputs.filter_map(|input| site.input(input, &fits.sizes)) {
            sources.insert(source);
            let known = led.get(&source).copied();
            if known.is_none() || known == Some(false) && is_exact {
                led.insert(source, is_exact);
                open.push(source);
            }
        }
    }
    Led { places: led, sources }
}

/// Splits families whose last file is the final norm's, such as the hidden states of transformers.
fn cut<'f>(fits: &Fits<'f>, ways: &mut [Way<'f>]) {
    let Some(last) = fits.sizes.layers.checked_sub(1).filter(|last| *last > 0) else { return };
    let finals: Vec<Way<'f>> =
        ways.iter().filter(|way| way.stage == Stage::FinalNorm && way.layout.is_plain()).cloned().collect();
    let mut more = Vec::new();
    for way in ways.iter_mut().filter(|way| way.stage == Stage::FfnResidual && way.layout.is_plain()) {
        let at_last = way.places.iter().find(|(site, _)| site.layer == Some(last) && site.pass == 0);
        let Some(&(_, apart)) = at_last else { continue };
        let is_right = |apart: &Distance| apart.error <= SURE || apart.is_near_first();
        let before: Vec<_> = way.first().iter().filter(|(site, _)| site.layer != Some(last)).collect();
        if before.is_empty() || is_right(&apart) {
            continue;
        }
        let is_so_far = before.iter().all(|(_, apart)| is_right(apart));
        let files = fits.files(way);
        // If the stream is wrong in an earlier layer, the last file must have rows of a norm's size.
        let is_final = |one: &&Way<'f>| {
            let (_, own) = one.places[0];
            let is_nearer = is_so_far && (is_right(&own) || own.error < apart.error / 2.0);
            fits.files(one).is_subset(&files) && (is_nearer || one.is_normed && (way.is_stream || is_so_far))
        };
        if let Some(own) = finals.iter().find(is_final) {
            way.layout.layers = Some([0, last]);
            way.retain(|site| site.layer != Some(last));
            more.push(own.clone());
        }
    }
    for own in more {
        ways.iter_mut()
            .filter(|way| way.stage == Stage::FinalNorm && way.layout == own.layout)
            .for_each(|way| way.is_paired = true);
    }
}

/// Returns whether the file's name suggests another stage, which a known mistake would give these values.
fn looks_like_another(way: &Way<'_>, ways: &[Way<'_>], choice: &Choice<'_, '_>) -> bool {
    let Some(named) = way.hinted.filter(|named| may_look_like(*named, way.stage)) else { return false };
    let is_open = !choice.found.iter().any(|one| one.way.stage == named);
    is_open && ways.iter().any(|other| other.stage == named && other.pattern == way.pattern)
}

/// Returns whether the pattern has a layer's number, or its file may hold a stage outside the layers because it is not
/// one of a family of files.
fn is_alone(fits: &Fits<'_>, way: &Way<'_>) -> bool {
    // If the reference has only one pass, a number that changes is not the pass.
    let is_one_of_several = way.pattern.is_lone || way.pattern.passes > 1 && !fits.has_several();
    way.pattern.has_layer || !is_one_of_several || way.is_paired
}

/// Returns whether a way may be guessed although its values do not match.
fn may_be_guessed(fits: &Fits<'_>, way: &Way<'_>) -> bool {
    let shares = way.stage.info().section == Section::Sampler;
    let is_family = !way.pattern.has_layer
        || fits.sizes.layers == 1
        || way.places.len() > 1
        || way.layout.layers.is_some();
    !shares && is_alone(fits, way) && is_family && way.layout.times.is_none() && way.layout.pairs.is_none()
}

/// The rank of a stage among those that ports write most.
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

/// The name of the hidden states in transformers. The last of them comes after the final norm.
const STATES: &str = "hidden_states";

/// Chooses a file that has the last layer's output as the file of the final norm: the port left the norm out, or the
/// file belongs to another stage. If no later stage decides, a wrong line that the user must check is better than a
/// mistake that is not found.
fn left_out<'f>(fits: &Fits<'f>, ways: &[Way<'f>], found: &mut Vec<Chosen<'f>>) {
    let live = |stage: Stage| found.iter().find(|one| one.is_live && one.way.stage == stage);
    let has_right_logits = live(Stage::Logits).is_some_and(|one| one.way.matched() > 0);
    if live(Stage::FinalNorm).is_some() || has_right_logits {
        return;
    }
    let is_raw =
        |way: &&Way<'f>| way.stage == Stage::FinalNorm && way.layout.is_plain() && fits.is_last_output(way);
    let Some(own) = ways.iter().filter(is_raw).min_by_key(|way| way.pattern.is_lone) else { return };
    let files = fits.files(own);
    let taken = found.iter_mut().find(|one| {
        one.is_live && one.way.stage != Stage::FinalNorm && !files.is_disjoint(&fits.files(&one.way))
    });
    let mut maybe = vec![Stage::FfnResidual];
    match (taken, fits.sizes.layers.checked_sub(1).filter(|last| *last > 0)) {
        (None, _) => {}
        // Only one thing outweighs values that match: the name in transformers, where the last file comes after the
        // final norm.
        (Some(family), Some(last))
            if family.way.is_stream
                && family.way.layout.is_plain()
                && own.pattern.name.contains(STATES)
                && !found_logits(ways) =>
        {
            family.way.layout.layers = Some([0, last]);
            family.way.retain(|site| site.layer != Some(last));
        }
        // Values that match the last layer's output outweigh a guess.
        (Some(guess), _) if guess.how == How::Guess && !guess.way.is_stream => {
            let stage = guess.way.stage;
            found.retain(|one| one.way.stage != stage);
        }
        _ => return,
    }
    if own.hinted == Some(Stage::FinalNorm) {
        maybe.clear();
    }
    found.retain(|one| one.way.stage != Stage::FinalNorm);
    found.push(Chosen { maybe, ..Chosen::new(own.clone(), How::Guess) });
}

/// Returns whether a file may hold the logits.
fn found_logits(ways: &[Way<'_>]) -> bool {
    ways.iter().any(|way| way.stage == Stage::Logits)
}

/// Turns guesses into comments if a run without a mistake may have written their files. `right` has the places that
/// right places were computed from.
fn silence(fits: &Fits<'_>, right: &Led, found: &mut Vec<Chosen<'_>>) {
    let last = fits.sizes.layers.checked_sub(1);
    let reaches_end = right.places.keys().any(|site| site.layer == last && site.stage == Stage::FfnResidual);
    let goes_wrong = found.iter().any(|one| match one.how {
        How::Values => !one.way.is_full(),
        How::FirstToken | How::Name => true,
        How::Guess => one.way.stage == Stage::Logits,
    });
    let is_any_right = found.iter().any(|one| one.how == How::Values);
    let has_logits = found.iter().any(|one| one.way.stage == Stage::Logits);
    let is_wide = |stage: Stage| stage.in_layer() && stage.axes() == [Axis::Token, Axis::Dim];
    // The only family of this shape is most likely the residual stream.
    let is_only = found.iter().filter(|one| is_wide(one.way.stage)).count() == 1;
    for one in found.iter_mut().filter(|one| one.how == How::Guess) {
        let (way, stage) = (&one.way, one.way.stage);
        let was_right = right.clears(way);
        // After the last layer, no later stage shows whether the guessed stage was right.
        let is_left = !has_logits && reaches_end && stage.info().section == Section::End;
        let is_told = way.hinted == Some(stage)
            || way.sine() <= ALIKE
            || goes_wrong
            || way.is_normed && is_any_right
            || way.is_turned;
        let is_likely = is_told || stage == Stage::FfnResidual && is_only;
        one.is_live = is_likely && !was_right && (!is_left || way.is_paired);
    }
    // A guess is listed if its values or its name speak for it. If nothing is right, or something is likely wrong, a
    // family of files is listed without such evidence, because after a mistake there may be none.
    let is_likely_wrong = found.iter().any(|one| one.is_live && one.how == How::Guess);
    found.retain(|one| {
        let is_spoken_for = one.way.sine() <= ALIKE || one.way.hinted == Some(one.way.stage);
        let may_be_told = (!is_any_right || is_likely_wrong) && one.way.pattern.has_layer;
        one.is_live || is_spoken_for || may_be_told
    });
}
