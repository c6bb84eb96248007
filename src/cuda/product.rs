//! Products with weights: their inputs, and the choice of the kernel.
//!
//! If there are few rows of activations, up to 16, all of them are multiplied with each weight that is read. Many rows
//! are multiplied in tiles, whose sums have another order. In bfloat16, tensor cores do both. The choice for a row
//! depends on the number of tokens in its own span ([`PassRows::orders`]). Integer products are bit-exact with
//! [`llama_trace_core::ops`] in both cases. For up to 16 rows, the weights of integer products go through shared
//! memory.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::Cuda;
use super::attention::MOST_BLOCKS;
use super::fusable::{Fusable, MOST_PRODUCTS, Norm, Turns};
use super::kernels::Kernel;
use super::matrix::Matrix;
use super::memory::{Buffer, Growing, Memory, Vector, own};
use super::norm;
use llama_trace_core::config::{CacheDtype, Precision};
use llama_trace_core::error::Result;
use llama_trace_core::tensor::Dtype;
use llama_trace_engine::backend::{self, PassRows, Span};
use llama_trace_kernels::driver::{Address, Arguments, Extra};

mod dequantized;
mod integer;
mod streams;
mod tiles;

#[cfg(test)]
pub(super) use integer::{TILES as OF_INTEGERS, Tile as IntegerTile, WIDE, multiply_in as integer_in};
pub(super) use tiles::{OF_WARPGROUPS, OF_WARPS, Tiles, all_gated_in_tiles, all_in_tiles};
use tiles::{in_tiles, suited};

/// Minimum number of tokens of a span whose rows are multiplied in tiles.
const MANY: usize = 16;

/// Maximum number of rows that share a read of the weights. `FEW`: for float weights. `FEW_OF_BLOCKS`: for int8 and
/// blocks, which are dequantised in larger units or multiplied as integers.
const FEW: usize = 16;
const FEW_OF_BLOCKS: usize = 8;

/// The words of `struct Product` of the kernels.
const PRODUCT_WORDS: usize = 7;

/// The kernel for products of one row that computes the norm of their input itself. Arguments: `struct Products`,
/// `struct Norm`, tiles, and `struct Turns`, which describes RoPE and caching of the results ([`super::rope`]).
const OF_NORM: Kernel = Kernel { file: "matvec_bf16", name: "matvec_bf16_norm", weight: None };

/// The input of products: activations, converted for the kernels on demand.
#[derive(Default)]
pub struct Input {
    x: Option<Arc<Memory>>,
    pub(super) rows: usize,
    pub(super) width: usize,
    runs: Vec<Run>,
    /// The rows in int8, for integer products.
    whole: Mutex<Whole>,
    /// The int8 rows in the packed layout of the tensor cores, for many rows.
    packed: Mutex<integer::Packed>,
    /// The rows in bfloat16, for products by tensor cores.
    narrow: Mutex<Narrow>,
}

/// Activations in int8. They are written for the first product that needs them, or for recording. If the launch that
/// computes the activations is still in the queue, it also writes them in int8. Otherwise a separate kernel does. A
/// product may also quantise one row itself.
#[derive(Default)]
struct Whole {
    /// The values (rows, width) and the scales (rows, groups). The first pair is written by a norm or a separate
    /// kernel. The second pair is written by a gate, which may read the first pair.
    places: [[Growing; 2]; 2],
    /// The index of the pair that was written.
    there: Option<usize>,
}

impl Whole {
    /// Returns the addresses of the values and of the scales for `rows` rows in pair `place`.
    fn room(
        &mut self,
        cuda: &Cuda,
        place: usize,
        rows: usize,
        [width, group]: [usize; 2],
    ) -> Result<[Address; 2]> {
        let [values, scales] = &mut self.places[place];
        let values = values.room(&cuda.queue, rows * width, false)?;
        Ok([values, scales.room(&cuda.queue, rows * width.div_ceil(group) * 4, false)?])
    }
}

