//! The state of the viewer.
//!
//! It changes in two ways. [`update`](super::update::update) changes it in response to input: keys, the mouse, the size
//! of the screen, the clock of a playback, and the results of effects. `App::sync` takes in what the source has
//! computed. Drawing changes nothing. Each part of the state is a type in a file of its own.

use std::time::Duration;

use llama_trace_core::chapters::{Chapter, Chapters};
use llama_trace_core::time::Instant;
use llama_trace_core::trace::draw::{DrawAt, Sampling};
use llama_trace_core::trace::manifest::Drawing;
use llama_trace_core::trace::sizes::PassDims;
use llama_trace_core::trace::{Axis, Outline, Part, Site, Source, Stage, TokenLabel};

use super::answers::Answers;
use super::comparison::Comparison;
use super::cursor::Cursor;
use super::derivation::Derivation;
use super::display::{Display, Scale, ViewNames};
use super::hidden::Hidden;
use super::history::History;
use super::input::{Input, Message, Mode};
use super::jump::Jump;
use super::lesson_state::{LessonProgress, LessonState};
use super::lesson_values::Facts;
use super::marks::Marks;
use super::notes_state::NotesState;
use super::panel_state::{Focus, PanelState};
use super::patch_state::PatchState;
use super::place::{Place, Walk};
use super::playback::Playback;
use super::progress::Progress;
use super::sampler_trial::SamplerTrial;
use super::search::Search;
use super::slice::Selected;
use super::strip_values::StripValues;
use super::tensor::Tensor;
use super::theme::Theme;
use llama_trace_picture::Paper;

/// The content of the tensor panel.
#[derive(Clone, Debug)]
pub enum Shown {
    /// Nothing yet.
    Pending,
    /// The values.
    Values(Tensor),
    /// The reason why there are no values.
    Failed(String),
}

/// The origin of the shown values, for the title.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// Name of the open trace.
    pub file: Option<String>,
    /// The sampler's setting, if it is known.
    pub drawing: Option<Drawing>,
}

/// Everything that the screen is drawn from.
#[derive(Debug)]
pub struct App {
    /// The outline of the shown run and sequence, as the source last gave it.
    pub(super) outline: Outline,
    pub(super) origin: Origin,
    pub(super) theme: Theme,
    pub(super) place: Place,
    /// Whether the keys of the steps skip the reshapes between stages.
    pub(super) skips_reshapes: bool,
    pub(super) cursor: Cursor,
    pub(super) display: Display,
    pub(super) panels: PanelState,
    pub(super) notes: NotesState,
    pub(super) input: Input,
    pub(super) answers: Answers,
    pub(super) progress: Progress,
    pub(super) comparison: Comparison,
    /// The viewer of the second tensor of a comparison.
    pub(super) other: Option<Box<App>>,
    /// The open derivation.
    pub(super) derivation: Option<Derivation>,
    pub(super) search: Search,
    pub(super) playback: Playback,
    pub(super) history: History,
    pub(super) marks: Marks,
    pub(super) sampler: SamplerTrial,
    pub(super) strip: StripValues,
    pub(super) patch: PatchState,
    /// The last jump from a view to the place under its cursor.
    pub(super) jump: Option<Jump>,
    /// The open lesson.
    pub(super) lesson: Option<LessonState>,
    /// The lesson that was left last, to continue it.
    pub(super) left: Option<LessonState>,
    /// Values that are hidden, because a question asks for them.
    pub(super) hidden: Option<Hidden>,
    /// Facts about the model for the expressions of lessons.
    pub(super) facts: Option<Facts>,
    /// The first lesson.
    pub(super) tour: Option<Chapter>,
    /// Whether another run can be started beside the open ones, for an edit or a lesson.
    pub(super) starts_runs: bool,
    /// Whether recorded values can be edited without the model.
    pub(super) edits_recorded: bool,
}

impl App {
    /// The viewer of `outline` at the first step, on a screen of `size` columns and rows.
    pub fn new(outline: Outline, theme: Theme, size: (u16, u16)) -> Self {
        let place = Walk::new(&outline, 0).at(0);
        let cursor = Cursor::new(Selected::new(&outline.card.sizes()));
        let mut app = Self {
            outline,
            origin: Origin::default(),
            theme,
            place,
            skips_reshapes: false,
            cursor,
            display: Display::default(),
            panels: PanelState::new(size),
            notes: NotesState::default(),
            input: Input::default(),
            answers: Answers::default(),
            progress: Progress::default(),
            comparison: Comparison::default(),
            other: None,
            derivation: None,
            search: Search::default(),
            playback: Playback::default(),
            history: History::default(),
            marks: Marks::default(),
            sampler: SamplerTrial::default(),
            strip: StripValues::default(),
            patch: PatchState::default(),
            jump: None,
            lesson: None,
            left: None,
            hidden: None,
            facts: None,
            tour: None,
            starts_runs: false,
            edits_recorded: false,
        };
        // The cursor starts at the last token: from this token, the pass predicts the next one.
        app.cursor.selected.set(Axis::Token, app.dims().tokens.saturating_sub(1));
        app
    }

