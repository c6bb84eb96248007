//! The library on the CUDA backend, with kernels that run on the CPU. The text is the same as the CPU backend's, the
//! stages are within a bound, and the bits are the same whether recorded or not.

#[path = "cuda/ahead.rs"]
mod ahead;
#[path = "cuda/check.rs"]
mod check;
#[path = "cuda/edits.rs"]
mod edits;
#[path = "cuda/golden.rs"]
mod golden;
#[path = "cuda/replay.rs"]
mod replay;

use std::ops::Range;

use super::*;
use llama_trace_core::testing::sampled;
use llama_trace_core::trace::Values;
use llama_trace_cuda::Cuda;
use llama_trace_emulator::Asked;
use llama_trace_engine::backend::{Draw, Span};
use llama_trace_engine::generate::{Batch, Prompts};
use llama_trace_formats::checkpoint::Checkpoint;

/// Bytes of the device's memory.
pub(super) const ROOM: usize = 1 << 30;

/// Small models that cover the differences: a window, norms of heads, biases, tied or not.
pub(super) fn small(i: usize) -> ModelConfig {
    let plain = ModelConfig { vocab: 96, context: 64, ..config(64) };
    match i {
        // The fast kernels support all widths of this model. With an odd number of layers, each pass uses other
        // buffers.
        0 => ModelConfig { layers: 3, ..plain },
        // The fast kernels support none of these widths.
        1 => ModelConfig {
            dim: 36,
            heads: 6,
            kv_heads: 3,
            head_dim: 6,
            ffn_dim: 50,
            layers: 2,
            tied: false,
            ..plain
        },
        _ => ModelConfig { window: Some(5), pairing: Pairing::Neighbours, layers: 2, ..plain },
    }
}

fn checkpoints() -> impl Iterator<Item = Checkpoint> {
    let random = (0..3).map(|i| random::of_config("random", small(i), Dtype::BF16));
    random.chain([llama_trace::builtin::open().unwrap()])
}

/// The same model on both devices.
fn both(checkpoint: &Checkpoint, precision: Precision) -> Option<(Model, Model)> {
    let cuda = Cuda::of_tests(ROOM)?.with_precision(precision);
    let cpu = Cpu::default().with_precision(precision);
    Some((Model::load(checkpoint, cuda).unwrap(), Model::load(checkpoint, cpu).unwrap()))
}

/// Runs a prompt of `tokens` tokens and two decode passes. Returns every frame, and the bits of the logits of each
/// pass.
fn run(model: &Model, tokens: usize, select: Option<&Select>) -> (HashMap<Site, Frame>, Vec<Vec<u32>>) {
    let frames = RefCell::new(HashMap::new());
    let mut session = Session::with_capacity(model, sampler(), tokens + 4).unwrap();
    let mut logits = Vec::new();
    for ids in [prompt(tokens), vec![7], vec![9]] {
        let dims = session.next_pass(ids.len());
        match select {
            Some(select) => {
                let sink = |frame: Frame| drop(frames.borrow_mut().insert(frame.site, frame));
                session.read(&ids, &mut Recorder::new(model.sizes(), dims, select, sink)).unwrap();
            }
            None => session.read(&ids, &mut NoProbe).unwrap(),
        }
        let see = |values: &[f32]| {
            logits.push(bits(values.iter().copied()));
            Ok(())
        };
        pass::last_logits(model, &session.work, 0, see).unwrap();
    }
    (frames.into_inner(), logits)
}

/// The relative L2 distance of two float frames. −∞ in both is no distance.
fn apart(found: &Frame, expected: &Frame) -> f64 {
    let (Some(found), Some(expected)) = (found.floats(), expected.floats()) else {
        assert_same(found, expected, "whole numbers");
        return 0.0;
    };
    let (mut apart, mut size) = (0.0, 0.0);
    for (a, b) in found.iter().zip(expected) {
        if a.to_bits() != b.to_bits() {
            apart += (f64::from(*a) - f64::from(*b)).powi(2);
        }
        size += if b.is_finite() { f64::from(*b).powi(2) } else { 0.0 };
    }
    if apart == 0.0 { 0.0 } else { (apart / size).sqrt() }
}