/// Activations in bfloat16, which represents all of their values. They are written for the first product that needs
/// them. If the launch that computes the activations is still in the queue, it writes only the bfloat16 values: nothing
/// has recorded them, so float32 is left out. A buffer must therefore be prepared exactly once after each write.
#[derive(Default)]
struct Narrow {
    /// Memory for each buffer that was read, the same in every pass. Buffers do not share memory, because the launch
    /// that writes some activations may read others.
    places: Vec<(Weak<Memory>, Growing)>,
    /// Whether the bfloat16 values are written.
    there: bool,
    /// Whether the float32 values were left out.
    alone: bool,
    /// The pending norm, until the first request for its result: a product may compute the norm itself.
    normed: Option<Norm>,
}

impl Narrow {
    /// Queues the pending norm, if there is one, with the result at `x`. Called if no product computes the norm itself.
    fn make_norm(&mut self, cuda: &Cuda, x: &Memory) -> Result<()> {
        self.normed.take().map_or(Ok(()), |norm| norm.launch(cuda, 1, x.at()))
    }

    /// Returns the memory for the buffer `x`.
    fn place(&mut self, x: &Arc<Memory>) -> &mut Growing {
        self.places.retain(|(of, _)| of.strong_count() > 0);
        let known = self.places.iter().position(|(of, _)| of.as_ptr() == Arc::as_ptr(x));
        let at = known.unwrap_or_else(|| {
            self.places.push((Arc::downgrade(x), Growing::default()));
            self.places.len() - 1
        });
        &mut self.places[at].1
    }
}

/// Consecutive rows whose products have the same order of summation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    first: usize,
    rows: usize,
    many: bool,
}

/// One product: w, its bias, and its result.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) matrix: &'a Matrix,
    pub(super) bias: Option<&'a Vector>,
    pub(super) out: &'a Buffer,
}

impl<'a> Asked<'a> {
    /// The product of these handles.
    pub(super) fn of(
        matrix: &'a backend::Matrix,
        bias: Option<&'a backend::Vector>,
        out: &'a backend::Buffer,
    ) -> Self {
        Self { matrix: matrix.downcast(), bias: bias.map(backend::Vector::downcast), out: own(out) }
    }

    /// Returns `struct Product` of the kernels, for the rows from `first` on.
    fn words(&self, first: usize) -> [u64; PRODUCT_WORDS] {
        let [values, scales, at, sizes, group] = self.matrix.words();
        let bias = self.bias.map_or(0, Vector::at);
        [values, scales, at, sizes, group, bias, self.out.at(first * self.matrix.outputs())]
    }
}

