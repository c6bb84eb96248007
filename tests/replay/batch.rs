//! Texts in one batch. Each has the same values of every stage and the same sampled tokens as alone, whatever other
//! texts are in the batch or have left it.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use llama_trace::backend::cpu::{Cpu, Kernel};
use llama_trace::config::{CacheDtype, ModelConfig, Precision};
use llama_trace::error::Error;
use llama_trace::generate::{Batch, Drawn, Ended, Next, Prompts, Sampler, Sampling, Session};
use llama_trace::model::{Model, buffer_bytes, kv_cache};
use llama_trace::trace::{NoProbe, Probe, Site, Values};
use llama_trace_core::testing::sampled;
use rayon::ThreadPoolBuilder;

use super::{MODELS, model_in};

/// Lengths of the prompts.
const LENGTHS: [usize; 4] = [1, 2, 17, 300];
const DRAWS: usize = 4;
const PRECISIONS: [Precision; 3] = [Precision::F32, Precision::Bf16, Precision::Q8 { group: 32 }];

/// Checksums of the recorded values of each site. The key of a checksum is the first of the rows that were recorded
/// together.
#[derive(Default)]
struct Bits(HashMap<Site, BTreeMap<usize, u64>>);

impl Probe for Bits {
    fn enabled(&self) -> bool {
        true
    }

    fn wants(&self, _: Site) -> bool {
        true
    }

    fn record(&mut self, site: Site, rows: Range<usize>, values: Values<'_>) {
        let mut hasher = DefaultHasher::new();
        match values {
            Values::F32(values) => values.iter().for_each(|value| value.to_bits().hash(&mut hasher)),
            Values::I64(values) => values.hash(&mut hasher),
            Values::I8(values) => values.hash(&mut hasher),
        }
        rows.end.hash(&mut hasher);
        let twice = self.0.entry(site).or_default().insert(rows.start, hasher.finish());
        assert_eq!(twice, None, "{site}: each row comes once");
    }
}

/// A text: its sampled tokens, the reason for its end, and the bits of all its stages, pass by pass.
#[derive(Default)]
struct Text {
    drawn: Vec<u32>,
    ended: Option<Ended>,
    passes: Vec<Bits>,
}

fn sampler() -> Sampler {
    Sampler::new(Sampling { temperature: 0.9, top_k: 40, top_p: 0.95, seed: 11, ..Sampling::default() })
        .unwrap()
}

fn prompts(config: &ModelConfig, lengths: &[usize]) -> Prompts {
    let id = |sequence: usize, at: usize| ((at * 37 + sequence * 11 + 5) % config.vocab) as u32;
    let ids = lengths.iter().enumerate().map(|(i, &length)| (0..length).map(|at| id(i, at)).collect());
    // Some of the sampled tokens end a text, so the texts leave at different times.
    let ends = (0..config.vocab as u32).filter(|id| id % 4 == 3).collect();
    Prompts { ids: ids.collect(), ends, draws: DRAWS, context: None, chunk: None, memory: None }
}

fn alone(model: &Model, prompts: &Prompts, number: usize) -> Text {
    let mut session = Session::with_capacity(model, sampler().with_stream(number as u64), 512).unwrap();
    session.begin(prompts.ids[number].clone(), &prompts.ends, prompts.draws).unwrap();
    let mut text = Text::default();
    while let Next::Pass(_) = session.next() {
        let mut bits = Bits::default();
        text.drawn.push(session.pass(&mut bits).unwrap());
        text.passes.push(bits);
    }
    let Next::Ended(ended) = session.next() else { unreachable!() };
    text.ended = Some(ended);
    text
}

