// What a kernel must not do, one thing a kernel: see faults.cpp.
#include "warpgroup.cuh"

KERNEL(64) nothing_wrong(float* out) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    SHARED(float, values, 64);
    values[threadIdx.x] = static_cast<float>(threadIdx.x);
    __syncthreads();
    float sum = sum_of_warp(values[63 - threadIdx.x]);
    if (threadIdx.x % 32 == 0) out[threadIdx.x] = sum;
}

KERNEL(64) no_wait(float* out) {
    if (threadIdx.x == 5) return;
    WAIT_FOR_INPUT();
    out[threadIdx.x] = 1.0f;
}

KERNEL(64) half_a_barrier(float* out) {
    WAIT_FOR_INPUT();
    if (threadIdx.x < 32) __syncthreads();
    out[threadIdx.x] = 1.0f;
}

KERNEL(64) two_barriers(float* out) {
    WAIT_FOR_INPUT();
    if (threadIdx.x < 32) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    out[threadIdx.x] = 1.0f;
}

KERNEL(64) half_a_warp(float* out) {
    WAIT_FOR_INPUT();
    if (threadIdx.x % 32 < 16) out[threadIdx.x] = __shfl_xor_sync(FULL, 1.0f, 1);
}

KERNEL(64) outside_its_mask(float* out) {
    WAIT_FOR_INPUT();
    if (threadIdx.x % 32 < 16) out[threadIdx.x] = __shfl_sync(0xffffu, 1.0f, 20);
}

KERNEL(64) beyond_its_array(float* out) {
    WAIT_FOR_INPUT();
    SHARED(float, values, 64);
    values[threadIdx.x + 1] = 1.0f;
    out[threadIdx.x] = 1.0f;
}

KERNEL(64) beyond_what_the_launch_gave(float* out) {
    WAIT_FOR_INPUT();
    DYNAMIC_SHARED(float, values);
    values[threadIdx.x / 3] = 1.0f;
    out[threadIdx.x] = 1.0f;
}

KERNEL(64) copies_left(float* out) {
    WAIT_FOR_INPUT();
    SHARED(float, values, 4);
    copy16_async_if(true, values, out);
    close_copies();
}

// No fault that is noticed by itself, but one whose result differs: in blocks with odd numbers, whose threads run from the
// last to the first, a thread reads what its neighbour has not written yet.
KERNEL(64) missing_barrier(float* out) {
    WAIT_FOR_INPUT();
    SHARED(float, values, 64);
    values[threadIdx.x] = 1.0f;
    if (threadIdx.x == 63 && !(values[0] == 1.0f)) emulated::fail("shared memory is read before it is written", "", 0);
    if (threadIdx.x == 0 && !(values[63] == 1.0f)) emulated::fail("shared memory is read before it is written", "", 0);
    out[threadIdx.x] = 1.0f;
}

// Four bytes from an address that is not divisible by four: a GPU gives up there.
KERNEL(64) address_inside_a_word(float* out) {
    WAIT_FOR_INPUT();
    out[threadIdx.x] = *reinterpret_cast<const float*>(reinterpret_cast<const char*>(out) + threadIdx.x + 1);
}

// A GPU gives 0, this processor another value.
KERNEL(64) shift_by_a_word(float* out) {
    WAIT_FOR_INPUT();
    out[threadIdx.x] = static_cast<float>(1u << threadIdx.x);
}

// A GPU gives the largest integer, this processor another value.
KERNEL(64) beyond_an_integer(float* out) {
    WAIT_FOR_INPUT();
    out[threadIdx.x] = static_cast<float>(static_cast<int>(3e9f + static_cast<float>(threadIdx.x)));
}

KERNEL(64) memory_that_was_not_given(float* out) {
    WAIT_FOR_INPUT();
    const volatile float* nowhere = reinterpret_cast<const float*>(uintptr_t{64});
    out[threadIdx.x] = nowhere[threadIdx.x];
}

// What follows has two times four warps, and 64 rows of 64 values in bfloat16 for each of two operands.
__device__ inline void multiply(float (&sums)[32], const uint16_t* a, const uint16_t* b) {
    multiply_async<false>(sums, operand(a), operand(b));
}

