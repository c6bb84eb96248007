//! The hyperparameters of a Llama, under the names of the paper and of PyTorch code.

mod layers;
mod precision;
mod rope;
mod switches;

use serde::{Deserialize, Serialize};

pub use layers::{LayerSet, Sees};
pub use precision::{ARITHMETIC, Arithmetic, CacheDtype, DEFAULT_GROUP, Precision};
pub use rope::{Pairing, Rope, RopeRounding, RopeScaling};
pub use switches::{Activation, Multipliers, Norm, NormKind, Placement, QkNormForm, QkWidth, QueryScale};

use crate::error::{Error, Result};

/// All hyperparameters of a model. The letters D, H, G, C, F and V are those of the table of stages. Files omit the
/// switches of other families where they are Llama's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// D: width of the residual stream (`hidden_size`, `dim`).
    pub dim: usize,
    /// Number of transformer blocks (`num_hidden_layers`, `n_layers`).
    pub layers: usize,
    /// H: query heads (`num_attention_heads`, `n_heads`).
    pub heads: usize,
    /// G: key/value heads (`num_key_value_heads`, `n_kv_heads`); H for multi-head attention, less for
    /// grouped-query attention (Ainslie et al., 2023). Divides H.
    pub kv_heads: usize,
    /// C: width of one head (`head_dim`), an even number. Usually D/H; a checkpoint may give another.
    pub head_dim: usize,
    /// F: width of the feed-forward hidden layer (`intermediate_size`, `hidden_dim`).
    pub ffn_dim: usize,
    /// V: number of tokens in the vocabulary.
    pub vocab: usize,
    /// The longest sequence the model is meant for (`max_position_embeddings`, `max_seq_len`).
    pub context: usize,
    /// ε of RMSNorm, added to the mean square.
    pub norm_eps: f32,
    /// θ of RoPE: pair i is rotated by position · θ^(−2i/C).
    pub rope_theta: f32,
    /// Scaling of the RoPE frequencies for contexts longer than the trained one.
    pub rope_scaling: RopeScaling,
    /// RoPE's θ and scaling in the layers with a window, if they differ there (Gemma 3, OLMo 3).
    #[serde(default, skip_serializing_if = "is_default")]
    pub local_rope: Option<Rope>,
    /// The number of components of a head that RoPE rotates, the first ones; an even number. `None` for all
    /// (`partial_rotary_factor`).
    #[serde(default, skip_serializing_if = "is_default")]
    pub rope_dim: Option<usize>,
    /// The layers that have RoPE (`no_rope_layers`).
    #[serde(default, skip_serializing_if = "is_default")]
    pub rope_layers: LayerSet,
    /// The two components of a head that form a pair for RoPE. It follows from how the checkpoint stores wq and wk.
    pub pairing: Pairing,
    /// What bfloat16 rounds in RoPE.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rope_rounding: RopeRounding,
    /// Whether the query, key and value projections add a bias.
    pub qkv_bias: bool,
    /// Whether the attention's output projection adds a bias.
    pub output_bias: bool,
    /// Whether the three feed-forward projections add a bias.
    pub mlp_bias: bool,
    /// Whether queries and keys are normalised (Qwen3; after Dehghani et al., 2023).
    pub qk_norm: bool,
    /// The form of these norms: in Qwen3, an RMSNorm over C of each head before RoPE.
    #[serde(default, skip_serializing_if = "is_default")]
    pub qk_norm_form: QkNormForm,
    /// W: the number of keys that a token sees in layers with a sliding window, its own included (Mistral 7B, Jiang et
    /// al., 2023; Beltagy et al., 2020). `None` if every layer sees all keys.
    pub window: Option<usize>,
    /// The layers with the window: all in Mistral; those from `max_window_layers` on in Qwen; five of six in Gemma 3.
    /// Unused without a window.
    #[serde(alias = "window_from")]
    pub window_layers: LayerSet,
    /// Whether `window` is the length of a chunk: a token sees the keys of its own chunk (Llama 4).
    #[serde(default, skip_serializing_if = "is_default")]
    pub chunked: bool,
    /// The norms of the residual stream.
    #[serde(default, skip_serializing_if = "is_default")]
    pub norm: Norm,
    /// Their places.
    #[serde(default, skip_serializing_if = "is_default")]
    pub placement: Placement,
    /// Factors of the embeddings, the residual stream and the logits.
    #[serde(default, skip_serializing_if = "is_default")]
    pub multipliers: Multipliers,
    /// The factor that makes scores of dot products; `None` for 1/√C (`query_pre_attn_scalar`,
    /// `attention_multiplier`).
    #[serde(default, skip_serializing_if = "is_default")]
    pub score_scale: Option<f32>,
    /// A factor of the queries that depends on the position.
    #[serde(default, skip_serializing_if = "is_default")]
    pub query_scale: Option<QueryScale>,
    /// The soft cap c of the scores: c · tanh(score / c) (`attn_logit_softcapping`).
    #[serde(default, skip_serializing_if = "is_default")]
    pub score_cap: Option<f32>,
    /// The soft cap of the logits (`final_logit_softcapping`).
    #[serde(default, skip_serializing_if = "is_default")]
    pub logit_cap: Option<f32>,
    /// The activation of the feed-forward network.
    #[serde(default, skip_serializing_if = "is_default")]
    pub activation: Activation,
    /// Whether the feed-forward network has no gate: w2 · activation(w3 · x) instead of w2 · (activation(w1 · x) · w3 · x).
    #[serde(default, skip_serializing_if = "is_default")]
    pub ungated: bool,
    /// Whether the output head is the embedding table (`tie_word_embeddings`).
    pub tied: bool,
}

