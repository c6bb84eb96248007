// Shared code of all kernels: number types, rounding, the order of sums, and functions that the emulation replaces by
// its own (emulate.hpp).
//
// Every kernel computes the operation of the same name in ops/ (`llama_trace_core::ops`). The kernel's comment says
// whether its results have the same bits ("with the bits of …"). If they do, it multiplies and adds with __fmul_rn and
// __fadd_rn, which the compiler never contracts to an FMA.
//
// A kernel begins with LET_NEXT_START. Every thread calls WAIT_FOR_INPUT before it reads another kernel's output, and
// before it writes anything. Between the two calls it may read weights. So in a programmatic dependent launch, a kernel
// has its first weights in registers when the previous kernel ends. The first two kernels of a pass, embedding and
// rope_table, wait before they let the next kernel start. So later kernels may read two more things as early as
// weights: the output of embedding, and the results of all work before these two kernels.
#pragma once

#ifndef LLT_EMULATED
using int8_t = signed char;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;
using uintptr_t = unsigned long long;

// If a single kernel of a file is compiled (-DALONE), each kernel is a template, and the compiler generates only the
// requested one.
#ifdef ALONE
#define ENTRY template <int = 0> __global__ void
#else
#define ENTRY extern "C" __global__ void
#endif
// Declares a kernel for blocks of at most `threads` threads.
#define KERNEL(threads) ENTRY __launch_bounds__(threads)
// Declares a kernel that uses so few registers that `blocks` blocks fit on a multiprocessor at the same time.
#define KERNEL_WITH(threads, blocks) ENTRY __launch_bounds__(threads, blocks)
// Declares a function that is not inlined, so that its callers share one copy of the code.
#define ONE_COPY __noinline__ __device__

// Shared memory of a block: `count` values of `type`, aligned to 16 bytes.
#define SHARED(type, name, count) __shared__ __align__(16) type name[count]
// Shared memory whose size is an argument of the launch.
extern __shared__ __align__(16) unsigned char dynamic_shared[];
#define DYNAMIC_SHARED(type, name) type* const name = reinterpret_cast<type*>(dynamic_shared)

#if __CUDA_ARCH__ >= 900
#define LET_NEXT_START() asm volatile("griddepcontrol.launch_dependents;" ::: "memory")
#define WAIT_FOR_INPUT() asm volatile("griddepcontrol.wait;" ::: "memory")
#else
#define LET_NEXT_START()
#define WAIT_FOR_INPUT()
#endif

__device__ inline float half_to_float(uint16_t half) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half));
    return x;
}
__device__ inline uint16_t float_to_half(float x) {
    uint16_t half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return half;
}

// sum + Σ a·b over four signed bytes each. (It is PTX, because NVRTC 12.0 mistakes __dp4a for a user-defined function.)
__device__ inline int dot4(uint32_t a, uint32_t b, int sum) {
    int out;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(sum));
    return out;
}

