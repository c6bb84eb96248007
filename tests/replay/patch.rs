//! A run with a patched place has the logits of the run with the same edit.

use std::sync::Arc;

use llama_trace::backend::cpu::Cpu;
use llama_trace::checkpoint;
use llama_trace::generate::Session;
use llama_trace::model::{Model, pass};
use llama_trace::patch::{Measure, Metric, PatchMap, Patcher, Place};
use llama_trace::trace::patch::{PatchAt, PatchEffects, PatchEnds};
use llama_trace::trace::{Answer, NoProbe, Query, Site, Source, Stage};
use llama_trace_core::edit::{Edit, Edits, Given, Origin};

use super::common::fixture;
use super::{Live, MODELS, ask, model, models_in, record, sampler, start};

const CLEAN: [u32; 6] = [1, 5, 9, 3, 7, 2];
const CORRUPTED: [u32; 6] = [1, 5, 4, 3, 8, 2];

/// The stages that can be patched.
fn stages(model: &Model) -> [Stage; 6] {
    [
        Stage::Embedding,
        Stage::FfnResidual,
        Stage::AttnOutput,
        Stage::FfnDown,
        Stage::AttnHeads,
        model.sizes().neurons(),
    ]
}

/// Every place with a token, every head, and some neurons.
fn places(model: &Model) -> Vec<Place> {
    let sizes = model.sizes();
    let mut places = Vec::new();
    for stage in stages(model) {
        let layers = if stage.in_layer() { sizes.layers } else { 1 };
        for layer in (0..layers).map(|layer| stage.in_layer().then_some(layer)) {
            let unit = |unit| Place { stage, layer, token: None, unit: Some(unit) };
            match stage {
                Stage::AttnHeads => places.extend((0..sizes.heads).map(unit)),
                Stage::FfnHidden | Stage::FfnAct => places.extend([0, sizes.hidden - 1].map(unit)),
                _ => places.extend((0..CLEAN.len()).map(|token| Place {
                    stage,
                    layer,
                    token: Some(token),
                    unit: None,
                })),
            }
        }
    }
    places
}

/// The last logits of the corrupted prompt with `edits`.
fn edited(model: &Model, edits: Vec<Edit>, given: Given) -> Vec<f32> {
    let model = model.with_edits(Edits::new(edits).with(given));
    let mut session = Session::with_capacity(&model, sampler(), CORRUPTED.len()).unwrap();
    session.read(&CORRUPTED, &mut NoProbe).unwrap();
    let mut logits = Vec::new();
    pass::last_logits(&model, &session.work, 0, |row| {
        logits.extend_from_slice(row);
        Ok(())
    })
    .unwrap();
    logits
}

/// The logits of every place, after a check that each was seen once.
fn patched(patcher: &mut Patcher<'_>, places: &[Place]) -> Vec<Vec<f32>> {
    let mut all = vec![Vec::new(); places.len()];
    let mut see = |index: usize, logits: &[f32]| {
        assert!(all[index].is_empty(), "{} was seen twice", places[index].address());
        all[index] = logits.to_vec();
        Ok(())
    };
    patcher.run(places, &mut see).unwrap();
    all
}

/// The edit that is equal to a patch of `place`, and what it reads.
fn edit_of(place: Place, clean: &Model) -> (Edit, Given) {
    let address = place.address();
    let (frames, _) = record(clean, &CLEAN);
    let origin = Origin::Prompt("clean".into());
    let site =
        frames.keys().find(|site| (site.pass, site.layer, site.stage) == (0, place.layer, place.stage));
    let site = *site.unwrap();
    let mut given = Given::default();
    given.frames.insert((origin, site), Arc::new(frames[&site].clone()));
    (Edit::parse(&format!("{address} = \"clean\":{address}")).unwrap(), given)
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(b).map(|(a, b)| f64::from(a - b))) / norm(&mut b.iter().map(|&b| f64::from(b)))
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

#[test]
fn a_patch_equals_the_edit_bit_for_bit_in_float32() {
    for (name, model) in models_in(&MODELS) {
        let (model, exact) = (model(), name.contains("F32"));
        let places = places(&model);
        let mut patcher = Patcher::new(&model, &CORRUPTED, Some(&CLEAN), &stages(&model)).unwrap();
        let plain = edited(&model, Vec::new(), Given::default());
        assert_eq!(bits(patcher.logits()), bits(&plain), "{name}");
        let all = patched(&mut patcher, &places);
        let mut moved = 0;
        for (place, logits) in places.iter().zip(&all) {
            // Other precisions sum some rows in another order; a sample is enough for their bound.
            if !exact && place.unit.is_none() && place.token != Some(4) {
                continue;
            }
            let (edit, given) = edit_of(*place, &model);
            let reference = edited(&model, vec![edit], given);
            let far = distance(logits, &reference);
            assert!(!exact || bits(logits) == bits(&reference), "{name}: {} by {far}", place.address());
            assert!(far < 0.02, "{name}: {} by {far}", place.address());
            moved += usize::from(bits(&reference) != bits(&plain));
        }
        assert!(moved > 10, "{name}: the places matter");
    }
}