/// Whether a field has its default, Llama's.
fn is_default<T: Default + PartialEq>(field: &T) -> bool {
    *field == T::default()
}

impl ModelConfig {
    /// A one-layer Llama with `heads` query heads, `kv_heads` key/value heads of width `head_dim`, and no optional
    /// features. D = H·C, F = 4·D, V = 32,000, θ = 10,000, ε = 10⁻⁵ and a context of 2,048.
    pub fn of_heads(heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        let dim = heads * head_dim;
        Self {
            dim,
            layers: 1,
            heads,
            kv_heads,
            head_dim,
            ffn_dim: 4 * dim,
            vocab: 32_000,
            context: 2048,
            norm_eps: 1e-5,
            rope_theta: 10_000.0,
            rope_scaling: RopeScaling::None,
            local_rope: None,
            rope_dim: None,
            rope_layers: LayerSet::ALL,
            pairing: Pairing::Halves,
            rope_rounding: RopeRounding::Products,
            qkv_bias: false,
            output_bias: false,
            mlp_bias: false,
            qk_norm: false,
            qk_norm_form: QkNormForm::default(),
            window: None,
            window_layers: LayerSet::ALL,
            chunked: false,
            norm: Norm::default(),
            placement: Placement::Before,
            multipliers: Multipliers::default(),
            score_scale: None,
            query_scale: None,
            score_cap: None,
            logit_cap: None,
            activation: Activation::Silu,
            ungated: false,
            tied: false,
        }
    }
}

/// The largest size accepted for any one hyperparameter: far beyond every Llama, and small enough that
/// products of three of them fit in a u64.
const MAX_SIZE: usize = 1 << 20;

