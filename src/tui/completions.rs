//! Completions of the go-to line: stages, layers, passes, sequences, heads and tokens that contain the typed letters.
//! Several words narrow the choice: `soft up h2` finds `softmax[h=2,t=3]` if token 3 is "␣upon".

use llama_trace_core::trace::stage::Section;
use llama_trace_core::trace::{Axis, Step};

use super::app::App;
use super::goto::{COMMANDS, is_edit, step_in, takes_text, view_named, without_in};
use super::input::GotoLine;
use super::place::present;
use super::screen_option::ScreenOption;
use super::synonyms::meant;
use super::text;
use super::view::views::VIEWS;

/// A completion of the go-to line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The completed line.
    pub text: String,
    /// A note next to the line: the text of a token, or nothing.
    pub what: String,
}

/// Rank of a match. The best rank is 0: the letters are the whole name.
type Rank = u8;

/// Maximum number of offered tokens. A longer list would be no help in choosing.
const TOKENS: usize = 40;

impl GotoLine {
    /// The completions of the text, the best ones first. Only the last part of a path is completed.
    pub fn completions(&self, app: &App) -> Vec<Completion> {
        if let Some((option, value)) = ScreenOption::in_line(&self.text) {
            return option.completions(app, value);
        }
        let (before, part) = self
            .text
            .rsplit_once('/')
            .map_or(("", &*self.text), |(_, part)| (&self.text[..self.text.len() - part.len()], part));
        if part.contains('[')
            || takes_text(&self.text)
            || without_in(&self.text).is_some()
            || is_edit(&self.text)
            || step_in(&self.text).is_some()
        {
            return Vec::new();
        }
        let part = part.to_lowercase();
        let words: Vec<&str> = part.split_whitespace().collect();
        let mut found = match words[..] {
            [] => names(app, before, ""),
            [word] => {
                let mut found = names(app, before, word);
                found.extend(places(app, before, &Wanted::of(&[word])));
                found
            }
            _ => places(app, before, &Wanted::of(&words)),
        };
        if !words.is_empty() {
            found.extend(views(app, before, &part));
            found.extend(synonyms(app, before, &part));
            // Names that only have the letters of a known word in them are no help.
            if meant(&part).any(|row| row.words.contains(&part.trim())) {
                found.retain(|(rank, _)| *rank < 3);
            }
        }
        found.sort_by_key(|(rank, _)| *rank);
        let mut completions: Vec<Completion> = Vec::with_capacity(found.len());
        for (_, completion) in found {
            if completions.iter().all(|other| other.text != completion.text) {
                completions.push(completion);
            }
        }
        completions
    }
}

/// Rank of `name` for the typed letters `part`. None unless `name` has all letters in this order: `amx` finds
/// `attn_max`.
fn rank(part: &str, name: &str) -> Option<Rank> {
    let name = name.to_lowercase();
    let mut letters = name.chars();
    if name == part {
        Some(0)
    } else if name.starts_with(part) {
        Some(1)
    } else if name.contains(part) {
        Some(2)
    } else {
        part.chars().all(|c| letters.any(|other| other == c)).then_some(3)
    }
}

/// The steps of this pass.
fn steps(app: &App) -> impl Iterator<Item = Step> {
    let (sizes, dims) = (app.outline.card.sizes(), app.dims());
    let sections = [Section::Start, Section::Layer, Section::End, Section::Sampler];
    let layer = app.place.layer;
    let all = sections.into_iter().flat_map(Step::in_section).filter(|step| step.first_of_name() == *step);
    all.map(move |step| step.in_model(&sizes, layer)).filter(move |&step| present(step, &sizes, dims))
}

/// Stages, layers, passes and sequences that match `part`.
fn names(app: &App, before: &str, part: &str) -> Vec<(Rank, Completion)> {
    let mut names: Vec<String> = steps(app).map(|step| step.name().to_owned()).collect();
    names.extend((0..app.outline.card.sizes().layers).map(|layer| format!("L{layer}")));
    if before.is_empty() {
        names.extend(COMMANDS.map(str::to_owned));
        names.extend((0..app.outline.passes.len()).map(|pass| format!("p{pass}")));
        // There may be thousands of sequences. One is offered as an example, until the user types an `s`.
        let sequences = app.outline.sequences.min(if part.starts_with('s') { usize::MAX } else { 1 });
        names.extend((0..sequences).filter(|_| sequences > 1).map(|sequence| format!("s{sequence}")));
    }
    let fits = |name: String| {
        let text = format!("{before}{name}");
        Some((rank(part, &name)?, Completion { text, what: String::new() }))
    };
    names.into_iter().filter_map(fits).collect()
}

/// Views whose names contain `part`.
fn views(app: &App, before: &str, part: &str) -> Vec<(Rank, Completion)> {
    let names = VIEWS.iter().map(|view| view.name()).filter(|_| before.is_empty());
    let fits = |name: &str| {
        let rank = rank(part.trim(), name).filter(|rank| *rank < 3)?;
        let (place, name) = view_named(app, name)?;
        Some((rank, Completion { text: name.to_owned(), what: format!("view of {}", place.step.name()) }))
    };
    names.filter_map(fits).collect()
}

