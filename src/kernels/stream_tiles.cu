// Integer products of one row on tensor cores, for a decode pass, fused with the operations before and after them
// (stream_row.cuh). -DWEIGHT (a format with blocks of 256).
//
// A block has 16 rows of weights at a time, one tile of mma, and x in shared memory for all of them. Segments of all 16
// rows are copied to a ring of stages. A segment has a chunk of eight groups for each warp. A warp multiplies every
// group of its chunk of weights with all eight groups of x. Of the eight resulting columns, only the column of the same
// group is needed. So each lane gets four sums, of two rows and two groups, and multiplies them by their scales.
//
// The contributions of the groups to an output are stored in shared memory, so any warp may compute them. Then 16 lanes
// add them in the order of ops, a segment at a time: lane l adds the groups l, l + 16, l + 32 …
#include "stream_row.cuh"

// Number of rows of weights of a block, and of groups in a chunk.
constexpr int OUTPUTS = 16, CHUNK = 8;
// Maximum number of segments in shared memory.
constexpr int MOST_STAGES = 4;
// Distance between the terms of consecutive groups. With this distance, four lanes with different groups write to
// different banks.
constexpr int NEXT_GROUP = OUTPUTS + 4;

// A row of x in shared memory. Words 0 and 4 of each group are next to each other, and so are 1 and 5, 2 and 6, 3 and
// 7, as lanes need them for tensor cores.
struct Prepared : Row8 {
    using Row8::Row8;
    __device__ inline uint2* pairs(int group) const { return reinterpret_cast<uint2*>(words) + 4 * group; }
    __device__ inline void put(int group, const uint4& low, const uint4& high) const {
        uint4* const to = reinterpret_cast<uint4*>(pairs(group));
        to[0] = {low.x, high.x, low.y, high.y}, to[1] = {low.z, high.z, low.w, high.w};
    }
    __device__ inline void put_word(int group, int i, uint32_t word) const {
        reinterpret_cast<uint32_t*>(pairs(group) + i % 4)[i / 4] = word;
    }
};

// The shared memory of a block: the number of stages, and the maximum number of groups of each row in a stage. x and
// the terms follow the stages.
struct Ring {
    int stages, segment;
};

// The row of x (I) after the ring.
__device__ inline Prepared prepared(unsigned char* memory, const Ring& ring, int inputs) {
    return {memory + ring.stages * OUTPUTS * row_room(min(inputs / 32, ring.segment)), inputs / 32};
}

// Returns the scales and minima of groups `number` and `number` + 1 in a row of a piece, where `number` is even.
template <class W>
__device__ inline void scales_of_two(const InPiece& row, int number, float (&scales)[2][2], float (&minima)[2][2]) {
    if constexpr (Same<W, Q4K>::value || Same<W, Q5K>::value) {
        six_bits_of_two(row.bytes, number, scales, minima);
    } else {
#pragma unroll
        for (int k = 0; k < 2; k++) scales_in<W>(row, number + k, scales[k], minima[k]);
    }
}

// Multiplies a chunk of weights with x from group `first` on. The lane's two rows of the chunk are at `low` and `high`.
// Writes the contributions of the chunk's groups to `terms`, from place `to` on.
__device__ inline void multiply_chunk(const InPiece& low, const InPiece& high, const Prepared& x, int first, float* terms, int to) {
    const int lane = threadIdx.x % 32, row = lane / 4, thread = lane % 4;
    const uint2 of_x = x.pairs(first + row)[thread];
    int sums[2][2][2] = {};  // of each run, for the lane's groups and rows
#pragma unroll
    for (int i = 0; i < CHUNK; i++) {
        const Pair a = pair_in<WEIGHT>(low, i, thread), b = pair_in<WEIGHT>(high, i, thread);
        int products[2][4];
        if constexpr (Of::RUNS == 1) {
            multiply_bytes(products[0], {a.low, b.low, a.high, b.high}, {of_x.x, of_x.y}, {0, 0, 0, 0});
        } else {
            multiply_half_bytes(products[0], {a.low, b.low}, of_x.x, {0, 0, 0, 0});
            multiply_half_bytes(products[1], {a.high, b.high}, of_x.y, {0, 0, 0, 0});
        }
        if (thread == i / 2) {
#pragma unroll
            for (int run = 0; run < Of::RUNS; run++) {
                sums[run][i % 2][0] = products[run][i % 2], sums[run][i % 2][1] = products[run][i % 2 + 2];
            }
        }
    }
#pragma unroll
    for (int of_two = 0; of_two < 2; of_two++) {
        float scales[2][2] = {}, minima[2][2] = {};
        scales_of_two<WEIGHT>(of_two == 0 ? low : high, 2 * thread, scales, minima);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int in_chunk = 2 * thread + k, group = first + in_chunk;
            float x_sums[2] = {};
            int products[2] = {sums[0][k][of_two], sums[1][k][of_two]};
#pragma unroll
            for (int run = 0; run < OF_SUMS; run++) {
                x_sums[run] = x.sum(run, group);
                if (Of::OFFSET) products[run] -= Of::OFFSET * static_cast<int>(__float_as_uint(x_sums[run]));
            }
            terms[(to + in_chunk) * NEXT_GROUP + row + 8 * of_two] = term_of<WEIGHT>(scales[k], minima[k], products, x_sums);
        }
    }
}

