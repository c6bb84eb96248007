//! RMSNorm: as its own kernel, or fused into the product that reads it.
//!
//! In decoding, the norm of a token is read only by products, unless it is recorded. Its launch is then withdrawn from
//! the queue ([`Fusable::Norm`]), and every block of the product computes the norm itself. The bits are the same, and
//! the latency is lower than if all blocks wait for the one block that computes the norm.

use super::Cuda;
use super::fusable::{Fusable, Norm};
use super::kernels::Kernel;
use llama_trace_core::error::Result;
use llama_trace_kernels::driver::{Address, Arguments, Extra};

/// Arguments: x, weight, ε, width, out, then the optional outputs: in bfloat16, in int8, and packed ([`with_extras`]).
const RMS_NORM: Kernel = Kernel { file: "rms_norm", name: "rms_norm", weight: None };

/// The norm of a sum. Arguments: a, b, weight, ε, width, sum, out, then the same optional outputs as [`RMS_NORM`].
pub(super) const ADD_RMS_NORM: Kernel = Kernel { file: "rms_norm", name: "add_rms_norm", weight: None };

/// Adds the optional outputs of both kernels: int8 values and scales in groups of 32, and the packed layout for
/// products with many rows. The result is `count` values at `out`, in rows of `width`.
pub(super) fn with_extras(arguments: Arguments, (out, count): (Address, usize), width: usize) -> Arguments {
    let result = width.is_multiple_of(32).then_some((out, count));
    arguments.extra(Extra::Int8OfNorm, result, 2).extra(Extra::PackedNorm, result, 4)
}

/// The widest row that a block keeps in shared memory (`KEPT` of `norm.cuh`).
pub(super) const KEPT: usize = 8192;

/// Words of `struct Norm` of the kernels.
pub(super) const WORDS: usize = 3;

/// With this many rows, there are enough blocks of any size to fill a device.
const MANY: usize = 256;

/// Returns the threads of a block that normalises a row of `width` values. With many rows, smaller blocks let more of
/// them run in parallel. Each thread then has as many weights as it can keep in registers (`ASKED` of `rms_norm.cu`).
pub(super) fn threads(width: usize, rows: usize) -> u32 {
    match width {
        ..=512 => 32,
        ..=1024 if rows >= MANY => 64,
        ..=2048 if rows >= MANY => 128,
        _ => 256,
    }
}

/// Bytes of shared memory for a row that a block keeps (`place` of `norm.cuh`).
pub(super) fn shared(width: usize) -> usize {
    if width <= KEPT { 4 * (width + width / 1024 * 16) } else { 0 }
}

impl Norm {
    /// Returns `struct Norm` of the kernels.
    pub(super) fn words(&self) -> [u64; WORDS] {
        [self.x, self.weight, u64::from(self.eps.to_bits())]
    }

    /// Queues the norm of `rows` consecutive rows, with the result at `out`. A product can replace the norm of one row,
    /// if its blocks can keep the row.
    pub(super) fn launch(&self, cuda: &Cuda, rows: usize, out: Address) -> Result<()> {
        let Self { x, weight, eps, width } = *self;
        let arguments = Arguments::new().address(x).address(weight).float(eps).int(width);
        let result = (out, rows * width);
        let arguments = with_extras(arguments.address(out).narrow_too(out, rows * width, 1), result, width);
        let fusable =
            if rows == 1 && width <= KEPT { Fusable::Norm { norm: *self, out } } else { Fusable::No };
        let block = threads(width, rows);
        cuda.kernels.launch_fusable(RMS_NORM, (rows, 1), block, shared(width), arguments, fusable)
    }
}

/// Withdraws the norm of one row of `width` values at `out`, if its launch is the last in the queue.
pub(super) fn withdraw(cuda: &Cuda, out: Address, width: usize) -> Option<Norm> {
    cuda.queue.withdraw(|last| match last {
        Fusable::Norm { norm, out: to } if (to, norm.width) == (out, width) => Some(norm),
        _ => None,
    })
}
