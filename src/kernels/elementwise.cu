// Elementwise operations, with the bits of ops/elementwise.rs and ops/swiglu.rs. -DPRECISION.
//
// All kernels: grid (ceil(count / 512)), block 128. A thread computes four values. From one to the next, the index
// increases by the number of threads in a block. So neighbouring threads read neighbouring values, whatever the address
// is.
#include "common.cuh"

constexpr int EACH_THREAD = 4;

// Calls `apply` with the index of each value of this thread.
template <class Apply>
__device__ inline void each(long long count, Apply apply) {
    long long first = static_cast<long long>(blockIdx.x) * EACH_THREAD * blockDim.x + threadIdx.x;
#pragma unroll
    for (int k = 0; k < EACH_THREAD; k++) {
        long long i = first + k * static_cast<long long>(blockDim.x);
        if (i < count) apply(i);
    }
}

// out = silu(x) = x / (1 + e^−x).
KERNEL(128) silu(const float* x, long long count, float* out) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    each(count, [&](long long i) { out[i] = rounded<PRECISION>(silu_to_round<PRECISION>(x[i])); });
}

// out = a · b.
KERNEL(128) mul(const float* a, const float* b, long long count, float* out) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    each(count, [&](long long i) { out[i] = rounded<PRECISION>(__fmul_rn(a[i], b[i])); });
}

// silu = silu(gate), and hidden = silu · up, with the bits of silu and mul.
KERNEL(128) silu_mul(const float* gate, const float* up, long long count, float* silu, float* hidden) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    each(count, [&](long long i) {
        const float x = rounded<PRECISION>(silu_to_round<PRECISION>(gate[i]));
        silu[i] = x, hidden[i] = rounded<PRECISION>(__fmul_rn(x, up[i]));
    });
}

// out = a + b.
KERNEL(128) add(const float* a, const float* b, long long count, float* out) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    each(count, [&](long long i) { out[i] = rounded<PRECISION>(__fadd_rn(a[i], b[i])); });
}

// out = x: copies a recorded stage to memory that the host can read.
KERNEL(128) copy(const float* x, long long count, float* out) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    each(count, [&](long long i) { out[i] = x[i]; });
}

// out = x in bfloat16, rounded to the nearest, ties to even, as tensor cores read it.
KERNEL(128) narrow(const float* x, long long count, uint16_t* out) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    each(count, [&](long long i) { out[i] = to_bf16(x[i]); });
}

// The inverse of narrow, without loss if the values were bfloat16 values before narrow.
KERNEL(128) widen_all(const uint16_t* x, long long count, float* out) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    each(count, [&](long long i) { out[i] = from_bf16(x[i]); });
}

#define KERNELS_OF_THIS_FILE(X) X(silu) X(mul) X(silu_mul) X(add) X(copy) X(narrow) X(widen_all)
