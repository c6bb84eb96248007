// Integer products of 2 to 16 rows, on tensor cores (stream.cuh). -DWEIGHT (I8 or a format).
//
// A block has 16 rows of weights at a time, one tile of mma. All of its warps copy pieces of these rows to shared
// memory. Then warp w multiplies the groups w, w + 8, w + 16 …, which ops adds to its partial sums w and w + 8. The
// integer sums of a group are exact. The lane that has them multiplies them by the scales. At the end, the sums of the
// warps are joined in the order of ops.
#include "stream.cuh"

constexpr int OUTPUTS = 16, PLACES = 4;
// A piece: the number of groups of a row that are copied together.
constexpr int PIECE = 32, PIECE_BYTES = Of::bytes(PIECE), SCALE_BYTES = Of::scale_bytes(PIECE);
constexpr int VALUES_ROOM = values_room(PIECE), ROW_ROOM = row_room(PIECE), PLACE = OUTPUTS * ROW_ROOM;
// Number of values per lane in the warp's tiles of sums. A tile is 16 rows of weights and 8 rows of x.
constexpr int SUMS = OUTPUTS * 8;

// Up to 8 · TILES rows of x in the shared memory of a block, in the layout of mma. For each tile and group, it has two
// words of every lane. For each group, it has the scales of all rows and, if the format has minima, the sums of each
// run.
template <int TILES>
struct Tiles {
    static constexpr int ROWS = 8 * TILES;
    uint2* words;
    float* scales;
    float* sums;
    int groups;

    __device__ inline Tiles(unsigned char* memory, int groups) : groups(groups) {
        words = reinterpret_cast<uint2*>(memory);
        scales = reinterpret_cast<float*>(words + 4 * ROWS * groups);
        sums = scales + ROWS * groups;
    }
    __device__ inline uint2* of(int tile, int group) const { return words + (tile * groups + group) * 32; }
    __device__ inline float* scale(int group) const { return scales + group * ROWS; }
    __device__ inline float* sum(int run, int group) const { return sums + (run * groups + group) * ROWS; }

    // Copies the rows, and fills the places of missing rows with zeros. All threads of the block call it.
    __device__ inline void copy(const Quantized& from, int rows) const {
#pragma unroll 4
        for (int i = threadIdx.x; i < ROWS * groups; i += blockDim.x) {
            const int row = i % ROWS, group = i / ROWS;
            uint4 halves[2] = {};
            float own = 0.0f;
            if (row < rows) {
                const long long number = static_cast<long long>(row) * groups + group;
                const uint4* at = reinterpret_cast<const uint4*>(from.values) + 2 * number;
                halves[0] = at[0], halves[1] = at[1], own = from.scales[number];
            }
            uint2* const to = of(row / 8, group) + row % 8 * 4;
            to[0] = {halves[0].x, halves[1].x}, to[1] = {halves[0].y, halves[1].y};
            to[2] = {halves[0].z, halves[1].z}, to[3] = {halves[0].w, halves[1].w};
            scale(group)[row] = own;
            if (Of::MINIMA) {
                int of_halves[2];
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    of_halves[k] = sum4(halves[k].x) + sum4(halves[k].y) + sum4(halves[k].z) + sum4(halves[k].w);
                }
                if (Of::RUNS == 1) of_halves[0] += of_halves[1];
#pragma unroll
                for (int run = 0; run < Of::RUNS; run++) sum(run, group)[row] = static_cast<float>(of_halves[run]);
            }
        }
        __syncthreads();
    }
};

// Returns the contribution of a group to a sum, from the integer sums of its runs.
template <class W>
__device__ inline Term term_in(const float (&scale)[2], const float (&minimum)[2], const int (&products)[2], float x_scale,
                               const float (&x_sums)[2]) {
    if constexpr (Same<W, I8>::value) {
        return {__fmul_rn(x_scale, scale[0]), static_cast<float>(products[0])};
    } else {
        return {x_scale, term_of<W>(scale, minimum, products, x_sums)};
    }
}

