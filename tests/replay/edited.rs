//! A run with edits, and with a part switched off. Stages before an edit have the same bits, and everything after it reads
//! the edited values.

use std::collections::HashMap;
use std::sync::Arc;

use llama_trace::backend::cpu::Cpu;
use llama_trace::checkpoint;
use llama_trace::config::Precision;
use llama_trace::model::Model;
use llama_trace::replay::derive::{derive, is_derivable};
use llama_trace::stop::Stop;
use llama_trace::trace::explanation::ExplanationAt;
use llama_trace::trace::lens::{AttributionAt, Contributor};
use llama_trace::trace::{
    Answer, Frame, PassDims, Query, Region, Run, Site, Source, Stage, Weight, WeightRows,
};
use llama_trace_core::edit::{Edit, Edits};
use llama_trace_core::testing::sampled;

use super::{MODELS, PRECISIONS, ask, assert_same, common, models_in, record, start};

const PROMPT: [u32; 5] = [1, 5, 9, 3, 7];

fn model(fixture: &str, cpu: Cpu, without: &[&str]) -> Model {
    let checkpoint = checkpoint::open(&common::fixture(fixture)).unwrap();
    let list = without.iter().map(|part| Edit::without(part).unwrap()).collect();
    Model::load(&checkpoint, cpu).unwrap().with_edits(Edits::new(list))
}

/// The frames of the first pass. Later passes are left out, because the sampled tokens that they read may differ.
fn first(model: &Model) -> HashMap<Site, Frame> {
    let (mut frames, _) = record(model, &PROMPT);
    frames.retain(|site, _| site.pass == 0);
    frames
}

fn rows(model: &Model, layer: Option<usize>, weight: Weight, count: usize) -> Vec<f32> {
    model.rows(&WeightRows { run: Run::ITSELF, layer, weight, rows: 0..count }).unwrap()
}

fn weight(name: &str) -> Weight {
    Weight::all().find(|weight| weight.to_string() == name).unwrap()
}

#[test]
fn without_a_head_its_share_of_attn_output_is_gone_and_all_before_it_is_the_same() {
    for name in MODELS {
        let fixture = format!("golden/{name}");
        let (whole, less) =
            (model(&fixture, Cpu::default(), &[]), model(&fixture, Cpu::default(), &["L0/h1"]));
        let (all, without) = (first(&whole), first(&less));
        let sizes = whole.sizes();
        let (width, inner) = (sizes.head_dim, sizes.heads * sizes.head_dim);
        for (site, frame) in &all {
            let before = match site.layer {
                Some(0) => site.stage < Stage::AttnHeads,
                Some(_) => false,
                None => site.stage < Stage::FinalNorm,
            };
            if before {
                assert_same(&without[site], frame);
            }
        }
        let wo = rows(&whole, Some(0), weight("wo"), sizes.dim);
        let site = |stage| Site::layer(0, 0, stage);
        let heads = all[&site(Stage::AttnHeads)].floats().unwrap();
        let [had, has] = [&all, &without].map(|run| run[&site(Stage::AttnOutput)].floats().unwrap());
        let mut gone = 0.0_f64;
        for t in 0..PROMPT.len() {
            for d in 0..sizes.dim {
                let of_head =
                    (0..width).map(|c| f64::from(wo[d * inner + width + c]) * f64::from(heads[[t, 1, c]]));
                let of_head: f64 = of_head.sum();
                gone += of_head.abs();
                let expected = f64::from(had[[t, d]]) - of_head;
                assert!((f64::from(has[[t, d]]) - expected).abs() < 1e-5, "{name}: t {t}, d {d}");
            }
        }
        assert!(gone > 0.1, "{name}: the head wrote something");
    }
}

