// Products in whole numbers of one row, as a decode pass has it, with all that comes before and after them (stream.cuh).
// -DWEIGHT (I8 or a format).
//
// A block has 16 rows of weights at a time, those of a tile of mma, and x in shared memory for all of them: it makes x once, a copy
// of a quantised row, or int8 of float32 values, or of the norm of a row (as rms_norm and quantize). Segments
// of all 16 rows, some chunks of eight groups for each warp, are copied to a ring of stages. Each warp multiplies every group of a chunk of
// weights with all eight of x. Of the eight columns that come out, one is wanted: that of the group itself. So each
// lane gets four sums, of two rows and two groups, and applies their scales.
//
// What the groups add to an output is kept in shared memory, so that any warp may find it; then 16 lanes add it up in the order
// of ops, lane l the groups l, l + 16, l + 32 …, a segment at a time.
#include "stream.cuh"

// Rows of weights of a block, and groups of a chunk.
constexpr int OUTPUTS = 16, CHUNK = 8;
constexpr int CHUNK_BYTES = Of::bytes(CHUNK);
// Segments that are in shared memory, at most.
constexpr int MOST_STAGES = 4;
// Where the terms of a group are after those of the group before: four lanes write those of other groups to other banks.
constexpr int NEXT_GROUP = OUTPUTS + 4;
// Sums of x of each group that its products with weights want: for minima as float32, for an offset as whole numbers.
constexpr int OF_SUMS = Of::MINIMA || Of::OFFSET ? Of::RUNS : 0;

// The row of x in the shared memory of a block: of each group words 0 and 4, 1 and 5, 2 and 6, 3 and 7, as lanes take them to
// tensor cores; a scale for each group; and sums.
struct Prepared {
    uint2* words;
    float* scales;
    float* sums;
    int groups;

    __device__ inline Prepared(unsigned char* memory, int groups) : groups(groups) {
        words = reinterpret_cast<uint2*>(memory);
        scales = reinterpret_cast<float*>(words + 4 * groups);
        sums = scales + up4(groups);
    }
    // What lies after all of it.
    __device__ inline float* behind() const { return sums + OF_SUMS * up4(groups); }
    __device__ inline float& sum(int run, int group) const { return sums[run * up4(groups) + group]; }
    __device__ inline void put_sum(int run, int group, int of_run) const {
        sum(run, group) = Of::MINIMA ? static_cast<float>(of_run) : __uint_as_float(static_cast<uint32_t>(of_run));
    }
};

// What a block has in shared memory: so many stages, with up to so many groups of each row; then x, and the terms.
struct Ring {
    int stages, segment;
};

// The row of x (I) after the ring.
__device__ inline Prepared prepared(unsigned char* memory, const Ring& ring, int inputs) {
    return {memory + ring.stages * OUTPUTS * row_room(min(inputs / 32, ring.segment)), inputs / 32};
}

// Copies a quantised row. All threads of the block call it.
__device__ inline void copy_row(const Prepared& x, const Quantized& from) {
#pragma unroll 4
    for (int group = threadIdx.x; group < x.groups; group += blockDim.x) {
        const uint4* at = reinterpret_cast<const uint4*>(from.values) + 2 * group;
        const uint4 low = at[0], high = at[1];
        uint4* const to = reinterpret_cast<uint4*>(x.words + 4 * group);
        to[0] = {low.x, high.x, low.y, high.y}, to[1] = {low.z, high.z, low.w, high.w};
        x.scales[group] = from.scales[group];
        if (OF_SUMS) {
            int sums[2] = {sum4(low.x) + sum4(low.y) + sum4(low.z) + sum4(low.w),
                           sum4(high.x) + sum4(high.y) + sum4(high.z) + sum4(high.w)};
            if (Of::RUNS == 1) sums[0] += sums[1];
#pragma unroll
            for (int run = 0; run < Of::RUNS; run++) x.put_sum(run, group, sums[run]);
        }
    }
    __syncthreads();
}

// Quantises a row, of which `value4` gives four values, numbers 4i to 4i + 3: eight lanes find a group's scale together.
// All threads of the block call it.
template <class Value4>
__device__ inline void quantize_row(const Prepared& x, Value4 value4) {
    const int lane = threadIdx.x % 32, part = lane % 8, fours = 8 * x.groups;
    for (int first = static_cast<int>(threadIdx.x) - lane, k = 0; first < fours; first += blockDim.x, k++) {
        const int i = first + lane, group = i / 8;
        float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (i < fours) four = value4(i, k);
        const float scale = scale_of_largest(largest_of_eight(largest_of(four)));
        const uint32_t word = quantized4(four, scale, inverse_of(scale));
        if (i < fours) reinterpret_cast<uint32_t*>(x.words + 4 * group + part % 4)[part / 4] = word;
        if (i < fours && part == 0) x.scales[group] = scale;
        if (OF_SUMS) {
            int sum = sum4(word);
            for (int apart = 4 / Of::RUNS; apart > 0; apart /= 2) sum += __shfl_xor_sync(FULL, sum, apart);
            if (i < fours && part % (8 / Of::RUNS) == 0) x.put_sum(part * Of::RUNS / 8, group, sum);
        }
    }
    __syncthreads();
}

