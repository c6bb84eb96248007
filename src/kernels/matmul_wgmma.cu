// The products of matmul_bf16.cu on compute capability 9.0: out[row, o] = Σ_i x[row, i] · w[o, i] (+ b[o]), in
// bfloat16, on the tensor cores that four warps use together.
#include "warpgroup.cuh"

// DEPTH: number of inputs of a tile. They are 128 bytes of a row, the swizzle width of these tensor cores. STAGES:
// number of tiles in shared memory. Two are multiplied while asynchronous copies fill the other two.
constexpr int DEPTH = 64, STAGES = 4;

// The sums of a block. Each of its GROUPS groups of four warps has 64 rows. Every sum adds the inputs in their order,
// 16 at a time, for all tile sizes.
template <int GROUPS, int OUTPUTS_>
struct Tile {
    static constexpr int ROWS = 64 * GROUPS, OUTPUTS = OUTPUTS_, THREADS = GROUP * GROUPS;
    float sums[OUTPUTS / 2];

    // Multiplies each of the `count` tiles that belongs to this block, and calls `finish` with its number. x_of and
    // w_of return the rows of x and of the weights of a tile. While a tile is finished, the operands of the next tile
    // are copied. Waits for the input.
    template <class XOf, class WOf, class Finish>
    __device__ void each_tile(int count, XOf x_of, WOf w_of, int inputs, Finish finish) {
        constexpr int BOTH = (ROWS + OUTPUTS) * DEPTH;
        DYNAMIC_SHARED(uint16_t, memory);
        // Shared memory of each stage for x and for w, each at a multiple of 1,024 bytes.
        uint16_t* const stages = memory + (-shared_address(memory) & 1023) / 2;
        const int steps = ceil_div(inputs, DEPTH), group = threadIdx.x / GROUP;
        // The next step to copy: its tile, its step in the tile, and its number. Steps are numbered through all tiles
        // of the block.
        int tile = blockIdx.x, step = 0, number = 0;
        Copier<DEPTH, ROWS, THREADS> x(x_of(tile), inputs);
        Copier<DEPTH, OUTPUTS, THREADS> w(w_of(tile), inputs);
        auto copy_x = [&] { x.copy(stages + number % STAGES * BOTH, step); };
        auto copy_w = [&] { w.copy(stages + number % STAGES * BOTH + ROWS * DEPTH, step); };
        auto copied = [&] {
            number++;
            if (++step < steps) return;
            step = 0, tile += gridDim.x;
            if (tile < count) x = {x_of(tile), inputs}, w = {w_of(tile), inputs};
        };
        auto copy = [&] {
            if (tile < count) copy_x(), copy_w(), copied();
            close_copies();
        };
        // Waits until the copies of all threads for a step are complete. Then all threads have also finished the step
        // before the previous one, which the next copies replace.
        auto wait = [&] {
            wait_for_copies<1>();
            show_to_tensor_cores();
            __syncthreads();
        };
        auto begin = [&](int now, auto first) {
            const uint16_t* x_tile = stages + now % STAGES * BOTH + group * 64 * DEPTH;
            const uint16_t* w_tile = stages + now % STAGES * BOTH + ROWS * DEPTH;
            begin_products();
            multiply_async<!first.value>(sums, operand(x_tile), operand(w_tile));
#pragma unroll
            for (int i = 16; i < DEPTH; i += 16) multiply_async<true>(sums, operand(x_tile + i), operand(w_tile + i));
            close_products();
        };

        // The weights do not depend on the previous kernel. So the weights of the first steps are copied before the
        // wait.
        const int early = min(2, steps);
        for (; step < early; step++, number++) copy_w();
        WAIT_FOR_INPUT();
        step = number = 0;
        for (int i = 0; i < early; i++) {
            copy_x(), copied();
            close_copies();
        }
        if (early < 2) copy();
        int now = 0;
        for (int own = blockIdx.x; own < count; own += gridDim.x) {
            wait();
            begin(now++, Number<1>{});
            copy();
            for (int i = 1; i < steps; i++) {
                wait();
                begin(now++, Number<0>{});
                copy();
                wait_for_products<1>();
            }
            take_sums(sums);
            finish(own);
        }
        wait_for_copies<0>();
    }

