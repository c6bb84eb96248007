// Integer products with few rows: int8 activations (quantize.cu) with int8 weights, or with blocks as they are stored.
// -DWEIGHT (I8 or a format). All results have the bits of ops/quantize.rs and ops/blocks.rs.
#include "whole.cuh"

// The part of a group of weights that is loaded before the multiplication. For blocks, this is the whole group.
template <class W>
struct Asked {
    using Raw = Group<W>;
    static __device__ inline Raw load(const Row& row, int number, int) { return group_of<W>(row.bytes, number); }
};
// For int8, this is the first 32 values, and the scale. The rest of a longer group is loaded during the multiplication.
template <>
struct Asked<I8> {
    struct Raw {
        uint4 first, second;
        float scale;
    };
    static __device__ inline Raw load(const Row& row, int number, int group) {
        const uint4* at = reinterpret_cast<const uint4*>(row.bytes + static_cast<long long>(number) * group);
        // Each row begins with a new group.
        return {at[0], group > 16 ? at[1] : make_uint4(0, 0, 0, 0), row.scales[number]};
    }
};
using Raw = Asked<WEIGHT>::Raw;

// Returns sum + Σ a·b over 16 signed bytes each.
__device__ inline int dot16(const uint4& a, const uint4& b, int sum) {
    return dot4(a.w, b.w, dot4(a.z, b.z, dot4(a.y, b.y, dot4(a.x, b.x, sum))));
}

// Multiplies group `number` of the weights with the same group of a row of x.
template <class W>
__device__ inline Term multiply(const typename Asked<W>::Raw& raw, const Row& row, const int8_t* x, float x_scale,
                                int number, int group) {
    const uint4* at = reinterpret_cast<const uint4*>(x + static_cast<long long>(number) * group);
    uint4 first = at[0], second = group > 16 ? at[1] : make_uint4(0, 0, 0, 0);
    if constexpr (Same<W, I8>::value) {
        int sum = dot16(second, raw.second, dot16(first, raw.first, 0));
        const uint4* w = reinterpret_cast<const uint4*>(row.bytes + static_cast<long long>(number) * group);
        for (int i = 2; i < group / 16; i++) sum = dot16(at[i], w[i], sum);
        return {__fmul_rn(x_scale, raw.scale), static_cast<float>(sum)};
    } else {
        const uint32_t words[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
        int products[2] = {}, sums[2] = {};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int run = 4 * i / W::RUN;
            products[run] = dot4(words[i], raw.q[i], products[run]);
            if (W::MINIMA) sums[run] = dot4(words[i], ONES, sums[run]);
        }
        const float of_x[2] = {static_cast<float>(sums[0]), static_cast<float>(sums[1])};
        return {x_scale, term_of<W>(raw.scale, raw.minimum, products, of_x)};
    }
}

// Sets sums[output][row] to the complete products, in the first lane of the warp. Each lane multiplies every 32nd
// group. The first sixteen lanes add: lane l adds the groups l, l + 16, l + 32 … Lane l has multiplied every second of
// these groups, and lane l + 16 the others.
template <int OUTPUTS, int ROWS>
__device__ inline void multiply_at_once(const Row (&w)[OUTPUTS], const int8_t* x, const float* x_scales, int inputs,
                                        int group, int rows, float (&sums)[OUTPUTS][ROWS]) {
    const int lane = threadIdx.x % 32, groups = inputs / group;
    Raw now[OUTPUTS] = {};
    auto ask = [&](int number, Raw(&raw)[OUTPUTS]) {
        if (number >= groups) return;
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) raw[o] = Asked<WEIGHT>::load(w[o], number, group);
    };
    ask(lane, now);
    WAIT_FOR_INPUT();
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) {
#pragma unroll
        for (int row = 0; row < ROWS; row++) sums[o][row] = 0.0f;
    }
    for (int first_group = 0; first_group < groups; first_group += 32) {
        int number = first_group + lane;
        Raw next[OUTPUTS] = {};
        ask(number + 32, next);
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
#pragma unroll
            for (int row = 0; row < ROWS; row++) {
                // Rows beyond the last one repeat the last one. Their results are not written.
                long long there = min(row, rows - 1);
                Term term = {0.0f, 0.0f};
                if (number < groups) {
                    term = multiply<WEIGHT>(now[o], w[o], x + there * inputs, x_scales[there * groups + number], number,
                                            group);
                }
                Term other = {__shfl_down_sync(FULL, term.scale, LANES), __shfl_down_sync(FULL, term.value, LANES)};
                if (number < groups) sums[o][row] = __fmaf_rn(term.scale, term.value, sums[o][row]);
                if (number + LANES < groups) sums[o][row] = __fmaf_rn(other.scale, other.value, sums[o][row]);
            }
            now[o] = next[o];
        }
    }
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) {
#pragma unroll
        for (int row = 0; row < ROWS; row++) sums[o][row] = reduce_lanes(sums[o][row]);
    }
}

