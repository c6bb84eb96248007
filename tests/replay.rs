//! Compares bit for bit: the viewer's frames (derived, or from a layer that ran again) with the frames of the pass
//! itself, and a recorded run with an unrecorded run.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "replay/batch.rs"]
mod batch;
#[path = "replay/bits.rs"]
mod bits;
#[path = "replay/branches.rs"]
mod branches;
#[path = "replay/captured.rs"]
mod captured;
#[path = "replay/check.rs"]
mod check;
mod common;
#[path = "replay/diff.rs"]
mod diff;
#[path = "replay/diff_kept.rs"]
mod diff_kept;
#[path = "replay/edited.rs"]
mod edited;
#[path = "replay/edited_trace.rs"]
mod edited_trace;
#[path = "replay/explain.rs"]
mod explain;
#[path = "replay/export.rs"]
mod export;
#[path = "replay/families.rs"]
mod families;
#[path = "replay/fault.rs"]
mod fault;
#[path = "replay/filters.rs"]
mod filters;
#[path = "replay/lens.rs"]
mod lens;
#[path = "replay/memory.rs"]
mod memory;
#[path = "replay/other.rs"]
mod other;
#[path = "replay/patch.rs"]
mod patch;
#[path = "replay/port.rs"]
mod port;
#[path = "replay/ragged.rs"]
mod ragged;
#[path = "replay/reached.rs"]
mod reached;
#[path = "replay/recorded.rs"]
mod recorded;
#[path = "replay/sequences.rs"]
mod sequences;
#[path = "replay/stop.rs"]
mod stop;
#[path = "replay/switches.rs"]
mod switches;

use std::collections::HashMap;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use llama_trace::backend::cpu::{Cpu, Kernel};
use llama_trace::checkpoint::{self, random};
use llama_trace::config::Precision;
use llama_trace::generate::{Sampler, Sampling, Session};
use llama_trace::model::{Model, pass};
use llama_trace::replay::derive::{derive, is_derivable};
use llama_trace::replay::{DEFAULT_MEMORY, LEAST_MEMORY, Live, Start};
use llama_trace::stop::{LOOK, Stop};
use llama_trace::tensor::Dtype;
use llama_trace::trace::frame::Number;
use llama_trace::trace::{
    Answer, Axis, Block, End, Frame, FrameData, NoProbe, PassDims, Query, Recorder, Region, Run, Select,
    Site, Source, Stage, Status, Weight, WeightRows, source,
};
use llama_trace_core::testing::sampled;
use ndarray::Dimension;

const PASSES: usize = 3;

const MODELS: [&str; 6] = ["gqa", "mha_bias", "tied_llama3", "mistral", "qwen2", "qwen3"];

/// Groups of 32 as in files, and of 7, which do not divide a row.
const PRECISIONS: [Precision; 4] =
    [Precision::F32, Precision::Bf16, Precision::Q8 { group: 32 }, Precision::Q8 { group: 7 }];

fn model(name: &str) -> Model {
    model_in(name, Cpu::default())
}

fn model_in(name: &str, cpu: Cpu) -> Model {
    let checkpoint = checkpoint::open(&common::fixture(&format!("golden/{name}"))).unwrap();
    Model::load(&checkpoint, cpu).unwrap()
}

/// The model in every precision, and an int8 file.
fn models_in(names: &'static [&'static str]) -> impl Iterator<Item = (String, Box<dyn Fn() -> Model>)> {
    let golden = names.iter().flat_map(|&name| {
        PRECISIONS.map(|precision| -> (String, Box<dyn Fn() -> Model>) {
            let cpu = Cpu::default().with_precision(precision);
            (format!("{name} in {precision:?}"), Box::new(move || model_in(name, cpu.clone())))
        })
    });
    let version_2 = || {
        let path = common::fixture("precision/q8_unshared.bin");
        let cpu = Cpu::default().with_precision(Precision::Q8 { group: 10 });
        Model::load(&checkpoint::open(&path).unwrap(), cpu).unwrap()
    };
    golden.chain([("version 2".to_owned(), Box::new(version_2) as _)])
}

