// The cache of keys or of values of one layer of one sequence, (capacity, G, C). -DCACHE.
#include "cache.cuh"

constexpr int EACH_BLOCK = 512;  // values of a block of 128 threads, four per thread

// The rows of one span that are written to the cache.
struct Rows {
    const float* x;  // rows of the pass (rows, width)
    const Span* span;
    void* cache;
};

struct AllRows {
    Rows of[MOST_TOGETHER];
};

// Writes the rows (T, width) of a span to the cache, from position start on, rounded to the nearest. x has the rows of
// the pass (rows, width). Several spans are written together; all have the same number of tokens T. Grid (T, ceil(width
// / 512), spans), block 128.
KERNEL(128) cache(AllRows all, int width) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    const Rows& rows = all.of[blockIdx.z];
    const float* from = rows.x + (static_cast<long long>(rows.span->first) + blockIdx.x) * width;
    Cached* to = static_cast<Cached*>(rows.cache) + (static_cast<long long>(rows.span->start) + blockIdx.x) * width;
    int end = min(width, static_cast<int>(blockIdx.y + 1) * EACH_BLOCK);
    for (int i = blockIdx.y * EACH_BLOCK + threadIdx.x; i < end; i += blockDim.x) to[i] = narrowed(CACHE{}, from[i]);
}

// Converts `count` values of the cache to float32, from value number `first` on. Grid (ceil(count / 512)), block 128.
KERNEL(128) read_cache(const void* cache, long long first, long long count, float* out) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    const Cached* from = static_cast<const Cached*>(cache) + first;
    for (int k = 0; k < EACH_BLOCK; k += blockDim.x) {
        long long i = static_cast<long long>(blockIdx.x) * EACH_BLOCK + k + threadIdx.x;
        if (i < count) out[i] = widen_cached(from[i]);
    }
}

// out (keys, H, C) = the rows of the cache (K, G, C) from first_key on. Each kv head is repeated for each query head
// that reads it (Ainslie et al., 2023). Grid (keys), block 128.
KERNEL(128) repeat_kv(const void* cache, int first_key, int heads, int kv_heads, int head_dim, float* out) {
    LET_NEXT_START();
    WAIT_FOR_INPUT();
    long long key = static_cast<long long>(first_key) + blockIdx.x;
    const Cached* from = static_cast<const Cached*>(cache) + key * kv_heads * head_dim;
    out += static_cast<long long>(blockIdx.x) * heads * head_dim;
    int group = heads / kv_heads;
    for (int i = threadIdx.x; i < heads * head_dim; i += blockDim.x) {
        out[i] = widen_cached(from[i / head_dim / group * head_dim + i % head_dim]);
    }
}

#define KERNELS_OF_THIS_FILE(X) X(cache) X(read_cache) X(repeat_kv)
