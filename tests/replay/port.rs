//! An independent port of Llama: plain float32 loops, written from the paper and not from this program, with an
//! optional mistake.

use std::collections::HashMap;
use std::sync::Arc;

use half::bf16;
use llama_trace::config::{ModelConfig, Pairing, RopeScaling};
use llama_trace::diff::{About, Found, Pass, Traced};
use llama_trace::error::Result;
use llama_trace::trace::{Frame, FrameData, PassDims, Site, Stage, TokenLabel};
use ndarray::{ArrayD, IxDyn};

use super::common::fixture;
use super::common::models::tensors;

/// A run with all stages kept.
#[derive(Clone)]
pub(crate) struct Kept {
    pub(crate) about: About,
    pub(crate) frames: HashMap<Site, Arc<Frame>>,
}

impl Traced for Kept {
    fn about(&self) -> &About {
        &self.about
    }

    fn stage(&mut self, site: Site) -> Result<Found> {
        Ok(self.frames.get(&site).map_or(Found::Missing, |frame| Found::Frame(Arc::clone(frame))))
    }
}

/// The passes of a run that only reads `ids`.
pub(crate) fn passes(ids: &[u32]) -> Vec<Pass> {
    let tokens = ids.iter().map(|&id| TokenLabel { id, text: format!("#{id}") }).collect();
    vec![Pass { dims: PassDims { pass: 0, start: 0, tokens: ids.len(), ..PassDims::default() }, tokens }]
}

/// A frame of float32 values.
pub(crate) fn frame(site: Site, shape: &[usize], values: Vec<f32>) -> Arc<Frame> {
    let data = FrameData::F32(ArrayD::from_shape_vec(IxDyn(shape), values).unwrap());
    Arc::new(Frame { site, axes: site.stage.axes(), data })
}

/// The port.
pub(crate) struct Port {
    config: ModelConfig,
    weights: HashMap<String, Vec<f32>>,
    /// The name of the mistake, or an empty text for none. If the mistake has several forms, the form follows after a
    /// colon.
    bug: &'static str,
    /// Whether every result is rounded to bfloat16.
    rounds: bool,
    out: HashMap<Site, Arc<Frame>>,
}

type Rows = Vec<Vec<f32>>;

impl Port {
    pub(crate) fn new(model: &str, config: &ModelConfig, bug: &'static str) -> Self {
        // The built-in model is in bfloat16, the golden models are in float32.
        let read = |(shape, bytes): (Vec<usize>, Vec<u8>)| match bytes.len() / shape.iter().product::<usize>()
        {
            2 => bytes.as_chunks::<2>().0.iter().map(|word| bf16::from_le_bytes(*word).to_f32()).collect(),
            _ => bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect(),
        };
        let tensors = tensors(&fixture(&format!("golden/{model}")));
        let weights = tensors.into_iter().map(|(name, tensor)| (name, read(tensor))).collect();
        Self { config: config.clone(), weights, bug, rounds: bug == "bf16_rounding", out: HashMap::new() }
    }

    fn has(&self, bug: &str) -> bool {
        self.bug == bug
    }

    fn keep(&mut self, site: Site, rows: &Rows, shape: &[usize]) {
        self.out.insert(site, frame(site, shape, rows.concat()));
    }

    fn weight(&self, name: &str) -> &[f32] {
        &self.weights[name]
    }

