//! The steps of a pass, as a user walks through them: the stages and their views.

use std::fmt;

use super::axis::Axis as A;
use super::card::ModelCard;
use super::sizes::{PassDims, Sizes};
use super::stage::{Absence, Section, Stage};

/// A reshape or a transpose: a step that shows its source's values in another shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum View {
    /// Queries split into heads: (T, H·C) → (T, H, C).
    XqHeads,
    /// Keys split into heads: (T, G·C) → (T, G, C).
    XkHeads,
    /// Values split into heads: (T, G·C) → (T, G, C).
    XvHeads,
    /// Queries head first: (T, H, C) → (H, T, C).
    QueriesT,
    /// The same in layers that normalise the queries after RoPE.
    QueriesTOfLastNorm,
    /// The same in layers without RoPE that normalise the queries.
    QueriesTOfNorm,
    /// The same in layers without RoPE and norms of queries.
    QueriesTOfProduct,
    /// Keys head first and transposed: (K, H, C) → (H, C, K).
    KeysT,
    /// Values head first: (K, H, C) → (H, K, C).
    ValuesT,
    /// Heads concatenated again: (T, H, C) → (T, H·C).
    AttnMerged,
}

/// The mapping from an index of a view to the index in its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arranged {
    /// The same index: the source already has the view's shape.
    Same,
    /// A permutation: each axis is the source's axis of this number.
    Axes([usize; 3]),
    /// The last two axes of the source are merged.
    Merged,
}

/// One row of the table of views.
struct Row {
    name: &'static str,
    source: Stage,
    axes_in: &'static [A],
    axes: &'static [A],
    arranged: Arranged,
    /// The stage next to it, and whether the view comes before that stage.
    beside: (Stage, bool),
    formula: &'static str,
    purpose: &'static str,
}

/// The row of the queries of `source`.
const fn queries_t(source: Stage, formula: &'static str) -> Row {
    Row {
        name: "queries_t",
        source,
        axes_in: &[A::Token, A::Head, A::HeadDim],
        axes: &[A::Head, A::Token, A::HeadDim],
        arranged: Arranged::Axes([1, 0, 2]),
        beside: (Stage::Qk, true),
        formula,
        purpose: "Heads go first, so that each head is a (T, C) matrix of its own.",
    }
}

/// The table, in the order of [`View`].
static TABLE: [Row; 10] = [
    Row {
        name: "xq_heads",
        source: Stage::Xq,
        axes_in: &[A::Token, A::HeadsMerged],
        axes: &[A::Token, A::Head, A::HeadDim],
        arranged: Arranged::Same,
        beside: (Stage::Xq, false),
        formula: "xq_heads[t, h, c] = ({attn_input} · wqᵀ)[t, h·{C} + c]",
        purpose: "One row of {HC} numbers is read as {H} heads of {C}; no number moves.",
    },
    Row {
        name: "xk_heads",
        source: Stage::Xk,
        axes_in: &[A::Token, A::KvHeadsMerged],
        axes: &[A::Token, A::KvHead, A::HeadDim],
        arranged: Arranged::Same,
        beside: (Stage::Xk, false),
        formula: "xk_heads[t, g, c] = ({attn_input} · wkᵀ)[t, g·{C} + c]",
        purpose: "One row of {GC} numbers is read as {G} heads of {C}; no number moves.",
    },
    Row {
        name: "xv_heads",
        source: Stage::Xv,
        axes_in: &[A::Token, A::KvHeadsMerged],
        axes: &[A::Token, A::KvHead, A::HeadDim],
        arranged: Arranged::Same,
        beside: (Stage::Xv, false),
        formula: "xv_heads[t, g, c] = ({attn_input} · wvᵀ)[t, g·{C} + c]",
        purpose: "One row of {GC} numbers is read as {G} heads of {C}; no number moves.",
    },
    queries_t(Stage::XqRope, "queries_t[h, t, c] = xq_rope[t, h, c]"),
    queries_t(Stage::XqRopeNorm, "queries_t[h, t, c] = xq_norm[t, h, c]"),
    queries_t(Stage::XqNorm, "queries_t[h, t, c] = xq_norm[t, h, c]"),
    queries_t(Stage::Xq, "queries_t[h, t, c] = xq[t, h, c]"),
    Row {
        name: "keys_t",
        source: Stage::Keys,
        axes_in: &[A::Key, A::Head, A::HeadDim],
        axes: &[A::Head, A::HeadDim, A::Key],
        arranged: Arranged::Axes([1, 2, 0]),
        beside: (Stage::Qk, true),
        formula: "keys_t[h, c, k] = keys[k, h, c]",
        purpose: "Each head's keys as a (C, K) matrix: the right side of the product with the queries.",
    },
    Row {
        name: "values_t",
        source: Stage::Values,
        axes_in: &[A::Key, A::Head, A::HeadDim],
        axes: &[A::Head, A::Key, A::HeadDim],
        arranged: Arranged::Axes([1, 0, 2]),
        beside: (Stage::AttnHeads, true),
        formula: "values_t[h, k, c] = values[k, h, c]",
        purpose: "Each head's values as a (K, C) matrix: the right side of the product with the attention weights.",
    },
    Row {
        name: "attn_merged",
        source: Stage::AttnHeads,
        axes_in: &[A::Token, A::Head, A::HeadDim],
        axes: &[A::Token, A::HeadsMerged],
        arranged: Arranged::Merged,
        beside: (Stage::AttnHeads, false),
        formula: "attn_merged[t, h·{C} + c] = attn_heads[t, h, c]",
        purpose: "The {H} heads of {C} are read as one row of {HC} numbers again.",
    },
];

