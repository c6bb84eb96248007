// Cached keys and values. CACHE is F32, F16 or BF16.
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

// Eight neighbouring cached values, whose load may still be in progress.
struct Eight {
    uint4 low;
    uint4 high;  // the last four values, if the cache is float32
};

// Starts to load eight values. The address is a multiple of 16 bytes.
__device__ inline Eight ask_cached8(const Cached* from) {
    const uint4* at = reinterpret_cast<const uint4*>(from);
    if constexpr (Same<CACHE, F32>::value) return {at[0], at[1]};
    return {at[0], {}};
}

// Waits for the load, and converts the values to float32.
__device__ inline void widen_cached8(const Eight& eight, float (&out)[8]) {
    if constexpr (Same<CACHE, F32>::value) {
        const uint32_t words[8] = {eight.low.x,  eight.low.y,  eight.low.z,  eight.low.w,
                                   eight.high.x, eight.high.y, eight.high.z, eight.high.w};
#pragma unroll
        for (int i = 0; i < 8; i++) out[i] = __uint_as_float(words[i]);
    } else {
        widen8<CACHE>(eight.low, out);
    }
}

__device__ inline void load_cached8(const Cached* from, float (&out)[8]) { widen_cached8(ask_cached8(from), out); }