    /// Sets the chapters for the notes.
    #[must_use]
    pub fn with_chapters(mut self, chapters: Chapters) -> Self {
        self.notes.chapters = chapters;
        self
    }

    /// Sets the origin for the title.
    #[must_use]
    pub fn with_origin(mut self, origin: Origin) -> Self {
        self.origin = origin;
        self
    }

    /// Sets the background, for a screen that changes it while the viewer runs.
    pub fn set_paper(&mut self, paper: Paper) {
        self.theme = self.theme.on(paper);
        if let Some(other) = &mut self.other {
            other.set_paper(paper);
        }
    }

    /// Sets the marked places.
    #[must_use]
    pub fn with_marks(mut self, marks: Marks) -> Self {
        self.marks = marks;
        self
    }

    /// Allows edits and lessons, which start runs of their own. `tour` is the first lesson, and `facts` describes the
    /// heads of the model.
    #[must_use]
    pub fn with_other_runs(mut self, tour: Option<Chapter>, facts: Option<Facts>) -> Self {
        (self.tour, self.facts, self.starts_runs) = (tour, facts, true);
        self
    }

    /// Allows edits of recorded values, without the model.
    #[must_use]
    pub fn with_edits_of_recorded_values(mut self) -> Self {
        self.edits_recorded = true;
        self
    }

    /// Mentions the first lesson until the first key.
    pub(super) fn greet(&mut self) {
        if self.starts_runs && self.tour.is_some() {
            self.say(
                "New here? /learn shows in 10 minutes how one sentence passes through the model.",
                false,
            );
        }
    }

    /// Whether the lesson is the tour or a chapter.
    pub(super) fn is_own(&self, slug: &str) -> bool {
        let tour = self.tour.is_some_and(|tour| tour.slug == slug);
        tour || self.notes.chapters.iter().any(|chapter| chapter.slug == slug)
    }

    /// The slug of the open lesson, and the number of its scene from 0.
    pub fn lesson_scene(&self) -> Option<(&str, usize)> {
        self.lesson.as_ref().map(|lesson| (&*lesson.lesson.slug, lesson.at))
    }

    /// The progress of the lesson, if it has changed since the last call. A presentation is the class's, and changes no
    /// progress.
    pub fn take_progress(&mut self) -> Option<LessonProgress> {
        let lesson = self.lesson.as_mut().filter(|lesson| !lesson.presents)?;
        std::mem::take(&mut lesson.changed).then(|| lesson.progress())
    }

    /// The current place.
    pub fn place(&self) -> Place {
        self.place
    }

    /// The mode of the keyboard.
    pub fn mode(&self) -> &Mode {
        &self.input.mode
    }

    /// Columns and rows of the screen.
    pub fn size(&self) -> (u16, u16) {
        (self.panels.size.width, self.panels.size.height)
    }

    /// The panel that the arrow keys act on.
    pub fn focus(&self) -> Focus {
        self.panels.focus
    }

    /// The message to the user.
    pub fn message(&self) -> Option<&Message> {
        self.input.message.as_ref()
    }

    /// The open derivation.
    pub fn derivation(&self) -> Option<&Derivation> {
        self.derivation.as_ref()
    }

    /// The first row and column on the screen.
    pub fn offset(&self) -> (usize, usize) {
        self.cursor.offset
    }

    /// The outline as the source last gave it.
    pub fn outline(&self) -> &Outline {
        &self.outline
    }

    /// The marked places.
    pub fn marks(&self) -> &Marks {
        &self.marks
    }

    /// The trial of another sampler setting.
    pub fn sampler_trial(&self) -> SamplerTrial {
        self.sampler
    }

    /// The answers of the source.
    pub fn answers(&self) -> &Answers {
        &self.answers
    }

    /// Shows `text` until the next key; `failure` says whether it reports a failure.
    pub(super) fn say(&mut self, text: impl Into<String>, failure: bool) {
        self.input.message = Some(Message { text: text.into(), failure });
    }

    /// Returns whether the first pass is not done yet, so that there is little to show.
    pub fn is_opening(&self) -> bool {
        self.outline.is_opening()
    }

    /// Returns whether a pass was requested and is not done yet.
    pub(super) fn awaits_pass(&self) -> bool {
        self.progress.awaits_pass
    }

    /// Returns whether a search is under way.
    pub fn is_searching(&self) -> bool {
        self.search.is_scanning()
    }

    /// Time until the next step of the playback; none if nothing is playing or the values of the place are still
    /// pending. `idle` says whether the source and an export are idle.
    pub fn plays_in(&mut self, idle: bool, now: Instant) -> Option<Duration> {
        let ready = idle && !self.waits();
        self.playback.time_left(ready, now)
    }

    /// The sizes of the current pass.
    pub fn dims(&self) -> PassDims {
        let none = PassDims { pass: self.place.pass, start: 0, tokens: 0, ..PassDims::default() };
        self.outline.passes.get(self.place.pass).map_or(none, |pass| pass.dims)
    }

