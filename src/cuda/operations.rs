//! The operations of [`Backend`] as launches: kernel, grid and arguments.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use half::{bf16, f16};

use super::fusable::{Fusable, Norm, Turned};
use super::kernels::Kernel;
use super::matrix::Matrix;
use super::memory::{Buffer, Memory, Vector, own};
use super::norm;
use super::pass::Pass;
use super::product::{Asked, Input};
use super::rope;
use super::sampling::Place;
use super::{Cache, Cuda, Mark, attention, limits, product, stage_readback};
use llama_trace_core::config::{Arithmetic, CacheDtype, Pairing, Precision};
use llama_trace_core::error::Result;
use llama_trace_core::stop::Stop;
use llama_trace_core::tensor::{Dtype, Tensor};
use llama_trace_engine::backend::{
    self, AttentionShape, AttentionSink, Backend, Draw, Drawn, Fetched, Limits, OnOutput, Operation,
    PassRows, Product, SeeGroups, SeeInt8, Span, Swiglu, cpu,
};
use llama_trace_kernels::driver::{Address, Arguments, Extra};

/// Maximum number of values that a converting kernel writes for one read.
const VALUES_AT_ONCE: usize = 4 << 20;

/// Calls `see` once, with all float32 values of `memory` in `range`.
fn read_floats(
    memory: &Memory,
    range: Range<usize>,
    see: &mut dyn FnMut(&[f32]) -> Result<()>,
) -> Result<()> {
    let mut values = vec![0.0_f32; range.len()];
    memory.read(range.start * 4, bytemuck::cast_slice_mut(&mut values))?;
    see(&values)
}

/// The kernel that adds two buffers: arguments a, b, count, sum.
const ADD: Kernel = Kernel { file: "elementwise", name: "add", weight: None };

/// The gate's SiLU and its product with up. Arguments: gate, up, the number of values, silu, hidden.
const SILU_MUL: Kernel = Kernel { file: "elementwise", name: "silu_mul", weight: None };

impl Cuda {
    /// Queues the kernels for the sum a + b and for the norm of this sum. Both results have the shape (rows, width).
    fn add_and_norm(
        &self,
        [a, b]: [Address; 2],
        weight: &Vector,
        eps: f32,
        rows: usize,
        [sum, normed]: [Address; 2],
    ) -> Result<()> {
        let width = weight.len();
        // The product that computes a or b may also compute the sum. Then only the norm remains to be launched.
        if self.adds_to_last([a, b], rows * width, sum) {
            return Norm { x: sum, weight: weight.at(), eps, width }.launch(self, rows, normed);
        }
        let arguments = Arguments::new().address(a).address(b).address(weight.at());
        let arguments = arguments.float(eps).int(width).address(sum).address(normed);
        let result = (normed, rows * width);
        let arguments = norm::with_extras(arguments.narrow_too(normed, rows * width, 1), result, width);
        self.kernels.launch(
            norm::ADD_RMS_NORM,
            (rows, 1),
            norm::threads(width, rows),
            norm::shared(width),
            arguments,
        )
    }

    /// If the last product computes a or b, changes it so that it also adds the other buffer and writes the sum.
    /// Returns whether the product was changed.
    fn adds_to_last(&self, [a, b]: [Address; 2], count: usize, sum: Address) -> bool {
        [[b, a], [a, b]]
            .into_iter()
            .any(|[result, other]| self.queue.request(Extra::Sum, (result, count), &[other, sum]))
    }
}

impl Backend for Cuda {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn stop(&self) -> &Stop {
        &self.stop
    }

