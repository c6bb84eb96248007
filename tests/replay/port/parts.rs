//! The operations of the port.

use half::bf16;
use llama_trace::config::{Activation, NormKind, Pairing, QkWidth, Rope, RopeScaling};

use super::{Port, Rows};

impl Port {
    /// x · wᵀ (+ bias).
    pub(super) fn linear(&self, x: &Rows, name: &str) -> Rows {
        let gate = if name.contains("gate") { "up" } else { "gate" };
        let swapped = name.replace("gate", "#").replace("up", "gate").replace('#', "up");
        let kv = name.replace("k_proj", "#").replace("v_proj", "k_proj").replace('#', "v_proj");
        let name = if self.has("kv_swapped") && name.contains("self_attn") { &kv } else { name };
        let name = if self.has("gate_up_swapped") && name.contains(if gate == "up" { "gate" } else { "up" }) {
            &swapped
        } else {
            name
        };
        let w = self.weight(&format!("{name}.weight"));
        let inputs = x[0].len();
        let outputs = w.len() / inputs;
        let bias = self.weights.get(&format!("{name}.bias")).filter(|_| !self.has("bias_missing"));
        let layout = self.has("weight_layout") && name.contains("v_proj")
            || self.has("weight_layout:o") && name.contains("o_proj")
            || self.has("weight_layout:head") && (name == "lm_head" || name == "model.embed_tokens");
        let c = self.config.head_dim;
        let permuted = self.has("weight_layout:rope") && (name.contains("q_proj") || name.contains("k_proj"));
        let of_heads = name.contains("q_proj") || name.contains("k_proj") || name.contains("v_proj");
        let from = |o: usize| match self.bug {
            "weight_layout:rope" if permuted => o / c * c + o % c / 2 + o % 2 * (c / 2),
            // These two permutations are inverse to each other.
            "weight_layout:heads" if of_heads => o % (outputs / c) * c + o / (outputs / c),
            "weight_layout:components" if of_heads => o % c * (outputs / c) + o / c,
            _ => o,
        };
        let row = |x: &Vec<f32>| {
            let x = match self.bug {
                "quantized_activations" => steps(x),
                "bf16_rounding:inputs" => x.iter().map(|x| bf16::from_f32(*x).to_f32()).collect(),
                _ => x.clone(),
            };
            let value = |o: usize| {
                let from = from(o);
                let sum: f32 = (0..inputs)
                    .map(|i| x[i] * if layout { w[i * outputs + o] } else { w[from * inputs + i] })
                    .sum();
                self.round(sum + bias.map_or(0.0, |bias| bias[o]))
            };
            (0..outputs).map(value).collect()
        };
        x.iter().map(row).collect()
    }

    pub(super) fn round(&self, x: f32) -> f32 {
        if self.rounds { bf16::from_f32(x).to_f32() } else { x }
    }

    pub(super) fn norm(&self, x: &Rows, name: &str) -> Rows {
        let (of_attention, of_ffn) = ("input_layernorm", "post_attention_layernorm");
        let swapped = match name.contains(of_attention) {
            true => name.replace(of_attention, of_ffn),
            false => name.replace(of_ffn, of_attention).replace("pre_feedforward_layernorm", of_ffn),
        };
        let w = self.weight(match self.bug {
            "norm_weights_swapped" => &swapped,
            "norm_weights_swapped:after" if name.contains("pre_feedforward") => &swapped,
            _ => name,
        });
        if self.has("norm_missing") && name == "model.norm.weight" {
            return x.clone();
        }
        let eps = if self.has("norm_eps") { 1e-6 } else { self.config.norm_eps };
        let row = |(i, x): (usize, &Vec<f32>)| {
            // A weight that is longer than a row belongs to several rows side by side.
            let w = &w[i * x.len() % w.len()..];
            let mean = x.iter().sum::<f32>() / x.len() as f32;
            let is_layer_norm = self.config.norm.kind == NormKind::Layer && !self.has("norm_mean_missing");
            let centred = is_layer_norm || self.has("layer_norm");
            let x: Vec<f32> = x.iter().map(|x| if centred { x - mean } else { *x }).collect();
            let count = if self.has("norm_sum") { 1 } else { x.len() };
            let square = x.iter().map(|x| x * x).sum::<f32>() / count as f32;
            let factor = 1.0 / (square + eps).sqrt();
            let weight = |w: f32| match self.bug {
                "norm_weight_plus_one" => w + 1.0,
                "norm_weight_missing" => 1.0,
                "norm_weight_as_stored" => w,
                _ if self.config.norm.one_plus => w + 1.0,
                _ => w,
            };
            x.iter().zip(w).map(|(x, w)| self.round(self.round(x * factor) * weight(*w))).collect()
        };
        x.iter().enumerate().map(row).collect()
    }

    /// The norm of queries or keys: of each head, or of the whole row.
    pub(super) fn norm_heads(&self, x: &Rows, name: &str) -> Rows {
        let is_whole = self.config.qk_norm_form.width == QkWidth::Whole && !self.has("qk_norm_width");
        let width = if is_whole { x[0].len() } else { self.config.head_dim };
        let parts: Rows = x.iter().flat_map(|row| row.chunks(width).map(<[f32]>::to_vec)).collect();
        self.norm(&parts, name).chunks(x[0].len() / width).map(<[Vec<f32>]>::concat).collect()
    }

