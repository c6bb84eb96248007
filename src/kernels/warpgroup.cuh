// Tensor cores of compute capability 9.0 (wgmma, of sm_90a). A group of four warps uses them together. The tensor cores
// read both matrices from shared memory while the warps go on. The emulation has its own versions (emulate.hpp).
#pragma once
#include "tiles.cuh"

// Number of threads in a group.
constexpr int GROUP = 128;

// Returns the descriptor of a bfloat16 matrix in shared memory for wgmma (PTX, "Matrix descriptor format"). The matrix
// has a multiple of 8 rows, and 16 columns. The descriptor has the matrix's address, the distance of 1,024 bytes
// between groups of eight rows, and the swizzle of 128 bytes, for rows of 64 values. `at` is in a tile (Copier<64, …>)
// whose own address is a multiple of 1,024, in a row whose number is a multiple of eight. For the next 16 inputs, the
// address is 32 bytes higher.
__device__ inline uint64_t operand(const uint16_t* at) {
    const uint64_t begins = (shared_address(at) & 0x3ffff) >> 4, rows = 1024 >> 4, swizzled = 1;
    return begins | rows << 32 | swizzled << 62;
}

#ifndef LLT_EMULATED
// Makes this thread's finished copies and its own writes to shared memory visible to tensor cores. After a barrier,
// this holds for the copies and writes of other threads too.
__device__ inline void show_to_tensor_cores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Products may be started after this call. It makes sure that the sums' registers have the values that the program gave
// them.
__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Starts the product sums (64, N) = a (64, 16) · b (N, 16)ᵀ. All threads of the group call it. With ADD, it is added to
// the previous sums. For each 8 columns, a thread has the sums that multiply_tiles gives its lane. Warp w of the group
// has rows 16w to 16w + 15.
#define REGISTERS_OF(i)                                                                                      \
    "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3]), "+f"(sums[i + 4]),               \
        "+f"(sums[i + 5]), "+f"(sums[i + 6]), "+f"(sums[i + 7])

template <bool ADD>
__device__ inline void multiply_async(float (&sums)[128], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
        "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "
        "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "
        "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, "
        "%101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, "
        "%117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "%128, %129, %130, 1, 1, 0, 0;"
        : REGISTERS_OF(0), REGISTERS_OF(8), REGISTERS_OF(16), REGISTERS_OF(24), REGISTERS_OF(32), REGISTERS_OF(40),
          REGISTERS_OF(48), REGISTERS_OF(56), REGISTERS_OF(64), REGISTERS_OF(72), REGISTERS_OF(80), REGISTERS_OF(88),
          REGISTERS_OF(96), REGISTERS_OF(104), REGISTERS_OF(112), REGISTERS_OF(120)
        : "l"(a), "l"(b), "n"(ADD));
}

template <bool ADD>
__device__ inline void multiply_async(float (&sums)[32], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
        "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, %34, 1, 1, 0, 0;"
        : REGISTERS_OF(0), REGISTERS_OF(8), REGISTERS_OF(16), REGISTERS_OF(24)
        : "l"(a), "l"(b), "n"(ADD));
}
#undef REGISTERS_OF

// Commits the products started since the last call as one group.
__device__ inline void close_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most LEFT groups are unfinished.
template <int LEFT>
__device__ inline void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

// Waits for all products. Only then may the program use the sums.
template <int HALF>
__device__ inline void take_sums(float (&sums)[HALF]) {
    wait_for_products<0>();
#pragma unroll
    for (int i = 0; i < HALF; i++) asm volatile("" : "+f"(sums[i])::"memory");
}
#endif
