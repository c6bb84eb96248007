//! The CPU backend: the plain operations of [`llama_trace_core::ops`], run on many threads by rayon and compiled for
//! the vector instructions of the machine.
//!
//! Each output is computed by one thread, with the arithmetic of `ops/` and in its order. Results therefore do not
//! depend on the number of threads, the instruction set or the number of tokens. There are two exceptions. If the
//! processor multiplies bfloat16, wide products of many tokens of one sequence have their own order
//! (`kernel/bf16_gemm.rs`). Other sequences in the same pass change nothing (`input.rs`). The kernel `wasm` has its own
//! [`Arithmetic`].

mod attention;
#[cfg_attr(not(feature = "native"), path = "asleep.rs")]
mod awake;
mod cache;
pub mod edited;
mod family;
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

use super::{
    AttentionShape, AttentionSink, Backend, Buffer, Draw, Limits, Mark, Operation, PassRows, SeeGroups, Span,
    Vector,
};
use crate::backend;
use llama_trace_core::config::{Arithmetic, CacheDtype, Pairing, Precision};
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
    /// Creates a CPU with the fastest inner loops that this machine can run. On WebAssembly, this is the kernel `wasm`,
    /// whose results have other bits.
    fn default() -> Self {
        Self::with_kernel(if cfg!(target_arch = "wasm32") { Kernel::wasm() } else { Kernel::default() })
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

/// The values of a buffer.
fn floats(buffer: &Buffer) -> &[f32] {
    buffer.downcast::<Vec<f32>>()
}

/// The values of a buffer, to write to them.
fn floats_mut(buffer: &mut Buffer) -> &mut [f32] {
    buffer.downcast_mut::<Vec<f32>>()
}

/// The values of a vector.
fn weights(vector: &Vector) -> &[f32] {
    vector.downcast::<Vec<f32>>()
}

impl Backend for Cpu {
    fn name(&self) -> &'static str {
        match self.arithmetic() {
            Arithmetic::Fused => "cpu",
            Arithmetic::Separate => "cpu-wasm",
        }
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

    fn arithmetic(&self) -> Arithmetic {
        self.kernel.isa.arithmetic()
    }

    fn bit_exact(&self, _: Operation) -> bool {
        true
    }

    fn product_bit_exact(&self, matrix: &backend::Matrix, tokens: usize) -> bool {
        tokens < MIN_PACKED || !matrix.downcast::<Matrix>().is_for_a_unit(self.kernel)
    }

    fn truncates_sums(&self) -> bool {
        false
    }

    fn table_line(&self) -> Option<(String, String)> {
        self.kernel.table_line()
    }

    fn kernels(&self) -> Vec<Box<dyn Backend>> {
        let of = |kernel| -> Box<dyn Backend> { Box::new(Self { kernel, ..self.clone() }) };
        Kernel::selectable().into_iter().map(of).collect()
    }

    fn readings(&self) -> Vec<(String, Box<dyn Backend>)> {
        let all = self.kernel.readings(self.precision);
        let all = if all.len() > 1 { all } else { Vec::new() };
        let of = |kernel: Kernel| -> (String, Box<dyn Backend>) {
            (kernel.reading(), Box::new(Self { kernel, ..self.clone() }))
        };
        all.into_iter().map(of).collect()
    }

    fn cut(&self, matrix: &backend::Matrix, rows: Range<usize>) -> Result<backend::Matrix> {
        Ok(backend::Matrix::new(matrix.downcast::<Matrix>().cut(rows)))
    }

    fn families(&self) -> Option<&dyn backend::family::FamilyOperations> {
        Some(self)
    }

    fn free_memory(&self) -> Option<usize> {
        system::free()
    }

    fn mark(&self) -> Mark {
        Mark::new(Instant::now())
    }

    fn between(&self, from: &Mark, to: &Mark) -> Duration {
        *to.downcast::<Instant>() - *from.downcast::<Instant>()
    }

    fn sync(&self) -> Result<()> {
        Ok(()) // an operation is done when it returns
    }

    fn buffer(&self, count: usize) -> Result<Buffer> {
        memory::filled(0.0_f32, count).map(Buffer::new)
    }

    fn matrix(&self, tensor: &Tensor) -> Result<backend::Matrix> {
        Matrix::new(tensor.clone(), self.precision, &self.stop).map(backend::Matrix::new)
    }

    fn vector(&self, tensor: &Tensor) -> Result<Vector> {
        let mut values = memory::filled(0.0, tensor.count())?;
        kernel::widen(tensor.dtype(), tensor.bytes(), &mut values);
        self.round(&mut values);
        Ok(Vector::new(values))
    }

    fn read(
        &self,
        buffer: &Buffer,
        range: Range<usize>,
        see: &mut dyn FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        see(&floats(buffer)[range])
    }

    fn write(&self, values: &[f32], at: usize, buffer: &mut Buffer) -> Result<()> {
        floats_mut(buffer)[at..at + values.len()].copy_from_slice(values);
        Ok(())
    }

    fn write_cache(&self, values: &[f32], cache: &mut backend::Cache) -> Result<()> {
        cache.downcast_mut::<Cache>().write(0, values);
        Ok(())
    }

    fn read_rows(
        &self,
        matrix: &backend::Matrix,
        rows: Range<usize>,
        see: &mut dyn FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        let matrix: &Matrix = matrix.downcast();
        let mut values = memory::filled(0.0, rows.len() * matrix.inputs())?;
        for (row, out) in rows.zip(values.chunks_exact_mut(matrix.inputs())) {
            self.stop.check()?;
            matrix.copy_row(row, out);
        }
        see(&values)
    }

    fn read_int8_rows(&self, matrix: &backend::Matrix, rows: Range<usize>, see: SeeGroups<'_>) -> Result<()> {
        matrix.downcast::<Matrix>().int8_rows(rows).map_or(Ok(()), see)
    }

    fn read_vector(&self, vector: &Vector, see: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()> {
        see(weights(vector))
    }

    fn new_pass(&self) -> Result<backend::Pass> {
        Ok(backend::Pass::new(Pass::default()))
    }

    fn begin_pass(&self, ids: &[u32], spans: &[Span], _: &[Draw], pass: &mut backend::Pass) -> Result<()> {
        awake::keep_awake();
        let pass: &mut Pass = pass.downcast_mut();
        pass.ids.clear();
        memory::grow(&mut pass.ids, ids.len())?;
        pass.ids.extend_from_slice(ids);
        pass.spans.clear();
        pass.spans.extend_from_slice(spans);
        Ok(())
    }

    fn embedding(&self, table: &backend::Matrix, pass: &backend::Pass, out: &mut Buffer) -> Result<()> {
        let (table, pass): (&Matrix, &Pass) = (table.downcast(), pass.downcast());
        for (&id, out) in pass.ids.iter().zip(floats_mut(out).chunks_exact_mut(table.inputs())) {
            self.stop.check()?;
            table.copy_row(id as usize, out);
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
        let spans = &pass.downcast::<Pass>().spans;
        let positions = spans.iter().flat_map(|span| span.start..span.keys());
        let (frequencies, cos, sin) = (&floats(frequencies)[..pairs], floats_mut(cos), floats_mut(sin));
        let rows = cos.chunks_exact_mut(pairs).zip(sin.chunks_exact_mut(pairs));
        for (position, (cos, sin)) in positions.zip(rows) {
            ops::rope::angles(self.arithmetic(), position, frequencies, cos, sin);
            self.round(cos);
            self.round(sin);
        }
        Ok(())
    }

    fn rms_norm(&self, x: &Buffer, weight: &Vector, eps: f32, rows: usize, out: &mut Buffer) -> Result<()> {
        let weight = weights(weight);
        let width = weight.len();
        let (x, out) = (&floats(x)[..rows * width], &mut floats_mut(out)[..rows * width]);
        each_row(&self.stop, x, out, width, |_, x, out| {
            self.kernel.isa.rms_norm(x, weight, eps, self.precision, out);
        })
    }

    fn input(&self) -> backend::Input {
        backend::Input::new(Input::default())
    }

    fn prepare(
        &self,
        x: &Buffer,
        width: usize,
        pass: &backend::Pass,
        rows: &PassRows,
        input: &mut backend::Input,
    ) -> Result<()> {
        let (spans, input): (_, &mut Input) = (&pass.downcast::<Pass>().spans, input.downcast_mut());
        input.prepare(self, &floats(x)[..rows.count(spans) * width], width, rows.orders(spans))
    }

    fn read_quantized(
        &self,
        input: &backend::Input,
        rows: Range<usize>,
        see: &mut dyn FnMut(&[i8], &[f32]) -> Result<()>,
    ) -> Result<()> {
        let input: &Input = input.downcast();
        let ((values, scales), all) = (input.quantized(), input.rows);
        let of = |count: usize| rows.start * (count / all)..rows.end * (count / all);
        see(&values[of(values.len())], &scales[of(scales.len())])
    }

    fn matmul(
        &self,
        x: &backend::Input,
        w: &backend::Matrix,
        bias: Option<&Vector>,
        out: &mut Buffer,
    ) -> Result<()> {
        let bias = bias.map(Vector::downcast);
        matrix::product(self.kernel, x.downcast(), w.downcast(), bias, floats_mut(out), &self.stop)
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
        let (pairs, width) = (head_dim / 2, heads * head_dim);
        let (x, out) = (&floats(x)[..rows * width], &mut floats_mut(out)[..rows * width]);
        let (cos, sin) = (floats(cos), floats(sin));
        each_row(&self.stop, x, out, width, |row, x, out| {
            let (cos, sin) = (&cos[row * pairs..][..pairs], &sin[row * pairs..][..pairs]);
            for (x, out) in x.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim)) {
                self.kernel.isa.rope(x, cos, sin, pairing, self.precision, out);
            }
        })
    }

    fn cache_dtype(&self) -> CacheDtype {
        self.cache_dtype
    }

    fn new_cache(&self, count: usize) -> Result<backend::Cache> {
        Cache::new(self.cache_dtype, count).map(backend::Cache::new)
    }

    fn cache(
        &self,
        x: &Buffer,
        width: usize,
        pass: &backend::Pass,
        span: usize,
        cache: &mut backend::Cache,
    ) -> Result<()> {
        let (pass, cache): (&Pass, &mut Cache) = (pass.downcast(), cache.downcast_mut());
        cache.write(pass.spans[span].start * width, &floats(x)[pass.values_of(span, width)]);
        Ok(())
    }

    fn read_cache(
        &self,
        cache: &backend::Cache,
        count: usize,
        see: &mut dyn FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        see(cache.downcast::<Cache>().read(0..count, &mut Vec::new()))
    }

    fn take_cache(&self, cache: &backend::Cache, range: Range<usize>) -> Result<backend::Cache> {
        cache.downcast::<Cache>().part(range).map(backend::Cache::new)
    }

    fn put_cache(&self, from: &backend::Cache, at: usize, cache: &mut backend::Cache) -> Result<()> {
        cache.downcast_mut::<Cache>().put(at, from.downcast());
        Ok(())
    }

    fn attention(
        &self,
        shape: AttentionShape,
        q: &Buffer,
        pass: &backend::Pass,
        span: usize,
        keys: &backend::Cache,
        values: &backend::Cache,
        out: &mut Buffer,
        sink: &mut dyn AttentionSink,
    ) -> Result<()> {
        let pass: &Pass = pass.downcast();
        let range = pass.values_of(span, shape.heads * shape.head_dim);
        let (q, out) = (&floats(q)[range.clone()], &mut floats_mut(out)[range]);
        let (keys, values) = (keys.downcast(), values.downcast());
        attention::attention(self, shape, pass.spans[span], q, keys, values, out, sink)
    }

    fn silu(&self, x: &Buffer, count: usize, out: &mut Buffer) -> Result<()> {
        each_row(&self.stop, &floats(x)[..count], &mut floats_mut(out)[..count], ELEMENTS, |_, x, out| {
            self.kernel.isa.silu(x, out);
            self.round(out);
        })
    }

    fn mul(&self, a: &Buffer, b: &Buffer, count: usize, out: &mut Buffer) -> Result<()> {
        let (a, b, out) = (floats(a), floats(b), floats_mut(out));
        each_row(&self.stop, &a[..count], &mut out[..count], ELEMENTS, |part, a, out| {
            self.kernel.isa.mul(a, &b[part * ELEMENTS..], out);
            self.round(out);
        })
    }

    fn add(&self, a: &Buffer, b: &Buffer, count: usize, out: &mut Buffer) -> Result<()> {
        let (a, b, out) = (floats(a), floats(b), floats_mut(out));
        each_row(&self.stop, &a[..count], &mut out[..count], ELEMENTS, |part, a, out| {
            self.kernel.isa.add(a, &b[part * ELEMENTS..], out);
            self.round(out);
        })
    }

    fn rows(
        &self,
        x: &Buffer,
        width: usize,
        pass: &backend::Pass,
        rows: &PassRows,
        out: &mut Buffer,
    ) -> Result<()> {
        let (x, out, mut next) = (floats(x), floats_mut(out), 0);
        for range in rows.ranges(&pass.downcast::<Pass>().spans) {
            out[next..next + range.len() * width].copy_from_slice(&x[range.start * width..range.end * width]);
            next += range.len() * width;
        }
        Ok(())
    }
}
