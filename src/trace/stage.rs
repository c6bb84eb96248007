//! The table of stages: every name that a user sees, with its axes, its formula, what it is made of and
//! what it is for. Everything else in the program reads this table.

use std::fmt;

use super::card::{ModelCard, PassDims, Sizes};

/// The meaning of one axis of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Axis {
    /// T: a token of this pass (a query position).
    Token,
    /// K: a cached position, this pass's own included.
    Key,
    /// H: a query head.
    Head,
    /// G: a key/value head.
    KvHead,
    /// C: a component of one head.
    HeadDim,
    /// D: a component of the residual stream.
    Dim,
    /// F: a unit of the feed-forward network.
    Hidden,
    /// C/2: a pair of components that RoPE turns together.
    Pair,
    /// V: a token of the vocabulary.
    Vocab,
    /// H·C: all query heads side by side (views only).
    HeadsMerged,
    /// G·C: all key/value heads side by side (views only).
    KvHeadsMerged,
    /// ⌈D/g⌉: a group of components that share a scale.
    DimGroup,
    /// ⌈H·C/g⌉: a group along all heads side by side, as the product reads them; it may cross heads.
    HeadsGroup,
    /// ⌈F/g⌉: a group of units that share a scale.
    HiddenGroup,
    /// A single value.
    One,
}

impl Axis {
    /// The name written to manifests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Token | Self::One => "token",
            Self::Key => "key",
            Self::Head => "head",
            Self::KvHead => "kv_head",
            Self::HeadDim => "head_dim",
            Self::Dim => "dim",
            Self::Hidden => "hidden",
            Self::Pair => "pair",
            Self::Vocab => "vocab",
            Self::HeadsMerged => "head·head_dim",
            Self::KvHeadsMerged => "kv_head·head_dim",
            Self::DimGroup | Self::HeadsGroup | Self::HiddenGroup => "group",
        }
    }

    /// The letter that stands for its length in shapes.
    pub fn symbol(self) -> &'static str {
        match self {
            Self::Token => "T",
            Self::Key => "K",
            Self::Head => "H",
            Self::KvHead => "G",
            Self::HeadDim => "C",
            Self::Dim => "D",
            Self::Hidden => "F",
            Self::Pair => "C/2",
            Self::Vocab => "V",
            Self::HeadsMerged => "H·C",
            Self::KvHeadsMerged => "G·C",
            Self::DimGroup => "D/g",
            Self::HeadsGroup => "H·C/g",
            Self::HiddenGroup => "F/g",
            Self::One => "1",
        }
    }

    /// The letter that indexes it in formulas and addresses.
    pub fn index(self) -> char {
        match self {
            Self::Token => 't',
            Self::Key => 'k',
            Self::Head => 'h',
            Self::KvHead => 'g',
            Self::HeadDim => 'c',
            Self::Dim => 'd',
            Self::Hidden => 'f',
            Self::Pair => 'i',
            Self::Vocab => 'v',
            Self::HeadsMerged | Self::KvHeadsMerged => 'm',
            Self::DimGroup | Self::HeadsGroup | Self::HiddenGroup => 'j',
            Self::One => 'n',
        }
    }
}

/// How often a stage happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// What a stage reads, besides weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Another stage of the same pass (and layer, where it has one).
    Stage(Stage),
    /// x, what enters the layer: `embedding`, or the previous layer's `ffn_residual`.
    LayerInput,
    /// The positions of this pass's tokens, start .. start + T.
    Positions,
}

/// How a stage's time can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// It is given, not computed.
    Given,
    /// It is an operation of its own.
    Alone,
    /// It has no operation of its own: it exists when somebody asks for it, or it is made together with a
    /// later stage, where the time of both is told.
    Derived,
}

/// How a stage follows from others without any weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// It has their values, or says which of them are seen: nothing is computed.
    Copied,
    /// By a step of attention: products and sums along a head or along the keys.
    Attention,
    /// By SiLU.
    Silu,
    /// By a product of two values.
    Mul,
    /// By a sum of two values.
    Add,
    /// By quantising.
    Quantized,
}

/// When a weight of the table exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Always,
    QkvBias,
    OutputBias,
    MlpBias,
}

/// Where a stage exists, and so why it may be absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exists {
    /// In every pass of every model.
    Always,
    /// In passes where a key is hidden from some token in some layer.
    Hiding,
    /// In families that normalise queries and keys.
    QkNorm,
    /// In runs whose products are in int8.
    Int8,
}

/// Why a stage is absent, in the parts of an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absence {
    /// What is the matter.
    pub what: String,
    /// Why, in a clause.
    pub why: String,
    /// Where there would be one.
    pub expected: &'static str,
    /// What there is instead.
    pub found: String,
    /// What to do.
    pub next: &'static str,
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

const fn weight(name: &'static str, axes: &'static [Axis]) -> WeightUse {
    WeightUse { name, axes, when: When::Always }
}

const fn bias(name: &'static str, axes: &'static [Axis], when: When) -> WeightUse {
    WeightUse { name, axes, when }
}