// What the groups of a segment add to 16 outputs; and for int8 what that is multiplied by.
struct Terms {
    float* values;
    float* scales;
};

// Scales and minima of groups `number` and `number` + 1, of which the first is even, in a row of a piece.
template <class W>
__device__ inline void scales_of_two(const InPiece& row, int number, float (&scales)[2][2], float (&minima)[2][2]) {
    if constexpr (Same<W, Q4K>::value || Same<W, Q5K>::value) {
        six_bits_of_two(row.bytes, number, scales, minima);
    } else {
#pragma unroll
        for (int k = 0; k < 2; k++) scales_in<W>(row, number + k, scales[k], minima[k]);
    }
}

// Multiplies the chunk at `low` and `high`, a lane's two rows, with x from group `first` on, and leaves what its groups add in
// `terms` from `to` on.
__device__ inline void multiply_chunk(const InPiece& low, const InPiece& high, const Prepared& x, int first, const Terms& terms,
                                      int to) {
    const int lane = threadIdx.x % 32, row = lane / 4, thread = lane % 4;
    const int own = first + row;
    const uint2 of_x = own < x.groups ? x.words[4 * own + thread] : uint2{0, 0};
    int sums[2][2][2] = {};  // of each run, of the lane's groups, of its rows
    // Of groups that are not there too, whatever lies in their place.
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
            if (group >= x.groups) break;
            const auto& scale = scales[k];
            float x_sums[2] = {};
            int products[2] = {sums[0][k][of_two], sums[1][k][of_two]};
#pragma unroll
            for (int run = 0; run < OF_SUMS; run++) {
                x_sums[run] = x.sum(run, group);
                if (Of::OFFSET) products[run] -= Of::OFFSET * static_cast<int>(__float_as_uint(x_sums[run]));
            }
            const int at = (to + in_chunk) * NEXT_GROUP + row + 8 * of_two;
            if constexpr (APART) {
                terms.values[at] = static_cast<float>(products[0]);
                terms.scales[at] = __fmul_rn(x.scales[group], scale[0]);
            } else {
                terms.values[at] = term_of<WEIGHT>(scale, minima[k], products, x_sums);
            }
        }
    }
}

// Multiplies x with 16 rows of weights in each of `turns` turns: `row_of(turn, i)` gives row i, `input` leaves x in shared memory
// once it is there, and `finish(turn, sum, asked)` has the product of a row in the first lane of each half of a warp, that of row w
// in the first half of warp w and that of row w + 8 in the second, with what `early(turn)` asked for when the turn began. The ring
// is at `memory`, the terms at `for_terms`. Waits for the input; all threads of the block call it.
template <class RowOf, class Input, class Early, class Finish>
__device__ inline void stream(unsigned char* memory, float* for_terms, const Ring& ring, const Prepared& x, int turns, RowOf row_of, Input input,
                               Early early, Finish finish) {
    SHARED(uint64_t, arrivals, MOST_STAGES);
    SHARED(uint32_t, lows, MOST_STAGES * OUTPUTS);  // where in 16 bytes the rows of each stage begin
    const int warp = threadIdx.x / 32, groups = x.groups, stages = ring.stages, segment = ring.segment;
    const int of_segment = min(groups, segment);
    const int values_place = values_room(of_segment), room = row_room(of_segment), of_stage = OUTPUTS * room;
    const SharedPlace to_ring = shared_place(memory);
    From from = {};
    int next = 0, next_group = 0;
    // Each warp has two rows copied, by two lanes.
    auto ask = [&](int stage) {
        if (threadIdx.x % 32 >= 2 || next == turns) return;
        const int own = warp + threadIdx.x % 32 * 8, count = min(groups - next_group, segment);
        if (next_group == 0) from = row_of(next, own);
        const int low = from.low(), before = APART || Of::ALIGNED ? 0 : low;
        const SharedPlace to = to_ring + stage * of_stage + own * room;
        const int bytes = static_cast<int>(bytes_of<WEIGHT>(32 * count));
        if constexpr (APART) {
            const uint8_t* const scales = reinterpret_cast<const uint8_t*>(from.scales) - low;
            copy_async<2>(arrivals + stage, {{to, from.bytes, bytes}, {to + values_place, scales, up16(low + 4 * count)}});
            from.scales += segment;
        } else {
            copy_async<1>(arrivals + stage, {{to, from.bytes - before, up16(before + bytes)}});
        }
        if (APART || !Of::ALIGNED) lows[stage * OUTPUTS + own] = low;
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
            // The segment after this one has its terms beside these, and that after it comes once everybody is done with these.
            float* const own_terms = for_terms + place * of_terms * (APART ? 2 : 1);
            const Terms terms = {own_terms, own_terms + of_terms};
            const int end = min(groups - first, segment);
            wait_for_arrivals(arrivals + stage, parity);
            for (int own = CHUNK * warp; own < end; own += CHUNK * WARPS) {
                auto in_piece = [&](int i) {
                    const unsigned char* const at = memory + stage * of_stage + i * room;
                    const uint32_t low = APART || !Of::ALIGNED ? lows[stage * OUTPUTS + i] : 0;
                    return InPiece{at + (APART ? 0 : low) + own / CHUNK * CHUNK_BYTES,
                                   reinterpret_cast<const float*>(at + values_place + (APART ? low : 0)) + own};
                };
                multiply_chunk(in_piece(row), in_piece(row + 8), x, first + own, terms, own);
            }
            __syncthreads();
            // Everybody is done with the stage.
            ask(stage);
#pragma unroll 4
            for (int group = lane; group < end; group += LANES) {
                const int at = group * NEXT_GROUP + own_row;
                sum = __fmaf_rn(APART ? terms.scales[at] : x.scales[first + group], terms.values[at], sum);
            }
            place ^= 1;
            if (++stage == stages) stage = 0, parity ^= 1;
        }
        finish(turn, reduce_lanes(sum), asked);
    }
}