// 2^x with an error of at most 2⁻²², and 1/x with an error of at most 2⁻²³ (PTX: ex2.approx.ftz, rcp.approx.ftz).
// Subnormal arguments count as 0, and subnormal results become 0.
__device__ inline float near_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ inline float near_inverse(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Returns x, and hides from the compiler how it was computed. Otherwise the compiler would compute it again at each
// use.
__device__ inline int known_later(int x) {
    int y;
    asm volatile("mov.b32 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

// Loads 16 bytes that a block reads only once, such as most weights. The load bypasses the first-level cache, which is
// left for data that is read again. It is volatile, so it starts at this place in the code. The compiler could move a
// load of constant data (.nc) to after WAIT_FOR_INPUT.
__device__ inline uint4 load_once(const void* from) {
    uint4 words;
    asm volatile("ld.global.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
        : "l"(from));
    return words;
}

// Two neighbouring bfloat16 values, the first in the lower half. Each is the nearest to a float32, with ties to even.
// NaN becomes NaN.
__device__ inline uint32_t pair_bf16(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
#endif

// Number types with the names of the host code. Each of WEIGHT, CACHE and PRECISION is one of these.
struct F32 {};
struct F16 {};
struct BF16 {};
struct I8 {};
struct Q8 {};

template <class A, class B>
struct Same {
    static constexpr bool value = false;
};
template <class A>
struct Same<A, A> {
    static constexpr bool value = true;
};

// A number that is known at compile time.
template <int N>
struct Number {
    static constexpr int value = N;
};

// One span of a pass: `tokens` rows of the pass's buffers from row `first` on, at the positions from `start` on. Its
// tokens see `keys` = start + tokens keys.
struct Span {
    int first, start, tokens, keys;
};

// Maximum number of spans in one launch if the spans of a batch share a launch. grid.z is the number of spans.
constexpr int MOST_TOGETHER = 16;

// A weight matrix (outputs, inputs) in the number type WEIGHT, row by row.
struct Matrix {
    const void* values;   // address of row 0
    const float* scales;  // int8: the scales of all groups of the tensor; else null
    long long first;      // int8: index of row 0's first value in the tensor; a group may extend over the end of a row
    int outputs, inputs;
    int group;  // int8: number of values that share a scale; else 0
    int unused;
};

// One of several products with the same input.
struct Product {
    Matrix matrix;
    const float* bias;  // (O), or null
    float* out;         // (rows, O)
};

constexpr int MOST_PRODUCTS = 3;

struct Products {
    Product of[MOST_PRODUCTS];
    int count;
    int unused;
};

// The matrices and the outputs of the gated part of a feed-forward network: gate, silu, up and hidden. The outputs have
// (rows, F) values each.
struct Gated {
    Matrix gate, up;
    const float* gate_bias;
    const float* up_bias;
    float* gate_out;
    float* silu;
    float* up_out;
    float* hidden;
};

constexpr unsigned FULL = 0xffffffff;

// The numbers of rows that have a kernel of their own, with the sums of each row in registers.
#define FOR_FEW_ROWS(X) X(1) X(2) X(4) X(8)

// -DCOMPACT: one copy of the code multiplies several rows one after the other, so that the embedded PTX is small. The
// sums are the same.
#ifdef COMPACT
constexpr bool ROW_BY_ROW = true;
#else
constexpr bool ROW_BY_ROW = false;
#endif

__device__ inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

// The product that a block computes, and the number of the block's first output in it. `outputs` is the number of
// outputs per block.
struct Part {
    int product, first;
};
__device__ inline Part part_of(const Products& products, int block, int outputs) {
    int product = 0;
    for (; product < products.count - 1; product++) {
        int blocks = ceil_div(products.of[product].matrix.outputs, outputs);
        if (block < blocks) break;
        block -= blocks;
    }
    return {product, block * outputs};
}

__device__ inline uint16_t to_bf16(float x) { return static_cast<uint16_t>(pair_bf16(x, 0.0f)); }

__device__ inline float from_bf16(uint16_t bits) { return __uint_as_float(static_cast<uint32_t>(bits) << 16); }

__device__ inline float2 widen_pair(uint32_t pair) {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000)};
}

// x rounded to P (ops/round.rs).
template <class P>
__device__ inline float rounded(float x) {
    if constexpr (Same<P, BF16>::value) return from_bf16(to_bf16(x));
    return x;
}

// The result of a product: the sum plus the bias, if there is a bias, rounded to P.
template <class P>
__device__ inline float finished(float sum, const float* bias, int output) {
    return rounded<P>(bias ? __fadd_rn(sum, bias[output]) : sum);
}

// e^x with the operations of ops/exp.rs, and so with the same bits.
__device__ inline float exp_of_ops(float x) {
    const float ROUND = 12582912.0f;
    // With these comparisons NaN stays NaN, as with `clamp` in Rust.
    x = x < -104.0f ? -104.0f : x;
    x = x > 89.0f ? 89.0f : x;
    float shifted = __fmaf_rn(x, 1.44269504088896340736f, ROUND);
    float n = __fsub_rn(shifted, ROUND);
    float r = __fmaf_rn(n, -1.428606765330187e-06f, __fmaf_rn(n, -0.693145751953125f, x));
    float tail = __fmaf_rn(r, 1.0f / 5040.0f, 1.0f / 720.0f);
    tail = __fmaf_rn(tail, r, 1.0f / 120.0f);
    tail = __fmaf_rn(tail, r, 1.0f / 24.0f);
    tail = __fmaf_rn(tail, r, 1.0f / 6.0f);
    tail = __fmaf_rn(tail, r, 0.5f);
    float series = __fadd_rn(__fmaf_rn(__fmul_rn(r, r), tail, r), 1.0f);
    int whole = static_cast<int>(__float_as_uint(shifted) - __float_as_uint(ROUND));
    int half = whole >> 1;
    float first = __uint_as_float(static_cast<uint32_t>(half + 127) << 23);
    float second = __uint_as_float(static_cast<uint32_t>(whole - half + 127) << 23);
    return __fmul_rn(__fmul_rn(series, first), second);
}

// ops/swiglu.rs: x / (1 + e^-x).
__device__ inline float silu_of_ops(float x) { return __fdiv_rn(x, __fadd_rn(1.0f, exp_of_ops(-x))); }

// e^x with a relative error of at most 2⁻¹⁷, for a value that is then rounded to bfloat16. Results below 2⁻¹²⁶ become
// 0.
__device__ inline float exp_to_round(float x) { return near_exp2(x * 1.44269504f); }

// An approximation of silu_of_ops for a bfloat16 value, in a few instructions. `sure` says whether it certainly rounds
// to the same bfloat16 as the result of ops. It is false if the approximation is close to the middle between two
// bfloat16 values.
struct NearSilu {
    float value;
    bool sure;

    __device__ inline NearSilu(float x) {
        // If x is at most MOST in absolute value, the relative error is at most 40 · 2⁻²⁴: 24 from the rounding of the
        // exponent, the rest from the two instructions, three roundings, and the roundings of ops. OFF is a bound on
        // this error in units of the last place.
        constexpr float MOST = 16.0f;
        constexpr uint32_t OFF = 64;
        value = __fmul_rn(x, near_inverse(__fadd_rn(1.0f, exp_to_round(-x))));
        // The distance of `value` from the last (middle − OFF) below it, in units of the last place of its float32.
        const uint32_t after = (__float_as_uint(value) + 0x8000 + OFF) & 0xffff;
        sure = fabsf(x) < MOST && after > 2 * OFF;
    }
};

// silu_of_ops(x) rounded to P.
template <class P>
__device__ inline float silu_to_round(float x) {
    if constexpr (Same<P, BF16>::value) {
        const NearSilu near(x);
        if (near.sure) return near.value;
    }
    return silu_of_ops(x);
}

// The number of partial sums of a dot product, and the number of terms that are summed before they are added to the
// earlier terms' sum (ops/matmul.rs).
constexpr int LANES = 16;
constexpr int STRETCH = 1024;

// The sum of 16 partial sums, one in each lane of a half warp (ops/matmul.rs, reduce). Lane 0 of the half has the
// result. All lanes of the warp call it. Each half has its own sum.
__device__ inline float reduce_lanes(float sum) {
    for (int width = LANES / 2; width > 0; width /= 2) sum = __fadd_rn(sum, __shfl_down_sync(FULL, sum, width, LANES));
    return sum;
}

// The sum and the maximum over all lanes of a warp, in every lane.
__device__ inline float sum_of_warp(float x) {
    for (int apart = 16; apart > 0; apart /= 2) x += __shfl_xor_sync(FULL, x, apart);
    return x;
}

__device__ inline float larger(float max, float x) { return x > max ? x : max; }

__device__ inline float max_of_warp(float x) {
    for (int apart = 16; apart > 0; apart /= 2) x = larger(x, __shfl_xor_sync(FULL, x, apart));
    return x;
}

__device__ inline float minus_infinity() { return __uint_as_float(0xff800000); }

// Loads eight neighbouring values of a buffer or a cache as float32. The address is a multiple of 16 bytes.
__device__ inline void load8(const float* from, float (&out)[8]) {
    const float4* at = reinterpret_cast<const float4*>(from);
    float4 a = at[0], b = at[1];
    out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
    out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
}

__device__ inline float widen16(F16, uint32_t bits) { return half_to_float(static_cast<uint16_t>(bits)); }
__device__ inline float widen16(BF16, uint32_t bits) { return from_bf16(static_cast<uint16_t>(bits)); }

template <class T>
__device__ inline void widen8(const uint4& words, float (&out)[8]) {
    const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out[2 * i] = widen16(T{}, word[i] & 0xffff);
        out[2 * i + 1] = widen16(T{}, word[i] >> 16);
    }
}