impl ModelConfig {
    /// Checks that the sizes are possible for a Llama. Later code relies on it: no division by zero, no overflow.
    ///
    /// # Errors
    /// [`Error::Model`] naming the first hyperparameter that is out of range.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: &str, found: String, expected: &str| {
            Err(Error::model(format!("invalid {what} in the configuration"))
                .expected(expected)
                .found(found)
                .next("compare config.json (or the file's header) with that of the published model"))
        };
        let sizes = [
            ("model width (dim)", self.dim),
            ("number of layers", self.layers),
            ("number of heads", self.heads),
            ("number of key/value heads", self.kv_heads),
            ("head width (head_dim)", self.head_dim),
            ("feed-forward width", self.ffn_dim),
            ("vocabulary size", self.vocab),
        ];
        for (what, size) in sizes {
            if !(1..=MAX_SIZE).contains(&size) {
                return wrong(what, size.to_string(), &format!("a number from 1 to {MAX_SIZE}"));
            }
        }
        if self.context == 0 {
            return wrong("context length", "0".into(), "at least 1");
        }
        if self.window == Some(0) {
            return wrong("sliding window", "0".into(), "at least 1, because a token sees itself");
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let found = format!("{} query heads and {} key/value heads", self.heads, self.kv_heads);
            return wrong("number of key/value heads", found, "a divisor of the number of query heads");
        }
        if !self.head_dim.is_multiple_of(2) {
            return wrong(
                "head width (head_dim)",
                self.head_dim.to_string(),
                "an even number, because RoPE rotates pairs",
            );
        }
        if !(self.norm_eps.is_finite() && self.norm_eps >= 0.0) {
            return wrong("RMSNorm epsilon", self.norm_eps.to_string(), "a small number, 0 or more");
        }
        let turned = self.turned();
        if turned == 0 || turned > self.head_dim || !turned.is_multiple_of(2) {
            let expected = format!("an even number from 2 to the head width {}", self.head_dim);
            return wrong("number of components that RoPE rotates", turned.to_string(), &expected);
        }
        for number in 0..self.ropes() {
            let rope = self.rope(number);
            if let Err((what, found, expected)) = rope.check(turned) {
                return wrong(what, found, &expected);
            }
        }
        let Multipliers { embedding, residual, logits } = self.multipliers;
        let caps = [self.score_scale, self.score_cap, self.logit_cap].into_iter().flatten();
        for factor in [embedding, residual, logits].into_iter().chain(caps) {
            if !(factor.is_finite() && factor > 0.0) {
                return wrong("multiplier or cap", factor.to_string(), "a positive number");
            }
        }
        if let Some(QueryScale { beta, original_context }) = self.query_scale
            && !(beta.is_finite() && beta >= 0.0 && original_context > 0)
        {
            let found = format!("β = {beta}, original context {original_context}");
            return wrong("query scale", found, "β ≥ 0, and an original context of at least 1");
        }
        Ok(())
    }

    /// Sets the factor that scales the RoPE frequencies.
    ///
    /// # Errors
    /// [`Error::Usage`] if the model does not scale RoPE by a factor, or `new` is not a positive number.
    pub fn set_rope_factor(&mut self, new: f32) -> Result<()> {
        if !(new.is_finite() && new > 0.0) {
            return Err(Error::usage("the value of --rope-factor is not valid")
                .expected("a positive number")
                .found(new));
        }
        let found = match self.rope_scaling {
            RopeScaling::Divisors(_) => "a file that has a factor for each frequency",
            RopeScaling::None => "a model without RoPE scaling",
            _ => "a model whose RoPE scaling does not follow from its factor alone",
        };
        match &mut self.rope_scaling {
            RopeScaling::Linear { factor } | RopeScaling::Llama3 { factor, .. } => *factor = new,
            _ => {
                return Err(Error::usage("--rope-factor is for models that scale RoPE")
                    .expected("a model with llama3 or linear RoPE scaling")
                    .found(found)
                    .next("leave --rope-factor out"));
            }
        }
        Ok(())
    }

    /// H/G: the number of query heads that share one key/value head.
    pub fn group_size(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// H·C: the width of the queries, all heads concatenated.
    pub fn q_dim(&self) -> usize {
        self.heads * self.head_dim
    }

    /// G·C: the width of the keys (and of the values), all heads concatenated.
    pub fn kv_dim(&self) -> usize {
        self.kv_heads * self.head_dim
    }
    /// The number of components of a head that RoPE rotates.
    pub fn turned(&self) -> usize {
        self.rope_dim.unwrap_or(self.head_dim)
    }

    /// The number of RoPEs: two if the layers with a window have their own, else one.
    pub fn ropes(&self) -> usize {
        1 + usize::from(self.local_rope.is_some())
    }

    /// RoPE number `number`: the model's, or that of the layers with a window.
    pub fn rope(&self, number: usize) -> Rope {
        match &self.local_rope {
            Some(local) if number > 0 => local.clone(),
            _ => Rope { theta: self.rope_theta, scaling: self.rope_scaling.clone() },
        }
    }

    /// The number of the RoPE of `layer`; `None` if it has none.
    pub fn rope_of(&self, layer: usize) -> Option<usize> {
        let is_local = self.local_rope.is_some() && self.sees(layer) != Sees::All;
        self.rope_layers.contains(layer).then_some(usize::from(is_local))
    }

    /// The keys that a token sees in `layer`.
    pub fn sees(&self, layer: usize) -> Sees {
        match self.window.filter(|_| self.window_layers.contains(layer)) {
            None => Sees::All,
            Some(window) if self.chunked => Sees::Chunk(window),
            Some(window) => Sees::Window(window),
        }
    }

    /// The first switch because of which a logit is not Llama's sum of the products of a vector with what the embedding,
    /// the heads and the neurons add to the residual stream.
    pub fn not_a_sum(&self) -> Option<&'static str> {
        let Multipliers { residual, logits, .. } = self.multipliers;
        let switches = [
            (self.placement.after(), "norms after each sublayer"),
            (self.norm.kind == NormKind::Layer, "LayerNorm"),
            (!self.norm.weight, "norms without a weight"),
            (residual != 1.0, "a residual multiplier"),
            (logits != 1.0, "a logit multiplier"),
            (self.logit_cap.is_some(), "a soft cap of the logits"),
        ];
        switches.into_iter().find(|(used, _)| *used).map(|(_, name)| name)
    }

    /// The first switch of another family that the model uses in `precision`, in words; `None` if it computes as Llama
    /// does. Windows, biases, and an RMSNorm of each query and key head are not counted: every device has them.
    pub fn first_switch(&self, precision: Precision) -> Option<&'static str> {
        let rounds = precision == Precision::Bf16;
        let (norm, form) = (self.norm, self.qk_norm_form);
        let Multipliers { embedding, residual, logits } = self.multipliers;
        let factors = |rope: usize| self.rope(rope).attention_factor() != 1.0 || self.rope(rope).varies();
        let switches = [
            (self.chunked && self.window.is_some(), "chunked attention"),
            (self.rope_layers != LayerSet::ALL, "layers without RoPE"),
            (self.local_rope.is_some(), "a RoPE of its own for the layers with a window"),
            (self.turned() != self.head_dim, "a RoPE of some of a head's components"),
            ((0..self.ropes()).any(factors), "a RoPE scaling with an attention factor or a changing one"),
            (rounds && self.rope_rounding != RopeRounding::Products, "a RoPE that bfloat16 rounds once"),
            (norm.kind == NormKind::Layer || form.kind == NormKind::Layer, "LayerNorm"),
            (!norm.weight || !form.weight, "norms without a weight"),
            (norm.one_plus, "norms with the weight 1 + w"),
            (rounds && norm.rounded_once, "norms that are rounded once"),
            (self.placement != Placement::Before, "norms in other places than before each sublayer"),
            (form != QkNormForm::default(), "another form of query and key norms"),
            (embedding != 1.0, "an embedding multiplier"),
            (residual != 1.0, "a residual multiplier"),
            (logits != 1.0, "a logit multiplier"),
            (self.score_scale.is_some(), "another scale of the scores than 1/√C"),
            (self.query_scale.is_some(), "a scale of the queries"),
            (self.score_cap.is_some() || self.logit_cap.is_some(), "a soft cap"),
            (self.activation != Activation::Silu, "another activation than SiLU"),
            (self.ungated, "a feed-forward network without a gate"),
        ];
        switches.into_iter().find(|(used, _)| *used).map(|(_, name)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_omit_the_switches_of_a_llama_and_old_files_still_open() {
        let config = ModelConfig { window: Some(4), ..ModelConfig::of_heads(4, 2, 8) };
        let mut json = serde_json::to_value(&config).unwrap();
        let fields = json.as_object_mut().unwrap();
        assert!(!fields.contains_key("multipliers") && !fields.contains_key("norm"), "{fields:?}");
        // Older files have the first layer with the window under another name.
        fields.remove("window_layers");
        fields.insert("window_from".into(), 1.into());
        let old: ModelConfig = serde_json::from_value(json).unwrap();
        assert_eq!(old, ModelConfig { window_layers: LayerSet::From(1), ..config });
    }

    #[test]
    fn a_device_that_computes_as_llama_does_refuses_a_switch_by_its_name() {
        let switch = |change: fn(&mut ModelConfig)| {
            let mut config = ModelConfig { layers: 2, ..ModelConfig::of_heads(4, 2, 8) };
            change(&mut config);
            config.first_switch(Precision::F32)
        };
        assert_eq!(switch(|c| (c.window, c.qk_norm, c.qkv_bias) = (Some(4), true, true)), None);
        assert_eq!(switch(|c| c.rope_layers = LayerSet::From(1)), Some("layers without RoPE"));
        assert_eq!(switch(|c| c.activation = Activation::Gelu), Some("another activation than SiLU"));
        assert_eq!(switch(|c| c.logit_cap = Some(30.0)), Some("a soft cap"));
        assert_eq!(switch(|c| c.multipliers.residual = 0.5), Some("a residual multiplier"));
    }

    #[test]
    fn a_rounding_of_bfloat16_is_a_switch_only_there() {
        let rope =
            ModelConfig { rope_rounding: RopeRounding::SumOfFloat32, ..ModelConfig::of_heads(4, 2, 8) };
        let once = Norm { rounded_once: true, ..Norm::default() };
        let norm = ModelConfig { norm: once, ..ModelConfig::of_heads(4, 2, 8) };
        for (config, name) in
            [(rope, "a RoPE that bfloat16 rounds once"), (norm, "norms that are rounded once")]
        {
            assert_eq!(config.first_switch(Precision::Bf16), Some(name));
            for precision in [Precision::F32, Precision::Q8 { group: 32 }] {
                assert_eq!(config.first_switch(precision), None, "{name}");
            }
        }
    }

    #[test]
    fn each_layer_has_its_own_keys_and_rope() {
        let local = Rope { theta: 100.0, scaling: RopeScaling::None };
        let config = ModelConfig {
            layers: 3,
            window: Some(4),
            window_layers: LayerSet::of(&[true, false, true]).unwrap(),
            rope_layers: LayerSet::of(&[true, true, false]).unwrap(),
            local_rope: Some(local),
            ..ModelConfig::of_heads(4, 2, 8)
        };
        assert_eq!([0, 1, 2].map(|l| config.rope_of(l)), [Some(1), Some(0), None]);
        assert_eq!([0, 1, 2].map(|l| config.sees(l)), [Sees::Window(4), Sees::All, Sees::Window(4)]);
        assert_eq!((config.rope(0).theta, config.rope(1).theta), (10_000.0, 100.0));
    }
}
