// Matrices packed into panels (layout.h), and what is done with the outputs of a few rows and panels once they are known.
#pragma once

#include <limits>
#include <vector>

#include "arena.h"
#include "ops.h"
#include "tile.h"

namespace lab {

// Length of a row of activations that is multiplied with a matrix of T, padding included.
template <class T>
constexpr size_t padded(size_t inputs) {
    return (inputs + Panel<T>::kStep - 1) / Panel<T>::kStep * Panel<T>::kStep;
}

// Rows that a matrix of T is multiplied with; with two digits each row is two, its high and its low one. Of int8, `scales`
// has what the row is to be multiplied by.
template <class T>
struct Inputs {
    const Activation<T>* x;
    const float* scales;
};

template <class T>
struct Matrix {
    static constexpr int kLanes = Panel<T>::kLanes, kColumn = Panel<T>::kColumn, kGroup = Panel<T>::kGroup;
    static constexpr bool kScaled = std::is_same<T, int8>::value;
    int outputs = 0, inputs = 0;  // lanes in use, and inputs with their padding
    T* data = nullptr;
    float* scales = nullptr;    // int8: of each lane
    int32_t* totals = nullptr;  // int8: sum of each lane's weights
    int32_t* reach = nullptr;   // int8: largest sum of a lane's |weights|

    int panels() const { return (outputs + kLanes - 1) / kLanes; }
    size_t column_size() const { return round_up(inputs, kGroup) * kColumn; }
    size_t panel_size() const { return column_size() * (kLanes / kColumn); }
    const T* panel(int i) const { return data + i * panel_size(); }

    // int8: largest activation whose sums are sure to fit 32 bits.
    float levels() const {
        const int32_t fits = *reach > 0 ? std::numeric_limits<int32_t>::max() / *reach : 32767;
        return static_cast<float>(fits < 32767 ? fits : 32767);
    }

    void place(Arena& arena, int outputs_, int inputs_) {
        outputs = outputs_;
        inputs = static_cast<int>(padded<T>(inputs_));
        if (kScaled) {
            scales = arena.take<float>(panels() * kLanes);
            totals = arena.take<int32_t>(panels() * kLanes);
            reach = arena.take<int32_t>(1);
        }
        data = arena.take<T>(panels() * panel_size());
    }

    // Puts `count` outputs of `rows` (row-major, `length` inputs each) where lane(output) says. Padding stays zero.
    template <class Lane>
    void pack(const typename Types<T>::Source* rows, int count, int length, Lane lane) {
        std::vector<T> narrow(length);
        for (int n = 0; n < count; ++n) {
            const int to = lane(n);
            T* column = data + to / kColumn * column_size();
            const auto* row = rows + static_cast<size_t>(n) * length;
            if constexpr (kScaled) {
                scales[to] = quantize(row, length, narrow.data());
                int32_t total = 0, size = 0;
                for (const int8& weight : narrow) {
                    total += weight.value;
                    size += weight.value < 0 ? -weight.value : weight.value;
                }
                totals[to] = total;
                if (size > *reach) *reach = size;
                row_into(column, narrow.data(), length, to);
            } else {
                row_into(column, row, length, to);
            }
        }
    }
    void pack(const typename Types<T>::Source* rows, int length) {
        pack(rows, outputs, length, [](int n) { return n; });
    }

private:
    static void row_into(T* column, const T* row, int length, int lane) {
        for (int k = 0; k < length; ++k) column[pair_index(column, kColumn, k, lane % kColumn)] = row[k];
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
    Staged<T>* hidden;
    size_t hidden_stride;
    int outputs;

    void operator()(int row, int rows, int panel, int panels, const float* tile, int stride) const {
        constexpr int kHalf = Panel<T>::kLanes / 2;
        for (int r = 0; r < rows; ++r)
            for (int p = 0; p < panels; ++p) {
                const float* gate = tile + static_cast<size_t>(r) * stride + p * 2 * kHalf;
                const int first = (panel + p) * kHalf;
                Staged<T>* to = hidden + (row + r) * hidden_stride + first;
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

// Makes a row of staged values ready for `m`, padding included: its digits, one after another. Returns the row's scale.
inline float make_ready(const float* row, int width, const Matrix<int8>& m, Activation<int8>* out) {
#if defined(LAB_VNNI) || defined(LAB_AMX)
    return quantize_in_two(row, width, out, out + m.inputs);
#else
    return quantize(row, width, m.levels(), out);
#endif
}
inline float make_ready(const float* row, int width, const Matrix<bf16>& m, bf16* out) {
    split_in_two(row, width, out, out + m.inputs);
    return 1;
}

// Hands sums [rows x stride] of `panels` panels to the sink. With two digits, each pair of rows is one.
template <class T, class S, class Sink>
inline void deliver(const Matrix<T>& m, const float* row_scales, int row, int rows, int panel, int panels, const S* sums,
                    int stride, const Sink& sink) {
    constexpr int kDigits = Types<T>::kDigits;
    constexpr bool kScaled = Matrix<T>::kScaled;
    if constexpr (kDigits == 1 && !kScaled) {
        (void)m, (void)row_scales;
        sink(row, rows, panel, panels, sums, stride);
    } else {
        alignas(64) float whole[16 * 64];
        const float* lane_scales = m.scales + (kScaled ? panel * Panel<T>::kLanes : 0);
        for (int r = 0; r < rows / kDigits; ++r)
            for (int i = 0; i < stride; i += kWidth) {
                const auto digit = [&](int d) { return as_floats(load(sums + (kDigits * r + d) * stride + i)); };
                Vec sum = digit(0);
                if (kDigits == 2) sum += digit(1) * (kScaled ? 1.0f / 254.0f : 1.0f);
                if (kScaled) sum *= row_scales[row / kDigits + r] * load(lane_scales + i);
                store(whole + r * stride + i, sum);
            }
        sink(row / kDigits, rows / kDigits, panel, panels, whole, stride);
    }
}

}  // namespace lab
