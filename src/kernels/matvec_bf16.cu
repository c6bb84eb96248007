// Products of bfloat16 weights with few rows of activations in bfloat16, on tensor cores: out[row, o] = Σ_i x[row, i] ·
// w[o, i] (+ b[o]).
//
// Every weight is read once for all rows, because an mma takes 16 rows in the same time as one. A block has 16 rows of
// weights at a time, one tile of mma. Its warps take pieces of the inputs in turn, and each warp loads two pieces
// ahead. The first loads start before the input is complete, and the loads of the next tile start while this tile is
// multiplied. A lane loads 16 bytes of each of two rows of weights. An mma adds 16 inputs, and their order does not
// matter. Here the order is chosen such that the loaded bytes are a lane's part of two tiles, without rearrangement.
//
// Each row of x is a column of its own in the mma. The sums of a piece are computed separately and then added to the
// earlier sums, because each addition of a tensor core truncates the sum. The sums of the warps are added one after the
// other. So a row's results have the same bits alone, in a batch and in swiglu. The relative L2 distance from the
// results of ops/matmul.rs is under 1e-6.
//
// If x is the norm of a single row, and no other kernel reads this norm, every block computes the norm itself while its
// first weights arrive (the kernels …_norm). This takes less time than waiting for another kernel.
#include "norm.cuh"
#include "tensor.cuh"
#include "turns.cuh"

constexpr int OUTPUTS = 16, WARPS = 8, PIECE = 128, CHUNKS = PIECE / 32, LANE_INPUTS = 8;
// Number of inputs in one piece of each warp.
constexpr int ROUND = WARPS * PIECE;
// Number of values per lane in the warp's tiles of sums. A tile is 16 rows of weights and 8 rows of x.
constexpr int SUMS = OUTPUTS * 8;

// The two rows of weights that a lane loads parts of: numbers lane / 4 and lane / 4 + 8 of the tile's 16 rows.
struct Two {
    const uint16_t* low;
    const uint16_t* high;
};

// The shared memory of a block with OwnNorm: the norm, and the row in its padded layout.
struct NormRoom {
    uint16_t* norm;
    float* row;
    __device__ inline NormRoom(unsigned char* memory, int width)
        : norm(reinterpret_cast<uint16_t*>(memory)), row(reinterpret_cast<float*>(memory + ceil_div(width, 8) * 16)) {}
};

