//! Compares the model's answer after each layer, and the contributions of its parts, with the stages of the run.

use std::collections::HashMap;

use llama_trace::trace::lens::{Attribution, AttributionAt, Contributor, LensAt, Reading};
use llama_trace::trace::stream::StreamAt;
use llama_trace::trace::units::{UnitOrder, UnitsAt, WritesAt, Writing};
use llama_trace::trace::{Answer, Query, Site, Source, Stage, Weight};

use super::{Live, MODELS, ask, models_in, record, rows_of, start};

const PROMPT: [u32; 5] = [1, 5, 9, 3, 7];

fn readings(live: &mut Live, site: Site, tokens: std::ops::Range<usize>, top: usize) -> Vec<Reading> {
    let Ok(Answer::Lens(readings)) = ask(live, &Query::Lens(LensAt { site, tokens, top })) else {
        panic!("{site}")
    };
    readings
}

fn attribution(live: &mut Live, pass: usize, token: usize, ids: (Option<u32>, Option<u32>)) -> Attribution {
    let site = Site::once(pass, Stage::Logits);
    let query = Query::Attribution(AttributionAt { site, token, id: ids.0, against: ids.1 });
    let Ok(Answer::Attribution(attribution)) = ask(live, &query) else { panic!("pass {pass}") };
    attribution
}

#[test]
fn the_lens_of_the_last_layer_equals_the_logits_bit_for_bit() {
    for (name, model) in models_in(&MODELS) {
        let (frames, passes) = record(&model(), &PROMPT);
        let mut live = start(model(), &PROMPT, passes.len(), Vec::new());
        let layers = live.outline().card.sizes().layers;
        for dims in passes {
            let logits = frames[&Site::once(dims.pass, Stage::Logits)].floats().unwrap();
            let site = Site::layer(dims.pass, layers - 1, Stage::FfnResidual);
            let all = readings(&mut live, site, 0..dims.tokens, usize::MAX);
            assert_eq!(all.len(), dims.tokens);
            for (token, reading) in all.iter().enumerate() {
                assert_eq!(reading.top.len(), logits.shape()[1], "{name}");
                for (rank, one) in (1..).zip(&reading.top) {
                    let logit = logits[[token, one.id as usize]];
                    assert_eq!((one.logit.to_bits(), one.rank), (logit.to_bits(), rank), "{name}");
                }
                assert!(reading.top.windows(2).all(|two| two[0].logit >= two[1].logit), "{name}");
                assert_eq!(reading.answer, reading.top[0], "{name}");
            }
            // A row that is read alone has the same bits as among all rows. A shorter list is the beginning of a longer
            // one.
            let one = readings(&mut live, site, dims.tokens - 1..dims.tokens, 3);
            assert_eq!(one[0].top, all[dims.tokens - 1].top[..3], "{name}");
        }
    }
}

#[test]
fn the_lens_of_an_earlier_layer_is_the_output_head_on_its_residual() {
    for (name, model) in models_in(&MODELS).filter(|(name, _)| name.contains("F32")) {
        let (frames, _) = record(&model(), &PROMPT);
        let mut live = start(model(), &PROMPT, 1, Vec::new());
        let card = live.outline().card.clone();
        let row = |live: &mut Live, stage: Stage, row: usize| -> Vec<f64> {
            let weight = Weight::read_in(stage, &card).next().unwrap();
            let values = rows_of(live, None, &weight.to_string(), row..row + 1);
            values.into_iter().map(f64::from).collect()
        };
        let norm = row(&mut live, Stage::FinalNorm, 0);
        let last = card.sizes().layers - 1;
        let end = readings(&mut live, Site::layer(0, last, Stage::FfnResidual), 0..PROMPT.len(), 1);
        for layer in 0..last {
            let site = Site::layer(0, layer, Stage::FfnResidual);
            let residual = frames[&site].floats().unwrap();
            for (token, reading) in readings(&mut live, site, 0..PROMPT.len(), 5).iter().enumerate() {
                assert_eq!(reading.answer.id, end[token].answer.id, "{name}: the answer is the last layer's");
                let x: Vec<f64> =
                    residual.index_axis(ndarray::Axis(0), token).iter().map(|&x| f64::from(x)).collect();
                let square = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
                let factor = 1.0 / (square + f64::from(card.config.norm_eps)).sqrt();
                for one in reading.top.iter().chain([&reading.answer]) {
                    let head = row(&mut live, Stage::Logits, one.id as usize);
                    let each = x.iter().zip(&norm).zip(&head);
                    let logit: f64 = each.map(|((x, w), o)| x * factor * w * o).sum();
                    let error = (f64::from(one.logit) - logit).abs();
                    assert!(error < 1e-4 * logit.abs().max(1.0), "{name} {site} {token}: {one:?}, {logit}");
                }
            }
        }
    }
}