// Multiplies x with 16 rows of weights in each of `turns` turns. `row_of(turn, i)` returns row i. `input` waits for x
// and writes it to shared memory. `finish(turn, sum, asked)` receives a product in the first lane of each half of a
// warp: that of row w in the first half of warp w, and that of row w + 8 in the second half. `asked` is the result of
// `early(turn)`, which is called when the turn begins. The ring is at `memory`, the terms are at `for_terms`. Waits for
// the input. All threads of the block call it.
template <class RowOf, class Input, class Early, class Finish>
__device__ inline void stream(unsigned char* memory, float* for_terms, const Ring& ring, const Prepared& x, int turns,
                              RowOf row_of, Input input, Early early, Finish finish) {
    SHARED(uint64_t, arrivals, MOST_STAGES);
    SHARED(uint32_t, befores, MOST_STAGES * OUTPUTS);  // extra bytes copied before the rows of each stage
    const int warp = threadIdx.x / 32, groups = x.groups, stages = ring.stages, segment = ring.segment;
    const int of_segment = min(groups, segment);
    const int room = row_room(of_segment), of_stage = OUTPUTS * room;
    const SharedPlace to_ring = shared_place(memory);
    From from = {};
    int next = 0, next_group = 0;
    // Each warp copies two rows, each by one lane.
    auto ask = [&](int stage) {
        if (threadIdx.x % 32 >= 2 || next == turns) return;
        const int own = warp + threadIdx.x % 32 * 8, count = min(groups - next_group, segment);
        if (next_group == 0) from = row_of(next, own);
        const int before = Of::ALIGNED ? 0 : from.low();
        const SharedPlace to = to_ring + stage * of_stage + own * room;
        const int bytes = static_cast<int>(bytes_of<WEIGHT>(32 * count));
        if (!Of::ALIGNED) befores[stage * OUTPUTS + own] = before;
        copy_async(arrivals + stage, {to, from.bytes - before, up16(before + bytes)});
        from.bytes += Of::bytes(segment);
        next_group += segment;
        if (next_group >= groups) next_group = 0, next++;
    };
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < stages; stage++) begin_arrivals(arrivals + stage, OUTPUTS);
        show_arrivals();
    }
    __syncthreads();
    for (int stage = 0; stage < stages; stage++) ask(stage);
    input();
    const int of_terms = NEXT_GROUP * of_segment;
    const int row = threadIdx.x % 32 / 4, lane = threadIdx.x % HALF, own_row = warp + threadIdx.x % 32 / HALF * 8;
    int stage = 0, parity = 0, place = 0;
    for (int turn = 0; turn < turns; turn++) {
        float sum = 0.0f;
        const auto asked = early(turn);
        for (int first = 0; first < groups; first += segment) {
            // The next segment uses the other half of the memory for terms. The segment after the next one uses this
            // half again; before that comes the barrier of the next segment.
            float* const terms = for_terms + place * of_terms;
            const int end = min(groups - first, segment);
            wait_for_arrivals(arrivals + stage, parity);
            for (int own = CHUNK * warp; own < end; own += CHUNK * WARPS) {
                auto in_piece = [&](int i) {
                    const uint32_t before = Of::ALIGNED ? 0 : befores[stage * OUTPUTS + i];
                    return InPiece{memory + stage * of_stage + i * room + before + own / CHUNK * Of::bytes(CHUNK), nullptr};
                };
                multiply_chunk(in_piece(row), in_piece(row + 8), x, first + own, terms, own);
            }
            __syncthreads();
            // After the barrier, all threads have finished with the stage.
            ask(stage);
#pragma unroll 4
            for (int group = lane; group < end; group += LANES) {
                sum = __fmaf_rn(x.scales[first + group], terms[group * NEXT_GROUP + own_row], sum);
            }
            place ^= 1;
            if (++stage == stages) stage = 0, parity ^= 1;
        }
        finish(turn, reduce_lanes(sum), asked);
    }
}