// One product of the tiles a and b, begun.
__device__ inline void begin(float (&sums)[32], const uint16_t* a, const uint16_t* b) {
    begin_products();
    multiply(sums, a, b);
    close_products();
}

// The tiles of shared memory that a launch has, from a multiple of 1,024 bytes on.
#define TILES(name)                 \
    DYNAMIC_SHARED(uint16_t, all); \
    uint16_t* const name = all + (-shared_address(all) & 1023) / 2

KERNEL(256) products(float* out) {
    WAIT_FOR_INPUT();
    TILES(tiles);
    for (int i = threadIdx.x; i < 2 * 64 * 64; i += 256) tiles[i] = to_bf16(1.0f);
    show_to_tensor_cores();
    __syncthreads();
    float sums[32];
    begin(sums, tiles, tiles + 64 * 64);
    take_sums(sums);
    if (sums[0] != 16.0f || sums[31] != 16.0f) emulated::fail("a product is wrong", "", 0);
    if (threadIdx.x < 64) out[threadIdx.x] = sums[0];
}

KERNEL(256) half_of_four_warps(float* out) {
    WAIT_FOR_INPUT();
    if (threadIdx.x % 128 < 64) begin_products();
    if (threadIdx.x < 64) out[threadIdx.x] = 1.0f;
}

KERNEL(256) product_without_a_fence(float* out) {
    WAIT_FOR_INPUT();
    TILES(tiles);
    float sums[32];
    multiply(sums, tiles, tiles + 64 * 64);
    if (threadIdx.x < 64) out[threadIdx.x] = sums[0];
}

KERNEL(256) copies_not_shown(float* out) {
    WAIT_FOR_INPUT();
    TILES(tiles);
    copy16_async_if(true, tiles + 8 * threadIdx.x, out);
    close_copies();
    wait_for_copies<0>();
    __syncthreads();
    float sums[32];
    begin(sums, tiles, tiles + 64 * 64);
    take_sums(sums);
}

KERNEL(256) operands_that_differ(float* out) {
    WAIT_FOR_INPUT();
    TILES(tiles);
    float sums[32];
    begin_products();
    multiply(sums, tiles, tiles + threadIdx.x % 128 / 32 * 64 * 8);
    if (threadIdx.x < 64) out[threadIdx.x] = sums[0];
}

KERNEL(256) operand_outside(float* out) {
    WAIT_FOR_INPUT();
    TILES(tiles);
    float sums[32];
    begin_products();
    multiply(sums, tiles, tiles + 2 * 64 * 64);
    if (threadIdx.x < 64) out[threadIdx.x] = sums[0];
}

KERNEL(256) copied_over(float* out) {
    WAIT_FOR_INPUT();
    TILES(tiles);
    float sums[32];
    begin(sums, tiles, tiles + 64 * 64);
    copy16_async_if(true, tiles + 64 * 64, out);
}

KERNEL(256) written_over(float* out) {
    WAIT_FOR_INPUT();
    TILES(tiles);
    float sums[32];
    begin(sums, tiles, tiles + 64 * 64);
    if (threadIdx.x == 0) tiles[64] = 0;
    take_sums(sums);
    if (threadIdx.x < 64) out[threadIdx.x] = sums[0];
}

KERNEL(256) products_left(float* out) {
    WAIT_FOR_INPUT();
    TILES(tiles);
    float sums[32];
    begin(sums, tiles, tiles + 64 * 64);
    if (threadIdx.x < 64) out[threadIdx.x] = 1.0f;
}

#define KERNELS_OF_THIS_FILE(X)                                                                              \
    X(nothing_wrong) X(no_wait) X(half_a_barrier) X(two_barriers) X(half_a_warp) X(outside_its_mask)         \
    X(beyond_its_array) X(beyond_what_the_launch_gave) X(copies_left) X(missing_barrier)                     \
    X(address_inside_a_word) X(shift_by_a_word) X(beyond_an_integer) X(memory_that_was_not_given)            \
    X(products) X(half_of_four_warps) X(product_without_a_fence) X(copies_not_shown) X(operands_that_differ) \
    X(operand_outside) X(copied_over) X(written_over) X(products_left)
