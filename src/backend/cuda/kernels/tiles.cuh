// Products with many rows, by tensor cores: tiles of both matrices in shared memory, and what becomes of the sums.
#pragma once
#include "tensor.cuh"

// A tile has DEPTH inputs of each of its rows. Of a row's 16 bytes number `chunk`, eight values, lie in place
// chunk ^ swizzle(row), so that eight rows at the same chunk lie in all banks. Rows that are a multiple of eight apart have
// the same.
template <int DEPTH>
__device__ inline int swizzle(int row) {
    return row * DEPTH / 64 & (DEPTH / 8 - 1);
}

// Has `to` be filled with ROWS rows, `step` tiles into their inputs, by all THREADS of a block: each copies the same chunk of
// some rows. `begins` gives where row i of the tile begins; inputs that are not there are zeros.
template <int DEPTH, int ROWS, int THREADS, class Begins>
__device__ inline void copy_tile(uint16_t* to, Begins begins, int inputs, int step) {
    constexpr int CHUNKS = DEPTH / 8, APART = THREADS / CHUNKS;
    static_assert(APART % 8 == 0, "a thread's rows have one swizzle");
    const int own_row = threadIdx.x / CHUNKS, own_chunk = threadIdx.x % CHUNKS;
    const int input = step * DEPTH + 8 * own_chunk;
    to += own_row * DEPTH + (own_chunk ^ swizzle<DEPTH>(own_row)) * 8;
#pragma unroll
    for (int k = 0; k < (ROWS + APART - 1) / APART; k++) {
        if (ROWS % APART != 0 && own_row + k * APART >= ROWS) break;
        if (input < inputs) {
            copy16_async(to + k * APART * DEPTH, begins(own_row + k * APART) + input);
        } else {
            *reinterpret_cast<uint4*>(to + k * APART * DEPTH) = make_uint4(0, 0, 0, 0);
        }
    }
}

// Row i of a tile whose first is number `first` of a matrix (count, inputs). Rows that are not there are the last one again.
struct Rows {
    const uint16_t* values;
    int first, count, inputs;
    __device__ const uint16_t* operator()(int i) const {
        return values + static_cast<long long>(min(first + i, count - 1)) * inputs;
    }
};

// Rows of two matrices, HALF of the one and HALF of the other by turns.
template <int HALF>
struct RowsOfTwo {
    Rows one, other;
    __device__ const uint16_t* operator()(int i) const {
        const int row = i / (2 * HALF) * HALF + i % HALF;
        return i / HALF % 2 ? other(row) : one(row);
    }
};

// What a thread has of the sums of one product: of a row those for `output` and the one after it. With WHOLE both are there,
// and an even number of outputs.
template <bool WHOLE>
__device__ inline void finish_pair(const Product& product, int rows, int row, int output, float first, float second) {
    const int outputs = product.matrix.outputs;
    if (row >= rows || !WHOLE && output >= outputs) return;
    float* to = product.out + static_cast<long long>(row) * outputs + output;
    const bool both = WHOLE || output + 1 < outputs;
    if (product.bias) {
        first = __fadd_rn(first, product.bias[output]);
        if (both) second = __fadd_rn(second, product.bias[output + 1]);
    }
    const float2 pair = widen_pair(pair_of_sums(first, second));
    if (WHOLE) {
        *reinterpret_cast<float2*>(to) = pair;
    } else {
        to[0] = pair.x;
        if (both) to[1] = pair.y;
    }
}

// The same of gate and up, with the bits of finish_pair, silu and mul. Hidden may be written in bfloat16 to `narrow`, and the
// others to nowhere. F is even.
__device__ inline void finish_gated(const Gated& gated, uint16_t* narrow, int rows, int row, int output, float2 gate,
                                    float2 up) {
    const int outputs = gated.gate.outputs;
    if (row >= rows || output >= outputs) return;
    auto finish = [&](float2 sums, const float* bias) {
        if (bias) sums = {__fadd_rn(sums.x, bias[output]), __fadd_rn(sums.y, bias[output + 1])};
        return widen_pair(pair_of_sums(sums.x, sums.y));
    };
    gate = finish(gate, gated.gate_bias), up = finish(up, gated.up_bias);
    const float2 silu = widen_pair(pair_of_sums(silu_of_ops(gate.x), silu_of_ops(gate.y)));
    const uint32_t hidden = pair_of_sums(__fmul_rn(silu.x, up.x), __fmul_rn(silu.y, up.y));
    const long long at = static_cast<long long>(row) * outputs + output;
    if (narrow) *reinterpret_cast<uint32_t*>(narrow + at) = hidden;
    if (!gated.hidden) return;
    *reinterpret_cast<float2*>(gated.gate_out + at) = gate;
    *reinterpret_cast<float2*>(gated.silu + at) = silu;
    *reinterpret_cast<float2*>(gated.up_out + at) = up;
    *reinterpret_cast<float2*>(gated.hidden + at) = widen_pair(hidden);
}

// What follows takes a TILE: what has the sums of ROWS rows of x and OUTPUTS rows of weights once it has multiplied them.
//
// Up to three products of x (rows, I) with w (O, I) into out (rows, O) each, the products one after the other in grid.y.
template <class TILE>
__device__ inline void matmul(const Products& products, const uint16_t* x, int rows) {
    const Part part = part_of(products, blockIdx.y, TILE::OUTPUTS);
    const Product product = products.of[part.product];
    const int inputs = product.matrix.inputs, outputs = product.matrix.outputs, first_row = blockIdx.x * TILE::ROWS;
    TILE tile;
    tile.multiply(Rows{x, first_row, rows, inputs},
                  Rows{static_cast<const uint16_t*>(product.matrix.values), part.first, outputs, inputs}, inputs);
    if (part.first + TILE::OUTPUTS <= outputs && outputs % 2 == 0) {
        tile.each([&](int row, int output, float2 sums) {
            finish_pair<true>(product, rows, first_row + row, part.first + output, sums.x, sums.y);
        });
    } else {
        tile.each([&](int row, int output, float2 sums) {
            finish_pair<false>(product, rows, first_row + row, part.first + output, sums.x, sums.y);
        });
    }
}

// The gated half of the feed-forward network (Shazeer, 2020) of x (rows, I), in tiles of half as many outputs.
template <class TILE>
__device__ inline void swiglu(const uint16_t* x, int rows, const Gated& gated, uint16_t* narrow) {
    const int inputs = gated.gate.inputs, outputs = gated.gate.outputs;
    const int first_row = blockIdx.x * TILE::ROWS, first = blockIdx.y * (TILE::OUTPUTS / 2);
    auto weights = [&](const Matrix& matrix) {
        return Rows{static_cast<const uint16_t*>(matrix.values), first, outputs, inputs};
    };
    TILE tile;
    tile.multiply(Rows{x, first_row, rows, inputs}, RowsOfTwo<TILE::HALF>{weights(gated.gate), weights(gated.up)}, inputs);
    tile.each_two([&](int row, int output, float2 gate, float2 up) {
        finish_gated(gated, narrow, rows, first_row + row, first + output, gate, up);
    });
}
