// Products with many rows of activations in bfloat16, on tensor cores: out[row, o] = Σ_i x[row, i] · w[o, i] (+ b[o]).
#include "tiles.cuh"

// Number of inputs of a tile, and number of tiles in shared memory: one tile is multiplied while asynchronous copies
// fill the others.
constexpr int DEPTH = 32, STAGES = 4;

// The sums of a block; each of its DOWN · ACROSS warps has a part of them. Every sum adds the inputs in their order, 16
// at a time, for all tile sizes.
template <int ROWS_, int OUTPUTS_, int DOWN, int ACROSS>
struct Tile {
    static constexpr int ROWS = ROWS_, OUTPUTS = OUTPUTS_, THREADS = 32 * DOWN * ACROSS;
    static constexpr int WARP_ROWS = ROWS / DOWN, WARP_OUTPUTS = OUTPUTS / ACROSS, A = WARP_ROWS / 16, B = WARP_OUTPUTS / 8;

    float sums[A][B][4];  // row tile, output tile, values of a lane

    // The first row and the first output of the thread's warp.
    __device__ static int warp_row() { return threadIdx.x / 32 % DOWN * WARP_ROWS; }
    __device__ static int warp_output() { return threadIdx.x / 32 / DOWN * WARP_OUTPUTS; }

    // Multiplies this block's tile, and calls `finish` with its number. x_of and w_of return the rows of x and of the
    // weights of a tile.
    template <class XOf, class WOf, class Finish>
    __device__ void each_tile(int, XOf x_of, WOf w_of, int inputs, Finish finish) {
        multiply({x_of(blockIdx.x), inputs}, {w_of(blockIdx.x), inputs}, inputs);
        finish(blockIdx.x);
    }

    // Multiplies a tile. Waits for the input.
    __device__ void multiply(Copier<DEPTH, ROWS, THREADS> x, Copier<DEPTH, OUTPUTS, THREADS> w, int inputs) {
        constexpr int BOTH = (ROWS + OUTPUTS) * DEPTH;
        DYNAMIC_SHARED(uint16_t, tiles);  // tile of x, and tile of w, of each stage
        const int steps = ceil_div(inputs, DEPTH), lane = threadIdx.x % 32;
        auto copy_x = [&](int step) { x.copy(tiles + step % STAGES * BOTH, step); };
        auto copy_w = [&](int step) { w.copy(tiles + step % STAGES * BOTH + ROWS * DEPTH, step); };
        // The operands of the warp's current 16 inputs, and those of the next 16 inputs.
        uint32_t a[2][A][4], b[2][B][2];
        auto load = [&](int step, int half) {
            const uint16_t* x_tile = tiles + step % STAGES * BOTH + warp_row() * DEPTH;
            const uint16_t* w_tile = tiles + step % STAGES * BOTH + (ROWS + warp_output()) * DEPTH;
            const int x_row = lane % 16, w_row = lane / 16 * 8 + lane % 8;
            x_tile += x_row * DEPTH + ((2 * half + lane / 16) ^ swizzle<DEPTH>(x_row)) * 8;
            w_tile += w_row * DEPTH + ((2 * half + lane / 8 % 2) ^ swizzle<DEPTH>(w_row)) * 8;
#pragma unroll
            for (int i = 0; i < A; i++) load_matrices<false>(a[half][i], x_tile + 16 * i * DEPTH);
#pragma unroll
            for (int j = 0; j < B; j += 2) {
                uint32_t four[4];
                load_matrices<false>(four, w_tile + 8 * j * DEPTH);
                b[half][j][0] = four[0], b[half][j][1] = four[1], b[half][j + 1][0] = four[2], b[half][j + 1][1] = four[3];
            }
        };

#pragma unroll
        for (int i = 0; i < A; i++) {
#pragma unroll
            for (int j = 0; j < B; j++) sums[i][j][0] = sums[i][j][1] = sums[i][j][2] = sums[i][j][3] = 0.0f;
        }
        // The weights do not depend on the previous kernel, so their copies start before it ends.
        for (int step = 0; step < STAGES - 1 && step < steps; step++) copy_w(step);
        WAIT_FOR_INPUT();
        for (int step = 0; step < STAGES - 1; step++) {
            if (step < steps) copy_x(step);
            close_copies();
        }
        wait_for_copies<STAGES - 2>();
        __syncthreads();
        load(0, 0);
        for (int step = 0; step < steps; step++) {
#pragma unroll
            for (int half = 0; half < DEPTH / 16; half++) {
                if (half == 0) {
                    load(step, 1);
                    // All threads have loaded all operands from the previous stage. So the next copies may replace it.
                    if (step + STAGES - 1 < steps) copy_x(step + STAGES - 1), copy_w(step + STAGES - 1);
                    close_copies();
                } else {
                    // After the wait and the barrier, the copies of all threads for the next stage are complete.
                    wait_for_copies<STAGES - 2>();
                    __syncthreads();
                    if (step + 1 < steps) load(step + 1, 0);
                }
#pragma unroll
                for (int i = 0; i < A; i++) {
#pragma unroll
                    for (int j = 0; j < B; j++) multiply_tiles(sums[i][j], a[half][i], b[half][j]);
                }
            }
        }
        wait_for_copies<0>();
    }