fn sampler() -> Sampler {
    let sampling = Sampling { temperature: 0.8, top_k: 20, top_p: 0.9, seed: 3, ..Sampling::default() };
    Sampler::new(sampling).unwrap()
}

/// All frames of a run, and their passes.
fn record(model: &Model, prompt: &[u32]) -> (HashMap<Site, Frame>, Vec<PassDims>) {
    let mut session = Session::new(model, sampler()).unwrap();
    let (select, mut frames, mut passes) = (Select::all(), HashMap::new(), Vec::new());
    let mut ids = prompt.to_vec();
    for _ in 0..PASSES {
        let dims = session.next_pass(ids.len());
        let mut recorder = Recorder::new(model.sizes(), dims, &select, |frame: Frame| {
            frames.insert(frame.site, frame);
        });
        ids = vec![session.run(&ids, &mut recorder).unwrap()];
        passes.push(dims);
    }
    (frames, passes)
}

/// Asserts that all bits are equal, also for NaN and signed zeros.
fn assert_same(ours: &Frame, recorded: &Frame) {
    assert_eq!(ours.shape(), recorded.shape(), "{}", recorded.site);
    match (&ours.data, &recorded.data) {
        (FrameData::F32(a), FrameData::F32(b)) => {
            assert!(a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits()), "{} differs", recorded.site);
        }
        (a, b) => assert_eq!(a, b, "{}", recorded.site),
    }
}

#[test]
fn derived_frames_equal_recorded_ones() {
    for (name, model) in models_in(&MODELS) {
        compare_derived(&name, &model(), &[1, 5, 9, 3, 7]);
    }
    assert_eq!(Site::layer(1, 0, Stage::AttnNorm).layer_input(), Site::once(1, Stage::Embedding));
}

/// Derives every derivable frame of a run from the recorded ones.
fn compare_derived(name: &str, model: &Model, prompt: &[u32]) {
    let (frames, passes) = record(model, prompt);
    let mut derived = 0;
    for (site, recorded) in &frames {
        if is_derivable(site.stage) {
            let mut input = |site: Site| Ok(Arc::new(frames[&site].clone()));
            let arithmetic = (model.backend.precision(), model.backend.arithmetic());
            let frame =
                derive(*site, &model.sizes(), arithmetic, passes[site.pass], &Stop::default(), &mut input)
                    .unwrap();
            assert_same(&frame, recorded);
            derived += 1;
        }
    }
    let all = passes.iter().flat_map(|dims| Site::all(&model.sizes(), *dims));
    assert_eq!(derived, all.filter(|site| is_derivable(site.stage)).count(), "{name}");
}

#[test]
fn a_live_run_shows_what_the_pass_computed() {
    for (name, model) in models_in(&["gqa", "mistral", "qwen2", "qwen3"]) {
        compare_live(&name, model, &[1, 5, 9, 3, 7]);
    }
}

/// Compares every frame that a live run computes again with the recorded one.
fn compare_live(name: &str, model: impl Fn() -> Model, prompt: &[u32]) {
    let (frames, passes) = record(&model(), prompt);
    let mut live = start(model(), prompt, PASSES, Vec::new());
    assert_eq!(live.outline().passes.iter().map(|pass| pass.dims).collect::<Vec<_>>(), passes, "{name}");
    // In reverse order, so that no layer is already there because of the previous request.
    let mut sites: Vec<_> = frames.keys().copied().collect();
    sites.sort_unstable();
    for site in sites.into_iter().rev() {
        assert_same(&wait(&mut live, site).unwrap(), &frames[&site]);
    }
}

