// CUDA on the CPU, for tests: just enough of it that the kernels run as C++, one block after the other.
//
// Each thread of a block is a fiber: it runs until it meets a barrier or an operation of its whole warp, and waits there
// for the others. Blocks with odd numbers run their threads from the last to the first, so that a missing barrier is
// noticed in one order or the other. Shared memory is filled with NaN before each block, and what lies behind an array of
// it is looked at after. A barrier that not all threads of the block meet, or not the same one, ends the process with a
// message, and so do an operation of a warp that not all of its lanes take part in, a thread that has not waited for its
// input, memory that was not given, and what the sanitizers notice that this is compiled with (emulate.cpp). Copies that go on by themselves (cp.async) are done only when they are waited for.
#pragma once
#define LLT_EMULATED 1

#ifdef __APPLE__  // shows ucontext only so
#define _XOPEN_SOURCE 700
#define _DARWIN_C_SOURCE
#endif
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

#define KERNEL(threads) static void  // not extern "C": a library's function may have the name
#define KERNEL_WITH(threads, blocks) static void
#define __device__
#define ONE_COPY

#define LET_NEXT_START()
#define WAIT_FOR_INPUT() (emulated::now->waited = true)

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

static uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulated {

constexpr size_t STACK = 1 << 17;
constexpr unsigned WARP = 32;
constexpr unsigned char POISON = 0xff;  // floats, halves and bfloat16 of such bytes are no numbers
constexpr unsigned char GUARD = 0xa5;
constexpr size_t GUARD_BYTES = 64;

enum class State { Ready, AtBarrier, AtWarp, Done };
enum class Kind { Sync, Shuffle, Ballot, Mma, LoadMatrix };

// What a lane brings to an operation of its warp, and what it takes away.
struct Lane {
    Kind kind;
    unsigned mask;
    const char* file;
    int line;
    int source;           // Shuffle: the lane whose value is wanted
    uint64_t value;       // Shuffle, Ballot
    uint64_t result;
    const uint32_t* a;    // Mma: 4 registers; LoadMatrix: the row that this lane names
    const uint32_t* b;    // Mma: 2
    float* sums;          // Mma: 4
    uint32_t* registers;  // LoadMatrix: 4
    bool transposed;
};

struct Copy {
    void* to;
    const void* from;
};

struct Fiber {
    ucontext_t start;
    jmp_buf at;
    std::unique_ptr<char[]> stack;
    State state;
    bool started;
    bool waited;  // for the kernels before
    const char* file;
    int line;
    Lane lane;
    std::vector<std::vector<Copy>> groups;  // copies under way, the last group not yet closed
};

struct Array {
    const char* file;
    int line;
    unsigned char* at;
    size_t bytes;
};

static std::vector<std::unique_ptr<Fiber>> fibers;
static Fiber* now;
static jmp_buf scheduler;
static void (*body)(void*);
static void* body_of;
static std::vector<Array> arrays;  // of the block
static std::vector<std::unique_ptr<unsigned char[]>> memory;
static unsigned dynamic_bytes;

[[noreturn]] inline void fail(const char* why, const char* file, int line) {
    fprintf(stderr, "emulated kernel: %s (%s:%d, block %u %u, thread %u)\n", why, file, line, blockIdx.x, blockIdx.y,
            threadIdx.x);
    abort();
}

inline void yield() {
    if (_setjmp(now->at) == 0) _longjmp(scheduler, 1);
}

inline void barrier(const char* file, int line) {
    now->state = State::AtBarrier, now->file = file, now->line = line;
    yield();
}

inline Lane& collective(Kind kind, unsigned mask, const char* file, int line) {
    Lane& lane = now->lane;
    lane.kind = kind, lane.mask = mask, lane.file = file, lane.line = line;
    now->state = State::AtWarp;
    return lane;
}

// Shared memory at this place in the source: the same for every thread of the block.
inline void* shared(const char* file, int line, size_t bytes) {
    for (const Array& array : arrays) {
        if (array.line == line && strcmp(array.file, file) == 0) return array.at;
    }
    if (memory.size() <= arrays.size()) memory.emplace_back();
    // new aligns to 16 bytes.
    std::unique_ptr<unsigned char[]>& at = memory[arrays.size()];
    at.reset(new unsigned char[bytes + GUARD_BYTES]);
    memset(at.get(), POISON, bytes);
    memset(at.get() + bytes, GUARD, GUARD_BYTES);
    arrays.push_back({file, line, at.get(), bytes});
    return at.get();
}

// The largest float32 that is not further from zero.
inline float cut_off(double x) {
    float near = static_cast<float>(x);
    return std::fabs(static_cast<double>(near)) > std::fabs(x) ? std::nextafter(near, 0.0f) : near;
}

// D = A · B + C of bfloat16 pairs, laid out as PTX has it for mma.m16n8k16. Of the sum of eight products and what was there
// tensor cores cut off what float32 has no bits for (Fasi, Higham, Mikaitis and Pranesh, 2021): the results are a little
// nearer to zero, the more the longer a sum is.
inline void multiply(Lane* const (&lanes)[WARP]) {
    auto value = [](uint32_t pair, int which) {
        uint32_t bits = which ? pair & 0xffff0000 : pair << 16;
        float x;
        memcpy(&x, &bits, 4);
        return x;
    };
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; lane++) {
        int row = lane / 4, pair = lane % 4 * 2;
        for (int i = 0; i < 2; i++) {
            a[row][pair + i] = value(lanes[lane]->a[0], i);
            a[row + 8][pair + i] = value(lanes[lane]->a[1], i);
            a[row][pair + 8 + i] = value(lanes[lane]->a[2], i);
            a[row + 8][pair + 8 + i] = value(lanes[lane]->a[3], i);
            b[pair + i][row] = value(lanes[lane]->b[0], i);
            b[pair + 8 + i][row] = value(lanes[lane]->b[1], i);
        }
    }
    for (int lane = 0; lane < 32; lane++) {
        for (int i = 0; i < 4; i++) {
            int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            for (int half = 0; half < 16; half += 8) {
                double sum = lanes[lane]->sums[i];
                for (int k = half; k < half + 8; k++) sum += static_cast<double>(a[row][k]) * b[k][column];
                lanes[lane]->sums[i] = cut_off(sum);
            }
        }
    }
}

