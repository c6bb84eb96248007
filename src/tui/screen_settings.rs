//! Settings of the screen. The options of the command line, the commands of the go-to line and the scenes of a lesson
//! share [`set`].

use llama_trace_core::trace::{Axis, Sampling, Step};

use super::app::App;
use super::comparison_keys;
use super::completions::Completion;
use super::display::{Scale, ViewNames};
use super::input::GotoLine;
use super::panel_state::Focus;
use super::screen_option::{DEFAULT, ScreenOption};
use super::slice::Cut;
use super::strip_values::StripValues;
use super::view::kind::View;
use super::view::views::{self, VIEWS};

/// Names of the panels.
pub(super) const PANELS: [&str; 3] = ["outline", "tensor", "notes"];

impl ScreenOption {
    /// The completions of its command.
    pub(super) fn completions(self, app: &App, value: &str) -> Vec<Completion> {
        let value = value.to_lowercase();
        let fits = |text: &str| text.starts_with(&value) && text != value;
        // A place to compare with is typed, so that a list would only be in the way.
        let values = if self == Self::Compare && value.is_empty() { Vec::new() } else { self.values(app) };
        let values = values.into_iter().filter(|(text, _)| fits(text));
        values.map(|(text, what)| Completion { text: format!("{} {text}", self.name()), what }).collect()
    }

    /// The values to choose from at the current step, each with a note. Empty if the values are too many to list.
    pub(super) fn values(self, app: &App) -> Vec<(String, String)> {
        let plain = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), String::new())).collect();
        match self {
            Self::View => plain(&views::fitting(app.place.step).map(View::name).collect::<Vec<_>>()),
            Self::Hold => {
                let axes = holds(app.place.step);
                axes.iter().map(|(axis, _)| (axis.index().to_string(), axis.name().to_owned())).collect()
            }
            Self::Compare => plain(&["none", "plain"]),
            Self::Try => plain(&["none", "temperature 1", "greedy"]),
            Self::Strip => plain(&StripValues::NAMES),
            Self::Scale => plain(&Scale::NAMES),
            Self::Panels => plain(&["outline tensor notes", "tensor notes", "tensor", "notes"]),
        }
    }

    /// Checks a value as far as that needs no run.
    ///
    /// # Errors
    /// A text that names the wrong value and lists the possible ones.
    pub fn check(self, value: &str) -> Result<(), String> {
        let one_of = |names: &[&str]| match names.contains(&value) || value == DEFAULT {
            true => Ok(()),
            false => Err(format!("`{value}` is not one of {}", names.join(", "))),
        };
        match self {
            Self::View => one_of(&VIEWS.iter().map(|view| view.name()).collect::<Vec<_>>()),
            Self::Hold if value == DEFAULT || value.chars().count() == 1 => Ok(()),
            Self::Hold => Err(format!("`{value}` is not the letter of an axis, as h, t or k")),
            Self::Compare if value.is_empty() => Err(comparison_keys::WANTED.to_owned()),
            Self::Compare => Ok(()),
            Self::Try if value == "none" => Ok(()),
            Self::Try => Sampling::GREEDY.changed(value).map(drop),
            Self::Strip => one_of(&StripValues::NAMES),
            Self::Scale => one_of(&Scale::NAMES),
            Self::Panels => panels(value).map(drop),
        }
    }
}

impl GotoLine {
    /// The line that sets a setting of the screen: the chosen completion, the line itself, or else the first completion
    /// of a value that is not known.
    pub(super) fn setting(&self, app: &App) -> String {
        let known =
            ScreenOption::in_line(&self.text).is_none_or(|(option, value)| option.check(value).is_ok());
        if known && self.chosen.is_none() {
            return self.text.clone();
        }
        let completions = self.completions(app);
        let chosen = completions.get(self.chosen.unwrap_or(0)).map(|completion| completion.text.clone());
        chosen.unwrap_or_else(|| self.text.clone())
    }
}

