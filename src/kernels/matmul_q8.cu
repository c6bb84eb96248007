// Integer products with many rows, on tensor cores, with the bits of matvec_q8.cu and of ops. -DWEIGHT (I8 or a
// format).
//
// Weights are first rewritten in the layout of tensor cores (pack_weights). This is done for a part of a matrix at a
// time, which stays in the second-level cache. So each weight is unpacked only once, and one kernel multiplies all
// formats.
//
// An output has sixteen partial sums, one for each remainder of a group's number mod 16. All of them together would
// take too many registers. So the groups of one remainder are multiplied after those of another. The order of the
// remainders is the order in which their sums are joined pairwise: 0, 8, 4, 12, 2 … A sum waits until its partner is
// complete, and is joined then. At most four sums wait, one for each level: that of a single remainder in registers,
// and those of two, four and eight remainders in shared memory.
#include "packed.cuh"
#include "tensor.cuh"

template <class W>
__device__ constexpr int runs_of() {
    if constexpr (IS_BLOCKS<W>) return UNIT / W::RUN;
    return 1;
}
template <class W>
__device__ constexpr bool minima_of() {
    if constexpr (IS_BLOCKS<W>) return W::MINIMA;
    return false;
}
constexpr int RUNS = runs_of<WEIGHT>();
constexpr bool MINIMA = minima_of<WEIGHT>();
// OF_WEIGHTS: how many numbers a row of weights has per unit: the scale of each run, then the minima. OF_ROWS: how many
// of the four numbers of a row of activations (packed.cuh) are needed here: its scale and, if the format has minima,
// the sum of each run.
constexpr int OF_WEIGHTS = RUNS * (MINIMA ? 2 : 1), OF_ROWS = MINIMA ? 1 + RUNS : 1;
constexpr int FIRST_OF_ROWS = MINIMA && RUNS == 1 ? SUM_AT : SCALE_AT;
// The places of the scale and of the sums among the numbers that are needed.
constexpr int OWN_SCALE = SCALE_AT - FIRST_OF_ROWS, OWN_SUMS = (RUNS == 1 ? SUM_AT : HALVES_AT) - FIRST_OF_ROWS;

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

// Number of units that are copied into shared memory together.
constexpr int DEPTH = 4;

// Number of warps of a block in each direction. Each warp has 32 outputs and 32 rows.
template <int ACROSS_, int DOWN_, int STAGES_>
struct Tile {
    static constexpr int ACROSS = ACROSS_, STAGES = STAGES_, THREADS = 32 * ACROSS * DOWN_;
    static constexpr int OUTPUTS = 32 * ACROSS, ROWS = 32 * DOWN_;
    // The parts of a unit's record in shared memory begin at these places, in steps of 16 bytes: the values of the
    // weights (at 0) and of the rows, then the numbers of the weights and of the rows.
    static constexpr int X_VALUES = OUTPUTS / PACKED_ROWS * 32, W_NUMBERS = X_VALUES + ROWS / PACKED_ROWS * 32;
    static constexpr int X_NUMBERS = W_NUMBERS + OUTPUTS / SCALED_ROWS * OF_WEIGHTS * 8;
    static constexpr int RECORD = X_NUMBERS + ROWS / SCALED_ROWS * OF_ROWS * 8;
};

// The inputs of matmul_q8: the outputs of pack_weights and pack_rows.
struct Packed {
    const uint4* values;
    const uint4* numbers;
};

// The largest divisor of `whole` up to `most`.
__device__ constexpr int most_that_divides(int whole, int most) {
    return whole % most == 0 ? most : most_that_divides(whole, most - 1);
}

// A thread's copies of one part of every stage. For each of SETS sets of rows, the part has EACH of the ALL 16-byte
// words of every unit. In a unit's record, the part begins at AT.
template <class TILE, int AT, int SETS, int EACH, int ALL>
struct Copier {
    // The threads copy APART sets at a time, and each thread copies the same number of times. Threads that are left
    // over copy nothing.
    static constexpr int OF_SET = DEPTH * EACH, APART = most_that_divides(SETS, TILE::THREADS / OF_SET), ROUNDS = SETS / APART;
    static constexpr bool ALL_COPY = APART * OF_SET == TILE::THREADS;

    const uint4* from;  // for the next stage
    long long apart;    // distance between rounds
    int to, left;       // place in a stage; number of units left from the thread's unit in the next stage on

    __device__ Copier(const uint4* of, int units) {
        const int set = threadIdx.x / OF_SET, unit = threadIdx.x % OF_SET / EACH, i = threadIdx.x % EACH;
        from = of + (static_cast<long long>(set) * units + unit) * ALL + i;
        apart = static_cast<long long>(APART) * units * ALL;
        to = unit * TILE::RECORD + AT + set * EACH + i;
        left = units - unit;
        if (!ALL_COPY && set >= APART) to = -1;
    }

