// Samples the next token as generate/sampler.rs does: argmax, or softmax with a temperature, then top-k and top-p
// (nucleus sampling, Holtzman et al., 2020) with a given random number.
#include "common.cuh"

// Whether a (value, id) comes before another: its value is larger, or the values are equal and its id is lower. NaN
// comes before nothing.
__device__ inline bool before(float value, int id, float other, int other_id) {
    return value > other || (value == other && id < other_id);
}

// Finds the first (value, id) of all threads of a block, and returns it in the first thread. The block has 256 threads.
__device__ inline void first_of_block(float& value, int& id) {
    SHARED(float, values, 8);
    SHARED(int, ids, 8);
    auto first_of_warp = [&] {
        for (int apart = 16; apart > 0; apart /= 2) {
            float other = __shfl_xor_sync(FULL, value, apart);
            int other_id = __shfl_xor_sync(FULL, id, apart);
            if (before(other, other_id, value, id)) value = other, id = other_id;
        }
    };
    first_of_warp();
    if (threadIdx.x % 32 == 0) values[threadIdx.x / 32] = value, ids[threadIdx.x / 32] = id;
    __syncthreads();
    if (threadIdx.x < 32) {
        value = values[threadIdx.x % 8], id = ids[threadIdx.x % 8];
        first_of_warp();
    }
}

// Returns in every thread whether `mine` is true in some thread of the block. The block has 256 threads.
__device__ inline bool any_of_block(bool mine) {
    SHARED(unsigned, found, 8);
    unsigned of_warp = __ballot_sync(FULL, mine);
    if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = of_warp;
    __syncthreads();
    unsigned all = 0;
    for (int warp = 0; warp < 8; warp++) all |= found[warp];
    return all != 0;
}

// The result of a block for its part of a row of logits: the largest value and its id, and whether one of the values is
// NaN.
struct Largest {
    float value;
    int id, not_a_number, unused;
};

// The result of sampling from a row.
struct Drawn {
    int id, not_a_number;
};

// No id. It comes after every other id.
constexpr int NONE = 0x7fffffff;

// Finds the id of the largest logit of each row of `logits` (rows, V): the lowest id if several are equal; 0 if all are
// NaN. Writes it to drawn (rows), and to shown (rows) in memory that the host can read. parts: (rows, blocks). counters
// (rows): 0 before and after the kernel. Grid (blocks, at most 256; rows), block 256. For each row, the block that
// finishes last joins the results of the others.
KERNEL(256) argmax(const float* logits, int vocab, Largest* parts, unsigned* counters, Drawn* drawn, Drawn* shown) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    SHARED(int, last, 1);
    logits += static_cast<long long>(blockIdx.y) * vocab, parts += blockIdx.y * gridDim.x;
    float value = minus_infinity();
    int id = NONE;
    bool nan = false;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < vocab; i += gridDim.x * blockDim.x) {
        float logit = logits[i];
        nan |= logit != logit;
        if (before(logit, i, value, id)) value = logit, id = i;
    }
    nan = any_of_block(nan);
    first_of_block(value, id);
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = {value, id, nan, 0};
        __threadfence();
        last[0] = atomicInc(&counters[blockIdx.y], gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last[0]) return;
    __threadfence();
    bool mine = threadIdx.x < gridDim.x;
    // Other blocks wrote these. The volatile loads bypass the first-level cache, which may have older values.
    const volatile Largest* part = parts + threadIdx.x;
    value = mine ? part->value : minus_infinity();
    id = mine ? part->id : NONE;
    nan = any_of_block(mine && part->not_a_number);
    first_of_block(value, id);
    if (threadIdx.x == 0) drawn[blockIdx.y] = shown[blockIdx.y] = {id == NONE ? 0 : id, nan};
}

// Ranks and their bins.

// The probability of a candidate as an integer multiple of 2⁻⁶⁰, because integers have the same sum in every order.
constexpr double WHOLE = 1152921504606846976.0;  // 2⁶⁰

