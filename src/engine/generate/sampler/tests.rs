use std::ops::Range;

use super::*;
use llama_trace_core::trace::NoProbe;
use llama_trace_core::trace::draw::Filter;
use serde_json::Value;

/// Returns logits whose softmax is 0.5, 0.25, 0.125, 0.125.
fn halves() -> Vec<f32> {
    [0.5_f32, 0.25, 0.125, 0.125].iter().map(|p| p.ln()).collect()
}

fn drawn(sampling: Sampling, logits: &[f32]) -> [usize; 4] {
    let mut sampler = Sampler::new(sampling).unwrap();
    let mut counts = [0; 4];
    for _ in 0..4000 {
        counts[sampler.sample(logits, &[], (0, 0), &mut NoProbe) as usize] += 1;
    }
    counts
}

#[test]
fn a_sum_is_reached_where_it_is_among_the_sorted_candidates() {
    // Many candidates are equally likely, and many have the same leading bits.
    let prob = |i: u32| (1 + (i.wrapping_mul(2_654_435_761) >> 22)) as f32 / 1024.0;
    let probs: Vec<f32> = (0..5000).map(prob).collect();
    let mut sorted: Vec<u32> = (0..5000).collect();
    sorted.sort_by(|a, b| prob(*b).total_cmp(&prob(*a)).then(a.cmp(b)));
    let all: f64 = probs.iter().map(|p| f64::from(*p)).sum();
    let mut sampler = Sampler { probs, ..Sampler::new(Sampling::default()).unwrap() };
    sampler.add_up(f64::from);
    for mass in [0.001, 0.5, 500.0, 0.1 * all, 0.5 * all, 0.999 * all, all] {
        let mut sum = 0.0;
        let expected = sorted.iter().find(|id| {
            sum += f64::from(prob(**id));
            sum >= mass
        });
        let found = sampler.reach(f64::from, |sum| sum >= mass);
        assert_eq!(found, expected.map(|id| (rank(*id, prob(*id)), sum)), "{mass}");
    }
    let least = sorted[4999];
    let reached = sampler.reach(f64::from, |sum| sum > all);
    assert_eq!(reached, Some((rank(least, prob(least)), all)), "never reached");
    sampler.add_up(|_| 1.0);
    let third = rank(sorted[2], prob(sorted[2]));
    assert_eq!(sampler.reach(|_| 1.0, |count| count >= 3.0), Some((third, 3.0)));
    sampler.cut = third;
    let mut left: Vec<u32> = sampler.candidates().map(|(id, _)| id).collect();
    left.sort_by_key(|id| sorted.iter().position(|other| other == id));
    assert_eq!(left, sorted[..3]);
    sampler.probs.clear();
    sampler.add_up(f64::from);
    assert_eq!(sampler.reach(f64::from, |_| true), None);
}

#[test]
fn each_stream_of_a_seed_draws_something_else_and_the_first_is_the_seed_itself() {
    let draws = |mut sampler: Sampler| {
        (0..50).map(|_| sampler.sample(&halves(), &[], (0, 0), &mut NoProbe)).collect::<Vec<_>>()
    };
    let seed = || Sampler::new(Sampling { temperature: 1.0, seed: 7, ..Sampling::default() }).unwrap();
    assert_eq!(draws(seed()), draws(seed().with_stream(0)));
    assert_ne!(draws(seed()), draws(seed().with_stream(1)));
    assert_eq!(draws(seed().with_stream(5)), draws(seed().with_stream(3).after(2)));
    // Stream 0 must draw what the program drew before it had streams.
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let numbers: Vec<f64> = (0..50).map(|_| random.random()).collect();
    let expected = numbers.iter().map(|number| (number * 8.0).min(7.0) as usize);
    assert_eq!(draws(seed()), expected.map(|eighth| [0, 0, 0, 0, 1, 1, 2, 3][eighth]).collect::<Vec<_>>());
}

