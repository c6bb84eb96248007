// The operations on the results of a product of one row that computes queries, keys and values: RoPE (rope.cu), and the
// cache.
#pragma once
#include "common.cuh"

// The outputs of RoPE for one of the products. `out` is the rotated result. `cache` receives the rotated result, or the
// result of the product if out is null, from the span's start on and in the cache's number type. Each of the two may be
// null.
struct Turned {
    float* out;
    void* cache;
};

// RoPE for all products of one row, with the tables cos and sin (C/2), the pairs of rope.cu, and heads of C values.
struct Turns {
    Turned of[MOST_PRODUCTS];
    const float* cos;
    const float* sin;
    const Span* span;
    int neighbours, head_dim;

    // Selects by constant indices, because otherwise the compiler would copy the whole array.
    __device__ inline Turned at(int product) const { return product == 0 ? of[0] : product == 1 ? of[1] : of[2]; }

    // The places of the first and second value of pair `number` of a product, and the pair's number in its head.
    struct Place {
        int first, second, pair;
    };
    __device__ inline Place place(int number) const {
        const int pairs = head_dim / 2, head = number / pairs, pair = number % pairs;
        const int first = head * head_dim + (neighbours ? 2 * pair : pair);
        return {first, neighbours ? first + 1 : first + pairs, pair};
    }
};

// An addition to the only product: `sum` (rows, O) = `to` + the product. Nothing is added if `sum` is null.
struct Added {
    const float* to;
    float* sum;
};
