//! RMSNorm: as a kernel of its own, or as a part of the product that reads it.
//!
//! In decoding the norm of a token is the input of products, and nobody else's where nobody looks. The launch that makes it
//! is then taken back while it still waits, and every block of the product makes it for itself: with the same bits, and
//! sooner than one block does for all others.

use std::ops::Range;

use super::Cuda;
use super::driver::{Address, Arguments};
use super::kernels::Kernel;
use super::queue::Change;
use llama_trace_core::error::Result;

/// Arguments: x, weight, ε, width, out, where else in bfloat16, where in int8, and where packed ([`to_nowhere`]).
const RMS_NORM: Kernel = Kernel { file: "rms_norm", name: "rms_norm", weight: None };

/// The same of a sum: a, b, weight, ε, width, sum, out, and as above.
pub(super) const ADD_RMS_NORM: Kernel = Kernel { file: "rms_norm", name: "add_rms_norm", weight: None };

/// The last words of both, which say where the norm goes in int8: values and scales; and `struct PackedRows` of the kernels.
const WHOLE: Range<usize> = 0..2;
const PACKED: Range<usize> = 2..6;

/// Arguments more, by which it goes to neither.
pub(super) fn to_nowhere(arguments: Arguments) -> Arguments {
    arguments.words(&[0; WHOLE.end - WHOLE.start]).words(&[0; PACKED.end - PACKED.start])
}

/// The widest row that a block keeps in shared memory (`KEPT` of `norm.cuh`).
pub(super) const KEPT: usize = 8192;

/// Words of `struct Norm` of the kernels.
pub(super) const WORDS: usize = 3;

/// Rows of `width` values that are to be normalised, the first at `x`.
#[derive(Clone, Copy)]
pub(super) struct Norm {
    pub(super) x: Address,
    pub(super) weight: Address,
    pub(super) eps: f32,
    pub(super) width: usize,
}

/// Rows from which a device has blocks enough whatever their size.
const MANY: usize = 256;

/// Threads of a block that normalises a row of so many values: of many rows more blocks go side by side the smaller they are,
/// and then each thread has what it can keep of the weights (`ASKED` of `rms_norm.cu`).
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
    /// `struct Norm` of the kernels.
    pub(super) fn words(&self) -> [u64; WORDS] {
        [self.x, self.weight, u64::from(self.eps.to_bits())]
    }

    /// Asks for the norm of `rows` rows that follow one another, at `out`.
    pub(super) fn launch(&self, cuda: &Cuda, rows: usize, out: Address) -> Result<()> {
        let Self { x, weight, eps, width } = *self;
        let arguments = Arguments::new().address(x).address(weight).float(eps).int(width);
        let arguments = to_nowhere(arguments.address(out).narrow_too(out, rows * width, 1));
        cuda.kernels.launch(RMS_NORM, (rows, 1), threads(width, rows), shared(width), arguments)
    }
}

/// Takes the norm of one row back that is written to `out`, where it was asked for last and still waits.
pub(super) fn take_back(cuda: &Cuda, out: Address, width: usize) -> Result<Option<Norm>> {
    cuda.kernels.take_back(RMS_NORM, |words| match *words {
        [x, weight, eps, of, to, 0, 0, 0, 0, 0, 0, 0] if (to, of) == (out, width as u64) && width <= KEPT => {
            Some(Norm { x, weight, eps: f32::from_bits(eps as u32), width })
        }
        _ => None,
    })
}

/// Rows of so many values that a norm makes: where, how many, and their width.
pub(super) type Made = (Address, usize, usize);

/// Has the norm of these rows be written in int8 too, in groups of 32, to these values and scales, where it was asked for last and
/// still waits; whether it is.
pub(super) fn quantize_too(cuda: &Cuda, made: Made, to: [Address; 2]) -> bool {
    write_too(cuda, made, WHOLE, &to)
}

/// The same packed as products of many rows read them: `struct PackedRows`.
pub(super) fn pack_too(cuda: &Cuda, made: Made, to: [Address; 4]) -> bool {
    write_too(cuda, made, PACKED, &to)
}

fn write_too(cuda: &Cuda, (out, rows, width): Made, which: Range<usize>, to: &[Address]) -> bool {
    width.is_multiple_of(32)
        && cuda.kernels.change_recent(|kernel, last| {
            // Where a kernel has the width; the result follows it, or the sum and the result.
            let at = match kernel {
                RMS_NORM => 3,
                ADD_RMS_NORM => 4,
                _ => return Change::Cannot,
            };
            let (blocks, words) = (last.grid[0] as usize, last.arguments.all_mut());
            let (words, places) = words.split_at_mut(words.len() - PACKED.end);
            let places = &mut places[which.clone()];
            // The last word before these is where it goes in bfloat16.
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