/// Rows that are long enough for the bfloat16 units of the CPU, if it has any. The units sum in another order than the
/// kernels for shorter rows, but in the same order whether recorded or not.
#[test]
fn wide_products_are_the_same_recorded_derived_and_live_on_every_kernel() {
    const WIDE: [Precision; 2] = [Precision::F32, Precision::Bf16];
    let checkpoint = random::checkpoint("stories-15m", Dtype::BF16).unwrap();
    let prompt: Vec<u32> = (1..=20).collect();
    let pools = [1, 2].map(|threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap());
    let cases = Kernel::selectable().into_iter().flat_map(|kernel| WIDE.map(|precision| (kernel, precision)));
    for (kernel, precision) in sampled("kernels of wide products", cases, 2) {
        let name = format!("{} in {precision:?}", kernel.name());
        let cpu = Cpu::with_kernel(kernel).with_precision(precision);
        let model = || Model::load(&checkpoint, cpu.clone()).unwrap();
        let [one, two] = pools.each_ref().map(|pool| pool.install(|| logits(&model(), false)));
        assert!(one == logits(&model(), true) && one == two, "{name}");
        compare_derived(&name, &model(), &prompt);
        compare_live(&name, model, &prompt);
        if precision == Precision::F32 {
            compare_prefill(&model(), &prompt);
        }
    }
}

#[test]
fn a_mask_is_there_exactly_where_some_key_is_hidden() {
    for name in MODELS {
        let model = model(name);
        let (frames, passes) = record(&model, &[1, 5, 9]);
        for dims in passes {
            let hides = dims.tokens > 1 || model.config.window.is_some_and(|window| dims.keys() > window);
            let mask = frames.get(&Site::once(dims.pass, Stage::Mask));
            assert_eq!(mask.is_some(), hides, "{name}, pass {}", dims.pass);
            let hidden = |frame: &Frame| frame.floats().unwrap().iter().any(|x| *x == f32::NEG_INFINITY);
            assert!(mask.is_none_or(hidden), "{name}, pass {}", dims.pass);
        }
    }
}

/// A live run after its first `draws` passes, or after fewer if it ends earlier.
fn start(model: Model, prompt: &[u32], draws: usize, eos: Vec<u32>) -> Live {
    start_within(DEFAULT_MEMORY, model, prompt, draws, eos)
}

fn start_within(memory: usize, model: Model, prompt: &[u32], draws: usize, eos: Vec<u32>) -> Live {
    let ids = prompt.to_vec();
    let start = Start { ids, draws, sampler: sampler(), tokenizer: None, eos, memory, context: None };
    run_to_idle(Live::start(Arc::new(model), start).unwrap())
}

/// Waits until the run is idle.
fn run_to_idle(mut live: Live) -> Live {
    while live.status() != Status::Idle {
        live.wait(LOOK);
        live.poll().unwrap();
    }
    live
}

/// Waits for the frame of `site`, which is small enough to arrive whole.
fn wait(live: &mut Live, site: Site) -> llama_trace::error::Result<Arc<Frame>> {
    let dims = live
        .outline()
        .passes
        .get(site.pass)
        .map_or(PassDims { pass: 0, start: 0, tokens: 1, ..PassDims::default() }, |pass| pass.dims);
    let shape = live.outline().card.sizes().shape(site.stage.axes(), dims);
    let block = wait_for(live, site, &Region::whole(&shape))?;
    assert!(block.is_whole(), "{site}");
    Ok(block.frame)
}

/// Waits for the block of `site` that includes `region`.
fn wait_for(live: &mut Live, site: Site, region: &Region) -> llama_trace::error::Result<Block> {
    match ask(live, &Query::Block(site, region.clone()))? {
        Answer::Block(block) => Ok(block),
        other => panic!("{site}: {other:?}"),
    }
}

/// Waits for the answer to `query`.
fn ask(source: &mut dyn Source, query: &Query) -> llama_trace::error::Result<Answer> {
    loop {
        if let Poll::Ready(answer) = source.ask(query) {
            return answer;
        }
        source.wait(LOOK);
        source.poll()?;
    }
}

/// Rows of a weight, as a viewer receives them.
fn rows_of(live: &mut Live, layer: Option<usize>, name: &str, rows: std::ops::Range<usize>) -> Vec<f32> {
    let weight = Weight::from_name(name).unwrap();
    let query = Query::Rows(WeightRows { run: Run::ITSELF, layer, weight, rows });
    match ask(live, &query) {
        Ok(Answer::Rows(values)) => values,
        other => panic!("{name}: {other:?}"),
    }
}