template <int OUTPUTS>
ONE_COPY void multiply_row(const Row (&w)[OUTPUTS], const int8_t* x, const float* x_scales, int inputs, int group,
                           float (&sums)[OUTPUTS][1]) {
    multiply_at_once(w, x, x_scales, inputs, group, 1, sums);
}

// Computes products of up to ROWS rows. A warp has two outputs.
template <int ROWS>
__device__ inline void matvec(const Products& all, const int8_t* x, const float* x_scales, int group, int rows) {
    constexpr int OUTPUTS = 2;
    Part part = part_of(all, blockIdx.x, OUTPUTS * (blockDim.x / 32));
    const Product& product = all.of[part.product];
    const Matrix& matrix = product.matrix;
    const int first = part.first + static_cast<int>(threadIdx.x / 32) * OUTPUTS, lane = threadIdx.x % 32;
    const int inputs = matrix.inputs;
    Row w[OUTPUTS];
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) w[o] = row_of<WEIGHT>(matrix, min(first + o, matrix.outputs - 1));
    auto put = [&](int row, int o, float sum) {
        if (lane != 0 || first + o >= matrix.outputs || row >= rows) return;
        if (product.bias) sum = __fadd_rn(sum, product.bias[first + o]);
        product.out[static_cast<long long>(row) * matrix.outputs + first + o] = sum;
    };
    if constexpr (ROW_BY_ROW) {
        for (int row = 0; row < rows; row++) {
            float sums[OUTPUTS][1];
            multiply_row(w, x + static_cast<long long>(row) * inputs, x_scales + static_cast<long long>(row) * (inputs / group),
                         inputs, group, sums);
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++) put(row, o, sums[o][0]);
        }
    } else {
        float sums[OUTPUTS][ROWS];
        multiply_at_once(w, x, x_scales, inputs, group, rows, sums);
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
#pragma unroll
            for (int row = 0; row < ROWS; row++) put(row, o, sums[o][row]);
        }
    }
}

// Up to three products of x (rows, I) with weights w (O, I). x is int8 with scales (rows, I / group). Each product
// writes out (rows, O). The number of rows is at most the number in the name. For blocks, group is 32. For int8, the
// groups of the weights have the same size as those of x. It is a multiple of 16, and divides I and the index of the
// matrix's first value in its tensor. Grid (Σ ceil(O / 8)), block 128.
#define MATVEC(ROWS)                                                                                                \
    KERNEL(128) matvec_q8_##ROWS(Products products, const int8_t* x, const float* x_scales, int group, int rows) { \
        LET_NEXT_START();                                                                                           \
        matvec<ROWS>(products, x, x_scales, group, rows);                                                           \
    }
FOR_FEW_ROWS(MATVEC)

// The same for int8 with any number of rows and any group sizes. A run ends where a group of x or of w ends. Every lane
// loops over all runs. Lane l adds the runs whose number mod 16 is l. Grid (Σ ceil(O / 4), rows), block 128.
KERNEL(128) matvec_q8_plain(Products products, const int8_t* x, const float* x_scales, int group) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    if constexpr (Same<WEIGHT, I8>::value) {
        Part part = part_of(products, blockIdx.x, blockDim.x / 32);
        const Product& product = products.of[part.product];
        const Matrix& matrix = product.matrix;
        int output = part.first + static_cast<int>(threadIdx.x / 32), lane = threadIdx.x % 32, inputs = matrix.inputs;
        if (output >= matrix.outputs) return;
        Row w = row_of<WEIGHT>(matrix, output);
        const int8_t* values = reinterpret_cast<const int8_t*>(w.bytes);
        x += static_cast<long long>(blockIdx.y) * inputs;
        x_scales += static_cast<long long>(blockIdx.y) * ceil_div(inputs, group);
        float sum = 0.0f;
        for (int i = 0, run = 0; i < inputs; run++) {
            uint32_t w_group = (w.first + i) / w.group;
            long long end_of_w = static_cast<long long>(w_group + 1) * w.group - w.first;
            int end = min((i / group + 1) * group, inputs);
            end = end_of_w < end ? static_cast<int>(end_of_w) : end;
            if (run % LANES == lane) {
                long long whole = 0;
                for (int k = i; k < end; k++) whole += x[k] * values[k];
                sum = __fmaf_rn(static_cast<float>(whole), __fmul_rn(x_scales[i / group], w.scales[w_group]), sum);
            }
            i = end;
        }
        sum = reduce_lanes(sum);
        if (lane == 0) {
            if (product.bias) sum = __fadd_rn(sum, product.bias[output]);
            product.out[static_cast<long long>(blockIdx.y) * matrix.outputs + output] = sum;
        }
    }
}

#define KERNELS_OF_THIS_FILE(X) X(matvec_q8_1) X(matvec_q8_2) X(matvec_q8_4) X(matvec_q8_8) X(matvec_q8_plain)
