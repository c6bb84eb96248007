//! Branches of a run. Up to the fork a branch has the run's bits. After the fork it has the bits of a run over its own
//! tokens, whichever of the two was shown before.

use llama_trace::config::CacheDtype;
use llama_trace::tokenizer;
use llama_trace::trace::draw::{Draw, DrawAt, Sampling};
use llama_trace::trace::explanation::{ExplanationAt, From};
use llama_trace::trace::token_logprobs::TokenLogprobsAt;
use llama_trace::trace::{Fork, Outline};

use super::memory::thin;
use super::*;

const PROMPT: [u32; 5] = [1, 5, 9, 3, 7];

fn idle(source: &mut dyn Source) {
    while source.status() != Status::Idle {
        source.wait(LOOK);
        source.poll().unwrap();
    }
}

fn frame(source: &mut dyn Source, site: Site) -> Arc<Frame> {
    let outline = source.outline();
    let site = Site { run: outline.run, ..site };
    let dims = outline.passes[site.pass].dims;
    let region = Region::whole(&outline.card.sizes().shape(site.stage.axes(), dims));
    match ask(source, &Query::Block(site, region)).unwrap() {
        Answer::Block(block) => block.frame,
        other => panic!("{site}: {other:?}"),
    }
}

fn drawn(outline: &Outline) -> Vec<u32> {
    outline.passes.iter().map(|pass| pass.sampled.as_ref().unwrap().id).collect()
}

fn branch(source: &mut dyn Source, run: u16, pass: usize, token: u32, passes: usize) -> Box<dyn Source> {
    let fork = Fork { of: source.outline().run, pass, token, setting: None };
    let mut branch = source.branch(Run(run), fork).unwrap();
    assert_eq!(branch.outline().fork, Some(fork));
    while branch.outline().passes.len() < passes {
        branch.advance().unwrap();
        idle(&mut *branch);
    }
    branch
}

fn sites(outline: &Outline) -> Vec<Site> {
    let sizes = outline.card.sizes();
    outline.passes.iter().flat_map(|pass| Site::all(&sizes, pass.dims)).collect()
}

fn backends() -> Vec<(String, Cpu)> {
    let mut backends = Vec::new();
    for precision in PRECISIONS {
        for kernel in [Kernel::available()[0], Kernel::available()[Kernel::available().len() - 1]] {
            let name = format!("{} in {precision:?}", kernel.name());
            backends.push((name, Cpu::with_kernel(kernel).with_precision(precision)));
        }
    }
    for dtype in [CacheDtype::F32, CacheDtype::F16, CacheDtype::Bf16] {
        backends.push((format!("cache in {}", dtype.name()), Cpu::default().with_cache_dtype(dtype)));
    }
    backends
}

/// Reads all stages, alternating between the runs, so that the cache switches from one run to the other each time.
#[test]
fn a_branch_with_the_token_that_was_drawn_has_the_bits_of_the_run() {
    for model_name in ["gqa", "mistral", "qwen3"] {
        for (name, cpu) in backends() {
            let mut live = start(model_in(model_name, cpu), &PROMPT, 4, Vec::new());
            let tokens = drawn(live.outline());
            let mut same = branch(&mut live, 1, 1, tokens[1], 4);
            assert_eq!(drawn(same.outline()), tokens, "{model_name}, {name}: the same random numbers");
            let mut compared = 0;
            for site in sites(live.outline()).into_iter().rev() {
                let (ours, theirs) = (frame(&mut *same, site), frame(&mut live, site));
                assert_same(&ours, &theirs);
                compared += 1;
            }
            assert!(compared > 100, "{model_name}, {name}");
        }
    }
}

/// A run over the same tokens, recorded as it computes.
fn recorded(model: &Model, steps: &[Vec<u32>]) -> HashMap<Site, Frame> {
    let mut session = Session::new(model, sampler()).unwrap();
    let (select, mut frames) = (Select::all(), HashMap::new());
    for ids in steps {
        let dims = session.next_pass(ids.len());
        let mut recorder = Recorder::new(model.sizes(), dims, &select, |frame: Frame| {
            frames.insert(frame.site, frame);
        });
        session.run(ids, &mut recorder).unwrap();
    }
    frames
}