    fn kernel_name(&self) -> &'static str {
        // The name of the architecture that wgmma kernels are compiled for.
        if self.warpgroups.load(Relaxed) { "sm_90a" } else { self.architecture }
    }

    fn limits(&self, _: Dtype, _: &[&[u8]], _: usize) -> Result<Limits> {
        limits::measure(self, limits::FULL)
    }

    fn precision(&self) -> Precision {
        self.precision
    }

    fn arithmetic(&self) -> Arithmetic {
        Arithmetic::Fused
    }

    fn bit_exact(&self, operation: Operation) -> bool {
        operation != Operation::Attention
    }

    fn product_bit_exact(&self, matrix: &backend::Matrix, tokens: usize) -> bool {
        product::bit_exact(self.precision, matrix.downcast(), tokens)
    }

    fn truncates_sums(&self) -> bool {
        self.precision == Precision::Bf16
    }

    fn table_line(&self) -> Option<(String, String)> {
        None
    }

    fn kernels(&self) -> Vec<Box<dyn Backend>> {
        vec![Box::new(self.clone())]
    }

    fn readings(&self) -> Vec<(String, Box<dyn Backend>)> {
        Vec::new()
    }

    fn cut(&self, matrix: &backend::Matrix, rows: Range<usize>) -> Result<backend::Matrix> {
        Ok(backend::Matrix::new(matrix.downcast::<Matrix>().cut(rows)))
    }

    fn free_memory(&self) -> Option<usize> {
        self.queue.device().room().ok().map(|room| room.free)
    }

    fn mark(&self) -> backend::Mark {
        let event = self.queue.ask_anyway(|device| device.mark().ok());
        backend::Mark::new(Mark { event, queue: Arc::clone(&self.queue) })
    }

    fn between(&self, from: &backend::Mark, to: &backend::Mark) -> Duration {
        match (from.downcast::<Mark>().event, to.downcast::<Mark>().event) {
            (Some(from), Some(to)) => self.queue.device().between(from, to),
            _ => Duration::ZERO,
        }
    }

    fn sync(&self) -> Result<()> {
        self.queue.wait(&self.stop)
    }

    fn buffer(&self, count: usize) -> Result<backend::Buffer> {
        Buffer::new(&self.queue, count).map(backend::Buffer::new)
    }

    fn matrix(&self, tensor: &Tensor) -> Result<backend::Matrix> {
        self.stop.check()?;
        // The CPU backend converts the weight to the number type that this precision needs. The GPU gets the same
        // tensor.
        let matrix = self.host.matrix(tensor)?;
        Matrix::new(self, matrix.downcast::<cpu::Matrix>().tensor()).map(backend::Matrix::new)
    }

    fn vector(&self, tensor: &Tensor) -> Result<backend::Vector> {
        let values = self.host.vector(tensor)?;
        let memory = Memory::of(&self.queue, bytemuck::cast_slice(values.downcast::<Vec<f32>>()))?;
        Ok(backend::Vector::new(Vector { memory }))
    }

    fn read(
        &self,
        buffer: &backend::Buffer,
        range: Range<usize>,
        see: &mut dyn FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        read_floats(&own(buffer).memory, range, see)
    }

    fn fetch(
        &self,
        buffer: &backend::Buffer,
        range: Range<usize>,
        pass: &backend::Pass,
    ) -> Result<Option<Fetched>> {
        self.stop.check()?;
        stage_readback::copy(self, &own(buffer).memory, range, &pass.downcast::<Pass>().stage_readback)
    }

    fn fetch_cache(
        &self,
        cache: &backend::Cache,
        count: usize,
        pass: &backend::Pass,
    ) -> Result<Option<Fetched>> {
        self.stop.check()?;
        let (cache, pass): (&Cache, &Pass) = (cache.downcast(), pass.downcast());
        if cache.dtype == CacheDtype::F32 {
            return stage_readback::copy(self, &cache.memory, 0..count, &pass.stage_readback);
        }
        let Some((fetched, out)) = stage_readback::place(self, &pass.stage_readback, count * 4)? else {
            return Ok(None);
        };
        let kernel = Kernel { file: "cache", name: "read_cache", weight: None };
        let arguments = Arguments::new().address(cache.memory.at()).long(0).long(count).address(out);
        self.kernels.launch_apart(kernel, (count.div_ceil(512), 1), 128, 0, arguments)?;
        Ok(Some(fetched))
    }

    fn fetch_quantized(
        &self,
        input: &backend::Input,
        rows: Range<usize>,
        pass: &backend::Pass,
    ) -> Result<Option<[Fetched; 2]>> {
        self.stop.check()?;
        let (input, pass): (&Input, &Pass) = (input.downcast(), pass.downcast());
        let Some(group) = self.precision.group().filter(|_| input.width.is_multiple_of(4)) else {
            return Ok(None);
        };
        let Some([values, scales]) = input.quantized(self, group)? else { return Ok(None) };
        let (groups, words) = (input.width.div_ceil(group), input.width / 4);
        let fetch = |memory: &Memory, width: usize| {
            stage_readback::copy(self, memory, rows.start * width..rows.end * width, &pass.stage_readback)
        };
        let values = fetch(&values, words)?;
        Ok(values.zip(fetch(&scales, groups)?).map(|(values, scales)| [values, scales]))
    }

    fn bring(&self, pass: &backend::Pass) -> Result<()> {
        stage_readback::bring(self, &pass.downcast::<Pass>().stage_readback)
    }

    fn fetched(
        &self,
        fetched: &Fetched,
        pass: &backend::Pass,
        see: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        stage_readback::show(self, fetched, &pass.downcast::<Pass>().stage_readback, see)
    }

    fn all_shown(&self, pass: &backend::Pass) {
        stage_readback::clear(&pass.downcast::<Pass>().stage_readback);
    }

    fn read_rows(
        &self,
        matrix: &backend::Matrix,
        rows: Range<usize>,
        see: &mut dyn FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        let matrix: &Matrix = matrix.downcast();
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

    fn read_int8_rows(&self, matrix: &backend::Matrix, rows: Range<usize>, see: SeeGroups<'_>) -> Result<()> {
        match self.precision.group() {
            Some(_) => matrix.downcast::<Matrix>().see_whole(rows, see),
            None => Ok(()),
        }
    }

    fn read_vector(&self, vector: &backend::Vector, see: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()> {
        let vector: &Vector = vector.downcast();
        read_floats(&vector.memory, 0..vector.len(), see)
    }

    fn write(&self, values: &[f32], at: usize, buffer: &mut backend::Buffer) -> Result<()> {
        own(buffer).memory.write(at * size_of::<f32>(), bytemuck::cast_slice(values))
    }

    fn write_cache(&self, values: &[f32], cache: &mut backend::Cache) -> Result<()> {
        let memory = &cache.downcast::<Cache>().memory;
        match self.cache_dtype {
            CacheDtype::F32 => memory.write(0, bytemuck::cast_slice(values)),
            CacheDtype::F16 => {
                let rounded: Vec<f16> = values.iter().map(|&value| f16::from_f32(value)).collect();
                memory.write(0, bytemuck::cast_slice(&rounded))
            }
            CacheDtype::Bf16 => {
                let rounded: Vec<bf16> = values.iter().map(|&value| bf16::from_f32(value)).collect();
                memory.write(0, bytemuck::cast_slice(&rounded))
            }
        }
    }

    fn new_pass(&self) -> Result<backend::Pass> {
        Ok(backend::Pass::new(Pass::default()))
    }

    fn begin_pass(
        &self,
        ids: &[u32],
        spans: &[Span],
        draws: &[Draw],
        pass: &mut backend::Pass,
    ) -> Result<()> {
        self.stop.check()?;
        pass.downcast_mut::<Pass>().begin(&self.queue, ids, spans, draws)
    }

    fn follow_pass(&self, spans: &[Span], draws: &[Draw], pass: &mut backend::Pass) -> Result<()> {
        self.stop.check()?;
        pass.downcast_mut::<Pass>().follow(&self.queue, spans, draws)
    }

    fn embedding(
        &self,
        table: &backend::Matrix,
        pass: &backend::Pass,
        out: &mut backend::Buffer,
    ) -> Result<()> {
        self.stop.check()?;
        let (table, pass, out): (&Matrix, &Pass, _) = (table.downcast(), pass.downcast(), own(out));
        out.holds(pass.rows() * table.inputs());
        pass.embeds();
        let kernel = Kernel { file: "embedding", name: "embedding", weight: Some(table.dtype()) };
        let (ids, apart) = pass.ids();
        let arguments = Arguments::new().words(&table.words()).address(ids).int(apart);
        let arguments = pass.moves_on().into_iter().fold(arguments, Arguments::address).address(out.at(0));
        self.kernels.launch(kernel, (pass.rows(), 1), 256, 0, arguments)
    }

    fn rope_table(
        &self,
        frequencies: &backend::Buffer,
        pairs: usize,
        pass: &backend::Pass,
        cos: &mut backend::Buffer,
        sin: &mut backend::Buffer,
    ) -> Result<()> {
        let (frequencies, cos, sin) = (own(frequencies), own(cos), own(sin));
        let pass: &Pass = pass.downcast();
        frequencies.holds(pairs);
        cos.holds(pass.rows() * pairs);
        sin.holds(pass.rows() * pairs);
        pass.tabulates();
        let kernel = Kernel { file: "rope", name: "rope_table", weight: None };
        let arguments = Arguments::new().address(frequencies.at(0)).address(pass.positions()).int(pairs);
        let arguments = arguments.address(cos.at(0)).address(sin.at(0));
        self.kernels.launch(kernel, (pass.rows(), 1), 128, 0, arguments)
    }

    fn rms_norm(
        &self,
        x: &backend::Buffer,
        weight: &backend::Vector,
        eps: f32,
        rows: usize,
        out: &mut backend::Buffer,
    ) -> Result<()> {
        self.stop.check()?;
        let (x, weight, out): (_, &Vector, _) = (own(x), weight.downcast(), own(out));
        let width = weight.len();
        x.holds(rows * width);
        out.holds(rows * width);
        // If x is the sum that was queued last, as between two layers, the sum and the norm are fused, with the same
        // bits.
        let added = self.queue.withdraw(|last| match last {
            Fusable::Add { inputs, count, sum } if (count, sum) == (rows * width, x.at(0)) => Some(inputs),
            _ => None,
        });
        if let Some(added) = added {
            return self.add_and_norm(added, weight, eps, rows, [x.at(0), out.at(0)]);
        }
        Norm { x: x.at(0), weight: weight.at(), eps, width }.launch(self, rows, out.at(0))
    }

    fn input(&self) -> backend::Input {
        backend::Input::new(Input::default())
    }

    fn prepare(
        &self,
        x: &backend::Buffer,
        width: usize,
        pass: &backend::Pass,
        rows: &PassRows,
        input: &mut backend::Input,
    ) -> Result<()> {
        let input: &mut Input = input.downcast_mut();
        input.prepare(own(x), width, pass.downcast::<Pass>().spans(), rows);
        Ok(())
    }

    fn read_quantized(&self, input: &backend::Input, rows: Range<usize>, see: SeeInt8<'_>) -> Result<()> {
        let Some(group) = self.precision.group() else { return see(&[], &[]) };
        let input: &Input = input.downcast();
        let groups = input.width.div_ceil(group);
        let (mut values, mut scales) = (vec![0_i8; rows.len() * input.width], vec![0.0; rows.len() * groups]);
        if let Some([of_values, of_scales]) = input.quantized(self, group)? {
            of_values.read(rows.start * input.width, bytemuck::cast_slice_mut(&mut values))?;
            of_scales.read(rows.start * groups * 4, bytemuck::cast_slice_mut(&mut scales))?;
        }
        see(&values, &scales)
    }

    fn matmul(
        &self,
        x: &backend::Input,
        w: &backend::Matrix,
        bias: Option<&backend::Vector>,
        out: &mut backend::Buffer,
    ) -> Result<()> {
        product::multiply(self, x.downcast(), &[Asked::of(w, bias, out)])
    }

    fn rope(
        &self,
        x: &backend::Buffer,
        cos: &backend::Buffer,
        sin: &backend::Buffer,
        pairing: Pairing,
        heads: usize,
        head_dim: usize,
        rows: usize,
        out: &mut backend::Buffer,
    ) -> Result<()> {
        self.stop.check()?;
        let (x, cos, sin, out) = (own(x), own(cos), own(sin), own(out));
        x.holds(rows * heads * head_dim);
        out.holds(rows * heads * head_dim);
        cos.holds(rows * head_dim / 2);
        sin.holds(rows * head_dim / 2);
        let turned = Turned { x: x.at(0), out: out.at(0), cache: [0; 2], heads };
        let neighbours = pairing == Pairing::Neighbours;
        rope::rotate(self, turned, [cos.at(0), sin.at(0)], neighbours, head_dim, rows)
    }

    fn cache_dtype(&self) -> CacheDtype {
        self.cache_dtype
    }

    fn new_cache(&self, count: usize) -> Result<backend::Cache> {
        let bytes = count.saturating_mul(self.cache_dtype.bytes());
        let memory = Memory::zeros(&self.queue, bytes)?;
        Ok(backend::Cache::new(Cache { memory, dtype: self.cache_dtype }))
    }

    fn cache(
        &self,
        x: &backend::Buffer,
        width: usize,
        pass: &backend::Pass,
        span: usize,
        cache: &mut backend::Cache,
    ) -> Result<()> {
        let (x, pass, cache): (_, &Pass, &Cache) = (own(x), pass.downcast(), cache.downcast());
        let Span { tokens, .. } = pass.spans()[span];
        let keys = pass.spans()[span].keys();
        x.holds(pass.rows() * width);
        assert!(
            keys * width * cache.dtype.bytes() <= cache.memory.bytes(),
            "a cache is not written beyond its room"
        );
        let to = [cache.memory.at(), pass.span(0)];
        if pass.spans().len() == 1 && rope::cache(self, x.at(0), width, tokens, to) {
            return Ok(());
        }
        let kernel = Kernel { file: "cache", name: "cache", weight: None };
        let rows = [x.at(0), pass.span(span), cache.memory.at()];
        let grid = (tokens, width.div_ceil(512));
        let arguments = Arguments::new().first_of(&rows).int(width);
        self.kernels.launch_together(kernel, grid, 128, rows.len(), arguments)
    }

    fn read_cache(
        &self,
        cache: &backend::Cache,
        count: usize,
        see: &mut dyn FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        let cache: &Cache = cache.downcast();
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

    fn take_cache(&self, cache: &backend::Cache, range: Range<usize>) -> Result<backend::Cache> {
        let cache: &Cache = cache.downcast();
        let size = cache.dtype.bytes();
        let memory = Memory::new(&self.queue, range.len() * size)?;
        memory.take(&cache.memory, range.start * size..range.end * size, 0)?;
        Ok(backend::Cache::new(Cache { memory, dtype: cache.dtype }))
    }

    fn put_cache(&self, from: &backend::Cache, at: usize, cache: &mut backend::Cache) -> Result<()> {
        let (from, cache): (&Cache, &Cache) = (from.downcast(), cache.downcast());
        cache.memory.take(&from.memory, 0..from.memory.bytes(), at * cache.dtype.bytes())
    }

    fn attention(
        &self,
        shape: AttentionShape,
        q: &backend::Buffer,
        pass: &backend::Pass,
        span: usize,
        keys: &backend::Cache,
        values: &backend::Cache,
        out: &mut backend::Buffer,
        sink: &mut dyn AttentionSink,
    ) -> Result<()> {
        self.stop.check()?;
        let (q, pass, out): (_, &Pass, _) = (own(q), pass.downcast(), own(out));
        let (keys, values): (&Cache, &Cache) = (keys.downcast(), values.downcast());
        let room = pass.spans()[span].keys() * shape.kv_heads * shape.head_dim * self.cache_dtype.bytes();
        assert!(room <= keys.memory.bytes() && room <= values.memory.bytes(), "all keys are in the cache");
        let (keys, values) = (keys.memory.at(), values.memory.at());
        let asked = attention::Asked { shape, q, pass, span, keys, values, out };
        attention::attention(self, asked)?;
        attention::parts(self, asked, sink)
    }

    fn silu(&self, x: &backend::Buffer, count: usize, out: &mut backend::Buffer) -> Result<()> {
        self.elements("silu", count, &[own(x)], own(out))
    }

    fn mul(
        &self,
        a: &backend::Buffer,
        b: &backend::Buffer,
        count: usize,
        out: &mut backend::Buffer,
    ) -> Result<()> {
        // The arguments have the order of the formula.
        self.elements("mul", count, &[own(a), own(b)], own(out))
    }

    fn add(
        &self,
        a: &backend::Buffer,
        b: &backend::Buffer,
        count: usize,
        out: &mut backend::Buffer,
    ) -> Result<()> {
        let (a, b, out) = (own(a), own(b), own(out));
        [a, b, out].into_iter().for_each(|buffer| buffer.holds(count));
        if self.adds_to_last([a.at(0), b.at(0)], count, out.at(0)) {
            return self.stop.check();
        }
        self.stop.check()?;
        let [a, b, sum] = [a, b, out].map(|buffer| buffer.at(0));
        let arguments = Arguments::new().address(a).address(b).long(count).address(sum);
        let fusable = Fusable::Add { inputs: [a, b], count, sum };
        self.kernels.launch_fusable(ADD, (count.div_ceil(512), 1), 128, 0, arguments, fusable)
    }

    fn rows(
        &self,
        x: &backend::Buffer,
        width: usize,
        pass: &backend::Pass,
        rows: &PassRows,
        out: &mut backend::Buffer,
    ) -> Result<()> {
        let (x, pass, out): (_, &Pass, _) = (own(x), pass.downcast(), own(out));
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

    fn draw(&self, logits: &backend::Buffer, vocab: usize, pass: &backend::Pass) -> Result<()> {
        let (logits, pass): (_, &Pass) = (own(logits), pass.downcast());
        let (mut scratch, rows) = (self.scratch(), pass.draws().len());
        if !scratch.draw.as_ref().is_some_and(|place| place.has_room(rows, vocab)) {
            scratch.draw = Some(Place::new(self, rows, vocab)?);
        }
        scratch.draw.as_ref().map_or(Ok(()), |place| place.draw(self, logits, vocab, pass))
    }

    fn drawn(&self, pass: &backend::Pass) -> Result<Vec<Drawn>> {
        pass.downcast::<Pass>().token_readback.first(self)
    }

    fn matmuls(
        &self,
        x: &backend::Input,
        products: &mut [Product<'_>],
        on_output: &mut OnOutput<'_>,
    ) -> Result<()> {
        let asked: Vec<_> =
            products.iter().map(|Product { matrix, bias, out }| Asked::of(matrix, *bias, out)).collect();
        product::multiply(self, x.downcast(), &asked)?;
        products.iter_mut().enumerate().try_for_each(|(i, product)| on_output(i, product.out))
    }

    fn add_rms_norm(
        &self,
        (a, b): (&backend::Buffer, &backend::Buffer),
        weight: &backend::Vector,
        eps: f32,
        (rows, width): (usize, usize),
        (sum, normed): (&mut backend::Buffer, &mut backend::Buffer),
        on_output: &mut OnOutput<'_>,
    ) -> Result<()> {
        self.stop.check()?;
        let [of_a, of_b, of_sum, of_normed] = [a, b, &*sum, &*normed].map(|buffer| {
            own(buffer).holds(rows * width);
            own(buffer).at(0)
        });
        let weight: &Vector = weight.downcast();
        assert_eq!(width, weight.len(), "a weight for each value of a row");
        self.add_and_norm([of_a, of_b], weight, eps, rows, [of_sum, of_normed])?;
        on_output(0, sum)?;
        on_output(1, normed)
    }

    fn swiglu(
        &self,
        x: &backend::Input,
        count: usize,
        outputs: Swiglu<'_>,
        on_output: &mut OnOutput<'_>,
    ) -> Result<()> {
        self.stop.check()?;
        let Swiglu { gate, silu, up, hidden } = outputs;
        let of_gate = Asked::of(gate.matrix, gate.bias, gate.out);
        let of_up = Asked::of(up.matrix, up.bias, up.out);
        let (x, of_silu, of_hidden) = (x.downcast(), own(silu), own(hidden));
        if !product::gated(self, x, of_gate, of_up, (of_silu, of_hidden))? {
            product::multiply(self, x, &[of_gate, of_up])?;
            for buffer in [of_gate.out, of_silu, of_up.out, of_hidden] {
                buffer.holds(count);
            }
            let [gate, up, silu, hidden] = [of_gate.out, of_up.out, of_silu, of_hidden].map(|of| of.at(0));
            let arguments = Arguments::new().address(gate).address(up).long(count);
            let arguments = arguments.address(silu).address(hidden);
            let fusable = Fusable::SiluMul { inputs: [gate, up], count, silu, hidden };
            let grid = (count.div_ceil(512), 1);
            self.kernels.launch_fusable(SILU_MUL, grid, 128, 0, arguments, fusable)?;
        }
        on_output(0, gate.out)?;
        on_output(1, silu)?;
        on_output(2, up.out)?;
        on_output(3, hidden)
    }
}
