//! Repetition penalty, min-p and typical-p: their stages in a run, in a trace and in a branch.

use llama_trace::record::Keep;
use llama_trace::trace::draw::{Draw, DrawAt, Filter};
use llama_trace::trace::explanation::{Explanation, ExplanationAt};
use llama_trace::trace::stage::Section;
use llama_trace::trace::{Filters, Fork, Outline, Sampling};

use super::*;

const PROMPT: [u32; 5] = [1, 5, 9, 5, 7];

const ONE: Sampling = Sampling { temperature: 1.0, seed: 3, ..Sampling::GREEDY };

/// Settings with each option alone, with all of them, and at temperature 0.
const SETTINGS: [Sampling; 6] = [
    Sampling { repetition_penalty: 1.3, ..ONE },
    Sampling { min_p: 0.3, ..ONE },
    Sampling { typical_p: 0.6, top_p: 0.95, ..ONE },
    Sampling { temperature: 1.5, top_k: 40, min_p: 0.2, typical_p: 0.8, repetition_penalty: 1.5, ..ONE },
    Sampling { min_p: 0.2, typical_p: 0.3, repetition_penalty: 0.7, ..ONE },
    Sampling { min_p: 0.2, typical_p: 0.3, repetition_penalty: 2.0, ..Sampling::GREEDY },
];

fn live(sampling: Sampling) -> Live {
    let start = Start {
        ids: PROMPT.to_vec(),
        draws: PASSES,
        sampler: Sampler::new(sampling).unwrap(),
        tokenizer: None,
        eos: Vec::new(),
        memory: DEFAULT_MEMORY,
        context: None,
    };
    run_to_idle(Live::start(Arc::new(model("gqa")), start).unwrap())
}

fn frame(source: &mut dyn Source, site: Site) -> llama_trace::error::Result<Arc<Frame>> {
    let outline = source.outline();
    let site = Site { run: outline.run, ..site };
    let dims = outline.passes[site.pass].dims;
    let region = Region::whole(&outline.card.sizes().shape(site.stage.axes(), dims));
    match ask(source, &Query::Block(site, region))? {
        Answer::Block(block) => Ok(block.frame),
        other => panic!("{site}: {other:?}"),
    }
}

fn explain(source: &mut dyn Source, site: Site, at: usize) -> Explanation {
    let site = Site { run: source.outline().run, ..site };
    let Ok(Answer::Explanation(found)) =
        ask(source, &Query::Explanation(ExplanationAt { site, at, terms: 3 }))
    else {
        panic!("{site} {at}")
    };
    *found
}

fn look(source: &mut dyn Source, pass: usize, times: usize) -> Arc<Draw> {
    let site = Site { run: source.outline().run, ..Site::once(pass, Stage::Sampled) };
    match ask(source, &Query::Draw(DrawAt { site, setting: None, times })).unwrap() {
        Answer::Draw(draw) => draw,
        other => panic!("{other:?}"),
    }
}

/// The stages of the sampler in a pass, in order.
fn stages_of(outline: &Outline, pass: usize) -> Vec<Stage> {
    let sizes = outline.card.sizes();
    let all = Site::all(&sizes, outline.passes[pass].dims).into_iter().map(|site| site.stage);
    all.filter(|stage| stage.info().section == Section::Sampler).collect()
}

/// All frames of the run, as a probe records them.
fn recorded(sampling: Sampling) -> (HashMap<Site, Frame>, Vec<u32>) {
    let model = model("gqa");
    let mut session = Session::new(&model, Sampler::new(sampling).unwrap()).unwrap();
    let (select, mut frames, mut ids, mut drawn) =
        (Select::all(), HashMap::new(), PROMPT.to_vec(), Vec::new());
    for _ in 0..PASSES {
        let dims = session.next_pass(ids.len());
        assert_eq!(dims.filters, sampling.filters());
        let mut recorder = Recorder::new(model.sizes(), dims, &select, |frame: Frame| {
            frames.insert(frame.site, frame);
        });
        ids = vec![session.run(&ids, &mut recorder).unwrap()];
        drawn.extend(&ids);
    }
    (frames, drawn)
}

