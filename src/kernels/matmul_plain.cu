// Products with many rows of activations, of any sizes: out[row, o] = Σ_i x[row, i] · w[o, i] (+ b[o]). -DWEIGHT (F32,
// F16, BF16), -DPRECISION.
#include "weights.cuh"

// A product with any numbers of rows, inputs and outputs. It serves sizes that matmul.cu does not support. A block has
// 64 rows × 64 outputs, a thread 4 × 4 of them. Sums have the order of matmul.cu. Grid (ceil(O / 64), ceil(rows / 64)),
// block 256.
KERNEL(256) matmul_plain(Product product, const float* x, int rows) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    constexpr int SIDE = 64, DEPTH = 16, STRIDE = SIDE + 4, EACH_SUM = 256;
    SHARED(float, x_tile, DEPTH * STRIDE);
    SHARED(float, w_tile, DEPTH * STRIDE);
    const Matrix& matrix = product.matrix;
    const int inputs = matrix.inputs, outputs = matrix.outputs;
    const int first_row = blockIdx.y * SIDE, first_output = blockIdx.x * SIDE;
    const int across = threadIdx.x % 16, down = threadIdx.x / 16;
    // The next operands are loaded before the current ones are multiplied. A thread loads input `across` of every
    // sixteenth row.
    float next_x[4], next_w[4];
    auto ask = [&](int first) {
        int input = first + across;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int row = first_row + down + 16 * k, output = first_output + down + 16 * k;
            bool has_row = row < rows && input < inputs, has_output = output < outputs && input < inputs;
            next_x[k] = has_row ? x[static_cast<long long>(row) * inputs + input] : 0.0f;
            next_w[k] = has_output ? weight_at<WEIGHT, PRECISION>(row_of<WEIGHT>(matrix, output), input) : 0.0f;
        }
    };
    float totals[4][4] = {}, sums[4][4] = {};
    ask(0);
    for (int first = 0; first < inputs; first += DEPTH) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            x_tile[across * STRIDE + down + 16 * k] = next_x[k], w_tile[across * STRIDE + down + 16 * k] = next_w[k];
        }
        __syncthreads();
        ask(first + DEPTH);
#pragma unroll
        for (int i = 0; i < DEPTH; i++) {
            float4 a = *reinterpret_cast<const float4*>(x_tile + i * STRIDE + 4 * down);
            float4 b = *reinterpret_cast<const float4*>(w_tile + i * STRIDE + 4 * across);
            const float rows_of[4] = {a.x, a.y, a.z, a.w}, outputs_of[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
            for (int r = 0; r < 4; r++) {
#pragma unroll
                for (int o = 0; o < 4; o++) sums[r][o] = __fmaf_rn(rows_of[r], outputs_of[o], sums[r][o]);
            }
        }
        __syncthreads();
        if ((first + DEPTH) % EACH_SUM == 0 || first + DEPTH >= inputs) {
#pragma unroll
            for (int r = 0; r < 4; r++) {
#pragma unroll
                for (int o = 0; o < 4; o++) totals[r][o] += sums[r][o], sums[r][o] = 0.0f;
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 4; r++) {
#pragma unroll
        for (int o = 0; o < 4; o++) {
            int row = first_row + 4 * down + r, output = first_output + 4 * across + o;
            if (row >= rows || output >= outputs) continue;
            float sum = product.bias ? __fadd_rn(totals[r][o], product.bias[output]) : totals[r][o];
            product.out[static_cast<long long>(row) * outputs + output] = rounded<PRECISION>(sum);
        }
    }
}

#define KERNELS_OF_THIS_FILE(X) X(matmul_plain)
