//! The stages that a model and a pass have, and the reasons for the absence of others.

use super::super::card::ModelCard;
use super::super::sizes::{PassDims, Sizes};
use super::{Exists, Stage};
use crate::config::Activation;

/// The reason for the absence of a stage, in the parts of an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absence {
    /// The problem.
    pub what: String,
    /// The reason, as a clause.
    pub why: String,
    /// The condition under which it would exist.
    pub expected: &'static str,
    /// The actual situation.
    pub found: String,
    /// The advice.
    pub next: &'static str,
}

impl Stage {
    /// Returns whether it exists in pass `dims` of a model with `sizes`.
    ///
    /// The `mask` of a pass is that of the layers with a window, if there are any. If only some layers have a window
    /// (Qwen's `max_window_layers`), the others hide fewer keys; their `masked_scores` show which keys they hide.
    ///
    /// A stage that only some layers have exists. [`Site::present`](crate::trace::Site::present) answers for one layer.
    pub fn present(self, sizes: &Sizes, dims: PassDims) -> bool {
        self.present_in(sizes, dims, None)
    }

    /// Returns whether it exists in `layer` of pass `dims`; outside the layers, or in any layer, for `None`.
    pub fn present_in(self, sizes: &Sizes, dims: PassDims, layer: Option<usize>) -> bool {
        match self.info().exists {
            Exists::Always => true,
            Exists::Hiding => sizes.hides(dims),
            Exists::QkNorm => sizes.qk_norm && !sizes.qk_norm_last,
            Exists::QkNormLast => sizes.qk_norm_last,
            Exists::Rope => sizes.has_rope(layer),
            Exists::SharedRope => !sizes.local_rope,
            Exists::LayerRope => sizes.local_rope && sizes.has_rope(layer),
            Exists::NormBefore => sizes.placement.before(),
            Exists::FfnNormBefore => sizes.placement.before_ffn(),
            Exists::NormAfter => sizes.placement.after(),
            Exists::ScoreCap => sizes.score_cap.is_some(),
            Exists::LogitCap => sizes.logit_cap.is_some(),
            Exists::Gate => !sizes.ungated,
            Exists::Silu => !sizes.ungated && sizes.activation == Activation::Silu,
            Exists::Activation => sizes.ungated || sizes.activation != Activation::Silu,
            Exists::Int8 => sizes.group.is_some(),
            Exists::Penalty => dims.filters.penalty,
            Exists::MinP => dims.filters.min_p,
            Exists::TypicalP => dims.filters.typical_p,
        }
    }

    /// The reason why it is absent in `layer` of pass `dims` of the model `card`; `None` if it exists. `name` is what
    /// the user called it: the name of the stage, or of a view of it.
    pub fn absence(
        self,
        name: &str,
        card: &ModelCard,
        dims: PassDims,
        layer: Option<usize>,
    ) -> Option<Absence> {
        if self.present_in(&card.sizes(), dims, layer) {
            return None;
        }
        if let Some(layer) = layer.filter(|_| self.present(&card.sizes(), dims)) {
            return Some(Absence {
                what: format!("layer {layer} has no {name}"),
                why: "it has no RoPE".to_owned(),
                expected: "a layer with RoPE",
                found: card.name.clone(),
                next: "choose another layer, or xq or xk",
            });
        }
        Some(match self.info().exists {
            Exists::Always => return None,
            Exists::Hiding => Absence {
                what: format!("pass {} has no {name}", dims.pass),
                why: format!("it reads {} token, and nothing is hidden from it", dims.tokens),
                expected: "a pass that reads several tokens: nothing is hidden from a single one",
                found: format!("{} token", dims.tokens),
                next: "choose softmax",
            },
            Exists::Rope
            | Exists::SharedRope
            | Exists::LayerRope
            | Exists::NormBefore
            | Exists::FfnNormBefore
            | Exists::NormAfter
            | Exists::ScoreCap
            | Exists::LogitCap
            | Exists::Gate
            | Exists::Silu
            | Exists::Activation => Absence {
                what: format!("the model has no {name}"),
                why: "its family computes the pass without it".to_owned(),
                expected: "a stage of this family",
                found: card.name.clone(),
                next: "`llama-trace log` prints the stages of a pass",
            },
            Exists::QkNorm | Exists::QkNormLast => Absence {
                what: format!("the model has no {name}"),
                why: "it does not normalise queries and keys".to_owned(),
                expected: "a family that normalises queries and keys, as Qwen3 does",
                found: card.name.clone(),
                next: "choose xq or xk",
            },
            Exists::Int8 => Absence {
                what: format!("this run has no {name}"),
                why: format!(
                    "it computes in {}; only runs with int8 products have one",
                    card.precision.name()
                ),
                expected: "a run whose products are in int8",
                found: format!("a run in {}", card.precision.name()),
                next: "add --precision q8",
            },
            Exists::Penalty => Absence {
                what: format!("pass {} has no {name}", dims.pass),
                why: "its token was drawn without a repetition penalty".to_owned(),
                expected: "a run with a repetition penalty",
                found: "a run whose repetition penalty is 1".to_owned(),
                next: "add --repetition-penalty 1.2, or choose logits",
            },
            Exists::MinP => Absence {
                what: format!("pass {} has no {name}", dims.pass),
                why: "its token was drawn without min-p".to_owned(),
                expected: "a run with min-p, at a temperature over 0",
                found: "a run whose min-p is 0, or has no effect at temperature 0".to_owned(),
                next: "add --min-p 0.1 --temperature 1, or choose probs",
            },
            Exists::TypicalP => Absence {
                what: format!("pass {} has no {name}", dims.pass),
                why: "its token was drawn without typical-p".to_owned(),
                expected: "a run with typical-p, at a temperature over 0",
                found: "a run whose typical-p is 1, or has no effect at temperature 0".to_owned(),
                next: "add --typical-p 0.9 --temperature 1, or choose probs",
            },
        })
    }
}