    /// x · wᵀ (+ bias).
    fn linear(&self, x: &Rows, name: &str) -> Rows {
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

    fn round(&self, x: f32) -> f32 {
        if self.rounds { bf16::from_f32(x).to_f32() } else { x }
    }

    fn norm(&self, x: &Rows, name: &str) -> Rows {
        let (of_attention, of_ffn) = ("input_layernorm", "post_attention_layernorm");
        let swapped = match name.contains(of_attention) {
            true => name.replace(of_attention, of_ffn),
            false => name.replace(of_ffn, of_attention),
        };
        let w = self.weight(if self.has("norm_weights_swapped") { &swapped } else { name });
        if self.has("norm_missing") && name == "model.norm.weight" {
            return x.clone();
        }
        let eps = if self.has("norm_eps") { 1e-6 } else { self.config.norm_eps };
        let row = |x: &Vec<f32>| {
            let mean = x.iter().sum::<f32>() / x.len() as f32;
            let x: Vec<f32> = x.iter().map(|x| if self.has("layer_norm") { x - mean } else { *x }).collect();
            let count = if self.has("norm_sum") { 1 } else { x.len() };
            let square = x.iter().map(|x| x * x).sum::<f32>() / count as f32;
            let factor = 1.0 / (square + eps).sqrt();
            let weight = |w: f32| match self.bug {
                "norm_weight_plus_one" => w + 1.0,
                "norm_weight_missing" => 1.0,
                _ => w,
            };
            x.iter().zip(w).map(|(x, w)| self.round(self.round(x * factor) * weight(*w))).collect()
        };
        x.iter().map(row).collect()
    }

    /// The rotation of each pair from one position to the next, in radians.
    fn frequencies(&self) -> Vec<f32> {
        let theta = if self.has("rope_theta") { 1e6 } else { self.config.rope_theta };
        let c = self.config.head_dim;
        let plain = (0..c / 2).map(|i| theta.powf(-((2 * i) as f32) / c as f32));
        let RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } =
            self.config.rope_scaling
        else {
            return plain.collect();
        };
        let scaled = |f: f32, factor: f32| {
            let turns = original_context as f32 * f / std::f32::consts::TAU;
            let keep = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
            (1.0 - keep) * f / factor + keep * f
        };
        let by = if self.has("rope_scaling:factor") { 2.0 } else { factor };
        plain.map(|f| if self.has("rope_scaling") { f } else { scaled(f, by) }).collect()
    }

