// Integer products with many rows, on tensor cores, from packed operands (packed.cuh). -DWEIGHT (I8 or a format).
//
// An output has sixteen partial sums, one for each remainder of a group's number mod 16. All of them together would
// take too many registers. So the groups of one remainder are multiplied after those of another. The order of the
// remainders is the order in which their sums are joined pairwise: 0, 8, 4, 12, 2 … A sum waits until its partner is
// complete, and is joined then. At most four sums wait, one for each level: that of a single remainder in registers,
// and those of two, four and eight remainders in shared memory.
#pragma once
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

// Number of units that are copied into shared memory together.
constexpr int DEPTH = 4;

// ACROSS, DOWN: number of warps of a block in each direction. Each warp has 32 · SETS outputs and 32 rows. LEVELS: how
// many levels of waiting sums are in shared memory, 2 or 3. With 2, the third level waits in the memory of the outputs.
template <int ACROSS_, int DOWN_, int STAGES_, int SETS_ = 1, int LEVELS_ = 3>
struct Tile {
    static constexpr int ACROSS = ACROSS_, STAGES = STAGES_, SETS = SETS_, LEVELS = LEVELS_;
    // Whether a group of int8 weights may have several units. A warp then keeps its integer products from unit to unit.
    static constexpr bool PARTS = !IS_BLOCKS<WEIGHT> && SETS == 1;
    // How many of a warp's tiles of 16 outputs are multiplied before their products are scaled. Fewer take fewer
    // registers.
    static constexpr int AT_ONCE = SETS > 1 && RUNS == 2 && MINIMA ? 1 : 2;
    static constexpr int THREADS = 32 * ACROSS * DOWN_, OUTPUTS = 32 * SETS * ACROSS, ROWS = 32 * DOWN_;
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
template <class TILE>
using Sums = float[2 * TILE::SETS][4][4];

// The outputs of a block: `out` has `outputs` outputs for each row. The block has those from number `first` on. From
// there on, `count` outputs and `rows` rows exist.
struct Outputs {
    float* out;
    int outputs, first, count, rows;
};

// A warp's part of a block's product. PLAIN: is_plain is true for all scales.
template <class TILE, bool PLAIN>
struct Warp {
    static constexpr int STAGE = DEPTH * TILE::RECORD, SETS = TILE::SETS, EACH = 32 * SETS, AT_ONCE = TILE::AT_ONCE;
    using Sums = ::Sums<TILE>;
    Stages<TILE>& stages;
    float4* kept;       // shared memory of sums that wait for their partners
    int units;          // number of units to multiply
    const uint4* unit;  // record of the next unit, and number of units left in its stage
    int left;
    uint32_t a[2 * SETS][4], b[4][2];   // values of the loaded unit
    Whole whole[RUNS][AT_ONCE][4];      // integer products of some tiles of 16 outputs, and their start values
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
        for (int m = 0; m < 2 * SETS; m++) {
            const uint4 words = at[(across() * 2 * SETS + m) * 32 + lane];
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
        float of_w[SETS][OF_WEIGHTS][4];  // of the outputs g, g + 8, g + 16, g + 24 of each set
        float of_x[OF_ROWS][8];           // of the rows 8n + 2t + c, at 2n + c
#pragma unroll
        for (int set = 0; set < SETS; set++) {
#pragma unroll
            for (int k = 0; k < OF_WEIGHTS; k++) {
                floats_of(at[TILE::W_NUMBERS + ((across() * SETS + set) * OF_WEIGHTS + k) * 8 + lane / 4], of_w[set][k]);
            }
        }
#pragma unroll
        for (int k = 0; k < OF_ROWS; k++) {
            const uint4* of = at + TILE::X_NUMBERS + (down() * OF_ROWS + k) * 8 + lane % 4 * 2;
            floats_of(of[0], of_x[k]), floats_of(of[1], of_x[k] + 4);
        }
#pragma unroll
        for (int first_m = 0; first_m < 2 * SETS; first_m += AT_ONCE) {
#pragma unroll
            for (int m = 0; m < AT_ONCE; m++) {
                const uint32_t (&of)[4] = a[first_m + m];
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    if constexpr (RUNS == 2) {
                        multiply_half_bytes(whole[0][m][n], {of[0], of[1]}, b[n][0], nothing);
                        multiply_half_bytes(whole[RUNS - 1][m][n], {of[2], of[3]}, b[n][1], nothing);
                    } else if (!TILE::PARTS || begins) {
                        multiply_bytes(whole[0][m][n], of, b[n], nothing);
                    } else {
                        multiply_bytes(whole[0][m][n], of, b[n], whole[0][m][n]);
                    }
                }
            }
            if (first_m + AT_ONCE == 2 * SETS) load_next();
            if (TILE::PARTS && !ends) continue;
#pragma unroll
            for (int m = 0; m < AT_ONCE; m++) {
                const int set = (first_m + m) / 2;
#pragma unroll
                for (int n = 0; n < 4; n++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const int output = (first_m + m) % 2 * 2 + i / 2, row = 2 * n + i % 2, first = whole[0][m][n][i];
                        const float scale = of_w[set][0][output], of_row = of_x[OWN_SCALE][row];
                        float& sum = sums[first_m + m][n][i];
                        if constexpr (!IS_BLOCKS<WEIGHT>) {
                            sum = __fmaf_rn(__fmul_rn(of_row, scale), number(first), sum);
                            continue;
                        }
                        float term = PLAIN ? __fmaf_rn(scale, shifted(first), __fmul_rn(scale, -SHIFT))
                                           : __fmul_rn(scale, number(first));
                        if constexpr (RUNS == 2) term = __fmaf_rn(of_w[set][1][output], number(whole[1][m][n][i]), term);
                        if constexpr (MINIMA) {
#pragma unroll
                            for (int run = 0; run < RUNS; run++) {
                                term = __fmaf_rn(of_w[set][RUNS + run][output], of_x[OWN_SUMS + run][row], term);
                            }
                        }
                        sum = __fmaf_rn(of_row, term, sum);
                    }
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
    __device__ void multiply(int units_of_group, Sums& sums, const Outputs& to) {
        const int parts = TILE::PARTS ? units_of_group : 1, groups = units / parts;
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
            add_remainders(sums, to, [&](int, Sums& own) {
                for (int stage = 0; stage < count; stage++) add_stage(own);
            });
        } else {
            add_remainders(sums, to, [&](int step, Sums& own) { add_groups(groups_of(remainder_of(step), groups), parts, own); });
        }
        wait_for_copies<0>();
    }

    // Joins the sums of all remainders. `add` adds the groups of one remainder to sums that are 0.
    template <class Add>
    __device__ void add_remainders(Sums& sums, const Outputs& to, Add add) {
        float* const own = &sums[0][0][0];
        for (int pair = 0; pair < LANES / 2; pair++) {
            Sums others;
#pragma unroll
            for (int i = 0; i < EACH; i++) own[i] = 0.0f;
            add(2 * pair, sums);
#pragma unroll
            for (int i = 0; i < EACH; i++) (&others[0][0][0])[i] = 0.0f;
            add(2 * pair + 1, others);
#pragma unroll
            for (int i = 0; i < EACH; i++) own[i] = __fadd_rn(own[i], (&others[0][0][0])[i]);
            // The sums of two, four and eight remainders wait in shared memory for their partners.
            float4* of_level = kept + threadIdx.x;
            for (int pairs = pair; pairs % 2 == 1; pairs /= 2, of_level += EACH / 4 * TILE::THREADS) {
                if constexpr (TILE::LEVELS == 2) {
                    if (of_level == waiting_outside()) {
                        each_output(to, [&](float& out, int i) { own[i] = __fadd_rn(out, own[i]); });
                        break;
                    }
                }
#pragma unroll
                for (int i = 0; i < EACH; i += 4) {
                    float four[4];
                    floats_of(reinterpret_cast<const uint4&>(of_level[i / 4 * TILE::THREADS]), four);
#pragma unroll
                    for (int k = 0; k < 4; k++) own[i + k] = __fadd_rn(four[k], own[i + k]);
                }
            }
            if (pair == LANES / 2 - 1) break;
            if constexpr (TILE::LEVELS == 2) {
                if (of_level == waiting_outside()) {
                    each_output(to, [&](float& out, int i) { out = own[i]; });
                    continue;
                }
            }
#pragma unroll
            for (int i = 0; i < EACH; i += 4) {
                of_level[i / 4 * TILE::THREADS] = make_float4(own[i], own[i + 1], own[i + 2], own[i + 3]);
            }
        }
    }

    // The end of the shared memory for waiting sums of this thread, if the third level waits in the memory of the outputs.
    __device__ const float4* waiting_outside() const { return kept + threadIdx.x + 2 * (EACH / 4) * TILE::THREADS; }

    // Calls `with(out, i)` for each sum of this lane that is an output. `out` is its place, and `i` is its index among
    // the lane's sums. The places are computed at each call, because they do not fit into registers.
    template <class With>
    __device__ static void each_output(const Outputs& to, With with) {
        const int lane = known_later(threadIdx.x % 32);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int m = i / 16, n = i / 4 % 4, k = i % 4;
            const int own = across() * EACH + 16 * m + lane / 4 + k / 2 * 8, row = down() * 32 + 8 * n + lane % 4 * 2 + k % 2;
            if (row < to.rows && own < to.count) with(to.out[static_cast<long long>(row) * to.outputs + to.first + own], i);
        }
    }

    // Writes the sums, with their bias, for `rows` rows and for the outputs from `first` on. Of all `outputs` outputs,
    // `count` remain from this block on.
    __device__ static void write(const Sums& sums, const float* bias, float* out, int outputs, int first, int count, int rows) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int m = 0; m < 2 * SETS; m++) {
#pragma unroll
            for (int n = 0; n < 4; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int own = across() * EACH + 16 * m + lane / 4 + i / 2 * 8, row = down() * 32 + 8 * n + lane % 4 * 2 + i % 2;
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
    const Outputs to = {out, outputs, first, count, rows};
    Sums<TILE> sums;
    // Sums of more than 8 units may exceed the range in which SHIFT is exact.
    if (!ROW_BY_ROW && *odd == 0 && parts <= 8) {
        Warp<TILE, true>{stages, kept, units}.multiply(parts, sums, to);
    } else {
        Warp<TILE, false>{stages, kept, units}.multiply(parts, sums, to);
    }
    Warp<TILE, true>::write(sums, bias, out, outputs, first, count, rows);
}