/// A stage's names in other code, to look things up by; empty where there is none.
#[derive(Clone, Copy, Debug)]
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
    /// Its name, everywhere.
    pub name: &'static str,
    /// When it happens.
    pub section: Section,
    /// Its axes, outermost first.
    pub axes: &'static [Axis],
    /// The operation in one word, as in the log.
    pub op: &'static str,
    /// What it is computed from.
    pub inputs: &'static [Input],
    /// The weights it reads, biases included.
    pub weights: &'static [WeightUse],
    /// The formula, with `{D}` and the like for [`ModelCard::fill`].
    pub formula: &'static str,
    /// What it is for, in a sentence or two.
    pub purpose: &'static str,
    /// How its time can be told.
    pub runs: Runs,
    /// How it follows from its inputs, or from stages before them, without any weight; none where it takes weights,
    /// or is given or drawn.
    pub rule: Option<Rule>,
    /// Where it exists.
    pub exists: Exists,
    /// Its names elsewhere.
    pub aliases: Aliases,
}

/// How a stage is derived: as its row says, not at all where it says nothing.
const fn rule(by: &[Rule]) -> Option<Rule> {
    match by {
        [rule, ..] => Some(*rule),
        [] => None,
    }
}

/// Where a stage exists: as its row says, everywhere where it says nothing.
const fn exists(only: &[Exists]) -> Exists {
    match only {
        [exists, ..] => *exists,
        [] => Exists::Always,
    }
}

macro_rules! stages {
    ($( $stage:ident $name:literal $section:ident [$($axis:ident),*] $op:literal
        from [$($input:expr),*] with [$($weight:expr),*] runs $runs:expr $(, rule $rule:ident)? $(, only $exists:ident)?;
        formula $formula:literal
        purpose $purpose:literal
        aliases $hf:literal $tl:literal $cpp:literal $go:literal )*) => {
        /// A named tensor of the forward pass, in the order of the pass.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Stage {
            $( #[doc = concat!("`", $name, "`: ", $purpose)] $stage, )*
        }

        /// The table, in the order of [`Stage`].
        static TABLE: &[StageInfo] = &[$(
            StageInfo {
                stage: Stage::$stage,
                name: $name,
                section: Section::$section,
                axes: &[$(Axis::$axis),*],
                op: $op,
                inputs: &[$($input),*],
                weights: &[$($weight),*],
                formula: $formula,
                purpose: $purpose,
                runs: $runs,
                rule: rule(&[$(Rule::$rule)?]),
                exists: exists(&[$(Exists::$exists)?]),
                aliases: Aliases { hugging_face: $hf, transformer_lens: $tl, llama_cpp: $cpp, go: $go },
            },
        )*];

        impl Stage {
            /// Every stage, in the order of the pass.
            pub const ALL: &[Self] = &[$(Self::$stage),*];
        }
    };
}

use Axis as A;
use Input::{LayerInput, Positions};

const fn of(stage: Stage) -> Input {
    Input::Stage(stage)
}

