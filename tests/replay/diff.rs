//! `diff` with a model. It finds the place of a port's mistake and names the mistake, and it never reports a correct
//! stage.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use llama_trace::backend::cpu::{Cpu, Kernel};
use llama_trace::check::Sample;
use llama_trace::config::{CacheDtype, Precision};
use llama_trace::diff::{self, About, Diagnosis, Kind, NAMES, Pass, Report};
use llama_trace::generate::{Sampler, Sampling, Session};
use llama_trace::model::Model;
use llama_trace::trace::{Frame, FrameData, PassDims, Recorder, Select, Site, Stage, TokenLabel};

use super::port::{Kept, Port, frame, passes};
use super::{MODELS, model, model_in};

pub(super) const IDS: [u32; 9] = [1, 5, 9, 13, 17, 21, 25, 29, 33];

/// A run of this program over the ids. All stages are kept.
pub(super) fn run(model: &Model) -> Kept {
    run_on(model, 1)
}

/// [`run`] with decode passes, `count` passes in all.
pub(super) fn run_on(model: &Model, count: usize) -> Kept {
    run_of(model, &IDS, count)
}

/// [`run_on`] over these ids.
pub(super) fn run_of(model: &Model, ids: &[u32], count: usize) -> Kept {
    let frames = RefCell::new(HashMap::new());
    let mut session = Session::new(model, Sampler::new(Sampling::default()).unwrap()).unwrap();
    let (select, mut passes) = (Select::all(), passes(ids));
    for pass in 0..count {
        let read = if pass == 0 { ids.to_vec() } else { vec![ids[pass]] };
        let dims = session.next_pass(read.len());
        let sink = |frame: Frame| drop(frames.borrow_mut().insert(frame.site, Arc::new(frame)));
        session.run(&read, &mut Recorder::new(model.sizes(), dims, &select, sink)).unwrap();
        if pass > 0 {
            let tokens = vec![TokenLabel { id: read[0], text: format!("#{}", read[0]) }];
            passes.push(Pass { dims, tokens });
        }
    }
    let card = model.card();
    let about = About {
        layers: None,
        nowhere: std::collections::BTreeMap::new(),
        unsure: std::collections::BTreeMap::new(),
        name: card.name.clone(),
        precision: Some(card.precision),
        card: Some(card),
        settings: serde_json::Map::new(),
        cache: Some(model.backend.cache_dtype()),
        fingerprint: None,
        sampling: Some(Sampling::default()),
        prompt: None,
        passes,
    };
    Kept { about, frames: frames.into_inner() }
}

pub(super) fn judged(model: &Model, a: &Kept, b: &Kept) -> Report {
    diff::compare_with(model, &mut a.clone(), &mut b.clone(), Sample::All, &|_| ()).unwrap()
}

/// The kind and the address of the first difference, without indices, and the names of the mistakes.
pub(super) fn verdict(report: &Report) -> (Kind, String, BTreeSet<&'static str>) {
    let first = report.first.as_ref().unwrap();
    let address = first.address.split('[').next().unwrap().to_owned();
    (first.kind, address, report.diagnosis.iter().map(|one| one.name).collect())
}