__device__ inline uint64_t whole(float prob) { return static_cast<uint64_t>(static_cast<double>(prob) * WHOLE); }

constexpr int DIGITS = 10;         // bits of a rank that are found in one step
constexpr int BINS = 1 << DIGITS;  // one for each thread
constexpr int LEVELS = 6;          // 30 bits of the probability, which is at most 1, and 30 bits of the id

// The rank of a token: larger for a likelier token and, if two are equally likely, for the lower id. 0 if the token is
// not a candidate.
__device__ inline uint64_t rank(int id, float prob) {
    if (!(prob > 0.0f)) return 0;
    return static_cast<uint64_t>(__float_as_uint(prob)) << 30 | static_cast<uint64_t>(0x3fffffff - id);
}

// The first digits of the rank of a candidate.
__device__ inline int first_digits(float prob) { return static_cast<int>(__float_as_uint(prob) >> (30 - DIGITS)); }

// The sum of the probabilities of several candidates, and their number.
struct Sum {
    uint64_t whole;
    unsigned count, unused;
};

__device__ inline Sum with(const Sum& a, const Sum& b) { return {a.whole + b.whole, a.count + b.count, 0}; }

// The sums and numbers of candidates, by ten bits of their ranks, in shared memory. An atomic addition in shared memory
// has 32 bits, so a sum has two halves. The block has 1024 threads.
struct Counted {
    unsigned low[BINS], high[BINS], count[BINS];

    __device__ inline void clear() { low[threadIdx.x] = high[threadIdx.x] = count[threadIdx.x] = 0; }
    __device__ inline void add(int bin, float prob) {
        uint64_t more = whole(prob);
        unsigned lower = static_cast<unsigned>(more);
        unsigned carried = atomicAdd(&low[bin], lower) > 0xffffffff - lower;
        atomicAdd(&high[bin], static_cast<unsigned>(more >> 32) + carried);
        atomicAdd(&count[bin], 1u);
    }
    __device__ inline Sum of(int bin) const { return {static_cast<uint64_t>(high[bin]) << 32 | low[bin], count[bin], 0}; }
};

// The kernels, in the order in which they run.

// Sets parts (rows, blocks) to the largest value of logits / temperature in each block's part of a row. Sets bins
// (rows, 1024) to 0. logits: (rows, V). Grid (blocks, 4 to 256; rows), block 256.
KERNEL(256) sample_max(const float* logits, int vocab, float temperature, Largest* parts, Sum* bins) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    logits += static_cast<long long>(blockIdx.y) * vocab, parts += blockIdx.y * gridDim.x;
    int first = blockIdx.x * blockDim.x + threadIdx.x;
    if (first < BINS) bins[blockIdx.y * BINS + first] = {0, 0, 0};
    float value = minus_infinity();
    int id = 0;
    bool nan = false;
    for (int i = first; i < vocab; i += gridDim.x * blockDim.x) {
        float logit = logits[i];
        nan |= logit != logit;
        value = larger(value, __fdiv_rn(logit, temperature));
    }
    nan = any_of_block(nan);
    first_of_block(value, id);
    if (threadIdx.x == 0) parts[blockIdx.x] = {value, id, nan, 0};
}

// probs (rows, V) = e^(logits / temperature − the largest of the row's `count` parts), with the bits of ops/softmax.rs.
// Grid (ceil(V / 256), rows), block 256.
KERNEL(256) sample_exp(const float* logits, int vocab, float temperature, const Largest* parts, int count, float* probs) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    SHARED(float, largest, 1);
    long long row = static_cast<long long>(blockIdx.y) * vocab;
    logits += row, probs += row, parts += blockIdx.y * count;
    if (threadIdx.x < 32) {
        float max = minus_infinity();
        for (int i = threadIdx.x; i < count; i += 32) max = larger(max, parts[i].value);
        max = max_of_warp(max);
        if (threadIdx.x == 0) largest[0] = max;
    }
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < vocab) probs[i] = exp_of_ops(__fsub_rn(__fdiv_rn(logits[i], temperature), largest[0]));
}

