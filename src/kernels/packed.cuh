// Int8 values in the layout of tensor cores, for products with many rows. pack.cu, rms_norm.cu and pack_weights write
// these values, and matmul_q8 reads them.
//
// A unit is 32 neighbouring values of 16 rows (of activations, or of weights): 512 bytes, 16 for each lane of a warp.
// With g = lane / 4 and t = lane mod 4, a lane has the values 4t to 4t + 3 and 16 + 4t to 19 + 4t of the rows g and g +
// 8. This is PTX's layout of the operands of mma.m16n8k32 and m16n8k16. Weights are one operand a: first the first four
// values of both rows, then the last four of both. Activations are two operands b: first all values of row g, then
// those of row g + 8.
//
// The units of 16 rows are stored in the order in which their groups are added (ops/blocks.rs, dot): all groups with
// the same remainder mod 16 together. The order of the remainders is 0, 8, 4, 12, 2 … In this order, partial sums are
// joined pairwise as soon as both are complete.
#pragma once
#include "whole.cuh"

constexpr int UNIT = 32;        // values of a row in a unit
constexpr int PACKED_ROWS = 16;  // rows of a unit
constexpr int SCALED_ROWS = 32;  // rows whose scales are stored together

// Each row of activations has these numbers for a unit: the sum of its values, its scale, and the sums of its two
// halves.
constexpr int ALL_OF_ROWS = 4, SUM_AT = 0, SCALE_AT = 1, HALVES_AT = 2;

// Returns the remainder whose groups are added as number `step`: the four bits of `step` in reverse order.
__device__ inline int remainder_of(int step) { return (step & 1) << 3 | (step & 2) << 1 | (step & 4) >> 1 | step >> 3; }

// Returns how many of `groups` groups have this remainder mod 16.
__device__ inline int groups_of(int remainder, int groups) { return (groups - remainder + LANES - 1) / LANES; }

// Returns the place of group `number` in the order in which all groups are added.
__device__ inline int place_of(int number, int groups) {
    const int last = remainder_of(number % LANES), more = groups % LANES;
    int before = last * (groups / LANES);
    if (more != 0) {
        for (int step = 0; step < last; step++) before += remainder_of(step) < more;
    }
    return before + number / LANES;
}

// SHIFTED has the bits of the float32 SHIFT = 1.5 · 2²³. For a small integer n, the integer SHIFTED + n has the bits of
// the float32 SHIFT + n. So tensor cores that add integers to SHIFTED produce a float32. This is exact for sums from
// -2²² to 2²².
constexpr int SHIFTED = 0x4b400000;
constexpr float SHIFT = 12582912.0f;

// Whether a scale of weights is plain: scale · (SHIFT + whole) - scale · SHIFT, rounded once, equals scale · whole, and
// the product with a plain scale of activations does not underflow. This assumes a scale with at most 22 significant
// bits, as in all formats.
__device__ inline bool is_plain(float scale) {
    const float size = fabsf(scale);
    return size == 0.0f || size >= 0x1p-40f && size < 0x1p100f;
}
// Whether a scale of activations is plain. It may have any number of significant bits.
__device__ inline bool is_plain_of_rows(float scale) { return scale == 0.0f || scale >= 0x1p-80f && scale < 0x1p100f; }

// The outputs for activations as units. `odd` becomes 1 if a scale is not plain. `next` becomes 0: it was the `odd` of
// the previous packing, and will be that of the next one.
struct PackedRows {
    uint4* values;
    float* numbers;
    unsigned* odd;
    unsigned* next;

    // Sets `next` to 0. Only one thread of a launch calls it.
    __device__ inline void begin() const { *next = 0; }

    // Returns the address of the first of a row's numbers for a unit; the others follow, SCALED_ROWS apart. The numbers
    // are the sum of the row's values, its scale, and the sums of its first and of its last 16 values.
    __device__ inline float* numbers_of(int row, int place, int units) const {
        const int own = row % SCALED_ROWS, at = own % 8 / 2 * 8 + own / 8 * 2 + own % 2;
        return numbers + (static_cast<long long>(row / SCALED_ROWS) * units + place) * ALL_OF_ROWS * SCALED_ROWS + at;
    }
};

// Packs four neighbouring values of a unit's row. The eight lanes that have the row's 32 values work together, and all
// lanes of the warp call the function. `bytes` has the four values of this lane, and `part` says which of the eight
// parts they are. If `there` is false, nothing is written.
__device__ inline void pack_four(const PackedRows& to, uint32_t bytes, float scale, bool there, int row, int unit, int units, int part) {
    // First the sums of 16 values, each in four lanes; then the sum of all 32 values.
    int half = dot4(bytes, ONES, 0);
    for (int apart = 1; apart < 4; apart *= 2) half += __shfl_xor_sync(FULL, half, apart);
    const int other = __shfl_xor_sync(FULL, half, 4);
    if (!there) return;
    const int place = place_of(unit, units), own = row % PACKED_ROWS;
    uint32_t* const words = reinterpret_cast<uint32_t*>(to.values + (static_cast<long long>(row / PACKED_ROWS) * units + place) * 32);
    words[(4 * (own % 8) + part % 4) * 4 + own / 8 * 2 + part / 4] = bytes;
    float* const numbers = to.numbers_of(row, place, units);
    if (part == 0) {
        numbers[SUM_AT * SCALED_ROWS] = static_cast<float>(half + other);
        if (!is_plain_of_rows(scale)) *to.odd = 1;
    }
    if (part == 1) numbers[SCALE_AT * SCALED_ROWS] = scale;
    if (part == 2) numbers[HALVES_AT * SCALED_ROWS] = static_cast<float>(half);
    if (part == 4) numbers[(HALVES_AT + 1) * SCALED_ROWS] = static_cast<float>(half);
}