/// Each mistake: its model, the stage that shows it first, and the first stage among the outputs of transformers'
/// modules.
pub(super) const BUGS: [(&str, &str, &str, &str); 53] = [
    ("rope_pairing", "gqa", "p0/L0/xq_rope", "p0/L0/softmax"),
    ("rope_pairing:mixed", "gqa", "p0/L0/xq_rope", "p0/L0/softmax"),
    ("rope_theta", "gqa", "p0/rope_cos", "p0/L0/softmax"),
    ("rope_scaling", "tied_llama3", "p0/rope_cos", "p0/L0/softmax"),
    ("rope_scaling:factor", "tied_llama3", "p0/rope_cos", "p0/L0/softmax"),
    ("rope_direction", "gqa", "p0/rope_sin", "p0/L0/softmax"),
    ("rope_direction:turning", "gqa", "p0/L0/xq_rope", "p0/L0/softmax"),
    ("rope_missing", "gqa", "p0/L0/xq_rope", "p0/L0/softmax"),
    ("rope_missing:keys", "gqa", "p0/L0/xk_rope", "p0/L0/softmax"),
    ("position_offset", "gqa", "p0/rope_cos", ""),
    ("norm_eps", "gqa", "p0/L0/attn_norm", "p0/L0/attn_norm"),
    ("norm_weight_plus_one", "gqa", "p0/L0/attn_norm", "p0/L0/attn_norm"),
    ("norm_weight_missing", "gqa", "p0/L0/attn_norm", "p0/L0/attn_norm"),
    ("norm_missing", "gqa", "p0/final_norm", "p0/final_norm"),
    ("norm_weights_swapped", "gqa", "p0/L0/attn_norm", "p0/L0/attn_norm"),
    ("norm_input", "gqa", "p0/L0/ffn_norm", "p0/L0/ffn_norm"),
    ("norm_sum", "gqa", "p0/L0/attn_norm", "p0/L0/attn_norm"),
    ("layer_norm", "gqa", "p0/L0/attn_norm", "p0/L0/attn_norm"),
    ("residual_missing", "gqa", "p0/L0/attn_residual", "p0/L0/attn_residual"),
    ("residual_missing:ffn", "gqa", "p0/L0/ffn_residual", "p0/L0/ffn_residual"),
    ("residual_missing:normed", "gqa", "p0/L0/attn_residual", "p0/L0/attn_residual"),
    ("other_layer", "gqa", "p0/L1/attn_norm", "p0/L1/attn_norm"),
    ("attention_scale", "gqa", "p0/L0/scores", "p0/L0/softmax"),
    ("mask_offset", "gqa", "p0/L0/masked_scores", "p0/L0/softmax"),
    ("window", "mistral", "p0/L0/masked_scores", "p0/L0/softmax"),
    ("window:short", "mistral", "p0/L0/masked_scores", "p0/L0/softmax"),
    ("kv_head_order", "gqa", "p0/L0/keys", "p0/L0/softmax"),
    ("kv_head_order:values", "gqa", "p0/L0/values", "p0/L0/attn_heads"),
    ("kv_swapped", "gqa", "p0/L0/xk", "p0/L0/xk"),
    ("heads_merged", "gqa", "p0/L0/attn_output", "p0/L0/attn_output"),
    ("weight_layout", "gqa", "p0/L0/xv", "p0/L0/xv"),
    ("weight_layout:rope", "gqa", "p0/L0/xq", "p0/L0/xq"),
    ("weight_layout:heads", "gqa", "p0/L0/xq", "p0/L0/xq"),
    ("weight_layout:components", "gqa", "p0/L0/xq", "p0/L0/xq"),
    ("weight_layout:o", "gqa", "p0/L0/attn_output", "p0/L0/attn_output"),
    ("weight_layout:head", "gqa", "p0/logits", "p0/logits"),
    ("weight_layout:head", "tied_llama3", "p0/logits", "p0/logits"),
    ("bias_missing", "mha_bias", "p0/L0/xq", "p0/L0/xq"),
    ("bos", "gqa", "p0/tokens", "p0/tokens"),
    ("tied_head", "gqa", "p0/logits", "p0/logits"),
    ("activation", "gqa", "p0/L0/ffn_silu", "p0/L0/ffn_silu"),
    ("gate_up_swapped", "gqa", "p0/L0/ffn_gate", "p0/L0/ffn_gate"),
    ("gate_up_swapped:halves", "gqa", "p0/L0/ffn_silu", "p0/L0/ffn_silu"),
    ("bf16_rounding", "gqa", "p0/embedding", "p0/embedding"),
    ("bf16_rounding:inputs", "gqa", "p0/L0/xq", "p0/L0/xq"),
    ("bf16_rounding:angles", "gqa", "p0/rope_cos", "p0/L0/softmax"),
    ("bf16_rounding:cache", "gqa", "p0/L0/keys", "p0/L0/softmax"),
    ("bf16_rounding:softmax", "gqa", "p0/L0/softmax", "p0/L0/softmax"),
    ("quantized_activations", "gqa", "p0/L0/xq", "p0/L0/xq"),
    ("embedding_scale", "gqa", "p0/embedding", "p0/embedding"),
    ("softcap", "gqa", "p0/L0/scores", ""),
    ("softcap:logits", "gqa", "p0/logits", "p0/logits"),
    ("", "gqa", "", ""),
];

