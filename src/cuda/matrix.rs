//! Weight matrices on the device, in the number type of their file: bfloat16, float16, float32, int8 with scales, or
//! blocks in the file's layout.

use std::ops::Range;
use std::sync::Arc;

use super::Cuda;
use super::memory::Memory;
use super::noise;
use super::queue::Queue;
use llama_trace_core::error::Result;
use llama_trace_core::ops::blocks::BlockRows;
use llama_trace_core::ops::quantize::Quantized;
use llama_trace_core::stop::Stop;
use llama_trace_core::tensor::Bytes;
use llama_trace_core::tensor::{Dtype, Tensor};
use llama_trace_engine::backend::{SeeGroups, WholeRows, cpu};
use llama_trace_kernels::driver::{Address, pair};

/// Bytes that are copied before the stop request is checked again.
const PIECE: usize = 64 << 20;

/// A matrix (outputs, inputs). It shares its memory with the matrices that were cut from it (`cut`).
pub struct Matrix {
    values: Arc<Memory>,
    scales: Option<Arc<Scales>>,
    dtype: Dtype,
    inputs: usize,
    /// The rows of the memory that belong to this matrix: the first, and the one after the last.
    own: (usize, usize),
    /// Whether kernels write its values.
    made: bool,
}

/// The scales of int8 values, for the whole tensor. A group of values that share a scale may extend over the end of a
/// row.
struct Scales {
    memory: Memory,
    group: usize,
}

impl Matrix {
    /// Copies a tensor with two axes to the device. A random tensor is generated on the device.
    pub(super) fn new(cuda: &Cuda, tensor: &Tensor) -> Result<Self> {
        let (outputs, inputs) = (tensor.shape()[0], tensor.shape()[1]);
        let values = there(cuda, tensor.bytes())?;
        let scales = tensor.scales().map(|scales| {
            let memory = there(cuda, &scales.bytes)?;
            Result::Ok(Arc::new(Scales { memory, group: scales.group }))
        });
        let scales = scales.transpose()?;
        Ok(Self {
            values: Arc::new(values),
            scales,
            dtype: tensor.dtype(),
            inputs,
            own: (0, outputs),
            made: false,
        })
    }

    /// Returns a matrix over memory that kernels write: (outputs, inputs) values of `dtype`, which must not be int8.
    pub(super) fn over(values: Arc<Memory>, dtype: Dtype, outputs: usize, inputs: usize) -> Self {
        Self { values, scales: None, dtype, inputs, own: (0, outputs), made: true }
    }

    /// Whether kernels write its values. A kernel that reads this matrix must wait for the kernel that writes them.
    pub(super) fn is_made(&self) -> bool {
        self.made
    }

    pub(super) fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Length of a row.
    pub(super) fn inputs(&self) -> usize {
        self.inputs
    }

    /// Number of rows.
    pub(super) fn outputs(&self) -> usize {
        self.own.1 - self.own.0
    }

    /// Number of values that share a scale; 0 if there are no separate scales.
    pub(super) fn group(&self) -> usize {
        self.scales.as_ref().map_or(0, |scales| scales.group)
    }

    /// Index of the matrix's first value in the tensor, if there are separate scales; otherwise 0.
    pub(super) fn first(&self) -> usize {
        if self.scales.is_some() { self.own.0 * self.inputs } else { 0 }
    }

    /// Returns the matrix of the given rows.
    pub(super) fn cut(&self, rows: Range<usize>) -> Self {
        let own = (self.own.0 + rows.start, self.own.0 + rows.end);
        Self { values: Arc::clone(&self.values), scales: self.scales.clone(), own, ..*self }
    }

    /// Bytes of a row.
    fn row_bytes(&self) -> usize {
        self.inputs / self.dtype.block() * self.dtype.block_bytes()
    }

    /// The address of its first row.
    fn at(&self) -> Address {
        self.values.at() + (self.own.0 * self.row_bytes()) as u64
    }

    /// Returns `struct Matrix` of the kernels.
    pub(super) fn words(&self) -> [u64; 5] {
        let scales = self.scales.as_ref().map_or(0, |scales| scales.memory.at());
        let sizes = pair(self.outputs(), self.inputs);
        [self.at(), scales, self.first() as u64, sizes, pair(self.group(), 0)]
    }

    /// Whether the fast kernels support the length and the alignment of the rows.
    pub(super) fn is_fast(&self) -> bool {
        match self.dtype {
            Dtype::I8 => {
                self.inputs.is_multiple_of(16)
                    && self.group().is_multiple_of(16)
                    && self.first().is_multiple_of(16)
            }
            _ => self.inputs.is_multiple_of(8),
        }
    }

    /// Reads `rows` from the device, and calls `see` with them as integers and scales.
    pub(super) fn see_whole(&self, rows: Range<usize>, see: SeeGroups<'_>) -> Result<()> {
        let (length, first) = (self.row_bytes(), self.own.0 + rows.start);
        let mut bytes = vec![0; rows.len() * length];
        self.values.read(first * length, &mut bytes)?;
        if let Some(dot) = cpu::dot_of(self.dtype) {
            return see(WholeRows::Blocks(BlockRows { bytes: &bytes, length, dot }));
        }
        let Some(scales) = &self.scales else { return Ok(()) };
        // The groups that contain these rows.
        let value = first * self.inputs;
        let groups = value / scales.group..(value + bytes.len()).div_ceil(scales.group);
        let mut of_groups = vec![[0_u8; 4]; groups.len()];
        scales.memory.read(groups.start * 4, of_groups.as_flattened_mut())?;
        see(WholeRows::Int8(Quantized {
            values: bytemuck::cast_slice(&bytes),
            scales: &of_groups,
            group: scales.group,
            first: value - groups.start * scales.group,
        }))
    }
}

/// Returns device memory with these bytes. Random bytes are generated on the device; all others are copied.
fn there(cuda: &Cuda, bytes: &Bytes) -> Result<Memory> {
    match bytes.noise() {
        Some(of) => noise::random(cuda, bytes.len(), of),
        None => copied(&cuda.queue, bytes, &cuda.stop),
    }
}

/// Copies `bytes` to the device, piece by piece.
fn copied(queue: &Arc<Queue>, bytes: &[u8], stop: &Stop) -> Result<Memory> {
    let memory = Memory::new(queue, bytes.len())?;
    for (i, piece) in bytes.chunks(PIECE).enumerate() {
        stop.check()?;
        memory.write(i * PIECE, piece)?;
    }
    Ok(memory)
}
