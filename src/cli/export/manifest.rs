//! manifest.json: what was run, on what, and what each file holds; and how an earlier one is known.

use std::collections::BTreeSet;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::cli::RunArgs;
use crate::cli::device::Device;
use crate::cli::input::Run;
use crate::trace::{Axis, PassDims, Site, Stage, Stats};

/// The file that marks a directory as an export.
pub(super) const MANIFEST: &str = "manifest.json";

/// What a manifest says that it is, and which form of it.
const FORMAT: &str = "llama-trace export";
const VERSION: u64 = 1;

/// The manifest, as it is written.
#[derive(Serialize)]
pub(super) struct Manifest {
    format: &'static str,
    version: u64,
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
    pub(super) fn new<D: Device>(run: &Run<D>, args: &RunArgs) -> Self {
        let card = run.model.card();
        let sizes = card.sizes();
        let sampling = args.sampling.sampling();
        Self {
            format: FORMAT,
            version: VERSION,
            model: json!({
                "name": card.name, "ignored_config": card.ignored,
                "layers": sizes.layers, "dim": sizes.dim, "heads": sizes.heads, "kv_heads": sizes.kv_heads,
                "head_dim": sizes.head_dim, "ffn_dim": sizes.hidden, "vocab": sizes.vocab,
                "context": card.config.context, "norm_eps": float(card.config.norm_eps),
                "rope_theta": float(card.config.rope_theta), "rope_scaling": card.config.rope_scaling.to_string(),
                "tied": card.config.tied, "qkv_bias": card.config.qkv_bias, "output_bias": card.config.output_bias,
                "mlp_bias": card.config.mlp_bias, "qk_norm": sizes.qk_norm,
                "q8_group": sizes.group, "window": sizes.window, "window_from": sizes.window.map(|_| sizes.window_from),
            }),
            backend: card.backend,
            precision: card.precision.name().into(),
            pairing: card.config.pairing.name().into(),
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
    pub(super) fn pass<D: Device>(&mut self, run: &Run<D>, dims: PassDims, ids: &[u32], sampled: u32) {
        let token = |id: u32| json!({ "id": id, "text": run.label(id).text });
        self.passes.push(json!({
            "pass": dims.pass,
            "start": dims.start,
            "tokens": ids.iter().map(|&id| token(id)).collect::<Vec<_>>(),
            "sampled": token(sampled),
        }));
    }

    /// Adds a file.
    pub(super) fn file(&mut self, site: Site, shape: &[usize], stats: Stats) {
        self.files.push(json!({
            "file": site.file_name(),
            "pass": site.pass,
            "layer": site.layer,
            "stage": site.stage.name(),
            "axes": site.stage.axes().iter().copied().map(Axis::name).collect::<Vec<_>>(),
            "shape": shape,
            "min": finite(stats.min),
            "max": finite(stats.max),
            "mean": finite(stats.mean),
            "std": finite(stats.std),
            "neg_inf": stats.neg_inf,
            "pos_inf": stats.pos_inf,
            "nan": stats.nan,
        }));
    }

    pub(super) fn file_count(&self) -> usize {
        self.files.len()
    }
}

/// The files of an export that is there already.
#[derive(Debug, Default)]
pub(super) struct Earlier(BTreeSet<String>);

/// What tells an export's manifest from others. The first ones did not say what they are.
#[derive(Deserialize)]
struct Known {
    format: Option<String>,
    version: Option<u64>,
    model: Option<IgnoredAny>,
    passes: Option<IgnoredAny>,
    files: Option<Vec<KnownFile>>,
    aliases: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct KnownFile {
    file: String,
}

impl Earlier {
    /// Reads an earlier export's manifest.
    ///
    /// # Errors
    /// What it is instead, where it is not one.
    pub(super) fn read(text: &[u8]) -> Result<Self, String> {
        let foreign = || "a file that is not a manifest of this program".to_owned();
        let known: Known = serde_json::from_slice(text).map_err(|_| foreign())?;
        match (&*known.format.unwrap_or_default(), known.version) {
            (FORMAT, Some(VERSION)) => {}
            (FORMAT, Some(version)) if version > VERSION => {
                return Err(format!(
                    "the manifest of an export of version {version}, which is newer than this program's"
                ));
            }
            // As they were before they said so.
            ("", None) if known.model.is_some() && known.passes.is_some() && known.aliases.is_some() => {}
            _ => return Err(foreign()),
        }
        let names = known.files.ok_or_else(foreign)?.into_iter().map(|file| file.file);
        // A name of another form was not written by an export, whatever the manifest says.
        Ok(Self(names.filter(|name| is_export(name)).chain([MANIFEST.to_owned()]).collect()))
    }

    pub(super) fn names(&self, name: &str) -> bool {
        self.0.contains(name)
    }

    /// Its files, the manifest among them.
    pub(super) fn files(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

/// Whether `name` has the form of [`Site::file_name`].
fn is_export(name: &str) -> bool {
    let parts: Vec<_> = name.split('/').collect();
    let (pass, layer, file) = match parts[..] {
        [pass, file] => (pass, None, file),
        [pass, layer, file] => (pass, Some(layer), file),
        _ => return false,
    };
    let stage = file.strip_suffix(".npy").unwrap_or_default();
    pass_of(pass).is_some()
        && layer.is_none_or(|layer| number(layer, "layer_", 2).is_some())
        && !stage.is_empty()
        && stage.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
}

/// The pass whose files are in the folder `name` of an export.
pub(super) fn pass_of(name: &str) -> Option<usize> {
    number(name, "pass_", 3)
}

fn number(name: &str, before: &str, digits: usize) -> Option<usize> {
    let number = name.strip_prefix(before)?.parse().ok()?;
    (format!("{before}{number:0digits$}") == name).then_some(number)
}

/// A number as JSON has them: what is not finite becomes null.
fn finite(value: f64) -> Value {
    serde_json::Number::from_f64(value).map_or(Value::Null, Value::Number)
}

/// A float32 setting with as many digits as it needs: 0.00001, not 0.000009999999747378752.
fn float(value: f32) -> Value {
    finite(value.to_string().parse().unwrap_or(f64::from(value)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_is_known_by_what_it_says_or_as_the_first_ones_were() {
        let files = json!([{"file": "pass_000/layer_00/xq.npy"}, {"file": "pass_000/logits.npy"}]);
        let read = |value: Value| Earlier::read(value.to_string().as_bytes());
        let of_now = json!({"format": FORMAT, "version": VERSION, "files": files});
        let first = json!({"model": {}, "passes": [], "files": files, "aliases": {}});
        for manifest in [of_now, first] {
            let earlier = read(manifest).unwrap();
            let expected = [MANIFEST, "pass_000/layer_00/xq.npy", "pass_000/logits.npy"];
            assert_eq!(earlier.files().collect::<Vec<_>>(), expected);
        }
        for foreign in [
            json!({}),
            json!([]),
            json!({"files": files}),
            json!({"model": {}, "passes": [], "files": files}),
            json!({"model": {}, "passes": [], "files": ["a"], "aliases": {}}),
            json!({"format": "another", "version": VERSION, "files": files}),
            json!({"format": FORMAT, "files": files}),
            json!({"format": FORMAT, "version": VERSION}),
            json!({"format": "another", "model": {}, "passes": [], "files": files, "aliases": {}}),
        ] {
            assert!(read(foreign.clone()).unwrap_err().contains("not a manifest"), "{foreign}");
        }
        let newer = read(json!({"format": FORMAT, "version": VERSION + 1, "files": files}));
        assert!(newer.unwrap_err().contains("newer"));
    }

    #[test]
    fn only_names_of_the_exports_own_form_are_its_files() {
        for stage in Stage::ALL {
            let name = match stage.in_layer() {
                true => Site::layer(1234, 123, *stage).file_name(),
                false => Site::once(7, *stage).file_name(),
            };
            assert!(is_export(&name), "{name}");
        }
        for name in [
            "xq.npy",
            "/etc/xq.npy",
            "pass_000/../xq.npy",
            "pass_000/..",
            "../pass_000/xq.npy",
            "pass_0/xq.npy",
            "pass_0000/xq.npy",
            "pass_000/layer_0/xq.npy",
            "pass_000/layer_00/x/xq.npy",
            "pass_000/xq.txt",
            "pass_000/.npy",
            "pass_000/X.npy",
            "pass_000//xq.npy",
            "pass_+00/xq.npy",
        ] {
            assert!(!is_export(name), "{name}");
        }
    }
}
