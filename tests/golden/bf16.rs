//! Compares every stage of transformers' bfloat16 run with our operation, whose inputs are transformers' stages. So a
//! difference belongs to one stage, and not to earlier stages.

use std::collections::HashMap;
use std::sync::Arc;

use half::bf16;
use llama_trace::backend::cpu::{Cpu, Kernel};
use llama_trace::backend::{Buffer, PassRows, Span, Vector};
use llama_trace::checkpoint;
use llama_trace::config::Precision;
use llama_trace::generate::{Sampler, Sampling, Session};
use llama_trace::model::{Linear, Model, Norm};
use llama_trace::replay::derive::{derive, is_derivable};
use llama_trace::trace::{Frame, FrameData, PassDims, Recorder, Select, Site, Stage};
use ndarray::{ArrayD, IxDyn};
use safetensors::tensor::{Dtype, SafeTensors};

use super::common::fixture;

const MODELS: [&str; 3] = ["mha_bias", "mistral", "qwen3"];

/// The share of a stage's values whose bits must be equal.
pub(crate) const SHARE: f64 = 0.99;

fn model(name: &str, cpu: Cpu) -> Model {
    let checkpoint = checkpoint::open(&fixture(&format!("golden/{name}"))).unwrap();
    Model::load(&checkpoint, cpu.with_precision(Precision::Bf16)).unwrap()
}

/// The stages of transformers, and their passes.
struct Golden {
    frames: HashMap<Site, Arc<Frame>>,
    passes: Vec<PassDims>,
}

fn golden(name: &str, model: &Model) -> Golden {
    let bytes = std::fs::read(fixture(&format!("precision/bf16_{name}.safetensors"))).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let (mut frames, mut passes, mut start) = (HashMap::new(), Vec::new(), 0);
    for pass in 0..3 {
        let tokens = tensors.tensor(&format!("pass_00{pass}/tokens")).unwrap().shape()[0];
        let dims = PassDims { pass, start, tokens, ..PassDims::default() };
        for site in Site::all(&model.sizes(), dims) {
            if site.stage == Stage::Probs || site.stage == Stage::Nucleus {
                continue; // the sampler computes in float32
            }
            let view = tensors.tensor(site.file_name().trim_end_matches(".npy")).unwrap();
            let shape = model.sizes().shape(site.stage.axes(), dims);
            assert_eq!(view.shape(), shape, "{site}");
            let data = match view.dtype() {
                Dtype::BF16 => {
                    FrameData::F32(array(&shape, view.data(), |b| bf16::from_le_bytes(b).to_f32()))
                }
                Dtype::I64 => FrameData::I64(array(&shape, view.data(), i64::from_le_bytes)),
                other => panic!("{site}: {other:?}"),
            };
            frames.insert(site, Arc::new(Frame { site, axes: site.stage.axes(), data }));
        }
        passes.push(dims);
        start += tokens;
    }
    Golden { frames, passes }
}

fn array<T, const N: usize>(shape: &[usize], bytes: &[u8], value: impl Fn([u8; N]) -> T) -> ArrayD<T> {
    let values = bytes.as_chunks().0.iter().map(|bytes| value(*bytes)).collect();
    ArrayD::from_shape_vec(IxDyn(shape), values).unwrap()
}

impl Golden {
    fn values(&self, site: Site) -> Vec<f32> {
        self.frames[&site].floats().unwrap().iter().copied().collect()
    }

    fn ids(&self, pass: usize) -> Vec<u32> {
        let FrameData::I64(ids) = &self.frames[&Site::once(pass, Stage::Tokens)].data else { panic!() };
        ids.iter().map(|&id| id as u32).collect()
    }
}