/// A result wakes the waiting thread. If the wait did not end at a result, this test would take hours.
#[test]
fn a_wait_ends_when_something_was_computed() {
    let hours = Duration::from_secs(4 * 3600);
    let mut live = start(model("gqa"), &[1, 5, 9], 1, Vec::new());
    let site = Site::layer(0, 1, Stage::Softmax);
    let region = Region(vec![0..1, 0..1, 0..1]);
    while source::block(&mut live, site, &region).is_pending() {
        live.wait(hours);
        assert!(live.poll().unwrap(), "the new result is reported");
    }
    assert!(!live.poll().unwrap(), "and is reported only once");
}

#[test]
fn rows_of_weights_are_those_that_the_stages_are_made_of() {
    let prompt = [1, 5, 9, 3, 7];
    let checkpoint = || model("mha_bias");
    let (frames, _) = record(&checkpoint(), &prompt);
    let mut live = start(checkpoint(), &prompt, 1, Vec::new());
    let frame = |layer: Option<usize>, stage| &frames[&Site { layer, ..Site::once(0, stage) }];
    let values = |layer, stage| frame(layer, stage).floats().unwrap().iter().copied().collect::<Vec<f32>>();
    let row = rows_of(&mut live, None, "tok_embeddings", 9..10);
    assert_eq!(values(None, Stage::Embedding)[2 * row.len()..][..row.len()], row);
    let products = [
        (Some(1), Stage::AttnNorm, "wq", Some("bq"), Stage::Xq),
        (Some(0), Stage::AttnNorm, "wv", Some("bv"), Stage::Xv),
        (Some(1), Stage::AttnHeads, "wo", Some("bo"), Stage::AttnOutput),
        (Some(1), Stage::FfnNorm, "w1", Some("b1"), Stage::FfnGate),
        (Some(0), Stage::FfnHidden, "w2", Some("b2"), Stage::FfnDown),
        (Some(0), Stage::FfnNorm, "w3", Some("b3"), Stage::FfnUp),
        (None, Stage::FinalNorm, "output", None, Stage::Logits),
    ];
    for (layer, input, weight, bias, output) in products {
        let (x, y) = (values(layer, input), values(layer, output));
        let (inputs, outputs) = (x.len() / prompt.len(), y.len() / prompt.len());
        let bias = bias.map(|bias| rows_of(&mut live, layer, bias, 0..1));
        for o in [0, 1, outputs - 1] {
            let w = rows_of(&mut live, layer, weight, o..o + 1);
            assert_eq!(w.len(), inputs, "{weight}");
            for t in 0..prompt.len() {
                let x = &x[t * inputs..][..inputs];
                let terms = x.iter().zip(&w).map(|(x, w)| f64::from(*x) * f64::from(*w));
                let size: f64 = terms.clone().map(f64::abs).sum();
                let sum = terms.sum::<f64>() + bias.as_ref().map_or(0.0, |bias| f64::from(bias[o]));
                let value = f64::from(y[t * outputs + o]);
                assert!(
                    (sum - value).abs() <= 1e-5 * size.max(1.0),
                    "{weight}[o={o}], token {t}: {sum}, {value}"
                );
            }
        }
    }
    let norm = rows_of(&mut live, Some(0), "attention_norm", 0..1);
    assert_eq!(norm.len(), rows_of(&mut live, None, "norm", 0..1).len());
    for (layer, name, rows, reason) in [
        (Some(0), "q_norm", 0..1, "this model has no weight L0/q_norm"),
        (Some(0), "b1", 1..2, "L0/b1 has no row 1"),
        (Some(99), "wq", 0..1, "this model has no weight L99/wq"),
        (None, "wq", 0..1, "this model has no weight wq"),
        (None, "output", 0..1 << 20, "output has no row 1048575"),
    ] {
        let weight = Weight::from_name(name).unwrap();
        let wrong =
            model("mha_bias").rows(&WeightRows { run: Run::ITSELF, layer, weight, rows }).unwrap_err();
        assert!(wrong.to_string().contains(reason), "{wrong}");
    }
}

