// Rows of weights in any number type, converted to float32. Floats are converted exactly, blocks and int8 with scales
// by the formula of their format. If PRECISION is bfloat16, the results are rounded.
#pragma once
#include "blocks.cuh"

// A row of a Matrix. All fields except `bytes` are only for int8: the scale of the row's first value, the index of this
// value in the scale's group, and the number of values that share a scale.
struct Row {
    const uint8_t* bytes;
    const float* scales;
    uint32_t first, group;
};

template <class W>
constexpr bool IS_BLOCKS = !(Same<W, F32>::value || Same<W, F16>::value || Same<W, BF16>::value || Same<W, I8>::value);

template <class W>
__device__ inline long long bytes_of(long long inputs) {
    if constexpr (Same<W, F32>::value) {
        return 4 * inputs;
    } else if constexpr (Same<W, I8>::value) {
        return inputs;
    } else if constexpr (IS_BLOCKS<W>) {
        return inputs / W::VALUES * W::BYTES;
    } else {
        return 2 * inputs;
    }
}

template <class W>
__device__ inline Row row_of(const Matrix& matrix, int row) {
    const uint8_t* bytes = static_cast<const uint8_t*>(matrix.values) + row * bytes_of<W>(matrix.inputs);
    if constexpr (!Same<W, I8>::value) {
        return {bytes, nullptr, 0, 0};
    } else {
        // A division takes many instructions, especially with 64 bits. So there is only one.
        const long long first = matrix.first + static_cast<long long>(row) * matrix.inputs;
        const long long before = first / matrix.group;
        const uint32_t group = matrix.group;
        return {bytes, matrix.scales + before, static_cast<uint32_t>(first - before * group), group};
    }
}

// A weight rounded to PRECISION.
template <class W, class P>
__device__ inline float used(float weight) {
    return Same<W, BF16>::value ? weight : rounded<P>(weight);
}

// Returns value i of a row, for code that need not be fast.
template <class W, class P>
__device__ inline float weight_at(const Row& row, int i) {
    float value;
    if constexpr (Same<W, F32>::value) {
        value = reinterpret_cast<const float*>(row.bytes)[i];
    } else if constexpr (Same<W, I8>::value) {
        float q = static_cast<float>(reinterpret_cast<const int8_t*>(row.bytes)[i]);
        value = __fmul_rn(q, row.scales[(row.first + i) / row.group]);
    } else if constexpr (IS_BLOCKS<W>) {
        value = value_of(group_of<W>(row.bytes, i / 32), i % 32);
    } else {
        value = widen16(W{}, reinterpret_cast<const uint16_t*>(row.bytes)[i]);
    }
    return used<W, P>(value);
}

// The part of a row that a lane of a product reads together: 16 bytes of it, or 32 values of a block. `load` starts to
// load it, and `widen` waits for it and converts it.
template <class W>
struct Unit {
    static constexpr int VALUES = 32;
    using Raw = Group<W>;
    static __device__ inline Raw load(const Row& row, int unit) { return group_of<W>(row.bytes, unit); }
    static __device__ inline void widen(const Raw& raw, float (&out)[VALUES]) {
#pragma unroll
        for (int i = 0; i < VALUES; i++) out[i] = value_of(raw, i);
    }
};

template <>
struct Unit<F32> {
    static constexpr int VALUES = 4;
    using Raw = float4;
    static __device__ inline Raw load(const Row& row, int unit) {
        return reinterpret_cast<const float4*>(row.bytes)[unit];
    }
    static __device__ inline void widen(const Raw& raw, float (&out)[VALUES]) {
        out[0] = raw.x, out[1] = raw.y, out[2] = raw.z, out[3] = raw.w;
    }
};

template <class W>
struct Unit16 {
    static constexpr int VALUES = 8;
    using Raw = uint4;
    static __device__ inline Raw load(const Row& row, int unit) {
        return reinterpret_cast<const uint4*>(row.bytes)[unit];
    }
    static __device__ inline void widen(const Raw& raw, float (&out)[VALUES]) { widen8<W>(raw, out); }
};
template <>
struct Unit<F16> : Unit16<F16> {};
template <>
struct Unit<BF16> : Unit16<BF16> {};

// Int8 values in groups that begin and end at multiples of 16 values.
template <>
struct Unit<I8> {
    static constexpr int VALUES = 16;
    struct Raw {
        uint4 q;
        float scale;
    };
    static __device__ inline Raw load(const Row& row, int unit) {
        return {reinterpret_cast<const uint4*>(row.bytes)[unit], row.scales[(row.first + unit * VALUES) / row.group]};
    }
    static __device__ inline void widen(const Raw& raw, float (&out)[VALUES]) {
        const uint32_t words[4] = {raw.q.x, raw.q.y, raw.q.z, raw.q.w};
#pragma unroll
        for (int i = 0; i < VALUES; i++) {
            out[i] = __fmul_rn(static_cast<float>(static_cast<int8_t>(words[i / 4] >> (i % 4 * 8))), raw.scale);
        }
    }
};
