//! Recording never changes the bits, neither in a pass nor in a layer that runs again: the bits are those of an
//! unrecorded pass. The tests run on the CPU and on the CUDA backend.

#[path = "bits/cuda.rs"]
mod cuda;
#[path = "bits/lost.rs"]
mod lost;
#[path = "bits/ragged.rs"]
mod ragged;

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::task::Poll;

use llama_trace_core::config::{ModelConfig, Pairing, Precision};
use llama_trace_core::stop;
use llama_trace_core::tensor::Dtype;
use llama_trace_core::trace::{
    Frame, FrameData, NoProbe, PassDims, Probe, Recorder, Region, Select, Site, Source, Stage, Status, source,
};
use llama_trace_engine::backend::Backend;
use llama_trace_engine::backend::cpu::{Cpu, Kernel};
use llama_trace_engine::generate::{Next, Sampler, Sampling, Session};
use llama_trace_engine::model::{Model, pass};
use llama_trace_formats::checkpoint::random;
use llama_trace_runs::replay::{DEFAULT_MEMORY, Live, Start};

/// The vocabulary size, small for unoptimized loops.
const VOCAB: usize = 96;

/// A small model. Its products, including the head's, have at least `width` inputs.
fn config(width: usize) -> ModelConfig {
    ModelConfig {
        ffn_dim: width + 32,
        vocab: VOCAB,
        context: 512,
        tied: true,
        ..ModelConfig::of_heads(8, 2, width / 8)
    }
}

const PRECISIONS: [Precision; 3] = [Precision::F32, Precision::Bf16, Precision::Q8 { group: 32 }];

/// The kernels of this processor that sum bfloat16 products in an order of their own. The last one has plain loops in
/// place of a bfloat16 unit.
fn kernels() -> Vec<Kernel> {
    let mut kernels = Kernel::available();
    kernels.retain(|kernel| ["amx", "avx512bf16"].contains(&kernel.name()));
    #[cfg(target_arch = "x86_64")]
    kernels.push(Kernel::plain_unit());
    kernels
}

fn models(width: usize) -> impl Iterator<Item = (String, Model)> {
    let checkpoint = random::of_config("random", config(width), Dtype::BF16);
    let all = kernels().into_iter().flat_map(|kernel| PRECISIONS.map(|precision| (kernel, precision)));
    all.map(move |(kernel, precision)| {
        let cpu = Cpu::with_kernel(kernel).with_precision(precision);
        (format!("{width} wide, {}, {precision:?}", kernel.name()), Model::load(&checkpoint, cpu).unwrap())
    })
}

fn sampler() -> Sampler {
    Sampler::new(Sampling::default()).unwrap()
}

/// A prompt of `tokens` tokens.
fn prompt(tokens: usize) -> Vec<u32> {
    (0..tokens).map(|i| (i * 37 % VOCAB) as u32).collect()
}

fn bits(values: impl IntoIterator<Item = f32>) -> Vec<u32> {
    values.into_iter().map(f32::to_bits).collect()
}

/// The bits of the last token's logits.
fn last_bits(session: &Session<'_>) -> Vec<u32> {
    let mut seen = Vec::new();
    let see = |logits: &[f32]| {
        seen = bits(logits.iter().copied());
        Ok(())
    };
    pass::last_logits(&session.model, &session.work, 0, see).unwrap();
    seen
}

/// The bits of the last logits of the prompt's pass and of a decode pass, both with `probe`.
fn logits<P: Probe>(model: &Model, tokens: usize, mut probe: impl FnMut(PassDims) -> P) -> [Vec<u32>; 2] {
    let mut session = Session::new(model, sampler()).unwrap();
    [prompt(tokens), vec![7]].map(|ids| {
        let dims = session.next_pass(ids.len());
        session.read(&ids, &mut probe(dims)).unwrap();
        last_bits(&session)
    })
}

/// The stages that `select` records of the prompt's pass and a decode pass, and the logits of both.
fn recorded(model: &Model, tokens: usize, select: &Select) -> (HashMap<Site, Frame>, [Vec<u32>; 2]) {
    let frames = RefCell::new(HashMap::new());
    let logits = logits(model, tokens, |dims| {
        let sink = |frame: Frame| drop(frames.borrow_mut().insert(frame.site, frame));
        Recorder::new(model.sizes(), dims, select, sink)
    });
    (frames.into_inner(), logits)
}

/// Asserts that all bits are equal, also for NaN and signed zeros.
fn assert_same(a: &Frame, b: &Frame, what: &str) {
    assert_eq!(a.shape(), b.shape(), "{}, {what}", b.site);
    match (&a.data, &b.data) {
        (FrameData::F32(a_data), FrameData::F32(b_data)) => {
            let different = a_data.iter().zip(b_data).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
            assert_eq!(different, 0, "values of {}, {what}", b.site);
        }
        (a_data, b_data) => assert_eq!(a_data, b_data, "{}, {what}", b.site),
    }
}