/// Keeps only the stages that hooks on transformers' modules show.
pub(super) fn of_modules(run: &Kept) -> Kept {
    let hidden = [
        Stage::RopeCos,
        Stage::RopeSin,
        Stage::LayerRopeCos,
        Stage::LayerRopeSin,
        Stage::Mask,
        Stage::XqRope,
        Stage::XkRope,
        Stage::CacheK,
        Stage::CacheV,
        Stage::Keys,
        Stage::Values,
        Stage::Qk,
        Stage::Scores,
        Stage::CappedScores,
        Stage::MaskedScores,
    ];
    let mut run = run.clone();
    run.frames.retain(|site, _| !hidden.contains(&site.stage));
    run
}

#[test]
fn every_mistake_of_a_port_is_found_where_it_is_and_named_with_its_error_before_and_after() {
    let mut named = BTreeSet::new();
    for (bug, on, address, shown) in BUGS.into_iter().filter(|(bug, ..)| !bug.is_empty()) {
        let model = model(on);
        let (a, b) = (run(&model), Port::new(on, &model.config, bug).run(&IDS));
        let name = bug.split(':').next().unwrap();
        named.insert(name);
        for (b, expected) in [(b.clone(), address), (of_modules(&b), shown)] {
            if expected.is_empty() {
                continue;
            }
            let report = judged(&model, &a, &b);
            let (kind, found, names) = verdict(&report);
            let expected_kind = if name == "bos" { Kind::Tokens } else { Kind::Stage };
            assert_eq!((kind, &*found), (expected_kind, expected), "{bug}: {report:#?}");
            assert!(names.contains(name), "{bug} at {found}: {:?}, {:?}", report.diagnosis, report.first);
            let one = report.diagnosis.iter().find(|one| one.name == name).unwrap();
            assert!(one.after < one.before / 8.0, "{bug}: {one:?}");
            assert!(report.diagnosis.is_sorted_by(|a, b| a.after <= b.after), "{bug}: the best first");
            assert!(names.len() <= 3, "{bug}: few mistakes are left: {names:?}");
        }
    }
    named.extend(super::families::BUGS.iter().map(|(bug, ..)| bug.split(':').next().unwrap()));
    // Other mistakes are those of single stages, which the programs of `fixtures/kata` make.
    let programs = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/kata")).unwrap();
    let texts: Vec<String> =
        programs.filter_map(|file| std::fs::read_to_string(file.unwrap().path()).ok()).collect();
    let labels = texts.iter().flat_map(|text| text.lines());
    let labels = labels.filter_map(|line| line.strip_prefix("@wrong(\"")?.strip_suffix("\")"));
    named.extend(labels.flat_map(|label| label.split('|')));
    assert_eq!(
        named,
        NAMES.into_iter().collect(),
        "each name has a port or a program that makes the mistake"
    );
}

