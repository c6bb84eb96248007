//! The tensor on the screen: its view, the layout of the cells, the questions that the view asks, and the colour span.

use llama_trace_core::trace::{Axis, Order, Part, Query, Region, Stage, Step};

use super::app::{App, Shown};
use super::derivation_keys;
use super::display::Scale;
use super::filter::Filter;
use super::input::Mode;
use super::slice::Cut;
use super::tensor::Tensor;
use super::text;
use super::theme::Span;
use super::view;
use super::view::grid;
use super::view::heads::Heads;
use super::view::heatmap::Heatmap;
use super::view::kind::{self, View};
use super::view::labels::next_token;
use super::view::layout::Layout;
use super::view::list::Largest;
use super::view::neurons::Neurons;
use super::view::numbers::Numbers;
use super::view::sampler::Sampler;
use super::view::tensor::Regions;
use super::view::views;

impl App {
    /// The content of the tensor panel.
    pub fn shown(&self) -> Shown {
        let site = self.place.site();
        if self.hides_here() {
            return self.tensor_without_values().map_or(Shown::Pending, Shown::Values);
        }
        if let Some(reason) = self.answers.failure(site) {
            return Shown::Failed(reason.to_owned());
        }
        match (self.tensor(), self.answers.block(site, &self.needed())) {
            (Some(tensor), _) => Shown::Values(tensor),
            (None, Some(block)) => Shown::Failed(format!(
                "{} came with the shape {:?}, which is not the shape in the table of stages",
                self.place.path(),
                block.shape
            )),
            (None, None) => Shown::Pending,
        }
    }

    /// The values of the current step, once they are there.
    pub fn tensor(&self) -> Option<Tensor> {
        if self.hides_here() {
            return self.tensor_without_values();
        }
        let block = self.answers.block(self.place.site(), &self.needed())?;
        Tensor::new(block.clone(), self.place.step).filter(|tensor| tensor.shape() == self.shape())
    }

    /// The address under the cursor, with the value if it is there: `p0/L1/softmax[h=2,t=5,k=1] = 0.25`.
    pub fn address_and_value(&self) -> String {
        let index = self.index();
        let address = self.place.address(&index);
        match self.tensor().and_then(|tensor| tensor.get(&index)) {
            Some(value) => format!("{address} = {}", text::full(value)),
            None => address,
        }
    }

    /// Returns whether a question of this viewer or of the compared one is pending.
    pub fn waits(&self) -> bool {
        self.answers.waits()
            || self.lesson.as_ref().is_some_and(|lesson| lesson.values.waits())
            || self.other.as_ref().is_some_and(|other| other.waits())
    }