// ldmatrix .x4: lane 8·m + r names row r of matrix m.
inline void load_matrices(Lane* const (&lanes)[WARP]) {
    for (int lane = 0; lane < 32; lane++) {
        for (int m = 0; m < 4; m++) {
            uint16_t pair[2];
            for (int i = 0; i < 2; i++) {
                int row = lane / 4, column = lane % 4 * 2 + i;
                if (lanes[lane]->transposed) std::swap(row, column);
                pair[i] = reinterpret_cast<const uint16_t*>(lanes[8 * m + row]->a)[column];
            }
            lanes[lane]->registers[m] = pair[0] | static_cast<uint32_t>(pair[1]) << 16;
        }
    }
}

// Lets the lanes of a warp go on whose operation all of its lanes have come to. Whether there were any.
inline bool resolve(size_t first) {
    bool any = false;
    for (size_t leader = first; leader < first + WARP; leader++) {
        if (fibers[leader]->state != State::AtWarp) continue;
        const Lane& led = fibers[leader]->lane;
        Lane* lanes[WARP] = {};
        bool all = true;
        for (unsigned i = 0; i < WARP; i++) {
            if (!(led.mask >> i & 1)) continue;
            Fiber& fiber = *fibers[first + i];
            Lane& lane = fiber.lane;
            all = all && fiber.state == State::AtWarp && lane.mask == led.mask && lane.kind == led.kind;
            lanes[i] = &lane;
        }
        if (!all) continue;
        if (led.kind == Kind::Shuffle) {
            for (Lane* lane : lanes) {
                if (lane == nullptr) continue;
                if (lanes[lane->source] == nullptr) fail("a shuffle reads a lane outside its mask", led.file, led.line);
                lane->result = lanes[lane->source]->value;
            }
        } else if (led.kind == Kind::Ballot) {
            uint64_t votes = 0;
            for (unsigned i = 0; i < WARP; i++) votes |= lanes[i] && lanes[i]->value ? uint64_t{1} << i : 0;
            for (Lane* lane : lanes) {
                if (lane) lane->result = votes;
            }
        } else if (led.kind == Kind::Mma || led.kind == Kind::LoadMatrix) {
            if (led.mask != 0xffffffff) fail("tensor cores take whole warps", led.file, led.line);
            led.kind == Kind::Mma ? multiply(lanes) : load_matrices(lanes);
        }
        unsigned mask = led.mask;
        for (unsigned i = 0; i < WARP; i++) {
            if (mask >> i & 1) fibers[first + i]->state = State::Ready;
        }
        any = true;
    }
    return any;
}