/// In a pass of this many tokens, a few tokens are enough to exclude most mistakes. The actual mistake is never
/// excluded.
#[test]
fn every_mistake_is_named_in_a_long_pass_and_most_through_a_whole_layer() {
    let ids: Vec<u32> = (1..=40).collect();
    // These mistakes concern several matrices, or all stages, or a number that shows only in its own stage. So they are
    // named in no pass, short or long.
    let untold = ["weight_layout:heads", "weight_layout:components", "bf16_rounding", "softcap"];
    for (bug, on, ..) in BUGS.into_iter().filter(|(bug, ..)| !["", "bos"].contains(bug)) {
        let model = model(on);
        let (a, b) = (run_of(&model, &ids, 1), Port::new(on, &model.config, bug).run(&ids));
        let name = bug.split(':').next().unwrap();
        let (_, _, names) = verdict(&judged(&model, &a, &b));
        assert!(names.contains(name), "{bug}: {names:?}");
        let mut few = b.clone();
        few.frames.retain(|site, _| matches!(site.stage, Stage::FfnResidual | Stage::Logits));
        let report = judged(&model, &a, &few);
        // If all positions are shifted equally, the remaining stages do not change.
        assert_eq!(report.same(), bug == "position_offset", "{bug}: {:?}", report.first);
        if !report.same() {
            let (_, _, names) = verdict(&report);
            assert_eq!(names.contains(name), !untold.contains(&bug), "{bug}: {names:?}");
        }
    }
}

#[test]
fn of_several_matrices_on_the_way_to_a_stage_one_alone_may_be_read_otherwise() {
    let model = model("gqa");
    let (a, mut b) = (run(&model), Port::new("gqa", &model.config, "weight_layout:o").run(&IDS));
    let shown = [Stage::Embedding, Stage::AttnNorm, Stage::Softmax, Stage::AttnOutput];
    b.frames.retain(|site, _| shown.contains(&site.stage));
    let report = judged(&model, &a, &b);
    let (_, found, names) = verdict(&report);
    assert_eq!(found, "p0/L0/attn_output", "xv and attn_heads are computed on the way");
    assert_eq!(names, BTreeSet::from(["weight_layout"]), "{:?}", report.diagnosis);
}

/// In a pass of a single token, the mask's row is computed as if it were the first row of the text.
#[test]
fn a_mask_that_forgets_what_is_cached_is_named() {
    let model = model("gqa");
    let a = run_on(&model, 3);
    let site = Site::layer(2, 1, Stage::Softmax);
    let keys = IDS.len() + 2;
    let b = changed(&a, site, |at, _| if at % keys == 0 { 1.0 } else { 0.0 });
    let report = judged(&model, &a, &b);
    let forms: Vec<_> = report.likeliest().map(Diagnosis::told).collect();
    assert_eq!(verdict(&report).1, "p2/L1/softmax");
    assert_eq!(forms, ["mask_offset (as if nothing were cached)"], "{:?}", report.diagnosis);
}

#[test]
fn no_position_is_below_0_and_what_cannot_be_told_apart_is_named_together() {
    let model = model("gqa");
    let (a, b) = (run(&model), Port::new("gqa", &model.config, "rope_missing:keys").run(&IDS));
    let report = judged(&model, &a, &b);
    let forms: Vec<_> = report.likeliest().map(Diagnosis::told).collect();
    assert_eq!(forms, ["rope_missing (keys)"]);
    let mut few = Port::new("tied_llama3", &super::model("tied_llama3").config, "rope_pairing").run(&IDS);
    few.frames.retain(|site, _| matches!(site.stage, Stage::FfnResidual | Stage::Logits));
    let model = super::model("tied_llama3");
    let report = judged(&model, &run(&model), &few);
    let names: BTreeSet<_> = report.likeliest().map(|one| one.name).collect();
    assert_eq!(names, BTreeSet::from(["rope_pairing", "weight_layout"]), "{:?}", report.diagnosis);
}

#[test]
fn of_what_is_infinite_nothing_is_named() {
    let model = model("gqa");
    let a = run(&model);
    let b = changed(&a, Site::layer(0, 1, Stage::Xq), |at, x| if at == 7 { f32::INFINITY } else { x });
    let report = judged(&model, &a, &b);
    assert_eq!(verdict(&report), (Kind::Stage, "p0/L1/xq".into(), BTreeSet::new()));
}