#[test]
fn contributions_sum_to_the_difference_of_the_logits() {
    for (name, model) in models_in(&MODELS) {
        let (frames, passes) = record(&model(), &PROMPT);
        let mut live = start(model(), &PROMPT, passes.len(), Vec::new());
        let sizes = live.outline().card.sizes();
        let bias = live.outline().card.config.output_bias;
        for (pass, token) in [(0, 0), (0, 4), (2, 0)] {
            let logits = frames[&Site::once(pass, Stage::Logits)].floats().unwrap();
            let row: Vec<f32> = logits.index_axis(ndarray::Axis(0), token).iter().copied().collect();
            for ids in [(None, None), (Some(3), Some(0)), (Some(0), None)] {
                let found = attribution(&mut live, pass, token, ids);
                let by_size = |a: &usize, b: &usize| row[*b].total_cmp(&row[*a]).then(a.cmp(b));
                let mut order: Vec<usize> = (0..row.len()).collect();
                order.sort_by(by_size);
                let id = ids.0.map_or(order[0], |id| id as usize);
                let other = order.iter().copied().find(|&other| other != id).unwrap();
                let against = ids.1.map_or(other, |id| id as usize);
                assert_eq!((found.id as usize, found.against as usize), (id, against), "{name}");
                assert_eq!(found.difference, f64::from(row[id]) - f64::from(row[against]), "{name}");
                let all: f64 = found.parts.iter().map(|share| share.value.abs()).sum();
                assert!((found.sum() - found.difference).abs() <= 1e-9 * all, "{name}");
                let parts: HashMap<_, _> =
                    found.parts.iter().map(|share| (share.part, share.value)).collect();
                assert_eq!(parts.len(), found.parts.len(), "{name}: a part stands twice");
                let each = sizes.heads + 1 + usize::from(bias);
                assert_eq!(parts.len(), sizes.layers * each + 2, "{name}");
                let rounding = parts[&Contributor::Rounding].abs();
                let bound = if name.contains("F32") { 1e-5 } else { 0.1 };
                assert!(rounding <= bound * all, "{name}: {rounding} of {all}");
            }
        }
    }
}

