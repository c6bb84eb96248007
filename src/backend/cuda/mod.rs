//! A GPU of NVIDIA's: every operation is one launch or a few of kernels in CUDA C++ (`kernels/`, the names of
//! [`crate::ops`]), compiled for the device when they are first used.
//!
//! ```text
//! Cuda (the operations) ─▶ Kernels (which, with what defined) ─▶ Queue (in order; passes are repeated) ─▶ Driver
//!                                                                     NVIDIA's, or in tests the processor ◀┘
//! ```
//!
//! **Order and bits.** Norms, what goes element by element, quantised activations and products in whole numbers have the
//! bits of [`crate::ops`]. Products in floats and attention sum in other orders, which depend on the sizes and on the tokens
//! of a row's own span, never on the other spans, nor on who looks. Nothing is rounded that `ops/` does not round:
//! no TF32, no approximate division.
//!
//! What no GPU has run yet stands in the README.

mod attention;
mod blas;
mod driver;
#[cfg(test)]
pub(crate) mod emulated;
mod kernels;
mod libraries;
mod limits;
mod matrix;
mod memory;
mod nvidia;
pub mod nvrtc;
mod pass;
mod product;
pub mod ptx;
mod queue;
mod sampling;
pub mod sources;
mod store;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::cpu::Cpu;
use super::{
    AttentionShape, AttentionSink, Backend, Draw, Drawn, Limits, Made, Operation, PassRows, Product,
    SeeGroups, SeeInt8, Span, Swiglu,
};
use crate::checkpoint::{Dtype, Tensor};
use crate::config::{CacheDtype, Pairing, Precision};
use crate::error::Result;
use crate::stop::Stop;
use driver::{Address, Arguments, Driver, Event};
use kernels::{Kernel, Kernels};
use memory::{Growing, Memory};
use queue::Queue;
use sampling::Place;

pub use matrix::Matrix;
pub use memory::{Buffer, Vector};
pub use pass::Pass;
pub use product::Input;

/// Bytes that kernels, the driver and its graphs take of the device's memory beside what is asked for.
pub const OWN_BYTES: usize = 512 << 20;

/// Values that are read at once where a kernel makes them.
const VALUES_AT_ONCE: usize = 4 << 20;

/// A device, and the arithmetic that it computes in.
#[derive(Clone)]
pub struct Cuda {
    queue: Arc<Queue>,
    kernels: Arc<Kernels>,
    scratch: Arc<Mutex<Scratch>>,
    /// What makes weights ready that are stored in another number type than they are multiplied in.
    host: Cpu,
    precision: Precision,
    cache_dtype: CacheDtype,
    stop: Stop,
    architecture: &'static str,
}

/// Memory that operations use while they run, one after the other.
#[derive(Default)]
struct Scratch {
    partial: Growing,
    counters: Growing,
    draw: Option<Place>,
}

impl Scratch {
    /// For attention over one token: sums of the splits, and a counter for each block, which its kernel leaves at 0.
    fn attention(
        &mut self,
        queue: &Arc<Queue>,
        floats: usize,
        counters: usize,
    ) -> Result<(Address, Address)> {
        Ok((self.partial.room(queue, floats * 4, false)?, self.counters.room(queue, counters * 4, true)?))
    }
}

/// The keys or the values of one layer of one sequence (capacity, G, C), in the number type of the cache.
pub struct Cache {
    memory: Memory,
    dtype: CacheDtype,
}

/// A moment in the device's work; none where it could not tell.
pub struct Mark {
    queue: Arc<Queue>,
    event: Option<Event>,
}

impl Drop for Mark {
    fn drop(&mut self) {
        if let Some(event) = self.event {
            self.queue.device().release(event);
        }
    }
}

impl Cuda {
    /// Device number `number`, in float32.
    ///
    /// # Errors
    /// [`crate::error::Error::Usage`] where there is no driver, no such device, or one that is too old.
    pub fn open(number: usize) -> Result<Self> {
        Ok(Self::over(Box::new(nvidia::Nvidia::open(number)?)))
    }

