//! Keys that compare: `c` compares with what was shown before, `d` subtracts, `/compare` names what to compare with.

use llama_trace_core::trace::{Address, Axis, Subject};

use super::app::App;
use super::comparison::{ComparedWith, Pinned};
use super::edited;
use super::goto;
use super::panel_state::Focus;
use super::slice::Selected;
use super::view::heatmap::Heatmap;
use super::view::kind::View;

/// What a comparison can be with, for a message.
pub(super) const WANTED: &str =
    "type what to compare with: h=2, t=3, L0, p0, L0/xq[h=1], or plain: the run without its edits";

/// Ends the comparison.
pub(super) fn end(app: &mut App) {
    app.comparison.end();
    app.other = None;
}

/// Compares with the same place in the run without its edits. The event loop starts that run.
///
/// # Errors
/// A text for the message line if the run has no edits.
pub(super) fn with_plain(app: &mut App) -> Result<(), String> {
    if edited::texts(&app.outline).is_empty() {
        return Err("this run has no edits, so that it is the plain run itself; compare h=2 or L0 names another place".to_owned());
    }
    app.comparison.wants_plain = true;
    Ok(())
}

/// Compares with the run that was shown before.
pub(super) fn with_previous(app: &mut App) {
    begin(app, ComparedWith::Previous);
}

/// Compares with what was shown before, or ends the comparison.
pub(super) fn toggle(app: &mut App) {
    if app.comparison.with.is_some() {
        end(app);
    } else if app.comparison.has_previous {
        begin(app, ComparedWith::Previous);
    } else if let Some(pinned) = shown_before(app) {
        begin(app, ComparedWith::Pinned(pinned));
    } else {
        let sequences = if app.outline.sequences > 1 { ", ) or /s1 another sequence" } else { "" };
        app.say(
            format!(
                "there is nothing to compare with yet: ] shows another head, N another layer{sequences}, then c \
                 compares; /compare h=2 (or t=3, L0, p0, xq) names another place"
            ),
            false,
        );
    }
}

/// Shows the difference in place of the second tensor, or the second tensor again.
pub(super) fn subtract(app: &mut App) {
    if std::mem::take(&mut app.comparison.subtracts) {
        return;
    }
    let Some(other) = &app.other else {
        return app.say("d shows the difference in a comparison: press c, then d", false);
    };
    let (step, there) = (app.place.step, other.place.step);
    if step.stage().is_ids() {
        return app.say("token ids are names, so their difference has no meaning", false);
    }
    if step.axes() != there.axes() || !Heatmap.fits(step) {
        let name = step.name();
        let words = format!(
            "the difference of {name} has no heatmap here; the line above has it for the cell under the cursor"
        );
        return app.say(words, false);
    }
    if !app.view().is_grid() {
        app.choose_view(Heatmap.name());
    }
    app.comparison.subtracts = true;
}

fn begin(app: &mut App, with: ComparedWith) {
    app.comparison.with = Some(with);
    app.derivation = None;
    app.panels.focus = Focus::Tensor;
}

/// The pinned coordinates for a comparison with the spot of this step that was visited last. Only the
/// coordinates that differ from the current spot are pinned.
fn shown_before(app: &App) -> Option<Pinned> {
    let before = app.history.last_on_step(app.place)?;
    let (here, there) = (app.place, before.place);
    let axis = app.cut().held.map(|held| app.place.step.axes()[held]);
    let at = |axis: Axis, of: &Selected| (axis, of.get(axis, usize::MAX));
    let index = axis.map(|axis| (at(axis, &before.selected), at(axis, &app.cursor.selected)));
    Some(Pinned {
        pass: Some(there.pass).filter(|_| there.pass != here.pass),
        layer: there.layer.filter(|_| there.layer != here.layer),
        step: None,
        index: index.filter(|(before, now)| before != now).map(|(before, _)| before).into_iter().collect(),
    })
}

/// Compares with the tensor at an address. Coordinates that the address leaves out follow the cursor.
///
/// # Errors
/// An error message for the message line.
pub(super) fn with(app: &mut App, text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err(WANTED.to_owned());
    }
    let bare = text.contains('=') && !text.contains(['[', '/']);
    let address = Address::parse(&if bare { format!("[{text}]") } else { text.to_owned() })?;
    let elsewhere = address.run.is_some() || address.sequence.is_some_and(|it| it != app.outline.sequence);
    if elsewhere {
        return Err("to compare with another sequence or run, go there first (/s1), then press c".to_owned());
    }
    let spot = goto::find(app, &address)?;
    let step = match address.subject {
        Some(Subject::Step(step)) if step != app.place.step => Some(step),
        _ => None,
    };
    if step.is_some_and(|step| step.axes() != app.place.step.axes()) {
        return Err(format!("{} and {} have different axes", app.place.step.name(), spot.place.step.name()));
    }
    let index = app.index();
    let here = |(axis, at): &(Axis, usize)| {
        app.place.step.axes().iter().zip(&index).any(|(own, here)| (own, here) == (axis, at))
    };
    let itself = spot.place == app.place && spot.index.iter().all(here);
    if itself {
        return Err(format!("{text} is the place on the screen: name another place"));
    }
    let pinned = Pinned { pass: address.pass, layer: address.layer, step, index: spot.index };
    begin(app, ComparedWith::Pinned(pinned));
    Ok(())
}