impl Input {
    /// Sets the rows of `x` as the input.
    pub(super) fn prepare(&mut self, x: &Buffer, width: usize, spans: &[Span], rows: &PassRows) {
        (self.rows, self.width) = (rows.count(spans), width);
        x.holds(self.rows * width);
        self.x = Some(Arc::clone(&x.memory));
        self.runs.clear();
        for (rows, tokens) in rows.orders(spans) {
            let many = tokens >= MANY;
            match self.runs.last_mut() {
                Some(last) if last.many == many => last.rows += rows,
                last => {
                    let first = last.map_or(0, |last| last.first + last.rows);
                    self.runs.push(Run { first, rows, many });
                }
            }
        }
        let narrow = self.narrow.get_mut().unwrap_or_else(PoisonError::into_inner);
        (narrow.there, narrow.alone, narrow.normed) = (false, false, None);
        self.whole.get_mut().unwrap_or_else(PoisonError::into_inner).there = None;
        self.packed.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn many(&self) -> bool {
        self.runs.iter().any(|run| run.many)
    }

    fn x(&self) -> Address {
        self.x.as_ref().map_or(0, |memory| memory.at())
    }

    /// Cancels the norm whose result is this input, and returns it. `None` unless the input is one row and its norm is
    /// still pending.
    fn norm(&self, cuda: &Cuda) -> Option<Norm> {
        let x = self.x.as_ref().filter(|_| self.rows == 1)?;
        let mut narrow = self.narrow.lock().unwrap_or_else(PoisonError::into_inner);
        if !narrow.there && narrow.normed.is_none() {
            narrow.normed = norm::withdraw(cuda, x.at(), self.width);
        }
        narrow.normed
    }

    /// Returns the address of the rows in bfloat16.
    fn narrow(&self, cuda: &Cuda) -> Result<Address> {
        let Some(x) = &self.x else { return Ok(0) };
        let mut narrow = self.narrow.lock().unwrap_or_else(PoisonError::into_inner);
        narrow.make_norm(cuda, x)?;
        let count = self.rows * self.width;
        let to = narrow.place(x).room(&cuda.queue, count * size_of::<u16>(), false)?;
        if !narrow.there {
            narrow.alone = cuda.queue.change(|last| last.narrow((x.at(), count), to));
            if !narrow.alone {
                convert(cuda, "narrow", x.at(), count, to)?;
            }
            narrow.there = true;
        }
        Ok(to)
    }

    /// Returns the address of the rows in float32.
    fn wide(&self, cuda: &Cuda) -> Result<Address> {
        let Some(x) = &self.x else { return Ok(0) };
        let mut narrow = self.narrow.lock().unwrap_or_else(PoisonError::into_inner);
        narrow.make_norm(cuda, x)?;
        if std::mem::take(&mut narrow.alone) {
            let from = narrow.place(x).memory().map_or(0, |memory| memory.at());
            convert(cuda, "widen_all", from, self.rows * self.width, x.at())?;
        }
        Ok(x.at())
    }

    fn packed(&self) -> MutexGuard<'_, integer::Packed> {
        self.packed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the addresses of the int8 values and of the scales.
    fn whole(&self, cuda: &Cuda, group: usize) -> Result<[Address; 2]> {
        let Some(x) = &self.x else { return Ok([0; 2]) };
        self.narrow.lock().unwrap_or_else(PoisonError::into_inner).make_norm(cuda, x)?;
        let mut whole = self.whole.lock().unwrap_or_else(PoisonError::into_inner);
        let (rows, sizes) = (self.rows, [self.width, group]);
        if let Some(there) = whole.there {
            return whole.room(cuda, there, rows, sizes);
        }
        // Allocate before the launches are changed: freeing old memory sends the queue.
        let [of_others, of_gate] = [whole.room(cuda, 0, rows, sizes)?, whole.room(cuda, 1, rows, sizes)?];
        let result = (x.at(), rows * self.width);
        if group == streams::GROUP && streams::quantize_too(cuda, result, of_gate) {
            whole.there = Some(1);
            return Ok(of_gate);
        }
        whole.there = Some(0);
        if group == streams::GROUP && cuda.queue.request(Extra::Int8OfNorm, result, &of_others) {
            return Ok(of_others);
        }
        let [values, scales] = of_others;
        let kernel = |name| Kernel { file: "quantize", name, weight: None };
        let of_x = Arguments::new().address(x.at());
        if group == 32 && self.width.is_multiple_of(32) {
            let count = rows * self.width;
            let arguments = of_x.long(count).address(values).address(scales);
            cuda.kernels.launch(kernel("quantize_32"), (count.div_ceil(512), 1), 128, 0, arguments)?;
        } else {
            let arguments = of_x.int(self.width).int(group).address(values).address(scales);
            let blocks = self.width.div_ceil(group).div_ceil(4);
            cuda.kernels.launch(kernel("quantize"), (rows, blocks), 128, 0, arguments)?;
        }
        Ok(of_others)
    }

    /// Returns the memory of the int8 values and of the scales; `None` before the input has rows.
    pub(super) fn quantized(&self, cuda: &Cuda, group: usize) -> Result<Option<[Arc<Memory>; 2]>> {
        self.whole(cuda, group)?;
        let whole = self.whole.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(place) = whole.there else { return Ok(None) };
        let [values, scales] = whole.places[place].each_ref().map(|growing| growing.memory().map(Arc::clone));
        Ok(values.zip(scales).map(|(values, scales)| [values, scales]))
    }

    /// Whether the rows are in int8 already.
    fn is_whole(&self) -> bool {
        self.whole.lock().unwrap_or_else(PoisonError::into_inner).there.is_some()
    }
}

/// Queues the conversion of `count` values between float32 and bfloat16, by the kernel `name`.
fn convert(cuda: &Cuda, name: &'static str, from: Address, count: usize, to: Address) -> Result<()> {
    let kernel = Kernel { file: "elementwise", name, weight: None };
    let arguments = Arguments::new().address(from).long(count).address(to);
    cuda.kernels.launch(kernel, (count.div_ceil(512), 1), 128, 0, arguments)
}

/// Whether products of `tokens` tokens of a span with `matrix` are bit-exact with [`llama_trace_core::ops`].
pub(super) fn bit_exact(precision: Precision, matrix: &Matrix, tokens: usize) -> bool {
    let tiles = tokens >= MANY && has_tiles(matrix);
    precision.group().is_some() || !matrix.is_fast() && !tiles
}

/// Whether many rows are multiplied in tiles: always, except int8 with unaligned groups.
fn has_tiles(matrix: &Matrix) -> bool {
    matrix.is_fast() || matrix.dtype().is_float()
}

/// Maximum number of rows of a float kernel.
fn few(dtype: Dtype) -> usize {
    if dtype.is_float() { FEW } else { FEW_OF_BLOCKS }
}

/// Returns the file of the kernels for `rows` rows.
fn matvec_file(rows: usize) -> &'static str {
    if rows <= FEW_OF_BLOCKS { "matvec" } else { "matvec_16" }
}