    // For all sums of the thread: calls `finish` with a row and an output of the tile, and the sums of this output and
    // of the next output.
    template <class Finish>
    __device__ void each(Finish finish) const {
        each_of<B>([&](int row, int i, int j, int k) {
            finish(row, warp_output() + 8 * j + threadIdx.x % 4 * 2, float2{sums[i][j][k], sums[i][j][k + 1]});
        });
    }

    // The same for two matrices: calls `finish` with a row, an output, and the sums of this output and of the next
    // output for both matrices.
    template <class Finish>
    __device__ void each_two(Finish finish) const {
        each_of<B / 2>([&](int row, int i, int j, int k) {
            finish(row, warp_output() / 2 + 8 * j + threadIdx.x % 4 * 2, float2{sums[i][2 * j][k], sums[i][2 * j][k + 1]},
                   float2{sums[i][2 * j + 1][k], sums[i][2 * j + 1][k + 1]});
        });
    }

    template <int TILES, class Call>
    __device__ static void each_of(Call call) {
#pragma unroll
        for (int i = 0; i < A; i++) {
#pragma unroll
            for (int j = 0; j < TILES; j++) {
#pragma unroll
                for (int down = 0; down < 2; down++) {
                    call(warp_row() + 16 * i + threadIdx.x % 32 / 4 + 8 * down, i, j, 2 * down);
                }
            }
        }
    }
};

using Large = Tile<128, 256, 2, 4>;
using Small = Tile<64, 64, 2, 2>;

// Up to three products of x (rows, I) with weights w (O, I), both in bfloat16. Each product writes out (rows, O), with
// sums in float32. I is a multiple of 8. Grid (ceil(rows / 128) · Σ ceil(O / 256)), the products one after the other;
// block 256; shared memory 98,304 bytes. Neighbouring blocks read the same weights.
KERNEL_WITH(256, 1) matmul_bf16_256(Products products, const uint16_t* x, int rows) {
    LET_NEXT_START();
    matmul<Large>(products, x, rows);
}

// Does the same as matmul_bf16_256, with the same bits, for sizes with too few large tiles for all multiprocessors.
// Grid (ceil(rows / 64) · Σ ceil(O / 64)), block 128; shared memory 32,768 bytes.
KERNEL_WITH(128, 4) matmul_bf16_64(Products products, const uint16_t* x, int rows) {
    LET_NEXT_START();
    matmul<Small>(products, x, rows);
}

// gate = x · w1ᵀ, silu(gate), up = x · w3ᵀ and silu · up = hidden, (rows, F) each, with the bits of matmul_bf16, silu
// and mul. F is even. If `narrow` is not null, hidden is also written to `narrow`, in bfloat16. Either all four float32
// outputs are null, or none of them. Grid (ceil(rows / 128) · ceil(F / 128)), block 256, shared memory 98,304 bytes.
KERNEL_WITH(256, 1) swiglu_bf16_256(const uint16_t* x, int rows, Gated gated, uint16_t* narrow) {
    LET_NEXT_START();
    swiglu<Large>(x, rows, gated, narrow);
}
// The same in small tiles. Grid (ceil(rows / 64) · ceil(F / 32)), block 128, shared memory 32,768 bytes.
KERNEL_WITH(128, 4) swiglu_bf16_64(const uint16_t* x, int rows, Gated gated, uint16_t* narrow) {
    LET_NEXT_START();
    swiglu<Small>(x, rows, gated, narrow);
}

#define KERNELS_OF_THIS_FILE(X) X(matmul_bf16_256) X(matmul_bf16_64) X(swiglu_bf16_256) X(swiglu_bf16_64)
