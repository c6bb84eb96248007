//! Shared parts of the loops that measure the machine's limits. Each loop is in the module of its instruction set.

use std::fmt;

/// The number of independent sums in [`super::Kernel::multiply_limit`], in groups of 16 values. It is large enough to
/// hide the latency of a multiply-add.
pub(super) const CHAINS: usize = 12;

/// The kind of multiplication in a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Multiplied {
    /// Products in float32.
    Float32,
    /// Products in bfloat16, summed in float32.
    BFloat16,
    /// Products in float32, each computed by three products in bfloat16.
    ThreeBFloat16,
    /// Products in int8, summed in int32.
    Int8,
}

impl fmt::Display for Multiplied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Float32 => "float32",
            Self::BFloat16 => "bfloat16",
            Self::ThreeBFloat16 => "float32 made of bfloat16",
            Self::Int8 => "int8",
        })
    }
}
