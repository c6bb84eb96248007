//! The stages of a forward pass, and their properties: name, axes, formula, inputs, unit, existence. Each stage has one
//! row of the `table`, which the rest of the program reads.

mod aliases;
mod exists;
mod op;
mod table;
mod unit;

use std::fmt;
use std::sync::LazyLock;

use super::axis::Axis;
use super::card::ModelCard;
use super::sizes::{PassDims, Sizes};
use crate::config::{Activation, ModelConfig, Placement, QkWidth};
use table::TABLE;

pub use exists::Absence;
pub use op::Op;
pub use table::Stage;
pub use unit::Unit;

/// The place of a stage in the pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    /// Once a pass, before the layers.
    Start,
    /// In every layer.
    Layer,
    /// Once a pass, after the layers.
    End,
    /// When the next token is drawn.
    Sampler,
}

/// An input of a stage, besides weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Another stage of the same pass, and of the same layer if it is in one.
    Stage(Stage),
    /// x, the layer's input: `embedding`, or the previous layer's `ffn_residual`.
    LayerInput,
    /// The positions of this pass's tokens, start .. start + T.
    Positions,
}

/// How a stage is computed, which decides how it is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// It is an input, not computed.
    Given,
    /// It is a separate operation.
    Alone,
    /// It has no separate operation: it is computed on demand, or together with a later stage, whose time includes
    /// both.
    Derived,
}

/// The rounding of a stage when the model runs in bfloat16, as in PyTorch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounded {
    /// Nothing is rounded: the stage copies or hides rounded values, has no numbers, is computed in float32 by the
    /// sampler, or does not exist in bfloat16.
    Never,
    /// The result is rounded.
    Result,
    /// The normalised value is rounded before it is multiplied by the weight, and so is the product.
    TwiceInNorm,
    /// Every product is rounded, and so is the sum of two products.
    ProductsAndSum,
}

/// The condition for a weight of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Always,
    QkvBias,
    OutputBias,
    MlpBias,
    /// The norms of the residual stream have a weight.
    NormWeight,
    /// They have a bias.
    NormBias,
    /// The query and key norms have a weight that all heads share.
    HeadWeight,
    /// They have a weight for all heads side by side.
    HeadsWeight,
    /// The activation has learned numbers.
    Xielu,
}

/// The condition for a stage, and so the reason for its absence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exists {
    /// In every pass of every model.
    Always,
    /// In passes that hide a key from some token in some layer.
    Hiding,
    /// In families that normalise queries and keys before RoPE.
    QkNorm,
    /// In families that normalise queries and keys after RoPE.
    QkNormLast,
    /// In layers with RoPE.
    Rope,
    /// In families whose layers all have the same RoPE: before the layers.
    SharedRope,
    /// In families whose layers with a window have a RoPE of their own: in the layers with RoPE.
    LayerRope,
    /// In families with a norm before attention.
    NormBefore,
    /// In families with a norm before the feed-forward network, apart from that before attention.
    FfnNormBefore,
    /// In families with norms after attention and after the feed-forward network.
    NormAfter,
    /// In families whose scores have a soft cap.
    ScoreCap,
    /// In families whose logits have a soft cap.
    LogitCap,
    /// In families whose feed-forward network has a gate.
    Gate,
    /// In families whose feed-forward network has a gate with SiLU.
    Silu,
    /// In families whose feed-forward network has another activation, or no gate.
    Activation,
    /// In runs with int8 products.
    Int8,
    /// In passes whose draw has a repetition penalty.
    Penalty,
    /// In passes whose draw has min-p.
    MinP,
    /// In passes whose draw has typical-p.
    TypicalP,
}

/// A weight that a stage reads.
#[derive(Clone, Copy, Debug)]
pub struct WeightUse {
    /// Meta's short name: `wq`, `w1`, …; `bq` for its bias.
    pub name: &'static str,
    /// Its axes, outermost first: outputs × inputs.
    pub axes: &'static [Axis],
    when: When,
}

