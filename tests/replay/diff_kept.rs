//! `diff` of runs that keep their values in another way: in caches of 16 bits, in other pairs, or only at a few stages.

use llama_trace::backend::cpu::Cpu;
use llama_trace::checkpoint;
use llama_trace::config::{CacheDtype, Pairing, Precision};
use llama_trace::diff;
use llama_trace::model::Model;
use llama_trace::trace::{Site, Stage};

use super::common::models;
use super::diff::{changed, judged, run, run_of, run_on, verdict};
use super::port::{Kept, Port, frame};
use super::{model, model_in};

#[test]
fn a_cache_of_16_bits_that_nobody_says_differs_and_one_that_is_said_does_not() {
    let model = model("gqa");
    let a = run(&model);
    for dtype in [CacheDtype::F16, CacheDtype::Bf16] {
        let b = run(&model_in("gqa", Cpu::default().with_cache_dtype(dtype)));
        for says in [None, Some(CacheDtype::F32), Some(dtype)] {
            let mut b = b.clone();
            b.about.cache = says;
            // A copy of B without the cache, with only some of the stages before and after the cache.
            let mut few = b.clone();
            few.frames.retain(|site, _| {
                [Stage::XkRope, Stage::Xv, Stage::XqRope, Stage::AttnHeads].contains(&site.stage)
            });
            let by_table = diff::compare(&mut a.clone(), &mut b.clone(), &|_| ()).unwrap();
            for (report, found) in [
                (judged(&model, &a, &b), "p0/L0/cache_k"),
                (by_table, "p0/L0/cache_k"),
                (judged(&model, &a, &few), "p0/L0/attn_heads"),
                (diff::compare(&mut a.clone(), &mut few.clone(), &|_| ()).unwrap(), "p0/L0/attn_heads"),
            ] {
                if says == Some(dtype) {
                    assert!(report.same(), "{dtype:?}: {:?}", report.first);
                    continue;
                }
                assert_eq!(verdict(&report).1, found, "{dtype:?}, {says:?}");
                if found.ends_with("cache_k") {
                    let note = format!("has only {} values", dtype.name());
                    assert!(report.notes.iter().any(|said| said.contains(&note)), "{:?}", report.notes);
                }
            }
        }
    }
}

#[test]
fn keys_that_earlier_passes_cached_are_the_runs_own() {
    // Layer 0 adds twice as much as it should. Nothing else is wrong.
    let wrong = models::golden("gqa", |tensors| {
        for (name, (_, bytes)) in
            tensors.iter_mut().filter(|(name, _)| name.contains("layers.0.mlp.down_proj"))
        {
            let doubled = bytes
                .as_chunks::<4>()
                .0
                .iter()
                .flat_map(|word| (2.0 * f32::from_le_bytes(*word)).to_le_bytes());
            *bytes = doubled.collect();
            assert!(name.ends_with("weight"));
        }
    });
    let (healthy, checkpoint) = (model("gqa"), checkpoint::open(wrong.path()).unwrap());
    let wrong = Model::load(&checkpoint, Cpu::default()).unwrap();
    let [a, b] = [&healthy, &wrong].map(|model| run_on(model, 3));
    for kept in [
        &[Stage::FfnResidual, Stage::Logits][..],
        &[Stage::FfnResidual, Stage::CacheK, Stage::CacheV, Stage::AttnOutput],
        &[Stage::AttnNorm, Stage::FfnDown],
        Stage::ALL,
    ] {
        let mut b = b.clone();
        b.frames.retain(|site, _| kept.contains(&site.stage));
        let report = judged(&healthy, &a, &b);
        let found: Vec<_> = report.differences.iter().map(|first| first.site.unwrap()).collect();
        assert!(found.iter().all(|site| site.layer == Some(0)), "{kept:?}: {found:?}");
        let passes: Vec<_> = found.iter().map(|site| site.pass).collect();
        assert_eq!(passes, [0, 1, 2], "{kept:?}: {found:?}");
    }
}

/// The same run with the components of each head in neighbouring pairs. If `says`, the run states this pairing.
fn in_neighbours(run: &Kept, head_dim: usize, says: bool) -> Kept {
    let turned = [Stage::Xq, Stage::Xk, Stage::XqRope, Stage::XkRope, Stage::CacheK, Stage::Keys];
    let mut other = run.clone();
    for site in run.frames.keys().filter(|site| turned.contains(&site.stage)) {
        let values: Vec<f32> = run.frames[site].floats().unwrap().iter().copied().collect();
        let from = |at: usize| at / head_dim * head_dim + at % head_dim / 2 + at % 2 * (head_dim / 2);
        let values = (0..values.len()).map(|at| values[from(at)]).collect();
        other.frames.insert(*site, frame(*site, run.frames[site].shape(), values));
    }
    if says {
        other.about.card.as_mut().unwrap().config.pairing = Pairing::Neighbours;
    }
    other
}

