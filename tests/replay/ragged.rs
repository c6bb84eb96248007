//! Several sequences in a pass. Every stage and logit of each has the same bits as alone, whatever else is in the
//! batch.

use std::collections::HashMap;
use std::ops::Range;

use llama_trace::backend::Span;
use llama_trace::backend::cpu::{Cpu, Kernel};
use llama_trace::config::Precision;
use llama_trace::error::Error;
use llama_trace::model::{Activations, KvCache, Model, pass};
use llama_trace::trace::{Frame, NoProbe, PassDims, Probe, Recorder, Select, Site, Stage, Values};

use super::{MODELS, PRECISIONS, assert_same, model_in};

/// The sequences of each pass, and the number of tokens that it reads of each: first prompts alone, then prompts
/// together with single tokens and longer pieces, then single tokens. Some sequences leave, and their order changes.
const PASSES: [&[(usize, usize)]; 3] = [
    &[(0, 1), (1, 2), (2, 17), (3, 30)],
    &[(4, 20), (0, 1), (2, 1), (1, 17), (3, 2)],
    &[(1, 1), (4, 1), (0, 1)],
];

/// A recorder for each sequence of a pass.
struct Batch<P>(HashMap<usize, P>);

impl<P: Probe> Probe for Batch<P> {
    fn enabled(&self) -> bool {
        true
    }

    fn wants(&self, site: Site) -> bool {
        self.0[&site.sequence].wants(site)
    }

    fn record(&mut self, site: Site, rows: Range<usize>, values: Values<'_>) {
        self.0.get_mut(&site.sequence).unwrap().record(site, rows, values);
    }
}

/// Sequences in progress, and their shared buffers.
struct Runs<'m> {
    model: &'m Model,
    caches: HashMap<usize, KvCache>,
    work: Activations,
}

/// The result of a pass: its frames, and the bits of the last logits of each sequence.
#[derive(Default)]
struct Ran {
    frames: HashMap<Site, Frame>,
    logits: HashMap<usize, Vec<u32>>,
}

impl<'m> Runs<'m> {
    /// Allocates room for the tokens of each sequence in `passes`.
    fn new(model: &'m Model, passes: &[&[(usize, usize)]]) -> Self {
        let mut room = HashMap::<usize, usize>::new();
        for &(sequence, tokens) in passes.iter().copied().flatten() {
            *room.entry(sequence).or_default() += tokens;
        }
        let cache = |tokens| KvCache::with_capacity(&model.config, &*model.backend, tokens).unwrap();
        let caches = room.into_iter().map(|(sequence, tokens)| (sequence, cache(tokens))).collect();
        Self { model, caches, work: Activations::new(model).unwrap() }
    }

    /// Runs pass number `pass` over this many tokens of each sequence.
    fn run(&mut self, pass: usize, reads: &[(usize, usize)], select: Option<&Select>) -> Ran {
        let Self { model, caches, work } = self;
        let start = |sequence| caches[&sequence].len();
        let spans: Vec<Span> = (reads.iter())
            .map(|&(sequence, tokens)| Span { sequence, start: start(sequence), tokens })
            .collect();
        let vocab = model.config.vocab;
        let id = |sequence: usize, position: usize| ((position * 37 + sequence * 11 + 5) % vocab) as u32;
        let ids: Vec<u32> = (spans.iter())
            .flat_map(|span| (span.start..span.keys()).map(|position| id(span.sequence, position)))
            .collect();
        let mut taken: Vec<_> = reads.iter().map(|(sequence, _)| caches.remove(sequence).unwrap()).collect();
        let mut now: Vec<_> = taken.iter_mut().collect();
        let frames = std::cell::RefCell::new(HashMap::new());
        if let Some(select) = select {
            let recorder = |&Span { sequence, start, tokens }: &Span| {
                let dims = PassDims { pass, start, tokens, ..PassDims::default() };
                let sink = |frame: Frame| drop(frames.borrow_mut().insert(frame.site, frame));
                (sequence, Recorder::new(model.sizes(), dims, select, sink))
            };
            let mut probe = Batch(spans.iter().map(recorder).collect());
            pass::forward(model, &mut now, work, pass, &spans, &ids, &mut probe).unwrap();
        } else {
            pass::forward(model, &mut now, work, pass, &spans, &ids, &mut NoProbe).unwrap();
        }
        let mut ran = Ran { frames: frames.into_inner(), ..Ran::default() };
        for (i, (span, cache)) in spans.iter().zip(taken).enumerate() {
            assert_eq!(cache.len(), span.keys());
            caches.insert(span.sequence, cache);
            let see = |logits: &[f32]| {
                ran.logits.insert(span.sequence, logits.iter().map(|x| x.to_bits()).collect());
                Ok(())
            };
            pass::last_logits(model, work, i, see).unwrap();
        }
        ran
    }
}