// Multiplies 16 rows of weights with `rows` rows of x, each `inputs` long, for each tile of this block. Then calls
// `finish` with the tile's number and a function that returns sum number i. The sums are in the order of an mma: 32
// lanes have four sums each, for each of the TILES tiles of rows of x. Threads from TILES · SUMS on have no sums.
// `rows_of` returns a lane's rows of weights of a tile. `input_of` waits for the input and returns the rows of x.
template <int TILES, class RowsOf, class Input, class Finish>
__device__ inline void multiply(int tiles, RowsOf rows_of, Input input_of, int inputs, int rows, Finish finish) {
    SHARED(float, parts, 2 * WARPS * TILES * SUMS);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4;
    const int offset = lane % 4 * LANE_INPUTS;
    uint4 now[CHUNKS][2], next[CHUNKS][2];
    auto ask = [&](const Two& of, int first, uint4(&to)[CHUNKS][2]) {
#pragma unroll
        for (int k = 0; k < CHUNKS; k++) {
            int input = first + 32 * k + offset;
            to[k][0] = to[k][1] = make_uint4(0, 0, 0, 0);
            if (input >= inputs) continue;
            to[k][0] = load_once(of.low + input);
            to[k][1] = load_once(of.high + input);
        }
    };
    // Two pieces are in flight; in most matrices, a warp has no more. A new piece is loaded into the registers of the
    // piece that was just used, because moving a piece to other registers would mean waiting for it.
    const int own = warp * PIECE, all = ceil_div(inputs, 2 * ROUND) * (2 * ROUND);
    Two at = rows_of(blockIdx.x);
    ask(at, own, now);
    ask(at, own + ROUND, next);
    const uint16_t* const x = input_of();
    for (int tile = blockIdx.x, turn = 0; tile < tiles; tile += gridDim.x, turn ^= 1) {
        float sums[TILES][4] = {};
        auto use = [&](int first, const uint4(&from)[CHUNKS][2]) {
            float of_piece[TILES][4] = {};
#pragma unroll
            for (int k = 0; k < CHUNKS; k++) {
                const int input = first + 32 * k + offset;
                const uint4 a = from[k][0], b = from[k][1];
                const uint32_t of_weights[2][4] = {{a.x, b.x, a.y, b.y}, {a.z, b.z, a.w, b.w}};
#pragma unroll
                for (int of = 0; of < TILES; of++) {
                    const int row = 8 * of + group;
                    // Rows and inputs that do not exist are zeros.
                    uint4 of_x = make_uint4(0, 0, 0, 0);
                    if (row < rows && input < inputs) {
                        of_x = *reinterpret_cast<const uint4*>(x + static_cast<long long>(row) * inputs + input);
                    }
                    const uint32_t halves[2][2] = {{of_x.x, of_x.y}, {of_x.z, of_x.w}};
                    multiply_tiles(of_piece[of], of_weights[0], halves[0]);
                    multiply_tiles(of_piece[of], of_weights[1], halves[1]);
                }
            }
#pragma unroll
            for (int of = 0; of < TILES; of++) {
#pragma unroll
                for (int i = 0; i < 4; i++) sums[of][i] = __fadd_rn(sums[of][i], of_piece[of][i]);
            }
        };
        for (int first = own; first < all; first += 2 * ROUND) {
            // The next loads: this tile's pieces, the next tile's pieces, or none.
            int ahead = first + 2 * ROUND;
            if (ahead >= all) {
                const int following = tile + gridDim.x;
                ahead = following < tiles ? own : inputs;
                if (following < tiles) at = rows_of(following);
            }
            if (first < inputs) use(first, now);
            ask(at, ahead, now);
            if (first + ROUND < inputs) use(first + ROUND, next);
            ask(at, ahead + ROUND, next);
        }
        // The next tile uses the other half of this memory. The tile after the next one uses this half again; all
        // threads have finished this tile by then.
        float* const own_parts = parts + turn * WARPS * TILES * SUMS;
#pragma unroll
        for (int of = 0; of < TILES; of++) {
#pragma unroll
            for (int k = 0; k < 4; k++) own_parts[((warp * TILES + of) * 4 + k) * 32 + lane] = sums[of][k];
        }
        __syncthreads();
        finish(tile, [&](int i) {
            float sum = own_parts[i];
#pragma unroll
            for (int from = 1; from < WARPS; from++) sum = __fadd_rn(sum, own_parts[from * TILES * SUMS + i]);
            return sum;
        });
    }
}

// These functions return the row of x of sum number i, and its row of weights among the first eight. Sum number i + 64
// has the same row of x, and the row of weights that comes eight rows later.
__device__ inline int row_of_sum(int i) { return i / SUMS * 8 + i % 4 * 2 + i / 32 % 2; }
__device__ inline int output_of_sum(int i) { return i % 32 / 4; }

