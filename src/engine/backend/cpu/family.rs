//! The operations of other families than Llama.

use super::{Cpu, ELEMENTS, each_row, floats, floats_mut, kernel, weights};
use crate::backend::family::{FamilyOperations, NormOf};
use crate::backend::{Buffer, Vector};
use llama_trace_core::config::{Activation, Pairing, RopeRounding};
use llama_trace_core::error::Result;
use llama_trace_core::memory;
use llama_trace_core::ops::elementwise::{add_scaled, cap, times};
use llama_trace_core::ops::{activation, norm};
use llama_trace_core::tensor::Tensor;
use llama_trace_core::threads::prelude::*;

impl Cpu {
    /// Calls `apply` for blocks of the first `count` values of `x`.
    fn in_place(&self, x: &mut Buffer, count: usize, apply: impl Fn(&mut [f32]) + Sync) -> Result<()> {
        floats_mut(x)[..count].par_chunks_mut(ELEMENTS).try_for_each(|x| {
            self.stop.check()?;
            apply(x);
            Ok(())
        })
    }
}

impl FamilyOperations for Cpu {
    fn exact_vector(&self, tensor: &Tensor, plus: f32) -> Result<Vector> {
        let mut values = memory::filled(0.0, tensor.count())?;
        kernel::widen(tensor.dtype(), tensor.bytes(), &mut values);
        if plus != 0.0 {
            values.iter_mut().for_each(|value| *value += plus);
        }
        Ok(Vector::new(values))
    }

    fn ones(&self, count: usize) -> Result<Vector> {
        memory::filled(1.0_f32, count).map(Vector::new)
    }

    fn norm(&self, x: &Buffer, of: NormOf<'_>, rows: usize, out: &mut Buffer) -> Result<()> {
        let (width, count) = (of.width, rows * of.width);
        let (weight, bias) = (weights(of.weight), of.bias.map(weights));
        let each = weight.len() / width;
        each_row(&self.stop, &floats(x)[..count], &mut floats_mut(out)[..count], width, |row, x, out| {
            let weight = &weight[row % each * width..][..width];
            let rms_norm = |x: &[f32], weight: &[f32], eps, precision, out: &mut [f32]| {
                self.kernel.isa.rms_norm(x, weight, eps, precision, out);
            };
            norm::norm(of.form, rms_norm, x, (weight, bias), self.precision, out);
        })
    }

    fn rope_part(
        &self,
        x: &Buffer,
        (cos, sin, pairs): (&Buffer, &Buffer, usize),
        (pairing, rounding): (Pairing, RopeRounding),
        (rows, heads, head_dim): (usize, usize, usize),
        out: &mut Buffer,
    ) -> Result<()> {
        let (width, turned) = (heads * head_dim, 2 * pairs);
        let (x, out) = (&floats(x)[..rows * width], &mut floats_mut(out)[..rows * width]);
        let (cos, sin) = (floats(cos), floats(sin));
        let inner = rounding.of_products(self.precision);
        each_row(&self.stop, x, out, width, |row, x, out| {
            let (cos, sin) = (&cos[row * pairs..][..pairs], &sin[row * pairs..][..pairs]);
            for (x, out) in x.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim)) {
                self.kernel.isa.rope(&x[..turned], cos, sin, pairing, inner, &mut out[..turned]);
                out[turned..].copy_from_slice(&x[turned..]);
            }
            self.round(out);
        })
    }

    fn activate(
        &self,
        activation: Activation,
        numbers: [f32; 2],
        x: &Buffer,
        count: usize,
        out: &mut Buffer,
    ) -> Result<()> {
        each_row(&self.stop, &floats(x)[..count], &mut floats_mut(out)[..count], ELEMENTS, |_, x, out| {
            let silu = |x: &[f32], out: &mut [f32]| self.kernel.isa.silu(x, out);
            activation::activate(activation, silu, numbers, self.precision, x, out);
            self.round(out);
        })
    }

    fn add_scaled(&self, a: &Buffer, b: &Buffer, by: f32, count: usize, out: &mut Buffer) -> Result<()> {
        let (a, b, out) = (floats(a), floats(b), floats_mut(out));
        each_row(&self.stop, &a[..count], &mut out[..count], ELEMENTS, |part, a, out| {
            add_scaled(a, &b[part * ELEMENTS..], by, self.precision, out);
        })
    }

    fn times(&self, by: f32, count: usize, x: &mut Buffer) -> Result<()> {
        self.in_place(x, count, |x| times(by, self.precision, x))
    }

    fn times_rows(&self, factors: &[f32], width: usize, x: &mut Buffer) -> Result<()> {
        for (x, by) in floats_mut(x).chunks_exact_mut(width).zip(factors) {
            times(*by, self.precision, x);
        }
        Ok(())
    }

    fn cap(&self, at: f32, count: usize, x: &mut Buffer) -> Result<()> {
        self.in_place(x, count, |x| cap(at, self.precision, x))
    }
}
