// One stretch of memory for all weights, in the order in which a step reads them.
//
// So the packed weights are one file: written as they lie here, read back in one go (engine/weights/packed.py).
#pragma once

#include "buffer.h"

namespace lab {

class Arena {
public:
    // Without memory behind it an arena only counts.
    explicit Arena(char* memory) : memory_(memory) {}

    template <class T>
    T* take(size_t count) {
        const size_t at = used_;
        used_ = round_up(used_ + count * sizeof(T), 64);
        return memory_ ? reinterpret_cast<T*>(memory_ + at) : nullptr;
    }
    size_t used() const { return used_; }

private:
    char* memory_;
    size_t used_ = 0;
};

}  // namespace lab
