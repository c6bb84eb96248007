// CUDA on the CPU, for tests: the part of CUDA that the kernels need. They run as C++, one block after the other.
//
// Each thread of a block is a fiber. It runs until it reaches a barrier or an operation of its whole warp, and waits
// there for the other threads. Warps run one after the other, each as far as it can go alone. In blocks with odd
// numbers, the warps run in reverse order. So a missing barrier shows in one of the two orders. Shared memory is filled
// with NaN before each block, and the memory after each array is checked at the end. The process ends with a message in
// these cases: not all threads of the block reach a barrier, or they reach different barriers; not all lanes take part
// in an operation of a warp or of four warps; a thread does not wait for its input; a thread uses memory that was not
// allocated; or the sanitizers of this build detect a fault (emulate.cpp). Asynchronous copies (cp.async) and
// asynchronous products (wgmma) are done only when a thread waits for them. The shared memory that a product reads must
// not change until then. Copies into shared memory must be made visible to tensor cores before a product starts (this
// is not checked for plain writes).
//
// emulate.cpp is compiled only once. This header is compiled with each module of kernels, so it includes no header of
// the C++ library, and declares the few functions of the C library that it uses.
#pragma once
#define LLT_EMULATED 1

#include <stddef.h>
#include <stdint.h>
#include <string.h>

extern "C" {
double cos(double);
double sin(double);
float copysignf(float, float);
float exp2f(float);
float fabsf(float);
float fmaf(float, float, float);
float fmaxf(float, float);
float fminf(float, float);
float frexpf(float, int*);
float ldexpf(float, int);
long lrintf(float);
float sqrtf(float);
float truncf(float);
}

#define KERNEL(threads) static void  // not extern "C", because a library's function may have the same name
#define KERNEL_WITH(threads, blocks) static void
#define __device__
#define ONE_COPY

#define LET_NEXT_START()
#define WAIT_FOR_INPUT() emulated::wait_for_input()

struct uint3 {
    unsigned x, y, z;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

extern uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulated {

constexpr unsigned WARP = 32;

[[noreturn]] void fail(const char* why, const char* file, int line);
void wait_for_input();
void barrier(const char* file, int line);
void sync_warp(unsigned mask, const char* file, int line);
unsigned ballot(unsigned mask, bool vote, const char* file, int line);
// Exchanges up to 8 bytes.
uint64_t shuffle_bits(unsigned mask, uint64_t value, int source, const char* file, int line);
// Returns the shared memory that is declared at this place of the source. It is the same for every thread of the block.
void* shared(const char* file, int line, size_t bytes);
// The shared memory that the launch has requested.
void* dynamic_shared();

template <class T>
T shuffle(unsigned mask, T value, int source, const char* file, int line) {
    static_assert(sizeof(T) <= 8, "one register, or two");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(T));
    bits = shuffle_bits(mask, bits, source, file, line);
    memcpy(&value, &bits, sizeof(T));
    return value;
}

inline int lane_id() { return static_cast<int>(threadIdx.x % WARP); }

// The lane from which a shuffle reads: its own lane if the source is outside its part of the warp.
inline int down(int delta, int width) {
    int lane = lane_id();
    return lane % width + delta < width ? lane + delta : lane;
}
inline int from(int source, int width) { return lane_id() / width * width + source % width; }

// Tensor cores and asynchronous copies.
void multiply(bool halves, float* sums, const uint32_t* a, const uint32_t* b);
void multiply_bytes(int* out, const uint32_t* a, unsigned of_a, const uint32_t* b, const int* add);
void load_matrices(bool transposed, uint32_t* registers, const uint32_t* row);
void multiply_async(bool add, unsigned columns, float* sums, uint64_t a, uint64_t b);
void wait_for_products(unsigned left);
void wait_for_copies(unsigned left);

// The table of a module's kernels (kernels.cpp).
struct Kernel {
    const char* name;
    void (*run)(void* args);
    unsigned (*sizes)(unsigned* bytes);
};
extern const Kernel KERNELS_HERE[];
extern const size_t NUMBER_OF_KERNELS;

template <class T>
struct Given {
    using Type = T;
};

}  // namespace emulated

#define SHARED(type, name, count) \
    type* const name = static_cast<type*>(emulated::shared(__FILE__, __LINE__, sizeof(type) * (count)))
#define DYNAMIC_SHARED(type, name) type* const name = static_cast<type*>(emulated::dynamic_shared())

#define __syncthreads() emulated::barrier(__FILE__, __LINE__)
#define __syncwarp() emulated::sync_warp(0xffffffff, __FILE__, __LINE__)
#define __ballot_sync(mask, vote) emulated::ballot(mask, vote, __FILE__, __LINE__)

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    return emulated::shuffle(mask, value, emulated::from(source, width), "__shfl_sync", 0);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, int delta, int width = 32) {
    return emulated::shuffle(mask, value, emulated::down(delta, width), "__shfl_down_sync", 0);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int apart, int = 32) {
    return emulated::shuffle(mask, value, emulated::lane_id() ^ apart, "__shfl_xor_sync", 0);
}

inline uint32_t __float_as_uint(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}
inline float __uint_as_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }

// These results are wrong by the allowed error, in one direction or the other.
inline float near_exp2(float x) {
    const float exact = exp2f(x);
    if (exact < 1.17549435e-38f) return 0.0f;
    return exact * (__float_as_uint(x) % 2 ? 1.0f + 0x1p-22f : 1.0f - 0x1p-22f);
}
inline float near_inverse(float x) {
    const float exact = 1.0f / x;
    return exact * (__float_as_uint(x) % 2 ? 1.0f + 0x1p-23f : 1.0f - 0x1p-23f);
}