// Up to three products of a row x (I) with weights w (O, I). Each product writes out (O). If there is a single product,
// the kernel can also add another tensor to it, with the bits of add. Or results can be rotated and cached, with the
// bits of rope and cache. I is a multiple of 256 and, for a norm, at most KEPT. `tiles` is Σ ceil(O / 16). The ring has
// 2 to 4 stages of 32 or 64 groups. Grid: `tiles`, but at most as many blocks as fit on the device; block 256; shared
// memory: the ring, x, and the larger of the terms of two segments and the row whose norm is computed.
KERNEL_WITH(256, 2) stream_tiles_1(Products products, Source source, int tiles, Added added, int cache_type, Ring ring, Turns turns) {
    LET_NEXT_START();
    DYNAMIC_SHARED(unsigned char, memory);
    const Prepared x = prepared(memory, ring, products.of[0].matrix.inputs);
    OwnInput<Prepared> own(source, x);
    const Finish finish = {products, added, turns, cache_type};
    auto output = [&](int turn, int i) { return output_of<OUTPUTS / 2>(products, turns, blockIdx.x + turn * gridDim.x, i % 8, i / 8); };
    // The output of this lane's half of the warp.
    auto own_output = [&](int turn) { return output(turn, threadIdx.x / 32 + threadIdx.x % 32 / HALF * 8); };
    auto row_of = [&](int turn, int i) { return from_of(products, output(turn, i)); };
    auto early = [&](int turn) { return finish.ask(own_output(turn)); };
    stream(memory, x.behind(), ring, x, turns_of(tiles), row_of, [&] { own.make(); }, early, [&](int turn, float sum, float2 asked) {
        finish.write(own_output(turn), sum, asked);
    });
}

// Computes in the feed-forward network (Shazeer, 2020): gate = x · w1ᵀ, silu(gate), up = x · w3ᵀ and silu · up, (F)
// each, with the bits of silu and mul. x is as for stream_tiles_1. The first half of a tile has rows of gate, and the
// second half the same rows of up. A block computes 32 consecutive hidden values. If `to` is given, they are also
// written there, quantised; then F must be a multiple of 32. Grid: ceil(F / 32), but at most as many blocks as fit on
// the device; block 256; shared memory as for stream_tiles_1.
KERNEL_WITH(256, 2) stream_gated_tiles_1(Gated gated, Source source, Quantized to, Ring ring) {
    LET_NEXT_START();
    constexpr int EACH = OUTPUTS / 2, TURNS = TILE / EACH;
    DYNAMIC_SHARED(unsigned char, memory);
    SHARED(float, hidden, 2 * TILE);
    const Prepared x = prepared(memory, ring, gated.gate.inputs);
    OwnInput<Prepared> own(source, x);
    const int outputs = gated.gate.outputs, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int block = blockIdx.x, blocks = gridDim.x;
    auto first_of = [&](int turn) { return (block + turn / TURNS * blocks) * TILE + turn % TURNS * EACH; };
    auto row_of = [&](int turn, int i) {
        const Matrix& matrix = i < EACH ? gated.gate : gated.up;
        return from_of(matrix, min(first_of(turn) + i % EACH, outputs - 1));
    };
    auto early = [](int) { return 0; };
    const int own_turns = turns_of(ceil_div(outputs, TILE)) * TURNS;
    stream(memory, x.behind(), ring, x, own_turns, row_of, [&] { own.make(); }, early, [&](int turn, float sum, int) {
        float* const tile = hidden + turn / TURNS % 2 * TILE;
        const int output = first_of(turn) + warp;
        const float product = finish_gated(gated, output, sum);
        if (lane == 0) tile[output % TILE] = product;
        if (!to.values || turn % TURNS != TURNS - 1) return;
        // The next 32 values use the other half of this memory. The 32 values after these use this half again; all
        // threads have finished with it by then.
        __syncthreads();
        if (warp == 0) quantize_group(tile[lane], to, output / TILE * TILE);
    });
}

#define KERNELS_OF_THIS_FILE(X) X(stream_tiles_1) X(stream_gated_tiles_1)
