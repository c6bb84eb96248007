// Tensor cores, and copies into shared memory that go on by themselves. The emulation has its own (emulate.hpp).
#pragma once
#include "common.cuh"

#ifndef LLT_EMULATED
__device__ inline uint32_t shared_address(const void* at) { return static_cast<uint32_t>(__cvta_generic_to_shared(at)); }

// Begins to copy 16 bytes from global to shared memory, past the first-level cache, where they are `there`; otherwise zeros.
__device__ inline void copy16_async_if(bool there, void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}
// A place in shared memory, of which the address is found once.
using SharedPlace = uint32_t;
__device__ inline SharedPlace shared_place(void* at) { return shared_address(at); }
// The same of 16 bytes, whose neighbours are read too; and of the first `bytes` of them: the others become zeros, and where they
// come from is not read.
__device__ inline void copy16_async(SharedPlace to, const void* from) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void copy16_async(SharedPlace to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
// The copies begun since the last call are a group.
__device__ inline void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most LEFT groups are under way.
template <int LEFT>
__device__ inline void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// A whole piece that is copied from global to shared memory: its places and its number of bytes are divisible by 16.
struct AsyncPiece {
    SharedPlace to;
    const uint8_t* from;
    int bytes;
};
// A word of shared memory that counts who has come, and what was copied: it goes on to its next phase once `lanes` lanes have
// called copy_async and all that they copy is there. After show_arrivals it may be used, by others after they met at a barrier.
__device__ inline void begin_arrivals(uint64_t* arrivals, int lanes) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(arrivals)), "r"(lanes) : "memory");
}
#if __CUDA_ARCH__ >= 900
__device__ inline void show_arrivals() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void copy_async(uint64_t* arrivals, const AsyncPiece& piece) {
    const uint32_t at = shared_address(arrivals);
    asm volatile("{\n.reg .b64 phase;\nmbarrier.arrive.expect_tx.shared.b64 phase, [%0], %1;\n}" ::"r"(at), "r"(piece.bytes)
                 : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(piece.to),
                 "l"(piece.from), "r"(piece.bytes), "r"(at)
                 : "memory");
}
#else
__device__ inline void show_arrivals() {}
__device__ inline void copy_async(uint64_t* arrivals, const AsyncPiece& piece) {
    for (int at = 0; at < piece.bytes; at += 16) copy16_async(piece.to + at, piece.from + at);
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(arrivals)) : "memory");
}
#endif
// Waits until a phase is done: its number's lowest bit is `parity`.
__device__ inline void wait_for_arrivals(uint64_t* arrivals, int parity) {
    uint32_t done;
    do {
#if __CUDA_ARCH__ >= 900
        asm volatile("{\n.reg .pred done;\nmbarrier.try_wait.parity.shared.b64 done, [%1], %2;\nselp.u32 %0, 1, 0, done;\n}"
#else
        asm volatile("{\n.reg .pred done;\nmbarrier.test_wait.parity.shared.b64 done, [%1], %2;\nselp.u32 %0, 1, 0, done;\n}"
#endif
                     : "=r"(done)
                     : "r"(shared_address(arrivals)), "r"(parity)
                     : "memory");
    } while (!done);
}

// sums (16, 8) += a (16, 16) · b (16, 8), a warp together. a and b are bfloat16, two in a register; where a lane's registers
// belong is said by PTX (mma.m16n8k16): with g = lane / 4 and t = 2 · (lane mod 4), a has (g, t), (g + 8, t), (g, t + 8),
// (g + 8, t + 8), b has (t, g), (t + 8, g), and sums (g, t), (g, t + 1), (g + 8, t), (g + 8, t + 1).
__device__ inline void multiply_tiles(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The same of float16 values.
__device__ inline void multiply_half_tiles(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Two neighbouring float16 values, the first the lower half: each the nearest to a float32, ties to even.
__device__ inline uint32_t pair_half(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// out (16, 8) = add + a (16, 32) · b (32, 8) in whole numbers, a warp together: signed bytes, four in a register (PTX,
// mma.m16n8k32): with g = lane / 4 and t = 4 · (lane mod 4), a has (g, t) to (g, t + 3), (g + 8, t …), (g, t + 16 …),
// (g + 8, t + 16 …), b has (t …, g), (t + 16 …, g), and out is as in multiply_tiles.
__device__ inline void multiply_bytes(int (&out)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const int (&add)[4]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};"
        : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(add[0]), "r"(add[1]), "r"(add[2]),
          "r"(add[3]));
}

// The same of a (16, 16) and b (16, 8): the first of those registers, of each 16 inputs.
__device__ inline void multiply_half_bytes(int (&out)[4], const uint32_t (&a)[2], uint32_t b, const int (&add)[4]) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"
        : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
        : "r"(a[0]), "r"(a[1]), "r"(b), "r"(add[0]), "r"(add[1]), "r"(add[2]), "r"(add[3]));
}

// Four matrices of 8 × 8 16-bit values from shared memory: lane 8m + r names row r of matrix m, 16 bytes. A lane gets
// (g, t) and (g, t + 1) of each, of a TRANSPOSED one (t, g) and (t + 1, g).
template <bool TRANSPOSED>
__device__ inline void load_matrices(uint32_t (&to)[4], const void* row) {
    if constexpr (TRANSPOSED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(shared_address(row))
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(shared_address(row))
                     : "memory");
    }
}
#endif

// The same added to what `sums` were.
__device__ inline void multiply_bytes(int (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    multiply_bytes(sums, a, b, sums);
}
__device__ inline void multiply_bytes(int (&sums)[4], const uint32_t (&a)[2], uint32_t b) { multiply_half_bytes(sums, a, b, sums); }