    /// The view of the values: the chosen view, if it fits the step.
    pub fn view(&self) -> &'static dyn View {
        let step = self.place.step;
        let wish =
            if step.over_vocabulary() { self.display.views.vocabulary } else { self.display.views.plain };
        views::chosen(step, if self.hides_here() { self.view_without_values(step, wish) } else { wish })
    }

    /// The filter, if it was set on the current step.
    pub fn filter(&self) -> Option<Filter> {
        self.search.filter(self.place.step)
    }

    /// Returns whether a filter rejects `value`.
    pub fn leaves_out(&self, value: f64) -> bool {
        self.filter().is_some_and(|filter| !filter.takes(value))
    }

    /// Returns whether the values are sorted by size, so that the cursor is on a rank.
    fn is_ranked(&self) -> bool {
        self.view().name() == Largest.name()
    }

    /// Selects the pass's last token when logits or a view of units is entered from another step or view. The pass
    /// predicts the token after the last one, and another selected token could be mistaken for the last one.
    pub(super) fn open_on_last_token(&mut self, (step, view): (Step, &str)) {
        let (now, name) = (self.place.step, self.view().name());
        let logits = now != step && now.over_vocabulary() && now.axes().contains(&Axis::Token);
        if logits || (name == Neurons.name() && name != view) {
            self.cursor.selected.set(Axis::Token, self.dims().tokens.saturating_sub(1));
        }
    }

    /// The layout of the view's cells; none if the tensor is not on the screen.
    pub fn layout(&self) -> Option<Layout> {
        let area = view::Panels::new(self).middle?;
        Some(self.view().layout(self, Regions::new(self, area).body))
    }

    /// The questions of the screen; those for the values come first.
    pub(super) fn questions(&self) -> Vec<Query> {
        let mut questions =
            self.layout().map_or_else(Vec::new, |layout| self.view().questions(self, &layout));
        questions.extend(self.row().map(Query::Spread));
        questions.extend(self.derivation_questions());
        questions.extend(self.strip_questions());
        questions.extend(self.search.question());
        questions.extend(self.next_patch().map(Query::Patch));
        questions.retain(|query| !self.conceals(query));
        questions
    }

    /// The row under the cursor in a view with rows and columns; none if a row is not the vector of one token.
    pub(super) fn row(&self) -> Option<Part> {
        use Axis::{Dim, HeadsMerged, Hidden, KvHeadsMerged, Token};
        let is_vector = matches!(self.place.step.axes(), [Token, Dim | Hidden | HeadsMerged | KvHeadsMerged]);
        let held = (0, self.cursor.selected.get(Token, self.dims().tokens));
        let whole = Part::whole(self.place.site());
        (is_vector && self.view().is_grid()).then_some(Part { held: Some(held), ..whole })
    }

    /// The region of the values that the view needs, in the axes of the stage. If the view is not on the screen, the
    /// region of the value under the cursor.
    pub(super) fn needed(&self) -> Region {
        let site = self.place.site();
        let block = self.questions().into_iter().find_map(|query| match query {
            Query::Block(other, region) if other == site => Some(region),
            _ => None,
        });
        let one = || Region(self.index().iter().map(|&index| index..index + 1).collect());
        block.unwrap_or_else(|| kind::in_stage(self, one()))
    }

    /// The ids of the vocabulary whose texts are on the screen, sorted.
    pub fn vocabulary_ids(&self) -> Vec<u32> {
        let mut ids = self.ids_beside_cells();
        ids.extend(self.layout().into_iter().flat_map(|layout| self.view().ids(self, &layout)));
        ids.extend(self.ids_in_derivation());
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    fn ids_beside_cells(&self) -> Vec<u32> {
        let Some(layout) = self.layout() else { return Vec::new() };
        let Some(axis) = self.place.step.axes().iter().position(|&axis| axis == Axis::Vocab) else {
            return Vec::new();
        };
        let view = self.view();
        let down = layout.visible_rows(self).map(|row| (row, layout.cursor.1));
        let across = layout.visible_columns(self).map(|column| (layout.cursor.0, column));
        let ids = down.chain(across).filter_map(|cell| view.index(self, cell));
        ids.filter_map(|index| u32::try_from(index[axis]).ok()).collect()
    }

    /// The axes that go down and across, and the held axis.
    pub fn cut(&self) -> Cut {
        let axes = self.place.step.axes();
        if self.is_ranked() && axes.len() == 2 {
            return Cut { held: Some(0), rows: 1, columns: None };
        }
        Cut::new(axes, self.display.turn)
    }

    /// The largest absolute value on the screen, if the screen has rows of earlier passes.
    pub(super) fn largest_with_earlier_rows(&self) -> Option<f64> {
        match self.view().name() {
            name if name == Heads.name() => Heads::largest(self),
            name if [Heatmap.name(), Numbers.name()].contains(&name) => grid::largest(self),
            _ => None,
        }
    }

    /// The colour span, once the statistics are known. Two compared tensors share one span, so that equal values have
    /// equal colours.
    pub fn span(&self) -> Option<Span> {
        let (own, full) = self.own_span()?;
        let Some((positive, high)) = self.comparison.shared_span else { return Some(own) };
        let (clipped, at_most) = match high {
            _ if high <= own.high => (own.clipped, false),
            _ if high >= full => (0, false),
            _ => (own.clipped, true),
        };
        Some(Span { positive, high: high.max(own.high), clipped, at_most })
    }

    /// The common span of two compared tensors: whether it begins at 0, and the value of the last colour. None if the
    /// units of the two differ.
    pub(super) fn span_of_both(&self, other: &Self) -> Option<(bool, f64)> {
        let unit = |app: &Self| app.place.step.stage().info().unit;
        let ((one, _), (two, _)) = (self.own_span()?, other.own_span()?);
        (unit(self) == unit(other)).then(|| (one.positive && two.positive, one.high.max(two.high)))
    }

    /// The span of this tensor alone, and its largest absolute value.
    fn own_span(&self) -> Option<(Span, f64)> {
        let tensor = self.tensor()?;
        let spread = self.answers.spread(self.span_part())?;
        let stats = spread.stats;
        if let Some(largest) = self.largest_with_earlier_rows() {
            let high = if largest > 0.0 { largest } else { 1.0 };
            return Some((Span { positive: tensor.is_positive(), high, clipped: 0, at_most: false }, high));
        }
        let positive = tensor.is_positive();
        let full = if positive { stats.max } else { stats.min.abs().max(stats.max.abs()) };
        let (wanted, beyond) = match self.scale() {
            // Probabilities have no outliers: the large values are what the user looks for.
            Scale::Slice | Scale::Tensor if !tensor.is_probability() => (spread.usual, spread.beyond_usual),
            Scale::Deviations if !positive => (spread.deviations, spread.beyond_deviations),
            _ => (full, 0),
        };
        if wanted > 0.0 && wanted < full {
            return Some((Span { positive, high: wanted, clipped: beyond, at_most: false }, full));
        }
        let high = if full > 0.0 { full } else { 1.0 };
        Some((Span { positive, high, clipped: 0, at_most: false }, high))
    }

    /// The values at the two ends of a list's bars, once the statistics are known.
    pub fn bars(&self) -> Option<(f64, f64)> {
        let stats = self.answers.spread(self.part())?.stats;
        let positive = self.tensor().is_some_and(|tensor| tensor.is_positive());
        Some((if positive { 0.0 } else { stats.min }, stats.max))
    }

    /// The tokens that the nucleus keeps, the likeliest first. None on another step, and in a view that is not sorted
    /// by size.
    pub fn kept(&self) -> Option<&Order> {
        let nucleus = self.place.step == Step::Stage(Stage::Nucleus) && self.is_ranked();
        nucleus.then(|| self.answers.order(self.part())).flatten()
    }

    /// The next token of the run, if the nucleus does not keep it. This happens because a branch can pick any token.
    pub(super) fn picked_though_cut(&self) -> Option<u32> {
        let kept = self.kept().filter(|kept| kept.positive > 0)?;
        let (next, _) = next_token(self);
        next.filter(|id| !kept.ids.iter().take(kept.positive).any(|other| other == id))
    }

    /// Brings the cursor, scroll positions and popups back into range, and scrolls the cursor into sight.
    pub(super) fn settle(&mut self) {
        let panels = view::Panels::new(self);
        self.view().settle(self);
        self.cursor.keeps_rank &= self.view().name() == Neurons.name();
        if let Some(layout) = self.layout() {
            if self.is_ranked() {
                self.cursor.rank = layout.cursor.0;
                if let Some(id) = self.ranked(self.cursor.rank) {
                    self.cursor.selected.set(Axis::Vocab, id as usize);
                }
            }
            if self.view().name() == Sampler.name() {
                self.cursor.rank = layout.cursor.0;
                let last = self.dims().tokens.saturating_sub(1);
                self.cursor.selected.set(Axis::Token, last);
                if let Some(id) = Sampler::token(self) {
                    self.cursor.selected.set(Axis::Vocab, id as usize);
                }
            }
            self.cursor.offset = layout.follow(self.cursor.offset);
        }
        derivation_keys::settle(self);
        if let Some(area) = panels.notes.filter(|_| self.notes.line > 0) {
            let lines = view::notes::lines(self, area.width).len();
            self.notes.line = self.notes.line.min(lines.saturating_sub(usize::from(area.height)));
        }
        if let Mode::Help(line, wanted) = &self.input.mode {
            let last = view::help::last_line(self, wanted);
            self.input.mode = Mode::Help((*line).min(last), wanted.clone());
        }
    }
}
