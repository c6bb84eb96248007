// Products in whole numbers of up to 16 rows, with weights that are read through shared memory. -DWEIGHT (I8 in groups of 32, or
// a format). All have the bits of ops/quantize.rs and ops/blocks.rs. For stream_q8.cu, stream_tiles.cu and
// stream_q8_16.cu.
//
// Every weight is read once, and reading is what takes time. A block has a row of a matrix at any address, and lanes that read
// their own blocks of 17 to 210 bytes would ask the cache for every line many times. So pieces of rows are copied to shared
// memory as they lie, and some are under way while another is multiplied (a ring of stages). The first are asked for before the
// input is there.
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
    static constexpr int RUNS = 32 / W::RUN, OFFSET = W::OFFSET;
    static constexpr bool MINIMA = W::MINIMA;
    // Whether every row begins where 16 bytes load at once.
    static constexpr bool ALIGNED = W::BYTES % 16 == 0;
    // Bytes of so many, and of their scales where these lie apart.
    static __device__ constexpr int bytes(int groups) { return groups * 32 / W::VALUES * W::BYTES; }
    static __device__ constexpr int scale_bytes(int) { return 0; }
};
template <>
struct Groups<I8> {
    static constexpr int RUNS = 1, OFFSET = 0;
    static constexpr bool MINIMA = false;
    static constexpr bool ALIGNED = true;
    static __device__ constexpr int bytes(int groups) { return groups * 32; }
    static __device__ constexpr int scale_bytes(int groups) { return groups * 4; }
};
using Of = Groups<WEIGHT>;
constexpr bool APART = Same<WEIGHT, I8>::value;

__device__ constexpr int up16(int bytes) { return (bytes + 15) / 16 * 16; }
__device__ inline int up4(int words) { return (words + 3) / 4 * 4; }

// Room for so many groups of a row, which may begin anywhere in 16 bytes, and their scales at any of their words: those of the
// values alone, and of both. Rows of such a size lie in different banks.
__device__ constexpr int values_room(int groups) { return up16(Of::bytes(groups) + (Of::ALIGNED ? 0 : 15)); }
__device__ constexpr int row_room(int groups) {
    const int room = values_room(groups) + (APART ? up16(Of::scale_bytes(groups) + 12) : 0);
    return room + (room / 16 % 2 == 0 ? 16 : 0);
}

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
// on: half a warp together.
template <int MOST, bool ALIGNED>
__device__ inline void copy_piece(SharedPlace to, const uint8_t* from, int bytes) {
    constexpr int AT_ONCE = 16 * HALF;
    const int first = threadIdx.x % HALF * 16;
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

// A row of weights in a piece: where its groups begin, and its scales where they lie apart.
struct InPiece {
    const uint8_t* bytes;
    const float* scales;
};

// Words `which` and `which` + 4 of a group of such a row, as they are stored, and its scales and minima.
template <class W>
__device__ inline Pair pair_in(const InPiece& row, int number, int which) {
    if constexpr (Same<W, I8>::value) {
        const uint8_t* at = row.bytes + 32 * number + 4 * which;
        return {aligned_word_at(at), aligned_word_at(at + 16)};
    } else {
        constexpr int GROUPS = W::VALUES / 32;
        return W::pair(row.bytes + number / GROUPS * W::BYTES, number % GROUPS, which);
    }
}
template <class W>
__device__ inline void scales_in(const InPiece& row, int number, float (&scale)[2], float (&minimum)[2]) {
    if constexpr (Same<W, I8>::value) {
        scale[0] = row.scales[number];
    } else {
        constexpr int GROUPS = W::VALUES / 32;
        W::scales(row.bytes + number / GROUPS * W::BYTES, number % GROUPS, scale, minimum);
    }
}

// Turns of a block that has every gridDim.x-th of so many.
__device__ inline int turns_of(int all) {
    const int block = blockIdx.x;
    return block < all ? ceil_div(all - block, gridDim.x) : 0;
}

// Hidden values of a block's tile, which is a group of the input that follows.
constexpr int TILE = 32;
