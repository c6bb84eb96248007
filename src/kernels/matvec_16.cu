// Products with up to 16 rows of activations, for weights that are floats (matvec.cuh). Blocks and int8 are multiplied
// with at most eight rows together, because their values fill the registers. -DWEIGHT (F32, F16, BF16), -DPRECISION. If
// both are bfloat16, matvec_bf16.cu is used instead.
#include "matvec.cuh"

// The products of matvec.cu. Grid (Σ ceil(O / 8)), block 128.
KERNEL_WITH(128, 3) matvec_16(Products products, const float* x, int rows) {
    LET_NEXT_START();
    matvec<2, 16>(products, x, rows);
}

// The operation swiglu of matvec.cu. Grid (ceil(F / 4)), block 128.
KERNEL_WITH(128, 3) swiglu_16(Gated gated, const float* x, int rows) {
    LET_NEXT_START();
    swiglu<1, 16>(gated, x, rows);
}

#define KERNELS_OF_THIS_FILE(X) X(matvec_16) X(swiglu_16)
