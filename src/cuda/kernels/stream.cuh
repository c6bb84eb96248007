// Products in whole numbers of up to 16 rows, with weights that are read through shared memory. -DWEIGHT (I8 in groups of 32, or
// a format). All have the bits of ops/quantize.rs and ops/blocks.rs. For stream_q8.cu and stream_q8_16.cu.
//
// Every weight is read once, and reading is what takes time. A block has a row of a matrix at any address, and lanes that read
// their own blocks of 17 to 210 bytes would ask the cache for every line many times. So a warp copies pieces of its rows to
// shared memory as they lie, 16 bytes a lane, and has some pieces under way while it multiplies another (a ring of stages).
// The first are asked for before the input is there.
//
// Of one row of x a team of 16 lanes takes a row of weights: lane l the groups l, l + 16, l + 32 …, which is partial sum l of
// ops. So no lane needs what another has before the 16 sums are joined. Of formats where two groups lie in the same bytes a team
// is 8 lanes, each with two of the sums. x lies in shared memory for all of a block's outputs, which makes it once: a copy of
// quantised rows, or int8 of float32 values, or of the norm of a row (as rms_norm and quantize).
#pragma once
#include "norm.cuh"
#include "quantize.cuh"
#include "tensor.cuh"
#include "turns.cuh"
#include "whole.cuh"

constexpr int WARPS = 8, HALF = 16;

// How a format is multiplied with one row of x: the lanes of a team and the groups of each out of 16; which of its two groups
// number g is, and the place of its values among those of all such groups.
template <class W>
struct Alone {
    static constexpr int TEAM = 16, EACH = 1, BESIDE = 0;
    static __device__ inline int first(int lane) { return lane; }
    static __device__ inline int which(int) { return 0; }
    static __device__ inline int index(int group) { return group; }
};
struct Neighbours {
    static constexpr int TEAM = 8, EACH = 2, BESIDE = 1;
    static __device__ inline int first(int lane) { return 2 * lane; }
    static __device__ inline int which(int group) { return group % 2; }
    static __device__ inline int index(int group) { return group / 2; }
};
template <>
struct Alone<Q4K> : Neighbours {};
template <>
struct Alone<Q5K> : Neighbours {};
template <>
struct Alone<Q2K> : Neighbours {};
template <>
struct Alone<Q3K> : Neighbours {};
template <>
struct Alone<Q6K> {
    static constexpr int TEAM = 8, EACH = 2, BESIDE = 2;
    static __device__ inline int first(int lane) { return lane / 2 * 4 + lane % 2; }
    static __device__ inline int which(int group) { return group / 2 % 2; }
    static __device__ inline int index(int group) { return group / 4 * 2 + group % 2; }
};

// Groups of 32 of a row.
template <class W>
struct Groups : Alone<W> {
    static constexpr int IN_BLOCK = W::VALUES / 32, RUNS = 32 / W::RUN, OFFSET = W::OFFSET;
    static constexpr bool MINIMA = W::MINIMA;
    // Whether every row begins where 16 bytes load at once.
    static constexpr bool ALIGNED = W::BYTES % 16 == 0;
    // Bytes of so many, and of their scales where these lie apart.
    static constexpr int bytes(int groups) { return groups * 32 / W::VALUES * W::BYTES; }
    static constexpr int scale_bytes(int) { return 0; }
};
template <>
struct Groups<I8> : Alone<I8> {
    static constexpr int IN_BLOCK = 1, RUNS = 1, OFFSET = 0;
    static constexpr bool MINIMA = false;
    static constexpr bool ALIGNED = true;
    static constexpr int bytes(int groups) { return groups * 32; }
    static constexpr int scale_bytes(int groups) { return groups * 4; }
};
using Of = Groups<WEIGHT>;
constexpr bool APART = Same<WEIGHT, I8>::value;
// Sums of x of each group that its products with weights want: for minima as float32, for an offset as whole numbers.
constexpr int OF_SUMS = Of::MINIMA || Of::OFFSET ? Of::RUNS : 0;