/// Returns our operation's result from the golden stages before `site`. `None` for stages that are given or copied.
fn ours(model: &Model, golden: &Golden, site: Site, precision: Precision) -> Option<Vec<f32>> {
    use Stage as S;
    let (config, backend, dims) = (&model.config, &model.backend, golden.passes[site.pass]);
    let sizes = model.sizes();
    if is_derivable(site.stage) {
        let mut input = |site| Ok(Arc::clone(&golden.frames[&site]));
        let frame = derive(site, &sizes, (precision, backend.arithmetic()), dims, backend.stop(), &mut input)
            .unwrap();
        return Some(frame.floats().unwrap().iter().copied().collect());
    }
    let count = sizes.shape(site.stage.axes(), dims).iter().product();
    let mut out = backend.buffer(count).unwrap();
    let (span, mut pass) =
        (Span { sequence: 0, start: dims.start, tokens: dims.tokens }, backend.new_pass().unwrap());
    backend.begin_pass(&golden.ids(site.pass), &[span], &[], &mut pass).unwrap();
    let all = &PassRows::All;
    let t = dims.tokens;
    let buffer = |site| Buffer::new(golden.values(site));
    let at = |stage| buffer(site.other(stage));
    let x = |site: Site| match site.layer {
        Some(_) => buffer(site.layer_input()),
        None => buffer(Site::layer(site.pass, config.layers - 1, S::FfnResidual)),
    };
    let table = |stage| buffer(Site::once(site.pass, stage));
    let layer = site.layer.map(|layer| &model.weights.layers[layer]);
    fn weight(norm: &Option<Norm>) -> &Vector {
        &norm.as_ref().unwrap().weight
    }
    let norm = |x: &Buffer, weight: &Vector, out: &mut Buffer| {
        let rows = values(x).len() / weight.downcast::<Vec<f32>>().len();
        backend.rms_norm(x, weight, config.norm_eps, rows, out).unwrap();
    };
    let matmul = |x: Buffer, linear: &Linear, out: &mut Buffer| {
        let mut input = backend.input();
        backend.prepare(&x, values(&x).len() / t, &pass, all, &mut input).unwrap();
        backend.matmul(&input, &linear.matrix, linear.bias.as_ref(), out).unwrap();
    };
    let rope = |x: &Buffer, heads, out: &mut Buffer| {
        let (cos, sin) = (table(S::RopeCos), table(S::RopeSin));
        backend.rope(x, &cos, &sin, config.pairing, heads, config.head_dim, t, out).unwrap();
    };
    match (site.stage, layer) {
        (S::Tokens | S::Sampled | S::CacheK | S::CacheV | S::Probs | S::Nucleus, _) => return None,
        (S::Embedding, _) => {
            backend.embedding(&model.weights.embedding, &pass, &mut out).unwrap();
        }
        (S::RopeCos | S::RopeSin, _) => {
            let mut other = backend.buffer(count).unwrap();
            let (cos, sin) =
                if site.stage == S::RopeCos { (&mut out, &mut other) } else { (&mut other, &mut out) };
            let pairs = config.head_dim / 2;
            backend.rope_table(&model.ropes[0], pairs, &pass, cos, sin).unwrap();
        }
        (S::FinalNorm, _) => norm(&x(site), &model.weights.final_norm.weight, &mut out),
        (S::Logits, _) => {
            let mut input = backend.input();
            backend.prepare(&at(S::FinalNorm), config.dim, &pass, all, &mut input).unwrap();
            backend.matmul(&input, model.weights.head(), None, &mut out).unwrap();
        }
        (S::AttnNorm, Some(layer)) => norm(&x(site), weight(&layer.attn_norm), &mut out),
        (S::FfnNorm, Some(layer)) => norm(&at(S::AttnResidual), weight(&layer.ffn_norm), &mut out),
        (S::XqNorm, Some(layer)) => norm(&at(S::Xq), weight(&layer.q_norm), &mut out),
        (S::XkNorm, Some(layer)) => norm(&at(S::Xk), weight(&layer.k_norm), &mut out),
        (S::Xq, Some(layer)) => matmul(at(S::AttnNorm), &layer.wq, &mut out),
        (S::Xk, Some(layer)) => matmul(at(S::AttnNorm), &layer.wk, &mut out),
        (S::Xv, Some(layer)) => matmul(at(S::AttnNorm), &layer.wv, &mut out),
        (S::AttnOutput, Some(layer)) => matmul(at(S::AttnHeads), &layer.wo, &mut out),
        (S::FfnGate, Some(layer)) => matmul(at(S::FfnNorm), layer.w1.as_ref().unwrap(), &mut out),
        (S::FfnUp, Some(layer)) => matmul(at(S::FfnNorm), &layer.w3, &mut out),
        (S::FfnDown, Some(layer)) => matmul(at(S::FfnHidden), &layer.w2, &mut out),
        (S::XqRope, Some(_)) => {
            rope(&at(if config.qk_norm { S::XqNorm } else { S::Xq }), config.heads, &mut out);
        }
        (S::XkRope, Some(_)) => {
            rope(&at(if config.qk_norm { S::XkNorm } else { S::Xk }), config.kv_heads, &mut out);
        }
        (stage, _) => panic!("{stage} is computed nowhere here"),
    }
    Some(values(&out).clone())
}

/// The values of a buffer of the CPU.
fn values(buffer: &Buffer) -> &Vec<f32> {
    buffer.downcast()
}

/// Compares two stages with rows of `width` values. Returns the share of equal values, and the largest distance in
/// units in the last place of the row's largest value.
pub(crate) fn difference(ours: &[f32], theirs: &[f32], width: usize) -> (f64, f32) {
    assert_eq!(ours.len(), theirs.len());
    let (mut same, mut worst) = (0, 0.0_f32);
    for (ours, theirs) in ours.chunks(width).zip(theirs.chunks(width)) {
        let finite = theirs.iter().filter(|x| x.is_finite()).map(|x| x.abs());
        let unit = ulp(finite.fold(0.0, f32::max));
        for (a, b) in ours.iter().zip(theirs) {
            if a == b {
                same += 1;
            } else {
                worst = worst.max((a - b).abs() / unit);
            }
        }
    }
    (f64::from(same) / ours.len() as f64, worst)
}

