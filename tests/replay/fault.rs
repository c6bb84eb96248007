//! The CPU backend with a fault.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use llama_trace::backend::cpu::{self, Cpu, Kernel};
use llama_trace::backend::{
    self, AttentionPart, AttentionShape, AttentionSink, Backend, Buffer, Cache, Draw, Limits, Mark, Matrix,
    Operation, PassRows, SeeGroups, Span, Vector,
};
use llama_trace::config::{Arithmetic, CacheDtype, Pairing, Precision, Sees};
use llama_trace::error::Result;
use llama_trace::stop::Stop;
use llama_trace::tensor::{Dtype, Tensor};

/// The fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Another last bit in every result that a viewer could compute itself. The backend declares this.
    OtherBits,
    /// RMSNorm without ε.
    NoEpsilon,
    /// The first query head reads the last kv head, and the last query head reads the first kv head.
    SwappedHeads,
    /// One row of every product is summed from its end.
    OtherOrder,
    /// Attention without a window.
    NoWindow,
    /// Tokens are rotated as if each were one position later.
    OtherPosition,
    /// The rows are cached in another order than given.
    OtherCache,
    /// Another last bit if attention is recorded.
    Watched,
    /// Another last bit if there is only one thread.
    OneThread,
    /// Another last bit if two sequences are in a pass.
    Together,
    /// SiLU returns NaN.
    NotANumber,
    /// Products of two values are truncated and not rounded.
    CutOff,
    /// Quantized values are too large by 1 %.
    OtherSteps,
    /// No fault: layers are counted.
    Sound,
}

/// The CPU backend, with a fault.
#[derive(Clone)]
pub(crate) struct Other {
    cpu: Cpu,
    fault: Fault,
    layers: Arc<AtomicUsize>,
}

impl Other {
    pub(crate) fn new(cpu: Cpu, fault: Fault) -> Self {
        Self { cpu, fault, layers: Arc::default() }
    }

    /// Number of times a layer was run for one sequence. Each layer has attention once.
    pub(crate) fn layers(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.layers)
    }
}

/// The activations as the CPU's products read them, and the original activations, which a faulty product sums itself.
pub(crate) struct Input {
    of_cpu: backend::Input,
    x: Vec<f32>,
    width: usize,
}

/// A pass, and its number of sequences.
pub(crate) struct Pass {
    of_cpu: backend::Pass,
    spans: Vec<Span>,
}

/// The values of a buffer of the CPU.
fn floats(buffer: &Buffer) -> &[f32] {
    buffer.downcast::<Vec<f32>>()
}

/// The values of a buffer of the CPU, to write to them.
fn floats_mut(buffer: &mut Buffer) -> &mut [f32] {
    buffer.downcast_mut::<Vec<f32>>()
}

/// Changes the last bit of each value, as another order of summation may do.
fn other_bit(values: &mut [f32]) {
    for value in values {
        *value = f32::from_bits(value.to_bits() ^ 1);
    }
}

/// Passes on the parts of attention with another last bit.
struct OtherBits<'a>(&'a mut dyn AttentionSink);

impl AttentionSink for OtherBits<'_> {
    fn wants(&self, part: AttentionPart) -> bool {
        self.0.wants(part)
    }

    fn rows(&mut self, part: AttentionPart, rows: Range<usize>, values: &[f32]) -> Result<()> {
        let mut values = values.to_vec();
        if !matches!(part, AttentionPart::Keys | AttentionPart::Values) {
            other_bit(&mut values);
        }
        self.0.rows(part, rows, &values)
    }
}