    /// The steps of the current pass.
    pub fn walk(&self) -> Walk {
        Walk::new(&self.outline, self.place.pass)
    }

    /// The shape of the current step.
    pub fn shape(&self) -> Vec<usize> {
        self.outline.card.sizes().shape(self.place.step.axes(), self.dims())
    }

    /// The index under the cursor, in the axes of the step.
    pub fn index(&self) -> Vec<usize> {
        self.cursor.selected.index(self.place.step.axes(), &self.shape())
    }

    /// Chooses a view for this step and for all steps of its kind.
    pub(super) fn choose_view(&mut self, name: &'static str) {
        let before = (self.place.step, self.view().name());
        let views = &mut self.display.views;
        *(if self.place.step.over_vocabulary() { &mut views.vocabulary } else { &mut views.plain }) = name;
        self.open_on_last_token(before);
    }

    /// The slice of the stage on the screen; the whole stage if no axis is held.
    pub(super) fn part(&self) -> Part {
        let held = self.cut().held.map(|held| {
            let axis = self.place.step.axes()[held];
            let own = self.place.step.stage().axes().iter().position(|&other| other == axis);
            (own.unwrap_or(held), self.cursor.selected.get(axis, self.shape()[held]))
        });
        Part { site: self.place.site(), held }
    }

    /// The colour scale of the current view.
    pub(super) fn scale(&self) -> Scale {
        match self.display.scale {
            Scale::Slice if self.view().spans_all() => Scale::Tensor,
            scale => scale,
        }
    }

    /// The part of the stage that the colours span.
    pub(super) fn span_part(&self) -> Part {
        let slice = self.part();
        if self.scale() == Scale::Slice { slice } else { Part::whole(slice.site) }
    }

    /// The question for the token that is sampled after this pass: with `setting`, or with the run's own
    /// setting if `setting` is none.
    pub fn draw_at(&self, setting: Option<Sampling>) -> DrawAt {
        let site = Site { layer: None, ..self.place.site() }.other(Stage::Sampled);
        DrawAt { site, setting, times: self.sampler.times() }
    }

    /// The token at `rank` in the list of the vocabulary that is sorted by value.
    pub fn ranked(&self, rank: usize) -> Option<u32> {
        // The user may have picked a token that the sampler cut. In the list of the nucleus, this token is in the row
        // after the kept tokens.
        let cut = self.kept().filter(|kept| rank == kept.positive).and_then(|_| self.picked_though_cut());
        cut.or_else(|| self.answers.order(self.part())?.ids.get(rank).copied())
    }

    /// The token in row `row` of this pass.
    pub fn token(&self, row: usize) -> Option<&TokenLabel> {
        self.outline.passes.get(self.place.pass)?.tokens.get(row)
    }

    /// The token at a position, counted over all passes.
    pub fn position(&self, position: usize) -> Option<&TokenLabel> {
        let passes = &self.outline.passes;
        let after = passes.partition_point(|pass| pass.dims.start <= position);
        let pass = passes.get(after.checked_sub(1)?)?;
        pass.tokens.get(position - pass.dims.start)
    }

    /// The position of the token in the row under the cursor, or else of the pass's last token.
    pub fn current_position(&self) -> usize {
        let dims = self.dims();
        let axes = self.place.step.axes();
        if axes.contains(&Axis::Token) {
            dims.start + self.cursor.selected.get(Axis::Token, dims.tokens)
        } else if axes.contains(&Axis::Key) {
            self.cursor.selected.get(Axis::Key, dims.keys())
        } else {
            dims.keys().saturating_sub(1)
        }
    }

    /// Cancels the pending questions to `source`, because another source is shown from now on.
    pub(super) fn leave(&mut self, source: &mut dyn Source) {
        self.answers.leave(source);
    }

    /// Shows another run or sequence, at the same step if it has that step. `has_previous` says whether the user can go
    /// back to the one shown before.
    pub(super) fn look_at(&mut self, outline: Outline, has_previous: bool) {
        self.comparison.has_previous = has_previous;
        let pass = self.place.pass.min(outline.passes.len().saturating_sub(1));
        let place = Walk::new(&outline, pass).same(self.place);
        // A branch has the same sizes as its run; another trace may have other sizes.
        if outline.card.sizes() != self.outline.card.sizes() {
            self.cursor.selected = Selected::new(&outline.card.sizes());
        }
        self.outline = outline;
        self.progress.awaits_pass = false;
        self.go(place);
    }

    /// Goes to `place`.
    pub(super) fn go(&mut self, place: Place) {
        if place.step.axes() != self.place.step.axes() {
            self.display.turn = 0;
        }
        if place != self.place && self.lesson.is_none() {
            self.notes.line = 0;
        }
        if place.step != self.place.step {
            // The view that the user chose for a step over the vocabulary applies only to this step. The next such step
            // opens with the list sorted by size.
            self.display.views.vocabulary = ViewNames::default().vocabulary;
        }
        if place.site() != self.place.site() {
            self.cursor.rank = 0;
        }
        let before = (self.place.step, self.view().name());
        self.place = place;
        self.open_on_last_token(before);
    }
}