#[test]
fn a_port_without_a_mistake_is_the_same_and_nothing_is_named() {
    for on in MODELS {
        let model = model(on);
        let (a, b) = (run(&model), Port::new(on, &model.config, "").run(&IDS));
        for b in [b.clone(), of_modules(&b)] {
            let report = judged(&model, &a, &b);
            assert!(report.same() && report.diagnosis.is_empty(), "{on}: {:?}", report.first);
            let worst = report.lines.iter().map(|line| line.error / line.tolerance).fold(0.0, f64::max);
            assert!(worst < 0.7, "{on}: there is room left, {worst}");
        }
        let by_table = diff::compare(&mut a.clone(), &mut b.clone(), &|_| ()).unwrap();
        assert!(by_table.same() && !by_table.measured, "{on}: {:?}", by_table.first);
    }
}

#[test]
fn precisions_kernels_and_caches_are_never_accused() {
    for on in MODELS {
        let reference = model(on);
        let a = run(&reference);
        let all = [Precision::F32, Precision::Bf16, Precision::Q8 { group: 32 }];
        let mut others: Vec<Model> =
            all.into_iter().map(|precision| model_in(on, Cpu::default().with_precision(precision))).collect();
        others.extend(Kernel::selectable().into_iter().flat_map(|kernel| {
            [Precision::F32, Precision::Bf16]
                .map(|p| model_in(on, Cpu::with_kernel(kernel).with_precision(p)))
        }));
        others.extend(
            [CacheDtype::F16, CacheDtype::Bf16]
                .map(|dtype| model_in(on, Cpu::default().with_cache_dtype(dtype))),
        );
        for other in others {
            let b = run(&other);
            let precision = other.card().precision.name();
            for (a, b) in [(&a, &b), (&b, &a)] {
                let report = judged(&reference, a, b);
                assert!(report.same(), "{on} in {precision}: {:?}", report.first);
                let report = diff::compare(&mut a.clone(), &mut b.clone(), &|_| ()).unwrap();
                assert!(report.same(), "{on} in {precision}, by the table: {:?}", report.first);
                // The runs are also equal if only a few stages are present.
                for shown in [
                    &[Stage::Xq, Stage::FfnResidual][..],
                    &[Stage::AttnOutput, Stage::Logits],
                    &[Stage::AttnNorm],
                ] {
                    let mut few = b.clone();
                    few.frames.retain(|site, _| shown.contains(&site.stage));
                    let report = judged(&reference, a, &few);
                    assert!(report.same(), "{on} in {precision}, {shown:?}: {:?}", report.first);
                }
            }
        }
    }
}

#[test]
fn what_a_stage_brings_in_is_told_from_what_came_with_its_inputs() {
    let model = model("gqa");
    let (a, b) = (run(&model), Port::new("gqa", &model.config, "norm_eps").run(&IDS));
    let report = judged(&model, &a, &b);
    let line = |stage| report.lines.iter().find(|line| line.site == Site::layer(0, 0, stage)).unwrap();
    let (norm, xq) = (line(Stage::AttnNorm), line(Stage::Xq));
    assert!(norm.differs() && norm.inherited == Some(0.0), "{norm:?}");
    assert!(!xq.differs() && xq.inherited.unwrap() > 100.0 * xq.error && xq.apart > 1e-4, "{xq:?}");
}

#[test]
fn a_reference_that_is_wrong_itself_is_said_to_be() {
    let model = model("gqa");
    let (healthy, mut wrong) = (run(&model), Port::new("gqa", &model.config, "activation").run(&IDS));
    wrong.about.card = Some(model.card());
    let report = judged(&model, &wrong, &healthy);
    let (_, address, names) = verdict(&report);
    assert_eq!((&*address, names.contains("activation")), ("p0/L0/ffn_silu", true));
    assert!(
        report.notes.iter().any(|note| note.contains("A does not have the model's values")),
        "{:?}",
        report.notes
    );
}

