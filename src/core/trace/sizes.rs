//! The sizes of a model and of a pass, from which shapes follow.

use super::axis::Axis;
use crate::config::{Activation, LayerSet, ModelConfig, Placement, Precision, QkWidth, Sees};

/// The sizes that determine shapes, and which stages exist.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizes {
    /// Number of layers.
    pub layers: usize,
    /// D: model width.
    pub dim: usize,
    /// H: query heads.
    pub heads: usize,
    /// G: key/value heads.
    pub kv_heads: usize,
    /// C: head width.
    pub head_dim: usize,
    /// F: feed-forward width.
    pub hidden: usize,
    /// V: vocabulary.
    pub vocab: usize,
    /// The number of pairs of a head's components that RoPE rotates.
    pub pairs: usize,
    /// The layers that have RoPE.
    pub rope_layers: LayerSet,
    /// Whether the layers with a window have a RoPE of their own.
    pub local_rope: bool,
    /// Whether queries and keys are normalised.
    pub qk_norm: bool,
    /// Whether they are normalised after RoPE.
    pub qk_norm_last: bool,
    /// Whether they are normalised over all heads side by side.
    pub qk_whole: bool,
    /// The places of the norms of the residual stream.
    pub placement: Placement,
    /// The factor of the dot products; `None` for 1/√C.
    pub score_scale: Option<f32>,
    /// The soft cap of the scores.
    pub score_cap: Option<f32>,
    /// The soft cap of the logits.
    pub logit_cap: Option<f32>,
    /// The factor of what attention and the feed-forward network add to the residual stream.
    pub residual: f32,
    /// The activation of the feed-forward network.
    pub activation: Activation,
    /// Whether the feed-forward network has no gate.
    pub ungated: bool,
    /// W: keys that a token sees in a layer with a sliding window, its own included.
    pub window: Option<usize>,
    /// The layers with the window.
    pub window_layers: LayerSet,
    /// Whether the window is a chunk.
    pub chunked: bool,
    /// Activations per scale, if matrix products run in int8.
    pub group: Option<usize>,
}

/// The optional stages of the sampler that a pass has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filters {
    /// `penalized_logits`.
    pub penalty: bool,
    /// `min_p`.
    pub min_p: bool,
    /// `typical_p`.
    pub typical_p: bool,
}

/// The three numbers that define a pass, and the options of its draw that add stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassDims {
    /// Number of the pass, from 0.
    pub pass: usize,
    /// Tokens that were cached before this pass.
    pub start: usize,
    /// T: tokens of this pass.
    pub tokens: usize,
    /// The optional stages of its draw.
    pub filters: Filters,
}

impl Filters {
    /// No optional stage.
    pub const NONE: Self = Self { penalty: false, min_p: false, typical_p: false };
}

impl PassDims {
    /// K = start + T: keys that this pass sees.
    pub fn keys(self) -> usize {
        self.start + self.tokens
    }

    /// The kind of the pass: "prefill" if it is at the start of a text or has several tokens, else "decode".
    pub fn kind(self) -> &'static str {
        if self.start == 0 || self.tokens > 1 { "prefill" } else { "decode" }
    }
}

impl Sizes {
    /// The sizes of a model of this configuration, run in `precision`.
    pub fn new(config: &ModelConfig, precision: Precision) -> Self {
        Self {
            layers: config.layers,
            dim: config.dim,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            hidden: config.ffn_dim,
            vocab: config.vocab,
            pairs: config.turned() / 2,
            rope_layers: config.rope_layers,
            local_rope: config.local_rope.is_some(),
            qk_norm: config.qk_norm,
            qk_norm_last: config.qk_norm && config.qk_norm_form.after_rope,
            qk_whole: config.qk_norm && config.qk_norm_form.width == QkWidth::Whole,
            placement: config.placement,
            score_scale: config.score_scale,
            score_cap: config.score_cap,
            logit_cap: config.logit_cap,
            residual: config.multipliers.residual,
            activation: config.activation,
            ungated: config.ungated,
            window: config.window,
            window_layers: config.window_layers,
            chunked: config.chunked,
            group: precision.group(),
        }
    }

    /// The keys that a token sees in `layer`. Outside the layers, these are the keys that it sees in the layers with a
    /// window, if there are any.
    pub fn sees(&self, layer: Option<usize>) -> Sees {
        let has_window = layer.is_none_or(|layer| self.window_layers.contains(layer));
        match self.window.filter(|_| has_window) {
            None => Sees::All,
            Some(window) if self.chunked => Sees::Chunk(window),
            Some(window) => Sees::Window(window),
        }
    }

    /// Whether `layer` has RoPE. Outside the layers: whether any layer has it.
    pub fn has_rope(&self, layer: Option<usize>) -> bool {
        layer.is_none_or(|layer| self.rope_layers.contains(layer))
    }

    /// Returns whether pass `dims` hides a key from a token in some layer: a later key, or one outside the window.
    pub fn hides(&self, dims: PassDims) -> bool {
        dims.tokens > 1 || self.sees(None).hides(dims.keys())
    }

    /// The length of `axis` in pass `dims`.
    pub fn axis(&self, axis: Axis, dims: PassDims) -> usize {
        match axis {
            Axis::Token => dims.tokens,
            Axis::Key => dims.keys(),
            Axis::Head => self.heads,
            Axis::KvHead => self.kv_heads,
            Axis::HeadDim => self.head_dim,
            Axis::Dim => self.dim,
            Axis::Hidden => self.hidden,
            Axis::Pair => self.pairs,
            Axis::Vocab => self.vocab,
            Axis::HeadsMerged => self.heads * self.head_dim,
            Axis::KvHeadsMerged => self.kv_heads * self.head_dim,
            Axis::One => 1,
            Axis::Two => 2,
            Axis::DimGroup => self.groups(self.dim),
            Axis::HeadsGroup => self.groups(self.heads * self.head_dim),
            Axis::HiddenGroup => self.groups(self.hidden),
        }
    }

    /// The number of scales of a row of `width` values.
    fn groups(&self, width: usize) -> usize {
        self.group.map_or(0, |group| width.div_ceil(group))
    }

    /// The number of rows of a tensor with these axes; a row is everything along the last axis.
    pub fn rows(&self, axes: &[Axis], dims: PassDims) -> usize {
        let outer = axes.split_last().map_or(axes, |(_, outer)| outer);
        outer.iter().map(|&axis| self.axis(axis, dims)).product()
    }

    /// The shape of a tensor with these axes in pass `dims`.
    pub fn shape(&self, axes: &[Axis], dims: PassDims) -> Vec<usize> {
        axes.iter().map(|&axis| self.axis(axis, dims)).collect()
    }
}
