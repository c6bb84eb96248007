// Products with many rows of activations: out[row, o] = Σ_i x[row, i] · w[o, i] (+ b[o]). -DWEIGHT, -DPRECISION.
#include "weights.cuh"

using Weights = Unit<WEIGHT>;

// The product in float32; sizes as in matvec. A block has 64 rows × 128 outputs, a thread 4 × 8 of them. A tile of
// weights is converted to float32 once for all rows of the block. For this, a thread loads a few units, each 16 bytes
// or 32 values of a block of weights. It starts to load the units of the next tile before it multiplies. Products of
// 256 inputs are summed separately, and then added to the earlier sum. So the results stay close to those of
// ops/matmul.rs: their relative L2 distance is under 1e-6. Grid (ceil(O / 128), ceil(rows / 64)), block 256.
KERNEL(256) matmul(Product product, const float* x, int rows) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    constexpr int THREADS = 256, ROWS = 64, OUTPUTS = 128, DEPTH = 32, EACH_SUM = 256;
    constexpr int X_STRIDE = ROWS + 4, W_STRIDE = OUTPUTS + 4;
    constexpr int UNITS = OUTPUTS * DEPTH / Weights::VALUES, EACH = (UNITS + THREADS - 1) / THREADS;
    constexpr int FOURS = ROWS * DEPTH / 4 / THREADS;
    SHARED(float, x_tile, DEPTH * X_STRIDE);
    SHARED(float, w_tile, DEPTH * W_STRIDE);
    const Matrix& matrix = product.matrix;
    const int inputs = matrix.inputs, outputs = matrix.outputs, thread = threadIdx.x;
    const int first_row = blockIdx.y * ROWS, first_output = blockIdx.x * OUTPUTS;
    const int across = thread % 16, down = thread / 16;

    // Neighbouring threads load neighbouring rows and outputs, which are adjacent in the tiles.
    float4 next_x[FOURS];
    Weights::Raw next_w[EACH];
    auto input_of_x = [&](int k) { return (thread + THREADS * k) / ROWS * 4; };
    auto input_of_w = [&](int k) { return (thread + THREADS * k) / OUTPUTS * Weights::VALUES; };
    const int row_of_x = first_row + thread % ROWS, output_of_w = first_output + thread % OUTPUTS;
    const Row w = row_of<WEIGHT>(matrix, min(output_of_w, outputs - 1));
    auto has_weights = [&](int first, int k) {
        return thread + THREADS * k < UNITS && output_of_w < outputs && first + input_of_w(k) < inputs;
    };
    auto ask = [&](int first) {
#pragma unroll
        for (int k = 0; k < FOURS; k++) {
            int input = first + input_of_x(k);
            next_x[k] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (row_of_x < rows && input < inputs) {
                next_x[k] = *reinterpret_cast<const float4*>(x + static_cast<long long>(row_of_x) * inputs + input);
            }
        }
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            if (has_weights(first, k)) next_w[k] = Weights::load(w, (first + input_of_w(k)) / Weights::VALUES);
        }
    };

    float totals[4][8] = {}, sums[4][8] = {};
    ask(0);
    for (int first = 0; first < inputs; first += DEPTH) {
#pragma unroll
        for (int k = 0; k < FOURS; k++) {
            float* to = x_tile + input_of_x(k) * X_STRIDE + thread % ROWS;
            to[0] = next_x[k].x, to[X_STRIDE] = next_x[k].y;
            to[2 * X_STRIDE] = next_x[k].z, to[3 * X_STRIDE] = next_x[k].w;
        }
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            float* to = w_tile + input_of_w(k) * W_STRIDE + thread % OUTPUTS;
            float values[Weights::VALUES] = {};
            if (has_weights(first, k)) Weights::widen(next_w[k], values);
            if (thread + THREADS * k < UNITS) {
#pragma unroll
                for (int i = 0; i < Weights::VALUES; i++) to[i * W_STRIDE] = used<WEIGHT, PRECISION>(values[i]);
            }
        }
        __syncthreads();
        ask(first + DEPTH);
#pragma unroll 4
        for (int i = 0; i < DEPTH; i++) {
            float4 a = *reinterpret_cast<const float4*>(x_tile + i * X_STRIDE + 4 * down);
            float4 b = *reinterpret_cast<const float4*>(w_tile + i * W_STRIDE + 4 * across);
            float4 c = *reinterpret_cast<const float4*>(w_tile + i * W_STRIDE + OUTPUTS / 2 + 4 * across);
            const float rows_of[4] = {a.x, a.y, a.z, a.w}, outputs_of[8] = {b.x, b.y, b.z, b.w, c.x, c.y, c.z, c.w};
#pragma unroll
            for (int r = 0; r < 4; r++) {
#pragma unroll
                for (int o = 0; o < 8; o++) sums[r][o] = __fmaf_rn(rows_of[r], outputs_of[o], sums[r][o]);
            }
        }
        __syncthreads();
        if ((first + DEPTH) % EACH_SUM == 0 || first + DEPTH >= inputs) {
#pragma unroll
            for (int r = 0; r < 4; r++) {
#pragma unroll
                for (int o = 0; o < 8; o++) totals[r][o] += sums[r][o], sums[r][o] = 0.0f;
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 4; r++) {
#pragma unroll
        for (int o = 0; o < 8; o++) {
            int row = first_row + 4 * down + r, output = first_output + o / 4 * (OUTPUTS / 2) + 4 * across + o % 4;
            if (row >= rows || output >= outputs) continue;
            float sum = product.bias ? __fadd_rn(totals[r][o], product.bias[output]) : totals[r][o];
            product.out[static_cast<long long>(row) * outputs + output] = rounded<PRECISION>(sum);
        }
    }
}

#define KERNELS_OF_THIS_FILE(X) X(matmul)
