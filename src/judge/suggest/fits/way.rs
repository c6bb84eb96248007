//! A way of reading files as a stage, and the distance of each place from the reference.

use crate::capture::Layout;
use crate::diff::Distance;
use crate::suggest::names::Pattern;
use llama_trace_core::trace::{Site, Stage};

/// The largest distance, ‖B − A‖ / ‖A‖, at which a file surely holds a stage.
pub(in crate::suggest) const SURE: f64 = 0.05;

/// A way of reading files as a stage.
#[derive(Clone, Debug)]
pub(in crate::suggest) struct Way<'f> {
    pub(in crate::suggest) stage: Stage,
    pub(in crate::suggest) layout: Layout,
    pub(in crate::suggest) pattern: &'f Pattern,
    /// Whether the file has the stage's name; and the stage that the words of the file's name suggest.
    pub(in crate::suggest) is_called: bool,
    pub(in crate::suggest) hinted: Option<Stage>,
    /// The distance at each site that is compared, the first pass first.
    pub(in crate::suggest) places: Vec<(Site, Distance)>,
    /// The number of places in its first pass.
    pub(super) of_first: usize,
    /// Whether its file was split off the end of a family of files.
    pub(in crate::suggest) is_paired: bool,
    /// Whether its rows have the size that a norm gives.
    pub(in crate::suggest) is_normed: bool,
    /// Whether its family of files has the embedding as number 0.
    pub(in crate::suggest) is_stream: bool,
    /// Whether its heads have the same lengths as in the reference, but other directions, as after RoPE with other
    /// angles.
    pub(in crate::suggest) is_turned: bool,
}

impl Way<'_> {
    /// Keeps the places of some sites.
    pub(in crate::suggest) fn retain(&mut self, keep: impl Fn(&Site) -> bool) {
        self.places.retain(|(site, _)| keep(site));
        self.of_first = self.places.iter().filter(|(site, _)| site.pass == self.places[0].0.pass).count();
    }

    /// The places of the first pass.
    pub(in crate::suggest) fn first(&self) -> &[(Site, Distance)] {
        &self.places[..self.of_first]
    }

    /// The number of places in the first pass whose values match.
    pub(in crate::suggest) fn matched(&self) -> usize {
        self.first().iter().filter(|(_, apart)| apart.error <= SURE).count()
    }

    /// The number of places before the first mismatch, in the first pass.
    pub(in crate::suggest) fn until_wrong(&self) -> usize {
        self.first().iter().take_while(|(_, apart)| apart.error <= SURE).count()
    }

    /// The number of places in all passes whose values match.
    pub(in crate::suggest) fn hits(&self) -> usize {
        self.places.iter().filter(|(_, apart)| apart.error <= SURE).count()
    }

    /// Returns whether all places of the first pass match.
    pub(in crate::suggest) fn is_full(&self) -> bool {
        self.matched() == self.of_first
    }

    /// Returns whether the first token's values match in all places of the first pass.
    pub(in crate::suggest) fn has_first_token(&self) -> bool {
        self.first().iter().all(|(_, apart)| apart.is_near_first())
    }

    /// The smallest and the largest error in the first pass.
    pub(in crate::suggest) fn errors(&self) -> [f64; 2] {
        let errors = self
            .first()
            .iter()
            .map(|(_, apart)| if apart.error.is_nan() { f64::INFINITY } else { apart.error });
        errors.fold([f64::INFINITY, 0.0], |[least, most], error| [least.min(error), most.max(error)])
    }

    /// The mean sine of the angle to the stage, in the first pass.
    pub(in crate::suggest) fn sine(&self) -> f64 {
        let sines = self.first().iter().map(|(_, apart)| if apart.sine.is_nan() { 1.0 } else { apart.sine });
        sines.sum::<f64>() / self.of_first as f64
    }

    /// Returns whether the values equal the stage's up to a factor, in all places of the first pass.
    pub(in crate::suggest) fn is_scaled(&self) -> bool {
        self.first().iter().all(|(_, apart)| is_scaled(apart))
    }

    /// Returns whether a value is infinite or NaN either only in the file or only in the reference.
    pub(in crate::suggest) fn is_odd(&self) -> bool {
        self.errors()[1].is_infinite()
    }
}

/// Returns whether values equal the stage's up to a factor.
pub(in crate::suggest) fn is_scaled(apart: &Distance) -> bool {
    /// The largest sine of the angle between the two.
    const SAME: f64 = 0.02;
    apart.sine <= SAME
}