#[test]
fn branches_of_branches_have_the_bits_of_their_own_tokens_and_leave_the_run_its_own() {
    for precision in PRECISIONS {
        let model = || model_in("gqa", Cpu::default().with_precision(precision));
        let mut live = start(model(), &PROMPT, 4, Vec::new());
        let other = |token: u32| (token + 1) % 60;
        let tokens = drawn(live.outline());
        let mut first = branch(&mut live, 1, 1, other(tokens[1]), 5);
        let of_first = drawn(first.outline());
        let mut second = branch(&mut *first, 2, 3, other(of_first[3]), 6);
        // A branch of the second branch, from a pass that the second branch shares with the run.
        let mut third = branch(&mut *second, 3, 0, other(tokens[0]), 3);
        let all: [&mut dyn Source; 4] = [&mut live, &mut *first, &mut *second, &mut *third];
        let expected: Vec<_> = all
            .iter()
            .map(|source| {
                let steps: Vec<Vec<u32>> = (source.outline().passes.iter())
                    .map(|pass| pass.tokens.iter().map(|token| token.id).collect())
                    .collect();
                recorded(&model(), &steps)
            })
            .collect();
        let parts = |one: usize, other: usize| {
            let [one, other] = [one, other].map(|at| drawn(all[at].outline()));
            one.iter().zip(&other).position(|(a, b)| a != b)
        };
        assert_eq!((parts(0, 1), parts(1, 2), parts(0, 3)), (Some(1), Some(3), Some(0)));
        for round in 0..2 {
            for at in [2, 0, 3, 1] {
                let outline = all[at].outline().clone();
                for site in sites(&outline).into_iter().rev().skip(round).step_by(3) {
                    // A picked token was not sampled.
                    let picked = outline.fork.is_some_and(|fork| site.pass <= fork.pass)
                        && [Stage::Sampled, Stage::Probs, Stage::Nucleus].contains(&site.stage);
                    let ours = frame(all[at], site);
                    if !picked {
                        assert_same(&ours, &expected[at][&site]);
                    }
                }
            }
        }
        for (source, pass) in [(1, 1), (2, 3), (3, 0)] {
            let token = all[source].outline().passes[pass].sampled.as_ref().unwrap().id;
            let sampled = frame(all[source], Site::once(pass, Stage::Sampled));
            assert_eq!(sampled.get(&[0]), Some(Number::I64(token.into())));
        }
    }
}

fn look(source: &mut dyn Source, pass: usize, setting: Option<Sampling>) -> Arc<Draw> {
    let site = Site { run: source.outline().run, ..Site::once(pass, Stage::Sampled) };
    match ask(source, &Query::Draw(DrawAt { site, setting, times: 0 })).unwrap() {
        Answer::Draw(draw) => draw,
        other => panic!("{other:?}"),
    }
}

/// The sampler view shows the run's token for the run's settings. For other settings it shows the token that a branch
/// then samples.
#[test]
fn what_would_be_drawn_is_what_a_branch_draws() {
    let mut live = start(model("gqa"), &PROMPT, 4, Vec::new());
    let tokens = drawn(live.outline());
    for (pass, token) in tokens.iter().enumerate() {
        let own = look(&mut live, pass, None);
        assert_eq!(own.drawn, *token, "pass {pass}");
        let nucleus = frame(&mut live, Site::once(pass, Stage::Nucleus));
        for one in &own.tokens {
            assert_eq!(nucleus.get(&[one.id as usize]), Some(Number::F32(one.share)));
        }
    }
    let hot = Sampling { temperature: 3.0, top_k: 0, top_p: 1.0, seed: 11, ..Sampling::default() };
    let tried = look(&mut live, 1, Some(hot));
    assert_ne!(tried.drawn, tokens[1], "another seed and a higher temperature");
    let fork = Fork { of: Run::ITSELF, pass: 1, token: tried.drawn, setting: Some(hot) };
    let mut branch = live.branch(Run(1), fork).unwrap();
    for _ in 0..2 {
        branch.advance().unwrap();
        idle(&mut *branch);
    }
    let of_branch = drawn(branch.outline());
    assert_eq!((of_branch[0], of_branch[1]), (tokens[0], tried.drawn));
    for pass in 1..4 {
        let draw = look(&mut *branch, pass, None);
        assert_eq!((draw.setting, draw.drawn), (hot, of_branch[pass]), "the branch keeps the setting");
        let probs = frame(&mut *branch, Site::once(pass, Stage::Probs));
        let first = draw.tokens[0];
        assert_eq!(probs.get(&[first.id as usize]), Some(Number::F32(first.prob)));
    }
    // Before the fork, the run's settings apply.
    assert_eq!(look(&mut *branch, 0, None), look(&mut live, 0, None));
}

