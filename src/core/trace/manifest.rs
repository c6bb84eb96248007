//! manifest.json of an export: the run, its model, and the contents of each file. One type writes and reads it.

mod names;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::address::Address;
use super::axis::Axis;
use super::card::ModelCard;
use super::draw::Sampling;
use super::frame::Stats;
use super::site::Site;
use super::sizes::PassDims;
use super::source::TokenLabel;
use super::stage::Stage;
use super::step::Step;

pub use names::{pass_of, sequence_of};

/// The format name and version in a manifest.
const FORMAT: &str = "llama-trace export";
const VERSION: u64 = 1;

/// The end of a message about a file of a newer version.
pub const NEWER: &str = "which is newer than this program's";

/// The manifest. Some fields follow from the others or from the table of stages. They are written for people and
/// scripts, and recomputed when a manifest is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    #[serde(skip_deserializing)]
    format: &'static str,
    #[serde(skip_deserializing)]
    version: u64,
    /// The fields of the card, for people and scripts.
    #[serde(skip_deserializing)]
    model: Map<String, Value>,
    #[serde(skip_deserializing)]
    backend: String,
    #[serde(skip_deserializing)]
    precision: &'static str,
    #[serde(skip_deserializing)]
    pairing: &'static str,
    /// The text of the prompt. `None` if there was no prompt, or only its ids.
    pub prompt: Option<String>,
    /// The texts of the prompts of several sequences. `None` for a prompt that was given as ids.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prompts: Vec<Option<String>>,
    /// The number type of the KV cache, if it is known. Values computed from the cache are rounded to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<String>,
    /// The sampler settings.
    pub sampling: Option<Drawing>,
    /// The passes that ran.
    #[serde(default)]
    pub passes: Vec<ManifestPass>,
    /// The files.
    pub files: Vec<ManifestFile>,
    /// The names of each stage in other code.
    #[serde(skip_deserializing)]
    aliases: Map<String, Value>,
    /// The model; `None` in old manifests, which had only the field `model`.
    pub card: Option<ModelCard>,
    /// The file suffix of pictures; `None` for `.npy` files.
    #[serde(skip)]
    pub suffix: Option<&'static str>,
}

/// The sampler settings of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drawing {
    /// The settings.
    #[serde(flatten)]
    pub sampling: Sampling,
    /// The random number stream of the first sequence; each later sequence uses the next stream.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stream: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A pass of a manifest; with several sequences, one entry for each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ManifestPass {
    /// The sequence, if there were several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<usize>,
    /// Its number, from 0. A sequence that began later has no entries for the first passes.
    pub pass: usize,
    /// Tokens that were cached before it.
    pub start: usize,
    /// The tokens of the pass.
    pub tokens: Vec<TokenLabel>,
    /// The token drawn after it, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled: Option<TokenLabel>,
}

/// A file of a manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ManifestFile {
    /// Its path below the directory of the export.
    pub file: String,
    /// Its contents; `None` if the entry is incomplete.
    #[serde(flatten)]
    pub holds: Option<Box<Held>>,
}

/// The contents of a file: a stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// Its complete address; empty in old manifests.
    #[serde(default)]
    pub address: String,
    /// The sequence, if there were several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<usize>,
    /// Number of the pass.
    pub pass: usize,
    /// Number of the layer, if the stage has one.
    pub layer: Option<usize>,
    /// The stage's name.
    pub stage: String,
    /// The origin of the values in the export of a recorded run: `derived` from recorded values, or `computed again` by
    /// the model over the same tokens. `None` for recorded values, and for those that the exported run computed itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made: Option<String>,
    /// The names of its axes, outermost first.
    pub axes: Vec<String>,
    /// The length of each axis.
    pub shape: Vec<usize>,
    /// The smallest finite value. This field and the next three are `None` if there are no finite values.
    pub min: Option<f64>,
    /// The largest finite value.
    pub max: Option<f64>,
    /// Mean of the finite values.
    pub mean: Option<f64>,
    /// Standard deviation of the finite values.
    pub std: Option<f64>,
    /// Number of −∞ values.
    pub neg_inf: usize,
    /// Number of +∞ values.
    pub pos_inf: usize,
    /// Number of NaN values.
    pub nan: usize,
}

