//! Explanations of numbers: the value computed from the operands, against the recorded value.

use llama_trace::backend::cpu::{Cpu, Kernel};
use llama_trace::checkpoint;
use llama_trace::config::Precision;
use llama_trace::model::Model;
use llama_trace::trace::explanation::{Explanation, ExplanationAt, From, Together};
use llama_trace::trace::frame::Number;
use llama_trace::trace::{Answer, Query, Site, Stage};
use rand::{RngExt, SeedableRng};

use super::common::fixture;
use super::{Live, MODELS, PASSES, ask, model_in, models_in, record, start};

const PROMPT: [u32; 5] = [1, 5, 6, 3, 7];

fn explain(live: &mut Live, site: Site, at: usize, terms: usize) -> llama_trace::error::Result<Explanation> {
    let answer = ask(live, &Query::Explanation(ExplanationAt { site, at, terms }))?;
    let Answer::Explanation(explanation) = answer else { panic!("{site}") };
    Ok(*explanation)
}

/// Number of random cells that are explained in each stage of each pass.
const CELLS: usize = 2;

#[test]
fn every_number_is_what_its_operands_give_again_to_the_bit() {
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(7);
    let blocks = || -> Box<dyn Fn() -> Model> {
        let path = fixture("formats/gguf/rare_blocks.gguf");
        let cpu = Cpu::default().with_precision(Precision::Q8 { group: 32 });
        Box::new(move || Model::load(&checkpoint::open(&path).unwrap(), cpu.clone()).unwrap())
    };
    for (name, model) in models_in(&MODELS).chain([("blocks of a GGUF file".to_owned(), blocks())]) {
        let (frames, passes) = record(&model(), &PROMPT);
        let mut live = start(model(), &PROMPT, passes.len(), Vec::new());
        let bf16 = model().backend.precision() == Precision::Bf16;
        let mut sites: Vec<_> = frames.keys().copied().collect();
        sites.sort_by_key(|site| (site.pass, site.layer, site.stage));
        for site in sites {
            let frame = &frames[&site];
            let count: usize = frame.shape().iter().product();
            for _ in 0..CELLS {
                let at = random.random_range(0..count);
                let found = explain(&mut live, site, at, 0).unwrap();
                let recorded = match flat(frame, at) {
                    Number::F32(value) => f64::from(value),
                    Number::I64(value) => value as f64,
                };
                assert_eq!(found.value.to_bits(), recorded.to_bits(), "{name} {}", found.address);
                let Some(result) = found.result else {
                    assert_eq!(site.stage, Stage::Tokens, "{name}: {} has no result", found.address);
                    continue;
                };
                // If a bfloat16 unit sums products in another order, `result` and `recorded` may differ by one step of
                // bfloat16.
                let bound = if bf16 { 1.0 / 128.0 } else { 0.0 };
                let same = result == recorded || found.difference().abs() <= bound * recorded.abs();
                assert!(same, "{name} {}: {result} for {recorded}\n{found:?}", found.address);
                if found.is_sum {
                    let sum: f64 = found.terms.iter().map(|term| term.product).sum();
                    let sizes: f64 = found.terms.iter().map(|term| term.product.abs()).sum();
                    assert!((sum - result).abs() <= 1e-5 * sizes.max(1e-30), "{name} {}", found.address);
                    for term in &found.terms {
                        let made = term.operands.iter().map(|operand| operand.value).product::<f64>();
                        // In these precisions, products are rounded too.
                        let bound = if bf16 { 1.0 / 128.0 } else { 1e-6 };
                        let same = (made - term.product).abs() <= bound * term.product.abs();
                        assert!(same, "{name} {}: {made} for {term:?}", found.address);
                    }
                }
            }
        }
    }
}

fn flat(frame: &llama_trace::trace::Frame, mut at: usize) -> Number {
    let mut index = vec![0; frame.shape().len()];
    for (index, length) in index.iter_mut().zip(frame.shape()).rev() {
        (*index, at) = (at % length, at / length);
    }
    frame.get(&index).unwrap()
}

/// Without a bfloat16 unit, the kernel sums in the order of the plain loops. Explanations are then bit-exact in
/// bfloat16 too. The kernel `wasm` has no such unit, and its own arithmetic.
#[test]
fn without_a_unit_every_value_is_given_again_to_the_bit() {
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(8);
    let portable = Kernel::available().into_iter().find(|kernel| kernel.name() == "portable").unwrap();
    let int8 = Precision::Q8 { group: 7 };
    let settings = [
        (portable, Precision::Bf16),
        (Kernel::wasm(), Precision::F32),
        (Kernel::wasm(), Precision::Bf16),
        (Kernel::wasm(), int8),
    ];
    for (name, (kernel, precision)) in MODELS.into_iter().flat_map(|name| settings.map(|all| (name, all))) {
        let cpu = || Cpu::with_kernel(kernel).with_precision(precision);
        let (frames, passes) = record(&model_in(name, cpu()), &PROMPT);
        let mut live = start(model_in(name, cpu()), &PROMPT, passes.len(), Vec::new());
        for (&site, frame) in &frames {
            let count: usize = frame.shape().iter().product();
            let found = explain(&mut live, site, random.random_range(0..count), 3).unwrap();
            let what = format!("{name}, {} in {precision:?}", kernel.name());
            assert_eq!(found.difference(), 0.0, "{what}, {}: {found:?}", found.address);
        }
    }
}

#[test]
fn the_largest_terms_are_told_and_the_rest_summed() {
    let mut live = start(super::model("gqa"), &PROMPT, PASSES, Vec::new());
    let site = Site::layer(0, 1, Stage::FfnUp);
    let all = explain(&mut live, site, 17, 0).unwrap();
    let some = explain(&mut live, site, 17, 3).unwrap();
    assert_eq!((all.rest.count, some.terms.len()), (0, 3));
    assert_eq!(some.terms[..], all.terms[..3]);
    assert_eq!(some.rest.count, all.terms.len() - 3);
    let rest: f64 = all.terms[3..].iter().map(|term| term.product).sum();
    let Together::Sum(sum) = some.rest.together else { panic!("{:?}", some.rest) };
    assert!((sum - rest).abs() < 1e-12);
    assert!(all.terms.windows(2).all(|two| two[0].product.abs() >= two[1].product.abs()));
    // Each operand has the address of its cell, and this cell has its value.
    let term = &all.terms[0];
    let [stage, weight] = &term.operands[..] else { panic!("{term:?}") };
    let (From::Stage(x), From::Weight(w)) = (&stage.from, &weight.from) else { panic!("{term:?}") };
    assert!(x.to_string().starts_with("p0/L1/ffn_norm[t=0,d="), "{x}");
    assert!(w.to_string().starts_with("L1/w3[o=17,i="), "{w}");
    assert_eq!(term.product, stage.value * weight.value);
    let (_, d) = x.index[1];
    let operand = explain(&mut live, Site::layer(0, 1, Stage::FfnNorm), d, 1).unwrap();
    assert_eq!(operand.value, stage.value);
}

#[test]
fn what_is_not_there_is_said() {
    let mut live = start(super::model("gqa"), &PROMPT, 1, Vec::new());
    for (site, at) in [
        (Site::layer(0, 99, Stage::Xq), 0),
        (Site::layer(5, 0, Stage::Xq), 0),
        (Site::layer(0, 0, Stage::Xq), usize::MAX),
        (Site::layer(0, 0, Stage::XqNorm), 0),
        (Site::once(0, Stage::Xq), 0),
    ] {
        assert!(explain(&mut live, site, at, 1).is_err(), "{site}");
    }
}