#[test]
fn without_its_attention_or_its_ffn_a_layer_adds_nothing_there() {
    for name in MODELS {
        for precision in PRECISIONS {
            let cpu = Cpu::default().with_precision(precision);
            let less = first(&model(&format!("golden/{name}"), cpu, &["L1/attn", "L0/ffn"]));
            let same = |a: Site, b: Site| {
                let [a, b] = [a, b].map(|site| less[&site].floats().unwrap());
                assert!(a.iter().zip(b.iter()).all(|(a, b)| a == b), "{name} in {precision:?}");
            };
            let at = |layer, stage| Site::layer(0, layer, stage);
            for (layer, stage) in [(1, Stage::AttnOutput), (0, Stage::FfnDown)] {
                assert!(less[&at(layer, stage)].floats().unwrap().iter().all(|x| *x == 0.0), "{name}");
            }
            same(at(1, Stage::AttnResidual), at(0, Stage::FfnResidual));
            same(at(0, Stage::FfnResidual), at(0, Stage::AttnResidual));
        }
    }
}

#[test]
fn what_is_asked_of_such_a_run_adds_up_and_the_part_has_no_share() {
    let cpu = || Cpu::default();
    let mut live = start(model("golden/gqa", cpu(), &["L0/h1", "L1/ffn"]), &PROMPT, 1, Vec::new());
    assert_eq!(live.outline().card.without, ["L0/h1", "L1/ffn"]);
    let query =
        |stage, at| Query::Explanation(ExplanationAt { site: Site::layer(0, 0, stage), at, terms: 3 });
    for (stage, at) in [(Stage::AttnOutput, 40), (Stage::AttnResidual, 40), (Stage::FfnDown, 9)] {
        let Answer::Explanation(found) = ask(&mut live, &query(stage, at)).unwrap() else { panic!() };
        assert_eq!(found.difference(), 0.0, "{stage}");
    }
    let attribution = AttributionAt { site: Site::once(0, Stage::Logits), token: 4, id: None, against: None };
    let Answer::Attribution(found) = ask(&mut live, &Query::Attribution(attribution)).unwrap() else {
        panic!()
    };
    for part in [Contributor::Head { layer: 0, head: 1 }, Contributor::Ffn { layer: 1 }] {
        let share = found.parts.iter().find(|share| share.part == part).unwrap();
        assert_eq!(share.value, 0.0, "{part}");
    }
    assert!((found.sum() - found.difference).abs() < 1e-6);
}

/// The stages with float values that an edit can name, of a model.
fn stages(model: &Model) -> Vec<Stage> {
    let dims = PassDims { pass: 0, start: 0, tokens: 5, ..PassDims::default() };
    let edited =
        |stage: &Stage| Edit::parse(&format!("{stage} *= 1")).is_ok() && stage.present(&model.sizes(), dims);
    Stage::ALL.iter().copied().filter(edited).collect()
}

fn edited(model: &Model, texts: &[&str]) -> Model {
    model.with_edits(Edits::new(texts.iter().map(|text| Edit::parse(text).unwrap()).collect()))
}

#[test]
fn an_edit_that_writes_the_values_that_are_there_changes_no_bit() {
    let mut tried = 0;
    let all: Vec<_> = models_in(&MODELS).collect();
    for (name, plain) in sampled("models with edits of every stage", all, 6) {
        let plain = plain();
        let (frames, _) = record(&plain, &PROMPT);
        for stage in stages(&plain) {
            let model = edited(&plain, &[&format!("{stage} *= 1")]);
            let (same, _) = record(&model, &PROMPT);
            assert_eq!(same.len(), frames.len());
            frames.values().for_each(|frame| assert_same(&same[&frame.site], frame));
            let changes = model.edits.changes();
            let [Some(changed)] = &changes[..] else { panic!("{name}: {stage}: {changes:?}") };
            assert!(changed.cells > 0 && changed.changed == 0, "{name}: {stage}: {changed:?}");
            tried += 1;
        }
    }
    assert!(tried > 100, "{tried}");
}