/// The fields that identify a manifest. The first versions had no `format`.
#[derive(Deserialize)]
struct Mark {
    format: Option<String>,
    version: Option<u64>,
    model: Option<IgnoredAny>,
    passes: Option<IgnoredAny>,
    aliases: Option<IgnoredAny>,
}

impl Manifest {
    /// The manifest of an export without files yet. `prompts` has the text of each prompt, if it has one.
    pub fn new(card: ModelCard, mut prompts: Vec<Option<String>>, sampling: Option<Drawing>) -> Self {
        let (passes, files) = (Vec::new(), Vec::new());
        let prompt = if prompts.len() < 2 { prompts.pop().flatten() } else { None };
        Self::complete(Some(card), (prompt, prompts), sampling, passes, files)
    }

    fn complete(
        card: Option<ModelCard>,
        (prompt, prompts): (Option<String>, Vec<Option<String>>),
        sampling: Option<Drawing>,
        passes: Vec<ManifestPass>,
        files: Vec<ManifestFile>,
    ) -> Self {
        Self {
            format: FORMAT,
            version: VERSION,
            model: card.as_ref().map(words).unwrap_or_default(),
            backend: card.as_ref().map(|card| card.backend.clone()).unwrap_or_default(),
            precision: card.as_ref().map_or("", |card| card.precision.name()),
            pairing: card.as_ref().map_or("", |card| card.config.pairing.name()),
            prompt,
            prompts,
            cache: None,
            sampling,
            passes,
            files,
            aliases: aliases(card.as_ref()),
            card,
            suffix: None,
        }
    }

    /// Reads a manifest written by this program.
    ///
    /// # Errors
    /// A description of `text`, if it is not a manifest.
    pub fn read(text: &[u8]) -> Result<Self, String> {
        let foreign = || "a file that is not a manifest of this program".to_owned();
        let mark: Mark = serde_json::from_slice(text).map_err(|_| foreign())?;
        match (&*mark.format.unwrap_or_default(), mark.version) {
            (FORMAT, Some(VERSION)) => {}
            (FORMAT, Some(version)) if version > VERSION => {
                return Err(format!("an export manifest of format version {version}, {NEWER}"));
            }
            // The first versions, without a format name.
            ("", None) if mark.model.is_some() && mark.passes.is_some() && mark.aliases.is_some() => {}
            _ => return Err(foreign()),
        }
        let Self { prompt, prompts, cache, sampling, passes, files, card, .. } =
            serde_json::from_slice(text).map_err(|_| foreign())?;
        if card.as_ref().is_some_and(|card| card.check().is_err()) {
            return Err("a manifest with invalid sizes of the model".to_owned());
        }
        Ok(Self { cache, ..Self::complete(card, (prompt, prompts), sampling, passes, files) })
    }

    /// Returns `sequence`, or `None` if the export has only one sequence.
    fn one_of(&self, sequence: usize) -> Option<usize> {
        (!self.prompts.is_empty()).then_some(sequence)
    }

    /// The path of a site's file in the export: [`Site::file_name`]. Several sequences have a folder each:
    /// `s2/pass_000/layer_00/xq.npy`. Pictures have their own suffix.
    pub fn file_name(&self, site: Site) -> String {
        let name = match self.one_of(site.sequence) {
            Some(sequence) => format!("s{sequence}/{}", site.file_name()),
            None => site.file_name(),
        };
        match (self.suffix, name.strip_suffix(".npy")) {
            (Some(suffix), Some(stem)) => format!("{stem}.{suffix}"),
            _ => name,
        }
    }

