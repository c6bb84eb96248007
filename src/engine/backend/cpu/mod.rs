//! The CPU backend: the plain operations of [`llama_trace_core::ops`], run on many threads by rayon and compiled for
//! the vector instructions of the machine.
//!
//! Each output is computed by one thread, with the arithmetic of `ops/` and in its order. Results therefore do not
//! depend on the number of threads, the instruction set or the number of tokens. There is one exception: if the
//! processor multiplies bfloat16, wide products of many tokens of one sequence have their own order
//! (`kernel/bf16_gemm.rs`). Other sequences in the same pass change nothing (`input.rs`).

mod attention;
#[cfg_attr(not(feature = "native"), path = "asleep.rs")]
mod awake;
mod cache;
mod input;
mod kernel;
mod limits;
mod matrix;
#[cfg(test)]
mod stop_latency;
#[cfg_attr(not(feature = "native"), path = "no_system.rs")]
mod system;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

use std::ops::Range;
use std::time::Duration;

use super::{AttentionShape, AttentionSink, Backend, Draw, Limits, Operation, PassRows, SeeGroups, Span};
use llama_trace_core::config::{CacheDtype, Pairing, Precision};
use llama_trace_core::error::Result;
use llama_trace_core::memory;
use llama_trace_core::ops;
use llama_trace_core::stop::Stop;
use llama_trace_core::tensor::{Dtype, Tensor};
use llama_trace_core::threads::prelude::*;
use llama_trace_core::time::Instant;

pub use cache::Cache;
pub use input::Input;
use input::MIN_PACKED;
pub use kernel::{Kernel, Multiplied};
pub use matrix::Matrix;
pub use matrix::dot_of;
pub use system::free as free_memory;

/// The CPU with the threads of rayon's global pool.
#[derive(Clone, Debug)]
pub struct Cpu {
    kernel: Kernel,
    precision: Precision,
    cache_dtype: CacheDtype,
    stop: Stop,
}

impl Cpu {
    /// Creates a CPU with the inner loops of `kernel`, in float32.
    pub fn with_kernel(kernel: Kernel) -> Self {
        Self { kernel, precision: Precision::F32, cache_dtype: CacheDtype::F32, stop: Stop::default() }
    }

    /// The same CPU with another precision.
    #[must_use]
    pub fn with_precision(self, precision: Precision) -> Self {
        Self { precision, cache_dtype: precision.cache_dtype(), ..self }
    }

    /// The same CPU with another number type for cached keys and values than the default of the precision.
    #[must_use]
    pub fn with_cache_dtype(self, cache_dtype: CacheDtype) -> Self {
        Self { cache_dtype, ..self }
    }

    /// The same CPU, stopped by `stop` instead of its own request.
    #[must_use]
    pub fn with_stop(self, stop: Stop) -> Self {
        Self { stop, ..self }
    }

    /// Rounds results to the precision.
    fn round(&self, values: &mut [f32]) {
        self.kernel.isa.round(self.precision, values);
    }
}

impl Default for Cpu {
    /// Creates a CPU with the fastest inner loops that this machine can run.
    fn default() -> Self {
        Self::with_kernel(Kernel::default())
    }
}

/// The input of a pass.
#[derive(Clone, Debug, Default)]
pub struct Pass {
    ids: Vec<u32>,
    spans: Vec<Span>,
}

impl Pass {
    /// The range of span number `span` in a buffer with rows of `width` values.
    fn values_of(&self, span: usize, width: usize) -> Range<usize> {
        let first: usize = self.spans[..span].iter().map(|span| span.tokens).sum();
        first * width..(first + self.spans[span].tokens) * width
    }
}

/// With fewer multiply-adds than this, using another thread costs more than the work itself.
const MIN_PARALLEL: usize = 3 << 14;

/// The number of independent elements that a thread takes at once.
const ELEMENTS: usize = 1 << 12;

/// Calls `apply` for each row of `x` and `out`, with the row's number. The last row may be short. All threads are used
/// if that is faster.
fn each_row(
    stop: &Stop,
    x: &[f32],
    out: &mut [f32],
    width: usize,
    apply: impl Fn(usize, &[f32], &mut [f32]) + Sync,
) -> Result<()> {
    if x.len() < MIN_PARALLEL {
        let rows = x.chunks(width).zip(out.chunks_mut(width)).enumerate();
        rows.for_each(|(row, (x, out))| apply(row, x, out));
        return Ok(());
    }
    let rows = x.par_chunks(width).zip(out.par_chunks_mut(width));
    rows.enumerate().try_for_each(|(row, (x, out))| {
        stop.check()?;
        apply(row, x, out);
        Ok(())
    })
}

impl Backend for Cpu {
    type Buffer = Vec<f32>;
    type Matrix = Matrix;
    type Vector = Vec<f32>;
    type Input = Input;
    type Cache = Cache;
    type Pass = Pass;
    type Mark = Instant;