#[test]
fn every_stage_of_prefill_and_decode_agrees_with_the_cpus() {
    for checkpoint in checkpoints() {
        // In bfloat16, a sum that rounds to the other neighbour differs by 1/256 of its value, and later stages pass
        // this on.
        for (precision, bound) in [(Precision::F32, 1e-5), (Precision::Bf16, 3e-2)] {
            let Some((cuda, cpu)) = both(&checkpoint, precision) else { return };
            for tokens in [3, 20] {
                let (found, _) = run(&cuda, tokens, Some(&Select::all()));
                let (expected, _) = run(&cpu, tokens, Some(&Select::all()));
                assert_eq!(found.len(), expected.len());
                for (site, frame) in &found {
                    let apart = apart(frame, &expected[site]);
                    assert!(apart <= bound, "{site}, {tokens} tokens, {precision:?}: {apart}");
                }
            }
        }
    }
}

#[test]
fn in_int8_the_same_numbers_are_multiplied_until_a_rounding_falls_the_other_way() {
    for checkpoint in checkpoints() {
        let Some((cuda, cpu)) = both(&checkpoint, Precision::Q8 { group: 32 }) else { return };
        let (found, _) = run(&cuda, 20, Some(&Select::all()));
        let (expected, _) = run(&cpu, 20, Some(&Select::all()));
        // Before the first attention, all products are sums of integers, so the bits are equal.
        for stage in
            [Stage::Embedding, Stage::AttnNorm, Stage::AttnNormQ8, Stage::AttnNormScale, Stage::Xq, Stage::Xv]
        {
            for (site, frame) in found.iter().filter(|(site, _)| site.stage == stage && site.pass == 0) {
                if site.layer.is_none_or(|layer| layer == 0) {
                    assert_same(frame, &expected[site], "int8");
                }
            }
        }
        for (site, frame) in found.iter().filter(|(site, _)| site.stage == Stage::Logits) {
            let apart = apart(frame, &expected[site]);
            assert!(apart <= 2e-2, "{site}: {apart}");
        }
    }
}

/// Compares texts in one batch with each text alone and with the texts on the CPU.
#[test]
fn a_batch_draws_what_each_draws_alone() {
    for precision in sampled("precisions of a batch", PRECISIONS, 1) {
        let checkpoint = random::of_config("random", small(0), Dtype::BF16);
        let Some((cuda, cpu)) = both(&checkpoint, precision) else { return };
        let sampling = Sampling { temperature: 0.9, top_k: 30, top_p: 0.95, seed: 3, ..Sampling::default() };
        let prompts = [prompt(3), prompt(20), prompt(1)];
        fn texts(model: &Model, sampler: &Sampler, ids: Vec<Vec<u32>>) -> Vec<Vec<u32>> {
            let mut texts = vec![Vec::new(); ids.len()];
            let prompts =
                Prompts { ids, ends: Vec::new(), draws: 6, context: None, chunk: None, memory: None };
            let mut batch = Batch::new(model, sampler.clone(), prompts, |_| None).unwrap();
            while batch.ready().unwrap() {
                for drawn in batch.pass(&mut NoProbe).unwrap() {
                    texts[drawn.sequence].push(drawn.id);
                }
            }
            texts
        }
        let sampler = Sampler::new(sampling).unwrap();
        let together = texts(&cuda, &sampler, prompts.to_vec());
        let alone = prompts
            .iter()
            .enumerate()
            .map(|(i, ids)| texts(&cuda, &sampler.after(i as u64), vec![ids.clone()]).remove(0));
        assert_eq!(together, alone.collect::<Vec<_>>(), "{precision:?}");
        if precision == Precision::F32 {
            assert_eq!(together, texts(&cpu, &sampler, prompts.to_vec()), "the texts on the CPU");
        }
    }
}

