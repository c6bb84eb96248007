//! The available stages of a recorded run: the kept stages, and those that can be derived from them.

use std::collections::HashMap;

use crate::record::Kept;
use llama_trace_core::trace::stage::{Input, Section};
use llama_trace_core::trace::{Site, Stage};

/// The stages of a run that are available without the weights of the model. No values are read.
pub struct Follows<'a> {
    kept: &'a dyn Kept,
    /// Whether the sampler settings are known, or assumed.
    drawn: bool,
    known: HashMap<Site, bool>,
    /// For a cache after a pass: whether the rows that every pass so far wrote are available.
    written: HashMap<Site, bool>,
}

impl std::fmt::Debug for Follows<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follows").finish_non_exhaustive()
    }
}

impl<'a> Follows<'a> {
    /// Starts from the kept values.
    pub(super) fn new(kept: &'a dyn Kept, drawn: bool) -> Self {
        Self { kept, drawn, known: HashMap::new(), written: HashMap::new() }
    }

    /// Whether the values of `site` are kept or derivable.
    pub fn has(&mut self, site: Site) -> bool {
        if let Some(&known) = self.known.get(&site) {
            return known;
        }
        let has = self.kept.holds(site) || (self.kept.dims(site).is_some() && self.derives(site));
        self.known.insert(site, has);
        has
    }

    fn derives(&mut self, site: Site) -> bool {
        let Some(dims) = self.kept.dims(site) else { return false };
        let sizes = self.kept.card().sizes();
        match site.stage {
            Stage::CacheK | Stage::CacheV => match site.inputs(&sizes, dims).first() {
                Some(&Input::Stage(written)) => self.cached(site, written),
                _ => false,
            },
            stage if stage.info().section == Section::Sampler => {
                self.drawn && self.has(site.other(sizes.last_logits()))
            }
            stage => stage.info().derived_from.is_some_and(|from| {
                from.iter().all(|input| match input.in_layer(&sizes, dims, site.layer) {
                    Input::Stage(from) => self.has(site.other(from)),
                    Input::LayerInput => self.has(site.layer_input()),
                    Input::Positions => true,
                })
            }),
        }
    }

    fn cached(&mut self, site: Site, written: Stage) -> bool {
        let at = |pass: usize| Site { pass, ..site };
        let first = (0..=site.pass).rev().find(|&pass| self.written.contains_key(&at(pass)));
        let mut all = first.is_none_or(|pass| self.written[&at(pass)]);
        for pass in first.map_or(0, |pass| pass + 1)..=site.pass {
            all = all && self.has(at(pass).other(written));
            self.written.insert(at(pass), all);
        }
        all
    }
}