    fn name(&self) -> &'static str {
        "cpu"
    }

    fn stop(&self) -> &Stop {
        &self.stop
    }

    fn kernel_name(&self) -> &'static str {
        self.kernel.name()
    }

    fn limits(&self, matrices: Dtype, mapped: &[&[u8]], most: usize) -> Result<Limits> {
        limits::measure(self.kernel, self.kernel.multiplied(self.precision, matrices), mapped, most)
    }

    fn precision(&self) -> Precision {
        self.precision
    }

    fn bit_exact(&self, _: Operation) -> bool {
        true
    }

    fn product_bit_exact(&self, matrix: &Matrix, tokens: usize) -> bool {
        tokens < MIN_PACKED || !matrix.is_for_a_unit(self.kernel)
    }

    fn truncates_sums(&self) -> bool {
        false
    }

    fn table_line(&self) -> Option<(String, String)> {
        self.kernel.table_line()
    }

    fn kernels(&self) -> Vec<Self> {
        Kernel::available().into_iter().map(|kernel| Self { kernel, ..self.clone() }).collect()
    }

    fn readings(&self) -> Vec<(String, Self)> {
        let all = self.kernel.readings(self.precision);
        let all = if all.len() > 1 { all } else { Vec::new() };
        all.into_iter().map(|kernel| (kernel.reading(), Self { kernel, ..self.clone() })).collect()
    }

    fn cut(&self, matrix: &Matrix, rows: Range<usize>) -> Result<Matrix> {
        Ok(matrix.cut(rows))
    }

    fn free_memory(&self) -> Option<usize> {
        system::free()
    }

    fn mark(&self) -> Instant {
        Instant::now()
    }

    fn between(&self, from: &Instant, to: &Instant) -> Duration {
        *to - *from
    }

    fn sync(&self) -> Result<()> {
        Ok(()) // an operation is done when it returns
    }

    fn buffer(&self, count: usize) -> Result<Vec<f32>> {
        memory::filled(0.0, count)
    }

    fn matrix(&self, tensor: &Tensor) -> Result<Matrix> {
        Matrix::new(tensor.clone(), self.precision, &self.stop)
    }

    fn vector(&self, tensor: &Tensor) -> Result<Vec<f32>> {
        let mut values = memory::filled(0.0, tensor.count())?;
        kernel::widen(tensor.dtype(), tensor.bytes(), &mut values);
        self.round(&mut values);
        Ok(values)
    }

    fn read(
        &self,
        buffer: &Vec<f32>,
        range: Range<usize>,
        see: &mut dyn FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        see(&buffer[range])
    }

    fn write(&self, values: &[f32], buffer: &mut Vec<f32>) -> Result<()> {
        buffer[..values.len()].copy_from_slice(values);
        Ok(())
    }

    fn read_rows(
        &self,
        matrix: &Matrix,
        rows: Range<usize>,
        see: &mut dyn FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        let mut values = memory::filled(0.0, rows.len() * matrix.inputs())?;
        for (row, out) in rows.zip(values.chunks_exact_mut(matrix.inputs())) {
            self.stop.check()?;
            matrix.copy_row(row, out);
        }
        see(&values)
    }

    fn read_int8_rows(&self, matrix: &Matrix, rows: Range<usize>, see: SeeGroups<'_>) -> Result<()> {
        matrix.int8_rows(rows).map_or(Ok(()), see)
    }

    fn read_vector(&self, vector: &Vec<f32>, see: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()> {
        see(vector)
    }

    fn new_pass(&self) -> Result<Pass> {
        Ok(Pass::default())
    }

    fn begin_pass(&self, ids: &[u32], spans: &[Span], _: &[Draw], pass: &mut Pass) -> Result<()> {
        awake::keep_awake();
        pass.ids.clear();
        memory::grow(&mut pass.ids, ids.len())?;
        pass.ids.extend_from_slice(ids);
        pass.spans.clear();
        pass.spans.extend_from_slice(spans);
        Ok(())
    }

    fn embedding(&self, table: &Matrix, pass: &Pass, out: &mut Vec<f32>) -> Result<()> {
        for (&id, out) in pass.ids.iter().zip(out.chunks_exact_mut(table.inputs())) {
            self.stop.check()?;
            table.copy_row(id as usize, out);
        }
        Ok(())
    }

    fn rope_table(
        &self,
        frequencies: &Vec<f32>,
        pairs: usize,
        pass: &Pass,
        cos: &mut Vec<f32>,
        sin: &mut Vec<f32>,
    ) -> Result<()> {
        let positions = pass.spans.iter().flat_map(|span| span.start..span.keys());
        let rows = cos.chunks_exact_mut(pairs).zip(sin.chunks_exact_mut(pairs));
        for (position, (cos, sin)) in positions.zip(rows) {
            ops::rope::angles(position, &frequencies[..pairs], cos, sin);
            self.round(cos);
            self.round(sin);
        }
        Ok(())
    }

    fn rms_norm(
        &self,
        x: &Vec<f32>,
        weight: &Vec<f32>,
        eps: f32,
        rows: usize,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let width = weight.len();
        each_row(&self.stop, &x[..rows * width], &mut out[..rows * width], width, |_, x, out| {
            self.kernel.isa.rms_norm(x, weight, eps, self.precision, out);
        })
    }

    fn input(&self) -> Input {
        Input::default()
    }

    fn prepare(
        &self,
        x: &Vec<f32>,
        width: usize,
        pass: &Pass,
        rows: &PassRows,
        input: &mut Input,
    ) -> Result<()> {
        input.prepare(self, &x[..rows.count(&pass.spans) * width], width, rows.orders(&pass.spans))
    }

    fn read_quantized(
        &self,
        input: &Input,
        rows: Range<usize>,
        see: &mut dyn FnMut(&[i8], &[f32]) -> Result<()>,
    ) -> Result<()> {
        let ((values, scales), all) = (input.quantized(), input.rows);
        let of = |count: usize| rows.start * (count / all)..rows.end * (count / all);
        see(&values[of(values.len())], &scales[of(scales.len())])
    }

    fn matmul(&self, x: &Input, w: &Matrix, bias: Option<&Vec<f32>>, out: &mut Vec<f32>) -> Result<()> {
        matrix::product(self.kernel, x, w, bias, out, &self.stop)
    }

    fn rope(
        &self,
        x: &Vec<f32>,
        cos: &Vec<f32>,
        sin: &Vec<f32>,
        pairing: Pairing,
        heads: usize,
        head_dim: usize,
        rows: usize,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let (pairs, width) = (head_dim / 2, heads * head_dim);
        each_row(&self.stop, &x[..rows * width], &mut out[..rows * width], width, |row, x, out| {
            let (cos, sin) = (&cos[row * pairs..][..pairs], &sin[row * pairs..][..pairs]);
            for (x, out) in x.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim)) {
                self.kernel.isa.rope(x, cos, sin, pairing, self.precision, out);
            }
        })
    }

    fn cache_dtype(&self) -> CacheDtype {
        self.cache_dtype
    }

    fn new_cache(&self, count: usize) -> Result<Cache> {
        Cache::new(self.cache_dtype, count)
    }

    fn cache(&self, x: &Vec<f32>, width: usize, pass: &Pass, span: usize, cache: &mut Cache) -> Result<()> {
        cache.write(pass.spans[span].start * width, &x[pass.values_of(span, width)]);
        Ok(())
    }

    fn read_cache(
        &self,
        cache: &Cache,
        count: usize,
        see: &mut dyn FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        see(cache.read(0..count, &mut Vec::new()))
    }

    fn take_cache(&self, cache: &Cache, range: Range<usize>) -> Result<Cache> {
        cache.part(range)
    }

    fn put_cache(&self, from: &Cache, at: usize, cache: &mut Cache) -> Result<()> {
        cache.put(at, from);
        Ok(())
    }

    fn attention(
        &self,
        shape: AttentionShape,
        q: &Vec<f32>,
        pass: &Pass,
        span: usize,
        keys: &Cache,
        values: &Cache,
        out: &mut Vec<f32>,
        sink: &mut dyn AttentionSink,
    ) -> Result<()> {
        let range = pass.values_of(span, shape.heads * shape.head_dim);
        let (q, out) = (&q[range.clone()], &mut out[range]);
        attention::attention(self, shape, pass.spans[span], q, keys, values, out, sink)
    }

    fn silu(&self, x: &Vec<f32>, count: usize, out: &mut Vec<f32>) -> Result<()> {
        each_row(&self.stop, &x[..count], &mut out[..count], ELEMENTS, |_, x, out| {
            self.kernel.isa.silu(x, out);
            self.round(out);
        })
    }

    fn mul(&self, a: &Vec<f32>, b: &Vec<f32>, count: usize, out: &mut Vec<f32>) -> Result<()> {
        each_row(&self.stop, &a[..count], &mut out[..count], ELEMENTS, |part, a, out| {
            self.kernel.isa.mul(a, &b[part * ELEMENTS..], out);
            self.round(out);
        })
    }

    fn add(&self, a: &Vec<f32>, b: &Vec<f32>, count: usize, out: &mut Vec<f32>) -> Result<()> {
        each_row(&self.stop, &a[..count], &mut out[..count], ELEMENTS, |part, a, out| {
            self.kernel.isa.add(a, &b[part * ELEMENTS..], out);
            self.round(out);
        })
    }

    fn rows(
        &self,
        x: &Vec<f32>,
        width: usize,
        pass: &Pass,
        rows: &PassRows,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let mut next = 0;
        for range in rows.ranges(&pass.spans) {
            out[next..next + range.len() * width].copy_from_slice(&x[range.start * width..range.end * width]);
            next += range.len() * width;
        }
        Ok(())
    }
}
