// Products in whole numbers of up to 16 rows, with weights that are read through shared memory. -DWEIGHT (I8 in groups of 32, or
// a format). All have the bits of ops/quantize.rs and ops/blocks.rs. For stream_q8.cu and stream_q8_16.cu.
//
// Every weight is read once, and reading is what takes time. A block has a row of a matrix at any address, and lanes that read
// their own blocks of 17 to 210 bytes would ask the cache for every line many times. So a warp copies pieces of its rows to
// shared memory as they lie, 16 bytes a lane, and has some pieces under way while it multiplies another (a ring of stages).
// The first are asked for before the input is there.
//
// Half a warp takes a row of weights: its lane l the groups l, l + 16, l + 32 …, which is partial sum l of ops. So no lane needs
// what another has before the 16 sums are joined. x lies in shared memory for all of a block's outputs, which makes it once: a
// copy of quantised rows, or for one row also int8 of float32 values, or of the norm of a row (as rms_norm and quantize).
#pragma once
#include "norm.cuh"
#include "quantize.cuh"
#include "tensor.cuh"
#include "turns.cuh"
#include "whole.cuh"

constexpr int WARPS = 8, HALF = 16;

// Groups of 32 of a row.
template <class W>
struct Groups {
    static constexpr int RUNS = 32 / W::RUN;
    static constexpr bool MINIMA = W::MINIMA;
    // Whether every row begins where 16 bytes load at once.
    static constexpr bool ALIGNED = W::BYTES % 16 == 0;
    // Bytes of so many, and of their scales where these lie apart.
    static constexpr int bytes(int groups) { return groups * 32 / W::VALUES * W::BYTES; }
    static constexpr int scale_bytes(int) { return 0; }
};
template <>
struct Groups<I8> {
    static constexpr int RUNS = 1;
    static constexpr bool MINIMA = false;
    static constexpr bool ALIGNED = true;
    static constexpr int bytes(int groups) { return groups * 32; }
    static constexpr int scale_bytes(int groups) { return groups * 4; }
};
using Of = Groups<WEIGHT>;
constexpr bool APART = Same<WEIGHT, I8>::value;

constexpr int up16(int bytes) { return (bytes + 15) / 16 * 16; }
__device__ inline int up4(int words) { return (words + 3) / 4 * 4; }

// How much of a row is copied at once, how many of such pieces a warp has in shared memory, and the rows of half a warp.
template <int GROUPS, int STAGES, int OUTPUTS>
struct Ring {
    static constexpr int BYTES = Of::bytes(GROUPS), SCALE_BYTES = Of::scale_bytes(GROUPS);
    // Of a piece: it may begin anywhere in 16 bytes, and the scales at any of their words.
    static constexpr int VALUES_ROOM = up16(BYTES + (Of::ALIGNED ? 0 : 15));
    static constexpr int ROOM = VALUES_ROOM + (APART ? up16(SCALE_BYTES + 12) : 0);
    static constexpr int STAGE = 2 * OUTPUTS * ROOM, ALL = WARPS * STAGES * STAGE;
    static constexpr int groups = GROUPS, stages = STAGES, outputs = OUTPUTS;
};

// A row of weights.
struct From {
    const uint8_t* bytes;
    const float* scales;

    // Where in 16 bytes the stream begins that may begin anywhere.
    __device__ inline uint32_t low() const {
        return static_cast<uint32_t>(APART ? reinterpret_cast<uintptr_t>(scales) : reinterpret_cast<uintptr_t>(bytes)) & 15;
    }
};

__device__ inline From from_of(const Matrix& matrix, int row) {
    const uint8_t* bytes = static_cast<const uint8_t*>(matrix.values) + row * bytes_of<WEIGHT>(matrix.inputs);
    if constexpr (APART) {
        // Of groups of 32, with one of which the matrix begins.
        return {bytes, matrix.scales + (matrix.first + static_cast<long long>(row) * matrix.inputs) / 32};
    } else {
        return {bytes, nullptr};
    }
}

// Begins to copy `bytes` bytes, up to MOST, from any address to its place in 16 bytes from `to` on: half a warp together.
template <int MOST, bool ALIGNED>
__device__ inline void copy_half(unsigned char* to, const uint8_t* from, int bytes) {
    const int first = threadIdx.x % HALF * 16;
    if constexpr (!ALIGNED) {
        const int beyond = static_cast<int>(reinterpret_cast<uintptr_t>(from) & 15);
        from -= beyond, bytes += beyond;
    }
    to += first, from += first, bytes -= first;
#pragma unroll
    for (int at = 0; at < MOST + (ALIGNED ? 0 : 15); at += 16 * HALF) {
        if (at < bytes) copy16_async(to + at, from + at, min(16, bytes - at));
    }
}

