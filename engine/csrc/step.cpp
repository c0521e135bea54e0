// A whole step of a Llama-family decoder in one call: the C interface at the end, the phases of a step above it.
//
// All new tokens of the step are rows; a mixed batch of prompt chunks and decodes needs no cases. The residual stream,
// activations and sums are fp32; weights and the key/value cache may be bf16. engine/native.py is the only caller.
#include <atomic>
#include <memory>
#include <vector>

#include "attention.h"
#include "gemm.h"
#include "ops.h"
#include "threads.h"

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

class Model {
public:
    virtual ~Model() = default;
    virtual void set(int32_t weight, int32_t layer, const void* data) = 0;
    virtual char* weights() = 0;
    virtual size_t weight_bytes() const = 0;
    virtual int32_t step(const StepInput& in) = 0;
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

// T: type of the weights, K: type of the key/value cache.
template <class T, class K>
class Decoder final : public Model {
public:
    explicit Decoder(const Shape& shape)
        : shape_(shape),
          query_size_(shape.heads * shape.head_dim),
          kv_size_(shape.kv_heads * shape.head_dim),
          group_(shape.heads / shape.kv_heads),
          tile_size_(2 * static_cast<size_t>(kTile) * shape.head_dim),
          head_stride_(shape.block_size / kTile * tile_size_),
          block_stride_(shape.kv_heads * head_stride_),
          score_stride_(round_up(shape.max_positions, kTile) + kTile),
          layers_(shape.layers),
          cache_(shape.layers * static_cast<size_t>(shape.num_blocks) * block_stride_),
          next_item_(shape.layers),
          team_(shape.threads) {
        Arena counting(nullptr);
        place(counting);
        weights_ = Buffer<char>(counting.used());
        Arena arena(weights_.get());
        place(arena);
        for (int t = 0; t < shape.threads; ++t) scores_.emplace_back(kMaxRows * score_stride_);
        gate_.resize(shape.threads);
        up_.resize(shape.threads);
    }

    void set(int32_t weight, int32_t index, const void* data) override {
        const T* matrix = static_cast<const T*>(data);
        const auto copy = [&](float* to, size_t n) { std::memcpy(to, data, n * sizeof(float)); };
        Layer& layer = layers_[index];
        const size_t hidden = shape_.hidden, angles = static_cast<size_t>(shape_.rope_positions) * (shape_.head_dim / 2);
        switch (weight) {
            case kEmbedding: std::memcpy(embedding_, data, shape_.vocab * hidden * sizeof(T)); break;
            case kFinalNorm: copy(final_norm_, hidden); break;
            case kLmHead: lm_head_.pack(matrix); break;
            case kCosine: copy(cosine_, angles); break;
            case kSine: copy(sine_, angles); break;
            case kInputNorm: copy(layer.input_norm, hidden); break;
            case kQkv: layer.qkv.pack(matrix); break;
            case kQkvBias: copy(layer.qkv_bias, query_size_ + 2 * kv_size_); break;
            case kQNorm: copy(layer.q_norm, shape_.head_dim); break;
            case kKNorm: copy(layer.k_norm, shape_.head_dim); break;
            case kAttentionOut: layer.out.pack(matrix); break;
            case kPostNorm: copy(layer.post_norm, hidden); break;
            case kGate: layer.gate.pack(matrix); break;
            case kUp: layer.up.pack(matrix); break;
            case kDown: layer.down.pack(matrix); break;
            default: break;
        }
    }
    char* weights() override { return weights_.get(); }
    size_t weight_bytes() const override { return weights_.count(); }

    int32_t step(const StepInput& in) override {
        if (const int32_t fault = check(shape_, in)) return fault;
        reserve(in);
        list_attention(in);
        team_.run([&](int thread) { run(in, thread); });
        return kFine;
    }

private:
    struct Layer {
        float *input_norm, *post_norm, *q_norm, *k_norm, *qkv_bias;  // null where the model has none
        Matrix<T> qkv, out, gate, up, down;
    };
    // Consecutive rows of one sequence, attended together; results go to rows `out` and on.
    struct AttentionItem {
        int seq, row, rows, out;
    };
    static constexpr int kItemRows = 16;