constexpr int up16(int bytes) { return (bytes + 15) / 16 * 16; }
__device__ inline int up4(int words) { return (words + 3) / 4 * 4; }

// Groups that are copied at once of a row: a piece. It may begin anywhere in 16 bytes, and the scales at any of their words.
constexpr int PIECE = 32, PIECE_BYTES = Of::bytes(PIECE), SCALE_BYTES = Of::scale_bytes(PIECE);
constexpr int VALUES_ROOM = up16(PIECE_BYTES + (Of::ALIGNED ? 0 : 15));
constexpr int ROOM = VALUES_ROOM + (APART ? up16(SCALE_BYTES + 12) : 0);

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

// Begins to copy `bytes` bytes, up to MOST and MOST of all pieces but the last, from any address to its place in 16 bytes from `to`
// on: TEAM lanes together.
template <int MOST, bool ALIGNED, int TEAM>
__device__ inline void copy_piece(SharedPlace to, const uint8_t* from, int bytes) {
    constexpr int AT_ONCE = 16 * TEAM;
    const int first = threadIdx.x % TEAM * 16;
    const bool whole = bytes == MOST;
    if constexpr (!ALIGNED) {
        const int beyond = static_cast<int>(reinterpret_cast<uintptr_t>(from) & 15);
        from -= beyond, bytes += beyond;
    }
    to += first, from += first, bytes -= first;
    if (whole) {
#pragma unroll
        for (int at = 0; at < MOST + (ALIGNED ? 0 : 15); at += AT_ONCE) {
            if (at + AT_ONCE <= MOST) {
                copy16_async(to + at, from + at);
            } else if (at < bytes) {
                copy16_async(to + at, from + at, min(16, bytes - at));
            }
        }
    } else {
#pragma unroll 1
        for (int at = 0; at < bytes; at += AT_ONCE) copy16_async(to + at, from + at, min(16, bytes - at));
    }
}

__device__ inline int sum4(uint32_t word) { return dot4(word, ONES, 0); }

// The row of x in the shared memory of a block: the first 16 values of all groups and then the others, each first of a lane's
// first groups and then of its second, so that neighbouring lanes read neighbouring 16 bytes; a scale for each group; and sums.
struct Prepared {
    uint32_t* words;
    float* scales;
    float* sums;
    int groups;

    __device__ inline Prepared(unsigned char* memory, int groups) : groups(groups) {
        words = reinterpret_cast<uint32_t*>(memory);
        scales = reinterpret_cast<float*>(words + 8 * groups);
        sums = scales + up4(groups);
    }
    // What lies after all of it.
    __device__ inline float* behind() const { return sums + up4(OF_SUMS * groups); }
    // Words 4 · half to 4 · half + 3 of a group.
    __device__ inline uint4& half(int half, int which, int index) const {
        return reinterpret_cast<uint4*>(words)[(half * Of::EACH + which) * (groups / Of::EACH) + index];
    }
    __device__ inline uint4& half(int half, int group) const { return this->half(half, Of::which(group), Of::index(group)); }
    __device__ inline float& sum(int run, int group) const { return sums[run * groups + group]; }
    __device__ inline void put_sum(int run, int group, int of_run) const {
        sum(run, group) = Of::MINIMA ? static_cast<float>(of_run) : __uint_as_float(static_cast<uint32_t>(of_run));
    }
};

// Copies a quantised row. All threads of the block call it.
__device__ inline void copy_row(const Prepared& x, const Quantized& from) {
#pragma unroll 4
    for (int group = threadIdx.x; group < x.groups; group += blockDim.x) {
        const uint4* at = reinterpret_cast<const uint4*>(from.values) + 2 * group;
        const uint4 halves[2] = {at[0], at[1]};
        x.half(0, group) = halves[0], x.half(1, group) = halves[1], x.scales[group] = from.scales[group];
        if (OF_SUMS) {
            int sums[2];
#pragma unroll
            for (int k = 0; k < 2; k++) sums[k] = sum4(halves[k].x) + sum4(halves[k].y) + sum4(halves[k].z) + sum4(halves[k].w);
            if (Of::RUNS == 1) sums[0] += sums[1];
#pragma unroll
            for (int run = 0; run < Of::RUNS; run++) x.put_sum(run, group, sums[run]);
        }
    }
    __syncthreads();
}

