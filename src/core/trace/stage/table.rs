//! The table: a row for each stage, in the order of the pass. Its columns are explained at [`StageInfo`].

use super::super::axis::Axis as A;
use super::Input::{self, LayerInput, Positions};
use super::{Aliases, Exists, Op, Rounded, Runs, Section, StageInfo, Unit, WeightUse, When};

/// The value of an optional column; `None` if the row gives none.
const fn first<T: Copy>(column: &[T]) -> Option<T> {
    match column {
        [value, ..] => Some(*value),
        [] => None,
    }
}

/// The condition of a stage; [`Exists::Always`] if the row gives none.
const fn exists(only: &[Exists]) -> Exists {
    match only {
        [exists, ..] => *exists,
        [] => Exists::Always,
    }
}

const fn weight(name: &'static str, axes: &'static [A]) -> WeightUse {
    WeightUse { name, axes, when: When::Always }
}

const fn if_has(name: &'static str, axes: &'static [A], when: When) -> WeightUse {
    WeightUse { name, axes, when }
}

const fn bias(name: &'static str, axes: &'static [A], when: When) -> WeightUse {
    WeightUse { name, axes, when }
}

const fn of(stage: Stage) -> Input {
    Input::Stage(stage)
}

macro_rules! stages {
    ($( $stage:ident $name:literal $section:ident [$($axis:ident),*] $op:ident
        from [$($input:expr),*] with [$($weight:expr),*]
        unit $unit:ident, rounded $rounded:ident, runs $runs:ident
        $(, derived from [$($of:expr),*])? $(, only $exists:ident $(else $before:ident)?)?;
        formula $formula:literal
        purpose $purpose:literal
        aliases $hf:literal $tl:literal $cpp:literal $go:literal )*) => {
        /// A named tensor of the forward pass, in the order of the pass.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Stage {
            $( #[doc = concat!("`", $name, "`: ", $purpose)] $stage, )*
        }

        /// The table, in the order of [`Stage`].
        pub(super) static TABLE: &[StageInfo] = &[$(
            StageInfo {
                stage: Stage::$stage,
                name: $name,
                section: Section::$section,
                axes: &[$(A::$axis),*],
                op: Op::$op,
                inputs: &[$($input),*],
                weights: &[$($weight),*],
                formula: $formula,
                purpose: $purpose,
                unit: Unit::$unit,
                rounded: Rounded::$rounded,
                runs: Runs::$runs,
                derived_from: first(&[$(&[$($of),*] as &[Input])?]),
                exists: exists(&[$(Exists::$exists)?]),
                instead: first(&[$($(Stage::$before)?)?]),
                aliases: Aliases { hugging_face: $hf, transformer_lens: $tl, llama_cpp: $cpp, go: $go },
            },
        )*];

        impl Stage {
            /// Every stage, in the order of the pass.
            pub const ALL: &[Self] = &[$(Self::$stage),*];
        }
    };
}