/// The norm after attention, the parallel feed-forward network, the one without a gate, and the cap of the logits.
#[test]
fn a_patch_of_a_family_equals_the_edit() {
    for name in ["gemma2", "olmo2", "cohere2", "apertus", "granite", "smollm3", "hunyuan"] {
        let checkpoint = checkpoint::open(&fixture(&format!("families/{name}"))).unwrap();
        let model = Model::load(&checkpoint, Cpu::default()).unwrap();
        let places = places(&model);
        let mut patcher = Patcher::new(&model, &CORRUPTED, Some(&CLEAN), &stages(&model)).unwrap();
        let mut moved = 0;
        for (place, logits) in places.iter().zip(patched(&mut patcher, &places)) {
            let (edit, given) = edit_of(*place, &model);
            let reference = edited(&model, vec![edit], given);
            assert_eq!(bits(&logits), bits(&reference), "{name}: {}", place.address());
            moved += usize::from(bits(&reference) != bits(patcher.logits()));
        }
        assert!(moved > 10, "{name}: the places matter");
    }
}

#[test]
fn a_patch_of_an_edited_run_equals_both_edits() {
    let model = model("gqa");
    for part in ["L0/h1", "L1", "L0/ffn"] {
        let off = || Edit::without(part).unwrap();
        let less = model.with_edits(Edits::new(vec![off()]));
        let places = places(&model);
        let mut patcher = Patcher::new(&less, &CORRUPTED, Some(&CLEAN), &stages(&less)).unwrap();
        for (place, logits) in places.iter().zip(patched(&mut patcher, &places)) {
            let (edit, given) = edit_of(*place, &less);
            let reference = edited(&model, vec![off(), edit], given);
            assert_eq!(bits(&logits), bits(&reference), "{part}: {}", place.address());
        }
    }
}

#[test]
fn without_a_donor_a_patch_switches_the_part_off() {
    let model = model("qwen3");
    let unit = |stage, unit| Place { stage, layer: Some(1), token: None, unit: Some(unit) };
    let places = [unit(Stage::AttnHeads, 2), unit(Stage::FfnHidden, 17)];
    let mut patcher = Patcher::new(&model, &CORRUPTED, None, &stages(&model)).unwrap();
    for (part, logits) in ["L1/h2", "L1/n17"].iter().zip(patched(&mut patcher, &places)) {
        let reference = edited(&model, vec![Edit::without(part).unwrap()], Given::default());
        assert_eq!(bits(&logits), bits(&reference), "{part}");
    }
}

#[test]
fn sixteen_places_cost_at_most_five_passes() {
    let model = model("gqa");
    let ids = |other: u32| (0..20).map(|i| if i == 0 { other } else { 3 + i }).collect::<Vec<u32>>();
    let stages = [Stage::FfnResidual, Stage::AttnOutput, Stage::FfnDown];
    let mut patcher = Patcher::new(&model, &ids(1), Some(&ids(2)), &stages).unwrap();
    assert_eq!(patcher.passes(), 2.0, "the two runs");
    let of = |stage| {
        let layers = 0..model.sizes().layers;
        layers.flat_map(move |layer| {
            (0..20).map(move |token| Place { stage, layer: Some(layer), token: Some(token), unit: None })
        })
    };
    let places: Vec<Place> = stages.into_iter().flat_map(of).collect();
    patched(&mut patcher, &places);
    let each = (patcher.passes() - 2.0) / (places.len() as f64 / 16.0);
    assert!((1.0..5.0).contains(&each), "{each} passes for 16 places");
}

/// A neuron of the last layer has only a direct effect, apart from the change of the final norm's factor. This change
/// is the same for every pair of tokens.
#[test]
fn the_direct_effect_of_a_neuron_of_the_last_layer_is_its_effect() {
    let model = model("gqa");
    let mut patcher = Patcher::new(&model, &CORRUPTED, Some(&CLEAN), &[Stage::FfnHidden]).unwrap();
    let last = model.sizes().layers - 1;
    let pairs = [(3, 9), (1, 40)];
    let [direct, other] = pairs.map(|ids| {
        let mut all = patcher.direct(Stage::FfnHidden, ids).unwrap();
        all.retain(|(place, _)| place.layer == Some(last));
        all
    });
    let places: Vec<Place> = direct.iter().map(|(place, _)| *place).collect();
    let difference =
        |logits: &[f32], (a, b): (u32, u32)| f64::from(logits[a as usize]) - f64::from(logits[b as usize]);
    let plain = pairs.map(|ids| difference(patcher.logits(), ids));
    let (mut error, mut moved) = (0.0_f64, 0.0_f64);
    for (at, logits) in patched(&mut patcher, &places).iter().enumerate() {
        let patched = pairs.map(|ids| difference(logits, ids));
        let expected = [plain[0] + direct[at].1, plain[1] + other[at].1];
        error = error.max((patched[0] * expected[1] - patched[1] * expected[0]).abs());
        moved = moved.max((patched[0] * plain[1] - patched[1] * plain[0]).abs());
    }
    assert!(moved > 0.01 && error < 1e-4 * moved, "{error} of {moved}");
}