    // Starts to copy the next stage. With WHOLE, every unit of the stage exists.
    template <bool WHOLE>
    __device__ void copy(uint4* stage) {
        if (ALL_COPY || to >= 0) {
#pragma unroll
            for (int round = 0; round < ROUNDS; round++) {
                copy16_async_if(WHOLE || left > 0, stage + to + round * APART * EACH, from + round * apart);
            }
        }
        from += DEPTH * ALL, left -= DEPTH;
    }
};

// Copies stages into shared memory, one after the other.
template <class TILE>
struct Stages {
    uint4* memory;
    int next, left;  // place of the next stage, and number of remaining stages
    Copier<TILE, 0, TILE::OUTPUTS / PACKED_ROWS, 32, 32> w;
    Copier<TILE, TILE::X_VALUES, TILE::ROWS / PACKED_ROWS, 32, 32> x;
    Copier<TILE, TILE::W_NUMBERS, TILE::OUTPUTS / SCALED_ROWS, 8 * OF_WEIGHTS, 8 * OF_WEIGHTS> w_numbers;
    Copier<TILE, TILE::X_NUMBERS, TILE::ROWS / SCALED_ROWS, 8 * OF_ROWS, 8 * ALL_OF_ROWS> x_numbers;

    // Starts to copy the next stage, if there is one.
    template <bool WHOLE>
    __device__ void copy() {
        if (left > 0) {
            uint4* const to = memory + next * DEPTH * TILE::RECORD;
            w.template copy<WHOLE>(to), x.template copy<WHOLE>(to);
            w_numbers.template copy<WHOLE>(to), x_numbers.template copy<WHOLE>(to);
            next = next + 1 == TILE::STAGES ? 0 : next + 1;
            left--;
        }
        close_copies();
    }
};

__device__ inline void floats_of(const uint4& words, float* out) {
    out[0] = __uint_as_float(words.x), out[1] = __uint_as_float(words.y);
    out[2] = __uint_as_float(words.z), out[3] = __uint_as_float(words.w);
}

// The values of a lane in a tile of 16 outputs and 8 rows: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
using Whole = int[4];

// The values of a lane in the sums of its warp: outputs from 16m on, and rows from 8n on.
using Sums = float[2][4][4];

// A warp's part of a block's product. PLAIN: is_plain is true for all scales.
template <class TILE, bool PLAIN>
struct Warp {
    static constexpr int STAGE = DEPTH * TILE::RECORD;
    Stages<TILE>& stages;
    float4* kept;       // shared memory of sums that wait for their partners
    int units;          // number of units to multiply
    const uint4* unit;  // record of the next unit, and number of units left in its stage
    int left;
    uint32_t a[2][4], b[4][2];  // values of the loaded unit
    Whole whole[RUNS][2][4];    // integer products, and their start values
    Whole nothing;

    __device__ static int across() { return threadIdx.x / 32 % TILE::ACROSS; }
    __device__ static int down() { return threadIdx.x / 32 / TILE::ACROSS; }

    // Converts an integer sum to a float. If PLAIN, the sum began with SHIFTED, and the result of `shifted` still
    // contains SHIFT.
    __device__ static float shifted(int sum) {
        return PLAIN ? __uint_as_float(static_cast<uint32_t>(sum)) : static_cast<float>(sum);
    }
    __device__ static float number(int sum) { return PLAIN ? __fsub_rn(shifted(sum), SHIFT) : shifted(sum); }

    // Waits for the copies of the next stage, and goes on to that stage.
    template <bool WHOLE>
    __device__ void next_stage() {
        // All threads have read the previous stage, so the next copies may replace it.
        wait_for_copies<TILE::STAGES - 2>();
        __syncthreads();
        stages.template copy<WHOLE>();
        if (unit == stages.memory + TILE::STAGES * STAGE) unit = stages.memory;
    }

    // Loads the values of a unit into registers.
    __device__ void load(const uint4* at) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int m = 0; m < 2; m++) {
            const uint4 words = at[(across() * 2 + m) * 32 + lane];
            a[m][0] = words.x, a[m][1] = words.y, a[m][2] = words.z, a[m][3] = words.w;
        }
