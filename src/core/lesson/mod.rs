//! Lessons: Markdown files whose scenes set the screen of the tracer, and ask questions about it.
//!
//! A lesson holds settings and text only. It cannot start a command, read or write a file, or download anything.

mod comments;
mod evaluate;
mod expression;
#[cfg(test)]
mod fake;
mod judge;
mod parse;
mod question_text;
mod scene_settings;
mod statistic;

pub use comments::Problem;
pub use evaluate::{Evaluation, Unfinished, Value, World};
pub use expression::{Expression, Place, Position};
pub use judge::{Answer, Given, Solution, Verdict, answer, judge, solution};
pub use parse::LARGEST;
pub use scene_settings::{MOST_PASSES, PANELS, SCALES, STRIPS};

/// A parsed lesson.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lesson {
    /// Name of the file without `.md`: `16-attention-patterns`.
    pub slug: String,
    /// The first line, without `#`.
    pub title: String,
    /// The scenes in their order; at least one.
    pub scenes: Vec<Scene>,
}

/// One scene: a complete screen, words, and optionally a question.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scene {
    /// Line of the scene's comment in the file, from 1.
    pub line: usize,
    /// What the run needs. Inherited settings are filled in.
    pub run: RunSetting,
    /// What the screen shows. Inherited settings are filled in.
    pub screen: ScreenSetting,
    /// The words before the question, in Markdown without the scene's own comments.
    pub words: String,
    /// The question.
    pub question: Option<Question>,
}

/// The run of a scene. Scenes with equal settings share a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunSetting {
    /// The sequences of the batch.
    pub prompts: Vec<PromptSetting>,
    /// Number of passes, as with `-n`.
    pub passes: usize,
    /// Options of the sampler as words: `--temperature`, `1`. Empty for greedy.
    pub sampling: Vec<String>,
    /// Name of the arithmetic: f32, bf16, q8. None is the precision that the program was started with.
    pub precision: Option<String>,
    /// Edits in the grammar of `--edit`.
    pub edits: Vec<String>,
}

/// One prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromptSetting {
    /// A text.
    Text(String),
    /// Token ids.
    Ids(Vec<u32>),
}

impl PromptSetting {
    /// Returns whether a scene can hold this prompt in one line. An empty text, or one with a line break, an outer space,
    /// a control character or a comment mark, cannot be written there; its token ids can.
    #[must_use]
    pub fn fits_a_line(&self) -> bool {
        match self {
            Self::Text(text) => {
                let marks = ["<!--", "-->"].iter().any(|mark| text.contains(mark));
                let plain = text.trim() == text && !text.contains('\n') && comments::clean(text) == *text;
                plain && !marks && !text.is_empty() && text.chars().count() <= scene_settings::LONGEST_PROMPT
            }
            Self::Ids(ids) => (1..=scene_settings::LONGEST_PROMPT).contains(&ids.len()),
        }
    }
}

impl Default for RunSetting {
    fn default() -> Self {
        Self {
            prompts: vec![PromptSetting::Text("Once upon a time".to_owned())],
            passes: 1,
            sampling: Vec::new(),
            precision: None,
            edits: Vec::new(),
        }
    }
}

/// The screen of a scene. Names are checked when the lesson is parsed, addresses when the run is there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScreenSetting {
    /// The address, as written: indices and layers may be `last`, `{induction}` or `{EXPRESSION}`.
    pub at: String,
    /// Name of the view; none is the default view of the step.
    pub view: Option<Chosen<String>>,
    /// Letter of the axis that is held; none is the default of the step.
    pub hold: Option<Chosen<char>>,
    /// The second tensor.
    pub compare: Option<CompareSetting>,
    /// Options of the sampler that are tried in the sampler view.
    pub trial: Option<Vec<String>>,
    /// Values of the token strip: `tokens`, `surprise`, `attention`.
    pub strip: Option<String>,
    /// Colour scale: `slice`, `tensor`, `deviations`, `largest`.
    pub scale: Option<String>,
    /// Visible panels: some of `outline`, `tensor`, `notes`; none shows all that fit.
    pub panels: Option<Vec<String>>,
}

/// A setting, and whether the scene itself set it. An inherited one falls back where it does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen<T> {
    /// The value.
    pub value: T,
    /// Whether an earlier scene set it.
    pub inherited: bool,
}

/// The second tensor of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompareSetting {
    /// Other coordinates of the same run, as after `/compare`: `h=1`.
    Place(String),
    /// The same place in a run without the scene's edits.
    Plain,
}

/// A question about the screen.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// Line of its comment in the file, from 1.
    pub line: usize,
    /// How it is answered.
    pub kind: Kind,
    /// The right answer.
    pub answer: Right,
    /// For wrong answers, tried in their order.
    pub hints: Vec<Hint>,
    /// Whether the values that the answer depends on are hidden until it is answered.
    pub hides_cells: bool,
    /// The question's text, in Markdown.
    pub text: String,
    /// The choices of [`Kind::Choice`], in Markdown.
    pub choices: Vec<String>,
    /// The words that follow the answer, in Markdown.
    pub explanation: String,
}

/// The way in which a question is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// With the cell under the cursor.
    Cell,
    /// With the token under the cursor, a row.
    Token,
    /// With the key under the cursor.
    Key,
    /// With the current head.
    Head,
    /// With the current layer.
    Layer,
    /// With the current stage.
    Stage,
    /// With a typed number.
    Number,
    /// With a typed shape.
    Shape,
    /// With the number of a choice.
    Choice,
}

/// An answer as the lesson writes it: expressions over the running model.
#[derive(Clone, Debug, PartialEq)]
pub enum Right {
    /// Letters of axes (`L` for the layer), each with the expression of its index.
    Indices(Vec<(char, String)>),
    /// Name of a stage or view.
    Step(String),
    /// A number or a shape.
    Value {
        /// The expression.
        expression: String,
        /// The tolerance of a number; none is half a unit of the last digit typed.
        tolerance: Option<Tolerance>,
    },
}

/// How far a typed number may be from the right one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tolerance {
    /// In the number's own unit.
    Absolute(f64),
    /// As a share of the right number: 0.02 for 2 %.
    Relative(f64),
}

/// The reply to a wrong answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Hint {
    /// The wrong answer that it replies to; none is every other one.
    pub to: Option<Right>,
    /// The reply, in Markdown.
    pub text: String,
}