/// Runs all texts. Returns each text, and the number of texts in each pass.
fn together(model: &Model, prompts: &Prompts) -> (Vec<Text>, Vec<usize>) {
    let mut batch = Batch::new(model, sampler(), prompts.clone(), |_| None).unwrap();
    let mut texts: Vec<_> = prompts.ids.iter().map(|_| Text::default()).collect();
    let mut running = Vec::new();
    while batch.ready().unwrap() {
        let reads: Vec<_> = batch.reads().map(|read| (read.sequence, read.dims)).collect();
        assert_eq!(reads.len(), batch.running());
        let mut bits = Bits::default();
        let drawn = batch.pass(&mut bits).unwrap();
        let mut each: HashMap<usize, Bits> = HashMap::new();
        for (site, rows) in bits.0 {
            assert_eq!(site.pass, running.len(), "passes are numbered for the whole batch");
            each.entry(site.sequence).or_default().0.insert(site, rows);
        }
        for ((sequence, dims), Drawn { sequence: drew, id, ended, given }) in reads.into_iter().zip(drawn) {
            assert!(!given, "no part of a prompt is left");
            assert_eq!((drew, dims.pass), (sequence, running.len()));
            texts[sequence].drawn.push(id);
            texts[sequence].ended = ended;
            texts[sequence].passes.push(each.remove(&sequence).unwrap());
        }
        running.push(batch.running());
    }
    (texts, running)
}

fn unwatched(model: &Model, prompts: &Prompts) -> Vec<Vec<u32>> {
    let mut batch = Batch::new(model, sampler(), prompts.clone(), |_| None).unwrap();
    let mut drawn = vec![Vec::new(); prompts.ids.len()];
    while batch.ready().unwrap() {
        for token in batch.pass(&mut NoProbe).unwrap() {
            drawn[token.sequence].push(token.id);
        }
    }
    drawn
}

fn assert_same(batch: &Text, alone: &Text, what: &str) {
    assert_eq!((&batch.drawn, batch.ended), (&alone.drawn, alone.ended), "{what}");
    assert_eq!(batch.passes.len(), alone.passes.len(), "{what}");
    for (theirs, own) in batch.passes.iter().zip(&alone.passes) {
        assert_eq!(theirs.0.len(), own.0.len(), "{what}");
        for (site, rows) in &theirs.0 {
            let pass = own.0.keys().next().unwrap().pass;
            assert!(own.0[&Site { sequence: 0, pass, ..*site }] == *rows, "{what}: {site}");
        }
    }
}

/// Runs the texts in a batch and each one alone, on 1 to 3 threads.
fn compare(name: &str, model: &Model, threads: Range<usize>) {
    let prompts = prompts(&model.config, &LENGTHS);
    let on = |threads| ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let own: Vec<_> =
        on(1).install(|| (0..prompts.ids.len()).map(|number| alone(model, &prompts, number)).collect());
    for threads in threads {
        let (texts, _) = on(threads).install(|| together(model, &prompts));
        for (number, (text, own)) in texts.iter().zip(&own).enumerate() {
            assert_same(text, own, &format!("{name}, s{number}, {threads} threads"));
        }
    }
    let drawn: Vec<_> = own.into_iter().map(|text| text.drawn).collect();
    assert_eq!(unwatched(model, &prompts), drawn, "{name}: without a probe");
}

fn longer(name: &str, cpu: Cpu) -> Model {
    let mut model = model_in(name, cpu);
    model.config.context = 512;
    model
}

#[test]
fn ragged_prompts_and_what_follows_have_the_bits_that_each_has_alone() {
    let cases = MODELS.into_iter().flat_map(|name| PRECISIONS.map(|precision| (name, precision)));
    for (name, precision) in sampled("models of a batch", cases, 6) {
        let model = longer(name, Cpu::default().with_precision(precision));
        compare(&format!("{name} in {precision:?}"), &model, 1..4);
    }
}

#[test]
fn so_have_they_with_every_kernel_and_a_window() {
    let kernels = |precision| Kernel::selectable().into_iter().map(move |kernel| (kernel, precision));
    let cases = PRECISIONS.into_iter().flat_map(kernels);
    for (kernel, precision) in sampled("kernels of a batch with a window", cases, 6) {
        let model = longer("mistral", Cpu::with_kernel(kernel).with_precision(precision));
        compare(&format!("{} in {precision:?}", kernel.name()), &model, 1..4);
    }
}

#[test]
fn so_have_they_in_the_built_in_model() {
    let built_in = llama_trace::builtin::open().unwrap();
    let cases =
        Kernel::selectable().into_iter().flat_map(|kernel| PRECISIONS.map(|precision| (kernel, precision)));
    for (kernel, precision) in sampled("kernels of a batch in the built-in model", cases, 4) {
        let cpu = Cpu::with_kernel(kernel).with_precision(precision);
        let model = Model::load(&built_in, cpu.with_cache_dtype(CacheDtype::F16)).unwrap();
        compare(&format!("built-in, {} in {precision:?}", kernel.name()), &model, 2..3);
    }
}