// totals (rows) = the sum of each row of probs (rows, V), in the order of ops/softmax.rs: term i goes to partial sum (i
// mod 16). With another order, tokens that are equally likely in ops might not be equally likely here. The next terms
// are loaded while others are added, so an addition waits only for the one before it.
// Grid (1, rows), block 512: all threads load, sixteen add.
KERNEL(512) sample_sum(const float* probs, int vocab, float* totals) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    constexpr int THREADS = 512, OF_EACH = 8, AT_ONCE = THREADS * OF_EACH, ROUND = 16 * LANES;
    probs += static_cast<long long>(blockIdx.y) * vocab;
    SHARED(float, terms, 2 * AT_ONCE);
    float coming[OF_EACH];
    auto load = [&](int first) {
#pragma unroll
        for (int i = 0; i < OF_EACH; i++) {
            int at = first + i * THREADS + static_cast<int>(threadIdx.x);
            coming[i] = at < vocab ? probs[at] : 0.0f;
        }
    };
    float sum = 0.0f;
    load(0);
    for (int first = 0, turn = 0; first < vocab; first += AT_ONCE, turn ^= 1) {
        float* now = terms + turn * AT_ONCE;
#pragma unroll
        for (int i = 0; i < OF_EACH; i++) now[i * THREADS + threadIdx.x] = coming[i];
        __syncthreads();
        load(first + AT_ONCE);
        if (threadIdx.x < LANES) {
            // The terms are padded with zeros, which do not change a sum of non-negative numbers.
            int count = min(AT_ONCE, vocab - first);
            for (int from = 0; from < count; from += ROUND) {
                float term[ROUND / LANES];
#pragma unroll
                for (int i = 0; i < ROUND / LANES; i++) term[i] = now[from + i * LANES + threadIdx.x];
#pragma unroll
                for (int i = 0; i < ROUND / LANES; i++) sum = __fadd_rn(sum, term[i]);
            }
        }
    }
    if (threadIdx.x < 32) {
        sum = reduce_lanes(sum);
        if (threadIdx.x == 0) totals[blockIdx.y] = sum;
    }
}

// Divides each row of probs (rows, V) by its total in `totals` (rows). Adds the row's candidates to bins (rows, 1024),
// by the first digits of their ranks. Grid (blocks, rows), block 1024.
KERNEL(1024) sample_divide(float* probs, int vocab, const float* totals, Sum* bins) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    SHARED(Counted, counted, 1);
    probs += static_cast<long long>(blockIdx.y) * vocab, bins += blockIdx.y * BINS;
    float total = totals[blockIdx.y];
    counted->clear();
    __syncthreads();
    for (int id = blockIdx.x * blockDim.x + threadIdx.x; id < vocab; id += gridDim.x * blockDim.x) {
        float prob = __fdiv_rn(probs[id], total);
        probs[id] = prob;
        if (prob > 0.0f) counted->add(first_digits(prob), prob);
    }
    __syncthreads();
    Sum mine = counted->of(threadIdx.x);
    if (mine.count == 0) return;
    atomicAdd(&bins[threadIdx.x].whole, mine.whole);
    atomicAdd(&bins[threadIdx.x].count, mine.count);
}

// Returns the sum of `mine` over the block's threads up to and including this one. The block has 1024 threads.
__device__ inline Sum sum_up_to(Sum mine) {
    SHARED(Sum, warps, 32);
    int lane = threadIdx.x % 32;
    auto scan = [&](Sum sum) {
        for (int apart = 1; apart < 32; apart *= 2) {
            int from = lane >= apart ? lane - apart : lane;
            uint64_t whole = __shfl_sync(FULL, sum.whole, from);
            unsigned count = __shfl_sync(FULL, sum.count, from);
            if (lane >= apart) sum = with(sum, {whole, count, 0});
        }
        return sum;
    };
    mine = scan(mine);
    if (lane == 31) warps[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x < 32) warps[lane] = scan(warps[lane]);
    __syncthreads();
    if (threadIdx.x >= 32) mine = with(mine, warps[threadIdx.x / 32 - 1]);
    __syncthreads();
    return mine;
}

