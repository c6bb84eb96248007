//! Products of quantised activations with rows of blocks ([`crate::ops::blocks`]), read where they lie in the file: a
//! row at a time is spread out for the vector units, used for all tokens, and forgotten.

use super::Rows;
use super::q8::Quantized;
use super::rows::with_format;
use crate::ops::blocks;

/// See [`super::Kernel::q8`].
pub(super) fn portable(x: &Quantized, w: Rows<'_>, out: &mut [&mut [f32]]) {
    with_format!(w.dtype, F => {
        for row in 0..w.count() {
            for (token, out) in out.iter_mut().enumerate() {
                let (values, scales) = x.row(token);
                out[row] = blocks::dot::<F>(values, scales, w.row(row));
            }
        }
    });
}
