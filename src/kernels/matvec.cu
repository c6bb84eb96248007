// Products with up to eight rows of activations (matvec.cuh). -DWEIGHT, -DPRECISION. If both are bfloat16,
// matvec_bf16.cu is used instead.
#include "matvec.cuh"

// Up to three products of x (rows, I) with weights w (O, I). Each product writes out (rows, O). The number of rows is
// at most the number in the name. I is a multiple of 8. For int8, I, the group size and the index of the matrix's first
// value in its tensor are multiples of 16. Grid (Σ ceil(O / 8)), the products one after the other; block 128.
#define MATVEC(ROWS)                                                         \
    KERNEL(128) matvec_##ROWS(Products products, const float* x, int rows) { \
        LET_NEXT_START();                                                    \
        matvec<2, ROWS>(products, x, rows);                                  \
    }
FOR_FEW_ROWS(MATVEC)

// gate = x · w1ᵀ, silu(gate), up = x · w3ᵀ and silu · up, (rows, F) each, with the bits of matvec, silu and mul. The
// sizes are those of matvec. Grid (ceil(F / 4)), block 128.
#define SWIGLU(ROWS)                                                   \
    KERNEL(128) swiglu_##ROWS(Gated gated, const float* x, int rows) { \
        LET_NEXT_START();                                              \
        swiglu<1, ROWS>(gated, x, rows);                               \
    }
FOR_FEW_ROWS(SWIGLU)

#define KERNELS_OF_THIS_FILE(X) \
    X(matvec_1) X(matvec_2) X(matvec_4) X(matvec_8) X(swiglu_1) X(swiglu_2) X(swiglu_4) X(swiglu_8)