/// The tables of RoPE of OLMo 2 and ERNIE 4.5 are not rounded in bfloat16. An edit rounds as the model does.
#[test]
fn an_edit_rounds_a_stage_only_if_the_model_does() {
    for name in ["olmo2", "ernie4_5", "cohere2"] {
        let plain = model(&format!("families/{name}"), Cpu::default().with_precision(Precision::Bf16), &[]);
        let before = first(&plain);
        for stage in ["rope_cos", "rope_sin", "xq", "attn_residual"] {
            let after = first(&edited(&plain, &[&format!("{stage} *= 1")]));
            before.values().for_each(|frame| assert_same(&after[&frame.site], frame));
        }
    }
}

#[test]
fn before_an_edit_nothing_changes_and_after_it_something_does() {
    for name in MODELS {
        let plain = model(&format!("golden/{name}"), Cpu::default(), &[]);
        let before = first(&plain);
        for stage in stages(&plain) {
            let (place, layer) = match stage.in_layer() {
                true => (format!("p0/L1/{stage}"), Some(1)),
                false => (format!("p0/{stage}"), None),
            };
            // The cache has no tokens, and other stages may have a value that is 0 already.
            let after = first(&edited(&plain, &[&format!("{place} *= 3")]));
            let at = Site { layer, ..Site::once(0, stage) };
            let order = |site: Site| (site.stage.info().section, site.layer, site.stage);
            for (site, frame) in before.iter().filter(|(site, _)| order(**site) < order(at)) {
                assert_same(&after[site], frame);
            }
            assert!(after[&at].floats() != before[&at].floats(), "{name}: {place}");
            let logits = Site::once(0, Stage::Logits);
            // A factor of all scores before the mask is a temperature; every stage reaches the logits.
            assert!(after[&logits].floats() != before[&logits].floats(), "{name}: {place}");
        }
    }
}

#[test]
fn in_each_precision_a_written_value_is_there_and_what_is_computed_from_it_reads_it() {
    let mut derived = 0;
    for (name, plain) in models_in(&["gqa", "mistral", "qwen3"]) {
        let plain = plain();
        let before = first(&plain);
        for stage in stages(&plain) {
            let (place, layer) = match stage.in_layer() {
                true => (format!("p0/L1/{stage}"), Some(1)),
                false => (format!("p0/{stage}"), None),
            };
            let model = edited(&plain, &[&format!("{place} = 0.5")]);
            let after = first(&model);
            let at = Site { layer, ..Site::once(0, stage) };
            assert!(after[&at].floats().unwrap().iter().all(|value| *value == 0.5), "{name}: {place}");
            let order = |site: Site| (site.stage.info().section, site.layer, site.stage);
            for (site, frame) in &after {
                if order(*site) < order(at) {
                    assert_same(frame, &before[site]);
                } else if is_derivable(site.stage) && !model.edits.stop_derivation(site.stage) {
                    derived += 1;
                    let mut input = |site: Site| Ok(Arc::new(after[&site].clone()));
                    let (sizes, precision) = (plain.sizes(), plain.backend.precision());
                    let arithmetic = plain.backend.arithmetic();
                    let dims = PassDims { tokens: PROMPT.len(), ..PassDims::default() };
                    let frame =
                        derive(*site, &sizes, (precision, arithmetic), dims, &Stop::default(), &mut input)
                            .unwrap();
                    assert_same(&frame, &after[site]);
                }
            }
        }
    }
    assert!(derived > 1000, "{derived}");
}

#[test]
fn a_run_in_a_batch_and_in_the_viewer_has_the_same_edited_values() {
    let texts = [
        "L0/xk[pos=2] = 0",
        "p0/L1/softmax[h=1] = mean",
        "L0/keys[h=1] *= 2",
        "L0/values[h=0,k=1] = 3",
        "L1/mask off",
        "L1/ffn_hidden[f=3-7] *= -2",
        "final_norm[t=4] = mean",
        "logits[v=2-9] = mean",
    ];
    for name in MODELS {
        let model = edited(&model(&format!("golden/{name}"), Cpu::default(), &[]), &texts);
        let (frames, passes) = record(&model, &PROMPT);
        let mut live = start(model, &PROMPT, passes.len(), Vec::new());
        for frame in frames.values() {
            let region = Region::whole(frame.shape());
            let Answer::Block(block) = ask(&mut live, &Query::Block(frame.site, region)).unwrap() else {
                panic!()
            };
            assert_same(&block.frame, frame);
        }
    }
}

