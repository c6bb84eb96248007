// Weights for products of many rows, rewritten by coalesced accesses: neighbouring lanes read and write neighbouring
// bytes. -DWEIGHT (I8 or a format). The results have the bits of pack_weights and unpack_bf16.
#include "matmul_q8.cuh"

// Units of a row that a block packs, and the rows of a block.
constexpr int UNITS_AT_ONCE = 16, ROWS_AT_ONCE = SCALED_ROWS;

// Bytes of UNITS_AT_ONCE units of a row, and their room in shared memory: an odd multiple of 16 bytes. So four words of
// eight consecutive rows lie in 32 different banks. Up to three bytes before the first one are copied too.
template <class W>
__device__ constexpr int row_bytes() {
    if constexpr (IS_BLOCKS<W>) return UNITS_AT_ONCE * UNIT / W::VALUES * W::BYTES;
    return UNITS_AT_ONCE * UNIT;
}
constexpr int ROW_ROOM = 16 * ((row_bytes<WEIGHT>() + 3 + 15) / 16 | 1);

// Returns words `which` and `which` + 4 of a unit of a row, as signed bytes.
template <class W>
__device__ inline Pair pair_of(const uint8_t* row, int unit, int which) {
    if constexpr (IS_BLOCKS<W>) {
        constexpr int UNITS = W::VALUES / UNIT;
        const Pair q = W::pair(row + static_cast<long long>(unit / UNITS) * W::BYTES, unit % UNITS, which);
        return W::OFFSET ? Pair{less(q.low, W::OFFSET), less(q.high, W::OFFSET)} : q;
    } else {
        const uint8_t* const at = row + unit * UNIT + 4 * which;
        return {aligned_word_at(at), aligned_word_at(at + UNIT / 2)};
    }
}

template <class W>
__device__ inline void pack(const Matrix& matrix, int first, int count, int group, uint4* values, float* numbers, unsigned* odd) {
    SHARED(uint8_t, staged, ROWS_AT_ONCE * ROW_ROOM);
    const int units = matrix.inputs / UNIT, first_unit = blockIdx.y * UNITS_AT_ONCE, here = min(UNITS_AT_ONCE, units - first_unit);
    const int groups = matrix.inputs / group, parts = group / UNIT;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const int first_row = blockIdx.x * ROWS_AT_ONCE;
    auto row_at = [&](int own) { return row_of<W>(matrix, first + min(first_row + own, count - 1)); };
    auto segment_of = [&](const Row& row) { return row.bytes + bytes_of<W>(static_cast<long long>(first_unit) * UNIT); };
    auto beyond = [](const uint8_t* at) { return static_cast<int>(reinterpret_cast<uintptr_t>(at) & 3); };
    const int bytes = static_cast<int>(bytes_of<W>(here * UNIT));
    for (int own = warp; own < ROWS_AT_ONCE; own += warps) {
        const uint8_t* const from = segment_of(row_at(own));
        const uint32_t* const words = reinterpret_cast<const uint32_t*>(from - beyond(from));
        uint32_t* const to = reinterpret_cast<uint32_t*>(staged + own * ROW_ROOM);
        for (int i = lane; i < ceil_div(beyond(from) + bytes, 4); i += 32) to[i] = words[i];
    }
    __syncthreads();
    // The lane's own row, for the scales.
    const Row of_lane = row_at(lane);
    const uint8_t* const own = staged + lane * ROW_ROOM + beyond(segment_of(of_lane));
    for (int i = warp; i < here; i += warps) {
        const int unit = first_unit + i, number = unit / parts, place = place_of(number, groups) * parts + unit % parts;
#pragma unroll
        for (int half = 0; half < ROWS_AT_ONCE / PACKED_ROWS; half++) {
            Pair of_rows[2];
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const int row = PACKED_ROWS * half + lane / 4 + 8 * k;
                const uint8_t* const at = staged + row * ROW_ROOM + beyond(segment_of(row_at(row)));
                of_rows[k] = pair_of<W>(at, i, lane % 4);
            }
            const long long packed = static_cast<long long>(blockIdx.x) * (ROWS_AT_ONCE / PACKED_ROWS) + half;
            values[(packed * units + place) * 32 + lane] =
                make_uint4(of_rows[0].low, of_rows[1].low, of_rows[0].high, of_rows[1].high);
        }
        float of_unit[4] = {};
        if constexpr (IS_BLOCKS<W>) {
            constexpr int UNITS = W::VALUES / UNIT;
            float scale[2] = {}, minimum[2] = {};
            W::scales(own + i / UNITS * W::BYTES, i % UNITS, scale, minimum);
#pragma unroll
            for (int run = 0; run < RUNS; run++) {
                of_unit[run] = scale[run];
                if (!is_plain(scale[run])) *odd = 1;
                if constexpr (MINIMA) of_unit[RUNS + run] = minimum[run];
            }
        } else {
            of_unit[0] = of_lane.scales[number];
        }
        float* const to = numbers + (static_cast<long long>(blockIdx.x) * units + place) * OF_WEIGHTS * SCALED_ROWS + lane % 8 * 4 + lane / 8;
#pragma unroll
        for (int k = 0; k < OF_WEIGHTS; k++) to[k * SCALED_ROWS] = of_unit[k];
    }
}