// Quantises a row, of which `value4` gives four values, numbers 4i to 4i + 3: eight lanes find a group's scale together.
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
        if (i < fours) reinterpret_cast<uint32_t*>(&x.half(part / 4, group))[part % 4] = word;
        if (i < fours && part == 0) x.scales[group] = scale;
        if (OF_SUMS) {
            int sum = sum4(word);
            for (int apart = 4 / Of::RUNS; apart > 0; apart /= 2) sum += __shfl_xor_sync(FULL, sum, apart);
            if (i < fours && part % (8 / Of::RUNS) == 0) x.put_sum(part * Of::RUNS / 8, group, sum);
        }
    }
    __syncthreads();
}

// A group of weights times the same of x: `q` are codes.
template <class W>
__device__ inline Term multiply(const uint32_t (&q)[8], const float (&scale)[2], const float (&minimum)[2], const Prepared& x,
                                int group, const uint4& low, const uint4& high) {
    const uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    int products[2] = {};
#pragma unroll
    for (int i = 0; i < 8; i++) products[i * Of::RUNS / 8] = dot4(words[i], q[i], products[i * Of::RUNS / 8]);
    if constexpr (Same<W, I8>::value) {
        return {__fmul_rn(x.scales[group], scale[0]), static_cast<float>(products[0])};
    } else {
        float sums[2] = {};
#pragma unroll
        for (int run = 0; run < OF_SUMS; run++) {
            sums[run] = x.sum(run, group);
            if (Of::OFFSET) products[run] -= Of::OFFSET * static_cast<int>(__float_as_uint(sums[run]));
        }
        return {x.scales[group], term_of<W>(scale, minimum, products, sums)};
    }
}

// Adds the products of a lane's groups of 16 from `first` on to its sums; `number` is the first one's in the piece at `piece`.
template <class W>
__device__ inline void add_groups(const unsigned char* piece, const float* scales, int number, const Prepared& x, int first,
                                  float (&sums)[Of::EACH]) {
    uint32_t q[Of::EACH][8];
    const unsigned char* block = piece + number / Of::IN_BLOCK * Of::bytes(Of::IN_BLOCK);
    if constexpr (Same<W, I8>::value) {
        const uint4* at = reinterpret_cast<const uint4*>(block);
        const uint4 a = at[0], b = at[1];
        const uint32_t words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 8; i++) q[0][i] = words[i];
    } else if constexpr (Of::EACH == 2) {
        W::two(block, number % Of::IN_BLOCK, q);
    } else {
        W::codes(block, number % Of::IN_BLOCK, q[0]);
    }
#pragma unroll
    for (int k = 0; k < Of::EACH; k++) {
        const int group = first + k * Of::BESIDE, index = Of::index(first);
        const uint4 low = x.half(0, k, index), high = x.half(1, k, index);
        float scale[2] = {}, minimum[2] = {};
        if constexpr (Same<W, I8>::value) {
            scale[0] = scales[number];
        } else {
            W::scales(block, number % Of::IN_BLOCK + k * Of::BESIDE, scale, minimum);
        }
        const Term term = multiply<W>(q[k], scale, minimum, x, group, low, high);
        sums[k] = __fmaf_rn(term.scale, term.value, sums[k]);
    }
}

// The whole sum, of the partial ones of a team, in all of its lanes: by halves, as reduce of ops.
__device__ inline float join(float (&sums)[Of::EACH]) {
    auto with = [](float sum, int apart) { return __fadd_rn(sum, __shfl_xor_sync(FULL, sum, apart)); };
    for (int apart = Of::TEAM / 2; apart > 1; apart /= 2) {
#pragma unroll
        for (int k = 0; k < Of::EACH; k++) sums[k] = with(sums[k], apart);
    }
    if (Of::BESIDE == 1) return __fadd_rn(with(sums[0], 1), with(sums[Of::EACH - 1], 1));
    return with(Of::BESIDE == 2 ? __fadd_rn(sums[0], sums[Of::EACH - 1]) : sums[0], 1);
}