// What x is: int8 with scales where there are values; otherwise float32, which a block quantises itself, or makes the norm of
// first where there is a weight.
struct Source {
    Quantized quantized;
    Norm norm;
};

// Leaves x in shared memory. The weights of the norm are asked for when this is made.
struct OwnInput {
    static constexpr int FIRST = 4;  // fours of the weights that a thread has before there is an input
    const Source& source;
    const Prepared& x;
    float4 weights[FIRST];

    __device__ inline OwnInput(const Source& source, const Prepared& x) : source(source), x(x) {
        if (source.quantized.values || !source.norm.weight) return;
#pragma unroll
        for (int k = 0; k < FIRST; k++) {
            const int i = threadIdx.x + k * blockDim.x;
            if (i < 8 * x.groups) weights[k] = reinterpret_cast<const float4*>(source.norm.weight)[i];
        }
    }

    __device__ inline void make() {
        WAIT_FOR_INPUT();
        if (source.quantized.values) {
            copy_row(x, source.quantized);
            return;
        }
        const float4* const from = reinterpret_cast<const float4*>(source.norm.x);
        if (!source.norm.weight) {
            quantize_row(x, [&](int i, int) { return from[i]; });
            return;
        }
        // Where the terms will be.
        float* const row = x.behind();
        const int width = 32 * x.groups;
#pragma unroll 4
        for (int i = threadIdx.x; i < width / 4; i += blockDim.x) *reinterpret_cast<float4*>(row + place(4 * i)) = from[i];
        __syncthreads();
        const float scale = scale_of([&](int i) { return row[place(i)]; }, width, source.norm.eps);
        quantize_row(x, [&](int i, int k) {
            const float4 four = *reinterpret_cast<const float4*>(row + place(4 * i));
            float4 weight;
            if (k < FIRST) {
                weight = weights[0];
#pragma unroll
                for (int of = 1; of < FIRST; of++) weight = k == of ? weights[of] : weight;
            } else {
                weight = reinterpret_cast<const float4*>(source.norm.weight)[i];
            }
            auto normal = [&](float x, float weight) { return __fmul_rn(__fmul_rn(x, scale), weight); };
            return make_float4(normal(four.x, weight.x), normal(four.y, weight.y), normal(four.z, weight.z),
                               normal(four.w, weight.w));
        });
    }
};

// Number types of the cache, by the host's numbers.
enum CacheType { IN_F32, IN_F16, IN_BF16 };

__device__ inline void store_cached(void* cache, int type, long long i, float x) {
    if (type == IN_F32) {
        static_cast<float*>(cache)[i] = x;
    } else {
        static_cast<uint16_t*>(cache)[i] = type == IN_F16 ? float_to_half(x) : to_bf16(x);
    }
}