#[test]
fn prompts_of_different_lengths_are_refused() {
    let model = model("gqa");
    let error = Patcher::new(&model, &CORRUPTED, Some(&CLEAN[1..]), &stages(&model)).map(drop).unwrap_err();
    assert!(error.to_string().contains("same number of tokens"), "{error}");
    assert!(Patcher::new(&model, &[1, 99_999], Some(&[1, 2]), &stages(&model)).is_err());
}

/// A map as a viewer gets it, and the number of its questions.
fn map_of(live: &mut Live, clean: &[u32], map: PatchMap) -> (PatchEnds, Vec<PatchEffects>) {
    let (sizes, site) = (live.outline().card.sizes(), Site::once(0, Stage::Logits));
    let (clean, mut answers, mut next) = (clean.into(), Vec::new(), 0);
    while let Some(at) = PatchAt::from(site, &clean, map, &sizes, next) {
        next = at.places.end;
        let Ok(Answer::Patch(effects)) = ask(live, &Query::Patch(at)) else { panic!("{map:?}") };
        answers.push(effects);
    }
    (answers[0].ends, answers)
}

/// The viewer's numbers are those of the command: of one patcher and one measure.
#[test]
fn a_live_run_tells_the_effects_that_the_patcher_measures() {
    let off = |model: Model| model.with_edits(Edits::new(vec![Edit::without("L0/h1").unwrap()]));
    let models = models_in(&MODELS).filter(|(name, _)| name.contains("F32"));
    let edited = ("gqa edited".to_owned(), Box::new(move || off(model("gqa"))) as Box<dyn Fn() -> Model>);
    for (name, model) in models.chain([edited]) {
        let mut live = start(model(), &CORRUPTED, 2, Vec::new());
        let model = model();
        for map in PatchMap::ALL {
            let places: Vec<Place> = map.places(&model.sizes(), CLEAN.len()).collect();
            let mut patcher = Patcher::new(&model, &CORRUPTED, Some(&CLEAN), &[map.stage()]).unwrap();
            let logits = patched(&mut patcher, &places);
            let (ends, answers) = map_of(&mut live, &CLEAN, map);
            let effects: Vec<_> = answers.iter().flat_map(|answer| &answer.places).collect();
            assert_eq!(effects.len(), places.len(), "{name}");
            let likeliest = |logits: &[f32]| {
                let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)));
                best.unwrap() as u32
            };
            let ids = (likeliest(patcher.donor_logits()), likeliest(patcher.logits()));
            assert_eq!((ends.answer, ends.wrong), ids, "{name}");
            for (at, metric) in Metric::ALL.into_iter().enumerate() {
                let measure = Measure::new(metric, ids, patcher.donor_logits(), patcher.logits());
                let Ok(measure) = measure else {
                    assert_eq!(ends.values[at], None, "{name}: {metric:?}");
                    continue;
                };
                assert_eq!(ends.values[at], Some(measure.ends()), "{name}: {metric:?}");
                for ((place, logits), told) in places.iter().zip(&logits).zip(&effects) {
                    let value = measure.value(logits);
                    let expected = [value, measure.effect(value)].map(f64::to_bits);
                    let told = [told[at].value, told[at].effect].map(f64::to_bits);
                    assert_eq!(told, expected, "{name}: {metric:?} {}", place.address());
                }
            }
            // What was computed is there when it is asked for again, in any order.
            let again = map_of(&mut live, &CLEAN, map).1;
            assert_eq!(format!("{again:?}"), format!("{answers:?}"), "{name}");
        }
    }
}

#[test]
fn a_live_run_says_why_there_is_no_map() {
    let query = |clean: &[u32]| {
        let (site, places) = (Site::once(0, Stage::Logits), 0..1);
        Query::Patch(PatchAt { site, clean: clean.into(), map: PatchMap::Residual, places })
    };
    let mut live = start(model("gqa"), &CORRUPTED, 1, Vec::new());
    let error = ask(&mut live, &query(&CLEAN[1..])).unwrap_err().to_string();
    assert!(error.contains("same number of tokens"), "{error}");
    let error = ask(&mut live, &query(&[u32::MAX; 6])).unwrap_err().to_string();
    assert!(error.contains("vocab"), "{error}");
    // Of equal prompts, no metric has an effect.
    let (ends, _) = map_of(&mut live, &CORRUPTED, PatchMap::Heads);
    assert_eq!(ends.values, [None; 3]);
    // The other map is still there.
    assert!(ask(&mut live, &query(&CLEAN)).is_ok());
    let named = model("gqa").with_edits(Edits::new(vec![Edit::parse("s0/L0/xq[t=1] = 0").unwrap()]));
    let error = ask(&mut start(named, &CORRUPTED, 1, Vec::new()), &query(&CLEAN)).unwrap_err().to_string();
    assert!(error.contains("llama-trace patch"), "{error}");
}
