//! The cases of a kata: from a random model of awkward sizes, and from a given model.

use std::collections::HashMap;
use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::case::{Case, Inputs};
use super::run::{Numbers, Run};
use super::table::{Kata, Number};
use crate::check::ReadWeights;
use llama_trace_core::config::{Arithmetic, ModelConfig, Precision};
use llama_trace_core::error::Result;
use llama_trace_core::trace::{ModelCard, Op, PassDims, Sampling, Site, Stage, Weight};

/// Layers of the random model.
const LAYERS: usize = 2;
/// Passes of a run for a draw, whose output is one number.
const DRAWS: usize = 16;

/// ε of the random model. No program has these values as constants, so a program that ignores its ε is wrong.
const EPSILONS: [f32; 3] = [3e-5, 7e-6, 4e-5];
/// θ of the random model, for the same reason.
const THETAS: [f32; 3] = [3e3, 4e4, 7e5];

/// A normal random number.
fn normal(random: &mut ChaCha8Rng) -> f64 {
    // Box and Muller.
    let (a, b): (f64, f64) = (random.random(), random.random());
    (-2.0 * (1.0 - a).ln()).sqrt() * (std::f64::consts::TAU * b).cos()
}

/// A random model. No two of its sizes are equal, and query heads share kv heads.
fn model(kata: &Kata, seed: u64, random: &mut ChaCha8Rng) -> (ModelCard, Numbers) {
    let kv_heads = random.random_range(2..4);
    let head_dim = [8, 10][random.random_range(0..2)];
    let heads = kv_heads * if kv_heads == 2 { 3 } else { 2 };
    let mut config = ModelConfig {
        layers: LAYERS,
        dim: random.random_range(17..22),
        ffn_dim: random.random_range(23..28),
        vocab: random.random_range(29..37),
        context: 512,
        qk_norm: kata.name == "qk_norm",
        ..ModelConfig::of_heads(heads, kv_heads, head_dim)
    };
    let one_of = |constants: [f32; 3]| constants[(seed % 3) as usize];
    for number in kata.numbers {
        match number {
            Number::Eps => config.norm_eps = one_of(EPSILONS),
            Number::Theta => config.rope_theta = one_of(THETAS),
            _ => {}
        }
    }
    let int8 = kata.stages[0].info().op == Op::Quantize;
    let card = ModelCard {
        name: "random".into(),
        ignored: vec![],
        without: vec![],
        edits: vec![],
        precision: if int8 { Precision::Q8 { group: 8 } } else { Precision::F32 },
        config,
        arithmetic: Arithmetic::Fused,
        backend: "cpu".into(),
    };
    let sizes = card.sizes();
    let mut all = HashMap::new();
    let layers =
        |weight: Weight| if weight.in_layer() { (0..LAYERS).map(Some).collect() } else { vec![None] };
    for weight in Weight::all().filter(|weight| weight.present(&card)) {
        let shape = sizes.shape(weight.axes(), PassDims::default());
        let width = shape.last().copied().unwrap_or(1);
        let value = |random: &mut ChaCha8Rng| match shape.len() {
            1 => 1.0 + 0.4 * normal(random),
            _ if weight.name() == "tok_embeddings" => normal(random),
            _ => 1.6 * normal(random) / (width as f64).sqrt(),
        };
        for layer in layers(weight) {
            let values = (0..shape.iter().product()).map(|_| value(random) as f32).collect();
            all.insert((layer, weight.name()), (width, values));
        }
    }
    (card, Numbers(all))
}

/// The options of the draw that a kata needs.
fn sampling(kata: &Kata, variant: usize) -> Sampling {
    let plain = Sampling { temperature: [0.7, 1.6][variant % 2], ..Sampling::GREEDY };
    match kata.stages[0] {
        _ if kata.name == "argmax" => Sampling::GREEDY,
        Stage::PenalizedLogits => Sampling { repetition_penalty: [1.3, 1.75][variant % 2], ..plain },
        Stage::MinP => Sampling { min_p: [0.2, 0.06][variant % 2], ..plain },
        Stage::TypicalP => Sampling { typical_p: [0.6, 0.35][variant % 2], ..plain },
        Stage::Nucleus => Sampling {
            top_k: [8, 5][variant % 2],
            top_p: [0.75, 0.9][variant % 2],
            temperature: 1.4,
            ..plain
        },
        Stage::Sampled => Sampling { top_k: 12, temperature: 1.8, ..plain },
        _ => plain,
    }
}