/// An explanation names the shown run, so going to an operand stays in this run.
#[test]
fn explanations_of_a_branch_stay_in_it() {
    let mut live = start(model("gqa"), &PROMPT, 3, Vec::new());
    let token = (drawn(live.outline())[1] + 1) % 60;
    let mut branch = branch(&mut live, 1, 1, token, 3);
    for pass in 0..3 {
        let site = Site { run: Run(1), ..Site::layer(pass, 1, Stage::Qk) };
        let query = Query::Explanation(ExplanationAt { site, at: 0, terms: 0 });
        let Ok(Answer::Explanation(found)) = ask(&mut *branch, &query) else { panic!("pass {pass}") };
        assert_eq!(found.address.run.as_deref(), Some("r1"), "pass {pass}");
        assert_eq!(found.result, Some(found.value), "pass {pass}");
        for operand in found.terms.iter().flat_map(|term| &term.operands) {
            if let From::Stage(address) = &operand.from {
                assert_eq!(address.run.as_deref(), Some("r1"), "{address}");
            }
        }
    }
}

/// A picked token is never described as sampled, and a sampled token is described as sampled.
#[test]
fn a_picked_token_is_explained_as_picked() {
    for temperature in [0.0, 0.8] {
        let sampler = Sampler::new(Sampling { temperature, ..Sampling::default() }).unwrap();
        let start = Start {
            ids: PROMPT.to_vec(),
            draws: 3,
            sampler,
            tokenizer: None,
            eos: Vec::new(),
            memory: DEFAULT_MEMORY,
            context: None,
        };
        let mut live = run_to_idle(Live::start(Arc::new(model("gqa")), start).unwrap());
        let token = (drawn(live.outline())[1] + 1) % 60;
        let mut branch = branch(&mut live, 1, 1, token, 3);
        let notes = |source: &mut dyn Source, run: u16, pass: usize| {
            let site = Site { run: Run(run), ..Site::once(pass, Stage::Sampled) };
            let query = Query::Explanation(ExplanationAt { site, at: 0, terms: 0 });
            let Ok(Answer::Explanation(found)) = ask(source, &query) else { panic!("pass {pass}") };
            assert_eq!(found.result, Some(found.value));
            found.notes.join(" ")
        };
        assert!(notes(&mut *branch, 1, 1).contains("The token was picked by hand: a branch begins here."));
        for (run, pass) in [(1, 0), (1, 2), (0, 1)] {
            let source = if run == 1 { &mut *branch } else { &mut live as &mut dyn Source };
            let told = notes(source, run, pass);
            assert!(!told.contains("picked") && told.contains("lie side by side"), "r{run}:p{pass} {told}");
        }
    }
}

#[test]
fn what_cannot_branch_says_why() {
    let eos = 17;
    let mut live = start(model("gqa"), &PROMPT, 2, vec![eos]);
    let fork = |pass, token| Fork { of: Run::ITSELF, pass, token, setting: None };
    assert!(live.branch(Run(1), fork(2, 3)).is_err(), "that pass is not there");
    assert!(live.branch(Run(1), fork(0, 1 << 30)).is_err(), "there is no such token");
    let mut ended = live.branch(Run(1), fork(0, eos)).unwrap();
    assert!(ended.advance().unwrap_err().to_string().contains("the text has ended"));
    assert_eq!(ended.outline().passes.len(), 1);
    let frame = frame(&mut *ended, Site::layer(0, 1, Stage::Xq));
    assert_same(&frame, &wait(&mut live, Site::layer(0, 1, Stage::Xq)).unwrap());
}

/// The rows of a branch are stored outside the cache while another run is computed, and count as memory. If they do not
/// fit, there is an error, and both runs go on as before.
#[test]
fn branches_stay_within_the_memory() {
    let long: Vec<u32> = (0..300).map(|i| i * 7 % 300).collect();
    let mut live = start_within(LEAST_MEMORY, thin(128, 8, 300), &long, 2, Vec::new());
    let token = (drawn(live.outline())[1] + 1) % 300;
    let mut branch = branch(&mut live, 1, 1, token, 6);
    for _ in 0..3 {
        for stage in [Stage::Softmax, Stage::Qk, Stage::FfnDown] {
            for layer in [7, 0, 3] {
                for source in [&mut live as &mut dyn Source, &mut *branch] {
                    frame(source, Site::layer(1, layer, Stage::Xq));
                    let pass = source.outline().passes.len() - 1;
                    frame(source, Site::layer(pass, layer, stage));
                }
            }
        }
    }
    assert!(live.most_held() <= LEAST_MEMORY, "{}", live.most_held());
}

/// Stopping one run stops no other run. A stopped pass can be requested again.
#[test]
fn a_branch_that_is_stopped_goes_on_when_it_is_asked() {
    let long: Vec<u32> = (0..600).map(|i| i * 7 % 300).collect();
    let mut live = start(thin(128, 6, 300), &long, 2, Vec::new());
    let token = (drawn(live.outline())[1] + 1) % 300;
    let fork = Fork { of: Run::ITSELF, pass: 1, token, setting: None };
    let mut branch = live.branch(Run(1), fork).unwrap();
    branch.advance().unwrap();
    branch.stop();
    idle(&mut *branch);
    while branch.outline().passes.len() < 3 {
        branch.advance().unwrap();
        idle(&mut *branch);
    }
    let softmax = Site::layer(2, 5, Stage::Softmax);
    let expected = frame(&mut *branch, softmax);
    drop(live);
    assert_same(&frame(&mut *branch, softmax), &expected);
    branch.advance().unwrap();
    idle(&mut *branch);
    assert_eq!(branch.outline().passes.len(), 4, "the branch goes on after the run was dropped");
}

