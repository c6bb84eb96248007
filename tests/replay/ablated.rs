//! A model with a part switched off. The part's output is zero, stages before it have the same bits, and every other
//! weight is the file's.

use std::collections::HashMap;

use llama_trace::backend::cpu::Cpu;
use llama_trace::checkpoint::{self, Ablated};
use llama_trace::config::Precision;
use llama_trace::model::Model;
use llama_trace::trace::explanation::ExplanationAt;
use llama_trace::trace::lens::{AttributionAt, Contributor};
use llama_trace::trace::{Answer, Frame, PassDims, Query, Run, Site, Source, Stage, Weight, WeightRows};

use super::{MODELS, PRECISIONS, ask, assert_same, common, record, start};

const PROMPT: [u32; 5] = [1, 5, 9, 3, 7];

fn model(fixture: &str, cpu: Cpu, without: &[&str]) -> Model {
    let mut checkpoint = checkpoint::open(&common::fixture(fixture)).unwrap();
    let parts: Vec<Ablated> = without.iter().map(|part| part.parse().unwrap()).collect();
    checkpoint.ablate(&parts).unwrap();
    Model::load(&checkpoint, cpu).unwrap()
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
                Some(0) => site.stage <= Stage::AttnHeads,
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

/// Tests files of every number type. In some of them, each block has columns of only one head; in others, a block has
/// columns of several heads.
#[test]
fn of_the_weights_only_the_columns_of_the_part_are_0() {
    let files = [
        "golden/gqa",
        "formats/hf/bf16",
        "formats/hf/f16",
        "formats/llama2c/v2.bin",
        "formats/llama2c/v2_across.bin",
        "formats/meta/by_dim",
        "formats/gguf/blocks.gguf",
        "formats/gguf/k_blocks.gguf",
        "formats/gguf/rare_blocks.gguf",
    ];
    let mut aligned = [0, 0];
    for file in files {
        let path = common::fixture(file);
        let checkpoint = checkpoint::open(&path).unwrap();
        let group = checkpoint.group();
        let precision = group.map_or(Precision::F32, |group| Precision::Q8 { group });
        for precision in [Precision::F32, precision] {
            let cpu = || Cpu::default().with_precision(precision);
            let (whole, less) = (model(file, cpu(), &[]), model(file, cpu(), &["L0/h1", "L0/ffn"]));
            let sizes = whole.sizes();
            let dims = PassDims::default();
            let (width, inner) = (sizes.head_dim, sizes.heads * sizes.head_dim);
            for weight in Weight::all().filter(|weight| weight.present(&whole.card())) {
                let count = match weight.axes() {
                    [outputs, _] => sizes.axis(*outputs, dims),
                    _ => 1,
                };
                for layer in 0..if weight.in_layer() { sizes.layers } else { 1 } {
                    let layer = weight.in_layer().then_some(layer);
                    let [had, has] = [&whole, &less].map(|model| rows(model, layer, weight, count));
                    let largest = had.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
                    for (at, (had, has)) in had.iter().zip(&has).enumerate() {
                        let off = match (layer, &*weight.to_string()) {
                            (Some(0), "wo") => (width..2 * width).contains(&(at % inner)),
                            (Some(0), "w2") => true,
                            _ => false,
                        };
                        let expected = if off { 0.0 } else { *had };
                        // If a block was dequantized and the products are in int8, the remaining weights are rounded
                        // once more, by less than one step.
                        let near = if off { 0.0 } else { largest / 127.0 };
                        let exact =
                            precision == Precision::F32 || !checkpoint_has_wide_blocks(&checkpoint, width);
                        let right = if exact { *has == expected } else { (has - expected).abs() <= near };
                        assert!(
                            right,
                            "{file} in {precision:?}: {weight} of {layer:?} at {at}: {has} and not {expected}, of at most {largest}"
                        );
                    }
                }
            }
            aligned[usize::from(checkpoint_has_wide_blocks(&checkpoint, width))] += 1;
        }
    }
    assert!(aligned.iter().all(|&count| count > 1), "{aligned:?}");
}

/// Returns whether a block has the columns of more than one head.
fn checkpoint_has_wide_blocks(checkpoint: &checkpoint::Checkpoint, head_dim: usize) -> bool {
    checkpoint.tensors().any(|(_, tensor)| !head_dim.is_multiple_of(tensor.dtype().block()))
}

#[test]
fn what_the_model_has_not_cannot_be_switched_off() {
    let mut checkpoint = checkpoint::open(&common::fixture("golden/gqa")).unwrap();
    let layers = checkpoint.config.layers;
    for part in ["L0/h4".to_owned(), format!("L{layers}/ffn"), format!("L{layers}/h0")] {
        let error = checkpoint.ablate(&[part.parse().unwrap()]).unwrap_err().to_string();
        assert!(error.contains(&part) && error.contains("h0 to h3"), "{error}");
    }
}