    /// The rotation of each pair from one position to the next, in radians.
    pub(super) fn frequencies(&self, rope: &Rope) -> Vec<f32> {
        let theta = if self.has("rope_theta") { 1e6 } else { rope.theta };
        let c = self.config.head_dim;
        let step = if self.has("rope_frequency") { 1 } else { 2 };
        let plain = (0..c / 2).map(|i| theta.powf(-((step * i) as f32) / c as f32));
        let RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } =
            rope.scaling
        else {
            let RopeScaling::Linear { factor } = rope.scaling else { return plain.collect() };
            return plain.map(|f| f / factor).collect();
        };
        let scaled = |f: f32, factor: f32| {
            let turns = original_context as f32 * f / std::f32::consts::TAU;
            let keep = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
            (1.0 - keep) * f / factor + keep * f
        };
        let by = if self.has("rope_scaling:factor") { 2.0 } else { factor };
        plain.map(|f| if self.has("rope_scaling") { f } else { scaled(f, by) }).collect()
    }

    pub(super) fn rope(&self, x: &Rows, cos: &Rows, sin: &Rows) -> Rows {
        let c = self.config.head_dim;
        let halves = (self.config.pairing == Pairing::Halves) != self.has("rope_pairing");
        let back = if self.has("rope_direction:turning") { -1.0 } else { 1.0 };
        let mut out = x.clone();
        for (t, row) in x.iter().enumerate() {
            for head in (0..row.len()).step_by(c) {
                for i in 0..c / 2 {
                    let (a, b) = if halves { (i, i + c / 2) } else { (2 * i, 2 * i + 1) };
                    let (p, q) = (row[head + a], row[head + b]);
                    let (cos, sin) = (&cos[t], &sin[t]);
                    if self.has("rope_pairing:mixed") {
                        // Rotates neighbouring pairs, each by the angle that belongs to it in the order of halves.
                        for (own, other, sign) in [(2 * i, 2 * i + 1, -1.0), (2 * i + 1, 2 * i, 1.0)] {
                            let angle = own % (c / 2);
                            out[t][head + own] =
                                row[head + own] * cos[angle] + sign * row[head + other] * sin[angle];
                        }
                        continue;
                    }
                    let (cos, sin) = (cos[i], back * sin[i]);
                    out[t][head + a] = self.round(p * cos - q * sin);
                    out[t][head + b] = self.round(p * sin + q * cos);
                }
            }
        }
        out
    }

    pub(super) fn seen(&self, layer: usize, query: usize, key: usize) -> bool {
        let window = match (self.config.window, self.bug) {
            (Some(_), "window") => None,
            (Some(window), "window:short") => Some(window - 1),
            (Some(window), "window:wide") => Some(window + 1),
            (Some(window), "window:everywhere") => Some(window),
            (window, _) => window.filter(|_| self.config.window_layers.contains(layer)),
        };
        let last = if self.has("mask_offset") { query + 1 } else { query };
        let window = window.filter(|_| {
            self.config.window_layers.contains(layer) || ["window", "window:everywhere"].contains(&self.bug)
        });
        key <= last && window.is_none_or(|window| key + window > query)
    }

    /// Whether queries and keys of a layer are rotated.
    pub(super) fn is_turned(&self, layer: usize) -> bool {
        let has = self.config.rope_layers.contains(layer);
        match self.bug {
            "rope_layers" => true,
            // The list of the layers is read as that of the others.
            "rope_layers:exchanged" => !has,
            _ => has,
        }
    }

    /// The factor that makes scores of dot products.
    pub(super) fn score_scale(&self) -> f32 {
        let root = (self.config.head_dim as f32).sqrt().recip();
        match self.bug {
            "attention_scale" => 1.0,
            "attention_scale:root" => root,
            _ => self.config.score_scale.unwrap_or(root),
        }
    }

    /// The activation function.
    pub(super) fn act(&self, x: f32) -> f32 {
        let is_silu = self.config.activation == Activation::Silu;
        self.round(match is_silu == self.has("activation") {
            true => x / 2.0 * (1.0 + (0.797_884_6 * (x + 0.044_715 * x * x * x)).tanh()),
            false => x / (1.0 + (-x).exp()),
        })
    }

    /// The norm of a sublayer's output, and the sum of the stream with it.
    pub(super) fn after(&self, x: &Rows, output: &Rows, name: &str) -> (Rows, Rows) {
        if self.bug.starts_with("post_norm_place") {
            let normed = self.norm(&self.sum(x, output), name);
            return (normed.clone(), normed);
        }
        let normed = self.norm(output, name);
        let sum = self.sum(x, &normed);
        (normed, sum)
    }

    /// a + b, where b has the model's factor.
    pub(super) fn sum(&self, a: &Rows, b: &Rows) -> Rows {
        let by = if self.has("residual_scale") { 1.0 } else { self.config.multipliers.residual };
        let row =
            |(a, b): (&Vec<f32>, &Vec<f32>)| a.iter().zip(b).map(|(a, b)| self.round(a + by * b)).collect();
        a.iter().zip(b).map(row).collect()
    }
}

/// Rounds a row to int8, with 32 values per scale.
fn steps(x: &[f32]) -> Vec<f32> {
    let group = |x: &[f32]| {
        let scale = x.iter().fold(0.0_f32, |most, x| most.max(x.abs())) / 127.0;
        x.iter().map(|x| (x / scale).round() * scale).collect::<Vec<f32>>()
    };
    x.chunks(32).flat_map(group).collect()
}