    // Gives every weight its place, in the order in which a step reads them.
    void place(Arena& arena) {
        const int hidden = shape_.hidden, inner = shape_.intermediate, d = shape_.head_dim;
        const size_t angles = static_cast<size_t>(shape_.rope_positions) * (d / 2);
        embedding_ = arena.take<T>(static_cast<size_t>(shape_.vocab) * hidden);
        cosine_ = arena.take<float>(angles);
        sine_ = arena.take<float>(angles);
        for (Layer& layer : layers_) {
            layer.input_norm = arena.take<float>(hidden);
            layer.qkv.place(arena, query_size_ + 2 * kv_size_, hidden);
            layer.qkv_bias = shape_.attention_bias ? arena.take<float>(query_size_ + 2 * kv_size_) : nullptr;
            layer.q_norm = shape_.qk_norm ? arena.take<float>(d) : nullptr;
            layer.k_norm = shape_.qk_norm ? arena.take<float>(d) : nullptr;
            layer.out.place(arena, hidden, query_size_);
            layer.post_norm = arena.take<float>(hidden);
            layer.gate.place(arena, inner, hidden);
            layer.up.place(arena, inner, hidden);
            layer.down.place(arena, hidden, inner);
        }
        final_norm_ = arena.take<float>(hidden);
        lm_head_.place(arena, shape_.vocab, hidden);
    }

    void reserve(const StepInput& in) {
        const size_t rows = in.tokens;
        residual_.grow(rows * shape_.hidden);
        last_.grow(static_cast<size_t>(in.logits) * shape_.hidden);
        normed_.grow(rows * shape_.hidden);
        qkv_.grow(rows * (query_size_ + 2 * kv_size_));
        attended_.grow(rows * query_size_);
        hidden_.grow(rows * shape_.intermediate);
    }

    // The last layer is computed for the rows that need logits only: nothing later reads the others.
    void list_attention(const StepInput& in) {
        all_items_.clear();
        last_items_.clear();
        for (int s = 0, logit = 0; s < in.seqs; ++s) {
            const int end = in.query_start[s + 1];
            for (int row = in.query_start[s]; row < end; row += kItemRows)
                all_items_.push_back({s, row, end - row < kItemRows ? end - row : kItemRows, row});
            for (; logit < in.logits && in.logit_rows[logit] < end; ++logit)
                last_items_.push_back({s, in.logit_rows[logit], 1, logit});
        }
        for (auto& next : next_item_) next.store(0, std::memory_order_relaxed);
    }

    void run(const StepInput& in, int thread) {
        embed(in, thread);
        for (int i = 0; i < shape_.layers; ++i) {
            const Layer& layer = layers_[i];
            const bool last = i + 1 == shape_.layers;
            norm(residual_.get(), layer.input_norm, in.tokens, thread);
            team_.barrier();
            multiply(layer.qkv, slice(layer.qkv, thread), normed_.get(), in.tokens, Write::kSet,
                     qkv_.get() + first_output(layer.qkv, thread), query_size_ + 2 * kv_size_);
            team_.barrier();
            finish_qkv(in, layer, i, thread);
            team_.barrier();
            attend_items(in, last ? last_items_ : all_items_, i, thread);
            if (last) copy_logit_rows(in, thread);
            team_.barrier();
            feed_forward(layer, last ? last_.get() : residual_.get(), last ? in.logits : in.tokens, thread);
        }
        norm(last_.get(), final_norm_, in.logits, thread);
        team_.barrier();
        multiply(lm_head_, slice(lm_head_, thread), normed_.get(), in.logits, Write::kSet,
                 in.out + first_output(lm_head_, thread), shape_.vocab);
    }

    // Attention's output projection and the gated MLP, both added to the residual stream.
    void feed_forward(const Layer& layer, float* residual, int rows, int thread) {
        multiply(layer.out, slice(layer.out, thread), attended_.get(), rows, Write::kAdd,
                 residual + first_output(layer.out, thread), shape_.hidden);
        team_.barrier();
        norm(residual, layer.post_norm, rows, thread);
        team_.barrier();
        gate_and_up(layer, rows, thread);
        team_.barrier();
        multiply(layer.down, slice(layer.down, thread), hidden_.get(), rows, Write::kAdd,
                 residual + first_output(layer.down, thread), shape_.hidden);
        team_.barrier();
    }