#[test]
fn each_filter_is_a_stage_whose_cells_are_explained_to_the_bit() {
    for sampling in SETTINGS {
        let (frames, tokens) = recorded(sampling);
        let mut live = live(sampling);
        let Filters { penalty, min_p, typical_p } = sampling.filters();
        let stages: Vec<Stage> = [
            (Stage::PenalizedLogits, penalty),
            (Stage::Probs, true),
            (Stage::MinP, min_p),
            (Stage::TypicalP, typical_p),
            (Stage::Nucleus, true),
            (Stage::Sampled, true),
        ]
        .into_iter()
        .filter(|(_, is_there)| *is_there)
        .map(|(stage, _)| stage)
        .collect();
        for (pass, token) in tokens.iter().enumerate() {
            assert_eq!(stages_of(live.outline(), pass), stages, "{sampling:?}");
            assert_eq!(live.outline().passes[pass].sampled.as_ref().unwrap().id, *token);
            assert_eq!(look(&mut live, pass, 0).drawn, *token, "{sampling:?}");
            for &stage in &stages {
                let site = Site::once(pass, stage);
                let found = frame(&mut live, site).unwrap();
                assert_same(&found, &frames[&site]);
                for (at, value) in found.values().numbers().enumerate() {
                    let explained = explain(&mut live, site, at);
                    let result = explained.result.unwrap();
                    assert_eq!(result.to_bits(), value.to_bits(), "{sampling:?} {site} {at}: {explained:?}");
                }
            }
            let shares: f64 = frames[&Site::once(pass, Stage::Nucleus)].values().numbers().sum();
            assert!((shares - 1.0).abs() < 1e-6, "{sampling:?}: {shares}");
        }
        let absent = [Stage::PenalizedLogits, Stage::MinP, Stage::TypicalP].map(|stage| Site::once(0, stage));
        for site in absent.into_iter().filter(|site| !stages.contains(&site.stage)) {
            assert!(frame(&mut live, site).is_err(), "{sampling:?} {site}");
        }
    }
}

/// The penalty counts the tokens of the text up to its pass, not those after it.
#[test]
fn the_penalty_counts_every_token_up_to_its_pass() {
    let sampling = Sampling { repetition_penalty: 1.3, ..ONE };
    let mut live = live(sampling);
    let mut text = Vec::new();
    for pass in 0..PASSES {
        text.extend(live.outline().passes[pass].tokens.iter().map(|token| token.id as usize));
        let logits = frame(&mut live, Site::once(pass, Stage::Logits)).unwrap();
        let penalized = frame(&mut live, Site::once(pass, Stage::PenalizedLogits)).unwrap();
        let penalized: Vec<f64> = penalized.values().numbers().collect();
        let first = logits.values().len() - penalized.len();
        for (id, logit) in logits.values().numbers().skip(first).enumerate() {
            let by = if logit < 0.0 { 1.0 / 1.3 } else { 1.3 };
            let expected = if text.contains(&id) { logit / by } else { logit };
            assert!((penalized[id] - expected).abs() < 1e-5, "pass {pass}, token {id}");
        }
        let notes = explain(&mut live, Site::once(pass, Stage::PenalizedLogits), 5).notes.join(" ");
        assert!(notes.contains("last at p0/tokens[t=3]"), "{notes}");
    }
}

