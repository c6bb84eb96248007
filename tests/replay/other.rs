//! A backend whose kernels sum in an order of their own: what a viewer sees of it is what it computed, never what the
//! functions of `ops/` would have made of it. And the fused operations, against the plain ones.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use llama_trace::backend::cpu::{Cpu, Kernel};
use llama_trace::backend::{
    AttentionPart, AttentionShape, AttentionSink, Backend, Limits, Made, Operation, PassRows, Product,
    SeeGroups, Span, Swiglu,
};
use llama_trace::checkpoint::{self, Dtype, Tensor};
use llama_trace::config::{CacheDtype, Pairing, Precision};
use llama_trace::error::Result;
use llama_trace::model::Model;
use llama_trace::replay::derive::{derive, is_derivable, is_derived};
use llama_trace::stop::Stop;
use llama_trace::trace::Stage;

use super::{assert_same, common, record, start, wait};

/// The CPU, with another last bit in every result that a viewer could compute by itself.
struct Other(Cpu);

type Values = Vec<f32>;

/// Another last bit, as another order of sums would give.
fn other_bit(values: &mut [f32]) {
    for value in values {
        *value = f32::from_bits(value.to_bits() ^ 1);
    }
}

/// Hands the parts of attention on, with another last bit.
struct OtherBits<'a>(&'a mut dyn AttentionSink);

impl AttentionSink for OtherBits<'_> {
    fn wants(&self, part: AttentionPart) -> bool {
        self.0.wants(part)
    }

    fn rows(&mut self, part: AttentionPart, rows: Range<usize>, values: &[f32]) {
        let mut values = values.to_vec();
        if !matches!(part, AttentionPart::Keys | AttentionPart::Values) {
            other_bit(&mut values);
        }
        self.0.rows(part, rows, &values);
    }
}

impl Backend for Other {
    type Buffer = Values;
    type Matrix = <Cpu as Backend>::Matrix;
    type Vector = Values;
    type Input = <Cpu as Backend>::Input;
    type Cache = <Cpu as Backend>::Cache;
    type Pass = <Cpu as Backend>::Pass;
    type Mark = ();