#[test]
fn the_device_draws_what_the_sampler_draws() {
    let Some(cuda) = Cuda::of_tests(ROOM) else { return };
    let mut state = 5_u32;
    let mut noise = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32
    };
    const SETTINGS: [(f32, usize, f32); 7] = [
        (0.0, 0, 1.0),
        (1.0, 0, 1.0),
        (0.7, 0, 0.9),
        (1.3, 10, 1.0),
        (0.9, 40, 0.5),
        (1.0, 1, 1.0),
        (2.0, 7, 0.01),
    ];
    // With a vocabulary of 9,001 tokens, some loops of the kernels take more than one round. With 66,001 tokens, all of
    // them do.
    let vocabularies = [
        (1, &SETTINGS[..], 0..6),
        (2, &SETTINGS, 0..6),
        (96, &SETTINGS, 0..6),
        (1000, &SETTINGS, 0..6),
        (5003, &SETTINGS, 0..6),
        (9001, &SETTINGS, 1..2),
        (66_001, &SETTINGS[4..5], 1..2),
    ];
    for (vocab, settings, rounds) in sampled("vocabularies to draw from", vocabularies, 3) {
        for &(temperature, top_k, top_p) in settings {
            let mut sampler =
                Sampler::new(Sampling { temperature, top_k, top_p, seed: 11, ..Sampling::default() })
                    .unwrap();
            for round in rounds.clone() {
                // Many logits are equal. In round 4, a third of the tokens cannot be sampled. In round 5, one logit is
                // NaN.
                let mut logits: Vec<f32> =
                    (0..vocab).map(|_| (noise() * 12.0).round() / 2.0 * (1.0 + round as f32 / 7.0)).collect();
                if round == 4 {
                    logits.iter_mut().step_by(3).for_each(|logit| *logit = f32::NEG_INFINITY);
                }
                if round == 5 {
                    logits[vocab / 2] = f32::NAN;
                }
                // The same row twice in one batch, with two random numbers, after a row of zeros at temperature 0.
                let zeros = vec![0.0; vocab];
                let all: Vec<f32> = [&zeros, &logits, &logits].into_iter().flatten().copied().collect();
                let mut buffer = cuda.buffer(all.len()).unwrap();
                cuda.write(&all, 0, &mut buffer).unwrap();
                let draw: Draw = sampler.next_draw(0).unwrap();
                let other = Draw { temperature: 0.0, random: 0.0, ..draw };
                let more = Draw { random: 1.0 - draw.random, ..draw };
                let span = |sequence| Span { sequence, start: 0, tokens: 1 };
                let mut pass = cuda.new_pass().unwrap();
                cuda.begin_pass(&[0; 3], &[0, 1, 2].map(span), &[other, draw, more], &mut pass).unwrap();
                cuda.draw(&buffer, vocab, &pass).unwrap();
                let drawn = cuda.drawn(&pass).unwrap();
                let expected = sampler.sample(&logits, &[], (0, 0), &mut NoProbe);
                let what = format!("{vocab} tokens, {temperature} {top_k} {top_p}, round {round}");
                assert_eq!((drawn[1].id, drawn[1].not_a_number), (expected, round == 5), "{what}");
                assert_eq!((drawn[0].id, drawn[0].not_a_number), (0, false), "{what}");
            }
        }
    }
}

#[test]
fn an_unwatched_decode_pass_is_asked_for_before_the_tokens_that_it_reads_are_looked_at() {
    let checkpoint = random::of_config("random", small(2), Dtype::BF16);
    let mut alone = 0;
    for (temperature, sequences) in [(0.0, 1), (0.8, 1), (0.8, 3)] {
        let Some((cuda, log)) = Cuda::logged(ROOM) else { return };
        let model = Model::load(&checkpoint, cuda).unwrap();
        let sampling = Sampling { temperature, top_k: 9, top_p: 0.9, seed: 3, ..Sampling::default() };
        let ids = (0..sequences).map(|sequence| prompt(3 + sequence)).collect();
        let prompts = Prompts { ids, ends: Vec::new(), draws: 12, context: None, chunk: None, memory: None };
        let mut batch = Batch::new(&model, Sampler::new(sampling).unwrap(), prompts, |_| None).unwrap();
        let mut passes = 0;
        while batch.ready().unwrap() {
            log.lock().unwrap().clear();
            batch.pass(&mut NoProbe).unwrap();
            passes += 1;
            let asked = log.lock().unwrap();
            // The host reads an id for each sequence, and whether a logit is NaN.
            let drawn = Asked::Look(8 * sequences);
            // The last pass was launched together with the previous one.
            if passes == 12 {
                assert_eq!(asked[..], [drawn], "only the tokens are read");
            // The first passes build the graphs, one for each buffer of sampled ids.
            } else if passes > 6 {
                // The host writes only new random numbers, if it needs any.
                let randoms = Asked::Write(8 * sequences);
                let expected = if temperature == 0.0 { vec![] } else { vec![randoms] };
                let [ref rest @ .., Asked::Graph(launches), looked] = asked[..] else {
                    panic!("temperature {temperature}, {sequences} sequences: {asked:?}")
                };
                assert_eq!((rest, looked), (&expected[..], drawn), "{asked:?}");
                let layers = model.config.layers;
                // A layer launches kernels for its norm, projections, RoPE and cache, attention, output, the second
                // norm, and the two products of the feed-forward network. A pass has further launches at its beginning
                // and end.
                assert!(launches < layers * 9 + 12, "{asked:?}");
                // Keys, values and attention of all sequences share launches, layer by layer. For one sequence, RoPE's
                // launch writes the cache.
                if sequences == 1 {
                    alone = launches;
                } else {
                    assert_eq!(
                        launches,
                        alone + layers,
                        "one more launch for each layer than for one sequence"
                    );
                }
            }
        }
        assert_eq!(passes, 12);
    }
}

