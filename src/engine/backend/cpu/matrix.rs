//! Weight matrices in the number type of their file, and their products.

use std::cell::RefCell;
use std::ops::Range;

use super::input::{Group, Input, MIN_PACKED};
use super::kernel::gemm::Scratch;
use super::kernel::{GroupScales, Kernel, Rows, Spaced, with_format};
#[cfg(target_arch = "x86_64")]
use super::kernel::{bf16_gemm, bf16_tiles};
use super::{MIN_PARALLEL, memory};
use crate::backend::WholeRows;
use llama_trace_core::config::{Arithmetic, Precision};
use llama_trace_core::error::Result;
use llama_trace_core::ops;
use llama_trace_core::ops::blocks::{BlockRows, Dot, GROUP};
use llama_trace_core::ops::quantize::Quantized;
use llama_trace_core::stop::Stop;
use llama_trace_core::tensor::Bytes;
use llama_trace_core::tensor::{Dtype, Scales, Tensor};
use llama_trace_core::threads;
use llama_trace_core::threads::prelude::*;

/// A matrix (outputs, inputs): the file's bytes in place, or a quantised copy.
#[derive(Clone, Debug)]
pub struct Matrix {
    tensor: Tensor,
    precision: Precision,
    /// The range of the tensor's rows that belong to this matrix.
    own: (usize, usize),
}

impl Matrix {
    /// Creates a matrix from a tensor of two axes. It is copied only if `precision` multiplies in int8 and the tensor
    /// is stored neither as int8 nor in blocks.
    pub(super) fn new(tensor: Tensor, precision: Precision, stop: &Stop) -> Result<Self> {
        assert_eq!(tensor.shape().len(), 2, "a matrix has two axes");
        let own = (0, tensor.shape()[0]);
        let stored = Self { tensor, precision, own };
        match precision {
            // Blocks are multiplied as they are stored. The groups of activations divide every block.
            Precision::Q8 { group: GROUP } if stored.tensor.dtype().is_blocks() => Ok(stored),
            Precision::Q8 { group } if stored.tensor.scales().is_none() => stored.quantize(group, stop),
            _ => Ok(stored),
        }
    }

    /// The same matrix in int8, quantised on all threads.
    fn quantize(&self, group: usize, stop: &Stop) -> Result<Self> {
        /// The number of groups that a thread quantises at once.
        const GROUPS: usize = 256;
        let (inputs, count) = (self.inputs(), self.tensor.count());
        let mut values = memory::filled(0_i8, count)?;
        let mut scales = memory::filled([0_u8; 4], count.div_ceil(group))?;
        let parts = values.par_chunks_mut(GROUPS * group).zip(scales.par_chunks_mut(GROUPS));
        parts.enumerate().try_for_each_init(
            || (Vec::new(), vec![0.0; inputs]),
            |(floats, row), (part, (values, scales))| {
                stop.check()?;
                let (first, end) = (part * GROUPS * group, part * GROUPS * group + values.len());
                floats.clear();
                for i in first / inputs..end.div_ceil(inputs) {
                    self.copy_row(i, row);
                    let start = first.saturating_sub(i * inputs);
                    floats.extend_from_slice(&row[start..inputs.min(end - i * inputs)]);
                }
                ops::quantize::quantize_weights(floats, group, values, scales);
                Ok(())
            },
        )?;
        let bytes = Bytes::owned(values.into_iter().map(i8::cast_unsigned).collect());
        let scales = Scales { bytes: Bytes::owned(scales.into_flattened()), group };
        let tensor = Tensor::int8(self.tensor.shape().to_vec(), bytes, scales);
        Ok(Self {
            tensor: tensor.unwrap_or_else(|| unreachable!("the values have this shape")),
            ..self.clone()
        })
    }

    /// The tensor that the matrix's products multiply. The matrix must not be cut from a larger matrix.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// Number of rows: outputs of the product.
    pub fn outputs(&self) -> usize {
        self.own.1 - self.own.0
    }

    /// A matrix of some of the rows.
    pub(super) fn cut(&self, rows: Range<usize>) -> Self {
        let first = self.own.0;
        Self { own: (first + rows.start, first + rows.end), ..self.clone() }
    }

