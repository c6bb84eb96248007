//! The table of the views. A new view needs a file beside this one, with a [`View`], and a row in [`VIEWS`].

use llama_trace_core::trace::Step;

use super::attribution::Parts;
use super::bars::Bars;
use super::cache::Cache;
use super::flow::{Flow, Pass};
use super::heads::Heads;
use super::heatmap::Heatmap;
use super::histogram::Histogram;
use super::kind::View;
use super::layers::Layers;
use super::lens::Lens;
use super::list::{Largest, List};
use super::neurons::Neurons;
use super::numbers::Numbers;
use super::overview::Overview;
use super::patch::Patch;
use super::pieces::Pieces;
use super::residual::Residual;
use super::rope::Rope;
use super::sampler::Sampler;

/// All views, in the order of the key `v`.
pub static VIEWS: &[&dyn View] = &[
    &Heatmap, &Numbers, &List, &Largest, &Lens, &Parts, &Heads, &Overview, &Histogram, &Sampler, &Layers,
    &Bars, &Cache, &Rope, &Residual, &Neurons, &Flow, &Pass, &Pieces, &Patch,
];

/// The views that can show `step`.
pub fn fitting(step: Step) -> impl Iterator<Item = &'static dyn View> {
    VIEWS.iter().copied().filter(move |view| view.fits(step))
}

/// The view with this name, if it fits `step`; otherwise the first view that fits.
pub fn chosen(step: Step, name: &str) -> &'static dyn View {
    // Outside the layers, the flow of the pass replaces the flow of a layer.
    let wish = fitting(step).find(|view| {
        view.name() == name || (name, view.name()) == (Flow.name(), Pass.name()) && !Flow.fits(step)
    });
    wish.or_else(|| fitting(step).next()).unwrap_or(&List)
}