// Does the same as pack_weights (matmul_q8.cu). A block copies its rows to shared memory. Then a warp packs one unit of
// 16 rows at a time, and each lane writes its own 16 bytes of the unit. Grid (ceil(count / 128) · 4, ceil(I / 512)),
// block 256.
KERNEL(256) pack_weights_coalesced(Matrix matrix, int first, int count, int group, uint4* values, float* numbers, unsigned* odd) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    pack<WEIGHT>(matrix, first, count, group, values, numbers, odd);
}

template <class W>
__device__ inline void unpack(const Matrix& w, uint16_t* out) {
    constexpr int EACH = 8;
    const long long own = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    float x[EACH];
    if constexpr (IS_BLOCKS<W>) {
        constexpr int UNITS = W::VALUES / UNIT;
        const int units = w.inputs / UNIT, part = threadIdx.x % 4;
        const long long number = own / 4, row = number / units;
        // All lanes exchange words, also those beyond the last row.
        const int unit = static_cast<int>(number - row * units);
        const Row of = row_of<W>(w, static_cast<int>(min(row, static_cast<long long>(w.outputs - 1))));
        // A lane has words `part` and `part` + 4. It exchanges one of them with its neighbour, so that each has two words
        // that follow each other.
        const Pair q = pair_of<W>(of.bytes, unit, part);
        const uint32_t other = __shfl_xor_sync(FULL, part % 2 ? q.low : q.high, 1);
        if (row >= w.outputs) return;
        float scale[2] = {}, minimum[2] = {};
        W::scales(of.bytes + static_cast<long long>(unit / UNITS) * W::BYTES, unit % UNITS, scale, minimum);
        const int run = W::RUN == UNIT ? 0 : part % 2;
        Group<W> two = {};
        two.q[0] = part % 2 ? other : q.low, two.q[1] = part % 2 ? q.high : other;
        two.scale[0] = run ? scale[1] : scale[0], two.minimum[0] = run ? minimum[1] : minimum[0];
#pragma unroll
        for (int i = 0; i < EACH; i++) x[i] = value_of(two, i);
        out += number * UNIT + (part % 2 ? 4 * part + 12 : 4 * part);
    } else {
        const int parts = w.inputs / EACH;
        const long long row = own / parts;
        if (row >= w.outputs) return;
        const Row of = row_of<W>(w, static_cast<int>(row));
        const int first = static_cast<int>(own - row * parts) * EACH;
        const uint2 q = *reinterpret_cast<const uint2*>(of.bytes + first);
        const float scale = of.scales[(of.first + first) / of.group];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            x[i] = __fmul_rn(static_cast<float>(static_cast<int8_t>((i < 4 ? q.x : q.y) >> (i % 4 * 8))), scale);
        }
        out += own * EACH;
    }
    *reinterpret_cast<uint4*>(out) = make_uint4(pair_bf16(x[0], x[1]), pair_bf16(x[2], x[3]), pair_bf16(x[4], x[5]), pair_bf16(x[6], x[7]));
}

// Does the same as unpack_bf16 (unpack.cu). A thread converts eight values, and writes them together. Four lanes have
// the 32 values of a unit. Grid (at least O · I / 2048), block 256.
KERNEL(256) unpack_bf16_coalesced(Matrix w, uint16_t* out) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    unpack<WEIGHT>(w, out);
}

#define KERNELS_OF_THIS_FILE(X) X(pack_weights_coalesced) X(unpack_bf16_coalesced)