/// A stage's names in other code, for looking things up; empty if there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aliases {
    /// Hugging Face module, under `model.layers.L.` for stages of a layer.
    pub hugging_face: &'static str,
    /// TransformerLens hook, under `blocks.L.` for stages of a layer.
    pub transformer_lens: &'static str,
    /// llama.cpp's tensor name.
    pub llama_cpp: &'static str,
    /// Variable of the Go walkthrough llama-nuts-and-bolts, in chapter 15 of its docs.
    pub go: &'static str,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct StageInfo {
    /// The stage.
    pub stage: Stage,
    /// Its name, used everywhere.
    pub name: &'static str,
    /// Its place in the pass.
    pub section: Section,
    /// Its axes, outermost first.
    pub axes: &'static [Axis],
    /// The operation that computes it.
    pub op: Op,
    /// Its inputs.
    pub inputs: &'static [Input],
    /// The weights it reads, biases included.
    pub weights: &'static [WeightUse],
    /// The formula, with `{D}` and the like for [`ModelCard::fill`].
    pub formula: &'static str,
    /// Its purpose, in a sentence or two.
    pub purpose: &'static str,
    /// The unit of its values.
    pub unit: Unit,
    /// Its rounding in bfloat16.
    pub rounded: Rounded,
    /// How it is computed and timed.
    pub runs: Runs,
    /// The stages from which its operation derives it without any weight of the model: its own inputs, or the inputs of
    /// its inputs. `None` if it uses weights, is an input, or is drawn.
    pub derived_from: Option<&'static [Input]>,
    /// The condition for its existence.
    pub exists: Exists,
    /// The stage that is read in its place if it is absent; `None` if there is no such stage.
    pub instead: Option<Stage>,
    /// Its names in other code, in a Llama. [`Stage::aliases`] gives those in another family.
    pub aliases: Aliases,
}

impl Input {
    /// This input in `layer` of pass `dims`: an absent stage is replaced by the one before it.
    pub fn in_layer(self, sizes: &Sizes, dims: PassDims, layer: Option<usize>) -> Self {
        match self {
            Self::Stage(stage) => stage.or_before(sizes, dims, layer),
            other => other,
        }
    }
}

impl Stage {
    /// Its row of the table.
    pub fn info(self) -> &'static StageInfo {
        &TABLE[self as usize]
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.info().name
    }

    /// Its axes, outermost first.
    pub fn axes(self) -> &'static [Axis] {
        self.info().axes
    }

    /// Returns whether each layer has this stage.
    pub fn in_layer(self) -> bool {
        self.info().section == Section::Layer
    }

    /// Returns whether its values are ids (int64) rather than numbers (float32).
    pub fn is_ids(self) -> bool {
        self.info().unit == Unit::Id
    }

    /// Returns whether its values are int8: quantised activations.
    pub fn is_int8(self) -> bool {
        self.info().unit == Unit::Steps
    }

    /// Returns whether its values are the scales of int8 values.
    pub fn is_scale(self) -> bool {
        self.info().unit == Unit::Step
    }

    /// Bytes per value.
    pub fn value_bytes(self) -> usize {
        match self {
            _ if self.is_ids() => 8,
            _ if self.is_int8() => 1,
            _ => 4,
        }
    }

    /// Its inputs in pass `dims`, besides weights. Absent stages are replaced by the ones before them: without a mask,
    /// softmax reads the scores; without qk-norm, RoPE reads the projections; without int8, a product reads the
    /// activations.
    ///
    /// In families whose layers differ, [`Site::inputs`](super::Site::inputs) answers for one layer.
    pub fn inputs(self, sizes: &Sizes, dims: PassDims) -> Vec<Input> {
        self.inputs_in(sizes, dims, None)
    }

    /// Its inputs in `layer` of pass `dims`.
    pub(crate) fn inputs_in(self, sizes: &Sizes, dims: PassDims, layer: Option<usize>) -> Vec<Input> {
        let mut inputs: Vec<Input> =
            self.info().inputs.iter().map(|input| input.in_layer(sizes, dims, layer)).collect();
        inputs.dedup();
        inputs
    }

    /// This stage or, if it is absent, what is read in its place.
    fn or_before(self, sizes: &Sizes, dims: PassDims, layer: Option<usize>) -> Input {
        let before = match self {
            Self::RopeCos | Self::RopeSin => return Input::Stage(self.in_model(sizes)),
            _ if self.present_in(sizes, dims, layer) => return Input::Stage(self),
            Self::AttnNorm => return Input::LayerInput,
            Self::FfnNorm if sizes.placement == Placement::Parallel => Self::AttnNorm,
            Self::FfnNorm => Self::AttnResidual,
            // Without a gate, the activation reads the projection.
            Self::FfnGate => Self::FfnUp,
            Self::FfnSilu | Self::FfnHidden => Self::FfnAct,
            _ => match self.info().instead {
                Some(before) => before,
                None => return Input::Stage(self),
            },
        };
        before.or_before(sizes, dims, layer)
    }

    /// The stage with this name. Of two stages with one name, it is the first, Llama's; [`Stage::in_model`] gives that
    /// of a model.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|stage| stage.name() == name)
    }

    /// The names of all stages, each once.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Self::ALL.iter().filter(|stage| stage.first_of_name() == **stage).map(|stage| stage.name())
    }

    /// The stage of this name in a model of `sizes`. Some families compute a stage at another place in the pass: the
    /// tables of RoPE in each layer, or the norms of queries and keys after RoPE. No model has both stages.
    #[must_use]
    pub fn in_model(self, sizes: &Sizes) -> Self {
        match self {
            Self::RopeCos if sizes.local_rope => Self::LayerRopeCos,
            Self::RopeSin if sizes.local_rope => Self::LayerRopeSin,
            Self::XqNorm if sizes.qk_norm_last => Self::XqRopeNorm,
            Self::XkNorm if sizes.qk_norm_last => Self::XkRopeNorm,
            other => other,
        }
    }

    /// The first of the stages with this stage's name.
    #[must_use]
    pub fn first_of_name(self) -> Self {
        match self {
            Self::LayerRopeCos => Self::RopeCos,
            Self::LayerRopeSin => Self::RopeSin,
            Self::XqRopeNorm => Self::XqNorm,
            Self::XkRopeNorm => Self::XkNorm,
            other => other,
        }
    }

    /// Returns whether it is a norm of queries or keys.
    pub fn is_qk_norm(self) -> bool {
        matches!(self.first_of_name(), Self::XqNorm | Self::XkNorm)
    }

    /// Returns whether it is a table of RoPE: the cosines or the sines.
    pub fn is_rope_table(self) -> bool {
        matches!(self.first_of_name(), Self::RopeCos | Self::RopeSin)
    }

    /// The weights that it reads in this model; biases only if the model has them.
    pub fn weights(self, card: &ModelCard) -> impl Iterator<Item = &'static WeightUse> {
        let ModelConfig { qkv_bias, output_bias, mlp_bias, norm, qk_norm_form, activation, .. } = card.config;
        let shared = qk_norm_form.width == QkWidth::Head;
        self.info().weights.iter().filter(move |weight| match weight.when {
            When::Always => true,
            When::QkvBias => qkv_bias,
            When::OutputBias => output_bias,
            When::MlpBias => mlp_bias,
            When::NormWeight => norm.weight,
            When::NormBias => norm.bias,
            When::HeadWeight => qk_norm_form.weight && shared,
            When::HeadsWeight => qk_norm_form.weight && !shared,
            When::Xielu => activation == Activation::Xielu,
        })
    }
}