#[test]
fn norms_and_dot_products_of_a_sublayer_fit_the_recorded_rows() {
    for (name, model) in models_in(&MODELS) {
        let (frames, passes) = record(&model(), &PROMPT);
        let mut live = start(model(), &PROMPT, passes.len(), Vec::new());
        let layers = live.outline().card.sizes().layers;
        for dims in passes {
            let row = |layer: Option<usize>, stage: Stage, token: usize| -> Vec<f64> {
                let frame = &frames[&Site { layer, ..Site::once(dims.pass, stage) }];
                let floats = frame.floats().unwrap();
                floats.index_axis(ndarray::Axis(0), token).iter().map(|&x| f64::from(x)).collect()
            };
            for (layer, token) in (0..layers).flat_map(|layer| (0..dims.tokens).map(move |t| (layer, t))) {
                let site = Site::layer(dims.pass, layer, Stage::FfnResidual);
                // In layer 0 all tokens are read together, in later layers one token alone.
                let tokens = if layer == 0 { 0..dims.tokens } else { token..token + 1 };
                let at = StreamAt { site, tokens: tokens.clone() };
                let Ok(Answer::Stream(all)) = ask(&mut live, &Query::Stream(at)) else {
                    panic!("{name} {site}")
                };
                assert_eq!(all.len(), tokens.len(), "{name}");
                let found = &all[token - tokens.start];
                let first = match layer {
                    0 => row(None, Stage::Embedding, token),
                    _ => row(Some(layer - 1), Stage::FfnResidual, token),
                };
                let here = |stage: Stage| row(Some(layer), stage, token);
                let middle = here(Stage::AttnResidual);
                let both = [
                    (first, here(Stage::AttnOutput), middle.clone()),
                    (middle, here(Stage::FfnDown), here(Stage::FfnResidual)),
                ];
                for (found, (x, a, sum)) in found.iter().zip(both) {
                    let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
                    let dot: f64 = x.iter().zip(&a).map(|(x, a)| x * a).sum();
                    let size = norm(&x) * norm(&a).max(1.0);
                    let near = |one: f64, other: f64| (one - other).abs() <= 1e-9 * size;
                    let right = near(found.before, norm(&x)) && near(found.added, norm(&a));
                    assert!(right && near(found.after, norm(&sum)) && near(found.dot, dot), "{name} {site}");
                    // The three numbers fit the norm of the sum, except for rounding: |a + b|² = |a|² + 2·a·b + |b|².
                    let square = found.before.powi(2) + 2.0 * found.dot + found.added.powi(2);
                    let bound = if name.contains("F32") { 1e-5 } else { 0.03 };
                    assert!((found.after - square.sqrt()).abs() <= bound * found.after, "{name} {site}");
                }
            }
        }
    }
}

fn writes(live: &mut Live, at: &WritesAt) -> Vec<Writing> {
    let Ok(Answer::Writes(writings)) = ask(live, &Query::Writes(at.clone())) else { panic!("{}", at.site) };
    writings
}