impl Backend for Other {
    fn name(&self) -> &'static str {
        "other"
    }

    fn stop(&self) -> &Stop {
        self.cpu.stop()
    }

    fn kernel_name(&self) -> &'static str {
        self.cpu.kernel_name()
    }

    fn limits(&self, matrices: Dtype, mapped: &[&[u8]], most: usize) -> Result<Limits> {
        self.cpu.limits(matrices, mapped, most)
    }

    fn precision(&self) -> Precision {
        self.cpu.precision()
    }

    fn arithmetic(&self) -> Arithmetic {
        self.cpu.arithmetic()
    }

    fn bit_exact(&self, _: Operation) -> bool {
        self.fault != Fault::OtherBits
    }

    fn product_bit_exact(&self, matrix: &Matrix, tokens: usize) -> bool {
        self.cpu.product_bit_exact(matrix, tokens)
    }

    fn truncates_sums(&self) -> bool {
        self.cpu.truncates_sums()
    }

    fn table_line(&self) -> Option<(String, String)> {
        None
    }

    fn kernels(&self) -> Vec<Box<dyn Backend>> {
        let of = |kernel| -> Box<dyn Backend> {
            let cpu = Cpu::with_kernel(kernel).with_precision(self.cpu.precision());
            Box::new(Self { cpu: cpu.with_cache_dtype(self.cpu.cache_dtype()), ..self.clone() })
        };
        Kernel::available().into_iter().map(of).collect()
    }

    fn readings(&self) -> Vec<(String, Box<dyn Backend>)> {
        Vec::new()
    }

    fn cut(&self, matrix: &Matrix, rows: Range<usize>) -> Result<Matrix> {
        self.cpu.cut(matrix, rows)
    }

    fn free_memory(&self) -> Option<usize> {
        None
    }

    fn mark(&self) -> Mark {
        self.cpu.mark()
    }

    fn between(&self, _: &Mark, _: &Mark) -> Duration {
        Duration::ZERO
    }

    fn sync(&self) -> Result<()> {
        self.cpu.sync()
    }

    fn buffer(&self, count: usize) -> Result<Buffer> {
        self.cpu.buffer(count)
    }

    fn matrix(&self, tensor: &Tensor) -> Result<Matrix> {
        self.cpu.matrix(tensor)
    }

    fn vector(&self, tensor: &Tensor) -> Result<Vector> {
        self.cpu.vector(tensor)
    }

    fn read(
        &self,
        buffer: &Buffer,
        range: Range<usize>,
        see: &mut dyn FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        self.cpu.read(buffer, range, see)
    }

    fn read_rows(
        &self,
        matrix: &Matrix,
        rows: Range<usize>,
        see: &mut dyn FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        self.cpu.read_rows(matrix, rows, see)
    }

    fn read_int8_rows(&self, matrix: &Matrix, rows: Range<usize>, see: SeeGroups<'_>) -> Result<()> {
        self.cpu.read_int8_rows(matrix, rows, see)
    }

    fn read_vector(&self, vector: &Vector, see: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()> {
        self.cpu.read_vector(vector, see)
    }

    fn write(&self, values: &[f32], at: usize, buffer: &mut Buffer) -> Result<()> {
        self.cpu.write(values, at, buffer)
    }

    fn write_cache(&self, values: &[f32], cache: &mut Cache) -> Result<()> {
        self.cpu.write_cache(values, cache)
    }

    fn new_pass(&self) -> Result<backend::Pass> {
        Ok(backend::Pass::new(Pass { of_cpu: self.cpu.new_pass()?, spans: Vec::new() }))
    }

    fn begin_pass(
        &self,
        ids: &[u32],
        spans: &[Span],
        draws: &[Draw],
        pass: &mut backend::Pass,
    ) -> Result<()> {
        let pass: &mut Pass = pass.downcast_mut();
        pass.spans = spans.to_vec();
        self.cpu.begin_pass(ids, spans, draws, &mut pass.of_cpu)
    }

    fn embedding(&self, table: &Matrix, pass: &backend::Pass, out: &mut Buffer) -> Result<()> {
        let pass: &Pass = pass.downcast();
        self.cpu.embedding(table, &pass.of_cpu, out)?;
        if self.fault == Fault::Together && pass.spans.len() > 1 {
            other_bit(&mut floats_mut(out)[..1]);
        }
        Ok(())
    }

    fn rope_table(
        &self,
        frequencies: &Buffer,
        pairs: usize,
        pass: &backend::Pass,
        cos: &mut Buffer,
        sin: &mut Buffer,
    ) -> Result<()> {
        let pass: &Pass = pass.downcast();
        if self.fault != Fault::OtherPosition {
            return self.cpu.rope_table(frequencies, pairs, &pass.of_cpu, cos, sin);
        }
        let (mut later, tokens) = (self.cpu.new_pass()?, pass.spans.iter().map(|span| span.tokens).sum());
        let spans: Vec<_> = pass.spans.iter().map(|span| Span { start: span.start + 1, ..*span }).collect();
        self.cpu.begin_pass(&vec![0; tokens], &spans, &[], &mut later)?;
        self.cpu.rope_table(frequencies, pairs, &later, cos, sin)
    }

    fn rms_norm(&self, x: &Buffer, weight: &Vector, eps: f32, rows: usize, out: &mut Buffer) -> Result<()> {
        let eps = if self.fault == Fault::NoEpsilon { 0.0 } else { eps };
        self.cpu.rms_norm(x, weight, eps, rows, out)
    }

    fn input(&self) -> backend::Input {
        backend::Input::new(Input { of_cpu: self.cpu.input(), x: Vec::new(), width: 0 })
    }

    fn prepare(
        &self,
        x: &Buffer,
        width: usize,
        pass: &backend::Pass,
        rows: &PassRows,
        input: &mut backend::Input,
    ) -> Result<()> {
        let (pass, input): (&Pass, &mut Input) = (pass.downcast(), input.downcast_mut());
        (input.x, input.width) = (floats(x)[..rows.count(&pass.spans) * width].to_vec(), width);
        if self.fault != Fault::OtherSteps {
            return self.cpu.prepare(x, width, &pass.of_cpu, rows, &mut input.of_cpu);
        }
        input.x.iter_mut().for_each(|x| *x *= 1.01);
        self.cpu.prepare(&Buffer::new(input.x.clone()), width, &pass.of_cpu, rows, &mut input.of_cpu)
    }

    fn read_quantized(
        &self,
        input: &backend::Input,
        rows: Range<usize>,
        see: &mut dyn FnMut(&[i8], &[f32]) -> Result<()>,
    ) -> Result<()> {
        self.cpu.read_quantized(&input.downcast::<Input>().of_cpu, rows, see)
    }

    fn matmul(&self, x: &backend::Input, w: &Matrix, bias: Option<&Vector>, out: &mut Buffer) -> Result<()> {
        let x: &Input = x.downcast();
        self.cpu.matmul(&x.of_cpu, w, bias, out)?;
        if self.fault == Fault::OneThread && rayon::current_num_threads() == 1 {
            other_bit(&mut floats_mut(out)[..1]);
        }
        if self.fault == Fault::OtherOrder {
            let outputs = w.downcast::<cpu::Matrix>().outputs();
            let row = 3.min(outputs - 1);
            let of_bias = bias.map_or(0.0, |bias| bias.downcast::<Vec<f32>>()[row]);
            self.cpu.read_rows(w, row..row + 1, &mut |w_row| {
                for (x, out) in x.x.chunks_exact(x.width).zip(floats_mut(out).chunks_exact_mut(outputs)) {
                    let terms = x.iter().zip(w_row).rev();
                    out[row] = terms.fold(0.0, |sum: f32, (x, w)| x.mul_add(*w, sum)) + of_bias;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn rope(
        &self,
        x: &Buffer,
        cos: &Buffer,
        sin: &Buffer,
        pairing: Pairing,
        heads: usize,
        head_dim: usize,
        rows: usize,
        out: &mut Buffer,
    ) -> Result<()> {
        self.cpu.rope(x, cos, sin, pairing, heads, head_dim, rows, out)
    }

    fn cache_dtype(&self) -> CacheDtype {
        self.cpu.cache_dtype()
    }

    fn new_cache(&self, count: usize) -> Result<Cache> {
        self.cpu.new_cache(count)
    }

    fn cache(
        &self,
        x: &Buffer,
        width: usize,
        pass: &backend::Pass,
        span: usize,
        cache: &mut Cache,
    ) -> Result<()> {
        let mut x = floats(x).to_vec();
        if self.fault == Fault::OtherCache {
            x.chunks_exact_mut(width).for_each(|row| row.rotate_left(1));
        }
        self.cpu.cache(&Buffer::new(x), width, &pass.downcast::<Pass>().of_cpu, span, cache)
    }

    fn read_cache(
        &self,
        cache: &Cache,
        count: usize,
        see: &mut dyn FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        self.cpu.read_cache(cache, count, see)
    }

    fn take_cache(&self, cache: &Cache, range: Range<usize>) -> Result<Cache> {
        self.cpu.take_cache(cache, range)
    }

    fn put_cache(&self, from: &Cache, at: usize, cache: &mut Cache) -> Result<()> {
        self.cpu.put_cache(from, at, cache)
    }

    fn attention(
        &self,
        shape: AttentionShape,
        q: &Buffer,
        pass: &backend::Pass,
        span: usize,
        keys: &Cache,
        values: &Cache,
        out: &mut Buffer,
        sink: &mut dyn AttentionSink,
    ) -> Result<()> {
        self.layers.fetch_add(1, Ordering::SeqCst);
        let shape = match self.fault {
            Fault::NoWindow => AttentionShape { sees: Sees::All, ..shape },
            _ => shape,
        };
        let watched = sink.wants(AttentionPart::Qk);
        let pass = &pass.downcast::<Pass>().of_cpu;
        match self.fault {
            Fault::OtherBits => {
                self.cpu.attention(shape, q, pass, span, keys, values, out, &mut OtherBits(sink))?;
                // There is one span.
                other_bit(floats_mut(out));
            }
            Fault::SwappedHeads => {
                let (mut q, c) = (floats(q).to_vec(), shape.head_dim);
                let last = (shape.heads - 1) * c;
                let swap = |values: &mut [f32]| {
                    for row in values.chunks_exact_mut(shape.heads * c) {
                        (0..c).for_each(|i| row.swap(i, last + i));
                    }
                };
                swap(&mut q);
                self.cpu.attention(shape, &Buffer::new(q), pass, span, keys, values, out, sink)?;
                swap(floats_mut(out));
            }
            _ => self.cpu.attention(shape, q, pass, span, keys, values, out, sink)?,
        }
        if self.fault == Fault::Watched && watched {
            other_bit(&mut floats_mut(out)[..1]);
        }
        Ok(())
    }

    fn silu(&self, x: &Buffer, count: usize, out: &mut Buffer) -> Result<()> {
        self.cpu.silu(x, count, out)?;
        match self.fault {
            Fault::OtherBits => other_bit(&mut floats_mut(out)[..count]),
            Fault::NotANumber => floats_mut(out)[5] = f32::NAN,
            _ => {}
        }
        Ok(())
    }

    fn mul(&self, a: &Buffer, b: &Buffer, count: usize, out: &mut Buffer) -> Result<()> {
        self.cpu.mul(a, b, count, out)?;
        match self.fault {
            Fault::OtherBits => other_bit(&mut floats_mut(out)[..count]),
            Fault::CutOff => {
                let products = floats(a)
                    .iter()
                    .zip(floats(b))
                    .map(|(a, b)| f32::from_bits((a * b).to_bits() & 0xffff_0000));
                floats_mut(out)[..count].iter_mut().zip(products).for_each(|(out, product)| *out = product);
            }
            _ => {}
        }
        Ok(())
    }

    fn add(&self, a: &Buffer, b: &Buffer, count: usize, out: &mut Buffer) -> Result<()> {
        self.cpu.add(a, b, count, out)?;
        if self.fault == Fault::OtherBits {
            other_bit(&mut floats_mut(out)[..count]);
        }
        Ok(())
    }

    fn rows(
        &self,
        x: &Buffer,
        width: usize,
        pass: &backend::Pass,
        rows: &PassRows,
        out: &mut Buffer,
    ) -> Result<()> {
        self.cpu.rows(x, width, &pass.downcast::<Pass>().of_cpu, rows, out)
    }
}
