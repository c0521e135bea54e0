// The small operations on one row: exponential, RMS norm, rotary embedding, SiLU, softmax. Sums run in a fixed order.
#pragma once

#include <cmath>
#include <limits>

#include "layout.h"

namespace lab {

inline Vec splat(float s) { return Vec{} + s; }
inline Vec as_floats(Vec v) { return v; }
inline Vec as_floats(IntVec v) { return __builtin_convertvector(v, Vec); }
inline Vec select(IntVec mask, Vec yes, Vec no) {
    return reinterpret_cast<Vec>((mask & reinterpret_cast<IntVec>(yes)) | (~mask & reinterpret_cast<IntVec>(no)));
}
inline Vec maximum(Vec a, Vec b) { return select(a > b, a, b); }

// e^x for x <= 88, within 2 ulp; exactly 0 below -87, so that masked scores weigh nothing.
// x = n·ln2 + r with ln2 in two parts (Cody and Waite), |r| <= ln2/2, then a Taylor polynomial of degree 7.
inline Vec exponential(Vec x) {
    const Vec lowest = splat(-87.0f), magic = splat(12582912.0f);  // 1.5 · 2^23: adding it rounds to an integer
    const IntVec alive = x >= lowest;
    const Vec clamped = select(alive, x, lowest);
    const Vec n = (clamped * 1.44269504088896341f + magic) - magic;
    Vec r = clamped - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    Vec p = splat(1.0f / 5040);
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const IntVec exponent = (__builtin_convertvector(n, IntVec) + 127) << 23;
    return reinterpret_cast<Vec>(reinterpret_cast<IntVec>(p * reinterpret_cast<Vec>(exponent)) & alive);
}

inline float horizontal_sum(Vec v) {
    float sum = 0;
    for (int i = 0; i < kWidth; ++i) sum += v[i];
    return sum;
}

// out = x / sqrt(mean(x²) + eps) · weight; `n` a multiple of 16 or not.
template <class X>
inline void rms_norm(const float* x, const float* weight, int n, float eps, X* out) {
    Vec squares{};
    const int whole = n / kWidth * kWidth;
    for (int i = 0; i < whole; i += kWidth) {
        const Vec v = load(x + i);
        squares += v * v;
    }
    float sum = horizontal_sum(squares);
    for (int i = whole; i < n; ++i) sum += x[i] * x[i];
    const float scale = 1.0f / std::sqrt(sum / static_cast<float>(n) + eps);
    for (int i = 0; i < whole; i += kWidth) store(out + i, load(x + i) * scale * load(weight + i));
    for (int i = whole; i < n; ++i) narrow(x[i] * scale * weight[i], out + i);
}

// The factor of whole numbers up to `levels` that reach the largest of `x`: max |x| / levels. NaN for a row with a NaN or
// infinity.
inline float quantization_step(const float* x, int n, float levels) {
    const int whole = n / kWidth * kWidth;
    Vec top{}, poison{};
    for (int i = 0; i < whole; i += kWidth) {
        const Vec v = load(x + i);
        top = maximum(maximum(v, -v), top);
        poison += v * 0.0f;
    }
    float max = 0, bad = horizontal_sum(poison);
    for (int i = 0; i < kWidth; ++i) max = top[i] > max ? top[i] : max;
    for (int i = whole; i < n; ++i) {
        max = std::fabs(x[i]) > max ? std::fabs(x[i]) : max;
        bad += x[i] * 0.0f;
    }
    return max / levels + bad;
}

constexpr float kRound = 12582912.0f;  // 1.5 · 2^23: adding it and taking it off rounds to an integer

// out = round(x / step); returns the step.
inline float quantize(const float* x, int n, int8* out) {
    const float step = quantization_step(x, n, 127), inverse = step > 0 ? 1.0f / step : 0.0f;
    for (int i = 0; i < n; ++i) out[i].value = static_cast<int8_t>((x[i] * inverse + kRound) - kRound);
    return step;
}

// The same in whole numbers up to `levels`.
inline float quantize(const float* x, int n, float levels, int16* out) {
    typedef int16_t Halves __attribute__((vector_size(kWidth * 2)));
    const float step = quantization_step(x, n, levels), inverse = step > 0 ? 1.0f / step : 0.0f;
    const int whole = n / kWidth * kWidth;
    for (int i = 0; i < whole; i += kWidth) {
        const Vec rounded = (load(x + i) * inverse + kRound) - kRound;
        const Halves values = __builtin_convertvector(__builtin_convertvector(rounded, IntVec), Halves);
        std::memcpy(static_cast<void*>(out + i), &values, sizeof values);
    }
    for (int i = whole; i < n; ++i) out[i].value = static_cast<int16_t>((x[i] * inverse + kRound) - kRound);
    return step;
}

// x as two digits: x = step · (high + low / 254) but for 1/508 of a step: one digit would lose what stands beside an outlier.
// `high` and `low` get n values each; returns the step.
inline float quantize_in_two(const float* x, int n, int8* high, int8* low) {
    typedef int8_t Bytes __attribute__((vector_size(kWidth)));
    const float step = quantization_step(x, n, 127), inverse = step > 0 ? 1.0f / step : 0.0f;
    const int whole = n / kWidth * kWidth;
    for (int i = 0; i < whole; i += kWidth) {
        const Vec scaled = load(x + i) * inverse, first = (scaled + kRound) - kRound;
        const Vec second = ((scaled - first) * 254.0f + kRound) - kRound;
        const Bytes digits[] = {__builtin_convertvector(__builtin_convertvector(first, IntVec), Bytes),
                                __builtin_convertvector(__builtin_convertvector(second, IntVec), Bytes)};
        std::memcpy(static_cast<void*>(high + i), &digits[0], sizeof(Bytes));
        std::memcpy(static_cast<void*>(low + i), &digits[1], sizeof(Bytes));
    }
    for (int i = whole; i < n; ++i) {
        const float scaled = x[i] * inverse, first = (scaled + kRound) - kRound;
        high[i].value = static_cast<int8_t>(first);
        low[i].value = static_cast<int8_t>(((scaled - first) * 254.0f + kRound) - kRound);
    }
    return step;
}

// x = high + low but for 2^-16 of it, both bf16.
inline void split_in_two(const float* x, int n, bf16* high, bf16* low) {
    const int whole = n / kWidth * kWidth;
    for (int i = 0; i < whole; i += kWidth) {
        store(high + i, load(x + i));
        store(low + i, load(x + i) - load(high + i));
    }
    for (int i = whole; i < n; ++i) {
        narrow(x[i], high + i);
        narrow(x[i] - widen(high[i]), low + i);
    }
}

// Rotates (x[i], x[i + d/2]) by the angle of feature i: Hugging Face's half-split order.
inline void rotate(float* x, const float* cosine, const float* sine, int head_dim) {
    const int half = head_dim / 2, whole = half / kWidth * kWidth;
    for (int i = 0; i < whole; i += kWidth) {
        const Vec a = load(x + i), b = load(x + i + half), c = load(cosine + i), s = load(sine + i);
        store(x + i, a * c - b * s);
        store(x + i + half, b * c + a * s);
    }
    for (int i = whole; i < half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = a * cosine[i] - b * sine[i];
        x[i + half] = b * cosine[i] + a * sine[i];
    }
}

// gate / (1 + e^-gate) · up
inline Vec gated(Vec gate, Vec up) {
    const Vec limit = splat(88.0f);
    const Vec minus = select(-gate > limit, limit, -gate);
    return gate / (1.0f + exponential(minus)) * up;
}

// weights[0..n) become e^(score - max), [n, to) become 0; returns 1 / sum. `to` is a multiple of kTile; `scores` is
// scratch. Weights may take the scores' place.
template <class W>
inline float softmax_weights(float* scores, int n, int to, W* weights) {
    const float minus_infinity = -std::numeric_limits<float>::infinity();
    const int last = static_cast<int>(round_up(n, kTile));
    for (int i = n; i < last; ++i) scores[i] = minus_infinity;
    Vec top = splat(minus_infinity);
    for (int i = 0; i < last; i += kWidth) top = maximum(load(scores + i), top);
    float max = top[0];
    for (int i = 1; i < kWidth; ++i) max = top[i] > max ? top[i] : max;
    Vec sum{};
    for (int i = 0; i < last; i += kWidth) {
        const Vec weight = exponential(load(scores + i) - max);
        store(weights + i, weight);
        sum += weight;
    }
    for (int i = last; i < to; i += kWidth) store(weights + i, Vec{});
    return 1.0f / horizontal_sum(sum);
}

// weights[i] = e^((logits[i] - top) · inverse_temperature), for a draw; `top` is the largest logit.
inline void weigh(const float* logits, int n, float top, float inverse_temperature, float* weights) {
    const Vec largest = splat(top), inverse = splat(inverse_temperature);
    const auto weight = [&](Vec v) { return exponential((v - largest) * inverse); };
    int i = 0;
    for (; i + kWidth <= n; i += kWidth) store(weights + i, weight(load(logits + i)));
    for (; i < n; ++i) weights[i] = weight(splat(logits[i]))[0];
}

}  // namespace lab
