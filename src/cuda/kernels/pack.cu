// Activations in whole numbers (quantize.cu) as matmul_q8 reads them.
#include "packed.cuh"

// `odd` becomes 0. Grid (1), block 32.
KERNEL(32) begin_packing(unsigned* odd) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    if (threadIdx.x == 0) *odd = 0;
}

// x (rows, I), int8 with scales (rows, I / group), to units (packed.cuh), and for 32 rows of a unit four numbers each: the sums of
// their values, their scales, and the sums of their first and of their last 16 values. Those of row 8n + 2t + c are at 8t + 2n + c. Rows
// that are not there, up to a multiple of 192, are the last one again. `odd` is set where a scale is not plain. A group is a
// multiple of 32 values and divides I.
// Grid (ceil(rows / 192) · 12, ceil(I / 512)), block 128.
KERNEL(128) pack_rows(const int8_t* x, const float* x_scales, int rows, int inputs, int group, uint4* values, float* numbers,
                      unsigned* odd) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    const int units = inputs / UNIT, groups = inputs / group, parts = group / UNIT;
    const int unit = blockIdx.y * 16 + threadIdx.x / 8, g = threadIdx.x % 8;
    if (unit >= units) return;
    const int number = unit / parts, place = place_of(number, groups) * parts + unit % parts;
    uint32_t words[2][8];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int own = blockIdx.x * PACKED_ROWS + g + 8 * i, there = min(own, rows - 1);
        words_of(reinterpret_cast<const uint4*>(x + static_cast<long long>(there) * inputs + unit * UNIT), words[i]);
        int sums[2] = {};
#pragma unroll
        for (int k = 0; k < 8; k++) sums[k / 4] = dot4(words[i][k], ONES, sums[k / 4]);
        const float scale = x_scales[static_cast<long long>(there) * groups + number];
        if (!is_plain_of_rows(scale)) *odd = 1;
        const int row = own % SCALED_ROWS;
        float* to = numbers + (static_cast<long long>(own / SCALED_ROWS) * units + place) * ALL_OF_ROWS * SCALED_ROWS;
        to += row % 8 / 2 * 8 + row / 8 * 2 + row % 2;
        to[SCALE_AT * SCALED_ROWS] = scale, to[SUM_AT * SCALED_ROWS] = static_cast<float>(sums[0] + sums[1]);
#pragma unroll
        for (int k = 0; k < 2; k++) to[(HALVES_AT + k) * SCALED_ROWS] = static_cast<float>(sums[k]);
    }
    uint4* const to = values + (static_cast<long long>(blockIdx.x) * units + place) * 32 + 4 * g;
#pragma unroll
    for (int t = 0; t < 4; t++) to[t] = make_uint4(words[0][t], words[0][4 + t], words[1][t], words[1][4 + t]);
}

#define KERNELS_OF_THIS_FILE(X) X(begin_packing) X(pack_rows)