#[test]
fn nobody_waits_for_the_stages_of_a_decode_pass_before_it_is_over() {
    let checkpoint = random::of_config("random", small(2), Dtype::BF16);
    let Some((cuda, log)) = Cuda::logged(ROOM) else { return };
    fn pass(session: &mut Session<'_>) -> Vec<Site> {
        let dims = session.next_pass(session.waiting().len());
        let (all, mut stages) = (Select::all(), Vec::new());
        let seen = |frame: Frame| stages.push(frame.site);
        session.pass(&mut Recorder::new(session.model.sizes(), dims, &all, seen)).unwrap();
        stages
    }
    let (model, on_cpu) =
        (Model::load(&checkpoint, cuda).unwrap(), Model::load(&checkpoint, Cpu::default()).unwrap());
    let mut session = Session::with_capacity(&model, sampler(), 32).unwrap();
    let mut cpus = Session::with_capacity(&on_cpu, sampler(), 32).unwrap();
    session.begin(prompt(6), &[], 8).unwrap();
    cpus.begin(prompt(6), &[], 8).unwrap();
    for number in 0..6 {
        log.lock().unwrap().clear();
        let stages = pass(&mut session);
        // The stages of attention are recorded in another order.
        let of_attention =
            [Stage::Keys, Stage::Values, Stage::Qk, Stage::Scores, Stage::MaskedScores, Stage::Softmax];
        let others = |stages: &[Site]| -> Vec<Site> {
            stages.iter().filter(|site| !of_attention.contains(&site.stage)).copied().collect()
        };
        let (own, cpus) = (others(&stages), others(&pass(&mut cpus)));
        assert_eq!(own, cpus);
        assert_eq!(stages.len(), own.len() + of_attention.len() * 2, "{stages:?}");
        // The first two passes allocate memory, for copied stages and for attention over one token.
        if number > 1 {
            let asked = log.lock().unwrap();
            let [Asked::Write(_), ref work @ .., Asked::Read(logits)] = asked[..] else {
                panic!("pass {number}: {asked:?}")
            };
            let first = work.iter().position(|asked| matches!(asked, Asked::Look(_))).unwrap();
            let (work, looks) = work.split_at(first);
            assert!(looks.iter().all(|asked| matches!(asked, Asked::Look(_))), "pass {number}: {asked:?}");
            let launches = work.iter().map(|asked| match asked {
                Asked::Launches(count) | Asked::Graph(count) => *count,
                Asked::Bring(_) => 0,
                other => panic!("pass {number}: {other:?}"),
            });
            assert!(launches.sum::<usize>() > 60 && looks.len() > 50, "pass {number}: {asked:?}");
            // The host copies once for each layer, and once for the stages after the layers.
            let copies = work.iter().filter(|asked| matches!(asked, Asked::Bring(_))).count();
            assert_eq!(copies, model.config.layers + 1, "pass {number}: {asked:?}");
            // With a probe of the sampler's stages, the CPU samples.
            assert_eq!(logits, 96 * 4);
        }
    }
}

/// A probe that records all stages of one layer, and counts them.
struct OfLayer {
    layer: usize,
    stages: usize,
}

impl Probe for OfLayer {
    fn enabled(&self) -> bool {
        true
    }

    fn wants(&self, site: Site) -> bool {
        site.layer == Some(self.layer)
    }

    fn record(&mut self, _: Site, _: Range<usize>, _: Values<'_>) {
        self.stages += 1;
    }
}

