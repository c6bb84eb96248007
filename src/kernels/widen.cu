// Converts rows of weights to float32, to be shown. -DWEIGHT, -DPRECISION.
#include "weights.cuh"

// out (rows, I) = the rows of w (O, I) from first_row on, as float32. Grid (rows), block 128.
KERNEL(128) widen(Matrix w, int first_row, float* out) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    Row row = row_of<WEIGHT>(w, first_row + blockIdx.x);
    out += static_cast<long long>(blockIdx.x) * w.inputs;
    for (int i = threadIdx.x; i < w.inputs; i += blockDim.x) out[i] = weight_at<WEIGHT, PRECISION>(row, i);
}

#define KERNELS_OF_THIS_FILE(X) X(widen)
