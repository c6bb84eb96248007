//! The state of the viewer. `update` changes it, `view` draws it; neither does any I/O. What of it
//! is on the screen is in `screen`, what its source is asked for in `sync`.

use std::collections::HashMap;

use ratatui::layout::Rect;

use llama_trace_core::chapters::Chapters;
use llama_trace_core::trace::manifest::Drawing;
use llama_trace_core::trace::sizes::PassDims;
use llama_trace_core::trace::{Axis, Outline, Part, Source, Status, TokenLabel};

use super::action::Action;
use super::answers::Answers;
use super::beside::Beside;
use super::bins::Counted;
use super::carries::Carries;
use super::courses::Courses;
use super::derivation::Derivation;
use super::filter::Filter;
use super::history::History;
use super::marks::Marks;
use super::place::{OpenAt, Place, Walk};
use super::play::Play;
use super::seek::Seek;
use super::slice::Selected;
use super::tensor::Tensor;
use super::theme::Theme;
use super::trying::Trying;
use super::verdict::Verdict;

/// Which panel the arrow keys belong to. Where the terminal is narrow, only that panel is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Focus {
    /// The values.
    Tensor,
    /// Where the number under the cursor comes from.
    Derivation,
    /// The notes.
    Notes,
    /// The outline.
    Outline,
}

/// What has been typed, and which completion is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GotoLine {
    /// The text.
    pub text: String,
    /// The chosen line of the list; none where the text stands for itself.
    pub chosen: Option<usize>,
}

/// What the keys do.
#[derive(Clone, Debug, PartialEq)]
pub enum Mode {
    /// They walk.
    Walk,
    /// They scroll the help screen, from this line on, or are typed to find what is in it.
    Help(usize, String),
    /// They choose a chapter, by its number in the list.
    Chapters(usize),
    /// The next one is the letter that marks this place.
    Mark,
    /// The next one is the letter of the mark to return to.
    Return,
    /// They are typed into the go-to line.
    Goto(GotoLine),
    /// They choose in the list of branches.
    Branches(Courses),
}

/// What the colours span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// What is usual among the values on the screen's slice: one head.
    Slice,
    /// What is usual among all values of the tensor.
    Tensor,
    /// Three standard deviations of all values.
    Deviations,
    /// All values to the largest: nothing is clipped.
    Largest,
}

/// Names of the views that the user wants to see, where they fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) plain: &'static str,
    pub(super) vocabulary: &'static str,
}

impl Default for Wish {
    fn default() -> Self {
        Self { plain: "heatmap", vocabulary: "largest" }
    }
}

/// What there is to show at the current place.
#[derive(Clone, Debug)]
pub enum Shown {
    /// Nothing yet.
    Pending,
    /// The values.
    Values(Tensor),
    /// Why there are none.
    Failed(String),
}

/// A line for the user, until the next key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The text.
    pub text: String,
    /// Whether it tells of a failure.
    pub failure: bool,
}

/// Everything that the screen is drawn from.
#[derive(Debug)]
pub struct App {
    pub(super) outline: Outline,
    pub(super) theme: Theme,
    pub(super) chapters: Chapters,
    pub(super) size: Rect,
    pub(super) place: Place,
    pub(super) selected: Selected,
    pub(super) answers: Answers,
    pub(super) counted: Counted,
    pub(super) texts: HashMap<u32, String>,
    pub(super) mode: Mode,
    pub(super) focus: Focus,
    /// The view that the user wants, over a vocabulary and elsewhere.
    pub(super) wish: Wish,
    pub(super) turn: usize,
    pub(super) scale: Scale,
    pub(super) rank: usize,
    /// The cell under the cursor, in a view whose cells are no values of the step.
    pub(super) cell: (usize, usize),
    /// Where the number under the cursor comes from, where somebody asked.
    pub(super) derivation: Option<Derivation>,
    pub(super) offset: (usize, usize),
    /// What stands beside what is shown, where that is compared.
    pub(super) compares: Option<Beside>,
    /// What stands beside it: a viewer of its own.
    pub(super) other: Option<Box<App>>,
    /// Whether the difference of the two stands in its place.
    pub(super) subtracts: bool,
    /// Whether what this one stands beside is at an index that it does not have.
    pub(super) beyond: bool,
    /// The pass that what this one stands beside is in, where it has none of that number.
    pub(super) lacking: Option<usize>,
    /// What the colours of both span where two stand side by side, as [`App::span_of_both`] has it.
    pub(super) shared: Option<(bool, f64)>,
    /// What was found of the two that stand side by side, where somebody judged them.
    pub(super) verdict: Option<Verdict>,
    /// The part of the screen that the tensor has, where another viewer has the rest.
    pub(super) pane: Option<Rect>,
    pub(super) notes_line: usize,
    pub(super) message: Option<Message>,
    /// Whether the panel with the arrow keys has the whole screen.
    pub(super) zoomed: bool,
    /// Whether the outline is folded away, and whether the notes are.
    pub(super) folded: (bool, bool),
    /// Whether the answers of exercises are shown.
    pub(super) answered: bool,
    /// What cells are looked for.
    pub(super) filter: Option<Filter>,
    /// The walk that was pressed last, and the one that goes on by itself.
    pub(super) walked: Action,
    pub(super) play: Option<Play>,
    /// Where the pointer was pressed or dragged to.
    pub(super) dragged: Option<(u16, u16)>,
    pub(super) seek: Option<Seek>,
    /// Whether attention was looked at before, or a key chosen: the cursor stays where it is from then on.
    pub(super) opened: bool,
    pub(super) history: History,
    /// The places that were marked.
    pub marks: Marks,
    /// How a token would be drawn instead.
    pub(super) trying: Trying,
    /// What the strip of tokens carries.
    pub(super) carries: Carries,
    /// Whether the cursor waits for the unit of its rank.
    pub(super) keeps_rank: bool,
    /// The name of the trace that is open.
    pub file: Option<String>,
    /// How the tokens are drawn, where that is known.
    pub(super) drawing: Option<Drawing>,
    pub(super) status: Status,
    pub(super) expects_pass: bool,
    /// Whether something else was shown before, to which Esc goes back where nothing is there yet.
    pub(super) goes_back: bool,
    /// Where to go once that pass is there.
    pub(super) opens_at: Option<OpenAt>,
}

