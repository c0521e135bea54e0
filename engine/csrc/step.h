// What goes into a step and how it is checked. engine/native.py has the same structures.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lab {

struct Shape {
    int32_t layers, hidden, intermediate, heads, kv_heads, head_dim, vocab, max_positions;
    int32_t block_size, num_blocks, threads;
    int32_t rope_positions, attention_bias, qk_norm;  // the last two are switches
    float eps;
};

struct StepInput {
    int32_t tokens, seqs, table_width, logits;
    const int32_t *token_ids, *positions, *query_start, *context_lens, *block_tables, *slot_mapping, *logit_rows;
    float* out;  // [logits, vocab]
};

enum Weight : int32_t {
    kEmbedding, kFinalNorm, kLmHead, kCosine, kSine,                           // of the model
    kInputNorm, kQkv, kQkvBias, kQNorm, kKNorm, kAttentionOut, kPostNorm, kGate, kUp, kDown,  // of a layer
};

// What is wrong with a StepInput; native.py has the sentences.
enum Fault : int32_t { kFine, kBadToken, kBadPosition, kBadQueryStart, kBadContext, kBadBlock, kBadSlot, kBadLogitRow };

// Where a step's time goes; native.py has the names.
enum Phase : int32_t { kEmbedPhase, kNormPhase, kQkvPhase, kCachePhase, kAttentionPhase, kOutPhase, kGateUpPhase, kDownPhase, kHeadPhase, kPhases };

class Model {
public:
    virtual ~Model() = default;
    virtual void set(int32_t weight, int32_t layer, const void* data) = 0;
    virtual char* weights() = 0;
    virtual size_t weight_bytes() const = 0;
    virtual int32_t step(const StepInput& in) = 0;
    virtual const double* phase_seconds() const = 0;  // [kPhases], of the last step
};

inline int32_t check(const Shape& shape, const StepInput& in) {
    if (in.query_start[0] != 0 || in.query_start[in.seqs] != in.tokens) return kBadQueryStart;
    for (int i = 0; i < in.tokens; ++i) {
        if (in.token_ids[i] < 0 || in.token_ids[i] >= shape.vocab) return kBadToken;
        if (in.positions[i] < 0 || in.positions[i] >= shape.max_positions) return kBadPosition;
        if (in.slot_mapping[i] < 0 || in.slot_mapping[i] / shape.block_size >= shape.num_blocks) return kBadSlot;
    }
    for (int s = 0; s < in.seqs; ++s) {
        if (in.query_start[s] > in.query_start[s + 1]) return kBadQueryStart;
        const int blocks = (in.context_lens[s] + shape.block_size - 1) / shape.block_size;
        if (blocks > in.table_width) return kBadContext;
        for (int row = in.query_start[s]; row < in.query_start[s + 1]; ++row)
            if (in.positions[row] >= in.context_lens[s]) return kBadContext;
        for (int b = 0; b < blocks; ++b) {
            const int32_t block = in.block_tables[static_cast<size_t>(s) * in.table_width + b];
            if (block < 0 || block >= shape.num_blocks) return kBadBlock;
        }
    }
    for (int i = 0; i < in.logits; ++i)
        if (in.logit_rows[i] < (i ? in.logit_rows[i - 1] + 1 : 0) || in.logit_rows[i] >= in.tokens) return kBadLogitRow;
    return kFine;
}

}  // namespace lab