// Group number `number` of a piece, which begins `low` bytes after `piece`; of int8 its scales do.
template <class W>
__device__ inline Group<W> group_in(const unsigned char* piece, const unsigned char* scales, uint32_t low, int number) {
    if constexpr (Same<W, I8>::value) {
        const uint4* at = reinterpret_cast<const uint4*>(piece + 32 * number);
        const uint4 a = at[0], b = at[1];
        return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w},
                {*reinterpret_cast<const float*>(scales + low + 4 * number), 0.0f},
                {0.0f, 0.0f}};
    } else {
        return group_of<W>(piece + (Of::ALIGNED ? 0 : low), number);
    }
}

// Rows of x in the shared memory of a block: of each the first 16 values of all groups and then the others, so that neighbouring
// lanes read neighbouring 16 bytes; a scale for each group; and the sum of each run where the format has minima.
struct Prepared {
    uint32_t* words;
    float* scales;
    float* sums;
    int groups;

    __device__ inline Prepared(unsigned char* memory, int rows, int groups) : groups(groups) {
        words = reinterpret_cast<uint32_t*>(memory);
        scales = reinterpret_cast<float*>(words + 8 * rows * groups);
        sums = scales + up4(rows * groups);
    }
    // What lies after all of its `rows`.
    __device__ inline float* behind(int rows) const { return sums + (Of::MINIMA ? up4(Of::RUNS * rows * groups) : 0); }
    __device__ inline uint4* half(int row, int half) const { return reinterpret_cast<uint4*>(words) + (2 * row + half) * groups; }
    __device__ inline float& scale(int row, int group) const { return scales[row * groups + group]; }
    __device__ inline float& sum(int row, int run, int group) const { return sums[(row * Of::RUNS + run) * groups + group]; }
};

__device__ inline int sum4(uint32_t word) { return dot4(word, ONES, 0); }

// Copies `rows` of up to `room` quantised rows; the others are zeros. All threads of the block call it.
__device__ inline void copy_rows(const Prepared& x, const Quantized& from, int rows, int room) {
    const int groups = x.groups, all = room * groups;
#pragma unroll 4
    for (int i = threadIdx.x; i < all; i += blockDim.x) {
        const int row = i / groups, group = i % groups;
        uint4 halves[2] = {};
        float scale = 0.0f;
        if (row < rows) {
            const uint4* at = reinterpret_cast<const uint4*>(from.values) + 2 * static_cast<long long>(i);
            halves[0] = at[0], halves[1] = at[1], scale = from.scales[i];
        }
        x.half(row, 0)[group] = halves[0], x.half(row, 1)[group] = halves[1], x.scale(row, group) = scale;
        if (Of::MINIMA) {
            int sums[2];
#pragma unroll
            for (int k = 0; k < 2; k++) sums[k] = sum4(halves[k].x) + sum4(halves[k].y) + sum4(halves[k].z) + sum4(halves[k].w);
            if (Of::RUNS == 1) sums[0] += sums[1];
#pragma unroll
            for (int run = 0; run < Of::RUNS; run++) x.sum(row, run, group) = static_cast<float>(sums[run]);
        }
    }
    __syncthreads();
}

// Quantises the only row, of which `value4` gives four values, numbers 4i to 4i + 3: eight lanes find a group's scale together.
// All threads of the block call it.
template <class Value4>
__device__ inline void quantize_row(const Prepared& x, Value4 value4) {
    const int lane = threadIdx.x % 32, part = lane % 8, fours = 8 * x.groups;
    for (int first = static_cast<int>(threadIdx.x) - lane, k = 0; first < fours; first += blockDim.x, k++) {
        const int i = first + lane, group = i / 8;
        float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (i < fours) four = value4(i, k);
        float largest = fabsf(four.x);
        largest = larger_or_none(largest, fabsf(four.y));
        largest = larger_or_none(largest, fabsf(four.z));
        largest = larger_or_none(largest, fabsf(four.w));
        for (int apart = 4; apart > 0; apart /= 2) largest = larger_or_none(largest, __shfl_xor_sync(FULL, largest, apart));
        const float scale = scale_of_largest(largest);
        auto byte = [&](float x) { return static_cast<uint32_t>(quantized(x, scale)) & 255; };
        const uint32_t word = byte(four.x) | byte(four.y) << 8 | byte(four.z) << 16 | byte(four.w) << 24;
        if (i < fours) x.words[(part / 4 * x.groups + group) * 4 + part % 4] = word;
        if (i < fours && part == 0) x.scale(0, group) = scale;
        if (Of::MINIMA) {
            int sum = sum4(word);
            for (int apart = 4 / Of::RUNS; apart > 0; apart /= 2) sum += __shfl_xor_sync(FULL, sum, apart);
            if (i < fours && part % (8 / Of::RUNS) == 0) x.sum(0, part * Of::RUNS / 8, group) = static_cast<float>(sum);
        }
    }
    __syncthreads();
}

