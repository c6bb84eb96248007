//! Two things at once: what is shown, and beside it another head, token, layer or pass, or what was shown before, a
//! sequence or a run. The second stands at the same place as the first, but for what is held.

use ratatui::layout::Rect;

use llama_trace_core::trace::{Address, Axis, Run, Source, Subject};

use super::app::{App, Focus};
use super::beside::{Beside, Held, less};
use super::derivation::Derivation;
use super::goto;
use super::place::{Place, Walk};
use super::travel;
use super::view::Panels;
use super::view::heatmap::Heatmap;
use super::view::kind::View;

/// Compares with what was shown before, or not any more.
pub(super) fn toggle(app: &mut App) {
    if app.compares.take().is_some() {
        (app.other, app.subtracts) = (None, false);
    } else if app.goes_back {
        begin(app, Beside::Before);
    } else if let Some(held) = shown_before(app) {
        begin(app, Beside::Held(held));
    } else {
        let sequences = if app.outline.sequences > 1 { ", ) or /s1 another sequence" } else { "" };
        app.say(
            format!(
                "there is nothing to compare with yet: ] shows another head, N another layer{sequences}, then c \
                 compares; /compare h=2 (or t=3, L0, p0, xq) says with which"
            ),
            false,
        );
    }
}

/// Shows the difference of the two in place of what stands beside, or that again.
pub(super) fn subtract(app: &mut App) {
    if std::mem::take(&mut app.subtracts) {
        return;
    }
    let Some(other) = &app.other else {
        return app.say("d shows the difference of two that stand side by side: c compares, then d", false);
    };
    let (step, there) = (app.place.step, other.place.step);
    if step.stage().is_ids() {
        return app.say("ids are names: what they differ by says nothing", false);
    }
    if step.axes() != there.axes() || !Heatmap.fits(step) {
        let name = step.name();
        let words =
            format!("the difference is a heatmap, which {name} has not: the line above has one number");
        return app.say(words, false);
    }
    if !app.view().spans_grid() {
        app.choose_view(Heatmap.name());
    }
    app.subtracts = true;
}

fn begin(app: &mut App, beside: Beside) {
    app.compares = Some(beside);
    app.derivation = None;
    app.focus = Focus::Tensor;
}

/// In what the place that was shown before on this step is another one.
fn shown_before(app: &App) -> Option<Held> {
    let before = travel::alike(app)?;
    let (here, there) = (app.place, before.place);
    let axis = app.cut().held.map(|held| app.place.step.axes()[held]);
    let at = |axis: Axis, of: &super::slice::Selected| (axis, of.get(axis, usize::MAX));
    let index = axis.map(|axis| (at(axis, &before.selected), at(axis, &app.selected)));
    Some(Held {
        pass: Some(there.pass).filter(|_| there.pass != here.pass),
        layer: there.layer.filter(|_| there.layer != here.layer),
        step: None,
        index: index.filter(|(before, now)| before != now).map(|(before, _)| before).into_iter().collect(),
    })
}

/// Compares with what an address names; what it leaves out goes along.
///
/// # Errors
/// What is wrong with it, for the message line.
pub(super) fn with(app: &mut App, text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err("type what to compare with: h=2, t=3, L0, p0, L0/xq[h=1]".to_owned());
    }
    let bare = text.contains('=') && !text.contains(['[', '/']);
    let address = Address::parse(&if bare { format!("[{text}]") } else { text.to_owned() })?;
    let elsewhere = address.run.is_some() || address.sequence.is_some_and(|it| it != app.outline.sequence);
    if elsewhere {
        return Err("go to that sequence or run first (/s1), then c compares with the one before".to_owned());
    }
    let spot = goto::find(app, &address)?;
    let step = match address.subject {
        Some(Subject::Step(step)) if step != app.place.step => Some(step),
        _ => None,
    };
    if step.is_some_and(|step| step.axes() != app.place.step.axes()) {
        return Err(format!("{} and {} have other axes", app.place.step.name(), spot.place.step.name()));
    }
    let index = app.index();
    let here = |(axis, at): &(Axis, usize)| {
        app.place.step.axes().iter().zip(&index).any(|(own, here)| (own, here) == (axis, at))
    };
    let itself = spot.place == app.place && spot.index.iter().all(here);
    if itself {
        return Err(format!("{text} is what is shown: compare it with another"));
    }
    let held = Held { pass: address.pass, layer: address.layer, step, index: spot.index };
    begin(app, Beside::Held(held));
    Ok(())
}

impl App {
    /// Whether what is compared is of the run and the sequence that are shown.
    pub fn compares_itself(&self) -> bool {
        matches!(self.compares, Some(Beside::Held(_)))
    }

    /// Asks `source`, which has what stands beside, for the same values as here; true where that changes the screen.
    /// Call it after [`App::sync`].
    pub fn sync_compared(&mut self, source: Option<&mut dyn Source>) -> bool {
        let (Some(beside), Some(source), Some(pane)) =
            (self.compares.clone(), source, Panels::new(self).compared)
        else {
            let changed = self.other.is_some();
            (self.other, self.shared) = (None, None);
            return changed;
        };
        let is_same = |app: &App| {
            (app.outline.run, app.outline.sequence) == (source.outline().run, source.outline().sequence)
        };
        let mut other = self.other.take().filter(|other| is_same(other)).unwrap_or_else(|| {
            Box::new(App::new(source.outline().clone(), self.theme, (0, 0)).with_chapters(self.chapters))
        });
        let changed = other.mirror(self, &beside, pane);
        let news = other.sync(source);
        let before = (self.offset, other.offset);
        (self.offset, other.offset) = together(self, &other);
        let moved = before != (self.offset, other.offset);
        let spans = self.span_of_both(&other);
        let recoloured = (self.shared, other.shared) != (spans, spans);
        (self.shared, other.shared) = (spans, spans);
        self.other = Some(other);
        changed || news || moved || recoloured
    }

