//! RMSNorm: as its own kernel, or fused into the product that reads it.
//!
//! In decoding, the norm of a token is read only by products, unless it is recorded. Its launch is then withdrawn from
//! the queue ([`Fusable::Norm`]), and every block of the product computes the norm itself. The bits are the same, and
//! the latency is lower than if all blocks wait for the one block that computes the norm.

use std::ops::Range;

use super::Cuda;
use super::kernels::Kernel;
use super::queue::{Change, Fusable, Norm};
use llama_trace_core::error::Result;
use llama_trace_kernels::driver::{Address, Arguments};

/// Arguments: x, weight, ε, width, out, then the optional outputs: in bfloat16, in int8, and packed ([`to_nowhere`]).
const RMS_NORM: Kernel = Kernel { file: "rms_norm", name: "rms_norm", weight: None };

/// The norm of a sum. Arguments: a, b, weight, ε, width, sum, out, then the same optional outputs as [`RMS_NORM`].
pub(super) const ADD_RMS_NORM: Kernel = Kernel { file: "rms_norm", name: "add_rms_norm", weight: None };

/// Places of two optional outputs in the last words of both kernels' arguments: the addresses of int8 values and
/// scales, and `struct PackedRows` of the kernels.
const WHOLE: Range<usize> = 0..2;
const PACKED: Range<usize> = 2..6;

/// Adds null addresses for the int8 and the packed output.
pub(super) fn to_nowhere(arguments: Arguments) -> Arguments {
    arguments.words(&[0; WHOLE.end - WHOLE.start]).words(&[0; PACKED.end - PACKED.start])
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
        let arguments = to_nowhere(arguments.address(out).narrow_too(out, rows * width, 1));
        let fusable = (rows == 1 && width <= KEPT).then_some(Fusable::Norm { norm: *self, out });
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

/// The output of a norm: its address, its rows, and their width.
pub(super) type NormOutput = (Address, usize, usize);

/// Makes the last norm also write int8 values and scales, in groups of 32. Possible if the norm's launch is still in
/// the queue and computes the rows `made`. Returns whether the launch was changed.
pub(super) fn quantize_too(cuda: &Cuda, made: NormOutput, to: [Address; 2]) -> bool {
    write_too(cuda, made, WHOLE, &to)
}

/// [`quantize_too`] with the packed layout for products with many rows: `struct PackedRows`.
pub(super) fn pack_too(cuda: &Cuda, made: NormOutput, to: [Address; 4]) -> bool {
    write_too(cuda, made, PACKED, &to)
}

fn write_too(cuda: &Cuda, (out, rows, width): NormOutput, which: Range<usize>, to: &[Address]) -> bool {
    width.is_multiple_of(32)
        && cuda.kernels.change_recent(|kernel, last| {
            // The index of the width in the arguments. After it come the address of the sum (only in `ADD_RMS_NORM`)
            // and the address of the result.
            let at = match kernel {
                RMS_NORM => 3,
                ADD_RMS_NORM => 4,
                _ => return Change::Cannot,
            };
            let (blocks, words) = (last.grid[0] as usize, last.arguments.all_mut());
            let (words, places) = words.split_at_mut(words.len() - PACKED.end);
            let places = &mut places[which.clone()];
            // The last word before `places` is the bfloat16 result's address.
            let can = blocks == rows
                && words[at] == width as u64
                && words[words.len() - 2] == out
                && places.iter().all(|place| *place == 0);
            if can {
                places.copy_from_slice(to);
            }
            if can { Change::Did } else { Change::Cannot }
        })
}