#[test]
fn a_context_that_was_reserved_is_used_up_and_then_full() {
    let start = |ids: &[u32], context| Start {
        ids: ids.to_vec(),
        draws: 1,
        sampler: sampler(),
        tokenizer: None,
        eos: Vec::new(),
        memory: DEFAULT_MEMORY,
        context: Some(context),
    };
    let mut live = run_to_idle(Live::start(Arc::new(model("gqa")), start(&[1, 5, 9], 5)).unwrap());
    assert_eq!(live.capacity(), 5);
    for passes in 2..=3 {
        live.advance().unwrap();
        live = run_to_idle(live);
        assert_eq!(live.outline().passes.len(), passes);
    }
    let full = live.advance().unwrap_err();
    assert!(full.to_string().contains("the reserved context is full"), "{full}");
    assert_eq!(live.status(), Status::Idle, "nothing was begun");
    let long = Live::start(Arc::new(model("gqa")), start(&[1; 6], 5)).err().unwrap();
    assert!(long.to_string().contains("the KV cache is full"), "{long}");
}

#[test]
fn a_site_that_is_not_there_is_an_error() {
    let mut live = start(model("gqa"), &[1, 2], 2, Vec::new());
    for site in [
        Site::once(7, Stage::Logits),
        Site::layer(0, 99, Stage::Xq),
        Site::once(1, Stage::Mask),
        Site::layer(1, 0, Stage::MaskedScores),
        Site::once(0, Stage::Xq),
        Site::layer(0, 0, Stage::Logits),
    ] {
        assert!(wait(&mut live, site).is_err(), "{site}");
    }
}

#[test]
fn a_live_run_ends_at_the_end_of_the_text_and_of_the_context() {
    let first = start(model("gqa"), &[1, 5], 1, Vec::new());
    let drawn = first.outline().passes[0].sampled.as_ref().unwrap().id;
    let mut ended = start(model("gqa"), &[1, 5], 5, vec![drawn]);
    assert_eq!(ended.outline().passes.len(), 1);
    assert!(ended.advance().unwrap_err().to_string().contains("the text has ended"));
    assert_eq!(ended.outline().ended, Some(End::Text));

    let mut small = model("gqa");
    small.config.context = 4;
    let mut full = start(small, &[1, 5], 9, Vec::new());
    assert_eq!(full.outline().passes.len(), 3, "2 + 1 + 1 tokens fit");
    assert!(full.advance().unwrap_err().to_string().contains("the model's context is full"));
    assert_eq!((full.outline().ended, first.outline().ended), (Some(End::Full), None));
    assert!(wait(&mut full, Site::layer(2, 1, Stage::Softmax)).is_ok(), "what was run can still be seen");
}

/// The bits of the logits of each pass. The run may be recorded.
fn logits(model: &Model, recorded: bool) -> Vec<Vec<u32>> {
    let (mut session, select, mut passes) =
        (Session::new(model, sampler()).unwrap(), Select::all(), Vec::new());
    // Long enough for the products of many rows, which pack their rows.
    let mut ids: Vec<u32> = (1..=20).collect();
    for _ in 0..PASSES {
        let dims = session.next_pass(ids.len());
        let drawn = if recorded {
            session.run(&ids, &mut Recorder::new(model.sizes(), dims, &select, |_| {})).unwrap()
        } else {
            session.run(&ids, &mut NoProbe).unwrap()
        };
        let mut bits = vec![drawn];
        let see = |logits: &[f32]| {
            bits.extend(logits.iter().map(|x| x.to_bits()));
            Ok(())
        };
        pass::last_logits(model, &session.work, 0, see).unwrap();
        passes.push(bits);
        ids = vec![drawn];
    }
    passes
}

/// Runs the models in thread pools of several sizes. The products of the built-in model are large enough to be split
/// among threads.
#[test]
fn recording_and_threads_and_kernels_do_not_change_the_logits() {
    let pools: Vec<_> = (1..=3)
        .map(|threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap())
        .collect();
    let paths = MODELS.map(|name| Some(common::fixture(&format!("golden/{name}"))));
    let paths = paths.into_iter().chain([None]);
    let cases = paths.flat_map(|path| PRECISIONS.map(|precision| (path.clone(), precision)));
    for (path, precision) in sampled("models on every kernel and number of threads", cases, 4) {
        let checkpoint = path.as_deref().map_or_else(llama_trace::builtin::open, checkpoint::open).unwrap();
        let mut first = None;
        for kernel in Kernel::selectable() {
            if kernel == Kernel::wasm() {
                first = None;
            }
            let cpu = Cpu::with_kernel(kernel).with_precision(precision);
            let model = Model::load(&checkpoint, cpu).unwrap();
            for pool in &pools {
                for recorded in [false, true] {
                    let logits = pool.install(|| logits(&model, recorded));
                    let what = format!(
                        "{} in {precision:?}, {} on {} threads, recorded: {recorded}",
                        checkpoint.name,
                        kernel.name(),
                        pool.current_num_threads()
                    );
                    assert!(first.get_or_insert_with(|| logits.clone()) == &logits, "{what}");
                }
            }
        }
    }
}

