//! A backend whose kernels sum in another order. The viewer shows what this backend computed, and never the results of
//! the functions in `ops/`. Its fused operations are compared with the plain ones.

use std::sync::Arc;

use llama_trace::backend::cpu::{Cpu, Kernel};
use llama_trace::backend::{Backend, Buffer, OnOutput, PassRows, Product, Span, Swiglu};
use llama_trace::checkpoint;
use llama_trace::config::{Arithmetic, Precision};
use llama_trace::error::Result;
use llama_trace::model::Model;
use llama_trace::replay::derive::{derive, is_derivable, is_derived};
use llama_trace::stop::Stop;
use llama_trace::trace::Stage;

use super::fault::{Fault, Other};
use super::{assert_same, common, record, start, wait};

#[test]
fn what_a_backend_sums_in_its_own_order_is_made_by_it_and_not_derived() {
    for name in ["gqa", "qwen3"] {
        for precision in [Precision::F32, Precision::Q8 { group: 32 }] {
            let checkpoint = checkpoint::open(&common::fixture(&format!("golden/{name}"))).unwrap();
            let model = || {
                Model::load(
                    &checkpoint,
                    Other::new(Cpu::default().with_precision(precision), Fault::OtherBits),
                )
                .unwrap()
            };
            let prompt = [1, 5, 9, 3, 7];
            let (frames, passes) = record(&model(), &prompt);
            let mut live = start(model(), &prompt, passes.len(), Vec::new());
            let mut sites: Vec<_> = frames.keys().copied().collect();
            sites.sort_unstable();
            let mut different = std::collections::BTreeSet::new();
            for site in sites.into_iter().rev() {
                assert_same(&wait(&mut live, site).unwrap(), &frames[&site]);
                if is_derivable(site.stage) {
                    let mut input = |site| Ok(Arc::new(frames[&site].clone()));
                    let (sizes, dims) = (model().sizes(), passes[site.pass]);
                    let derived = derive(
                        site,
                        &sizes,
                        (precision, Arithmetic::Fused),
                        dims,
                        &Stop::default(),
                        &mut input,
                    )
                    .unwrap();
                    if derived.data != frames[&site].data {
                        different.insert(site.stage);
                    }
                }
            }
            use Stage as S;
            for stage in
                [S::Qk, S::Scores, S::Softmax, S::AttnHeads, S::FfnSilu, S::FfnHidden, S::FfnResidual]
            {
                assert!(different.contains(&stage), "{name}: {stage} derived would be the same");
            }
        }
    }
    let derived = |stage: &&Stage| is_derived(&Other::new(Cpu::default(), Fault::OtherBits), **stage);
    let left: Vec<_> = Stage::ALL.iter().filter(derived).collect();
    assert_eq!(left, [&Stage::Mask, &Stage::Keys, &Stage::Values], "these copy");
    let by_cpu = |stage: &&Stage| is_derived(&Cpu::default(), **stage) != is_derivable(**stage);
    assert_eq!(Stage::ALL.iter().find(by_cpu), None, "the CPU has the bits of all functions");
}

