// The products of matmul_bf16.cu on compute capability 9.0: out[row, o] = Σ_i x[row, i] · w[o, i] (+ b[o]), in bfloat16, by
// the tensor cores that four warps use together.
#include "warpgroup.cuh"

// Inputs that a tile has: 128 bytes of a row, which is how far the swizzle of these tensor cores goes. Tiles that are in
// shared memory at a time: two are multiplied, and two come by copies that go on by themselves.
constexpr int DEPTH = 64, STAGES = 4;

// A block's sums, of which each of its GROUPS of four warps has 64 rows. Every sum is over the inputs in their order, 16 at a
// time, whatever the sizes.
template <int GROUPS, int OUTPUTS_>
struct Tile {
    static constexpr int ROWS = 64 * GROUPS, OUTPUTS = OUTPUTS_, THREADS = GROUP * GROUPS;
    // Of two matrices there are so many rows of each.
    static constexpr int HALF = OUTPUTS / 2;

    float sums[OUTPUTS / 2];

    // x and w give where the rows of x and of the weights begin. Waits for the input.
    template <class X, class W>
    __device__ void multiply(X x, W w, int inputs) {
        constexpr int BOTH = (ROWS + OUTPUTS) * DEPTH;
        DYNAMIC_SHARED(uint16_t, memory);
        // Of each stage that of x, and that of w: each on a multiple of 1,024 bytes.
        uint16_t* const tiles = memory + (-shared_address(memory) & 1023) / 2;
        const int steps = ceil_div(inputs, DEPTH), group = threadIdx.x / GROUP;
        auto copy_x = [&](int step) { copy_tile<DEPTH, ROWS, THREADS>(tiles + step % STAGES * BOTH, x, inputs, step); };
        auto copy_w = [&](int step) {
            copy_tile<DEPTH, OUTPUTS, THREADS>(tiles + step % STAGES * BOTH + ROWS * DEPTH, w, inputs, step);
        };
        auto copy = [&](int step) {
            if (step < steps) copy_x(step), copy_w(step);
            close_copies();
        };
        // Once everybody's copies of a stage are there.
        auto wait = [&] {
            wait_for_copies<1>();
            show_to_tensor_cores();
            __syncthreads();
        };
        auto begin = [&](int step, auto first) {
            const uint16_t* x_tile = tiles + step % STAGES * BOTH + group * 64 * DEPTH;
            const uint16_t* w_tile = tiles + step % STAGES * BOTH + ROWS * DEPTH;
            begin_products();
            multiply_async<!first.value>(sums, operand(x_tile), operand(w_tile));
#pragma unroll
            for (int i = 16; i < DEPTH; i += 16) multiply_async<true>(sums, operand(x_tile + i), operand(w_tile + i));
            close_products();
        };

        // Weights are there before the kernel before this one has ended.
        for (int step = 0; step < 2 && step < steps; step++) copy_w(step);
        WAIT_FOR_INPUT();
        for (int step = 0; step < 2; step++) {
            if (step < steps) copy_x(step);
            close_copies();
        }
        wait();
        begin(0, Number<1>{});
        copy(2);
        for (int step = 1; step < steps; step++) {
            // Everybody has also multiplied the stage before the last one, whose place the next copies take.
            wait();
            begin(step, Number<0>{});
            copy(step + 2);
            wait_for_products<1>();
        }
        take_sums(sums);
        wait_for_copies<0>();
    }

    // Calls `finish` with a row and an output of the tile, and the sums for this output and the one after it: all that the
    // thread has.
    template <class Finish>
    __device__ void each(Finish finish) const {
        each_of<OUTPUTS / 8>([&](int row, int output, int i) { finish(row, output, float2{sums[i], sums[i + 1]}); });
    }

    // The same of two matrices, with an output of theirs and the sums of both.
    template <class Finish>
    __device__ void each_two(Finish finish) const {
        each_of<OUTPUTS / 16>([&](int row, int output, int i) {
            finish(row, output, float2{sums[i], sums[i + 1]}, float2{sums[i + HALF / 2], sums[i + HALF / 2 + 1]});
        });
    }

    template <int EIGHTS, class Call>
    __device__ static void each_of(Call call) {
        const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
        for (int j = 0; j < EIGHTS; j++) {
            call(row, 8 * j + lane % 4 * 2, 4 * j);
            call(row + 8, 8 * j + lane % 4 * 2, 4 * j + 2);
        }
    }
};

using Huge = Tile<3, 256>;
using Large = Tile<2, 256>;
using Small = Tile<1, 64>;

// Up to three products of x (rows, I) with w (O, I), both in bfloat16, into out (rows, O) each, with sums in float32; I is a
// multiple of 8.
// Grid (ceil(rows / 192), Σ ceil(O / 256)), the products one after the other; block 384; shared memory 230,400 bytes. Of all
// tiles that fit these read the fewest bytes for what they multiply, and the second-level cache gives no more of them.
KERNEL_WITH(384, 1) matmul_wgmma_192(Products products, const uint16_t* x, int rows) {
    LET_NEXT_START();
    matmul<Huge>(products, x, rows);
}

// The same with the same bits in parts of 128 rows.
// Grid (ceil(rows / 128), Σ ceil(O / 256)), the products one after the other; block 256; shared memory 197,632 bytes. Blocks
// side by side read the same weights.
KERNEL_WITH(256, 1) matmul_wgmma_256(Products products, const uint16_t* x, int rows) {
    LET_NEXT_START();
    matmul<Large>(products, x, rows);
}

// The same with the same bits, where so large parts would not be enough for all multiprocessors.
// Grid (ceil(rows / 64), Σ ceil(O / 64)), block 128; shared memory 66,560 bytes.
KERNEL_WITH(128, 3) matmul_wgmma_64(Products products, const uint16_t* x, int rows) {
    LET_NEXT_START();
    matmul<Small>(products, x, rows);
}

// What swiglu_bf16 of matmul_bf16.cu computes, with the bits of matmul_wgmma, silu and mul.
// Grid (ceil(rows / 192), ceil(F / 128)), block 384, shared memory 230,400 bytes.
KERNEL_WITH(384, 1) swiglu_wgmma_192(const uint16_t* x, int rows, Gated gated, uint16_t* narrow) {
    LET_NEXT_START();
    swiglu<Huge>(x, rows, gated, narrow);
}
// Grid (ceil(rows / 128), ceil(F / 128)), block 256, shared memory 197,632 bytes.
KERNEL_WITH(256, 1) swiglu_wgmma_256(const uint16_t* x, int rows, Gated gated, uint16_t* narrow) {
    LET_NEXT_START();
    swiglu<Large>(x, rows, gated, narrow);
}
// Grid (ceil(rows / 64), ceil(F / 32)), block 128, shared memory 66,560 bytes.
KERNEL_WITH(128, 3) swiglu_wgmma_64(const uint16_t* x, int rows, Gated gated, uint16_t* narrow) {
    LET_NEXT_START();
    swiglu<Small>(x, rows, gated, narrow);
}

#define KERNELS_OF_THIS_FILE(X) \
    X(matmul_wgmma_192) X(matmul_wgmma_256) X(matmul_wgmma_64) X(swiglu_wgmma_192) X(swiglu_wgmma_256) X(swiglu_wgmma_64)
