// Tensor cores, and asynchronous copies into shared memory. The emulation has its own versions (emulate.hpp).
#pragma once
#include "common.cuh"

#ifndef LLT_EMULATED
__device__ inline uint32_t shared_address(const void* at) { return static_cast<uint32_t>(__cvta_generic_to_shared(at)); }

// Starts to copy 16 bytes from global to shared memory. The copy bypasses the first-level cache. If `there` is false,
// zeros are written instead.
__device__ inline void copy16_async_if(bool there, void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}
// A place in shared memory, whose address is computed once.
using SharedPlace = uint32_t;
__device__ inline SharedPlace shared_place(void* at) { return shared_address(at); }
// These two do the same with a hint that the neighbouring bytes are read too. The second one copies only the first
// `bytes` bytes: the others become zeros, and their source is not read.
__device__ inline void copy16_async(SharedPlace to, const void* from) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void copy16_async(SharedPlace to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
// Commits the copies started since the last call as one group.
__device__ inline void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most LEFT groups are unfinished.
template <int LEFT>
__device__ inline void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// Copies a whole piece from global to shared memory. Both addresses and the number of bytes are multiples of 16.
struct AsyncPiece {
    SharedPlace to;
    const uint8_t* from;
    int bytes;
};
// A word of shared memory that counts arrived lanes and finished copies. Its next phase begins when `lanes` lanes have
// called copy_async and all their copies are complete. The calling thread may use the word after show_arrivals. Other
// threads may use it after a barrier that follows.
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
// Waits until a phase is complete. `parity` is the lowest bit of its number.
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

// sums (16, 8) += a (16, 16) · b (16, 8), by the whole warp. a and b are bfloat16, two in a register. PTX defines which
// values a lane's registers have (mma.m16n8k16). With g = lane / 4 and t = 2 · (lane mod 4), they are: of a (g, t), (g
// + 8, t), (g, t + 8), (g + 8, t + 8); of b (t, g), (t + 8, g); of sums (g, t), (g, t + 1), (g + 8, t), (g + 8, t + 1).
__device__ inline void multiply_tiles(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The same for float16 values.
__device__ inline void multiply_half_tiles(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Rounds two float32 values to float16 (to the nearest, ties to even). The first is in the lower half of the result.
__device__ inline uint32_t pair_half(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// out (16, 8) = add + a (16, 32) · b (32, 8) in integers, by the whole warp. a and b are signed bytes, four in a
// register (PTX, mma.m16n8k32). With g = lane / 4 and t = 4 · (lane mod 4), a lane has: of a (g, t) to (g, t + 3), (g +
// 8, t …), (g, t + 16 …), (g + 8, t + 16 …); of b (t …, g), (t + 16 …, g); of out as in multiply_tiles.
__device__ inline void multiply_bytes(int (&out)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const int (&add)[4]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};"
        : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(add[0]), "r"(add[1]), "r"(add[2]),
          "r"(add[3]));
}

// The same for a (16, 16) and b (16, 8). The registers are those that multiply_bytes has for the first 16 inputs.
__device__ inline void multiply_half_bytes(int (&out)[4], const uint32_t (&a)[2], uint32_t b, const int (&add)[4]) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"
        : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
        : "r"(a[0]), "r"(a[1]), "r"(b), "r"(add[0]), "r"(add[1]), "r"(add[2]), "r"(add[3]));
}

// Loads four matrices of 8 × 8 16-bit values from shared memory. Lane 8m + r gives the address of row r of matrix m,
// which has 16 bytes. With g and t as in multiply_tiles, a lane gets (g, t) and (g, t + 1) of each matrix or, if
// TRANSPOSED, (t, g) and (t + 1, g).
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

// The product of multiply_bytes above, added to the previous `sums`.
__device__ inline void multiply_bytes(int (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    multiply_bytes(sums, a, b, sums);
}
__device__ inline void multiply_bytes(int (&sums)[4], const uint32_t (&a)[2], uint32_t b) { multiply_half_bytes(sums, a, b, sums); }
