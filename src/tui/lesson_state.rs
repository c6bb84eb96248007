//! State of an open lesson: the scene, the answers so far, and the values that the questions read.

use std::sync::Arc;

use llama_trace_core::lesson::{Given, Kind, Lesson, Question, RunSetting, Scene, ScreenSetting};
use llama_trace_core::trace::{Address, Run};

use super::display::Display;
use super::lesson_values::LessonValues;
use super::panel_state::PanelState;
use super::place::Place;
use super::strip_values::StripValues;

/// A lesson to open.
#[derive(Clone, Debug, Default)]
pub struct OpenLesson {
    /// The lesson.
    pub lesson: Lesson,
    /// Number of the first scene, from 0.
    pub scene: usize,
    /// The answers of an earlier session, one for each scene.
    pub answers: Vec<Answered>,
    /// Whether the lesson is shown to a class: only the tensor and the words, with few keys.
    pub presents: bool,
}

/// The state of a scene's question.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Answered {
    /// Not answered yet, or there is no question.
    #[default]
    Open,
    /// Answered correctly.
    Right,
    /// The answer was shown.
    Shown,
}

/// The progress of a lesson, for the program to store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LessonProgress {
    /// The lesson's slug.
    pub slug: String,
    /// Number of the scene, from 0.
    pub scene: usize,
    /// The answer of each scene, with the number of wrong tries before it.
    pub answers: Vec<(Answered, usize)>,
    /// Whether the last scene was left forwards.
    pub finished: bool,
}

/// Stages on the way to a scene.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The run of the scene computes its passes, or the address waits for values.
    Waits,
    /// The scene is on the screen.
    There,
    /// The scene cannot be shown, for this reason.
    Failed(String),
}

/// The screen before the lesson, to return to.
#[derive(Clone, Debug)]
pub(super) struct Before {
    pub(super) run: Run,
    pub(super) address: Address,
    pub(super) display: Display,
    pub(super) panels: PanelState,
    pub(super) strip: StripValues,
}

/// An open lesson.
#[derive(Clone, Debug)]
pub(super) struct LessonState {
    pub(super) lesson: Arc<Lesson>,
    /// Number of the scene.
    pub(super) at: usize,
    /// The answer of each scene, and the number of wrong tries.
    pub(super) answers: Vec<(Answered, usize)>,
    pub(super) arrival: Arrival,
    /// The place of the scene, once it is there.
    pub(super) place: Option<Place>,
    /// The run of the scene.
    pub(super) run: Run,
    pub(super) values: LessonValues,
    pub(super) given: Option<Given>,
    /// The reply to the last answer, in Markdown.
    pub(super) reply: Option<String>,
    /// How often Space was pressed on the open question.
    pub(super) nudges: usize,
    pub(super) before: Option<Before>,
    pub(super) presents: bool,
    /// Whether the next `q` quits a presentation.
    pub(super) quits: bool,
    pub(super) finished: bool,
    /// Whether the progress has changed since it was last taken.
    pub(super) changed: bool,
}

impl LessonState {
    pub(super) fn new(open: OpenLesson, before: Option<Before>) -> Self {
        let OpenLesson { lesson, scene, mut answers, presents } = open;
        answers.resize(lesson.scenes.len(), Answered::Open);
        Self {
            at: scene.min(lesson.scenes.len().saturating_sub(1)),
            lesson: Arc::new(lesson),
            answers: answers.into_iter().map(|answer| (answer, 0)).collect(),
            arrival: Arrival::Waits,
            place: None,
            run: Run::ITSELF,
            values: LessonValues::default(),
            given: None,
            reply: None,
            nudges: 0,
            before,
            presents,
            quits: false,
            finished: false,
            changed: true,
        }
    }

    /// The current scene.
    pub(super) fn scene(&self) -> Option<&Scene> {
        self.lesson.scenes.get(self.at)
    }

    /// The run of the current scene.
    pub(super) fn run_setting(&self) -> RunSetting {
        self.scene().map_or_else(RunSetting::default, |scene| scene.run.clone())
    }

    /// The screen of the current scene.
    pub(super) fn screen(&self) -> ScreenSetting {
        self.scene().map_or_else(ScreenSetting::default, |scene| scene.screen.clone())
    }

    /// The question of the current scene.
    pub(super) fn question(&self) -> Option<&Question> {
        self.scene()?.question.as_ref()
    }

    /// The question of the scene, answered or not. A scene that cannot be shown asks nothing.
    pub(super) fn asked(&self) -> Option<&Question> {
        let failed = matches!(self.arrival, Arrival::Failed(_));
        self.question().filter(|_| !failed)
    }

    /// The question, if it is neither answered nor shown.
    pub(super) fn open_question(&self) -> Option<&Question> {
        self.asked().filter(|_| self.answered() == Answered::Open)
    }

    /// The state of the current question.
    pub(super) fn answered(&self) -> Answered {
        self.answers.get(self.at).map_or(Answered::Open, |(answer, _)| *answer)
    }

    /// Settles the current question.
    pub(super) fn settle(&mut self, answer: Answered) {
        if let Some((state, _)) = self.answers.get_mut(self.at) {
            *state = answer;
        }
        self.changed = true;
    }

    /// Begins scene number `at`.
    pub(super) fn begin(&mut self, at: usize) {
        self.at = at;
        (self.arrival, self.place) = (Arrival::Waits, None);
        self.values = LessonValues::default();
        (self.given, self.reply, self.nudges) = (None, None, 0);
        self.changed = true;
    }

    /// The progress to store.
    pub(super) fn progress(&self) -> LessonProgress {
        LessonProgress {
            slug: self.lesson.slug.clone(),
            scene: self.at,
            answers: self.answers.clone(),
            finished: self.finished,
        }
    }
}

/// How a question is answered, in a line.
pub(super) fn how(kind: Kind) -> &'static str {
    match kind {
        Kind::Cell => "Move the cursor to the cell and press Enter.",
        Kind::Token => "Move the cursor to the token's row and press Enter.",
        Kind::Key => "Move the cursor to the key and press Enter.",
        Kind::Head => "Go to the head with [ and ], then press Enter.",
        Kind::Layer => "Go to the layer with P and N, then press Enter.",
        Kind::Stage => "Go to the stage with p and n, then press Enter.",
        Kind::Number => "Type the number and press Enter.",
        Kind::Shape => "Press Enter and type the shape, for example (2, 3).",
        Kind::Choice => "Press the number of your choice.",
    }
}
