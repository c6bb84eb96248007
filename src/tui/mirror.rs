//! The second viewer of a comparison, which mirrors the first. It shows another head, token, layer or pass of the same
//! run, or the run or sequence that was shown before.

use ratatui::layout::Rect;

use llama_trace_core::trace::{Axis, Run, Source};

use super::app::App;
use super::comparison::{self, ComparedWith, Pinned};
use super::derivation::Derivation;
use super::place::{Place, Walk};
use super::view::Panels;

impl App {
    /// Returns whether both compared tensors belong to the shown run and sequence.
    pub fn compares_itself(&self) -> bool {
        matches!(self.comparison.with, Some(ComparedWith::Pinned(_)))
    }

    /// Updates the second viewer from `source`, the source of the second tensor; true if that changes the screen. Call
    /// it after [`App::sync`].
    pub fn sync_compared(&mut self, source: Option<&mut dyn Source>) -> bool {
        let (Some(with), Some(source), Some(pane)) =
            (self.comparison.with.clone(), source, Panels::new(self).compared)
        else {
            let changed = self.other.is_some();
            (self.other, self.comparison.shared_span) = (None, None);
            return changed;
        };
        let is_same = |app: &App| {
            (app.outline.run, app.outline.sequence) == (source.outline().run, source.outline().sequence)
        };
        let mut other = self.other.take().filter(|other| is_same(other)).unwrap_or_else(|| {
            Box::new(
                App::new(source.outline().clone(), self.theme, (0, 0)).with_chapters(self.notes.chapters),
            )
        });
        // Mirroring may scroll the second viewer, and the common offsets may scroll it back.
        let before = (self.cursor.offset, other.cursor.offset);
        let changed = other.mirror(self, &with, pane);
        let news = other.sync(source);
        (self.cursor.offset, other.cursor.offset) = common_offsets(self, &other);
        let moved = before != (self.cursor.offset, other.cursor.offset);
        let span = self.span_of_both(&other);
        let recoloured = (self.comparison.shared_span, other.comparison.shared_span) != (span, span);
        (self.comparison.shared_span, other.comparison.shared_span) = (span, span);
        self.other = Some(other);
        changed || news || moved || recoloured
    }

    /// Goes to the place of `app`, except for the pinned coordinates, and draws in `pane`. If this run has no such
    /// place, goes to the nearest one.
    fn mirror(&mut self, app: &App, with: &ComparedWith, pane: Rect) -> bool {
        let nothing = Pinned::default();
        let pinned = if let ComparedWith::Pinned(pinned) = with { pinned } else { &nothing };
        let (wanted, last) =
            (pinned.pass.unwrap_or(app.place.pass), self.outline.passes.len().saturating_sub(1));
        let pass = wanted.min(last);
        self.comparison.missing_pass = (wanted > last).then_some(wanted);
        let step = pinned.step.unwrap_or(app.place.step).in_model(&self.outline.card.sizes(), None);
        let layer = if step.stage().in_layer() { pinned.layer.or(app.place.layer) } else { None };
        let place = Walk::new(&self.outline, pass).same(Place { layer, step, ..app.place });
        let seen = |app: &Self| {
            (app.place, app.cursor.selected, app.panels.pane, app.display, app.comparison.subtracts)
        };
        let before = seen(self);
        self.panels.size = app.panels.size;
        self.go(place);
        self.panels.pane = Some(pane);
        self.display = app.display;
        self.comparison.subtracts = app.comparison.subtracts;
        self.sampler = app.sampler;
        if self.hidden != app.hidden {
            self.hidden.clone_from(&app.hidden);
            self.answers.drop_values();
        }
        self.cursor.mirror(&app.cursor);
        let axes = self.place.step.axes();
        for (&axis, index) in app.place.step.axes().iter().zip(app.index()) {
            self.cursor.selected.set(axis, index);
        }
        for &(axis, index) in &pinned.index {
            self.cursor.selected.set(axis, index);
        }
        let has = |(&axis, length): (&Axis, usize)| self.cursor.selected.get(axis, usize::MAX) < length;
        self.comparison.out_of_range =
            self.comparison.missing_pass.is_some() || !axes.iter().zip(self.shape()).all(has);
        // If `diff` has judged the two runs, both viewers show the derivation of the number.
        let (open, was_open) = (app.derivation.is_some(), self.derivation.is_some());
        match open {
            true if !was_open => self.derivation = Some(Derivation::default()),
            true => {}
            false => self.derivation = None,
        }
        (self.panels.focus, self.panels.zoomed) = (app.panels.focus, app.panels.zoomed);
        self.settle();
        open != was_open || before != seen(self)
    }