#[test]
fn keys_are_changed_for_a_kv_head_in_the_cache_or_for_a_query_head_after_it() {
    let plain = model("golden/gqa", Cpu::default(), &[]);
    let sizes = plain.sizes();
    let group = sizes.heads / sizes.kv_heads;
    assert!(group > 1);
    let of_cache = first(&edited(&plain, &["L0/cache_k[g=1] *= 2"]));
    let all: Vec<String> = (0..group).map(|i| format!("L0/keys[h={}] *= 2", group + i)).collect();
    let of_heads = first(&edited(&plain, &all.iter().map(String::as_str).collect::<Vec<_>>()));
    let site = |stage| Site::layer(0, 0, stage);
    assert_same(&of_cache[&site(Stage::Softmax)], &of_heads[&site(Stage::Softmax)]);
    // The cache itself is only changed by the first edit.
    let before = first(&plain);
    assert_same(&of_heads[&site(Stage::CacheK)], &before[&site(Stage::CacheK)]);
    // One query head alone leaves the others of its kv head.
    let one = first(&edited(&plain, &["L0/keys[h=2] *= 2"]));
    let [now, was] = [&one, &before].map(|run| run[&site(Stage::Softmax)].floats().unwrap());
    for h in 0..sizes.heads {
        let same = now.index_axis(ndarray::Axis(0), h) == was.index_axis(ndarray::Axis(0), h);
        assert_eq!(same, h != 2, "head {h}");
    }
}

#[test]
fn an_edited_key_stays_in_the_cache_and_an_edited_softmax_holds_for_its_pass() {
    let plain = model("golden/gqa", Cpu::default(), &[]);
    let run = |text: &str| record(&edited(&plain, &[text]), &PROMPT).0;
    let site = Site::layer(1, 1, Stage::CacheK);
    let frames = run("p0/L1/xk_rope[t=2] = 7");
    let cache = frames[&site].floats().unwrap();
    assert!(cache.index_axis(ndarray::Axis(0), 2).iter().all(|value| *value == 7.0));
    let frames = run("p0/L1/softmax[h=0] = 0");
    let later = frames[&Site::layer(1, 1, Stage::Softmax)].floats().unwrap();
    assert!(later.sum() > later.shape()[0] as f32 - 0.01, "rows of a later pass sum to 1");
}

#[test]
fn a_part_or_a_cell_that_the_model_does_not_have_is_named() {
    let plain = model("golden/gqa", Cpu::default(), &[]);
    let layers = plain.sizes().layers;
    let passes = [
        (0, PassDims { pass: 0, start: 0, tokens: 5, ..PassDims::default() }),
        (0, PassDims { pass: 1, start: 5, tokens: 1, ..PassDims::default() }),
    ];
    for (text, expected) in [
        ("L0/h4 off".to_owned(), "head 4 is past the last"),
        (format!("L{layers}/ffn off"), "the model has no layer"),
        ("xq[t=5] = 0".into(), "token 5 is past the last"),
        ("xq[pos=6] = 0".into(), "no position 6"),
        ("p2/xq = 0".into(), "no pass 2"),
        ("s1/xq = 0".into(), "no such sequence"),
        ("p1/masked_scores = 0".into(), "no masked_scores"),
        ("xq_norm off".into(), "no xq_norm"),
    ] {
        let edits = Edits::new(vec![Edit::parse(&text).unwrap()]);
        let error = edits.check(&plain.card(), &passes).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{text}");
        assert!(error.to_string().contains(expected), "{text}: {error}");
    }
    for text in ["xq[t=4] = 0", "p1/xq[pos=5] = 0", "mask off", "p1/softmax[k=5] = 0"] {
        Edits::new(vec![Edit::parse(text).unwrap()]).check(&plain.card(), &passes).unwrap();
    }
}