// Multiplies x with tiles of rows of weights in `turns` turns. `row_of(turn, i)` returns row i of 16. `input` waits for
// x and writes it to shared memory. `finish(turn, sum_of)` is called after each turn, and sum_of(i) returns sum number
// i. The sums are in the order of a warp's lanes and tiles (row_of_sum, output_of_sum). Threads from TILES · SUMS on
// have no sums. The ring is at `memory`. Waits for the input. All threads of the block call it.
template <int TILES, class RowOf, class Input, class Finish>
__device__ inline void multiply_in_tiles(unsigned char* memory, const Tiles<TILES>& x, int turns, RowOf row_of, Input input, Finish finish) {
    SHARED(float, parts, 2 * WARPS * TILES * SUMS);
    SHARED(uint32_t, lows, PLACES * OUTPUTS);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, thread = lane % 4, own_row = threadIdx.x / HALF;
    const int groups = x.groups, pieces = ceil_div(groups, PIECE);
    const SharedPlace to_memory = shared_place(memory);
    From from = {};
    int next = 0, next_piece = 0;
    auto ask = [&](int stage) {
        if (next < turns) {
            if (next_piece == 0) from = row_of(next, own_row);
            const int count = min(groups - next_piece * PIECE, PIECE);
            const SharedPlace to = to_memory + stage * PLACE + own_row * ROW_ROOM;
            if (threadIdx.x % HALF == 0) lows[stage * OUTPUTS + own_row] = from.low();
            copy_piece<PIECE_BYTES, Of::ALIGNED>(to, from.bytes, static_cast<int>(bytes_of<WEIGHT>(32 * count)));
            from.bytes += PIECE_BYTES;
            if constexpr (APART) {
                copy_piece<SCALE_BYTES, false>(to + VALUES_ROOM, reinterpret_cast<const uint8_t*>(from.scales), 4 * count);
                from.scales += PIECE;
            }
            if (++next_piece == pieces) next_piece = 0, next++;
        }
        close_copies();
    };
#pragma unroll
    for (int stage = 0; stage < PLACES - 1; stage++) ask(stage);
    input();
    int stage = 0;
    for (int turn = 0; turn < turns; turn++) {
        // The partial sums w and w + 8, where w is the number of this warp.
        float sums[2][TILES][4] = {};
        for (int first = 0; first < groups; first += PIECE) {
            wait_for_copies<PLACES - 2>();
            // After this barrier, all copies of this piece are complete, and no thread reads the previous piece any
            // more.
            __syncthreads();
            ask(stage == 0 ? PLACES - 1 : stage - 1);
            auto row = [&](int i) {
                const unsigned char* const at = memory + stage * PLACE + i * ROW_ROOM;
                const uint32_t low = APART || !Of::ALIGNED ? lows[stage * OUTPUTS + i] : 0;
                return InPiece{at + (APART ? 0 : low), reinterpret_cast<const float*>(at + VALUES_ROOM + (APART ? low : 0))};
            };
            const InPiece low = row(lane / 4), high = row(lane / 4 + 8), own = thread % 2 ? high : low;
#pragma unroll
            for (int of_piece = 0; of_piece < PIECE; of_piece += 16) {
                const int number = of_piece + warp;
                if (first + number >= groups) break;
                // Of every four lanes, lanes 0 and 1 compute the scales of the first group, for one row each. Lanes 2
                // and 3 compute those of the second group.
                float of_own[2] = {}, minima_of_own[2] = {};
                scales_in<WEIGHT>(own, number + thread / 2 * 8, of_own, minima_of_own);
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    const int in_piece = number + 8 * k, group = first + in_piece;
                    if (group >= groups) break;
                    float scale[2][2] = {}, minimum[2][2] = {};
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        const int source = lane / 4 * 4 + 2 * k + r;
#pragma unroll
                        for (int run = 0; run < Of::RUNS; run++) {
                            scale[r][run] = __shfl_sync(FULL, of_own[run], source);
                            if (Of::MINIMA) minimum[r][run] = __shfl_sync(FULL, minima_of_own[run], source);
                        }
                    }
                    auto pair = [&](const InPiece& row) {
                        const Pair q = pair_in<WEIGHT>(row, in_piece, thread);
                        return Of::OFFSET ? Pair{less(q.low, Of::OFFSET), less(q.high, Of::OFFSET)} : q;
                    };
                    const Pair a = pair(low), b = pair(high);
#pragma unroll
                    for (int tile = 0; tile < TILES; tile++) {
                        const uint2 of_x = x.of(tile, group)[lane];
                        const int first_row = 8 * tile + 2 * thread;
                        const float2 x_scale = *reinterpret_cast<const float2*>(x.scale(group) + first_row);
                        float2 x_sums[2] = {};
                        if (Of::MINIMA) {
#pragma unroll
                            for (int run = 0; run < Of::RUNS; run++) {
                                x_sums[run] = *reinterpret_cast<const float2*>(x.sum(run, group) + first_row);
                            }
                        }
                        int products[2][4] = {};
                        if constexpr (Of::RUNS == 1) {
                            multiply_bytes(products[0], {a.low, b.low, a.high, b.high}, {of_x.x, of_x.y});
                        } else {
                            multiply_bytes(products[0], {a.low, b.low}, of_x.x);
                            multiply_bytes(products[1], {a.high, b.high}, of_x.y);
                        }
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            const int of_runs[2] = {products[0][i], products[1][i]};
                            const float of_sums[2] = {i % 2 ? x_sums[0].y : x_sums[0].x, i % 2 ? x_sums[1].y : x_sums[1].x};
                            const Term term = term_in<WEIGHT>(scale[i / 2], minimum[i / 2], of_runs, i % 2 ? x_scale.y : x_scale.x, of_sums);
                            sums[k][tile][i] = __fmaf_rn(term.scale, term.value, sums[k][tile][i]);
                        }
                    }
                }
            }
            stage = stage + 1 == PLACES ? 0 : stage + 1;
        }
        // The next tile uses the other half of this memory. The tile after the next one uses this half again; all
        // threads have finished this tile by then.
        float* const own_parts = parts + turn % 2 * WARPS * TILES * SUMS;
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
            for (int k = 0; k < 4; k++) {
                own_parts[((warp * TILES + tile) * 4 + k) * 32 + lane] = __fadd_rn(sums[0][tile][k], sums[1][tile][k]);
            }
        }
        __syncthreads();
        finish(turn, [&](int i) {
            float of[WARPS];
#pragma unroll
            for (int k = 0; k < WARPS; k++) of[k] = own_parts[k * TILES * SUMS + i];
            // The same order as in reduce_lanes.
#pragma unroll
            for (int width = WARPS / 2; width > 0; width /= 2) {
#pragma unroll
                for (int k = 0; k < width; k++) of[k] = __fadd_rn(of[k], of[k + width]);
            }
            return of[0];
        });
    }
    wait_for_copies<0>();
}