stages! {
    Tokens "tokens" Start [Token] "input" from [] with [] runs Runs::Given;
        formula "tokens[t] = the id of token t, a row number of the embedding table (0 … {V} − 1)"
        purpose "The ids that this pass reads: the whole prompt in the prefill, one token in each decode pass."
        aliases "" "" "inp_tokens" ""
    Embedding "embedding" Start [Token, Dim] "lookup" from [of(Stage::Tokens)]
        with [weight("tok_embeddings", &[A::Vocab, A::Dim])] runs Runs::Alone;
        formula "embedding[t, :] = tok_embeddings[tokens[t], :]   ({D} numbers a token)"
        purpose "Each id becomes a learned vector, the start of its residual stream."
        aliases "model.embed_tokens" "hook_embed" "embd / inp_embd" "inputTensor"
    RopeCos "rope_cos" Start [Token, Pair] "rope_table" from [Positions] with [] runs Runs::Derived;
        formula "rope_cos[t, i] = cos(({start} + t) · {theta}^(−2i/{C}))   i = 0 … {half} − 1, after RoPE scaling"
        purpose "How far each pair of components is turned at each position: fast for the first pairs, slow for the last."
        aliases "model.rotary_emb output 0" "" "" ""
    RopeSin "rope_sin" Start [Token, Pair] "rope_table" from [Positions] with [] runs Runs::Alone;
        formula "rope_sin[t, i] = sin(({start} + t) · {theta}^(−2i/{C}))   i = 0 … {half} − 1, after RoPE scaling"
        purpose "The sines that go with rope_cos."
        aliases "model.rotary_emb output 1" "" "" ""
    Mask "mask" Start [Token, Key] "mask" from [Positions] with [] runs Runs::Derived, rule Copied, only Hiding;
        formula "mask[t, k] = 0 where k ≤ {start} + t{window}, else −inf"
        purpose "Keeps a token from looking at tokens that come after it, and at those that have left its window where layers have one. Absent when nothing is hidden: the pass has one token, and no window is full."
        aliases "" "" "attn_inp_kq_mask" "mask"

    AttnNorm "attn_norm" Layer [Token, Dim] "rms_norm" from [LayerInput]
        with [weight("attention_norm", &[A::Dim])] runs Runs::Alone;
        formula "attn_norm[t, d] = x[t, d] / √(Σ x[t, :]² / {D} + {eps}) · attention_norm[d]"
        purpose "Brings every token's vector to the same root mean square, so that attention sees directions and not lengths."
        aliases "input_layernorm" "ln1.hook_normalized × weight" "attn_norm-L" "normalizedX"
    AttnNormQ8 "attn_norm_q8" Layer [Token, Dim] "quantize" from [of(Stage::AttnNorm)] with [] runs Runs::Derived, rule Quantized, only Int8;
        formula "attn_norm_q8 = attn_norm / scale, rounded to whole numbers, halves away from zero: −127 … 127; a group of {g} shares one scale"
        purpose "What the next product reads: int8 values, so that it multiplies whole numbers and reads a quarter of the bytes."
        aliases "" "" "" ""
    AttnNormScale "attn_norm_scale" Layer [Token, DimGroup] "quantize" from [of(Stage::AttnNorm)] with [] runs Runs::Alone, rule Quantized, only Int8;
        formula "attn_norm_scale[t, j] = max |attn_norm| of group j / 127   ({g} values a group along the {D} components, the last may have fewer)"
        purpose "What 1 stands for in each group: a value is its int8 times its group's scale, to within half of that scale."
        aliases "" "" "" ""
    Xq "xq" Layer [Token, Head, HeadDim] "matmul" from [of(Stage::AttnNormQ8), of(Stage::AttnNormScale)]
        with [weight("wq", &[A::HeadsMerged, A::Dim]), bias("bq", &[A::HeadsMerged], When::QkvBias)] runs Runs::Alone;
        formula "xq[t, h, c] = Σ_d attn_norm[t, d] · wq[h·{C} + c, d]   ({D} terms)"
        purpose "The queries: what each token looks for, one vector of {C} for each of {H} heads."
        aliases "self_attn.q_proj" "attn.hook_q" "Qcur-L (before RoPE)" "xq"
    Xk "xk" Layer [Token, KvHead, HeadDim] "matmul" from [of(Stage::AttnNormQ8), of(Stage::AttnNormScale)]
        with [weight("wk", &[A::KvHeadsMerged, A::Dim]), bias("bk", &[A::KvHeadsMerged], When::QkvBias)] runs Runs::Alone;
        formula "xk[t, g, c] = Σ_d attn_norm[t, d] · wk[g·{C} + c, d]   ({D} terms)"
        purpose "The keys: what each token offers to be found by, one vector of {C} for each of {G} key/value heads."
        aliases "self_attn.k_proj" "attn.hook_k" "Kcur-L (before RoPE)" "xk"
    Xv "xv" Layer [Token, KvHead, HeadDim] "matmul" from [of(Stage::AttnNormQ8), of(Stage::AttnNormScale)]
        with [weight("wv", &[A::KvHeadsMerged, A::Dim]), bias("bv", &[A::KvHeadsMerged], When::QkvBias)] runs Runs::Alone;
        formula "xv[t, g, c] = Σ_d attn_norm[t, d] · wv[g·{C} + c, d]   ({D} terms)"
        purpose "The values: what each token hands over to those that attend to it."
        aliases "self_attn.v_proj" "attn.hook_v" "Vcur-L" "xv"
    XqNorm "xq_norm" Layer [Token, Head, HeadDim] "rms_norm" from [of(Stage::Xq)]
        with [weight("q_norm", &[A::HeadDim])] runs Runs::Alone, only QkNorm;
        formula "xq_norm[t, h, c] = xq[t, h, c] / √(Σ xq[t, h, :]² / {C} + {eps}) · q_norm[c]"
        purpose "Brings every head's query to the same root mean square, so that no score grows just because a query is long. One weight serves all {H} heads."
        aliases "self_attn.q_norm" "attn.q_norm.hook_normalized × weight" "Qcur_normed-L" ""
    XkNorm "xk_norm" Layer [Token, KvHead, HeadDim] "rms_norm" from [of(Stage::Xk)]
        with [weight("k_norm", &[A::HeadDim])] runs Runs::Alone, only QkNorm;
        formula "xk_norm[t, g, c] = xk[t, g, c] / √(Σ xk[t, g, :]² / {C} + {eps}) · k_norm[c]"
        purpose "The same for the keys, with a weight of their own."
        aliases "self_attn.k_norm" "attn.k_norm.hook_normalized × weight" "Kcur_normed-L" ""
    XqRope "xq_rope" Layer [Token, Head, HeadDim] "rope"
        from [of(Stage::XqNorm), of(Stage::RopeCos), of(Stage::RopeSin)] with [] runs Runs::Alone;
        formula "(a, b) → (a·cos − b·sin, a·sin + b·cos) for each of the {half} pairs of every head, cos and sin of row t"
        purpose "Queries turned by their position, so that a query and a key meet at an angle that depends on their distance only."
        aliases "(apply_rotary_pos_emb)" "attn.hook_rot_q" "Qcur-L (after RoPE)" "xq"
    XkRope "xk_rope" Layer [Token, KvHead, HeadDim] "rope"
        from [of(Stage::XkNorm), of(Stage::RopeCos), of(Stage::RopeSin)] with [] runs Runs::Alone;
        formula "(a, b) → (a·cos − b·sin, a·sin + b·cos) for each of the {half} pairs of every head, cos and sin of row t"
        purpose "Keys turned by their position. They are cached turned, so this is done once for each token."
        aliases "(apply_rotary_pos_emb)" "attn.hook_rot_k" "Kcur-L (after RoPE)" "xk"
    CacheK "cache_k" Layer [Key, KvHead, HeadDim] "cache" from [of(Stage::XkRope)] with [] runs Runs::Alone;
        formula "cache_k[{start} + t, g, c] = xk_rope[t, g, c]; the {start} rows before are from earlier passes"
        purpose "All keys so far. A decode pass adds one row instead of computing the whole prompt again."
        aliases "past_key_values" "" "cache_k_lL" "CacheK"
    CacheV "cache_v" Layer [Key, KvHead, HeadDim] "cache" from [of(Stage::Xv)] with [] runs Runs::Alone;
        formula "cache_v[{start} + t, g, c] = xv[t, g, c]; the {start} rows before are from earlier passes"
        purpose "All values so far."
        aliases "past_key_values" "" "cache_v_lL" "CacheV"
    Keys "keys" Layer [Key, Head, HeadDim] "repeat_kv" from [of(Stage::CacheK)] with [] runs Runs::Derived, rule Copied;
        formula "keys[k, h, c] = cache_k[k, h / {group}, c]   (integer division)"
        purpose "Grouped-query attention: {H} query heads share {G} key heads, {group} to each."
        aliases "(repeat_kv)" "" "" "keys"
    Values "values" Layer [Key, Head, HeadDim] "repeat_kv" from [of(Stage::CacheV)] with [] runs Runs::Derived, rule Copied;
        formula "values[k, h, c] = cache_v[k, h / {group}, c]   (integer division)"
        purpose "Grouped-query attention: {H} query heads share {G} value heads, {group} to each."
        aliases "(repeat_kv)" "" "" "values"
    Qk "qk" Layer [Head, Token, Key] "matmul" from [of(Stage::XqRope), of(Stage::Keys)] with [] runs Runs::Derived, rule Attention;
        formula "qk[h, t, k] = Σ_c xq_rope[t, h, c] · keys[k, h, c]   ({C} terms)"
        purpose "How well each query matches each key, head by head, as a raw dot product."
        aliases "" "" "kq-L" "xqMatMulKeys"
    Scores "scores" Layer [Head, Token, Key] "scale" from [of(Stage::Qk)] with [] runs Runs::Derived, rule Attention;
        formula "scores[h, t, k] = qk[h, t, k] / √{C}"
        purpose "The dot product of {C} terms brought back to the size of one term, so that softmax does not saturate."
        aliases "" "" "" "scores"
    MaskedScores "masked_scores" Layer [Head, Token, Key] "add" from [of(Stage::Scores), of(Stage::Mask)] with [] runs Runs::Derived, rule Attention, only Hiding;
        formula "masked_scores[h, t, k] = scores[h, t, k] + mask[t, k]"
        purpose "Hidden tokens become −inf, which softmax turns into exactly 0. Absent where mask is. A layer without a window adds the causal part of the mask only."
        aliases "" "attn.hook_attn_scores" "" "scores"
    Softmax "softmax" Layer [Head, Token, Key] "softmax" from [of(Stage::MaskedScores)] with [] runs Runs::Derived, rule Attention;
        formula "softmax[h, t, k] = e^(s[k] − max s) / Σ e^(s − max s)   over the {K} keys, s = masked_scores[h, t, :] (scores[h, t, :] where nothing is masked)"
        purpose "The attention weights: how token t divides its attention of 1 over the tokens it can see."
        aliases "self_attn output 1 (eager)" "attn.hook_pattern" "kq_soft_max-L" "scores"
    AttnHeads "attn_heads" Layer [Token, Head, HeadDim] "attention" from [of(Stage::Softmax), of(Stage::Values)] with [] runs Runs::Alone, rule Attention;
        formula "attn_heads[t, h, c] = Σ_k softmax[h, t, k] · values[k, h, c]   ({K} terms)"
        purpose "Each head's answer: the values it attended to, mixed by weight."
        aliases "input of self_attn.o_proj" "attn.hook_z" "kqv-L" "output"
    AttnHeadsQ8 "attn_heads_q8" Layer [Token, Head, HeadDim] "quantize" from [of(Stage::AttnHeads)] with [] runs Runs::Derived, rule Quantized, only Int8;
        formula "attn_heads_q8 = attn_heads / scale, rounded to whole numbers, halves away from zero: −127 … 127; a group of {g} shares one scale"
        purpose "What the next product reads: int8 values, so that it multiplies whole numbers and reads a quarter of the bytes."
        aliases "" "" "" ""
    AttnHeadsScale "attn_heads_scale" Layer [Token, HeadsGroup] "quantize" from [of(Stage::AttnHeads)] with [] runs Runs::Alone, rule Quantized, only Int8;
        formula "attn_heads_scale[t, j] = max |attn_heads| of group j / 127   ({g} values a group along the {HC} components of all heads side by side, the last may have fewer)"
        purpose "What 1 stands for in each group: a value is its int8 times its group's scale, to within half of that scale."
        aliases "" "" "" ""
    AttnOutput "attn_output" Layer [Token, Dim] "matmul" from [of(Stage::AttnHeadsQ8), of(Stage::AttnHeadsScale)]
        with [weight("wo", &[A::Dim, A::HeadsMerged]), bias("bo", &[A::Dim], When::OutputBias)] runs Runs::Alone;
        formula "attn_output[t, d] = Σ_m attn_heads[t, m] · wo[d, m]   (all heads side by side, {HC} terms)"
        purpose "The heads' answers together, written back in the language of the residual stream."
        aliases "self_attn.o_proj" "hook_attn_out" "attn_out-L (llama graphs)" "output"
    AttnResidual "attn_residual" Layer [Token, Dim] "add" from [LayerInput, of(Stage::AttnOutput)] with [] runs Runs::Alone, rule Add;
        formula "attn_residual[t, d] = x[t, d] + attn_output[t, d]"
        purpose "Attention adds to the stream; it does not replace it."
        aliases "input of post_attention_layernorm" "hook_resid_mid" "ffn_inp-L" "h"
    FfnNorm "ffn_norm" Layer [Token, Dim] "rms_norm" from [of(Stage::AttnResidual)]
        with [weight("ffn_norm", &[A::Dim])] runs Runs::Alone;
        formula "ffn_norm[t, d] = x[t, d] / √(Σ x[t, :]² / {D} + {eps}) · ffn_norm[d],   x = attn_residual"
        purpose "The same normalisation before the feed-forward network, with a weight of its own."
        aliases "post_attention_layernorm" "ln2.hook_normalized × weight" "ffn_norm-L" "normalizedH"
    FfnNormQ8 "ffn_norm_q8" Layer [Token, Dim] "quantize" from [of(Stage::FfnNorm)] with [] runs Runs::Derived, rule Quantized, only Int8;
        formula "ffn_norm_q8 = ffn_norm / scale, rounded to whole numbers, halves away from zero: −127 … 127; a group of {g} shares one scale"
        purpose "What the next product reads: int8 values, so that it multiplies whole numbers and reads a quarter of the bytes."
        aliases "" "" "" ""
    FfnNormScale "ffn_norm_scale" Layer [Token, DimGroup] "quantize" from [of(Stage::FfnNorm)] with [] runs Runs::Alone, rule Quantized, only Int8;
        formula "ffn_norm_scale[t, j] = max |ffn_norm| of group j / 127   ({g} values a group along the {D} components, the last may have fewer)"
        purpose "What 1 stands for in each group: a value is its int8 times its group's scale, to within half of that scale."
        aliases "" "" "" ""
    FfnGate "ffn_gate" Layer [Token, Hidden] "matmul" from [of(Stage::FfnNormQ8), of(Stage::FfnNormScale)]
        with [weight("w1", &[A::Hidden, A::Dim]), bias("b1", &[A::Hidden], When::MlpBias)] runs Runs::Alone;
        formula "ffn_gate[t, f] = Σ_d ffn_norm[t, d] · w1[f, d]   ({D} terms)"
        purpose "For each of {F} units: how far its gate opens, before the activation."
        aliases "mlp.gate_proj" "mlp.hook_pre" "ffn_gate-L" "h"
    FfnSilu "ffn_silu" Layer [Token, Hidden] "silu" from [of(Stage::FfnGate)] with [] runs Runs::Alone, rule Silu;
        formula "ffn_silu[t, f] = g / (1 + e^−g),   g = ffn_gate[t, f]"
        purpose "A smooth gate: near 0 for negative g, near g for positive g."
        aliases "mlp.act_fn" "" "" "h"
    FfnUp "ffn_up" Layer [Token, Hidden] "matmul" from [of(Stage::FfnNormQ8), of(Stage::FfnNormScale)]
        with [weight("w3", &[A::Hidden, A::Dim]), bias("b3", &[A::Hidden], When::MlpBias)] runs Runs::Alone;
        formula "ffn_up[t, f] = Σ_d ffn_norm[t, d] · w3[f, d]   ({D} terms)"
        purpose "For each unit: the value that passes through its gate."
        aliases "mlp.up_proj" "mlp.hook_pre_linear" "ffn_up-L" "ffnUpX"
    FfnHidden "ffn_hidden" Layer [Token, Hidden] "mul" from [of(Stage::FfnSilu), of(Stage::FfnUp)] with [] runs Runs::Alone, rule Mul;
        formula "ffn_hidden[t, f] = ffn_silu[t, f] · ffn_up[t, f]"
        purpose "SwiGLU: value times gate, unit by unit."
        aliases "input of mlp.down_proj" "mlp.hook_post" "ffn_swiglu-L" "h"
    FfnHiddenQ8 "ffn_hidden_q8" Layer [Token, Hidden] "quantize" from [of(Stage::FfnHidden)] with [] runs Runs::Derived, rule Quantized, only Int8;
        formula "ffn_hidden_q8 = ffn_hidden / scale, rounded to whole numbers, halves away from zero: −127 … 127; a group of {g} shares one scale"
        purpose "What the next product reads: int8 values, so that it multiplies whole numbers and reads a quarter of the bytes."
        aliases "" "" "" ""
    FfnHiddenScale "ffn_hidden_scale" Layer [Token, HiddenGroup] "quantize" from [of(Stage::FfnHidden)] with [] runs Runs::Alone, rule Quantized, only Int8;
        formula "ffn_hidden_scale[t, j] = max |ffn_hidden| of group j / 127   ({g} values a group along the {F} units, the last may have fewer)"
        purpose "What 1 stands for in each group: a value is its int8 times its group's scale, to within half of that scale."
        aliases "" "" "" ""
    FfnDown "ffn_down" Layer [Token, Dim] "matmul" from [of(Stage::FfnHiddenQ8), of(Stage::FfnHiddenScale)]
        with [weight("w2", &[A::Dim, A::Hidden]), bias("b2", &[A::Dim], When::MlpBias)] runs Runs::Alone;
        formula "ffn_down[t, d] = Σ_f ffn_hidden[t, f] · w2[d, f]   ({F} terms)"
        purpose "The units' answers written back in the language of the residual stream."
        aliases "mlp.down_proj" "hook_mlp_out" "ffn_out-L" "ffnOutput"
    FfnResidual "ffn_residual" Layer [Token, Dim] "add" from [of(Stage::AttnResidual), of(Stage::FfnDown)] with [] runs Runs::Alone, rule Add;
        formula "ffn_residual[t, d] = attn_residual[t, d] + ffn_down[t, d]"
        purpose "What leaves the layer, and what the next one reads."
        aliases "(the layer's output)" "hook_resid_post" "l_out-L" "output"

    FinalNorm "final_norm" End [Token, Dim] "rms_norm" from [LayerInput]
        with [weight("norm", &[A::Dim])] runs Runs::Alone;
        formula "final_norm[t, d] = x[t, d] / √(Σ x[t, :]² / {D} + {eps}) · norm[d],   x = the last layer's ffn_residual"
        purpose "The last normalisation, before the vector is compared with the vocabulary."
        aliases "model.norm" "ln_final.hook_normalized × weight" "result_norm" "currentTensor"
    FinalNormQ8 "final_norm_q8" End [Token, Dim] "quantize" from [of(Stage::FinalNorm)] with [] runs Runs::Derived, rule Quantized, only Int8;
        formula "final_norm_q8 = final_norm / scale, rounded to whole numbers, halves away from zero: −127 … 127; a group of {g} shares one scale"
        purpose "What the next product reads: int8 values, so that it multiplies whole numbers and reads a quarter of the bytes."
        aliases "" "" "" ""
    FinalNormScale "final_norm_scale" End [Token, DimGroup] "quantize" from [of(Stage::FinalNorm)] with [] runs Runs::Alone, rule Quantized, only Int8;
        formula "final_norm_scale[t, j] = max |final_norm| of group j / 127   ({g} values a group along the {D} components, the last may have fewer)"
        purpose "What 1 stands for in each group: a value is its int8 times its group's scale, to within half of that scale."
        aliases "" "" "" ""
    Logits "logits" End [Token, Vocab] "matmul" from [of(Stage::FinalNormQ8), of(Stage::FinalNormScale)]
        with [weight("output", &[A::Vocab, A::Dim])] runs Runs::Alone;
        formula "logits[t, v] = Σ_d final_norm[t, d] · output[v, d]   ({D} terms)"
        purpose "One score for each of {V} tokens: how well it would continue the text after token t."
        aliases "lm_head" "(the returned logits)" "result_output" "output"

    Probs "probs" Sampler [Vocab] "softmax" from [of(Stage::Logits)] with [] runs Runs::Derived;
        formula "probs = softmax(logits[last, :] / temperature); at temperature 0 softmax(logits[last, :])"
        purpose "The scores after the last token as probabilities."
        aliases "" "" "" ""
    Nucleus "nucleus" Sampler [Vocab] "top_k_top_p" from [of(Stage::Probs)] with [] runs Runs::Derived;
        formula "probs of the k most likely tokens (exactly k: of equals the lower ids), divided by their sum; of those the shortest run of most likely ones whose sum reaches p, divided by its sum; 0 outside; at temperature 0, 1 at the largest"
        purpose "The tokens that may be drawn, and with what probability."
        aliases "" "" "" ""
    Sampled "sampled" Sampler [One] "sample" from [of(Stage::Nucleus)] with [] runs Runs::Alone;
        formula "the id drawn from nucleus; at temperature 0 the most likely one"
        purpose "The next token: printed, and read by the next pass."
        aliases "" "" "" ""
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

    /// Whether every layer has one.
    pub fn in_layer(self) -> bool {
        self.info().section == Section::Layer
    }

    /// Whether its values are ids (int64) and not numbers (float32).
    pub fn is_ids(self) -> bool {
        matches!(self, Self::Tokens | Self::Sampled)
    }

    /// Whether its values are int8: quantised activations.
    pub fn is_int8(self) -> bool {
        matches!(
            self,
            Self::AttnNormQ8 | Self::AttnHeadsQ8 | Self::FfnNormQ8 | Self::FfnHiddenQ8 | Self::FinalNormQ8
        )
    }

    /// Whether its values are the scales of int8 values.
    pub fn is_scale(self) -> bool {
        matches!(
            self,
            Self::AttnNormScale
                | Self::AttnHeadsScale
                | Self::FfnNormScale
                | Self::FfnHiddenScale
                | Self::FinalNormScale
        )
    }

    /// Bytes that one of its values takes.
    pub fn value_bytes(self) -> usize {
        match self {
            _ if self.is_ids() => 8,
            _ if self.is_int8() => 1,
            _ => 4,
        }
    }

    /// Whether it exists in pass `dims` of a model of `sizes`, as its row says.
    ///
    /// The `mask` of a pass is that of the layers with a window, where there are any. In a model where only
    /// some have one (Qwen's `max_window_layers`), the others hide less: their own `masked_scores` show it.
    pub fn present(self, sizes: &Sizes, dims: PassDims) -> bool {
        match self.info().exists {
            Exists::Always => true,
            Exists::Hiding => sizes.hides(dims),
            Exists::QkNorm => sizes.qk_norm,
            Exists::Int8 => sizes.group.is_some(),
        }
    }

    /// Why it does not exist in pass `dims` of `card`'s model; none where it does. `name` is what the user
    /// called it: its own name, or that of a view of it.
    pub fn absence(self, name: &str, card: &ModelCard, dims: PassDims) -> Option<Absence> {
        if self.present(&card.sizes, dims) {
            return None;
        }
        Some(match self.info().exists {
            Exists::Always => return None,
            Exists::Hiding => Absence {
                what: format!("pass {} has no {name}", dims.pass),
                why: format!("it reads {} token, and nothing is hidden from it", dims.tokens),
                expected: "a pass that reads several tokens: from one alone nothing is hidden",
                found: format!("{} token", dims.tokens),
                next: "use --stage softmax",
            },
            Exists::QkNorm => Absence {
                what: format!("the model has no {name}"),
                why: "it does not normalise queries and keys".to_owned(),
                expected: "a family that normalises queries and keys, as Qwen3 does",
                found: card.name.clone(),
                next: "use --stage xq or --stage xk",
            },
            Exists::Int8 => Absence {
                what: format!("this run has no {name}"),
                why: format!("it computes in {}; where products are in int8 there is one", card.precision),
                expected: "a run whose products are in int8",
                found: format!("a run in {}", card.precision),
                next: "add --precision q8",
            },
        })
    }

    /// What it reads in pass `dims`, besides weights: stages that are absent there are replaced by the ones
    /// before them. Where nothing is masked, softmax reads the scores; where nothing is normalised, RoPE the
    /// projections; where nothing is quantised, a product the activations themselves.
    pub fn inputs(self, sizes: &Sizes, dims: PassDims) -> Vec<Input> {
        let mut inputs: Vec<Input> = (self.info().inputs.iter())
            .map(|input| match *input {
                Input::Stage(stage) => Input::Stage(stage.or_before(sizes, dims)),
                other => other,
            })
            .collect();
        inputs.dedup();
        inputs
    }

    /// Itself, or where it is absent the stage before it.
    fn or_before(self, sizes: &Sizes, dims: PassDims) -> Self {
        match self {
            _ if self.present(sizes, dims) => self,
            Self::MaskedScores => Self::Scores,
            Self::XqNorm => Self::Xq,
            Self::XkNorm => Self::Xk,
            Self::AttnNormQ8 | Self::AttnNormScale => Self::AttnNorm,
            Self::AttnHeadsQ8 | Self::AttnHeadsScale => Self::AttnHeads,
            Self::FfnNormQ8 | Self::FfnNormScale => Self::FfnNorm,
            Self::FfnHiddenQ8 | Self::FfnHiddenScale => Self::FfnHidden,
            Self::FinalNormQ8 | Self::FinalNormScale => Self::FinalNorm,
            _ => self,
        }
    }

    /// The stage with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|stage| stage.name() == name)
    }

    /// The weights that it reads in this model, biases only where the model has them.
    pub fn weights(self, card: &ModelCard) -> impl Iterator<Item = &'static WeightUse> {
        let (qkv, output, mlp) = (card.qkv_bias, card.output_bias, card.mlp_bias);
        self.info().weights.iter().filter(move |weight| match weight.when {
            When::Always => true,
            When::QkvBias => qkv,
            When::OutputBias => output,
            When::MlpBias => mlp,
        })
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A reshape or a transpose: a step of the pass whose values are its source's, seen in another shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum View {
    /// Queries cut into heads: (T, H·C) → (T, H, C).
    XqHeads,
    /// Keys cut into heads: (T, G·C) → (T, G, C).
    XkHeads,
    /// Values cut into heads: (T, G·C) → (T, G, C).
    XvHeads,
    /// Queries head first: (T, H, C) → (H, T, C).
    QueriesT,
    /// Keys head first and transposed: (K, H, C) → (H, C, K).
    KeysT,
    /// Values head first: (K, H, C) → (H, K, C).
    ValuesT,
    /// Heads side by side again: (T, H, C) → (T, H·C).
    AttnMerged,
}