    /// Whether a bfloat16 unit of `kernel` multiplies this matrix with inputs of many tokens. Such a unit has its own
    /// order of sums.
    pub(super) fn is_for_a_unit(&self, kernel: Kernel) -> bool {
        #[cfg(target_arch = "x86_64")]
        return (kernel.bf16_unit(self.precision, self.inputs()))
            .is_some_and(|unit| unit.takes(self.tensor.dtype(), self.precision));
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = kernel;
            false
        }
    }

    /// Length of a row: inputs of the product.
    pub fn inputs(&self) -> usize {
        self.tensor.shape()[1]
    }

    /// Some rows in their stored form.
    fn rows(&self, rows: Range<usize>) -> Rows<'_> {
        let bytes = self.tensor.bytes();
        let length = bytes.len() / self.tensor.shape()[0];
        let rows = self.own.0 + rows.start..self.own.0 + rows.end;
        let bytes = &bytes[rows.start * length..rows.end * length];
        let scales = self.tensor.scales().map(|scales| GroupScales {
            scales: scales.bytes.as_chunks().0,
            group: scales.group,
            first_row: rows.start,
        });
        // In q8 everything except the products is float32: a row of the embedding table has the values that its int8
        // numbers represent.
        Rows { bytes, dtype: self.tensor.dtype(), inputs: self.inputs(), scales, precision: self.precision }
    }

    /// Some consecutive rows as integers with their scales, if products run in int8.
    pub(super) fn int8_rows(&self, rows: Range<usize>) -> Option<WholeRows<'_>> {
        let Rows { bytes, inputs, scales, dtype, .. } = self.rows(rows);
        if dtype.is_blocks() && self.precision.group().is_some() {
            let length = inputs / dtype.block() * dtype.block_bytes();
            return Some(WholeRows::Blocks(BlockRows { bytes, length, dot: dot_of(dtype)? }));
        }
        let GroupScales { scales, group, first_row } = scales.filter(|_| self.precision.group().is_some())?;
        let values = bytemuck::cast_slice(bytes);
        Some(WholeRows::Int8(Quantized { values, scales, group, first: first_row * inputs }))
    }

    /// Copies row `row` as float32.
    pub(super) fn copy_row(&self, row: usize, out: &mut [f32]) {
        self.rows(row..row + 1).widen(0, 0..self.inputs(), out);
    }
}

/// The [`blocks::dot`](llama_trace_core::ops::blocks::dot) function of a block format in an arithmetic.
pub fn dot_of(dtype: Dtype) -> Option<fn(Arithmetic) -> Dot> {
    dtype.is_blocks().then(|| with_format!(dtype, F => Arithmetic::dot_of_blocks::<F> as fn(_) -> _))
}

thread_local! {
    /// The tile buffers of a thread, kept between products. Memory fresh from the system costs a page fault for every 4
    /// KB.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
    #[cfg(target_arch = "x86_64")]
    static BF16: RefCell<bf16_gemm::Scratch> = RefCell::default();
    /// A row of weights, widened to float32.
    static ROW: RefCell<Vec<f32>> = RefCell::default();
}

/// The number of weight rows that a thread multiplies between two checks of the stop request. With few tokens, it is
/// also the number of rows in a part. It is a multiple of the height of every tile, except the tiles of a unit.
const ROWS_AT_ONCE: usize = 48;

/// With fewer multiply-adds than this, a thread takes its whole share at once.
const MIN_PARTS: usize = 1 << 20;

/// Multiply-adds per token of one parallel part of a larger product. It is small enough that no waiting thread falls
/// asleep, and large enough that scheduling costs nothing.
const MIN_LEAF: usize = 1 << 18;

/// Candidates for the number of parts per thread. Several parts avoid long waits. The first candidate that balances the
/// threads best is used.
const PARTS: [usize; 7] = [4, 3, 2, 5, 6, 7, 8];

/// The number of columns in a part, a multiple of `together`. It minimises the work of the busiest of `threads` threads
/// for `outputs` columns.
fn columns_of_part(outputs: usize, threads: usize, together: usize) -> usize {
    let columns = PARTS.map(|parts| outputs.div_ceil(parts * threads).next_multiple_of(together));
    let most = |columns: &usize| {
        let parts = outputs.div_ceil(*columns);
        // The last part may be short. If it has a round to itself, no thread has a full part in that round.
        match parts % threads == 1 && threads > 1 {
            true => outputs - (parts - 1) * columns + (parts - 1) / threads * columns,
            false => parts.div_ceil(threads) * columns,
        }
    };
    columns.into_iter().min_by_key(most).unwrap_or(outputs)
}