// A condition that ends the search from the likeliest candidate down: the sum of probabilities reaches `least`, or with
// `more` exceeds it. The search ends at candidate number `count` at the latest.
struct Until {
    double least;
    bool more;
    unsigned count;
    __device__ inline bool reached(const Sum& sum) const {
        double whole = static_cast<double>(sum.whole);
        return (more ? whole > least : whole >= least) || sum.count >= count;
    }
};

// A candidate's rank, and the sum of all candidates with this rank or a higher rank.
struct Reached {
    uint64_t rank;
    Sum sum;
};

// A row's candidates: their probabilities, their bins by the first digits, and a list of the ids in the likeliest bins.
// The first search builds the list. It is long enough for every later search, because a later search ends at the same
// candidate or a likelier one.
struct Candidates {
    const float* probs;
    int vocab;
    const Sum* bins;
    int* ids;
    int listed;  // length of the list; negative if it is not built
};

// Lists the candidates whose first digits are at least `digits`, in any order. The block has 1024 threads.
__device__ inline void list_from(Candidates& of, int digits) {
    constexpr int OF_EACH = 8;
    SHARED(int, length, 1);
    if (threadIdx.x == 0) length[0] = 0;
    __syncthreads();
    int lane = threadIdx.x % 32;
    for (int first = 0; first < of.vocab; first += BINS * OF_EACH) {
        float prob[OF_EACH];
#pragma unroll
        for (int i = 0; i < OF_EACH; i++) {
            int id = first + i * BINS + static_cast<int>(threadIdx.x);
            prob[i] = id < of.vocab ? of.probs[id] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < OF_EACH; i++) {
            bool wanted = prob[i] > 0.0f && first_digits(prob[i]) >= digits;
            unsigned lanes = __ballot_sync(FULL, wanted);
            if (lanes == 0) continue;
            int at = 0;
            if (lane == 0) at = atomicAdd(length, __popc(lanes));
            at = __shfl_sync(FULL, at, 0) + __popc(lanes & ((1u << lane) - 1));
            if (wanted) of.ids[at] = first + i * BINS + static_cast<int>(threadIdx.x);
        }
    }
    __syncthreads();
    of.listed = length[0];
}

// Returns the candidate at which the search `until` ends. There must be at least one candidate, and `until.count` must
// be at most the number of candidates. Nothing is sorted: the digits of the rank are found step by step, and each step
// looks only at candidates with the same earlier digits. The block has 1024 threads.
__device__ inline Reached reach(Candidates& of, const Until& until) {
    SHARED(Counted, counted, 1);
    SHARED(unsigned, found, 1);  // the bin where the search ends
    SHARED(Sum, sums, 2);        // the sums of all bins before it, and up to it
    SHARED(uint64_t, only, 1);
    uint64_t prefix = 0;
    Sum sum = {0, 0, 0};
    for (int level = 0;; level++) {
        int shift = DIGITS * (LEVELS - 1 - level);
        // The first thread has the last bin, which has the likeliest candidates.
        int bin = BINS - 1 - static_cast<int>(threadIdx.x);
        if (threadIdx.x == 0) found[0] = BINS - 1;
        if (level > 0) {
            counted->clear();
            __syncthreads();
            for (int i = threadIdx.x; i < of.listed; i += BINS) {
                float prob = of.probs[of.ids[i]];
                uint64_t own = rank(of.ids[i], prob);
                if (own >> (shift + DIGITS) == prefix) counted->add(static_cast<int>(own >> shift & (BINS - 1)), prob);
            }
        }
        __syncthreads();
        Sum here = level == 0 ? of.bins[bin] : counted->of(bin);
        Sum all = with(sum, sum_up_to(here));
        if (here.count > 0 && until.reached(all)) atomicMin(&found[0], threadIdx.x);
        __syncthreads();
        if (threadIdx.x == found[0]) sums[0] = {all.whole - here.whole, all.count - here.count, 0}, sums[1] = here;
        __syncthreads();
        bin = BINS - 1 - static_cast<int>(found[0]);
        prefix = prefix << DIGITS | static_cast<uint64_t>(bin);
        sum = sums[0];
        here = sums[1];
        if (of.listed < 0) list_from(of, bin);
        __syncthreads();
        if (here.count > 1) continue;
        // Only one candidate has these digits. Its rank gives the remaining digits.
        for (int i = threadIdx.x; i < of.listed; i += BINS) {
            uint64_t own = rank(of.ids[i], of.probs[of.ids[i]]);
            if (own >> shift == prefix) only[0] = own;
        }
        __syncthreads();
        return {only[0], with(sum, here)};
    }
}

