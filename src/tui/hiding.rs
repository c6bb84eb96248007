//! Hides values while a question is open.
//!
//! The viewer does not ask its source for them, so that no view, footer, derivation or copy can show them.

use llama_trace_core::lesson::Kind;
use llama_trace_core::trace::{Block, Query, Site, Step};

use super::app::App;
use super::tensor::Tensor;
use super::view::kind::View;
use super::view::patch::Patch;
use super::view::views;

/// Views whose cells can be chosen without their values.
const WITHOUT_VALUES: [&str; 3] = ["heatmap", "numbers", "list"];

impl App {
    /// Returns whether the values of `site` are hidden.
    pub(super) fn hides(&self, site: Site) -> bool {
        self.hidden.as_ref().is_some_and(|hidden| hidden.has(site))
    }

    /// Returns whether the values of the current step are hidden.
    pub fn hides_here(&self) -> bool {
        self.hides(self.place.site())
    }

    /// Returns whether a query could show hidden values: their own, or values that follow from them.
    pub(super) fn conceals(&self, query: &Query) -> bool {
        let Some(hidden) = &self.hidden else { return false };
        match query {
            Query::Block(site, _) | Query::Patterns(site) | Query::TokenPieces(site) => hidden.has(*site),
            Query::Spread(part) | Query::Order(part) => hidden.has(part.site),
            Query::Rows(_) => false,
            Query::Explanation(_)
            | Query::Lens(_)
            | Query::Attribution(_)
            | Query::Patch(_)
            | Query::Draw(_)
            | Query::Stream(_)
            | Query::Units(_)
            | Query::Writes(_)
            | Query::TokenLogprobs(_) => true,
        }
    }

    /// Returns whether the current view needs hidden values.
    pub(super) fn view_is_concealed(&self) -> bool {
        // A complete map asks nothing more.
        if self.hidden.is_some() && self.view().name() == Patch.name() {
            return true;
        }
        self.hidden.is_some()
            && !(self.hides_here() && self.view_needs_no_values())
            && self.layout().is_some_and(|layout| {
                self.view().questions(self, &layout).iter().any(|query| self.conceals(query))
            })
    }

    fn view_needs_no_values(&self) -> bool {
        WITHOUT_VALUES.contains(&self.view().name())
    }

    /// The view for hidden values: `wish`, if its cells can be chosen without values, or if no cell is to be chosen.
    pub(super) fn view_without_values<'n>(&self, step: Step, wish: &'n str) -> &'n str {
        let open = self.lesson.as_ref().and_then(|lesson| lesson.open_question());
        if open.is_some_and(|question| matches!(question.kind, Kind::Choice | Kind::Number | Kind::Shape)) {
            return wish;
        }
        let fits = |name: &&&str| views::fitting(step).any(|view| view.name() == **name);
        match WITHOUT_VALUES.contains(&wish) {
            true => wish,
            false => WITHOUT_VALUES.iter().find(fits).copied().unwrap_or(wish),
        }
    }

    /// The current step without its values.
    pub(super) fn tensor_without_values(&self) -> Option<Tensor> {
        let step = self.place.step;
        let shape = self.outline.card.sizes().shape(step.stage().axes(), self.dims());
        Tensor::new(Block::without_values(self.place.site(), shape), step)
    }
}