#pragma unroll
        for (int n = 0; n < 4; n += 2) {
            const uint4 words = at[TILE::X_VALUES + (down() * 2 + n / 2) * 32 + lane];
            b[n][0] = words.x, b[n][1] = words.y, b[n + 1][0] = words.z, b[n + 1][1] = words.w;
        }
    }

    // Multiplies the loaded unit at `at`. `begins` and `ends` say whether a group begins or ends with this unit.
    // `load_next` loads another unit.
    template <class LoadNext>
    __device__ void multiply_unit(const uint4* at, bool begins, bool ends, Sums& sums, LoadNext load_next) {
        const int lane = threadIdx.x % 32;
        float of_w[OF_WEIGHTS][4];  // of the outputs g, g + 8, g + 16, g + 24
        float of_x[OF_ROWS][8];     // of the rows 8n + 2t + c, at 2n + c
#pragma unroll
        for (int k = 0; k < OF_WEIGHTS; k++) {
            floats_of(at[TILE::W_NUMBERS + (across() * OF_WEIGHTS + k) * 8 + lane / 4], of_w[k]);
        }
#pragma unroll
        for (int k = 0; k < OF_ROWS; k++) {
            const uint4* of = at + TILE::X_NUMBERS + (down() * OF_ROWS + k) * 8 + lane % 4 * 2;
            floats_of(of[0], of_x[k]), floats_of(of[1], of_x[k] + 4);
        }
#pragma unroll
        for (int m = 0; m < 2; m++) {
#pragma unroll
            for (int n = 0; n < 4; n++) {
                if constexpr (RUNS == 2) {
                    multiply_half_bytes(whole[0][m][n], {a[m][0], a[m][1]}, b[n][0], nothing);
                    multiply_half_bytes(whole[RUNS - 1][m][n], {a[m][2], a[m][3]}, b[n][1], nothing);
                } else if (IS_BLOCKS<WEIGHT> || begins) {
                    multiply_bytes(whole[0][m][n], a[m], b[n], nothing);
                } else {
                    multiply_bytes(whole[0][m][n], a[m], b[n], whole[0][m][n]);
                }
            }
        }
        load_next();
        if (!IS_BLOCKS<WEIGHT> && !ends) return;
#pragma unroll
        for (int m = 0; m < 2; m++) {
#pragma unroll
            for (int n = 0; n < 4; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int output = 2 * m + i / 2, row = 2 * n + i % 2, first = whole[0][m][n][i];
                    const float scale = of_w[0][output], of_row = of_x[OWN_SCALE][row];
                    float& sum = sums[m][n][i];
                    if constexpr (!IS_BLOCKS<WEIGHT>) {
                        sum = __fmaf_rn(__fmul_rn(of_row, scale), number(first), sum);
                        continue;
                    }
                    float term = PLAIN ? __fmaf_rn(scale, shifted(first), __fmul_rn(scale, -SHIFT))
                                       : __fmul_rn(scale, number(first));
                    if constexpr (RUNS == 2) term = __fmaf_rn(of_w[1][output], number(whole[1][m][n][i]), term);
                    if constexpr (MINIMA) {
#pragma unroll
                        for (int run = 0; run < RUNS; run++) {
                            term = __fmaf_rn(of_w[RUNS + run][output], of_x[OWN_SUMS + run][row], term);
                        }
                    }
                    sum = __fmaf_rn(of_row, term, sum);
                }
            }
        }
    }

    // Adds the `count` groups of one remainder. A group has `parts` units.
    __device__ void add_groups(int count, int parts, Sums& sums) {
        for (int group = count; group > 0; group--) {
            for (int part = 0; part < parts; part++) {
                multiply_unit(unit, part == 0, part == parts - 1, sums, [&] {
                    unit += TILE::RECORD, left--;
                    if (--units == 0) return;
                    if (left == 0) next_stage<false>(), left = DEPTH;
                    load(unit);
                });
            }
        }
    }

    // Adds the units of a stage, each of which is a group.
    __device__ void add_stage(Sums& sums) {
        const uint4* const stage = unit;
#pragma unroll
        for (int i = 0; i < DEPTH - 1; i++) {
            const uint4* const at = stage + i * TILE::RECORD;
            multiply_unit(at, true, true, sums, [&] { load(at + TILE::RECORD); });
        }
        multiply_unit(stage + (DEPTH - 1) * TILE::RECORD, true, true, sums, [&] {
            unit += STAGE, units -= DEPTH;
            if (units > 0) next_stage<true>(), load(unit);
        });
    }

    // Computes the product of this block's tile.
    __device__ void multiply(int units_of_group, Sums& sums) {
        const int parts = IS_BLOCKS<WEIGHT> ? 1 : units_of_group, groups = units / parts;
#pragma unroll
        for (int stage = 0; stage < TILE::STAGES - 1; stage++) stages.template copy<false>();
        unit = stages.memory, left = DEPTH;
#pragma unroll
        for (int i = 0; i < 4; i++) nothing[i] = known_later(PLAIN ? SHIFTED : 0);
        next_stage<false>();
        load(unit);
        // If the groups of each remainder fill whole stages, the loop only has to count stages. This faster version
        // exists only for plain scales, because other scales are rare and each version takes compile time.
        if (PLAIN && parts == 1 && groups % (LANES * DEPTH) == 0) {
            const int count = groups / (LANES * DEPTH);
            add_remainders(sums, [&](int, Sums& own) {
                for (int stage = 0; stage < count; stage++) add_stage(own);
            });
        } else {
            add_remainders(sums, [&](int step, Sums& own) { add_groups(groups_of(remainder_of(step), groups), parts, own); });
        }
        wait_for_copies<0>();
    }

    // Joins the sums of all remainders. `add` adds the groups of one remainder to sums that are 0.
    template <class Add>
    __device__ void add_remainders(Sums& sums, Add add) {
        float* const own = &sums[0][0][0];
        for (int pair = 0; pair < LANES / 2; pair++) {
            Sums others;
#pragma unroll
            for (int i = 0; i < 32; i++) own[i] = 0.0f;
            add(2 * pair, sums);
#pragma unroll
            for (int i = 0; i < 32; i++) (&others[0][0][0])[i] = 0.0f;
            add(2 * pair + 1, others);
#pragma unroll
            for (int i = 0; i < 32; i++) own[i] = __fadd_rn(own[i], (&others[0][0][0])[i]);
            // The sums of two, four and eight remainders wait in shared memory for their partners.
            float4* of_level = kept + threadIdx.x;
            for (int pairs = pair; pairs % 2 == 1; pairs /= 2, of_level += 8 * TILE::THREADS) {
#pragma unroll
                for (int i = 0; i < 32; i += 4) {
                    float four[4];
                    floats_of(reinterpret_cast<const uint4&>(of_level[i / 4 * TILE::THREADS]), four);
#pragma unroll
                    for (int k = 0; k < 4; k++) own[i + k] = __fadd_rn(four[k], own[i + k]);
                }
            }
            if (pair == LANES / 2 - 1) break;
#pragma unroll
            for (int i = 0; i < 32; i += 4) {
                of_level[i / 4 * TILE::THREADS] = make_float4(own[i], own[i + 1], own[i + 2], own[i + 3]);
            }
        }
    }

    // Writes the sums, with their bias, for `rows` rows and for the outputs from `first` on. Of all `outputs` outputs,
    // `count` remain from this block on.
    __device__ static void write(const Sums& sums, const float* bias, float* out, int outputs, int first, int count, int rows) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int m = 0; m < 2; m++) {
#pragma unroll
            for (int n = 0; n < 4; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int own = across() * 32 + 16 * m + lane / 4 + i / 2 * 8, row = down() * 32 + 8 * n + lane % 4 * 2 + i % 2;
                    if (row >= rows || own >= count) continue;
                    const int output = first + own;
                    const float sum = sums[m][n][i];
                    out[static_cast<long long>(row) * outputs + output] = bias ? __fadd_rn(sum, bias[output]) : sum;
                }
            }
        }
    }
};