inline void enter() {
    body(body_of);
    // The kernel after this one may begin once this one ends, and would not wait for those before.
    if (!now->waited) fail("a thread ends that has not called WAIT_FOR_INPUT", "WAIT_FOR_INPUT", 0);
    if (!now->groups.empty()) fail("copies are under way at the end of a thread", "cp.async", 0);
    now->state = State::Done;
    _longjmp(scheduler, 1);
}

inline void resume(unsigned thread) {
    now = fibers[thread].get();
    threadIdx = {thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / blockDim.x / blockDim.y};
    if (_setjmp(scheduler) != 0) return;
    if (!now->started) {
        now->started = true;
        setcontext(&now->start);
    }
    _longjmp(now->at, 1);
}

inline void run_block(unsigned threads, bool backwards) {
    arrays.clear();
    while (fibers.size() < threads) {
        fibers.emplace_back(new Fiber);
        fibers.back()->stack.reset(new char[STACK]);
    }
    for (unsigned i = 0; i < threads; i++) {
        Fiber& fiber = *fibers[i];
        getcontext(&fiber.start);
        fiber.start.uc_stack.ss_sp = fiber.stack.get();
        fiber.start.uc_stack.ss_size = STACK;
        fiber.start.uc_link = nullptr;
        makecontext(&fiber.start, enter, 0);
        fiber.state = State::Ready, fiber.started = fiber.waited = false;
        fiber.groups.clear();
    }
    for (;;) {
        for (unsigned i = 0; i < threads; i++) {
            unsigned thread = backwards ? threads - 1 - i : i;
            if (fibers[thread]->state == State::Ready) resume(thread);
        }
        bool any = false;
        for (unsigned first = 0; first < threads; first += WARP) any |= resolve(first);
        if (any) continue;
        unsigned done = 0, waiting = 0;
        const Fiber* first = nullptr;
        for (unsigned i = 0; i < threads; i++) {
            const Fiber& fiber = *fibers[i];
            done += fiber.state == State::Done;
            if (fiber.state == State::AtWarp) {
                fail("an operation of a warp that not all of its lanes come to", fiber.lane.file, fiber.lane.line);
            }
            if (fiber.state != State::AtBarrier) continue;
            if (first && (first->line != fiber.line || strcmp(first->file, fiber.file) != 0)) {
                fail("threads of a block wait at different barriers", fiber.file, fiber.line);
            }
            first = &fiber, waiting++;
        }
        if (done == threads) break;
        if (waiting != threads) fail("a barrier that not all threads of the block come to", first->file, first->line);
        for (unsigned i = 0; i < threads; i++) fibers[i]->state = State::Ready;
    }
    for (const Array& array : arrays) {
        for (size_t i = 0; i < GUARD_BYTES; i++) {
            if (array.at[array.bytes + i] != GUARD) fail("a write beyond shared memory", array.file, array.line);
        }
    }
}

template <class T>
T shuffle(unsigned mask, T value, int source, const char* file, int line) {
    static_assert(sizeof(T) <= 8, "one register, or two");
    Lane& lane = collective(Kind::Shuffle, mask, file, line);
    lane.source = source, lane.value = 0;
    memcpy(&lane.value, &value, sizeof(T));
    yield();
    memcpy(&value, &now->lane.result, sizeof(T));
    return value;
}

inline int lane_id() { return static_cast<int>(threadIdx.x % WARP); }

