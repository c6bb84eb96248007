//! The maps of the shown run: the next question, and its answer. The commands that open a map are here too.

use llama_trace_core::trace::patch::{PatchAt, PatchEffects};
use llama_trace_core::trace::{Run, Site, Stage, Step};

use super::app::App;
use super::patch_state::{Clean, CleanPrompt, Filled, Maps};
use super::place::{Place, Walk};

/// The clean prompt, if the line is `patch TEXT` or `patch r1`; an empty text if nothing follows.
pub(super) fn clean_in(app: &App, line: &str) -> Option<CleanPrompt> {
    let rest = line.trim_start().trim_start_matches('/').strip_prefix("patch")?;
    if !(rest.is_empty() || rest.starts_with(' ')) {
        return None;
    }
    let word = rest.trim();
    let number = |letter: char| word.strip_prefix(letter)?.parse::<u16>().ok();
    let here = app.outline.run;
    Some(match (number('r'), number('s')) {
        (Some(run), _) => CleanPrompt::Run(Run(run), 0),
        (_, Some(sequence)) => CleanPrompt::Run(here, sequence.into()),
        _ => CleanPrompt::Text(rest.strip_prefix(' ').unwrap_or(rest).to_owned()),
    })
}

/// The logits of the prompt, which have the map.
pub(super) fn logits_of_prompt(app: &App) -> Place {
    Walk::new(&app.outline, 0).place(None, Step::Stage(app.outline.card.sizes().last_logits()))
}

impl App {
    fn patch_maps(&self) -> Option<&Maps> {
        self.patch.maps.get(&(self.outline.run, self.outline.sequence))
    }

    /// The run that was begun for a clean prompt.
    pub fn begun_for(&self, text: &str) -> Option<Run> {
        self.patch.begun.iter().rev().find(|(other, _)| other == text).map(|(_, run)| *run)
    }

    /// The clean run of the shown run.
    pub fn clean(&self) -> Option<&Clean> {
        self.patch_maps().map(|maps| &maps.clean)
    }

    /// The effects so far of the places of the chosen map.
    pub(super) fn filled(&self) -> Option<&Filled> {
        self.patch_maps()?.filled.get(&self.patch.map)
    }

    /// The question for the next places of a map, the one that was opened last before others. None if all opened maps
    /// are complete.
    pub(super) fn next_patch(&self) -> Option<PatchAt> {
        // Other questions would delay a playback.
        let maps = self.patch_maps().filter(|_| !self.playback.is_playing())?;
        let first = self.outline.passes.first()?;
        // The metrics need the last logits of the prompt, so its pass must be done.
        first.sampled.as_ref()?;
        let sizes = self.outline.card.sizes();
        let site =
            Site { run: self.outline.run, sequence: self.outline.sequence, ..Site::once(0, Stage::Logits) };
        maps.opened.iter().rev().find_map(|&map| {
            let known = maps.filled.get(&map).map_or(0, |filled| filled.places.len());
            PatchAt::from(site, &maps.ids, map, &sizes, known)
        })
    }

    /// Why the next places of a map have no effects.
    pub(super) fn patch_failure(&self) -> Option<&str> {
        self.answers.get(&self.next_patch()?)?.err()
    }

    /// Takes the effects that have arrived; true if there were some.
    pub(super) fn take_effects(&mut self) -> bool {
        let Some(at) = self.next_patch() else { return false };
        let Some(Ok(PatchEffects { ends, places })) = self.answers.get(&at) else { return false };
        let (ends, places) = (*ends, places.clone());
        let key = (self.outline.run, self.outline.sequence);
        let Some(maps) = self.patch.maps.get_mut(&key) else { return false };
        let filled = maps.filled.entry(at.map).or_insert_with(|| Filled { ends, places: Vec::new() });
        filled.places.extend(places);
        true
    }
}