#[test]
fn pairs_in_another_order_that_both_say_are_no_difference_and_what_differs_then_is_one() {
    let model = model("gqa");
    let (mut a, head_dim) = (run_on(&model, 2), model.config.head_dim);
    // The model files of the two runs differ, so they have different fingerprints.
    a.about.fingerprint = Some(model.fingerprint().unwrap().weights);
    let mut b = in_neighbours(&a, head_dim, true);
    b.about.fingerprint = Some("another".into());
    for (a, b) in [(&a, &b), (&b, &a)] {
        let by_table = diff::compare(&mut a.clone(), &mut b.clone(), &|_| ()).unwrap();
        for report in [judged(&model, a, b), by_table] {
            assert!(report.same(), "{:?}", report.first);
            assert!(
                report.notes.iter().any(|note| note.contains("are compared in one order")),
                "{:?}",
                report.notes
            );
        }
    }
    // If one of the two states a pairing that its values do not have, or does not state its pairing, the runs differ. A
    // single changed value also makes them differ.
    let mut lying = in_neighbours(&a, head_dim, false);
    let mut silent = a.clone();
    silent.about.card.as_mut().unwrap().config.pairing = Pairing::Neighbours;
    silent.about.fingerprint = None;
    let off = changed(&b, Site::layer(0, 1, Stage::Xq), |at, x| if at == 3 { x + 1.0 } else { x });
    lying.about.fingerprint = None;
    for (b, found) in [(&lying, "p0/L0/xq"), (&silent, "p0/L0/xq"), (&off, "p0/L1/xq")] {
        let by_table = diff::compare(&mut a.clone(), &mut b.clone(), &|_| ()).unwrap();
        for report in [judged(&model, &a, b), by_table] {
            assert_eq!(verdict(&report).1, found);
        }
    }
}

/// Sums in the plainest order differ from the reference by as much as float32 rounding causes in a whole model.
#[test]
fn a_port_without_a_mistake_is_the_same_where_few_stages_are_written() {
    let model = Model::load(&llama_trace::builtin::open().unwrap(), Cpu::default()).unwrap();
    // For the first ids, the logits of this port differ by 1.4e-6, which is more than the tolerance of one stage.
    for ids in [vec![608, 559, 135, 380, 939, 620], (100..103).collect(), (200..212).collect()] {
        let (a, b) = (run_of(&model, &ids, 1), Port::new("../builtin", &model.config, "").run(&ids));
        for shown in [
            &[Stage::Logits][..],
            &[Stage::FfnResidual],
            &[Stage::Softmax],
            &[Stage::AttnNorm, Stage::FinalNorm],
        ] {
            let mut few = b.clone();
            few.frames.retain(|site, _| shown.contains(&site.stage));
            let report = judged(&model, &a, &few);
            let worst = report.lines.iter().map(|line| line.error / line.tolerance).fold(0.0, f64::max);
            assert!(report.same() && worst < 0.7, "{ids:?}, {shown:?}: {:?}, {worst}", report.first);
        }
    }
}

/// A run whose every result is rounded to bfloat16. The rounding errors of earlier layers are passed on, and grow on
/// the way.
#[test]
fn a_run_in_bfloat16_is_the_same_where_few_stages_are_written() {
    let opened = llama_trace::builtin::open().unwrap();
    let model = Model::load(&opened, Cpu::default()).unwrap();
    let rounded = Model::load(&opened, Cpu::default().with_precision(Precision::Bf16)).unwrap();
    // For the first ids the logits differ by 0.057 and the final norm by 0.063, in transformers as here.
    for ids in [[554, 899, 696, 642, 211, 188], [476, 629, 384, 275, 143, 192]] {
        let (a, b) = (run_of(&model, &ids, 1), run_of(&rounded, &ids, 1));
        let wrong = Port::new("../builtin", &model.config, "norm_weight_plus_one").run(&ids);
        for shown in [
            Stage::Logits,
            Stage::FinalNorm,
            Stage::AttnNorm,
            Stage::AttnResidual,
            Stage::FfnResidual,
            Stage::XqRope,
        ] {
            let few = |run: &Kept, last: bool| {
                let mut few = run.clone();
                let of =
                    |site: &Site| !last || site.layer.is_none_or(|layer| layer + 1 == model.config.layers);
                few.frames.retain(|site, _| site.stage == shown && of(site));
                few.about.precision = Some(Precision::Bf16);
                few
            };
            for last in [false, true] {
                let report = judged(&model, &a, &few(&b, last));
                let worst = report.lines.iter().map(|line| line.error / line.tolerance).fold(0.0, f64::max);
                assert!(report.same() && worst < 0.9, "{ids:?}, {shown}: {:?}, {worst}", report.first);
                assert!(!judged(&model, &a, &few(&wrong, last)).same(), "{ids:?}, {shown}");
            }
        }
    }
}