// The same conversion as in the crate half.
inline uint32_t pair_bf16(float low, float high) {
    auto nearest = [](float x) {
        uint32_t bits = __float_as_uint(x);
        return (bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    };
    return nearest(low) | nearest(high) << 16;
}

inline int known_later(int x) { return x; }

inline uint4 load_once(const void* from) { return *static_cast<const uint4*>(from); }

inline int dot4(uint32_t a, uint32_t b, int sum) {
    for (int i = 0; i < 4; i++) sum += static_cast<int8_t>(a >> (8 * i)) * static_cast<int8_t>(b >> (8 * i));
    return sum;
}

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) >> (shift & 31));
}

inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
    uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) {
        unsigned which = selector >> (4 * i) & 15;
        unsigned byte = static_cast<unsigned>(bytes >> (8 * (which & 7))) & 0xff;
        out |= (which & 8 ? (byte & 0x80 ? 0xffu : 0u) : byte) << (8 * i);
    }
    return out;
}

inline float half_to_float(uint16_t half) {
    uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
    if (exponent == 31) return __uint_as_float(sign | 0x7f800000 | fraction << 13);
    float size = exponent ? ldexpf(static_cast<float>(1024 + fraction), static_cast<int>(exponent) - 25)
                          : ldexpf(static_cast<float>(fraction), -24);
    return sign ? -size : size;
}
inline uint16_t float_to_half(float x) {
    uint32_t bits = __float_as_uint(x), sign = bits >> 16 & 0x8000;
    if (x != x) return static_cast<uint16_t>(sign | 0x7e00 | (bits >> 13 & 0x3ff));
    float size = fabsf(x);
    if (size >= 65520.0f) return static_cast<uint16_t>(sign | 0x7c00);
    if (size == 0.0f) return static_cast<uint16_t>(sign);
    int exponent;
    frexpf(size, &exponent);  // size = f · 2^exponent with f in [1/2, 1)
    // The exponent of the result's unit in the last place; for subnormal numbers the unit is 2^-24.
    int unit = exponent - 11 < -24 ? -24 : exponent - 11;
    uint32_t units = static_cast<uint32_t>(lrintf(ldexpf(size, -unit)));
    return static_cast<uint16_t>(sign | (units + (static_cast<uint32_t>(unit + 24) << 10)));
}
inline uint32_t pair_half(float low, float high) {
    return float_to_half(low) | static_cast<uint32_t>(float_to_half(high)) << 16;
}

inline void __threadfence() {}
inline unsigned atomicInc(unsigned* at, unsigned limit) {
    unsigned old = *at;
    *at = old >= limit ? 0 : old + 1;
    return old;
}
template <class T>
T atomicAdd(T* at, typename emulated::Given<T>::Type add) {
    T old = *at;
    *at += add;
    return old;
}
inline unsigned atomicMin(unsigned* at, unsigned x) {
    unsigned old = *at;
    if (x < old) *at = x;
    return old;
}
inline unsigned atomicMax(unsigned* at, unsigned x) {
    unsigned old = *at;
    if (x > old) *at = x;
    return old;
}

// Functions of warpgroup.cuh and tensor.cuh.
uint32_t shared_address(const void* at);
using SharedPlace = unsigned char*;
inline SharedPlace shared_place(unsigned char* at) { return at; }
void copy16_async(void* to, const void* from, int bytes = 16);
inline void copy16_async_if(bool there, void* to, const void* from) { copy16_async(to, from, there ? 16 : 0); }
void close_copies();
template <int LEFT>
inline void wait_for_copies() {
    emulated::wait_for_copies(LEFT);
}
struct AsyncPiece {
    SharedPlace to;
    const uint8_t* from;
    int bytes;
};
void begin_arrivals(uint64_t* arrivals, int lanes);
inline void show_arrivals() {}
void copy_async(uint64_t* at, const AsyncPiece& piece);
void wait_for_arrivals(uint64_t* at, int parity);
inline void multiply_tiles(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    emulated::multiply(false, sums, a, b);
}
inline void multiply_half_tiles(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    emulated::multiply(true, sums, a, b);
}
inline void multiply_bytes(int (&out)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const int (&add)[4]) {
    emulated::multiply_bytes(out, a, 4, b, add);
}
inline void multiply_half_bytes(int (&out)[4], const uint32_t (&a)[2], uint32_t b, const int (&add)[4]) {
    emulated::multiply_bytes(out, a, 2, &b, add);
}
template <bool TRANSPOSED>
inline void load_matrices(uint32_t (&registers)[4], const void* row) {
    emulated::load_matrices(TRANSPOSED, registers, static_cast<const uint32_t*>(row));
}

void show_to_tensor_cores();
void begin_products();
template <bool ADD, int HALF>
inline void multiply_async(float (&sums)[HALF], uint64_t a, uint64_t b) {
    emulated::multiply_async(ADD, 2 * HALF, sums, a, b);
}
void close_products();
template <int LEFT>
inline void wait_for_products() {
    emulated::wait_for_products(LEFT);
}
template <int HALF>
inline void take_sums(float (&)[HALF]) {
    wait_for_products<0>();
}

template <class T>
T max(T a, T b) {
    return a < b ? b : a;
}
template <class T>
T min(T a, T b) {
    return b < a ? b : a;
}