// These functions return the row of x of sum number i, and its row of weights among the first eight. Sum number i + 64
// has the same row of x, and the row of weights that comes eight rows later.
__device__ inline int row_of_sum(int i) { return i / SUMS * 8 + i % 4 * 2 + i / 32 % 2; }
__device__ inline int output_of_sum(int i) { return i % 32 / 4; }

template <int TILES>
__device__ inline void stream_rows(const Products& products, const Quantized& from, int rows, int tiles, const Added& added) {
    DYNAMIC_SHARED(unsigned char, memory);
    const Tiles<TILES> x(memory + PLACES * PLACE, products.of[0].matrix.inputs / 32);
    auto part = [&](int turn) { return part_of(products, blockIdx.x + turn * gridDim.x, OUTPUTS); };
    auto row_of = [&](int turn, int i) {
        const Part of = part(turn);
        const Matrix& matrix = products.of[of.product].matrix;
        return from_of(matrix, min(of.first + i, matrix.outputs - 1));
    };
    auto input = [&] {
        WAIT_FOR_INPUT();
        x.copy(from, rows);
    };
    multiply_in_tiles<TILES>(memory, x, turns_of(tiles), row_of, input, [&](int turn, auto sum_of) {
        const int i = threadIdx.x;
        if (i >= TILES * SUMS || row_of_sum(i) >= rows) return;
        const Part of = part(turn);
        const Product& product = products.of[of.product];
        const int outputs = product.matrix.outputs, output = of.first + output_of_sum(i) + i / 64 % 2 * 8;
        if (output >= outputs) return;
        const long long at = static_cast<long long>(row_of_sum(i)) * outputs + output;
        const float out = finished<F32>(sum_of(i), product.bias, output);
        product.out[at] = out;
        if (added.sum) added.sum[at] = __fadd_rn(added.to[at], out);
    });
}