/// One unit in the last place of a bfloat16 of this size. A bfloat16 has 8 significant bits.
fn ulp(x: f32) -> f32 {
    let exponent = (x.to_bits() >> 23) as i32 - 127;
    2.0_f32.powi(exponent - 7)
}

#[test]
fn every_stage_is_what_transformers_makes_of_the_same_inputs() {
    for name in MODELS {
        for kernel in Kernel::selectable() {
            let model = model(name, Cpu::with_kernel(kernel));
            let golden = golden(name, &model);
            let mut stages = HashMap::<Stage, (f64, usize)>::new();
            for (&site, frame) in &golden.frames {
                let Some(ours) = ours(&model, &golden, site, Precision::Bf16) else { continue };
                let (share, worst) = difference(&ours, &golden.values(site), *frame.shape().last().unwrap());
                assert!(worst <= 1.0, "{name} {site}, {}: {worst} units away", kernel.name());
                let (same, all) = stages.entry(site.stage).or_default();
                *same += share * ours.len() as f64;
                *all += ours.len();
            }
            for (stage, (same, all)) in stages {
                let share = same / all as f64;
                assert!(share >= SHARE, "{name} {stage}, {}: {share} of {all} the same", kernel.name());
            }
        }
    }
}

/// The place of the rounding matters. The comparison detects a stage that is computed without its rounding, or with one
/// more rounding.
#[test]
fn a_rounding_too_few_or_too_many_is_noticed() {
    let model = model("mha_bias", Cpu::default());
    let golden = golden("mha_bias", &model);
    let share = |site: Site, ours: &[f32]| difference(ours, &golden.values(site), 1).0;
    let mut plain = self::model("mha_bias", Cpu::default());
    plain.backend = Arc::new(Cpu::default());
    for &site in golden.frames.keys() {
        use Stage as S;
        let copied = matches!(site.stage, S::Embedding | S::Mask | S::Keys | S::Values | S::MaskedScores);
        let Some(ours) = ours(&plain, &golden, site, Precision::F32).filter(|_| !copied) else { continue };
        // The bfloat16 model has bfloat16 matrices, whose products are rounded too.
        let product = site.stage.info().weights.iter().any(|weight| weight.axes.len() == 2);
        assert!(product || share(site, &ours) < SHARE, "{site} in float32: {}", share(site, &ours));
    }

    // The bias is added to the rounded product.
    let site = Site::layer(0, 0, Stage::FfnGate);
    let w1 = model.weights.layers[0].w1.as_ref().unwrap();
    let (x, t) = (Buffer::new(golden.values(site.other(Stage::FfnNorm))), golden.passes[0].tokens);
    let bias = w1.bias.as_ref().unwrap().downcast::<Vec<f32>>().repeat(t);
    let (count, bias, mut input) = (bias.len(), Buffer::new(bias), model.backend.input());
    let [mut product, mut out] = [0; 2].map(|_| model.backend.buffer(count).unwrap());
    let (span, mut pass) = (Span { sequence: 0, start: 0, tokens: t }, model.backend.new_pass().unwrap());
    model.backend.begin_pass(&vec![0; t], &[span], &[], &mut pass).unwrap();
    model.backend.prepare(&x, model.config.dim, &pass, &PassRows::All, &mut input).unwrap();
    model.backend.matmul(&input, &w1.matrix, w1.bias.as_ref(), &mut product).unwrap();
    assert!(share(site, values(&product)) >= SHARE);
    model.backend.matmul(&input, &w1.matrix, None, &mut product).unwrap();
    model.backend.add(&product, &bias, count, &mut out).unwrap();
    assert!(share(site, values(&out)) < SHARE, "{}", share(site, values(&out)));
}

#[test]
fn every_recorded_value_is_a_bfloat16() {
    for name in ["gqa", "mha_bias", "tied_llama3", "mistral", "qwen2", "qwen3"] {
        let model = model(name, Cpu::default());
        let mut session = Session::new(&model, Sampler::new(Sampling::default()).unwrap()).unwrap();
        let (select, mut ids, mut seen) = (Select::all(), vec![1, 5, 9, 3, 7], 0);
        for _ in 0..3 {
            let dims = session.next_pass(ids.len());
            let take = |frame: Frame| {
                let Some(values) = frame.floats() else { return };
                if frame.site.stage < Stage::Probs {
                    seen += values.len();
                    assert!(values.iter().all(|x| x.to_bits() & 0xffff == 0), "{name} {}", frame.site);
                }
            };
            ids = vec![session.run(&ids, &mut Recorder::new(model.sizes(), dims, &select, take)).unwrap()];
        }
        assert!(seen > 1000, "{name}: {seen} values");
    }
}