    Range slice(const Matrix<T>& m, int thread) const { return part(m.panels(), team_.size(), thread); }
    int first_output(const Matrix<T>& m, int thread) const { return slice(m, thread).begin * kPanel; }
    Range rows_of(int rows, int thread) const { return part(rows, team_.size(), thread); }

    void embed(const StepInput& in, int thread) {
        const Range rows = rows_of(in.tokens, thread);
        for (int row = rows.begin; row < rows.end; ++row) {
            const T* from = embedding_ + static_cast<size_t>(in.token_ids[row]) * shape_.hidden;
            float* to = residual_.get() + static_cast<size_t>(row) * shape_.hidden;
            for (int i = 0; i < shape_.hidden; ++i) to[i] = widen(from[i]);
        }
    }

    void norm(const float* x, const float* weight, int rows, int thread) {
        const Range range = rows_of(rows, thread);
        for (int row = range.begin; row < range.end; ++row) {
            const size_t at = static_cast<size_t>(row) * shape_.hidden;
            rms_norm(x + at, weight, shape_.hidden, shape_.eps, normed_.get() + at);
        }
    }

    // Bias, query/key norm and rotary embedding; queries are scaled, keys and values go to the cache.
    void finish_qkv(const StepInput& in, const Layer& layer, int index, int thread) {
        const int width = query_size_ + 2 * kv_size_, d = shape_.head_dim;
        const float scale = 1.0f / std::sqrt(static_cast<float>(d));
        const Range rows = rows_of(in.tokens, thread);
        for (int row = rows.begin; row < rows.end; ++row) {
            float* q = qkv_.get() + static_cast<size_t>(row) * width;
            float* k = q + query_size_;
            if (layer.qkv_bias)
                for (int i = 0; i < width; ++i) q[i] += layer.qkv_bias[i];
            const size_t angle = static_cast<size_t>(in.positions[row]) * (d / 2);
            for (int h = 0; h < shape_.heads + shape_.kv_heads; ++h) {
                float* head = q + h * d;
                const float* weight = h < shape_.heads ? layer.q_norm : layer.k_norm;
                if (weight) rms_norm(head, weight, d, shape_.eps, head);
                rotate(head, cosine_ + angle, sine_ + angle, d);
            }
            for (int i = 0; i < query_size_; ++i) q[i] *= scale;
            const int slot = in.slot_mapping[row], offset = slot % shape_.block_size;
            K* block = layer_cache(index) + slot / shape_.block_size * block_stride_;
            for (int h = 0; h < shape_.kv_heads; ++h)
                write_token(block + h * head_stride_ + offset / kTile * tile_size_, d, offset % kTile, k + h * d,
                            k + kv_size_ + h * d);
        }
    }

    // Items are handed out one by one, since their lengths differ; who computes one does not change its result.
    void attend_items(const StepInput& in, const std::vector<AttentionItem>& items, int index, int thread) {
        const int total = static_cast<int>(items.size()) * shape_.kv_heads;
        for (int i; (i = next_item_[index].fetch_add(1, std::memory_order_relaxed)) < total;)
            attend_item(in, items[i / shape_.kv_heads], i % shape_.kv_heads, index, thread);
    }

    void attend_item(const StepInput& in, const AttentionItem& item, int head, int index, int thread) {
        const int width = query_size_ + 2 * kv_size_, d = shape_.head_dim;
        const SequenceCache<K> cache{layer_cache(index) + head * head_stride_, block_stride_,
                                     in.block_tables + static_cast<size_t>(item.seq) * in.table_width,
                                     shape_.block_size / kTile, d};
        const int queries = item.rows * group_, parts = (queries + kMaxRows - 1) / kMaxRows;
        for (int p = 0; p < parts; ++p) {
            const Range range = part(queries, parts, p);
            with_rows(range.end - range.begin, [&](auto n) {
                const float* query[n];
                Activation<T>* out[n];
                int visible[n];
                for (int r = 0; r < n; ++r) {
                    const int row = (range.begin + r) / group_, h = head * group_ + (range.begin + r) % group_;
                    query[r] = qkv_.get() + static_cast<size_t>(item.row + row) * width + h * d;
                    out[r] = attended_.get() + static_cast<size_t>(item.out + row) * query_size_ + h * d;
                    visible[r] = in.positions[item.row + row] + 1;
                }
                attend<K, Activation<T>, n>(cache, query, visible, scores_[thread].get(), score_stride_, out);
            });
        }
    }