impl App {
    /// The viewer of `outline` at the first step, on a screen of `size`.
    pub fn new(outline: Outline, theme: Theme, size: (u16, u16)) -> Self {
        let place = Walk::new(&outline, 0).at(0);
        let selected = Selected::new(&outline.card.sizes());
        let mut app = Self {
            outline,
            theme,
            chapters: Chapters::default(),
            size: Rect::new(0, 0, size.0, size.1),
            place,
            selected,
            answers: Answers::default(),
            counted: Counted::default(),
            texts: HashMap::new(),
            mode: Mode::Walk,
            focus: Focus::Tensor,
            wish: Wish::default(),
            turn: 0,
            scale: Scale::Slice,
            rank: 0,
            cell: (0, 0),
            derivation: None,
            offset: (0, 0),
            compares: None,
            other: None,
            subtracts: false,
            beyond: false,
            lacking: None,
            shared: None,
            verdict: None,
            pane: None,
            notes_line: 0,
            message: None,
            zoomed: false,
            folded: (false, false),
            answered: false,
            filter: None,
            walked: Action::NextStep,
            play: None,
            dragged: None,
            seek: None,
            opened: false,
            history: History::default(),
            marks: Marks::default(),
            trying: Trying::default(),
            carries: Carries::default(),
            keeps_rank: false,
            file: None,
            drawing: None,
            status: Status::Idle,
            expects_pass: false,
            goes_back: false,
            opens_at: None,
        };
        // The last token is the one whose successor the pass predicts.
        app.selected.set(Axis::Token, app.dims().tokens.saturating_sub(1));
        app
    }

    /// The same with these notes beside it.
    #[must_use]
    pub fn with_chapters(mut self, chapters: Chapters) -> Self {
        self.chapters = chapters;
        self
    }

    /// Where the user stands.
    pub fn place(&self) -> Place {
        self.place
    }

    /// What the keys do now.
    pub fn mode(&self) -> &Mode {
        &self.mode
    }

    /// Which panel has the arrow keys.
    pub fn focus(&self) -> Focus {
        self.focus
    }

    /// The message to the user.
    pub fn message(&self) -> Option<&Message> {
        self.message.as_ref()
    }

    /// Where the number under the cursor comes from, where somebody asked.
    pub fn derivation(&self) -> Option<&Derivation> {
        self.derivation.as_ref()
    }

    /// The first row and column on the screen.
    pub fn offset(&self) -> (usize, usize) {
        self.offset
    }

    /// The outline as last seen.
    pub fn outline(&self) -> &Outline {
        &self.outline
    }

    /// How a token would be drawn instead.
    pub fn trying(&self) -> Trying {
        self.trying
    }

    /// What the source has told so far.
    pub fn answers(&self) -> &Answers {
        &self.answers
    }

    /// Shows `text` until the next key.
    pub fn say(&mut self, text: impl Into<String>, failure: bool) {
        self.message = Some(Message { text: text.into(), failure });
    }

