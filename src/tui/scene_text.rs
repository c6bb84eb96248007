//! The screen as a scene of a lesson.

use llama_trace_core::lesson::{
    CompareSetting, MOST_PASSES, PromptSetting, RunSetting, Scene, ScreenSetting,
};
use llama_trace_core::trace::{Address, Outline, Run};

use super::app::App;
use super::comparison::ComparedWith;
use super::display::Scale;
use super::edited;
use super::panel_state::Focus;
use super::runs::Runs;
use super::scene_limits;
use super::screen_option::{DEFAULT, ScreenOption};
use super::screen_settings::{self, PANELS};
use super::strip_values::StripValues;

/// A scene as a lesson writes it.
#[derive(Clone, Debug)]
pub(super) struct SceneText {
    /// The comment.
    pub(super) text: String,
    /// The run that the comment sets.
    pub(super) run: RunSetting,
}

/// The scene with the screen of `app`. Settings that it would inherit from `last`, the scene before it, are left out. A
/// prompt that does not fit into a line is written as its token ids.
///
/// # Errors
/// A message, if a scene cannot show this screen.
pub(super) fn scene(app: &App, runs: &Runs, last: Option<&Scene>) -> Result<SceneText, String> {
    scene_limits::check(app, runs)?;
    let mut run = run_setting(app, runs);
    if let [prompt] = &mut run.prompts[..]
        && !prompt.fits_a_line()
    {
        *prompt = PromptSetting::Ids(ids(&app.outline));
    }
    if let Some(at) = run.prompts.iter().position(|prompt| !prompt.fits_a_line()) {
        return Err(format!(
            "prompt {} does not fit into one line of a lesson (a line break, an outer space, a comment mark, or too long); give its token ids",
            at + 1
        ));
    }
    if run.precision.is_none() && last.is_some_and(|last| last.run.precision.is_some()) {
        run.precision = Some(app.outline.card.precision.name().to_owned());
    }
    let mut lines = run_lines(&run, last.map(|scene| &scene.run));
    let nothing = ScreenSetting::default();
    lines.extend(screen_lines(app, last.map_or(&nothing, |scene| &scene.screen)));
    let address = Address::of(app.place.site(), app.place.step, &app.index());
    let address = Address { run: None, ..address };
    let text = match &lines[..] {
        [] => format!("<!-- scene: {address} -->\n\n"),
        lines => format!("<!-- scene: {address}\n{}\n-->\n\n", lines.join("\n")),
    };
    Ok(SceneText { text, run })
}

/// The setting of the shown run.
fn run_setting(app: &App, runs: &Runs) -> RunSetting {
    let outline = &app.outline;
    let (passes, name) = (scene_limits::passes(app), outline.card.precision.name());
    let first = runs.setting_of(Run::ITSELF).and_then(|setting| setting.precision.as_deref());
    // The weights of some models were made for another precision than f32, which is then their default.
    let is_default = name == "f32" && first.is_none() && runs.first_precision() == "f32";
    let precision = (!is_default).then(|| name.to_owned());
    if let Some(setting) = runs.setting_of(outline.run) {
        let passes = setting.passes.min(MOST_PASSES).max(passes);
        return RunSetting { passes, precision, ..setting.clone() };
    }
    let sampling = app.origin.drawing.map(|drawing| drawing.sampling).unwrap_or_default().options();
    let edits = edited::texts(outline);
    RunSetting { prompts: vec![prompt(outline, runs)], passes, sampling, precision, edits }
}

/// The prompt of a run, as a text if an open run with the same tokens was begun with one.
fn prompt(outline: &Outline, runs: &Runs) -> PromptSetting {
    let ids = ids(outline);
    let given = |other: &Outline| match runs.setting_of(other.run) {
        Some(setting) => setting.prompts.get(other.sequence).cloned(),
        None => runs.text_of(other.run).map(|text| PromptSetting::Text(text.to_owned())),
    };
    let same = |other: &&Outline| other.fork.is_none() && self::ids(other) == ids;
    let outlines = runs.outlines();
    outlines.iter().filter(same).find_map(given).unwrap_or(PromptSetting::Ids(ids))
}

/// The tokens of the prompt.
fn ids(outline: &Outline) -> Vec<u32> {
    outline.passes.iter().take(1).flat_map(|pass| &pass.tokens).map(|token| token.id).collect()
}

fn run_lines(run: &RunSetting, last: Option<&RunSetting>) -> Vec<String> {
    let mut lines = Vec::new();
    let differs = |same: &dyn Fn(&RunSetting) -> bool| last.is_none_or(|last| !same(last));
    if differs(&|last| last.prompts == run.prompts) {
        lines.extend(run.prompts.iter().map(prompt_line));
    }
    if differs(&|last| last.passes == run.passes) {
        lines.push(format!("passes: {}", run.passes));
    }
    let default = RunSetting::default();
    let last = last.unwrap_or(&default);
    if last.sampling != run.sampling {
        let greedy = run.sampling.is_empty();
        let options = if greedy { "greedy".to_owned() } else { run.sampling.join(" ") };
        lines.push(format!("sampling: {options}"));
    }
    if last.precision != run.precision {
        lines.push(format!("precision: {}", run.precision.as_deref().unwrap_or("f32")));
    }
    if last.edits != run.edits {
        match &run.edits[..] {
            [] => lines.push("edit: none".to_owned()),
            edits => lines.extend(edits.iter().map(|edit| format!("edit: {edit}"))),
        }
    }
    lines
}

