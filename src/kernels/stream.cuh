// Integer products with up to 16 rows, whose weights are read through shared memory. -DWEIGHT (I8 in groups of 32, or a
// format). All results have the bits of ops/quantize.rs and ops/blocks.rs. Used by stream_q8.cu, stream_tiles.cu and
// stream_q8_16.cu.
//
// Every weight is read once, and reading takes most of the time. A row of a matrix may begin at any address. If each
// lane read its own block of 17 to 210 bytes, every cache line would be requested many times. So pieces of rows are
// copied to shared memory unchanged. Several copies are in flight while another piece is multiplied (a ring of stages).
// The first copies start before the input is complete.
#pragma once
#include "norm.cuh"
#include "quantize.cuh"
#include "tensor.cuh"
#include "turns.cuh"
#include "whole.cuh"

constexpr int WARPS = 8, HALF = 16;

// The format of a row of weights, which is read in groups of 32 values.
template <class W>
struct Groups {
    static constexpr int RUNS = 32 / W::RUN, OFFSET = W::OFFSET;
    static constexpr bool MINIMA = W::MINIMA;
    // Whether every row begins at a multiple of 16 bytes.
    static constexpr bool ALIGNED = W::BYTES % 16 == 0;
    // Size in bytes of this many groups, and of their scales if these are stored separately.
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

// Bytes of memory for this many groups of a row: for the values (values_room), and for the values and the scales
// (row_room). Within 16 bytes, the values may begin at any byte, and the scales at any 4-byte word. The size is such
// that consecutive rows are in different banks.
__device__ constexpr int values_room(int groups) { return up16(Of::bytes(groups) + (Of::ALIGNED ? 0 : 15)); }
__device__ constexpr int row_room(int groups) {
    const int room = values_room(groups) + (APART ? up16(Of::scale_bytes(groups) + 12) : 0);
    return room + (room / 16 % 2 == 0 ? 16 : 0);
}

// A row of weights.
struct From {
    const uint8_t* bytes;
    const float* scales;

    // The offset within 16 bytes at which the values begin, or the scales if these are stored separately.
    __device__ inline uint32_t low() const {
        return static_cast<uint32_t>(APART ? reinterpret_cast<uintptr_t>(scales) : reinterpret_cast<uintptr_t>(bytes)) & 15;
    }
};

__device__ inline From from_of(const Matrix& matrix, int row) {
    const uint8_t* bytes = static_cast<const uint8_t*>(matrix.values) + row * bytes_of<WEIGHT>(matrix.inputs);
    if constexpr (APART) {
        // The scale of the row's first group. Groups of 32 values are counted through the whole tensor.
        return {bytes, matrix.scales + (matrix.first + static_cast<long long>(row) * matrix.inputs) / 32};
    } else {
        return {bytes, nullptr};
    }
}

// Starts to copy `bytes` bytes from any address. `to` is a multiple of 16 bytes; the copy has the same offset from it
// as `from` has from a multiple of 16. The lanes of a half warp work together. `bytes` is MOST for all pieces except
// the last, and at most MOST for the last.
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

// A row of weights in a piece: the beginning of its groups, and of its scales if these are stored separately.
struct InPiece {
    const uint8_t* bytes;
    const float* scales;
};

// Reads from a group of such a row: words `which` and `which` + 4, as they are stored (pair_in), or the scales and
// minima (scales_in).
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

// The number of turns of this block, if the blocks share `all` turns evenly.
__device__ inline int turns_of(int all) {
    const int block = blockIdx.x;
    return block < all ? ceil_div(all - block, gridDim.x) : 0;
}

// Number of hidden values of a block's tile. They are a group of the next product's input.
constexpr int TILE = 32;