#[test]
fn a_trace_draws_the_same_tokens_again_with_the_same_stages() {
    let folder = tempfile::tempdir().unwrap();
    let model = model("gqa");
    for (number, sampling) in SETTINGS.into_iter().enumerate() {
        for keep in [Keep::Minimal, Keep::All] {
            let path = folder.path().join(format!("{number}{keep:?}"));
            let frames = recorded::record_with(&model, sampling, &PROMPT, keep, &path);
            let (trace, mut source) = recorded::open(&path, 1 << 30);
            assert_eq!(trace.about().sampling.sampling, sampling);
            for (site, recorded) in frames.iter().filter(|(site, _)| site.layer.is_none()) {
                let found = frame(&mut *source, *site).unwrap();
                assert_same(&found, recorded);
                if site.stage.info().section == Section::Sampler {
                    let at = found.values().len() / 2;
                    let explained = explain(&mut *source, *site, at);
                    assert_eq!(explained.result.unwrap().to_bits(), explained.value.to_bits(), "{site}");
                }
            }
            for pass in 0..PASSES {
                let token = source.outline().passes[pass].sampled.as_ref().unwrap().id;
                assert_eq!(look(&mut *source, pass, 0).drawn, token, "{sampling:?}");
            }
        }
    }
}

/// A setting that is tried becomes the run's own from a pass on. The passes before it keep theirs.
#[test]
fn a_branch_has_the_stages_of_its_own_setting_from_its_first_draw_on() {
    let plain = [Stage::Probs, Stage::Nucleus, Stage::Sampled];
    let filtered = [Stage::Probs, Stage::MinP, Stage::TypicalP, Stage::Nucleus, Stage::Sampled];
    let setting = Sampling { min_p: 0.1, typical_p: 0.7, ..ONE };
    for (own, other, before, after) in
        [(ONE, setting, &plain[..], &filtered[..]), (setting, ONE, &filtered[..], &plain[..])]
    {
        let mut live = live(own);
        let site = Site::once(1, Stage::Sampled);
        let at = DrawAt { site, setting: Some(other), times: 0 };
        let Ok(Answer::Draw(tried)) = ask(&mut live, &Query::Draw(at)) else { panic!() };
        let fork = Fork { of: Run::ITSELF, pass: 1, token: tried.drawn, setting: Some(other) };
        let mut branch = live.branch(Run(1), fork).unwrap();
        while branch.outline().passes.len() < PASSES {
            branch.advance().unwrap();
            while branch.status() != Status::Idle {
                branch.wait(LOOK);
                branch.poll().unwrap();
            }
        }
        for (pass, stages) in [(0, before), (1, after), (2, after)] {
            assert_eq!(stages_of(branch.outline(), pass), stages);
            for &stage in stages {
                let found = frame(&mut *branch, Site::once(pass, stage)).unwrap();
                let at = found.values().len() / 3;
                let explained = explain(&mut *branch, Site::once(pass, stage), at);
                assert_eq!(explained.result, Some(explained.value), "pass {pass} {stage}");
            }
            assert_eq!(stages_of(live.outline(), pass), before, "the run keeps its own");
        }
        assert_eq!(look(&mut *branch, 1, 0).drawn, tried.drawn);
    }
}

/// The counts are those of the next draws of the stream, and are the same each time.
#[test]
fn a_hundred_draws_follow_the_shares() {
    let mut live = live(Sampling { min_p: 0.05, top_p: 0.95, ..ONE });
    for pass in 0..PASSES {
        let draw = look(&mut live, pass, 100);
        assert_eq!((draw.times, draw.tokens.iter().map(|token| token.count).sum::<u32>()), (100, 100));
        assert!(draw.of(draw.drawn).unwrap().count > 0, "the first draw is that of the pass");
        for token in &draw.tokens {
            let share = f64::from(token.share);
            let deviation = (share * (1.0 - share) * 100.0).sqrt();
            assert!((f64::from(token.count) - share * 100.0).abs() <= 5.0 * deviation + 1.0, "{token:?}");
            assert!(token.removed_by.is_none() || token.count == 0, "{token:?}");
        }
        assert!(draw.tokens.iter().any(|token| token.removed_by == Some(Filter::MinP)));
        assert_eq!(look(&mut live, pass, 100), draw);
    }
}
