// Integer products with many rows, on tensor cores, with the bits of matvec_q8.cu and of ops. -DWEIGHT (I8 or a
// format).
//
// Weights are first rewritten in the layout of tensor cores (pack_weights). This is done for a part of a matrix at a
// time, which stays in the second-level cache. So each weight is unpacked only once, and one kernel multiplies all
// formats (matmul_q8.cuh).
#include "matmul_q8.cuh"

// Writes `count` rows of w (O, I), from row `first` on, as units (packed.cuh). Also writes the numbers of each unit,
// for 32 rows together; those of row 16m + 8h + g are at 4g + 2m + h. The rows are padded to a multiple of 128 by
// repeating the last row. Sets `odd` if a scale is not plain. For int8, the group size is a multiple of 32 values and
// divides I, and groups begin with each row. Grid (ceil(count / 128) · 8, ceil(I / 512)), block 128.
KERNEL(128) pack_weights(Matrix matrix, int first, int count, int group, uint4* values, float* numbers, unsigned* odd) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    const int inputs = matrix.inputs, units = inputs / UNIT, groups = inputs / group, parts = group / UNIT;
    const int unit = blockIdx.y * 16 + threadIdx.x / 8, g = threadIdx.x % 8;
    if (unit >= units) return;
    const int number = unit / parts, place = place_of(number, groups) * parts + unit % parts;
    uint32_t words[2][8];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int own = blockIdx.x * PACKED_ROWS + g + 8 * i;
        const Row row = row_of<WEIGHT>(matrix, first + min(own, count - 1));
        float of_unit[4] = {};
        if constexpr (IS_BLOCKS<WEIGHT>) {
            const Group<WEIGHT> of = group_of<WEIGHT>(row.bytes, unit);
#pragma unroll
            for (int k = 0; k < 8; k++) words[i][k] = of.q[k];
#pragma unroll
            for (int run = 0; run < RUNS; run++) {
                of_unit[run] = of.scale[run];
                if (!is_plain(of.scale[run])) *odd = 1;
                if constexpr (MINIMA) of_unit[RUNS + run] = of.minimum[run];
            }
        } else {
            words_of(reinterpret_cast<const uint4*>(row.bytes + unit * UNIT), words[i]);
            of_unit[0] = row.scales[number];
        }
        const int of_32 = own % SCALED_ROWS;
        float* to = numbers + (static_cast<long long>(own / SCALED_ROWS) * units + place) * OF_WEIGHTS * SCALED_ROWS;
        to += of_32 % 8 * 4 + of_32 / 8;
#pragma unroll
        for (int k = 0; k < OF_WEIGHTS; k++) to[k * SCALED_ROWS] = of_unit[k];
    }
    uint4* const to = values + (static_cast<long long>(blockIdx.x) * units + place) * 32 + 4 * g;
#pragma unroll
    for (int t = 0; t < 4; t++) to[t] = make_uint4(words[0][t], words[1][t], words[0][4 + t], words[1][4 + t]);
}

// The largest tile whose sums and products fit into registers.
constexpr int LARGE_DOWN = RUNS == 1 ? 3 : 2;

// Computes `count` outputs of out (rows, O), from number `first` on: x (rows, I) · w (O, I)ᵀ (+ b). Both operands are
// packed. A row of I values has `units` units, and a group has `parts` units. `odd` says whether a scale is not plain.
// Grid (ceil(rows / ROWS), ceil(count / 128)) with ROWS = 96, or 64 if a format has two runs in a unit; block 4 · ROWS;
// shared memory 8 records of 16 · RECORD bytes, and 1,536 · ROWS bytes. Neighbouring blocks read the same weights.
KERNEL_WITH(128 * LARGE_DOWN, 1) matmul_q8_128(Packed w, Packed x, const unsigned* odd, const float* bias, float* out,
                                               int outputs, int first, int count, int rows, int units, int parts) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    matmul<Tile<4, LARGE_DOWN, 2>>(w, x, odd, bias, out, outputs, first, count, rows, units, parts);
}

// Does the same as matmul_q8_128, with the same bits, for devices with less shared memory. Grid (ceil(rows / 64),
// ceil(count / 64)), block 128, shared memory 8 records of 16 · RECORD bytes, and 49,152 bytes.
KERNEL_WITH(128, 1) matmul_q8_64(Packed w, Packed x, const unsigned* odd, const float* bias, float* out, int outputs,
                                 int first, int count, int rows, int units, int parts) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    matmul<Tile<2, 2, 2>>(w, x, odd, bias, out, outputs, first, count, rows, units, parts);
}

#define KERNELS_OF_THIS_FILE(X) X(pack_weights) X(matmul_q8_128) X(matmul_q8_64)