    // For all sums of the thread: calls `finish` with a row and an output of the tile, and the sums of this output and
    // of the next output.
    template <class Finish>
    __device__ void each(Finish finish) const {
        each_of<1>([&](int row, int output, int i) { finish(row, output, float2{sums[i], sums[i + 1]}); });
    }

    // The same for two matrices: calls `finish` with a row, an output, and the sums of this output and of the next
    // output for both matrices.
    template <class Finish>
    __device__ void each_two(Finish finish) const {
        each_of<2>([&](int row, int output, int i) {
            finish(row, output, float2{sums[i], sums[i + 1]}, float2{sums[i + 4], sums[i + 5]});
        });
    }

    // For all sums of the thread: calls `call` with a row, an output of one matrix, and the number of the sum. The
    // columns of the sums alternate between MATRICES matrices.
    template <int MATRICES, class Call>
    __device__ static void each_of(Call call) {
        const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
        for (int down = 0; down < 2; down++) {
#pragma unroll
            for (int j = 0; j < OUTPUTS / 8 / MATRICES; j++) {
                call(row + 8 * down, 8 * j + lane % 4 * 2, 4 * MATRICES * j + 2 * down);
            }
        }
    }
};

using Huge = Tile<3, 256>;
using Large = Tile<2, 256>;
using Small = Tile<1, 64>;

// Up to three products of x (rows, I) with weights w (O, I), both in bfloat16. Each product writes out (rows, O), with
// sums in float32. I is a multiple of 8. Tiles: ceil(rows / 192) · Σ ceil(O / 256), the products one after the other.
// Grid: this number, but at most as many blocks as fit on the device; block 384; shared memory 230,400 bytes. The
// bandwidth of the second-level cache is the limit. Of all tile sizes that fit, this one reads the fewest bytes per
// product.
KERNEL_WITH(384, 1) matmul_wgmma_192(Products products, const uint16_t* x, int rows) {
    LET_NEXT_START();
    matmul<Huge>(products, x, rows);
}

// Does the same as matmul_wgmma_192, with the same bits, in tiles of 128 rows. Tiles: ceil(rows / 128) · Σ ceil(O /
// 256). Grid: up to this number; block 256; shared memory 197,632 bytes. Neighbouring blocks read the same weights.
KERNEL_WITH(256, 1) matmul_wgmma_256(Products products, const uint16_t* x, int rows) {
    LET_NEXT_START();
    matmul<Large>(products, x, rows);
}

// Does the same, with the same bits, for sizes with too few large tiles for all multiprocessors. Tiles: ceil(rows / 64)
// · Σ ceil(O / 64). Grid: up to this number; block 128; shared memory 66,560 bytes.
KERNEL_WITH(128, 3) matmul_wgmma_64(Products products, const uint16_t* x, int rows) {
    LET_NEXT_START();
    matmul<Small>(products, x, rows);
}

// Computes the same as swiglu_bf16 of matmul_bf16.cu, with the bits of matmul_wgmma, silu and mul. Tiles: ceil(rows /
// 192) · ceil(F / 128). Grid: up to this number; block 384; shared memory 230,400 bytes.
KERNEL_WITH(384, 1) swiglu_wgmma_192(const uint16_t* x, int rows, Gated gated, uint16_t* narrow) {
    LET_NEXT_START();
    swiglu<Huge>(x, rows, gated, narrow);
}
// The same in tiles of 128 rows. Tiles: ceil(rows / 128) · ceil(F / 128). Grid: up to this number; block 256; shared
// memory 197,632 bytes.
KERNEL_WITH(256, 1) swiglu_wgmma_256(const uint16_t* x, int rows, Gated gated, uint16_t* narrow) {
    LET_NEXT_START();
    swiglu<Large>(x, rows, gated, narrow);
}
// The same in small tiles. Tiles: ceil(rows / 64) · ceil(F / 32). Grid: up to this number; block 128; shared memory
// 66,560 bytes.
KERNEL_WITH(128, 3) swiglu_wgmma_64(const uint16_t* x, int rows, Gated gated, uint16_t* narrow) {
    LET_NEXT_START();
    swiglu<Small>(x, rows, gated, narrow);
}

#define KERNELS_OF_THIS_FILE(X) \
    X(matmul_wgmma_192) X(matmul_wgmma_256) X(matmul_wgmma_64) X(swiglu_wgmma_192) X(swiglu_wgmma_256) X(swiglu_wgmma_64)
