//! manifest.json: what was run, on what, and what each file holds.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::cli::RunArgs;
use crate::cli::input::Run;
use crate::trace::{Axis, Frame, PassDims, Stage};

/// The manifest, as it is written.
#[derive(Serialize)]
pub(super) struct Manifest {
    model: Value,
    backend: String,
    precision: String,
    pairing: String,
    prompt: Option<String>,
    sampling: Value,
    passes: Vec<Value>,
    files: Vec<Value>,
    aliases: Map<String, Value>,
}

impl Manifest {
    pub(super) fn new(run: &Run, args: &RunArgs) -> Self {
        let card = run.model.card();
        let sizes = card.sizes;
        let sampling = args.sampling.sampling();
        Self {
            model: json!({
                "name": card.name, "ignored_config": card.ignored,
                "layers": sizes.layers, "dim": sizes.dim, "heads": sizes.heads, "kv_heads": sizes.kv_heads,
                "head_dim": sizes.head_dim, "ffn_dim": sizes.hidden, "vocab": sizes.vocab,
                "context": card.context, "norm_eps": float(card.norm_eps),
                "rope_theta": float(card.rope_theta), "rope_scaling": card.rope_scaling,
                "tied": card.tied, "qkv_bias": card.qkv_bias, "output_bias": card.output_bias,
                "mlp_bias": card.mlp_bias, "qk_norm": sizes.qk_norm,
                "q8_group": sizes.group, "window": sizes.window, "window_from": sizes.window.map(|_| sizes.window_from),
            }),
            backend: card.backend,
            precision: card.precision,
            pairing: card.pairing,
            prompt: run.text.clone(),
            sampling: json!({
                "temperature": float(sampling.temperature), "top_k": sampling.top_k,
                "top_p": float(sampling.top_p), "seed": sampling.seed,
            }),
            passes: Vec::new(),
            files: Vec::new(),
            aliases: aliases(),
        }
    }

    /// Adds a pass that has run.
    pub(super) fn pass(&mut self, run: &Run, dims: PassDims, ids: &[u32], sampled: u32) {
        let token = |id: u32| json!({ "id": id, "text": run.label(id).text });
        self.passes.push(json!({
            "pass": dims.pass,
            "start": dims.start,
            "tokens": ids.iter().map(|&id| token(id)).collect::<Vec<_>>(),
            "sampled": token(sampled),
        }));
    }

    /// Adds a file.
    pub(super) fn file(&mut self, frame: &Frame) {
        let stats = frame.stats();
        self.files.push(json!({
            "file": frame.site.file_name(),
            "pass": frame.site.pass,
            "layer": frame.site.layer,
            "stage": frame.site.stage.name(),
            "axes": frame.axes.iter().copied().map(Axis::name).collect::<Vec<_>>(),
            "shape": frame.shape(),
            "min": number(stats.min),
            "max": number(stats.max),
            "mean": number(stats.mean),
            "std": number(stats.std),
            "neg_inf": stats.neg_inf,
            "pos_inf": stats.pos_inf,
            "nan": stats.nan,
        }));
    }

    pub(super) fn file_count(&self) -> usize {
        self.files.len()
    }
}

/// A number as JSON has them: what is not finite becomes null.
fn number(value: f64) -> Value {
    serde_json::Number::from_f64(value).map_or(Value::Null, Value::Number)
}

/// A float32 setting with as many digits as it needs: 0.00001, not 0.000009999999747378752.
fn float(value: f32) -> Value {
    number(value.to_string().parse().unwrap_or(f64::from(value)))
}

/// What other code calls each stage.
fn aliases() -> Map<String, Value> {
    let names = |stage: &Stage| {
        let aliases = stage.info().aliases;
        let all = [
            ("hugging_face", aliases.hugging_face),
            ("transformer_lens", aliases.transformer_lens),
            ("llama_cpp", aliases.llama_cpp),
            ("go_walkthrough", aliases.go),
        ];
        let known = all.into_iter().filter(|(_, name)| !name.is_empty());
        let known: Map<_, _> = known.map(|(code, name)| (code.to_owned(), Value::from(name))).collect();
        (!known.is_empty()).then(|| (stage.name().to_owned(), Value::Object(known)))
    };
    Stage::ALL.iter().filter_map(names).collect()
}