#[test]
fn a_prefill_is_the_same_as_its_tokens_one_by_one() {
    for (_, model) in models_in(&MODELS) {
        compare_prefill(&model(), &(1..=20).collect::<Vec<_>>());
    }
    for precision in PRECISIONS {
        let cpu = Cpu::default().with_precision(precision);
        let built_in = Model::load(&llama_trace::builtin::open().unwrap(), cpu).unwrap();
        compare_prefill(&built_in, &[300, 301, 302, 303, 300, 301, 302, 303, 40]);
    }
}

#[test]
fn a_prefill_of_stories260k_is_the_same_as_its_tokens_one_by_one() {
    let (Some(path), Some(ids)) =
        (common::data("stories260K/stories260K.bin"), common::data("stories260K/greedy_ids_n200.json"))
    else {
        return;
    };
    let ids: Vec<u32> = serde_json::from_slice(&std::fs::read(ids).unwrap()).unwrap();
    let model = Model::load(&checkpoint::open(&path).unwrap(), Cpu::default()).unwrap();
    compare_prefill(&model, &ids[..40]);
}

/// Compares row t of every stage of a prefill with the pass that reads token t alone.
fn compare_prefill(model: &Model, prompt: &[u32]) {
    let select = Select::all();
    let frames_of = |session: &mut Session<'_>, ids: &[u32]| {
        let mut frames = HashMap::new();
        let dims = session.next_pass(ids.len());
        let mut recorder = Recorder::new(model.sizes(), dims, &select, |frame: Frame| {
            frames.insert((frame.site.layer, frame.site.stage), frame);
        });
        session.run(ids, &mut recorder).unwrap();
        frames
    };
    let whole = frames_of(&mut Session::new(model, sampler()).unwrap(), prompt);
    let mut session = Session::new(model, sampler()).unwrap();
    for (t, id) in prompt.iter().enumerate() {
        for (at, single) in frames_of(&mut session, &[*id]) {
            if at.1 >= Stage::Probs {
                continue; // the sampler's stages belong to a pass, not to a token
            }
            compare_row(&single, &whole[&at], t, model.backend.precision());
        }
    }
}

/// Compares a single-token pass at position `t` with row t of the prefill, over keys ≤ t. In bfloat16 or int8, rounding
/// would turn a float32 error into a whole step, so there all bits must be equal.
fn compare_row(single: &Frame, whole: &Frame, t: usize, precision: Precision) {
    let (mut error, mut norm) = (0.0_f64, 0.0_f64);
    for index in ndarray::indices(single.shape()) {
        let mut index: Vec<usize> = index.slice().to_vec();
        let value = single.get(&index).unwrap();
        for (axis, index) in single.axes.iter().zip(&mut index) {
            if *axis == Axis::Token {
                *index = t;
            }
        }
        let other = whole.get(&index).unwrap_or_else(|| panic!("{} has no {index:?}", whole.site));
        match (value, other) {
            _ if value == other => {} // −inf on both sides has no difference
            (Number::F32(a), Number::F32(b)) if precision == Precision::F32 => {
                error += f64::from(a - b).powi(2);
                norm += f64::from(b).powi(2);
            }
            _ => panic!("{} in {precision:?}, row {t}: {value:?}, not {other:?}", whole.site),
        }
    }
    assert!(error.sqrt() <= 1e-6 * norm.sqrt().max(1e-30), "{} row {t}: {error:e} of {norm:e}", whole.site);
}
