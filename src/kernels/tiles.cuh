// Products with many rows on tensor cores: tiles of both matrices in shared memory, and the operations after the sums.
#pragma once
#include "tensor.cuh"

// A tile has DEPTH inputs of each of its rows. A chunk has eight values, 16 bytes. Chunk number `chunk` of a row is at
// place chunk ^ swizzle(row). So the chunks with the same number in eight consecutive rows lie in different banks. Rows
// at a distance of a multiple of eight have the same swizzle.
template <int DEPTH>
__device__ inline int swizzle(int row) {
    return row * DEPTH / 64 & (DEPTH / 8 - 1);
}

// The rows of a matrix (count, inputs) from number `first` on. A tile has the rows that exist.
struct Rows {
    const uint16_t* values;
    int first, count, inputs;

    // These functions return three things: the address of row i of the tile; the number of existing rows from row i on;
    // and, for two rows of the tile that are `apart` rows apart, their distance in rows of the matrix.
    __device__ const uint16_t* begin(int i) const { return values + (static_cast<long long>(first) + i) * inputs; }
    __device__ int left(int i) const { return count - first - i; }
    __device__ static constexpr int further(int apart) { return apart; }
};

// Rows of two matrices of the same sizes, alternating: eight of the first, then eight of the second.
struct RowsOfTwo {
    Rows one;
    const uint16_t* other;

    __device__ static int row(int i) { return i / 16 * 8 + i % 8; }
    __device__ const uint16_t* begin(int i) const {
        return (i / 8 % 2 ? other : one.values) + (static_cast<long long>(one.first) + row(i)) * one.inputs;
    }
    __device__ int left(int i) const { return one.left(row(i)); }
    __device__ static constexpr int further(int apart) { return apart / 2; }
};

// A thread's copies for tiles of ROWS rows, which all THREADS threads of a block fill together. A thread copies the
// same chunk of several rows. Places of missing rows are left unchanged, because their sums are not used. Missing
// inputs become zeros.
template <int DEPTH, int ROWS, int THREADS>
struct Copier {
    static constexpr int CHUNKS = DEPTH / 8, APART = THREADS / CHUNKS, EACH = (ROWS + APART - 1) / APART;
    static_assert(APART % 16 == 0, "a thread's rows have one swizzle, and are of one matrix");

    const uint16_t* from;  // the thread's chunk of its first row
    long long apart;       // distance between rows
    int rows, inputs;      // number of the thread's rows; number of inputs left from its chunk in the first tile on

    template <class Of>
    __device__ Copier(const Of& of, int all_inputs) {
        const int row = threadIdx.x / CHUNKS, input = threadIdx.x % CHUNKS * 8;
        from = of.begin(row) + input;
        apart = static_cast<long long>(Of::further(APART)) * all_inputs;
        rows = min(ceil_div(of.left(row), Of::further(APART)), ceil_div(ROWS - row, APART));
        inputs = all_inputs - input;
    }

    // Copies the thread's part of tile number `step` along the inputs.
    __device__ void copy(uint16_t* to, int step) const {
        const int row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
        to += row * DEPTH + (chunk ^ swizzle<DEPTH>(row)) * 8;
        const uint16_t* at = from + step * DEPTH;
        const bool there = step * DEPTH < inputs;
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            if (k < rows) copy16_async_if(there, to + k * APART * DEPTH, at + k * apart);
        }
    }
};

// Finishes two sums of one product: those of `output` and of the next output, in one row. With WHOLE, both outputs
// exist, and the number of outputs is even.
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
    const float2 pair = widen_pair(pair_bf16(first, second));
    if (WHOLE) {
        *reinterpret_cast<float2*>(to) = pair;
    } else {
        to[0] = pair.x;
        if (both) to[1] = pair.y;
    }
}

// The same for gate and up, with the bits of finish_pair. Hidden may also be written in bfloat16 to `narrow`, and the
// other outputs may be null. F is even.
__device__ inline void finish_gated(const Gated& gated, uint16_t* narrow, int rows, int row, int output, float2 gate,
                                    float2 up) {
    const int outputs = gated.gate.outputs;
    if (row >= rows || output >= outputs) return;
    auto finish = [&](float2 sums, const float* bias) {
        if (bias) sums = {__fadd_rn(sums.x, bias[output]), __fadd_rn(sums.y, bias[output + 1])};
        return widen_pair(pair_bf16(sums.x, sums.y));
    };
    gate = finish(gate, gated.gate_bias), up = finish(up, gated.up_bias);
    const float2 silu = widen_pair(pair_bf16(silu_to_round<BF16>(gate.x), silu_to_round<BF16>(gate.y)));
    const uint32_t hidden = pair_bf16(__fmul_rn(silu.x, up.x), __fmul_rn(silu.y, up.y));
    const long long at = static_cast<long long>(row) * outputs + output;
    if (narrow) *reinterpret_cast<uint32_t*>(narrow + at) = hidden;
    if (!gated.hidden) return;
    *reinterpret_cast<float2*>(gated.gate_out + at) = gate;
    *reinterpret_cast<float2*>(gated.silu + at) = silu;
    *reinterpret_cast<float2*>(gated.up_out + at) = up;
    *reinterpret_cast<float2*>(gated.hidden + at) = widen_pair(hidden);
}