/// out (rows, O) = x (rows, I) · wᵀ + bias. A thread computes some columns of the output for every row, so each weight
/// is read once.
pub(super) fn product(
    kernel: Kernel,
    x: &Input,
    w: &Matrix,
    bias: Option<&Vec<f32>>,
    out: &mut [f32],
    stop: &Stop,
) -> Result<()> {
    let (rows, inputs, outputs) = (x.rows, w.inputs(), w.outputs());
    assert_eq!(x.width, inputs, "the rows of x and of the matrix have the same length");
    let work = rows * inputs * outputs;
    let parallel = work >= MIN_PARALLEL;
    #[cfg(target_arch = "x86_64")]
    let unit_of = |group: &Group| group.unit.filter(|unit| unit.takes(w.tensor.dtype(), w.precision));
    let packed = x.groups.iter().any(|group| group.rows >= MIN_PACKED);
    let together = kernel.tile_rows(w.precision);
    #[cfg(target_arch = "x86_64")]
    let (packed, together) = match x.groups.iter().any(|group| group.rows > 0 && unit_of(group).is_some()) {
        true => (true, bf16_tiles::BLOCK),
        false => (packed, together),
    };
    // With few rows, the rows share the weights that are read. With many rows, the columns of a part share the
    // activations that are read, so the parts are larger. Parts are also larger for products so small that handing out
    // a part takes a good deal of their time.
    let threads = threads::count();
    let columns = match work {
        _ if packed => columns_of_part(outputs, threads, together),
        ..MIN_PARTS => outputs.div_ceil(threads).next_multiple_of(ROWS_AT_ONCE),
        _ => ROWS_AT_ONCE,
    };
    // Adds the bias to some summed columns of a row and rounds them.
    let finish = |columns: Range<usize>, out: &mut [f32]| {
        if let Some(bias) = bias {
            ops::elementwise::add_to(&bias[columns], out);
        }
        kernel.isa.round(w.precision, out);
    };
    // Computes `columns` of every row of a group.
    let multiply = |group: &Group, columns: Range<usize>, out: &mut [&mut [f32]]| {
        let weights = w.rows(columns.clone());
        match w.precision {
            Precision::Q8 { .. } if rows >= MIN_PACKED => {
                for first in columns.clone().step_by(ROWS_AT_ONCE) {
                    stop.check()?;
                    let now = first..columns.end.min(first + ROWS_AT_ONCE);
                    let of_part = now.start - columns.start..now.end - columns.start;
                    let mut out: Vec<_> = out.iter_mut().map(|out| &mut out[of_part.clone()]).collect();
                    kernel.isa.q8(&x.quantized, w.rows(now), &mut out);
                }
            }
            Precision::Q8 { .. } => kernel.isa.q8(&x.quantized, weights, out),
            #[cfg(target_arch = "x86_64")]
            _ if let Some(unit) = unit_of(group) => {
                let finish = |of_part: Range<usize>, out: &mut [f32]| {
                    finish(columns.start + of_part.start..columns.start + of_part.end, out);
                };
                return BF16
                    .with_borrow_mut(|scratch| unit.gemm(&group.bf16, weights, finish, out, scratch, stop));
            }
            _ if group.rows >= MIN_PACKED => {
                SCRATCH
                    .with_borrow_mut(|scratch| kernel.isa.gemm(&group.packed, weights, out, scratch, stop))?;
            }
            _ => {
                ROW.with_borrow_mut(|row| kernel.dots(Spaced::new(&group.values, inputs), weights, out, row));
            }
        }
        out.iter_mut().for_each(|out| finish(columns.clone(), out));
        Ok(())
    };
    let part = |part: usize, out: [&mut [&mut [f32]]; 2]| {
        let columns = part * columns..outputs.min((part + 1) * columns);
        for (group, out) in x.groups.iter().zip(out).filter(|(group, _)| group.rows > 0) {
            stop.check()?;
            multiply(group, columns.clone(), out)?;
        }
        Ok(())
    };
    if rows == 1 {
        let out = &mut out[..outputs];
        let part = |(i, out)| part(i, [&mut [out], &mut []]);
        return if parallel {
            let together = (MIN_LEAF / (columns * inputs)).max(1);
            out.par_chunks_mut(columns).with_max_len(together).enumerate().try_for_each(part)
        } else {
            out.chunks_mut(columns).enumerate().try_for_each(part)
        };
    }
    // The output of each part: its columns of every row, group by group.
    let rows_of = || [0, 1].map(|group: usize| Vec::with_capacity(x.groups[group].rows));
    let mut parts: Vec<[Vec<&mut [f32]>; 2]> = (0..outputs.div_ceil(columns)).map(|_| rows_of()).collect();
    for (row, values) in out.chunks_exact_mut(outputs).take(rows).enumerate() {
        for (part, columns) in parts.iter_mut().zip(values.chunks_mut(columns)) {
            part[x.group_of(row)].push(columns);
        }
    }
    let part = |(i, out): (usize, &mut [Vec<&mut [f32]>; 2])| part(i, out.each_mut().map(|out| &mut out[..]));
    if parallel {
        parts.par_iter_mut().with_max_len(1).enumerate().try_for_each(part)
    } else {
        parts.iter_mut().enumerate().try_for_each(part)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{noise, random_blocks};
    use super::super::{Backend, Buffer, Cpu, PassRows, Span};
    use super::*;
    use llama_trace_core::tensor::Dtype;

    fn blocks(dtype: Dtype, outputs: usize, inputs: usize) -> Tensor {
        let bytes = random_blocks(&noise(outputs * inputs, 21), dtype);
        Tensor::new(dtype, vec![outputs, inputs], Bytes::owned(bytes)).unwrap()
    }

    #[test]
    fn no_thread_has_much_more_to_do_than_another() {
        for (threads, together) in [(1, 16), (2, 8), (2, 16), (2, 32), (2, 48), (3, 16), (8, 16), (8, 48)] {
            for outputs in [1, 15, 48, 512, 768, 1000, 2048, 4096, 8192, 11_008, 14_336] {
                let columns = columns_of_part(outputs, threads, together);
                assert!(columns > 0 && columns.is_multiple_of(together), "{columns}");
                // Each part goes to the thread with the least work.
                let mut work = vec![0; threads];
                for first in (0..outputs).step_by(columns) {
                    let least = work.iter_mut().min().unwrap();
                    *least += columns.min(outputs - first);
                }
                let (most, fair) = (*work.iter().max().unwrap(), outputs.div_ceil(threads));
                assert!(most < fair + fair / 16 + together, "{outputs} of {together} on {threads}: {work:?}");
            }
        }
    }

    #[test]
    fn blocks_are_multiplied_where_they_lie() {
        for dtype in Dtype::ALL.into_iter().filter(|dtype| dtype.is_blocks()) {
            let tensor = blocks(dtype, 3, 256);
            for precision in [Precision::F32, Precision::Bf16, Precision::Q8 { group: GROUP }] {
                let matrix = Cpu::default().with_precision(precision).matrix(&tensor).unwrap();
                let matrix: &Matrix = matrix.downcast();
                assert_eq!(matrix.tensor.bytes().place(), tensor.bytes().place(), "{dtype} {precision:?}");
                assert_eq!(matrix.tensor.dtype(), dtype);
            }
        }
    }

    #[test]
    fn a_product_with_blocks_depends_neither_on_the_threads_nor_on_the_tokens_beside() {
        let (outputs, inputs, tokens) = (1100, 768, 19);
        let x = noise(inputs * tokens, 22);
        for dtype in Dtype::ALL.into_iter().filter(|dtype| dtype.is_blocks()) {
            let cpu = Cpu::default().with_precision(Precision::Q8 { group: GROUP });
            let matrix = cpu.matrix(&blocks(dtype, outputs, inputs)).unwrap();
            let run = |x: &[f32]| {
                let tokens = x.len() / inputs;
                let (mut pass, mut input) = (cpu.new_pass().unwrap(), cpu.input());
                let spans = [Span { sequence: 0, start: 0, tokens }];
                cpu.begin_pass(&vec![0; tokens], &spans, &[], &mut pass).unwrap();
                cpu.prepare(&Buffer::new(x.to_vec()), inputs, &pass, &PassRows::All, &mut input).unwrap();
                let mut out = cpu.buffer(tokens * outputs).unwrap();
                cpu.matmul(&input, &matrix, None, &mut out).unwrap();
                out.downcast::<Vec<f32>>().clone()
            };
            let one_by_one: Vec<f32> = x.chunks(inputs).flat_map(run).collect();
            for threads in [1, 2, 3] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                assert!(pool.install(|| run(&x)) == one_by_one, "{dtype} on {threads} threads");
            }
        }
    }
}
