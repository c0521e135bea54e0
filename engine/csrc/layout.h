// How numbers lie in memory: vectors, "pair rows", weight panels and key/value tiles.
//
// Everything that is multiplied is stored as PAIR ROWS. A pair row holds two consecutive inputs (k, k+1) for a fixed
// number of lanes, one lane an output:
//
//     bf16   | w[0][k] w[0][k+1] | w[1][k] w[1][k+1] | ...      one 32-bit load gives both halves of a lane,
//     fp32   | w[0][k] w[1][k] ... | w[0][k+1] w[1][k+1] ... |  `<< 16` and `& 0xffff0000` widen them to fp32
//
// so that one kernel (tile.h) serves weights, keys and values, and AVX-512 BF16 multiplies a pair row in one go.
//
// WEIGHTS of a matrix [outputs, inputs]: panels of so many outputs, one after another, the last one padded with zeros.
//
//     panel 0: pair row (0,1) | pair row (2,3) | ... | pair row (inputs-2, inputs-1)       lanes = the panel's outputs
//     panel 1: ...
//
// With AMX a panel is two columns of 16 outputs, and 16 pair rows of a column are a tile, 1 KiB in a row:
//
//     panel 0: column 0: tile (inputs 0-31) | tile (32-63) | ...        tile = 16 pair rows x 16 lanes
//              column 1: ...
//
// INT8 weights are the same with four inputs (k .. k+3) in a lane of 32 bits, which VNNI multiplies and adds in one go; a
// tile of AMX then holds 64 inputs. An output has one scale, a row of activations has one: both are kept beside.
//
//     | w[0][k] w[0][k+1] w[0][k+2] w[0][k+3] | w[1][k] ... |
//
// Without VNNI they are widened to pairs of int16 and multiplied with int16 activations. Inputs k and k+1 then are the even
// bytes of a lane, k+2 and k+3 the odd ones, so that two shifts and one give both pairs:
//
//     | w[0][k] w[0][k+2] w[0][k+1] w[0][k+3] | w[1][k] ... |
//
// GATE AND UP of the MLP are one matrix: the first half of a panel's lanes are outputs of gate, the second half the same
// outputs of up, so that whoever computes a panel can finish silu(gate) * up.
//
// A thread owns a fixed range of panels of every matrix, so its weights stay in its own caches.
//
// KV CACHE: one pool, [layer][block][kv head][tile]. A tile is 16 tokens; a block of b tokens has b / 16 of them.
//
//     tile = keys   | D/2 pair rows over (d, d+1), lanes = the 16 tokens |       one row scores 16 keys at once,
//            values | D/16 columns of 8 pair rows over (token, token+1),  |      no horizontal sums;
//                   |   lanes = 16 of the D features                      |      the same kernel adds up values
//
// All query heads that share a key/value head go through a tile together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif
#if defined(__AVX512F__) && defined(__AVX512VNNI__)
#define LAB_VNNI 1
#endif
#if defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__AVX512BF16__) && defined(LAB_VNNI) && !defined(LAB_NO_AMX)
#define LAB_AMX 1
#endif
#if defined(LAB_AMX_HEADER)  // the tile instructions as functions, to test that path on any processor
#define LAB_AMX 1
#include LAB_AMX_HEADER
#endif