    fn name(&self) -> &'static str {
        "other"
    }

    fn stop(&self) -> &Stop {
        self.0.stop()
    }

    fn kernel_name(&self) -> &'static str {
        self.0.kernel_name()
    }

    fn limits(&self, matrices: Dtype, mapped: &[&[u8]]) -> Result<Limits> {
        self.0.limits(matrices, mapped)
    }

    fn precision(&self) -> Precision {
        self.0.precision()
    }

    fn keeps_order(&self, _: Operation) -> bool {
        false
    }

    fn product_keeps_order(&self, matrix: &Self::Matrix, tokens: usize) -> bool {
        self.0.product_keeps_order(matrix, tokens)
    }

    fn kernels(&self) -> Vec<Self> {
        self.0.kernels().into_iter().map(Self).collect()
    }

    fn cut(&self, matrix: &Self::Matrix, rows: Range<usize>) -> Result<Self::Matrix> {
        self.0.cut(matrix, rows)
    }

    fn free_memory(&self) -> Option<usize> {
        None
    }

    fn mark(&self) {}

    fn between(&self, (): &(), (): &()) -> Duration {
        Duration::ZERO
    }

    fn sync(&self) -> Result<()> {
        self.0.sync()
    }

    fn buffer(&self, count: usize) -> Result<Values> {
        self.0.buffer(count)
    }

    fn matrix(&self, tensor: &Tensor) -> Result<Self::Matrix> {
        self.0.matrix(tensor)
    }

    fn vector(&self, tensor: &Tensor) -> Result<Values> {
        self.0.vector(tensor)
    }

    fn read(
        &self,
        buffer: &Values,
        range: Range<usize>,
        see: &mut dyn FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        self.0.read(buffer, range, see)
    }

    fn read_rows(
        &self,
        matrix: &Self::Matrix,
        rows: Range<usize>,
        see: &mut dyn FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        self.0.read_rows(matrix, rows, see)
    }

    fn read_int8_rows(&self, matrix: &Self::Matrix, rows: Range<usize>, see: SeeGroups<'_>) -> Result<()> {
        self.0.read_int8_rows(matrix, rows, see)
    }

    fn read_vector(&self, vector: &Values, see: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()> {
        self.0.read_vector(vector, see)
    }

    fn write(&self, values: &[f32], buffer: &mut Values) -> Result<()> {
        self.0.write(values, buffer)
    }

    fn new_pass(&self) -> Result<Self::Pass> {
        self.0.new_pass()
    }

    fn begin_pass(&self, ids: &[u32], spans: &[Span], pass: &mut Self::Pass) -> Result<()> {
        self.0.begin_pass(ids, spans, pass)
    }

    fn embedding(&self, table: &Self::Matrix, pass: &Self::Pass, out: &mut Values) -> Result<()> {
        self.0.embedding(table, pass, out)
    }

    fn rope_table(
        &self,
        frequencies: &Values,
        pairs: usize,
        pass: &Self::Pass,
        cos: &mut Values,
        sin: &mut Values,
    ) -> Result<()> {
        self.0.rope_table(frequencies, pairs, pass, cos, sin)
    }

    fn rms_norm(&self, x: &Values, weight: &Values, eps: f32, rows: usize, out: &mut Values) -> Result<()> {
        self.0.rms_norm(x, weight, eps, rows, out)
    }

    fn input(&self) -> Self::Input {
        self.0.input()
    }

    fn prepare(
        &self,
        x: &Values,
        width: usize,
        pass: &Self::Pass,
        rows: &PassRows,
        input: &mut Self::Input,
    ) -> Result<()> {
        self.0.prepare(x, width, pass, rows, input)
    }

    fn read_quantized(
        &self,
        input: &Self::Input,
        rows: Range<usize>,
        see: &mut dyn FnMut(&[i8], &[f32]) -> Result<()>,
    ) -> Result<()> {
        self.0.read_quantized(input, rows, see)
    }

    fn matmul(
        &self,
        x: &Self::Input,
        w: &Self::Matrix,
        bias: Option<&Values>,
        out: &mut Values,
    ) -> Result<()> {
        self.0.matmul(x, w, bias, out)
    }

    fn rope(
        &self,
        x: &Values,
        cos: &Values,
        sin: &Values,
        pairing: Pairing,
        heads: usize,
        head_dim: usize,
        rows: usize,
        out: &mut Values,
    ) -> Result<()> {
        self.0.rope(x, cos, sin, pairing, heads, head_dim, rows, out)
    }

    fn cache_dtype(&self) -> CacheDtype {
        self.0.cache_dtype()
    }

    fn new_cache(&self, count: usize) -> Result<Self::Cache> {
        self.0.new_cache(count)
    }

    fn cache(
        &self,
        x: &Values,
        width: usize,
        pass: &Self::Pass,
        span: usize,
        cache: &mut Self::Cache,
    ) -> Result<()> {
        self.0.cache(x, width, pass, span, cache)
    }

    fn read_cache(
        &self,
        cache: &Self::Cache,
        count: usize,
        see: &mut dyn FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        self.0.read_cache(cache, count, see)
    }

    fn attention(
        &self,
        shape: AttentionShape,
        q: &Values,
        pass: &Self::Pass,
        span: usize,
        keys: &Self::Cache,
        values: &Self::Cache,
        out: &mut Values,
        sink: &mut dyn AttentionSink,
    ) -> Result<()> {
        self.0.attention(shape, q, pass, span, keys, values, out, &mut OtherBits(sink))?;
        // There is one span.
        other_bit(out);
        Ok(())
    }

    fn silu(&self, x: &Values, count: usize, out: &mut Values) -> Result<()> {
        self.0.silu(x, count, out)?;
        other_bit(&mut out[..count]);
        Ok(())
    }

    fn mul(&self, a: &Values, b: &Values, count: usize, out: &mut Values) -> Result<()> {
        self.0.mul(a, b, count, out)?;
        other_bit(&mut out[..count]);
        Ok(())
    }

    fn add(&self, a: &Values, b: &Values, count: usize, out: &mut Values) -> Result<()> {
        self.0.add(a, b, count, out)?;
        other_bit(&mut out[..count]);
        Ok(())
    }

    fn rows(
        &self,
        x: &Values,
        width: usize,
        pass: &Self::Pass,
        rows: &PassRows,
        out: &mut Values,
    ) -> Result<()> {
        self.0.rows(x, width, pass, rows, out)
    }
}