#[test]
fn odd_stages_are_part_of_the_verdict() {
    let model = model("gqa");
    let a = run(&model);
    let site = Site::layer(0, 1, Stage::FfnUp);
    let shape = a.frames[&site].shape().to_vec();
    let count: usize = shape.iter().product();
    let mut nan: Vec<f32> = a.frames[&site].floats().unwrap().iter().copied().collect();
    nan[7] = f32::NAN;
    let before = a.frames[&Site::layer(0, 0, Stage::FfnUp)].floats().unwrap().iter().copied().collect();
    let cases = [
        (frame(site, &shape, vec![0.0; count]), "every value is 0"),
        (frame(site, &shape, nan), "1 of 504 values are NaN"),
        (frame(site, &shape, before), "has the same values as B's p0/L0/ffn_up"),
        (frame(site, &[shape[1], shape[0]], vec![1.0; count]), "it has the shape (56, 9)"),
    ];
    for (odd, said) in cases {
        let mut b = a.clone();
        b.frames.insert(site, odd);
        for report in
            [judged(&model, &a, &b), diff::compare(&mut a.clone(), &mut b.clone(), &|_| ()).unwrap()]
        {
            assert_eq!(verdict(&report).1, "p0/L1/ffn_up", "{said}");
            assert!(report.notes.iter().any(|note| note.contains(said)), "{said}: {:?}", report.notes);
        }
    }
    let mut b = a.clone();
    b.frames.retain(|site, _| site.stage != Stage::Qk);
    b.frames.insert(site, frame(site, &[0], Vec::new()));
    let report = judged(&model, &a, &b);
    let missing: Vec<_> = report.missing.iter().map(|missing| missing.site.to_string()).collect();
    assert_eq!(missing, ["p0/L0/qk", "p0/L1/qk", "p0/L1/ffn_up", "p0/L2/qk"]);
    // No value differs, but an empty stage cannot be judged.
    let damaged: Vec<_> = report.damaged().map(|missing| missing.site).collect();
    assert_eq!((report.first.is_none(), damaged, report.same()), (true, vec![site], false));
    let mut nothing = a.clone();
    nothing.frames.clear();
    assert!(diff::compare(&mut a.clone(), &mut nothing, &|_| ()).is_err(), "nothing in common");
}

#[test]
fn of_the_last_row_of_logits_alone_a_mistake_is_named_too() {
    let model = model("gqa");
    let (a, mut b) = (run(&model), Port::new("gqa", &model.config, "softcap:logits").run(&IDS));
    let (site, vocab) = (Site::once(0, Stage::Logits), model.config.vocab);
    let all: Vec<f32> = b.frames[&site].floats().unwrap().iter().copied().collect();
    b.frames.insert(site, frame(site, &[1, vocab], all[all.len() - vocab..].to_vec()));
    let report = judged(&model, &a, &b);
    let named: Vec<_> = report.diagnosis.iter().map(|one| (one.name, &*one.form)).collect();
    assert_eq!((&*verdict(&report).1, named), ("p0/logits", vec![("softcap", "c = 3")]));
}

/// The same run with changed values in a stage.
pub(super) fn changed(run: &Kept, site: Site, change: impl Fn(usize, f32) -> f32) -> Kept {
    let mut run = run.clone();
    let (shape, values) = (run.frames[&site].shape().to_vec(), run.frames[&site].floats().unwrap().clone());
    let values = values.iter().enumerate().map(|(at, x)| change(at, *x)).collect();
    run.frames.insert(site, frame(site, &shape, values));
    run
}