// Computes the products. With TURNS, there is one row. A tile of a product that RoPE rotates then has the outputs of
// eight pairs: the first values of all pairs, then their second values.
template <int TILES, bool TURNS, class Input>
__device__ inline void matvec(const Products& products, int tiles, Input input, int rows, const Added& added,
                              const Turns& turns) {
    const int inputs = products.of[0].matrix.inputs, group = threadIdx.x % 32 / 4;
    // The outputs of rows i and i + 8 of a tile, for i < 8. If they are a rotated pair, also the pair's number in its
    // head.
    struct Outputs {
        int low, high, pair;
    };
    auto outputs_of = [&](const Part& part, int i) {
        if (TURNS && turns.at(part.product).out) {
            const Turns::Place place = turns.place(part.first / 2 + i);
            return Outputs{place.first, place.second, place.pair};
        }
        return Outputs{part.first + i, part.first + i + 8, 0};
    };
    auto rows_of = [&](int tile) {
        const Part part = part_of(products, tile, OUTPUTS);
        const Matrix& matrix = products.of[part.product].matrix;
        const Outputs outputs = outputs_of(part, group);
        auto row = [&](int output) {
            return static_cast<const uint16_t*>(matrix.values) + static_cast<long long>(min(output, matrix.outputs - 1)) * inputs;
        };
        return Two{row(outputs.low), row(outputs.high)};
    };
    multiply<TILES>(tiles, rows_of, input, inputs, rows, [&](int tile, auto sum_of) {
        const int i = threadIdx.x;
        if (i >= TILES * SUMS || row_of_sum(i) >= rows) return;
        const Part part = part_of(products, tile, OUTPUTS);
        const Product& product = products.of[part.product];
        const int outputs = product.matrix.outputs;
        if constexpr (TURNS) {
            const Outputs own = outputs_of(part, output_of_sum(i));
            const Turned turned = turns.at(part.product);
            uint16_t* const cache =
                turned.cache ? static_cast<uint16_t*>(turned.cache) + static_cast<long long>(turns.span->start) * outputs : nullptr;
            if (turned.out) {
                // One thread has both values of a pair. A product has whole heads. So either both values exist or
                // neither.
                if (i / 64 % 2 == 1 || own.low >= outputs) return;
                const float cos = turns.cos[own.pair], sin = turns.sin[own.pair];
                const float a = finished<BF16>(sum_of(i), product.bias, own.low);
                const float b = finished<BF16>(sum_of(i + 64), product.bias, own.high);
                auto round = [](float x) { return rounded<BF16>(x); };
                const float low = round(__fsub_rn(round(__fmul_rn(a, cos)), round(__fmul_rn(b, sin))));
                const float high = round(__fadd_rn(round(__fmul_rn(a, sin)), round(__fmul_rn(b, cos))));
                product.out[own.low] = a, product.out[own.high] = b;
                turned.out[own.low] = low, turned.out[own.high] = high;
                if (cache) cache[own.low] = to_bf16(low), cache[own.high] = to_bf16(high);
                return;
            }
            const int output = i / 64 % 2 == 1 ? own.high : own.low;
            if (output >= outputs) return;
            const float out = finished<BF16>(sum_of(i), product.bias, output);
            product.out[output] = out;
            if (cache) cache[output] = to_bf16(out);
        } else {
            const int output = part.first + output_of_sum(i) + i / 64 % 2 * 8;
            if (output >= outputs) return;
            const long long at = static_cast<long long>(row_of_sum(i)) * outputs + output;
            const float out = finished<BF16>(sum_of(i), product.bias, output);
            product.out[at] = out;
            if (added.sum) added.sum[at] = rounded<BF16>(__fadd_rn(added.to[at], out));
        }
    });
}

// Up to three products of x (rows, I) with weights w (O, I). Each product writes out (rows, O). The number of rows is
// at most the number in the name, and I is a multiple of 8. If there is a single product, the kernel can also add
// another tensor to it, with the bits of add. Grid (Σ ceil(O / 16)), the products one after the other; block 256.
#define MATVEC(name, tiles)                                                                                    KERNEL_WITH(256, 2) name(Products products, const uint16_t* x, int rows, Added added) {                        LET_NEXT_START();                                                                                          auto input = [&] {                                                                                             WAIT_FOR_INPUT();                                                                                          return x;                                                                                              };                                                                                                         matvec<tiles, false>(products, gridDim.x, input, rows, added, {});                                                }
MATVEC(matvec_bf16_8, 1)
MATVEC(matvec_bf16_16, 2)