#[test]
fn where_a_layer_is_recorded_the_others_are_graphs_and_its_stages_come_by_one_copy() {
    let checkpoint = random::of_config("random", ModelConfig { layers: 6, ..small(0) }, Dtype::BF16);
    for precision in PRECISIONS {
        let Some((cuda, log)) = Cuda::logged(ROOM) else { return };
        let model = Model::load(&checkpoint, cuda.with_precision(precision)).unwrap();
        let mut session = Session::with_capacity(&model, sampler(), 32).unwrap();
        let mut plain = Session::with_capacity(&model, sampler(), 32).unwrap();
        let mut id = session.run(&prompt(6), &mut NoProbe).unwrap();
        assert_eq!(plain.run(&prompt(6), &mut NoProbe).unwrap(), id);
        for number in 0..8 {
            log.lock().unwrap().clear();
            let mut probe = OfLayer { layer: 3, stages: 0 };
            let drawn = session.run(&[id], &mut probe).unwrap();
            // The first passes allocate memory and build graphs.
            if number > 2 {
                let what = format!("{precision:?}, pass {number}: {:?}", log.lock().unwrap());
                let asked = log.lock().unwrap();
                let launches = |asked: &Asked| match asked {
                    Asked::Launches(count) => Some(*count),
                    _ => None,
                };
                let [Asked::Write(_), Asked::Graph(before), ref rest @ ..] = asked[..] else {
                    panic!("{what}")
                };
                let own: usize = rest.iter().map_while(launches).sum();
                let rest = &rest[rest.iter().map_while(launches).count()..];
                let [Asked::Bring(_), Asked::Graph(after), looks @ ..] = rest else { panic!("{what}") };
                assert!(looks.iter().all(|asked| matches!(asked, Asked::Look(_))), "{what}");
                // The host reads each stage, and the sampled token.
                assert_eq!(looks.len(), probe.stages + 1, "{what}");
                // The bounds are those of bfloat16, in which a launch does the most work.
                assert!(before > 15 && *after > 10 && own < 60, "{what}");
            }
            assert_eq!(plain.run(&[id], &mut NoProbe).unwrap(), drawn, "{precision:?}, pass {number}");
            id = drawn;
        }
    }
}

#[test]
fn a_text_is_drawn_with_the_same_random_numbers_watched_or_not() {
    let checkpoint = random::of_config("random", small(2), Dtype::BF16);
    let Some((cuda, _)) = both(&checkpoint, Precision::F32) else { return };
    let sampling = Sampling { temperature: 1.0, seed: 9, ..Sampling::default() };
    let text = |select: Option<Select>| {
        let mut session = Session::with_capacity(&cuda, Sampler::new(sampling).unwrap(), 32).unwrap();
        session.begin(prompt(4), &[], 8).unwrap();
        (0..8)
            .map(|_| {
                let dims = session.next_pass(session.waiting().len());
                match &select {
                    None => session.pass(&mut NoProbe).unwrap(),
                    Some(select) => {
                        session.pass(&mut Recorder::new(cuda.sizes(), dims, select, |_| {})).unwrap()
                    }
                }
            })
            .collect::<Vec<_>>()
    };
    let plain = text(None);
    for stage in [Stage::Probs, Stage::Nucleus, Stage::Sampled, Stage::Xq] {
        assert_eq!(text(Some(Select::stages(&[stage]))), plain, "{stage}");
    }
}

#[test]
fn a_model_that_does_not_fit_is_an_error_that_names_the_weight() {
    let checkpoint = random::of_config("random", small(0), Dtype::BF16);
    let Some(whole) = Cuda::emulated(ROOM) else { return };
    let free = whole.free_memory().unwrap();
    let model = Model::load(&checkpoint, whole).unwrap();
    let taken = free - model.backend.free_memory().unwrap();
    for bytes in [1, taken / 2, taken - 1] {
        let Some(cuda) = Cuda::emulated(bytes) else { return };
        let Err(error) = Model::load(&checkpoint, cuda) else {
            panic!("{bytes} of {taken} bytes are enough")
        };
        let text = error.to_string();
        assert!(error.exit_code() == 4 && text.contains("there is not enough memory"), "{text}");
    }
    // The weights fit, but a context does not.
    let cuda = Model::load(&checkpoint, Cuda::emulated(taken + 1000).unwrap()).unwrap();
    let error = Session::with_capacity(&cuda, sampler(), 64).err().unwrap();
    assert!(error.to_string().contains("the KV cache for 64 tokens"), "{error}");
}