    /// Stands where `app` stands but for what is held, as far as there is such a place, in its own part of the screen.
    fn mirror(&mut self, app: &App, beside: &Beside, pane: Rect) -> bool {
        let nothing = Held::default();
        let held = if let Beside::Held(held) = beside { held } else { &nothing };
        let (wanted, last) =
            (held.pass.unwrap_or(app.place.pass), self.outline.passes.len().saturating_sub(1));
        let pass = wanted.min(last);
        self.lacking = (wanted > last).then_some(wanted);
        let step = held.step.unwrap_or(app.place.step);
        let layer = if step.stage().in_layer() { held.layer.or(app.place.layer) } else { None };
        let place = Walk::new(&self.outline, pass).same(Place { layer, step, ..app.place });
        let seen =
            |app: &Self| (app.place, app.selected, app.pane, app.turn, app.scale, app.wish, app.subtracts);
        let before = seen(self);
        self.size = app.size;
        self.go(place);
        (self.pane, self.selected, self.turn) = (Some(pane), app.selected, app.turn);
        (self.scale, self.wish, self.rank, self.cell) = (app.scale, app.wish, app.rank, app.cell);
        self.subtracts = app.subtracts;
        self.trying = app.trying;
        (self.offset, self.opened) = (app.offset, true);
        let axes = self.place.step.axes();
        for (&axis, index) in app.place.step.axes().iter().zip(app.index()) {
            self.selected.set(axis, index);
        }
        for &(axis, index) in &held.index {
            self.selected.set(axis, index);
        }
        let has = |(&axis, length): (&Axis, usize)| self.selected.get(axis, usize::MAX) < length;
        self.beyond = self.lacking.is_some() || !axes.iter().zip(self.shape()).all(has);
        // Of two that were judged the number is taken apart in both.
        let (opened, was) = (app.derivation.is_some(), self.derivation.is_some());
        match opened {
            true if !was => self.derivation = Some(Derivation::default()),
            true => {}
            false => self.derivation = None,
        }
        (self.focus, self.zoomed) = (app.focus, app.zoomed);
        self.settle();
        opened != was || before != seen(self)
    }

    /// Nothing is wanted any more of what stood beside.
    pub(super) fn leave_compared(&mut self, beside: Option<&mut dyn Source>) {
        if let (Some(mut other), Some(beside)) = (self.other.take(), beside) {
            other.leave(beside);
        }
    }

    /// The run beside this one, what it is called, and the value under the cursor less the one there; none where one of the two has no
    /// such value.
    pub fn compared(&self) -> Option<(Run, String, Option<f64>)> {
        let other = self.other.as_ref()?;
        let (run, sequence) = (other.outline.run, other.outline.sequence);
        let (name, held) = match &self.compares {
            Some(Beside::Held(held)) => (held.name(), &held.index[..]),
            _ if self.outline.sequences < 2 => (run.to_string(), &[][..]),
            _ if run == Run::ITSELF => (format!("s{sequence}"), &[][..]),
            _ => (format!("{run}: s{sequence}"), &[][..]),
        };
        // Where they are ranked the two cursors stand on different ids: it is this one's that is compared.
        let here = self.index();
        let axes = self.place.step.axes();
        let there: Vec<usize> = axes
            .iter()
            .zip(&here)
            .map(|(axis, &index)| held.iter().find(|(other, _)| other == axis).map_or(index, |(_, at)| *at))
            .collect();
        let value = |app: &App, index: &[usize]| Some(app.tensor()?.get(index)?.real());
        let numbers = !self.place.step.stage().is_ids();
        let difference = || Some(less(value(self, &here)?, value(other, &there)?));
        let alike = numbers && other.place.step.axes() == axes && other.lacking.is_none();
        Some((run, name, alike.then(difference).flatten()))
    }
}

/// The first row and column that each shows: the same ones where both have their cursor in sight then.
fn together(app: &App, other: &App) -> ((usize, usize), (usize, usize)) {
    let (Some(here), Some(there)) = (app.layout(), other.layout()) else { return (app.offset, app.offset) };
    let apart = |one: usize, other: usize, seen: usize| one.abs_diff(other) >= seen.max(1);
    let rows = here.rows_seen().min(there.rows_seen());
    let columns = here.columns_seen().min(there.columns_seen());
    // Of what has no such place the same rows are left empty.
    let both = !other.beyond;
    if both && (apart(here.cursor.0, there.cursor.0, rows) || apart(here.cursor.1, there.cursor.1, columns)) {
        return (here.follow(app.offset), there.follow(app.offset));
    }
    let first = |offset: usize, at: usize, seen: usize| offset.max((at + 1).saturating_sub(seen.max(1)));
    let both = (first(app.offset.0, here.cursor.0, rows), first(app.offset.1, here.cursor.1, columns));
    (both, both)
}