    /// Adds the tokens of `sequence` in a completed pass.
    pub fn pass(
        &mut self,
        sequence: usize,
        dims: PassDims,
        tokens: Vec<TokenLabel>,
        sampled: Option<TokenLabel>,
    ) {
        let (sequence, PassDims { pass, start, .. }) = (self.one_of(sequence), dims);
        self.passes.push(ManifestPass { sequence, pass, start, tokens, sampled });
    }

    /// Adds a file. `made` is the origin of values that the run did not compute itself.
    pub fn file(&mut self, site: Site, shape: &[usize], stats: Stats, made: Option<&str>) {
        // JSON has only finite numbers.
        let finite = |value: f64| value.is_finite().then_some(value);
        let holds = Held {
            address: Address::of(site, Step::Stage(site.stage), &[]).to_string(),
            sequence: self.one_of(site.sequence),
            pass: site.pass,
            layer: site.layer,
            stage: site.stage.name().to_owned(),
            made: made.map(str::to_owned),
            axes: site.stage.axes().iter().map(|axis| Axis::name(*axis).to_owned()).collect(),
            shape: shape.to_vec(),
            min: finite(stats.min),
            max: finite(stats.max),
            mean: finite(stats.mean),
            std: finite(stats.std),
            neg_inf: stats.neg_inf,
            pos_inf: stats.pos_inf,
            nan: stats.nan,
        };
        self.files.push(ManifestFile { file: self.file_name(site), holds: Some(Box::new(holds)) });
    }
}

/// The model's fields for people and scripts.
fn words(card: &ModelCard) -> Map<String, Value> {
    let (config, group) = (&card.config, card.precision.group());
    let words = json!({
        "name": card.name, "ignored_config": card.ignored, "without": card.without,
        "edits": card.edits,
        "layers": config.layers, "dim": config.dim, "heads": config.heads, "kv_heads": config.kv_heads,
        "head_dim": config.head_dim, "ffn_dim": config.ffn_dim, "vocab": config.vocab,
        "context": config.context, "norm_eps": float(config.norm_eps),
        "rope_theta": float(config.rope_theta), "rope_scaling": config.rope_scaling.to_string(),
        "tied": config.tied, "qkv_bias": config.qkv_bias, "output_bias": config.output_bias,
        "mlp_bias": config.mlp_bias, "qk_norm": config.qk_norm,
        "q8_group": group, "window": config.window, "window_layers": config.window.map(|_| config.window_layers),
    });
    match words {
        Value::Object(words) => words,
        _ => Map::new(),
    }
}

/// A float32 setting with the shortest digits: 0.00001, not 0.000009999999747378752.
fn float(value: f32) -> Value {
    let value = value.to_string().parse().unwrap_or(f64::from(value));
    serde_json::Number::from_f64(value).map_or(Value::Null, Value::Number)
}