// A group of weights times one of x.
template <class W>
__device__ inline Term multiply(const Group<W>& w, const uint4& low, const uint4& high, float x_scale,
                                const float (&x_sums)[2]) {
    const uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    int products[2] = {};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int run = i * Of::RUNS / 8;
        products[run] = dot4(words[i], w.q[i], products[run]);
    }
    if constexpr (Same<W, I8>::value) {
        return {__fmul_rn(x_scale, w.scale[0]), static_cast<float>(products[0])};
    } else {
        return {x_scale, term_of<W>(w.scale, w.minimum, products, x_sums)};
    }
}

// Multiplies x with the rows of weights of this warp, in turns of R::outputs for each of its halves: `row_of(turn, o)` gives a
// lane's row of weights, `input` leaves x in shared memory once it is there, and `finish(turn, sums)` has the whole products in
// every lane of the half, with what `early(turn)` asked for when the turn began. The ring is at `memory`. Waits for the input; all threads of the block call it.
template <class R, int ROWS, class RowOf, class Input, class Early, class Finish>
__device__ inline void stream(unsigned char* memory, const Prepared& x, int turns, RowOf row_of, Input input, Early early,
                              Finish finish) {
    constexpr int OUTPUTS = R::outputs, STAGES = R::stages;
    // The places of a turn in `lows`, and how many turns of them there are.
    constexpr int LOW = 4 * OUTPUTS, LOWS = 32 / LOW;
    static_assert(STAGES <= LOWS, "a turn is multiplied before its place is used again");
    const int lane = threadIdx.x % 32 % HALF, groups = x.groups, pieces = ceil_div(groups, R::groups);
    unsigned char* const ring =
        memory + threadIdx.x / 32 * (STAGES * R::STAGE) + threadIdx.x % 32 / HALF * (OUTPUTS * R::ROOM);
    From from[OUTPUTS];
    uint32_t lows = 0;
    int next = 0, next_piece = 0;
    auto ask = [&](int stage) {
        if (next < turns) {
            if (next_piece == 0) {
#pragma unroll
                for (int o = 0; o < OUTPUTS; o++) {
                    from[o] = row_of(next, o);
                    const int at = next % LOWS * LOW + 4 * o;
                    lows = (lows & ~(15u << at)) | from[o].low() << at;
                }
            }
            const int left = groups - next_piece * R::groups, count = min(left, R::groups);
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++) {
                unsigned char* to = ring + stage * R::STAGE + o * R::ROOM;
                copy_half<R::BYTES, Of::ALIGNED>(to, from[o].bytes, static_cast<int>(bytes_of<WEIGHT>(32 * count)));
                from[o].bytes += R::BYTES;
                if constexpr (APART) {
                    copy_half<R::SCALE_BYTES, false>(to + R::VALUES_ROOM, reinterpret_cast<const uint8_t*>(from[o].scales), 4 * count);
                    from[o].scales += R::groups;
                }
            }
            if (++next_piece == pieces) next_piece = 0, next++;
        }
        close_copies();
    };
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++) ask(stage);
    input();
    int stage = 0;
    for (int turn = 0; turn < turns; turn++) {
        float sums[OUTPUTS][ROWS];
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
#pragma unroll
            for (int row = 0; row < ROWS; row++) sums[o][row] = 0.0f;
        }
        const auto asked = early(turn);
        uint32_t low[OUTPUTS];
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) low[o] = lows >> (turn % LOWS * LOW + 4 * o) & 15;
        for (int first = 0; first < groups; first += R::groups) {
            ask(stage == 0 ? STAGES - 1 : stage - 1);
            wait_for_copies<STAGES - 1>();
            __syncwarp();
            const unsigned char* const piece = ring + stage * R::STAGE;
#pragma unroll
            for (int of_piece = 0; of_piece < R::groups; of_piece += HALF) {
                const int number = of_piece + lane, group = first + number;
                if (group >= groups) continue;
                Group<WEIGHT> w[OUTPUTS];
#pragma unroll
                for (int o = 0; o < OUTPUTS; o++) {
                    w[o] = group_in<WEIGHT>(piece + o * R::ROOM, piece + o * R::ROOM + R::VALUES_ROOM, low[o], number);
                }
#pragma unroll
                for (int row = 0; row < ROWS; row++) {
                    const uint4 values = x.half(row, 0)[group], others = x.half(row, 1)[group];
                    const float scale = x.scale(row, group);
                    float x_sums[2] = {};
                    if (Of::MINIMA) {
#pragma unroll
                        for (int run = 0; run < Of::RUNS; run++) x_sums[run] = x.sum(row, run, group);
                    }
#pragma unroll
                    for (int o = 0; o < OUTPUTS; o++) {
                        const Term term = multiply(w[o], values, others, scale, x_sums);
                        sums[o][row] = __fmaf_rn(term.scale, term.value, sums[o][row]);
                    }
                }
            }
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++) low[o] = (low[o] + (APART ? R::SCALE_BYTES : R::BYTES)) & 15;
            // What all lanes are done with may be copied over.
            __syncwarp();
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
#pragma unroll
            for (int row = 0; row < ROWS; row++) {
                for (int width = LANES / 2; width > 0; width /= 2) {
                    sums[o][row] = __fadd_rn(sums[o][row], __shfl_xor_sync(FULL, sums[o][row], width));
                }
            }
        }
        finish(turn, sums, asked);
    }
    wait_for_copies<0>();
}