/// Sets a setting of the screen at the current step.
///
/// # Errors
/// A text that names the wrong value and lists the possible ones. Nothing is changed then.
pub(super) fn set(app: &mut App, option: ScreenOption, value: &str) -> Result<(), String> {
    option.check(value)?;
    match option {
        ScreenOption::View => view(app, value)?,
        ScreenOption::Hold => app.display.turn = turn(app.place.step, value)?,
        ScreenOption::Compare => match value {
            "none" => comparison_keys::end(app),
            "plain" => comparison_keys::with_plain(app)?,
            place => comparison_keys::with(app, place)?,
        },
        ScreenOption::Try if value == "none" => app.sampler.end(),
        ScreenOption::Try => {
            let own = app.outline.setting.or(app.origin.drawing.map(|drawing| drawing.sampling));
            app.sampler.begin(own.unwrap_or_default().changed(value)?);
        }
        ScreenOption::Strip => app.strip = StripValues::named(value).unwrap_or_default(),
        ScreenOption::Scale => app.display.scale = Scale::named(value).unwrap_or(Scale::Slice),
        ScreenOption::Panels => show_panels(app, &panels(value)?),
    }
    Ok(())
}

/// Chooses the view of the current step.
fn view(app: &mut App, name: &str) -> Result<(), String> {
    let view = fits(app.place.step, name)?;
    app.choose_view(view);
    Ok(())
}

/// The view of `step` with this name.
///
/// # Errors
/// A text that lists the views of the step.
pub(super) fn fits(step: Step, name: &str) -> Result<&'static str, String> {
    let names: Vec<&'static str> = views::fitting(step).map(View::name).collect();
    let opening =
        if step.over_vocabulary() { ViewNames::default().vocabulary } else { ViewNames::default().plain };
    match names.iter().find(|known| **known == name) {
        Some(view) => Ok(view),
        None if name == DEFAULT => Ok(views::chosen(step, opening).name()),
        None => Err(format!("{} has no view `{name}`; its views are {}", step.name(), names.join(", "))),
    }
}

/// The axes of `step` that can be fixed, each with its number among the cuts.
fn holds(step: Step) -> Vec<(Axis, usize)> {
    let axes = step.axes();
    let held = |turn| Some((axes[Cut::new(axes, turn).held?], turn));
    (0..Cut::choices(axes.len())).filter_map(held).collect()
}

/// The number of the cut that fixes the axis with this letter.
fn turn(step: Step, letter: &str) -> Result<usize, String> {
    let holds = holds(step);
    let found = holds.iter().find(|(axis, _)| axis.index().to_string() == letter).map(|(_, turn)| *turn);
    match found {
        _ if letter == DEFAULT => Ok(0),
        Some(turn) => Ok(turn),
        None if holds.is_empty() => Err(format!("{} shows all its axes, so that none is fixed", step.name())),
        None => {
            let letters = holds.iter().map(|(axis, _)| format!("{} ({})", axis.index(), axis.name()));
            let letters = letters.collect::<Vec<_>>().join(", ");
            Err(format!("{} cannot fix the axis `{letter}`; its axes are {letters}", step.name()))
        }
    }
}

/// The named panels.
fn panels(value: &str) -> Result<Vec<&'static str>, String> {
    let value = if value == DEFAULT { "outline tensor notes" } else { value };
    let mut named = Vec::new();
    for word in value.split([' ', ',']).filter(|word| !word.is_empty()) {
        let known = PANELS.iter().find(|panel| **panel == word);
        named.push(*known.ok_or_else(|| format!("`{word}` is not one of {}", PANELS.join(", ")))?);
    }
    match named[..] {
        [] => Err(format!("name one or more of {}", PANELS.join(", "))),
        [_] => Ok(named),
        _ if named.contains(&"tensor") => Ok(named),
        _ => Err("the outline and the notes are shown beside the tensor: name tensor too, or only one panel"
            .into()),
    }
}

/// Shows these panels and folds the others. A single panel fills the screen.
fn show_panels(app: &mut App, named: &[&str]) {
    app.panels.outline_folded = !named.contains(&"outline");
    app.panels.notes_folded = !named.contains(&"notes");
    app.panels.zoomed = named.len() == 1;
    app.panels.focus = match named {
        ["outline"] => Focus::Outline,
        ["notes"] => Focus::Notes,
        _ => Focus::Tensor,
    };
}