impl Sizes {
    /// The stages that attention and the feed-forward network add to the residual stream.
    pub fn added(&self) -> [Stage; 2] {
        match self.placement.after() {
            true => [Stage::PostAttnNorm, Stage::PostFfnNorm],
            false => [Stage::AttnOutput, Stage::FfnDown],
        }
    }

    /// The stage with the hidden values of the feed-forward network, which the projection back to the stream reads: one
    /// number for each neuron.
    pub fn neurons(&self) -> Stage {
        if self.ungated { Stage::FfnAct } else { Stage::FfnHidden }
    }

    /// The stages of a neuron, in the order of the pass; the last one is [`Sizes::neurons`].
    pub fn stages_of_neurons(&self) -> &'static [Stage] {
        match (self.ungated, self.activation) {
            (true, _) => &[Stage::FfnUp, Stage::FfnAct],
            (false, Activation::Silu) => &[Stage::FfnGate, Stage::FfnSilu, Stage::FfnUp, Stage::FfnHidden],
            (false, _) => &[Stage::FfnGate, Stage::FfnUp, Stage::FfnAct, Stage::FfnHidden],
        }
    }

    /// The stage with the final logits, which the sampler reads.
    pub fn last_logits(&self) -> Stage {
        if self.logit_cap.is_some() { Stage::CappedLogits } else { Stage::Logits }
    }

    /// The stages with the queries and the keys that attention multiplies in `layer`. The cache holds these keys.
    pub fn attended(&self, layer: usize) -> [Stage; 2] {
        match (self.has_rope(Some(layer)), self.qk_norm, self.qk_norm_last) {
            (_, true, true) => [Stage::XqRopeNorm, Stage::XkRopeNorm],
            (true, ..) => [Stage::XqRope, Stage::XkRope],
            (false, true, _) => [Stage::XqNorm, Stage::XkNorm],
            (false, false, _) => [Stage::Xq, Stage::Xk],
        }
    }
}