// Where a shuffle reads: its own lane, where the source is outside its part of the warp.
inline int down(int delta, int width) {
    int lane = lane_id();
    return lane % width + delta < width ? lane + delta : lane;
}
inline int from(int source, int width) { return lane_id() / width * width + source % width; }

inline unsigned ballot(unsigned mask, bool vote, const char* file, int line) {
    collective(Kind::Ballot, mask, file, line).value = vote;
    yield();
    return static_cast<unsigned>(now->lane.result);
}

inline void sync_warp(unsigned mask, const char* file, int line) {
    collective(Kind::Sync, mask, file, line);
    yield();
}

}  // namespace emulated

#define SHARED(type, name, count) \
    type* const name = static_cast<type*>(emulated::shared(__FILE__, __LINE__, sizeof(type) * (count)))
#define DYNAMIC_SHARED(type, name) \
    type* const name = static_cast<type*>(emulated::shared("dynamic", 0, emulated::dynamic_bytes))

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

inline uint4 load_once(const void* from) { return *static_cast<const uint4*>(from); }

inline int dot4(uint32_t a, uint32_t b, int sum) {
    for (int i = 0; i < 4; i++) sum += static_cast<int8_t>(a >> (8 * i)) * static_cast<int8_t>(b >> (8 * i));
    return sum;
}

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
    if (isnan(x)) return static_cast<uint16_t>(sign | 0x7e00 | (bits >> 13 & 0x3ff));
    float size = fabsf(x);
    if (size >= 65520.0f) return static_cast<uint16_t>(sign | 0x7c00);
    int exponent;
    frexpf(size, &exponent);  // size = f · 2^exponent with f in [1/2, 1)
    // In units of the last place of the result; below the normal numbers that is 2^-24.
    int unit = exponent - 11 < -24 ? -24 : exponent - 11;
    uint32_t units = static_cast<uint32_t>(lrintf(ldexpf(size, -unit)));
    return static_cast<uint16_t>(sign | (units + (static_cast<uint32_t>(unit + 24) << 10)));
}

inline void __threadfence() {}
inline unsigned atomicInc(unsigned* at, unsigned limit) {
    unsigned old = *at;
    *at = old >= limit ? 0 : old + 1;
    return old;
}
template <class T>
T atomicAdd(T* at, std::common_type_t<T> add) {
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

// common.cuh's tensor core operations (product.cuh).
inline void copy16_async(void* to, const void* from) {
    std::vector<std::vector<emulated::Copy>>& groups = emulated::now->groups;
    if (groups.empty()) groups.emplace_back();
    groups.back().push_back({to, from});
}
inline void close_copies() {
    if (emulated::now->groups.empty()) emulated::now->groups.emplace_back();
    emulated::now->groups.emplace_back();
}
template <int LEFT>
inline void wait_for_copies() {
    std::vector<std::vector<emulated::Copy>>& groups = emulated::now->groups;
    // The last is not closed: with wait_group it stays under way, and nothing is put into it without a close after.
    size_t closed = groups.empty() ? 0 : groups.size() - 1;
    size_t done = closed > LEFT ? closed - LEFT : 0;
    for (size_t i = 0; i < done; i++) {
        for (const emulated::Copy& copy : groups[i]) memcpy(copy.to, copy.from, 16);
    }
    groups.erase(groups.begin(), groups.begin() + static_cast<std::ptrdiff_t>(done));
    if (groups.size() == 1 && groups[0].empty()) groups.clear();
}
inline void multiply_tiles(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    emulated::Lane& lane = emulated::collective(emulated::Kind::Mma, 0xffffffff, "mma", 0);
    lane.a = a, lane.b = b, lane.sums = sums;
    emulated::yield();
}
template <bool TRANSPOSED>
inline void load_matrices(uint32_t (&registers)[4], const void* row) {
    emulated::Lane& lane = emulated::collective(emulated::Kind::LoadMatrix, 0xffffffff, "ldmatrix", 0);
    lane.a = static_cast<const uint32_t*>(row), lane.registers = registers, lane.transposed = TRANSPOSED;
    emulated::yield();
}

using std::max;
using std::min;
