// Integer products with many rows, as in matmul_q8.cu, with the same operands and the same bits. -DWEIGHT (I8 or a
// format). A warp has 64 outputs, so it reads each value of the rows from shared memory for twice as many products.
#include "matmul_q8.cuh"

// Computes the same as matmul_q8_128 for groups of one unit. `parts` is 1. Grid (ceil(rows / 128), ceil(count / 128)), block
// 256, shared memory 8 records of 16 · RECORD bytes, and 131,072 bytes.
KERNEL_WITH(256, 1) matmul_q8_wide(Packed w, Packed x, const unsigned* odd, const float* bias, float* out, int outputs,
                                   int first, int count, int rows, int units, int parts) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    matmul<Tile<2, 4, 2, 2, 2>>(w, x, odd, bias, out, outputs, first, count, rows, units, parts);
}

#define KERNELS_OF_THIS_FILE(X) X(matmul_q8_wide)