    void copy_logit_rows(const StepInput& in, int thread) {
        const Range rows = rows_of(in.logits, thread);
        for (int i = rows.begin; i < rows.end; ++i)
            std::memcpy(last_.get() + static_cast<size_t>(i) * shape_.hidden,
                        residual_.get() + static_cast<size_t>(in.logit_rows[i]) * shape_.hidden,
                        shape_.hidden * sizeof(float));
    }

    // A thread owns the same panels of both matrices, so gate and up meet without a barrier, still in its cache.
    void gate_and_up(const Layer& layer, int rows, int thread) {
        const Range panels = slice(layer.gate, thread);
        const int first = panels.begin * kPanel, columns = (panels.end - panels.begin) * kPanel;
        const int wanted = first + columns > shape_.intermediate ? shape_.intermediate - first : columns;
        if (columns == 0) return;
        gate_[thread].grow(static_cast<size_t>(kRowBlock) * columns);
        up_[thread].grow(static_cast<size_t>(kRowBlock) * columns);
        float *gate = gate_[thread].get(), *up = up_[thread].get();
        for (int block = 0; block < rows; block += kRowBlock) {
            const int count = rows - block < kRowBlock ? rows - block : kRowBlock;
            const Activation<T>* x = normed_.get() + static_cast<size_t>(block) * shape_.hidden;
            multiply(layer.gate, panels, x, count, Write::kSet, gate, columns);
            multiply(layer.up, panels, x, count, Write::kSet, up, columns);
            for (int row = 0; row < count; ++row) {
                silu_multiply(gate + row * columns, up + row * columns, columns);
                Activation<T>* to = hidden_.get() + static_cast<size_t>(block + row) * shape_.intermediate + first;
                for (int i = 0; i < wanted; ++i) narrow(gate[row * columns + i], to + i);
            }
        }
    }

    K* layer_cache(int index) { return cache_.get() + index * static_cast<size_t>(shape_.num_blocks) * block_stride_; }

    const Shape shape_;
    const int query_size_, kv_size_, group_;
    const size_t tile_size_, head_stride_, block_stride_, score_stride_;
    std::vector<Layer> layers_;
    T* embedding_ = nullptr;
    float *cosine_ = nullptr, *sine_ = nullptr, *final_norm_ = nullptr;
    Matrix<T> lm_head_;
    Buffer<char> weights_;
    Buffer<K> cache_;
    Buffer<float> residual_, last_, qkv_;
    Buffer<Activation<T>> normed_, attended_, hidden_;
    std::vector<Buffer<float>> scores_, gate_, up_;  // one a thread
    std::vector<AttentionItem> all_items_, last_items_;
    std::vector<std::atomic<int>> next_item_;  // one a layer
    Team team_;
};

}  // namespace lab

// One library holds one pair of types, so that it builds in seconds; native.py asks for the pair it needs.
#ifndef LAB_WEIGHT
#define LAB_WEIGHT bf16
#endif
#ifndef LAB_CACHE
#define LAB_CACHE bf16
#endif

extern "C" {

void* lab_create(const lab::Shape* shape) try {
    return static_cast<lab::Model*>(new lab::Decoder<lab::LAB_WEIGHT, lab::LAB_CACHE>(*shape));
} catch (...) {  // out of memory or of threads: no exception may cross the C interface
    return nullptr;
}

void lab_set(void* model, int32_t weight, int32_t layer, const void* data) {
    static_cast<lab::Model*>(model)->set(weight, layer, data);
}

// All weights as they lie in memory, to be kept and put back.
void* lab_weights(void* model) { return static_cast<lab::Model*>(model)->weights(); }
size_t lab_weight_bytes(void* model) { return static_cast<lab::Model*>(model)->weight_bytes(); }

int32_t lab_step(void* model, const lab::StepInput* in) { return static_cast<lab::Model*>(model)->step(*in); }

void lab_destroy(void* model) { delete static_cast<lab::Model*>(model); }

int32_t lab_vector_width() { return lab::kWidth; }

}  // extern "C"