/// Runs `passes` on all sequences together, and on each sequence alone.
fn compare(name: &str, model: &Model, passes: &[&[(usize, usize)]], select: &Select) {
    let (mut together, mut unwatched) = (Runs::new(model, passes), Runs::new(model, passes));
    let mut alone = Runs::new(model, passes);
    for (pass, reads) in passes.iter().enumerate() {
        let all = together.run(pass, reads, Some(select));
        let what = format!("{name}, pass {pass}");
        assert!(unwatched.run(pass, reads, None).logits == all.logits, "{what}: recorded");
        let mut count = 0;
        for read in *reads {
            let own = alone.run(pass, &[*read], Some(select));
            assert!(own.logits[&read.0] == all.logits[&read.0], "{what}: logits of sequence {}", read.0);
            for (site, frame) in &own.frames {
                assert_eq!(site.sequence, read.0);
                assert_same(&all.frames[site], frame);
            }
            count += own.frames.len();
        }
        assert_eq!(count, all.frames.len(), "{what}");
    }
}

#[test]
fn a_sequence_has_the_same_bits_in_a_batch_and_alone() {
    for name in MODELS {
        for precision in PRECISIONS {
            for kernel in [Kernel::default(), *Kernel::available().last().unwrap()] {
                let model = model_in(name, Cpu::with_kernel(kernel).with_precision(precision));
                compare(&format!("{name} in {precision:?}"), &model, &PASSES, &Select::all());
            }
        }
    }
}

#[test]
fn a_long_prompt_beside_short_ones_has_the_same_bits_as_alone() {
    let built_in = llama_trace::builtin::open().unwrap();
    let passes: [&[(usize, usize)]; 2] = [&[(0, 17), (1, 1)], &[(0, 1), (2, 300), (1, 2)]];
    for precision in [Precision::F32, Precision::Bf16, Precision::Q8 { group: 32 }] {
        let model = Model::load(&built_in, Cpu::default().with_precision(precision)).unwrap();
        let select = Select::stages(&[Stage::AttnHeads, Stage::FfnResidual, Stage::Logits]);
        compare(&format!("built-in in {precision:?}"), &model, &passes, &select);
    }
}

#[test]
fn a_full_cache_is_said_before_anything_is_run() {
    let model = model_in("gqa", Cpu::default());
    let mut runs = Runs::new(&model, &[&[(0, 3)]]);
    runs.run(0, &[(0, 2)], None);
    let cache = runs.caches.get_mut(&0).unwrap();
    let span = Span { sequence: 0, start: 2, tokens: 2 };
    let full = pass::forward(&model, &mut [cache], &mut runs.work, 1, &[span], &[1, 2], &mut NoProbe);
    let Err(Error::Prompt(report)) = full else { panic!("{full:?}") };
    let said = report.to_string();
    assert!(said.contains("the KV cache is full") && said.contains("at most 3 tokens"), "{said}");
    assert!(said.contains("found: 4 tokens"), "{said}");
    runs.run(1, &[(0, 1)], None);
}

#[test]
fn a_context_that_no_memory_holds_is_cut_to_what_is_free_and_one_that_was_asked_for_is_refused() {
    let mut model = model_in("gqa", Cpu::default());
    model.config.context = 1 << 50;
    let cut = KvCache::as_long_as_fits(&model.config, &*model.backend).unwrap();
    assert!((1000..1 << 50).contains(&cut.capacity()), "{}", cut.capacity());
    let Err(error) = KvCache::with_capacity(&model.config, &*model.backend, 1 << 50) else { panic!() };
    let said = error.to_string();
    assert!(said.contains("there is not enough memory"), "{said}");
    assert!(said.contains("the KV cache for 1125899906842624 tokens") && said.contains("bytes"), "{said}");
}
