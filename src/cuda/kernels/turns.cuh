// The operations on the results of a product of one row that computes queries, keys and values: RoPE (rope.cu), and the
// cache.
#pragma once
#include "common.cuh"

// The outputs of RoPE for one of the products. `out` is the rotated result. `cache`, from the span's start on, is the
// rotated result, or the plain result if out is null, in the cache's number type. Each of the two may be null.
struct Turned {
    float* out;
    void* cache;
};

// RoPE for all products of one row: by these tables (C/2), in pairs as in rope.cu, in heads of C values.
struct Turns {
    Turned of[MOST_PRODUCTS];
    const float* cos;
    const float* sin;
    const Span* span;
    int neighbours, head_dim;

    // Selected by constant indices, because otherwise the compiler would copy all of them.
    __device__ inline Turned at(int product) const { return product == 0 ? of[0] : product == 1 ? of[1] : of[2]; }

    // The places of the first and second value of pair `number` of a product, and its number in its head.
    struct Place {
        int first, second, pair;
    };
    __device__ inline Place place(int number) const {
        const int pairs = head_dim / 2, head = number / pairs, pair = number % pairs;
        const int first = head * head_dim + (neighbours ? 2 * pair : pair);
        return {first, neighbours ? first + 1 : first + pairs, pair};
    }
};

// Addition to the only product: `sum` (rows, O) = `to` + the product, if it is not null.
struct Added {
    const float* to;
    float* sum;
};
