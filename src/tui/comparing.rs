//! Two sequences or two runs at once: the one that is shown, and the one that was shown before, at the same place.

use ratatui::layout::Rect;

use crate::trace::frame::Number;
use crate::trace::{Run, Source};

use super::app::{App, Focus};
use super::derivation::Derivation;
use super::place::Walk;
use super::view::Panels;

/// Compares with what was shown before, or not any more.
pub(super) fn toggle(app: &mut App) {
    if app.compares {
        app.compares = false;
        app.other = None;
    } else if app.goes_back {
        app.compares = true;
        app.derivation = None;
        app.focus = Focus::Tensor;
    } else if app.outline.sequences > 1 {
        app.say(
            "there is nothing to compare with yet: ) or /s1 shows another sequence, then c compares",
            false,
        );
    } else {
        app.say("there is one sequence only; give --prompt again for another", false);
    }
}

impl App {
    /// Asks `before`, which was shown before, for the same values as here; true where that changes the screen. Call it
    /// after [`App::sync`].
    pub fn sync_compared(&mut self, before: Option<&mut dyn Source>) -> bool {
        let (true, Some(source), Some(pane)) = (self.compares, before, Panels::new(self).compared) else {
            let changed = self.other.is_some();
            self.other = None;
            return changed;
        };
        let is_same = |app: &App| {
            (app.outline.run, app.outline.sequence) == (source.outline().run, source.outline().sequence)
        };
        let mut other = self
            .other
            .take()
            .filter(|other| is_same(other))
            .unwrap_or_else(|| Box::new(App::new(source.outline().clone(), self.theme, (0, 0))));
        let changed = other.mirror(self, pane);
        let news = other.sync(source);
        self.other = Some(other);
        changed || news
    }

    /// Stands where `app` stands, as far as there is such a place, in its own part of the screen.
    fn mirror(&mut self, app: &App, pane: Rect) -> bool {
        let pass = app.place.pass.min(self.outline.passes.len().saturating_sub(1));
        let place = Walk::new(&self.outline, pass).same(app.place);
        let before = (self.place, self.selected, self.pane, self.turn, self.scale, self.wish);
        self.size = app.size;
        self.go(place);
        (self.pane, self.selected, self.turn) = (Some(pane), app.selected, app.turn);
        (self.scale, self.wish, self.rank, self.cell) = (app.scale, app.wish, app.rank, app.cell);
        self.trying = app.trying;
        self.offset = app.offset;
        let (opened, was) = (app.derivation.is_some(), self.derivation.is_some());
        match opened {
            true if !was => self.derivation = Some(Derivation::default()),
            true => {}
            false => self.derivation = None,
        }
        (self.focus, self.zoomed) = (app.focus, app.zoomed);
        self.settle();
        opened != was || before != (self.place, self.selected, self.pane, self.turn, self.scale, self.wish)
    }

    /// Nothing is wanted any more of `before`.
    pub(super) fn leave_compared(&mut self, before: Option<&mut dyn Source>) {
        if let (Some(mut other), Some(before)) = (self.other.take(), before) {
            other.leave(before);
        }
    }

    /// The run and the sequence beside this one, and the value under the cursor less the one there; none where one of
    /// the two has no such value.
    pub fn compared(&self) -> Option<(Run, usize, Option<f64>)> {
        let other = self.other.as_ref()?;
        // Where they are ranked the two cursors stand on different ids: it is this one's that is compared.
        let index = self.index();
        let value = |app: &App| {
            Some(match app.tensor()?.get(&index)? {
                Number::F32(value) => f64::from(value),
                Number::I64(value) => value as f64,
            })
        };
        let difference = || Some(value(self)? - value(other)?);
        let difference = (other.place.step == self.place.step).then(difference).flatten();
        Some((other.outline.run, other.outline.sequence, difference))
    }
}