impl View {
    /// Every view, in the order of the pass.
    pub const ALL: &[Self] = &[
        Self::XqHeads,
        Self::XkHeads,
        Self::XvHeads,
        Self::QueriesT,
        Self::QueriesTOfLastNorm,
        Self::QueriesTOfNorm,
        Self::QueriesTOfProduct,
        Self::KeysT,
        Self::ValuesT,
        Self::AttnMerged,
    ];

    fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The stage that holds its values.
    pub fn source(self) -> Stage {
        self.row().source
    }

    /// The first of the views with this view's name.
    fn first_of_name(self) -> Self {
        match self {
            Self::QueriesTOfLastNorm | Self::QueriesTOfNorm | Self::QueriesTOfProduct => Self::QueriesT,
            other => other,
        }
    }

    /// The view of this name in `layer` of a model of `sizes`; in the first layer for `None`.
    fn in_model(self, sizes: &Sizes, layer: Option<usize>) -> Self {
        match (self.first_of_name(), sizes.attended(layer.unwrap_or(0))[0]) {
            (Self::QueriesT, Stage::XqRopeNorm) => Self::QueriesTOfLastNorm,
            (Self::QueriesT, Stage::XqNorm) => Self::QueriesTOfNorm,
            (Self::QueriesT, Stage::Xq) => Self::QueriesTOfProduct,
            (first, _) => first,
        }
    }

    /// The axes of its input.
    pub fn axes_in(self) -> &'static [A] {
        self.row().axes_in
    }

    /// The axes of its output.
    pub fn axes(self) -> &'static [A] {
        self.row().axes
    }

    /// "reshape" or "transpose".
    pub fn op(self) -> &'static str {
        match self.row().arranged {
            Arranged::Axes(_) => "transpose",
            Arranged::Same | Arranged::Merged => "reshape",
        }
    }

    /// Its definition as an equation.
    pub fn formula(self) -> &'static str {
        self.row().formula
    }

    /// Its purpose, in a sentence.
    pub fn purpose(self) -> &'static str {
        self.row().purpose
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One step of the pass: a stage, or a view of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// A stage with values of its own.
    Stage(Stage),
    /// A view of a stage's values.
    View(View),
}