    /// The processor as a device with `bytes` bytes of memory; none, said aloud, where nothing compiles the kernels.
    #[cfg(test)]
    pub(crate) fn emulated(bytes: usize) -> Option<Self> {
        Self::lost_after(bytes, usize::MAX)
    }

    /// The same, but the device is lost after so many launches.
    #[cfg(test)]
    pub(crate) fn lost_after(bytes: usize, launches: usize) -> Option<Self> {
        Some(Self::over(Box::new(emulated::Emulated::new(bytes, launches)?)))
    }

    /// The same, and what the device is asked for.
    #[cfg(test)]
    pub(crate) fn logged(bytes: usize) -> Option<(Self, emulated::Log)> {
        let device = emulated::Emulated::new(bytes, usize::MAX)?;
        let log = device.log();
        Some((Self::over(Box::new(device)), log))
    }

    /// How often launches were repeated that the device had taken down.
    #[cfg(test)]
    pub(crate) fn repeated(&self) -> usize {
        self.queue.repeated()
    }

    fn over(driver: Box<dyn Driver>) -> Self {
        let (major, minor) = driver.about().architecture;
        let queue = Arc::new(Queue::new(driver));
        let (precision, cache_dtype) = (Precision::F32, CacheDtype::F32);
        Self {
            kernels: Arc::new(Kernels::new(&queue, precision, cache_dtype)),
            queue,
            scratch: Arc::default(),
            host: Cpu::default(),
            precision,
            cache_dtype,
            stop: Stop::default(),
            // One a process.
            architecture: Box::leak(format!("sm_{major}{minor}").into_boxed_str()),
        }
    }

    /// The same in another arithmetic.
    #[must_use]
    pub fn with_precision(self, precision: Precision) -> Self {
        let host = self.host.with_precision(precision);
        Self { precision, host, ..self }.with_cache_dtype(precision.cache_dtype())
    }

    /// The same with keys and values cached in another number type than the precision's own.
    #[must_use]
    pub fn with_cache_dtype(self, cache_dtype: CacheDtype) -> Self {
        let kernels = Arc::new(Kernels::new(&self.queue, self.precision, cache_dtype));
        Self { kernels, cache_dtype, ..self }
    }

    /// The same, stopped by `stop` instead of a request of its own.
    #[must_use]
    pub fn with_stop(self, stop: Stop) -> Self {
        Self { host: self.host.with_stop(stop.clone()), stop, ..self }
    }

    /// Whether kernels can be had for the device: compiles the smallest, or finds it compiled.
    ///
    /// # Errors
    /// Where there is no compiler for them, or it fails.
    pub fn ready(&self) -> Result<()> {
        self.kernels.ready(Kernel { file: "elementwise", name: "add", weight: None })
    }

    /// The device's name for users.
    pub fn device_name(&self) -> &str {
        &self.queue.device().about().name
    }

    fn scratch(&self) -> MutexGuard<'_, Scratch> {
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What goes element by element, 4 values a thread.
    fn elements(&self, name: &'static str, count: usize, inputs: &[&Buffer], out: &Buffer) -> Result<()> {
        self.stop.check()?;
        let mut arguments = Arguments::new();
        for input in inputs {
            input.holds(count);
            arguments = arguments.address(input.at(0));
        }
        out.holds(count);
        let kernel = Kernel { file: "elementwise", name, weight: None };
        let arguments = arguments.long(count).address(out.at(0));
        self.kernels.launch(kernel, (count.div_ceil(512), 1), 128, 0, arguments)
    }
}

/// Threads of a block that normalises a row of so many values.
fn norm_threads(width: usize) -> u32 {
    if width <= 512 { 32 } else { 256 }
}

/// Shows `values` float32 values from byte `first` of `memory` on, some at a time; what sees them wants all at once.
fn read_floats(
    memory: &Memory,
    range: Range<usize>,
    see: &mut dyn FnMut(&[f32]) -> Result<()>,
) -> Result<()> {
    let mut values = vec![0.0_f32; range.len()];
    memory.read(range.start * 4, bytemuck::cast_slice_mut(&mut values))?;
    see(&values)
}