// The following functions take a TILE: a type that multiplies ROWS rows of x with OUTPUTS rows of weights, and holds
// the sums. Tiles are numbered along the rows first, and then along the outputs.

// Computes up to three products of x (rows, I) with weights w (O, I). Each product writes out (rows, O).
template <class TILE>
__device__ inline void matmul(const Products& products, const uint16_t* x, int rows) {
    const int inputs = products.of[0].matrix.inputs, down = ceil_div(rows, TILE::ROWS);
    int across = 0;
    for (int i = 0; i < products.count; i++) across += ceil_div(products.of[i].matrix.outputs, TILE::OUTPUTS);
    auto rows_of_x = [&](int tile) { return Rows{x, tile % down * TILE::ROWS, rows, inputs}; };
    auto weights = [&](int tile) {
        const Part part = part_of(products, tile / down, TILE::OUTPUTS);
        const Matrix& matrix = products.of[part.product].matrix;
        return Rows{static_cast<const uint16_t*>(matrix.values), part.first, matrix.outputs, inputs};
    };
    TILE tile;
    tile.each_tile(down * across, rows_of_x, weights, inputs, [&](int number) {
        const Part part = part_of(products, number / down, TILE::OUTPUTS);
        const Product product = products.of[part.product];
        const int outputs = product.matrix.outputs, first_row = number % down * TILE::ROWS;
        if (part.first + TILE::OUTPUTS <= outputs && outputs % 2 == 0) {
            tile.each([&](int row, int output, float2 sums) {
                finish_pair<true>(product, rows, first_row + row, part.first + output, sums.x, sums.y);
            });
        } else {
            tile.each([&](int row, int output, float2 sums) {
                finish_pair<false>(product, rows, first_row + row, part.first + output, sums.x, sums.y);
            });
        }
    });
}

// Computes gate, its SiLU, up and their product in the feed-forward network (Shazeer, 2020), for x (rows, I). Half of a
// tile's outputs belong to gate, and the other half are the same outputs of up.
template <class TILE>
__device__ inline void swiglu(const uint16_t* x, int rows, const Gated& gated, uint16_t* narrow) {
    constexpr int OUTPUTS = TILE::OUTPUTS / 2;
    const int inputs = gated.gate.inputs, outputs = gated.gate.outputs, down = ceil_div(rows, TILE::ROWS);
    auto rows_of_x = [&](int tile) { return Rows{x, tile % down * TILE::ROWS, rows, inputs}; };
    auto weights = [&](int tile) {
        const Rows gate = {static_cast<const uint16_t*>(gated.gate.values), tile / down * OUTPUTS, outputs, inputs};
        return RowsOfTwo{gate, static_cast<const uint16_t*>(gated.up.values)};
    };
    TILE tile;
    tile.each_tile(down * ceil_div(outputs, OUTPUTS), rows_of_x, weights, inputs, [&](int number) {
        const int first_row = number % down * TILE::ROWS, first = number / down * OUTPUTS;
        // Usually only silu · up is needed, all outputs exist, and there is no bias. Then two outputs take a few
        // instructions. They are computed a second time if their approximate silu may round to other bits.
        if (narrow && !gated.hidden && !gated.gate_bias && !gated.up_bias && first + OUTPUTS <= outputs) {
            uint16_t* const to = narrow + static_cast<long long>(first_row) * outputs + first;
            uint2 later[TILE::ROWS * OUTPUTS / 2 / TILE::THREADS];  // the two sums of gate, and those of up
            uint32_t* where[TILE::ROWS * OUTPUTS / 2 / TILE::THREADS];
            int count = 0;
            auto write = [](uint32_t* at, float2 silu, uint32_t up) {
                silu = widen_pair(pair_bf16(silu.x, silu.y));
                *at = pair_bf16(__fmul_rn(silu.x, widen_pair(up).x), __fmul_rn(silu.y, widen_pair(up).y));
            };
            tile.each_two([&](int row, int output, float2 gate, float2 up) {
                if (first_row + row >= rows) return;
                const uint32_t of_gate = pair_bf16(gate.x, gate.y), of_up = pair_bf16(up.x, up.y);
                const NearSilu one(widen_pair(of_gate).x), other(widen_pair(of_gate).y);
                auto* const at = reinterpret_cast<uint32_t*>(to + static_cast<long long>(row) * outputs + output);
                write(at, {one.value, other.value}, of_up);
                if (!one.sure || !other.sure) later[count] = {of_gate, of_up}, where[count++] = at;
            });
            for (int i = 0; i < count; i++) {
                const float2 gate = widen_pair(later[i].x);
                write(where[i], {silu_of_ops(gate.x), silu_of_ops(gate.y)}, later[i].y);
            }
            return;
        }
        tile.each_two([&](int row, int output, float2 gate, float2 up) {
            finish_gated(gated, narrow, rows, first_row + row, first + output, gate, up);
        });
    });
}
