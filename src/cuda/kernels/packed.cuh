// Whole numbers as tensor cores take them, for products of many rows: pack.cu, rms_norm.cu and pack_weights write them,
// matmul_q8 reads them.
//
// The unit is 32 neighbouring values of 16 rows (of activations, or of weights): 512 bytes, 16 for each lane of a warp. With g
// = lane / 4 and t = lane mod 4 these are the values 4t to 4t + 3 and 16 + 4t to 19 + 4t of the rows g and g + 8, as PTX lays
// out the operands of mma.m16n8k32 and m16n8k16: of weights, which are a, the first four of both rows and then the last, of
// activations, which are two of b, first those of row g.
//
// The units of 16 rows follow one another in the order in which their groups are added (ops/blocks.rs, dot): all groups of
// one remainder mod 16, and the remainders so that partial sums are joined by halves as soon as both are there: 0, 8, 4,
// 12, 2 …
#pragma once
#include "whole.cuh"

constexpr int UNIT = 32;        // values of a row in a unit
constexpr int PACKED_ROWS = 16;  // rows of a unit
constexpr int SCALED_ROWS = 32;  // rows whose scales lie together

// Numbers that each row of activations has for a unit: the sum of its values, its scale, and the sums of both halves.
constexpr int ALL_OF_ROWS = 4, SUM_AT = 0, SCALE_AT = 1, HALVES_AT = 2;

// The remainder that is added as number `step`: its four bits in the other direction.
__device__ inline int remainder_of(int step) { return (step & 1) << 3 | (step & 2) << 1 | (step & 4) >> 1 | step >> 3; }

// How many of `groups` groups have this remainder mod 16.
__device__ inline int groups_of(int remainder, int groups) { return (groups - remainder + LANES - 1) / LANES; }

// The place of group `number` among all, in the order in which they are added.
__device__ inline int place_of(int number, int groups) {
    const int last = remainder_of(number % LANES), more = groups % LANES;
    int before = last * (groups / LANES);
    if (more != 0) {
        for (int step = 0; step < last; step++) before += remainder_of(step) < more;
    }
    return before + number / LANES;
}

// A float32 with 2²³ · 1.5 added, as an integer, is this plus the integer that was added: so tensor cores, which add whole
// numbers to it, leave a float32. Exact for sums from -2²² to 2²².
constexpr int SHIFTED = 0x4b400000;
constexpr float SHIFT = 12582912.0f;

// Whether scale · whole is the one rounding of scale · (SHIFT + whole) - scale · SHIFT, and its product with a plain scale of
// activations does not vanish: the scale has at most 22 significant bits, as those of all formats have.
__device__ inline bool is_plain(float scale) {
    const float size = fabsf(scale);
    return size == 0.0f || size >= 0x1p-40f && size < 0x1p100f;
}
// The same of a scale of activations, of any bits.
__device__ inline bool is_plain_of_rows(float scale) { return scale == 0.0f || scale >= 0x1p-80f && scale < 0x1p100f; }

// Where rows of activations go as units. `odd` becomes 1 where a scale is not plain, and `next` 0: it is `odd` of what is packed
// here after this, and was of what was packed before.
struct PackedRows {
    uint4* values;
    float* numbers;
    unsigned* odd;
    unsigned* next;

    // One thread of a launch calls it.
    __device__ inline void begin() const { *next = 0; }

    // Where the numbers of a row of a unit are, SCALED_ROWS apart: the sum of its values, its scale, and the sums of its first and
    // of its last 16 values.
    __device__ inline float* numbers_of(int row, int place, int units) const {
        const int own = row % SCALED_ROWS, at = own % 8 / 2 * 8 + own / 8 * 2 + own % 2;
        return numbers + (static_cast<long long>(row / SCALED_ROWS) * units + place) * ALL_OF_ROWS * SCALED_ROWS + at;
    }
};

// Packs four neighbouring values of a unit of a row, the eight lanes of its 32 values together; all lanes of the warp call it. `bytes`
// are the values, `part` is the number of these four, and what is not `there` is not written.
__device__ inline void pack_four(const PackedRows& to, uint32_t bytes, float scale, bool there, int row, int unit, int units, int part) {
    // Of 16 values each, in their four lanes; and then of the others.
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

