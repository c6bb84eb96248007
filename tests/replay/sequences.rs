//! Several sequences of one model, each viewed alone. Each has the numbers of its own prompt, all share one memory
//! budget, and stopping one leaves the others intact.

use super::memory::thin;
use super::*;
use llama_trace::replay::Sequences;

/// A [`Start`] for each of `prompts`, with the random numbers that the prompt has in a batch.
fn starts(prompts: &[Vec<u32>], draws: usize, memory: usize) -> Vec<Start> {
    let start = |(number, ids): (u64, &Vec<u32>)| Start {
        ids: ids.clone(),
        draws,
        sampler: sampler().after(number),
        tokenizer: None,
        eos: Vec::new(),
        memory,
        context: None,
    };
    (0..).zip(prompts).map(start).collect()
}

#[test]
fn a_sequence_has_the_numbers_of_a_single_run_under_its_own_sites() {
    let prompts = [vec![1, 5, 9], vec![2], vec![7; 20]];
    for precision in [Precision::F32, Precision::Bf16, Precision::Q8 { group: 32 }] {
        let model = || model_in("gqa", Cpu::default().with_precision(precision));
        let sequences = Sequences::new(Arc::new(model()), starts(&prompts, PASSES, DEFAULT_MEMORY));
        // All sequences are open at the same time, and the test asks them alternately.
        let mut open: Vec<_> = (0..3).map(|number| sequences.open(number).unwrap()).collect();
        open = open.into_iter().map(run_to_idle).collect();
        for (number, live) in open.iter_mut().enumerate() {
            let start = starts(&prompts, PASSES, DEFAULT_MEMORY).swap_remove(number);
            let mut alone = run_to_idle(Live::start(Arc::new(model()), start).unwrap());
            let (ours, theirs) = (live.outline().clone(), alone.outline().clone());
            assert_eq!((ours.sequence, ours.sequences), (number, 3));
            assert_eq!((ours.passes.len(), &ours.passes), (PASSES, &theirs.passes), "sequence {number}");
            for pass in &ours.passes {
                for site in Site::all(&ours.card.sizes(), pass.dims) {
                    let own = wait(live, Site { sequence: number, ..site }).unwrap();
                    assert_eq!(own.site, Site { sequence: number, ..site });
                    assert_same(&own, &wait(&mut alone, site).unwrap());
                }
            }
            // A sequence refuses a request for another sequence.
            let other = Site { sequence: (number + 1) % 3, ..Site::layer(0, 0, Stage::Xq) };
            assert!(wait(live, other).is_err(), "{other}");
        }
    }
    let sequences = Sequences::new(Arc::new(model("gqa")), starts(&prompts, 1, DEFAULT_MEMORY));
    assert!(sequences.open(3).is_err());
}

#[test]
fn all_sequences_share_one_budget_of_memory() {
    let prompts: Vec<Vec<u32>> =
        (0..3).map(|number| (0..600).map(|i| (i * 7 + number) % 300).collect()).collect();
    let sequences = Sequences::new(Arc::new(thin(128, 6, 300)), starts(&prompts, 1, LEAST_MEMORY));
    let mut open: Vec<_> = (0..3).map(|number| run_to_idle(sequences.open(number).unwrap())).collect();
    for stage in [Stage::Softmax, Stage::Xq, Stage::FfnUp] {
        for (sequence, live) in open.iter_mut().enumerate() {
            let site = Site { sequence, ..Site::layer(0, 5, stage) };
            wait_for(live, site, &Region(vec![0..1; stage.axes().len()])).unwrap();
        }
    }
    let most = open[0].most_held();
    assert!(most > LEAST_MEMORY / 4 && most <= LEAST_MEMORY, "{most} bytes");
    assert!(open.iter().all(|live| live.most_held() == most), "the sequences share one store");
}

#[test]
fn stopping_or_closing_a_sequence_does_not_disturb_another() {
    let prompts: Vec<Vec<u32>> = vec![(0..1500).map(|i| i * 7 % 300).collect(); 3];
    let sequences = Sequences::new(Arc::new(thin(128, 8, 300)), starts(&prompts, 1, DEFAULT_MEMORY));
    let first = sequences.open(0).unwrap();
    while !matches!(first.status(), Status::Working(text) if text.contains("layer")) {
        std::thread::yield_now();
    }
    // While the first sequence computes, the other two wait. One of these is stopped, and one is closed.
    let [mut second, third] = [1, 2].map(|number| sequences.open(number).unwrap());
    second.stop();
    drop(third);
    let first = run_to_idle(first);
    assert!(first.outline().passes[0].sampled.is_some(), "the first sequence's pass was completed");
    let mut second = run_to_idle(second);
    assert_eq!(second.outline().passes[0].sampled, None, "the second sequence was stopped before its turn");
    second.advance().unwrap();
    while !matches!(second.status(), Status::Working(text) if text.contains("layer")) {
        second.poll().unwrap();
    }
    // Closes a sequence that is idle.
    drop(first);
    let second = run_to_idle(second);
    assert!(second.outline().passes[0].sampled.is_some(), "a stopped pass runs when it is requested again");
}

/// Another prompt is a separate run, with the bits of this prompt alone. It shares the memory of the first run.
#[test]
fn another_prompt_is_a_run_with_the_numbers_of_this_prompt_alone() {
    let prompts = [vec![1, 5, 9, 3]];
    let sequences = Sequences::new(Arc::new(model("gqa")), starts(&prompts, 2, DEFAULT_MEMORY));
    let mut first = run_to_idle(sequences.open(0).unwrap());
    let begin = |ids: Vec<u32>| starts(&[ids], 2, DEFAULT_MEMORY).remove(0);
    for (number, ids) in [(1, vec![2, 8]), (2, (3..20).collect())] {
        let mut other =
            run_to_idle(sequences.another(Run(number), vec![begin(ids.clone())], None).unwrap().remove(0));
        let (frames, _) = record(&model("gqa"), &ids);
        assert_eq!(other.outline().run, Run(number));
        for (site, frame) in frames.iter().filter(|(site, _)| site.pass < 2) {
            assert_same(&wait(&mut other, Site { run: Run(number), ..*site }).unwrap(), frame);
        }
        let here = Site { run: Run(number), ..Site::once(0, Stage::Logits) };
        assert!(
            wait_for(&mut first, here, &Region(vec![0..1, 0..1])).is_err(),
            "the first run must refuse a site of another run"
        );
    }
    let (frames, _) = record(&model("gqa"), &prompts[0]);
    for site in [Site::layer(0, 1, Stage::Softmax), Site::once(1, Stage::Logits)] {
        assert_same(&wait(&mut first, site).unwrap(), &frames[&site]);
    }
    assert!(sequences.another(Run(3), vec![begin(vec![1 << 30])], None).is_err(), "no such token");
    let another = |number| sequences.another(Run(number), vec![begin(vec![1])], None);
    let mut open = Vec::new();
    let full = (4..40).find_map(|number| another(number).map(|runs| open.extend(runs)).err());
    assert_eq!(open.len(), 16);
    assert!(full.unwrap().to_string().contains("16 other runs"));
    // A closed run makes room for another one.
    open.pop();
    assert!(another(40).is_ok());
}
