// Products in whole numbers of one row, as a decode pass has it, with all that comes before and after them (stream.cuh).
// -DWEIGHT (I8 or a format).
#include "stream.cuh"

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
// and, for a norm, up to KEPT. `units` is Σ ceil(O / ROWS).
// Grid: up to ceil(units / 8), as many as there is room for; block 256; shared memory: the ring, x, and for a norm 4 · (I + 16 ·
// ⌊I / 1024⌋) bytes.
KERNEL_WITH(256, 4) stream_q8_1(Products products, Source source, int units, Added added, int cache_type, Turns turns) {
    LET_NEXT_START();
    DYNAMIC_SHARED(unsigned char, memory);
    const Prepared x(memory + RING, products.of[0].matrix.inputs / 32);
    OwnInput own(source, x);
    // A team's row among those of its half of the warp. Of pairs that are turned half 1 has the second values.
    const int warps = gridDim.x * WARPS, second = threadIdx.x % 32 / HALF, row = threadIdx.x % HALF / Of::TEAM;
    // Neighbouring blocks have neighbouring rows, so that those of the last turn are everywhere.
    const int first = threadIdx.x / 32 * gridDim.x + blockIdx.x;
    const int own_units = first < units ? ceil_div(units - first, warps) : 0;
    struct Unit {
        int product, output, pair;
    };
    auto unit_of = [&](int turn) {
        const Part part = part_of(products, first + turn * warps, ROWS);
        if (turns.at(part.product).out) {
            const Turns::Place place = turns.place(part.first / 2 + row);
            return Unit{part.product, second ? place.second : place.first, place.pair};
        }
        return Unit{part.product, part.first + second * OF_HALF + row, 0};
    };
    auto row_of = [&](int turn) {
        const Unit unit = unit_of(turn);
        const Matrix& matrix = products.of[unit.product].matrix;
        return from_of(matrix, min(unit.output, matrix.outputs - 1));
    };
    // What is added, or by what it is turned.
    auto early = [&](int turn) {
        const Unit unit = unit_of(turn);
        if (turns.at(unit.product).out) return float2{turns.cos[unit.pair], turns.sin[unit.pair]};
        const bool there = added.sum && unit.output < products.of[unit.product].matrix.outputs;
        return float2{there ? added.to[unit.output] : 0.0f, 0.0f};
    };
    stream(memory, x, own_units, row_of, [&] { own.make(); }, early, [&](int turn, float sum, float2 asked) {
        const Unit unit = unit_of(turn);
        const Product& product = products.of[unit.product];
        const int outputs = product.matrix.outputs;
        const bool there = unit.output < outputs && threadIdx.x % Of::TEAM == 0;
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
// the bits of silu and mul; x as for stream_q8_1. Half 0 of a warp has rows of gate, half 1 the same of up. A tile of 32 hidden
// values is a block's. Where `to` is somewhere they go there too, quantised; F is a multiple of 32 then.
// Grid: up to ceil(F / 32), as many as there is room for; block 256; shared memory as above.
KERNEL_WITH(256, 4) stream_gated_q8_1(Gated gated, Source source, Quantized to) {
    LET_NEXT_START();
    constexpr int TURNS = TILE / WARPS / OF_HALF;
    DYNAMIC_SHARED(unsigned char, memory);
    SHARED(float, hidden, 2 * TILE);
    const Prepared x(memory + RING, gated.gate.inputs / 32);
    OwnInput own(source, x);
    const int outputs = gated.gate.outputs, tiles = ceil_div(outputs, TILE), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int block = blockIdx.x, own_tiles = block < tiles ? ceil_div(tiles - block, gridDim.x) : 0;
    auto in_tile = [&](int turn) { return TILE / WARPS * warp + turn % TURNS * OF_HALF + lane % HALF / Of::TEAM; };
    auto first_of = [&](int turn) { return (block + turn / TURNS * static_cast<int>(gridDim.x)) * TILE; };
    auto row_of = [&](int turn) {
        const Matrix& matrix = lane < HALF ? gated.gate : gated.up;
        return from_of(matrix, min(first_of(turn) + in_tile(turn), outputs - 1));
    };
    auto early = [](int) { return 0; };
    stream(memory, x, own_tiles * TURNS, row_of, [&] { own.make(); }, early, [&](int turn, float sum, int) {
        float* const tile = hidden + turn / TURNS % 2 * TILE;
        const int first = first_of(turn), output = first + in_tile(turn);
        const float out = finished<F32>(sum, lane < HALF ? gated.gate_bias : gated.up_bias, min(output, outputs - 1));
        const float up = __shfl_xor_sync(FULL, out, HALF);
        if (lane < HALF && lane % Of::TEAM == 0 && output < outputs) {
            const float silu = silu_of_ops(out), product = __fmul_rn(silu, up);
            gated.gate_out[output] = out, gated.up_out[output] = up, gated.silu[output] = silu, gated.hidden[output] = product;
            tile[in_tile(turn)] = product;
        }
        if (!to.values || turn % TURNS != TURNS - 1) return;
        // Those of the tile after this one lie beside them, and nobody comes to the next before all are done with these.
        __syncthreads();
        if (warp == 0) quantize_group(tile[lane], to, first);
    });
}

#define KERNELS_OF_THIS_FILE(X) X(stream_q8_1) X(stream_gated_q8_1)
