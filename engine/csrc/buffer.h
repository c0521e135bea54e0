// Memory for weights, cache and scratch: aligned, zeroed, in huge pages where the system grants them.
#pragma once

#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "layout.h"

namespace lab {

template <class T>
class Buffer {
public:
    Buffer() = default;
    explicit Buffer(size_t count) : count_(count) {
        constexpr size_t kHuge = size_t{2} << 20;
        const size_t bytes = count * sizeof(T);
        // Small buffers would waste a huge page each.
        const size_t alignment = bytes >= kHuge / 2 ? kHuge : 64;
        const size_t size = round_up(bytes ? bytes : 1, alignment);
        data_ = static_cast<T*>(std::aligned_alloc(alignment, size));
        if (!data_) throw std::bad_alloc();
#if defined(__linux__) && defined(MADV_HUGEPAGE)
        // Fewer misses of the address cache while the weights stream by; refused advice changes nothing.
        if (alignment == kHuge) madvise(data_, size, MADV_HUGEPAGE);
#endif
        std::memset(static_cast<void*>(data_), 0, size);  // and every page is there before the first step
    }
    Buffer(Buffer&& other) noexcept { swap(other); }
    Buffer& operator=(Buffer&& other) noexcept {
        swap(other);
        return *this;
    }
    ~Buffer() { std::free(data_); }

    // Old contents are lost.
    void grow(size_t count) {
        if (count > count_) *this = Buffer(count);
    }
    T* get() { return data_; }
    const T* get() const { return data_; }
    size_t count() const { return count_; }

private:
    void swap(Buffer& other) {
        std::swap(data_, other.data_);
        std::swap(count_, other.count_);
    }
    T* data_ = nullptr;
    size_t count_ = 0;
};

}  // namespace lab
