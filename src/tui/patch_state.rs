//! State of the maps of patching: the clean prompt of each run, and the effects so far. A map goes on being filled after
//! the user has left its view.

use std::collections::HashMap;
use std::sync::Arc;

use llama_trace_core::trace::patch::{Metric, PatchEffect, PatchEnds, PatchMap};
use llama_trace_core::trace::{Run, TokenLabel};

/// The clean prompt that the user asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CleanPrompt {
    /// The prompt of a sequence of an open run.
    Run(Run, usize),
    /// A text.
    Text(String),
}

/// The clean run of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Clean {
    /// The run.
    pub run: Run,
    /// Number of its sequence.
    pub sequence: usize,
    /// The tokens of its prompt.
    pub tokens: Vec<TokenLabel>,
    /// The text for which it was begun.
    pub text: Option<String>,
}

/// The maps between two prompts.
#[derive(Clone, Debug)]
pub(super) struct Maps {
    pub(super) clean: Clean,
    pub(super) ids: Arc<[u32]>,
    /// The maps that the user opened, the last one at the end.
    pub(super) opened: Vec<PatchMap>,
    pub(super) filled: HashMap<PatchMap, Filled>,
}

/// The effects of the first places of a map.
#[derive(Clone, Debug)]
pub(super) struct Filled {
    pub(super) ends: PatchEnds,
    pub(super) places: Vec<[PatchEffect; 3]>,
}

/// The maps of all runs, and the chosen map and metric.
#[derive(Debug, Default)]
pub(super) struct PatchState {
    pub(super) map: PatchMap,
    pub(super) metric: Metric,
    /// By run and sequence.
    pub(super) maps: HashMap<(Run, usize), Maps>,
    /// The runs that were begun for clean prompts, by their text.
    pub(super) begun: Vec<(String, Run)>,
}

impl PatchState {
    /// Sets the clean prompt of a run.
    pub(super) fn set(&mut self, of: (Run, usize), clean: Clean) {
        self.begun.extend(clean.text.clone().map(|text| (text, clean.run)));
        if self.maps.get(&of).is_none_or(|maps| maps.clean.tokens != clean.tokens) {
            let ids = clean.tokens.iter().map(|token| token.id).collect();
            self.maps.insert(of, Maps { clean, ids, opened: Vec::new(), filled: HashMap::new() });
        } else if let Some(maps) = self.maps.get_mut(&of) {
            maps.clean = clean;
        }
        self.open();
    }

    /// Chooses another map.
    pub(super) fn choose(&mut self, by: isize) {
        let count = PatchMap::ALL.len() as isize;
        self.map = PatchMap::ALL[(self.map as isize + by).rem_euclid(count) as usize];
        self.open();
    }

    /// Notes that the chosen map is opened.
    fn open(&mut self) {
        for maps in self.maps.values_mut() {
            maps.opened.retain(|map| *map != self.map);
            maps.opened.push(self.map);
        }
    }

    /// Chooses the next metric.
    pub(super) fn next_metric(&mut self) {
        self.metric = Metric::ALL[(self.metric as usize + 1) % Metric::ALL.len()];
    }
}