impl View {
    /// Every view, in the order of the pass.
    pub const ALL: &[Self] = &[
        Self::XqHeads,
        Self::XkHeads,
        Self::XvHeads,
        Self::QueriesT,
        Self::KeysT,
        Self::ValuesT,
        Self::AttnMerged,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::XqHeads => "xq_heads",
            Self::XkHeads => "xk_heads",
            Self::XvHeads => "xv_heads",
            Self::QueriesT => "queries_t",
            Self::KeysT => "keys_t",
            Self::ValuesT => "values_t",
            Self::AttnMerged => "attn_merged",
        }
    }

    /// The stage that holds its values.
    pub fn source(self) -> Stage {
        match self {
            Self::XqHeads => Stage::Xq,
            Self::XkHeads => Stage::Xk,
            Self::XvHeads => Stage::Xv,
            Self::QueriesT => Stage::XqRope,
            Self::KeysT => Stage::Keys,
            Self::ValuesT => Stage::Values,
            Self::AttnMerged => Stage::AttnHeads,
        }
    }

    /// The axes that go in.
    pub fn axes_in(self) -> &'static [Axis] {
        match self {
            Self::XqHeads => &[A::Token, A::HeadsMerged],
            Self::XkHeads | Self::XvHeads => &[A::Token, A::KvHeadsMerged],
            _ => self.source().axes(),
        }
    }

    /// The axes that come out.
    pub fn axes(self) -> &'static [Axis] {
        match self {
            Self::XqHeads | Self::XkHeads | Self::XvHeads => self.source().axes(),
            Self::QueriesT => &[A::Head, A::Token, A::HeadDim],
            Self::KeysT => &[A::Head, A::HeadDim, A::Key],
            Self::ValuesT => &[A::Head, A::Key, A::HeadDim],
            Self::AttnMerged => &[A::Token, A::HeadsMerged],
        }
    }

    /// "reshape" or "transpose".
    pub fn op(self) -> &'static str {
        match self {
            Self::QueriesT | Self::KeysT | Self::ValuesT => "transpose",
            _ => "reshape",
        }
    }

    /// Its definition as an equation.
    pub fn formula(self) -> &'static str {
        match self {
            Self::XqHeads => "xq_heads[t, h, c] = (attn_norm · wqᵀ)[t, h·{C} + c]",
            Self::XkHeads => "xk_heads[t, g, c] = (attn_norm · wkᵀ)[t, g·{C} + c]",
            Self::XvHeads => "xv_heads[t, g, c] = (attn_norm · wvᵀ)[t, g·{C} + c]",
            Self::QueriesT => "queries_t[h, t, c] = xq_rope[t, h, c]",
            Self::KeysT => "keys_t[h, c, k] = keys[k, h, c]",
            Self::ValuesT => "values_t[h, k, c] = values[k, h, c]",
            Self::AttnMerged => "attn_merged[t, h·{C} + c] = attn_heads[t, h, c]",
        }
    }

    /// What it is for, in a sentence.
    pub fn purpose(self) -> &'static str {
        match self {
            Self::XqHeads => "One row of {HC} numbers is read as {H} heads of {C}; no number moves.",
            Self::XkHeads | Self::XvHeads => {
                "One row of {GC} numbers is read as {G} heads of {C}; no number moves."
            }
            Self::QueriesT => "Heads go first, so that each head is a (T, C) matrix of its own.",
            Self::KeysT => {
                "Each head's keys as a (C, K) matrix: the right side of the product with the queries."
            }
            Self::ValuesT => {
                "Each head's values as a (K, C) matrix: the right side of the product with the weights."
            }
            Self::AttnMerged => "The {H} heads of {C} are read as one row of {HC} numbers again.",
        }
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One step of the pass as a user walks through it: a stage, or a view of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// A stage with values of its own.
    Stage(Stage),
    /// A view of a stage's values.
    View(View),
}