// Up to three products of x (rows, I) with weights w (O, I). x is int8 with scales (rows, I / 32). Each product writes
// out (rows, O). The number of rows is at most the number in the name. If there is a single product, the kernel can
// also add another tensor to it, with the bits of add. `tiles` is Σ ceil(O / 16). Grid: `tiles`, but at most as many
// blocks as fit on the device; block 256; shared memory: the ring, and x.
#define STREAM(name, TILES)                                                                       \
    KERNEL_WITH(256, 2) name(Products products, Quantized from, int rows, int tiles, Added added) { \
        LET_NEXT_START();                                                                         \
        stream_rows<TILES>(products, from, rows, tiles, added);                                   \
    }
STREAM(stream_q8_8, 1)
STREAM(stream_q8_16, 2)

// Computes gate, its SiLU, up and their product. Half of a tile's rows of weights belong to gate, and the others are
// the same rows of up. Four tiles are a group of the next product's input.
template <int TILES>
__device__ inline void gated_rows(const Gated& gated, const Quantized& from, int rows, Quantized to) {
    constexpr int EACH = OUTPUTS / 2, TURNS = TILE / EACH;
    DYNAMIC_SHARED(unsigned char, memory);
    SHARED(float, hidden, 2 * 8 * TILES * TILE);
    const int outputs = gated.gate.outputs, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Tiles<TILES> x(memory + PLACES * PLACE, gated.gate.inputs / 32);
    auto first_of = [&](int turn) { return (blockIdx.x + turn / TURNS * gridDim.x) * TILE + turn % TURNS * EACH; };
    auto row_of = [&](int turn, int i) {
        const int output = first_of(turn) + i % EACH;
        return from_of(i < EACH ? gated.gate : gated.up, min(output, outputs - 1));
    };
    auto input = [&] {
        WAIT_FOR_INPUT();
        x.copy(from, rows);
    };
    multiply_in_tiles<TILES>(memory, x, turns_of(ceil_div(outputs, TILE)) * TURNS, row_of, input, [&](int turn, auto sum_of) {
        const int i = threadIdx.x, row = row_of_sum(i), output = first_of(turn) + output_of_sum(i);
        float* const tile = hidden + turn / TURNS % 2 * (8 * TILES * TILE);
        if (i < TILES * SUMS && i / 64 % 2 == 0 && row < rows && output < outputs) {
            const float gate = finished<F32>(sum_of(i), gated.gate_bias, output);
            const float up = finished<F32>(sum_of(i + 64), gated.up_bias, output);
            const float silu = silu_of_ops(gate), product = __fmul_rn(silu, up);
            const long long at = static_cast<long long>(row) * outputs + output;
            gated.gate_out[at] = gate, gated.up_out[at] = up, gated.silu[at] = silu, gated.hidden[at] = product;
            tile[row * TILE + output % TILE] = product;
        }
        if (!to.values || turn % TURNS != TURNS - 1) return;
        // The next four tiles use the other half of this memory. The four tiles after these use this half again; all
        // threads have finished with it by then.
        __syncthreads();
        for (int row = warp; row < rows; row += WARPS) {
            quantize_group(tile[row * TILE + lane], to, static_cast<long long>(row) * outputs + output / TILE * TILE);
        }
    });
}

// gate = x · w1ᵀ, silu(gate), up = x · w3ᵀ and silu · up, (rows, F) each, as in stream_gated_q8_1. x and the shared
// memory are those of the products above. Grid: ceil(F / 32), but at most as many blocks as fit on the device; block
// 256.
#define STREAM_GATED(name, TILES)                                                       \
    KERNEL_WITH(256, 2) name(Gated gated, Quantized from, int rows, Quantized to) {     \
        LET_NEXT_START();                                                               \
        gated_rows<TILES>(gated, from, rows, to);                                       \
    }
STREAM_GATED(stream_gated_q8_8, 1)
STREAM_GATED(stream_gated_q8_16, 2)

#define KERNELS_OF_THIS_FILE(X) X(stream_q8_8) X(stream_q8_16) X(stream_gated_q8_8) X(stream_gated_q8_16)
