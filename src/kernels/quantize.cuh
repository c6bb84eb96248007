// int8 quantisation in groups, with the bits of ops/quantize.rs. Ties are rounded away from zero. A group with NaN has
// the scale NaN.
#pragma once
#include "common.cuh"

// Returns the larger of two absolute values, or NaN if one of them is NaN.
__device__ inline float larger_or_none(float max, float x) { return x > max || x != x ? x : max; }

__device__ inline float scale_of_largest(float largest) { return __fdiv_rn(largest, 127.0f); }

// Returns x / scale, rounded to an integer.
__device__ inline int quantized(float x, float scale) {
    float exact = __fdiv_rn(x, scale), whole = truncf(exact);
    float away = fabsf(__fsub_rn(exact, whole)) >= 0.5f ? copysignf(1.0f, exact) : 0.0f;
    float q = __fadd_rn(whole, away);
    // Like a conversion in Rust: the result saturates, and NaN becomes 0.
    return q != q ? 0 : static_cast<int>(fminf(fmaxf(q, -128.0f), 127.0f));
}

// Returns the argument `inverse` of quantized4: approximately 1 / scale, or -∞ if the scale is subnormal, 0 or NaN.
__device__ inline float inverse_of(float scale) { return scale >= 0x1p-126f ? near_inverse(scale) : minus_infinity(); }

// `quantized` of four neighbouring values of a group, as bytes. If the product x · inverse already shows which integer
// is the nearest, there is no division. The product differs from the rounded x / scale by at most 127 · 2⁻²¹.
__device__ inline uint32_t quantized4(const float4& x, float scale, float inverse) {
    // Adding this number rounds a value to an integer, which is then in the low bits of the sum.
    constexpr float ROUND = 12582912.0f;
    // If a value is closer to the middle between two integers than this allows, the division decides.
    constexpr float SURE = 0.4999f;
    bool sure = true;
    auto near = [&](float x) {
        const float exact = __fmul_rn(x, inverse), shifted = __fadd_rn(exact, ROUND);
        // This comparison is false for values that are not finite.
        sure = sure && fabsf(__fsub_rn(exact, __fsub_rn(shifted, ROUND))) < SURE;
        return __float_as_uint(shifted) & 0xff;
    };
    const uint32_t bytes = near(x.x) | near(x.y) << 8 | near(x.z) << 16 | near(x.w) << 24;
    if (sure) return bytes;
    uint32_t exact = 0;
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
        const float of = i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
        exact |= (static_cast<uint32_t>(quantized(of, scale)) & 0xff) << (8 * i);
    }
    return exact;
}

// Returns the largest absolute value of four values, or NaN if one is NaN.
__device__ inline float largest_of(const float4& x) {
    return larger_or_none(larger_or_none(larger_or_none(fabsf(x.x), fabsf(x.y)), fabsf(x.z)), fabsf(x.w));
}

// Returns the largest of the values of 8 lanes, or NaN, in each of these lanes.
__device__ inline float largest_of_eight(float largest) {
    for (int apart = 4; apart > 0; apart /= 2) largest = larger_or_none(largest, __shfl_xor_sync(FULL, largest, apart));
    return largest;
}

// The outputs for quantised rows: values (rows, width) and scales (rows, width / 32).
struct Quantized {
    int8_t* values;
    float* scales;
};

// Quantises a group of 32 values, of which each lane has one in `x`. `first` is the index of the group's first value.
__device__ inline void quantize_group(float x, const Quantized& to, long long first) {
    float largest = fabsf(x);
    // If a value is NaN, the maximum is NaN: `x > NaN` is false, so a maximum that is NaN is kept.
    for (int apart = 16; apart > 0; apart /= 2) largest = larger_or_none(largest, __shfl_xor_sync(FULL, largest, apart));
    const float scale = scale_of_largest(largest);
    const int lane = threadIdx.x % 32;
    if (lane == 0) to.scales[first / 32] = scale;
    to.values[first + lane] = static_cast<int8_t>(quantized(x, scale));
}
