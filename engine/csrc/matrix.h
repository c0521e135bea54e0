// Matrices packed into panels (layout.h), and what is done with the outputs of a few rows and panels once they are known.
#pragma once

#include "arena.h"
#include "ops.h"
#include "tile.h"

namespace lab {

// Length of a row of activations that is multiplied with a matrix of T, padding included.
template <class T>
constexpr size_t padded(size_t inputs) {
    return (inputs + Panel<T>::kStep - 1) / Panel<T>::kStep * Panel<T>::kStep;
}

template <class T>
struct Matrix {
    static constexpr int kLanes = Panel<T>::kLanes, kColumn = Panel<T>::kColumn;
    int outputs = 0, inputs = 0;  // lanes in use, and inputs with their padding
    T* data = nullptr;

    int panels() const { return (outputs + kLanes - 1) / kLanes; }
    size_t column_size() const { return pair_rows(inputs) * 2 * kColumn; }
    size_t panel_size() const { return column_size() * (kLanes / kColumn); }
    const T* panel(int i) const { return data + i * panel_size(); }

    void place(Arena& arena, int outputs_, int inputs_) {
        outputs = outputs_;
        inputs = static_cast<int>(padded<T>(inputs_));
        data = arena.take<T>(panels() * panel_size());
    }

    // Puts `count` outputs of `rows` (row-major, `length` inputs each) where lane(output) says. Padding stays zero.
    template <class Lane>
    void pack(const T* rows, int count, int length, Lane lane) {
        for (int n = 0; n < count; ++n) {
            const int to = lane(n);
            T* column = data + to / kColumn * column_size();
            const T* row = rows + static_cast<size_t>(n) * length;
            for (int k = 0; k < length; ++k) column[pair_index(column, kColumn, k, to % kColumn)] = row[k];
        }
    }
    void pack(const T* rows, int length) {
        pack(rows, outputs, length, [](int n) { return n; });
    }
};

// A sink takes the sums of rows [row, row + rows) for panels [panel, panel + panels): tile[r * stride + lane].

enum class Write { kSet, kAdd };

// y[row][output] = or += sum.
template <class T>
struct StoreSums {
    float* y;
    size_t y_stride;
    int outputs;
    Write write;

    void operator()(int row, int rows, int panel, int panels, const float* tile, int stride) const {
        constexpr int kLanes = Panel<T>::kLanes;
        const int first = panel * kLanes;
        const int count = outputs - first < panels * kLanes ? outputs - first : panels * kLanes;
        const int whole = count / kWidth * kWidth;
        for (int r = 0; r < rows; ++r) {
            const float* from = tile + static_cast<size_t>(r) * stride;
            float* to = y + (row + r) * y_stride + first;
            for (int i = 0; i < whole; i += kWidth)
                store(to + i, write == Write::kAdd ? load(to + i) + load(from + i) : load(from + i));
            for (int i = whole; i < count; ++i) to[i] = write == Write::kAdd ? to[i] + from[i] : from[i];
        }
    }
};

// hidden[row][output] = silu(gate) * up, from panels whose lanes are half gate, half up.
template <class T>
struct StoreGated {
    Activation<T>* hidden;
    size_t hidden_stride;
    int outputs;

    void operator()(int row, int rows, int panel, int panels, const float* tile, int stride) const {
        constexpr int kHalf = Panel<T>::kLanes / 2;
        for (int r = 0; r < rows; ++r)
            for (int p = 0; p < panels; ++p) {
                const float* gate = tile + static_cast<size_t>(r) * stride + p * 2 * kHalf;
                const int first = (panel + p) * kHalf;
                Activation<T>* to = hidden + (row + r) * hidden_stride + first;
                if (outputs - first >= kHalf) {
                    for (int i = 0; i < kHalf; i += kWidth) store(to + i, gated(load(gate + i), load(gate + kHalf + i)));
                } else {  // the padded last panel
                    float value[kHalf];
                    for (int i = 0; i < kHalf; i += kWidth) store(value + i, gated(load(gate + i), load(gate + kHalf + i)));
                    for (int i = 0; first + i < outputs; ++i) narrow(value[i], to + i);
                }
            }
    }
};

}  // namespace lab
