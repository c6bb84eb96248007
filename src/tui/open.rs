//! The place where the viewer opens, checked before the terminal is touched.

use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::select::{absent, ask_for_pass, stage_named};
use llama_trace_core::trace::{Axis, Filters, Outline, PassDims, PassOutline, Step, Subject};

use super::app::App;
use super::derivation_keys;
use super::goto;
use super::place::{OpenAt, Walk};
use super::screen_option::ScreenOption;
use super::screen_settings;

/// `number`, if it is below `count`.
fn below(what: &str, number: usize, count: usize, missing: &str) -> Result<usize> {
    if number < count {
        return Ok(number);
    }
    let expected = match count {
        0 | 1 => format!("0, the only {what} there is"),
        _ => format!("a number from 0 to {}", count - 1),
    };
    Err(Error::usage(format!("there is no {what} {number}")).expected(expected).found(number).next(missing))
}

/// The sizes of a pass. A pass that is not done yet reads a single token, the one sampled before it.
fn dims_of(outline: &Outline, pass: usize) -> PassDims {
    let last = outline.passes.len().saturating_sub(1);
    let there = |pass: &PassOutline| pass.dims;
    let to_be = || {
        let start = outline.passes.last().map_or(0, |pass| pass.dims.keys()) + pass - last - 1;
        let filters = outline.passes.last().map_or(Filters::NONE, |pass| pass.dims.filters);
        PassDims { pass, start, tokens: 1, filters }
    };
    outline.passes.get(pass).map_or_else(to_be, there)
}

/// Goes to the place that `open` names. If its pass is not done yet, goes there once the pass is there.
///
/// # Errors
/// [`Error::Usage`], with the possible values, if it names something that does not exist.
pub fn open(app: &mut App, open: &OpenAt) -> Result<()> {
    let sizes = app.outline.card.sizes();
    let there = app.outline.passes.len();
    let at = open.at.as_ref();
    let pass = open.pass().unwrap_or(0);
    let more = match app.outline.recorded {
        true => "choose among these, or record more tokens".to_owned(),
        false => ask_for_pass(pass),
    };
    let pass = below("pass", pass, there.max(open.passes), &more)?;
    if let Some(address) = at {
        let dims = dims_of(&app.outline, pass);
        let start = Walk::of(&app.outline, dims).at(0);
        let no_place = |wrong: String| {
            Error::usage(format!("the address {address}: {wrong}")).expected("an address as the tracer prints it, p0/L1/softmax[h=2,t=4,k=1]; an omitted token is the last one, and any other omitted index is 0")
        };
        // Weights are the same in every pass.
        if let Some(Subject::Weight(weight)) = address.subject.filter(|_| !address.index.is_empty()) {
            let (place, row) = goto::row_of(app, address, weight).map_err(no_place)?;
            derivation_keys::open_weight_row(app, place, row);
            set_screen(app, open)?;
            app.settle();
            return Ok(());
        }
        let target = goto::resolve(&app.outline, address, dims, start).map_err(no_place)?;
        if pass < there {
            goto::go(app, &target);
            set_screen(app, open)?;
        } else {
            check_view(target.place.step, open)?;
            app.progress.opens_at = Some(open.clone());
        }
        app.settle();
        return Ok(());
    }
    let layer = open.layer.map(|layer| below("layer", layer, sizes.layers, "choose among these"));
    let layer = layer.transpose()?;
    if let Some(head) = open.head {
        app.cursor.selected.set(Axis::Head, below("head", head, sizes.heads, "choose among these")?);
    }
    let walk = Walk::of(&app.outline, dims_of(&app.outline, pass));
    let place = match (&open.stage, layer) {
        (Some(name), layer) => {
            let step = match Step::from_name(name) {
                Some(step) => step.in_model(&sizes, layer),
                None if name.contains(',') => {
                    return Err(Error::usage("the tracer opens at one stage")
                        .expected("one name")
                        .found(format!("`{name}`"))
                        .next("give the first of them; `llama-trace log` and `export` take lists"));
                }
                None => Step::Stage(stage_named(name)?.in_model(&sizes)),
            };
            let dims = dims_of(&app.outline, pass);
            let layer = step.stage().in_layer().then(|| layer.unwrap_or(0));
            if step.absence(&app.outline.card, dims, layer).is_some() {
                return Err(absent(step, &app.outline.card, dims, layer));
            }
            walk.place(layer, step)
        }
        (None, Some(layer)) => walk.at(walk.first_of(layer)),
        (None, None) => walk.at(0),
    };
    if pass < there {
        app.go(place);
        set_screen(app, open)?;
    } else {
        check_view(place.step, open)?;
        app.progress.opens_at = Some(open.clone());
    }
    app.settle();
    Ok(())
}

/// Sets the settings of the screen. A token that the address names stays selected.
fn set_screen(app: &mut App, open: &OpenAt) -> Result<()> {
    let selected = app.cursor.selected;
    for (option, value) in &open.screen {
        screen_settings::set(app, *option, value).map_err(|wrong| wrong_screen(*option, wrong))?;
    }
    if open.names_token() {
        app.cursor.selected = selected;
    }
    Ok(())
}

/// Checks that the step has the view, before its pass is there.
fn check_view(step: Step, open: &OpenAt) -> Result<()> {
    let views = open.screen.iter().filter(|(option, _)| *option == ScreenOption::View);
    for (option, view) in views {
        screen_settings::fits(step, view).map_err(|wrong| wrong_screen(*option, wrong))?;
    }
    Ok(())
}

fn wrong_screen(option: ScreenOption, wrong: String) -> Error {
    Error::usage(wrong).at(format!("--{}", option.name()))
}
