// The emulation of CUDA (emulate.hpp): the threads of a block as fibers, the operations of warps, and the launch. It is
// compiled once. Each file of kernels (kernels.cpp) is linked with it.
#ifdef __APPLE__  // needed for ucontext
#define _XOPEN_SOURCE 700
#define _DARWIN_C_SOURCE
#endif
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "emulate.hpp"

uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulated {

constexpr size_t STACK = 1 << 17;
constexpr unsigned WARPS_4 = 4 * WARP;
constexpr unsigned char POISON = 0xff;  // floats, float16 and bfloat16 values of such bytes are NaN
constexpr unsigned char GUARD = 0xa5;
constexpr size_t GUARD_BYTES = 64;

enum class State { Ready, AtBarrier, AtWarp, AtFourWarps, Done };
enum class Kind { Sync, Shuffle, Ballot, Mma, MmaOfBytes, LoadMatrix, BeginProducts, MultiplyAsync, CloseProducts, WaitForProducts };

// A lane's inputs and outputs in an operation of its warp.
struct Lane {
    Kind kind;
    unsigned mask;
    const char* file;
    int line;
    int source;           // Shuffle: the lane to read from
    uint64_t value;       // Shuffle, Ballot: the value of this lane
    uint64_t result;
    const uint32_t* a;    // Mma: 4 registers; MmaOfBytes: `number` registers; LoadMatrix: the row that this lane gives
    const uint32_t* b;    // Mma: 2
    bool halves;          // Mma: float16 instead of bfloat16
    int* whole;           // MmaOfBytes: 4 results; `added`: the values added to them
    const int* added;
    float* sums;          // Mma: 4; MultiplyAsync: one for every two columns
    uint64_t operands[2];
    unsigned number;      // MultiplyAsync: columns; WaitForProducts: maximum number of unfinished groups
    bool add;
    uint32_t* registers;  // LoadMatrix: 4
    bool transposed;
};

struct Copy {
    void* to;
    const void* from;
    size_t bytes;  // how many of the 16 bytes of cp.async are copied; the others become zeros
};

// The state of an mbarrier: the number of lanes of a phase, the number of lanes that have not arrived, the number of
// finished phases, and whether a thread has waited for the last finished phase. After such a wait, the copied data can
// be read.
struct Arrivals {
    int lanes, left, done;
    bool seen;
    std::vector<Copy> copies;
};

struct Fiber {
    jmp_buf at;
    std::unique_ptr<char[]> stack;
    State state;
    bool waited;  // for the previous kernels
    const char* file;
    int line;
    Lane lane;
    std::vector<std::vector<Copy>> groups;  // unfinished copies; the last group is not committed yet
    bool unseen;  // finished copies that tensor cores may not see yet
};

// An unfinished product of four warps.
struct Product {
    uint64_t operands[2];
    unsigned columns;
    bool add;
    float* sums[WARPS_4];
    std::vector<uint16_t> a, b;  // both operands when the product began
};

struct FourWarps {
    bool begun = false;                          // whether wgmma.fence was called after the last commit
    std::vector<std::vector<Product>> products;  // unfinished products; the last group is not committed yet
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
static std::vector<FourWarps> fours;
static std::map<const uint64_t*, Arrivals> arrivals;  // of the block
// One address of each page from which a thread copied before WAIT_FOR_INPUT.
static std::map<uint64_t, uint64_t> early;

[[noreturn]] void fail(const char* why, const char* file, int line) {
    fprintf(stderr, "emulated kernel: %s (%s:%d, block %u %u, thread %u)\n", why, file, line, blockIdx.x, blockIdx.y,
            threadIdx.x);
    abort();
}

void yield() {
    if (_setjmp(now->at) == 0) _longjmp(scheduler, 1);
}

void barrier(const char* file, int line) {
    now->state = State::AtBarrier, now->file = file, now->line = line;
    yield();
}

Lane& collective(Kind kind, unsigned mask, const char* file, int line) {
    Lane& lane = now->lane;
    lane.kind = kind, lane.mask = mask, lane.file = file, lane.line = line;
    now->state = State::AtWarp;
    return lane;
}

// An operation in which four warps take part.
Lane& of_four_warps(Kind kind, const char* file) {
    Lane& lane = collective(kind, 0xffffffff, file, 0);
    now->state = State::AtFourWarps;
    return lane;
}

// Returns the shared memory that is declared at this place of the source. It is the same for every thread of the block.
void* shared(const char* file, int line, size_t bytes) {
    for (const Array& array : arrays) {
        if (array.line == line && strcmp(array.file, file) == 0) return array.at;
    }
    if (memory.size() <= arrays.size()) memory.emplace_back();
    // `new` aligns to 16 bytes.
    std::unique_ptr<unsigned char[]>& at = memory[arrays.size()];
    at.reset(new unsigned char[bytes + GUARD_BYTES]);
    memset(at.get(), POISON, bytes);
    memset(at.get() + bytes, GUARD, GUARD_BYTES);
    arrays.push_back({file, line, at.get(), bytes});
    return at.get();
}

// Truncates to float32: the nearest float32 that is not further from zero than x.
float cut_off(double x) {
    float near = static_cast<float>(x);
    return std::fabs(static_cast<double>(near)) > std::fabs(x) ? std::nextafter(near, 0.0f) : near;
}

// D = A · B + C of bfloat16 or float16 pairs, in PTX's layout for mma.m16n8k16. Tensor cores add eight products to the
// previous value, and truncate the result to float32 (Fasi, Higham, Mikaitis and Pranesh, 2021). So results are
// slightly too close to zero, and more so in longer sums.
void multiply(Lane* const (&lanes)[WARP]) {
    const bool halves = lanes[0]->halves;
    auto value = [halves](uint32_t pair, int which) {
        if (halves) return half_to_float(static_cast<uint16_t>(pair >> 16 * which));
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

// D = A · B + C of signed bytes, in PTX's layout for mma.m16n8k32, and for mma.m16n8k16.
void multiply_bytes(Lane* const (&lanes)[WARP]) {
    auto value = [](uint32_t four, int which) { return static_cast<int>(static_cast<int8_t>(four >> (8 * which))); };
    const int halves = static_cast<int>(lanes[0]->number) / 2;
    int a[16][32] = {}, b[32][8] = {};
    for (int lane = 0; lane < 32; lane++) {
        int row = lane / 4, first = lane % 4 * 4;
        for (int half = 0; half < halves; half++) {
            for (int i = 0; i < 4; i++) {
                a[row][16 * half + first + i] = value(lanes[lane]->a[2 * half], i);
                a[row + 8][16 * half + first + i] = value(lanes[lane]->a[2 * half + 1], i);
                b[16 * half + first + i][row] = value(lanes[lane]->b[half], i);
            }
        }
    }
    for (int lane = 0; lane < 32; lane++) {
        for (int i = 0; i < 4; i++) {
            int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            uint32_t sum = static_cast<uint32_t>(lanes[lane]->added[i]);
            for (int k = 0; k < 32; k++) sum += static_cast<uint32_t>(a[row][k] * b[k][column]);
            lanes[lane]->whole[i] = static_cast<int>(sum);
        }
    }
}

// ldmatrix .x4: lane 8·m + r gives row r of matrix m.
void load_matrices(Lane* const (&lanes)[WARP]) {
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

// The numeric address of the launch's shared memory. It is not a multiple of 1,024.
constexpr uint32_t SHARED_BEGINS = 1040;

const Array& dynamic_array(const char* what) {
    for (const Array& array : arrays) {
        if (strcmp(array.file, "dynamic") == 0) return array;
    }
    fail("shared memory is named that the launch does not have", what, 0);
}

// Whether the 16 bytes at this address overlap the rows of an operand.
bool meets(uint64_t operand, unsigned rows, uint32_t at) {
    uint32_t first = (static_cast<uint32_t>(operand & 0x3fff) << 4) & ~127u;
    return at + 16 > first && at < first + rows * 128;
}

// A matrix (rows, 16) as wgmma reads it (operand in warpgroup.cuh): three bits of each computed address are XORed with
// three other bits.
std::vector<uint16_t> operand_values(uint64_t operand, unsigned rows) {
    if (operand >> 62 != 1) fail("an operand without the swizzle of 128 bytes", "wgmma", 0);
    // An operand that begins within a group of eight rows would need a base offset, which is not supported here.
    if ((operand >> 49 & 7) != 0 || (operand >> 3 & 7) != 0) fail("an operand that begins at no eighth row", "wgmma", 0);
    const Array& array = dynamic_array("wgmma");
    uint32_t begins = static_cast<uint32_t>(operand & 0x3fff) << 4, apart = static_cast<uint32_t>(operand >> 32 & 0x3fff) << 4;
    std::vector<uint16_t> values;
    for (unsigned row = 0; row < rows; row++) {
        for (unsigned k = 0; k < 16; k++) {
            uint32_t at = begins + row / 8 * apart + row % 8 * 128 + 2 * k;
            at ^= (at >> 7 & 7) << 4;
            if (at < SHARED_BEGINS || at + 2 > SHARED_BEGINS + array.bytes) fail("an operand outside shared memory", "wgmma", 0);
            uint16_t value;
            memcpy(&value, array.at + (at - SHARED_BEGINS), 2);
            values.push_back(value);
        }
    }
    return values;
}

Product begun(const Fiber& leader, size_t first) {
    const Lane& led = leader.lane;
    Product product{{led.operands[0], led.operands[1]}, led.number, led.add, {}, {}, {}};
    for (unsigned i = 0; i < WARPS_4; i++) product.sums[i] = fibers[first + i]->lane.sums;
    for (unsigned i = 0; i < blockDim.x; i++) {
        if (fibers[i]->unseen) fail("copies that tensor cores may not see", led.file, led.line);
    }
    product.a = operand_values(led.operands[0], 64), product.b = operand_values(led.operands[1], led.number);
    return product;
}

// D = A · Bᵀ, or D += A · Bᵀ, in PTX's layout for wgmma.m64nNk16. Each sum of sixteen products and the previous value
// is truncated.
void finish(const Product& product) {
    if (product.a != operand_values(product.operands[0], 64) ||
        product.b != operand_values(product.operands[1], product.columns)) {
        fail("shared memory is changed while it is multiplied", "wgmma", 0);
    }
    auto value = [](uint16_t bits) {
        uint32_t wide = static_cast<uint32_t>(bits) << 16;
        float x;
        memcpy(&x, &wide, 4);
        return x;
    };
    for (unsigned thread = 0; thread < WARPS_4; thread++) {
        for (unsigned i = 0; i < product.columns / 2; i++) {
            unsigned lane = thread % WARP, row = thread / WARP * 16 + lane / 4 + i % 4 / 2 * 8;
            unsigned column = i / 4 * 8 + lane % 4 * 2 + i % 2;
            double sum = product.add ? product.sums[thread][i] : 0.0;
            for (unsigned k = 0; k < 16; k++) {
                sum += static_cast<double>(value(product.a[row * 16 + k])) * value(product.b[column * 16 + k]);
            }
            product.sums[thread][i] = cut_off(sum);
        }
    }
}

// Resumes four warps if all of their lanes have reached the operation. Returns whether they had.
bool resolve_four(size_t first) {
    const Fiber& leader = *fibers[first];
    const Lane& led = leader.lane;
    for (unsigned i = 0; i < WARPS_4; i++) {
        const Fiber& fiber = *fibers[first + i];
        if (fiber.state != State::AtFourWarps || fiber.lane.kind != led.kind) return false;
        bool alike = memcmp(fiber.lane.operands, led.operands, sizeof led.operands) == 0 && fiber.lane.number == led.number;
        if (led.kind == Kind::MultiplyAsync && !alike) fail("threads name different operands", led.file, led.line);
    }
    FourWarps& four = fours[first / WARPS_4];
    std::vector<std::vector<Product>>& products = four.products;
    if (led.kind == Kind::BeginProducts) {
        four.begun = true;
    } else if (led.kind == Kind::MultiplyAsync) {
        if (!four.begun) fail("a product before wgmma.fence", led.file, led.line);
        if (products.empty()) products.emplace_back();
        products.back().push_back(begun(leader, first));
    } else if (led.kind == Kind::CloseProducts) {
        if (products.empty()) products.emplace_back();
        products.emplace_back();
        four.begun = false;
    } else {
        // As with copies, the last group is not committed yet, so it is not waited for.
        size_t closed = products.empty() ? 0 : products.size() - 1, done = closed > led.number ? closed - led.number : 0;
        for (size_t i = 0; i < done; i++) {
            for (const Product& product : products[i]) finish(product);
        }
        products.erase(products.begin(), products.begin() + static_cast<std::ptrdiff_t>(done));
        if (products.size() == 1 && products[0].empty()) products.clear();
    }
    for (unsigned i = 0; i < WARPS_4; i++) fibers[first + i]->state = State::Ready;
    return true;
}

// Resumes the lanes of a warp if all of them have reached the operation. Returns whether any lane was resumed.
bool resolve(size_t first) {
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
        } else if (led.kind == Kind::Mma || led.kind == Kind::MmaOfBytes || led.kind == Kind::LoadMatrix) {
            if (led.mask != 0xffffffff) fail("tensor cores take whole warps", led.file, led.line);
            if (led.kind == Kind::Mma) multiply(lanes);
            if (led.kind == Kind::MmaOfBytes) multiply_bytes(lanes);
            if (led.kind == Kind::LoadMatrix) load_matrices(lanes);
        }
        unsigned mask = led.mask;
        for (unsigned i = 0; i < WARP; i++) {
            if (mask >> i & 1) fibers[first + i]->state = State::Ready;
        }
        any = true;
    }
    return any;
}

// Runs one thread after another, each of another block. A fiber lives until the process ends: a new one for each thread
// would take two system calls.
[[noreturn]] void run_threads() {
    for (;;) {
        body(body_of);
        // If a thread did not wait, the next kernel could begin at the end of this kernel, although earlier kernels still
        // run.
        if (!now->waited) fail("a thread ends that has not called WAIT_FOR_INPUT", "WAIT_FOR_INPUT", 0);
        if (!now->groups.empty()) fail("copies are under way at the end of a thread", "cp.async", 0);
        if (threadIdx.x / WARPS_4 < fours.size() && !fours[threadIdx.x / WARPS_4].products.empty()) {
            fail("products are under way at the end of a thread", "wgmma", 0);
        }
        now->state = State::Done;
        yield();
    }
}

// The entry of a new fiber. Returns to new_fiber at once.
void enter() {
    yield();
    run_threads();
}

// Returns a fiber that waits for its first thread.
std::unique_ptr<Fiber> new_fiber() {
    std::unique_ptr<Fiber> fiber(new Fiber);
    fiber->stack.reset(new char[STACK]);
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = fiber->stack.get();
    context.uc_stack.ss_size = STACK;
    context.uc_link = nullptr;
    makecontext(&context, enter, 0);
    now = fiber.get();
    if (_setjmp(scheduler) == 0) setcontext(&context);
    return fiber;
}

void resume(unsigned thread) {
    now = fibers[thread].get();
    threadIdx = {thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / blockDim.x / blockDim.y};
    if (_setjmp(scheduler) == 0) _longjmp(now->at, 1);
}

// Runs four warps, one after the other, each as far as it can go alone.
void run_four(unsigned first, unsigned end, bool backwards) {
    do {
        for (unsigned i = first; i < end; i += WARP) {
            unsigned warp = backwards ? first + end - WARP - i : i;
            do {
                for (unsigned lane = 0; lane < WARP; lane++) {
                    unsigned thread = warp + (backwards ? WARP - 1 - lane : lane);
                    if (fibers[thread]->state == State::Ready) resume(thread);
                }
            } while (resolve(warp));
        }
    } while (end - first == WARPS_4 && resolve_four(first));
}

void run_block(unsigned threads, bool backwards) {
    arrays.clear(), arrivals.clear();
    while (fibers.size() < threads) fibers.push_back(new_fiber());
    for (unsigned i = 0; i < threads; i++) {
        Fiber& fiber = *fibers[i];
        fiber.state = State::Ready, fiber.waited = fiber.unseen = false;
        fiber.groups.clear();
    }
    fours.assign(threads / WARPS_4, {});
    for (;;) {
        unsigned fours_there = (threads + WARPS_4 - 1) / WARPS_4;
        for (unsigned i = 0; i < fours_there; i++) {
            unsigned first = (backwards ? fours_there - 1 - i : i) * WARPS_4;
            run_four(first, std::min(first + WARPS_4, threads), backwards);
        }
        unsigned done = 0, waiting = 0;
        const Fiber* first = nullptr;
        for (unsigned i = 0; i < threads; i++) {
            const Fiber& fiber = *fibers[i];
            done += fiber.state == State::Done;
            if (fiber.state == State::AtWarp) {
                fail("an operation of a warp that not all of its lanes come to", fiber.lane.file, fiber.lane.line);
            }
            if (fiber.state == State::AtFourWarps) {
                fail("an operation of four warps that not all of them come to", fiber.lane.file, fiber.lane.line);
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

void wait_for_input() { now->waited = true; }

void* dynamic_shared() { return shared("dynamic", 0, dynamic_bytes); }

uint64_t shuffle_bits(unsigned mask, uint64_t value, int source, const char* file, int line) {
    Lane& lane = collective(Kind::Shuffle, mask, file, line);
    lane.source = source, lane.value = value;
    yield();
    return now->lane.result;
}

unsigned ballot(unsigned mask, bool vote, const char* file, int line) {
    collective(Kind::Ballot, mask, file, line).value = vote;
    yield();
    return static_cast<unsigned>(now->lane.result);
}

void sync_warp(unsigned mask, const char* file, int line) {
    collective(Kind::Sync, mask, file, line);
    yield();
}

void multiply(bool halves, float* sums, const uint32_t* a, const uint32_t* b) {
    Lane& lane = collective(Kind::Mma, 0xffffffff, halves ? "mma of float16" : "mma", 0);
    lane.a = a, lane.b = b, lane.halves = halves, lane.sums = sums;
    yield();
}

void multiply_bytes(int* out, const uint32_t* a, unsigned of_a, const uint32_t* b, const int* add) {
    // Copied, because `add` may be the same registers as `out`.
    const int added[4] = {add[0], add[1], add[2], add[3]};
    Lane& lane = collective(Kind::MmaOfBytes, 0xffffffff, "mma of bytes", 0);
    lane.a = a, lane.number = of_a, lane.b = b, lane.whole = out, lane.added = added;
    yield();
}

void load_matrices(bool transposed, uint32_t* registers, const uint32_t* row) {
    Lane& lane = collective(Kind::LoadMatrix, 0xffffffff, "ldmatrix", 0);
    lane.a = row, lane.registers = registers, lane.transposed = transposed;
    yield();
}

void multiply_async(bool add, unsigned columns, float* sums, uint64_t a, uint64_t b) {
    Lane& lane = of_four_warps(Kind::MultiplyAsync, "wgmma.mma_async");
    lane.sums = sums, lane.operands[0] = a, lane.operands[1] = b, lane.number = columns, lane.add = add;
    yield();
}

void wait_for_products(unsigned left) {
    of_four_warps(Kind::WaitForProducts, "wgmma.wait_group").number = left;
    yield();
}

void wait_for_copies(unsigned left) {
    std::vector<std::vector<Copy>>& groups = now->groups;
    // The last group is not committed. wait_group leaves it unfinished.
    size_t closed = groups.empty() ? 0 : groups.size() - 1;
    size_t done = closed > left ? closed - left : 0;
    for (size_t i = 0; i < done; i++) {
        for (const Copy& copy : groups[i]) {
            memset(copy.to, 0, 16);
            memcpy(copy.to, copy.from, copy.bytes);
        }
        now->unseen |= !groups[i].empty();
    }
    groups.erase(groups.begin(), groups.begin() + static_cast<std::ptrdiff_t>(done));
    if (groups.size() == 1 && groups[0].empty()) groups.clear();
}

}  // namespace emulated

uint32_t shared_address(const void* at) {
    const emulated::Array& array = emulated::dynamic_array("shared_address");
    return static_cast<uint32_t>(static_cast<const unsigned char*>(at) - array.at) + emulated::SHARED_BEGINS;
}
void copy16_async(void* to, const void* from, int bytes) {
    for (const emulated::FourWarps& four : emulated::fours) {
        for (const std::vector<emulated::Product>& group : four.products) {
            for (const emulated::Product& product : group) {
                uint32_t at = shared_address(to);
                if (emulated::meets(product.operands[0], 64, at) || emulated::meets(product.operands[1], product.columns, at)) {
                    emulated::fail("a copy into shared memory that is multiplied", "cp.async", 0);
                }
            }
        }
    }
    if (bytes < 0 || bytes > 16) emulated::fail("a copy of other than 0 to 16 bytes", "cp.async", 0);
    if (reinterpret_cast<uintptr_t>(to) % 16 || (bytes && reinterpret_cast<uintptr_t>(from) % 16)) {
        emulated::fail("a copy from or to where 16 bytes do not load at once", "cp.async", 0);
    }
    const uint64_t at = reinterpret_cast<uintptr_t>(from);
    if (bytes && !emulated::now->waited) emulated::early.emplace(at / 4096, at);
    std::vector<std::vector<emulated::Copy>>& groups = emulated::now->groups;
    if (groups.empty()) groups.emplace_back();
    groups.back().push_back({to, from, static_cast<size_t>(bytes)});
}
void close_copies() {
    if (emulated::now->groups.empty()) emulated::now->groups.emplace_back();
    emulated::now->groups.emplace_back();
}
void begin_arrivals(uint64_t* arrivals, int lanes) {
    if (emulated::arrivals.count(arrivals)) emulated::fail("a word of arrivals begins anew", "mbarrier.init", 0);
    emulated::arrivals[arrivals] = {lanes, lanes, 0, true, {}};
}
void copy_async(uint64_t* at, const AsyncPiece& piece) {
    emulated::Arrivals& arrivals = emulated::arrivals[at];
    if (arrivals.left == arrivals.lanes && !arrivals.seen) {
        emulated::fail("copies to where nobody has waited for those before", "mbarrier.arrive", 0);
    }
    if (piece.bytes <= 0 || piece.bytes % 16 || reinterpret_cast<uintptr_t>(piece.to) % 16 ||
        reinterpret_cast<uintptr_t>(piece.from) % 16) {
        emulated::fail("a copy from or to where 16 bytes do not load at once, or of parts of them", "cp.async.bulk", 0);
    }
    for (int i = 0; i < piece.bytes && !emulated::now->waited; i += 16) {
        const uint64_t from = reinterpret_cast<uintptr_t>(piece.from) + static_cast<unsigned>(i);
        emulated::early.emplace(from / 4096, from);
    }
    arrivals.copies.push_back({piece.to, piece.from, static_cast<size_t>(piece.bytes)});
    if (--arrivals.left == 0) arrivals.left = arrivals.lanes, arrivals.done++, arrivals.seen = false;
}
// In the emulation, copying threads arrive before waiting threads, because there is a barrier in between.
void wait_for_arrivals(uint64_t* at, int parity) {
    emulated::Arrivals& arrivals = emulated::arrivals[at];
    if (arrivals.done == 0 || (arrivals.done - 1) % 2 != parity) {
        emulated::fail("waits for copies that nobody has begun", "mbarrier.try_wait", 0);
    }
    for (const emulated::Copy& copy : arrivals.copies) memcpy(copy.to, copy.from, copy.bytes);
    arrivals.copies.clear(), arrivals.seen = true;
}
void show_to_tensor_cores() { emulated::now->unseen = false; }
void begin_products() {
    emulated::of_four_warps(emulated::Kind::BeginProducts, "wgmma.fence");
    emulated::yield();
}
void close_products() {
    emulated::of_four_warps(emulated::Kind::CloseProducts, "wgmma.commit_group");
    emulated::yield();
}

namespace {

std::mutex one_at_a_time;
const char* running;

// Reports faults that the CPU detects: an access to memory that was not allocated, and operations that a GPU does
// differently or not at all. The second kind is detected by the sanitizers of this build.
void noticed(int signal) {
    bool memory = signal == SIGSEGV || signal == SIGBUS;
    emulated::fail(memory ? "memory is read or written that was not given"
                          : "an address that does not suit its type, a shift by a whole word, or a conversion beyond its type",
                   running, 0);
}

// Handles the signals of faults during its lifetime.
class Noticing {
    static constexpr int SIGNALS[] = {SIGSEGV, SIGBUS, SIGILL, SIGTRAP};
    struct sigaction before[4];

public:
    Noticing() {
        struct sigaction ours = {};
        ours.sa_handler = noticed;
        for (int i = 0; i < 4; i++) sigaction(SIGNALS[i], &ours, &before[i]);
    }
    ~Noticing() {
        for (int i = 0; i < 4; i++) sigaction(SIGNALS[i], &before[i], nullptr);
    }
};

}  // namespace

// The other symbols are hidden (-fvisibility=hidden), so that each library uses its own.
#define EXPORTED extern "C" __attribute__((visibility("default")))

// The number of arguments of kernel `name`, and the size of each in bytes. Returns -1 if this file has no such kernel.
EXPORTED int llt_arguments(const char* name, unsigned* bytes) {
    for (size_t i = 0; i < emulated::NUMBER_OF_KERNELS; i++) {
        const emulated::Kernel& kernel = emulated::KERNELS_HERE[i];
        if (strcmp(kernel.name, name) == 0) return static_cast<int>(kernel.sizes(bytes));
    }
    return -1;
}

// Runs kernel `name` over a grid of blocks. Calls `early`, if given, with one address of each page from which a thread
// copied before WAIT_FOR_INPUT. Returns 0 for success, and 1 if this file has no such kernel.
EXPORTED int llt_launch(const char* name, const unsigned grid[3], const unsigned block[3], unsigned shared_bytes,
                        void** args, void (*early)(void* of, uint64_t at), void* of) {
    std::lock_guard<std::mutex> guard(one_at_a_time);
    for (size_t i = 0; i < emulated::NUMBER_OF_KERNELS; i++) {
        const emulated::Kernel& kernel = emulated::KERNELS_HERE[i];
        if (strcmp(kernel.name, name) != 0) continue;
        unsigned threads = block[0] * block[1] * block[2];
        gridDim = {grid[0], grid[1], grid[2]}, blockDim = {block[0], block[1], block[2]};
        if (threads % emulated::WARP != 0) emulated::fail("a block that is not whole warps", name, 0);
        running = name;
        Noticing noticing;
        emulated::body = kernel.run, emulated::body_of = args, emulated::dynamic_bytes = shared_bytes;
        for (unsigned z = 0; z < grid[2]; z++) {
            for (unsigned y = 0; y < grid[1]; y++) {
                for (unsigned x = 0; x < grid[0]; x++) {
                    blockIdx = {x, y, z};
                    emulated::run_block(threads, (x + y + z) % 2 == 1);
                }
            }
        }
        for (const auto& page : emulated::early) {
            if (early) early(of, page.second);
        }
        emulated::early.clear();
        return 0;
    }
    return 1;
}
