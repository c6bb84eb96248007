// Products with many rows of activations: out[row, o] = Σ_i x[row, i] · w[o, i] (+ b[o]). -DWEIGHT (F32, F16, BF16; what is
// stored otherwise is multiplied a few rows at a time: matvec.cu), -DPRECISION.
#include "tensor.cuh"
#include "weights.cuh"

// The product in float32, of any sizes: a block has 64 rows × 64 outputs, a thread 4 × 4 of them. Products of 256 inputs
// are added up by themselves, and then to those before, so that the results stay near those of ops/matmul.rs: their
// relative L2 distance is under 1e-6.
// Grid (ceil(O / 64), ceil(rows / 64)), block 256.
KERNEL(256) matmul(Product product, const float* x, int rows) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    constexpr int SIDE = 64, DEPTH = 16, STRIDE = SIDE + 4, EACH_SUM = 256;
    SHARED(float, x_tile, DEPTH * STRIDE);
    SHARED(float, w_tile, DEPTH * STRIDE);
    const Matrix& matrix = product.matrix;
    const int inputs = matrix.inputs, outputs = matrix.outputs;
    const int first_row = blockIdx.y * SIDE, first_output = blockIdx.x * SIDE;
    const int across = threadIdx.x % 16, down = threadIdx.x / 16;
    // What is multiplied next is asked for before the last is: a thread has input `across` of every sixteenth row.
    float next_x[4], next_w[4];
    auto ask = [&](int first) {
        int input = first + across;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int row = first_row + down + 16 * k, output = first_output + down + 16 * k;
            bool has_row = row < rows && input < inputs, has_output = output < outputs && input < inputs;
            next_x[k] = has_row ? x[static_cast<long long>(row) * inputs + input] : 0.0f;
            next_w[k] = has_output ? weight_at<WEIGHT, PRECISION>(row_of<WEIGHT>(matrix, output), input) : 0.0f;
        }
    };
    float totals[4][4] = {}, sums[4][4] = {};
    ask(0);
    for (int first = 0; first < inputs; first += DEPTH) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            x_tile[across * STRIDE + down + 16 * k] = next_x[k], w_tile[across * STRIDE + down + 16 * k] = next_w[k];
        }
        __syncthreads();
        ask(first + DEPTH);
