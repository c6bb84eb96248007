//! Reorders RoPE's pairs of a run to match another checkpoint's order: neighbours (2i, 2i + 1) and halves (i, i + C/2)
//! are the same numbers in different places.

use std::ops::Range;
use std::sync::Arc;

use serde_json::json;

use super::traced::{About, Found, Traced};
use llama_trace_core::config::Pairing;
use llama_trace_core::error::Result;
use llama_trace_core::trace::{Frame, FrameData, Site, Stage, Values};

/// The order of the pairs, if the run has it.
pub(super) fn of(about: &About) -> Option<Pairing> {
    serde_json::from_value(about.known().get("pairing")?.clone()).ok()
}

/// A note if two runs have different orders; `None` if they are equal, or one is unknown.
pub(super) fn note(a: &About, b: &About) -> Option<String> {
    let (ours, theirs) = (of(a)?, of(b)?);
    (ours != theirs).then(|| {
        format!(
            "RoPE rotates {} in A and {} in B: queries and keys are compared in one order",
            ours.name(),
            theirs.name()
        )
    })
}

/// A run with its RoPE pairs in the requested order.
pub(super) struct InOrder<'a, T> {
    run: &'a mut T,
    about: About,
    /// The head width and the target order; `None` if the run already has that order, or its order is unknown.
    to: Option<(usize, Pairing)>,
}

impl<'a, T: Traced> InOrder<'a, T> {
    pub(super) fn new(run: &'a mut T, order: Option<Pairing>, head_dim: usize) -> Self {
        let mut about = run.about().clone();
        let own = of(&about);
        let to = order.filter(|order| own.is_some_and(|own| own != *order)).map(|order| (head_dim, order));
        if let Some((_, order)) = to {
            about.card.iter_mut().for_each(|card| card.config.pairing = order);
            if about.card.is_none() {
                about.settings.insert("pairing".into(), json!(order));
            }
            // Reordered weights have another fingerprint.
            about.fingerprint = None;
        }
        Self { run, about, to }
    }

    /// Returns whether the values of a stage are reordered.
    fn turns(&self, site: Site) -> bool {
        let stages = [
            Stage::Xq,
            Stage::Xk,
            Stage::XqNorm,
            Stage::XkNorm,
            Stage::XqRope,
            Stage::XkRope,
            Stage::CacheK,
            Stage::Keys,
        ];
        self.to.is_some() && stages.contains(&site.stage.first_of_name())
    }
}

/// The values with the components of each head in another order.
fn turned(frame: &Frame, head_dim: usize, order: Pairing) -> Frame {
    let FrameData::F32(values) = &frame.data else { return frame.clone() };
    let mut values = values.as_standard_layout().into_owned();
    let half = head_dim / 2;
    if let Some(flat) = values.as_slice_mut() {
        for head in flat.chunks_exact_mut(head_dim.max(1)) {
            let before = head.to_vec();
            for i in 0..half {
                match order {
                    Pairing::Halves => (head[i], head[i + half]) = (before[2 * i], before[2 * i + 1]),
                    Pairing::Neighbours => (head[2 * i], head[2 * i + 1]) = (before[i], before[i + half]),
                }
            }
        }
    }
    Frame { site: frame.site, axes: frame.axes, data: FrameData::F32(values) }
}

impl<T: Traced> Traced for InOrder<'_, T> {
    fn about(&self) -> &About {
        &self.about
    }

    fn stage(&mut self, site: Site) -> Result<Found> {
        let found = self.run.stage(site)?;
        Ok(match (found, self.to) {
            (Found::Frame(frame), Some((head_dim, order))) if self.turns(site) => {
                Found::Frame(Arc::new(turned(&frame, head_dim, order)))
            }
            (found, _) => found,
        })
    }

    fn rows(&self, site: Site, rows: Range<usize>) -> std::result::Result<Option<Values<'_>>, String> {
        if self.turns(site) { Ok(None) } else { self.run.rows(site, rows) }
    }

    fn unwritten(&self, site: Site) -> Option<String> {
        self.run.unwritten(site)
    }

    fn has_beyond(&self, site: Site) -> bool {
        self.run.has_beyond(site)
    }

    fn done(&self, site: Site, rows: Range<usize>) {
        self.run.done(site, rows);
    }

    fn print(&self, site: Site) -> Option<u64> {
        self.run.print(site).filter(|_| !self.turns(site))
    }
}

#[cfg(test)]
mod tests {
    use super::super::difference::{floats, frame};
    use super::*;

    #[test]
    fn one_order_is_the_other_s_way_back() {
        let site = Site::layer(0, 0, Stage::Xq);
        let halves = frame(site, &[1, 2, 4], (0..8).map(|x| x as f32).collect()).unwrap();
        let neighbours = turned(&halves, 4, Pairing::Neighbours);
        assert_eq!(floats(&neighbours), [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
        assert_eq!(floats(&turned(&neighbours, 4, Pairing::Halves)), floats(&halves));
    }
}