#[test]
fn temperature_one_draws_by_probability() {
    let counts = drawn(Sampling { temperature: 1.0, ..Sampling::default() }, &halves());
    for (count, expected) in counts.into_iter().zip([2000.0, 1000.0, 500.0, 500.0]) {
        assert!((count as f64 - expected).abs() < 150.0, "{counts:?}");
    }
}

#[test]
fn limits_leave_only_the_most_likely() {
    let one = Sampling { temperature: 1.0, ..Sampling::default() };
    assert_eq!(drawn(Sampling { top_k: 1, ..one }, &halves()), [4000, 0, 0, 0]);
    let counts = drawn(Sampling { top_p: 0.7, ..one }, &halves());
    assert!(counts[1] > 1000 && counts[2] + counts[3] == 0, "{counts:?}");
    let counts = drawn(Sampling { top_k: 3, ..one }, &halves());
    assert!(counts[2] > 300 && counts[3] == 0, "of equals the lower id stays: {counts:?}");
}

#[test]
fn top_p_is_reached_exactly_by_the_shortest_run() {
    let mut sampler = Sampler::new(Sampling { temperature: 1.0, top_p: 0.5, ..Sampling::default() }).unwrap();
    sampler.set_probs(&halves());
    sampler.probs = vec![0.5, 0.25, 0.125, 0.125];
    let candidates = |sampler: &mut Sampler| {
        sampler.set_cut();
        sampler.candidates().map(|(id, _)| id).collect::<Vec<_>>()
    };
    assert_eq!(candidates(&mut sampler), [0]);
    sampler.sampling.top_p = 0.875;
    assert_eq!(candidates(&mut sampler), [0, 1, 2]);
    assert!((sampler.nucleus().iter().sum::<f32>() - 1.0).abs() < 1e-6);
}

#[test]
fn greedy_takes_the_first_of_the_largest_and_never_what_is_no_number() {
    assert_eq!(argmax(&[1.0, 3.0, 3.0]), 1);
    assert_eq!(argmax(&[f32::NAN, 1.0, f32::NAN, 2.0]), 3);
    assert_eq!(argmax(&[f32::NAN, f32::NAN]), 0);
    assert_eq!(argmax(&[f32::NEG_INFINITY, f32::NEG_INFINITY]), 0);
}

#[test]
fn a_seed_draws_the_same_again_and_another_draws_another() {
    let text = |seed| {
        let mut sampler = Sampler::new(Sampling { temperature: 1.0, seed, ..Sampling::default() }).unwrap();
        (0..50).map(|_| sampler.sample(&halves(), &[], (0, 0), &mut NoProbe)).collect::<Vec<_>>()
    };
    assert_eq!(text(7), text(7));
    assert_ne!(text(7), text(8));
}

#[test]
fn logits_without_numbers_are_survived() {
    let sampling = Sampling { temperature: 1.0, top_k: 2, top_p: 0.9, seed: 0, ..Sampling::default() };
    let mut sampler = Sampler::new(sampling).unwrap();
    assert_eq!(sampler.sample(&[f32::NAN; 4], &[], (0, 0), &mut NoProbe), 0);
}

/// A probe that stores the nucleus.
#[derive(Default)]
struct Nucleus(Vec<f32>);

impl Probe for Nucleus {
    fn enabled(&self) -> bool {
        true
    }

    fn wants(&self, site: Site) -> bool {
        site.stage == Stage::Nucleus
    }

    fn record(&mut self, _: Site, _: Range<usize>, values: Values<'_>) {
        if let Values::F32(values) = values {
            self.0 = values.to_vec();
        }
    }
}

/// Returns the logits of `fixtures/sampling/generate.py`.
fn seeded_logits(seed: u64, vocab: u64, steps: u64) -> Vec<f32> {
    let mut state = seed;
    let logit = |_| {
        state = (state * 1_664_525 + 1_013_904_223) % (1 << 32);
        let level = ((state >> 16) * (state >> 16) / (1 << 16)) * (16 * steps) / (1 << 16);
        level as f32 / steps as f32 - 8.0
    };
    (0..vocab).map(logit).collect()
}