/// Runs the fused operations of `backend` and the plain operations that they replace, with weights and biases of a
/// small model.
fn compare_fused(what: &str, backend: impl Backend + 'static) {
    let checkpoint = checkpoint::open(&common::fixture("golden/mha_bias")).unwrap();
    let model = Model::load(&checkpoint, backend).unwrap();
    let (backend, config, layer) = (&model.backend, &model.config, &model.weights.layers[0]);
    let (w1, ffn_norm) = (layer.w1.as_ref().unwrap(), &layer.ffn_norm.as_ref().unwrap().weight);
    let (d, f) = (config.dim, config.ffn_dim);
    let noise = |count: usize, seed: usize| {
        let values: Vec<f32> = (0..count).map(|i| ((i * 7919 + seed) % 1013) as f32 / 500.0 - 1.0).collect();
        let mut buffer = backend.buffer(count).unwrap();
        backend.write(&values, 0, &mut buffer).unwrap();
        buffer
    };
    let bits = |buffer: &Buffer, count: usize| {
        let mut seen = Vec::new();
        let mut see = |values: &[f32]| {
            seen.extend(values.iter().map(|x| x.to_bits()));
            Ok(())
        };
        backend.read(buffer, 0..count, &mut see).unwrap();
        seen
    };
    let made_by = |run: &mut dyn FnMut(&mut OnOutput<'_>) -> Result<()>, counts: &[usize]| {
        let mut made = Vec::new();
        run(&mut |i, buffer| {
            made.push((i, bits(buffer, counts[i])));
            Ok(())
        })
        .unwrap();
        made
    };
    for rows in [1, 2, 3, 15, 16, 17, 33] {
        let mut pass = backend.new_pass().unwrap();
        let span = Span { sequence: 0, start: 0, tokens: rows };
        backend.begin_pass(&vec![0; rows], &[span], &[], &mut pass).unwrap();
        let (mut input, x) = (backend.input(), noise(rows * d, rows));
        backend.prepare(&x, d, &pass, &PassRows::All, &mut input).unwrap();
        let buffer = |count| backend.buffer(count).unwrap();

        let linears = [&layer.wq, &layer.wk, w1];
        let widths = [config.q_dim(), config.kv_dim(), f].map(|width| rows * width);
        let mut outs = widths.map(buffer);
        let [q, k, w] = &mut outs;
        let mut products: Vec<_> = ([q, k, w].into_iter().zip(linears))
            .map(|(out, linear)| Product { matrix: &linear.matrix, bias: linear.bias.as_ref(), out })
            .collect();
        let made = made_by(&mut |made| backend.matmuls(&input, &mut products, made), &widths);
        for (i, linear) in linears.into_iter().enumerate() {
            let mut out = buffer(widths[i]);
            backend.matmul(&input, &linear.matrix, linear.bias.as_ref(), &mut out).unwrap();
            assert!(made[i] == (i, bits(&out, widths[i])), "{what}, {rows} rows: product {i}");
            assert!(bits(&outs[i], widths[i]) == made[i].1, "{what}, {rows} rows: product {i}");
        }

        let b = noise(rows * d, 3 * rows);
        let (mut sum, mut normed) = (buffer(rows * d), buffer(rows * d));
        let made = made_by(
            &mut |made| {
                let out = (&mut sum, &mut normed);
                backend.add_rms_norm((&x, &b), ffn_norm, 1e-5, (rows, d), out, made)
            },
            &[rows * d; 2],
        );
        let (mut plain_sum, mut plain) = (buffer(rows * d), buffer(rows * d));
        backend.add(&x, &b, rows * d, &mut plain_sum).unwrap();
        backend.rms_norm(&plain_sum, ffn_norm, 1e-5, rows, &mut plain).unwrap();
        let both = [(0, bits(&plain_sum, rows * d)), (1, bits(&plain, rows * d))];
        assert!(made == both, "{what}, {rows} rows: residual and norm");
        assert!([bits(&sum, rows * d), bits(&normed, rows * d)] == both.map(|(_, bits)| bits));

        let count = rows * f;
        let [mut gate, mut silu, mut up, mut hidden] = [count; 4].map(buffer);
        let made = made_by(
            &mut |made| {
                let outputs = Swiglu {
                    gate: Product { matrix: &w1.matrix, bias: w1.bias.as_ref(), out: &mut gate },
                    silu: &mut silu,
                    up: Product { matrix: &layer.w3.matrix, bias: layer.w3.bias.as_ref(), out: &mut up },
                    hidden: &mut hidden,
                };
                backend.swiglu(&input, count, outputs, made)
            },
            &[count; 4],
        );
        let mut plain = [count; 4].map(buffer);
        let [gate, silu, up, hidden] = &mut plain;
        backend.matmul(&input, &w1.matrix, w1.bias.as_ref(), gate).unwrap();
        backend.silu(gate, count, silu).unwrap();
        backend.matmul(&input, &layer.w3.matrix, layer.w3.bias.as_ref(), up).unwrap();
        backend.mul(silu, up, count, hidden).unwrap();
        for (i, plain) in plain.iter().enumerate() {
            assert!(made[i] == (i, bits(plain, count)), "{what}, {rows} rows: swiglu {i}");
        }
    }
}

#[test]
fn fused_operations_make_what_the_plain_ones_make_over_odd_sizes() {
    for kernel in Kernel::selectable() {
        for precision in super::PRECISIONS {
            let what = format!("{} in {precision:?}", kernel.name());
            compare_fused(&what, Cpu::with_kernel(kernel).with_precision(precision));
        }
    }
    compare_fused("another backend", Other::new(Cpu::default(), Fault::OtherBits));
}
