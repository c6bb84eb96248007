//! The sizes of the tiles in which AMX and AVX512-BF16 multiply.

/// Rows and columns of a tile of sums.
pub(super) const SIDE: usize = 16;

/// Inputs in a step: a tile's rows have so many bfloat16 values.
pub(super) const STEP: usize = 32;

/// Values of a step in two tiles: of 32 weight rows, or of 32 tokens.
pub(super) const TWO_TILES: usize = 2 * SIDE * STEP;