impl Step {
    /// All steps of one section, in order, with the views at their places.
    pub fn in_section(section: Section) -> impl Iterator<Item = Self> {
        let views = |stage, before| {
            View::ALL
                .iter()
                .filter(move |view| view.row().beside == (stage, before))
                .map(|&view| Self::View(view))
        };
        let stages = Stage::ALL.iter().copied().filter(move |stage| stage.info().section == section);
        stages
            .flat_map(move |stage| views(stage, true).chain([Self::Stage(stage)]).chain(views(stage, false)))
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stage(stage) => stage.name(),
            Self::View(view) => view.name(),
        }
    }

    /// The stage that holds its values.
    pub fn stage(self) -> Stage {
        match self {
            Self::Stage(stage) => stage,
            Self::View(view) => view.source(),
        }
    }

    /// Its axes, outermost first.
    pub fn axes(self) -> &'static [A] {
        match self {
            Self::Stage(stage) => stage.axes(),
            Self::View(view) => view.axes(),
        }
    }

    /// The mapping from an index of the step to the index in its stage.
    pub fn arranged(self) -> Arranged {
        match self {
            Self::Stage(_) => Arranged::Same,
            Self::View(view) => view.row().arranged,
        }
    }

    /// Converts `index` of the step into the index in its stage, which has the shape `shape`.
    pub fn index_in_stage(self, index: &[usize], shape: &[usize]) -> Vec<usize> {
        match self.arranged() {
            Arranged::Same => index.to_vec(),
            Arranged::Axes(order) => {
                let mut from = vec![0; order.len()];
                order.iter().zip(index).for_each(|(&axis, &index)| from[axis] = index);
                from
            }
            Arranged::Merged => {
                let width = shape[2].max(1);
                vec![index[0], index[1] / width, index[1] % width]
            }
        }
    }

    /// Its operation in one word.
    pub fn op(self) -> &'static str {
        match self {
            Self::Stage(stage) => stage.info().op.name(),
            Self::View(view) => view.op(),
        }
    }

    /// Its formula, with marks for [`super::ModelCard::fill`].
    pub fn formula(self) -> &'static str {
        match self {
            Self::Stage(stage) => stage.info().formula,
            Self::View(view) => view.formula(),
        }
    }

    /// Its purpose, with marks for [`super::ModelCard::fill`].
    pub fn purpose(self) -> &'static str {
        match self {
            Self::Stage(stage) => stage.info().purpose,
            Self::View(view) => view.purpose(),
        }
    }

    /// Returns whether its last axis is the vocabulary.
    pub fn over_vocabulary(self) -> bool {
        self.axes().last() == Some(&A::Vocab)
    }

    /// Whether it exists in `layer` of pass `dims`; outside the layers, or in any layer, for `None`.
    pub fn present_in(self, sizes: &Sizes, dims: PassDims, layer: Option<usize>) -> bool {
        let is_source = |view: View| match layer {
            Some(_) => view.in_model(sizes, layer) == view,
            None => (0..sizes.layers).any(|layer| view.in_model(sizes, Some(layer)) == view),
        };
        let is_here = if let Self::View(view) = self { is_source(view) } else { true };
        is_here && self.stage().present_in(sizes, dims, layer)
    }

    /// The reason why `layer` of pass `dims` of the model `card` has no step of this name; `None` if it has one.
    pub fn absence(self, card: &ModelCard, dims: PassDims, layer: Option<usize>) -> Option<Absence> {
        self.in_model(&card.sizes(), layer).stage().absence(self.name(), card, dims, layer)
    }

    /// The step of this name in `layer` of a model of `sizes`. See [`Stage::in_model`].
    #[must_use]
    pub fn in_model(self, sizes: &Sizes, layer: Option<usize>) -> Self {
        match self {
            Self::Stage(stage) => Self::Stage(stage.in_model(sizes)),
            Self::View(view) => Self::View(view.in_model(sizes, layer)),
        }
    }

    /// The first of the steps with this step's name.
    #[must_use]
    pub fn first_of_name(self) -> Self {
        match self {
            Self::Stage(stage) => Self::Stage(stage.first_of_name()),
            Self::View(view) => Self::View(view.first_of_name()),
        }
    }

    /// The step with this name. Of several steps with one name, it is the first, Llama's; [`Step::in_model`] gives that
    /// of a model.
    pub fn from_name(name: &str) -> Option<Self> {
        let view = View::ALL.iter().copied().find(|view| view.name() == name).map(Self::View);
        view.or_else(|| Stage::from_name(name).map(Self::Stage))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_finds_its_step_or_the_first_of_its_name() {
        let mut names = Vec::new();
        for section in [Section::Start, Section::Layer, Section::End, Section::Sampler] {
            for step in Step::in_section(section) {
                assert_eq!(Step::from_name(step.name()), Some(step.first_of_name()));
                names.push(step.name());
            }
        }
        assert_eq!(names.len(), Stage::ALL.len() + View::ALL.len());
        names.sort_unstable();
        names.dedup();
        // The other three are `queries_t` of other stages.
        assert_eq!(names.len(), Stage::names().count() + View::ALL.len() - 3);
    }

    #[test]
    fn a_views_row_stands_at_it_and_its_axes_follow_from_its_sources() {
        for (&view, formula) in View::ALL.iter().zip(TABLE.iter().map(|row| row.formula)) {
            assert!(formula.starts_with(&format!("{view}[")), "{view}");
            let source = view.source().axes();
            match view.row().arranged {
                Arranged::Same => assert_eq!((view.axes(), view.axes_in().len()), (source, 2), "{view}"),
                Arranged::Axes(order) => {
                    assert_eq!(view.axes(), order.map(|axis| source[axis]), "{view}");
                    assert_eq!(view.axes_in(), source, "{view}");
                }
                Arranged::Merged => {
                    assert_eq!((view.axes_in(), view.axes()[0]), (source, source[0]), "{view}");
                }
            }
        }
    }
}