namespace lab {

#if defined(__AVX512F__)
constexpr int kWidth = 16, kRegisters = 32;
#elif defined(__AVX__)
constexpr int kWidth = 8, kRegisters = 16;
#elif defined(__aarch64__)
constexpr int kWidth = 4, kRegisters = 32;
#else
constexpr int kWidth = 4, kRegisters = 16;
#endif

// Accumulators in registers leave room for the widened weights, a broadcast input and the mask. Six rows would fit into
// 16 registers too, but gcc then spills sums.
constexpr int kAccumulators = kRegisters == 32 ? 24 : 12;
constexpr int kMaxRows = kRegisters == 32 ? 6 : 5;
constexpr int kTile = 16;  // tokens of a tile, and features of a value column

typedef float Vec __attribute__((vector_size(kWidth * 4)));
typedef int32_t IntVec __attribute__((vector_size(kWidth * 4)));
typedef uint32_t UintVec __attribute__((vector_size(kWidth * 4)));
typedef float LooseVec __attribute__((vector_size(kWidth * 4), aligned(4), may_alias));
typedef uint32_t LooseUintVec __attribute__((vector_size(kWidth * 4), aligned(2), may_alias));

inline Vec load(const float* p) { return *reinterpret_cast<const LooseVec*>(p); }
typedef int32_t LooseIntVec __attribute__((vector_size(kWidth * 4), aligned(4), may_alias));
inline IntVec load(const int32_t* p) { return *reinterpret_cast<const LooseIntVec*>(p); }
inline void store(int32_t* p, IntVec v) { *reinterpret_cast<LooseIntVec*>(p) = v; }
inline void store(float* p, Vec v) { *reinterpret_cast<LooseVec*>(p) = v; }

using fp32 = float;
struct bf16 {
    uint16_t bits;
};

struct int8 {
    int8_t value;
};
struct int16 {
    int16_t value;
};

// What goes with weights of type T. Activation: what a matrix is multiplied with; fp32, or bf16 where the processor
// multiplies pairs of bf16. Staged: what norms, attention and the MLP leave for the next matrix; where that is another type,
// rows are made ready in between. Source: what a matrix is packed from. Sum: of products. kDigits: rows of activations that
// stand for one: tiles of AMX are never short of multiplications while few rows wait for many weights, so two bf16, or two
// int8, keep nearly all of an fp32.
// LAB_BF16_ACTIVATIONS takes bf16 activations without that instruction, so that the path can be tested anywhere.
template <class T>
struct Types {
#if defined(__AVX512BF16__) || defined(LAB_BF16_ACTIVATIONS)
    using Activation = T;
#else
    using Activation = float;
#endif
    using Staged = Activation;
    using Source = T;
    using Embedding = T;
    using Sum = float;
    static constexpr int kDigits = 1;
};
#if defined(LAB_AMX)
template <>
struct Types<bf16> {
    using Activation = bf16;
    using Staged = float;
    using Source = bf16;
    using Embedding = bf16;
    using Sum = float;
    static constexpr int kDigits = 2;
};
#endif
template <>
struct Types<int8> {
#if defined(LAB_VNNI) || defined(LAB_AMX)
    using Activation = int8;
    static constexpr int kDigits = 2;
#else
    using Activation = int16;
    static constexpr int kDigits = 1;
#endif
    using Staged = float;
    using Source = float;
    using Embedding = bf16;
    using Sum = int32_t;
};
template <class T>
using Activation = typename Types<T>::Activation;
template <class T>
using Staged = typename Types<T>::Staged;

// How a matrix of T is cut into panels. kGroup inputs share a lane's 32 bits (or follow each other, for fp32). Rows that
// it is multiplied with are padded with zeros to a multiple of kStep.
template <class T>
struct Panel {
    static constexpr bool kAmx = false;
    static constexpr int kLanes = kWidth * (kRegisters == 32 ? 4 : 2);  // 16 outputs with AVX2, 64 with AVX-512
    static constexpr int kColumn = kLanes, kGroup = 2, kStep = 1;
};
#if defined(LAB_AMX)
template <>
struct Panel<bf16> {
    static constexpr bool kAmx = true;
    static constexpr int kLanes = 32, kColumn = 16, kGroup = 2, kStep = 32;
};
template <>
struct Panel<int8> {
    static constexpr bool kAmx = true;
    static constexpr int kLanes = 32, kColumn = 16, kGroup = 4, kStep = 64;
};
#else
template <>
struct Panel<int8> {
    static constexpr bool kAmx = false;
    static constexpr int kLanes = Panel<float>::kLanes, kColumn = kLanes, kGroup = 4, kStep = 4;
};
#endif

inline float widen(bf16 v) {
    const uint32_t bits = static_cast<uint32_t>(v.bits) << 16;
    float f;
    std::memcpy(&f, &bits, sizeof f);
    return f;
}
inline float widen(float v) { return v; }

// Round to nearest, ties to even; a NaN stays one.
inline void narrow(float f, bf16* out) {
    uint32_t bits;
    std::memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        out->bits = 0x7fc0;
        return;
    }
    out->bits = static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline void narrow(float f, float* out) { *out = f; }

// Stores activations in their type.
inline void store(bf16* p, Vec v) {
#if defined(__AVX512BF16__)
    const __m256bh narrow_values = _mm512_cvtneps_pbh(reinterpret_cast<__m512>(v));
    std::memcpy(static_cast<void*>(p), &narrow_values, sizeof narrow_values);
#else
    for (int i = 0; i < kWidth; ++i) narrow(v[i], p + i);
#endif
}

// kWidth bf16 as fp32.
inline Vec load(const bf16* p) {
    typedef uint16_t Bits __attribute__((vector_size(kWidth * 2)));
    Bits bits;
    std::memcpy(&bits, p, sizeof bits);
    return reinterpret_cast<Vec>(__builtin_convertvector(bits, UintVec) << 16);
}

// One half (0: input k, 1: input k + 1) of kWidth lanes of a pair row with `Lanes` lanes, from lane `lane` on.
template <int Lanes, int Half>
inline Vec load_half(const bf16* row, int lane) {
    const UintVec both = *reinterpret_cast<const LooseUintVec*>(row + 2 * lane);
    return reinterpret_cast<Vec>(Half == 0 ? both << 16 : both & 0xffff0000u);
}
template <int Lanes, int Half>
inline Vec load_half(const float* row, int lane) {
    return load(row + Half * Lanes + lane);
}

// Where input `k` of lane `lane` lies in consecutive pair rows of `lanes` lanes.
inline size_t pair_index(const bf16*, int lanes, size_t k, int lane) {
    return (k / 2) * 2 * lanes + 2 * static_cast<size_t>(lane) + k % 2;
}
inline size_t pair_index(const float*, int lanes, size_t k, int lane) { return k * lanes + lane; }

inline size_t pair_index(const int8*, int lanes, size_t k, int lane) {
#if defined(LAB_VNNI) || defined(LAB_AMX)
    constexpr size_t kByte[] = {0, 1, 2, 3};
#else
    constexpr size_t kByte[] = {0, 2, 1, 3};
#endif
    return (k / 4) * 4 * lanes + 4 * static_cast<size_t>(lane) + kByte[k % 4];
}

inline size_t pair_rows(size_t inputs) { return (inputs + 1) / 2; }
inline size_t round_up(size_t n, size_t step) { return (n + step - 1) / step * step; }

}  // namespace lab
