// One file of kernels (-DKERNELS='"rms_norm.cu"') as a library that runs them on the CPU: see emulate.hpp.
//
//     c++ -std=c++17 -O1 -Wall -Wno-unknown-pragmas -shared -fPIC -ffp-contract=off -DKERNELS='"rms_norm.cu"' -DPRECISION=F32 emulate.cpp
//
// (The unknown pragma is CUDA's `unroll`.)
#include "emulate.hpp"

#include KERNELS

namespace {

// Calls `kernel` with what `args` points to, as cuLaunchKernel does.
template <class... Args, size_t... I>
void call(void (*kernel)(Args...), void** args, std::index_sequence<I...>) {
    kernel(*static_cast<Args*>(args[I])...);
}
template <class... Args>
void call(void (*kernel)(Args...), void** args) {
    call(kernel, args, std::index_sequence_for<Args...>{});
}

struct Kernel {
    const char* name;
    void (*run)(void* args);
};

#define ENTRY(name) {#name, [](void* args) { call(name, static_cast<void**>(args)); }},
const Kernel KERNELS_HERE[] = {KERNELS_OF_THIS_FILE(ENTRY)};

std::mutex one_at_a_time;

}  // namespace

// Runs kernel `name` over a grid of blocks. 0: it is done; 1: there is no such kernel here.
extern "C" int llt_launch(const char* name, const unsigned grid[3], const unsigned block[3], unsigned shared_bytes,
                          void** args) {
    std::lock_guard<std::mutex> guard(one_at_a_time);
    for (const Kernel& kernel : KERNELS_HERE) {
        if (strcmp(kernel.name, name) != 0) continue;
        unsigned threads = block[0] * block[1] * block[2];
        gridDim = {grid[0], grid[1], grid[2]}, blockDim = {block[0], block[1], block[2]};
        if (threads % emulated::WARP != 0) emulated::fail("a block that is not whole warps", name, 0);
        emulated::body = kernel.run, emulated::body_of = args, emulated::dynamic_bytes = shared_bytes;
        for (unsigned z = 0; z < grid[2]; z++) {
            for (unsigned y = 0; y < grid[1]; y++) {
                for (unsigned x = 0; x < grid[0]; x++) {
                    blockIdx = {x, y, z};
                    emulated::run_block(threads, (x + y + z) % 2 == 1);
                }
            }
        }
        return 0;
    }
    return 1;
}