impl Op {
    /// The stages that this operation computes, in the order of the pass.
    pub fn stages(self) -> &'static [Stage] {
        // A stable sort by operation puts each operation's stages next to each other.
        static BY_OP: LazyLock<Vec<Stage>> = LazyLock::new(|| {
            let mut stages = Stage::ALL.to_vec();
            stages.sort_by_key(|stage| stage.info().op as usize);
            stages
        });
        let first = BY_OP.partition_point(|stage| (stage.info().op as usize) < self as usize);
        let count = BY_OP[first..].iter().take_while(|stage| stage.info().op == self).count();
        &BY_OP[first..first + count]
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_at_their_stage_and_read_only_earlier_ones() {
        for &stage in Stage::ALL {
            assert_eq!(stage.info().stage, stage);
            for input in stage.info().inputs {
                if let Input::Stage(input) = input {
                    assert!(*input < stage, "{stage} reads {input}");
                }
            }
            assert!(stage.info().instead.is_none_or(|before| before < stage), "{stage}");
        }
    }

    #[test]
    fn what_is_derived_comes_from_stages_before_it_and_what_is_int8_from_the_one_that_it_stands_for() {
        for &stage in Stage::ALL {
            let info = stage.info();
            let from = info.derived_from.unwrap_or_default();
            for from in from {
                assert!(!matches!(from, Input::Stage(from) if *from >= stage), "{stage}");
            }
            let quantized = info.op == Op::Quantize;
            assert_eq!((stage.is_int8(), stage.is_scale()), {
                let name = stage.name();
                (name.ends_with("_q8"), name.ends_with("_scale"))
            });
            assert_eq!(stage.is_int8() || stage.is_scale(), quantized, "{stage}");
            if quantized {
                assert_eq!((info.exists, from), (Exists::Int8, info.inputs), "{stage}");
                assert_eq!(from, [Input::Stage(info.instead.unwrap())], "{stage}");
            }
            if stage.is_int8() {
                let next = Stage::ALL[stage as usize + 1];
                assert!(
                    next.is_scale() && next.info().inputs == info.inputs,
                    "{next} has the scales of {stage}"
                );
            }
            assert!(info.weights.is_empty() || info.derived_from.is_none(), "{stage} takes weights");
        }
    }

    #[test]
    fn two_stages_of_one_name_are_one_stage_at_two_places_and_no_model_has_both() {
        let dims = PassDims { pass: 0, start: 0, tokens: 3, ..PassDims::default() };
        let mut names: Vec<_> = Stage::names().collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Stage::names().count());
        let twins = Stage::ALL.iter().filter(|stage| stage.first_of_name() != **stage);
        assert_eq!(twins.clone().count(), Stage::ALL.len() - names.len());
        for &later in twins {
            let first = later.first_of_name();
            assert_eq!((first.name(), first.axes()), (later.name(), later.axes()));
            assert_eq!(Stage::from_name(later.name()), Some(first));
            let mut sizes = ModelCard::small(|config| config.qk_norm = true).sizes();
            for [other, elsewhere] in [[false; 2], [true; 2]] {
                (sizes.local_rope, sizes.qk_norm_last) = (other, elsewhere);
                let there = if other { later } else { first };
                assert_eq!(first.in_model(&sizes), there);
                assert_eq!([first, later].map(|stage| stage.present(&sizes, dims)), [!other, other]);
            }
        }
    }

    #[test]
    fn masks_exist_only_where_a_key_is_hidden() {
        let decode = PassDims { pass: 1, start: 5, tokens: 1, ..PassDims::default() };
        let prefill = PassDims { pass: 0, start: 0, tokens: 5, ..PassDims::default() };
        let mut sizes = ModelCard::small(|_| {}).sizes();
        for window in [None, Some(6)] {
            sizes.window = window;
            assert!(!Stage::Mask.present(&sizes, decode) && !Stage::MaskedScores.present(&sizes, decode));
            assert!(Stage::Mask.present(&sizes, prefill) && Stage::Softmax.present(&sizes, decode));
        }
        sizes.window = Some(5);
        assert!(Stage::Mask.present(&sizes, decode), "the first of the 6 keys has left the window");
    }

    #[test]
    fn every_stage_is_among_those_of_its_operation() {
        let listed: Vec<_> = Stage::ALL.iter().map(|stage| stage.info().op.stages()).collect();
        for (stage, listed) in Stage::ALL.iter().zip(listed) {
            assert!(listed.contains(stage) && listed.is_sorted(), "{stage}");
            assert!(listed.iter().all(|other| other.info().op == stage.info().op), "{stage}");
        }
        assert_eq!(Op::Rope.stages(), [Stage::XqRope, Stage::XkRope]);
        assert_eq!(Op::RmsNorm.stages().len(), 9);
    }
}
