//! An independent port of Llama and of the families around it: plain float32 loops, written from the papers and not from
//! this program, with an optional mistake.

#[path = "port/parts.rs"]
mod parts;

use std::collections::HashMap;
use std::sync::Arc;

use half::bf16;
use llama_trace::config::{Activation, ModelConfig, Placement, Rope};
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

    /// The residual stream `x` after a sublayer, which read `norm` and gave `output`. `after` is the weight of the norm
    /// after the sublayer, whose values are kept as `site`. `missing` is the mistake that drops `x`.
    fn residual(
        &mut self,
        x: &Rows,
        norm: &Rows,
        output: &Rows,
        (after, missing): (&str, &str),
        site: Site,
    ) -> Rows {
        if self.config.placement.after() {
            let (normed, sum) = self.after(x, output, after);
            if !self.has("post_norm_place:hidden") {
                self.keep(site, &normed, &[x.len(), self.config.dim]);
            }
            return sum;
        }
        match self.bug {
            bug if bug == missing => output.clone(),
            "residual_missing:normed" => self.sum(norm, output),
            _ => self.sum(x, output),
        }
    }

    fn weight(&self, name: &str) -> &[f32] {
        &self.weights[name]
    }

    /// Runs a pass over `ids`. Returns every stage.
    pub(crate) fn run(mut self, ids: &[u32]) -> Kept {
        let ids = if self.has("bos") { &ids[1..] } else { ids };
        let ModelConfig { dim, layers, heads, kv_heads, head_dim: c, ffn_dim, vocab, .. } =
            self.config.clone();
        let t = ids.len();
        let table = self.weight("model.embed_tokens.weight");
        let scale = match self.bug {
            "embedding_scale" => (dim as f32).sqrt(),
            "embedding_scale:missing" => 1.0,
            _ => self.config.multipliers.embedding,
        };
        let row =
            |&id: &u32| table[id as usize * dim..][..dim].iter().map(|x| self.round(x * scale)).collect();
        let mut x: Rows = ids.iter().map(row).collect();
        let once = |stage| Site::once(0, stage);
        self.keep(once(Stage::Embedding), &x, &[t, dim]);
        let first = if self.has("position_offset") { 1 } else { 0 };
        let angles = |rope: &Rope, of: fn(f32) -> f32| -> Rows {
            let frequencies = self.frequencies(rope);
            let kept = |x: f32| {
                if self.has("bf16_rounding:angles") { bf16::from_f32(x).to_f32() } else { self.round(x) }
            };
            let row = |p: usize| frequencies.iter().map(|f| kept(of((p + first) as f32 * f))).collect();
            (0..t).map(row).collect()
        };
        let tables = |number: usize| {
            let rope = self.config.rope(if self.has("rope_theta:global") { 0 } else { number });
            let sign = if self.has("rope_direction") { -1.0 } else { 1.0 };
            let sin =
                angles(&rope, f32::sin).into_iter().map(|row| row.into_iter().map(|x| sign * x).collect());
            (angles(&rope, f32::cos), sin.collect::<Rows>())
        };
        let tables: Vec<(Rows, Rows)> = (0..self.config.ropes()).map(tables).collect();
        if let [(cos, sin)] = &tables[..] {
            self.keep(once(Stage::RopeCos), cos, &[t, c / 2]);
            self.keep(once(Stage::RopeSin), sin, &[t, c / 2]);
        }
        let placement = self.config.placement;
        let parallel = placement == Placement::Parallel;
        let of_ffn = match placement {
            Placement::Both => "pre_feedforward_layernorm.weight",
            _ => "post_attention_layernorm.weight",
        };
        for layer in 0..layers {
            let of = if self.has("other_layer") { 0 } else { layer };
            let name = |part: &str| format!("model.layers.{of}.{part}");
            let at = |stage| Site::layer(0, layer, stage);
            let mut norm = x.clone();
            if placement.before() {
                norm = self.norm(&x, &name("input_layernorm.weight"));
                self.keep(at(Stage::AttnNorm), &norm, &[t, dim]);
            }
            let [mut q, mut k, v] =
                ["q", "k", "v"].map(|p| self.linear(&norm, &name(&format!("self_attn.{p}_proj"))));
            self.keep(at(Stage::Xq), &q, &[t, heads, c]);
            self.keep(at(Stage::Xk), &k, &[t, kv_heads, c]);
            self.keep(at(Stage::Xv), &v, &[t, kv_heads, c]);
            let late = self.config.qk_norm_form.after_rope;
            let [norms_first, norms_last] =
                [!late, late].map(|here| self.config.qk_norm && here != self.has("qk_norm_place"));
            let names = match late {
                true => ["query_layernorm", "key_layernorm"],
                false => ["q_norm", "k_norm"],
            }
            .map(|norm| name(&format!("self_attn.{norm}.weight")));
            if norms_first {
                [q, k] = [self.norm_heads(&q, &names[0]), self.norm_heads(&k, &names[1])];
            }
            // A norm has the stage that the model has.
            let keep_norms = |port: &mut Self, q: &Rows, k: &Rows| {
                let stages = if late {
                    [Stage::XqRopeNorm, Stage::XkRopeNorm]
                } else {
                    [Stage::XqNorm, Stage::XkNorm]
                };
                port.keep(at(stages[0]), q, &[t, heads, c]);
                port.keep(at(stages[1]), k, &[t, kv_heads, c]);
            };
            if norms_first && !late {
                keep_norms(&mut self, &q, &k);
            }
            let (cos, sin) = &tables[self.config.rope_of(layer).unwrap_or(0)];
            if tables.len() > 1 {
                self.keep(at(Stage::LayerRopeCos), cos, &[t, c / 2]);
                self.keep(at(Stage::LayerRopeSin), sin, &[t, c / 2]);
            }
            let turned = |x: Rows, not: &str| if self.has(not) { x } else { self.rope(&x, cos, sin) };
            if self.is_turned(layer) {
                (q, k) = (turned(q, "rope_missing"), turned(k, "rope_missing:keys"));
                self.keep(at(Stage::XqRope), &q, &[t, heads, c]);
                self.keep(at(Stage::XkRope), &k, &[t, kv_heads, c]);
            }
            if norms_last {
                [q, k] = [self.norm_heads(&q, &names[0]), self.norm_heads(&k, &names[1])];
                if late {
                    keep_norms(&mut self, &q, &k);
                }
            }
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
            let [mut dots, mut scores, mut capped, mut masked, mut shares] = [const { Rows::new() }; 5];
            // The soft cap of the scores: c · tanh(x / c).
            let cap = self.config.score_cap.filter(|_| !self.has("softcap_missing"));
            let bounded = |x: f32| cap.map_or(x, |cap| self.round(cap * (x / cap).tanh()));
            let is_late = self.has("softcap_late");
            let mut mixed = vec![vec![0.0; heads * c]; t];
            for h in 0..heads {
                for i in 0..t {
                    let dot =
                        |j: usize| self.round((0..c).map(|e| q[i][h * c + e] * k[j][h * c + e]).sum::<f32>());
                    let dots_of_row: Vec<f32> = (0..t).map(dot).collect();
                    let score = |dot: &f32| {
                        let score = dot * self.score_scale();
                        self.round(if self.has("softcap") { 2.0 * (score / 2.0).tanh() } else { score })
                    };
                    let row: Vec<f32> = dots_of_row.iter().map(score).collect();
                    let hidden =
                        |(j, s): (usize, &f32)| if self.seen(layer, i, j) { *s } else { f32::NEG_INFINITY };
                    let soft: Vec<f32> = row.iter().map(|x| if is_late { *x } else { bounded(*x) }).collect();
                    let mut seen: Vec<f32> = soft.iter().enumerate().map(hidden).collect();
                    if is_late {
                        seen.iter_mut().for_each(|x| *x = bounded(*x));
                    }
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
                    capped.push(soft);
                    masked.push(seen);
                    shares.push(share);
                }
            }
            self.keep(at(Stage::Qk), &dots, &[heads, t, t]);
            self.keep(at(Stage::Scores), &scores, &[heads, t, t]);
            if cap.is_some() && !is_late {
                self.keep(at(Stage::CappedScores), &capped, &[heads, t, t]);
            }
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
            let input = x;
            let of = (&*name("post_attention_layernorm.weight"), "residual_missing");
            x = self.residual(&input, &norm, &output, of, at(Stage::PostAttnNorm));
            self.keep(at(Stage::AttnResidual), &x, &[t, dim]);
            let read = if self.has("norm_input") { &input } else { &x };
            if placement.before_ffn() {
                norm = self.norm(read, &name(of_ffn));
                self.keep(at(Stage::FfnNorm), &norm, &[t, dim]);
            } else if !parallel {
                norm = x.clone();
            }
            let [gate, up] = ["gate", "up"].map(|p| self.linear(&norm, &name(&format!("mlp.{p}_proj"))));
            let silu: Rows = if self.has("gate_up_swapped:halves") { &up } else { &gate }
                .iter()
                .map(|row| row.iter().map(|x| self.act(*x)).collect())
                .collect();
            let other = if self.has("gate_up_swapped:halves") { &gate } else { &up };
            let times =
                |(a, b): (&Vec<f32>, &Vec<f32>)| a.iter().zip(b).map(|(a, b)| self.round(a * b)).collect();
            let hidden: Rows = silu.iter().zip(other).map(times).collect();
            self.keep(at(Stage::FfnGate), &gate, &[t, ffn_dim]);
            let acted =
                if self.config.activation == Activation::Silu { Stage::FfnSilu } else { Stage::FfnAct };
            self.keep(at(acted), &silu, &[t, ffn_dim]);
            self.keep(at(Stage::FfnUp), &up, &[t, ffn_dim]);
            self.keep(at(Stage::FfnHidden), &hidden, &[t, ffn_dim]);
            let down = self.linear(&hidden, &name("mlp.down_proj"));
            self.keep(at(Stage::FfnDown), &down, &[t, dim]);
            let of = (&*name("post_feedforward_layernorm.weight"), "residual_missing:ffn");
            x = self.residual(&x, &norm, &down, of, at(Stage::PostFfnNorm));
            self.keep(at(Stage::FfnResidual), &x, &[t, dim]);
        }
        let norm = self.norm(&x, "model.norm.weight");
        self.keep(once(Stage::FinalNorm), &norm, &[t, dim]);
        let own = self.weights.contains_key("lm_head.weight") && !self.has("tied_head");
        let mut logits = self.linear(&norm, if own { "lm_head" } else { "model.embed_tokens" });
        if self.has("softcap:logits") {
            logits.iter_mut().flatten().for_each(|x| *x = 3.0 * (*x / 3.0).tanh());
        }
        let by = match self.bug {
            "logit_scale" => 1.0,
            "logit_scale:divided" => self.config.multipliers.logits.recip(),
            _ => self.config.multipliers.logits,
        };
        logits.iter_mut().flatten().for_each(|x| *x *= by);
        self.keep(once(Stage::Logits), &logits, &[t, vocab]);
        if let Some(cap) = self.config.logit_cap {
            if !self.has("softcap_missing:logits") {
                logits.iter_mut().flatten().for_each(|x| *x = cap * (*x / cap).tanh());
            }
            self.keep(once(Stage::CappedLogits), &logits, &[t, vocab]);
        }
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
}