#[test]
fn what_is_in_no_sample_cannot_hide_a_difference() {
    // The head of the built-in model is larger than a sample of rows.
    let model = Model::load(&llama_trace::builtin::open().unwrap(), Cpu::default()).unwrap();
    let (a, site, vocab) = (run(&model), Site::once(0, Stage::Logits), model.config.vocab);
    let sampled = |b: &Kept| {
        diff::compare_with(&model, &mut a.clone(), &mut b.clone(), Sample::Seeded(1), &|_| ()).unwrap()
    };
    let right = sampled(&a);
    assert!(right.same() && right.samples && !judged(&model, &a, &a).samples);
    for column in (0..vocab).step_by(41) {
        for wrong in [0.0, f32::NAN] {
            // Changes one value of a column, and in the second round all values of the column.
            for row in [Some(IDS.len() - 1), None] {
                let is_wrong = |at: usize| at % vocab == column && row.is_none_or(|row| at / vocab == row);
                let report = sampled(&changed(&a, site, |at, x| if is_wrong(at) { wrong } else { x }));
                let first = report.first.unwrap_or_else(|| panic!("{column} is {wrong}"));
                assert!(first.address.ends_with(&format!(",v={column}]")), "{column}: {}", first.address);
            }
        }
    }
    // A changed column is also found next to values that are infinite in both runs.
    for column in (0..vocab - 1).step_by(97) {
        let hidden =
            |run: &Kept| changed(run, site, |at, x| if at % vocab == column { f32::NEG_INFINITY } else { x });
        let b = changed(&a, site, |at, x| if at % vocab == column + 1 { 1.5 * x } else { x });
        let (mut a, mut b) = (hidden(&a), hidden(&b));
        let report = diff::compare_with(&model, &mut a, &mut b, Sample::Seeded(1), &|_| ()).unwrap();
        assert!(!report.same(), "{column}");
    }
    // Changed rows are also found if all earlier stages differ.
    let other =
        Model::load(&llama_trace::builtin::open().unwrap(), Cpu::default().with_precision(Precision::Bf16))
            .unwrap();
    let (b, block) = (run(&other), 700..760);
    let report = sampled(&changed(&b, site, |at, x| if block.contains(&(at % vocab)) { 0.0 } else { x }));
    assert_eq!(verdict(&report).1, "p0/logits");
    assert!(sampled(&b).same());
}

#[test]
fn a_position_of_a_decode_pass_that_is_off_is_named_where_no_angle_is_shown() {
    let model = model("gqa");
    let a = run_on(&model, 2);
    let position = |by: isize| format!("{by} too far");
    for (by, form) in
        [(1, position(1)), (-1, "1 too near".to_owned()), (-9, "as if nothing were cached".into())]
    {
        // A token that is rotated as if at another position reads and writes the keys of that position.
        let dims = PassDims { pass: 1, start: IDS.len(), tokens: 1, ..PassDims::default() };
        let mut b = a.clone();
        let rope = |from: Stage, to: Stage, b: &mut Kept| {
            let theta = model.config.rope_theta;
            for layer in 0..1 {
                let x: Vec<f32> =
                    a.frames[&Site::layer(1, layer, from)].floats().unwrap().iter().copied().collect();
                let c = model.config.head_dim;
                let mut out = x.clone();
                for head in (0..x.len()).step_by(c) {
                    for i in 0..c / 2 {
                        let angle =
                            (dims.start as isize + by) as f32 * theta.powf(-((2 * i) as f32) / c as f32);
                        let (p, q) = (x[head + i], x[head + i + c / 2]);
                        out[head + i] = p * angle.cos() - q * angle.sin();
                        out[head + i + c / 2] = p * angle.sin() + q * angle.cos();
                    }
                }
                let site = Site::layer(1, layer, to);
                let shape = b.frames[&site].shape().to_vec();
                b.frames.insert(site, frame(site, &shape, out));
            }
        };
        rope(Stage::Xk, Stage::XkRope, &mut b);
        let (keys, key) = (Site::layer(1, 0, Stage::CacheK), Site::layer(1, 0, Stage::XkRope));
        let mut cached: Vec<f32> = b.frames[&keys].floats().unwrap().iter().copied().collect();
        let own: Vec<f32> = b.frames[&key].floats().unwrap().iter().copied().collect();
        let first = cached.len() - own.len();
        cached[first..].copy_from_slice(&own);
        let shape = b.frames[&keys].shape().to_vec();
        b.frames.insert(keys, frame(keys, &shape, cached));
        // B has only stages that hooks on modules show, and the cache.
        let shown = [Stage::AttnNorm, Stage::Xq, Stage::Xk, Stage::Xv, Stage::CacheK];
        b.frames.retain(|site, _| shown.contains(&site.stage));
        let report = judged(&model, &a, &b);
        let named: Vec<_> = report.diagnosis.iter().map(|one| (one.name, one.form.clone())).collect();
        assert_eq!(verdict(&report).1, "p1/L0/cache_k");
        assert_eq!(named, [("position_offset", form)]);
    }
}