    /// Returns whether the run without the edits must be opened, and forgets it.
    pub(super) fn take_plain(&mut self) -> bool {
        std::mem::take(&mut self.comparison.wants_plain)
    }

    /// Closes the second viewer and cancels its questions to `source`.
    pub(super) fn leave_compared(&mut self, source: Option<&mut dyn Source>) {
        if let (Some(mut other), Some(source)) = (self.other.take(), source) {
            other.leave(source);
        }
    }

    /// The compared run, its name, and the difference: the value under the cursor minus the other tensor's value there.
    /// No difference if either value is missing.
    pub fn compared(&self) -> Option<(Run, String, Option<f64>)> {
        let other = self.other.as_ref()?;
        let (run, sequence) = (other.outline.run, other.outline.sequence);
        let (name, pinned) = match &self.comparison.with {
            Some(ComparedWith::Pinned(pinned)) => (pinned.name(), &pinned.index[..]),
            _ if self.outline.sequences < 2 => (run.to_string(), &[][..]),
            _ if run == Run::ITSELF => (format!("s{sequence}"), &[][..]),
            _ => (format!("{run}: s{sequence}"), &[][..]),
        };
        // In lists by size the two cursors are on different ids, so the value at this viewer's id is compared.
        let here = self.index();
        let axes = self.place.step.axes();
        let there: Vec<usize> = axes
            .iter()
            .zip(&here)
            .map(|(axis, &index)| pinned.iter().find(|(other, _)| other == axis).map_or(index, |(_, at)| *at))
            .collect();
        let value = |app: &App, index: &[usize]| Some(app.tensor()?.get(index)?.real());
        let numbers = !self.place.step.stage().is_ids();
        let difference = || Some(comparison::difference(value(self, &here)?, value(other, &there)?));
        let alike = numbers && other.place.step.axes() == axes && other.comparison.missing_pass.is_none();
        Some((run, name, alike.then(difference).flatten()))
    }
}

/// The first row and column that each viewer shows. They are the same for both, if both cursors are then in sight.
fn common_offsets(app: &App, other: &App) -> ((usize, usize), (usize, usize)) {
    let offset = app.cursor.offset;
    let (Some(here), Some(there)) = (app.layout(), other.layout()) else { return (offset, offset) };
    let apart = |one: usize, other: usize, seen: usize| one.abs_diff(other) >= seen.max(1);
    let rows = here.rows_seen().min(there.rows_seen());
    let columns = here.columns_seen().min(there.columns_seen());
    // If the second tensor lacks the index of the first cursor, it shows no cursor. Then both tensors begin with the
    // same row, and the rows that the second one lacks stay empty.
    let both = !other.comparison.out_of_range;
    if both && (apart(here.cursor.0, there.cursor.0, rows) || apart(here.cursor.1, there.cursor.1, columns)) {
        return (here.follow(offset), there.follow(offset));
    }
    let first = |offset: usize, at: usize, seen: usize| offset.max((at + 1).saturating_sub(seen.max(1)));
    let both = (first(offset.0, here.cursor.0, rows), first(offset.1, here.cursor.1, columns));
    (both, both)
}