// The same for one row x, which is the norm of a row of at most KEPT values, with the bits of rms_norm. `tiles` is Σ
// ceil(O / 16). Results can also be rotated and cached, with the bits of rope. Grid: `tiles`, but at most as many
// blocks as fit on the device; block 256; shared memory 16 · ceil(I / 8) + 4 · (I + 16 · ⌊I / 1024⌋) bytes.
KERNEL_WITH(256, 2) matvec_bf16_norm(Products products, Norm norm, int tiles, Turns turns) {
    LET_NEXT_START();
    DYNAMIC_SHARED(unsigned char, memory);
    const NormRoom room(memory, products.of[0].matrix.inputs);
    OwnNorm own(norm, products.of[0].matrix.inputs);
    auto input = [&] {
        WAIT_FOR_INPUT();
        own.make(room.row, room.norm);
        return room.norm;
    };
    matvec<1, true>(products, tiles, input, 1, {}, turns);
}

// Computes gate, its SiLU, up and their product in the feed-forward network (Shazeer, 2020). The first eight of a
// block's rows of weights belong to gate, and the other eight are the same rows of up.
template <int TILES, class Input>
__device__ inline void swiglu(int tiles, Input input, int rows, const Gated& gated, uint16_t* narrow) {
    const int inputs = gated.gate.inputs, outputs = gated.gate.outputs, group = threadIdx.x % 32 / 4;
    auto rows_of = [&](int tile) {
        const long long start = static_cast<long long>(min(tile * 8 + group, outputs - 1)) * inputs;
        return Two{static_cast<const uint16_t*>(gated.gate.values) + start,
                   static_cast<const uint16_t*>(gated.up.values) + start};
    };
    multiply<TILES>(tiles, rows_of, input, inputs, rows, [&](int tile, auto sum_of) {
        const int i = threadIdx.x;
        if (i >= TILES * SUMS || i / 64 % 2 == 1) return;
        const int row = row_of_sum(i), output = tile * 8 + output_of_sum(i);
        if (row >= rows || output >= outputs) return;
        const float gate = finished<BF16>(sum_of(i), gated.gate_bias, output);
        const float up = finished<BF16>(sum_of(i + 64), gated.up_bias, output), silu = rounded<BF16>(silu_to_round<BF16>(gate));
        const uint16_t hidden = to_bf16(__fmul_rn(silu, up));
        const long long at = static_cast<long long>(row) * outputs + output;
        if (narrow) {
            narrow[at] = hidden;
            return;
        }
        gated.gate_out[at] = gate, gated.up_out[at] = up, gated.silu[at] = silu, gated.hidden[at] = from_bf16(hidden);
    });
}

// gate = x · w1ᵀ, silu(gate), up = x · w3ᵀ and silu · up, (rows, F) each, with the bits of matvec_bf16, silu and mul.
// The sizes are those of matvec_bf16. If `narrow` is not null, only silu · up is written, in bfloat16, to `narrow`.
// Grid (ceil(F / 8)), block 256.
#define SWIGLU(name, tiles)                                                                              KERNEL_WITH(256, 2) name(const uint16_t* x, int rows, Gated gated, uint16_t* narrow) {                   LET_NEXT_START();                                                                                    auto input = [&] {                                                                                       WAIT_FOR_INPUT();                                                                                    return x;                                                                                        };                                                                                                   swiglu<tiles>(gridDim.x, input, rows, gated, narrow);                                            }
SWIGLU(swiglu_bf16_8, 1)
SWIGLU(swiglu_bf16_16, 2)

// The same for one row x, which is the norm of a row, as in matvec_bf16_norm. `tiles` is ceil(F / 8).
KERNEL_WITH(256, 2) swiglu_bf16_norm(Norm norm, int tiles, Gated gated, uint16_t* narrow) {
    LET_NEXT_START();
    DYNAMIC_SHARED(unsigned char, memory);
    const NormRoom room(memory, gated.gate.inputs);
    OwnNorm own(norm, gated.gate.inputs);
    auto input = [&] {
        WAIT_FOR_INPUT();
        own.make(room.row, room.norm);
        return room.norm;
    };
    swiglu<1>(tiles, input, 1, gated, narrow);
}

#define KERNELS_OF_THIS_FILE(X) \
    X(matvec_bf16_8) X(matvec_bf16_16) X(matvec_bf16_norm) X(swiglu_bf16_8) X(swiglu_bf16_16) X(swiglu_bf16_norm)