impl Step {
    /// All steps of one section, in order; the views stand where they happen.
    pub fn in_section(section: Section) -> impl Iterator<Item = Self> {
        Stage::ALL.iter().filter(move |stage| stage.info().section == section).flat_map(|&stage| {
            let (before, after): (&[View], &[View]) = match stage {
                Stage::Xq => (&[], &[View::XqHeads]),
                Stage::Xk => (&[], &[View::XkHeads]),
                Stage::Xv => (&[], &[View::XvHeads]),
                Stage::Qk => (&[View::QueriesT, View::KeysT], &[]),
                Stage::AttnHeads => (&[View::ValuesT], &[View::AttnMerged]),
                _ => (&[], &[]),
            };
            let views = |views: &'static [View]| views.iter().map(|&view| Self::View(view));
            views(before).chain([Self::Stage(stage)]).chain(views(after))
        })
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
    pub fn axes(self) -> &'static [Axis] {
        match self {
            Self::Stage(stage) => stage.axes(),
            Self::View(view) => view.axes(),
        }
    }

    /// Its operation in one word.
    pub fn op(self) -> &'static str {
        match self {
            Self::Stage(stage) => stage.info().op,
            Self::View(view) => view.op(),
        }
    }

    /// Its formula, with marks for [`ModelCard::fill`].
    pub fn formula(self) -> &'static str {
        match self {
            Self::Stage(stage) => stage.info().formula,
            Self::View(view) => view.formula(),
        }
    }

    /// What it is for, with marks for [`ModelCard::fill`].
    pub fn purpose(self) -> &'static str {
        match self {
            Self::Stage(stage) => stage.info().purpose,
            Self::View(view) => view.purpose(),
        }
    }

    /// Whether its values have a vocabulary as their last axis.
    pub fn over_vocabulary(self) -> bool {
        self.axes().last() == Some(&Axis::Vocab)
    }

    /// The step with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        let view = View::ALL.iter().copied().find(|view| view.name() == name).map(Self::View);
        view.or_else(|| Stage::from_name(name).map(Self::Stage))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_finds_its_step_and_no_name_stands_twice() {
        let mut names = Vec::new();
        for section in [Section::Start, Section::Layer, Section::End, Section::Sampler] {
            for step in Step::in_section(section) {
                assert_eq!(Step::from_name(step.name()), Some(step));
                names.push(step.name());
            }
        }
        assert_eq!(names.len(), Stage::ALL.len() + View::ALL.len());
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Stage::ALL.len() + View::ALL.len());
    }

    #[test]
    fn rows_stand_at_their_stage_and_read_only_earlier_ones() {
        for &stage in Stage::ALL {
            assert_eq!(stage.info().stage, stage);
            for input in stage.info().inputs {
                if let Input::Stage(input) = input {
                    assert!(*input < stage, "{stage} reads {input}");
                }
            }
        }
    }

    #[test]
    fn masks_exist_only_where_a_key_is_hidden() {
        let decode = PassDims { pass: 1, start: 5, tokens: 1 };
        let prefill = PassDims { pass: 0, start: 0, tokens: 5 };
        let mut sizes = Sizes {
            layers: 2,
            dim: 8,
            heads: 2,
            kv_heads: 1,
            head_dim: 4,
            hidden: 8,
            vocab: 10,
            qk_norm: false,
            window: None,
            window_from: 0,
            group: None,
        };
        for window in [None, Some(6)] {
            sizes.window = window;
            assert!(!Stage::Mask.present(&sizes, decode) && !Stage::MaskedScores.present(&sizes, decode));
            assert!(Stage::Mask.present(&sizes, prefill) && Stage::Softmax.present(&sizes, decode));
        }
        sizes.window = Some(5);
        assert!(Stage::Mask.present(&sizes, decode), "the first of the 6 keys has left the window");
    }
}
