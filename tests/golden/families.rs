//! Compares every stage of a tiny model of each family with transformers in float64 (`fixtures/families`). A row of the
//! table below is a family; a folder without a row fails.

use std::collections::BTreeMap;
use std::ops::Range;

use llama_trace::backend::cpu::{Cpu, Kernel};
use llama_trace::check::{self, Plan, Sample};
use llama_trace::checkpoint::{self, Checkpoint};
use llama_trace::config::{
    Activation, ModelConfig, NormKind, Pairing, Placement, Precision, QkWidth, RopeRounding, RopeScaling,
    Sees,
};
use llama_trace::generate::{Batch, Prompts, Sampler, Sampling, Session};
use llama_trace::model::Model;
use llama_trace::trace::{Frame, NoProbe, Probe, Recorder, Select, Site, Values};

use super::common::fixture;
use super::families_bf16 as bfloat16;
use super::reference::{self, Tensor, stage_difference};

/// A folder of `fixtures/families`, whether it has the model as GGUF too, and the tests of this family.
macro_rules! families {
    ($($name:ident $gguf:ident)*) => {
        const FAMILIES: &[(&str, bool)] = &[$((stringify!($name), has!($gguf))),*];
        $(mod $name {
            #[test]
            fn every_stage_is_that_of_transformers() {
                super::stages(stringify!($name));
            }

            #[test]
            fn every_stage_in_a_batch_is_that_of_transformers() {
                super::batch(stringify!($name));
            }

            #[test]
            fn greedy_tokens_are_those_of_transformers() {
                super::greedy(stringify!($name));
            }

            #[test]
            fn bfloat16_is_rounded_where_transformers_rounds() {
                super::bfloat16::stages(stringify!($name));
            }

            #[test]
            fn check_passes() {
                super::check(stringify!($name));
            }

            gguf_test!($name $gguf);
        })*
    };
}

macro_rules! has {
    (gguf) => {
        true
    };
    (folder) => {
        false
    };
}

macro_rules! gguf_test {
    ($name:ident gguf) => {
        #[test]
        fn the_gguf_file_has_the_same_logits() {
            super::gguf(stringify!($name));
        }
    };
    ($name:ident folder) => {};
}

families! {
    smollm3 folder
    smollm3_steps gguf
    ministral folder
    qwen3_layers folder
    mistral3_text gguf
    gemma gguf
    gemma3 gguf
    olmo2 gguf
    olmo3 gguf
    glm4 gguf
    granite gguf
    gemma2 folder
    gemma2_scale gguf
    phi3 folder
    phi3_long gguf
    phi3_crossing folder
    phi4_mini gguf
    llama_yarn gguf
    qwen2_yarn gguf
    qwen3_yarn folder
    ministral3 gguf
    llama_dynamic folder
    llama_dynamic_long folder
    cohere gguf
    cohere2 gguf
    ernie4_5 gguf
    exaone4 folder
    exaone4_global gguf
    seed_oss gguf
    hunyuan gguf
    apertus gguf
    arcee gguf
    helium folder
    stablelm gguf
    stablelm_serial gguf
}

