//! The chosen display of the tensors: view, layout of the axes, colour scale, and order of the units.

use llama_trace_core::trace::units::UnitOrder;

/// Colour scale: the values that the colours span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// The slice on the screen, such as one head, without its outliers: at most 1 in 100 nonzero values.
    Slice,
    /// The whole tensor without its outliers: at most 1 in 100 nonzero values.
    Tensor,
    /// Three standard deviations of all values.
    Deviations,
    /// All values up to the largest: nothing is clipped.
    Largest,
}

impl Scale {
    /// Names of the scales in options, in the order of the key `s`.
    pub const NAMES: [&str; 4] = ["slice", "tensor", "deviations", "largest"];

    /// The scale with this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        let scales = [Self::Slice, Self::Tensor, Self::Deviations, Self::Largest];
        Self::NAMES.iter().zip(scales).find(|(known, _)| **known == name).map(|(_, scale)| scale)
    }

    /// Its name.
    #[cfg(feature = "native")]
    pub(super) fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// The chosen display. If a step does not support a choice, its first display is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Display {
    pub(super) views: ViewNames,
    /// Number of the chosen [`Cut`](super::slice::Cut) among the cuts of the step.
    pub(super) turn: usize,
    pub(super) scale: Scale,
    /// Order of the units in the view of neurons.
    pub(super) units: UnitOrder,
}

impl Default for Display {
    fn default() -> Self {
        Self { views: ViewNames::default(), turn: 0, scale: Scale::Slice, units: UnitOrder::default() }
    }
}

/// Names of the chosen views: for steps over the vocabulary, and for all other steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ViewNames {
    pub(super) plain: &'static str,
    pub(super) vocabulary: &'static str,
}

impl Default for ViewNames {
    fn default() -> Self {
        Self { plain: "heatmap", vocabulary: "largest" }
    }
}
