//! Does a scene show the answer of its question, or has an earlier scene shown it?

use llama_trace_core::lesson::{Answer, Kind, Question, RunSetting, Scene, Solution};
use llama_trace_core::trace::{Address, Run, Site, Subject};

/// Digits from which an equal number on the screen is more than a coincidence.
const DIGITS: usize = 3;

/// Views that show the values of their stage.
const WITH_VALUES: [&str; 4] = ["heatmap", "numbers", "list", "bars"];

/// A stage whose values a scene shows, and the head that it holds.
struct Shown {
    scene: usize,
    run: RunSetting,
    site: Site,
    head: Option<usize>,
}

/// The stages that the scenes so far have shown.
#[derive(Default)]
pub(super) struct Leaks(Vec<Shown>);

impl Leaks {
    /// Adds what scene number `number` shows, from 1. `at` is its address.
    pub(super) fn show(&mut self, number: usize, scene: &Scene, at: &Address) {
        let view = scene.screen.view.as_ref().map(|view| &*view.value);
        let hides = scene.question.as_ref().is_some_and(|question| question.hides_cells);
        if let Some(site) = site(at)
            && !hides
            && view.is_none_or(|view| WITH_VALUES.contains(&view))
        {
            self.0.push(Shown { scene: number, run: scene.run.clone(), site, head: head(at) });
        }
    }

    /// The reason why the answer is known before it is given. `at` is the address of the scene, and `text` is
    /// everything that stands on the screen while the question is open.
    pub(super) fn find(
        &self,
        scene: &Scene,
        question: &Question,
        solution: &Solution,
        (at, text): (&Address, &str),
    ) -> Option<String> {
        // The author of a number may show it on purpose.
        let is_shown = question.kind == Kind::Number && !question.hides_cells;
        if !is_shown && is_written(&solution.answer, text) {
            return Some("the screen or the words show the answer of the open question".into());
        }
        let asks_for_a_place = matches!(question.kind, Kind::Cell | Kind::Token | Kind::Key | Kind::Head);
        if !(question.hides_cells && asks_for_a_place) {
            return None;
        }
        let earlier = self.0.iter().find(|shown| {
            let same_head = shown.head.is_none() || shown.head == head(at);
            shown.run == scene.run && solution.reads.contains(&shown.site) && same_head
        })?;
        Some(format!("scene {} has shown the values that the question hides", earlier.scene))
    }
}

/// The stage of an address.
fn site(at: &Address) -> Option<Site> {
    let Some(Subject::Step(step)) = at.subject else { return None };
    let (sequence, pass) = (at.sequence.unwrap_or(0), at.pass.unwrap_or(0));
    Some(Site { run: Run::ITSELF, sequence, pass, layer: at.layer, stage: step.stage() })
}

/// The head of an address.
fn head(at: &Address) -> Option<usize> {
    at.index.iter().find(|(letter, _)| "hg".contains(*letter)).map(|(_, index)| *index)
}

/// Whether a text shows a shape or a number with a fraction. Other answers are too short to be told from other text.
fn is_written(answer: &Answer, text: &str) -> bool {
    match answer {
        Answer::Shape(lengths) if lengths.len() > 1 => {
            let forms =
                [",", "×"].map(|sign| lengths.iter().map(usize::to_string).collect::<Vec<_>>().join(sign));
            // "head 4 × token 12 × key 12", "(4, 12, 12)".
            let bare = |line: &str| -> String {
                line.chars().filter(|c| !c.is_alphabetic() && !c.is_whitespace()).collect()
            };
            let is_part = |line: &str, form: &str| {
                line.match_indices(form).any(|(at, _)| {
                    let ends = |c: Option<char>| c.is_none_or(|c| !c.is_ascii_digit() && !",×".contains(c));
                    ends(line[..at].chars().next_back()) && ends(line[at + form.len()..].chars().next())
                })
            };
            text.lines().map(bare).any(|line| forms.iter().any(|form| is_part(&line, form)))
        }
        Answer::Number(number) if number.fract() != 0.0 => {
            let text = text.replace('−', "-");
            let words = text.split(|c: char| !(c.is_ascii_digit() || ".-".contains(c)));
            words.map(|word| word.trim_end_matches(['.', '-'])).any(|word| is_rounded(word, *number))
        }
        _ => false,
    }
}

/// Whether `word` is `number`, rounded to its digits.
fn is_rounded(word: &str, number: f64) -> bool {
    let digits = word.trim_start_matches(['-', '0', '.']).bytes().filter(u8::is_ascii_digit).count();
    let Some((_, decimals)) = word.split_once('.').filter(|_| digits >= DIGITS) else { return false };
    let unit = 10_f64.powi(-i32::try_from(decimals.len()).unwrap_or(i32::MAX));
    word.parse::<f64>().is_ok_and(|written| (written - number).abs() <= unit * 0.5 * (1.0 + 1e-6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_and_a_rounded_number_are_found_in_a_text() {
        let shape = Answer::Shape(vec![4, 12, 12]);
        for text in ["softmax  head 4 × token 12 × key 12 · share", "weights (4, 12, 12) here", "(4,12,12)"]
        {
            assert!(is_written(&shape, text), "{text}");
        }
        for text in ["head 14 × token 12 × key 12", "(4, 12, 123)", "(2, 4, 12, 12)", "4 12 12", ""] {
            assert!(!is_written(&shape, text), "{text}");
        }
        let number = Answer::Number(-3.958_93);
        for text in ["it is −3.9589.", "= -3.96 │", "x -3.95893"] {
            assert!(is_written(&number, text), "{text}");
        }
        for text in ["3.9589", "-3.9", "-3.95", "-4", ""] {
            assert!(!is_written(&number, text), "{text}");
        }
        assert!(!is_written(&Answer::Number(5.0), "5.000 5"), "a count is everywhere");
    }
}