/// The units are the whole feed-forward network: their outputs sum to its part of the logits.
#[test]
fn contributions_of_units_sum_to_that_of_their_network() {
    for (name, model) in models_in(&MODELS).filter(|(name, _)| name.contains("F32")) {
        let (frames, passes) = record(&model(), &PROMPT);
        let mut live = start(model(), &PROMPT, passes.len(), Vec::new());
        let (sizes, mlp_bias) = (live.outline().card.sizes(), live.outline().card.config.mlp_bias);
        for (pass, token, layer) in [(0, 4, 0), (0, 2, sizes.layers - 1), (2, 0, 1)] {
            let site = Site::layer(pass, layer, Stage::FfnHidden);
            let hidden = frames[&site].floats().unwrap().index_axis(ndarray::Axis(0), token).to_owned();
            let mut ranked = |order: UnitOrder| {
                let query = Query::Units(UnitsAt { site, token, order });
                let Ok(Answer::Units(ranking)) = ask(&mut live, &query) else { panic!("{name} {site}") };
                ranking
            };
            let (by_hidden, by_effect) = (ranked(UnitOrder::Hidden), ranked(UnitOrder::Effect));
            let order = &by_hidden.units;
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..sizes.hidden as u32).collect::<Vec<_>>(), "each unit is listed once");
            let size = |unit: u32| hidden[unit as usize].abs();
            assert!(order.windows(2).all(|two| size(two[0]) >= size(two[1])), "{name}: the strongest first");

            let at = WritesAt { site, token, units: order.clone(), top: sizes.vocab };
            let all = writes(&mut live, &at);
            let added = |writing: &Writing, id: u32| {
                writing.most.iter().find(|one| one.id == id).map(|one| one.added).unwrap()
            };
            let whole = attribution(&mut live, pass, token, (Some(3), Some(7)));
            let network = whole.parts.iter().find(|share| share.part == Contributor::Ffn { layer }).unwrap();
            let sum: f64 = all.iter().map(|writing| added(writing, 3) - added(writing, 7)).sum();
            let sizes_of: f64 = all.iter().map(|writing| added(writing, 3).abs()).sum();
            // The network's own bias belongs to no unit.
            let right = (sum - network.value).abs() <= 1e-5 * sizes_of.max(1.0);
            assert!(right || mlp_bias, "{name} {site}: {sum} and {}", network.value);

            // The effects are the contributions to the logit that is largest for this token.
            let logits = frames[&Site::once(pass, Stage::Logits)].floats().unwrap();
            let logits = logits.index_axis(ndarray::Axis(0), token);
            let effects = by_effect.effects.as_ref().unwrap();
            assert!(logits.iter().all(|&logit| logit <= logits[effects.id as usize]), "{name} {site}");
            assert!(by_hidden.effects.is_none());
            for writing in &all {
                let (one, other) = (effects.added[writing.unit as usize], added(writing, effects.id));
                assert!((one - other).abs() <= 1e-9 * sizes_of.max(1.0), "{name} {site}: {one} and {other}");
            }
            let effect = |unit: u32| effects.added[unit as usize].abs();
            assert!(by_effect.units.windows(2).all(|two| effect(two[0]) >= effect(two[1])));
            sorted.sort_by_key(|unit| by_effect.units.iter().position(|other| other == unit));
            assert_eq!(sorted, by_effect.units, "each unit is listed once");

            for (writing, unit) in all.iter().zip(order) {
                assert_eq!(writing.unit, *unit);
                assert!(writing.most.windows(2).all(|two| two[0].added >= two[1].added));
                let mut from_below = writing.least.clone();
                from_below.sort_by(|a, b| b.added.total_cmp(&a.added).then(a.id.cmp(&b.id)));
                assert_eq!(from_below, writing.most, "{name}: all tokens, from either end");
            }
            // Fewer units and a shorter list are part of the same answer.
            let few = WritesAt { units: order[3..6].to_vec(), top: 2, ..at };
            for (few, all) in writes(&mut live, &few).iter().zip(&all[3..]) {
                assert_eq!(
                    (few.unit, &few.most[..], &few.least[..]),
                    (all.unit, &all.most[..2], &all.least[..2])
                );
            }
        }
    }
}

#[test]
fn missing_stages_and_positions_are_errors() {
    let mut live = start(super::model("gqa"), &PROMPT, 1, Vec::new());
    for site in [Site::layer(0, 99, Stage::FfnResidual), Site::layer(7, 0, Stage::FfnResidual)] {
        assert!(ask(&mut live, &Query::Lens(LensAt { site, tokens: 0..1, top: 1 })).is_err());
    }
    let site = Site::layer(0, 0, Stage::FfnResidual);
    assert!(ask(&mut live, &Query::Lens(LensAt { site, tokens: 4..9, top: 1 })).is_err());
    let site = Site::once(0, Stage::Logits);
    for (token, id, against, said) in [
        (9, None, None, "has no token 9"),
        (0, Some(9999), None, "no token 9999"),
        (0, Some(4), Some(4), "two"),
    ] {
        let query = Query::Attribution(AttributionAt { site, token, id, against });
        let error = ask(&mut live, &query).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    let (norm, hidden) = (Site::layer(0, 0, Stage::FfnNorm), Site::layer(0, 0, Stage::FfnHidden));
    let of = |site, token, units| Query::Writes(WritesAt { site, token, units, top: 1 });
    for query in [
        Query::Stream(StreamAt { site: hidden, tokens: 0..1 }),
        Query::Stream(StreamAt { site: hidden.other(Stage::FfnResidual), tokens: 4..9 }),
        Query::Units(UnitsAt { site: norm, token: 0, order: UnitOrder::Effect }),
        Query::Units(UnitsAt { site: hidden, token: 9, order: UnitOrder::Hidden }),
        of(norm, 0, vec![0]),
        of(hidden, 9, vec![0]),
        of(hidden, 0, vec![99_999]),
    ] {
        let error = ask(&mut live, &query).unwrap_err().to_string();
        assert!(error.contains(" no "), "{query}: {error}");
    }
}
