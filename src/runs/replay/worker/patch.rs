//! The effects of patched places: the prompt runs again with some values from the run of another prompt.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::Worker;
use crate::replay::serve::lock;
use crate::replay::store::Store;
use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::Sizes;
use llama_trace_core::trace::patch::{Metric, PatchAt, PatchEffect, PatchEffects, PatchEnds, PatchMap};
use llama_trace_engine::generate::Held;
use llama_trace_engine::model::Model;
use llama_trace_engine::patch::{Measure, Patcher, Place, most_likely};

/// The divisor of the memory budget for the recorded values of the two runs.
const SHARE: usize = 2;

/// The effects so far, and the map that is being computed.
#[derive(Default)]
pub(super) struct Patches<'m> {
    known: HashMap<PatchAt, PatchEffects>,
    current: Option<Current<'m>>,
}

/// The two runs of a map.
struct Current<'m> {
    ids: Vec<u32>,
    clean: Arc<[u32]>,
    map: PatchMap,
    patcher: Patcher<'m>,
    ends: PatchEnds,
    /// By metric. `None` if both runs have the same value.
    measures: [Option<Measure>; 3],
    _room: Room,
}

/// Bytes of the budget that are in use.
struct Room {
    store: Arc<Mutex<Store>>,
    bytes: usize,
}

impl Drop for Room {
    fn drop(&mut self) {
        lock(&self.store).release(self.bytes);
    }
}

impl<'m> Worker<'m> {
    /// The effects of the places of `at`. The two runs are kept until all places of the map were asked for.
    pub(super) fn patch(&mut self, at: &PatchAt) -> Result<PatchEffects> {
        let (dims, sizes) = self.dims(at.site)?;
        if let Some(known) = self.patches.known.get(at) {
            return Ok(known.clone());
        }
        let ids = &self.passes[dims.pass].ids;
        let is_same =
            |current: &Current<'m>| (&current.ids, &current.clean, current.map) == (ids, &at.clean, at.map);
        // The runs of the previous map are dropped before the new ones need memory.
        let current = self.patches.current.take().filter(is_same);
        let mut current = match current {
            Some(current) => current,
            None => Current::new(&self.session.model, &self.store, ids, at)?,
        };
        let effects = current.effects(at, &sizes)?;
        if at.places.end < at.map.rows(&sizes) * at.map.columns(&sizes, ids.len()) {
            self.patches.current = Some(current);
        }
        self.patches.known.insert(at.clone(), effects.clone());
        Ok(effects)
    }
}

impl<'m> Current<'m> {
    fn new(model: &Held<'m, Model>, store: &Arc<Mutex<Store>>, ids: &[u32], at: &PatchAt) -> Result<Self> {
        if !model.edits.fit_other_prompts() {
            return Err(Error::usage("the edits of this run cannot be made in the clean run too")
                .expected("edits that name no sequence, and read no value of this prompt's own run")
                .next("run `llama-trace patch` with these edits: there, s0 is the clean run and s1 the corrupted one"));
        }
        let stages = [at.map.stage()];
        let (bytes, most) =
            (Patcher::bytes(&model.config, ids.len(), 2, &stages), lock(store).budget() / SHARE);
        if bytes > most {
            return Err(Error::prompt("there is no memory for the values of both runs")
                .expected(format!("at most {most} bytes"))
                .found(format!("{bytes} bytes for two runs of {} tokens", ids.len()))
                .next("start again with a larger --memory, or with shorter prompts"));
        }
        lock(store).reserve(bytes);
        let room = Room { store: Arc::clone(store), bytes };
        let patcher = Patcher::held(model.clone(), ids, Some(&at.clean), &stages)?;
        let (clean, corrupted) = (patcher.donor_logits(), patcher.logits());
        let (answer, wrong) = (most_likely(clean), most_likely(corrupted));
        // A metric with equal values has no effects. The other metrics may have some.
        let measures = Metric::ALL.map(|metric| Measure::new(metric, (answer, wrong), clean, corrupted).ok());
        let values = measures.each_ref().map(|measure| measure.as_ref().map(Measure::ends));
        let ends = PatchEnds { answer, wrong, values };
        let (ids, clean, map) = (ids.to_vec(), Arc::clone(&at.clean), at.map);
        Ok(Self { ids, clean, map, patcher, ends, measures, _room: room })
    }

    fn effects(&mut self, at: &PatchAt, sizes: &Sizes) -> Result<PatchEffects> {
        let all = self.map.places(sizes, self.ids.len());
        let places: Vec<Place> = all.skip(at.places.start).take(at.places.len()).collect();
        let none = PatchEffect { value: f64::NAN, effect: f64::NAN };
        let mut effects = vec![[none; 3]; places.len()];
        let measures = &self.measures;
        self.patcher.run(&places, &mut |index, logits| {
            effects[index] = measures.each_ref().map(|measure| {
                measure.as_ref().map_or(none, |measure| {
                    let value = measure.value(logits);
                    PatchEffect { value, effect: measure.effect(value) }
                })
            });
            Ok(())
        })?;
        Ok(PatchEffects { ends: self.ends, places: effects })
    }
}
