// Products with few rows of activations: out[row, o] = Σ_i x[row, i] · w[o, i] (+ b[o]). Used by matvec.cu and
// matvec_16.cu.
//
// A decode pass multiplies one row. Every weight is read once, and reading takes all the time. A warp has several
// outputs. For each output, its lanes read neighbouring units of 16 bytes (or of 32 values, if weights are in blocks).
// The next loads start before the loaded values are multiplied. The first loads start even before the input is
// complete.
//
// A lane sums a unit's products separately and then adds them to its earlier sum. The lanes' sums are added pairwise.
// This order is the same for every number of rows and outputs. It differs from the order of ops/matmul.rs; the relative
// L2 distance between the results is under 1e-6. The order of matvec_plain.cu is that of ops.
#pragma once
#include "weights.cuh"

using Weights = Unit<WEIGHT>;
constexpr int VALUES = Weights::VALUES;
// Number of units of a row of weights that a lane loads at a time. Many rows, and wide units, leave fewer registers for
// this.
template <int ROWS>
constexpr int AT_ONCE = VALUES > 8 || ROWS > 8 ? 1 : ROWS > 2 ? 2 : 4;

// Adds the products of one unit of a row with `ROWS` rows of x, each `inputs` long, to `sums`.
template <int ROWS>
__device__ inline void add_unit(const Weights::Raw& raw, const float* x, int inputs, int rows, float (&sums)[ROWS]) {
    float w[VALUES];
    Weights::widen(raw, w);
#pragma unroll
    for (int i = 0; i < VALUES; i++) w[i] = used<WEIGHT, PRECISION>(w[i]);
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        // Rows beyond the last one repeat the last one. Their results are not written.
        const float4* at = reinterpret_cast<const float4*>(x + static_cast<long long>(min(row, rows - 1)) * inputs);
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < VALUES / 4; i++) {
            float4 four = at[i];
            sum = __fmaf_rn(four.x, w[4 * i], sum);
            sum = __fmaf_rn(four.y, w[4 * i + 1], sum);
            sum = __fmaf_rn(four.z, w[4 * i + 2], sum);
            sum = __fmaf_rn(four.w, w[4 * i + 3], sum);
        }
        sums[row] += sum;
    }
}

// Sets sums[output][row] to the complete products, in every lane of the warp. Waits for the input.
template <int OUTPUTS, int ROWS>
__device__ inline void multiply(const Row (&w)[OUTPUTS], const float* x, int inputs, int rows,
                                float (&sums)[OUTPUTS][ROWS]) {
    const int units = inputs / VALUES, lane = threadIdx.x % 32;
    constexpr int MANY = AT_ONCE<ROWS>;
    Weights::Raw now[MANY][OUTPUTS];
    auto ask = [&](int first, Weights::Raw(&raw)[MANY][OUTPUTS]) {
#pragma unroll
        for (int k = 0; k < MANY; k++) {
            int unit = first + 32 * k;
            if (unit >= units) break;
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++) raw[k][o] = Weights::load(w[o], unit);
        }
    };
    ask(lane, now);
    WAIT_FOR_INPUT();
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) {
#pragma unroll
        for (int row = 0; row < ROWS; row++) sums[o][row] = 0.0f;
    }
    // Rounds in which every lane has all of its units need no bounds checks. The last round may need them.
    int first = 0;
    for (; first + 32 * MANY <= units; first += 32 * MANY) {
        Weights::Raw next[MANY][OUTPUTS];
        ask(first + 32 * MANY + lane, next);
#pragma unroll
        for (int k = 0; k < MANY; k++) {
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++) {
                add_unit<ROWS>(now[k][o], x + (first + 32 * k + lane) * VALUES, inputs, rows, sums[o]);
                now[k][o] = next[k][o];
            }
        }
    }
#pragma unroll
    for (int k = 0; k < MANY; k++) {
        int unit = first + 32 * k + lane;
        if (unit >= units) break;
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) add_unit<ROWS>(now[k][o], x + unit * VALUES, inputs, rows, sums[o]);
    }
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) {
#pragma unroll
        for (int row = 0; row < ROWS; row++) sums[o][row] = sum_of_warp(sums[o][row]);
    }
}

