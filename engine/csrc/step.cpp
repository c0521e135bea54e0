// The C interface of the native step; engine/native.py is the only caller.
#include "decoder.h"

// One library holds one pair of types, so that it builds in seconds; native.py asks for the pair it needs.
#ifndef LAB_WEIGHT
#define LAB_WEIGHT bf16
#endif
#ifndef LAB_CACHE
#define LAB_CACHE bf16
#endif

extern "C" {

void* lab_create(const lab::Shape* shape) try {
#if defined(LAB_AMX)
    if (!lab::may_use_tiles()) return nullptr;
#endif
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

const double* lab_phase_seconds(void* model) { return static_cast<lab::Model*>(model)->phase_seconds(); }

void lab_weigh(const float* logits, int32_t n, float top, float inverse_temperature, float* weights) {
    lab::weigh(logits, n, top, inverse_temperature, weights);
}

void lab_destroy(void* model) { delete static_cast<lab::Model*>(model); }

int32_t lab_vector_width() { return lab::kWidth; }

}  // extern "C"