/// What the table of synonyms finds for `part`.
fn synonyms(app: &App, before: &str, part: &str) -> Vec<(Rank, Completion)> {
    let mut found = Vec::new();
    for row in meant(part) {
        let rank = if row.words.contains(&part.trim()) { 0 } else { 2 };
        for &name in row.finds {
            let command = COMMANDS.iter().find(|command| command.trim_end() == name);
            let text = match command {
                _ if steps(app).any(|step| step.name() == name) => format!("{before}{name}"),
                Some(command) if before.is_empty() => (*command).to_owned(),
                None if before.is_empty() && view_named(app, name).is_some() => name.to_owned(),
                _ => continue,
            };
            found.push((rank, Completion { text, what: row.what.to_owned() }));
        }
    }
    found
}

/// The parts of an address that the typed words name.
#[derive(Debug, Default)]
struct Wanted<'a> {
    pass: Option<usize>,
    layer: Option<usize>,
    head: Option<usize>,
    /// Letters of a stage or a token.
    words: Vec<&'a str>,
}

impl<'a> Wanted<'a> {
    fn of(words: &[&'a str]) -> Self {
        let mut wanted = Self::default();
        for &word in words {
            let number = |letter: char| word.strip_prefix(letter)?.parse().ok();
            if let Some(pass) = number('p') {
                wanted.pass = Some(pass);
            } else if let Some(layer) = number('l') {
                wanted.layer = Some(layer);
            } else if let Some(head) = number('h') {
                wanted.head = Some(head);
            } else {
                wanted.words.push(word);
            }
        }
        wanted
    }
}

/// Addresses with a head or a token that match `wanted`.
fn places(app: &App, before: &str, wanted: &Wanted) -> Vec<(Rank, Completion)> {
    let here = app.place.step;
    let stages = |word: &str| -> Vec<(Rank, Step)> {
        steps(app).filter_map(|step| Some((rank(word, step.name())?, step))).collect()
    };
    let mut found = Vec::new();
    let mut add = |rank: Rank, step: Step, token: Option<usize>| {
        found.extend(place(app, before, wanted, (rank, step, token)));
    };
    let on = |step: Step| if step.axes().contains(&Axis::Token) { Some(step) } else { None };
    let first = || steps(app).find(|step| step.axes().contains(&Axis::Token));
    match wanted.words[..] {
        [] => add(0, here, None),
        [word] => {
            // The name of a stage alone is already offered by `names`.
            if wanted.pass.or(wanted.layer).or(wanted.head).is_some() {
                stages(word).into_iter().for_each(|(rank, step)| add(rank, step, None));
            }
            for (rank, token) in tokens(app, word) {
                if let Some(step) = on(here).or_else(first) {
                    add(rank, step, Some(token));
                }
            }
        }
        [one, other] => {
            for (word, text) in [(one, other), (other, one)] {
                let tokens = tokens(app, text);
                for (rank, step) in stages(word).into_iter().filter(|&(_, step)| on(step).is_some()) {
                    tokens.iter().for_each(|&(least, token)| add(rank.max(least), step, Some(token)));
                }
            }
        }
        _ => {}
    }
    found
}

/// The tokens of this pass whose text contains `part`.
fn tokens(app: &App, part: &str) -> Vec<(Rank, usize)> {
    let pass = app.outline.passes.get(app.place.pass);
    let labels = pass.map_or(&[][..], |pass| &pass.tokens).iter().enumerate();
    let fits = labels.filter_map(|(row, label)| {
        let rank = rank(part, label.text.trim())?;
        // Rank 3 (the letters with other letters between them) would match most tokens.
        (rank < 3).then_some((rank, row))
    });
    fits.take(TOKENS).collect()
}

/// The address of a step with the wanted layer, pass, head and token; none if the step has no such index.
fn place(
    app: &App,
    before: &str,
    wanted: &Wanted,
    (rank, step, token): (Rank, Step, Option<usize>),
) -> Option<(Rank, Completion)> {
    let sizes = app.outline.card.sizes();
    let in_layer = step.stage().in_layer();
    if wanted.layer.is_some_and(|layer| !in_layer || layer >= sizes.layers)
        || wanted.pass.is_some_and(|pass| pass >= app.outline.passes.len())
    {
        return None;
    }
    let mut index = Vec::new();
    if let Some(head) = wanted.head {
        let axis = step.axes().iter().find(|axis| matches!(axis, Axis::Head | Axis::KvHead))?;
        if head >= sizes.axis(*axis, app.dims()) {
            return None;
        }
        index.push(format!("{}={head}", axis.index()));
    }
    index.extend(token.map(|token| format!("{}={token}", Axis::Token.index())));
    let mut text = before.to_owned();
    text.extend(wanted.pass.map(|pass| format!("p{pass}/")));
    text.extend(wanted.layer.map(|layer| format!("L{layer}/")));
    text.push_str(step.name());
    if !index.is_empty() {
        text.push_str(&format!("[{}]", index.join(",")));
    }
    let label = token.and_then(|token| app.token(token));
    let what = label.map_or(String::new(), |label| text::visible(&label.text));
    Some((rank, Completion { text, what }))
}
