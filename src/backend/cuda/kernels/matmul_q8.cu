// Products in whole numbers with many rows, with the bits of matvec_q8.cu and of ops. -DWEIGHT (I8 or a format).
//
// The sixteen partial sums of an output, one for each remainder of a group's number, would take too many registers. So the
// groups of one remainder are multiplied after the other, and the remainders come in the order in which their sums are
// joined by halves: 0, 8, 4, 12, 2 … With the sums of four levels kept, each is joined as soon as its partner is there.
#include "whole.cuh"

template <class W>
constexpr int run_of() {
    if constexpr (IS_BLOCKS<W>) return W::RUN;
    return 32;
}

template <class W>
__device__ inline void multiply(const Product& product, const int8_t* x, const float* x_scales, int group, int rows) {
    constexpr int SIDE = 64, EACH = 4, LEVELS = 4, WORDS = 8;
    constexpr int RUN = run_of<W>();
    constexpr int RUNS = 32 / RUN;
    SHARED(uint32_t, x_words, WORDS * SIDE);  // (word, row)
    SHARED(uint32_t, w_words, WORDS * SIDE);  // (word, output)
    SHARED(float, scales_of_x, SIDE);
    SHARED(float, sums_of_x, 2 * SIDE);  // (run, row)
    SHARED(float, scales_of_w, 2 * SIDE);
    SHARED(float, minima_of_w, 2 * SIDE);
    const Matrix& matrix = product.matrix;
    const int inputs = matrix.inputs, outputs = matrix.outputs, groups = inputs / group, parts = group / 32;
    const int first_row = blockIdx.y * SIDE, first_output = blockIdx.x * SIDE;
    const int across = threadIdx.x % 16, down = threadIdx.x / 16 * EACH;

    // 32 neighbouring values of every row and output: part `part` of group `number`. A thread loads those of one.
    auto load = [&](int number, int part) {
        int mine = threadIdx.x % SIDE;
        if (threadIdx.x < SIDE) {
            int output = min(first_output + mine, outputs - 1);
            Row row = row_of<W>(matrix, output);
            if constexpr (IS_BLOCKS<W>) {
                Group<W> values = group_of<W>(row.bytes, number);
#pragma unroll
                for (int i = 0; i < WORDS; i++) w_words[i * SIDE + mine] = values.q[i];
#pragma unroll
                for (int run = 0; run < RUNS; run++) {
                    scales_of_w[run * SIDE + mine] = values.scale[run];
                    if (W::MINIMA) minima_of_w[run * SIDE + mine] = values.minimum[run];
                }
            } else {
                long long first = static_cast<long long>(number) * group;
                const uint4* at = reinterpret_cast<const uint4*>(row.bytes + first + 32 * part);
                const uint4 a = at[0], b = at[1];
                const uint32_t words[WORDS] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
                for (int i = 0; i < WORDS; i++) w_words[i * SIDE + mine] = words[i];
                scales_of_w[mine] = row.scales[number];
            }
        } else if (threadIdx.x < 2 * SIDE) {
            int row = min(first_row + mine, rows - 1);
            long long first = static_cast<long long>(row) * inputs + static_cast<long long>(number) * group + 32 * part;
            const uint4* at = reinterpret_cast<const uint4*>(x + first);
            const uint4 a = at[0], b = at[1];
            const uint32_t words[WORDS] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
            int sums[2] = {};
#pragma unroll
            for (int i = 0; i < WORDS; i++) {
                x_words[i * SIDE + mine] = words[i];
                sums[4 * i / RUN] = dot4(words[i], ONES, sums[4 * i / RUN]);
            }
            scales_of_x[mine] = x_scales[static_cast<long long>(row) * groups + number];
            sums_of_x[mine] = static_cast<float>(sums[0]), sums_of_x[SIDE + mine] = static_cast<float>(sums[1]);
        }
    };

    float joined[LEVELS][EACH][EACH], sums[EACH][EACH];
    for (int step = 0; step < LANES; step++) {
        // The bits of the step in the other direction.
        int remainder = (step & 1) << 3 | (step & 2) << 1 | (step & 4) >> 1 | step >> 3;
#pragma unroll
        for (int r = 0; r < EACH; r++) {
#pragma unroll
            for (int o = 0; o < EACH; o++) sums[r][o] = 0.0f;
        }
        for (int number = remainder; number < groups; number += LANES) {
            int products[RUNS][EACH][EACH] = {};
            for (int part = 0; part < parts; part++) {
                load(number, part);
                __syncthreads();
#pragma unroll
                for (int i = 0; i < WORDS; i++) {
                    uint32_t of_x[EACH], of_w[EACH];
#pragma unroll
                    for (int k = 0; k < EACH; k++) {
                        of_x[k] = x_words[i * SIDE + down + k], of_w[k] = w_words[i * SIDE + across + 16 * k];
                    }
#pragma unroll
                    for (int r = 0; r < EACH; r++) {
#pragma unroll
                        for (int o = 0; o < EACH; o++) {
                            products[4 * i / RUN][r][o] = dot4(of_x[r], of_w[o], products[4 * i / RUN][r][o]);
                        }
                    }
                }
                if (part + 1 < parts) __syncthreads();
            }
#pragma unroll
            for (int o = 0; o < EACH; o++) {
                int output = across + 16 * o;
#pragma unroll
                for (int r = 0; r < EACH; r++) {
                    Term term;
                    if constexpr (IS_BLOCKS<W>) {
                        const float scale[2] = {scales_of_w[output], scales_of_w[(RUNS - 1) * SIDE + output]};
                        const float minimum[2] = {W::MINIMA ? minima_of_w[output] : 0.0f,
                                                  W::MINIMA ? minima_of_w[(RUNS - 1) * SIDE + output] : 0.0f};
                        const int whole[2] = {products[0][r][o], products[RUNS - 1][r][o]};
                        const float of_x[2] = {sums_of_x[down + r], sums_of_x[SIDE + down + r]};
                        term = {scales_of_x[down + r], term_of<W>(scale, minimum, whole, of_x)};
                    } else {
                        term = {__fmul_rn(scales_of_x[down + r], scales_of_w[output]),
                                static_cast<float>(products[0][r][o])};
                    }
                    sums[r][o] = __fmaf_rn(term.scale, term.value, sums[r][o]);
                }
            }
            __syncthreads();
        }
#pragma unroll
        for (int r = 0; r < EACH; r++) {
#pragma unroll
            for (int o = 0; o < EACH; o++) {
                bool waits = false;
#pragma unroll
                for (int level = 0; level < LEVELS; level++) {
                    if (waits) continue;
                    if (step >> level & 1) {
                        sums[r][o] = __fadd_rn(joined[level][r][o], sums[r][o]);
                    } else {
                        joined[level][r][o] = sums[r][o], waits = true;
                    }
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < EACH; r++) {
#pragma unroll
        for (int o = 0; o < EACH; o++) {
            int row = first_row + down + r, output = first_output + across + 16 * o;
            if (row >= rows || output >= outputs) continue;
            float sum = product.bias ? __fadd_rn(sums[r][o], product.bias[output]) : sums[r][o];
            product.out[static_cast<long long>(row) * outputs + output] = sum;
        }
    }
}

// x (rows, I), int8 with scales (rows, I / group), with w (O, I) into out (rows, O). Sizes as those of matvec_q8, and for
// int8 a group is a multiple of 32. A block has 64 rows × 64 outputs, a thread 4 × 4 of them: outputs 16 apart.
// Grid (ceil(O / 64), ceil(rows / 64)), block 256.
KERNEL(256) matmul_q8(Product product, const int8_t* x, const float* x_scales, int group, int rows) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    multiply<WEIGHT>(product, x, x_scales, group, rows);
}

#define KERNELS_OF_THIS_FILE(X) X(matmul_q8)