#[test]
fn the_nucleus_is_that_of_transformers_warpers_but_exactly_k_stay() {
    let expected = include_str!("../../../../fixtures/sampling/expected.json");
    let expected: Value = serde_json::from_str(expected).unwrap();
    let cases = expected["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 2400);
    let close = |ours: f32, theirs: f64| (f64::from(ours) - theirs).abs() <= 2e-6 * theirs + 1e-30;
    for case in cases {
        let whole = |column: usize| case[column].as_u64().unwrap();
        let float = |column: usize| case[column].as_f64().unwrap();
        let logits = seeded_logits(whole(0), whole(1), whole(2));
        let sampling = Sampling {
            temperature: float(3) as f32,
            top_k: whole(4) as usize,
            top_p: float(5) as f32,
            seed: whole(0),
            ..Sampling::GREEDY
        };
        let mut sampler = Sampler::new(sampling).unwrap();
        let mut probe = Nucleus::default();
        let drawn = sampler.sample(&logits, &[], (0, 0), &mut probe) as usize;
        let nucleus = probe.0;

        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
        let (kept, left_out) = order.split_at(whole(6) as usize);
        assert!(kept.iter().all(|&id| nucleus[id] > 0.0), "{case}: a token is missing");
        assert!(left_out.iter().all(|&id| nucleus[id] == 0.0), "{case}: a token too many");
        assert!(kept.contains(&drawn), "{case}");
        let (first, last) = (nucleus[kept[0]], nucleus[kept[kept.len() - 1]]);
        assert!(close(first, float(7)) && close(last, float(8)), "{case}: {first} {last}");
    }
}

#[test]
fn the_random_number_of_each_draw_is_known_before_and_after() {
    let sampling = Sampling { temperature: 1.0, seed: 11, ..Sampling::default() };
    for stream in [0, 3] {
        let mut sampler = Sampler::new(sampling).unwrap().with_stream(stream);
        // With a thousand equal shares, the random number determines the drawn token.
        let logits = [0.0; 1000];
        for draw in 0..50 {
            let expected = (sampler.random(draw) * 1000.0) as u32;
            let drawn = sampler.sample(&logits, &[], (0, draw as usize), &mut NoProbe);
            assert!(drawn.abs_diff(expected) <= 1, "draw {draw}: {drawn}, not {expected}");
            assert_eq!((sampler.random(draw) * 1000.0) as u32, expected);
        }
    }
}

/// The copy of `before_the_last` repeats the last draw, and then continues with the same random numbers, with any
/// options.
#[test]
fn before_the_last_draw_a_sampler_draws_that_once_more() {
    let logits = [0.0; 1000];
    for stream in [0, 3] {
        let sampling = Sampling { temperature: 1.0, seed: 11, ..Sampling::default() };
        let mut sampler = Sampler::new(sampling).unwrap().with_stream(stream);
        let drawn: Vec<u32> =
            (0..9).map(|pass| sampler.sample(&logits, &[], (0, pass), &mut NoProbe)).collect();
        let (mut again, upcoming) = (sampler.before_the_last(), sampler.random(9));
        assert_eq!((again.random(0), again.random(1)), (sampler.random(8), upcoming));
        assert_eq!(again.look((&logits, &[]), 0, None, 0).unwrap().drawn, drawn[8]);
        let parted = again.before(1, sampling).unwrap().sample(&logits, &[], (0, 1), &mut NoProbe);
        assert_eq!(again.sample(&logits, &[], (0, 0), &mut NoProbe), drawn[8]);
        assert_eq!(again.sample(&logits, &[], (0, 1), &mut NoProbe), parted);
        assert_eq!(parted, sampler.sample(&logits, &[], (0, 9), &mut NoProbe));
    }
    let fresh = Sampler::new(Sampling { temperature: 1.0, ..Sampling::default() }).unwrap();
    assert_eq!(fresh.before_the_last().random(0), fresh.random(0));
}

/// For each draw, the preview gives the same result as the draw itself: token, probabilities and cuts. A preview does
/// not advance the random numbers.
#[test]
fn a_draw_that_is_looked_at_is_the_one_that_is_made() {
    let logits =
        |draw: u64| -> Vec<f32> { (0..50_u64).map(|id| ((id * 37 + draw * 11) % 50) as f32 / 9.0).collect() };
    for sampling in [
        Sampling::default(),
        Sampling { temperature: 0.8, top_k: 12, top_p: 0.7, seed: 3, ..Sampling::default() },
        Sampling { temperature: 1.7, top_k: 0, top_p: 0.5, seed: 4, ..Sampling::default() },
        Sampling { temperature: 1.0, top_k: 5, top_p: 1.0, seed: 5, ..Sampling::default() },
        Sampling { temperature: 1.0, top_p: 0.95, min_p: 0.3, typical_p: 0.6, seed: 6, ..Sampling::GREEDY },
        Sampling { temperature: 1.0, repetition_penalty: 1.5, min_p: 0.1, seed: 7, ..Sampling::GREEDY },
        Sampling { repetition_penalty: 1.5, min_p: 0.1, typical_p: 0.5, ..Sampling::GREEDY },
    ] {
        let text = [3, 49, 12, 3];
        let mut sampler = Sampler::new(sampling).unwrap().with_stream(9);
        let other = Sampler::new(Sampling { seed: 99, ..Sampling::default() }).unwrap().with_stream(9);
        for draw in 0..30 {
            let logits = logits(draw);
            let own = sampler.look((&logits, &text), draw, None, 0).unwrap();
            assert_eq!(
                other.look((&logits, &text), draw, Some(sampling), 0).unwrap(),
                own,
                "another sampler"
            );
            let mut shown = Nucleus::default();
            assert_eq!(sampler.sample(&logits, &text, (0, 0), &mut shown), own.drawn);
            assert_eq!(own.tokens.len(), logits.len());
            for token in &own.tokens {
                let nucleus = shown.0[token.id as usize];
                let logit = logits[token.id as usize];
                let logit = if text.contains(&token.id) { sampling.penalized(logit) } else { logit };
                assert_eq!((token.share, token.logit), (nucleus, logit));
            }
            let stay = shown.0.iter().filter(|share| **share > 0.0).count();
            assert_eq!(own.kept().count, stay);
            let groups: Vec<_> = own.tokens.chunk_by(|a, b| a.removed_by == b.removed_by).collect();
            assert!(
                groups.iter().all(|group| group.windows(2).all(|two| two[0].prob >= two[1].prob)),
                "the likeliest is first"
            );
            let order: Vec<_> = groups.iter().map(|group| group[0].removed_by).collect();
            assert!(order[0].is_none() && order[1..].is_sorted_by(|a, b| a > b), "{order:?}");
            assert!(
                own.tokens[..stay].iter().all(|token| token.share > 0.0 && token.removed_by.is_none()),
                "tokens that were cut come last"
            );
            let removed = |filter| own.tokens.iter().filter(|token| token.removed_by == Some(filter)).count();
            let counts =
                [own.after_k, own.after_p, own.after_min_p, own.after_typical_p].map(|kept| kept.count);
            assert_eq!(
                [Filter::TopK, Filter::TopP, Filter::MinP, Filter::TypicalP].map(removed),
                [50 - counts[0], counts[0] - counts[1], counts[1] - counts[2], counts[2] - counts[3]]
            );
            let k = if sampling.temperature == 0.0 {
                1
            } else if sampling.top_k > 0 {
                sampling.top_k
            } else {
                50
            };
            assert_eq!(own.after_k.count, k);
            let sum: f64 = own.tokens[..stay].iter().map(|token| f64::from(token.prob)).sum();
            assert!((own.kept().sum - sum).abs() < 1e-12);
        }
    }
    let wrong = Sampling { top_p: 0.0, ..Sampling::default() };
    assert!(Sampler::new(Sampling::default()).unwrap().look((&halves(), &[]), 0, Some(wrong), 0).is_err());
}

/// The counted draws are those that the sampler makes from the same candidates.
#[test]
fn counted_draws_are_the_next_ones_of_the_stream() {
    let logits = seeded_logits(5, 64, 256);
    for sampling in [
        Sampling::GREEDY,
        Sampling { temperature: 2.0, seed: 3, ..Sampling::GREEDY },
        Sampling { temperature: 2.0, top_p: 0.9, typical_p: 0.7, seed: 3, ..Sampling::GREEDY },
    ] {
        let mut sampler = Sampler::new(sampling).unwrap().with_stream(2);
        let draw = sampler.look((&logits, &[]), 0, None, 100).unwrap();
        let mut counts = [0; 64];
        for _ in 0..100 {
            counts[sampler.sample(&logits, &[], (0, 0), &mut NoProbe) as usize] += 1;
        }
        assert_eq!(draw.times, 100);
        assert!(draw.tokens.iter().all(|token| token.count == counts[token.id as usize]));
    }
}

/// A probe that stores the float stages of a draw.
#[derive(Default)]
struct Stages(Vec<(Stage, Vec<f32>)>);

impl Probe for Stages {
    fn enabled(&self) -> bool {
        true
    }

    fn wants(&self, _: Site) -> bool {
        true
    }

    fn record(&mut self, site: Site, _: Range<usize>, values: Values<'_>) {
        if let Values::F32(values) = values {
            self.0.push((site.stage, values.to_vec()));
        }
    }
}

#[test]
fn each_filter_is_a_stage_in_the_order_of_its_application() {
    let sampling = Sampling {
        temperature: 1.0,
        min_p: 0.25,
        typical_p: 0.6,
        repetition_penalty: 2.0,
        ..Sampling::GREEDY
    };
    let stages = |sampling, logits: &[f32]| {
        let mut stages = Stages::default();
        Sampler::new(sampling).unwrap().sample(logits, &[1, 3, 3, 99], (0, 0), &mut stages);
        stages.0
    };
    let logits = [4.0, 4.0, 3.0, -1.0, 1.0];
    let found = stages(sampling, &logits);
    let names: Vec<_> = found.iter().map(|(stage, _)| *stage).collect();
    let all = [Stage::PenalizedLogits, Stage::Probs, Stage::MinP, Stage::TypicalP, Stage::Nucleus];
    assert_eq!(names, all);
    assert_eq!(found[0].1, [4.0, 2.0, 3.0, -2.0, 1.0]);
    // e^-1 is over 0.25, e^-2 is not.
    assert_eq!(
        found[2].1.iter().map(|share| *share > 0.0).collect::<Vec<_>>(),
        [true, false, true, false, false]
    );
    assert_eq!(found[3].1, [1.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(found[4].1, found[3].1);
    // At temperature 0 only the penalty has an effect: 3 is then the largest logit.
    let greedy = stages(Sampling { temperature: 0.0, ..sampling }, &[1.0, 4.0, 3.0, -1.0, 1.0]);
    let names: Vec<_> = greedy.iter().map(|(stage, _)| *stage).collect();
    assert_eq!(names, [Stage::PenalizedLogits, Stage::Probs, Stage::Nucleus]);
    assert_eq!(greedy[2].1, [0.0, 0.0, 1.0, 0.0, 0.0]);
    assert!(Sampler::new(sampling).unwrap().next_draw(0).is_none(), "a device cannot draw so");
    assert!(Sampler::new(Sampling::GREEDY).unwrap().next_draw(0).is_some());
}

#[test]
fn options_out_of_range_are_refused_by_their_names() {
    let one = Sampling { temperature: 1.0, ..Sampling::GREEDY };
    for (sampling, name) in [
        (Sampling { min_p: -0.1, ..one }, "--min-p"),
        (Sampling { min_p: 1.5, ..one }, "--min-p"),
        (Sampling { min_p: f32::NAN, ..one }, "--min-p"),
        (Sampling { typical_p: 0.0, ..one }, "--typical-p"),
        (Sampling { typical_p: 1.1, ..one }, "--typical-p"),
        (Sampling { typical_p: f32::NAN, ..one }, "--typical-p"),
        (Sampling { repetition_penalty: 0.0, ..one }, "--repetition-penalty"),
        (Sampling { repetition_penalty: -2.0, ..one }, "--repetition-penalty"),
        (Sampling { repetition_penalty: f32::INFINITY, ..one }, "--repetition-penalty"),
        (Sampling { repetition_penalty: f32::NAN, ..one }, "--repetition-penalty"),
    ] {
        let error = Sampler::new(sampling).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
    // Limits that remove nothing, and logits that no filter can handle.
    let limits = Sampling { min_p: 1.0, typical_p: 1e-30, repetition_penalty: 100.0, ..one };
    for logits in
        [[f32::NAN; 4], [f32::INFINITY; 4], [f32::NEG_INFINITY; 4], [0.0; 4], [1e38, 0.0, -1e38, f32::NAN]]
    {
        let mut sampler = Sampler::new(limits).unwrap();
        assert!(sampler.sample(&logits, &[0, 1, 2, 3], (0, 0), &mut NoProbe) < 4);
        assert!(sampler.look((&logits, &[0]), 0, None, 10).is_ok());
    }
}

/// Returns the text of `fixtures/sampling/generate.py`.
fn seeded_text(seed: u64, vocab: u64) -> Vec<u32> {
    let mut state = seed;
    let ids = (0..vocab + 30).map(|_| {
        state = (state * 1_664_525 + 1_013_904_223) % (1 << 32);
        ((state >> 16) % vocab) as u32
    });
    ids.skip(vocab as usize).collect()
}

#[test]
fn the_filters_keep_the_tokens_that_transformers_keeps() {
    let expected = include_str!("../../../../fixtures/sampling/expected.json");
    let expected: Value = serde_json::from_str(expected).unwrap();
    let cases = expected["filters"].as_array().unwrap();
    assert_eq!(cases.len(), 576);
    let close = |ours: f32, theirs: f64| (f64::from(ours) - theirs).abs() <= 2e-6 * theirs + 1e-30;
    for case in cases {
        let whole = |column: usize| case[column].as_u64().unwrap();
        let float = |column: usize| case[column].as_f64().unwrap() as f32;
        let (logits, text) = (seeded_logits(whole(0), whole(1), whole(2)), seeded_text(whole(0), whole(1)));
        let sampling = Sampling {
            temperature: float(3),
            top_k: whole(4) as usize,
            top_p: float(5),
            min_p: float(6),
            typical_p: float(7),
            repetition_penalty: float(8),
            seed: whole(0),
        };
        let mut probe = Nucleus::default();
        let drawn = Sampler::new(sampling).unwrap().sample(&logits, &text, (0, 0), &mut probe) as usize;
        let nucleus = probe.0;
        let kept: Vec<u64> =
            (0..).zip(&nucleus).filter(|(_, share)| **share > 0.0).map(|(id, _)| id).collect();
        let sums = [kept.len() as u64, kept.iter().sum(), kept.iter().map(|id| id * id).sum()];
        assert_eq!(sums, [whole(9), whole(10), whole(11)], "{case}");
        let shares = || kept.iter().map(|id| nucleus[*id as usize]);
        let (first, last) = (shares().fold(0.0, f32::max), shares().fold(1.0, f32::min));
        let [most, least] = [12_usize, 13].map(|column| case[column].as_f64().unwrap());
        assert!(close(first, most) && close(last, least), "{case}: {first} {last}");
        assert!(nucleus[drawn] > 0.0, "{case}");
    }
}
