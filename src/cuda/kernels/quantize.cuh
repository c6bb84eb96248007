// int8 quantisation in groups, with the bits of ops/quantize.rs. Halves are rounded away from zero; a group with what is not a
// number has a scale that is none either.
#pragma once
#include "common.cuh"

// The larger of two magnitudes, or the one that is not a number.
__device__ inline float larger_or_none(float max, float x) { return x > max || x != x ? x : max; }

__device__ inline float scale_of_largest(float largest) { return __fdiv_rn(largest, 127.0f); }

// x in units of the scale.
__device__ inline int quantized(float x, float scale) {
    float exact = __fdiv_rn(x, scale), whole = truncf(exact);
    float away = fabsf(__fsub_rn(exact, whole)) >= 0.5f ? copysignf(1.0f, exact) : 0.0f;
    float q = __fadd_rn(whole, away);
    // As a conversion in Rust: saturated, and what is not a number is 0.
    return q != q ? 0 : static_cast<int>(fminf(fmaxf(q, -128.0f), 127.0f));
}

// The same of several x, with one division for all: a product with the inverse is within 2⁻¹⁵ of the quotient, and rounds alike
// but next to the middle between two whole numbers. There, and where something is not a number, x is divided.
struct Units {
    float scale, inverse;

    __device__ inline explicit Units(float scale) : scale(scale), inverse(__fdiv_rn(1.0f, scale)) {}
    __device__ inline int of(float x) const {
        const float near = __fmul_rn(x, inverse), whole = truncf(near);
        const float beyond = __fsub_rn(fabsf(__fsub_rn(near, whole)), 0.5f);
        if (!(fabsf(beyond) > 1.0f / 1024.0f)) return quantized(x, scale);
        return static_cast<int>(beyond > 0.0f ? __fadd_rn(whole, copysignf(1.0f, near)) : whole);
    }
};

// Where quantised rows go: values (rows, width) and scales (rows, width / 32).
struct Quantized {
    int8_t* values;
    float* scales;
};

// Value `x` of each lane is one of a group of 32, `first` the number of the group's first value.
__device__ inline void quantize_group(float x, const Quantized& to, long long first) {
    float largest = fabsf(x);
    // What is not a number stays: the first of a comparison is never taken for a larger one.
    for (int apart = 16; apart > 0; apart /= 2) largest = larger_or_none(largest, __shfl_xor_sync(FULL, largest, apart));
    const float scale = scale_of_largest(largest);
    const int lane = threadIdx.x % 32;
    if (lane == 0) to.scales[first / 32] = scale;
    to.values[first + lane] = static_cast<int8_t>(quantized(x, scale));
}