impl Backend for Cuda {
    type Buffer = Buffer;
    type Matrix = Matrix;
    type Vector = Vector;
    type Input = Input;
    type Cache = Cache;
    type Pass = Pass;
    type Mark = Mark;

    fn name(&self) -> &'static str {
        "cuda"
    }

    fn stop(&self) -> &Stop {
        &self.stop
    }

    fn kernel_name(&self) -> &'static str {
        self.architecture
    }

    fn limits(&self, _: Dtype, _: &[&[u8]]) -> Result<Limits> {
        limits::measure(self, limits::FULL)
    }

    fn precision(&self) -> Precision {
        self.precision
    }

    fn keeps_order(&self, operation: Operation) -> bool {
        operation != Operation::Attention
    }

    fn product_keeps_order(&self, matrix: &Matrix, tokens: usize) -> bool {
        product::keeps_order(self.precision, matrix, tokens)
    }

    fn table_line(&self) -> Option<(String, String)> {
        None
    }

    fn kernels(&self) -> Vec<Self> {
        vec![self.clone()]
    }

    fn cut(&self, matrix: &Matrix, rows: Range<usize>) -> Result<Matrix> {
        Ok(matrix.cut(rows))
    }

    fn free_memory(&self) -> Option<usize> {
        self.queue.device().room().ok().map(|room| room.free)
    }

    fn mark(&self) -> Mark {
        Mark { event: self.queue.ask(|device| device.mark()).ok(), queue: Arc::clone(&self.queue) }
    }

    fn between(&self, from: &Mark, to: &Mark) -> Duration {
        match (from.event, to.event) {
            (Some(from), Some(to)) => self.queue.device().between(from, to),
            _ => Duration::ZERO,
        }
    }

    fn sync(&self) -> Result<()> {
        self.queue.wait(&self.stop)
    }

    fn buffer(&self, count: usize) -> Result<Buffer> {
        Buffer::new(&self.queue, count)
    }

    fn matrix(&self, tensor: &Tensor) -> Result<Matrix> {
        self.stop.check()?;
        // The processor knows in which number type a precision multiplies what.
        Matrix::new(self, self.host.matrix(tensor)?.tensor())
    }

    fn vector(&self, tensor: &Tensor) -> Result<Vector> {
        let values = self.host.vector(tensor)?;
        Ok(Vector { memory: Memory::of(&self.queue, bytemuck::cast_slice(&values))? })
    }

    fn read(
        &self,
        buffer: &Buffer,
        range: Range<usize>,
        see: &mut dyn FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        read_floats(&buffer.memory, range, see)
    }

    fn read_rows(
        &self,
        matrix: &Matrix,
        rows: Range<usize>,
        see: &mut dyn FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        let inputs = matrix.inputs();
        let mut values = vec![0.0_f32; rows.len() * inputs];
        let at_once = (VALUES_AT_ONCE / inputs).clamp(1, rows.len().max(1));
        let out = Memory::new(&self.queue, at_once * inputs * 4)?;
        let kernel = Kernel { file: "widen", name: "widen", weight: Some(matrix.dtype()) };
        for (i, values) in values.chunks_mut(at_once * inputs).enumerate() {
            self.stop.check()?;
            let arguments = Arguments::new().words(&matrix.words()).int(rows.start + i * at_once);
            let grid = (values.len() / inputs, 1);
            self.kernels.launch(kernel, grid, 128, 0, arguments.address(out.at()))?;
            out.read(0, bytemuck::cast_slice_mut(values))?;
        }
        see(&values)
    }

    fn read_int8_rows(&self, matrix: &Matrix, rows: Range<usize>, see: SeeGroups<'_>) -> Result<()> {
        match self.precision.group() {
            Some(_) => matrix.see_whole(rows, see),
            None => Ok(()),
        }
    }

    fn read_vector(&self, vector: &Vector, see: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()> {
        read_floats(&vector.memory, 0..vector.len(), see)
    }

    fn write(&self, values: &[f32], buffer: &mut Buffer) -> Result<()> {
        buffer.memory.write(0, bytemuck::cast_slice(values))
    }

    fn new_pass(&self) -> Result<Pass> {
        Ok(Pass::default())
    }

    fn begin_pass(&self, ids: &[u32], spans: &[Span], draws: &[Draw], pass: &mut Pass) -> Result<()> {
        self.stop.check()?;
        pass.begin(&self.queue, ids, spans, draws)
    }

    fn embedding(&self, table: &Matrix, pass: &Pass, out: &mut Buffer) -> Result<()> {
        self.stop.check()?;
        out.holds(pass.rows() * table.inputs());
        let kernel = Kernel { file: "embedding", name: "embedding", weight: Some(table.dtype()) };
        let arguments = Arguments::new().words(&table.words()).address(pass.ids()).address(out.at(0));
        self.kernels.launch(kernel, (pass.rows(), 1), 128, 0, arguments)
    }

    fn rope_table(
        &self,
        frequencies: &Buffer,
        pairs: usize,
        pass: &Pass,
        cos: &mut Buffer,
        sin: &mut Buffer,
    ) -> Result<()> {
        frequencies.holds(pairs);
        cos.holds(pass.rows() * pairs);
        sin.holds(pass.rows() * pairs);
        let kernel = Kernel { file: "rope", name: "rope_table", weight: None };
        let arguments = Arguments::new().address(frequencies.at(0)).address(pass.positions()).int(pairs);
        let arguments = arguments.address(cos.at(0)).address(sin.at(0));
        self.kernels.launch(kernel, (pass.rows(), 1), 128, 0, arguments)
    }

    fn rms_norm(&self, x: &Buffer, weight: &Vector, eps: f32, rows: usize, out: &mut Buffer) -> Result<()> {
        self.stop.check()?;
        let width = weight.len();
        x.holds(rows * width);
        out.holds(rows * width);
        let kernel = Kernel { file: "rms_norm", name: "rms_norm", weight: None };
        let arguments = Arguments::new().address(x.at(0)).address(weight.at()).float(eps).int(width);
        self.kernels.launch(kernel, (rows, 1), norm_threads(width), 0, arguments.address(out.at(0)))
    }

    fn input(&self) -> Input {
        Input::default()
    }

    fn prepare(
        &self,
        x: &Buffer,
        width: usize,
        pass: &Pass,
        rows: &PassRows,
        input: &mut Input,
    ) -> Result<()> {
        input.prepare(self, x, width, pass.spans(), rows)
    }

    fn read_quantized(&self, input: &Input, rows: Range<usize>, see: SeeInt8<'_>) -> Result<()> {
        let Some(group) = self.precision.group() else { return see(&[], &[]) };
        let groups = input.width.div_ceil(group);
        let (mut values, mut scales) = (vec![0_i8; rows.len() * input.width], vec![0.0; rows.len() * groups]);
        if let (Some(of_values), Some(of_scales)) = (input.values.memory(), input.scales.memory()) {
            of_values.read(rows.start * input.width, bytemuck::cast_slice_mut(&mut values))?;
            of_scales.read(rows.start * groups * 4, bytemuck::cast_slice_mut(&mut scales))?;
        }
        see(&values, &scales)
    }

    fn matmul(&self, x: &Input, w: &Matrix, bias: Option<&Vector>, out: &mut Buffer) -> Result<()> {
        product::multiply(self, x, &[product::Asked { matrix: w, bias, out }])
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
        self.stop.check()?;
        x.holds(rows * heads * head_dim);
        out.holds(rows * heads * head_dim);
        cos.holds(rows * head_dim / 2);
        sin.holds(rows * head_dim / 2);
        let kernel = Kernel { file: "rope", name: "rope", weight: None };
        let arguments = Arguments::new().address(x.at(0)).address(cos.at(0)).address(sin.at(0));
        let arguments = arguments.int(usize::from(pairing == Pairing::Neighbours)).int(heads).int(head_dim);
        let grid = (rows, (heads * head_dim / 2).div_ceil(128));
        self.kernels.launch(kernel, grid, 128, 0, arguments.address(out.at(0)))
    }

    fn cache_dtype(&self) -> CacheDtype {
        self.cache_dtype
    }

    fn new_cache(&self, count: usize) -> Result<Cache> {
        let bytes = count.saturating_mul(self.cache_dtype.bytes());
        Ok(Cache { memory: Memory::zeros(&self.queue, bytes)?, dtype: self.cache_dtype })
    }

    fn cache(&self, x: &Buffer, width: usize, pass: &Pass, span: usize, cache: &mut Cache) -> Result<()> {
        let Span { tokens, .. } = pass.spans()[span];
        let keys = pass.spans()[span].keys();
        x.holds(pass.rows() * width);
        assert!(
            keys * width * cache.dtype.bytes() <= cache.memory.bytes(),
            "a cache is not written beyond its room"
        );
        let kernel = Kernel { file: "cache", name: "cache", weight: None };
        let rows = [x.at(0), pass.span(span), cache.memory.at()];
        let grid = (tokens, width.div_ceil(512));
        let arguments = Arguments::new().first_of(&rows).int(width);
        self.kernels.launch_together(kernel, grid, 128, rows.len(), arguments)
    }

    fn read_cache(
        &self,
        cache: &Cache,
        count: usize,
        see: &mut dyn FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        if cache.dtype == CacheDtype::F32 {
            return read_floats(&cache.memory, 0..count, see);
        }
        let mut values = vec![0.0_f32; count];
        let out = Memory::new(&self.queue, count.min(VALUES_AT_ONCE) * 4)?;
        let kernel = Kernel { file: "cache", name: "read_cache", weight: None };
        for (i, values) in values.chunks_mut(VALUES_AT_ONCE).enumerate() {
            self.stop.check()?;
            let arguments = Arguments::new().address(cache.memory.at()).long(i * VALUES_AT_ONCE);
            let arguments = arguments.long(values.len()).address(out.at());
            self.kernels.launch(kernel, (values.len().div_ceil(512), 1), 128, 0, arguments)?;
            out.read(0, bytemuck::cast_slice_mut(values))?;
        }
        see(&values)
    }

    fn take_cache(&self, cache: &Cache, range: Range<usize>) -> Result<Cache> {
        let size = cache.dtype.bytes();
        let memory = Memory::new(&self.queue, range.len() * size)?;
        memory.take(&cache.memory, range.start * size..range.end * size, 0)?;
        Ok(Cache { memory, dtype: cache.dtype })
    }

    fn put_cache(&self, from: &Cache, at: usize, cache: &mut Cache) -> Result<()> {
        cache.memory.take(&from.memory, 0..from.memory.bytes(), at * cache.dtype.bytes())
    }

    fn attention(
        &self,
        shape: AttentionShape,
        q: &Buffer,
        pass: &Pass,
        span: usize,
        keys: &Cache,
        values: &Cache,
        out: &mut Buffer,
        sink: &mut dyn AttentionSink,
    ) -> Result<()> {
        self.stop.check()?;
        let room = pass.spans()[span].keys() * shape.kv_heads * shape.head_dim * self.cache_dtype.bytes();
        assert!(room <= keys.memory.bytes() && room <= values.memory.bytes(), "all keys are in the cache");
        let (keys, values) = (keys.memory.at(), values.memory.at());
        let asked = attention::Asked { shape, q, pass, span, keys, values, out };
        attention::attention(self, asked)?;
        attention::parts(self, asked, sink)
    }

    fn silu(&self, x: &Buffer, count: usize, out: &mut Buffer) -> Result<()> {
        self.elements("silu", count, &[x], out)
    }

    fn mul(&self, a: &Buffer, b: &Buffer, count: usize, out: &mut Buffer) -> Result<()> {
        // The kernel's order of arguments is that of the formula.
        self.elements("mul", count, &[a, b], out)
    }

    fn add(&self, a: &Buffer, b: &Buffer, count: usize, out: &mut Buffer) -> Result<()> {
        self.elements("add", count, &[a, b], out)
    }

    fn rows(&self, x: &Buffer, width: usize, pass: &Pass, rows: &PassRows, out: &mut Buffer) -> Result<()> {
        x.holds(pass.rows() * width);
        out.holds(rows.count(pass.spans()) * width);
        if *rows == PassRows::Last {
            let kernel = Kernel { file: "rows", name: "last_rows", weight: None };
            let arguments =
                Arguments::new().address(x.at(0)).int(width).address(pass.span(0)).address(out.at(0));
            return self.kernels.launch(kernel, (pass.spans().len(), width.div_ceil(512)), 128, 0, arguments);
        }
        let mut next = 0;
        for range in rows.ranges(pass.spans()) {
            let bytes = range.start * width * 4..range.end * width * 4;
            out.memory.take(&x.memory, bytes, next * width * 4)?;
            next += range.len();
        }
        Ok(())
    }

    fn draws(&self) -> bool {
        true
    }

    fn draw(&self, logits: &Buffer, vocab: usize, pass: &Pass) -> Result<()> {
        let (mut scratch, rows) = (self.scratch(), pass.draws().len());
        if !scratch.draw.as_ref().is_some_and(|place| place.has_room(rows, vocab)) {
            scratch.draw = Some(Place::new(self, rows, vocab)?);
        }
        scratch.draw.as_ref().map_or(Ok(()), |place| place.draw(self, logits, vocab, pass))
    }

    fn drawn(&self, pass: &Pass) -> Result<Vec<Drawn>> {
        sampling::drawn(self, pass)
    }

    fn matmuls(
        &self,
        x: &Input,
        products: &mut [Product<'_, Self>],
        made: &mut Made<'_, Self>,
    ) -> Result<()> {
        let asked: Vec<_> = products
            .iter()
            .map(|Product { matrix, bias, out }| product::Asked { matrix, bias: *bias, out })
            .collect();
        product::multiply(self, x, &asked)?;
        products.iter().enumerate().try_for_each(|(i, product)| made(i, product.out))
    }

    fn add_rms_norm(
        &self,
        (a, b): (&Buffer, &Buffer),
        weight: &Vector,
        eps: f32,
        (rows, width): (usize, usize),
        (sum, normed): (&mut Buffer, &mut Buffer),
        made: &mut Made<'_, Self>,
    ) -> Result<()> {
        self.stop.check()?;
        for buffer in [a, b, &*sum, &*normed] {
            buffer.holds(rows * width);
        }
        let kernel = Kernel { file: "rms_norm", name: "add_rms_norm", weight: None };
        let arguments = Arguments::new().address(a.at(0)).address(b.at(0)).address(weight.at());
        let arguments = arguments.float(eps).int(width).address(sum.at(0)).address(normed.at(0));
        self.kernels.launch(kernel, (rows, 1), norm_threads(width), 0, arguments)?;
        made(0, sum)?;
        made(1, normed)
    }

    fn swiglu(
        &self,
        x: &Input,
        count: usize,
        outputs: Swiglu<'_, Self>,
        made: &mut Made<'_, Self>,
    ) -> Result<()> {
        self.stop.check()?;
        let Swiglu { gate, silu, up, hidden } = outputs;
        let of_gate = product::Asked { matrix: gate.matrix, bias: gate.bias, out: gate.out };
        let of_up = product::Asked { matrix: up.matrix, bias: up.bias, out: up.out };
        if !product::gated(self, x, of_gate, of_up, (silu, hidden))? {
            product::multiply(self, x, &[of_gate, of_up])?;
            self.silu(gate.out, count, silu)?;
            self.mul(silu, up.out, count, hidden)?;
        }
        made(0, gate.out)?;
        made(1, silu)?;
        made(2, up.out)?;
        made(3, hidden)
    }
}
