// Builds one file of kernels (-DKERNELS='"rms_norm.cu"') as a library that runs them on the CPU: see emulate.hpp.
//
//     c++ -std=c++17 -O1 -Wall -Wno-unknown-pragmas -shared -fPIC -ffp-contract=off -DKERNELS='"rms_norm.cu"' \
//         -DPRECISION=F32 -I ../kernels emulate.cpp
//
// (The unknown pragma is CUDA's `unroll`.)
#include <signal.h>

#include "emulate.hpp"

#include KERNELS

namespace {

// Calls `kernel` with the arguments that `args` points to, like cuLaunchKernel.
template <class... Args, size_t... I>
void call(void (*kernel)(Args...), void** args, std::index_sequence<I...>) {
    kernel(*static_cast<Args*>(args[I])...);
}
template <class... Args>
void call(void (*kernel)(Args...), void** args) {
    call(kernel, args, std::index_sequence_for<Args...>{});
}

// Size of each argument of `kernel` in bytes, and their number.
template <class... Args>
unsigned sizes(void (*)(Args...), unsigned* bytes) {
    ((*bytes++ = sizeof(Args)), ...);
    return sizeof...(Args);
}

struct Kernel {
    const char* name;
    void (*run)(void* args);
    unsigned (*sizes)(unsigned* bytes);
};

#define ENTRY(name)                                                  \
    {#name, [](void* args) { call(name, static_cast<void**>(args)); }, \
     [](unsigned* bytes) { return sizes(name, bytes); }},
const Kernel KERNELS_HERE[] = {KERNELS_OF_THIS_FILE(ENTRY)};

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

// The number of arguments of kernel `name`, and the size of each in bytes. Returns -1 if this file has no such kernel.
extern "C" int llt_arguments(const char* name, unsigned* bytes) {
    for (const Kernel& kernel : KERNELS_HERE) {
        if (strcmp(kernel.name, name) == 0) return static_cast<int>(kernel.sizes(bytes));
    }
    return -1;
}

// Runs kernel `name` over a grid of blocks. Calls `early`, if given, with one address of each page from which a thread
// copied before WAIT_FOR_INPUT. Returns 0 for success, and 1 if this file has no such kernel.
extern "C" int llt_launch(const char* name, const unsigned grid[3], const unsigned block[3], unsigned shared_bytes,
                          void** args, void (*early)(void* of, uint64_t at), void* of) {
    std::lock_guard<std::mutex> guard(one_at_a_time);
    for (const Kernel& kernel : KERNELS_HERE) {
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