/// The log-probability follows from the logits at the previous position, in every pass of the run and of a branch. A
/// trace gives the same value.
#[test]
fn a_token_was_as_likely_as_the_logits_before_it_say() {
    for (name, model) in models_in(&["gqa", "qwen3"]) {
        let mut live = start(model(), &PROMPT, 3, Vec::new());
        let token = (drawn(live.outline())[1] + 1) % 60;
        let mut branch = branch(&mut live, 1, 1, token, 4);
        for source in [&mut live as &mut dyn Source, &mut *branch] {
            let outline = source.outline().clone();
            for pass in 0..outline.passes.len() {
                let tokens = outline.passes[pass].tokens.clone();
                let site = Site { run: outline.run, ..Site::once(pass, Stage::Logits) };
                let Ok(Answer::TokenLogprobs(told)) =
                    ask(source, &Query::TokenLogprobs(TokenLogprobsAt { site, tokens: 0..tokens.len() }))
                else {
                    panic!("{name}: pass {pass}")
                };
                assert_eq!(told.len(), tokens.len());
                assert_eq!(
                    told[0].is_none(),
                    pass == 0,
                    "only the first token of the text has no probability"
                );
                for (at, told) in told.iter().enumerate().filter_map(|(at, told)| Some((at, told.clone()?))) {
                    let (before, row) = if at > 0 { (pass, at - 1) } else { (pass - 1, usize::MAX) };
                    let logits = frame(source, Site::once(before, Stage::Logits));
                    let logits = logits.floats().unwrap();
                    let row = logits.index_axis(ndarray::Axis(0), row.min(logits.shape()[0] - 1));
                    let row: Vec<f64> = row.iter().map(|logit| f64::from(*logit)).collect();
                    let own = row[tokens[at].id as usize];
                    let expected = own - row.iter().map(|logit| logit.exp()).sum::<f64>().ln();
                    assert!(
                        (f64::from(told.log_prob) - expected).abs() < 1e-5,
                        "{name}: {told:?} {expected}"
                    );
                    let better = row.iter().filter(|logit| **logit > own).count();
                    assert_eq!(told.rank, better + 1, "{name}");
                }
                let part = Query::TokenLogprobs(TokenLogprobsAt { site, tokens: 1..tokens.len() });
                let Ok(Answer::TokenLogprobs(part)) = ask(source, &part) else { panic!("{name}") };
                assert_eq!(part, told[1..]);
            }
        }
    }
}

#[test]
fn tokens_of_the_prompt_are_made_of_the_bytes_and_merges_of_its_text() {
    let checkpoint = llama_trace::builtin::open().unwrap();
    let tokenizer = tokenizer::find(&checkpoint.vocabulary(), &checkpoint.config, None).unwrap().unwrap();
    let text = "Once upon a time, Zwölf foxes";
    let ids = tokenizer.encode(text).unwrap();
    let model = Model::load(&checkpoint, Cpu::default()).unwrap();
    let start = Start {
        ids: ids.clone(),
        draws: 2,
        sampler: sampler(),
        tokenizer: Some(Arc::from(tokenizer)),
        eos: Vec::new(),
        memory: DEFAULT_MEMORY,
        context: None,
    };
    let mut live = run_to_idle(Live::start(Arc::new(model), start).unwrap());
    let made = |live: &mut Live, pass| match ask(live, &Query::TokenPieces(Site::once(pass, Stage::Tokens))) {
        Ok(Answer::TokenPieces(made)) => made,
        other => panic!("{other:?}"),
    };
    let all = made(&mut live, 0);
    let bytes: Vec<u8> = all.iter().flat_map(|token| token.bytes.clone()).collect();
    assert_eq!(String::from_utf8(bytes).unwrap(), text);
    assert!(all.iter().any(|token| token.merges.len() > 1), "{all:?}");
    for (token, label) in all.iter().zip(&live.outline().passes[0].tokens) {
        // The last merge gives the token.
        if let Some(last) = token.merges.last() {
            assert_eq!(last.left.clone() + &last.right, label.text, "{token:?}");
            assert_eq!(token.merges.len() + 1, token.parts.len());
        }
    }
    let drawn = made(&mut live, 1);
    assert_eq!(drawn.len(), 1);
    assert!(!drawn[0].bytes.is_empty());
}