#[test]
fn every_folder_is_tested() {
    let mut found: Vec<_> = std::fs::read_dir(fixture("families"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("config.json").exists())
        .map(|path| {
            (path.file_name().unwrap().to_str().unwrap().to_owned(), path.join("model.gguf").exists())
        })
        .collect();
    let mut tested: Vec<_> = FAMILIES.iter().map(|(name, gguf)| ((*name).to_owned(), *gguf)).collect();
    found.sort();
    tested.sort();
    assert_eq!(found, tested, "the folders with their GGUF files, and the rows of the table");
}

/// A switch: its name, and whether a model uses it.
type Switch = (&'static str, fn(&ModelConfig) -> bool);

/// The switches of the families.
const SWITCHES: &[Switch] = &[
    ("a layer without RoPE", |c| (0..c.layers).any(|l| c.rope_of(l).is_none())),
    ("a window in some layers", |c| c.window.is_some() && (0..c.layers).any(|l| c.sees(l) == Sees::All)),
    ("a window before a layer without one", |c| c.sees(0) != Sees::All && c.sees(c.layers - 1) == Sees::All),
    ("another θ in the layers with a window", |c| {
        c.local_rope.as_ref().is_some_and(|local| local.theta != c.rope_theta)
    }),
    ("another scaling in the layers with a window", |c| {
        c.local_rope.as_ref().is_some_and(|local| local.scaling != c.rope_scaling)
    }),
    ("norms after", |c| c.placement == Placement::After),
    ("norms before and after", |c| c.placement == Placement::Both),
    ("attention and FFN side by side", |c| c.placement == Placement::Parallel),
    ("the weight 1 + w", |c| c.norm.one_plus),
    ("norms rounded once", |c| c.norm.rounded_once),
    ("LayerNorm", |c| c.norm.kind == NormKind::Layer && !c.norm.bias),
    ("LayerNorm with a bias", |c| c.norm.kind == NormKind::Layer && c.norm.bias),
    ("norms of heads", |c| c.qk_norm && c.qk_norm_form.width == QkWidth::Head),
    ("norms of heads with own weights", |c| c.qk_norm && c.qk_norm_form.width == QkWidth::EachHead),
    ("norms of all heads together", |c| c.qk_norm && c.qk_norm_form.width == QkWidth::Whole),
    ("LayerNorm of heads", |c| c.qk_norm && c.qk_norm_form.kind == NormKind::Layer),
    ("norms after RoPE", |c| c.qk_norm && c.qk_norm_form.after_rope),
    ("an embedding multiplier", |c| c.multipliers.embedding != 1.0),
    ("a residual multiplier", |c| c.multipliers.residual != 1.0),
    ("a logit multiplier", |c| c.multipliers.logits != 1.0),
    ("a scale of the scores", |c| c.score_scale.is_some()),
    ("a scale of the queries", |c| c.query_scale.is_some()),
    ("a cap of the scores", |c| c.score_cap.is_some()),
    ("a cap of the logits", |c| c.logit_cap.is_some()),
    ("RoPE of a part of a head", |c| c.turned() < c.head_dim),
    ("RoPE of halves", |c| c.pairing == Pairing::Halves),
    ("RoPE of neighbours", |c| c.pairing == Pairing::Neighbours),
    ("RoPE rounded once", |c| c.rope_rounding == RopeRounding::Sum),
    ("RoPE with tables in float32", |c| c.rope_rounding == RopeRounding::SumOfFloat32),
    ("linear", |c| matches!(c.rope_scaling, RopeScaling::Linear { .. })),
    ("llama3", |c| matches!(c.rope_scaling, RopeScaling::Llama3 { .. })),
    ("YaRN", |c| matches!(c.rope_scaling, RopeScaling::Yarn { truncate: true, .. })),
    ("YaRN between whole pairs", |c| matches!(c.rope_scaling, RopeScaling::Yarn { truncate: false, .. })),
    ("LongRoPE", |c| matches!(c.rope_scaling, RopeScaling::LongRope { .. })),
    ("dynamic", |c| matches!(c.rope_scaling, RopeScaling::Dynamic { .. })),
    ("an attention factor", |c| c.rope(0).attention_factor() != 1.0),
    ("GELU with tanh", |c| c.activation == Activation::GeluTanh),
    ("GELU", |c| c.activation == Activation::Gelu),
    ("relu²", |c| c.activation == Activation::Relu2 && c.ungated),
    ("xIELU", |c| c.activation == Activation::Xielu && c.ungated),
    ("biases of queries, keys and values", |c| c.qkv_bias && !c.output_bias),
    ("a bias after attention", |c| c.output_bias),
    ("biases of the FFN", |c| c.mlp_bias),
    ("a tied head", |c| c.tied),
];

/// Switches that no family of this program uses so far: chunks are Llama 4's, and norms without a weight nanochat's.
/// `tests/replay/switches.rs` checks their arithmetic.
const UNUSED: &[Switch] = &[
    ("chunked attention", |c| c.chunked),
    ("norms without a weight", |c| !c.norm.weight),
    ("norms of queries and keys without a weight", |c| c.qk_norm && !c.qk_norm_form.weight),
];

#[test]
fn every_switch_is_on_in_some_family() {
    let configs: Vec<_> = FAMILIES.iter().map(|(name, _)| open(name).config).collect();
    for (name, is_on) in SWITCHES {
        assert!(configs.iter().any(is_on), "no fixture has {name}");
        assert!(!configs.iter().all(is_on), "every fixture has {name}");
    }
    for (name, is_on) in UNUSED {
        assert!(!configs.iter().any(is_on), "a fixture has {name}: move it to SWITCHES");
    }
}

#[test]
fn a_model_that_also_reads_images_opens_as_its_text_model() {
    for name in ["gemma3", "mistral3_text"] {
        let prompt = ids(name, "prompt_ids");
        let around = checkpoint::open(&fixture(&format!("families/multimodal/{name}")))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let text = open(name);
        assert_eq!(around.config, text.config, "{name}");
        let logits = |checkpoint| logits(&record(Cpu::default(), checkpoint, &prompt));
        assert_eq!(logits(&around), logits(&text), "{name}");
    }
}

pub(super) fn open(name: &str) -> Checkpoint {
    checkpoint::open(&fixture(&format!("families/{name}"))).unwrap_or_else(|error| panic!("{name}: {error}"))
}

pub(super) fn ids(name: &str, key: &str) -> Vec<u32> {
    reference::numbers(&fixture(&format!("families/{name}/greedy.json")), key)
}

/// The stages of a prefill and two decode passes, in the order in which they are computed.
fn record(backend: Cpu, checkpoint: &Checkpoint, prompt: &[u32]) -> Vec<(String, Tensor)> {
    let model = Model::load(checkpoint, backend).unwrap_or_else(|error| panic!("{error}"));
    let mut session = Session::new(&model, Sampler::new(Sampling::default()).unwrap()).unwrap();
    let (select, mut stages, mut ids) = (Select::all(), Vec::new(), prompt.to_vec());
    for _ in 0..3 {
        let dims = session.next_pass(ids.len());
        let mut take = |frame: Frame| {
            stages.push((reference::name(frame.site), (frame.shape().to_vec(), reference::values(&frame))));
        };
        ids = vec![session.run(&ids, &mut Recorder::new(model.sizes(), dims, &select, &mut take)).unwrap()];
    }
    stages
}

/// The reference, with the stages that are copies of others: caches, and repeated keys and values.
fn expected(name: &str, config: &ModelConfig) -> BTreeMap<String, Tensor> {
    let mut stages = reference::read(&fixture(&format!("families/{name}/stages.safetensors")));
    add_copies(&mut stages, config, 3);
    stages
}

/// Adds the caches, and the repeated keys and values of `passes` passes.
pub(super) fn add_copies(stages: &mut BTreeMap<String, Tensor>, config: &ModelConfig, passes: usize) {
    let (layers, heads) = (config.layers, config.heads);
    let last = if config.qk_norm_form.after_rope { "xk_norm" } else { "xk_rope" };
    for layer in 0..layers {
        let mut caches: BTreeMap<&str, Tensor> = BTreeMap::new();
        for pass in 0..passes {
            let at = |stage: &str| format!("pass_{pass:03}/layer_{layer:02}/{stage}");
            let key =
                [last, "xk_norm", "xk"].into_iter().find(|stage| stages.contains_key(&at(stage))).unwrap();
            for (cache, rows, repeated) in [("cache_k", key, "keys"), ("cache_v", "xv", "values")] {
                let (shape, rows) = stages[&at(rows)].clone();
                let held = caches.entry(cache).or_insert_with(|| (vec![0, shape[1], shape[2]], Vec::new()));
                held.0[0] += shape[0];
                held.1.extend(rows);
                let (keys, groups, width) = (held.0[0], shape[1], shape[2]);
                let every = (0..keys * heads).flat_map(|i| {
                    let row = i / heads * groups + i % heads * groups / heads;
                    held.1[row * width..][..width].iter().copied()
                });
                let every = (vec![keys, heads, width], every.collect());
                let held = held.clone();
                stages.extend([(at(cache), held), (at(repeated), every)]);
            }
        }
    }
}

/// The first stage that differs, in the order of the computation, or the names that are in one of both only.
fn first_difference(ours: &[(String, Tensor)], theirs: &BTreeMap<String, Tensor>) -> Option<String> {
    for (name, tensor) in ours {
        let Some(expected) = theirs.get(name) else { return Some(format!("{name} is not in the reference")) };
        if let Some(what) = stage_difference(tensor, expected) {
            return Some(format!("{name}: {what}"));
        }
    }
    let missing: Vec<_> = theirs.keys().filter(|name| !ours.iter().any(|(our, _)| our == *name)).collect();
    (!missing.is_empty()).then(|| format!("missing: {missing:?}"))
}

fn stages(name: &str) {
    let checkpoint = open(name);
    let theirs = expected(name, &checkpoint.config);
    for kernel in [Kernel::default(), Kernel::wasm()] {
        let ours = record(Cpu::with_kernel(kernel), &checkpoint, &ids(name, "prompt_ids"));
        let found = first_difference(&ours, &theirs);
        assert_eq!(found, None, "{name}, {}: the first difference", kernel.name());
    }
}

/// The rows of every stage of one sequence of a batch. Each row has its number.
#[derive(Default)]
struct Rows(BTreeMap<String, BTreeMap<usize, Vec<f64>>>);

impl Probe for Rows {
    fn enabled(&self) -> bool {
        true
    }

    fn wants(&self, site: Site) -> bool {
        site.sequence == 1
    }

    fn record(&mut self, site: Site, rows: Range<usize>, values: Values<'_>) {
        let name = reference::name(Site { sequence: 0, ..site });
        self.0.entry(name).or_default().insert(rows.start, values.numbers().collect());
    }
}

/// The text of the reference runs between two others of other lengths.
fn batch(name: &str) {
    let checkpoint = open(name);
    let theirs = expected(name, &checkpoint.config);
    let model = Model::load(&checkpoint, Cpu::default()).unwrap();
    let prompt = ids(name, "prompt_ids");
    let other: Vec<u32> = prompt.iter().rev().skip(2).copied().collect();
    let ids = vec![other, prompt.clone(), prompt[1..4].to_vec()];
    let prompts = Prompts { ids, ends: Vec::new(), draws: 3, context: None, chunk: None, memory: None };
    let mut batch =
        Batch::new(&model, Sampler::new(Sampling::default()).unwrap(), prompts, |_| None).unwrap();
    let mut ours = Rows::default();
    while batch.ready().unwrap() {
        batch.pass(&mut ours).unwrap();
    }
    for (stage, rows) in &ours.0 {
        let expected = theirs.get(stage).unwrap_or_else(|| panic!("{name}: {stage} is not in the reference"));
        let values: Vec<f64> = rows.values().flatten().copied().collect();
        assert_eq!(values.len(), expected.1.len(), "{name}: {stage}");
        let found = stage_difference(&(expected.0.clone(), values), expected);
        assert_eq!(found, None, "{name}: {stage}");
    }
    // Masks, caches and repeated keys are copies, which a pass does not make for an observer.
    let copies = ["mask", "cache_k", "cache_v", "keys", "values", "probs", "nucleus", "sampled"];
    let stage = |path: &str| path.rsplit('/').next().unwrap().to_owned();
    let missing: Vec<_> = theirs.keys().filter(|path| !ours.0.contains_key(*path)).collect();
    assert!(missing.iter().all(|path| copies.contains(&&*stage(path))), "{name}: missing {missing:?}");
}

fn greedy(name: &str) {
    let model = Model::load(&open(name), Cpu::default()).unwrap();
    let mut session = Session::new(&model, Sampler::new(Sampling::default()).unwrap()).unwrap();
    let mut next = session.run(&ids(name, "prompt_ids"), &mut NoProbe).unwrap();
    for expected in ids(name, "greedy_ids") {
        assert_eq!(next, expected, "{name}");
        next = session.run(&[next], &mut NoProbe).unwrap();
    }
}

/// The logits of the three passes one after the other, as the sampler reads them.
fn logits(stages: &[(String, Tensor)]) -> Vec<f64> {
    let capped = stages.iter().any(|(name, _)| name.ends_with("/capped_logits"));
    let wanted = if capped { "/capped_logits" } else { "/logits" };
    stages
        .iter()
        .filter(|(name, _)| name.ends_with(wanted))
        .flat_map(|(_, (_, values))| values.clone())
        .collect()
}

fn distance(ours: &[f64], theirs: &[f64]) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    let error: f64 = ours.iter().zip(theirs).map(|(a, b)| (a - b).powi(2)).sum();
    (error / theirs.iter().map(|b| b * b).sum::<f64>()).sqrt()
}

/// The checks also compare each stage with its rule, whose bfloat16 form [`bfloat16`] compares with transformers.
fn check(name: &str) {
    for precision in [Precision::F32, Precision::Bf16] {
        let model = Model::load(&open(name), Cpu::default().with_precision(precision)).unwrap();
        let plan = Plan { ids: ids(name, "prompt_ids"), split: None, tokenizer: None, sample: Sample::All };
        let report = check::run(&model, None, &plan, &|_, _| ()).unwrap();
        let failed: Vec<_> = report.checks.iter().filter(|check| !check.ok).collect();
        assert!(failed.is_empty(), "{name}, {precision:?}: {failed:?}");
    }
}

fn gguf(name: &str) {
    let prompt = ids(name, "prompt_ids");
    let path = fixture(&format!("families/{name}/model.gguf"));
    let file = checkpoint::open(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
    let ours = logits(&record(Cpu::default(), &file, &prompt));
    let theirs = logits(&record(Cpu::default(), &open(name), &prompt));
    let far = distance(&ours, &theirs);
    assert!(far <= reference::TOLERANCE, "{name}: the logits of the GGUF file are {far} away");
}
