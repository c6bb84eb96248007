//! The settings of a scene, which later scenes inherit.

use super::comments::{Problem, setting, unknown};
use super::expression::Place;
use super::{Chosen, CompareSetting, PromptSetting, RunSetting, ScreenSetting};
use crate::edit::Edit;
use crate::trace::{Address, Sampling, Step};

/// Largest number of passes of a run.
pub const MOST_PASSES: usize = 64;
/// Largest number of prompts of a run.
const MOST_PROMPTS: usize = 64;
/// Largest number of characters of a prompt, and of token ids.
pub(super) const LONGEST_PROMPT: usize = 2000;
/// Largest number of edits of a run.
const MOST_EDITS: usize = 64;

/// Names of the values of the token strip.
pub const STRIPS: [&str; 3] = ["tokens", "surprise", "attention"];
/// Names of the colour scales.
pub const SCALES: [&str; 4] = ["slice", "tensor", "deviations", "largest"];
/// Names of the panels.
pub const PANELS: [&str; 3] = ["outline", "tensor", "notes"];
/// Names of the arithmetics.
const PRECISIONS: [&str; 3] = ["f32", "bf16", "q8"];

/// Keys of a scene.
const KEYS: [&str; 13] = [
    "prompt",
    "ids",
    "passes",
    "sampling",
    "precision",
    "edit",
    "view",
    "hold",
    "compare",
    "try",
    "strip",
    "scale",
    "panels",
];

/// The settings that a scene hands on to the next one.
#[derive(Clone, Debug, Default)]
pub(super) struct Settings {
    pub(super) place: Place,
    pub(super) run: RunSetting,
    pub(super) screen: ScreenSetting,
}

impl Settings {
    /// Sets one of the settings that the header has too.
    ///
    /// # Errors
    /// A message that says what is expected.
    pub(super) fn set_run(&mut self, key: &str, value: &str) -> Result<(), String> {
        let run = &mut self.run;
        match key {
            "prompt" => run.prompts = vec![prompt(value)?],
            "passes" => run.passes = passes(value)?,
            "sampling" => run.sampling = options(value)?,
            "precision" => run.precision = Some(named("precision", value, &PRECISIONS)?),
            _ => return Err(unknown("setting", key, &["prompt", "passes", "sampling", "precision"])),
        }
        Ok(())
    }

    /// The settings of the next scene: those of `address` and of the lines below it, and the inherited ones.
    pub(super) fn next(
        &self,
        (line, address): (usize, &str),
        lines: &[(usize, String)],
        problems: &mut Vec<Problem>,
    ) -> Self {
        let mut next = self.clone();
        if let Some(view) = &mut next.screen.view {
            view.inherited = true;
        }
        if let Some(hold) = &mut next.screen.hold {
            hold.inherited = true;
        }
        match Place::parse(address) {
            Ok(place) => next.place = place.onto(&self.place),
            Err(what) => problems.push(Problem { line, what }),
        }
        if next.place.step.is_none() && problems.is_empty() {
            let what = "the first scene names no stage: write its address, as in `scene: p0/L0/softmax[h=0]`";
            problems.push(Problem { line, what: what.into() });
        }
        let mut seen: Vec<String> = Vec::new();
        for (line, text) in lines {
            let set = setting(text).and_then(|(key, value)| {
                let repeats = matches!(key, "prompt" | "ids" | "edit");
                let first = !seen.iter().any(|other| other == key);
                if !first && !repeats {
                    return Err(format!("`{key}` is set twice in this scene"));
                }
                // Prompts and ids are one list.
                let list = if key == "ids" { "prompt" } else { key };
                let begins = !seen.iter().any(|other| other == list);
                seen.extend([key.to_owned(), list.to_owned()]);
                next.set(key, value, begins)
            });
            if let Err(what) = set {
                problems.push(Problem { line: *line, what });
            }
        }
        if next.run != self.run {
            // Another run may lack the tokens of inherited indices.
            next.place.index = Place::parse(address).map_or_else(|_| Vec::new(), |place| place.index);
        }
        next.screen.at = next.place.to_string();
        next
    }