// Rows of a warp, and of half of one; and pieces of each that are in shared memory: four, or three where four would leave too
// little of it on devices with 99 KiB.
constexpr int ROWS = 32 / Of::TEAM, OF_HALF = ROWS / 2, STAGE = ROWS * ROOM;
constexpr int STAGES = 4 * WARPS * STAGE <= 80 << 10 ? 4 : 3, RING = WARPS * STAGES * STAGE;

// Multiplies x with the rows of weights of this warp, ROWS a turn: `row_of(turn)` gives a lane's row of weights, `input` leaves x in
// shared memory once it is there, and `finish(turn, sum, asked)` has the whole product in every lane of a team, with what
// `early(turn)` asked for when the turn began. The ring is at `memory`. Waits for the input; all threads of the block call it.
template <class RowOf, class Input, class Early, class Finish>
__device__ inline void stream(unsigned char* memory, const Prepared& x, int turns, RowOf row_of, Input input, Early early,
                              Finish finish) {
    // The places of as many turns as have one in `lows`.
    constexpr int LOWS = 8;
    static_assert(STAGES <= LOWS, "a turn is multiplied before its place is used again");
    const int lane = threadIdx.x % Of::TEAM, groups = x.groups, pieces = ceil_div(groups, PIECE);
    unsigned char* const ring =
        memory + threadIdx.x / 32 * (STAGES * STAGE) + threadIdx.x % 32 / Of::TEAM * ROOM;
    const SharedPlace to_ring = shared_place(ring);
    From from = {};
    uint32_t lows = 0;
    int next = 0, next_piece = 0;
    auto ask = [&](int stage) {
        if (next < turns) {
            if (next_piece == 0) {
                from = row_of(next);
                const int at = next % LOWS * 4;
                lows = (lows & ~(15u << at)) | from.low() << at;
            }
            const int count = min(groups - next_piece * PIECE, PIECE);
            const SharedPlace to = to_ring + stage * STAGE;
            copy_piece<PIECE_BYTES, Of::ALIGNED, Of::TEAM>(to, from.bytes, static_cast<int>(bytes_of<WEIGHT>(32 * count)));
            from.bytes += PIECE_BYTES;
            if constexpr (APART) {
                copy_piece<SCALE_BYTES, false, Of::TEAM>(to + VALUES_ROOM, reinterpret_cast<const uint8_t*>(from.scales), 4 * count);
                from.scales += PIECE;
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
        float sums[Of::EACH] = {};
        const auto asked = early(turn);
        uint32_t low = lows >> (turn % LOWS * 4) & 15;
        for (int first = 0; first < groups; first += PIECE) {
            ask(stage == 0 ? STAGES - 1 : stage - 1);
            wait_for_copies<STAGES - 1>();
            __syncwarp();
            const unsigned char* const piece = ring + stage * STAGE + (APART || Of::ALIGNED ? 0 : low);
            const float* const scales = reinterpret_cast<const float*>(ring + stage * STAGE + VALUES_ROOM + low);
#pragma unroll
            for (int of_piece = 0; of_piece < PIECE; of_piece += 16) {
                const int number = of_piece + Of::first(lane);
                // Both groups of a lane are in one block.
                if (first + number < groups) add_groups<WEIGHT>(piece, scales, number, x, first + number, sums);
            }
            low = (low + (APART ? SCALE_BYTES : PIECE_BYTES)) & 15;
            // What all lanes are done with may be copied over.
            __syncwarp();
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
        finish(turn, join(sums), asked);
    }
    wait_for_copies<0>();
}

// Hidden values of a block's tile, which is a group of the input that follows, and of the tile before.
constexpr int TILE = 32;
