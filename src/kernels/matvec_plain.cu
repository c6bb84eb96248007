// Products with any number of rows of activations, of any sizes: out[row, o] = Σ_i x[row, i] · w[o, i] (+ b[o]).
// -DWEIGHT, -DPRECISION.
#include "weights.cuh"

// Up to three products of x (rows, I) with weights w (O, I). Each product writes out (rows, O), with the bits of
// ops/matmul.rs. Lane l of each half of a warp sums every sixteenth product of a stretch. The two halves take stretches
// in turn. Grid (Σ ceil(O / 4), rows), block 128.
KERNEL(128) matvec_plain(Products products, const float* x) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    Part part = part_of(products, blockIdx.x, blockDim.x / 32);
    const Product& product = products.of[part.product];
    const Matrix& matrix = product.matrix;
    int output = part.first + static_cast<int>(threadIdx.x / 32), lane = threadIdx.x % 32, inputs = matrix.inputs;
    if (output >= matrix.outputs) return;
    Row w = row_of<WEIGHT>(matrix, output);
    x += static_cast<long long>(blockIdx.y) * inputs;
    float total = 0.0f;
    for (int first = 0; first < inputs; first += 2 * STRETCH) {
        int start = first + lane / LANES * STRETCH, end = min(start + STRETCH, inputs);
        float sum = 0.0f;
        for (int i = start + lane % LANES; i < end; i += LANES) {
            sum = __fmaf_rn(x[i], weight_at<WEIGHT, PRECISION>(w, i), sum);
        }
        sum = reduce_lanes(sum);
        float second = __shfl_sync(FULL, sum, LANES);
        total = first == 0 ? sum : __fadd_rn(total, sum);
        if (first + STRETCH < inputs) total = __fadd_rn(total, second);
    }
    if (lane == 0) {
        float* out = product.out + static_cast<long long>(blockIdx.y) * matrix.outputs;
        out[output] = finished<PRECISION>(total, product.bias, output);
    }
}

#define KERNELS_OF_THIS_FILE(X) X(matvec_plain)