    /// Sets one setting. `begins` is true for the first prompt of a scene.
    fn set(&mut self, key: &str, value: &str, begins: bool) -> Result<(), String> {
        let step = self.place.step;
        let (run, screen) = (&mut self.run, &mut self.screen);
        match key {
            "prompt" | "ids" => {
                let prompt = if key == "ids" { ids(value)? } else { prompt(value)? };
                if begins {
                    run.prompts.clear();
                }
                if run.prompts.len() == MOST_PROMPTS {
                    return Err(format!("a scene has at most {MOST_PROMPTS} prompts"));
                }
                run.prompts.push(prompt);
            }
            "passes" | "sampling" | "precision" => self.set_run(key, value)?,
            "edit" if value == "none" => run.edits.clear(),
            "edit" => {
                if run.edits.len() == MOST_EDITS {
                    return Err(format!("a scene has at most {MOST_EDITS} edits"));
                }
                run.edits.push(edit(value)?);
            }
            "view" => screen.view = chosen(value, |name| Ok(name.to_owned()))?,
            "hold" => screen.hold = chosen(value, |name| hold(name, step))?,
            "compare" => {
                screen.compare = match value {
                    "none" => None,
                    "plain" => Some(CompareSetting::Plain),
                    place => Some(CompareSetting::Place(compared(place)?)),
                }
            }
            "try" => screen.trial = if value == "none" { None } else { Some(tried(value)?) },
            "strip" => screen.strip = Some(named("strip", value, &STRIPS)?),
            "scale" => screen.scale = Some(named("scale", value, &SCALES)?),
            "panels" => {
                let names = value.split([' ', ',']).filter(|name| !name.is_empty());
                let names: Result<Vec<_>, _> = names.map(|name| named("panel", name, &PANELS)).collect();
                screen.panels = Some(names?);
            }
            _ => return Err(unknown("setting", key, &KEYS)),
        }
        Ok(())
    }
}

/// A name, or none for `default`.
fn chosen<T>(value: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<Option<Chosen<T>>, String> {
    match value {
        "default" => Ok(None),
        value => Ok(Some(Chosen { value: read(value)?, inherited: false })),
    }
}

fn named(what: &str, value: &str, known: &[&str]) -> Result<String, String> {
    match known.contains(&value) {
        true => Ok(value.to_owned()),
        false => Err(unknown(what, value, known)),
    }
}

fn prompt(text: &str) -> Result<PromptSetting, String> {
    match text.chars().count() {
        0..=LONGEST_PROMPT => Ok(PromptSetting::Text(text.to_owned())),
        count => Err(format!("a prompt has at most {LONGEST_PROMPT} characters, not {count}")),
    }
}

fn ids(text: &str) -> Result<PromptSetting, String> {
    let words = text.split([' ', ',']).filter(|word| !word.is_empty());
    let read = |word: &str| {
        word.parse().map_err(|_| format!("`{word}` is no token id: write numbers, as in 1 403 17"))
    };
    let ids: Vec<u32> = words.map(read).collect::<Result<_, _>>()?;
    match ids.len() {
        1..=LONGEST_PROMPT => Ok(PromptSetting::Ids(ids)),
        count => Err(format!("1 to {LONGEST_PROMPT} token ids are expected, not {count}")),
    }
}

fn passes(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=MOST_PASSES).contains(count));
    count.ok_or_else(|| format!("passes is a number from 1 to {MOST_PASSES}, not `{text}`"))
}

/// The options of the sampler that differ from greedy sampling, as words. Equal settings have equal words.
fn options(text: &str) -> Result<Vec<String>, String> {
    Ok(Sampling::GREEDY.changed(text)?.options())
}

/// Options of the sampler that are tried instead of those of the run, as they are written.
fn tried(text: &str) -> Result<Vec<String>, String> {
    Sampling::GREEDY.changed(text)?;
    Ok(text.split_whitespace().map(str::to_owned).collect())
}

/// An edit that reads no file.
fn edit(text: &str) -> Result<String, String> {
    if text.chars().count() > LONGEST_PROMPT {
        return Err(format!("an edit has at most {LONGEST_PROMPT} characters"));
    }
    match Edit::parse(text)?.reads_file() {
        true => Err(format!("`{text}` reads a file; an edit of a lesson reads only runs of the model")),
        false => Ok(text.to_owned()),
    }
}

fn hold(text: &str, step: Option<Step>) -> Result<char, String> {
    let axes = step.map_or(&[][..], |step| step.axes());
    let letters: Vec<String> = axes.iter().map(|axis| axis.index().to_string()).collect();
    match text.chars().next().filter(|_| letters.iter().any(|letter| letter == text)) {
        Some(letter) => Ok(letter),
        None => {
            Err(format!("`{text}` is no axis of the scene's stage: its letters are {}", letters.join(", ")))
        }
    }
}

/// A place to compare with, as after `/compare`.
fn compared(text: &str) -> Result<String, String> {
    let bare = text.contains('=') && !text.contains(['[', '/']);
    Address::parse(&if bare { format!("[{text}]") } else { text.to_owned() })?;
    Ok(text.to_owned())
}
