// Activations times matrix for any number of rows, with the vector micro-kernel of tile.h.
#pragma once

#include "matrix.h"

namespace lab {

// Rows whose inputs stay in the second-level cache while all panels pass by.
constexpr int kRowBlock = 48;

// Tile `turn` of the `turns` that go through these panels; each asks for its share of the panels that come next.
template <class T, int Rows, int Panels, class Sink>
__attribute__((noinline)) void multiply_tile(const Matrix<T>& m, int panel, int turn, int turns, const Activation<T>* x,
                                             int row, const Sink& sink) {
    constexpr int kLanes = Panel<T>::kLanes;
    constexpr size_t kRowBytes = 2 * kLanes * sizeof(T);
    const Activation<T>* rows[Rows];
    for (int r = 0; r < Rows; ++r) rows[r] = x + static_cast<size_t>(row + r) * m.inputs;
    const T* panels[Panels];
    Ahead<Panels, kRowBytes / 64> next;
    next.step = kRowBytes / turns;
    for (int p = 0; p < Panels; ++p) {
        panels[p] = m.panel(panel + p);
        next.at[p] = reinterpret_cast<const char*>(m.panel(panel + Panels + p) + turn * (m.panel_size() / turns));
    }
    Accumulators<kLanes, Rows, Panels> acc;
    acc.clear();
    if (Rows == 1)  // six panels at once are streams enough for the hardware's own prefetching; asking too slows it
        accumulate(acc, panels, rows, m.inputs, NothingAhead{});
    else
        accumulate(acc, panels, rows, m.inputs, next);
    alignas(64) float sums[Rows * Panels * kLanes];
#pragma GCC unroll 8
    for (int p = 0; p < Panels; ++p)
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
            for (int v = 0; v < kLanes / kWidth; ++v)
                store(sums + (r * Panels + p) * kLanes + v * kWidth, acc.sum[p][r][v]);
    sink(row, Rows, panel, Panels, sums, Panels * kLanes);
}

// sink(Σ_k x[r][k] · m[c][k]) for every row and the outputs of `panels`.
template <class T, class Sink>
void multiply_with_vectors(const Matrix<T>& m, Range panels, const Inputs<T>& in, int rows, int32_t*, const Sink& sink) {
    const Activation<T>* x = in.x;
    constexpr int kLanes = Panel<T>::kLanes;
    for (int block = 0; block < rows; block += kRowBlock) {
        const int block_rows = rows - block < kRowBlock ? rows - block : kRowBlock;
        const int tiles = (block_rows + kMaxRows - 1) / kMaxRows;
        if (tiles == 1) {
            with_rows(block_rows, [&](auto n) {
                constexpr int kAtOnce = panels_at_once<kLanes>(n);
                int i = panels.begin;
                for (; i + kAtOnce <= panels.end; i += kAtOnce) multiply_tile<T, n, kAtOnce>(m, i, 0, 1, x, block, sink);
                for (; i < panels.end; ++i) multiply_tile<T, n, 1>(m, i, 0, 1, x, block, sink);
            });
            continue;
        }
        for (int i = panels.begin; i < panels.end; ++i)
            for (int t = 0; t < tiles; ++t) {
                const Range range = part(block_rows, tiles, t);
                with_rows(range.end - range.begin,
                          [&](auto n) { multiply_tile<T, n, 1>(m, i, t, tiles, x, block + range.begin, sink); });
            }
    }
}

}  // namespace lab
