// What a kernel must not do, one thing a kernel: see faults.cpp.
#include "common.cuh"

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
    copy16_async(values, out);
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

#define KERNELS_OF_THIS_FILE(X)                                                                            \
    X(nothing_wrong) X(no_wait) X(half_a_barrier) X(two_barriers) X(half_a_warp) X(outside_its_mask)       \
    X(beyond_its_array) X(beyond_what_the_launch_gave) X(copies_left) X(missing_barrier)        \
    X(address_inside_a_word) X(shift_by_a_word) X(beyond_an_integer) X(memory_that_was_not_given)