// Draws a token from each row of probs (rows, V), as the sampler does. Writes it to drawn_at (rows), and to shown_at
// (rows) in memory that the host can read. `bins` (rows, 1024) has the row's bins, and `randoms` (rows) its random
// number from 0 to 1. The candidates are the top_k likeliest tokens (0: all tokens). Of these, only the likeliest are
// kept: the fewest whose share of the candidates' total probability reaches top_p (1: all). The drawn token is the
// first, from the likeliest down, at which the sum of probabilities exceeds the random number times the total. 0 if no
// probability is above 0. ids: memory for (rows, V). parts: (rows, count) of sample_max. Sums are of integer multiples
// of 2⁻⁶⁰. The CPU, whose sums are float64, draws the same token, unless a sum is within 1e-6 of the limit that
// decides. Grid (1, rows), block
// 1024. V < 2³⁰.
KERNEL_WITH(1024, 1) sample_draw(const float* probs, int vocab, const Sum* bins, int* ids, int top_k, float top_p, const double* randoms,
                         const Largest* parts, int count, Drawn* drawn_at, Drawn* shown_at) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    SHARED(Sum, total, 1);
    long long row = static_cast<long long>(blockIdx.y) * vocab;
    Candidates candidates = {probs + row, vocab, bins + blockIdx.y * BINS, ids + row, -1};
    Sum here = sum_up_to(candidates.bins[threadIdx.x]);
    if (threadIdx.x == BINS - 1) total[0] = here;
    __syncthreads();
    Sum sum = total[0];
    uint64_t drawn = 0;
    // Searches in this order: for the last of the top_k likeliest, for the last token of the share top_p, and for the
    // drawn token.
#pragma unroll 1
    for (int turn = sum.count > 0 ? 0 : 3; turn < 3; turn++) {
        double all = static_cast<double>(sum.whole);
        Until until = {2.0 * WHOLE, true, sum.count};
        if (turn == 0) {
            if (top_k <= 0 || static_cast<unsigned>(top_k) >= sum.count) continue;
            until.count = static_cast<unsigned>(top_k);
        } else if (turn == 1) {
            if (top_p >= 1.0f) continue;
            until.least = static_cast<double>(top_p) * all, until.more = false;
        } else {
            until.least = all * randoms[blockIdx.y];
        }
        Reached at = reach(candidates, until);
        sum = at.sum, drawn = at.rank;
    }
    if (threadIdx.x != 0) return;
    int nan = 0;
    for (int i = 0; i < count; i++) nan |= parts[blockIdx.y * count + i].not_a_number;
    drawn_at[blockIdx.y] = shown_at[blockIdx.y] = {drawn == 0 ? 0 : 0x3fffffff - static_cast<int>(drawn & 0x3fffffff), nan};
}

#define KERNELS_OF_THIS_FILE(X) X(argmax) X(sample_max) X(sample_exp) X(sample_sum) X(sample_divide) X(sample_draw)