// Up to three products of a row x (I) with w (O, I), into out (O) each. Of a single product the sum with something else may be
// wanted too, with the bits of add; or results may be turned and cached, with the bits of rope and cache. I is a multiple of 32
// and, for a norm, up to KEPT. `tiles` is Σ ceil(O / 16); the ring has 2 to 4 stages of a
// multiple of 64 groups.
// Grid: up to `tiles`, as many as there is room for; block 256; shared memory: the ring, x, and the terms of two segments, or
// the row of which the norm is made.
KERNEL_WITH(256, 2) stream_q8_1(Products products, Source source, int tiles, Added added, int cache_type, Ring ring, Turns turns) {
    LET_NEXT_START();
    DYNAMIC_SHARED(unsigned char, memory);
    const Prepared x = prepared(memory, ring, products.of[0].matrix.inputs);
    OwnInput own(source, x);
    // Of pairs that are turned the second half of a tile has the second values.
    const int warp = threadIdx.x / 32, second = threadIdx.x % 32 / HALF;
    struct Unit {
        int product, output, pair;
    };
    auto unit_of = [&](int turn, int row, int second) {
        const Part part = part_of(products, blockIdx.x + turn * gridDim.x, OUTPUTS);
        if (turns.at(part.product).out) {
            const Turns::Place place = turns.place(part.first / 2 + row);
            return Unit{part.product, second ? place.second : place.first, place.pair};
        }
        return Unit{part.product, part.first + second * 8 + row, 0};
    };
    auto row_of = [&](int turn, int i) {
        const Unit unit = unit_of(turn, i % 8, i / 8);
        const Matrix& matrix = products.of[unit.product].matrix;
        return from_of(matrix, min(unit.output, matrix.outputs - 1));
    };
    // What is added, or by what it is turned.
    auto early = [&](int turn) {
        const Unit unit = unit_of(turn, warp, second);
        if (turns.at(unit.product).out) return float2{turns.cos[unit.pair], turns.sin[unit.pair]};
        const bool there = added.sum && unit.output < products.of[unit.product].matrix.outputs;
        return float2{there ? added.to[unit.output] : 0.0f, 0.0f};
    };
    const int own_turns = turns_of(tiles);
    stream(memory, x.behind(), ring, x, own_turns, row_of, [&] { own.make(); }, early, [&](int turn, float sum, float2 asked) {
        const Unit unit = unit_of(turn, warp, second);
        const Product& product = products.of[unit.product];
        const int outputs = product.matrix.outputs;
        const bool there = unit.output < outputs && threadIdx.x % HALF == 0;
        const float out = finished<F32>(sum, product.bias, min(unit.output, outputs - 1));
        // Of a pair each half has one.
        const float other = __shfl_xor_sync(FULL, out, HALF);
        if (!there) return;
        const Turned turned = turns.at(unit.product);
        product.out[unit.output] = out;
        if (added.sum) added.sum[unit.output] = __fadd_rn(turned.out ? added.to[unit.output] : asked.x, out);
        float cached = out;
        if (turned.out) {
            const float cos = asked.x, sin = asked.y;
            cached = second ? __fadd_rn(__fmul_rn(other, sin), __fmul_rn(out, cos))
                            : __fsub_rn(__fmul_rn(out, cos), __fmul_rn(other, sin));
            turned.out[unit.output] = cached;
        }
        if (turned.cache) {
            store_cached(turned.cache, cache_type, static_cast<long long>(turns.span->start) * outputs + unit.output, cached);
        }
    });
}

// The gated half of the feed-forward network (Shazeer, 2020): gate = x · w1ᵀ, silu(gate), up = x · w3ᵀ and silu · up, (F) each, with
// the bits of silu and mul; x as for stream_q8_1. The first half of a tile has rows of gate, the second the same of up. 32 hidden
// values one after the other are a block's. Where `to` is somewhere they go there too, quantised; F is a multiple of 32 then.
// Grid: up to ceil(F / 32), as many as there is room for; block 256; shared memory as above.
KERNEL_WITH(256, 2) stream_gated_q8_1(Gated gated, Source source, Quantized to, Ring ring) {
    LET_NEXT_START();
    constexpr int EACH = OUTPUTS / 2, TURNS = TILE / EACH;
    DYNAMIC_SHARED(unsigned char, memory);
    SHARED(float, hidden, 2 * TILE);
    const Prepared x = prepared(memory, ring, gated.gate.inputs);
    OwnInput own(source, x);
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
        const float out = finished<F32>(sum, lane < HALF ? gated.gate_bias : gated.up_bias, min(output, outputs - 1));
        const float up = __shfl_xor_sync(FULL, out, HALF);
        if (lane == 0 && output < outputs) {
            const float silu = silu_of_ops(out), product = __fmul_rn(silu, up);
            gated.gate_out[output] = out, gated.up_out[output] = up, gated.silu[output] = silu, gated.hidden[output] = product;
            tile[output % TILE] = product;
        }
        if (!to.values || turn % TURNS != TURNS - 1) return;
        // Those of the 32 after these lie beside them, and nobody comes to the next before all are done with these.
        __syncthreads();
        if (warp == 0) quantize_group(tile[lane], to, output / TILE * TILE);
    });
}

#define KERNELS_OF_THIS_FILE(X) X(stream_q8_1) X(stream_gated_q8_1)