// Hidden values of a block's tile, which is a group of the input that follows, and of the tile before.
constexpr int TILE = 32;

// The gated half of the feed-forward network (Shazeer, 2020): half 0 of a warp has rows of gate, half 1 the same of up. A tile of
// 32 hidden values is a block's; it is quantised for the product that follows where `to` is somewhere.
template <class R, int ROWS, class Input>
__device__ inline void stream_gated(unsigned char* memory, const Prepared& x, const Gated& gated, int rows, Quantized to, Input input) {
    constexpr int OUTPUTS = R::outputs, EACH = TILE / WARPS / OUTPUTS;
    SHARED(float, hidden, 2 * ROWS * TILE);
    const int outputs = gated.gate.outputs, tiles = ceil_div(outputs, TILE), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int block = blockIdx.x, own = block < tiles ? ceil_div(tiles - block, gridDim.x) : 0;
    auto place = [&](int turn) { return TILE / WARPS * warp + turn % EACH * OUTPUTS; };
    auto first_of = [&](int turn) { return (block + turn / EACH * static_cast<int>(gridDim.x)) * TILE; };
    auto row_of = [&](int turn, int o) {
        const Matrix& matrix = lane < HALF ? gated.gate : gated.up;
        return from_of(matrix, min(first_of(turn) + place(turn) + o, outputs - 1));
    };
    auto early = [](int) { return 0; };
    stream<R, ROWS>(memory, x, own * EACH, row_of, input, early, [&](int turn, const float(&sums)[OUTPUTS][ROWS], int) {
        float* const tile = hidden + turn / EACH % 2 * (ROWS * TILE);
        const int first = first_of(turn);
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
            const int in_tile = place(turn) + o, output = min(first + in_tile, outputs - 1), row = lane % HALF;
            float sum = sums[o][0];
#pragma unroll
            for (int k = 1; k < ROWS; k++) sum = row == k ? sums[o][k] : sum;
            const float own = finished<F32>(sum, lane < HALF ? gated.gate_bias : gated.up_bias, output);
            const float up = __shfl_xor_sync(FULL, own, HALF);
            if (lane >= min(rows, ROWS) || first + in_tile >= outputs) continue;
            const float silu = silu_of_ops(own), product = __fmul_rn(silu, up);
            const long long at = static_cast<long long>(row) * outputs + output;
            gated.gate_out[at] = own, gated.up_out[at] = up, gated.silu[at] = silu, gated.hidden[at] = product;
            tile[row * TILE + in_tile] = product;
        }
        if (!to.values || turn % EACH != EACH - 1) return;
        // Those of the tile after this one lie beside them, and nobody comes to the next before all are done with these.
        __syncthreads();
        for (int row = warp; row < rows; row += WARPS) {
            quantize_group(tile[row * TILE + lane], to, static_cast<long long>(row) * outputs + first);
        }
    });
}