#[test]
fn recording_never_changes_which_path_computes_a_row() {
    for (width, lengths) in [(512, &[2, 15, 16, 17, 33][..]), (768, &[20, 300])] {
        for (name, model) in models(width) {
            for &tokens in lengths {
                let plain = logits(&model, tokens, |_| NoProbe);
                for stage in [None, Some(Stage::Logits), Some(Stage::Qk)] {
                    // Recording all stages of a long pass is slow.
                    if tokens < 300 || stage == Some(Stage::Logits) {
                        let select = stage.map_or_else(Select::all, |stage| Select::stages(&[stage]));
                        let (_, logits) = recorded(&model, tokens, &select);
                        assert!(logits == plain, "{name}, {tokens} tokens, recorded {stage:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn every_stage_is_the_same_recorded_alone_and_with_all_others() {
    for (name, model) in models(512).filter(|(_, model)| model.backend.precision() == Precision::Bf16) {
        let plain = logits(&model, 20, |_| NoProbe);
        let (all, _) = recorded(&model, 20, &Select::all());
        // A selection by name holds every stage of this name.
        for &stage in Stage::ALL.iter().filter(|stage| stage.first_of_name() == **stage) {
            let (alone, logits) = recorded(&model, 20, &Select::stages(&[stage]));
            assert!(logits == plain, "{name}, {stage} alone");
            for (site, frame) in &alone {
                assert_same(frame, &all[site], &format!("alone, {name}"));
            }
            assert_eq!(alone.len(), all.keys().filter(|site| site.stage == stage).count(), "{name}, {stage}");
        }
    }
}

/// Asserts that a prefill of `tokens` tokens has the bits of `frames` when the viewer runs it again, layer by layer.
fn assert_runs_again(
    model: Model,
    tokens: usize,
    frames: &HashMap<Site, Frame>,
    context: Option<usize>,
    what: &str,
) {
    let (ids, eos, memory) = (prompt(tokens), Vec::new(), DEFAULT_MEMORY);
    let start = Start { ids, draws: 1, sampler: sampler(), tokenizer: None, eos, memory, context };
    let mut live = Live::start(Arc::new(model), start).unwrap();
    while live.status() != Status::Idle {
        live.wait(stop::LOOK);
        live.poll().unwrap();
    }
    for (site, frame) in frames.iter().filter(|(site, _)| site.pass == 0) {
        let again = loop {
            if let Poll::Ready(block) = source::block(&mut live, *site, &Region::whole(frame.shape())) {
                break block.unwrap();
            }
            live.wait(stop::LOOK);
            live.poll().unwrap();
        };
        assert!(again.is_whole());
        assert_same(&again.frame, frame, what);
    }
}

#[test]
fn a_wide_layer_and_a_wide_head_that_run_again_have_the_bits_of_the_pass() {
    for (name, model) in models(512) {
        let (frames, _) = recorded(&model, 20, &Select::all());
        assert_runs_again(model, 20, &frames, None, &format!("run again, {name}"));
    }
}

/// Every stage of the prompt's pass and of two decode passes, and the tokens that are drawn. `pass` runs the next pass.
fn passes<'m>(
    model: &'m Model,
    mut pass: impl FnMut(&mut Session<'m>, &mut dyn Probe) -> u32,
) -> (HashMap<Site, Frame>, Vec<u32>) {
    let mut session = Session::new(model, sampler()).unwrap();
    session.begin(prompt(20), &[], 3).unwrap();
    let (select, frames) = (Select::all(), RefCell::new(HashMap::new()));
    let mut drawn = Vec::new();
    while let Next::Pass(dims) = session.next() {
        let sink = |frame: Frame| drop(frames.borrow_mut().insert(frame.site, frame));
        drawn.push(pass(&mut session, &mut Recorder::new(model.sizes(), dims, &select, sink)));
    }
    (frames.into_inner(), drawn)
}

/// The web page runs a pass step by step.
#[test]
fn a_pass_in_steps_has_the_bits_of_the_whole_pass() {
    for (name, model) in models(512) {
        let (whole, drawn) = passes(&model, |session, probe| session.pass(probe).unwrap());
        let (frames, again) = passes(&model, |session, probe| {
            let mut steps = session.begin_steps(probe).unwrap();
            let mut layers = 0;
            loop {
                match session.step(&mut steps, probe).unwrap() {
                    None => layers += 1,
                    Some(id) => {
                        assert_eq!(layers, model.config.layers, "{name}");
                        return id;
                    }
                }
            }
        });
        assert_eq!((frames.len(), &again, again.len()), (whole.len(), &drawn, 3), "{name}");
        for (site, frame) in &frames {
            assert_same(frame, &whole[site], &format!("in steps, {name}"));
        }
    }
}

#[test]
fn some_rows_of_a_wide_head_have_the_bits_of_all_of_them() {
    for (name, model) in models(512) {
        let (frames, _) = recorded(&model, 20, &Select::all());
        let site = Site::once(0, Stage::Logits);
        let whole = bits(frames[&site].floats().unwrap().iter().copied());
        let mut session = Session::new(&model, sampler()).unwrap();
        session.read(&prompt(20), &mut NoProbe).unwrap();
        for rows in [0..1, 3..20, 7..9, 19..20] {
            let Session { model, work, .. } = &mut session;
            pass::finish_rows(model, work, rows.clone(), &mut NoProbe).unwrap();
            assert!(
                last_bits(&session) == whole[(rows.end - 1) * VOCAB..rows.end * VOCAB],
                "{name}, rows {rows:?}"
            );
        }
    }
}
