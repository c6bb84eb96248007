// Keys and values as they are cached: CACHE is F32, F16 or BF16.
#pragma once
#include "common.cuh"

template <class T>
struct CachedAs {
    using Type = uint16_t;
};
template <>
struct CachedAs<F32> {
    using Type = float;
};
using Cached = CachedAs<CACHE>::Type;

__device__ inline float narrowed(F32, float x) { return x; }
__device__ inline uint16_t narrowed(F16, float x) { return float_to_half(x); }
__device__ inline uint16_t narrowed(BF16, float x) { return to_bf16(x); }

__device__ inline float widen_cached(float x) { return x; }
__device__ inline float widen_cached(uint16_t x) {
    if constexpr (Same<CACHE, F16>::value) return half_to_float(x);
    return from_bf16(x);
}

// Eight neighbouring values as float32, from an address where 16 bytes load at once.
__device__ inline void load_cached8(const float* from, float (&out)[8]) { load8(from, out); }
__device__ inline void load_cached8(const uint16_t* from, float (&out)[8]) {
    uint4 words = *reinterpret_cast<const uint4*>(from);
    if constexpr (Same<CACHE, F16>::value) {
        widen8<F16>(words, out);
    } else {
        widen8<BF16>(words, out);
    }
}
