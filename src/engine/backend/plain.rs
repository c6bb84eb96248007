//! The fused operations, made of the plain ones. Between two operations, `on_output` may change the output that the next
//! one reads.

use super::{Backend, Buffer, Input, OnOutput, Swiglu, Vector};
use llama_trace_core::error::Result;

/// See [`Backend::add_rms_norm`].
///
/// # Errors
/// The errors of the operations and of `on_output`.
pub fn add_rms_norm<B: Backend + ?Sized>(
    backend: &B,
    (a, b): (&Buffer, &Buffer),
    weight: &Vector,
    eps: f32,
    (rows, width): (usize, usize),
    (sum, normed): (&mut Buffer, &mut Buffer),
    on_output: &mut OnOutput<'_>,
) -> Result<()> {
    backend.add(a, b, rows * width, sum)?;
    on_output(0, sum)?;
    backend.rms_norm(sum, weight, eps, rows, normed)?;
    on_output(1, normed)
}

/// See [`Backend::swiglu`].
///
/// # Errors
/// The errors of the operations and of `on_output`.
pub fn swiglu<B: Backend + ?Sized>(
    backend: &B,
    x: &Input,
    count: usize,
    outputs: Swiglu<'_>,
    on_output: &mut OnOutput<'_>,
) -> Result<()> {
    let Swiglu { gate, silu, up, hidden } = outputs;
    backend.matmul(x, gate.matrix, gate.bias, gate.out)?;
    on_output(0, gate.out)?;
    backend.silu(gate.out, count, silu)?;
    on_output(1, silu)?;
    backend.matmul(x, up.matrix, up.bias, up.out)?;
    on_output(2, up.out)?;
    backend.mul(silu, up.out, count, hidden)?;
    on_output(3, hidden)
}