/// Bytes that a sequence of this many tokens takes alone.
fn bytes(model: &Model, tokens: usize, prompt: usize) -> usize {
    let cache = kv_cache::bytes(&model.config, model.backend.cache_dtype(), tokens);
    cache + buffer_bytes(&model.config, prompt, 1)
}

#[test]
fn where_memory_is_short_those_that_wait_begin_as_others_leave() {
    let model = longer("gqa", Cpu::default());
    let mut prompts = prompts(&model.config, &[9, 8, 1, 2, 30, 3, 3, 5]);
    let (all, running) = together(&model, &prompts);
    assert_eq!(running[0], all.iter().filter(|text| text.drawn.len() > 1).count(), "all began at once");
    assert!(running.iter().any(|&count| (1..running[0]).contains(&count)), "one leaves before another");
    // Each text fits alone, and few fit together.
    prompts.memory = Some(bytes(&model, 30 + DRAWS, 30));
    let (few, running) = together(&model, &prompts);
    assert!(running.iter().all(|&count| count < 5) && running.iter().any(|&count| count > 1), "{running:?}");
    assert!(few.iter().map(|text| text.drawn.len()).max().unwrap() < running.len(), "some began later");
    for (number, (few, all)) in few.iter().zip(&all).enumerate() {
        let alone = alone(&model, &prompts, number);
        assert_same(all, &alone, &format!("s{number}, all at once"));
        assert_same(few, &alone, &format!("s{number}, a few at once"));
    }
}

#[test]
fn what_cannot_be_run_is_said_before_anything_is() {
    let model = longer("gqa", Cpu::default());
    let refused = |change: &dyn Fn(&mut Prompts)| {
        let mut prompts = prompts(&model.config, &[3, 30, 3]);
        change(&mut prompts);
        let place = |number: usize| Some(format!("prompt s{number}"));
        match Batch::new(&model, sampler(), prompts, place) {
            Err(Error::Prompt(report)) => report.to_string(),
            _ => panic!("the batch was not refused"),
        }
    };
    let memory = bytes(&model, 30 + DRAWS, 30);
    let said = refused(&|prompts| prompts.memory = Some(memory - 1));
    assert!(said.contains("there is not enough memory") && said.contains("prompt s1"), "{said}");
    assert!(said.contains(&format!("room for {memory} bytes")), "{said}");
    let said = refused(&|prompts| prompts.ids[2] = vec![1; 513]);
    assert!(said.contains("longer than the model's context") && said.contains("prompt s2"), "{said}");
    let said = refused(&|prompts| prompts.ids[0][1] = 1 << 20);
    assert!(said.contains("outside the model's vocabulary") && said.contains("prompt s0"), "{said}");
    let said = refused(&|prompts| prompts.context = Some(29));
    assert!(said.contains("the KV cache is full") && said.contains("prompt s1"), "{said}");
    let said = refused(&|prompts| prompts.ids[1].clear());
    assert!(said.contains("there are no tokens to run") && said.contains("prompt s1"), "{said}");
}

#[test]
fn a_batch_that_was_stopped_goes_on_where_it_was() {
    let model = longer("gqa", Cpu::default());
    let prompts = prompts(&model.config, &[9, 4, 20]);
    let mut batch = Batch::new(&model, sampler(), prompts.clone(), |_| None).unwrap();
    let mut drawn = vec![Vec::new(); 3];
    for pass in 0.. {
        if !batch.ready().unwrap() {
            break;
        }
        if pass < 2 {
            model.backend.stop().ask();
            assert!(matches!(batch.pass(&mut NoProbe), Err(Error::Interrupted(_))));
            model.backend.stop().clear();
            assert!(batch.ready().unwrap());
        }
        for token in batch.pass(&mut NoProbe).unwrap() {
            drawn[token.sequence].push(token.id);
        }
    }
    assert_eq!(drawn, unwatched(&model, &prompts));
}