    /// Whether the first pass is not done yet: there is little to look at.
    pub fn is_opening(&self) -> bool {
        self.outline.is_opening()
    }

    /// The sizes of the current pass.
    pub fn dims(&self) -> PassDims {
        let none = PassDims { pass: self.place.pass, start: 0, tokens: 0 };
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

    /// The index under the cursor.
    pub fn index(&self) -> Vec<usize> {
        self.selected.index(self.place.step.axes(), &self.shape())
    }

    /// Chooses a view for this step and those like it.
    pub(super) fn choose_view(&mut self, name: &'static str) {
        let before = (self.place.step, self.view().name());
        let vocabulary = self.place.step.over_vocabulary();
        *(if vocabulary { &mut self.wish.vocabulary } else { &mut self.wish.plain }) = name;
        self.open_on_last_token(before);
    }

    /// The part of the stage that the screen's slice is: all of it where no axis is held.
    pub(super) fn part(&self) -> Part {
        let held = self.cut().held.map(|held| {
            let axis = self.place.step.axes()[held];
            let own = self.place.step.stage().axes().iter().position(|&other| other == axis);
            (own.unwrap_or(held), self.selected.get(axis, self.shape()[held]))
        });
        Part { site: self.place.site(), held }
    }

    /// What the colours span in the view that is shown.
    pub(super) fn scale(&self) -> Scale {
        match self.scale {
            Scale::Slice if self.view().spans_all() => Scale::Tensor,
            scale => scale,
        }
    }

    /// The part that the colours span.
    pub(super) fn span_part(&self) -> Part {
        let slice = self.part();
        if self.scale() == Scale::Slice { slice } else { Part::whole(slice.site) }
    }

    /// The token of the vocabulary at `rank` in the list of the largest.
    pub fn ranked(&self, rank: usize) -> Option<u32> {
        // In a nucleus the token that was picked though it was cut has a row after those that stay.
        let cut = self.kept().filter(|kept| rank == kept.positive).and_then(|_| self.picked_though_cut());
        cut.or_else(|| self.answers.order(self.part())?.ids.get(rank).copied())
    }

    /// A token of this pass, by its row.
    pub fn token(&self, row: usize) -> Option<&TokenLabel> {
        self.outline.passes.get(self.place.pass)?.tokens.get(row)
    }

    /// A token by its position over all passes.
    pub fn position(&self, position: usize) -> Option<&TokenLabel> {
        let passes = &self.outline.passes;
        let after = passes.partition_point(|pass| pass.dims.start <= position);
        let pass = passes.get(after.checked_sub(1)?)?;
        pass.tokens.get(position - pass.dims.start)
    }

    /// The position of the token that the screen is about: of the row under the cursor, or the pass's last.
    pub fn current_position(&self) -> usize {
        let dims = self.dims();
        let axes = self.place.step.axes();
        if axes.contains(&Axis::Token) {
            dims.start + self.selected.get(Axis::Token, dims.tokens)
        } else if axes.contains(&Axis::Key) {
            self.selected.get(Axis::Key, dims.keys())
        } else {
            dims.keys().saturating_sub(1)
        }
    }

    /// Nothing is wanted any more of `source`, which is not looked at from now on.
    pub(super) fn leave(&mut self, source: &mut dyn Source) {
        self.answers.leave(source);
    }

    /// Looks at another sequence or another run, at the same step where that has it.
    pub(super) fn look_at(&mut self, outline: Outline, goes_back: bool) {
        self.goes_back = goes_back;
        let pass = self.place.pass.min(outline.passes.len().saturating_sub(1));
        let place = Walk::new(&outline, pass).same(self.place);
        // Branches have the model's sizes, other traces may not.
        if outline.card.sizes() != self.outline.card.sizes() {
            self.selected = Selected::new(&outline.card.sizes());
        }
        self.outline = outline;
        self.expects_pass = false;
        self.go(place);
    }

    /// Stands at `place`.
    pub(super) fn go(&mut self, place: Place) {
        if place.step.axes() != self.place.step.axes() {
            self.turn = 0;
        }
        if place != self.place {
            self.notes_line = 0;
        }
        if place.step != self.place.step {
            // Whoever goes to another vocabulary did not ask for the order of its ids.
            self.wish.vocabulary = Wish::default().vocabulary;
        }
        if place.site() != self.place.site() {
            self.rank = 0;
        }
        let before = (self.place.step, self.view().name());
        self.place = place;
        self.open_on_last_token(before);
    }

    /// What was stopped or failed is asked for again; false where nothing was.
    pub(super) fn try_again(&mut self) -> bool {
        self.answers.try_again()
    }
}
