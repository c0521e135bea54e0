// A team of threads made once. A step is one parallel region; its phases are separated by a barrier.
//
// Waiting threads spin briefly, then sleep: a core that falls idle takes over the thread that others wait for, if something
// else has its core. A pure spin would stall the whole step meanwhile. Between steps they sleep too. A team of one has no
// barrier at all.
#pragma once

#include <sched.h>

#include <atomic>
#include <climits>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace lab {

inline void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Sleeps while `word` is `value`; may wake up early. Where there is no futex it only lets others run.
inline void sleep_while(std::atomic<unsigned>& word, unsigned value) {
#if defined(__linux__)
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
#else
    (void)word, (void)value;
    sched_yield();
#endif
}
inline void wake_sleepers(std::atomic<unsigned>& word) {
#if defined(__linux__)
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
#else
    (void)word;
#endif
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
            round_.store(round + 1);
            if (sleepers_.load() > 0) wake_sleepers(round_);
            return;
        }
        constexpr int kSpins = 2000;  // about 30 µs, the length of a short phase
        for (int i = 0; i < kSpins; ++i) {
            if (round_.load(std::memory_order_acquire) != round) return;
            pause_briefly();
        }
        sleepers_.fetch_add(1);
        while (round_.load() == round) sleep_while(round_, round);
        sleepers_.fetch_sub(1);
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
    std::atomic<int> sleepers_{0};
};

}  // namespace lab