template <int OUTPUTS>
ONE_COPY void multiply_row(const Row (&w)[OUTPUTS], const float* x, int inputs, float (&sums)[OUTPUTS][1]) {
    multiply(w, x, inputs, 1, sums);
}

// Computes products of up to ROWS rows. A warp has OUTPUTS outputs.
template <int OUTPUTS, int ROWS>
__device__ inline void matvec(const Products& products, const float* x, int rows) {
    Part part = part_of(products, blockIdx.x, OUTPUTS * (blockDim.x / 32));
    const Product& product = products.of[part.product];
    const Matrix& matrix = product.matrix;
    int first = part.first + static_cast<int>(threadIdx.x / 32) * OUTPUTS, lane = threadIdx.x % 32;
    Row w[OUTPUTS];
    // Outputs beyond the last one repeat the last one. They are not written.
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) w[o] = row_of<WEIGHT>(matrix, min(first + o, matrix.outputs - 1));
    auto put = [&](int row, int o, float sum) {
        if (first + o >= matrix.outputs || row >= rows) return;
        float* out = product.out + static_cast<long long>(row) * matrix.outputs;
        out[first + o] = finished<PRECISION>(sum, product.bias, first + o);
    };
    // Each lane has one output, so the writes are coalesced.
    if constexpr (ROW_BY_ROW) {
        for (int row = 0; row < rows; row++) {
            float sums[OUTPUTS][1];
            multiply_row(w, x + static_cast<long long>(row) * matrix.inputs, matrix.inputs, sums);
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++) {
                if (lane == o) put(row, o, sums[o][0]);
            }
        }
    } else {
        float sums[OUTPUTS][ROWS];
        multiply(w, x, matrix.inputs, rows, sums);
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
#pragma unroll
            for (int row = 0; row < ROWS; row++) {
                if (lane == o * ROWS + row) put(row, o, sums[o][row]);
            }
        }
    }
}

// Computes gate, its SiLU, up and their product in the feed-forward network (Shazeer, 2020). A warp has PAIRS outputs
// of gate, and the same outputs of up.
template <int PAIRS, int ROWS>
__device__ inline void swiglu(const Gated& gated, const float* x, int rows) {
    int outputs = gated.gate.outputs, lane = threadIdx.x % 32;
    int first = static_cast<int>(blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * PAIRS;
    Row w[2 * PAIRS];
#pragma unroll
    for (int o = 0; o < PAIRS; o++) {
        w[2 * o] = row_of<WEIGHT>(gated.gate, min(first + o, outputs - 1));
        w[2 * o + 1] = row_of<WEIGHT>(gated.up, min(first + o, outputs - 1));
    }
    auto put = [&](int row, int o, float of_gate, float of_up) {
        if (first + o >= outputs || row >= rows) return;
        long long at = static_cast<long long>(row) * outputs + first + o;
        float gate = finished<PRECISION>(of_gate, gated.gate_bias, first + o);
        float up = finished<PRECISION>(of_up, gated.up_bias, first + o);
        float silu = rounded<PRECISION>(silu_to_round<PRECISION>(gate));
        gated.gate_out[at] = gate, gated.up_out[at] = up, gated.silu[at] = silu;
        gated.hidden[at] = rounded<PRECISION>(__fmul_rn(silu, up));
    };
    const int inputs = gated.gate.inputs;
    if constexpr (ROW_BY_ROW) {
        for (int row = 0; row < rows; row++) {
            float sums[2 * PAIRS][1];
            multiply_row(w, x + static_cast<long long>(row) * inputs, inputs, sums);
#pragma unroll
            for (int o = 0; o < PAIRS; o++) {
                if (lane == o) put(row, o, sums[2 * o][0], sums[2 * o + 1][0]);
            }
        }
    } else {
        float sums[2 * PAIRS][ROWS];
        multiply(w, x, inputs, rows, sums);
#pragma unroll
        for (int o = 0; o < PAIRS; o++) {
#pragma unroll
            for (int row = 0; row < ROWS; row++) {
                if (lane == o * ROWS + row) put(row, o, sums[2 * o][row], sums[2 * o + 1][row]);
            }
        }
    }
}
