// The one micro-kernel: rows of activations times pair rows, added up in registers.
//
// Every sum runs over its inputs in ascending order in one accumulator, whatever the number of rows or panels taken at
// once. This is what makes a request's numbers bitwise independent of the batch and of the chunks it is computed in.
#pragma once

#include <type_traits>

#include "layout.h"

namespace lab {

// Panels taken at once by a tile of `rows` rows: enough independent sums to hide the latency of a multiply-add.
template <int Lanes>
constexpr int panels_at_once(int rows) {
    const int fit = kAccumulators / (rows * (Lanes / kWidth > 0 ? Lanes / kWidth : 1));
    return fit < 1 ? 1 : (fit > 4 ? 4 : fit);
}

template <int Lanes, int Rows, int Panels>
struct Accumulators {
    static constexpr int kVecs = Lanes / kWidth;
    Vec sum[Panels][Rows][kVecs];

    void clear() {
#pragma GCC unroll 32
        for (int p = 0; p < Panels; ++p)
#pragma GCC unroll 32
            for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 32
                for (int v = 0; v < kVecs; ++v) sum[p][r][v] = Vec{};
    }
};

// sum[p][r][lane] += Σ_k x[r][k] · w[p][k][lane], k = 0 .. inputs-1. An odd last input reads only its own half.
template <class T, int Lanes, int Rows, int Panels>
inline __attribute__((always_inline)) void accumulate(Accumulators<Lanes, Rows, Panels>& acc, const T* const (&w)[Panels],
                                                      const float* const (&x)[Rows], int inputs) {
    constexpr int kVecs = Lanes / kWidth;
    const int even = inputs & ~1;
    for (int k = 0; k < even; k += 2) {
#pragma GCC unroll 8
        for (int p = 0; p < Panels; ++p) {
            Vec first[kVecs], second[kVecs];
#pragma GCC unroll 8
            for (int v = 0; v < kVecs; ++v)
                load_pair<Lanes>(w[p] + static_cast<size_t>(k) * Lanes, v * kWidth, first[v], second[v]);
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
                for (int v = 0; v < kVecs; ++v) acc.sum[p][r][v] += first[v] * x[r][k];
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
                for (int v = 0; v < kVecs; ++v) acc.sum[p][r][v] += second[v] * x[r][k + 1];
        }
    }
    if (inputs & 1) {
        for (int p = 0; p < Panels; ++p)
            for (int v = 0; v < kVecs; ++v) {
                Vec first, second;
                load_pair<Lanes>(w[p] + static_cast<size_t>(even) * Lanes, v * kWidth, first, second);
#pragma GCC unroll 8
                for (int r = 0; r < Rows; ++r) acc.sum[p][r][v] += first * x[r][even];
            }
    }
}

// Calls f(std::integral_constant<int, n>) for n in 1..kMaxRows: the row count becomes a compile-time constant.
template <class F>
inline void with_rows(int n, F&& f) {
    switch (n) {
        case 1: f(std::integral_constant<int, 1>{}); break;
        case 2: f(std::integral_constant<int, 2>{}); break;
        case 3: f(std::integral_constant<int, 3>{}); break;
        case 4: f(std::integral_constant<int, 4>{}); break;
        case 5: f(std::integral_constant<int, 5>{}); break;
        default: f(std::integral_constant<int, 6>{}); break;
    }
}

// Part `i` of `parts` nearly equal parts of `total` items: [begin, end).
struct Range {
    int begin, end;
};
inline Range part(int total, int parts, int i) {
    return {static_cast<int>(static_cast<int64_t>(total) * i / parts),
            static_cast<int>(static_cast<int64_t>(total) * (i + 1) / parts)};
}

}  // namespace lab