template <class TILE>
__device__ inline void matmul(Packed w, Packed x, const unsigned* odd, const float* bias, float* out, int outputs, int first,
                              int count, int rows, int units, int parts) {
    DYNAMIC_SHARED(uint4, memory);
    const long long across = blockIdx.y, down = blockIdx.x;
    w.values += across * (TILE::OUTPUTS / PACKED_ROWS) * units * 32, x.values += down * (TILE::ROWS / PACKED_ROWS) * units * 32;
    w.numbers += across * (TILE::OUTPUTS / SCALED_ROWS) * units * OF_WEIGHTS * 8;
    x.numbers += (down * (TILE::ROWS / SCALED_ROWS) * units * ALL_OF_ROWS + FIRST_OF_ROWS) * 8;
    Stages<TILE> stages = {memory,           0, ceil_div(units, DEPTH), {w.values, units}, {x.values, units}, {w.numbers, units},
                           {x.numbers, units}};
    float4* const kept = reinterpret_cast<float4*>(memory + TILE::STAGES * DEPTH * TILE::RECORD);
    first += across * TILE::OUTPUTS, count -= across * TILE::OUTPUTS;
    out += down * TILE::ROWS * outputs, rows -= down * TILE::ROWS;
    Sums sums;
    // Sums of more than 8 units may exceed the range in which SHIFT is exact.
    if (!ROW_BY_ROW && *odd == 0 && parts <= 8) {
        Warp<TILE, true>{stages, kept, units}.multiply(parts, sums);
    } else {
        Warp<TILE, false>{stages, kept, units}.multiply(parts, sums);
    }
    Warp<TILE, true>::write(sums, bias, out, outputs, first, count, rows);
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