/// Returns whether the kata's output is one number, so that it needs more cases.
fn is_draw(kata: &Kata) -> bool {
    kata.stages == [Stage::Sampled]
}

/// The tokens of each pass.
fn passes(kata: &Kata, variant: usize) -> Vec<usize> {
    match kata.name {
        // A layer without earlier passes.
        "layer" => vec![[5, 1, 3][variant % 3]],
        _ if is_draw(kata) => (0..DRAWS).map(|pass| 2 + pass % 2).collect(),
        _ => vec![4, 3, 1],
    }
}

/// The cases of a kata from a random model.
///
/// # Errors
/// A stop request.
pub fn random(kata: &Kata, seed: u64) -> Result<Vec<Case>> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let (card, numbers) = model(kata, seed, &mut random);
    let weights: Arc<dyn ReadWeights + Send> = Arc::new(numbers);
    let vocab = card.config.vocab as u32;
    let is_sampler = matches!(
        kata.stages[0],
        Stage::PenalizedLogits | Stage::Probs | Stage::MinP | Stage::TypicalP | Stage::Nucleus
    );
    let variants = match kata.name {
        "layer" => 3,
        _ if is_sampler => 2,
        _ => 1,
    };
    let mut cases = Vec::new();
    for variant in 0..variants {
        let mut run = Run::new(card.clone(), Arc::clone(&weights), sampling(kata, variant));
        let lengths = passes(kata, variant);
        for (pass, tokens) in lengths.iter().enumerate() {
            // Some tokens repeat.
            let ids: Vec<u32> = (0..*tokens)
                .map(|t| match (t, run.rules().text().first()) {
                    (1, Some(first)) => *first,
                    _ => random.random_range(0..vocab),
                })
                .collect();
            let share: f64 = random.random();
            run.push(&ids, Some((pass as f64 + share) / lengths.len() as f64));
        }
        if card.precision.group().is_some() {
            floats(&mut run, &card, &weights)?;
        }
        // The first case has no earlier tokens; the last one has extreme inputs.
        let mut places: Vec<(usize, bool)> = (0..lengths.len()).map(|pass| (pass, false)).collect();
        if !is_draw(kata) && kata.name != "layer" {
            places.push((1, true));
        }
        for (number, (pass, is_extreme)) in places.into_iter().enumerate() {
            let stage = kata.stages[number % kata.stages.len()];
            let layer = stage.in_layer().then_some(number % LAYERS);
            let site = Site { layer, ..Site::once(pass, stage) };
            if run.rules().of(site).is_none() {
                // There is no mask if a pass has one token.
                continue;
            }
            let mut inputs = Inputs::of(kata, &mut run, site)?;
            if is_extreme {
                extreme(kata, &mut inputs);
            }
            if kata.name == "argmax" {
                tie(&mut inputs, pass);
            }
            let extreme = if is_extreme { ", extreme inputs" } else { "" };
            let title = format!("random model, {site}{extreme}");
            let fixed = Arc::new(run.clone());
            cases.push(Case::new(kata, title, &fixed, inputs)?);
        }
    }
    Ok(cases)
}

/// Computes the inputs of int8 products in float32, because the random model has no int8 weights.
fn floats(run: &mut Run, card: &ModelCard, weights: &Arc<dyn ReadWeights + Send>) -> Result<()> {
    let card = ModelCard { precision: Precision::F32, ..card.clone() };
    let mut plain = Run::new(card, Arc::clone(weights), run.rules().sampling());
    let passes: Vec<PassDims> = run.rules().passes().to_vec();
    for dims in &passes {
        let ids = run.rules().text()[dims.start..dims.keys()].to_vec();
        plain.push(&ids, None);
    }
    for dims in passes {
        for layer in 0..LAYERS {
            for stage in [Stage::AttnNorm, Stage::FfnNorm, Stage::FfnHidden] {
                run.insert((*plain.frame(Site::layer(dims.pass, layer, stage))?).clone());
            }
        }
        run.insert((*plain.frame(Site::once(dims.pass, Stage::FinalNorm))?).clone());
    }
    Ok(())
}