fn prompt_line(prompt: &PromptSetting) -> String {
    match prompt {
        PromptSetting::Text(text) => format!("prompt: {text}"),
        PromptSetting::Ids(ids) => {
            let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
            format!("ids: {}", ids.join(" "))
        }
    }
}

fn screen_lines(app: &App, last: &ScreenSetting) -> Vec<String> {
    let step = app.place.step;
    let mut lines = Vec::new();
    let mut add = |option: ScreenOption, now: Option<String>, before: Option<String>, none: &str| {
        if now != before {
            lines.push(format!("{}: {}", option.name(), now.unwrap_or_else(|| none.to_owned())));
        }
    };
    let opening = screen_settings::fits(step, DEFAULT).ok();
    let view = app.view().name();
    // An inherited view that does not fit this step falls back to the view with which the step opens.
    let inherited = last.view.as_ref().map(|view| view.value.clone());
    let effective = inherited.as_deref().and_then(|view| screen_settings::fits(step, view).ok()).or(opening);
    if effective != Some(view) {
        add(ScreenOption::View, Some(view.to_owned()), None, DEFAULT);
    }
    let held = app.cut().held.filter(|_| app.display.turn > 0).map(|held| step.axes()[held].index());
    add(
        ScreenOption::Hold,
        held.map(String::from),
        last.hold.as_ref().map(|hold| hold.value.to_string()),
        DEFAULT,
    );
    let compared = match &app.comparison.with {
        Some(ComparedWith::Pinned(pinned)) => Some(pinned.option()),
        Some(ComparedWith::Previous) if app.compares_plain() => Some("plain".to_owned()),
        _ => None,
    };
    let before = last.compare.as_ref().map(|compare| match compare {
        CompareSetting::Place(place) => place.clone(),
        CompareSetting::Plain => "plain".to_owned(),
    });
    add(ScreenOption::Compare, compared, before, "none");
    let tried = app.sampler.setting().map(|setting| setting.options().join(" "));
    let tried = tried.map(|options| if options.is_empty() { "greedy".to_owned() } else { options });
    add(ScreenOption::Try, tried, last.trial.as_ref().map(|words| words.join(" ")), "none");
    let strip = Some(app.strip)
        .filter(|strip| *strip != StripValues::default())
        .map(|strip| strip.option().to_owned());
    let plain = StripValues::default().option();
    add(ScreenOption::Strip, strip, last.strip.clone().filter(|strip| strip != plain), plain);
    let scale =
        Some(app.display.scale).filter(|scale| *scale != Scale::Slice).map(|scale| scale.name().to_owned());
    add(ScreenOption::Scale, scale, last.scale.clone().filter(|scale| scale != "slice"), "slice");
    let all = PANELS.join(" ");
    let shown = Some(shown_panels(app).join(" ")).filter(|shown| *shown != all);
    let before = last.panels.as_ref().map(|panels| {
        let named = |name: &&str| panels.iter().any(|panel| panel == name);
        PANELS.into_iter().filter(named).collect::<Vec<_>>().join(" ")
    });
    add(ScreenOption::Panels, shown, before.filter(|before| *before != all), &all);
    lines
}

/// The names of the shown panels, as the option reads them.
fn shown_panels(app: &App) -> Vec<&'static str> {
    match (app.panels.zoomed, app.panels.focus) {
        (true, Focus::Outline) => vec!["outline"],
        (true, Focus::Notes) => vec!["notes"],
        (true, _) => vec!["tensor"],
        (false, _) => {
            let folded = [app.panels.outline_folded, false, app.panels.notes_folded];
            PANELS.into_iter().zip(folded).filter(|(_, folded)| !folded).map(|(name, _)| name).collect()
        }
    }
}

impl App {
    /// Returns whether the second tensor is that of the same prompt without edits.
    pub(super) fn compares_plain(&self) -> bool {
        let plain = |other: &App| {
            edited::texts(&other.outline).is_empty()
                && other.outline.run != self.outline.run
                && other.outline.fork.is_none()
                && other.outline.card.precision == self.outline.card.precision
                && ids(&other.outline) == ids(&self.outline)
        };
        !edited::texts(&self.outline).is_empty() && self.other.as_ref().is_some_and(|other| plain(other))
    }
}

impl Runs {
    /// The precision of the first run.
    fn first_precision(&self) -> &'static str {
        self.outlines().first().map_or("f32", |outline| outline.card.precision.name())
    }
}
