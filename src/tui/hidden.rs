//! Values that are hidden while a question is open.
//!
//! The viewer does not ask its source for them, so that no view, footer, derivation or copy can show them.

use llama_trace_core::trace::{Block, Query, Run, Site, Step};

use super::app::App;
use super::tensor::Tensor;
use super::view::views;

/// The message for a key that would show hidden values.
pub(super) const HIDDEN: &str = "the values are hidden until the question is answered; x shows the answer";

/// Views whose cells can be chosen without their values.
const WITHOUT_VALUES: [&str; 3] = ["heatmap", "numbers", "list"];

/// The hidden stages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hidden {
    /// Whether all values are hidden, because the stages that the answer reads are not known yet.
    pub(super) all: bool,
    /// The stages, in any run.
    pub(super) sites: Vec<Site>,
}

impl Hidden {
    fn has(&self, site: Site) -> bool {
        let site = Site { run: Run::ITSELF, ..site };
        self.all || self.sites.contains(&site)
    }
}

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
            | Query::Draw(_)
            | Query::Stream(_)
            | Query::Units(_)
            | Query::Writes(_)
            | Query::TokenLogprobs(_) => true,
        }
    }

    /// Returns whether the current view needs hidden values.
    pub(super) fn view_is_concealed(&self) -> bool {
        self.hidden.is_some()
            && !(self.hides_here() && self.view_needs_no_values())
            && self.layout().is_some_and(|layout| {
                self.view().questions(self, &layout).iter().any(|query| self.conceals(query))
            })
    }

    fn view_needs_no_values(&self) -> bool {
        WITHOUT_VALUES.contains(&self.view().name())
    }

    /// The view for hidden values: `wish`, if its cells can be chosen without values.
    pub(super) fn view_without_values<'n>(&self, step: Step, wish: &'n str) -> &'n str {
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