stages! {
    Tokens "tokens" Start [Token] Input from [] with []
        unit Id, rounded Never, runs Given;
        formula "tokens[t] = the id of token t, a row number of the embedding table (0 … {V} − 1)"
        purpose "The ids that this pass reads: the whole prompt in the prefill, one token in each decode pass."
        aliases "" "" "inp_tokens" ""
    Embedding "embedding" Start [Token, Dim] Lookup from [of(Stage::Tokens)]
        with [weight("tok_embeddings", &[A::Vocab, A::Dim])]
        unit Plain, rounded Result, runs Alone;
        formula "embedding[t, :] = {embedding_scale}tok_embeddings[tokens[t], :]   ({D} numbers a token)"
        purpose "Each id becomes a learned vector, the start of its residual stream."
        aliases "model.embed_tokens" "hook_embed" "embd / inp_embd" "inputTensor"
    RopeCos "rope_cos" Start [Token, Pair] RopeTable from [Positions] with []
        unit Cosine, rounded Result, runs Derived, only SharedRope;
        formula "rope_cos[t, i] = cos(({start} + t) · {theta}^(−2i/{R}))   i = 0 … {half} − 1{scaled}"
        purpose "The cosine of the angle by which each pair of components is rotated at each position. The first pairs rotate fast, the last slowly."
        aliases "model.rotary_emb output 0" "" "" ""
    RopeSin "rope_sin" Start [Token, Pair] RopeTable from [Positions] with []
        unit Sine, rounded Result, runs Alone, only SharedRope;
        formula "rope_sin[t, i] = sin(({start} + t) · {theta}^(−2i/{R}))   i = 0 … {half} − 1{scaled}"
        purpose "The sines of the same angles as in rope_cos."
        aliases "model.rotary_emb output 1" "" "" ""
    Mask "mask" Start [Token, Key] Mask from [Positions] with []
        unit Hiding, rounded Never, runs Derived, derived from [], only Hiding;
        formula "mask[t, k] = 0 where k ≤ {start} + t{window}, else −inf"
        purpose "Keeps a token from looking at tokens that come after it, and at those that have left its window, if the layer has one. Absent when nothing is hidden: the pass has one token, and no window is full."
        aliases "" "" "attn_inp_kq_mask" "mask"

    AttnNorm "attn_norm" Layer [Token, Dim] RmsNorm from [LayerInput]
        with [if_has("attention_norm", &[A::Dim], When::NormWeight), bias("attention_norm_bias", &[A::Dim], When::NormBias)]
        unit Plain, rounded TwiceInNorm, runs Alone, only NormBefore;
        formula "attn_norm[t, d] = x[t, d] / √(Σ x[t, :]² / {D} + {eps}) · attention_norm[d]"
        purpose "Divides every token's vector by its root mean square, so that attention sees directions and not lengths. The learned weight then scales each component, so the vectors shown differ in size again."
        aliases "input_layernorm" "ln1.hook_normalized × weight" "attn_norm-L" "normalizedX"
    AttnNormQ8 "attn_norm_q8" Layer [Token, Dim] Quantize from [of(Stage::AttnNorm)] with []
        unit Steps, rounded Never, runs Derived, derived from [of(Stage::AttnNorm)], only Int8 else AttnNorm;
        formula "attn_norm_q8 = {attn_input} / scale, rounded to whole numbers, halves away from zero: −127 … 127; a group of {g} shares one scale"
        purpose "The int8 input of the next product, which then multiplies whole numbers and reads a quarter of the bytes."
        aliases "" "" "" ""
    AttnNormScale "attn_norm_scale" Layer [Token, DimGroup] Quantize from [of(Stage::AttnNorm)] with []
        unit Step, rounded Never, runs Alone, derived from [of(Stage::AttnNorm)], only Int8 else AttnNorm;
        formula "attn_norm_scale[t, j] = max |{attn_input}| of group j / 127   ({g} values a group along the {D} components, the last may have fewer)"
        purpose "The scale of each group: a value is its int8 value times the scale, with an error of at most half a scale."
        aliases "" "" "" ""
    Xq "xq" Layer [Token, Head, HeadDim] Linear from [of(Stage::AttnNormQ8), of(Stage::AttnNormScale)]
        with [weight("wq", &[A::HeadsMerged, A::Dim]), bias("bq", &[A::HeadsMerged], When::QkvBias)]
        unit Plain, rounded Result, runs Alone;
        formula "xq[t, h, c] = Σ_d {attn_input}[t, d] · wq[h·{C} + c, d]   ({D} terms)"
        purpose "The queries: what each token looks for, one vector of {C} for each of {H} heads."
        aliases "self_attn.q_proj" "attn.hook_q" "Qcur-L (before RoPE)" "xq"
    Xk "xk" Layer [Token, KvHead, HeadDim] Linear from [of(Stage::AttnNormQ8), of(Stage::AttnNormScale)]
        with [weight("wk", &[A::KvHeadsMerged, A::Dim]), bias("bk", &[A::KvHeadsMerged], When::QkvBias)]
        unit Plain, rounded Result, runs Alone;
        formula "xk[t, g, c] = Σ_d {attn_input}[t, d] · wk[g·{C} + c, d]   ({D} terms)"
        purpose "The keys: what each token can be found by, one vector of {C} for each of {G} key/value heads."
        aliases "self_attn.k_proj" "attn.hook_k" "Kcur-L (before RoPE)" "xk"
    Xv "xv" Layer [Token, KvHead, HeadDim] Linear from [of(Stage::AttnNormQ8), of(Stage::AttnNormScale)]
        with [weight("wv", &[A::KvHeadsMerged, A::Dim]), bias("bv", &[A::KvHeadsMerged], When::QkvBias)]
        unit Plain, rounded Result, runs Alone;
        formula "xv[t, g, c] = Σ_d {attn_input}[t, d] · wv[g·{C} + c, d]   ({D} terms)"
        purpose "The values: what each token hands over to the tokens that attend to it."
        aliases "self_attn.v_proj" "attn.hook_v" "Vcur-L" "xv"
    XqNorm "xq_norm" Layer [Token, Head, HeadDim] RmsNorm from [of(Stage::Xq)]
        with [if_has("q_norm", &[A::HeadDim], When::HeadWeight), if_has("q_norm", &[A::HeadsMerged], When::HeadsWeight)]
        unit Plain, rounded TwiceInNorm, runs Alone, only QkNorm else Xq;
        formula "xq_norm[t, h, c] = xq[t, h, c] / √(Σ xq[t, {row}, :]² / {q_row} + {eps}) · q_norm[{q_at}]"
        purpose "Divides every head's query by its root mean square, so that no score grows just because a query is long. The learned weight then scales each component; one weight serves all {H} heads."
        aliases "self_attn.q_norm" "attn.q_norm.hook_normalized × weight" "Qcur_normed-L" ""
    XkNorm "xk_norm" Layer [Token, KvHead, HeadDim] RmsNorm from [of(Stage::Xk)]
        with [if_has("k_norm", &[A::HeadDim], When::HeadWeight), if_has("k_norm", &[A::KvHeadsMerged], When::HeadsWeight)]
        unit Plain, rounded TwiceInNorm, runs Alone, only QkNorm else Xk;
        formula "xk_norm[t, g, c] = xk[t, g, c] / √(Σ xk[t, {kv_row}, :]² / {k_row} + {eps}) · k_norm[{k_at}]"
        purpose "Does for the keys what xq_norm does for the queries, with a weight of its own."
        aliases "self_attn.k_norm" "attn.k_norm.hook_normalized × weight" "Kcur_normed-L" ""
    LayerRopeCos "rope_cos" Layer [Token, Pair] RopeTable from [Positions] with []
        unit Cosine, rounded Result, runs Derived, only LayerRope;
        formula "rope_cos[t, i] = cos(({start} + t) · {theta}^(−2i/{R}))   i = 0 … {half} − 1{scaled}"
        purpose "The cosine of the angle by which each pair of components is rotated at each position. The layers with a window have a θ or a scaling of their own, so each layer has its table."
        aliases "model.rotary_emb output 0" "" "" ""
    LayerRopeSin "rope_sin" Layer [Token, Pair] RopeTable from [Positions] with []
        unit Sine, rounded Result, runs Alone, only LayerRope;
        formula "rope_sin[t, i] = sin(({start} + t) · {theta}^(−2i/{R}))   i = 0 … {half} − 1{scaled}"
        purpose "The sines of the same angles as in rope_cos."
        aliases "model.rotary_emb output 1" "" "" ""
    XqRope "xq_rope" Layer [Token, Head, HeadDim] Rope from [of(Stage::XqNorm), of(Stage::RopeCos), of(Stage::RopeSin)]
        with []
        unit Plain, rounded ProductsAndSum, runs Alone, only Rope else XqNorm;
        formula "(a, b) → (a·cos − b·sin, a·sin + b·cos) for each of the {half} pairs of every head, cos and sin of row t{rest}{query_scale}"
        purpose "Queries rotated by their position. The product of a query and a key then depends on their positions only through the distance."
        aliases "(apply_rotary_pos_emb)" "attn.hook_rot_q" "Qcur-L (after RoPE)" "xq"
    XkRope "xk_rope" Layer [Token, KvHead, HeadDim] Rope from [of(Stage::XkNorm), of(Stage::RopeCos), of(Stage::RopeSin)]
        with []
        unit Plain, rounded ProductsAndSum, runs Alone, only Rope else XkNorm;
        formula "(a, b) → (a·cos − b·sin, a·sin + b·cos) for each of the {half} pairs of every head, cos and sin of row t{rest}"
        purpose "Keys rotated by their position. The cache keeps them rotated, so this is done once for each token."
        aliases "(apply_rotary_pos_emb)" "attn.hook_rot_k" "Kcur-L (after RoPE)" "xk"
    XqRopeNorm "xq_norm" Layer [Token, Head, HeadDim] RmsNorm from [of(Stage::XqRope)]
        with [if_has("q_norm", &[A::HeadDim], When::HeadWeight), if_has("q_norm", &[A::HeadsMerged], When::HeadsWeight)]
        unit Plain, rounded TwiceInNorm, runs Alone, only QkNormLast else XqRope;
        formula "xq_norm[t, h, c] = xq_rope[t, h, c] / √(Σ xq_rope[t, h, :]² / {C} + {eps}) · q_norm[c]"
        purpose "Divides every head's query by its root mean square after the rotation."
        aliases "self_attn.query_layernorm" "" "" ""
    XkRopeNorm "xk_norm" Layer [Token, KvHead, HeadDim] RmsNorm from [of(Stage::XkRope)]
        with [if_has("k_norm", &[A::HeadDim], When::HeadWeight), if_has("k_norm", &[A::KvHeadsMerged], When::HeadsWeight)]
        unit Plain, rounded TwiceInNorm, runs Alone, only QkNormLast else XkRope;
        formula "xk_norm[t, g, c] = xk_rope[t, g, c] / √(Σ xk_rope[t, g, :]² / {C} + {eps}) · k_norm[c]"
        purpose "Does for the keys what xq_norm does for the queries."
        aliases "self_attn.key_layernorm" "" "" ""
    CacheK "cache_k" Layer [Key, KvHead, HeadDim] Cache from [of(Stage::XkRopeNorm)] with []
        unit Plain, rounded Never, runs Alone;
        formula "cache_k[{start} + t, g, c] = {keys}[t, g, c]; the {start} rows before are from earlier passes"
        purpose "All keys so far. A decode pass adds one row instead of computing the whole prompt again."
        aliases "past_key_values" "" "cache_k_lL" "CacheK"
    CacheV "cache_v" Layer [Key, KvHead, HeadDim] Cache from [of(Stage::Xv)] with []
        unit Plain, rounded Never, runs Alone;
        formula "cache_v[{start} + t, g, c] = xv[t, g, c]; the {start} rows before are from earlier passes"
        purpose "All values so far."
        aliases "past_key_values" "" "cache_v_lL" "CacheV"
    Keys "keys" Layer [Key, Head, HeadDim] RepeatKv from [of(Stage::CacheK)] with []
        unit Plain, rounded Never, runs Derived, derived from [of(Stage::CacheK)];
        formula "keys[k, h, c] = cache_k[k, h / {group}, c]   (integer division)"
        purpose "Grouped-query attention: {H} query heads share {G} key heads, {group} to each."
        aliases "(repeat_kv)" "" "" "keys"
    Values "values" Layer [Key, Head, HeadDim] RepeatKv from [of(Stage::CacheV)] with []
        unit Plain, rounded Never, runs Derived, derived from [of(Stage::CacheV)];
        formula "values[k, h, c] = cache_v[k, h / {group}, c]   (integer division)"
        purpose "Grouped-query attention: {H} query heads share {G} value heads, {group} to each."
        aliases "(repeat_kv)" "" "" "values"
    Qk "qk" Layer [Head, Token, Key] QueryKey from [of(Stage::XqRopeNorm), of(Stage::Keys)] with []
        unit Dot, rounded Result, runs Derived, derived from [of(Stage::XqRopeNorm), of(Stage::CacheK)];
        formula "qk[h, t, k] = Σ_c {queries}[t, h, c] · keys[k, h, c]   ({C} terms)"
        purpose "How well each query matches each key, head by head, as a raw dot product."
        aliases "" "" "kq-L" "xqMatMulKeys"
    Scores "scores" Layer [Head, Token, Key] Scale from [of(Stage::Qk)] with []
        unit ScaledDot, rounded Result, runs Derived, derived from [of(Stage::Qk)];
        formula "scores[h, t, k] = qk[h, t, k]{scale}"
        purpose "The dot product of {C} terms brought back to the size of one term, so that softmax does not saturate."
        aliases "" "" "" "scores"
    CappedScores "capped_scores" Layer [Head, Token, Key] Cap from [of(Stage::Scores)] with []
        unit ScaledDot, rounded Result, runs Derived, derived from [of(Stage::Scores)], only ScoreCap else Scores;
        formula "capped_scores[h, t, k] = {score_cap} · tanh(scores[h, t, k] / {score_cap})"
        purpose "A soft cap: no score can be larger than the cap, and small scores stay nearly the same."
        aliases "" "" "" ""
    MaskedScores "masked_scores" Layer [Head, Token, Key] AddMask from [of(Stage::CappedScores), of(Stage::Mask)]
        with []
        unit ScaledDot, rounded Never, runs Derived, derived from [of(Stage::CappedScores)], only Hiding else CappedScores;
        formula "masked_scores[h, t, k] = {scores}[h, t, k] + mask[t, k]"
        purpose "Hidden tokens become −inf, which softmax turns into exactly 0. Absent if mask is absent. A layer without a window adds only the causal part of the mask."
        aliases "" "attn.hook_attn_scores" "" "scores"
    Softmax "softmax" Layer [Head, Token, Key] Softmax from [of(Stage::MaskedScores)] with []
        unit Share, rounded Result, runs Derived, derived from [of(Stage::CappedScores)];
        formula "softmax[h, t, k] = e^(s[k] − max s) / Σ e^(s − max s)   over the {K} keys, s = masked_scores[h, t, :] ({scores}[h, t, :] where nothing is masked)"
        purpose "The attention weights: how token t divides its attention of 1 over the tokens it can see."
        aliases "self_attn output 1 (eager)" "attn.hook_pattern" "kq_soft_max-L" "scores"
    AttnHeads "attn_heads" Layer [Token, Head, HeadDim] Mix from [of(Stage::Softmax), of(Stage::Values)]
        with []
        unit Plain, rounded Result, runs Alone, derived from [of(Stage::Softmax), of(Stage::CacheV)];
        formula "attn_heads[t, h, c] = Σ_k softmax[h, t, k] · values[k, h, c]   (a term for each key that token t sees, {K} at most)"
        purpose "The output of each head: the sum of the values, weighted by attention."
        aliases "input of self_attn.o_proj" "attn.hook_z" "kqv-L" "output"
    AttnHeadsQ8 "attn_heads_q8" Layer [Token, Head, HeadDim] Quantize from [of(Stage::AttnHeads)] with []
        unit Steps, rounded Never, runs Derived, derived from [of(Stage::AttnHeads)], only Int8 else AttnHeads;
        formula "attn_heads_q8 = attn_heads / scale, rounded to whole numbers, halves away from zero: −127 … 127; a group of {g} shares one scale"
        purpose "The int8 input of the next product, which then multiplies whole numbers and reads a quarter of the bytes."
        aliases "" "" "" ""
    AttnHeadsScale "attn_heads_scale" Layer [Token, HeadsGroup] Quantize from [of(Stage::AttnHeads)] with []
        unit Step, rounded Never, runs Alone, derived from [of(Stage::AttnHeads)], only Int8 else AttnHeads;
        formula "attn_heads_scale[t, j] = max |attn_heads| of group j / 127   ({g} values a group along the {HC} components of all heads side by side, the last may have fewer)"
        purpose "The scale of each group: a value is its int8 value times the scale, with an error of at most half a scale."
        aliases "" "" "" ""
    AttnOutput "attn_output" Layer [Token, Dim] Linear from [of(Stage::AttnHeadsQ8), of(Stage::AttnHeadsScale)]
        with [weight("wo", &[A::Dim, A::HeadsMerged]), bias("bo", &[A::Dim], When::OutputBias)]
        unit Plain, rounded Result, runs Alone;
        formula "attn_output[t, d] = Σ_m attn_heads[t, m] · wo[d, m]   (all heads side by side, {HC} terms)"
        purpose "The outputs of all heads together, projected back to the residual stream."
        aliases "self_attn.o_proj" "hook_attn_out" "attn_out-L (llama graphs)" "output"
    PostAttnNorm "post_attn_norm" Layer [Token, Dim] RmsNorm from [of(Stage::AttnOutput)]
        with [if_has("attention_post_norm", &[A::Dim], When::NormWeight)]
        unit Plain, rounded TwiceInNorm, runs Alone, only NormAfter else AttnOutput;
        formula "post_attn_norm[t, d] = attn_output[t, d] / √(Σ attn_output[t, :]² / {D} + {eps}) · attention_post_norm[d]"
        purpose "A norm after attention: what attention adds to the stream has a learned size."
        aliases "post_attention_layernorm" "ln1_post.hook_normalized × weight" "attn_post_norm-L" ""
    AttnResidual "attn_residual" Layer [Token, Dim] Add from [LayerInput, of(Stage::PostAttnNorm)] with []
        unit Plain, rounded Result, runs Alone, derived from [LayerInput, of(Stage::PostAttnNorm)];
        formula "attn_residual[t, d] = x[t, d] + {residual}{attn_out}[t, d]"
        purpose "Attention adds to the stream; it does not replace it."
        aliases "input of post_attention_layernorm" "hook_resid_mid" "ffn_inp-L" "h"
    FfnNorm "ffn_norm" Layer [Token, Dim] RmsNorm from [of(Stage::AttnResidual)]
        with [if_has("ffn_norm", &[A::Dim], When::NormWeight), bias("ffn_norm_bias", &[A::Dim], When::NormBias)]
        unit Plain, rounded TwiceInNorm, runs Alone, only FfnNormBefore;
        formula "ffn_norm[t, d] = x[t, d] / √(Σ x[t, :]² / {D} + {eps}) · ffn_norm.weight[d],   x = attn_residual"
        purpose "The same normalisation as in attn_norm, before the feed-forward network and with its own weight."
        aliases "post_attention_layernorm" "ln2.hook_normalized × weight" "ffn_norm-L" "normalizedH"
    FfnNormQ8 "ffn_norm_q8" Layer [Token, Dim] Quantize from [of(Stage::FfnNorm)] with []
        unit Steps, rounded Never, runs Derived, derived from [of(Stage::FfnNorm)], only Int8 else FfnNorm;
        formula "ffn_norm_q8 = {ffn_input} / scale, rounded to whole numbers, halves away from zero: −127 … 127; a group of {g} shares one scale"
        purpose "The int8 input of the next product, which then multiplies whole numbers and reads a quarter of the bytes."
        aliases "" "" "" ""
    FfnNormScale "ffn_norm_scale" Layer [Token, DimGroup] Quantize from [of(Stage::FfnNorm)] with []
        unit Step, rounded Never, runs Alone, derived from [of(Stage::FfnNorm)], only Int8 else FfnNorm;
        formula "ffn_norm_scale[t, j] = max |{ffn_input}| of group j / 127   ({g} values a group along the {D} components, the last may have fewer)"
        purpose "The scale of each group: a value is its int8 value times the scale, with an error of at most half a scale."
        aliases "" "" "" ""
    FfnGate "ffn_gate" Layer [Token, Hidden] Linear from [of(Stage::FfnNormQ8), of(Stage::FfnNormScale)]
        with [weight("w1", &[A::Hidden, A::Dim]), bias("b1", &[A::Hidden], When::MlpBias)]
        unit Plain, rounded Result, runs Alone, only Gate;
        formula "ffn_gate[t, f] = Σ_d {ffn_input}[t, d] · w1[f, d]   ({D} terms)"
        purpose "For each of {F} units: how far its gate opens, before the activation."
        aliases "mlp.gate_proj" "mlp.hook_pre" "ffn_gate-L" "h"
    FfnSilu "ffn_silu" Layer [Token, Hidden] Silu from [of(Stage::FfnGate)] with []
        unit Plain, rounded Result, runs Alone, derived from [of(Stage::FfnGate)], only Silu;
        formula "ffn_silu[t, f] = g / (1 + e^−g),   g = ffn_gate[t, f]"
        purpose "A smooth gate: near 0 for negative g, near g for positive g."
        aliases "mlp.act_fn" "" "" "h"
    FfnUp "ffn_up" Layer [Token, Hidden] Linear from [of(Stage::FfnNormQ8), of(Stage::FfnNormScale)]
        with [weight("w3", &[A::Hidden, A::Dim]), bias("b3", &[A::Hidden], When::MlpBias)]
        unit Plain, rounded Result, runs Alone;
        formula "ffn_up[t, f] = Σ_d {ffn_input}[t, d] · w3[f, d]   ({D} terms)"
        purpose "For each unit: the value that passes through its gate."
        aliases "mlp.up_proj" "mlp.hook_pre_linear" "ffn_up-L" "ffnUpX"
    FfnAct "ffn_act" Layer [Token, Hidden] Activation from [of(Stage::FfnGate)]
        with [if_has("xielu", &[A::Two], When::Xielu)]
        unit Plain, rounded Result, runs Alone, only Activation;
        formula "ffn_act[t, f] = {activation},   g = {gate}[t, f]"
        purpose "The activation, value by value: it makes the network more than one linear map."
        aliases "mlp.act_fn" "mlp.hook_post" "" ""
    FfnHidden "ffn_hidden" Layer [Token, Hidden] Mul from [of(Stage::FfnSilu), of(Stage::FfnUp)] with []
        unit Plain, rounded Result, runs Alone, derived from [of(Stage::FfnSilu), of(Stage::FfnUp)], only Gate;
        formula "ffn_hidden[t, f] = {act}[t, f] · ffn_up[t, f]"
        purpose "Value times gate, unit by unit (SwiGLU, where the gate is SiLU)."
        aliases "input of mlp.down_proj" "mlp.hook_post" "ffn_swiglu-L" "h"
    FfnHiddenQ8 "ffn_hidden_q8" Layer [Token, Hidden] Quantize from [of(Stage::FfnHidden)] with []
        unit Steps, rounded Never, runs Derived, derived from [of(Stage::FfnHidden)], only Int8 else FfnHidden;
        formula "ffn_hidden_q8 = {neurons} / scale, rounded to whole numbers, halves away from zero: −127 … 127; a group of {g} shares one scale"
        purpose "The int8 input of the next product, which then multiplies whole numbers and reads a quarter of the bytes."
        aliases "" "" "" ""
    FfnHiddenScale "ffn_hidden_scale" Layer [Token, HiddenGroup] Quantize from [of(Stage::FfnHidden)]
        with []
        unit Step, rounded Never, runs Alone, derived from [of(Stage::FfnHidden)], only Int8 else FfnHidden;
        formula "ffn_hidden_scale[t, j] = max |{neurons}| of group j / 127   ({g} values a group along the {F} units, the last may have fewer)"
        purpose "The scale of each group: a value is its int8 value times the scale, with an error of at most half a scale."
        aliases "" "" "" ""
    FfnDown "ffn_down" Layer [Token, Dim] Linear from [of(Stage::FfnHiddenQ8), of(Stage::FfnHiddenScale)]
        with [weight("w2", &[A::Dim, A::Hidden]), bias("b2", &[A::Dim], When::MlpBias)]
        unit Plain, rounded Result, runs Alone;
        formula "ffn_down[t, d] = Σ_f {neurons}[t, f] · w2[d, f]   ({F} terms)"
        purpose "The outputs of the units, projected back to the residual stream."
        aliases "mlp.down_proj" "hook_mlp_out" "ffn_out-L" "ffnOutput"
    PostFfnNorm "post_ffn_norm" Layer [Token, Dim] RmsNorm from [of(Stage::FfnDown)]
        with [if_has("ffn_post_norm", &[A::Dim], When::NormWeight)]
        unit Plain, rounded TwiceInNorm, runs Alone, only NormAfter else FfnDown;
        formula "post_ffn_norm[t, d] = ffn_down[t, d] / √(Σ ffn_down[t, :]² / {D} + {eps}) · ffn_post_norm[d]"
        purpose "The same after the feed-forward network, with a weight of its own."
        aliases "post_feedforward_layernorm" "ln2_post.hook_normalized × weight" "ffn_post_norm-L" ""
    FfnResidual "ffn_residual" Layer [Token, Dim] Add from [of(Stage::AttnResidual), of(Stage::PostFfnNorm)]
        with []
        unit Plain, rounded Result, runs Alone, derived from [of(Stage::AttnResidual), of(Stage::PostFfnNorm)];
        formula "ffn_residual[t, d] = attn_residual[t, d] + {residual}{ffn_out}[t, d]"
        purpose "The output of the layer, which is the input of the next layer."
        aliases "(the layer's output)" "hook_resid_post" "l_out-L" "output"

    FinalNorm "final_norm" End [Token, Dim] RmsNorm from [LayerInput]
        with [if_has("norm", &[A::Dim], When::NormWeight), bias("norm_bias", &[A::Dim], When::NormBias)]
        unit Plain, rounded TwiceInNorm, runs Alone;
        formula "final_norm[t, d] = x[t, d] / √(Σ x[t, :]² / {D} + {eps}) · norm[d],   x = the last layer's ffn_residual"
        purpose "The last normalisation, before the vector is compared with the vocabulary."
        aliases "model.norm" "ln_final.hook_normalized × weight" "result_norm" "currentTensor"
    FinalNormQ8 "final_norm_q8" End [Token, Dim] Quantize from [of(Stage::FinalNorm)] with []
        unit Steps, rounded Never, runs Derived, derived from [of(Stage::FinalNorm)], only Int8 else FinalNorm;
        formula "final_norm_q8 = final_norm / scale, rounded to whole numbers, halves away from zero: −127 … 127; a group of {g} shares one scale"
        purpose "The int8 input of the next product, which then multiplies whole numbers and reads a quarter of the bytes."
        aliases "" "" "" ""
    FinalNormScale "final_norm_scale" End [Token, DimGroup] Quantize from [of(Stage::FinalNorm)] with []
        unit Step, rounded Never, runs Alone, derived from [of(Stage::FinalNorm)], only Int8 else FinalNorm;
        formula "final_norm_scale[t, j] = max |final_norm| of group j / 127   ({g} values a group along the {D} components, the last may have fewer)"
        purpose "The scale of each group: a value is its int8 value times the scale, with an error of at most half a scale."
        aliases "" "" "" ""
    Logits "logits" End [Token, Vocab] Linear from [of(Stage::FinalNormQ8), of(Stage::FinalNormScale)]
        with [weight("output", &[A::Vocab, A::Dim])]
        unit Logit, rounded Result, runs Alone;
        formula "logits[t, v] = {logit_scale}Σ_d final_norm[t, d] · output[v, d]   ({D} terms)"
        purpose "One score for each of {V} tokens: how well it would continue the text after token t."
        aliases "lm_head" "(the returned logits)" "result_output" "output"

    CappedLogits "capped_logits" End [Token, Vocab] Cap from [of(Stage::Logits)] with []
        unit Logit, rounded Result, runs Alone, derived from [of(Stage::Logits)], only LogitCap else Logits;
        formula "capped_logits[t, v] = {logit_cap} · tanh(logits[t, v] / {logit_cap})"
        purpose "A soft cap: no logit can be larger than the cap. The sampler reads these logits."
        aliases "" "" "result_output" ""

    PenalizedLogits "penalized_logits" Sampler [Vocab] Penalize from [of(Stage::CappedLogits)] with []
        unit Logit, rounded Never, runs Derived, only Penalty else CappedLogits;
        formula "penalized_logits[v] = x / penalty where x ≥ 0, x · penalty where x < 0, x = {logits}[last, v], for every token v of the text so far; x for the others"
        purpose "The repetition penalty makes every token less likely that the text has already, whether it has it once or often."
        aliases "" "" "" ""
    Probs "probs" Sampler [Vocab] Probs from [of(Stage::PenalizedLogits)] with []
        unit Probability, rounded Never, runs Derived;
        formula "probs = softmax({logits}[last, :] / temperature); at temperature 0 softmax({logits}[last, :])"
        purpose "The scores after the last token as probabilities."
        aliases "" "" "" ""
    MinP "min_p" Sampler [Vocab] MinP from [of(Stage::Probs)] with []
        unit Probability, rounded Never, runs Derived, only MinP else Probs;
        formula "of the tokens that top-k and top-p keep, those with probs[v] ≥ min-p · max probs, divided by their sum; all others are 0"
        purpose "Removes the tokens that are much less likely than the most likely one. Where the model is sure, few tokens stay; where it is not, many do."
        aliases "" "" "" ""
    TypicalP "typical_p" Sampler [Vocab] TypicalP from [of(Stage::MinP)] with []
        unit Probability, rounded Never, runs Derived, only TypicalP else MinP;
        formula "the tokens in the order of |−ln q[v] − H|, H = −Σ q · ln q, until their q reach the sum typical-p, and those that are as typical as the last one, divided by their sum; q = min_p (probs after top-k and top-p where there is no min_p)"
        purpose "Keeps the tokens whose surprise −ln q is nearest to the average surprise, the entropy H. This can remove the most likely token."
        aliases "" "" "" ""
    Nucleus "nucleus" Sampler [Vocab] TopKTopP from [of(Stage::TypicalP)] with []
        unit Probability, rounded Never, runs Derived;
        formula "top-k keeps the probs of the k most likely tokens (exactly k; if equal, the lower ids), divided by their sum; of these, top-p keeps as few of the most likely as reach the sum p, divided by their sum; all others are 0; at temperature 0, 1 for the largest logit; with min_p or typical_p, the last of them"
        purpose "The tokens that can be sampled, with their probabilities."
        aliases "" "" "" ""
    Sampled "sampled" Sampler [One] Sample from [of(Stage::Nucleus)] with []
        unit Id, rounded Never, runs Alone;
        formula "the id sampled from nucleus; at temperature 0 the most likely one"
        purpose "The next token: printed, and read by the next pass."
        aliases "" "" "" ""
}
