// Shared code of the kernels for one row of x (stream_q8.cu, stream_tiles.cu): loading x into shared memory, and the
// operations after a sum.
//
// A block prepares x once. It copies a quantised row, or it quantises float32 values to int8, or it computes the norm
// of a row and quantises it (with the bits of rms_norm and quantize).
#pragma once
#include "stream.cuh"

// Number of sums of x that the products need in each group. A format with minima needs them as float32, and a format
// with an offset needs them as integers.
constexpr int OF_SUMS = Of::MINIMA || Of::OFFSET ? Of::RUNS : 0;

// The row of x in the shared memory of a block: the words of each group, in a layout that the reading kernel chooses; a
// scale for each group; and sums.
struct Row8 {
    unsigned char* words;
    float* scales;
    float* sums;
    int groups;

    __device__ inline Row8(unsigned char* memory, int groups) : words(memory), groups(groups) {
        scales = reinterpret_cast<float*>(words + 32 * groups);
        sums = scales + up4(groups);
    }
    // The memory after this row.
    __device__ inline float* behind() const { return sums + OF_SUMS * up4(groups); }
    __device__ inline float& sum(int run, int group) const { return sums[run * up4(groups) + group]; }
    __device__ inline void put_sum(int run, int group, int of_run) const {
        sum(run, group) = Of::MINIMA ? static_cast<float>(of_run) : __uint_as_float(static_cast<uint32_t>(of_run));
    }
};

// Copies a quantised row. All threads of the block call it.
template <class X>
__device__ inline void copy_row(const X& x, const Quantized& from) {
#pragma unroll 4
    for (int group = threadIdx.x; group < x.groups; group += blockDim.x) {
        const uint4* at = reinterpret_cast<const uint4*>(from.values) + 2 * group;
        const uint4 low = at[0], high = at[1];
        x.put(group, low, high);
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

// Quantises a row. `value4` returns four values, numbers 4i to 4i + 3. Eight lanes compute a group's scale together.
// All threads of the block call it.
template <class X, class Value4>
__device__ inline void quantize_row(const X& x, Value4 value4) {
    const int lane = threadIdx.x % 32, part = lane % 8, fours = 8 * x.groups;
    for (int first = static_cast<int>(threadIdx.x) - lane, k = 0; first < fours; first += blockDim.x, k++) {
        const int i = first + lane, group = i / 8;
        float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (i < fours) four = value4(i, k);
        const float scale = scale_of_largest(largest_of_eight(largest_of(four)));
        const uint32_t word = quantized4(four, scale, inverse_of(scale));
        if (i < fours) x.put_word(group, part, word);
        if (i < fours && part == 0) x.scales[group] = scale;
        if (OF_SUMS) {
            int sum = sum4(word);
            for (int apart = 4 / Of::RUNS; apart > 0; apart /= 2) sum += __shfl_xor_sync(FULL, sum, apart);
            if (i < fours && part % (8 / Of::RUNS) == 0) x.put_sum(part * Of::RUNS / 8, group, sum);
        }
    }
    __syncthreads();
}

// The source of x. If `quantized` has values, x is int8 with scales. Otherwise x is float32, and a block quantises it.
// If `norm` has a weight, a block computes the norm first.
struct Source {
    Quantized quantized;
    Norm norm;
};

// Writes x to shared memory. The constructor already loads the norm's weights.
template <class X>
struct OwnInput {
    static constexpr int FIRST = 4;  // weights (in fours) that a thread loads before the input is complete
    const Source& source;
    const X& x;
    float4 weights[FIRST];

    __device__ inline OwnInput(const Source& source, const X& x) : source(source), x(x) {
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

// Number types of the cache, numbered as in the host code.
enum CacheType { IN_F32, IN_F16, IN_BF16 };

__device__ inline void store_cached(void* cache, int type, long long i, float x) {
    if (type == IN_F32) {
        static_cast<float*>(cache)[i] = x;
    } else {
        static_cast<uint16_t*>(cache)[i] = type == IN_F16 ? float_to_half(x) : to_bf16(x);
    }
}

// An output: the number of its product, and its number in the product. If it is rotated, also the number of its pair in
// the head.
struct Output {
    int product, number, pair;
};

// Returns output number `row` in the first or the second half of a unit. Each half has EACH outputs. If outputs are
// rotated, the second half has the second values of the pairs.
template <int EACH>
__device__ inline Output output_of(const Products& products, const Turns& turns, int unit, int row, int second) {
    const Part part = part_of(products, unit, 2 * EACH);
    if (turns.at(part.product).out) {
        const Turns::Place place = turns.place(part.first / 2 + row);
        return {part.product, second ? place.second : place.first, place.pair};
    }
    return {part.product, part.first + second * EACH + row, 0};
}

__device__ inline From from_of(const Products& products, const Output& output) {
    const Matrix& matrix = products.of[output.product].matrix;
    return from_of(matrix, min(output.number, matrix.outputs - 1));
}

// The operations after the products.
struct Finish {
    const Products& products;
    const Added& added;
    const Turns& turns;
    int cache_type;

    // Loads the value that is added to an output, or the cosine and sine that rotate it. This is called early.
    __device__ inline float2 ask(const Output& output) const {
        if (turns.at(output.product).out) return {turns.cos[output.pair], turns.sin[output.pair]};
        const bool there = added.sum && output.number < products.of[output.product].matrix.outputs;
        return {there ? added.to[output.number] : 0.0f, 0.0f};
    }

    // Writes an output. The first lane of each half of a warp has a sum. If outputs are rotated, each half has one
    // value of a pair.
    __device__ inline void write(const Output& output, float sum, float2 asked) const {
        const Product& product = products.of[output.product];
        const int outputs = product.matrix.outputs, second = threadIdx.x % 32 / HALF;
        const float out = finished<F32>(sum, product.bias, min(output.number, outputs - 1));
        const float other = __shfl_xor_sync(FULL, out, HALF);
        if (threadIdx.x % HALF != 0 || output.number >= outputs) return;
        const Turned turned = turns.at(output.product);
        product.out[output.number] = out;
        if (added.sum) added.sum[output.number] = __fadd_rn(turned.out ? added.to[output.number] : asked.x, out);
        float cached = out;
        if (turned.out) {
            const float cos = asked.x, sin = asked.y;
            cached = second ? __fadd_rn(__fmul_rn(other, sin), __fmul_rn(out, cos))
                            : __fsub_rn(__fmul_rn(out, cos), __fmul_rn(other, sin));
            turned.out[output.number] = cached;
        }
        if (turned.cache) {
            store_cached(turned.cache, cache_type, static_cast<long long>(turns.span->start) * outputs + output.number, cached);
        }
    }
};

// Computes silu · up of one output, in the first lane. The first lane of the warp has the sum of gate, and the first
// lane of its second half has the sum of up.
__device__ inline float finish_gated(const Gated& gated, int output, float sum) {
    const int lane = threadIdx.x % 32, outputs = gated.gate.outputs;
    const float out = finished<F32>(sum, lane < HALF ? gated.gate_bias : gated.up_bias, min(output, outputs - 1));
    const float up = __shfl_xor_sync(FULL, out, HALF);
    const float silu = silu_of_ops(out), product = __fmul_rn(silu, up);
    if (lane == 0 && output < outputs) {
        gated.gate_out[output] = out, gated.up_out[output] = up, gated.silu[output] = silu, gated.hidden[output] = product;
    }
    return product;
}