#[test]
fn what_was_drawn_is_judged_by_the_runs_own_logits_where_those_are_not_the_same_to_the_bit() {
    let model = model("gqa");
    let a = run_on(&model, 2);
    let logits = Site::once(1, Stage::Logits);
    // Only the last bit of one logit differs.
    let near = changed(&a, logits, |at, x| if at == 3 { f32::from_bits(x.to_bits() ^ 1) } else { x });
    assert!(judged(&model, &a, &near).same());
    let vocab = model.config.vocab;
    let sampled = |id: i64| {
        let site = Site::once(1, Stage::Sampled);
        let data = FrameData::I64(ndarray::Array1::from(vec![id]).into_dyn());
        let mut b = near.clone();
        b.frames.insert(site, Arc::new(Frame { site, axes: site.stage.axes(), data }));
        b
    };
    let drawn = match &a.frames[&Site::once(1, Stage::Sampled)].data {
        FrameData::I64(ids) => ids[0],
        _ => unreachable!("an id"),
    };
    let other = sampled((drawn + 1) % vocab as i64);
    let rolled = changed(&near, Site::once(1, Stage::Nucleus), |at, _| f32::from(u8::from(at == 0)));
    for (b, found) in [(&other, "p1/sampled"), (&rolled, "p1/nucleus")] {
        let by_table = diff::compare(&mut a.clone(), &mut b.clone(), &|_| ()).unwrap();
        for report in [judged(&model, &a, b), by_table] {
            assert_eq!(verdict(&report).1, found);
        }
        // Without B's logits the sampled token cannot be judged. The report says so.
        let mut blind = b.clone();
        blind.frames.remove(&logits);
        let report = judged(&model, &a, &blind);
        assert!(
            report.same() && report.notes.iter().any(|note| note.contains("is not compared")),
            "{:?}",
            report.notes
        );
    }
    assert!(judged(&model, &a, &sampled(drawn)).same());
    // Each of several equal logits may be the argmax. B may have such logits even if A does not.
    let id = (drawn as usize + 1) % vocab;
    let most = a.frames[&logits].floats().unwrap()[[0, drawn as usize]];
    let tie = |run: &Kept| changed(run, logits, |at, x| if at == id { most } else { x });
    let (tied, mut lone) = (tie(&a), a.clone());
    let mut b = tie(&other);
    b.frames.remove(&Site::once(1, Stage::Nucleus));
    assert!(diff::compare(&mut tied.clone(), &mut b.clone(), &|_| ()).unwrap().same());
    lone.frames.remove(&logits);
    assert!(diff::compare(&mut lone.clone(), &mut b, &|_| ()).unwrap().same());
    let report = diff::compare(&mut lone, &mut other.clone(), &|_| ()).unwrap();
    assert_eq!(verdict(&report).1, "p1/sampled");
}
