// Matrices packed into panels, and activations times matrix for any number of rows.
#pragma once

#include "arena.h"
#include "tile.h"

namespace lab {

template <class T>
struct Matrix {
    int outputs = 0, inputs = 0;
    T* data = nullptr;

    int panels() const { return (outputs + kPanel - 1) / kPanel; }
    size_t panel_size() const { return pair_rows(inputs) * 2 * kPanel; }
    const T* panel(int i) const { return data + i * panel_size(); }

    void place(Arena& arena, int outputs_, int inputs_) {
        outputs = outputs_;
        inputs = inputs_;
        data = arena.take<T>(panels() * panel_size());
    }

    // `rows`: row-major [outputs, inputs]. What pads the last panel stays zero.
    void pack(const T* rows) {
        for (int n = 0; n < outputs; ++n) {
            T* panel = data + (n / kPanel) * panel_size();
            const T* row = rows + static_cast<size_t>(n) * inputs;
            for (int k = 0; k < inputs; ++k) panel[pair_index(panel, kPanel, k, n % kPanel)] = row[k];
        }
    }
};

enum class Write { kSet, kAdd };

// Rows whose inputs stay in the second-level cache while all panels pass by.
constexpr int kRowBlock = 30;

template <int Rows, int Panels>
inline void write_tile(const Accumulators<kPanel, Rows, Panels>& acc, Write write, int columns, float* y, size_t y_stride) {
    constexpr int kVecs = kPanel / kWidth;
#pragma GCC unroll 8
    for (int p = 0; p < Panels; ++p) {
        const int left = columns - p * kPanel;
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
            float* out = y + r * y_stride + p * kPanel;
            if (left >= kPanel) {
#pragma GCC unroll 8
                for (int v = 0; v < kVecs; ++v) {
                    Vec value = acc.sum[p][r][v];
                    if (write == Write::kAdd) value += load(out + v * kWidth);
                    store(out + v * kWidth, value);
                }
            } else {  // the padded last panel
                float value[kPanel];
#pragma GCC unroll 8
                for (int v = 0; v < kVecs; ++v) store(value + v * kWidth, acc.sum[p][r][v]);
                for (int n = 0; n < left; ++n) out[n] = write == Write::kAdd ? value[n] + out[n] : value[n];
            }
        }
    }
}

// Tile `turn` of the `turns` that go through these panels; each asks for its share of the panels that come next.
template <class T, int Rows, int Panels>
__attribute__((noinline)) void multiply_tile(const Matrix<T>& m, int panel, int turn, int turns, const Activation<T>* x,
                                             Write write, float* y, size_t y_stride) {
    constexpr size_t kRowBytes = 2 * kPanel * sizeof(T);
    const Activation<T>* rows[Rows];
    for (int r = 0; r < Rows; ++r) rows[r] = x + static_cast<size_t>(r) * m.inputs;
    const T* panels[Panels];
    Ahead<Panels, kRowBytes / 64> next;
    next.step = kRowBytes / turns;
    for (int p = 0; p < Panels; ++p) {
        panels[p] = m.panel(panel + p);
        next.at[p] = reinterpret_cast<const char*>(m.panel(panel + Panels + p) + turn * (m.panel_size() / turns));
    }
    Accumulators<kPanel, Rows, Panels> acc;
    acc.clear();
    if (Rows == 1)  // six panels at once are streams enough for the hardware's own prefetching; asking too slows it
        accumulate(acc, panels, rows, m.inputs, NothingAhead{});
    else
        accumulate(acc, panels, rows, m.inputs, next);
    write_tile(acc, write, m.outputs - panel * kPanel, y, y_stride);
}

// y[r][c] (+)= Σ_k x[r][k] · m[c][k] for the outputs of `panels`; y points at the first output of the first panel.
template <class T>
void multiply(const Matrix<T>& m, Range panels, const Activation<T>* x, int rows, Write write, float* y, size_t y_stride) {
    for (int block = 0; block < rows; block += kRowBlock) {
        const int block_rows = rows - block < kRowBlock ? rows - block : kRowBlock;
        const int tiles = (block_rows + kMaxRows - 1) / kMaxRows;
        const Activation<T>* x_block = x + static_cast<size_t>(block) * m.inputs;
        float* y_block = y + static_cast<size_t>(block) * y_stride;
        if (tiles == 1) {
            with_rows(block_rows, [&](auto n) {
                constexpr int kAtOnce = panels_at_once<kPanel>(n);
                int i = panels.begin;
                for (; i + kAtOnce <= panels.end; i += kAtOnce)
                    multiply_tile<T, n, kAtOnce>(m, i, 0, 1, x_block, write, y_block + (i - panels.begin) * kPanel, y_stride);
                for (; i < panels.end; ++i)
                    multiply_tile<T, n, 1>(m, i, 0, 1, x_block, write, y_block + (i - panels.begin) * kPanel, y_stride);
            });
            continue;
        }
        for (int i = panels.begin; i < panels.end; ++i) {
            float* column = y_block + (i - panels.begin) * kPanel;
            for (int t = 0; t < tiles; ++t) {
                const Range range = part(block_rows, tiles, t);
                with_rows(range.end - range.begin, [&](auto n) {
                    multiply_tile<T, n, 1>(m, i, t, tiles, x_block + static_cast<size_t>(range.begin) * m.inputs, write,
                                           column + range.begin * y_stride, y_stride);
                });
            }
        }
    }
}

}  // namespace lab