/// Computes products of one input.
pub(super) fn multiply(cuda: &Cuda, x: &Input, products: &[Asked<'_>]) -> Result<()> {
    for product in products {
        assert_eq!(x.width, product.matrix.inputs(), "the rows of x and of the matrix have the same length");
        product.out.holds(x.rows * product.matrix.outputs());
    }
    // Products of matrices of one kind share a launch.
    let alike = |a: &Asked<'_>, b: &Asked<'_>| {
        a.matrix.dtype() == b.matrix.dtype() && a.matrix.is_fast() == b.matrix.is_fast()
    };
    for products in products.chunk_by(alike).flat_map(|alike| alike.chunks(MOST_PRODUCTS)) {
        cuda.stop.check()?;
        match cuda.precision {
            Precision::Q8 { group } => whole_numbers(cuda, x, products, group)?,
            _ => x.runs.iter().try_for_each(|run| floats(cuda, x, products, *run))?,
        }
    }
    Ok(())
}

/// Multiplies the rows in `run` with the products' matrices, in float32 or bfloat16.
fn floats(cuda: &Cuda, x: &Input, products: &[Asked<'_>], run: Run) -> Result<()> {
    let dtype = products[0].matrix.dtype();
    let at = |first: usize, size: usize| (first * x.width * size) as u64;
    let fast = products.iter().all(|product| product.matrix.is_fast());
    if by_tensor_cores(cuda, dtype) && fast {
        if run.many {
            let tiles = suited(cuda, run.rows, |outputs| blocks(products, outputs));
            return in_tiles(cuda, x, products, run, tiles);
        }
        let tiles = blocks(products, 16);
        if let Some(norm) = x.norm(cuda) {
            let arguments = Arguments::new().words(&words(products, run.first)).words(&norm.words());
            // This kernel caches only in bfloat16.
            let caches = cuda.cache_dtype == CacheDtype::Bf16;
            let (arguments, turns) = with_turns(arguments.int(tiles), products, caches);
            return by_blocks_that_stay(cuda, OF_NORM, tiles, x.width, arguments, turns);
        }
        let narrow = x.narrow(cuda)?;
        return in_chunks(run, FEW, |first, rows| {
            let arguments = Arguments::new().words(&words(products, first));
            let arguments = arguments.address(narrow + at(first, 2)).int(rows);
            let arguments = with_sum(arguments, products, (first, rows));
            cuda.kernels.launch(few_bf16(rows), (tiles, 1), 256, 0, arguments)
        });
    }
    if run.many && dequantized::takes(cuda, products) {
        return dequantized::in_bf16(cuda, products, |products| {
            let tiles = suited(cuda, run.rows, |outputs| blocks(products, outputs));
            in_tiles(cuda, x, products, run, tiles)
        });
    }
    let of_x = x.wide(cuda)?;
    if run.many && products.iter().all(|product| has_tiles(product.matrix)) {
        return products.iter().try_for_each(|product| {
            let outputs = product.matrix.outputs();
            let arguments = Arguments::new().words(&product.words(run.first));
            let (name, side) = if product.matrix.is_fast() { ("matmul", 128) } else { ("matmul_plain", 64) };
            let kernel = Kernel { file: name, name, weight: Some(dtype) };
            let grid = (outputs.div_ceil(side), run.rows.div_ceil(64));
            let arguments = arguments.address(of_x + at(run.first, 4)).int(run.rows);
            cuda.kernels.launch(kernel, grid, 256, 0, arguments)
        });
    }
    if !fast {
        let kernel = Kernel { file: "matvec_plain", name: "matvec_plain", weight: Some(dtype) };
        return in_chunks(run, MOST_BLOCKS, |first, rows| {
            let arguments = Arguments::new().words(&words(products, first)).address(of_x + at(first, 4));
            cuda.kernels.launch(kernel, (blocks(products, 4), rows), 128, 0, arguments)
        });
    }
    in_chunks(run, few(dtype), |first, rows| {
        let arguments =
            Arguments::new().words(&words(products, first)).address(of_x + at(first, 4)).int(rows);
        let name = match rows {
            1 => "matvec_1",
            2 => "matvec_2",
            3 | 4 => "matvec_4",
            5..=8 => "matvec_8",
            _ => "matvec_16",
        };
        let kernel = Kernel { file: matvec_file(rows), name, weight: Some(dtype) };
        cuda.kernels.launch(kernel, (blocks(products, 8), 1), 128, 0, arguments)
    })
}

/// Returns the kernel for `rows` rows of bfloat16 values.
fn few_bf16(rows: usize) -> Kernel {
    let name = if rows <= 8 { "matvec_bf16_8" } else { "matvec_bf16_16" };
    Kernel { file: "matvec_bf16", name, weight: None }
}

/// Blocks of `matvec_bf16.cu` that fit on a multiprocessor.
const BLOCKS_OF_EACH: usize = 2;

/// Launches a kernel with persistent blocks. Each block computes the norm of a row of `width` values once, for all of
/// its tiles.
fn by_blocks_that_stay(
    cuda: &Cuda,
    kernel: Kernel,
    tiles: usize,
    width: usize,
    arguments: Arguments,
    fusable: Fusable,
) -> Result<()> {
    let room = BLOCKS_OF_EACH * cuda.queue.device().about().multiprocessors as usize;
    let shared = 16 * width.div_ceil(8) + norm::shared(width);
    cuda.kernels.launch_fusable(kernel, (tiles.min(room), 1), 256, shared, arguments, fusable)
}

/// Adds `struct Added` of the kernels for `rows` rows from `first` on: a single product can add a buffer to its result.
fn with_sum(arguments: Arguments, products: &[Asked<'_>], (first, rows): (usize, usize)) -> Arguments {
    let result = match products {
        [product] => {
            let outputs = product.matrix.outputs();
            Some((product.out.at(first * outputs), rows * outputs))
        }
        _ => None,
    };
    arguments.extra(Extra::Sum, result, 2)
}

/// Adds `struct Turns` of the kernels for products of one row. `caches` says whether the kernel can cache its results.
fn with_turns(arguments: Arguments, products: &[Asked<'_>], caches: bool) -> (Arguments, Fusable) {
    let results = products.iter().map(|product| (product.out.at(0), product.matrix.outputs()));
    let turns = Turns::new(results, arguments.all().len(), caches);
    (arguments.words(&turns.words()), Fusable::Products(turns))
}

/// Whether tensor cores multiply weights of this type, if the matrix is fast.
fn by_tensor_cores(cuda: &Cuda, dtype: Dtype) -> bool {
    cuda.precision == Precision::Bf16 && dtype == Dtype::BF16
}

/// Integer products. Their results do not depend on the number of rows.
fn whole_numbers(cuda: &Cuda, x: &Input, products: &[Asked<'_>], group: usize) -> Result<()> {
    if streams::multiply(cuda, x, products, group)? {
        return Ok(());
    }
    let dtype = products[0].matrix.dtype();
    let fits = |product: &Asked<'_>| match dtype {
        Dtype::I8 => {
            let (own, first) = (product.matrix.group(), product.matrix.first());
            own == group
                && group.is_multiple_of(16)
                && x.width.is_multiple_of(group)
                && first.is_multiple_of(group)
        }
        _ => true,
    };
    let all_fit = products.iter().all(fits);
    if all_fit && x.rows > FEW && integer::takes(dtype, group) {
        return products.iter().try_for_each(|product| integer::multiply(cuda, x, product, group));
    }
    let [values, scales] = x.whole(cuda, group)?;
    let groups = x.width.div_ceil(group);
    let at = |first: usize| (values + (first * x.width) as u64, scales + (first * groups * 4) as u64);
    let all = Run { first: 0, rows: x.rows, many: false };
    if !all_fit {
        let kernel = Kernel { file: "matvec_q8", name: "matvec_q8_plain", weight: Some(dtype) };
        return in_chunks(all, MOST_BLOCKS, |first, rows| {
            let (values, scales) = at(first);
            let arguments = Arguments::new().words(&words(products, first)).address(values).address(scales);
            cuda.kernels.launch(kernel, (blocks(products, 4), rows), 128, 0, arguments.int(group))
        });
    }
    in_chunks(all, FEW_OF_BLOCKS, |first, rows| {
        let name = match rows {
            1 => "matvec_q8_1",
            2 => "matvec_q8_2",
            3 | 4 => "matvec_q8_4",
            _ => "matvec_q8_8",
        };
        let kernel = Kernel { file: "matvec_q8", name, weight: Some(dtype) };
        let (values, scales) = at(first);
        let arguments = Arguments::new().words(&words(products, first)).address(values).address(scales);
        cuda.kernels.launch(kernel, (blocks(products, 8), 1), 128, 0, arguments.int(group).int(rows))
    })
}

/// Computes gate, its SiLU, up and their product in one kernel, if there is one for these matrices and rows. Returns
/// whether there is.
pub(super) fn gated(
    cuda: &Cuda,
    x: &Input,
    gate: Asked<'_>,
    up: Asked<'_>,
    (silu, hidden): (&Buffer, &Buffer),
) -> Result<bool> {
    let (dtype, outputs) = (gate.matrix.dtype(), gate.matrix.outputs());
    let fast = gate.matrix.is_fast() && up.matrix.is_fast() && dtype == up.matrix.dtype();
    for out in [gate.out, up.out, silu, hidden] {
        out.holds(x.rows * outputs);
    }
    if let Some(group) = cuda.precision.group() {
        return streams::gated(cuda, x, gate, up, (silu, hidden), group);
    }
    if !fast {
        return Ok(false);
    }
    if let [run @ Run { many: true, .. }] = x.runs[..]
        && by_tensor_cores(cuda, dtype)
        && outputs.is_multiple_of(2)
    {
        let tiles = suited(cuda, run.rows, |of_both| outputs.div_ceil(of_both / 2));
        return all_gated_in_tiles(cuda, x, gate, up, (silu, hidden), tiles).map(|()| true);
    }
    if let [run @ Run { many: true, .. }] = x.runs[..]
        && dequantized::takes(cuda, &[gate, up])
        && outputs.is_multiple_of(2)
    {
        let tiles = suited(cuda, run.rows, |of_both| outputs.div_ceil(of_both / 2));
        return dequantized::in_bf16(cuda, &[gate, up], |both| {
            all_gated_in_tiles(cuda, x, both[0], both[1], (silu, hidden), tiles).map(|()| true)
        });
    }
    if x.many() {
        return Ok(false);
    }
    if by_tensor_cores(cuda, dtype) {
        if let Some(norm) = x.norm(cuda) {
            let (kernel, tiles) =
                (Kernel { file: "matvec_bf16", name: "swiglu_bf16_norm", weight: None }, outputs.div_ceil(8));
            let arguments = Arguments::new().words(&norm.words()).int(tiles);
            let arguments = arguments.words(&gated_words(gate, up, (silu, hidden), 0));
            let arguments = arguments.narrow_too(hidden.at(0), outputs, 4);
            return by_blocks_that_stay(cuda, kernel, tiles, x.width, arguments, Fusable::No).map(|()| true);
        }
        let narrow = x.narrow(cuda)?;
        return x
            .runs
            .iter()
            .try_for_each(|run| {
                in_chunks(*run, FEW, |first, rows| {
                    let at = narrow + (first * x.width * size_of::<u16>()) as u64;
                    let arguments = Arguments::new().address(at).int(rows);
                    let arguments = arguments.words(&gated_words(gate, up, (silu, hidden), first));
                    // With several launches, each writes its own rows.
                    let count = if rows == x.rows { rows * outputs } else { 0 };
                    let arguments = arguments.narrow_too(hidden.at(0), count, 4);
                    let name = if rows <= 8 { "swiglu_bf16_8" } else { "swiglu_bf16_16" };
                    let kernel = Kernel { file: "matvec_bf16", name, weight: None };
                    cuda.kernels.launch(kernel, (outputs.div_ceil(8), 1), 256, 0, arguments)
                })
            })
            .map(|()| true);
    }
    let of_x = x.wide(cuda)?;
    for run in &x.runs {
        in_chunks(*run, few(dtype), |first, rows| {
            let x = of_x + (first * x.width * 4) as u64;
            let arguments = Arguments::new().words(&gated_words(gate, up, (silu, hidden), first));
            let arguments = arguments.address(x).int(rows);
            let name = match rows {
                1 => "swiglu_1",
                2 => "swiglu_2",
                3 | 4 => "swiglu_4",
                5..=8 => "swiglu_8",
                _ => "swiglu_16",
            };
            let kernel = Kernel { file: matvec_file(rows), name, weight: Some(dtype) };
            cuda.kernels.launch(kernel, (outputs.div_ceil(4), 1), 128, 0, arguments)
        })?;
    }
    Ok(true)
}

/// Returns `struct Gated` of the kernels, for the rows from `first` on.
fn gated_words(
    gate: Asked<'_>,
    up: Asked<'_>,
    (silu, hidden): (&Buffer, &Buffer),
    first: usize,
) -> [u64; 16] {
    let mut words = [0; 16];
    words[..5].copy_from_slice(&gate.matrix.words());
    words[5..10].copy_from_slice(&up.matrix.words());
    words[10] = gate.bias.map_or(0, Vector::at);
    words[11] = up.bias.map_or(0, Vector::at);
    let outs = [gate.out, silu, up.out, hidden].map(|out| out.at(first * gate.matrix.outputs()));
    words[12..].copy_from_slice(&outs);
    words
}

/// Returns `struct Products` of the kernels.
fn words(products: &[Asked<'_>], first: usize) -> [u64; MOST_PRODUCTS * PRODUCT_WORDS + 1] {
    let mut words = [0; MOST_PRODUCTS * PRODUCT_WORDS + 1];
    for (product, words) in products.iter().zip(words.chunks_exact_mut(PRODUCT_WORDS)) {
        words.copy_from_slice(&product.words(first));
    }
    words[MOST_PRODUCTS * PRODUCT_WORDS] = products.len() as u64;
    words
}

/// The number of thread blocks if each computes `outputs` outputs.
fn blocks(products: &[Asked<'_>], outputs: usize) -> usize {
    products.iter().map(|product| product.matrix.outputs().div_ceil(outputs)).sum()
}

/// Calls `launch` for up to `most` rows of the run at a time, with the first row and their number.
fn in_chunks(run: Run, most: usize, mut launch: impl FnMut(usize, usize) -> Result<()>) -> Result<()> {
    let end = run.first + run.rows;
    (run.first..end).step_by(most).try_for_each(|first| launch(first, most.min(end - first)))
}