    fn rope(&self, x: &Rows, cos: &Rows, sin: &Rows) -> Rows {
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

    fn seen(&self, layer: usize, query: usize, key: usize) -> bool {
        let window = match (self.config.window, self.bug) {
            (Some(_), "window") => None,
            (Some(window), "window:short") => Some(window - 1),
            (window, _) => window.filter(|_| self.config.window_layers.contains(layer)),
        };
        let last = if self.has("mask_offset") { query + 1 } else { query };
        key <= last && window.is_none_or(|window| key + window > query)
    }

    /// Runs a pass over `ids`. Returns every stage.
    pub(crate) fn run(mut self, ids: &[u32]) -> Kept {
        let ids = if self.has("bos") { &ids[1..] } else { ids };
        let ModelConfig { dim, layers, heads, kv_heads, head_dim: c, ffn_dim, vocab, .. } =
            self.config.clone();
        let t = ids.len();
        let table = self.weight("model.embed_tokens.weight");
        let scale = if self.has("embedding_scale") { (dim as f32).sqrt() } else { 1.0 };
        let row =
            |&id: &u32| table[id as usize * dim..][..dim].iter().map(|x| self.round(x * scale)).collect();
        let mut x: Rows = ids.iter().map(row).collect();
        let once = |stage| Site::once(0, stage);
        self.keep(once(Stage::Embedding), &x, &[t, dim]);
        let frequencies = self.frequencies();
        let first = if self.has("position_offset") { 1 } else { 0 };
        let angles = |of: fn(f32) -> f32| -> Rows {
            let kept = |x: f32| {
                if self.has("bf16_rounding:angles") { bf16::from_f32(x).to_f32() } else { self.round(x) }
            };
            let row = |p: usize| frequencies.iter().map(|f| kept(of((p + first) as f32 * f))).collect();
            (0..t).map(row).collect()
        };
        let (cos, mut sin) = (angles(f32::cos), angles(f32::sin));
        if self.has("rope_direction") {
            sin.iter_mut().flatten().for_each(|sin| *sin = -*sin);
        }
        self.keep(once(Stage::RopeCos), &cos, &[t, c / 2]);
        self.keep(once(Stage::RopeSin), &sin, &[t, c / 2]);
        for layer in 0..layers {
            let of = if self.has("other_layer") { 0 } else { layer };
            let name = |part: &str| format!("model.layers.{of}.{part}");
            let at = |stage| Site::layer(0, layer, stage);
            let norm = self.norm(&x, &name("input_layernorm.weight"));
            self.keep(at(Stage::AttnNorm), &norm, &[t, dim]);
            let [mut q, mut k, v] =
                ["q", "k", "v"].map(|p| self.linear(&norm, &name(&format!("self_attn.{p}_proj"))));
            self.keep(at(Stage::Xq), &q, &[t, heads, c]);
            self.keep(at(Stage::Xk), &k, &[t, kv_heads, c]);
            self.keep(at(Stage::Xv), &v, &[t, kv_heads, c]);
            if self.config.qk_norm {
                for (of, stage, p) in [(&mut q, Stage::XqNorm, "q"), (&mut k, Stage::XkNorm, "k")] {
                    let heads: Rows = of.iter().flat_map(|row| row.chunks(c).map(<[f32]>::to_vec)).collect();
                    let count = heads.len() / t;
                    let normed = self.norm(&heads, &name(&format!("self_attn.{p}_norm.weight")));
                    *of = normed.chunks(count).map(<[Vec<f32>]>::concat).collect();
                    self.keep(at(stage), of, &[t, count, c]);
                }
            }
            let turned = |x: Rows, not: &str| if self.has(not) { x } else { self.rope(&x, &cos, &sin) };
            let (q, k) = (turned(q, "rope_missing"), turned(k, "rope_missing:keys"));
            self.keep(at(Stage::XqRope), &q, &[t, heads, c]);
            self.keep(at(Stage::XkRope), &k, &[t, kv_heads, c]);
            let kv = |h: usize| if self.has("kv_head_order") { h % kv_heads } else { h * kv_heads / heads };
            let cached = |x: Rows| -> Rows {
                let kept =
                    |x: f32| if self.has("bf16_rounding:cache") { bf16::from_f32(x).to_f32() } else { x };
                x.into_iter().map(|row| row.into_iter().map(kept).collect()).collect()
            };
            let (k, v) = (cached(k), cached(v));
            let tiled = |h: usize| h % kv_heads;
            let repeated = |x: &Rows, kv: &dyn Fn(usize) -> usize| -> Rows {
                x.iter()
                    .map(|row| (0..heads).flat_map(|h| row[kv(h) * c..][..c].to_vec()).collect())
                    .collect()
            };
            let of_values: &dyn Fn(usize) -> usize =
                if self.has("kv_head_order:values") { &tiled } else { &kv };
            let (k, v) = (repeated(&k, &kv), repeated(&v, of_values));
            self.keep(at(Stage::Keys), &k, &[t, heads, c]);
            self.keep(at(Stage::Values), &v, &[t, heads, c]);
            let (mut dots, mut scores, mut masked, mut shares) =
                (Rows::new(), Rows::new(), Rows::new(), Rows::new());
            let mut mixed = vec![vec![0.0; heads * c]; t];
            for h in 0..heads {
                for i in 0..t {
                    let dot =
                        |j: usize| self.round((0..c).map(|e| q[i][h * c + e] * k[j][h * c + e]).sum::<f32>());
                    let dots_of_row: Vec<f32> = (0..t).map(dot).collect();
                    let score = |dot: &f32| {
                        let by = if self.has("attention_scale") { 1.0 } else { (c as f32).sqrt() };
                        let score = dot / by;
                        self.round(if self.has("softcap") { 2.0 * (score / 2.0).tanh() } else { score })
                    };
                    let row: Vec<f32> = dots_of_row.iter().map(score).collect();
                    let hidden =
                        |(j, s): (usize, &f32)| if self.seen(layer, i, j) { *s } else { f32::NEG_INFINITY };
                    let seen: Vec<f32> = row.iter().enumerate().map(hidden).collect();
                    let most = seen.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let sum: f32 = seen.iter().map(|s| (s - most).exp()).sum();
                    let shared = |x: f32| {
                        if self.has("bf16_rounding:softmax") {
                            bf16::from_f32(x).to_f32()
                        } else {
                            self.round(x)
                        }
                    };
                    let share: Vec<f32> = seen.iter().map(|s| shared((s - most).exp() / sum)).collect();
                    for e in 0..c {
                        mixed[i][h * c + e] = self.round((0..t).map(|j| share[j] * v[j][h * c + e]).sum());
                    }
                    dots.push(dots_of_row);
                    scores.push(row);
                    masked.push(seen);
                    shares.push(share);
                }
            }
            self.keep(at(Stage::Qk), &dots, &[heads, t, t]);
            self.keep(at(Stage::Scores), &scores, &[heads, t, t]);
            self.keep(at(Stage::MaskedScores), &masked, &[heads, t, t]);
            self.keep(at(Stage::Softmax), &shares, &[heads, t, t]);
            self.keep(at(Stage::AttnHeads), &mixed, &[t, heads, c]);
            let merged = if self.has("heads_merged") {
                let heads_first =
                    (0..heads).flat_map(|h| mixed.iter().flat_map(move |row| row[h * c..][..c].to_vec()));
                heads_first.collect::<Vec<f32>>().chunks(heads * c).map(<[f32]>::to_vec).collect()
            } else {
                mixed
            };
            let output = self.linear(&merged, &name("self_attn.o_proj"));
            self.keep(at(Stage::AttnOutput), &output, &[t, dim]);
            let input = x.clone();
            x = match self.bug {
                "residual_missing" => output.clone(),
                "residual_missing:normed" => self.sum(&norm, &output),
                _ => self.sum(&x, &output),
            };
            self.keep(at(Stage::AttnResidual), &x, &[t, dim]);
            let read = if self.has("norm_input") { &input } else { &x };
            let norm = self.norm(read, &name("post_attention_layernorm.weight"));
            self.keep(at(Stage::FfnNorm), &norm, &[t, dim]);
            let [gate, up] = ["gate", "up"].map(|p| self.linear(&norm, &name(&format!("mlp.{p}_proj"))));
            let act = |g: &f32| {
                self.round(match self.bug {
                    "activation" => g / 2.0 * (1.0 + (0.797_884_6 * (g + 0.044_715 * g * g * g)).tanh()),
                    _ => g / (1.0 + (-g).exp()),
                })
            };
            let silu: Rows = if self.has("gate_up_swapped:halves") { &up } else { &gate }
                .iter()
                .map(|row| row.iter().map(act).collect())
                .collect();
            let other = if self.has("gate_up_swapped:halves") { &gate } else { &up };
            let times =
                |(a, b): (&Vec<f32>, &Vec<f32>)| a.iter().zip(b).map(|(a, b)| self.round(a * b)).collect();
            let hidden: Rows = silu.iter().zip(other).map(times).collect();
            self.keep(at(Stage::FfnGate), &gate, &[t, ffn_dim]);
            self.keep(at(Stage::FfnSilu), &silu, &[t, ffn_dim]);
            self.keep(at(Stage::FfnUp), &up, &[t, ffn_dim]);
            self.keep(at(Stage::FfnHidden), &hidden, &[t, ffn_dim]);
            let down = self.linear(&hidden, &name("mlp.down_proj"));
            self.keep(at(Stage::FfnDown), &down, &[t, dim]);
            x = match self.bug {
                "residual_missing:ffn" => down.clone(),
                "residual_missing:normed" => self.sum(&norm, &down),
                _ => self.sum(&x, &down),
            };
            self.keep(at(Stage::FfnResidual), &x, &[t, dim]);
        }
        let norm = self.norm(&x, "model.norm.weight");
        self.keep(once(Stage::FinalNorm), &norm, &[t, dim]);
        let own = self.weights.contains_key("lm_head.weight") && !self.has("tied_head");
        let mut logits = self.linear(&norm, if own { "lm_head" } else { "model.embed_tokens" });
        if self.has("softcap:logits") {
            logits.iter_mut().flatten().for_each(|x| *x = 3.0 * (*x / 3.0).tanh());
        }
        self.keep(once(Stage::Logits), &logits, &[t, vocab]);
        let about = About {
            layers: None,
            nowhere: std::collections::BTreeMap::new(),
            unsure: std::collections::BTreeMap::new(),
            name: "a port".into(),
            card: None,
            precision: None,
            settings: serde_json::Map::new(),
            cache: None,
            fingerprint: None,
            sampling: None,
            prompt: None,
            passes: passes(ids),
        };
        Kept { about, frames: self.out }
    }

    fn sum(&self, a: &Rows, b: &Rows) -> Rows {
        let row = |(a, b): (&Vec<f32>, &Vec<f32>)| a.iter().zip(b).map(|(a, b)| self.round(a + b)).collect();
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