/// Replaces inputs by extreme ones, on which careless programs fail.
fn extreme(kata: &Kata, inputs: &mut Inputs) {
    let op = kata.stages[0].info().op;
    match (kata.name, op) {
        // ε matters for short rows, and for a row of zeros it decides between 0 and NaN.
        ("head" | "layer", _) | (_, Op::RmsNorm) => inputs.change(0, |values, shape| {
            let width = shape[1..].iter().product::<usize>().max(1);
            for (row, by) in values.chunks_mut(width).zip([3e-3, 0.0, 40.0].into_iter().cycle()) {
                row.iter_mut().for_each(|x| *x *= by);
            }
        }),
        // e^x overflows in float32 above 88, in float64 above 709.
        (_, Op::Softmax | Op::Probs) => inputs.change(0, |values, shape| {
            let width = shape.last().copied().unwrap_or(1);
            for (row, add) in values.chunks_mut(width).zip([300.0, 0.0, 1500.0].into_iter().cycle()) {
                row.iter_mut().for_each(|x| *x = 5.0 * *x + add);
            }
        }),
        ("swiglu", _) | (_, Op::Silu) => inputs.change(0, |values, _| {
            for (x, by) in values.iter_mut().zip([100.0, 1.0, 1.0, 1000.0, 10.0].into_iter().cycle()) {
                *x *= by;
            }
        }),
        _ => {}
    }
}

/// Gives the last token's logits two equal largest values in every second case.
fn tie(inputs: &mut Inputs, pass: usize) {
    if pass.is_multiple_of(2) {
        return;
    }
    inputs.change(0, |values, shape| {
        let start = values.len() - shape[1];
        let row = &mut values[start..];
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let (a, b) = (pass % row.len(), (pass * 7 + 3) % row.len());
        (row[a], row[b]) = (most + 1.0, most + 1.0);
    });
}

/// The cases of a kata from a model that reads a text. Nothing is added to a model without the stage.
///
/// # Errors
/// The errors of the weights, and a stop request.
pub fn of_model(
    kata: &Kata,
    card: &ModelCard,
    weights: &Arc<dyn ReadWeights + Send>,
    ids: &[u32],
) -> Result<Vec<Case>> {
    let int8 = kata.stages[0].info().op == Op::Quantize;
    if int8 || (kata.name == "qk_norm" && !card.config.qk_norm) {
        return Ok(Vec::new());
    }
    let mut run = Run::new(card.clone(), Arc::clone(weights), sampling(kata, 0));
    let Some((last, first)) = ids.split_last() else { return Ok(Vec::new()) };
    run.push(first, Some(0.35));
    run.push(&[*last], Some(0.8));
    let mut cases = Vec::new();
    for pass in 0..if kata.name == "layer" { 1 } else { 2 } {
        let stage = kata.stages[pass % kata.stages.len()];
        let layer = stage.in_layer().then_some(pass % card.config.layers);
        let site = Site { layer, ..Site::once(pass, stage) };
        if run.rules().of(site).is_none() {
            continue;
        }
        let inputs = Inputs::of(kata, &mut run, site)?;
        let title = format!("{} model, {site}", card.name);
        cases.push(Case::new(kata, title, &Arc::new(run.clone()), inputs)?);
    }
    Ok(cases)
}

/// The case of a kata at one place of a run that a whole pass computes.
///
/// # Errors
/// The errors of the weights, and a stop request.
pub fn whole_pass(kata: &Kata, run: &mut Run, site: Site) -> Result<Case> {
    let inputs = Inputs::of(kata, run, site)?;
    Case::new(kata, site.to_string(), &Arc::new(run.clone()), inputs)
}