#[test]
fn what_a_backend_sums_in_its_own_order_is_made_by_it_and_not_derived() {
    for name in ["gqa", "qwen3"] {
        for precision in [Precision::F32, Precision::Q8 { group: 32 }] {
            let checkpoint = checkpoint::open(Some(&common::fixture(&format!("golden/{name}")))).unwrap();
            let model = || Model::load(&checkpoint, Other(Cpu::default().with_precision(precision))).unwrap();
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
                    let derived =
                        derive(site, &sizes, precision, dims, &Stop::default(), &mut input).unwrap();
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
    let derived = |stage: &&Stage| is_derived(&Other(Cpu::default()), **stage);
    let left: Vec<_> = Stage::ALL.iter().filter(derived).collect();
    assert_eq!(left, [&Stage::Mask, &Stage::Keys, &Stage::Values], "these copy");
    let by_cpu = |stage: &&Stage| is_derived(&Cpu::default(), **stage) != is_derivable(**stage);
    assert_eq!(Stage::ALL.iter().find(by_cpu), None, "the CPU keeps the order of all");
}

/// Runs the fused operations of `backend` and what they stand for, with weights and biases of a small model.
fn compare_fused<B: Backend>(what: &str, backend: B) {
    let checkpoint = checkpoint::open(Some(&common::fixture("golden/mha_bias"))).unwrap();
    let model = Model::load(&checkpoint, backend).unwrap();
    let (backend, config, layer) = (&model.backend, &model.config, &model.weights.layers[0]);
    let (d, f) = (config.dim, config.ffn_dim);
    let noise = |count: usize, seed: usize| {
        let values: Vec<f32> = (0..count).map(|i| ((i * 7919 + seed) % 1013) as f32 / 500.0 - 1.0).collect();
        let mut buffer = backend.buffer(count).unwrap();
        backend.write(&values, &mut buffer).unwrap();
        buffer
    };
    let bits = |buffer: &B::Buffer, count: usize| {
        let mut seen = Vec::new();
        let mut see = |values: &[f32]| {
            seen.extend(values.iter().map(|x| x.to_bits()));
            Ok(())
        };
        backend.read(buffer, 0..count, &mut see).unwrap();
        seen
    };
    let made_by = |run: &mut dyn FnMut(&mut Made<'_, B>) -> Result<()>, counts: &[usize]| {
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
        backend.begin_pass(&vec![0; rows], &[span], &mut pass).unwrap();
        let (mut input, x) = (backend.input(), noise(rows * d, rows));
        backend.prepare(&x, d, &pass, &PassRows::All, &mut input).unwrap();
        let buffer = |count| backend.buffer(count).unwrap();

        let linears = [&layer.wq, &layer.wk, &layer.w1];
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
                backend.add_rms_norm((&x, &b), &layer.ffn_norm, 1e-5, (rows, d), out, made)
            },
            &[rows * d; 2],
        );
        let (mut plain_sum, mut plain) = (buffer(rows * d), buffer(rows * d));
        backend.add(&x, &b, rows * d, &mut plain_sum).unwrap();
        backend.rms_norm(&plain_sum, &layer.ffn_norm, 1e-5, rows, &mut plain).unwrap();
        let both = [(0, bits(&plain_sum, rows * d)), (1, bits(&plain, rows * d))];
        assert!(made == both, "{what}, {rows} rows: residual and norm");
        assert!([bits(&sum, rows * d), bits(&normed, rows * d)] == both.map(|(_, bits)| bits));

        let count = rows * f;
        let [mut gate, mut silu, mut up, mut hidden] = [count; 4].map(buffer);
        let made = made_by(
            &mut |made| {
                let outputs = Swiglu {
                    gate: Product { matrix: &layer.w1.matrix, bias: layer.w1.bias.as_ref(), out: &mut gate },
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
        backend.matmul(&input, &layer.w1.matrix, layer.w1.bias.as_ref(), gate).unwrap();
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
    for kernel in Kernel::available() {
        for precision in super::PRECISIONS {
            let what = format!("{} in {precision:?}", kernel.name());
            compare_fused(&what, Cpu::with_kernel(kernel).with_precision(precision));
        }
    }
    compare_fused("another backend", Other(Cpu::default()));
}