/// The names of each stage of the model in other code.
fn aliases(card: Option<&ModelCard>) -> Map<String, Value> {
    let names = |stage: &Stage| {
        let aliases = card.map_or(stage.info().aliases, |card| stage.aliases(&card.config));
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
    let sizes = card.map(ModelCard::sizes);
    let in_model = |stage: Stage| sizes.map_or(stage, |sizes| stage.in_model(&sizes));
    Stage::ALL.iter().filter(|stage| in_model(stage.first_of_name()) == **stage).filter_map(names).collect()
}

#[cfg(test)]
mod tests {
    use super::super::spread::Spread;
    use super::*;
    use crate::config::{Precision, RopeScaling};

    fn label(id: u32) -> TokenLabel {
        TokenLabel { id, text: format!(" \u{1f600}\"{id}") }
    }

    fn written(precision: Precision, scaling: RopeScaling) -> Manifest {
        let card = ModelCard::small(|config| {
            config.rope_scaling = scaling;
            config.norm_eps = 1e-5 + f32::EPSILON;
            config.window = Some(3);
        });
        let drawing = Drawing {
            sampling: Sampling {
                temperature: 0.7,
                top_k: 40,
                top_p: 0.95,
                seed: u64::MAX,
                ..Sampling::default()
            },
            stream: 0,
        };
        let mut manifest =
            Manifest::new(ModelCard { precision, ..card }, vec![Some("a\n\"b\"".to_owned())], Some(drawing));
        manifest.pass(
            0,
            PassDims { pass: 0, start: 0, tokens: 2, ..PassDims::default() },
            vec![label(1), label(7)],
            Some(label(9)),
        );
        let stats = |values: &[f32]| Spread::of(values.iter().copied()).stats;
        manifest.file(Site::layer(0, 1, Stage::Xq), &[2, 2, 4], stats(&[0.1, -3e-9, f32::INFINITY]), None);
        manifest.file(
            Site::once(0, Stage::Mask),
            &[2, 2],
            stats(&[f32::NEG_INFINITY, f32::NAN]),
            Some("derived"),
        );
        manifest
    }

    #[test]
    fn a_manifest_reads_what_it_wrote_to_the_bit() {
        let scalings = [
            RopeScaling::None,
            RopeScaling::Linear { factor: 0.1 },
            RopeScaling::Llama3 {
                factor: 8.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.3,
                original_context: 8192,
            },
            RopeScaling::Divisors(vec![1.0, 1.0 / 3.0]),
        ];
        let precisions = [Precision::F32, Precision::Bf16, Precision::Q8 { group: 3 }];
        for (scaling, precision) in scalings.into_iter().zip(precisions.into_iter().cycle()) {
            let manifest = written(precision, scaling);
            let text = serde_json::to_vec_pretty(&manifest).unwrap();
            assert_eq!(Manifest::read(&text), Ok(manifest.clone()));
            let again = serde_json::to_vec_pretty(&Manifest::read(&text).unwrap()).unwrap();
            assert_eq!(String::from_utf8(again), String::from_utf8(text));
            for file in &manifest.files {
                let holds = file.holds.as_ref().unwrap();
                assert_eq!(Address::parse(&holds.address).unwrap().to_string(), holds.address);
            }
            let addresses: Vec<_> =
                manifest.files.iter().map(|file| &*file.holds.as_ref().unwrap().address).collect();
            assert_eq!(addresses, ["p0/L1/xq", "p0/mask"]);
        }
    }

    #[test]
    fn of_several_sequences_each_has_its_folder_and_its_number() {
        let drawing = Drawing {
            sampling: Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, seed: 3, ..Sampling::default() },
            stream: 7,
        };
        let prompts = vec![Some("a".to_owned()), None];
        let mut manifest = Manifest::new(ModelCard::small(|_| ()), prompts, Some(drawing));
        for sequence in 0..2 {
            let dims = PassDims { pass: 4, start: 0, tokens: 2, ..PassDims::default() };
            manifest.pass(sequence, dims, vec![label(1), label(7)], Some(label(9)));
            let site = Site { sequence, ..Site::layer(4, 1, Stage::Xq) };
            manifest.file(site, &[2, 2, 4], Spread::of([1.0, 2.0].into_iter()).stats, None);
        }
        let text = serde_json::to_vec(&manifest).unwrap();
        assert_eq!(Manifest::read(&text), Ok(manifest.clone()));
        let files: Vec<_> = manifest.files.iter().map(|file| &*file.file).collect();
        assert_eq!(files, ["s0/pass_004/layer_01/xq.npy", "s1/pass_004/layer_01/xq.npy"]);
        let addresses: Vec<_> =
            manifest.files.iter().map(|file| &*file.holds.as_ref().unwrap().address).collect();
        assert_eq!(addresses, ["p4/L1/xq", "s1/p4/L1/xq"]);
        let value = serde_json::to_value(&manifest).unwrap();
        assert_eq!(json!([value["prompt"], value["prompts"]]), json!([null, ["a", null]]));
        assert_eq!(json!([value["passes"][0]["sequence"], value["files"][1]["sequence"]]), json!([0, 1]));
        assert_eq!(value["sampling"]["stream"], 7);
    }

    #[test]
    fn what_scripts_read_of_a_manifest_stands_where_it_stood() {
        let manifest = written(Precision::Q8 { group: 3 }, RopeScaling::Linear { factor: 2.0 });
        let value = serde_json::to_value(&manifest).unwrap();
        let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
        assert_eq!(
            keys(&value),
            "format version model backend precision pairing prompt sampling passes files aliases card"
        );
        assert_eq!(
            keys(&value["files"][0]),
            "file address pass layer stage axes shape min max mean std neg_inf pos_inf nan"
        );
        assert_eq!(
            (&value["files"][0]["made"], &value["files"][1]["made"]),
            (&Value::Null, &json!("derived"))
        );
        assert_eq!((&value["format"], &value["version"]), (&json!("llama-trace export"), &json!(1)));
        let words = json!([value["precision"], value["pairing"], value["model"]["rope_scaling"]]);
        assert_eq!(words, json!(["q8", "halves (i, i + C/2)", "linear, factor 2"]));
        assert_eq!(value["model"]["q8_group"], 3);
        assert_eq!(value["files"][1]["min"], Value::Null);
        assert_eq!(value["files"][1]["layer"], Value::Null);
    }

    #[test]
    fn a_damaged_manifest_is_refused_and_never_believed() {
        let text = serde_json::to_string(&written(Precision::F32, RopeScaling::None)).unwrap();
        for end in (0..text.len()).filter(|&end| text.is_char_boundary(end)) {
            assert!(Manifest::read(&text.as_bytes()[..end]).is_err(), "cut after {end} bytes");
        }
        let damaged = |change: &dyn Fn(&mut Value)| {
            let mut value: Value = serde_json::from_str(&text).unwrap();
            change(&mut value);
            Manifest::read(value.to_string().as_bytes())
        };
        assert!(damaged(&|_| {}).is_ok());
        let wrong: [&dyn Fn(&mut Value); 8] = [
            &|value| value["card"]["config"]["kv_heads"] = json!(0),
            &|value| value["card"]["config"]["heads"] = json!(u64::MAX),
            &|value| value["card"]["config"]["norm_eps"] = json!("small"),
            &|value| value["card"]["precision"] = json!({"q8": {"group": 0}}),
            &|value| value["card"]["precision"] = json!("f64"),
            &|value| value["passes"][0]["tokens"][0]["id"] = json!(-1),
            &|value| value["files"] = json!(["pass_000/xq.npy"]),
            &|value| value["files"][0]["file"] = json!(3),
        ];
        for (number, wrong) in wrong.iter().enumerate() {
            assert!(damaged(wrong).is_err(), "{number}");
        }
        // The entry of a file is incomplete.
        let cut = damaged(&|value| value["files"][0]["shape"] = json!([-1])).unwrap();
        assert_eq!((&*cut.files[0].file, &cut.files[0].holds), ("pass_000/layer_01/xq.npy", &None));
    }

    #[test]
    fn a_manifest_is_known_by_what_it_says_or_as_the_first_ones_were() {
        let files = json!([{"file": "pass_000/layer_00/xq.npy"}, {"file": "pass_000/logits.npy"}]);
        let read = |value: Value| Manifest::read(value.to_string().as_bytes());
        let of_now = json!({"format": FORMAT, "version": VERSION, "files": files});
        let first = json!({"model": {}, "passes": [], "files": files, "aliases": {}});
        for manifest in [of_now, first] {
            let names: Vec<_> = read(manifest).unwrap().files.into_iter().map(|file| file.file).collect();
            assert_eq!(names, ["pass_000/layer_00/xq.npy", "pass_000/logits.npy"]);
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
}
