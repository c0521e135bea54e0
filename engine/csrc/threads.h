// A team of threads made once. A step is one parallel region; its phases are separated by a barrier.
//
// Waiting threads spin briefly, then yield: a pure spin would stall the whole step for a scheduler tick whenever
// anything else wants a core. Between steps they sleep. A team of one has no barrier at all.
#pragma once

#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace lab {

inline void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

template <class Done>
inline void spin_then_yield(Done done) {
    constexpr int kSpins = 2000;  // about 30 µs, the length of a short phase
    for (int i = 0; !done(); ++i) {
        if (i < kSpins)
            pause_briefly();
        else
            sched_yield();
    }
}

class Team {
public:
    explicit Team(int size) : size_(size) {
        for (int i = 1; i < size; ++i) workers_.emplace_back([this, i] { serve(i); });
    }
    ~Team() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stop_ = true;
        }
        wake_.notify_all();
        for (auto& worker : workers_) worker.join();
    }
    int size() const { return size_; }

    // Runs job(thread) on every thread, the caller being thread 0, and returns when all are done.
    void run(const std::function<void(int)>& job) {
        if (size_ > 1) {
            std::lock_guard<std::mutex> lock(mutex_);
            job_ = &job;
            epoch_.fetch_add(1, std::memory_order_release);
        }
        if (size_ > 1) wake_.notify_all();
        job(0);
        barrier();
    }

    // No thread goes on before all have arrived.
    void barrier() {
        if (size_ == 1) return;
        const unsigned round = round_.load(std::memory_order_acquire);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
            arrived_.store(0, std::memory_order_relaxed);
            round_.store(round + 1, std::memory_order_release);
            return;
        }
        spin_then_yield([&] { return round_.load(std::memory_order_acquire) != round; });
    }

private:
    void serve(int thread) {
        unsigned seen = 0;
        for (;;) {
            {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, [&] { return stop_ || epoch_.load(std::memory_order_acquire) != seen; });
                if (stop_) return;
                seen = epoch_.load(std::memory_order_acquire);
            }
            (*job_)(thread);
            barrier();
        }
    }

    const int size_;
    std::vector<std::thread> workers_;
    std::mutex mutex_;
    std::condition_variable wake_;
    bool stop_ = false;
    std::atomic<unsigned> epoch_{0};
    const std::function<void(int)>* job_ = nullptr;
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<unsigned> round_{0};
};

}  // namespace lab