#pragma unroll
        for (int i = 0; i < DEPTH; i++) {
            float4 a = *reinterpret_cast<const float4*>(x_tile + i * STRIDE + 4 * down);
            float4 b = *reinterpret_cast<const float4*>(w_tile + i * STRIDE + 4 * across);
            const float rows_of[4] = {a.x, a.y, a.z, a.w}, outputs_of[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
            for (int r = 0; r < 4; r++) {
#pragma unroll
                for (int o = 0; o < 4; o++) sums[r][o] = __fmaf_rn(rows_of[r], outputs_of[o], sums[r][o]);
            }
        }
        __syncthreads();
        if ((first + DEPTH) % EACH_SUM == 0 || first + DEPTH >= inputs) {
#pragma unroll
            for (int r = 0; r < 4; r++) {
#pragma unroll
                for (int o = 0; o < 4; o++) totals[r][o] += sums[r][o], sums[r][o] = 0.0f;
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 4; r++) {
#pragma unroll
        for (int o = 0; o < 4; o++) {
            int row = first_row + 4 * down + r, output = first_output + 4 * across + o;
            if (row >= rows || output >= outputs) continue;
            float sum = product.bias ? __fadd_rn(totals[r][o], product.bias[output]) : totals[r][o];
            product.out[static_cast<long long>(row) * outputs + output] = rounded<PRECISION>(sum);
        }
    }
}

// Where 16 bytes, number `chunk` of four, of row `row` of a tile lie in shared memory: so that eight rows at the same
// chunk lie in all banks.
constexpr int DEPTH = 32;
__device__ inline int place(int row, int chunk) { return row * DEPTH + (chunk ^ (row / 2 & 3)) * 8; }

// The product in bfloat16, by tensor cores: x (rows, I) and w (O, I) in bfloat16, I a multiple of 8, sums in float32. A
// block has 128 rows × 128 outputs, a warp 64 × 32; tiles of 32 inputs come by copies of their own, two ahead.
// Grid (ceil(rows / 128), ceil(O / 128)), block 256. Blocks side by side read the same weights.
KERNEL(256) matmul_bf16(Product product, const uint16_t* x, int rows) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    constexpr int SIDE = 128, STAGES = 3, TILE = SIDE * DEPTH;
    SHARED(uint16_t, tiles, STAGES * 2 * TILE);  // of each stage that of x, and that of w
    const Matrix& matrix = product.matrix;
    const int inputs = matrix.inputs, outputs = matrix.outputs, steps = ceil_div(inputs, DEPTH);
    const int first_row = blockIdx.x * SIDE, first_output = blockIdx.y * SIDE;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warp_row = warp % 2 * 64, warp_output = warp / 2 * 32;
    const uint16_t* weights = static_cast<const uint16_t*>(matrix.values);

    auto load = [&](int step) {
        uint16_t* to = tiles + step % STAGES * 2 * TILE;
        for (int i = threadIdx.x; i < 2 * SIDE * 4; i += blockDim.x) {
            bool of_w = i >= SIDE * 4;
            int row = i / 4 % SIDE, chunk = i % 4, input = step * DEPTH + 8 * chunk;
            // Rows that are not there are the last one again; inputs that are not there are zeros.
            int there = of_w ? min(first_output + row, outputs - 1) : min(first_row + row, rows - 1);
            const uint16_t* from = (of_w ? weights : x) + static_cast<long long>(there) * inputs + input;
            uint16_t* at = to + (of_w ? TILE : 0) + place(row, chunk);
            if (input < inputs) {
                copy16_async(at, from);
            } else {
                *reinterpret_cast<uint4*>(at) = make_uint4(0, 0, 0, 0);
            }
        }
    };

    float sums[4][4][4] = {};  // row tile, output tile, what a lane has of them
    for (int step = 0; step < STAGES - 1; step++) {
        if (step < steps) load(step);
        close_copies();
    }
    for (int step = 0; step < steps; step++) {
        wait_for_copies<STAGES - 2>();
        // Everybody's copies are there, and everybody has done with the stage that is filled next.
        __syncthreads();
        if (step + STAGES - 1 < steps) load(step + STAGES - 1);
        close_copies();
        const uint16_t* x_tile = tiles + step % STAGES * 2 * TILE;
        const uint16_t* w_tile = x_tile + TILE;
#pragma unroll
        for (int half = 0; half < DEPTH / 16; half++) {
            uint32_t a[4][4], b[4][2];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int row = warp_row + 16 * i + lane % 16, chunk = 2 * half + lane / 16;
                load_matrices<false>(a[i], x_tile + place(row, chunk));
            }
#pragma unroll
            for (int j = 0; j < 4; j += 2) {
                int row = warp_output + 8 * j + lane / 16 * 8 + lane % 8, chunk = 2 * half + lane / 8 % 2;
                uint32_t four[4];
                load_matrices<false>(four, w_tile + place(row, chunk));
                b[j][0] = four[0], b[j][1] = four[1], b[j + 1][0] = four[2], b[j + 1][1] = four[3];
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) multiply_tiles(sums[i][j], a[i], b[j]);
            }
        }
    }
    wait_for_copies<0>();
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
#pragma unroll
            for (int k = 0; k < 4; k++) {
                int row = first_row + warp_row + 16 * i + lane / 4 + k / 2 * 8;
                int output = first_output + warp_output + 8 * j + lane % 4 * 2 + k % 2;
                if (row >= rows || output >= outputs) continue;
                float sum = sums[i][j][k];
                if (product.bias) sum = __fadd_rn(sum, product.bias[output]);
                product.out[static_cast<long long>(row) * outputs + output] = rounded<BF16>(sum);
            }
        }
    }
}

#define KERNELS_OF_THIS_FILE(X) X(matmul) X(matmul_bf16)
